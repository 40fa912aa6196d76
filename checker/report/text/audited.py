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
from kvfence.checker.core.text_tables import paragraph, table

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
        parts += [
            paragraph(line, width=width, indent="  ", hanging="    ") for line in campaign.unchecked[:12]
        ]
    parts += [paragraph(line, width=width, hanging="    ") for line in _judged(campaign)]
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
    lines = [paragraph(f"{seen.invariant}: {seen.cause}.", width=width, hanging="    ")]

    def field(name: str, text: str) -> None:
        lines.append(paragraph(f"{name}: {text}", width=width, indent="    ", hanging=" " * 8))

    field("evidence", f"{_EVIDENCE[seen.evidence]}: {seen.detail}")
    if later := [name for name in finding.harm if name != seen.evidence]:
        field("later in that run", ", ".join(_EVIDENCE[name] for name in later))
    if finding.report:
        field("public report", finding.report)
    again = "" if finding.confirmed else "; it did not appear every time"
    field(
        "seen",
        f"in {finding.times} of {campaign.cases} cases, first after {finding.first_after:.0f} s{again}",
    )
    if finding.earlier:
        field("violated before it in that run", "; ".join(finding.earlier))
    lines += ["    the shortest case:", *(f"        {line}" for line in case_lines(finding.case))]
    lines += _story(seen, width)
    if files:
        field("files", ", ".join(str(path) for path in files))
    return "\n".join(lines)


def _story(seen: Sighting, width: int) -> list[str]:
    if not seen.story:
        return []
    told = [paragraph(line, width=width, indent=" " * 8, hanging=" " * 12) for line in seen.story]
    return [f"    what happened, up to engine step {seen.step}:", *told]


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
        head = paragraph(f"{seen.invariant}: {seen.cause}.", width=width, hanging="    ")
        told = paragraph(
            f"{_EVIDENCE[seen.evidence]}: {seen.detail}", width=width, indent="    ", hanging=" " * 8
        )
        written = ", ".join(str(path) for path in (files or {}).get(seen.key, ()))
        last = [paragraph(f"files: {written}", width=width, indent="    ", hanging=" " * 8)] * bool(written)
        parts.append("\n".join([head, told, *_story(seen, width), *last]))
    if outcome.refused:
        parts.append(paragraph(f"not run: {outcome.refused}", width=width))
    parts += [paragraph(f"not examined: {line}", width=width, hanging="    ") for line in outcome.unchecked]
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
