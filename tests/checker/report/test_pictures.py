"""Pictures: well-formed, complete in themselves, and right about who holds what and what has no order."""

import inspect
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from kvfence.checker.analysis.recorded.slot_holders import Holding
from kvfence.checker.analysis.results import Counterexample
from kvfence.checker.analysis.verify import verify
from kvfence.checker.engines.explicit.interpret import Interpreter
from kvfence.checker.order.races import OrderChecker
from kvfence.checker.report.diagrams import sequence, timeline
from kvfence.checker.report.diagrams import slot_history as slots
from kvfence.checker.report.diagrams.action_coverage import coverage
from kvfence.checker.report.diagrams.messages import OrderSpeaker, Speaker
from kvfence.checker.report.diagrams.svg import Canvas, cut, palette
from kvfence.spec import events as ev
from kvfence.spec import order as od
from kvfence.spec.designs import DESIGNS

NAMES = ("unpinned_lookup", "over_pop", "late_flush", "store_without_barrier", "flush_misses_queued")
LOOP = "fenced_victim_spin"


@pytest.fixture(scope="module")
def examples() -> dict[str, Counterexample]:
    return {
        name: verify(name, machine=DESIGNS[name].machines[0]).counterexamples[0] for name in (*NAMES, LOOP)
    }


def texts(picture: str) -> list[str]:
    """The texts of a picture, without what shows when they are pointed at."""
    elements = (e for e in ElementTree.fromstring(picture).iter() if e.tag.endswith("}text"))
    return ["".join((e.text or "", *(child.tail or "" for child in e))) for e in elements]


@pytest.mark.parametrize("name", [*NAMES, LOOP])
def test_a_sequence_diagram_has_every_step_and_marks_the_broken_one(
    name: str, examples: dict[str, Counterexample]
) -> None:
    example = examples[name]
    picture = sequence.of_counterexample(example)
    shown = texts(picture)
    for step in example.steps:
        assert any(t.startswith(f"{step.number}. {step.action}(") for t in shown)
    assert picture.count('class="boxred"') == (0 if example.loop is not None else 1)
    assert any("repeated forever" in t for t in shown) == (example.loop is not None)
    assert not re.search(r"(href|src|url\()", picture.replace("xmlns=", ""))


def test_what_is_held_is_what_the_machine_says(examples: dict[str, Counterexample]) -> None:
    example = examples["late_flush"]
    header: object = example.header
    assert isinstance(header, ev.Header)
    from kvfence.spec.machines import MACHINES

    run = Interpreter(MACHINES["transfer"](frozenset({"late_flush"})))
    state, holding = run.initial(), Holding(header)
    for step in example.steps:
        state, _ = run.step(state, run.find(step.action, **step.arguments))
        for event in step.observed:
            holding(event)
        view = run.view(state)
        held = {slot: set(by) for slot, by in holding.held().items() if by}
        pins = [("gpu", b, f"req:{r}.{view.gen[r]}") for (r, b), yes in view.table.items() if yes]
        for pool, pinned in (("gpu", view.op_pin), ("cpu", view.host_pin)):
            pins += [(pool, slot, f"op:{o}.{view.uses[o] - 1}") for (o, slot), yes in pinned.items() if yes]
        slots_held = {(pool, slot) for pool, slot, _ in pins}
        assert held == {place: {by for *at, by in pins if tuple(at) == place} for place in slots_held}


def test_a_timeline_draws_the_missing_edge_between_two_accesses(examples: dict[str, Counterexample]) -> None:
    for name in ("store_without_barrier", "flush_misses_queued"):
        picture = timeline.of_counterexample(examples[name])
        assert picture is not None
        assert "missing" in texts(picture)
        assert picture.count('class="boxred"') == 2
        assert picture.count("red dashed thick") == 2  # the edge, and the legend
    assert timeline.of_counterexample(examples["unpinned_lookup"]) is None


def test_a_timeline_without_a_race_has_no_red() -> None:
    header = od.Header(
        producer="t",
        threads=(0, 1),
        streams=(od.Stream(1, name="compute"), od.Stream(2, name="copy")),
        regions=(od.Region(0, at=0, bytes=64, name="gpu", slot=32),),
    )
    events: list[od.OrderEvent] = [
        od.Kernel(0, 1, writes=[(0, 0, 32)], name="write"),
        od.Record(0, 1, 7),
        od.Wait(0, 2, 7),
        od.Kernel(0, 2, reads=[(0, 0, 32)], name="read"),
        od.SyncStream(0, 2),
        od.Put(0, 0, 5),
        od.Get(1, 0, 5),
    ]
    checker = OrderChecker(header)
    checker.apply_all(events)
    assert not checker.races
    picture = timeline.timeline(header, events)
    shown = texts(picture)
    assert "boxred" not in picture.split("</style>")[1]
    assert {"record 7", "wait 7", "write writes gpu[0]", "read reads gpu[0]", "put item 5"} <= set(shown)
    # the wait stands right of the record that it waits for
    boxes = {e.get("x"): e for e in ElementTree.fromstring(picture).iter() if e.tag.endswith("rect")}
    assert len(boxes) > 5


def test_slot_histories_have_a_row_for_each_block_that_is_used(examples: dict[str, Counterexample]) -> None:
    shown = texts(slots.of_counterexample(examples["late_flush"]))
    assert {"gpu 0", "cpu 0"} <= set(shown)
    assert "nobody" in shown  # a copy reads the block, and nobody holds it
    of_values = texts(slots.of_counterexample(examples["flush_misses_queued"]))
    assert "use[0]" in of_values


def test_the_last_row_of_a_slot_history_is_what_the_events_say(examples: dict[str, Counterexample]) -> None:
    example = examples["unpinned_lookup"]
    header: object = example.header
    assert isinstance(header, ev.Header)
    holding = Holding(header)
    for event in example.trace:
        holding(event)
    assert holding.look(("cpu", 0)) == "cached"
    assert holding.described(("cpu", 0)) == "cpu 0: held by nobody, in the prefix index"


def test_coverage_shows_what_is_never_taken() -> None:
    shown = texts(coverage({"a": 10, "b": 3}, {"a": 12, "b": 0, "c": 1}, title="t"))
    assert "10 / 12" in shown
    assert "3 / never" in shown
    assert "no such action / 1" in shown


def built(kind: type[Any], by_name: dict[str, object], by_annotation: dict[str, object]) -> Any:
    """An event with values by the name of a field, or by what its annotation contains; 0 for the others."""
    written = {k: str(v) for base in kind.__mro__ for k, v in inspect.get_annotations(base).items()}

    def value(name: str) -> object:
        found = (value for part, value in by_annotation.items() if part in written[name])
        return by_name[name] if name in by_name else next(found, 0)

    return kind(**{name: value(name) for name in kind.__struct_fields__})


@pytest.mark.parametrize("kind", ev.Event.__args__)
def test_every_event_of_the_trace_format_says_something(kind: type[Any]) -> None:
    pools = (ev.Pool("gpu", 4), ev.Pool("cpu", 4))
    texts = dict.fromkeys(("req", "holder", "why", "what", "kind"), "x")
    names = dict.fromkeys(("pool", "src_pool", "dst_pool"), "gpu")
    event = built(
        kind, {**texts, **names, "reqs": ["0"], "pools": ["gpu"]}, {"Numbers": [0], "Sequence": [0]}
    )
    speak = Speaker(ev.Header(producer="t", pools=pools, groups=(ev.Group("gpu", 1),)))
    said = speak(event)
    assert said
    assert all(m.source in speak.lanes and m.to in speak.lanes for m in said)


@pytest.mark.parametrize("kind", od.OrderEvent.__args__)
def test_every_order_event_is_drawn(kind: type[Any]) -> None:
    regions = (od.Region(0, at=0, bytes=64, name="m"),)
    header = od.Header(producer="t", threads=(0, 1), streams=(od.Stream(0),), regions=regions)
    event = built(kind, {"order": "stream", "child": 1}, {"Range": [(0, 0, 8)], "Sequence": [], "str": "x"})
    assert bool(OrderSpeaker(header)(event)) == (kind not in {od.Declare, od.Own})
    ElementTree.fromstring(timeline.timeline(header, [event]))


def test_shapes_stay_inside_the_picture() -> None:
    c = Canvas()
    c.rect(10, 20, 300, 40, "box")
    c.text(400, 50, "0123456789")
    root = ElementTree.fromstring(c.svg("t"))
    _, _, width, height = map(float, (root.get("viewBox") or "").split())
    assert width > 470
    assert height > 60


def test_text_is_escaped_and_cut() -> None:
    c = Canvas()
    c.text(0, 10, "<&>", title="a<b")
    assert texts(c.svg("x<y")) == ["<&>"]
    assert cut("abcdef", 20) == "a…"
    assert cut("ab", 20) == "ab"


def test_colours_are_for_light_dark_and_print() -> None:
    assert "prefers-color-scheme:dark" in palette()
    assert "@media print" in palette()


@pytest.mark.parametrize("name", [*NAMES, LOOP])
def test_pictures_are_small(name: str, examples: dict[str, Counterexample], tmp_path: Path) -> None:
    for draw in (sequence.of_counterexample, slots.of_counterexample):
        path = tmp_path / "picture.svg"
        path.write_text(draw(examples[name]), encoding="utf-8")
        assert path.stat().st_size < 200_000
        ElementTree.parse(path)
