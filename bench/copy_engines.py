"""Copy engines against the link's peak: GB/s by block size, host time, both ways at once, beside a product.

    python bench/copy_engines.py [--pool GIB] [--output FOLDER]

Blocks are scattered on both sides. The peak is the best of single large DMA copies, measured in the same run.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import product
from typing import Any, Final

import numpy as np
import torch
from _cuda import driver_or_exit, facts, heading, mark, seconds
from _measure import RESULTS, arguments, save_of_card, table

from kvfence.reference.copy.auto import AutoCopy, open_engines
from kvfence.reference.copy.baselines import IndexCopy, LoopedDMA
from kvfence.reference.copy.batched import BatchedDMA
from kvfence.reference.copy.crossover import crossover
from kvfence.reference.copy.engine import CopyEngine
from kvfence.reference.copy.kernel import DEFAULT_SHAPES, KernelCopy, Kernels, Shape
from kvfence.reference.copy.plan import Segment, View
from kvfence.reference.driver.driver import Driver
from kvfence.reference.driver.host_pool import HostPool
from kvfence.spec import events as ev

KINDS: Final[tuple[ev.Kind, ...]] = ("store", "load")
SIZES: Final = (4096, 16384, 65536, 262144, 2**20, 2**22)
COUNTS: Final = (64, 512, 8192)
PIECE: Final = 16384
"""Block size of the measurements beside a matrix product."""
OTHER_SHAPES: Final[Mapping[ev.Kind, tuple[Shape, ...]]] = {
    "store": (Shape(2, 1024), Shape(2, 512), Shape(3, 768)),
    "load": (Shape(3, 1024), Shape(2, 1024), Shape(8, 1024)),
}
"""Measured beside the product for comparison."""
ROUNDS: Final = 11
SIDE: Final = 8192
PRODUCTS: Final = 40
AHEAD: Final = 10
REST: Final = 0.15
SLOW: Final = ("loop", "index")
"""Baselines that are measured three times only."""
SLOW_FROM: Final = 2**28
"""Bytes from which the baseline that goes through the CPU is left out: it would take minutes."""


class Pools:
    """Memory on both sides, of equal size."""

    def __init__(self, driver: Driver, nbytes: int) -> None:
        self.nbytes = nbytes
        self.pool = HostPool(driver, nbytes // SIZES[-1], SIZES[-1])
        self.host = torch.from_numpy(self.pool.array())
        # Zeroes travel no faster than other bytes here, but pages that were never touched might.
        self.host[::4096] = 1
        self.device = torch.randint(0, 256, (nbytes,), dtype=torch.uint8, device="cuda")
        self.stream = torch.cuda.Stream(0, 0)
        self.other = torch.cuda.Stream(0, 0)
        self.compute = torch.cuda.Stream(0, -1)
        torch.cuda.synchronize()

    def segment(self, kind: ev.Kind, size: int, count: int, half: int | None = None) -> Segment:
        """``count`` scattered blocks of ``size`` bytes; ``half`` 0 or 1: from that half of the pools only."""
        total = self.nbytes // size
        low, high = (0, total) if half is None else (half * total // 2, (half + 1) * total // 2)
        draw = np.random.default_rng(size + count)
        on_host, on_device = (low + draw.permutation(high - low)[:count] for _ in range(2))
        host = [View.of(self.host.view(total, size), self.pool.chunk // size)]
        device = [View.of(self.device.view(total, size))]
        if kind == "store":
            return Segment(device, on_device, host, on_host)
        return Segment(host, on_host, device, on_device)

    def check(self, engine: CopyEngine, kind: ev.Kind, size: int, count: int) -> None:
        """Raises SystemExit unless the engine moves what it should."""
        segment = self.segment(kind, size, count)
        (src,), (dst,) = segment.src_views, segment.dst_views
        assert src.tensor is not None
        assert dst.tensor is not None
        at, to = torch.from_numpy(segment.src), torch.from_numpy(segment.dst)
        src.tensor[at.to(src.tensor.device)] = torch.randint(
            0, 256, (count, size), dtype=torch.uint8, device=src.tensor.device
        )
        torch.cuda.synchronize()
        engine.copy(kind, [segment], self.stream)
        torch.cuda.synchronize()
        if not torch.equal(
            src.tensor[at.to(src.tensor.device)].cpu(), dst.tensor[to.to(dst.tensor.device)].cpu()
        ):
            raise SystemExit(f"{engine.name} {kind} of {count} blocks of {size} bytes moved the wrong bytes")


def peak(driver: Driver, pools: Pools) -> dict[str, float]:
    """GB/s of single copies of 1 GiB."""
    host, device, nbytes = pools.host.data_ptr(), pools.device.data_ptr(), min(2**30, pools.nbytes)
    ends = {"store": (host, device), "load": (device, host)}
    found = {}
    for kind, (dst, src) in ends.items():
        took = [
            seconds(
                pools.stream,
                lambda dst=dst, src=src: driver.copy(dst, src, nbytes, pools.stream.cuda_stream),
                1,
            )[0]
            for _ in range(5)
        ]
        found[kind] = nbytes / min(took) / 1e9
    return found


def sweep(pools: Pools, engines: Mapping[str, CopyEngine]) -> Iterator[dict[str, Any]]:
    """Every engine at every size and count. They take turns, so that a busy link is equally unkind to all."""
    for size, count, kind in product(SIZES, COUNTS, KINDS):
        moved = size * count
        if moved > pools.nbytes:
            continue
        here = {name: engine for name, engine in engines.items() if name != "index" or moved < SLOW_FROM}
        works, plans = {}, {}
        for name, engine in here.items():
            if count == COUNTS[0]:
                pools.check(engine, kind, size, min(count, 2**24 // size))
            segment = pools.segment(kind, size, count)
            engine.plan(kind, [segment])
            begin = time.perf_counter()
            works[name] = engine.plan(kind, [segment])
            plans[name] = time.perf_counter() - begin
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in here}
        for turn in range(15 if moved < 2**28 else 5):
            for name, engine in here.items():
                if name in SLOW and turn >= 3:
                    continue
                launch = partial(engine.launch, works[name], pools.stream)
                times[name].append(seconds(pools.stream, launch, 1))
        for name in here:
            on_device, on_host = (float(np.median(column)) for column in zip(*times[name], strict=True))
            yield {
                "kind": kind, "size": size, "count": count, "engine": name, "by": works[name].engine,
                "gbs": moved / on_device / 1e9, "plan_us": plans[name] * 1e6, "launch_us": on_host * 1e6,
            }  # fmt: skip


def both_ways(pools: Pools, engine: CopyEngine, size: int) -> dict[str, float]:
    """GB/s of each direction while both move 512 MiB, from disjoint halves of the pools."""
    count = min(2**29, pools.nbytes // 2) // size
    works = {
        kind: engine.plan(kind, [pools.segment(kind, size, count, half)]) for half, kind in enumerate(KINDS)
    }
    streams = {"store": pools.stream, "load": pools.other}
    rounds = 4

    def run() -> dict[str, tuple[Any, Any]]:
        begun = {kind: mark(stream) for kind, stream in streams.items()}
        for _ in range(rounds):
            for kind, stream in streams.items():
                engine.launch(works[kind], stream)
        ended = {kind: mark(stream) for kind, stream in streams.items()}
        torch.cuda.synchronize()
        return {kind: (begun[kind], ended[kind]) for kind in streams}

    run()
    marks = run()
    return {
        kind: rounds * works[kind].total / begin.elapsed_time(end) / 1e6
        for kind, (begin, end) in marks.items()
    }


class Product:
    """A bf16 matrix product of side 8192, many times over, on the compute stream."""

    def __init__(self, pools: Pools) -> None:
        self.stream = pools.compute
        with torch.cuda.stream(self.stream):
            self.a, self.b = (torch.randn(SIDE, SIDE, device="cuda").bfloat16() for _ in range(2))
            self.out = self.a @ self.b
        torch.cuda.synchronize()

    def launch(self) -> tuple[torch.cuda.Event, torch.cuda.Event]:
        """Start all of them; the events around. A few run ahead: clocks are up, and copies have begun.

        The device rests before, so that each measurement has the same heat and power to begin with.
        """
        torch.cuda.synchronize()
        time.sleep(REST)
        with torch.cuda.stream(self.stream):
            for _ in range(AHEAD):
                torch.mm(self.a, self.b, out=self.out)
            begin = mark(self.stream)
            for _ in range(PRODUCTS):
                torch.mm(self.a, self.b, out=self.out)
            return begin, mark(self.stream)


def beside(
    products: Product, pools: Pools, engine: CopyEngine, kind: ev.Kind, size: int, rate: float | None
) -> tuple[float, float]:
    """Milliseconds of the products while ``engine`` copies, and the GB/s that it moved meanwhile.

    With ``rate``, transfers are started no faster than that many GB/s.
    """
    count = 2**27 // size
    work = engine.plan(kind, [pools.segment(kind, size, count)])
    engine.launch(work, pools.stream)
    torch.cuda.synchronize()
    marks: list[torch.cuda.Event] = []
    ahead = 3  # transfers in the stream beyond the running one, so that it never runs dry
    begin, end = products.launch()
    start = time.perf_counter()
    while not end.query():
        due = rate is None or time.perf_counter() - start >= len(marks) * work.total / rate / 1e9
        if due and (len(marks) < ahead or marks[-ahead].query()):
            engine.launch(work, pools.stream)
            marks.append(mark(pools.stream))
    torch.cuda.synchronize()
    took = begin.elapsed_time(end)
    inside = [at for at in (begin.elapsed_time(moved) for moved in marks) if 0 < at <= took]
    moved = (len(inside) - 1) * work.total / (inside[-1] - inside[0]) / 1e6 if len(inside) > 1 else 0.0
    return took, moved


def slowdown(pools: Pools, kernels: Kernels, dma: CopyEngine, products: Product) -> list[dict[str, Any]]:
    """The product alone, beside the kernel copy, and beside plain DMA of 1 MiB pieces at the same GB/s.

    The shapes take turns in each round; medians over the rounds are compared.
    """
    tried = [(kind, shape) for kind in KINDS for shape in (DEFAULT_SHAPES[kind], *OTHER_SHAPES[kind])]
    engines = [KernelCopy(kernels, {kind: shape}) for kind, shape in tried]
    rounds = np.empty((ROUNDS, len(tried), 5))
    for turn in range(ROUNDS):
        for number, ((kind, _), engine) in enumerate(zip(tried, engines, strict=True)):
            begin, end = products.launch()
            torch.cuda.synchronize()
            alone = begin.elapsed_time(end)
            copied, rate = beside(products, pools, engine, kind, PIECE, None)
            plain, reached = beside(products, pools, dma, kind, 2**20, rate)
            rounds[turn, number] = alone, copied, plain, rate, reached
    found = []
    for number, (kind, shape) in enumerate(tried):
        alone, copied, plain, rate, reached = (float(value) for value in np.median(rounds[:, number], axis=0))
        each = (rounds[:, number, 1] - rounds[:, number, 2]) / rounds[:, number, 0]
        found.append({
            "kind": kind, "shape": f"{shape.grid} x {shape.threads}",
            "default": shape == DEFAULT_SHAPES[kind],
            "alone_ms": alone, "kernel_ms": copied, "dma_ms": plain, "kernel_gbs": rate, "dma_gbs": reached,
            "kernel_slower": copied / alone - 1, "dma_slower": plain / alone - 1,
            "more_quartiles": [float(value) for value in np.quantile(each, (0.25, 0.75))],
        })  # fmt: skip
    return found


def results_text(found: dict[str, Any]) -> str:
    """The results as Markdown."""
    top = found["peak"]
    parts = [heading("Copy engines", found)]
    parts.append(
        f"Peak of single large DMA copies: store {top['store']:.1f} GB/s, load {top['load']:.1f} GB/s. "
        f"Blocks are scattered over pools of {found['pool_gib']:g} GiB on each side.\n"
    )
    names = list(dict.fromkeys(row["engine"] for row in found["sweep"]))
    for kind in KINDS:
        rows = []
        for size in SIZES:
            for count in COUNTS:
                here = {
                    r["engine"]: r
                    for r in found["sweep"]
                    if (r["kind"], r["size"], r["count"]) == (kind, size, count)
                }
                if not here:
                    continue
                auto = here["auto"]
                rows.append([
                    f"{size // 1024} KiB", count,
                    *(f"{here[name]['gbs']:.1f}" if name in here else "-" for name in names),
                    auto["by"], f"{auto['gbs'] / top[kind]:.0%}", f"{auto['gbs'] / here['dma']['gbs']:.1f}x",
                    f"{auto['plan_us']:.0f} + {auto['launch_us']:.0f}", f"{here['dma']['launch_us']:.0f}",
                ])  # fmt: skip
        head = [
            "block",
            "blocks",
            *names,
            "auto takes",
            "of peak",
            "to dma",
            "host us: plan + launch",
            "dma launch us",
        ]
        parts.append(f"## {kind}, GB/s\n\n" + table(head, rows) + "\n")
    parts.append(
        "`dma` is plain batched DMA: one cuMemcpyBatchAsync. `-`: left out, it would take minutes.\n"
    )
    rows = [[what, *(f"{rates[kind]:.1f}" for kind in KINDS)] for what, rates in found["both_ways"].items()]
    parts.append("## Both ways at once, GB/s\n\n" + table(["", *KINDS], rows) + "\n")
    rows = [
        [r["kind"], ("**" if r["default"] else "") + r["shape"] + ("**" if r["default"] else ""),
         f"{r['alone_ms']:.2f}", f"{r['kernel_ms']:.2f}", f"{r['dma_ms']:.2f}",
         f"{r['kernel_slower']:.1%}", f"{r['dma_slower']:.1%}",
         f"{r['kernel_slower'] - r['dma_slower']:+.1%}",
         " to ".join(f"{value:+.1%}" for value in r["more_quartiles"]),
         f"{r['kernel_gbs']:.1f}", f"{r['dma_gbs']:.1f}"]
        for r in found["product"]
    ]  # fmt: skip
    head = [
        "",
        "thread blocks x threads",
        "alone ms",
        "+ kernel ms",
        "+ dma ms",
        "kernel slows",
        "dma slows",
        "more",
        "quartiles of rounds",
        "kernel GB/s",
        "dma GB/s",
    ]
    parts.append(
        f"## {PRODUCTS} bf16 products of side {SIDE} beside copies of {PIECE // 1024} KiB blocks\n\n"
        f"Medians of {ROUNDS} rounds; `auto` uses the shape in bold.\n\n" + table(head, rows)
    )
    return "\n".join(parts)


def main() -> None:
    """Measures, prints and saves."""
    parser = arguments(__doc__, output="folder for the results", default=RESULTS)
    parser.add_argument("--pool", type=float, default=32, help="GiB on each side")
    asked = parser.parse_args()
    driver = driver_or_exit()
    pools = Pools(driver, int(asked.pool * 2**30) // SIZES[-1] * SIZES[-1])
    engines = open_engines(driver)
    table_of = crossover(driver, engines, again=True)
    auto = AutoCopy(engines, table_of)
    plain = BatchedDMA(driver, lanes=1)
    tried: dict[str, CopyEngine] = {
        "auto": auto, "kernel": engines["kernel"], "lanes": engines["dma"], "dma": plain,
        "loop": LoopedDMA(driver), "index": IndexCopy(),
    }  # fmt: skip
    found: dict[str, Any] = {**facts(driver), "pool_gib": asked.pool}
    found["peak"] = peak(driver, pools)
    found["crossover"] = {"fastest": table_of.fastest, "rates": table_of.rates}
    kernels = Kernels(driver)
    found["product"] = slowdown(pools, kernels, plain, Product(pools))
    found["both_ways"] = {
        "auto, 16 KiB": both_ways(pools, auto, 16384),
        "auto, 256 KiB": both_ways(pools, auto, 262144),
        "dma, 4 MiB": both_ways(pools, plain, 2**22),
    }
    found["sweep"] = list(sweep(pools, tried))
    save_of_card(asked.output, "copy_engines", found, results_text(found))


if __name__ == "__main__":
    main()
