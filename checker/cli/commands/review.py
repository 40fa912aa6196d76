"""`kvfence review`: what a change of a design breaks, what it fixes, and what else it changes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from kvfence.checker.cli.commands.progress_line import machine_progress
from kvfence.checker.core.names import MOST_PAIRS, PROOF_SECONDS
from kvfence.checker.core.terminal_text import print_out
from kvfence.checker.core.text_tables import terminal_width
from kvfence.checker.core.units import parse_memory, parse_sizes
from kvfence.checker.report.jsonreport import as_json
from kvfence.spec.errors import CannotRun
from kvfence.spec.files.outputs import check_outputs, files_of

_SIDE = "A design, FILE.py:MACHINE, or REV: and one of these."


def review(
    base: Annotated[str, typer.Argument(help=_SIDE)],
    change: Annotated[str, typer.Argument(help=_SIDE)],
    machine: Annotated[
        str | None, typer.Option(help="Only this machine; all that the two sides touch else.")
    ] = None,
    size: Annotated[
        list[str] | None,
        typer.Option(metavar="SORT=N", help="How many of a sort, e.g. Block=4; may be repeated."),
    ] = None,
    memory: Annotated[str, typer.Option(help="The most memory one search may take, e.g. 2GiB.")] = "2GiB",
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads of a search. Default: one for each core.")
    ] = None,
    pairs: Annotated[
        int, typer.Option(min=0, help="Pairs of states to look at for new and lost behaviours, at most.")
    ] = MOST_PAIRS,
    symmetry: Annotated[
        bool, typer.Option("--symmetry/--no-symmetry", help="Count states that differ in names only once.")
    ] = True,
    prove: Annotated[
        bool,
        typer.Option(
            "--prove/--no-prove", help="Prove for any size what the change concerns, where it holds."
        ),
    ] = True,
    prove_seconds: Annotated[
        float, typer.Option(min=0, metavar="N", help="The most time that all proofs may take.")
    ] = PROOF_SECONDS,
    second_solver: Annotated[
        str | None, typer.Option(help="Decide the proofs again by another solver: cvc5.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write one HTML page, with pictures.")
    ] = None,
    markdown: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write Markdown for a pull-request comment.")
    ] = None,
    junit: Annotated[Path | None, typer.Option(metavar="FILE", help="Write JUnit XML.")] = None,
    sarif: Annotated[Path | None, typer.Option(metavar="FILE", help="Write SARIF 2.1.0.")] = None,
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Write everything as JSON.")] = None,
    github: Annotated[
        bool,
        typer.Option("--github", help="Print GitHub workflow commands, which annotate the lines changed."),
    ] = False,
    output: Annotated[Literal["text", "json"], typer.Option("--format", help="How to print.")] = "text",
) -> int:
    """Compare two designs: what the change breaks and what it fixes, each with a shortest story.

    Exit code 1 when something got worse, 0 when nothing did, 2 for bad input, 3 when it is undetermined.
    """
    from kvfence.checker.analysis.review.compare import review as run_review
    from kvfence.checker.analysis.review.proofs import Proving
    from kvfence.checker.core.processes import cores
    from kvfence.checker.report.html.write_reports import write
    from kvfence.checker.report.text.reviewed import EXIT_CODES, review_text

    if second_solver is not None and not prove:
        raise CannotRun("--no-prove leaves nothing for --second-solver to decide: leave out one of them")
    check_outputs(
        {"--html": html, "--markdown": markdown, "--junit": junit, "--sarif": sarif, "--json": json},
        inputs=files_of(base) + files_of(change),
    )
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
    print_out(as_json(found) if output == "json" else review_text(found, width=terminal_width()))
    write(found, html=html, markdown=markdown, junit=junit, sarif=sarif, json=json)
    if github:
        from kvfence.checker.report.ci.annotations import github_annotations

        print_out(github_annotations(found))
    return EXIT_CODES[found.verdict]
