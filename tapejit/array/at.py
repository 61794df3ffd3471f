"""`x.at[key]`: a copy of a tensor with some of its elements changed.

Tensors are immutable, so `x.at[key].set(v)` is what `x[key] = v` would leave in `x`,
and `x.at[key].add(v)` what `numpy.add.at(x, key, v)` would: repeated positions are
written in order, one after the other.

Sums are one `gather_add`: of rows, if the key names whole rows. All else happens in the
flattened tensor. The key becomes positions there, by indexing a tensor that holds the
number of each place.
`set` clears the places and adds the last value of each; while a key is traced nobody
knows which is the last, and an op of its own finds out (see `ops.overwriting`). The
other methods combine what is there with the values, in as many rounds as the most
crowded position has values, and set the outcome.

Start reading at `Selected.set`, then `Selected._combined`.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from tapejit import ops
from tapejit.array import indexing
from tapejit.array.arrangement import ravel
from tapejit.array.manipulation import (
    broadcast_to,
    concat,
    permute_dims,
    reshape,
    stretch,
    with_axes,
)
from tapejit.base.errors import DTypeError, ShapeError, TapejitError
from tapejit.base.types import is_complex, is_differentiable, is_float, scalar_dtype
from tapejit.ir.node import Op
from tapejit.tensor.dispatch import (
    apply,
    as_operand,
    cast,
    convert,
    is_weak,
    python_scalar,
    weak_scalar,
)
from tapejit.tensor.naming import labelled
from tapejit.tensor.tensor import CONSTANT, Tensor, TracedTensor

Array = np.ndarray[Any, Any]


class Update(NamedTuple):
    """How a method combines what is there with a value.

    `neutral` is a value that changes nothing; None if only the element itself is one.
    """

    op: Op
    neutral: int | None


UPDATES: Final[dict[str, Update]] = {
    "add": Update(ops.add, 0),
    "subtract": Update(ops.sub, 0),
    "multiply": Update(ops.mul, 1),
    "divide": Update(ops.div, 1),
    "power": Update(ops.pow, 1),
    "min": Update(ops.minimum, None),
    "max": Update(ops.maximum, None),
}


class At:
    """What `x.at` is: index it to say which elements are meant.

    >>> import tapejit as tj
    >>> print(tj.zeros(4).at[1:3].set(5.0))
    [0. 5. 5. 0.]
    """

    __slots__ = ("_tensor",)

    def __init__(self, x: Any) -> None:
        self._tensor = x

    def __getitem__(self, key: Any) -> Selected:
        return Selected(self._tensor, key)

    def __repr__(self) -> str:
        return f"<at of {self._tensor!r}>"


class Selected:
    """What `x.at[key]` is: each method gives a copy of `x` changed at `key`.

    The key is anything that indexes a tensor, except None. Values broadcast to the
    shape of `x[key]`, and the result keeps the dtype of `x`.

    >>> import tapejit as tj
    >>> x = tj.asarray([1.0, 2.0, 3.0])
    >>> print(x.at[[0, 0, 2]].add(10.0))
    [21.  2. 13.]
    """

    __slots__ = ("_given", "_key")

    def __init__(self, x: Any, key: Any) -> None:
        self._given = x
        self._key = key

    def get(self) -> Tensor:
        """`x[key]`.

        >>> import tapejit as tj
        >>> print(tj.asarray([1.0, 2.0, 3.0]).at[1:].get())
        [2. 3.]
        """
        return indexing.getitem(self._given, self._key)

    def set(self, value: Any) -> Tensor:
        """With `value` at the key, as after `x[key] = value`; the last one stays.

        A value that was overwritten by a later one has no influence: its gradient is
        zero, as that of the elements of `x` that were replaced.

        >>> import tapejit as tj
        >>> print(tj.asarray([1.0, 2.0, 3.0]).at[[0, 0]].set([5.0, 6.0]))
        [6. 2. 3.]
        """
        x = as_operand(self._given, "at.set")
        values = self._as_values(x, value, "set")
        mask = self._traced_mask()
        if mask is not None:
            masked = _where_masked(x, mask, values, "set")
            if masked is not None:
                return apply(ops.where, *masked, x)
        positions, values = self._aligned(x, values, "set")
        return _written(x, positions, values)

    def add(self, value: Any) -> Tensor:
        """With `value` added at the key; repeated positions add up.

        >>> import tapejit as tj
        >>> print(tj.zeros((2, 2)).at[0, [1, 1]].add([1.0, 2.0]))
        [[0. 3.]
         [0. 0.]]
        """
        return self._accumulated("add", value)

    def subtract(self, value: Any) -> Tensor:
        """With `value` subtracted at the key, once for each time it is named.

        >>> import tapejit as tj
        >>> print(tj.zeros(3).at[[0, 0, 2]].subtract(1.0))
        [-2.  0. -1.]
        """
        return self._accumulated("subtract", value)

    def multiply(self, value: Any) -> Tensor:
        """With what is at the key multiplied by `value`.

        >>> import tapejit as tj
        >>> print(tj.ones(3).at[[0, 0, 2]].multiply(3.0))
        [9. 1. 3.]
        """
        return self._combined("multiply", value)

    def divide(self, value: Any) -> Tensor:
        """With what is at the key divided by `value`; integers are refused.

        >>> import tapejit as tj
        >>> print(tj.ones(3).at[0].divide(4.0))
        [0.25 1.   1.  ]
        """
        return self._combined("divide", value)

    def power(self, value: Any) -> Tensor:
        """With what is at the key raised to the power `value`.

        >>> import tapejit as tj
        >>> print(tj.asarray([2.0, 3.0]).at[1].power(2.0))
        [2. 9.]
        """
        return self._combined("power", value)

    def min(self, value: Any) -> Tensor:
        """With the smaller of what is at the key and `value`.

        >>> import tapejit as tj
        >>> print(tj.asarray([1.0, 5.0, 9.0]).at[1:].min(6.0))
        [1. 5. 6.]
        """
        return self._combined("min", value)

    def max(self, value: Any) -> Tensor:
        """With the larger of what is at the key and `value`.

        >>> import tapejit as tj
        >>> print(tj.asarray([1.0, 5.0, 9.0]).at[:2].max(3.0))
        [3. 5. 9.]
        """
        return self._combined("max", value)

    # How

    def _accumulated(self, name: str, value: Any) -> Tensor:
        """Sums: one op adds everything, whatever is repeated."""
        x = as_operand(self._given, f"at.{name}")
        if x.dtype.kind == "b":
            return self._combined(name, value)
        values = self._as_values(x, value, name)
        masked = self._masked(x, values, name)
        if masked is not None:
            return masked
        if name == "subtract":
            values = apply(ops.negative, values)
        rows = self._rows(x, name)
        if rows is not None:
            values = permute_dims(self._spread(values, rows.shape, name), rows.order)
            with labelled(f"at.{name}"):
                return apply(ops.gather_add, x, values, *rows.indices, axes=rows.axes)
        positions, values = self._aligned(x, values, name)
        out = apply(ops.gather_add, ravel(x), values, positions, axes=(0,))
        return reshape(out, x.shape)

    def _combined(self, name: str, value: Any) -> Tensor:
        """Round by round: each takes one more value of every position that has one.

        The positions with the most values come first, so those that have run out of
        values are at the end, where they are cut off.
        """
        update = UPDATES[name]
        x = as_operand(self._given, f"at.{name}")
        if name == "divide" and not is_differentiable(x.dtype):
            raise DTypeError(
                f"{x._type} cannot hold quotients",
                op="at.divide",
                help="convert it first with x.astype(tj.float32)",
            )
        values = self._as_values(x, value, name)
        masked = self._masked(x, values, name)
        if masked is not None:
            return masked
        positions, values = self._aligned(x, values, name)
        if positions.size == 0:
            return _written(x, positions, values)
        if isinstance(positions, TracedTensor):
            if self._may_repeat():
                if _is_ordered(x, name):
                    return _extremes(x, positions, values, name)
                return _combined_traced(x, positions, values, name)
            cells: Tensor = positions
            rounds: list[Array | None] = [None]
        else:
            places = np.asarray(positions._value)
            if _is_ordered(x, name) and not _is_distinct(places, x.size):
                return _extremes(x, positions, values, name)
            cells, rounds = _plan(places, x.size)
        wide = _accumulator(x, len(rounds))
        current = apply(ops.gather, cast(ravel(x), wide), cells, axes=(0,))
        values = cast(values, wide)
        finished: list[Tensor] = []
        for taken in rounds:
            part = values
            if taken is not None:
                part = apply(ops.gather, values, Tensor(taken, CONSTANT), axes=(0,))
            if part.size < current.size:
                finished.append(stretch(current, part.size, current.size, 0))
                current = stretch(current, 0, part.size, 0)
            current = apply(update.op, current, part)
        outcome = concat([current, *reversed(finished)])
        return _written(x, cells, cast(outcome, x.dtype))

    def _masked(self, x: Tensor, values: Tensor, name: str) -> Tensor | None:
        """The result by a mask that is being traced, if that is how it can be had."""
        mask = self._traced_mask()
        pair = None if mask is None else _where_masked(x, mask, values, name)
        return None if pair is None else _combined_where(x, *pair, name)

    def _aligned(self, x: Tensor, values: Tensor, name: str) -> tuple[Tensor, Tensor]:
        """Positions and values, one of each, along one axis."""
        try:
            with labelled(f"at.{name}"):
                positions = indexing.flat_positions(x, self._key)
        except TapejitError as error:
            error.op = f"at.{name}"
            raise
        values = self._spread(values, positions.shape, name)
        return ravel(positions), ravel(values)

    def _rows(self, x: Tensor, name: str) -> indexing.RowKey | None:
        """The key as indices of rows, if that is what it is."""
        try:
            with labelled(f"at.{name}"):
                return indexing.row_key(x, self._key)
        except TapejitError as error:
            error.op = f"at.{name}"
            raise

    def _spread(self, values: Tensor, shape: tuple[Any, ...], name: str) -> Tensor:
        """The values in the shape of `x[key]`."""
        surplus = values.ndim - len(shape)
        if surplus > 0 and values.shape[:surplus] == (1,) * surplus:
            values = reshape(values, values.shape[surplus:])
        try:
            return broadcast_to(values, shape)
        except ShapeError:
            raise ShapeError(
                f"values of {values._type} do not fit the selected shape {shape}",
                op=f"at.{name}",
                help="values broadcast to the shape of x[key]",
            ) from None

    def _as_values(self, x: Tensor, value: Any, name: str) -> Tensor:
        """The values in the dtype of `x`, as an assignment converts them."""
        if is_weak(value):
            scalar = python_scalar(value)
            _check_kind(x, scalar_dtype(scalar), name)
            return weak_scalar(scalar, x.dtype)
        given = as_operand(value, f"at.{name}")
        _check_kind(x, given.dtype, name)
        if isinstance(value, (list, tuple)) and x.dtype.kind in "iu":
            return convert(value, x.dtype, name=f"at.{name}")  # refuses what is too big
        return cast(given, x.dtype)

    def _traced_mask(self) -> TracedTensor | None:
        """The key, if it is a mask whose elements are not known yet."""
        key = self._key
        if isinstance(key, tuple) and len(key) == 1:
            key = key[0]
        is_mask = isinstance(key, TracedTensor) and key.dtype.kind == "b"
        return key if is_mask else None

    def _may_repeat(self) -> bool:
        """Whether a traced key may name a position twice: numbers, masks do not."""
        entries = self._key if isinstance(self._key, tuple) else (self._key,)
        return any(
            isinstance(entry, (list, tuple))
            or (getattr(entry, "ndim", 0) and entry.dtype.kind != "b")
            for entry in entries
        )


def _rank(dtype: Any) -> int:
    """The order of kinds: bool, integer, float, complex."""
    if dtype.kind in "iu":
        return 1
    return 2 * is_float(dtype) or 3 * is_complex(dtype)


def _check_kind(x: Tensor, dtype: Any, name: str) -> None:
    """As NumPy: an assignment takes any real number, a computation keeps its kind."""
    fits = _rank(dtype) <= max(_rank(x.dtype), 2 if name == "set" else 0)
    if not fits:
        raise DTypeError(
            f"{dtype} values do not fit {x._type}, whose dtype the result keeps",
            op=f"at.{name}",
            help=f'convert one of them: x.astype("{dtype.name}") or '
            f'value.astype("{x.dtype.name}")',
        )


def _accumulator(x: Tensor, rounds: int) -> Any:
    """The dtype to compute in: halves are rounded once, at the end."""
    is_half = is_float(x.dtype) and x.dtype.itemsize == 2
    return np.dtype(np.float32) if is_half and rounds > 1 else x.dtype


def _written(x: Tensor, positions: Tensor, values: Tensor) -> Tensor:
    """`x` with `values` at flat positions; of several the last."""
    if isinstance(positions, TracedTensor) or x.dtype.kind == "b":
        sources = apply(ops.written_from, positions, size=x.size)
        out = apply(ops.gather, concat([ravel(x), values]), sources, axes=(0,))
        return reshape(out, x.shape)
    places = np.asarray(positions._value)
    if not _is_distinct(places, x.size):
        number = np.arange(places.size)
        writer = np.empty(x.size, number.dtype)
        writer[places] = number
        stays = np.flatnonzero(writer[places] == number)
        places = places[stays]
        values = apply(ops.gather, values, Tensor(stays, CONSTANT), axes=(0,))
    is_written = np.zeros(x.size, bool)
    is_written[places] = True
    cleared = apply(
        ops.where, Tensor(is_written, CONSTANT), _nothing(x.dtype), ravel(x)
    )
    out = apply(ops.gather_add, cleared, values, Tensor(places, CONSTANT), axes=(0,))
    return reshape(out, x.shape)


def _nothing(dtype: Any) -> Tensor:
    """What gives v when v is added, also if v is -0.0: for floats that is -0.0."""
    return weak_scalar(complex(-0.0, -0.0) if is_complex(dtype) else -0.0, dtype)


def _is_distinct(places: Array, size: int) -> bool:
    """Whether no position is named twice; sorting them would take far longer."""
    is_named = np.zeros(size, bool)
    is_named[places] = True
    return int(np.count_nonzero(is_named)) == places.size


def _plan(positions: Array, size: int) -> tuple[Tensor, list[Array | None]]:
    """The distinct positions, and for each round which values it takes.

    Positions are sorted by how many values they have, most first: round k takes the
    k-th value of the first so many. None stands for all values in their order.

    >>> cells, rounds = _plan(np.array([7, 5, 5]), 9)
    >>> print(cells, rounds)
    [5 7] [array([1, 0]), array([2])]
    """
    if _is_distinct(positions, size):
        return Tensor(positions, CONSTANT), [None]
    order = np.argsort(positions, kind="stable")
    in_order = positions[order]
    is_first = np.concatenate([[True], in_order[1:] != in_order[:-1]])
    starts = np.flatnonzero(is_first)
    counts = np.diff(starts, append=positions.size)
    crowded = np.argsort(-counts, kind="stable")
    starts, counts = starts[crowded], counts[crowded]
    numbers = [int(np.sum(counts > k)) for k in range(int(counts[0]))]
    rounds: list[Array | None] = [
        order[starts[:number] + k] for k, number in enumerate(numbers)
    ]
    return Tensor(in_order[starts], CONSTANT), rounds


# Positions that are repeated: minimum and maximum are segments, all else is rounds


def _is_ordered(x: Tensor, name: str) -> bool:
    """Whether an update takes the extreme of numbers."""
    return name in ("min", "max") and (is_float(x.dtype) or x.dtype.kind in "iu")


def _extremes(x: Tensor, positions: Tensor, values: Tensor, name: str) -> Tensor:
    """The extreme of each element and its values; of equal ones the first.

    A scatter-max: the values of a position are a segment. Whose value it is, is found
    out by number, so that the gradient goes there.
    """
    is_min = name == "min"
    values = cast(values, x.dtype)

    def of_segment(op: Op, each: Tensor) -> Tensor:
        found = apply(op, each, positions, size=x.size)
        return apply(ops.gather, found, positions, axes=(0,))

    extreme = of_segment(ops.segment_min if is_min else ops.segment_max, values)
    is_nan = apply(ops.not_equal, values, values)
    is_it = apply(ops.bitwise_or, apply(ops.equal, values, extreme), is_nan)
    count = positions.size
    after = weak_scalar(count, np.dtype(np.int64))
    numbers = apply(ops.where, is_it, apply(ops.iota, size=count), after)
    first = of_segment(ops.segment_min, numbers)
    part = apply(ops.gather, values, first, axes=(0,))
    current = apply(ops.gather, ravel(x), positions, axes=(0,))
    return _written(x, positions, apply(UPDATES[name].op, current, part))


# Masks that are being traced: how many elements they select is not known


def _where_masked(
    x: Tensor, mask: TracedTensor, values: Tensor, name: str
) -> tuple[Tensor, Tensor] | None:
    """The mask and the values, both with as many axes as `x`.

    None if each True element has a value of its own: then its number matters, which a
    function that is being mapped does not know.
    """
    if mask.shape != x.shape[: mask.ndim]:
        return None  # which the key says when it is used
    try:
        there = broadcast_to(values, x.shape[mask.ndim :])
    except ShapeError:
        indexing.count_true(mask, f"at.{name}: one value per True element")
        return None
    return with_axes(mask, x.ndim), broadcast_to(there, x.shape)


def _combined_where(x: Tensor, where: Tensor, there: Tensor, name: str) -> Tensor:
    """Everywhere, with a neutral value where the mask is False, and then chosen.

    Without the neutral value a division by zero that nobody asked for would spoil the
    gradient.
    """
    update = UPDATES[name]
    rest = x if update.neutral is None else weak_scalar(update.neutral, x.dtype)
    safe = apply(ops.where, where, there, rest)
    return apply(ops.where, where, apply(update.op, x, safe), x)


# Positions that are being traced: which of them are repeated is not known


def _combined_traced(x: Tensor, positions: Tensor, values: Tensor, name: str) -> Tensor:
    """Round by round, as `_combined`, with all positions in every round.

    In order, equal positions are neighbours, and each of them computes what their
    element becomes. Only the number of rounds has to be known.
    """
    order = apply(ops.argsort, positions, axis=0, descending=False)
    cells = apply(ops.gather, positions, order, axes=(0,))
    first = apply(ops.searchsorted, cells, cells, side="left")
    after = apply(ops.searchsorted, cells, cells, side="right")
    counts = apply(ops.sub, after, first)
    most = apply(ops.max, counts, axes=(0,), keepdims=False)
    rounds = indexing.number_of(most, f"at.{name}: which positions are repeated")
    wide = _accumulator(x, rounds)
    current = apply(ops.gather, cast(ravel(x), wide), cells, axes=(0,))
    values = cast(apply(ops.gather, values, order, axes=(0,)), wide)
    last = weak_scalar(positions.size - 1, counts.dtype)
    for done in range(rounds):
        step = weak_scalar(done, counts.dtype)
        at = apply(ops.minimum, apply(ops.add, first, step), last)
        part = apply(ops.gather, values, at, axes=(0,))
        has_more = apply(ops.greater, counts, step)
        current = _combined_where(current, has_more, part, name)
    return _written(x, cells, cast(current, x.dtype))


__all__ = ["At", "Selected"]
