"""Specifications named on the command line: a design, a machine in a file, or either at a git revision."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import os
import subprocess
import sys
import tarfile
import tempfile
import traceback
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field, replace
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, NoReturn

from kvfence.checker.core.foreign import ForeignExit, refused
from kvfence.spec.designs import DESIGNS, Design
from kvfence.spec.errors import CannotRun, unknown
from kvfence.spec.language import Machine, SpecError
from kvfence.spec.machines import MACHINES

Lines = dict[str, set[int]]
"""Lines that a build went through, by file."""
Builders = dict[str, Callable[[frozenset[str]], Machine]]
"""How to build each machine with some faults."""
OWN = "kvfence.spec.machines"
_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Built:
    """A machine, and the lines of its files that building it went through.

    ``sources`` has the text of each of these files, by the name that reports use.
    """

    machine: Machine
    lines: Lines
    sources: dict[str, list[str]]


@dataclass(frozen=True)
class NamedSpec:
    """A specification by name: how to build each of its machines.

    ``touched``: the machines that it is about. ``sizes`` by sort, where the machines' own are too small to
    show what the design is known for.
    """

    name: str
    summary: str
    builders: Mapping[str, Callable[[], Built]]
    touched: tuple[str, ...]
    sizes: dict[str, int] = field(default_factory=dict)


def named_spec(text: str) -> NamedSpec:
    """The specification called ``text``; CannotRun for one that does not exist.

    ``text`` is a design (``unpinned_lookup``), a machine or a function that builds one in a file
    (``my_spec.py:build``, with faults ``my_spec.py:build+no_pin``), or one of these at a revision
    (``main:unpinned_lookup``, ``main:my_spec.py:build``).
    """
    if text in DESIGNS:
        return _design(DESIGNS[text], MACHINES, text, _ROOT)
    head, _, rest = text.partition(":")
    if Path(head).suffix == ".py" and not rest.partition(":")[0].endswith(".py"):
        path = Path(head)
        if not path.is_file():
            raise CannotRun(
                f"there is no file {head}: give a design, FILE.py:MACHINE, or REV:FILE.py:MACHINE"
            )
        with _loading(path.resolve().parent, ()):
            return _file(text, path.resolve(), rest, head, None)
    if rest:
        return _at_revision(text, head, rest)
    raise unknown("design", text, DESIGNS, "kvfence designs lists them; a file is FILE.py:MACHINE")


# Named designs.


def _design(design: Design, machines: Builders, shown: str, root: Path) -> NamedSpec:
    def builder(machine: str) -> Callable[[], Built]:
        faults = design.faults if machine in design.machines else frozenset()
        return lambda: traced(lambda: machines[machine](faults), root)

    builders = {machine: builder(machine) for machine in machines}
    return NamedSpec(shown, design.summary, builders, tuple(design.machines), dict(design.sizes))


# Machines in files.


def _file(text: str, path: Path, attribute: str, shown: str, root: Path | None) -> NamedSpec:
    built = _build(path, attribute, shown, root or path.parent)
    summary = (built.machine.doc or "").split("\n\n")[0].replace("\n", " ")
    name = built.machine.name
    return NamedSpec(text, summary, {name: lambda: built}, (name,))


def _build(path: Path, attribute: str, shown: str, root: Path) -> Built:
    name, *faults = attribute.split("+")

    def make() -> Machine:
        try:
            with redirect_stdout(sys.stderr), _exit_refused():  # what the file prints is not the report
                return made()
        except (SpecError, CannotRun, ForeignExit):
            raise
        except BaseException as error:
            places = [at for at in traceback.extract_tb(error.__traceback__) if at.filename == str(path)]
            line = f", line {places[-1].lineno}" if places else ""
            raise refused(error, f"{shown}{line}") from error

    def made() -> Machine:
        found = _maker(_module(path, shown), name, shown)
        if isinstance(found, Machine):
            if faults:
                raise CannotRun(
                    f"{shown}:{name} is a machine, not a function that builds one: it takes no faults"
                )
            return found.finished()
        built = _called(found, name, frozenset(faults), shown)
        if not isinstance(built, Machine):
            raise CannotRun(f"{shown}:{name} gives {type(built).__name__}, not a Machine")
        return built.finished()

    return traced(make, root, renamed={str(path): shown})


@contextmanager
def _exit_refused() -> Iterator[None]:
    """While this lasts, ``os._exit`` raises: its exit code would be taken for the verdict."""
    process, leave = os.getpid(), os._exit

    def refuse(status: int) -> NoReturn:
        if os.getpid() != process:  # a process that the file forked ends as it likes
            leave(status)
        raise ForeignExit(f"os._exit({status}) was called while a machine was built; nothing was judged")

    os._exit = refuse
    try:
        yield
    finally:
        os._exit = leave


def _maker(module: types.ModuleType, name: str, shown: str) -> Any:
    if name:
        if not hasattr(module, name):
            known = [k for k, v in vars(module).items() if isinstance(v, Machine) or inspect.isfunction(v)]
            raise unknown(f"machine in {shown}", name, known, f"it has {', '.join(known) or 'none'}")
        return getattr(module, name)
    machines = [v for v in vars(module).values() if isinstance(v, Machine)]
    if len(machines) == 1:
        return machines[0]
    if hasattr(module, "build"):
        return module.build
    raise CannotRun(f"{shown} has {len(machines)} machines and no function build: name one, as {shown}:NAME")


def _called(found: Any, name: str, faults: frozenset[str], shown: str) -> object:
    if not callable(found):
        raise CannotRun(
            f"{shown}:{name} is {type(found).__name__}, neither a Machine nor a function that builds one"
        )
    required = [p for p in inspect.signature(found).parameters.values() if p.default is p.empty]
    if faults or len(required) == 1:
        return found(faults)
    if required:
        raise CannotRun(
            f"{shown}:{name} needs {len(required)} arguments: a builder takes its faults, or nothing"
        )
    return found()


def _module(path: Path, shown: str) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(f"kvfence_spec_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise CannotRun(f"{shown} cannot be loaded as Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except (SpecError, CannotRun, ForeignExit):
        raise
    except BaseException as error:
        raise refused(error, f"{shown} cannot be loaded") from error
    return module


# Git revisions.


def _at_revision(text: str, revision: str, rest: str) -> NamedSpec:
    path, _, attribute = rest.partition(":")
    is_file = Path(path.partition("+")[0]).suffix == ".py"
    with tempfile.TemporaryDirectory(prefix="kvfence-review-") as made:
        folder = Path(made).resolve()
        start = Path(path).parent if is_file else _ROOT
        top = _export(revision, folder, start)
        shown = f"{revision}:{path}"
        try:
            if is_file:
                inside = folder / (Path.cwd() / path).resolve().relative_to(top)
                if not inside.is_file():
                    raise CannotRun(f"revision {revision} has no file {path}")
                with _loading(inside.parent, (folder,)):
                    found = _file(text, inside, attribute, shown, folder)
            else:
                with _loading(folder, (folder,)):
                    designs, machines = _own_spec(revision)
                    if rest not in designs:
                        raise unknown(f"design at {revision}", rest, designs, "kvfence designs lists today's")
                    found = _design(designs[rest], machines, text, folder)
                    built = {name: make() for name, make in found.builders.items()}
                    found = replace(
                        found, builders={name: partial(built.__getitem__, name) for name in built}
                    )
        except (CannotRun, SpecError) as error:
            raise CannotRun(str(error).replace(f"{folder}/", f"{revision}:")) from error
        for make in found.builders.values():
            _rename_places(make().machine, f"{folder}/", f"{revision}:")
    return found


def _rename_places(machine: Machine, folder: str, instead: str) -> None:
    """Replaces the folder that a machine was built from in the places of its parts."""
    parts: list[Any] = [machine, *machine.functions.values()]
    for action in machine.actions.values():
        parts += [action, *action.guards, *action.checks]
    for stated in (machine.invariants, machine.lemmas, machine.goals):
        parts += stated.values()
    if machine.terminal_states is not None:
        parts.append(machine.terminal_states)
    for part in parts:
        part.where = part.where.replace(folder, instead)


def _export(revision: str, folder: Path, start: Path) -> Path:
    """The files of ``revision`` under ``folder``; the repository's own top folder."""
    here = start if start.is_dir() else Path.cwd()
    top = _git(["rev-parse", "--show-toplevel"], here, f"{here} is in no git repository").decode().strip()
    verify = ["rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}"]
    _git(verify, here, f"git knows no revision {revision}")
    packed = _git(["archive", "--format=tar", revision], Path(top), f"git cannot read revision {revision}")
    with tarfile.open(fileobj=BytesIO(packed)) as tar:
        tar.extractall(folder, filter="data")
    return Path(top).resolve()


def _git(arguments: Sequence[str], folder: Path, trouble: str) -> bytes:
    try:
        done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, check=False)
    except FileNotFoundError:
        raise CannotRun("a design or machine at a revision needs git, which is not installed") from None
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise CannotRun(f"{trouble}{f': {said[-1]}' if said else ''}")
    return done.stdout


def _own_spec(revision: str) -> tuple[dict[str, Design], Builders]:
    """The designs and machines of kvfence's own specification, from the files of ``revision``."""
    try:
        designs = importlib.import_module("kvfence.spec.designs").DESIGNS
        machines = importlib.import_module(OWN).MACHINES
    except (ImportError, AttributeError) as error:
        raise CannotRun(
            f"revision {revision} has no specification that this kvfence can read: {error}"
        ) from None
    return dict(designs), dict(machines)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds kvfence's own machines and designs in another checkout; the language stays the present one."""

    def __init__(self, spec: Path) -> None:
        self.spec = spec

    def find_spec(
        self, name: str, _path: object = None, _target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not _is_own(name):
            return None
        path = self.spec.joinpath(*name.split(".")[2:])
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if not file.is_file():
            return None
        folders = [str(path)] if path.is_dir() else None
        return importlib.util.spec_from_file_location(name, file, submodule_search_locations=folders)


def _is_own(name: str) -> bool:
    return name == OWN or name.startswith(f"{OWN}.") or name == "kvfence.spec.designs"


@contextmanager
def _loading(folder: Path, roots: Sequence[Path]) -> Iterator[None]:
    """While this lasts, modules are looked for in ``folder`` first; what was loaded is then forgotten.

    A root with machines of kvfence's own replaces the installed ones meanwhile.
    """
    before = dict(sys.modules)
    finders = [_Finder(root / "spec") for root in roots if (root / "spec" / "machines").is_dir()]
    parent = sys.modules["kvfence.spec"]
    kept = {name: getattr(parent, name) for name in ("machines", "designs") if hasattr(parent, name)}
    if finders:
        for name in [name for name in sys.modules if _is_own(name)]:
            del sys.modules[name]
    sys.meta_path[:0] = finders
    sys.path.insert(0, str(folder))
    written, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        yield
    finally:
        sys.dont_write_bytecode = written
        sys.path.remove(str(folder))
        for finder in finders:
            sys.meta_path.remove(finder)
        for name in [name for name, module in sys.modules.items() if before.get(name) is not module]:
            file = getattr(sys.modules[name], "__file__", None) or ""
            if file.startswith(str(folder)) or any(file.startswith(str(r)) for r in roots):
                del sys.modules[name]
        for name, module in before.items():
            if _is_own(name):
                sys.modules[name] = module
        for name, module in kept.items():
            setattr(parent, name, module)
        importlib.invalidate_caches()


# Which lines a build goes through.


def traced(make: Callable[[], Machine], root: Path, *, renamed: dict[str, str] | None = None) -> Built:
    """The machine that ``make`` builds, with the lines of files under ``root`` that this went through.

    File names are shown relative to it, unless ``renamed`` says otherwise. The language itself is left out.
    """
    visited: dict[str, set[int]] = {}
    language = str(Path(inspect.getfile(Machine)).parent)
    wanted: dict[str, bool] = {}

    def is_wanted(name: str) -> bool:
        if name not in wanted:
            where = str(Path(name).resolve()) if not name.startswith("<") else ""
            wanted[name] = where.startswith(str(root)) and not where.startswith(language)
            wanted[name] = wanted[name] and not where.startswith(str(_ROOT / "checker"))
        return wanted[name]

    def local(frame: types.FrameType, event: str, _arg: object) -> Any:
        if event == "line":
            visited.setdefault(frame.f_code.co_filename, set()).add(frame.f_lineno)
        return local

    def everywhere(frame: types.FrameType, _event: str, _arg: object) -> Any:
        return local if is_wanted(frame.f_code.co_filename) else None

    before = sys.gettrace()
    sys.settrace(everywhere)
    try:
        machine = make().finished()
    finally:
        sys.settrace(before)
    lines: Lines = {}
    sources: dict[str, list[str]] = {}
    for name, numbers in visited.items():
        resolved = Path(name).resolve()
        shown = (renamed or {}).get(str(resolved))
        if shown is None:
            shown = str(resolved.relative_to(root)) if resolved.is_relative_to(root) else resolved.name
        lines[shown] = numbers
        sources[shown] = resolved.read_text(encoding="utf-8", errors="replace").splitlines()
    return Built(machine, lines, sources)
