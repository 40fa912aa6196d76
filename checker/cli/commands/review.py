"""`kvfence review`: what a change of a design breaks, fixes, and otherwise changes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvfence.checker.cli.shared.options import DEFAULT_MEMORY, Format, Sizes, Threads, print_report
from kvfence.checker.cli.shared.progress_line import machine_progress
from kvfence.checker.core.names import MOST_PAIRS, PROOF_SECONDS
from kvfence.checker.core.terminal_text import print_out
from kvfence.checker.core.units import parse_memory, parse_sizes
from kvfence.spec.errors import CannotRun
from kvfence.spec.files.outputs import check_outputs, files_of

_SIDE = "A design, FILE.py:MACHINE, or REV: and one of these."


def review(
    base: Annotated[str, typer.Argument(help=_SIDE)],
    change: Annotated[str, typer.Argument(help=_SIDE)],
    machine: Annotated[
        str | None, typer.Option(help="Only this machine. Default: every machine that either side touches.")
    ] = None,
    size: Sizes = None,
    memory: Annotated[
        str, typer.Option(help="The most memory that one search may use, e.g. 4GiB.")
    ] = DEFAULT_MEMORY,
    threads: Threads = None,
    pairs: Annotated[
        int, typer.Option(min=0, help="The most pairs of states to examine for new and lost behaviours.")
    ] = MOST_PAIRS,
    symmetry: Annotated[
        bool,
        typer.Option(
            "--symmetry/--no-symmetry",
            help="Count states that differ only in the names of elements as one state.",
        ),
    ] = True,
    prove: Annotated[
        bool,
        typer.Option(
            "--prove/--no-prove",
            help="Prove for any size the invariants that the change concerns and that hold.",
        ),
    ] = True,
    prove_seconds: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="The most time that all proofs together may take.")
    ] = PROOF_SECONDS,
    second_solver: Annotated[
        str | None, typer.Option(help="Decide the proofs again with another solver: cvc5.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write one HTML page with pictures.")
    ] = None,
    markdown: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write Markdown for a comment on a pull request.")
    ] = None,
    junit: Annotated[Path | None, typer.Option(metavar="FILE", help="Write JUnit XML.")] = None,
    sarif: Annotated[Path | None, typer.Option(metavar="FILE", help="Write SARIF 2.1.0.")] = None,
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the whole review as JSON.")] = None,
    github: Annotated[
        bool,
        typer.Option("--github", help="Print GitHub workflow commands that annotate the changed lines."),
    ] = False,
    output: Format = "text",
) -> int:
    """Compare two designs: what the change breaks and what it fixes, each with a shortest counterexample.

    Exit code 1 if something got worse, 0 if nothing did, 2 for bad input, 3 if the review is undetermined.
    """
    from kvfence.checker.analysis.review.compare import review as run_review
    from kvfence.checker.analysis.review.proofs import Proving
    from kvfence.checker.core.processes import cores
    from kvfence.checker.report.html.write_reports import write
    from kvfence.checker.report.text.reviewed import EXIT_CODES, review_text

    if second_solver is not None and not prove:
        raise CannotRun("--no-prove leaves nothing for --second-solver to decide: leave out one of them")
    files = {"html": html, "markdown": markdown, "junit": junit, "sarif": sarif, "json": json}
    options = {f"--{name}": path for name, path in files.items()}
    check_outputs(options, inputs=files_of(base) + files_of(change))
    sizes, limit = parse_sizes(size or []), parse_memory(memory)
    with machine_progress() as progress:
        found = run_review(
            base,
            change,
            machine=machine,
            sizes=sizes,
            memory=limit,
            threads=threads or cores(),
            pairs=pairs,
            symmetry=symmetry,
            proving=Proving(prove_seconds, second_solver) if prove else None,
            progress=progress,
        )
    print_report(found, output, review_text)
    write(found, files)
    if github:
        from kvfence.checker.report.ci.annotations import github_annotations

        print_out(github_annotations(found))
    return EXIT_CODES[found.verdict]
