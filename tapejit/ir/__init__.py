"""The graph: what a program computes, as data.

The data structures are `Op` (the record of one operation: its type rule, its NumPy
meaning, its derivative, its batching rule, its lane expression), `Node` (an Op
applied to Nodes: immutable, with a type and the user's line) and `Graph` (named
inputs and outputs; the Nodes between them follow). Everything else here reads those
three: `print_graph` and `parse_graph` turn a Graph into text and back, `check_graph`
says whether it is well formed, `interpret` runs it with NumPy, `graph_digest` names
it by content.

Nothing here knows a particular mathematical operation: those are the records in
`tapejit.ops`. Only the structural ones live here: parameters, literals, reads of
variables, projections, calls and guards.

Start reading at `node.py`, then `graph.py`, then `interpret.py`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tapejit.ir.graph import Graph, topological_order
from tapejit.ir.interpret import Program, interpret
from tapejit.ir.node import OPS, Node, Op, literal, param, register

if TYPE_CHECKING:
    from tapejit.ir.check import check_graph
    from tapejit.ir.digest import graph_digest
    from tapejit.ir.parser import parse_graph
    from tapejit.ir.printer import print_graph

# Text and checks are for people and tests: a training step needs none of them.
_LAZY = {
    "check_graph": "check",
    "graph_digest": "digest",
    "parse_graph": "parser",
    "print_graph": "printer",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"tapejit.ir has no attribute {name!r}", name=name)
    return getattr(import_module(f"tapejit.ir.{_LAZY[name]}"), name)


__all__ = [
    "OPS",
    "Graph",
    "Node",
    "Op",
    "Program",
    "check_graph",
    "graph_digest",
    "interpret",
    "literal",
    "param",
    "parse_graph",
    "print_graph",
    "register",
    "topological_order",
]
