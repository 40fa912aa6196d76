"""What each process of the tests of several ranks runs: one search. The first rank prints what it found.

    torchrun … ranks_program.py MACHINE [FOLDER [LEVELS [RANK]]]

With LEVELS the rank RANK ends without a word after so many levels, or, with LEVELS below 0, falls asleep.
Ranks are on the processor and talk through gloo; with RANKS_ON=cuda they have a card each and talk through
NCCL.
"""

import json
import os
import sys
import time
from datetime import timedelta

import shapes

from kvfence.checker.engines.gpu import Gpu
from kvfence.checker.engines.gpu.device import host
from kvfence.checker.engines.gpu.device.cuda_kernels import CudaDevice
from kvfence.checker.engines.gpu.device.host import HostDevice
from kvfence.checker.engines.gpu.device.torch_ranks import TorchRanks
from kvfence.checker.engines.gpu.expansion import Limits
from kvfence.checker.engines.gpu.search import Search


def main() -> None:
    name, *rest = sys.argv[1:]
    host.FLAGS = (*host.FLAGS, "-O0")
    m, sizes = shapes.named(name)
    on_cards = os.environ.get("RANKS_ON") == "cuda"
    ranks = TorchRanks(gpu=on_cards, patience=timedelta(seconds=60))
    if len(rest) > 1 and int(rest[2]) == ranks.rank:
        whole = Search.expand_level

        def dying(self: Search) -> None:
            if self.levels.depth == abs(int(rest[1])):
                if int(rest[1]) < 0:
                    time.sleep(3600)
                os._exit(9)
            whole(self)

        Search.expand_level = dying  # type: ignore[method-assign]
    engine = Gpu(
        device=(lambda: CudaDevice(ranks.rank)) if on_cards else HostDevice,
        ranks=ranks,
        limits=Limits(batch=5000),
        checkpoint=rest[0] if rest else None,
        checkpoint_every=0.0,
    )
    r = engine.run(m, sizes)
    if ranks.rank == 0:
        found = {"states": r.states, "stopped": r.stopped, "violated": [str(p) for p in r.violated]}
        print(json.dumps({**found, "facts": repr(shapes.facts(r))}))


main()
