"""Which engine for which blocks: measured on the device at start-up, kept in the user's cache folder."""

import os
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, TypeAlias, get_args

import msgspec
import numpy as np
import torch

from kvfence.reference.blocks.errors import OptionsError
from kvfence.reference.copy.engine import CopyEngine
from kvfence.reference.copy.plan import Segment, View
from kvfence.reference.driver.driver import Card, Driver
from kvfence.reference.driver.host_pool import HostPool
from kvfence.spec import events as ev

EngineName: TypeAlias = Literal["auto", "dma", "kernel", "staged"]
Layout: TypeAlias = Literal["scattered", "host runs"]

OVERRIDE: Final = "KVFENCE_COPY_ENGINE"
"""Environment variable: an engine for both directions, or ``store=ENGINE,load=ENGINE``."""

SIZES: Final = (4096, 16384, 65536, 262144, 2**20)
"""Bytes of the pieces that are measured."""
_MOVED: Final = 64 * 2**20
_REPEATS: Final = 3


class Crossover(msgspec.Struct, frozen=True):
    """The fastest engine by direction, layout of the blocks, and size of the pieces in bytes.

    ``rates`` are what it was decided on, in GB/s, by ``direction layout engine``, in the order of ``sizes``.
    """

    card: str
    sizes: tuple[int, ...]
    fastest: dict[str, tuple[str, ...]]
    rates: dict[str, tuple[float, ...]]

    def engine(self, kind: ev.Kind, layout: Layout, nbytes: float) -> str:
        """The engine for pieces of ``nbytes``: that of the nearest measured size, on a scale of doublings."""
        nearest = int(np.abs(np.log2(np.array(self.sizes, float)) - np.log2(max(nbytes, 1.0))).argmin())
        return self.fastest[f"{kind} {layout}"][nearest]


def decide(card: str, sizes: Sequence[int], rates: Mapping[str, Sequence[float]]) -> Crossover:
    """The crossover that measured ``rates`` mean. Among equals (within 2%) the earlier engine is taken:
    DMA, which
    takes nothing from compute, then the kernel.
    """
    engines: dict[str, list[str]] = {}
    for key in rates:
        where, _, engine = key.rpartition(" ")
        engines.setdefault(where, []).append(engine)
    fastest = {}
    for where, names in engines.items():
        columns = zip(*(rates[f"{where} {name}"] for name in names), strict=True)
        fastest[where] = tuple(
            max(zip(column, names, strict=True), key=lambda pair: _preferred(pair[1], pair[0]))[1]
            for column in columns
        )
    return Crossover(card, tuple(sizes), fastest, {key: tuple(values) for key, values in rates.items()})


def _preferred(engine: str, rate: float) -> float:
    return rate * {"dma": 1.02, "kernel": 1.0}.get(engine, 0.98)


def measure(driver: Driver, engines: Mapping[str, CopyEngine], sizes: Sequence[int] = SIZES) -> Crossover:
    """Time every engine at every size, both ways, on memory of its own. Takes about a second."""
    largest = max(sizes)
    pool = HostPool(driver, _MOVED // largest, largest)
    try:
        device = torch.device("cuda", driver.ordinal)
        memory = {
            "host": torch.from_numpy(pool.array()),
            "device": torch.randint(0, 256, (_MOVED,), dtype=torch.uint8, device=device),
        }
        stream = torch.cuda.Stream(device, 0)
        torch.cuda.synchronize(device)
        rates: dict[str, list[float]] = {}
        for kind in get_args(ev.Kind):
            for layout in get_args(Layout):
                for name, engine in engines.items():
                    if name == "staged" and layout == "scattered":
                        continue
                    rates[f"{kind} {layout} {name}"] = [
                        _rate(engine, _segment(kind, layout, memory, size), kind, stream) for size in sizes
                    ]
        return decide(key_of(driver.card), sizes, rates)
    finally:
        memory.clear()
        pool.close()


def _segment(kind: ev.Kind, layout: Layout, memory: Mapping[str, torch.Tensor], size: int) -> Segment:
    blocks = _MOVED // size
    draw = np.random.default_rng(0)
    on_host = np.arange(blocks) if layout == "host runs" else draw.permutation(blocks)
    host = [View.of(memory["host"].view(blocks, size))]
    device = [View.of(memory["device"].view(blocks, size))]
    on_device = draw.permutation(blocks)
    if kind == "store":
        return Segment(device, on_device, host, on_host)
    return Segment(host, on_host, device, on_device)


def _rate(engine: CopyEngine, segment: Segment, kind: ev.Kind, stream: torch.cuda.Stream) -> float:
    """GB/s, the median of a few runs after one that does not count."""
    work = engine.plan(kind, [segment])
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    times = []
    for _ in range(_REPEATS + 1):
        begin.record(stream)
        engine.launch(work, stream)
        end.record(stream)
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return round(float(work.total / statistics.median(times[1:]) / 1e9), 2)


def key_of(card: Card) -> str:
    """What a measurement holds for."""
    return f"{card.name}, CUDA {card.driver}"


def crossover(driver: Driver, engines: Mapping[str, CopyEngine], again: bool = False) -> Crossover:
    """The crossover of this device: from the cache, or measured now and cached (with ``again``, in any
    case).
    """
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
    path = base / "kvfence" / "copy-crossover.json"
    card = key_of(driver.card)
    known = _read(path)
    if not again and card in known and known[card].sizes == SIZES:
        return known[card]
    found = measure(driver, engines)
    _write(path, {**known, card: found})
    return found


def _read(path: Path) -> dict[str, Crossover]:
    """What is cached; nothing when the file is missing or not ours."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Crossover])
    except (OSError, msgspec.DecodeError):
        return {}


def _write(path: Path, known: Mapping[str, Crossover]) -> None:
    """A cache that cannot be written is measured anew next time."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        part = path.with_suffix(f".{os.getpid()}")
        part.write_bytes(msgspec.json.encode(known))
        part.replace(path)
    except OSError:
        pass


def overrides(text: str, origin: str = OVERRIDE) -> dict[ev.Kind, EngineName]:
    """Engines by direction, from ``ENGINE`` or ``store=ENGINE,load=ENGINE``. Raises OptionsError."""
    chosen: dict[ev.Kind, EngineName] = {}
    for part in filter(None, (word.strip() for word in text.split(","))):
        direction, equals, engine = part.rpartition("=")
        kinds: tuple[ev.Kind, ...] = get_args(ev.Kind)
        if (equals and direction not in kinds) or engine not in get_args(EngineName):
            raise OptionsError(
                f"{origin} is {text!r}; give one of {', '.join(get_args(EngineName))}, "
                "or store=ENGINE,load=ENGINE"
            )
        for kind in kinds:
            if not equals or kind == direction:
                chosen[kind] = engine  # type: ignore[assignment]
    return chosen
