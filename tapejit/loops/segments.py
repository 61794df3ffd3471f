"""Cut a Graph into what becomes native code and what NumPy does.

Nodes that loops can compute gather in segments, as large as they can be; the others run
between them. `split` gives a Graph with the same inputs, outputs and effects in which
each segment is one Node with several results.

The chain of effects keeps its order. An operation that can fail must not do so before
an effect that comes first, so it belongs to a segment after it; within a segment it has
no place in the chain, since a segment that fails is run again by NumPy, which finds the
first failure.

Start reading at `split`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tapejit.base.types import TensorType, TupleType
from tapejit.ir.graph import Graph
from tapejit.ir.node import LITERAL, Movement, Node, Op
from tapejit.ir.structural import item, require, start


class Split:
    """A Graph of segments: `graph` to run, and the `segments`, by their Node.

    `originals` tells for a Node of `graph` which one it is a copy of.
    """

    def __init__(
        self, graph: Graph, segments: dict[Node, Graph], originals: dict[Node, Node]
    ) -> None:
        self.graph = graph
        self.segments = segments
        self.originals = originals


def split(
    graph: Graph, is_native: Callable[[Node], bool], make_op: Callable[[Graph, int], Op]
) -> Split:
    """The Graph with segments; `make_op` makes the operation that runs one."""
    native = {node for node in graph.nodes if is_native(node)}
    levels = levels_of(graph, native)
    return _Splitter(graph, native, levels, make_op).split()


def levels_of(graph: Graph, native: set[Node]) -> dict[Node, int]:
    """When each Node runs: odd numbers are segments, even ones are between them."""
    waits = effects_before(graph, native)
    levels: dict[Node, int] = {}
    for node in graph.nodes:
        if node.op is LITERAL:
            continue
        is_native = node in native
        level = 1 if is_native else 0
        for x in (*node.inputs, waits.get(node)):
            before = None if x is None else levels.get(x)
            if before is None:
                continue
            if is_native:
                level = max(level, before if before % 2 else before + 1)
            else:
                level = max(level, before + before % 2)
        levels[node] = level
    return levels


def effects_before(graph: Graph, native: set[Node]) -> dict[Node, Node]:
    """For a Node that can fail: the effect that has to come first.

    A guard is one: where it does not hold, another Graph is the right one, and nothing
    of this one may fail. What has open sizes can: they were taken for others.
    """
    waits: dict[Node, Node] = {}
    last: Node | None = None
    for node in graph.nodes:  # effects first, each with what it needs
        if last is not None and (node.op.can_fail or is_open(node)):
            waits[node] = last
        is_here = node.op is require and node.inputs[0] in native
        if node.op.is_effect and not is_here:
            last = node
    return waits


def is_open(node: Node) -> bool:
    """Whether a Node deals with sizes that are known only when it runs."""
    types = (node.type, *(x.type for x in node.inputs))
    return any(isinstance(x, TensorType) and not x.is_static for x in types)


class _Splitter:
    def __init__(
        self,
        graph: Graph,
        native: set[Node],
        levels: dict[Node, int],
        make_op: Callable[[Graph, int], Op],
    ) -> None:
        self.graph = graph
        self.native = native
        self.levels = levels
        self.make_op = make_op
        self.made: dict[Node, Node] = {node: node for node in graph.inputs}
        self.segments: dict[Node, Graph] = {}
        self.unread: set[Node] = set()  # native, and only here because they can fail

    def split(self) -> Split:
        graph = self.graph
        by_level: dict[int, list[Node]] = {}
        for node in graph.nodes:
            if node.op is LITERAL:
                self.made[node] = node
            else:
                by_level.setdefault(self.levels[node], []).append(node)
        users: dict[Node, list[Node]] = {}
        for node in graph.nodes:
            for x in node.inputs:
                users.setdefault(x, []).append(node)
        self.unread = {
            node
            for node in self.native.difference(graph.outputs)
            if all(user.op is require for user in users.get(node, ()))
        }
        for level in sorted(by_level):
            if level % 2 and not all(map(is_movement, by_level[level])):
                self.segment(by_level[level], users)
            else:
                for node in by_level[level]:
                    self.copy(node)
        effects = None if graph.effects is None else self.made[graph.effects]
        if effects is not None and effects.op is start:
            effects = None
        outputs = [self.made[node] for node in graph.outputs]
        made = Graph(graph.name, graph.inputs, outputs, effects)
        kept = (pair for pair in self.made.items() if not self.is_gone(pair[0]))
        originals = {copy: node for node, copy in kept}
        return Split(made, self.segments, originals)

    def copy(self, node: Node) -> None:
        """A Node that stays as it is; what was only to fail in time is gone."""
        if self.is_gone(node):
            self.made[node] = self.made[node.inputs[1]]
            return
        inputs = tuple(self.made[x] for x in node.inputs)
        if inputs == node.inputs:
            self.made[node] = node
            return
        copied = Node(node.op, inputs, node.attrs, node.type, node.origin)
        self.made[node] = copied

    def segment(self, nodes: Sequence[Node], users: dict[Node, list[Node]]) -> None:
        """One Node in place of many."""
        inside = set(nodes)
        needed: dict[Node, None] = {}
        for node in nodes:
            for x in node.inputs:
                if x not in inside and x.op is not LITERAL:
                    needed[x] = None
        ends = set(self.graph.outputs)
        outputs = [node for node in nodes if node in ends or self.is_used(node, users)]
        graph = Graph(self.graph.name, needed, outputs)
        op = self.make_op(graph, len(self.segments))
        inputs = tuple(self.made[x] for x in needed)
        kind = TupleType(tuple(node.type for node in outputs))
        whole = Node(op, inputs, {}, kind, nodes[-1].origin)
        self.segments[whole] = graph
        for at, node in enumerate(outputs):
            self.made[node] = Node(item, (whole,), {"index": at}, node.type, None)

    def is_used(self, node: Node, users: dict[Node, list[Node]]) -> bool:
        """Whether something outside of its segment needs a Node."""
        level = self.levels[node]
        for user in users.get(node, ()):
            if not self.is_gone(user) and self.levels[user] != level:
                return True
        return False

    def is_gone(self, node: Node) -> bool:
        """Whether a Node only says when another fails, which its segment does."""
        if node.op is not require or node.inputs[0] not in self.native:
            return False
        return node.inputs[0] not in self.unread


def is_movement(node: Node) -> bool:
    """Whether NumPy makes nothing but a view for a Node."""
    return node.op.moves in (Movement.ALIAS, Movement.VIEW)
