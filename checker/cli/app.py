"""The command line: parses, calls, prints. An exit code for each verdict."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Literal

import typer

from kvfence.checker.cli import failures
from kvfence.checker.cli.commands.audit import app as audit
from kvfence.checker.cli.commands.explain import explain
from kvfence.checker.cli.commands.explore import explore
from kvfence.checker.cli.commands.export import export
from kvfence.checker.cli.commands.new import new
from kvfence.checker.cli.commands.progress_line import count_progress, machine_progress
from kvfence.checker.cli.commands.review import review
from kvfence.checker.core import interrupts
from kvfence.checker.core.exit_codes import CANNOT_RUN, EXIT_CODES, FAILED, READER_LEFT, SUMMARY
from kvfence.checker.core.interrupts import INTERRUPTED
from kvfence.checker.core.names import ENGINES, SOUND
from kvfence.checker.core.terminal_text import print_err, print_out
from kvfence.checker.core.text_tables import terminal_width
from kvfence.checker.core.units import parse_counts, parse_memory, parse_sizes
from kvfence.checker.report.jsonreport import as_json
from kvfence.spec.errors import CannotRun, missing, unknown
from kvfence.spec.files.outputs import check_outputs, files_of

app = typer.Typer(
    name="kvfence",
    help="Checks KV-cache offload connectors: their specification, their runs and their traces.",
    epilog=f"Exit codes: {SUMMARY}",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


Format = Literal["text", "json"]
FormatOption = Annotated[Format, typer.Option("--format", help="How to print.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        print_out(f"kvfence {version('kvfence')}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _kvfence(
    context: typer.Context,
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> int:
    if context.invoked_subcommand is None:
        print_out(context.get_help())
        return CANNOT_RUN
    return 0


@app.command()
def invariants(output: FormatOption = "text") -> int:
    """List the invariants, where each is checked, and how many public reports it would have caught."""
    from kvfence.checker.report.text.listings import invariants_text
    from kvfence.spec.catalog import INVARIANTS

    if output == "json":
        print_out(as_json(INVARIANTS))
    else:
        print_out(invariants_text(INVARIANTS, width=terminal_width()))
    return 0


@app.command()
def designs(output: FormatOption = "text") -> int:
    """List the named designs: the sound one, and one for each fault that a machine can express."""
    from kvfence.checker.report.text.listings import designs_text
    from kvfence.spec.designs import DESIGNS

    if output == "json":
        print_out(as_json(list(DESIGNS.values())))
    else:
        print_out(designs_text(DESIGNS.values(), width=terminal_width()))
    return 0


@app.command()
def verify(
    machine: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE.py:MACHINE", help="Only this machine; all that the design touches else."
        ),
    ] = None,
    design: Annotated[str, typer.Option(help="The design to check; kvfence designs lists them.")] = SOUND,
    size: Annotated[
        list[str] | None,
        typer.Option(metavar="SORT=N", help="How many of a sort, e.g. Block=4; may be repeated."),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            help=f"One of {', '.join(ENGINES)}. Default: {ENGINES[0]}, or interpret beyond 64-bit numbers."
        ),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(
            help="The most memory one machine may take, e.g. 4GiB. Default: 2GiB; with engine gpu, its card."
        ),
    ] = None,
    until: Annotated[
        Literal["first", "end"] | None,
        typer.Option(
            help="Stop at the first violation or go on to the end. Default: by whether the design is faulty."
        ),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads of the native engine. Default: one for each core.")
    ] = None,
    symmetry: Annotated[
        bool, typer.Option("--symmetry", help="Count states that differ in names of elements only once.")
    ] = False,
    checkpoint: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Save the search to this folder as it goes, and go on from there."),
    ] = None,
    export: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write the proofs of engine smt there as SMT-LIB 2.")
    ] = None,
    second_solver: Annotated[
        str | None, typer.Option(help="Decide the proofs of engine smt again by another solver: cvc5.")
    ] = None,
    infer_lemmas: Annotated[
        bool,
        typer.Option("--infer-lemmas", help="Let engine smt look for lemmas where those given fall short."),
    ] = False,
    walks: Annotated[
        int | None, typer.Option(min=1, help="Random walks of engine swarm. Default: 1048576.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Steps of each walk of engine swarm. Default: 1000.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="What the walks of engine swarm depend on. Default: 0.")
    ] = None,
    record: Annotated[Path | None, typer.Option(help="Write the first counterexample as a trace.")] = None,
    output: FormatOption = "text",
) -> int:
    """Check the machines of the specification: every state that they can reach at the given sizes.

    Engine smt proves them for sorts of any size instead.
    """
    from kvfence.checker.analysis.verify import record as record_counterexample
    from kvfence.checker.analysis.verify import verify as run_verify
    from kvfence.checker.core.processes import cores
    from kvfence.checker.report.text.verdicts import verification_text

    files = files_of(machine)
    check_outputs({"--record": record}, inputs=files)
    sizes = parse_sizes(size or [])
    limit = None if memory is None and engine == "gpu" else parse_memory(memory or "2GiB")
    with machine_progress() as progress:
        found = run_verify(
            design,
            machine=machine,
            sizes=sizes,
            engine=engine,
            memory=limit,
            until=until,
            threads=threads or cores(),
            symmetry=symmetry,
            checkpoint=checkpoint,
            export=export,
            second_solver=second_solver,
            infer_lemmas=infer_lemmas,
            walks={k: n for k, n in (("walks", walks), ("steps", steps), ("seed", seed)) if n is not None},
            note=print_err,
            progress=progress,
        )
    if engine == "gpu" and int(os.environ.get("RANK", "0")) > 0:
        return EXIT_CODES[found.verdict]  # under torchrun the first rank reports
    print_out(as_json(found) if output == "json" else verification_text(found, width=terminal_width()))
    if record is not None and not record_counterexample(found, record, files):
        print_err(f"{record}: not written, as there is no counterexample that tells of events")
    return EXIT_CODES[found.verdict]


@app.command()
def mutate(
    machine: Annotated[str | None, typer.Option(help="Only this machine; all else.")] = None,
    only: Annotated[
        str | None,
        typer.Option(metavar="PATTERN", help="Only mutants whose name fits, e.g. 'evict: *'."),
    ] = None,
    size: Annotated[
        list[str] | None,
        typer.Option(metavar="SORT=N", help="Explore at this size only, e.g. Block=4; may be repeated."),
    ] = None,
    memory: Annotated[str, typer.Option(help="The most memory one mutant may take, e.g. 2GiB.")] = "2GiB",
    accepted: Annotated[
        bool, typer.Option("--accepted", help="List the survivors that the machines accept, too.")
    ] = False,
    output: FormatOption = "text",
) -> int:
    """Change the machines in small ways, and see which invariant notices each change."""
    from kvfence.checker.analysis.mutation.matrix import mutate as run_mutate
    from kvfence.checker.report.text.mutated import mutated_text, worst_of

    sizes, limit = parse_sizes(size or []), parse_memory(memory)
    with count_progress("mutants") as progress:
        found = run_mutate(machine, sizes=sizes, only=only, memory=limit, progress=progress)
    width = terminal_width()
    print_out(as_json(found) if output == "json" else mutated_text(found, width=width, accepted=accepted))
    return EXIT_CODES[worst_of(found)]


@app.command()
def check(
    trace: Annotated[
        Path, typer.Argument(help="A trace file: JSON lines, or zstd if its name ends in .zst.")
    ],
    limit: Annotated[
        int, typer.Option(min=0, help="Stop after this many violations; 0 goes on to the end of the trace.")
    ] = 1,
    output: FormatOption = "text",
) -> int:
    """Judge a recorded trace of a connector by every invariant that the ledger monitors."""
    from kvfence.checker.ledger.check import check_trace
    from kvfence.checker.report.text.checked import check_text

    with count_progress("events") as progress:
        found = check_trace(
            trace, limit=limit or None, progress=progress and (lambda done: progress(done, 0))
        )
    print_out(as_json(found) if output == "json" else check_text(found, width=terminal_width()))
    return EXIT_CODES[found.verdict]


@app.command()
def races(
    trace: Annotated[
        Path, typer.Argument(help="An order trace: JSON lines, or zstd if its name ends in .zst.")
    ],
    limit: Annotated[
        int, typer.Option(min=0, help="Stop after this many different races; 0 goes on to the end.")
    ] = 0,
    explain: Annotated[
        int,
        typer.Option(
            min=0, metavar="N", help="Explain the first N races, each with a schedule that corrupts."
        ),
    ] = 0,
    output: FormatOption = "text",
) -> int:
    """Find accesses to the same memory that nothing orders, in a recorded trace of threads and streams."""
    from kvfence.checker.adapters.reference import execute
    from kvfence.checker.order.race_check import check_order_trace, explained
    from kvfence.checker.report.text.raced import races_text
    from kvfence.spec.files.traces import read_again

    if explain:
        read_again(trace, "kvfence races --explain")
    with count_progress("events") as progress:
        found = check_order_trace(
            trace, limit=limit or None, progress=progress and (lambda done: progress(done, 0))
        )
    if explain:
        found = explained(found, explain, execute)
    print_out(as_json(found) if output == "json" else races_text(found, width=terminal_width()))
    return EXIT_CODES[found.verdict]


@app.command()
def replay(
    workload: Annotated[
        Path, typer.Argument(metavar="TRACE", help="A production trace in Mooncake's format.")
    ],
    design: Annotated[str, typer.Option(help="The design to run; kvfence designs lists them.")] = SOUND,
    block_size: Annotated[int, typer.Option(help="Tokens of a block.")] = 16,
    gpu_blocks: Annotated[int, typer.Option(help="Slots of the GPU pool, the null block included.")] = 32768,
    cpu_blocks: Annotated[int, typer.Option(help="Slots of the CPU tier.")] = 131072,
    groups: Annotated[
        Literal["full", "full+sliding", "full+chunked", "full+recurrent", "full+sliding+chunked+recurrent"],
        typer.Option(help="KV-cache groups that share the GPU pool."),
    ] = "full",
    block_sizes: Annotated[
        str | None,
        typer.Option(metavar="N,N,...", help="Tokens of a block of each group, where they differ."),
    ] = None,
    window: Annotated[int, typer.Option(help="Tokens of a sliding window, or of a chunk.")] = 1024,
    zero_fill: Annotated[
        bool, typer.Option("--zero-fill", help="Fill new blocks with zeros before they are computed into.")
    ] = False,
    lazy: Annotated[
        bool, typer.Option("--lazy/--eager", help="Store blocks when they near eviction, or when computed.")
    ] = False,
    async_depth: Annotated[int, typer.Option(min=1, max=2, help="Model steps in flight.")] = 1,
    store_batch: Annotated[
        int, typer.Option(help="Full blocks that make an eager store worth its while.")
    ] = 8,
    ranks: Annotated[int, typer.Option(help="Workers that copy, each at its own pace.")] = 1,
    late_rank: Annotated[int, typer.Option(help="Steps by which the last rank reports late.")] = 0,
    refusing_ranks: Annotated[
        int, typer.Option(help="Ranks that cannot register all of their host memory.")
    ] = 0,
    tiers: Annotated[int, typer.Option(min=2, max=3, help="3: files behind the CPU's memory.")] = 2,
    disk_blocks: Annotated[int, typer.Option(help="Slots of the file tier.")] = 524288,
    lose_files: Annotated[float, typer.Option(help="Share of the files that get lost.")] = 0.0,
    token_budget: Annotated[int, typer.Option(help="Tokens computed in a step.")] = 8192,
    max_running: Annotated[int, typer.Option(help="Requests that run at a time.")] = 256,
    max_delay: Annotated[int, typer.Option(help="Half steps until a copy lands, at most.")] = 6,
    seed: Annotated[
        int, typer.Option(help="Of everything that is drawn: the order of copies, failures.")
    ] = 0,
    fail_rate: Annotated[
        float, typer.Option("--fail-loads", "--fail-rate", help="Share of the loads that fail, on each rank.")
    ] = 0.0,
    fail_stores: Annotated[
        bool, typer.Option("--fail-stores", help="Stores fail as often as loads do.")
    ] = False,
    on_failure: Annotated[
        Literal["recompute", "fail"], typer.Option(help="What a request whose load failed does.")
    ] = "recompute",
    abort_rate: Annotated[float, typer.Option(help="Share of the requests that are aborted.")] = 0.0,
    resend_rate: Annotated[
        float, typer.Option(help="Share of the requests that come a second time soon after.")
    ] = 0.0,
    repeat_rate: Annotated[
        float, typer.Option(help="Share of the workers' reports given again, late.")
    ] = 0.0,
    reset_every: Annotated[
        int, typer.Option(help="Steps between resets of the prefix caches; 0: never.")
    ] = 0,
    refuse_rate: Annotated[
        float, typer.Option(help="Share of the transfers that a rank cannot take part in.")
    ] = 0.0,
    publish: Annotated[
        bool, typer.Option("--publish", help="Publish what can be looked up in each pool.")
    ] = False,
    share_loads: Annotated[
        bool,
        typer.Option("--share-loads", help="Share blocks that a load is filling: who does waits for it."),
    ] = False,
    requests: Annotated[int | None, typer.Option(help="Only the first so many requests.")] = None,
    device: Annotated[
        Literal["virtual", "cuda"], typer.Option(help="Where blocks lie and move: simulated, or on a GPU.")
    ] = "virtual",
    judge: Annotated[
        bool, typer.Option("--assert/--no-assert", help="Judge every event; contents are compared anyway.")
    ] = True,
    record: Annotated[
        Path | None, typer.Option(help="Write a trace of the run; compressed if the name ends in .zst.")
    ] = None,
    record_order: Annotated[
        Path | None, typer.Option(help="Write an order trace of the run, for kvfence races.")
    ] = None,
    metrics: Annotated[
        Path | None, typer.Option(help="Write the run's metrics, as Prometheus reads them.")
    ] = None,
    output: FormatOption = "text",
) -> int:
    """Replay production requests through the reference implementation, every invariant asserted."""
    from kvfence.checker.adapters.reference import replay as run_replay
    from kvfence.checker.report.text.replayed import replayed_text
    from kvfence.spec.designs import DESIGNS

    if design not in DESIGNS:
        raise unknown("design", design, DESIGNS, "kvfence designs lists them")
    options = {
        "design": design,
        "block_size": block_size,
        "gpu_blocks": gpu_blocks,
        "cpu_blocks": cpu_blocks,
        "groups": groups,
        "block_sizes": parse_counts(block_sizes),
        "window": window,
        "zero_fill": zero_fill,
        "mode": "lazy" if lazy else "eager",
        "async_depth": async_depth,
        "store_batch": store_batch,
        "ranks": ranks,
        "late_rank": late_rank,
        "refusing_ranks": refusing_ranks,
        "tiers": tiers,
        "disk_blocks": disk_blocks,
        "lose_rate": lose_files,
        "token_budget": token_budget,
        "max_running": max_running,
        "max_delay": max_delay,
        "seed": seed,
        "fail_rate": fail_rate,
        "fail_stores": fail_stores,
        "on_failure": on_failure,
        "refuse_rate": refuse_rate,
        "publish": publish,
        "share_loads": share_loads,
        "abort_rate": abort_rate,
        "resend_rate": resend_rate,
        "repeat_rate": repeat_rate,
        "reset_every": reset_every,
        "limit": requests,
        "device": device,
    }
    with count_progress("requests finished") as progress:
        shown = (lambda done, _: progress(done, 0)) if progress else None
        found = run_replay(
            workload,
            options,
            expected=DESIGNS[design].breaks,
            judge=judge,
            record=record,
            record_order=record_order,
            metrics=metrics,
            progress=shown,
        )
    print_out(as_json(found) if output == "json" else replayed_text(found, width=terminal_width()))
    return EXIT_CODES[found.verdict]


app.command()(review)
app.add_typer(audit, name="audit")
app.command()(explain)
app.command()(explore)
app.command()(export)
app.command()(new)


def run(arguments: Sequence[str]) -> int:
    """Runs one command line and returns its exit code; every error becomes one line on stderr."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a locale may lack characters that reports use
    with interrupts.Watched(), failures.of_threads() as in_threads:
        try:
            code, line = _ended(list(arguments))
        except KeyboardInterrupt:  # between two instructions of its end
            code, line = INTERRUPTED, ""
        interrupts.over()
        if interrupts.pressed():
            told = f"interrupted: what was found until then is told (exit code {INTERRUPTED})"
            code, line = INTERRUPTED, told if code in EXIT_CODES.values() else interrupts.AT_ONCE
        elif in_threads and code in EXIT_CODES.values():
            code, line = FAILED, failures.told(in_threads[0], arguments)
        if (trouble := failures.of_output()) is not None:
            code, line = _untold(trouble, arguments, code)
    if line:
        print_err(line)
    return code


def _ended(arguments: list[str]) -> tuple[int, str]:
    """The exit code of a command, and what to say on stderr where it ended by an error."""
    try:
        interrupts.begin()
        if sys.flags.optimize > 1:
            raise CannotRun(
                "machines need their docstrings, which python -OO leaves out: start it with -O at most"
            )
        command = typer.main.get_command(app)
        # not by calling it: typer would take a closed pipe for exit code 1
        with command.make_context("kvfence", arguments) as context:
            return int(command.invoke(context) or 0), ""
    except typer.Exit as end:
        return end.exit_code, ""
    except typer.TyperException as error:
        text = error.format_message().replace("Value error, ", "").rstrip(".")
        return CANNOT_RUN, f"{text} (see kvfence --help)"
    except CannotRun as error:
        return CANNOT_RUN, str(error)
    except BaseException as error:  # SystemExit included: no code of anybody chooses the exit code
        interrupts.over()
        if interrupts.pressed():
            return INTERRUPTED, interrupts.AT_ONCE
        if (trouble := failures.of_output(error)) is not None:
            return _untold(trouble, arguments, FAILED)
        return _unforeseen(error, arguments)


def _unforeseen(error: BaseException, arguments: Sequence[str]) -> tuple[int, str]:
    from kvfence.spec.language import SpecError

    if isinstance(error, SpecError):
        return CANNOT_RUN, str(error)
    if isinstance(error, ModuleNotFoundError) and not (error.name or "kvfence").startswith("kvfence"):
        return CANNOT_RUN, str(missing(error.name))
    return FAILED, failures.told(error, arguments)


def _untold(trouble: OSError, arguments: Sequence[str], code: int) -> tuple[int, str]:
    """For output that could not be written: whoever reads may leave early, a full disk hides the verdict."""
    if trouble.errno == errno.EPIPE:
        return (code if code == INTERRUPTED else READER_LEFT), ""
    what = f"cannot write to standard output: {trouble.strerror}"
    return FAILED, failures.told(trouble, arguments, what)


def main() -> None:
    """The ``kvfence`` command, for those who start this module."""
    from kvfence.checker.cli.main import main as start

    start()


if __name__ == "__main__":
    main()
