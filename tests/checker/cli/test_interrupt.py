"""Ctrl-C ends a command early, keeps what was found, and never passes."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kvfence.checker import cli
from kvfence.spec.machines import MACHINES

SAMPLE = next((Path(cli.__file__).parent / "samples").glob("*.jsonl"))


@contextmanager
def somebody_interrupts(*_: object) -> Iterator[object]:
    """Progress that raises KeyboardInterrupt, as Ctrl-C does, once there is something to lose."""

    def press(*told: object) -> None:
        if getattr(told[-1], "states", 1000) > 100:
            raise KeyboardInterrupt

    yield press


def test_an_interrupted_verification_is_undetermined_and_keeps_what_was_explored(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "machine_progress", somebody_interrupts)
    big = ["--size", "Block=9", "--size", "Holder=4", "--format", "json"]
    assert cli.run(["verify", *big]) == 3
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"] == "undetermined"
    assert found["machines"][0]["stopped"] == "interrupted"
    assert found["machines"][0]["states"] > 100
    assert found["not_begun"] == list(MACHINES)[1:]


def test_an_interrupted_replay_is_undetermined_and_keeps_its_figures(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "count_progress", somebody_interrupts)
    assert cli.run(["replay", str(SAMPLE), "--format", "json"]) == 3
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"] == "undetermined"
    assert found["run"]["stats"]["steps"] > 0
    assert found["events"] > 0
