"""The plugin that vLLM loads in each of its processes. Does nothing unless ``KVFENCE_MODE`` is set.

``KVFENCE_MODE``: ``log`` or ``count``, or ``raise`` for tests. ``KVFENCE_RECORD``: a folder for the traces of
what led to a violation. Nothing is imported before the mode is known.
"""

from __future__ import annotations

import os


def register() -> None:
    """Entry point of the group ``vllm.general_plugins``; never raises."""
    mode = os.environ.get("KVFENCE_MODE", "").strip().lower()
    if mode in {"", "off", "0"}:
        return
    import logging

    try:
        from kvfence.checker.adapters.vllm.runtime import install

        install(mode, os.environ.get("KVFENCE_RECORD") or None)
    except Exception as error:
        logging.getLogger("kvfence.vllm").error(
            "KVFENCE_MODE=%s: kvfence does not observe this process: %s: %s",
            mode,
            type(error).__name__,
            error,
        )
