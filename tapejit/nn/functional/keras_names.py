"""Keras's names for what losses and metrics compare: `y_pred` and `y_true`.

Positions differ: Keras has the truth first, tapejit has predictions first, as its
losses of logits do. By name, both can be given as Keras calls them.

Start reading at `takes_keras_names`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Final, ParamSpec, TypeVar

from tapejit.base.errors import ArgumentTypeError

P = ParamSpec("P")
T = TypeVar("T")

NAMES: Final = ("y_pred", "y_true")


def takes_keras_names(compare: Callable[P, T]) -> Callable[P, T]:
    """The function, whose two operands may also be given as `y_pred=` and `y_true=`.

    >>> import tapejit as tj
    >>> print(tj.nn.squared_error(y_true=[1.0, 4.0], y_pred=[1.0, 2.0]))
    2.0
    """
    parameters = list(inspect.signature(compare).parameters)
    first = 1 if parameters[0] == "self" else 0
    ours = dict(zip(NAMES, parameters[first:], strict=False))

    @functools.wraps(compare)
    def renaming(*args: P.args, **kwargs: P.kwargs) -> T:
        if "y_pred" in kwargs or "y_true" in kwargs:
            _rename(kwargs, ours, len(args) - first, compare.__name__)
        return compare(*args, **kwargs)

    return renaming


def _rename(
    kwargs: dict[str, Any], ours: dict[str, str], given: int, function: str
) -> None:
    for at, (keras, name) in enumerate(ours.items()):
        if keras not in kwargs:
            continue
        if at < given or name in kwargs:
            raise ArgumentTypeError(
                f"{name} is given twice, the second time as {keras}=",
                op=function,
                help=f"the order is {function}({', '.join(ours.values())}), unlike in "
                "Keras; give both by name to be sure",
            )
        kwargs[name] = kwargs.pop(keras)
