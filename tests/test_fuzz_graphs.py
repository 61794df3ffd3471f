"""What must hold of every Graph, tried on random ones.

Text reads back, the interpreter does what eager operations do, reverse mode is the
transpose of forward mode, and forward mode is the derivative.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from graph_properties import (
    ANYTHING,
    DOUBLES,
    SMOOTH,
    assert_same,
    float_nodes,
    for_all,
    gradient_graph,
    inner,
    pushed_and_pulled,
    random_like,
    without_stopped_paths,
)
from random_graphs import Arrays, Case, Style, cases, random_graph

import tapejit as tj
from tapejit import ops
from tapejit.base.dims import Dim
from tapejit.base.types import TensorType, is_differentiable
from tapejit.ir import Graph, Node, check_graph, interpret, parse_graph, print_graph
from tapejit.ir.interpret import bind_dims
from tapejit.ir.node import LITERAL
from tapejit.tensor.dispatch import apply
from tapejit.transforms import jvp_graph

# The Graphs themselves


def test_random_graphs_are_long_and_of_all_kinds() -> None:
    used: set[str] = set()
    shapes: set[tuple[Any, ...]] = set()
    lengths = []
    for seed in range(1, 150):
        seeds = [hash((seed, at)) for at in range(26)]
        graph = random_graph(seeds, ANYTHING)
        lengths.append(len(graph.nodes))
        nodes = list(graph.nodes)
        while nodes:
            node = nodes.pop()
            used.add(node.op.name)
            nodes += node.attrs["graph"].nodes if node.op is ops.call else ()
            if isinstance(node.type, TensorType):
                shapes.add(node.shape)
    assert min(lengths) >= 20
    kinds = {len(shape) for shape in shapes}
    assert {0, 1, 2, 3} <= kinds
    assert any(0 in shape for shape in shapes)
    assert any(isinstance(size, Dim) for shape in shapes for size in shape)
    families = """
        abs add angle cast ceil conj cos div eq_mask erf exp expm1 floor floor_divide
        gate ge_mask gt_mask imag log log1p make_complex maximum minimum mul negative
        pow read real remainder round sigmoid sign sin sqrt square stop_gradient sub
        tanh trunc where all any argmax bitwise_and bitwise_invert bitwise_xor greater
        less_equal logsumexp max min prod sum broadcast_to concat flip pad permute_dims
        place reshape slice gather gather_add matmul fourier call item
    """
    assert not set(families.split()) - used


# Text


def test_text_reads_back_as_the_same_graph(full: bool) -> None:
    @for_all(cases(ANYTHING), full, examples=60)
    def holds(case: Case) -> None:
        graph = case.graph
        check_graph(graph)
        text = print_graph(graph, comments=False)
        back = parse_graph(text)
        check_graph(back)
        assert print_graph(back, comments=False) == text
        assert back.digest == graph.digest
        assert parse_graph(print_graph(graph, comments=True)).digest == graph.digest
        for one, two in zip(
            interpret(back, *case.arrays), interpret(graph, *case.arrays), strict=True
        ):
            assert_same(one, two)


def test_the_text_of_derivatives_reads_back_too(full: bool) -> None:
    @for_all(cases(ANYTHING), full, examples=20)
    def holds(case: Case) -> None:
        adjoint, _, _ = gradient_graph(case.graph)
        for graph in (adjoint, jvp_graph(case.graph)):
            check_graph(graph)
            back = parse_graph(print_graph(graph, comments=False))
            assert back.digest == graph.digest


def test_one_changed_node_changes_the_digest(full: bool) -> None:
    @for_all(cases(DOUBLES), full, examples=30)
    def holds(case: Case) -> None:
        graph = case.graph
        (*rest, last) = graph.outputs
        changed = Graph(graph.name, graph.inputs, (*rest, ops.flip(last, axes=())))
        assert changed.digest != graph.digest
        if len(set(graph.outputs)) > 1:
            turned = Graph(graph.name, graph.inputs, graph.outputs[::-1])
            assert (turned.digest == graph.digest) == (
                graph.outputs == graph.outputs[::-1]
            )


# Values


def eagerly(case: Case) -> list[Any]:
    """Every Node performed like user code."""
    xs = [tj.asarray(array) for array in case.arrays]
    return [y.numpy() for y in perform(case.graph, xs, case)]


def perform(graph: Graph, xs: Sequence[tj.Tensor], case: Case) -> list[tj.Tensor]:
    """The outputs of a Graph; each result must have its Node's type."""
    values: dict[Node, Any] = dict(zip(graph.inputs, xs, strict=True))
    for node in graph.nodes:
        operands = [values[x] for x in node.inputs]
        body = node.attrs.get("graph")
        if node.op is LITERAL:
            values[node] = tj.asarray(node.attrs["value"])
        elif node.op is ops.item:
            values[node] = operands[0][node.attrs["index"]]
        elif body is not None and body.program.is_symbolic:
            values[node] = perform(body, operands, case)  # no eager call takes sizes
        else:
            attrs = {k: bind_dims(v, case.sizes) for k, v in node.attrs.items()}
            values[node] = apply(node.op, *operands, **attrs)
        if isinstance(node.type, TensorType):
            found = values[node]
            assert TensorType(found.dtype, found.shape) == case.actual_type(node), node
    return [values[out] for out in graph.outputs]


def test_the_interpreter_does_what_eager_operations_do(full: bool) -> None:
    @for_all(cases(ANYTHING), full, examples=60)
    def holds(case: Case) -> None:
        expected = eagerly(case)
        for _ in range(2):  # step by step, then as the program it has been made into
            found = interpret(case.graph, *case.arrays)
            for out, got, wanted in zip(
                case.graph.outputs, found, expected, strict=True
            ):
                assert_same(got, wanted, out)


def test_it_does_so_for_special_values(full: bool) -> None:
    style = Style(has_complex=True, has_many_dtypes=True, has_casts_to_integers=False)

    @for_all(cases(style), full, examples=40)
    def holds(case: Case) -> None:
        rng = case.rng
        special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0])
        for array in case.arrays:
            if array.dtype.kind == "f":
                array[...] = rng.choice(special, array.shape)
        for got, wanted in zip(
            interpret(case.graph, *case.arrays), eagerly(case), strict=True
        ):
            assert_same(got, wanted)


def test_the_interpreter_changes_no_argument_and_no_literal(full: bool) -> None:
    @for_all(cases(ANYTHING), full, examples=30)
    def holds(case: Case) -> None:
        before = [array.copy() for array in case.arrays]
        first = [np.array(x) for x in interpret(case.graph, *case.arrays)]
        second = interpret(case.graph, *case.arrays)
        for array, copy in zip(case.arrays, before, strict=True):
            assert_same(array, copy)
        for one, two in zip(first, second, strict=True):
            assert_same(one, two)


# Derivatives


def test_reverse_mode_is_the_transpose_of_forward_mode(full: bool) -> None:
    @for_all(cases(DOUBLES), full, examples=80)
    def holds(case: Case) -> None:
        graph, rng = case.graph, case.rng
        tangents = random_like(rng, float_nodes(graph.inputs), case)
        cotangents = random_like(rng, float_nodes(graph.outputs), case)
        pushed, pulled = pushed_and_pulled(case, tangents, cotangents)
        forward, forward_scale = inner(pushed, cotangents)
        reverse, reverse_scale = inner(tangents, pulled)
        scale = forward_scale + reverse_scale
        assert np.isfinite(scale)
        assert abs(forward - reverse) <= 1e-10 * scale


def test_derivatives_keep_the_primal_results(full: bool) -> None:
    @for_all(cases(ANYTHING), full, examples=30)
    def holds(case: Case) -> None:
        graph, rng = case.graph, case.rng
        tangents = random_like(rng, float_nodes(graph.inputs), case)
        cotangents = random_like(rng, float_nodes(graph.outputs), case)
        expected = interpret(graph, *case.arrays)
        forward, (adjoint, wrt, targets) = jvp_graph(graph), gradient_graph(graph)
        for derivative, seeds, moved in (
            (forward, tangents, targets),
            (adjoint, cotangents, wrt),
        ):
            check_graph(derivative)
            found = interpret(derivative, *case.arrays, *seeds)
            for got, wanted in zip(found, expected, strict=False):
                assert_same(got, wanted)
            ends = found[len(expected) :]
            for got, node in zip(ends, moved, strict=True):
                assert TensorType.of(got) == case.actual_type(node)


def numeric_derivative(
    graph: Graph, arrays: Arrays, direction: dict[int, Any]
) -> tuple[list[Any], list[Any]]:
    """The derivative along a direction and its uncertainty, by extrapolation.

    Central differences at four step sizes, halved each time, cancel the even powers
    of the step; the uncertainty is what the last cancellation changed.
    """

    def moved(by: float) -> list[Any]:
        at = [
            array + by * direction[i] if i in direction else array
            for i, array in enumerate(arrays)
        ]
        found = interpret(graph, *map(np.asarray, at))
        return [x for x in found if is_differentiable(x.dtype)]

    rows: list[list[Any]] = []
    step = 4e-3
    for at in range(4):
        plus, minus = moved(step), moved(-step)
        row = [(p - m) / (2 * step) for p, m in zip(plus, minus, strict=True)]
        table = [row]
        for power in range(at):
            factor = 4.0 ** (power + 1)
            row = [
                (factor * new - old) / (factor - 1)
                for new, old in zip(row, rows[-1][power], strict=True)
            ]
            table.append(row)
        rows.append(table)
        step /= 2
    best, before = rows[-1][-1], rows[-1][-2]
    return best, [np.abs(x - y) for x, y in zip(best, before, strict=True)]


def test_forward_mode_is_the_derivative(full: bool) -> None:
    @for_all(cases(SMOOTH), full, examples=40)
    def holds(case: Case) -> None:
        graph = without_stopped_paths(case.graph)
        rng = case.rng
        sources = float_nodes(graph.inputs)
        tangents = random_like(rng, sources, case)
        forward = jvp_graph(graph)
        pushed = interpret(forward, *case.arrays, *tangents)[len(graph.outputs) :]
        moving = dict(
            zip([graph.inputs.index(x) for x in sources], tangents, strict=True)
        )
        numeric, doubt = numeric_derivative(graph, case.arrays, moving)
        for got, wanted, unsure in zip(pushed, numeric, doubt, strict=True):
            size = 1 + np.max(np.abs(wanted), initial=0)
            assert np.max(unsure, initial=0) <= 1e-6 * size, "the test is too coarse"
            np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-7 * size)


def test_second_derivatives_are_symmetric(full: bool) -> None:
    """uᵀ H v by forward over reverse is vᵀ H u."""
    style = Style(is_smooth=True, has_complex=True, has_calls=True, steps=12)

    @for_all(cases(style), full, examples=30)
    def holds(case: Case) -> None:
        graph, rng = case.graph, case.rng
        targets = float_nodes(graph.outputs)
        wrt = float_nodes(graph.inputs)
        cotangents = random_like(rng, targets, case)
        adjoint, _, _ = gradient_graph(without_stopped_paths(graph))
        start = len(graph.outputs)
        gradient = Graph("gradient", adjoint.inputs, adjoint.outputs[start:])
        second = jvp_graph(gradient)
        still = [np.zeros_like(g) for g in cotangents]

        def bilinear(u: Arrays, v: Arrays) -> tuple[float, float]:
            found = interpret(second, *case.arrays, *cotangents, *v, *still)
            return inner(found[len(wrt) :], u)

        u, v = random_like(rng, wrt, case), random_like(rng, wrt, case)
        (one, one_scale), (two, two_scale) = bilinear(u, v), bilinear(v, u)
        assert abs(one - two) <= 1e-9 * (one_scale + two_scale)
