"""Functions of scalars that Numba compiles, as elementwise records.

Numba compiles the function for doubles. Its text is an expression of lanes
(`ops.scalar_functions`) where that is possible: compiled functions then fuse it with
its neighbours, for every target. Eager code runs a loop that Numba compiles, and so do
compiled functions where the text has what lanes have not: loops, memory, integers.

`tracing.numba_operation` gives such a record its derivative. A ufunc of Numba's that
meets a tensor has none.

Start reading at `scalar_operation`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from tapejit.base.errors import (
    ArgumentError,
    ArgumentTypeError,
    NotDifferentiableError,
)
from tapejit.ir.node import Node, Op, Rule
from tapejit.ops.custom_rules import failing
from tapejit.ops.scalar_functions import LaneProgram, NotStraight, scalar_record
from tapejit.tensor.dispatch import apply, operands
from tapejit.tensor.tensor import Tensor


def scalar_operation(
    function: Any, formulas: Sequence[tuple[Rule | None, str]] | None = None
) -> Op:
    """The record of what `numba.njit` or `numba.vectorize` has made.

    `formulas` are those of the derivative, one for each argument with a digest of it.
    """
    from tapejit.targets.cpu.machine.numba_host import ScalarError, scalar_function

    python = scalar_code(function)
    name, arity = python.__name__, len(names_of(python))
    if formulas is None:
        formulas = [(without_derivative(name), "missing")] * arity
    try:
        made = scalar_function(python, arity)
    except ScalarError as error:
        raise ArgumentError(
            f"Numba does not compile {name} for floats: {error}",
            help="it takes floats and returns one, without Python's objects",
        ) from error
    if made.needs_python:
        raise refused(name, "it allocates memory or calls Python")
    if made.raises:
        raise refused(name, "it can raise an exception")
    try:
        program = LaneProgram(made.text, made.name)
    except NotStraight:
        program = None  # its loop of Numba's is all there is

    def loop(*arrays: Any) -> Any:
        shape = np.broadcast_shapes(*[x.shape for x in arrays])
        out = np.empty(shape)
        rows = [np.broadcast_to(x, shape).reshape(-1) for x in arrays]
        made.loop(out.reshape(-1), *rows)
        return out[()]

    return scalar_record(
        name,
        program,
        made.plain_text,
        arity,
        loop,
        [rule for rule, _ in formulas],
        [digest for _, digest in formulas],
    )


def refused(name: str, what: str) -> ArgumentError:
    """The error of a function that is no operation on numbers."""
    return ArgumentError(
        f"{name} cannot be an operation: {what}",
        help="compute with floats alone, and give NaN where there is no result; what "
        "it calls needs njit(error_model='numpy') to divide, and x ** -2 is 1 / x**2",
    )


def is_from_numba(function: Any) -> bool:
    """Whether `numba.njit` or `numba.vectorize` has made it."""
    from tapejit.targets.cpu.machine.numba_host import python_function

    return python_function(function) is not None


def scalar_code(function: Any) -> Any:
    """The Python function that Numba compiles."""
    from tapejit.targets.cpu.machine.numba_host import python_function

    found = python_function(function)
    if found is None:
        raise ArgumentTypeError(
            f"numba_function takes a function made by numba.njit, got "
            f"{type(function).__name__}",
            help="decorate it with @numba.njit, below @tj.numba_function",
        )
    return found


def names_of(function: Any) -> list[str]:
    """The parameters of a function, all of them positional."""
    parameters = inspect.signature(function).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if not parameters or any(x.kind not in kinds for x in parameters):
        raise ArgumentTypeError(
            f"{function.__name__}{inspect.signature(function)} takes no fixed number "
            "of scalars"
        )
    return [x.name for x in parameters]


def without_derivative(name: str) -> Rule:
    """The formula of a function that brings no derivative: an error, when it runs."""

    def formula(t: Node, *nodes: Node) -> Node:
        error = NotDifferentiableError(
            f"{name} is a function of Numba's without a derivative",
            help="write @tj.numba_function(derivative=...); or tj.stop_gradient(x), if "
            "there is to be none",
        )
        (node,) = failing(error, [t.type])
        return node

    return formula


# Ufuncs

UFUNCS: WeakKeyDictionary[Any, Op] = WeakKeyDictionary()


def ufunc_operation(ufunc: Any) -> Callable[..., Tensor]:
    """What a ufunc of Numba's does to tensors."""
    op = UFUNCS.get(ufunc)
    if op is None:
        op = UFUNCS.setdefault(ufunc, scalar_operation(ufunc))
    return lambda *inputs: apply(op, *operands(inputs, ufunc.__name__))
