"""How much memory `attention_long` takes, measured as the cases of `memory` are.

One matrix of attention weights for each of 8 heads is 134 MB. A program that never
stores them needs a few MB for queries, keys, values and their cotangents.
"""

from __future__ import annotations

from benchmarks.case import Case, Leads
from benchmarks.cases import attention_long
from benchmarks.cases.memory import LABELS
from benchmarks.processes import process_builders

CASES = tuple(
    Case(
        name="attention_memory",
        description=f"growth of a process: {case.description}",
        unit="MB",
        make_inputs=case.make_inputs,
        reference=case.reference,
        builders=process_builders(LABELS, case.name, warm=True, memory=True),
        goals=(Leads(2.0),),
        rounds=1,
    )
    for case in attention_long.CASES
)
