"""A review as Markdown, JUnit, SARIF, annotations and HTML: each opens in the tools that read it."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import jsonschema
import junitparser
import pytest

from kvfence.checker.analysis.review.compare import review
from kvfence.checker.analysis.review.facts import Review
from kvfence.checker.analysis.review.proofs import Proving
from kvfence.checker.report.ci.annotations import github_annotations
from kvfence.checker.report.ci.junit import review_junit
from kvfence.checker.report.ci.markdown import review_markdown
from kvfence.checker.report.ci.sarif import review_sarif
from kvfence.checker.report.html.page import review_html
from kvfence.checker.report.jsonreport import as_json
from kvfence.checker.report.text.reviewed import EXIT_CODES, review_text

SCHEMA = json.loads((Path(__file__).parent / "sarif-2.1.0.json").read_text(encoding="utf-8"))
PAIRS = {
    "worse": ("sound", "unpinned_lookup", {"Request": 1, "Block": 2}),
    "better": ("evict_pinned", "sound", {"Request": 1, "Block": 2, "Holder": 1}),
    "mixed": ("free_fenced_victim", "fenced_victim_spin", {}),
    "race": ("sound", "barrier_with_any", {"Slot": 1, "Host": 1, "Operation": 1}),
    "same": ("sound", "sound", {}),
}


@pytest.fixture(scope="module")
def reviews() -> dict[str, Review]:
    proved = {"worse", "mixed"}
    return {
        name: review(base, change, sizes=sizes, pairs=2000, proving=Proving() if name in proved else None)
        for name, (base, change, sizes) in PAIRS.items()
    }


@pytest.mark.parametrize("name", PAIRS)
def test_sarif_follows_its_schema(name: str, reviews: dict[str, Review]) -> None:
    log = json.loads(review_sarif(reviews[name]))
    jsonschema.validate(log, SCHEMA)
    (run,) = log["runs"]
    found = reviews[name]
    failing = [r["ruleId"] for r in run["results"] if r["kind"] == "fail"]
    assert len(failing) == len(found.worse)
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert all(rules[r["ruleIndex"]] == r["ruleId"] for r in run["results"])


def test_a_log_that_is_no_sarif_is_rejected(reviews: dict[str, Review]) -> None:
    log = json.loads(review_sarif(reviews["worse"]))
    log["runs"][0]["results"][0]["level"] = "dreadful"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(log, SCHEMA)


def test_a_result_points_at_the_line_that_differs_and_tells_the_story(reviews: dict[str, Review]) -> None:
    log = json.loads(review_sarif(reviews["worse"]))
    result = next(r for r in log["runs"][0]["results"] if r["ruleId"] == "PIN")
    place = result["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "spec/machines/lookup.py"
    text = (Path(__file__).parents[3] / "spec/machines/lookup.py").read_text().splitlines()
    assert "s.promise.update" in text[place["region"]["startLine"] - 1]
    steps = result["codeFlows"][0]["threadFlows"][0]["locations"]
    assert [s["executionOrder"] for s in steps] == list(range(1, len(steps) + 1))
    assert "lookup(" in steps[-1]["location"]["message"]["text"]


@pytest.mark.parametrize("name", PAIRS)
def test_junit_opens_in_a_stock_parser(name: str, reviews: dict[str, Review]) -> None:
    text = review_junit(reviews[name])
    parsed = junitparser.JUnitXml.fromstring(text.encode())
    cases = [case for suite in parsed for case in suite]
    failed = [c.name for c in cases for r in c.result if isinstance(r, junitparser.Failure)]
    assert parsed.tests == len(cases) > 0
    assert parsed.failures == len(failed) == len(reviews[name].worse)
    assert all(suite.tests == len(list(suite)) for suite in parsed)
    assert ElementTree.fromstring(text).tag == "testsuites"


@pytest.mark.parametrize("name", PAIRS)
def test_markdown_is_short_enough_for_a_comment(name: str, reviews: dict[str, Review]) -> None:
    text = review_markdown(reviews[name])
    changed = len(reviews[name].of("worse")) + len(reviews[name].of("better"))
    if changed <= 1:
        assert len(text.splitlines()) < 60
    assert text.count("<details") == text.count("</details>")
    assert text.startswith("### kvfence review: ")
    for _, row in reviews[name].of("worse"):
        assert row.invariant in text


def test_annotations_name_file_and_line(reviews: dict[str, Review]) -> None:
    lines = github_annotations(reviews["worse"]).splitlines()
    errors = [line for line in lines if line.startswith("::error ")]
    assert len(errors) == len(reviews["worse"].worse)
    assert all(re.match(r"::error file=spec/machines/lookup\.py,line=\d+,title=[^:]+::.+", e) for e in errors)
    (same,) = github_annotations(reviews["same"]).splitlines()
    assert same.startswith("::notice ")


VOID = ("meta", "br", "rect", "line", "path", "polygon")


class Loads(HTMLParser):
    """What a page would load, and the tags that are open."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loads += [f"{tag} {k}={v}" for k, v in attrs if k in ("src", "href", "action", "data", "srcset")]
        if tag in ("script", "link", "iframe", "img", "object", "embed", "base"):
            self.loads.append(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("rect",):
            assert self.open.pop() == tag


@pytest.mark.parametrize("name", PAIRS)
def test_html_is_complete_in_itself_and_small(name: str, reviews: dict[str, Review]) -> None:
    text = review_html(reviews[name])
    assert len(text.encode()) < 1_000_000
    page = Loads()
    page.feed(text)
    page.close()
    assert page.loads == []
    assert page.open == []
    assert "@import" not in text
    assert "url(" not in text
    for _, row in reviews[name].of("worse"):
        assert row.invariant in text
    for m in reviews[name].machines:
        stories = sum(row.story is not None for row in m.invariants)
        assert text.count("<svg") >= 2 * min(stories, 1)


def test_text_from_outside_is_escaped_in_html() -> None:
    names = {"base": "<script>alert(1)</script>", "change": "a&b"}
    found = Review(version="1", **names, base_summary="", change_summary="", verdict="same", machines=())
    text = review_html(found)
    assert "<script>" not in text
    assert "a&amp;b" in text


@pytest.mark.parametrize("name", PAIRS)
def test_the_terminal_report_fits_and_ends_with_the_verdict(name: str, reviews: dict[str, Review]) -> None:
    text = review_text(reviews[name], width=90)
    assert not [line for line in text.splitlines() if len(line) > 90 and " " in line.strip()]
    for sentence in (*reviews[name].worse, *reviews[name].better):
        assert sentence in " ".join(text.split())


def test_a_review_survives_json(reviews: dict[str, Review]) -> None:
    plain = json.loads(as_json(reviews["mixed"]))
    assert plain["verdict"] == "mixed"
    assert {i["effect"] for m in plain["machines"] for i in m["invariants"]} >= {"better", "worse"}


def test_exit_codes_say_whether_something_got_worse(reviews: dict[str, Review]) -> None:
    codes = {name: EXIT_CODES[found.verdict] for name, found in reviews.items()}
    assert codes == {"worse": 1, "better": 0, "mixed": 1, "race": 1, "same": 0} | {
        "better": 0 if not reviews["better"].open else 3
    }
