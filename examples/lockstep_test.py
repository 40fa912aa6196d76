"""Takes a counter of free blocks and its specification through the same steps, drawn by Hypothesis."""

from hypothesis import settings, stateful, strategies

from kvfence.language import Int, Machine, State
from kvfence.lockstep import Args, Interpreter, Lockstep, LockstepError, state_machine


def blocks() -> Machine:
    """Three blocks that are taken and given back."""
    m = Machine("blocks")
    m.function("free", value=Int(0, 3), init=3)

    @m.action()
    def take(s: State) -> None:
        """A block is taken."""
        s.require(s.free > 0)
        s.free = s.free - 1

    @m.action()
    def give(s: State) -> None:
        """A block is given back."""
        s.require(s.free < 3)
        s.free = s.free + 1

    return m


class Driver:
    """The implementation: a list of free blocks; with ``loses`` the last one that comes back is lost."""

    unobserved: frozenset[str] = frozenset()
    header = None

    def __init__(self, loses: bool) -> None:
        self.loses, self.blocks, self.events = loses, [0, 1, 2], []  # type: ignore[var-annotated]

    def perform(self, action: str, args: Args) -> None:
        if action == "take":
            self.blocks.pop()
        elif not (self.loses and len(self.blocks) == 2):
            self.blocks.append(len(self.blocks))

    def abstract(self) -> dict[str, int]:
        return {"free": len(self.blocks)}

    def refusal(self, action: str, args: Args) -> None:
        """It refuses nothing by itself."""


def run(loses: bool) -> None:
    """Takes both through twenty random runs; LockstepError where they differ."""
    machine = state_machine(
        lambda: Lockstep(Interpreter(blocks()), Driver(loses)), ["take", "give"], stateful, strategies
    )
    stateful.run_state_machine_as_test(machine, settings=settings(max_examples=20, database=None))


if __name__ == "__main__":
    run(loses=False)
    try:
        run(loses=True)
    except LockstepError as error:
        print(error)
    else:
        raise AssertionError("the loss went unnoticed")
