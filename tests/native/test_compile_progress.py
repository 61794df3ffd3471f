"""A long compilation says how far it is: a line on a terminal, one line in a log."""

from __future__ import annotations

import io
import itertools
import re
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from agreement import COMPOSED, assert_agrees

import tapejit as tj
from tapejit.runtime import compile_progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def step(x: Any) -> Any:
    """Products of matrices are kernels of their own."""
    for _ in range(2):
        x = tj.tanh(x @ x)
    return x


def step_in_parts(x: Any) -> Any:
    """NumPy sorts in between."""
    return tj.sum(tj.sort(tj.exp(x) * 2, axis=0) * 3)


Run = Callable[..., str]
SCALES = itertools.count(2)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """What is written while a function is compiled, with no patience at all."""

    def compile(
        body: Any, stream: Any = None, patience: float = 0.0, **settings: Any
    ) -> str:
        monkeypatch.setattr(compile_progress, "PATIENCE", patience)
        monkeypatch.setattr(compile_progress, "INTERVAL", 0.0)
        monkeypatch.setenv("TERM", "xterm")
        found = Terminal() if stream is None else stream
        monkeypatch.setattr(sys, "stderr", found)
        wanted = {"progress": True, "cache": False, "native": True, **settings}
        x = np.random.default_rng(0).random((70, 70), "f4")
        scale = float(next(SCALES))  # code that is there already is not compiled again

        def program(x: Any) -> Any:
            return body(x) * scale

        program.__name__ = body.__name__
        with tj.config.override(**wanted):
            result = tj.function(program)(x)
        assert_agrees(COMPOSED, result.numpy(), program(tj.asarray(x)).numpy())
        return str(found.getvalue())

    return compile


def test_a_terminal_has_one_line_that_is_rewritten(run: Run) -> None:
    text = run(step)
    *before, last, rest = text.replace("\n", "\r\x1b[K").split("\r\x1b[K")[1:]
    assert rest == ""
    assert text.count("\n") == 1
    assert re.fullmatch(r"tapejit: compiled step in \d+\.\d s", last)
    kernels = [line for line in before if "kernel" in line]
    count = len(kernels)
    assert count > 1
    assert kernels == [
        f"tapejit: compiling step, kernel {at} of {count}" for at in range(1, count + 1)
    ]
    assert before[-1].startswith("tapejit: compiling step, machine code, piece ")


def test_parts_of_a_function_are_counted(run: Run) -> None:
    text = run(step_in_parts)
    assert "compiling step_in_parts, part 1 of 2, kernel 1 of " in text
    assert "compiling step_in_parts, part 2 of 2, kernel 1 of " in text
    assert text.count("\n") == 1


def test_a_log_has_one_line(run: Run) -> None:
    text = run(step, io.StringIO())
    assert re.fullmatch(r"tapejit: compiled step in \d+\.\d s\n", text)


def test_a_terminal_that_cannot_rewrite_has_one_line(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = Terminal()
    monkeypatch.setattr(compile_progress, "is_terminal", lambda: False)
    assert run(step, stream).startswith("tapejit: compiled step in ")


@pytest.mark.parametrize(
    "settings",
    [{"patience": 60.0}, {"progress": False}, {"native": False}],
)
def test_nothing_is_shown_otherwise(run: Run, settings: Any) -> None:
    assert run(step, **settings) == ""


def test_nobody_waits_for_the_background(run: Run) -> None:
    x = np.ones((7, 7), np.float32)
    function = tj.function(compile="background")(step)
    assert run(lambda x: tj.exp(x) * 1.5, compile="background") == ""
    with tj.config.override(progress=True, cache=False, native=True):
        found, expected = function(x), step(tj.asarray(x))
        assert_agrees(COMPOSED, found.numpy(), expected.numpy())
    from tapejit.runtime.background import _working

    for thread in [*_working]:
        thread.join()
    assert sys.stderr.getvalue() == ""  # type: ignore[attr-defined]  # a StringIO


def test_where_there_is_nobody_to_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_progress, "PATIENCE", 0.0)
    closed = Terminal()
    closed.close()
    for stream in (None, closed):
        scale = float(next(SCALES))
        monkeypatch.setattr(sys, "stderr", stream)
        with tj.config.override(progress=True, cache=False, native=True):
            found = tj.function(lambda x, by=scale: tj.sum(x) * by)(tj.ones(4))
        assert float(found) == 4 * scale


def test_a_compilation_that_fails_leaves_no_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(compile_progress, "PATIENCE", 0.0)
    monkeypatch.setattr(compile_progress, "INTERVAL", 0.0)
    monkeypatch.setenv("TERM", "xterm")

    def interrupted() -> None:
        with compile_progress.showing("step") as progress:
            progress.step("kernel", 1, 2)
            raise KeyboardInterrupt

    with tj.config.override(progress=True), pytest.raises(KeyboardInterrupt):
        interrupted()
    assert stream.getvalue().endswith("kernel 1 of 2\r\x1b[K")
    assert compile_progress.current().name == ""
