"""Changing some rows of a variable: `scatter_add` and its relatives.

Rows are named by integers along the first axis. One that is named several times is
changed several times, in order; half precision is rounded once, at the end. Each method
is a NumPy ufunc's `at` on a copy of the value. In a trace it is a change of `x.at`, or,
for products and extremes, a reduction by segment: an element and the values that meet
it are a segment, and how often it is named need not be known.

`v[1:].assign(x)` writes a part: the tensor `v[1:]` remembers what it is a `PartOf`.

Start reading at `Scatters`, then `traced_change`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tapejit import ops
from tapejit.array.creation import asarray
from tapejit.array.indexing import flat_positions
from tapejit.array.manipulation import broadcast_to, concat, reshape
from tapejit.base.errors import ArgumentTypeError, DTypeError
from tapejit.base.types import DType, is_complex, is_differentiable
from tapejit.ir.node import Op
from tapejit.tensor.dispatch import apply, cast
from tapejit.tensor.tensor import Provenance, Tensor

Write = Callable[..., None]


class Scatters:
    """The methods of a variable that change some of its rows."""

    __slots__ = ()

    if TYPE_CHECKING:
        _name: str

        @property
        def dtype(self) -> DType: ...

        def _write_part(
            self, name: str, key: Any, updates: Any, write: Write
        ) -> Tensor: ...

    def scatter_add(self, indices: Any, updates: Any) -> Tensor:
        """Add `updates` at integer positions along the first axis.

        >>> import tapejit as tj
        >>> tj.Variable([1.0, 2.0, 3.0]).scatter_add([0, 0], [10.0, 10.0])
        <tj.Tensor f32[3] [21.  2.  3.]>
        """
        return self._scatter("scatter_add", indices, updates, np.add.at)

    def scatter_sub(self, indices: Any, updates: Any) -> Tensor:
        """Subtract `updates` at integer positions along the first axis.

        >>> import tapejit as tj
        >>> tj.Variable([1.0, 2.0, 3.0]).scatter_sub([0, 0], [10.0, 10.0])
        <tj.Tensor f32[3] [-19.   2.   3.]>
        """
        return self._scatter("scatter_sub", indices, updates, np.subtract.at)

    def scatter_mul(self, indices: Any, updates: Any) -> Tensor:
        """Multiply by `updates` at integer positions along the first axis.

        >>> import tapejit as tj
        >>> tj.Variable([1.0, 2.0, 3.0]).scatter_mul([0, 0, 2], [10.0, 10.0, 2.0])
        <tj.Tensor f32[3] [100.   2.   6.]>
        """
        return self._scatter("scatter_mul", indices, updates, np.multiply.at)

    def scatter_div(self, indices: Any, updates: Any) -> Tensor:
        """Divide by `updates` at integer positions along the first axis.

        >>> import tapejit as tj
        >>> tj.Variable([1.0, 2.0, 3.0]).scatter_div([0, 2], [4.0, 2.0])
        <tj.Tensor f32[3] [0.25 2.   1.5 ]>
        """
        if not is_differentiable(self.dtype):
            raise DTypeError(
                f"a variable of {self.dtype} cannot hold quotients",
                op="scatter_div",
                help="make the variable of floats",
            )
        return self._scatter("scatter_div", indices, updates, np.divide.at)

    def scatter_min(self, indices: Any, updates: Any) -> Tensor:
        """Keep the smaller of value and `updates` at positions along the first axis.

        >>> import tapejit as tj
        >>> tj.Variable([1.0, 2.0, 3.0]).scatter_min([0, 2, 2], [5.0, 2.5, 0.5])
        <tj.Tensor f32[3] [1.  2.  0.5]>
        """
        return self._scatter_extreme("scatter_min", indices, updates, np.minimum.at)

    def scatter_max(self, indices: Any, updates: Any) -> Tensor:
        """Keep the larger of value and `updates` at positions along the first axis.

        >>> import tapejit as tj
        >>> tj.Variable([1.0, 2.0, 3.0]).scatter_max([0, 2, 2], [5.0, 2.5, 0.5])
        <tj.Tensor f32[3] [5. 2. 3.]>
        """
        return self._scatter_extreme("scatter_max", indices, updates, np.maximum.at)

    def scatter_update(self, indices: Any, updates: Any) -> Tensor:
        """Replace the slices at integer positions along the first axis.

        >>> import tapejit as tj
        >>> tj.Variable([1.0, 2.0, 3.0]).scatter_update([1], [20.0])
        <tj.Tensor f32[3] [ 1. 20.  3.]>
        """
        return self._scatter("scatter_update", indices, updates, set_at)

    def _scatter_extreme(
        self, name: str, indices: Any, updates: Any, write: Write
    ) -> Tensor:
        if is_complex(self.dtype):
            raise DTypeError(f"complex numbers have no order: {self.dtype}", op=name)
        return self._scatter(name, indices, updates, write)

    def _scatter(self, name: str, indices: Any, updates: Any, write: Write) -> Tensor:
        is_empty = isinstance(indices, (list, tuple)) and not indices
        index = asarray(indices, dtype=np.dtype(np.int32) if is_empty else None)
        if index.dtype.kind not in "iu":
            raise DTypeError(f"indices are integers, got {index._type}", op=name)
        return self._write_part(name, index, updates, write)


def set_at(flat: Any, positions: Any, values: Any) -> None:
    """What the `at` of an assignment would be."""
    flat[positions] = values


class PartOf(Provenance):
    """The origin of `v[key]`: enough to assign to that part."""

    __slots__ = ("key", "owner")

    def __init__(self, owner: Scatters, key: Any) -> None:
        super().__init__("getitem", None, owner._name)
        self.owner = owner
        self.key = key


def assign_part(part: Tensor, value: Any, name: str, op: Any = None) -> Tensor:
    """`v[key].assign(value)` and its relatives."""
    made = part._made
    if not isinstance(made, PartOf):
        raise ArgumentTypeError(
            "a tensor cannot be assigned to",
            op=name,
            help="only a Variable v and its parts v[i] can: v[i].assign(x)",
        )
    write = set_at if op is None else op
    return made.owner._write_part(name, made.key, value, write)


METHODS: Final[dict[Any, str]] = {
    set_at: "set",
    np.add.at: "add",
    np.subtract.at: "subtract",
    np.multiply.at: "multiply",
    np.divide.at: "divide",
    np.minimum.at: "min",
    np.maximum.at: "max",
}
# Asked for when needed: their family is loaded late.
SEGMENTS: Final[dict[Any, Callable[[], Op]]] = {
    np.multiply.at: lambda: ops.segment_prod,
    np.minimum.at: lambda: ops.segment_min,
    np.maximum.at: lambda: ops.segment_max,
}


def traced_change(value: Tensor, key: Any, source: Tensor, write: Write) -> Tensor:
    """A traced value with a part of it changed."""
    segmented = SEGMENTS.get(write)
    if segmented is None or value.dtype.kind == "b":
        changed: Tensor = getattr(value.at[key], METHODS[write])(source)
        return changed
    places = flat_positions(value, key)
    updates = broadcast_to(cast(source, value.dtype), places.shape)
    elements = [reshape(x, (-1,)) for x in (value, updates)]
    numbers = [apply(ops.iota, size=value.size), reshape(places, (-1,))]
    out = apply(segmented(), concat(elements), concat(numbers), size=value.size)
    return reshape(out, value.shape)
