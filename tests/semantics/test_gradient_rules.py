"""gradient(): seeds, consumption, being asked inside, None or zero (18 to 22)."""

from __future__ import annotations

import re
import warnings
from typing import Any

import numpy as np
import pytest

import tapejit as tj
from tapejit.tape import derivative

from .both_modes import assert_modes, assert_taped, note, note_error, ways


def scalar() -> Any:
    return tj.Variable(3.0, name="v")


def vector() -> Any:
    return tj.Variable([1.0, 2.0], name="v")


def pair() -> Any:
    return tj.Variable(3.0, name="v"), tj.Variable(2.0, name="w")


# 18: output_gradients


SEEDS = {
    "tensor": tj.asarray([1.0, 10.0]),
    "variable": tj.Variable([1.0, 10.0]),
    "ndarray": np.float32([1, 10]),
    "list": [1.0, 10.0],
    "tuple": (1.0, 10.0),
    "list of scalars": [tj.asarray(1.0), 10.0],
    "list of one tensor": [tj.asarray([1.0, 10.0])],
    "integers": [1, 10],
    "integer array": np.int64([1, 10]),
    "float64 array": np.float64([1, 10]),
    "float16 tensor": tj.asarray([1.0, 10.0], dtype="float16"),
}


@pytest.mark.parametrize("seed", SEEDS.values(), ids=SEEDS)
def test_s18_the_elements_of_the_target_are_weighed(seed: Any) -> None:
    def program(x: Any) -> Any:
        with tj.GradientTape() as tape:
            y = x * x
        return tape.gradient(y, x, output_gradients=seed)

    assert_modes(program, vector, expected=np.float32([2.0, 40.0]))


def test_s18_seeds_that_are_arguments_in_the_structure_of_the_targets() -> None:
    def program(x: Any, seed: Any, scale: Any) -> Any:
        with tj.GradientTape(persistent=True) as tape:
            y, z = x * x, tj.sum(x)
        return [
            tape.gradient([y, z], x, [seed, scale]),
            tape.gradient({"b": y, "a": z}, x, {"a": 3.0, "b": seed}),
            tape.gradient({"k": (y, [z])}, x, {"k": (seed, [scale])}),
            tape.gradient([y], x, [seed]),
            tape.gradient(y, x, [0.0, 0.0]),
        ]

    def setup() -> Any:
        return vector(), tj.asarray([1.0, 10.0]), tj.asarray(3.0)

    expected = [*[[5.0, 43.0]] * 3, [2.0, 40.0], [0.0, 0.0]]
    assert_modes(program, setup, expected=expected)


def test_s18_a_scalar_takes_a_number_and_a_matrix_a_nested_list() -> None:
    def program(x: Any, m: Any) -> Any:
        with tj.GradientTape(persistent=True) as tape:
            y, z = x * x, m * m
        seeds = (2, 2.0, np.float64(2), np.array(2.0), tj.asarray(2.0))
        by_matrix = tape.gradient(z, m, [[1.0, 0.0], [0.0, 10.0]])
        return [tape.gradient(y, x, seed) for seed in seeds], by_matrix

    def setup() -> Any:
        return scalar(), tj.Variable([[1.0, 2.0], [3.0, 4.0]])

    assert_modes(program, setup, expected=([12.0] * 5, [[2.0, 0.0], [0.0, 80.0]]))


WRONG_SHAPES = {
    "scalar": 1.0,
    "scalar tensor": tj.asarray(1.0),
    "one element": [1.0],
    "three elements": [1.0, 2.0, 3.0],
    "row": tj.ones((1, 2)),
    "column": np.ones((2, 1), np.float32),
    "empty": tj.zeros(0),
}


@pytest.mark.parametrize("seed", WRONG_SHAPES.values(), ids=WRONG_SHAPES)
def test_s18_another_shape_is_an_error_that_names_both(seed: Any) -> None:
    def program(x: Any) -> Any:
        with tj.GradientTape() as tape:
            y = x * x
        note_error(lambda: tape.gradient(y, x, output_gradients=seed))
        return tape.gradient(y, x, [1.0, 1.0])

    shape = re.escape(str(np.shape(np.asarray(seed))))
    named = rf"(?s)(?=.*output gradient)(?=.*{shape}).*\(2,\)"
    assert_modes(program, vector, expected=[2.0, 4.0], errors=[(ValueError, named)])


ONE = [1.0, 1.0]


WRONG_STRUCTURES = {
    "too few": lambda: [tj.asarray(ONE)],
    "too many": lambda: [tj.asarray(ONE)] * 3,
    "dict": lambda: {"a": tj.asarray(ONE), "b": tj.asarray(ONE)},
    "nested": lambda: [[tj.asarray(ONE)], tj.asarray(ONE)],
    "one tensor": lambda: tj.asarray(ONE),
}


@pytest.mark.parametrize("make", WRONG_STRUCTURES.values(), ids=WRONG_STRUCTURES)
def test_s18_another_structure_is_an_error_that_names_both(make: Any) -> None:
    def program(x: Any) -> Any:
        with tj.GradientTape() as tape:
            targets = [x * x, x * 3.0]
        note_error(lambda: tape.gradient(targets, x, output_gradients=make()))
        return tape.gradient(targets, x)

    errors = [(ValueError, "output_gradients.*targets")]
    assert_modes(program, vector, expected=[5.0, 7.0], errors=errors)


def test_s18_a_missing_key_or_a_none_entry_is_an_error_not_ones() -> None:
    def program(x: Any) -> Any:
        with tj.GradientTape() as tape:
            y, z = x * x, x * 3.0
        named = {"mean": y, "scale": z}
        note_error(lambda: tape.gradient(named, x, {"mean": tj.ones(2)}))
        note_error(lambda: tape.gradient([y, z], x, [None, tj.ones(2)]))
        note_error(lambda: tape.gradient([y, z], x, [None, None]))
        note_error(lambda: tape.gradient([y], x, [None]))
        return tape.gradient([y, z], x)

    texts = ["'scale'", "output gradient.*missing", "missing|output_grad", "missing"]
    errors = [(ValueError, text) for text in texts]
    assert_modes(program, vector, expected=[5.0, 7.0], errors=errors)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("seed_dtype", ["float16", "float32", "float64", "int32"])
def test_s18_its_dtype_is_converted_never_reinterpreted(
    dtype: str, seed_dtype: str
) -> None:
    def program(x: Any, seed: Any) -> Any:
        with tj.GradientTape() as tape:
            y = x * x
        return tape.gradient(y, x, seed)

    def setup() -> Any:
        x = tj.Variable([1.0, 2.0], dtype=dtype)
        return x, tj.asarray([1, 10], dtype=seed_dtype)

    assert_modes(program, setup, expected=np.array([2, 40], dtype))


def test_s18_complex_seeds_are_refused_or_promoted() -> None:
    def program(x: Any, z: Any) -> Any:
        with tj.GradientTape() as tape:
            y = x * x
        with tj.GradientTape() as other:
            w = z * z
        note_error(lambda: tape.gradient(y, x, tj.asarray([1j, 2j])))
        return tape.gradient(y, x), other.gradient(w, z, tj.asarray([2.0]))

    def setup() -> Any:
        return vector(), tj.Variable([1 + 2j])

    errors = [(TypeError, "complex64.*float32")]
    assert_modes(program, setup, expected=([2.0, 4.0], [4 - 8j]), errors=errors)


def test_s18_what_is_no_number_is_a_type_error() -> None:
    def program(x: Any) -> Any:
        with tj.GradientTape() as tape:
            y = x * x
        for seed in ("ones", object(), ["a", "b"]):
            note_error(lambda seed=seed: tape.gradient(y, x, output_gradients=seed))
        return tape.gradient(y, x)

    assert_modes(program, vector, expected=[2.0, 4.0], errors=[(TypeError, "")] * 3)


def test_s18_seeds_of_the_results_of_a_call() -> None:
    def program(x: Any) -> Any:
        return x * x, tj.sum(x)

    for name, call in ways(program, vector):
        x = vector()
        with tj.GradientTape(persistent=True) as tape:
            y, z = call(x)
        g = tape.gradient([y, z], x, [tj.asarray([1.0, 10.0]), tj.asarray(3.0)])
        assert g.tolist() == [5.0, 43.0], name
        with pytest.raises(ValueError, match=r"\(3,\).*\(2,\)"):
            tape.gradient(y, x, tj.ones(3))


# 19: a tape of one use, and calls that fail


ASK = {
    "gradient": lambda tape, y, x: tape.gradient(y, x),
    "jacobian": lambda tape, y, x: tape.jacobian(y, x),
    "batch_jacobian": lambda tape, y, x: tape.batch_jacobian(y, x),
}


@pytest.mark.parametrize("second", ASK)
@pytest.mark.parametrize("first", ASK)
def test_s19_a_second_call_on_a_tape_of_one_use_is_an_error(
    first: str, second: str
) -> None:
    def program(x: Any) -> Any:
        with tj.GradientTape() as tape:
            y = x * x
        found = ASK[first](tape, y, x)
        note_error(lambda: ASK[second](tape, y, x))
        return found

    text = rf"(?s){second} on a tape that was used up.*persistent=True"
    setup = lambda: tj.Variable([[1.0, 2.0]])
    assert_modes(program, setup, errors=[(RuntimeError, text)])


def test_s19_a_persistent_tape_can_be_asked_any_number_of_times() -> None:
    def program(x: Any) -> Any:
        with tj.GradientTape(persistent=True) as tape:
            y = x * x
        return [(tape.gradient(y, x), tape.jacobian(y, x)) for _ in range(3)]

    expected = [([2.0, 4.0], [[2.0, 0.0], [0.0, 4.0]])] * 3
    assert_modes(program, vector, expected=expected)


def test_s19_it_escapes_as_the_same_error() -> None:
    def program(x: Any) -> Any:
        with tj.GradientTape() as tape:
            y = x * x
        x.assign(tape.gradient(y, x))
        return tape.gradient(y, x)

    assert_modes(program, vector, raises=(RuntimeError, "used up"))


REFUSED_CALLS = {
    "target": lambda tape, y, x: tape.gradient(1.0, x),
    "source": lambda tape, y, x: tape.gradient(y, [x, "x"]),
    "unconnected": lambda tape, y, x: tape.gradient(y, x, None, "nothing"),
    "seed shape": lambda tape, y, x: tape.gradient(y, x, [1.0, 2.0, 3.0]),
    "seed structure": lambda tape, y, x: tape.gradient([y, y], x, [1.0]),
    "seed dtype": lambda tape, y, x: tape.gradient(y, x, tj.asarray([1j, 1j])),
    "jacobian target": lambda tape, y, x: tape.jacobian(None, x),
    "jacobian chunk": lambda tape, y, x: tape.jacobian(y, x, chunk_size=0),
    "batch_jacobian rank": lambda tape, y, x: tape.batch_jacobian(y, x),
    "unknown keyword": lambda tape, y, x: tape.gradient(y, x, grad_ys=1),
}


@pytest.mark.parametrize("call", REFUSED_CALLS.values(), ids=REFUSED_CALLS)
def test_s19_a_refused_call_leaves_the_tape_as_it_was(call: Any) -> None:
    """Also inside its own block, where it goes on recording."""

    def program(x: Any) -> Any:
        with tj.GradientTape() as tape:
            y = x * x
            note_error(lambda: call(tape, y, x))
            z = y * x
        held = tape.nbytes
        for _ in range(2):
            note_error(lambda: call(tape, y, x))
        note(tape.nbytes == held)
        return tape.gradient(z, x)

    errors = [((TypeError, ValueError), "")] * 3
    plain = assert_modes(program, vector, expected=[3.0, 12.0], errors=errors)
    assert plain.notes[-1] is True


@pytest.mark.parametrize("inside", [False, True], ids=["after", "inside"])
def test_s19_an_adjoint_that_cannot_be_built_leaves_the_tape_as_it_was(
    monkeypatch: pytest.MonkeyPatch, inside: bool
) -> None:
    """The whole adjoint is built before anything is consumed."""

    def fail(*args: Any, **kwargs: Any) -> Any:
        raise ZeroDivisionError("a rule that raises")

    def program(x: Any) -> Any:
        def ask() -> None:
            with monkeypatch.context() as patch:
                patch.setattr(derivative, "vjp", fail)
                note_error(lambda: tape.gradient(y, x))

        with tj.GradientTape() as tape:
            y = tj.sin(x) * x - x
            if inside:
                ask()
            z = y * 1.0
        if not inside:
            ask()
        return tape.gradient(z, x)

    errors = [(ZeroDivisionError, "a rule that raises")]
    plain = assert_modes(program, vector, errors=errors)
    expected = np.cos([1.0, 2.0]) * [1.0, 2.0] + np.sin([1.0, 2.0]) - 1
    np.testing.assert_allclose(plain.result.numpy(), expected, rtol=1e-5)


def test_s19_a_grad_fn_that_raises_leaves_the_tape_as_it_was() -> None:
    def program(x: Any) -> Any:
        fails = [True]

        @tj.custom_gradient
        def cube(x: Any) -> Any:
            def grad(g: Any) -> Any:
                if fails[0]:
                    raise KeyError("grad_fn")
                return g * 3.0 * x * x

            return x * x * x, grad

        with tj.GradientTape() as tape:
            y = cube(x)
            note_error(lambda: tape.gradient(y, x))
            y = y * x  # it goes on recording
        note_error(lambda: tape.gradient(y, x))
        note_error(lambda: tape.jacobian(y, x))
        fails[0] = False
        return tape.gradient(y, x)

    errors = [(KeyError, "grad_fn")] * 3
    assert_modes(program, vector, expected=[4.0, 32.0], errors=errors)


def test_s19_a_call_in_between_makes_no_difference() -> None:
    def square(x: Any) -> Any:
        return x * x

    for name, call in ways(square, vector):
        x = vector()
        with tj.GradientTape() as tape:
            y = call(x)
        with pytest.raises(ValueError, match="output gradient"):
            tape.gradient(y, x, tj.ones(3))
        assert tape.gradient(y, x).tolist() == [2.0, 4.0], name
        with pytest.raises(RuntimeError, match="used up"):
            tape.gradient(y, x)


# 20: inside its own block


@pytest.mark.parametrize("method", ["gradient", "jacobian"])
def test_s20_a_tape_of_one_use_stops_recording_first(method: str) -> None:
    def program(x: Any) -> Any:
        with tj.GradientTape() as tape:
            y = x * x
            g = getattr(tape, method)(y, x)
            note_error(lambda: tape.watch(y))
            note_error(tape.reset)
            tj.exp(x) * y
            note(tape.nbytes)
        with tape:
            z = x * x * x
        return g, tape.gradient(z, x)

    errors = [(RuntimeError, "not recording"), (tj.TapeNotRecording, "not recording")]
    plain = assert_modes(program, scalar, expected=(6.0, 27.0), errors=errors)
    assert plain.notes[-1] == 0, "nothing is recorded any more"


def test_s20_it_stays_stopped_when_it_was_asked_while_paused() -> None:
    def program(x: Any) -> Any:
        with tj.GradientTape() as tape:
            y = x * x
            with tape.stop_recording():
                g = tape.gradient(y, x)
            tj.exp(x) * y
            note(tape.nbytes)
            note_error(lambda: tape.watch(y))
        return g

    errors = [(RuntimeError, "not recording")]
    plain = assert_modes(program, scalar, expected=6.0, errors=errors)
    assert plain.notes[0] == 0, "nothing is recorded any more"


@pytest.mark.parametrize("method", ["gradient", "jacobian"])
def test_s20_a_persistent_tape_records_its_gradient_and_warns_once(method: str) -> None:
    def program(x: Any) -> Any:
        with tj.GradientTape(persistent=True) as tape:
            y = x * x * x
            first = getattr(tape, method)(y, x)
            second = getattr(tape, method)(first, x)
        return first, second, tape.gradient(second, x)

    assert_modes(
        program, scalar, expected=(27.0, 18.0, 6.0), warns=["inside its own block"]
    )


def test_s20_a_jacobian_inside_is_recorded_too() -> None:
    def program(x: Any) -> Any:
        with tj.GradientTape(persistent=True) as tape:
            y = x * x * x
            matrix = tape.jacobian(y, x)
            total = tj.sum(matrix * matrix)
        return matrix, tape.gradient(total, x)

    expected = [[3.0, 0.0], [0.0, 12.0]], [2.0 * 3 * 6, 2.0 * 12 * 12]
    assert_modes(program, vector, expected=expected, warns=["persistent"])


def test_s20_it_warns_once_about_the_cost_and_shows_the_users_line(mode: Any) -> None:
    def program(x: Any) -> Any:
        with tj.GradientTape(persistent=True) as tape:
            y = x * x
            tape.gradient(y, x)
            tape.gradient(y, x)
            tape.jacobian(y, x)
            tape.batch_jacobian(y, x)
        return tape.gradient(y, x)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        mode(program)(tj.Variable([[3.0, 1.0]]))
    (warning,) = caught
    assert warning.filename == __file__
    assert "time and memory" in str(warning.message)
    assert "stop_recording" in str(warning.message)


def test_s20_a_warning_turned_into_an_error_leaves_the_tape_usable() -> None:
    def program(x: Any) -> Any:
        with tj.GradientTape(persistent=True) as tape:
            y = x * x
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                note_error(lambda: tape.gradient(y, x))
            z = y * x
        return tape.gradient(z, x)

    assert_modes(program, scalar, expected=27.0, errors=[(UserWarning, "")])


def test_s20_an_outer_tape_goes_on() -> None:
    def program(x: Any) -> Any:
        with tj.GradientTape() as outer:
            with tj.GradientTape() as inner:
                g = inner.gradient(x * x * x, x)
            z = g * x
        return outer.gradient(z, x)

    assert_modes(program, scalar, expected=81.0)


def test_s20_a_gradient_of_calls_inside_the_block() -> None:
    def cube(x: Any) -> Any:
        return x * x * x

    for name, call in ways(cube, scalar):
        x = scalar()
        with tj.GradientTape(persistent=True) as tape:
            y = call(x)
            with pytest.warns(UserWarning, match="inside its own block"):
                first = tape.gradient(y, x)
            second = tape.gradient(first, x)
        found = [float(g) for g in (first, second, tape.gradient(second, x))]
        assert found == [27.0, 18.0, 6.0], name


# 21: None or zero


CONNECTED = {
    "times zero": lambda x: x * 0.0,
    "minus itself": lambda x: x - x,
    "branch of where not taken": lambda x: tj.where(False, x, 1.0),
    "smaller of a maximum": lambda x: tj.maximum(x, 100.0),
    "element not selected": lambda x: tj.stack([x, 2.0 * x])[1:] * 0.0,
    "slice of nothing": lambda x: tj.stack([x, x])[:0],
    "multiplied by zeros": lambda x: x * tj.zeros(3),
    "clipped": lambda x: tj.clip(x, 10.0, 20.0),
    "floor": tj.floor,
    "sign": tj.sign,
    "power zero": lambda x: x**0,
    "zero exponent tensor": lambda x: x ** tj.asarray(0.0),
    "floor of a product": lambda x: tj.floor(x * 2.0) * 3.0,
    "sum of an empty axis": lambda x: tj.sum(x * tj.zeros(0)),
}


@pytest.mark.parametrize("function", CONNECTED.values(), ids=CONNECTED)
def test_s21_a_vanishing_derivative_is_zero(function: Any) -> None:
    def program(x: Any) -> Any:
        with tj.GradientTape() as tape:
            y = function(x)
        return tape.gradient(y, x)

    assert_modes(program, scalar, expected=0.0)
    assert_taped(function, scalar, expected=[0.0])


CUT = {
    "stop_gradient": tj.stop_gradient,
    "constant": lambda x: tj.asarray(2.0),
    "zeros_like": tj.zeros_like,
    "ones_like": tj.ones_like,
    "comparison": lambda x: tj.astype(x > 1.0, tj.float32),
    "condition of where": lambda x: tj.where(x > 1.0, 1.0, 2.0),
    "position": lambda x: tj.astype(tj.argmax(tj.stack([x, x])), tj.float32),
    "index": lambda x: tj.asarray([1.0, 2.0, 3.0, 4.0])[tj.astype(x, tj.int32)],
    "shape": lambda x: tj.asarray(float(x.size)),
    "isnan": lambda x: tj.astype(tj.isnan(x), tj.float32),
}


@pytest.mark.parametrize("function", CUT.values(), ids=CUT)
def test_s21_without_a_path_it_is_none(function: Any) -> None:
    def program(x: Any) -> Any:
        with tj.GradientTape() as tape:
            y = function(x)
        return tape.gradient(y, x)

    assert_modes(program, scalar, expected=None)
    assert_taped(function, scalar, expected=[None], order=1)


def test_s21_each_source_has_the_sum_of_its_own_paths_or_none() -> None:
    def program(x: Any, w: Any) -> Any:
        with tj.GradientTape(persistent=True) as tape:
            beside_zero = tj.floor(x + 0.7) * w + x
            targets = beside_zero, tj.stop_gradient(x) * w, w * 2.0
        return [tape.gradient(y, [x, w]) for y in targets]

    assert_modes(program, pair, expected=[[1.0, 3.0], [None, 3.0], [None, 2.0]])


def test_s21_each_output_has_its_own_connections() -> None:
    def program(a: Any, b: Any) -> Any:
        both = tj.function(lambda a, b: (a * 2.0, [b * 3.0, a * b], tj.ones(2)))
        with tj.GradientTape(persistent=True) as tape:
            first, (second, third), constant = both(a, b)
        targets = (first, second, third, constant, [first, second])
        return [tape.gradient(t, [a, b]) for t in targets]

    expected = [[2.0, None], [None, 3.0], [2.0, 3.0], [None, None], [2.0, 3.0]]
    assert_modes(program, pair, expected=expected)
    assert_taped(lambda a, b: (a * 2.0, b * 3.0, a * b), pair, expected=[4.0, 6.0])


def test_s21_nested_functions_keep_the_connections() -> None:
    def program(a: Any, b: Any) -> Any:
        @tj.function
        def inner(a: Any, b: Any) -> Any:
            return tj.stop_gradient(a) * b, tj.floor(a), a

        @tj.function
        def outer(a: Any, b: Any) -> Any:
            x, y, z = inner(a, b)
            return x, y, inner(b, z)[0]

        with tj.GradientTape(persistent=True) as tape:
            found = outer(a, b)
        return [tape.gradient(t, [a, b]) for t in found]

    expected = [[None, 3.0], [0.0, None], [2.0, None]]
    assert_modes(program, pair, expected=expected)


@pytest.mark.parametrize("value", [2.0, -2.0])
def test_s21_python_branches_connect_what_ran(value: float) -> None:
    def program(x: Any, a: Any, b: Any) -> Any:
        with tj.GradientTape() as tape:
            y = a * x if x > 0 else b * x
        return tape.gradient(y, [a, b])

    def setup(value: float = value) -> Any:
        return tj.asarray(value), *pair()

    expected = [2.0, None] if value > 0 else [None, -2.0]
    assert_modes(
        program, setup, expected=expected, also=[lambda: setup(-value), setup], traces=1
    )
    around = [4.0 * 0 + 3.0, 2.0, None] if value > 0 else [2.0, None, -2.0]
    assert_taped(lambda x, a, b: a * x if x > 0 else b * x, setup, expected=around)


def test_s21_connectivity_does_not_depend_on_values() -> None:
    def program(x: Any, scale: Any) -> Any:
        with tj.GradientTape() as tape:
            y = tj.where(x > 0.0, x * scale, 0.0)
        return tape.gradient(y, x)

    def at(value: float, scale: float) -> Any:
        return lambda: (tj.Variable(value), tj.asarray(scale))

    points = [(x, s) for x in (-1.0, 0.0, 1.0) for s in (0.0, 1.0)]
    others = [at(x, s) for x, s in points]
    assert_modes(program, at(1.0, 2.0), expected=2.0, also=others)
    for (x, s), setup in zip(points, others, strict=True):
        assert float(program(*setup())) == s * (x > 0)


def test_s21_a_returned_argument_and_a_returned_variable_are_connected() -> None:
    def program(v: Any, x: Any) -> Any:
        return x, v, [x, v * 1.0]

    def setup() -> Any:
        return tj.Variable(3.0), tj.asarray(2.0)

    assert_taped(program, setup, expected=[2.0, 2.0], order=1)
