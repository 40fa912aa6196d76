"""The GPU engine on its kernels as C++, and on a card."""

from collections.abc import Callable

import pytest

from kvfence.checker.engines.gpu import Gpu
from kvfence.checker.engines.gpu.device import host
from kvfence.checker.engines.gpu.device.cuda_kernels import CudaDevice
from kvfence.checker.engines.gpu.device.host import HostDevice
from kvfence.checker.engines.gpu.device.search_device import NoGpu


@pytest.fixture(autouse=True)
def compiled_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small searches: optimizing them would take longer."""
    monkeypatch.setattr(host, "FLAGS", (*host.FLAGS, "-O0"))


def card_or_skip() -> None:
    """Skips the test where there is no GPU."""
    try:
        CudaDevice().close()
    except NoGpu as why:
        pytest.skip(str(why))


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
