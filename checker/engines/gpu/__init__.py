"""Exhaustive search on GPUs: the machine is printed as CUDA C, compiled at run time, and run."""

from kvfence.checker.engines.gpu.gpu import Gpu, gpu_engine
from kvfence.checker.engines.gpu.random_walks import Swarm

__all__ = ["Gpu", "Swarm", "gpu_engine"]
