"""The report of `kvfence explain`: the story of a recorded violation as text, as pictures and as HTML."""

from __future__ import annotations

import copy

from msgspec.structs import replace

from kvfence.checker.analysis.recorded.explain import Explained, OrderStory, Story
from kvfence.checker.core.text_tables import item
from kvfence.checker.ledger.violation_text import event_text, holders_text, violation_text
from kvfence.checker.report.diagrams import sequence, timeline
from kvfence.checker.report.diagrams import slot_history as slots
from kvfence.checker.report.html.page import page
from kvfence.checker.report.text.raced import race_text
from kvfence.spec import events as ev

Pictures = dict[str, tuple[str, str]]
"""Caption and SVG of each picture, by the name of its file."""


def explained_text(found: Explained, *, width: int) -> str:
    """The violation with its values, then the events that led to it, each with who holds what afterwards."""
    parts = []
    if isinstance(found.story, Story):
        # the events that follow are its history
        bare = replace(found.story.violation, holders={}, history={})
        parts = [violation_text(bare, width=width), _events(found.story, width)]
    elif isinstance(found.story, OrderStory):
        parts = [race_text(1, found.story.race, 1, None, width=width)]
    parts += [item(f"{note}.", width) for note in found.notes]
    parts.append(f"{found.path}: {found.verdict}.")
    return "\n\n".join(parts)


def _events(story: Story, width: int) -> str:
    holding = copy.deepcopy(story.before)
    lines = ["The events that led to it, and the holders of the slots afterwards:"]
    if story.left_out:
        lines.append(f"    ({story.left_out:,} earlier events left out)")
    known: dict[object, object] = {}
    for number, event in story.events:
        holding(event)
        lines.append(item(f"{number}. {event_text(ev.listed(event))}", width, 4))
        held = {slot: by for slot, by in holding.held().items() if slot in story.slots}
        for slot, by in held.items():
            if known.get(slot) != by:
                lines.append(f"{' ' * 8}{slot[0]} {slot[1]}: {holders_text(by)}")
        known = dict(held)
    return "\n".join(lines)


def pictures(found: Explained) -> Pictures:
    """The pictures of the story; none when nothing is wrong."""
    story = found.story
    if isinstance(story, OrderStory):
        return _order_pictures(story)
    if not isinstance(story, Story):
        return {}
    v = story.violation
    title = f"{v.invariant} is broken by event {v.number}"
    why = f"{v.invariant} is broken: it is not true that {v.condition}"
    header, before, events, involved = story.header, story.before, story.events, story.slots
    diagram = sequence.of_events(
        header, copy.deepcopy(before), events, broken=v.number, why=why, title=title, slots=involved
    )
    drawn = {"sequence": ("Calls and answers, and the holders of the slots afterwards", diagram)}
    if story.slots:
        history = slots.of_events(
            header, copy.deepcopy(before), events, involved, broken=v.number, title=title
        )
        drawn["slots"] = ("The slots involved, after each event", history)
    return drawn


def _order_pictures(story: OrderStory) -> Pictures:
    race = story.race
    title = f"{race.invariant or 'race'}: {race.bytes} bytes of {race.region}"
    track = timeline.timeline(story.header, story.events, offset=story.first, race=race, title=title)
    wrong = {race.first.number: "nothing orders this access", race.second.number: "and this one"}
    numbered = list(enumerate(story.events, story.first))
    diagram = sequence.of_order_events(story.header, numbered, wrong=wrong, title=title)
    return {
        "timeline": ("What each thread calls and each stream runs; arrows say what comes before what", track),
        "sequence": ("The calls in the order in which they were made", diagram),
    }


def explained_html(found: Explained) -> str:
    """The page of a recorded violation."""
    return page(
        "explain.html.j2",
        found=found,
        text=explained_text(found, width=110),
        headline=headline(found),
        pictures=pictures(found),
    )


def headline(found: Explained) -> str:
    """The verdict in a sentence."""
    story = found.story
    if isinstance(story, Story):
        return f"{story.violation.invariant} is violated by event {story.violation.number}"
    if isinstance(story, OrderStory):
        name = story.race.invariant or "a race"
        return f"{name}: nothing orders events {story.race.first.number} and {story.race.second.number}"
    return "nothing is violated" if found.verdict == "holds" else "undetermined"
