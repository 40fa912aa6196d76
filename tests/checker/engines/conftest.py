"""The benchmark machine, for every test of the engines."""

from collections.abc import Callable

import pytest
from kvlife import build

from kvfence.checker.core import c_build
from kvfence.spec.language import Machine


@pytest.fixture
def compiled_without_optimisation(monkeypatch: pytest.MonkeyPatch) -> None:
    """For many machines that are searched in no time: optimizing them would take longer."""
    monkeypatch.setattr(c_build, "FLAGS", (*c_build.FLAGS, "-O0"))


@pytest.fixture(scope="session")
def kvlife() -> Callable[..., Machine]:
    """``build`` of the benchmark machine."""
    return build
