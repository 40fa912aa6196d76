"""Workload files are read line by line and refused in one clear line; keys mean equal prefixes."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvfence.reference.blocks import workload
from kvfence.reference.blocks.errors import WorkloadError

GOOD = {"timestamp": 0, "input_length": 600, "output_length": 3, "hash_ids": [4, 5]}


def write(folder: Path, *lines: dict[str, object] | str) -> Path:
    path = folder / "trace.jsonl"
    path.write_text("".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines))
    return path


def test_a_good_file_gives_its_requests_in_order(tmp_path: Path) -> None:
    specs = list(workload.read_mooncake(write(tmp_path, GOOD, "\n", {**GOOD, "output_length": 9})))
    assert [(spec.uid, spec.prompt, spec.output) for spec in specs] == [(0, 600, 3), (1, 600, 9)]


def test_some_requests_come_again_soon_with_the_same_prompt_and_an_output_of_their_own() -> None:
    asked = list(workload.conversations(200, 1))
    came = list(workload.sent_again(asked, 0.3, seed=1))
    assert [spec.uid for spec in came] == list(range(len(came)))
    assert 40 < len(came) - len(asked) < 80
    first: dict[int, workload.RequestSpec] = {}
    for spec in came:
        before = first.setdefault(id(spec.hash_ids), spec)
        if before is not spec:
            assert 0 < spec.uid - before.uid <= 2 * workload.BETWEEN + 2  # others come again in between
            keys = [workload.block_keys(one, 4, one.prompt + 40) for one in (before, spec)]
            same = spec.known // 4
            assert (keys[0][:same] == keys[1][:same]).all()
            assert (keys[0][same:] != keys[1][same:]).all()
    assert list(first) == [id(spec.hash_ids) for spec in asked]


def test_a_limit_stops_reading_before_what_comes_after(tmp_path: Path) -> None:
    assert len(list(workload.read_mooncake(write(tmp_path, GOOD, "rubbish\n"), limit=1))) == 1


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("not json\n", r":2: not a request of a Mooncake trace"),
        ('{"prompt": "hello"}\n', r":2: not a request of a Mooncake trace: .*timestamp"),
        (json.dumps(GOOD)[:40], r":2: cut off in the middle"),
        ({**GOOD, "input_length": 0}, r":2: input_length is 0; a request has 1 to"),
        ({**GOOD, "input_length": -600}, r":2: input_length is -600"),
        ({**GOOD, "output_length": 0}, r":2: output_length is 0"),
        ({**GOOD, "input_length": 2**40}, r":2: input_length is 1099511627776"),
        ({**GOOD, "hash_ids": [4]}, r":2: 1 hash_ids for 600 tokens; one for each 512 tokens makes 2"),
        ({**GOOD, "hash_ids": [4, -5]}, r":2: hash id -5 is negative"),
        ({**GOOD, "hash_ids": [4, 2**63]}, r":2: a hash id does not fit into 64 bits"),
        ({**GOOD, "input_length": "600"}, r":2: not a request of a Mooncake trace: .*int"),
    ],
)
def test_a_bad_line_is_named_with_its_number(
    tmp_path: Path, line: dict[str, object] | str, problem: str
) -> None:
    with pytest.raises(WorkloadError, match=problem) as caught:
        list(workload.read_mooncake(write(tmp_path, GOOD, line)))
    assert "\n" not in str(caught.value)


def test_files_that_are_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="no such file"):
        list(workload.read_mooncake(tmp_path / "missing.jsonl"))
    with pytest.raises(WorkloadError, match="is a folder"):
        list(workload.read_mooncake(tmp_path))
    with pytest.raises(WorkloadError, match="the file is empty"):
        list(workload.read_mooncake(write(tmp_path)))
    with pytest.raises(WorkloadError, match="give 1 or more"):
        list(workload.read_mooncake(write(tmp_path, GOOD), limit=0))


def test_a_huge_line_is_refused_before_it_is_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workload, "LONGEST_LINE", 1 << 20)
    with pytest.raises(WorkloadError, match=":2: line longer than 1 MiB"):
        list(workload.read_mooncake(write(tmp_path, GOOD, "[" * (2 << 20))))


@given(st.integers(1, 40), st.integers(1, 30), st.integers(0, 30), st.integers(1, 9))
def test_blocks_have_equal_keys_exactly_when_their_prefixes_are_equal(
    block_size: int, prompt: int, common: int, span: int
) -> None:
    ids = np.arange(-(-prompt // span))
    other = np.where(ids < common // span, ids, ids + 1000)
    tokens = prompt + 20
    one = workload.block_keys(workload.RequestSpec(1, prompt, 20, ids, prompt, span), block_size, tokens)
    two = workload.block_keys(workload.RequestSpec(2, prompt, 20, other, prompt, span), block_size, tokens)
    same = min(common // span * span, prompt) if (ids != other).any() else prompt
    assert (one == two).tolist() == [(i + 1) * block_size <= same for i in range(tokens // block_size)]
    assert len(set(one.tolist())) == one.size
    assert (one >= 0).all()
