"""Random draws: words from a state, and what words become.

A state is `u32[6]`; `philox.py` says what it means and is the meaning of all records
here. A state may have leading axes: every row is then a stream of its own, with the
words it would have alone.

Two records turn a state into words, with the same result. `random_bits` is a draw: it
stands for numbers that differ each time it is done, so a batch of it draws for all
rows even where the state is the same in each. `keyed_bits` is a function of its key:
rows with the same key have the same words. What is drawn never depends on a
parameter of a distribution; those are applied by ordinary operations afterwards, and
gradients flow through these.

A draw does not change its state. The next one starts from `random_advance` of it.

Start reading at `random_bits_type`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

import numpy as np

from tapejit.base.dims import Shape, Size
from tapejit.base.errors import ArgumentError, DTypeError, ShapeError
from tapejit.base.types import DType, TensorType, Type, is_float, is_integer
from tapejit.ir.node import Node, Op, always, literal, record
from tapejit.ir.structural import batch_stack
from tapejit.ops import philox
from tapejit.ops.comparison import bitwise_and, bitwise_right_shift
from tapejit.ops.elementwise import check_kind, lift
from tapejit.ops.indexing import axes_to_front
from tapejit.ops.movement import check_shape, exceeds, permute_dims
from tapejit.ops.reduction import F32, F64, as_dtype
from tapejit.ops.shapes import broadcast_shapes, tensor

WIDTHS: Final[dict[int, DType]] = {32: np.dtype("uint32"), 64: np.dtype("uint64")}
STATE_SIZE: Final = 6
BLOCK_BITS: Final = 128


def block_count(shape: Shape, bits: int) -> Size:
    """How many blocks a draw takes.

    >>> block_count((2, 3), 32), block_count((3,), 64), block_count((0, 3), 32)
    (2, 2, 0)
    """
    return (TensorType(WIDTHS[bits], shape).size * bits + BLOCK_BITS - 1) // BLOCK_BITS


def state_type(state: Type) -> TensorType:
    """Refuse what is not a state, or several along leading axes."""
    state = tensor(state)
    if state.dtype != np.uint32 or state.shape[-1:] != (STATE_SIZE,):
        raise DTypeError(
            f"a random state is u32[{STATE_SIZE}], got {state}",
            help="make one with tj.random.key(seed)",
        )
    return state


def check_natural(name: str, number: Size) -> None:
    """Refuse a negative number."""
    if exceeds(0, number):
        raise ArgumentError(f"{name} cannot be negative, got {number}")


def each_state(
    function: Callable[[Any], Any], states: Any, shape: tuple[int, ...], dtype: DType
) -> Any:
    """The results, each of this shape, of a function of one state."""
    if states.ndim == 1:
        return function(states)
    if states.shape[-1] != STATE_SIZE:
        philox.check_state(states)  # raises
    rows = states.reshape(-1, STATE_SIZE)
    out = np.empty((len(rows), *shape), dtype)
    for at, row in enumerate(rows):
        out[at] = function(row)
    return out.reshape(*states.shape[:-1], *shape)


def drawing(name: str, **fields: Any) -> Op:
    """Register an op on states or words, of which leading axes are a stack."""
    return record(
        name, **{"batch": batch_stack(name), "differentiable": False, **fields}
    )


# random_bits and keyed_bits


def random_bits_type(state: Type, *, shape: Shape, bits: int) -> TensorType:
    state = state_type(state)
    check_shape(shape)
    if bits not in WIDTHS:
        raise ArgumentError(f"random words have 32 or 64 bits, not {bits}")
    return TensorType(WIDTHS[bits], (*state.shape[:-1], *shape))


def random_bits_eval(
    state: Any, *, shape: tuple[int, ...], bits: Literal[32, 64]
) -> Any:
    def draw(row: Any) -> Any:
        return philox.random_bits(row, shape, bits)[1]

    return each_state(draw, state, shape, WIDTHS[bits])


def random_bits_batch(
    size: Size,
    inputs: Sequence[Node],
    batched: Sequence[bool],
    *,
    shape: Shape,
    bits: int,
) -> Node:
    """Rows that share a state share its stream, each with a stretch of its own."""
    (state,) = inputs
    if batched[0]:
        return random_bits(state, shape=shape, bits=bits)
    rows = random_bits(state, shape=(size, *shape), bits=bits)
    streams = state.ndim - 1
    if not streams:
        return rows
    return permute_dims(rows, axes=axes_to_front(streams, 1, rows.ndim))


random_bits = drawing(
    "random_bits",
    type_rule=random_bits_type,
    eval=random_bits_eval,
    batch=random_bits_batch,
    draws=True,
    exact=True,
    on_arrays=always,
)


keyed_bits = drawing(
    "keyed_bits",
    type_rule=random_bits_type,
    eval=random_bits_eval,
    exact=True,
    on_arrays=always,
)


# States from states


def random_advance_type(state: Type, *, blocks: Size) -> TensorType:
    check_natural("blocks", blocks)
    return state_type(state)


def random_advance_eval(state: Any, *, blocks: int) -> Any:
    def advance(row: Any) -> Any:
        return philox.advance(row, blocks)

    return each_state(advance, state, (STATE_SIZE,), WIDTHS[32])


random_advance = drawing(
    "random_advance",
    type_rule=random_advance_type,
    eval=random_advance_eval,
    exact=True,
    on_arrays=always,
)


def random_split_type(state: Type, *, count: Size) -> TensorType:
    state = state_type(state)
    check_natural("count", count)
    return state.with_shape((*state.shape[:-1], count, STATE_SIZE))


def random_split_eval(state: Any, *, count: int) -> Any:
    def split(row: Any) -> Any:
        return philox.split_state(row, count)

    return each_state(split, state, (count, STATE_SIZE), WIDTHS[32])


random_split = drawing(
    "random_split",
    type_rule=random_split_type,
    eval=random_split_eval,
    exact=True,
    on_arrays=always,
)


def random_fold_in_type(state: Type, data: Type) -> TensorType:
    state, data = state_type(state), tensor(data)
    check_kind(data.dtype, ("integer",))
    streams = data.with_shape(state.shape[:-1])
    return state.with_shape((*broadcast_shapes(streams, data), STATE_SIZE))


def random_fold_in_eval(state: Any, data: Any) -> Any:
    if state.ndim == 1 and data.ndim == 0:
        return fold_in_one(state, data)
    streams = np.broadcast_shapes(state.shape[:-1], data.shape)
    states = np.broadcast_to(state, (*streams, STATE_SIZE)).reshape(-1, STATE_SIZE)
    numbers = np.broadcast_to(data, streams).reshape(-1)
    out = np.empty(states.shape, np.uint32)
    for at, (row, number) in enumerate(zip(states, numbers, strict=True)):
        out[at] = fold_in_one(row, number)
    return out.reshape(*streams, STATE_SIZE)


def fold_in_one(state: Any, number: Any) -> Any:
    """The state of one stream; the type rule cannot see a negative number."""
    if number.dtype.kind == "i":
        check_natural("data", int(number))
    return philox.fold_in(state, number)


def random_fold_in_batch(
    size: Size, inputs: Sequence[Node], batched: Sequence[bool]
) -> Node:
    """The numbers line up with the states, whose last axis is no row."""
    state, data = inputs
    state_is_batched, data_is_batched = batched
    rank = max(state.ndim - 1 - state_is_batched, data.ndim - data_is_batched)
    if state_is_batched:
        state = lift(state, rank + 1)
    if data_is_batched:
        data = lift(data, rank)
    return random_fold_in(state, data)


random_fold_in = drawing(
    "random_fold_in",
    type_rule=random_fold_in_type,
    eval=random_fold_in_eval,
    batch=random_fold_in_batch,
    exact=True,
    on_arrays=always,
)


# What words become


def words_type(words: Type, bits: int, made: str) -> TensorType:
    """Refuse words of another width than `made` is made of."""
    words = tensor(words)
    if words.dtype != WIDTHS[bits]:
        raise DTypeError(
            f"{made} made of words of {bits} bits, got {words}",
            help=f"draw them with bits={bits}",
        )
    return words


def bits_to_float_type(words: Type, *, dtype: DType) -> TensorType:
    if not is_float(dtype):
        raise DTypeError(
            f"random floats cannot be {dtype}",
            help=f"draw one of {', '.join(philox.SIGNIFICANT_BITS)}",
        )
    made = f"{dtype.name} numbers are"
    return words_type(words, philox.word_bits(dtype), made).with_dtype(dtype)


def bits_to_uniform_eval(words: Any, *, dtype: DType) -> Any:
    return philox.bits_to_uniform(words, dtype)


def expand_uniform(node: Node) -> Node:
    """The top bits of a word, times a power of two."""
    (words,) = node.inputs
    digits = philox.SIGNIFICANT_BITS[node.dtype.name]
    bits = 8 * words.dtype.itemsize
    top = bitwise_right_shift(words, literal(bits - digits, words.dtype))
    wide = as_dtype(top, F64 if bits == 64 else F32)
    return as_dtype(wide * literal(2.0**-digits, wide.dtype), node.dtype)


bits_to_uniform = drawing(
    "bits_to_uniform",
    type_rule=bits_to_float_type,
    eval=bits_to_uniform_eval,
    exact=True,
    expands=expand_uniform,
)


def bits_to_normal_eval(words: Any, *, dtype: DType) -> Any:
    return philox.bits_to_normal(words, dtype)


bits_to_normal = drawing(
    "bits_to_normal",
    type_rule=bits_to_float_type,
    eval=bits_to_normal_eval,
    on_arrays=always,
)


def bits_to_integers_type(
    words: Type, *, low: int, high: int, dtype: DType
) -> TensorType:
    words = words_type(words, 64, "random integers are")
    if not is_integer(dtype):
        raise DTypeError(
            f"random integers cannot be {dtype}",
            help="tj.random.uniform and normal draw floats, bernoulli draws bools",
        )
    if exceeds(low + 1, high):  # an end may be a size that is left open
        raise ArgumentError(
            f"no integer is at least {low} and below {high}",
            help="high is excluded, so it must be greater than low",
        )
    limits = np.iinfo(dtype)
    if exceeds(int(limits.min), low) or exceeds(high, int(limits.max) + 1):
        raise ArgumentError(
            f"{dtype} cannot hold all integers from {low} to {high - 1}",
            help=f"it goes from {limits.min} to {limits.max}; give a wider dtype=",
        )
    return words.with_dtype(dtype)


def bits_to_integers_eval(words: Any, *, low: int, high: int, dtype: DType) -> Any:
    return philox.bits_to_integers(words, low, high, dtype)


def expand_integers(node: Node) -> Node:
    """low + floor(word * (high - low) / 2**64), from products of halves."""
    (words,) = node.inputs
    low, high = int(node.attrs["low"]), int(node.attrs["high"])
    factor = high - low

    def number(value: int) -> Node:
        return literal(value, words.dtype)

    def half(x: Node) -> Node:
        return bitwise_right_shift(x, number(32))

    def rest(x: Node) -> Node:
        return bitwise_and(x, number(philox.MASK32))

    offset = words
    if factor <= philox.MASK64:
        factor_low, factor_high = number(factor & philox.MASK32), factor >> 32
        middle = half(words) * factor_low + half(rest(words) * factor_low)
        offset = half(middle)
        if factor_high:
            upper = number(factor_high)
            offset = offset + half(words) * upper
            offset = offset + half(rest(words) * upper + rest(middle))
    return as_dtype(offset + number(low & philox.MASK64), node.dtype)


bits_to_integers = drawing(
    "bits_to_integers",
    type_rule=bits_to_integers_type,
    eval=bits_to_integers_eval,
    exact=True,
    expands=expand_integers,
)


def check_has_axis(ndim: int) -> None:
    """Refuse a single word, which NumPy would put in order as if it had an axis."""
    if not ndim:
        raise ShapeError(
            "a permutation needs an axis, got words without one",
            help="draw as many words as there are things to order",
        )


def bits_to_permutation_type(words: Type) -> TensorType:
    words = words_type(words, 64, "permutations are")
    check_has_axis(words.ndim)
    return words.with_dtype(np.dtype("int64"))


def bits_to_permutation_eval(words: Any) -> Any:
    check_has_axis(words.ndim)
    return philox.permutation_from_bits(words)


# A random order of the last axis.
bits_to_permutation = drawing(
    "bits_to_permutation",
    type_rule=bits_to_permutation_type,
    eval=bits_to_permutation_eval,
)
