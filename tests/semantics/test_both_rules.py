"""Forward mode, custom gradients and recomputation in both modes (40 to 45)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from agreement import COMPOSED

import tapejit as tj

from .both_modes import assert_modes, assert_taped, note, note_error
from .test_gradient_rules import CONNECTED, CUT


def scalar() -> Any:
    return tj.asarray(3.0)


def variable_and_tensor() -> Any:
    return tj.Variable(2.0, name="v"), tj.asarray(3.0)


def vectors() -> Any:
    return tj.asarray([0.5, 1.0]), tj.Variable([2.0, 3.0], name="w")


# 40: ForwardAccumulator


def test_s40_asked_inside_after_and_repeatedly() -> None:
    def program(v: Any, x: Any) -> Any:
        with tj.ForwardAccumulator([v, x], [tj.asarray(1.0), tj.asarray(10.0)]) as acc:
            y = v * x
            inside = acc.jvp(y)
            z = y * x
        late = z * x
        return inside, acc.jvp(y), acc.jvp([z, {"late": late, "x": x, "v": v}])

    # v = 2, x = 3: y' = 3 + 20, z' = 23·3 + 60
    expected = (23.0, 23.0, [129.0, {"late": None, "x": 10.0, "v": 1.0}])
    assert_modes(program, variable_and_tensor, expected=expected)


# One of them makes a variable that nothing keeps.
@pytest.mark.parametrize("name", [*CONNECTED, *CUT])
def test_s40_none_and_zero_are_the_same_in_both_modes(name: str) -> None:
    function = {**CONNECTED, **CUT}[name]

    def program(x: Any) -> Any:
        with tj.ForwardAccumulator(x, 1.0) as acc:
            y = function(x)
        return acc.jvp(y), acc.jvp(y, unconnected_gradients="zero")

    plain = assert_modes(program, scalar)
    assert (plain.result[0] is None) == (name in CUT)


def test_s40_variables_at_each_read_and_after_assignments() -> None:
    def program(v: Any, x: Any) -> Any:
        with tj.ForwardAccumulator(v, 1.0) as acc:
            y = v * v
            v.assign(x)
            z = v * v
        return acc.jvp([y, z])

    assert_modes(program, variable_and_tensor, expected=[4.0, 6.0], variables=[3.0])


def test_s40_wrong_tangents_are_the_same_error() -> None:
    def program(x: Any, w: Any) -> Any:
        note_error(lambda: tj.ForwardAccumulator(x, tj.ones(3)))
        note_error(lambda: tj.ForwardAccumulator([x, w], [x]))
        note_error(lambda: tj.ForwardAccumulator(x, tj.asarray([1j, 2j])))
        note_error(lambda: tj.ForwardAccumulator(1.0, 1.0))
        acc = tj.ForwardAccumulator(x, w)
        note_error(lambda: acc.jvp(x))
        with acc:
            y = x * x
            note_error(acc.__enter__)
        note_error(lambda: acc.jvp(y, "nil"))
        return acc.jvp(y)

    assert_modes(program, vectors, expected=[2.0, 6.0])


def test_s40_nested_with_itself_and_with_tapes() -> None:
    def program(v: Any, x: Any) -> Any:
        with tj.ForwardAccumulator(x, 1.0) as outer:
            with tj.ForwardAccumulator(x, 1.0) as inner:
                y = x**4 * v
            first = inner.jvp(y)
            with tj.GradientTape() as tape:
                tape.watch(x)
                z = x**4 * v
            g = tape.gradient(z, [x, v])
        forward = outer.jvp([first, *g])
        with tj.GradientTape() as tape:
            tape.watch(x)
            with tj.ForwardAccumulator(x, 1.0) as acc:
                y = x**4 * v
            slope = acc.jvp(y)
        return forward, tape.gradient(slope, [x, v])

    # v x⁴ at v = 2, x = 3
    second, mixed = 2 * 12 * 9.0, 4 * 27.0
    expected = ([second, second, mixed], [second, mixed])
    assert_modes(program, variable_and_tensor, expected=expected)


def test_s40_an_accumulator_in_the_body_and_tapes_around_the_call() -> None:
    def program(v: Any, x: Any) -> Any:
        with tj.ForwardAccumulator(x, 1.0) as acc:
            y = x**3 * v
        return acc.jvp(y)

    # 3 x² v
    assert_taped(
        program, variable_and_tensor, expected=[27.0, 36.0], second=[18.0, 30.0]
    )


# 41 to 44: custom_gradient


def scaled(x: Any, w: Any) -> Any:
    """x w², whose gradient is said to be ten times as large for x."""

    @tj.custom_gradient
    def product(x: Any, w: Any) -> Any:
        def grad(g: Any) -> Any:
            return g * 10.0 * w * w, g * 2.0 * x * w

        return x * w * w, grad

    return product(x, w)


def test_s41_grad_fn_is_used_in_the_body_and_by_tapes_around() -> None:
    def program(x: Any, w: Any) -> Any:
        with tj.GradientTape() as tape:
            tape.watch(x)
            y = scaled(x, w)
        return tape.gradient(y, [x, w])

    assert_modes(program, vectors, expected=[[40.0, 90.0], [2.0, 6.0]])
    # Second order differentiates what grad_fn computes: 10 w² + 2 x w.
    assert_taped(
        scaled,
        vectors,
        expected=[[40.0, 90.0], [2.0, 6.0]],
        second=[[4.0, 6.0], [41.0, 62.0]],
    )


def test_s41_unused_results_get_zeros_and_wrong_counts_the_same_error() -> None:
    def program(x: Any, w: Any) -> Any:
        @tj.custom_gradient
        def two(x: Any) -> Any:
            return (x * x, x * 3.0), lambda g, h: g * 2.0 * x + h * 3.0

        @tj.custom_gradient
        def wrong(x: Any) -> Any:
            return x * x

        with tj.GradientTape() as tape:
            tape.watch(x)
            y, _ = two(x)
            note_error(lambda: wrong(x))
        return tape.gradient(y, x)

    assert_modes(program, vectors, expected=[1.0, 2.0])


def test_s42_keywords_and_closures() -> None:
    def program(x: Any, w: Any) -> Any:
        @tj.custom_gradient
        def product(x: Any, factor: float = 1.0) -> Any:
            return x * w * factor, lambda g: (g * 100.0 * factor, None)

        with tj.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = product(x=x, factor=2.0)
        return tape.gradient(y, x)

    def setup() -> Any:
        return tj.asarray([0.5, 1.0]), tj.asarray([2.0, 3.0])

    assert_modes(program, setup, expected=[200.0, 200.0])


def test_s43_variables_read_inside() -> None:
    def program(x: Any, w: Any) -> Any:
        given = []

        @tj.custom_gradient
        def product(x: Any) -> Any:
            def grad(g: Any, variables: Any = None) -> Any:
                given.extend(v.name for v in variables)
                return g * 10.0 * w, [g * x * 7.0]

            return x * w, grad

        with tj.GradientTape() as tape:
            tape.watch(x)
            y = product(x)
        found = tape.gradient(y, [x, w])
        note(given[0])
        return found

    assert_modes(program, vectors, expected=[[20.0, 30.0], [3.5, 7.0]], notes=["w"])


def test_s44_the_straight_through_estimator_and_methods() -> None:
    class Layer:
        @tj.custom_gradient
        def double(self, x: Any) -> Any:
            return x * 2.0, lambda g: g * 5.0

    layer = Layer()

    def program(x: Any, w: Any) -> Any:
        through = tj.grad_pass_through(tj.round)
        with tj.GradientTape() as tape:
            tape.watch(x)
            y = through(x * w) * 3.0 + layer.double(x)
        return tape.gradient(y, [x, w])

    assert_modes(program, vectors, expected=[[11.0, 14.0], [1.5, 3.0]])
    assert_taped(program, vectors)


def test_s44_an_exception_keeps_its_type() -> None:
    def program(x: Any, w: Any) -> Any:
        @tj.custom_gradient
        def fails(x: Any) -> Any:
            raise KeyError("in the function")

        w.assign(x)
        return fails(x)

    assert_modes(program, vectors, raises=(KeyError, "in the function"))


# 45: stop_gradient and recompute_grad


def test_s45_stop_gradient_cuts_in_every_order() -> None:
    def program(v: Any, x: Any) -> Any:
        with tj.GradientTape() as outer:
            outer.watch(x)
            with tj.GradientTape() as inner:
                inner.watch(x)
                y = tj.stop_gradient(x * x) * x + tj.stop_gradient(v)
            g = inner.gradient(y, [x, v])
        return g, outer.gradient(g[0], x)

    assert_modes(program, variable_and_tensor, expected=([9.0, None], None))
    assert_taped(
        lambda v, x: tj.stop_gradient(x * x) * x * v,
        variable_and_tensor,
        expected=[27.0, 18.0],
        second=[9.0, 9.0],
    )


def chain(x: Any, w: Any) -> Any:
    for _ in range(3):
        x = tj.exp(tj.sin(x * w))
    return x


@pytest.mark.parametrize("order", [1, 2])
def test_s45_recomputed_gradients_are_those_of_the_function(order: int) -> None:
    def program(x: Any, w: Any) -> Any:
        found = []
        for function in (chain, tj.recompute_grad(chain)):
            with tj.GradientTape() as outer:
                outer.watch(x)
                with tj.GradientTape() as inner:
                    inner.watch(x)
                    y = function(x, w)
                g = inner.gradient(y, [x, w])
            found.append(g if order == 1 else outer.gradient(g, [x, w]))
        return found

    first, second = assert_modes(program, vectors).result
    for plain, recomputed in zip(first, second, strict=True):
        np.testing.assert_allclose(recomputed.numpy(), plain.numpy(), rtol=1e-5)
    assert_taped(tj.recompute_grad(chain), vectors, op_class=COMPOSED)


def test_s45_random_numbers_are_replayed_and_drawn_once() -> None:
    def program(x: Any, generator: Any) -> Any:
        @tj.recompute_grad
        def noisy(x: Any) -> Any:
            return x * x * generator.normal((2,), dtype="float32")

        with tj.GradientTape() as tape:
            tape.watch(x)
            y = noisy(x)
        return y, tape.gradient(y, x), generator.normal((2,))

    def setup() -> Any:
        return tj.asarray([1.0, 2.0]), tj.random.Generator(7)

    y, g, _ = assert_modes(
        program,
        setup,
        state=lambda x, generator: [generator._variable],
        traces=None,
    ).result
    np.testing.assert_allclose(g.numpy(), 2.0 * y.numpy() / [1.0, 2.0], rtol=1e-6)
