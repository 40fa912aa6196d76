"""Exhaustive search on GPUs: the machine is printed as CUDA C, compiled at run time, and run."""

from kvfence.checker.engines.gpu.gpu import Gpu, gpu_engine

__all__ = ["Gpu", "gpu_engine"]
