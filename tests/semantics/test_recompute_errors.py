"""recompute_grad in both modes: errors, and why a gradient is None (line 45)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tapejit as tj

from .both_modes import assert_modes, note, note_error


def setup() -> Any:
    return tj.asarray([0.5, 1.0]), tj.Variable([2.0, 3.0], name="w")


def test_s45_an_error_inside_is_the_users() -> None:
    def program(x: Any, w: Any) -> Any:
        @tj.recompute_grad
        def f(x: Any) -> Any:
            w.assign(x)
            raise KeyError("inside")

        with tj.GradientTape() as tape:
            tape.watch(x)
            f(x)
        return tape.gradient(x, x)

    assert_modes(program, setup, raises=(KeyError, "inside"))


def test_s45_a_missing_derivative_is_missed_when_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(*_: Any, **__: Any) -> Any:
        raise tj.NotDifferentiableError("nobody knows it")

    def program(x: Any) -> Any:
        f = tj.recompute_grad(lambda x: tj.sort(x) * 2)
        with tj.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = f(x)
        for _ in range(2):
            try:
                tape.gradient(y, x)
            except tj.NotDifferentiableError as error:
                # The operation and its operands are named eagerly only: a bug.
                note("nobody knows it" in str(error))
        return y

    for op in {node.op for node in tj.function(tj.sort).graph(tj.ones(2)).nodes}:
        if op.differentiable:
            monkeypatch.setattr(op, "vjp", missing)
    given = lambda: tj.asarray([2.0, 1.0])
    assert_modes(program, given, expected=[2.0, 4.0], notes=[True, True])
    function = tj.function(tj.recompute_grad(tj.sort))
    x = tj.asarray([2.0, 1.0])
    np.testing.assert_array_equal(function(x), [1.0, 2.0])
    with tj.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    with pytest.raises(tj.NotDifferentiableError, match="nobody knows it"):
        tape.gradient(y, x)


def test_s45_an_error_of_a_grad_fn_inside() -> None:
    @tj.custom_gradient
    def fails(x: Any) -> Any:
        def grad_fn(dy: Any) -> Any:
            raise KeyError("in the gradient")

        return x * 2, grad_fn

    def program(x: Any) -> Any:
        f = tj.recompute_grad(lambda x: fails(x) * x)
        with tj.GradientTape() as tape:
            tape.watch(x)
            y = f(x)
        note_error(lambda: tape.gradient(y, x))
        return y

    errors = [(KeyError, "^'in the gradient'$")]
    assert_modes(program, lambda: tj.asarray(3.0), expected=18.0, errors=errors)


@pytest.mark.parametrize("is_around", [False, True])
def test_s45_why_a_gradient_is_none(is_around: bool) -> None:
    f = tj.recompute_grad(lambda x, w: x * 2 + tj.stop_gradient(w))
    texts: list[str] = []

    def why(f: Any, x: Any, w: Any) -> Any:
        with tj.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = f(x, w)
        assert tape.gradient(y, w) is None
        texts.append(tape.why_none(y, w))
        return y

    if is_around:
        why(tj.function(f), *setup())
    else:
        tj.function(lambda x, w: why(f, x, w))(*setup())
    (text,) = texts
    assert "test_recompute_errors.py" in text


def test_s45_an_error_in_the_second_run_leaves_tape_and_variables() -> None:
    """Eagerly: in a function the second run is traced, when the first is."""
    errors: list[Exception] = []
    state = tj.Variable(0.0, trainable=False)

    @tj.recompute_grad
    def f(x: Any) -> Any:
        state.assign_add(1.0)
        if errors:
            raise errors.pop()
        return x * x

    x = tj.Variable(3.0)
    with tj.GradientTape() as tape:
        y = f(x)
    errors.append(KeyError("second"))
    with pytest.raises(KeyError, match="second"):
        tape.gradient(y, x)
    assert float(state) == 1.0
    assert float(tape.gradient(y, x)) == 6.0
    assert float(state) == 1.0
