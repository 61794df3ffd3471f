"""Arrays on a device: memory with a shape and a dtype, contiguous, in C's order.

Nothing is computed here: `upload` and `download` copy from and to the host, `copy` on
the device. A DeviceArray is never written to once a Tensor has it, but by a step that
has been told that it may.

Start reading at `DeviceArray`.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from tapejit.base.types import DType
from tapejit.runtime.cuda.devices import Device
from tapejit.runtime.cuda.memory import Memory
from tapejit.runtime.sentinels import DEVICE_ARRAYS

Array = np.ndarray[Any, Any]


class DeviceArray:
    """An array in the memory of a device.

    >>> from tapejit.base.config import config
    >>> from tapejit.runtime.cuda.devices import device
    >>> with config.override(cuda="emulated"):
    ...     x = upload(np.float32([[1, 2], [3, 4]]), device(0))
    >>> x
    <DeviceArray float32(2, 2) on cuda:0>
    >>> x.download()
    array([[1., 2.],
           [3., 4.]], dtype=float32)
    """

    __slots__ = ("device", "dtype", "memory", "shape")

    def __init__(
        self, memory: Memory, shape: tuple[int, ...], dtype: DType, device: Device
    ) -> None:
        self.memory = memory
        self.shape = shape
        self.dtype = dtype
        self.device = device

    @property
    def address(self) -> int:
        """Where its memory begins, on the device."""
        return self.memory.address

    @property
    def ndim(self) -> int:
        """How many axes it has."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """How many elements it has."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """How many bytes its elements have."""
        return self.size * self.dtype.itemsize

    def download(self) -> Array:
        """A copy on the host; what is on the stream is waited for."""
        found = np.empty(self.shape, self.dtype)
        if found.nbytes:
            self.device.fetch(found, self.address)
        return found

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        found = self.download()
        return found if dtype is None else found.astype(dtype, copy=False)

    def with_shape(self, shape: tuple[int, ...]) -> DeviceArray:
        """The same elements in another shape; they share memory."""
        return DeviceArray(self.memory, shape, self.dtype, self.device)

    def copy(self) -> DeviceArray:
        """A copy on the device."""
        made = empty(self.shape, self.dtype, self.device)
        if self.nbytes:
            with self.device.lock:
                driver, stream = self.device.driver, self.device.stream
                driver.copy(made.address, self.address, self.nbytes, stream)
        return made

    def __repr__(self) -> str:
        return f"<DeviceArray {self.dtype}{self.shape} on {self.device.name}>"


DEVICE_ARRAYS.add(DeviceArray)


def empty(shape: tuple[int, ...], dtype: DType, device: Device) -> DeviceArray:
    """An array with whatever is in its memory."""
    nbytes = prod(shape) * dtype.itemsize
    with device.lock:
        memory = device.pool.allocate(max(nbytes, 1))
    return DeviceArray(memory, shape, dtype, device)


def upload(array: Array | np.generic, device: Device) -> DeviceArray:
    """A copy of an array on a device."""
    given = np.array(array, order="C", subok=False)
    made = empty(given.shape, given.dtype, device)
    if given.nbytes:
        device.send(made.address, given)
    return made
