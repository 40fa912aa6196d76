"""A review as JUnit XML: a suite for each machine, a test case for each invariant, goal and action."""

from __future__ import annotations

import re
from xml.etree import ElementTree as Xml

from kvfence.checker.analysis.review.facts import InvariantReview, MachineReview, Review
from kvfence.checker.report.ci.annotations import message, place, reasons
from kvfence.checker.report.text.reviewed import verdict_shown

_NOT_IN_XML = re.compile(r"[^\t\n\r\u0020-\uD7FF\uE000-\uFFFD\U00010000-\U0010FFFF]")


def review_junit(found: Review) -> str:
    """The XML. What got worse is a failure, what is undetermined an error."""
    name = f"kvfence review {found.base} {found.change}"
    root = Xml.Element("testsuites", name=_clean(name), time=f"{found.seconds:.3f}")
    for m in found.machines:
        root.append(_suite(m))
    for machine in found.unchanged:
        suite = Xml.SubElement(root, "testsuite", name=machine)
        _testcase(suite, machine, "the machine is unchanged")
        _count(suite)
    for machine in found.only_base:
        suite = Xml.SubElement(root, "testsuite", name=machine)
        _failing(suite, machine, "the machine exists", "only the base has this machine", "gone")
        _count(suite)
    for key in ("tests", "failures", "errors", "skipped"):
        root.set(key, str(sum(int(suite.get(key, "0")) for suite in root)))
    Xml.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + Xml.tostring(root, encoding="unicode") + "\n"


def _suite(m: MachineReview) -> Xml.Element:
    seconds = (m.base.seconds if m.base else 0.0) + (m.change.seconds if m.change else 0.0)
    suite = Xml.Element("testsuite", name=m.machine, time=f"{seconds:.3f}")
    for row in m.invariants:
        _case(suite, m, row)
    for goal in m.goals_lost:
        _failing(suite, m.machine, f"goal {goal}", "the change never reaches it", "goal lost")
    for action in m.actions_lost:
        _failing(suite, m.machine, f"action {action}", "the change never takes it", "action lost")
    for note in m.notes:
        case = _testcase(suite, m.machine, "exploration")
        Xml.SubElement(case, "error", message=_clean(note), type="undetermined")
    _count(suite)
    return suite


def _count(suite: Xml.Element) -> None:
    """Writes the numbers of cases, failures and errors of a suite as its attributes."""
    failures, errors = (len(suite.findall(f"testcase/{kind}")) for kind in ("failure", "error"))
    suite.attrib.update(tests=str(len(suite)), failures=str(failures), errors=str(errors), skipped="0")


def _testcase(suite: Xml.Element, machine: str, name: str) -> Xml.Element:
    return Xml.SubElement(suite, "testcase", classname=machine, name=name, time="0")


def _case(suite: Xml.Element, m: MachineReview, row: InvariantReview) -> None:
    case = _testcase(suite, m.machine, row.label)
    verdicts = f"base: {verdict_shown(row.base)}, change: {verdict_shown(row.change)}"
    if row.effect == "worse":
        failure = Xml.SubElement(case, "failure", message=verdicts, type=row.invariant)
        file, line = place(m)
        failure.text = _clean(f"{message(row)}{f' ({file}:{line})' if file else ''}")
    elif row.effect == "open":
        error = Xml.SubElement(case, "error", message=verdicts, type="undetermined")
        error.text = _clean("\n".join(reasons(row))) or None
    else:
        Xml.SubElement(case, "system-out").text = _clean("\n".join((verdicts, *reasons(row))))


def _failing(suite: Xml.Element, machine: str, name: str, text: str, kind: str) -> None:
    Xml.SubElement(_testcase(suite, machine, name), "failure", message=text, type=kind)


def _clean(text: str) -> str:
    return _NOT_IN_XML.sub("?", text)
