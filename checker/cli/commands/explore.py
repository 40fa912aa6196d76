"""`kvfence explore`: a local page on which a machine is walked step by step."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Annotated

import typer

from kvfence.checker.core.terminal_text import print_out
from kvfence.checker.core.units import parse_sizes


def explore(
    machine: Annotated[str, typer.Argument(metavar="MACHINE", help="A machine, or FILE.py:MACHINE.")],
    design: Annotated[
        str | None, typer.Option(help="The design to begin with; for a file, FILE.py:BUILDER+FAULT.")
    ] = None,
    size: Annotated[
        list[str] | None,
        typer.Option(metavar="SORT=N", help="How many of a sort, e.g. Block=4; may be repeated."),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free one.")] = 0,
    browser: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in a browser.")] = True,
) -> int:
    """Walk a machine step by step on a page of this computer, until Ctrl-C."""
    import webbrowser

    from kvfence.checker.cli.explorer.server import ExplorerServer
    from kvfence.checker.cli.explorer.walk import explorer_of

    sizes = parse_sizes(size or [])
    server = ExplorerServer(explorer_of(machine, design, sizes), port)
    print_out(f"{server.url}\nOnly this computer can open it. Ctrl-C ends it.")
    sys.stdout.flush()
    if browser:
        webbrowser.open(server.url)
    with suppress(KeyboardInterrupt):
        server.serve()
    return 0
