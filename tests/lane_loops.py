"""An elementwise operation as native code on arrays, at any width, for the tests.

One module per operation and dtypes, with a loop for each width. Arrays are padded to
full vectors with ones, which every operation takes.

Start reading at `Loops`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from tapejit.base.types import DType
from tapejit.ir.node import Op
from tapejit.targets.cpu.llvm import ir
from tapejit.targets.cpu.machine.host import Library, aligned
from tapejit.targets.cpu.simd import lanes

Array = np.ndarray[Any, Any]
INDEX = ir.IntType(64)


class Loops:
    """The native loops of an operation on operands of certain dtypes."""

    def __init__(
        self,
        op: Op,
        in_dtypes: Sequence[DType],
        out_dtype: DType,
        attrs: Mapping[str, Any],
        widths: Sequence[int],
    ) -> None:
        self.in_dtypes, self.out_dtype = list(in_dtypes), out_dtype
        self.module = ir.LLVMModule("lanes")
        for width in widths:
            self._add(op, attrs, width)

    @cached_property
    def library(self) -> Library:
        """The machine code, made when it is first run."""
        return Library(self.module)

    def _add(self, op: Op, attrs: Mapping[str, Any], width: int) -> None:
        """`run<width>(operands..., out, vectors)`."""
        pointers = [ir.PointerType()] * (len(self.in_dtypes) + 1)
        signature = ir.FunctionType(ir.VoidType(), [*pointers, INDEX])
        function = ir.LLVMFunction(self.module, signature, f"run{width}")
        *places, out, count = function.args
        entry, body, done = (function.append_basic_block() for _ in range(3))
        zero, one = ir.Literal(INDEX, 0), ir.Literal(INDEX, 1)
        builder = ir.IRBuilder(entry)
        builder.cbranch(builder.icmp_signed(">", count, zero), body, done)
        builder.position_at_end(body)
        index = builder.phi(INDEX)
        index.add_incoming(zero, entry)
        first = builder.mul(index, ir.Literal(INDEX, width))

        def place(pointer: Any, dtype: DType) -> Any:
            element = lanes.memory_type(dtype)
            return builder.gep(pointer, [first], source_etype=element)

        values = []
        for pointer, dtype in zip(places, self.in_dtypes, strict=True):
            type = ir.VectorType(lanes.memory_type(dtype), width)
            read = builder.load(place(pointer, dtype), align=dtype.itemsize, typ=type)
            values.append(lanes.from_memory(builder, read, dtype))
        found = lanes.apply(
            builder, op, attrs, self.in_dtypes, self.out_dtype, values, width
        )
        assert found.type == lanes.register_type(self.out_dtype, width)
        written = lanes.to_memory(builder, found, self.out_dtype)
        builder.store(
            written, place(out, self.out_dtype), align=self.out_dtype.itemsize
        )
        following = builder.add(index, one)
        index.add_incoming(following, builder.block)
        builder.cbranch(builder.icmp_signed("<", following, count), body, done)
        builder.position_at_end(done)
        builder.ret_void()

    def __call__(self, width: int, *arrays: Array) -> Array:
        """The operation on flat arrays of one size."""
        size = arrays[0].size
        vectors = -(-size // width)
        buffers = [
            aligned(vectors * width, dtype)
            for dtype in (*self.in_dtypes, self.out_dtype)
        ]
        for buffer, array in zip(buffers, arrays, strict=False):
            buffer[:size] = array
            buffer[size:] = 1
        types = [ctypes.c_void_p] * len(buffers)
        run = self.library.function(f"run{width}", None, *types, ctypes.c_int64)
        run(*(buffer.ctypes.data for buffer in buffers), vectors)
        return buffers[-1][:size].copy()
