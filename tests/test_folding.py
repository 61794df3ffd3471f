"""A function along an axis: order, structures, types that stay, both modes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tapejit as tj

X = np.array([[1.0, -2.0], [0.5, 3.0], [2.0, 0.25]])


def horner(total: Any, x: Any) -> Any:
    return total * 0.5 + x


def test_order_is_from_first_to_last() -> None:
    expected = (X[0] * 0.5 + X[1]) * 0.5 + X[2]
    for fold in (tj.foldl, tj.function(lambda f, x: tj.foldl(f, x))):
        np.testing.assert_array_equal(fold(horner, X), expected)
    start = np.array([8.0, 8.0])
    np.testing.assert_array_equal(tj.foldl(horner, X, start), expected + 1)


def test_derivatives_and_rows() -> None:
    def rnn(w: Any, x: Any, state: Any) -> Any:
        return tj.foldl(lambda h, row: tj.tanh(h @ w + row), x, state)

    w, state = np.array([[0.3, -0.2], [0.1, 0.4]]), np.array([0.5, -0.5])
    tj.testing.check_grads(rnn, (w, X, state), order=2)
    batch = np.stack([X, 2 * X])
    mapped = tj.vmap(rnn, in_axes=(None, 0, None))(w, batch, state)
    np.testing.assert_allclose(mapped[1], rnn(w, 2 * X, state), rtol=1e-14)
    traced = tj.function(lambda *args: tj.grad(lambda *a: tj.sum(rnn(*a)))(*args))
    np.testing.assert_array_equal(
        traced(w, X, state), tj.grad(lambda *a: tj.sum(rnn(*a)))(w, X, state)
    )


def test_structures() -> None:
    def step(state: Any, element: Any) -> Any:
        total, seen = state["total"], state["seen"]
        x, weight = element
        return {"total": total + x * weight, "seen": [*seen[1:], weight]}

    start = {"total": np.zeros(2), "seen": [0, 0]}
    weights = np.array([1, 2, 3], np.int32)
    found = tj.foldl(step, (X, weights), start)
    np.testing.assert_array_equal(found["total"], X[0] + 2 * X[1] + 3 * X[2])
    assert [int(n) for n in found["seen"]] == [2, 3]


def test_nothing_and_one() -> None:
    nothing = tj.foldl(horner, X[:0], np.array([1.0, 2.0]))
    assert nothing.numpy().tolist() == [1.0, 2.0]
    assert isinstance(tj.foldl(horner, X[:0], 0.0), tj.Tensor)
    np.testing.assert_array_equal(tj.foldl(horner, X[:1]), X[0])
    with pytest.raises(tj.ArgumentError, match="no first element"):
        tj.foldl(horner, X[:0])


def test_a_number_takes_the_dtype_that_it_meets() -> None:
    line = tj.asarray([1.0, 2.0], dtype="float64")
    assert tj.foldl(lambda a, x: a + x, line, 0).dtype == tj.float64
    assert tj.foldl(lambda a, x: a + 1, line, 0).dtype == tj.int32
    assert tj.foldl(lambda a, x: 3.0, line, tj.asarray(1.0)).dtype == tj.float32


@pytest.mark.parametrize("is_traced", [False, True])
def test_types_stay(is_traced: bool) -> None:
    def refused(error: Any, text: str, *args: Any) -> None:
        call = tj.function(lambda: tj.foldl(*args)) if is_traced else None
        with pytest.raises(error, match=text):
            (call or (lambda: tj.foldl(*args)))()

    refused(
        ValueError, r"is f32\[\], and in step 0 .* f32\[2\]", grow, X32, tj.zeros(())
    )
    refused(TypeError, r"is f32\[2\], and in step 0 .* f64", horner, X, tj.zeros(2))
    refused(ValueError, r"the number 0\.0, and .* f32\[2\]", grow, X32, 0.0)
    refused(
        TypeError, r"the number 0\.5, and .* i32", lambda a, x: tj.arange(1)[0], X, 0.5
    )
    refused(
        ValueError, r"at \['a'\] is f32", lambda a, x: {"a": x}, X32, {"a": tj.ones(3)}
    )
    refused(ValueError, "another structure", lambda a, x: [a, x], X32)
    refused(ValueError, "first axes differ", horner, [X, X[:2]])
    refused(ValueError, "has none", horner, 3.0)
    refused(ValueError, "no tensors", horner, [])
    refused(TypeError, r"tj\.foldl\(fn, elems, initializer\)", X, horner)


X32 = X.astype(np.float32)


def grow(total: Any, x: Any) -> Any:
    return total + x
