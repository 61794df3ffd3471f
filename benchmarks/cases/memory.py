"""How much memory a compiled program takes on top of its process with its inputs.

Each measurement is a process of its own: it makes the inputs, compiles and runs another
program so that compilers are loaded, and notes its size; the growth is from there to
the largest size during five calls, the program's own compilation included, from a warm
cache. Results count: the gradient of `softmax_xent` alone is 16 MB.
"""

from __future__ import annotations

from benchmarks.case import Case, Leads
from benchmarks.cases import black_scholes, layernorm_gelu, softmax_xent
from benchmarks.gradients import has_compiler
from benchmarks.processes import process_builders

LABELS = ("tapejit", "jax (jit)", *(["torch (compile)"] if has_compiler() else []))

CASES = tuple(
    Case(
        name=f"memory/{case.name}",
        description=f"growth of a process: {case.description}",
        unit="MB",
        make_inputs=case.make_inputs,
        reference=case.reference,
        builders=process_builders(LABELS, case.name, warm=True, memory=True),
        goals=(Leads(1.0),),
        rounds=1,
    )
    for module in (softmax_xent, layernorm_gelu, black_scholes)
    for case in module.CASES
)
