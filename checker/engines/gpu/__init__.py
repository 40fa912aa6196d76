"""Exhaustive search on GPUs: the machine is printed as CUDA C, compiled at run time, and run."""

from kvfence.checker.engines.gpu.gpu import Gpu

__all__ = ["Gpu"]
