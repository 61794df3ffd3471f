"""The boundary to drivers: all that the runtime knows of CUDA, in 26 calls.

`nvidia` calls NVIDIA's driver through its maintained binding, `emulated` is a device
that is strict, on this CPU, and `recording` writes down what is asked of another one.
The setting `cuda` (`TAPEJIT_CUDA`) chooses, and `driver` gives the one that is chosen.

Devices have numbers from 0 on. Streams, modules, events and graphs are numbers that a
driver gives out and that `release` takes back; an address is one of device memory. What
is put on a stream happens in order, later; `synchronize` waits for it, and raises what
failed. So arrays that are uploaded or downloaded belong to the driver until then.

Start reading at `Driver`, then `emulated.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from tapejit.base.config import config
from tapejit.base.errors import ArgumentError, TapejitError

if TYPE_CHECKING:
    from tapejit.targets.cuda.ptx import KernelUsage

Array = np.ndarray[Any, Any]
Argument = int | np.generic  # an address or a number of 64 bits, or a number of NumPy's


class DeviceError(TapejitError, RuntimeError):
    """A device, its driver or a kernel fails; the message says what is missing."""


class DeviceMemoryError(TapejitError, MemoryError):
    """There is not so much memory on a device, or in its pool."""


class Properties(NamedTuple):
    """What a device is and has."""

    name: str
    capability: tuple[int, int]
    multiprocessors: int
    threads_per_multiprocessor: int
    registers_per_multiprocessor: int
    shared_bytes_per_block: int


class Toolchain(NamedTuple):
    """What makes code for a device: all that it depends on beside what it is given.

    Who has no `assembler` has nothing to assemble.
    """

    compiler: str
    assembler: str


class Driver(Protocol):
    """What runs kernels."""

    def device_count(self) -> int:
        """How many devices there are."""

    def properties(self, device: int) -> Properties:
        """What a device is."""

    def stream(self, device: int) -> int:
        """A new stream of a device."""

    @property
    def is_host(self) -> bool:
        """Whether memory of its devices is that of the CPU."""

    def stream_address(self, stream: int) -> int:
        """What other libraries call a stream."""

    def adopt(self, address: int, device: int) -> int:
        """The stream of another library, by its address; it stays theirs."""

    def memory_bytes(self, device: int) -> tuple[int, int]:
        """How many bytes of memory are free on a device, and how many it has."""

    def allocate(self, nbytes: int, stream: int) -> int:
        """The address of new memory; DeviceMemoryError if there is none."""

    def free(self, address: int, stream: int) -> None:
        """Give memory back when the stream has come so far."""

    def upload(self, address: int, array: Array, stream: int) -> None:
        """Copy a contiguous array to the device."""

    def download(self, array: Array, address: int, stream: int) -> None:
        """Copy from the device into a contiguous array."""

    def copy(self, to: int, source: int, nbytes: int, stream: int) -> None:
        """Copy on the device."""

    def fill(self, address: int, byte: int, nbytes: int, stream: int) -> None:
        """Set each byte of some memory."""

    def toolchain(self, device: int) -> Toolchain:
        """What `compile` and `assemble` depend on, beside what they are given."""

    def compile(self, text: str, device: int) -> bytes:
        """PTX, or what stands for it, of LLVM text; worth keeping."""

    def assemble(self, code: bytes, device: int) -> bytes:
        """Machine code of what `compile` has given; worth keeping."""

    def load(self, code: bytes, device: int) -> int:
        """A module, whose kernels can be launched, of either."""

    def usage(
        self, ptx: str, kernels: Sequence[str], device: int
    ) -> dict[str, KernelUsage] | None:
        """What kernels take of a device, by name; None if it cannot tell."""

    def launch(
        self,
        module: int,
        kernel: str,
        blocks: int,
        threads: int,
        arguments: Sequence[Argument],
        stream: int,
    ) -> None:
        """Run a kernel in so many blocks of threads."""

    def record(self, stream: int) -> int:
        """An event: it is over when all is that is on the stream now."""

    def wait_for(self, event: int, stream: int) -> None:
        """Let what comes on a stream begin after an event."""

    def is_over(self, event: int) -> bool:
        """Whether an event is over; it is not waited for."""

    def begin_graph(self, stream: int) -> None:
        """Do not do what comes on the stream: it becomes a graph."""

    def end_graph(self, stream: int) -> int:
        """The graph of what came on the stream since `begin_graph`."""

    def launch_graph(self, graph: int, stream: int) -> None:
        """Do all of a graph."""

    def synchronize(self, stream: int) -> None:
        """Wait until all is done that is on a stream, and raise what failed."""

    def release(self, handle: int) -> None:
        """A stream, module, event or graph is not needed any more."""


def flat_bytes(array: Array) -> Array:
    """The bytes of a contiguous array, which share its memory.

    >>> flat_bytes(np.ones((2, 2), np.int16)).shape
    (8,)
    """
    if not array.flags.c_contiguous:
        raise ArgumentError("only contiguous arrays are copied to and from devices")
    return array.reshape(-1).view(np.uint8)


def driver() -> Driver:
    """The driver that the settings ask for; always the same one.

    >>> with config.override(cuda="emulated"):
    ...     driver().properties(0).name
    'emulated'
    """
    return _driver(config.cuda)


@cache
def _driver(kind: str) -> Driver:
    if kind == "emulated":
        from tapejit.runtime.cuda.emulated import EmulatedDriver

        return EmulatedDriver()
    from tapejit.runtime.cuda.nvidia import NvidiaDriver

    return NvidiaDriver()
