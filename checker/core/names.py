"""Names and limits that the command line prints before anything else is loaded, so that it starts fast."""

from __future__ import annotations

from typing import Final

SOUND: Final = "sound"
"""The design that keeps every rule."""
SMT_ENGINES: Final = ("smt", "bmc", "kinduction", "spacer")
ENGINES: Final = ("native", "gpu", "swarm", "explore", "interpret", "liveness", *SMT_ENGINES)
EXPLORERS: Final = ("native", "gpu", "explore", "interpret")
"""Engines that reach every state at the sizes given."""
MOST_PAIRS: Final = 2_000_000
"""Pairs of states that one search of a review looks at, where nothing else is said."""
PROOF_SECONDS: Final = 60.0
"""What all proofs of a review may take, where nothing else is said."""
