"""What `transforms/linearity.py` says of operations is true of their values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from differentiation import drawn_like, outputs_of, targets_of
from op_cases import ROWS
from op_cases.case import C128, F64, Array, differentiable_positions

from tapejit.ir import Graph, Node, param, topological_order
from tapejit.ir.node import OPS
from tapejit.transforms import vjp
from tapejit.transforms.linearity import Kind, found_for

SEED = (Kind.LINEAR, None)


def kinds_by(graph: Graph, positions: Sequence[int]) -> set[Kind]:
    """The kinds of the results if some of the inputs are seeds."""
    known = dict.fromkeys([graph.inputs[at] for at in positions], SEED)
    return {kind for kind, _ in found_for(graph.nodes, known, targets_of(graph))}


def assert_linear(graph: Graph, arrays: list[Array], moved: Sequence[int]) -> None:
    """f(2u - 3v) = 2 f(u) - 3 f(v) in the inputs at `moved`, f(0) = 0."""
    rng = np.random.default_rng(3)
    types = [graph.inputs[at].type for at in moved]
    u, v = drawn_like(rng, types), drawn_like(rng, types)

    def value(parts: Sequence[Array]) -> list[Array]:
        given = list(arrays)
        for at, part in zip(moved, parts, strict=True):
            given[at] = part
        return outputs_of(graph, targets_of(graph), given)

    both = value([2 * x - 3 * y for x, y in zip(u, v, strict=True)])
    for whole, left, right in zip(both, value(u), value(v), strict=True):
        scale = np.max(np.abs(left) + np.abs(right), initial=1)
        off = np.max(np.abs(whole - (2 * left - 3 * right)), initial=0)
        assert off <= 1e-11 * scale, f"{graph.name} in {moved}"


def test_what_counts_as_linear_is() -> None:
    seen: set[str] = set()
    for row in ROWS:
        for dtype in row.double_dtypes:
            graph = row.graph(dtype)
            if graph.outputs[0].dtype not in (F64, C128):
                continue
            positions = differentiable_positions(graph)
            arrays = row.sample(np.random.default_rng(7), dtype)
            for moved in [positions, *([at] for at in positions)]:
                if moved and kinds_by(graph, moved) == {Kind.LINEAR}:
                    assert_linear(graph, arrays, moved)
                    seen.update(node.op.name for node in graph.nodes)
    assert seen >= {
        op.name for op in OPS.values() if op.linear is not None or op.bilinear
    }


def test_every_gradient_is_seen_to_be_linear_in_its_seed() -> None:
    """But that of `expm`, which is a corner of a larger exponential."""
    for row in ROWS:
        for dtype in [d for d in (F64, C128) if d in row.dtypes]:
            graph = row.graph(dtype)
            targets = targets_of(graph)
            if not targets or any(node.op.name == "expm" for node in graph.nodes):
                continue
            seeds = [param(f"g_{at}", x.type) for at, x in enumerate(targets)]
            found = vjp(graph.nodes, targets=targets, seeds=seeds, sources=graph.inputs)
            ends = [x for x in found if isinstance(x, Node)]
            stop = frozenset([*seeds, *graph.inputs])
            kinds = found_for(
                topological_order(ends, stop=stop), dict.fromkeys(seeds, SEED), ends
            )
            for kind, node in kinds:
                assert kind in (Kind.LINEAR, Kind.ZERO), f"{graph.name}: {node}"
