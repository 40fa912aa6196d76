"""Cases drawn by Hypothesis. Nothing here knows a connector, a release or a report: only what engines do.

Pools are drawn around what the longest request needs, so that most cases are tight; requests share prefixes,
extend each other, are aborted and preempted; copies are held up, fail and land in any order.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from hypothesis import strategies as st

from kvfence.checker.audit.case import (
    Abort,
    Action,
    Case,
    Fail,
    Hold,
    Reset,
    Setup,
    Step,
    Submit,
    blocks_needed,
)
from kvfence.checker.audit.reach import Reach

_KINDS: Final = ("submit",) * 8 + ("step",) * 9 + ("abort",) * 2 + ("hold",) * 2 + ("reset", "fail")
_FAMILIES: Final = 3


@st.composite
def cases(draw: Any, reach: Reach) -> Case:
    """A case within ``reach`` that fits: every request can run alone.

    There are three kinds of traffic: anything; requests that return to long prefixes, which do not fit into
    the GPU together any more; and long requests computed in small steps beside a small tier.
    """
    traffic = draw(st.sampled_from(("mixed", "returning", "long", "long")))
    setup, longest, failing = draw(setups(reach, traffic))
    least, most = {"mixed": (3, 40), "returning": (10, 40), "long": (2, 12)}[traffic]
    kinds = draw(st.lists(st.sampled_from(_KINDS), min_size=least, max_size=most))
    actions: list[Action] = []
    lengths: list[int] = []
    for kind in kinds:
        if kind == "submit" or not lengths:
            actions.append(draw(_submits(setup, longest, lengths, traffic)))
        elif kind == "step":
            actions.append(Step(draw(st.sampled_from((1, 1, 2, 4, 8, 16)))))
        elif kind == "abort":
            actions.append(Abort(len(lengths) - 1 - draw(st.integers(0, min(2, len(lengths) - 1)))))
        elif kind == "hold":
            actions.append(Hold(draw(st.integers(1, 40 if traffic == "long" else 12))))
        elif kind == "reset":
            actions.append(Reset(draw(st.booleans()), draw(st.booleans())))
        elif failing:
            actions.append(Fail())
    return Case(setup, tuple(actions))


@st.composite
def setups(draw: Any, reach: Reach, traffic: str = "mixed") -> tuple[Setup, int, bool]:
    """A setup within ``reach``, the tokens that the longest request may have, and whether copies may fail.

    Where requests return the GPU is small and the tier is not; where they are long, both are small.
    """
    long, returning = traffic == "long", traffic == "returning"
    block = draw(st.sampled_from((4, 2, 8)))
    windows: tuple[int, ...] = (0,)
    if reach.windows and draw(st.integers(0, 3)) < (3 if long else 2):
        window = draw(st.sampled_from((1, 2, 4))) * block
        windows = draw(st.sampled_from(((0, window), (0, window, 2 * window))))
    blocks = draw(st.integers(8, 20) if long else st.integers(2, 10))
    tight = returning or draw(st.booleans())
    failing = reach.fails and draw(st.integers(0, 7)) == 0
    setup = Setup(
        block_size=block,
        windows=windows,
        lazy=reach.lazy and draw(st.integers(0, 7 if long else 3)) == 0,
        depth=draw(st.sampled_from(reach.depths)),
        ranks=draw(st.sampled_from(reach.ranks)),
        stages=draw(st.sampled_from(reach.stages)),
        token_budget=draw(st.sampled_from((2 * block, block) if long else (64, 16, 2 * block))),
        max_running=draw(st.integers(1, 6)),
        chunked=not reach.unchunked or draw(st.integers(0, 3)) > 0,
        priority=reach.priority and draw(st.booleans()),
        drafts=draw(st.sampled_from(reach.drafts)),
        tier="disk" if reach.disk and draw(st.integers(0, 11)) == 0 else "cpu",
        delay=draw(st.sampled_from((12, 24, 48) if long else (1, 4, 12))),
        launch_delay=draw(st.sampled_from((0, 0, 2, 6))) if reach.launch_delay else 0,
        fail_rate=draw(st.sampled_from((0.0, 0.2))) if failing and reach.repeats else 0.0,
        repeat_rate=draw(st.sampled_from((0.0, 0.0, 0.3))) if reach.repeats else 0.0,
        second_connector=reach.second_connector and draw(st.integers(0, 11)) == 0,
        seed=draw(st.integers(0, 2**16)),
    )
    fits = blocks_needed(setup, blocks * block) + 1
    small = min(blocks, fits) if long else fits
    roomy = returning or (not long and draw(st.booleans()))
    slack = 2 if long else blocks if tight else 3 * blocks
    setup = msgspec.structs.replace(
        setup,
        gpu_blocks=fits + draw(st.integers(0, slack)),
        cpu_blocks=draw(st.integers(fits, 6 * fits) if roomy else st.integers(1, small)),
    )
    return setup, blocks * block, failing


@st.composite
def _submits(draw: Any, setup: Setup, longest: int, lengths: list[int], traffic: str) -> Submit:
    returning = traffic == "returning"
    output = draw(st.integers(1, min(longest - 1, setup.block_size if returning else 3 * setup.block_size)))
    priority = draw(st.integers(0, 2)) if setup.priority else 0
    room = longest - output
    follows = [i for i, length in enumerate(lengths) if length < room]
    if follows and draw(st.integers(0, 3)) == 0:
        after = draw(st.sampled_from(follows[-4:]))
        prompt = draw(st.integers(1, room - lengths[after]))
        lengths.append(lengths[after] + prompt + output)
        return Submit(prompt, output, after=after, priority=priority)
    # Whole blocks are where an off-by-one shows: half of the prompts end at one.
    blocks = max(1, room // setup.block_size)
    least = 1 if traffic == "mixed" else -(-blocks // 2)
    whole = draw(st.booleans()) and room >= setup.block_size
    prompt = draw(st.integers(least, blocks)) * setup.block_size if whole else draw(st.integers(1, room))
    shared = prompt if returning else draw(st.sampled_from((prompt, prompt // 2, 0)))
    lengths.append(prompt + output)
    return Submit(prompt, output, draw(st.integers(0, _FAMILIES - 1)), shared, priority=priority)
