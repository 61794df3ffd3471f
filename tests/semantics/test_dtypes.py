"""Dtypes: defaults, promotion, casts (lines 24 and 26)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tapejit as tj

from .both_modes import assert_modes, assert_taped, note, note_error
from .fresh_process import run_python


def two() -> Any:
    return tj.asarray(2.0)


# 24: defaults and promotion


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (1.0, "float32"),
        (1, "int32"),
        (-(2**31), "int32"),
        (2**31, "int64"),
        (-(2**31) - 1, "int64"),
        (True, "bool"),
        (1j, "complex64"),
        ([1.0, 2], "float32"),
        ([1, 2], "int32"),
        ([1, 2**40], "int64"),
        ([-(2**40), 1], "int64"),
        ([True, False], "bool"),
        ([1j, 2.0], "complex64"),
        ([], "float32"),
        ([[1], [2.5]], "float32"),
        (np.ones(2), "float64"),
        (np.arange(2), "int64"),
        (np.float16([1]), "float16"),
        (np.complex128([1]), "complex128"),
        (np.array(1.0), "float64"),
        (np.float64(1.5), "float64"),
        (np.int8(3), "int8"),
    ],
    ids=repr,
)
def test_s24_python_numbers_have_defaults_and_arrays_keep_their_dtype(
    value: Any, dtype: str
) -> None:
    def program(x: Any) -> Any:
        made = tj.asarray(value), tj.constant(value), value
        note([str(tj.asarray(y).dtype) for y in made])
        return made, made[0] * x

    plain = assert_modes(program, two, notes=[[dtype] * 3])
    for made in (*plain.result[0][:2], tj.Variable(value)):
        assert made.dtype == np.dtype(dtype)
        assert isinstance(made.dtype, np.dtype)
        assert made.numpy().tolist() == np.asarray(value).tolist()


def test_s24_the_creation_functions_have_the_same_defaults() -> None:
    def program(x: Any) -> Any:
        return (
            *(tj.arange(3), tj.arange(3.0), tj.linspace(0, 1, 3), tj.zeros(2)),
            *(tj.ones(2) * x, tj.ones(2), tj.eye(2), tj.full(2, 1.0), tj.zeros_like(x)),
        )

    plain = assert_modes(program, two)
    assert [str(x.dtype) for x in plain.result] == ["int32", *["float32"] * 8]


@pytest.mark.parametrize("inside", [False, True])
def test_s24_the_default_float_is_a_setting(inside: bool) -> None:
    def body(n: Any) -> Any:
        kept = tj.asarray([1.0], dtype="float32") * 2.0
        made = tj.asarray(1.0), tj.zeros(2), n / 2, n / n, n * 1.5
        return *made, tj.asarray(1j), kept

    def program(n: Any) -> Any:
        if not inside:
            return body(n)
        with tj.config.override(default_float="float64"):
            return body(n)

    for dtype in ("float32", "float64", "float32"):
        with tj.config.override(default_float=dtype):
            found = assert_modes(program, lambda: tj.asarray(3)).result
            is_wide = inside or dtype == "float64"
            floats = ["float64" if is_wide else "float32"] * 5
            wanted = [*floats, "complex128" if is_wide else "complex64", "float32"]
            assert [str(x.dtype) for x in found] == wanted
    call = tj.function(body)
    for dtype in ("float32", "float64", "float32", "float64"):
        with tj.config.override(default_float=dtype):
            assert call(tj.asarray(3))[0].dtype == np.dtype(dtype)
    assert call.trace_count == 2


WEAK = [
    ("float32", 1, "float32"),
    ("float32", 1.5, "float32"),
    ("float32", True, "float32"),
    ("float32", np.float64(1.5), "float32"),
    ("float32", np.float16(1.5), "float32"),
    ("float32", 1j, "complex64"),
    ("float16", 1.5, "float16"),
    ("float16", np.float64(1.5), "float16"),
    ("bfloat16", 2.5, "bfloat16"),
    ("float64", 1j, "complex128"),
    ("complex64", 1.5, "complex64"),
    ("int32", 1, "int32"),
    ("int8", 1, "int8"),
    ("int32", 1.5, "float32"),
    ("int64", np.float64(1.5), "float32"),
    ("int32", 1j, "complex64"),
    ("int32", True, "int32"),
    ("bool", 1, "int32"),
    ("bool", 1.5, "float32"),
]


@pytest.mark.parametrize(("dtype", "scalar", "expected"), WEAK, ids=str)
def test_s24_scalars_are_weak(dtype: str, scalar: Any, expected: str) -> None:
    def program(x: Any, y: Any) -> Any:
        values = [x + scalar, scalar + x, tj.multiply(x, scalar), x * y, y * x]
        if dtype != "bool":
            values.append(x - y)
        note({str(z.dtype) for z in values})
        return values

    setup = lambda: (tj.asarray([1, 0], dtype=dtype), scalar)
    assert_modes(program, setup, notes=[{expected}])


def test_s24_the_usual_scale_stays_float32() -> None:
    def program(query: Any) -> Any:
        roots = query / np.sqrt(4), np.sqrt(4) * query
        return *roots, query * np.pi, query - np.mean([1.0, 2.0])

    plain = assert_modes(program, lambda: tj.ones((2, 4)))
    assert {str(x.dtype) for x in plain.result} == {"float32"}


@pytest.mark.parametrize("number", [0.1, -0.0, float("nan"), float("inf"), 1e300])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_s24_a_float_that_changes_from_call_to_call_stays_weak(
    number: float, dtype: str
) -> None:
    def program(x: Any, rate: float) -> Any:
        half = rate * 0.5 + 1.0
        return x * rate, rate - x, x / (1.0 + rate), half * x, tj.maximum(x, rate)

    call = tj.function(program)
    x = tj.asarray([1.1, -2.0, 0.0], dtype=dtype)
    for rate in (0.5, 0.25, number, 3.0, number):
        got, plain = call(x, rate), program(x, rate)
        for y, z in zip(got, plain, strict=True):
            assert y.dtype == z.dtype == x.dtype
            assert np.asarray(y).tobytes() == np.asarray(z).tobytes()
    assert call.trace_count == 2


STRONG = [
    ("float32", "float64", "float64"),
    ("float16", "float32", "float32"),
    ("float16", "bfloat16", "float32"),
    ("bfloat16", "float32", "float32"),
    ("float32", "int32", "float32"),
    ("float32", "int64", "float32"),
    ("float16", "int64", "float16"),
    ("bfloat16", "int32", "bfloat16"),
    ("float64", "int64", "float64"),
    ("float32", "bool", "float32"),
    ("float32", "complex64", "complex64"),
    ("float64", "complex64", "complex128"),
    ("int32", "int64", "int64"),
    ("int8", "uint8", "int16"),
    ("bool", "int8", "int8"),
]


@pytest.mark.parametrize(("left", "right", "expected"), STRONG, ids=str)
def test_s24_arrays_promote_as_in_numpy_but_floats_stay(
    left: str, right: str, expected: str
) -> None:
    def program(x: Any, y: Any) -> Any:
        chosen = tj.where([True, False], x, y), tj.where(x == y, x, y)
        values = x + y, y + x, y * x, *chosen, tj.concat([x, y])
        note({str(z.dtype) for z in values})
        return values

    def setup() -> Any:
        return tj.asarray([1, 0], dtype=left), tj.asarray([1, 1], dtype=right)

    assert_modes(program, setup, notes=[{expected}])


def test_s24_an_array_of_no_axes_is_not_weak() -> None:
    def program(x: Any) -> Any:
        return x * tj.asarray(np.array(2.0)), x * np.array(2.0)

    twice = np.array([2.0, 2.0])
    assert_modes(program, lambda: tj.ones(2), expected=(twice, twice))


def test_s24_integers_divide_to_the_default_float() -> None:
    def program(x: Any, n: Any) -> Any:
        return x / tj.asarray([2, 2]), n / 2, tj.mean(x), tj.sin(n)

    plain = assert_modes(program, lambda: (tj.asarray([1, 2]), tj.asarray(1)))
    assert {str(x.dtype) for x in plain.result} == {"float32"}
    assert plain.result[0].tolist() == [0.5, 1.0]


def test_s24_a_python_integer_must_fit() -> None:
    def program(x: Any, y: Any) -> Any:
        note_error(lambda: x + 300)
        note_error(lambda: y + -1)
        return x

    setup = lambda: (tj.asarray([1], dtype="int8"), tj.asarray([1], dtype="uint8"))
    errors = [(OverflowError, "300.*int8"), (OverflowError, "-1.*uint8")]
    assert_modes(program, setup, errors=errors)


def test_s24_arrays_as_arguments_promote_as_tensors() -> None:
    def program(x: Any, y: Any) -> Any:
        return x * y, y - x, x @ y

    for dtype in ("float64", "float32", "int64", "int8", "bool"):
        array = np.array([1, 0]).astype(dtype)
        assert_modes(program, lambda array=array: (tj.asarray([1.5, 2.5]), array))


def test_s24_a_float64_array_meeting_a_float32_variable_warns_once() -> None:
    data = np.array([1.0, 2.0])

    def program(v: Any, w: Any) -> Any:
        return v * data, data + v, tj.matmul(w, data)

    setup = lambda: (tj.Variable([1.0, 2.0]), tj.Variable(tj.ones((2, 2))))
    warns = [r'(?s)(?=.*astype\("float32"\)).*float64.*float32']
    plain = assert_modes(program, setup, warns=warns)
    assert {str(x.dtype) for x in plain.result} == {"float64"}


def test_s24_the_warning_comes_once_per_process() -> None:
    """Eagerly; the harness looks at one run, in which it comes once too."""
    lines = run_python(
        """
        v, data = tj.Variable([1.0, 2.0]), np.ones(2)
        for step in range(3):
            print((v * data).dtype)
        """
    )
    warned = [line for line in lines if "Warning" in line]
    assert len(warned) == 1
    assert "<string>" in warned[0], "it shows the user's line"
    assert lines.count("float64") == 3


def test_s24_nothing_else_warns() -> None:
    def program(v: Any, wide: Any, x: Any) -> Any:
        narrow = v * np.ones(2, np.float32), v * np.float64(2), v * 2.0
        arrays = wide * np.ones(2), x * np.ones(2), v * tj.asarray(np.ones(2))
        return *narrow, v * np.arange(2), *arrays

    setup = lambda: (tj.Variable([1.0, 2.0]), tj.Variable(np.ones(2)), tj.ones(2))
    assert_modes(program, setup)


def test_s24_each_operand_gets_a_gradient_of_its_own_dtype() -> None:
    def setup() -> Any:
        return tj.Variable([1.0, 2.0]), tj.Variable(np.array([3.0, 4.0]))

    expected = [np.float32([3, 4]), np.array([1.0, 2.0])]
    assert_taped(lambda x, y: tj.sum(x * y), setup, expected=expected)


# 26: casts


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint8", "bool"])
def test_s26_a_cast_through_integers_cuts_the_path(dtype: str) -> None:
    def program(x: Any) -> Any:
        return x.astype(dtype).astype("float32") * 2.0

    def inside(x: Any) -> Any:
        with tj.GradientTape() as tape:
            tape.watch(x)
            y = program(x)
        note(tape.why_none(y, x))
        return tape.gradient(y, x)

    plain = assert_modes(inside, lambda: tj.asarray([1.5, 0.0]), expected=None)
    assert dtype in plain.notes[0]
    assert_taped(program, lambda: tj.asarray([1.5, 0.0]), expected=[None], order=1)


FLOATS = ["float16", "bfloat16", "float32", "float64"]


@pytest.mark.parametrize("through", FLOATS)
@pytest.mark.parametrize("source", FLOATS)
def test_s26_casts_between_floats_differentiate(source: str, through: str) -> None:
    def program(x: Any) -> Any:
        return tj.sum(tj.astype(tj.astype(x, through) * 2.0, source) * 3.0)

    expected = tj.asarray([6.0, 6.0], dtype=source).numpy()
    setup = lambda: tj.Variable([1.5, 2.5], dtype=source)
    assert_taped(program, setup, expected=[expected], order=1)


@pytest.mark.parametrize("through", ["float16", "bfloat16", "float64", "complex64"])
def test_s26_so_they_do_to_second_order(through: str) -> None:
    def program(x: Any) -> Any:
        y = (x * x).astype(through)
        return (y.real if through == "complex64" else y).astype("float32")

    assert_taped(
        program,
        lambda: tj.asarray([1.0, 3.0]),
        expected=[np.float32([2, 6])],
        second=[np.float32([2, 2])],
    )


def test_s26_casts_from_real_to_complex_and_to_the_same_dtype_keep_the_path() -> None:
    def program(x: Any, y: Any) -> Any:
        z = tj.astype(x, tj.complex64) * (1 + 2j)
        return tj.real(z * z), tj.astype(y, tj.float32) * 2.0

    setup = lambda: (tj.Variable(3.0), tj.Variable([1.5, 2.5]))
    expected = [np.float32(2 * 3 * (1 - 4)), np.float32([2, 2])]
    assert_taped(program, setup, expected=expected)
