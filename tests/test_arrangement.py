"""Movement: every function rearranges as NumPy does, and differentiates as reading."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from composed import (
    Composed,
    assert_derivatives,
    assert_mapped_is_a_loop,
    assert_refused,
    assert_same,
    assert_values_are_numpys,
)
from hypothesis import given
from hypothesis import strategies as st

import tapejit as tj

V = np.array([0.5, -0.0, np.pi, -3.0])
M = np.array([[0.5, 1.5, -2.0], [3.0, -0.25, 1.0]])
C = np.linspace(-1.0, 1.0, 24).reshape(2, 3, 4)
Z = V + 1j * V[::-1]
INTEGERS = np.array([[3, 1, 2], [6, 5, 4]])
EMPTY = np.zeros((0, 3))
ONE = np.array(2.5)
DEEP = np.arange(12.0).reshape(2, 3, 2)

CASES: dict[str, Composed] = {
    "moveaxis": Composed(
        lambda x: tj.moveaxis(x, 0, -1), (C,), lambda x: np.moveaxis(x, 0, -1)
    ),
    "moveaxis several": Composed(
        lambda x: tj.moveaxis(x, (0, 1), (-1, 0)),
        (C,),
        lambda x: np.moveaxis(x, (0, 1), (-1, 0)),
    ),
    "swapaxes": Composed(
        lambda x: tj.swapaxes(x, 0, -1), (C,), lambda x: np.swapaxes(x, 0, -1)
    ),
    **{
        f"rot90 {k}": Composed(
            lambda x, k=k: tj.rot90(x, k, (1, 2)),
            (C,),
            lambda x, k=k: np.rot90(x, k, (1, 2)),
        )
        for k in range(-1, 5)
    },
    "rot90 backwards": Composed(
        lambda x: tj.rot90(x, axes=(1, 0)), (M,), lambda x: np.rot90(x, axes=(1, 0))
    ),
    "roll": Composed(lambda x: tj.roll(x, 1), (V,), lambda x: np.roll(x, 1)),
    "roll flat": Composed(lambda x: tj.roll(x, -2), (M,), lambda x: np.roll(x, -2)),
    "roll axis": Composed(
        lambda x: tj.roll(x, 7, axis=1), (M,), lambda x: np.roll(x, 7, axis=1)
    ),
    "roll axes": Composed(
        lambda x: tj.roll(x, (1, -1), axis=(0, 2)),
        (C,),
        lambda x: np.roll(x, (1, -1), axis=(0, 2)),
    ),
    "roll one shift": Composed(
        lambda x: tj.roll(x, 1, axis=(1, 1, 2)),
        (C,),
        lambda x: np.roll(x, 1, axis=(1, 1, 2)),
    ),
    "roll many shifts": Composed(
        lambda x: tj.roll(x, (1, 1)), (M,), lambda x: np.roll(x, (1, 1))
    ),
    "roll nothing": Composed(
        lambda x: tj.roll(x, 5, axis=0), (EMPTY,), lambda x: np.roll(x, 5, axis=0)
    ),
    "roll scalar": Composed(lambda x: tj.roll(x, 5), (ONE,), lambda x: np.roll(x, 5)),
    "tile": Composed(lambda x: tj.tile(x, 3), (M,), lambda x: np.tile(x, 3)),
    "tile more axes": Composed(
        lambda x: tj.tile(x, (2, 1, 2)), (M,), lambda x: np.tile(x, (2, 1, 2))
    ),
    "tile fewer axes": Composed(
        lambda x: tj.tile(x, (2,)), (C,), lambda x: np.tile(x, (2,))
    ),
    "tile once": Composed(
        lambda x: tj.tile(x, (1, 1, 1)), (M,), lambda x: np.tile(x, (1, 1, 1))
    ),
    "tile never": Composed(
        lambda x: tj.tile(x, (0, 2)), (M,), lambda x: np.tile(x, (0, 2))
    ),
    "tile scalar": Composed(lambda x: tj.tile(x, 4), (ONE,), lambda x: np.tile(x, 4)),
    "tile complex": Composed(lambda x: tj.tile(x, 2), (Z,), lambda x: np.tile(x, 2)),
    "repeat": Composed(lambda x: tj.repeat(x, 2), (M,), lambda x: np.repeat(x, 2)),
    "repeat axis": Composed(
        lambda x: tj.repeat(x, 3, axis=1), (C,), lambda x: np.repeat(x, 3, axis=1)
    ),
    "repeat each": Composed(
        lambda x: tj.repeat(x, [2, 0, 1], axis=-1),
        (M,),
        lambda x: np.repeat(x, [2, 0, 1], axis=-1),
    ),
    "repeat one for all": Composed(
        lambda x: tj.repeat(x, [2], axis=0), (M,), lambda x: np.repeat(x, [2], axis=0)
    ),
    "repeat never": Composed(
        lambda x: tj.repeat(x, 0, axis=0), (M,), lambda x: np.repeat(x, 0, axis=0)
    ),
    "repeat scalar": Composed(
        lambda x: tj.repeat(x, 3), (ONE,), lambda x: np.repeat(x, 3)
    ),
    "unstack": Composed(lambda x: tj.unstack(x), (M,), lambda x: np.unstack(x)),
    "unstack axis": Composed(
        lambda x: tj.unstack(x, axis=-1), (C,), lambda x: np.unstack(x, axis=-1)
    ),
    "unstack nothing": Composed(
        lambda x: tj.unstack(x), (EMPTY,), lambda x: np.unstack(x)
    ),
    "split": Composed(lambda x: tj.split(x, 2), (V,), lambda x: np.split(x, 2)),
    "split axis": Composed(
        lambda x: tj.split(x, 3, axis=1), (C,), lambda x: np.split(x, 3, axis=1)
    ),
    "split at": Composed(
        lambda x: tj.split(x, [1, 3]), (V,), lambda x: np.split(x, [1, 3])
    ),
    "split oddly": Composed(
        lambda x: tj.split(x, [3, 1, -1, 9]),
        (V,),
        lambda x: np.split(x, [3, 1, -1, 9]),
    ),
    "array_split": Composed(
        lambda x: tj.array_split(x, 3), (V,), lambda x: np.array_split(x, 3)
    ),
    "array_split more than there are": Composed(
        lambda x: tj.array_split(x, 6), (V,), lambda x: np.array_split(x, 6)
    ),
    "vsplit": Composed(lambda x: tj.vsplit(x, 2), (M,), lambda x: np.vsplit(x, 2)),
    "hsplit": Composed(lambda x: tj.hsplit(x, [1]), (M,), lambda x: np.hsplit(x, [1])),
    "hsplit vector": Composed(
        lambda x: tj.hsplit(x, 2), (V,), lambda x: np.hsplit(x, 2)
    ),
    "dsplit": Composed(lambda x: tj.dsplit(x, 2), (DEEP,), lambda x: np.dsplit(x, 2)),
    "ravel": Composed(lambda x: tj.ravel(x), (C,), lambda x: np.ravel(x)),
    "ravel nothing": Composed(lambda x: tj.ravel(x), (EMPTY,), lambda x: np.ravel(x)),
    "ravel integers": Composed(
        lambda x: tj.ravel(x), (INTEGERS,), lambda x: np.ravel(x)
    ),
    **{
        f"atleast_{rank}d of rank {x.ndim}": Composed(
            getattr(tj, f"atleast_{rank}d"), (x,), getattr(np, f"atleast_{rank}d")
        )
        for rank in (1, 2, 3)
        for x in (ONE, V, M, C)
    },
    "atleast several": Composed(
        lambda x, y: tj.atleast_2d(x, y), (V, M), lambda x, y: np.atleast_2d(x, y)
    ),
    "vstack": Composed(
        lambda x, y: tj.vstack([x, y]), (V[:3], M), lambda x, y: np.vstack([x, y])
    ),
    "hstack": Composed(
        lambda x, y: tj.hstack([x, y]), (M, M), lambda x, y: np.hstack([x, y])
    ),
    "hstack vectors": Composed(
        lambda x, y: tj.hstack([x, y]), (V, ONE), lambda x, y: np.hstack([x, y])
    ),
    "dstack": Composed(
        lambda x, y: tj.dstack([x, y]), (V, V), lambda x, y: np.dstack([x, y])
    ),
    "dstack matrices": Composed(
        lambda x, y: tj.dstack([x, y]),
        (M, DEEP.swapaxes(0, 2)[:, :, :1].reshape(2, 3)),
        lambda x, y: np.dstack([x, y]),
    ),
    "column_stack": Composed(
        lambda x, y: tj.column_stack([x, y]),
        (V[:2], M),
        lambda x, y: np.column_stack([x, y]),
    ),
    "column_stack mixed": Composed(
        lambda x, y: tj.column_stack([x, y]),
        (V, V * 2),
        lambda x, y: np.column_stack([x, y]),
    ),
    "append": Composed(
        lambda x, y: tj.append(x, y), (M, V), lambda x, y: np.append(x, y)
    ),
    "append axis": Composed(
        lambda x, y: tj.append(x, y, axis=0),
        (M, M[:1]),
        lambda x, y: np.append(x, y, axis=0),
    ),
    "broadcast_arrays": Composed(
        lambda x, y: tj.broadcast_arrays(x, y),
        (V[:, None], M[0]),
        lambda x, y: np.broadcast_arrays(x, y),
    ),
    "meshgrid": Composed(
        lambda x, y: tj.meshgrid(x, y), (V, M[0]), lambda x, y: np.meshgrid(x, y)
    ),
    "meshgrid ij": Composed(
        lambda x, y, z: tj.meshgrid(x, y, z, indexing="ij"),
        (V, M[0], M[1, :2]),
        lambda x, y, z: np.meshgrid(x, y, z, indexing="ij"),
    ),
    "meshgrid sparse": Composed(
        lambda x, y, z: tj.meshgrid(x, y, z, sparse=True),
        (V, M[0], M[1, :2]),
        lambda x, y, z: np.meshgrid(x, y, z, sparse=True, copy=True),
    ),
    "meshgrid of one": Composed(
        lambda x: tj.meshgrid(x), (V,), lambda x: np.meshgrid(x)
    ),
    "meshgrid of numbers": Composed(
        lambda x, y: tj.meshgrid(x, y), (ONE, V), lambda x, y: np.meshgrid(x, y)
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_values_are_numpys(case: Composed) -> None:
    assert_values_are_numpys(case)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_derivatives_are_those_of_finite_differences(case: Composed) -> None:
    assert_derivatives(case)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_mapped_call_is_a_loop_of_calls(case: Composed) -> None:
    assert_mapped_is_a_loop(case, np.random.default_rng(0))


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", "float16", "complex64"])
def test_every_dtype_is_moved(dtype: str) -> None:
    array = np.arange(6).reshape(2, 3).astype(dtype)
    x = tj.asarray(array)
    assert_same(tj.roll(x, 1, axis=1), np.roll(array, 1, axis=1))
    assert_same(tj.tile(x, (2, 2)), np.tile(array, (2, 2)))
    assert_same(tj.repeat(x, [1, 2], axis=0), np.repeat(array, [1, 2], axis=0))
    assert_same(tj.rot90(x), np.rot90(array))
    assert_same(tj.split(x, 3, axis=1), np.split(array, 3, axis=1))


@given(
    st.integers(0, 5),
    st.one_of(st.integers(-6, 6), st.lists(st.integers(-7, 7), max_size=4)),
)
def test_array_split_cuts_where_numpy_does(size: int, given_as: Any) -> None:
    array = np.arange(float(size))
    try:
        expected = np.array_split(array, given_as)
    except ValueError:
        with pytest.raises(ValueError):
            tj.array_split(array, given_as)
        return
    assert_same(tj.array_split(array, given_as), expected)


@given(st.data())
def test_roll_and_tile_and_rot90_of_any_shape(data: Any) -> None:
    shape = data.draw(st.lists(st.integers(0, 3), min_size=2, max_size=3))
    array = np.arange(float(np.prod(shape))).reshape(shape)
    axes = st.integers(-len(shape), len(shape) - 1)
    shift, axis = data.draw(st.integers(-9, 9)), data.draw(axes)
    assert_same(tj.roll(array, shift, axis=axis), np.roll(array, shift, axis=axis))
    counts = data.draw(st.lists(st.integers(0, 3), max_size=4))
    assert_same(tj.tile(array, counts), np.tile(array, counts))
    count = data.draw(st.integers(0, 3))
    assert_same(tj.repeat(array, count, axis=axis), np.repeat(array, count, axis))
    plane, k = data.draw(st.permutations(range(len(shape)))), data.draw(axes)
    assert_same(tj.rot90(array, k, plane[:2]), np.rot90(array, k, plane[:2]))


def test_broadcast_shapes() -> None:
    assert tj.broadcast_shapes() == ()
    assert tj.broadcast_shapes((2, 1), 3, (1, 1, 1)) == (1, 2, 3)
    with pytest.raises(tj.ShapeError, match=r"^broadcast_shapes: .*\(2, 3\).*\(2,\)"):
        tj.broadcast_shapes((2, 3), (2,))


def test_parts_that_are_not_used_receive_zeros() -> None:
    x = tj.Variable(V)
    with tj.GradientTape() as tape:
        first, _ = tj.split(x, [1])
    assert tape.gradient(first, x).tolist() == [1.0, 0.0, 0.0, 0.0]


def test_the_number_of_repeats_may_be_a_tensor_but_not_a_traced_one() -> None:
    x, counts = tj.asarray(V), tj.asarray([1, 0, 2, 1])
    assert_same(tj.repeat(x, counts), np.repeat(V, [1, 0, 2, 1]))
    with pytest.raises(TypeError, match=r"repeat: the counts .* being traced"):
        tj.vmap(lambda c: tj.repeat(x, c))(tj.asarray([[1, 0, 2, 1]]))


REFUSED = {
    "moveaxis: moves 2 axes to 1": lambda x: tj.moveaxis(x, (0, 1), 0),
    "moveaxis: an axis is given twice": lambda x: tj.moveaxis(x, (0, 0), (0, 1)),
    "moveaxis: axis 5": lambda x: tj.moveaxis(x, 5, 0),
    "swapaxes: axis 2": lambda x: tj.swapaxes(x, 0, 2),
    "rot90: turns in a plane": lambda x: tj.rot90(x, 1, (0, 0)),
    "roll: 2 shifts for 3 axes": lambda x: tj.roll(x, (1, 2), axis=(0, 1, 0)),
    "roll: axis 4": lambda x: tj.roll(x, 1, axis=4),
    "tile: a count is negative": lambda x: tj.tile(x, -1),
    "repeat: a count is negative": lambda x: tj.repeat(x, -1),
    "repeat: counts of shape": lambda x: tj.repeat(x, [1, 2, 3], axis=0),
    "repeat: the counts are integers": lambda x: tj.repeat(x, 1.5),
    "split: 3 elements do not divide": lambda x: tj.split(x, 2, axis=1),
    "array_split: cannot make 0 parts": lambda x: tj.array_split(x, 0),
    "vsplit: takes rank 2": lambda x: tj.vsplit(x[0], 1),
    "hsplit: takes rank 1": lambda x: tj.hsplit(x[0, 0], 1),
    "dsplit: takes rank 3": lambda x: tj.dsplit(x, 1),
    "unstack: axis 2": lambda x: tj.unstack(x, axis=2),
    "meshgrid: takes vectors": lambda x: tj.meshgrid(x),
    "meshgrid: indexing": lambda x: tj.meshgrid(x[0], indexing="yx"),
    "broadcast_arrays: cannot broadcast": lambda x: tj.broadcast_arrays(x, x.T),
}


@pytest.mark.parametrize(("message", "call"), REFUSED.items(), ids=REFUSED)
def test_what_is_refused_names_the_function(message: str, call: Any) -> None:
    assert_refused(lambda: call(tj.asarray(M)), message, ValueError, TypeError)
