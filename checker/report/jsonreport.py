"""Reports as JSON: the same values that the text reports print."""

from __future__ import annotations


def as_json(value: object) -> str:
    """``value`` (structs, dataclasses, containers of them) as indented JSON; other objects as their text."""
    import msgspec

    return msgspec.json.format(msgspec.json.encode(value, enc_hook=str), indent=2).decode()
