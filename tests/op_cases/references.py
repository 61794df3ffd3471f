"""What operations mean, said once more: in Python's numbers or in wide precision.

A reference must not share its way of computing with the op it judges. Integers are
computed with Python's, which do not wrap until told to; comparisons and choices element
by element in Python; arithmetic of small floats in double and rounded once, which is
exact for + - × ÷ and square roots; transcendentals in extended precision, which gives
eleven bits more than double; sums and products with the magnitudes of their terms, by
which they are judged.

Start reading at `elementwise`, then `wide`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from agreement import Truth

from tapejit.base.types import is_complex, is_float, is_integer

Array = np.ndarray[Any, Any]
Reference = Callable[..., Any]


def objects(x: Array) -> Array:
    """The same elements as Python's numbers."""
    if is_float(x.dtype):
        x = x.astype(np.float64)
    return x.astype(object)


def wrap(value: int, dtype: Any) -> int:
    """A Python integer as an integer dtype keeps it: its low bits."""
    bits = 8 * dtype.itemsize
    value &= (1 << bits) - 1
    is_negative = dtype.kind == "i" and value >> (bits - 1)
    return value - (1 << bits) if is_negative else value


def elementwise(function: Callable[..., Any], result: Any = None) -> Reference:
    """A function of Python's numbers, applied to broadcast elements.

    `result` is the dtype it gives; the last operand's by default, in which integers
    wrap.
    """

    def reference(*arrays: Array) -> Array:
        dtype = arrays[-1].dtype if result is None else np.dtype(result)
        shape = np.broadcast_shapes(*[x.shape for x in arrays])
        out = np.empty(shape, dtype)
        operands = [np.broadcast_to(objects(x), shape) for x in arrays]
        for at in np.ndindex(shape):
            value = function(*[x[at] for x in operands])
            out[at] = wrap(value, dtype) if is_integer(dtype) else value
        return out

    return reference


def arithmetic(ufunc: Callable[..., Any], exact: Callable[..., int]) -> Reference:
    """`exact` on Python's integers; on floats the ufunc, in double if that is wider."""
    on_integers = elementwise(exact)

    def reference(*arrays: Array) -> Any:
        dtype = arrays[0].dtype
        if is_integer(dtype):
            return on_integers(*arrays)
        if is_float(dtype) and dtype.itemsize < 8:
            return ufunc(*[x.astype(np.float64) for x in arrays])
        return ufunc(*arrays)

    return reference


def floor_divide(x: Array, y: Array) -> Any:
    """NumPy's; of infinities the quotient itself is rounded down."""
    is_infinite = np.isinf(x) | np.isinf(y)
    return np.where(is_infinite, np.floor(x / y), np.floor_divide(x, y))


def wide(function: Callable[..., Any]) -> Reference:
    """`function` in extended precision."""

    def reference(*arrays: Array) -> Any:
        return function(*[widened(x) for x in arrays])

    return reference


def widened(x: Array) -> Array:
    if is_complex(x.dtype):
        return x.astype(np.clongdouble)
    return x.astype(np.longdouble)


def wide_sigmoid(x: Array) -> Array:
    small = np.exp(-np.abs(x))
    return np.where(x < 0, small, 1) / (1 + small)


def wide_erf(x: Array) -> Array:
    """2/√π exp(-x²) Σ 2ⁿ x²ⁿ⁺¹ / (1·3···(2n+1)): all terms have the sign of x.

    From 7 on it is 1 to more digits than there are; a small x is the series' first
    term, which needs no sum.
    """
    x = np.asarray(x)
    scale = 2 / np.sqrt(4 * np.arctan(np.longdouble(1)))
    ends = np.where(np.isnan(x), x, np.copysign(np.longdouble(1), x))
    out = np.where(np.abs(x) < 1e-10, x * scale, ends)
    is_between = (np.abs(x) >= 1e-10) & (np.abs(x) < 7)
    inside = x[is_between]
    square = inside * inside
    term = total = inside
    for n in range(1, 160):
        term = term * 2 * square / (2 * n + 1)
        total = total + term
    out[is_between] = total * np.exp(-square) * scale
    return out


def joined(real: Array, imag: Array) -> Array:
    """The complex number of these parts; real + 1j * imag would lose signs of zero."""
    out = np.empty(np.shape(real), np.clongdouble)
    out.real, out.imag = real, imag
    return out


def wide_log1p(x: Array) -> Array:
    """log(1 + x); NumPy's complex one loses the digits of a small x."""
    if not is_complex(x.dtype):
        return np.log1p(x)
    excess = np.log1p(x.real * (2 + x.real) + x.imag * x.imag) / 2
    # Near -1 the excess cancels, and there 1 + x is exact.
    real = np.where(np.abs(x) < 0.5, excess, np.log(np.hypot(1 + x.real, x.imag)))
    return joined(real, np.arctan2(x.imag, 1 + x.real))


def wide_expm1(x: Array) -> Array:
    """exp(x) - 1; for complex numbers from the half angle."""
    if not is_complex(x.dtype):
        return np.expm1(x)
    half = np.sin(x.imag / 2)
    real = np.expm1(x.real) * np.cos(x.imag) - 2 * half * half
    return joined(real, np.exp(x.real) * np.sin(x.imag))


def pick(shape: Sequence[int], dtype: Any, element: Callable[..., Any]) -> Array:
    """An array whose element at `at` is `element(at)`."""
    out = np.empty(tuple(shape), dtype)
    for at in np.ndindex(*shape):
        out[at] = element(at)
    return out


# Movement


def reshape(x: Array, *, shape: tuple[int, ...]) -> Array:
    elements = iter([x[at] for at in np.ndindex(*x.shape)])
    return pick(shape, x.dtype, lambda at: next(elements))


def permute_dims(x: Array, *, axes: tuple[int, ...]) -> Array:
    def element(at: tuple[int, ...]) -> Any:
        return x[tuple(at[axes.index(axis)] for axis in range(x.ndim))]

    return pick([x.shape[axis] for axis in axes], x.dtype, element)


def broadcast_to(x: Array, *, shape: tuple[int, ...]) -> Array:
    def element(at: tuple[int, ...]) -> Any:
        inner = at[len(shape) - x.ndim :]
        sizes = zip(inner, x.shape, strict=True)
        return x[tuple(0 if size == 1 else i for i, size in sizes)]

    return pick(shape, x.dtype, element)


def flip(x: Array, *, axes: tuple[int, ...]) -> Array:
    def element(at: tuple[int, ...]) -> Any:
        return x[
            tuple(
                x.shape[axis] - 1 - i if axis in axes else i
                for axis, i in enumerate(at)
            )
        ]

    return pick(x.shape, x.dtype, element)


def slice_(
    x: Array, *, starts: tuple[int, ...], stops: tuple[int, ...], steps: tuple[int, ...]
) -> Array:
    taken = [range(*bounds) for bounds in zip(starts, stops, steps, strict=True)]

    def element(at: tuple[int, ...]) -> Any:
        return x[tuple(r[i] for r, i in zip(taken, at, strict=True))]

    return pick([len(r) for r in taken], x.dtype, element)


def place(
    x: Array, *, shape: tuple[int, ...], starts: tuple[int, ...], steps: tuple[int, ...]
) -> Array:
    out = np.zeros(shape, x.dtype)
    for at in np.ndindex(*x.shape):
        ranges = zip(starts, steps, at, strict=True)
        out[tuple(start + step * i for start, step, i in ranges)] = x[at]
    return out


def place_add(
    x: Array,
    *updates: Array,
    starts: tuple[tuple[int, ...], ...],
    steps: tuple[tuple[int, ...], ...],
) -> Array:
    total = x
    for update, start, step in zip(updates, starts, steps, strict=True):
        total = total + place(update, shape=x.shape, starts=start, steps=step)
    return np.asarray(total)


def concat(*xs: Array, axis: int) -> Array:
    rows = [(x, i) for x in xs for i in range(x.shape[axis])]
    shape = list(xs[0].shape)
    shape[axis] = len(rows)

    def element(at: tuple[int, ...]) -> Any:
        x, row = rows[at[axis]]
        return x[(*at[:axis], row, *at[axis + 1 :])]

    return pick(shape, xs[0].dtype, element)


def pad(x: Array, value: Array, *, widths: tuple[tuple[int, int], ...]) -> Array:
    sizes = zip(x.shape, widths, strict=True)
    shape = [low + size + high for size, (low, high) in sizes]

    def element(at: tuple[int, ...]) -> Any:
        inner = tuple(i - low for i, (low, _) in zip(at, widths, strict=True))
        is_inside = all(0 <= i < n for i, n in zip(inner, x.shape, strict=True))
        return x[inner] if is_inside else value[()]

    return pick(shape, x.dtype, element)


# Indexing


def gathered_places(
    x: Array, indices: Sequence[Array], axes: tuple[int, ...]
) -> tuple[tuple[int, ...], Callable[[tuple[int, ...]], tuple[int, ...]]]:
    """The shape of `gather` and, for each of its elements, where it is read."""
    named = np.broadcast_arrays(*indices)
    front = named[0].ndim
    others = [axis for axis in range(x.ndim) if axis not in axes]
    shape = (*named[0].shape, *(x.shape[axis] for axis in others))

    def source(at: tuple[int, ...]) -> tuple[int, ...]:
        by_axis = dict(zip(others, at[front:], strict=True))
        for axis, index in zip(axes, named, strict=True):
            by_axis[axis] = range(x.shape[axis])[int(index[at[:front]])]
        return tuple(by_axis[axis] for axis in range(x.ndim))

    return shape, source


def gather(x: Array, *indices: Array, axes: tuple[int, ...]) -> Array:
    shape, source = gathered_places(x, indices, axes)
    return pick(shape, x.dtype, lambda at: x[source(at)])


def gather_add(
    x: Array, updates: Array, *indices: Array, axes: tuple[int, ...]
) -> Truth | Array:
    shape, source = gathered_places(x, indices, axes)
    kind = object if is_integer(x.dtype) else widened(x).dtype
    out, added = x.astype(kind), updates.astype(kind)
    scale = np.abs(out)
    counts = np.ones(x.shape, int)
    for at in np.ndindex(*shape):
        to = source(at)
        out[to] += added[at]
        scale[to] += abs(added[at])
        counts[to] += 1
    if is_integer(x.dtype):
        return elementwise(lambda value, _: value)(out, x)
    return Truth(out, int(counts.max(initial=1)), scale)


def subtract_rows(
    x: Array, rate: Array, updates: Array, *indices: Array, axes: tuple[int, ...]
) -> Truth:
    shape, source = gathered_places(x, indices, axes)
    wide = widened(x).dtype
    out, factor = x.astype(wide), rate.astype(wide)
    scale, counts = np.abs(out), np.ones(x.shape, int)
    for at in np.ndindex(*shape):
        to = source(at)
        change = factor * updates[at].astype(wide)
        out[to] -= change
        scale[to] += abs(change)
        counts[to] += 1
    return Truth(out, int(counts.max(initial=1)), scale)


# Reductions


def slices(x: Array, axes: tuple[int, ...], keepdims: bool) -> tuple[Array, Any]:
    """Per element of the result the list of what is reduced, and the result's shape."""
    others = tuple(axis for axis in range(x.ndim) if axis not in axes)
    rows = math.prod(x.shape[axis] for axis in others)
    count = math.prod(x.shape[axis] for axis in axes)
    flat = x.transpose(others + axes).reshape(rows, count)
    kept = [1 if axis in axes else size for axis, size in enumerate(x.shape)]
    shape = kept if keepdims else [x.shape[axis] for axis in others]
    return flat, shape


def sum_(x: Array, *, axes: tuple[int, ...], keepdims: bool) -> Any:
    flat, shape = slices(x, axes, keepdims)
    if not (is_float(x.dtype) or is_complex(x.dtype)):
        return in_python(sum, flat, shape, x.dtype)
    terms = widened(flat)
    total = (terms.sum(axis=1) if axes else terms[:, 0]).reshape(shape)
    return Truth(total, flat.shape[1], np.abs(terms).sum(axis=1).reshape(shape))


def prod(x: Array, *, axes: tuple[int, ...], keepdims: bool) -> Any:
    flat, shape = slices(x, axes, keepdims)
    if not (is_float(x.dtype) or is_complex(x.dtype)):
        return in_python(math.prod, flat, shape, x.dtype)
    return Truth(widened(flat).prod(axis=1).reshape(shape), flat.shape[1])


def in_python(reduce: Any, flat: Array, shape: Any, dtype: Any) -> Array:
    """A reduction of integers or bools, in 32 bits or more, modulo 2^32 or 2^64."""
    bits = max(8 * dtype.itemsize, 32)
    wide_dtype = np.dtype(f"{'uint' if dtype.kind == 'u' else 'int'}{bits}")
    values = [wrap(int(reduce(map(int, row))), wide_dtype) for row in flat]
    return np.array(values, wide_dtype).reshape(shape)


def extremum(is_better: Callable[[Any, Any], bool]) -> Reference:
    """The best element of each slice; NaN beats all, and -0 is below 0."""

    def reference(x: Array, *, axes: tuple[int, ...], keepdims: bool) -> Array:
        flat, shape = slices(x, axes, keepdims)
        best = []
        for row in flat:
            chosen = row[0]
            for value in row[1:]:
                if value != value or (chosen == chosen and is_better(value, chosen)):
                    chosen = value
            best.append(chosen)
        return np.array(best, x.dtype).reshape(shape)

    return reference


def is_above(x: Any, y: Any) -> bool:
    """Whether a number is the larger one; 0 is larger than -0."""
    if x == y == 0 and is_float(x.dtype):
        return bool(np.signbit(y) and not np.signbit(x))
    return bool(x > y)


def is_below(x: Any, y: Any) -> bool:
    """Whether a number is the smaller one."""
    return is_above(y, x)


def truth(decide: Callable[[Any], bool]) -> Reference:
    """`all` or `any` of each slice."""

    def reference(x: Array, *, axes: tuple[int, ...], keepdims: bool) -> Array:
        flat, shape = slices(x, axes, keepdims)
        found = [decide(bool(value) for value in row) for row in flat]
        return np.array(found, bool).reshape(shape)

    return reference


def position(is_better: Callable[[Any, Any], bool]) -> Reference:
    """Where the first best element of an axis is; NaN beats all."""

    def reference(x: Array, *, axis: int, keepdims: bool) -> Array:
        flat, shape = slices(x, (axis,), keepdims)
        found = []
        for row in flat:
            at = 0
            for i, value in enumerate(row):
                beaten = value != value or is_better(value, row[at])
                if row[at] == row[at] and beaten:
                    at = i
            found.append(at)
        return np.array(found, np.int64).reshape(shape)

    return reference


def logsumexp(x: Array, *, axes: tuple[int, ...], keepdims: bool) -> Truth:
    """Judged as a sum of the largest element, the rest, and a rounding of each."""
    flat, shape = slices(widened(x), axes, keepdims)
    largest = np.max(flat, axis=1, keepdims=True, initial=-np.inf)
    shift = np.where(np.isfinite(largest), largest, 0)
    rest = np.log(np.exp(flat - shift).sum(axis=1))
    value = shift[:, 0] + rest
    scale = np.abs(shift[:, 0]) + np.abs(rest) + 1
    return Truth(value.reshape(shape), flat.shape[1], scale.reshape(shape))


def softmax(x: Array, *, axes: tuple[int, ...]) -> Truth:
    """Judged as a sum whose terms are as large as what a share may be off by.

    A difference to the largest element is off by its own rounding, which a power makes
    a relative error; so is the sum of powers, by the mean of those.
    """
    wide = widened(x)
    if not x.size:
        return Truth(wide)
    largest = np.max(wide, axis=axes, keepdims=True)
    below = wide - np.where(np.isneginf(largest), 0, largest)
    powers = np.exp(below)
    total = powers.sum(axis=axes, keepdims=True)
    shares = powers / np.where(total == 0, 1, total)
    depth = np.where(np.isfinite(below), -below, 0)
    mean = (shares * depth).sum(axis=axes, keepdims=True)
    count = math.prod(x.shape[axis] for axis in axes)
    return Truth(shares, count, shares * (4 + depth + mean))


# Products of matrices


def matmul(x: Array, y: Array) -> Any:
    if is_integer(x.dtype):
        return elementwise(lambda value, _: value)(
            np.matmul(objects(x), objects(y)), np.zeros((), x.dtype)
        )
    left, right = widened(x), widened(y)
    scale = np.matmul(np.abs(left), np.abs(right))
    return Truth(np.matmul(left, right), x.shape[-1], scale)
