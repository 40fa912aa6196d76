"""Faulty designs by name."""

from __future__ import annotations

from kvfence.reference.design import SOUND, Design
from kvfence.reference.errors import OptionsError

FAULTS: dict[str, Design] = {}


def design_named(name: str) -> Design:
    """The design called ``name``. Raises OptionsError."""
    if name == "sound":
        return SOUND
    if name not in FAULTS:
        raise OptionsError(f"design is {name!r}; choose from sound, {', '.join(FAULTS)}")
    return FAULTS[name]
