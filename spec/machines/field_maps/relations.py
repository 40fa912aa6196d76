"""What the field maps share: what a relation has of an element, and events that there may be none of."""

from collections.abc import Sequence
from typing import Any

from kvfence.spec import events as ev
from kvfence.spec.language import View


def related(view: View, relation: str, x: int) -> list[Any]:
    """All that ``x`` is related to: elements, or tuples of them where the relation has three places."""
    found = (at[1:] for at, yes in getattr(view, relation).items() if yes and at[0] == x)
    return [rest[0] if len(rest) == 1 else rest for rest in found]


def free(pool: str, holder: str, slots: Sequence[int]) -> list[ev.Event]:
    """The holder leaves these slots; no event if there are none."""
    return [ev.Free(pool, holder, slots)] if slots else []


def quiesce(pre: View, post: View) -> list[ev.Event]:
    """Nothing is left to do."""
    return [ev.Quiesce()]
