"""Shape arithmetic shared by the type rules and the derivative rules.

Sizes are ints or symbolic `Dim`s. A symbolic size stands for at least two, so it
never broadcasts; sizes 0 and 1 are always ints.

Start reading at `broadcast_shapes`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tapejit.base.dims import Dim, Shape, Size
from tapejit.base.errors import ArgumentTypeError, AxisError, DTypeError, ShapeError
from tapejit.base.types import DType, TensorType

Axes = tuple[int, ...]


def broadcast_shapes(*types: TensorType) -> Shape:
    """NumPy's broadcasting, aligned from the right.

    >>> broadcast_shapes(TensorType.parse("f32[64,1]"), TensorType.parse("f32[8]"))
    (64, 8)
    """
    first, *rest = [x.shape for x in types]
    if all(shape == first for shape in rest):
        return first
    ndim = max(x.ndim for x in types)
    result: list[Size] = [1] * ndim
    for x in types:
        for axis, size in enumerate(x.shape, ndim - x.ndim):
            if size == 1 or size == result[axis]:
                continue
            if result[axis] != 1:
                raise ShapeError(
                    "cannot broadcast " + " with ".join(map(str, types)),
                    help=align_hint([x.shape for x in types]),
                )
            result[axis] = size
    return tuple(result)


def align_hint(shapes: Sequence[Shape]) -> str:
    """What to write when shapes do not align."""
    hint = "shapes are aligned from the right."
    if len(shapes) == 2:
        short, long = sorted(shapes, key=len)
        if len(short) == 1 and len(long) == 2 and short[0] == long[0]:
            return f"{hint} For one value per row, write b[:, None]."
        if len(short) == len(long) == 2 and short == long[::-1]:
            return f"{hint} One of them is transposed: write x.T."
    return f"{hint} Sizes must be equal, or one of them 1."


def same_dtype(*types: TensorType) -> DType:
    """The dtype all operands share; records take no mixed operands."""
    first, *rest = types
    for x in rest:
        if x.dtype != first.dtype:
            raise DTypeError(
                "operands differ in dtype: " + ", ".join(map(str, types)),
                help="cast one of them with .astype(...)",
            )
    return first.dtype


def tensor(x: Any) -> TensorType:
    """`x` as the type of one tensor."""
    if not isinstance(x, TensorType):
        raise ArgumentTypeError(f"takes tensors, got {x}")
    return x


def normalize_axis(axis: int, ndim: int) -> int:
    """A non-negative axis.

    >>> normalize_axis(-1, 3)
    2
    """
    if not -ndim <= axis < ndim:
        raise AxisError(
            f"axis {axis} does not exist in a tensor of rank {ndim}",
            help=f"axes go from {-ndim} to {ndim - 1}" if ndim else "a scalar has none",
        )
    return axis % ndim


def normalize_axes(axis: int | Sequence[int] | None, ndim: int) -> Axes:
    """Axes as a sorted tuple; None means all of them.

    >>> normalize_axes((-1, 0), 3), normalize_axes(None, 2)
    ((0, 2), (0, 1))
    """
    if axis is None:
        return tuple(range(ndim))
    given = tuple(axis) if isinstance(axis, Iterable) else (axis,)
    axes = tuple(sorted(normalize_axis(int(at), ndim) for at in given))
    if len(set(axes)) != len(axes):
        raise AxisError(f"an axis is given twice in {given}")
    return axes


def keep_axes(shape: Shape, axes: Axes) -> Shape:
    """The shape with each of `axes` of size one."""
    return tuple(1 if at in axes else size for at, size in enumerate(shape))


def drop_axes(shape: Shape, axes: Axes) -> Shape:
    """The shape without `axes`."""
    return tuple(size for at, size in enumerate(shape) if at not in axes)


def is_known(*sizes: Size) -> bool:
    """Whether no size is symbolic."""
    return not any(isinstance(size, Dim) for size in sizes)


def fits_shape(shape: Sequence[Any], wanted: Sequence[Any]) -> bool:
    """Whether a shape is the wanted one; a wanted size that is None may be any."""
    return len(shape) == len(wanted) and all(
        want is None or want == size for want, size in zip(wanted, shape, strict=True)
    )
