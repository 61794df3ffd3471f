"""The life of a tape: when it records, pauses and starts again (1 to 3, 9 to 11)."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Iterator
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


def test_s01_the_defaults_are_one_use_and_watching_variables() -> None:
    parameters = inspect.signature(tj.GradientTape).parameters
    assert {name: p.default for name, p in parameters.items()} == {
        "persistent": False,
        "watch_accessed_variables": True,
    }

    def program(v: Any) -> Any:
        with tj.GradientTape() as tape:
            y = v * v
        g = tape.gradient(y, v)
        note_error(lambda: tape.gradient(y, v))
        return g

    assert_modes(program, variable, expected=6.0, errors=[(RuntimeError, "")])


ERRORS = [KeyError("k"), KeyboardInterrupt(), SystemExit(3), Interrupted("i")]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_s01_an_exception_ends_the_tapes_it_passes_and_leaves_them_usable(
    error: BaseException,
) -> None:
    def program(v: Any) -> Any:
        tapes = [tj.GradientTape(persistent=True) for _ in range(2)]
        made = []
        try:
            with tapes[0], tapes[1]:
                made.append(v * v)
                raise error
        except type(error) as caught:
            note(caught is error)
        late = v * v
        note([[w is v for w in tape.watched_variables()] for tape in tapes])
        return [[tape.gradient(y, v) for y in (made[0], late)] for tape in tapes]

    expected, notes = [[6.0, None]] * 2, [True, [[True]] * 2]
    assert_modes(program, variable, expected=expected, notes=notes)


def test_s01_an_operation_that_fails_is_not_recorded_and_the_block_goes_on() -> None:
    def program(v: Any, x: Any) -> Any:
        with tj.GradientTape() as tape:
            note_error(lambda: v * tj.ones(3))
            note_error(lambda: (v * x) @ tj.ones(5))
            y = v * x
        return tape.gradient(y, v)

    def setup() -> Any:
        return tj.Variable([1.0, 2.0]), tj.asarray([3.0, 4.0])

    errors = [(ValueError, "broadcast"), (ValueError, "")]
    assert_modes(program, setup, expected=[3.0, 4.0], errors=errors)


def test_s01_a_block_abandoned_in_a_generator_ends() -> None:
    def program(v: Any) -> Any:
        def steps() -> Iterator[tuple[tj.GradientTape, tj.Tensor]]:
            with tj.GradientTape(persistent=True) as tape:
                yield tape, v * v

        generator = steps()
        tape, y = next(generator)
        generator.close()
        late = v * y
        return tape.gradient(y, v), tape.gradient(late, v)

    assert_modes(program, variable, expected=(6.0, None))


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


def test_s02_entering_an_active_tape_is_an_error_that_changes_nothing() -> None:
    def program(v: Any) -> Any:
        with tj.GradientTape() as tape:
            y = v * v
            note_error(tape.__enter__)
            with tj.GradientTape():
                note_error(tape.__enter__)
            z = y * v
        return tape.gradient(z, v)

    errors = [(ValueError, "recording already")] * 2
    assert_modes(program, variable, expected=27.0, errors=errors)


def test_s02_it_escapes_as_the_same_error() -> None:
    def program(v: Any) -> Any:
        with tj.GradientTape() as tape, tape:
            return v * v

    assert_modes(program, variable, raises=(ValueError, "recording already"))


def test_s02_entering_after_exit_continues() -> None:
    """Each block reads the variable anew; an exception is an exit like any other."""

    def program(x: Any, v: Any) -> Any:
        tape = tj.GradientTape()
        made = []

        def interrupted() -> None:
            with tape:
                tape.watch(x)
                made.append(x * x * v)
                raise KeyError

        note_error(interrupted)
        v.assign(5.0)
        with tape:
            z = made[0] * x
        with tape:
            z = z * v
        return tape.gradient(z, [x, v])

    def setup() -> Any:
        return tj.asarray(3.0), tj.Variable(2.0)

    # z = x³ a b at x = 3, a = 2, b = 5: v is the sum of both reads.
    expected = [3 * 9.0 * 10, 27.0 * (2 + 5)]
    assert_modes(program, setup, expected=expected, variables=[5.0])


def test_s02_a_consumed_tape_starts_anew() -> None:
    def program(x: Any, v: Any) -> Any:
        tape = tj.GradientTape()
        with tape:
            tape.watch(x)
            y = x * x * v
        first = tape.gradient(y, x)
        with tape:
            z = y * x * v
        note([w is v for w in tape.watched_variables()])
        note(bool(tape.why_none(z, x)))  # the watch of x is forgotten
        second = tape.gradient(z, [x, y])
        with tape:
            tape.watch(x)
            z = y * x
        return first, second, tape.gradient(z, x)

    def setup() -> Any:
        return tj.asarray(3.0), tj.Variable(2.0)

    expected = (12.0, [None, None], 18.0)
    assert_modes(program, setup, expected=expected, notes=[[True], True])


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


def test_s03_a_tape_never_entered_says_so_and_is_usable_afterwards() -> None:
    methods = ("gradient", "jacobian", "batch_jacobian", "why_none", "graph", "watch")

    def program(v: Any) -> Any:
        tape = tj.GradientTape()
        for method in methods[:-1]:
            note_error(lambda method=method: getattr(tape, method)(v, v))
        note_error(lambda: tape.watch(v))
        with tape:
            y = v * v
        return tape.batch_jacobian(y, v)

    def setup() -> Any:
        return tj.Variable([[1.0, 2.0]])

    errors = [(RuntimeError, f"{method}.*never recorded") for method in methods]
    expected = [[[2.0, 0.0], [0.0, 4.0]]]
    plain = assert_modes(program, setup, expected=expected, errors=errors)
    for error in plain.notes[:3]:
        assert "with tj.GradientTape() as tape" in error.text


def test_s03_watch_on_a_tape_that_is_not_recording_says_so() -> None:
    def program(v: Any, x: Any) -> Any:
        with tj.GradientTape() as tape:
            with tape.stop_recording():
                note_error(lambda: tape.watch(x))
            y = v * x
        note_error(lambda: tape.watch(y))
        with tj.GradientTape() as consumed:
            g = consumed.gradient(v * v, v)
            note_error(lambda: consumed.watch(x))
        return tape.gradient(y, [v, x]), g

    errors = [(RuntimeError, "watch.*not recording")] * 3
    expected = ([2.0, None], 6.0)
    assert_modes(program, variable_and_tensor, expected=expected, errors=errors)


def test_s03_a_tape_that_recorded_nothing_is_no_error() -> None:
    def program(x: Any) -> Any:
        y = x * x
        with tj.GradientTape() as tape:
            pass
        return tape.gradient(y, x)

    assert_modes(program, tensor, expected=None)


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
        held = tape.nbytes
        after, late = tj.exp(kept), tj.exp(v)
        note(tape.nbytes == held)
        targets = (kept, constant, both, after, late)
        return [tape.gradient(t, [v, x, kept]) for t in targets]

    plain = assert_modes(program, variable_and_tensor, notes=[True])
    is_none = ["".join("n" if g is None else "-" for g in row) for row in plain.result]
    assert is_none == ["-n-", "nnn", "-n-", "nnn", "nnn"]


def test_s09_a_tape_does_not_hold_what_it_does_not_record() -> None:
    """Eagerly: the values of a trace are not tensors that could be held."""
    v, x = tj.Variable(3.0), tj.ones(1000)
    with tj.GradientTape() as tape:
        kept = tj.exp(v)
        other = tj.exp(x)
        constant = tj.exp(other)
        gone = weakref.ref(other)
        del other
        assert gone() is None
    assert tape.nbytes == kept.nbytes
    assert tape.why_none(constant, v)


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


def test_s10_operations_inside_are_constants_and_variables_not_watched() -> None:
    def program(v: Any, x: Any, w: Any) -> Any:
        with tj.GradientTape() as tape:
            y = v * v
            with tape.stop_recording():
                c = y * v
                x * x * w
            z = c * v
        note([v.name for v in tape.watched_variables()])
        return tape.gradient(z, [v, c, x, w])

    setup = lambda: (*variable_and_tensor(), tj.Variable(4.0, name="w"))
    assert_modes(program, setup, expected=[27.0, None, None, None], notes=[["v"]])


UNCHANGED = {
    "reshape": lambda x: tj.reshape(x, x.shape),
    "broadcast_to": lambda x: tj.broadcast_to(x, x.shape),
    "permute_dims": lambda x: tj.permute_dims(x, (0,)),
    "squeeze": tj.squeeze,
    "slice": lambda x: x[:],
}


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
    assert issubclass(tj.TapeNotRecording, RuntimeError)
    assert issubclass(tj.TapeNotRecording, ValueError)

    def program(v: Any) -> Any:
        def pause() -> None:
            with tape.stop_recording():
                note("the body ran")

        tape = tj.GradientTape()
        note_error(pause)
        with tape:
            with tape.stop_recording():
                note_error(pause)
                c = v * v
            y = c * v
        note_error(pause)
        return tape.gradient(y, v)

    errors = [(tj.TapeNotRecording, "stop_recording.*not recording")] * 3
    plain = assert_modes(program, variable, expected=9.0, errors=errors)
    assert len(plain.notes) == 3


def test_s10_a_gradient_inside_is_not_taped() -> None:
    def program(v: Any) -> Any:
        with tj.GradientTape(persistent=True) as tape:
            y = v * v * v
            held = tape.nbytes
            with tape.stop_recording():  # no warning about the cost either
                g = tape.gradient(y, v)
            note(tape.nbytes == held)
            z = v * g
        return g, tape.gradient(g, v), tape.gradient(z, v)

    assert_modes(program, variable, expected=(27.0, None, 27.0), notes=[True])


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
    def program(v: Any, x: Any, fixed: Any) -> Any:
        with tj.GradientTape(persistent=True) as tape:
            tape.watch([x, fixed])
            loss = v * v * x * fixed
            tape.reset()
            note(len(tape.watched_variables()))
            total = loss + x * v * fixed
            tape.watch([x, fixed])
            late = loss + x * v * fixed
        found = [tape.gradient(t, [v, x, fixed]) for t in (loss, total, late)]
        note([w.name for w in tape.watched_variables()])
        with tj.GradientTape() as other:
            v * fixed
            other.reset()
            x * 2.0
        note(len(other.watched_variables()))
        return found

    def setup() -> Any:
        fixed = tj.Variable(4.0, trainable=False, name="fixed")
        return *variable_and_tensor(), fixed

    expected = [[None] * 3, [8.0, None, None], [8.0, 12.0, 6.0]]
    notes = [0, ["fixed", "v"], 0]
    assert_modes(program, setup, expected=expected, notes=notes)


def test_s11_reset_lets_go_of_values() -> None:
    """Eagerly: a trace has no values to let go of."""
    x = tj.Variable(3.0)
    with tj.GradientTape() as tape:
        y = tj.exp(x)
        held = weakref.ref(y)
        tj.exp(y)
        del y
        assert held() is not None
        tape.reset()
        assert held() is None
        assert tape.nbytes == 0


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

    errors = [(tj.TapeNotRecording, "reset.*not recording")] * 3
    assert_modes(program, variable, expected=6.0, errors=errors)


def test_s11_reset_between_calls_of_a_function() -> None:
    def program(v: Any) -> Any:
        square = tj.function(lambda: v * v)
        with tj.GradientTape(persistent=True) as tape:
            first = square()
            tape.reset()
            second = square() * first
        return tape.gradient(first, v), tape.gradient(second, v)

    assert_modes(program, variable, expected=(None, 54.0))
