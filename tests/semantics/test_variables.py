"""Variables: creation, assignment, reads (lines 32 to 34)."""

from __future__ import annotations

import inspect
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import tapejit as tj

from .fresh_process import run_python


def halved(x: Any) -> Any:
    """A constraint that can be pickled."""
    return x * 0.5


# 32: creation


def test_s32_the_arguments_are_positional_or_keyword() -> None:
    parameters = inspect.signature(tj.Variable).parameters
    assert list(parameters) == [
        "initial_value",
        "trainable",
        "dtype",
        "name",
        "constraint",
    ]
    by_place = tj.Variable([1.0, 2.0], False, "float64", "w", halved)
    by_name = tj.Variable(
        initial_value=[1.0, 2.0],
        trainable=False,
        dtype="float64",
        name="w",
        constraint=halved,
    )
    for v in (by_place, by_name):
        assert v.tolist() == [1.0, 2.0]
        assert v.trainable is False
        assert v.dtype == np.float64
        assert v.name == "w"
        assert v.constraint is halved


def test_s32_the_defaults() -> None:
    v = tj.Variable(1.0)
    assert v.trainable is True
    assert v.dtype == np.float32
    assert isinstance(v.name, str)
    assert v.constraint is None


INITIAL = {
    "float": 1.5,
    "int": 2,
    "bool": True,
    "list": [[1.0, 2.0], [3.0, 4.0]],
    "ndarray": np.arange(3),
    "tensor": tj.ones((2, 2)),
    "variable": tj.Variable([1.0, 2.0]),
    "list of tensors": [tj.asarray(1.0), 2.0],
    "empty": [],
}


@pytest.mark.parametrize("name", INITIAL)
def test_s32_the_initial_value_is_anything_asarray_takes(name: str) -> None:
    value = INITIAL[name]
    v, expected = tj.Variable(value), tj.asarray(value)
    assert (v.shape, v.dtype) == (expected.shape, expected.dtype)
    assert v.tolist() == expected.tolist()
    v.assign(v.value() if v.dtype == bool else v * 0)
    assert tj.asarray(value).tolist() == expected.tolist(), "a copy of its own"


@pytest.mark.parametrize("dtype", ["float64", np.float16, tj.int32, np.dtype("int8")])
def test_s32_the_dtype_converts_the_initial_value(dtype: Any) -> None:
    for value in ([1.0, 2.0], [1, 2], tj.asarray([1.0, 2.0]), np.array([1.0, 2.0])):
        v = tj.Variable(value, dtype=dtype)
        assert v.dtype == np.dtype(dtype)
        assert v.tolist() == [1, 2]


def test_s32_a_function_makes_the_initial_value_once() -> None:
    calls = []

    def initial() -> Any:
        calls.append(1)
        return np.ones((2, 3))

    v = tj.Variable(initial, dtype="float32")
    assert (v.shape, v.dtype) == ((2, 3), np.float32)
    assert len(calls) == 1
    v.assign_add(tj.ones((2, 3)))
    assert len(calls) == 1


def test_s32_an_error_in_that_function_passes_through() -> None:
    def initial() -> Any:
        raise KeyError("no data")

    with pytest.raises(KeyError, match="no data"):
        tj.Variable(initial)


@pytest.mark.parametrize(
    "make",
    [
        lambda: tj.Variable(),
        lambda: tj.Variable(None),
        lambda: tj.Variable(trainable=False),
        lambda: tj.Variable(lambda: None),
    ],
)
def test_s32_a_missing_initial_value_is_a_value_error(make: Any) -> None:
    with pytest.raises(ValueError, match="initial value"):
        make()


@pytest.mark.parametrize("value", ["text", b"text", object(), {"a": 1.0}, {1.0, 2.0}])
def test_s32_a_value_that_is_no_number_is_a_type_error(value: Any) -> None:
    with pytest.raises(TypeError):
        tj.Variable(value)


def test_s32_a_constraint_is_a_function() -> None:
    with pytest.raises(TypeError, match="constraint"):
        tj.Variable(1.0, constraint=3)


# 33: assignment


@pytest.mark.parametrize(
    ("method", "expected"),
    [("assign", [3, 4]), ("assign_add", [4, 6]), ("assign_sub", [-2, -2])],
)
@pytest.mark.parametrize(
    "value",
    [
        [3.0, 4.0],
        (3, 4),
        np.array([3.0, 4.0]),
        np.int64([3, 4]),
        tj.asarray([3.0, 4.0]),
        tj.Variable([3.0, 4.0]),
        [tj.asarray(3.0), 4.0],
    ],
    ids=lambda x: type(x).__name__,
)
def test_s33_assignments_return_a_read_of_the_new_value(
    method: str, expected: list[float], value: Any
) -> None:
    v = tj.Variable([1.0, 2.0])
    result = getattr(v, method)(value)
    assert type(result) is tj.Tensor
    assert result.tolist() == v.tolist() == expected
    assert result.dtype == v.dtype == np.float32
    v.assign([0.0, 0.0])
    assert result.tolist() == expected, "a plain tensor: it does not change"


ASSIGNMENTS = ["assign", "assign_add", "assign_sub"]


@pytest.mark.parametrize("method", ASSIGNMENTS)
@pytest.mark.parametrize(
    "value",
    [1.0, [1.0], [[1.0, 2.0]], [1.0, 2.0, 3.0], tj.ones((2, 1)), np.ones(0), []],
    ids=str,
)
def test_s33_the_shape_is_checked_exactly(method: str, value: Any) -> None:
    v = tj.Variable([1.0, 2.0], name="weights")
    with pytest.raises(ValueError, match=r"'weights'.*\(2,\)") as caught:
        getattr(v, method)(value)
    assert str(np.shape(np.asarray(value))) in str(caught.value)
    assert v.tolist() == [1.0, 2.0], "nothing changed"
    assert getattr(v, method)([1.0, 2.0]).shape == (2,), "a retry works"


def test_s33_a_vector_of_one_does_not_fit_a_number() -> None:
    v = tj.Variable(1.0)
    with pytest.raises(ValueError):
        v.assign([1.0])
    with pytest.raises(ValueError):
        v.assign_add(tj.ones(1))
    assert float(v) == 1.0


@pytest.mark.parametrize("method", ASSIGNMENTS)
@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("float32", tj.asarray(1.0, dtype="float64")),
        ("float64", tj.asarray(1.0)),
        ("float32", tj.asarray(1)),
        ("float32", tj.asarray(1j)),
        ("float32", 1j),
        ("float32", np.array(1j)),
        ("int32", 1.5),
        ("int32", np.array(1.5)),
        ("int32", tj.asarray(1.5)),
        ("bool", 1),
        ("bool", 1.0),
    ],
    ids=str,
)
def test_s33_the_dtype_is_checked(method: str, dtype: str, value: Any) -> None:
    v = tj.Variable(0, dtype=dtype, name="weights")
    with pytest.raises(TypeError, match="'weights'"):
        getattr(v, method)(value)
    assert not v.numpy().any()


@pytest.mark.parametrize("method", ASSIGNMENTS)
@pytest.mark.parametrize("value", [[300, 1], (-200, 0)])
def test_s33_a_number_that_does_not_fit_the_dtype_is_refused(
    method: str, value: Any
) -> None:
    v = tj.Variable([1, 2], dtype="int8")
    with pytest.raises((OverflowError, TypeError, ValueError)):
        getattr(v, method)(value)
    assert v.tolist() == [1, 2]


@pytest.mark.parametrize("method", ASSIGNMENTS)
@pytest.mark.parametrize("value", ["1", None, object(), {"a": 1.0}])
def test_s33_what_is_no_number_is_a_type_error(method: str, value: Any) -> None:
    v = tj.Variable(1.0)
    with pytest.raises(TypeError):
        getattr(v, method)(value)
    assert float(v) == 1.0


def test_s33_the_result_of_an_assignment_is_a_read_of_the_variable() -> None:
    v = tj.Variable(3.0)
    with tj.GradientTape(persistent=True) as tape:
        y = v.assign(5.0) * 2.0
        z = v.assign_add(1.0) * v.assign_sub(2.0)
    assert float(tape.gradient(y, v)) == 2.0
    assert float(tape.gradient(z, v)) == 4.0 + 6.0
    assert [w is v for w in tape.watched_variables()] == [True]


def test_s33_that_read_can_be_a_target_or_a_source() -> None:
    v = tj.Variable(3.0)
    with tj.GradientTape(persistent=True) as tape:
        result = v.assign(5.0)
    assert float(tape.gradient(result, v)) == 1.0
    with tj.GradientTape(persistent=True) as tape:
        result = v.assign(5.0)
        y = result * v
    assert float(tape.gradient(y, result)) == 5.0
    assert float(tape.gradient([y, result], v)) == 11.0


@pytest.mark.filterwarnings("ignore:.*no gradient flows:UserWarning")
@pytest.mark.parametrize("method", ASSIGNMENTS)
def test_s33_assigning_is_not_differentiable(method: str) -> None:
    x, v = tj.Variable(3.0), tj.Variable(1.0)
    with tj.GradientTape(persistent=True) as tape:
        y = x * x
        result = getattr(v, method)(y)
        z = result * v
    assert tape.gradient(result, x) is None
    assert tape.gradient(z, [x, y]) == [None, None]
    assert float(tape.gradient(z, v)) == 2 * float(v)
    assert float(tape.gradient(y, x)) == 6.0, "the value itself stays connected"


AUGMENTED = ["+=", "-=", "*=", "/=", "//=", "%=", "**=", "@=", "&=", "|=", "<<="]


@pytest.mark.parametrize("sign", AUGMENTED)
def test_s33_an_augmented_assignment_is_an_error_with_a_hint(sign: str) -> None:
    v = tj.Variable([1, 2], name="weights")
    names = {"v": v, "two": tj.asarray([2, 2])}
    with pytest.raises(RuntimeError, match="'weights'") as caught:
        exec(f"v {sign} two", names)
    assert "assign_add" in str(caught.value)
    assert names["v"] is v
    assert v.tolist() == [1, 2]


def test_s33_assigning_what_a_live_tape_tracks_warns_once() -> None:
    lines = run_python(
        """
        x, v = tj.Variable(3.0), tj.Variable(1.0)
        for step in range(3):
            with tj.GradientTape() as tape:
                v.assign(x * x)
                v.assign_add(x * x)
                v.assign_sub(x * x)
        print(float(v))
        """
    )
    warned = [line for line in lines if "Warning" in line]
    assert len(warned) == 1
    assert "no gradient flows" in warned[0]
    assert "<string>" in warned[0], "it shows the user's line"
    assert "9.0" in lines


@pytest.mark.parametrize(
    "statement",
    ["v.assign(x * x)", "v.assign_add(x)", "w[1:].assign(w[:1])", "v.assign(x)"],
)
def test_s33_each_way_to_assign_a_tracked_value_warns(statement: str) -> None:
    lines = run_python(
        f"""
        x, v, w = tj.Variable(3.0), tj.Variable(1.0), tj.Variable([1.0, 2.0])
        with tj.GradientTape() as tape:
            {statement}
        """
    )
    assert len([line for line in lines if "Warning" in line]) == 1


def test_s33_other_assignments_do_not_warn() -> None:
    lines = run_python(
        """
        x, v = tj.Variable(3.0), tj.Variable(1.0)
        with tj.GradientTape() as tape:
            y = x * x
            v.assign(2.0)
            v.assign_add(tj.asarray(2.0))
            v.assign(tj.asarray(y.numpy()))
            with tape.stop_recording():
                v.assign(x * x)
        x.assign_sub(0.1 * tape.gradient(y, x))
        v.assign(y)
        v.assign(x * x)
        """
    )
    assert lines == []


def test_s33_updates_of_many_threads_are_not_lost() -> None:
    v = tj.Variable(0.0)

    def work(_: int) -> None:
        for _ in range(200):
            v.assign_add(1.0)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert float(v) == 1600.0


# 34: reads


def test_s34_each_read_captures_its_value() -> None:
    v = tj.Variable(3.0)
    with tj.GradientTape(persistent=True) as tape:
        y = v * v
        v.assign(10.0)
        z = v * v
    assert float(tape.gradient(y, v)) == 6.0
    assert float(tape.gradient(z, v)) == 20.0
    assert float(tape.gradient([y, z], v)) == 26.0
    assert float(tape.gradient(y * 0.0, v, unconnected_gradients="zero")) == 0.0


def test_s34_reads_from_before_and_after_an_assignment_both_count() -> None:
    v = tj.Variable(3.0)
    with tj.GradientTape() as tape:
        old = v.value()
        v.assign(10.0)
        y = old * v
    assert float(y) == 30.0
    assert float(tape.gradient(y, v)) == 13.0


@pytest.mark.parametrize(
    "change",
    [
        lambda v: v.assign([10.0, 20.0]),
        lambda v: v.assign_add([7.0, 18.0]),
        lambda v: v.assign_sub([-7.0, -18.0]),
        lambda v: v.scatter_update([0, 1], [10.0, 20.0]),
        lambda v: v.scatter_add([0, 1], [7.0, 18.0]),
        lambda v: v[:].assign([10.0, 20.0]),
    ],
)
def test_s34_assigning_after_the_block_does_not_change_the_gradient(
    change: Any,
) -> None:
    v = tj.Variable([3.0, 2.0])
    with tj.GradientTape() as tape:
        y = v * v * v
    before = v.value()
    change(v)
    assert v.tolist() == [10.0, 20.0]
    assert tape.gradient(y, v).tolist() == [27.0, 12.0]
    assert before.tolist() == [3.0, 2.0]
    assert y.tolist() == [27.0, 8.0]


def test_s34_the_same_holds_for_variables_watched_by_hand() -> None:
    v = tj.Variable(3.0, trainable=False)
    with tj.GradientTape(persistent=True) as tape:
        tape.watch(v)
        y = v * v
        v.assign(10.0)
        z = v * v
    assert [float(tape.gradient(t, v)) for t in (y, z)] == [6.0, 20.0]


def test_s34_and_step_after_step() -> None:
    v = tj.Variable(1.0)
    found = []
    for _ in range(4):
        with tj.GradientTape() as tape:
            y = v * v
            v.assign_add(1.0)
            z = y * v
        found.append(float(tape.gradient(z, v)))
    # z = a² b with b = a + 1, both reads of v: 2ab + a².
    assert found == [2 * a * (a + 1) + a * a for a in (1.0, 2.0, 3.0, 4.0)]


def test_s34_a_read_is_a_reference_not_a_copy() -> None:
    v = tj.Variable(np.zeros(1000))
    assert np.shares_memory(np.asarray(v), np.asarray(v.value()))
