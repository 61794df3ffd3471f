"""NumPy's functions on tensors run on tapejit, are recorded, or are refused by name."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tapejit as tj
from tapejit.array.numpy import protocol, table

Case = Callable[[Any], Any]

VECTOR = np.array([0.5, 1.5, -2.0])
MATRIX = np.array([[0.5, 1.5, -2.0], [3.0, -0.25, 1.0]])
CUBE = np.linspace(-1.0, 1.0, 24).reshape(2, 3, 4)
INTEGERS = np.array([[1, 2, 3], [6, 5, 4]])
COMPLEX = np.array([1 + 2j, -3j, 0.5])
SPECIAL = np.array([1.0, np.nan, np.inf, -np.inf])

# Each entry calls NumPy; run on an array it gives the value that the same call on a
# tensor has to give.
SAME: dict[str, tuple[Case, np.ndarray[Any, Any]]] = {
    # ufuncs of one operand
    "absolute": (lambda x: np.absolute(x), MATRIX),
    "abs complex": (lambda x: np.abs(x), COMPLEX),
    "negative": (lambda x: np.negative(x), MATRIX),
    "positive": (lambda x: np.positive(x), MATRIX),
    "sign": (lambda x: np.sign(x), MATRIX),
    "square": (lambda x: np.square(x), MATRIX),
    "sqrt": (lambda x: np.sqrt(x), MATRIX**2),
    "exp": (lambda x: np.exp(x), MATRIX),
    "expm1": (lambda x: np.expm1(x), MATRIX),
    "log": (lambda x: np.log(x), MATRIX**2),
    "log1p": (lambda x: np.log1p(x), MATRIX**2),
    "sin": (lambda x: np.sin(x), MATRIX),
    "cos": (lambda x: np.cos(x), MATRIX),
    "tanh": (lambda x: np.tanh(x), MATRIX),
    "floor": (lambda x: np.floor(x), MATRIX),
    "ceil": (lambda x: np.ceil(x), MATRIX),
    "trunc": (lambda x: np.trunc(x), MATRIX),
    "rint": (lambda x: np.rint(x), MATRIX),
    "isnan": (lambda x: np.isnan(x), SPECIAL),
    "isinf": (lambda x: np.isinf(x), SPECIAL),
    "isfinite": (lambda x: np.isfinite(x), SPECIAL),
    "conj": (lambda x: np.conj(x), COMPLEX),
    "conjugate real": (lambda x: np.conjugate(x), VECTOR),
    "logical_not": (lambda x: np.logical_not(x > 0), MATRIX),
    "invert": (lambda x: np.invert(x), INTEGERS),
    # ufuncs of two operands, on either side
    "add": (lambda x: np.add(x, VECTOR), MATRIX),
    "subtract": (lambda x: np.subtract(VECTOR, x), MATRIX),
    "multiply": (lambda x: np.multiply(VECTOR, x), MATRIX),
    "divide": (lambda x: np.divide(x, VECTOR), MATRIX),
    "true_divide": (lambda x: np.true_divide(1.0, x), MATRIX),
    "floor_divide": (lambda x: np.floor_divide(x, VECTOR), MATRIX),
    "mod": (lambda x: np.mod(x, VECTOR), MATRIX),
    "divmod": (lambda x: np.divmod(x, VECTOR)[1], MATRIX),
    "power": (lambda x: np.power(x, 2), MATRIX),
    "power of array": (lambda x: np.power(np.array([2.0, 3.0, 4.0]), x), MATRIX),
    "maximum": (lambda x: np.maximum(x, 0), MATRIX),
    "minimum": (lambda x: np.minimum(VECTOR, x), MATRIX),
    "matmul": (lambda x: np.matmul(x, VECTOR), MATRIX),
    "equal": (lambda x: np.equal(x, MATRIX), MATRIX),
    "not_equal": (lambda x: np.not_equal(VECTOR, x), MATRIX),
    "less": (lambda x: np.less(x, 1), MATRIX),
    "less_equal": (lambda x: np.less_equal(x, 0.5), MATRIX),
    "greater": (lambda x: np.greater(VECTOR, x), MATRIX),
    "greater_equal": (lambda x: np.greater_equal(x, 0.5), MATRIX),
    "logical_and": (lambda x: np.logical_and(x > 0, [True, False, True]), MATRIX),
    "logical_or": (lambda x: np.logical_or(x > 0, VECTOR > 0), MATRIX),
    "logical_xor": (lambda x: np.logical_xor(VECTOR > 0, x > 0), MATRIX),
    "bitwise_and": (lambda x: np.bitwise_and(x, 3), INTEGERS),
    "bitwise_or": (lambda x: np.bitwise_or(INTEGERS, x), INTEGERS),
    "bitwise_xor": (lambda x: np.bitwise_xor(x, 1), INTEGERS),
    "left_shift": (lambda x: np.left_shift(x, 2), INTEGERS),
    "right_shift": (lambda x: np.right_shift(x, 1), INTEGERS),
    "ufunc with defaults": (
        lambda x: np.sin(x, where=True, dtype=None, casting="same_kind", order="K"),
        MATRIX,
    ),
    # reductions, by keyword and by position
    "sum": (lambda x: np.sum(x), MATRIX),
    "sum axis": (lambda x: np.sum(x, 0), MATRIX),
    "sum axes": (lambda x: np.sum(x, axis=(0, 2)), CUBE),
    "sum positional": (lambda x: np.sum(x, 1, None, None, True), MATRIX),
    "sum dtype": (lambda x: np.sum(x, dtype="float64"), INTEGERS),
    "sum defaults": (
        lambda x: np.sum(x, axis=0, initial=np._NoValue, where=True, out=None),
        MATRIX,
    ),
    "prod": (lambda x: np.prod(x, axis=1), MATRIX),
    "mean": (lambda x: np.mean(x, axis=-1, keepdims=True), MATRIX),
    "mean dtype": (lambda x: np.mean(x, 0, "float64"), INTEGERS),
    "max": (lambda x: np.max(x, axis=1), MATRIX),
    "amax": (lambda x: np.amax(x, 0), MATRIX),
    "min": (lambda x: np.min(x), MATRIX),
    "amin": (lambda x: np.amin(x, axis=0, keepdims=True), MATRIX),
    "ptp": (lambda x: np.ptp(x, axis=0), MATRIX),
    "argmax": (lambda x: np.argmax(x, axis=1), MATRIX),
    "argmax flat": (lambda x: np.argmax(x), MATRIX),
    "argmin": (lambda x: np.argmin(x, 0, keepdims=True), MATRIX),
    "all": (lambda x: np.all(x > -1, axis=0), MATRIX),
    "any": (lambda x: np.any(x > 1, 1), MATRIX),
    "count_nonzero": (lambda x: np.count_nonzero(x > 0, axis=1), MATRIX),
    "add.reduce": (lambda x: np.add.reduce(x), MATRIX),
    "add.reduce options": (
        lambda x: np.add.reduce(x, axis=(0, 1), dtype="float64", keepdims=True),
        MATRIX,
    ),
    "add.reduce scalar": (lambda x: np.add.reduce(x[0, 0]), MATRIX),
    "multiply.reduce": (lambda x: np.multiply.reduce(x, 1), MATRIX),
    "maximum.reduce": (lambda x: np.maximum.reduce(x, axis=None), MATRIX),
    "minimum.reduce": (lambda x: np.minimum.reduce(x, axis=1), MATRIX),
    "logical_and.reduce": (lambda x: np.logical_and.reduce(x > -1), MATRIX),
    "logical_or.reduce": (lambda x: np.logical_or.reduce(x > 1, axis=1), MATRIX),
    # element by element
    "where": (lambda x: np.where(x > 0, x, 0.0), MATRIX),
    "where array": (lambda x: np.where(MATRIX > 0, MATRIX, x), MATRIX),
    "clip": (lambda x: np.clip(x, -0.5, 1.0), MATRIX),
    "clip one side": (lambda x: np.clip(x, None, 1.0), MATRIX),
    "clip min max": (lambda x: np.clip(x, min=VECTOR, max=2), MATRIX),
    "round": (lambda x: np.round(x), MATRIX),
    "round decimals": (lambda x: np.round(x / 7, 2), MATRIX),
    "round tens": (lambda x: np.around(x * 77, decimals=-1), MATRIX),
    "round integers": (lambda x: np.round(x, 2), INTEGERS),
    "real": (lambda x: np.real(x), COMPLEX),
    "imag": (lambda x: np.imag(x), COMPLEX),
    "imag real": (lambda x: np.imag(x), VECTOR),
    "angle": (lambda x: np.angle(x), COMPLEX),
    "angle deg": (lambda x: np.angle(x, deg=True), COMPLEX),
    "astype": (lambda x: np.astype(x, np.int32), MATRIX),
    "isclose": (lambda x: np.isclose(x, VECTOR + 1e-9), MATRIX),
    "isclose special": (lambda x: np.isclose(x, SPECIAL, equal_nan=True), SPECIAL),
    "isclose rtol": (lambda x: np.isclose(x, INTEGERS + 1, rtol=0.3), INTEGERS),
    # shapes
    "reshape": (lambda x: np.reshape(x, (3, -1)), MATRIX),
    "reshape keyword": (lambda x: np.reshape(x, shape=6, order="C"), MATRIX),
    "ravel": (lambda x: np.ravel(x), CUBE),
    "transpose": (lambda x: np.transpose(x), CUBE),
    "transpose axes": (lambda x: np.transpose(x, (1, 0, -1)), CUBE),
    "permute_dims": (lambda x: np.permute_dims(x, axes=(2, 0, 1)), CUBE),
    "matrix_transpose": (lambda x: np.matrix_transpose(x), CUBE),
    "linalg.matrix_transpose": (lambda x: np.linalg.matrix_transpose(x), CUBE),
    "swapaxes": (lambda x: np.swapaxes(x, 0, -1), CUBE),
    "moveaxis": (lambda x: np.moveaxis(x, 0, -1), CUBE),
    "moveaxis several": (lambda x: np.moveaxis(x, [0, 1], [-1, 0]), CUBE),
    "expand_dims": (lambda x: np.expand_dims(x, 1), MATRIX),
    "expand_dims several": (lambda x: np.expand_dims(x, axis=(0, -1)), MATRIX),
    "squeeze": (lambda x: np.squeeze(x[:1], axis=0), MATRIX),
    "broadcast_to": (lambda x: np.broadcast_to(x, (4, 2, 3)), MATRIX),
    "atleast_1d": (lambda x: np.atleast_1d(x[0, 0]), MATRIX),
    "atleast_2d": (lambda x: np.atleast_2d(x), VECTOR),
    "atleast several": (lambda x: np.atleast_2d(x[0], VECTOR)[1], VECTOR),
    "flip": (lambda x: np.flip(x), MATRIX),
    "flip axis": (lambda x: np.flip(x, axis=(0, 1)), CUBE),
    "flipud": (lambda x: np.flipud(x), MATRIX),
    "fliplr": (lambda x: np.fliplr(x), MATRIX),
    "pad": (lambda x: np.pad(x, ((1, 0), (0, 2))), MATRIX),
    "pad value": (lambda x: np.pad(x, 1, "constant", constant_values=7.0), MATRIX),
    "pad array": (lambda x: np.pad(x, np.array([[1], [2]])), MATRIX),
    "concatenate": (lambda x: np.concatenate([x, MATRIX], axis=1), MATRIX),
    "concatenate positional": (lambda x: np.concatenate((MATRIX, x), 0), MATRIX),
    "concatenate flat": (lambda x: np.concatenate([x, x[0]], axis=None), MATRIX),
    "concatenate dtype": (lambda x: np.concatenate([x, x], dtype="float32"), MATRIX),
    "concat": (lambda x: np.concat([x, x]), MATRIX),
    "stack": (lambda x: np.stack([x, VECTOR], axis=-1), VECTOR),
    "vstack": (lambda x: np.vstack([x, MATRIX]), VECTOR),
    "hstack": (lambda x: np.hstack([x, x]), MATRIX),
    "hstack vectors": (lambda x: np.hstack([x, x[0], 2.0]), VECTOR),
    "take": (lambda x: np.take(x, [2, -3], axis=1), MATRIX),
    "take flat": (lambda x: np.take(x, [[5, 0], [1, 1]]), MATRIX),
    # new ones like old ones
    "zeros_like": (lambda x: np.zeros_like(x), MATRIX),
    "zeros_like shape": (lambda x: np.zeros_like(x, dtype="int32", shape=4), MATRIX),
    "ones_like": (lambda x: np.ones_like(x), INTEGERS),
    "full_like": (lambda x: np.full_like(x, 7), MATRIX),
    "copy": (lambda x: np.copy(x), MATRIX),
    # products
    "dot": (lambda x: np.dot(x, VECTOR), VECTOR),
    "dot matrices": (lambda x: np.dot(x, MATRIX.T), MATRIX),
    "dot scalar": (lambda x: np.dot(3.0, x), MATRIX),
    "dot high rank": (lambda x: np.dot(x, np.ones((4, 2))), CUBE),
    "dot row": (lambda x: np.dot(np.ones(3), x), CUBE),
    "inner": (lambda x: np.inner(x, VECTOR), MATRIX),
    "inner matrices": (lambda x: np.inner(MATRIX, x), MATRIX),
    "outer": (lambda x: np.outer(x, [1.0, 2.0]), MATRIX),
    "vdot": (lambda x: np.vdot(x, COMPLEX[::-1]), COMPLEX),
    "linalg.matmul": (lambda x: np.linalg.matmul(x, MATRIX.T), MATRIX),
    "linalg.outer": (lambda x: np.linalg.outer(VECTOR, x), VECTOR),
    # operators with an array, or a NumPy scalar, on the left
    "array +": (lambda x: VECTOR + x, MATRIX),
    "array -": (lambda x: VECTOR - x, MATRIX),
    "array *": (lambda x: VECTOR * x, MATRIX),
    "array /": (lambda x: VECTOR / x, MATRIX),
    "array //": (lambda x: VECTOR // x, MATRIX),
    "array %": (lambda x: VECTOR % x, MATRIX),
    "array **": (lambda x: VECTOR**2 ** (x * 0 + 2), MATRIX),
    "array @": (lambda x: VECTOR @ x, VECTOR),
    "array <": (lambda x: x > VECTOR, MATRIX),
    "array ==": (lambda x: x == VECTOR, MATRIX),
    "array &": (lambda x: (VECTOR > 0) & (x > 0), MATRIX),
    "array |": (lambda x: INTEGERS | x, INTEGERS),
    "array <<": (lambda x: INTEGERS << x, INTEGERS),
    "divmod()": (lambda x: divmod(VECTOR, x)[0], MATRIX),
    "float64 *": (lambda x: np.float64(2) * x, MATRIX),
    "float64 <": (lambda x: np.float64(2) < x, MATRIX),
    "0-d array -": (lambda x: np.array(2.0) - x, MATRIX),
}


@pytest.mark.parametrize(("call", "array"), SAME.values(), ids=SAME)
def test_the_result_is_a_tensor_with_numpys_values(
    call: Case, array: np.ndarray[Any, Any]
) -> None:
    with np.errstate(all="ignore"):
        expected = call(array)
    result = call(tj.asarray(array))
    assert isinstance(result, tj.Tensor)
    assert result.dtype == expected.dtype
    assert result.shape == expected.shape
    np.testing.assert_allclose(result.numpy(), expected, rtol=1e-14)


@pytest.mark.parametrize(("call", "array"), SAME.values(), ids=SAME)
def test_a_variable_is_as_good_as_a_tensor(
    call: Case, array: np.ndarray[Any, Any]
) -> None:
    result = call(tj.Variable(array))
    assert isinstance(result, tj.Tensor)
    np.testing.assert_array_equal(result, call(tj.asarray(array)))


# NumPy call, the same in tapejit's own words
RECORDED: dict[str, tuple[Case, Case]] = {
    "sin": (lambda x: np.sin(x), lambda x: tj.sin(x)),
    "exp of log": (lambda x: np.log(np.exp(x) + 1), lambda x: tj.log(tj.exp(x) + 1)),
    "array *": (lambda x: VECTOR * x, lambda x: x * VECTOR),
    "array -": (lambda x: VECTOR - x, lambda x: -(x - VECTOR)),
    "array /": (lambda x: VECTOR / x, lambda x: tj.divide(VECTOR, x)),
    "array @": (lambda x: VECTOR @ x.T, lambda x: tj.matmul(x, VECTOR)),
    "float64 *": (lambda x: np.float64(2) * x, lambda x: x * 2),
    "power": (lambda x: np.power(x, 3), lambda x: x**3),
    "sum": (lambda x: np.sum(x * x, axis=0), lambda x: tj.sum(x * x, axis=0)),
    "add.reduce": (lambda x: np.add.reduce(x * x), lambda x: tj.sum(x * x, axis=0)),
    "multiply.reduce": (
        lambda x: np.multiply.reduce(x, 1),
        lambda x: tj.prod(x, axis=1),
    ),
    "mean": (lambda x: np.mean(x * x), lambda x: tj.mean(x * x)),
    "max": (lambda x: np.max(x, axis=1), lambda x: tj.max(x, axis=1)),
    "ptp": (lambda x: np.ptp(x), lambda x: tj.max(x) - tj.min(x)),
    "maximum": (lambda x: np.maximum(x, 0), lambda x: tj.maximum(x, 0)),
    "clip": (lambda x: np.clip(x, -1, 1) * x, lambda x: tj.clip(x, -1, 1) * x),
    "where": (lambda x: np.where(x > 0, x * x, x), lambda x: tj.where(x > 0, x * x, x)),
    "round": (lambda x: np.round(x, 1) * x, lambda x: tj.round(x * 10) / 10 * x),
    "reshape": (lambda x: np.reshape(x, (3, 2)) ** 2, lambda x: x.reshape(3, 2) ** 2),
    "transpose": (lambda x: np.transpose(x) @ x, lambda x: x.T @ x),
    "moveaxis": (lambda x: np.moveaxis(x, 0, 1) @ x, lambda x: x.T @ x),
    "swapaxes": (lambda x: np.swapaxes(x, 0, 1) @ x, lambda x: x.T @ x),
    "concatenate": (
        lambda x: np.concatenate([MATRIX, x * x]),
        lambda x: tj.concat([MATRIX, x * x]),
    ),
    "stack": (lambda x: np.stack([x, MATRIX]) ** 2, lambda x: x * x),
    "pad": (lambda x: np.pad(x * x, 1), lambda x: x * x),
    "take": (lambda x: np.take(x, [0, 0], axis=1) ** 2, lambda x: 2 * x[:, :1] ** 2),
    "flip": (lambda x: np.flip(x) * MATRIX, lambda x: x * MATRIX[::-1, ::-1]),
    "dot": (lambda x: np.dot(x, x.T), lambda x: x @ x.T),
    "inner": (lambda x: np.inner(x, x), lambda x: x @ x.T),
    "outer": (lambda x: np.outer(x, x), lambda x: tj.sum(x) ** 2),
    "vdot": (lambda x: np.vdot(x, x), lambda x: tj.sum(x * x)),
    "squeeze": (lambda x: np.squeeze(x[:1]) ** 2, lambda x: x[:1] ** 2),
    "expand_dims": (lambda x: np.expand_dims(x, 0) ** 2, lambda x: x * x),
    "broadcast_to": (lambda x: np.broadcast_to(x, (2, 2, 3)) ** 2, lambda x: 2 * x * x),
    "atleast_2d": (lambda x: np.atleast_2d(x[0]) ** 2, lambda x: x[0] ** 2),
    "hstack": (lambda x: np.hstack([x, x]) ** 2, lambda x: 2 * x * x),
    "vstack": (lambda x: np.vstack([x, x]) ** 2, lambda x: 2 * x * x),
    "copy": (lambda x: np.copy(x) * x, lambda x: x * x),
    "full_like": (lambda x: np.full_like(x, np.sum(x)), lambda x: 6 * tj.sum(x)),
}


@pytest.mark.parametrize(("call", "own"), RECORDED.values(), ids=RECORDED)
@pytest.mark.parametrize("leaf", [tj.Variable, tj.asarray])
def test_the_call_is_recorded(call: Case, own: Case, leaf: Case) -> None:
    x = leaf(MATRIX)
    with tj.GradientTape(persistent=True) as tape:
        tape.watch(x)
        through_numpy, through_tapejit = call(x), own(x)
    expected = tape.gradient(through_tapejit, x)
    assert expected is not None
    gradient = tape.gradient(through_numpy, x)
    assert gradient is not None
    np.testing.assert_allclose(gradient.numpy(), expected.numpy(), rtol=1e-14)


def test_second_derivatives_go_through_numpy_calls() -> None:
    x = tj.Variable(2.0, dtype="float64")
    with tj.GradientTape() as outer:
        with tj.GradientTape() as inner:
            y = np.power(x, 3) + np.sin(x)
        first = inner.gradient(y, x)
    second = outer.gradient(first, x)
    assert second.item() == pytest.approx(12 - np.sin(2.0))


def test_a_traced_function_may_call_numpy() -> None:
    rows = tj.vmap(lambda row: np.sum(np.sin(row) * VECTOR))(tj.asarray(MATRIX))
    np.testing.assert_allclose(rows.numpy(), (np.sin(MATRIX) * VECTOR).sum(axis=1))


# Questions with a Python answer


def test_shapes_are_python_values() -> None:
    x = tj.asarray(CUBE)
    assert np.shape(x) == (2, 3, 4)
    assert np.ndim(x) == 3
    assert np.size(x) == 24
    assert np.size(x, 1) == 3
    assert np.size(tj.Variable(CUBE), axis=-1) == 4


def test_kinds_are_python_values() -> None:
    assert np.iscomplexobj(tj.asarray(COMPLEX))
    assert not np.iscomplexobj(tj.asarray(VECTOR))
    assert np.isrealobj(tj.asarray(VECTOR))


def test_array_equal() -> None:
    x = tj.asarray(SPECIAL)
    assert np.array_equal(tj.asarray(VECTOR), VECTOR) is True
    assert np.array_equal(VECTOR, tj.asarray(VECTOR + 1)) is False
    assert np.array_equal(tj.asarray(VECTOR), MATRIX) is False
    assert np.array_equal(x, SPECIAL) is False
    assert np.array_equal(x, SPECIAL, equal_nan=True) is True


def test_allclose() -> None:
    x = tj.asarray(VECTOR)
    assert np.allclose(x, VECTOR * (1 + 1e-7)) is True
    assert np.allclose(x, VECTOR * (1 + 1e-4)) is False
    assert np.allclose(x, VECTOR * (1 + 1e-4), rtol=1e-3) is True
    assert np.allclose(x, VECTOR + 1, 0, 2) is True
    assert (
        np.allclose(tj.asarray([3], dtype="uint8"), tj.asarray([4], dtype="uint8"))
        is False
    )


def test_numpy_testing_takes_tensors() -> None:
    x = tj.asarray(MATRIX)
    np.testing.assert_allclose(x, MATRIX)
    np.testing.assert_array_equal(x, x)
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(x, MATRIX + 1)


# Refusals

REFUSED: dict[str, Case] = {
    "np.nanquantile": lambda x: np.nanquantile(x, 0.5),
    "np.nanpercentile": lambda x: np.nanpercentile(x, 50),
    "np.histogram2d": lambda x: np.histogram2d(x, x),
    "np.linspace": lambda x: np.linspace(x, 1.0),
    "np.apply_along_axis": lambda x: np.apply_along_axis(sum, 0, x),
    "np.block": lambda x: np.block([x, x]),
    "np.poly": lambda x: np.poly(x),
    "np.linalg.tensorinv": lambda x: np.linalg.tensorinv(x),
    "np.copyto": lambda x: np.copyto(np.zeros(3), x),
    "np.put": lambda x: np.put(np.zeros(3), [0], x),
    "np.putmask": lambda x: np.putmask(np.zeros(3), [True] * 3, x),
    "np.put_along_axis": lambda x: np.put_along_axis(np.zeros(3), [0, 1, 2], x, 0),
    "np.meshgrid: takes no like=": (
        lambda x: x.__array_function__(np.meshgrid, (), (x,), {"like": 0})
    ),
    "np.where(condition)": lambda x: np.where(x > 0),
    "np.spacing": lambda x: np.spacing(x),
    "np.fmax": lambda x: np.fmax(VECTOR, x),
    "np.fmin": lambda x: np.fmin(x, 2),
    "np.float_power": lambda x: np.float_power(x, 2.0),
    "np.gcd": lambda x: np.gcd(x, 2),
    "np.add.outer": lambda x: np.add.outer(x, x),
    "np.add.accumulate": lambda x: np.add.accumulate(x),
    "np.add.reduceat": lambda x: np.add.reduceat(x, [0, 1]),
    "np.add.at": lambda x: np.add.at(np.zeros(3), [0, 1, 2], x),
    "np.subtract.reduce": lambda x: np.subtract.reduce(x),
    "np.sin: takes no out=": lambda x: np.sin(x, out=np.zeros(3)),
    "np.cos: takes no out=": lambda x: np.cos(VECTOR, out=x),
    "np.sin: takes no dtype=": lambda x: np.sin(x, dtype="float64"),
    "np.sin: takes no where=": lambda x: np.sin(x, where=VECTOR > 0),
    "np.exp: takes no where=": lambda x: np.exp(VECTOR, where=x > 0),
    "np.sin: takes no casting=": lambda x: np.sin(x, casting="unsafe"),
    "np.matmul: takes no axes=": lambda x: np.matmul(x, x, axes=[0, 0, ()]),
    "np.sum: takes no out=": lambda x: np.sum(x, 0, None, np.zeros(())),
    "np.max: takes no out=": lambda x: np.max(x, out=np.zeros(())),
    "np.sum: takes no initial=": lambda x: np.sum(x, initial=1.0),
    "np.mean: takes no where=": lambda x: np.mean(x, where=x > 0),
    "np.sum: takes no argument 6": lambda x: np.sum(x, 0, None, None, True, 1.0),
    "np.add.reduce: takes no initial=": lambda x: np.add.reduce(x, initial=1.0),
    "np.maximum.reduce: takes no dtype=": (
        lambda x: np.maximum.reduce(x, dtype="float32")
    ),
    "np.ravel: takes no order=": lambda x: np.ravel(x, order="F"),
    "np.reshape: takes no order=": lambda x: np.reshape(x, (3, 1), "F"),
    "np.pad: takes no mode='mean'": lambda x: np.pad(x, 1, mode="mean"),
    "np.pad: takes no stat_length=": lambda x: np.pad(x, 1, stat_length=2),
    "np.take: takes no mode='clip'": lambda x: np.take(x, [9], mode="clip"),
    "np.concatenate: takes no casting=": (
        lambda x: np.concatenate([x, x], casting="unsafe")
    ),
}


@pytest.mark.parametrize(("name", "call"), REFUSED.items(), ids=REFUSED)
def test_what_has_no_meaning_is_refused_by_name(name: str, call: Case) -> None:
    for x in (tj.asarray(VECTOR), tj.Variable(VECTOR)):
        with pytest.raises(tj.UnsupportedError) as caught:
            call(x)
        assert isinstance(caught.value, TypeError)
        assert str(caught.value).startswith(name)
        assert caught.value.help
        assert "test_numpy_protocol.py" in str(caught.value), "names the user's line"


def test_the_way_out_is_shown() -> None:
    with pytest.raises(tj.UnsupportedError, match=r"write np\.nanquantile\(x\.n"):
        np.nanquantile(tj.asarray(VECTOR), 0.5)
    with pytest.raises(tj.UnsupportedError, match=r"pass x\.numpy\(\)"):
        np.copyto(np.zeros(3), tj.asarray(VECTOR))


def test_an_array_is_not_changed_in_place() -> None:
    a, x = VECTOR.copy(), tj.asarray(VECTOR)
    with pytest.raises(tj.UnsupportedError, match=r"np\.add: .*(?s:.*)a = a \+ x"):
        a += x
    with pytest.raises(tj.UnsupportedError, match=r"np\.multiply: an array cannot"):
        a *= tj.Variable(VECTOR)
    m = np.eye(3)
    with pytest.raises(tj.UnsupportedError, match=r"np\.matmul: an array cannot"):
        m @= tj.asarray(m)
    np.testing.assert_array_equal(a, VECTOR)


def test_what_numpy_refuses_stays_refused() -> None:
    x = tj.asarray(VECTOR)
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        np.sum(x, axes=0)
    with pytest.raises(TypeError):
        np.add(x, None)
    with pytest.raises(TypeError):
        np.equal(x, "text")
    with pytest.raises(TypeError):
        np.array([1, None], dtype=object) * x
    with pytest.raises(ValueError, match=r"moveaxis: moves 2 axes"):
        np.moveaxis(tj.asarray(CUBE), [0, 1], 0)
    with pytest.raises(IndexError, match="axis 5"):
        np.sum(x, axis=5)


def test_dot_and_inner_cross_the_axes_of_high_ranks() -> None:
    x, y = tj.asarray(CUBE), np.ones((2, CUBE.shape[-1], 5))
    np.testing.assert_allclose(np.dot(x, y), np.dot(CUBE, y), rtol=1e-6)
    found = np.inner(CUBE, np.transpose(x, (1, 0, 2)))
    expected = np.inner(CUBE, np.transpose(CUBE, (1, 0, 2)))
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_every_numpy_function_works_or_names_itself() -> None:
    """No function that NumPy dispatches slips through with a bare error."""
    functions = [
        f
        for module in (np, np.linalg, np.fft)
        for name, f in vars(module).items()
        if not name.startswith("_") and callable(f) and hasattr(f, "_implementation")
    ]
    assert len(functions) > 200
    for function in functions:
        if table.row_of(function) or function in protocol.OUTPUT:
            continue
        name = table.function_name(function)
        with pytest.raises(tj.UnsupportedError) as caught:
            tj.asarray(VECTOR).__array_function__(function, (), (), {})
        assert str(caught.value).startswith(f"{name}: ")
        assert eval(name) is function or name.rpartition(".")[2] == function.__name__


def test_every_ufunc_works_or_names_itself() -> None:
    ufuncs = {f for f in vars(np).values() if isinstance(f, np.ufunc)}
    assert len(ufuncs) > 80
    for ufunc in ufuncs - set(protocol.UFUNCS):
        with pytest.raises(tj.UnsupportedError) as caught:
            ufunc(*[tj.asarray(VECTOR)] * ufunc.nin)
        assert str(caught.value).startswith(f"np.{ufunc.__name__}: ")


def test_what_tapejit_has_numpy_reaches() -> None:
    """A function of the same name in both has a row: np.f(x) is tj.f(x)."""
    rows = {*table.FUNCTIONS, *protocol.UFUNCS}
    for name in tj.__all__:
        ours = getattr(tj, name)
        theirs = getattr(np, name, None)
        if not callable(ours) or not (
            isinstance(theirs, np.ufunc) or hasattr(theirs, "_implementation")
        ):
            continue
        # np.linspace takes numbers alone, np.put_along_axis writes into its argument,
        # np.save has a format of its own.
        is_other = name in ("linspace", "put_along_axis", "save")
        assert theirs in rows or is_other, f"numpy_protocol needs np.{name}"


def test_rows_follow_numpys_signatures() -> None:
    """Positional arguments are named by NumPy's order, which `inspect` knows."""
    import inspect

    for function, row in table.FUNCTIONS.items():
        if row.is_variadic:
            continue
        try:
            signature = inspect.signature(function)
        except ValueError:  # older NumPy has no signatures for functions in C
            continue
        theirs = [
            name
            for name, parameter in signature.parameters.items()
            if parameter.kind
            in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        ]
        ours = row.names[: len(theirs)]
        assert ours == theirs[: len(ours)], function.__name__


# Values that go over to NumPy, and back


def test_asarray_of_a_tensor_is_read_only() -> None:
    for x in (tj.asarray(VECTOR), tj.Variable(VECTOR)):
        array = np.asarray(x)
        assert not array.flags.writeable
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1.0
        copy = np.array(x)
        copy[0] = 99.0
        np.testing.assert_array_equal(x, VECTOR)


def test_numpy_gives_a_copy() -> None:
    x = tj.asarray(VECTOR)
    x.numpy()[0] = 99.0
    np.testing.assert_array_equal(x, VECTOR)


def test_lists_of_tensors_become_numeric_arrays() -> None:
    scalars = [tj.asarray(1.0), tj.Variable(2.0), 3.0]
    assert np.array(scalars).dtype.kind == "f"
    np.testing.assert_array_equal(np.array(scalars), [1.0, 2.0, 3.0])
    rows = np.array([tj.asarray([1, 2]), tj.asarray([3, 4])])
    assert rows.dtype == np.int32
    np.testing.assert_array_equal(rows, [[1, 2], [3, 4]])
    with pytest.raises(ValueError, match="inhomogeneous"):
        np.array([tj.asarray([1, 2]), tj.asarray([3])])


def test_a_list_that_went_through_numpy_is_explained() -> None:
    x = tj.Variable(VECTOR)
    with tj.GradientTape() as tape:
        y = tj.sum(tj.asarray(np.array([x * 2, x * 3])))
    assert "NumPy" in tape.why_none(y, x)


def test_later_changes_of_an_operand_are_not_seen() -> None:
    a, x = VECTOR.copy(), tj.Variable(VECTOR)
    with tj.GradientTape() as tape:
        y = a * x
        z = np.multiply(x, a)
        joined = np.concatenate([a, x])
        a[:] = 99.0
    np.testing.assert_array_equal(y, VECTOR * VECTOR)
    np.testing.assert_array_equal(joined, np.concatenate([VECTOR, VECTOR]))
    gradient = tape.gradient([y, z], x)
    np.testing.assert_array_equal(gradient, 2 * VECTOR)


def test_later_changes_are_not_seen_outside_a_tape() -> None:
    a, mask = VECTOR.copy(), np.array([True, True, False])
    outcomes = [
        np.where(mask, a, tj.asarray(VECTOR)),
        np.positive(tj.asarray(VECTOR) + a * 0),
        np.full_like(tj.asarray(VECTOR), a),
        np.maximum(a, tj.asarray(VECTOR)),
    ]
    before = [x.numpy() for x in outcomes]
    a[:] = 99.0
    for x, value in zip(outcomes, before, strict=True):
        np.testing.assert_array_equal(x, value)


def test_writing_tensors_to_files_and_text() -> None:
    x, file = tj.asarray(VECTOR), io.BytesIO()
    np.savez(file, w=x, v=tj.Variable(MATRIX))
    file.seek(0)
    with np.load(file) as saved:
        np.testing.assert_array_equal(saved["w"], VECTOR)
        np.testing.assert_array_equal(saved["v"], MATRIX)
    file = io.BytesIO()
    np.save(file, x)
    file.seek(0)
    np.testing.assert_array_equal(np.load(file), VECTOR)
    assert np.array2string(x, precision=1) == np.array2string(VECTOR, precision=1)


# Dtypes and warnings


def test_numpy_scalars_are_weak_on_both_sides() -> None:
    x = tj.asarray(np.float32([0.1, 0.2]))
    assert (np.float64(2) * x).dtype == np.float32
    assert (np.sqrt(2.0) + x).dtype == np.float32
    assert np.multiply(np.float64(2), x).dtype == np.float32
    assert (np.array([2.0, 2.0]) * x).dtype == np.float64
    assert (np.array(2.0) * x).dtype == np.float64


def test_comparing_with_a_scalar_gives_the_same_on_both_sides() -> None:
    x = tj.asarray(np.float32([0.1]))
    assert bool(x == np.float64(0.1))
    assert bool(np.float64(0.1) == x)
    assert bool(np.float64(0.1) >= x)
    assert not bool(np.less(np.float64(0.1), x))


def test_no_runtime_warnings() -> None:
    x = tj.asarray([0.0, -1.0, 1e300], dtype="float64")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.log(x)
        np.sqrt(x)
        np.exp(x)
        VECTOR / x
        np.array([0.0, 1.0, 2.0]) / x
        np.multiply.reduce(x * x)
        np.divide(tj.asarray([1, 2, 0]), np.array([0, 0, 0]))
        np.isclose(x / 0, x / 0)
    with np.errstate(all="raise"):
        assert np.isinf(np.log(x)[0])


def test_special_functions_of_scipy() -> None:
    special = pytest.importorskip("scipy.special")
    x = tj.Variable(VECTOR)
    with tj.GradientTape() as tape:
        y = special.expit(x)
    np.testing.assert_allclose(y, special.expit(VECTOR), rtol=1e-14)
    np.testing.assert_allclose(tape.gradient(y, x), (y * (1 - y)).numpy(), rtol=1e-14)
    np.testing.assert_allclose(special.erf(x), special.erf(VECTOR), rtol=1e-14)
    with pytest.raises(tj.UnsupportedError, match=r"scipy\.special\.gamma"):
        special.gamma(x)


def test_a_ufunc_of_the_user_is_refused_by_name() -> None:
    halve = np.frompyfunc(lambda x: x / 2, 1, 1)
    with pytest.raises(tj.UnsupportedError, match="not a function of tensors"):
        halve(tj.asarray(VECTOR))


def test_whether_memory_is_shared_is_answered() -> None:
    array = np.arange(4.0)
    shared = tj.asarray(array, copy=False)
    assert np.may_share_memory(shared, array)
    assert np.shares_memory(array, shared)
    assert not np.may_share_memory(tj.asarray(array), array)
