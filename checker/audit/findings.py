"""From what a campaign saw to what is reported: grounds, controls, and the files that go with a finding."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal, TypeAlias

import msgspec

from kvfence.checker.audit.campaign import Campaign, Finding
from kvfence.checker.audit.cases.case import Case, as_json
from kvfence.checker.audit.cases.judge import NO_FAULT
from kvfence.checker.audit.cases.outcome import Outcome
from kvfence.checker.audit.cases.reports import report_of
from kvfence.checker.audit.test_file import Recorded, test_of
from kvfence.spec.files.outputs import write_text

HARM: Final = ("content", "exception", "race", "leak", "stall")
ON_THEIR_OWN: Final = {"PIN": "", "UNIQUE": "", "CONSERVE": "count of free slots"}
"""Rules, by words of their cause, about what a connector holds and copies, and about a pool's own count.

Breaking them is a fault whether or not it did harm yet.

Other rules may be kept by means that no event shows, so that without harm they are only noted.
"""

Grounds: TypeAlias = Literal["fault", "engine", "noted"]
"""A fault of the connector; one of the engine, which has it without a connector too; or a rule broken without
harm, as well as what only shows the fault of another finding once more.
"""

Control = Callable[[Case], Outcome]
"""Runs a case without a connector."""


def grounds_of(finding: Finding) -> Grounds:
    """What kind of finding it is."""
    if finding.in_control:
        return "engine"
    if finding.follows:
        return "noted"
    cause = finding.sighting.cause
    words = ON_THEIR_OWN.get(finding.sighting.invariant)
    alone = words is not None and words in cause and not cause.endswith(NO_FAULT)
    if finding.sighting.evidence != "rule" or alone or finding.emits_all:
        return "fault"
    return "fault" if set(finding.harm) & set(HARM) else "noted"


def examined(campaign: Campaign, control: Control | None, *, emits_all: bool = False) -> Campaign:
    """``campaign`` with public reports looked up, and with each finding tried without a connector.

    ``emits_all``: the target emits every event that the rules ask for.
    """
    findings = []
    for finding in campaign.findings:
        alone = control is not None and finding.key in control(finding.case).keys()  # noqa: SIM118 - a method
        report = "" if alone else report_of(finding.sighting)
        known = {"report": report, "in_control": alone, "emits_all": emits_all}
        findings.append(msgspec.structs.replace(finding, **known))
    if emits_all:
        return msgspec.structs.replace(campaign, findings=tuple(findings))
    faults = [finding for finding in findings if grounds_of(finding) == "fault"]
    findings = [msgspec.structs.replace(finding, follows=_followed(finding, faults)) for finding in findings]
    return msgspec.structs.replace(campaign, findings=tuple(findings))


def _followed(finding: Finding, faults: list[Finding]) -> str:
    """The fault of the same invariant that ``finding`` only shows once more; empty if there is none."""
    if finding.sighting.evidence != "rule":
        return ""
    for other in faults:
        same = other.sighting.invariant == finding.sighting.invariant and other.key != finding.key
        harm = other.sighting.evidence in HARM and other.sighting.evidence in finding.harm
        if same and (other.key in finding.earlier or harm):
            return other.key
    return ""


def verdict_of(campaign: Campaign) -> str:
    """``violated`` if there is a fault; else as the campaign says, with what is only noted left aside."""
    if any(grounds_of(finding) == "fault" for finding in campaign.findings):
        return "violated"
    return msgspec.structs.replace(campaign, findings=()).verdict


def slug(finding: Finding) -> str:
    """A name for the files of ``finding``."""
    words = re.findall(r"[a-z]+", f"{finding.sighting.invariant} {finding.sighting.cause}".lower())
    short = [w for w in words if w not in {"a", "the", "of", "is", "not", "true", "that", "and", "in", "n"}]
    mark = hashlib.sha256(finding.key.encode()).hexdigest()[:4]
    return "_".join([*short[:8], mark])


def write(
    finding: Finding,
    folder: Path,
    record: Callable[[Case, Path], object],
    driven: tuple[str, str] | None,
    case_file: Path | None = None,
) -> tuple[Path, ...]:
    """Writes the case, the traces and, if there is one, the test of ``finding``; returns the files.

    ``driven``: the release of vLLM and its connector, if that is what was driven. ``case_file``: the case was
    read from there, and stays as it is.
    """
    name = slug(finding)
    here = folder / name
    here.mkdir(parents=True, exist_ok=True)
    case = here / "case.json"
    if case_file is None or not (case.exists() and case.samefile(case_file)):
        write_text(case, as_json(finding.case))
    record(finding.case, here)
    if driven is not None and (here / "calls.json").is_file():
        about = Recorded(release=driven[0], connector=driven[1], sighting=finding.sighting)
        write_text(here / "finding.json", msgspec.json.format(msgspec.json.encode(about)).decode() + "\n")
        if (test := test_of(here)) is not None:
            write_text(here / f"test_{name}.py", test)
    return tuple(sorted(path for path in here.iterdir() if path.is_file()))
