"""The page on the trace format says what the code reads."""

import subprocess
import sys
import typing
from pathlib import Path

import msgspec

from kvfence.spec import events

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "trace-format.md").read_text(encoding="utf-8")
EVENTS: tuple[type[msgspec.Struct], ...] = typing.get_args(events.Event)
PACKED_EXAMPLE = '{"e":"evict","pool":"gpu","slots":"AQAAAAIBAAA="}'


def test_the_page_is_what_its_generator_prints() -> None:
    generator = ROOT / "docs" / "generate_trace_format.py"
    printed = subprocess.run([sys.executable, generator], capture_output=True, text=True, check=True).stdout
    assert printed == PAGE, "run: .venv/bin/python docs/generate_trace_format.py > docs/trace-format.md"


def test_every_event_and_every_field_is_listed() -> None:
    sections = {part.split("\n", 1)[0].strip("` "): part for part in PAGE.split("\n### ")}
    for struct in (events.Header, events.Pool, events.Group, *EVENTS):
        section = sections[str(struct.__struct_config__.tag or struct.__name__)]
        for field in msgspec.structs.fields(struct):
            assert f"| `{field.encode_name}` |" in section


def test_each_event_class_is_part_of_the_format() -> None:
    declared = {
        value
        for value in vars(events).values()
        if isinstance(value, type) and issubclass(value, events._Event) and not value.__name__.startswith("_")
    }
    assert declared == set(EVENTS)


def test_the_example_decodes() -> None:
    header, *lines = PAGE.split("```\n")[1].splitlines()
    assert msgspec.json.decode(header, type=events.Header).version == events.VERSION
    assert [msgspec.json.decode(line, type=events.Event) for line in lines]


def test_packed_numbers_are_what_the_page_says() -> None:
    both = [events.Evict("gpu", [1, 258]), msgspec.json.decode(PACKED_EXAMPLE, type=events.Event)]
    assert PACKED_EXAMPLE.split('"slots":')[1].strip("}") in PAGE
    assert [events.listed(event) for event in both] == both[:1] * 2
