"""What a tape keeps alive, and for how long (line 13).

All of it without the garbage collector: nothing tapejit makes may be part of a cycle
of references, or memory would grow until the collector happens to run.
"""

from __future__ import annotations

import tracemalloc
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tapejit as tj
from tapejit.tape import recording

pytestmark = pytest.mark.usefixtures("without_collector")

MEGABYTE = 1 << 20


@pytest.fixture
def allocations() -> Iterator[None]:
    """Count the bytes that are allocated, NumPy's buffers included."""
    tracemalloc.start()
    yield
    tracemalloc.stop()


def in_use() -> int:
    return tracemalloc.get_traced_memory()[0]


def test_s13_a_persistent_tape_holds_intermediates_until_it_is_dropped() -> None:
    v = tj.Variable([1.0, 2.0])
    with tj.GradientTape(persistent=True) as tape:
        h = tj.exp(v)
        y = tj.sum(h * h)
    held = weakref.ref(h)
    del h
    for _ in range(2):
        tape.gradient(y, v)
        assert held() is not None
    del tape
    assert held() is None


@pytest.mark.parametrize("method", ["gradient", "jacobian", "batch_jacobian"])
def test_s13_a_tape_of_one_use_releases_them_when_asked(method: str) -> None:
    v = tj.Variable([[1.0, 2.0]])
    with tj.GradientTape() as tape:
        h = tj.exp(v)
        y = h * h
    held = weakref.ref(h)
    del h
    assert held() is not None
    assert tape.nbytes > 0
    getattr(tape, method)(y, v)
    assert held() is None
    assert tape.nbytes == 0


def test_s13_a_refused_call_releases_nothing() -> None:
    v = tj.Variable([1.0, 2.0])
    with tj.GradientTape() as tape:
        y = tj.exp(v)
    held = tape.nbytes
    with pytest.raises(TypeError):
        tape.gradient(y, 1.0)
    assert tape.nbytes == held == y.nbytes


def test_s13_a_tape_that_is_never_asked_drops_everything_with_itself() -> None:
    v = tj.Variable([1.0, 2.0])
    with tj.GradientTape() as tape:
        h = tj.exp(v)
        loss = tj.sum(h * h)
    held, whole = weakref.ref(h), weakref.ref(tape)
    del h
    assert held() is not None
    del tape
    assert whole() is None, "no cycle holds the tape"
    assert held() is None
    assert float(loss) > 0, "the loss outlives its graph"


def test_s13_kept_losses_do_not_keep_their_graphs() -> None:
    v = tj.Variable([1.0, 2.0])
    losses, intermediates = [], []
    for _ in range(5):
        with tj.GradientTape() as tape:
            h = tj.exp(v)
            loss = tj.sum(h * h)
        intermediates.append(weakref.ref(h))
        v.assign_sub(0.1 * tape.gradient(loss, v))
        losses.append(loss)
        del h, tape
    assert len(losses) == 5
    assert [held() for held in intermediates] == [None] * 5


def test_s13_kept_gradients_do_not_keep_their_graphs() -> None:
    v = tj.Variable([1.0, 2.0])
    with tj.GradientTape() as outer, tj.GradientTape() as inner:
        h = tj.exp(v)
        y = tj.sum(h * h)
        g = inner.gradient(y, v)
    held = weakref.ref(h)
    second = outer.gradient(g, v)
    del h, inner, outer
    assert held() is None
    assert second.shape == (2,)


@pytest.mark.parametrize("persistent", [False, True])
def test_s13_nothing_holds_a_variable_or_tensor_after_its_tape(
    persistent: bool,
) -> None:
    v, x = tj.Variable([1.0, 2.0]), tj.asarray([3.0, 4.0])
    with tj.GradientTape(persistent=persistent) as tape:
        tape.watch(x)
        y = v * x
    tape.gradient(y, [v, x])
    dead = [weakref.ref(v), weakref.ref(x), weakref.ref(y)]
    del v, x, y, tape
    assert [ref() for ref in dead] == [None] * 3


@pytest.mark.parametrize("error", [KeyError, KeyboardInterrupt])
def test_s13_nor_after_a_block_that_raised(error: type[BaseException]) -> None:
    def step() -> weakref.ref[Any]:
        v = tj.Variable([1.0, 2.0])
        tape = tj.GradientTape()
        try:
            with tape:
                v * v
                raise error
        except error:
            pass
        return weakref.ref(v)

    assert step()() is None


def test_s13_an_assigned_variable_lets_go_of_its_old_value(allocations: None) -> None:
    v = tj.Variable(np.zeros(MEGABYTE, np.float32))
    before = in_use()
    for step in range(5):
        with tj.GradientTape() as tape:
            loss = tj.sum(v * v)
        v.assign_sub(tape.gradient(loss, v) * float(step))
    del tape
    assert in_use() - before < MEGABYTE


def test_s13_the_memory_of_a_training_loop_does_not_grow(allocations: None) -> None:
    v = tj.Variable(np.full(MEGABYTE // 4, 0.5, np.float32))  # one megabyte
    losses, readings = [], []
    for _ in range(20):
        with tj.GradientTape() as tape:
            losses.append(tj.mean(tj.tanh(tj.exp(v))))
        v.assign_sub(tape.gradient(losses[-1], v))
        readings.append(in_use())
    assert readings[-1] - readings[4] < MEGABYTE // 2


def test_s13_a_persistent_tape_costs_memory_only_while_it_lives(
    allocations: None,
) -> None:
    v = tj.Variable(np.full(MEGABYTE // 4, 0.5, np.float32))
    before = in_use()
    with tj.GradientTape(persistent=True) as tape:
        y = tj.exp(tj.exp(tj.exp(v)))
    assert tape.nbytes == 3 * MEGABYTE
    assert in_use() - before >= 3 * MEGABYTE
    del tape, y
    assert in_use() - before < MEGABYTE // 2


def test_s13_only_values_that_a_derivative_looks_at_are_kept() -> None:
    v, c = tj.Variable([1.0, 2.0]), tj.asarray([3.0, 4.0])
    with tj.GradientTape() as tape:
        a = v + c
        shifted = weakref.ref(a)
        b = tj.exp(a)
        result = weakref.ref(b)
        y = tj.sum(b)
        del a, b
        assert shifted() is None, "neither the sum nor exp looks at it again"
        assert result() is not None, "exp' is exp's result"
    assert tape.nbytes == 8
    np.testing.assert_allclose(tape.gradient(y, v).numpy(), np.exp([4.0, 6.0]), 1e-6)


def test_s13_programs_are_forgotten_when_there_are_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is known of earlier steps is bounded, also in the middle of a recording."""
    monkeypatch.setattr(recording, "MAX_STATES", 7)
    v = tj.Variable(2.0)
    for length in range(12):
        with tj.GradientTape(persistent=True) as tape:
            y = v.value()
            for _ in range(length):
                y = y * v
        for _ in range(2):
            expected = (length + 1) * 2.0**length
            assert float(tape.gradient(y, v)) == expected
    assert recording.TRIE.size <= 7


def test_s13_a_factor_is_kept_only_if_the_other_one_is_watched() -> None:
    v, big = tj.Variable(2.0), tj.ones(1000)
    with tj.GradientTape(persistent=True) as tape:
        y = v * big
    assert tape.nbytes == big.nbytes
    assert float(tape.gradient(y, v)) == 1000.0


def test_s13_a_tape_still_open_can_be_dropped_by_its_block() -> None:
    v = tj.Variable([1.0, 2.0])

    def gradient_of(x: Any) -> tj.Tensor:
        with tj.GradientTape() as tape:
            h = tj.exp(x)
            alive.append(weakref.ref(h))
            return tape.gradient(h, x)

    alive: list[weakref.ref[Any]] = []
    gradient_of(v)
    assert alive[0]() is None


def test_s13_functions_of_functions_leave_nothing_behind() -> None:
    alive: list[weakref.ref[Any]] = []

    def loss(x: tj.Tensor) -> tj.Tensor:
        h = tj.exp(x)
        alive.append(weakref.ref(h))
        return tj.sum(h * h)

    x = tj.asarray([1.0, 2.0])
    tj.grad(loss)(x)
    tj.hessian(loss)(x)
    tj.jvp(loss, (x,), (x,))
    tj.hvp(loss, (x,), (x,))
    value, pull = tj.vjp(loss, x)
    pull(1.0)
    del value, pull
    tj.vmap(loss)(tj.asarray([[1.0, 2.0]]))
    assert len(alive) == 6
    assert [ref() for ref in alive] == [None] * 6


def test_s13_errors_do_not_keep_what_they_describe_once_dropped() -> None:
    x = tj.ones(3)
    held = weakref.ref(x)
    with pytest.raises(ValueError) as caught:
        x * tj.ones(2)
    text = str(caught.value)
    del caught, x
    assert "f32[3]" in text
    assert held() is None
