"""Order traces as files; :mod:`kvfence.spec.files.traces` has what they share with other traces."""

from __future__ import annotations

from collections import Counter
from typing import Final

import msgspec

from kvfence.spec import order as od
from kvfence.spec.files.traces import Format, LineReader, LineWriter


def problem_of_header(header: od.Header) -> str | None:
    """What is wrong with ``header``."""
    if not header.threads:
        return "the header names no threads"
    for what, ids in (
        ("thread", header.threads),
        ("stream", [stream.id for stream in header.streams]),
        ("region", [region.id for region in header.regions]),
    ):
        twice = [id_ for id_, times in Counter(ids).items() if times > 1]
        if twice:
            return f"{what} {twice[0]} is named twice"
    for region in header.regions:
        if region.bytes < 1 or region.at < 0 or region.slot < 0:
            return f"region {region.id} has no bytes, or a negative address or slot size"
    return None


_ORDER: Final[Format[od.Header, od.OrderEvent]] = Format(
    od.FORMAT,
    od.VERSION,
    msgspec.json.Decoder(od.Header),
    msgspec.json.Decoder(od.OrderEvent),
    problem_of_header,
)


class OrderTraceWriter(LineWriter[od.Header, od.OrderEvent]):
    """Records order events in a file; an observer: call it with each event."""

    form = _ORDER


class OrderTraceReader(LineReader[od.Header, od.OrderEvent]):
    """An order trace that is being read."""

    form = _ORDER
