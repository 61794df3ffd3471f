"""Native entries to compiled code that is written by hand: it adds up its inputs."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import numpy as np
import pytest

from tapejit.base.structure import flat_structure
from tapejit.base.types import TensorType
from tapejit.runtime.native_entry import EntrySpec, make_entry, why_unavailable
from tapejit.targets.cpu.llvm import ir
from tapejit.targets.cpu.machine.host import Library
from tapejit.tensor.dispatch import TAPES, TRACE
from tapejit.tensor.tensor import Tensor

config_module = import_module("tapejit.base.config")
I64, POINTER = ir.IntType(64), ir.PointerType()
FLOATS = {4: ir.FloatType(), 8: ir.DoubleType()}
STATE = ((TAPES, ()), (TRACE, None), (config_module._context, None))


needs_native_entries = pytest.mark.skipif(
    why_unavailable(Tensor) is not None, reason="this Python has no native entries"
)


def of(shape: Sequence[int] = (), dtype: Any = np.float32) -> TensorType:
    return TensorType(np.dtype(dtype), tuple(shape))


def element_of(dtype: np.dtype[Any]) -> Any:
    """The type of an element in LLVM: floats, and integers of any size."""
    if dtype.kind == "f" and dtype.itemsize > 2:
        return FLOATS[dtype.itemsize]
    return ir.IntType(8 * dtype.itemsize)


def adding(
    inputs: int, outputs: int, size: int, dtype: Any = np.float32, failure: int = 0
) -> Any:
    """Code that sets element i of output k to the sum of the inputs' elements i.

    Output k is then made larger by k more of the first input's element. It returns
    `failure`.
    """
    element = element_of(np.dtype(dtype))
    module = ir.LLVMModule("adding")
    function = ir.LLVMFunction(module, ir.FunctionType(I64, [POINTER]), "run")
    start = function.append_basic_block()
    body, done = function.append_basic_block(), function.append_basic_block()
    b = ir.IRBuilder(start)

    def word(number: int) -> Any:
        return ir.Literal(I64, number)

    def place(slot: int, at: Any) -> Any:
        where = b.gep(function.args[0], [word(slot)], source_etype=I64)
        return b.gep(b.load(where, typ=POINTER), [at], source_etype=element)

    b.cbranch(b.icmp_signed("<", word(0), word(size)), body, done)
    b.position_at_end(body)
    at = b.phi(I64)
    at.add_incoming(word(0), start)
    add = b.add if isinstance(element, ir.IntType) else b.fadd
    values = [b.load(place(slot, at), typ=element) for slot in range(inputs)]
    total = values[0]
    for value in values[1:]:
        total = add(total, value)
    for slot in range(outputs):
        b.store(total, place(inputs + slot, at))
        total = add(total, values[0])
    following = b.add(at, word(1))
    at.add_incoming(following, body)
    b.cbranch(b.icmp_signed("<", following, word(size)), body, done)
    b.position_at_end(done)
    b.ret(word(failure))
    return Library(module).function("run", ctypes.c_int64, ctypes.c_void_p)


def address(code: Any) -> int:
    return ctypes.cast(code, ctypes.c_void_p).value or 0


def entry_of(
    code: Any, arguments: Sequence[Any], outputs: Sequence[Any], **options: Any
) -> Callable[..., Any]:
    """An entry for code; `result` "tuple" and "list" are flat ones of all outputs."""
    options.setdefault("context", STATE)
    cls = {"tuple": tuple, "list": list}.get(str(options.get("result")))
    if cls is not None:
        options["result"] = flat_structure(cls, len(outputs))
    if options.get("result") == "tensor":
        del options["result"]
    made = make_entry(
        EntrySpec(
            run=address(code),
            arguments=arguments,
            outputs=outputs,
            keeps=code,
            **options,
        ),
        Tensor,
    )
    assert made is not None
    return made


def simple(
    count: int = 2,
    shape: Sequence[int] = (2, 3),
    dtype: Any = np.float32,
    outputs: int = 1,
    **options: Any,
) -> Callable[..., Any]:
    """An entry that adds `count` arguments."""
    code = adding(count, outputs, int(np.prod(shape)), dtype)
    types = [of(shape, dtype)]
    return entry_of(code, types * count, types * outputs, **options)


def rising(shape: Sequence[int] = (2, 3), dtype: Any = np.float32) -> Any:
    return np.arange(1, 1 + int(np.prod(shape))).reshape(shape).astype(dtype)
