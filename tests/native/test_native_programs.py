"""Random programs in the public namespace, decorated and as native code.

Values, gradients and second derivatives in one function, called twice on arguments of
its own: plain Python says what is right. What is None must be None in both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from agreement import COMPOSED, assert_agrees
from graph_properties import for_all

import tapejit as tj
from tapejit import tree
from tapejit.types import is_float

from .conditioning import steady_outputs
from .random_programs import Program, programs

Body = Callable[..., Any]


def values(program: Program) -> Body:
    return program


def gradients(program: Program) -> Body:
    """The results, and the gradient of their sum by each argument that has one."""

    def body(*xs: Any) -> Any:
        sources = [x for x in xs if is_float(x.dtype)]
        with tj.GradientTape() as tape:
            tape.watch(sources)
            results = program(*xs)
            targets = [x for x in results if is_float(x.dtype)]
        return results, tape.gradient(targets, sources) if targets else None

    return body


def second_gradients(program: Program) -> Body:
    """Besides the gradients, those of the sum of all their elements' squares."""

    def body(*xs: Any) -> Any:
        sources = [x for x in xs if is_float(x.dtype)]
        with tj.GradientTape() as tape:
            tape.watch(sources)
            _, first = gradients(program)(*xs)
            squares = [g * g for g in first or () if g is not None]
        return first, tape.gradient(squares, sources) if squares else None

    return body


class Judge:
    """Compares programs, and counts of how many results something could be said."""

    def __init__(self) -> None:
        self.results = 0
        self.judged = 0

    def compare(self, program: Program, body: Body) -> None:
        function = tj.function(body)
        for salt in range(2):
            arrays = program.arrays(salt)
            tensors = [tj.asarray(x) for x in arrays]
            plain, spec = tree.flatten(body(*tensors), none_is_leaf=True)
            with tj.config.override(native=True):
                found = tree.flatten(function(*tensors), none_is_leaf=True)
            assert found[1] == spec
            assert [x is None for x in found[0]] == [x is None for x in plain]
            got = [x for x in found[0] if x is not None]
            expected = [x for x in plain if x is not None]
            steady = steady_outputs(function.graph(*tensors), arrays, salt)
            self.results += len(steady)
            self.judged += sum(steady)
            for at, (x, y, is_steady) in enumerate(
                zip(got, expected, steady, strict=True)
            ):
                assert (x.dtype, x.shape) == (y.dtype, y.shape)
                if is_steady:
                    where = f"result {at} on arguments {salt}"
                    assert_agrees(COMPOSED, x.numpy(), y.numpy(), where=where)
        assert function.trace_count == 1


@pytest.mark.parametrize(
    ("ask", "steps", "examples"),
    [
        pytest.param(values, 26, 12, id="values"),
        pytest.param(gradients, 24, 10, id="gradients"),
        pytest.param(second_gradients, 16, 6, id="second-gradients"),
    ],
)
def test_random_programs_agree_with_plain_python(
    ask: Callable[[Program], Body], steps: int, examples: int, full: bool
) -> None:
    judge = Judge()

    @for_all(programs(steps), full, examples)
    def holds(program: Program) -> None:
        judge.compare(program, ask(program))

    assert judge.judged > 0.8 * judge.results > 0, f"{judge.judged} of {judge.results}"


def test_a_program_takes_the_same_steps_traced(full: bool) -> None:
    @for_all(programs(), full, examples=10)
    def holds(program: Program) -> None:
        xs = [tj.asarray(x) for x in program.arrays(0)]
        outputs = program.graph().outputs
        results = program(*xs)
        assert [(x.dtype, x.shape) for x in outputs] == [
            (x.dtype, x.shape) for x in results
        ]
        assert all(np.all(np.isfinite(x.numpy())) for x in results)


def test_a_mask_that_selects_another_number_is_traced_again() -> None:
    def program(x: tj.Tensor, least: tj.Tensor) -> tuple[tj.Tensor, tj.Tensor]:
        kept = x[x > least]
        return tj.sum(kept * kept), kept

    x = tj.asarray(np.arange(24.0).reshape(2, 3, 4))
    with tj.config.override(native=True, cache=False):
        function = tj.function(program)
        for least in (20.5, -1.0, 22.5, 20.5, 23.0):
            total, kept = function(x, tj.asarray(least))
            expected = x.numpy()[x.numpy() > least]
            np.testing.assert_array_equal(kept.numpy(), expected)
            assert float(total) == np.sum(expected * expected)
