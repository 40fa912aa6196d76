"""The faulty designs by name; the names are those of :mod:`kvfence.spec.designs`.

Each replaces a few small methods of the sound classes and leaves those as they are.
"""

from kvfence.reference.blocks.errors import OptionsError
from kvfence.reference.designs import blocks as faults_blocks
from kvfence.reference.designs import geometry as faults_geometry
from kvfence.reference.designs import loads as faults_loads
from kvfence.reference.designs import ranks as faults_ranks
from kvfence.reference.designs import scheduling as faults_scheduling
from kvfence.reference.designs import tiers as faults_tiers
from kvfence.reference.designs import transfers as faults_transfers
from kvfence.reference.designs.design import SOUND, Design

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
