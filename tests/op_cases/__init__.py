"""The op table: for every registered op what the tests need to know of it.

`CASES` maps an op's name to its cases, `ROWS` lists every variant of every case. A new
op gets a case in the file of its family; `test_every_op_has_a_case` fails until then.

Start reading at `case.py`, then `elementwise.py`.
"""

from op_cases import (
    activations,
    decompositions,
    effects,
    elementwise,
    fourier,
    functions,
    random,
    resampling,
    sampling,
    scans,
    segments,
    selection,
    special,
    structural,
    tensors,
    windows,
)
from op_cases.case import OpCase, Row
from tapejit import ops

ops.load_all()  # the table is of every op, also of families loaded when asked for

FAMILIES = (
    structural,
    effects,
    functions,
    fourier,
    elementwise,
    tensors,
    random,
    activations,
    resampling,
    scans,
    segments,
    selection,
    decompositions,
    sampling,
    special,
    windows,
)
CASES: dict[str, tuple[OpCase, ...]] = {}
for _case in (case for family in FAMILIES for case in family.CASES):
    CASES[_case.op] = (*CASES.get(_case.op, ()), _case)

ROWS: tuple[Row, ...] = tuple(
    row for cases in CASES.values() for case in cases for row in case.rows
)
EAGER_ROWS: tuple[Row, ...] = tuple(row for row in ROWS if row.case.is_eager)

__all__ = ["CASES", "EAGER_ROWS", "ROWS", "OpCase", "Row"]
