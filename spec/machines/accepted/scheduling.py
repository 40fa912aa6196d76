"""How the scheduling machine may be changed without an invariant noticing, and why that is no hole.

Each entry names changes as ``kvfence mutate`` prints them; ``*`` stands for any text.
"""

from kvfence.spec.language import Machine

ACCEPTED = (
    (
        "defer: *guard*",
        "A question asked out of turn costs nothing: who is deferred holds nothing and keeps its place.",
    ),
    (
        "*: leans: as if always*",
        "That a load has failed is seen by the first step that leans on it; without the mark it has not.",
    ),
    ("grow: *guard*1 <=*", "The second block may be had early."),
    ("finish: wanted: without wanted[i0]", "A copy that is not made is a miss."),
)


def declare(m: Machine) -> None:
    """Add the acceptances to the machine."""
    m.ghost("reads", why="What steps in flight use is a fact, fixed when they are dispatched.")
    m.ghost("lost", why="Whether a block has what it was loaded for is a fact.")
    for mutant, why in ACCEPTED:
        m.accept_mutant(mutant, why)
