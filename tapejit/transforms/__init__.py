"""Transforms: calculus on Graphs. Graph in, Graph out.

`vjp` appends the adjoint of any set of Nodes, `jvp` their tangents, `calls` knows both
of Graphs that are called and of functions with a gradient of their own, `batch` gives a
Graph a leading axis, `partition` cuts a Graph with its adjoint into a forward part that
saves residuals and a backward part that uses them. `scatters` joins the scatters that
an adjoint adds up, `linearity` tells whether a Graph is linear in some of its inputs.
No transform changes a Node: it makes new ones.

Start reading at `vjp.py`, then `jvp.py`.
"""

from tapejit.transforms import calls as calls
from tapejit.transforms.batch import batch
from tapejit.transforms.jvp import jvp, jvp_graph
from tapejit.transforms.vjp import needed_values, vjp, vjp_graph

__all__ = ["batch", "jvp", "jvp_graph", "needed_values", "vjp", "vjp_graph"]
