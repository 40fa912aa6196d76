"""Reports as JSON: the same values that the text reports print."""

from __future__ import annotations

import json

from kvfence.spec.files.visible import json_visible


def as_json(value: object) -> str:
    """``value`` (structs, dataclasses, containers of them) as indented JSON; other objects as their text.

    Characters that could command a terminal are escaped.
    """
    import msgspec

    try:
        text = msgspec.json.format(msgspec.json.encode(value, enc_hook=str), indent=2).decode()
    except UnicodeEncodeError:  # a file name that is no UTF-8
        text = json.dumps(msgspec.to_builtins(value, enc_hook=str, str_keys=True), indent=2)
    return json_visible(text)
