"""Values, kinks, complex numbers and indexing in every mode (lines 24 to 31).

The tables are those of the eager tests; here each row is a program.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tapejit as tj

from .both_modes import assert_modes, assert_taped, note, note_error
from .test_indexing import DATA, KEYS, OUT_OF_RANGE, as_numpy
from .test_kinks import HOLOMORPHIC, REAL_VALUED
from .test_values import MIXED, PROTOCOLS, STRONG, UFUNCS, VALUES, WEAK

# 24: defaults and promotion


@pytest.mark.parametrize(
    "value",
    [
        *(1.0, 1, 2**31, True, 1j, [1.0, 2], [1, 2**40], [], [[1], [2.5]]),
        *(np.ones(2), np.arange(2), np.float16([1]), np.array(1.0)),
        *(np.float64(1.5), np.int8(3)),
    ],
    ids=repr,
)
def test_s24_numbers_made_in_the_body_have_the_same_dtypes(value: Any) -> None:
    def program(x: Any) -> Any:
        made = tj.asarray(value), tj.constant(value), value
        note([str(tj.asarray(y).dtype) for y in made])
        return made, made[0] * x

    assert_modes(program, lambda: tj.asarray(2.0))


def test_s24_the_creation_functions_have_the_same_defaults() -> None:
    def program(x: Any) -> Any:
        return (
            *(tj.arange(3), tj.arange(3.0), tj.linspace(0, 1, 3), tj.zeros(2)),
            *(tj.ones(2) * x, tj.eye(2), tj.full(2, 1.0), tj.zeros_like(x)),
        )

    assert_modes(program, lambda: tj.asarray(2.0))


@pytest.mark.parametrize("inside", [False, True])
def test_s24_the_default_float_is_a_setting(inside: bool) -> None:
    def body(n: Any) -> Any:
        return tj.asarray(1.0), tj.zeros(2), n / 2, n * 1.5, tj.asarray(1j)

    def program(n: Any) -> Any:
        if not inside:
            return body(n)
        with tj.config.override(default_float="float64"):
            return body(n)

    for dtype in ("float32", "float64", "float32"):
        with tj.config.override(default_float=dtype):
            outcome = assert_modes(program, lambda: tj.asarray(3))
            wanted = "float64" if inside else dtype
            assert [str(x.dtype) for x in outcome.result[:4]] == [wanted] * 4
    call = tj.function(body)
    for dtype in ("float32", "float64", "float32", "float64"):
        with tj.config.override(default_float=dtype):
            assert call(tj.asarray(3))[0].dtype == np.dtype(dtype)
    assert call.trace_count == 2


@pytest.mark.parametrize(("dtype", "scalar", "expected"), WEAK, ids=str)
def test_s24_scalars_are_weak(dtype: str, scalar: Any, expected: str) -> None:
    def program(x: Any, y: Any) -> Any:
        values = (x + scalar, scalar + x, tj.multiply(x, scalar), x * y, y * x, x - y)
        note({str(z.dtype) for z in values})
        return values

    def setup() -> Any:
        return tj.asarray([1, 0], dtype=dtype), scalar

    if dtype == "bool":
        assert_modes(lambda x, y: (x + scalar, scalar * x, x * y), setup)
    else:
        assert_modes(program, setup, notes=[{expected}])


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


@pytest.mark.parametrize("row", STRONG, ids=str)
def test_s24_arrays_promote_alike(row: Any) -> None:
    left, right = row[:2]

    def program(x: Any, y: Any) -> Any:
        return x + y, y * x, tj.where(x == y, x, y)

    def setup() -> Any:
        return tj.asarray([1, 0], dtype=left), tj.asarray([1, 1], dtype=right)

    assert_modes(program, setup)


def test_s24_arrays_as_arguments_promote_as_tensors() -> None:
    def program(x: Any, y: Any) -> Any:
        return x * y, y - x, x @ y

    for dtype in ("float64", "float32", "int64", "int8", "bool"):
        array = np.array([1, 0]).astype(dtype)
        assert_modes(program, lambda array=array: (tj.asarray([1.5, 2.5]), array))


def test_s24_a_float64_array_meeting_a_float32_variable_warns_once() -> None:
    array = np.array([1.0, 2.0])

    def program(v: Any) -> Any:
        return v * array, array + v

    outcome = assert_modes(
        program, lambda: tj.Variable([1.0, 2.0]), warns=["float64.*float32"]
    )
    assert outcome.result[0].dtype == np.float64


def test_s24_each_operand_gets_a_gradient_of_its_own_dtype() -> None:
    def setup() -> Any:
        return tj.asarray([1.0, 2.0]), tj.asarray(np.array([3.0, 4.0]))

    assert_taped(
        lambda x, y: x * y, setup, expected=[np.float32([3, 4]), np.array([1.0, 2.0])]
    )


# 25: NumPy


@pytest.mark.parametrize("row", UFUNCS, ids=lambda row: row[0].__name__)
def test_s25_numpys_functions_are_recorded(row: Any) -> None:
    def setup() -> Any:
        return tj.Variable([0.5, 1.5], dtype="float64"), tj.asarray([0.5, 1.5])

    assert_modes(lambda v, x: (row[0](v), row[0](x)), setup)
    assert_taped(lambda v, x: (row[0](v), row[0](x)), setup)


@pytest.mark.parametrize("name", MIXED)
def test_s25_arrays_and_tensors_mix(name: str) -> None:
    function, expected = MIXED[name]

    def setup() -> Any:
        return tj.Variable([1.0, 1.0], dtype="float64")

    def inside(v: Any) -> Any:
        with tj.GradientTape() as tape:
            y = function(v)
        return y, tape.gradient(y, v), function(v.value())

    outcome = assert_modes(inside, setup)
    np.testing.assert_allclose(outcome.result[1], expected, rtol=1e-12)
    assert_taped(function, setup, order=1)


def test_s25_numpy_copies_and_np_asarray_is_read_only() -> None:
    def program(x: Any) -> Any:
        copied, seen = x.numpy(), np.asarray(x)
        copied[0] = 100.0
        note((seen.flags.writeable, copied.flags.writeable, seen.tolist()))
        with pytest.raises(ValueError, match="read-only"):
            seen[0] = 100.0
        return x * 2.0, x + copied

    assert_modes(
        program,
        lambda: tj.asarray([1.0, 2.0]),
        expected=([2.0, 4.0], [101.0, 4.0]),
        notes=[(False, True, [1.0, 2.0])],
        runs_eagerly=True,
    )


def test_s25_arrays_that_change_later_change_no_result() -> None:
    array = np.array([1.0, 2.0])
    call = tj.function(lambda x: (x, x[::-1], x.reshape((2, 1)), x * 1.0))
    with tj.GradientTape() as tape:
        scale = tj.Variable(2.0, dtype="float64")
        y = tj.function(lambda x: scale * x)(array)
    results = call(array)
    array[:] = 100.0
    found = [x.ravel().tolist() for x in results]
    assert found == [[1.0, 2.0], [2.0, 1.0], [1.0, 2.0], [1.0, 2.0]]
    assert tape.gradient(y, scale).item() == 3.0
    assert call(array)[0].tolist() == [100.0, 100.0], "each call sees its argument"


def test_s25_an_array_of_the_closure_is_what_it_was_when_traced() -> None:
    """A closure over a Python value is frozen; what was made of it never changes."""
    array = np.array([1.0, 2.0])
    call = tj.function(lambda x: x * array)
    x = tj.asarray(np.ones(2))
    first = call(x)
    array[:] = 100.0
    assert first.tolist() == [1.0, 2.0]
    assert call(x).tolist() == [1.0, 2.0]


def test_s25_a_tensor_argument_comes_back_as_another_tensor() -> None:
    x = tj.asarray([1.0, 2.0])
    call = tj.function(lambda x: (x, {"same": x}))
    for _ in range(2):
        first, second = call(x)
        assert first is not x
        assert second["same"] is not x
        assert first.tolist() == x.tolist()


# 26: casts


@pytest.mark.parametrize("dtype", ["int32", "bool", "uint8"])
def test_s26_a_cast_through_integers_cuts_the_path(dtype: str) -> None:
    def program(x: Any) -> Any:
        return x.astype(dtype).astype("float32") * 2.0

    def inside(x: Any) -> Any:
        with tj.GradientTape() as tape:
            tape.watch(x)
            y = program(x)
        note(tape.why_none(y, x))
        return tape.gradient(y, x)

    outcome = assert_modes(inside, lambda: tj.asarray([1.0, 0.0]), expected=None)
    assert dtype in outcome.notes[0]
    assert_taped(program, lambda: tj.asarray([1.0, 0.0]), expected=[None], order=1)


@pytest.mark.parametrize("through", ["float16", "bfloat16", "float64", "complex64"])
def test_s26_casts_between_floats_differentiate(through: str) -> None:
    def program(x: Any) -> Any:
        y = (x * x).astype(through)
        return (y.real if through == "complex64" else y).astype("float32")

    assert_taped(
        program,
        lambda: tj.asarray([1.0, 3.0]),
        expected=[np.float32([2, 6])],
        second=[np.float32([2, 2])],
    )


# 27: kinks


KINKS: dict[str, tuple[Any, Any, Any]] = {
    "relu": (lambda x: tj.maximum(0.0, x), [-1.0, 0.0, 2.0], [0.0, 0.0, 1.0]),
    "abs": (tj.abs, [-2.0, 0.0, 2.0], [-1.0, 0.0, 1.0]),
    "sqrt": (tj.sqrt, [0.0], [np.inf]),
    "maximum": (lambda x: tj.maximum(x, 0.0), [0.0], [1.0]),
    "minimum": (lambda x: tj.minimum(0.0, x), [0.0], [0.0]),
    "max": (tj.max, [1.0, 3.0, 3.0], [0.0, 0.5, 0.5]),
    "min": (tj.min, [1.0, 1.0, 3.0, 1.0], [1 / 3, 1 / 3, 0.0, 1 / 3]),
    "clip": (lambda x: tj.clip(x, -1.0, 1.0), [-2.0, -1.0, 1.0, 2.0], [0, 1, 1, 0]),
    "prod": (tj.prod, [0.0, 2.0, 3.0], [6.0, 0.0, 0.0]),
    "prod, two": (tj.prod, [0.0, 2.0, 0.0], [0.0, 0.0, 0.0]),
    "cumulative_prod": (tj.cumulative_prod, [2.0, 0.0, 3.0], [1.0, 8.0, 0.0]),
    "power zero": (lambda x: x**0, [0.0, 2.0], [0.0, 0.0]),
    "power two": (lambda x: x**2, [0.0, -3.0], [0.0, -6.0]),
    "exponent of zero": (lambda p: 0.0**p, [1.0, 2.0], [0.0, 0.0]),
    "exponent of -2": (lambda p: (-2.0) ** p, [2.0, 3.0], [0.0, 0.0]),
    "norm": (tj.linalg.vector_norm, [0.0, 0.0], [0.0, 0.0]),
    "floor": (tj.floor, [0.5, 1.0], [0.0, 0.0]),
    "ceil": (tj.ceil, [0.5, 1.0], [0.0, 0.0]),
    "round": (tj.round, [0.5, 1.0], [0.0, 0.0]),
    "//": (lambda x: x // 2.0, [3.0, 4.0], [0.0, 0.0]),
    "%": (lambda x: x % 2.0, [3.0, 4.5], [1.0, 1.0]),
    "sign": (tj.sign, [-1.0, 0.0, 2.0], [0.0, 0.0, 0.0]),
}


@pytest.mark.parametrize("name", KINKS)
def test_s27_kinks(name: str) -> None:
    function, at, expected = KINKS[name]

    def setup() -> Any:
        return tj.Variable(at, dtype="float64")

    def inside(v: Any) -> Any:
        with tj.GradientTape() as outer:
            with tj.GradientTape() as tape:
                y = function(v)
            g = tape.gradient(y, v)
        return y, g, outer.gradient(g, v)

    outcome = assert_modes(inside, setup)
    np.testing.assert_allclose(outcome.result[1], expected, rtol=1e-15)
    assert_taped(function, setup)


def test_s27_ties_go_to_the_first_argument() -> None:
    def setup() -> Any:
        return tj.asarray([1.0, 2.0, 5.0]), tj.asarray([1.0, 3.0, 4.0])

    assert_taped(tj.maximum, setup, expected=[[1.0, 0.0, 1.0], [0.0, 1.0, 0.0]])
    assert_taped(tj.minimum, setup, expected=[[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])


# 28: where


@pytest.mark.parametrize("at", [[1.0, -1.0], [0.0, 4.0], [np.nan, np.inf]])
def test_s28_where_masks_the_cotangent_and_shows_nan(at: Any) -> None:
    def program(x: Any) -> Any:
        safe = tj.where(x > 0.0, x, 1.0)
        return tj.where(x > 0.0, tj.log(x), x), tj.where(x > 0.0, tj.log(safe), x)

    derivatives = assert_taped(program, lambda: tj.asarray(at))
    if at[0] == 0.0:
        assert np.isnan(derivatives[2][0][0].numpy()[0])
        assert derivatives[2][1][0].tolist() == [1.0, 0.25]


# 29: complex numbers


@pytest.mark.parametrize(
    "table", [HOLOMORPHIC, REAL_VALUED], ids=["holomorphic", "real"]
)
@pytest.mark.parametrize("at", [3 + 4j, 1 - 2j])
def test_s29_complex_derivatives(table: Any, at: complex) -> None:
    for function, _ in table.values():
        assert_taped(function, lambda: tj.asarray(at, dtype="complex128"))
        assert_modes(function, lambda: tj.Variable(at))


def test_s29_the_contract() -> None:
    assert_taped(lambda z: z**2, lambda: tj.Variable(1 + 2j), expected=[2 - 4j])
    derivatives = assert_taped(tj.abs, lambda: tj.Variable(3 + 4j))
    np.testing.assert_allclose(derivatives[0][0].item(), 0.6 + 0.8j, rtol=1e-6)


# 30: indexing


@pytest.mark.parametrize("name", KEYS)
def test_s30_an_index_selects_what_numpy_selects(name: str) -> None:
    key = KEYS[name]
    assert_modes(
        lambda x: x[key] * 1.0, lambda: tj.asarray(DATA), expected=DATA[as_numpy(key)]
    )
    assert_taped(lambda x: x[key] * x[key], lambda: tj.asarray(DATA))


@pytest.mark.parametrize("name", KEYS)
def test_s30_keys_that_are_arguments(name: str) -> None:
    """Arrays and tensors in a key may be traced themselves, masks too."""
    parts = KEYS[name] if isinstance(KEYS[name], tuple) else (KEYS[name],)

    def is_array(part: Any) -> bool:
        if isinstance(part, list):
            return bool(part)
        return isinstance(part, (np.ndarray, np.generic, tj.Tensor))

    arrays = [tj.asarray(as_numpy(x)) for x in parts if is_array(x)]

    def program(x: Any, given: Any) -> Any:
        rest = iter(given)
        key = [next(rest) if is_array(p) else p for p in parts]
        y = x[tuple(key)]
        with tj.GradientTape() as tape:
            tape.watch(x)
            z = tj.sum(x[tuple(key)] * 2.0)
        return y, tape.gradient(z, x), tj.sum(y)

    assert_modes(program, lambda: (tj.asarray(DATA), arrays), traces=None)


@pytest.mark.parametrize("name", OUT_OF_RANGE)
def test_s30_what_numpy_refuses_is_the_same_error(name: str) -> None:
    key = OUT_OF_RANGE[name]
    assert_modes(
        lambda x: x[key] * 1.0, lambda: tj.asarray(DATA), raises=(IndexError, "")
    )


@pytest.mark.parametrize("at", [2, -3, 100])
def test_s30_an_index_that_is_computed_is_checked(at: int) -> None:
    def number(x: Any, index: Any) -> Any:
        return x[index - 1 + 1] * 2.0

    def several(x: Any, index: Any) -> Any:
        return x[:, tj.stack([index, 0 * index])]

    def taken(x: Any, index: Any) -> Any:
        return tj.take(x, tj.stack([0 * index, index]), axis=0)

    for program in (number, several, taken):
        size = 3 if program is several else 2
        bad = at + 1 if program is several and at == 2 else at
        bad = -4 if program is several and at == -3 else bad
        assert_modes(
            program,
            lambda bad=bad: (tj.asarray(DATA), tj.asarray(bad)),
            raises=(IndexError, f"{bad}.*{size}"),
        )
        call = tj.function(program)
        x, good = tj.asarray(DATA), tj.asarray(1)
        first = call(x, good).tolist()
        with pytest.raises(IndexError, match=str(bad)):
            call(x, tj.asarray(bad))
        assert call(x, good).tolist() == first
        assert call.trace_count == 1


def test_s30_a_mask_of_any_count() -> None:
    def program(x: Any, least: Any) -> Any:
        kept = x[x > least]
        return tj.sum(kept * kept), kept

    def given(least: float) -> Any:
        return lambda: (tj.asarray(DATA), tj.asarray(least))

    assert_modes(
        program,
        given(20.5),
        also=[given(k) for k in (-1.0, 22.5, 23.0)],
        traces=None,
    )
    assert_taped(program, given(20.5))


# 31: tensors as Python objects


def test_s31_item_assignment_is_a_type_error_with_a_way_out() -> None:
    def program(x: Any) -> Any:
        def item() -> None:
            x[0] = 5.0

        def changed() -> None:
            x[0] += 5.0

        def deleted() -> None:
            del x[0]

        for action in (item, changed, deleted):
            note_error(action)
        y = x
        y += 1.0
        y *= 2.0
        return x, y, x.at[0].set(5.0)

    outcome = assert_modes(
        program,
        lambda: tj.asarray([1.0, 2.0]),
        expected=([1.0, 2.0], [4.0, 6.0], [5.0, 2.0]),
    )
    assert all(issubclass(error, TypeError) for error, _ in outcome.notes)


@pytest.mark.parametrize("make", [tj.asarray, tj.Variable])
def test_s31_unhashable_with_ref_as_a_key(make: Any) -> None:
    def program(x: Any, other: Any) -> Any:
        with pytest.raises(TypeError, match="unhashable"):
            hash(x)
        names = {x.ref(): "x", other.ref(): "other"}
        note((names[x.ref()], x.ref() == x.ref(), x.ref() == other.ref()))
        note(x.ref().deref() is x)
        return x == other, x != 1.0, x == np.float32([1, 2])

    assert_modes(program, lambda: (make([1.0, 2.0]), make([1.0, 3.0])), traces=None)


def asking(protocol: Any, kind: str, seen: list[Any]) -> Any:
    """A body that tells what a protocol answers."""

    def body(x: Any) -> Any:
        given = x + 0 if kind == "computed" else x
        try:
            seen.append(repr(protocol(given)))
        except (TypeError, ValueError, IndexError) as error:
            seen.append((type(error), str(error).splitlines()[0]))
        return tj.asarray(0.0)

    return body


@pytest.mark.filterwarnings("ignore:.*needs a value while it is traced:UserWarning")
@pytest.mark.parametrize("kind", ["argument", "computed", "variable"])
@pytest.mark.parametrize("name", PROTOCOLS)
def test_s31_pythons_protocols(name: str, kind: str) -> None:
    """What Python asks of a tensor gets the same answer or the same error."""
    make = tj.Variable if kind == "variable" else tj.asarray
    for value in VALUES:
        seen: list[Any] = []
        x = make(value)
        body = asking(PROTOCOLS[name], kind, seen)
        body(x)
        tj.function(body)(x)
        assert seen[0] == seen[1], value


@pytest.mark.parametrize(
    ("convert", "value"),
    [(float, 2.5), (int, 2.5), (int, 7), (complex, 1.5), (bool, 0.0)],
)
def test_s31_numbers_without_axes_convert(convert: Any, value: Any) -> None:
    def program(x: Any) -> Any:
        number = convert(x * 1)
        note(number)
        return x + number

    needs = convert not in (int, bool)
    assert_modes(program, lambda: tj.asarray(value), runs_eagerly=needs, traces=None)


def test_s31_answers_are_those_of_each_call() -> None:
    def program(x: Any) -> Any:
        count = int(tj.sum(x))
        parts = [x * k for k in range(count)]
        return parts[count // 2] if count > 1 and x[0] > 0.5 else x - float(count)

    call = tj.function(program)
    for first in (0.0, 1.0, 2.0, 3.0, 1.0, 0.0):
        x = tj.asarray([first, 1.0])
        assert call(x).tolist() == program(x).tolist()


def test_s31_bool_of_several_elements_says_what_to_do() -> None:
    assert_modes(
        lambda x: x if x > 0.0 else -x,
        lambda: tj.asarray([1.0, 2.0]),
        raises=(ValueError, "2 elements"),
    )


def test_s31_iteration_and_len_are_recorded() -> None:
    def program(x: Any) -> Any:
        note(len(x))
        first, second = x
        total = sum(row * k for k, row in enumerate(x, 1))
        return first * second, total, max(first[0], second[0]), [*x][-1]

    assert_modes(program, lambda: tj.Variable([[1.0, 2.0], [3.0, 4.0]]), notes=[2])
    assert_taped(program, lambda: tj.Variable([[1.0, 2.0], [3.0, 4.0]]))
