"""A campaign: draws cases, runs them on a target, and makes of what they show a list of findings."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

from kvfence.checker.audit.cases.case import Case
from kvfence.checker.audit.cases.outcome import Evidence, Outcome, Sighting
from kvfence.checker.audit.cases.setup_features import Reach
from kvfence.checker.audit.cases.shrink import shrink
from kvfence.checker.core.processes import ProcessDied
from kvfence.spec.errors import CannotRun

HUNT: Final = 0.7
"""Of the budget; the rest makes findings small."""
BATCH: Final = 50
"""Cases that Hypothesis draws from one seed."""
CONFIRMATIONS: Final = 2

Note = Callable[[str], None]


class Target(Protocol):
    """What is audited."""

    name: str
    width: int
    """Cases that it can run at a time."""

    def run(self, case: Case) -> Outcome:
        """Drives it through ``case``."""

    def run_all(self, cases: Sequence[Case]) -> Iterator[Outcome]:
        """Drives it through each of ``cases``, several at a time if it can; outcomes in their order."""

    def close(self) -> None:
        """Gives back what it holds."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One fault: the smallest case that shows it, and what was seen there."""

    sighting: Sighting
    case: Case
    times: int
    """Cases of the campaign that showed it."""
    first_after: float
    """Seconds until it was first seen."""
    earlier: tuple[str, ...] = ()
    """Other faults seen before it in that case: it may be a consequence of them."""
    harm: tuple[Evidence, ...] = ()
    """How else that case went wrong, from there on: what the fault leads to."""
    report: str = ""
    """The public report that it matches."""
    confirmed: bool = True
    """Whether the case showed it again when it was run once more."""
    follows: str = ""
    """The fault of the same invariant that this one only shows once more."""
    in_control: bool = False
    """Whether the engine does the same without a connector: a fault of its own."""
    emits_all: bool = msgspec.field(default=False, name="tells_all")
    """Whether the target emits every event that rules ask for, so that a broken rule is a fault by itself."""

    @property
    def key(self) -> str:
        """Findings of the same fault have the same key."""
        return self.sighting.key


class Campaign(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a campaign did and found."""

    target: str
    seed: int
    budget: float
    seconds: float
    cases: int
    refused: int
    steps: int
    events: int
    accesses: int
    checks: dict[str, int]
    """For each invariant, the judgements made in all cases; see :class:`Outcome`."""
    counts: dict[str, int]
    findings: tuple[Finding, ...]
    unchecked: tuple[str, ...] = ()
    interrupted: bool = False
    broke: str = ""

    @property
    def verdict(self) -> str:
        """``violated`` if something was found, ``holds`` if everything was looked at and nothing found."""
        if self.findings:
            return "violated"
        driven = self.cases > self.refused and self.events > 0
        unsure = self.unchecked or self.interrupted or self.broke or not driven
        return "undetermined" if unsure else "holds"


@dataclass
class _Seen:
    """A fault as it is known so far."""

    case: Case
    outcome: Outcome
    sighting: Sighting
    after: float
    times: int = 0
    confirmed: bool = True

    @property
    def earlier(self) -> list[str]:
        """The other faults that were seen before it in its case."""
        return _keys(self.outcome)[: _keys(self.outcome).index(self.sighting.key)]


class Hunt:
    """The state of a campaign while it runs."""

    def __init__(
        self,
        target: Target,
        reach: Reach,
        budget: float,
        seed: int,
        *,
        until: str = "",
        most: int | None = None,
        note: Note | None = None,
    ) -> None:
        self.target, self.reach, self.budget, self.seed = target, reach, budget, seed
        self.until, self.most, self.note = until, most, note
        self.begin = time.monotonic()
        self.seen: dict[str, _Seen] = {}
        self.totals = dict.fromkeys(("cases", "refused", "steps", "events", "accesses"), 0)
        self.counts, self.checks = Counter[str](), Counter[str]()
        self.unchecked: dict[str, None] = {}
        self.stop = False
        self._lock = threading.Lock()

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return time.monotonic() - self.begin

    def keep(self, case: Case, outcome: Outcome) -> Outcome:
        """Keeps what ``case`` showed."""
        with self._lock:
            self.totals["cases"] += 1
            self.totals["refused"] += bool(outcome.refused)
            if not outcome.refused:
                self._keep(case, outcome)
        return outcome

    def _keep(self, case: Case, outcome: Outcome) -> None:
        for name in ("steps", "events", "accesses"):
            self.totals[name] += getattr(outcome, name)
        self.counts.update(outcome.counts)
        self.checks.update(outcome.checks)
        self.unchecked.update(dict.fromkeys(outcome.unchecked))
        for sighting in outcome.sightings:
            known = self.seen.get(sighting.key)
            if known is None:
                known = self.seen[sighting.key] = _Seen(case, outcome, sighting, self.seconds)
                if self.note is not None:
                    self.note(f"{self.seconds:.0f} s: {sighting.invariant}: {sighting.cause}")
            elif _rank(case, outcome, sighting.key) < _rank(known.case, known.outcome, sighting.key):
                known.case, known.outcome, known.sighting = case, outcome, sighting
            known.times += 1

    def enough(self) -> bool:
        """Whether the one invariant that was looked for was seen."""
        return bool(self.until) and any(seen.sighting.invariant == self.until for seen in self.seen.values())

    def hunt(self) -> None:
        """Draws cases until it is time to make findings small, or to the end if there is none."""
        try:
            from hypothesis import HealthCheck, Phase, given, settings
            from hypothesis import seed as seeded

            from kvfence.checker.audit.cases.workload import cases
        except ImportError as error:
            problem = "an audit needs hypothesis, which is not installed: pip install 'kvfence[audit]'"
            raise CannotRun(problem) from error

        def over() -> bool:
            share = HUNT if self.seen and not self.until else 1.0
            many = self.most is not None and self.totals["cases"] >= self.most
            return many or self.seconds > share * self.budget or self.enough()

        batch = 0
        drawn: list[Case] = []
        known: set[int] = set()
        while not over():
            drawn.clear()

            @seeded(self.seed * 100_003 + batch)
            @settings(
                max_examples=BATCH,
                phases=(Phase.generate,),
                database=None,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            )
            @given(cases(self.reach))
            def draw(case: Case) -> None:
                mark = hash(case)
                if mark not in known:
                    known.add(mark)
                    drawn.append(case)

            draw()
            batch += 1
            for case, outcome in zip(drawn, self.target.run_all(drawn), strict=False):
                self.keep(case, outcome)
                if over():
                    break

    def make_small(self) -> None:
        """Shares the rest of the budget among the findings; what is only a broken rule comes last."""
        keys = sorted(self.seen, key=lambda key: self.seen[key].sighting.evidence == "rule")
        width = max(1, self.target.width)
        share = max(0.0, self.budget - self.seconds) * width / max(1, len(keys))
        with ThreadPoolExecutor(width) as pool:
            try:
                list(pool.map(lambda key: self._make_small(key, share), keys))
            except KeyboardInterrupt:
                self.stop = True
                pool.shutdown(cancel_futures=True)
                raise

    def _make_small(self, key: str, share: float) -> None:
        seen = self.seen[key]
        until = self.seconds + share

        def shows(case: Case) -> bool:
            keys = _keys(self.keep(case, self.target.run(case)))
            return key in keys and keys.index(key) <= len(seen.earlier)

        def more_time() -> bool:
            return self.seconds < min(until, self.budget) and not self.stop

        small = shrink(seen.case, shows, more_time)
        if not self.stop:
            again = [key in self.target.run(small).keys() for _ in range(CONFIRMATIONS)]  # noqa: SIM118
            seen.confirmed = all(again)


def _keys(outcome: Outcome) -> list[str]:
    return [sighting.key for sighting in outcome.sightings]


def _rank(case: Case, outcome: Outcome, key: str) -> tuple[int, ...]:
    """Smaller is the better example of a fault: nothing else wrong before it, and few actions."""
    return _keys(outcome).index(key), *case.size


def campaign(
    target: Target,
    reach: Reach,
    *,
    budget: float,
    seed: int,
    until: str = "",
    most: int | None = None,
    note: Note | None = None,
) -> Campaign:
    """Audits ``target`` for ``budget`` seconds. Ctrl-C ends it early and keeps what was found.

    ``until``: stop looking when this invariant was seen broken, and make it small; ``most``: after so many
    cases.
    """
    hunt = Hunt(target, reach, budget, seed, until=until, most=most, note=note)
    interrupted, broke = False, ""
    try:
        hunt.hunt()
        hunt.make_small()
    except KeyboardInterrupt:
        interrupted = True
    except BrokenProcessPool:
        broke = str(ProcessDied())
    return finished(hunt, interrupted=interrupted, broke=broke)


def finished(hunt: Hunt, *, interrupted: bool = False, broke: str = "") -> Campaign:
    """What ``hunt`` has found so far."""
    return Campaign(
        target=hunt.target.name,
        seed=hunt.seed,
        budget=hunt.budget,
        seconds=hunt.seconds,
        **hunt.totals,
        checks=dict(hunt.checks),
        counts=dict(hunt.counts),
        findings=tuple(sorted((_finding(seen) for seen in hunt.seen.values()), key=_order)),
        unchecked=tuple(hunt.unchecked),
        interrupted=interrupted,
        broke=broke,
    )


def _order(finding: Finding) -> tuple[int, int, str]:
    return len(finding.earlier), -finding.times, finding.key


def _may_follow(later: Sighting, first: Sighting) -> bool:
    """Whether ``later`` can be a consequence of ``first``.

    A race, and the end of a copy that was to fail, have causes of their own.
    """
    alone = later.evidence == "race" or later.invariant == "FAIL-CLOSED"
    return not alone or later.invariant == first.invariant


def _finding(seen: _Seen) -> Finding:
    earlier = tuple(seen.earlier)
    later = [
        sighting.evidence
        for sighting in seen.outcome.sightings[len(earlier) :]
        if sighting.evidence != "rule" and _may_follow(sighting, seen.sighting)
    ]
    return Finding(
        sighting=seen.sighting,
        case=seen.case,
        times=seen.times,
        first_after=seen.after,
        earlier=earlier,
        harm=tuple(dict.fromkeys(later)),
        confirmed=seen.confirmed,
    )
