"""`kvfence replay`: production requests through the reference implementation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from kvfence.checker.cli.common import Format, print_report
from kvfence.checker.cli.progress import count_progress
from kvfence.checker.core.exit_codes import EXIT_CODES
from kvfence.checker.core.names import SOUND
from kvfence.checker.core.units import parse_counts
from kvfence.spec.errors import unknown


def replay(
    workload: Annotated[
        Path, typer.Argument(metavar="TRACE", help="A production trace in Mooncake's format.")
    ],
    design: Annotated[str, typer.Option(help="The design to run; kvfence designs lists them.")] = SOUND,
    block_size: Annotated[int, typer.Option(help="Tokens of a block.")] = 16,
    gpu_blocks: Annotated[int, typer.Option(help="Slots of the GPU pool, the null block included.")] = 32768,
    cpu_blocks: Annotated[int, typer.Option(help="Slots of the CPU tier.")] = 131072,
    groups: Annotated[
        Literal["full", "full+sliding", "full+chunked", "full+recurrent", "full+sliding+chunked+recurrent"],
        typer.Option(help="KV-cache groups that share the GPU pool."),
    ] = "full",
    block_sizes: Annotated[
        str | None,
        typer.Option(metavar="N,N,...", help="Tokens of a block of each group, where they differ."),
    ] = None,
    window: Annotated[int, typer.Option(help="Tokens of a sliding window, or of a chunk.")] = 1024,
    zero_fill: Annotated[
        bool, typer.Option("--zero-fill", help="Fill new blocks with zeros before they are computed into.")
    ] = False,
    lazy: Annotated[
        bool, typer.Option("--lazy/--eager", help="Store blocks when they near eviction, or when computed.")
    ] = False,
    async_depth: Annotated[int, typer.Option(min=1, max=2, help="Model steps in flight.")] = 1,
    store_batch: Annotated[
        int, typer.Option(help="Full blocks that make an eager store worth its while.")
    ] = 8,
    ranks: Annotated[int, typer.Option(help="Workers that copy, each at its own pace.")] = 1,
    late_rank: Annotated[int, typer.Option(help="Steps by which the last rank reports late.")] = 0,
    refusing_ranks: Annotated[
        int, typer.Option(help="Ranks that cannot register all of their host memory.")
    ] = 0,
    tiers: Annotated[int, typer.Option(min=2, max=3, help="3: files behind the CPU's memory.")] = 2,
    disk_blocks: Annotated[int, typer.Option(help="Slots of the file tier.")] = 524288,
    lose_files: Annotated[float, typer.Option(help="Share of the files that get lost.")] = 0.0,
    token_budget: Annotated[int, typer.Option(help="Tokens computed in a step.")] = 8192,
    max_running: Annotated[int, typer.Option(help="Requests that run at a time.")] = 256,
    max_delay: Annotated[int, typer.Option(help="Half steps until a copy lands, at most.")] = 6,
    seed: Annotated[
        int, typer.Option(help="Of everything that is drawn: the order of copies, failures.")
    ] = 0,
    fail_rate: Annotated[
        float, typer.Option("--fail-loads", "--fail-rate", help="Share of the loads that fail, on each rank.")
    ] = 0.0,
    fail_stores: Annotated[
        bool, typer.Option("--fail-stores", help="Stores fail as often as loads do.")
    ] = False,
    on_failure: Annotated[
        Literal["recompute", "fail"], typer.Option(help="What a request whose load failed does.")
    ] = "recompute",
    abort_rate: Annotated[float, typer.Option(help="Share of the requests that are aborted.")] = 0.0,
    resend_rate: Annotated[
        float, typer.Option(help="Share of the requests that come a second time soon after.")
    ] = 0.0,
    repeat_rate: Annotated[
        float, typer.Option(help="Share of the workers' reports given again, late.")
    ] = 0.0,
    reset_every: Annotated[
        int, typer.Option(help="Steps between resets of the prefix caches; 0: never.")
    ] = 0,
    refuse_rate: Annotated[
        float, typer.Option(help="Share of the transfers that a rank cannot take part in.")
    ] = 0.0,
    publish: Annotated[
        bool, typer.Option("--publish", help="Publish what can be looked up in each pool.")
    ] = False,
    share_loads: Annotated[
        bool,
        typer.Option("--share-loads", help="Share blocks that a load is filling: who does waits for it."),
    ] = False,
    requests: Annotated[int | None, typer.Option(help="Only the first so many requests.")] = None,
    device: Annotated[
        Literal["virtual", "cuda"], typer.Option(help="Where blocks lie and move: simulated, or on a GPU.")
    ] = "virtual",
    judge: Annotated[
        bool, typer.Option("--assert/--no-assert", help="Judge every event; contents are compared anyway.")
    ] = True,
    record: Annotated[
        Path | None, typer.Option(help="Write a trace of the run; compressed if the name ends in .zst.")
    ] = None,
    record_order: Annotated[
        Path | None, typer.Option(help="Write an order trace of the run, for kvfence races.")
    ] = None,
    metrics: Annotated[
        Path | None, typer.Option(help="Write the run's metrics, as Prometheus reads them.")
    ] = None,
    output: Format = "text",
) -> int:
    """Replay production requests through the reference implementation, every invariant asserted."""
    from kvfence.checker.adapters.reference import replay as run_replay
    from kvfence.checker.report.text.replayed import replayed_text
    from kvfence.spec.designs import DESIGNS

    if design not in DESIGNS:
        raise unknown("design", design, DESIGNS, "kvfence designs lists them")
    options = {
        "design": design,
        "block_size": block_size,
        "gpu_blocks": gpu_blocks,
        "cpu_blocks": cpu_blocks,
        "groups": groups,
        "block_sizes": parse_counts(block_sizes),
        "window": window,
        "zero_fill": zero_fill,
        "mode": "lazy" if lazy else "eager",
        "async_depth": async_depth,
        "store_batch": store_batch,
        "ranks": ranks,
        "late_rank": late_rank,
        "refusing_ranks": refusing_ranks,
        "tiers": tiers,
        "disk_blocks": disk_blocks,
        "lose_rate": lose_files,
        "token_budget": token_budget,
        "max_running": max_running,
        "max_delay": max_delay,
        "seed": seed,
        "fail_rate": fail_rate,
        "fail_stores": fail_stores,
        "on_failure": on_failure,
        "refuse_rate": refuse_rate,
        "publish": publish,
        "share_loads": share_loads,
        "abort_rate": abort_rate,
        "resend_rate": resend_rate,
        "repeat_rate": repeat_rate,
        "reset_every": reset_every,
        "limit": requests,
        "device": device,
    }
    with count_progress("requests finished") as progress:
        shown = (lambda done, _: progress(done, 0)) if progress else None
        found = run_replay(
            workload,
            options,
            expected=DESIGNS[design].breaks,
            judge=judge,
            record=record,
            record_order=record_order,
            metrics=metrics,
            progress=shown,
        )
    print_report(found, output, replayed_text)
    return EXIT_CODES[found.verdict]
