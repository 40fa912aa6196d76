"""``kvfence replay``: exit codes, the same facts in text and JSON, one line for what cannot be replayed."""

import re
import sys
from pathlib import Path

import pytest
from command_line import CommandLine

from kvfence.checker.cli import app as cli

SAMPLE = next((Path(cli.__file__).parents[2] / "reference" / "samples").glob("*.jsonl"))
SMALL = ["--requests", "30", "--gpu-blocks", "8192", "--cpu-blocks", "8192"]


def test_a_sound_replay_holds_and_says_what_was_checked(kvfence: CommandLine) -> None:
    found = kvfence.json(0, "replay", SAMPLE, *SMALL)
    assert found["verdict"] == "holds"
    stats = found["run"]["stats"]
    assert stats["requests"] == sum(stats["finished"].values()) == 30
    assert found["events"] > 1000
    code, text, _ = kvfence("replay", SAMPLE, *SMALL)
    assert code == 0
    lines = {line.split("  ")[0]: line for line in text.splitlines()}
    assert f"{stats['stores']:,} of {stats['stored_blocks']:,} blocks" in lines["stores"]
    assert f"{found['run']['hit_rates']['cpu']:.1%}" in lines["hit in CPU"]
    for invariant, count in found["checks"].items():
        assert lines[invariant].endswith(f"  {count:,}" if count else "not judged")


def test_a_recorded_replay_is_accepted_by_check(tmp_path: Path, kvfence: CommandLine) -> None:
    trace = tmp_path / "run.jsonl.zst"
    replayed = kvfence.json(0, "replay", SAMPLE, *SMALL, "--record", trace)
    assert trace.stat().st_mode & 0o077 == 0
    checked = kvfence.json(0, "check", trace)
    assert checked["events"] == replayed["events"]
    assert checked["quiesced"] is True


def test_metrics_of_a_replay_are_what_its_report_says(tmp_path: Path, kvfence: CommandLine) -> None:
    file = tmp_path / "kvfence.prom"
    stored = kvfence.json(0, "replay", SAMPLE, *SMALL, "--metrics", file)["run"]["moved"]["store"]["nbytes"]
    lines = dict(line.rsplit(" ", 1) for line in file.read_text().splitlines() if line[0] != "#")
    assert float(lines['vllm:kv_offload_store_bytes_total{engine="0",model_name=""}']) == stored > 0
    assert "such.prom" in kvfence.refuses(
        "replay", SAMPLE, *SMALL, "--metrics", tmp_path / "no" / "such.prom"
    )


@pytest.mark.parametrize("design", ["sound", "register_before_landing", "free_on_preempt"])
def test_a_run_without_assertions_is_not_judged(design: str, kvfence: CommandLine) -> None:
    asked = [str(SAMPLE), *SMALL, "--no-assert", "--design", design]
    text = kvfence.prints(3, "replay", *asked)
    assert f"{design}: not judged. Events were not judged, as --no-assert says." in text
    assert re.search(
        r"contents of [1-9][0-9,]* blocks read in full and [0-9,]+ as a sample were compared", text
    )
    assert "holds" not in text
    assert "expose" not in text
    assert "PIN" not in text
    found = kvfence.json(3, "replay", *asked)
    assert (found["verdict"], found["why"], found["checks"]) == ("undetermined", "not judged", {})


def test_a_run_that_fails_is_a_violation_without_assertions_too(kvfence: CommandLine) -> None:
    asked = ["--no-assert", "--design", "over_pop", "--requests", "100", "--gpu-blocks", "1000"]
    text = kvfence.prints(1, "replay", SAMPLE, *asked)
    assert "over_pop: violated. The run failed on this traffic." in text


@pytest.mark.parametrize(
    "arguments",
    [
        [str(SAMPLE), "--design", "store_without_barrier"],
        [str(SAMPLE), "--design", "no_such_design"],
        [str(SAMPLE), "--block-size", "0"],
        [str(SAMPLE), "--requests", "0"],
        ["no such file.jsonl"],
        ["/dev/null"],
    ],
)
def test_a_refused_run_leaves_no_file_and_changes_none(
    arguments: list[str], tmp_path: Path, kvfence: CommandLine
) -> None:
    old = tmp_path / "old.jsonl"
    old.write_text("kept")
    new = [tmp_path / name for name in ("order.jsonl", "metrics.prom")]
    outputs = ["--record", str(old), "--record-order", str(new[0]), "--metrics", str(new[1])]
    kvfence.refuses("replay", *arguments, *outputs)
    assert [path.name for path in tmp_path.iterdir()] == ["old.jsonl"]
    assert old.read_text() == "kept"


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["--block-size", "0"], "block_size"),
        (["--gpu-blocks", "1"], "gpu_blocks"),
        (["--cpu-blocks", "0"], "cpu_blocks"),
        (["--async-depth", "3"], "--async-depth"),
        (["--groups", "both"], "'full'"),
        (["--fail-rate", "2"], "fail_rate"),
        (["--requests", "0"], "limit"),
        (["--design", "unpined_lookup"], "did you mean unpinned_lookup?"),
        (["--gpu-blocks", "many"], "--gpu-blocks"),
    ],
)
def test_an_option_that_cannot_work_is_one_line(
    arguments: list[str], hint: str, kvfence: CommandLine
) -> None:
    assert hint in kvfence.refuses("replay", SAMPLE, *arguments)


def test_a_run_in_which_no_request_fits_is_undetermined(kvfence: CommandLine) -> None:
    code, out, err = kvfence("replay", SAMPLE, "--requests", "3", "--gpu-blocks", "3")
    assert (code, err) == (3, "")
    assert "sound: undetermined. No request fits into these pools: no step was taken." in out


@pytest.mark.parametrize(
    "content", [b"", b"hello\n", b'{"timestamp": 0}\n', b'{"timestamp": 0, "input_le', b"\x00\xff\n"]
)
def test_a_file_that_is_no_workload_is_one_line(content: bytes, tmp_path: Path, kvfence: CommandLine) -> None:
    path = tmp_path / "workload.jsonl"
    path.write_bytes(content)
    assert str(path) in kvfence.refuses("replay", path)


def test_a_missing_file_and_a_folder_are_one_line(tmp_path: Path, kvfence: CommandLine) -> None:
    for path in (tmp_path / "none.jsonl", tmp_path):
        kvfence.refuses("replay", path)


def test_a_place_that_cannot_be_recorded_to_is_one_line(tmp_path: Path, kvfence: CommandLine) -> None:
    kvfence.refuses("replay", SAMPLE, *SMALL, "--record", tmp_path / "none" / "run.jsonl")


def test_without_torch_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch, kvfence: CommandLine) -> None:
    for name in [name for name in sys.modules if name.startswith("kvfence.reference")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    line = kvfence.refuses("replay", SAMPLE, *SMALL)
    assert "torch" in line
    assert "kvfence[reference]" in line
