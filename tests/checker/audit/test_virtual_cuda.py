"""The stand-ins for CUDA: what they let happen early and late, and what they emit of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kvfence.checker.audit.cuda_stub.streams import VirtualEvent, VirtualStream
from kvfence.checker.audit.cuda_stub.stub_device import CopyFailed, Deadlock, Device, order_header
from kvfence.checker.audit.cuda_stub.stub_modules import build_params, copy_blocks
from kvfence.checker.audit.cuda_stub.threads import VirtualQueue, VirtualThread
from kvfence.checker.order.races import OrderChecker, Race

torch = pytest.importorskip("torch")

BLOCKS, BYTES = 8, 16


class Setting:
    """A GPU with blocks 0 to 7 that contain their numbers, host memory, and a checker of the order."""

    def __init__(self, seed: int = 0, delay: int = 4) -> None:
        self.races: list[Race] = []
        self.checker = OrderChecker(order_header("test"), on_race=self.races.append)
        self.device = Device(seed, delay, 0, self.checker)
        self.gpu = torch.zeros((BLOCKS, BYTES), dtype=torch.int8)
        self.cpu = torch.zeros((BLOCKS, BYTES), dtype=torch.int8)
        self.device.gpu = (self.gpu.data_ptr(), self.gpu.numel())
        self.region = self.device.region(self.gpu, "gpu")

    def write(self, block: int, value: int) -> None:
        """A kernel that fills ``block``."""

        def run() -> None:
            self.gpu[block] = value

        self.device.kernel(run, [], [(self.region, block * BYTES, BYTES)], "step")

    def params(self, stream: VirtualStream, order: int, *, store: bool = True) -> Any:
        caches = ({"a": self.gpu}, {"a": self.cpu})
        return build_params(*(caches if store else caches[::-1]), stream, order)


@pytest.fixture(params=range(8))
def setting(request: pytest.FixtureRequest) -> Iterator[Setting]:
    made = Setting(request.param)
    with made.device.current():
        yield made


def recorded(stream: VirtualStream | None = None) -> VirtualEvent:
    """A new event, recorded on ``stream`` or on the current one."""
    event = VirtualEvent()
    event.record(stream)
    return event


def run_dry(setting: Setting) -> None:
    while setting.device.busy:
        setting.device.tick()


def test_a_store_that_waits_for_the_kernel_reads_what_it_wrote(setting: Setting) -> None:
    stream = VirtualStream()
    setting.write(3, 7)
    stream.wait_event(recorded())
    copy_blocks([3], [5], setting.params(stream, 1))
    run_dry(setting)
    assert setting.cpu[5].tolist() == [7] * BYTES
    assert not setting.races


@pytest.mark.parametrize(
    ("waits", "order"), [(False, 1), (True, 3)], ids=["it waits for nothing", "its source order is any"]
)
def test_a_store_that_the_kernel_does_not_precede_is_a_race_and_can_read_too_early(
    waits: bool, order: int
) -> None:
    early = 0
    for seed in range(20):
        setting = Setting(seed)
        with setting.device.current():
            setting.write(3, 7)
            stream = VirtualStream()
            if waits:
                stream.wait_event(recorded())
            copy_blocks([3], [5], setting.params(stream, order))
            run_dry(setting)
        assert [race.invariant for race in setting.races] == ["STORE-READY"]
        early += setting.cpu[5].tolist() != [7] * BYTES
    assert 0 < early < 20


def test_a_load_after_the_kernel_was_waited_for_on_the_host_is_in_order(setting: Setting) -> None:
    setting.write(3, 7)
    recorded().synchronize()
    setting.cpu[5] = 9
    copy_blocks([5], [3], setting.params(VirtualStream(), 3, store=False))
    run_dry(setting)
    assert setting.gpu[3].tolist() == [9] * BYTES
    assert not setting.races


def test_an_event_given_away_by_a_thread_orders_what_comes_after_it(setting: Setting) -> None:
    queue, stream, events = VirtualQueue(), VirtualStream(), []

    def copies() -> None:
        while True:
            copy_blocks(*queue.get())
            events.append(recorded(stream))

    VirtualThread(target=copies).start()
    queue.put(([3], [5], setting.params(stream, 1)))
    while not events:
        setting.device.tick()
    assert not VirtualEvent().query() or events[0].query() in {True, False}
    events[0].synchronize()
    setting.write(3, 1)
    run_dry(setting)
    assert not setting.races


def test_a_thread_that_waits_within_an_item_takes_no_other_meanwhile(setting: Setting) -> None:
    """Nor while another thread waits in turn, which was let go on for it."""
    queues = [VirtualQueue() for _ in range(2)]
    stream = VirtualStream()
    story: list[list[str]] = [[], []]

    def work(number: int) -> None:
        while True:
            item = queues[number].get()
            story[number].append(f"begins {item}")
            copy_blocks([item], [item], setting.params(stream, 1))
            recorded(stream).synchronize()
            story[number].append(f"ends {item}")

    for number in range(2):
        VirtualThread(target=work, args=(number,)).start()
    for item in (1, 2, 3):
        for each in queues:
            each.put(item)
    run_dry(setting)
    assert story == [[f"{what} {item}" for item in (1, 2, 3) for what in ("begins", "ends")]] * 2


def test_a_copy_that_fails_ends_its_thread_and_no_other(setting: Setting) -> None:
    queue, other, stream = VirtualQueue(), VirtualQueue(), VirtualStream()

    def copies() -> None:
        while True:
            copy_blocks(*queue.get())

    def idle() -> None:
        while True:
            other.get()

    threads = [VirtualThread(target=copies), VirtualThread(target=idle)]
    for thread in threads:
        thread.start()
    setting.device.fail_next = True
    queue.put(([3], [5], setting.params(stream, 1)))
    setting.device.tick()
    assert [thread.is_alive() for thread in threads] == [False, True]
    assert isinstance(setting.device.deaths[0][1], CopyFailed)


def test_waiting_for_what_never_comes_is_reported(setting: Setting) -> None:
    stream, never = VirtualStream(), VirtualEvent()
    setting.device.wait(stream.id, never.id, setting.device.launch(stream.id, lambda: None, 10**9))
    with pytest.raises(Deadlock):
        recorded(stream).synchronize()
