"""`kvfence audit`: drives a connector through adverse runs and reports each fault once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvfence.checker.cli.shared.options import Format, with_help
from kvfence.spec.errors import CannotRun

app = typer.Typer(
    help="Drive a connector through random runs, and report each fault with the shortest run that shows it.",
    no_args_is_help=True,
)

Budget = Annotated[float, typer.Option(min=1, metavar="SECONDS", help="The time for each target.")]
Seed = Annotated[int, typer.Option(min=0, help="The seed of all random choices.")]
Replay = Annotated[Path | None, typer.Option(metavar="CASE", help="Run only this case.")]
Out = Annotated[
    Path, typer.Option(metavar="DIR", help="The folder for the cases, traces and tests of findings.")
]


@app.command()
@with_help({"design": "A faulty design to switch on; may be repeated. 'all': every faulty design."})
def reference(
    design: list[str] | None = None,
    budget: Budget = 60.0,
    seed: Seed = 1,
    replay: Replay = None,
    out: Out = Path("kvfence-audit"),
    output: Format = "text",
) -> int:
    """Audit the reference implementation: it must be clean as it is, and each faulty design must be found."""
    from kvfence.checker.cli.commands.audit_run import Asked, audit_reference

    return audit_reference(design, Asked(budget, seed, replay, out, output))


@app.command()
@with_help(
    {
        "release": "A release of vLLM, e.g. 0.32.0; may be repeated.",
        "use_installed": "Audit the vLLM that this Python imports.",
        "path": "A checkout or an unpacked wheel of vLLM; may be repeated.",
        "whole_wheel": "Download the whole wheel of a release (hundreds of MB) "
        "if the index serves no parts of it.",
        "connector": "Class name of the connector; NAME@MODULE if vLLM does not register it; "
        "A+B for two at once.",
    }
)
def vllm(
    release: Annotated[list[str] | None, typer.Option(metavar="X")] = None,
    use_installed: Annotated[bool, typer.Option("--installed")] = False,
    path: Annotated[list[Path] | None, typer.Option(metavar="DIR")] = None,
    whole_wheel: Annotated[bool, typer.Option("--whole-wheel")] = False,
    connector: str = "SimpleCPUOffloadConnector",
    budget: Budget = 120.0,
    seed: Seed = 1,
    replay: Replay = None,
    out: Out = Path("kvfence-audit"),
    output: Format = "text",
) -> int:
    """Audit a connector of vLLM: the real scheduler and connector of a release, on a simulated GPU."""
    from kvfence.checker.audit.releases.fetch import at_path, fetch, installed
    from kvfence.checker.cli.commands.audit_run import Asked, audit_vllm

    releases = [fetch(version, large=whole_wheel) for version in release or []]
    releases += [at_path(folder) for folder in path or []]
    if use_installed:
        releases.append(installed())
    if not releases:
        raise CannotRun("name what to audit: --release X, --path DIR or --installed")
    return audit_vllm(releases, connector, Asked(budget, seed, replay, out, output))


@app.command()
@with_help({"case": "The case.json in the folder of a finding."})
def test(case: Annotated[Path, typer.Argument(metavar="CASE")]) -> int:
    """Print the test of a finding of vLLM: one file that needs vLLM, torch and pytest only."""
    from kvfence.checker.audit.test_file import test_of
    from kvfence.checker.core.terminal_text import print_out

    text = test_of(case.parent)
    if text is None:
        raise CannotRun(f"{case}: no call of the scheduler shows this finding; its order trace does")
    print_out(text.rstrip("\n"))
    return 0
