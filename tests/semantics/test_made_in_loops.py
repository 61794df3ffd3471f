"""Functions that are made anew for every call are warned of (line 49)."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

import tapejit as tj
from tapejit.tracing import made_in_loops

X = tj.ones(3)


@pytest.fixture(autouse=True)
def _loops_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(made_in_loops, "MANY", 6)


def warned(program: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        program()
    return [str(each.message) for each in found]


def test_s49_functions_made_in_a_loop_are_warned_of_once() -> None:
    def program() -> None:
        for _ in range(20):
            tj.function(lambda x: x + 1)(X)

    (text,) = warned(program)
    first = program.__code__.co_firstlineno
    assert f"test_made_in_loops.py:{first + 2} in program" in text
    assert "traced 6 times" in text
    assert "make the function once, outside of the loop" in text


def test_s49_also_with_a_name_and_a_decorator() -> None:
    def program() -> None:
        for _ in range(20):

            @tj.function
            def step(x: Any) -> Any:
                return x * 2

            step(X)

    (text,) = warned(program)
    assert text.startswith("step, of test_made_in_loops.py")


def test_s49_a_derivative_is_named_after_its_function() -> None:
    def program() -> None:
        for _ in range(20):
            tj.function(tj.grad(lambda x: tj.sum(x * x)))(X)

    (text,) = warned(program)
    assert text.startswith("<lambda>, of test_made_in_loops.py")


def test_s49_derivatives_of_several_functions_are_no_loop() -> None:
    functions = [eval(f"lambda x: tj.sum(x ** {n})", {"tj": tj}) for n in range(8)]

    def program() -> None:
        for f in functions:
            tj.function(tj.grad(f))(X)

    assert warned(program) == []


def test_s49_functions_that_are_kept_or_called_again_are_none_of_these() -> None:
    kept = []

    def made() -> Any:
        return tj.function(lambda x: x + 1)

    class Model:
        @tj.function
        def apply(self, x: Any) -> Any:
            return x * 3

    def program() -> None:
        for _ in range(10):
            f = made()
            f(X)
            f(X)
        for _ in range(10):
            f = made()
            kept.append(f)
            f(X)
        for _ in range(10):
            Model().apply(X)
        for _ in range(10):
            made()

    assert warned(program) == []
