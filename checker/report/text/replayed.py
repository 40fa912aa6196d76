"""The report of ``kvfence replay`` as text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kvfence.checker.adapters.reference import Replayed
from kvfence.checker.core.text_tables import item, paragraph, table
from kvfence.checker.ledger.violation_text import violation_text


def replayed_text(found: Replayed, *, width: int) -> str:
    """The whole report."""
    options = ", ".join(f"{name} {value}" for name, value in found.options.items() if value is not None)
    parts = [item(f"{found.path}, replayed with {options}.", width)]
    if found.run is not None:
        parts.append(table(("what", "how much"), list(_figures(found.run)), width=width))
    if found.judged:
        checks = sorted(found.checks.items())
        rows = [(invariant, f"{count:,}" if count else "not judged") for invariant, count in checks]
        parts.append(table(("invariant", "checks made"), rows, width=width))
    parts += [violation_text(violation, width=width) for violation in found.violations]
    if found.broke:
        parts.append(item(f"The run failed: {found.broke}.", width))
    if found.recorded:
        parts.append(f"Recorded in {found.recorded}.")
    return "\n\n".join([*parts, paragraph(_summary(found), width=width)])


FIGURES = (
    ("requests", "{requests:,} taken; finished: {finished}"),
    ("steps", "{steps:,}"),
    ("tokens", "{prompt_tokens:,} of prompts, {output_tokens:,} of output"),
    ("computed", "{tokens_computed:,} tokens"),
    ("hit in GPU", "{local_hit_tokens:,} tokens, {gpu:.1%}"),
    ("hit in CPU", "{external_hit_tokens:,} tokens, {cpu:.1%}"),
    ("stores", "{stores:,} of {stored_blocks:,} blocks, {failed_stores:,} failed"),
    (
        "loads",
        "{loads:,} of {loaded_blocks:,} blocks, {failed_loads:,} failed, {partial_loads:,} of them in part",
    ),
    (
        "files",
        "{disk_stored_blocks:,} blocks written, {fetched_blocks:,} fetched; "
        "{lost_files:,} files lost, {failed_fetches:,} transfers from them failed",
    ),
    ("not stored", "{drops} (blocks by reason)"),
    ("evicted", "{evicted} (blocks by pool)"),
    ("preemptions", "{preemptions:,}"),
    ("resets", "{resets:,} done, {resets_refused:,} refused"),
    ("contents", "{in_full:,} blocks read in full, {sampled:,} as a sample; none was wrong"),
    ("seconds", "{seconds:.1f}"),
)
"""The figures of a run and how each is printed; that on files only where there are any."""


def _figures(run: dict[str, Any]) -> Iterator[tuple[str, str]]:
    values = {"seconds": run["seconds"], "evicted": run["evicted"]}
    values |= run["stats"] | run["hit_rates"] | run["oracle"]
    texts = {name: _counts(value) for name, value in values.items() if isinstance(value, dict)}
    for what, form in FIGURES:
        if what != "files" or values["disk_stored_blocks"]:
            yield what, form.format_map(values | texts)


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items())) or "none"


def _summary(found: Replayed) -> str:
    design = found.options.get("design", "sound")
    if found.violations or found.broke:
        broken = ", ".join(violation.invariant for violation in found.violations)
        what = f"It breaks {broken} on this traffic." if broken else "The run failed on this traffic."
        if found.judged and found.expected not in {"", *(one.invariant for one in found.violations)}:
            what += f" {found.expected}, which it is known to break, was not violated."
        return f"{design}: violated. {what}"
    judged = f"{sum(found.checks.values()):,} checks over {found.events:,} events"
    if found.why == "interrupted":
        end = judged if found.judged else "Events were not judged, as --no-assert says."
        return f"{design}: undetermined. Interrupted; no violation until then. {end}"
    if found.why == "nothing ran":
        return f"{design}: undetermined. No request fits into these pools: no step was taken. {judged}."
    if found.why:
        why = "No event was judged." if found.judged else "Events were not judged, as --no-assert says."
        return f"{design}: not judged. {why} {_compared(found)}"
    holds = f"{design}: holds. No invariant broken in {judged}, and no block with wrong content was read."
    known = f" This traffic does not expose the fault: it should violate {found.expected}."
    return f"{holds}{known if found.expected else ''}"


def _compared(found: Replayed) -> str:
    """What the content oracle did, which watches in any case."""
    oracle = found.run["oracle"] if found.run is not None else {"in_full": 0, "sampled": 0}
    if not oracle["in_full"] and not oracle["sampled"]:
        return "No content was compared either."
    return (
        f"The contents of {oracle['in_full']:,} blocks read in full and {oracle['sampled']:,} as a sample "
        "were compared, and none was wrong; that says nothing about the invariants."
    )
