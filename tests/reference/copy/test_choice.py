"""Which engine moves a transfer: by measured crossover, from the cache, or as an override says."""

import numpy as np
import pytest
import torch

from kvfence.reference.blocks.errors import OptionsError
from kvfence.reference.copy import crossover as module
from kvfence.reference.copy.auto import AutoCopy
from kvfence.reference.copy.batched import BatchedDMA
from kvfence.reference.copy.crossover import OVERRIDE, crossover, decide, overrides
from kvfence.reference.copy.kernel import KernelCopy, Kernels
from kvfence.reference.copy.plan import Segment, View
from kvfence.reference.copy.staged import StagedCopy

SIZES = (4096, 16384, 65536)
RATES = {
    "store scattered dma": (4.0, 13.0, 45.0),
    "store scattered kernel": (47.0, 51.0, 45.5),
    "store host runs dma": (4.0, 13.0, 45.0),
    "store host runs kernel": (47.0, 50.0, 51.0),
    "store host runs staged": (40.0, 50.5, 53.0),
    "load scattered dma": (2.0, 4.0, 5.0),
    "load scattered kernel": (46.0, 49.0, 50.0),
    "load host runs dma": (2.0, 4.0, 5.0),
    "load host runs kernel": (46.0, 49.0, 50.0),
    "load host runs staged": (40.0, 46.0, 49.0),
}


def test_the_fastest_engine_is_chosen_by_direction_layout_and_size():
    table = decide("a card", SIZES, RATES)
    assert table.engine("store", "scattered", 4096) == "kernel"
    assert table.engine("store", "scattered", 16384) == "kernel"
    assert table.engine("load", "scattered", 2**30) == "kernel"
    assert table.engine("store", "host runs", 65536) == "staged"


def test_between_equals_the_engine_that_costs_compute_less_is_chosen():
    table = decide("a card", SIZES, RATES)
    assert table.engine("store", "scattered", 65536) == "dma"
    assert table.engine("store", "host runs", 16384) == "kernel"


def test_a_size_between_two_goes_with_the_nearer_one_on_a_scale_of_doublings():
    table = decide("a card", SIZES, RATES)
    assert table.engine("store", "scattered", 30000) == "kernel"
    assert table.engine("store", "scattered", 36000) == "dma"
    assert table.engine("store", "scattered", 1) == "kernel"


@pytest.fixture
def engines(driver):
    kernels = Kernels(driver)
    made = (BatchedDMA(driver), KernelCopy(kernels), StagedCopy(kernels))
    return {engine.name: engine for engine in made}


def transfer(src, dst, nbytes=16384):
    pool = torch.zeros((64, nbytes), dtype=torch.uint8)
    other = torch.zeros((64, nbytes), dtype=torch.uint8)
    return [Segment([View.of(pool)], np.array(src), [View.of(other)], np.array(dst))]


SCATTERED = [3, 1, 7, 5, 9, 15, 11, 13, 17, 21]


@pytest.mark.parametrize(
    ("kind", "src", "dst", "nbytes", "chosen"),
    [
        ("store", SCATTERED, SCATTERED[::-1], 16384, "kernel"),
        ("store", SCATTERED, SCATTERED[::-1], 65536, "dma"),
        ("store", range(10), range(20, 30), 16384, "dma"),  # one merged piece of 160 KiB
        ("store", SCATTERED, range(20, 30), 65536, "staged"),
        ("load", SCATTERED, range(20, 30), 65536, "kernel"),  # the host side of a load is its source
        ("store", SCATTERED, SCATTERED[::-1], 16388, "dma"),  # no multiple of 16 bytes
    ],
)
def test_a_transfer_goes_by_its_pieces_and_its_layout(engines, kind, src, dst, nbytes, chosen):
    auto = AutoCopy(engines, decide("a card", SIZES, RATES))
    work = auto.plan(kind, transfer(src, dst, nbytes))
    assert work.engine == chosen


def test_an_override_wins_over_what_was_measured(engines):
    auto = AutoCopy(engines, decide("a card", SIZES, RATES), overrides("store=dma", "engine"))
    assert auto.plan("store", transfer(SCATTERED, SCATTERED)).engine == "dma"
    assert auto.plan("load", transfer(SCATTERED, SCATTERED)).engine == "kernel"


def test_an_empty_transfer_launches_nothing(engines, driver):
    auto = AutoCopy(engines, decide("a card", SIZES, RATES))
    empty = np.zeros(0, np.int64)
    auto.copy("store", transfer(empty, empty), driver.new_stream())
    assert not [launch for launch in driver.launches if launch[1]]


@pytest.mark.parametrize("text", ["fast", "store=fast", "up=dma", "store=", "dma,load=quick"])
def test_an_override_that_names_no_engine_is_refused(text):
    with pytest.raises(OptionsError, match=f"{OVERRIDE} is .*give one of auto, dma, kernel, staged"):
        overrides(text)


def test_overrides_are_for_both_directions_or_for_one():
    assert overrides("kernel") == {"store": "kernel", "load": "kernel"}
    assert overrides("store=staged, load=auto") == {"store": "staged", "load": "auto"}
    assert overrides("") == {}


def test_a_crossover_is_measured_once_for_a_card_and_driver(monkeypatch, tmp_path, driver):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    measured = []

    def measure(driver, _engines, sizes=module.SIZES):
        measured.append(driver.card)
        columns = {key: (*values, 50.0, 50.0) for key, values in RATES.items()}
        return decide(module.key_of(driver.card), sizes, columns)

    monkeypatch.setattr(module, "measure", measure)
    first = crossover(driver, {})
    assert crossover(driver, {}) == first
    assert len(measured) == 1
    crossover(driver, {}, again=True)
    assert len(measured) == 2
    (tmp_path / "kvfence" / "copy-crossover.json").write_text("{broken")
    assert crossover(driver, {}) == first
    assert len(measured) == 3
