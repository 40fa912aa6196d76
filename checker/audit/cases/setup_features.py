"""Which parts of a setup a target has."""

from __future__ import annotations

import msgspec


class Reach(msgspec.Struct, frozen=True, kw_only=True):
    """Which parts of a setup a target has; the others keep their plain values."""

    windows: bool = True
    lazy: bool = True
    depths: tuple[int, ...] = (1, 2)
    ranks: tuple[int, ...] = (1, 2)
    stages: tuple[int, ...] = (1,)
    unchunked: bool = False
    priority: bool = False
    drafts: tuple[int, ...] = (0,)
    disk: bool = False
    fails: bool = True
    """Whether copies can fail."""
    repeats: bool = True
    """Whether ends of copies can be reported twice."""
    launch_delay: bool = False
    second_connector: bool = False
    odds: dict[str, float] = {}
    """How often a case has a feature, where it is not as often as elsewhere."""
    weights: dict[str, int] = {}
    """How often a kind of traffic is drawn, where it is not as often as elsewhere."""
    shows_who_waits: bool = False
    """Whether it is known which requests wait for the connector."""
