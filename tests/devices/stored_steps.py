"""A program: a step on a device of its own, and what was asked of its driver.

It prints how often something was compiled and assembled, the values, and which modules
that write kernels were loaded. The test of the store runs it twice.
"""

import sys

import numpy as np

import tapejit as tj
from tapejit.runtime.cuda import devices
from tapejit.runtime.cuda.devices import Device
from tapejit.runtime.cuda.driver import Toolchain
from tapejit.runtime.cuda.emulated import EmulatedDriver
from tapejit.runtime.cuda.recording import RecordingDriver

MARK = b"\x7fELF"


class AssemblingDriver(EmulatedDriver):
    """One that runs what it has assembled, and nothing else."""

    version = "assembler 1"

    def toolchain(self, device: int) -> Toolchain:
        return Toolchain("LLVM text", self.version)

    def assemble(self, code: bytes, device: int) -> bytes:
        return MARK + code[::-1]

    def load(self, code: bytes, device: int) -> int:
        assert code.startswith(MARK)
        return super().load(code[len(MARK) :][::-1], device)


def device_of(driver: EmulatedDriver) -> tuple[Device, list[str]]:
    """A device that nobody has used, and the log of its driver."""
    recording = RecordingDriver(driver)
    return Device(recording, 0, "emulated"), recording.log


def counts(log: list[str]) -> tuple[int, int]:
    """How often something was compiled, and assembled."""
    words = [line.split()[0] for line in log]
    return words.count("compile"), words.count("assemble")


if __name__ == "__main__":
    tj.config.update(cuda="emulated")
    device, log = device_of(AssemblingDriver())
    devices._DEVICES["emulated", 0] = device
    table = np.arange(12, dtype=np.float32).reshape(4, 3)
    with tj.device("cuda:0"):
        w = tj.Variable([1.0, 2.0, 3.0])
        rows = tj.asarray([0, 2])

    @tj.function
    def step(x: tj.Tensor) -> tj.Tensor:
        w.assign_sub(0.5 * x)
        return tj.sum(
            tj.take(w * tj.asarray(table, device="cuda:0"), rows, axis=0)
        ) + tj.sum(x)

    x = tj.asarray([1.0, 0.0, 2.0], device="cuda:0")
    found = [float(step(x)) for _ in range(2)]
    print(*counts(log))
    print(found, np.asarray(w).tolist())
    writers = ("tapejit.targets.cuda.simt", "tapejit.loops.nests")
    print(*[name for name in writers if name in sys.modules])
