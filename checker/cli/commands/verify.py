"""`kvfence verify`: checks the machines of the specification."""

from __future__ import annotations

import os
from typing import Annotated, Literal

import typer

from kvfence.checker.cli.shared import options as opt
from kvfence.checker.cli.shared.progress_line import machine_progress
from kvfence.checker.core.exit_codes import EXIT_CODES
from kvfence.checker.core.names import ENGINES, SOUND
from kvfence.checker.core.terminal_text import print_err
from kvfence.checker.core.units import parse_memory, parse_sizes
from kvfence.spec.files.outputs import check_outputs, files_of

Positive = Annotated[int | None, typer.Option(min=1)]


@opt.with_help(
    {
        "machine": "Only this machine. Default: every machine that the design touches.",
        "design": opt.DESIGN_HELP,
        "engine": f"One of {', '.join(ENGINES)}. "
        f"Default: {ENGINES[0]}; interpret where values exceed 64 bits.",
        "memory": f"The most memory that one machine may use, e.g. 4GiB. Default: {opt.DEFAULT_MEMORY}; "
        "with engine gpu, the memory of the GPU.",
        "until": "Stop at the first violation, or explore to the end. "
        "Default: first for a faulty design, end for a sound one.",
        "symmetry": "Count states that differ only in the names of elements as one state.",
        "checkpoint": "Save the search to this folder as it runs, and resume from there.",
        "export": "Write the proofs of engine smt as SMT-LIB 2 files.",
        "second_solver": "Decide the proofs of engine smt again with another solver: cvc5.",
        "infer_lemmas": "Let engine smt search for lemmas that the proofs lack.",
        "walks": "Random walks of engine swarm. Default: 1048576.",
        "steps": "Steps of each walk of engine swarm. Default: 1000.",
        "seed": "The random seed of the walks of engine swarm. Default: 0.",
        "record": "Write the first counterexample as a trace.",
    }
)
def verify(
    machine: Annotated[str | None, typer.Option(metavar="NAME|FILE.py:MACHINE")] = None,
    design: str = SOUND,
    size: opt.Sizes = None,
    engine: str | None = None,
    memory: str | None = None,
    until: Literal["first", "end"] | None = None,
    threads: opt.Threads = None,
    symmetry: Annotated[bool, typer.Option("--symmetry")] = False,
    checkpoint: opt.Folder = None,
    export: opt.Folder = None,
    second_solver: str | None = None,
    infer_lemmas: Annotated[bool, typer.Option("--infer-lemmas")] = False,
    walks: Positive = None,
    steps: Positive = None,
    seed: Annotated[int | None, typer.Option(min=0)] = None,
    record: opt.File = None,
    output: opt.Format = "text",
) -> int:
    """Check the machines of the specification: every state that they can reach at the given sizes.

    Engine smt proves the invariants for sorts of any size instead.
    """
    from kvfence.checker.analysis.verify import record as record_counterexample
    from kvfence.checker.analysis.verify import verify as run_verify
    from kvfence.checker.core.processes import cores
    from kvfence.checker.report.text.verdicts import verification_text

    files = files_of(machine)
    check_outputs({"--record": record}, inputs=files)
    sizes = parse_sizes(size or [])
    limit = None if memory is None and engine == "gpu" else parse_memory(memory or opt.DEFAULT_MEMORY)
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
    opt.print_report(found, output, verification_text)
    if record is not None and not record_counterexample(found, record, files):
        print_err(f"{record}: not written, because no counterexample consists of events")
    return EXIT_CODES[found.verdict]
