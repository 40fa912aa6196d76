"""Cases: a setup of engine and connector, and what happens to it, action by action. JSON on disk.

A case says nothing about any particular connector; the driver of one decides what the numbers mean there.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal, TypeAlias

import msgspec

from kvfence.spec.errors import CannotRun

Tier: TypeAlias = Literal["cpu", "disk"]


class Setup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sizes in tokens and blocks."""

    block_size: int = 4
    gpu_blocks: int = 32
    """The null block included."""
    cpu_blocks: int = 32
    windows: tuple[int, ...] = (0,)
    """The KV-cache groups: 0 is full attention, a number the tokens of a sliding window."""
    lazy: bool = False
    depth: int = 1
    """Steps in flight: with 2, a step is scheduled before the output of the one before is known."""
    ranks: int = 1
    """Workers of a tensor-parallel group; each ends its copies at its own pace."""
    stages: int = 1
    """Stages of a pipeline."""
    token_budget: int = 64
    max_running: int = 4
    chunked: bool = True
    """Whether a prompt may be computed in several steps."""
    priority: bool = False
    """Requests run by priority instead of first come, first served."""
    drafts: int = 0
    """Speculative tokens of a step."""
    tier: Tier = "cpu"
    delay: int = 4
    """Ticks until a copy lands, at most; the engine takes a few ticks a step."""
    launch_delay: int = 0
    """Ticks until the thread that launches copies gets to it, at most."""
    fail_rate: float = 0.0
    repeat_rate: float = 0.0
    """Of the reports of copies: given again, late."""
    second_connector: bool = False
    seed: int = 0
    """Of everything that the device draws: which copy lands when."""


class Submit(msgspec.Struct, frozen=True, tag="submit", tag_field="do", forbid_unknown_fields=True):
    """A request: the first ``shared`` tokens of its prompt are those of ``family``, the others its own.

    With ``after`` (at least 0) the prompt begins with all tokens of that earlier request, the sampled ones
    included, and goes on with ``prompt`` tokens.
    """

    prompt: int
    output: int
    family: int = 0
    shared: int = 0
    after: int = -1
    priority: int = 0


class Abort(msgspec.Struct, frozen=True, tag="abort", tag_field="do", forbid_unknown_fields=True):
    """The ``request``-th request submitted so far, counted from 0, is aborted if it is still there.

    ``live``: of those that are still there, counted from the last one, and past the first from there again;
    ``waits``: of those among them that wait for the connector, if there are any and the target knows.
    """

    request: int
    live: bool = False
    waits: bool = False

    def chosen(self, count: int, live: Sequence[int], waiting: Sequence[int] = ()) -> int:
        """The request that is meant, of ``count`` submitted so far, ``live`` of them still there, ``waiting``
        for the connector; or -1.
        """
        if self.live:
            among = waiting if self.waits and waiting else live
            return among[-1 - self.request % len(among)] if among else -1
        return self.request if self.request < count else -1


class Reset(msgspec.Struct, frozen=True, tag="reset", tag_field="do", forbid_unknown_fields=True):
    """The prefix caches are reset; ``running``: requests that run are preempted for it.

    ``tier``: the connector is reset too.
    """

    running: bool = False
    tier: bool = True


class Step(msgspec.Struct, frozen=True, tag="step", tag_field="do", forbid_unknown_fields=True):
    """The engine takes ``times`` steps.

    ``until_waits``: none any more as soon as a request waits for the connector: for copies, for an answer, or
    for room for the hit that it was promised. A target that does not know takes all steps.
    """

    times: int = 1
    until_waits: bool = False


class Hold(msgspec.Struct, frozen=True, tag="hold", tag_field="do", forbid_unknown_fields=True):
    """Copies make no progress for the next ``ticks`` ticks."""

    ticks: int


class Fail(msgspec.Struct, frozen=True, tag="fail", tag_field="do", forbid_unknown_fields=True):
    """The copy that is launched next fails."""


Action: TypeAlias = Submit | Abort | Reset | Step | Hold | Fail


class Case(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A setup and what happens; after the last action the engine runs until everything is quiet."""

    setup: Setup
    actions: tuple[Action, ...]

    @property
    def size(self) -> tuple[int, int, int]:
        """Smaller cases come first: fewer actions, fewer tokens, fewer oddities of the setup."""
        tokens = sum(
            a.prompt + a.output + a.shared + a.family + a.priority
            if isinstance(a, Submit)
            else a.times + a.until_waits
            if isinstance(a, Step)
            else a.ticks
            if isinstance(a, Hold)
            else 1 + a.request + a.waits
            if isinstance(a, Abort) and a.live
            else 1
            for a in self.actions
        )
        plain = Setup()
        odd = sum(getattr(self.setup, f) != getattr(plain, f) for f in Setup.__struct_fields__)
        return len(self.actions), tokens, odd


LONGEST: Final = 16 * 2**20
"""Bytes of a file with a case: a thousand times what an audit writes."""

_decoder = msgspec.json.Decoder(Case)


def as_json(case: Case) -> str:
    """``case`` as JSON, an action a line."""
    actions = ",\n  ".join(msgspec.json.encode(action).decode() for action in case.actions)
    return f'{{"setup": {msgspec.json.encode(case.setup).decode()},\n "actions": [\n  {actions}\n ]}}\n'


def read_case(path: Path) -> Case:
    """The case in the file ``path``. CannotRun if there is none."""
    try:
        with path.open("rb") as file:
            text = file.read(LONGEST + 1)
        if len(text) > LONGEST:
            raise CannotRun(f"{path}: is longer than {LONGEST >> 20} MiB: name a case that an audit wrote")
        case = _decoder.decode(text)
    except OSError as error:
        problem = f"{path}: cannot be read ({error.strerror}): name a case that an audit wrote"
        raise CannotRun(problem) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CannotRun(f"{path}: is not a case of an audit: {error}") from error
    problem = problem_of(case)
    if problem:
        raise CannotRun(f"{path}: {problem}")
    return case


def problem_of(case: Case) -> str:
    """Why ``case`` cannot be driven at all; empty if it can."""
    setup = case.setup
    least = {"block_size": 1, "gpu_blocks": 2, "cpu_blocks": 1, "depth": 1, "ranks": 1, "stages": 1,
             "token_budget": 1, "max_running": 1, "drafts": 0, "delay": 1, "launch_delay": 0}  # fmt: skip
    for name, low in least.items():
        if getattr(setup, name) < low:
            return f"{name} is {getattr(setup, name)}; it must be at least {low}"
    if not setup.windows or 0 not in setup.windows or min(setup.windows) < 0:
        return f"windows are {setup.windows}; one of them must be 0, full attention"
    for rate in ("fail_rate", "repeat_rate"):
        if not 0 <= getattr(setup, rate) <= 1:
            return f"{rate} is {getattr(setup, rate)}; a rate lies between 0 and 1"
    submitted = 0
    for action in case.actions:
        if isinstance(action, Submit):
            if action.prompt < 1 or action.output < 1 or action.shared < 0:
                return f"a request of {action.prompt} tokens and {action.output} more cannot run"
            if action.after >= submitted:
                return f"a request goes on after request {action.after}, which was not submitted before"
            submitted += 1
        elif isinstance(action, Abort) and action.request < 0:
            return f"request {action.request} cannot be aborted; requests are counted from 0"
    longest = max(lengths(case), default=0)
    if blocks_needed(setup, longest) > setup.gpu_blocks - 1:
        return f"a request of {longest} tokens does not fit into {setup.gpu_blocks} GPU blocks"
    return ""


def blocks_needed(setup: Setup, longest: int) -> int:
    """GPU blocks with which a request of ``longest`` tokens can run alone.

    A sliding window gives back what it has left behind, but not before the steps in flight are over.
    """
    block, batches = setup.block_size, max(setup.depth, setup.stages) + (setup.stages > 1)
    whole = -(-(longest + (setup.drafts + 1) * batches) // block) + 1
    ahead = setup.token_budget * batches if setup.chunked else longest
    return sum(min(whole, -(-(window + ahead) // block) + 2) if window else whole for window in setup.windows)


def lengths(case: Case) -> list[int]:
    """Tokens of each request at its end."""
    found: list[int] = []
    for action in case.actions:
        if isinstance(action, Submit):
            before = found[action.after] if 0 <= action.after < len(found) else 0
            found.append(before + action.prompt + action.output)
    return found
