"""What tapejit keeps alive, for how long, and what happens to it elsewhere.

With the collector of cycles switched off, everything must go with its last
reference. NumPy reports its arrays to tracemalloc, so sizes are measured, not
guessed. The second half is about other processes and other threads.
"""

from __future__ import annotations

import copy
import gc
import os
import pickle
import sys
import threading
import tracemalloc
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import tapejit as tj
from tapejit.api import recording
from tapejit.api.recording import TRIE, Recording

MEGABYTE = 1 << 20
ELEMENTS = MEGABYTE // 8


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    """Nothing here may need the collector of cycles."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


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


def chain(x: Any, length: int) -> Any:
    for _ in range(length):
        x = tj.sin(x)
    return tj.sum(x)


def chain_gradient(length: int, at: float) -> float:
    x = tj.Variable([at], dtype="float64")
    with tj.GradientTape() as tape:
        y = chain(x, length)
    return float(tape.gradient(y, x)[0])


def expected_chain_gradient(length: int, at: float) -> float:
    slope = 1.0
    for _ in range(length):
        slope *= np.cos(at)
        at = np.sin(at)
    return slope


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


# Pickle, copy and fork


@pytest.mark.parametrize(
    "value",
    [3.0, [1.0, 2.0], np.ones((2, 0)), np.arange(6).reshape(2, 3), [True], 1j],
    ids=["scalar", "vector", "empty", "integers", "bool", "complex"],
)
def test_a_tensor_survives_a_pickle(value: Any) -> None:
    x = tj.asarray(value)
    y = pickle.loads(pickle.dumps(x))
    assert type(y) is tj.Tensor
    assert y.dtype == x.dtype
    assert y.shape == x.shape
    np.testing.assert_array_equal(y, x)


def test_a_pickled_view_holds_only_its_own_elements() -> None:
    x = megabyte()
    assert len(pickle.dumps(x[:2])) < 1000


def test_a_recorded_tensor_is_pickled_without_its_tape() -> None:
    x = tj.Variable([1.0, 2.0])
    with tj.GradientTape() as tape:
        y = tj.exp(x)
        z = pickle.loads(pickle.dumps(y))
        w = tj.sum(z * z)
    assert tape.gradient(w, x) is None
    np.testing.assert_array_equal(z, y)


def test_a_variable_is_pickled_once_per_object_graph() -> None:
    x = tj.Variable([1.0, 2.0], trainable=False, name="x")
    first, second, value = pickle.loads(pickle.dumps([x, x, x.value()]))
    assert first is second
    assert (first.name, first.trainable, first.dtype) == ("x", False, x.dtype)
    first.assign_add([1.0, 1.0])
    np.testing.assert_array_equal(second, [2.0, 3.0])
    np.testing.assert_array_equal(value, [1.0, 2.0])
    np.testing.assert_array_equal(x, [1.0, 2.0])


def test_a_deep_copy_of_a_structure_copies_each_variable_once() -> None:
    x = tj.Variable([1.0, 2.0])
    first, second = copy.deepcopy([x, x])
    assert first is second
    assert first is not x
    first.assign([5.0, 5.0])
    np.testing.assert_array_equal(x, [1.0, 2.0])


def test_a_pickled_variable_is_watched_by_tapes() -> None:
    x = pickle.loads(pickle.dumps(tj.Variable([1.0, 2.0])))
    np.testing.assert_allclose(
        gradient_of(x), gradient_of(tj.Variable([1.0, 2.0])), rtol=0
    )


@pytest.mark.parametrize("duplicate", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_tape_refuses_to_be_duplicated(duplicate: Callable[[Any], Any]) -> None:
    with tj.GradientTape() as tape:
        pass
    with pytest.raises(TypeError, match="cannot be pickled or copied"):
        duplicate(tape)


def in_child(program: Callable[[], bool]) -> int:
    """Run in a forked child; its exit status is 0 if the program returned True."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads and fork
        pid = os.fork()
    if pid == 0:
        status = 3
        try:
            import faulthandler

            faulthandler.dump_traceback_later(30, exit=True)  # a lock that is held
            status = 0 if program() else 1
        except BaseException:  # the child must not run the rest of the test session
            import traceback

            traceback.print_exc()
            status = 2
        finally:
            os._exit(status)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")


@needs_fork
def test_a_forked_child_goes_on_with_variables_caches_and_open_tapes() -> None:
    x = tj.Variable([1.0, 2.0])
    expected = np.asarray(gradient_of(x))
    with tj.GradientTape() as tape:
        y = tj.sum(tj.tanh(x) * x)

        def program() -> bool:
            states = TRIE.size
            same = np.array_equal(tape.gradient(y, x), expected)
            same &= np.array_equal(gradient_of(x), expected)
            same &= states == TRIE.size
            x.assign_add([1.0, 1.0])
            return same and np.array_equal(x, [2.0, 3.0])

        assert in_child(program) == 0
    np.testing.assert_array_equal(x, [1.0, 2.0])
    np.testing.assert_array_equal(tape.gradient(y, x), expected)


@needs_fork
def test_a_lock_that_another_thread_holds_is_free_in_a_forked_child() -> None:
    x = tj.Variable([1.0, 2.0])
    is_held, may_end = threading.Event(), threading.Event()

    def hold() -> None:
        with x._lock:
            is_held.set()
            may_end.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        assert is_held.wait(60)

        def program() -> bool:
            import faulthandler

            faulthandler.dump_traceback_later(5, exit=True)
            x.assign_add([1.0, 1.0])
            return np.array_equal(x, [2.0, 3.0])

        assert in_child(program) == 0
    finally:
        may_end.set()
        holder.join()


# Threads


@pytest.fixture
def eager_switching() -> Iterator[None]:
    """Threads take turns as often as the interpreter lets them."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def in_threads(count: int, program: Callable[[int], None]) -> None:
    """Run `program(i)` in threads that start together; the first error is raised."""
    errors: list[BaseException] = []
    barrier = threading.Barrier(count)

    def run(at: int) -> None:
        try:
            barrier.wait(60)
            program(at)
        except BaseException as error:  # raised below, in the thread of the test
            errors.append(error)

    threads = [threading.Thread(target=run, args=(at,)) for at in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def test_threads_with_their_own_tapes_get_their_own_gradients(
    eager_switching: None,
) -> None:
    shared = tj.Variable([0.5, -0.25], dtype="float64")

    def program(at: int) -> None:
        mine = tj.Variable([0.1 * at, 0.2], dtype="float64")
        for step in range(30):
            with tj.GradientTape() as tape:
                y = chain(mine * shared, 1 + (at + step) % 4)
            g_mine, g_shared = tape.gradient(y, [mine, shared])
            m, s = np.asarray(mine), np.asarray(shared)
            slopes = [expected_chain_gradient(1 + (at + step) % 4, v) for v in m * s]
            np.testing.assert_allclose(g_mine, slopes * s, rtol=1e-12)
            np.testing.assert_allclose(g_shared, slopes * m, rtol=1e-12, atol=1e-15)

    in_threads(8, program)


def test_tapes_in_threads_that_share_a_new_variable_all_see_it(
    eager_switching: None,
) -> None:
    """Each round's variable is first read by eight tapes at the same moment."""
    rounds = 300
    variables = [tj.Variable([1.0, 2.0]) for _ in range(rounds)]
    missing = []

    def program(at: int) -> None:
        for x in variables:
            with tj.GradientTape() as tape:
                y = tj.sum(x * x)
            if tape.gradient(y, x) is None:
                missing.append(at)

    in_threads(8, program)
    assert not missing


def test_assign_add_from_threads_loses_nothing(eager_switching: None) -> None:
    x = tj.Variable(np.zeros(3))
    one = tj.ones(3, dtype="float64")

    def program(at: int) -> None:
        for _ in range(250):
            x.assign_add(one)

    in_threads(8, program)
    np.testing.assert_array_equal(x, [2000.0] * 3)


def test_scatter_add_from_threads_loses_nothing(eager_switching: None) -> None:
    x = tj.Variable(np.zeros(8))

    def program(at: int) -> None:
        for _ in range(100):
            x.scatter_add([at, 0], [1.0, 1.0])

    in_threads(8, program)
    np.testing.assert_array_equal(x, [900.0] + [100.0] * 7)


def test_a_tape_does_not_record_another_thread() -> None:
    x = tj.Variable([1.0, 2.0])
    results: list[tj.Tensor] = []
    with tj.GradientTape() as tape:
        y = tj.sum(x)
        in_threads(2, lambda at: results.append(tj.sum(tj.exp(x))))
        assert isinstance(tape._recording, Recording)
    assert tape.gradient([y, *results], x).numpy().tolist() == [1.0, 1.0]


def test_the_trie_may_start_anew_while_threads_record(
    eager_switching: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "MAX_STATES", 7)

    def program(at: int) -> None:
        for length in range(1, 25):
            found = chain_gradient(1 + (length + at) % 9, 0.3)
            expected = expected_chain_gradient(1 + (length + at) % 9, 0.3)
            np.testing.assert_allclose(found, expected, rtol=1e-12)

    in_threads(8, program)
