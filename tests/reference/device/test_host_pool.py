"""Host pools take exactly what was asked for, or give everything back."""

import mmap
import os

import numpy as np
import pytest

from kvfence.reference.driver.driver import DriverError
from kvfence.reference.driver.host_pool import HostMemoryRefused, HostPool, chunk_bytes

PAGE = mmap.PAGESIZE


class FakeMemory:
    """Grants ``chunks`` registrations."""

    def __init__(self, chunks: int = 1000) -> None:
        self.left = chunks
        self.held: dict[int, int] = {}
        self.waited = False

    def register(self, address: int, nbytes: int) -> None:
        if not self.left:
            raise DriverError("cuMemHostRegister", 2, "CUDA_ERROR_OUT_OF_MEMORY")
        self.left -= 1
        self.held[address] = nbytes

    def unregister(self, address: int) -> None:
        del self.held[address]

    def synchronize(self) -> None:
        self.waited = True


def test_the_registrations_cover_the_pool_exactly_and_end_between_blocks():
    memory = FakeMemory()
    pool = HostPool(memory, blocks=1000, block_bytes=3 * 1024, most=64 * 1024)
    assert sum(memory.held.values()) == pool.nbytes == 1000 * 3 * 1024
    at = pool.address
    for address, nbytes in sorted(memory.held.items()):
        assert address == at
        assert (address - pool.address) % (3 * 1024) == 0
        assert address % PAGE == 0
        at += nbytes
    pool.close()
    assert not memory.held


def test_the_pool_is_zeroed_memory_that_can_be_written():
    pool = HostPool(FakeMemory(), blocks=10, block_bytes=4096)
    array = pool.array()
    assert array.size == 40960
    assert not array.any()
    array[:] = 7
    assert int(np.frombuffer(pool.array(), np.uint8).sum()) == 7 * 40960


@pytest.mark.parametrize("granted", [0, 1, 3])
def test_a_refused_chunk_rolls_back_everything_and_says_how_much_was_granted(granted):
    memory = FakeMemory(granted)
    with pytest.raises(HostMemoryRefused, match=r"OUT_OF_MEMORY.*given back.*ulimit") as refused:
        HostPool(memory, blocks=64, block_bytes=PAGE, most=8 * PAGE)
    assert not memory.held
    assert refused.value.asked == 64 * PAGE
    assert refused.value.granted == granted * 8 * PAGE


def test_memory_that_the_system_refuses_is_one_clear_error():
    with pytest.raises(HostMemoryRefused, match="0 granted"):
        HostPool(FakeMemory(), blocks=2**40, block_bytes=2**20)


def test_closing_twice_is_harmless():
    memory = FakeMemory()
    pool = HostPool(memory, blocks=4, block_bytes=PAGE)
    pool.close()
    pool.close()
    assert not memory.held


def test_a_pool_that_is_dropped_waits_for_the_device_and_unregisters_its_memory():
    memory = FakeMemory()
    HostPool(memory, blocks=64, block_bytes=PAGE, most=8 * PAGE)
    assert memory.waited
    assert not memory.held


def test_memory_stays_registered_while_an_array_over_it_lives_though_the_pool_is_dropped():
    memory = FakeMemory()
    array = HostPool(memory, blocks=64, block_bytes=PAGE).array()[PAGE:]
    assert memory.held
    array[:] = 1
    del array
    assert not memory.held


def test_a_process_that_was_forked_leaves_the_registrations_of_its_parent_alone():
    memory = FakeMemory()
    pool = HostPool(memory, blocks=4, block_bytes=PAGE)
    child = os.fork()
    if not child:
        del pool
        os._exit(not memory.held or memory.waited)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    pool.close()


def test_a_registration_that_the_driver_does_not_end_keeps_no_other_from_ending():
    class Stubborn(FakeMemory):
        def unregister(self, address: int) -> None:
            super().unregister(address)
            if len(self.held) == 4:
                raise DriverError("cuMemHostUnregister", 1, "CUDA_ERROR_INVALID_VALUE")

    memory = Stubborn()
    pool = HostPool(memory, blocks=64, block_bytes=PAGE, most=8 * PAGE)
    with pytest.raises(DriverError, match="cuMemHostUnregister"):
        pool.close()
    assert not memory.held


@pytest.mark.parametrize("block", [16, 128, 3 * 1024, 4096, 40960, 12345])
def test_chunks_are_whole_blocks_and_whole_pages(block):
    size = chunk_bytes(block, most=2**20)
    assert size % block == 0
    assert size % PAGE == 0
    assert size <= max(2**20, block * PAGE)
