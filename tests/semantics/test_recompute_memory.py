"""What recompute_grad saves, eagerly and in a traced function, measured (line 45)."""

from __future__ import annotations

import tracemalloc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tapejit as tj
from tapejit.base.types import TensorType
from tapejit.ir import OPS, Graph, Node, param
from tapejit.ir.structural import results
from tapejit.transforms.batch import batch
from tapejit.transforms.partition import partition
from tapejit.transforms.vjp import vjp, vjp_graph

LENGTH = 16 << 10


BYTES = 4 * LENGTH


BLOCKS = 8


STEPS = 6  # of two operations each; a gradient looks at both results


def chain(x: Any) -> Any:
    for _ in range(STEPS):
        x = tj.exp(tj.sin(x))
    return x


def noisy(x: Any) -> Any:
    for _ in range(STEPS):
        x = tj.exp(tj.sin(x * tj.random.normal(x.shape)))
    return x


def blocks(block: Callable[[Any], Any], *, again: bool) -> Callable[[Any], Any]:
    """Several blocks one after the other."""
    step = tj.recompute_grad(block) if again else block

    def run(x: Any) -> Any:
        for _ in range(BLOCKS):
            x = step(x)
        return tj.sum(x)

    return run


def gradient(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def run(x: Any) -> Any:
        with tj.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
        return tape.gradient(y, x)

    return run


def sample() -> Any:
    return tj.asarray(np.full(LENGTH, 0.5, np.float32))


def peak(call: Callable[[Any], Any], x: Any) -> float:
    """The most memory a call holds at once, in arrays; it has been called before."""
    for _ in range(3):  # traces, runs step by step, is compiled
        call(x)
    tracemalloc.start()
    try:
        call(x)
        return tracemalloc.get_traced_memory()[1] / BYTES
    finally:
        tracemalloc.stop()


WAYS = {
    "tape in the function": lambda f: tj.function(gradient(f)),
    "tape around the function": lambda f: gradient(tj.function(f)),
    "tape around, and a function around both": lambda f: tj.function(
        gradient(tj.function(f))
    ),
}


@pytest.mark.parametrize("block", [chain, noisy])
@pytest.mark.parametrize("way", WAYS)
def test_s45_the_peak_is_the_boundaries_and_one_block(
    block: Any, way: str, without_collector: None
) -> None:
    x = sample()
    plain = peak(WAYS[way](blocks(block, again=False)), x)
    again = peak(WAYS[way](blocks(block, again=True)), x)
    inside = 3 * STEPS if block is noisy else 2 * STEPS
    assert plain > BLOCKS * STEPS, "or there is nothing to save"
    assert again < BLOCKS + inside + 6


def test_s45_nested_blocks_hold_less_than_their_inside(without_collector: None) -> None:
    inner = tj.recompute_grad(chain)
    outer = lambda x: inner(inner(inner(inner(x))))
    x = sample()
    once = peak(tj.function(gradient(blocks(outer, again=False))), x)
    twice = peak(tj.function(gradient(blocks(outer, again=True))), x)
    assert once > 4 * BLOCKS, "the boundaries of the inner ones"
    assert twice < BLOCKS + 4 + 2 * STEPS


@pytest.mark.parametrize("block", [chain, noisy])
def test_s45_a_tape_around_keeps_the_boundaries(block: Any) -> None:
    x = sample()
    function = tj.function(blocks(block, again=True))
    found = function.explain(x)
    large = [kind for kind in found.residuals if kind.shape == (LENGTH,)]
    assert len(large) == BLOCKS - 1, "the first block's is the argument"
    assert found.residual_bytes < len(large) * BYTES + 64 * BLOCKS
    with tj.GradientTape() as tape:
        tape.watch(x)
        function(x)
    assert tape.nbytes < (BLOCKS + 1) * BYTES
    plain = tj.function(blocks(block, again=False)).explain(x)
    assert plain.residual_bytes >= BLOCKS * STEPS * BYTES


def custom_calls(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes if node.op.name == "custom_call"]


def test_s45_the_second_run_begins_behind_a_barrier() -> None:
    w, k = tj.Variable(2.0), tj.asarray(3.0)
    f = tj.recompute_grad(lambda x: tj.sin(x * w) * k)
    graph = tj.function(f).graph(tj.ones(3))
    (node,) = custom_calls(graph)
    starts = node.inputs[:-1]
    assert len(starts) == 3, "the argument, the variable, the captured tensor"
    seed = param("d", node.inputs[-1].type)
    nodes = [node, *results(node)]
    found = vjp(nodes, targets=nodes[1:], seeds=[seed], sources=starts)
    adjoint = Graph("adjoint", (*starts, seed), [x for x in found if x is not None])
    barriers = [inner for inner in adjoint.nodes if inner.op.name == "recomputed"]
    assert {inner.inputs for inner in barriers} == {(x, seed) for x in starts}
    (again,) = {x.inputs[0] for x in adjoint.outputs}
    assert set(again.inputs) == {*barriers, seed}
    assert "sin" in [inner.op.name for inner in again.attrs["graph"].nodes]


def test_s45_the_second_run_belongs_to_the_backward_part() -> None:
    """Also when the adjoint stands in the Graph itself and is not called."""
    kind = TensorType(np.dtype(np.float32), (3,))
    x, g = param("x", kind), param("g", kind)
    first = OPS["sin"](OPS["exp"](x))
    h = OPS["exp"](OPS["recomputed"](x, g))
    joint = Graph("joint", (x, g), (first, g * OPS["cos"](h) * h))
    forward, backward = partition(joint, inputs=1, outputs=1)
    assert forward.outputs == (first, x)
    assert backward.inputs == (x, g)


def test_s45_a_second_run_serves_all_rows() -> None:
    kind = TensorType(np.dtype(np.float32), (3,))
    x, g = param("x", kind), param("g", kind)
    again = OPS["exp"](OPS["recomputed"](x, g))
    graph = Graph("rows", (x, g), (again, again * g))
    rows, has_axis = batch(graph, size=5, batched=[False, True])
    assert has_axis == (False, True)
    assert [out.shape for out in rows.outputs] == [(3,), (5, 3)]
    rows, has_axis = batch(graph, size=5, batched=[True, False])
    assert has_axis == (True, True)


def test_s45_a_function_that_is_not_differentiated_computes_once() -> None:
    function = tj.function(tj.recompute_grad(chain))
    x = tj.ones(3)
    function(x)
    names = [node.op.name for node in function.graph(x).nodes]
    assert names.count("sin") == STEPS
    joint = vjp_graph(function.graph(x), wrt=function.graph(x).inputs)
    names = [node.op.name for node in joint.nodes]
    assert names.count("sin") == STEPS
    assert names.count("call") == 1


# Eagerly, where bodies and intermediates can be counted


KILOBYTE = 1 << 10


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


def test_s45_eagerly_the_peak_is_the_boundaries_and_one_block(
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


def test_s45_nested_ones_run_once_with_the_outer_one_and_once_each() -> None:
    runs: list[int] = []

    @tj.recompute_grad
    def inner(x: Any) -> Any:
        runs.append(1)
        return tj.sin(x)

    @tj.recompute_grad
    def outer(x: Any) -> Any:
        return inner(inner(x)) * 2.0

    x = tj.Variable(0.5)
    with tj.GradientTape() as tape:
        y = outer(x)
    assert len(runs) == 2
    tape.gradient(y, x)
    assert len(runs) == 2 + 2 + 2
