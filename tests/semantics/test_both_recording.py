"""The life of a tape in both modes: when it records and pauses (1 to 3, 9 to 11)."""

from __future__ import annotations

from typing import Any

import pytest

import tapejit as tj

from .both_modes import (
    Interrupted,
    assert_modes,
    assert_taped,
    note,
    note_error,
    ways,
)
from .test_recording import UNCHANGED


def variable() -> Any:
    return tj.Variable(3.0, name="v")


def variable_and_tensor() -> Any:
    return tj.Variable(3.0, name="v"), tj.asarray(2.0)


def tensor() -> Any:
    return tj.asarray(3.0)


# 1: construction, entering, exceptions


def test_s01_both_arguments_and_what_enter_returns() -> None:
    def program(v: Any) -> Any:
        found = []
        for tape in (
            tj.GradientTape(True, False),
            tj.GradientTape(persistent=True, watch_accessed_variables=False),
        ):
            with tape as entered:
                note(entered is tape)
                unwatched = v * v
                tape.watch(v)
                y = v * v
            found.append([tape.gradient(t, v) for t in (unwatched, y, y)])
        return found

    expected = [[None, 6.0, 6.0], [None, 6.0, 6.0]]
    assert_modes(program, variable, expected=expected, notes=[True, True])


@pytest.mark.parametrize("error", [KeyError("k"), Interrupted("i")])
def test_s01_an_exception_caught_in_the_body_leaves_the_tape_usable(
    error: BaseException,
) -> None:
    def program(v: Any) -> Any:
        tape = tj.GradientTape(persistent=True)
        made = []
        try:
            with tape:
                made.append(v * v)
                raise error
        except type(error) as caught:
            note(caught is error)
        late = v * v
        return tape.gradient(made[0], v), tape.gradient(late, v)

    assert_modes(program, variable, expected=(6.0, None), notes=[True])


def test_s01_an_operation_that_fails_is_not_recorded() -> None:
    def program(v: Any, x: Any) -> Any:
        with tj.GradientTape() as tape:
            note_error(lambda: v * tj.ones(3))
            note_error(lambda: (v * x) @ tj.ones(5))
            y = v * x
        return tape.gradient(y, v)

    def setup() -> Any:
        return tj.Variable([1.0, 2.0]), tj.asarray([3.0, 4.0])

    assert_modes(program, setup, expected=[3.0, 4.0])


@pytest.mark.parametrize("error", [KeyError("k"), Interrupted("i"), ValueError("v")])
def test_s01_an_exception_passes_through_the_function(error: BaseException) -> None:
    def program(v: Any) -> Any:
        with tj.GradientTape() as outer, tj.GradientTape():
            y = v * v
            v.assign(5.0)
            raise error
        return outer.gradient(y, v)

    assert_modes(program, variable, raises=(type(error), str(error)))


def test_s01_a_function_that_fails_leaves_the_tape_around_it_usable() -> None:
    def fails(v: Any) -> Any:
        with tj.GradientTape():
            v * tj.exp(v)
            raise KeyError("k")

    def program(v: Any) -> Any:
        with tj.GradientTape() as tape:
            y = v * v
            note_error(lambda: tj.function(fails)(v))
            z = y * v
        note(len(tape.watched_variables()))
        return tape.gradient(z, v)

    assert_modes(program, variable, expected=27.0, notes=[(KeyError, "'k'"), 1])


# 2: entering again


def test_s02_entering_an_active_tape_is_the_same_error() -> None:
    def program(v: Any) -> Any:
        with tj.GradientTape() as tape:
            y = v * v
            note_error(tape.__enter__)
            with tj.GradientTape():
                note_error(tape.__enter__)
            z = y * v
        return tape.gradient(z, v)

    plain = assert_modes(program, variable, expected=27.0)
    assert all(issubclass(cls, ValueError) for cls, _ in plain.notes)


def test_s02_it_escapes_as_the_same_error() -> None:
    def program(v: Any) -> Any:
        with tj.GradientTape() as tape, tape:
            return v * v

    assert_modes(program, variable, raises=(ValueError, "recording already"))


def test_s02_entering_after_exit_continues() -> None:
    def program(x: Any, v: Any) -> Any:
        tape = tj.GradientTape()
        with tape:
            tape.watch(x)
            y = x * x * v
        v.assign(5.0)
        with tape:
            z = y * x * v
        return tape.gradient(z, [x, v])

    def setup() -> Any:
        return tj.asarray(3.0), tj.Variable(2.0)

    # z = x³ a b at x = 3, a = 2, b = 5: v is the sum of both reads.
    assert_modes(
        program, setup, expected=[3 * 9.0 * 10, 27.0 * (2 + 5)], variables=[5.0]
    )


def test_s02_a_consumed_tape_starts_anew() -> None:
    def program(x: Any, v: Any) -> Any:
        tape = tj.GradientTape()
        with tape:
            tape.watch(x)
            y = x * x * v
        first = tape.gradient(y, x)
        with tape:
            z = y * x * v
        note(len(tape.watched_variables()))
        second = tape.gradient(z, [x, y])
        with tape:
            tape.watch(x)
            z = y * x
        return first, second, tape.gradient(z, x)

    def setup() -> Any:
        return tj.asarray(3.0), tj.Variable(2.0)

    assert_modes(program, setup, expected=(12.0, [None, None], 18.0), notes=[1])


def test_s02_a_persistent_tape_continues_after_gradient() -> None:
    def program(v: Any) -> Any:
        tape = tj.GradientTape(persistent=True)
        with tape:
            y = v * v
        first = tape.gradient(y, v)
        with tape:
            z = y * v
        return first, tape.gradient(z, v), tape.gradient(y, v)

    assert_modes(program, variable, expected=(6.0, 27.0, 6.0))


def test_s02_a_tape_entered_again_between_calls_of_a_function() -> None:
    def square(x: Any) -> Any:
        return x * x

    for name, call in ways(square, tensor):
        x, tape = tj.asarray(3.0), tj.GradientTape()
        with tape:
            tape.watch(x)
            y = call(x)
        between = call(x)
        with tape:
            z = call(y) * between
        assert float(tape.gradient(z, x)) == 4 * 27.0 * 9, name


# 3: a tape that has not recorded, or is not recording


def test_s03_a_tape_never_entered_says_the_same() -> None:
    def program(v: Any) -> Any:
        tape = tj.GradientTape()
        for method in ("gradient", "jacobian", "batch_jacobian", "why_none", "graph"):
            note_error(lambda method=method: getattr(tape, method)(v, v))
        note_error(lambda: tape.watch(v))
        with tape:
            y = v * v
        return tape.batch_jacobian(y, v)

    def setup() -> Any:
        return tj.Variable([[1.0, 2.0]])

    plain = assert_modes(program, setup, expected=[[[2.0, 0.0], [0.0, 4.0]]])
    for cls, text in plain.notes:
        assert issubclass(cls, RuntimeError)
        assert "never recorded" in text


def test_s03_watch_on_a_tape_that_is_not_recording() -> None:
    def program(v: Any, x: Any) -> Any:
        with tj.GradientTape() as tape:
            with tape.stop_recording():
                note_error(lambda: tape.watch(x))
            y = v * x
        note_error(lambda: tape.watch(x))
        return tape.gradient(y, [v, x])

    plain = assert_modes(program, variable_and_tensor, expected=[2.0, None])
    assert all("not recording" in text for _, text in plain.notes)


def test_s03_also_after_a_consuming_gradient_inside() -> None:
    def program(v: Any, x: Any) -> Any:
        with tj.GradientTape() as tape:
            g = tape.gradient(v * v, v)
            note_error(lambda: tape.watch(x))
        return g

    plain = assert_modes(program, variable_and_tensor, expected=6.0)
    assert "not recording" in plain.notes[0][1]


def test_s03_it_escapes_as_the_same_error() -> None:
    assert_modes(
        lambda v: tj.GradientTape().gradient(v, v),
        variable,
        raises=(RuntimeError, "never recorded"),
    )


# 9: what is recorded at all


def test_s09_only_what_depends_on_something_watched() -> None:
    def program(v: Any, x: Any) -> Any:
        with tj.GradientTape(persistent=True) as tape:
            kept = tj.exp(v)
            constant = tj.exp(tj.exp(x))
            both = kept * constant
        late = kept * v
        return [tape.gradient(t, [v, x]) for t in (kept, constant, both, late)]

    plain = assert_modes(program, variable_and_tensor)
    is_none = [[g is None for g in row] for row in plain.result]
    assert is_none == [[False, True], [True, True], [False, True], [True, True]]


def test_s09_what_runs_between_two_blocks_is_a_constant() -> None:
    def program(v: Any) -> Any:
        tape = tj.GradientTape(persistent=True)
        with tape:
            y = v * v
        between = y * v
        with tape:
            z = between * y
        return tape.gradient(z, [v, between]), tape.gradient(between, [v, y])

    assert_modes(program, variable, expected=([162.0, None], [None, None]))


def test_s09_a_call_with_nothing_watched_is_not_recorded() -> None:
    def program(x: Any, y: Any) -> Any:
        return tj.exp(x), tj.exp(y), tj.exp(x) * tj.exp(y)

    def setup() -> Any:
        return tj.asarray(1.0), tj.asarray(2.0)

    for name, call in ways(program, setup):
        x, y = setup()
        with tj.GradientTape(persistent=True) as tape:
            call(x, y)
            assert tape.nbytes == 0, f"{name}: it keeps something"
            tape.watch(x)
            a, b, c = call(x, y)
        d = call(x, y)[0]
        is_none = [tape.gradient(t, x) is None for t in (a, b, c, d)]
        assert is_none == [False, True, False, True], name
        assert tape.gradient(c, y) is None, name
    assert_taped(program, setup)


# 10: stop_recording


def test_s10_operations_inside_are_constants() -> None:
    def program(v: Any, x: Any) -> Any:
        with tj.GradientTape() as tape:
            y = v * v
            with tape.stop_recording():
                c = y * v
                x * x
            z = c * v
        note([w.name for w in tape.watched_variables()])
        return tape.gradient(z, [v, c, x])

    assert_modes(
        program, variable_and_tensor, expected=[27.0, None, None], notes=[["v"]]
    )


@pytest.mark.parametrize("op", UNCHANGED.values(), ids=UNCHANGED)
def test_s10_operations_that_change_nothing_are_constants_too(op: Any) -> None:
    def program(x: Any) -> Any:
        with tj.GradientTape() as tape:
            tape.watch(x)
            with tape.stop_recording():
                c = op(x)
            y = c * x
        return tape.gradient(y, x)

    assert_modes(program, lambda: tj.asarray([3.0, 4.0]), expected=[3.0, 4.0])


def test_s10_recording_resumes_when_the_body_raises() -> None:
    def program(v: Any) -> Any:
        def interrupted() -> None:
            with tape.stop_recording():
                v * v
                raise KeyError("k")

        with tj.GradientTape() as tape:
            note_error(interrupted)
            y = v * v
        return tape.gradient(y, v)

    assert_modes(program, variable, expected=6.0, notes=[(KeyError, "'k'")])


def test_s10_only_this_tape_pauses() -> None:
    def program(v: Any) -> Any:
        with (
            tj.GradientTape() as outer,
            tj.GradientTape() as inner,
            inner.stop_recording(),
        ):
            y = v * v
        return outer.gradient(y, v), inner.gradient(y, v)

    assert_modes(program, variable, expected=(6.0, None))


def test_s10_a_tape_that_is_not_recording_cannot_pause() -> None:
    def program(v: Any) -> Any:
        tape = tj.GradientTape()
        note_error(lambda: tape.stop_recording().__enter__())
        with tape:
            with tape.stop_recording():
                note_error(lambda: tape.stop_recording().__enter__())
                c = v * v
            y = c * v
        note_error(lambda: tape.stop_recording().__enter__())
        return tape.gradient(y, v)

    plain = assert_modes(program, variable, expected=9.0)
    assert [cls for cls, _ in plain.notes] == [tj.TapeNotRecording] * 3


def test_s10_a_gradient_inside_is_not_taped() -> None:
    def program(v: Any) -> Any:
        with tj.GradientTape(persistent=True) as tape:
            y = v * v * v
            with tape.stop_recording():  # no warning about the cost either
                g = tape.gradient(y, v)
            z = v * g
        return g, tape.gradient(g, v), tape.gradient(z, v)

    assert_modes(program, variable, expected=(27.0, None, 27.0))


def test_s10_a_function_called_while_paused_is_a_constant() -> None:
    def program(v: Any) -> Any:
        cube = tj.function(lambda x: x * x * v)
        with tj.GradientTape() as tape:
            y = cube(v)
            with tape.stop_recording():
                c = cube(v)
            z = c * y
        return tape.gradient(z, v)

    assert_modes(program, variable, expected=27.0 * 27.0)


# 11: reset


def test_s11_reset_forgets_operations_and_watches() -> None:
    def program(v: Any, x: Any) -> Any:
        with tj.GradientTape(persistent=True) as tape:
            tape.watch(x)
            loss = v * v * x
            tape.reset()
            note(len(tape.watched_variables()))
            total = loss + x * v
            tape.watch(x)
            late = loss + x * v
        found = [tape.gradient(t, [v, x]) for t in (loss, total, late)]
        note([w.name for w in tape.watched_variables()])
        return found

    expected = [[None, None], [2.0, None], [2.0, 3.0]]
    assert_modes(program, variable_and_tensor, expected=expected, notes=[0, ["v"]])


def test_s11_reset_while_not_recording_changes_nothing() -> None:
    def program(v: Any) -> Any:
        tape = tj.GradientTape()
        note_error(tape.reset)
        with tape:
            y = v * v
            with tape.stop_recording():
                note_error(tape.reset)
        note_error(tape.reset)
        return tape.gradient(y, v)

    plain = assert_modes(program, variable, expected=6.0)
    assert [cls for cls, _ in plain.notes] == [tj.TapeNotRecording] * 3


def test_s11_reset_between_calls_of_a_function() -> None:
    def program(v: Any) -> Any:
        square = tj.function(lambda: v * v)
        with tj.GradientTape(persistent=True) as tape:
            first = square()
            tape.reset()
            second = square() * first
        return tape.gradient(first, v), tape.gradient(second, v)

    assert_modes(program, variable, expected=(None, 54.0))
