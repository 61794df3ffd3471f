"""Basic indices agree with NumPy: every plan is run through the records it is for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from graph_properties import for_all
from hypothesis import given, settings
from hypothesis import strategies as st

from tapejit.base.dims import Dim
from tapejit.base.errors import (
    ArgumentError,
    ArgumentTypeError,
    OutOfRangeError,
    UnsupportedError,
)
from tapejit.base.types import TensorType
from tapejit.ir import Graph, Node, check_graph, interpret, param
from tapejit.ops import movement
from tapejit.ops.basic_index import BasicIndex, plan_basic_index

SHAPES = st.lists(st.integers(0, 5), max_size=4).map(tuple)
BOUNDS = st.none() | st.integers(-8, 8)
STEPS = st.none() | st.integers(-4, 4)
SLICES = st.builds(slice, BOUNDS, BOUNDS, STEPS)
INTEGERS = st.integers(-6, 5).flatmap(
    lambda i: st.sampled_from([i, np.int32(i), np.int64(i), np.array(i)])
)
ENTRIES = st.one_of(SLICES, INTEGERS, st.just(...), st.none())
KEYS = st.lists(ENTRIES, max_size=5).map(tuple) | ENTRIES


def array_of(shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    return np.arange(np.prod(shape, dtype=int)).reshape(shape)


def apply(x: Node, plan: BasicIndex) -> Node:
    out = movement.slice(x, starts=plan.starts, stops=plan.stops, steps=plan.steps)
    return movement.reshape(movement.flip(out, axes=plan.flips), shape=plan.shape)


def indexed(x: np.ndarray[Any, Any], key: Any) -> np.ndarray[Any, Any]:
    """`x[key]` by way of a plan made for known sizes."""
    plan = plan_basic_index(key, x.shape)
    assert plan is not None
    node = param("x", TensorType.of(x))
    return interpret(Graph("index", (node,), (apply(node, plan),)), x)[0]


def outcome(run: Any) -> Any:
    """The result of `run`, or the builtin class of the exception it raises."""
    try:
        return run()
    except (IndexError, ValueError) as error:
        return IndexError if isinstance(error, IndexError) else ValueError


def assert_planned_as_numpy_does(shape: tuple[int, ...], key: Any) -> None:
    x = array_of(shape)
    expected = outcome(lambda: np.asarray(x[key]))
    found = outcome(lambda: indexed(x, key))
    if isinstance(expected, type):
        assert isinstance(found, type)
        if not has_zero_step(key):  # of two mistakes, NumPy may name the other one
            assert found is expected
    else:
        assert not isinstance(found, type)
        np.testing.assert_array_equal(found, expected, strict=True)


def has_zero_step(key: Any) -> bool:
    entries = key if isinstance(key, tuple) else (key,)
    return any(isinstance(entry, slice) and entry.step == 0 for entry in entries)


def test_a_plan_does_what_numpy_does(full: bool) -> None:
    @for_all(st.tuples(SHAPES, KEYS), full, examples=400)
    def holds(case: tuple[tuple[int, ...], Any]) -> None:
        assert_planned_as_numpy_does(*case)


@pytest.mark.parametrize(
    ("shape", "key"),
    [
        ((5,), slice(None, None, -2)),
        ((5,), slice(1, 4, -1)),
        ((0,), slice(None, None, -1)),
        ((), (None, ...)),
        ((3,), (..., ...)),
        ((3,), slice(2, 0, 0)),
    ],
    ids=str,
)
def test_a_plan_at_the_edges(shape: tuple[int, ...], key: Any) -> None:
    assert_planned_as_numpy_does(shape, key)


def assert_symbolic_plan_is_right(
    shape: tuple[int, ...], is_symbolic: list[bool], key: Any
) -> None:
    x = array_of(shape)
    names = zip("nmk", is_symbolic, shape, strict=False)
    sizes = tuple(Dim(name) if flag else size for name, flag, size in names)
    node = param("x", TensorType(x.dtype, sizes))

    def run() -> np.ndarray[Any, Any]:
        plan = plan_basic_index(key, sizes)
        assert plan is not None
        graph = Graph("index", (node,), (apply(node, plan),))
        check_graph(graph)
        return interpret(graph, x)[0]

    expected = outcome(lambda: np.asarray(x[key]))
    found = outcome(run)
    if isinstance(expected, type):
        assert isinstance(found, type)
    else:
        assert not isinstance(found, type)
        np.testing.assert_array_equal(found, expected, strict=True)


def test_a_symbolic_plan_does_what_numpy_does(full: bool) -> None:
    shapes = st.lists(st.integers(2, 6), max_size=3).map(tuple)
    flags = st.lists(st.booleans(), min_size=3, max_size=3)

    @for_all(st.tuples(shapes, flags, KEYS), full, examples=250)
    def holds(case: tuple[tuple[int, ...], list[bool], Any]) -> None:
        assert_symbolic_plan_is_right(*case)


@settings(max_examples=200, deadline=None)
@given(
    size=st.integers(2, 9),
    start=st.integers(0, 2),
    stop=st.integers(-2, 4),
    step=st.sampled_from([1, 2, 3, -1, -2, -3]),
)
def test_bounds_may_be_symbolic(size: int, start: int, stop: int, step: int) -> None:
    n = Dim("n")
    x = array_of((size,))
    node = param("x", TensorType(x.dtype, (n,)))
    for symbolic, actual in (
        (slice(start, n - 1, step), slice(start, size - 1, step)),
        (slice(n - 2, start, step), slice(size - 2, start, step)),
        (slice(stop, n // 2, step), slice(stop, size // 2, step)),
        (slice(-n, n + stop + 2, step), slice(-size, size + stop + 2, step)),
    ):
        plan = plan_basic_index(symbolic, (n,))
        assert plan is not None
        (found,) = interpret(Graph("index", (node,), (apply(node, plan),)), x)
        np.testing.assert_array_equal(found, x[actual], strict=True)


def test_a_symbolic_integer_is_one_position() -> None:
    n = Dim("n")
    plan = plan_basic_index((n - 1, -n), (n, n))
    assert plan == BasicIndex((n - 1, 0), (n, 1), (1, 1), (), ())


def test_a_bound_of_unknown_sign_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="n - 5 is negative depends on the size"):
        plan_basic_index(slice(Dim("n") - 5, None), (Dim("n"),))


class Two:
    def __index__(self) -> int:
        return 2


@pytest.mark.parametrize("key", [2, np.uint8(2), np.int64(2), np.array(2), Two(), -2])
def test_what_counts_as_an_integer(key: Any) -> None:
    assert plan_basic_index(key, (4,)) == BasicIndex((2,), (3,), (1,), (), ())


@pytest.mark.parametrize("key", [slice(np.int8(1), Two()), slice(True, 2)])
def test_what_counts_as_a_bound(key: Any) -> None:
    assert plan_basic_index(key, (4,)) == BasicIndex((1,), (2,), (1,), (), (1,))


@pytest.mark.parametrize(
    "key",
    [
        True,
        np.True_,
        np.array(True),
        [0, 1],
        [],
        range(2),
        np.array([0, 1]),
        np.array([True, False, True]),
        (0, [1]),
        ((0, 1),),
        (..., np.array([0])),
    ],
    ids=repr,
)
def test_arrays_lists_and_bools_are_advanced(key: Any) -> None:
    assert plan_basic_index(key, (3, 3)) is None


@pytest.mark.parametrize(
    ("key", "error", "text"),
    [
        ((0, 0, 0), OutOfRangeError, "tensor is 2-dimensional, but 3 were indexed"),
        ((..., 0, ...), OutOfRangeError, "single ellipsis"),
        (3, OutOfRangeError, "index 3 is out of range for axis 0 of size 3"),
        ((..., -5), OutOfRangeError, "index -5 is out of range for axis 1 of size 4"),
        (1.0, OutOfRangeError, r"1\.0 \(float\) cannot be an index"),
        (np.float32(1), OutOfRangeError, r"float32.* cannot be an index"),
        (np.array([1.0]), OutOfRangeError, r"ndarray of float64\) cannot be an index"),
        ("a", OutOfRangeError, r"'a' \(str\) cannot be an index"),
        (1j, OutOfRangeError, r"1j \(complex\) cannot be an index"),
        ({}, OutOfRangeError, r"{} \(dict\) cannot be an index"),
        (slice(None, None, 0), ArgumentError, "step of a slice cannot be zero"),
        (slice(1.5, None), ArgumentTypeError, r"start of a slice .* 1\.5 \(float\)"),
        (slice(None, "b"), ArgumentTypeError, r"stop of a slice .* 'b' \(str\)"),
        (slice(None, None, 2.0), ArgumentTypeError, r"step of a slice .* 2\.0"),
    ],
    ids=repr,
)
def test_errors_say_what_is_wrong(key: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        plan_basic_index(key, (3, 4))
    builtin = next(base for base in error.__mro__ if base.__module__ == "builtins")
    with pytest.raises(builtin):
        np.zeros((3, 4))[key]


def test_an_index_outside_a_symbolic_axis_raises_when_it_runs() -> None:
    node = param("x", TensorType.parse("f64[n]"))
    plan = plan_basic_index(5, node.shape)
    assert plan is not None
    graph = Graph("index", (node,), (apply(node, plan),))
    assert interpret(graph, np.arange(6.0))[0] == 5.0
    with pytest.raises(OutOfRangeError, match="axis 0 of size 4"):
        interpret(graph, np.arange(4.0))
