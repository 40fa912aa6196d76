"""What a case is made of: each case has some of the features of engines only, and those in earnest.

A case that has a little of everything shows little of each; cases that differ in what they have at all find
more (swarm testing). Nothing here knows a connector, a release or a report.
"""

from __future__ import annotations

import random
from typing import Final, TypeVar

import msgspec

from kvfence.checker.audit.cases.case import Setup, blocks_needed
from kvfence.checker.audit.cases.setup_features import Reach

T = TypeVar("T")

ODDS: Final = {
    "groups": 0.6,
    "lazy": 0.2,
    "ahead": 0.45,
    "ranks": 0.35,
    "stages": 0.2,
    "unchunked": 0.15,
    "priority": 0.35,
    "drafts": 0.2,
    "disk": 0.2,
    "second": 0.1,
    "late launches": 0.4,
    "failures": 0.12,
    "repeats": 0.3,
    "aborts": 0.5,
    "holds": 0.5,
    "resets": 0.35,
}
"""How often a case has a feature, if the target has it."""
KEENNESS: Final = (0.4, 1.0, 1.0, 1.6)
"""By how much a case is plainer, or richer, than the odds say."""


class Traffic(msgspec.Struct, frozen=True):
    """A kind of traffic; lengths in blocks, budgets in blocks a step, delays in ticks."""

    name: str
    actions: tuple[int, int]
    blocks: tuple[int, int]
    """The longest request: at least and at most."""
    budgets: tuple[int, ...]
    delays: tuple[int, ...]
    hold: int
    """Ticks for which copies are held up, at most."""
    returning: bool = False
    """Whether prompts are prefixes of the same few texts."""
    small_tier: bool = False
    weight: int = 1
    """How often it is drawn, beside the others."""


TRAFFIC: Final = (
    # its name, actions, blocks, budgets, delays and hold
    Traffic("mixed", (6, 44), (2, 10), (1, 2, 4, 16), (1, 4, 12), 12),
    Traffic("returning", (24, 120), (2, 10), (1, 2, 4, 16), (1, 4, 12, 36), 16, returning=True, weight=2),
    Traffic("long", (8, 36), (8, 20), (1, 2, 4), (12, 24, 48), 40, small_tier=True, weight=2),
)
"""Anything; requests that return to long prefixes, which do not fit into the GPU together any more; and long
requests computed in small steps beside a small tier.
"""


_PARTS: Final = {
    "groups": "windows",
    "lazy": "lazy",
    "ahead": "depths",
    "ranks": "ranks",
    "stages": "stages",
    "unchunked": "unchunked",
    "priority": "priority",
    "drafts": "drafts",
    "disk": "disk",
    "second": "second_connector",
    "late launches": "launch_delay",
    "failures": "fails",
    "repeats": "repeats",
}
"""By feature: the part of a target's reach that says whether it has it, as a truth value or as a choice."""


def features(reach: Reach, draw: random.Random) -> set[str]:
    """The features of one case."""
    has = {name: getattr(reach, part) for name, part in _PARTS.items()}
    lacks = {name for name, part in has.items() if not (part if isinstance(part, bool) else len(part) > 1)}
    keen = draw.choice(KEENNESS)
    all_odds = {**ODDS, **reach.odds}
    return {name for name, odds in all_odds.items() if draw.random() < odds * keen and name not in lacks}


def setup_of(reach: Reach, traffic: Traffic, on: set[str], draw: random.Random) -> tuple[Setup, int]:
    """A setup with the features ``on``, and the tokens that the longest request may have.

    Pools are drawn around what the longest request needs, so that most cases are tight.
    """
    block = draw.choice((2, 4, 4, 8))
    drafts = _one_of(reach.drafts, "drafts" in on, draw)
    blocks = draw.randint(*traffic.blocks)
    setup = Setup(
        block_size=block,
        windows=_windows(block, draw) if "groups" in on else (0,),
        lazy="lazy" in on,
        depth=_one_of(reach.depths, "ahead" in on, draw),
        ranks=_one_of(reach.ranks, "ranks" in on, draw),
        # Pipelines do not draft.
        stages=_one_of(reach.stages, "stages" in on and not drafts, draw),
        token_budget=max(draw.choice(traffic.budgets) * block, drafts + 1),
        max_running=draw.randint(1, 6),
        chunked="unchunked" not in on,
        priority="priority" in on,
        drafts=drafts,
        tier="disk" if "disk" in on else "cpu",
        delay=draw.choice(traffic.delays),
        launch_delay=draw.choice((2, 6)) if "late launches" in on else 0,
        fail_rate=draw.choice((0.0, 0.1, 0.3)) if "failures" in on and reach.repeats else 0.0,
        repeat_rate=0.3 if "repeats" in on else 0.0,
        second_connector="second" in on,
        seed=draw.randrange(1 << 16),
    )
    fits = blocks_needed(setup, blocks * block) + 1
    if traffic.small_tier and "disk" not in on:
        gpu, cpu = fits + draw.randint(0, 2), draw.randint(2, min(blocks, fits))
    else:
        tight = draw.random() < 0.5
        roomy = traffic.returning or draw.random() < 0.5
        slack = blocks // 2 if traffic.returning else blocks if tight else 3 * blocks
        gpu = fits + draw.randint(0, slack)
        cpu = draw.randint(fits, 6 * fits) if roomy else draw.randint(1, fits)
        if "disk" in on:
            # Files come into play when memory does not have everything any more, and beside it when it has
            # more than a copy of what the GPU has.
            cpu = draw.randint(max(blocks, 2 * gpu // 3), 2 * gpu)
    return msgspec.structs.replace(setup, gpu_blocks=gpu, cpu_blocks=cpu), blocks * block


def _windows(block: int, draw: random.Random) -> tuple[int, ...]:
    window = max(2, draw.choice((1, 2, 4)) * block + draw.choice((-1, 0, 0, 1)))
    return draw.choice(((0, window), (0, window), (0, window, 2 * window)))


def _one_of(values: tuple[T, ...], unusual: bool, draw: random.Random) -> T:
    """The first of ``values``, or one of the others."""
    return draw.choice(values[1:]) if unusual and len(values) > 1 else values[0]
