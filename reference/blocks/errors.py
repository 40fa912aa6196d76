"""What can go wrong, as types: each message names the thing and the way out."""

# ruff: noqa: N818 - the names say what happened

from collections.abc import Mapping, Sized


class OffloadError(Exception):
    """Base of every error the reference raises on purpose."""


class OutOfBlocks(OffloadError):
    """``asked`` slots were wanted, ``free`` are to be had. Nothing has changed; wait, preempt or ask for
    fewer.
    """

    def __init__(self, pool: str, asked: int, free: int, holders: Mapping[str, Sized]) -> None:
        super().__init__(pool, asked, free)
        self.pool = pool
        self.asked = asked
        self.free = free
        self._holders = holders

    @property
    def held_by(self) -> dict[str, int]:
        """Holder -> number of slots it holds now. Counted when looked at, since a refusal is an everyday
        event.
        """
        return {holder: len(slots) for holder, slots in self._holders.items() if slots}

    def __str__(self) -> str:
        most = sorted(self.held_by.items(), key=lambda item: -item[1])[:4]
        held = ", ".join(f"{holder} holds {n}" for holder, n in most) or "no one holds any"
        return f"pool {self.pool}: {self.asked} slots asked, {self.free} free; {held}"


class OverPopped(OffloadError):
    """The free queue has fewer slots than it counts: some slot entered it twice."""


class NotHeld(OffloadError):
    """A holder gave back slots that it does not hold, or one of them twice."""

    def __init__(self, pool: str, holder: str, slots: list[int]) -> None:
        super().__init__(
            f"pool {pool}: {holder} frees slots that it does not hold, or one twice, among {slots[:8]}"
        )
        self.pool = pool
        self.holder = holder
        self.slots = slots


class GarbledBlock(OffloadError):
    """Attention read a token's KV and found another token's: the output of the request is garbage."""

    def __init__(self, request: str, group: int, block: int, slot: int, expected: int, found: int) -> None:
        super().__init__(
            f"request {request} reads block {block} of group {group} in slot {slot}: expected content "
            f"{expected:#x}, found {found:#x}"
        )
        self.request = request
        self.group = group
        self.block = block
        self.slot = slot
        self.expected = expected
        self.found = found


class HitVanished(OffloadError):
    """A connector promised more tokens than it could deliver when the request was admitted."""


class Stalled(OffloadError):
    """Requests wait, nothing runs and nothing is in flight: no later moment will be any better."""


class OptionsError(OffloadError, ValueError):
    """An option, or a combination of options, that cannot work."""


class WorkloadError(OffloadError, ValueError):
    """A workload file that cannot be read as one: names the file, the line and the problem."""
