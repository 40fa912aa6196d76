"""kvfence checks KV-cache offload connectors: their specification, their runs and their traces.

The names of ``__all__`` are the public API: see ``docs/api.md``. Each is imported when it is first asked for,
so that ``import kvfence`` is quick inside a serving process. The submodules ``language``, ``events`` and
``lockstep`` are public too.

>>> import kvfence
>>> kvfence.verify(machine="block_pool").verdict
<Verdict.holds: 'holds'>
"""

import os.path
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvfence.checker.analysis.results import Verification
    from kvfence.checker.analysis.review.compare import review
    from kvfence.checker.analysis.review.facts import Review
    from kvfence.checker.analysis.verify import verify
    from kvfence.checker.engines.base import Verdict
    from kvfence.checker.ledger.check import CheckReport, check_trace
    from kvfence.checker.ledger.guard.guard import Guard
    from kvfence.checker.ledger.guard.recorder import Recorder
    from kvfence.checker.ledger.ledger import Ledger
    from kvfence.checker.ledger.state.violation import InvariantViolation, Violation
    from kvfence.checker.order.race_check import RaceReport, check_order_trace
    from kvfence.spec.errors import CannotRun
    from kvfence.spec.files.traces import TraceError, TraceReader, TraceWriter
    from kvfence.spec.language import Machine

__all__ = [
    "CannotRun",
    "CheckReport",
    "Guard",
    "InvariantViolation",
    "Ledger",
    "Machine",
    "RaceReport",
    "Recorder",
    "Review",
    "TraceError",
    "TraceReader",
    "TraceWriter",
    "Verdict",
    "Verification",
    "Violation",
    "check_order_trace",
    "check_trace",
    "review",
    "verify",
]

_HOMES = {
    "CannotRun": "spec.errors",
    "CheckReport": "checker.ledger.check",
    "Guard": "checker.ledger.guard.guard",
    "InvariantViolation": "checker.ledger.state.violation",
    "Ledger": "checker.ledger.ledger",
    "Machine": "spec.language",
    "RaceReport": "checker.order.race_check",
    "Recorder": "checker.ledger.guard.recorder",
    "Review": "checker.analysis.review.facts",
    "TraceError": "spec.files.traces",
    "TraceReader": "spec.files.traces",
    "TraceWriter": "spec.files.traces",
    "Verdict": "checker.engines.base",
    "Verification": "checker.analysis.results",
    "Violation": "checker.ledger.state.violation",
    "check_order_trace": "checker.order.race_check",
    "check_trace": "checker.ledger.check",
    "review": "checker.analysis.review.compare",
    "verify": "checker.analysis.verify",
}

# With pathlib an import would take twice the time.
_HERE = os.path.dirname(os.path.realpath(__file__))  # noqa: PTH120
if os.path.islink(os.path.join(_HERE, "spec")):  # noqa: PTH114, PTH118
    # In a checkout the parts are links; tracebacks and reviews name their files as the repository does.
    __path__.insert(0, os.path.dirname(_HERE))  # noqa: PTH120

try:
    __version__ = version("kvfence")
except PackageNotFoundError:  # a checkout that nobody installed
    __version__ = "0+checkout"


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'kvfence' has no attribute {name!r}: its public names are in __all__")
    value = getattr(import_module(f"kvfence.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
