"""Keywords of other libraries: `tj.sum(x, dim=0)` says that it is called `axis`.

Python's own TypeError names the keyword and nothing more. `with_hints` adds what
tapejit calls it, for functions that are called so in other libraries.

Start reading at `with_hints`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import Final, ParamSpec, TypeVar

from tapejit.errors import ArgumentTypeError

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

KEYWORDS: Final[dict[str, str]] = {
    "a": "the first argument, by position",
    "array": "the first argument, by position",
    "axes": "axis",
    "dim": "axis",
    "dimension": "axis",
    "dims": "axis",
    "input": "the first argument, by position",
    "input_tensor": "the first argument, by position",
    "keep_dims": "keepdims",
    "keepdim": "keepdims",
    "reduction_indices": "axis",
    "tensor": "the first argument, by position",
    "tensors": "the first argument, by position",
    "values": "the first argument, by position",
    "x": "the first argument, by position",
}
OPTIMIZER_KEYWORDS: Final[dict[str, str]] = {
    "betas": "beta_1 and beta_2",
    "decay": "learning_rate, given a schedule of tj.optimizers.schedules",
    "eps": "epsilon",
    "lr": "learning_rate",
    "params": "apply_gradients(zip(gradients, variables)), which takes the variables",
}


def hint_for(
    name: str, given: Iterable[str], known: Iterable[str], table: Mapping[str, str]
) -> ArgumentTypeError | None:
    """The error of a call with a keyword that another library has."""
    for keyword in given:
        if keyword in table and keyword not in known:
            return ArgumentTypeError(
                f"{name}() got an unexpected keyword argument {keyword!r}",
                help=f"tapejit calls it {table[keyword]}",
            )
    return None


def with_hints(
    function: Callable[Arguments, Result],
    table: Mapping[str, str] = KEYWORDS,
    name: str | None = None,
) -> Callable[Arguments, Result]:
    """`function`, whose TypeErrors know the keywords of other libraries.

    >>> import tapejit as tj
    >>> try:
    ...     tj.sum(tj.ones((2, 3)), dim=0)
    ... except TypeError as error:
    ...     print(error.help)
    tapejit calls it axis
    """

    @wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        try:
            return function(*args, **kwargs)
        except TypeError:
            raise_hint(function, kwargs, table, name)
            raise

    return call


def raise_hint(
    function: Callable[..., object],
    given: Iterable[str],
    table: Mapping[str, str] = KEYWORDS,
    name: str | None = None,
) -> None:
    """Raise an error with a hint if a keyword is another library's."""
    parameters = inspect.signature(function).parameters.values()
    known = {x.name for x in parameters if x.kind is not x.POSITIONAL_ONLY}
    error = hint_for(name or function.__name__, given, known, table)
    if error is not None:
        raise error from None
