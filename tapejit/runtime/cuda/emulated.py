"""The emulated device: this CPU, and stricter than any GPU.

What is put on a stream is done when somebody waits for it, not before, so nothing is
right by luck. Memory has borders that are nobody's; it is full of 0xFF when it is new
and when it has been freed, which is NaN. Kernels, copies and fills must stay inside of
one piece of memory that is alive, at the moment when they run. What fails ends all that
is left on its stream.

With `watch`, or the setting `check`, races in kernels are errors; `order` is one of the
executor's orders of threads. Code is the LLVM text itself.

Start reading at `EmulatedDriver.synchronize`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import numpy as np

from tapejit.base.config import config
from tapejit.base.errors import ArgumentError
from tapejit.runtime.cuda.driver import (
    Argument,
    DeviceError,
    DeviceMemoryError,
    Properties,
    Toolchain,
    flat_bytes,
)
from tapejit.runtime.cuda.executor import Executor

if TYPE_CHECKING:
    from tapejit.targets.cuda.ptx import KernelUsage

Array = np.ndarray[Any, Any]
Work = Callable[[], None]
Thing = TypeVar("Thing")

BORDER: Final = 256  # bytes on each side of memory; addresses are multiples of it
POISON: Final = 0xFF
MEMORY: Final = 1 << 32
KEPT: Final = 16  # pieces of memory that were freed last, whose addresses are not alive


@dataclass
class Stream:
    """What is to be done, in order, and what becomes a graph instead."""

    work: deque[Work] = field(default_factory=deque)
    graph: list[Work] | None = None


@dataclass
class Event:
    """A point of a stream."""

    stream: int
    is_over: bool = False


class EmulatedDriver:
    """A driver with one device, on this CPU.

    >>> driver = EmulatedDriver()
    >>> stream = driver.stream(0)
    >>> address = driver.allocate(4, stream)
    >>> found = np.zeros(1, np.float32)
    >>> driver.download(found, address, stream)
    >>> driver.synchronize(stream)
    >>> found
    array([nan], dtype=float32)
    """

    def __init__(self, size: int = MEMORY) -> None:
        self.size = size
        self.pieces: dict[int, Array] = {}  # what is alive, by address
        self.freed: deque[Array] = deque(maxlen=KEPT)  # nobody gets it for a while
        self.numbers = count(1)
        self.streams: dict[int, Stream] = {}
        self.modules: dict[int, Executor] = {}
        self.events: dict[int, Event] = {}
        self.graphs: dict[int, list[Work]] = {}
        self.order = "up"
        self.watch: bool | None = None  # None: as the setting `check` says

    def device_count(self) -> int:
        return 1

    def properties(self, device: int) -> Properties:
        if device:
            self.fail(f"there is no device {device}, only the emulated device 0")
        return Properties("emulated", (8, 0), 1, 1024, 65536, 49152)

    def stream(self, device: int) -> int:
        self.properties(device)
        return self.add(self.streams, Stream())

    is_host = True

    def stream_address(self, stream: int) -> int:
        self.look_up(self.streams, stream)
        return stream

    def adopt(self, address: int, device: int) -> int:
        self.look_up(self.streams, address)
        return address

    def release(self, handle: int) -> None:
        for table in (self.streams, self.modules, self.events, self.graphs):
            if table.pop(handle, None) is not None:
                return
        self.fail(f"{handle} is no stream, module, event or graph")

    # Memory

    def memory_bytes(self, device: int) -> tuple[int, int]:
        self.properties(device)
        return self.size - sum(x.nbytes for x in self.pieces.values()), self.size

    def allocate(self, nbytes: int, stream: int) -> int:
        self.must_not_be_in_graph(stream)
        free, total = self.memory_bytes(0)
        if nbytes > free:
            raise DeviceMemoryError(
                f"{nbytes} bytes are asked for, and of {total} on the emulated device "
                f"{free} are free"
            )
        room = np.full(nbytes + 3 * BORDER, POISON, np.uint8)
        start = BORDER + -room.ctypes.data % BORDER
        piece = room[start : start + nbytes]
        self.pieces[piece.ctypes.data] = piece
        return piece.ctypes.data

    def free(self, address: int, stream: int) -> None:
        self.must_not_be_in_graph(stream)

        def work() -> None:
            if address not in self.pieces:
                self.fail(f"what begins at {address:#x} is freed, and not alive")
            self.freed.append(self.pieces.pop(address))
            self.freed[-1].fill(POISON)

        self.put(stream, work)

    def memory_at(self, address: int, nbytes: int) -> Array:
        """Memory that is alive."""
        for start, piece in self.pieces.items():
            if start <= address and address + nbytes <= start + piece.nbytes:
                return piece[address - start :][:nbytes]
        raise DeviceError(
            f"illegal address: not all of {nbytes} bytes at {address:#x} are alive"
        )

    def upload(self, address: int, array: Array, stream: int) -> None:
        given = flat_bytes(array)
        self.put(
            stream, lambda: np.copyto(self.memory_at(address, given.nbytes), given)
        )

    def download(self, array: Array, address: int, stream: int) -> None:
        into = flat_bytes(array)
        self.put(stream, lambda: np.copyto(into, self.memory_at(address, into.nbytes)))

    def copy(self, to: int, source: int, nbytes: int, stream: int) -> None:
        def work() -> None:
            np.copyto(self.memory_at(to, nbytes), self.memory_at(source, nbytes))

        self.put(stream, work)

    def fill(self, address: int, byte: int, nbytes: int, stream: int) -> None:
        self.put(stream, lambda: self.memory_at(address, nbytes).fill(byte))

    # Kernels

    def toolchain(self, device: int) -> Toolchain:
        return Toolchain("LLVM text", "")

    def compile(self, text: str, device: int) -> bytes:
        return text.encode()

    def assemble(self, code: bytes, device: int) -> bytes:
        self.fail("the emulated device takes LLVM text as it is")

    def load(self, code: bytes, device: int) -> int:
        self.properties(device)
        return self.add(self.modules, Executor(code.decode()))

    def usage(
        self, ptx: str, kernels: Sequence[str], device: int
    ) -> dict[str, KernelUsage] | None:
        return None

    def launch(
        self,
        module: int,
        kernel: str,
        blocks: int,
        threads: int,
        arguments: Sequence[Argument],
        stream: int,
    ) -> None:
        executor = self.look_up(self.modules, module)
        given = tuple(arguments)

        def work() -> None:
            alive = [(start, start + x.nbytes) for start, x in self.pieces.items()]
            executor.launch(
                kernel,
                blocks,
                threads,
                given,
                alive=alive,
                order=self.order,
                watch=config.check if self.watch is None else self.watch,
            )

        self.put(stream, work)

    # Order

    def put(self, stream: int, work: Work) -> None:
        """Something to be done on a stream, or in the graph that it becomes."""
        target = self.look_up(self.streams, stream)
        (target.work if target.graph is None else target.graph).append(work)

    def record(self, stream: int) -> int:
        self.must_not_be_in_graph(stream)
        event = Event(stream)
        self.put(stream, lambda: setattr(event, "is_over", True))
        return self.add(self.events, event)

    def wait_for(self, event: int, stream: int) -> None:
        self.must_not_be_in_graph(stream)
        found = self.look_up(self.events, event)

        def work() -> None:
            if not found.is_over:
                self.work_until(found)

        self.put(stream, work)

    def is_over(self, event: int) -> bool:
        return self.look_up(self.events, event).is_over

    def begin_graph(self, stream: int) -> None:
        self.must_not_be_in_graph(stream)
        self.look_up(self.streams, stream).graph = []

    def end_graph(self, stream: int) -> int:
        target = self.look_up(self.streams, stream)
        if target.graph is None:
            self.fail(f"stream {stream} becomes no graph")
        work, target.graph = target.graph, None
        return self.add(self.graphs, work)

    def launch_graph(self, graph: int, stream: int) -> None:
        for work in self.look_up(self.graphs, graph):
            self.put(stream, work)

    def synchronize(self, stream: int) -> None:
        self.must_not_be_in_graph(stream)
        work = self.look_up(self.streams, stream).work
        try:
            while work:
                work.popleft()()
        except BaseException:
            work.clear()
            raise

    def work_until(self, event: Event) -> None:
        """Do what is on a stream until an event is over."""
        work = self.look_up(self.streams, event.stream).work
        while not event.is_over:
            if not work:
                self.fail(f"an event of stream {event.stream}, which failed before it")
            work.popleft()()

    # Handles

    def add(self, table: dict[int, Thing], thing: Thing) -> int:
        number = next(self.numbers)
        table[number] = thing
        return number

    def look_up(self, table: dict[int, Thing], handle: int) -> Thing:
        if handle not in table:
            raise ArgumentError(f"{handle} is not in use for this")
        return table[handle]

    def must_not_be_in_graph(self, stream: int) -> None:
        if self.look_up(self.streams, stream).graph is not None:
            self.fail(f"stream {stream} becomes a graph, which cannot have this")

    def fail(self, message: str) -> NoReturn:
        raise DeviceError(message)
