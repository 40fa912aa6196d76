"""The reference's two-phase lookup in lockstep with the machine ``lookup``.

Driven: the scheduler side, the KV-cache manager and both pools, by the calls that the engine's scheduler
makes to them, in its order. Every action of the machine is driven. What differs in the words:

* The machine's prompt has two blocks and can be hit whole. The reference always leaves a token to compute, so
  its prompt has two blocks of one token, and one token more; ``compute`` leaves that token out.
* ``local`` is the machine's choice at each lookup; the first block of the prompt is in the GPU's prefix index
  from the start, and the driver lets a request use it or not.
* Other requests' stores are put to the tier's pool directly. The machine names the block that a store gets,
  the pool takes the least recently freed one, and evicts it if need be. ``evict`` is pressure on the tier, as
  a store of several blocks makes it; for a pinned block it is pressure that must be refused.
* ``find_no_room`` fills the GPU pool for the time of the attempt.
* The scheduler side is in lazy mode, and the lazy scan sees nothing, so that no store interferes.
"""

from collections.abc import Callable

import numpy as np
import pytest
from drivers import PRESSURE, RequestsDriver, press

from kvfence.checker.analysis import lockstep as ls
from kvfence.checker.engines.explicit.interpret import Interpreter
from kvfence.reference.blocks.errors import OutOfBlocks
from kvfence.reference.blocks.kv_cache_manager import LocalHit
from kvfence.reference.blocks.request import Request
from kvfence.reference.blocks.workload import synthetic
from kvfence.reference.connector.transfers import Transfer, TransferReport
from kvfence.reference.designs.design import SOUND, Design
from kvfence.reference.designs.faulty import FAULTS
from kvfence.spec import events as ev
from kvfence.spec.designs import DESIGNS
from kvfence.spec.machines import lookup

SPEC = Interpreter(lookup.build(), {"Request": 3, "Block": 3})
REQUESTS, BLOCKS = SPEC.sizes["Request"], SPEC.sizes["Block"]
PROMPT = lookup.PROMPT
GPU = 1 + 1 + PROMPT * 3 * REQUESTS  # the null block, the cached first block, and room for all
SELDOM = {"abort", "begin_store", "evict", "find_no_room", "finish"}
FIRST: list[ls.Step] = [("begin_store", {"first": True}), ("end_store", {})]
SECOND: list[ls.Step] = [("begin_store", {"first": False}), ("end_store", {})]
LOOKED_UP: list[ls.Step] = [*FIRST, *SECOND, ("submit", {"r": 0}), ("lookup", {"r": 0, "local": 0})]
PINNED_TWICE: list[ls.Step] = [*LOOKED_UP, ("submit", {"r": 1}), ("lookup", {"r": 1, "local": 0})]
PARTLY: list[ls.Step] = [*LOOKED_UP, ("admit", {"r": 0, "accept": 1})]
LOADED: list[ls.Step] = [*LOOKED_UP, ("admit", {"r": 0, "accept": 2}), ("load_lands", {"r": 0})]
AGAIN: list[ls.Step] = [*LOADED, ("preempt", {"r": 0}), *LOADED[-3:-1]]
HALF_PINNED: list[ls.Step] = [*LOOKED_UP[:-1], ("lookup", {"r": 0, "local": 1}), ("evict", {})]
SCENES = [LOOKED_UP, HALF_PINNED, PINNED_TWICE, PARTLY, [*LOADED, ("finish", {"r": 0})], AGAIN]


class LookupDriver(RequestsDriver):
    """Requests that are looked up, admitted, and end, while others use the tier."""

    def __init__(self, design: Design = SOUND) -> None:
        super().__init__(design, GPU, BLOCKS, 1, REQUESTS, lazy=True, lazy_horizon=0)
        self.requests: dict[int, Request] = {}
        self.where = dict.fromkeys(range(REQUESTS), "new")
        self.local = dict.fromkeys(range(REQUESTS), 0)
        self.ended: dict[int, tuple[int, int]] = {}
        """Tokens counted as loaded, and left to compute, of requests that are gone."""
        self.stores: dict[int, tuple[str, bool]] = {}
        """Block under a store -> its holder, and whether it is for the prompt's first block."""
        self.stored = 0
        self.keys = Request.arriving(synthetic(0, PROMPT + 1, 1, family=0), 1).key_list[:PROMPT]
        first = self.gpu.get_new_blocks("op:901.0", 1)
        self.gpu.cache_full_blocks(first, np.array(self.keys[:1]))

    # The tier, used by everybody else.

    def begin_store(self, b: int, first: bool) -> list[ls.Step]:
        del b
        since, holder = len(self.events), f"op:{1000 + self.stored}.0"
        (slot,) = self.tier.get_new_blocks(holder, 1).tolist()
        self.stored += 1
        self.stores[slot] = holder, first
        return [*self.evictions(since), ("begin_store", {"b": slot, "first": first})]

    def end_store(self, b: int) -> None:
        holder, first = self.stores.pop(b)
        self.tier.cache_full_blocks(np.array([b]), np.array([self.keys[0 if first else 1]]))
        self.tier.free_blocks(holder, np.array([b]))

    def evict(self, b: int) -> list[ls.Step]:
        since = len(self.events)
        press(self.tier, b)
        return self.evictions(since)

    def evictions(self, since: int) -> list[ls.Step]:
        return [("evict", {"b": slot}) for slot in self.evicted(since, "cpu")]

    # One request.

    def submit(self, r: int) -> None:
        request = self.requests[r] = Request.arriving(synthetic(r, PROMPT + 1, 1, family=0), 1)
        self.where[r] = "waiting"
        self.events.append(ev.Submit(request.id, 0, request.total))

    def lookup(self, r: int, local: int) -> None:
        self.local[r] = local
        self.connector.get_num_new_matched_tokens(self.requests[r], local)

    def admit(self, r: int, accept: int) -> None:
        request, local = self.requests[r], self.local[r]
        compute = request.total - local - accept
        self.manager.admit(request, self.local_hit(r), accept, 0 if accept else compute)
        self.admitted(request, local, accept)
        self.where[r] = "admitted"

    def find_no_room(self, r: int) -> None:
        taken = self.gpu.get_new_blocks(PRESSURE, self.gpu.num_free)
        with pytest.raises(OutOfBlocks):
            self.manager.admit(self.requests[r], self.local_hit(r), 0, PROMPT + 1)
        self.gpu.free_blocks(PRESSURE, taken)

    def local_hit(self, r: int) -> LocalHit:
        """As much of the GPU's prefix hit as the request uses."""
        slots = self.manager.get_computed_blocks(self.requests[r]).parts[0][1]
        return LocalHit(self.local[r], ((0, slots[: self.local[r]]),))

    def load_lands(self, r: int) -> None:
        self.connector.build_connector_meta(np.empty(0, np.int64))
        (load,) = self.loads(self.requests[r])
        self.connector.update_connector_output([TransferReport(load.op, load.generation, rank=0)])

    def loads(self, request: Request) -> list[Transfer]:
        return [t for t in self.connector.transfers.open.values() if t.request is request]

    def preempt(self, r: int) -> None:
        request = self.requests[r]
        confirmed = self.preempted(request)
        self.leave(request)
        request.next_generation(confirmed)
        self.where[r] = "waiting"
        self.local[r] = 0

    def finish(self, r: int) -> None:
        request = self.requests[r]
        self.ended[r] = self.counts(r)
        self.end(r, "stop", int(self.tables.confirmed[request.row]))

    def abort(self, r: int) -> None:
        self.ended[r] = self.counts(r)
        self.end(r, "abort", 0)

    def end(self, r: int, why: ev.FinishReason, confirmed: int) -> None:
        self.finished(self.requests[r], why, confirmed)
        self.leave(self.requests[r])
        self.where[r] = "gone"

    def leave(self, request: Request) -> None:
        self.release(request)
        self.observe(ev.Retire(request.id, request.generation))

    # The state, in the machine's words.

    def phase(self, r: int) -> str:
        if self.where[r] != "admitted":
            return self.where[r]
        return "loading" if self.connector.has_open_loads(self.requests[r]) else "running"

    def counts(self, r: int) -> tuple[int, int]:
        """Blocks counted as loaded, and left to compute."""
        if r in self.ended:
            return self.ended[r]
        if self.where[r] != "admitted":
            return 0, 0
        request = self.requests[r]
        computed = int(self.tables.computed[request.row])
        computed += sum(load.src.size for load in self.loads(request))
        return computed - self.local[r], int(self.tables.total[request.row]) - 1 - computed

    def abstract(self) -> dict[str, ls.Observed]:
        promise, pin, loading = set[tuple[int, int]](), set[tuple[int, int]](), set[tuple[int, int]]()
        for r, request in self.requests.items():
            hit = self.connector.promises.get(request.hit_holder)
            promise |= {(r, b) for b in (hit.slots.tolist() if hit else ())}
            pin |= {(r, b) for b in self.tier.held(request.hit_holder)}
            loading |= {(r, b) for load in self.loads(request) for b in self.tier.held(load.holder)}
        cached = {self.tier.get_cached_block(key): key for key in self.keys}
        storing = {b: self.keys[0 if first else 1] for b, (_, first) in self.stores.items()}
        blocks = range(BLOCKS)
        return {
            "phase": {r: self.phase(r) for r in range(REQUESTS)},
            "gen": {r: self.requests[r].generation if r in self.requests else 0 for r in range(REQUESTS)},
            "local": self.local,
            "external": {r: self.counts(r)[0] for r in range(REQUESTS)},
            "compute": {r: self.counts(r)[1] for r in range(REQUESTS)},
            "promise": promise,
            "pin": pin,
            "loading": loading,
            "slot": {b: "storing" if b in storing else "cached" if b in cached else "empty" for b in blocks},
            "first": {b for b, key in (cached | storing).items() if key == self.keys[0]},
            "ref": dict(enumerate(self.tier.ref.tolist())),
        }

    def refusal(self, action: str, args: ls.Args) -> type[Exception] | None:
        return OutOfBlocks if action == "evict" and self.tier.ref[args["b"]] else None


def test_the_lookup_does_what_the_specification_does(run: Callable[..., ls.Coverage]) -> None:
    coverage = run(SPEC, LookupDriver, seldom=SELDOM, scenes=SCENES)
    assert set(coverage.taken) == set(SPEC.machine.actions), str(coverage)
    assert set(coverage.goals) == set(SPEC.machine.goals), str(coverage)
    assert set(coverage.refused) == {"evict"}, str(coverage)
    assert not coverage.cannot
    assert coverage.events > 0


BROKEN = [design.name for design in DESIGNS.values() if "lookup" in design.machines and design.breaks]


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_design_is_found(run: Callable[..., ls.Coverage], name: str) -> None:
    with pytest.raises(ls.LockstepError):
        run(SPEC, lambda: LookupDriver(FAULTS[name]), seldom=SELDOM, scenes=SCENES, judge=False)
