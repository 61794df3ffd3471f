"""Tapes and transformations around calls of functions (line 56)."""

from __future__ import annotations

import warnings
import weakref
from typing import Any

import numpy as np
import pytest

import tapejit as tj
from tapejit.ir.structural import call

from .both_modes import assert_modes, assert_taped, note, note_error


def setup() -> Any:
    return tj.Variable(3.0), tj.asarray(2.0)


def vectors() -> Any:
    return tj.Variable([1.0, 2.0, 3.0]), tj.asarray([0.5, -1.0, 2.0])


def calls_on(tape: tj.GradientTape) -> int:
    """How many `call` Nodes a tape holds, and that it holds nothing else."""
    recording: Any = tape._recording
    nodes = [x for x in recording.order if x.op.name not in ("param", "item", "read")]
    found = [node for node in nodes if node.op is call]
    assert len(found) == len(nodes), [node.op.name for node in nodes]
    return len(found)


# Running eagerly, and keeping what was traced


def test_s56_run_functions_eagerly_runs_the_body_each_time_and_keeps_traces() -> None:
    runs = []

    @tj.function
    def f(x: Any) -> Any:
        runs.append(type(x))
        return x * 2

    x = tj.asarray(1.0)
    f(x)
    tj.run_functions_eagerly(True)
    try:
        f(x)
        f(x)
        assert runs[1:] == [tj.Tensor, tj.Tensor], "values, as in plain Python"
        assert tj.functions_run_eagerly()
    finally:
        tj.run_functions_eagerly(False)
    f(x)
    assert len(runs) == 3
    assert f.trace_count == 1


def test_s56_eager_functions_are_recorded_line_by_line() -> None:
    @tj.function
    def f(x: Any) -> Any:
        return tj.exp(x) * x

    x = tj.asarray(1.0)
    with tj.config.override(eager=True), tj.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
        assert {node.op.name for node in tape._recording.order} >= {"exp", "mul"}
    assert float(tape.gradient(y, x)) == pytest.approx(2 * np.e, rel=1e-6)


# A tape around a call


def test_s56_a_tape_around_a_call_records_one_node_and_does_not_retrace() -> None:
    v = tj.Variable([1.0, 2.0])

    @tj.function
    def f(x: Any) -> Any:
        return tj.sum(tj.exp(v) * x + tj.sin(x)), v * 2

    x = tj.asarray([1.0, 2.0])
    f(x)
    for _ in range(3):
        with tj.GradientTape() as tape:
            tape.watch(x)
            f(x)
        assert calls_on(tape) == 1
    with tj.GradientTape() as tape:
        f(x)
    assert calls_on(tape) == 1, "the variable is watched"
    assert f.trace_count == 1


def test_s56_a_call_on_nothing_watched_is_not_recorded() -> None:
    f = tj.function(lambda x: x * 2)
    with tj.GradientTape() as tape:
        f(tj.asarray(1.0))
    assert calls_on(tape) == 0
    assert tape.nbytes == 0


def test_s56_gradients_of_calls() -> None:
    assert_taped(lambda v, x: v * v * x, setup, expected=[12.0, 9.0])
    assert_taped(lambda v, x: {"a": v * x, "b": [x**3, tj.exp(x) * 0]}, setup, order=3)
    assert_taped(lambda v, x: tj.sum(v * v * x), vectors)
    assert_taped(lambda v, x: (v[1:], tj.cumulative_sum(x), tj.outer(v, x)), vectors)


def test_s56_none_is_none_per_output_and_input() -> None:
    def program(a: Any, b: Any, c: Any) -> Any:
        return a * b, b * 2, tj.stop_gradient(c) * a, tj.floor(c), c.astype("int32")

    def three() -> Any:
        return tj.asarray(2.0), tj.asarray(3.0), tj.asarray(4.5)

    assert_taped(program, three)
    f = tj.function(program)
    a, b, c = three()
    connected = []
    for at in range(5):
        with tj.GradientTape() as tape:
            tape.watch([a, b, c])
            target = f(a, b, c)[at]
        connected.append([g is not None for g in tape.gradient(target, [a, b, c])])
    assert connected == [
        [True, True, False],
        [False, True, False],
        [True, False, False],
        [False, False, True],
        [False, False, False],
    ]


def test_s56_second_order_none_ness_through_calls() -> None:
    def second(f: Any, x: Any) -> Any:
        with tj.GradientTape() as outer:
            outer.watch(x)
            with tj.GradientTape() as inner:
                inner.watch(x)
                y = f(x)
            g = inner.gradient(y, x)
        return outer.gradient(g, x)

    x = tj.asarray([1.0, -2.0])
    assert second(tj.function(lambda x: tj.sum(x * 3)), x) is None, "linear"
    for body in (tj.nn.relu, tj.abs, lambda x: tj.clip(x, -1.0, 1.0)):
        np.testing.assert_array_equal(second(tj.function(body), x), [0.0, 0.0])


def test_s56_third_order_through_nested_tapes_around_calls() -> None:
    f = tj.function(lambda x: x**4)
    x = tj.asarray(2.0)
    with tj.GradientTape() as t3:
        t3.watch(x)
        with tj.GradientTape() as t2:
            t2.watch(x)
            with tj.GradientTape() as t1:
                t1.watch(x)
                y = f(x)
            g1 = t1.gradient(y, x)
        g2 = t2.gradient(g1, x)
    g3 = t3.gradient(g2, x)
    assert [float(g) for g in (y, g1, g2, g3)] == [16.0, 32.0, 48.0, 48.0]
    assert f.trace_count == 1


def test_s56_calls_and_operations_mix_on_one_tape() -> None:
    v = tj.Variable([1.0, 2.0])
    square, scale = tj.function(lambda x: x * x), tj.function(lambda x: x * v)

    def chain(square: Any, scale: Any, x: Any) -> Any:
        y = tj.sin(square(x))
        return tj.sum(scale(y) * square(y) + scale(scale(x)))

    x = tj.asarray([0.5, 1.5])
    found = []
    for a, b in ((square, scale), (square.python_function, scale.python_function)):
        with tj.GradientTape() as tape:
            tape.watch(x)
            y = chain(a, b, x)
        found.append([g.numpy() for g in tape.gradient(y, [x, v])])
    for mine, plain in zip(*found, strict=True):
        np.testing.assert_allclose(mine, plain, rtol=1e-6)


def test_s56_output_gradients_and_unconnected_gradients() -> None:
    f = tj.function(lambda x: (x * x, tj.stop_gradient(x)))
    x = tj.asarray([1.0, 2.0])
    with tj.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y, cut = f(x)
    g = tape.gradient(y, x, output_gradients=tj.asarray([10.0, 100.0]))
    np.testing.assert_array_equal(g, [20.0, 400.0])
    assert tape.gradient(cut, x) is None
    zeros = tape.gradient(cut, x, unconnected_gradients="zero")
    np.testing.assert_array_equal(zeros, [0.0, 0.0])


def test_s56_persistent_tapes_around_calls() -> None:
    f = tj.function(lambda x: (x * x, x**3))
    x = tj.asarray(2.0)
    with tj.GradientTape(persistent=True) as tape:
        tape.watch(x)
        a, b = f(x)
    assert [float(tape.gradient(y, x)) for y in (a, b, a)] == [4.0, 12.0, 4.0]
    assert float(tape.gradient([a, b], x)) == 16.0


def test_s56_jacobians_around_calls() -> None:
    w = tj.Variable([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    f = tj.function(lambda x: tj.sin(w @ x))
    x = tj.asarray([0.1, 0.2, 0.3])
    found = []
    for g in (f, f.python_function):
        with tj.GradientTape() as tape:
            tape.watch(x)
            y = g(x)
        found.append([j.numpy() for j in tape.jacobian(y, [x, w])])
    for mine, plain in zip(*found, strict=True):
        np.testing.assert_allclose(mine, plain, rtol=1e-6)
    assert found[0][1].shape == (2, 2, 3)


def test_s56_batch_jacobians_around_calls() -> None:
    f = tj.function(lambda x: tj.tanh(x) * x[:, ::-1])
    x = tj.asarray([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]])
    found = []
    for g in (f, f.python_function):
        with tj.GradientTape() as tape:
            tape.watch(x)
            y = g(x)
        found.append(tape.batch_jacobian(y, x).numpy())
    np.testing.assert_allclose(*found, rtol=1e-6)
    assert found[0].shape == (3, 2, 2)


# Variables and captured tensors


def test_s56_variables_of_a_call_are_watched() -> None:
    v, w = tj.Variable(2.0, name="v"), tj.Variable(5.0, name="w")
    fixed = tj.Variable(7.0, trainable=False)

    @tj.function
    def f(x: Any) -> Any:
        w.assign(x)
        return v * x * fixed

    for _ in range(2):
        with tj.GradientTape() as tape:
            y = f(tj.asarray(3.0))
        assert tape.watched_variables() == (v,), "w is merely assigned"
        assert [g is None for g in tape.gradient(y, [v, w, fixed])] == [
            *(False, True, True)
        ]


def test_s56_watch_accessed_variables_holds_for_captured_variables() -> None:
    v = tj.Variable(2.0)
    f = tj.function(lambda x: v * x)
    x = tj.asarray(3.0)
    for _ in range(2):
        with tj.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(x)
            y = f(x)
        assert tape.watched_variables() == ()
        assert [g is None for g in tape.gradient(y, [x, v])] == [False, True]
        with tj.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(v)
            y = f(x)
        assert float(tape.gradient(y, v)) == 3.0


def test_s56_a_variable_the_call_changes() -> None:
    def program(v: Any, x: Any) -> Any:
        before = v * v * x
        v.assign_add(1.0)
        return before, v * v * v

    assert_taped(program, setup, order=2)


def test_s56_assignments_of_the_call_do_not_reach_the_tape_as_gradients() -> None:
    v = tj.Variable(1.0)

    @tj.function
    def f(x: Any) -> Any:
        v.assign(x * x)
        return v * 3

    x = tj.asarray(4.0)
    for _ in range(2):
        with warnings.catch_warnings(), tj.GradientTape() as tape:
            warnings.simplefilter("ignore")  # which says just this
            tape.watch(x)
            y = f(x)
        assert [None if g is None else float(g) for g in tape.gradient(y, [x, v])] == [
            *(None, 3.0)
        ]


def test_s56_a_read_after_the_call_sees_what_it_assigned() -> None:
    def program(v: Any, x: Any) -> Any:
        inner = tj.function(lambda: v.assign(x * 10))
        with tj.GradientTape() as tape:
            y = v * v
            inner()
            z = v * v
        return y, z, tape.gradient([y, z], v)

    assert_modes(program, setup, expected=(9.0, 400.0, 46.0), variables=[20.0])


def test_s56_captured_tensors_are_sources() -> None:
    x = tj.asarray([1.0, 2.0])
    made: dict[str, Any] = {}

    @tj.function
    def f() -> Any:
        return tj.sum(x * x) + made["y"]

    for _ in range(2):
        with tj.GradientTape() as tape:
            tape.watch(x)
            made["y"] = tj.sum(x)
            f.clear_cache()
            y = f()
        np.testing.assert_array_equal(tape.gradient(y, x), [3.0, 5.0])


def test_s56_a_captured_tensor_watched_after_the_trace() -> None:
    x = tj.asarray([1.0, 2.0])
    f = tj.function(lambda: tj.sum(tj.exp(x * 2) * 0 + x * x))
    f()
    for _ in range(2):
        with tj.GradientTape() as tape:
            tape.watch(x)
            y = f()
        np.testing.assert_array_equal(tape.gradient(y, x), [2.0, 4.0])
    assert f.trace_count == 1


def test_s56_arrays_given_by_the_caller_may_change_before_the_gradient() -> None:
    v = tj.Variable([1.0, 2.0])
    f = tj.function(lambda x: tj.sum(v * v * x))
    x = np.array([3.0, 4.0], np.float32)
    for _ in range(2):
        x[:] = [3.0, 4.0]
        with tj.GradientTape() as tape:
            y = f(x)
        x[:] = -1
        np.testing.assert_array_equal(tape.gradient(y, v), [6.0, 16.0])


def test_s56_why_none_sees_into_calls() -> None:
    v = tj.Variable(2.0, name="v")

    @tj.function
    def f(x: Any) -> Any:
        return tj.stop_gradient(x) * v, x.astype("int32"), x * 1

    x = tj.asarray(3.0)
    for _ in range(2):
        with tj.GradientTape(persistent=True) as tape:
            tape.watch(x)
            cut, cast, fine = f(x)
        assert "stop_gradient" in tape.why_none(cut, x)
        assert "int" in tape.why_none(cast, x)
        assert tape.gradient(fine, x) is not None
        assert tape.gradient(cut, x) is None


# Functions of functions


def test_s56_functions_nest_and_inline() -> None:
    @tj.function
    def inner(x: Any) -> Any:
        return x * x

    @tj.function
    def outer(x: Any) -> Any:
        return inner(x) + inner(inner(x))

    x = tj.asarray(2.0)
    assert float(outer(x)) == 20.0
    assert inner.trace_count == 0, "its body is part of the outer trace"
    with tj.GradientTape() as tape:
        tape.watch(x)
        y = outer(x)
    assert float(tape.gradient(y, x)) == 4.0 + 32.0
    assert calls_on(tape) == 1
    assert (outer.trace_count, inner.trace_count) == (1, 0)


def test_s56_gradients_inside_of_calls_of_functions() -> None:
    def program(v: Any, x: Any) -> Any:
        square = tj.function(lambda y: y * y * v)
        with tj.GradientTape() as outer:
            outer.watch(x)
            with tj.GradientTape() as tape:
                tape.watch(x)
                y = square(square(x))
            g = tape.gradient(y, x)
        return y, g, outer.gradient(g, [x, v])

    assert_modes(program, setup, expected=(432.0, 864.0, [1296.0, 864.0]))


def test_s56_a_function_may_call_itself() -> None:
    @tj.function
    def power(x: Any, n: int) -> Any:
        return x if n == 0 else x * power(x, n - 1)

    x = tj.asarray(2.0)
    for _ in range(2):
        assert float(power(x, 4)) == 32.0
    with tj.GradientTape() as tape:
        tape.watch(x)
        y = power(x, 4)
    assert float(tape.gradient(y, x)) == 80.0


def test_s56_transformations_of_functions() -> None:
    w = tj.Variable([1.0, 2.0])
    f = tj.function(lambda x: tj.sum(tj.sin(x) * x * w))
    plain = f.python_function
    x, t = tj.asarray([0.5, 1.5]), tj.asarray([1.0, -1.0])
    rows = tj.asarray([[0.5, 1.5], [2.5, 3.5], [0.0, 1.0]])
    for transformed in (
        lambda f: tj.grad(f)(x),
        lambda f: tj.value_and_grad(f)(x),
        lambda f: tj.jvp(f, (x,), (t,)),
        lambda f: tj.hvp(f, (x,), (t,)),
        lambda f: tj.vmap(f)(rows),
        lambda f: tj.vmap(tj.grad(f))(rows),
        lambda f: tj.hessian(f)(x),
        lambda f: tj.grad(lambda y: tj.sum(tj.vmap(f)(y)))(rows),
        lambda f: tj.function(tj.grad(f))(x),
        lambda f: tj.function(tj.vmap(tj.grad(f)))(rows),
    ):
        for _ in range(2):
            for mine, theirs in zip(
                tj.tree.flatten(transformed(f))[0],
                tj.tree.flatten(transformed(plain))[0],
                strict=True,
            ):
                np.testing.assert_allclose(mine, theirs, rtol=2e-6, atol=1e-6)


def test_s56_forward_accumulators_around_calls() -> None:
    v = tj.Variable(3.0)
    f = tj.function(lambda x: (x * x * v, tj.stop_gradient(x)))
    x = tj.asarray(2.0)
    for _ in range(2):
        with tj.ForwardAccumulator([x, v], [tj.asarray(1.0), tj.asarray(10.0)]) as acc:
            y, cut = f(x)
        assert float(acc.jvp(y)) == 12.0 + 40.0
        assert acc.jvp(cut) is None
    with (
        tj.ForwardAccumulator(x, tj.asarray(1.0)) as acc,
        tj.GradientTape() as tape,
    ):
        tape.watch(x)
        y, _ = f(x)
        g = tape.gradient(y, x)
    assert float(acc.jvp(g)) == 6.0


# A tape from outside, used inside


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("method", ["watch", "gradient", "jacobian", "reset"])
def test_s56_a_tape_opened_outside_is_not_used_inside(eager: bool, method: str) -> None:
    x = tj.asarray(2.0)

    @tj.function
    def f(x: Any) -> Any:
        y = x * x
        arguments = {"watch": (x,), "reset": ()}.get(method, (y, x))
        getattr(tape, method)(*arguments)
        return y

    with tj.config.override(eager=eager):
        for _ in range(2):
            with tj.GradientTape(persistent=True) as tape:  # opened here
                tape.watch(x)
                with pytest.raises(RuntimeError, match="opened here") as caught:
                    f(x)
            assert isinstance(caught.value, tj.TapejitError)


def test_s56_a_tape_opened_inside_is_not_used_outside() -> None:
    kept: list[tj.GradientTape] = []

    @tj.function
    def f(x: Any) -> Any:
        with tj.GradientTape() as tape:
            tape.watch(x)
            y = x * x
        kept.append(tape)
        return y

    x = tj.asarray(2.0)
    y = f(x)
    with pytest.raises((RuntimeError, ValueError)):
        kept[0].gradient(y, x)


def test_s56_texts_and_errors_of_tapes_are_the_same_inside() -> None:
    def program(v: Any, x: Any) -> Any:
        with tj.GradientTape() as tape:
            y = v * x
        note(len(tape.watched_variables()))
        g = tape.gradient(y, v)
        note_error(lambda: tape.gradient(y, v))
        return g

    assert_modes(program, setup, expected=2.0)


# Memory


@pytest.mark.usefixtures("without_collector")
def test_s56_residuals_are_released_with_the_tape() -> None:
    f = tj.function(lambda x: tj.sum(tj.exp(tj.sin(x)) * x))
    x = tj.ones(1000)
    with tj.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    assert tape.nbytes >= 4000
    tape.gradient(y, x)
    assert tape.nbytes == 0
    with tj.GradientTape(persistent=True) as tape:
        tape.watch(x)
        z = x * 2
        y = f(z)
    held = weakref.ref(z)
    del z
    tape.gradient(y, x)
    del tape
    assert held() is None


@pytest.mark.usefixtures("without_collector")
def test_s56_a_call_without_a_tape_keeps_nothing() -> None:
    f = tj.function(lambda x: tj.exp(x) * x)
    x = tj.ones(1000)
    for _ in range(2):
        y = f(x)
    arguments, results = weakref.ref(x), weakref.ref(y)
    del x, y
    assert arguments() is None
    assert results() is None


def test_s56_cheap_values_are_not_saved() -> None:
    f = tj.function(lambda x: tj.sum(tj.broadcast_to(tj.sin(x), (1000, 10)) * 2))
    x = tj.ones(10)
    with tj.GradientTape() as tape:
        tape.watch(x)
        f(x)
    assert tape.nbytes < 1000, "the sine's argument, not what it was spread to"
