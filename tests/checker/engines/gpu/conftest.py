"""The GPU engine on its kernels as C++, and on a card."""

from collections.abc import Callable

import pytest
from thread_ranks import card_or_skip

from kvfence.checker.engines.gpu import Gpu
from kvfence.checker.engines.gpu.device import host
from kvfence.checker.engines.gpu.device.host import HostDevice


@pytest.fixture(autouse=True)
def compiled_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small searches: optimizing them would take longer."""
    monkeypatch.setattr(host, "FLAGS", (*host.FLAGS, "-O0"))


@pytest.fixture(params=["host", pytest.param("cuda", marks=pytest.mark.gpu)])
def gpu(request: pytest.FixtureRequest) -> Callable[..., Gpu]:
    """Makes engines: on the kernels as C++, and, with -m gpu, on the card."""

    if request.param == "cuda":
        card_or_skip()

    def made(*, threads: int = 1, **options: object) -> Gpu:
        if request.param == "cuda":
            return Gpu(**options)  # type: ignore[arg-type]
        return Gpu(device=lambda: HostDevice(threads), **options)  # type: ignore[arg-type]

    return made
