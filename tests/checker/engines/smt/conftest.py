"""The small machines, for every test of the engines that ask z3; all are skipped without z3."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("z3", reason="needs the extra smt")


@pytest.fixture(scope="session")
def small() -> ModuleType:
    """The functions of ``machines.py``."""
    spec = importlib.util.spec_from_file_location("smt_machines", Path(__file__).parent / "machines.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
