"""What a rig and the process that drives it send each other: a line of JSON for each case, and one back."""

from __future__ import annotations

import msgspec

from kvfence.checker.audit.cases.case import Case
from kvfence.checker.audit.cases.outcome import Outcome


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """A line to the rig."""

    case: Case
    connector: str | None = "SimpleCPUOffloadConnector"
    record: str = ""
    """A folder for the trace and the order trace."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A line from the rig. The first one has no outcome: the rig is ready."""

    outcome: Outcome | None = None
    release: str = ""
    error: str = ""
