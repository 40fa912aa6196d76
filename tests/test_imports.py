"""Who may import whom, and what the core may need to be installed."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import kvfence

ROOT = Path(__file__).parents[1]
PARTS = ("spec", "reference", "checker")
MAY_IMPORT = {"spec": {"spec"}, "reference": {"reference", "spec"}, "checker": {"checker", "spec"}}
ADAPTER = Path("checker/adapters/reference.py")
KNOW_THE_REFERENCE = (
    ADAPTER,
    Path("checker/audit/reference_run.py"),
    Path("checker/engines/gpu/pinned_levels.py"),
    Path("checker/cli/commands/replay.py"),
)
DECLARES_OPTIONS = "kvfence.reference.scheduler.options"
"""Needs neither torch nor numpy; the command line is built from it."""
CORE_DEPENDENCIES = {"msgspec", "numpy", "typer", "rich", "jinja2"}
ONLY_WHEN_ASKED_FOR = {"networkx", "zstandard"}
NEEDS_AN_EXTRA = {
    Path("checker/adapters/fence"): {"vllm"},
    Path("checker/adapters/pytest_plugin"): {"pytest"},
    ADAPTER: {"prometheus_client"},
    Path("checker/engines/gpu/pinned_levels.py"): {"torch"},
    Path("checker/audit/campaign.py"): {"hypothesis"},
    Path("checker/audit/rig/rig.py"): {"torch"},
    Path("checker/audit/rig/engine.py"): {"torch"},
    Path("checker/audit/rig/worker.py"): {"torch"},
    Path("checker/audit/cases/workload.py"): {"hypothesis"},
    Path("checker/engines/gpu/device/cuda_kernels.py"): {"cuda"},
    Path("checker/engines/gpu/device/torch_ranks.py"): {"torch"},
    Path("checker/engines/smt"): {"z3", "cvc5"},
    Path("checker/ledger/guard/gauges.py"): {"prometheus_client"},
}


def sources(part: str) -> Iterator[Path]:
    return (ROOT / part).rglob("*.py")


def extras_of(path: Path) -> set[str]:
    """The optional dependencies that the file, or its folder, is there for; none for most."""
    here = path.relative_to(ROOT)
    return {extra for part, extras in NEEDS_AN_EXTRA.items() if here.is_relative_to(part) for extra in extras}


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """Full names of the modules that ``path`` imports, each with whether importing ``path`` imports it."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    inside_functions = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
    }
    package = ("kvfence", *path.relative_to(ROOT).parent.parts)
    for node in ast.walk(tree):
        at_once = id(node) not in inside_functions
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, at_once
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join((*base, *([node.module] if node.module else [])))
            yield module, at_once
            for alias in node.names:
                if module in {"kvfence", *(f"kvfence.{part}" for part in PARTS)}:
                    yield f"{module}.{alias.name}", at_once


def part_of(module: str) -> str | None:
    names = module.split(".")
    return names[1] if names[0] == "kvfence" and len(names) > 1 else None


@pytest.mark.parametrize("part", PARTS)
def test_each_part_imports_only_what_it_may(part: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {module}"
        for path in sources(part)
        for module, _ in imports(path)
        if (owner := part_of(module)) not in {None, "__version__"}
        and owner not in MAY_IMPORT[part]
        and not (owner == "reference" and path.relative_to(ROOT) in KNOW_THE_REFERENCE)
    ]
    assert not wrong


def test_the_rule_sees_a_forbidden_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    (tmp_path / "spec").mkdir()
    (tmp_path / "spec" / "bad.py").write_text("from kvfence.checker import cli\nfrom .. import reference\n")
    found = {part_of(module) for path in sources("spec") for module, _ in imports(path)}
    assert {"checker", "reference"} <= found


def test_the_reference_is_imported_only_when_asked_for() -> None:
    at_once = [
        module
        for file in KNOW_THE_REFERENCE
        for module, now in imports(ROOT / file)
        if now and part_of(module) == "reference" and module != DECLARES_OPTIONS
    ]
    assert not at_once


@pytest.mark.parametrize("part", ["spec", "checker"])
def test_the_core_needs_only_its_declared_dependencies(part: str) -> None:
    allowed = CORE_DEPENDENCIES if part == "checker" else {"msgspec"}
    files = Path("spec/files")
    wrong = [
        f"{path.relative_to(ROOT)} imports {module}"
        for path in sources(part)
        for module, now in imports(path)
        if (top := module.split(".")[0]) not in sys.stdlib_module_names | {"kvfence"} | allowed
        and not (top == "numpy" and path.relative_to(ROOT).is_relative_to(files))
        and not (top in ONLY_WHEN_ASKED_FOR and not now)
        and top not in extras_of(path)
    ]
    assert not wrong


def test_the_core_imports_without_any_extra() -> None:
    modules = [
        ".".join(("kvfence", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")
        for part in ("spec", "checker")
        for path in sources(part)
        if not extras_of(path)
    ]
    program = (
        "import importlib, sys\n"
        "sys.modules.update(dict.fromkeys(['torch', 'cuda', 'networkx', 'zstandard', 'z3', 'cvc5']))\n"
        f"for name in {sorted(modules)!r}: importlib.import_module(name)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_folder_with_code_is_a_package_that_the_pattern_finds() -> None:
    folders = {path.parent for part in PARTS for path in sources(part)}
    assert all((folder / "__init__.py").is_file() for folder in folders)
    linked = {path.name for path in (ROOT / "kvfence").iterdir() if path.is_symlink() and path.is_dir()}
    assert linked == set(PARTS)


def test_the_public_names_are_few_and_come_when_they_are_asked_for() -> None:
    assert len(kvfence.__all__) <= 20
    assert all(getattr(kvfence, name).__doc__ for name in kvfence.__all__)
    program = "import kvfence, sys; print([m for m in sys.modules if m.startswith('kvfence.')])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", ["language", "events", "lockstep"])
def test_a_public_submodule_has_what_it_stands_for(name: str) -> None:
    homes = {"language": "spec.language", "events": "spec.events", "lockstep": "checker.analysis.lockstep"}
    home, public = import_module(f"kvfence.{homes[name]}"), import_module(f"kvfence.{name}")
    own = [
        k
        for k, v in vars(home).items()
        if not k.startswith("_") and getattr(v, "__module__", "") == home.__name__
    ]
    assert own or name == "language"
    assert all(hasattr(public, k) for k in own)


def test_the_package_runs_as_a_module_and_knows_its_version() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kvfence", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["kvfence", kvfence.__version__]


def test_a_checkout_that_is_not_installed_verifies_and_says_so() -> None:
    program = (
        "import importlib.metadata as metadata\n"
        "def version(name): raise metadata.PackageNotFoundError(name)\n"
        "metadata.version = version\n"
        "import kvfence\n"
        "print(kvfence.verify(machine='block_pool').version)\n"
        "from kvfence.checker.cli.app import run\n"
        "raise SystemExit(run(['--version']))\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert ran.stdout.split() == ["0+checkout", "kvfence", "0+checkout"]
