"""Writes a trace in which a block is given away twice, and judges it."""

import tempfile
from pathlib import Path

from kvfence import TraceWriter, check_trace
from kvfence.events import Alloc, Free, Header, Pool

HEADER = Header(producer="example", pools=(Pool("gpu", 8, null=0),))


def record(path: Path, second: list[int]) -> None:
    """Records two requests that take blocks; ``second`` are those of the second request."""
    with TraceWriter(path, HEADER) as write:
        write(Alloc("gpu", "req:a.0", [1, 2], free=5))
        write(Alloc("gpu", "req:b.0", second, free=3))
        write(Free("gpu", "req:a.0", [1, 2], free=5))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        good, bad = Path(folder, "good.jsonl"), Path(folder, "bad.jsonl")
        record(good, [3, 4])
        record(bad, [2, 3])
        assert check_trace(good).verdict == "holds"
        report = check_trace(bad)
        assert report.verdict == "violated"
        for violation in report.violations:
            print(f"event {violation.number}: {violation.invariant}")
