"""Public reports that a finding can be one of: by invariant and by words of its cause.

Only what was found is looked up here; what is generated and what is judged knows none of this.
"""

from __future__ import annotations

from typing import Final

from kvfence.checker.audit.cases.outcome import Sighting

_KNOWN: Final = (
    ("PIN", ("promised",), "vllm#39702"),
    ("UNIQUE", ("open store",), "vllm#41289"),
    ("UNIQUE", ("once",), "vllm#42571"),
    ("UNIQUE", ("twice",), "vllm#42571"),
    ("CONSERVE", ("gpu",), "vllm#42085"),
    ("CONSERVE", ("kv_cache_utils.py",), "vllm#42085"),
    ("CONSERVE", ("block_pool.py",), "vllm#42085"),
    ("STORE-READY", ("write of step", "read of store"), "vllm#45704"),
    ("LOAD-ORDER", ("step", "write of load"), "vllm#47282"),
    ("PROGRESS", ("requests wait", "for a load"), "vllm#45388"),
    ("FLUSH", ("the last full blocks", "nor queued"), "vllm#41704"),
)


def report_of(sighting: Sighting) -> str:
    """The public report that says what ``sighting`` says; empty if none is known."""
    if "after a reset" in sighting.cause:
        return ""
    for invariant, words, report in _KNOWN:
        if sighting.invariant == invariant and all(word in sighting.cause for word in words):
            return report
    return ""
