"""What `kvfence audit` does once its line is parsed: drives each target, writes and prints what is found."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import msgspec

from kvfence.checker.audit.audits import audit_design, designs_to_audit
from kvfence.checker.audit.campaign import Campaign, Finding, campaign
from kvfence.checker.audit.cases.case import Case, read_case
from kvfence.checker.audit.cases.outcome import Outcome
from kvfence.checker.audit.findings import examined, grounds_of, verdict_of, write
from kvfence.checker.audit.releases.fetch import Origin, Release
from kvfence.checker.audit.targets import VLLM, Reference, Vllm
from kvfence.checker.core.exit_codes import EXIT_CODES, worst_code
from kvfence.checker.core.processes import cores
from kvfence.checker.core.terminal_text import print_err, print_out
from kvfence.checker.core.text_tables import paragraph, terminal_width
from kvfence.checker.report.jsonreport import as_json
from kvfence.checker.report.text.audited import audit_text, outcome_text, summary, table_text
from kvfence.spec.files.outputs import OutputError
from kvfence.spec.files.traces import TraceError


@dataclass(frozen=True)
class Asked:
    """What the options of every audit ask for; ``replay`` is a case to run in place of a campaign."""

    budget: float
    seed: int
    replay: Path | None
    out: Path
    output: str


class Target(Protocol):
    """What was audited, as far as files are written about it."""

    name: str

    def run(self, case: Case, record: Path | None = None) -> Outcome:
        """Drives it through ``case``; ``record``: a folder for traces."""


@dataclass(frozen=True)
class _Report:
    """Writes the files of findings on a target into a folder, and prints what was found, with their names."""

    target: Target
    folder: Path
    output: str
    driven: tuple[str, str] | None = None
    """The release of vLLM and its connector; None for the reference, which is a part of kvfence."""
    origin: Origin | None = None
    files: dict[str, tuple[Path, ...]] = field(default_factory=dict)

    def replayed(self, file: Path) -> int:
        """Runs the case in ``file`` once more; what it shows is written as for a finding. The exit code."""
        case = read_case(file)
        outcome = self.target.run(case)
        self._write(
            [Finding(sighting=seen, case=case, times=1, first_after=0.0) for seen in outcome.sightings], file
        )
        text = outcome_text(self.target.name, case, outcome, width=terminal_width(), files=self.files)
        self._print(outcome, text)
        if outcome.sightings:
            return EXIT_CODES["violated"]
        unsure = outcome.refused or outcome.unchecked or not outcome.events
        return EXIT_CODES["undetermined" if unsure else "holds"]

    def audited(self, found: Campaign) -> int:
        """Reports a campaign; the exit code."""
        try:
            self._write([finding for finding in found.findings if grounds_of(finding) == "fault"])
        except KeyboardInterrupt:  # the report is printed all the same
            found = msgspec.structs.replace(found, interrupted=True)
        verdict = verdict_of(found)
        text = audit_text(found, width=terminal_width(), files=self.files)
        self._print(found, text, verdict=verdict, summary=summary(found))
        return EXIT_CODES[verdict]

    def _write(self, findings: Sequence[Finding], case_file: Path | None = None) -> None:
        """Writes the files of each finding and adds them to ``files``; stderr says what cannot be written."""
        try:
            for finding in findings:
                self.files[finding.key] = write(finding, self.folder, self.target.run, self.driven, case_file)
        except OSError as error:
            print_err(f"{self.folder}: not everything could be written ({error.strerror})")
        except (OutputError, TraceError) as error:
            print_err(f"{error} (not everything could be written)")

    def _print(self, found: msgspec.Struct, text: str, **more: str) -> None:
        if self.output == "json":
            facts = msgspec.to_builtins(found, enc_hook=lambda slots: slots.tolist()) | more
            print_out(as_json(facts | ({} if self.origin is None else {"release": self.origin})))
            return
        print_out(text)
        if self.origin is not None:
            print_out(paragraph(f"Driven: {self.origin.line()}", width=terminal_width()))


def audit_reference(design: Sequence[str] | None, asked: Asked) -> int:
    """Audits the reference in each of the designs named; the exit code. CannotRun for one unknown."""
    wanted = designs_to_audit(design or ["sound"])
    worst = 0
    for name in wanted:
        target = Reference(name, 1 if asked.replay else cores())
        report = _Report(target, asked.out / f"reference-{name}", asked.output)
        if asked.replay is not None:
            return report.replayed(asked.replay)
        found = audit_design(target, asked.budget, asked.seed, _note)
        worst = worst_code((worst, report.audited(found)))
        if found.interrupted:
            break
    return worst


def audit_vllm(releases: Sequence[Release], connector: str, asked: Asked) -> int:
    """Audits a connector in each of the releases; the worst exit code."""
    done: list[Campaign] = []
    worst = 0
    for one in releases:
        code, found = _audit(one, connector, asked)
        worst = worst_code((worst, code))
        if found is not None:
            done.append(found)
            if found.interrupted:
                break
    if len(done) > 1 and asked.output == "text":
        names = [release.version for release in releases[: len(done)]]
        print_out("\n" + table_text(names, done, width=terminal_width()))
    return worst


def _audit(release: Release, connector: str, asked: Asked) -> tuple[int, Campaign | None]:
    begin = time.monotonic()
    rig = Vllm(release, connector, 1 if asked.replay else cores(), _note)
    folder, driven = asked.out / f"vllm-{release.version}", (release.version, connector)
    report = _Report(rig, folder, asked.output, driven, release.origin)
    try:
        rig.start()
        if asked.replay is not None:
            return report.replayed(asked.replay), None
        left = max(10.0, asked.budget - (time.monotonic() - begin))
        found = examined(campaign(rig, VLLM, budget=left, seed=asked.seed, note=_note), rig.control)
        return report.audited(found), found
    finally:
        rig.close()


def _note(line: str) -> None:
    if sys.stderr is not None and sys.stderr.isatty():
        print_err(line)
