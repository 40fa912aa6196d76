"""Guards a toy pool that emits its events, and that forgets to give a block back."""

from kvfence import Guard, InvariantViolation
from kvfence.events import Alloc, Finish, Free, Header, Pool, Quiesce, Retire, Submit


class ToyPool:
    """Four blocks; ``leaks`` keeps one of them when a request ends."""

    def __init__(self, leaks: bool) -> None:
        self.free = [0, 1, 2, 3]
        self.held: dict[str, list[int]] = {}
        self.leaks = leaks
        self.guard = Guard("raise", Header(producer="toy", pools=(Pool("gpu", 4),)))

    def begin(self, request: str, blocks: int) -> None:
        """The request takes ``blocks`` blocks."""
        self.guard(Submit(request, 0, prompt=16 * blocks))
        self.held[request] = [self.free.pop() for _ in range(blocks)]
        self.guard(Alloc("gpu", f"req:{request}.0", self.held[request], free=len(self.free)))

    def end(self, request: str) -> None:
        """The request gives its blocks back."""
        blocks = self.held.pop(request)[self.leaks :]
        self.guard(Finish(request, 0, "stop", computed=0))
        self.free += blocks
        self.guard(Free("gpu", f"req:{request}.0", blocks, free=len(self.free)))
        self.guard(Retire(request, 0))


def run(leaks: bool) -> str:
    """Runs one request, and returns what the guard reports in the end."""
    pool = ToyPool(leaks)
    try:
        pool.begin("a", 2)
        pool.end("a")
        pool.guard(Quiesce())
    except InvariantViolation as error:
        return str(error)
    return "nothing is wrong"


if __name__ == "__main__":
    assert run(leaks=False) == "nothing is wrong"
    report = run(leaks=True)
    assert "NO-LEAK" in report
    print(report)
