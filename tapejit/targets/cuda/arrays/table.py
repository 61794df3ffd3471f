"""Which operations on whole arrays have kernels, by the names of their records.

An emitter gets the `Emission`, the kernel and its Step, makes as many functions as it
needs and adds their launches. `ROOMS` says what memory of the arena an operation wants
for itself, in bytes: `kernel.rooms` then has it, by the same names.

Start reading at `EMITTERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from tapejit.loops.steps import Step
from tapejit.targets.cuda.arrays import extremum, placement, random, scan, scatter
from tapejit.targets.cuda.arrays.kernels import emit_shared

if TYPE_CHECKING:
    from tapejit.targets.cuda.kernel import SimtKernel
    from tapejit.targets.cuda.module import Emission

Emitter = Callable[["Emission", "SimtKernel", Step], None]

EMITTERS: Final[dict[str, Emitter]] = {
    "argmax": extremum.emit_argmax,
    "argmin": extremum.emit_argmin,
    "bits_to_normal": emit_shared,
    "cholesky": emit_shared,
    "cofactor": emit_shared,
    "concat": placement.emit_concat,
    "cumulative_prod": scan.emit_scan,
    "cumulative_sum": scan.emit_scan,
    "det": emit_shared,
    "gather_add": scatter.emit_gather_add,
    "keyed_bits": random.emit_random_bits,
    "linear_recurrence": scan.emit_scan,
    "logcumsumexp": scan.emit_scan,
    "place": placement.emit_place,
    "place_add": placement.emit_place_add,
    "random_advance": emit_shared,
    "random_bits": random.emit_random_bits,
    "random_fold_in": emit_shared,
    "random_split": emit_shared,
    "solve": emit_shared,
    "solve_triangular": emit_shared,
    "subtract_rows": scatter.emit_subtract_rows,
}
ROOMS: Final[dict[str, Callable[[Step], Mapping[str, int]]]] = {
    "argmax": extremum.rooms,
    "argmin": extremum.rooms,
    "cumulative_sum": scan.rooms,
    "gather_add": scatter.rooms,
    "linear_recurrence": scan.rooms,
    "logcumsumexp": scan.rooms,
    "subtract_rows": scatter.rooms,
}
# Those whose kernels may note a failure: a number or a matrix is not as it must be.
NOTING: Final = frozenset(
    {"cholesky", "cofactor", "det", "random_fold_in", "solve", "solve_triangular"}
)
