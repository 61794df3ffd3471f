"""The recording driver: it writes down what is asked of another one.

Two runs of a program that ask the same have equal logs: handles and addresses are named
by the order in which they were first given out.

Start reading at `RecordingDriver`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tapejit.runtime.cuda.driver import Argument, Driver, Properties, Toolchain

if TYPE_CHECKING:
    from tapejit.targets.cuda.ptx import KernelUsage

Array = np.ndarray[Any, Any]


class RecordingDriver:
    """A driver whose `log` has a line for each call that does something.

    >>> from tapejit.runtime.cuda.emulated import EmulatedDriver
    >>> driver = RecordingDriver(EmulatedDriver())
    >>> stream = driver.stream(0)
    >>> address = driver.allocate(64, stream)
    >>> driver.fill(address + 4, 0, 60, stream)
    >>> driver.synchronize(stream)
    >>> print(*driver.log, sep="\\n")
    stream0: new, on device 0
    memory0: 64 bytes, on stream0
    fill memory0+4 with 0: 60 bytes, on stream0
    synchronize stream0
    """

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.log: list[str] = []
        self.names: dict[int, str] = {}  # of handles
        self.pieces: dict[int, tuple[int, str]] = {}  # by address: bytes and names
        self.counts: Counter[str] = Counter()

    def new_name(self, kind: str) -> str:
        self.counts[kind] += 1
        return f"{kind}{self.counts[kind] - 1}"

    def named(self, handle: int, kind: str, what: str) -> int:
        """Note a new handle."""
        self.names[handle] = self.new_name(kind)
        self.log.append(f"{self.names[handle]}: {what}")
        return handle

    def place(self, value: Argument) -> str:
        """An address by the memory that it is in; another number as it is."""
        for start, (nbytes, name) in self.pieces.items():
            if isinstance(value, int) and start <= value < start + nbytes:
                return f"{name}+{value - start}" if value > start else name
        return str(value)

    def device_count(self) -> int:
        return self.driver.device_count()

    def properties(self, device: int) -> Properties:
        return self.driver.properties(device)

    def stream(self, device: int) -> int:
        made = self.driver.stream(device)
        return self.named(made, "stream", f"new, on device {device}")

    @property
    def is_host(self) -> bool:
        return self.driver.is_host

    def stream_address(self, stream: int) -> int:
        return self.driver.stream_address(stream)

    def adopt(self, address: int, device: int) -> int:
        made = self.driver.adopt(address, device)
        if made not in self.names:
            self.named(made, "stream", f"adopted, on device {device}")
        return made

    def memory_bytes(self, device: int) -> tuple[int, int]:
        return self.driver.memory_bytes(device)

    def allocate(self, nbytes: int, stream: int) -> int:
        address = self.driver.allocate(nbytes, stream)
        name = self.new_name("memory")
        self.pieces[address] = nbytes, name
        self.log.append(f"{name}: {nbytes} bytes, on {self.names[stream]}")
        return address

    def free(self, address: int, stream: int) -> None:
        self.driver.free(address, stream)
        self.log.append(f"free {self.place(address)}, on {self.names[stream]}")
        self.pieces.pop(address, None)

    def upload(self, address: int, array: Array, stream: int) -> None:
        self.driver.upload(address, array, stream)
        self.move(f"upload {self.place(address)}", array.nbytes, stream)

    def download(self, array: Array, address: int, stream: int) -> None:
        self.driver.download(array, address, stream)
        self.move(f"download {self.place(address)}", array.nbytes, stream)

    def copy(self, to: int, source: int, nbytes: int, stream: int) -> None:
        self.driver.copy(to, source, nbytes, stream)
        what = f"copy {self.place(source)} to {self.place(to)}"
        self.move(what, nbytes, stream)

    def fill(self, address: int, byte: int, nbytes: int, stream: int) -> None:
        self.driver.fill(address, byte, nbytes, stream)
        self.move(f"fill {self.place(address)} with {byte}", nbytes, stream)

    def move(self, what: str, nbytes: int, stream: int) -> None:
        self.log.append(f"{what}: {nbytes} bytes, on {self.names[stream]}")

    def toolchain(self, device: int) -> Toolchain:
        return self.driver.toolchain(device)

    def compile(self, text: str, device: int) -> bytes:
        self.log.append(f"compile {len(text)} characters")
        return self.driver.compile(text, device)

    def assemble(self, code: bytes, device: int) -> bytes:
        self.log.append(f"assemble {len(code)} bytes")
        return self.driver.assemble(code, device)

    def load(self, code: bytes, device: int) -> int:
        made = self.driver.load(code, device)
        return self.named(made, "module", f"loaded, on device {device}")

    def usage(
        self, ptx: str, kernels: Sequence[str], device: int
    ) -> dict[str, KernelUsage] | None:
        return self.driver.usage(ptx, kernels, device)

    def launch(
        self,
        module: int,
        kernel: str,
        blocks: int,
        threads: int,
        arguments: Sequence[Argument],
        stream: int,
    ) -> None:
        self.driver.launch(module, kernel, blocks, threads, arguments, stream)
        given = ", ".join(map(self.place, arguments))
        where = f"{self.names[module]}, on {self.names[stream]}"
        self.log.append(f"launch {kernel}<<<{blocks}, {threads}>>>({given}) of {where}")

    def record(self, stream: int) -> int:
        made = self.driver.record(stream)
        return self.named(made, "event", f"recorded, on {self.names[stream]}")

    def wait_for(self, event: int, stream: int) -> None:
        self.driver.wait_for(event, stream)
        self.log.append(f"wait for {self.names[event]}, on {self.names[stream]}")

    def is_over(self, event: int) -> bool:
        return self.driver.is_over(event)

    def begin_graph(self, stream: int) -> None:
        self.driver.begin_graph(stream)
        self.log.append(f"begin graph, on {self.names[stream]}")

    def end_graph(self, stream: int) -> int:
        made = self.driver.end_graph(stream)
        return self.named(made, "graph", f"ended, on {self.names[stream]}")

    def launch_graph(self, graph: int, stream: int) -> None:
        self.driver.launch_graph(graph, stream)
        self.log.append(f"launch {self.names[graph]}, on {self.names[stream]}")

    def synchronize(self, stream: int) -> None:
        self.log.append(f"synchronize {self.names[stream]}")
        self.driver.synchronize(stream)

    def release(self, handle: int) -> None:
        self.driver.release(handle)
        self.log.append(f"release {self.names.pop(handle)}")
