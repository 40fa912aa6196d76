"""Machines of every shape, and what two engines must agree on: those of the other engines' tests."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from kvfence.checker.engines.gpu import Gpu
from kvfence.checker.engines.gpu.device import host
from kvfence.checker.engines.gpu.device.cuda_kernels import CudaDevice
from kvfence.checker.engines.gpu.device.host import HostDevice
from kvfence.checker.engines.gpu.device.search_device import NoGpu


@pytest.fixture(scope="session")
def shapes() -> ModuleType:
    """tests/checker/engines/test_agreement.py: ``tokens``, ``numbers``, ``drawn`` and ``facts``."""
    path = Path(__file__).parents[1] / "test_agreement.py"
    spec = importlib.util.spec_from_file_location("agreement_shapes", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
