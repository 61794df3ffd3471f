"""A whole process, from `python` to the first value and gradient, with warm caches.

As `cold`, after a process that has left what it compiled on disk; JAX's compilation
cache is told to keep everything.
"""

from __future__ import annotations

from benchmarks.case import AtLeast, Case, Within
from benchmarks.cases import mlp_gradients, rosenbrock
from benchmarks.cases.cold import LABELS
from benchmarks.processes import process_builders

CASES = tuple(
    Case(
        name=f"warm_start/{case.name}",
        description=f"a process to the first answer, warm caches: {case.description}",
        unit="ms",
        make_inputs=case.make_inputs,
        reference=case.reference,
        builders=process_builders(LABELS, case.name, warm=True),
        goals=(Within(250, "ms"), AtLeast(3, "jax (jit)")),
        rounds=5,
    )
    for module in (rosenbrock, mlp_gradients)
    for case in module.CASES
)
