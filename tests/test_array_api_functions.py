"""The array API standard 2025.12: what its functions give, family by family.

Special values have a file of their own, `test_array_api_special_values.py`.

Start reading at the section of a family.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tapejit as tj

inf, nan = math.inf, math.nan


@pytest.mark.parametrize(
    ("name", "wanted"), [("__pow__", [8.0]), ("__rpow__", [9.0]), ("__rsub__", [-1.0])]
)
def test_reflected_operators_exchange_their_operands(
    name: str, wanted: list[float]
) -> None:
    x = tj.asarray([2.0])
    other = {"__pow__": 3, "__rpow__": 3, "__rsub__": 1}[name]
    assert getattr(x, name)(other).tolist() == wanted


@pytest.mark.parametrize("name", ["floor", "ceil", "trunc", "round", "abs", "positive"])
def test_integers_are_their_own_rounding(name: str) -> None:
    for dtype in ("int8", "uint16", "int64"):
        out = getattr(tj, name)(tj.asarray([0, 3], dtype=dtype))
        assert (out.dtype.name, out.tolist()) == (dtype, [0, 3])


def test_parts_of_complex_numbers_are_real() -> None:
    x = tj.asarray([3 + 4j], dtype=tj.complex128)
    assert tj.real(x).dtype == tj.imag(x).dtype == tj.abs(x).dtype == tj.float64
    assert (tj.real(x).item(), tj.imag(x).item(), tj.abs(x).item()) == (3.0, 4.0, 5.0)
    assert tj.conj(x).item() == 3 - 4j
    np.testing.assert_allclose(tj.sign(x).item(), 0.6 + 0.8j)


# clip and where


def test_clip_keeps_the_dtype_of_its_operand() -> None:
    x = tj.asarray([1.0, 5.0])
    bounds = tj.asarray([2.0, 2.0], dtype=tj.float64)
    assert tj.clip(x, bounds).dtype == tj.float32
    assert tj.clip(x, bounds, 3).tolist() == [2.0, 3.0]
    small = tj.asarray([1, 100], dtype=tj.int8)
    out = tj.clip(small, max=tj.asarray([50], dtype=tj.int64))
    assert (out.dtype, out.tolist()) == (tj.int8, [1, 50])
    assert tj.clip(x).tolist() == [1.0, 5.0]
    assert tj.clip(x, None, None).dtype == tj.float32
    assert tj.clip(tj.ones((2, 1)), tj.zeros(3), 1).shape == (2, 3)
    assert math.isnan(tj.clip(tj.asarray(nan), 0, 1).item())


def test_where_takes_scalars() -> None:
    condition = tj.asarray([True, False])
    assert tj.where(condition, 1, 2).dtype == tj.int32
    assert tj.where(condition, 1.0, 2.0).dtype == tj.float32
    x = tj.asarray([1, 2], dtype=tj.int8)
    assert tj.where(condition, x, 0).dtype == tj.int8
    out = tj.where(condition, 0.0, tj.asarray([1, 2], dtype=tj.float64))
    assert (out.dtype, out.tolist()) == (tj.float64, [0.0, 2.0])
    assert tj.where(tj.ones((2, 1), dtype=tj.bool), tj.ones(3), 0.0).shape == (2, 3)


# Creation


def test_python_numbers_get_the_default_dtypes() -> None:
    for value, dtype in [
        (True, tj.bool),
        (1, tj.int32),
        (1.0, tj.float32),
        (1j, tj.complex64),
        ([1, 2.5], tj.float32),
        ([True, False], tj.bool),
        ([[1], [2]], tj.int32),
        ([1, 1j], tj.complex64),
        (range(3), tj.int32),
        (2**40, tj.int64),
        (2**63, tj.uint64),
    ]:
        assert tj.asarray(value).dtype == dtype, value
        if not isinstance(value, (list, range)):
            assert tj.full((2,), value).dtype == dtype


def test_asarray_copies_as_told() -> None:
    array = np.zeros(2, np.float32)
    x, shared = tj.asarray(array, copy=True), tj.asarray(array, copy=False)
    array[0] = 1
    assert x.tolist() == [0.0, 0.0]
    assert shared.tolist() == [1.0, 0.0]
    assert tj.asarray(x, copy=True).tolist() == [0.0, 0.0]
    assert tj.asarray(x, dtype=tj.int64).dtype == tj.int64
    for value, dtype in [([1.0], None), (1, None), (x, "int32"), (array, "float64")]:
        with pytest.raises(ValueError, match="copy"):
            tj.asarray(value, copy=False, dtype=dtype)


def test_asarray_reads_buffers() -> None:
    assert tj.asarray(memoryview(b"ab")).tolist() == [97, 98]
    assert tj.asarray(bytearray(b"ab")).dtype == tj.uint8


def test_astype_copies_or_not_and_converts() -> None:
    x = tj.asarray([1.5, -2.5])
    assert tj.astype(x, tj.int32).tolist() == [1, -2]
    assert tj.astype(x, tj.float32, copy=False).tolist() == [1.5, -2.5]
    assert tj.astype(x, tj.float64, device="cpu").dtype == tj.float64
    assert tj.astype(tj.asarray([0, 2]), tj.bool).tolist() == [False, True]
    assert tj.astype(x, tj.complex64).tolist() == [1.5, -2.5]


@pytest.mark.parametrize(
    ("arguments", "dtype"),
    [
        ((3,), "int32"),
        ((5, 0, -2), "int32"),
        ((1, 0), "int32"),
        ((2.0,), "float32"),
        ((0, 1, 0.25), "float32"),
        ((-3, 3), "int32"),
        ((2**62, 2**62 + 3), "int64"),
        ((2**63, 2**63 + 2), "uint64"),
        ((2**64 - 1, 2**64 - 4, -1), "uint64"),
    ],
)
def test_arange_counts_as_python_does(arguments: tuple[Any, ...], dtype: str) -> None:
    out = tj.arange(*arguments)
    assert out.dtype == dtype
    if all(isinstance(x, int) for x in arguments):
        assert out.tolist() == list(range(*arguments))
    else:
        np.testing.assert_array_equal(out.numpy(), np.arange(*arguments))


def test_arange_in_a_dtype() -> None:
    assert tj.arange(3, dtype=tj.float64).dtype == tj.float64
    assert tj.arange(0.5, 4, dtype=tj.int32).shape == (4,)
    big = tj.arange(2**64 - 3, 2**64 - 1, dtype=tj.uint64)
    assert big.tolist() == [2**64 - 3, 2**64 - 2]
    with pytest.raises(ValueError, match="step"):
        tj.arange(0, 3, 0)


def test_linspace() -> None:
    assert tj.linspace(0, 1, 0).shape == (0,)
    assert tj.linspace(2, 1, 1).tolist() == [2.0]
    assert tj.linspace(0, 10, 5, endpoint=False).tolist() == [0.0, 2.0, 4.0, 6.0, 8.0]
    assert tj.linspace(0, 1, 3).dtype == tj.float32
    assert tj.linspace(0, 1j, 3).dtype == tj.complex64
    assert tj.linspace(0, 1, 3, dtype=tj.float64).dtype == tj.float64
    for stop in (0.1, 3e38, -7.3):
        out = tj.linspace(0, stop, 11)
        assert out[-1] == tj.asarray(stop)
        assert out[0] == 0


def test_eye_with_diagonals_anywhere() -> None:
    assert tj.eye(2, 3, k=1).tolist() == [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    assert tj.eye(2, dtype=tj.int8).dtype == tj.int8
    assert tj.eye(0).shape == (0, 0)
    for k in (10**30, -(10**30), 3, -3):
        assert not tj.any(tj.eye(3, k=k))


def test_new_tensors_like_others() -> None:
    x = tj.ones((2, 0), dtype=tj.int16)
    for name in ("zeros_like", "ones_like", "empty_like"):
        out = getattr(tj, name)(x)
        assert (out.shape, out.dtype) == ((2, 0), tj.int16)
        assert getattr(tj, name)(x, dtype=tj.float64).dtype == tj.float64
    assert tj.full_like(x, 3).dtype == tj.int16
    assert tj.zeros(3).shape == (3,)
    assert tj.zeros(()).shape == ()
    assert tj.empty((2, 3), dtype=tj.bool).dtype == tj.bool


def test_meshgrid() -> None:
    x, y = tj.arange(2), tj.arange(3)
    assert [g.shape for g in tj.meshgrid(x, y)] == [(3, 2), (3, 2)]
    assert [g.shape for g in tj.meshgrid(x, y, indexing="ij")] == [(2, 3), (2, 3)]
    assert tj.meshgrid(x, y, indexing="ij")[1].tolist() == [[0, 1, 2], [0, 1, 2]]
    with pytest.raises(ValueError, match="indexing"):
        tj.meshgrid(x, indexing="ab")


@pytest.mark.parametrize("k", [0, 1, -1, 5, 10**20, -(10**20)])
def test_triangles(k: int) -> None:
    x = tj.arange(24)
    matrices = tj.reshape(x, (2, 3, 4))
    clamped = max(min(k, 9), -9)
    lower, upper = tj.tril(matrices, k=k), tj.triu(matrices, k=k)
    assert lower.tolist() == np.tril(matrices.numpy(), clamped).tolist()
    assert upper.tolist() == np.triu(matrices.numpy(), clamped).tolist()
    assert lower.dtype == upper.dtype == tj.int32


# Reductions

SUMS = ("sum", "prod")


@pytest.mark.parametrize("name", [*SUMS, "cumulative_sum", "cumulative_prod"])
def test_integers_accumulate_in_the_default_integer_or_wider(name: str) -> None:
    for given, wanted in [
        ("int8", "int32"),
        ("int16", "int32"),
        ("int32", "int32"),
        ("int64", "int64"),
        ("uint8", "uint32"),
        ("uint16", "uint32"),
        ("uint32", "uint32"),
        ("uint64", "uint64"),
        ("float32", "float32"),
        ("float64", "float64"),
        ("complex64", "complex64"),
    ]:
        function = getattr(tj, name)
        assert function(tj.ones(3, dtype=given)).dtype == wanted
        for dtype in ("int8", "uint16", "float64"):
            if given != "complex64":
                out = function(tj.ones(3, dtype=given), dtype=dtype)
                assert out.dtype == dtype, f"{given} in {dtype}"


def test_sums_do_not_wrap_before_the_result_does() -> None:
    x = tj.full((4,), 100, dtype=tj.int8)
    assert tj.sum(x).item() == 400
    assert tj.prod(x[:2]).item() == 10000
    assert tj.cumulative_sum(x).tolist() == [100, 200, 300, 400]
    assert tj.sum(tj.ones((2, 3), dtype=tj.bool)).item() == 6
    assert tj.sum(x, axis=()).tolist() == [100] * 4
    assert tj.sum(x, axis=()).dtype == tj.int32


@pytest.mark.parametrize(
    "name", ["sum", "prod", "mean", "max", "min", "std", "var", "all", "any"]
)
@pytest.mark.parametrize("axis", [None, 0, -1, (0, 2), (), (0, 1, 2)])
@pytest.mark.parametrize("keepdims", [False, True])
def test_shapes_of_reductions(name: str, axis: Any, keepdims: bool) -> None:
    values = np.arange(24.0).reshape(2, 3, 4)
    out = getattr(tj, name)(tj.asarray(values), axis=axis, keepdims=keepdims)
    wanted = getattr(np, name)(values, axis=axis, keepdims=keepdims)
    assert out.shape == wanted.shape
    np.testing.assert_allclose(out.numpy(), wanted)


def test_reductions_of_nothing() -> None:
    empty = tj.ones((0, 2))
    assert tj.sum(empty).item() == 0
    assert tj.prod(empty, axis=0).tolist() == [1.0, 1.0]
    assert tj.all(empty).item() is True
    assert tj.any(empty).item() is False
    assert math.isnan(tj.mean(empty).item())
    assert tj.count_nonzero(empty, axis=0).tolist() == [0, 0]
    assert tj.max(empty, axis=1).shape == (0,)
    for name in ("max", "min", "argmax", "argmin"):
        with pytest.raises(ValueError, match="empty"):
            getattr(tj, name)(empty, axis=0)


def test_corrections_of_variances() -> None:
    x = tj.asarray([1.0, 2.0, 4.0], dtype=tj.float64)
    for correction in (0, 1, 1.5):
        wanted = np.var(x.numpy(), ddof=correction)
        np.testing.assert_allclose(tj.var(x, correction=correction).item(), wanted)
        np.testing.assert_allclose(tj.std(x, correction=correction).item(), wanted**0.5)


def test_positions_are_int64() -> None:
    x = tj.asarray([[3.0, 1.0], [2.0, 3.0]])
    assert tj.argmax(x).dtype == tj.argmin(x, axis=1).dtype == tj.int64
    assert tj.argmax(x, keepdims=True).shape == (1, 1)
    assert tj.argmax(x, axis=1).tolist() == [0, 1]
    assert tj.argsort(x).dtype == tj.int64
    assert all(part.dtype == tj.int64 for part in tj.nonzero(x))
    assert tj.searchsorted(x[1], x[0]).dtype == tj.int64
    assert tj.count_nonzero(x).dtype == tj.int64


def test_cumulative_results() -> None:
    x = tj.asarray([[1, 2], [3, 4]])
    assert tj.cumulative_sum(x, axis=0).tolist() == [[1, 2], [4, 6]]
    out = tj.cumulative_sum(x, axis=1, include_initial=True)
    assert out.tolist() == [[0, 1, 3], [0, 3, 7]]
    assert tj.cumulative_prod(tj.arange(1, 4), include_initial=True).tolist() == [
        *(1, 1, 2, 6)
    ]
    assert tj.cumulative_sum(tj.ones(0), include_initial=True).tolist() == [0.0]
    with pytest.raises(ValueError, match="axis"):
        tj.cumulative_sum(x)


def test_differences() -> None:
    x = tj.asarray([1, 4, 9, 16])
    assert tj.diff(x).tolist() == [3, 5, 7]
    assert tj.diff(x, n=2).tolist() == [2, 2]
    assert tj.diff(x, n=0).tolist() == [1, 4, 9, 16]
    ends = {"prepend": tj.asarray([0]), "append": tj.asarray([0])}
    assert tj.diff(x, **ends).tolist() == [1, 3, 5, 7, -16]
    assert tj.diff(tj.ones((2, 3)), axis=0).shape == (1, 3)


# Sorting, searching, sets


def test_sorting_is_stable_in_both_directions() -> None:
    x = tj.asarray([1, 0, 1, 0])
    assert tj.argsort(x).tolist() == [1, 3, 0, 2]
    assert tj.argsort(x, descending=True).tolist() == [0, 2, 1, 3]
    assert tj.sort(x, descending=True).tolist() == [1, 1, 0, 0]
    assert tj.sort(tj.asarray([[2, 1], [4, 3]]), axis=0).tolist() == [[2, 1], [4, 3]]
    assert tj.sort(tj.ones((0, 3))).shape == (0, 3)
    values = tj.sort(tj.asarray([nan, 1.0, -inf, 0.0])).tolist()
    assert values[:3] == [-inf, 0.0, 1.0]
    assert math.isnan(values[3])
    top = tj.asarray([3, 200, 0], dtype=tj.uint8)
    assert tj.sort(top, descending=True).tolist() == [200, 3, 0]
    low = tj.asarray([-128, 127], dtype=tj.int8)
    assert tj.argsort(low, descending=True).tolist() == [1, 0]


def test_searchsorted() -> None:
    x = tj.asarray([1.0, 2.0, 2.0, 3.0])
    at = tj.asarray([0.0, 2.0, 5.0])
    assert tj.searchsorted(x, at).tolist() == [0, 1, 4]
    assert tj.searchsorted(x, at, side="right").tolist() == [0, 3, 4]
    assert tj.searchsorted(x[::-1], at, sorter=tj.asarray([3, 2, 1, 0])).tolist() == [
        *(0, 1, 4)
    ]
    assert tj.searchsorted(x, 2.5).item() == 3


def test_positions_of_what_is_not_zero() -> None:
    rows, columns = tj.nonzero(tj.asarray([[1, 0], [0, 2]]))
    assert (rows.tolist(), columns.tolist()) == ([0, 1], [0, 1])
    with pytest.raises(ValueError, match="scalar"):
        tj.nonzero(tj.asarray(1))


def test_sets() -> None:
    x = tj.asarray([[3, 1], [3, 2]])
    found = tj.unique_all(x)
    assert found.values.tolist() == [1, 2, 3]
    assert found.counts.tolist() == [1, 1, 2]
    assert found.indices.tolist() == [1, 3, 0]
    assert found.inverse_indices.shape == x.shape
    assert tj.all(found.values[found.inverse_indices] == x)
    assert tj.unique_values(x).tolist() == [1, 2, 3]
    assert tj.unique_counts(x).counts.tolist() == [1, 1, 2]
    assert tj.unique_inverse(x).inverse_indices.dtype == tj.int64
    distinct = tj.unique_counts(tj.asarray([nan, 1.0, nan, -0.0, 0.0]))
    assert distinct.values.shape == (4,)  # each NaN is its own, the zeros are one
    assert tj.unique_all(tj.ones(0)).values.shape == (0,)


# Shapes

Call = Callable[[], Any]


def test_shapes_of_manipulations() -> None:
    x = tj.reshape(tj.arange(6), (1, 2, 3))
    assert tj.expand_dims(x, axis=-1).shape == (1, 2, 3, 1)
    assert tj.expand_dims(x).shape == (1, 1, 2, 3)
    assert tj.squeeze(x, axis=0).shape == (2, 3)
    assert tj.squeeze(tj.ones((1, 1)), axis=(0, 1)).shape == ()
    assert tj.permute_dims(x, (2, 0, 1)).shape == (3, 1, 2)
    assert tj.moveaxis(x, 0, -1).shape == (2, 3, 1)
    assert tj.moveaxis(x, (0, 1), (1, 0)).shape == (2, 1, 3)
    assert tj.matrix_transpose(x).shape == x.mT.shape == (1, 3, 2)
    assert tj.broadcast_to(x, (4, 2, 3)).shape == (4, 2, 3)
    first, second = tj.broadcast_arrays(tj.ones((2, 1)), tj.ones(3))
    assert first.shape == second.shape == (2, 3)
    assert tj.reshape(x, (3, -1), copy=True).shape == (3, 2)
    assert tj.reshape(x, (-1,), copy=False).shape == (6,)
    assert tj.concat([x, x], axis=None).shape == (12,)
    assert tj.concat([tj.ones((0, 2)), tj.ones((1, 2))]).shape == (1, 2)
    assert tj.stack([x, x], axis=-1).shape == (1, 2, 3, 2)
    assert [part.shape for part in tj.unstack(x, axis=1)] == [(1, 3), (1, 3)]
    assert tj.tile(tj.asarray([1, 2]), (2, 1)).tolist() == [[1, 2], [1, 2]]
    assert tj.tile(tj.asarray([[1, 2]]), (2,)).tolist() == [[1, 2, 1, 2]]
    assert tj.repeat(tj.asarray([1, 2]), 2).tolist() == [1, 1, 2, 2]
    assert tj.repeat(tj.asarray([1, 2]), tj.asarray([0, 2])).tolist() == [2, 2]
    assert tj.repeat(x, 2, axis=0).shape == (2, 2, 3)
    assert tj.flip(tj.arange(3)).tolist() == [2, 1, 0]
    assert tj.flip(x, axis=(0, 2)).tolist() == [[[2, 1, 0], [5, 4, 3]]]


def test_roll() -> None:
    x = tj.reshape(tj.arange(6), (2, 3))
    assert tj.roll(x, 1).tolist() == [[5, 0, 1], [2, 3, 4]]
    assert tj.roll(x, 1, axis=0).tolist() == [[3, 4, 5], [0, 1, 2]]
    assert tj.roll(x, (1, -1), axis=(0, 1)).tolist() == [[4, 5, 3], [1, 2, 0]]
    assert tj.roll(x, 10**20, axis=1).shape == (2, 3)
    assert tj.roll(tj.ones((0,)), 3).shape == (0,)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: tj.expand_dims(tj.ones(2), axis=3), IndexError),
        (lambda: tj.expand_dims(tj.ones(2), axis=-3), IndexError),
        (lambda: tj.squeeze(tj.ones((2, 1)), axis=0), ValueError),
        (lambda: tj.squeeze(tj.ones((2, 1)), axis=2), IndexError),
        (lambda: tj.flip(tj.ones(2), axis=1), IndexError),
        (lambda: tj.roll(tj.ones(2), 1, axis=1), IndexError),
        (lambda: tj.permute_dims(tj.ones((2, 1)), (0, 0)), ValueError),
        (lambda: tj.permute_dims(tj.ones((2, 1)), (0,)), ValueError),
        (lambda: tj.broadcast_to(tj.ones((2, 1)), (3, 1)), ValueError),
        (lambda: tj.broadcast_arrays(tj.ones(2), tj.ones(3)), ValueError),
        (lambda: tj.reshape(tj.ones(4), (-1, -1)), ValueError),
        (lambda: tj.reshape(tj.ones(4), (3,)), ValueError),
        (lambda: tj.concat([tj.ones(2), tj.ones((2, 2))]), ValueError),
        (lambda: tj.concat([]), ValueError),
        (lambda: tj.stack([tj.ones(2), tj.ones(3)]), ValueError),
        (lambda: tj.matrix_transpose(tj.ones(2)), ValueError),
        (lambda: tj.repeat(tj.ones(2), tj.asarray([1, 2, 3])), ValueError),
        (lambda: tj.sum(tj.ones(2), axis=1), IndexError),
        (lambda: tj.sum(tj.ones(2), axis=(0, 0)), ValueError),
        (lambda: tj.matmul(tj.asarray(1.0), tj.ones(2)), ValueError),
        (lambda: tj.matmul(tj.ones((2, 3)), tj.ones((2, 3))), ValueError),
        (lambda: tj.take(tj.ones(2), tj.asarray([2]), axis=0), IndexError),
        (lambda: tj.ones(2)[2], IndexError),
        (lambda: tj.ones(2)[0, 0], IndexError),
        (lambda: tj.ones(2)[tj.asarray([True])], IndexError),
        (lambda: tj.ones(2)[0.5], IndexError),
        (lambda: tj.bitwise_and(tj.ones(2), tj.ones(2)), TypeError),
        (lambda: tj.less(tj.asarray(1j), 2), TypeError),
    ],
)
def test_misuse_raises_the_error_python_programs_expect(
    call: Call, error: type[Exception]
) -> None:
    with pytest.raises(error) as caught:
        call()
    assert isinstance(caught.value, tj.TapejitError)


# Indexing


def test_integer_arrays_index_together_with_integers() -> None:
    x = tj.reshape(tj.arange(24), (2, 3, 4))
    values = x.numpy()
    keys: list[Any] = [
        (tj.asarray([0, 1]), tj.asarray([2, 0]), tj.asarray([1, 1])),
        (tj.asarray([[0], [1]]), tj.asarray([0, 2]), -1),
        (0, tj.asarray([0, -1]), tj.asarray([[3], [0]])),
        (tj.asarray([1, 1, 0]), 2, 3),
        (tj.asarray([], dtype=tj.int64), 0, 0),
        (tj.asarray(1), tj.asarray(2, dtype=tj.uint8), 0),
    ]
    for key in keys:
        plain = tuple(k.numpy() if isinstance(k, tj.Tensor) else k for k in key)
        assert x[key].tolist() == values[plain].tolist()
        assert x[key].shape == values[plain].shape


def test_masks_and_slices_index() -> None:
    x = tj.reshape(tj.arange(6), (2, 3))
    assert x[x > 2].tolist() == [3, 4, 5]
    assert x[tj.asarray([False, True])].tolist() == [[3, 4, 5]]
    assert x[tj.asarray(True)].shape == (1, 2, 3)
    assert x[tj.asarray(False)].shape == (0, 2, 3)
    assert tj.ones(3)[tj.ones(0, dtype=tj.bool)].shape == (0,)
    assert x[..., None].shape == (2, 3, 1)
    assert x[::-1, 1:].tolist() == [[4, 5], [1, 2]]
    assert x[:, 5:].shape == (2, 0)
    assert x[tj.asarray(1) :].tolist() == [[3, 4, 5]]
    assert tj.asarray(3)[()].item() == 3
    assert tj.asarray(3)[...].item() == 3


def test_taking() -> None:
    x = tj.asarray([[1, 2], [3, 4]])
    assert tj.take(x, tj.asarray([1, 0]), axis=1).tolist() == [[2, 1], [4, 3]]
    assert tj.take(x, tj.asarray([-1]), axis=0).tolist() == [[3, 4]]
    assert tj.take(x[0], tj.asarray([1])).tolist() == [2]
    picks = tj.asarray([[0], [1]])
    assert tj.take_along_axis(x, picks).tolist() == [[1], [4]]
    assert tj.take_along_axis(x, tj.asarray([[1, 0]]), axis=0).tolist() == [[3, 2]]


# Linear algebra


def test_one_cutoff_per_matrix_of_a_stack() -> None:
    x = np.random.default_rng(0).standard_normal((4, 3, 2))
    rtol = np.array([0.0, 0.1, 0.5, 0.9])
    for given in (rtol, tj.asarray(rtol)):
        out = tj.linalg.pinv(tj.asarray(x), rtol=given)
        np.testing.assert_allclose(out.numpy(), np.linalg.pinv(x, rtol=rtol))
        rank = tj.linalg.matrix_rank(tj.asarray(x), rtol=given)
        assert rank.tolist() == np.linalg.matrix_rank(x, rtol=rtol).tolist()
    assert tj.linalg.pinv(tj.ones((3, 2)), rtol=rtol).shape == (4, 2, 3)
    assert tj.linalg.pinv(tj.ones((0, 3, 2)), rtol=np.ones(0)).shape == (0, 2, 3)


def test_shapes_and_dtypes_of_linear_algebra() -> None:
    tall = tj.reshape(tj.arange(6, dtype=tj.float64), (3, 2))
    assert tj.linalg.qr(tall, mode="complete").Q.shape == (3, 3)
    assert tj.linalg.svd(tall).U.shape == (3, 3)
    assert tj.linalg.svd(tall, full_matrices=False).U.shape == (3, 2)
    hermitian = tj.asarray([[2.0, 1j], [-1j, 2.0]])
    assert tj.linalg.eigh(hermitian).eigenvalues.dtype == tj.float32
    assert tj.linalg.matrix_norm(hermitian).dtype == tj.float32
    assert tj.linalg.vector_norm(hermitian).dtype == tj.float32
    assert tj.linalg.slogdet(hermitian).logabsdet.dtype == tj.float32
    assert tj.linalg.trace(tj.ones((2, 2), dtype=tj.int8)).dtype == tj.int32
    assert tj.linalg.trace(tj.ones((2, 2)), offset=10**20).item() == 0.0
    assert tj.linalg.diagonal(tj.ones((5, 2, 3)), offset=1).shape == (5, 2)
    assert tj.linalg.solve(tj.eye(2), tj.ones((5, 2, 3))).shape == (5, 2, 3)
    assert tj.linalg.det(tj.ones((0, 0))).item() == 1.0
    assert tj.vecdot(tj.asarray([1j]), tj.asarray([1j])).item() == 1.0
    assert tj.vecdot(tj.ones((2, 3)), tj.ones((2, 3)), axis=-2).shape == (3,)
    assert tj.tensordot(tj.ones((2, 3)), tj.ones((3, 2)), axes=1).shape == (2, 2)
    assert tj.tensordot(tall, tall, axes=((0,), (0,))).shape == (2, 2)
    assert tj.matmul(tj.ones((2, 0)), tj.ones((0, 2))).tolist() == [[0.0] * 2] * 2
    assert tj.linalg.cross(tj.asarray([1, 0, 0]), tj.asarray([0, 1, 0])).tolist() == [
        *(0, 0, 1)
    ]


def test_dtypes_of_fourier_transforms() -> None:
    for real, complex_ in [("float32", "complex64"), ("float64", "complex128")]:
        assert tj.fft.rfft(tj.ones(4, dtype=real)).dtype == complex_
        assert tj.fft.irfft(tj.ones(3, dtype=complex_)).dtype == real
        assert tj.fft.hfft(tj.ones(3, dtype=complex_)).dtype == real
        assert tj.fft.fft(tj.ones(4, dtype=complex_)).dtype == complex_
        assert tj.fft.fftfreq(4, dtype=real).dtype == real
    assert tj.fft.rfftfreq(5).dtype == tj.float32
