"""kvfence checks KV-cache offload connectors: their specification, their runs and their traces.

The names of ``__all__`` and the submodules ``language``, ``events`` and ``lockstep`` are the public API, see
``docs/api.md``. Each name is imported when it is first asked for, so that ``import kvfence`` is quick inside
a serving process. All other modules of the package are private and may change.

>>> import kvfence
>>> found = kvfence.verify(machine="block_pool")
>>> found.verdict == "holds", found.machines[0].states
(True, 6913)
"""

import os.path
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvfence.checker.adapters.reference import replay
    from kvfence.checker.analysis.results import Verification
    from kvfence.checker.analysis.review.compare import review
    from kvfence.checker.analysis.review.facts import Review
    from kvfence.checker.analysis.verify import verify
    from kvfence.checker.audit.audits import Audit, audit
    from kvfence.checker.ledger.check import CheckReport, check_trace
    from kvfence.checker.ledger.guard.guard import Guard
    from kvfence.checker.ledger.guard.recorder import Recorder
    from kvfence.checker.ledger.ledger import Ledger
    from kvfence.checker.ledger.state.violation import InvariantViolation, Violation
    from kvfence.checker.order.race_check import RaceReport, check_order_trace
    from kvfence.spec.errors import CannotRun
    from kvfence.spec.files.traces import TraceReader, TraceWriter
    from kvfence.spec.language import Machine

__all__ = [
    "Audit",
    "CannotRun",
    "CheckReport",
    "Guard",
    "InvariantViolation",
    "Ledger",
    "Machine",
    "RaceReport",
    "Recorder",
    "Review",
    "TraceReader",
    "TraceWriter",
    "Verification",
    "Violation",
    "audit",
    "check_order_trace",
    "check_trace",
    "replay",
    "review",
    "verify",
]

_HOMES = {
    "Audit": "checker.audit.audits",
    "CannotRun": "spec.errors",
    "CheckReport": "checker.ledger.check",
    "Guard": "checker.ledger.guard.guard",
    "InvariantViolation": "checker.ledger.state.violation",
    "Ledger": "checker.ledger.ledger",
    "Machine": "spec.language",
    "RaceReport": "checker.order.race_check",
    "Recorder": "checker.ledger.guard.recorder",
    "Review": "checker.analysis.review.facts",
    "TraceReader": "spec.files.traces",
    "TraceWriter": "spec.files.traces",
    "Verification": "checker.analysis.results",
    "Violation": "checker.ledger.state.violation",
    "audit": "checker.audit.audits",
    "check_order_trace": "checker.order.race_check",
    "check_trace": "checker.ledger.check",
    "replay": "checker.adapters.reference",
    "review": "checker.analysis.review.compare",
    "verify": "checker.analysis.verify",
}
# Exported before the list was chosen; they stay importable from here.
_FORMER = {"TraceError": "spec.files.traces", "Verdict": "checker.engines.base"}

# With pathlib an import would take twice the time.
_HERE = os.path.dirname(os.path.realpath(__file__))  # noqa: PTH120
if os.path.islink(os.path.join(_HERE, "spec")):  # noqa: PTH114, PTH118
    # In a checkout the parts are links; tracebacks and reviews name their files as the repository does.
    __path__.insert(0, os.path.dirname(_HERE))  # noqa: PTH120

try:
    __version__ = version("kvfence")
except PackageNotFoundError:  # a checkout that is not installed
    __version__ = "0+checkout"


def __getattr__(name: str) -> Any:
    """The public name, imported now; AttributeError for any other."""
    home = _HOMES.get(name) or _FORMER.get(name)
    if home is None:
        raise AttributeError(f"module 'kvfence' has no attribute {name!r}: its public names are in __all__")
    value = getattr(import_module(f"kvfence.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names, imported yet or not, for completion."""
    return sorted({*globals(), *__all__})
