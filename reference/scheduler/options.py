"""What a replay can be told, checked before anything runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, cast, get_args

from kvfence.reference.blocks.errors import OptionsError
from kvfence.reference.blocks.tables import GroupSpec
from kvfence.reference.connector.stores import Mode
from kvfence.spec import events as ev

Groups: TypeAlias = Literal[
    "full", "full+sliding", "full+chunked", "full+recurrent", "full+sliding+chunked+recurrent"
]
FailurePolicy: TypeAlias = Literal["recompute", "fail"]
DeviceName: TypeAlias = Literal["virtual", "cuda"]

_MOST_CELLS = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Sizes in tokens and blocks; rates are probabilities, all drawn from ``seed``. Raises OptionsError.

    The 126,195-token prompts of Mooncake's conversation trace fit the defaults.
    """

    block_size: int = 16
    gpu_blocks: int = 32768
    cpu_blocks: int = 131072
    groups: Groups = "full"
    window: int = 1024
    """Tokens a sliding-window layer reads, itself included; tokens of a chunk of chunked local attention."""
    block_sizes: tuple[int, ...] = ()
    """Tokens of a block of each group, in order; ``block_size`` for all if empty."""
    zero_fill: bool = False
    """Whether new blocks are filled with zeros before they are computed into."""
    mode: Mode = "eager"
    async_depth: int = 1
    """Steps in flight: with 2, a step is scheduled before the output of the one before is known."""
    ranks: int = 1
    late_rank: int = 0
    """Steps by which the last rank ends its copies later than the others."""
    refusing_ranks: int = 0
    """Ranks that cannot register all of their host memory."""
    refuse_rate: float = 0.0
    """Of the transfers: a rank cannot set aside what it needs, and all ranks leave it."""
    tiers: int = 2
    """2: GPU and CPU memory. 3: files besides."""
    disk_blocks: int = 524288
    """Slots of the file tier."""
    lose_rate: float = 0.0
    """Of the files: lost some time after they were written."""
    token_budget: int = 8192
    max_running: int = 256
    max_waiting: int = 8
    """Requests that wait at a time; the next one arrives when one leaves."""
    store_batch: int = 8
    """Full blocks that make an eager store worth its while; the rest follows at the end."""
    max_delay: int = 6
    """Ticks (two a step) until a copy lands, at most."""
    seed: int = 0
    fail_rate: float = 0.0
    """Of the loads, for each rank."""
    fail_stores: bool = False
    """Whether ``fail_rate`` goes for stores too."""
    on_failure: FailurePolicy = "recompute"
    """What becomes of a request whose load fails: what did not land is computed, or it ends with an error."""
    share_loads: bool = False
    """Whether blocks under a load are shared: who shares waits for it."""
    publish: bool = False
    """Whether it is published what can be looked up in each pool."""
    repeat_rate: float = 0.0
    """Of the workers' reports: given again, late."""
    abort_rate: float = 0.0
    """Of the requests."""
    resend_rate: float = 0.0
    """Of the requests: sent a second time soon after, as by a client that tries again."""
    reset_every: int = 0
    """Steps between resets of the prefix caches, every other one forced; 0: never."""
    device: DeviceName = "virtual"
    """``cuda`` copies and computes on a GPU: one rank, at its own pace, and nothing fails on demand."""
    design: str = "sound"
    """``sound``, or the name of a faulty design in :mod:`kvfence.reference.designs.faulty`."""
    limit: int | None = None
    """Requests to take from the workload; None: all."""

    def __post_init__(self) -> None:
        for name, least in (
            ("block_size", 1), ("gpu_blocks", 2), ("cpu_blocks", 1), ("window", 1), ("ranks", 1),
            ("token_budget", 1), ("max_running", 1), ("max_waiting", 1), ("store_batch", 1), ("max_delay", 1),
            ("reset_every", 0), ("late_rank", 0), ("refusing_ranks", 0), ("disk_blocks", 1),
        ):  # fmt: skip
            value = getattr(self, name)
            if value < least:
                raise OptionsError(f"{name} is {value}; it must be at least {least}")
        for name in ("fail_rate", "repeat_rate", "abort_rate", "resend_rate", "lose_rate", "refuse_rate"):
            value = getattr(self, name)
            if not 0.0 <= value <= 1.0:
                raise OptionsError(f"{name} is {value}; a rate lies between 0 and 1")
        for name, choices in (
            ("groups", get_args(Groups)),
            ("mode", get_args(Mode)),
            ("async_depth", (1, 2)),
            ("tiers", (2, 3)),
            ("on_failure", get_args(FailurePolicy)),
            ("device", get_args(DeviceName)),
        ):
            value = getattr(self, name)
            if value not in choices:
                raise OptionsError(f"{name} is {value!r}; choose from {', '.join(map(str, choices))}")
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
            for name, only in (
                ("ranks", 1),
                ("fail_rate", 0.0),
                ("repeat_rate", 0.0),
                ("block_sizes", ()),
                ("tiers", 2),
                ("zero_fill", False),
            ):
                value = getattr(self, name)
                if value != only:
                    raise OptionsError(
                        f"{name} is {value}; on the CUDA device it can be {only} only: use the virtual device"
                    )
        if self.refusing_ranks > self.ranks:
            raise OptionsError(f"refusing_ranks is {self.refusing_ranks}; there are {self.ranks} ranks")
        if self.limit is not None and self.limit < 1:
            raise OptionsError(f"limit is {self.limit}; give 1 or more, or leave it out for all requests")

    @property
    def group_specs(self) -> tuple[GroupSpec, ...]:
        """The KV-cache groups."""
        kinds = self.groups.split("+")
        sizes = self.block_sizes or (self.block_size,) * len(kinds)
        return tuple(
            GroupSpec(size, self.window if kind in ("sliding", "chunked") else 0, cast("ev.GroupKind", kind))
            for kind, size in zip(kinds, sizes, strict=True)
        )

    @property
    def slot_tokens(self) -> int:
        """Tokens that a slot has room for: a block of any group."""
        return max(self.block_sizes, default=self.block_size)
