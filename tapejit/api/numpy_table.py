"""The table of NumPy's functions: what each of them is in tapejit.

One Row per function, with its parameters in NumPy's order; an adapter stands in where
NumPy's parameters differ from those of tapejit's function. Ufuncs need no row.

Start reading at `FUNCTIONS`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from tapejit.api import (
    creation,
    elementwise,
    fft,
    indexing,
    linear,
    manipulation,
    reductions,
)
from tapejit.api.dispatch import as_operand
from tapejit.api.tensor import Tensor
from tapejit.errors import ArgumentError, UnsupportedError
from tapejit.numpy_adapter import NO_VALUE
from tapejit.ops.shapes import normalize_axes, normalize_axis
from tapejit.types import is_complex, is_differentiable

# Refusals

WAYS_OUT: Final[dict[str, str]] = {
    "dtype=": "convert the operands, x.astype(dtype), or the result",
    "where=": "apply tj.where to the operands or to the result",
}


def function_name(function: Any) -> str:
    """`np.linalg.norm`, as users write it."""
    module = getattr(function, "__module__", None) or "numpy"
    return f"{module}.{function.__name__}".replace("numpy.", "np.", 1)


def refused_argument(
    function: Any, argument: str, value: Any = NO_VALUE
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
    x = a if dtype is None else elementwise.astype(a, dtype)
    return reductions.mean(x, axis=axis, keepdims=keepdims)


def _ptp(a: Any, *, axis: Any = None, keepdims: bool = False) -> Tensor:
    high = reductions.max(a, axis=axis, keepdims=keepdims)
    return elementwise.subtract(high, reductions.min(a, axis=axis, keepdims=keepdims))


def _count_nonzero(a: Any, *, axis: Any = None, keepdims: bool = False) -> Tensor:
    counted = elementwise.as_bool(as_operand(a))
    return reductions.sum(counted, axis=axis, dtype="int64", keepdims=keepdims)


def _clip(
    a: Any, a_min: Any = None, a_max: Any = None, *, min: Any = None, max: Any = None
) -> Tensor:
    low, high = a_min if min is None else min, a_max if max is None else max
    return elementwise.clip(a, low, high)


def _round(a: Any, decimals: int = 0) -> Tensor:
    x = as_operand(a)
    if decimals == 0 or (decimals > 0 and not is_differentiable(x.dtype)):
        return elementwise.round(x)
    if not is_differentiable(x.dtype):
        raise refused_argument(np.round, "decimals", decimals)
    # As NumPy: dividing by 10.0**n is exact more often than multiplying by 10.0**-n.
    scale = float(10 ** abs(decimals))
    if decimals > 0:
        return elementwise.divide(elementwise.round(x * scale), scale)
    return elementwise.multiply(elementwise.round(x / scale), scale)


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


def _isclose(
    a: Any, b: Any, *, rtol: Any = 1e-5, atol: Any = 1e-8, equal_nan: bool = False
) -> Tensor:
    x, y = as_operand(a, "isclose"), as_operand(b, "isclose")
    if not is_differentiable(y.dtype):
        y = elementwise.astype(y, "float64")  # unsigned differences would wrap
    near = elementwise.less_equal(abs(x - y), atol + rtol * abs(y))
    finite = elementwise.logical_and(near, elementwise.isfinite(y))
    close = elementwise.logical_or(finite, elementwise.equal(x, y))
    if equal_nan:
        both = elementwise.logical_and(elementwise.isnan(x), elementwise.isnan(y))
        close = elementwise.logical_or(close, both)
    return close


def _allclose(a: Any, b: Any, **options: Any) -> bool:
    return bool(reductions.all(_isclose(a, b, **options)))


def _array_equal(a1: Any, a2: Any, *, equal_nan: bool = False) -> bool:
    x, y = as_operand(a1, "array_equal"), as_operand(a2, "array_equal")
    if x.shape != y.shape:
        return False
    same = x == y
    if equal_nan:
        same = same | (elementwise.isnan(x) & elementwise.isnan(y))
    return bool(reductions.all(same))


def _transpose(a: Any, axes: Any = None) -> Tensor:
    x = as_operand(a, "transpose")
    order = range(x.ndim)[::-1] if axes is None else axes
    return manipulation.permute_dims(x, tuple(order))


def _swapaxes(a: Any, axis1: int, axis2: int) -> Tensor:
    x = as_operand(a, "swapaxes")
    first, second = normalize_axis(axis1, x.ndim), normalize_axis(axis2, x.ndim)
    order = list(range(x.ndim))
    order[first], order[second] = second, first
    return manipulation.permute_dims(x, order)


def _moveaxis(a: Any, source: Any, destination: Any) -> Tensor:
    x = as_operand(a, "moveaxis")
    sources, places = (
        [normalize_axis(operator.index(at), x.ndim) for at in np.atleast_1d(given)]
        for given in (source, destination)
    )
    if len(sources) != len(places):
        raise ArgumentError(
            f"moves {len(sources)} axes to {len(places)} places", op="np.moveaxis"
        )
    order = [at for at in range(x.ndim) if at not in sources]
    for place, at in sorted(zip(places, sources, strict=True)):
        order.insert(place, at)
    return manipulation.permute_dims(x, order)


def _ravel(a: Any) -> Tensor:
    return manipulation.reshape(a, (-1,))


def _atleast(rank: int) -> Callable[..., Any]:
    def adapter(*arrays: Any) -> Any:
        out = []
        for x in map(as_operand, arrays):
            missing = max(rank - x.ndim, 0)
            out.append(manipulation.reshape(x, (1,) * missing + x.shape))
        return out[0] if len(out) == 1 else tuple(out)

    return adapter


def _concatenate(arrays: Any, *, axis: Any = 0, dtype: Any = None) -> Tensor:
    return manipulation.concat(_converted(arrays, dtype), axis=axis)


def _stack(arrays: Any, *, axis: int = 0, dtype: Any = None) -> Tensor:
    return manipulation.stack(_converted(arrays, dtype), axis=axis)


def _vstack(tup: Any, *, dtype: Any = None) -> Tensor:
    rows = [_atleast(2)(x) for x in _converted(tup, dtype)]
    return manipulation.concat(rows, axis=0)


def _hstack(tup: Any, *, dtype: Any = None) -> Tensor:
    parts = [_atleast(1)(x) for x in _converted(tup, dtype)]
    return manipulation.concat(parts, axis=0 if parts and parts[0].ndim == 1 else 1)


def _converted(arrays: Any, dtype: Any) -> list[Any]:
    return [x if dtype is None else elementwise.astype(x, dtype) for x in arrays]


def _pad(
    array: Any, pad_width: Any, *, mode: Any = "constant", constant_values: Any = 0
) -> Tensor:
    if mode != "constant":
        raise refused_argument(np.pad, "mode", mode)
    x = as_operand(array, "pad")
    widths = np.broadcast_to(np.asarray(pad_width), (x.ndim, 2)).tolist()
    return manipulation.pad(x, widths, constant_values=constant_values)


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


def _dot(a: Any, b: Any) -> Tensor:
    x, y = as_operand(a, "dot"), as_operand(b, "dot")
    if not x.ndim or not y.ndim:
        return elementwise.multiply(x, y)
    if x.ndim > 1 and y.ndim > 2:
        raise UnsupportedError(
            f"takes one operand of rank 1 or a second of rank 2, got {x._type} and "
            f"{y._type}",
            op="np.dot",
            help="x @ y pairs the leading axes instead of crossing them",
        )
    return linear.matmul(x, y)


def _inner(a: Any, b: Any) -> Tensor:
    x, y = as_operand(a, "inner"), as_operand(b, "inner")
    if y.ndim > 2:
        raise UnsupportedError(
            f"takes a second operand of rank 2 at most, got {y._type}",
            op="np.inner",
            help="reshape it to a matrix first",
        )
    return _dot(x, y.T)


def _outer(a: Any, b: Any) -> Tensor:
    column, row = manipulation.reshape(a, (-1, 1)), manipulation.reshape(b, (1, -1))
    return elementwise.multiply(column, row)


def _vdot(a: Any, b: Any) -> Tensor:
    return linear.matmul(elementwise.conj(_ravel(a)), _ravel(b))


def divmod_of(x: Any, y: Any) -> tuple[Tensor, Tensor]:
    return elementwise.floor_divide(x, y), elementwise.remainder(x, y)


def _size(a: Any, axis: Any = None) -> Any:
    size = 1
    for at in normalize_axes(axis, a.ndim):
        size *= a.shape[at]
    return size


# The tables


def _norm(x: Any, ord: Any = 2, axis: Any = None, keepdims: bool = False) -> Tensor:
    """The Euclidean length, which is also what NumPy means by ord=None."""
    if ord not in (None, 2) or (ord == 2 and axis is None and np.ndim(x) == 2):
        raise UnsupportedError(f"np.linalg.norm has no ord={ord!r} for tensors")
    return linear.vector_norm(x, axis=axis, keepdims=keepdims)


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

FUNCTIONS: Final[dict[Any, Row]] = {
    # Reductions
    np.sum: Row(reductions.sum, TYPED_REDUCTION),
    np.prod: Row(reductions.prod, TYPED_REDUCTION),
    np.mean: Row(_mean, TYPED_REDUCTION),
    np.max: Row(reductions.max, REDUCTION),
    np.min: Row(reductions.min, REDUCTION),
    np.amax: Row(reductions.max, REDUCTION),
    np.amin: Row(reductions.min, REDUCTION),
    np.ptp: Row(_ptp, REDUCTION),
    np.argmax: Row(reductions.argmax, REDUCTION),
    np.argmin: Row(reductions.argmin, REDUCTION),
    np.all: Row(reductions.all, REDUCTION),
    np.any: Row(reductions.any, REDUCTION),
    np.count_nonzero: Row(_count_nonzero, "a; axis keepdims"),
    # Element by element
    np.where: Row(_where, "condition x y"),
    np.clip: Row(_clip, "a a_min a_max; out min max"),
    np.round: Row(_round, "a; decimals out"),
    np.around: Row(_round, "a; decimals out"),
    np.real: Row(elementwise.real, "val"),
    np.imag: Row(elementwise.imag, "val"),
    np.angle: Row(_angle, "z deg"),
    np.astype: Row(elementwise.astype, "x dtype"),
    np.isclose: Row(_isclose, "a b; rtol atol equal_nan"),
    # Questions with a Python answer
    np.shape: Row(lambda a: a.shape, "a"),
    np.ndim: Row(lambda a: len(a.shape), "a"),
    np.size: Row(_size, "a axis"),
    np.iscomplexobj: Row(lambda x: is_complex(x.dtype), "x"),
    np.isrealobj: Row(lambda x: not is_complex(x.dtype), "x"),
    np.allclose: Row(_allclose, "a b; rtol atol equal_nan"),
    np.array_equal: Row(_array_equal, "a1 a2; equal_nan"),
    # Shapes
    np.reshape: Row(manipulation.reshape, "a shape; order"),
    np.ravel: Row(_ravel, "a; order"),
    np.transpose: Row(_transpose, "a axes"),
    np.matrix_transpose: Row(manipulation.matrix_transpose, "x"),
    np.linalg.matrix_transpose: Row(manipulation.matrix_transpose, "x"),
    np.swapaxes: Row(_swapaxes, "a axis1 axis2"),
    np.moveaxis: Row(_moveaxis, "a source destination"),
    np.expand_dims: Row(manipulation.expand_dims, "a; axis"),
    np.squeeze: Row(manipulation.squeeze, "a axis"),
    np.broadcast_to: Row(manipulation.broadcast_to, "array shape; subok"),
    np.atleast_1d: Row(_atleast(1), "*arys"),
    np.atleast_2d: Row(_atleast(2), "*arys"),
    np.flip: Row(manipulation.flip, "m; axis"),
    np.flipud: Row(lambda m: manipulation.flip(m, axis=0), "m"),
    np.fliplr: Row(lambda m: manipulation.flip(m, axis=1), "m"),
    np.pad: Row(_pad, "array pad_width; mode constant_values"),
    np.concatenate: Row(_concatenate, "arrays; axis out dtype"),
    np.stack: Row(_stack, "arrays; axis out dtype"),
    np.vstack: Row(_vstack, "tup; dtype"),
    np.hstack: Row(_hstack, "tup; dtype"),
    np.take: Row(_take, "a indices; axis out mode"),
    # New tensors like old ones
    np.zeros_like: Row(_zeros_like, "a; dtype order subok shape"),
    np.ones_like: Row(_ones_like, "a; dtype order subok shape"),
    np.empty_like: Row(_zeros_like, "prototype; dtype order subok shape"),
    np.full_like: Row(_full_like, "a fill_value; dtype order subok shape"),
    np.copy: Row(_copy, "a; order subok"),
    # Products; np.matmul is a ufunc
    np.dot: Row(_dot, "a b; out"),
    np.inner: Row(_inner, "a b"),
    np.outer: Row(_outer, "a b; out"),
    np.vdot: Row(_vdot, "a b"),
    np.linalg.matmul: Row(linear.matmul, "x1 x2"),
    np.linalg.norm: Row(_norm, "x; ord axis keepdims"),
    np.linalg.vector_norm: Row(_norm, "x; axis keepdims ord"),
    np.linalg.outer: Row(_outer, "x1 x2"),
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


def row_of(function: Any) -> Row | None:
    """The Row of a NumPy function, None if it has none."""
    found = FUNCTIONS.get(function)
    if found is None and getattr(function, "__module__", None) == "numpy.fft":
        return FOURIER.get(function.__name__)
    return found
