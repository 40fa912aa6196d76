"""`kvfence review`: what a change of a design breaks, fixes, and otherwise changes."""

from __future__ import annotations

from typing import Annotated

import typer

from kvfence.checker.cli.shared import options as opt
from kvfence.checker.cli.shared.progress_line import machine_progress
from kvfence.checker.core.names import MOST_PAIRS, PROOF_SECONDS
from kvfence.checker.core.terminal_text import print_out
from kvfence.checker.core.units import parse_memory, parse_sizes
from kvfence.spec.errors import CannotRun
from kvfence.spec.files.outputs import check_outputs, files_of

_SIDE = "A design, FILE.py:MACHINE, or REV: and one of these."


@opt.with_help(
    {
        "base": _SIDE,
        "change": _SIDE,
        "machine": "Only this machine. Default: every machine that either side touches.",
        "memory": "The most memory that one search may use, e.g. 4GiB.",
        "pairs": "The most pairs of states to examine for new and lost behaviours.",
        "symmetry": "Count states that differ only in the names of elements as one state.",
        "prove": "Prove for any size the invariants that the change concerns and that hold.",
        "prove_seconds": "The most time that all proofs together may take.",
        "second_solver": "Decide the proofs again with another solver: cvc5.",
        "html": "Write one HTML page with pictures.",
        "markdown": "Write Markdown for a comment on a pull request.",
        "junit": "Write JUnit XML.",
        "sarif": "Write SARIF 2.1.0.",
        "json": "Write the whole review as JSON.",
        "github": "Print GitHub workflow commands that annotate the changed lines.",
    }
)
def review(
    base: str,
    change: str,
    machine: str | None = None,
    size: opt.Sizes = None,
    memory: str = opt.DEFAULT_MEMORY,
    threads: opt.Threads = None,
    pairs: opt.Count = MOST_PAIRS,
    symmetry: bool = True,
    prove: bool = True,
    prove_seconds: Annotated[float, typer.Option(min=0, metavar="SECONDS")] = PROOF_SECONDS,
    second_solver: str | None = None,
    html: opt.File = None,
    markdown: opt.File = None,
    junit: opt.File = None,
    sarif: opt.File = None,
    json: opt.File = None,
    github: Annotated[bool, typer.Option("--github")] = False,
    output: opt.Format = "text",
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
    outputs = {f"--{name}": path for name, path in files.items()}
    check_outputs(outputs, inputs=files_of(base) + files_of(change))
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
    opt.print_report(found, output, review_text)
    write(found, files)
    if github:
        from kvfence.checker.report.ci.annotations import github_annotations

        print_out(github_annotations(found))
    return EXIT_CODES[found.verdict]
