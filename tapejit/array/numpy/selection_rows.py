"""Rows of NumPy's table for movement, selection and sequences.

Each entry is what `table.Row` takes: tapejit's function or an adapter, and
NumPy's parameters in its order.

Start reading at `ROWS`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from tapejit.array import arrangement, elementwise, positions, selection, sequences
from tapejit.base.numpy_adapter import NO_VALUE
from tapejit.tensor.tensor import Tensor


def _converted(join: Callable[[list[Any]], Tensor]) -> Callable[..., Tensor]:
    """A function that joins, with NumPy's dtype of the result."""

    def adapter(tup: Any, *, dtype: Any = None) -> Tensor:
        return join([x if dtype is None else elementwise.astype(x, dtype) for x in tup])

    return adapter


def _diff(
    a: Any,
    *,
    n: int = 1,
    axis: int = -1,
    prepend: Any = NO_VALUE,
    append: Any = NO_VALUE,
) -> Tensor:
    ends = [None if end is NO_VALUE else end for end in (prepend, append)]
    return sequences.diff(a, n=n, axis=axis, prepend=ends[0], append=ends[1])


def _broadcast_arrays(*args: Any) -> tuple[Tensor, ...]:
    return tuple(arrangement.broadcast_arrays(*args))


def _meshgrid(*xi: Any, **options: Any) -> tuple[Tensor, ...]:
    return tuple(arrangement.meshgrid(*xi, **options))


ROWS: Final[dict[Any, tuple[Callable[..., Any], str]]] = {
    # The order of axes
    np.moveaxis: (arrangement.moveaxis, "a source destination"),
    np.swapaxes: (arrangement.swapaxes, "a axis1 axis2"),
    np.rot90: (arrangement.rot90, "m; k axes"),
    # Rolling and repeating
    np.roll: (arrangement.roll, "a shift; axis"),
    np.tile: (arrangement.tile, "A reps"),
    np.repeat: (arrangement.repeat, "a repeats; axis"),
    # Taking apart
    np.split: (arrangement.split, "ary indices_or_sections; axis"),
    np.array_split: (arrangement.array_split, "ary indices_or_sections; axis"),
    np.vsplit: (arrangement.vsplit, "ary indices_or_sections"),
    np.hsplit: (arrangement.hsplit, "ary indices_or_sections"),
    np.dsplit: (arrangement.dsplit, "ary indices_or_sections"),
    np.unstack: (arrangement.unstack, "x; axis"),
    # Putting together
    np.ravel: (arrangement.ravel, "a; order"),
    np.atleast_1d: (arrangement.atleast_1d, "*arys"),
    np.atleast_2d: (arrangement.atleast_2d, "*arys"),
    np.atleast_3d: (arrangement.atleast_3d, "*arys"),
    np.vstack: (_converted(arrangement.vstack), "tup; dtype"),
    np.hstack: (_converted(arrangement.hstack), "tup; dtype"),
    np.dstack: (arrangement.dstack, "tup"),
    np.column_stack: (arrangement.column_stack, "tup"),
    np.append: (arrangement.append, "arr values; axis"),
    np.broadcast_arrays: (_broadcast_arrays, "*args; subok"),
    np.meshgrid: (_meshgrid, "*xi; copy sparse indexing"),
    # Selection
    np.take_along_axis: (selection.take_along_axis, "arr indices; axis"),
    np.select: (selection.select, "condlist choicelist; default"),
    np.compress: (selection.compress, "condition a; axis out"),
    np.tril: (selection.tril, "m; k"),
    np.triu: (selection.triu, "m; k"),
    np.diag: (selection.diag, "v; k"),
    np.diagflat: (selection.diagflat, "v; k"),
    np.diagonal: (selection.diagonal, "a; offset axis1 axis2"),
    np.delete: (selection.delete, "arr obj; axis"),
    np.insert: (selection.insert, "arr obj values; axis"),
    np.unravel_index: (positions.unravel_index, "indices; shape order"),
    np.ravel_multi_index: (positions.ravel_multi_index, "multi_index dims; mode order"),
    # Sequences
    np.diff: (_diff, "a; n axis prepend append"),
    np.ediff1d: (sequences.ediff1d, "ary; to_end to_begin"),
    np.trapezoid: (sequences.trapezoid, "y; x dx axis"),
    np.gradient: (sequences.gradient, "*f; axis edge_order"),
    np.interp: (sequences.interp, "x xp fp; left right period"),
    np.convolve: (sequences.convolve, "a v; mode"),
    np.correlate: (sequences.correlate, "a v; mode"),
    np.kron: (sequences.kron, "a b"),
}
