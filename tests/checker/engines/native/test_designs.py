"""Pure Python, numpy and C find the same in every machine of every named design."""

import pytest
import shapes
from _pytest.mark.structures import ParameterSet

from kvfence.checker.engines import Explore, Interpret, Native, Result
from kvfence.spec.designs import DESIGNS
from kvfence.spec.machines import MACHINES

# one element of a sort less, or more, than where most faults show: thousands of states
SIZES = {
    "block_pool": {"Block": 3, "Holder": 2, "Key": 1},
    "lookup": {"Request": 1, "Block": 3},
    "stream_order": {"Slot": 1, "Host": 1, "Operation": 2},
    "transfer": {"Request": 1, "Block": 2, "Host": 1, "Operation": 1, "Rank": 1},
    "scheduling": {"Request": 2, "Block": 2, "Host": 1},
    "ranks": {"Operation": 1, "Rank": 2},
    "geometry": {"Group": 2, "Token": 2},
    "loads": {"Request": 2, "Block": 2, "Group": 1},
    "verdicts": {"Request": 2},
    "tiers": {"Operation": 1, "Part": 1},
    "host_memory": {"Rank": 2, "Piece": 1, "Buffer": 1, "Operation": 2},
}

pytestmark = pytest.mark.usefixtures("compiled_without_optimisation")


# Of these machines the sound design and one other are enough for every run; the rest is slow.
ONE_OTHER = {
    "geometry": "writer_keeps_too_little",
    "loads": "sharer_not_rolled_back",
    "verdicts": "verdict_kept_after_failure",
    "tiers": "store_resurrects_key",
    "host_memory": "descriptor_reused_early",
}


def cases() -> list[ParameterSet]:
    return [
        pytest.param(
            d.name,
            machine,
            marks=[pytest.mark.slow] if d.breaks and ONE_OTHER.get(machine, d.name) != d.name else [],
        )
        for d in DESIGNS.values()
        for machine in d.machines
    ]


def facts(r: Result) -> dict[str, object]:
    """What engines must agree on: everything but the choice among shortest paths."""
    return {**shapes.facts(r), "premises": r.premises, "missing": r.missing}


@pytest.mark.parametrize(("design", "machine"), cases())
def test_all_engines_agree_on_every_machine_of_every_design(design: str, machine: str) -> None:
    m, sizes = MACHINES[machine](DESIGNS[design].faults), SIZES[machine]
    in_c = Native(threads=2).run(m, sizes)
    assert in_c.engine == "native"
    assert facts(in_c) == facts(Explore().run(m, sizes)) == facts(Interpret().run(m, sizes))


@pytest.mark.parametrize(("design", "machine"), cases())
def test_the_first_violation_is_as_deep_in_c_as_in_numpy(design: str, machine: str) -> None:
    if not DESIGNS[design].breaks:
        return
    m = MACHINES[machine](DESIGNS[design].faults)
    sizes = {sort: n for sort, n in DESIGNS[design].sizes.items() if sort in m.sorts}
    in_c = Native().run(m, sizes, until="first")
    assert facts(in_c) == facts(Explore().run(m, sizes, until="first"))
    if DESIGNS[design].breaks != "PROGRESS":  # which is about whole runs
        assert DESIGNS[design].breaks in {p.id for p in in_c.violated} or len(DESIGNS[design].machines) > 1


@pytest.mark.parametrize(("design", "machine"), cases())
def test_verdicts_under_symmetry_are_those_without(design: str, machine: str) -> None:
    m, sizes = MACHINES[machine](DESIGNS[design].faults), SIZES[machine]
    whole, reduced = (Native(symmetry=on).run(m, sizes) for on in (False, True))
    assert reduced.symmetry
    assert reduced.states < whole.states
    counts = ("states", "transitions", "coverage")
    drop = dict.fromkeys(counts)
    assert facts(reduced) | drop == facts(whole) | drop
    assert {a for a, n in reduced.coverage.items() if n} == {a for a, n in whole.coverage.items() if n}
