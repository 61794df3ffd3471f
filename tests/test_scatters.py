"""Rows of one table read at several places: their cotangents are one scatter."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from agreement import COMPOSED, assert_agrees
from two_modes import assert_modes_agree

import tapejit as tj
from tapejit import ops
from tapejit.base.types import TensorType
from tapejit.ir import Graph, Node, interpret, param
from tapejit.ir.node import literal
from tapejit.tape import derivative
from tapejit.transforms.scatters import join_scatters

F4 = np.dtype("float32")


def given(name: str, kind: str) -> Node:
    return param(name, TensorType.parse(kind))


def zeros(shape: tuple[int, ...], dtype: str = "f4", sign: int = 1) -> Node:
    value = np.dtype(dtype).type(0.0) * sign
    return ops.broadcast_to(literal(value, np.dtype(dtype)), shape=shape)


def names(graph: Graph) -> Counter[str]:
    return Counter(node.op.name for node in graph.nodes)


def scatters(shape: tuple[int, ...] = (9, 3)) -> tuple[list[Node], list[Node]]:
    """Scatters into zeros, of indices of all ranks and two dtypes; their inputs."""
    kinds = (("i32[2]", "f32[2,3]"), ("i64[]", "f32[3]"), ("i32[1,2]", "f32[1,2,3]"))
    start = zeros(shape)
    made, inputs = [], []
    for at, (index, updates) in enumerate(kinds):
        i, g = given(f"i{at}", index), given(f"g{at}", updates)
        inputs += [i, g]
        made.append(ops.gather_add(start, g, i, axes=(0,)))
    return made, inputs


def arrays_for(inputs: list[Node]) -> list[Any]:
    """Small whole numbers, so that every order of additions gives the same bits."""
    rng = np.random.default_rng(3)
    return [rng.integers(-4, 5, x.shape).astype(x.dtype) for x in inputs]


def joined(out: Node, inputs: list[Node]) -> Counter[str]:
    """What a sum is made of afterwards; its value is the same."""
    before = Graph("f", tuple(inputs), (out,))
    after = join_scatters(before)
    arrays = arrays_for(inputs)
    (one,), (other,) = interpret(before, *arrays), interpret(after, *arrays)
    assert one.dtype == other.dtype
    assert one.tobytes() == other.tobytes()
    return names(after)


@pytest.mark.parametrize("order", ["chain", "right", "tree", "whole"])
def test_a_sum_of_scatters_is_one(order: str) -> None:
    (a, b, c), inputs = scatters()
    w = given("w", "f32[9,3]")
    out = {
        "chain": lambda: (a + b) + c,
        "right": lambda: c + (b + a),
        "tree": lambda: (a + w) + (b + c),
        "whole": lambda: ((w + a) + b) + c,
    }[order]()
    found = joined(out, [*inputs, w])
    assert found["gather_add"] == 1
    assert found["add"] == (order in ("tree", "whole"))


def test_what_is_not_joined() -> None:
    (a, b, c), inputs = scatters()
    i, g = inputs[:2]
    w = given("w", "f32[9,3]")
    below = ops.gather_add(zeros((9, 3), sign=-1), g, i, axes=(0,))  # of -0.0
    onto = ops.gather_add(w, g, i, axes=(0,))
    columns = ops.gather_add(zeros((9, 3)), given("h", "f32[2,9]"), i, axes=(1,))
    single = ops.gather_add(zeros((9, 3)), given("s", "f32[2]"), i, i, axes=(0, 1))
    for other in (below, onto, columns, single, w):
        extra = [x for x in (w, *other.inputs) if x.op.name == "param"]
        known = tuple(dict.fromkeys([*inputs, *extra]))
        graph = Graph("f", known, (a + other,))
        assert join_scatters(graph) is graph
    # what somebody else uses, a scatter or a sum, is there anyway
    graph = Graph("f", tuple(inputs), (a + b, a))
    assert join_scatters(graph) is graph
    some = a + b
    after = join_scatters(Graph("f", tuple(inputs), (some + c, some)))
    assert names(after)["gather_add"] == 2
    # an input of the Graph, whatever it was made of
    known = Graph("f", (*inputs, a), (a + b,))
    assert join_scatters(known) is known


def test_more_rows_than_the_table_has_are_not_copied() -> None:
    """They are added in turns, to the same table, with the same bits."""
    kinds = {"i": "i32[40]", "g": "f32[40,3]", "j": "i32[40]", "h": "f32[40,3]"}
    inputs = [given(name, kind) for name, kind in kinds.items()]
    outs = []
    for rows in (9, 90):
        parts = [
            ops.gather_add(zeros((rows, 3)), g, i, axes=(0,))
            for i, g in (inputs[:2], inputs[2:])
        ]
        outs.append(join_scatters(Graph("f", tuple(inputs), (parts[0] + parts[1],))))
    few, many = outs
    assert names(few)["gather_add"] == 2
    assert not {"add", "concat"} & {*names(few)}
    assert names(many)["gather_add"] == 1
    rng = np.random.default_rng(0)
    index = [rng.integers(0, 9, 40).astype("i4") for _ in range(2)]
    updates = [rng.normal(size=(40, 3)).astype(F4) for _ in range(2)]
    arrays = [index[0], updates[0], index[1], updates[1]]
    (one,), (other,) = interpret(few, *arrays), interpret(many, *arrays)
    assert one.tobytes() == other[:9].tobytes()


def test_indices_without_a_common_dtype() -> None:
    start = zeros((90, 3))
    inputs = [given("i", "i64[2]"), given("j", "u64[2]"), given("g", "f32[2,3]")]
    i, j, g = inputs
    out = ops.gather_add(start, g, i, axes=(0,)) + ops.gather_add(
        start, g, j, axes=(0,)
    )
    graph = join_scatters(Graph("f", tuple(inputs), (out,)))
    assert names(graph)["gather_add"] == 2
    assert names(graph)["add"] == 0
    top = np.array([2**63, 1], np.uint64)
    with pytest.raises(tj.OutOfRangeError, match="9223372036854775808"):
        interpret(graph, np.array([0, 1]), top, np.ones((2, 3), F4))


# In programs


ROWS = np.random.default_rng(1).integers(-50, 50, 64)


def word_loss(w: Any, c: Any) -> Any:
    """Words, their neighbours and others, from one table or two."""
    i, o = tj.asarray(ROWS[:8]), tj.asarray(ROWS[8:16].astype("i4"))
    n = tj.asarray(ROWS[16:40].reshape(8, 3))
    e, p, q = w[i], tj.take(c, o, axis=0), c[n]
    near = tj.sum(tj.square(e * p - 1.0))
    return near + tj.sum(tj.square(e[:, None, :] * q)) + tj.sum(w[tj.asarray(3)] ** 2)


def columns_loss(w: Any, c: Any) -> Any:
    i = tj.asarray(ROWS[:5] % 7)
    return tj.sum(tj.take(w, i, axis=1) ** 2) * tj.sum(tj.take(c, i[:3], axis=1) ** 3)


def looped_loss(w: Any, c: Any) -> Any:
    total = tj.sum(c * 0.5)
    for t in range(12):
        total = total + tj.sum(
            w[tj.asarray(int(ROWS[t]))] * c[tj.asarray(ROWS[t : t + 2])]
        )
    return total


LOSSES = {"words": word_loss, "columns": columns_loss, "loop": looped_loss}


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "complex64"])
@pytest.mark.parametrize("name", LOSSES)
def test_gradients_are_equal_in_both_modes(name: str, dtype: str) -> None:
    rng = np.random.default_rng(2)
    w, c = (tj.asarray(rng.normal(size=(50, 7)).astype(dtype)) for _ in range(2))

    def one(w: Any) -> Any:
        return tj.real(LOSSES[name](w, w))

    def two(w: Any, c: Any) -> Any:
        return tj.real(LOSSES[name](w, c))

    assert_modes_agree(lambda w: tj.grad(one)(w), (w,))
    assert_modes_agree(lambda w, c: tj.grad(two, argnums=(0, 1))(w, c), (w, c))


@pytest.mark.parametrize("name", LOSSES)
def test_derivatives_are_right(name: str) -> None:
    w = tj.asarray(np.random.default_rng(4).normal(size=(50, 7)))
    tj.testing.check_grads(lambda w: LOSSES[name](w, w), (w,), order=2)


def test_functions_under_tapes_have_the_same_bits() -> None:
    w = tj.asarray(np.random.default_rng(5).normal(size=(50, 7)).astype(F4))

    def gradient(loss: Any) -> Any:
        with tj.GradientTape() as tape:
            tape.watch(w)
            value = loss(w)
        return tape.gradient(value, w)

    for found in LOSSES.values():

        def loss(w: Any, found: Any = found) -> Any:
            return found(w, w)

        expected = gradient(loss)
        np.testing.assert_array_equal(gradient(tj.function(loss)), expected)


def test_open_sizes_and_vmap() -> None:
    rng = np.random.default_rng(6)
    w = tj.asarray(rng.normal(size=(50, 7)).astype(F4))

    def loss(w: Any, i: Any, n: Any) -> Any:
        return tj.sum(w[i] ** 2) + tj.sum(w[n] ** 3)

    traced = tj.function(
        lambda i, n: tj.grad(loss)(w, i, n),
        input_signature=[
            tj.TensorSpec([None], tj.int64),
            tj.TensorSpec([None, 3], tj.int64),
        ],
    )
    for size in (4, 9):
        i = tj.asarray(rng.integers(0, 50, size))
        n = tj.asarray(rng.integers(0, 50, (size + 1, 3)))
        np.testing.assert_array_equal(traced(i, n), tj.grad(loss)(w, i, n))
    rows = tj.asarray(rng.integers(0, 50, (4, 2, 3)))
    mapped = tj.vmap(lambda n: tj.grad(loss)(w, n[0], n))(rows)
    for found, n in zip(mapped, rows, strict=True):
        alone = tj.grad(loss)(w, n[0], n)
        assert_agrees(COMPOSED, found.numpy(), alone.numpy())


def test_the_adjoint_has_one_table() -> None:
    w = tj.Variable(np.random.default_rng(7).normal(size=(50, 7)).astype(F4))
    for loss in (word_loss, lambda w, _: looped_loss(w, w) + tj.sum(w[ROWS[:3]])):
        with tj.GradientTape() as tape:
            value = loss(w, w)
        request = derivative.Request.of(tape._recording, [value], [w])
        graph = derivative.plan_for(request, seeded=False).graph
        assert names(graph)["gather_add"] == 1
