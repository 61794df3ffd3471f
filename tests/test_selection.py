"""Selection along axes, by conditions and by place: NumPy's values, exact gradients."""

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
S = np.arange(9.0).reshape(3, 3) - 4.5
C = np.linspace(-1.0, 1.0, 24).reshape(2, 3, 4)
Z = S + 1j * S.T
INTEGERS = np.array([[3, 1, 2], [6, 5, 4]])
EMPTY = np.zeros((0, 3))
ONE = np.array(2.5)
WILD = np.array([[np.inf, np.nan, -0.0], [-np.inf, 1.0, np.nan], [0.0, np.inf, 2.0]])

CASES: dict[str, Composed] = {
    "take_along_axis": Composed(
        lambda x, i: tj.take_along_axis(x, i, axis=1),
        (M, np.array([[2, 0], [-1, 1]])),
        lambda x, i: np.take_along_axis(x, i, axis=1),
    ),
    "take_along_axis last": Composed(
        lambda x, i: tj.take_along_axis(x, i),
        (C, np.zeros((2, 3, 1), np.int64)),
        lambda x, i: np.take_along_axis(x, i, -1),
    ),
    "take_along_axis first": Composed(
        lambda x, i: tj.take_along_axis(x, i, axis=0),
        (M, np.array([[1, 0, 1]])),
        lambda x, i: np.take_along_axis(x, i, axis=0),
    ),
    "take_along_axis shared": Composed(
        lambda x, i: tj.take_along_axis(x, i, axis=1),
        (C, np.array([[[1], [1], [2], [0]]])),
        lambda x, i: np.take_along_axis(x, i, axis=1),
    ),
    "take_along_axis flat": Composed(
        lambda x, i: tj.take_along_axis(x, i, axis=None),
        (M, np.array([5, 0, 0])),
        lambda x, i: np.take_along_axis(x, i, axis=None),
    ),
    "take_along_axis nothing": Composed(
        lambda x, i: tj.take_along_axis(x, i, axis=1),
        (M, np.zeros((2, 0), np.int64)),
        lambda x, i: np.take_along_axis(x, i, axis=1),
    ),
    "select": Composed(
        lambda x: tj.select([x < 0, x < 1], [x * x, x * 3.0], x),
        (S,),
        lambda x: np.select([x < 0, x < 1], [x * x, x * 3.0], x),
    ),
    "select default": Composed(
        lambda x, y: tj.select([x > 0], [y]),
        (M, V[:3]),
        lambda x, y: np.select([x > 0], [y]),
    ),
    "select by name": Composed(
        lambda x: tj.select([x > 0], [x], default=7.0),
        (M,),
        lambda x: np.select(condlist=[x > 0], choicelist=[x], default=7.0),
    ),
    "compress": Composed(
        lambda x: tj.compress([True, False, True], x, axis=1),
        (M,),
        lambda x: np.compress([True, False, True], x, axis=1),
    ),
    "compress short": Composed(
        lambda x: tj.compress([False, True], x),
        (M,),
        lambda x: np.compress([False, True], x),
    ),
    **{
        f"{name} {k} of {x.shape}": Composed(
            lambda x, name=name, k=k: getattr(tj, name)(x, k=k),
            (x,),
            lambda x, name=name, k=k: getattr(np, name)(x, k),
        )
        for name in ("tril", "triu")
        for k in (-2, 0, 1, 5)
        for x in (M, C)
    },
    "tril complex": Composed(lambda x: tj.tril(x), (Z,), lambda x: np.tril(x)),
    "triu integers": Composed(lambda x: tj.triu(x), (INTEGERS,), lambda x: np.triu(x)),
    "tril nothing": Composed(lambda x: tj.tril(x), (EMPTY,), lambda x: np.tril(x)),
    **{
        f"diagonal {offset} of {x.shape}": Composed(
            lambda x, k=offset: tj.diagonal(x, k),
            (x,),
            lambda x, k=offset: np.diagonal(x, k),
        )
        for offset in (-3, -1, 0, 1, 4)
        for x in (M, S, C)
    },
    "diagonal axes": Composed(
        lambda x: tj.diagonal(x, axis1=2, axis2=0),
        (C,),
        lambda x: np.diagonal(x, axis1=2, axis2=0),
    ),
    "diagonal complex": Composed(
        lambda x: tj.diagonal(x, -1), (Z,), lambda x: np.diagonal(x, -1)
    ),
    "diagonal nothing": Composed(
        lambda x: tj.diagonal(x), (EMPTY,), lambda x: np.diagonal(x)
    ),
    **{
        f"diag {k} of {x.shape}": Composed(
            lambda x, k=k: tj.diag(x, k), (x,), lambda x, k=k: np.diag(x, k)
        )
        for k in (-2, 0, 1)
        for x in (V, M, V[:0])
    },
    "diagflat": Composed(
        lambda x: tj.diagflat(x, -1), (M,), lambda x: np.diagflat(x, -1)
    ),
    "delete": Composed(
        lambda x: tj.delete(x, 1, axis=1), (M,), lambda x: np.delete(x, 1, axis=1)
    ),
    "delete several": Composed(
        lambda x: tj.delete(x, [0, -1, 0]), (M,), lambda x: np.delete(x, [0, -1, 0])
    ),
    "delete slice": Composed(
        lambda x: tj.delete(x, slice(None, None, 2), axis=2),
        (C,),
        lambda x: np.delete(x, slice(None, None, 2), axis=2),
    ),
    "delete mask": Composed(
        lambda x: tj.delete(x, np.array([True, False, True]), axis=1),
        (M,),
        lambda x: np.delete(x, np.array([True, False, True]), axis=1),
    ),
    "delete nothing": Composed(
        lambda x: tj.delete(x, [], axis=0), (M,), lambda x: np.delete(x, [], axis=0)
    ),
    "insert": Composed(
        lambda x, y: tj.insert(x, 1, y), (M, ONE), lambda x, y: np.insert(x, 1, y)
    ),
    "insert rows": Composed(
        lambda x, y: tj.insert(x, 2, y, axis=0),
        (M, V[:3]),
        lambda x, y: np.insert(x, 2, y, axis=0),
    ),
    "insert several": Composed(
        lambda x, y: tj.insert(x, [0, 2, 2], y, axis=1),
        (M, M),
        lambda x, y: np.insert(x, [0, 2, 2], y, axis=1),
    ),
    "insert slice": Composed(
        lambda x, y: tj.insert(x, slice(1, 3), y),
        (V, V[:2]),
        lambda x, y: np.insert(x, slice(1, 3), y),
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


@given(st.data())
def test_take_along_axis_of_any_shape(data: Any) -> None:
    shape = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    sizes = list(shape)
    for at in range(len(shape)):
        if data.draw(st.booleans()):
            sizes[at] = 1
    sizes[axis] = data.draw(st.integers(0, 4))
    seed = data.draw(st.integers(0, 99))
    rng = np.random.default_rng(seed)
    index = rng.integers(-shape[axis], shape[axis], sizes)
    array = rng.normal(size=shape)
    expected = np.take_along_axis(array, index, axis)
    x = tj.Variable(array)
    with tj.GradientTape() as tape:
        y = tj.take_along_axis(x, index, axis=axis)
    assert_same(y, expected)
    weights = rng.normal(size=expected.shape)
    counted = np.zeros_like(array)
    places = np.arange(array.size).reshape(shape)
    np.add.at(counted.reshape(-1), np.take_along_axis(places, index, axis), weights)
    got = tape.gradient(y, x, tj.asarray(weights))
    np.testing.assert_allclose(got, counted, rtol=1e-13, atol=1e-15)


@given(st.integers(0, 4), st.integers(0, 4), st.integers(-5, 5), st.integers(0, 2))
def test_diagonals_and_triangles_of_any_size(m: int, n: int, k: int, lead: int) -> None:
    array = np.arange(float(m * n * 2**lead)).reshape(*[2] * lead, m, n)
    assert_same(tj.diagonal(array, k, -2, -1), np.diagonal(array, k, -2, -1))
    assert_same(tj.tril(array, k=k), np.tril(array, k))
    assert_same(tj.triu(array, k=k), np.triu(array, k))
    assert_same(tj.diag(array.reshape(-1)[:n], k), np.diag(array.reshape(-1)[:n], k))


def test_what_lies_outside_a_triangle_may_be_infinite() -> None:
    x = tj.Variable(WILD)
    with tj.GradientTape() as tape:
        y = tj.tril(x)
    assert_same(y, np.tril(WILD))
    assert tape.gradient(y, x).tolist() == np.tri(3).tolist()


def test_put_along_axis_leaves_its_argument_alone() -> None:
    index = np.array([[2, 0], [1, 1]])
    values = np.array([[10.0, 20.0], [30.0, 40.0]])
    expected = M.copy()
    np.put_along_axis(expected, index, values, axis=1)
    x, v = tj.Variable(M), tj.Variable(values)
    with tj.GradientTape() as tape:
        y = tj.put_along_axis(x, index, v, axis=1)
    assert_same(y, expected)
    np.testing.assert_array_equal(x, M)
    by_x, by_v = tape.gradient(y, [x, v])
    assert by_x.tolist() == [[0.0, 1.0, 0.0], [1.0, 0.0, 1.0]]
    assert by_v.tolist() == [[1.0, 1.0], [0.0, 1.0]], "the last one stays"


def test_put_along_axis_of_the_flattened_tensor() -> None:
    expected = M.copy()
    np.put_along_axis(expected, np.array([4, 0]), 7.0, axis=None)
    assert_same(tj.put_along_axis(M, [4, 0], 7.0, axis=None), expected)


def test_put_along_axis_is_mapped_with_its_indices() -> None:
    x, index = tj.asarray(C), tj.asarray([[[0]], [[2]]])
    rows = tj.vmap(lambda x, i: tj.put_along_axis(x, i, 0.0, axis=0))(x, index)
    for row, array, at in zip(rows, C, (0, 2), strict=True):
        expected = array.copy()
        expected[at, :] = 0.0
        assert_same(row, expected)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int64", "bool"])
def test_one_hot(dtype: str) -> None:
    labels = np.array([[0, 1], [1, 0]]).astype(dtype)
    expected = np.eye(3, dtype=np.float32)[labels.astype(int)]
    assert_same(tj.one_hot(labels, 3), expected)
    assert_same(tj.one_hot(labels, 3, axis=0), np.moveaxis(expected, -1, 0))
    assert_same(tj.one_hot(labels, 3, axis=1), np.moveaxis(expected, -1, 1))
    assert_same(tj.one_hot(labels, 3, dtype="int32"), expected.astype("int32"))


def test_one_hot_of_what_is_no_class_is_zero() -> None:
    assert tj.one_hot(tj.asarray([-1, 3, 2]), 3).tolist() == [
        [0.0, 0.0, 0.0],
        [0.0, 0.0, 0.0],
        [0.0, 0.0, 1.0],
    ]
    assert tj.one_hot(np.uint8([255]), 300)[0, 255] == 1.0
    assert tj.one_hot(tj.asarray(1), 0).shape == (0,)


def test_one_hot_is_mapped() -> None:
    labels = tj.asarray([2, 0])
    assert_same(tj.vmap(lambda i: tj.one_hot(i, 3))(labels), tj.one_hot(labels, 3))


def test_select_gives_no_gradient_to_what_was_not_chosen() -> None:
    x, y = tj.Variable([-1.0, 2.0]), tj.Variable([5.0, 6.0])
    with tj.GradientTape() as tape:
        out = tj.select([x < 0, x < 3], [y, y * x], 0.0)
    by_x, by_y = tape.gradient(out, [x, y])
    assert by_x.tolist() == [0.0, 6.0]
    assert by_y.tolist() == [1.0, 2.0]


def test_select_promotes_as_operators_do() -> None:
    x = tj.asarray([1.0, -1.0])
    assert tj.select([x > 0], [x], 0).dtype == np.float32
    assert tj.select([x > 0], [1], 2.5).dtype == np.float32
    assert tj.select([x > 0], [tj.asarray([1, 2])], 0).dtype == np.int32


def test_sizes_that_depend_on_values_are_not_traced() -> None:
    with pytest.raises(TypeError, match=r"compress: the condition .* being traced"):
        tj.vmap(lambda c: tj.compress(c, V))(tj.asarray([[True, False, True, True]]))


def test_the_second_derivative_of_a_selection_is_none() -> None:
    x = tj.Variable(M)
    with tj.GradientTape() as outer:
        with tj.GradientTape() as inner:
            y = tj.take_along_axis(tj.tril(x), [[0], [1]], axis=1)
        first = inner.gradient(y, x)
    assert first is not None
    assert outer.gradient(first, x) is None


REFUSED = {
    "take_along_axis: indices are integers": lambda x: tj.take_along_axis(x, x),
    "take_along_axis: indices of": lambda x: tj.take_along_axis(x, [0]),
    "take_along_axis: axis 2": lambda x: tj.take_along_axis(x, [[0]], axis=2),
    "put_along_axis: indices of": lambda x: tj.put_along_axis(x, [0], 1.0),
    "one_hot: classes are integers": lambda x: tj.one_hot(x, 3),
    "one_hot: cannot have -1": lambda x: tj.one_hot([1], -1),
    "select: 1 conditions for 2": lambda x: tj.select([x > 0], [x, x]),
    "select: needs at least one": lambda x: tj.select([], []),
    "select: conditions are bools": lambda x: tj.select([x], [x]),
    "compress: the condition is a vector": lambda x: tj.compress(x > 0, x),
    "tril: takes matrices": lambda x: tj.tril(x[0]),
    "triu: takes matrices": lambda x: tj.triu(x[0]),
    "diagonal: takes matrices": lambda x: tj.diagonal(x[0]),
    "diagonal: axis 1 is given twice": lambda x: tj.diagonal(x, 0, 1, 1),
    "diag: takes a vector or a matrix": lambda x: tj.diag(x[None]),
    "delete: index 7": lambda x: tj.delete(x, 7, axis=0),
    "insert: index 7": lambda x: tj.insert(x, 7, 0.0, axis=0),
}


@pytest.mark.parametrize(("message", "call"), REFUSED.items(), ids=REFUSED)
def test_what_is_refused_names_the_function(message: str, call: Any) -> None:
    assert_refused(
        lambda: call(tj.asarray(M)), message, ValueError, TypeError, IndexError
    )


def test_an_index_outside_its_axis_is_an_index_error() -> None:
    with pytest.raises(IndexError, match=r"\b7\b.*\b3\b"):
        tj.take_along_axis(M, [[7], [0]], axis=1)
    with pytest.raises(IndexError, match=r"\b7\b.*\b3\b"):
        tj.put_along_axis(M, [[7], [0]], 0.0, axis=1)
