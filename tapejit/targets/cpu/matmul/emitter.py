"""Where the code of a matmul is being emitted, and the elements near a place.

A `Site` is a place in a function: its builder, the pointers it knows, and instructions
on vectors of the product's lanes. It is what hooks get; for them it can load and store
elements in the matrices as their caller knows them. A `Reader` has a place in one
operand; elements at constant distances from it are displacements of one pointer. A
`ProductEmitter` cuts the work of a task; what a block of the result is computed by, its
subclasses know.

Start reading at `Site`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from typing import Any

from tapejit.targets.cpu.llvm import ir
from tapejit.targets.cpu.llvm.ir import (
    LLVMFunction,
    LLVMModule,
    Type,
    Value,
    VectorType,
)
from tapejit.targets.cpu.matmul.tiling import Gemm, Hooks, Span, Spot, Tiling
from tapejit.targets.cpu.simd import storage
from tapejit.targets.cpu.simd.storage import Floats, is_small
from tapejit.targets.cpu.simd.transpose import shuffled
from tapejit.targets.cpu.simd.vector import Splat

I1, I32, I64 = (ir.IntType(bits) for bits in (1, 32, 64))
POINTER, VOID = ir.PointerType(), ir.VoidType()
Place = tuple[tuple[Value, ...], Value, Value]  # indices of the stack, row, column
ByHeight = Callable[[Callable[[int], Value]], Value]


ZERO = ir.Literal(I64, 0)


@lru_cache(4096)
def number(value: int) -> Value:
    """A position; its text is made once."""
    return ir.Literal(I64, value) if value else ZERO


@lru_cache(256)
def vector_of(element: Type, lanes: int) -> VectorType:
    """The type of a vector; its text is made once."""
    return ir.VectorType(element, lanes)


@lru_cache(256)
def undefined(kind: Type) -> Value:
    return ir.Literal(kind, ir.Undefined)


class Site:
    """Where code is being emitted: what hooks get."""

    def __init__(self, function: LLVMFunction, tiling: Tiling, hooks: Hooks) -> None:
        self.function = function
        self.builder = hooks.enter(function)
        self.tiling = tiling
        self.hooks = hooks
        self.pointers: dict[str, Value] = {}  # of those of a, b and c that it needs
        self.element = storage.register_element(tiling.gemm.dtype)  # of sums
        self.nbytes = tiling.gemm.lane

    @property
    def table(self) -> Value:
        """For functions in which hooks are called; the others have none."""
        return self.function.args[0]

    @property
    def task(self) -> Value:
        return self.function.args[1]

    # For hooks: in the matrices as the caller knows them

    def load_a(self, spot: Spot) -> Value:
        """Elements of A as they are in memory, widened; for `Hooks.load_a` only."""
        return self.loaded("a", spot)

    def load_b(self, spot: Spot) -> Value:
        """Elements of B as they are in memory, widened; for `Hooks.load_b` only."""
        return self.loaded("b", spot)

    def loaded(self, operand: str, spot: Spot) -> Value:
        if self.tiling.is_flipped:
            operand, spot = "ba"["ab".index(operand)], spot.flipped()
        near = Reader(self, operand, spot.batch, spot.row, spot.column)
        return near.plain(0, 0, spot.along, spot.lanes)

    def store(self, spot: Spot, value: Value) -> None:
        """Store elements of C, rounded to its dtype; for `Hooks.epilogue` only."""
        if self.tiling.is_flipped:
            spot = spot.flipped()
        near = Reader(self, "c", spot.batch, spot.row, spot.column)
        near.store(0, 0, spot.along, value)

    # Instructions

    def at(
        self, pointer: Value, offset: Value | int, element: Type | None = None
    ) -> Value:
        """A pointer so many elements further."""
        if isinstance(offset, int):
            if not offset:
                return pointer
            offset = number(offset)
        element = element or self.element
        return self.builder.gep(pointer, [offset], source_etype=element)

    def times(self, value: Value, factor: int) -> Value:
        return value if factor == 1 else self.builder.mul(value, number(factor))

    def plus(self, value: Value, more: int) -> Value:
        return self.builder.add(value, number(more)) if more else value

    def sum(self, x: Value, y: Value) -> Value:
        if x is ZERO or y is ZERO:
            return x if y is ZERO else y
        return self.builder.add(x, y)

    def smaller(self, x: Value, y: Value) -> Value:
        return self.builder.select(self.builder.icmp_signed("<", x, y), x, y)

    def zeros(self, lanes: int) -> Value:
        kind = vector_of(self.element, lanes)
        return Splat(kind, ir.Literal(self.element, 0.0))

    def shuffled(self, x: Value, y: Value, lanes: Sequence[int]) -> Value:
        return shuffled(self.builder, x, y, lanes)

    def widened(self, value: Value, lanes: int) -> Value:
        """The same lanes and zeros after them."""
        count = value.type.count
        if count == lanes:
            return value
        # Any lane of the second operand is a zero.
        wanted = [min(lane, count) for lane in range(lanes)]
        return self.shuffled(value, self.zeros(count), wanted)

    def first_lanes(self, value: Value, lanes: int) -> Value:
        if value.type.count == lanes:
            return value
        return self.shuffled(value, undefined(value.type), range(lanes))

    def folded(self, values: Sequence[Value]) -> Value:
        """The sum of all lanes of some vectors, as a tree, in a vector of one lane."""
        parts, b = list(values), self.builder
        while len(parts) > 1:
            half = len(parts) // 2
            pairs = zip(parts[:half], parts[half:], strict=True)
            parts = [b.fadd(x, y) for x, y in pairs]
        (total,) = parts
        width = total.type.count
        while width > 1:
            width //= 2
            low, high = range(width), range(width, 2 * width)
            total = b.fadd(
                self.shuffled(total, total, low), self.shuffled(total, total, high)
            )
        return total

    def spread(self, value: Value, lanes: int) -> Value:
        """The number of a vector of one lane in every lane."""
        return self.shuffled(value, undefined(value.type), (0,) * lanes)

    def fma(self, x: Value, y: Value, z: Value) -> Value:
        name = f"llvm.fma.v{x.type.count}f{8 * self.nbytes}"
        return self.builder.intrinsic(name, x.type, [x, y, z])

    def load(self, pointer: Value, lanes: int, align: int = 0) -> Value:
        """Lanes of a sum's format."""
        kind = vector_of(self.element, lanes)
        return self.builder.load(pointer, align=align or self.nbytes, typ=kind)

    def prefetch(self, place: Value) -> None:
        """Ask for the line of an element; any address will do."""
        how = [ir.Literal(I32, x) for x in (0, 3, 1)]  # to read, to L1, data
        self.builder.intrinsic("llvm.prefetch.p0", VOID, [place, *how])

    def scratch(self, count: int) -> Value:
        """Memory of this call for so many lanes."""
        with self.builder.goto_entry_block():
            found = self.builder.alloca(ir.ArrayType(self.element, count))
            found.align = 64
            found.type = POINTER  # whose elements are told at each use
        return found

    def share(self, index: Value, total: int, parts: int) -> Span:
        """Where one of equal parts begins and ends."""
        if parts == 1:
            return number(0), number(total)
        ends = [
            self.builder.udiv(self.times(x, total), number(parts))
            for x in (index, self.plus(index, 1))
        ]
        return ends[0], ends[1]

    def indices(self, flat: Value, sizes: Sequence[int]) -> tuple[Value, ...]:
        """The place of an element in an array of these sizes, from its number."""
        found: list[Value] = []
        for at in range(len(sizes) - 1, -1, -1):
            if at == 0:
                found.append(flat)
            elif sizes[at] == 1:
                found.append(number(0))
            else:
                found.append(self.builder.urem(flat, number(sizes[at])))
                flat = self.builder.udiv(flat, number(sizes[at]))
        return tuple(reversed(found))

    def loop(
        self,
        low: Value,
        high: Value,
        stride: int,
        body: Callable[..., Sequence[Value] | None],
        carried: Sequence[Value] = (),
    ) -> list[Value]:
        """for (i = low; i < high; i += stride): body(i, *values) gives the next values.

        `carried` are the first ones; those after the last iteration are returned.
        """
        b = self.builder
        before = b.block
        head = self.function.append_basic_block("loop")
        after = self.function.append_basic_block("after")
        b.cbranch(b.icmp_signed("<", low, high), head, after)
        b.position_at_end(head)
        index = b.phi(I64)
        index.add_incoming(low, before)
        values = [b.phi(x.type) for x in carried]
        for phi, x in zip(values, carried, strict=True):
            phi.add_incoming(x, before)
        made = list(body(index, *values) or ())
        following = b.add(index, number(stride))
        index.add_incoming(following, b.block)
        for phi, x in zip(values, made, strict=True):
            phi.add_incoming(x, b.block)
        last = b.block
        b.cbranch(b.icmp_signed("<", following, high), head, after)
        b.position_at_end(after)
        results = [b.phi(x.type) for x in carried]
        for phi, x, y in zip(results, carried, made, strict=True):
            phi.add_incoming(x, before)
            phi.add_incoming(y, last)
        return [*results]


class Reader:
    """Elements of an operand near a place; distances from it are constants."""

    def __init__(
        self,
        site: Site,
        operand: str,
        batch: tuple[Value, ...],
        row: Value,
        column: Value,
    ) -> None:
        self.site, self.operand = site, operand
        self.batch, self.row, self.column = batch, row, column
        gemm = site.tiling.gemm
        self.strides = getattr(gemm, operand)
        self.memory = storage.memory_type(gemm.dtype)

    @cached_property
    def origin(self) -> Value:
        """A pointer to the place."""
        site, found = self.site, self.site.pointers[self.operand]
        # Those of functions that are given the place itself have no batch.
        axes = site.tiling.gemm.batch if self.batch else ()
        steps = [getattr(axis, self.operand) for axis in axes]
        for index, step in zip(
            (*self.batch, self.row, self.column), (*steps, *self.strides), strict=True
        ):
            if step and index is not ZERO:
                found = site.at(found, site.times(index, step), self.memory)
        return found

    def place(self, row: int, column: int) -> Value:
        """A pointer to an element."""
        offset = row * self.strides.row + column * self.strides.column
        return self.site.at(self.origin, offset, self.memory)

    def load(self, row: int, column: int, along: str, lanes: int) -> Value:
        """Elements, or what a hook makes of them."""
        site = self.site
        hooks = site.hooks.flipped() if site.tiling.is_flipped else site.hooks
        hook = hooks.load_a if self.operand == "a" else hooks.load_b
        if hook is None:
            return self.plain(row, column, along, lanes)
        return hook(site, self.spot(row, column, along, lanes))

    def spot(self, row: int, column: int, along: str, lanes: int) -> Spot:
        """A place near this one as hooks know it."""
        site = self.site
        here = site.plus(self.row, row), site.plus(self.column, column)
        spot = Spot(self.batch, *here, along, lanes)
        return spot.flipped() if site.tiling.is_flipped else spot

    def plain(self, row: int, column: int, along: str, lanes: int) -> Value:
        """Elements from memory, widened."""
        b, dtype = self.site.builder, self.site.tiling.gemm.dtype
        stride = getattr(self.strides, along)
        kind = vector_of(self.memory, lanes)
        if stride == 1 or lanes == 1:
            place = self.place(row, column)
            found = b.load(place, align=dtype.itemsize, typ=kind)
        elif stride == 0:
            place = self.place(row, column)
            one = b.load(place, align=dtype.itemsize, typ=vector_of(self.memory, 1))
            found = self.site.spread(one, lanes)
        else:
            found = ir.Literal(kind, ir.Undefined)
            for lane in range(lanes):
                step = (lane, 0) if along == "row" else (0, lane)
                place = self.place(row + step[0], column + step[1])
                one = b.load(place, align=dtype.itemsize, typ=self.memory)
                found = b.insert_element(found, one, ir.Literal(I32, lane))
        return storage.from_memory(b, found, dtype)

    def store(self, row: int, column: int, along: str, value: Value) -> None:
        """Elements to memory, rounded."""
        b, dtype = self.site.builder, self.site.tiling.gemm.dtype
        lanes = value.type.count
        if is_small(dtype):
            floats = Floats(b, dtype, lanes)
            value = storage.rounded(floats, floats.wrap(value), dtype).value
        value = storage.to_memory(b, value, dtype)
        if getattr(self.strides, along) == 1:
            b.store(value, self.place(row, column), align=dtype.itemsize)
            return
        for lane in range(lanes):
            step = (lane, 0) if along == "row" else (0, lane)
            place = self.place(row + step[0], column + step[1])
            one = b.extract_element(value, ir.Literal(I32, lane))
            b.store(one, place, align=dtype.itemsize)

    def finish(
        self, row: int, column: int, along: str, value: Value
    ) -> Sequence[Value]:
        """Elements of the result: to the epilogue, or to memory.

        What the epilogue gives back is to be added up.
        """
        epilogue = self.site.hooks.epilogue
        if epilogue is None:
            self.store(row, column, along, value)
            return ()
        spot = self.spot(row, column, along, value.type.count)
        return epilogue(self.site, spot, value) or ()


class ProductEmitter:
    """What both kinds of kernels have in common: tasks, and shared functions."""

    def __init__(
        self, module: LLVMModule, tiling: Tiling, name: str, hooks: Hooks
    ) -> None:
        self.module = module
        self.tiling = tiling
        self.name = name
        self.hooks = hooks

    @property
    def gemm(self) -> Gemm:
        return self.tiling.gemm

    def plain(
        self,
        kind: str,
        details: Sequence[Any],
        operands: Sequence[Type],
        body: Callable[..., None],
    ) -> LLVMFunction:
        """A function that nothing but its details tells from others of its kind.

        It is given places themselves: body(site, *operands).
        """
        return self.function(kind, details, operands, body, Hooks())

    def special(
        self,
        kind: str,
        details: Sequence[Any],
        hook: object,
        operands: Sequence[Type],
        body: Callable[..., None],
    ) -> LLVMFunction:
        """A function for these strides in which hooks may be called, if there is one.

        Its arguments are the table, the task, others and the indices of the stack.
        """
        gemm = self.gemm
        steps = [getattr(axis, x) for axis in gemm.batch for x in "abc"]
        about = [*details, *gemm.a, *gemm.b, *gemm.c, *steps]
        if hook is not None:
            about.append(f"{self.hooks.key or self.name}_{self.tiling.is_flipped}")

        def inside(site: Site, _: Value, __: Value, *arguments: Value) -> None:
            own = arguments[: len(operands)]
            body(site, arguments[len(operands) :], *own)

        kinds = [POINTER, I64, *operands, *[I64] * len(gemm.batch)]
        return self.function(kind, about, kinds, inside, self.hooks)

    def function(
        self,
        kind: str,
        details: Sequence[Any],
        operands: Sequence[Type],
        body: Callable[..., None],
        hooks: Hooks,
    ) -> LLVMFunction:
        """The function of a kind with such details, emitted unless it is known."""
        about = [self.gemm.dtype.name, self.tiling.width, *details]
        label = "_".join(str(x) for x in about).replace("-", "n")
        name = f"{self.module.name}_gemm_{kind}_{label}"
        made = self.module.declared(name, VOID, operands)
        if made.blocks:
            return made
        made.linkage = "internal"
        made.attributes.add("noinline")
        site = Site(made, self.tiling, hooks)
        body(site, *made.args)
        site.builder.ret_void()
        return made

    def hook_of(self, operand: str) -> Callable[..., Any] | None:
        """What is called instead of loading or storing elements."""
        hooks = self.hooks.flipped() if self.tiling.is_flipped else self.hooks
        return {"a": hooks.load_a, "b": hooks.load_b, "c": hooks.epilogue}[operand]

    def near(
        self,
        operand: str,
        others: Sequence[Type],
        kind: str,
        details: Sequence[Any],
        body: Callable[..., None],
    ) -> LLVMFunction:
        """A function on what is near a place of an operand, for `call_near`.

        body(site, near, *others), where near(row, column) is a Reader so far away.
        With hooks the function knows where it is. Without, it is given a pointer, and
        products of other sizes may use it too.
        """
        hook = self.hook_of(operand)

        def anywhere(site: Site, pointer: Value, *others: Value) -> None:
            site.pointers[operand] = pointer
            body(site, lambda i, j: Reader(site, operand, (), i, j), *others)

        def known(
            site: Site,
            batch: tuple[Value, ...],
            pointer: Value,
            row: Value,
            column: Value,
            *others: Value,
        ) -> None:
            site.pointers[operand] = pointer

            def near(i: Value, j: Value) -> Reader:
                here = site.sum(row, i), site.sum(column, j)
                return Reader(site, operand, batch, *here)

            body(site, near, *others)

        if hook is None:
            about = [*details, *getattr(self.gemm, operand)]
            return self.plain(kind, about, [POINTER, *others], anywhere)
        kinds = [POINTER, I64, I64, *others]
        return self.special(kind, details, hook, kinds, known)

    def call_near(
        self,
        site: Site,
        operand: str,
        place: Place,
        others: Sequence[Value],
        near: Value,
    ) -> None:
        """Call a function on what is near a place of an operand."""
        batch, row, column = place
        if self.hook_of(operand) is None:
            start = Reader(site, operand, batch, row, column).origin
            site.builder.call(near, [start, *others])
            return
        own = [site.pointers[operand], row, column, *others]
        site.builder.call(near, [site.table, site.task, *own, *batch])

    def task(self) -> LLVMFunction:
        """The function of a task: the matrices of its group, one after the other."""
        tiling = self.tiling
        signature = ir.FunctionType(VOID, [POINTER, I64])
        function = ir.LLVMFunction(self.module, signature, self.name)
        function.linkage = "internal"
        site = Site(function, tiling, self.hooks)
        if tiling.tasks:
            pointers = self.hooks.operands(site)
            names = "bac" if tiling.is_flipped else "abc"
            site.pointers = dict(zip(names, pointers, strict=True))
            blocks = (tiling.groups, tiling.column_blocks, tiling.row_blocks)
            group, column, row = site.indices(site.task, blocks)
            tiles = site.share(row, tiling.row_parts, tiling.row_blocks)
            if tiling.unit:
                first, end = (site.times(x, tiling.rows.parts) for x in tiles)
                tiles = first, end
            panels = site.share(column, tiling.panels, tiling.column_blocks)
            first, end = site.share(group, self.gemm.matrices, tiling.groups)
            sizes = [axis.size for axis in self.gemm.batch]
            run = self.product(site, tiles, panels)

            def matrix(at: Value) -> None:
                run(site.indices(at, sizes))

            if sizes:
                site.loop(first, end, 1, matrix)
            else:
                run(())
        site.builder.ret_void()
        return function

    def product(
        self, site: Site, tiles: Span, panels: Span
    ) -> Callable[[tuple[Value, ...]], None]:
        """What emits a block of the result, for given indices of the stack."""
        raise NotImplementedError

    def each_kind_of_panel(
        self, site: Site, panels: Span, body: Callable[[Value, int], None]
    ) -> None:
        """Full panels, then the last one: body(panel, columns)."""
        tiling = self.tiling
        first, end = panels
        if tiling.full:
            last = number(tiling.full)
            high = site.smaller(end, last) if tiling.rest else end
            site.loop(first, high, 1, lambda at: body(at, tiling.columns))
        if tiling.rest:
            last = number(tiling.full)
            with site.builder.if_then(site.builder.icmp_signed(">", end, last)):
                body(last, tiling.rest)

    def each_kind_of_tile(
        self, site: Site, tiles: Span, body: Callable[[Value, Value, int], None]
    ) -> None:
        """Tiles of every height: body(tile, its first row, height)."""
        rows = self.tiling.rows
        first, end = tiles
        for height, low, high in rows.kinds():
            b = site.builder
            begin, stop = first, end
            if low:
                is_later = b.icmp_signed(">", first, number(low))
                begin = b.select(is_later, first, number(low))
            if high < rows.parts:
                stop = site.smaller(end, number(high))
            extra = 0 if height > rows.short else rows.tall

            def one(at: Value, height: int = height, extra: int = extra) -> None:
                body(at, site.plus(site.times(at, height), extra), height)

            site.loop(begin, stop, 1, one)

    def each_tile(
        self, site: Site, tiles: Span, body: Callable[[Value, Value, ByHeight], None]
    ) -> None:
        """Tiles of every height in one loop: body(tile, its first row, by_height).

        by_height(what) is what(height) for that of the tile, chosen when code runs: one
        loop is less to compile than two.
        """
        tiling, rows, b = self.tiling, self.tiling.rows, site.builder

        def one(at: Value) -> None:
            start: Value = ZERO
            place = at
            if tiling.units > 1:
                unit, place = site.indices(at, (tiling.units, rows.parts))
                start = site.times(unit, tiling.unit)
            row = site.times(place, rows.short)
            if not rows.tall:
                body(at, site.sum(start, row), lambda what: what(rows.short))
                return
            is_tall = b.icmp_signed("<", place, number(rows.tall))
            before = b.select(is_tall, place, number(rows.tall))

            def by_height(what: Callable[[int], Value]) -> Value:
                tall, short = what(rows.short + 1), what(rows.short)
                return tall if tall is short else b.select(is_tall, tall, short)

            body(at, site.sum(start, b.add(row, before)), by_height)

        site.loop(*tiles, 1, one)
