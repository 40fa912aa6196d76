"""What a machine of one's own says of its steps may fail: the violation is told all the same."""

from pathlib import Path

import pytest
from command_line import CommandLine

FILE = """
from kvfence.spec.language import Machine

def build(faults=frozenset()):
    m = Machine("own")
    block = m.sort("Block")
    m.relation("used", block)
    {header}

    @m.action(b=block, event=lambda pre, post: {event})
    def take(s, b):
        s.require(~s.used[b])
        s.used[b] = True

    @m.action(b=block)
    def drop(s, b):
        s.require(s.used[b])
        s.used[b] = False

    @m.invariant("PIN")
    def never(s):
        return _none(s, block)

    return m

def _none(s, block):
    from kvfence.spec.language import ForAll
    return ForAll(block, lambda b: ~s.used[b])
"""
FAILING = {
    "a misspelt field": ("pass", "[post.usde[0]]", "has no field usde; did you mean used"),
    "a whole relation as a truth value": ("pass", "[1] if post.used else []", "used is a whole function"),
    "in": ("pass", "[1] if 0 in post.used else []", "in does not work on used; read the value"),
    "a misspelt sort": ("m.header(lambda sizes: sizes.get('Blokc', 0))", "[]", "no size of 'Blokc'"),
}


@pytest.mark.parametrize("case", FAILING)
def test_a_violation_is_printed_without_its_events(case: str, tmp_path: Path, kvfence: CommandLine) -> None:
    header, event, why = FAILING[case]
    path = tmp_path / "own.py"
    path.write_text(FILE.format(header=header, event=event), encoding="utf-8")
    asked = ("verify", "--machine", str(path), "--engine", "interpret")
    text = kvfence.prints(1, *asked)
    assert "1. take(b=0)" in text
    assert "Cannot be written as a trace:" in text
    assert why in text
    (example,) = kvfence.json(1, *asked)["counterexamples"]
    assert why in example["untold"]
    assert example["header"] is None
