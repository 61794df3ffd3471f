"""Compiling a module for this machine with LLVM alone, and calling it on arrays.

The straight host: no pass over the module, code generation for the processor it runs
on, the object loaded into the process. A `Library` owns the machine code; what it hands
out keeps it alive.

`elementwise` makes a whole callable from a formula over Vectors: one loop over full
vectors. The arrays are copied into buffers that are padded to a multiple of the width,
so that any size can be given; it is for tests and measurements, not for users' arrays.

Start reading at `elementwise`.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from typing import Any, Final

import numpy as np
from llvmlite import binding

from tapejit.base.config import config
from tapejit.base.errors import ArgumentError, UnsupportedError
from tapejit.targets.cpu.llvm import ir
from tapejit.targets.cpu.machine.objects import initialise
from tapejit.targets.cpu.simd.vector import F32, F64, Builder, Format, Vector

Array = np.ndarray[Any, Any]
FORMATS = {np.dtype(np.float32): F32, np.dtype(np.float64): F64}
ALIGNMENT = 64


class Library:
    """The machine code of one module.

    >>> module = ir.LLVMModule("one")
    >>> signature = ir.FunctionType(ir.IntType(64), [])
    >>> builder = ir.IRBuilder(
    ...     ir.LLVMFunction(module, signature, "one").append_basic_block()
    ... )
    >>> _ = builder.ret(ir.Literal(ir.IntType(64), 1))
    >>> Library(module).function("one", ctypes.c_int64)()
    1
    """

    def __init__(self, module: Any) -> None:
        initialise()
        parsed = binding.parse_assembly(str(module))
        parsed.verify()
        machine = host_machine()
        parsed.triple = machine.triple
        self._engine = binding.create_mcjit_compiler(parsed, machine)
        self._engine.finalize_object()

    def function(self, name: str, result: Any, *operands: Any) -> Callable[..., Any]:
        """A function of the module, by its ctypes."""
        address = self._engine.get_function_address(name)
        if not address:
            raise ArgumentError(f"the module has no function {name!r}")
        call = ctypes.CFUNCTYPE(result, *operands)(address)
        call.library = self  # type: ignore[attr-defined]  # keeps the code alive
        return call


# What the levels of x86-64 demand beyond the one before, by LLVM's names.
LEVELS: Final = {
    "x86-64-v2": ("cx16", "popcnt", "sse4.2", "ssse3"),
    "x86-64-v3": ("avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe"),
    "x86-64-v4": ("avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl"),
}


def host_machine() -> Any:
    """LLVM's description of this processor, or of the one that the settings name.

    >>> with config.override(cpu="x86-64-v2"):
    ...     host_machine().triple == host_machine().triple
    True
    """
    initialise()
    name, features = config.cpu, ""
    if name:
        require_level(name)
        require_known(name)
    else:
        name = binding.get_host_cpu_name()
        features = binding.get_host_cpu_features().flatten()
    return binding.Target.from_default_triple().create_target_machine(
        cpu=name, features=features, opt=2, jit=True
    )


@cache
def require_known(name: str) -> None:
    """Refuse a processor that LLVM has not heard of: it would end this process.

    Another process tries it, as LLVM tells nobody which ones it knows.
    """
    if name in LEVELS or name == binding.get_host_cpu_name() or not sys.executable:
        return
    command = [sys.executable, "-c", TRIAL, name]
    tried = subprocess.run(command, capture_output=True, text=True, check=False)
    if tried.returncode or "not a recognized processor" in tried.stderr:
        raise UnsupportedError(
            f"LLVM knows no processor {name!r} of this kind",
            help="let the setting `cpu` (`TAPEJIT_CPU`) be empty, or the name of a "
            f"level: {', '.join(LEVELS)}",
        )


TRIAL: Final = """
import sys
from llvmlite import binding
binding.initialize_native_target()
binding.initialize_native_asmprinter()
target = binding.Target.from_default_triple()
module = binding.parse_assembly("define void @nothing() { ret void }")
target.create_target_machine(cpu=sys.argv[1]).emit_object(module)
"""


def require_level(name: str) -> None:
    """Refuse a level of x86-64 that this processor does not have."""
    if name not in LEVELS:
        return
    found = binding.get_host_cpu_features()
    for level, wanted in LEVELS.items():
        missing = [feature for feature in wanted if not found.get(feature)]
        if missing:
            raise UnsupportedError(
                f"code for {name!r} would not run here: there is no {missing[0]}",
                help="let the setting `cpu` (`TAPEJIT_CPU`) be empty, or a lower level",
            )
        if level == name:
            return


def loop_module(
    formula: Callable[..., Vector], arity: int, format: Format, width: int
) -> Any:
    """A module with `run(operands..., out, count)`: the formula on `count` vectors."""
    module = ir.LLVMModule("elementwise")
    pointer, count_type = ir.PointerType(), ir.IntType(64)
    signature = ir.FunctionType(ir.VoidType(), [*[pointer] * (arity + 1), count_type])
    function = ir.LLVMFunction(module, signature, "run")
    *pointers, count = function.args
    zero, lanes = ir.Literal(count_type, 0), ir.Literal(count_type, width)
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    b = Builder(builder, format, width)
    align = b.format.bits // 8
    with (
        builder.if_then(builder.icmp_signed(">", count, zero)),
        builder.loop(zero, count, 1) as index,
    ):
        # By elements: a vector of 3 is as far from the next one as a vector of 4.
        first = builder.mul(index, lanes)
        *given, out = (
            builder.gep(x, [first], source_etype=b.element) for x in pointers
        )
        loads = [b.wrap(builder.load(x, align=align, typ=b.float_type)) for x in given]
        builder.store(formula(b, *loads).value, out, align=align)
    builder.ret_void()
    return module


def aligned(size: int, dtype: Any) -> Array:
    """An uninitialised array that starts on a cache line.

    >>> aligned(3, np.float32).ctypes.data % 64
    0
    """
    wanted = np.dtype(dtype)
    room = np.empty(size * wanted.itemsize + ALIGNMENT, np.uint8)
    start = -room.ctypes.data % ALIGNMENT
    return room[start : start + size * wanted.itemsize].view(wanted)


class Elementwise:
    """A compiled formula; calling it returns a new array.

    `run` is the native loop itself, for arrays that fit it: `run(*addresses, vectors)`.
    """

    def __init__(
        self, formula: Callable[..., Vector], arity: int, dtype: Any, width: int
    ) -> None:
        self.dtype = np.dtype(dtype)
        if self.dtype not in FORMATS:
            raise ArgumentError(f"vectors are of float32 or float64, not {self.dtype}")
        self.arity, self.width = arity, width
        self.module = loop_module(formula, arity, FORMATS[self.dtype], width)
        self.run = Library(self.module).function(
            "run", None, *[ctypes.c_void_p] * (arity + 1), ctypes.c_int64
        )

    def __call__(self, *arrays: Any) -> Array:
        if len(arrays) != self.arity:
            raise ArgumentError(f"takes {self.arity} arrays, not {len(arrays)}")
        same = np.broadcast_arrays(*(np.asarray(array, self.dtype) for array in arrays))
        shape, size = same[0].shape, same[0].size
        vectors = -(-size // self.width)
        buffers = [
            aligned(vectors * self.width, self.dtype) for _ in range(len(same) + 1)
        ]
        for buffer, array in zip(buffers, same, strict=False):
            buffer[:size] = array.reshape(-1)
            buffer[size:] = 1
        self.run(*(buffer.ctypes.data for buffer in buffers), vectors)
        return buffers[-1][:size].copy().reshape(shape)


def elementwise(
    formula: Callable[..., Vector], *, arity: int = 1, dtype: Any, width: int
) -> Elementwise:
    """A formula over Vectors as a function of arrays.

    >>> root = elementwise(lambda b, x: b.sqrt(x) + 1, dtype=np.float32, width=8)
    >>> root(np.array([4.0, 9.0]))
    array([3., 4.], dtype=float32)
    """
    return Elementwise(formula, arity, dtype, width)


def value_of(formula: Callable[..., Vector], *numbers: float) -> float:
    """A formula at one point, in double.

    >>> value_of(lambda b, x, y: b.sqrt(x * x + y * y), 3.0, 4.0)
    5.0
    """
    arity = len(numbers)
    return float(elementwise(formula, arity=arity, dtype=np.float64, width=2)(*numbers))
