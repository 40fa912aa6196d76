"""Exhaustive search in C: the machine is printed as C, compiled once, and loaded."""

from kvfence.checker.engines.native.native import Native

__all__ = ["Native"]
