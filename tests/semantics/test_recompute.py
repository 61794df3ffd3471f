"""recompute_grad, and stop_gradient beside it (line 45)."""

from __future__ import annotations

import contextlib
import io
import tracemalloc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tapejit as tj

KILOBYTE = 1 << 10


def chain(x: Any) -> Any:
    for _ in range(6):
        x = tj.exp(tj.sin(x))
    return x


def gradients(f: Callable[..., Any], *sources: Any) -> list[Any]:
    with tj.GradientTape() as tape:
        tape.watch([x for x in sources if isinstance(x, tj.Tensor)])
        y = f(*sources)
    return tape.gradient(y, list(sources))


def assert_same(f: Callable[..., Any], *sources: Any) -> None:
    """The gradients are, bit for bit, those of the function itself."""
    expected, got = gradients(f, *sources), gradients(tj.recompute_grad(f), *sources)
    for left, right in zip(expected, got, strict=True):
        if left is None:
            assert right is None
        else:
            np.testing.assert_array_equal(left, right)


def test_s45_stop_gradient_cuts_in_every_order() -> None:
    x = tj.Variable(3.0)
    with tj.GradientTape() as outer:
        with tj.GradientTape() as inner:
            y = tj.stop_gradient(x * x) * x
        g = inner.gradient(y, x)
    assert float(g) == 9.0
    assert outer.gradient(g, x) is None


def test_s45_recompute_gives_the_functions_value_and_gradient() -> None:
    x = tj.asarray([0.5, 1.0])
    np.testing.assert_array_equal(tj.recompute_grad(chain)(x), chain(x))
    assert_same(chain, x)


def test_s45_the_function_runs_once_more_in_the_backward_pass() -> None:
    runs: list[int] = []

    @tj.recompute_grad
    def f(x: Any) -> Any:
        runs.append(1)
        return x * x

    x = tj.Variable(3.0)
    f(x)
    assert len(runs) == 1
    with tj.GradientTape() as tape:
        y = f(x)
    assert len(runs) == 2
    tape.gradient(y, x)
    assert len(runs) == 3


def test_s45_it_runs_once_for_all_rows_of_a_jacobian() -> None:
    runs: list[int] = []

    @tj.recompute_grad
    def f(x: Any) -> Any:
        runs.append(1)
        return x * x

    x = tj.Variable([1.0, 2.0, 3.0])
    with tj.GradientTape() as tape:
        y = f(x)
    np.testing.assert_array_equal(tape.jacobian(y, x), np.diag([2.0, 4.0, 6.0]))
    assert len(runs) == 2


def test_s45_no_intermediate_is_held(without_collector: None) -> None:
    alive: list[weakref.ref[Any]] = []

    @tj.recompute_grad
    def f(x: Any) -> Any:
        h = tj.exp(x)
        alive.append(weakref.ref(h))
        return tj.sin(h)

    x = tj.Variable(np.ones(1000, np.float32))
    with tj.GradientTape() as tape:
        y = tj.sum(f(x))
    assert alive[0]() is None
    assert tape.nbytes == x.nbytes
    tape.gradient(y, x)
    assert [ref() for ref in alive] == [None, None]


def test_s45_memory_is_that_of_the_boundaries(without_collector: None) -> None:
    x = tj.Variable(np.full(64 * KILOBYTE, 0.5, np.float32))  # 256 kilobytes
    used = {}
    for name, block in (("plain", chain), ("again", tj.recompute_grad(chain))):
        tracemalloc.start()
        with tj.GradientTape() as tape:
            h = x.value()
            for _ in range(4):
                h = block(h)
        del h
        used[name] = (tape.nbytes, tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
        del tape
    assert used["plain"][0] == (4 * 6 + 1) * x.nbytes
    assert used["again"][0] == 4 * x.nbytes, "one argument for each block"
    assert used["again"][1] < 5 * x.nbytes


def test_s45_the_peak_is_the_boundaries_and_one_block(
    without_collector: None,
) -> None:
    x = tj.Variable(np.full(64 * KILOBYTE, 0.5, np.float32))
    blocks = 8
    peaks = {}
    for name, block in (("plain", chain), ("again", tj.recompute_grad(chain))):
        tracemalloc.start()
        with tj.GradientTape() as tape:
            h = x.value()
            for _ in range(blocks):
                h = block(h)
        tape.gradient(h, x)
        peaks[name] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peaks["plain"] > blocks * 6 * x.nbytes
    assert peaks["again"] < (blocks + 12) * x.nbytes


def test_s45_random_numbers_are_replayed_exactly() -> None:
    generator = tj.random.Generator(7)
    drawn: list[Any] = []

    @tj.recompute_grad
    def noisy(x: Any) -> Any:
        noise = generator.normal(3) * tj.random.uniform(3)
        drawn.append(noise.numpy())
        return x * noise

    x = tj.Variable([1.0, 2.0, 3.0])
    with tj.GradientTape() as tape:
        y = noisy(x)
    generator.normal(5)
    after = generator.state.numpy()
    g = tape.gradient(y, x)
    np.testing.assert_array_equal(drawn[0], drawn[1])
    np.testing.assert_array_equal(g, drawn[0])
    np.testing.assert_array_equal(generator.state, after, "and goes on from there")


def test_s45_variables_are_seen_as_they_were_then() -> None:
    w = tj.Variable(3.0)
    x = tj.Variable(2.0)
    with tj.GradientTape() as tape:
        y = tj.recompute_grad(lambda x: x * w * w)(x)
    w.assign(100.0)
    gx, gw = tape.gradient(y, [x, w])
    assert (float(gx), float(gw)) == (9.0, 12.0)
    assert float(w) == 100.0


def test_s45_what_it_assigns_is_assigned_once() -> None:
    count, mean = tj.Variable(0.0, trainable=False), tj.Variable(1.0, trainable=False)

    @tj.recompute_grad
    def f(x: Any) -> Any:
        count.assign_add(1.0)
        mean.assign(mean * 0.5 + 2.0)
        return x * count * mean

    x = tj.Variable(2.0)
    with tj.GradientTape() as tape:
        y = f(x)
    assert float(y) == 2 * 1 * 2.5
    assert float(tape.gradient(y, x)) == 2.5
    assert (float(count), float(mean)) == (1.0, 2.5)


def test_s45_what_it_prints_is_printed_once() -> None:
    @tj.recompute_grad
    def f(x: Any) -> Any:
        tj.print("inside", x)
        return x * x

    out = io.StringIO()
    x = tj.Variable(3.0)
    with contextlib.redirect_stdout(out):
        with tj.GradientTape() as tape:
            y = f(x)
        assert float(tape.gradient(y, x)) == 6.0
    assert out.getvalue() == "inside 3.0\n"


def test_s45_variables_and_closures_get_their_gradients() -> None:
    v, w = tj.Variable(2.0), tj.Variable(3.0)
    still = tj.Variable(5.0, trainable=False)
    x, k = tj.asarray(0.5), tj.asarray(0.25)

    def whole(x: Any, k: Any, again: bool) -> Any:
        c = k * w

        def inner(x: Any, v: Any) -> Any:
            return tj.sin(x * c) * v * w * still + c

        f = tj.recompute_grad(inner) if again else inner
        return f(x, v) + f(k, v)

    found = []
    for again in (False, True):
        with tj.GradientTape() as tape:
            tape.watch([x, k, still])
            y = whole(x, k, again)
        found.append([float(g) for g in tape.gradient(y, [x, k, v, w, still])])
    np.testing.assert_allclose(found[1], found[0], 1e-6)


def test_s45_a_variable_passed_twice() -> None:
    v = tj.Variable(3.0)
    with tj.GradientTape() as tape:
        y = tj.recompute_grad(lambda a, b: a * b * v)(v, v)
    assert float(tape.gradient(y, v)) == 27.0


def test_s45_a_closure_that_is_used_and_returned() -> None:
    k = tj.asarray(3.0)
    with tj.GradientTape() as tape:
        tape.watch(k)
        first, second = tj.recompute_grad(lambda x: (k, k * x))(2.0)
    assert float(tape.gradient([first, second], k)) == 3.0


def test_s45_none_is_none() -> None:
    x, z = tj.asarray(2.0), tj.asarray(3.0)
    assert_same(lambda x, z: x * 2 + tj.stop_gradient(z), x, z)
    assert_same(lambda x, z: (x * 2, tj.astype(z, "int32"))[0], x, z)


def test_s45_keywords_structures_and_integers() -> None:
    @tj.recompute_grad
    def f(parts: Any, *, power: int, index: Any, scale: Any) -> Any:
        return {"y": parts["a"][index] ** power * scale, "n": index + 1, "none": None}

    a, scale = tj.Variable([1.0, 2.0]), tj.asarray(3.0)
    with tj.GradientTape() as tape:
        tape.watch(scale)
        out = f({"a": a}, scale=scale, index=tj.asarray(1), power=3)
    assert int(out["n"]) == 2
    assert out["none"] is None
    ga, gs = tape.gradient(out["y"], [a, scale])
    np.testing.assert_array_equal(ga, [0.0, 36.0])
    assert float(gs) == 8.0


@pytest.mark.parametrize("persistent", [False, True])
def test_s45_second_order_works(persistent: bool) -> None:
    f = tj.recompute_grad(lambda x: tj.sin(x) * w)
    x, w = tj.Variable(0.7), tj.Variable(3.0)
    with tj.GradientTape() as outer:
        with tj.GradientTape(persistent=persistent) as inner:
            y = f(x * x)
        g = inner.gradient(y, x)
    second, mixed = outer.gradient(g, [x, w])
    q = 0.49
    assert float(g) == pytest.approx(3 * np.cos(q) * 1.4, 1e-5)
    expected = 3 * (2 * np.cos(q) - 1.4**2 * np.sin(q))
    assert float(second) == pytest.approx(expected, 1e-5)
    assert float(mixed) == pytest.approx(np.cos(q) * 1.4, 1e-5)


def test_s45_hessians_and_forward_mode() -> None:
    x, t = tj.asarray([0.5, -1.0]), tj.asarray([1.0, 2.0])

    def loss(x: Any) -> Any:
        return tj.sum(tj.sin(x) * x)

    again = tj.recompute_grad(loss)
    np.testing.assert_allclose(tj.hessian(again)(x), tj.hessian(loss)(x), 1e-5)
    expected, got = tj.jvp(loss, (x,), (t,)), tj.jvp(again, (x,), (t,))
    np.testing.assert_allclose(got[1], expected[1], 1e-6)
    expected, got = tj.hvp(loss, (x,), (t,)), tj.hvp(again, (x,), (t,))
    np.testing.assert_allclose(got[0], expected[0], 1e-5)


def test_s45_nested() -> None:
    w = tj.Variable(1.5)
    runs: list[int] = []

    @tj.recompute_grad
    def inner(x: Any) -> Any:
        runs.append(1)
        return tj.sin(x * w)

    @tj.recompute_grad
    def outer(x: Any) -> Any:
        return inner(inner(x)) * w

    x = tj.Variable(0.5)
    with tj.GradientTape() as tape:
        y = outer(x)
    assert len(runs) == 2
    gx, gw = tape.gradient(y, [x, w])
    assert len(runs) == 2 + 2 + 2, "once with the outer one, once each for their own"
    with tj.GradientTape() as tape:
        y = tj.sin(tj.sin(x * w) * w) * w
    ex, ew = tape.gradient(y, [x, w])
    assert float(gx) == pytest.approx(float(ex), 1e-6)
    assert float(gw) == pytest.approx(float(ew), 1e-6)


def test_s45_methods_and_custom_gradients_inside() -> None:
    class Model:
        def __init__(self) -> None:
            self.w = tj.Variable(2.0)

        @tj.recompute_grad
        def run(self, x: Any) -> Any:
            f = tj.custom_gradient(lambda x: (x * 1, lambda dy: dy * 10))
            return f(x) * self.w

    model, x = Model(), tj.Variable(3.0)
    with tj.GradientTape() as tape:
        y = model.run(x)
    gx, gw = tape.gradient(y, [x, model.w])
    assert (float(gx), float(gw)) == (20.0, 3.0)
    assert model.w in tape.watched_variables()


def test_s45_in_a_function() -> None:
    w = tj.Variable(2.0)
    f = tj.function(tj.recompute_grad(lambda x: tj.sin(x) * w))
    x = tj.Variable(0.5)
    with tj.GradientTape() as tape:
        y = f(x)
    gx, gw = tape.gradient(y, [x, w])
    assert float(gx) == pytest.approx(2 * np.cos(0.5), 1e-6)
    assert float(gw) == pytest.approx(np.sin(0.5), 1e-6)


def test_s45_an_error_in_the_second_run_leaves_tape_and_variables() -> None:
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
