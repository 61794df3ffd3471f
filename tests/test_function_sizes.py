"""Sizes that depend on values, inside traced functions.

What selects by values (masks, `nonzero`, `unique_values`, counts) makes a traced
function one for that number of elements: calls with the same number run the same
graph, others are traced once more. Results, gradients and errors are the eager ones,
and the function never runs eagerly for that reason.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from two_modes import (
    assert_modes_agree,
    assert_near,
    gradients,
    is_error,
    outcome,
    tensors,
)

import tapejit as tj

X = np.random.default_rng(31).normal(size=(4, 3))
MASK = X > 0
OTHER = np.roll(MASK, 1, axis=0)  # as many True elements
FEWER = MASK & (X < 1)
ROWS = np.array([True, False, True, True])
ONE_PER_TRUE = np.arange(1.0, 1.0 + MASK.sum())
REPEATED = np.array([0, 2, 0, 0])
METHODS = ("set", "add", "subtract", "multiply", "divide", "power", "min", "max")
NANS = np.array([3.0, 1.0, np.nan, 3.0, np.nan, -0.0, 0.0])

Body = Callable[..., Any]

# name: (body, calls, how many traces those take)
SELECTIONS: dict[str, tuple[Body, Sequence[Sequence[Any]], int]] = {
    "x[mask]": (lambda x, m: x[m], [(X, MASK), (X, OTHER), (X, FEWER)], 2),
    "x[x > 0]": (lambda x: x[x > 0], [(X,), (2 * X,), (-X,)], 2),
    "x[rows]": (lambda x, m: x[m], [(X, ROWS), (X, ROWS[::-1].copy())], 1),
    "x[rows, 1]": (lambda x, m: x[m, 1], [(X, ROWS), (X, ~ROWS)], 2),
    "x[1:, columns]": (lambda x, m: x[1:, m], [(X, MASK[0]), (X, ~MASK[0])], 2),
    "x[mask, None]": (lambda x, m: x[m, None], [(X, MASK), (X, OTHER)], 1),
    "x[rows, i]": (
        lambda x, m, i: x[m, i],
        [(X, ROWS, np.array([0, 1, 2])), (X, ROWS, np.array([2, -1, 0]))],
        1,
    ),
    "x[flag]": (lambda x, m: x[m], [(X, np.array(True)), (X, np.array(False))], 2),
    "x[no elements]": (lambda x, m: x[m], [(X[:0], MASK[:0])], 1),
    "nonzero": (tj.nonzero, [(MASK,), (OTHER,), (FEWER,)], 2),
    "nonzero of numbers": (tj.nonzero, [(np.float32([0, 2, 0, 1]),)], 1),
    "argwhere": (tj.argwhere, [(MASK,), (OTHER,), (FEWER,)], 2),
    "argwhere of a scalar": (tj.argwhere, [(np.array(3.0),), (np.array(0.0),)], 2),
    "compress": (
        lambda m, x: tj.compress(m, x, axis=0),
        [(ROWS, X), (ROWS[::-1].copy(), X), (~ROWS, X)],
        2,
    ),
    "compress the flattened": (tj.compress, [(ROWS, X)], 1),
    "repeat": (
        lambda x, c: tj.repeat(x, c, axis=0),
        [(X, np.array([1, 0, 2, 1])), (X, np.array([0, 4, 0, 0]))],
        1,
    ),
    "delete": (
        lambda x, i: tj.delete(x, i, axis=0),
        [(X, np.array([0, 2])), (X, np.array([-1, 1])), (X, np.array([1, 1]))],
        2,
    ),
    "delete where": (
        lambda x, m: tj.delete(x, m, axis=0),
        [(X, ROWS), (X, ROWS[::-1].copy())],
        1,
    ),
    "arange": (tj.arange, [(np.array(3),), (np.array(4),)], 2),
    "repeat all": (tj.repeat, [(X, np.array(2)), (X, np.array(0))], 2),
    "unique_all": (
        lambda x: tuple(tj.unique_all(x)),
        [(NANS,), (NANS[::-1].copy(),), (np.zeros(7),)],
        2,
    ),
    "unique_inverse": (lambda x: tuple(tj.unique_inverse(x)), [(MASK,), (~MASK,)], 1),
    "unique_counts": (
        lambda x: tuple(tj.unique_counts(x)),
        [(REPEATED,), (REPEATED + 1,)],
        1,
    ),
    "unique_values": (tj.unique_values, [(X.astype(np.float16),), (X[:0],)], 2),
    "np.unique": (lambda x: np.unique(x, return_counts=True), [(NANS,)], 1),
    "bincount": (
        tj.bincount,
        [(np.array([0, 2, 2]),), (np.array([2, 0, 1]),), (np.array([0, 0, 1]),)],
        2,
    ),
    "bincount to a length": (
        lambda x, w: tj.bincount(x, w, minlength=5),
        [(np.array([0, 2, 2]), X[0]), (np.array([4, 0, 1]), X[1])],
        1,
    ),
    "digitize": (
        tj.digitize,
        [(X, np.array([-1.0, 0, 1])), (X, np.array([-2.0, 0, 2]))],
        1,
    ),
    "digitize downwards": (tj.digitize, [(X, np.array([1.0, 0, -1]))], 1),
    "histogram": (
        lambda x, w: tj.histogram(x, [-1, 0, 1], weights=w),
        [(X, MASK * 1.0), (-X, X)],
        1,
    ),
}


@pytest.mark.parametrize("name", SELECTIONS)
def test_one_trace_serves_calls_that_select_as_many(name: str) -> None:
    body, calls, traces = SELECTIONS[name]
    function = tj.function(body)
    args = [tensors(list(map(np.asarray, call))) for call in calls]
    for _ in range(2):  # the second time around nothing is traced
        found = assert_modes_agree(body, *args, where=name, traced=function)
        assert not is_error(found), found
        assert function.trace_count == traces


@pytest.mark.parametrize("name", SELECTIONS)
def test_gradients_of_selections_are_the_eager_ones(name: str) -> None:
    body, calls, _ = SELECTIONS[name]
    args = [tensors(list(map(np.asarray, call))) for call in calls]
    by = [at for at, x in enumerate(args[0]) if x.dtype.kind == "f"]

    def target(*xs: Any) -> list[Any]:
        found = body(*xs)
        parts = found if isinstance(found, tuple) else (found,)
        return [x * x for x in parts if x.dtype.kind == "f"]

    def slopes(*xs: Any) -> list[Any]:
        return gradients(target, xs, by)

    assert_modes_agree(slopes, *args, where=f"{name}: tape inside")
    around = tj.function(target)
    assert_modes_agree(
        slopes,
        *args,
        where=f"{name}: tape around",
        traced=lambda *xs: gradients(around, xs, by),
    )


# x.at


def changing(method: str) -> Body:
    return lambda x, key, value: getattr(x.at[key], method)(value)


AT_CALLS: dict[str, tuple[Sequence[Sequence[Any]], int]] = {
    "one value": ([(X, MASK, np.array(2.5)), (X, FEWER, np.array(1.5))], 1),
    "one per True": ([(X, MASK, ONE_PER_TRUE), (X, OTHER, ONE_PER_TRUE)], 1),
    "rows": ([(X, ROWS, X[:3] + 3), (X, ROWS[::-1].copy(), X[1:] + 4)], 1),
    "repeated": ([(X, REPEATED, X + 3), (X, REPEATED[::-1].copy(), X + 3)], 1),
    "distinct": ([(X, np.array([3, -3, 0]), X[:3] + 3)], 1),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", AT_CALLS)
@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_changed_copies_are_the_eager_ones(name: str, method: str, dtype: str) -> None:
    calls, traces = AT_CALLS[name]
    args = [
        tensors([abs(x).astype(dtype), key, value.astype(dtype)])
        for x, key, value in calls
    ]
    function = tj.function(changing(method))
    for _ in range(2):
        found = assert_modes_agree(changing(method), *args, where=name, traced=function)
        assert not is_error(found), found
    assert function.trace_count == traces


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", AT_CALLS)
def test_gradients_of_changed_copies_are_the_eager_ones(name: str, method: str) -> None:
    def target(x: Any, key: Any, value: Any) -> Any:
        out = changing(method)(x, key, value)
        return out * out

    def slopes(*xs: Any) -> list[Any]:
        return gradients(target, xs, [0, 2])

    function = tj.function(slopes)
    for x, key, value in AT_CALLS[name][0]:
        args = tensors([abs(x), key, value])
        assert_near(function(*args), slopes(*args), f"at.{method}, {name}")


def test_as_many_values_as_true_elements_are_needed() -> None:
    def body(x: Any, mask: Any, value: Any) -> Any:
        return x.at[mask].set(value)

    good = tensors([X, MASK, ONE_PER_TRUE])
    bad = tensors([X, FEWER, ONE_PER_TRUE])
    assert_modes_agree(body, good, bad, good, bad)
    assert is_error(outcome(lambda: body(*bad)))


@pytest.mark.parametrize("method", ["assign", "assign_add", "assign_sub"])
def test_parts_of_variables_are_assigned_as_eagerly(method: str) -> None:
    def change(v: Any, mask: Any, value: Any) -> Any:
        getattr(v[mask], method)(value)
        return v.value()

    eager, traced = tj.Variable(X), tj.Variable(X)
    function = tj.function(change)
    for mask in (MASK, OTHER):
        args = tensors([mask, ONE_PER_TRUE])
        expected = change(eager, *args)
        np.testing.assert_array_equal(function(traced, *args), expected)
        np.testing.assert_array_equal(traced.numpy(), eager.numpy())
    assert function.trace_count == 1


# How it fails

INDEX_ERRORS: dict[str, tuple[Body, Sequence[Any], Sequence[Any]]] = {
    "x[i]": (lambda x, i: x[i], [X, [0, 3]], [X, [0, 4]]),
    "x[-i]": (lambda x, i: x[i], [X, [0, -4]], [X, [0, -5]]),
    "x[i] of a number": (lambda x, i: x[i], [X, 2], [X, 7]),
    "x[:, i]": (lambda x, i: x[:, i], [X, [0, 2]], [X, [0, 3]]),
    "x[i, j]": (lambda x, i: x[i, i], [X, [0, 2]], [X, [1, 3]]),
    "take": (lambda x, i: tj.take(x, i, axis=1), [X, [0]], [X, [3]]),
    "take_along_axis": (
        lambda x, i: tj.take_along_axis(x, i, axis=1),
        [X, [[0], [1], [2], [0]]],
        [X, [[0], [1], [3], [0]]],
    ),
    "scatter_add": (lambda x, i: tj.scatter_add(x, i, 1.0), [X, [0]], [X, [4]]),
    "at.set": (lambda x, i: x.at[i].set(1.0), [X, [0, 1]], [X, [0, 4]]),
    "at.add": (lambda x, i: x.at[i].add(1.0), [X, [0, 1]], [X, [0, 4]]),
    "at.multiply": (lambda x, i: x.at[i].multiply(2.0), [X, [0, 1]], [X, [0, 4]]),
    "delete": (tj.delete, [X[0], [0, 2]], [X[0], [0, 3]]),
    "embedding": (tj.nn.embedding, [X, [0, 3]], [X, [0, -1]]),
    "labels": (
        tj.nn.sparse_softmax_cross_entropy,
        [X, [0, 1, 2, 0]],
        [X, [0, 1, 3, 0]],
    ),
}


@pytest.mark.parametrize("name", INDEX_ERRORS)
def test_an_index_out_of_range_is_the_same_error(name: str) -> None:
    body, good, bad = INDEX_ERRORS[name]
    fine, wrong = ([tj.asarray(x) for x in args] for args in (good, bad))
    with pytest.raises(IndexError):
        body(*wrong)
    assert_modes_agree(body, fine, wrong, fine, wrong, where=name)
    assert_modes_agree(body, wrong, fine, where=f"{name}, first")


VALUE_ERRORS: dict[str, tuple[Body, Sequence[Any], Sequence[Any]]] = {
    "repeat": (tj.repeat, [X[0], [1, 0, 2]], [X[0], [1, -1, 2]]),
    "bincount": (tj.bincount, [[0, 1]], [[0, -1]]),
    "digitize": (tj.digitize, [X, [0.0, 1.0, 2.0]], [X, [0.0, 2.0, 1.0]]),
    "quantile": (tj.quantile, [X, 0.25], [X, 1.25]),
    "percentile": (tj.percentile, [X, [25.0, 75.0]], [X, [25.0, np.nan]]),
    "huber": (lambda x, d: tj.nn.huber(x, 0.0, d), [X, 0.5], [X, -0.5]),
}


@pytest.mark.parametrize("name", VALUE_ERRORS)
def test_a_value_that_is_refused_is_the_same_error(name: str) -> None:
    body, good, bad = VALUE_ERRORS[name]
    fine, wrong = ([tj.asarray(x) for x in args] for args in (good, bad))
    with pytest.raises(ValueError, match=rf"{name}: "):
        body(*wrong)
    assert_modes_agree(body, fine, wrong, fine, wrong, where=name)


def test_a_failing_index_leaves_variables_as_they_were() -> None:
    v = tj.Variable([1.0, 2.0])

    @tj.function
    def step(i: Any) -> Any:
        v.assign_add([1.0, 1.0])
        return v[i]

    step(tj.asarray([1]))
    with pytest.raises(IndexError, match="index 5 is out of range"):
        step(tj.asarray([5]))
    assert v.numpy().tolist() == [2.0, 3.0]


def test_a_mask_of_the_wrong_size_is_the_same_error() -> None:
    args = tensors([X, MASK[:3]])
    assert is_error(assert_modes_agree(lambda x, m: x[m], args))
    assert is_error(assert_modes_agree(lambda x, m: x.at[m].set(1.0), args))


# Symbolic sizes

ANY_LENGTH: dict[str, Body] = {
    "x[x > 0]": lambda x: x[x > 0],
    "nonzero": lambda x: tj.nonzero(x > 0),
    "at.set": lambda x: x.at[x > 0].set(1.0),
    "at.multiply": lambda x: x.at[[0, 1, 0]].multiply(3.0),
    "compress": lambda x: tj.compress(x > 0, x),
    "unique_values": lambda x: tj.unique_values(tj.sign(x)),
    "histogram": lambda x: tj.histogram(x, [-1.0, 0.0, 1.0]),
}


@pytest.mark.parametrize("name", ANY_LENGTH)
def test_one_trace_serves_every_length_that_selects_as_many(name: str) -> None:
    body = ANY_LENGTH[name]
    function = tj.function(input_signature=[tj.TensorSpec([None], "float64")])(body)
    rows = [[1.0, -1.0, 2.0], [1.0, -1.0, 2.0, -2.0], [-5.0, -1.0, -2.0, 1.0, 0.5]]
    args = [[tj.asarray(row, dtype="float64")] for row in rows]
    found = assert_modes_agree(body, *args, where=name, traced=function)
    assert not is_error(found), found
    assert function.trace_count == 1


# How paths are chosen


def test_too_many_numbers_of_elements_run_eagerly_with_one_warning() -> None:
    @tj.function
    def positive(x: Any) -> Any:
        return tj.sum(x[x > 0])

    rows = [tj.asarray(np.arange(20.0) < n) * 2.0 for n in range(1, 21)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = [float(positive(row)) for row in rows]
    assert found == [2.0 * n for n in range(1, 21)]
    texts = [str(w.message) for w in caught]
    assert sum("takes more than 16 different ways" in text for text in texts) == 1
    assert sum("was traced 6 times" in text for text in texts) == 1
    assert len(texts) == 2


def test_one_mask_is_asked_for_its_size_once() -> None:
    @tj.function
    def both(x: Any, y: Any) -> Any:
        mask = x > 0
        return x[mask] + y[mask]

    both(tj.asarray(X), tj.asarray(X))
    guards = [node for node in graph_of(both).nodes if node.op.name == "guard"]
    assert len(guards) == 1


def graph_of(function: Any) -> Any:
    (entry,) = function._cache.entries.values()
    (path,) = entry.paths
    return path.graph


def test_a_later_question_waits_for_the_guard_before_it() -> None:
    """With fewer elements the second question has no answer, and is not asked."""

    def body(x: Any) -> Any:
        found = x[x > 0]
        if found.shape[0] > 2 and found[2] > 1.0:
            return tj.sum(found)
        return -tj.sum(found)

    rows = [[1.0, 2, 3, 4], [1.0, -2, 3, -4], [-1.0, -1, -1, -1], [1.0, 0.5, 0.25, 0]]
    assert_modes_agree(body, *[[tj.asarray(row)] for row in rows])


def test_a_mask_of_the_function_selects_in_a_mapped_function() -> None:
    def body(x: Any, mask: Any) -> Any:
        return tj.vmap(lambda row: tj.sum(row[mask] * 2.0))(x)

    args = [tensors([X, mask]) for mask in (MASK[0], ~MASK[0])]
    assert not is_error(assert_modes_agree(body, *args))


def test_a_mask_of_a_mapped_row_is_refused_as_eagerly() -> None:
    def body(x: Any) -> Any:
        return tj.vmap(lambda row: row[row > 0])(x)

    assert is_error(assert_modes_agree(body, tensors([X])))


def test_second_derivatives_through_a_mask() -> None:
    def slope(x: Any) -> Any:
        (found,) = gradients(lambda x: x[x > 0] ** 3, [x], [0])
        return found

    def curvature(x: Any) -> Any:
        return gradients(slope, [x], [0])

    assert_modes_agree(curvature, tensors([X]), tensors([2 * X]))
