"""Functions whose first argument is a shape, called with sizes one by one.

`zeros(2, 3)` and `random.normal(2, 3)` would take the second size for something else,
silently in the second case, and `random.uniform(0, 1, (3,))`, NumPy's order, the shape
for a bound. They are errors that say how a shape is written.

Start reading at `shape_first`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from tapejit.base.errors import ArgumentTypeError
from tapejit.tensor.foreign_keywords import raise_hint

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def shape_first(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """`function`, which refuses positive integers alone: they look like sizes.

    >>> import tapejit as tj
    >>> try:
    ...     tj.random.normal(2, 3)
    ... except TypeError as error:
    ...     print(error.help)
    write normal(shape=(2, 3)), or normal(shape=2, mean=3)
    """
    names = list(inspect.signature(function).parameters)
    at = names.index("shape")
    end = at + 2  # of a call with more than a shape

    @wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        if len(args) >= end and all(type(x) is int and x > 0 for x in args[at:]):
            raise not_one_shape(function.__name__, list(args[at:]), names[at + 1])
        if len(args) > end and is_shape(args[end]):
            raise not_last(function.__name__, args[at : end + 1], names[at + 1 :])
        try:
            return function(*args, **kwargs)
        except TypeError:
            raise_hint(function, args, kwargs)
            raise

    return call


def not_one_shape(name: str, sizes: list[Any], second: str) -> ArgumentTypeError:
    """The error of a call with sizes one by one."""
    given = ", ".join(map(str, sizes))
    other = f", or {name}(shape={sizes[0]}, {second}={sizes[1]})"
    return ArgumentTypeError(
        f"{name}({given}) has two numbers where a shape comes first",
        help=f"write {name}(shape=({given}))" + (other if second != "dtype" else ""),
    )


def is_shape(given: Any) -> bool:
    """Whether a tuple has whole numbers alone, which are sizes to the eye."""
    return type(given) is tuple and all(type(x) is int and x >= 0 for x in given)


def not_last(
    name: str, given: Sequence[Any], names: Sequence[str]
) -> ArgumentTypeError:
    """The error of a call with the shape where NumPy has it."""
    first, second, shape = given
    return ArgumentTypeError(
        f"{name}({first!r}, {second!r}, {shape}) has its shape last, as in NumPy",
        help=f"write {name}({shape}, {first!r}, {second!r}), or {names[1]}={shape}",
    )
