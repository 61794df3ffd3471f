"""Passes: pure functions from Graphs to Graphs.

`vjp` appends the adjoint of any set of Nodes, `jvp` their tangents, `batch` gives a
Graph a leading axis, `partition` cuts a Graph with its adjoint into a forward part
that saves residuals and a backward part that uses them. No pass sees an array, and
none changes a Node: a pass makes new ones.

Start reading at `vjp.py`.
"""

from tapejit.passes.batch import batch
from tapejit.passes.jvp import jvp, jvp_graph
from tapejit.passes.partition import partition
from tapejit.passes.vjp import needed_values, vjp, vjp_graph

__all__ = [
    "batch",
    "jvp",
    "jvp_graph",
    "needed_values",
    "partition",
    "vjp",
    "vjp_graph",
]
