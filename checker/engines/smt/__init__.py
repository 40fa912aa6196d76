"""Engines that ask z3: proofs for sorts of any size, and bounded search and k-induction at given sizes."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from kvfence.checker.core.names import SMT_ENGINES
from kvfence.checker.engines.smt.exercised import Exercised
from kvfence.spec.errors import CannotRun, unknown

if TYPE_CHECKING:
    from kvfence.checker.engines.base import Engine


_FINITE = {"bmc": "BMC", "kinduction": "KInduction", "spacer": "Spacer"}
"""The classes of the engines for given sizes; each is in the module of the engine's name."""


def smt_engine(
    name: str, *, export: Path | None = None, second_solver: str | None = None, infer_lemmas: bool = False
) -> Engine:
    """The engine of that name; CannotRun without z3, or for another name.

    ``export`` (a folder), ``second_solver`` and ``infer_lemmas`` are for engine smt.
    """
    if find_spec("z3") is None:
        raise CannotRun(f"engine {name} asks z3, which is not installed: pip install 'kvfence[smt]'")
    if name not in ("smt", *_FINITE):
        raise unknown("engine", name, SMT_ENGINES, f"there is {', '.join(SMT_ENGINES)}")
    if name in _FINITE:
        module = import_module(f"kvfence.checker.engines.smt.{name}")
        return Exercised(getattr(module, _FINITE[name])())
    from kvfence.checker.engines.smt.unbounded import Unbounded

    return Exercised(Unbounded(folder=export, second=second_solver, infer=infer_lemmas))
