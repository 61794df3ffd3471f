"""Watching functions: what `debug` reports, eager mode, printing in a trace."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from elsewhere import run_interpreter
from source_lines import line_of

import tapejit as tj

Capture = pytest.CaptureFixture[str]

FILE = Path(__file__).name
X = tj.asarray([1.0, 2.0, 3.0])


# config.debug


def test_level_1_says_why_a_function_is_traced(capsys: Capture) -> None:
    @tj.function
    def f(x: Any, times: int) -> Any:
        y = x * times
        return y if tj.sum(y) > 0 else -y

    with tj.config.override(debug=1):
        f(X, 2)
        f(X, 2)
        f(tj.ones(4), 2)
        f(-X, 2)
    captured = capsys.readouterr()
    assert captured.out == ""
    first, second, third = captured.err.splitlines()
    begin = r"tapejit: traced f\(x: f32\[\d\], times: int 2\) in [\d.]+ ms, \d Nodes: "
    assert re.fullmatch(begin + "the first call", first)
    assert re.fullmatch(
        begin + re.escape("argument x: now f32[4], before f32[3]"), second
    )
    place = f"another way is taken at {FILE}:{line_of(f, 'return y if')} in f: "
    assert re.match(begin + re.escape(place), third)


def test_level_2_shows_graphs_and_level_3_those_under_tapes(capsys: Capture) -> None:
    @tj.function
    def f(x: Any) -> Any:
        return tj.exp(x)

    def under_a_tape() -> None:
        with tj.GradientTape() as tape:
            tape.watch(X)
            f(X)

    with tj.config.override(debug=2):
        under_a_tape()
    text = capsys.readouterr().err
    assert text.count("tapejit: ") == 1
    assert "graph f(x: f32[3]) {\n  %0: f32[3] = exp x  # " + FILE in text
    f.clear_cache()
    with tj.config.override(debug=3):
        under_a_tape()
        under_a_tape()
    text = capsys.readouterr().err
    assert text.count("tapejit: ") == 2
    assert "saves 1 value for the gradient" in text
    assert "return %0, %0" in text


def test_a_graph_that_cannot_be_parsed_back_is_shown(capsys: Capture) -> None:
    @tj.custom_gradient
    def clipped(x: Any) -> Any:
        return x * 2, lambda g: g

    f = tj.function(lambda x: clipped(x))
    with tj.config.override(debug=2):
        assert f(X).tolist() == [2.0, 4.0, 6.0]
    assert "graph <lambda>(x: f32[3]) {" in capsys.readouterr().err


def test_nothing_is_reported_by_default(capsys: Capture) -> None:
    tj.function(lambda x: x + 1)(X)
    assert capsys.readouterr() == ("", "")


# Running eagerly


def run_program(program: str, *, given: str = "", **environment: str) -> Any:
    done = run_interpreter("-c", program, given=given, **environment)
    assert done.returncode == 0, done.stderr
    return done


PROGRAM = """
import tapejit as tj

@tj.function
def f(x):
    print(x.shape, x * 2)
    return x + 1

f(tj.ones(2))
f(tj.ones(2))
print(f.trace_count)
"""


def test_the_environment_makes_functions_run_eagerly() -> None:
    eager = run_program(PROGRAM, TAPEJIT_EAGER="1").stdout.splitlines()
    assert eager == ["(2,) [2. 2.]", "(2,) [2. 2.]", "0"]
    shown, count = run_program(PROGRAM, TAPEJIT_EAGER="0").stdout.splitlines()
    assert shown == "(2,) <tj.Tensor f32[2] in f, made by mul at <string>:6>"
    assert count == "1"


def test_running_eagerly_keeps_what_was_traced() -> None:
    seen = []

    @tj.function
    def f(x: Any) -> Any:
        seen.append(repr(x))
        return x + 1

    f(X)
    try:
        tj.run_functions_eagerly(True)
        f(X)
        f(X)
    finally:
        tj.run_functions_eagerly(False)
    f(X)
    assert f.trace_count == 1
    assert len(f.signatures()) == 1
    assert [text.endswith("[1. 2. 3.]>") for text in seen] == [False, True, True]


def test_a_breakpoint_in_a_traced_body_gives_a_hint(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    stops: list[Any] = []
    monkeypatch.setattr(sys, "breakpointhook", lambda *args: stops.append(args))
    hook = sys.breakpointhook

    @tj.function
    def f(x: Any) -> Any:
        breakpoint()
        return x

    f(X)
    f(X)
    assert len(stops) == 1
    assert "TAPEJIT_EAGER=1" in capsys.readouterr().err
    assert sys.breakpointhook is hook
    with tj.config.override(eager=True):
        f(X)
    assert len(stops) == 2
    assert capsys.readouterr().err == ""


STOPPING = """
import tapejit as tj

@tj.function
def f(x):
    y = x * 2
    breakpoint()
    return y + 1

f(tj.ones(2))
"""


@pytest.mark.parametrize("eager", ["0", "1"])
def test_the_debugger_stops_in_the_body(eager: str) -> None:
    done = run_program(
        STOPPING, given="p y\nc\n", TAPEJIT_EAGER=eager, PYTHONBREAKPOINT=""
    )
    assert "<string>(8)f()" in done.stdout
    is_shown = "<tj.Tensor f32[2] [2. 2.]>" in done.stdout
    assert is_shown == (eager == "1")
    assert ("TAPEJIT_EAGER=1" in done.stderr) == (eager == "0")


def test_a_disabled_debugger_is_left_alone() -> None:
    done = run_program(STOPPING, PYTHONBREAKPOINT="0")
    assert (done.stdout, done.stderr) == ("", "")


# Printing while a function is traced


def texts_of(make: Callable[[Any], Any]) -> list[str]:
    """How what `make` makes of an argument looks while `step` is traced."""
    found: list[str] = []

    @tj.function
    def step(x: Any) -> Any:
        y = make(x)
        found.extend([repr(y), str(y), f"{y}", f"{y:.3f}", f"{y:>10}", f"{y:d}"])
        found.append(re.sub("<.?code>", "", y._repr_html_()).replace("&#x27;", "'"))
        return x

    step(tj.asarray([1.0, 2.0]))
    found[-1] = found[-1].replace("&lt;", "<").replace("&gt;", ">")
    return found


def test_a_traced_tensor_shows_its_type_function_and_line() -> None:
    def make(x: Any) -> Any:
        return x * x

    line = make.__code__.co_firstlineno + 1
    expected = f"<tj.Tensor f32[2] in step, made by mul at {FILE}:{line}>"
    assert texts_of(make) == [expected] * 7


def test_a_tensor_without_axes_ignores_formats_of_numbers() -> None:
    texts = texts_of(tj.sum)
    assert len(set(texts)) == 1
    assert texts[0].startswith("<tj.Tensor f32[] in step, made by sum at ")


def test_texts_are_aligned_as_asked() -> None:
    found: list[str] = []

    @tj.function
    def f(x: Any) -> Any:
        found.append(f"{x:>60}|")
        return x

    f(X)
    assert found == [f"{'<tj.Tensor f32[3] in f, argument x>':>60}|"]


def test_arguments_reads_and_assignments_say_what_they_are() -> None:
    v = tj.Variable([1.0, 2.0], name="v")
    assert set(texts_of(lambda x: x)) == {"<tj.Tensor f32[2] in step, argument x>"}
    assigned = "<tj.Tensor f32[2] in step, assigned to variable 'v'>"
    assert set(texts_of(lambda x: v.assign(x))) == {assigned}


def test_a_gradient_shows_the_line_it_belongs_to() -> None:
    def make(x: Any) -> Any:
        with tj.GradientTape() as tape:
            tape.watch(x)
            y = x * x
        return tape.gradient(y, x)

    line = make.__code__.co_firstlineno + 3
    (text,) = set(texts_of(make))
    assert (
        text == f"<tj.Tensor f32[2] in step, made by add, vjp of mul at {FILE}:{line}>"
    )


def test_a_variable_in_a_trace_shows_no_stale_numbers() -> None:
    v = tj.Variable([1.0, 2.0], name="v")
    (text,) = set(texts_of(lambda x: v))
    assert text == "<tj.Variable 'v' f32[2] in step>"
    assert str(v) == "[1. 2.]"


def test_showing_a_variable_does_not_make_it_an_input() -> None:
    v = tj.Variable([1.0, 2.0])

    @tj.function
    def f(x: Any) -> Any:
        repr(v)
        return x

    assert len(f.graph(X).inputs) == 1


def test_rows_of_a_batch_and_leaked_tensors_can_be_shown() -> None:
    kept: list[Any] = []
    tj.vmap(lambda row: (kept.append(row), row)[1])(X)
    assert repr(kept[0]) == "<tj.Tensor f32[] in <lambda>, argument x0>"

    @tj.function
    def f(x: Any) -> Any:
        kept.append(x + 1)
        return x

    f(X)
    assert repr(kept[1]).startswith("<tj.Tensor f32[3] in f, made by add at ")
    assert f"{kept[1]:.2f}" == repr(kept[1])


def test_a_text_of_a_variable_is_refused_by_the_ordered_print() -> None:
    v = tj.Variable(1.0)

    @tj.function
    def f(x: Any) -> Any:
        tj.print(f"v is {v}")
        return x

    with pytest.raises(tj.ArgumentError, match="has no value"):
        f(X)
