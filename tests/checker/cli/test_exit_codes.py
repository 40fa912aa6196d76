"""Exit code 1 is for violations alone: what nobody foresaw is 4, one line, with the traceback in a file."""

from __future__ import annotations

import os
import re
import shlex
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import CommandLine

from kvfence.checker.cli import app as cli
from kvfence.checker.core import exit_codes
from kvfence.checker.core.exit_codes import CANNOT_RUN, FAILED, READER_LEFT, worst_code

ROOT = Path(__file__).parents[3]
MAIN = "kvfence.checker.cli.main"
FAULT = ZeroDivisionError("a fault of ours")
ENDINGS = {
    "raise SystemExit(0)": FAILED,
    "raise SystemExit(1)": FAILED,
    "raise KeyboardInterrupt": FAILED,
    "raise MemoryError": FAILED,
    "raise GeneratorExit": FAILED,
    "def f(): f()\nf()": FAILED,
    "class Mine(BaseException): pass\nraise Mine('\\x1b[31mred')": FAILED,
    "import os\nos._exit(0)": FAILED,
    "raise StopIteration": CANNOT_RUN,
    "1 / 0": CANNOT_RUN,
    "import no_such_module": CANNOT_RUN,
    "def (": CANNOT_RUN,
    "class Mute(Exception):\n  def __str__(self): raise ValueError\nraise Mute": CANNOT_RUN,
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where tracebacks are written."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def check_raises(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], None]:
    """Lets the check of a trace raise an error."""

    def let(error: BaseException) -> None:
        def check_trace(*_: object, **__: object) -> None:
            raise error

        monkeypatch.setattr("kvfence.checker.ledger.check.check_trace", check_trace)

    return let


def start(*arguments: str, python: str = "-q", **options: object) -> subprocess.CompletedProcess[str]:
    """The installed command in a process of its own; ``python``: an option of Python."""
    command = [sys.executable, python, "-m", MAIN, *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    return subprocess.run(command, text=True, check=False, **pipes)  # type: ignore[call-overload,no-any-return]


@pytest.mark.parametrize(
    "closed", [(0,), (1,), (2,), (0, 1, 2)], ids=["input", "output", "errors", "all of them"]
)
def test_closed_standard_streams_change_no_exit_code(closed: tuple[int, ...], tmp_path: Path) -> None:
    empty = "-"  # standard input: closed it is as good as empty
    for arguments, code in ((["verify", "--machine", "lookup"], 0), (["check", empty], CANNOT_RUN)):
        redirections = [f"{number}{'<' if number == 0 else '>'}&-" for number in closed]
        given = [] if 0 in closed else ["<", os.devnull]
        line = shlex.join([sys.executable, "-m", MAIN, *arguments])
        shell = ["sh", "-c", " ".join([line, *given, *redirections])]
        ended = subprocess.run(shell, env={**os.environ, "TMPDIR": str(tmp_path)}, check=False)
        assert ended.returncode == code
    assert not list(tmp_path.iterdir()), "no failure was written down"


@pytest.mark.parametrize("inside", [False, True], ids=["while it is loaded", "while it builds"])
@pytest.mark.parametrize(("text", "code"), ENDINGS.items())
def test_a_machine_file_cannot_choose_the_exit_code(
    text: str, code: int, inside: bool, folder: Path, kvfence: CommandLine
) -> None:
    if inside:
        text = "def build():\n" + "\n".join(f"    {line}" for line in text.splitlines())
    file = folder / "mine.py"
    file.write_text(text)
    line = kvfence.fails(code, "verify", "--machine", f"{file}:build", "--format", "json")
    assert ("kvfence-failure-" in line) == (code == FAILED)


def test_what_a_machine_file_prints_is_not_the_report(folder: Path, kvfence: CommandLine) -> None:
    sample = Path(cli.__file__).parent / "skeleton" / "two_tier.py.txt"
    (folder / "mine.py").write_text(f"print('hello')\n{sample.read_text()}")
    asked = ("verify", "--machine", f"{folder}/mine.py:build")
    assert kvfence.json(0, *asked)["verdict"] == "holds"
    assert kvfence(*asked).err == "hello\n"


def test_a_failure_is_one_line_and_a_private_file_with_all_that_a_report_needs(
    folder: Path, check_raises: Callable[[BaseException], None], kvfence: CommandLine
) -> None:
    check_raises(FAULT)
    line = kvfence.fails(FAILED, "check", "some trace.jsonl", "--format", "json")
    (file,) = folder.glob("kvfence-failure-*")
    assert str(file) in line
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    text = file.read_text()
    assert "command: kvfence check 'some trace.jsonl' --format json" in text
    assert re.search(r"kvfence \d+\.\d+.* Python 3", text)
    assert "ZeroDivisionError: a fault of ours" in text
    assert "in check_trace" in text


def test_where_no_file_can_be_written_the_line_says_so(
    monkeypatch: pytest.MonkeyPatch, check_raises: Callable[[BaseException], None], kvfence: CommandLine
) -> None:
    check_raises(FAULT)
    monkeypatch.setattr(tempfile, "tempdir", "/dev/null")
    assert "could not be written" in kvfence.fails(FAILED, "check", "trace.jsonl")


MISSING = ModuleNotFoundError("No module named 'networkx'", name="networkx.algorithms")


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        *((error(), FAILED, error.__name__) for error in (RecursionError, MemoryError, GeneratorExit)),
        *((SystemExit(code), FAILED, "SystemExit") for code in (0, None)),
        pytest.param(MISSING, CANNOT_RUN, "pip install 'kvfence[order]'", id="a package that is missing"),
    ],
)
def test_no_exception_passes_for_a_verdict(
    error: BaseException,
    code: int,
    says: str,
    check_raises: Callable[[BaseException], None],
    kvfence: CommandLine,
) -> None:
    check_raises(error)
    assert says in kvfence.fails(code, "check", "trace.jsonl")


def broken() -> None:
    """A part of kvfence that fails."""
    raise FAULT


def in_a_thread() -> None:
    """The failure ends a thread."""
    thread = threading.Thread(target=broken)
    thread.start()
    thread.join()


def in_a_destructor() -> None:
    """The failure is one that Python ignores."""

    class Dies:
        def __del__(self) -> None:
            broken()

    Dies()


@pytest.mark.parametrize("fail", [in_a_thread, in_a_destructor])
def test_a_failure_beside_the_command_takes_the_verdict_with_it(
    fail: Callable[[], None], monkeypatch: pytest.MonkeyPatch, kvfence: CommandLine
) -> None:
    def text(*_: object, **__: object) -> str:
        fail()
        return "all is well"

    monkeypatch.setattr("kvfence.checker.report.text.listings.designs_text", text)
    ended = kvfence("designs")
    assert ended.code == FAILED
    assert "a fault of ours" in ended.err


def test_a_full_disk_at_standard_output_hides_the_verdict(folder: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    with Path("/dev/full").open("w") as full:
        done = start("designs", stdout=full, env={"TMPDIR": str(folder)})
    assert done.returncode == FAILED
    assert done.stderr.count("\n") == 1
    assert "cannot write to standard output" in done.stderr


@pytest.mark.parametrize("arguments", [["designs", "--format", "json"], ["--version"]])
def test_a_reader_that_leaves_early_is_no_violation(arguments: list[str]) -> None:
    command = [sys.executable, "-m", MAIN, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == READER_LEFT


def test_a_locale_without_the_characters_of_a_report_is_no_failure() -> None:
    done = start("designs", env={"PYTHONIOENCODING": "ascii", "PATH": "/usr/bin:/bin"})
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("module", "code"), [("None", CANNOT_RUN), ("object()", FAILED)])
def test_an_installation_that_cannot_be_imported_is_one_line(module: str, code: int) -> None:
    text = f"import sys; from {MAIN} import main; sys.modules['typer'] = {module}; main()"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(("design", "code"), [("sound", 0), ("unpinned_lookup", 1)])
def test_without_assert_statements_verdicts_are_the_same(design: str, code: int) -> None:
    asked = ("verify", "--engine", "explore", "--machine", "lookup", "--design", design)
    done = start(*asked, python="-O")
    assert (done.returncode, done.stderr) == (code, "")


def test_without_docstrings_nothing_is_judged() -> None:
    done = start("verify", "--machine", "lookup", python="-OO")
    assert (done.returncode, done.stdout) == (CANNOT_RUN, "")
    assert "-OO" in done.stderr


def test_one_violated_outweighs_what_is_undetermined() -> None:
    assert worst_code([0, 3, 1, 3]) == 1
    assert worst_code([0, 3]) == 3
    assert worst_code([]) == 0


def test_every_page_names_every_code(kvfence: CommandLine) -> None:
    codes = {*exit_codes.EXIT_CODES.values(), CANNOT_RUN, FAILED, exit_codes.INTERRUPTED, READER_LEFT}
    page = (ROOT / "docs" / "exit-codes.md").read_text()
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)} == codes
    readme = (ROOT / "README.md").read_text()
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", readme, re.MULTILINE)} == codes - {READER_LEFT}
    assert exit_codes.SUMMARY.split()[-1] in kvfence.prints(0, "--help")
