"""Writes the reports of a review to files, whichever were asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from kvfence.checker.report.jsonreport import as_json
from kvfence.spec.files.outputs import files_of, write_text

if TYPE_CHECKING:
    from kvfence.checker.analysis.review.facts import Review


def write(
    found: Review,
    *,
    html: Path | None = None,
    markdown: Path | None = None,
    junit: Path | None = None,
    sarif: Path | None = None,
    json: Path | None = None,
) -> None:
    """Writes each report that has a path. OutputError for a path that cannot be written."""
    if html is not None:
        from kvfence.checker.report.html.page import review_html

        _put(html, found, review_html)
    if markdown is not None:
        from kvfence.checker.report.ci.markdown import review_markdown

        _put(markdown, found, review_markdown)
    if junit is not None:
        from kvfence.checker.report.ci.junit import review_junit

        _put(junit, found, review_junit)
    if sarif is not None:
        from kvfence.checker.report.ci.sarif import review_sarif

        _put(sarif, found, review_sarif)
    if json is not None:
        _put(json, found, lambda review: as_json(review) + "\n")


def _put(path: Path, found: Review, text: Callable[[Review], str]) -> None:
    write_text(path, text(found), files_of(found.base) + files_of(found.change))
