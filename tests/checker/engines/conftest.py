"""The benchmark machine, for every test of the engines."""

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest

from kvfence.checker.core import c_build as build
from kvfence.spec.language import Machine


@pytest.fixture
def compiled_without_optimisation(monkeypatch: pytest.MonkeyPatch) -> None:
    """For many machines that are searched in no time: optimizing them would take longer."""
    monkeypatch.setattr(build, "FLAGS", (*build.FLAGS, "-O0"))


@pytest.fixture(scope="session")
def kvlife() -> Callable[..., Machine]:
    """``build`` of the benchmark machine."""
    path = Path(__file__).parents[2] / "machines" / "kvlife.py"
    spec = importlib.util.spec_from_file_location("kvlife", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    build: Callable[..., Machine] = module.build
    return build
