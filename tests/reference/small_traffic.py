"""Traffic small enough to be served often, as options of a replay, and the sample trace."""

from pathlib import Path
from typing import Any

SMALL: dict[str, Any] = {
    "block_size": 4,
    "gpu_blocks": 200,
    "cpu_blocks": 150,
    "window": 24,
    "token_budget": 64,
    "max_running": 8,
    "store_batch": 3,
}
TIGHT = {"gpu_blocks": 135, "cpu_blocks": 400}
FAILING = {**TIGHT, "fail_rate": 0.3, "ranks": 2, "abort_rate": 0.2, "repeat_rate": 0.3, "reset_every": 37}
SLIDING_AHEAD = {"groups": "full+sliding", "async_depth": 2}
SAMPLE = Path(__file__).parents[2] / "reference" / "samples" / "mooncake_conversation_300.jsonl"
