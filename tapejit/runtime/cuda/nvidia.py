"""NVIDIA's driver, through its maintained binding: the packages of `tapejit[cuda]`.

None of it has met a GPU; the tests run it on a library in place of the driver's, which
takes the binding's calls and keeps memory on the host.

nvJitLink makes machine code of PTX, where it is installed and not newer than the
driver. Otherwise the driver does so, when PTX is loaded, and keeps it in a store of its
own.

Memory is of the device's pool and in the order of the stream. A graph is what a stream
captures. What fails is told by the names of the driver's errors, in `EXPLAINED`.

Start reading at `NvidiaDriver`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import count
from typing import Any, Final

import numpy as np

from tapejit.base.errors import TapejitError
from tapejit.runtime.cuda.driver import (
    Argument,
    DeviceError,
    DeviceMemoryError,
    Properties,
    Toolchain,
    flat_bytes,
)
from tapejit.targets.cuda.ptx import (
    PROCESSORS,
    KernelUsage,
    assemble,
    processor_for,
    to_ptx,
)

Array = np.ndarray[Any, Any]

ELF: Final = b"\x7fELF"  # how machine code begins; PTX is text

# By the names of the driver's errors: what is missing, and what to do.
EXPLAINED: Final = {
    "NO_DEVICE": (
        "there is no GPU, or CUDA_VISIBLE_DEVICES hides it",
        "TAPEJIT_CUDA=emulated runs kernels on this processor",
    ),
    "INVALID_DEVICE": ("there is no such GPU", "devices are counted from 0"),
    "UNSUPPORTED_PTX_VERSION": (
        "NVIDIA's driver is too old for the code",
        "install a newer driver",
    ),
    "SYSTEM_DRIVER_MISMATCH": (
        "NVIDIA's driver and its library are of two versions",
        "restart the machine, or install the driver again",
    ),
    "NO_BINARY_FOR_GPU": ("the code is for another GPU", "compile it for this one"),
    "ILLEGAL_ADDRESS": (
        "a kernel has used memory that is not its own; the process can use the GPU no "
        "more",
        "run it with TAPEJIT_CUDA=emulated and TAPEJIT_CHECK=1, which tells where",
    ),
    "LAUNCH_OUT_OF_RESOURCES": (
        "a kernel takes more registers or threads than the GPU has",
        "let a block have fewer threads",
    ),
}


@contextmanager
def told() -> Iterator[None]:
    """Errors of the driver as errors that say what is missing."""
    try:
        yield
    except TapejitError:
        raise  # it is told already
    except Exception as error:
        explanation = explained(error)
        if explanation is None:
            raise
        raise explanation from error


def explained(error: Exception) -> DeviceError | DeviceMemoryError | None:
    """What to raise for an error; None if it is none of the driver's."""
    text = str(error)
    if type(error).__name__ == "DynamicLibNotFoundError":
        return DeviceError(
            "NVIDIA's driver is not installed",
            help="install it; TAPEJIT_CUDA=emulated runs kernels on this processor",
        )
    found = re.search(r"CUDA_ERROR_(\w+)", text)
    if found and found[1] in EXPLAINED:
        message, help = EXPLAINED[found[1]]
        return DeviceError(f"{message} ({found[0]})", help=help)
    if (found and found[1] == "OUT_OF_MEMORY") or "allocate memory" in text:
        return DeviceMemoryError(f"the GPU has not so much memory left ({text})")
    return DeviceError(f"the GPU fails: {text}") if found else None


def binding() -> Any:
    """`cuda.core`; DeviceError if it is not installed."""
    try:
        import cuda.core
    except ImportError as error:
        raise DeviceError(
            f"NVIDIA's binding is not installed: {error}",
            help="pip install 'tapejit[cuda]'",
        ) from None
    return cuda.core


class NvidiaDriver:
    """The GPUs of this machine."""

    def __init__(self) -> None:
        self.cuda = binding()
        self.numbers = count(1)
        # The binding's objects; for a module what finds its kernels.
        self.handles: dict[int, Any] = {}
        self.graphs: dict[int, Any] = {}  # by stream: what captures it
        self.buffers: dict[int, Any] = {}  # by address
        self.adopted: dict[tuple[int, int], int] = {}  # streams, by address and device

    @told()
    def device_count(self) -> int:
        return len(self.cuda.Device.get_all_devices())

    @told()
    def device(self, device: int) -> Any:
        """A device, which is then the one in use."""
        found = self.cuda.Device(device)
        found.set_current()
        return found

    @told()
    def properties(self, device: int) -> Properties:
        found = self.device(device)
        have = found.properties
        return Properties(
            found.name,
            tuple(found.compute_capability),
            have.multiprocessor_count,
            have.max_threads_per_multiprocessor,
            have.max_registers_per_multiprocessor,
            have.max_shared_memory_per_block,
        )

    @told()
    def stream(self, device: int) -> int:
        return self.add(self.device(device).create_stream())

    is_host = False

    @told()
    def stream_address(self, stream: int) -> int:
        return int(self.handles[stream].handle)

    @told()
    def adopt(self, address: int, device: int) -> int:
        self.device(device)
        key = address, device
        if key not in self.adopted:
            self.adopted[key] = self.add(self.cuda.Stream.from_handle(address))
        return self.adopted[key]

    # Memory

    @told()
    def memory_bytes(self, device: int) -> tuple[int, int]:
        from cuda.bindings import driver

        self.device(device)
        failure, free, total = driver.cuMemGetInfo()
        if failure:
            raise DeviceError(f"the GPU does not tell its memory: {failure.name}")
        return int(free), int(total)

    @told()
    def allocate(self, nbytes: int, stream: int) -> int:
        on = self.on(stream)
        buffer = on.device.memory_resource.allocate(nbytes, stream=on)
        address = int(buffer.handle)
        self.buffers[address] = buffer
        return address

    @told()
    def free(self, address: int, stream: int) -> None:
        self.buffers.pop(address).close(self.on(stream))

    def memory(self, address: int, nbytes: int, owner: object = None) -> Any:
        """Memory as the binding has it, on either side."""
        return self.cuda.Buffer.from_handle(address, nbytes, owner=owner)

    @told()
    def upload(self, address: int, array: Array, stream: int) -> None:
        given = flat_bytes(array)
        source = self.memory(given.ctypes.data, given.nbytes, given)
        self.memory(address, given.nbytes).copy_from(source, stream=self.target(stream))

    @told()
    def download(self, array: Array, address: int, stream: int) -> None:
        into = flat_bytes(array)
        to = self.memory(into.ctypes.data, into.nbytes, into)
        to.copy_from(self.memory(address, into.nbytes), stream=self.target(stream))

    @told()
    def copy(self, to: int, source: int, nbytes: int, stream: int) -> None:
        given = self.memory(source, nbytes)
        self.memory(to, nbytes).copy_from(given, stream=self.target(stream))

    @told()
    def fill(self, address: int, byte: int, nbytes: int, stream: int) -> None:
        self.memory(address, nbytes).fill(byte, stream=self.target(stream))

    # Kernels

    def toolchain(self, device: int) -> Toolchain:
        processor, assembler = self.processor(device), ""
        found = self.assembler(device)
        if found is not None:
            assembler = f"{found} for {processor}"
        return Toolchain(f"PTX of {processor}", assembler)

    def processor(self, device: int) -> str:
        """The newest of `ptx.PROCESSORS` whose PTX a device takes."""
        return processor_for(self.properties(device).capability)

    @told()
    def assembler(self, device: int) -> str | None:
        """nvJitLink and the driver, by their versions.

        None if nvJitLink is missing, newer than the driver, or if the device is of a
        kind of its own: then the driver assembles PTX when it is loaded.
        """
        from cuda.bindings import driver, nvjitlink

        if self.cuda.Linker.which_backend() != "nvJitLink":
            return None
        failure, number = driver.cuDriverGetVersion()
        if failure:
            raise DeviceError(f"the driver does not tell its version: {failure.name}")
        own, drivers = nvjitlink.version(), divmod(number // 10, 100)
        capability, _ = PROCESSORS[self.processor(device)]
        if own > drivers or capability != self.properties(device).capability:
            return None
        return "nvJitLink {}.{} and driver {}.{}".format(*own, *drivers)

    def compile(self, text: str, device: int) -> bytes:
        return to_ptx(text, self.processor(device)).encode()

    def assemble(self, code: bytes, device: int) -> bytes:
        return assemble(code.decode(), self.processor(device)).code

    @told()
    def load(self, code: bytes, device: int) -> int:
        self.device(device)
        make = self.cuda.ObjectCode
        is_machine_code = code.startswith(ELF)
        made = make.from_cubin(code) if is_machine_code else make.from_ptx(code)
        _ = made.handle  # it is loaded when somebody asks for it
        return self.add(cache(made.get_kernel))

    @told()
    def usage(
        self, ptx: str, kernels: Sequence[str], device: int
    ) -> dict[str, KernelUsage] | None:
        self.device(device)
        made, found = self.cuda.ObjectCode.from_ptx(ptx.encode()), {}
        for name in kernels:
            have = made.get_kernel(name).attributes
            # What is spilled is local memory, as is the stack; a driver tells no more.
            local = have.local_size_bytes
            shared = have.shared_size_bytes
            found[name] = KernelUsage(have.num_regs, local, local, shared)
        return found

    @told()
    def launch(
        self,
        module: int,
        kernel: str,
        blocks: int,
        threads: int,
        arguments: Sequence[Argument],
        stream: int,
    ) -> None:
        target, found = self.target(stream), self.handles[module](kernel)
        config = self.cuda.LaunchConfig(grid=blocks, block=threads)
        self.cuda.launch(target, config, found, *arguments)

    # Order

    def on(self, stream: int) -> Any:
        """A stream, whose device is then the one in use: threads have one each."""
        found = self.handles[stream]
        found.device.set_current()
        return found

    def target(self, stream: int) -> Any:
        """A stream, or what captures it."""
        found = self.on(stream)
        return self.graphs.get(stream) or found

    @told()
    def record(self, stream: int) -> int:
        return self.add(self.on(stream).record())

    @told()
    def wait_for(self, event: int, stream: int) -> None:
        self.on(stream).wait(self.handles[event])

    @told()
    def is_over(self, event: int) -> bool:
        return bool(self.handles[event].is_done)

    @told()
    def begin_graph(self, stream: int) -> None:
        builder = self.on(stream).create_graph_builder()
        self.graphs[stream] = builder.begin_building()

    @told()
    def end_graph(self, stream: int) -> int:
        builder = self.graphs.pop(stream).end_building()
        made = self.add(builder.complete())
        builder.close()
        return made

    @told()
    def launch_graph(self, graph: int, stream: int) -> None:
        self.handles[graph].launch(self.on(stream))

    @told()
    def synchronize(self, stream: int) -> None:
        self.on(stream).sync()

    # Handles

    def add(self, thing: object) -> int:
        number = next(self.numbers)
        self.handles[number] = thing
        return number

    def release(self, handle: int) -> None:
        del self.handles[handle]  # the binding gives back what nobody has
