"""Sums of what the epilogue of a product computes, begun along with it.

`PROGRAMS` has what is added up, with the operations that each product's kernel does of
it. The order of additions is tested bit by bit in `tests/test_gemm_sums.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from agreement import COMPOSED, EXACT, assert_agrees
from fuzz.arguments import Shape
from limits import set_limits

import tapejit as tj
from tapejit.base import tree

from .compiled import (
    assert_same_for_any_processor,
    assert_same_for_any_threads,
    needs_levels,
)
from .test_kernel_source import part_of, run_source
from .test_products import (
    Array,
    Body,
    assert_native_agrees,
    drawn,
    gradient_of,
    kernels,
    operands,
)


def loss(x: Any, w: Any, b: Any, r: Any) -> Any:
    return tj.sum((x @ w - r) ** 2)


def by_bias(x: Any, w: Any, b: Any, r: Any) -> Any:
    """A gradient that goes on, and its sum."""
    g = (x @ w) * (r > 0)
    return g, tj.sum(g, axis=0), g @ w.T


def several(x: Any, w: Any, b: Any, r: Any) -> Any:
    """Of different values, along rows and along all."""
    y = x @ w
    z = tj.tanh(0.1 * y + b)
    return tj.sum(y, axis=0), tj.mean(z * z), tj.sum(z, axis=0, keepdims=True), z


def extremes(x: Any, w: Any, b: Any, r: Any) -> Any:
    y = tj.nn.relu(x @ w + b)
    return tj.max(y, axis=0), tj.min(y * r), tj.sum(y)


def used_again(x: Any, w: Any, b: Any, r: Any) -> Any:
    """What is computed from a sum, element by element and as a whole."""
    y = x @ w
    total = tj.sum(y * r, axis=0)
    return b - 0.1 * total, y - total, tj.tanh(total)[None, :] @ w.T


def rows_of_squares(x: Any, w: Any, b: Any, r: Any) -> Any:
    """Along each row, and over all of it."""
    y = (x @ w - b) ** 2
    return tj.sum(y, axis=1), tj.sum(y, axis=1, keepdims=True) * r, tj.sum(y)


PROGRAMS: dict[str, tuple[Body, set[str]]] = {
    "loss": (loss, {"matmul", "sub", "square", "sum"}),
    "bias": (by_bias, {"matmul", "greater", "cast", "mul", "sum"}),
    "several": (several, {"matmul", "mul", "add", "tanh", "sum"}),
    "extremes": (extremes, {"matmul", "add", "maximum", "mul", "max", "min", "sum"}),
    "again": (used_again, {"matmul", "mul", "sum"}),
    "product": (lambda x, w, b, r: tj.sum(x @ w, axis=0) + b, {"matmul", "sum"}),
    "rows": (rows_of_squares, {"matmul", "sub", "square", "sum"}),
}


@pytest.fixture(autouse=True)
def small_results_are_large(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Sums along rows of any product; code is not kept, since others get none."""
    set_limits(monkeypatch, sum_groups_bytes=0)
    with tj.config.override(cache=False):
        yield


SIZES = [(64, 40, 130), (200, 450, 75), (384, 17, 128), (130, 70, 200)]


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_sums_of_a_product_are_what_plain_python_gives(
    name: str, dtype: str, full: bool
) -> None:
    body, ops = PROGRAMS[name]
    for sizes in SIZES if full else SIZES[:2]:
        first, *_ = kernels(body, operands(*sizes, dtype))
        assert set(first) == ops, sizes


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_source_of_kernels_with_sums_is_a_program(name: str) -> None:
    arrays = operands(64, 20, 64 if name == "extremes" else 130)
    if name == "extremes":
        arrays = operands(256, 20, 64)
    tensors, (body, _) = [tj.asarray(x) for x in arrays], PROGRAMS[name]
    part = part_of(tj.function(body).graph(*tensors))
    assert part is not None
    results = zip(run_source(part, arrays), tree.leaves(body(*tensors)), strict=True)
    for at, (got, wanted) in enumerate(results):
        assert_agrees(COMPOSED, got, wanted.numpy(), where=f"result {at}")


def reports(body: Body, arrays: Sequence[Array]) -> list[Any]:
    with tj.config.override(native=True):
        return tj.function(body).kernels(*map(tj.asarray, arrays))


def test_what_only_a_sum_needs_is_not_in_memory() -> None:
    product, rest = reports(loss, operands(512, 40, 64))
    assert product.writes == 512 // 128 * 64 * 4
    assert product.flops == 512 * 64 * (2 * 40 + 3)
    assert rest.reads == product.writes
    assert rest.writes == 4


def test_a_sum_of_one_unit_of_rows_is_all_there_is_to_it() -> None:
    (report,) = reports(lambda x, w: tj.sum(x @ w, axis=0), drawn((128, 40), (40, 256)))
    assert report.writes == 256 * 4
    assert "[j] += " in report.source


OTHERS: dict[str, tuple[Body, Shape]] = {
    "rows that are kept": (
        lambda x, w: (lambda y: (y, tj.sum(y, axis=1)))(tj.tanh(x @ w)),
        (128, 40, 256),
    ),
    "largest of rows": (lambda x, w: tj.max((x @ w) ** 2, axis=1), (128, 40, 256)),
    "a prime number of rows": (lambda x, w: tj.sum(x @ w, axis=0), (509, 40, 128)),
    "few columns": (lambda x, w: tj.sum(x @ w, axis=0), (128, 40, 30)),
    "few rows": (lambda x, w: tj.sum(tj.tanh(x @ w), axis=0), (20, 40, 256)),
    "stored as it is": (lambda x, w: (x @ w, tj.sum(x @ w, axis=0)), (128, 40, 256)),
    "products": (lambda x, w: tj.prod(x @ w, axis=0), (64, 40, 256)),
    "integers": (lambda x, w: tj.sum(x @ w > 0, axis=0), (128, 40, 256)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_reductions_are_kernels_of_their_own(name: str) -> None:
    body, (m, k, n) = OTHERS[name]
    first, *rest = kernels(body, drawn((m, k), (k, n)))
    assert not {"sum", "prod", "max"} & {*first}
    assert rest


def test_sums_in_another_precision_than_the_product() -> None:
    def body(x: Any, w: Any, b: Any, r: Any) -> Any:
        y = tj.astype(x @ w, "float64" if x.dtype == "float32" else "float32")
        return tj.sum(y, axis=0), tj.sum(y * y), tj.sum(y * y, axis=1)

    for dtype in ("f4", "f8"):
        arrays = [np.round(2 * x) for x in operands(128, 40, 256, dtype)]
        first, *_ = kernels(body, arrays, EXACT)
        assert first["sum"] == 2, "not that along rows"


def test_halves_are_added_up_by_a_kernel_of_its_own() -> None:
    arrays = [x.astype(np.float16) for x in drawn((128, 40), (40, 256))]
    first, *_ = kernels(lambda x, w: tj.sum(x @ w, axis=0), arrays)
    assert first == {"matmul": 1}


STACKS: list[tuple[Shape, Shape, bool]] = [
    ((4, 48, 20), (20, 96), True),
    ((2, 3, 40, 20), (20, 96), True),
    ((1, 128, 20), (1, 20, 130), True),
    ((4, 48, 20), (4, 20, 96), False),
    ((64, 20), (3, 20, 96), False),
]


@pytest.mark.parametrize(("left", "right", "is_one"), STACKS)
def test_sums_of_stacks(left: Shape, right: Shape, is_one: bool) -> None:
    """Those with one right side are one tall matrix."""

    def body(x: Any, w: Any) -> Any:
        y = tj.tanh(x @ w)
        return tj.sum(y, axis=tuple(range(y.ndim - 1))), tj.mean(y * y)

    first, *_ = kernels(body, drawn(left, right))
    assert ("sum" in first) == is_one


def test_operands_of_a_sum_lie_in_any_way() -> None:
    def body(x: Any, w: Any) -> Any:
        return (
            tj.sum(tj.exp(0.1 * (x.T @ w)), axis=0),
            tj.sum(tj.flip(x, axis=0)[:, :64] @ w.T[:64], axis=0),
            tj.sum(tj.permute_dims(tj.reshape(x, (4, 60, 240)), (1, 0, 2)) @ w),
        )

    assert_native_agrees(body, drawn((240, 240), (240, 240)))


@pytest.mark.parametrize("right", [(20, 96), (4, 20, 96)])
def test_sums_along_rows_of_stacks(right: Shape) -> None:
    def body(x: Any, w: Any) -> Any:
        return tj.sum(tj.tanh(x @ w), axis=-1)

    first, last = kernels(body, drawn((4, 48, 20), right))
    assert first == {"matmul": 1, "tanh": 1, "sum": 1}
    assert last == {"sum": 1}


def test_a_row_of_one_group_is_all_there_is_to_it() -> None:
    (ops,) = kernels(
        lambda x, w: tj.sum((x @ w) ** 2, axis=1), drawn((99, 40), (40, 16))
    )
    assert ops == {"matmul": 1, "square": 1, "sum": 1}


@pytest.mark.parametrize("rows", [4096, 512])
def test_sums_along_rows_are_for_results_that_are_far_away(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    body, arrays = PROGRAMS["rows"][0], operands(rows, 20, 128)
    first, *_ = kernels(lambda x, w, b, r: body(x, w, b, r)[0], arrays)
    assert ("sum" in first) == (rows * 128 * 4 >= 1 << 20)


def test_integers_add_up_exactly() -> None:
    def body(x: Any, w: Any, b: Any, r: Any) -> Any:
        y = x @ w
        return tj.sum(y, axis=0), tj.sum(y + r), tj.max(y, axis=0), tj.min(y - b)

    arrays = [np.round(4 * x) for x in operands(384, 20, 75)]
    first, *_ = kernels(body, arrays, EXACT)
    assert first["sum"] == 2


def test_nan_and_infinity_go_through_sums() -> None:
    for bad in (np.nan, np.inf, -np.inf):
        x, w, b, r = operands(256, 20, 80)
        x[200, 3] = bad
        for name in PROGRAMS:
            assert_native_agrees(PROGRAMS[name][0], [x, w, b, r])


def test_zeros_of_either_sign_add_up_to_zero() -> None:
    x, w = np.zeros((64, 20), "f4"), -np.ones((20, 128), "f4")
    with tj.config.override(native=True):
        total = tj.function(lambda x, w: tj.sum(-(x @ w) * 0.0, axis=0))(x, -w)
    assert not np.signbit(total.numpy()).any()


# Gradients and trainings


def network_loss(x: Any, w: Any, b: Any, u: Any, c: Any) -> Any:
    hidden = tj.nn.relu(x @ w + b)
    return tj.mean((tj.tanh(hidden @ u + c) - 0.5) ** 2)


SHAPES: list[Shape] = [(192, 40), (40, 128), (128,), (128, 96), (96,)]


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_gradients_by_a_bias(dtype: str) -> None:
    found = kernels(gradient_of(network_loss), drawn(*SHAPES, dtype=dtype))
    fused = [x.get("sum", 0) for x in found if "matmul" in x]
    assert sum(fused) == 3, "the loss and both biases"


@pytest.mark.parametrize("rows", [96, 192])
def test_biases_are_updated_in_place(rows: int) -> None:
    def run(decorate: Any) -> list[Array]:
        start = drawn(*SHAPES[1:])
        variables = [tj.Variable(x) for x in start]
        optimizer = tj.optimizers.SGD(0.05)

        @decorate
        def step(x: Any) -> Any:
            with tj.GradientTape() as tape:
                value = network_loss(x, *variables)
            slopes = tape.gradient(value, variables)
            optimizer.apply_gradients(zip(slopes, variables, strict=True))
            return value

        (x,) = map(tj.asarray, drawn((rows, 40), seed=1))
        losses = [step(x).numpy() for _ in range(3)]
        if isinstance(step, tj.Function):
            report = str(step.explain(x))
            assert "in place" in report
        return [*losses, *(v.numpy() for v in variables)]

    plain = run(lambda body: body)
    with tj.config.override(native=True):
        native = run(tj.function)
    for at, (got, expected) in enumerate(zip(native, plain, strict=True)):
        assert_agrees(COMPOSED, got, expected, where=f"value {at}")


# Bits, checks


def bits(arrays: Sequence[Array]) -> list[bytes]:
    """What all programs give, each as a function of its own."""
    tensors, found = [tj.asarray(x) for x in arrays], []
    with tj.config.override(native=True):
        for body, _ in PROGRAMS.values():
            found += tree.leaves(tj.function(body)(*tensors))
    return [x.numpy().tobytes() for x in found]


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_bits_of_sums_do_not_depend_on_threads(dtype: str) -> None:
    arrays = operands(768, 130, 210, dtype)
    assert_same_for_any_threads(lambda: bits(arrays))


@needs_levels
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_bits_of_sums_do_not_depend_on_the_processor(dtype: str) -> None:
    arrays = operands(200, 400, 75, dtype)
    assert_same_for_any_processor(lambda: bits(arrays))


@pytest.mark.parametrize("where", ["product", "epilogue", "sum"])
def test_what_is_not_finite_is_found_where_sums_are_fused(where: str) -> None:
    @tj.function
    def body(x: Any, w: Any) -> Any:
        return tj.sum(1 / (x @ w), axis=0)

    x, w = np.ones((128, 20), "f4"), np.ones((20, 256), "f4")
    if where == "product":
        x[7, 3] = np.inf
    elif where == "epilogue":
        x[7] = 0
    else:
        x *= 1e-39
    with (
        tj.config.override(native=True, cache=False),
        tj.debug.check_numerics(),
        pytest.raises(tj.NonFiniteError) as caught,
    ):
        body(x, w)
    expected = {"product": "matmul", "epilogue": "div", "sum": "sum"}
    assert caught.value.op == expected[where]
