"""Batching is a loop, two halves make a whole, a call is its body: on random Graphs.

And inputs that are dead, there twice, or of no use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from graph_properties import (
    DOUBLES,
    SMOOTH,
    assert_near,
    assert_same,
    float_nodes,
    for_all,
    gradient_graph,
    inlined,
    pushed_and_pulled,
    random_like,
)
from hypothesis import strategies as st
from random_graphs import Arrays, Case, Style, case_of, cases, random_array

import tapejit as tj
from tapejit import ops
from tapejit.base.dims import Dim
from tapejit.base.errors import GraphError
from tapejit.base.types import TensorType, is_differentiable
from tapejit.ir import (
    Graph,
    Node,
    check_graph,
    interpret,
    literal,
    param,
    topological_order,
)
from tapejit.ir.node import LITERAL, ZERO
from tapejit.tensor.dispatch import apply
from tapejit.transforms import batch, jvp_graph, vjp, vjp_graph
from tapejit.transforms.partition import partition

# Batching


def assert_batched_is_a_loop(
    case: Case, graph: Graph, arrays: Arrays, size: int
) -> None:
    """A batched run of `graph` equals a run per row."""
    rng = case.rng
    flags = [bool(rng.random() < 0.6) for _ in graph.inputs]
    stacked = [
        np.stack([random_array(rng, x, case.sizes) for _ in range(size)])
        if flag and size
        else np.zeros((0, *array.shape), array.dtype)
        if flag
        else array
        for x, array, flag in zip(graph.inputs, arrays, flags, strict=True)
    ]
    whole, has_axis = batch(graph, size=size, batched=flags)
    check_graph(whole)
    found = interpret(whole, *stacked)
    for out, got, flag in zip(graph.outputs, found, has_axis, strict=True):
        shape = case.actual_type(out).shape
        assert got.shape == ((size, *shape) if flag else shape)
    for row in range(size):
        given = [x[row] if flag else x for x, flag in zip(stacked, flags, strict=True)]
        expected = interpret(graph, *map(np.asarray, given))
        for out, got, flag, wanted in zip(
            graph.outputs, found, has_axis, expected, strict=True
        ):
            assert_near(got[row] if flag else got, wanted, out)


def test_a_batched_graph_is_a_loop_over_rows(full: bool) -> None:
    @for_all(st.tuples(cases(DOUBLES), st.sampled_from([3, 1, 2, 0])), full, 50)
    def holds(given: tuple[Case, int]) -> None:
        case, size = given
        assert_batched_is_a_loop(case, case.graph, case.arrays, size)


def test_a_batched_graph_of_many_dtypes_is_a_loop_over_rows(full: bool) -> None:
    """Without floats narrower than double: rounding would need another bound."""
    style = Style(has_many_dtypes=True, has_casts_to_integers=True)

    def is_wide(case: Case) -> bool:
        narrow = ("float32", "float16", "complex64")
        nodes = (*case.graph.inputs, *case.graph.nodes)
        return all(x.dtype.name not in narrow for x in nodes)

    @for_all(cases(style).filter(is_wide), full, examples=15)
    def holds(case: Case) -> None:
        assert_batched_is_a_loop(case, case.graph, case.arrays, 2)


def test_a_batched_adjoint_is_a_loop_over_rows(full: bool) -> None:
    """This is how a Jacobian is computed."""

    @for_all(cases(SMOOTH), full, examples=25)
    def holds(case: Case) -> None:
        adjoint, _, targets = gradient_graph(case.graph)
        cotangents = random_like(case.rng, targets, case)
        assert_batched_is_a_loop(case, adjoint, [*case.arrays, *cotangents], 2)


def test_a_graph_with_nothing_batched_stays_as_it_is(full: bool) -> None:
    @for_all(cases(DOUBLES), full, examples=10)
    def holds(case: Case) -> None:
        flags = [False] * len(case.graph.inputs)
        same, has_axis = batch(case.graph, size=3, batched=flags)
        assert not any(has_axis)
        assert same.outputs == case.graph.outputs


# Partition


def used_across(joint: Graph, inputs: int, outputs: int) -> set[Node]:
    """The forward values that the adjoint looks at: what a naive cut would save."""
    adjoint = set(joint.inputs[inputs:])
    for node in joint.nodes:
        if any(x in adjoint for x in node.inputs):
            adjoint.add(node)
    gradients = joint.outputs[outputs:]
    needed = Graph("needed", joint.inputs, gradients).nodes
    used = {x for node in needed if node in adjoint for x in node.inputs}
    used |= set(gradients)
    return {x for x in used if x not in adjoint and x.op is not LITERAL}


def depends_on_nothing(nodes: Sequence[Node]) -> set[Node]:
    """Those of `nodes` that no parameter reaches."""
    constant: set[Node] = set()
    for node in topological_order(nodes):
        if node.name is None and all(x in constant for x in node.inputs):
            constant.add(node)
    return constant & set(nodes)


def assert_parts_make_the_whole(case: Case) -> None:
    graph = case.graph
    joint, _, targets = gradient_graph(graph)
    counts = {"inputs": len(graph.inputs), "outputs": len(graph.outputs)}
    forward, backward = partition(joint, **counts)
    check_graph(forward)
    check_graph(backward)

    seeds = random_like(case.rng, targets, case)
    # As the run left them, not as arrays: of complex numbers NumPy multiplies scalars
    # without and arrays with fused operations, and the whole never made them arrays.
    results = forward.program.run([*case.arrays])
    residuals = results[len(graph.outputs) :]
    gradients = interpret(backward, *residuals, *seeds)
    expected = interpret(joint, *case.arrays, *seeds)
    got = (*results[: len(graph.outputs)], *gradients)
    for one, two in zip(got, expected, strict=True):
        assert_same(one, two)

    saved = forward.outputs[len(graph.outputs) :]
    assert len(set(saved)) == len(saved)
    assert not any(x.op is LITERAL for x in saved)
    constant = depends_on_nothing(saved)  # they carry sizes, not values
    computed = [x for x in saved if x not in graph.inputs and x not in constant]
    naive = used_across(joint, **counts) - set(graph.inputs)
    assert len(computed) <= len(naive)


def test_the_two_halves_of_a_partition_make_the_whole(full: bool) -> None:
    style = Style(has_complex=True, has_many_dtypes=True, has_calls=True)

    @for_all(cases(style), full, examples=50)
    def holds(case: Case) -> None:
        assert_parts_make_the_whole(case)


def test_they_do_so_where_a_residual_is_a_single_complex_number() -> None:
    z = param("z", TensorType.parse("c128[]"))
    y = ops.exp(z)
    graph = Graph("powers", [z], [y * y * z])
    for seed in range(40):
        assert_parts_make_the_whole(case_of(graph, seed))


def test_they_do_so_with_symbolic_sizes(full: bool) -> None:
    @for_all(cases(Style(has_dims=True)), full, examples=40)
    def holds(case: Case) -> None:
        assert_parts_make_the_whole(case)


def test_a_part_of_any_size_has_a_gradient_of_that_size() -> None:
    """m*(n//2) - n//2 is never negative, so it is not max(m*(n//2) - n//2, 0)."""
    m, n = Dim("m"), Dim("n")
    for size in (m * (n // 2) - n // 2, (m - 1) * (n - 1), m * (n - n // 2)):
        x = param("x", TensorType(np.dtype("float64"), (size,)))
        shape, starts, steps = (2 * size + 1,), (1,), (2,)
        for y in (
            ops.concat(x, x, x, axis=0),
            ops.pad(x, 1, widths=((1, 2),)),
            ops.place(x, shape=shape, starts=starts, steps=steps),
        ):
            adjoint = vjp_graph(Graph("joined", [x], [y]), wrt=[x])
            assert adjoint.outputs[-1].type == x.type


@pytest.mark.parametrize(
    "compute",
    [
        lambda x: ops.sum(x, axes=(0,), keepdims=False),
        lambda x: ops.exp(ops.slice(x, starts=(0,), stops=x.shape, steps=(2,))),
        lambda x: ops.max(
            ops.pad(x, 1, widths=((x.shape[0], 0),)), axes=(0,), keepdims=False
        ),
        lambda x: ops.broadcast_to(ops.sum(x, axes=(0,), keepdims=False), shape=(2,)),
    ],
    ids=["sum", "every_second", "pad", "broadcast"],
)
def test_the_backward_part_can_find_its_sizes(compute: Callable[[Node], Node]) -> None:
    x = param("x", TensorType.parse("f64[n]"))
    graph = Graph("sizes", (x,), (compute(x),))
    assert_parts_make_the_whole(case_of(graph, 3))


def test_what_is_cheap_is_computed_again() -> None:
    """2 y + 1 is not saved, because y is and to scale and shift it costs little."""
    x = param("x", TensorType.parse("f64[4]"))
    y = ops.exp(x)
    graph = Graph("cheap", (x,), (ops.sin(y) * (y * 2 + 1),))
    joint = vjp_graph(graph, wrt=(x,))
    assert "add" in {node.op.name for node in used_across(joint, 1, 1)}
    forward, backward = partition(joint, inputs=1, outputs=1)
    names = [node.op.name for node in forward.outputs[1:]]
    assert names.count("exp") == 1
    assert not {"mul", "add"} & set(names)
    assert {"mul", "add"} <= {node.op.name for node in backward.nodes}


# Inputs that are dead, twice there, or of no use


def test_a_dead_input_gets_zeros_and_has_no_path(full: bool) -> None:
    @for_all(cases(DOUBLES), full, examples=30)
    def holds(case: Case) -> None:
        dead = param("dead", TensorType.parse("f64[2,3]"))
        graph = Graph("dead", (dead, *case.graph.inputs), case.graph.outputs)
        check_graph(graph)
        adjoint, wrt, targets = gradient_graph(graph)
        seeds = random_like(case.rng, targets, case)
        arrays = [np.ones((2, 3)), *case.arrays]
        found = interpret(adjoint, *arrays, *seeds)[len(graph.outputs) :]
        assert_same(found[0], np.zeros((2, 3)))
        plain, _, _ = gradient_graph(case.graph)
        expected = interpret(plain, *case.arrays, *seeds)[len(graph.outputs) :]
        for one, two in zip(found[1:], expected, strict=True):
            assert_same(one, two)
        ends = [param("g", x.type) for x in targets]
        paths = vjp(graph.nodes, targets=targets, seeds=ends, sources=wrt)
        assert paths[0] is None
        tangents = [np.ones((2, 3)), *(np.zeros_like(s) for s in found[1:])]
        pushed = interpret(jvp_graph(graph), *arrays, *tangents)
        for still in pushed[len(graph.outputs) :]:
            assert not np.any(still)


def test_a_source_asked_for_twice_gets_its_gradient_twice(full: bool) -> None:
    @for_all(cases(DOUBLES), full, examples=20)
    def holds(case: Case) -> None:
        graph, wrt = case.graph, float_nodes(case.graph.inputs)
        twice = vjp_graph(graph, wrt=[*wrt, *wrt])
        seeds = random_like(case.rng, float_nodes(graph.outputs), case)
        found = interpret(twice, *case.arrays, *seeds)[len(graph.outputs) :]
        for one, two in zip(found[: len(wrt)], found[len(wrt) :], strict=True):
            assert_same(one, two)


def test_an_output_that_is_there_twice_is_seeded_twice() -> None:
    x = param("x", TensorType.parse("f64[2]"))
    y = x * x
    graph = Graph("twice", (x,), (y, y, x))
    adjoint = vjp_graph(graph, wrt=(x,))
    value, ones = np.array([3.0, 4.0]), np.ones(2)
    *_, found = interpret(adjoint, value, ones, 10 * ones, 100 * ones)
    assert_same(found, 22 * value + 100)


def test_an_input_that_is_there_twice_is_refused() -> None:
    x = param("x", TensorType.parse("f64[2]"))
    with pytest.raises(GraphError, match="invariant 1: input 1 is there twice"):
        check_graph(Graph("twice", (x, x), (x + x,)))


def test_a_derivative_that_vanishes_is_told_from_none() -> None:
    x, y = (param(name, TensorType.parse("f64[2]")) for name in "xy")
    i = param("i", TensorType.parse("i64[2]"))
    whole = ops.floor(x) + ops.stop_gradient(y) + ops.cast(i, dtype=x.dtype)
    graph = Graph("flat", (x, y, i), (whole,))
    found = vjp(
        graph.nodes,
        targets=[whole],
        seeds=[literal(np.ones(2), x.dtype)],
        sources=graph.inputs,
    )
    assert found == (ZERO, None, None)


# Calls


def test_a_call_has_the_values_and_derivatives_of_its_body(full: bool) -> None:
    def has_call(case: Case) -> bool:
        return any(node.op is ops.call for node in case.graph.nodes)

    @for_all(cases(DOUBLES).filter(has_call), full, examples=40)
    def holds(case: Case) -> None:
        graph, flat = case.graph, inlined(case.graph)
        check_graph(flat)
        for got, wanted in zip(
            interpret(graph, *case.arrays), interpret(flat, *case.arrays), strict=True
        ):
            assert_same(got, wanted)

        rng = case.rng
        tangents = random_like(rng, float_nodes(graph.inputs), case)
        cotangents = random_like(rng, float_nodes(graph.outputs), case)
        inside = pushed_and_pulled(case, tangents, cotangents)
        plain = Case(flat, case.arrays, case.seed)
        outside = pushed_and_pulled(plain, tangents, cotangents)
        for one, two in zip(inside, outside, strict=True):
            for got, wanted in zip(one, two, strict=True):
                assert_near(got, wanted, "derivative")


def test_a_call_connects_what_its_body_connects(full: bool) -> None:
    def paths(graph: Graph) -> list[list[str]]:
        table = []
        for target in float_nodes(graph.outputs):
            seed = param("g", target.type)
            found = vjp(
                graph.nodes, targets=[target], seeds=[seed], sources=graph.inputs
            )
            table.append(["none" if g is None else "path" for g in found])
        return table

    @for_all(cases(DOUBLES), full, examples=25)
    def holds(case: Case) -> None:
        assert paths(case.graph) == paths(inlined(case.graph))


def test_one_value_may_be_two_arguments_of_a_call() -> None:
    p, q = (param(name, TensorType.parse("f64[2]")) for name in "pq")
    body = Graph("body", (p, q), (p * p * q, q))
    x = param("x", TensorType.parse("f64[2]"))
    whole = ops.call(x, x, graph=body)
    graph = Graph("cube", (x,), (ops.item(whole, index=0),))
    value = np.array([2.0, 3.0])
    adjoint = vjp_graph(graph, wrt=(x,))
    cube, slope = interpret(adjoint, value, np.ones(2))
    assert_same(cube, value**3)
    assert_same(slope, 3 * value**2)


def test_a_call_on_a_tape_has_the_gradient_of_its_body(full: bool) -> None:
    style = Style(has_complex=True, has_calls=True, steps=12)

    @for_all(cases(style), full, examples=25)
    def holds(case: Case) -> None:
        graph = case.graph
        xs = [tj.asarray(array) for array in case.arrays]
        targets = [
            at for at, y in enumerate(graph.outputs) if is_differentiable(y.dtype)
        ]
        with tj.GradientTape(persistent=True) as tape:
            tape.watch(xs)
            ys = apply(ops.call, *xs, graph=graph)
        found = tape.gradient(
            [ys[at] for at in targets], xs, unconnected_gradients="zero"
        )
        adjoint, _, _ = gradient_graph(inlined(graph))
        ones = [np.ones_like(ys[at].numpy()) for at in targets]
        expected = interpret(adjoint, *case.arrays, *ones)[len(graph.outputs) :]
        for got, wanted in zip(found, expected, strict=True):
            assert_near(got, wanted, "gradient")
