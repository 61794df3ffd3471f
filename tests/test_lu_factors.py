"""A matrix is factorised once for its solutions, its determinant and their gradients.

The records have their rows in the op table. Here matrices are large enough for the
functions of `tj.linalg` to share factors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from agreement import COMPOSED, FACTORED, assert_agrees

import tapejit as tj
from tapejit.ops import lu_factors
from tapejit.rewrite.pipeline import optimise

Array = np.ndarray[Any, Any]
Function = Callable[..., Any]

SIZE = lu_factors.ROWS_TO_SHARE


def matrices(*shape: int, dtype: str = "float64") -> Array:
    """Regular ones, of condition 10 or so, whose rows LAPACK exchanges."""
    rng = np.random.default_rng(len(shape))
    size = shape[-1]
    x = rng.standard_normal(shape) / np.sqrt(size)
    if dtype.startswith("complex"):
        x = x + 1j * rng.standard_normal(shape) / np.sqrt(size)
    return (x + 3 * np.roll(np.eye(size), 1, axis=0)).astype(dtype)


def drawn(*shape: int, dtype: str = "float64") -> Array:
    return np.random.default_rng(7).standard_normal(shape).astype(dtype)


def density(a: Any, d: Any) -> Any:
    """The logarithm of a Gaussian's density, but for constants."""
    return d @ tj.linalg.solve(a, d) + tj.linalg.slogdet(a).logabsdet


def inverse_and_determinant(a: Any, d: Any) -> Any:
    return tj.sum(tj.linalg.inv(a) * d) + tj.linalg.det(a / 2) + density(a, d)


def power(a: Any, d: Any) -> Any:
    return tj.sum(tj.linalg.matrix_power(a, -2) @ d) + density(a, d)


PROGRAMS: dict[str, tuple[Function, int]] = {
    "density": (density, 1),
    "inverse and determinant": (inverse_and_determinant, 2),  # a and a / 2
    "power": (power, 1),
}


# How often


@pytest.fixture
def factorised(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of rows of what LAPACK has factorised."""
    seen: list[int] = []
    found = lu_factors.lapack_function

    def watched(name: str, dtype: Any) -> Any:
        function = found(name, dtype)

        def factorise(a: Array, **options: Any) -> Any:
            seen.append(len(a))
            return function(a, **options)

        return factorise if name == "getrf" else function

    def refuse(*args: Any) -> Any:
        raise AssertionError("factorised elsewhere")

    monkeypatch.setattr(lu_factors, "lapack_function", watched)
    for name in ("solve", "inv", "slogdet", "det"):
        monkeypatch.setattr(np.linalg, name, refuse)
    return seen


def test_a_function_factorises_each_matrix_once(factorised: list[int]) -> None:
    d = tj.asarray(drawn(SIZE))
    a = tj.asarray(matrices(SIZE, SIZE))
    both = tj.function(tj.value_and_grad(density, argnums=(0, 1)))
    both(a, d)
    factorised.clear()
    both(a, d)
    assert factorised == [SIZE]


def test_the_gradient_of_a_tape_factorises_nothing(factorised: list[int]) -> None:
    a, d = tj.asarray(matrices(SIZE, SIZE)), tj.asarray(drawn(SIZE))
    with tj.GradientTape() as tape:
        tape.watch([a, d])
        value = density(a, d)
    assert factorised == [SIZE] * 2  # solve, slogdet
    tape.gradient(value, [a, d])
    tj.linalg.inv(a)
    assert factorised == [SIZE] * 3


@pytest.mark.parametrize("name", PROGRAMS)
def test_users_of_a_matrix_share_its_factors(name: str) -> None:
    program, count = PROGRAMS[name]
    a, d = tj.asarray(matrices(SIZE, SIZE)), tj.asarray(drawn(SIZE))
    both = tj.function(tj.value_and_grad(program, argnums=(0, 1)))
    both(a, d)
    names = [node.op.name for node in optimise(both.graph(a, d)).nodes]
    assert names.count("lu") == count
    assert not {"solve", "slogdet", "det"} & set(names)


def test_small_matrices_have_no_factors_to_share() -> None:
    a, d = tj.asarray(matrices(5, 5)), tj.asarray(drawn(5))
    names = [node.op.name for node in tj.function(density).graph(a, d).nodes]
    assert "lu" not in names


# Values and derivatives


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_modes_agree(name: str, native: bool) -> None:
    program, _ = PROGRAMS[name]
    both = tj.value_and_grad(program, argnums=(0, 1))
    given = tj.asarray(matrices(SIZE, SIZE)), tj.asarray(drawn(SIZE))
    value, slopes = both(*given)
    with tj.config.override(native=native, cache=False, compile="now"):
        found, others = tj.function(both)(*given)
    assert_agrees(COMPOSED, found, np.asarray(value))
    for got, expected in zip(others, slopes, strict=True):
        assert_agrees(COMPOSED, got, np.asarray(expected))


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_values_are_numpys(dtype: str) -> None:
    a, b = matrices(3, SIZE, SIZE, dtype=dtype), drawn(2, 1, SIZE, 2, dtype=dtype)
    wide = a.astype("complex128" if dtype.startswith("complex") else "float64")
    sign, logarithm = np.linalg.slogdet(wide)
    found = tj.linalg.slogdet(a)
    assert_agrees(FACTORED, found.sign, sign)
    assert_agrees(FACTORED, found.logabsdet, logarithm)
    assert_agrees(FACTORED, tj.linalg.inv(a), np.linalg.inv(wide))
    assert_agrees(FACTORED, tj.linalg.solve(a, b), np.linalg.solve(wide, b))
    assert_agrees(FACTORED, tj.linalg.solve(a[0], b), np.linalg.solve(wide[0], b))
    assert tj.linalg.solve(a, b).dtype == found.sign.dtype == dtype


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves_are_rounded_once(dtype: str) -> None:
    a, b = (tj.astype(x, dtype) for x in (matrices(SIZE, SIZE), drawn(SIZE)))
    wide = np.linalg.solve(np.asarray(a, np.float64), np.asarray(b, np.float64))
    found = tj.linalg.solve(a, b)
    assert found.dtype == a.dtype
    np.testing.assert_array_equal(found, tj.astype(wide.astype("float32"), dtype))
    assert tj.linalg.slogdet(a).logabsdet.dtype == a.dtype


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("stack", [(), (2,)])
def test_derivatives(dtype: str, stack: tuple[int, ...]) -> None:
    a, b = matrices(*stack, SIZE, SIZE, dtype=dtype), drawn(SIZE, 2, dtype=dtype)
    tj.testing.check_grads(tj.linalg.solve, (a, b), order=2)
    tj.testing.check_grads(tj.linalg.inv, (a,), order=2)
    tj.testing.check_grads(lambda a: tj.linalg.slogdet(a).logabsdet, (a,), order=2)
    tj.testing.check_grads(lambda a: tj.linalg.det(a / 3), (a,), order=1)


def test_a_mapped_solution() -> None:
    a, b = matrices(3, SIZE, SIZE), drawn(3, SIZE)
    each = [tj.grad(density)(x, y) for x, y in zip(a, b, strict=True)]
    assert_agrees(COMPOSED, tj.vmap(tj.grad(density))(a, b), np.stack(each))
    shared = [tj.linalg.solve(a[0], y) for y in b]
    mapped = tj.vmap(tj.linalg.solve, in_axes=(None, 0))(a[0], b)
    assert_agrees(FACTORED, mapped, np.stack(shared))
    jacobian = tj.jacobian(lambda y: tj.linalg.solve(a[0], y))(tj.asarray(b[0]))
    assert_agrees(FACTORED, jacobian, np.linalg.inv(a[0]))


def test_a_size_that_is_open() -> None:
    spec = tj.TensorSpec([None, None], tj.float64)
    slopes = tj.grad(lambda a: density(a, a[0]))
    opened = tj.function(slopes, input_signature=[spec])
    for size in (3, SIZE, SIZE + 3):
        a = tj.asarray(matrices(size, size))
        assert_agrees(COMPOSED, opened(a), np.asarray(slopes(a)))
    assert opened.trace_count == 2  # few rows, and many


# What has no inverse


@pytest.mark.parametrize("wrap", [lambda f: f, tj.function], ids=["eager", "function"])
def test_singular_matrices(wrap: Function) -> None:
    a = matrices(SIZE, SIZE)
    a[3] = 0
    for call in (tj.linalg.inv, lambda a: tj.linalg.solve(a, tj.ones(SIZE, a.dtype))):
        with pytest.raises(tj.LinAlgError, match="singular"):
            wrap(call)(tj.asarray(a))
    with pytest.raises(tj.LinAlgError, match="singular"):
        wrap(tj.grad(lambda a: tj.linalg.slogdet(a).logabsdet))(tj.asarray(a))
    found = wrap(tj.linalg.slogdet)(tj.asarray(np.stack([a, matrices(SIZE, SIZE)])))
    expected = np.linalg.slogdet(matrices(SIZE, SIZE))
    np.testing.assert_array_equal(found.sign, [0, expected.sign])
    assert_agrees(FACTORED, found.logabsdet[1], expected.logabsdet)
    assert found.logabsdet[0] == -np.inf
    assert wrap(tj.linalg.det)(tj.asarray(a)) == 0
    slope = wrap(tj.grad(tj.linalg.det))(tj.asarray(a))
    assert np.all(np.isfinite(slope))
    assert np.any(slope)


def test_elements_that_are_no_numbers() -> None:
    a = matrices(SIZE, SIZE)
    a[2, 5] = np.nan
    assert np.all(np.isnan(tj.linalg.slogdet(a).logabsdet))
    np.testing.assert_array_equal(
        np.isnan(tj.linalg.inv(a)), np.isnan(np.linalg.inv(a))
    )


def test_shapes_that_do_not_fit_are_refused_each_time() -> None:
    a = matrices(SIZE, SIZE)
    for _ in range(2):  # the second call knows the dtype
        for function in (tj.linalg.inv, tj.linalg.det, tj.linalg.slogdet):
            with pytest.raises(tj.ShapeError, match="square") as caught:
                function(np.ones((SIZE + 1, SIZE)))
            assert caught.value.op == function.__name__
        for b in (np.ones(3), np.ones((3, 2))):
            with pytest.raises(tj.ShapeError, match="right-hand side"):
                tj.linalg.solve(a, b)
        with pytest.raises(tj.ShapeError):
            tj.linalg.solve(np.stack([a, a]), np.ones((3, SIZE, 1)))
