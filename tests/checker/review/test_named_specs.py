"""Specifications by name: designs, machines in files, and either at a git revision."""

import subprocess
import sys
from pathlib import Path

import pytest
import two_tier

from kvfence.checker.analysis.named_specs import named_spec
from kvfence.checker.analysis.review import differences
from kvfence.spec.errors import CannotRun
from kvfence.spec.machines import MACHINES

SPEC = Path(two_tier.__file__)


def test_a_design_touches_its_machines_and_leaves_the_others_sound() -> None:
    found = named_spec("unpinned_lookup")
    assert found.touched == ("lookup",)
    assert found.builders["lookup"]().machine.faults == {"unpinned_lookup"}
    assert found.builders["transfer"]().machine.faults == frozenset()


@pytest.mark.parametrize("name", ["build", "MACHINE", ""])
def test_a_file_names_a_machine_or_a_function_that_builds_one(name: str) -> None:
    found = named_spec(f"{SPEC}:{name}")
    assert [b().machine.name for b in found.builders.values()] == ["two_tier"]


def test_faults_of_a_file_follow_its_name() -> None:
    (builder,) = named_spec(f"{SPEC}:build+no_pin").builders.values()
    assert builder().machine.faults == {"no_pin"}


def test_the_lines_that_a_build_went_through_are_known() -> None:
    (builder,) = named_spec(f"{SPEC}:build").builders.values()
    built = builder()
    text = built.sources[str(SPEC)]
    went = {text[n - 1].strip() for n in built.lines[str(SPEC)]}
    assert "s.pinned[r, b] = True" in went
    assert "s.require(False)" not in went


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("unpinned_lokup", "did you mean unpinned_lookup"),
        ("nowhere.py:build", "there is no file nowhere.py"),
        (f"{SPEC}:bild", "did you mean build"),
        (f"{SPEC}:MACHINE+no_pin", "takes no faults"),
        (f"{SPEC}:__name__", "is str, neither a Machine nor"),
        ("no_such_revision:sound", "no revision no_such_revision"),
    ],
)
def test_a_name_that_does_not_exist_is_named_with_the_way_out(text: str, part: str) -> None:
    with pytest.raises(CannotRun, match=part):
        named_spec(text)


def test_a_file_that_is_no_python_is_named(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("def build(:\n")
    with pytest.raises(CannotRun, match=r"broken\.py cannot be loaded: SyntaxError"):
        named_spec(f"{tmp_path / 'broken.py'}:build")


def git(folder: Path, *arguments: str) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository whose first revision has a specification, and whose work tree has another."""
    git(tmp_path, "init", "-q")
    folder = tmp_path / "connector"
    folder.mkdir()
    (folder / "names.py").write_text('NAME = "two_tier"\n')
    text = (
        SPEC.read_text()
        .replace('Machine("two_tier"', "Machine(NAME")
        .replace("from kvfence", "from names import NAME\n\nfrom kvfence", 1)
    )
    (folder / "spec.py").write_text(text)
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    (folder / "spec.py").write_text(text.replace("            s.pinned[r, b] = True\n", "            pass\n"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_revision_is_read_with_the_modules_beside_it(repository: Path) -> None:
    old, new = named_spec("HEAD:connector/spec.py:build"), named_spec("connector/spec.py:build")
    (one,), (other,) = old.builders.values(), new.builders.values()
    found = differences.parts(one().machine, other().machine)
    assert [d.what for d in found] == ["pinned after lookup"]
    changed = [(line.side, line.text.strip()) for line in differences.lines(one(), other())]
    assert changed == [("base", "s.pinned[r, b] = True"), ("change", "pass")]
    assert "names" not in sys.modules
    assert repository.name not in " ".join(sys.path)


def test_places_in_a_revision_begin_with_its_name(repository: Path) -> None:
    (builder,) = named_spec("HEAD:connector/spec.py:build").builders.values()
    evict = builder().machine.actions["evict"]
    assert evict.guards[0].where.startswith("HEAD:connector/spec.py:")
    text = (repository / "connector" / "spec.py").read_text()
    (repository / "connector" / "spec.py").write_text(text.replace('m.sort("Block"', 'm.sort("Reader"'))
    git(repository, "commit", "-qam", "wrong")
    with pytest.raises(CannotRun, match=r"^HEAD:connector/spec\.py:\d+: "):
        named_spec("HEAD:connector/spec.py:build")


def test_a_file_that_the_revision_lacks_is_named(repository: Path) -> None:
    with pytest.raises(CannotRun, match=r"revision HEAD has no file connector/other\.py"):
        named_spec(f"HEAD:{(repository / 'connector' / 'other.py').relative_to(repository)}:build")


def test_designs_of_this_repository_can_be_read_at_a_revision() -> None:
    root = Path(__file__).parents[3]
    if subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, check=False).returncode:
        pytest.skip("not a git checkout")
    found = named_spec("HEAD:unpinned_lookup")
    assert found.builders["lookup"]().machine.faults == {"unpinned_lookup"}
    # what is installed stays as it was
    import kvfence.spec.machines

    assert kvfence.spec.machines.MACHINES is MACHINES
    assert named_spec("unpinned_lookup").builders["lookup"]().machine.name == "lookup"
