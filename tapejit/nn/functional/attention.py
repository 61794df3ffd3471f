"""Attention: means of values, weighted by how well keys match a query.

Scores of queries and keys are a matrix with a row per query and a column per key, and a
softmax along each row makes them weights. The division by the sum of a row comes after
the product with the values, where there are fewer numbers.

For long sequences that matrix is what costs memory. Beyond `LONG` and `KEPT` elements
it is computed in blocks of queries, and `recompute_grad` makes each block anew for its
gradient, so nothing is kept but queries, keys, values and results. Each block hands the
keys and values on to the next one, `recomputed` after its result. So no block begins
before the last is over, in a traced function too, where nothing else would say so; and
since gradients of keys and values come back the same way, neither do their adjoints.
Native code needs none of that: there products share loops with what is between them,
in tiles of its own.

Heads that share keys and values have an axis of their own, of which keys and values
have one: [key heads · group, T, D] is [key heads, group, T, D] in the same order, so
nothing is repeated or copied.

Dropout draws one state a call, and the words of all scores follow from that, row by
row: any row can be drawn alone, as blocks do and native code does. So all of them drop
the same weights. A row begins with a block of the cipher, of four words.

Start reading at `scaled_dot_product_attention`, then `_Attention.of_block`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from tapejit import ops
from tapejit.array.creation import arange, asarray
from tapejit.array.elementwise import (
    divide,
    exp,
    greater_equal,
    logical_and,
    multiply,
    sqrt,
    where,
)
from tapejit.array.manipulation import broadcast_to, concat, matrix_transpose, reshape
from tapejit.array.matmul import matmul
from tapejit.array.precision import real_operand, wide_operands, widened
from tapejit.array.softmax import below_largest, sum_of_powers
from tapejit.base.config import config
from tapejit.base.dims import Dim, Shape, Size
from tapejit.base.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError
from tapejit.base.types import DType, TensorType, is_float, is_half
from tapejit.nn.functional.dropout import BITS, WORD, kept_alone, kept_where
from tapejit.ops.shapes import broadcast_shapes
from tapejit.tensor.dispatch import TRACE, apply, as_operand, cast, is_weak
from tapejit.tensor.tensor import Tensor

if TYPE_CHECKING:
    from tapejit.tape import random

NAME: Final = "scaled_dot_product_attention"
# Blocks save memory, not time: what is computed twice takes longer.
LONG: Final = 1 << 20  # scores of a head from which it is worth it
KEPT: Final = 1 << 23  # but up to so many of all heads are kept: 32 MB in float32
BLOCK: Final = 1 << 21  # scores of all heads in a block, unless that is fewer than
BLOCK_WORDS: Final = 4  # of the cipher that makes random words
ROWS: Final = 128  # queries, for which keys and values would be read too often


def scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    mask: Any = None,
    *,
    is_causal: bool = False,
    dropout_rate: float = 0.0,
    scale: Any = None,
    generator: random.Generator | None = None,
) -> Tensor:
    """softmax(query @ keyᵀ · scale) @ value: each query's mean of the values.

    `query` is [..., heads, T, D], `key` [..., heads, S, D] and `value` [..., heads, S,
    V]; the result is [..., heads, T, V]. Leading axes broadcast, and the axis of heads
    may be missing everywhere. Keys and values may have fewer heads, if the number of
    queries' heads is a multiple of theirs: each then serves as many heads of queries
    that follow one another.

    `mask` broadcasts to [..., heads, T, S]. One of bools is True where a query may
    attend to a key; one of floats is added to the scores, and gets a gradient. With
    `is_causal`, query i attends to the keys up to the i-th, counted from the first
    also if T and S differ. A query that may attend to nothing gives zeros, and no
    gradient.

    `scale` is 1/√D by default. In training, `dropout_rate` is the probability with
    which a weight is made 0, by draws from `generator` or else from the default one.
    Half precision is computed in single. The result has the dtype in which query, key
    and value meet.

    Long sequences are computed in blocks of queries, a second time for gradients:
    memory grows with T + S instead of T · S. (Not under `tj.vmap`, which the leading
    axes make unnecessary.)

    >>> import tapejit as tj
    >>> query = tj.asarray([[9.0, 0.0], [0.0, 9.0], [0.0, 0.0]])
    >>> key = tj.asarray([[9.0, 0.0], [0.0, 9.0]])
    >>> value = tj.asarray([[1.0, 2.0, 3.0], [5.0, 6.0, 7.0]])
    >>> print(tj.nn.scaled_dot_product_attention(query, key, value))
    [[1. 2. 3.]
     [5. 6. 7.]
     [3. 4. 5.]]
    >>> print(tj.nn.scaled_dot_product_attention(query, key, value, [True, False]))
    [[1. 2. 3.]
     [1. 2. 3.]
     [1. 2. 3.]]
    """
    tensors, dtype = wide_operands((query, key, value), NAME)
    queries, keys, values = tensors
    group, shape = _shapes(queries, keys, values)
    attention = _Attention(group, shape, bool(is_causal), _checked_rate(dropout_rate))
    queries = multiply(queries, _factor(scale, queries))
    allowed = None if mask is None else _as_mask(mask, shape, queries.dtype)
    state = _new_state(generator) if attention.rate else None
    *_, rows, columns = shape
    is_short = rows * columns < LONG or math.prod(shape) <= KEPT
    # Native code of a function goes by tiles of its own, without a second trace of
    # each. Of open sizes there is none.
    is_fixed = not any(isinstance(size, Dim) for size in shape)
    if is_short or (is_fixed and TRACE.get() is not None and config.native):
        drawn = None if state is None else _words(state, shape)
        out = attention.of_block(queries, keys, values, allowed, drawn, 0)
    else:
        fitting = BLOCK * rows // math.prod(shape)
        step = max(ROWS, fitting // ROWS * ROWS)
        out = attention.in_blocks(queries, keys, values, allowed, state, int(step))
    return cast(out, dtype)


class _Attention(NamedTuple):
    """What all blocks have in common.

    group      heads of queries for each head of keys
    shape      of all scores
    is_causal  whether later keys are masked
    rate       of dropout
    """

    group: Size
    shape: Shape
    is_causal: bool
    rate: float

    def of_block(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        drawn: Tensor | None,
        first: int,
    ) -> Tensor:
        """What queries attend to, the first of which is number `first`.

        `drawn` are the random words of their scores.
        """
        rows, columns = query.shape[-2], key.shape[-2]
        keys, values = self._shared(key), self._shared(value)
        product = matmul(self._grouped(query), matrix_transpose(keys))
        scores = widened(product)  # a policy may have made halves of it
        if mask is not None:
            mask = self._grouped(mask)
        may_attend = None
        if self.is_causal:
            here = query.device
            numbers = reshape(arange(first, first + rows, device=here), (rows, 1))
            may_attend = greater_equal(numbers, arange(columns, device=here))
        if mask is not None and is_float(mask.dtype):
            scores = scores + mask
        elif mask is not None:
            may_attend = mask if may_attend is None else logical_and(mask, may_attend)
        if may_attend is not None:
            scores = where(may_attend, scores, -math.inf)
        axes = (scores.ndim - 1,)
        powers = exp(below_largest(scores, axes))
        total = sum_of_powers(powers, axes)
        if drawn is not None:
            is_kept = kept_where(self._grouped(drawn), self.rate)
            powers = kept_alone(powers, is_kept, self.rate)
        if is_half(product.dtype):  # whose sums may be too large before the division
            means = matmul(divide(powers, total), values)
        else:
            means = divide(matmul(powers, values), total)
        if self.group == 1:
            return means
        *lead, heads, group, _, size = means.shape
        return reshape(means, (*lead, heads * group, rows, size))

    def in_blocks(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        state: Tensor | None,
        step: int,
    ) -> Tensor:
        """The same, `step` queries at a time."""
        count = int(query.shape[-2])
        firsts = range(0, count, step)
        queries = _pieces(query, firsts)
        masks: Sequence[Tensor | None] = [mask] * len(firsts)
        if mask is not None and mask.ndim > 1 and mask.shape[-2] != 1:
            masks = _pieces(mask, firsts)
        found = []
        # The last block first: then the adjoint of the first block is the first to
        # run, and its gradient the first to be joined. The other way round, gradients
        # of keys and values would wait with it, one for every block.
        for at in reversed(range(len(firsts))):
            block = self._block(firsts[at], is_last=at == 0)
            out, key, value = block(queries[at], key, value, masks[at], state)
            found.append(out)
        return concat(found[::-1], axis=-2)

    def _block(self, first: int, is_last: bool) -> Any:
        """The block that begins with a query, and what the next one is to use."""
        from tapejit.tracing.recompute import recompute_grad  # a relu starts without it

        @recompute_grad
        def attended(
            query: Tensor, key: Tensor, value: Tensor, mask: Any, state: Any
        ) -> Any:
            near, known, allowed = key, value, mask
            rows = int(query.shape[-2])
            stop = first + rows
            if self.is_causal and stop < key.shape[-2]:  # all others are masked
                near, known = key[..., :stop, :], value[..., :stop, :]
                if mask is not None and mask.ndim and mask.shape[-1] != 1:
                    allowed = mask[..., :stop]
            drawn = None
            if state is not None:
                drawn = _words_of_rows(state, self.shape, first, rows)
                drawn = drawn[..., : near.shape[-2]]
            out = self.of_block(query, near, known, allowed, drawn, first)
            if is_last:
                return out, None, None
            after = apply(ops.recomputed, key, out), apply(ops.recomputed, value, out)
            return out, *after

        return attended

    def _grouped(self, x: Tensor) -> Tensor:
        """[heads · group, T, n] as [heads, group, T, n], heads being those of keys."""
        if self.group == 1 or x.ndim < 3:
            return x
        *lead, heads, rows, size = x.shape
        both = (1, 1) if heads == 1 else (heads // self.group, self.group)
        return reshape(x, (*lead, *both, rows, size))

    def _shared(self, x: Tensor) -> Tensor:
        """[heads, S, n] as [heads, 1, S, n], where each head serves a group."""
        if self.group == 1:
            return x
        *lead, rows, size = x.shape
        return reshape(x, (*lead, 1, rows, size))


def _pieces(x: Tensor, firsts: range) -> Sequence[Tensor]:
    """Stretches of the last axis but one.

    The gradient is that of all stretches joined: a sum of one stretch each, among
    zeros, would write the whole as often as there are stretches.
    """
    from tapejit.tape.custom import custom_gradient  # a relu starts without it

    def cut(x: Tensor) -> list[Tensor]:
        return [x[..., first : first + firsts.step, :] for first in firsts]

    if not is_float(x.dtype):
        return cut(x)
    joined = partial(concat, axis=-2)
    return custom_gradient(lambda x: (cut(x), lambda *gs: joined(gs)))(x)


# Random words for dropout


def _new_state(generator: random.Generator | None) -> Tensor:
    """The state that all words of one call are made of, its counter at 0."""
    from tapejit.tape.generator import source_of  # a relu starts without it

    def made(words: Tensor) -> Tensor:
        return concat([words[:2], asarray([0, 0], dtype=WORD), words[2:]])

    draw = source_of(None, NAME) if generator is None else generator._draw
    return draw((BLOCK_WORDS,), BITS, made)


def _words(state: Tensor, shape: Shape) -> Tensor:
    """A word for each score."""
    *front, columns = shape
    whole = _in_blocks_of_words(columns)
    words = apply(ops.keyed_bits, state, shape=(*front, whole), bits=BITS)
    return words if whole == columns else words[..., :columns]


def _words_of_rows(state: Tensor, shape: Shape, first: int, rows: int) -> Tensor:
    """Those of some rows of each matrix, and maybe a few more in each row."""
    *front, count, columns = map(int, shape)
    whole = int(_in_blocks_of_words(columns))
    matrices = math.prod(front)
    # The counter of a state says how many blocks come before.
    rows_before = np.arange(matrices) * count + first
    blocks = (rows_before * (whole // BLOCK_WORDS)).astype("<u8")
    counters = asarray(blocks.view("<u4").astype(WORD).reshape(matrices, 2))
    ends = [broadcast_to(x, (matrices, 2)) for x in (state[:2], state[4:])]
    states = concat([ends[0], counters, ends[1]], axis=1)
    words = apply(ops.keyed_bits, states, shape=(rows, whole), bits=BITS)
    return reshape(words, (*front, rows, whole))


def _in_blocks_of_words(columns: Size) -> Size:
    """The words of a row, the end of its last block included."""
    return (columns + BLOCK_WORDS - 1) // BLOCK_WORDS * BLOCK_WORDS


# Arguments


def _shapes(query: Tensor, key: Tensor, value: Tensor) -> tuple[Size, Shape]:
    """The heads of queries for each head of keys, and the shape of all scores."""
    given = {"query": query, "key": key, "value": value}
    for label, x in given.items():
        if x.ndim < 2:
            raise ShapeError(
                f"{label} is {x._type}, and needs axes of steps and features",
                op=NAME,
                help="query is [..., heads, T, D], key [..., heads, S, D] and value "
                "[..., heads, S, V]",
            )
    if query.shape[-1] != key.shape[-1]:
        raise ShapeError(
            f"query is {query._type} and key {key._type}: they differ in their "
            "features, the last axis",
            op=NAME,
        )
    if key.shape[-2] != value.shape[-2]:
        raise ShapeError(
            f"key is {key._type} and value {value._type}: they differ in their steps, "
            "the last axis but one",
            op=NAME,
            help="each key has one value",
        )
    heads, shared, others = [x.shape[-3] if x.ndim > 2 else 1 for x in given.values()]
    if shared != others or shared == 0 or heads % shared != 0:
        raise ShapeError(
            f"query is {query._type}, key {key._type} and value {value._type}: "
            f"{heads} heads of queries cannot share {shared} of keys and {others} of "
            "values",
            op=NAME,
            help="keys and values have equally many heads, axis -3, and queries as "
            "many or a multiple",
        )
    lead = [TensorType(x.dtype, x.shape[:-3]) for x in given.values()]
    try:
        batch = broadcast_shapes(*lead)
    except ShapeError as error:
        raise ShapeError(
            f"query is {query._type}, key {key._type} and value {value._type}: their "
            "leading axes, those before the heads, do not broadcast",
            op=NAME,
        ) from error
    ndim = max(x.ndim for x in given.values())
    shape = (*batch, heads, query.shape[-2], key.shape[-2])
    return heads // shared, shape[-ndim:]


def _as_mask(mask: Any, shape: Shape, dtype: DType) -> Tensor:
    """A mask of bools, or of floats in the dtype of the scores."""
    found = real_operand(mask, NAME)
    if not is_float(found.dtype) and found.dtype != np.bool_:
        raise DTypeError(
            f"mask is {found._type}: neither bools, True where a query may attend to a "
            "key, nor floats, which are added to the scores",
            op=NAME,
            help="if it has ones where a query may attend, write mask != 0",
        )
    wanted = TensorType(found.dtype, shape)
    try:
        fits = broadcast_shapes(found._type, wanted) == wanted.shape
    except ShapeError:
        fits = False
    if not fits:
        raise ShapeError(
            f"mask is {found._type}, which does not broadcast to the shape of the "
            f"scores, {wanted}",
            op=NAME,
            help="it is [..., heads, T, S], or has 1 for the sizes that do not matter",
        )
    return cast(found, dtype) if is_float(found.dtype) else found


def _factor(scale: Any, query: Tensor) -> Any:
    """What queries are multiplied by."""
    if scale is None:
        size: Any = query.shape[-1]
        if isinstance(size, Dim):  # in float64, as the number is
            return cast(1.0 / sqrt(asarray(size, dtype="float64")), query.dtype)
        return 1.0 if size == 0 else 1 / math.sqrt(size)
    if is_weak(scale):
        return scale
    factor = as_operand(scale, NAME)
    if factor.ndim:
        raise ShapeError(
            f"scale is one number, got {factor._type}",
            op=NAME,
            help="multiply the query by other factors, and give scale=1.0",
        )
    return cast(factor, query.dtype)


def _checked_rate(rate: Any) -> float:
    if not isinstance(rate, (int, float)):
        raise ArgumentTypeError(
            f"dropout_rate is a number, got {type(rate).__name__}", op=NAME
        )
    if not 0 <= rate <= 1:
        raise ArgumentError(
            f"dropout_rate is a probability from 0 to 1, got {rate}", op=NAME
        )
    return float(rate)


__all__ = ["scaled_dot_product_attention"]
