"""`kvfence export`: a machine in the languages of other tools."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from kvfence.checker.cli.shared.options import DESIGN_HELP, Sizes, with_help, write_folder
from kvfence.checker.core.names import SOUND
from kvfence.checker.core.terminal_text import print_out
from kvfence.checker.core.units import parse_sizes
from kvfence.spec.errors import unknown

if TYPE_CHECKING:
    from kvfence.spec.language import Machine

Language = Literal["tla", "promela", "mermaid"]


@with_help(
    {
        "machine": "A machine of kvfence verify.",
        "folder": "The folder to write to.",
        "language": "TLA+ for TLC, Promela for Spin, or Mermaid state diagrams.",
        "design": DESIGN_HELP,
    }
)
def export(
    machine: str,
    folder: Annotated[Path, typer.Argument(metavar="DIR")],
    language: Annotated[Language, typer.Option("--as")] = "tla",
    design: str = SOUND,
    size: Sizes = None,
) -> int:
    """Write a machine as TLA+ (with a configuration for TLC), Promela or Mermaid.

    Proofs are exported as SMT-LIB 2 by kvfence verify --engine smt --export.
    """
    from kvfence.spec.designs import DESIGNS
    from kvfence.spec.machines import MACHINES

    if machine not in MACHINES:
        raise unknown("machine", machine, MACHINES, f"there is {', '.join(MACHINES)}")
    if design not in DESIGNS:
        raise unknown("design", design, DESIGNS, "kvfence designs lists them")
    row = DESIGNS[design]
    built = MACHINES[machine](row.faults if machine in row.machines else frozenset())
    sizes = parse_sizes(size or [])
    for sort in sizes:
        if sort not in built.sorts:
            raise unknown("sort", sort, built.sorts, f"the sorts of {machine} are {', '.join(built.sorts)}")
    files = _files(built, language, {**{k: v for k, v in row.sizes.items() if k in built.sorts}, **sizes})
    write_folder(folder, files)
    print_out("\n".join(str(folder / name) for name in files))
    return 0


def _files(machine: Machine, language: Language, sizes: dict[str, int]) -> dict[str, str]:
    if language == "promela":
        from kvfence.checker.report.export.promela import promela

        return {f"{machine.name}.pml": promela(machine, sizes)}
    if language == "mermaid":
        from kvfence.checker.report.export.mermaid import labelled, moves, state_diagram

        found = moves(machine, sizes)
        return {
            f"{machine.name}_{f.name}.mmd": state_diagram(f, found[f.name]) + "\n" for f in labelled(machine)
        }
    from kvfence.checker.report.export.tla import module_name, tla

    module, configuration = tla(machine, sizes)
    name = module_name(machine)
    return {f"{name}.tla": module, f"{name}.cfg": configuration}
