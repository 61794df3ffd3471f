"""A Graph: named inputs, outputs, and the Nodes between them.

The Nodes are not stored, they follow: everything the outputs and the effects need,
down to the inputs. An input may be any Node; a Graph does not look behind it. So the
adjoint of a tape is a Graph whose inputs are the recorded Nodes whose values were
kept, without copying a Node.

Start reading at `Graph`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import cached_property
from typing import TYPE_CHECKING

from tapejit.ir.node import Node

if TYPE_CHECKING:
    from tapejit.ir.interpret import Program


class Graph:
    """Immutable: `name`, `inputs`, `outputs` and the last of the `effects`.

    >>> from tapejit.ir import param
    >>> from tapejit.base.types import TensorType
    >>> x = param("x", TensorType.parse("f32[3]"))
    >>> print(Graph("double", (x,), (x + x,)))
    graph double(x: f32[3]) {
      %0: f32[3] = add x, x
      return %0
    }
    """

    def __init__(
        self,
        name: str,
        inputs: Iterable[Node],
        outputs: Iterable[Node],
        effects: Node | None = None,
    ) -> None:
        self.name = name
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.effects = effects

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """What has to run, each Node after the ones it needs; inputs excluded.

        Effects come first, each with what it needs before the next: a guard has to
        fail before anything else can, because what follows it, the question of the
        next guard too, may only make sense if it holds.
        """
        chain: list[Node] = []
        link = self.effects
        while link is not None and link not in self.inputs:
            chain.append(link)
            link = link.inputs[-1] if link.inputs else None
        ends = (*reversed(chain), *self.outputs)
        return topological_order(ends, stop=frozenset(self.inputs))

    @cached_property
    def program(self) -> Program:
        """The interpreter's form of this Graph, made once."""
        from tapejit.ir.interpret import Program

        return Program(self)

    @cached_property
    def digest(self) -> str:
        """The content of this Graph as a name, equal for equal computations."""
        from tapejit.ir.digest import graph_digest

        return graph_digest(self)

    def __str__(self) -> str:
        from tapejit.ir.printer import print_graph

        return print_graph(self)

    def __repr__(self) -> str:
        ends = ", ".join(str(node.type) for node in self.outputs)
        starts = ", ".join(str(node.type) for node in self.inputs)
        return f"<Graph {self.name}({starts}) -> ({ends}), {len(self.nodes)} nodes>"


def topological_order(
    ends: Iterable[Node], *, stop: Collection[Node] = frozenset()
) -> tuple[Node, ...]:
    """Every Node that `ends` need, in order; `stop` Nodes and what they need not.

    The order depends on the structure alone: inputs left to right, then the Node.
    """
    order: list[Node] = []
    done: set[Node] = set(stop)
    stack: list[tuple[Node, int]] = []
    for end in ends:
        if end in done:
            continue
        stack.append((end, 0))
        done.add(end)
        while stack:
            node, at = stack.pop()
            if at < len(node.inputs):
                stack.append((node, at + 1))
                below = node.inputs[at]
                if below not in done:
                    done.add(below)
                    stack.append((below, 0))
            else:
                order.append(node)
    return tuple(order)
