"""Custom gradients in forward mode, mapped, and what they keep (13, 22, 40, 44)."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

import tapejit as tj
from tapejit.tape import recording

from .custom_gradients import gradient, log1pexp, sigmoid

# Line 40, and other transformations


def test_s40_forward_mode_uses_grad_fn_too(mode: Any) -> None:
    @tj.custom_gradient
    def f(a: Any, b: Any) -> Any:
        return (a * b, a + b), lambda du, dv: (10 * du * b + dv, 100 * dv)

    a, b = tj.asarray([1.0, 2.0]), tj.asarray([3.0, 4.0])
    ta, tb = tj.asarray([1.0, 0.5]), tj.asarray([-1.0, 2.0])
    _, (tu, tv) = tj.jvp(mode(f), (a, b), (ta, tb))
    np.testing.assert_allclose(tu, [30.0, 20.0])
    np.testing.assert_allclose(tv, [1 - 100.0, 0.5 + 200.0])


def test_s40_both_modes_are_transposes_for_complex_numbers(mode: Any) -> None:
    @tj.custom_gradient
    def f(z: Any) -> Any:
        return z * z, lambda dy: dy * tj.conj(2 * z) * (1 + 2j)

    z, t = tj.asarray([1 + 2j, 3 - 1j]), tj.asarray([0.5 - 1j, 2 + 1j])
    u = tj.asarray([1 - 1j, 0.25 + 3j])
    _, pushed = tj.jvp(mode(f), (z,), (t,))
    _, pull = tj.vjp(mode(f), z)
    (pulled,) = pull(u)
    left = np.vdot(pulled.numpy(), t.numpy()).real
    right = np.vdot(u.numpy(), pushed.numpy()).real
    assert left == pytest.approx(right, 1e-5)


def test_s40_forward_over_reverse(mode: Any) -> None:
    x, t = tj.asarray([0.5, -1.0]), tj.asarray([1.0, 2.0])
    f = mode(log1pexp)
    (got,) = tj.hvp(lambda x: tj.sum(f(x)), (x,), (t,))
    s = sigmoid([0.5, -1.0])
    np.testing.assert_allclose(got, s * (1 - s) * [1.0, 2.0], 1e-5)


def test_s40_an_accumulator_gives_the_same(mode: Any) -> None:
    w = tj.Variable(2.0)

    def whole(x: Any) -> Any:
        k = w * 5
        f = tj.custom_gradient(
            lambda y: (y * k * w, lambda dy, variables=None: (100 * dy, [10 * dy]))
        )
        return f(x)

    x = tj.asarray(3.0)
    one = tj.asarray(1.0)
    with tj.ForwardAccumulator([x, w], [one, one]) as acc:
        y = mode(whole)(x)
    assert float(acc.jvp(y)) == 100 + 10 + 5 * 3 * 2


def test_s40_closures_have_their_tangents(mode: Any) -> None:
    def whole(x: Any, k: Any) -> Any:
        return tj.custom_gradient(lambda y: (y * k, lambda dy: 100 * dy))(x)

    one = tj.asarray(1.0)
    _, t = tj.jvp(mode(whole), (tj.asarray(2.0), tj.asarray(3.0)), (one, one))
    assert float(t) == 100 + 2


def test_s40_a_gradient_made_with_numpy_cannot_be_pushed_forward() -> None:
    @tj.custom_gradient
    def f(x: Any) -> Any:
        return x * 2, lambda dy: tj.asarray(dy.numpy() * 3)

    assert float(gradient(f, tj.asarray(1.0))[0]) == 3.0
    with pytest.raises(tj.NotDifferentiableError, match="leaves tapejit"):
        tj.jvp(f, (1.0,), (1.0,))


def test_s40_vmap_maps_value_and_gradient() -> None:
    x = tj.asarray([[0.5, -1.0], [2.0, 3.0]])
    np.testing.assert_allclose(tj.vmap(log1pexp)(x), log1pexp(x), 1e-6)
    np.testing.assert_allclose(tj.vmap(tj.vmap(tj.grad(log1pexp)))(x), sigmoid(x), 1e-5)
    mapped = tj.grad(lambda x: tj.sum(tj.vmap(log1pexp)(x)))
    np.testing.assert_allclose(mapped(x), sigmoid(x), 1e-5)


def test_s40_vmap_of_closures() -> None:
    x, w = tj.asarray([1.0, 2.0]), tj.Variable([2.0, 3.0])

    def row(x: Any) -> Any:
        k = w * 2
        f = tj.custom_gradient(lambda y: (y * k[0] * y, lambda dy, variables=None: dy))
        return f(x)

    with tj.GradientTape() as tape:
        tape.watch(x)
        y = tj.vmap(row)(x)
    gx, gw = tape.gradient(y, [x, w])
    np.testing.assert_array_equal(gx, [1.0, 1.0])
    np.testing.assert_array_equal(gw, [2 * (1 + 4), 0.0])


# Programs and memory


def test_s13_a_training_loop_is_recognised_and_keeps_no_closure() -> None:
    v = tj.Variable(np.ones(100, np.float32))
    closures: list[weakref.ref[Any]] = []

    def step() -> None:
        @tj.custom_gradient
        def f(x: Any) -> Any:
            def grad_fn(dy: Any) -> Any:
                return dy * 2

            closures.append(weakref.ref(grad_fn))
            return x * 2, grad_fn

        with tj.GradientTape() as tape:
            y = tj.sum(f(v))
        tape.gradient(y, v)
        assert tape.nbytes == 0

    step()
    gc.collect()
    gc.disable()
    try:
        sizes = []
        for _ in range(4):
            step()
            sizes.append(recording.TRIE.size)
    finally:
        gc.enable()
    assert len(set(sizes[1:])) == 1, "no new state"
    gc.collect()
    assert [ref() for ref in closures] == [None] * 5


def test_s13_nbytes_counts_what_grad_fn_refers_to() -> None:
    v = tj.Variable(np.ones(100, np.float32))
    with tj.GradientTape() as tape:
        f = tj.custom_gradient(lambda x: (tj.floor(x), lambda dy: dy * x))
        f(v.value())
    assert tape.nbytes == v.nbytes


def test_s22_why_none_names_the_function_that_gave_none() -> None:
    @tj.custom_gradient
    def opaque(x: Any) -> Any:
        return x * 2, lambda dy: None

    x = tj.Variable(1.0, name="x")
    with tj.GradientTape(persistent=True) as tape:
        y = opaque(x)
    assert tape.gradient(y, x) is None
    text = tape.why_none(y, x)
    assert "grad_fn" in text
    assert "test_custom_gradient_transforms.py" in text


def test_s44_a_graph_shows_the_call() -> None:
    x = tj.Variable(1.0, name="x")
    with tj.GradientTape(persistent=True) as tape:
        y = log1pexp(x)
    assert "custom_call opaque" not in str(tape.graph(y))
    assert " = custom_call " in str(tape.graph(y))
    assert "custom_vjp" in str(tape.graph(y, [x]))
