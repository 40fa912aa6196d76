"""The command line as tests use it: one call runs a command and gives its exit code and what it printed."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest

from kvfence.checker.cli.app import run


class Ended(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def flat(self) -> str:
        """Standard output as one line."""
        return " ".join(self.out.split())


class CommandLine:
    """Runs `kvfence` in this process; the fixture ``kvfence``."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: object) -> Ended:
        """Runs a command; its arguments may be paths."""
        self._capsys.readouterr()
        return Ended(run([str(argument) for argument in arguments]), *self._capsys.readouterr())

    def prints(self, code: int, *arguments: object) -> str:
        """What a command prints, as one line; asserts its exit code."""
        ended = self(*arguments)
        assert ended.code == code, ended
        return ended.flat

    def json(self, code: int, *arguments: object) -> Any:
        """The report of a command as JSON; asserts its exit code."""
        ended = self(*arguments, "--format", "json")
        assert ended.code == code, ended
        return json.loads(ended.out)

    def fails(self, code: int, *arguments: object) -> str:
        """The line on stderr, all that a command prints; asserts its exit code."""
        ended = self(*arguments)
        assert (ended.code, ended.out, ended.err.count("\n")) == (code, "", 1), ended
        assert ended.err[:-1].isprintable()
        return ended.err

    def refuses(self, *arguments: object) -> str:
        """The line on stderr of a command that cannot run; asserts that it prints nothing else."""
        return self.fails(2, *arguments)
