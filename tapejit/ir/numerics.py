"""Finding the operation that gave NaN or infinity.

`check_result` looks at what an operation has computed. `run_checked` runs a program
step by step and looks at every step; native code only says that something is wrong
somewhere, and is then run again this way, on the same values.

What only moves elements (a slice, a gather) is not asked: what it moves was computed
somewhere, or came from outside.

Start reading at `check_result`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from tapejit.base.errors import NonFiniteError
from tapejit.base.numpy_adapter import restore, silence
from tapejit.base.types import is_differentiable
from tapejit.ir.interpret import Instruction, Program
from tapejit.ir.node import Node, Op


def check_result(op: Op, inputs: Sequence[Any], out: Any) -> None:
    """Raise NonFiniteError if an operation has computed NaN or infinity.

    >>> from tapejit import ops
    >>> x = np.float32([1, 0])
    >>> with np.errstate(divide="ignore"):
    ...     y = np.log(x)
    >>> try:
    ...     check_result(ops.log, [x], y)
    ... except NonFiniteError as error:
    ...     print(error.message)
    the result is -inf at index (1,), of 0.0; 1 of 2 elements is not finite
    """
    if op.moves is not None or op.is_effect:
        return
    for part in out if isinstance(out, (tuple, list)) else (out,):
        dtype = getattr(part, "dtype", None)
        if dtype is None or not is_differentiable(dtype):
            continue
        token = silence()
        try:
            finite = np.isfinite(part)
        finally:
            restore(token)
        if not finite.all():
            raise explained(op, inputs, np.asarray(part), np.asarray(finite))


def explained(
    op: Op, inputs: Sequence[Any], out: np.ndarray[Any, Any], finite: Any
) -> NonFiniteError:
    """The error that shows the first place, and the operands there."""
    index = tuple(map(int, np.unravel_index(np.argmin(finite), finite.shape)))
    fact = f"the result is {out[index]}"
    if index:
        fact += f" at index {index}"
    values: tuple[Any, ...] = ()
    if op.scalar is not None:  # elementwise: it follows from these numbers
        values = tuple(np.broadcast_to(x, out.shape)[index] for x in inputs)
        fact += f", of {' and '.join(map(str, values))}" if values else ""
    if index:
        count = finite.size - np.count_nonzero(finite)
        verb = "is" if count == 1 else "are"
        fact += f"; {count} of {finite.size} elements {verb} not finite"
    floats = [x for x in inputs if is_differentiable(np.asarray(x).dtype)]
    help = None
    if not all(np.isfinite(x).all() for x in floats):
        help = "an operand was not finite before: it comes from outside, or was moved"
    error = NonFiniteError(fact, op=op.name, help=help)
    error.index, error.values = index, (out[index], *values)
    return error


def run_checked(program: Program, arguments: list[Any]) -> list[Any]:
    """What `program.run` does, with a look at the result of every step."""
    steps = program._bound(arguments) if program.is_symbolic else program.steps
    token = silence()
    try:
        return program._run_steps(arguments, checked_steps(program.nodes, steps))
    finally:
        restore(token)


def checked_steps(
    nodes: Sequence[Node], steps: Sequence[Instruction]
) -> list[Instruction]:
    """Steps that look at their results."""
    return [
        (partial(_perform, function, node), reads, writes, last)
        for node, (function, reads, writes, last) in zip(nodes, steps, strict=True)
    ]


def _perform(function: Any, node: Node, *arrays: Any) -> Any:
    out = function(*arrays)
    check_result(node.op, arrays, out)
    return out
