"""What the tests of worker sides share: tensors, streams and events without CUDA, and scheduled steps."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest

from kvfence.checker.adapters.vllm.hooks.scheduler import IN_FLIGHT
from kvfence.checker.adapters.vllm.hooks.worker import Workers
from kvfence.checker.order.races import OrderChecker, Race

SLOTS = 32


class Tensor:
    """A layer of a cache: [slots, bytes]."""

    def __init__(self, address: int, slots: int = SLOTS, size: int = 64) -> None:
        self.address, self.shape, self.size = address, (slots, size), size

    def data_ptr(self) -> int:
        return self.address

    def stride(self, _: int) -> int:
        return self.size

    def element_size(self) -> int:
        return 1


class Stream:
    """A stream by its handle; 0 is the one that steps run on."""

    made = 0

    def __init__(self, handle: int | None = None) -> None:
        if handle is None:
            Stream.made += 1
            handle = Stream.made
        self.cuda_stream = handle

    def wait_event(self, event: Any) -> None:
        event.wait(self)

    def wait_stream(self, stream: Any) -> None:
        pass


class Event:
    """An event that is over when ``over`` says so."""

    over = True

    def __init__(self, enable_timing: bool = False) -> None:
        self.enable_timing = enable_timing
        self.recorded = 0

    def record(self, stream: Any = None) -> None:
        del stream
        self.recorded += 1

    def elapsed_time(self, end_event: Any) -> float:
        if type(end_event) is not Event:
            raise RuntimeError("expected other to be a torch.Event object")
        assert self.recorded
        assert end_event.recorded
        return 0.5

    def wait(self, stream: Any = None) -> None:
        pass

    def query(self) -> bool:
        return Event.over

    def synchronize(self) -> None:
        pass


def torch(**cuda: Any) -> Any:
    """A module like torch."""
    return types.SimpleNamespace(Event=Event, cuda=types.SimpleNamespace(Stream=Stream, Event=Event, **cuda))


def modules(*names: str) -> dict[str, Any]:
    """Empty modules by name, with the packages that they are in."""
    found: dict[str, Any] = {}
    for name in names:
        parts = name.split(".")
        for end in range(1, len(parts)):
            parent = ".".join(parts[:end])
            found.setdefault(parent, types.ModuleType(parent)).__path__ = []
        found[name] = types.ModuleType(name)
    return found


def put_in(monkeypatch: pytest.MonkeyPatch, modules: dict[str, Any]) -> dict[str, Any]:
    """Let ``modules`` be imported by their names; returns them."""
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return modules


def group(kind: str = "FullAttentionSpec", host: bool = False, **named: Any) -> Any:
    """A group of layers whose blocks have four tokens."""
    spec = type(kind, (), {"block_size": 4, **named})()
    return types.SimpleNamespace(kv_cache_spec=spec, host_resident=host)


def vllm_config() -> Any:
    """A configuration of which nothing but its defaults is known."""
    return types.SimpleNamespace(
        parallel_config=types.SimpleNamespace(), scheduler_config=types.SimpleNamespace()
    )


def scheduled(
    new: Any = (), cached: Any = (), ended: tuple[str, ...] = (), in_flight: int = 0, **counts: int
) -> Any:
    """A scheduler's output; each request by its name, its blocks by group, and its computed tokens.

    A cached request with a fourth part was preempted and is resumed.
    """
    output = types.SimpleNamespace(
        finished_req_ids=set(ended),
        num_scheduled_tokens=counts,
        scheduled_new_reqs=[
            types.SimpleNamespace(req_id=name, block_ids=tables, num_computed_tokens=start)
            for name, tables, start in new
        ],
        scheduled_cached_reqs=types.SimpleNamespace(
            req_ids=[each[0] for each in cached],
            new_block_ids=[each[1] for each in cached],
            num_computed_tokens=[each[2] for each in cached],
            resumed_req_ids={each[0] for each in cached if len(each) > 3},
        ),
    )
    setattr(output, IN_FLIGHT, in_flight)
    return output


class Lab:
    """Worker sides under observation, and what the hooks reported of them."""

    def __init__(self, modules: dict[str, Any]) -> None:
        self.modules = modules
        self.races: list[Race] = []
        self.emitted: list[Any] = []
        self.workers = Workers("test", on_race=self.races.append, order_sink=self.emitted.append)
        self.groups = [group()]

    @property
    def kv_cache_config(self) -> Any:
        return types.SimpleNamespace(kv_cache_groups=self.groups)

    @property
    def replayed(self) -> list[Race]:
        """The races that the race checker finds in what the order sink was given."""
        checker = OrderChecker(self.emitted[0])
        checker.apply_all(self.emitted[1:])
        return checker.races

    def assert_silent(self, accesses: int = 0) -> None:
        """No race was found, and everything was judged: more than so many accesses to slots."""
        assert not self.races
        assert not self.replayed
        assert not self.workers.unchecked
        assert self.workers.accesses > accesses

    def assert_early_store(self) -> None:
        """The only race is of a store that does not wait for the step that writes its blocks."""
        (race,) = self.races
        assert (race.invariant, race.region, race.slots) == ("STORE-READY", "gpu", (1, 2))
        assert (race.first.name, race.first.by) == ("step", "step 1")
        assert (race.second.name, race.second.by) == ("store", "store 0")
        assert "make stream 1 (store) wait for the event" in race.missing
        assert [each.invariant for each in self.replayed] == ["STORE-READY"]
