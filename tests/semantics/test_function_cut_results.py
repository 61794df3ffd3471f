"""Results of a function that no gradient can pass, and what is computed of them.

Some results do not depend on what is watched: they are made of integers, of constants,
of other arguments. What is computed of them is a constant, as if the function were
plain Python, and they may be sources themselves (lines 16, 21, 56).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
from agreement import COMPOSED, assert_agrees

import tapejit as tj
from tapejit.base import tree

from .both_modes import assert_modes, note


def setup() -> Any:
    return tj.asarray([1.0, -2.0, 3.0]), tj.asarray([0.5, -2.0, 5.0])


def _assigning(x: Any, c: Any) -> Any:
    v = _assigning.variable  # type: ignore[attr-defined]
    v.assign(tj.astype(x > 0, "float32"))
    return x * x * v, v.value()


_assigning.variable = tj.Variable([1.0, 2.0, 3.0])  # type: ignore[attr-defined]
_inner = tj.function(lambda x: (x * x, tj.astype(x > 0, "float32")))

# Two results of x and c each, of which a gradient of x passes the first.
BODIES: dict[str, Callable[[Any, Any], Any]] = {
    "of integers": lambda x, c: (x * x, tj.astype(x > 0, "float32")),
    "stopped": lambda x, c: (x * x, tj.stop_gradient(x)),
    "a constant": lambda x, c: (x * x, tj.ones_like(c)),
    "of another argument": lambda x, c: (x * x, tj.cos(c)),
    "another argument": lambda x, c: (x * x, c),
    "a variable": _assigning,
    "of a nested call": lambda x, c: tuple(y * 2 for y in _inner(x)),
    "the argument": lambda x, c: (x * x, x),
    "a number": lambda x, c: (x * x, 3.0),
}


def loss_of(f: Any, x: Any, c: Any) -> Any:
    a, b = f(x, c)
    return tj.sum(a * a) + tj.sum(tj.sin(b) * c) + tj.sum(b * x), a, b


def gradients(f: Any, x: Any, c: Any) -> Any:
    with tj.GradientTape(persistent=True) as tape:
        tape.watch(x)
        loss, a, b = loss_of(f, x, c)
        part = tj.sum(tj.sin(b) * c)
    return tape.gradient(loss, [x, a]), tape.gradient(part, x)


def gradients_by_results(f: Any, x: Any, c: Any) -> Any:
    with tj.GradientTape() as tape:
        tape.watch(x)
        loss, a, b = loss_of(f, x, c)
    return tape.gradient(loss, [x, a, b])


def gradient_of_gradient(f: Any, x: Any, c: Any) -> Any:
    with tj.GradientTape() as outer:
        outer.watch(x)
        with tj.GradientTape() as tape:
            tape.watch(x)
            loss, _, _ = loss_of(f, x, c)
        g = tape.gradient(loss, x)
        again, _, _ = loss_of(f, g, c)
    return g, outer.gradient(again, x)


def tangents(f: Any, x: Any, c: Any) -> Any:
    with tj.ForwardAccumulator(x, c) as accumulator:
        with tj.GradientTape() as tape:
            tape.watch(x)
            loss, a, b = loss_of(f, x, c)
        g = tape.gradient(loss, x)
    return [accumulator.jvp(y) for y in (loss, a, tj.asarray(b), g)]


def jacobian(f: Any, x: Any, c: Any) -> Any:
    with tj.GradientTape() as tape:
        tape.watch(x)
        a, b = f(x, c)
        y = a + tj.sin(b) * c
    return tape.jacobian(y, x)


@pytest.mark.parametrize(
    ("ask", "body"),
    [
        *product((gradients, gradient_of_gradient, tangents, jacobian), BODIES),
        # But for a returned argument, which is a tensor of its own, and a number.
        *product((gradients_by_results,), [*BODIES][:-2]),
    ],
    ids=lambda x: x if isinstance(x, str) else x.__name__,
)
def test_s21_what_is_made_of_a_cut_result_is_a_constant(ask: Any, body: str) -> None:
    plain = BODIES[body]
    f = tj.function(plain)
    assert_modes(lambda x, c: ask(f, x, c), setup, traces=None, op_class=COMPOSED)
    found, _ = tree.flatten(ask(f, *setup()), none_is_leaf=True)
    expected, _ = tree.flatten(ask(plain, *setup()), none_is_leaf=True)
    for x, y in zip(found, expected, strict=True):
        assert (x is None) == (y is None)
        if x is not None:
            assert_agrees(COMPOSED, x, y, where=body)


def test_s21_nothing_is_computed_for_a_cut_result() -> None:
    """No contribution to the result is computed, since nothing asks for it."""
    f = tj.function(BODIES["of integers"])
    x, c = setup()
    with tj.GradientTape() as tape:
        tape.watch(x)
        a, b = f(x, c)
        loss = tj.sum(a) + tj.sum(tj.sin(b) * c)
    names = {node.op.name for node in tape.graph(loss, x).nodes}
    assert "cos" not in names


@pytest.mark.parametrize(
    "cut", [tj.stop_gradient, lambda x: tj.astype(x > 0, "float32")]
)
def test_s16_a_cut_value_is_a_source_like_any_other(cut: Any) -> None:
    def program(x: Any, c: Any) -> Any:
        with tj.GradientTape(persistent=True) as tape:
            tape.watch(x)
            b = cut(x)
            y = tj.sum(tj.sin(b) * c) + tj.sum(x)
        note(tape.gradient(b, x) is None)
        return tape.gradient(y, [b, x])

    x, c = setup()
    expected = [np.cos(cut(x)) * c, np.ones(3, "float32")]
    assert_modes(program, setup, expected=expected, notes=[True])


def test_s06_a_cut_value_can_be_watched() -> None:
    def program(x: Any, c: Any) -> Any:
        with tj.GradientTape() as tape:
            tape.watch(x)
            b = tj.stop_gradient(x)
            tape.watch(b)
            y = tj.exp(b) * c
        return tape.gradient(y, [b, x])

    x, c = setup()
    assert_modes(program, setup, expected=[tj.exp(x) * c, None])
