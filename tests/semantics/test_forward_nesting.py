"""ForwardAccumulator with itself and with tapes, on every op and on random programs.

All of it line 40.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from agreement import COMPOSED, assert_agrees
from differentiation import drawn_like, is_zero, pushed_forward, targets_of
from graph_properties import for_all
from op_cases import ROWS, Row
from op_cases.case import C128, F64, differentiable_positions
from test_fuzz_programs import Program, largest, programs, tensors

import tapejit as tj
from tapejit.tensor.trace import run_graph


def test_s40_accumulators_nest_to_third_order() -> None:
    x = tj.asarray(1.1, dtype="float64")

    def derivative(order: int) -> Any:
        if order == 0:
            return tj.exp(x**3.5)
        with tj.ForwardAccumulator(x, 1.0) as acc:
            y = derivative(order - 1)
        return acc.jvp(y)

    expected = lambda x: tj.exp(x**3.5)
    for order in range(4):
        np.testing.assert_allclose(derivative(order), expected(x), rtol=1e-12)
        expected = tj.grad(expected)


def test_s40_the_outer_one_sees_the_inner_one_and_not_the_reverse() -> None:
    x = tj.asarray(2.0)
    with (
        tj.ForwardAccumulator(x, 1.0) as outer,
        tj.ForwardAccumulator(x, 10.0) as inner,
    ):
        y = x**3
    assert float(inner.jvp(y)) == 120.0
    assert float(outer.jvp(y)) == 12.0
    assert float(outer.jvp(inner.jvp(y))) == 120.0
    assert inner.jvp(outer.jvp(y)) is None


def test_s40_directions_of_nested_accumulators_do_not_mix() -> None:
    x, y = tj.asarray(2.0), tj.asarray(3.0)
    with tj.ForwardAccumulator(x, 1.0) as by_x:
        with tj.ForwardAccumulator(y, 1.0) as by_y:
            z = x * x * y
        inner = by_y.jvp(z)
        w = x * inner
    assert float(inner) == 4.0
    assert float(by_x.jvp(inner)) == 4.0
    assert float(by_x.jvp(w)) == 12.0, "x·x² by x, not by y"
    assert by_y.jvp(inner) is None, "linear in y"


def test_s40_a_tape_inside_gives_products_with_the_hessian() -> None:
    rng = np.random.default_rng(1)
    x, t, c = (tj.asarray(rng.uniform(0.5, 1.5, 4)) for _ in range(3))

    def function(x: Any) -> Any:
        return tj.sum(tj.exp(x * c) * tj.tanh(tj.roll(x, 1)) / (1 + x * x))

    with tj.ForwardAccumulator(x, t) as acc:
        with tj.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
        g = tape.gradient(y, x)
    np.testing.assert_allclose(acc.jvp(g), tj.hvp(function, (x,), (t,))[0], 1e-12)
    np.testing.assert_allclose(acc.jvp(g), tj.hessian(function)(x) @ t, 1e-12)
    np.testing.assert_allclose(g, tj.grad(function)(x), 1e-12)


def test_s40_and_a_tape_outside_gives_the_same() -> None:
    v = tj.Variable([1.0, 2.0], dtype="float64")
    t = tj.asarray([1.0, -1.0], dtype="float64")
    with tj.GradientTape() as tape:
        with tj.ForwardAccumulator(v, t) as acc:
            y = tj.sum(tj.exp(v) * v**3)
        slope = acc.jvp(y)
    found = tape.gradient(slope, v)
    function = lambda x: tj.sum(tj.exp(x) * x**3)
    np.testing.assert_allclose(found, tj.hvp(function, (v.value(),), (t,))[0], 1e-12)


def test_s40_a_tape_outside_differentiates_by_the_tangents_too() -> None:
    x, t = tj.asarray([1.0, 2.0]), tj.Variable([1.0, 1.0])
    with tj.GradientTape() as tape:
        with tj.ForwardAccumulator(x, t) as acc:
            y = x**3
        slope = acc.jvp(y)
    np.testing.assert_array_equal(tape.gradient(slope, t), [3.0, 12.0])


def test_s40_a_tape_inside_does_not_hold_on_to_tangents() -> None:
    x = tj.Variable(tj.ones(1000))
    with tj.GradientTape() as alone:
        tj.exp(x) * x
    with tj.ForwardAccumulator(x, tj.ones(1000)) as acc, tj.GradientTape() as tape:
        y = tj.exp(x) * x
    assert tape.nbytes == alone.nbytes
    assert tape.gradient(acc.jvp(y), x) is None
    with (
        tj.GradientTape() as outer,
        tj.ForwardAccumulator(x, tj.ones(1000)) as acc,
        tj.GradientTape() as tape,
    ):
        y = tj.exp(x) * x
    assert tape.nbytes == alone.nbytes
    np.testing.assert_allclose(outer.gradient(acc.jvp(y), x), 3 * np.e, rtol=1e-6)


def test_s40_a_jacobian_inside_has_a_tangent() -> None:
    x = tj.Variable([1.0, 2.0])
    with tj.ForwardAccumulator(x, [1.0, 1.0]) as acc:
        with tj.GradientTape() as tape:
            y = x**3
        rows = tape.jacobian(y, x)
    np.testing.assert_array_equal(acc.jvp(rows), np.diag([6.0, 12.0]))


def test_s40_functions_of_functions_work_inside() -> None:
    x, t = tj.asarray([1.0, 2.0]), tj.asarray([1.0, 10.0])
    with tj.ForwardAccumulator(x, t) as acc:
        gradient = tj.grad(lambda x: tj.sum(x**3))(x)
        _, pushed = tj.jvp(lambda x: x**3, (x,), (t,))
        mapped = tj.vmap(lambda row: row**3)(x)
    np.testing.assert_array_equal(acc.jvp(gradient), [6.0, 120.0])
    np.testing.assert_array_equal(acc.jvp(pushed), [6.0, 1200.0])
    np.testing.assert_array_equal(acc.jvp(mapped), [3.0, 120.0])


def test_s40_it_works_inside_a_mapped_function() -> None:
    def row_slope(x: Any) -> Any:
        with tj.ForwardAccumulator(x, tj.ones_like(x)) as acc:
            y = tj.exp(x) * tj.floor(x)
        return acc.jvp(y), acc.jvp(tj.floor(x), "zero")

    rows = tj.asarray([[1.5, 2.5], [3.5, 4.5]])
    slopes, zeros = tj.vmap(row_slope)(rows)
    np.testing.assert_allclose(slopes, np.exp(rows.numpy()) * np.floor(rows.numpy()))
    assert zeros.numpy().tolist() == [[0, 0], [0, 0]]


def test_s40_made_outside_a_mapped_function_it_may_be_entered_inside() -> None:
    c = tj.asarray(2.0)
    acc = tj.ForwardAccumulator(c, 10.0)

    def row_slope(x: Any) -> Any:
        with acc:
            y = x * c * c
        return acc.jvp(y)

    slopes = tj.vmap(row_slope)(tj.asarray([1.0, 2.0]))
    np.testing.assert_array_equal(slopes, [40.0, 80.0])


def test_s40_second_derivatives_are_none_or_zero_as_by_tapes() -> None:
    def second(function: Callable[[Any], Any]) -> Any:
        x = tj.Variable(2.0)
        with tj.ForwardAccumulator(x, 1.0) as acc:
            with tj.GradientTape() as tape:
                y = function(x)
            g = tape.gradient(y, x)
        return acc.jvp(g)

    assert second(lambda x: 3 * x) is None
    for kinked in (tj.nn.relu, tj.abs, lambda x: tj.clip(x, 0.0, 5.0)):
        assert float(second(kinked)) == 0.0


def test_s40_an_outer_tape_that_was_stopped_sees_what_follows() -> None:
    """It is then last among the tapes, and hears of results after the accumulator."""
    x = tj.Variable(0.7, dtype="float64")
    with tj.GradientTape() as tape, tj.ForwardAccumulator(x, 1.0) as acc:
        with tape.stop_recording():
            pass
        y = tj.exp(tj.tanh(x))
        slope = acc.jvp(y)
    twice = tj.grad(tj.grad(lambda x: tj.exp(tj.tanh(x))))
    np.testing.assert_allclose(tape.gradient(slope, x), twice(x), rtol=1e-13)


def test_s40_an_outer_accumulator_that_was_stopped_sees_what_follows() -> None:
    x = tj.asarray(0.7, dtype="float64")
    with tj.ForwardAccumulator(x, 1.0) as outer, tj.ForwardAccumulator(x, 1.0) as inner:
        with outer.stop_recording():
            pass
        y = tj.exp(tj.tanh(x))
    twice = tj.grad(tj.grad(lambda x: tj.exp(tj.tanh(x))))
    np.testing.assert_allclose(outer.jvp(inner.jvp(y)), twice(x), rtol=1e-13)


# Functions


def run_three_times(function: Callable[[], Any]) -> list[Any]:
    """Traced, from its trace, and as plain Python."""
    first, second = function(), function()
    with tj.config.override(eager=True):
        return [first, second, function()]


def test_s40_the_call_of_a_function_carries_tangents() -> None:
    x, v, t = tj.asarray([1.0, 2.0]), tj.Variable([3.0, 4.0]), tj.asarray([1.0, 10.0])

    @tj.function
    def product(x: Any) -> Any:
        return tj.exp(x) * v, tj.floor(x), tj.stop_gradient(x) + 1

    def slopes() -> Any:
        with tj.ForwardAccumulator((x, v), (t, t)) as acc:
            y = product(x)
        return acc.jvp(y)

    expected = np.exp(x.numpy()) * (v.numpy() + 1) * t.numpy()
    for slope, zero, none in run_three_times(slopes):
        np.testing.assert_allclose(slope, expected, rtol=1e-6)
        assert zero.numpy().tolist() == [0, 0]
        assert none is None


def test_s40_it_works_inside_a_function() -> None:
    x, v, t = tj.asarray([1.0, 2.0]), tj.Variable([3.0, 4.0]), tj.asarray([1.0, 10.0])

    @tj.function
    def slope(x: Any, t: Any) -> Any:
        with tj.ForwardAccumulator((x, v), (t, t)) as acc:
            with tj.GradientTape() as tape:
                y = tj.sum(tj.exp(x) * v**2)
            g = tape.gradient(y, v)
        return acc.jvp(y), acc.jvp(g)

    e, w = np.exp(x.numpy()), v.numpy()
    for first, second in run_three_times(lambda: slope(x, t)):
        np.testing.assert_allclose(first, np.sum(e * (w**2 + 2 * w) * t.numpy()), 1e-6)
        np.testing.assert_allclose(second, e * (2 * w + 2) * t.numpy(), 1e-6)


def test_s40_functions_nest_with_accumulators_and_tapes() -> None:
    x, t = tj.asarray([0.5, 1.0]), tj.asarray([1.0, -1.0])

    @tj.function
    def function(x: Any) -> Any:
        return tj.sum(tj.exp(x) * tj.tanh(x))

    def products() -> Any:
        with tj.ForwardAccumulator(x, t) as acc:
            with tj.GradientTape() as tape:
                tape.watch(x)
                y = function(x)
            g = tape.gradient(y, x)
        return acc.jvp(g), slope_gradient(function, [x], [t])[0]

    expected = tj.hvp(lambda x: tj.sum(tj.exp(x) * tj.tanh(x)), (x,), (t,))[0]
    for over_reverse, over_forward in run_three_times(products):
        np.testing.assert_allclose(over_reverse, expected, rtol=1e-5)
        np.testing.assert_allclose(over_forward, expected, rtol=1e-5)


def test_s40_one_that_was_opened_outside_is_not_asked_in_a_function() -> None:
    x = tj.asarray(3.0)

    @tj.function
    def ask(x: Any) -> Any:
        return acc.jvp(x * x)

    with tj.ForwardAccumulator(x, 1.0) as acc:
        for eager in (False, True):
            with (
                tj.config.override(eager=eager),
                pytest.raises(RuntimeError, match="opened outside any function, at "),
            ):
                ask(x)


# Every op, and random programs


def double_rows() -> list[tuple[Row, Any]]:
    return [
        (row, dtype)
        for row in ROWS
        for dtype in row.double_dtypes
        if row.graph(dtype).outputs[0].dtype in (F64, C128)
    ]


def test_s40_every_op_has_the_tangent_of_its_graph() -> None:
    connected = 0
    for row, dtype in double_rows():
        graph, rng = row.graph(dtype), np.random.default_rng(5)
        positions = differentiable_positions(graph)
        if not positions:
            continue
        arrays = row.sample(rng, dtype)
        directions = drawn_like(rng, [graph.inputs[at].type for at in positions])
        xs = [tj.asarray(array) for array in arrays]
        with (
            tj.config.override(check=True, cuda="emulated"),
            tj.ForwardAccumulator([xs[at] for at in positions], directions) as acc,
        ):
            found = run_graph(graph, list(xs))
        targets = targets_of(graph)
        pushed = pushed_forward(graph, arrays, positions, directions)
        values = [found[graph.outputs.index(target)] for target in targets]
        for value, expected in zip(values, pushed, strict=True):
            got, where = acc.jvp(value), f"{row} in {dtype}"
            assert (got is None) == (expected is None), where
            if got is None:
                continue
            connected += 1
            if is_zero(expected):
                assert not np.any(got.numpy()), where
            else:
                assert_agrees(COMPOSED, got, expected, where=where)
    assert connected > 500


def test_s40_random_programs_have_the_tangents_of_jvp(full: bool) -> None:
    @for_all(programs(), full, examples=40)
    def holds(program: Program) -> None:
        function, arrays = program.function(), program.arrays()
        directions = program.arrays(1)
        value, expected = tj.jvp(function, tensors(arrays), tensors(directions))
        xs = tensors(arrays)
        with tj.ForwardAccumulator(xs, directions) as acc:
            y = function(*xs)
        np.testing.assert_array_equal(y, value, strict=True)
        got = acc.jvp(y, unconnected_gradients="zero")
        np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-12)
        variables = [tj.Variable(array) for array in arrays]
        with tj.ForwardAccumulator(variables, directions) as acc:
            y = function(*variables)
        again = acc.jvp(y, unconnected_gradients="zero")
        np.testing.assert_array_equal(again, got, strict=True)


def slope_gradient(
    function: Callable[..., Any], xs: list[Any], vs: list[Any], is_stopped: bool = False
) -> Any:
    """Reverse over forward; the tape may have been stopped for a while."""
    with tj.GradientTape() as tape:
        tape.watch(xs)
        with tj.ForwardAccumulator(xs, vs) as acc:
            if is_stopped:
                with tape.stop_recording():
                    pass
            y = function(*xs)
        slope = acc.jvp(y, unconnected_gradients="zero")
    return tape.gradient(slope, xs, unconnected_gradients="zero")


def test_s40_random_programs_have_one_second_derivative(full: bool) -> None:
    """Forward over reverse, reverse over forward, forward over forward: vᵀ H u."""

    @for_all(programs(lines=10), full, examples=25)
    def holds(program: Program) -> None:
        function, xs = program.function(), tensors(program.arrays())
        us, vs = tensors(program.arrays(1)), tensors(program.arrays(2))
        with tj.ForwardAccumulator(xs, vs) as acc:
            with tj.GradientTape() as tape:
                tape.watch(xs)
                y = function(*xs)
            first = tape.gradient(y, xs, unconnected_gradients="zero")
        over_reverse = acc.jvp(first, unconnected_gradients="zero")
        over_forward = slope_gradient(function, xs, vs)
        after_a_stop = slope_gradient(function, xs, vs, is_stopped=True)
        expected = tj.hvp(function, xs, vs)
        size = 1e-6 + max(map(largest, expected))
        for found in (over_reverse, over_forward, after_a_stop):
            for one, two in zip(found, expected, strict=True):
                np.testing.assert_allclose(one, two, rtol=0, atol=1e-10 * size)
        with (
            tj.ForwardAccumulator(xs, us) as outer,
            tj.ForwardAccumulator(xs, vs) as acc,
        ):
            y = function(*xs)
        twice = outer.jvp(acc.jvp(y, "zero"), "zero")
        terms = [
            np.sum(u.numpy() * h.numpy()) for u, h in zip(us, expected, strict=True)
        ]
        count = sum(x.size for x in xs)
        assert abs(float(twice) - sum(terms)) <= 1e-10 * size * count
