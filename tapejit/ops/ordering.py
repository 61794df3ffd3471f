"""How arrays are put in order: positions that sort lines, and elements at positions.

NumPy's stable sort of positions compares elements through them, which takes ten times
as long as its plain sort of numbers, and the plain sort of positions is not stable. So
keys become integers in the order of the numbers (`ordered_integers`), and these are
sorted in the way that is fastest for their number, per element and on one core:

- up to 256 (3 ns): a key and its position are one integer, the key in the upper half.
  Such integers are all distinct, sorting them plainly is a stable sort, and the lower
  halves are the positions. Keys of 64 bits have no room for one: positions are sorted
  plainly, and those of equal keys once more (16 ns).
- above (13 ns; 26 of 64 bits): digit by digit, the lowest first. For 16 bits NumPy's
  stable sort is a radix sort.
- few of many (2 ns): a bound for the last of the first k is the k-th of the least
  elements of blocks; what is beyond it is not looked at again.

A `window` (start, stop) is a part of the sorted line: the smallest, the middle.

Lines are independent of each other, so several threads share them.

Start reading at `order_of`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from tapejit.base.types import is_float
from tapejit.base.workers import run_pieces

Window = tuple[int, int] | None

# Below, NumPy's stable sort is done before keys are made: measured at 400 elements.
FEW: Final = 400
AT_ONCE: Final = 16_384  # elements whose keys and positions stay in the cache
SHORT: Final = 256  # NumPy sorts so many numbers in registers, more with branches
SHORT_WIDE: Final = 1024
FEW_OF_MANY: Final = 32  # a window at the start of a line so many times as long
INT32, INT64 = np.dtype(np.int32), np.dtype(np.int64)
UPPER: Final = 32  # bits that a key is shifted by to make room for a position
LOWER: Final = np.int64(2**32 - 1)


def comparable(x: Any) -> Any:
    """`x` in a dtype that NumPy sorts with NaN last: it does not bfloat16."""
    return x.astype(np.float32) if x.dtype.name == "bfloat16" else x


def compared_dtype(*dtypes: Any) -> Any:
    """The dtype in which elements of several are compared.

    >>> compared_dtype(np.dtype("int64"), np.dtype("float32"))
    dtype('float64')
    """
    known = [np.float32 if x.name == "bfloat16" else x for x in dtypes]
    return np.result_type(*known)


def reversed_key(x: Any) -> Any:
    """Numbers that come in the opposite order; applied twice, `x` again.

    Integers are inverted bit by bit, because the smallest has no negative.

    >>> reversed_key(np.array([-128, 0, 127], np.int8))
    array([ 127,   -1, -128], dtype=int8)
    """
    return -x if is_float(x.dtype) else np.invert(x)


def width_of(size: int, window: Window) -> int:
    """How many elements of a sorted line a window has."""
    return size if window is None else window[1] - window[0]


def order_of(keys: Any, axis: int, descending: bool, window: Window = None) -> Any:
    """The positions of the keys in sorted order, or those of a window of it.

    >>> order_of(np.float32([2, 0, 1, -0.0]), 0, False)
    array([1, 3, 2, 0])
    >>> order_of(np.float32([2, 0, 1, -0.0]), 0, False, (1, 3))
    array([3, 2])
    """
    if keys.size <= FEW:
        keys = comparable(keys)
        if descending:
            keys = reversed_key(keys)
        order = np.argsort(keys, axis=axis, kind="stable")
        if window is not None:
            order = np.take(order, range(*window), axis=axis)
        return order.astype(INT64, copy=False)
    lines = np.moveaxis(keys, axis, -1)
    size = lines.shape[-1]
    flat = as_rows(lines)
    out = np.empty((flat.shape[0], width_of(size, window)), INT64)

    def work(rows: slice) -> None:
        for some in in_cache(rows, size):
            keys = ordered_integers(np.ascontiguousarray(flat[some]), descending)
            out[some] = order_of_integers(keys, window)

    run_pieces(work, flat.shape[0], flat.size)
    shaped = out.reshape((*lines.shape[:-1], out.shape[-1]))
    return np.moveaxis(shaped, -1, axis)


def in_cache(rows: slice, size: int) -> Iterator[slice]:
    """Rows in slices of `AT_ONCE` elements, or of one row that has more."""
    step = max(1, AT_ONCE // max(1, size))
    for start in range(rows.start, rows.stop, step):
        yield slice(start, min(start + step, rows.stop))


def order_of_integers(keys: Any, window: Window) -> Any:
    """The positions of each row's keys in sorted order, or those of a window of it."""
    size = keys.shape[-1]
    start, stop = window or (0, size)
    if start == size - 1 and stop == size:  # the last of the largest
        return size - 1 - np.argmax(keys[:, ::-1], axis=-1)[:, None]
    if start == 0 and size > SHORT and FEW_OF_MANY * stop <= size:
        return first_positions(keys, stop)
    if size > (SHORT if keys.dtype == INT32 else SHORT_WIDE):
        order = order_by_digits(keys)
    elif keys.dtype == INT32:
        order = order_of_packed(packed_keys(keys))
    else:
        order = order_of_wide(keys)
    return order if window is None else order[:, start:stop]


def ordered_integers(x: Any, descending: bool) -> Any:
    """Integers in the order of `x`, equal where `x` is; NaN has the largest.

    >>> ordered_integers(np.float32([-0.0, 0.0, 1.0, np.nan]), False)
    array([         0,          0, 1065353216, 2147483647], dtype=int32)
    >>> ordered_integers(np.uint8([0, 255]), True)
    array([  -1, -256], dtype=int32)
    """
    if not is_float(x.dtype):
        integers = signed_integers(x)
        return np.invert(integers) if descending else integers
    wide = x if x.dtype.itemsize > 2 else x.astype(np.float32)
    # Adding 0 makes 0 of -0, and an array of our own.
    numbers = 0 - wide if descending else wide + 0
    kind = INT32 if numbers.dtype.itemsize == 4 else INT64
    bits = numbers.view(kind)
    largest = np.iinfo(kind).max
    # Magnitudes of negative numbers grow downwards.
    bits ^= (bits >> (8 * kind.itemsize - 1)) & largest
    is_nan = wide != wide
    if is_nan.any():
        bits[is_nan] = largest
    return bits


def signed_integers(x: Any) -> Any:
    """Integers and truth values as signed ones of 32 or 64 bits, in their order."""
    if x.dtype.itemsize < 4:
        return x.astype(INT32)
    if x.dtype.kind == "i":
        return x
    kind = INT32 if x.dtype.itemsize == 4 else INT64
    return x.view(kind) ^ np.iinfo(kind).min


def packed_keys(keys: Any) -> Any:
    """Key and position in one integer.

    >>> [hex(key) for key in packed_keys(np.array([[3, 7]], np.int32))[0]]
    ['0x300000000', '0x700000001']
    """
    packed = keys.astype(INT64)
    packed <<= UPPER
    packed |= np.arange(packed.shape[-1])
    return packed


def order_of_packed(packed: Any) -> Any:
    """The positions of rows of packed keys, which are overwritten."""
    packed.sort(axis=-1)
    packed &= LOWER
    return packed


def order_of_wide(keys: Any) -> Any:
    """The positions of rows of keys that fill their 64 bits."""
    order = np.argsort(keys, axis=-1)
    ordered = take_lines(keys, order)
    is_new = ordered[:, 1:] != ordered[:, :-1]
    if is_new.all():
        return order
    # Sorted once more: by the number of the key among the distinct ones.
    packed = np.zeros_like(order)
    np.cumsum(is_new, axis=-1, out=packed[:, 1:])
    packed <<= UPPER
    packed |= order
    return order_of_packed(packed)


def order_by_digits(keys: Any) -> Any:
    """A radix sort by digits of 16 bits; those that are all equal cost nothing."""
    rows, size = keys.shape
    unsigned = keys ^ np.iinfo(keys.dtype).min
    starts = np.arange(0, rows * size, size)[:, None]
    places = None  # positions so far, counted through all rows
    for shift in range(0, 8 * keys.dtype.itemsize, 16):
        digits = (unsigned >> shift).astype(np.uint16)
        if digits.min() == digits.max():
            continue
        if places is not None:
            digits = digits.reshape(-1).take(places)
        order = np.argsort(digits, axis=-1, kind="stable")
        order += starts
        places = order if places is None else places.reshape(-1).take(order)
    if places is None:
        return np.broadcast_to(np.arange(size), keys.shape)
    places -= starts
    return places


def first_positions(keys: Any, count: int) -> Any:
    """The positions of the `count` least keys of each row, in order."""
    rows, size = keys.shape
    if not count:
        return np.empty((rows, 0), INT64)
    # Twice as many blocks as elements are wanted: the bound lets few others through.
    blocks = 2 * count
    width = size // blocks
    least = keys[:, : blocks * width].reshape(rows, blocks, width).min(axis=-1)
    bound = np.partition(least, count - 1, axis=-1)[:, count - 1, None]
    row, position = np.nonzero(keys <= bound)
    counts = np.bincount(row, minlength=rows)
    most = int(counts.max())
    if 2 * most > size:  # equal keys: little was left out
        return order_of_integers(keys, None)[:, :count]
    ends = np.cumsum(counts)
    place = np.arange(row.size) - np.repeat(ends - counts, counts)
    # What a row has fewer than another is filled up with what comes last.
    candidates = np.full((rows, most), np.iinfo(keys.dtype).max, keys.dtype)
    positions = np.zeros((rows, most), INT64)
    candidates[row, place] = keys[row, position]
    positions[row, place] = position
    return take_lines(positions, order_of_integers(candidates, None)[:, :count])


# Elements at positions


def take_lines(values: Any, positions: Any) -> Any:
    """The elements of each row at the positions of that row."""
    rows, size = values.shape
    starts = np.arange(0, rows * size, size)[:, None] if size else 0
    return np.ascontiguousarray(values).reshape(-1).take(positions + starts)


def take_positions(values: Any, positions: Any, lead: int, axis: int) -> Any:
    """The values at positions along an axis, the same for all leading axes.

    >>> take_positions(np.array([[5, 6, 7]]), np.array([2, 0]), 1, 0)
    array([[7, 5]])
    """
    if lead or values.size <= FEW:
        aligned = positions.reshape((1,) * lead + positions.shape)
        return np.take_along_axis(values, aligned, axis=lead + axis)
    lines, where = np.moveaxis(values, axis, -1), np.moveaxis(positions, axis, -1)
    source, places = as_rows(lines), as_rows(where)
    out = np.empty(places.shape, values.dtype)

    def work(rows: slice) -> None:
        out[rows] = take_lines(source[rows], places[rows])

    run_pieces(work, out.shape[0], out.size, least=4 * 65_536)
    return np.moveaxis(out.reshape(where.shape), -1, axis)


def put_positions(values: Any, positions: Any, lead: int, axis: int, size: int) -> Any:
    """The transpose of `take_positions`: values at distinct positions, 0 elsewhere.

    >>> put_positions(np.array([[7, 5]]), np.array([2, 0]), 1, 0, 3)
    array([[5, 0, 7]])
    """
    shape = list(values.shape)
    shape[lead + axis] = size
    is_whole = positions.shape[axis] == size
    out = np.empty(shape, values.dtype) if is_whole else np.zeros(shape, values.dtype)
    if lead or axis != positions.ndim - 1 or values.size <= FEW:
        aligned = positions.reshape((1,) * lead + positions.shape)
        aligned = np.broadcast_to(aligned, values.shape)
        np.put_along_axis(out, aligned, values, axis=lead + axis)
        return out
    source, places, target = as_rows(values), as_rows(positions), as_rows(out)

    def work(rows: slice) -> None:
        into = target[rows]
        starts = np.arange(0, into.size, size)[:, None]
        into.reshape(-1)[places[rows] + starts] = source[rows]

    run_pieces(work, target.shape[0], values.size, least=4 * 65_536)
    return out


def as_rows(x: Any) -> Any:
    """The lines along the last axis as rows of a matrix."""
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


# Sorted numbers


def sorted_lines(x: Any, axis: int, descending: bool, window: Window = None) -> Any:
    """What a stable sort gives, by NumPy's fastest, which is not stable.

    Of equal elements only zeros can be told apart, by their sign. There are as many of
    them in a sorted line as there were before, so they are put back in their order. A
    window may have some of them only; there positions tell which.

    >>> sorted_lines(np.array([0.0, 1.0, -0.0, -1.0]), 0, True)
    array([ 1.,  0., -0., -1.])
    """
    lines = np.moveaxis(x, axis, -1)
    source = as_rows(lines)
    size = source.shape[-1]
    out = np.empty((source.shape[0], width_of(size, window)), x.dtype)

    def work(rows: slice) -> None:
        out[rows] = sorted_rows(source[rows], descending, window)

    run_pieces(work, source.shape[0], x.size)
    shaped = out.reshape((*lines.shape[:-1], out.shape[-1]))
    return np.moveaxis(shaped, -1, axis)


def sorted_rows(rows: Any, descending: bool, window: Window) -> Any:
    """The rows of a matrix, sorted, or a window of them."""
    keys = reversed_key(rows) if descending else rows
    if window is None:
        out = np.sort(keys, axis=-1)
    else:
        out = window_of(keys, window)
    if descending:
        out = reversed_key(out)
    if not is_float(rows.dtype):
        return out
    is_zero = out == 0
    if is_zero.any():
        if window is None:
            out[is_zero] = rows[rows == 0]
        else:
            order = order_of(rows, 1, descending, window)
            out = take_lines(rows, order)
    return out


def window_of(keys: Any, window: tuple[int, int]) -> Any:
    """A window of each sorted row."""
    start, stop = window
    size = keys.shape[-1]
    if start == stop:
        return keys[:, :0].copy()
    if start == size - 1:
        return np.max(keys, axis=-1, keepdims=True)  # NaN if there is any
    if size > SHORT and stop - start <= 2:
        found = np.partition(keys, stop - 1, axis=-1)[:, :stop]
        last = found[:, -1:]
        if stop - start == 1:
            return last.copy()
        return np.concatenate([found[:, :-1].max(axis=-1, keepdims=True), last], -1)
    if size > SHORT and FEW_OF_MANY * stop <= size:
        return np.sort(np.partition(keys, stop - 1, axis=-1)[:, :stop])[:, start:]
    return np.sort(keys, axis=-1)[:, start:stop]
