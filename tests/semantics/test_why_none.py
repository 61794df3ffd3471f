"""tape.why_none(target, source): where the path ends, in words (line 22)."""

from __future__ import annotations

import inspect
import operator
import warnings
from typing import Any

import numpy as np
import pytest

import tapejit as tj


def here(offset: int = 0) -> str:
    """`test_why_none.py:LINE` of the caller, as messages show it."""
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return f"test_why_none.py:{frame.f_back.f_lineno + offset}"


def explain(tape: tj.GradientTape, target: Any, source: Any) -> str:
    """The explanation, which does not use up the tape; the gradient is None."""
    text = tape.why_none(target, source)
    assert isinstance(text, str)
    assert tape.gradient(target, source) is None
    return text


def test_s22_the_source_was_not_watched() -> None:
    x = tj.asarray(3.0)
    with tj.GradientTape() as tape:
        y = x * 2.0
    text = explain(tape, y, x)
    assert "not watched" in text
    assert "tape.watch" in text


def test_s22_the_source_was_watched_after_its_use() -> None:
    x = tj.asarray(3.0)
    with tj.GradientTape() as tape:
        y = x * 2.0
        tape.watch(x)
    text = explain(tape, y, x)
    assert "watch" in text


def test_s22_a_variable_that_is_not_trainable() -> None:
    v = tj.Variable(3.0, trainable=False, name="scale")
    with tj.GradientTape() as tape:
        y = v * 2.0
    text = explain(tape, y, v)
    assert "'scale'" in text
    assert "not trainable" in text
    assert "tape.watch" in text


def test_s22_a_tape_that_does_not_watch_variables() -> None:
    v = tj.Variable(3.0, name="scale")
    with tj.GradientTape(watch_accessed_variables=False) as tape:
        y = v * 2.0
    text = explain(tape, y, v)
    assert "'scale'" in text
    assert "watch_accessed_variables=False" in text


def test_s22_a_variable_that_was_never_read() -> None:
    v, w = tj.Variable(3.0, name="used"), tj.Variable(3.0, name="unused")
    with tj.GradientTape() as tape:
        y = v * 2.0
    text = explain(tape, y, w)
    assert "'unused'" in text
    assert "not read" in text


def test_s22_a_cast_to_integers() -> None:
    v = tj.Variable(3.0)
    with tj.GradientTape() as tape:
        n, line = tj.astype(v * 2.0, tj.int32), here()
        y = tj.astype(n, tj.float32) * 1.5
    text = explain(tape, y, v)
    assert "cast to int32" in text
    assert line in text


def test_s22_an_integer_target_or_source() -> None:
    v, count = tj.Variable(3.0), tj.Variable(2)
    with tj.GradientTape(persistent=True) as tape:
        n = tj.astype(v, tj.int32)
        y = v * count
    assert "int32" in explain(tape, n, v)
    assert "int32" in explain(tape, y, count)


def test_s22_read_before_the_tape() -> None:
    v = tj.Variable(3.0, name="rate")
    before = v.value()
    with tj.GradientTape() as tape:
        y = before * 2.0
    text = explain(tape, y, v)
    assert "'rate'" in text
    assert "before the tape" in text


def test_s22_read_before_the_tape_beside_another_use() -> None:
    v, w = tj.Variable(3.0, name="rate"), tj.Variable(2.0)
    before = v.value()
    with tj.GradientTape() as tape:
        v * 1.0
        y = before * w
    text = explain(tape, y, v)
    assert "'rate'" in text
    assert "before the tape" in text


def test_s22_stop_gradient() -> None:
    v = tj.Variable(3.0)
    with tj.GradientTape() as tape:
        h = v * 2.0
        stopped, line = tj.stop_gradient(h), here()
        y = stopped * 3.0
    text = explain(tape, y, v)
    assert "stop_gradient" in text
    assert line in text


def test_s22_went_through_numpy() -> None:
    v, w = tj.Variable(3.0), tj.Variable(2.0)
    with tj.GradientTape(persistent=True) as tape:
        h = v * 2.0
        taken, line = h.numpy(), here()
        y = tj.asarray(taken) * w
        z = tj.asarray(taken) * 2.0
    for target in (y, z):
        text = explain(tape, target, v)
        assert "NumPy" in text or "numpy" in text
        assert line in text


TAKEN = {
    "float": float,
    "item": operator.methodcaller("item"),
    "tolist": operator.methodcaller("tolist"),
    "asarray": np.asarray,
    "bool": bool,
}


@pytest.mark.parametrize("take", TAKEN.values(), ids=TAKEN)
def test_s22_went_through_python_or_an_array(take: Any) -> None:
    v, w = tj.Variable(3.0), tj.Variable(2.0)
    with tj.GradientTape() as tape:
        h = v * 2.0
        taken, line = take(h), here()
        y = w * tj.asarray(np.asarray(taken, np.float32))
    text = explain(tape, y, v)
    assert line in text


def test_s22_a_variables_own_value_went_through_numpy() -> None:
    v, w = tj.Variable(3.0, name="v"), tj.Variable(2.0)
    with tj.GradientTape() as tape:
        taken, line = v.numpy(), here()
        y = tj.asarray(taken) * w
    text = explain(tape, y, v)
    assert "'v'" in text
    assert line in text


@pytest.mark.parametrize("how", ["assign", "assign_add", "assign_sub"])
def test_s22_assigned_to_a_variable(how: str) -> None:
    x, state = tj.Variable(3.0), tj.Variable(0.0, name="state")
    with tj.GradientTape() as tape:
        h = x * x
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            getattr(state, how)(h)
        y = state * 2.0
    text = explain(tape, y, x)
    assert "assign" in text
    assert "'state'" in text


def test_s22_recorded_outside() -> None:
    v = tj.Variable(3.0)
    with tj.GradientTape() as tape:
        h = v * 2.0
    y = h * 3.0
    assert "outside" in explain(tape, y, v)


def test_s22_recorded_while_stopped() -> None:
    v = tj.Variable(3.0)
    with tj.GradientTape() as tape:
        h = v * 2.0
        with tape.stop_recording():
            y = h * 3.0
    assert "outside" in explain(tape, y, v) or "stop_recording" in tape.why_none(y, v)


def test_s22_a_comparison() -> None:
    v, w = tj.Variable(3.0), tj.Variable(1.0)
    with tj.GradientTape() as tape:
        chosen, line = v > 2.0, here()
        y = tj.where(chosen, w, 2.0 * w)
    text = explain(tape, y, v)
    assert "greater" in text
    assert line in text


def test_s22_no_operation_connects_the_two() -> None:
    v, w = tj.Variable(3.0), tj.Variable(2.0)
    with tj.GradientTape(persistent=True) as tape:
        y, z = v * 2.0, w * 2.0
    assert "no operation connects" in explain(tape, z, v)
    assert "no operation connects" in explain(tape, y, z)


def test_s22_a_path_that_exists_is_said_to_exist() -> None:
    v = tj.Variable(3.0)
    with tj.GradientTape() as tape:
        y = tj.floor(v)
    assert "there is a path" in tape.why_none(y, v)
    assert float(tape.gradient(y, v)) == 0.0


def test_s22_each_tape_names_its_own_variables() -> None:
    """The same program with other variables: names must not be those of the first."""
    for name in ("first", "second"):
        v, w = tj.Variable(3.0, name=name), tj.Variable(2.0)
        with tj.GradientTape() as tape:
            y = tj.asarray(v.numpy()) * w
        assert f"'{name}'" in explain(tape, y, v)


def test_s22_asking_leaves_the_tape_usable_and_works_after_it_was_used_up() -> None:
    v, w = tj.Variable(3.0), tj.Variable(2.0)
    with tj.GradientTape() as tape:
        y = tj.stop_gradient(v) * w
    before = tape.why_none(y, v)
    dv, dw = tape.gradient(y, [v, w])
    assert dv is None
    assert float(dw) == 3.0
    assert tape.why_none(y, v) == before


def test_s22_works_inside_the_block() -> None:
    v = tj.Variable(3.0)
    with tj.GradientTape() as tape:
        y = tj.stop_gradient(v) * 2.0
        assert "stop_gradient" in tape.why_none(y, v)
        z = v * y
    assert float(tape.gradient(z, v)) == 6.0


@pytest.mark.parametrize("wrong", [None, 1.0, "y", np.ones(2)])
def test_s22_what_is_no_tensor_is_a_type_error(wrong: Any) -> None:
    v = tj.Variable(3.0)
    with tj.GradientTape() as tape:
        y = v * 2.0
    with pytest.raises(TypeError, match="target is a"):
        tape.why_none(wrong, v)
    with pytest.raises(TypeError, match="source is a"):
        tape.why_none(y, wrong)


def test_s22_on_a_tape_never_entered_it_says_so() -> None:
    v = tj.Variable(3.0)
    with pytest.raises(RuntimeError, match="never recorded"):
        tj.GradientTape().why_none(v, v)


def test_s22_a_result_of_a_call_is_named_after_what_the_function_does() -> None:
    v, w = tj.Variable(3.0), tj.Variable(2.0)
    add = tj.function(lambda x: (x + x, x))
    with tj.GradientTape(persistent=True) as tape:
        total, same = add(v)
        y = w * 2.0
    assert "connects add with it" in tape.why_none(y, total)
    assert "connects variable" in tape.why_none(y, same)
