"""Hessians, products with them, functions of functions (line 39)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from agreement import COMPOSED

import tapejit as tj

from .both_modes import assert_modes, assert_taped, note_error, ways


def point() -> Any:
    return tj.asarray(POINT), tj.asarray(VECTOR)


def assert_value(program: Any, expected: Any, setup: Any = point) -> None:
    """The program in both modes, and near to what it should be."""
    plain = assert_modes(program, setup)
    np.testing.assert_allclose(plain.result.numpy(), expected, rtol=1e-12)


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


HESSIAN = rosen_hessian(POINT)


def taped_gradient(x: Any) -> Any:
    """The gradient, and a tape that has seen how it came about."""
    with tj.GradientTape() as outer:
        outer.watch(x)
        with tj.GradientTape() as inner:
            inner.watch(x)
            y = rosen(x)
        g = inner.gradient(y, x)
    return g, outer


def by_tapes(x: Any, v: Any) -> Any:
    g, tape = taped_gradient(x)
    return tape.jacobian(g, x)


HESSIANS = {
    "jacobian of gradient": by_tapes,
    "hessian": lambda x, v: tj.hessian(rosen)(x),
    "jacobian of grad": lambda x, v: tj.jacobian(tj.grad(rosen))(x),
    "hessian of a function": lambda x, v: tj.hessian(tj.function(rosen))(x),
    "function of a hessian": lambda x, v: tj.function(tj.hessian(rosen))(x),
    "vmap of hvp": lambda x, v: tj.vmap(lambda e: tj.hvp(rosen, (x,), (e,))[0])(
        tj.eye(4, dtype="float64")
    ),
}


@pytest.mark.parametrize("program", HESSIANS.values(), ids=HESSIANS)
def test_s39_hessians(program: Any) -> None:
    assert_value(program, HESSIAN)


def through_output_gradients(x: Any, v: Any) -> Any:
    g, tape = taped_gradient(x)
    return tape.gradient(g, x, output_gradients=v)


def forward_over_reverse(x: Any, v: Any) -> Any:
    def gradient(x: Any) -> Any:
        with tj.GradientTape() as tape:
            tape.watch(x)
            y = rosen(x)
        return tape.gradient(y, x)

    return tj.jvp(gradient, (x,), (v,))[1]


def accumulated(x: Any, v: Any) -> Any:
    with tj.ForwardAccumulator(x, v) as forward:
        with tj.GradientTape() as tape:
            tape.watch(x)
            y = rosen(x)
        g = tape.gradient(y, x)
    return forward.jvp(g)


PRODUCTS = {
    "output_gradients": through_output_gradients,
    "forward over reverse": forward_over_reverse,
    "accumulator over tape": accumulated,
    "reverse over forward": lambda x, v: tj.grad(
        lambda x: tj.jvp(rosen, (x,), (v,))[1]
    )(x),
    "hvp": lambda x, v: tj.hvp(rosen, (x,), (v,))[0],
    "hvp without tuples": lambda x, v: tj.hvp(rosen, x, v),
    "jvp without tuples": lambda x, v: tj.jvp(tj.grad(rosen), x, v)[1],
    "hvp of a function": lambda x, v: tj.hvp(tj.function(rosen), (x,), (v,))[0],
    "vjp of grad": lambda x, v: tj.vjp(tj.grad(rosen), x)[1](v)[0],
}


@pytest.mark.parametrize("program", PRODUCTS.values(), ids=PRODUCTS)
def test_s39_products_with_hessians(program: Any) -> None:
    assert_value(program, HESSIAN @ VECTOR)


def test_s39_forward_over_forward_agrees() -> None:
    def program(x: Any, v: Any) -> Any:
        directional = lambda x: tj.jvp(rosen, (x,), (v,))[1]
        return tj.jvp(directional, (x,), (v,))[1]

    assert_value(program, VECTOR @ HESSIAN @ VECTOR)


def test_s39_variables_as_sources_of_hessians() -> None:
    def program(a: Any, b: Any) -> Any:
        with tj.GradientTape() as outer:
            with tj.GradientTape() as inner:
                y = tj.sum(a**3) * b * b
            ga, gb = inner.gradient(y, [a, b])
        return outer.jacobian([ga, gb], [a, b])

    def setup() -> Any:
        return tj.Variable([1.0, 2.0]), tj.Variable(3.0)

    expected = [
        [[[54.0, 0.0], [0.0, 108.0]], [18.0, 72.0]],
        [[18.0, 72.0], 18.0],
    ]
    assert_modes(program, setup, expected=expected)


def test_s39_the_public_functions() -> None:
    def program(x: Any, v: Any) -> Any:
        value, gradient = tj.value_and_grad(rosen)(x)
        again, pull = tj.vjp(rosen, x)
        same, slope = tj.jvp(rosen, (x,), (v,))
        batched = tj.vmap(tj.grad(rosen))(tj.stack([x, 2.0 * x]))
        return [
            (value, again, same, rosen(x)),
            (gradient, pull(1.0)[0], tj.grad(rosen)(x)),
            (slope, tj.sum(gradient * v)),
            (batched[0], gradient),
            (batched[1], tj.grad(rosen)(2.0 * x)),
        ]

    values, gradients, *near = assert_modes(program, point).result
    assert len({float(x) for x in values}) == 1
    assert all(g.tolist() == gradients[0].tolist() for g in gradients)
    for got, expected in near:
        np.testing.assert_allclose(got.numpy(), expected.numpy(), rtol=1e-12)


def test_s39_they_nest() -> None:
    def program(x: Any, rows: Any) -> Any:
        third = tj.grad(tj.grad(tj.grad(lambda x: x**4)))
        by_rows = tj.vmap(lambda x: tj.grad(tj.grad(lambda y: y**3))(x))
        return third(x), by_rows(rows), tj.vmap(tj.vmap(lambda x: x * x))(rows[None])

    def setup() -> Any:
        return tj.asarray(2.0), tj.asarray([1.0, 2.0])

    assert_modes(program, setup, expected=(48.0, [6.0, 12.0], [[1.0, 4.0]]))
    assert_value(
        lambda x, v: tj.vmap(tj.hessian(rosen))(tj.stack([x, v])),
        np.stack([HESSIAN, rosen_hessian(VECTOR)]),
    )


def test_s39_tapes_in_the_body_see_them() -> None:
    def program(v: Any, rows: Any) -> Any:
        with tj.GradientTape(persistent=True) as tape:
            cubed = tj.grad(lambda x: x**3 * v)(v.value())
            mapped = tj.sum(tj.vmap(lambda x: x * v)(rows))
            _, slope = tj.jvp(lambda x: x * x * v, (3.0,), (1.0,))
        return [tape.gradient(t, v) for t in (cubed, mapped, slope)]

    def setup() -> Any:
        return tj.Variable(2.0), tj.asarray([1.0, 2.0])

    assert_modes(program, setup, expected=[36.0, 3.0, 6.0])


def test_s39_tapes_around_see_them() -> None:
    def program(v: Any, rows: Any) -> Any:
        return (
            tj.grad(lambda x: x**3 * v)(v.value()),
            tj.vmap(lambda x: x * v * v)(rows),
            tj.jvp(lambda x: x * x * v, (v.value(),), (1.0,)),
        )

    def setup() -> Any:
        return tj.Variable(2.0), tj.asarray([1.0, 2.0])

    # 3v³ + Σ rows v² + v³ + 2v²
    assert_taped(program, setup, expected=[9 * 4.0 + 12 + 12 + 8, [4.0, 4.0]])


def test_s39_a_tape_works_inside_a_mapped_function() -> None:
    def program(v: Any, rows: Any) -> Any:
        def by_argument(x: Any) -> Any:
            with tj.GradientTape() as tape:
                tape.watch(x)
                y = x**3 * v
            return tape.gradient(y, x)

        def by_variable(x: Any) -> Any:
            with tj.GradientTape() as tape:
                y = x * v * v
            return tape.gradient(y, v)

        return tj.vmap(by_argument)(rows), tj.vmap(by_variable)(rows)

    def setup() -> Any:
        return tj.Variable(2.0), tj.asarray([1.0, 2.0])

    assert_modes(program, setup, expected=([6.0, 24.0], [4.0, 8.0]))
    assert_taped(program, setup, expected=[15.0 + 6.0, [16.0, 28.0]])


def test_s39_a_seed_is_differentiable_by_an_outer_tape() -> None:
    def program(x: Any, seed: Any) -> Any:
        with tj.GradientTape() as outer:
            with tj.GradientTape() as inner:
                y = x * x
            g = inner.gradient(y, x, output_gradients=seed)
        return outer.gradient(g, [x, seed])

    def setup() -> Any:
        return tj.Variable([1.0, 2.0]), tj.Variable([1.0, 10.0])

    assert_modes(program, setup, expected=[[2.0, 20.0], [2.0, 4.0]])


def test_s39_arguments_that_are_one_tensor_are_told_apart() -> None:
    def program(x: Any) -> Any:
        product = tj.grad(lambda a, b: a * a * b, argnums=(0, 1))
        with tj.GradientTape() as tape:
            tape.watch(x)
            first, second = product(x, x)
            total = first + second
        return first, second, tape.gradient(total, x)

    assert_modes(program, lambda: tj.asarray(3.0), expected=(18.0, 9.0, 18.0))


def test_s39_an_inner_derivative_does_not_see_the_outer_one() -> None:
    def program(x: Any) -> Any:
        def outer(x: Any) -> Any:
            return x * tj.grad(lambda y: x + y)(1.0)

        def forward(x: Any) -> Any:
            return x * tj.jvp(lambda y: x + y, (1.0,), (1.0,))[1]

        return [
            tj.grad(outer)(x),
            tj.jvp(outer, (x,), (1.0,))[1],
            tj.grad(forward)(x),
            tj.jvp(forward, (x,), (1.0,))[1],
        ]

    assert_modes(program, lambda: tj.asarray(1.0), expected=[1.0] * 4)


def test_s39_vjp_and_jvp_take_structures_and_check_them() -> None:
    def function(x: Any, p: Any) -> Any:
        return {"s": x * p["w"], "t": tj.sum(p["w"]), "constant": tj.asarray(1.0)}

    def program(x: Any, p: Any) -> Any:
        value, pull = tj.vjp(function, x, p)
        seed = {"s": tj.asarray([1.0, 10.0]), "t": 5.0, "constant": 1.0}
        found = [pull(seed) for _ in range(2)]
        tangents = (1.0, {"w": tj.asarray([10.0, 0.0])})
        pushed = tj.jvp(function, (x, p), tangents)
        note_error(lambda: tj.jvp(tj.sin, (p["w"],), (tj.ones(3),)))
        note_error(lambda: tj.jvp(tj.multiply, (x, x), (1.0,)))
        note_error(lambda: tj.jvp(tj.sin, (x,), (1j,)))
        note_error(lambda: tj.jvp(tj.sin, (x,), 1.0))
        note_error(lambda: tj.jvp(tj.sin, x, (x,)))
        note_error(lambda: tj.hvp(tj.sin, (x,), x))
        note_error(lambda: tj.grad(lambda x: x * p["w"])(p["w"]))
        return value, found, pushed

    def setup() -> Any:
        return tj.asarray(2.0), {"w": tj.asarray([1.0, 3.0])}

    value = {"s": [2.0, 6.0], "t": 4.0, "constant": 1.0}
    pulled = (31.0, {"w": [7.0, 25.0]})
    tangent = {"s": [21.0, 3.0], "t": 10.0, "constant": 0.0}
    errors: list[Any] = [
        (ValueError, r"shape.*\(3,\).*\(2,\)"),
        (ValueError, ""),
        (TypeError, "real"),
        *[(TypeError, "one form")] * 3,
        (ValueError, ""),
    ]
    expected = (value, [pulled, pulled], (value, tangent))
    assert_modes(program, setup, expected=expected, errors=errors)


def test_s39_variables_can_be_differentiated_through_arguments() -> None:
    def program(v: Any) -> Any:
        _, tangent = tj.jvp(lambda x: x * x, (v,), (tj.asarray([1.0, 10.0]),))
        return [
            tj.grad(lambda x: tj.sum(x * x))(v),
            tj.jacobian(lambda x: x * x)(v),
            tj.hessian(lambda x: tj.sum(x**3))(v),
            tangent,
        ]

    matrices = [[2.0, 0.0], [0.0, 4.0]], [[6.0, 0.0], [0.0, 12.0]]
    expected = [[2.0, 4.0], *matrices, [2.0, 40.0]]
    assert_modes(program, lambda: tj.Variable([1.0, 2.0]), expected=expected)


def test_s39_functions_of_decorated_functions() -> None:
    def loss(x: Any, w: Any) -> Any:
        return tj.sum(tj.tanh(x * w) ** 2)

    def setup() -> Any:
        return tj.asarray(POINT), tj.asarray(VECTOR)

    found = []
    for _, call in ways(loss, setup):
        x, w = setup()
        results = [
            tj.grad(call)(x, w),
            tj.grad(call, argnums=(0, 1))(x, w),
            tj.value_and_grad(call)(x, w),
            tj.jacobian(call)(x, w),
            tj.jvp(call, (x, w), (w, x)),
            tj.hvp(lambda x, call=call, w=w: call(x, w), (x,), (w,)),
            tj.vjp(call, x, w)[1](1.0),
            tj.vmap(call)(tj.stack([x, w]), tj.stack([w, w])),
            tj.hessian(call)(x, w),
        ]
        found.append([np.asarray(x) for x in tj.tree.leaves(results)])
    for other in found[1:]:
        for got, plain in zip(other, found[0], strict=True):
            np.testing.assert_array_equal(got, plain)


def test_s39_third_order_of_a_network_by_tapes_around_it() -> None:
    def network(w: Any, b: Any, x: Any) -> Any:
        hidden = tj.tanh(x @ w + b)
        return tj.mean(hidden * hidden, axis=0), tj.sum(hidden)

    def setup() -> Any:
        rng = np.random.default_rng(0)
        w, b = tj.Variable(rng.normal(size=(3, 2))), tj.Variable(rng.normal(size=2))
        return w, b, tj.asarray(rng.normal(size=(4, 3)))

    assert_taped(network, setup, order=3, op_class=COMPOSED)


def test_s39_derivatives_are_made_of_functions() -> None:
    """No mode is involved: nothing is called."""
    x = tj.ones(2)
    for make in (tj.grad, tj.value_and_grad, tj.jacobian, tj.hessian):
        with pytest.raises(tj.ArgumentTypeError, match="takes a function, got Tensor"):
            make(x)
        for wrong in (x, 1.0, np.ones(2), [0.5]):
            with pytest.raises(tj.ArgumentTypeError, match="argnums") as caught:
                make(rosen, wrong)
            assert f"tj.{make.__name__}(f)(x)" in str(caught.value)
        make(rosen, np.int64(0))
    with pytest.raises(tj.ArgumentTypeError, match="takes a function, got Tensor"):
        tj.vmap(x)
