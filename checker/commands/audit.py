"""`kvfence audit`: drives a connector through adverse runs and reports what goes wrong, each fault once."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal, Protocol

import msgspec
import typer

from kvfence.checker.audit.campaign import Campaign, Finding, campaign
from kvfence.checker.audit.case import Case, read_case
from kvfence.checker.audit.findings import examined, grounds_of, verdict_of, write
from kvfence.checker.audit.outcome import Outcome
from kvfence.checker.audit.releases import Release, at_path, fetch, installed
from kvfence.checker.audit.targets import REFERENCE, VLLM, Reference, Vllm
from kvfence.checker.errors import CannotRun, unknown
from kvfence.checker.mutation.side_by_side import cores
from kvfence.checker.report.audited import audit_text, outcome_text, summary, table_text
from kvfence.checker.report.jsonreport import as_json
from kvfence.checker.report.table import terminal_width
from kvfence.spec.designs import DESIGNS

MakeTest = Callable[[Finding, Path], str | None]

_EXIT = {"holds": 0, "violated": 1, "undetermined": 3}


class Target(Protocol):
    """What was audited, as far as files are written about it."""

    name: str

    def run(self, case: Case, record: Path | None = None) -> Outcome:
        """Drives it through ``case``; ``record``: a folder for traces."""


app = typer.Typer(
    help="Drive a connector through runs drawn at random, and report each fault with the shortest one.",
    no_args_is_help=True,
)

Budget = Annotated[float, typer.Option(min=1, metavar="SECONDS", help="Time for each target.")]
Seed = Annotated[int, typer.Option(min=0, help="Of everything that is drawn.")]
Replay = Annotated[Path | None, typer.Option(metavar="CASE", help="Run this case only.")]
Out = Annotated[
    Path, typer.Option(metavar="DIR", help="Where the cases, traces and tests of findings are written.")
]
Output = Annotated[Literal["text", "json"], typer.Option("--format", help="How to print.")]


@app.command()
def reference(
    design: Annotated[
        list[str] | None,
        typer.Option(help="A faulty design to switch on; may be repeated, and 'all' stands for each."),
    ] = None,
    budget: Budget = 60.0,
    seed: Seed = 1,
    replay: Replay = None,
    out: Out = Path("kvfence-audit"),
    output: Output = "text",
) -> int:
    """Audit the reference implementation: sound, it must be clean; each faulty design must be found."""
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
        worst = max(worst, _told(examined(found, None), target, out / f"reference-{name}", output))
        if found.interrupted:
            break
    return worst


@app.command()
def vllm(
    release: Annotated[
        list[str] | None, typer.Option(metavar="X", help="A release, e.g. 0.32.0; may be repeated.")
    ] = None,
    use_installed: Annotated[
        bool, typer.Option("--installed", help="The vLLM that this Python imports.")
    ] = False,
    path: Annotated[
        list[Path] | None, typer.Option(metavar="DIR", help="A checkout or an unpacked wheel.")
    ] = None,
    connector: Annotated[
        str, typer.Option(help="Its class name; NAME@MODULE for one that vLLM does not know.")
    ] = "SimpleCPUOffloadConnector",
    budget: Budget = 120.0,
    seed: Seed = 1,
    replay: Replay = None,
    out: Out = Path("kvfence-audit"),
    output: Output = "text",
) -> int:
    """Audit a connector of vLLM: the real scheduler and connector of a release around a virtual GPU."""
    releases = [fetch(version) for version in release or []]
    releases += [at_path(folder) for folder in path or []]
    if use_installed:
        releases.append(installed())
    if not releases:
        raise CannotRun("name what to audit: --release X, --path DIR or --installed")
    done: list[Campaign] = []
    worst = 0
    for one in releases:
        code, found = _audit(one, connector, budget, seed, replay, out, output)
        worst = max(worst, code)
        if found is not None:
            done.append(found)
            if found.interrupted:
                break
    if len(done) > 1 and output == "text":
        names = [release.version for release in releases[: len(done)]]
        typer.echo("\n" + table_text(names, done, width=terminal_width()))
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

    from kvfence.checker.audit.test_file import test_of

    def test(finding: Finding, folder: Path) -> str | None:
        return test_of(finding, release.version, connector, folder)

    begin = time.monotonic()
    rig = Vllm(release, connector, 1 if replay else cores(), _note)
    try:
        rig.start()
        if replay is not None:
            return _replayed(rig, replay, out / f"vllm-{release.version}", output, test), None
        left = max(10.0, budget - (time.monotonic() - begin))
        found = campaign(rig, VLLM, budget=left, seed=seed, note=_note)
        found = examined(found, rig.control)
        return _told(found, rig, out / f"vllm-{release.version}", output, test), found
    finally:
        rig.close()


def _replayed(target: Target, file: Path, folder: Path, output: str, test: MakeTest | None = None) -> int:
    """Runs the case in ``file`` once more; what it shows is written as for a finding."""
    case = read_case(file)
    outcome = target.run(case)
    files = {}
    for seen in outcome.sightings:
        finding = Finding(sighting=seen, case=case, times=1, first_after=0.0)
        files[seen.key] = write(finding, folder, target.run, test)
    if output == "json":
        typer.echo(as_json(outcome))
    else:
        typer.echo(outcome_text(target.name, case, outcome, width=terminal_width(), files=files))
    if outcome.sightings:
        return _EXIT["violated"]
    return _EXIT["undetermined" if outcome.refused or outcome.unchecked else "holds"]


def _told(
    found: Campaign,
    target: Target,
    folder: Path,
    output: str,
    test: MakeTest | None = None,
) -> int:
    files = {}
    try:
        for finding in found.findings:
            if grounds_of(finding) == "fault":
                files[finding.key] = write(finding, folder, target.run, test)
    except OSError as error:
        print(f"kvfence: {folder}: not everything could be written ({error.strerror})", file=sys.stderr)
    if output == "json":
        typer.echo(
            as_json(msgspec.to_builtins(found) | {"verdict": verdict_of(found), "summary": summary(found)})
        )
    else:
        typer.echo(audit_text(found, width=terminal_width(), files=files))
    return _EXIT[verdict_of(found)]


def _note(line: str) -> None:
    if sys.stderr.isatty():
        print(f"kvfence: {line}", file=sys.stderr)
