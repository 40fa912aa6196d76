"""The set of states seen is exact, whatever order and repetition states come in."""

import numpy as np
import pytest

from kvfence.checker.engines.base import Stop
from kvfence.checker.engines.explicit.pack import WORD, Packing
from kvfence.checker.engines.explicit.state_set import SetOfRows, SetOfWords, state_set
from kvfence.spec.language import Int, Machine, State, ground


def packing(bits: int) -> Packing:
    m = Machine("bits")
    m.relation("on", Int(0, bits - 1))

    @m.action()
    def stay(s: State) -> None:
        s.require(s.on[0])

    return Packing(ground(m), {})


@pytest.mark.parametrize("bits", [63, 64, 65, 150])
@pytest.mark.parametrize("spread", [3, 1 << 40])
def test_every_state_is_kept_once_in_the_order_first_seen(bits: int, spread: int) -> None:
    p = packing(bits)
    states = state_set(p, lambda _: None)
    assert isinstance(states, SetOfWords if bits < 64 else SetOfRows)
    rng = np.random.default_rng(7)
    wanted: dict[tuple[int, ...], None] = {}
    for size in (1, 0, 5, 3_000, 40_000, 40_000):
        batch = (rng.integers(0, spread, (p.words, size), dtype=np.uint64) * np.uint64(37)).astype(WORD)
        batch[:, size // 2 :] = batch[:, : size - size // 2]
        before = len(wanted)
        wanted.update(dict.fromkeys(map(tuple, batch.T.tolist())))
        assert states.add(batch) == len(wanted) - before
        assert states.count == len(wanted)
    assert set(map(tuple, states.words[:, : states.count].T.tolist())) == set(wanted)


def test_states_that_differ_in_one_word_only_are_told_apart() -> None:
    states = state_set(packing(150), lambda _: None)
    n = 5_000
    for word in range(3):
        batch = np.zeros((3, n), WORD)
        batch[word] = np.arange(n)
        states.add(batch)
    assert states.count == 3 * (n - 1) + 1


def test_growth_asks_before_it_takes_memory() -> None:
    asked: list[int] = []

    def reserve(nbytes: int) -> None:
        asked.append(nbytes)
        if nbytes > 400_000:
            raise Stop("enough")

    states = state_set(packing(30), reserve)

    def fill() -> None:
        for a in range(0, 1 << 20, 1 << 12):
            states.add(np.arange(a, a + (1 << 12), dtype=WORD).reshape(1, -1))

    with pytest.raises(Stop):
        fill()
    assert states.nbytes <= 400_000 < max(asked)
    assert 0 < states.count < 1 << 20


def test_cells_do_not_straddle_words_and_come_back_as_they_were() -> None:
    m = Machine("mixed")
    m.function("a", Int(0, 6), value=Int(-5, 90), init=0)
    m.function("b", value=Int(-70_000, 70_000), init=-70_000)
    m.function("c", Int(0, 30), value=Int(0, 1), init=1)

    @m.action()
    def stay(s: State) -> None:
        s.require(s.b == 0)

    g = ground(m)
    p = Packing(g, {})
    assert all(s.offset + s.bits <= 64 for s in p.slots)
    taken = [0] * p.words
    for s in p.slots:
        assert taken[s.word] & s.mask == 0
        taken[s.word] |= s.mask
    assert p.unpack(p.pack(g.initial)[:, 0].tolist()) == g.initial
