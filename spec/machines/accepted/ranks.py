"""How the ranks machine may be changed without an invariant noticing, and why that is no hole.

Each entry names changes as ``kvfence mutate`` prints them; ``*`` stands for any text.
"""

from kvfence.spec.language import Machine

ACCEPTED = (
    ("own: without guard not owned[o]", "Who holds the source already holds it."),
    ("let_go: without guard owned[o]", "Who does not hold the source does not let go of it."),
    ("own: owned: as if always i0 == o", "Sources that are taken together are some taken in turn."),
    ("ask: uses: as if always i0 == o", "The uses bound a run, and name operations in traces."),
    ("refuse: part: without i1 == k", "One refusal aborts the operation, so more of them do not matter."),
    ("abort: without guard some*", "The leader may give up before a rank refuses."),
    ("give_up: leader is not assigned", "To give up is a choice: nothing depends on it."),
    ("hear_of_abort: without guard (part*", "A rank that has let go and hears of it again changes nothing."),
    ("repeat*: *", "What arrives again is not counted, whoever sends it and how often."),
    (
        "complete_failed: without guard failed[o]",
        "A success taken for a failure costs a copy, and nothing of it is kept.",
    ),
)


def declare(m: Machine) -> None:
    """Add the acceptances to the machine."""
    for mutant, why in ACCEPTED:
        m.accept_mutant(mutant, why)
