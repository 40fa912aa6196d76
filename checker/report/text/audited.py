"""The report of ``kvfence audit`` as text: each finding with its story, then what was done."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from kvfence.checker.audit.campaign import Campaign, Finding
from kvfence.checker.audit.cases.case import Case, Setup
from kvfence.checker.audit.cases.outcome import Outcome, Sighting
from kvfence.checker.audit.findings import grounds_of, verdict_of
from kvfence.checker.audit.release_table import rows
from kvfence.checker.core.text_tables import item, paragraph, table

_EVIDENCE = {
    "rule": "a rule of the ledger",
    "content": "attention reads the content of another block",
    "exception": "an exception of the engine",
    "race": "two accesses that nothing orders",
    "leak": "slots are held when no request is left",
    "stall": "no more progress",
    "lost": "a block is lost without a reason",
}
_HEADS = {
    "fault": "Found",
    "engine": "Found, but the engine does the same without a connector",
    "noted": "Noted: a rule is broken without observed harm, or a fault listed above appears again",
}


def audit_text(campaign: Campaign, *, width: int, files: Mapping[str, Sequence[Path]] | None = None) -> str:
    """One campaign."""
    parts = []
    for grounds, head in _HEADS.items():
        found = [finding for finding in campaign.findings if grounds_of(finding) == grounds]
        if not found:
            continue
        parts.append(f"{head}:")
        if grounds == "fault":
            parts += [_finding_text(f, campaign, width, (files or {}).get(f.key, ())) for f in found]
        else:
            parts += [paragraph(f"{f.key} ({f.times} cases)", width=width, indent="  ") for f in found]
    if campaign.unchecked:
        parts.append("Not examined:")
        parts += [item(line, width, 2, 4) for line in campaign.unchecked[:12]]
    parts += [item(line, width) for line in _judged(campaign)]
    if campaign.broke:
        parts.append(paragraph(f"The audit stopped early: {campaign.broke}", width=width))
    return "\n\n".join([*parts, paragraph(summary(campaign), width=width)])


def _judged(campaign: Campaign) -> Iterator[str]:
    """Which invariants something was judged by, how often, and which nothing was."""
    made = ", ".join(f"{name} {count:,}" for name, count in sorted(campaign.checks.items()) if count)
    none = ", ".join(name for name, count in sorted(campaign.checks.items()) if not count)
    if made:
        yield f"Checks made: {made}."
    if none:
        yield f"Not judged: {none}."


def summary(campaign: Campaign) -> str:
    """What was done, in two sentences."""
    faults = sum(grounds_of(finding) == "fault" for finding in campaign.findings)
    end = " Interrupted; the findings until then are above." if campaign.interrupted else ""
    went = ", ".join(f"{count:,} {name}" for name, count in sorted(campaign.counts.items()) if count)
    return (
        f"{campaign.target}: {verdict_of(campaign)}, {faults} fault(s). {campaign.cases:,} cases "
        f"({campaign.refused} of them not run), {campaign.steps:,} steps, {campaign.events:,} "
        f"events, {campaign.accesses:,} accesses; {went}; "
        f"seed {campaign.seed}, {campaign.seconds:.0f} s.{end}"
    )


def _finding_text(finding: Finding, campaign: Campaign, width: int, files: Sequence[Path]) -> str:
    seen = finding.sighting
    again = "" if finding.confirmed else "; it did not appear every time"
    first = f"first after {finding.first_after:.0f} s{again}"
    fields = {
        "later in that run": ", ".join(_EVIDENCE[name] for name in finding.harm if name != seen.evidence),
        "public report": finding.report,
        "seen": f"in {finding.times} of {campaign.cases} cases, {first}",
        "violated before it in that run": "; ".join(finding.earlier),
    }
    lines = [_head(seen, width), item(f"evidence: {_evidence(seen)}", width, 4)]
    lines += [item(f"{name}: {text}", width, 4) for name, text in fields.items() if text]
    lines += ["    the shortest case:", *(f"        {line}" for line in case_lines(finding.case))]
    return "\n".join([*lines, *_story(seen, width, files)])


def _head(seen: Sighting, width: int) -> str:
    return item(f"{seen.invariant}: {seen.cause}.", width)


def _evidence(seen: Sighting) -> str:
    return f"{_EVIDENCE[seen.evidence]}: {seen.detail}"


def _story(seen: Sighting, width: int, files: Sequence[Path]) -> list[str]:
    """What happened, and the files in which it is recorded."""
    steps = [item(line, width, 8) for line in seen.story]
    head = [f"    what happened, up to engine step {seen.step}:"] if steps else []
    written = [item(f"files: {', '.join(map(str, files))}", width, 4)] if files else []
    return [*head, *steps, *written]


def case_lines(case: Case) -> list[str]:
    """A case in a few lines."""
    usual = Setup()
    shown = [
        f"{name}={_value(getattr(case.setup, name))}"
        for name in Setup.__struct_fields__
        if getattr(case.setup, name) != getattr(usual, name)
        or name in {"block_size", "gpu_blocks", "cpu_blocks"}
    ]
    lines = [", ".join(shown)]
    for action in case.actions:
        fields = [
            f"{field.name}={_value(value)}"
            for field in msgspec.structs.fields(action)
            if (value := getattr(action, field.name)) != field.default
        ]
        lines.append(" ".join((str(action.__struct_config__.tag), *fields)))
    return lines


def _value(value: object) -> str:
    return "/".join(map(str, value)) if isinstance(value, tuple) else str(value).lower()


def outcome_text(
    name: str, case: Case, outcome: Outcome, *, width: int, files: Mapping[str, Sequence[Path]] | None = None
) -> str:
    """One case that was run again."""
    parts = ["\n".join(case_lines(case))]
    for seen in outcome.sightings:
        story = _story(seen, width, (files or {}).get(seen.key, ()))
        parts.append("\n".join([_head(seen, width), item(_evidence(seen), width, 4), *story]))
    if outcome.refused:
        parts.append(paragraph(f"not run: {outcome.refused}", width=width))
    parts += [item(f"not examined: {line}", width) for line in outcome.unchecked]
    went = ", ".join(f"{count:,} {what}" for what, count in sorted(outcome.counts.items()) if count)
    end = f"{name}: {len(outcome.sightings)} sighting(s), {outcome.steps} steps, {outcome.events} events"
    end += f"; {went}." if went else "."
    return "\n\n".join([*parts, paragraph(end, width=width)])


def table_text(names: Sequence[str], campaigns: Sequence[Campaign], *, width: int) -> str:
    """Releases side by side."""
    found = rows(campaigns)
    if not found:
        return "No fault was found in any of them."
    cells = [(*row[2:], f"{row[0]}" + (f" ({row[1]})" if row[1] else "")) for row in found]
    return table((*names, "fault"), cells, width=width)
