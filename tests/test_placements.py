"""Sums of slices placed into zeros: one operation on the slices, bit by bit the sum."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from random_graphs import Style, case_of, random_graph

import tapejit as tj
from tapejit import ops
from tapejit.base.dims import Dim
from tapejit.base.types import TensorType
from tapejit.ir import Graph, Node, interpret, param, parse_graph
from tapejit.rewrite.pipeline import optimise
from tapejit.rewrite.placements import join_placements

F4 = np.dtype("float32")


def placed(x: Node, size: Any, start: Any, step: int = 1) -> Node:
    return ops.place(x, shape=(size,), starts=(start,), steps=(step,))


def joined(*outputs: Node) -> Graph:
    inputs = dict.fromkeys(
        x for out in outputs for x in walk(out) if x.op.name == "param"
    )
    return join_placements(Graph("f", tuple(inputs), outputs))


def walk(node: Node) -> list[Node]:
    return [*[x for y in node.inputs for x in walk(y)], node]


def names(graph: Graph) -> Counter[str]:
    return Counter(node.op.name for node in graph.nodes)


def vector(name: str, size: Any, dtype: str = "f32") -> Node:
    return param(name, TensorType.parse(f"{dtype}[{size}]"))


def assert_same_bits(before: Graph, after: Graph, *arrays: Any) -> None:
    expected, found = interpret(before, *arrays), interpret(after, *arrays)
    for one, other in zip(expected, found, strict=True):
        assert one.dtype == other.dtype
        assert one.tobytes() == other.tobytes()


def test_a_sum_of_slices_is_one_operation() -> None:
    x, y, z = (vector(name, 2) for name in "xyz")
    out = placed(x, 6, 0) + placed(y, 6, 4) + placed(z, 6, 2)
    assert str(joined(out)) == str(
        parse_graph("""
graph f(x: f32[2], y: f32[2], z: f32[2]) {
  %0: f32[6] = broadcast_to f32(-0.0), shape=(6,)
  %1: f32[6] = place_add %0, x, y, z, starts=((0,), (4,), (2,)), steps=((1,), (1,), (1,))
  return %1
}
""")  # noqa: E501
    )


@pytest.mark.parametrize("order", ["first", "second", "last", "right"])
def test_a_whole_array_is_what_slices_are_added_to(order: str) -> None:
    x, y, whole = vector("x", 2), vector("y", 3), vector("w", 4)
    a, b, c = placed(x, 4, 1), placed(y, 4, 0), whole
    out = {
        "first": (c + a) + b,
        "second": (a + c) + b,
        "last": (a + b) + c,
        "right": b + (a + c),
    }[order]
    graph = joined(out)
    assert names(graph)["place_add"] == 1
    assert names(graph)["place"] == 0
    before = Graph("f", graph.inputs, (out,))
    signs = [-0.0, 1.0, 0.0, -0.0]
    arrays = [np.array(signs[: int(x.shape[0])], F4) for x in graph.inputs]
    assert_same_bits(before, graph, *arrays)


def test_a_sum_that_somebody_else_uses_stays() -> None:
    x, y, z = (vector(name, 2) for name in "xyz")
    some = placed(x, 6, 0) + placed(y, 6, 4)
    graph = joined(some + placed(z, 6, 2), some)
    assert names(graph) == {"literal": 1, "broadcast_to": 1, "place_add": 1} | Counter(
        place=1, add=1
    )


def test_one_slice_and_repeated_operands_are_left_alone() -> None:
    x, row = vector("x", 2), param("row", TensorType.parse("f32[3,4]"))
    one = placed(x, 4, 0) + vector("w", 4)
    spread = placed(x, 4, 0) + placed(x, 4, 2)
    for out in (one, row + placed(x, 4, 1) + placed(x, 4, 0)):
        graph = Graph("f", (x, row, *[n for n in walk(out) if n.name == "w"]), (out,))
        assert join_placements(graph) is graph
    whole = Graph("f", (x, row), (row + spread,))
    assert names(join_placements(whole))["place_add"] == 1


def test_an_input_that_was_placed_is_no_slice() -> None:
    """What a Node behind an input is made of is no business of the Graph."""
    x = vector("x", 2)
    behind, here = placed(x, 4, 0), placed(x, 4, 2)
    graph = Graph("f", (behind, x), (behind + here + placed(x, 4, 1),))
    after = join_placements(graph)
    assert after.inputs == graph.inputs
    assert names(after) == {"place_add": 1}


SPECIAL = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-45], F4)


@pytest.mark.parametrize("dtype", ["f32", "f16", "f64", "c64", "i32", "u8"])
def test_bits_are_those_of_the_sum(dtype: str) -> None:
    """Signs of zeros and the order of additions, however slices lie to each other."""
    rng = np.random.default_rng(0)
    for trial in range(60):
        size = int(rng.integers(2, 7))
        terms, arrays, inputs = [], [], []
        for at in range(int(rng.integers(2, 6))):
            start = int(rng.integers(0, size))
            step = int(rng.integers(1, 4))
            count = int(rng.integers(0, (size - start + step - 1) // step + 1))
            is_whole = rng.random() < 0.2
            x = vector(f"x{at}", size if is_whole else count, dtype)
            inputs.append(x)
            terms.append(x if is_whole else placed(x, size, start, step))
            with np.errstate(all="ignore"):
                arrays.append(rng.choice(SPECIAL, x.shape).astype(x.dtype))
        total = terms[0]
        for term in terms[1:]:
            total = total + term if rng.random() < 0.7 else term + total
        before = Graph("f", inputs, (total,))
        after = join_placements(before)
        expected, found = interpret(before, *arrays), interpret(after, *arrays)
        np.testing.assert_array_equal(expected[0], found[0], err_msg=str(trial))
        is_number = expected[0] == expected[0]
        for part in (np.real, np.imag):
            signs = [np.signbit(part(x[0])[is_number]) for x in (expected, found)]
            if dtype[0] in "fc":
                np.testing.assert_array_equal(*signs)


def test_open_sizes() -> None:
    n = Dim("n")
    x = param("x", TensorType(F4, (n,)))
    out = ops.place(x, shape=(n + 1,), starts=(0,), steps=(1,))
    out = out + ops.place(x, shape=(n + 1,), starts=(1,), steps=(1,))
    graph = Graph("f", (x,), (out,))
    after = join_placements(graph)
    assert names(after)["place_add"] == 1
    assert_same_bits(graph, after, np.float32([1, -0.0, 3]))


# What loops leave behind


def loss_over(steps: int) -> Any:
    def loss(x: Any) -> Any:
        total = 0.0
        for t in range(steps):
            total = total + tj.sum(tj.tanh(x[t]) * (t + 1.0))
        return total

    return loss


def test_a_taped_loop_adds_slices_not_arrays() -> None:
    """Its adjoint makes one array of the size of `x`, whatever the number of steps."""
    from tapejit.tape import derivative

    x = tj.asarray(np.linspace(-1, 1, 40, dtype=F4).reshape(10, 4))
    with tj.GradientTape() as tape:
        tape.watch(x)
        loss = loss_over(10)(x)
    plan = derivative.plan_for(
        derivative.Request.of(tape._recording, [loss], [x]), seeded=False
    )
    found = names(plan.graph)
    assert found["place_add"] == 1
    assert found["place"] == 0
    whole = [n for n in plan.graph.nodes if getattr(n.type, "shape", ()) == (10, 4)]
    assert {n.op.name for n in whole} == {"broadcast_to", "place_add"}


@pytest.mark.parametrize("index", ["x[t]", "x[:, t]", "unstack", "split", "flip"])
def test_every_way_to_take_slices(index: str) -> None:
    def slices(x: Any) -> list[Any]:
        ways = {
            "x[t]": lambda: [x[t] for t in range(5)],
            "x[:, t]": lambda: [x[:, t] for t in range(5)],
            "unstack": lambda: list(tj.unstack(x)),
            "split": lambda: list(tj.split(x, 5)),
            "flip": lambda: [x[t : t + 3 : 1][::-1] for t in range(3)],
        }
        return ways[index]()

    def loss(x: Any) -> Any:
        return sum([tj.sum(p * p * (1.0 + t)) for t, p in enumerate(slices(x))])

    x = tj.asarray(np.arange(25, dtype=F4).reshape(5, 5) - 7)
    traced = tj.function(lambda x: tj.grad(loss)(x))
    np.testing.assert_array_equal(traced(x), tj.grad(loss)(x))
    assert "place_add" in str(traced.graph())


def test_second_order_and_functions_under_tapes() -> None:
    x = tj.asarray(np.linspace(-1, 1, 12, dtype=np.float64).reshape(4, 3))
    loss = loss_over(4)
    tj.testing.check_grads(loss, (x,), order=2)
    called = tj.function(loss)
    with tj.GradientTape() as tape:
        tape.watch(x)
        value = called(x) + loss(x)
    np.testing.assert_allclose(
        tape.gradient(value, x), 2 * tj.grad(loss)(x), rtol=1e-12
    )


def test_user_written_sums_are_joined_when_traced() -> None:
    @tj.function
    def spread(a: Any, b: Any) -> Any:
        return tj.pad(a, ((0, 3),)) + tj.pad(b, ((3, 0),))

    a = tj.asarray([1.0, -0.0, 2.0])
    np.testing.assert_array_equal(spread(a, a), [1.0, 0.0, 2.0, 1.0, 0.0, 2.0])
    assert not np.signbit(spread(a, a).numpy()).any()


def test_random_graphs_have_sums_of_placements() -> None:
    """So what is asked of random Graphs is asked of this pass, too."""
    found = 0
    for seed in range(60):
        choice = np.random.default_rng(seed)
        seeds = [int(x) for x in choice.integers(1, 2**62, 26)]
        graph = random_graph(seeds[1:], Style())
        after = optimise(graph)
        if "place_add" in names(after):
            found += 1
            case = case_of(graph, seeds[0])
            assert_same_bits(graph, after, *case.arrays)
    assert found >= 5
