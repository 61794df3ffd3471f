"""gradient() in both modes: seeds, consumption, None or zero, why (18 to 22)."""

from __future__ import annotations

import re
import warnings
from typing import Any

import numpy as np
import pytest

import tapejit as tj

from .both_modes import assert_modes, assert_taped, note, note_error, ways
from .test_gradient_rules import (
    ASK,
    CONNECTED,
    CUT,
    REFUSED_CALLS,
    SEEDS,
    WRONG_SHAPES,
    WRONG_STRUCTURES,
)


def scalar() -> Any:
    return tj.Variable(3.0, name="v")


def vector() -> Any:
    return tj.Variable([1.0, 2.0], name="v")


def pair() -> Any:
    return tj.Variable(3.0, name="v"), tj.Variable(2.0, name="w")


# 18: output_gradients


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
            tape.gradient(y, x, [0.0, 0.0]),
        ]

    def setup() -> Any:
        return vector(), tj.asarray([1.0, 10.0]), tj.asarray(3.0)

    assert_modes(program, setup, expected=[[5.0, 43.0]] * 3 + [[0.0, 0.0]])


@pytest.mark.parametrize("seed", WRONG_SHAPES.values(), ids=WRONG_SHAPES)
def test_s18_another_shape_is_the_same_error(seed: Any) -> None:
    def program(x: Any) -> Any:
        with tj.GradientTape() as tape:
            y = x * x
        note_error(lambda: tape.gradient(y, x, output_gradients=seed))
        return tape.gradient(y, x, [1.0, 1.0])

    plain = assert_modes(program, vector, expected=[2.0, 4.0])
    cls, text = plain.notes[0]
    assert issubclass(cls, ValueError)
    assert "(2,)" in text


@pytest.mark.parametrize("make", WRONG_STRUCTURES.values(), ids=WRONG_STRUCTURES)
def test_s18_another_structure_is_the_same_error(make: Any) -> None:
    def program(x: Any) -> Any:
        with tj.GradientTape() as tape:
            targets = [x * x, x * 3.0]
        note_error(lambda: tape.gradient(targets, x, output_gradients=make()))
        note_error(lambda: tape.gradient(targets, x, [None, tj.ones(2)]))
        note_error(lambda: tape.gradient(targets[:1], x, [None]))
        return tape.gradient(targets, x)

    plain = assert_modes(program, vector, expected=[5.0, 7.0])
    assert all(issubclass(cls, ValueError) for cls, _ in plain.notes)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("seed_dtype", ["float16", "float64", "int32"])
def test_s18_its_dtype_is_converted(dtype: str, seed_dtype: str) -> None:
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
        with tj.GradientTape(persistent=True) as tape:
            y, w = x * x, z * z
        note_error(lambda: tape.gradient(y, x, tj.asarray([1j, 2j])))
        return tape.gradient(w, z, tj.asarray([2.0]))

    def setup() -> Any:
        return vector(), tj.Variable([1 + 2j])

    plain = assert_modes(program, setup, expected=[4 - 8j])
    assert issubclass(plain.notes[0][0], TypeError)


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


@pytest.mark.parametrize("second", ASK)
@pytest.mark.parametrize("first", ASK)
def test_s19_a_second_call_is_the_same_error(first: str, second: str) -> None:
    def program(x: Any) -> Any:
        with tj.GradientTape() as tape:
            y = x * x
        found = ASK[first](tape, y, x)
        note_error(lambda: ASK[second](tape, y, x))
        return found

    plain = assert_modes(program, lambda: tj.Variable([[1.0, 2.0]]))
    ((cls, text),) = plain.notes
    assert issubclass(cls, RuntimeError)
    assert f"{second} on a tape that was used up" in text


def test_s19_it_escapes_as_the_same_error() -> None:
    def program(x: Any) -> Any:
        with tj.GradientTape() as tape:
            y = x * x
        x.assign(tape.gradient(y, x))
        return tape.gradient(y, x)

    assert_modes(program, vector, raises=(RuntimeError, "used up"))


@pytest.mark.parametrize("call", REFUSED_CALLS.values(), ids=REFUSED_CALLS)
def test_s19_a_refused_call_leaves_the_tape_as_it_was(call: Any) -> None:
    def program(x: Any) -> Any:
        with tj.GradientTape() as tape:
            y = x * x
            note_error(lambda: call(tape, y, x))
            z = y * x
        note_error(lambda: call(tape, y, x))
        return tape.gradient(z, x)

    assert_modes(program, vector, expected=[3.0, 12.0])


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
            y = cube(x) * x
        note_error(lambda: tape.gradient(y, x))
        note_error(lambda: tape.jacobian(y, x))
        fails[0] = False
        return tape.gradient(y, x)

    plain = assert_modes(program, vector, expected=[4.0, 32.0])
    assert all(cls is KeyError for cls, _ in plain.notes)


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


def test_s20_a_tape_of_one_use_stops_recording_first() -> None:
    def program(x: Any) -> Any:
        with tj.GradientTape() as tape:
            y = x * x
            g = tape.gradient(y, x)
            note_error(lambda: tape.watch(y))
            note_error(tape.reset)
        with tape:
            z = x * x * x
        return g, tape.gradient(z, x)

    plain = assert_modes(program, scalar, expected=(6.0, 27.0))
    assert all("not recording" in text for _, text in plain.notes)


def test_s20_it_stays_stopped_when_it_was_asked_while_paused() -> None:
    def program(x: Any) -> Any:
        with tj.GradientTape() as tape:
            y = x * x
            with tape.stop_recording():
                g = tape.gradient(y, x)
            note_error(lambda: tape.watch(y))
        return g

    assert_modes(program, scalar, expected=6.0)


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


@pytest.mark.parametrize("function", CONNECTED.values(), ids=CONNECTED)
def test_s21_a_vanishing_derivative_is_zero(function: Any) -> None:
    def program(x: Any) -> Any:
        with tj.GradientTape() as tape:
            y = function(x)
        return tape.gradient(y, x)

    assert_modes(program, scalar, expected=0.0)
    assert_taped(function, scalar, expected=[0.0])


@pytest.mark.parametrize("name", [n for n in CUT if n != "other tensor"])
def test_s21_without_a_path_it_is_none(name: str) -> None:
    function = CUT[name]

    def program(x: Any) -> Any:
        with tj.GradientTape() as tape:
            y = function(x)
        return tape.gradient(y, x)

    assert_modes(program, scalar, expected=None)
    assert_taped(function, scalar, expected=[None], order=1)


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


def test_s21_values_do_not_decide() -> None:
    def program(x: Any, scale: Any) -> Any:
        with tj.GradientTape() as tape:
            y = tj.where(x > 0.0, x * scale, 0.0)
        return tape.gradient(y, x)

    def at(value: float, scale: float) -> Any:
        return lambda: (tj.Variable(value), tj.asarray(scale))

    others = [at(x, s) for x in (-1.0, 0.0, 1.0) for s in (0.0, 1.0)]
    assert_modes(program, at(1.0, 2.0), expected=2.0, also=others)


def test_s21_a_returned_argument_and_a_returned_variable_are_connected() -> None:
    def program(v: Any, x: Any) -> Any:
        return x, v, [x, v * 1.0]

    def setup() -> Any:
        return tj.Variable(3.0), tj.asarray(2.0)

    assert_taped(program, setup, expected=[2.0, 2.0], order=1)


# 22: why_none


def cut_at_stop(v: Any, w: Any, tape: Any) -> Any:
    return tj.stop_gradient(v * 2.0) * w


def cut_at_cast(v: Any, w: Any, tape: Any) -> Any:
    return tj.astype(tj.astype(v * 2.0, tj.int32), tj.float32) * w


def cut_at_comparison(v: Any, w: Any, tape: Any) -> Any:
    return tj.where(v > 2.0, w, 2.0 * w)


def cut_by_stop_recording(v: Any, w: Any, tape: Any) -> Any:
    h = v * 2.0
    with tape.stop_recording():
        y = h * 3.0
    return y * w


def cut_by_assignment(v: Any, w: Any, tape: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        w.assign(v * v)
    return w * 2.0


def not_connected(v: Any, w: Any, tape: Any) -> Any:
    v * 2.0
    return w * 2.0


def never_read(v: Any, w: Any, tape: Any) -> Any:
    return w * 2.0


def integer_target(v: Any, w: Any, tape: Any) -> Any:
    return tj.astype(v, tj.int32)


WHY = {
    cut_at_stop: "stop_gradient",
    cut_at_cast: "cast to int32",
    cut_at_comparison: "greater",
    cut_by_stop_recording: "connects",
    cut_by_assignment: "assign",
    not_connected: "no operation connects",
    never_read: "not read",
    integer_target: "int32",
}


@pytest.mark.parametrize("body", WHY)
def test_s22_the_body_is_told_the_same(body: Any) -> None:
    def program(v: Any, w: Any) -> Any:
        with tj.GradientTape(persistent=True) as tape:
            y = body(v, w, tape)
        note(tape.why_none(y, v))
        g = tape.gradient(y, v)
        note(tape.why_none(y, v))
        return g

    plain = assert_modes(program, pair, expected=None)
    assert all(WHY[body] in text for text in plain.notes)


def test_s22_unwatched_sources_and_values_read_before() -> None:
    def program(x: Any, v: Any, fixed: Any) -> Any:
        before = v.value()
        with tj.GradientTape() as tape:
            y = x * before * fixed
        for source in (x, v, fixed):
            note(tape.why_none(y, source))
        with tj.GradientTape() as recorded:
            recorded.watch(x)
            z = x * 3.0
        late = z * 2.0
        # Traced tensors know where they were made, concrete ones would pay for it.
        note(re.sub(r" \(from: .*\)", "", recorded.why_none(late, x)))
        note(recorded.why_none(z, x))
        return tape.gradient(y, [x, v, fixed]), recorded.gradient(late, x)

    def setup() -> Any:
        fixed = tj.Variable(2.0, trainable=False, name="fixed")
        return tj.asarray(3.0), tj.Variable(4.0, name="rate"), fixed

    plain = assert_modes(program, setup, expected=([None] * 3, None))
    parts = ["not watched", "before the tape", "not trainable", "outside", "is a path"]
    for text, part in zip(plain.notes, parts, strict=True):
        assert part in text


def test_s22_a_value_that_went_through_numpy() -> None:
    def program(v: Any, w: Any) -> Any:
        with tj.GradientTape() as tape:
            h = v * 2.0
            y = tj.asarray(h.numpy()) * w
        note(tape.why_none(y, v))
        return tape.gradient(y, [v, w])

    plain = assert_modes(
        program,
        pair,
        expected=[None, 6.0],
        runs_eagerly=True,
    )
    assert "numpy" in plain.notes[0].lower()


def test_s22_what_is_no_tensor_is_the_same_error() -> None:
    def program(v: Any) -> Any:
        with tj.GradientTape() as tape:
            y = v * 2.0
        note_error(lambda: tape.why_none(1.0, v))
        note_error(lambda: tape.why_none(y, "v"))
        note_error(lambda: tj.GradientTape().why_none(y, v))
        return y

    assert_modes(program, scalar)


def test_s22_a_tape_around_a_call_says_where_the_path_ends() -> None:
    def program(v: Any, w: Any) -> Any:
        return tj.stop_gradient(v) * w, w * 2.0, v * 2.0

    for name, call in ways(program, pair):
        v, w = pair()
        with tj.GradientTape() as tape:
            stopped, other, connected = call(v, w)
        assert "stop_gradient" in tape.why_none(stopped, v), name
        assert "test_both_gradient_rules.py" in tape.why_none(stopped, v), name
        assert "connects" in tape.why_none(other, v), name
        assert "there is a path" in tape.why_none(connected, v), name
