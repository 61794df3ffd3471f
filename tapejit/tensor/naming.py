"""Errors named after the function that a user called.

A function composed of others would report their names: `median` fails in a sort. The
decorator `named` puts the name the user knows in its place. What a function does while
it is traced may fail later, when its graph runs: `labelled` notes the name for then.

Start reading at `named`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar

from tapejit.base.errors import TapejitError
from tapejit.tensor.dispatch import TRACE
from tapejit.tensor.foreign_keywords import raise_hint

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def named(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """`function`, with its own name on every error that it raises.

    >>> import tapejit as tj
    >>> try:
    ...     tj.median(tj.asarray([1.0, 2.0]), axis=3)
    ... except tj.AxisError as error:
    ...     print(error.op, error.message, sep=": ")
    median: axis 3 does not exist in a tensor of rank 1
    """

    @wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        try:
            if TRACE.get() is None:
                return function(*args, **kwargs)
            with labelled(function.__name__):
                return function(*args, **kwargs)
        except TapejitError as error:
            error.op = function.__name__
            raise
        except TypeError:
            raise_hint(function, args, kwargs)
            raise

    return call


@contextmanager
def labelled(name: str) -> Iterator[None]:
    """Operations that are traced inside fail under this name; the outermost counts.

    >>> import tapejit as tj
    >>> put = tj.function(lambda x, i: x.at[i].set(0.0))
    >>> try:
    ...     put(tj.ones(3), tj.asarray([7]))
    ... except IndexError as error:
    ...     print(error.op)
    at.set
    """
    trace = TRACE.get()
    if trace is None or trace.label is not None:
        yield
        return
    trace.label = name
    try:
        yield
    finally:
        trace.label = None
