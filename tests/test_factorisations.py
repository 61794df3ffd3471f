"""Factorisations: values against NumPy, gradients of what they leave no choice in.

Several results, one of them, or none on a tape; stacks; equal eigenvalues.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from matrices import Array, Function, adjoint, assert_near, drawn, positive

import tapejit as tj
from tapejit.ir import OPS


@pytest.mark.parametrize("dtype", ["float64", "complex128", "float32"])
@pytest.mark.parametrize("shape", [(3, 3), (5, 3), (3, 5), (2, 4, 2), (2, 2, 4)])
@pytest.mark.parametrize("mode", ["reduced", "complete"])
def test_qr_is_numpys(shape: Any, mode: str, dtype: str) -> None:
    x = drawn(*shape, dtype=dtype)
    found, expected = tj.linalg.qr(x, mode=mode), np.linalg.qr(x, mode=mode)
    assert_near(found.Q, expected.Q)
    assert_near(found.R, expected.R)
    assert found.Q.dtype == found.R.dtype == x.dtype


@pytest.mark.parametrize("dtype", ["float64", "complex128", "float32"])
@pytest.mark.parametrize("shape", [(3, 3), (5, 3), (3, 5), (2, 4, 2), (2, 2, 4)])
@pytest.mark.parametrize("full", [False, True])
def test_svd_is_a_factorisation(shape: Any, full: bool, dtype: str) -> None:
    x = drawn(*shape, dtype=dtype)
    found = tj.linalg.svd(x, full_matrices=full)
    expected = np.linalg.svd(x, full_matrices=full)
    assert [part.shape for part in found] == [part.shape for part in expected]
    assert [part.dtype for part in found] == [part.dtype for part in expected]
    u, s, vh = map(np.asarray, found)
    assert_near(s, expected.S)
    assert_near(
        adjoint(u) @ u,
        np.broadcast_to(
            np.eye(u.shape[-1]), adjoint(u).shape[:-2] + (u.shape[-1],) * 2
        ),
    )
    assert_near(
        vh @ adjoint(vh),
        np.broadcast_to(np.eye(vh.shape[-2]), vh.shape[:-2] + (vh.shape[-2],) * 2),
    )
    count = s.shape[-1]
    assert_near((u[..., :count] * s[..., None, :]) @ vh[..., :count, :], x)


@pytest.mark.parametrize("dtype", ["float64", "complex128", "float32"])
@pytest.mark.parametrize("upper", [False, True])
def test_cholesky_is_numpys(upper: bool, dtype: str) -> None:
    x = positive(2, 3, 3, dtype=dtype).astype(dtype)
    got = tj.linalg.cholesky(x, upper=upper)
    assert_near(got, np.linalg.cholesky(x, upper=upper))
    assert got.dtype == x.dtype


@pytest.mark.parametrize("dtype", ["float64", "complex128", "float32"])
def test_eigh_is_numpys(dtype: str) -> None:
    x = positive(2, 3, 3, dtype=dtype).astype(dtype)
    found, expected = tj.linalg.eigh(x), np.linalg.eigh(x)
    assert_near(found.eigenvalues, expected.eigenvalues)
    v = np.asarray(found.eigenvectors)
    assert_near(x @ v, v * np.asarray(found.eigenvalues)[..., None, :])
    assert found.eigenvalues.dtype == x.real.dtype


# Functions of factors that do not depend on what a factorisation leaves open
INVARIANT: dict[str, tuple[Function, Array]] = {
    "cholesky": (lambda x: tj.linalg.cholesky(x) ** 3, positive(3, 3)),
    "cholesky, upper": (
        lambda x: tj.sin(tj.linalg.cholesky(x, upper=True)),
        positive(2, 2, 2),
    ),
    "cholesky, complex": (
        lambda x: tj.linalg.cholesky(x) ** 2,
        positive(3, 3, dtype=np.complex128),
    ),
    "q": (lambda x: tj.linalg.qr(x).Q ** 2, drawn(4, 3)),
    "r": (lambda x: tj.linalg.qr(x).R ** 2, drawn(2, 3, 3)),
    "wide q": (lambda x: tj.linalg.qr(x).Q ** 3, drawn(2, 4)),
    "wide r": (lambda x: tj.linalg.qr(x).R ** 2, drawn(2, 4)),
    "complex q and r": (
        lambda x: tj.abs(tj.linalg.qr(x).Q) + tj.abs(tj.linalg.qr(x).R[0, 0]),
        drawn(3, 3, dtype=np.complex128),
    ),
    "complete q": (
        lambda x: (lambda q: q[:, 2:] @ q[:, 2:].T)(tj.linalg.qr(x, mode="complete").Q),
        drawn(4, 2),
    ),
    "complete r": (lambda x: tj.linalg.qr(x, mode="complete").R ** 2, drawn(4, 2)),
    "eigenvalues of any matrix": (
        lambda x: tj.abs(tj.linalg.eigvals(x)) ** 2,
        drawn(2, 4, 4),
    ),
    "parts of eigenvalues": (
        lambda x: tj.sort(tj.linalg.eigvals(x).imag) * tj.linalg.eigvals(x)[0].real,
        drawn(3, 3),
    ),
    "complex eigenvalues": (
        lambda x: tj.abs(tj.linalg.eig(x).eigenvalues - 1) ** 2,
        drawn(3, 3, dtype=np.complex128),
    ),
    "eigenvectors of any matrix": (
        lambda x: tj.abs(tj.linalg.eig(x).eigenvectors) ** 2,
        drawn(3, 3),
    ),
    "complex eigenvectors of any matrix": (
        lambda x: tj.abs(tj.linalg.eig(x).eigenvectors) ** 2,
        drawn(3, 3, dtype=np.complex128),
    ),
    "eigenvectors": (lambda x: tj.linalg.eigh(x).eigenvectors ** 2, positive(3, 3)),
    "complex eigenvectors": (
        lambda x: tj.abs(tj.linalg.eigh(x).eigenvectors) ** 2,
        positive(3, 3, dtype=np.complex128),
    ),
    "eigenvalues": (lambda x: tj.linalg.eigh(x).eigenvalues ** 2, positive(2, 3, 3)),
    "u": (lambda x: tj.linalg.svd(x, full_matrices=False).U ** 2, drawn(4, 3)),
    "vh": (lambda x: tj.linalg.svd(x, full_matrices=False).Vh ** 2, drawn(3, 4)),
    "full u": (
        lambda x: (lambda u: u[:, 2:] @ u[:, 2:].T)(tj.linalg.svd(x).U),
        drawn(4, 2),
    ),
    "full vh": (
        lambda x: (lambda v: v[2:].T @ v[2:])(tj.linalg.svd(x).Vh),
        drawn(2, 4),
    ),
    "complex u": (
        lambda x: tj.abs(tj.linalg.svd(x, full_matrices=False).U) ** 2,
        drawn(4, 3, dtype=np.complex128),
    ),
    "complex vh": (
        lambda x: tj.abs(tj.linalg.svd(x, full_matrices=False).Vh) ** 2,
        drawn(4, 3, dtype=np.complex128),
    ),
    "complex u vh": (
        lambda x: (lambda f: f.U @ f.Vh)(tj.linalg.svd(x, full_matrices=False)),
        drawn(3, 4, dtype=np.complex128),
    ),
    "singular values": (lambda x: tj.linalg.svdvals(x) ** 2, drawn(2, 3, 2)),
}


@pytest.mark.parametrize("name", INVARIANT)
def test_factors_follow_differences(name: str) -> None:
    function, x = INVARIANT[name]
    tj.testing.check_grads(function, [x], order=2, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", INVARIANT)
def test_mapping_a_factorisation_is_a_loop(name: str) -> None:
    function, x = INVARIANT[name]
    rows = np.stack([x, x * 2, x + 0.1 * np.eye(*x.shape[-2:])])
    looped = np.stack([np.asarray(function(row)) for row in rows])
    assert_near(tj.vmap(function)(rows), looped)


def test_results_are_named_and_flatten() -> None:
    x = tj.asarray(positive(3, 3))
    mapped = tj.vmap(tj.linalg.svd)(tj.stack([x, x]))
    assert type(mapped).__name__ == "SVDResult"
    assert mapped.S.shape == (2, 3)
    assert tj.linalg.eigh(x)._fields == ("eigenvalues", "eigenvectors")
    assert tj.linalg.qr(x)._fields == ("Q", "R")
    assert tj.linalg.slogdet(x)._fields == ("sign", "logabsdet")


def test_one_result_of_several_is_enough() -> None:
    """Each alone, from one persistent tape: the others are holes."""
    x = tj.Variable(positive(3, 3))
    with tj.GradientTape(persistent=True) as tape:
        u, s, vh = tj.linalg.svd(x)
        whole = tj.sum(s)
    for part in (u, s, vh, whole, [u, vh], [u, s, vh]):
        assert tape.gradient(part, x).shape == (3, 3)
    np.testing.assert_allclose(tape.gradient(whole, x), (u @ vh).numpy(), rtol=1e-12)


def test_a_tape_keeps_the_factors_it_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient looks at them: nothing is factored again."""

    def factored_again(*_: Any) -> Any:
        raise AssertionError("eigh ran for its own gradient")

    x = tj.Variable(positive(3, 3))
    with tj.GradientTape() as tape:
        value = tj.sum(tj.linalg.eigh(x).eigenvectors ** 3)
    monkeypatch.setattr(OPS["eigh"], "eval", factored_again)
    assert tape.gradient(value, x).shape == (3, 3)


def test_a_training_loop_through_a_factorisation() -> None:
    """The second step is recognised; values and gradients stay right."""
    x = tj.Variable(positive(3, 3))
    for _ in range(4):
        with tj.GradientTape() as tape:
            sign, logarithm = tj.linalg.slogdet(x)
            loss = logarithm + 0 * sign
        gradient = tape.gradient(loss, x)
        np.testing.assert_allclose(
            gradient, np.linalg.inv(x.numpy()).T, rtol=1e-9, atol=1e-12
        )
        x.assign_sub(0.1 * gradient)


def test_nested_tapes_differentiate_a_factorisation_twice() -> None:
    x = tj.Variable(np.diag([1.0, 2.0, 4.0]))
    with tj.GradientTape() as outer:
        with tj.GradientTape() as inner:
            value = tj.sum(tj.linalg.eigvalsh(x) ** 3)
        first = inner.gradient(value, x)
        total = tj.trace(first)
    np.testing.assert_allclose(first, 3 * np.diag([1.0, 4.0, 16.0]), atol=1e-12)
    second = outer.gradient(total, x)
    np.testing.assert_allclose(second, 6 * np.diag([1.0, 2.0, 4.0]), atol=1e-12)


# Where derivatives need care


def test_equal_eigenvalues_give_finite_gradients() -> None:
    for x in (np.eye(3), np.diag([1.0, 1.0, 2.0])):
        v = tj.Variable(x)
        with tj.GradientTape(persistent=True) as tape:
            values, vectors = tj.linalg.eigh(v)
            again = (vectors * tj.exp(values)[None]) @ vectors.T
        np.testing.assert_allclose(tape.gradient(values, v), np.eye(3), atol=1e-12)
        assert np.isfinite(tape.gradient(again, v).numpy()).all()


def test_equal_singular_values_give_finite_gradients() -> None:
    v = tj.Variable(np.eye(3)[:, :2])
    with tj.GradientTape(persistent=True) as tape:
        u, s, vh = tj.linalg.svd(v, full_matrices=False)
    np.testing.assert_allclose(tape.gradient(s, v), np.eye(3)[:, :2], atol=1e-12)
    assert np.isfinite(tape.gradient([u, vh], v).numpy()).all()


def test_the_hermitian_part_counts() -> None:
    x = positive(3, 3)
    odd = drawn(3, 3)
    odd = odd - odd.T
    for function in (tj.linalg.cholesky, tj.linalg.eigvalsh):
        assert_near(function(x + odd), function(x))
    gradient = tj.grad(lambda x: tj.sum(tj.linalg.cholesky(x)))(x).numpy()
    np.testing.assert_allclose(gradient, gradient.T, rtol=1e-12)


def test_numpys_eigh_reads_one_triangle() -> None:
    x = drawn(3, 3, dtype=np.complex128)
    for side in ("L", "U"):
        got = np.linalg.eigvalsh(tj.asarray(x), UPLO=side)
        assert isinstance(got, tj.Tensor)
        assert_near(got, np.linalg.eigvalsh(x, UPLO=side))
    with pytest.raises(tj.ArgumentError, match="UPLO"):
        np.linalg.eigh(tj.asarray(x), UPLO="X")


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex128"])
def test_eigenvalues_of_any_matrix_are_complex(dtype: str) -> None:
    x = tj.asarray(np.array([[1.0, -2.0], [3.0, 1.0]]), dtype=dtype)
    wide = "complex64" if dtype in ("float16", "float32") else "complex128"
    for run in (tj.linalg.eig, tj.function(lambda x: tuple(tj.linalg.eig(x)))):
        values, vectors = run(x)
        assert values.dtype == vectors.dtype == wide
        product = x.astype(wide) @ vectors
        np.testing.assert_allclose(product, vectors * values, rtol=1e-3)
        assert sorted(np.sign(values.numpy().imag)) == [-1.0, 1.0]
    found = np.linalg.eigvals(x)
    assert isinstance(found, tj.Tensor)
    np.testing.assert_array_equal(found, tj.linalg.eigvals(x))


def test_equal_eigenvalues_have_the_gradient_of_their_sum() -> None:
    grads = tj.grad(lambda x: tj.sum(tj.linalg.eigvals(x)).real)
    for run in (grads, tj.function(lambda x: grads(x))):
        np.testing.assert_allclose(run(tj.eye(3)), np.eye(3), atol=1e-6)


def test_eigenvalues_refuse_what_is_not_square_or_finite() -> None:
    with pytest.raises(tj.ShapeError, match="square"):
        tj.linalg.eig(tj.ones((2, 3)))
    with pytest.raises(np.linalg.LinAlgError):
        tj.linalg.eigvals(tj.full((2, 2), np.nan))
