"""Replays a production trace through the engine and reports what happened."""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path

from kvfence.reference.blocks.pool import Observer
from kvfence.reference.blocks.runner import OracleReads
from kvfence.reference.blocks.stats import Stats
from kvfence.reference.blocks.workload import RequestSpec, read_mooncake, sent_again
from kvfence.reference.designs.faulty import design_named
from kvfence.reference.device.metrics import Moved
from kvfence.reference.engine import Engine
from kvfence.reference.scheduler.options import Options
from kvfence.spec import events as ev
from kvfence.spec import order as od

Progress = Callable[[int, float], None]
"""Called now and then with the requests finished and the seconds passed."""

_REPORT_EVERY = 256


@dataclass(slots=True)
class ReplayReport:
    """What a replay did. ``evicted`` and the hit rates are per tier; hit rates are of the tokens of admitted
    requests.
    """

    options: Options
    stats: Stats = field(default_factory=Stats)
    oracle: OracleReads = field(default_factory=OracleReads)
    moved: dict[ev.Kind, Moved] = field(default_factory=dict)
    """Per direction, what the device copied; seconds only on a device that measures them."""
    evicted: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    complete: bool = False
    """Whether the workload ran to its end and everything was released."""

    @property
    def hit_rates(self) -> dict[str, float]:
        """Per tier, the share of tokens taken from it instead of being computed."""
        stats = self.stats
        all_tokens = stats.tokens_computed + stats.local_hit_tokens + stats.external_hit_tokens
        return {
            "gpu": stats.local_hit_tokens / max(1, all_tokens),
            "cpu": stats.external_hit_tokens / max(1, all_tokens),
        }

    def as_dict(self) -> dict[str, object]:
        """Everything, as plain values that JSON can hold."""
        return {**asdict(self), "hit_rates": self.hit_rates}


def replay(
    path: Path,
    options: Options | None = None,
    observer: Observer | None = None,
    progress: Progress | None = None,
    order: Callable[[od.OrderEvent], None] | None = None,
    watch: Callable[[Engine], object] | None = None,
) -> ReplayReport:
    """Replay a Mooncake trace file. Raises WorkloadError, OptionsError, and what :func:`run` raises.

    Ctrl-C ends the run early; the report then says that it is not complete.
    """
    options = options if options is not None else Options()
    return run(read_mooncake(path, options.limit), options, observer, progress, order, watch)


def run(
    workload: Iterable[RequestSpec],
    options: Options | None = None,
    observer: Observer | None = None,
    progress: Progress | None = None,
    order: Callable[[od.OrderEvent], None] | None = None,
    watch: Callable[[Engine], object] | None = None,
) -> ReplayReport:
    """Serve ``workload``. Raises GarbledBlock when attention reads what it should not, Stalled, and what
    ``observer`` raises. ``watch`` is given the engine before it starts, to publish its metrics for instance.
    """
    options = options if options is not None else Options()
    specs: Iterator[RequestSpec] = islice(iter(workload), options.limit)
    if options.resend_rate:
        specs = sent_again(specs, options.resend_rate, options.seed)
    engine = Engine(options, specs, design_named(options.design), observer, order)
    if watch is not None:
        watch(engine)
    report = ReplayReport(options, engine.stats, engine.runner.reads, engine.device.metrics.moved)
    begin = time.perf_counter()
    try:
        for number in engine.rounds():
            if progress is not None and number % _REPORT_EVERY == 0:
                progress(engine.stats.finished.total(), time.perf_counter() - begin)
        report.complete = True
    except KeyboardInterrupt:
        pass
    finally:
        report.seconds = time.perf_counter() - begin
        report.stats.lost_files = engine.lost_files
        report.evicted = {pool.name: pool.evicted for pool in (engine.gpu, *engine.connector.tiers)}
        engine.close()
    return report
