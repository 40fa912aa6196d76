"""Engines: what decides a machine at given sizes."""

from importlib import import_module
from typing import Any, Final

_HOMES: Final = {
    "Explore": "explicit.numpy_search",
    "Interpret": "explicit.interpret",
    "Interpreter": "explicit.interpret",
    "Liveness": "liveness.liveness",
    "Native": "native.native",
} | dict.fromkeys(("Engine", "Finding", "Path", "Progress", "Result", "Step", "Verdict"), "base")


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
