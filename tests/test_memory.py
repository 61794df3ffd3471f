"""What tapejit keeps alive, for how long, and what happens to it elsewhere.

With the collector of cycles switched off, everything must go with its last
reference. NumPy reports its arrays to tracemalloc, so sizes are measured, not
guessed.
"""

from __future__ import annotations

import copy
import gc
import pickle
import sys
import tracemalloc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from chains import chain, chain_gradient, expected_chain_gradient

import tapejit as tj
from tapejit.tape import recording
from tapejit.tape.recording import TRIE

pytestmark = pytest.mark.usefixtures("without_collector")

MEGABYTE = 1 << 20
ELEMENTS = MEGABYTE // 8


def megabyte(value: float = 0.5) -> tj.Tensor:
    return tj.asarray(np.full(ELEMENTS, value))


class Measured:
    """Megabytes of a block: what it leaves behind, and the most it needed."""

    left: float
    peak: float


@pytest.fixture
def tracing() -> Iterator[None]:
    """Allocations are counted from here to the end of the test."""
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()


@contextmanager
def measured() -> Iterator[Measured]:
    assert tracemalloc.is_tracing(), "ask for the fixture `tracing`"
    found = Measured()
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    yield found
    after, peak = tracemalloc.get_traced_memory()
    found.left = (after - before) / MEGABYTE
    found.peak = (peak - before) / MEGABYTE


# The last reference


def test_intermediates_of_untaped_code_go_at_once() -> None:
    x = tj.asarray([1.0, 2.0])
    y = tj.exp(x)
    z = tj.tanh(y)
    seen = weakref.ref(y)
    del y
    assert seen() is None
    assert z.shape == (2,)


def test_a_tape_goes_with_its_last_reference_and_takes_its_values_along() -> None:
    x = tj.Variable([1.0, 2.0])
    with tj.GradientTape() as tape:
        y = tj.exp(x)
        z = tj.sum(y * y)
    inner, whole = weakref.ref(y), weakref.ref(tape)
    del y
    assert inner() is not None, "the tape needs it"
    del tape
    assert whole() is None
    assert inner() is None
    assert z.shape == ()


def test_results_do_not_keep_the_tape_alive() -> None:
    """Losses collected over a training loop hold their numbers and nothing else."""
    x = tj.Variable([1.0, 2.0])
    losses, tapes, inner = [], [], []
    for _ in range(3):
        with tj.GradientTape() as tape:
            y = tj.tanh(x)
            loss = tj.sum(y)
        gradient = tape.gradient(loss, x)
        losses.append(loss)
        tapes.append(weakref.ref(tape))
        inner.append(weakref.ref(y))
        x.assign_sub(0.1 * gradient)
    del tape, y, gradient
    assert all(seen() is None for seen in [*tapes, *inner])
    assert len({float(loss) for loss in losses}) == 3


def test_a_recording_ends_with_its_tape_though_the_trie_goes_on() -> None:
    """The Nodes of a program are shared by all tapes; its values are not."""
    x = tj.Variable([1.0, 2.0])

    def recorded() -> tuple[tj.GradientTape, weakref.ref[Any], weakref.ref[Any]]:
        with tj.GradientTape() as tape:
            y = tj.exp(x)
            tj.sum(y)
        assert tape._recording is not None
        (node,) = [n for n in tape._recording.order if n.op.name == "exp"]
        return tape, weakref.ref(node), weakref.ref(y)

    first, node, value = recorded()
    second, node_again, value_again = recorded()
    assert node() is node_again() is not None
    assert value() is not value_again()
    del first
    assert value() is None
    assert node() is not None
    assert value_again() is not None
    del second


def test_a_tape_that_was_used_up_keeps_no_values() -> None:
    x = tj.Variable([1.0, 2.0])
    with tj.GradientTape() as tape:
        y = tj.exp(x)
        z = tj.sum(y)
    assert tape.nbytes > 0
    tape.gradient(z, x)
    seen = weakref.ref(y)
    del y
    assert seen() is None
    assert tape.nbytes == 0
    assert tape.watched_variables() == (x,)


def test_a_persistent_tape_keeps_its_values_until_it_is_reset_or_dropped() -> None:
    x = tj.Variable([1.0, 2.0])
    with tj.GradientTape(persistent=True) as tape:
        y = tj.exp(x)
        z = tj.sum(y)
    seen = weakref.ref(y)
    del y
    for _ in range(2):
        np.testing.assert_allclose(tape.gradient(z, x), np.exp([1.0, 2.0]), rtol=1e-6)
    assert seen() is not None
    del tape
    assert seen() is None


def test_reset_lets_go_of_what_was_recorded() -> None:
    x = tj.Variable([1.0, 2.0])
    with tj.GradientTape() as tape:
        y = tj.exp(x)
        seen = weakref.ref(y)
        del y
        assert seen() is not None
        tape.reset()
        assert seen() is None
        assert tape.nbytes == 0


def test_a_variable_is_not_kept_by_what_was_recorded_of_it() -> None:
    x = tj.Variable([1.0, 2.0])
    with tj.GradientTape() as tape:
        y = tj.sum(tj.exp(x))
    tape.gradient(y, x)
    seen = weakref.ref(x)
    del x, tape
    assert seen() is None
    assert y.shape == ()


def test_a_failed_operation_keeps_nothing() -> None:
    x = tj.Variable(np.ones((2, 3)))
    seen = []
    with tj.GradientTape() as tape:
        y = tj.exp(x)
        seen.append(weakref.ref(y))
        with pytest.raises(tj.ShapeError):
            y @ y
    del y, tape
    assert [ref() for ref in seen] == [None]


# Cycles


def gradient_of(x: tj.Variable) -> Any:
    with tj.GradientTape() as tape:
        y = tj.sum(tj.tanh(x) * x)
    return tape.gradient(y, x)


def gradient_of_structures(x: tj.Variable) -> Any:
    with tj.GradientTape() as tape:
        y = {"a": tj.sum(tj.tanh(x) * x), "b": [x * 2, (x[0],)]}
    return tape.gradient(y, {"x": x, "again": (x, [x])})


def persistent_gradient_of(x: tj.Variable) -> Any:
    with tj.GradientTape(persistent=True) as tape:
        y = tj.exp(x)
        z = tj.sum(y)
    return tape.gradient(z, x), tape.gradient(z, y), tape.gradient(y, x)


def jacobian_of(x: tj.Variable) -> Any:
    with tj.GradientTape() as tape:
        y = tj.tanh(x) * x
    return tape.jacobian(y, x)


def second_derivative_of(x: tj.Variable) -> Any:
    with tj.GradientTape() as outer:
        with tj.GradientTape() as inner:
            y = tj.sum(tj.tanh(x) * x)
        g = inner.gradient(y, x)
    return outer.jacobian(g, x)


def gradient_inside_its_block(x: tj.Variable) -> Any:
    with tj.GradientTape() as tape:
        y = tj.sum(tj.exp(x))
        return tape.gradient(y, x)


def mapped(x: tj.Variable) -> Any:
    return tj.vmap(lambda row: tj.sum(row * 2.0) + tj.sum(x))(tj.ones((3, 2)))


def mapped_gradient(x: tj.Variable) -> Any:
    return tj.vmap(tj.grad(lambda row: tj.sum(row * row)))(tj.ones((3, 2)))


def pushed_forward(x: tj.Variable) -> Any:
    return tj.jvp(tj.sin, (x.value(),), (tj.ones_like(x),))


def pulled_back(x: tj.Variable) -> Any:
    value, pull = tj.vjp(tj.sin, x.value())
    return pull(value)


def hessian_times_vector(x: tj.Variable) -> Any:
    return tj.hvp(lambda v: tj.sum(v**3), (x.value(),), (tj.ones_like(x),))


def hessian_of(x: tj.Variable) -> Any:
    return tj.hessian(lambda v: tj.sum(v**3))(x.value())


def reason_for_none(x: tj.Variable) -> Any:
    with tj.GradientTape() as tape:
        y = tj.stop_gradient(x) * 2
    return tape.why_none(y, x)


def assigned(x: tj.Variable) -> Any:
    x[0].assign(x[1])
    x.scatter_add([0], [1.0])
    return x.assign_add(tj.ones_like(x))


def drawn(x: tj.Variable) -> Any:
    noise = tj.random.normal((3, 2))
    return tj.vmap(lambda row: row + tj.random.uniform())(noise * x)


def copied(x: tj.Variable) -> Any:
    return copy.deepcopy(x), pickle.loads(pickle.dumps([x, x.value()]))


@pytest.mark.parametrize(
    "program",
    [
        gradient_of,
        gradient_of_structures,
        persistent_gradient_of,
        jacobian_of,
        second_derivative_of,
        gradient_inside_its_block,
        mapped,
        mapped_gradient,
        pushed_forward,
        pulled_back,
        hessian_times_vector,
        hessian_of,
        reason_for_none,
        assigned,
        drawn,
        copied,
    ],
    ids=lambda program: program.__name__,
)
def test_no_cycles_are_made_by(program: Callable[[tj.Variable], Any]) -> None:
    x = tj.Variable([1.0, 2.0])
    for _ in range(3):  # the first runs fill caches, some of them from cyclic parts
        program(x)
    gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        program(x)
        found = gc.collect()
        kinds = sorted({f"{type(o).__module__}.{type(o).__name__}" for o in gc.garbage})
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.collect()
    assert found == 0, f"{found} unreachable objects: {', '.join(kinds)}"


# What a tape keeps


def test_a_chain_keeps_one_value_per_operation(tracing: None) -> None:
    depth = 200
    x = megabyte()
    with measured() as block, tj.GradientTape() as tape:
        tape.watch(x)
        y = x
        for _ in range(depth):
            y = tj.tanh(y)
    assert tape.nbytes == depth * MEGABYTE
    assert depth <= block.left < depth + 1
    assert block.peak < depth + 3
    with measured() as sweep:
        gradient = tape.gradient(y, x)
    assert sweep.peak < 5, "beyond what the tape keeps, a sweep needs a few arrays"
    assert sweep.left < 2 - depth + 1
    assert gradient.shape == x.shape


def test_values_go_as_the_sweep_passes_them(tracing: None) -> None:
    """As many gradients come to life as kept values go: the sum stays the same."""
    depth = 40
    xs = [megabyte(0.01 * at) for at in range(depth)]
    with tj.GradientTape() as tape:
        tape.watch(xs)
        y = xs[0]
        for x in xs:
            y = tj.tanh(y + x)
        y = tj.sum(y)
    assert tape.nbytes == depth * MEGABYTE
    with measured() as sweep:
        gradients = tape.gradient(y, xs)
    assert len({id(g) for g in gradients}) == depth
    assert sweep.peak < 5


def test_untaped_code_needs_a_few_arrays_at_a_time(tracing: None) -> None:
    x = megabyte()
    with measured() as block:
        y = x
        for _ in range(50):
            y = tj.tanh(y)
    assert block.peak < 4
    assert y.shape == x.shape


@pytest.mark.parametrize(
    "operation",
    [
        lambda x, y: x + y,
        lambda x, y: x - y,
        lambda x, y: -x,
        lambda x, y: tj.sum(x, axis=0),
        lambda x, y: tj.mean(x),
        lambda x, y: tj.reshape(x, (-1,)),
        lambda x, y: x.T,
        lambda x, y: x[1:, ::2],
        lambda x, y: tj.concat([x, y]),
        lambda x, y: tj.broadcast_to(x, (3, *x.shape)),
        lambda x, y: tj.flip(x),
        lambda x, y: tj.astype(x, "float32"),
        lambda x, y: tj.stop_gradient(x),
        lambda x, y: x > y,
        lambda x, y: tj.floor(x),
    ],
    ids=[
        "add",
        "subtract",
        "negative",
        "sum",
        "mean",
        "reshape",
        "transpose",
        "slice",
        "concat",
        "broadcast_to",
        "flip",
        "astype",
        "stop_gradient",
        "greater",
        "floor",
    ],
)
def test_keeps_no_array(operation: Callable[[Any, Any], Any]) -> None:
    x, y = tj.Variable(np.ones((64, 64))), tj.Variable(np.ones((64, 64)))
    with tj.GradientTape() as tape:
        z = operation(x, y)
    assert tape.nbytes <= 16, "at most a scalar"
    seen = weakref.ref(z)
    del z
    assert seen() is None


@pytest.mark.parametrize(
    ("operation", "arrays"),
    [
        (lambda x, y: tj.exp(x), 1),  # its result
        (lambda x, y: tj.sin(x), 1),  # its operand
        (lambda x, y: x * 2.0, 0),
        (lambda x, y: x * y, 2),
        (lambda x, y: x * tj.ones_like(x), 1),  # the other factor only
        (lambda x, y: x @ tj.ones((64, 64), dtype="float64"), 1),
        (lambda x, y: tj.maximum(x, y), 2),
        (lambda x, y: x * x, 1),  # the same array twice
    ],
    ids=["exp", "sin", "scale", "mul", "mul_constant", "matmul", "maximum", "square"],
)
def test_keeps_this_many_arrays(
    operation: Callable[[Any, Any], Any], arrays: int
) -> None:
    x, y = tj.Variable(np.ones((64, 64))), tj.Variable(np.ones((64, 64)))
    with tj.GradientTape() as tape:
        operation(x, y)
    assert 0 <= tape.nbytes - arrays * 64 * 64 * 8 <= 16


def test_a_view_keeps_the_array_it_is_of_and_counts_it_once() -> None:
    x = tj.Variable(np.ones((64, 64)))
    with tj.GradientTape() as tape:
        y = tj.exp(x)
        tj.sin(y)
        tj.cos(y)
    assert tape.nbytes == 64 * 64 * 8


def test_nothing_is_kept_of_what_is_not_watched() -> None:
    constant = tj.ones((64, 64))
    with tj.GradientTape() as tape:
        y = tj.exp(constant)
        tj.sum(y * y)
    assert tape.nbytes == 0
    assert tape._recording is not None
    assert not tape._recording.order


def test_inside_stop_recording_nothing_is_kept() -> None:
    x = tj.Variable(np.ones((64, 64)))
    with tj.GradientTape() as tape, tape.stop_recording():
        tj.sum(tj.exp(x) * x)
    assert tape.nbytes == 0


# The trie


def test_the_trie_starts_anew_when_it_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    TRIE.clear()
    monkeypatch.setattr(recording, "MAX_STATES", 20)
    roots = set()
    for length in range(1, 40):
        found = chain_gradient(length, 0.3)
        np.testing.assert_allclose(found, expected_chain_gradient(length, 0.3), 1e-12)
        assert TRIE.size <= 20
        roots.add(id(TRIE.root))
    assert len(roots) > 5


def test_a_tape_survives_the_trie_starting_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the middle of its block, between two tapes, between block and gradient."""
    TRIE.clear()
    monkeypatch.setattr(recording, "MAX_STATES", 5)
    x = tj.Variable([0.3], dtype="float64")
    with tj.GradientTape() as outer:
        with tj.GradientTape() as inner:
            y = chain(x, 7)
            TRIE.clear()
            y = y * tj.sum(tj.exp(x))
        TRIE.clear()
        g = inner.gradient(y, x)
    TRIE.clear()
    second = outer.gradient(g, x)
    for hot in range(2):
        assert TRIE.size <= 5, hot
        with tj.GradientTape() as outer:
            with tj.GradientTape() as inner:
                y = chain(x, 7) * tj.sum(tj.exp(x))
            again = inner.gradient(y, x)
        np.testing.assert_array_equal(again, g)
        np.testing.assert_array_equal(outer.gradient(again, x), second)


def test_repeating_a_program_makes_no_new_states() -> None:
    chain_gradient(5, 0.1)
    size = TRIE.size
    for at in range(10):
        chain_gradient(5, 0.1 * at)
    assert TRIE.size == size


def test_dropping_the_trie_needs_no_collector() -> None:
    TRIE.clear()
    x = tj.Variable([1.0, 2.0])
    gradient_of(x)
    jacobian_of(x)
    second_derivative_of(x)
    seen = weakref.ref(next(iter(TRIE.root.next.values())).node)
    assert seen() is not None
    TRIE.clear()
    assert seen() is None
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        assert gc.collect() == 0, sorted({type(o).__name__ for o in gc.garbage})
    finally:
        gc.set_debug(0)
        gc.garbage.clear()


def test_a_loop_of_ever_new_shapes_does_not_grow_without_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recording, "MAX_STATES", 300)
    steps = 3000

    def step(size: int) -> None:
        x = tj.Variable(np.ones(size))
        with tj.GradientTape() as tape:
            y = tj.sum(tj.tanh(x) * x)
        g = tape.gradient(y, x)
        assert g.shape == (size,)

    TRIE.clear()
    for size in range(1, steps // 2):
        step(size)
    TRIE.clear()
    before = sys.getallocatedblocks()
    for size in range(steps // 2, steps + 1):
        step(size)
    assert TRIE.size <= 300
    TRIE.clear()
    assert sys.getallocatedblocks() - before < 1000, "less than a block a step"


def test_a_training_loop_keeps_its_memory(tracing: None) -> None:
    x = tj.Variable(np.ones(ELEMENTS))

    def step() -> None:
        with tj.GradientTape() as tape:
            y = tj.sum(tj.tanh(x) * x)
        x.assign_sub(tape.gradient(y, x) * 1e-3)

    step()
    with measured() as loop:
        for _ in range(20):
            step()
    assert loop.left < 0.1
    assert loop.peak < 8
