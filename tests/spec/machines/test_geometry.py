"""The geometry machine: its designs with their stories, and its counts held against plain division."""

import random

import pytest
from stories import assert_breaks_by, assert_holds_and_does_all, assert_proof_needs_lemmas, faulty_designs

from kvfence.checker.engines.explicit.interpret import Interpreter
from kvfence.checker.ledger.state.attention_window import blocks_read, most_blocks_read
from kvfence.spec import events as ev
from kvfence.spec.language import View
from kvfence.spec.machines import geometry

STATE = ("describe(g=0, k=recurrent, n=1)",)
CHUNK = ("describe(g=0, k=chunked, n=1)", "widen(g=0)")
STORIES: dict[str, tuple[str, ...]] = {
    "aligned_window_bound": (
        "describe(g=0, k=recurrent, n=2)",
        "look_further_ahead()",
        "begin()",
        "write()",
        "write()",
    ),
    "eagle_marks_every_group": (
        "describe(g=0, k=recurrent, n=1)",
        "look_further_ahead()",
        "begin()",
        *["write()"] * 3,
        "look_up()",
    ),
    "null_blocks_counted": (
        *(*CHUNK, "begin()", "write()", "write()"),
        *("look_up()", "accept()", "allocate(g=0, h=0)"),
    ),
    "other_groups_block_size": (
        *(*CHUNK, "describe(g=1, k=full, n=1)", "begin()", "write()", "write()"),
        *("look_up()", "accept()", "allocate(g=0, h=1)"),
    ),
    "writer_keeps_too_little": (*STATE, "begin()", "write()", "write()", "slide(g=0)"),
    "promise_longer_than_acceptable": (*STATE, "begin()", "write()", "write()", "look_up()", "accept()"),
}
"""The steps to each violation: the smallest prompt and blocks that show it."""


def test_there_is_a_story_for_every_design() -> None:
    assert faulty_designs("geometry") == set(STORIES)


@pytest.mark.parametrize("design", STORIES)
def test_each_design_breaks_its_invariant_by_its_story_and_no_shorter_one(design: str) -> None:
    assert_breaks_by(design, STORIES[design])


def test_the_sound_design_holds_at_a_small_size_and_can_do_what_it_is_for() -> None:
    assert_holds_and_does_all(geometry.build(), {"Token": 5})


def group_of(view: View, g: int) -> ev.Group:
    """A group of the machine as one of a trace's header; the window there counts the reading token too."""
    kinds: dict[str, ev.GroupKind] = {
        "full": "full",
        "window": "sliding",
        "chunked": "chunked",
        "recurrent": "recurrent",
    }
    kind = kinds[str(view.kind[g])]
    window = {"sliding": view.reach[g] + 1, "chunked": view.reach[g]}.get(kind)
    return ev.Group("gpu", block_size=view.size[g], window=window, kind=kind)


def walk(seed: int, tokens: int, ahead: int) -> list[View]:
    """The states of one random run with two groups, written to the end, with readers on the way."""
    run, draw = Interpreter(geometry.build(), {"Token": tokens, "Ahead": ahead}), random.Random(seed)
    state, seen = run.initial(), []
    for _ in range(9 * tokens):
        ways = run.enabled(state)
        name = draw.choice(sorted({i.name for i in ways}))  # or there would be little but set-up
        state, failed = run.step(state, draw.choice([i for i in ways if i.name == name]))
        assert not failed
        assert not run.violated(state)
        seen.append(run.view(state))
    return seen


@pytest.mark.parametrize("seed", range(24))
def test_positions_without_a_division_are_what_division_gives(seed: int) -> None:
    for view in walk(seed, tokens=9, ahead=2):
        if view.phase == "shape":
            continue
        for g in (0, 1):
            size, group = view.size[g], group_of(view, g)
            assert divmod(view.length, size) == (view.at_blocks[g], view.at_offset[g])
            assert divmod(view.reach[g], size) == (view.reach_blocks[g], view.reach_offset[g])
            assert divmod(view.ahead, size) == (view.ahead_blocks[g], view.ahead_offset[g])
            read = blocks_read(group, view.length)
            if read:
                assert read.start == view.first_blocks[g]
            assert view.kept[g] <= view.first_blocks[g]


@pytest.mark.parametrize("seed", range(24))
def test_a_hit_ends_a_block_of_every_group_and_has_all_that_is_read_behind_it(seed: int) -> None:
    for view in walk(seed, tokens=9, ahead=1):
        if view.phase != "accepted":
            continue
        assert 0 <= view.hit < view.length
        for g in (0, 1):
            assert view.hit % view.size[g] == 0
            assert view.hit // view.size[g] == view.hit_blocks[g]
            read = blocks_read(group_of(view, g), view.hit)
            kept = range(view.hit_from[g], view.hit_blocks[g])
            assert set(read) <= set(kept)
            if view.counted[g] and read:
                assert view.claim[g] == len(read)


def test_the_walks_meet_hits_with_and_without_null_blocks_and_a_drafter() -> None:
    met = [
        v for seed in range(24) for v in walk(seed, tokens=9, ahead=1) if v.phase == "accepted" and v.hit > 0
    ]
    assert any(v.hit_from[0] > 0 or v.hit_from[1] > 0 for v in met)
    assert any(v.ahead > 0 for v in met)
    assert any(v.size[0] != v.size[1] for v in met)


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("reach", [1, 2, 3, 4, 5, 6])
def test_the_bound_is_what_some_window_touches(size: int, reach: int) -> None:
    touched = max((at + reach - 1) // size - at // size + 1 for at in range(size))
    whole, rest = divmod(reach, size)
    assert touched == whole + (1 if rest <= 1 else 2)  # the machine's bound, without lookahead
    assert touched == most_blocks_read(ev.Group("gpu", size, window=reach + 1, kind="sliding"))


def test_a_window_of_4096_tokens_that_begins_anywhere_touches_129_blocks_of_32() -> None:
    whole, rest = divmod(4096, 32)
    assert (whole, whole + (1 if rest <= 1 else 2)) == (128, 129)
    # token 98012 stands 28 tokens behind the start of a block
    assert len({at // 32 for at in range(98012 - 4096, 98012)}) == 129


@pytest.mark.slow
def test_without_its_lemmas_the_proof_does_not_go_through() -> None:
    assert_proof_needs_lemmas(geometry.build(), {"Group": 1, "Token": 2})
