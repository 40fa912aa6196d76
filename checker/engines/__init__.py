"""Engines: what decides a machine at given sizes."""

from kvfence.checker.engines.base import Engine, Finding, Path, Progress, Result, Step, Verdict
from kvfence.checker.engines.explore import Explore
from kvfence.checker.engines.interpret import Failure, Interpret, Interpreter
from kvfence.checker.engines.liveness import Liveness
from kvfence.checker.engines.native import Native

__all__ = [
    "Engine",
    "Explore",
    "Failure",
    "Finding",
    "Interpret",
    "Interpreter",
    "Liveness",
    "Native",
    "Path",
    "Progress",
    "Result",
    "Step",
    "Verdict",
]
