"""Products of matrices and what is fused into them, against plain Python.

A product is a kernel of its own; what is computed from it element by element is done
while it is in registers. `PROGRAMS` has what such an epilogue may be and what must not
become one. Where `every_product_is_a_kernel` is asked for, small products are kernels
too, so that sizes at which tiles have rests cost little.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from agreement import COMPOSED, EXACT, assert_agrees
from fuzz.arguments import Shape

import tapejit as tj
from tapejit.base import tree
from tapejit.targets.cpu.module import build

from .compiled import (
    assert_same_for_any_processor,
    assert_same_for_any_threads,
    needs_levels,
)
from .test_kernel_source import part_of, run_source

Array = np.ndarray[Any, Any]
Body = Callable[..., Any]


def drawn(*shapes: Shape, dtype: Any = "f4", seed: int = 0) -> list[Array]:
    rng = np.random.default_rng((len(shapes), seed))
    return [rng.uniform(-1, 1, shape).astype(dtype) for shape in shapes]


def assert_native_agrees(
    body: Body, arrays: Sequence[Array], op_class: str = COMPOSED
) -> tj.Function:
    """Compiled as eager; the function is returned, to look inside."""
    tensors = [tj.asarray(x) for x in arrays]
    expected, spec = tree.flatten(body(*tensors))
    function = tj.function(body)
    with tj.config.override(native=True):
        found = tree.flatten(function(*tensors))
    assert found[1] == spec
    for at, (got, wanted) in enumerate(zip(found[0], expected, strict=True)):
        assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
        assert_agrees(op_class, got.numpy(), wanted.numpy(), where=f"result {at}")
    return function


def kernels(
    body: Body, arrays: Sequence[Array], op_class: str = COMPOSED
) -> list[dict[str, int]]:
    """The operations of each kernel, after the results were found to be right."""
    function = assert_native_agrees(body, arrays, op_class)
    with tj.config.override(native=True):
        return [x.ops for x in function.kernels(*map(tj.asarray, arrays))]


def gradient_of(loss: Body) -> Body:
    """The loss, and its gradient by every argument."""

    def body(*xs: Any) -> Any:
        with tj.GradientTape() as tape:
            tape.watch(xs)
            value = loss(*xs)
        return value, tape.gradient(value, xs)

    return body


# What is computed from a product x @ w; b is a row, r is as large as the product.


def used_twice(x: Any, w: Any, b: Any, r: Any) -> Any:
    y = x @ w + b
    return tj.tanh(y), y * r


def returned_too(x: Any, w: Any, b: Any, r: Any) -> Any:
    y = x @ w
    return y, tj.nn.relu(y + b)


def returned_twice(x: Any, w: Any, b: Any, r: Any) -> Any:
    y = x @ w
    return y, y, tj.reshape(y, (-1,))


def turned(x: Any, w: Any, b: Any, r: Any) -> Any:
    """Used as it lies and across: only the one is done in registers."""
    y = x @ w
    n = min(y.shape)
    square = y[:n, :n]
    return tj.tanh(y + b), square + square.T, tj.flip(y, axis=1) * r


def only_turned(x: Any, w: Any, b: Any, r: Any) -> Any:
    return tj.tanh((x @ w).T + b[:, None])


def across_itself(x: Any, w: Any, b: Any, r: Any) -> Any:
    """The same product at two positions in one iteration."""
    y = (x @ w) @ (r * b).T
    return tj.tanh(0.1 * (y - y.T)) + y, 2 * y.T - y


def mirrored(x: Any, w: Any, b: Any, r: Any) -> Any:
    """What is computed from a product, at two positions."""
    y = tj.tanh(x @ w + b)
    return y + 2 * tj.flip(y, axis=1)


def shared_by_two(x: Any, w: Any, b: Any, r: Any) -> Any:
    """A product that the epilogue of another one needs, and loops as well."""
    first, second = x @ w, tj.sin(x) @ w
    return tj.tanh(first + second), second * r + b, tj.sum(first * second, axis=0)


def cell(x: Any, w: Any, b: Any, r: Any) -> Any:
    """Two products in one nest: the second is there before the first one's epilogue."""
    return tj.tanh(x @ w + 0.01 * ((r @ w.T) @ w) + b)


def gates(x: Any, w: Any, b: Any, r: Any) -> Any:
    first, second, third = x @ w, (x * 0.5) @ w, tj.sin(x) @ w
    return tj.sigmoid(first + b) * tj.tanh(second) + r * third


def one_after_the_other(x: Any, w: Any, b: Any, r: Any) -> Any:
    """A product of a product, which loops need as well."""
    y = x @ w
    z = y @ w.T
    return z * x, tj.tanh(y + b), tj.sum(y * r)


def reduced(x: Any, w: Any, b: Any, r: Any) -> Any:
    """Reductions stay behind, and read what the epilogue has left."""
    y = tj.tanh(x @ w + b)
    return tj.sum(y, axis=0), tj.max(y, axis=1), tj.mean(y * r)


def normalised(x: Any, w: Any, b: Any, r: Any) -> Any:
    y = x @ w + b
    return tj.nn.layer_norm(y + r, b, b)


def shares(x: Any, w: Any, b: Any, r: Any) -> Any:
    return tj.nn.softmax((x @ w) * 0.3 + r, axis=-1)


def picked(x: Any, w: Any, b: Any, r: Any) -> Any:
    """Elements found at positions, which are checked and no part of an epilogue."""
    y = x @ w
    rows = tj.astype(tj.argmax(r, axis=0), "int64")
    return y[rows] * 2, y + b, tj.take(y, np.array([0, 2, -1]), axis=1)


def put_together(x: Any, w: Any, b: Any, r: Any) -> Any:
    y = x @ w
    return tj.concat([y, r], axis=0) + b, tj.pad(y * r, [(1, 2), (0, 3)])


def by_position(x: Any, w: Any, b: Any, r: Any) -> Any:
    """The place of an element counts: a mask below the diagonal."""
    y = x @ w
    rows, columns = tj.arange(y.shape[0])[:, None], tj.arange(y.shape[1])
    return tj.where(rows >= columns, y, -1e9), y + tj.astype(columns, y.dtype)


def scaled_by_itself(x: Any, w: Any, b: Any, r: Any) -> Any:
    """A number and a column that come from the product must wait for all of it."""
    y = x @ w
    return y / tj.sum(y * y), y - tj.mean(y, axis=1, keepdims=True)


def stacked_on(x: Any, w: Any, b: Any, r: Any) -> Any:
    """More axes than the product has."""
    y = x @ w
    return y + tj.stack([r, -r, r * r]), tj.reshape(y, (-1, 2)) * 3


def dropped(x: Any, w: Any, b: Any, r: Any) -> Any:
    keep = r > -0.5
    return tj.where(keep, tj.nn.relu(x @ w + b) / 0.75, 0.0)


EPILOGUES: dict[str, Body] = {
    "relu": lambda x, w, b, r: tj.nn.relu(x @ w + b),
    "tanh": lambda x, w, b, r: tj.tanh(x @ w + b),
    "gelu": lambda x, w, b, r: tj.nn.gelu(x @ w + b),
    "residual": lambda x, w, b, r: r + tj.nn.silu(x @ w + b),
    "scale": lambda x, w, b, r: (x @ w) * 0.125,
    "column": lambda x, w, b, r: (x @ w) * r[:, :1] + r[:1],
    "selection": lambda x, w, b, r: tj.where(r > b, x @ w, r),
    "slice": lambda x, w, b, r: tj.tanh((x @ w)[1:, ::2]),
    "dropped": dropped,
    **{
        body.__name__: body
        for body in (
            *(used_twice, returned_too, returned_twice, turned, only_turned),
            *(across_itself, mirrored, cell, gates, shared_by_two),
            *(one_after_the_other, reduced, normalised),
            *(shares, picked, put_together, by_position, scaled_by_itself, stacked_on),
        )
    },
}
SIZES = [(37, 23, 50), (18, 40, 300), (70, 40, 52), (200, 17, 33)]


def operands(m: int, k: int, n: int, dtype: Any = "f4") -> list[Array]:
    return drawn((m, k), (k, n), (n,), (m, n), dtype=dtype)


@pytest.mark.parametrize("name", EPILOGUES)
def test_what_follows_a_product_is_what_plain_python_gives(
    name: str, full: bool
) -> None:
    for sizes in SIZES if full else SIZES[:2]:
        assert_native_agrees(EPILOGUES[name], operands(*sizes))


@pytest.mark.usefixtures("every_product_is_a_kernel")
@pytest.mark.parametrize("dtype", ["f8", "f2", "bfloat16"])
@pytest.mark.parametrize("name", ["gelu", "cell", "returned_too", "reduced", "turned"])
def test_epilogues_in_other_dtypes(name: str, dtype: str) -> None:
    kind = tj.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    assert_native_agrees(EPILOGUES[name], operands(18, 20, 22, kind))


@pytest.mark.usefixtures("every_product_is_a_kernel")
@pytest.mark.parametrize("kind", [np.dtype("f2"), tj.bfloat16], ids=str)
def test_halves_are_rounded_before_they_go_on(kind: Any) -> None:
    """Integers that have more digits than halves, whose sums a float has exactly."""

    def body(x: Any, w: Any, b: Any, r: Any) -> Any:
        y = x @ w
        return y - r, y == r, tj.astype(y, "float32") + 1

    arrays = [np.round(30 * x).astype(kind) for x in operands(18, 20, 22)]
    (ops,) = kernels(body, arrays, EXACT)
    assert len(ops) > 1


CASTS: dict[str, Body] = {
    "halves": lambda x, w, b, r: tj.astype(x @ w, "float16"),
    "bfloats": lambda x, w, b, r: tj.astype(x @ w + b, tj.bfloat16) * 3,
    "doubles": lambda x, w, b, r: tj.astype(x @ w, "float64") / 3,
    "integers": lambda x, w, b, r: tj.astype(x @ w, "int32") // 5,
    "comparison": lambda x, w, b, r: (x @ w > b, tj.astype(x @ w == r, "int8")),
    "counted": lambda x, w, b, r: tj.sum(x @ w >= b, axis=0),
}


@pytest.mark.parametrize("name", CASTS)
def test_products_of_small_integers_become_other_dtypes_exactly(name: str) -> None:
    arrays = [np.round(4 * x) for x in operands(37, 23, 50)]
    (ops, *_) = kernels(CASTS[name], arrays, EXACT)
    assert len(ops) > 1


# Shapes


def layer(x: Any, w: Any) -> Any:
    y = x @ w
    return tj.tanh(y), y + 1


def transposed_layer(x: Any, w: Any) -> Any:
    turned_x, turned_w = tj.matrix_transpose(x), tj.matrix_transpose(w)
    return tj.tanh(turned_w @ turned_x) * 2, x @ tj.matrix_transpose(turned_w * 1)


SHAPES = [
    *[(1, 1, 1), (1, 17, 40), (33, 17, 1), (20, 1, 30), (1, 300, 1), (2, 65, 3)],
    *[(5, 5, 5), (16, 16, 16), (31, 8, 33), (40, 40, 40), (3, 7, 39), (25, 2, 1)],
]


@pytest.mark.usefixtures("every_product_is_a_kernel")
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize(("m", "k", "n"), SHAPES)
def test_epilogues_of_every_shape(m: int, k: int, n: int, dtype: str) -> None:
    arrays = drawn((m, k), (k, n), dtype=dtype)
    assert_native_agrees(layer, arrays)
    assert_native_agrees(transposed_layer, arrays)


def test_epilogues_of_odd_sizes(every_product_is_a_kernel: None, full: bool) -> None:
    """All sizes up to 40, each in a place of its own."""
    for size in range(1, 41, 1 if full else 6):
        for m, k, n in ((size, 41 - size, 9), (9, size, 41 - size), (13, 9, size)):
            assert_native_agrees(layer, drawn((m, k), (k, n)))


STACKS: list[tuple[Shape, Shape]] = [
    ((5, 1, 19, 18), (3, 18, 21)),
    ((4, 19, 18), (18, 21)),
    ((19, 18), (3, 18, 21)),
    ((2, 3, 1, 18), (18, 21)),
    ((2, 1, 19, 18), (1, 3, 18, 1)),
    ((1, 19, 18), (1, 18, 21)),
    ((64, 4, 18), (64, 18, 5)),
]


@pytest.mark.usefixtures("every_product_is_a_kernel")
@pytest.mark.parametrize(("left", "right"), STACKS)
def test_epilogues_of_stacks(left: Shape, right: Shape) -> None:
    def body(x: Any, y: Any, b: Any) -> Any:
        out = x @ y
        scores = tj.tanh(out * 0.1 + b)
        return scores, tj.sum(scores, axis=0), tj.swapaxes(out, 0, -1) * 2

    joint = np.broadcast_shapes(left[:-2], right[:-2])
    bias = (*joint[:-1], 1, left[-2], right[-1])
    arrays = drawn(left, right, bias[-len(joint) - 2 :])
    assert_native_agrees(body, arrays)
    assert_native_agrees(gradient_of(lambda *xs: tj.sum(body(*xs)[0] ** 2)), arrays)


def test_operands_that_lie_in_any_way() -> None:
    def body(x: Any, w: Any) -> Any:
        middle = x[3:43, 2:34]
        return (
            tj.tanh(middle @ w),
            tj.tanh(tj.flip(middle, axis=0) @ w[::-1]),
            tj.exp(-((x[::2, ::2][:, :32] @ w) ** 2)),
            tj.broadcast_to(middle[:1], (40, 32)) @ w + 1,
            tj.reshape(x[:32], (40, 64))[:, 32:] @ tj.reshape(w, (30, 32)).T - 1,
        )

    assert_native_agrees(body, drawn((80, 80), (32, 30))[:1] + drawn((32, 30)))


def test_a_product_whose_sums_are_kept_between_blocks_of_k() -> None:
    def body(x: Any, w: Any) -> Any:
        return tj.tanh(0.01 * (x @ w)), tj.nn.relu(0.01 * (w.T @ x.T) + 1)

    assert_native_agrees(body, drawn((40, 3000), (3000, 33)))


# Kernels


def test_a_layer_is_one_kernel() -> None:
    arrays = operands(64, 32, 48)
    for name in ("relu", "tanh", "gelu", "residual", "dropped", "selection"):
        (ops,) = kernels(EPILOGUES[name], arrays)
        assert ops["matmul"] == 1
        assert len(ops) > 1, name


def test_layers_are_as_many_kernels_as_there_are_products() -> None:
    def network(x: Any, *weights: Any) -> Any:
        for w in weights:
            x = tj.nn.gelu(x @ w + 0.1)
        return x

    found = kernels(network, drawn((48, 32), (32, 64), (64, 40), (40, 20)))
    assert [x["matmul"] for x in found] == [1, 1, 1]


def test_two_products_that_are_added_are_two_kernels() -> None:
    def step(x: Any, h: Any, w: Any, u: Any) -> Any:
        return tj.tanh(x @ w + h @ u)

    first, last = kernels(step, drawn((40, 30), (40, 32), (30, 32), (32, 32)))
    assert first == {"matmul": 1}
    assert last == {"matmul": 1, "add": 1, "tanh": 1}


def test_a_product_is_not_in_memory_unless_it_is_asked_for() -> None:
    arrays = operands(64, 32, 48)
    nbytes = 64 * 48 * 4
    for name, arrays_out in (("tanh", 1), ("returned_too", 2), ("used_twice", 2)):
        function = assert_native_agrees(EPILOGUES[name], arrays)
        with tj.config.override(native=True):
            (report,) = function.kernels(*map(tj.asarray, arrays))
        assert report.writes == arrays_out * nbytes, name


def test_what_must_wait_for_all_of_a_product_is_not_fused() -> None:
    arrays = operands(64, 32, 48)
    first, *rest = kernels(scaled_by_itself, arrays)
    assert first == {"matmul": 1}
    assert rest
    first, *_ = kernels(only_turned, arrays)
    assert set(first) <= {"matmul", "add", "tanh"}


def test_kernels_of_one_shape_with_different_epilogues_are_different() -> None:
    """Their tasks have the same text; the tiles that these call have not."""

    def body(x: Any, w: Any, b: Any, r: Any) -> Any:
        return (
            tj.tanh(x @ w + b),
            tj.exp((2 * x) @ w + b),
            tj.tanh((3 * x) @ w + r),
            (4 * x) @ w,
            tj.tanh((5 * x) @ w + b),
        )

    found = kernels(body, operands(64, 32, 48))
    assert sum("matmul" in x for x in found) == 5


def test_kernels_with_the_same_epilogue_are_one_function() -> None:
    def network(x: Any, *weights: Any) -> Any:
        for w in weights:
            x = tj.tanh(x @ w)
        return x

    arrays = drawn((48, 32), *[(32, 32)] * 4)
    assert_native_agrees(network, arrays)
    graph = tj.function(network).graph(*map(tj.asarray, arrays))
    built = build(graph, "network")
    tasks = [
        f for f in built.module.functions if "_k" in f.name and "gemm" not in f.name
    ]
    assert len(built.plan.kernels) == 4
    assert len([f for f in tasks if f.blocks]) == 1


@needs_levels
def test_stores_past_the_caches_are_seen_by_other_threads() -> None:
    """A fence comes before the end of a task that has made such stores.

    Vectors of 16 bytes are not stored so.
    """

    def body(x: Any, w: Any) -> Any:
        return tj.nn.relu(x @ w)

    arrays = drawn((2048, 17), (17, 1024))
    assert_native_agrees(body, arrays)
    graph = tj.function(body).graph(*map(tj.asarray, arrays))
    with tj.config.override(cpu="x86-64-v3"):
        text = str(build(graph, "large").module)
    assert "nontemporal" in text
    assert "fence seq_cst" in text.partition("nontemporal")[0]
    with tj.config.override(cpu="x86-64-v2"):
        assert "nontemporal" not in str(build(graph, "large").module)


@pytest.mark.parametrize("name", EPILOGUES)
def test_the_source_of_kernels_with_epilogues_is_a_program(name: str) -> None:
    arrays = operands(18, 20, 22)
    tensors = [tj.asarray(x) for x in arrays]
    expected = tree.leaves(EPILOGUES[name](*tensors))
    part = part_of(tj.function(EPILOGUES[name]).graph(*tensors))
    assert part is not None
    for at, (got, wanted) in enumerate(
        zip(run_source(part, arrays), expected, strict=True)
    ):
        assert_agrees(COMPOSED, got, wanted.numpy(), where=f"result {at}")


# Bits, checks


def everything(x: Any, w: Any, b: Any, r: Any) -> Any:
    """Shapes of several kinds: large, of few rows, of few columns."""
    y = tj.nn.gelu(x @ w + b)
    z = tj.tanh(y @ w.T)
    value, slopes = gradient_of(lambda x, w: tj.sum(tj.tanh(x @ w) * r))(z, w)
    few = tj.exp(0.01 * (x[:2] @ w)), tj.exp(0.01 * (r[:3] @ w.T))
    return y, z, value, slopes, few, tj.sin(w @ b[:, None]), tj.sin(x.T @ r[:, :1])


def bits(arrays: Sequence[Array]) -> list[bytes]:
    with tj.config.override(native=True):
        results = tree.leaves(tj.function(everything)(*map(tj.asarray, arrays)))
        return [x.numpy().tobytes() for x in results]


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_bits_do_not_depend_on_threads(dtype: str) -> None:
    arrays = operands(190, 130, 210, dtype)
    assert_same_for_any_threads(lambda: bits(arrays))


@needs_levels
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_bits_do_not_depend_on_the_processor(dtype: str) -> None:
    arrays = operands(61, 130, 75, dtype)
    assert_same_for_any_processor(lambda: bits(arrays))


@pytest.mark.parametrize("where", ["product", "epilogue"])
def test_what_is_not_finite_is_found_in_a_product_and_after_it(where: str) -> None:
    @tj.function
    def body(x: Any, w: Any) -> Any:
        return tj.tanh(1 / (x @ w))

    x, w = np.ones((40, 20), "f4"), np.ones((20, 30), "f4")
    if where == "product":
        x[7, 3] = np.inf
    else:
        x[7], x[7, 0] = 0, 0
    with (
        tj.config.override(native=True, cache=False),
        tj.debug.check_numerics(),
        pytest.raises(tj.NonFiniteError) as caught,
    ):
        body(x, w)
    assert caught.value.op == ("matmul" if where == "product" else "div")
    assert caught.value.index[0] == 7


def test_finite_numbers_pass_the_check() -> None:
    arrays = operands(40, 20, 30)
    with tj.config.override(cache=False), tj.debug.check_numerics():
        for name in ("gelu", "returned_too", "cell", "reduced", "selection"):
            assert_native_agrees(EPILOGUES[name], arrays)


def test_nan_and_infinity_go_through_epilogues() -> None:
    x, w, b, r = operands(40, 20, 30)
    x[3, 4], x[5, 6], w[2, 7], w[9, 9] = np.nan, np.inf, -np.inf, np.nan
    for name in ("relu", "tanh", "residual", "selection", "returned_too"):
        assert_native_agrees(EPILOGUES[name], [x, w, b, r])


# Loops that read what epilogues leave


ROWS = [(2, 23, 23), (2, 17, 9), (3, 31, 40), (1, 34, 34), (2, 39, 23)]


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("shape", ROWS)
def test_numbers_of_rows_in_a_last_tile_that_is_not_full(
    shape: Shape, dtype: str
) -> None:
    """Rows that the tile before has done are not done again with its numbers."""

    def body(x: Any) -> Any:
        total = tj.sum(x, axis=(0, 2))
        return total / 46, tj.sqrt(total * total + 1)

    assert_native_agrees(body, drawn(shape, dtype=dtype))
