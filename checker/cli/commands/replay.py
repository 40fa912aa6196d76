"""`kvfence replay`: production requests through the reference implementation.

Its options are those that :mod:`kvfence.reference.scheduler.options` declares, and where to write what.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Annotated, Any

import typer

from kvfence.checker.cli.shared.options import Format, print_report, with_help
from kvfence.checker.cli.shared.progress_line import count_progress
from kvfence.checker.core.exit_codes import EXIT_CODES
from kvfence.checker.core.units import parse_counts
from kvfence.reference.scheduler.options import DECLARATIONS, Declaration
from kvfence.spec.errors import unknown

DECLARED = {d.name: d for d in DECLARATIONS if d.option.on_command_line}
"""The options of a replay that the command line has, by name."""


@with_help(
    {
        "workload": "A production trace in Mooncake's format.",
        "judge": "Judge every event; contents are compared in any case.",
        "record": "Write a trace of the run, compressed if the name ends in .zst.",
        "record_order": "Write an order trace of the run, for kvfence races.",
        "metrics": "Write the run's metrics in the format of Prometheus.",
    }
)
def replay(
    workload: Annotated[Path, typer.Argument(metavar="TRACE")],
    *,
    judge: Annotated[bool, typer.Option("--assert/--no-assert")] = True,
    record: Path | None = None,
    record_order: Path | None = None,
    metrics: Path | None = None,
    output: Format = "text",
    **given: Any,
) -> int:
    """Replay production requests through the reference implementation, with every invariant asserted."""
    from kvfence.checker.adapters.reference import replay as run_replay
    from kvfence.checker.report.text.replayed import replayed_text
    from kvfence.spec.designs import DESIGNS

    options = {name: _value(DECLARED[name], value) for name, value in given.items()}
    design = options["design"]
    if design not in DESIGNS:
        raise unknown("design", design, DESIGNS, "kvfence designs lists them")
    with count_progress("requests finished") as progress:
        found = run_replay(
            workload,
            options,
            expected=DESIGNS[design].breaks,
            judge=judge,
            record=record,
            record_order=record_order,
            metrics=metrics,
            progress=progress and (lambda done, _seconds: progress(done)),
        )
    print_report(found, output, replayed_text)
    return EXIT_CODES[found.verdict]


def _is_switch(declared: Declaration) -> bool:
    """Whether the option is a pair of flags that choose the second or the first of two values."""
    return any("/" in flag for flag in declared.option.flags)


def _parameter(declared: Declaration) -> inspect.Parameter:
    """The parameter of the command for an option of a replay."""
    kind, default, bounds = declared.type, declared.default, {}
    if _is_switch(declared):
        kind, default = bool, default == declared.choices[1]
    elif declared.choices and isinstance(default, int):
        kind, bounds = int, {"min": declared.choices[0], "max": declared.choices[-1]}
    elif isinstance(default, tuple):
        kind, default = str | None, None
    flags = declared.option.flags or (f"--{declared.name.replace('_', '-')}",)
    option = typer.Option(*flags, help=declared.option.help, metavar=declared.option.metavar, **bounds)
    return inspect.Parameter(
        declared.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option]
    )


def _value(declared: Declaration, given: Any) -> Any:
    """The value of an option of a replay from that of its parameter."""
    if _is_switch(declared):
        return declared.choices[given]
    return parse_counts(given) if isinstance(declared.default, tuple) else given


def _with_declared(signature: inspect.Signature) -> inspect.Signature:
    """The signature of the command with a parameter for each declared option in place of ``**given``."""
    workload, *outputs, _given = signature.parameters.values()
    return signature.replace(parameters=[workload, *map(_parameter, DECLARED.values()), *outputs])


replay.__signature__ = _with_declared(inspect.signature(replay, eval_str=True))  # type: ignore[attr-defined]
