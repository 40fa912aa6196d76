"""`kvfence verify --engine gpu` and `--engine swarm`, as they are typed."""

import json

import pytest

from kvfence.checker.cli.app import run
from kvfence.checker.engines.gpu.device import cuda_kernels as cuda
from kvfence.checker.engines.gpu.device.search_device import NoGpu

LOOKUP = ["--machine", "lookup"]


@pytest.fixture(autouse=True)
def without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(ordinal: int = 0) -> None:
        raise NoGpu(f"there is no GPU number {ordinal}")

    monkeypatch.setattr(cuda, "CudaDevice", none)
    monkeypatch.delenv("WORLD_SIZE", raising=False)


def test_without_a_gpu_the_native_engine_answers_after_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    code = run(["verify", "--engine", "gpu", *LOOKUP, "--format", "json"])
    out, err = capsys.readouterr()
    assert code == 0
    assert err.splitlines()[0] == "kvfence: there is no GPU number 0: the native engine searches instead"
    assert json.loads(out)["machines"][0]["engine"] == "native"


def test_other_ranks_than_the_first_report_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    assert run(["verify", "--engine", "gpu", *LOOKUP]) == 0
    assert capsys.readouterr().out == ""


def test_walks_are_asked_for_by_number_and_answer_undetermined(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--walks", "50", "--steps", "20", "--seed", "3", "--format", "json"]
    code = run(["verify", "--engine", "swarm", *LOOKUP, *options])
    out, _ = capsys.readouterr()
    (machine,) = json.loads(out)["machines"]
    assert code == 3
    assert (machine["engine"], machine["verdict"]) == ("swarm", "undetermined")
    assert "50 random walks of up to 20 steps are no proof" in machine["stopped"]


def test_walks_find_a_known_fault(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--walks", "500", "--steps", "60", "--design", "unpinned_lookup"]
    assert run(["verify", "--engine", "swarm", *options, "--machine", "lookup"]) == 1
    assert "PIN" in capsys.readouterr().out


@pytest.mark.parametrize("option", [["--symmetry"], ["--checkpoint", "there"]])
def test_walks_have_no_symmetry_and_no_checkpoint(
    option: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["verify", "--engine", "swarm", *LOOKUP, *option]) == 2
    assert (
        capsys.readouterr().err == f"kvfence: engine swarm has no {option[0]}: use --engine native or gpu\n"
    )
