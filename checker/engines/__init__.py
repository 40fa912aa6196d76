"""Engines: what decides a machine at given sizes. They are imported when they are first asked for."""

from importlib import import_module
from typing import Any, Final

_HOMES: Final = {
    "explicit.interpret": ("Interpret", "Interpreter"),
    "explicit.numpy_search": ("Explore",),
    "gpu.gpu": ("Gpu",),
    "gpu.random_walks": ("Swarm",),
    "liveness.liveness": ("Liveness",),
    "native.native": ("Native",),
    "base": ("Engine", "Finding", "Path", "Progress", "Result", "Step", "Verdict"),
}


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
