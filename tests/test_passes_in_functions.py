"""What users see of the passes: the same results, errors and guards, less to run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tapejit as tj
from tapejit.runtime.executable import steps_of

X = tj.asarray([1.0, 2.0, 3.0])


def running(function: Any) -> list[str]:
    """The operations that the only path of a function runs."""
    (entry,) = function._cache.entries.values()
    (path,) = entry.paths
    return [node.op.name for node in steps_of(path._executable.graph)]


def test_a_function_runs_what_the_passes_leave() -> None:
    @tj.function
    def f(x: Any) -> Any:
        return tj.exp(x * 1) + tj.exp(x)

    np.testing.assert_array_equal(f(X), tj.exp(X) + tj.exp(X))
    assert running(f) == ["exp", "add"]
    assert [node.op.name for node in f.graph().nodes if node.inputs] == [
        "mul",
        "exp",
        "exp",
        "add",
    ]


def test_functions_traced_alike_share_an_executable_and_not_their_lines() -> None:
    @tj.function
    def one(x: Any, i: Any) -> Any:
        y = x * 1
        return tj.take(y, i, axis=0)

    @tj.function
    def two(x: Any, i: Any) -> Any:
        z = x * 1
        return tj.take(z, i, axis=0)  # another line

    at = tj.asarray([0])
    one(X, at), two(X, at)
    paths = [
        path
        for function in (one, two)
        for entry in function._cache.entries.values()
        for path in entry.paths
    ]
    assert paths[0]._executable is paths[1]._executable
    for function, line in ((one, "y, i, axis=0"), (two, "z, i, axis=0")):
        with pytest.raises(tj.OutOfRangeError, match=line):
            function(X, tj.asarray([7]))


# Failures


def message(function: Any, *args: Any) -> str:
    with pytest.raises(tj.TapejitError) as caught:
        function(*args)
    return str(caught.value)


def test_a_failure_is_described_as_the_eager_one() -> None:
    def body(x: Any, i: Any) -> Any:
        y = tj.stop_gradient(-(x * 1)) / 1
        z = tj.exp(x) + tj.exp(x * 1)
        return tj.sum(z) + tj.take(y, i, axis=0)

    wrong = tj.asarray([5])
    traced = tj.function(body)
    traced(X, tj.asarray([0]))
    assert len(running(traced)) < len(steps_of(traced.graph()))
    found = message(traced, X, wrong)
    assert "tj.take(y, i, axis=0)" in found
    first_lines = [text.splitlines()[0] for text in (found, message(body, X, wrong))]
    assert first_lines[0] == first_lines[1]


def test_a_failure_whose_result_nobody_uses_is_one_still() -> None:
    @tj.function
    def f(x: Any, i: Any) -> Any:
        tj.take(x * 1, i, axis=0)
        return x * 1

    f(X, tj.asarray([0]))
    assert "tj.take(x * 1, i, axis=0)" in message(f, X, tj.asarray([3]))


def test_a_failure_under_a_tape_names_the_line() -> None:
    @tj.function
    def f(x: Any, i: Any) -> Any:
        return tj.take(tj.exp(x * 1) * tj.exp(x), i, axis=0)

    with tj.GradientTape() as tape:
        tape.watch(X)
        f(X, tj.asarray([0]))
        assert "tj.exp(x * 1) * tj.exp(x)" in message(f, X, tj.asarray([3]))


def test_the_first_of_two_equal_failures_is_reported() -> None:
    @tj.function
    def f(x: Any, i: Any) -> Any:
        first = x[i]
        second = x[i]
        return first + second

    f(X, tj.asarray([0]))
    assert "first = x[i]" in message(f, X, tj.asarray([3]))


# Guards


def test_guards_are_asked_in_order_whatever_is_merged() -> None:
    @tj.function
    def f(x: Any) -> Any:
        total = 0
        if tj.sum(x) > 0:
            total += 1
        if tj.sum(x * 1) > 0:  # the same question
            total += 10
        if x[0] > 5:
            total += 100
        return x * total

    cases = [([1.0, 1.0], 11), ([9.0, 1.0], 111), ([-1.0, 0.0], 0), ([9.0, -10.0], 100)]
    for _ in range(2):
        for given, factor in cases:
            x = tj.asarray(given)
            np.testing.assert_array_equal(f(x), x * factor)
    assert f.trace_count == len(cases)


# Memory


def test_a_result_does_not_share_memory_with_an_array_of_the_user() -> None:
    """Where the copy was simplified away, one is made at the end."""

    @tj.function
    def f(x: Any) -> Any:
        return x * 1, tj.negative(-x) / 1, x + x

    given = np.ones(3, np.float32)
    results = f(given)
    f(given)
    again = f(given)
    given[:] = 7
    for found in (results, again):
        assert [x.tolist() for x in found] == [[1.0] * 3, [1.0] * 3, [2.0] * 3]


def test_a_variable_does_not_share_memory_with_an_array_of_the_user() -> None:
    v = tj.Variable(tj.zeros(3))

    @tj.function
    def keep(x: Any) -> None:
        v.assign(x * 1)

    given = np.ones(3, np.float32)
    for _ in range(3):
        keep(given)
        given += 1
    assert v.numpy().tolist() == [3.0, 3.0, 3.0]


def test_two_variables_with_equal_values_stay_two() -> None:
    one, two = tj.Variable([1.0, 2.0]), tj.Variable([0.0, 0.0])

    @tj.function
    def f(x: Any) -> None:
        one.assign(tj.exp(x))
        two.assign(tj.exp(x))

    f(tj.zeros(2))
    f(tj.zeros(2))
    one.assign_add([1.0, 1.0])
    assert one.numpy().tolist() == [2.0, 2.0]
    assert two.numpy().tolist() == [1.0, 1.0]


# Gradients


def test_gradients_are_taken_of_what_was_traced() -> None:
    """`stop_gradient` and reads mean nothing to a run and everything to a tape."""

    @tj.function
    def f(x: Any) -> Any:
        return x * tj.stop_gradient(x) + x * 1

    with tj.GradientTape() as tape:
        tape.watch(X)
        y = f(X)
    np.testing.assert_array_equal(tape.gradient(y, X), X + 1)


def test_a_gradient_in_a_function_keeps_its_bits() -> None:
    def body(x: Any, w: Any) -> Any:
        with tj.GradientTape() as tape:
            tape.watch(w)
            loss = tj.mean(tj.tanh(tj.reshape(x, (2, 3)) @ w) ** 2)
        return loss, tape.gradient(loss, w)

    rng = np.random.default_rng(0)
    x, w = (tj.asarray(rng.normal(size=s).astype("f4")) for s in ((6,), (3, 2)))
    found, expected = tj.function(body)(x, w), body(x, w)
    for one, two in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, two)


# What is shown


def test_debugging_shows_what_each_pass_changes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    @tj.function
    def doubled_sine(x: Any) -> Any:
        return tj.sin(x * 1) + tj.sin(x)

    with tj.config.override(debug=3):
        doubled_sine(tj.ones(5))
    shown = [line.split("  #")[0] for line in capsys.readouterr().err.splitlines()]
    start = shown.index("tapejit: simplify of doubled_sine, 4 -> 3 Nodes")
    changes = [" ".join(line.split()) for line in shown[start + 1 :]]
    second = changes.index("tapejit: cse of doubled_sine, 3 -> 2 Nodes")
    assert "- %0: f32[5] = mul x, f32(1.0)" in changes[:second]
    assert "- %1: f32[5] = sin x" in changes[second:]
    assert "+ %1: f32[5] = add %0, %0" in changes[second:]


def test_nothing_of_it_is_shown_below_that_level(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with tj.config.override(debug=2):
        tj.function(lambda x: x * 1)(tj.ones(7))
    assert "simplify" not in capsys.readouterr().err
