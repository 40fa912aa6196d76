"""Engines: what decides a machine at given sizes. Each is loaded when it is first asked for."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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

_HOMES = {
    "Explore": "explore",
    "Failure": "interpret",
    "Interpret": "interpret",
    "Interpreter": "interpret",
    "Liveness": "liveness",
    "Native": "native",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES.get(name, 'base')}"), name)
