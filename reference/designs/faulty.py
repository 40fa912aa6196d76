"""The faulty designs by name; the names are those of :mod:`kvfence.spec.designs`.

Each replaces a few small methods of the sound classes and leaves those as they are.
"""

from kvfence.reference.blocks.errors import OptionsError
from kvfence.reference.designs import blocks, geometry, loads, ranks, scheduling, tiers, transfers
from kvfence.reference.designs.design import SOUND, Design

FAULTS: dict[str, Design] = {
    name: design
    for part in (blocks, transfers, scheduling, ranks, geometry, loads, tiers)
    for name, design in part.FAULTS.items()
}


def design_named(name: str) -> Design:
    """The design called ``name``, ``sound`` or a faulty one. Raises OptionsError."""
    if name == "sound":
        return SOUND
    if name not in FAULTS:
        raise OptionsError(f"design is {name!r}; choose from sound, {', '.join(sorted(FAULTS))}")
    return FAULTS[name]
