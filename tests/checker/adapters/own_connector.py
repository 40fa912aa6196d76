"""A connector that vLLM does not know, with a method of its own."""

from __future__ import annotations

from vllm.distributed.kv_transfer.kv_connector.v1.simple_cpu_offload_connector import (
    SimpleCPUOffloadConnector,
)


class OwnConnector(SimpleCPUOffloadConnector):
    def say(self, what: str) -> str:
        return f"said {what}"
