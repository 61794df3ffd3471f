"""PTX: LLVM text becomes NVIDIA's assembly language, and that machine code of a GPU.

`to_ptx` needs nothing but llvmlite, whose LLVM has the NVPTX back end; no GPU, no
toolkit. LLVM's O1 runs before: without it Black-Scholes takes 52 registers instead of
32, with it 5 ms longer. It is told no features, so the PTX is of the oldest version
that knows the processor, as drivers refuse versions newer than theirs. LLVM writes PTX
that nothing takes for a processor it does not know, and ends the process where a
version is too old for the processor, so only those in `PROCESSORS` are asked for.

`broken_promises` looks for what would give other bits than a CPU: an operation that may
be fused with the next one, flushes small numbers to zero or approximates.

`assemble` makes machine code by nvJitLink and tells what each kernel takes of the GPU.
It needs the wheels of `tapejit[cuda-test]`, but no GPU.

Start reading at `to_ptx`.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any, Final, NamedTuple

from tapejit.base.errors import ArgumentError, UnsupportedError

TRIPLE: Final = "nvptx64-nvidia-cuda"

# LLVM's name of a processor, its compute capability, and the version of PTX that LLVM
# writes for it.
PROCESSORS: Final[dict[str, tuple[tuple[int, int], str]]] = {
    "sm_75": ((7, 5), "6.3"),
    "sm_80": ((8, 0), "7.0"),
    "sm_86": ((8, 6), "7.1"),
    "sm_87": ((8, 7), "7.4"),
    "sm_89": ((8, 9), "7.8"),
    "sm_90": ((9, 0), "7.8"),
    "sm_100": ((10, 0), "8.6"),
    "sm_103": ((10, 3), "8.8"),
    "sm_120": ((12, 0), "8.7"),
}


def processor_for(capability: tuple[int, int]) -> str:
    """The newest processor whose PTX a device of a compute capability takes.

    >>> processor_for((8, 0)), processor_for((8, 8)), processor_for((13, 1))
    ('sm_80', 'sm_87', 'sm_120')
    """
    known = [name for name, (least, _) in PROCESSORS.items() if least <= capability]
    if not known:
        have, (oldest, _) = capability, next(iter(PROCESSORS.values()))
        raise UnsupportedError(
            f"the device has compute capability {have[0]}.{have[1]}, and code is made "
            f"from {oldest[0]}.{oldest[1]} on",
            help="use a newer device, or the CPU",
        )
    return known[-1]


def to_ptx(text: str, processor: str) -> str:
    """The PTX of a module.

    >>> ptx = to_ptx("define ptx_kernel void @nothing() { ret void }", "sm_80")
    >>> ".version 7.0" in ptx, ".entry nothing" in ptx
    (True, True)
    """
    from llvmlite import binding

    machine = target_machine(processor)
    module = binding.parse_assembly(text)
    module.triple = TRIPLE
    module.data_layout = str(machine.target_data)
    module.verify()
    options = binding.create_pipeline_tuning_options(speed_level=1)
    builder = binding.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    return str(machine.emit_assembly(module))


@cache
def target_machine(processor: str) -> Any:
    """LLVM's description of a processor of `PROCESSORS`."""
    from llvmlite import binding

    if processor not in PROCESSORS:
        raise ArgumentError(
            f"no GPU is called {processor!r}", help=f"known are {', '.join(PROCESSORS)}"
        )
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    target = binding.Target.from_triple(TRIPLE)
    return target.create_target_machine(cpu=processor, opt=3)


def broken_promises(ptx: str) -> list[str]:
    """The instructions whose bits need not be those of a CPU.

    >>> broken_promises("add.rn.f32 %f1, %f2, %f3;\\nmul.f32 %f1, %f2, %f3;")
    ['mul.f32']
    """
    return sorted({x for x in INSTRUCTION.findall(ptx) if is_inexact(x)})


ROUNDING: Final = re.compile("add|sub|mul|fma|mad|div|rcp|sqrt")
INSTRUCTION: Final = re.compile(r"\b[a-z]\w*(?:\.\w+)*\.b?f(?:16|32|64)x?2?\b")


def is_inexact(instruction: str) -> bool:
    """Whether an instruction approximates, flushes, or leaves its rounding open."""
    name, *modifiers = instruction.split(".")
    is_wrong = not {"approx", "ftz", "full"}.isdisjoint(modifiers)
    return is_wrong or bool(ROUNDING.fullmatch(name) and "rn" not in modifiers)


class KernelUsage(NamedTuple):
    """What a thread of a kernel takes, and its block: registers, and bytes of memory.

    `stack_bytes` and `spilled_bytes` are memory of each thread, which is slow;
    `shared_bytes` are for the block.
    """

    registers: int
    stack_bytes: int
    spilled_bytes: int
    shared_bytes: int


class Cubin(NamedTuple):
    """Machine code for one kind of processor, and what each of its kernels takes."""

    code: bytes
    usage: dict[str, KernelUsage]


def assemble(ptx: str, processor: str) -> Cubin:
    """Machine code by nvJitLink, for a processor of `PROCESSORS`."""
    cuda = linker()
    options = cuda.LinkerOptions(arch=processor, ptxas_options=["-v"])
    made = cuda.Linker(cuda.ObjectCode.from_ptx(ptx.encode()), options=options)
    return Cubin(bytes(made.link("cubin").code), usage_in(made.get_info_log()))


def linker() -> Any:
    """`cuda.core`, where nvJitLink can be used through it."""
    try:
        import cuda.core as cuda

        if cuda.Linker.which_backend() != "nvJitLink":
            raise ImportError("nvJitLink is missing or too old")
    except ImportError as error:
        raise UnsupportedError(
            f"machine code for GPUs cannot be made: {error}",
            help="pip install 'tapejit[cuda-test]'",
        ) from None
    return cuda


def usage_in(log: str) -> dict[str, KernelUsage]:
    """What each kernel takes, as the assembler's log says it."""

    def number(pattern: str, part: str) -> int:
        found = re.search(pattern, part)
        return int(found[1]) if found else 0

    return {
        part.partition("'")[0]: KernelUsage(
            number(r"Used (\d+) registers", part),
            number(r"(\d+) bytes stack frame", part),
            number(r"(\d+) bytes spill stores", part),
            number(r"(\d+) bytes smem", part),
        )
        for part in log.split("Compiling entry function '")[1:]
    }
