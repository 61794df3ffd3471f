"""Shapes: reshaping, reordering, joining, padding.

Start reading at `reshape`.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, Never

import numpy as np

from tapejit import ops
from tapejit.base import tree
from tapejit.base.dims import Dim
from tapejit.base.errors import (
    ArgumentError,
    ArgumentTypeError,
    AxisError,
    ShapeError,
    TapejitError,
)
from tapejit.ops.shapes import normalize_axes, normalize_axis
from tapejit.tensor.dispatch import alias, apply, as_operand, operands, weak_scalar
from tapejit.tensor.foreign_keywords import (
    WRITTEN,
    one_by_one,
    with_hints,
    without_others,
)
from tapejit.tensor.stacking import stack_tensors
from tapejit.tensor.tensor import Tensor, TracedTensor

Axis = int | Sequence[int] | None
REPEATED = ("edge", "reflect", "symmetric", "wrap")  # modes of pad


def as_shape(shape: Any, name: str = "shape") -> tuple[Any, ...]:
    """A shape given as an int or a sequence, as a tuple of sizes."""
    if isinstance(shape, Dim):
        return (shape,)
    try:
        return (operator.index(shape),)
    except TypeError:
        pass
    try:
        sizes = tuple(
            size if isinstance(size, Dim) else operator.index(size) for size in shape
        )
    except TypeError:
        raise ArgumentTypeError(
            f"{name} takes an int or a sequence of ints, got {shape!r}"
        ) from None
    return sizes


def as_axis(axis: Any, ndim: int, name: str) -> int:
    """A non-negative axis; the error names the function."""
    try:
        return normalize_axis(operator.index(axis), ndim)
    except TapejitError as error:
        error.op = name
        raise


def stretch(x: Tensor, start: int, stop: int, axis: int) -> Tensor:
    """The elements from `start` up to `stop` along one axis.

    >>> import tapejit as tj
    >>> print(stretch(tj.arange(5), 1, 4, 0))
    [1 2 3]
    """
    if (start, stop) == (0, x.shape[axis]):
        return alias(x)
    starts = tuple(start if at == axis else 0 for at in range(x.ndim))
    stops = tuple(stop if at == axis else size for at, size in enumerate(x.shape))
    return apply(ops.slice, x, starts=starts, stops=stops, steps=(1,) * x.ndim)


def concrete(value: Any, name: str, what: str) -> Any:
    """A value that decides a shape, as an array; one that is traced has none yet."""
    x = as_operand(value, name)
    if isinstance(x, TracedTensor):
        return x._needed(f"{name}: {what}")
    return np.asarray(x._value)


def with_axes(x: Tensor, ndim: int) -> Tensor:
    """`x` with axes of size one behind its own, `ndim` in all."""
    return expand_dims(x, axis=tuple(range(x.ndim, ndim))) if x.ndim < ndim else x


@without_others
def reshape(x: Any, /, shape: Any, *others: Never, copy: bool | None = None) -> Tensor:
    """The same elements in another shape; one size may be -1.

    Tensors being immutable, `copy` makes no difference.

    >>> import tapejit as tj
    >>> tj.reshape(tj.arange(6), (2, -1)).shape
    (2, 3)
    """
    if others:
        raise one_by_one("reshape")
    x = as_operand(x, "reshape")
    sizes = as_shape(shape, "reshape")
    if any(size == -1 for size in sizes):
        sizes = _with_inferred(sizes, x)
    if any(not isinstance(size, Dim) and size < 0 for size in sizes):
        raise ShapeError(f"a size is negative in {sizes}", op="reshape")
    if sizes == x.shape:
        return alias(x)
    return apply(ops.reshape, x, shape=sizes)


def _with_inferred(sizes: tuple[Any, ...], x: Tensor) -> tuple[Any, ...]:
    if sizes.count(-1) > 1:
        raise ShapeError(f"only one size may be -1, got {sizes}", op="reshape")
    rest: Any = 1
    for size in sizes:
        rest = rest if size == -1 else rest * size
    total: Any = x.size
    if rest == 0 or total % rest != 0:
        raise ShapeError(
            f"cannot fit {x._type} into {sizes}",
            op="reshape",
            help=f"{total} elements do not divide by {rest}",
        )
    return tuple(total // rest if size == -1 else size for size in sizes)


@without_others
def permute_dims(x: Any, /, axes: Sequence[int], *others: Never) -> Tensor:
    """The axes in another order.

    >>> import tapejit as tj
    >>> tj.permute_dims(tj.zeros((2, 3, 4)), (2, 0, 1)).shape
    (4, 2, 3)
    """
    if others:
        raise one_by_one("permute_dims")
    x = as_operand(x, "permute_dims")
    order = tuple(normalize_axis(operator.index(at), x.ndim) for at in axes)
    if sorted(order) != list(range(x.ndim)):
        raise AxisError(
            f"{tuple(axes)} is not an order of the {x.ndim} axes of {x._type}",
            op="permute_dims",
            help="name every axis exactly once",
        )
    identity = order == tuple(range(x.ndim))
    return alias(x) if identity else apply(ops.permute_dims, x, axes=order)


def matrix_transpose(x: Any, /) -> Tensor:
    """The last two axes exchanged.

    >>> import tapejit as tj
    >>> tj.matrix_transpose(tj.zeros((5, 2, 3))).shape
    (5, 3, 2)
    """
    x = as_operand(x, "matrix_transpose")
    if x.ndim < 2:
        raise ShapeError(
            f"takes a tensor of rank 2 or more, got {x._type}", op="matrix_transpose"
        )
    order = (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2)
    return apply(ops.permute_dims, x, axes=order)


@without_others
def broadcast_to(x: Any, /, shape: Any, *others: Never) -> Tensor:
    """Repeated along axes of size one and new leading axes.

    >>> import tapejit as tj
    >>> tj.broadcast_to(tj.asarray([1.0, 2.0]), (3, 2)).shape
    (3, 2)
    """
    if others:
        raise one_by_one("broadcast_to")
    x = as_operand(x, "broadcast_to")
    sizes = as_shape(shape, "broadcast_to")
    if sizes == x.shape:
        return alias(x)
    return apply(ops.broadcast_to, x, shape=sizes)


@with_hints
def expand_dims(x: Any, /, axis: int | Sequence[int] = 0) -> Tensor:
    """With new axes of size one.

    >>> import tapejit as tj
    >>> tj.expand_dims(tj.zeros((2, 3)), axis=1).shape
    (2, 1, 3)
    """
    x = as_operand(x, "expand_dims")
    given = as_shape(axis, "expand_dims")
    new = normalize_axes(given, x.ndim + len(given))
    old = iter(x.shape)
    rank = x.ndim + len(given)
    return reshape(x, tuple(1 if at in new else next(old) for at in range(rank)))


@with_hints
def squeeze(x: Any, /, axis: Axis = None) -> Tensor:
    """Without axes of size one; those named, or all of them.

    >>> import tapejit as tj
    >>> tj.squeeze(tj.zeros((2, 1, 3)), 1).shape
    (2, 3)
    """
    x = as_operand(x, "squeeze")
    if axis is None:
        axes = tuple(at for at, size in enumerate(x.shape) if size == 1)
    else:
        axes = normalize_axes(axis, x.ndim)
    for at in axes:
        if x.shape[at] != 1:
            raise ShapeError(
                f"axis {at} of {x._type} has size {x.shape[at]}, not 1", op="squeeze"
            )
    return reshape(x, tuple(n for at, n in enumerate(x.shape) if at not in axes))


@with_hints
def concat(arrays: Sequence[Any], /, axis: int | None = 0) -> Tensor:
    """One after the other along an axis; `axis=None` flattens first.

    >>> import tapejit as tj
    >>> print(tj.concat([tj.asarray([1.0]), tj.asarray([2.0, 3.0])]))
    [1. 2. 3.]
    """
    parts = _nonempty(arrays, "concat", axis)
    tensors = operands([as_operand(x, "concat") for x in parts])
    if axis is None:
        tensors, axis = [reshape(x, (-1,)) for x in tensors], 0
    if tensors[0].ndim == 0:
        raise ShapeError(
            "tensors without axes cannot be joined", op="concat", help="use tj.stack"
        )
    return apply(ops.concat, *tensors, axis=normalize_axis(axis, tensors[0].ndim))


@with_hints
def stack(arrays: Sequence[Any], /, axis: int = 0) -> Tensor:
    """Side by side along a new axis.

    >>> import tapejit as tj
    >>> tj.stack([tj.zeros((3,)), tj.ones((3,))], axis=1).shape
    (3, 2)
    """
    return stack_tensors(operands(_nonempty(arrays, "stack", axis), "stack"), axis)


def _nonempty(arrays: Any, name: str, axis: Any) -> list[Any]:
    if getattr(axis, "ndim", 0):
        raise ArgumentTypeError(
            "takes a list of tensors, got them one by one",
            op=name,
            help=f"write {WRITTEN[name]}",
        )
    if isinstance(arrays, Tensor) and not arrays.ndim:
        raise ArgumentTypeError("takes a sequence of tensors", op=name)
    found = list(arrays)
    if not found:
        raise ArgumentError("needs at least one tensor", op=name)
    return found


def pad(
    x: Any, pad_width: Any, /, mode: str = "constant", *, constant_values: Any = 0
) -> Tensor:
    """With elements around it, as `numpy.pad`: a constant, or its own.

    `pad_width` is an int for every side, a pair (before, after) for every axis, or
    one pair per axis. So are `constant_values`; corners belong to the later axis. The
    modes "edge", "reflect", "symmetric" and "wrap" repeat elements of `x`.

    >>> import tapejit as tj
    >>> print(tj.pad(tj.asarray([1.0, 2.0]), (1, 2)))
    [0. 1. 2. 0. 0.]
    >>> print(tj.pad(tj.asarray([1.0, 2.0, 3.0]), 2, "reflect"))
    [3. 2. 1. 2. 3. 2. 1.]
    """
    x = as_operand(x, "pad")
    widths = _pad_widths(pad_width, x.ndim)
    if mode != "constant":
        return _pad_repeated(x, widths, mode)
    if isinstance(constant_values, (list, tuple, np.ndarray)) and np.ndim(
        constant_values
    ):
        return _pad_sides(x, widths, np.asarray(constant_values))
    if isinstance(constant_values, (bool, int, float, complex)):
        value = weak_scalar(constant_values, x.dtype)
    else:
        x, value = operands((x, constant_values), "pad")
    if value.ndim:
        raise ShapeError("takes one constant for all sides", op="pad")
    return apply(ops.pad, x, value, widths=widths)


def _pad_repeated(x: Tensor, widths: Any, mode: str) -> Tensor:
    """Padded axis by axis with elements of its own: NumPy says which."""
    if mode not in REPEATED:
        known = ", ".join(map(repr, ("constant", *REPEATED)))
        raise ArgumentError(f"mode is one of {known}, got {mode!r}", op="pad")
    for axis, (before, after) in enumerate(widths):
        if before == after == 0:
            continue
        size, pair = int(x.shape[axis]), (int(before), int(after))
        if not size or min(pair) < 0:
            raise ArgumentError(
                f"an axis of size {size} cannot be padded by {pair} in mode {mode!r}",
                op="pad",
            )
        places = np.pad(np.arange(size), pair, mode=mode)  # type: ignore[call-overload]
        x = x[(slice(None),) * axis + (places,)]
    return x


def _pad_sides(x: Tensor, widths: Any, constants: Any) -> Tensor:
    """Padded axis by axis, with a constant for each side."""
    try:
        sides = np.broadcast_to(constants, (x.ndim, 2)).tolist()
    except ValueError:
        raise ShapeError(
            f"takes a constant for each side, got {constants.tolist()}",
            op="pad",
            help="write one number, a pair (before, after), or one pair per axis",
        ) from None
    for axis, (pair, values) in enumerate(zip(widths, sides, strict=True)):
        for side, value in enumerate(values):
            width = [(0, 0)] * x.ndim
            width[axis] = (pair[0], 0) if side == 0 else (0, pair[1])
            x = apply(ops.pad, x, weak_scalar(value, x.dtype), widths=tuple(width))
    return x


def _pad_widths(given: Any, ndim: int) -> tuple[tuple[int, int], ...]:
    widths, structure = tree.flatten(given)
    if any(isinstance(n, Dim) for n in widths) and all(
        isinstance(n, int) for n in widths
    ):
        # Widths that vary: which of them goes where is found with their numbers.
        numbers = tree.unflatten(structure, range(len(widths)))
        return tuple((widths[a], widths[b]) for a, b in _pad_widths(numbers, ndim))
    pairs = np.asarray(given)
    if pairs.dtype.kind not in "iu" or pairs.ndim > 2:
        raise ArgumentTypeError(f"widths are integers, got {given!r}", op="pad")
    if pairs.ndim < 2:
        pairs = np.broadcast_to(pairs, (max(ndim, 1), 2))[:ndim]
    if len(pairs) == 1:
        pairs = np.repeat(pairs, ndim, axis=0)
    if len(pairs) != ndim or (ndim and pairs.shape[1] != 2):
        raise ArgumentError(
            f"{len(pairs)} pairs of widths for {ndim} axes",
            op="pad",
            help="give an int, one (before, after), or one pair per axis",
        )
    return tuple((int(before), int(after)) for before, after in pairs)


def flip(x: Any, /, axis: Axis = None) -> Tensor:
    """In reverse order along an axis, or along all.

    >>> import tapejit as tj
    >>> print(tj.flip(tj.asarray([1.0, 2.0, 3.0])))
    [3. 2. 1.]
    """
    x = as_operand(x, "flip")
    return apply(ops.flip, x, axes=normalize_axes(axis, x.ndim))


__all__ = [
    "broadcast_to",
    "concat",
    "expand_dims",
    "flip",
    "matrix_transpose",
    "pad",
    "permute_dims",
    "reshape",
    "squeeze",
    "stack",
]
