"""Operations on whole arrays: functions of their own among the kernels.

An emitter gets a `Cursor` in an empty function, the Node, its operands as they lie in
memory and a pointer to the result, which is stored row by row; `EMITTERS` has one for
each operation that `candidates.WHOLE` lists. `whole_array` has the loops they are made
of; `whole_index`, `whole_matrix`, `whole_place`, `whole_rows`, `whole_scan` and
`whole_random` are the families.

Start reading at `EMITTERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from tapejit.codegen import (
    whole_index,
    whole_matrix,
    whole_place,
    whole_random,
    whole_rows,
    whole_scan,
)
from tapejit.codegen.cursor import Cursor
from tapejit.codegen.whole_array import Whole
from tapejit.ir.node import Node

__all__ = ["EMITTERS", "Emitter", "Whole"]


Emitter = Callable[[Cursor, Node, Sequence[Whole], Any], None]

EMITTERS: Final[dict[str, Emitter]] = {
    "argmax": whole_index.emit_argmax,
    "argmin": whole_index.emit_argmin,
    "bits_to_normal": whole_random.emit_bits_to_normal,
    "cholesky": whole_matrix.emit_cholesky,
    "cofactor": whole_matrix.emit_cofactor,
    "concat": whole_place.emit_concat,
    "cumulative_prod": whole_scan.emit_cumulative_prod,
    "cumulative_sum": whole_scan.emit_cumulative_sum,
    "det": whole_matrix.emit_det,
    "gather_add": whole_rows.emit_gather_add,
    "keyed_bits": whole_random.emit_random_bits,
    "linear_recurrence": whole_scan.emit_linear_recurrence,
    "logcumsumexp": whole_scan.emit_logcumsumexp,
    "place": whole_place.emit_place,
    "place_add": whole_place.emit_place_add,
    "random_advance": whole_random.emit_random_advance,
    "random_bits": whole_random.emit_random_bits,
    "random_fold_in": whole_random.emit_random_fold_in,
    "random_split": whole_random.emit_random_split,
    "solve": whole_matrix.emit_solve,
    "solve_triangular": whole_matrix.emit_solve_triangular,
    "subtract_rows": whole_rows.emit_subtract_rows,
}
