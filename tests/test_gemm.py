"""Generated products of matrices: the right numbers, the same bits however cut up."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from agreement import SUM, Truth, assert_agrees
from elsewhere import in_threads
from gemm_code import emit_product
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from limits import set_limits
from llvmlite import binding

from tapejit.base.errors import ArgumentError
from tapejit.targets.cpu.llvm import ir
from tapejit.targets.cpu.machine.module_chunks import Pieces
from tapejit.targets.cpu.machine.objects import load_object
from tapejit.targets.cpu.matmul import tiling as rules
from tapejit.targets.cpu.matmul.tiling import (
    BatchAxis,
    Gemm,
    Hooks,
    Registers,
    Spot,
    Strides,
)
from tapejit.targets.cpu.simd.storage import register_element
from tapejit.targets.cpu.target import CPU

Array = np.ndarray[Any, Any]
F32, F64 = np.dtype(np.float32), np.dtype(np.float64)
POINTER, INDEX = ir.PointerType(), ir.IntType(64)
AVX2 = Registers(32, 16)
# Four floats, eight, one; and few registers, many. All of this code runs everywhere.
PROCESSORS = (Registers(16, 16), AVX2, Registers(8, 8), Registers(64, 32))
ORDERS = ("nn", "tn", "nt", "tt")
UNTOUCHED = 77.0


# Compiling and calling


class Product:
    """A compiled product: call it with the arrays of its table."""

    def __init__(
        self, gemm: Gemm, hooks: Hooks | None = None, registers: Registers = AVX2
    ) -> None:
        self.module = ir.LLVMModule("products")
        made = emit_product(self.module, gemm, "product", hooks, registers)
        made.function.linkage = "external"
        self.tasks, self.tiling = made.tiling.tasks, made.tiling
        code = Pieces().finish(self.module).object
        self.loaded = load_object(code.code, code.header)
        signature = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)
        self.function = signature(self.loaded.functions["product"])

    def __call__(self, *arrays: Array, order: Sequence[int] | None = None) -> None:
        table = (ctypes.c_void_p * len(arrays))(*(x.ctypes.data for x in arrays))
        for task in range(self.tasks) if order is None else order:
            self.function(table, task)


def steps_of(x: Array) -> Sequence[int]:
    """Strides in elements."""
    return [step // x.itemsize for step in x.strides]


def gemm_of(a: Array, b: Array, c: Array) -> Gemm:
    """The product of arrays; A and B may have fewer axes in front than C."""
    front = c.shape[:-2]
    steps = []
    for x in (a, b, c):
        wide = np.broadcast_to(x, (*front, *x.shape[-2:]))
        steps.append(steps_of(wide))
    batch = tuple(
        BatchAxis(size, *(step[at] for step in steps)) for at, size in enumerate(front)
    )
    sa, sb, sc = (Strides(*step[-2:]) for step in steps)
    m, k, n = a.shape[-2], a.shape[-1], b.shape[-1]
    return Gemm(m, n, k, c.dtype, sa, sb, sc, batch)


def multiply(a: Array, b: Array, hooks: Hooks | None = None, **options: Any) -> Array:
    """The product in an array of its own; nothing around it has changed."""
    front = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    out = framed((*front, a.shape[-2], b.shape[-1]), a.dtype, **options.pop("out", {}))
    Product(gemm_of(a, b, out), hooks, **options)(a, b, out)
    assert_frame_is_untouched(out)
    return out


def framed(shape: tuple[int, ...], dtype: Any, order: str = "rows") -> Array:
    """An array inside a larger one, whose other elements all are the same."""
    if order == "columns":
        return np.swapaxes(framed((*shape[:-2], shape[-1], shape[-2]), dtype), -1, -2)
    gap = 2 if order == "apart" else 1
    room = np.full((*shape[:-1], shape[-1] * gap + 5), UNTOUCHED, dtype)
    room = np.concatenate([room, room[..., :1, :]], axis=-2)
    return room[..., : shape[-2], 2 : 2 + shape[-1] * gap : gap]


def assert_frame_is_untouched(x: Array) -> None:
    room, inside = x.base if x.base is not None else x, x.copy()
    while room.base is not None:
        room = room.base
    x[...] = UNTOUCHED
    assert (room == UNTOUCHED).all(), "written outside of the result"
    x[...] = inside


def assert_close(got: Array, a: Array, b: Array, where: str = "") -> None:
    wide = np.longdouble
    value = a.astype(wide) @ b.astype(wide)
    scale = np.abs(a).astype(wide) @ np.abs(b).astype(wide)
    assert_agrees(SUM, got, Truth(value, a.shape[-1], scale), where=where)


def random(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Array:
    return rng.standard_normal(shape).astype(dtype)


def laid_out(x: Array, order: str) -> Array:
    """The same matrices, in memory as the name says."""
    if order == "t":
        return np.swapaxes(np.ascontiguousarray(np.swapaxes(x, -1, -2)), -1, -2)
    if order == "apart":
        room = np.full((*x.shape[:-1], 3 * x.shape[-1]), np.nan, x.dtype)
        room[..., ::3] = x
        return room[..., ::3]
    if order == "backwards":
        return np.ascontiguousarray(x[..., ::-1, ::-1])[..., ::-1, ::-1]
    if order == "one row":
        return np.broadcast_to(x[..., :1, :], x.shape)
    if order == "one column":
        return np.broadcast_to(x[..., :1], x.shape)
    return np.ascontiguousarray(x)


LAYOUTS = ("n", "t", "apart", "backwards", "one row", "one column")


@contextlib.contextmanager
def small_caches() -> Iterator[None]:
    """Rules for caches so small that everything is cut and packed."""
    with pytest.MonkeyPatch.context() as patch:
        set_limits(patch, l2_sets=1, l2_ways=1, unpacked_b_tiles=1)
        set_limits(patch, packed_a_bytes=1 << 11, matmul_sum_bytes=1 << 12)
        set_limits(patch, matmul_task_operations=5000, matmul_task_most_rows=32)
        set_limits(patch, streamed_b_bytes=1 << 10, streamed_task_row_bytes=128)
        set_limits(patch, memory_task_operations=1000)
        # More than two vectors.
        set_limits(patch, matmul_block_terms=40, matmul_uncut_terms=48)
        yield


# Numbers


@st.composite
def problems(draw: st.DrawFn) -> dict[str, Any]:
    size = st.one_of(st.integers(1, 9), st.integers(1, 70))
    return {
        "sizes": tuple(draw(size) for _ in range(3)),
        "dtype": draw(st.sampled_from((F32, F64))),
        "layouts": (draw(st.sampled_from(LAYOUTS)), draw(st.sampled_from(LAYOUTS))),
        "out": draw(st.sampled_from(("rows", "columns", "apart"))),
        "fronts": draw(
            st.sampled_from((((), ()), ((3,), (3,)), ((3,), ()), ((2, 1), (1, 3))))
        ),
        "registers": draw(st.sampled_from(PROCESSORS)),
        "is_cramped": draw(st.booleans()),
        "seed": draw(st.integers(0, 99)),
    }


def check(problem: dict[str, Any]) -> None:
    m, n, k = problem["sizes"]
    rng = np.random.default_rng(problem["seed"])
    before, after = problem["fronts"]
    left, right = problem["layouts"]
    a = random(rng, (*before, m, k), problem["dtype"])
    b = random(rng, (*after, k, n), problem["dtype"])
    if (left, right) == ("one column", "one row"):
        # Equal terms would be rounded the same way at each step of a long chain.
        a, b = np.rint(a) + 0, np.rint(b) + 0
    a, b = laid_out(a, left), laid_out(b, right)
    with small_caches() if problem["is_cramped"] else contextlib.nullcontext():
        got = multiply(
            a, b, registers=problem["registers"], out={"order": problem["out"]}
        )
    assert_close(got, a, b)


QUICK = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)


@QUICK
@given(problems())
def test_products_are_near_the_truth(problem: dict[str, Any]) -> None:
    check(problem)


def test_many_products_are_near_the_truth(full: bool) -> None:
    examples = 1500 if full else 5
    run = settings(QUICK, max_examples=examples, derandomize=False)(
        given(problems())(check)
    )
    run()


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("dtype", [F32, F64])
def test_long_sums_of_large_matrices(order: str, dtype: Any) -> None:
    rng = np.random.default_rng(0)
    a = laid_out(random(rng, (150, 1500), dtype), order[0])
    b = laid_out(random(rng, (1500, 90), dtype), order[1])
    assert_close(multiply(a, b), a, b)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("sizes", [(13, 21, 40), (2, 5, 33), (1, 1, 9), (30, 1, 64)])
def test_small_floats_are_summed_in_single_precision(
    dtype: Any, order: str, sizes: tuple[int, int, int]
) -> None:
    m, n, k = sizes
    rng = np.random.default_rng(1)
    # Every sum is exact in single precision, so only the last rounding can differ.
    a = laid_out(rng.integers(-15, 16, (m, k)).astype(dtype), order[0])
    b = laid_out(rng.integers(-15, 16, (k, n)).astype(dtype), order[1])
    expected = (a.astype(np.float64) @ b.astype(np.float64)).astype(dtype)
    for registers in (AVX2, Registers(16, 16)):
        got = multiply(a, b, registers=registers)
        np.testing.assert_array_equal(got.view(np.uint16), expected.view(np.uint16))


@pytest.mark.parametrize("sizes", [(5, 7, 0), (1, 7, 0), (9, 1, 0)])
def test_an_empty_sum_is_zero(sizes: tuple[int, int, int]) -> None:
    m, n, k = sizes
    got = multiply(np.ones((m, k), F32), np.ones((k, n), F32))
    np.testing.assert_array_equal(got, np.zeros((m, n)))


@pytest.mark.parametrize("shapes", [((0, 3), (3, 4)), ((3, 4), (4, 0))])
def test_an_empty_result_has_no_tasks(shapes: Any) -> None:
    a, b = (np.ones(shape, F32) for shape in shapes)
    out = np.empty((a.shape[0], b.shape[1]), F32)
    assert Product(gemm_of(a, b, out)).tasks == 0


def test_infinities_and_nans_stay_in_their_rows_and_columns() -> None:
    a, b = np.ones((7, 5), F32), np.ones((5, 19), F32)
    a[2, 3], b[1, 17] = np.nan, np.inf
    got = multiply(a, b)
    expected = np.full((7, 19), 5.0)
    expected[:, 17], expected[2] = np.inf, np.nan
    np.testing.assert_array_equal(got, expected)


def test_only_floats_are_multiplied() -> None:
    one = Strides(1, 1)
    with pytest.raises(ArgumentError, match="int32"):
        Gemm(1, 1, 1, np.dtype(np.int32), one, one, one)
    with pytest.raises(ArgumentError, match="negative"):
        Gemm(1, -1, 1, F32, one, one, one)


# Bits


def chains(a: Array, b: Array) -> Array:
    """A chain of fused steps for each element and block of k, in ascending order.

    The numbers are integers of 12 bits: a product and its sum with a float are exact
    in double, so the one rounding of each step is that of the fused instruction.
    """
    count = a.shape[1]
    is_cut = count > CPU.numerics.matmul_uncut_terms
    blocks = -(-count // CPU.numerics.matmul_block_terms) if is_cut else 1
    edges = [at * count // blocks for at in range(blocks + 1)]
    sums = []
    for low, high in itertools.pairwise(edges):
        total = np.zeros((a.shape[0], b.shape[1]), np.float32)
        for k in range(low, high):
            x, y = a[:, k].astype(np.float64), b[k].astype(np.float64)
            total = (total + np.outer(x, y)).astype(np.float32)
        sums.append(total)
    return functools.reduce(np.add, sums)


def integers(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return rng.integers(-4095, 4096, shape).astype(np.float32)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    "sizes", [(7, 19, 300), (23, 33, 1000), (30, 5, 385), (40, 37, 260)]
)
def test_each_element_is_a_chain_for_each_block(
    order: str, sizes: tuple[int, int, int]
) -> None:
    m, n, k = sizes
    rng = np.random.default_rng(2)
    a, b = integers(rng, (m, k)), integers(rng, (k, n))
    expected = chains(a, b)
    # The order of the sum matters to these numbers.
    assert (chains(a[:, ::-1], b[::-1]) != expected).any()
    a, b = laid_out(a, order[0]), laid_out(b, order[1])
    for registers in PROCESSORS:
        np.testing.assert_array_equal(multiply(a, b, registers=registers), expected)
        with small_caches():
            got, wanted = multiply(a, b, registers=registers), chains(a, b)
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize(
    "sizes", [(1, 1, 1000), (1, 37, 203), (37, 1, 203), (3, 10, 77), (4, 2, 31)]
)
def test_dot_products_have_the_same_bits_on_every_processor(
    dtype: Any, sizes: tuple[int, int, int]
) -> None:
    m, n, k = sizes
    rng = np.random.default_rng(3)
    a, b = random(rng, (m, k), dtype), laid_out(random(rng, (k, n), dtype), "t")
    first, *others = (multiply(a, b, registers=x) for x in PROCESSORS)
    for other in others:
        np.testing.assert_array_equal(other, first)
    assert_close(first, a, b)


def test_the_order_of_tasks_and_their_threads_do_not_matter() -> None:
    rng = np.random.default_rng(4)
    a, b = random(rng, (130, 300), F32), random(rng, (300, 200), F32)
    outs = [np.empty((130, 200), F32) for _ in range(3)]
    product = Product(gemm_of(a, b, outs[0]))
    assert product.tasks >= 4
    product(a, b, outs[0])
    product(a, b, outs[1], order=range(product.tasks - 1, -1, -1))
    in_threads(2, lambda at: product(a, b, outs[2], order=range(at, product.tasks, 2)))
    np.testing.assert_array_equal(outs[1], outs[0])
    np.testing.assert_array_equal(outs[2], outs[0])


# Hooks


def entry(site: Any, at: int) -> Any:
    """An entry of the table."""
    place = site.builder.gep(site.table, [ir.Literal(INDEX, at)], source_etype=POINTER)
    return site.builder.load(place, typ=POINTER)


def elements(site: Any, at: int, spot: Spot, steps: Strides) -> Any:
    """Lanes of a matrix in the table, with these strides."""
    b = site.builder
    element = register_element(site.tiling.gemm.dtype)
    step = steps.row if spot.along == "row" else steps.column
    found = ir.Literal(ir.VectorType(element, spot.lanes), ir.Undefined)
    for lane in range(spot.lanes):
        place = ir.Literal(INDEX, lane * step)
        for index, factor in ((spot.row, steps.row), (spot.column, steps.column)):
            place = b.add(place, b.mul(index, ir.Literal(INDEX, factor)))
        pointer = b.gep(entry(site, at), [place], source_etype=element)
        one = b.load(pointer, align=4, typ=element)
        found = b.insert_element(found, one, ir.Literal(ir.IntType(32), lane))
    return found


def bias_and_relu(site: Any, spot: Spot, value: Any) -> None:
    """max(value + bias, 0), the bias being a row."""
    assert value.type.count == spot.lanes
    total = site.builder.fadd(value, elements(site, 3, spot, Strides(0, 1)))
    zero = ir.Literal(total.type, None)
    is_positive = site.builder.fcmp_ordered(">", total, zero)
    site.store(spot, site.builder.select(is_positive, total, zero))


SHAPES = [(13, 21, 17), (1, 30, 40), (30, 1, 40), (70, 40, 33), (2, 3, 50), (1, 1, 9)]


@pytest.mark.parametrize("sizes", SHAPES)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("where", ["from memory", "in registers", "cramped"])
def test_an_epilogue_has_every_element_once(
    sizes: tuple[int, int, int],
    order: str,
    where: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    m, n, k = sizes
    rng = np.random.default_rng(5)
    a = laid_out(random(rng, (m, k), F32), order[0])
    b = laid_out(random(rng, (k, n), F32), order[1])
    bias = random(rng, (n,), F32)
    is_brief = where == "in registers"
    set_limits(monkeypatch, long_matmul_operations=0)
    with small_caches() if where == "cramped" else contextlib.nullcontext():
        plain = multiply(a, b)
        out = framed((m, n), F32, order="columns" if order == "tt" else "rows")
        hooks = Hooks(epilogue=bias_and_relu, is_brief=is_brief)
        product = Product(gemm_of(a, b, out), hooks)
        product(a, b, out, bias)
    assert product.tiling.ends_tiles == (is_brief and not product.tiling.is_dots)
    assert_frame_is_untouched(out)
    np.testing.assert_array_equal(out, np.maximum(plain + bias, 0))


def test_an_epilogue_may_change_what_is_there() -> None:
    """As an optimizer does: nothing is done twice, not even at the edges."""
    rng = np.random.default_rng(6)
    a, b = random(rng, (50, 37), F32), random(rng, (50, 45), F32)
    weights = random(rng, (37, 45), F32)

    def descend(site: Any, spot: Spot, value: Any) -> None:
        before = elements(site, 2, spot, Strides(45, 1))
        site.store(spot, site.builder.fsub(before, value))

    expected = weights - multiply(a.T, b)
    Product(gemm_of(a.T, b, weights), Hooks(epilogue=descend))(a.T, b, weights)
    np.testing.assert_array_equal(weights, expected)


@pytest.mark.parametrize("sizes", SHAPES)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("is_cramped", [False, True])
def test_prologues_change_operands_where_they_are_loaded(
    sizes: tuple[int, int, int], order: str, is_cramped: bool
) -> None:
    m, n, k = sizes
    rng = np.random.default_rng(7)
    a, p = (laid_out(random(rng, (m, k), F32), order[0]) for _ in range(2))
    b, q = (laid_out(random(rng, (k, n), F32), order[1]) for _ in range(2))

    def times_p(site: Any, spot: Spot) -> Any:
        other = elements(site, 3, spot, Strides(*steps_of(p)))
        return site.builder.fmul(site.load_a(spot), other)

    def minus_q(site: Any, spot: Spot) -> Any:
        other = elements(site, 4, spot, Strides(*steps_of(q)))
        return site.builder.fsub(site.load_b(spot), other)

    with small_caches() if is_cramped else contextlib.nullcontext():
        out = framed((m, n), F32)
        hooks = Hooks(load_a=times_p, load_b=minus_q)
        product = Product(gemm_of(a, b, out), hooks)
        product(a, b, out, p, q)
        plain = multiply(laid_out(a * p, order[0]), laid_out(b - q, order[1]))
    assert_frame_is_untouched(out)
    np.testing.assert_array_equal(out, plain)


def test_hooks_know_the_place_in_the_stack() -> None:
    rng = np.random.default_rng(8)
    a, b = random(rng, (2, 3, 5, 11), F32), random(rng, (3, 11, 9), F32)
    out = framed((2, 3, 5, 9), F32)
    scales = random(rng, (2, 3), F32)

    def scaled(site: Any, spot: Spot, value: Any) -> None:
        i, j = spot.batch
        here = Spot((), i, j, "column", 1)
        one = elements(site, 3, here, Strides(3, 1))
        zeros = ir.Literal(ir.VectorType(ir.IntType(32), spot.lanes), None)
        wide = site.builder.shuffle_vector(one, one, zeros)
        site.store(spot, site.builder.fmul(value, wide))

    Product(gemm_of(a, b, out), Hooks(epilogue=scaled))(a, b, out, scales)
    expected = multiply(a, b) * scales[..., None, None]
    np.testing.assert_array_equal(out, expected)


def test_a_caller_can_open_functions_and_give_pointers() -> None:
    entered: list[str] = []

    def enter(function: Any) -> Any:
        entered.append(function.name)
        assert [x.type for x in function.args[:2]] == [POINTER, INDEX]
        builder = ir.IRBuilder(function.append_basic_block("entry"))
        start = function.append_basic_block("start")
        builder.branch(start)
        builder.position_at_end(start)
        return builder

    def backwards(site: Any) -> tuple[Any, Any, Any]:
        return entry(site, 2), entry(site, 1), entry(site, 0)

    a, b = np.ones((9, 4), F32), laid_out(np.ones((4, 5), F32), "t")
    out = np.empty((9, 5), F32)
    hooks = Hooks(
        epilogue=lambda site, spot, value: site.store(spot, value),
        enter=enter,
        operands=backwards,
    )
    product = Product(gemm_of(a, b, out), hooks)
    product(out, b, a)
    np.testing.assert_array_equal(out, np.full((9, 5), 4.0))
    assert entered[0] == "product"
    assert len(entered) > 1


# Rules


def rows_times_rows(m: int, n: int, k: int, dtype: Any = F32) -> Gemm:
    return Gemm(m, n, k, dtype, Strides(k, 1), Strides(n, 1), Strides(n, 1))


def test_equal_kernels_are_emitted_once() -> None:
    module = ir.LLVMModule("m")
    emit_product(module, rows_times_rows(60, 32, 40), "first", registers=AVX2)
    before = len(module.functions)
    emit_product(module, rows_times_rows(60, 32, 40), "second", registers=AVX2)
    assert len(module.functions) == before + 1
    epilogue = Hooks(epilogue=bias_and_relu, key="relu")
    emit_product(module, rows_times_rows(60, 32, 40), "third", epilogue, AVX2)
    with_hooks = len(module.functions)
    emit_product(module, rows_times_rows(60, 32, 40), "fourth", epilogue, AVX2)
    assert len(module.functions) == with_hooks + 1
    unnamed = replace(epilogue, key="")
    emit_product(module, rows_times_rows(60, 32, 40), "fifth", unnamed, AVX2)
    assert len(module.functions) > with_hooks + 2


def test_products_of_other_sizes_and_epilogues_share_their_tiles() -> None:
    module = ir.LLVMModule("m")

    def tiles() -> int:
        return sum("gemm_tile" in x.name for x in module.functions)

    gemm = rows_times_rows(60, 32, 40)
    emit_product(module, gemm, "first", registers=AVX2)
    before = tiles()
    emit_product(module, gemm, "second", Hooks(epilogue=bias_and_relu), AVX2)
    wider = replace(rows_times_rows(90, 48, 40), batch=(BatchAxis(3, 3600, 0, 4320),))
    emit_product(module, wider, "third", registers=AVX2)
    assert tiles() == before > 0
    emit_product(module, rows_times_rows(60, 32, 41), "fourth", registers=AVX2)
    assert tiles() > before


def test_an_epilogue_is_written_once_for_a_row_of_a_tile() -> None:
    calls: list[Spot] = []

    def note(site: Any, spot: Spot, value: Any) -> None:
        calls.append(spot)

    for is_brief, times in ((False, 1), (True, (6 + 5) * 2)):
        calls.clear()
        gemm = rows_times_rows(512, 512, 64)
        emit_product(
            ir.LLVMModule("m"), gemm, "p", Hooks(epilogue=note, is_brief=is_brief), AVX2
        )
        assert len(calls) == times


def test_large_products_are_cut_in_tasks_and_small_ones_are_not() -> None:
    def tasks(gemm: Gemm) -> int:
        return rules.tiling_of(gemm, AVX2).tasks

    assert tasks(rows_times_rows(32, 32, 32)) == 1
    assert tasks(rows_times_rows(256, 256, 256)) >= 4
    assert tasks(rows_times_rows(2000, 8, 500)) >= 4
    assert tasks(rows_times_rows(1, 3000, 3000)) >= 4
    one = rows_times_rows(64, 64, 64)
    stack = (BatchAxis(100, 4096, 4096, 4096),)
    assert tasks(replace(one, batch=stack)) >= 4
    tiny = replace(rows_times_rows(4, 4, 4), batch=(BatchAxis(100, 16, 16, 16),))
    assert tasks(tiny) == 1


def test_operands_that_do_not_suit_the_caches_are_packed() -> None:
    def packs(gemm: Gemm) -> tuple[bool, bool]:
        made = rules.tiling_of(gemm, AVX2)
        return made.packs_a, made.packs_b

    assert packs(rows_times_rows(12, 64, 64)) == (False, False)
    assert packs(rows_times_rows(128, 64, 64)) == (False, True)
    columns = replace(rows_times_rows(12, 64, 64), b=Strides(1, 64))
    assert packs(columns) == (False, True)
    apart = replace(rows_times_rows(1024, 512, 1024), a=Strides(1, 1024))
    assert packs(apart) == (True, True)


def test_rows_that_would_be_in_one_place_of_the_nearest_cache_are_packed() -> None:
    def packs(k: int, dtype: Any = F32, m: int = 512, at: int = 3) -> bool:
        gemm = rows_times_rows(m, 512, k, dtype)
        return rules.tiling_of(gemm, PROCESSORS[at]).packs_a

    assert packs(1024)
    assert packs(1024, at=1), "six rows, with B and the result in the same places"
    assert packs(2048)
    assert packs(512, F64)
    assert not packs(512)
    assert not packs(1000)
    assert not packs(1024, m=4), "there is room for four, and for what they meet"


@settings(QUICK, max_examples=300)
@given(
    sizes=st.tuples(*[st.one_of(st.integers(1, 60), st.integers(1, 5000))] * 3),
    order=st.sampled_from(ORDERS),
    registers=st.sampled_from((AVX2, Registers(64, 32))),
    dtype=st.sampled_from((F32, F64, np.dtype(np.float16))),
    hooks=st.sampled_from(
        (
            Hooks(),
            Hooks(epilogue=lambda site, spot, value: None),
            Hooks(load_a=lambda site, spot: None, epilogue=lambda site, spot, x: None),
        )
    ),
)
def test_tasks_are_modest_on_the_stack(
    sizes: tuple[int, int, int],
    order: str,
    registers: Registers,
    dtype: Any,
    hooks: Hooks,
) -> None:
    """Threads may have as little as 512 kB."""
    m, n, k = sizes
    a = Strides(1, m) if order[0] == "t" else Strides(k, 1)
    b = Strides(1, k) if order[1] == "t" else Strides(n, 1)
    made = rules.tiling_of(
        Gemm(m, n, k, dtype, a, b, Strides(n, 1)), registers, hooks.edges
    )
    assert made.stack <= 480 * 1024


@cache
def target(processor: str) -> Any:
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    kind = binding.Target.from_default_triple()
    return kind.create_target_machine(cpu=processor, opt=2)


@pytest.mark.skipif(
    not binding.get_default_triple().startswith("x86_64"), reason="code of x86-64"
)
@pytest.mark.parametrize(
    ("processor", "registers", "products"),
    [("x86-64-v3", AVX2, 12), ("x86-64-v4", Registers(64, 32), 28)],
)
@pytest.mark.parametrize("order", ["nn", "tn", "nt"])
def test_the_loop_of_a_tile_keeps_all_sums_in_registers(
    processor: str, registers: Registers, products: int, order: str
) -> None:
    gemm = rows_times_rows(840, 512, 500)  # 840 is a multiple of both heights
    if order[0] == "t":
        gemm = replace(gemm, a=Strides(1, gemm.m + 1))
    if order[1] == "t":
        gemm = replace(gemm, b=Strides(1, 501))
    module = ir.LLVMModule("m")
    emit_product(module, gemm, "product", None, registers).function.linkage = "external"
    text = target(processor).emit_assembly(binding.parse_assembly(str(module)))
    # Loops without branches inside: a label, and a jump back to it before the next.
    loop = re.compile(r"(\.LBB\d+_\d+):(.*)\n\tj\w+\t\1(?:\n|$)", re.DOTALL)
    blocks = re.split(r"\n(?=\.LBB\d+_\d+:)", text)
    bodies = [found[2] for found in map(loop.match, blocks) if found]
    inner = [body for body in bodies if body.count("vfmadd") == 2 * products]
    assert inner, "there is no loop with two steps of k"
    for body in inner:
        assert "rsp" not in body
        assert len(re.findall(r"vmov\w+\t.*\(", body)) == 4
