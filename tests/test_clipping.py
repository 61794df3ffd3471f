"""Clipping by value and by norm, of one tensor and of lists with gaps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from two_modes import assert_modes_agree

import tapejit as tj

rng = np.random.default_rng(3)
X = rng.normal(size=(3, 4))
Y = rng.normal(size=5)


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("axes", [None, 0, 1, (0, 1), -1])
def test_a_norm_is_clipped_along_axes(axes: Any, dtype: str) -> None:
    x = (X + 1j * X[::-1]).astype(dtype) if "complex" in dtype else X.astype(dtype)
    norms = np.sqrt(np.sum(np.abs(x) ** 2, axis=axes, keepdims=True))
    limit = float(np.median(norms)) if norms.size > 1 else 1.5
    expected = x * np.minimum(1, limit / norms)
    found = tj.clip_by_norm(tj.asarray(x), limit, axes)
    assert found.dtype == dtype
    tolerance = 4 * np.finfo(dtype).eps
    np.testing.assert_allclose(found.numpy(), expected, rtol=tolerance)


def test_what_is_within_the_limit_keeps_its_bits() -> None:
    x, y = tj.asarray(X), tj.asarray(Y.astype("float32"))
    norm = float(tj.linalg.norm(x))
    assert tj.clip_by_norm(x, norm * 1.001).numpy().tobytes() == X.tobytes()
    clipped, _ = tj.clip_by_global_norm([x, y], 100.0)
    assert clipped[0] is not None
    assert clipped[0].numpy().tobytes() == X.tobytes()
    assert clipped[1] is not None
    assert clipped[1].numpy().tobytes() == y.numpy().tobytes()


def test_a_global_norm_is_that_of_one_vector() -> None:
    together = np.concatenate([X.ravel(), Y])
    found = tj.global_norm([tj.asarray(X), None, tj.Variable(Y), None])
    np.testing.assert_allclose(found, np.linalg.norm(together), rtol=1e-15)
    complex_ = tj.global_norm([tj.asarray(X + 2j * X), tj.asarray(Y)])
    squares = 5 * np.sum(X**2) + np.sum(Y**2)
    np.testing.assert_allclose(complex_, np.sqrt(squares), rtol=1e-15)
    assert complex_.dtype == tj.float64


def test_a_list_is_scaled_as_one_and_none_stays_none() -> None:
    together = np.concatenate([X.ravel(), Y])
    norm = np.linalg.norm(together)
    tensors = iter([tj.asarray(X), None, tj.asarray(Y)])
    (x, gap, y), found = tj.clip_by_global_norm(tensors, 0.5)
    assert gap is None
    np.testing.assert_allclose(found, norm, rtol=1e-15)
    np.testing.assert_allclose(x, X * (0.5 / norm), rtol=1e-14)
    np.testing.assert_allclose(y, Y * (0.5 / norm), rtol=1e-14)
    np.testing.assert_allclose(tj.global_norm([x, y]), 0.5, rtol=1e-14)


def test_dicts_come_back_as_they_were() -> None:
    given = {"w": tj.asarray(X), "deep": {"gap": None, "b": [tj.asarray(Y)]}}
    (x, y), norm = tj.clip_by_global_norm([X, Y], 0.5)
    found, same = tj.clip_by_global_norm(given, 0.5)
    assert found["deep"]["gap"] is None
    np.testing.assert_array_equal(found["w"], x)
    np.testing.assert_array_equal(found["deep"]["b"][0], y)
    assert float(same) == float(norm) == float(tj.global_norm(given))
    (inside,), _ = tj.clip_by_global_norm([given], 0.5)
    np.testing.assert_array_equal(inside["w"], x)


def test_a_known_norm_is_used() -> None:
    (x,), norm = tj.clip_by_global_norm([tj.ones(2)], 1.0, use_norm=tj.asarray(4.0))
    np.testing.assert_array_equal(x, [0.25, 0.25])
    assert float(norm) == 4.0


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_a_norm_that_is_not_finite_spoils_everything(bad: float) -> None:
    (x, y), norm = tj.clip_by_global_norm([tj.asarray([1.0, bad]), tj.ones(2)], 1.0)
    assert not np.isfinite(norm.numpy())
    assert np.all(np.isnan(x.numpy()))
    assert np.all(np.isnan(y.numpy()))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_does_not_overflow_on_the_way(dtype: str) -> None:
    x = tj.full((16,), 30000.0, dtype=dtype)
    found = tj.clip_by_norm(x, 4.0)
    assert found.dtype.name == dtype
    np.testing.assert_array_equal(found.numpy().astype("float32"), np.ones(16))
    (clipped, other), norm = tj.clip_by_global_norm([x, tj.zeros(2)], 4.0)
    assert clipped.dtype.name == dtype
    assert other.dtype == norm.dtype == tj.float32
    np.testing.assert_allclose(norm, 120000.0, rtol=1e-2)
    np.testing.assert_array_equal(clipped.numpy().astype("float32"), np.ones(16))


def test_zeros_and_nothing_have_norm_zero_and_slope_zero() -> None:
    assert float(tj.global_norm([])) == float(tj.global_norm([None])) == 0.0
    assert tj.clip_by_global_norm([None, None], 1.0)[0] == [None, None]
    x = tj.Variable(tj.zeros(3))
    with tj.GradientTape(persistent=True) as tape:
        norm = tj.global_norm([x, x])
        clipped = tj.clip_by_norm(x, 1.0)
    np.testing.assert_array_equal(tape.gradient(norm, x), np.zeros(3))
    np.testing.assert_array_equal(tape.gradient(clipped, x), np.ones(3))


@pytest.mark.parametrize("limit", [0.5, 50.0])
def test_derivatives_are_those_of_the_formulas(limit: float) -> None:
    tj.testing.check_grads(lambda x: tj.clip_by_norm(x, limit, axes=1), [X])
    tj.testing.check_grads(lambda x, y: tj.global_norm([x, y]), [X, Y])
    tj.testing.check_grads(
        lambda x, y: tj.clip_by_global_norm([x, None, y], limit)[0][2], [X, Y]
    )
    tj.testing.check_grads(lambda x: tj.clip_by_value(x, -limit, 0.25), [X])


def test_values_are_clipped_as_by_clip() -> None:
    found = tj.clip_by_value(tj.asarray(X), -0.5, tj.asarray(0.25))
    np.testing.assert_array_equal(found, np.clip(X, -0.5, 0.25))
    with pytest.raises(tj.TapejitError, match="clip_by_value"):
        tj.clip_by_value(tj.ones((2, 3)), tj.ones(2), 1.0)


def test_both_modes_agree_and_a_limit_may_be_a_tensor() -> None:
    x, y = X.astype("float32"), Y.astype("float32")
    for limit in (0.5, np.float32(2.5)):
        given = [tj.asarray(x), tj.asarray(y), tj.asarray(limit)]
        assert_modes_agree(lambda x, y, n: tj.clip_by_norm(x, n, 0), given)
        assert_modes_agree(lambda x, y, n: tj.global_norm([x, None, y]), given)
        assert_modes_agree(
            lambda x, y, n: tj.clip_by_global_norm([x, None, y], n), given
        )
    found = tj.clip_by_norm(tj.asarray(x), tj.asarray(0.5, dtype="float64"))
    assert found.dtype == tj.float32


def test_a_changing_limit_is_no_reason_to_trace_again() -> None:
    function = tj.function(lambda x, limit: tj.clip_by_norm(x, limit))
    for limit in (0.5, 0.25, 0.125, 2.0):
        found = function(tj.asarray(X), limit)
        np.testing.assert_array_equal(found, tj.clip_by_norm(tj.asarray(X), limit))
    assert function.trace_count == 2


def test_rows_are_clipped_by_vmap() -> None:
    rows = tj.vmap(lambda row: tj.clip_by_norm(row, 0.5))(tj.asarray(X))
    np.testing.assert_allclose(rows, tj.clip_by_norm(tj.asarray(X), 0.5, 1), rtol=1e-15)


def test_an_average_norm_is_the_norm_over_the_size() -> None:
    norm = np.linalg.norm(X) / X.size
    for limit in (0.5 * norm, norm, 2 * norm):
        found = tj.clip_by_average_norm(X, limit)
        np.testing.assert_allclose(found, X * min(1.0, limit / norm), rtol=1e-6)
    assert tj.clip_by_average_norm(tj.zeros(0), 1.0).shape == (0,)
    zeros = tj.grad(lambda x: tj.sum(tj.clip_by_average_norm(x, 1.0)))(tj.zeros(3))
    assert zeros.numpy().tolist() == [1.0, 1.0, 1.0]
    x = X.astype(np.float64)
    tj.testing.check_grads(lambda x: tj.clip_by_average_norm(x, 0.01), (x,), order=2)
    assert tj.clip_by_average_norm(tj.ones(4, dtype="float16"), 0.1).dtype == tj.float16


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: tj.clip_by_average_norm(tj.ones(2), 0), ValueError, "clip_by_average"),
        (lambda: tj.clip_by_norm(tj.ones(2), 0.0), ValueError, "clip_by_norm: clip_no"),
        (lambda: tj.clip_by_norm(tj.ones(2), -1), ValueError, "greater than 0"),
        (lambda: tj.clip_by_norm(tj.ones(2), 1.0, 3), ValueError, "clip_by_norm: axis"),
        (lambda: tj.clip_by_global_norm([], -1.0), ValueError, "clip_by_global_norm"),
        (lambda: tj.global_norm(tj.ones(2)), TypeError, "global_norm: takes a list"),
        (lambda: tj.clip_by_global_norm(3.0, 1.0), TypeError, "takes a list"),
        (lambda: tj.global_norm(["x"]), TypeError, "global_norm"),
    ],
)
def test_arguments_without_meaning_are_refused(
    call: Any, error: Any, text: str
) -> None:
    with pytest.raises(error, match=text):
        call()


@pytest.mark.parametrize("traced", [False, True])
def test_what_is_clipped_keeps_its_shape(traced: bool) -> None:
    x, rows = tj.ones(3), tj.ones((2, 1))
    calls: list[Any] = [
        lambda x: tj.clip_by_value(x, -rows, 1.0),
        lambda x: tj.clip_by_value(x, -1.0, rows),
        lambda x: tj.clip_by_value(tj.sum(x), tj.zeros(1), 1.0),
        lambda x: tj.clip_by_norm(x, rows),
        lambda x: tj.clip_by_average_norm(x, rows),
        lambda x: tj.clip_by_global_norm([x], rows)[0],
        lambda x: tj.clip_by_global_norm([x], 1.0, use_norm=rows)[0],
    ]
    for call in calls:
        with pytest.raises(tj.ShapeError, match="clipping keeps the shape"):
            (tj.function(call) if traced else call)(x)
    limits = tj.asarray([[1.0], [2.0]])
    found = tj.clip_by_norm(tj.ones((2, 4)) * 2, limits, axes=1)
    np.testing.assert_allclose(found, [[0.5] * 4, [1.0] * 4])
    found = tj.clip_by_value(tj.ones((2, 3)), tj.zeros(3), tj.asarray([0.5, 1.0, 2.0]))
    np.testing.assert_array_equal(found, [[0.5, 1.0, 1.0]] * 2)
