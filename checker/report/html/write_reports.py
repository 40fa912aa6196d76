"""Writes the reports of a review to files, whichever were asked for."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kvfence.checker.report.jsonreport import as_json
from kvfence.spec.files.outputs import files_of, write_text

if TYPE_CHECKING:
    from kvfence.checker.analysis.review.facts import Review

FORMATS: Final = {"html": "html.page", "markdown": "ci.markdown", "junit": "ci.junit", "sarif": "ci.sarif"}
"""The module of each format, which has a function ``review_FORMAT``; JSON needs none."""


def write(found: Review, files: Mapping[str, Path | None]) -> None:
    """Writes a report to each path of ``files``, by format. OutputError for a path that cannot be written."""
    for name, path in files.items():
        if path is None:
            continue
        if name == "json":
            text = as_json(found) + "\n"
        else:  # imported now: each needs a library of its own
            module = import_module(f"kvfence.checker.report.{FORMATS[name]}")
            text = getattr(module, f"review_{name}")(found)
        write_text(path, text, files_of(found.base) + files_of(found.change))
