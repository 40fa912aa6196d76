"""`kvfence explore`: a local web page on which a person steps through a machine."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Annotated

import typer

from kvfence.checker.cli.shared.options import Sizes, with_help
from kvfence.checker.core.terminal_text import print_out
from kvfence.checker.core.units import parse_sizes


@with_help(
    {
        "machine": "A machine, or FILE.py:MACHINE.",
        "design": "The first design on the page; for a file, FILE.py:BUILDER+FAULT.",
        "port": "The port of the page. 0: any free port.",
        "browser": "Open the page in a browser.",
    }
)
def explore(
    machine: Annotated[str, typer.Argument(metavar="MACHINE")],
    design: str | None = None,
    size: Sizes = None,
    port: Annotated[int, typer.Option(min=0, max=65535)] = 0,
    browser: Annotated[bool, typer.Option("--open/--no-open")] = True,
) -> int:
    """Step through a machine on a local web page, until Ctrl-C."""
    import webbrowser

    from kvfence.checker.cli.explorer.server import ExplorerServer
    from kvfence.checker.cli.explorer.walk import explorer_of

    sizes = parse_sizes(size or [])
    server = ExplorerServer(explorer_of(machine, design, sizes), port)
    print_out(f"{server.url}\nOnly this computer can open the page. Press Ctrl-C to stop.")
    sys.stdout.flush()
    if browser:
        webbrowser.open(server.url)
    with suppress(KeyboardInterrupt):
        server.serve()
    return 0
