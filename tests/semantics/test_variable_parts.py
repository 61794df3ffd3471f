"""Variables: parts, copies, pickles, constraints (line 35)."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import tapejit as tj

ASSIGNMENTS = ["assign", "assign_add", "assign_sub"]


def halved(x: Any) -> Any:
    """A constraint that can be pickled."""
    return x * 0.5


# 35: parts, copies, pickles, constraints


PARTS = {
    "slice": slice(1, None),
    "integer": 0,
    "negative integer": -1,
    "step": slice(None, None, 2),
    "backwards": slice(None, None, -1),
    "ellipsis": ...,
    "column": (slice(None), 1),
    "rows and columns": (slice(1, 3), slice(0, 1)),
    "list": [2, 0],
    "mask": np.array([True, False, True, False]),
    "tensor": tj.asarray([3, 1]),
    "element": (2, 1),
}


@pytest.mark.parametrize("name", PARTS)
def test_s35_a_part_can_be_assigned(name: str) -> None:
    key = PARTS[name]
    data = np.arange(8.0, dtype=np.float32).reshape(4, 2)
    plain = key.numpy() if isinstance(key, tj.Tensor) else key
    new = -1 - np.arange(data[plain].size, dtype=np.float32).reshape(data[plain].shape)
    for method, sign in (("assign", 0), ("assign_add", 1), ("assign_sub", -1)):
        v = tj.Variable(data)
        before = v.value()
        getattr(v[key], method)(tj.asarray(new))
        expected = data.copy()
        expected[plain] = new if not sign else expected[plain] + sign * new
        assert v.tolist() == expected.tolist()
        assert before.tolist() == data.tolist()


def test_s35_a_part_read_in_a_tape_is_differentiable_like_any_read() -> None:
    v = tj.Variable([1.0, 2.0, 3.0])
    with tj.GradientTape() as tape:
        y = v[1:] * 2.0
        v[1:].assign([10.0, 20.0])
        z = tj.sum(y) + tj.sum(v * v)
    assert v.tolist() == [1.0, 10.0, 20.0]
    assert tape.gradient(z, v).tolist() == [2.0, 22.0, 42.0]


@pytest.mark.parametrize("method", ASSIGNMENTS)
def test_s35_a_part_checks_shape_dtype_and_range(method: str) -> None:
    v = tj.Variable([1.0, 2.0, 3.0])
    with pytest.raises(ValueError):
        getattr(v[1:], method)([1.0, 2.0, 3.0])
    with pytest.raises(TypeError):
        getattr(v[1:], method)([1j, 2j])
    with pytest.raises(TypeError):
        getattr(v[1:], method)("ab")
    with pytest.raises(IndexError):
        getattr(v[5], method)(1.0)
    assert v.tolist() == [1.0, 2.0, 3.0]


def test_s35_a_part_of_a_tensor_cannot_be_assigned() -> None:
    x = tj.asarray([1.0, 2.0])
    with pytest.raises(TypeError, match="Variable"):
        x[1:].assign([3.0])
    with pytest.raises(TypeError, match="Variable"):
        (tj.Variable([1.0, 2.0])[1:] * 2.0).assign([3.0])


def test_s35_item_assignment_of_a_variable_says_how() -> None:
    v = tj.Variable([1.0, 2.0])
    with pytest.raises(TypeError, match=r"v\[i\]\.assign"):
        v[0] = 5.0
    assert v.tolist() == [1.0, 2.0]


def test_s35_scatter_add_adds_up() -> None:
    v = tj.Variable([1.0, 2.0, 3.0])
    result = v.scatter_add([0, 0, -1], [10.0, 20.0, 5.0])
    assert type(result) is tj.Tensor
    assert result.tolist() == v.tolist() == [31.0, 2.0, 8.0]


def test_s35_scatter_update_replaces() -> None:
    v = tj.Variable([1.0, 2.0, 3.0])
    result = v.scatter_update(tj.asarray([2, 0]), np.float32([30, 10]))
    assert result.tolist() == v.tolist() == [10.0, 2.0, 30.0]


@pytest.mark.parametrize("method", ["scatter_add", "scatter_update"])
def test_s35_scatter_works_on_rows(method: str) -> None:
    v = tj.Variable([[0.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    getattr(v, method)([2, 0], [[1.0, 2.0], [3.0, 4.0]])
    assert v.tolist() == [[3.0, 4.0], [0.0, 0.0], [1.0, 2.0]]


@pytest.mark.parametrize("method", ["scatter_add", "scatter_update"])
@pytest.mark.parametrize(
    ("indices", "updates", "error"),
    [
        ([3], [1.0], IndexError),
        ([-4], [1.0], IndexError),
        ([0, 3], [1.0, 2.0], IndexError),
        ([0.5], [1.0], TypeError),
        ([0, 1], [1.0, 2.0, 3.0], ValueError),
        ([0], [1j], TypeError),
        ([0], ["a"], TypeError),
    ],
)
def test_s35_a_refused_scatter_changes_nothing(
    method: str, indices: Any, updates: Any, error: Any
) -> None:
    v = tj.Variable([1.0, 2.0, 3.0])
    with pytest.raises(error):
        getattr(v, method)(indices, updates)
    assert v.tolist() == [1.0, 2.0, 3.0]
    getattr(v, method)([0], [4.0])
    assert v.tolist()[1:] == [2.0, 3.0], "a retry works"


def test_s35_a_copy_shares() -> None:
    v = tj.Variable([1.0, 2.0], name="w")
    other = copy.copy(v)
    other.assign([3.0, 4.0])
    assert v.tolist() == [3.0, 4.0]
    v.assign_add([1.0, 1.0])
    assert other.tolist() == [4.0, 5.0]
    with tj.GradientTape() as tape:
        y = other * other
    assert tape.gradient(y, v).tolist() == [8.0, 10.0]


INDEPENDENT = {
    "deepcopy": copy.deepcopy,
    **{
        f"pickle {n}": lambda v, n=n: pickle.loads(pickle.dumps(v, protocol=n))
        for n in range(2, pickle.HIGHEST_PROTOCOL + 1)
    },
}


@pytest.mark.parametrize("duplicate", INDEPENDENT.values(), ids=INDEPENDENT)
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "int32"])
def test_s35_a_deep_copy_and_a_pickle_are_independent(
    duplicate: Any, dtype: str
) -> None:
    v = tj.Variable([1, 2], False, dtype, "w", halved)
    other = duplicate(v)
    assert isinstance(other, tj.Variable)
    assert other is not v
    assert (other.dtype, other.shape) == (v.dtype, v.shape)
    assert (other.name, other.trainable) == ("w", False)
    assert other.constraint is halved
    v.assign([3, 4])
    assert other.tolist() == [1, 2]
    other.assign([5, 6])
    assert v.tolist() == [3, 4]


@pytest.mark.parametrize("duplicate", INDEPENDENT.values(), ids=INDEPENDENT)
def test_s35_one_variable_in_two_places_stays_one(duplicate: Any) -> None:
    v = tj.Variable([1.0, 2.0])
    model = duplicate({"tied": [v, v], "other": tj.Variable([1.0, 2.0])})
    first, second = model["tied"]
    assert first is second
    assert model["other"] is not first


def test_s35_an_independent_copy_has_its_own_gradient() -> None:
    v = tj.Variable(3.0)
    other = copy.deepcopy(v)
    with tj.GradientTape() as tape:
        y = v * v * other
    assert [float(g) for g in tape.gradient(y, [v, other])] == [18.0, 9.0]


@pytest.mark.parametrize("duplicate", INDEPENDENT.values(), ids=INDEPENDENT)
def test_s35_tensors_can_be_copied_and_pickled_tapes_cannot(duplicate: Any) -> None:
    x = tj.asarray([[1.0, 2.0]], dtype="bfloat16")
    again = duplicate(x)
    assert (again.dtype, again.tolist()) == (x.dtype, x.tolist())
    tape = tj.GradientTape()
    with pytest.raises(TypeError, match="GradientTape"):
        duplicate(tape)
    with pytest.raises(TypeError, match="GradientTape"):
        copy.copy(tape)


def test_s35_a_constraint_is_left_to_optimizers() -> None:
    v = tj.Variable([1.0, 2.0], constraint=halved)
    assert v.tolist() == [1.0, 2.0]
    v.assign([4.0, 8.0])
    v.assign_add([2.0, 2.0])
    v.scatter_add([0], [1.0])
    assert v.tolist() == [7.0, 10.0]
    assert v.constraint is halved
