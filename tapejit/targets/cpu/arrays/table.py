"""Operations on whole arrays: functions of their own among the kernels.

An emitter gets an `Addressing` in an empty function, the Node, its operands as they lie
in memory and a pointer to the result, which is stored row by row; `EMITTERS` has one
for each operation that `native_ops.WHOLE` lists. `loops` has the loops they are
made of; `whole_index`, `whole_matrix`, `whole_place`, `whole_rows`, `whole_scan` and
`whole_random` are the families.

Start reading at `EMITTERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from tapejit.ir.node import Node
from tapejit.targets.cpu.arrays import (
    extremum,
    placement,
    random,
    scan,
    scatter,
    small_matrices,
)
from tapejit.targets.cpu.arrays.loops import ArrayOperand
from tapejit.targets.cpu.nest.addressing import Addressing

__all__ = ["EMITTERS", "ArrayOperand", "Emitter"]


Emitter = Callable[[Addressing, Node, Sequence[ArrayOperand], Any], None]

EMITTERS: Final[dict[str, Emitter]] = {
    "argmax": extremum.emit_argmax,
    "argmin": extremum.emit_argmin,
    "bits_to_normal": random.emit_bits_to_normal,
    "cholesky": small_matrices.emit_cholesky,
    "cofactor": small_matrices.emit_cofactor,
    "concat": placement.emit_concat,
    "cumulative_prod": scan.emit_cumulative_prod,
    "cumulative_sum": scan.emit_cumulative_sum,
    "det": small_matrices.emit_det,
    "gather_add": scatter.emit_gather_add,
    "keyed_bits": random.emit_random_bits,
    "linear_recurrence": scan.emit_linear_recurrence,
    "logcumsumexp": scan.emit_logcumsumexp,
    "place": placement.emit_place,
    "place_add": placement.emit_place_add,
    "random_advance": random.emit_random_advance,
    "random_bits": random.emit_random_bits,
    "random_fold_in": random.emit_random_fold_in,
    "random_split": random.emit_random_split,
    "solve": small_matrices.emit_solve,
    "solve_triangular": small_matrices.emit_solve_triangular,
    "subtract_rows": scatter.emit_subtract_rows,
}
