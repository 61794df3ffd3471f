"""The devices in use: each with its driver, its stream and its pool of memory.

A `Device` is made when somebody asks for it for the first time, and stays. All its work
is on one stream, so it happens in the order in which it is asked for. A device that is
not there is an error that says what is missing.

Start reading at `device`.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import RLock
from typing import Any, Final

import numpy as np

from tapejit.base.config import config
from tapejit.runtime.cuda.driver import DeviceError, Driver, driver
from tapejit.runtime.cuda.memory import MEGABYTE, Pool

Array = np.ndarray[Any, Any]

MOST_SENT: Final = 4096  # uploads of which it is not known that they are over


class Device:
    """A device that is in use.

    `lock` is held by who puts something on the stream, so that the steps of what one
    thread asks for stay together.

    >>> with config.override(cuda="emulated"):
    ...     device(0)
    Device('cuda:0', 'emulated')
    """

    def __init__(self, driver: Driver, number: int, kind: str) -> None:
        self.driver, self.number, self.kind = driver, number, kind
        self.stream = driver.stream(number)
        limit = config.device_memory
        self.pool = Pool(driver, number, self.stream, limit * MEGABYTE or None)
        self.lock = RLock()
        self._sent: list[object] = []  # what may not have been read yet
        # What is to be done when all is over: it may raise what kernels have noted.
        self.when_over: list[Callable[[], None]] = []

    @property
    def name(self) -> str:
        """As users call it."""
        return f"cuda:{self.number}"

    def send(self, address: int, array: Array) -> None:
        """Copy a contiguous array, which nobody changes, to the device."""
        with self.lock:
            if len(self._sent) >= MOST_SENT:
                self.synchronize()
            self.keep(array)
            self.driver.upload(address, array, self.stream)

    def keep(self, thing: object) -> None:
        """Keep something alive until all is done that was asked for."""
        self._sent.append(thing)

    def fetch(self, array: Array, address: int) -> None:
        """Copy from the device into a contiguous array, and wait for it."""
        with self.lock:
            self.driver.download(array, address, self.stream)
            self.synchronize()

    def synchronize(self) -> None:
        """Wait until all is done that was asked for."""
        with self.lock:
            self.driver.synchronize(self.stream)
            self._sent.clear()
            for look in self.when_over:
                look()

    def __repr__(self) -> str:
        return f"Device({self.name!r}, {self.driver.properties(self.number).name!r})"


_DEVICES: Final[dict[tuple[str, int], Device]] = {}
_making: Final = RLock()


def device(number: int) -> Device:
    """The device of a number; DeviceError if it is not there.

    >>> with config.override(cuda="emulated"):
    ...     try:
    ...         device(1)
    ...     except DeviceError as error:
    ...         print(error.message)
    there is no cuda:1: 1 device is there, counted from 0
    """
    key = (config.cuda, number)
    found = _DEVICES.get(key)
    if found is None:
        with _making:
            found = _DEVICES.get(key)
            if found is None:
                found = _DEVICES[key] = _new_device(*key)
    return found


def _new_device(kind: str, number: int) -> Device:
    found = driver()
    count = found.device_count()
    if number >= count:
        are = "device is" if count == 1 else "devices are"
        raise DeviceError(
            f"there is no cuda:{number}: {count} {are} there, counted from 0",
            help="tj.devices() lists them; TAPEJIT_CUDA=emulated runs kernels on this "
            "processor, as cuda:0",
        )
    return Device(found, number, kind)


def device_count() -> int:
    """How many devices there are; 0 where the driver or its binding is missing."""
    try:
        return driver().device_count()
    except DeviceError:
        return 0
