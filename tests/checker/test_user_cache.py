"""The user's cache: what others own or may write to is neither loaded nor executed."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from kvfence.checker.audit.releases.fetch import _ORIGIN, OFFICIAL, Origin, Release, _Kept, fetch
from kvfence.checker.audit.releases.lab import lab_environment, lab_python
from kvfence.checker.audit.releases.release_cache import cache_folder, check_ours
from kvfence.checker.core.user_cache import Folder, NotOurs, check_tree, forget, keep, kept, made
from kvfence.spec.errors import CannotRun

SOMEBODY = 12345


@pytest.fixture(autouse=True)
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache folder."""
    path = tmp_path / "cache"
    path.mkdir(mode=0o755)
    monkeypatch.setenv("XDG_CACHE_HOME", str(path))
    return path


def tampered(path: Path, how: str = "somebody") -> None:
    """Makes it one that another user owns (``somebody``), or that ``others`` may write to."""
    if how == "others":
        path.chmod(0o777)
    elif os.getuid():
        pytest.skip("only root can give files away")
    else:
        os.lchown(path, SOMEBODY, SOMEBODY)


def test_folders_are_made_for_the_user_alone(base: Path) -> None:
    assert made("one") == base / "kvfence" / "one"
    assert [p.stat().st_mode & 0o777 for p in (made("one"), base / "kvfence")] == [0o700, 0o700]


@pytest.mark.parametrize("which", ["cache", "cache/kvfence", "cache/kvfence/releases"])
@pytest.mark.parametrize("change", ["others", "somebody"])
def test_a_folder_of_others_on_the_way_is_refused_and_not_compiled_into(
    base: Path, which: str, change: str
) -> None:
    made("releases")
    path = base.parent / which
    tampered(path, change)
    with pytest.raises(CannotRun) as error:
        cache_folder("releases")
    assert str(path) in str(error.value)
    assert "set XDG_CACHE_HOME to a folder of your own" in str(error.value)
    with Folder("releases") as folder:
        assert base not in folder.parents


def test_a_shared_folder_whose_files_no_one_else_can_replace_may_hold_the_cache(base: Path) -> None:
    base.chmod(0o1777)
    assert made("one").is_dir()


def write(path: Path, mode: int = 0o644) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("")
    path.chmod(mode)
    return path


@pytest.mark.parametrize("how", ["somebody", "others"])
def test_a_release_that_others_may_change_is_not_imported(base: Path, how: str) -> None:
    (base / "kvfence").mkdir(mode=0o755)
    module = write(base / "kvfence" / "releases" / "9.9.9" / "vllm" / "__init__.py")
    origin = Origin(version="9.9.9", source="vllm", verified="nothing")
    kept = _Kept(origin=origin, project=OFFICIAL, record="")
    write(module.parents[1] / _ORIGIN).write_bytes(msgspec.json.encode(kept))
    for folder in (*module.parents,)[:4]:
        folder.chmod(0o755)
    check_ours(module.parent.parent)
    tampered(module, how)
    with pytest.raises(CannotRun, match=r"__init__\.py: .* an audit would execute it"):
        fetch("9.9.9")


@pytest.mark.parametrize("how", ["somebody", "others"])
def test_a_lab_that_others_may_change_is_not_run(
    base: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    from kvfence.checker.audit.releases import lab

    def make(folder: Path, *_: object) -> None:
        tampered(write(folder / "bin" / "python", 0o755), how)
        (base / "kvfence" / "lab").chmod(0o755)
        (base / "kvfence").chmod(0o755)

    monkeypatch.setattr(lab, "_make", make)
    with pytest.raises(CannotRun, match=r"bin/python: .* an audit would execute it"):
        lab_python()


def test_bytecode_of_another_user_is_not_run(base: Path, tmp_path: Path) -> None:
    tampered(write(base / "kvfence" / "bytecode" / "site.pyc"))
    (base / "kvfence" / "bytecode").chmod(0o755)
    (base / "kvfence").chmod(0o755)
    with pytest.raises(CannotRun, match=r"site\.pyc: belongs to another user"):
        lab_environment(Release("9.9.9", tmp_path, "here"), tmp_path / "scratch")


def test_modes_do_not_matter_where_no_one_else_gets_in_and_owners_do(base: Path) -> None:
    path = write(made("one") / "deep" / "file", 0o666)
    check_tree(base / "kvfence" / "one")
    tampered(path)
    with pytest.raises(NotOurs, match="belongs to another user"):
        check_tree(base / "kvfence" / "one")


def test_a_link_counts_as_what_it_leads_to(base: Path, tmp_path: Path) -> None:
    folder = made("one")
    (base / "kvfence").chmod(0o755)
    folder.chmod(0o755)
    (folder / "python").symlink_to(write(tmp_path / "python", 0o755))
    (folder / "broken").symlink_to(tmp_path / "absent")
    check_tree(folder)
    (tmp_path / "python").chmod(0o777)
    with pytest.raises(NotOurs, match="python: other users may write to it"):
        check_tree(folder)


def test_what_is_kept_is_found_under_its_key_only_and_whole_only() -> None:
    path = made("one") / "file"
    keep(path, b"key", b"content")
    assert kept(path, b"key") == b"content"
    assert kept(path, b"another key") is None
    assert kept(path.with_name("absent"), b"key") is None
    whole = path.read_bytes()
    for k in range(len(whole)):
        path.write_bytes(whole[:k])
        assert kept(path, b"key") is None
        path.write_bytes(whole[:k] + bytes([whole[k] ^ 1]) + whole[k + 1 :])
        assert kept(path, b"key") is None
    assert [p.name for p in path.parent.iterdir()] == ["file"]


def test_what_was_used_last_is_kept_longest() -> None:
    folder = made("one")
    for k in range(5):
        keep(folder / f"{k}.so", b"", b"")
        os.utime(folder / f"{k}.so", (k, k))
    assert kept(folder / "0.so", b"") == b""
    forget(folder, "*.so", 2)
    assert sorted(p.name for p in folder.iterdir()) == ["0.so", "4.so"]


def test_a_write_that_fails_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    folder = made("one")
    with pytest.raises(OSError, match="No space left"):
        keep(folder / "file", b"key", b"content")
    assert not list(folder.iterdir())
