"""Machines of one's own: ``kvfence new`` begins one, ``kvfence verify --machine FILE.py:NAME`` checks it."""

from pathlib import Path

import pytest

from kvfence.checker.cli import app as cli


def said(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = cli.run(arguments)
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture
def begun(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert said(["new", str(tmp_path / "mine")], capsys)[0] == 0
    return tmp_path / "mine"


def test_nothing_that_is_there_is_overwritten(begun: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (begun / "README.md").write_text("my own")
    (begun / "two_tier.py").unlink()
    code, _, err = said(["new", str(begun)], capsys)
    assert code == 2
    assert "README.md" in err
    assert (begun / "README.md").read_text() == "my own"
    assert not (begun / "two_tier.py").exists()


def test_a_machine_in_a_file_is_verified_with_and_without_its_fault(
    begun: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = f"{begun / 'two_tier.py'}:build"
    code, out, _ = said(["verify", "--machine", machine, "--engine", "explore"], capsys)
    assert (code, "holds" in out) == (0, True)
    code, out, _ = said(["verify", "--machine", f"{machine}+pin_late", "--engine", "explore"], capsys)
    assert (code, "It breaks PIN" in out) == (1, True)


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
    begun: Path, change: tuple[str, str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = begun / "two_tier.py"
    file.write_text(file.read_text().replace(*change))
    code, _, err = said(["verify", "--machine", f"{file}:build"], capsys)
    assert code == 2
    assert hint in err
    assert len(err.splitlines()) == 1


def test_a_design_of_kvfence_does_not_apply_to_a_machine_in_a_file(
    begun: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = said(
        ["verify", "--design", "over_pop", "--machine", f"{begun / 'two_tier.py'}:build"], capsys
    )
    assert code == 2
    assert "over_pop" in err
    code, _, err = said(["verify", "--machine", str(begun / "none.py")], capsys)
    assert (code, "none.py" in err) == (2, True)
