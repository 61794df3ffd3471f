"""Which operations on whole arrays have kernels, by the names of their records.

An emitter gets the `Emission`, the kernel and its Step, makes as many functions as it
needs and adds their launches. `rooms_of` says what memory of the arena an operation
wants for itself, in bytes: `kernel.rooms` then has it, by the same names.

Start reading at `EMITTERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from tapejit.loops.steps import Step
from tapejit.ops.small_matrices import is_small_matrix
from tapejit.targets.cpu.arrays import table as cpu
from tapejit.targets.cpu.arrays.scan import RECURRENCES
from tapejit.targets.cuda.arrays import extremum, placement, random, scan, scatter
from tapejit.targets.cuda.arrays.kernels import emit_shared

if TYPE_CHECKING:
    from tapejit.targets.cuda.kernel import SimtKernel
    from tapejit.targets.cuda.module import Emission

Emitter = Callable[["Emission", "SimtKernel", Step], None]

# By the names of operations, as on a CPU: what is not said here has one pass.
EMITTERS: Final[dict[str, Emitter]] = {
    **dict.fromkeys(cpu.EMITTERS, emit_shared),
    **dict.fromkeys(RECURRENCES, scan.emit_scan),
    **{
        emit.__name__.removeprefix("emit_"): emit
        for emit in (
            extremum.emit_argmax,
            extremum.emit_argmin,
            placement.emit_concat,
            placement.emit_place,
            placement.emit_place_add,
            random.emit_random_bits,
            scatter.emit_gather_add,
            scatter.emit_subtract_rows,
        )
    },
}
EMITTERS["keyed_bits"] = random.emit_random_bits  # a key is a state, too

# By emitter, for those that want some.
ROOMS: Final[dict[Emitter, Callable[[Step], Mapping[str, int]]]] = {
    extremum.emit_argmax: extremum.rooms,
    extremum.emit_argmin: extremum.rooms,
    scan.emit_scan: scan.rooms,
    scatter.emit_gather_add: scatter.rooms,
    scatter.emit_subtract_rows: scatter.rooms,
}


def rooms_of(step: Step) -> Mapping[str, int]:
    """The rooms of an operation, in bytes, by what they are for."""
    rooms = ROOMS.get(EMITTERS[step.name])
    return {} if rooms is None else rooms(step)


def may_note_failure(step: Step) -> bool:
    """Whether a number or a matrix may be such that the step has failed."""
    op = step.op
    assert op is not None
    return op.on_arrays is is_small_matrix or op.name == "random_fold_in"
