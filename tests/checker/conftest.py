"""Fixtures of the checker's tests."""

import pytest
from command_line import CommandLine


@pytest.fixture
def kvfence(capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """The command line."""
    return CommandLine(capsys)
