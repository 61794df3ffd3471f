"""`tj.linalg` against NumPy and SciPy: values, gradients, stacks, what is refused.

The records have their rows in the op table; here are the functions composed of them and
what only an eager call can show.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.linalg
from matrices import Array, Function, adjoint, assert_near, drawn, positive

import tapejit as tj

# Values: a function of the namespace, one of arrays, and its operands

Case = tuple[Function, Function, list[Any]]

A, B = (3, 3), (2, 3, 3)
CASES: dict[str, Case] = {
    "solve a vector": (tj.linalg.solve, np.linalg.solve, [A, (3,)]),
    "solve columns": (tj.linalg.solve, np.linalg.solve, [B, (3, 2)]),
    "solve a vector for a stack": (tj.linalg.solve, np.linalg.solve, [B, (3,)]),
    "inv": (tj.linalg.inv, np.linalg.inv, [B]),
    "pinv, tall": (tj.linalg.pinv, np.linalg.pinv, [(4, 2)]),
    "pinv, wide": (tj.linalg.pinv, np.linalg.pinv, [(2, 2, 4)]),
    "det": (tj.linalg.det, np.linalg.det, [B]),
    "slogdet": (
        lambda x: tj.linalg.slogdet(x).logabsdet,
        lambda x: np.linalg.slogdet(x).logabsdet,
        [B],
    ),
    "slogdet's sign": (
        lambda x: tj.linalg.slogdet(x).sign,
        lambda x: np.linalg.slogdet(x).sign,
        [B],
    ),
    "expm": (tj.linalg.expm, scipy.linalg.expm, [B]),
    "matrix_power 0": (
        lambda x: tj.linalg.matrix_power(x, 0),
        lambda x: np.linalg.matrix_power(x, 0),
        [B],
    ),
    "matrix_power 1": (
        lambda x: tj.linalg.matrix_power(x, 1),
        lambda x: np.linalg.matrix_power(x, 1),
        [A],
    ),
    "matrix_power 7": (
        lambda x: tj.linalg.matrix_power(x, 7),
        lambda x: np.linalg.matrix_power(x, 7),
        [B],
    ),
    "matrix_power -3": (
        lambda x: tj.linalg.matrix_power(x, -3),
        lambda x: np.linalg.matrix_power(x, -3),
        [A],
    ),
    "multi_dot": (
        lambda *xs: tj.linalg.multi_dot(xs),
        lambda *xs: np.linalg.multi_dot(xs),
        [(4, 2), (2, 5), (5, 3), (3, 2)],
    ),
    "multi_dot of two": (
        lambda *xs: tj.linalg.multi_dot(xs),
        lambda *xs: np.linalg.multi_dot(xs),
        [(4, 2), (2, 5)],
    ),
    "multi_dot with vectors": (
        lambda *xs: tj.linalg.multi_dot(xs),
        lambda *xs: np.linalg.multi_dot(xs),
        [(2,), (2, 5), (5,)],
    ),
    "multi_dot with a row": (
        lambda *xs: tj.linalg.multi_dot(xs),
        lambda *xs: np.linalg.multi_dot(xs),
        [(2,), (2, 5), (5, 3)],
    ),
    "lstsq": (
        lambda a, b: tj.linalg.lstsq(a, b).x,
        lambda a, b: np.linalg.lstsq(a, b)[0],
        [(5, 2), (5,)],
    ),
    "lstsq, wide": (
        lambda a, b: tj.linalg.lstsq(a, b).x,
        lambda a, b: np.linalg.lstsq(a, b)[0],
        [(2, 4), (2, 3)],
    ),
    "svdvals": (tj.linalg.svdvals, np.linalg.svdvals, [(2, 4, 3)]),
    "eigvalsh": (
        lambda x: tj.linalg.eigvalsh(x),
        lambda x: np.linalg.eigvalsh((x + adjoint(np.asarray(x))) / 2),
        [B],
    ),
    "outer": (tj.linalg.outer, np.linalg.outer, [(2,), (3,)]),
    "diagonal": (
        lambda x: tj.linalg.diagonal(x, offset=-1),
        lambda x: np.linalg.diagonal(x, offset=-1),
        [(2, 3, 4)],
    ),
    "trace": (
        lambda x: tj.linalg.trace(x, offset=1),
        lambda x: np.linalg.trace(x, offset=1),
        [(2, 3, 4)],
    ),
    "cond": (tj.linalg.cond, np.linalg.cond, [B]),
    "cond -2": (
        lambda x: tj.linalg.cond(x, -2),
        lambda x: np.linalg.cond(x, -2),
        [(4, 3)],
    ),
    "cond inf": (
        lambda x: tj.linalg.cond(x, np.inf),
        lambda x: np.linalg.cond(x, np.inf),
        [B],
    ),
}
for lower in (True, False):
    for trans in ("N", "T", "C"):
        CASES[f"solve_triangular {lower} {trans}"] = (
            lambda a, b, lower=lower, trans=trans: tj.linalg.solve_triangular(
                a + 3 * np.eye(3), b, lower=lower, trans=trans
            ),
            lambda a, b, lower=lower, trans=trans: scipy.linalg.solve_triangular(
                a + 3 * np.eye(3), b, lower=lower, trans=trans
            ),
            [A, (3, 2)],
        )


def sampled(shapes: list[Any], dtype: Any) -> list[Array]:
    return [drawn(*shape, seed=at, dtype=dtype) for at, shape in enumerate(shapes)]


@pytest.mark.parametrize("dtype", ["float64", "complex128", "float32", "complex64"])
@pytest.mark.parametrize("name", CASES)
def test_values_are_numpys(name: str, dtype: str) -> None:
    ours, theirs, shapes = CASES[name]
    xs = sampled(shapes, dtype)
    wide = [x.astype("complex128" if x.dtype.kind == "c" else "float64") for x in xs]
    got = np.asarray(ours(*map(tj.asarray, xs)))
    expected = np.asarray(theirs(*wide))
    if "solve_triangular" not in name:  # there the operand is changed in double
        assert got.real.dtype == xs[0].real.dtype
        assert got.dtype.kind == expected.dtype.kind
    assert_near(got, expected)


# What is piecewise constant, or a constant, has nothing to compare with differences.
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("name", CASES)
def test_gradients_follow_differences(name: str, dtype: str) -> None:
    ours, _, shapes = CASES[name]
    tj.testing.check_grads(ours, sampled(shapes, dtype), order=2, rtol=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_mapping_is_a_loop(name: str) -> None:
    ours, _, shapes = CASES[name]
    if name == "lstsq":
        return  # refused: see below
    rows = [drawn(3, *shape, seed=at) for at, shape in enumerate(shapes)]
    found = np.asarray(tj.vmap(ours)(*rows))
    looped = np.stack([ours(*[x[at] for x in rows]).numpy() for at in range(3)])
    assert_near(found, looped)


# Where derivatives need care


def test_the_pseudo_inverse_of_equal_singular_values_has_its_gradient() -> None:
    tj.testing.check_grads(tj.linalg.pinv, [np.eye(3)], order=2)
    tj.testing.check_grads(tj.linalg.pinv, [np.eye(4)[:, :2]], order=2)


def test_the_determinant_of_a_singular_matrix_has_its_gradient() -> None:
    x = np.array([[1.0, 2.0, 3.0], [2.0, 4.0, 6.0], [1.0, 0.0, 1.0]])
    got = tj.grad(tj.linalg.det)(x)
    tj.testing.check_grads(tj.linalg.det, [x], order=1)
    assert np.abs(got.numpy()).max() > 1
    zero = tj.grad(tj.linalg.det)(np.zeros((3, 3)))
    np.testing.assert_array_equal(zero, np.zeros((3, 3)))


def test_of_a_matrix_that_is_not_finite_the_determinant_is_not() -> None:
    x = np.array([[1.0, np.nan], [2.0, 3.0]])
    assert np.isnan(float(tj.linalg.det(x)))
    assert np.isnan(tj.grad(tj.linalg.det)(x).numpy()).all()
    assert np.isnan(np.asarray(tj.linalg.expm(np.stack([x, np.eye(2)])))[0]).all()
    assert np.isfinite(np.asarray(tj.linalg.expm(np.stack([x, np.eye(2)])))[1]).all()


def test_a_real_sign_has_gradient_zero() -> None:
    x = tj.Variable(positive(3, 3))
    with tj.GradientTape() as tape:
        sign = tj.linalg.slogdet(x).sign
    np.testing.assert_array_equal(tape.gradient(sign, x), np.zeros((3, 3)))


# Least squares and ranks


def test_lstsq_has_numpys_fields() -> None:
    a, b = drawn(5, 3), drawn(5, 2)
    found, expected = tj.linalg.lstsq(a, b), np.linalg.lstsq(a, b)
    for got, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(np.asarray(got), wanted, rtol=1e-12)
    one = tj.linalg.lstsq(a, b[:, 0])
    np.testing.assert_allclose(one.residuals, expected[1][:1], rtol=1e-12)
    deficient = tj.linalg.lstsq(np.ones((4, 2)), b[:4])
    assert int(deficient.rank) == 1
    assert deficient.residuals.shape == (0,)
    assert tj.linalg.lstsq(a.T, drawn(3)).residuals.shape == (0,)
    tj.testing.check_grads(lambda a, b: tj.linalg.lstsq(a, b).residuals, [a, b])


def test_lstsq_in_a_trace_says_what_to_write() -> None:
    with pytest.raises(tj.ArgumentTypeError, match="residuals"):
        tj.vmap(tj.linalg.lstsq)(drawn(2, 5, 3), drawn(2, 5))


@pytest.mark.parametrize("rank", range(4))
def test_matrix_rank_is_numpys(rank: int) -> None:
    x = drawn(2, 4, rank) @ drawn(2, rank, 3, seed=1)
    assert tj.linalg.matrix_rank(x).tolist() == [rank, rank]
    assert tj.linalg.matrix_rank(x, rtol=2.0).tolist() == [0, 0]
    assert tj.linalg.matrix_rank(np.zeros((0, 3))).tolist() == 0


def test_small_singular_values_count_as_zero() -> None:
    x = np.diag([1.0, 1e-3])
    np.testing.assert_allclose(tj.linalg.pinv(x), np.diag([1, 1e3]))
    np.testing.assert_allclose(tj.linalg.pinv(x, rtol=1e-2), np.diag([1.0, 0.0]))


# dtypes


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_halves_are_computed_in_single(name: str) -> None:
    dtype = tj.bfloat16 if name == "bfloat16" else tj.float16
    x = tj.asarray(positive(3, 3), dtype="float32").astype(dtype)
    single = x.astype("float32")
    for function in (
        tj.linalg.inv,
        tj.linalg.cholesky,
        tj.linalg.det,
        tj.linalg.pinv,
        tj.linalg.expm,
        lambda x: tj.linalg.eigh(x)[0],
        lambda x: tj.linalg.svd(x)[1],
        lambda x: tj.linalg.qr(x)[1],
        lambda x: tj.linalg.slogdet(x)[1],
        lambda x: tj.linalg.solve(x, x[0]),
        tj.linalg.matrix_norm,
        tj.linalg.vector_norm,
    ):
        got = function(x)
        assert got.dtype == dtype
        expected = function(single).astype(dtype)
        np.testing.assert_array_equal(
            got.astype("float32").numpy(), expected.astype("float32").numpy()
        )


def test_integers_become_the_default_float() -> None:
    x = np.array([[2, 0], [0, 4]])
    assert tj.linalg.inv(x).dtype == np.float32
    assert tj.linalg.solve(x, np.array([2, 4])).tolist() == [1.0, 1.0]
    assert tj.linalg.matrix_power(x, 2).dtype == x.dtype
    assert tj.linalg.vector_norm(np.array([3, 4])).dtype == np.float32


# Refusals


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: tj.linalg.inv(tj.ones((2, 2))), tj.LinAlgError, "singular"),
        (
            lambda: tj.linalg.solve(tj.zeros((3, 2, 2)), tj.ones(2)),
            tj.LinAlgError,
            "singular",
        ),
        (
            lambda: tj.linalg.solve_triangular(tj.zeros((2, 2)), tj.ones(2)),
            tj.LinAlgError,
            "singular",
        ),
        (
            lambda: tj.linalg.solve_triangular(tj.zeros((5, 2, 2)), tj.ones(2)),
            tj.LinAlgError,
            "singular",
        ),
        (
            lambda: tj.linalg.cholesky(-tj.eye(2)),
            tj.LinAlgError,
            "not positive definite",
        ),
        (
            lambda: tj.linalg.svd(tj.nan * tj.ones((2, 2))),
            tj.LinAlgError,
            "did not converge",
        ),
        (lambda: tj.linalg.inv(tj.ones((2, 3))), tj.ShapeError, "square"),
        (lambda: tj.linalg.det(tj.ones((2, 3))), tj.ShapeError, "square"),
        (lambda: tj.linalg.cholesky(tj.ones((2, 3))), tj.ShapeError, "square"),
        (lambda: tj.linalg.eigh(tj.ones((2, 3))), tj.ShapeError, "square"),
        (lambda: tj.linalg.eigvalsh(tj.ones((2, 3))), tj.ShapeError, "square"),
        (lambda: tj.linalg.slogdet(tj.ones((2, 3))), tj.ShapeError, "square"),
        (lambda: tj.linalg.expm(tj.ones((2, 3))), tj.ShapeError, "square"),
        (lambda: tj.linalg.matrix_power(tj.ones((2, 3)), 2), tj.ShapeError, "square"),
        (lambda: tj.linalg.svd(tj.ones(3)), tj.ShapeError, "matrix"),
        (lambda: tj.linalg.qr(tj.ones(3)), tj.ShapeError, "matrix"),
        (lambda: tj.linalg.pinv(tj.ones(3)), tj.ShapeError, "matrix"),
        (lambda: tj.linalg.matrix_norm(tj.ones(3)), tj.ShapeError, "matrix"),
        (lambda: tj.linalg.outer(tj.ones((2, 2)), tj.ones(2)), tj.ShapeError, "vector"),
        (lambda: tj.linalg.solve(tj.eye(2), tj.ones(3)), tj.ShapeError, "rows"),
        (lambda: tj.linalg.solve(tj.eye(2), 1.0), tj.ShapeError, "right-hand side"),
        (
            lambda: tj.linalg.lstsq(tj.ones((2, 3, 3)), tj.ones(3)),
            tj.ShapeError,
            "takes a matrix",
        ),
        (lambda: tj.linalg.qr(tj.eye(2), mode="r"), tj.ArgumentError, "mode"),
        (lambda: tj.linalg.multi_dot([tj.eye(2)]), tj.ArgumentError, "two"),
        (lambda: tj.linalg.multi_dot([tj.ones((2, 2, 2))] * 2), tj.ShapeError, "end"),
        (
            lambda: tj.linalg.solve_triangular(tj.eye(2), tj.ones(2), trans=5),
            tj.ArgumentError,
            "trans",
        ),
        (
            lambda: tj.linalg.lstsq(tj.eye(2), tj.ones(2), rcond=np.ones(2)),
            tj.ArgumentTypeError,
            "one number",
        ),
        (
            lambda: np.linalg.qr(tj.eye(2), mode="raw"),
            tj.UnsupportedError,
            "mode='raw'",
        ),
        (
            lambda: np.linalg.matrix_rank(tj.eye(2), tol=0.1),
            tj.UnsupportedError,
            "tol=",
        ),
        (
            lambda: np.linalg.tensorinv(tj.eye(2)),
            tj.UnsupportedError,
            "not a function",
        ),
    ],
)
def test_what_is_not_there_is_explained(call: Function, error: Any, text: str) -> None:
    for _ in range(2):  # the second call knows the dtype: NumPy refuses the shape
        with pytest.raises(error) as caught:
            call()
        assert text in caught.value.message


def test_errors_name_the_function_and_numpys_class() -> None:
    with pytest.raises(np.linalg.LinAlgError) as caught:
        tj.linalg.inv(tj.ones((2, 2)))
    assert isinstance(caught.value, tj.LinAlgError)
    assert caught.value.op == "inv"
    assert "pinv" in caught.value.help


# NumPy's functions

NUMPY: dict[str, Function] = {
    "inv": np.linalg.inv,
    "pinv": np.linalg.pinv,
    "pinv rcond": lambda x: np.linalg.pinv(x, 1e-3),
    "det": np.linalg.det,
    "slogdet": lambda x: np.linalg.slogdet(x)[1],
    "cholesky": np.linalg.cholesky,
    "cholesky upper": lambda x: np.linalg.cholesky(x, upper=True),
    "qr": lambda x: np.linalg.qr(x)[0],
    "qr r": lambda x: np.linalg.qr(x, "r"),
    "qr complete": lambda x: np.linalg.qr(x[:, :2], mode="complete")[0][:, :2],
    "svd": lambda x: np.linalg.svd(x)[1],
    "svd without vectors": lambda x: np.linalg.svd(x, compute_uv=False),
    "svdvals": np.linalg.svdvals,
    "eigh": lambda x: np.linalg.eigh(x)[0],
    "eigvalsh": np.linalg.eigvalsh,
    "solve": lambda x: np.linalg.solve(x, np.ones(3)),
    "lstsq": lambda x: np.linalg.lstsq(x, np.ones(3))[0],
    "matrix_power": lambda x: np.linalg.matrix_power(x, 3),
    "multi_dot": lambda x: np.linalg.multi_dot([x, np.ones((3, 2)), np.ones(2)]),
    "cond": np.linalg.cond,
    "norm": np.linalg.norm,
    "norm nuc": lambda x: np.linalg.norm(x, "nuc"),
    "matrix_norm": lambda x: np.linalg.matrix_norm(x, ord=1),
    "vector_norm": lambda x: np.linalg.vector_norm(x, axis=0, ord=3),
    "outer": lambda x: np.linalg.outer(x[0], x[1]),
}


@pytest.mark.parametrize("name", NUMPY)
def test_numpys_function_of_tensors_is_recorded(name: str) -> None:
    x = positive(3, 3)
    call = NUMPY[name]
    tensor = tj.asarray(x)
    with tj.GradientTape() as tape:
        tape.watch(tensor)
        found = call(tensor)
    assert isinstance(found, tj.Tensor)
    assert_near(found, call(x))
    assert tape.gradient(found, tensor) is not None


def test_numpys_rank_of_tensors() -> None:
    assert int(np.linalg.matrix_rank(tj.ones((3, 3)))) == 1


def test_nothing_warns_and_numpys_state_stays() -> None:
    with np.errstate(all="raise"):
        assert float(tj.linalg.det(np.full((2, 2), 1e300))) == 0.0
        assert not np.isfinite(float(tj.linalg.cond(np.zeros((2, 2)))))
        assert float(tj.linalg.vector_norm(np.array([1e300, 1e300]))) == np.inf
        assert float(tj.linalg.slogdet(np.zeros((2, 2))).logabsdet) == -np.inf
