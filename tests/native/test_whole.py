"""Operations on whole arrays as native code, against the records' own evaluation.

Where a record is exact, or its order is fixed, bits must be equal. Operands are moved
about inside of the Graph, so that emitters meet them with strides of all kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from agreement import SUM, assert_agrees
from limits import set_limits
from op_cases import ROWS, Row
from op_cases import references as ref
from op_cases.scans import logcumsumexp as logcumsumexp_reference

import tapejit as tj
import tapejit.tracing.path  # native code knows the class of tensors from there
from tapejit.base.errors import ArgumentError, OutOfRangeError
from tapejit.base.types import DType, TensorType, dtype_named
from tapejit.ir import OPS, Graph, Node, param
from tapejit.loops.lower.expand import expansion
from tapejit.loops.native_ops import is_native
from tapejit.ops.placing import nothing
from tapejit.targets.cpu.arrays.table import EMITTERS
from tapejit.targets.cpu.target import CPU

from .compiled import assert_composed, compile_native, run, run_native, run_numpy

Array = np.ndarray[Any, Any]

assert tapejit.tracing.path
F16, BF16, F32, F64 = map(dtype_named, ("float16", "bfloat16", "float32", "float64"))
FLOATS = (F16, BF16, F32, F64)
WHOLE_ROWS = [row for row in ROWS if OPS[row.case.op].on_arrays]


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(71)


def assert_same_bits(got: Array, expected: Array, where: str) -> None:
    """Equal to the last bit and the sign of zeros; one NaN is as good as another."""
    assert TensorType.of(got) == TensorType.of(expected), where
    unsigned = np.dtype(f"u{got.dtype.itemsize}")
    left, right = (np.array(x, order="C").view(unsigned) for x in (got, expected))
    is_other = left != right
    if got.dtype.kind not in "biu":
        is_other &= ~(np.isnan(got) & np.isnan(expected))
    assert not np.any(is_other), f"{where}: {got[is_other]} is not {expected[is_other]}"


# Operands that lie in memory in various ways: a value, and the Node that it is of x.


def as_it_is(x: Array) -> tuple[Array, Callable[[Node], Node]]:
    return x, lambda node: node


def turned(x: Array) -> tuple[Array, Callable[[Node], Node]]:
    axes = tuple(reversed(range(x.ndim)))
    return x.transpose(axes).copy(), lambda node: OPS["permute_dims"](node, axes=axes)


def backwards(x: Array) -> tuple[Array, Callable[[Node], Node]]:
    axes = tuple(range(x.ndim))
    return np.flip(x, axes).copy(), lambda node: OPS["flip"](node, axes=axes)


def spread_out(x: Array) -> tuple[Array, Callable[[Node], Node]]:
    larger = np.ones([2 * size + 1 for size in x.shape], x.dtype)
    larger[(slice(1, None, 2),) * x.ndim] = x
    starts, steps = (1,) * x.ndim, (2,) * x.ndim
    return larger, lambda node: OPS["slice"](
        node, starts=starts, stops=larger.shape, steps=steps
    )


LAYOUTS = (as_it_is, turned, backwards, spread_out)


def graph_of(
    name: str, arrays: Sequence[Array], attrs: dict[str, Any], layout: Any = as_it_is
) -> tuple[Graph, list[Array]]:
    """The operation on arrays that are moved first, and what to give it."""
    inputs, nodes, given = [], [], []
    for at, array in enumerate(arrays):
        value, move = layout(array) if array.ndim else as_it_is(array)
        node = param(f"x{at}", TensorType.of(value))
        inputs.append(node)
        nodes.append(move(node))
        given.append(value)
    out = OPS[name](*nodes, **attrs)
    assert is_native(out, CPU.supports), f"{name} is not native"
    return Graph(name, inputs, [out]), given


def assert_exact(
    name: str, *arrays: Array, layout: Any = as_it_is, **attrs: Any
) -> None:
    graph, given = graph_of(name, arrays, attrs, layout)
    (got,) = run_native(graph, given)
    (expected,) = run_numpy(graph, given)
    where = f"{name} of {[x.shape for x in arrays]} {arrays[0].dtype}, {attrs}"
    assert_same_bits(got, expected, f"{where}, {layout.__name__}")


def numbers(rng: np.random.Generator, shape: Any, dtype: DType) -> Array:
    """Numbers of any dtype; those of floats are not whole."""
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    return rng.normal(size=shape).astype(dtype)


# The table


def test_the_two_tables_list_the_same_operations() -> None:
    assert set(EMITTERS) == {op.name for op in OPS.values() if op.on_arrays}


@pytest.mark.parametrize("row", WHOLE_ROWS, ids=str)
def test_each_row_of_the_op_table_agrees_with_its_reference(
    row: Row, rng: np.random.Generator, full: bool
) -> None:
    real = [dtype for dtype in row.dtypes if dtype.kind != "c"]
    for dtype in real if full else real[-1:]:
        executable = compile_native(row.graph(dtype))
        for _ in range(2):  # the second time on memory that has been used
            arrays = row.sample(rng, dtype)
            (got,) = run(executable, arrays)
            truth = row.reference(arrays)
            assert_agrees(row.case.agreement, got, truth, where=f"{row} {dtype}")


# gather_add

SCATTERS = (
    # x, indices, axes
    ((5,), [(7,)], (0,)),
    ((5, 19), [(40,)], (0,)),
    ((5, 19), [(40,)], (1,)),
    ((4, 3, 5), [(2, 6)], (1,)),
    ((4, 3, 5), [(6, 1), (4,)], (0, 2)),
    ((4, 3, 5), [(6, 1), ()], (0, 1)),
    ((3, 2, 2), [(5,), (5,), (1,)], (0, 1, 2)),
    ((1, 1), [(1,)], (0,)),
    ((3, 700), [(4,)], (0,)),
)


def drawn_indices(
    rng: np.random.Generator, shape: Any, axes: Any, sizes: Any, dtype: Any
) -> list[Array]:
    low = 0 if np.dtype(dtype).kind == "u" else -1
    return [
        np.asarray(rng.integers(low * shape[axis], shape[axis], size), dtype)
        for axis, size in zip(axes, sizes, strict=True)
    ]


def updates_shape(shape: Any, indices: Sequence[Array], axes: Any) -> tuple[int, ...]:
    rest = [size for axis, size in enumerate(shape) if axis not in axes]
    return (*np.broadcast_shapes(*[i.shape for i in indices]), *rest)


@pytest.mark.parametrize("scatter", SCATTERS, ids=str)
@pytest.mark.parametrize("dtype", [*FLOATS, np.dtype("int8")], ids=str)
def test_scattered_updates_are_added_in_the_order_of_the_indices(
    scatter: Any, dtype: DType, rng: np.random.Generator, full: bool
) -> None:
    shape, sizes, axes = scatter
    at = SCATTERS.index(scatter)
    for layout in LAYOUTS if full else (LAYOUTS[at % 4], LAYOUTS[(at + 1) % 4]):
        for index_dtype in ("int64", "int8", "uint64"):
            indices = drawn_indices(rng, shape, axes, sizes, index_dtype)
            updates = numbers(rng, updates_shape(shape, indices, axes), dtype)
            x = numbers(rng, shape, dtype)
            assert_exact("gather_add", x, updates, *indices, layout=layout, axes=axes)


def test_a_large_table_of_halves_is_rounded_once(rng: np.random.Generator) -> None:
    x, updates = numbers(rng, (300, 80), F16), numbers(rng, (900, 80), F16)
    index = rng.integers(-300, 300, 900)
    assert_exact("gather_add", x, updates, index, axes=(0,))


@pytest.mark.parametrize(
    "bad",
    [
        np.int64(4),
        np.int64(-5),
        np.int64(2**63 - 1),
        np.int64(-(2**63)),
        np.uint64(2**64 - 1),
        np.uint64(2**63),
        np.int8(-128),
    ],
    ids=lambda bad: f"{bad.dtype} {bad}",
)
def test_a_position_outside_raises_and_harms_nothing(bad: Any) -> None:
    good = np.array([0, 1, 3], bad.dtype)
    x, updates = np.ones((4, 3), np.float32), np.ones((3, 3), np.float32)
    graph, given = graph_of("gather_add", [x, updates, good], {"axes": (0,)})
    executable = compile_native(graph)
    (before,) = run(executable, given)
    for place in range(3):
        wrong = good.copy()
        wrong[place] = bad
        with pytest.raises(OutOfRangeError, match=str(bad)):
            run(executable, [x, updates, wrong])
    (after,) = run(executable, given)
    assert_same_bits(after, before, "after errors")


def test_a_scatter_nobody_reads_still_raises() -> None:
    @tj.function
    def ignoring(x: Any, index: Any) -> Any:
        x.at[index].add(1.0)
        return x * 2

    x = tj.constant(np.ones(4, np.float32))
    with tj.config.override(native=True):
        assert np.all(ignoring(x, tj.constant([0, 3])).numpy() == 2)
        with pytest.raises(OutOfRangeError, match="4"):
            ignoring(x, tj.constant([0, 4]))


# place

PLACES = (
    # x, shape, starts, steps
    ((4,), (9,), (1,), (2,)),
    ((1,), (3,), (2,), (5,)),
    ((3, 20), (7, 20), (0, 0), (3, 1)),
    ((3, 20), (3, 41), (0, 1), (1, 2)),
    ((2, 3, 5), (6, 7, 14), (1, 0, 1), (4, 3, 3)),
)


@pytest.mark.parametrize("place", PLACES, ids=str)
@pytest.mark.parametrize("dtype", ["float16", "float64", "bool", "int16"])
def test_elements_are_put_with_gaps_between_them(
    place: Any, dtype: str, rng: np.random.Generator
) -> None:
    size, shape, starts, steps = place
    x = numbers(rng, size, np.dtype(dtype))
    for layout in LAYOUTS:
        attrs = {"shape": shape, "starts": starts, "steps": steps}
        assert_exact("place", x, layout=layout, **attrs)


# place_add

PARTS = {
    # shape, and for each part its shape, starts and steps
    "rows": ((40, 19), [((1, 19), (at, 0), (1, 1)) for at in range(40)]),
    "columns": ((3, 64), [((3, 1), (0, at), (1, 1)) for at in reversed(range(64))]),
    "gaps": ((41, 5), [((1, 5), (at, 0), (1, 1)) for at in range(0, 41, 2)]),
    "meeting": ((50, 3), [((2, 3), (at, 0), (1, 1)) for at in range(49)]),
    "crossing": ((64, 40), [((at, at), (at, 0), (1, 1)) for at in (1, 2, 3, 4, 5, 6)]),
    "one place": ((64, 33), [((1, 33), (7, 0), (1, 1))] * 21),
    "steps": ((90,), [((9,), (at,), (10,)) for at in range(10)] * 2),
    "kinds": ((60,), [((3 - at % 3,), (3 * at,), (1,)) for at in range(20)]),
    "large": ((128, 2048), [((1, 2048), (at, 0), (1, 1)) for at in range(128)]),
}


@pytest.mark.parametrize(
    ("name", "dtype", "is_added"),
    [
        *[(name, "float32", is_added) for name in PARTS for is_added in (False, True)],
        *[("meeting", dtype, True) for dtype in ("float16", "int16")],
        *[("rows", dtype, False) for dtype in ("bfloat16", "float64")],
    ],
)
def test_parts_are_added_where_they_belong(
    name: str, dtype: str, is_added: bool, rng: np.random.Generator
) -> None:
    """With the bits of the record, which are those of a sum: signs of zeros too."""
    shape, parts = PARTS[name]
    kind = dtype_named(dtype)
    attrs = {
        "starts": tuple(start for _, start, _ in parts),
        "steps": tuple(step for *_, step in parts),
    }
    arrays = [numbers(rng, size, kind) for size, *_ in parts]
    for x in arrays:
        x[rng.random(x.shape) < 0.6] = 0 if kind.kind == "i" else -0.0
    x = numbers(rng, shape, kind)
    x[rng.random(shape) < 0.6] = 0 if kind.kind == "i" else -0.0
    nodes = [param(f"x{at}", TensorType.of(a)) for at, a in enumerate([x, *arrays])]
    base = nodes[0] if is_added else nothing(kind, shape)
    out = OPS["place_add"](base, *nodes[1:], **attrs)
    assert expansion(out) is out, "it is a sum again, which others test"
    graph = Graph("place_add", nodes, [out])
    (got,) = run_native(graph, [x, *arrays])
    (expected,) = run_numpy(graph, [x, *arrays])
    assert_same_bits(got, expected, name)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("dtype", ["bool", "float32"])
def test_many_arrays_are_joined(
    axis: int, dtype: str, rng: np.random.Generator
) -> None:
    kind = np.dtype(dtype)
    for sizes, layout in (((1,) * 20, as_it_is), ((3, 1, 4, 1, 5, 9, 2, 6, 5), turned)):
        shapes = [[size if at == axis else 5 for at in range(3)] for size in sizes]
        arrays = [numbers(rng, shape, kind) for shape in shapes]
        assert_exact("concat", *arrays, layout=layout, axis=axis)


# argmax and argmin


def rows_with_ties(
    rng: np.random.Generator, shape: Any, dtype: DType
) -> Iterator[Array]:
    few = rng.integers(0, 3, shape)
    yield few.astype(dtype)
    yield np.zeros(shape, dtype)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        yield np.where(few == 1, limits.min, limits.max).astype(dtype)
    elif dtype.kind != "b":
        special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0])
        yield special[rng.integers(0, 6, shape)].astype(dtype)
        yield special[rng.integers(0, 2, shape)].astype(dtype)
        yield np.where(few == 0, np.nan, 1.0).astype(dtype)
        yield np.full(shape, -np.inf, dtype)


@pytest.mark.parametrize("name", ["argmax", "argmin"])
@pytest.mark.parametrize("length", [1, 2, 7, 15, 16, 17, 24, 31, 100])
def test_the_first_extremum_is_found(
    name: str, length: int, rng: np.random.Generator, full: bool
) -> None:
    kinds = ("float32", "float16", "float64", "int8", "uint64", "bool")
    at = (1, 2, 7, 15, 16, 17, 24, 31, 100).index(length)
    chosen = kinds if full else (kinds[at % 6], kinds[(at + 1) % 6])
    for dtype in map(np.dtype, chosen):
        for shape, axis in (((length,), 0), ((3, length), 1), ((length, 2, 11), 0)):
            layout = LAYOUTS[(at + axis) % 4]
            attrs = {"axis": axis, "keepdims": axis == 1}
            graph, _ = graph_of(name, [np.zeros(shape, dtype)], attrs, layout)
            executable = compile_native(graph)
            for x in rows_with_ties(rng, shape, dtype):
                given = [layout(x)[0]]
                (got,), (expected,) = run(executable, given), run_numpy(graph, given)
                assert_same_bits(got, expected, f"{name} of {x}")


@pytest.mark.parametrize("name", ["argmax", "argmin"])
@pytest.mark.parametrize("shape", [(900, 33), (33, 900), (7, 40, 300)], ids=str)
def test_tasks_share_lines(
    name: str, shape: tuple[int, ...], rng: np.random.Generator, monkeypatch: Any
) -> None:
    set_limits(monkeypatch, line_task_elements=512)
    for axis in range(len(shape)):
        for x in rows_with_ties(rng, shape, F32):
            assert_exact(name, x, axis=axis, keepdims=False)


# The first few of sorted lines

ORDERED_DTYPES = (
    *FLOATS,
    *map(np.dtype, ("int8", "uint16", "int32", "uint32", "int64", "uint64", "bool")),
)
FIRST = (
    # shape, axis, how many
    ((1,), 0, 1),
    ((3, 5), 1, 5),
    ((40, 2, 3), 0, 4),
    ((2, 33), 1, 16),
    ((2, 50), 1, 17),
    ((3, 700), 1, 10),
    ((70, 3), 0, 64),
    ((2, 600, 3), 1, 40),
)


@pytest.mark.parametrize("first", FIRST, ids=str)
def test_the_first_few_of_each_line_are_found(
    first: Any, rng: np.random.Generator, full: bool
) -> None:
    shape, axis, count = first
    at, kinds = FIRST.index(first), ORDERED_DTYPES
    chosen = kinds if full else [kinds[(at * 3 + more) % 11] for more in range(3)]
    for number, dtype in enumerate(chosen):
        layout = LAYOUTS[(at + number) % 4]
        for x in (numbers(rng, shape, dtype), *rows_with_ties(rng, shape, dtype)):
            for descending in (False, True):
                attrs = {"axis": axis, "descending": descending, "window": (0, count)}
                assert_exact("argsort", x, layout=layout, **attrs)


@pytest.mark.parametrize("order", [1, -1], ids=["rising", "falling"])
def test_the_first_of_lines_that_are_in_order_already(order: int) -> None:
    """Each element that is looked at is better than all before it, or none is."""
    line = np.arange(1000.0)[::order].astype(np.float32)
    for descending in (False, True):
        attrs = {"axis": 0, "descending": descending, "window": (0, 30)}
        assert_exact("argsort", line.copy(), **attrs)


def test_other_windows_are_numpy_s() -> None:
    x = param("x", TensorType.parse("f32[100]"))
    for window in (None, (0, 65), (1, 3), (99, 100), (0, 0)):
        node = OPS["argsort"](x, axis=0, descending=False, window=window)
        assert not is_native(node, CPU.supports)


@pytest.mark.parametrize("lead", [(), (3,)], ids=str)
@pytest.mark.parametrize("dtype", ["float16", "float64", "int8", "bool"])
def test_elements_go_to_positions_and_come_back(
    lead: tuple[int, ...], dtype: str, rng: np.random.Generator, monkeypatch: Any
) -> None:
    set_limits(monkeypatch, line_task_elements=256)
    for axis, shape in enumerate(((50, 9), (9, 50))):
        order = np.argsort(rng.random(shape), axis=axis)
        for count in (50, 13, 1):
            positions = np.take(order, range(count), axis=axis)
            values = numbers(rng, (*lead, *positions.shape), np.dtype(dtype))
            if dtype.startswith("float"):
                values.reshape(-1)[::3] = -0.0
            for layout in LAYOUTS:
                attrs = {"layout": layout, "axis": axis}
                assert_exact("put_along", values, positions, length=50, **attrs)
                x = numbers(rng, (*lead, *shape), np.dtype(dtype))
                assert_exact("take_along", x, positions, **attrs)


def sorted_line(rng: np.random.Generator, shape: Any, dtype: DType) -> Array:
    x = numbers(rng, shape, dtype)
    if dtype.kind not in "biu":
        special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan]).astype(dtype)
        x = np.where(rng.random(shape) < 0.3, rng.choice(special, shape), x)
    wide = x.astype(np.float64) if dtype.kind not in "biu" else x
    return np.asarray(np.sort(wide, axis=-1).astype(dtype))


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("dtype", ORDERED_DTYPES, ids=str)
def test_places_in_sorted_lines_are_found(
    dtype: DType, side: str, rng: np.random.Generator, full: bool, monkeypatch: Any
) -> None:
    set_limits(monkeypatch, line_task_elements=512)
    at = ORDERED_DTYPES.index(dtype)
    others = ORDERED_DTYPES if full else (dtype, ORDERED_DTYPES[(at + 3) % 11])
    for other in others:
        for size, shape in ((1, (5,)), (2, (40,)), (7, ()), (100, (3, 77))):
            line, values = sorted_line(rng, size, dtype), numbers(rng, shape, other)
            if other == dtype and size > 1:
                values = np.asarray(rng.choice(line, shape))
            for layout in (LAYOUTS[at % 4], as_it_is):
                assert_exact("searchsorted", line, values, layout=layout, side=side)
    lines, values = sorted_line(rng, (5, 33), dtype), numbers(rng, (5, 40), dtype)
    assert_exact("searchsorted", lines, values, side=side)


# Scans

LENGTHS = (1, 2, 15, 16, 17, 63, 64, 65, 256, 257, 1024, 1025, 1041, 4097, 16401)


@pytest.mark.parametrize("name", ["cumulative_sum", "cumulative_prod"])
@pytest.mark.parametrize("length", LENGTHS)
def test_running_sums_and_products_have_the_bits_of_the_record(
    name: str, length: int, rng: np.random.Generator, full: bool
) -> None:
    at = LENGTHS.index(length)
    kinds = (*FLOATS, *map(np.dtype, ("int8", "uint64", "bool")))
    for dtype in kinds if full else (kinds[at % 4], kinds[4 + at % 3]):
        layout = LAYOUTS[at % 4]
        assert_exact(name, numbers(rng, (length,), dtype), axis=0)
        x = numbers(rng, (2, length, 3 + at), dtype)
        if name == "cumulative_prod" and dtype.kind not in "biu":
            x = np.exp2(x / 8).astype(dtype)  # stays within range for longer
        assert_exact(name, x, layout=layout, axis=1)


@pytest.mark.parametrize("length", LENGTHS)
def test_recurrences_have_the_bits_of_the_record(
    length: int, rng: np.random.Generator, full: bool
) -> None:
    at = LENGTHS.index(length)
    for dtype in FLOATS if full else (FLOATS[at % 4],):
        for shape, axis in (((length,), 0), ((length, 9), 0), ((2, length), 1)):
            a, b = numbers(rng, shape, dtype), numbers(rng, shape, dtype)
            layout = LAYOUTS[(at + axis) % 4]
            assert_exact("linear_recurrence", a, b, layout=layout, axis=axis)


def test_running_sums_keep_the_sign_of_zero_and_go_on_after_nan() -> None:
    for length in (8, 70):
        zeros = np.full(length, -0.0)
        assert_exact("cumulative_sum", zeros, axis=0)
        special = zeros.copy()
        special[5], special[-2] = np.inf, -np.inf
        assert_exact("cumulative_sum", special, axis=0)


def with_special_lines(rng: np.random.Generator, length: int, dtype: DType) -> Array:
    """Lines along axis 0: usual ones, wide ones, and those with infinities or NaN."""
    x = rng.normal(size=(length, 7)) * 3
    x[:, 1] *= 30
    x[:, 2] = -np.inf
    x[length // 2, 3] = np.inf
    x[length // 3, 4] = np.nan
    x[0, 5] = -np.inf
    x[:, 6] = 10.0
    return x.astype(dtype)


@pytest.mark.parametrize("length", [1, 9, 17, 70, 300])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_sums_of_exponentials_agree_with_the_reference(
    length: int, dtype: DType, rng: np.random.Generator, full: bool
) -> None:
    x = with_special_lines(rng, length, dtype)
    with np.errstate(all="ignore"):
        rows, columns = np.ascontiguousarray(x.T), x
        for array, axis in ((columns, 0), (rows, 1)):
            for layout in LAYOUTS if full else (LAYOUTS[(length + axis) % 4],):
                attrs: dict[str, Any] = {"axes": (axis,), "keepdims": axis == 1}
                graph, given = graph_of("logsumexp", [array], attrs, layout)
                (got,) = run_native(graph, given)
                truth = ref.logsumexp(array, **attrs)
                assert_agrees(SUM, got, truth, where=f"logsumexp {length} {axis}")
                graph, given = graph_of("logcumsumexp", [array], {"axis": axis}, layout)
                (got,) = run_native(graph, given)
                running = logcumsumexp_reference(array, axis=axis)
                assert_agrees(SUM, got, running, where=f"logcumsumexp {length} {axis}")


def test_a_sum_of_exponentials_over_several_axes(rng: np.random.Generator) -> None:
    x = rng.normal(size=(3, 5, 40, 3))
    for axes in ((0, 2), (1, 2, 3), (0, 1, 2, 3), ()):
        graph, given = graph_of("logsumexp", [x], {"axes": axes, "keepdims": False})
        (got,) = run_native(graph, given)
        truth = ref.logsumexp(x, axes=axes, keepdims=False)
        assert_agrees(SUM, got, truth, where=str(axes))


# Random words

STATES = np.array(
    [
        [0, 0, 0, 0, 0, 0],
        [1, 2, 2**32 - 3, 2**32 - 1, 2**32 - 1, 5],
        [2**32 - 1] * 6,
        [2**31, 7, 2**32 - 2, 0, 9, 2**31],
    ],
    np.uint32,
)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8, 31, 32, 33, 63, 64, 100, 1003])
def test_words_are_those_of_the_generator(size: int) -> None:
    for bits in (32, 64):
        assert_exact("random_bits", STATES, shape=(size,), bits=bits)
    assert_exact("keyed_bits", STATES[1], shape=(size, 3), bits=32)
    assert_exact("keyed_bits", STATES, layout=turned, shape=(), bits=64)


def test_states_made_of_states_are_those_of_the_generator() -> None:
    for layout in LAYOUTS:
        for blocks in (0, 1, 3, 2**32, 2**64 - 1, 2**127 + 12345, 10**30):
            assert_exact("random_advance", STATES, layout=layout, blocks=blocks)
        for count in (1, 5, 20):
            assert_exact("random_split", STATES, layout=layout, count=count)
        for data in (
            np.array([0, 1, 2**63 - 1, 9]),
            np.array([[2**64 - 1], [2**32]], np.uint64),
            np.array(7, np.int8),
        ):
            assert_exact("random_fold_in", STATES, data, layout=layout)
    assert_exact("random_fold_in", STATES[1], np.array([[3], [4]]))


def test_a_stream_cannot_be_named_by_a_negative_number() -> None:
    data = np.array([1, 0, -1, 5])
    graph, given = graph_of("random_fold_in", [STATES, data], {})
    with pytest.raises(ArgumentError, match="-1"):
        run_native(graph, given)


def words_of(rng: np.random.Generator, dtype: str) -> Array:
    """Random words, and those about each power of two from both ends."""
    unsigned = np.dtype(dtype)
    bits = 8 * unsigned.itemsize
    edges = [(1 << at) + by for at in range(bits) for by in (-1, 0, 1)]
    near = np.array([edge % (1 << bits) for edge in edges], unsigned)
    drawn = rng.integers(0, 1 << bits, 20_001, unsigned)
    return np.concatenate([near, ~near, drawn, drawn >> np.array(9, unsigned)])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", ["bits_to_uniform", "bits_to_normal"])
def test_floats_made_of_words_have_the_same_bits(
    name: str, dtype: DType, rng: np.random.Generator
) -> None:
    words = words_of(rng, "uint64" if dtype == F64 else "uint32")
    assert_exact(name, words, dtype=dtype)
    for layout in LAYOUTS:
        assert_exact(name, words[-35:].reshape(5, 7), layout=layout, dtype=dtype)
    assert_exact(name, words[5].reshape(()), dtype=dtype)


@pytest.mark.parametrize(
    ("low", "high", "dtype"),
    [
        (0, 1, "int8"),
        (-128, 128, "int8"),
        (-3, 10, "int32"),
        (5, 2**32, "uint32"),
        (-7, 2**40 + 3, "int64"),
        (-(2**63), 2**63, "int64"),
        (1, 2**64, "uint64"),
    ],
)
def test_integers_made_of_words_are_the_same(
    low: int, high: int, dtype: str, rng: np.random.Generator
) -> None:
    attrs = {"low": low, "high": high, "dtype": np.dtype(dtype)}
    assert_exact("bits_to_integers", words_of(rng, "uint64"), **attrs)


# Through functions


def embedding_loss(x: Any) -> Any:
    table = tj.reshape(x, (12, 5))
    rows = tj.take(table, tj.constant([3, 3, -1, 0, 3, 7]), axis=0)
    return tj.sum(tj.tanh(rows) ** 2)


def strided_loss(x: Any) -> Any:
    return tj.sum(x[1::3] * x[::3]) + tj.sum(tj.reshape(x, (6, 10))[::2, ::-4] ** 3)


def running_loss(x: Any) -> Any:
    y = tj.reshape(x, (20, 3))
    total = tj.sum(tj.tanh(tj.cumulative_sum(y, axis=0)))
    return total + tj.sum(tj.cumulative_prod(tj.cos(y), axis=1) ** 2)


def exponential_loss(x: Any) -> Any:
    y = tj.reshape(x, (3, 20))
    return tj.sum(tj.logsumexp(y, axis=1)) + tj.sum(tj.logcumsumexp(y, axis=1) ** 2)


def picked_loss(x: Any) -> Any:
    y = tj.reshape(x, (5, 12))
    best = tj.argmax(y, axis=1)
    return tj.sum(tj.take_along_axis(y, best[:, None], axis=1) ** 2)


@pytest.mark.parametrize(
    "loss",
    [embedding_loss, strided_loss, running_loss, exponential_loss, picked_loss],
    ids=lambda loss: loss.__name__,
)
def test_gradients_of_functions_agree_with_eager_ones(
    loss: Any, rng: np.random.Generator
) -> None:
    def value_and_gradient(x: Any) -> Any:
        with tj.GradientTape() as tape:
            tape.watch(x)
            value = loss(x)
        return value, tape.gradient(value, x)

    for dtype in (np.float32, np.float64):
        x = tj.constant(rng.normal(size=60).astype(dtype))
        expected = [y.numpy() for y in value_and_gradient(x)]
        with tj.config.override(native=True):
            got = [y.numpy() for y in tj.function(value_and_gradient)(x)]
        assert_composed(got, expected, loss.__name__)


def test_numbers_drawn_in_a_function_are_those_drawn_without() -> None:
    def draw(key: Any) -> Any:
        first, second = tj.random.split(key, 2)
        return (
            tj.random.uniform((5, 7), key=first),
            tj.random.normal((33,), key=second),
            tj.random.integers(-4, 90, (9,), key=first),
        )

    key = tj.random.key(3)
    expected = [x.numpy() for x in draw(key)]
    with tj.config.override(native=True):
        got = [x.numpy() for x in tj.function(draw)(key)]
    for x, y in zip(got, expected, strict=True):
        assert_same_bits(x, y, "drawn")
