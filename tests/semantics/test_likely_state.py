"""What followed last time is only a guess: a tape is right when something else does.

Every test runs one line of code in several ways in turn, so that each recording meets
a state whose likely successor is another one.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import tapejit as tj


def gradient(function: Any, x: tj.Tensor, *args: Any) -> np.ndarray[Any, Any]:
    """d sum(function(x, *args)) / dx, recorded by a new tape."""
    with tj.GradientTape() as tape:
        tape.watch(x)
        y = function(x, *args)
    return tape.gradient(y, x).numpy()


def times(x: Any, y: Any) -> Any:
    return x * y


def minus(x: Any, y: Any) -> Any:
    return x - y


def call(x: Any, function: Any) -> Any:
    return function(x)


def vector(*values: float) -> tj.Tensor:
    return tj.asarray(np.float32(values))


# A constant knows its id, the result of an unrecorded operation has none yet.
LEAVES = {
    "constant": lambda value: tj.asarray(np.float32(value)),
    "result": lambda value: tj.negative(tj.asarray(-np.float32(value))),
}


@pytest.mark.parametrize("make", LEAVES.values(), ids=LEAVES)
def test_leaves_of_several_shapes_take_turns(make: Any) -> None:
    x = vector(1, 2)
    one, row, table = make(3), make([3, 4]), make([[3, 4], [5, 6]])
    for _ in range(3):
        assert gradient(times, x, one).tolist() == [3, 3]
        assert gradient(times, x, row).tolist() == [3, 4]
        assert gradient(times, x, table).tolist() == [8, 10]


@pytest.mark.parametrize("make", LEAVES.values(), ids=LEAVES)
def test_another_leaf_of_the_same_type_gives_its_own_value(make: Any) -> None:
    x = vector(1, 2)
    for at in range(4):
        assert gradient(times, x, make([at, at + 1])).tolist() == [at, at + 1]


@pytest.mark.parametrize("make", LEAVES.values(), ids=LEAVES)
def test_a_leaf_changes_sides(make: Any) -> None:
    x, leaf = vector(1, 2), make([3, 4])
    for _ in range(3):
        assert gradient(lambda x: minus(leaf, x), x).tolist() == [-1, -1]
        assert gradient(lambda x: minus(x, leaf), x).tolist() == [1, 1]
        assert gradient(lambda x: minus(leaf, x), x).tolist() == [-1, -1]
        assert gradient(lambda x: minus(x, x), x).tolist() == [0, 0]


def test_a_python_number_meets_two_dtypes() -> None:
    single, double = vector(1, 2), tj.asarray(np.float64([1, 2]))
    for _ in range(3):
        for x in (single, double):
            found = gradient(times, x, 2.0)
            assert found.dtype == x.dtype
            assert found.tolist() == [2, 2]


@pytest.mark.parametrize("make", LEAVES.values(), ids=LEAVES)
def test_an_op_takes_one_two_and_three_operands_in_turn(make: Any) -> None:
    x, leaf = vector(1, 2), make([3])
    for _ in range(3):
        for parts in ([x], [x, leaf], [x, leaf, leaf], [x, x]):
            with tj.GradientTape() as tape:
                tape.watch(x)
                y = tj.concat(parts)
            (recorded,) = [n for n in tape.graph(y).nodes if n.op.name == "concat"]
            assert len(recorded.inputs) == len(parts)
            count = sum(part is x for part in parts)
            assert tape.gradient(y, x).tolist() == [count, count]


def test_functions_of_one_operand_take_turns_on_one_line() -> None:
    x = vector(0, 0)
    for _ in range(3):
        for function, slope in ((tj.sin, 1), (tj.exp, 1), (tj.negative, -1)):
            assert gradient(call, x, function).tolist() == [slope] * 2


def test_attributes_take_turns() -> None:
    x = tj.asarray(np.ones((2, 3), np.float32))
    weights = (np.float32([1, 2, 3]), np.float32([1, 2]))
    for _ in range(3):
        for axis, weight in enumerate(weights):
            with tj.GradientTape() as tape:
                tape.watch(x)
                y = tj.sum(x, axis=axis)
            found = tape.gradient(y, x, output_gradients=weight).numpy()
            expected = np.broadcast_to(np.expand_dims(weight, axis), (2, 3))
            np.testing.assert_array_equal(found, expected)


def test_one_operation_on_two_lines_keeps_both_lines() -> None:
    x = vector(1, 2)

    def either(is_first: bool) -> tj.Tensor:
        if is_first:
            return x * x
        return x * x

    seen = []
    for is_first in (True, False, True, False):
        with tj.GradientTape() as tape:
            tape.watch(x)
            y = either(is_first)
        seen.append(tape.graph(y).nodes[-1].origin)
    assert seen[0] == seen[2] != seen[1] == seen[3]


def test_a_leaf_that_is_watched_later_is_a_source() -> None:
    x, leaf = vector(1, 2), vector(3, 4)
    for _ in range(2):
        assert gradient(times, x, leaf).tolist() == [3, 4]
        with tj.GradientTape() as tape:
            tape.watch(x)
            tape.watch(leaf)
            y = times(x, leaf)
        first, second = tape.gradient(y, [x, leaf])
        assert first.tolist() == [3, 4]
        assert second.tolist() == [1, 2]


@pytest.mark.parametrize("value", [2.0, [2.0]], ids=["scalar", "vector"])
def test_a_watched_constant_is_a_source_of_a_traced_function(value: Any) -> None:
    c = tj.asarray(value)
    rows = tj.vmap(lambda x: x * x * c)
    for _ in range(2):
        with tj.GradientTape() as tape:
            tape.watch(c)
            y = rows(vector(3, 4))
        assert float(tj.sum(tape.gradient(y, c))) == 25.0


def test_threads_share_a_line_with_leaves_of_their_own_shapes() -> None:
    def work(size: int) -> bool:
        leaf = tj.asarray(np.full((size, 1), size, np.float32))
        x = vector(1, 2)
        expected = [size * size] * 2
        return all(gradient(times, x, leaf).tolist() == expected for _ in range(200))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(1, 9)))
