"""The life of a tape: when it records, pauses and starts again (1 to 3, 9 to 11)."""

from __future__ import annotations

import contextlib
import inspect
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tapejit as tj


def square_inside(tape: tj.GradientTape, x: Any) -> tj.Tensor:
    """x * x, recorded by `tape`."""
    with tape:
        return x * x


# 1: construction, entering, exceptions


def test_s01_both_arguments_are_positional_or_keyword() -> None:
    v = tj.Variable(3.0)
    for tape in (
        tj.GradientTape(True, False),
        tj.GradientTape(persistent=True, watch_accessed_variables=False),
    ):
        with tape:
            unwatched = v * v
            tape.watch(v)
            y = v * v
        assert tape.gradient(unwatched, v) is None
        assert float(tape.gradient(y, v)) == 6.0
        assert float(tape.gradient(y, v)) == 6.0, "persistent: asked twice"


def test_s01_the_defaults_are_one_use_and_watching_variables() -> None:
    parameters = inspect.signature(tj.GradientTape).parameters
    assert {name: p.default for name, p in parameters.items()} == {
        "persistent": False,
        "watch_accessed_variables": True,
    }
    v = tj.Variable(3.0)
    with tj.GradientTape() as tape:
        y = v * v
    assert float(tape.gradient(y, v)) == 6.0
    with pytest.raises(RuntimeError):
        tape.gradient(y, v)


def test_s01_enter_returns_the_tape() -> None:
    tape = tj.GradientTape()
    with tape as entered:
        assert entered is tape


def interrupted(tape: tj.GradientTape, v: Any, error: BaseException) -> tj.Tensor:
    """v * v, recorded by a tape whose block then raises `error`."""
    made: list[tj.Tensor] = []

    def block() -> None:
        with tape:
            made.append(v * v)
            raise error

    with pytest.raises(type(error)) as caught:
        block()
    assert caught.value is error, "it passes through"
    return made[0]


@pytest.mark.parametrize("error", [KeyError("k"), KeyboardInterrupt(), SystemExit(3)])
def test_s01_exceptions_pass_through_and_leave_the_tape_usable(
    error: BaseException,
) -> None:
    v = tj.Variable(3.0)
    tape = tj.GradientTape(persistent=True)
    y = interrupted(tape, v, error)
    late = v * v
    assert [w is v for w in tape.watched_variables()] == [True]
    assert float(tape.gradient(y, v)) == 6.0
    assert tape.gradient(late, v) is None, "it stopped recording"


def test_s01_an_operation_that_fails_is_not_recorded_and_the_block_goes_on() -> None:
    v = tj.Variable([1.0, 2.0])
    with tj.GradientTape() as tape:
        with pytest.raises(ValueError, match="broadcast"):
            v * tj.ones(3)
        y = v * v
    np.testing.assert_array_equal(tape.gradient(y, v).numpy(), [2.0, 4.0])


def test_s01_an_exception_ends_every_tape_it_passes() -> None:
    v = tj.Variable(3.0)
    outer, inner = tj.GradientTape(persistent=True), tj.GradientTape(persistent=True)
    with contextlib.suppress(KeyError), outer:
        y = interrupted(inner, v, KeyError())
        raise KeyError
    late = v * v
    for tape in (outer, inner):
        assert float(tape.gradient(y, v)) == 6.0
        assert tape.gradient(late, v) is None


def test_s01_a_block_abandoned_in_a_generator_ends() -> None:
    v = tj.Variable(3.0)

    def steps() -> Iterator[tuple[tj.GradientTape, tj.Tensor]]:
        with tj.GradientTape() as tape:
            yield tape, v * v

    generator = steps()
    tape, y = next(generator)
    generator.close()
    late = v * y
    assert tape.why_none(late, v)
    assert float(tape.gradient(y, v)) == 6.0


# 2: entering again


def test_s02_entering_an_active_tape_is_a_value_error() -> None:
    v = tj.Variable(3.0)
    with tj.GradientTape() as tape:
        y = v * v
        with pytest.raises(ValueError, match="recording already"), tape:
            pass
        z = y * v
    assert float(tape.gradient(z, v)) == 27.0, "the refused entry changed nothing"


def test_s02_entering_an_active_tape_below_another_is_a_value_error() -> None:
    with (
        tj.GradientTape() as tape,
        tj.GradientTape(),
        pytest.raises(ValueError, match="recording already"),
        tape,
    ):
        pass


def test_s02_reentering_after_exit_continues_the_recording() -> None:
    x = tj.asarray(3.0)
    tape = tj.GradientTape()
    with tape:
        tape.watch(x)
        y = x * x
    with tape:
        z = y * x
    assert float(tape.gradient(z, x)) == 27.0


def test_s02_each_block_of_one_recording_reads_the_variable_anew() -> None:
    v = tj.Variable(3.0)
    tape = tj.GradientTape()
    with tape:
        y = v * v
    v.assign(5.0)
    with tape:
        z = y * v
    assert float(tape.gradient(z, v)) == 2 * 3 * 5 + 9


def test_s02_reentering_after_an_exception_continues_the_recording() -> None:
    v = tj.Variable(3.0)
    tape = tj.GradientTape()
    y = interrupted(tape, v, KeyError())
    with tape:
        z = y * v
    assert float(tape.gradient(z, v)) == 27.0


def test_s02_a_consumed_tape_starts_a_new_recording() -> None:
    x, v = tj.asarray(3.0), tj.Variable(2.0)
    tape = tj.GradientTape()
    with tape:
        tape.watch(x)
        y = x * x * v
    assert float(tape.gradient(y, x)) == 12.0
    with tape:
        z = y * x * v
    assert [w is v for w in tape.watched_variables()] == [True]
    assert tape.why_none(z, x), "the watch of x is forgotten"
    assert tape.gradient(z, [x, y]) == [None, None]
    with tape:
        tape.watch(x)
        z = y * x
    assert float(tape.gradient(z, x)) == float(y), "y is a constant to it"


def test_s02_a_persistent_tape_continues_also_after_gradient() -> None:
    v = tj.Variable(3.0)
    tape = tj.GradientTape(persistent=True)
    y = square_inside(tape, v)
    assert float(tape.gradient(y, v)) == 6.0
    with tape:
        z = y * v
    assert float(tape.gradient(z, v)) == 27.0
    assert float(tape.gradient(y, v)) == 6.0


# 3: a tape that has not recorded, or is not recording


@pytest.mark.parametrize("method", ["gradient", "jacobian", "batch_jacobian"])
def test_s03_a_derivative_of_a_tape_never_entered_says_so(method: str) -> None:
    x = tj.Variable([[1.0, 2.0]])
    tape = tj.GradientTape()
    with pytest.raises(RuntimeError, match=f"{method}.*never recorded") as caught:
        getattr(tape, method)(x, x)
    assert "with tj.GradientTape() as tape" in str(caught.value)
    y = square_inside(tape, x)
    assert getattr(tape, method)(y, x) is not None, "usable afterwards"


def test_s03_watch_on_a_tape_never_entered_says_so() -> None:
    tape = tj.GradientTape()
    with pytest.raises(RuntimeError, match=r"watch.*never recorded"):
        tape.watch(tj.asarray(1.0))


def test_s03_watch_after_the_block_says_that_it_is_not_recording() -> None:
    x = tj.asarray(3.0)
    with tj.GradientTape() as tape:
        tape.watch(x)
        y = x * x
    with pytest.raises(RuntimeError, match=r"watch.*not recording"):
        tape.watch(y)
    assert float(tape.gradient(y, x)) == 6.0, "the refused watch changed nothing"


def test_s03_watch_while_recording_is_stopped_says_that_it_is_not_recording() -> None:
    x = tj.asarray(3.0)
    with tj.GradientTape() as tape:
        with tape.stop_recording(), pytest.raises(RuntimeError, match="not recording"):
            tape.watch(x)
        y = x * x
    assert tape.gradient(y, x) is None


def test_s03_watch_after_a_consuming_gradient_inside_says_so() -> None:
    v, x = tj.Variable(3.0), tj.asarray(1.0)
    with tj.GradientTape() as tape:
        tape.gradient(v * v, v)
        with pytest.raises(RuntimeError, match="not recording"):
            tape.watch(x)


def test_s03_a_tape_that_recorded_nothing_is_no_error() -> None:
    x = tj.asarray(3.0)
    y = x * x
    with tj.GradientTape() as tape:
        pass
    assert tape.gradient(y, x) is None


# 9: what is recorded at all


def test_s09_an_operation_on_nothing_watched_is_not_recorded() -> None:
    v, x = tj.Variable(3.0), tj.ones(1000)
    with tj.GradientTape() as tape:
        kept = tj.exp(v)
        other = tj.exp(x)
        constant = tj.exp(other)
        gone = weakref.ref(other)
        del other
        assert gone() is None, "the tape does not hold it"
    assert tape.nbytes == kept.nbytes
    assert tape.why_none(constant, v)
    assert tape.gradient(constant, v) is None


def test_s09_what_runs_after_the_block_is_not_recorded() -> None:
    v = tj.Variable(3.0)
    with tj.GradientTape(persistent=True) as tape:
        y = tj.exp(v)
    held = tape.nbytes
    z = tj.exp(y)
    late = tj.exp(v)
    assert tape.nbytes == held
    assert tape.gradient(z, [v, y]) == [None, None]
    assert tape.gradient(late, v) is None


def test_s09_what_runs_between_two_blocks_is_a_constant() -> None:
    v = tj.Variable(3.0)
    tape = tj.GradientTape()
    y = square_inside(tape, v)
    between = y * v
    with tape:
        z = between * y
    assert float(tape.gradient(z, v)) == 27.0 * 6.0


# 10: stop_recording


def test_s10_operations_inside_are_constants() -> None:
    x = tj.Variable(3.0)
    with tj.GradientTape() as tape:
        y = x * x
        with tape.stop_recording():
            c = y * x
        z = c * x
    assert float(tape.gradient(z, x)) == 27.0


UNCHANGED = {
    "reshape": lambda x: tj.reshape(x, x.shape),
    "broadcast_to": lambda x: tj.broadcast_to(x, x.shape),
    "permute_dims": lambda x: tj.permute_dims(x, (0,)),
    "squeeze": tj.squeeze,
    "slice": lambda x: x[:],
}


@pytest.mark.parametrize("op", UNCHANGED.values(), ids=UNCHANGED)
def test_s10_operations_that_change_nothing_are_constants_too(op: Any) -> None:
    x = tj.asarray([3.0, 4.0])
    with tj.GradientTape() as tape:
        tape.watch(x)
        with tape.stop_recording():
            c = op(x)
        y = c * x
    assert tape.gradient(y, x).tolist() == [3.0, 4.0]


def test_s10_variables_read_inside_are_not_watched() -> None:
    x, v = tj.Variable(3.0), tj.Variable(4.0)
    with tj.GradientTape() as tape:
        y = x * x
        with tape.stop_recording():
            v * v
    assert [w is x for w in tape.watched_variables()] == [True]
    assert float(tape.gradient(y, x)) == 6.0


def test_s10_recording_resumes_when_the_body_raises() -> None:
    x = tj.Variable(3.0)
    with tj.GradientTape() as tape:
        with pytest.raises(KeyError), tape.stop_recording():
            raise KeyError
        y = x * x
    assert float(tape.gradient(y, x)) == 6.0


def test_s10_only_this_tape_pauses() -> None:
    x = tj.Variable(3.0)
    with (
        tj.GradientTape() as outer,
        tj.GradientTape() as inner,
        inner.stop_recording(),
    ):
        y = x * x
    assert float(outer.gradient(y, x)) == 6.0
    assert inner.gradient(y, x) is None


@pytest.mark.parametrize("error", [tj.TapeNotRecording, RuntimeError, ValueError])
def test_s10_a_tape_that_is_not_recording_cannot_pause(error: Any) -> None:
    x = tj.Variable(3.0)
    tape = tj.GradientTape()
    refused = pytest.raises(error, match=r"stop_recording.*not recording")
    with refused, tape.stop_recording():
        pytest.fail("the body ran")
    y = square_inside(tape, x)
    with refused, tape.stop_recording():
        pytest.fail("the body ran")
    assert float(tape.gradient(y, x)) == 6.0


def test_s10_a_paused_tape_cannot_pause_again_but_resumes_all_the_same() -> None:
    x = tj.Variable(3.0)
    with tj.GradientTape() as tape:
        with tape.stop_recording():
            with pytest.raises(tj.TapeNotRecording), tape.stop_recording():
                pytest.fail("the body ran")
            c = x * x
        y = c * x
    assert float(tape.gradient(y, x)) == 9.0


def test_s10_a_gradient_inside_is_taken_without_being_taped() -> None:
    x = tj.Variable(3.0)
    with tj.GradientTape(persistent=True) as tape:
        y = x * x * x
        held = tape.nbytes
        with tape.stop_recording():  # no warning about the cost either
            g = tape.gradient(y, x)
        assert tape.nbytes == held
        z = x * g
    assert float(g) == 27.0
    assert tape.gradient(g, x) is None
    assert float(tape.gradient(z, x)) == 27.0


# 11: reset


def test_s11_reset_forgets_the_operations() -> None:
    x = tj.Variable(3.0)
    with tj.GradientTape(persistent=True) as tape:
        loss = x * x
        tape.reset()
        total = loss + x * x * x
    assert float(tape.gradient(total, x)) == 27.0
    assert tape.gradient(loss, x) is None


def test_s11_reset_forgets_what_was_watched() -> None:
    x, v = tj.asarray(3.0), tj.Variable(4.0, trainable=False)
    with tj.GradientTape(persistent=True) as tape:
        tape.watch([x, v])
        x * v
        tape.reset()
        y = x * v
        tape.watch([x, v])
        z = x * v
    assert tape.gradient(y, [x, v]) == [None, None]
    assert [float(g) for g in tape.gradient(z, [x, v])] == [4.0, 3.0]


def test_s11_reset_forgets_which_variables_were_read() -> None:
    a, b = tj.Variable(3.0), tj.Variable(4.0)
    with tj.GradientTape() as tape:
        a * b
        tape.reset()
        assert tape.watched_variables() == ()
        y = b * b
    assert [v is b for v in tape.watched_variables()] == [True]
    assert float(tape.gradient(y, b)) == 8.0


def test_s11_reset_lets_go_of_values() -> None:
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


@pytest.mark.parametrize("error", [tj.TapeNotRecording, RuntimeError, ValueError])
def test_s11_reset_of_a_tape_that_is_not_recording_changes_nothing(error: Any) -> None:
    x = tj.Variable(3.0)
    tape = tj.GradientTape()
    with pytest.raises(error, match=r"reset.*not recording"):
        tape.reset()
    with tape:
        y = x * x
        with tape.stop_recording(), pytest.raises(error, match="not recording"):
            tape.reset()
    with pytest.raises(error, match=r"reset.*not recording"):
        tape.reset()
    assert float(tape.gradient(y, x)) == 6.0
