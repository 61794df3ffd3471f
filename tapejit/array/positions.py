"""Places of an array: one number in the flattened order, or one for each axis.

Start reading at `unravel_index`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from tapejit import ops
from tapejit.array.elementwise import clip, remainder
from tapejit.array.manipulation import as_shape
from tapejit.base.errors import ArgumentError, DTypeError
from tapejit.tensor.dispatch import apply, as_operand, cast, weak_scalar
from tapejit.tensor.naming import named
from tapejit.tensor.tensor import Tensor

__all__ = ["ravel_multi_index", "unravel_index"]

INT64: Final = np.dtype("int64")
MODES: Final = ("raise", "wrap", "clip")


@named
def unravel_index(indices: Any, shape: Any, order: str = "C") -> tuple[Tensor, ...]:
    """Positions in a flattened array as positions along each of its axes.

    `order` is "C", the last axis first to change, or "F", the first.

    >>> import tapejit as tj
    >>> x = tj.asarray([[1.0, 5.0, 2.0], [0.0, 3.0, 4.0]])
    >>> tj.unravel_index(tj.argmax(x), x.shape)
    (<tj.Tensor i64[] 0>, <tj.Tensor i64[] 1>)
    """
    name = "unravel_index"
    sizes = _sizes(shape, order)
    count: Any = 1
    for size in sizes:
        count = count * size
    flat = _checked(_integers(indices), count, name)
    found = []
    for size in sizes if order == "F" else reversed(sizes):
        along = weak_scalar(max(size, 1), INT64)
        found.append(apply(ops.remainder, flat, along))
        flat = apply(ops.floor_divide, flat, along)
    return tuple(found if order == "F" else reversed(found))


@named
def ravel_multi_index(
    multi_index: Sequence[Any], dims: Any, mode: Any = "raise", order: str = "C"
) -> Tensor:
    """Positions along each axis as positions in the flattened array.

    What is outside an axis raises, or is counted round with mode "wrap", or held at the
    ends with mode "clip"; a tuple has a mode for each axis.

    >>> import tapejit as tj
    >>> print(tj.ravel_multi_index(([0, 1], [2, 0]), (2, 3)))
    [2 3]
    """
    name = "ravel_multi_index"
    sizes = _sizes(dims, order)
    modes = (mode,) * len(sizes) if isinstance(mode, str) else tuple(mode)
    if len(multi_index) != len(sizes) or len(modes) != len(sizes):
        raise ArgumentError(
            f"{len(multi_index)} indices and {len(modes)} modes for {len(sizes)} axes",
            help="multi_index is a sequence with one tensor for each axis",
        )
    axes = list(zip(multi_index, sizes, modes, strict=True))
    flat: Tensor | None = None
    for given, size, how in reversed(axes) if order == "F" else axes:
        index = _integers(given)
        if how == "raise":
            index = _checked(index, size, name)
        elif how == "wrap":
            index = remainder(index, weak_scalar(size, INT64))
        elif how == "clip":
            index = clip(index, 0, size - 1)
        else:
            raise ArgumentError(f"mode is one of {', '.join(MODES)}, got {how!r}")
        flat = index if flat is None else flat * weak_scalar(size, INT64) + index
    if flat is None:
        raise ArgumentError("takes at least one axis")
    return flat


def _sizes(shape: Any, order: Any) -> tuple[Any, ...]:
    if order not in ("C", "F"):
        raise ArgumentError(f"order is 'C' or 'F', got {order!r}")
    return tuple(as_shape(shape, "shape"))


def _integers(given: Any) -> Tensor:
    found = as_operand(given)
    if found.dtype.kind not in "iu":
        raise DTypeError(
            f"indices are integers, got {found._type}",
            help="convert them with .astype(tj.int64)",
        )
    return cast(found, INT64)


def _checked(index: Tensor, count: Any, name: str) -> Tensor:
    return apply(
        ops.checked_categories,
        index,
        count=count,
        label="an index",
        name=name,
        place=0,
        help="",
    )
