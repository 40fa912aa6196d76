"""Prints docs/order-format.md from spec/order.py.

``.venv/bin/python docs/generate_order_format.py > docs/order-format.md``
"""

import inspect
import re
import typing

import msgspec
from generate_trace_format import plain, section

from kvfence.spec import order
from kvfence.spec.files.packing import LONGEST_HEADER, LONGEST_LINE

INTRODUCTION = """\
# The format of order traces

<!-- Written by docs/generate_order_format.py from spec/order.py; edit that file instead. -->

An order trace tells which thread started what on which stream of a device, which memory it touches, and what
waits for what: `kvfence races TRACE` finds accesses that nothing orders. `kvfence replay --record-order FILE`
writes one; so can any connector. It is a text file of JSON lines in UTF-8, compressed with zstd if its name
ends in `.zst`: a sequence of frames, each with a checksum. A line may have {event} MiB, the header
{header} MiB. Fields with a default may be left out. A reader refuses fields and events that it does not know,
and other versions.

This is version {version}.
"""

EXAMPLE: list[msgspec.Struct] = [
    order.Header(
        producer="example",
        streams=(order.Stream(0, name="compute"), order.Stream(1, name="copy")),
        regions=(
            order.Region(0, 0, 8192, name="gpu", slot=1024),
            order.Region(1, 1 << 40, 8192, "pinned", name="cpu", slot=1024),
        ),
    ),
    order.Kernel(0, 0, [], [(0, 1024, 1024)], "attention", "req:7.0"),
    order.Record(0, 0, 5),
    order.Wait(0, 1, 5),
    order.Copy(0, 1, [(0, 1024, 1024)], [(1, 0, 1024)], "stream", "store", "op:3.0"),
]


def lists() -> list[str]:
    """The lists of the module's docstring, each under its heading."""
    lines = []
    for paragraph in inspect.cleandoc(order.__doc__ or "").split("\n\n")[2:]:
        items = paragraph.split("\n* ")
        if not paragraph.startswith("* "):
            lines += [f"## {paragraph.rstrip(':')}", ""]
            continue
        lines += [f"* {plain(item.removeprefix('* '))}" for item in items]
        lines.append("")
    return lines


def main() -> None:
    """Prints the page."""
    introduction = INTRODUCTION.format(
        version=order.VERSION, event=LONGEST_LINE >> 20, header=LONGEST_HEADER >> 20
    )
    lines = [introduction, *lists(), "## Header", ""]
    for struct in (order.Header, order.Stream, order.Region, order.Stack):
        lines += section(struct)
    lines += ["## Events", "", "A range is a list of three integers: region, offset in it, bytes.", ""]
    for struct in typing.get_args(order.OrderEvent):
        lines += section(struct)
    example = "\n".join(msgspec.json.encode(item).decode() for item in EXAMPLE)
    lines += [f"## Example\n\nA store that waits for the compute:\n\n```\n{example}\n```"]
    print(re.sub(r"\n{3,}", "\n\n", "\n".join(lines)))


if __name__ == "__main__":
    main()
