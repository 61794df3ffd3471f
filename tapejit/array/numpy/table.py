"""The table of NumPy's functions: what each of them is in tapejit.

One Row per function, with its parameters in NumPy's order; an adapter stands in where
NumPy's parameters differ from those of tapejit's function. Ufuncs need no row.

Start reading at `FUNCTIONS`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from tapejit.array import (
    array_api,
    comparison,
    creation,
    elementwise,
    fft,
    float_bits,
    histogram,
    indexing,
    manipulation,
    nan_statistics,
    reductions,
    scans,
    sorting,
    statistics,
    trigonometry,
)
from tapejit.array.manipulation import Axis
from tapejit.array.numpy import linalg_rows, names, selection_rows
from tapejit.base.errors import UnsupportedError
from tapejit.base.numpy_adapter import NO_VALUE
from tapejit.base.types import is_complex, is_differentiable
from tapejit.ops.shapes import normalize_axes
from tapejit.tensor.dispatch import as_operand
from tapejit.tensor.tensor import Tensor

# Refusals

WAYS_OUT: Final[dict[str, str]] = {
    "dtype=": "convert the operands, x.astype(dtype), or the result",
    "where=": "apply tj.where to the operands or to the result",
}


def function_name(function: Callable[..., Any]) -> str:
    """`np.linalg.norm`, as users write it."""
    module = getattr(function, "__module__", None) or "numpy"
    return f"{module}.{function.__name__}".replace("numpy.", "np.", 1)


def refused_argument(
    function: Callable[..., Any], argument: str, value: Any = NO_VALUE
) -> UnsupportedError:
    if argument.isidentifier():
        argument += "=" if value is NO_VALUE else f"={value!r}"
    return refused(function_name(function), argument)


def refused(name: str, argument: str) -> UnsupportedError:
    return UnsupportedError(
        f"takes no {argument} with tensors",
        op=name,
        help=WAYS_OUT.get(
            argument,
            f"if no gradient is needed through it, write {name}(x.numpy(), ...)",
        ),
    )


# Adapters: NumPy's parameters on the left, tapejit's functions on the right


def _mean(
    a: Any, *, axis: Any = None, dtype: Any = None, keepdims: bool = False
) -> Tensor:
    return reductions.mean(a, axis, dtype, keepdims=keepdims)


def _nanmean(
    a: Any, *, axis: Axis = None, dtype: Any = None, keepdims: bool = False
) -> Tensor:
    x = a if dtype is None else elementwise.astype(a, dtype)
    return nan_statistics.nanmean(x, axis=axis, keepdims=keepdims)


def _clip(
    a: Any, a_min: Any = None, a_max: Any = None, *, min: Any = None, max: Any = None
) -> Tensor:
    low, high = a_min if min is None else min, a_max if max is None else max
    return elementwise.clip(a, low, high)


def _round(a: Any, decimals: int = 0) -> Tensor:
    x = as_operand(a)
    if decimals < 0 and not is_differentiable(x.dtype):
        raise refused_argument(np.round, "decimals", decimals)
    return elementwise.round(x, decimals)


def _angle(z: Any, deg: bool = False) -> Tensor:
    out = elementwise.angle(z)
    return elementwise.multiply(out, 180 / np.pi) if deg else out


def _where(condition: Any, x: Any = None, y: Any = None) -> Tensor:
    if x is None or y is None:
        raise UnsupportedError(
            "the positions of True elements are not a function of tensors",
            op="np.where(condition)",
            help="np.where(condition, x, y) is; for the positions write "
            "np.nonzero(condition.numpy())",
        )
    return elementwise.where(condition, x, y)


def _ravel(a: Any) -> Tensor:
    return manipulation.reshape(a, (-1,))


def _concatenate(arrays: Any, *, axis: Any = 0, dtype: Any = None) -> Tensor:
    return manipulation.concat(_converted(arrays, dtype), axis=axis)


def _stack(arrays: Any, *, axis: int = 0, dtype: Any = None) -> Tensor:
    return manipulation.stack(_converted(arrays, dtype), axis=axis)


def _converted(arrays: Any, dtype: Any) -> list[Any]:
    return [x if dtype is None else elementwise.astype(x, dtype) for x in arrays]


def _pad(
    array: Any, pad_width: Any, *, mode: Any = "constant", constant_values: Any = 0
) -> Tensor:
    if mode not in ("constant", *manipulation.REPEATED):
        raise refused_argument(np.pad, "mode", mode)
    x = as_operand(array, "pad")
    widths = np.broadcast_to(np.asarray(pad_width), (x.ndim, 2)).tolist()
    return manipulation.pad(x, widths, mode, constant_values=constant_values)


def _may_share_memory(a: Any, b: Any) -> bool:
    """Of no use for a write, as tensors never change; libraries ask it of copies."""
    return np.may_share_memory(np.asarray(a), np.asarray(b))


def _take(a: Any, indices: Any, *, axis: Any = None, mode: str = "raise") -> Tensor:
    if mode != "raise":
        raise refused_argument(np.take, "mode", mode)
    return indexing.take(a, indices, axis=axis)


def _full_like(
    a: Any, fill_value: Any, *, dtype: Any = None, shape: Any = None
) -> Tensor:
    if shape is None:
        return creation.full_like(a, fill_value, dtype=dtype)
    kind = a.dtype if dtype is None else dtype
    return creation.full(shape, fill_value, dtype=kind)


def _zeros_like(a: Any, **options: Any) -> Tensor:
    return _full_like(a, 0, **options)


def _ones_like(a: Any, **options: Any) -> Tensor:
    return _full_like(a, 1, **options)


def _copy(a: Any) -> Tensor:
    return a if isinstance(a, Tensor) else a.value()


def _size(a: Any, axis: Any = None) -> Any:
    size = 1
    for at in normalize_axes(axis, a.ndim):
        size *= a.shape[at]
    return size


# The tables


class Row:
    """What a NumPy function is in tapejit.

    `parameters` names NumPy's, in its order: those before the semicolon are passed
    on by position, those after it by name. `*x` takes every positional argument.
    """

    __slots__ = ("call", "is_variadic", "names", "positional")

    def __init__(self, call: Callable[..., Any], parameters: str) -> None:
        by_position, _, by_name = parameters.partition(";")
        self.call = call
        self.positional = by_position.split()
        self.names = self.positional + by_name.split()
        self.is_variadic = by_position.startswith("*")


REDUCTION: Final = "a; axis out keepdims"
TYPED_REDUCTION: Final = "a; axis dtype out keepdims"
SPREAD: Final = "a; axis dtype out ddof keepdims correction"
QUANTILE: Final = "a q; axis out overwrite_input method keepdims"
CUMULATIVE: Final = "x; axis dtype out include_initial"
PARTITION: Final = "a kth axis; kind order"

FUNCTIONS: Final[dict[Any, Row]] = {
    # Reductions
    np.sum: Row(reductions.sum, TYPED_REDUCTION),
    np.prod: Row(reductions.prod, TYPED_REDUCTION),
    np.mean: Row(_mean, TYPED_REDUCTION),
    np.max: Row(reductions.max, REDUCTION),
    np.min: Row(reductions.min, REDUCTION),
    np.amax: Row(reductions.max, REDUCTION),
    np.amin: Row(reductions.min, REDUCTION),
    np.ptp: Row(statistics.ptp, REDUCTION),
    np.argmax: Row(reductions.argmax, REDUCTION),
    np.argmin: Row(reductions.argmin, REDUCTION),
    np.all: Row(reductions.all, REDUCTION),
    np.any: Row(reductions.any, REDUCTION),
    np.count_nonzero: Row(statistics.count_nonzero, "a; axis keepdims"),
    np.var: Row(statistics.numpy_spread(statistics.var), SPREAD),
    np.std: Row(statistics.numpy_spread(statistics.std), SPREAD),
    np.average: Row(statistics.average, "a; axis weights returned keepdims"),
    np.nansum: Row(nan_statistics.nansum, TYPED_REDUCTION),
    np.nanmean: Row(_nanmean, TYPED_REDUCTION),
    np.nanmax: Row(nan_statistics.nanmax, REDUCTION),
    np.nanmin: Row(nan_statistics.nanmin, REDUCTION),
    np.nanprod: Row(nan_statistics.nanprod, TYPED_REDUCTION),
    np.nanvar: Row(statistics.numpy_spread(nan_statistics.nanvar), SPREAD),
    np.nanstd: Row(statistics.numpy_spread(nan_statistics.nanstd), SPREAD),
    np.nanmedian: Row(
        statistics.numpy_overwriting(nan_statistics.nanmedian),
        "a; axis out overwrite_input keepdims",
    ),
    np.nancumsum: Row(nan_statistics.nancumsum, "a; axis dtype out"),
    np.nancumprod: Row(nan_statistics.nancumprod, "a; axis dtype out"),
    np.median: Row(
        statistics.numpy_overwriting(statistics.median),
        "a; axis out overwrite_input keepdims",
    ),
    np.quantile: Row(statistics.numpy_overwriting(statistics.quantile), QUANTILE),
    np.percentile: Row(statistics.numpy_overwriting(statistics.percentile), QUANTILE),
    np.bincount: Row(histogram.bincount, "x weights; minlength"),
    np.histogram: Row(histogram.histogram, "a bins range; density weights"),
    np.digitize: Row(histogram.digitize, "x bins; right"),
    # Scans
    np.cumsum: Row(scans.numpy_cumulative(scans.cumulative_sum), "a; axis dtype out"),
    np.cumprod: Row(scans.numpy_cumulative(scans.cumulative_prod), "a; axis dtype out"),
    np.cumulative_sum: Row(scans.cumulative_sum, CUMULATIVE),
    np.cumulative_prod: Row(scans.cumulative_prod, CUMULATIVE),
    # Sorting and searching
    np.sort: Row(sorting.numpy_sorted(sorting.sort), "a; axis kind order stable"),
    np.argsort: Row(sorting.numpy_sorted(sorting.argsort), "a; axis kind order stable"),
    np.partition: Row(sorting.numpy_partitioned(sorting.partition), PARTITION),
    np.argpartition: Row(sorting.numpy_partitioned(sorting.argpartition), PARTITION),
    np.searchsorted: Row(sorting.searchsorted, "a v; side sorter"),
    np.isin: Row(
        sorting.numpy_isin, "element test_elements; assume_unique invert kind"
    ),
    np.nonzero: Row(sorting.nonzero, "a"),
    np.flatnonzero: Row(sorting.numpy_flatnonzero, "a"),
    np.argwhere: Row(sorting.argwhere, "a"),
    np.unique: Row(
        sorting.numpy_unique,
        "ar; return_index return_inverse return_counts axis equal_nan sorted",
    ),
    np.unique_all: Row(sorting.unique_all, "x"),
    np.unique_counts: Row(sorting.unique_counts, "x"),
    np.unique_inverse: Row(sorting.unique_inverse, "x"),
    np.unique_values: Row(sorting.unique_values, "x"),
    # Element by element
    np.where: Row(_where, "condition x y"),
    np.clip: Row(_clip, "a a_min a_max; out min max"),
    np.round: Row(_round, "a; decimals out"),
    np.around: Row(_round, "a; decimals out"),
    np.fix: Row(elementwise.trunc, "x; out"),
    np.real: Row(elementwise.real, "val"),
    np.imag: Row(elementwise.imag, "val"),
    np.angle: Row(_angle, "z deg"),
    np.astype: Row(elementwise.astype, "x dtype"),
    np.isclose: Row(comparison.isclose, "a b; rtol atol equal_nan"),
    np.sinc: Row(trigonometry.sinc, "x"),
    np.nan_to_num: Row(float_bits.nan_to_num, "x; copy nan posinf neginf"),
    # Questions with a Python answer
    np.shape: Row(lambda a: a.shape, "a"),
    np.ndim: Row(lambda a: len(a.shape), "a"),
    np.size: Row(_size, "a axis"),
    np.may_share_memory: Row(_may_share_memory, "a b"),
    np.shares_memory: Row(_may_share_memory, "a b"),
    np.can_cast: Row(array_api.can_cast, "from_ to"),
    np.result_type: Row(array_api.result_type, "*arrays_and_dtypes"),
    np.iscomplexobj: Row(lambda x: is_complex(x.dtype), "x"),
    np.isrealobj: Row(lambda x: not is_complex(x.dtype), "x"),
    np.allclose: Row(comparison.allclose, "a b; rtol atol equal_nan"),
    np.array_equal: Row(comparison.array_equal, "a1 a2; equal_nan"),
    # Shapes
    np.reshape: Row(manipulation.reshape, "a shape; order"),
    np.transpose: Row(names.transpose, "a; axes"),
    np.matrix_transpose: Row(manipulation.matrix_transpose, "x"),
    np.expand_dims: Row(manipulation.expand_dims, "a; axis"),
    np.squeeze: Row(manipulation.squeeze, "a axis"),
    np.broadcast_to: Row(manipulation.broadcast_to, "array shape; subok"),
    np.flip: Row(manipulation.flip, "m; axis"),
    np.flipud: Row(lambda m: manipulation.flip(m, axis=0), "m"),
    np.fliplr: Row(lambda m: manipulation.flip(m, axis=1), "m"),
    np.pad: Row(_pad, "array pad_width; mode constant_values"),
    np.concatenate: Row(_concatenate, "arrays; axis out dtype"),
    np.stack: Row(_stack, "arrays; axis out dtype"),
    np.take: Row(_take, "a indices; axis out mode"),
    # New tensors like old ones
    np.zeros_like: Row(_zeros_like, "a; dtype order subok shape"),
    np.ones_like: Row(_ones_like, "a; dtype order subok shape"),
    np.empty_like: Row(_zeros_like, "prototype; dtype order subok shape"),
    np.full_like: Row(_full_like, "a fill_value; dtype order subok shape"),
    np.copy: Row(_copy, "a; order subok"),
    # Products and linear algebra
    **{name: Row(*row) for name, row in linalg_rows.ROWS.items()},
    # Movement, selection, sequences
    **{name: Row(*row) for name, row in selection_rows.ROWS.items()},
}


# numpy.fft is imported by those who use it, so its functions are known by name.
FOURIER: Final[dict[str, Row]] = {
    **{
        name: Row(getattr(fft, name), "a; n axis norm out")
        for name in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
    },
    **{
        name: Row(getattr(fft, name), "a; s axes norm out")
        for name in ("fftn", "ifftn", "rfftn", "irfftn")
    },
    "fftshift": Row(fft.fftshift, "x; axes"),
    "ifftshift": Row(fft.ifftshift, "x; axes"),
}


def row_of(function: Callable[..., Any]) -> Row | None:
    """The Row of a NumPy function, None if it has none."""
    found = FUNCTIONS.get(function)
    if found is None and getattr(function, "__module__", None) == "numpy.fft":
        return FOURIER.get(function.__name__)
    return found
