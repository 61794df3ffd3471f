"""Device memory: a pool of each device, with a limit.

A `Memory` has its piece for as long as it lives. Then it is noted, and the next
allocation gives it back to the driver, in the order of the stream: objects die
anywhere, also where no driver may be called.

Start reading at `Pool.allocate`.
"""

from __future__ import annotations

from collections import deque
from typing import Final
from weakref import ref

from tapejit.runtime.cuda.driver import DeviceMemoryError, Driver

MEGABYTE: Final = 1 << 20


class Memory:
    """A piece of device memory, lent for as long as this object lives.

    `witnesses` counts those who refer to it but do not read it as it is: who looks at
    it if a step has failed, and who will write there when nobody else has it.
    """

    __slots__ = ("__weakref__", "address", "nbytes", "witnesses")

    def __init__(self, address: int, nbytes: int) -> None:
        self.address = address
        self.nbytes = nbytes
        self.witnesses = 0


class MemoryReceipt(ref[Memory]):
    """What is to be given back when a Memory has died."""

    __slots__ = ("address", "nbytes")

    address: int
    nbytes: int


class Pool:
    """The memory of a device that one stream uses, at most `limit` bytes of it.

    Without a limit it is what the device has free when the pool is made.

    >>> from tapejit.runtime.cuda.emulated import EmulatedDriver
    >>> driver = EmulatedDriver()
    >>> pool = Pool(driver, 0, driver.stream(0), limit=100)
    >>> piece = pool.allocate(60)
    >>> try:
    ...     pool.allocate(60)
    ... except MemoryError as error:
    ...     print(error.message)
    60 bytes are asked for; cuda:0 may use 100 bytes, and 60 bytes are in use
    """

    def __init__(
        self, driver: Driver, device: int, stream: int, limit: int | None = None
    ) -> None:
        self.driver, self.device, self.stream = driver, device, stream
        self.limit = driver.memory_bytes(device)[0] if limit is None else limit
        self.used = self.peak = 0
        self._lent: set[MemoryReceipt] = set()
        self._returned: deque[MemoryReceipt] = deque()

    def allocate(self, nbytes: int) -> Memory:
        """New memory; DeviceMemoryError where the pool or the device has none."""
        self.give_back()
        if self.used + nbytes > self.limit:
            raise self.exhausted(nbytes)
        try:
            address = self.driver.allocate(nbytes, self.stream)
        except DeviceMemoryError:
            self.driver.synchronize(self.stream)  # what is freed is free only then
            try:
                address = self.driver.allocate(nbytes, self.stream)
            except DeviceMemoryError as error:
                raise self.exhausted(nbytes) from error
        made = Memory(address, nbytes)
        receipt = MemoryReceipt(made, self._returned.append)
        receipt.address, receipt.nbytes = address, nbytes
        self._lent.add(receipt)
        self.used += nbytes
        self.peak = max(self.peak, self.used)
        return made

    def give_back(self) -> None:
        """Free what has died."""
        while self._returned:
            receipt = self._returned.popleft()
            self._lent.discard(receipt)
            self.driver.free(receipt.address, self.stream)
            self.used -= receipt.nbytes

    def exhausted(self, nbytes: int) -> DeviceMemoryError:
        free, _ = self.driver.memory_bytes(self.device)
        return DeviceMemoryError(
            f"{told(nbytes)} are asked for; cuda:{self.device} may use "
            f"{told(self.limit)}, and {told(self.used)} are in use",
            help=f"the device has {told(free)} free; smaller batches need less",
        )


def told(nbytes: int) -> str:
    """A size as people say it.

    >>> told(60), told(3 << 19)
    ('60 bytes', '1.5 MB')
    """
    return f"{nbytes / MEGABYTE:.1f} MB" if nbytes >= MEGABYTE else f"{nbytes} bytes"
