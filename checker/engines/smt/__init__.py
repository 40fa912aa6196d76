"""Engines that ask z3: proofs for sorts of any size, and bounded search and k-induction at given sizes."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from kvfence.checker.core.names import SMT_ENGINES
from kvfence.checker.engines.smt.exercised import Exercised
from kvfence.spec.errors import CannotRun, unknown

if TYPE_CHECKING:
    from kvfence.checker.engines.base import Engine


def smt_engine(
    name: str, *, export: Path | None = None, second_solver: str | None = None, infer_lemmas: bool = False
) -> Engine:
    """The engine of that name; CannotRun without z3, or for another name.

    ``export`` (a folder), ``second_solver`` and ``infer_lemmas`` are for engine smt.
    """
    if find_spec("z3") is None:
        raise CannotRun(f"engine {name} asks z3, which is not installed: pip install 'kvfence[smt]'")
    if name == "smt":
        from kvfence.checker.engines.smt.unbounded import Unbounded

        return Exercised(Unbounded(folder=export, second=second_solver, infer=infer_lemmas))
    if name == "bmc":
        from kvfence.checker.engines.smt.bmc import BMC

        return Exercised(BMC())
    if name == "kinduction":
        from kvfence.checker.engines.smt.kinduction import KInduction

        return Exercised(KInduction())
    if name == "spacer":
        from kvfence.checker.engines.smt.spacer import Spacer

        return Exercised(Spacer())
    raise unknown("engine", name, SMT_ENGINES, f"there is {', '.join(SMT_ENGINES)}")
