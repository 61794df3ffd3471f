"""Passes: pure functions from Graphs to Graphs.

`vjp` appends the adjoint of any set of Nodes, `jvp` their tangents, `batch` gives a
Graph a leading axis, `partition` cuts a Graph with its adjoint into a forward part
that saves residuals and a backward part that uses them. Before a Graph is run,
`optimise` rewrites it into an equal one with less to do: `inline`, `simplify`, `fold`
and `cse`, in the order and for the reasons that `pipeline.py` gives. `segments` then
cuts it into what becomes native code and what NumPy performs, and `fusion` arranges the
former into loops. No pass changes a Node: a pass makes new ones.

The passes of derivatives are gathered here; the others are imported from their own
modules, because a program without functions runs none of them.

Start reading at `vjp.py`, then `pipeline.py`, then `fusion/lower.py`.
"""

from tapejit.passes.batch import batch
from tapejit.passes.jvp import jvp, jvp_graph
from tapejit.passes.vjp import needed_values, vjp, vjp_graph

__all__ = [
    "batch",
    "jvp",
    "jvp_graph",
    "needed_values",
    "vjp",
    "vjp_graph",
]
