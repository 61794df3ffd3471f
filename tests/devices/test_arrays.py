"""Arrays and devices: copies there and back, what is missing, and limits."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from tapejit.base.config import config
from tapejit.runtime.cuda.arrays import DeviceArray, empty, upload
from tapejit.runtime.cuda.devices import Device, device
from tapejit.runtime.cuda.driver import DeviceError, DeviceMemoryError
from tapejit.runtime.cuda.emulated import EmulatedDriver
from tapejit.runtime.cuda.memory import MEGABYTE


@pytest.fixture
def own() -> Device:
    """A device of this test alone."""
    return Device(EmulatedDriver(), 0, "emulated")


@pytest.mark.parametrize(
    "given",
    [
        np.arange(6, dtype=np.int16).reshape(2, 3),
        np.arange(6.0).reshape(2, 3).T,
        np.float32(2.5),
        np.zeros((0, 3), bool),
        np.broadcast_to(np.complex64(1j), (2, 2)),
    ],
    ids=lambda x: f"{x.dtype}{x.shape}",
)
def test_what_is_uploaded_comes_back(own: Device, given: np.ndarray) -> None:
    array = upload(given, own)
    found = array.copy().download()
    assert (found.dtype, found.shape) == (given.dtype, given.shape)
    assert (array.nbytes, array.size, array.ndim) == (
        *(given.nbytes, given.size, given.ndim),
    )
    np.testing.assert_array_equal(found, given)


def test_an_array_may_change_once_it_is_uploaded(own: Device) -> None:
    given = np.ones(3)
    array = upload(given, own)
    given[:] = 2
    np.testing.assert_array_equal(array.download(), np.ones(3))


def test_new_memory_holds_no_numbers(own: Device) -> None:
    assert np.isnan(empty((4,), np.dtype(np.float32), own).download()).all()


def test_memory_goes_back_to_the_pool(own: Device) -> None:
    array: DeviceArray | None = upload(np.ones(100, np.float32), own)
    assert own.pool.used == 400
    del array
    gc.collect()
    own.pool.give_back()
    assert own.pool.used == 0


def test_a_limit_is_a_setting() -> None:
    with config.override(device_memory=1):
        small = Device(EmulatedDriver(), 0, "emulated")
    with pytest.raises(DeviceMemoryError, match=r"cuda:0 may use 1\.0 MB"):
        upload(np.zeros(MEGABYTE + 1, np.uint8), small)


def test_a_device_is_made_once() -> None:
    with config.override(cuda="emulated"):
        assert device(0) is device(0)


def test_a_device_that_is_not_there_says_how_many_are() -> None:
    with (
        config.override(cuda="emulated"),
        pytest.raises(DeviceError, match="no cuda:3: 1 device is there") as caught,
    ):
        device(3)
    assert "TAPEJIT_CUDA=emulated" in str(caught.value)
