"""Resident memory of a host pool against what was asked for.

python bench/host_pool.py [--gb GB] [--output FOLDER]
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from _cuda import RESULTS, driver_or_exit, facts, heading, save, table

from kvfence.reference.driver.host_pool import HostPool


def resident() -> int:
    """Bytes of this process in memory."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise SystemExit("not measured: this system does not tell the resident memory")


def main() -> None:
    """Measures, prints and saves."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--gb", type=float, default=60)
    parser.add_argument("--block", type=int, default=49152, help="bytes of a block")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder for the results")
    asked = parser.parse_args()
    driver = driver_or_exit()
    blocks = round(asked.gb * 1e9 / asked.block)
    HostPool(driver, 1, asked.block).close()
    before, begin = resident(), time.perf_counter()
    pool = HostPool(driver, blocks, asked.block)
    took, grown = time.perf_counter() - begin, resident() - before
    found: dict[str, Any] = {
        **facts(driver), "asked": pool.nbytes, "resident": grown, "more": grown / pool.nbytes - 1,
        "seconds": took,
    }  # fmt: skip
    pool.close()
    found["left"] = resident() - before
    row = [pool.nbytes, grown, f"{found['more']:+.4%}", f"{took:.1f}", found["left"]]
    head = ["bytes asked", "resident bytes", "more", "seconds", "resident bytes after closing"]
    save(asked.output, "host_pool", found, heading("Host pool", found) + "\n" + table(head, [row]))


if __name__ == "__main__":
    main()
