"""A whole engine without offloading, with it, and with a fault: what must be equal, clean and caught.

    python compare.py [--requests N]

Once with scheduler and worker in one process, and once with each in its own.

Exits with 1 and says why if a comparison fails. Run by ``make test-vllm``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

RUN = Path(__file__).with_name("run_engine.py")


FEW: int = 40
"""Requests of the runs whose scheduler and worker are in processes of their own."""


TIER = "HostOffloadingConnector: not checked: its own tier is not judged: lookups, transfers and FLUSH"


def run(
    side: str, requests: int, fault: str = "", processes: bool = False, offloading: bool = False
) -> dict[str, Any]:
    """One run in a process of its own; ``processes``: its scheduler and its worker in others.

    ``offloading``: with OffloadingConnector.
    """
    command = [sys.executable, "-W", "ignore", str(RUN), side, "--requests", str(requests)]
    command += ["--processes"] * processes + ["--offloading"] * offloading
    environment = {**os.environ, "KVFENCE_ENGINE_FAULT": fault}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    for line in done.stdout.splitlines():
        if line.startswith("RESULT "):
            found: dict[str, Any] = json.loads(line.removeprefix("RESULT "))
            return found
    raise SystemExit(f"the engine ({side} {fault}) did not come to an end:\n{done.stderr[-3000:]}")


def main() -> None:
    """Runs and compares."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--requests", type=int, default=200)
    asked = parser.parse_args()
    wrong: list[str] = []

    def check(what: str, holds: bool) -> None:
        print(("ok    " if holds else "WRONG ") + what, flush=True)
        if not holds:
            wrong.append(what)

    plain = run("none", asked.requests)
    fenced = run("fenced", asked.requests)
    count = len(plain["tokens"])
    different = len({tuple(tokens) for tokens in plain["tokens"]})
    print(f"{count} requests, {different} different answers, {fenced['preempted']} preemptions, ", end="")
    print(f"{fenced['moved']['store']} blocks stored, {fenced['moved']['load']} loaded, ", end="")
    print(f"{fenced['fence']['events']} events judged")
    check("the same tokens with and without offloading", plain["tokens"] == fenced["tokens"])
    check("there were preemptions and CPU hits", fenced["preempted"] > 0 and fenced["moved"]["load"] > 0)
    check("no invariant was broken", not fenced["fence"]["violations"])
    check("everything was checked", not fenced["fence"]["undetermined"] and not fenced["not_checked"])
    unpinned = run("fenced", asked.requests, "unpinned")
    check("hits without pins are caught", "PIN" in unpinned["fence"]["violations"])
    scrambled = run("fenced", asked.requests, "scrambled")
    check("loads of wrong contents change tokens", scrambled["tokens"] != plain["tokens"])
    unordered = run("fenced", asked.requests, "unordered")
    check("stores that do not wait are caught", "STORE-READY" in unordered["fence"]["violations"])
    apart = run("fenced", FEW, processes=True)
    metrics = apart["metrics"]
    check("the same tokens in processes of their own", apart["tokens"] == plain["tokens"][:FEW])
    check("figures come from other processes, and nothing is wrong", set(metrics) == {"events"})
    unpinned = run("fenced", FEW, "unpinned", processes=True)
    check("a fault of the scheduler's process is reported", unpinned["metrics"].get("violations PIN", 0) > 0)
    unordered = run("fenced", FEW, "unordered", processes=True)
    metrics = unordered["metrics"]
    check("a fault of the worker's process is reported", metrics.get("violations STORE-READY", 0) > 0)
    other = run("fenced", FEW, offloading=True)
    print(f"{other['moved']['store']} blocks stored, {other['moved']['load']} loaded, ", end="")
    print(f"{other['order']['events']} order events judged")
    check("the same tokens with OffloadingConnector", other["tokens"] == plain["tokens"][:FEW])
    check("it stored and loaded", other["moved"]["store"] > 0 and other["moved"]["load"] > 0)
    check(
        "its order of streams is judged", other["order"]["events"] > 0 and not other["order"]["not_checked"]
    )
    check("no invariant is broken there", not other["fence"]["violations"])
    check("that its tier is not judged is reported", other["not_checked"] == [TIER])
    unordered = run("fenced", FEW, "unordered", offloading=True)
    check("its stores that do not wait are caught", "STORE-READY" in unordered["fence"]["violations"])
    metrics = run("fenced", FEW, "unordered", processes=True, offloading=True)["metrics"]
    check("and reported by the worker's process", metrics.get("violations STORE-READY", 0) > 0)
    check("as is that its tier is not judged", metrics.get("undetermined") == 1)
    if wrong:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
