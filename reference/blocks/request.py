"""A request on its way through the engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto

from kvfence.reference.blocks.pool import Keys
from kvfence.reference.blocks.workload import RequestSpec, block_keys


class State(Enum):
    """Where a request is."""

    WAITING = auto()
    PARKED = auto()  # holds blocks and waits for the load that fills them
    READY = auto()  # holds blocks, its load is over; not in the running batch yet
    RUNNING = auto()
    ENDED = auto()


@dataclass(slots=True, eq=False)
class Request:
    """Tokens are counted; ``total`` are known (prompt and sampled ones) as the generation begins."""

    spec: RequestSpec
    keys_of: tuple[Keys, ...]
    """For each group: content keys of all blocks that can become full."""
    key_lists: tuple[list[int], ...]
    total: int
    generation: int = 0
    state: State = State.WAITING
    row: int = -1
    """Row in the block tables while it holds blocks."""
    local: int = 0
    external: int = 0
    """Tokens that the present generation took from the GPU prefix cache and from the tier."""
    retired: set[int] = field(default_factory=set)
    """Generations for which nothing is held any more; an early one can be the last, when its load is late."""
    needed: int = 0
    """Free GPU slots without which another attempt to admit it is vain."""
    id: str = field(init=False)
    holder: str = field(init=False)
    hit_holder: str = field(init=False)

    def __post_init__(self) -> None:
        self.id = str(self.spec.uid)
        self._name_holders()

    @classmethod
    def arriving(cls, spec: RequestSpec, *block_sizes: int) -> Request:
        """A request that has just arrived, with the block size of each group."""
        by_size = {
            size: block_keys(spec, size, spec.prompt + spec.output) for size in dict.fromkeys(block_sizes)
        }
        lists = {size: keys.tolist() for size, keys in by_size.items()}
        keys = tuple(by_size[size] for size in block_sizes)
        return cls(spec, keys, tuple(lists[size] for size in block_sizes), spec.prompt)

    @property
    def keys(self) -> Keys:
        """Content keys of the first group."""
        return self.keys_of[0]

    @property
    def key_list(self) -> list[int]:
        """The same as a list."""
        return self.key_lists[0]

    @property
    def target(self) -> int:
        """Tokens whose KV is written when the last output token is sampled (its own KV never is)."""
        return self.spec.prompt + self.spec.output - 1

    @property
    def stops_unannounced(self) -> bool:
        """Half of the requests end with a stop token, which cannot be foreseen, the others at their length
        limit.
        """
        return bool(self.spec.uid & 1)

    def next_generation(self, confirmed: int) -> None:
        """Preempted with ``confirmed`` tokens written: it waits again and keeps what it has sampled."""
        self.total = max(self.total, confirmed + 1)
        self.generation += 1
        self.state = State.WAITING
        self.row = -1
        self.local = self.external = self.needed = 0
        self._name_holders()

    def _name_holders(self) -> None:
        self.holder = f"req:{self.id}.{self.generation}"
        self.hit_holder = f"hit:{self.id}.{self.generation}"
