"""The options of a replay: each declared once, for the engine, the command line, the API and the reports.

Importing this module needs neither numpy nor torch, so that a command line can be built from it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Final,
    Literal,
    TypeAlias,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from kvfence.reference.blocks.errors import OptionsError

if TYPE_CHECKING:
    from kvfence.reference.blocks.tables import GroupSpec
    from kvfence.spec import events as ev


@dataclass(frozen=True, slots=True)
class Option:
    """What is declared of an option beside its name, its type and its default.

    ``help`` is one sentence. ``flags`` are its spellings on the command line where they are not the name with
    hyphens; ``yes/no`` spellings choose the second or the first of two choices. ``metavar`` names its value.
    On the CUDA device, an option that is ``virtual_only`` has its default.
    """

    help: str
    least: int | None = None
    flags: tuple[str, ...] = ()
    metavar: str | None = None
    on_command_line: bool = True
    virtual_only: bool = False


@dataclass(frozen=True, slots=True)
class Rate(Option):
    """An option between 0 and 1."""


Groups: TypeAlias = Literal[
    "full", "full+sliding", "full+chunked", "full+recurrent", "full+sliding+chunked+recurrent"
]
Mode: TypeAlias = Literal["eager", "lazy"]
FailurePolicy: TypeAlias = Literal["recompute", "fail"]
DeviceName: TypeAlias = Literal["virtual", "cuda"]

_MOST_CELLS: Final = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Sizes in tokens and blocks; rates are probabilities, all drawn from ``seed``. Raises OptionsError.

    The 126,195-token prompts of Mooncake's conversation trace fit the defaults.
    """

    block_size: Annotated[int, Option("Tokens of a block.", 1)] = 16
    gpu_blocks: Annotated[int, Option("Slots of the GPU pool, the null block included.", 2)] = 32768
    cpu_blocks: Annotated[int, Option("Slots of the CPU tier.", 1)] = 131072
    groups: Annotated[Groups, Option("KV-cache groups that share the GPU pool.")] = "full"
    window: Annotated[
        int, Option("Tokens of a sliding window, the reading token included, or of a chunk.", 1)
    ] = 1024
    block_sizes: Annotated[
        tuple[int, ...],
        Option("Tokens of a block of each group, where they differ.", metavar="N,N,...", virtual_only=True),
    ] = ()
    zero_fill: Annotated[
        bool, Option("Fill new blocks with zeros before they are computed into.", virtual_only=True)
    ] = False
    mode: Annotated[
        Mode, Option("Store blocks when they near eviction, or when computed.", flags=("--lazy/--eager",))
    ] = "eager"
    async_depth: Annotated[
        Literal[1, 2],
        Option("Steps in flight: with 2, a step is scheduled before the output of the one before is known."),
    ] = 1
    ranks: Annotated[int, Option("Workers that copy, each at its own pace.", 1, virtual_only=True)] = 1
    late_rank: Annotated[int, Option("Steps by which the last rank reports its copies late.", 0)] = 0
    refusing_ranks: Annotated[int, Option("Ranks that cannot register all of their host memory.", 0)] = 0
    refuse_rate: Annotated[
        float, Rate("Share of the transfers that a rank cannot take part in, so that all ranks leave them.")
    ] = 0.0
    tiers: Annotated[
        Literal[2, 3], Option("2: GPU and CPU memory; 3: files behind them.", virtual_only=True)
    ] = 2
    disk_blocks: Annotated[int, Option("Slots of the file tier.", 1)] = 524288
    lose_rate: Annotated[
        float,
        Rate("Share of the files that get lost some time after they were written.", flags=("--lose-files",)),
    ] = 0.0
    token_budget: Annotated[int, Option("Tokens computed in a step.", 1)] = 8192
    max_running: Annotated[int, Option("Requests that run at a time.", 1)] = 256
    max_waiting: Annotated[
        int,
        Option(
            "Requests that wait at a time; the next one arrives when one leaves.", 1, on_command_line=False
        ),
    ] = 8
    store_batch: Annotated[
        int, Option("Full blocks that make an eager store worth its while; the rest follows at the end.", 1)
    ] = 8
    max_delay: Annotated[int, Option("Half steps until a copy lands, at most.", 1)] = 6
    seed: Annotated[int, Option("Seed of everything that is drawn: the order of copies, failures.")] = 0
    fail_rate: Annotated[
        float,
        Rate(
            "Share of the loads that fail, on each rank.",
            flags=("--fail-loads", "--fail-rate"),
            virtual_only=True,
        ),
    ] = 0.0
    fail_stores: Annotated[bool, Option("Let stores fail as often as loads do.")] = False
    on_failure: Annotated[
        FailurePolicy,
        Option("What a request whose load fails does: compute the missing blocks, or end with an error."),
    ] = "recompute"
    share_loads: Annotated[
        bool, Option("Share blocks that a load is filling; a request that shares them waits for the load.")
    ] = False
    publish: Annotated[bool, Option("Publish what can be looked up in each pool.")] = False
    repeat_rate: Annotated[
        float, Rate("Share of the workers' reports that are given again, late.", virtual_only=True)
    ] = 0.0
    abort_rate: Annotated[float, Rate("Share of the requests that are aborted.")] = 0.0
    resend_rate: Annotated[
        float,
        Rate("Share of the requests that are sent a second time soon after, as by a client that retries."),
    ] = 0.0
    reset_every: Annotated[
        int, Option("Steps between resets of the prefix caches, every other one forced; 0: never.", 0)
    ] = 0
    device: Annotated[
        DeviceName,
        Option("Where blocks lie and move: simulated, or on a GPU, with one rank and no failures on demand."),
    ] = "virtual"
    design: Annotated[str, Option("The design to run; kvfence designs lists them.")] = "sound"
    limit: Annotated[
        int | None, Option("Replay only the first so many requests.", 1, flags=("--requests",))
    ] = None

    def __post_init__(self) -> None:
        for declared in DECLARATIONS:
            declared.check(getattr(self, declared.name))
        kinds = self.groups.split("+")
        if self.block_sizes and (len(self.block_sizes) != len(kinds) or min(self.block_sizes) < 1):
            raise OptionsError(
                f"block_sizes is {self.block_sizes}; give one of at least 1 for each of {len(kinds)} groups"
            )
        for name in ("gpu_blocks", "cpu_blocks"):
            cells = getattr(self, name) * self.slot_tokens
            if cells > _MOST_CELLS:
                raise OptionsError(
                    f"{name} x block_size is {cells} tokens; at most {_MOST_CELLS} can be simulated"
                )
        if self.device == "cuda":
            for declared in DECLARATIONS:
                value = getattr(self, declared.name)
                if declared.option.virtual_only and value != declared.default:
                    raise OptionsError(
                        f"{declared.name} is {value}; on the CUDA device it can be {declared.default} only: "
                        "use the virtual device"
                    )
        if self.refusing_ranks > self.ranks:
            raise OptionsError(f"refusing_ranks is {self.refusing_ranks}; there are {self.ranks} ranks")

    @property
    def group_specs(self) -> tuple[GroupSpec, ...]:
        """The KV-cache groups."""
        from kvfence.reference.blocks.tables import GroupSpec  # needs numpy

        kinds = self.groups.split("+")
        sizes = self.block_sizes or (self.block_size,) * len(kinds)
        return tuple(
            GroupSpec(size, self.window if kind in ("sliding", "chunked") else 0, cast("ev.GroupKind", kind))
            for kind, size in zip(kinds, sizes, strict=True)
        )

    @property
    def two_pools(self) -> dict[str, int]:
        """Slots of the GPU pool and of the CPU tier, by pool name."""
        return {"gpu": self.gpu_blocks, "cpu": self.cpu_blocks}

    @property
    def slot_tokens(self) -> int:
        """Tokens that a slot has room for: a block of any group."""
        return max(self.block_sizes, default=self.block_size)


@dataclass(frozen=True, slots=True)
class Declaration:
    """A field of :class:`Options`: ``type`` without its annotation, which is ``option``."""

    name: str
    type: Any
    default: Any
    option: Option

    @property
    def choices(self) -> tuple[Any, ...]:
        """The values it can have, where these are few."""
        return get_args(self.type) if get_origin(self.type) is Literal else ()

    def check(self, value: Any) -> None:
        """Raises OptionsError where ``value`` cannot be, whatever the other options are."""
        if self.choices and value not in self.choices:
            raise OptionsError(f"{self.name} is {value!r}; choose from {', '.join(map(str, self.choices))}")
        if isinstance(self.option, Rate) and not 0 <= value <= 1:
            raise OptionsError(f"{self.name} is {value}; a rate lies between 0 and 1")
        least = self.option.least
        if least is not None and value is not None and value < least:
            raise OptionsError(f"{self.name} is {value}; it must be at least {least}")


def _declarations() -> tuple[Declaration, ...]:
    hints = get_type_hints(Options, include_extras=True)
    return tuple(
        Declaration(f.name, hints[f.name].__origin__, f.default, hints[f.name].__metadata__[0])
        for f in fields(Options)
    )


DECLARATIONS: Final = _declarations()
"""Every option, in the order of the fields of :class:`Options`."""
