"""The pages on the trace format and on order traces say what the code reads."""

import typing
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from kvfence.spec import events, order

DOCS = Path(__file__).parents[1] / "docs"
PAGES: dict[ModuleType, str] = {events: "trace-format", order: "order-format"}
UNION = {events: events.Event, order: order.OrderEvent}
PARTS = {
    events: (events.Header, events.Pool, events.Group),
    order: (order.Header, order.Stream, order.Region, order.Stack),
}
PACKED_EXAMPLE = '{"e":"evict","pool":"gpu","slots":"AQAAAAIBAAA="}'
each_format = pytest.mark.parametrize("form", PAGES, ids=PAGES.values())


def page_of(form: ModuleType) -> str:
    return (DOCS / f"{PAGES[form]}.md").read_text(encoding="utf-8")


def events_of(form: ModuleType) -> tuple[type[msgspec.Struct], ...]:
    return typing.get_args(UNION[form])


@each_format
def test_every_event_and_every_field_is_listed(form: ModuleType) -> None:
    sections = {part.split("\n", 1)[0].strip("` "): part for part in page_of(form).split("\n### ")}
    for struct in (*PARTS[form], *events_of(form)):
        section = sections[str(struct.__struct_config__.tag or struct.__name__)]
        for field in msgspec.structs.fields(struct):
            assert f"| `{field.encode_name}` |" in section


@each_format
def test_each_event_class_is_part_of_the_format(form: ModuleType) -> None:
    declared = {
        value
        for value in vars(form).values()
        if isinstance(value, type) and issubclass(value, form._Event) and not value.__name__.startswith("_")
    }
    assert declared == set(events_of(form))


@each_format
def test_the_example_decodes(form: ModuleType) -> None:
    header, *lines = page_of(form).split("```\n")[1].splitlines()
    assert msgspec.json.decode(header, type=form.Header).version == form.VERSION
    assert [msgspec.json.decode(line, type=UNION[form]) for line in lines]


def test_packed_numbers_are_what_the_page_says() -> None:
    both = [events.Evict("gpu", [1, 258]), msgspec.json.decode(PACKED_EXAMPLE, type=events.Event)]
    assert PACKED_EXAMPLE.split('"slots":')[1].strip("}") in page_of(events)
    assert [events.listed(event) for event in both] == both[:1] * 2
