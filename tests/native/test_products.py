"""Products of matrices and what is fused into them, against plain Python.

A product is a kernel of its own; what is computed from it element by element is done
while it is in registers. `PROGRAMS` has what such an epilogue may be and what must not
become one. Where `every_product_is_a_kernel` is asked for, small products are kernels
too, so that sizes at which tiles have rests cost little.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from agreement import COMPOSED, EXACT, assert_agrees
from graph_properties import for_all
from hypothesis import strategies as st
from random_graphs import SEEDS

import tapejit as tj
from tapejit import tree
from tapejit.codegen.module import build
from tapejit.passes.fusion import lower
from tapejit.types import is_float

from . import random_programs
from .random_programs import Pool, Program, Shape, Weights
from .test_native_programs import Judge, gradients, values

Array = np.ndarray[Any, Any]
Body = Callable[..., Any]


def drawn(*shapes: Shape, dtype: Any = "f4", seed: int = 0) -> list[Array]:
    rng = np.random.default_rng((len(shapes), seed))
    return [rng.uniform(-1, 1, shape).astype(dtype) for shape in shapes]


@pytest.fixture
def every_product_is_a_kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """However small; its code is not kept, since it is not what others would get."""

    def is_of_integers(x: Any, y: Any) -> bool:
        return bool(x.dtype.kind in "biu")

    monkeypatch.setattr(lower, "is_small_product", is_of_integers)
    with tj.config.override(cache=False):
        yield


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
    y = x @ w
    y = y @ y.T
    return tj.exp(0.1 * (y - y.T)) + y


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
            *(across_itself, cell, gates, one_after_the_other, reduced, normalised),
            *(shares, picked, put_together, by_position, scaled_by_itself, stacked_on),
        )
    },
}
SIZES = {"large": (70, 40, 52), "tails": (37, 23, 50), "wide": (18, 40, 300)}


def operands(m: int, k: int, n: int, dtype: Any = "f4") -> list[Array]:
    return drawn((m, k), (k, n), (n,), (m, n), dtype=dtype)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("name", EPILOGUES)
def test_what_follows_a_product_is_what_plain_python_gives(
    name: str, sizes: str
) -> None:
    assert_native_agrees(EPILOGUES[name], operands(*SIZES[sizes]))


@pytest.mark.usefixtures("every_product_is_a_kernel")
@pytest.mark.parametrize("dtype", ["f8", "f2", "bfloat16"])
@pytest.mark.parametrize("name", ["gelu", "cell", "returned_too", "reduced", "turned"])
def test_epilogues_in_other_dtypes(name: str, dtype: str) -> None:
    kind = tj.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    assert_native_agrees(EPILOGUES[name], operands(18, 20, 22, kind))


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
@pytest.mark.parametrize("m,k,n", SHAPES)
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
@pytest.mark.parametrize("left,right", STACKS)
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
            tj.exp(-(x[::2, ::2][:, :32] @ w) ** 2),
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
    tasks = [f for f in built.module.functions if "_k" in f.name and "gemm" not in f.name]
    assert len(built.plan.kernels) == 4
    assert len([f for f in tasks if f.blocks]) == 1


def test_stores_past_the_caches_are_seen_by_other_threads() -> None:
    """A fence comes before the end of a task that has made such stores."""

    def body(x: Any, w: Any) -> Any:
        return tj.nn.relu(x @ w)

    arrays = drawn((2048, 17), (17, 1024))
    assert_native_agrees(body, arrays)
    graph = tj.function(body).graph(*map(tj.asarray, arrays))
    text = str(build(graph, "large").module)
    assert "fence seq_cst" in text.partition("nontemporal")[0]


# Gradients and updates


def network_loss(x: Any, w: Any, u: Any, v: Any, b: Any) -> Any:
    hidden = tj.nn.gelu(tj.tanh(x @ w + b) @ u)
    return tj.mean((hidden @ v) ** 2)


def attention_loss(x: Any, w: Any, u: Any, v: Any) -> Any:
    """Four heads by hand, with a mask and what is added to it."""
    batch, length, size = x.shape

    def heads(y: Any) -> Any:
        return tj.permute_dims(tj.reshape(y, (batch, length, 4, -1)), (0, 2, 1, 3))

    q, k, values = heads(x @ w), heads(x @ u), heads(x @ v)
    scores = q @ tj.matrix_transpose(k) / math.sqrt(q.shape[-1])
    below = tj.arange(length)[:, None] >= tj.arange(length)
    mixed = tj.nn.softmax(tj.where(below, scores, -1e9), axis=-1) @ values
    mixed = tj.reshape(tj.permute_dims(mixed, (0, 2, 1, 3)), (batch, length, size))
    return tj.mean(tj.nn.layer_norm(x + mixed, axis=-1) ** 3)


def norm_loss(x: Any, w: Any, scale: Any, r: Any) -> Any:
    return tj.mean(tj.nn.gelu(tj.nn.layer_norm(x @ w, scale, scale)) * r)


LOSSES: dict[str, tuple[Body, list[Shape]]] = {
    "network": (network_loss, [(40, 32), (32, 48), (48, 24), (24, 20), (48,)]),
    "attention": (attention_loss, [(3, 20, 32), (32, 32), (32, 32), (32, 32)]),
    "norm": (norm_loss, [(40, 32), (32, 48), (48,), (40, 48)]),
}


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("name", LOSSES)
def test_gradients_through_products(name: str, dtype: str) -> None:
    loss, shapes = LOSSES[name]
    assert_native_agrees(gradient_of(loss), drawn(*shapes, dtype=dtype))


def test_second_derivatives_through_products() -> None:
    def body(x: Any, w: Any, u: Any) -> Any:
        def slope(x: Any) -> Any:
            return tj.grad(lambda x: tj.sum(tj.tanh(tj.tanh(x @ w) @ u)))(x)

        with tj.GradientTape() as tape:
            tape.watch([w, u])
            loss = tj.mean(slope(x) ** 2)
        return loss, tape.gradient(loss, [w, u])

    assert_native_agrees(body, drawn((40, 20), (20, 32), (32, 20)))


class Trained:
    """Variables and a step of training; `decorate` is `tj.function` or nothing."""

    def __init__(self, optimizer: Callable[[], Any], decorate: Any) -> None:
        w, b, u = drawn((32, 48), (48,), (48, 24))
        self.variables = [tj.Variable(x) for x in (w, b, u)]
        self.optimizer = optimizer()
        self.step = decorate(self.body)

    def body(self, x: Any, y: Any) -> Any:
        w, b, u = self.variables
        with tj.GradientTape() as tape:
            loss = tj.mean((tj.tanh(x @ w + b) @ u - y) ** 2)
        slopes = tape.gradient(loss, self.variables)
        self.optimizer.apply_gradients(zip(slopes, self.variables, strict=True))
        return loss

    def run(self, steps: int) -> list[Array]:
        x, y = map(tj.asarray, drawn((40, 32), (40, 24)))
        losses = [self.step(x, y).numpy() for _ in range(steps)]
        return [*losses, *(v.numpy() for v in self.variables)]


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "descent": lambda: tj.optimizers.SGD(0.05),
    "momentum": lambda: tj.optimizers.SGD(0.05, momentum=0.9),
    "adam": lambda: tj.optimizers.Adam(0.01, epsilon=1e-3),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_updates_of_variables_in_epilogues(name: str) -> None:
    plain = Trained(OPTIMIZERS[name], lambda body: body).run(2)
    with tj.config.override(native=True):
        native = Trained(OPTIMIZERS[name], tj.function).run(2)
    for at, (got, expected) in enumerate(zip(native, plain, strict=True)):
        assert_agrees(COMPOSED, got, expected, where=f"value {at}")


def test_an_update_is_one_kernel_with_the_gradient() -> None:
    with tj.config.override(native=True):
        trained = Trained(OPTIMIZERS["descent"], tj.function)
        found = trained.step.kernels(*map(tj.asarray, drawn((40, 32), (40, 24))))
    shape = {48 * 24 * 4, 32 * 48 * 4}
    updates = [
        x for x in found if "matmul" in x.ops and "sub" in x.ops and x.writes in shape
    ]
    assert len(updates) == 2


@pytest.mark.parametrize("order", ["read-first", "assigned-first"])
def test_a_variable_that_its_own_update_multiplies(order: str) -> None:
    """The product reads all of what its epilogue replaces."""

    def run(decorate: Any) -> list[Array]:
        (start,) = drawn((40, 40))
        v = tj.Variable(start)

        @decorate
        def step(x: Any) -> Any:
            before = x @ v if order == "read-first" else x
            v.assign(1.5 * v - 0.5 * (v @ v.T @ v) / 40)
            return before, x @ v

        (x,) = map(tj.asarray, drawn((30, 40), seed=1))
        results = [y.numpy() for _ in range(2) for y in step(x)]
        return [*results, v.numpy()]

    plain = run(lambda body: body)
    with tj.config.override(native=True):
        native = run(tj.function)
    for at, (got, expected) in enumerate(zip(native, plain, strict=True)):
        assert_agrees(COMPOSED, got, expected, where=f"value {at}")


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
    found = []
    for threads in (1, 2, 3):
        with tj.set_num_threads(threads):
            found.append(bits(arrays))
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_bits_do_not_depend_on_the_processor(dtype: str) -> None:
    arrays = operands(61, 130, 75, dtype)
    here = bits(arrays)
    for level in ("x86-64-v3", "x86-64-v2"):
        with tj.config.override(cpu=level):
            assert bits(arrays) == here, level


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


# Random programs


class ProductPool(Pool):
    """Tensors of few different sizes, so that many of them can be multiplied."""

    most_elements = 8000

    def weights(self) -> Weights:
        """Mostly products and what is done with them element by element."""
        return PRODUCT_WEIGHTS


class ProductProgram(Program):
    """A program of products of matrices and what comes before and after them."""

    def pool(self, xs: Sequence[Any]) -> Pool:
        return ProductPool(xs)


def matrices(pool: Pool) -> None:
    """A product of two tensors, each as it is or transposed, stacks broadcast."""
    choice = pool.choice
    at = pool.pick(lambda x: is_float(x.dtype) and x.ndim >= 2)
    if at is None:
        return
    x = pool.tensors[at]
    if choice.random() < 0.4:
        x = tj.matrix_transpose(x)

    def sides(y: Any) -> list[int]:
        """Whether it fits as it is (0) or transposed (1)."""
        if y.dtype != x.dtype or y.ndim < 2:
            return []
        try:
            np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
        except ValueError:
            return []
        return [side for side in (0, 1) if y.shape[side - 2] == x.shape[-1]]

    other = pool.pick(lambda y: bool(sides(y)))
    assert other is not None  # its own transpose, at least
    y = pool.tensors[other]
    if choice.choice(sides(y)):
        y = tj.matrix_transpose(y)
    bound = x.shape[-1] * pool.bounds[at] * pool.bounds[other]
    pool.add(lambda: x @ y, bound, at, other)


def turned_over(pool: Pool) -> None:
    at = pool.pick(lambda x: x.ndim >= 2)
    if at is not None:
        x = pool.tensors[at]
        pool.add(lambda: tj.matrix_transpose(x), pool.bounds[at], at)


PRODUCT_WEIGHTS: Weights = {
    matrices: 8,
    random_programs.unary: 5,
    random_programs.binary: 7,
    random_programs.reduction: 2,
    random_programs.rearrangement: 1,
    turned_over: 1,
    random_programs.part: 1,
    random_programs.joint: 1,
    random_programs.selection: 1,
    random_programs.comparison: 1,
    random_programs.conversion: 1,
    random_programs.gathering: 1,
}


@st.composite
def product_programs(draw: Any, steps: int) -> ProductProgram:
    """Some matrices, stacks of them and a row; sizes are any up to 40."""
    seeds = [draw(SEEDS) for _ in range(steps + 1)]
    choice = random.Random(seeds[0])
    sizes = [choice.randint(1, 40) for _ in range(choice.randint(1, 3))]
    dtype = choice.choice(("float32", "float32", "float32", "float64", "float16"))

    def shape() -> Shape:
        front: tuple[Shape, ...] = ((), (), (), (1,), (2,), (3,), (2, 1))
        return (*choice.choice(front), choice.choice(sizes), choice.choice(sizes))

    arguments = [(dtype, shape()) for _ in range(choice.randint(2, 4))]
    arguments.append((dtype, (choice.choice(sizes),)))
    return ProductProgram(tuple(seeds[1:]), tuple(arguments))


@pytest.mark.usefixtures("every_product_is_a_kernel")
@pytest.mark.parametrize(
    ("ask", "steps", "examples"),
    [
        pytest.param(values, 16, (36, 60), id="values"),
        pytest.param(gradients, 12, (24, 40), id="gradients"),
    ],
)
def test_random_programs_of_products_agree_with_plain_python(
    ask: Callable[[Program], Body],
    steps: int,
    examples: tuple[int, int],
    full: bool,
) -> None:
    judge = Judge()

    @for_all(product_programs(steps), full, examples[full])
    def holds(program: ProductProgram) -> None:
        judge.compare(program, ask(program))

    assert judge.judged > 0.8 * judge.results > 0, f"{judge.judged} of {judge.results}"
