"""Nested tapes (line 38)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from agreement import COMPOSED

import tapejit as tj

from .both_modes import assert_modes, assert_taped, note


def scalar() -> Any:
    return tj.Variable(2.0, name="x")


def vector() -> Any:
    return tj.Variable([1.0, 2.0], name="x")


def derivative(function: Any, order: int, x: Any) -> Any:
    """The derivative of this order by nested tapes."""
    if order == 0:
        return function(x)
    with tj.GradientTape() as tape:
        y = derivative(function, order - 1, x)
    return tape.gradient(y, x)


POWERS = {
    "power": lambda x: x**4,
    "product": lambda x: x * x * x * x,
    "square of square": lambda x: (x**2) ** 2,
}


@pytest.mark.parametrize("function", POWERS.values(), ids=POWERS)
def test_s38_the_derivatives_of_the_fourth_power(function: Any) -> None:
    def program(x: Any) -> Any:
        return [derivative(function, order, x) for order in range(5)]

    assert_modes(program, scalar, expected=[16.0, 32.0, 48.0, 48.0, 24.0])
    found = assert_taped(function, scalar, order=4)
    assert [float(row[0]) for row in found[:4]] == [32.0, 48.0, 48.0, 24.0]


def test_s38_the_third_derivative_of_a_square_is_none() -> None:
    def program(x: Any) -> Any:
        return [derivative(lambda x: x * x, order, x) for order in (2, 3)]

    assert_modes(program, scalar, expected=[2.0, None])


def test_s38_a_mixed_second_derivative_is_symmetric() -> None:
    def program(x: Any, y: Any) -> Any:
        def mixed(a: Any, b: Any) -> Any:
            with tj.GradientTape() as outer:
                with tj.GradientTape() as inner:
                    z = x**3 * y**2
                g = inner.gradient(z, a)
            return outer.gradient(g, b)

        return mixed(x, y), mixed(y, x)

    setup = lambda: (tj.Variable(2.0), tj.Variable(3.0))
    assert_modes(program, setup, expected=(72.0, 72.0))


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
        with tj.GradientTape() as longer:
            with tj.GradientTape() as shorter:
                y = x * x * x
            after = shorter.gradient(y, x)
        seconds = around.gradient(inside, x), longer.gradient(after, x)
        return g, outer.gradient(g, x), seconds

    assert_modes(program, scalar, expected=(12.0, None, (12.0, 12.0)))


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
        second = outer.gradient(y, x)
        with tj.GradientTape() as outer, tj.GradientTape(persistent=True) as inner:
            inner.watch(x)
            y = x * x * x
            with inner.stop_recording():
                cubed = inner.gradient(y, x)
        return g, first, none, second, cubed, outer.gradient(cubed, x)

    def setup() -> Any:
        return tj.asarray(3.0), tj.Variable(2.0)

    expected = (12.0, [6.0, None], None, 27.0, 27.0, None)
    assert_modes(program, setup, expected=expected)


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


LINEAR = {
    "scaled": lambda x: 3.0 * x,
    "shifted": lambda x: x + 1.0,
    "negative": tj.negative,
    "sum": tj.sum,
    "mean": tj.mean,
    "reshaped": lambda x: tj.reshape(x, (1, 2)),
    "indexed": lambda x: x[1] + x[[0, 0]],
    "matmul with a constant": lambda x: x @ tj.asarray([[1.0], [2.0]]),
    "divided by a constant": lambda x: x / 2.0,
    "stacked": lambda x: tj.stack([x, 2.0 * x]),
    "cast": lambda x: tj.astype(x, tj.float64),
    "where with a fixed condition": lambda x: tj.where([True, False], x, 2.0 * x),
}


PIECEWISE = {
    "positive part": lambda x: tj.maximum(0.0, x),
    "maximum": lambda x: tj.maximum(x, 1.5),
    "minimum": lambda x: tj.minimum(x, 1.5),
    "abs": tj.abs,
    "clip": lambda x: tj.clip(x, -1.5, 1.5),
    "max": tj.max,
    "min": tj.min,
}


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
    at = np.array([0.3, 0.7])
    setup = lambda: tj.Variable(at)

    def sines(x: Any) -> Any:
        return [derivative(tj.sin, order, x) for order in range(5)]

    expected = [np.sin(at), np.cos(at), -np.sin(at), -np.cos(at), np.sin(at)]
    plain = assert_modes(sines, setup)
    for got, want in zip(plain.result, expected, strict=True):
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-13)

    def program(x: Any) -> Any:
        return tj.sin(x) * tj.exp(-x * x), tj.tanh(x)

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
