"""The monitor: judges a running connector, or a recorded trace (``monitor.check``), event by event."""

from kvfence.checker.monitor.ledger import Ledger, Mode
from kvfence.checker.monitor.violation import InvariantViolation, Violation

__all__ = ["InvariantViolation", "Ledger", "Mode", "Violation"]
