"""Nested tapes, Hessians, and the functions of functions (lines 38 and 39)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tapejit as tj


def derivative(function: Any, order: int, at: Any) -> Any:
    """The derivative of this order by nested tapes."""
    x = at if isinstance(at, tj.Variable) else tj.Variable(at)

    def rec(order: int) -> Any:
        if order == 0:
            return function(x)
        with tj.GradientTape() as tape:
            y = rec(order - 1)
        return None if y is None else tape.gradient(y, x)

    return rec(order)


# 38: nested tapes


@pytest.mark.parametrize(
    ("order", "expected"), [(0, 16.0), (1, 32.0), (2, 48.0), (3, 48.0), (4, 24.0)]
)
def test_s38_the_derivatives_of_the_fourth_power(order: int, expected: float) -> None:
    for power in (lambda x: x**4, lambda x: x * x * x * x, lambda x: (x**2) ** 2):
        assert float(derivative(power, order, 2.0)) == expected


def test_s38_a_transcendental_function_to_fourth_order() -> None:
    at = np.array([0.3, 0.7])
    for order, expected in enumerate([np.sin, np.cos, lambda x: -np.sin(x)]):
        found = derivative(tj.sin, order, at)
        np.testing.assert_allclose(found.numpy(), expected(at), rtol=1e-13)
    np.testing.assert_allclose(derivative(tj.sin, 4, at).numpy(), np.sin(at), 1e-13)


def test_s38_the_inner_gradient_must_run_inside_the_outer_block() -> None:
    x = tj.Variable(3.0)
    with tj.GradientTape() as outer, tj.GradientTape() as inner:
        y = x * x * x
    g = inner.gradient(y, x)
    assert float(g) == 27.0
    assert outer.gradient(g, x) is None


def test_s38_inside_it_may_run_inside_or_after_the_inner_block() -> None:
    x = tj.Variable(3.0)
    with tj.GradientTape() as outer:
        with tj.GradientTape() as inner:
            y = x * x * x
        after = inner.gradient(y, x)
    assert float(outer.gradient(after, x)) == 18.0
    with tj.GradientTape() as outer, tj.GradientTape() as inner:
        inside = inner.gradient(x * x * x, x)
    assert float(outer.gradient(inside, x)) == 18.0


def test_s38_watching_is_per_tape() -> None:
    x = tj.asarray(3.0)
    with tj.GradientTape() as outer, tj.GradientTape(persistent=True) as inner:
        inner.watch(x)
        y = x * x * x
        with inner.stop_recording():
            g = inner.gradient(y, x)
    assert float(g) == 27.0
    assert outer.gradient(g, x) is None, "the outer tape does not watch x"
    with tj.GradientTape() as outer:
        outer.watch(x)
        with tj.GradientTape() as inner:
            y = x * x * x
        assert inner.gradient(y, x) is None, "the inner tape does not watch x"
    assert float(outer.gradient(y, x)) == 27.0


def test_s38_each_may_watch_another_variable() -> None:
    x, w = tj.Variable(3.0), tj.Variable(2.0)
    with tj.GradientTape(watch_accessed_variables=False) as outer:
        outer.watch(w)
        with tj.GradientTape(watch_accessed_variables=False) as inner:
            inner.watch(x)
            y = x * x * w
        g = inner.gradient(y, x)
    assert float(g) == 12.0
    dw, dx = outer.gradient(g, [w, x])
    assert float(dw) == 6.0
    assert dx is None


def test_s38_roles_follow_when_gradient_runs() -> None:
    x = tj.Variable(3.0)
    with (
        tj.GradientTape(persistent=True) as first,
        tj.GradientTape(persistent=True) as second,
    ):
        y = x * x * x
        with first.stop_recording():
            g = first.gradient(y, x)
    assert float(second.gradient(g, x)) == 18.0, "the tape opened first is the inner"


def test_s38_a_mixed_second_derivative_is_symmetric() -> None:
    x, y = tj.Variable(2.0), tj.Variable(3.0)

    def mixed(a: Any, b: Any) -> float:
        with tj.GradientTape() as outer:
            with tj.GradientTape() as inner:
                z = x**3 * y**2
            g = inner.gradient(z, a)
        return float(outer.gradient(g, b))

    assert mixed(x, y) == mixed(y, x) == 3 * 4 * 2 * 3


def test_s38_one_persistent_tape_gives_all_orders() -> None:
    x = tj.Variable(2.0)
    with tj.GradientTape(persistent=True) as tape:
        y = x**4
        with pytest.warns(UserWarning, match="inside its own block"):
            first = tape.gradient(y, x)
        second = tape.gradient(first, x)
        third = tape.gradient(second, x)
    assert [float(g) for g in (first, second, third)] == [32.0, 48.0, 48.0]


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


@pytest.mark.parametrize("function", LINEAR.values(), ids=LINEAR)
def test_s38_the_second_derivative_of_a_linear_function_is_none(function: Any) -> None:
    x = tj.Variable([1.0, 2.0])
    with tj.GradientTape(persistent=True) as outer:
        with tj.GradientTape() as inner:
            y = function(x)
        g = inner.gradient(y, x)
    assert g.shape == (2,)
    assert outer.gradient(g, x) is None
    zeros = outer.gradient(g, x, unconnected_gradients="zero")
    assert zeros.tolist() == [0.0, 0.0]


PIECEWISE = {
    "positive part": lambda x: tj.maximum(0.0, x),
    "maximum": lambda x: tj.maximum(x, 1.5),
    "minimum": lambda x: tj.minimum(x, 1.5),
    "abs": tj.abs,
    "clip": lambda x: tj.clip(x, -1.5, 1.5),
    "max": tj.max,
    "min": tj.min,
}


@pytest.mark.parametrize("function", PIECEWISE.values(), ids=PIECEWISE)
def test_s38_of_a_piecewise_linear_one_it_is_zero(function: Any) -> None:
    x = tj.Variable([1.0, 2.0, -3.0])
    with tj.GradientTape() as outer:
        with tj.GradientTape() as inner:
            y = function(x)
        g = inner.gradient(y, x)
    second = outer.gradient(g, x)
    assert second is not None
    assert second.tolist() == [0.0, 0.0, 0.0]


def test_s38_the_third_derivative_of_a_square_is_none() -> None:
    assert float(derivative(lambda x: x * x, 2, 3.0)) == 2.0
    assert derivative(lambda x: x * x, 3, 3.0) is None


# 39: Hessians and products with them


def rosen(x: Any) -> Any:
    """Rosenbrock's function of a vector."""
    return tj.sum(100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1.0 - x[:-1]) ** 2)


def rosen_hessian(x: Any) -> Any:
    """Its matrix of second derivatives, by hand."""
    diagonal = np.zeros_like(x)
    diagonal[:-1] += 1200 * x[:-1] ** 2 - 400 * x[1:] + 2
    diagonal[1:] += 200
    off = -400 * x[:-1]
    return np.diag(diagonal) + np.diag(off, 1) + np.diag(off, -1)


POINT = np.array([0.5, -1.2, 1.0, 0.3])
VECTOR = np.array([1.0, -2.0, 0.5, 3.0])


def test_s39_a_hessian_is_the_jacobian_of_a_gradient() -> None:
    x = tj.Variable(POINT)
    with tj.GradientTape() as outer:
        with tj.GradientTape() as inner:
            y = rosen(x)
        g = inner.gradient(y, x)
    found = outer.jacobian(g, x)
    np.testing.assert_allclose(found.numpy(), rosen_hessian(POINT), rtol=1e-12)


def test_s39_a_hessian_of_two_blocks() -> None:
    a, b = tj.Variable([1.0, 2.0]), tj.Variable(3.0)
    with tj.GradientTape() as outer:
        with tj.GradientTape() as inner:
            y = tj.sum(a**3) * b * b
        ga, gb = inner.gradient(y, [a, b])
    blocks = outer.jacobian([ga, gb], [a, b])
    assert blocks[0][0].tolist() == [[54.0, 0.0], [0.0, 108.0]]
    assert blocks[0][1].tolist() == blocks[1][0].tolist() == [18.0, 72.0]
    assert float(blocks[1][1]) == 18.0


def test_s39_hvp_through_output_gradients() -> None:
    x = tj.Variable(POINT)
    with tj.GradientTape() as outer:
        with tj.GradientTape() as inner:
            y = rosen(x)
        g = inner.gradient(y, x)
    found = outer.gradient(g, x, output_gradients=VECTOR)
    expected = rosen_hessian(POINT) @ VECTOR
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12)


def test_s39_hvp_through_forward_over_reverse() -> None:
    def gradient(x: Any) -> Any:
        with tj.GradientTape() as tape:
            tape.watch(x)
            y = rosen(x)
        return tape.gradient(y, x)

    _, found = tj.jvp(gradient, (POINT,), (VECTOR,))
    expected = rosen_hessian(POINT) @ VECTOR
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12)
    again = tj.jvp(tj.grad(rosen), (POINT,), (VECTOR,))[1]
    np.testing.assert_allclose(again.numpy(), expected, rtol=1e-12)


def test_s39_reverse_over_forward_agrees() -> None:
    def directional(x: Any) -> Any:
        return tj.jvp(rosen, (x,), (VECTOR,))[1]

    found = tj.grad(directional)(POINT)
    expected = rosen_hessian(POINT) @ VECTOR
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12)


def test_s39_forward_over_forward_agrees() -> None:
    def directional(x: Any) -> Any:
        return tj.jvp(rosen, (x,), (VECTOR,))[1]

    found = tj.jvp(directional, (POINT,), (VECTOR,))[1]
    expected = VECTOR @ rosen_hessian(POINT) @ VECTOR
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12)


def test_s39_the_public_functions() -> None:
    x, v = tj.asarray(POINT), tj.asarray(VECTOR)
    expected = rosen_hessian(POINT)
    np.testing.assert_allclose(tj.hessian(rosen)(x).numpy(), expected, rtol=1e-12)
    np.testing.assert_allclose(
        tj.hvp(rosen, (x,), (v,))[0].numpy(), expected @ VECTOR, rtol=1e-12
    )
    np.testing.assert_allclose(
        tj.jacobian(tj.grad(rosen))(x).numpy(), expected, rtol=1e-12
    )
    value, gradient = tj.value_and_grad(rosen)(x)
    again, pull = tj.vjp(rosen, x)
    (pulled,) = pull(1.0)
    same, slope = tj.jvp(rosen, (x,), (v,))
    assert float(value) == float(again) == float(same)
    assert gradient.tolist() == pulled.tolist() == tj.grad(rosen)(x).tolist()
    np.testing.assert_allclose(float(slope), gradient.numpy() @ VECTOR, rtol=1e-12)
    rows = tj.vmap(tj.grad(rosen))(tj.stack([x, 2.0 * x]))
    np.testing.assert_allclose(rows[0].numpy(), gradient.numpy(), rtol=1e-12)
    np.testing.assert_allclose(
        rows[1].numpy(), tj.grad(rosen)(2.0 * x).numpy(), rtol=1e-12
    )


def test_s39_they_nest() -> None:
    third = tj.grad(tj.grad(tj.grad(lambda x: x**4)))
    assert float(third(2.0)) == 48.0
    by_rows = tj.vmap(lambda x: tj.grad(tj.grad(lambda y: y**3))(x))
    assert by_rows(tj.asarray([1.0, 2.0])).tolist() == [6.0, 12.0]
    hessians = tj.vmap(tj.hessian(rosen))(np.stack([POINT, VECTOR]))
    np.testing.assert_allclose(hessians[0].numpy(), rosen_hessian(POINT), rtol=1e-12)
    np.testing.assert_allclose(hessians[1].numpy(), rosen_hessian(VECTOR), rtol=1e-12)


def test_s39_they_are_recorded_by_tapes_around_them() -> None:
    v = tj.Variable(2.0)
    with tj.GradientTape() as tape:
        g = tj.grad(lambda x: x**3 * v)(v.value())
    # 3 v² v as seen from outside: the argument and the captured variable both count.
    assert float(tape.gradient(g, v)) == 9 * 4.0
    with tj.GradientTape() as tape:
        y = tj.sum(tj.vmap(lambda x: x * v)(tj.asarray([1.0, 2.0])))
    assert float(tape.gradient(y, v)) == 3.0
    with tj.GradientTape() as tape:
        _, slope = tj.jvp(lambda x: x * x * v, (3.0,), (1.0,))
    assert float(tape.gradient(slope, v)) == 6.0


def test_s39_a_tape_works_inside_a_mapped_function() -> None:
    v = tj.Variable(2.0)

    def by_argument(x: Any) -> Any:
        with tj.GradientTape() as tape:
            tape.watch(x)
            y = x**3 * v
        return tape.gradient(y, x)

    def by_variable(x: Any) -> Any:
        with tj.GradientTape() as tape:
            y = x * v * v
        return tape.gradient(y, v)

    rows = tj.asarray([1.0, 2.0])
    assert tj.vmap(by_argument)(rows).tolist() == [6.0, 24.0]
    assert tj.vmap(by_variable)(rows).tolist() == [4.0, 8.0]


def test_s39_a_seed_is_differentiable_by_an_outer_tape() -> None:
    x, seed = tj.Variable([1.0, 2.0]), tj.Variable([1.0, 10.0])
    with tj.GradientTape() as outer:
        with tj.GradientTape() as inner:
            y = x * x
        g = inner.gradient(y, x, output_gradients=seed)
    dx, dseed = outer.gradient(g, [x, seed])
    assert dx.tolist() == [2.0, 20.0]
    assert dseed.tolist() == [2.0, 4.0]


def test_s39_arguments_that_are_one_tensor_are_told_apart() -> None:
    x = tj.asarray(3.0)
    first, second = tj.grad(lambda a, b: a * a * b, argnums=(0, 1))(x, x)
    assert (float(first), float(second)) == (18.0, 9.0)
    with tj.GradientTape() as tape:
        tape.watch(x)
        first, second = tj.grad(lambda a, b: a * a * b, argnums=(0, 1))(x, x)
        total = first + second
    assert float(tape.gradient(total, x)) == 4 * 3 + 2 * 3


def test_s39_an_inner_derivative_does_not_see_the_outer_one() -> None:
    """The classic confusion: d/dx (x · d/dy (x + y)) is 1, not 2."""

    def outer(x: Any) -> Any:
        return x * tj.grad(lambda y: x + y)(1.0)

    assert float(tj.grad(outer)(1.0)) == 1.0
    assert float(tj.jvp(outer, (1.0,), (1.0,))[1]) == 1.0

    def forward(x: Any) -> Any:
        return x * tj.jvp(lambda y: x + y, (1.0,), (1.0,))[1]

    assert float(tj.grad(forward)(1.0)) == 1.0
    assert float(tj.jvp(forward, (1.0,), (1.0,))[1]) == 1.0


def test_s39_vjp_takes_structures_and_several_calls() -> None:
    def function(x: Any, p: Any) -> Any:
        return {"s": x * p["w"], "t": tj.sum(p["w"])}

    x, p = tj.asarray(2.0), {"w": tj.asarray([1.0, 3.0])}
    value, pull = tj.vjp(function, x, p)
    assert value["s"].tolist() == [2.0, 6.0]
    for _ in range(2):
        dx, dp = pull({"s": tj.asarray([1.0, 10.0]), "t": 5.0})
        assert float(dx) == 31.0
        assert dp["w"].tolist() == [7.0, 25.0]


def test_s39_jvp_takes_structures_and_checks_them() -> None:
    def function(x: Any, p: Any) -> Any:
        return {"s": x * p["w"], "constant": tj.asarray(1.0)}

    primals = (tj.asarray(2.0), {"w": tj.asarray([1.0, 3.0])})
    tangents = (1.0, {"w": tj.asarray([10.0, 0.0])})
    value, tangent = tj.jvp(function, primals, tangents)
    assert value["s"].tolist() == [2.0, 6.0]
    assert tangent["s"].tolist() == [21.0, 3.0]
    assert float(tangent["constant"]) == 0.0
    with pytest.raises(ValueError, match=r"shape.*\(3,\).*\(2,\)"):
        tj.jvp(tj.sin, (tj.ones(2),), (tj.ones(3),))
    with pytest.raises(ValueError):
        tj.jvp(tj.multiply, (1.0, 2.0), (1.0,))
    with pytest.raises(TypeError, match="one form"):
        tj.jvp(tj.sin, (1.0,), 1.0)
    with pytest.raises(TypeError, match="real"):
        tj.jvp(tj.sin, (1.0,), (1j,))


def test_s39_variables_can_be_differentiated_through_arguments() -> None:
    v = tj.Variable([1.0, 2.0])
    assert tj.grad(lambda x: tj.sum(x * x))(v).tolist() == [2.0, 4.0]
    assert tj.jacobian(lambda x: x * x)(v).tolist() == [[2.0, 0.0], [0.0, 4.0]]
    assert tj.hessian(lambda x: tj.sum(x**3))(v).tolist() == [[6.0, 0.0], [0.0, 12.0]]
    _, tangent = tj.jvp(lambda x: x * x, (v,), (tj.asarray([1.0, 10.0]),))
    assert tangent.tolist() == [2.0, 40.0]
