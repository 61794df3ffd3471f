"""New values of variables written over the old ones.

A value is written over only where nobody can tell. So most tests compare a function
whose variables nobody else refers to, which are written over, with the same function
while somebody refers to them: bit by bit. `where` tells which of the two happened.
"""

from __future__ import annotations

import dataclasses
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from elsewhere import in_threads, needs_fork, needs_timers, run_interpreter
from graph_properties import for_all
from hypothesis import strategies as st
from limits import set_limits

import tapejit as tj
from tapejit.ir import Graph
from tapejit.loops.fuse import inplace
from tapejit.loops.lower import lower
from tapejit.runtime.compiled import whole_graph
from tapejit.targets.cpu.module import build

Array = np.ndarray[Any, Any]


pytestmark = pytest.mark.usefixtures("with_native_code")


def where(variable: tj.Variable) -> int:
    """The address of a variable's memory; nobody refers to it afterwards."""
    return int(variable._tensor._value.__array_interface__["data"][0])


def stepping(variables: Sequence[tj.Variable], body: Callable[..., Any]) -> Any:
    """A function that reaches variables by itself: arguments are not written over."""
    return tj.function(lambda *xs: body(variables, *xs))


@dataclasses.dataclass(frozen=True)
class Run:
    """What three steps of a function gave."""

    bits: list[bytes]  # of all results, then of the variables
    values: list[Array]  # of the variables
    stayed: list[bool]  # which of them have their memory of before; numbers never do
    said: list[bool]  # which of them `explain` says are written in place


def run_steps(
    values: Sequence[Array], body: Callable[..., Any], *arguments: Any, is_shared: bool
) -> Run:
    """Three steps of `body(variables, *arguments)`, which assigns to variables.

    If they are shared, somebody refers to their values at every step.
    """
    variables = [tj.Variable(x, name=f"v{at}") for at, x in enumerate(values)]
    step = stepping(variables, body)
    bits: list[bytes] = []
    places: list[list[int]] = []
    for _ in range(3):
        before = [(v.value(), v.numpy()) for v in variables if is_shared]
        found = step(*arguments)
        found = found if isinstance(found, tuple) else (found,)
        bits += [x.numpy().tobytes() for x in found]
        for tensor, numbers in before:
            assert tensor.numpy().tobytes() == numbers.tobytes(), "what was read stays"
        places.append([where(v) for v in variables])
    stayed = [x == y for x, y in zip(*places[-2:], strict=True)]
    ends = [v.numpy() for v in variables]
    bits += [x.tobytes() for x in ends]
    found = {v.name: v.in_place for v in step.explain(*arguments).variables}
    return Run(bits, ends, stayed, said=[found[v.name] for v in variables])


def both_ways(
    values: Sequence[Array], body: Callable[..., Any], *arguments: Any
) -> tuple[Run, Run]:
    """Three steps whose variables may be written over, and three where none may be."""
    alone = run_steps(values, body, *arguments, is_shared=False)
    shared = run_steps(values, body, *arguments, is_shared=True)
    assert not any(shared.stayed), "somebody refers to these values"
    return alone, shared


def long_step() -> tuple[tj.Variable, Any, Array]:
    """A variable to which a function adds 1 at the end of long work, and its argument.

    It was called once.
    """
    v = tj.Variable(np.zeros(100))

    @tj.function
    def step(x: Any) -> Any:
        y = x
        for _ in range(4):
            y = y @ x
        v.assign(v + 1 + 0 * y[0, :100])
        return tj.sum(y)

    x = np.zeros((1500, 1500))
    step(x)
    return v, step, x


def holds_tensor(variable: tj.Variable) -> bool:
    """Whether the Tensor of a variable is where it belongs."""
    try:
        object.__getattribute__(variable, "_tensor")
    except AttributeError:
        return False
    return True


def updates_of(graph: Graph) -> dict[int, list[int]]:
    """Which outputs of a Graph may be written over which inputs."""
    whole = whole_graph(graph)
    assert whole is not None
    found = build(whole, "looked_at").plan.updates
    return {out.number: [x.number for x in inputs] for out, inputs in found.items()}


# Who refers to it


def test_the_memory_of_a_variable_stays_where_it_is() -> None:
    v, count = tj.Variable(np.zeros(100_000, "f4")), tj.Variable(0)

    @tj.function
    def step(x: Any) -> Any:
        count.assign_add(1)
        v.assign_add(x)
        return tj.sum(x)

    x = np.ones(100_000, "f4")
    step(x)
    step(x)
    place = where(v)
    for number in range(3, 10):
        step(x)
        assert where(v) == place
        assert v.numpy().tolist()[::33_333] == [number] * 4
    assert int(count.numpy()) == 9


KEEPERS: dict[str, Callable[[tj.Variable], Any]] = {
    "value": lambda v: v.value(),
    "a part": lambda v: v[3:7],
    "asarray": lambda v: np.asarray(v),
    "a view": lambda v: np.asarray(v)[5:].reshape(-1, 1),
    "memoryview": lambda v: memoryview(np.asarray(v)),
    "DLPack": lambda v: np.from_dlpack(v),
    "reshape": lambda v: tj.reshape(v, (-1, 5)),
    "another variable": lambda v: (w := tj.Variable(0.0 * v)).assign(v) is None or w,
    "what was assigned": lambda v: v.assign(v + 0.0),
}


@pytest.mark.parametrize("size", [50, 500, 100_000])
@pytest.mark.parametrize("how", KEEPERS)
def test_what_refers_to_a_value_keeps_its_numbers(how: str, size: int) -> None:
    v = tj.Variable(np.arange(size, dtype="f8"))
    step = tj.function(lambda x: v.assign_add(x).shape and tj.sum(x))
    x = np.ones(size)
    for _ in range(3):
        step(x)
    kept = KEEPERS[how](v)
    gc.collect()
    before, place = np.array(kept), where(v)
    step(x)
    assert np.array(kept).tobytes() == before.tobytes()
    assert v.numpy().tolist() == (np.arange(size) + 4.0).tolist()
    assert where(v) != place
    del kept
    gc.collect()
    step(x)
    place = where(v)
    step(x)
    assert where(v) == place, "alone again"


def test_an_argument_that_shares_the_memory_is_one_who_refers_to_it() -> None:
    v = tj.Variable(np.arange(64, dtype="f4"))
    step = tj.function(lambda x: v.assign(v + x[::-1]).shape and tj.sum(x))
    for _ in range(3):
        step(np.zeros(64, "f4"))
    step(np.asarray(v))
    np.testing.assert_array_equal(v.numpy(), np.full(64, 63, "f4"))
    v.assign(np.arange(64, dtype="f4"))
    step(v.value())
    np.testing.assert_array_equal(v.numpy(), np.full(64, 63, "f4"))


def test_what_a_tape_knows_is_not_written_over() -> None:
    v = tj.Variable(np.full(40, 3.0))
    double = tj.function(lambda: v.assign(v * 2).shape and tj.sum(v))
    double()
    double()
    with tj.GradientTape() as tape:
        loss = tj.sum(v * v)
    double()
    np.testing.assert_array_equal(tape.gradient(loss, v).numpy(), np.full(40, 24.0))


def test_a_function_that_runs_as_plain_python_can_undo_it() -> None:
    v = tj.Variable(np.zeros(40))
    step = tj.function(lambda x: v.assign_add(x).shape and tj.sum(x))
    for _ in range(3):
        step(np.ones(40))

    @tj.function
    def outer(x: Any) -> Any:
        step(x)
        step(x)
        raise RuntimeError("no")

    with tj.config.override(eager=True), pytest.raises(RuntimeError, match="no"):
        outer(np.ones(40))
    np.testing.assert_array_equal(v.numpy(), np.full(40, 3.0))


def test_arrays_from_elsewhere_are_not_written_over() -> None:
    """The memory of a variable may belong to somebody who keeps no reference."""
    owner = bytearray(np.arange(64, dtype="f4").tobytes())
    v = tj.Variable(np.zeros(64, "f4"))
    v._tensor = type(v._tensor)(np.frombuffer(owner, "f4"))
    step = tj.function(lambda x: v.assign_add(x).shape and tj.sum(x))
    step(np.ones(64, "f4"))
    step(np.ones(64, "f4"))
    assert np.frombuffer(owner, "f4").tolist() == list(range(64))
    assert v.numpy().tolist() == list(range(2, 66))


# What may be written over what


def test_a_value_that_others_read_first_is_written_over_last() -> None:
    """The product that reads `w` comes before the update, whatever the order was."""
    w, u = tj.Variable(np.eye(40, dtype="f4")), tj.Variable(np.ones((40, 40), "f4"))

    @tj.function
    def step(x: Any) -> Any:
        new = w - 0.5 * (x.T @ x)
        w_before = w.value()
        w.assign(new)
        u.assign(u + 0.25 * (x @ w_before))
        return tj.sum(x @ w_before)

    x = np.full((40, 40), 0.125, "f4")
    found = updates_of(step.graph(x))
    assert sorted(found) == [1, 2]

    def body(variables: Sequence[Any], x: Any) -> Any:
        a, b = variables
        new = a - 0.5 * (x.T @ x)
        old = a.value()
        a.assign(new)
        b.assign(b + 0.25 * (x @ old))
        return tj.sum(x @ old)

    values = [np.eye(40, dtype="f4"), np.ones((40, 40), "f4")]
    alone, shared = both_ways(values, body, x)
    assert alone.stayed == [True, True]
    assert alone.bits == shared.bits


@pytest.mark.parametrize("size", [1, 7, 16, 33, 1000])
def test_variables_change_places(size: int) -> None:
    rng = np.random.default_rng(size)
    values = [rng.normal(size=size) for _ in range(3)]

    def body(variables: Sequence[Any], x: Any) -> Any:
        a, b, c = (v.value() for v in variables)
        variables[0].assign(b)
        variables[1].assign(c + x)
        variables[2].assign(a)
        return tj.sum(a * x)

    x = rng.normal(size=size)
    alone, shared = both_ways(values, body, x)
    assert alone.stayed == [False, False, False]
    assert alone.bits == shared.bits
    np.testing.assert_allclose(alone.values[0], values[0] + x, rtol=1e-15)


def test_shifted_and_transposed_reads_are_not_written_over() -> None:
    v, m = tj.Variable(np.arange(50.0)), tj.Variable(np.arange(36.0).reshape(6, 6))

    @tj.function
    def step(x: Any) -> Any:
        v.assign(v + tj.roll(v, 1))
        m.assign(m + m.T)
        return x

    assert updates_of(step.graph(1.0)) == {}

    def body(variables: Sequence[Any], x: Any) -> Any:
        a, b = variables
        a.assign(a[::-1] + x)
        b.assign(b.T * x)
        return x + 0

    values = [np.arange(50.0), np.arange(36.0).reshape(6, 6)]
    alone, shared = both_ways(values, body, np.array(2.0))
    assert alone.stayed == [False, False]
    assert alone.bits == shared.bits


def test_sums_of_the_old_value_are_made_before_it_goes() -> None:
    def body(variables: Sequence[Any], x: Any) -> Any:
        (w,) = variables
        old = w.value()
        rows = tj.sum(old * old, axis=1, keepdims=True)
        w.assign(old / tj.sqrt(rows) + x)
        return tj.max(rows)

    def summed(variables: Sequence[Any], x: Any) -> Any:
        total = tj.sum(variables[0])
        return body(variables, x) + total

    for shape in [(5, 3), (33, 17), (64, 64), (300, 1000)]:
        value = np.random.default_rng(1).normal(size=shape)
        for formula, stays in ((body, True), (summed, False)):
            alone, shared = both_ways([value], formula, np.array(0.1))
            assert (shape, formula, alone.stayed) == (shape, formula, [stays])
            assert alone.bits == shared.bits


@pytest.mark.parametrize("dtype", ["f4", "f8", "f2", "bfloat16", "i1", "i8", "u2", "?"])
def test_every_element_is_updated_once(dtype: str, full: bool) -> None:
    """Where the last vector is done together with elements before it, too.

    Vectors have 4 to 64 lanes: by default sizes are those around as many.
    """
    kind = tj.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    around = [lanes + more for lanes in (4, 8, 16, 32, 64) for more in (-1, 0, 1, 3)]
    for size in [*(range(1, 70) if full else (1, 2, *around)), 129, 1000, 1003]:
        rng = np.random.default_rng(size)
        value = rng.integers(0, 9, size).astype(kind)
        x = rng.integers(1, 3, size).astype(kind)

        def body(variables: Sequence[Any], x: Any) -> Any:
            (v,) = variables
            v.assign(v ^ x if v.dtype.kind == "b" else v + x)
            return tj.sum(x)

        alone, shared = both_ways([value], body, x)
        assert alone.stayed == [True]
        assert alone.bits == shared.bits
        is_flag = kind.kind == "b"
        expected = value ^ x if is_flag else value + x * kind.type(3)
        np.testing.assert_array_equal(alone.values[0], expected)


@pytest.mark.parametrize("columns", [3, 5, 9, 17, 33, 65])
@pytest.mark.parametrize(
    "dtype", ["f2", "bfloat16", "f4", "f8", "i1", "u2", "i4", "i8", "?"]
)
def test_the_last_column_leaves_the_next_row_alone(dtype: str, columns: int) -> None:
    """Columns are vectors here: a single lane that is left is the end of each row."""
    kind = tj.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    rng = np.random.default_rng(columns)
    value = rng.integers(1, 3, (columns, columns)).astype(kind)
    x = rng.integers(0, 2, (2, columns)).astype(kind)

    def body(variables: Sequence[Any], x: Any) -> Any:
        (v,) = variables
        scale = tj.max(x, axis=0) + x[0]
        wide = v.astype("int64" if v.dtype.kind in "biu" else v.dtype)
        v.assign((wide * scale).astype(v.dtype))
        return scale, wide * scale

    alone, shared = both_ways([value], body, x)
    assert alone.bits == shared.bits
    variables = [tj.Variable(value)]
    with tj.config.override(eager=True):
        for _ in range(3):
            body(variables, tj.asarray(x))
    np.testing.assert_array_equal(alone.values[0], variables[0].numpy())


@pytest.mark.parametrize("size", [300_000, 300_003, 1_000_001])
def test_every_element_is_updated_once_by_many_tasks(size: int) -> None:
    def body(variables: Sequence[Any], x: Any) -> Any:
        v, m = variables
        m.assign(0.5 * m + tj.tanh(x))
        v.assign(v - 0.25 * m)
        return tj.sum(x)

    rng = np.random.default_rng(3)
    values = [rng.normal(size=size).astype("f4") for _ in range(2)]
    alone, shared = both_ways(values, body, rng.normal(size=size).astype("f4"))
    assert alone.stayed == [True, True]
    assert alone.bits == shared.bits


@pytest.mark.parametrize(
    "sizes", [(5, 3, 2), (17, 33, 10), (64, 16, 64), (40, 100, 7), (31, 257, 129)]
)
def test_weights_are_updated_by_the_product_of_their_gradient(
    sizes: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lower, "is_small_product", lambda *_: False)
    rows, inner, columns = sizes
    rng = np.random.default_rng(5)
    values = [
        rng.normal(size=(inner, columns)).astype("f4"),
        rng.normal(size=columns).astype("f4"),
        np.zeros((inner, columns), "f4"),
        np.zeros((inner, columns), "f4"),
    ]

    def body(variables: Sequence[Any], x: Any, y: Any) -> Any:
        w, b, m, s = variables
        with tj.GradientTape() as tape:
            loss = tj.mean((tj.tanh(x @ w + b) - y) ** 2)
        gw, gb = tape.gradient(loss, [w, b])
        m.assign(0.9 * m + 0.1 * gw)
        s.assign(0.99 * s + 0.01 * gw * gw)
        w.assign(w - 0.1 * m / (tj.sqrt(s) + 1e-3))
        b.assign(b - 0.1 * gb)
        return loss

    tj.config.update(cache=False)
    try:
        x = rng.normal(size=(rows, inner)).astype("f4")
        y = rng.normal(size=(rows, columns)).astype("f4")
        alone, shared = both_ways(values, body, x, y)
    finally:
        tj.config.update(cache=True)
    assert alone.stayed == [True, True, True, True]
    assert alone.bits == shared.bits


def kept(v: Any, x: Any) -> Any:
    y = v * 2
    v.assign(y * x + v)
    return y


def of_other_dtypes(v: Any, x: Any) -> Any:
    is_large, half = v > x, v.astype("float32")
    v.assign(tj.where(is_large, v, x) + half.astype("float64"))
    return is_large, half


def in_the_arena(v: Any, x: Any) -> Any:
    y = tj.exp(v * 0.01)
    v.assign(y + x)
    return tj.flip(y), y


def through_rows(v: Any, x: Any) -> Any:
    scaled = v * tj.sum(v)
    v.assign(0.1 * scaled + x)
    return tj.sum(scaled * tj.max(scaled))


@pytest.mark.parametrize("formula", [kept, of_other_dtypes, in_the_arena, through_rows])
@pytest.mark.parametrize("size", [*range(1, 36), 65, 1003, 300_003])
def test_what_else_is_made_of_the_old_value_is_right(formula: Any, size: int) -> None:
    """Where the last vector is done once more, its lanes see the new value."""

    def body(variables: Sequence[Any], x: Any) -> Any:
        return formula(variables[0], x)

    alone, shared = both_ways([np.linspace(0, 1, size)], body, np.ones(size))
    assert alone.stayed == [True]
    assert alone.bits == shared.bits


@pytest.mark.parametrize("size", [5, 17, 33, 1003])
def test_variables_that_are_made_of_the_old_value_are_right(size: int) -> None:
    def body(variables: Sequence[Any], x: Any) -> Any:
        w, other, rows = variables
        other.assign(w * 2)
        w.assign(other + x * w)
        total = tj.sum(rows, axis=1, keepdims=True)
        scaled = rows * total
        rows.assign(scaled * 0.1 + x)
        return tj.sum(scaled * tj.max(scaled, axis=1, keepdims=True), axis=1)

    rng = np.random.default_rng(7)
    values = [rng.normal(size=size), np.zeros(size), rng.normal(size=(5, size))]
    alone, shared = both_ways(values, body, rng.normal(size=size))
    assert alone.stayed == [True, False, True], "nobody reads the second one's value"
    assert alone.bits == shared.bits


@pytest.mark.parametrize("shape", [(17, 33, 10), (40, 60, 50)])
def test_a_step_with_weight_decay(shape: tuple[int, int, int]) -> None:
    rows, inner, columns = shape
    rng = np.random.default_rng(8)

    def body(variables: Sequence[Any], x: Any) -> Any:
        w, m, s = variables
        with tj.GradientTape() as tape:
            loss = tj.mean(tj.tanh(x @ w) ** 2)
        gradient = tape.gradient(loss, w) + 0.01 * w
        m.assign(gradient)
        s.assign(0.5 * w)
        w.assign(w - 0.1 * gradient + 0.01 * s)
        return loss, gradient

    values = [rng.normal(size=(inner, columns)).astype("f4") for _ in range(3)]
    alone, shared = both_ways(values, body, rng.normal(size=(rows, inner)).astype("f4"))
    assert alone.stayed == [True, False, False], "nobody reads the others' values"
    assert alone.bits == shared.bits


def test_random_updates(full: bool) -> None:
    """Any formula of variables, however it reads them."""
    for_all(st.data(), full, 30)(check_updates)


def check_updates(data: Any) -> None:
    shape = data.draw(st.sampled_from([(7,), (40,), (5, 3), (16, 33), (130, 20)]))
    count = data.draw(st.integers(1, 3))
    plan = [
        [
            (data.draw(st.sampled_from(MOVES)), data.draw(st.integers(0, count)))
            for _ in range(data.draw(st.integers(1, 4)))
        ]
        for _ in range(count)
    ]

    shown = data.draw(st.sets(st.integers(0, 3 * count - 1)))

    def body(variables: Sequence[Any], x: Any) -> Any:
        old = [v.value() for v in variables]
        total, others = tj.sum(x), []
        for v, terms in zip(variables, plan, strict=True):
            new = 0.5 * x
            for move, at in terms:
                held = [*old, variables[0].value()][at]  # the last one may be new
                new = new + FORMULAS[move](held, x)
            v.assign(tj.tanh(new))
            total = total + tj.max(new)
            others += [new, new > 0, tj.flip(new, axis=-1)]
        return total, *(others[at] for at in shown)

    rng = np.random.default_rng(2)
    values = [rng.normal(size=shape) for _ in range(count)]
    alone, shared = both_ways(values, body, rng.normal(size=shape))
    assert alone.bits == shared.bits
    assert alone.stayed == alone.said


FORMULAS: dict[str, Callable[[Any, Any], Any]] = {
    "itself": lambda v, x: v,
    "product": lambda v, x: v * x,
    "sum": lambda v, x: tj.sum(v) * x,
    "rows": lambda v, x: v - tj.max(v, axis=-1, keepdims=True),
    "columns": lambda v, x: v * tj.sum(v, axis=0),
    "flip": lambda v, x: tj.flip(v, axis=0),
    "roll": lambda v, x: tj.roll(v, 1, axis=-1),
    "scan": lambda v, x: tj.cumulative_sum(v, axis=0),
    "matrix": lambda v, x: tj.reshape(v, (v.shape[0], -1)).T @ tj.ones(v.shape[0]),
}
MOVES = sorted(FORMULAS)


# What fails


def test_a_failure_changes_nothing() -> None:
    v, w = tj.Variable(np.zeros(40)), tj.Variable(np.arange(40.0))

    @tj.function
    def step(x: Any, at: Any) -> Any:
        v.assign_add(x)
        w.assign(w + v[at])
        return tj.sum(x)

    x, good = np.ones(40), np.arange(40)
    for _ in range(3):
        step(x, good)
    found = updates_of(step.graph(x, good))
    assert found, "something is written over"
    before = v.numpy(), w.numpy()
    for bad in (40, -41):
        with pytest.raises(IndexError):
            step(x, np.full(40, bad))
        assert v.numpy().tobytes() == before[0].tobytes()
        assert w.numpy().tobytes() == before[1].tobytes()
    step(x, good)
    np.testing.assert_array_equal(v.numpy(), before[0] + 1)


def test_what_can_fail_comes_before_the_first_update() -> None:
    """Also if it is found out from a new value: then that one has its own memory."""
    v, w = tj.Variable(np.zeros(40)), tj.Variable(np.arange(40.0))

    @tj.function
    def step(x: Any) -> Any:
        v.assign_add(x)
        w.assign_add(w[v.astype("int64")])
        return tj.sum(x)

    graph = whole_graph(step.graph(np.ones(40)))
    assert graph is not None
    plan = build(graph, "order").plan
    final = inplace.first_update(plan.kernels, plan.updates)
    for kernel in plan.kernels[final.number :] if final is not None else ():
        assert not inplace.can_fail(kernel)
    for _ in range(39):
        step(np.ones(40))
    before = v.numpy(), w.numpy()
    with pytest.raises(IndexError):
        step(np.ones(40))
    assert (v.numpy().tobytes(), w.numpy().tobytes()) == tuple(
        x.tobytes() for x in before
    )


def test_long_work_after_an_update_can_be_interrupted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Signals are not asked for after an update: so much work is not left then."""
    v, w = tj.Variable(np.ones((64, 64))), tj.Variable(np.ones((64, 64)))

    @tj.function
    def step(x: Any) -> Any:
        v.assign(v + x)
        w.assign(w + tj.tanh(v @ v))
        return tj.sum(x)

    graph = step.graph(np.ones((64, 64)))
    assert sorted(updates_of(graph)) == [1, 2]
    whole = whole_graph(graph)
    assert whole is not None
    last = build(whole, "last").plan.kernels[-1]
    set_limits(monkeypatch, unpolled_instructions=last.work)
    assert sorted(updates_of(graph)) == [2]
    set_limits(monkeypatch, unpolled_instructions=10)
    assert updates_of(graph) == {}


# Meanwhile


@pytest.fixture
def quick_turns() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("quick_turns")
@pytest.mark.parametrize("size", [100, 200_000])
def test_nobody_sees_a_value_that_is_half_new(size: int, full: bool) -> None:
    """Readers of several kinds, while two threads add to variables.

    One of these is a number, which is not written over.
    """
    v, w = tj.Variable(np.zeros(size)), tj.Variable(np.zeros(size))
    count = tj.Variable(np.float64(0))

    @tj.function
    def step(x: Any) -> Any:
        count.assign_add(1.0)
        v.assign_add(x)
        w.assign_sub(x)
        return tj.sum(x)

    ends = tj.function(lambda: (count + 0, tj.min(v), tj.max(v), tj.min(w), tj.max(w)))
    one, steps = np.ones(size), 1500 if full else 150
    step(one)
    ends()
    left = [True, True]

    def write(number: int) -> None:
        try:
            for _ in range(steps):
                step(one)
        finally:
            left[number] = False

    def read(number: int) -> None:
        while any(left):
            if number == 2:
                steps_done, low, high, under, over = (float(x) for x in ends())
                assert steps_done == low == high == -under == -over
            elif number == 3:
                tensor = v.value()
                first = tensor.numpy()
                time.sleep(0)
                assert first[0] == first[-1]
                assert first.tobytes() == tensor.numpy().tobytes()
            else:
                array = np.asarray(w)
                assert array.min() == array.max()

    def work(number: int) -> None:
        write(number) if number < 2 else read(number)

    in_threads(5, work)
    assert v.numpy().tolist()[:: size - 1] == [2 * steps + 1.0] * 2
    assert w.numpy().tolist()[:: size - 1] == [-2 * steps - 1.0] * 2


@needs_timers
def test_the_handler_of_a_signal_sees_values_of_before() -> None:
    """A call that takes long asks for signals; its variables are away then."""
    v, step, x = long_step()
    seen: list[tuple[float, float, bool]] = []

    def look(*_: Any) -> None:
        is_away, array = not holds_tensor(v), v.numpy()
        seen.append((float(array.min()), float(array.max()), is_away))

    before = signal.signal(signal.SIGALRM, look)
    try:
        steps = 0
        while not any(is_away for *_, is_away in seen) and steps < 50:
            signal.setitimer(signal.ITIMER_REAL, 0.01)
            step(x)
            steps += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert any(is_away for *_, is_away in seen), "a handler ran in the midst of a call"
    assert all(low == high for low, high, _ in seen)
    np.testing.assert_array_equal(v.numpy(), np.full(100, steps + 1.0))


@needs_timers
def test_a_handler_that_raises_leaves_everything_as_it_was() -> None:
    v, step, x = long_step()
    raised, may_raise = 0, False

    def interrupt(*_: Any) -> None:
        """Once a call: an alarm that comes late must not end the run of tests."""
        nonlocal may_raise
        if may_raise:
            may_raise = False
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for _ in range(20):
            old = v.numpy()[0]
            try:
                may_raise = True
                signal.setitimer(signal.ITIMER_REAL, 0.03, 0.3)
                step(x)
                may_raise = False
            except KeyboardInterrupt:
                raised += 1
            signal.setitimer(signal.ITIMER_REAL, 0)
            array = v.numpy()
            assert array.min() == array.max()
            assert array[0] in (old, old + 1)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert raised, "no call was interrupted"
    assert v._lock.acquire(blocking=False)
    v._lock.release()


@needs_fork
def test_a_fork_waits_until_a_value_is_whole() -> None:
    size = 400_000
    v = tj.Variable(np.zeros(size))
    step = tj.function(lambda x: v.assign_add(x).shape and tj.sum(x))
    x = np.ones(size)
    step(x)
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            step(x)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(20):
            child = os.fork()
            if child == 0:
                array = v.numpy()
                step(x)
                is_good = array.min() == array.max()
                is_good = is_good and v.numpy()[0] == array[0] + 1
                os._exit(0 if is_good else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        stop.set()
        thread.join()


def counting_step(size: int = 200) -> tuple[tj.Variable, tj.Variable, Any]:
    """A number and an array that a function adds 1 to; it was called three times."""
    count, v = tj.Variable(np.float64(0)), tj.Variable(np.zeros(size))

    @tj.function
    def step(x: Any) -> Any:
        count.assign_add(1.0)
        v.assign_add(x)
        return tj.sum(x), tj.max(x)

    for _ in range(3):
        step(np.ones(size))
    return count, v, step


def test_a_call_that_runs_out_of_memory_changes_nothing() -> None:
    """Whatever it cannot have; what it needs afterwards was there before."""
    testcapi = pytest.importorskip("_testcapi")
    count, v, step = counting_step()
    x, failures = np.ones(200), 0
    for number in range(14):
        place, before = where(v), float(count)
        testcapi.set_nomemory(number, number + 1)
        try:
            step(x)
            is_done = True
        except MemoryError:
            is_done, failures = False, failures + 1
        finally:
            testcapi.remove_mem_hooks()
        assert float(count) == before + is_done
        np.testing.assert_array_equal(v.numpy(), np.full(200, float(count)))
        assert where(v) == place
        assert v._lock.acquire(blocking=False)
        v._lock.release()
    assert failures


def test_finalizers_see_values_that_belong_together() -> None:
    """A collection may run whenever an object is made."""
    count, v, step = counting_step()
    seen: set[tuple[float, float, float]] = set()

    class Finalised:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            array = v.numpy()
            seen.add((float(count), float(array.min()), float(array.max())))

    x, before = np.ones(200), gc.get_threshold()
    gc.collect()
    try:
        for _ in range(300):
            Finalised()
            gc.set_threshold(1, 1000, 1000)
            step(x)
            gc.set_threshold(*before)
    finally:
        gc.set_threshold(*before)
    gc.collect()
    assert len(seen) > 100
    assert [each for each in seen if len(set(each)) > 1] == []


FORKS = """
import os, threading, time
os.register_at_fork(before=lambda: time.sleep(0.003))  # of some other package
import numpy as np
import tapejit as tj

size = 2_000_000
v = tj.Variable(np.zeros(size))
step = tj.function(lambda x: v.assign_add(x).shape and tj.sum(x[:3]))
x = np.ones(size)
step(x)
left = [True]

def write():
    while left[0]:
        step(x)

thread = threading.Thread(target=write)
thread.start()
codes = []
for _ in range(20):
    child = os.fork()
    if child == 0:
        array = v.numpy()
        os._exit(0 if array.min() == array.max() else 1)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
left[0] = False
thread.join()
place = v._tensor._value.ctypes.data
step(x)
print(codes == [0] * 20, v._tensor._value.ctypes.data == place)
"""


@needs_fork
def test_no_value_is_written_over_between_the_hooks_and_a_fork() -> None:
    done = run_interpreter("-c", FORKS, timeout=60, TAPEJIT_NATIVE="1")
    assert (done.returncode, done.stdout) == (0, "True True\n"), done.stderr


WAITING = """
import os, threading, time
import numpy as np
import tapejit as tj

v = tj.Variable(np.zeros(100))

@tj.function
def slow(x):
    y = x
    for _ in range(4):
        y = y @ x
    v.assign(v + 1 + 0 * y[0, :100])
    return tj.sum(y)

@tj.function
def other(x):
    v.assign(v * 0.5 + x)
    return tj.sum(tj.sin(x))

matrix, x = np.zeros((1200, 1200)), np.ones(100)
slow(matrix)
slow(matrix)
other.graph(x)  # traced, not compiled yet
first = threading.Thread(target=slow, args=(matrix,))
second = threading.Thread(target=other, args=(x,))
first.start()
time.sleep(0.02)
second.start()
time.sleep(0.02)
child = os.fork()
if child == 0:
    os._exit(0)
os.waitpid(child, 0)
first.join()
second.join()
print("fine")
"""


@needs_fork
def test_a_fork_waits_for_nobody_who_waits_for_it() -> None:
    """One thread is in a step, another one wants its variable and the compiler.

    The step takes long enough on any processor, and too long without its instructions.
    """
    environment = {"TAPEJIT_NATIVE": "1", "TAPEJIT_CACHE": "0", "TAPEJIT_CPU": ""}
    done = run_interpreter("-c", WAITING, timeout=60, **environment)
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr


@needs_fork
def test_a_fork_in_a_trace_reads_no_variable() -> None:
    others = [tj.Variable(np.zeros(3)) for _ in range(3)]
    v = tj.Variable(np.zeros(3), name="v")

    @tj.function
    def f(x: Any) -> Any:
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        return v + x

    assert [x.name for x in f.explain(np.ones(3)).variables] == ["v"]
    assert len(others) == 3


def test_variables_among_the_arguments_are_not_said_to_be_written_in_place() -> None:
    @tj.function
    def step(v: Any, x: Any) -> Any:
        v.assign_add(x)
        return tj.sum(x)

    (found,) = step.explain(tj.Variable(np.ones(40)), np.ones(40)).variables
    assert (found.is_written, found.in_place) == (True, False)
