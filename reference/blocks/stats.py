"""Counters that every part of the engine adds to."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Stats:
    """Requests, tokens and blocks; ``finished`` by finish reason, ``drops`` (blocks) by drop reason."""

    requests: int = 0
    finished: Counter[str] = field(default_factory=Counter)
    steps: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    tokens_computed: int = 0
    local_hit_tokens: int = 0
    external_hit_tokens: int = 0
    preemptions: int = 0
    stores: int = 0
    stored_blocks: int = 0
    failed_stores: int = 0
    loads: int = 0
    loaded_blocks: int = 0
    failed_loads: int = 0
    partial_loads: int = 0
    """Of the failed loads: those of which the first part could be used."""
    disk_stored_blocks: int = 0
    fetched_blocks: int = 0
    """From files to CPU memory."""
    failed_fetches: int = 0
    lost_files: int = 0
    stale_reports: int = 0
    drops: Counter[str] = field(default_factory=Counter)
    resets: int = 0
    resets_refused: int = 0
    refusals: int = 0
    """Times the GPU pool could not give a running request its next blocks."""
