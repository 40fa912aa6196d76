"""How a run of the rig ends: on until everything is quiet; then what still waits, and what is still held."""

from __future__ import annotations

from typing import Any, Final

from kvfence.checker.audit.cases.case import Hold
from kvfence.checker.audit.cases.outcome import Evidence
from kvfence.checker.audit.rig.engine import free_list_of
from kvfence.checker.audit.rig.loop import Engine

MOST_STEPS: Final = 1500
QUIET: Final = 60
"""Steps without progress after which the engine stalls; copies land within fewer."""
RESTLESS: Final = 60
"""Steps without any request after which copies should have come to an end, if they land at once."""
COPIES: Final = 6
"""Copies that may follow each other for a longer time than that."""


class End:
    """The end of one run."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.case, self.setup, self.judge = engine.case, engine.setup, engine.judge
        self.scheduler, self.workers = engine.scheduler, engine.workers

    def drain(self) -> None:
        """On until nothing is held any more, or nothing has moved for longer than any copy takes."""
        holds = [action.ticks for action in self.case.actions if isinstance(action, Hold)]
        patience = QUIET + 4 * (self.setup.delay + self.setup.launch_delay) + max([0, *holds])
        self.engine.last_progress = self.engine.steps
        self.engine.draining = True
        last = self.engine.steps + MOST_STEPS
        alone = asleep = 0
        copies = self._copies()
        restless = RESTLESS + COPIES * (self.setup.delay + self.setup.launch_delay)
        while self.engine.steps < last and self.engine.steps - self.engine.last_progress <= patience:
            idle = not self.scheduler.get_num_unfinished_requests()
            quiet = not self.engine.queue and not any(worker.device.busy for worker in self.workers)
            if idle and quiet and not any(held for _, _, held in self._held()):
                break
            # An engine without requests sleeps, unless the connector keeps it awake.
            awake = bool(self.scheduler.has_requests())
            alone = alone + 1 if idle and awake else 0
            if alone == RESTLESS // 2:
                copies = self._copies()
            asleep += idle and not awake
            if alone > restless:
                self._restless(alone, self._copies() != copies)
            if max(alone, asleep) > restless:
                return
            before = [dict(worker.device.launched) for worker in self.workers]
            self.engine.step()
            if before != [worker.device.launched for worker in self.workers]:
                self.engine.record_progress()
        if self.engine.steps >= last and self.scheduler.get_num_unfinished_requests():
            left = ", ".join(f"{name} {r.status.name}" for name, r in sorted(self.scheduler.requests.items()))
            detail = f"after {MOST_STEPS} more steps: {left}"
            if self._dead():
                self._died(f"requests wait for ever, {detail}", "stall")
            else:
                cause = "steps go on, and requests never come to an end"
                self.judge.sight("PROGRESS", cause, "stall", detail)
        if self.engine.steps >= last:
            return
        stalled = bool(self.scheduler.get_num_unfinished_requests())
        if self._dead():
            end = "requests wait for ever" if stalled else "the blocks of its copies are never given back"
            self._died(end, "stall" if stalled else "leak")
        elif stalled:
            self._stalled()
        else:
            self._leaks()

    def _copies(self) -> dict[str, int]:
        """Stores and loads launched so far."""
        return {name: sum(w.device.launched[name] for w in self.workers) for name in ("store", "load")}

    def _dead(self) -> list[str]:
        """Threads of connectors that an exception has ended."""
        deaths = [death for worker in self.workers for death in worker.device.deaths]
        return [f"{name} ended with {error!r}" for name, error in deaths]

    def _died(self, end: str, evidence: Evidence) -> None:
        cause = "a copy that fails ends the thread that copies, and nobody hears of it"
        self.judge.sight("FAIL-CLOSED", cause, evidence, f"{end}: {'; '.join(self._dead())}")

    def _restless(self, steps: int, copying: bool) -> None:
        if self._dead() and not copying:
            self._died("the engine never sleeps", "stall")
            return
        copies = self._copies()
        detail = f"no request was left for {steps} steps, in which the engine could not sleep"
        cause = "the engine never sleeps though nothing is left to be done"
        if copying:
            cause = "copies go on for ever though no request is left"
        detail += f"; so far {copies['store']} stores, {copies['load']} loads"
        self.judge.sight("PROGRESS", cause, "stall", detail)

    def _held(self) -> list[tuple[str, Any, list[Any]]]:
        """Each pool with its name and the blocks that have a holder."""
        pools = [("gpu", self.scheduler.kv_cache_manager.block_pool)]
        pools += [("cpu", pool) for pool in connector_pools(self.scheduler.connector)]
        return [
            (name, pool, [b for b in pool.blocks if b.ref_cnt > 0 and not b.is_null]) for name, pool in pools
        ]

    def _stalled(self) -> None:
        pool = self.scheduler.kv_cache_manager.block_pool
        states = sorted(f"{name} {request.status.name}" for name, request in self.scheduler.requests.items())
        free = pool.get_num_free_blocks()
        idle = self.engine.steps - self.engine.last_progress
        detail = f"no step, end or copy for {idle} steps: {', '.join(states)}"
        parked = any("REMOTE" in state for state in states)
        holding = [name for name in sorted(self.scheduler.requests) if self._blocks_of(name)]
        how = "one of them for a load, " if parked else "one of them with blocks, " if holding else ""
        cause = f"requests wait, {how}and nothing runs any more"
        if holding:
            detail += f"; with blocks: {', '.join(holding)}"
        self.judge.sight("PROGRESS", cause, "stall", f"{detail}; {free} GPU blocks are free")

    def _blocks_of(self, name: str) -> int:
        """Blocks that a request has in its tables, as far as this release can be asked."""
        ask = getattr(self.scheduler.kv_cache_manager, "get_block_ids", None)
        return sum(map(bool, (id_ for ids in ask(name) for id_ in ids))) if ask is not None else 0

    def _leaks(self) -> None:
        for name, pool, held in self._held():
            if held:
                blocks = ", ".join(f"{block.block_id} (ref count {block.ref_cnt})" for block in held[:8])
                cause = f"blocks of {name} are held though nothing is left"
                self.judge.sight("NO-LEAK", cause, "leak", f"{len(held)} blocks: {blocks}")
            free = pool.get_num_free_blocks()
            missing = len(pool.blocks) - 1 - len(held) - free
            listed = len(free_list_of(pool))
            if missing or listed != free:
                cause = f"the free list of {name} is not what nobody holds"
                detail = f"counts {free} free, lists {listed}; {len(held)} held of {len(pool.blocks)}"
                self.judge.sight("CONSERVE", cause, "leak", detail)


def connector_pools(connector: Any) -> list[Any]:
    """The block pools of a connector, and of the connectors within it."""
    if connector is None:
        return []
    found = []
    manager = getattr(connector, "scheduler_manager", None)
    if manager is not None and hasattr(manager, "cpu_block_pool"):
        found.append(manager.cpu_block_pool)
    for inner in getattr(connector, "_connectors", ()):
        found += connector_pools(inner)
    return found
