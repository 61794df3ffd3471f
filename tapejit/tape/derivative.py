"""From a recording to a derivative: requests, plans, and running them.

A Request says in Nodes what is asked: targets, and for each source the Nodes that
stand for it (a variable has one per read). The plan answers it: a closed Graph whose
inputs are the recorded values it looks at and the seeds, and the place of each
source's result among its outputs, None where there is no path. Plans are kept with
the state of the trie they belong to, so a training loop builds each only once.

Start reading at `plan_for`, then `run`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tapejit import ir
from tapejit.array.manipulation import broadcast_to, concat, permute_dims, reshape
from tapejit.base.config import config
from tapejit.base.dims import Dim
from tapejit.base.errors import ArgumentError
from tapejit.base.types import TensorType, is_differentiable
from tapejit.ir.graph import Graph, topological_order
from tapejit.ir.node import Node, Zero, param
from tapejit.ops.custom_rules import CONNECTED, Expected, failed
from tapejit.rewrite.placements import join_placements
from tapejit.tape.recording import Recording
from tapejit.tape.rules import rules_in, run_settled
from tapejit.tape.variable import Variable
from tapejit.tensor.dispatch import host_value
from tapejit.tensor.symbolic_size import fixed_size, size_now
from tapejit.tensor.tensor import CONSTANT, Tensor, TracedTensor
from tapejit.tensor.trace import run_graph
from tapejit.transforms.batch import batch, broadcast_front
from tapejit.transforms.jvp import jvp
from tapejit.transforms.scatters import join_scatters
from tapejit.transforms.vjp import filled, vjp, zeros

# Rows of a Jacobian that run at once are limited to about this many elements.
CHUNK_ELEMENTS = 1 << 22


class Request:
    """What is asked of a recording, in Nodes.

    `sources` has the Nodes that stand for each source; `is_recorded` says that none
    of them was made up for a tensor the tape has not seen.
    """

    __slots__ = ("is_recorded", "recording", "sources", "targets")

    def __init__(
        self,
        recording: Recording,
        targets: tuple[Node, ...],
        sources: tuple[tuple[Node, ...], ...],
        is_recorded: bool,
    ) -> None:
        self.recording = recording
        self.targets = targets
        self.sources = sources
        self.is_recorded = is_recorded

    @classmethod
    def of(
        cls, recording: Recording, targets: Sequence[Any], sources: Sequence[Any]
    ) -> Request:
        """Look up the Nodes; what was not recorded gets one for the trivial path."""
        outside: dict[int, Node] = {}

        def node_of(x: Any) -> Node:
            tensor = x._held() if isinstance(x, Variable) else x
            found = recording.node_of(tensor)
            if found is None:
                found = outside.setdefault(id(x), param("outside", tensor._type))
            return found

        targets_found = tuple(node_of(x) for x in targets)
        groups: list[tuple[Node, ...]] = []
        for x in sources:
            reads = recording.reads.get(id(x)) if isinstance(x, Variable) else None
            if reads is None:
                groups.append((node_of(x),))
            elif id(x) in outside:  # assigned since: as a target it is its new value
                groups.append((*reads[1], outside[id(x)]))
            else:
                groups.append(tuple(reads[1]))
        return cls(recording, targets_found, tuple(groups), not outside)


class DerivativePlan:
    """A derivative ready to run.

    kept     the recorded Nodes whose values are the Graph's first inputs
    graph    inputs: kept values, then seeds; outputs: one per connected source
    places   per source, the index of its output, or None
    calls_back  whether it runs a user's `grad_fn`, which may raise
    expected  what those have been found to give a gradient
    """

    def __init__(
        self, kept: tuple[Node, ...], graph: Graph, places: tuple[int | None, ...]
    ) -> None:
        self.kept = kept
        self.graph = graph
        self.places = places
        self.calls_back = bool(rules_in(graph)) or _has_failed(graph)
        self.expected: Expected = {}

    def spread(self, found: Sequence[Tensor]) -> list[Tensor | None]:
        """The results in the order of the sources."""
        return [None if at is None else found[at] for at in self.places]


def _has_failed(graph: Graph) -> bool:
    """Whether a `grad_fn` that raised while it was traced will raise when this runs."""
    for node in graph.nodes:
        parts = [x for x in node.attrs.values() if isinstance(x, Graph)]
        if node.op is failed or any(map(_has_failed, parts)):
            return True
    return False


def plan_for(request: Request, *, seeded: bool) -> DerivativePlan:
    """The plan of a gradient: targets are summed, weighed by seeds if `seeded`."""
    key = (request.targets, request.sources, seeded, *CONNECTED.get().items())
    plans = request.recording.state.plans
    plan: DerivativePlan | None = plans.get(key) if request.is_recorded else None
    if plan is None:
        seeds = [param(f"d_{at}", x.type) for at, x in enumerate(request.targets)]
        ones = [filled(1, x.tensor_type) for x in request.targets]
        plan = _build(request, seeds if seeded else ones, seeds if seeded else [])
        if request.is_recorded:
            plans[key] = plan
    return plan


def _build(
    request: Request, seeds: Sequence[Node], inputs: Sequence[Node]
) -> DerivativePlan:
    """Differentiate and close the Graph over the recorded values it looks at."""
    pairs = [
        (target, seed)
        for target, seed in zip(request.targets, seeds, strict=True)
        if is_differentiable(target.dtype)
    ]
    recording = request.recording
    flat = [node for group in request.sources for node in group]
    found = vjp(
        recording.order,
        targets=[target for target, _ in pairs],
        seeds=[seed for _, seed in pairs],
        sources=flat,
    )
    by_node = dict(zip(flat, found, strict=True))
    outputs: list[Node] = []
    places: list[int | None] = []
    for group in request.sources:
        total = _sum_of([by_node[node] for node in group], group[0].tensor_type)
        places.append(None if total is None else len(outputs))
        if total is not None:
            outputs.append(total)
    kept = recorded_inputs(outputs, recording, inputs)
    # Here, not only before code is made: the loops of tapes are not compiled.
    graph = join_scatters(Graph("gradient", (*kept, *inputs), outputs))
    graph = join_placements(graph)
    if config.current().check:
        ir.check_graph(graph)
    return DerivativePlan(kept, graph, tuple(places))


def _sum_of(parts: Sequence[Any], kind: TensorType) -> Node | None:
    """The cotangent of a source: the sum over the Nodes that stand for it."""
    present = [part for part in parts if isinstance(part, Node)]
    if present:
        total = present[0]
        for part in present[1:]:
            total = total + part
        return total
    return zeros(kind) if any(isinstance(part, Zero) for part in parts) else None


def recorded_inputs(
    outputs: Sequence[Node], recording: Recording, inputs: Sequence[Node]
) -> tuple[Node, ...]:
    """The recorded Nodes that `outputs` look at, in a fixed order."""
    recorded = recording.values
    order = topological_order(outputs, stop={*recorded, *inputs})
    looked_at = [x for node in order for x in node.inputs] + list(outputs)
    return tuple(dict.fromkeys(x for x in looked_at if x in recorded))


def run(
    plan: DerivativePlan, kept: list[Tensor], seeds: Sequence[Tensor]
) -> list[Tensor | None]:
    """The gradient of each source."""
    inputs = [*kept, *seeds]
    kept.clear()
    return plan.spread(run_graph(plan.graph, inputs))


def run_calling(
    recording: Recording,
    build: Callable[[], list[DerivativePlan]],
    run: Callable[[list[DerivativePlan], list[list[Tensor]]], Any],
) -> Any:
    """Run Plans that call a user's `grad_fn`; nothing is released before the end."""
    values = recording.values

    def run_built(plans: list[DerivativePlan]) -> Any:
        return run(plans, [[values[node] for node in plan.kept] for plan in plans])

    def nodes_of(rule: Any) -> list[Node]:
        return [node for node, tensor in values.items() if tensor._value is rule]

    first = build()
    found, last, expected = run_settled(build, run_built, nodes_of, first[0].expected)
    # Safe to expect next time as well if it leaves no rule out, who would be asked.
    if expected and _rules(first) == _rules(last):
        first[0].expected = expected
    return found


def _rules(plans: Sequence[DerivativePlan]) -> set[Node]:
    return set().union(*[rules_in(plan.graph) for plan in plans])


# Jacobians: the same adjoint, batched over its seed


class RowsPlan(DerivativePlan):
    """A plan whose seed is batched: `chunk` of the `rows` of a Jacobian at a time."""

    def __init__(
        self, single: DerivativePlan, graph: Graph, *, chunk: int, rows: int
    ) -> None:
        super().__init__(single.kept, graph, single.places)
        self.chunk = chunk
        self.rows = rows


def plan_rows(
    request: Request, chunk_size: int | None, *, per_row: bool = False
) -> RowsPlan:
    """The plan of a Jacobian of one target.

    With `per_row` the first axis of the target is a batch whose rows are independent,
    and one seed serves all of its rows.
    """
    (target,) = request.targets
    kind = target.tensor_type
    shape: Any = kind.shape
    rows = math.prod([fixed_size(size) for size in (shape[1:] if per_row else shape)])
    chunk = _chunk(request, rows, chunk_size)
    known = CONNECTED.get().items()
    key = (request.targets, request.sources, "rows", rows, chunk, per_row, *known)
    plans = request.recording.state.plans
    plan: RowsPlan | None = plans.get(key) if request.is_recorded else None
    if plan is None:
        seed = param("d_0", kind)
        single = _build(request, [seed], [seed])
        flags = [False] * len(single.kept) + [True]
        batched, has_axis = batch(single.graph, size=chunk, batched=flags)
        outputs = [
            out if flag else broadcast_front(out, chunk)
            for out, flag in zip(batched.outputs, has_axis, strict=True)
        ]
        graph = Graph("jacobian", batched.inputs, outputs)
        if config.current().check:
            ir.check_graph(graph)
        plan = RowsPlan(single, graph, chunk=chunk, rows=rows)
        if request.is_recorded:
            plans[key] = plan
    return plan


def _chunk(request: Request, rows: int, asked: int | None) -> int:
    """How many rows to run at once, so that memory stays bounded."""
    if asked is not None:
        return max(1, min(asked, rows))
    largest = max(
        (
            size_now(math.prod(node.shape))
            for node in request.recording.order
            if _is_tensor(node)
        ),
        default=1,
    )
    return max(1, min(rows, CHUNK_ELEMENTS // max(1, largest)))


def _is_tensor(node: Node) -> bool:
    return isinstance(node.type, TensorType)


def run_rows(plan: RowsPlan, kept: list[Tensor], target: Any) -> list[Tensor | None]:
    """The Jacobian of one target by each source."""
    pieces = [
        _run_chunk(plan, kept, _unit_rows(plan, at, target.shape, target.dtype))
        for at in range(0, plan.rows, plan.chunk)
    ]
    return [
        None if at is None else _joined(plan, pieces, at, target.shape)
        for at in plan.places
    ]


def _run_chunk(plan: RowsPlan, kept: Sequence[Tensor], seed: Tensor) -> list[Tensor]:
    return run_graph(plan.graph, [*kept, seed])


def _unit_rows(
    plan: RowsPlan, start: int, shape: tuple[int, ...], dtype: Any
) -> Tensor:
    """`chunk` rows of the identity from `start` on, shaped like the target each."""
    rows = np.zeros((plan.chunk, plan.rows), dtype)
    count = min(plan.chunk, plan.rows - start)
    rows[np.arange(count), start + np.arange(count)] = 1
    return Tensor(rows.reshape(plan.chunk, *shape), CONSTANT)


def _joined(
    plan: RowsPlan, pieces: Sequence[Sequence[Tensor]], at: int, prefix: tuple[int, ...]
) -> Tensor:
    """Stack the chunks, drop the padding of the last one, restore the axes."""
    out = plan.graph.outputs[at].shape[1:]
    if not pieces:
        return Tensor(np.zeros((*prefix, *out), plan.graph.outputs[at].dtype))
    whole = (
        concat([piece[at] for piece in pieces]) if len(pieces) > 1 else pieces[0][at]
    )
    if whole.shape[0] != plan.rows:
        whole = whole[: plan.rows]
    return reshape(whole, (*prefix, *out))


def run_batch_rows(
    plan: RowsPlan, kept: list[Tensor], target: Any, source: Any
) -> Tensor | None:
    """The Jacobian of each row of the target by the same row of the source."""
    (place,) = plan.places
    if place is None:
        return None
    size, *inner = target.shape
    pieces = [
        _run_chunk(plan, kept, _seed_rows(plan, start, target))
        for start in range(0, plan.rows, plan.chunk)
    ]
    joined = _joined(plan, pieces, place, (plan.rows,))
    swapped = permute_dims(joined, (1, 0, *range(2, joined.ndim)))
    return reshape(swapped, (size, *inner, *source.shape[1:]))


def _seed_rows(plan: RowsPlan, start: int, target: Any) -> Tensor:
    """The unit rows from `start` on, each for every row of the batch."""
    size, *inner = target.shape
    units = np.asarray(_unit_rows(plan, start, tuple(inner), target.dtype)._value)
    if isinstance(size, Dim):
        return broadcast_to(
            Tensor(units[:, None], CONSTANT), (plan.chunk, size, *inner)
        )
    rows = np.broadcast_to(units[:, None], (plan.chunk, size, *inner))
    return Tensor(rows, CONSTANT)


def check_rows(plan: RowsPlan, kept: Sequence[Tensor], target: Any) -> None:
    """Refuse a batch Jacobian whose rows depend on each other.

    One row of the batch is seeded at a time: no other row may receive anything. In a
    traced function the values are those of the call that is traced; in a mapped one
    there are none to check.
    """
    (place,) = plan.places
    known = [_known_value(x) for x in kept]
    if place is None or any(value is None for value in known):
        return
    for start in range(0, plan.rows, plan.chunk):
        seed = np.asarray(_known_value(_seed_rows(plan, start, target)))
        for row in range(seed.shape[1]):
            alone = np.zeros_like(seed)
            alone[:, row] = seed[:, row]
            arrays = [*known, alone]
            found = np.array(plan.graph.program.run(arrays)[place])
            found[:, row] = 0
            if np.any(found):
                others = found.any(axis=0).reshape(seed.shape[1], -1).any(axis=1)
                raise ArgumentError(
                    f"batch_jacobian: row {row} of the target depends on row "
                    f"{int(np.argmax(others))} of the source",
                    help="use tape.jacobian, which does not assume independent rows",
                )


def _known_value(x: Tensor) -> Any:
    """The array that a tensor holds, or stands for in the call that is traced."""
    if not isinstance(x, TracedTensor):
        return host_value(x)
    trace = x._trace
    return trace.value_of(x._value) if trace.state is trace else None


# Forward mode over a recording


def push(
    recording: Recording,
    sources: Sequence[Tensor],
    tangents: Sequence[Tensor],
    targets: Sequence[Tensor],
) -> list[Tensor | None]:
    """The tangents of recorded targets."""
    request = Request.of(recording, targets, sources)
    nodes = [group[0] for group in request.sources]
    seeds = [param(f"t_{at}", node.type) for at, node in enumerate(nodes)]
    found = jvp(recording.order, sources=nodes, tangents=seeds, targets=request.targets)
    outputs: list[Node] = []
    places: list[int | None] = []
    for tangent, target in zip(found, request.targets, strict=True):
        total = _sum_of([tangent], target.tensor_type)
        places.append(None if total is None else len(outputs))
        if total is not None:
            outputs.append(total)
    kept = recorded_inputs(outputs, recording, seeds)
    plan = DerivativePlan(
        kept, Graph("tangents", (*kept, *seeds), outputs), tuple(places)
    )
    return run(plan, [recording.values[node] for node in kept], tangents)
