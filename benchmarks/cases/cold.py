"""A whole process, from `python` to the first value and gradient, with empty caches.

Interpreter, imports, inputs, tracing, compiling and one call. NumPy, which runs the
reference, shows what Python and NumPy alone take. `cold/mlp_gradients` multiplies
matrices and uses threads.
"""

from __future__ import annotations

from benchmarks.case import AtLeast, Case
from benchmarks.cases import mlp_gradients, rosenbrock
from benchmarks.processes import process_builders

LABELS = ("tapejit", "numpy", "jax (jit)")

CASES = tuple(
    Case(
        name=f"cold/{case.name}",
        description=f"a process to the first answer, empty caches: {case.description}",
        unit="ms",
        make_inputs=case.make_inputs,
        reference=case.reference,
        builders=process_builders(LABELS, case.name),
        goals=(AtLeast(1, "jax (jit)"),),
        rounds=5,
    )
    for module in (rosenbrock, mlp_gradients)
    for case in module.CASES
)
