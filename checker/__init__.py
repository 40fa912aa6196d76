"""What decides: engines, the ledger, order, audits, reports and the command line.

Names that moved go on working for now: importing one warns, and says where it is.
"""

import sys
import types
import warnings
from importlib import import_module
from typing import Any, Final

_MOVED: Final = {
    "monitor": {
        "Guard": "ledger.guard.guard",
        "GuardFacts": "ledger.guard.guard",
        "InvariantViolation": "ledger.state.violation",
        "Ledger": "ledger.ledger",
        "Recorder": "ledger.guard.recorder",
        "Violation": "ledger.state.violation",
    },
    "traces": {"TraceError": "", "TraceReader": "", "TraceWriter": ""},
}


class _Moved(types.ModuleType):
    """A module that is elsewhere now."""

    def __getattr__(self, name: str) -> Any:
        short = self.__name__.rpartition(".")[2]
        if name not in _MOVED[short]:
            raise AttributeError(f"{self.__name__} has moved: ARCHITECTURE.md says where everything is")
        home = _MOVED[short][name]
        module = f"{__name__}.{home}" if home else f"kvfence.spec.files.{short}"
        warnings.warn(f"{self.__name__}.{name} is {module}.{name} now", DeprecationWarning, stacklevel=2)
        return getattr(import_module(module), name)


for _short in _MOVED:
    sys.modules.setdefault(f"{__name__}.{_short}", _Moved(f"{__name__}.{_short}"))
