"""Names that others chose do not command the terminal on which they are shown."""

import ast
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvfence.checker.cli import app as cli
from kvfence.checker.ledger.violation_text import event_text
from kvfence.checker.report.jsonreport import as_json
from kvfence.spec import events as ev
from kvfence.spec import order
from kvfence.spec.files.order_traces import OrderTraceWriter
from kvfence.spec.files.traces import TraceWriter
from kvfence.spec.files.visible import json_visible, visible, visible_line

CHECKER = Path(cli.__file__).parents[1]
NASTY = "a\x1b[31mb\x00c\x7fd\x9be\u202ef\u2066g\rh\x07"
PRINTERS = {"print", "typer.echo", "click.echo", "sys.stdout.write", "sys.stderr.write"}
COMMANDING = set(NASTY) - set("a[31mbcdefgh")


def test_what_commands_a_terminal_is_shown_as_an_escape() -> None:
    assert visible(NASTY) == r"a\x1b[31mb\x00c\x7fd\x9be\u202ef\u2066g\rh\x07"
    assert visible("two\nlines\tof é ≠ 😀") == "two\nlines\tof é ≠ 😀"
    assert visible("\ud800 and \udcff") == r"\ud800 and \xff"
    assert visible_line("two\nlines\t") == r"two\nlines\t"


@pytest.mark.parametrize("code", [*range(0xA0), 0x61C, *range(0x2028, 0x202F), *range(0x2066, 0x206A)])
def test_no_control_character_passes(code: int) -> None:
    text = visible_line(chr(code))
    assert text.isprintable()
    assert (text == chr(code)) == (0x20 <= code < 0x7F)


def test_json_keeps_its_value() -> None:
    text = json.dumps({"name": NASTY, "more": ["\u2029"]}, ensure_ascii=False)
    assert json.loads(json_visible(text)) == json.loads(text)
    assert not COMMANDING & set(json_visible(text))
    assert json.loads(as_json({"path": "\udcff" + NASTY})) == {"path": "\udcff" + NASTY}


def test_a_name_stays_within_its_line() -> None:
    """A request named like a verdict cannot write a line of the report."""
    assert "\n" not in event_text(ev.Alloc("gpu\nPIN holds", "req:1\n2.0", [1]))


def _trace(path: Path) -> Path:
    header = ev.Header(producer=NASTY, pools=(ev.Pool(NASTY, 4),))
    with TraceWriter(path, header) as record:
        for generation in (0, 1):
            record(ev.Alloc(NASTY, f"req:{NASTY}.{generation}", [1]))
    return path


def _order_trace(path: Path) -> Path:
    header = order.Header(producer=NASTY, threads=(0, 1), regions=(order.Region(1, 0, 64, "host"),))
    with OrderTraceWriter(path, header) as record:
        for thread in (0, 1):
            line = {"e": "host", "thread": thread, "writes": [[1, 0, 8]], "by": NASTY}
            record(msgspec.convert(line, order.OrderEvent))
    return path


MACHINE = """
from kvfence.spec.language import ForAll, Machine, Not
NASTY = {nasty!r}
def build(faults=frozenset()):
    m = Machine(NASTY, doc=NASTY, faults=faults)
    Block = m.sort("Block", default=1)
    m.relation("held", Block)

    @m.action(b=Block)
    def hold(s, b):
        NASTY
        s.require(Not(s.held[b]))
        s.held[b] = True

    @m.invariant("PIN")
    def never(s):
        return ForAll(Block, lambda b: Not(s.held[b]))

    return m
"""


@pytest.mark.parametrize(
    "command", ["check", "races", "explain", "explain race", "verify", "missing", "usage"]
)
@pytest.mark.parametrize("json_too", [False, True])
def test_no_command_lets_a_name_through(
    command: str, json_too: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nasty_name = "x\x1b]0;\u202e\x9b\x7f\udcff"
    bad_file = tmp_path / f"{nasty_name}.py"
    bad_file.write_text(MACHINE.format(nasty=NASTY))
    machine = f"{bad_file}:build"
    line: list[Any] = {
        "check": ["check", _trace],
        "races": ["races", _order_trace],
        "explain": ["explain", _trace],
        "explain race": ["explain", _order_trace],
        "verify": ["verify", "--engine", "explore", "--machine", machine],
        "review": ["review", machine, machine, "--no-prove"],
        "missing": ["check", str(tmp_path / f"no{nasty_name}")],
        "usage": [f"no{nasty_name}"],
    }[command]
    line = [str(part(tmp_path / nasty_name)) if callable(part) else part for part in line]
    more = ["--format", "json"] if json_too and line[0] in ("check", "races", "verify", "review") else []
    cli.run([*line, *more])
    printed = "".join(capsys.readouterr())
    assert printed
    assert not [c for c in printed if c != "\n" and not c.isprintable()]
    assert "\\x1b" in printed or "\\u001b" in printed


def test_everything_is_printed_by_one_function() -> None:
    """Any other way to print lets control characters through."""
    wrong = []
    for path in CHECKER.rglob("*.py"):
        if path.name == "terminal_text.py" or "skeleton" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in PRINTERS:
                wrong.append(f"{path.relative_to(CHECKER)}:{node.lineno}")
    assert not wrong


@pytest.mark.parametrize("command", ["check", "explain"])
def test_names_and_lists_of_any_length_make_no_report_that_nobody_can_read(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    traces = {
        1: [ev.Alloc("gpu", "x" * 2_000_000, [1]), ev.Alloc("gpu", "\x1b" * 2_000_000, [1])],
        2: [ev.Alloc("p" * 2_000_000, "req:1.0", [1])],
    }
    traces[3] = [ev.Alloc("gpu", "req:1.0", [1] * 300_000)]
    for number, events in traces.items():
        path = tmp_path / f"{number}.jsonl"
        with TraceWriter(path, ev.Header(producer="x", pools=(ev.Pool("gpu", 4, null=0),))) as record:
            for event in events:
                record(event)
        assert cli.run([command, str(path)]) == (2 if number == 2 else 1)
        out, err = capsys.readouterr()
        assert len(out + err) < 20_000
        if number != 3:
            assert "2,000,000 characters" in out or "characters ...]" in err
