"""The connector that puts kvfence around another one. For vLLM to import: it needs vLLM.

Configured with ``kv_connector="FencedConnector"`` and ``kv_connector_module_path`` naming this package.
"""

from __future__ import annotations

from kvfence.checker.adapters.fence.connector import (
    FenceConfigError,
    FencedConnector,
    FencedConnectorWithoutHMA,
)

__all__ = ["FenceConfigError", "FencedConnector", "FencedConnectorWithoutHMA"]
