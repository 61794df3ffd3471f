"""Optimised Graphs compute the same bits with no more Nodes: on random Graphs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from graph_properties import (
    ANYTHING,
    DOUBLES,
    SMOOTH,
    for_all,
    gradient_graph,
    random_like,
)
from programs.training_script import train
from random_graphs import Arrays, Case, cases

import tapejit as tj
from tapejit import ops
from tapejit.ir import Graph, check_graph, interpret
from tapejit.ir.node import LITERAL
from tapejit.ir.rewriting import Sources
from tapejit.rewrite.pipeline import optimise
from tapejit.transforms.partition import partition


def work(graph: Graph) -> int:
    """The operations of a run, those inside of calls too."""
    count = 0
    for node in graph.nodes:
        if node.op is ops.call:
            count += work(node.attrs["graph"])
        elif node.op is not LITERAL and node.op is not ops.item:
            count += 1
    return count


def bits(arrays: Sequence[np.ndarray[Any, Any]]) -> list[tuple[Any, ...]]:
    return [(x.dtype, x.shape, np.ascontiguousarray(x).tobytes()) for x in arrays]


def assert_optimised_alike(graph: Graph, arrays: Arrays) -> None:
    sources: Sources = {}
    fewer = check_graph(optimise(graph, sources=sources))
    assert optimise(fewer) is fewer
    assert work(fewer) <= work(graph)
    assert fewer.inputs == graph.inputs
    assert {sources.get(x, x) for x in fewer.nodes if x.op is not LITERAL} <= {
        *graph.nodes
    }
    assert bits(interpret(fewer, *arrays)) == bits(interpret(graph, *arrays))


def test_an_optimised_graph_computes_the_same_bits(full: bool) -> None:
    @for_all(cases(ANYTHING), full, examples=80)
    def holds(case: Case) -> None:
        assert_optimised_alike(case.graph, case.arrays)


def test_so_does_an_optimised_adjoint(full: bool) -> None:
    @for_all(cases(DOUBLES), full, examples=40)
    def holds(case: Case) -> None:
        adjoint, _, targets = gradient_graph(case.graph)
        seeds = random_like(case.rng, targets, case)
        assert_optimised_alike(adjoint, [*case.arrays, *seeds])


def test_so_do_the_parts_of_a_partition(full: bool) -> None:
    """The inputs of a backward part are Nodes of the forward part."""

    @for_all(cases(SMOOTH), full, examples=30)
    def holds(case: Case) -> None:
        graph = case.graph
        joint, _, targets = gradient_graph(graph)
        counts = {"inputs": len(graph.inputs), "outputs": len(graph.outputs)}
        forward, backward = partition(joint, **counts)
        assert_optimised_alike(forward, case.arrays)
        residuals = interpret(forward, *case.arrays)[len(graph.outputs) :]
        seeds = random_like(case.rng, targets, case)
        fewer = check_graph(optimise(backward))
        assert optimise(fewer) is fewer
        expected = interpret(backward, *residuals, *seeds)
        assert bits(interpret(fewer, *residuals, *seeds)) == bits(expected)


def test_a_second_derivative_loses_a_good_part_of_its_nodes(full: bool) -> None:
    before = after = 0

    @for_all(cases(SMOOTH), full, examples=15)
    def holds(case: Case) -> None:
        nonlocal before, after
        first, _, _ = gradient_graph(case.graph)
        second, _, _ = gradient_graph(first)
        before += work(second)
        after += work(optimise(second))

    assert after < 0.9 * before


def test_a_training_step_loses_a_tenth_of_its_nodes() -> None:
    step, *_ = train(tj.function, 2)["functions"]
    entries = step._cache.entries.values()
    graphs = [path.graph for entry in entries for path in entry.paths]
    assert graphs
    for graph in graphs:
        fewer = optimise(graph)
        assert work(fewer) < 0.9 * work(graph)
        assert not {"read", "reread", "stop_gradient"} & {
            node.op.name for node in fewer.nodes
        }
