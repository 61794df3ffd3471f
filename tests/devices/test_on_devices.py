"""Kernels through a driver: the emulated device here, a GPU where there is one.

`pytest --gpu tests/devices/test_on_devices.py` is what to run on a machine with a GPU:
without one it fails, where the whole suite skips. Each kernel must give the bits that
it gives on the emulated device, by plain launches and as a CUDA graph, and programs the
CPU's; with `--full` all of the ladder's, else one of a hundred. Sums of `mma` are of
small whole numbers, exact in any order.
"""

from __future__ import annotations

from functools import cache
from itertools import islice

import ml_dtypes
import numpy as np
import pytest

from devices import kernels
from devices.ladder import Climb, cases_of
from tapejit.runtime.cuda.devices import Device
from tapejit.runtime.cuda.driver import DeviceError, Driver
from tapejit.runtime.cuda.emulated import EmulatedDriver
from tapejit.runtime.cuda.launches import InBuffer, Launch, LaunchList
from tapejit.runtime.cuda.memory import Pool
from tapejit.runtime.cuda.nvidia import NvidiaDriver

RNG = np.random.default_rng(1)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def small(*shape: int) -> np.ndarray:
    return RNG.integers(-8, 9, shape)


# By kernel: blocks, threads, inputs, output, numbers that follow.
CASES: dict[str, tuple[int, int, list[np.ndarray], np.ndarray, list[np.generic]]] = {
    "elementwise": (
        *(8, 128, [floats(1000), floats(1000)]),
        *(np.zeros(1000, np.float32), [np.int64(1000)]),
    ),
    "block_sum": (4, 128, [floats(1024)], np.zeros(4, np.float32), []),
    "warp_sum": (1, 96, [floats(96)], np.zeros(96, np.float32), []),
    "bf16": (
        *(1, 32, [small(n, 32).astype(ml_dtypes.bfloat16) for n in (16, 8)]),
        *(np.zeros((16, 8), np.float32), []),
    ),
    "f16": (
        *(1, 32, [small(n, 32).astype(np.float16) for n in (16, 8)]),
        *(np.zeros((16, 8), np.float32), []),
    ),
    "tf32": (
        *(1, 32, [small(n, 8).astype(np.float32) for n in (16, 8)]),
        *(np.zeros((16, 8), np.float32), []),
    ),
    "transpose": (
        1,
        32,
        [small(8, 8).astype(np.int16)],
        np.zeros((8, 8), np.int16),
        [],
    ),
    "atomic": (5, 64, [], np.zeros(1, np.int32), []),
    "own_memory": (1, 8, [], np.zeros(8, np.float32), []),
}


@cache
def gpu() -> NvidiaDriver | str:
    """The driver of a GPU, or why there is none."""
    try:
        found = NvidiaDriver()
        found.properties(0)
    except DeviceError as error:
        return error.message
    return found


@pytest.fixture
def nvidia(request: pytest.FixtureRequest) -> Driver:
    found = gpu()
    if isinstance(found, str):
        (pytest.fail if request.config.getoption("--gpu") else pytest.skip)(found)
    return found


@pytest.fixture(params=["emulated", "nvidia"])
def driver(request: pytest.FixtureRequest) -> Driver:
    if request.param == "nvidia":
        return request.getfixturevalue("nvidia")
    emulated = EmulatedDriver()
    emulated.order, emulated.watch = "random", True
    return emulated


def run(driver: Driver, name: str, times: int) -> list[np.ndarray]:
    """What a kernel gives, each time."""
    blocks, threads, inputs, output, numbers = CASES[name]
    text = kernels.ALL[name]
    kernel = text.partition("define ptx_kernel void @")[2].partition("(")[0]
    stream = driver.stream(0)
    pool = Pool(driver, 0, stream)
    memory = [pool.allocate(x.nbytes) for x in (*inputs, output)]
    module = driver.load(driver.compile(text, 0), 0)
    places = tuple(InBuffer(number) for number in range(len(memory)))
    step = LaunchList(
        driver, module, [Launch(kernel, blocks, threads, (*places, *numbers))]
    )
    found = []
    for _ in range(times):
        for piece, x in zip(memory, (*inputs, output), strict=True):
            driver.upload(piece.address, x, stream)
        step.run([piece.address for piece in memory], stream)
        out = np.empty_like(output)
        driver.download(out, memory[-1].address, stream)
        driver.synchronize(stream)
        found.append(out)
    return found


def test_every_kernel_has_a_case() -> None:
    assert CASES.keys() == kernels.ALL.keys()


@pytest.mark.parametrize("name", CASES)
def test_a_kernel_gives_the_bits_of_the_emulated_device(
    driver: Driver, name: str
) -> None:
    plain, *graphs = run(driver, name, 3)
    (wanted,) = run(EmulatedDriver(), name, 1)
    assert wanted.any()
    for found in (plain, *graphs):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("name", ["bf16", "f16", "tf32"])
def test_mma_of_whole_numbers_is_exact(driver: Driver, name: str) -> None:
    a, b = (x.astype(np.float32) for x in CASES[name][2])
    np.testing.assert_array_equal(run(driver, name, 1)[0], a @ b.T)


@pytest.mark.parametrize("kind", ["op/*", "golden/*", "random/*"])
def test_programs_have_the_bits_of_a_cpu(nvidia: Driver, kind: str, full: bool) -> None:
    climb = Climb(["run"], lambda: Device(nvidia, 0, "cuda:0"))
    climb.all(islice(cases_of([kind]), 0, None, 1 if full else 100))
    assert climb.found.wrong == []
    assert climb.found.counts["run", "bits"] > 0
