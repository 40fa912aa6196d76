"""Keys, tables and checkpoints of the GPU engine."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import shapes

from kvfence.checker.engines import Gpu, Interpreter, Native
from kvfence.checker.engines.gpu import state_table
from kvfence.checker.engines.gpu.device.host import HostDevice
from kvfence.checker.engines.gpu.device.keys import Keys
from kvfence.checker.engines.gpu.device.search_device import Table
from kvfence.checker.engines.gpu.expansion import Limits
from kvfence.checker.engines.gpu.exploration import GpuModel
from kvfence.checker.engines.gpu.levels import Memory
from kvfence.checker.engines.gpu.search import Search
from kvfence.checker.engines.gpu.state_table import StateTable
from kvfence.checker.engines.native.layout import Dense
from kvfence.spec.errors import CannotRun
from kvfence.spec.language import Machine, ground
from kvfence.spec.machines import MACHINES

Kvlife = Callable[..., Machine]


@pytest.mark.parametrize("name", ["kvlife", *sorted(MACHINES)])
def test_a_key_gives_its_state_back(name: str, kvlife: Kvlife) -> None:
    g = ground(kvlife() if name == "kvlife" else MACHINES[name](frozenset()), {})
    packing = Dense(g, {})
    keys = Keys(g, packing, {})
    rng = random.Random(1)
    seen = {}
    for _ in range(300):
        state = tuple(rng.randint(c.lo, c.hi) for c in g.cells)  # type: ignore[arg-type]
        words = tuple(int(x) for x in packing.pack(state)[:, 0])
        key = keys.encode(words)
        assert keys.decode(key) == words
        assert len(key) == keys.words
        assert seen.setdefault(key, words) == words
        if keys.words == 1:
            assert key[0] < 1 << keys.bits


def test_keys_are_shorter_than_states_where_ranges_are_no_powers_of_two(kvlife: Kvlife) -> None:
    g = ground(kvlife(), {"Block": 5, "Request": 5})
    packing = Dense(g, {})
    assert packing.words == 2
    assert (Keys(g, packing, {}).words, Keys(g, packing, {}).bits) == (1, 60)


def test_a_narrow_table_spills_and_forgets_nothing(kvlife: Kvlife, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_table, "GROW_AT", 0.93)
    monkeypatch.setattr(state_table, "MOST_REACH", 4)
    monkeypatch.setitem(state_table.FULLEST, "narrow", 0.99)
    spilled: list[int] = []
    added = Search._added

    def watched(self: Search, segment: object, counters: object) -> None:
        spilled.append(int(counters[2]))  # type: ignore[index]
        added(self, segment, counters)  # type: ignore[arg-type]

    monkeypatch.setattr(Search, "_added", watched)
    m, sizes = kvlife(), {"Block": 3, "Request": 3}
    found = Gpu(device=HostDevice, limits=Limits(batch=4000)).run(m, sizes)
    assert shapes.facts(found) == shapes.facts(Native().run(m, sizes))
    assert max(spilled) > 0


def test_the_largest_table_is_chosen_while_it_fits_beside_the_present_one(kvlife: Kvlife) -> None:
    source = GpuModel(Interpreter(kvlife(), {"Block": 5, "Request": 5}), {}).printed
    memory = Memory(HostDevice(), 81 << 30)
    table = StateTable(HostDevice(), memory, source, narrow=True)
    largest = 31
    assert table.nbytes(largest) == 64 << 30
    assert table.reach(largest) >= 4
    assert table.reach(20) == 0
    assert table.capacity(largest) == 8 << largest
    assert table.capacity(20) == 4 << 20


def test_the_step_to_the_largest_table_waits_until_the_present_one_is_full(kvlife: Kvlife) -> None:
    source = GpuModel(Interpreter(kvlife(), {"Block": 5, "Request": 5}), {}).printed
    table = StateTable(HostDevice(), Memory(HostDevice(), 76 << 30), source, narrow=True)
    shares = {}
    for log2 in (26, 27, 28):
        table.now = Table(log2=log2, reach=table.reach(log2))
        shares[log2] = table.grow_at() / table.capacity(log2)
    assert shares[26] == pytest.approx(state_table.GROW_AT)
    assert shares[27] == pytest.approx(
        state_table.GROW_AT
    )  # two of these fit beside the largest one of 64 GiB,
    assert shares[28] == pytest.approx(state_table.GROW_LATE)  # and four do not
    assert table.full_at() > table.grow_at()


@pytest.mark.parametrize("every", [0.0, 1000.0])
def test_a_search_goes_on_from_its_checkpoint(
    kvlife: Kvlife, tmp_path: Path, every: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    m, sizes = kvlife(frozenset({"evict_referenced"})), {"Block": 3, "Request": 2}
    native = Native().run(m, sizes)

    def engine() -> Gpu:
        return Gpu(device=HostDevice, checkpoint=tmp_path / "here", checkpoint_every=every)

    whole = Search.expand_level

    def interrupted(self: Search) -> None:
        if self.levels.depth == 9:
            raise KeyboardInterrupt
        whole(self)

    monkeypatch.setattr(Search, "expand_level", interrupted)
    stopped = engine().run(m, sizes)
    assert stopped.stopped == "interrupted"
    assert 0 < stopped.states < native.states
    assert (tmp_path / "here" / "checkpoint.json").exists()
    monkeypatch.setattr(Search, "expand_level", whole)
    for _ in range(2):  # the second time the search is complete already
        found = engine().run(m, sizes)
        assert shapes.facts(found) == shapes.facts(native)
        assert [str(p) for p in found.violated] == [str(p) for p in native.violated]


def test_a_checkpoint_of_something_else_is_refused(kvlife: Kvlife, tmp_path: Path) -> None:
    Gpu(device=HostDevice, checkpoint=tmp_path).run(kvlife(), {"Block": 2, "Request": 1})
    with pytest.raises(CannotRun, match="holds a checkpoint of kvlife"):
        Gpu(device=HostDevice, checkpoint=tmp_path).run(kvlife(), {"Block": 2, "Request": 2})
