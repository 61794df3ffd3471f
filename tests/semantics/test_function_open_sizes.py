"""Line 48 in both modes: one trace for every size, checked and learned signatures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from open_sizes import ROWS, SIZES, assert_same, sample

import tapejit as tj


def standardised(x: Any) -> Any:
    """Uses sizes as numbers, in shapes and in a comparison."""
    mean = tj.sum(x, axis=0) / x.shape[0]
    spread = tj.sqrt(tj.mean(tj.square(x - mean), axis=0) + 1e-3)
    out = (x - mean) / spread
    return tj.reshape(out, (-1,)) if x.shape[0] > 1 else out


def gradient_of_rows(x: Any) -> Any:
    """A tape in the body."""
    with tj.GradientTape() as tape:
        tape.watch(x)
        y = tj.sum(tj.tanh(x) * x)
    return y, tape.gradient(y, x)


PROGRAMS = [standardised, gradient_of_rows]


@pytest.mark.parametrize("program", PROGRAMS)
def test_s48_one_trace_serves_every_batch_size(program: Callable[..., Any]) -> None:
    signed = tj.function(input_signature=[ROWS])(program)
    for size in (*SIZES, *SIZES):
        assert_same(signed(sample(size, 3)), program(sample(size, 3)))
    assert signed.trace_count == 1


@pytest.mark.parametrize("program", PROGRAMS)
def test_s48_sizes_that_change_are_generalised(program: Callable[..., Any]) -> None:
    reduced = tj.function(reduce_retracing=True)(program)
    for size in (*SIZES, *SIZES):
        assert_same(reduced(sample(size, 3)), program(sample(size, 3)))
    assert reduced.trace_count == 2  # for the first size, then for all


@pytest.mark.parametrize("program", PROGRAMS)
def test_s48_run_eagerly_it_does_the_same(program: Callable[..., Any]) -> None:
    signed = tj.function(input_signature=[ROWS])(program)
    with tj.config.override(eager=True):
        for size in SIZES:
            assert_same(signed(sample(size, 3)), program(sample(size, 3)))
    assert signed.trace_count == 0


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (np.ones((2, 4), np.float32), "float32 and shape (2, 4)"),
        (np.ones(3, np.float32), "float32 and shape (3,)"),
        (np.ones((2, 3), np.complex64), "complex64 and shape (2, 3)"),
    ],
)
@pytest.mark.parametrize("eager", [False, True])
def test_s48_a_violation_shows_both(given: Any, shown: str, eager: bool) -> None:
    signed = tj.function(input_signature=[ROWS])(standardised)
    with tj.config.override(eager=eager), pytest.raises(TypeError) as raised:
        signed(given)
    assert repr(ROWS) in str(raised.value)
    assert shown in str(raised.value)


def test_s48_a_tape_around_sees_every_size() -> None:
    signed = tj.function(input_signature=[ROWS])(standardised)
    for size in SIZES:
        found = []
        for function in (signed, standardised):
            x = sample(size, 3)
            with tj.GradientTape() as tape:
                tape.watch(x)
                y = tj.sum(tj.square(function(x)) * sample(size * 3))
            found.append(tape.gradient(y, x))
        assert_same(found[0], found[1], exact=False)
    assert signed.trace_count == 1


def test_s48_a_concrete_function_checks_its_shapes() -> None:
    concrete = tj.function(standardised).get_concrete_function(ROWS)
    assert_same(concrete(sample(5, 3)), standardised(sample(5, 3)))
    with pytest.raises(TypeError, match=r"f32\[None,3\]"):
        concrete(sample(5, 4))
