"""The monitor: judges a running connector, or a recorded trace, event by event."""

from kvfence.checker.monitor.check import CheckReport, check_trace
from kvfence.checker.monitor.ledger import Ledger, Mode
from kvfence.checker.monitor.violation import InvariantViolation, Violation

__all__ = ["CheckReport", "InvariantViolation", "Ledger", "Mode", "Violation", "check_trace"]
