"""The monitor: judges a running connector, or a recorded trace (``monitor.check``), event by event."""

from kvfence.checker.monitor.guard import Guard, GuardFacts, GuardMode
from kvfence.checker.monitor.ledger import Ledger, Mode
from kvfence.checker.monitor.recorder import Recorder
from kvfence.checker.monitor.violation import InvariantViolation, Violation

__all__ = [
    "Guard",
    "GuardFacts",
    "GuardMode",
    "InvariantViolation",
    "Ledger",
    "Mode",
    "Recorder",
    "Violation",
]
