"""Cases drawn by Hypothesis. Nothing here knows a connector, a release or a report: only what engines do.

Requests share prefixes, extend each other, are aborted and preempted; copies are held up, fail and land in
any order. What a case may have at all is drawn first (:mod:`kvfence.checker.audit.swarm`).
"""

from __future__ import annotations

import random
from typing import Final

from hypothesis import strategies as st

from kvfence.checker.audit.case import Abort, Action, Case, Fail, Hold, Reset, Setup, Step, Submit
from kvfence.checker.audit.reach import Reach
from kvfence.checker.audit.swarm import TRAFFIC, Traffic, features, setup_of

_STEPS: Final = ((1, 1, 2, 3), (1, 1, 2, 3, 5, 8, 16))
"""Steps between two other actions: where much happens at a time, and where there is time in between."""


def cases(reach: Reach) -> st.SearchStrategy[Case]:
    """Cases within ``reach`` that fit: every request can run alone.

    Hypothesis draws where they come from, not each of their numbers: those it would draw small and near each
    other, where a case needs many requests to show anything, and :mod:`kvfence.checker.audit.shrink` makes
    cases small that are worth it.
    """
    return st.randoms(use_true_random=True).map(lambda draw: case_of(reach, draw))


def case_of(reach: Reach, draw: random.Random) -> Case:
    """One case within ``reach``."""
    on = features(reach, draw)
    # Files are read when requests come back to what memory does not have any more.
    kinds = [kind for kind in TRAFFIC if kind.returning or "disk" not in on or draw.random() < 0.4]
    traffic = draw.choices(kinds, [kind.weight for kind in kinds])[0]
    setup, longest = setup_of(reach, traffic, on, draw)
    weights = {
        "submit": draw.choice((4, 8)),
        "step": draw.choice((4, 8)),
        "abort": draw.choice((0.5, 2)) if "aborts" in on else 0,
        "hold": draw.choice((1, 3)) if "holds" in on else 0,
        "reset": draw.choice((0.3, 1.2)) if "resets" in on else 0,
        "fail": draw.choice((1, 3)) if "failures" in on else 0,
    }
    what = draw.choices(tuple(weights), tuple(weights.values()), k=draw.randint(*traffic.actions))
    families = draw.randint(3, 6) if traffic.returning else draw.randint(1, 4)
    steps = draw.choice(_STEPS)
    actions: list[Action] = []
    lengths: list[int] = []
    for kind in what:
        if kind == "submit" or not lengths:
            actions.append(_submit(setup, longest, lengths, families, traffic, draw))
        elif kind == "step":
            actions.append(Step(draw.choice(steps)))
        elif kind == "abort":
            actions.append(Abort(draw.randrange(8), live=True))
        elif kind == "hold":
            actions.append(Hold(draw.randint(1, traffic.hold)))
        elif kind == "reset":
            if draw.random() < 0.5:
                # While copies are under way.
                actions += [Hold(draw.randint(2, traffic.hold)), Step(draw.randint(1, 4))]
            actions.append(Reset(draw.random() < 0.6, draw.random() < 0.6))
        else:
            actions.append(Fail())
    if "aborts" in on:
        # In the end, clients go away one by one, wherever their requests are by then.
        for _ in range(draw.randint(0, 8)):
            actions += [Abort(draw.randrange(8), live=True), Step(1)]
    return Case(setup, tuple(actions))


def _submit(
    setup: Setup, longest: int, lengths: list[int], families: int, traffic: Traffic, draw: random.Random
) -> Submit:
    """One more request; ``lengths``: tokens of each one so far, at its end."""
    block = setup.block_size
    output = draw.randint(1, min(longest - 1, block if traffic.returning else 3 * block))
    priority = draw.randint(0, 2) if setup.priority else 0
    room = longest - output
    follows = [i for i, length in enumerate(lengths) if length < room]
    if follows and draw.random() < 0.25:
        after = draw.choice(follows[-4:])
        prompt = draw.randint(1, room - lengths[after])
        lengths.append(lengths[after] + prompt + output)
        return Submit(prompt, output, after=after, priority=priority)
    # Whole blocks are where an off-by-one shows: half of the prompts end at one.
    blocks = max(1, room // block)
    least = 1 if traffic.name == "mixed" else -(-blocks // 2)
    whole = draw.random() < 0.5 and room >= block
    short = room // 2 if traffic.returning else 1
    prompt = draw.randint(least, blocks) * block if whole else draw.randint(max(1, short), room)
    shared = prompt if traffic.returning else draw.choice((prompt, prompt // 2, 0))
    lengths.append(prompt + output)
    return Submit(prompt, output, draw.randrange(families), shared, priority=priority)
