"""Variables: creation and assignment (lines 32 and 33)."""

from __future__ import annotations

import inspect
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import tapejit as tj

from .both_modes import assert_modes, assert_taped, note, note_error
from .fresh_process import run_python

TRACKED = "no gradient flows through an assignment"


def vector() -> Any:
    return tj.Variable([1.0, 2.0, 3.0], name="v")


def vector_and_tensor() -> Any:
    return vector(), tj.asarray([10.0, 20.0, 30.0])


def two_and_tensor() -> Any:
    other = tj.Variable([5.0, 5.0, 5.0], name="w")
    return vector(), other, tj.asarray([10.0, 20.0, 30.0])


def halved(x: Any) -> Any:
    return x * 0.5


class Model:
    """Something outside a function that keeps what the function makes."""

    w: Any = None


# 32: creation. Only what something outside keeps can be made in a function (line 50),
# so what it is made of is tested in both modes, and the details of making it eagerly.


def test_s32_attributes_are_plain_python_facts() -> None:
    def program(v: Any) -> Any:
        note((v.shape, v.dtype.name, v.name, v.trainable, v.constraint is halved))
        note((v.ndim, v.size, len(v)))
        return v * 2.0

    def setup() -> Any:
        return tj.Variable([1.0, 2.0], False, "float64", "weights", halved)

    assert_modes(
        program,
        setup,
        expected=np.array([2.0, 4.0]),
        notes=[((2,), "float64", "weights", False, True), (1, 2, 2)],
    )


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
    expected = tj.asarray(value)

    def program(model: Model) -> Any:
        if model.w is None:
            model.w = tj.Variable(value)
        note((model.w.shape, model.w.dtype.name))
        return model.w.value()

    notes = [(expected.shape, expected.dtype.name)]
    array = expected.numpy()
    assert_modes(program, Model, expected=array, notes=notes, traces=None)
    v = tj.Variable(value)
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


def test_s32_a_missing_or_refused_initial_value_is_an_error() -> None:
    refused = ["text", b"text", object(), {"a": 1.0}, {1.0, 2.0}]

    def initial() -> Any:
        raise KeyError("no data")

    def program(x: Any) -> Any:
        for missing in ((), (None,), (lambda: None,)):
            note_error(lambda missing=missing: tj.Variable(*missing))
        note_error(lambda: tj.Variable(trainable=False))
        note_error(lambda: tj.Variable(initial))
        note_error(lambda: tj.Variable(1.0, constraint=3))
        for value in refused:
            note_error(lambda value=value: tj.Variable(value))
        return x

    errors: list[Any] = [(ValueError, "initial value")] * 4
    errors += [(KeyError, "no data"), (TypeError, "constraint")]
    errors += [(TypeError, "")] * len(refused)
    plain = assert_modes(program, lambda: tj.asarray(1.0), errors=errors)
    assert all(error.kind is tj.ArgumentError for error in plain.notes[:4])


# 33: assignment


ASSIGNMENTS = ["assign", "assign_add", "assign_sub"]


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("assign", [10.0, 20.0, 30.0]),
        ("assign_add", [11.0, 22.0, 33.0]),
        ("assign_sub", [-9.0, -18.0, -27.0]),
    ],
)
@pytest.mark.parametrize(
    "value",
    [
        [10.0, 20.0, 30.0],
        (10, 20, 30),
        np.array([10.0, 20.0, 30.0]),
        np.int64([10, 20, 30]),
        tj.asarray([10.0, 20.0, 30.0]),
        tj.Variable([10.0, 20.0, 30.0]),
        [tj.asarray(10.0), 20.0, np.float32(30)],
    ],
    ids=lambda x: type(x).__name__,
)
def test_s33_assignments_return_a_read_of_the_new_value(
    method: str, expected: list[float], value: Any
) -> None:
    """A plain tensor: it does not change when the variable is assigned again."""

    def program(v: Any) -> Any:
        result = getattr(v, method)(value)
        new = v.value()
        v.assign([0.0, 0.0, 0.0])
        return result, new

    wanted = np.float32(expected)
    plain = assert_modes(
        program, vector, expected=(wanted, wanted), variables=[[0.0, 0.0, 0.0]]
    )
    assert type(plain.result[0]) is tj.Tensor


def test_s33_the_value_of_a_tensor_argument_is_assigned() -> None:
    def program(v: Any, x: Any) -> Any:
        return v.assign(x), v.assign_add(x * 2.0), v.assign_sub(x)

    assert_modes(
        program,
        vector_and_tensor,
        expected=([10.0, 20.0, 30.0], [30.0, 60.0, 90.0], [20.0, 40.0, 60.0]),
        variables=[[20.0, 40.0, 60.0]],
        also=[lambda: (vector(), tj.asarray([-1.0, 0.0, 2.0]))],
    )


WRONG_SHAPES = [1.0, [1.0], [1.0, 2.0], np.ones(2), tj.ones((1, 3)), tj.ones((3, 1))]


WRONG_SHAPES += [[[1.0, 2.0, 3.0]], np.ones(0), []]


NO_NUMBERS = ["1", None, object(), {"a": 1.0}]


@pytest.mark.parametrize("method", ASSIGNMENTS)
def test_s33_the_shape_is_checked_exactly(method: str) -> None:
    def program(v: Any, number: Any) -> Any:
        assign = getattr(v, method)
        for value in (*WRONG_SHAPES, *NO_NUMBERS):
            note_error(lambda value=value: assign(value))
        for value in ([1.0], tj.ones(1)):
            note_error(lambda value=value: getattr(number, method)(value))
        return v.value(), number.value(), assign([1.0, 2.0, 3.0])

    shapes = [str(np.shape(np.asarray(x))) for x in WRONG_SHAPES]
    errors: list[Any] = [(ValueError, r"'v'.*\(3,\)") for _ in shapes]
    errors += [(TypeError, "") for _ in NO_NUMBERS] + [(ValueError, "")] * 2
    plain = assert_modes(program, lambda: (vector(), tj.Variable(1.0)), errors=errors)
    for shape, error in zip(shapes, plain.notes, strict=False):
        assert shape in error.text
    assert plain.result[0].tolist() == [1.0, 2.0, 3.0], "nothing changed"
    assert plain.result[1].tolist() == 1.0
    assert plain.result[2].shape == (3,), "a retry works"


WRONG_DTYPES = [
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
]


@pytest.mark.parametrize("method", ASSIGNMENTS)
def test_s33_the_dtype_is_checked(method: str) -> None:
    dtypes = ("float32", "float64", "int32", "bool")

    def program(small: Any, *variables: Any) -> Any:
        by_dtype = dict(zip(dtypes, variables, strict=True))
        for dtype, value in WRONG_DTYPES:
            assign = getattr(by_dtype[dtype], method)
            note_error(lambda assign=assign, value=value: assign(value))
        for value in ([300, 1], (-200, 0)):  # do not fit
            note_error(lambda value=value: getattr(small, method)(value))
        return variables

    def setup() -> Any:
        made = [tj.Variable(0, dtype=dtype, name="weights") for dtype in dtypes]
        return tj.Variable([1, 2], dtype="int8"), *made

    errors: list[Any] = [(TypeError, "'weights'") for _ in WRONG_DTYPES]
    errors += [((OverflowError, TypeError, ValueError), "")] * 2
    unchanged = [[1, 2], 0.0, 0.0, 0, False]
    assert_modes(program, setup, errors=errors, variables=unchanged)


ESCAPING = {
    "a number": (1.0, ValueError),
    "two elements": (np.ones(2), ValueError),
    "integers": (tj.asarray([1, 2, 3]), TypeError),
    "complex": (np.array([1j, 2.0, 3.0]), TypeError),
    "text": ("text", TypeError),
}


@pytest.mark.parametrize("method", ASSIGNMENTS)
@pytest.mark.parametrize("name", ESCAPING)
def test_s33_a_refused_assignment_escapes_as_the_same_error(
    method: str, name: str
) -> None:
    value, error = ESCAPING[name]

    def program(v: Any, x: Any) -> Any:
        v.assign(x)
        return getattr(v, method)(value)

    assert_modes(program, vector_and_tensor, raises=(error, ""))


AUGMENTED = ["+=", "-=", "*=", "/=", "//=", "%=", "**=", "@=", "&=", "|=", "<<="]


@pytest.mark.parametrize("sign", AUGMENTED)
def test_s33_an_augmented_assignment_is_an_error_with_a_hint(sign: str) -> None:
    def program(v: Any, x: Any) -> Any:
        names = {"v": v, "x": x}
        try:
            exec(f"v {sign} x", names)
        finally:
            note(names["v"] is v)

    def setup() -> Any:
        return tj.Variable([1, 2], name="weights"), tj.asarray([2, 2])

    assert_modes(
        program,
        setup,
        raises=(RuntimeError, "(?s)(?=.*'weights').*assign_add"),
        variables=[[1, 2]],
        notes=[True],
        same_place=False,
    )


def test_s33_the_result_of_an_assignment_is_a_read_of_the_variable() -> None:
    def program(v: Any, x: Any) -> Any:
        with tj.GradientTape(persistent=True) as tape:
            result = v.assign(x)
            y = result * 2.0
            z = v.assign_add(x) * v.assign_sub(x)
            unused = v.assign(x * x)
        note([w is v for w in tape.watched_variables()])
        found = [tape.gradient(t, v) for t in (result, y, z, unused, [y, result])]
        return found, tape.gradient(y, result)

    assert_modes(
        program,
        vector_and_tensor,
        expected=(
            [
                [1.0, 1.0, 1.0],
                [2.0, 2.0, 2.0],
                [30.0, 60.0, 90.0],
                [1.0, 1.0, 1.0],
                [3.0, 3.0, 3.0],
            ],
            [2.0, 2.0, 2.0],
        ),
        notes=[[True]],
    )


@pytest.mark.parametrize("method", ASSIGNMENTS)
def test_s33_a_returned_assignment_has_the_variables_gradient(method: str) -> None:
    """Also if the body reads the variable in no other way."""
    assert_taped(
        lambda v, x: getattr(v, method)(x),
        vector_and_tensor,
        expected=[[1.0, 1.0, 1.0], None],
        order=1,
        warns=[TRACKED],
    )
    assert_taped(
        lambda v, x: getattr(v, method)([1.0, 1.0, 1.0]) * x,
        vector_and_tensor,
        expected=[
            [10.0, 20.0, 30.0],
            {"assign": [1.0] * 3, "assign_add": [2.0, 3.0, 4.0]}.get(
                method, [0.0, 1.0, 2.0]
            ),
        ],
    )


@pytest.mark.parametrize("method", ASSIGNMENTS)
def test_s33_assigning_is_not_differentiable_by_tapes_inside(method: str) -> None:
    def program(v: Any, w: Any, x: Any) -> Any:
        with tj.GradientTape(persistent=True) as tape:
            y = w * w
            result = getattr(v, method)(y)
            z = result * v
        note(tape.why_none(result, w))
        return (
            tape.gradient(result, w),
            tape.gradient(z, [w, y]),
            tape.gradient(z, v),
            tape.gradient(y, w),
        )

    value = {"assign": 25.0, "assign_add": 26.0, "assign_sub": -24.0}[method]
    outcome = assert_modes(program, two_and_tensor, warns=[TRACKED])
    first, second, third, fourth = outcome.result
    assert first is None
    assert second == [None, None]
    assert float(third[0]) == 2 * value
    assert fourth.tolist() == [10.0, 10.0, 10.0]
    assert "assigned" in outcome.notes[0]


@pytest.mark.parametrize("method", ASSIGNMENTS)
def test_s33_nor_by_tapes_around(method: str) -> None:
    def program(v: Any, w: Any, x: Any) -> Any:
        result = getattr(v, method)(w * x)
        return result * v * x

    derivatives = assert_taped(program, two_and_tensor, warns=[TRACKED])
    assert derivatives[0][1] is None


def test_s33_what_is_not_tracked_does_not_warn_under_tapes_around() -> None:
    def program(v: Any, w: Any, x: Any) -> Any:
        v.assign(tj.stop_gradient(w * x))
        v.assign_add([1.0, 1.0, 1.0])
        v.assign_sub((w > 2.0).astype("float32"))
        v[1:].assign([5.0, 5.0])
        return w * x

    assert_taped(
        program, two_and_tensor, expected=[None, [10.0, 20.0, 30.0], [5.0] * 3]
    )


TRACKED_WAYS = {
    "assign": lambda v, w: v.assign(w * w),
    "assign_add": lambda v, w: v.assign_add(w),
    "part": lambda v, w: v[1:].assign(w[:2]),
    "variable": lambda v, w: v.assign(w),
}


@pytest.mark.parametrize("assign", TRACKED_WAYS.values(), ids=TRACKED_WAYS)
def test_s33_each_way_to_assign_a_tracked_value_warns(assign: Any) -> None:
    def program(v: Any, w: Any, x: Any) -> None:
        with tj.GradientTape():
            assign(v, w)

    assert_modes(program, two_and_tensor, warns=[TRACKED])


def test_s33_only_assignments_of_tracked_values_warn() -> None:
    def program(v: Any, w: Any, x: Any) -> Any:
        with tj.GradientTape() as tape:
            y = w * w
            v.assign([2.0, 2.0, 2.0])
            v.assign_add(x)
            with tape.stop_recording():
                v.assign(w * w)
        w.assign_sub(0.5 * tape.gradient(y, w))
        v.assign(w * w)
        v.assign(y)
        return v, w

    assert_modes(
        program,
        two_and_tensor,
        expected=([25.0] * 3, [0.0] * 3),
        variables=[[25.0] * 3, [0.0] * 3],
    )

    def through_numpy(v: Any, w: Any, x: Any) -> None:
        with tj.GradientTape():
            v.assign(tj.asarray((w * w).numpy()))

    assert_modes(through_numpy, two_and_tensor, runs_eagerly=True)


def test_s33_the_warning_comes_once_per_process() -> None:
    """Eagerly; the harness looks at one run, in which it comes once too."""
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


def test_s33_updates_of_many_threads_are_not_lost() -> None:
    v = tj.Variable(0.0)

    def work(_: int) -> None:
        for _ in range(200):
            v.assign_add(1.0)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert float(v) == 1600.0
