"""Errors in functions: their class, text and line, and that nothing changed (55)."""

from __future__ import annotations

import linecache
import traceback
from typing import Any

import numpy as np
import pytest

import tapejit as tj

from .both_modes import Interrupted, assert_modes, note

X = tj.asarray([1.0, 2.0])


def line_of(text: str) -> int:
    """The number of the only line of this file that ends with a mark."""
    lines = linecache.getlines(__file__)
    (found,) = [at for at, line in enumerate(lines, 1) if line.endswith(f"# {text}\n")]
    return found


def setup() -> Any:
    return tj.Variable(3.0), tj.asarray(2.0)


class Refused(Exception):
    pass


# While it is traced


@pytest.mark.parametrize(
    "error", [KeyError("k"), Refused("no"), SystemExit(3), Interrupted("stop")]
)
def test_s55_exceptions_keep_their_type_and_change_nothing(error: Any) -> None:
    def program(v: Any, x: Any) -> Any:
        v.assign_add(x)
        note("ran")
        raise error

    if isinstance(error, (Exception, Interrupted)):
        assert_modes(program, setup, raises=(type(error), ""))
        return
    v, x = setup()
    for eager in (False, False, True):
        with tj.config.override(eager=eager), pytest.raises(type(error)) as caught:
            tj.function(program)(v, x)
        assert caught.value is error
        assert float(v) == 3.0


def test_s55_the_traceback_ends_at_the_users_line() -> None:
    @tj.function
    def f(x: Any) -> Any:
        return x + {}["missing"]  # raises KeyError

    for _ in range(2):
        with pytest.raises(KeyError) as caught:
            f(X)
        last = traceback.extract_tb(caught.value.__traceback__)[-1]
        assert (last.filename, last.lineno) == (__file__, line_of("raises KeyError"))
    assert f.trace_count == 0


def test_s55_an_exception_that_the_body_catches_is_its_own_affair() -> None:
    def program(v: Any, x: Any) -> Any:
        try:
            v.assign_add(x)
            raise Refused
        except Refused:
            v.assign_add(x)
        return v * 1

    assert_modes(program, setup, expected=7.0, variables=[7.0])


def test_s55_a_trace_that_failed_is_tried_again() -> None:
    ready = []

    @tj.function
    def f(x: Any) -> Any:
        if not ready:
            raise Refused
        return x * 2

    for _ in range(3):
        with pytest.raises(Refused):
            f(X)
    ready.append(1)
    np.testing.assert_array_equal(f(X), [2.0, 4.0])


def test_s55_nested_failures_put_everything_back() -> None:
    def program(v: Any, x: Any) -> Any:
        inner = tj.function(lambda: v.assign_add(x))
        inner()
        inner()
        raise Refused("late")

    assert_modes(program, setup, raises=(Refused, "late"))


def test_s55_an_inner_failure_that_is_caught_undoes_the_inner_function_only() -> None:
    def program(v: Any, x: Any) -> Any:
        @tj.function
        def inner() -> None:
            v.assign_add(100.0)
            raise Refused

        v.assign_add(x)
        try:
            inner()
        except Refused:
            v.assign_add(x)
        return v * 1

    v, x = setup()
    outer = tj.function(program)
    for eager in (False, False, True):
        v.assign(3.0)
        with tj.config.override(eager=eager):
            assert float(outer(v, x)) == 7.0
        assert float(v) == 7.0


# Shapes


@pytest.mark.parametrize(
    "conflict",
    [
        lambda x: x + tj.ones(3),
        lambda x: tj.ones((2, 3)) @ tj.ones((2, 3)) + x,
        lambda x: tj.reshape(x, (3, 3)),
        lambda x: tj.concat([x, tj.ones((2, 2))]),
        lambda x: tj.sum(x, axis=4),
        lambda x: x[7],
        lambda x: tj.einsum("ij,jk->ik", x, x),
        lambda x: tj.permute_dims(x, (0, 1)),
        lambda x: x << 2,
        lambda x: tj.Variable([1.0, 2.0, 3.0]).assign(x),
        lambda x: tj.expand_dims(x, 9),
        lambda x: tj.GradientTape().gradient(x, x),
    ],
)
def test_s55_a_conflict_has_the_same_class_and_text_as_eagerly(conflict: Any) -> None:
    raised = assert_modes(conflict, lambda: tj.asarray([1.0, 2.0]), raises=ANY)
    assert isinstance(raised.error, tj.TapejitError)
    assert "test_function_errors.py" in str(raised.error)


ANY = (Exception, "")


def test_s55_a_conflict_raises_at_trace_time() -> None:
    @tj.function
    def f(x: Any) -> Any:
        if bool(tj.sum(x) > 100):
            return x + tj.ones(3)
        return x

    np.testing.assert_array_equal(f(X), X)
    with pytest.raises(ValueError, match="broadcast"):
        f(X * 100)
    np.testing.assert_array_equal(f(X), X)


# While it runs


@pytest.mark.parametrize("under_tape", [False, True])
def test_s55_an_index_out_of_range_names_the_users_line(under_tape: bool) -> None:
    @tj.function
    def pick(x: Any, at: Any) -> Any:
        y = x * 2
        return tj.take(y, at, axis=0)  # out of range

    def call(at: int) -> Any:
        if not under_tape:
            return pick(X, tj.asarray(at))
        with tj.GradientTape() as tape:
            tape.watch(X)
            return pick(X, tj.asarray(at))

    assert float(call(1)) == 4.0
    for _ in range(2):
        with pytest.raises(IndexError) as caught:
            call(5)
        text = str(caught.value)
        assert f":{line_of('out of range')} in pick" in text
        assert "index 5 is out of range" in text
    assert float(call(0)) == 2.0


def test_s55_a_failing_check_names_its_line_in_a_nested_function() -> None:
    @tj.function
    def inner(x: Any) -> Any:
        tj.debug.assert_less(x, 10.0, "small")  # inner check
        return x

    @tj.function
    def outer(x: Any) -> Any:
        return inner(x * 2)

    outer(X)
    with pytest.raises(AssertionError, match="small") as caught:
        outer(X * 100)
    assert f":{line_of('inner check')} in inner" in str(caught.value)


def test_s55_the_error_of_a_running_graph_shows_no_internal_cause() -> None:
    @tj.function
    def f(x: Any) -> Any:
        tj.debug.assert_less(x, 10.0)
        return x

    f(X)
    with pytest.raises(AssertionError) as caught:
        f(X * 100)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_s55_the_first_call_fails_as_the_later_ones_do() -> None:
    def make() -> Any:
        @tj.function
        def f(x: Any, at: Any) -> Any:
            return x[at]

        return f

    first, later = make(), make()
    later(X, tj.asarray(0))
    texts = []
    for f in (first, later):
        with pytest.raises(IndexError) as caught:
            f(X, tj.asarray(7))
        texts.append(str(caught.value))
    assert texts[0] == texts[1]
    assert float(first(X, tj.asarray(1))) == 2.0


def test_s55_a_failing_call_under_a_tape_records_nothing() -> None:
    v = tj.Variable([1.0, 2.0])

    @tj.function
    def f(x: Any) -> Any:
        v.assign_add([1.0, 2.0])
        tj.debug.assert_less(x, 10.0)
        return v * x

    with tj.GradientTape() as tape:
        tape.watch(X)
        y = tj.sum(v * X)
        with pytest.raises(AssertionError):
            f(X * 100)
        y = y + tj.sum(f(X))
    np.testing.assert_array_equal(v, [2.0, 4.0])
    np.testing.assert_array_equal(tape.gradient(y, X), [3.0, 6.0])


def test_s55_an_error_inside_the_gradient_of_a_call_keeps_its_type() -> None:
    @tj.custom_gradient
    def strict(x: Any) -> Any:
        def grad(dy: Any) -> Any:
            raise Refused("in grad")

        return x * 1, grad

    @tj.function
    def f(x: Any) -> Any:
        return tj.sum(strict(x))

    x = tj.asarray([1.0, 2.0])
    with tj.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    for _ in range(2):  # the tape is as it was
        with pytest.raises(Refused, match="in grad"):
            tape.gradient(y, x)


# What had happened by then


def test_s55_what_was_printed_before_an_exception_is_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    @tj.function
    def f(x: Any) -> Any:
        tj.print("x is", x)
        if x > 1:
            raise Refused("large")
        tj.print("fine")
        return x

    for eager in (False, True, False):
        with tj.config.override(eager=eager):
            for value in (2.0, 1.0, 2.0):
                if value > 1:
                    with pytest.raises(Refused, match="large"):
                        f(tj.asarray(value))
                else:
                    f(tj.asarray(value))
        assert capsys.readouterr().out.splitlines() == [
            *("x is 2.0", "x is 1.0", "fine", "x is 2.0")
        ]


def test_s55_a_check_that_fails_comes_before_a_later_exception() -> None:
    @tj.function
    def f(x: Any) -> Any:
        tj.debug.assert_less(x, 1.0, "first")  # the earlier check
        return x + tj.ones((3, 3)) @ tj.ones(5)

    for eager in (False, True):
        with (
            tj.config.override(eager=eager),
            pytest.raises(tj.CheckFailed, match="first") as caught,
        ):
            f(tj.asarray(2.0))
        assert f":{line_of('the earlier check')} in f" in str(caught.value)
    with pytest.raises(tj.ShapeError):
        f(tj.asarray(0.5))


@pytest.mark.parametrize("error", [KeyboardInterrupt, BrokenPipeError])
@pytest.mark.parametrize("eager", [False, True])
def test_s55_an_interruption_while_it_runs_commits_nothing(
    error: type[BaseException], eager: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    v, u = tj.Variable(1.0), tj.Variable(1.0)
    interrupts = [False]

    class Interrupting:
        def write(self, text: str) -> None:
            if interrupts[0]:
                raise error

        def flush(self) -> None: ...

    @tj.function
    def f(x: Any) -> None:
        v.assign_add(x)
        tj.print("now")
        u.assign_add(x)

    monkeypatch.setattr("sys.stdout", Interrupting())
    x = tj.asarray(1.0)
    with tj.config.override(eager=eager):
        f(x)
        for _ in range(2):
            interrupts[0] = True
            with pytest.raises(error):
                f(x)
            assert (float(v), float(u)) == (2.0, 2.0)
        interrupts[0] = False
        f(x)
    assert (float(v), float(u)) == (3.0, 3.0)
    v.assign(0.0)
    assert float(v) == 0.0, "its lock is free"


def test_s55_one_that_runs_eagerly_puts_back_what_others_it_called_assigned() -> None:
    v = tj.Variable(1.0)
    inner = tj.function(lambda x: v.assign_add(x))

    @tj.function
    def f(x: Any) -> Any:
        inner(x)
        if float(x) > 5:
            raise Refused
        return v * 1

    with pytest.warns(UserWarning, match="needs a value"):
        f(tj.asarray(1.0))
    assert float(f(tj.asarray(2.0))) == 4.0
    with pytest.raises(Refused):
        f(tj.asarray(7.0))
    assert float(v) == 4.0


def test_s55_an_interrupt_leaves_no_line_behind() -> None:
    """It may come when the line of what is made is set, and nobody would unset it."""
    from tapejit.ir.node import ORIGIN, Derived, literal

    before = ORIGIN.get()

    @tj.function
    def interrupted(x: tj.Tensor) -> tj.Tensor:
        ORIGIN.set(Derived("vjp", literal(1.0, x.dtype)))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted(tj.ones(2))
    assert ORIGIN.get() is before
