"""Products inside of loops: for the rows of one tile at a time.

Such a product is a function like that of a whole product, `gemm_micro` makes it. It is
called in the loop with a table of its own: where the rows of this tile are, and for a
sum whether this is the first tile.

Start reading at `emit_row_product`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from llvmlite import ir

from tapejit.codegen import lanes
from tapejit.codegen.cursor import I64, POINTER, Place, number
from tapejit.codegen.gemm import (
    Gemm,
    Hooks,
    Spot,
    Strides,
    Tiling,
    host_registers,
    tiling_of,
)
from tapejit.codegen.gemm_micro import emit_panels, emit_tiling
from tapejit.codegen.gemm_site import Reader
from tapejit.codegen.products import aligned_strides
from tapejit.passes.fusion.index import Affine, strides_of
from tapejit.passes.fusion.rows import Along
from tapejit.passes.fusion.steps import Step

if TYPE_CHECKING:
    from tapejit.codegen.loops import KernelEmitter


class Preparation(NamedTuple):
    """A function to be called before a kernel, with its table, once for each task."""

    function: Any
    places: tuple[Place, ...]
    tasks: int


class Operand:
    """A matrix of one tile: where it begins, and how far its elements are apart."""

    def __init__(self, pointer: Any, strides: Strides) -> None:
        self.pointer = pointer
        self.strides = strides


def emit_row_product(at: KernelEmitter, step: Step, rows: int) -> Any:
    """A product for the `rows` of the current tile; the function that computes it."""
    node, along = step.node, step.attrs["along"]
    assert node is not None
    shape = tuple(map(int, node.shape))
    m, n, k = shape[-2], shape[-1], int(node.inputs[0].shape[-1])
    is_sum = along.kind == "sum"
    a = operand(at, step, 0, along, row=1 if is_sum else 0)
    b = operand(at, step, 1, along, row=0 if is_sum else None)
    c = result(at, step, along)
    m, k = (m, rows) if is_sum else (rows, k)
    gemm = Gemm(m, n, k, step.dtype, a.strides, b.strides, c.strides)
    hooks = Hooks(epilogue=added if is_sum else None, key="added" if is_sum else "")
    tiling = tiling_of(gemm, host_registers(), hooks)
    name = f"{at.function.name}_p{step.number}"
    known = at.function.module.globals.get(name)
    if is_worth_packing(at, step, tiling, rows):
        tiling = replace(tiling, is_ready=True)
        b.pointer = packed(at, step, tiling, is_new=known is None)
    if known is None:
        made = emit_tiling(at.function.module, tiling, name, hooks)
        known, tasks = made.function, made.tasks
        known.tasks = tasks
    with at.at_entry():
        table = at.builder.alloca(ir.ArrayType(POINTER, 4))
        table.type = POINTER
    origin = at.origins[along.axes[-1]]
    first = at.builder.icmp_signed("==", origin, number(0))
    flag = at.builder.inttoptr(at.builder.zext(first, I64), POINTER)
    for place, value in enumerate((a.pointer, b.pointer, c.pointer, flag)):
        where = at.builder.gep(table, [number(place)], source_etype=POINTER)
        at.builder.store(value, where)
    at.for_range(
        number(0),
        number(known.tasks),
        1,
        lambda task: at.builder.call(known, [table, task]),
    )
    return known


def is_worth_packing(at: KernelEmitter, step: Step, tiling: Tiling, rows: int) -> bool:
    """Whether all tiles of rows can use the same panels of the right operand."""
    assert step.node is not None
    along, (base, _, strides) = step.attrs["along"], step.attrs["views"][1]
    if along.kind == "sum" or tiling.is_flipped or not tiling.packs_b:
        return False
    if isinstance(base, Step):
        is_there = at.plan.kernel_of[base] is not at.kernel
    else:
        is_there = base.kind != "constant"
    shape = tuple(map(int, step.node.inputs[1].shape))
    own = aligned_strides(shape, strides, len(step.node.shape) - 2)
    tiles = math.prod(axis.size for axis in along.axes) // rows
    return is_there and not any(own[:-2]) and tiles > 1


def packed(at: KernelEmitter, step: Step, tiling: Tiling, is_new: bool) -> Any:
    """A pointer to the panels of the right operand, packed before the kernel runs."""
    base, offset, _ = step.attrs["views"][1]
    if is_new:
        at.ready[step] = Place(at.layout.arena, at.plan.room_for(tiling.packed))
        source = at.place_of_memory(
            at.plan.storage[base] if isinstance(base, Step) else base
        )
        first = source._replace(offset=source.offset + offset * base.dtype.itemsize)
        function = emit_panels(at.function.module, tiling)
        places = (first, first, at.ready[step])
        at.preparations.append(Preparation(function, places, tiling.panels))
    return at.at_place(at.ready[step])


def added(site: Any, spot: Spot, value: Any) -> None:
    """Add elements to those that earlier tiles have left."""
    b = site.builder
    where = b.gep(site.table, [number(3)], source_etype=POINTER)
    flag = b.ptrtoint(b.load(where, typ=POINTER), I64)
    is_first = b.icmp_signed("!=", flag, number(0))
    here = spot.flipped() if site.tiling.is_flipped else spot
    near = Reader(site, "c", here.batch, here.row, here.column)
    old = near.plain(0, 0, here.along, here.lanes)
    zero = ir.Constant(old.type, None)
    site.store(spot, b.fadd(b.select(is_first, zero, old), value))


def operand(
    at: KernelEmitter, step: Step, which: int, along: Along, row: int | None
) -> Operand:
    """An operand of a tile; `row` says which of its last axes is that of rows."""
    assert step.node is not None
    base, offset, strides = step.attrs["views"][which]
    if isinstance(base, Step):
        memory = at.plan.storage[base]
        if memory.kernel is not None:  # it holds just this tile
            return private(at, memory, along, is_swapped=row == 1)
        start = at.pointer_to(memory)
    else:
        start = at.buffer(base)
    front = len(step.node.shape) - 2
    shape = tuple(map(int, step.node.inputs[which].shape))
    own = aligned_strides(shape, strides, front)
    place = stack_place(at, step, own, along)
    if row is not None:
        origin = at.origins[along.axes[-1]]
        place = at.builder.add(place, at.builder.mul(origin, number(own[front + row])))
    place = at.builder.add(place, number(offset))
    element = lanes.memory_type(base.dtype)
    pointer = at.builder.gep(start, [place], source_etype=element)
    return Operand(pointer, Strides(*own[-2:]))


def private(at: KernelEmitter, memory: Any, along: Along, is_swapped: bool) -> Operand:
    """A matrix that is memory of the tile."""
    row = along.axes[-1]
    (column,) = [axis for axis in memory.strides if axis is not row]
    strides = Strides(memory.strides[row], memory.strides[column])
    if is_swapped:
        strides = Strides(strides.column, strides.row)
    return Operand(at.pointer_to(memory), strides)


def result(at: KernelEmitter, step: Step, along: Along) -> Operand:
    """Where the result of a tile goes."""
    assert step.node is not None
    memory = at.plan.storage[step]
    if memory.kernel is not None:
        return private(at, memory, along, is_swapped=False)
    shape = tuple(map(int, step.node.shape))
    own = strides_of(shape)
    place = stack_place(at, step, own, along)
    if along.kind != "sum":
        origin = at.origins[along.axes[-1]]
        place = at.builder.add(place, at.builder.mul(origin, number(own[-2])))
    element = lanes.memory_type(step.dtype)
    pointer = at.builder.gep(at.pointer_to(memory), [place], source_etype=element)
    return Operand(pointer, Strides(*own[-2:]))


def stack_place(
    at: KernelEmitter, step: Step, strides: tuple[int, ...], along: Along
) -> Any:
    """How far the matrix of this iteration is from the first one of a stack."""
    assert step.node is not None
    stack = iter(along.axes[:-1])
    terms = [
        (next(stack), strides[at])
        for at, size in enumerate(step.node.shape[:-2])
        if size != 1
    ]
    return at.scalar(Affine(tuple((axis, f) for axis, f in terms if f)))
