"""HTML reports carry a policy that allows their own styles by hash, and nothing else."""

from __future__ import annotations

import base64
import hashlib
import html
import re

import pytest

from kvfence.checker.analysis.recorded.explain import Explained
from kvfence.checker.analysis.review.compare import review
from kvfence.checker.report.diagrams.svg import Canvas
from kvfence.checker.report.html.explain_page import explained_html
from kvfence.checker.report.html.page import review_html


@pytest.fixture(scope="module", params=["review", "explain"])
def page(request: pytest.FixtureRequest) -> str:
    """A page with pictures, and one without."""
    if request.param == "explain":
        return explained_html(Explained("trace.jsonl", "holds", 0, None, ()))
    return review_html(review("sound", "unpinned_lookup", machine="lookup", proving=None))


def policy_of(page: str) -> dict[str, list[str]]:
    """The directives of the page's policy, by name."""
    (found,) = re.findall(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', page)
    parts = [part.split() for part in html.unescape(found).split(";")]
    return {name: values for name, *values in parts}


def test_each_style_is_allowed_by_its_hash_and_nothing_else_is(page: str) -> None:
    policy = policy_of(page)
    used = {
        f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
        for text in re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    }
    assert used
    assert used <= set(policy["style-src"])
    assert all(value.startswith("'sha256-") for value in policy["style-src"])
    assert policy["default-src"] == ["'none'"]
    assert "script-src" not in policy


def test_nothing_in_a_page_needs_more_than_that(page: str) -> None:
    assert not re.search(r"<script|<[^>]* style=|<[^>]* on[a-z]+=", page)
    assert page.index("Content-Security-Policy") < page.index("<style>")


def test_a_picture_has_no_text_that_html_would_read_otherwise() -> None:
    """The hash is of the text as the browser reads it: inside of a picture, it would decode references."""
    (style,) = re.findall(r"<style>(.*?)</style>", Canvas().svg("empty"))
    assert not set("&<") & set(style)
