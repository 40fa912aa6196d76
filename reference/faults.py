"""The faulty designs by name; the names are those of :mod:`kvfence.spec.designs`.

Each replaces a few small methods of the sound classes and leaves those as they are.
"""

from __future__ import annotations

from kvfence.reference import (
    faults_blocks,
    faults_geometry,
    faults_loads,
    faults_ranks,
    faults_scheduling,
    faults_tiers,
    faults_transfers,
)
from kvfence.reference.design import SOUND, Design
from kvfence.reference.errors import OptionsError

FAULTS: dict[str, Design] = {
    **faults_blocks.FAULTS,
    **faults_transfers.FAULTS,
    **faults_scheduling.FAULTS,
    **faults_ranks.FAULTS,
    **faults_geometry.FAULTS,
    **faults_loads.FAULTS,
    **faults_tiers.FAULTS,
}


def design_named(name: str) -> Design:
    """The design called ``name``, ``sound`` or a faulty one. Raises OptionsError."""
    if name == "sound":
        return SOUND
    if name not in FAULTS:
        raise OptionsError(f"design is {name!r}; choose from sound, {', '.join(sorted(FAULTS))}")
    return FAULTS[name]
