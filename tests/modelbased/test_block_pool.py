"""The reference's block pool in lockstep with the machine ``block_pool``.

Every action of the machine is driven. The pool has no call that only evicts: a slot loses its key when the
pool gives it away. So ``evict`` is put to the pool as pressure (slots are taken, least recently freed first,
until the wanted one comes, and are given back; for a held slot it is pressure that must be refused), and each
allocation amounts to the evictions that it needs and then the allocation.
"""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from drivers import Driver, press
from hypothesis import settings

from kvfence.checker.analysis import lockstep as ls
from kvfence.checker.engines.explicit.interpret import Interpreter
from kvfence.reference.blocks.errors import NotHeld, OutOfBlocks
from kvfence.reference.blocks.free_queue import Slots
from kvfence.reference.blocks.pool import BlockPool
from kvfence.spec import events as ev
from kvfence.spec.machines import block_pool

SPEC = Interpreter(block_pool.build(), {"Block": 6, "Holder": 3, "Key": 2})
BLOCKS, HOLDERS, KEYS = (SPEC.sizes[sort] for sort in ("Block", "Holder", "Key"))
READY: list[ls.Step] = [("reserve_null", {})]
CACHED: list[ls.Step] = [*READY, ("allocate", {"h": 0}), ("register", {"h": 0}), ("release", {"h": 0})]
SCENES = [READY, CACHED, [*CACHED, *CACHED[1:]]]


def slots_of(*blocks: object) -> Slots:
    return np.array(blocks, np.int64)


def holder(h: object) -> str:
    return f"op:{h}.0"


def key(k: int) -> int:
    return k + 1


class PoolDriver(Driver):
    """A pool, made when its null block is chosen."""

    def __init__(self, make: type[BlockPool] = BlockPool) -> None:
        super().__init__()
        self.make = make
        self.pool: BlockPool | None = None

    @property
    def header(self) -> ev.Header | None:
        if self.pool is None:
            return None
        return ev.Header(
            producer="lockstep", pools=(ev.Pool("gpu", BLOCKS, null=self.pool.null),), tier="gpu"
        )

    def perform(self, action: str, args: ls.Args) -> Sequence[ls.Step] | None:
        h, b, k = (args.get(name, -1) for name in "hbk")
        if action == "reserve_null":
            self.pool = self.make("gpu", BLOCKS, null=b, observer=self.events.append)
            return None
        pool = self.pool
        assert pool is not None
        match action:
            case "allocate":
                return self.allocate(pool, h, 1)
            case "allocate_for_two_groups":
                return self.allocate(pool, h, 2)
            case "deny":
                with pytest.raises(OutOfBlocks):
                    pool.get_new_blocks(holder(h), args["n"])
            case "touch":
                pool.touch(holder(h), slots_of(b))
            case "touch_list":
                pool.touch(holder(h), slots_of(b, args["c"]))
            case "release":
                pool.free_blocks(holder(h), slots_of(b))
            case "register":
                pool.cache_full_blocks(slots_of(b), slots_of(key(k)))
            case "evict":
                return self.evict(pool, b)
            case _:
                raise AssertionError(f"no way to {action}")
        return None

    def allocate(self, pool: BlockPool, h: object, n: int) -> list[ls.Step]:
        since = len(self.events)
        taken = pool.get_new_blocks(holder(h), n).tolist()
        if n == 1:
            return [*self.evictions(since), ("allocate", {"h": h, "b": taken[0]})]
        b, c = taken
        return [*self.evictions(since), ("allocate_for_two_groups", {"h": h, "b": b, "c": c})]

    def evict(self, pool: BlockPool, b: int) -> list[ls.Step]:
        since = len(self.events)
        press(pool, b)
        return self.evictions(since)

    def evictions(self, since: int) -> list[ls.Step]:
        return [("evict", {"b": b}) for b in self.evicted(since, "gpu")]

    def abstract(self) -> dict[str, ls.Observed]:
        pool = self.pool
        if pool is None:
            return {
                "null": (),
                "holds": (),
                "ref": dict.fromkeys(range(BLOCKS), 0),
                "entries": dict.fromkeys(range(BLOCKS), 1),
                "nfree": 0,
                "label": (),
            }
        queue = pool.free_queue.in_order().tolist()
        found = [(pool.index[0].get(key(k)), k) for k in range(KEYS)]
        found += [(b, k) for k in range(KEYS) for b in pool.spares[0].get(key(k), [])]
        return {
            "null": {pool.null},
            "holds": {(h, b) for h in range(HOLDERS) for b in pool.held(holder(h))},
            "ref": dict(enumerate(pool.ref.tolist())),
            "entries": {b: queue.count(b) for b in range(BLOCKS)},
            "nfree": pool.num_free,
            "label": set(found),
        }

    def refusal(self, action: str, args: ls.Args) -> type[Exception] | None:
        pool = self.pool
        if pool is None:
            return None
        if (action == "allocate" and pool.num_free < 1) or (
            action == "allocate_for_two_groups" and pool.num_free < 2
        ):
            return OutOfBlocks
        if action == "evict" and pool.ref[args["b"]]:
            return OutOfBlocks
        if action == "release" and args["b"] not in pool.held(holder(args["h"])):
            return NotHeld
        return None


def test_the_pool_does_what_the_specification_does(run: Callable[..., ls.Coverage]) -> None:
    coverage = run(SPEC, PoolDriver, seldom={"deny"}, scenes=SCENES)
    assert set(coverage.taken) == set(SPEC.machine.actions), str(coverage)
    assert set(coverage.goals) == set(SPEC.machine.goals), str(coverage)
    assert set(coverage.refused) == {"allocate", "allocate_for_two_groups", "evict", "release"}, str(coverage)
    assert coverage.taken.total() > 10 * settings().max_examples
    assert coverage.events > 0


# Pools with one rule broken each.


class TouchLeavesTheQueueAlone(BlockPool):
    """A hit on a free slot does not take it off the free list."""

    def _leave_queue(self, holder: str, idle: Slots) -> None:
        pass


class KeepsKeys(BlockPool):
    """A slot is given away with its key."""

    def _evict(self, slots: Slots) -> None:
        pass


class ReleasesForAnybody(BlockPool):
    """A slot is released for any holder that asks."""

    def free_blocks(self, holder: str, slots: Slots) -> None:
        held = self.held(holder)
        super().free_blocks(holder, slots[[slot in held for slot in slots.tolist()]])


class PopsUnchecked(BlockPool):
    """The free count is not looked at before slots are popped."""

    def _short(self, n: int) -> bool:  # noqa: ARG002
        return False


class FreesTooEarly(BlockPool):
    """The first of two holders to leave a slot puts it into the free list."""

    def free_blocks(self, holder: str, slots: Slots) -> None:
        shared = slots[self.ref[slots] > 1]
        super().free_blocks(holder, slots)
        self.free_queue.push(shared)


class EvictsOnRelease(BlockPool):
    """A slot without holders loses its key at once, and no event says so."""

    def free_blocks(self, holder: str, slots: Slots) -> None:
        super().free_blocks(holder, slots)
        for slot in slots[self.ref[slots] == 0].tolist():
            self.index[0] = {key: at for key, at in self.index[0].items() if at != slot}


@pytest.mark.parametrize(
    ("faulty", "error"),
    [
        (TouchLeavesTheQueueAlone, ls.StatesDifferError),
        (KeepsKeys, ls.StepNotAllowedError),
        (ReleasesForAnybody, ls.NotRefusedError),
        (PopsUnchecked, ls.LockstepError),
        (FreesTooEarly, ls.StatesDifferError),
        (EvictsOnRelease, ls.StatesDifferError),
    ],
)
def test_a_broken_pool_is_found(
    run: Callable[..., ls.Coverage], faulty: type[BlockPool], error: type[ls.LockstepError]
) -> None:
    with pytest.raises(error):
        run(SPEC, lambda: PoolDriver(faulty), judge=False, seldom={"deny"}, scenes=SCENES)


class TouchesInSilence(BlockPool):
    """What is touched is not emitted."""

    def touch(self, holder: str, slots: Slots, group: int = 0, at: int = 0) -> None:
        observer, self.observer = self.observer, None
        super().touch(holder, slots, group, at)
        self.observer = observer


def test_a_pool_that_leaves_events_out_is_found(run: Callable[..., ls.Coverage]) -> None:
    with pytest.raises(ls.TraceRefusedError):
        run(SPEC, lambda: PoolDriver(TouchesInSilence), seldom={"deny"}, scenes=SCENES)
