"""Resident memory of a host pool against what was asked for.

python bench/host_pool.py [--gb GB] [--output FOLDER]
"""

from __future__ import annotations

from typing import Any

from _cuda import driver_or_exit, facts, heading
from _measure import RESULTS, Stopwatch, arguments, resident, save_of_card, table

from kvfence.reference.driver.host_pool import HostPool


def main() -> None:
    """Measures, prints and saves."""
    parser = arguments(__doc__, output="folder for the results", default=RESULTS)
    parser.add_argument("--gb", type=float, default=60)
    parser.add_argument("--block", type=int, default=49152, help="bytes of a block")
    asked = parser.parse_args()
    driver = driver_or_exit()
    blocks = round(asked.gb * 1e9 / asked.block)
    HostPool(driver, 1, asked.block).close()
    before = resident()
    with Stopwatch() as watch:
        pool = HostPool(driver, blocks, asked.block)
    took, grown = watch.seconds, resident() - before
    found: dict[str, Any] = {
        **facts(driver), "asked": pool.nbytes, "resident": grown, "more": grown / pool.nbytes - 1,
        "seconds": took,
    }  # fmt: skip
    pool.close()
    found["left"] = resident() - before
    row = [pool.nbytes, grown, f"{found['more']:+.4%}", f"{took:.1f}", found["left"]]
    head = ["bytes asked", "resident bytes", "more", "seconds", "resident bytes after closing"]
    save_of_card(asked.output, "host_pool", found, heading("Host pool", found) + "\n" + table(head, [row]))


if __name__ == "__main__":
    main()
