"""Cases drawn by Hypothesis. Nothing here knows a connector, a release or a report: only what engines do.

Requests share prefixes, extend each other, are aborted and preempted; copies are held up, fail and land in
any order. What a case may have at all is drawn first (:mod:`kvfence.checker.audit.cases.swarm`).
"""

from __future__ import annotations

import random
from typing import Final

from hypothesis import strategies as st

from kvfence.checker.audit.cases.case import Abort, Action, Case, Fail, Hold, Reset, Setup, Step, Submit
from kvfence.checker.audit.cases.setup_features import Reach
from kvfence.checker.audit.cases.swarm import TRAFFIC, Traffic, features, setup_of

_STEPS: Final = ((1, 1, 2, 3), (1, 1, 2, 3, 5, 8, 16))
"""Steps between two other actions: where much happens at a time, and where there is time in between."""
_MOMENTS: Final = (0.0, 0.5, 0.9)
"""How many of the events come at a moment when a request waits for the connector, where that is known.

By chance they seldom do, since most requests wait in the queue or run.
"""
_PATIENCE: Final = (2, 8, 24)
"""Steps for which such a moment is waited for, at most."""


def cases(reach: Reach) -> st.SearchStrategy[Case]:
    """Cases within ``reach`` that fit: every request can run alone.

    Hypothesis draws where they come from, not each of their numbers: those it would draw small and near each
    other, where a case needs many requests to show anything, and :mod:`kvfence.checker.audit.cases.shrink`
    makes cases small that are worth it.
    """
    return st.randoms(use_true_random=True).map(lambda draw: case_of(reach, draw))


def case_of(reach: Reach, draw: random.Random) -> Case:
    """One case within ``reach``."""
    on = features(reach, draw)
    # Files are read when requests come back to what memory does not have any more.
    kinds = [kind for kind in TRAFFIC if kind.returning or "disk" not in on or draw.random() < 0.25]
    traffic = draw.choices(kinds, [reach.weights.get(kind.name, kind.weight) for kind in kinds])[0]
    setup, longest = setup_of(reach, traffic, on, draw)
    moments = draw.choice(_MOMENTS) if reach.shows_who_waits else 0.0
    weights = {
        "submit": draw.choice((4, 8)),
        "step": draw.choice((4, 8)),
        "abort": draw.choice((1, 6) if moments else (0.5, 2)) if "aborts" in on else 0,
        "hold": draw.choice((1, 3)) if "holds" in on else 0,
        "reset": draw.choice((0.6, 2) if moments else (0.3, 1.2)) if "resets" in on else 0,
        "fail": draw.choice((1, 3)) if "failures" in on else 0,
    }
    what = draw.choices(tuple(weights), tuple(weights.values()), k=draw.randint(*traffic.actions))
    script = _Script(setup, longest, traffic, draw)
    steps = draw.choice(_STEPS)
    for kind in what:
        waits = moments > 0 and kind in {"submit", "abort", "reset"} and draw.random() < moments
        if waits:
            script.until_one_waits(holds="holds" in on, comes=kind != "submit")
        if kind == "submit" or not script.lengths:
            script.submit(again=waits)
        elif kind == "step":
            script.actions.append(Step(draw.choice(steps)))
        elif kind == "abort":
            script.abort(waits)
        elif kind == "hold":
            script.actions.append(Hold(draw.randint(1, traffic.hold)))
        elif kind == "reset":
            script.reset(waits)
        else:
            script.actions.append(Fail())
    if "aborts" in on:
        # In the end, clients go away one by one, wherever their requests are by then.
        for _ in range(draw.randint(0, 8)):
            waits = moments > 0 and draw.random() < moments
            if waits:
                script.until_one_waits(holds=False, comes=True)
            script.abort(waits)
            script.actions.append(Step(1))
    return Case(setup, tuple(script.actions))


class _Script:
    """What happens in a case, as far as it is drawn."""

    def __init__(self, setup: Setup, longest: int, traffic: Traffic, draw: random.Random) -> None:
        self.setup, self.longest, self.traffic, self.draw = setup, longest, traffic, draw
        self.families = draw.randint(3, 6) if traffic.returning else draw.randint(1, 4)
        self.actions: list[Action] = []
        self.lengths: list[int] = []
        """Tokens of each request so far, at its end."""
        self._family = 0

    def until_one_waits(self, *, holds: bool, comes: bool) -> None:
        """Time goes by until a request waits for the connector.

        ``comes``: perhaps one that comes now, since those before it may all have been served; ``holds``:
        perhaps for long. It may wait for one thing first, and for another a few steps later.
        """
        if comes and self.draw.random() < 0.9:
            self.submit()
        self.actions.append(Step(self.draw.choice(_PATIENCE), until_waits=True))
        if holds and self.draw.random() < 0.4:
            self.actions.append(Hold(self.draw.randint(2, self.traffic.hold)))
        if further := self.draw.choice((0, 0, 1, 2, 4)):
            self.actions.append(Step(further))

    def abort(self, waits: bool) -> None:
        """A client goes away; ``waits``: one whose request waits for the connector."""
        self.actions.append(Abort(self.draw.randrange(8), live=True, waits=waits))

    def reset(self, waits: bool) -> None:
        """The prefix caches are reset; ``waits``: while a request waits for the connector already."""
        draw = self.draw
        if not waits and draw.random() < 0.5:
            # While copies are under way.
            self.actions += [Hold(draw.randint(2, self.traffic.hold)), Step(draw.randint(1, 4))]
        self.actions.append(Reset(draw.random() < 0.6, draw.random() < 0.6))

    def submit(self, *, again: bool = False) -> None:
        """One more request; ``again``: perhaps it asks for what the last one asked for."""
        setup, traffic, draw = self.setup, self.traffic, self.draw
        block = setup.block_size
        output = draw.randint(1, min(self.longest - 1, block if traffic.returning else 3 * block))
        priority = draw.randint(0, 2) if setup.priority else 0
        room = self.longest - output
        follows = [i for i, length in enumerate(self.lengths) if length < room]
        if follows and draw.random() < 0.25:
            after = draw.choice(follows[-4:])
            prompt = draw.randint(1, room - self.lengths[after])
            self.lengths.append(self.lengths[after] + prompt + output)
            self.actions.append(Submit(prompt, output, after=after, priority=priority))
            return
        # Whole blocks are where an off-by-one shows: half of the prompts end at one.
        blocks = max(1, room // block)
        least = 1 if traffic.name == "mixed" else -(-blocks // 2)
        whole = draw.random() < 0.5 and room >= block
        short = room // 2 if traffic.returning else 1
        prompt = draw.randint(least, blocks) * block if whole else draw.randint(max(1, short), room)
        shared = prompt if traffic.returning else draw.choice((prompt, prompt // 2, 0))
        self.lengths.append(prompt + output)
        if not (again and draw.random() < 0.5):
            self._family = draw.randrange(self.families)
        self.actions.append(Submit(prompt, output, self._family, shared, priority=priority))
