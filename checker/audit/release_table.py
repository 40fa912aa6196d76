"""Releases side by side: which fault was found in which."""

from __future__ import annotations

from collections.abc import Sequence

from kvfence.checker.audit.campaign import Campaign
from kvfence.checker.audit.findings import grounds_of

FOUND, NOT_FOUND, UNKNOWN = "found", "-", "?"


def rows(campaigns: Sequence[Campaign]) -> list[tuple[str, ...]]:
    """For each fault, its invariant and cause, the public report, and a mark for each campaign.

    ``?``: the campaign could not look at everything, so that not having found it means nothing.
    """
    found = [{f.key: f.report for f in c.findings if grounds_of(f) == "fault"} for c in campaigns]
    blank = [UNKNOWN if campaign.broke or not campaign.cases else NOT_FOUND for campaign in campaigns]
    reports = {key: report for faults in reversed(found) for key, report in faults.items()}
    return [
        (key, report, *(FOUND if key in keys else mark for keys, mark in zip(found, blank, strict=True)))
        for key, report in sorted(reports.items())
    ]
