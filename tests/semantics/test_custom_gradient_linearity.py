"""Forward mode of custom gradients uses their transpose, if they have one (40)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tapejit as tj

X, T = tj.asarray([1.0, 2.0]), tj.asarray([0.5, -1.0])
GradFn = Callable[[Any, Any], Any]


def with_gradient(grad_fn: GradFn) -> Any:
    """x * x with the gradient `grad_fn(dy, x)`."""

    @tj.custom_gradient
    def squared(x: Any) -> Any:
        return x * x, lambda dy: grad_fn(dy, x)

    return squared


def ways_of(f: Any) -> dict[str, Callable[[], Any]]:
    """The tangent of f(X) along T, in every way to ask for it."""

    def accumulated() -> Any:
        with tj.ForwardAccumulator(X, T) as acc:
            y = f(X)
        return acc.jvp(y)

    inside = tj.function(lambda x, t: tj.jvp(f, (x,), (t,))[1])
    called = tj.function(lambda x: tj.function(f)(x))
    return {
        "eager": lambda: tj.jvp(f, (X,), (T,))[1],
        "accumulator": accumulated,
        "function": lambda: tj.jvp(tj.function(f), (X,), (T,))[1],
        "function in a function": lambda: tj.jvp(called, (X,), (T,))[1],
        "inside a function": lambda: inside(X, T),
    }


CLIPPED = {
    "where": lambda dy, x: tj.where(dy > 0, 2 * x * dy, 0),
    "clip": lambda dy, x: tj.clip(2 * x * dy, -1, 1),
    "clip_by_norm": lambda dy, x: tj.clip_by_norm(2 * x * dy, 1.0),
    "sign": lambda dy, x: tj.sign(dy) * 2 * x,
    "normalised": lambda dy, x: dy / tj.sum(dy * dy),
    "rounded": lambda dy, x: tj.astype(tj.astype(dy, tj.int32), tj.float32) * x,
    "affine": lambda dy, x: dy * 2 * x + 1,
    "constant": lambda dy, x: 2 * x,
    "stopped": lambda dy, x: tj.stop_gradient(dy) * 2 * x,
    "of a call": lambda dy, x: tj.function(tj.minimum)(dy, x),
    # Linear, though not as it is written.
    "exponential": lambda dy, x: dy * tj.exp(dy - dy) * 2 * x,
}


@pytest.mark.parametrize("name", CLIPPED)
def test_s40_a_gradient_that_is_not_linear_is_refused(name: str) -> None:
    f = with_gradient(CLIPPED[name])
    for tangent in ways_of(f).values():
        with pytest.raises(tj.NotDifferentiableError, match="not linear in its") as at:
            tangent()
        assert "of squared" in str(at.value)
        assert "test_custom_gradient_linearity.py" in at.value.message
        assert "reverse mode" in str(at.value)


@pytest.mark.parametrize("name", CLIPPED)
def test_s40_reverse_mode_takes_it_as_it_is(name: str, mode: Any) -> None:
    f = with_gradient(CLIPPED[name])
    (found,) = tj.vjp(mode(f), X)[1](T)
    np.testing.assert_array_equal(found, CLIPPED[name](T, X))


LINEAR = {
    "product": (lambda dy, x: 2 * x * dy, [1, -4]),
    "masked": (lambda dy, x: tj.where(x > 1, 2 * x * dy, 0), [0, -4]),
    "mean": (lambda dy, x: tj.mean(dy) * tj.ones_like(x), [-0.25, -0.25]),
    "zero": (lambda dy, x: tj.zeros_like(x), [0, 0]),
    "padded": (lambda dy, x: tj.concat([dy[1:], tj.zeros(1)]), [0, 0.5]),
    "matmul": (lambda dy, x: dy @ tj.asarray([[1.0, 2], [3, 4]]), [-1.5, -2.5]),
    "half": (lambda dy, x: tj.astype(tj.astype(dy, "float16"), "float32"), [0.5, -1]),
    "of a tape": (lambda dy, x: tj.vjp(lambda x: x * x, x)[1](dy)[0], [1, -4]),
    "of a call": (lambda dy, x: tj.function(lambda a, b: a * b)(dy, x), [0.5, -2]),
    "nested": (
        lambda dy, x: tj.vjp(with_gradient(lambda g, z: 5 * g * z), x)[1](dy)[0],
        [2.5, -10],
    ),
}


@pytest.mark.parametrize("name", LINEAR)
def test_s40_a_linear_gradient_is_transposed(name: str) -> None:
    grad_fn, expected = LINEAR[name]
    for way, tangent in ways_of(with_gradient(grad_fn)).items():
        np.testing.assert_allclose(tangent(), expected, 1e-6, err_msg=way)


def test_s40_a_gradient_that_python_decides_cannot_be_transposed() -> None:
    f = with_gradient(lambda dy, x: dy if tj.sum(dy) > 0 else 2 * dy)
    with pytest.raises(tj.NotDifferentiableError, match="leaves tapejit"):
        tj.jvp(f, (X,), (T,))


def test_s40_the_line_that_masks_by_the_cotangent_is_named() -> None:
    f = with_gradient(lambda dy, x: dy * tj.sum(dy[dy > 0]))
    with pytest.raises(
        tj.NotDifferentiableError, match=r"linearity\.py:\d+ in <lambda>"
    ):
        tj.jvp(f, (X,), (T,))


@pytest.mark.parametrize("way", ["eager", "inside a function"])
def test_s40_forward_mode_draws_and_shows_as_reverse_mode_does(
    way: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def noisy(dy: Any, x: Any) -> Any:
        tj.print("drawn")
        return dy * tj.random.uniform(2)

    f = with_gradient(noisy)
    tj.random.set_seed(3)
    (expected,) = tj.vjp(f, X)[1](T)
    tj.random.set_seed(3)
    np.testing.assert_array_equal(ways_of(f)[way](), expected)
    shown = capsys.readouterr().out.splitlines()
    assert shown == ["drawn"] * 2


def test_s40_a_cotangent_that_is_assigned_leaves_tapejit() -> None:
    v = tj.Variable([0.0, 0.0], name="v")
    f = with_gradient(lambda dy, x: (v.assign(dy), dy)[1])
    with pytest.raises(tj.NotDifferentiableError, match="assigned to variable 'v'"):
        tj.jvp(f, (X,), (T,))


def test_s40_what_grad_fn_makes_of_values_is_no_part_of_the_function() -> None:
    """A call that nobody differentiates does not compute it."""
    f = with_gradient(lambda dy, x: dy * tj.sin(x))
    function = tj.function(f)
    names = [node.op.name for node in function.graph(X).nodes]
    assert "sin" not in names
    np.testing.assert_array_equal(tj.vjp(function, X)[1](T)[0], T * tj.sin(X))


def test_s40_hessians_need_no_transpose(mode: Any) -> None:
    """The tangent of a clipped gradient is that of the clipping, at its cotangent."""
    f = with_gradient(lambda dy, x: tj.clip(2 * x * dy, -3, 3))
    (found,) = tj.hvp(lambda x: tj.sum(mode(f)(x)), (X,), (T,))
    np.testing.assert_array_equal(found, [1, 0])


def test_s40_native_code_refuses_it_too() -> None:
    f = with_gradient(CLIPPED["clip"])
    with tj.config.override(native=True):
        pushed = tj.function(lambda x, t: tj.jvp(tj.function(f), (x,), (t,))[1])
        with pytest.raises(tj.NotDifferentiableError, match="not linear in its"):
            pushed(X, T)
