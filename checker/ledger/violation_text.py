"""A violation as text: the condition, its values, the slots involved and their last events."""

from __future__ import annotations

from collections.abc import Collection
from itertools import islice

import msgspec

from kvfence.checker.core.text_tables import paragraph
from kvfence.checker.ledger.state.violation import Violation
from kvfence.spec.files.visible import shortened, visible_line

LONGEST_LIST = 12


def violation_text(violation: Violation, *, width: int) -> str:
    """Everything that the violation knows, in a few lines."""
    where = f"{violation.invariant} is violated by event {violation.number}"
    head = f"{where}: it is not true that {violation.condition}."
    lines = [
        paragraph(head, width=width),
        paragraph(f"event: {event_text(violation.event)}", width=width, indent="    ", hanging=" " * 11),
    ]
    if violation.values:
        values = ", ".join(f"{name} = {value_text(value)}" for name, value in violation.values.items())
        lines.append(paragraph(f"values: {values}", width=width, indent="    ", hanging=" " * 12))
    for slot in dict.fromkeys((*violation.holders, *violation.history)):
        holders = holders_text(violation.holders.get(slot, ()))
        lines.append(f"    slot {slot} of {violation.pool}, held by {holders}; its last events:")
        lines += [
            paragraph(f"{number}: {event_text(event)}", width=width, indent=" " * 8, hanging=" " * 12)
            for number, event in violation.history.get(slot, ())
        ]
    return "\n".join(lines)


def event_text(event: msgspec.Struct) -> str:
    """An event in one line: its name and its fields, without those that have their default value."""
    shown = [
        f"{field.name}={value_text(value)}"
        for field in msgspec.structs.fields(event)
        if (value := getattr(event, field.name)) != field.default
    ]
    return " ".join((str(event.__struct_config__.tag), *shown))


def value_text(value: object) -> str:
    """A value in one line; a long list ends with how many more there are."""
    if isinstance(value, list | tuple | set | frozenset):
        return f"[{_first(value)}]"
    return visible_line(shortened(str(value)))


def holders_text(holders: Collection[str]) -> str:
    """Who holds a slot, in one line; a long list ends with how many more there are."""
    return _first(holders) or "nobody"


def _first(values: Collection[object]) -> str:
    items = [visible_line(shortened(str(value))) for value in islice(values, LONGEST_LIST)]
    more = len(values) - LONGEST_LIST
    return ", ".join(items) + (f", and {more} more" if more > 0 else "")
