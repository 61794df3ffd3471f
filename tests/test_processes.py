"""Tensors, variables and tapes elsewhere: in a pickle, a copy, a child, a thread.

Threads are made to take turns as often as the interpreter lets them, so that what is
not atomic shows.
"""

from __future__ import annotations

import copy
import os
import pickle
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from chains import chain, chain_gradient, expected_chain_gradient
from elsewhere import in_threads, needs_fork

import tapejit as tj
from tapejit.tape import recording
from tapejit.tape.recording import TRIE, Recording


def gradient_of(x: tj.Variable) -> Any:
    with tj.GradientTape() as tape:
        y = tj.sum(tj.tanh(x) * x)
    return tape.gradient(y, x)


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
    x = tj.ones(100_000)
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


@pytest.mark.parametrize(
    "duplicate",
    [lambda x: pickle.loads(pickle.dumps(x)), copy.deepcopy],
    ids=["pickle", "deepcopy"],
)
def test_a_duplicate_of_a_generator_goes_on_from_the_same_place(
    duplicate: Callable[[Any], Any],
) -> None:
    generator = tj.random.Generator(7)
    generator.normal((3,))
    other, again = duplicate([generator, generator])
    assert other is again
    np.testing.assert_array_equal(other.normal((5,)), generator.normal((5,)))
    other.normal((2,))
    assert not np.array_equal(other.normal((5,)), generator.normal((5,)))


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
def test_a_forked_child_draws_what_its_parent_draws() -> None:
    generator = tj.random.Generator(7)
    expected = copy.deepcopy(generator).normal((4,)).numpy()

    def program() -> bool:
        return np.array_equal(generator.normal((4,)), expected)

    assert in_child(program) == 0
    np.testing.assert_array_equal(generator.normal((4,)), expected)


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


def test_draws_of_threads_that_share_a_generator_do_not_overlap(
    eager_switching: None,
) -> None:
    generator = tj.random.Generator(7)
    alone = copy.deepcopy(generator)
    drawn: list[int] = []

    def program(at: int) -> None:
        for _ in range(40):
            drawn.append(int(generator.integers(2**62)))

    in_threads(8, program)
    expected = [int(alone.integers(2**62)) for _ in range(320)]
    assert sorted(drawn) == sorted(expected)


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
