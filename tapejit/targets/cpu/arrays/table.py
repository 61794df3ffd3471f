"""Which function emits which operation on whole arrays, with its tasks and its memory.

An emitter gets an `Addressing` in an empty function, the Node, its operands as they lie
in memory and a pointer to the result, which is stored row by row; `EMITTERS` has one
for each operation whose record says `on_arrays`, as a test says. That of `concat` is
`emit_concat`; it stands in the module of its family, as `tasks_of_concat` does.

A record says what an operation means; the code that a target has for it is the
target's. So the tables are here, made of the functions themselves: a name that is
mistyped is no operation's.

Start reading at `EMITTERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from tapejit.ir.node import Node
from tapejit.loops.steps import Step
from tapejit.targets.cpu.arrays import (
    extremum,
    ordering,
    placement,
    random,
    scan,
    scatter,
    small_matrices,
)
from tapejit.targets.cpu.arrays.loops import ArrayOperand
from tapejit.targets.cpu.llvm.ir import Value
from tapejit.targets.cpu.nest.addressing import Addressing

__all__ = ["EMITTERS", "ArrayOperand", "Emitter"]


Emitter = Callable[[Addressing, Node, Sequence[ArrayOperand], Value], None]

# By the name of the operation: a table of records would load families of them that a
# program has no use for.
EMITTERS: Final[dict[str, Emitter]] = {
    emit.__name__.removeprefix("emit_"): emit
    for emit in (
        extremum.emit_argmax,
        extremum.emit_argmin,
        ordering.emit_argsort,
        ordering.emit_put_along,
        ordering.emit_searchsorted,
        placement.emit_concat,
        placement.emit_place,
        placement.emit_place_add,
        random.emit_bits_to_normal,
        random.emit_random_advance,
        random.emit_random_bits,
        random.emit_random_fold_in,
        random.emit_random_split,
        scatter.emit_gather_add,
        scatter.emit_subtract_rows,
        small_matrices.emit_cholesky,
        small_matrices.emit_cofactor,
        small_matrices.emit_det,
        small_matrices.emit_solve,
        small_matrices.emit_solve_triangular,
    )
}
EMITTERS.update(dict.fromkeys(scan.RECURRENCES, scan.emit_scan))
EMITTERS["keyed_bits"] = random.emit_random_bits  # a key is a state, too

# Of those that have some: how many tasks share the work, and the bytes of rooms in the
# arena, by what they are for.
TASKS: Final[dict[str, Callable[[Step], int]]] = {
    tasks.__name__.removeprefix("tasks_of_"): tasks
    for tasks in (
        extremum.tasks_of_argmax,
        extremum.tasks_of_argmin,
        ordering.tasks_of_argsort,
        ordering.tasks_of_put_along,
        ordering.tasks_of_searchsorted,
        placement.tasks_of_concat,
        placement.tasks_of_place_add,
        scatter.tasks_of_subtract_rows,
    )
}
ROOMS: Final[dict[str, Callable[[Step], dict[str, int]]]] = {
    rooms.__name__.removeprefix("rooms_of_"): rooms
    for rooms in (scatter.rooms_of_gather_add, scatter.rooms_of_subtract_rows)
}
