"""Audits one target, a design, a release or a folder, and returns the facts that the command prints."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import msgspec

from kvfence.checker.adapters.reference import designs
from kvfence.checker.audit.campaign import Campaign, Finding, Note, campaign
from kvfence.checker.audit.findings import examined, grounds_of, verdict_of
from kvfence.checker.audit.releases.fetch import Origin, at_path, fetch, installed
from kvfence.checker.audit.targets import REFERENCE, VLLM, Reference, Vllm
from kvfence.checker.core.processes import cores
from kvfence.spec.designs import DESIGNS
from kvfence.spec.errors import unknown


class Audit(msgspec.Struct, frozen=True, kw_only=True):
    """What an audit did and found: the facts of ``kvfence audit --format json``.

    ``verdict`` is ``violated`` if there is a fault, ``holds`` if everything was judged and nothing is wrong,
    and else ``undetermined``. ``campaign`` counts cases, steps, events and judgements, and has all findings,
    those that are only noted included. ``release`` says where the audited code comes from, None for the
    reference.

    >>> from kvfence.checker.audit.campaign import Campaign
    >>> nothing = Campaign(
    ...     target="t", seed=1, budget=1.0, seconds=0.0, cases=0, refused=0, steps=0, events=0, accesses=0,
    ...     checks={}, counts={}, findings=(),
    ... )
    >>> Audit(verdict="undetermined", campaign=nothing).faults
    ()
    """

    verdict: str
    campaign: Campaign
    release: Origin | None = None

    @property
    def faults(self) -> tuple[Finding, ...]:
        """The findings that are faults of the connector, each with the smallest case that shows it."""
        return tuple(found for found in self.campaign.findings if grounds_of(found) == "fault")


def audit(
    target: str | Path = "sound",
    *,
    connector: str = "SimpleCPUOffloadConnector",
    budget: float = 60.0,
    seed: int = 1,
    processes: int | None = None,
    note: Note | None = None,
) -> Audit:
    """Drives ``target`` through cases drawn at random, and makes each fault's case small.

    ``target`` is a design of the reference (``"sound"``, ``"unpinned_lookup"``), a release of vLLM
    (``"vllm==0.32.0"``), the vLLM that this Python imports (``"vllm"``), or the ``Path`` of a checkout or an
    unpacked wheel; ``connector`` names the class to audit in vLLM. The audit takes about ``budget`` seconds
    in ``processes`` processes (all cores if None); ``seed`` fixes what is drawn. ``note`` is called with a
    line for each fault as it is found. Ctrl-C ends the audit and keeps what was found.

    Raises CannotRun for a target that does not exist or cannot be driven, and without the packages of the
    extras ``reference`` (for designs) and ``audit``.

    >>> found = audit("unpinned_lookup", budget=1, processes=1)
    >>> found.verdict, found.faults[0].sighting.invariant
    ('violated', 'PIN')
    """
    width = processes or cores()
    if isinstance(target, Path) or target.partition("==")[0] == "vllm":
        return _audit_vllm(target, connector, budget, seed, width, note)
    (design,) = designs_to_audit([target], every="")
    found = audit_design(Reference(design, width), budget, seed, note)
    return Audit(verdict=verdict_of(found), campaign=found)


def designs_to_audit(names: Sequence[str], every: str = "all") -> list[str]:
    """The designs of the reference by ``names``; all faulty ones for ``every``. CannotRun for one unknown."""
    known = designs()
    if list(names) == [every]:
        return list(known)
    for name in names:
        if name not in {*known, "sound"}:
            raise unknown(
                "design that the reference can switch on", name, known, "kvfence designs lists them"
            )
    return list(names)


def audit_design(driven: Reference, budget: float, seed: int, note: Note | None) -> Campaign:
    """The campaign against a design of the reference, until what it is known to break is found."""
    expected = DESIGNS[driven.design].breaks if driven.design in DESIGNS else ""
    with closing(driven):
        found = campaign(driven, REFERENCE, budget=budget, seed=seed, until=expected, note=note)
    return examined(found, None, emits_all=True)


def _audit_vllm(
    target: str | Path, connector: str, budget: float, seed: int, width: int, note: Note | None
) -> Audit:
    if isinstance(target, Path):
        release = at_path(target)
    else:
        release = fetch(version) if (version := target.partition("==")[2]) else installed()
    with closing(Vllm(release, connector, width, note)) as driven:
        driven.start()
        found = examined(campaign(driven, VLLM, budget=budget, seed=seed, note=note), driven.control)
    return Audit(verdict=verdict_of(found), campaign=found, release=release.origin)
