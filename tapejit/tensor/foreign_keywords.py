"""Calls that do not fit: `tj.sum(x, dim=0)` says that it is called `axis`.

Python's own TypeError names the keyword and nothing more. `with_hints` adds what
tapejit calls it, if other libraries have it or if it is nearly one of ours, and how a
call is written that has arguments one by one where a list or a shape is taken.

Start reading at `with_hints`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, Final, ParamSpec, TypeVar

from tapejit.base.errors import ArgumentTypeError

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

KEYWORDS: Final[dict[str, str]] = {
    "a": "the first argument, by position",
    "a_max": "max",
    "a_min": "min",
    "array": "the first argument, by position",
    "axes": "axis",
    "dim": "axis",
    "dimension": "axis",
    "dims": "axis",
    "batch_size": "size",
    "std": "stddev",
    "steps": "num",
    "ddof": "correction",
    "depth": "num_classes, by position",
    "input": "the first argument, by position",
    "input_tensor": "the first argument, by position",
    "in_dims": "in_axes",
    "keep_dims": "keepdims",
    "keepdim": "keepdims",
    "high": "maxval",
    "loc": "mean",
    "low": "minval",
    "scale": "stddev",
    "reduction_indices": "axis",
    "size": "shape",
    "tensor": "the first argument, by position",
    "tensors": "the first argument, by position",
    "values": "the first argument, by position",
    "x": "the first argument, by position",
}
OPTIMIZER_KEYWORDS: Final[dict[str, str]] = {
    "betas": "beta_1 and beta_2",
    "decay": "learning_rate, given a schedule of tj.optimizers.schedules",
    "backoff_factor": "nothing: the scale is halved",
    "enabled": "nothing: use the inner optimizer by itself",
    "eps": "epsilon",
    "growth_factor": "nothing: the scale is doubled",
    "growth_interval": "dynamic_growth_steps",
    "init_scale": "initial_scale",
    "inner_optimizer": "inner",
    "lr": "learning_rate",
    "params": "apply_gradients(zip(gradients, variables)), which takes the variables",
}


LAYER_KEYWORDS: Final[dict[str, str]] = {
    "bias": "use_bias",
    "dim": "axis",
    "embedding_dim": "size",
    "eps": "epsilon",
    "num_embeddings": "count",
    "out_features": "units",
    "p": "rate",
}
# How a call is written that was given parts one by one.
WRITTEN: Final[dict[str, str]] = {
    "broadcast_to": "tj.broadcast_to(x, (2, 3))",
    "concat": "tj.concat([x, y])",
    "dstack": "tj.dstack([x, y])",
    "hstack": "tj.hstack([x, y])",
    "permute_dims": "tj.permute_dims(x, (1, 0))",
    "reshape": "tj.reshape(x, (3, 2))",
    "stack": "tj.stack([x, y])",
    "tile": "tj.tile(x, (2, 3))",
    "transpose": "tj.transpose(x, (1, 0))",
    "vstack": "tj.vstack([x, y])",
    "where": "tj.where(condition, x, y), or tj.nonzero(condition) for positions",
}


def misfit(
    function: Callable[..., object],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    table: Mapping[str, str] = KEYWORDS,
) -> ArgumentTypeError | None:
    """The error of a call that does not fit, with a hint; None if there is none."""
    signature = inspect.signature(function)
    parameters = signature.parameters.values()
    reason = ""
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        reason = str(error)
    else:
        if not any(x.kind is x.VAR_KEYWORD for x in parameters):
            return None  # the error is the body's
    is_class = function.__name__ == "__init__"
    name = type(args[0]).__name__ if is_class else function.__name__
    known = [x.name for x in parameters if x.kind is not x.POSITIONAL_ONLY]
    unknown = [keyword for keyword in kwargs if keyword not in known]
    for keyword in unknown:
        meant = _meant(keyword, known if reason else (), table)
        if meant is not None:
            text = f"{name}() got an unexpected keyword argument {keyword!r}"
            return ArgumentTypeError(text, help=meant)
    if reason and not unknown and name in WRITTEN:
        return ArgumentTypeError(f"{name}(): {reason}", help=f"write {WRITTEN[name]}")
    return None


def _meant(keyword: str, known: Sequence[str], table: Mapping[str, str]) -> str | None:
    """What a keyword that is not there probably means.

    Where nothing is known, keywords are passed on, and only the table says it.
    """
    from difflib import get_close_matches

    word = table.get(keyword, "")
    if word and (word in known or not known or not word.isidentifier()):
        return f"tapejit calls it {word}"
    near = get_close_matches(keyword, known, 1)
    near += [x for x in known if x in keyword.split("_") or keyword in x.split("_")]
    return f"did you mean {near[0]}=?" if near else None


def with_hints(
    function: Callable[Arguments, Result], table: Mapping[str, str] = KEYWORDS
) -> Callable[Arguments, Result]:
    """`function`, whose TypeErrors say how a call that does not fit is written.

    >>> import tapejit as tj
    >>> try:
    ...     tj.sum(tj.ones((2, 3)), dim=0)
    ... except TypeError as error:
    ...     print(error.help)
    tapejit calls it axis
    >>> try:
    ...     tj.full((2,), fill=0.5)
    ... except TypeError as error:
    ...     print(error.help)
    did you mean fill_value=?
    """

    @wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        try:
            return function(*args, **kwargs)
        except TypeError:
            raise_hint(function, args, kwargs, table)
            raise

    return call


def one_by_one(name: str) -> ArgumentTypeError:
    """The error of a call with sizes or axes that are not in one tuple.

    Functions that are called often take them as `*others` and refuse them: this costs
    nothing, where a wrapper costs 0.1 µs.
    """
    return ArgumentTypeError(
        f"{name}() takes one tuple, got its parts one by one",
        help=f"write {WRITTEN[name]}",
    )


def without_others(
    function: Callable[Arguments, Result],
) -> Callable[Arguments, Result]:
    """`function` itself; its signature does not show `*others`, which it refuses."""
    shown = inspect.signature(function)
    kept = [x for x in shown.parameters.values() if x.kind is not x.VAR_POSITIONAL]
    function.__dict__["__signature__"] = shown.replace(parameters=kept)
    return function


def raise_hint(
    function: Callable[..., object],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    table: Mapping[str, str] = KEYWORDS,
) -> None:
    """Raise an error with a hint if the call does not fit and there is one."""
    error = misfit(function, args, kwargs, table)
    if error is not None:
        raise error from None
