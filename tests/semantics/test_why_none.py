"""tape.why_none(target, source): where the path ends, in words (line 22)."""

from __future__ import annotations

import inspect
import operator
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tapejit as tj

from .both_modes import assert_modes, note, note_error, ways

FILE = Path(__file__).name


def pair() -> Any:
    return tj.Variable(3.0, name="rate"), tj.Variable(2.0, name="state")


def note_line() -> None:
    """Note `test_why_none.py:LINE` of the caller, as messages show it."""
    frame: Any = inspect.currentframe()
    note(f"{FILE}:{frame.f_back.f_lineno}")


def note_why(tape: tj.GradientTape, target: Any, source: Any) -> None:
    """Note the explanation, which does not use up the tape; the gradient is None."""
    text = tape.why_none(target, source)
    # Traced tensors know where they were made, concrete ones would pay for it.
    note(re.sub(r" \(from: [^()]*\)", "", text))


def assert_explained(texts: list[str], *parts: str) -> None:
    """Fail unless each text has one of the parts, in order."""
    for text, part in zip(texts, parts, strict=True):
        assert re.search(part, text), text


# Each of these has no path from `v` to what it returns.


def stopped(v: Any, w: Any, tape: Any) -> Any:
    h = v * 2.0
    h, _ = tj.stop_gradient(h), note_line()
    return h * w


def cast_to_integers(v: Any, w: Any, tape: Any) -> Any:
    n, _ = tj.astype(v * 2.0, tj.int32), note_line()
    return tj.astype(n, tj.float32) * w


def compared(v: Any, w: Any, tape: Any) -> Any:
    chosen, _ = v > 2.0, note_line()
    return tj.where(chosen, w, 2.0 * w)


def not_recorded(v: Any, w: Any, tape: Any) -> Any:
    h = v * 2.0
    with tape.stop_recording():
        return h * 3.0


def used_where_not_recorded(v: Any, w: Any, tape: Any) -> Any:
    return not_recorded(v, w, tape) * w


def assigned(v: Any, w: Any, tape: Any, how: str = "assign") -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        getattr(w, how)(v * v)
    return w * 2.0


def added(v: Any, w: Any, tape: Any) -> Any:
    return assigned(v, w, tape, "assign_add")


def subtracted(v: Any, w: Any, tape: Any) -> Any:
    return assigned(v, w, tape, "assign_sub")


def not_connected(v: Any, w: Any, tape: Any) -> Any:
    v * 2.0
    return w * 2.0


def never_read(v: Any, w: Any, tape: Any) -> Any:
    return w * 2.0


def integer_target(v: Any, w: Any, tape: Any) -> Any:
    return tj.astype(v, tj.int32)


WHY = {
    stopped: ["stop_gradient"],
    cast_to_integers: ["cast to int32"],
    compared: ["greater"],
    not_recorded: ["outside|stop_recording"],
    used_where_not_recorded: ["connects"],
    assigned: ["assign", "'state'"],
    added: ["assign", "'state'"],
    subtracted: ["assign", "'state'"],
    not_connected: ["no operation connects"],
    never_read: ["'rate'", "not read"],
    integer_target: ["int32"],
}


@pytest.mark.parametrize("body", WHY)
def test_s22_it_says_where_the_path_ends(body: Any) -> None:
    """Inside the block, after it, and after it was asked; asking changes nothing."""

    def program(v: Any, w: Any) -> Any:
        with tj.GradientTape(persistent=True) as tape:
            y = body(v, w, tape)
            note_why(tape, y, v)
            z = w * 3.0
        note_why(tape, y, v)
        found = tape.gradient(y, v), tape.gradient(z, w)
        note_why(tape, y, v)
        return found

    plain = assert_modes(program, pair, expected=(None, 3.0))
    lines = [x for x in plain.notes if x.startswith(FILE)]
    texts = [x for x in plain.notes if x not in lines]
    assert len(texts) == 3
    for text in texts:
        assert_explained([text] * len(WHY[body]), *WHY[body])
        assert all(line in text for line in lines)


def test_s22_a_source_that_is_not_watched() -> None:
    def program(x: Any, late: Any, v: Any, fixed: Any) -> Any:
        with tj.GradientTape() as tape:
            y = x * late * fixed
            tape.watch(late)
        with tj.GradientTape(watch_accessed_variables=False) as unwatching:
            z = v * 2.0
        for source in (x, late, fixed):
            note_why(tape, y, source)
        note_why(unwatching, z, v)
        return tape.gradient(y, [x, late, fixed]), unwatching.gradient(z, v)

    def setup() -> Any:
        fixed = tj.Variable(2.0, trainable=False, name="fixed")
        return tj.asarray(3.0), tj.asarray(3.0), tj.Variable(4.0, name="rate"), fixed

    plain = assert_modes(program, setup, expected=([None] * 3, None))
    assert_explained(
        plain.notes,
        r"(?s)(?=.*tape\.watch).*not watched",
        "watch",
        r"(?s)(?=.*'fixed')(?=.*tape\.watch).*not trainable",
        "(?s)(?=.*'rate').*watch_accessed_variables=False",
    )


def test_s22_read_before_the_tape_or_used_after_it() -> None:
    def program(v: Any, w: Any) -> Any:
        before = v.value()
        with tj.GradientTape() as tape:
            alone = before * 2.0
        note_why(tape, alone, v)
        with tj.GradientTape() as beside:
            v * 1.0
            y = before * w
        note_why(beside, y, v)
        with tj.GradientTape() as recorded:
            h = v * 2.0
        late = h * 3.0
        note_why(recorded, late, v)
        asked = (tape, alone), (beside, y), (recorded, late)
        return [tape.gradient(target, v) for tape, target in asked]

    plain = assert_modes(program, pair, expected=[None] * 3)
    before = "(?s)(?=.*'rate').*before the tape"
    assert_explained(plain.notes, before, before, "outside")


def test_s22_an_integer_source_and_an_intermediate() -> None:
    def program(v: Any, w: Any, count: Any) -> Any:
        with tj.GradientTape(persistent=True) as tape:
            y, z = v * count, w * 2.0
        note_why(tape, y, count)
        note_why(tape, y, z)
        return tape.gradient(y, [count, z])

    def setup() -> Any:
        return *pair(), tj.Variable(2)

    plain = assert_modes(program, setup, expected=[None, None])
    assert_explained(plain.notes, "int32", "no operation connects")


TAKEN = {
    "numpy": operator.methodcaller("numpy"),
    "float": float,
    "item": operator.methodcaller("item"),
    "tolist": operator.methodcaller("tolist"),
    "asarray": np.asarray,
    "bool": bool,
}


@pytest.mark.parametrize("name", TAKEN)
def test_s22_a_value_that_went_through_numpy_or_python(name: str) -> None:
    def program(v: Any, w: Any) -> Any:
        with tj.GradientTape(persistent=True) as tape:
            h = v * 2.0
            taken, _ = TAKEN[name](h), note_line()
            value = tj.asarray(np.asarray(taken, np.float32))
            y, z = value * w, value * 2.0
        note_why(tape, y, v)
        note_why(tape, z, v)
        return tape.gradient(y, v), tape.gradient(z, v)

    # A traced `bool` is a branch, which needs no value.
    is_value = name != "bool"
    plain = assert_modes(program, pair, expected=(None, None), runs_eagerly=is_value)
    line, *texts = plain.notes
    assert_explained(texts, line, line)
    if name == "numpy":
        assert_explained(texts, "(?i)numpy", "(?i)numpy")


def test_s22_a_variables_own_value_went_through_numpy() -> None:
    def program(v: Any, w: Any) -> Any:
        with tj.GradientTape() as tape:
            taken, _ = v.numpy(), note_line()
            y = tj.asarray(taken) * w
        note_why(tape, y, v)
        return tape.gradient(y, v)

    plain = assert_modes(program, pair, expected=None, runs_eagerly=True)
    line, text = plain.notes
    assert "'rate'" in text
    assert line in text


def test_s22_each_tape_names_its_own_variables() -> None:
    """The same program with other variables: names must not be those of the first.

    Eagerly only: a function's second call does not run the body that asks.
    """
    for name in ("first", "second"):
        v, w = tj.Variable(3.0, name=name), tj.Variable(2.0)
        with tj.GradientTape() as tape:
            y = tj.asarray(v.numpy()) * w
        assert f"'{name}'" in tape.why_none(y, v)


def test_s22_a_path_that_exists_is_said_to_exist() -> None:
    def program(v: Any) -> Any:
        with tj.GradientTape() as tape:
            y = tj.floor(v)
        note_why(tape, y, v)
        return tape.gradient(y, v)

    plain = assert_modes(program, lambda: tj.Variable(3.0), expected=0.0)
    assert_explained(plain.notes, "there is a path")


def test_s22_what_is_no_tensor_and_a_tape_never_entered_are_errors() -> None:
    refused = [None, 1.0, "y", np.ones(2)]

    def program(v: Any) -> Any:
        with tj.GradientTape() as tape:
            y = v * 2.0
        for wrong in refused:
            note_error(lambda wrong=wrong: tape.why_none(wrong, v))
            note_error(lambda wrong=wrong: tape.why_none(y, wrong))
        note_error(lambda: tj.GradientTape().why_none(y, v))
        return y

    errors = [(TypeError, "target is a"), (TypeError, "source is a")] * len(refused)
    never = (RuntimeError, "never recorded")
    assert_modes(program, lambda: tj.Variable(3.0), errors=[*errors, never])


def test_s22_a_tape_around_a_call_says_where_the_path_ends() -> None:
    def program(v: Any, w: Any) -> Any:
        return tj.stop_gradient(v) * w, w * 2.0, v * 2.0

    for name, call in ways(program, pair):
        v, w = pair()
        with tj.GradientTape() as tape:
            stopped, other, connected = call(v, w)
        assert "stop_gradient" in tape.why_none(stopped, v), name
        assert FILE in tape.why_none(stopped, v), name
        assert "connects" in tape.why_none(other, v), name
        assert "there is a path" in tape.why_none(connected, v), name


def test_s22_a_result_of_a_call_is_named_after_what_the_function_does() -> None:
    v, w = pair()
    add = tj.function(lambda x: (x + x, x))
    with tj.GradientTape(persistent=True) as tape:
        total, same = add(v)
        y = w * 2.0
    assert "connects add with it" in tape.why_none(y, total)
    assert "connects variable" in tape.why_none(y, same)
