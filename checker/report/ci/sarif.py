"""A review as SARIF 2.1.0: a rule for each invariant, a result for each one that the change affects."""

from __future__ import annotations

import hashlib
import json
from pathlib import PurePosixPath
from typing import Any

import msgspec

from kvfence.checker.analysis.review.facts import InvariantReview, MachineReview, Review
from kvfence.checker.report.ci.annotations import message, place, title
from kvfence.checker.report.text.reviewed import TITLES, conclusion
from kvfence.checker.report.text.verdicts import call
from kvfence.spec.catalog import BY_ID

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_LEVELS = {"worse": "error", "open": "warning", "better": "note"}
_KINDS = {"worse": "fail", "open": "open", "better": "pass"}


def review_sarif(found: Review) -> str:
    """The log as JSON text. Results have the shortest story as their code flow."""
    results: list[dict[str, Any]] = []
    for m in found.machines:
        results += [_result(m, row) for row in m.invariants if row.effect != "same"]
        lost = [("GOAL", f"goal {goal.replace('_', ' ')}", "reached") for goal in m.goals_lost]
        lost += [("ACTION", f"action {name}", "taken") for name in m.actions_lost]
        for rule, what, done in lost:
            results.append(_plain(found, m, rule, f"{what} can no longer be {done} in {m.machine}"))
    own = {row.invariant: row.sentence for m in found.machines for row in m.invariants if row.sentence}
    rules = [_rule(id_, own.get(id_, id_)) for id_ in dict.fromkeys(r["ruleId"] for r in results)]
    for result in results:
        result["ruleIndex"] = [rule["id"] for rule in rules].index(result["ruleId"])
    driver = {"name": "kvfence", "version": found.version, "semanticVersion": found.version, "rules": rules}
    texts = [f"{m.machine}: {note}" for m in found.machines for note in m.notes]
    notes = [{"level": "warning", "message": {"text": text}} for text in texts]
    run: dict[str, Any] = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "invocations": [{"executionSuccessful": not found.interrupted, "toolExecutionNotifications": notes}],
        "results": results,
        "properties": {"base": found.base, "change": found.change, "verdict": conclusion(found)},
    }
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"


def _rule(id_: str, sentence: str) -> dict[str, Any]:
    row = BY_ID.get(id_)
    other = {"GOAL": "a goal stays reachable", "ACTION": "an action can still be taken"}
    short = row.title if row else other.get(id_, TITLES.get(id_, sentence))
    rule: dict[str, Any] = {"id": id_, "name": id_.title().replace("-", "")}
    rule["shortDescription"] = {"text": short}
    if row:
        rule["fullDescription"] = {"text": row.statement}
        if row.reports:
            rule["help"] = {"text": f"Known from {', '.join(row.reports)}."}
    return rule


def _result(m: MachineReview, row: InvariantReview) -> dict[str, Any]:
    level = "warning" if row.effect == "worse" and not row.first else _LEVELS[row.effect]
    result = {
        "ruleId": row.invariant,
        "level": level if _KINDS[row.effect] == "fail" else "none",
        "kind": _KINDS[row.effect],
        "message": {"text": f"{title(row, m)}. {message(row)}"},
        "locations": _locations(m),
        "partialFingerprints": {"kvfence/v1": _fingerprint(m.machine, row.invariant, *row.conditions)},
        "properties": {
            "base": str(row.base),
            "change": str(row.change),
            "conditions": list(row.conditions),
            "evidence": [msgspec.to_builtins(found) for found in row.evidence],
        },
    }
    if row.story is not None:
        steps = [
            {
                "location": {
                    "message": {"text": f"{s.number}. {call(s.action, s.arguments)}: {s.doc}"},
                    **({"physicalLocation": p} if (p := _physical(m)) else {}),
                },
                "state": {c.name: {"text": str(c.after)} for c in s.changes},
                "executionOrder": s.number,
            }
            for s in row.story.steps
        ]
        if steps:
            result["codeFlows"] = [{"threadFlows": [{"locations": steps}]}]
    return result


def _plain(found: Review, m: MachineReview, rule: str, text: str) -> dict[str, Any]:
    return {
        "ruleId": rule,
        "level": "error",
        "kind": "fail",
        "message": {"text": f"{text} ({found.base} -> {found.change})."},
        "locations": _locations(m),
        "partialFingerprints": {"kvfence/v1": _fingerprint(m.machine, rule, text)},
    }


def _locations(m: MachineReview) -> list[dict[str, Any]]:
    logical = {"logicalLocations": [{"name": m.machine, "kind": "module"}]}
    physical = _physical(m)
    return [{**({"physicalLocation": physical} if physical else {}), **logical}]


def _physical(m: MachineReview) -> dict[str, Any] | None:
    file, line = place(m)
    if not file or PurePosixPath(file).is_absolute():
        return None
    return {"artifactLocation": {"uri": file}, "region": {"startLine": line}}


def _fingerprint(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
