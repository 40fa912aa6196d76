"""Ids of conditions that are in no catalogue: what they stand for, as the machine declares it."""

from __future__ import annotations

import difflib
from typing import Any

from kvfence.spec.catalog import BY_ID
from kvfence.spec.language import LEMMA, Machine

DECLARE = "to declare one's own, give the invariant a docstring that is a sentence, or say {}"
ALIKE = 0.75  # of difflib: a docstring does not declare an id that looks like a typing error


def stated_ids(machine: Machine) -> list[str]:
    """The ids of what a machine states, each once: invariants, liveness properties and checks."""
    properties: list[Any] = [*machine.invariants.values(), *machine.liveness.values()]
    checks = [c.id for a in machine.actions.values() for c in a.checks]
    return list(dict.fromkeys([*(p.id for p in properties), *checks]))


def _own_ids(machine: Machine) -> dict[str, str]:
    """What each id that is in no catalogue stands for; nothing for one that is not declared."""
    ids = (id_ for id_ in stated_ids(machine) if id_ not in BY_ID and id_ != LEMMA)
    return {id_: _sentence(machine, id_) for id_ in ids}


def sentences(machine: Machine) -> dict[str, str]:
    """What each id of the machine's own stands for; ids of the catalogue and undeclared ones are left out."""
    return {id_: text for id_, text in _own_ids(machine).items() if text}


def undeclared(machine: Machine) -> dict[str, str]:
    """Unknown ids that the machine states: for each, in a line, what to do about it."""
    out = {}
    for id_, text in _own_ids(machine).items():
        if not text:
            near = _alike(id_)
            meant = f"did you mean {near}? " if near else "kvfence invariants lists those there are; "
            call = f'm.declare("{id_}", "What it says, in a sentence.")'
            out[id_] = f"{id_} is neither in the catalogue nor declared: {meant}{DECLARE.format(call)}"
    return out


def _sentence(machine: Machine, id_: str) -> str:
    """The sentence that an id stands for, or nothing."""
    if id_ in machine.declared:
        return machine.declared[id_]
    if _alike(id_):
        return ""
    properties: list[Any] = [*machine.invariants.values(), *machine.liveness.values()]
    for p in properties:
        doc = " ".join((p.doc or "").partition("\n\n")[0].split())
        if p.id == id_ and doc[:1].isupper() and doc.endswith((".", "!")) and " " in doc:
            return doc
    return ""


def _alike(id_: str) -> str:
    """The id of the catalogue that this one looks like, or nothing."""
    near = difflib.get_close_matches(id_.upper().replace("_", "-"), BY_ID, n=1, cutoff=ALIKE)
    return near[0] if near else ""
