"""Prints docs/trace-format.md from spec/events.py.

``.venv/bin/python docs/generate_trace_format.py > docs/trace-format.md``
"""

import ast
import inspect
import itertools
import re
import typing

import msgspec
import trace_examples

from kvfence.spec import catalog, events, snapshot
from kvfence.spec.files.packing import LONGEST_HEADER, LONGEST_LINE

INTRODUCTION = """\
# The trace format

<!-- Written by docs/generate_trace_format.py from spec/events.py; edit that file instead. -->

A trace tells what a connector did, so that it can be judged afterwards, elsewhere, by somebody else:
`kvfence check TRACE`. `kvfence replay --record FILE` writes one; so can any connector.

This is version {version}. A trace is a text file of JSON lines, encoded in UTF-8; a file whose name ends
in `.zst` is compressed with zstd. The first line is the header. Each further line is one event, an object
whose field `e` names it, in the order in which the connector's scheduler side saw them. Fields with a default
may be left out. A reader refuses fields and events that it does not know. Readers of this version read
versions {oldest} to {version}.

A field whose type is "integers" is a list of integers or, better when it is long, a string: the base64 of
little-endian unsigned integers, of 8 bytes each for `keys` and of 4 bytes each for all others. `[1,258]` is
the same as `"AQAAAAIBAAA="`. Readers accept both.

A compressed file is a sequence of zstd frames, each with a checksum and without a dictionary. A line may have
{event} MiB, the header {header} MiB.

A trace holds no tokens and no text, only content keys.
"""

EXAMPLE = """\
## Example

A request computes one block, which is stored and outlives the request:

```
{example}
```
"""

GLOSSARY = "## Names used in the fields"

BROKEN = """\
## What breaks each invariant

For each invariant a trace that `kvfence check` accepts, and a line that violates it when it stands in place
of the last one.

"""


def plain(docstring: str | None) -> str:
    """A docstring as one line of Markdown; an event is called by its tag."""

    def called(match: re.Match[str]) -> str:
        event = getattr(events, match[1], None)
        return f"`{tag(event) if event else match[1]}`"

    text = re.sub(r":\w+:`(\w+)`", called, docstring or "")
    return " ".join(inspect.cleandoc(text.replace("``", "`")).split())


def tag(event: type[msgspec.Struct]) -> str:
    """The name of an event in a trace; of another struct, the name of its class."""
    return str(event.__struct_config__.tag or event.__name__)


def type_name(annotation: object) -> str:
    """A field's type as JSON users call it."""
    names = {int: "integer", str: "string", bool: "true or false", type(None): "null"}
    if annotation in names:
        return names[annotation]
    if annotation == events.Numbers:
        return "integers"
    arguments = typing.get_args(annotation)
    if typing.get_origin(annotation) is typing.Literal:
        return " or ".join(f'`"{value}"`' for value in arguments)
    if typing.get_origin(annotation) is dict:
        return "object of strings"
    if arguments and annotation.__class__.__module__ == "types" and type(None) in arguments:
        return " or ".join(type_name(argument) for argument in arguments)
    if arguments:
        return f"list of {type_name(arguments[0])}"
    return f"[{annotation.__name__}](#{annotation.__name__.lower()})" if isinstance(annotation, type) else "?"


def notes(struct: type[msgspec.Struct]) -> list[str]:
    """The strings that follow single fields in the source, one list item each."""
    body = ast.parse(inspect.getsource(struct)).body[0].body  # type: ignore[attr-defined]
    return [
        f"* `{ast.unparse(field.target)}`: {plain(ast.literal_eval(note.value))}"
        for field, note in itertools.pairwise(body)
        if isinstance(field, ast.AnnAssign) and isinstance(note, ast.Expr)
    ]


def fields(struct: type[msgspec.Struct]) -> list[str]:
    """The table of a struct's fields, with their types and defaults."""
    if not struct.__struct_fields__:
        return ["No fields."]
    rows = ["| field | type | default |", "|---|---|---|"]
    hints = typing.get_type_hints(struct)
    for field in msgspec.structs.fields(struct):
        default = "required"
        if field.default is not msgspec.NODEFAULT:
            default = f"`{msgspec.json.encode(field.default).decode()}`"
        elif field.default_factory is not msgspec.NODEFAULT:
            default = f"`{msgspec.json.encode(field.default_factory()).decode()}`"
        rows.append(f"| `{field.encode_name}` | {type_name(hints[field.name])} | {default} |")
    return rows


def section(struct: type[msgspec.Struct]) -> list[str]:
    """What a line or a part of one is, and its fields."""
    title = f"`{tag(struct)}`" if struct.__struct_config__.tag else struct.__name__
    return [f"### {title}", "", plain(struct.__doc__), "", *notes(struct), "", *fields(struct), ""]


def glossary() -> list[str]:
    """The list of names in the module's docstring, one item a line."""
    listed = inspect.cleandoc(events.__doc__ or "").split("\n\n* ", maxsplit=1)[1]
    return [f"* {plain(item)}" for item in listed.split("\n* ")]


def line_of(line: msgspec.Struct) -> str:
    """A header or an event as JSON, without the fields of the header that say nothing."""
    return re.sub(r',"\w+":(null|\{\})', "", msgspec.json.encode(line).decode())


def example() -> str:
    """The trace of a request whose one block is stored."""
    lines: list[msgspec.Struct] = [
        events.Header(
            producer="example",
            pools=(events.Pool("gpu", 8, null=0), events.Pool("cpu", 8)),
            groups=(events.Group("gpu", 16),),
        ),
        events.Submit("7", 0, 16),
        events.Admit("7", 0, local=0, external=0, compute=16, total=16),
        events.Alloc("gpu", "req:7.0", [1], free=6),
        events.Dispatch(1, ["7"], [16]),
        events.Process(1),
        events.Label("gpu", [1], [4242]),
        events.Touch("gpu", "op:0.0", [1]),
        events.Alloc("cpu", "op:0.0", [0], free=7),
        events.Queue(0, 0, "store", "gpu", [1], "cpu", [0], [4242], req="7", at=[0]),
        events.Issue(0, 0),
        events.Finish("7", 0, "stop", 16),
        events.Free("gpu", "req:7.0", [1]),
        events.Retire("7", 0),
        events.Report(0, 0, rank=0),
        events.Complete(0, 0),
        events.Label("cpu", [0], [4242], op=0),
        events.Free("gpu", "op:0.0", [1]),
        events.Free("cpu", "op:0.0", [0]),
        events.Quiesce(),
    ]
    return "\n".join(line_of(line) for line in lines)


def broken() -> str:
    """One example for each invariant."""
    parts = [BROKEN]
    for row in catalog.INVARIANTS:
        one = next(example for example in trace_examples.EXAMPLES if example.invariant == row.id)
        lines = [line_of(line) for line in (one.header, *one.events)]
        wrong = line_of(one.wrong)
        text = f"{one.text}\n\n```\n{chr(10).join(lines)}\n```\n\nThis breaks it:\n\n```\n{wrong}\n```\n\n"
        parts.append(f"### {row.id}: {row.title}\n\n{text}")
    return "".join(parts).rstrip() + "\n"


SNAPSHOT = (
    snapshot.Snapshot,
    snapshot.KnownPool,
    snapshot.KnownHolder,
    snapshot.KnownRequest,
    snapshot.KnownPromise,
    snapshot.KnownCover,
    snapshot.KnownTransfer,
    snapshot.KnownEnd,
    snapshot.KnownStep,
    snapshot.Rarer,
    snapshot.KnownVotes,
    snapshot.KnownQuestion,
    snapshot.KnownHostMemory,
    snapshot.Slots,
    snapshot.Tags,
)


def middle() -> list[str]:
    """The header of a trace that begins in the middle of a run."""
    first, _, rest = inspect.cleandoc(snapshot.__doc__ or "").partition("\n\n")
    parts = ["## A trace from the middle of a run", "", plain(f"{first}\n\n{rest}"), ""]
    for struct in SNAPSHOT:
        parts += section(struct)
    return parts


def document() -> str:
    """The whole page."""
    introduction = INTRODUCTION.format(
        version=events.VERSION, oldest=events.OLDEST, event=LONGEST_LINE >> 20, header=LONGEST_HEADER >> 20
    )
    parts = [introduction, GLOSSARY, "", *glossary(), "", "## The header", ""]
    for struct in (events.Header, events.Pool, events.Group):
        parts += section(struct)
    parts += ["## Events", ""]
    for event in typing.get_args(events.Event):
        parts += section(event)
    parts += middle()
    page = "\n".join([*parts, EXAMPLE.format(example=example()), broken()])
    return re.sub(r"\n{3,}", "\n\n", page)


if __name__ == "__main__":
    print(document(), end="")
