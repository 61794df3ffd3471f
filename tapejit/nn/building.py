"""Making variables at the first call, wherever that call happens.

A layer that learns its sizes from its first input makes its variables in the middle of
a computation: under tapes, in a traced function, or while a function is mapped. None of
these concerns the initial values. Tapes do not record them, and a mapped function has
one set for all rows. A traced function does see them, in its own order among the other
random draws, so that the numbers are those of an eager run.

Start reading at `make_variable`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from threading import RLock
from typing import Any, TypeVar

from tapejit.base.errors import ShapeError
from tapejit.base.types import DType
from tapejit.tape.variable import Variable
from tapejit.tensor.dispatch import TAPES, TRACE, as_operand

R = TypeVar("R")

# Two threads that call a new layer at once build it once.
building = RLock()


def _renew_lock() -> None:
    """In a forked child: no thread is left that could release a lock held before."""
    global building
    building = RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


def make_variable(
    initializer: Callable[..., Any],
    shape: tuple[int, ...],
    dtype: DType,
    name: str,
    *,
    trainable: bool = True,
) -> Variable:
    """A variable with the values that an initializer gives for its shape."""

    def make() -> Variable:
        value = as_operand(initializer(shape, dtype=dtype), name)
        if value.shape != shape:
            raise ShapeError(
                f"the initializer of {name} was asked for the shape {shape}, and gave "
                f"{value._type}"
            )
        return Variable(value, trainable, dtype=dtype, name=name)

    return beside(make)


def beside(make: Callable[[], R]) -> R:
    """What `make` makes, unseen by tapes and by functions that are being mapped."""
    trace = TRACE.get()
    if trace is not None and trace.state is not None:
        made: R = trace.state.unrecorded(make)
        return made
    trace_token = TRACE.set(None)
    tapes_token = TAPES.set(())
    try:
        return make()
    finally:
        TAPES.reset(tapes_token)
        TRACE.reset(trace_token)
