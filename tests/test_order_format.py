"""The page on order traces says what the code reads."""

import subprocess
import sys
import typing
from pathlib import Path

import msgspec

from kvfence.spec import order

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "order-format.md").read_text(encoding="utf-8")
EVENTS: tuple[type[msgspec.Struct], ...] = typing.get_args(order.OrderEvent)


def test_the_page_is_what_its_generator_prints() -> None:
    generator = ROOT / "docs" / "generate_order_format.py"
    printed = subprocess.run([sys.executable, generator], capture_output=True, text=True, check=True).stdout
    assert printed == PAGE, "run: .venv/bin/python docs/generate_order_format.py > docs/order-format.md"


def test_every_event_and_every_field_is_listed() -> None:
    sections = {part.split("\n", 1)[0].strip("` "): part for part in PAGE.split("\n### ")}
    for struct in (order.Header, order.Stream, order.Region, order.Stack, *EVENTS):
        section = sections[str(struct.__struct_config__.tag or struct.__name__)]
        for field in msgspec.structs.fields(struct):
            assert f"| `{field.encode_name}` |" in section


def test_each_event_class_is_part_of_the_format() -> None:
    declared = {
        value
        for value in vars(order).values()
        if isinstance(value, type) and issubclass(value, order._Event) and not value.__name__.startswith("_")
    }
    assert declared == set(EVENTS)


def test_the_example_decodes() -> None:
    header, *lines = PAGE.split("```\n")[1].splitlines()
    assert msgspec.json.decode(header, type=order.Header).version == order.VERSION
    assert [msgspec.json.decode(line, type=order.OrderEvent) for line in lines]
