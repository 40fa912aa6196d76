"""Reports as HTML: one page that is complete in itself, with its pictures inside."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import jinja2

from kvfence import __version__
from kvfence.checker.analysis.results import Counterexample
from kvfence.checker.analysis.review.facts import MachineReview, Review
from kvfence.checker.report.diagrams import sequence, timeline
from kvfence.checker.report.diagrams import slot_history as slots
from kvfence.checker.report.diagrams.action_coverage import coverage
from kvfence.checker.report.diagrams.svg import palette, picture_style
from kvfence.checker.report.html.policy import page_policy
from kvfence.checker.report.text import review_proofs, reviewed
from kvfence.checker.report.text.verdicts import call, shown

MOST_STORIES = 6
"""Stories of a machine that are drawn."""


def review_html(found: Review) -> str:
    """The page of a review."""
    machines = [_machine(m) for m in found.machines]
    return page("review.html.j2", found=found, machines=machines, proofs=review_proofs, text=reviewed)


def _machine(m: MachineReview) -> dict[str, Any]:
    stories = [(row, row.story) for row in m.invariants if row.story is not None]
    stories.sort(key=lambda pair: (not pair[0].first, pair[0].effect != "worse"))
    drawn = [{"row": row, "story": s, "pictures": pictures(s)} for row, s in stories[:MOST_STORIES]]
    base, change = (m.base.taken if m.base else {}), (m.change.taken if m.change else {})
    bars = coverage(base, change, title=f"Actions of {m.machine}, on a logarithmic scale") if base else ""
    return {"review": m, "stories": drawn, "coverage": bars, "evidence": list(review_proofs.evidence(m))}


def pictures(example: Counterexample) -> list[tuple[str, str]]:
    """The pictures of a counterexample, each with its caption."""
    order = timeline.of_counterexample(example)
    held = "" if order is not None else ", and the holders of each slot afterwards"
    drawn = [(f"Calls and answers{held}", sequence.of_counterexample(example))]
    if order is not None:
        drawn.append(
            ("What each thread calls and each stream runs; arrows say what comes before what", order)
        )
    drawn.append(("Each slot, or each value, after each step", slots.of_counterexample(example)))
    return drawn


def page(template: str, **values: object) -> str:
    """A page from one of the templates of this folder."""
    return (
        _templates()
        .get_template(template)
        .render(
            version=__version__,
            palette=palette(),
            policy=lambda css: page_policy([str(css), picture_style()]),
            call=call,
            shown=shown,
            **values,
        )
    )


@cache
def _templates() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
