"""Prints docs/mutation.md: the kill matrix of every machine. Takes some minutes.

``.venv/bin/python docs/generate_mutation.py > docs/mutation.md``
"""

import sys
from collections.abc import Iterator

from kvfence.checker.analysis.mutation.matrix import Matrix, mutate
from kvfence.checker.core.text_tables import sizes_text
from kvfence.checker.report.text.mutated import COLUMNS, LEGEND, cells, implied, name, totals

INTRODUCTION = f"""\
# Would the specification notice?

<!-- Written by docs/generate_mutation.py (make docs) from the machines; edit those instead. -->

`kvfence mutate` makes small changes to each machine, one at a time, and explores what comes out: a guard
loses a conjunct or waits for less, an assignment is left out or changed, a release is forgotten. A change
that no condition notices is a hole in the specification, or it is harmless and the machine's file says why.

```
kvfence mutate [--machine M] [--only PATTERN] [--size Sort=N ...] [--memory 2GiB] [--accepted]
               [--format text|json]
```

| exit code | meaning |
|---|---|
| 0 | every change is noticed, changes no step that can be reached, or is accepted with a reason |
| 1 | a change survives without a reason, a reason is out of date, or a condition notices nothing |
| 3 | a search was cut short, or a process was killed: undetermined |

The codes 4, 130 and 141 are [the same everywhere](exit-codes.md).

A mutant is explored at growing sizes until something notices it: a violated invariant, check or lemma, a
value out of range, a deadlock, or a goal or action that cannot be reached any more. Of a machine that
promises progress, the mutants that nothing else notices are asked for that too, at the last of the sizes.
Guards are only weakened, so a mutant without a new step in any state that the machine reaches behaves as the
machine does. That is said of the sizes listed below.
Reasons are in the machines' files (`m.accept_mutant`, `m.accept_idle`, `m.ghost`).

A check that comes after an assignment reads the value that the machine assigns, and cannot notice another. A
change that is one of the named designs is therefore explored as that design, with the checks traced in it.

{LEGEND}
"""


def section(m: Matrix) -> Iterator[str]:
    """The page's section on one machine."""
    yield f"## {m.machine}\n"
    yield "\n".join(f"* {sizes_text(sizes)}: {states:,} states" for sizes, states in m.states) + "\n"
    yield f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}"
    yield "\n".join(f"| {' | '.join(row)} |" for row in (*map(cells, m.rows), totals(m))) + "\n"
    yield (
        f"{sum(m.tried.values())} mutants: {sum(m.killed.values())} noticed, {m.by_lemma} of them by lemmas "
        f"only; {m.same} behave as the machine; {len(m.survivors)} accepted.\n"
    )
    idle = [f"* {n.replace('_', ' ')} notices nothing. {why}" for n, why in m.accepted_idle.items()]
    notes = [f"* {name(r)}: {implied(r)}" for r in m.rows if r.implied_by] + idle
    if notes:
        yield "Implied by others:\n\n" + "\n".join(notes) + "\n"
    for why, names in _by_reason(m.ghosts):
        yield f"Not changed: {', '.join(f'`{n}`' for n in names)}. {why}\n"
    if m.survivors:
        listed = "\n".join(f"* `{s.name}`: {s.why}" for s in m.survivors)
        yield f"Accepted:\n\n{listed}\n"


def _by_reason(ghosts: dict[str, str]) -> Iterator[tuple[str, list[str]]]:
    for reason in dict.fromkeys(ghosts.values()):
        yield reason, [field for field, why in ghosts.items() if why == reason]


def main() -> int:
    """Prints the page; 1, and what is wrong on stderr, when a machine does not pass."""
    found = mutate(progress=None)
    wrong = [f"{m.machine}: {fault}" for m in found for fault in m.faults]
    wrong += [f"{m.machine}: {m.verdict}" for m in found if m.verdict != "holds"]
    if wrong:
        print("\n".join(wrong), file=sys.stderr)
        return 1
    print("\n".join([INTRODUCTION, *(part for m in found for part in section(m))]).rstrip())
    return 0


if __name__ == "__main__":
    sys.exit(main())
