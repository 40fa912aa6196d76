"""Ids of conditions that are in no catalogue: what they stand for, as the machine declares it."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from kvfence.spec.catalog import BY_ID
from kvfence.spec.language import LEMMA, Machine

DECLARE = "to declare one's own, give the invariant a docstring that is a sentence, or say {}"
ALIKE = 0.75  # of difflib: a docstring is not enough to declare what looks like a slip of the pen


def stated_ids(machine: Machine) -> list[str]:
    """The ids of what a machine states, each once: invariants, checks and promises."""
    checks = [c.id for a in machine.actions.values() for c in a.checks]
    stated = [*(p.id for p in machine.invariants.values()), *(p.id for p in machine.liveness.values())]
    return list(dict.fromkeys([*stated, *checks]))


def sentences(machine: Machine) -> dict[str, str]:
    """What each id of the machine's own stands for; ids of the catalogue and undeclared ones are left out."""
    own = {id_: _told(machine, id_) for id_ in stated_ids(machine) if id_ not in BY_ID and id_ != LEMMA}
    return {id_: text for id_, text in own.items() if text}


def undeclared(machine: Machine) -> dict[str, str]:
    """Ids that the machine states and nobody knows: for each, in a line, what to do about it."""
    out = {}
    for id_ in stated_ids(machine):
        if id_ not in BY_ID and id_ != LEMMA and not _told(machine, id_):
            near = _alike(id_)
            meant = f"did you mean {near}? " if near else "kvfence invariants lists those there are; "
            call = f'm.declare("{id_}", "What it says, in a sentence.")'
            out[id_] = f"{id_} is neither in the catalogue nor declared: {meant}{DECLARE.format(call)}"
    return out


def _told(machine: Machine, id_: str) -> str:
    """The sentence that an id stands for, or nothing."""
    if id_ in machine.declared:
        return machine.declared[id_]
    if _alike(id_):
        return ""
    return next((doc for doc in _docs(machine, id_) if _is_sentence(doc)), "")


def _docs(machine: Machine, id_: str) -> Iterator[str]:
    docs = [(p.id, p.doc) for p in machine.invariants.values()]
    for stated, doc in (*docs, *((p.id, p.doc) for p in machine.liveness.values())):
        if stated == id_:
            yield " ".join((doc or "").partition("\n\n")[0].split())


def _is_sentence(text: str) -> bool:
    return text[:1].isupper() and text.endswith((".", "!")) and " " in text


def _alike(id_: str) -> str:
    near = difflib.get_close_matches(id_.upper().replace("_", "-"), BY_ID, n=1, cutoff=ALIKE)
    return near[0] if near else ""
