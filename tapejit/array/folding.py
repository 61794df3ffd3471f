"""Folding: a function applied to the elements of an axis one after the other.

The loop is Python's: eagerly each step runs when its turn has come, and in a traced
function every step is part of the graph. What the function returns has the type of what
it got, so that steps are alike.

Start reading at `foldl`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tapejit.array.indexing import getitem
from tapejit.base import tree
from tapejit.base.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError
from tapejit.base.types import weak_dtype
from tapejit.tensor.dispatch import as_operand, is_weak, python_scalar, weak_scalar
from tapejit.tensor.tensor import Tensor

__all__ = ["foldl"]

NAME = "foldl"


def foldl(fn: Callable[[Any, Any], Any], elems: Any, initializer: Any = None) -> Any:
    """`fn(accumulator, element)` for one element of the first axis after the other.

    `elems` is a tensor, or a structure of tensors that are as long as each other. The
    accumulator begins as `initializer`, or as the first element if that is None. It may
    be a structure too. Its types stay what they are from step to step; a Python number
    takes the dtype that `fn` gives it.

    In a traced function the steps are written out, so it is compiled for one number of
    them.

    >>> import tapejit as tj
    >>> print(tj.foldl(lambda total, x: 0.5 * total + x, tj.asarray([4.0, 2.0, 1.0])))
    3.0
    >>> def step(state, x):
    ...     return {"sum": state["sum"] + x, "largest": tj.maximum(state["largest"], x)}
    >>> start = {"sum": 0.0, "largest": -tj.inf}
    >>> found = tj.foldl(step, tj.asarray([1.0, 5.0, 3.0]), start)
    >>> print(found["sum"], found["largest"])
    9.0 5.0
    """
    if not callable(fn):
        raise ArgumentTypeError(
            f"takes a function first, got {type(fn).__name__}",
            op=NAME,
            help="write tj.foldl(fn, elems, initializer)",
        )
    leaves, structure = tree.flatten(elems)
    tensors = [as_operand(x, NAME) for x in leaves]
    count = _common_length(tensors)

    def element(at: int) -> Any:
        return tree.unflatten(structure, [getitem(x, at) for x in tensors])

    if initializer is None:
        if count == 0:
            raise ArgumentError(
                "there is no first element to begin with",
                op=NAME,
                help="give an initializer, which is the result for no elements",
            )
        accumulator, first = element(0), 1
    else:
        kept = tree.map(lambda x: x if is_weak(x) else as_operand(x, NAME), initializer)
        accumulator, first = kept, 0
    for at in range(first, count):
        accumulator = _agreeing(accumulator, fn(accumulator, element(at)), at)
    return tree.map(lambda x: as_operand(x, NAME), accumulator)


def _common_length(tensors: list[Tensor]) -> int:
    """How many elements there are, as a number."""
    if not tensors:
        raise ArgumentError("there are no tensors in elems", op=NAME)
    for x in tensors:
        if not x.ndim:
            raise ShapeError(
                f"goes along the first axis, and {x._type} has none", op=NAME
            )
        if x.shape[0] != tensors[0].shape[0]:
            raise ShapeError(
                f"the tensors of elems are {tensors[0]._type} and {x._type}: their "
                "first axes differ",
                op=NAME,
            )
    return int(tensors[0].shape[0])


def _agreeing(before: Any, after: Any, step: int) -> Any:
    """What `fn` has returned, if it has the structure and the types of what it got."""
    try:
        return tree.map_with_path(
            lambda path, old, new: _same_type(path, old, new, step), before, after
        )
    except tree.StructureError as error:
        raise ArgumentError(
            f"in step {step} fn returns another structure than it got: {error}", op=NAME
        ) from None


def _same_type(path: Any, old: Any, new: Any, step: int) -> Any:
    """One leaf of the accumulator; a Python number takes the dtype of what it meets."""
    if not isinstance(old, Tensor):
        if is_weak(new):
            return new
        found = as_operand(new, NAME)
        scalar = python_scalar(old)
        is_same = not found.ndim and weak_dtype(scalar, found.dtype) == found.dtype
        kind: Any = f"the number {scalar!r}"
    else:
        if is_weak(new) and not old.ndim:
            scalar = python_scalar(new)
            if weak_dtype(scalar, old.dtype) == old.dtype:
                return weak_scalar(new, old.dtype)
        found = as_operand(new, NAME)
        kind = old._type
        is_same = found.dtype == old.dtype and found.shape == old.shape
    if is_same:
        return found
    place = f" at {path}" if path else ""
    error = ShapeError if found.shape != getattr(old, "shape", ()) else DTypeError
    raise error(
        f"the accumulator{place} is {kind}, and in step {step} fn makes it "
        f"{found._type}",
        op=NAME,
        help="give an initializer of the type that fn returns",
    )
