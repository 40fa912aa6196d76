"""The report of ``kvfence races`` as text."""

from __future__ import annotations

from kvfence.checker.core.text_tables import item, paragraph, table
from kvfence.checker.order.happens_before import Explanation
from kvfence.checker.order.race_check import Explained, RaceReport
from kvfence.checker.order.races import Access, Race

LONGEST_PATH = 8
"""Events of a path that are shown."""


def races_text(found: RaceReport, *, width: int) -> str:
    """Every race kept, with its explanation if there is one, and a summary."""
    explained = {one.race: one for one in found.explained}
    parts = [_checks_table(found, width=width)] if found.checks else []
    parts += [
        race_text(index + 1, race, times, explained.get(index), width=width)
        for index, (race, times) in enumerate(zip(found.races, found.times, strict=True))
    ]
    if found.notes:
        parts.append("\n".join(item(f"{note}.", width) for note in found.notes))
    rate = found.events / found.seconds if found.seconds else 0.0
    count = f"{found.found:,} unordered pairs in {len(found.races):,} races, " if found.found else ""
    work = f"{found.events:,} events, {found.accesses:,} accesses"
    summary = f"{found.path}: {found.verdict}. {count}{work}, {found.seconds:.1f} s, {rate:,.0f} events/s."
    return "\n\n".join([*parts, paragraph(summary, width=width)])


def _checks_table(found: RaceReport, *, width: int) -> str:
    """Per invariant: the pairs of accesses that it orders which were compared, and those without order."""
    races = found.violation_counts
    rows = [
        (invariant or "(no copy)", found.verdicts[invariant], f"{count:,}", f"{races.get(invariant, 0):,}")
        for invariant, count in sorted(found.checks.items(), key=lambda row: (not row[0], row))
    ]
    columns = ("invariant", "verdict", "pairs compared", "without order")
    return table(columns, rows, width=width, right=frozenset(columns[2:]))


def race_text(number: int, race: Race, times: int, why: Explained | None, *, width: int) -> str:
    """One race: the two accesses, the missing order, and the explanation if there is one."""
    where = f"{race.bytes} bytes of {race.region} at offset {race.offset}"
    if race.slots:
        first, last = race.slots
        where += f" (slot {first})" if first == last else f" (slots {first} to {last})"
    if race.owner:
        where += f", owned by {race.owner}"
    breaks = f" {race.invariant}:" if race.invariant else ""
    often = "" if times == 1 else f", {times} times"
    lines = [paragraph(f"race {number}{often}:{breaks} nothing orders two accesses to {where}.", width=width)]
    for name, access in (("first", race.first), ("then", race.second)):
        lines += _access_lines(name, access, width)
    lines.append(item(f"missing: {race.missing}.", width, 4, 13))
    if why is not None:
        lines += _explanation_text(why.explanation, width=width)
        lines += _witness_text(why, width=width)
    return "\n".join(lines)


def _access_lines(label: str, access: Access, width: int) -> list[str]:
    verb = "write" if access.write else "read"
    name = f" '{access.name}'" if access.name else ""
    thread = f"thread {access.thread}"
    place = thread if access.stream < 0 else f"stream {access.stream}, {thread}"
    what = "release" if access.what == "release" else f"{verb} of {access.what}{name}"
    order = "" if access.what != "copy" or access.write else f", source access order {access.order}"
    by = f", for {access.by}" if access.by else ""
    text = f"{label + ':':<8} event {access.number}: {what} ({place}{order}{by})"
    return [item(text, width, 4, 13), *(f"{' ' * 13}{frame}" for frame in access.stack)]


def _explanation_text(why: Explanation, *, width: int) -> list[str]:
    begin = f"both come after {why.common}" if why.common else "nothing comes before both"
    lines = [item(f"{begin}.", width, 4, 13)]
    for label, path in (("first", why.to_first), ("then", why.to_second)):
        shown = path if len(path) <= LONGEST_PATH else (*path[: LONGEST_PATH - 1], "…", path[-1])
        lines.append(item(f"path to {label}: {' -> '.join(shown)}", width, 4, 13))
    return lines


def _witness_text(why: Explained, *, width: int) -> list[str]:
    if not why.corrupt:
        return ["    witness: no schedule corrupts data; the program may never read the wrong data."]
    steps = " ".join(why.witness)
    return [
        item(f"witness: {steps}", width, 4, 13),
        *(paragraph(f"then {what}.", width=width, indent=" " * 13) for what in why.corrupt),
    ]
