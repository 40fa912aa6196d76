"""How what a connector began ends: transfers complete, requests finish, everything is reset."""

from __future__ import annotations

from kvfence.checker.adapters.vllm.stream.decisions import Cursors, give_up, last_stores
from kvfence.checker.adapters.vllm.stream.pool_events import ALLOC, FREE, Item
from kvfence.checker.adapters.vllm.stream.transfers import Tier


def loads_reported(tier: Tier, ids: list[str]) -> None:
    """All ranks finished the loads of these requests."""
    for id_ in ids:
        tier.report(tier.loads.get(id_, []), tier.stream.ranks)


def stores_reported(tier: Tier, counts: dict[int, int]) -> None:
    """So many more ranks finished the stores of each of these events."""
    for index, count in counts.items():
        tier.report(tier.stores.get(index, []), count)


def store_over(tier: Tier, index: int, slots: list[int], hashes: list[bytes | None]) -> None:
    """The stores of an event are complete.

    ``slots`` of the tier are in its index under ``hashes``; those without one are not.
    """
    items = tier.stream.gathered()
    transfers = tier.stores.pop(index, [])
    tier.complete(transfers)
    if slots:
        tier.label(transfers, slots, hashes)
    tier.release(transfers, items)


def load_over(tier: Tier, id_: str, computed: int | None) -> None:
    """The load of a request is complete, or was given up before it was handed over."""
    items = tier.stream.gathered()
    transfers = tier.loads.pop(id_, [])
    if transfers and not transfers[0].issued:
        tier.cancel(transfers)
    else:
        tier.complete(transfers, computed)
    tier.release(transfers, items)


def ending(tier: Tier, id_: str, withdraws: bool, known: tuple[str, list[int], int] | None) -> None:
    """A call begins that ends a request: pins go, last stores are decided.

    ``known``: the fields of its :class:`Cursors`, if it is tracked for stores.
    """
    stream = tier.stream
    tier.tracked = {} if known is None else {id_: Cursors(*known)}
    state = stream.requests.get(id_)
    if withdraws and state is not None:
        stream.withdraw(state)

    def handle(items: list[Item]) -> None:
        if any(item.kind == ALLOC for item in items):
            last_stores(tier, id_, items)
            return
        state = stream.requests.get(id_)
        for item in items:
            if item.tap is tier.tap and item.kind == FREE and state is not None and id_ in tier.pins:
                tier.pins.pop(id_)
                stream.emit_item(item, state.hit)
            else:
                stream.emit_unattributed([item])

    stream.enter(handle)


def ending_over(tier: Tier, id_: str, known: tuple[str, list[int], int] | None) -> None:
    """That call is over; ``known``: see :func:`ending`."""
    tier.tracked = {} if known is None else {id_: Cursors(*known)}
    tier.stream.leave()


def resetting(tier: Tier) -> None:
    """A reset begins; it ends with :meth:`Stream.leave`."""
    given_up, pins = give_up(tier)

    def handle(items: list[Item]) -> None:
        for item in items:
            freed = item.tap is tier.tap and item.kind == FREE
            id_ = _whose(pins, item.slots) if freed else None
            state = None if id_ is None else tier.stream.requests.get(id_)
            if id_ is not None and state is not None:
                if pins[id_] == item.slots:
                    del pins[id_]
                if tier.pins.pop(id_, None) is not None:
                    tier.stream.withdraw(state)
                tier.stream.emit_item(item, state.hit)
            else:
                tier.release(given_up, [item])

    tier.stream.enter(handle)


def _whose(pins: dict[str, list[int]], slots: list[int]) -> str | None:
    """The request for which ``slots`` are pinned; several may have begun with the same ones."""
    for id_, pinned in pins.items():
        if pinned == slots:
            return id_
    return next((id_ for id_, pinned in pins.items() if set(slots) <= set(pinned)), None)
