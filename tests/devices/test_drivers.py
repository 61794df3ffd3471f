"""Drivers: the emulated device is strict, the recording one notes all, memory ends."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from devices import kernels
from tapejit.base.config import config
from tapejit.base.errors import ArgumentError, TapejitError
from tapejit.runtime.cuda.driver import DeviceError, DeviceMemoryError, Driver, driver
from tapejit.runtime.cuda.emulated import EmulatedDriver
from tapejit.runtime.cuda.launches import MOST_SETS, InBuffer, Launch, LaunchList
from tapejit.runtime.cuda.memory import Memory, Pool
from tapejit.runtime.cuda.recording import RecordingDriver

N = 256


class Device:
    """A recording driver of an emulated device, with a stream."""

    def __init__(self, size: int = 1 << 30) -> None:
        self.emulated = EmulatedDriver(size)
        self.driver: Driver = RecordingDriver(self.emulated)
        self.stream = self.driver.stream(0)

    @property
    def log(self) -> list[str]:
        assert isinstance(self.driver, RecordingDriver)
        return self.driver.log

    def put(self, array: np.ndarray) -> int:
        address = self.driver.allocate(array.nbytes, self.stream)
        self.driver.upload(address, array, self.stream)
        return address

    def get(self, address: int, count: int) -> np.ndarray:
        found = np.zeros(count, np.float32)
        self.driver.download(found, address, self.stream)
        self.driver.synchronize(self.stream)
        return found


@pytest.fixture
def device() -> Device:
    return Device()


@pytest.fixture
def loaded(device: Device) -> tuple[Device, int]:
    code = device.driver.compile(kernels.ELEMENTWISE, 0)
    return device, device.driver.load(code, 0)


# Choosing


def test_the_setting_chooses_the_driver() -> None:
    with config.override(cuda="emulated"):
        assert isinstance(driver(), EmulatedDriver)
        assert driver() is driver()
        assert driver().device_count() == 1
    with pytest.raises(DeviceError, match="no device 1, only the emulated"):
        EmulatedDriver().properties(1)


# Order


def test_work_happens_when_it_is_waited_for(loaded: tuple[Device, int]) -> None:
    device, module = loaded
    x = np.arange(N, dtype=np.float32)
    a, out = device.put(x), device.driver.allocate(4 * N, device.stream)
    found = np.zeros(N, np.float32)
    arguments = [a, a, out, N]
    device.driver.launch(module, "elementwise", 2, 128, arguments, device.stream)
    device.driver.download(found, out, device.stream)
    assert not found.any()
    x[:] = 2  # too early: the device has not read it yet
    device.driver.synchronize(device.stream)
    assert (found == 2 * 2 + 2).all()
    assert device.log == [
        "stream0: new, on device 0",
        f"compile {len(kernels.ELEMENTWISE)} characters",
        "module0: loaded, on device 0",
        "memory0: 1024 bytes, on stream0",
        "upload memory0: 1024 bytes, on stream0",
        "memory1: 1024 bytes, on stream0",
        "launch elementwise<<<2, 128>>>(memory0, memory0, memory1, 256) of module0, "
        "on stream0",
        "download memory1: 1024 bytes, on stream0",
        "synchronize stream0",
    ]


def test_an_event_orders_two_streams(device: Device) -> None:
    other = device.driver.stream(0)
    address = device.driver.allocate(16, device.stream)
    found = np.zeros(4, np.float32)
    device.driver.fill(address, 0, 16, device.stream)
    event = device.driver.record(device.stream)
    device.driver.wait_for(event, other)
    device.driver.download(found, address, other)
    assert not device.driver.is_over(event)
    found[:] = 5
    device.driver.synchronize(other)
    assert device.driver.is_over(event)
    assert (found == 0).all()
    assert device.log[-4:] == [
        "event0: recorded, on stream0",
        "wait for event0, on stream1",
        "download memory0: 16 bytes, on stream1",
        "synchronize stream1",
    ]


def test_without_an_event_another_stream_may_be_first(device: Device) -> None:
    other = device.driver.stream(0)
    address = device.driver.allocate(16, device.stream)
    found = np.zeros(4, np.float32)
    device.driver.fill(address, 0, 16, device.stream)
    device.driver.download(found, address, other)
    device.driver.synchronize(other)
    assert np.isnan(found).all()


def test_what_fails_ends_what_is_left_on_its_stream(device: Device) -> None:
    other = device.driver.stream(0)
    address = device.driver.allocate(16, device.stream)
    device.driver.fill(address, 0, 17, device.stream)
    device.driver.fill(address, 0, 16, device.stream)
    event = device.driver.record(device.stream)
    device.driver.wait_for(event, other)
    with pytest.raises(DeviceError, match="not all of 17 bytes"):
        device.driver.synchronize(device.stream)
    assert np.isnan(device.get(address, 4)).all()
    with pytest.raises(DeviceError, match="an event of stream 1, which failed before"):
        device.driver.synchronize(other)


# Memory


def test_memory_is_poisoned_when_it_is_new(device: Device) -> None:
    address = device.driver.allocate(64, device.stream)
    assert address % 256 == 0
    assert np.isnan(device.get(address, 16)).all()


def test_memory_that_is_freed_may_be_used_before_and_not_after(device: Device) -> None:
    address = device.put(np.ones(4, np.float32))
    before, after = np.zeros(4, np.float32), np.zeros(4, np.float32)
    device.driver.download(before, address, device.stream)
    piece = device.emulated.pieces[address]
    device.driver.free(address, device.stream)
    device.driver.download(after, address, device.stream)
    with pytest.raises(
        DeviceError, match=r"illegal address: not all of 16 bytes at 0x"
    ):
        device.driver.synchronize(device.stream)
    assert (before == 1).all()
    assert (piece == 0xFF).all()
    del piece
    again = {device.driver.allocate(16, device.stream) for _ in range(15)}
    assert address not in again  # so that it stays an error for a while
    device.driver.free(address + 4, device.stream)
    with pytest.raises(DeviceError, match="is freed, and not alive"):
        device.driver.synchronize(device.stream)


@pytest.mark.parametrize(("offset", "nbytes"), [(-4, 8), (60, 8), (64, 4), (-256, 4)])
def test_borders_are_nobodys(device: Device, offset: int, nbytes: int) -> None:
    address = device.driver.allocate(64, device.stream)
    device.driver.fill(address + offset, 0, nbytes, device.stream)
    with pytest.raises(DeviceError, match="illegal address"):
        device.driver.synchronize(device.stream)
    device.driver.copy(address, address + offset, nbytes, device.stream)
    with pytest.raises(DeviceError, match="illegal address"):
        device.driver.synchronize(device.stream)


def test_a_kernel_that_leaves_its_memory_is_found(loaded: tuple[Device, int]) -> None:
    device, module = loaded
    a, short = device.put(np.ones(N, np.float32)), device.put(np.ones(9, np.float32))
    arguments = [a, a, short, N]
    device.driver.launch(module, "elementwise", 1, 128, arguments, device.stream)
    with pytest.raises(DeviceError, match="illegal address: thread 9 of block 0"):
        device.driver.synchronize(device.stream)


def test_with_checks_the_emulated_device_finds_races() -> None:
    emulated = EmulatedDriver()
    stream = emulated.stream(0)
    text = kernels.without_barrier(kernels.BLOCK_SUM, 2)
    module = emulated.load(emulated.compile(text, 0), 0)
    given = [emulated.allocate(1024, stream), emulated.allocate(4, stream)]
    emulated.launch(module, "block_sum", 1, 128, given, stream)
    with config.override(check=True), pytest.raises(DeviceError, match="race"):
        emulated.synchronize(stream)
    emulated.launch(module, "block_sum", 1, 128, given, stream)
    emulated.synchronize(stream)


def test_copies_on_the_device_and_of_halves(device: Device) -> None:
    x = np.arange(8, dtype=np.float16).reshape(2, 4)
    a, b = device.put(x), device.driver.allocate(16, device.stream)
    device.driver.copy(b + 8, a, 8, device.stream)
    device.driver.fill(b, 0, 8, device.stream)
    found = np.ones((2, 4), np.float16)
    device.driver.download(found, b, device.stream)
    device.driver.synchronize(device.stream)
    np.testing.assert_array_equal(found, [[0, 0, 0, 0], [0, 1, 2, 3]])
    with pytest.raises(ArgumentError, match="only contiguous arrays"):
        device.driver.upload(a, x.T, device.stream)


def test_a_device_has_so_much_memory_and_no_more() -> None:
    device = Device(1000)
    assert device.driver.memory_bytes(0) == (1000, 1000)
    address = device.driver.allocate(600, device.stream)
    with pytest.raises(MemoryError, match="500 bytes are asked for, and of 1000 on"):
        device.driver.allocate(500, device.stream)
    device.driver.free(address, device.stream)
    assert device.driver.memory_bytes(0) == (400, 1000)  # until the stream is there
    device.driver.synchronize(device.stream)
    assert device.driver.memory_bytes(0) == (1000, 1000)


# Handles


def test_a_handle_is_of_one_kind_and_once(device: Device) -> None:
    event = device.driver.record(device.stream)
    with pytest.raises(ArgumentError, match="is not in use for this"):
        device.driver.synchronize(event)
    device.driver.release(event)
    assert device.log[-1] == "release event0"
    with pytest.raises(ArgumentError, match="is not in use for this"):
        device.driver.is_over(event)
    with pytest.raises(DeviceError, match="is no stream, module, event or graph"):
        device.driver.release(event)


# The pool


def test_a_pool_ends_at_its_limit_and_says_so(device: Device) -> None:
    pool = Pool(device.driver, 0, device.stream, limit=3 << 20)
    first, second = pool.allocate(1 << 20), pool.allocate(1 << 20)
    assert first.address != second.address
    with pytest.raises(DeviceMemoryError) as caught:
        pool.allocate(2 << 20)
    assert isinstance(caught.value, MemoryError)
    assert isinstance(caught.value, TapejitError)
    assert caught.value.message == (
        "2.0 MB are asked for; cuda:0 may use 3.0 MB, and 2.0 MB are in use"
    )
    assert caught.value.help == (
        "the device has 1022.0 MB free; smaller batches need less"
    )


def test_a_pool_gives_back_what_has_died(device: Device) -> None:
    pool = Pool(device.driver, 0, device.stream, limit=100)
    piece = pool.allocate(80)
    assert pool.used == 80
    del piece
    gc.collect()
    assert device.log[-1].startswith("memory0: 80 bytes")  # nobody was called
    assert pool.allocate(90).nbytes == 90
    assert pool.used == 90
    assert device.log[-2:] == [
        "free memory0, on stream0",
        "memory1: 90 bytes, on stream0",
    ]


def test_a_pool_without_a_limit_has_what_the_device_has() -> None:
    device = Device(1000)
    pool = Pool(device.driver, 0, device.stream)
    assert pool.limit == 1000
    piece: Memory | None = pool.allocate(700)
    other = device.driver.allocate(200, device.stream)  # somebody else's
    with pytest.raises(DeviceMemoryError, match="may use 1000 bytes, and 700 bytes"):
        pool.allocate(200)
    del piece
    assert pool.allocate(600).nbytes == 600  # it waits until the freed memory is free
    assert "synchronize stream0" in device.log
    device.driver.free(other, device.stream)


# Launch lists


@pytest.fixture
def steps(loaded: tuple[Device, int]) -> LaunchList:
    device, module = loaded
    count = np.int64(N)
    return LaunchList(
        device.driver,
        module,
        [
            Launch(
                "elementwise", 2, 128, (InBuffer(0), InBuffer(0), InBuffer(1), count)
            ),
            Launch(
                "elementwise",
                1,
                128,
                (InBuffer(1, 4), InBuffer(0), InBuffer(1), np.int64(1)),
            ),
        ],
    )


def wanted(x: np.ndarray) -> np.ndarray:
    out = x * x + x
    out[0] = out[1] * out[1] + x[0]
    return out


def test_a_list_is_launched_then_a_graph_and_gives_the_same(
    loaded: tuple[Device, int], steps: LaunchList
) -> None:
    device, _ = loaded
    x = np.linspace(0, 1, N, dtype=np.float32)
    addresses = [device.put(x), device.driver.allocate(4 * N, device.stream)]
    for run in range(4):
        del device.log[:]
        device.driver.fill(addresses[1], 0, 4 * N, device.stream)
        steps.run(addresses, device.stream)
        asked = [line.split()[0] for line in device.log[1:]]
        plain, graph = ["launch"] * 2, ["begin", *["launch"] * 2, "graph0:", "launch"]
        assert asked == (plain if run == 0 else graph if run == 1 else ["launch"])
        found = device.get(addresses[1], N)
        np.testing.assert_allclose(found, wanted(x), rtol=1e-6)
    assert device.log[1] == "launch graph0, on stream0"


def test_few_graphs_are_kept(loaded: tuple[Device, int], steps: LaunchList) -> None:
    device, _ = loaded
    source = device.put(np.ones(N, np.float32))
    for _ in range(MOST_SETS + 3):
        addresses = [source, device.driver.allocate(4 * N, device.stream)]
        for _ in range(2):
            steps.run(addresses, device.stream)
    assert len(steps.graphs) == MOST_SETS
    assert sum(line.startswith("release graph") for line in device.log) == 3
    device.driver.synchronize(device.stream)


def test_a_graph_that_cannot_be_made_leaves_the_stream_in_order(
    loaded: tuple[Device, int], steps: LaunchList
) -> None:
    device, _ = loaded
    addresses = [device.put(np.ones(N, np.float32)), device.put(np.ones(N, np.float32))]
    steps.run(addresses, device.stream)
    launches, steps.launches = (
        steps.launches,
        ((*steps.launches[0][:3], (InBuffer(9),)),),
    )
    with pytest.raises(IndexError):
        steps.run(addresses, device.stream)
    steps.launches = launches
    assert not device.emulated.graphs
    steps.run(addresses, device.stream)
    found = device.get(addresses[1], N)
    np.testing.assert_array_equal(found, wanted(np.ones(N, np.float32)))


def test_a_graph_has_no_memory_to_give_and_nothing_to_wait_for(device: Device) -> None:
    address = device.driver.allocate(4, device.stream)
    event = device.driver.record(device.stream)
    with pytest.raises(DeviceError, match="becomes no graph"):
        device.driver.end_graph(device.stream)
    device.driver.begin_graph(device.stream)
    for call in (
        lambda: device.driver.allocate(4, device.stream),
        lambda: device.driver.free(address, device.stream),
        lambda: device.driver.record(device.stream),
        lambda: device.driver.wait_for(event, device.stream),
        lambda: device.driver.begin_graph(device.stream),
        lambda: device.driver.synchronize(device.stream),
    ):
        with pytest.raises(
            DeviceError, match="becomes a graph, which cannot have this"
        ):
            call()
    device.driver.fill(address, 0, 4, device.stream)
    graph = device.driver.end_graph(device.stream)
    assert np.isnan(device.get(address, 1)).all()
    device.driver.launch_graph(graph, device.stream)
    assert (device.get(address, 1) == 0).all()
