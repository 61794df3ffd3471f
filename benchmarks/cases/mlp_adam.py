"""A training step of `mlp` with Adam instead of plain gradient descent.

Adam reads and writes three numbers for each of 535,818 weights, 13 MB in all: as much
as does not stay in a core's cache. An update of its own for each weight, or for each
operation of its formula, is time spent on memory.
"""

from __future__ import annotations

from benchmarks.case import Case, Leads
from benchmarks.cases.mlp import first_step, loss, make_inputs
from benchmarks.training import Adam, training_peers

RULE = Adam(1e-3)

CASES = (
    Case(
        name="mlp_adam",
        description="a step of Adam, 784-512-256-10, batch of 128 float32",
        unit="µs",
        make_inputs=make_inputs,
        reference=lambda *arrays: first_step(RULE, *arrays),
        builders=training_peers(loss, RULE, 6),
        goals=(Leads(1.4),),
        stateful=True,
    ),
)
