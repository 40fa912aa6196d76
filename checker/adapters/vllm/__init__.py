"""vLLM under observation: every BlockPool, Scheduler and offload connector of a process emits its events.

Nothing here imports vLLM until :func:`instrument` is called.
"""

from __future__ import annotations

from kvfence.checker.adapters.vllm.hooks.instrument import Instrumentation, instrument

__all__ = ["Instrumentation", "instrument"]
