"""Errors named after the function that a user called.

A function composed of others would report their names: `median` fails in a sort. The
decorator `named` puts the name the user knows in its place.

Start reading at `named`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from tapejit.errors import TapejitError

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
            return function(*args, **kwargs)
        except TapejitError as error:
            error.op = function.__name__
            raise

    return call
