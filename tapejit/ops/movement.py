"""Movement: operations that rearrange, repeat, join or cut, and compute nothing.

Every one is linear and most are the transpose of another one, so a derivative rule is
the other record called with the shape to return to: `slice` and `place`, `concat` and
`slice`, `broadcast_to` and `sum`, `permute_dims` and the inverse permutation.

Attributes arrive normalised: shapes and axes are tuples of non-negative numbers, one
start, stop and step per axis; a range whose stop is at or below its start is empty.
Sizes, starts and stops may be symbolic. A type rule then refuses what is wrong for
every size; what is wrong for the actual size only is found by `eval`, which sees
numbers.

Where NumPy gives a view `eval` does too: tensors are immutable.

Start reading at `reshape`, then `slice` and `place`.
"""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any

import numpy as np

from tapejit.base.dims import Shape, Size, dim_max
from tapejit.base.errors import ArgumentError, AxisError, OutOfRangeError, ShapeError
from tapejit.base.types import DType, TensorType, Type
from tapejit.ir.node import ALL, OPS, Movement, Node, always, literal, record
from tapejit.ir.structural import batch_rows, batch_stack
from tapejit.ops.comparison import where
from tapejit.ops.elementwise import Cotangents, lift, unbroadcast
from tapejit.ops.shapes import Axes, align_hint, drop_axes, same_dtype, tensor

Widths = tuple[tuple[Size, Size], ...]
Tangents = Sequence[Node | None]


def largest(a: Size, b: Size) -> Size:
    """The larger of two sizes.

    >>> from tapejit.base.dims import Dim
    >>> largest(2, 3), largest(Dim("n"), 1), largest(Dim("n") - 5, 0)
    (3, Dim('n'), Dim('max(n - 5, 0)'))
    """
    if isinstance(a, int) and isinstance(b, int):
        return max(a, b)
    return dim_max(a, b)


def exceeds(a: Size, b: Size) -> bool:
    """Whether a > b whatever the unknown sizes are.

    >>> from tapejit.base.dims import Dim
    >>> exceeds(3, 2), exceeds(Dim("n"), 1), exceeds(Dim("n"), 2)
    (True, True, False)
    """
    if isinstance(a, int) and isinstance(b, int):
        return a > b
    return dim_max(a, b + 1) == a


def zeros(dtype: DType, shape: Shape) -> Node:
    """A constant that is zero everywhere and takes no memory.

    >>> zeros(np.dtype("float32"), (2, 3)).type
    f32[2,3]
    """
    zero = literal(0, dtype)
    return broadcast_to(zero, shape=shape) if shape else zero


def check_shape(shape: Shape) -> None:
    """Refuse a shape with a negative size."""
    if any(exceeds(0, size) for size in shape):
        raise ShapeError(f"a size cannot be negative, got shape {print_shape(shape)}")


def check_count(x: TensorType, **attrs: Sequence[Any]) -> None:
    """Refuse attributes that do not have one entry per axis."""
    for name, entries in attrs.items():
        if len(entries) != x.ndim:
            raise ArgumentError(
                f"{name} needs one entry per axis of {x}, got {len(entries)}"
            )


def print_shape(shape: Shape) -> str:
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


# reshape


def reshape_type(x: Type, *, shape: Shape) -> TensorType:
    x = tensor(x)
    check_shape(shape)
    target = x.with_shape(shape)
    if x.size != target.size:
        raise ShapeError(
            f"cannot reshape {x} to {print_shape(shape)}: "
            f"{x.size} elements do not fill {target.size}",
            help="the product of the sizes must stay the same",
        )
    return target


def reshape_eval(x: Any, *, shape: tuple[int, ...]) -> Any:
    return x.reshape(shape)


def reshape_vjp(g: Node, out: Node, x: Node, *, shape: Shape) -> Cotangents:
    """Back to the operand's shape."""
    return (reshape(g, shape=x.shape),)


reshape = record(
    "reshape",
    type_rule=reshape_type,
    eval=reshape_eval,
    vjp=reshape_vjp,
    batch=batch_stack("reshape", shape=None),
    linear=ALL,
    moves=Movement.VIEW,
)


# permute_dims


def permute_dims_type(x: Type, *, axes: Axes) -> TensorType:
    x = tensor(x)
    if sorted(axes) != list(range(x.ndim)):
        raise AxisError(
            f"axes {axes} are no permutation of the axes of {x}",
            help=f"give each of 0 to {x.ndim - 1} once" if x.ndim else "give ()",
        )
    return x.with_shape(tuple(x.shape[at] for at in axes))


def permute_dims_eval(x: Any, *, axes: Axes) -> Any:
    return x.transpose(axes)


def inverse_axes(axes: Axes) -> Axes:
    """The permutation that undoes `axes`.

    >>> inverse_axes((1, 2, 0))
    (2, 0, 1)
    """
    return tuple(axes.index(at) for at in range(len(axes)))


def permute_dims_vjp(g: Node, out: Node, x: Node, *, axes: Axes) -> Cotangents:
    """The inverse permutation."""
    return (permute_dims(g, axes=inverse_axes(axes)),)


permute_dims = record(
    "permute_dims",
    type_rule=permute_dims_type,
    eval=permute_dims_eval,
    vjp=permute_dims_vjp,
    batch=batch_stack("permute_dims", axes=0),
    linear=ALL,
    moves=Movement.VIEW,
)


# broadcast_to


def broadcast_to_type(x: Type, *, shape: Shape) -> TensorType:
    x = tensor(x)
    check_shape(shape)
    extra = len(shape) - x.ndim
    fits = extra >= 0 and all(
        size in (1, wanted) for size, wanted in zip(x.shape, shape[extra:], strict=True)
    )
    if not fits:
        raise ShapeError(
            f"cannot broadcast {x} to {print_shape(shape)}",
            help=align_hint([x.shape, shape]),
        )
    return x.with_shape(shape)


def broadcast_to_eval(x: Any, *, shape: tuple[int, ...]) -> Any:
    return np.broadcast_to(x, shape)


def broadcast_to_vjp(g: Node, out: Node, x: Node, *, shape: Shape) -> Cotangents:
    """An element receives the cotangents of all its copies."""
    return (unbroadcast(g, x.shape),)


def broadcast_to_batch(
    size: Size, inputs: Sequence[Node], batched: Sequence[bool], *, shape: Shape
) -> Node:
    return broadcast_to(lift(inputs[0], len(shape)), shape=(size, *shape))


broadcast_to = record(
    "broadcast_to",
    type_rule=broadcast_to_type,
    eval=broadcast_to_eval,
    vjp=broadcast_to_vjp,
    batch=broadcast_to_batch,
    linear=ALL,
    moves=Movement.VIEW,
)


# flip


def flip_type(x: Type, *, axes: Axes) -> TensorType:
    x = tensor(x)
    if list(axes) != sorted(set(axes) & set(range(x.ndim))):
        raise AxisError(
            f"axes {axes} are not among those of {x}, each once and in order"
        )
    return x


FORWARD, BACKWARD = builtins.slice(None), builtins.slice(None, None, -1)


def flip_eval(x: Any, *, axes: Axes) -> Any:
    return x[tuple([BACKWARD if at in axes else FORWARD for at in range(x.ndim)])]


def flip_vjp(g: Node, out: Node, x: Node, *, axes: Axes) -> Cotangents:
    """Reversed once more."""
    return (flip(g, axes=axes),)


flip = record(
    "flip",
    type_rule=flip_type,
    eval=flip_eval,
    vjp=flip_vjp,
    batch=batch_stack("flip"),
    linear=ALL,
    moves=Movement.VIEW,
)


# slice and place


def check_steps(steps: Sequence[int]) -> None:
    if not all(isinstance(step, int) and step >= 1 for step in steps):
        raise ArgumentError(
            f"steps must be positive integers, got {steps}",
            help="elements in reverse order are a slice followed by flip",
        )


def check_inside(starts: Shape, stops: Shape, shape: Shape) -> None:
    """Refuse a range that leaves its axis, for sizes or for actual numbers."""
    for axis, (start, stop, size) in enumerate(zip(starts, stops, shape, strict=True)):
        if exceeds(0, start) or exceeds(stop, size):
            raise OutOfRangeError(
                f"the range from {start} up to {stop} is out of range "
                f"for axis {axis} of size {size}"
            )


def numpy_ranges(
    starts: Axes, stops: Axes, steps: Axes, shape: Axes
) -> tuple[builtins.slice, ...]:
    """The ranges for NumPy, which would clip one that leaves its axis.

    To NumPy a negative stop would not mean an empty range, so it becomes zero.
    """
    ranges = []
    for start, stop, step, size in zip(starts, stops, steps, shape, strict=True):
        if start < 0 or stop > size:
            check_inside(starts, stops, shape)
        ranges.append(builtins.slice(start, stop if stop > 0 else 0, step))
    return tuple(ranges)


def slice_type(x: Type, *, starts: Shape, stops: Shape, steps: Axes) -> TensorType:
    x = tensor(x)
    check_count(x, starts=starts, stops=stops, steps=steps)
    check_steps(steps)
    check_inside(starts, stops, x.shape)
    ranges = zip(starts, stops, steps, strict=True)
    return x.with_shape(
        tuple(
            largest((stop - start + step - 1) // step, 0)
            for start, stop, step in ranges
        )
    )


def slice_eval(
    x: Any, *, starts: tuple[int, ...], stops: tuple[int, ...], steps: Axes
) -> Any:
    return x[numpy_ranges(starts, stops, steps, x.shape)]


def slice_vjp(
    g: Node, out: Node, x: Node, *, starts: Shape, stops: Shape, steps: Axes
) -> Cotangents:
    """What was not taken receives zero."""
    return (place(g, shape=x.shape, starts=starts, steps=steps),)


slice = record(
    "slice",
    type_rule=slice_type,
    eval=slice_eval,
    vjp=slice_vjp,
    batch=batch_stack("slice", starts=0, stops=None, steps=1),
    linear=ALL,
    moves=Movement.VIEW,
)


def placed_stops(shape: Shape, starts: Shape, steps: Axes) -> tuple[Any, ...]:
    """Where the range ends that has as many elements as `shape`.

    Of no elements, it ends at or before its start, perhaps below zero: clipped, the
    number of elements could not be read off a symbolic stop any more.

    >>> placed_stops((3, 0), (1, 4), (2, 1))
    (6, 4)
    """
    ranges = zip(shape, starts, steps, strict=True)
    return tuple(start + (size - 1) * step + 1 for size, start, step in ranges)


def place_type(x: Type, *, shape: Shape, starts: Shape, steps: Axes) -> TensorType:
    x = tensor(x)
    check_shape(shape)
    check_count(x, shape=shape, starts=starts, steps=steps)
    check_steps(steps)
    check_inside(starts, placed_stops(x.shape, starts, steps), shape)
    return x.with_shape(shape)


def place_eval(
    x: Any, *, shape: tuple[int, ...], starts: tuple[int, ...], steps: Axes
) -> Any:
    stops = placed_stops(x.shape, starts, steps)
    out = np.zeros(shape, x.dtype)
    out[numpy_ranges(starts, stops, steps, shape)] = x
    return out


def place_vjp(
    g: Node, out: Node, x: Node, *, shape: Shape, starts: Shape, steps: Axes
) -> Cotangents:
    """The slice that `x` was put into."""
    stops = placed_stops(x.shape, starts, steps)
    return (slice(g, starts=starts, stops=stops, steps=steps),)


place = record(
    "place",
    type_rule=place_type,
    eval=place_eval,
    vjp=place_vjp,
    batch=batch_stack("place", shape=None, starts=0, steps=1),
    linear=ALL,
    moves=Movement.PIECES,
    on_arrays=always,
)


# concat


def concat_type(*xs: Type, axis: int) -> TensorType:
    if not xs:
        raise ArgumentError("needs at least one tensor")
    first, *rest = types = [tensor(x) for x in xs]
    dtype = same_dtype(*types)
    if not 0 <= axis < first.ndim:
        raise AxisError(
            f"axis {axis} does not exist in {first}",
            help="to join along a new axis, write stack" if not first.ndim else None,
        )
    total = first.shape[axis]
    others = drop_axes(first.shape, (axis,))
    for x in rest:
        if x.ndim != first.ndim or drop_axes(x.shape, (axis,)) != others:
            raise ShapeError(
                f"cannot join {first} and {x} along axis {axis}",
                help="all sizes but the one along the axis must be equal",
            )
        total = total + x.shape[axis]
    return TensorType(dtype, (*first.shape[:axis], total, *first.shape[axis + 1 :]))


def concat_eval(*xs: Any, axis: int) -> Any:
    return np.concatenate(xs, axis)


def concat_vjp(g: Node, out: Node, *xs: Node, axis: int) -> Cotangents:
    """Each operand receives its own stretch."""
    pieces = []
    start: Size = 0
    for x in xs:
        stop = start + x.shape[axis]
        starts = tuple(start if at == axis else 0 for at in range(g.ndim))
        stops = tuple(stop if at == axis else s for at, s in enumerate(g.shape))
        pieces.append(slice(g, starts=starts, stops=stops, steps=(1,) * g.ndim))
        start = stop
    return tuple(pieces)


def concat_jvp(tangents: Tangents, out: Node, *xs: Node, axis: int) -> Node:
    """Tangents joined as the operands are, zero where there is none."""
    pairs = zip(tangents, xs, strict=True)
    full = (zeros(x.dtype, x.shape) if t is None else t for t, x in pairs)
    return concat(*full, axis=axis)


concat = record(
    "concat",
    type_rule=concat_type,
    eval=concat_eval,
    vjp=concat_vjp,
    jvp=concat_jvp,
    batch=batch_rows("concat"),
    linear=ALL,
    moves=Movement.PIECES,
    on_arrays=always,
)


# pad


def check_widths(widths: Widths) -> None:
    """Refuse a negative width, for sizes or for actual numbers."""
    if any(exceeds(0, width) for pair in widths for width in pair):
        raise ArgumentError(
            f"widths cannot be negative, got {widths}", help="to cut, write a slice"
        )


def pad_type(x: Type, value: Type, *, widths: Widths) -> TensorType:
    x, value = tensor(x), tensor(value)
    same_dtype(x, value)
    if value.shape:
        raise ShapeError(f"the value to pad with must be a scalar, got {value}")
    check_count(x, widths=widths)
    check_widths(widths)
    pairs = zip(x.shape, widths, strict=True)
    return x.with_shape(tuple(low + size + high for size, (low, high) in pairs))


def pad_eval(x: Any, value: Any, *, widths: tuple[tuple[int, int], ...]) -> Any:
    check_widths(widths)
    pairs = list(zip(x.shape, widths, strict=True))
    out = np.full([low + size + high for size, (low, high) in pairs], value, x.dtype)
    out[tuple(builtins.slice(low, low + size) for size, (low, _) in pairs)] = x
    return out


def is_padding(shape: Shape, widths: Widths) -> Node:
    """True on what `pad` adds around a tensor of this shape."""
    bool_ = np.dtype(bool)
    return pad(zeros(bool_, shape), literal(True, bool_), widths=widths)


def pad_vjp(g: Node, out: Node, x: Node, value: Node, *, widths: Widths) -> Cotangents:
    """The inner part goes to `x`, the sum of the padding to the value.

    The padding is summed on its own: the sum of all less the sum of the inner part
    would lose its digits to cancellation, and be NaN for an infinite cotangent.
    """
    starts = tuple(low for low, _ in widths)
    stops = tuple(low + size for size, (low, _) in zip(x.shape, widths, strict=True))
    inner = slice(g, starts=starts, stops=stops, steps=(1,) * x.ndim)
    padding = where(is_padding(x.shape, widths), g, 0)
    axes = tuple(range(g.ndim))
    return inner, OPS["sum"](padding, axes=axes, keepdims=False)


def pad_jvp(
    tangents: Tangents, out: Node, x: Node, value: Node, *, widths: Widths
) -> Node:
    """The value's tangent around the operand's."""
    pairs = zip(tangents, (x, value), strict=True)
    inner, around = (zeros(x.dtype, x.shape) if t is None else t for t, x in pairs)
    return pad(inner, around, widths=widths)


def pad_batch(
    size: Size, inputs: Sequence[Node], batched: Sequence[bool], *, widths: Widths
) -> Node:
    """With one value per row, the padding is chosen by a mask that all rows share."""
    x, value = inputs
    x_is_batched, value_is_batched = batched
    rows = ((0, 0),) if x_is_batched else ()
    if not value_is_batched:
        return pad(x, value, widths=(*rows, *widths))
    shape = x.shape[1:] if x_is_batched else x.shape
    padded = pad(x, literal(0, x.dtype), widths=(*rows, *widths))
    return where(is_padding(shape, widths), lift(value, len(shape)), padded)


pad = record(
    "pad",
    type_rule=pad_type,
    eval=pad_eval,
    vjp=pad_vjp,
    jvp=pad_jvp,
    batch=pad_batch,
    linear=ALL,
    moves=Movement.PIECES,
)
