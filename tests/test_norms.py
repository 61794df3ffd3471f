"""Norms against NumPy: every order, over any axes, and what happens at zero."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tapejit as tj

INF = np.inf
VECTOR_ORDERS = [
    2,
    1,
    0,
    INF,
    -INF,
    -1,
    -2,
    3,
    0.5,
    1.5,
    2.0,
    np.float64(3),
    np.int64(1),
]
MATRIX_ORDERS = ["fro", "nuc", 1, -1, 2, -2, INF, -INF]


def drawn(*shape: int, dtype: Any = np.float64) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng([5, *shape])
    x = rng.uniform(0.3, 2, shape) * rng.choice([-1, 1], shape)
    if np.dtype(dtype).kind == "c":
        x = x + 1j * rng.uniform(0.3, 2, shape)
    return np.asarray(x, dtype)


@pytest.mark.parametrize("dtype", ["float64", "complex128", "float32"])
@pytest.mark.parametrize("axis", [None, 0, -1, (0, 2), (2, 1)])
@pytest.mark.parametrize("ord", VECTOR_ORDERS)
def test_vector_norms_are_numpys(ord: Any, axis: Any, dtype: str) -> None:
    x = drawn(2, 3, 4, dtype=dtype)
    for keepdims in (False, True):
        got = tj.linalg.vector_norm(x, axis=axis, ord=ord, keepdims=keepdims)
        expected = np.linalg.vector_norm(x, axis=axis, ord=ord, keepdims=keepdims)
        np.testing.assert_allclose(got, expected, rtol=64 * np.finfo(dtype).eps)
        assert got.dtype == x.real.dtype
        assert got.shape == np.shape(expected)


@pytest.mark.parametrize("dtype", ["float64", "complex128", "float32"])
@pytest.mark.parametrize("ord", MATRIX_ORDERS)
def test_matrix_norms_are_numpys(ord: Any, dtype: str) -> None:
    x = drawn(2, 3, 4, dtype=dtype)
    for keepdims in (False, True):
        got = tj.linalg.matrix_norm(x, ord=ord, keepdims=keepdims)
        expected = np.linalg.matrix_norm(x, ord=ord, keepdims=keepdims)
        np.testing.assert_allclose(got, expected, rtol=64 * np.finfo(dtype).eps)
        assert got.dtype == x.real.dtype
        assert got.shape == expected.shape


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("ord", VECTOR_ORDERS[:10])
def test_vector_norms_follow_differences(ord: Any, dtype: str) -> None:
    x = drawn(3, 4, dtype=dtype)
    tj.testing.check_grads(lambda x: tj.linalg.vector_norm(x, axis=1, ord=ord), [x])


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("ord", MATRIX_ORDERS)
def test_matrix_norms_follow_differences(ord: Any, dtype: str) -> None:
    x = drawn(2, 3, 4, dtype=dtype)
    tj.testing.check_grads(lambda x: tj.linalg.matrix_norm(x, ord=ord), [x], rtol=1e-4)


@pytest.mark.parametrize("ord", [2, 1, 0, INF, 3, 0.5, 1.5])
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_at_zero_a_vector_norm_has_gradient_zero(ord: Any, dtype: str) -> None:
    zero = np.zeros(3, dtype)
    found = tj.grad(lambda x: tj.linalg.vector_norm(x, ord=ord))(zero)
    np.testing.assert_array_equal(found, zero)


@pytest.mark.parametrize("ord", MATRIX_ORDERS)
def test_at_zero_a_matrix_norm_has_gradient_zero(ord: Any) -> None:
    zero = np.zeros((2, 3))
    found = tj.grad(lambda x: tj.linalg.matrix_norm(x, ord=ord))(zero)
    np.testing.assert_array_equal(found, zero)


@pytest.mark.parametrize("ord", [2, 1, 3, 0.5, 1.5])
def test_a_zero_among_others_has_gradient_zero(ord: Any) -> None:
    x = np.array([0.0, 3.0, -4.0])
    found = tj.grad(lambda x: tj.linalg.vector_norm(x, ord=ord))(x).numpy()
    assert found[0] == 0
    alone = tj.grad(lambda x: tj.linalg.vector_norm(x, ord=ord))(x[1:]).numpy()
    np.testing.assert_allclose(found[1:], alone, rtol=1e-14)


def test_a_count_is_connected_and_flat() -> None:
    x = tj.Variable([1.0, 0.0, 2.0])
    with tj.GradientTape() as tape:
        count = tj.linalg.vector_norm(x, ord=0)
    assert float(count) == 2.0
    assert tape.gradient(count, x).tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("ord", [2, 1, INF, -INF, 0, 3, -1, 0.5])
@pytest.mark.parametrize(
    "values",
    [[INF, 1.0], [np.nan, 1.0], [0.0, 1.0], [-INF, INF], [-0.0, 0.0], [5e-324]],
)
def test_special_values_are_numpys(values: list[float], ord: Any) -> None:
    with np.errstate(all="ignore"):
        expected = np.linalg.vector_norm(np.array(values), ord=ord)
    got = tj.linalg.vector_norm(np.array(values), ord=ord)
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"ord": 2},
        {"ord": "fro"},
        {"ord": "nuc"},
        {"ord": 1},
        {"ord": -INF},
        {"axis": 0},
        {"axis": 1, "ord": 1},
        {"axis": (0,), "ord": 3},
        {"axis": (1, 0), "ord": 1},
        {"axis": (0, 1), "ord": 1, "keepdims": True},
        {"axis": (-1, -2), "ord": INF},
        {"keepdims": True},
        {"ord": None, "axis": (0, 1)},
    ],
    ids=str,
)
def test_norm_is_numpys(options: dict[str, Any]) -> None:
    x = drawn(3, 4)
    expected = np.linalg.norm(x, **options)
    for got in (
        tj.linalg.norm(x, **options),
        np.linalg.norm(tj.asarray(x), **options),
    ):
        assert isinstance(got, tj.Tensor)
        assert got.shape == np.shape(expected)
        np.testing.assert_allclose(got, expected, rtol=1e-14)


def test_norm_over_two_of_three_axes() -> None:
    x = drawn(2, 3, 4)
    for axis in [(0, 2), (2, 0), (1, -3)]:
        for ord in MATRIX_ORDERS:
            for keepdims in (False, True):
                options = {"ord": ord, "axis": axis, "keepdims": keepdims}
                got, expected = (
                    tj.linalg.norm(x, **options),
                    np.linalg.norm(x, **options),
                )
                assert got.shape == expected.shape
                np.testing.assert_allclose(got, expected, rtol=1e-13)


def test_of_nothing_the_length_is_zero() -> None:
    assert float(tj.linalg.vector_norm(np.zeros(0))) == 0.0
    assert tj.linalg.matrix_norm(np.zeros((0, 2, 3))).shape == (0,)
    assert float(tj.linalg.vector_norm(-3.0)) == 3.0


def test_mapping_is_a_loop() -> None:
    x = drawn(3, 2, 4)
    for ord in MATRIX_ORDERS:
        found = tj.vmap(lambda x, ord=ord: tj.linalg.matrix_norm(x, ord=ord))(x)
        np.testing.assert_allclose(found, tj.linalg.matrix_norm(x, ord=ord), rtol=1e-14)
    for ord in VECTOR_ORDERS:
        found = tj.vmap(lambda x, ord=ord: tj.linalg.vector_norm(x, ord=ord))(x)
        together = tj.linalg.vector_norm(x, axis=(1, 2), ord=ord)
        np.testing.assert_allclose(found, together, rtol=1e-14)


def test_halves_do_not_overflow_on_the_way() -> None:
    x = tj.asarray(np.full(4, 300.0, np.float16))
    assert float(tj.linalg.vector_norm(x)) == 600.0
    assert tj.linalg.vector_norm(x).dtype == np.float16


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda x: tj.linalg.vector_norm(x, ord="fro"), tj.ArgumentTypeError),
        (lambda x: tj.linalg.vector_norm(x, axis=7), tj.AxisError),
        (lambda x: tj.linalg.matrix_norm(x, ord=3), tj.ArgumentError),
        (lambda x: tj.linalg.matrix_norm(x, ord="max"), tj.ArgumentError),
        (lambda x: tj.linalg.norm(x, ord=2), tj.ArgumentError),
        (lambda x: tj.linalg.norm(x, ord=5, axis=(0, 1)), tj.ArgumentError),
        (lambda x: tj.linalg.norm(x, axis=(0, 0)), tj.AxisError),
    ],
)
def test_what_is_no_norm_is_refused(call: Any, error: Any) -> None:
    with pytest.raises(error):
        call(tj.ones((2, 3, 4)))
