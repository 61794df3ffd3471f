"""Contractions against NumPy: values, gradients, rows of a batch, NumPy's own calls."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tapejit as tj

Array = np.ndarray[Any, Any]


def drawn(*shape: int, seed: int = 0, dtype: Any = np.float64) -> Array:
    rng = np.random.default_rng([seed, *shape])
    x = rng.normal(size=shape)
    if np.dtype(dtype).kind == "c":
        return np.asarray(x + 1j * rng.normal(size=shape), dtype)
    if np.dtype(dtype).kind in "iu":
        return np.asarray(rng.integers(-4, 5, shape), dtype)
    return np.asarray(x, dtype)


# A function of tensors or of arrays, and the shapes of its operands
Case = tuple[Callable[..., Any], Callable[..., Any], list[tuple[int, ...]]]


def einsum(subscripts: str, *shapes: tuple[int, ...]) -> Case:
    return (
        lambda *xs: tj.einsum(subscripts, *xs),
        lambda *xs: np.einsum(subscripts, *xs),
        list(shapes),
    )


EINSUMS = [
    ("ij->ji", (2, 3)),
    ("ij", (2, 3)),
    ("ba", (2, 3)),
    ("ij->", (2, 3)),
    ("ii", (3, 3)),
    ("ii->i", (3, 3)),
    ("iij->ji", (3, 3, 2)),
    ("iji->j", (3, 2, 3)),
    ("iii->i", (3, 3, 3)),
    ("iijj->ij", (2, 2, 3, 3)),
    ("...i->...", (2, 3, 4)),
    ("i...->...", (2, 3, 4)),
    ("...", (2, 3)),
    ("i->i", (3,)),
    ("->", ()),
    ("", ()),
    (",->", (), ()),
    (",i->i", (), (3,)),
    ("i,i", (3,), (3,)),
    ("i,i->i", (3,), (3,)),
    ("i,j", (3,), (2,)),
    ("i,j->ji", (3,), (2,)),
    ("ij,jk", (2, 3), (3, 4)),
    ("ij,jk->ki", (2, 3), (3, 4)),
    ("ij,kj->ik", (2, 3), (4, 3)),
    ("bij,bjk->bik", (2, 3, 4), (2, 4, 5)),
    ("bij,bjk->ikb", (2, 3, 4), (2, 4, 5)),
    ("ij,ij->", (2, 3), (2, 3)),
    ("ij,kl->", (2, 3), (4, 2)),
    ("ij,k->i", (2, 3), (4,)),
    ("ii,ij->j", (3, 3), (3, 2)),
    ("...ij,...jk->...ik", (2, 3, 4), (4, 5)),
    ("...ij,jk", (2, 3, 4), (4, 5)),
    ("i...,i...->...", (3, 2, 1), (3, 4)),
    ("...i,...i->...", (1, 3), (2, 3)),
    ("ij,ij->ij", (1, 3), (2, 3)),
    ("ij,ij->", (2, 1), (2, 3)),
    ("a b , b c -> a c", (2, 3), (3, 4)),
    ("ij,jk,kl->il", (2, 3), (3, 4), (4, 5)),
    ("ij,jk,ki->", (2, 3), (3, 4), (4, 2)),
    ("ab,ab,ab->a", (2, 3), (2, 3), (2, 3)),
    ("...a,...b,...c->...", (2, 2), (2, 3), (2, 4)),
    ("i,ij,jk,k", (2,), (2, 3), (3, 4), (4,)),
    ("ij,jk", (0, 3), (3, 2)),
    ("ij,jk", (2, 0), (0, 3)),
    ("ij->j", (0, 3)),
]

CASES: dict[str, Case] = {
    **{f"einsum {word} {shapes}": einsum(word, *shapes) for word, *shapes in EINSUMS},
    "tensordot": (tj.tensordot, np.tensordot, [(2, 3, 4), (3, 4, 5)]),
    "tensordot of 1": (
        lambda x, y: tj.tensordot(x, y, axes=1),
        lambda x, y: np.tensordot(x, y, axes=1),
        [(2, 3), (3, 4)],
    ),
    "tensordot of 0": (
        lambda x, y: tj.tensordot(x, y, axes=0),
        lambda x, y: np.tensordot(x, y, axes=0),
        [(2, 3), (4,)],
    ),
    "tensordot of pairs": (
        lambda x, y: tj.tensordot(x, y, axes=((2, -3), (0, 1))),
        lambda x, y: np.tensordot(x, y, axes=((2, -3), (0, 1))),
        [(2, 3, 4), (4, 2, 5)],
    ),
    "tensordot of one pair": (
        lambda x, y: tj.tensordot(x, y, axes=(0, 1)),
        lambda x, y: np.tensordot(x, y, axes=(0, 1)),
        [(2, 3), (4, 2)],
    ),
    "tensordot of nothing": (tj.tensordot, np.tensordot, [(2, 0, 4), (0, 4, 5)]),
    "vecdot": (tj.vecdot, np.vecdot, [(2, 3), (3,)]),
    "vecdot along 0": (
        lambda x, y: tj.vecdot(x, y, axis=-2),
        lambda x, y: np.vecdot(x, y, axis=-2),
        [(3, 2), (4, 3, 2)],
    ),
    "vdot": (tj.vdot, np.vdot, [(2, 3), (2, 3)]),
    "matvec": (
        tj.matvec,
        lambda x, y: np.einsum("...ij,...j->...i", x, y),
        [(2, 3, 4), (4,)],
    ),
    "vecmat": (
        tj.vecmat,
        lambda x, y: np.einsum("...i,...ij->...j", np.conj(x), y),
        [(2, 3), (3, 4)],
    ),
    "inner": (tj.inner, np.inner, [(2, 3), (4, 5, 3)]),
    "inner of scalars": (tj.inner, np.inner, [(), (2, 3)]),
    "outer": (tj.outer, np.outer, [(2, 3), (4,)]),
    "trace": (tj.trace, np.trace, [(3, 4)]),
    "trace above": (
        lambda x: tj.trace(x, 1, 2, 0),
        lambda x: np.trace(x, 1, 2, 0),
        [(3, 2, 4)],
    ),
    "cross": (tj.cross, np.cross, [(2, 3), (3,)]),
    "cross along 0": (
        lambda x, y: tj.cross(x, y, axis=0),
        lambda x, y: np.cross(x, y, axis=0),
        [(3, 2), (3, 2)],
    ),
}
IDS = list(CASES)


@pytest.mark.parametrize("dtype", ["float64", "complex128", "float32", "int8"])
@pytest.mark.parametrize("name", IDS)
def test_values_are_numpys(name: str, dtype: str) -> None:
    ours, theirs, shapes = CASES[name]
    xs = [drawn(*shape, seed=at, dtype=dtype) for at, shape in enumerate(shapes)]
    expected = np.asarray(theirs(*xs))
    got = np.asarray(ours(*map(tj.asarray, xs)))
    is_sum = name.startswith("trace")  # of small integers: as wide as tj.sum's
    wide = np.asarray(tj.sum(tj.asarray(xs[0]))).dtype
    assert got.dtype == (wide if is_sum else expected.dtype)
    eps = 0 if dtype == "int8" else np.finfo(dtype).eps
    np.testing.assert_allclose(got, expected, rtol=16 * eps, atol=64 * eps)


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("name", IDS)
def test_gradients_follow_differences(name: str, dtype: str) -> None:
    ours, _, shapes = CASES[name]
    xs = [drawn(*shape, seed=at, dtype=dtype) for at, shape in enumerate(shapes)]
    tj.testing.check_grads(ours, xs, order=2)


@pytest.mark.parametrize("name", IDS)
def test_mapping_is_a_loop(name: str) -> None:
    ours, _, shapes = CASES[name]
    rows = [drawn(3, *shape, seed=at) for at, shape in enumerate(shapes)]
    found = np.asarray(tj.vmap(ours)(*rows))
    looped = np.stack([ours(*[x[at, ...] for x in rows]).numpy() for at in range(3)])
    np.testing.assert_allclose(found, looped, rtol=1e-14, atol=1e-14)


NUMPY: dict[str, Callable[..., Any]] = {
    "einsum": lambda x, y: np.einsum("ij,kj->ik", x, y),
    "einsum optimized": lambda x, y: np.einsum("ij,kj->ik", x, y, optimize=True),
    "einsum of lists": lambda x, y: np.einsum(x, [0, 1], y, [2, 1], [0, 2]),
    "einsum of lists, implicit": lambda x, y: np.einsum(x, [0, ...], y, [0, ...]),
    "tensordot": lambda x, y: np.tensordot(x, y, axes=(1, 1)),
    "vecdot": np.vecdot,
    "inner": np.inner,
    "outer": np.outer,
    "vdot": np.vdot,
    "trace": lambda x, y: np.trace(x) + np.trace(y),
    "cross": lambda x, y: np.cross(x, y, axisb=0, axisc=0),
    "dot": lambda x, y: np.dot(x, y.T),
    "dot of high ranks": lambda x, y: np.dot(x, np.stack([y, y])),
    "linalg.vecdot": lambda x, y: np.linalg.vecdot(x, y, axis=0),
    "linalg.tensordot": lambda x, y: np.linalg.tensordot(x, y),
    "linalg.cross": np.linalg.cross,
    "linalg.trace": lambda x, y: np.linalg.trace(x, offset=1) * np.linalg.trace(y),
    "linalg.diagonal": lambda x, y: np.linalg.diagonal(x, offset=-1),
}


@pytest.mark.parametrize("call", NUMPY.values(), ids=NUMPY)
def test_numpys_function_of_tensors_is_recorded(call: Callable[..., Any]) -> None:
    x, y = drawn(3, 3, dtype=np.complex128), drawn(3, 3, seed=1, dtype=np.complex128)
    expected = call(x, y)
    tensor = tj.asarray(x)
    with tj.GradientTape() as tape:
        tape.watch(tensor)
        found = call(tensor, tj.asarray(y))
    assert isinstance(found, tj.Tensor)
    np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-13)
    assert tape.gradient(found, tensor) is not None


def test_einsum_of_variables_and_arrays() -> None:
    v = tj.Variable([1.0, 2.0])
    with tj.GradientTape() as tape:
        y = tj.einsum("i,i->", v, np.float32([3, 4]))
    assert float(y) == 11.0
    assert tape.gradient(y, v).tolist() == [3.0, 4.0]


def test_a_view_of_an_array_is_not_given_away() -> None:
    array = np.zeros((2, 3))
    found = tj.einsum("ij->ji", array)
    array[:] = 1
    assert not found.numpy().any()


def test_einsum_keeps_the_dtype_of_small_integers() -> None:
    x = np.full((3, 100), 3, np.int8)
    np.testing.assert_array_equal(tj.einsum("ij->i", x), np.einsum("ij->i", x))
    assert tj.einsum("ij->i", x).dtype == np.int8


def test_halves_are_summed_in_single() -> None:
    x = np.full(4096, 1.0, np.float16)
    assert float(tj.vecdot(x, x)) == 4096
    assert float(tj.einsum("i,i", x, x)) == 4096


@pytest.mark.parametrize("optimize", [True, False, "greedy", "optimal"])
def test_the_order_does_not_change_the_result(optimize: Any) -> None:
    xs = [drawn(3, 4), drawn(4, 5), drawn(5, 6), drawn(6, 3)]
    found = tj.einsum("ij,jk,kl,li->", *xs, optimize=optimize)
    expected = np.trace(xs[0] @ xs[1] @ xs[2] @ xs[3])
    np.testing.assert_allclose(float(found), expected, rtol=1e-13)


def test_many_operands_are_contracted_cheaply() -> None:
    """A vector times matrices: no intermediate is a matrix product of matrices."""
    v, a = tj.asarray(drawn(50)), tj.asarray(drawn(50, 50))
    with tj.GradientTape() as tape:
        tape.watch(v)
        tj.einsum("ij,jk,kl,l->i", a, a, a, v)
    shapes = [getattr(node.type, "shape", ()) for node in tape._recording.order]
    assert all(np.prod(shape) <= 50 for shape in shapes)


def test_two_operands_need_no_opt_einsum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opt_einsum", None)
    assert tj.einsum("ij,jk->ik", tj.ones((2, 3)), tj.ones((3, 2))).shape == (2, 2)


@pytest.mark.parametrize(
    ("subscripts", "shapes", "error", "text"),
    [
        ("ij,jk", [(2, 3)], tj.ArgumentError, "for 2 operands, got 1"),
        ("ij", [(2,)], tj.ShapeError, "does not fit operand 0"),
        ("i", [(2, 3)], tj.ShapeError, "does not fit operand 0"),
        ("...ijk", [(2, 3)], tj.ShapeError, "does not fit operand 0"),
        ("ij,jk", [(2, 3), (4, 5)], tj.ShapeError, "'j' has sizes 3 and 4"),
        ("ii", [(2, 3)], tj.ShapeError, "'i' has sizes 2 and 3"),
        ("i->j", [(2,)], tj.ArgumentError, "'j' of the result is in no operand"),
        ("i->ii", [(2,)], tj.ArgumentError, "'i' is twice in the result"),
        ("i1", [(2, 3)], tj.ArgumentError, "cannot read 'i1'"),
        ("i->i->", [(2,)], tj.ArgumentError, "cannot read"),
        ("i..", [(2,)], tj.ArgumentError, "cannot read"),
        ("...i...", [(2,)], tj.ArgumentError, "cannot read"),
        ("...,...", [(2,), (3,)], tj.ShapeError, "'...' has sizes 2 and 3"),
    ],
)
def test_wrong_subscripts_are_explained(
    subscripts: str, shapes: Any, error: Any, text: str
) -> None:
    with pytest.raises(error) as caught:
        tj.einsum(subscripts, *[tj.ones(shape) for shape in shapes])
    assert text in caught.value.message
    assert caught.value.op == "einsum"


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda x: tj.tensordot(x, x, axes=3), tj.AxisError),
        (lambda x: tj.tensordot(x, x, axes=1), tj.ShapeError),
        (lambda x: tj.tensordot(x, x, axes=((0, 1), (0,))), tj.ArgumentError),
        (lambda x: tj.tensordot(x, x, axes=((0, 0), (0, 0))), tj.AxisError),
        (lambda x: tj.tensordot(x, x, axes=(0, 1, 2)), tj.ArgumentError),
        (lambda x: tj.tensordot(x, x, axes=(5, 0)), tj.AxisError),
        (lambda x: tj.vecdot(x, tj.ones(4)), tj.ShapeError),
        (lambda x: tj.inner(x, tj.ones(4)), tj.ShapeError),
        (lambda x: tj.cross(x, x), tj.ShapeError),
        (lambda x: tj.matvec(x, 1.0), tj.ShapeError),
        (lambda x: tj.vecmat(1.0, x), tj.ShapeError),
        (lambda x: tj.trace(x[0]), tj.ShapeError),
        (lambda x: tj.einsum("ij"), tj.ArgumentError),
        (lambda x: tj.einsum(x, 3), tj.ArgumentTypeError),
        (lambda x: tj.einsum(x, [0, 99]), tj.ArgumentError),
        (lambda x: np.einsum("ij", x, out=np.zeros((2, 5))), tj.UnsupportedError),
    ],
)
def test_what_does_not_fit_is_refused(call: Callable[..., Any], error: Any) -> None:
    with pytest.raises(error):
        call(tj.ones((2, 5)))
