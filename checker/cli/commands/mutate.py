"""`kvfence mutate`: which invariant detects each small change of a machine."""

from __future__ import annotations

from typing import Annotated

import typer

from kvfence.checker.cli.shared.options import DEFAULT_MEMORY, Format, Sizes, print_report, with_help
from kvfence.checker.cli.shared.progress_line import count_progress
from kvfence.checker.core.exit_codes import EXIT_CODES
from kvfence.checker.core.units import parse_memory, parse_sizes


@with_help(
    {
        "machine": "Only this machine. Default: every machine.",
        "only": "Only mutants whose name matches, e.g. 'evict: *'.",
        "memory": "The most memory that one mutant may use, e.g. 4GiB.",
        "accepted": "Also list the surviving mutants that the machines accept.",
    }
)
def mutate(
    machine: str | None = None,
    only: Annotated[str | None, typer.Option(metavar="PATTERN")] = None,
    size: Sizes = None,
    memory: str = DEFAULT_MEMORY,
    accepted: Annotated[bool, typer.Option("--accepted")] = False,
    output: Format = "text",
) -> int:
    """Change the machines in small ways, and report which invariants detect each change."""
    from kvfence.checker.analysis.mutation.matrix import mutate as run_mutate
    from kvfence.checker.report.text.mutated import mutated_text, worst_of

    sizes, limit = parse_sizes(size or []), parse_memory(memory)
    with count_progress("mutants") as progress:
        found = run_mutate(machine, sizes=sizes, only=only, memory=limit, progress=progress)
    print_report(found, output, mutated_text, accepted=accepted)
    return EXIT_CODES[worst_of(found)]
