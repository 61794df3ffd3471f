"""Jacobians and nested tapes in both modes (lines 36 to 38)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from agreement import COMPOSED

import tapejit as tj

from .both_modes import assert_modes, assert_taped, note, note_error, ways
from .test_gradient import Layer, Pair
from .test_higher_order import LINEAR, PIECEWISE
from .test_jacobian import REFUSED as REFUSED_SHAPES


def scalar() -> Any:
    return tj.Variable(2.0, name="x")


def vector() -> Any:
    return tj.Variable([1.0, 2.0], name="x")


def rows() -> Any:
    return tj.Variable(np.arange(1.0, 7.0).reshape(3, 2), name="x")


# 36: jacobian


@pytest.mark.parametrize("target_shape", [(), (2,), (2, 3), (0,), (2, 0)])
@pytest.mark.parametrize("source_shape", [(), (4,), (4, 2), (3, 0)])
def test_s36_its_shape_is_that_of_the_target_then_of_the_source(
    target_shape: tuple[int, ...], source_shape: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(0)
    at = rng.normal(size=source_shape)
    weight = rng.normal(size=(*target_shape, *source_shape))
    axes = tuple(range(len(target_shape), weight.ndim))

    def program(x: Any, weight: Any) -> Any:
        with tj.GradientTape() as tape:
            y = tj.sum(tj.sin(x) * weight, axis=axes)
        return tape.jacobian(y, x)

    plain = assert_modes(program, lambda: (tj.Variable(at), tj.asarray(weight)))
    np.testing.assert_allclose(plain.result.numpy(), weight * np.cos(at), rtol=1e-12)


def test_s36_structures_of_sources_and_of_targets() -> None:
    def program(a: Any, b: Any, unused: Any) -> Any:
        with tj.GradientTape(persistent=True) as tape:
            y = tj.stack([a[0] * b, a[1] * b, b])
            z = tj.sum(a * a)
        return [
            tape.jacobian(y, [a, b]),
            tape.jacobian(y, {"w": a, "u": unused}),
            tape.jacobian(y, Pair(b, [a])),
            tape.jacobian(y, Layer(a, b)),
            tape.jacobian({"y": y, "z": z}, (a, b)),
            tape.jacobian(y, []),
            tape.jacobian([], a),
        ]

    def setup() -> Any:
        return vector(), tj.Variable(3.0), tj.Variable([1.0])

    da, db = [[3.0, 0.0], [0.0, 3.0], [0.0, 0.0]], [1.0, 2.0, 1.0]
    expected = [
        [da, db],
        {"w": da, "u": None},
        Pair(db, [da]),
        Layer(da, db),
        {"y": (da, db), "z": ([2.0, 4.0], None)},
        [],
        [],
    ]
    assert_modes(program, setup, expected=expected)


@pytest.mark.parametrize("fill", ["none", "zero"])
def test_s36_unconnected_integer_and_empty_ones(fill: str) -> None:
    def program(x: Any, w: Any) -> Any:
        with tj.GradientTape(persistent=True) as tape:
            y = x * x
            n = tj.astype(y, tj.int32)
            empty = x[:0] * 2.0
        return [
            tape.jacobian(y, [x, w], unconnected_gradients=fill),
            tape.jacobian(n, x, unconnected_gradients=fill),
            tape.jacobian(empty, x),
            tape.jacobian(x, x),
        ]

    def setup() -> Any:
        return vector(), tj.Variable([[1.0, 2.0, 3.0]], dtype="float64")

    is_zero = fill == "zero"
    expected = [
        [[[2.0, 0.0], [0.0, 4.0]], np.zeros((2, 1, 3)) if is_zero else None],
        np.zeros((2, 2), np.float32) if is_zero else None,
        np.zeros((0, 2), np.float32),
        [[1.0, 0.0], [0.0, 1.0]],
    ]
    assert_modes(program, setup, expected=expected)


@pytest.mark.parametrize("chunk_size", [1, 3, 7, 100, None])
def test_s36_chunks_give_the_same(chunk_size: int | None) -> None:
    def program(x: Any) -> Any:
        with tj.GradientTape() as tape:
            y = tj.exp(x) * tj.sum(x)
        return tape.jacobian(y, x, chunk_size=chunk_size)

    at = np.linspace(0.5, 1.0, 7)
    plain = assert_modes(program, lambda: tj.Variable(at))
    whole = np.exp(at)[:, None] + np.diag(np.exp(at) * at.sum())
    np.testing.assert_allclose(plain.result.numpy(), whole, rtol=1e-12)


def test_s36_a_refused_chunk_is_the_same_error() -> None:
    def program(x: Any) -> Any:
        with tj.GradientTape() as tape:
            y = x * x
        note_error(lambda: tape.jacobian(y, x, chunk_size=0))
        return tape.jacobian(y, x)

    assert_modes(program, vector, expected=[[2.0, 0.0], [0.0, 4.0]])


def test_s36_jacobians_of_a_call_by_a_tape_around_it() -> None:
    def program(x: Any, w: Any) -> Any:
        return tj.sin(x) * w, tj.sum(x * x), w[0]

    def setup() -> Any:
        return tj.asarray([0.5, 1.0]), tj.Variable([2.0, 3.0])

    found = []
    for _, call in ways(program, setup):
        x, w = setup()
        with tj.GradientTape() as tape:
            tape.watch(x)
            results = call(x, w)
        found.append(
            tj.tree.map(
                lambda g: None if g is None else g.tolist(),
                tape.jacobian(results, [x, w]),
                none_is_leaf=True,
            )
        )
    assert all(x == found[0] for x in found)
    assert found[0][1] == [[1.0, 2.0], None]
    assert found[0][2] == [None, [1.0, 0.0]]


# 37: batch_jacobian


def test_s37_one_jacobian_per_row_of_the_batch() -> None:
    def program(x: Any) -> Any:
        with tj.GradientTape(persistent=True) as tape:
            y = tj.stack([x[:, 0] * x[:, 1], x[:, 0] ** 2, x[:, 1] ** 3], axis=1)
        return [tape.batch_jacobian(y, x), tape.batch_jacobian(y, x, chunk_size=2)]

    at = np.arange(1.0, 7.0).reshape(3, 2)
    expected = np.stack(
        [[[b, a], [2 * a, 0.0], [0.0, 3 * b * b]] for a, b in at.tolist()]
    )
    plain = assert_modes(program, rows)
    for found in plain.result:
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-14)


@pytest.mark.parametrize("name", REFUSED_SHAPES)
def test_s37_rank_below_two_or_another_batch_is_the_same_error(name: str) -> None:
    target_shape, source_shape = REFUSED_SHAPES[name]

    def program(x: Any) -> Any:
        with tj.GradientTape() as tape:
            y = tj.sum(x * x) * tj.ones(target_shape)
        note_error(lambda: tape.batch_jacobian(y, x))
        note_error(lambda: tape.batch_jacobian([y], x))
        return tape.gradient(y, x)

    plain = assert_modes(program, lambda: tj.Variable(np.ones(source_shape)))
    assert issubclass(plain.notes[0][0], ValueError)
    assert issubclass(plain.notes[1][0], TypeError)


def test_s37_it_escapes_as_the_same_error() -> None:
    def program(x: Any) -> Any:
        with tj.GradientTape() as tape:
            y = x * x
        return tape.batch_jacobian(y, x)

    assert_modes(program, vector, raises=(ValueError, "batch_jacobian takes"))


def test_s37_unconnected_honours_none_and_zero() -> None:
    def program(x: Any, w: Any) -> Any:
        with tj.GradientTape(persistent=True) as tape:
            y = x * x
        return (
            tape.batch_jacobian(y, w),
            tape.batch_jacobian(y, w, unconnected_gradients="zero"),
        )

    def setup() -> Any:
        x = tj.Variable([[1.0, 2.0]])
        return x, tj.Variable([[1.0, 2.0, 3.0]], dtype="float64")

    assert_modes(program, setup, expected=(None, np.zeros((1, 2, 3))))


def test_s37_a_dependence_across_the_batch_is_found_when_checking() -> None:
    def program(x: Any) -> Any:
        with tj.GradientTape(persistent=True) as tape:
            centred = x - tj.mean(x, axis=0)
            apart = x * x
        note_error(lambda: tape.batch_jacobian(centred, x))
        return tape.batch_jacobian(apart, x)

    with tj.config.override(check=True):
        plain = assert_modes(program, rows)
    assert "depends on row" in plain.notes[0][1]


def test_s37_a_batch_through_a_call() -> None:
    def program(x: Any, w: Any) -> Any:
        return tj.tanh(x @ w)

    def setup() -> Any:
        at = np.linspace(0.0, 1.0, 6).reshape(3, 2)
        return tj.asarray(at), tj.Variable(np.array([[1.0, 2.0], [3.0, 4.0]]))

    found = []
    for _, call in ways(program, setup):
        x, w = setup()
        with tj.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = call(x, w)
        found.append(tape.batch_jacobian(y, x).tolist())
    assert all(x == found[0] for x in found)
    x, w = setup()
    slope = 1 - np.tanh(x.numpy() @ w.numpy()) ** 2
    np.testing.assert_allclose(found[0], slope[:, :, None] * w.numpy().T, rtol=1e-12)


# 38: nested tapes


POWERS = {
    "power": lambda x: x**4,
    "product": lambda x: x * x * x * x,
    "square of square": lambda x: (x**2) ** 2,
}


@pytest.mark.parametrize("function", POWERS.values(), ids=POWERS)
def test_s38_the_derivatives_of_the_fourth_power(function: Any) -> None:
    def derivative(x: Any, order: int) -> Any:
        if order == 0:
            return function(x)
        with tj.GradientTape() as tape:
            y = derivative(x, order - 1)
        return tape.gradient(y, x)

    def program(x: Any) -> Any:
        return [derivative(x, order) for order in range(5)]

    assert_modes(program, scalar, expected=[16.0, 32.0, 48.0, 48.0, 24.0])
    found = assert_taped(function, scalar, order=4)
    assert [float(row[0]) for row in found[:4]] == [32.0, 48.0, 48.0, 24.0]


def test_s38_tapes_in_the_body_and_around_the_call() -> None:
    def inside(x: Any, w: Any) -> Any:
        with tj.GradientTape() as tape:
            tape.watch(x)
            y = x**4 * w
        return tape.gradient(y, [x, w])

    def setup() -> Any:
        return tj.asarray(2.0), tj.Variable(3.0)

    # Gradients 4x³w and x⁴, whose sum has derivatives 12x²w + 4x³ and 4x³.
    assert_taped(inside, setup, expected=[176.0, 32.0], second=[240.0, 48.0])

    def program(x: Any, w: Any) -> Any:
        with tj.GradientTape() as tape:
            tape.watch(x)
            found = tj.function(inside)(x, w)
        return tape.gradient(found, [x, w])

    assert_modes(program, setup, expected=[176.0, 32.0])


def test_s38_the_inner_gradient_must_run_inside_the_outer_block() -> None:
    def program(x: Any) -> Any:
        with tj.GradientTape() as outer, tj.GradientTape() as inner:
            y = x * x * x
        g = inner.gradient(y, x)
        with tj.GradientTape() as around, tj.GradientTape() as within:
            inside = within.gradient(x * x * x, x)
        return g, outer.gradient(g, x), around.gradient(inside, x)

    assert_modes(program, scalar, expected=(12.0, None, 12.0))


def test_s38_watching_is_per_tape() -> None:
    def program(x: Any, w: Any) -> Any:
        with tj.GradientTape(watch_accessed_variables=False) as outer:
            outer.watch(w)
            with tj.GradientTape(watch_accessed_variables=False) as inner:
                inner.watch(x)
                y = x * x * w
            g = inner.gradient(y, x)
        first = outer.gradient(g, [w, x])
        with tj.GradientTape() as outer:
            outer.watch(x)
            with tj.GradientTape() as inner:
                y = x * x * x
            none = inner.gradient(y, x)
        return g, first, none, outer.gradient(y, x)

    def setup() -> Any:
        return tj.asarray(3.0), tj.Variable(2.0)

    assert_modes(program, setup, expected=(12.0, [6.0, None], None, 27.0))


def test_s38_roles_follow_when_gradient_runs() -> None:
    def program(x: Any) -> Any:
        with (
            tj.GradientTape(persistent=True) as first,
            tj.GradientTape(persistent=True) as second,
        ):
            y = x * x * x
            with first.stop_recording():
                g = first.gradient(y, x)
        return second.gradient(g, x)

    assert_modes(program, scalar, expected=12.0)


def test_s38_one_persistent_tape_gives_all_orders() -> None:
    def program(x: Any) -> Any:
        with tj.GradientTape(persistent=True) as tape:
            y = x**4
            first = tape.gradient(y, x)
            second = tape.gradient(first, x)
            third = tape.gradient(second, x)
        return first, second, third

    assert_modes(
        program, scalar, expected=(32.0, 48.0, 48.0), warns=["inside its own block"]
    )


@pytest.mark.parametrize("function", LINEAR.values(), ids=LINEAR)
def test_s38_the_second_derivative_of_a_linear_function_is_none(function: Any) -> None:
    def program(x: Any) -> Any:
        with tj.GradientTape(persistent=True) as outer:
            with tj.GradientTape() as inner:
                y = function(x)
            g = inner.gradient(y, x)
        zeros = outer.gradient(g, x, unconnected_gradients="zero")
        note(g.shape)
        return outer.gradient(g, x), zeros

    assert_modes(program, vector, expected=(None, [0.0, 0.0]), notes=[(2,)])
    assert_taped(function, vector, second=[None])


@pytest.mark.parametrize("function", PIECEWISE.values(), ids=PIECEWISE)
def test_s38_of_a_piecewise_linear_one_it_is_zero(function: Any) -> None:
    def program(x: Any) -> Any:
        with tj.GradientTape() as outer:
            with tj.GradientTape() as inner:
                y = function(x)
            g = inner.gradient(y, x)
        return outer.gradient(g, x)

    def setup() -> Any:
        return tj.Variable([1.0, 2.0, -3.0])

    assert_modes(program, setup, expected=[0.0, 0.0, 0.0])
    assert_taped(function, setup, second=[[0.0, 0.0, 0.0]])


def test_s38_a_transcendental_function_to_fourth_order() -> None:
    def program(x: Any) -> Any:
        return tj.sin(x) * tj.exp(-x * x), tj.tanh(x)

    def setup() -> Any:
        return tj.Variable(np.array([0.3, 0.7]))

    # The fourth derivative is a sum of many terms, taken in another order.
    assert_taped(program, setup, order=3)
    assert_taped(program, setup, order=4, op_class=COMPOSED)


def test_s38_second_order_through_variables_that_the_call_writes() -> None:
    def program(v: Any, x: Any) -> Any:
        y = v * v * x
        v.assign(tj.stop_gradient(v) * 2.0)
        return y, v * v * v

    def setup() -> Any:
        return tj.Variable(3.0), tj.asarray(2.0)

    # v² x + (2v)³ by the reads: 2vx + 3(2v)², and v².
    assert_taped(program, setup, expected=[12.0 + 108.0, 9.0], second=[46.0, 6.0])
