"""What `kvfence audit` does once its line is parsed: each target driven, what is found written and told."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from kvfence.checker.audit.campaign import Campaign, Finding, campaign
from kvfence.checker.audit.cases.case import Case, read_case
from kvfence.checker.audit.cases.outcome import Outcome
from kvfence.checker.audit.findings import examined, grounds_of, verdict_of, write
from kvfence.checker.audit.releases.fetch import Origin, Release
from kvfence.checker.audit.targets import REFERENCE, VLLM, Reference, Vllm
from kvfence.checker.core.exit_codes import EXIT_CODES, worst_code
from kvfence.checker.core.processes import cores
from kvfence.checker.core.terminal_text import print_err, print_out
from kvfence.checker.core.text_tables import paragraph, terminal_width
from kvfence.checker.report.jsonreport import as_json
from kvfence.checker.report.text.audited import audit_text, outcome_text, summary, table_text
from kvfence.spec.designs import DESIGNS
from kvfence.spec.errors import unknown
from kvfence.spec.files.outputs import OutputError
from kvfence.spec.files.traces import TraceError


class Target(Protocol):
    """What was audited, as far as files are written about it."""

    name: str

    def run(self, case: Case, record: Path | None = None) -> Outcome:
        """Drives it through ``case``; ``record``: a folder for traces."""


def audit_reference(
    design: Sequence[str] | None, budget: float, seed: int, replay: Path | None, out: Path, output: str
) -> int:
    """Audits the reference in each of the designs named; the exit code. CannotRun for one unknown."""
    from kvfence.checker.adapters.reference import designs

    known = designs()
    wanted = list(known) if design == ["all"] else design or ["sound"]
    for name in wanted:
        if name not in {*known, "sound"}:
            raise unknown(
                "design that the reference can switch on", name, known, "kvfence designs lists them"
            )
    if replay is not None:
        target = Reference(wanted[0])
        return _replayed(target, replay, out / f"reference-{wanted[0]}", output)
    worst = 0
    for name in wanted:
        target = Reference(name, cores())
        expected = DESIGNS[name].breaks if name in DESIGNS else ""
        try:
            found = campaign(target, REFERENCE, budget=budget, seed=seed, until=expected, note=_note)
        finally:
            target.close()
        found = examined(found, None, tells_all=True)
        worst = worst_code((worst, _told(found, target, out / f"reference-{name}", output)))
        if found.interrupted:
            break
    return worst


def audit_vllm(
    releases: Sequence[Release],
    connector: str,
    budget: float,
    seed: int,
    replay: Path | None,
    out: Path,
    output: str,
) -> int:
    """Audits a connector in each of the releases; the worst exit code."""
    done: list[Campaign] = []
    worst = 0
    for one in releases:
        code, found = _audit(one, connector, budget, seed, replay, out, output)
        worst = worst_code((worst, code))
        if found is not None:
            done.append(found)
            if found.interrupted:
                break
    if len(done) > 1 and output == "text":
        names = [release.version for release in releases[: len(done)]]
        print_out("\n" + table_text(names, done, width=terminal_width()))
    return worst


def _audit(
    release: Release,
    connector: str,
    budget: float,
    seed: int,
    replay: Path | None,
    out: Path,
    output: str,
) -> tuple[int, Campaign | None]:
    import time

    begin = time.monotonic()
    driven = release.version, connector
    rig = Vllm(release, connector, 1 if replay else cores(), _note)
    try:
        rig.start()
        if replay is not None:
            return _replayed(
                rig, replay, out / f"vllm-{release.version}", output, driven, release.origin
            ), None
        left = max(10.0, budget - (time.monotonic() - begin))
        found = campaign(rig, VLLM, budget=left, seed=seed, note=_note)
        found = examined(found, rig.control)
        return _told(found, rig, out / f"vllm-{release.version}", output, driven, release.origin), found
    finally:
        rig.close()


def _replayed(
    target: Target,
    file: Path,
    folder: Path,
    output: str,
    driven: tuple[str, str] | None = None,
    origin: Origin | None = None,
) -> int:
    """Runs the case in ``file`` once more; what it shows is written as for a finding."""
    case = read_case(file)
    outcome = target.run(case)
    found = [Finding(sighting=seen, case=case, times=1, first_after=0.0) for seen in outcome.sightings]
    files: dict[str, tuple[Path, ...]] = {}
    _write(found, target, folder, driven, files, case_file=file)
    if output == "json":
        print_out(as_json(msgspec.to_builtins(outcome) | _release(origin)))
    else:
        print_out(outcome_text(target.name, case, outcome, width=terminal_width(), files=files))
        _tell(origin)
    if outcome.sightings:
        return EXIT_CODES["violated"]
    unsure = outcome.refused or outcome.unchecked or not outcome.events
    return EXIT_CODES["undetermined" if unsure else "holds"]


def _told(
    found: Campaign,
    target: Target,
    folder: Path,
    output: str,
    driven: tuple[str, str] | None = None,
    origin: Origin | None = None,
) -> int:
    faults = [finding for finding in found.findings if grounds_of(finding) == "fault"]
    files: dict[str, tuple[Path, ...]] = {}
    try:
        _write(faults, target, folder, driven, files)
    except KeyboardInterrupt:  # the report is told all the same
        found = msgspec.structs.replace(found, interrupted=True)
    if output == "json":
        told = {"verdict": verdict_of(found), "summary": summary(found)}
        print_out(as_json(msgspec.to_builtins(found) | told | _release(origin)))
    else:
        print_out(audit_text(found, width=terminal_width(), files=files))
        _tell(origin)
    return EXIT_CODES[verdict_of(found)]


def _write(
    findings: Sequence[Finding],
    target: Target,
    folder: Path,
    driven: tuple[str, str] | None,
    files: dict[str, tuple[Path, ...]],
    case_file: Path | None = None,
) -> None:
    """Writes the files of each finding and adds them to ``files``; what cannot be written is told."""
    try:
        for finding in findings:
            files[finding.key] = write(finding, folder, target.run, driven, case_file)
    except OSError as error:
        print_err(f"{folder}: not everything could be written ({error.strerror})")
    except (OutputError, TraceError) as error:
        print_err(f"{error} (not everything could be written)")


def _release(origin: Origin | None) -> dict[str, object]:
    """Where the driven code comes from, as a field of JSON; none for the reference, a part of kvfence."""
    return {} if origin is None else {"release": msgspec.to_builtins(origin)}


def _tell(origin: Origin | None) -> None:
    if origin is not None:
        print_out(paragraph(f"Driven: {origin.line()}", width=terminal_width()))


def _note(line: str) -> None:
    if sys.stderr is not None and sys.stderr.isatty():
        print_err(line)
