"""The explorer walks a machine by action indexes, says what holds where it is, and compares designs."""

from __future__ import annotations

import pytest

from kvfence.checker.cli.explorer.walk import Explorer, explorer_of
from kvfence.spec.errors import CannotRun
from kvfence.spec.machines import MACHINES


@pytest.fixture(scope="module")
def lookup() -> Explorer:
    return explorer_of("lookup", "unpinned_lookup", {})


def named(explorer: Explorer, design: str, names: list[str]) -> list[int]:
    """The indexes of actions taken one after the other."""
    path: list[int] = []
    for name in names:
        enabled = explorer.position(design, path)["actions"]
        path.append(next(action["index"] for action in enabled if action["name"] == name))
    return path


STORY = ["begin_store(b=0, first=True)", "end_store(b=0)", "submit(r=0)", "lookup(r=0, local=0)"]


def test_a_position_is_its_path_and_everything_that_holds_there(lookup: Explorer) -> None:
    path = named(lookup, "unpinned_lookup", STORY)
    at = lookup.position("unpinned_lookup", path)
    assert [step["name"] for step in at["steps"]] == STORY
    assert at["steps"][-1]["changes"] == ["promise[0, 0]: false → true"]
    broken = [one for one in at["invariants"] if not one["holds"]]
    assert [one["id"] for one in broken] == ["PIN"]
    assert "promise[0, 0] = true" in broken[0]["values"]
    before = lookup.position("unpinned_lookup", path[:-1])
    assert all(one["holds"] for one in before["invariants"])
    assert at["slots"][0]["text"].startswith("cached")


def test_a_search_finds_the_shortest_way_and_says_when_there_is_none(lookup: Explorer) -> None:
    path = lookup.search("unpinned_lookup", "promised_blocks_have_a_holder")
    assert len(path) == len(STORY)
    at = lookup.position("unpinned_lookup", path)
    assert [one["id"] for one in at["invariants"] if not one["holds"]] == ["PIN"]
    goal = lookup.position("sound", [])["goals"][0]["name"]
    reached = lookup.position("sound", lookup.search("sound", goal))
    assert next(one for one in reached["goals"] if one["name"] == goal)["here"]
    with pytest.raises(CannotRun, match="has no way to promised blocks"):
        lookup.search("sound", "promised_blocks_have_a_holder")


def test_the_other_design_shows_where_it_differs_and_what_it_refuses(lookup: Explorer) -> None:
    path = named(lookup, "unpinned_lookup", [*STORY, "evict(b=0)"])
    at = lookup.position("unpinned_lookup", path[:-1], "sound")
    assert at["other"]["refused"] is None
    differing = [
        cell["label"] for t in at["tables"] for row in t["rows"] for cell in row["cells"] if cell["other"]
    ]
    assert "pin[0, 0]" in differing
    refused = lookup.position("unpinned_lookup", path, "sound")["other"]
    assert refused["refused"] == 5
    assert "pin[r, 0]" in refused["why"]
    assert lookup.translate("unpinned_lookup", path, "sound") == path[:4]


@pytest.mark.parametrize(
    ("path", "hint"),
    [([999_999], "no action 999999"), ([0, 0], "step 2 .* cannot be taken"), ([0] * 3000, "3000")],
)
def test_a_path_that_does_not_exist_is_one_clear_message(
    lookup: Explorer, path: list[int], hint: str
) -> None:
    with pytest.raises(CannotRun, match=hint):
        lookup.position("sound", path)


@pytest.mark.parametrize(
    ("machine", "design", "sizes", "hint"),
    [
        ("lookupp", None, {}, "lookupp"),
        ("lookup", "over_pop", {}, "over_pop"),
        ("lookup", "nonsense", {}, "nonsense"),
        ("lookup", None, {"Bloc": 2}, "Bloc"),
        ("none.py:build", None, {}, "none.py"),
    ],
)
def test_names_that_do_not_exist_are_told(
    machine: str, design: str | None, sizes: dict[str, int], hint: str
) -> None:
    with pytest.raises(CannotRun, match=hint):
        explorer_of(machine, design, sizes)


@pytest.mark.parametrize("machine", MACHINES)
def test_every_machine_can_be_walked_in_each_of_its_designs(machine: str) -> None:
    explorer = explorer_of(machine, None, {})
    for design in explorer.designs[:3]:
        path: list[int] = []
        for _ in range(10):
            at = explorer.position(design, path)
            if not at["actions"]:
                break
            path.append(at["actions"][len(path) % len(at["actions"])]["index"])
        assert len(explorer.position(design, path)["steps"]) == len(path) > 2
