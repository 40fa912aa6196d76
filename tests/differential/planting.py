"""Plants a fault in an engine: replaces a piece of its source, in Python, C or CUDA."""

from __future__ import annotations

import importlib
import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass

import pytest


@dataclass(frozen=True)
class Plant:
    """In ``where`` (module:function, or module:Class.method, or a C or CUDA file) ``old`` becomes ``new``."""

    name: str
    where: str
    old: str
    new: str


def plant(p: Plant, patch: pytest.MonkeyPatch) -> None:
    """Put the fault in its place until ``patch`` is undone. AssertionError where the source has changed."""
    if p.where.endswith((".c", ".h", ".cuh")):
        _in_packaged(p, patch)
        return
    module_name, _, path = p.where.partition(":")
    module = importlib.import_module(f"kvfence.{module_name}")
    owner: object = module
    *outer, name = path.split(".")
    for part in outer:
        owner = getattr(owner, part)
    old = vars(owner)[name]
    source = textwrap.dedent(inspect.getsource(old))
    assert source.count(p.old) == 1, f"{p.where} has no such piece, or several: {p.old}"
    scope: dict[str, object] = {}
    code = compile("from __future__ import annotations\n" + source.replace(p.old, p.new), p.where, "exec")
    exec(code, vars(module), scope)
    made = scope[name]
    assert inspect.isfunction(old)
    assert inspect.isfunction(made)
    patch.setattr(old, "__code__", made.__code__)  # also for modules that have imported the function


def _in_packaged(p: Plant, patch: pytest.MonkeyPatch) -> None:
    home = "gpu.device.source" if p.where.endswith(".cuh") else "native.c_source"
    module = importlib.import_module(f"kvfence.checker.engines.{home}")
    read: Callable[[str], str] = module._packaged

    def packaged(name: str) -> str:
        text = read(name)
        if name != p.where:
            return text
        assert text.count(p.old) == 1, f"{p.where} has no such piece, or several: {p.old}"
        return text.replace(p.old, p.new)

    packaged(p.where)  # fails at once where the source has changed
    patch.setattr(module, "_packaged", packaged)
