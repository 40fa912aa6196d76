"""`ci/with_vllm.py --whole`: which build runs, and in what it differs from the vLLM project's own."""

from __future__ import annotations

from pathlib import Path

import pytest
import with_vllm

from kvfence.checker.audit.releases.fetch import Origin, Release


def tree(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_both_builds_and_every_difference_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    same = {"vllm/v1/a.py": "a", "vllm/distributed/kv_transfer/b.py": "b", "vllm/v1/data.json": "1"}
    own = tree(tmp_path / "own", {**same, "vllm/v1/core/c.py": "1", "vllm/v1/gone.py": "", "vllm/x.py": "1"})
    built = {
        "vllm/v1/core/c.py": "2",
        "vllm/v1/new.py": "",
        "vllm/x.py": "2",
        ".ready": "built.whl, SHA-256 2",
    }
    others = tree(tmp_path / "others", same | built)
    origin = Origin(version="9.9.9", source="the project", wheel="own.whl", sha256="1", verified="all")
    monkeypatch.setattr(with_vllm, "fetch_from", lambda _, version: Release(version, own, origin))
    report = with_vllm.compared("9.9.9", others)
    assert "a build by others than the vLLM project: built.whl, SHA-256 2" in report
    assert "vLLM 9.9.9 from the project, own.whl, SHA-256 1" in report
    assert "4 of the project's own: 3 differences" in report
    assert [line.strip() for line in report.splitlines()[3:]] == [
        "vllm/v1/core/c.py: differs",
        "vllm/v1/gone.py: only in the project's own",
        "vllm/v1/new.py: only in the build by others",
    ]
    assert with_vllm.compared("9.9.9", tree(own, {".ready": ""})).endswith("no differences")


def test_what_pip_installed_is_named_by_its_file_and_hash() -> None:
    download = {"url": "https://127.0.0.1/a/b/v-1.whl", "archive_info": {"hashes": {"sha256": "12"}}}
    assert with_vllm.installed_as({"install": [{"download_info": download}]}) == "v-1.whl, SHA-256 12"
