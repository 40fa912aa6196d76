"""Machines of one's own: ``kvfence new`` begins one, ``kvfence verify --machine FILE.py:NAME`` checks it."""

from pathlib import Path

import pytest
from command_line import CommandLine


@pytest.fixture
def begun(tmp_path: Path, kvfence: CommandLine) -> Path:
    assert kvfence("new", tmp_path / "mine")[0] == 0
    return tmp_path / "mine"


def test_nothing_that_is_there_is_overwritten(begun: Path, kvfence: CommandLine) -> None:
    (begun / "README.md").write_text("my own")
    (begun / "two_tier.py").unlink()
    assert "README.md" in kvfence.refuses("new", begun)
    assert (begun / "README.md").read_text() == "my own"
    assert not (begun / "two_tier.py").exists()


def test_a_machine_in_a_file_is_verified_with_and_without_fault(begun: Path, kvfence: CommandLine) -> None:
    machine = f"{begun / 'two_tier.py'}:build"
    assert "holds" in kvfence.prints(0, "verify", "--machine", machine, "--engine", "explore")
    text = kvfence.prints(1, "verify", "--machine", f"{machine}+pin_late", "--engine", "explore")
    assert "It breaks PIN" in text


@pytest.mark.parametrize(
    ("change", "hint"),
    [
        (("s.phase[r] = Phase.running", "s.phaze[r] = Phase.running"), "phaze"),
        (("m = Machine(", "m = Machin("), "line 11"),
        (("def build", "def built"), "build"),
        (("import Elem", "import Elephant"), "Elephant"),
    ],
)
def test_a_mistake_in_the_file_is_one_line_that_names_it(
    begun: Path, change: tuple[str, str], hint: str, kvfence: CommandLine
) -> None:
    file = begun / "two_tier.py"
    file.write_text(file.read_text().replace(*change))
    assert hint in kvfence.refuses("verify", "--machine", f"{file}:build")


def test_a_design_of_kvfence_does_not_apply_to_a_machine_in_a_file(begun: Path, kvfence: CommandLine) -> None:
    assert "over_pop" in kvfence.refuses(
        "verify", "--design", "over_pop", "--machine", f"{begun / 'two_tier.py'}:build"
    )
    assert "none.py" in kvfence.refuses("verify", "--machine", begun / "none.py")
