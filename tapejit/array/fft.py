"""Fourier transforms, public as `tj.fft`: the array API's extension.

All are compositions of three records: the unscaled transform along one axis, that of a
real line to half of its frequencies, and the inverse of that. `n` pads
with zeros or cuts, `norm` says which direction is scaled by 1/n ("backward", the
default, scales the inverse; "forward" the other; "ortho" both by the root).

Start reading at `fft`, then `irfft`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tapejit import ops
from tapejit.array.elementwise import conj
from tapejit.array.manipulation import concat, pad
from tapejit.base.errors import ArgumentError, DTypeError
from tapejit.base.origin import user_origin
from tapejit.base.public import names_in
from tapejit.base.types import as_dtype, complex_dtype, default_float, is_complex
from tapejit.ops.shapes import normalize_axes, normalize_axis
from tapejit.ops.transforms import OPPOSITE, check_norm
from tapejit.tensor.device import placed
from tapejit.tensor.dispatch import apply, as_float, as_operand, binary, cast
from tapejit.tensor.tensor import Provenance, Tensor

Sizes = Sequence[int] | None


def _resized(x: Tensor, n: int | None, axis: int, name: str) -> Tensor:
    """`x` with `n` elements along an axis: zeros behind, or the first ones."""
    if n is None:
        return x
    size = operator.index(n)
    if size < 1:
        raise ArgumentError(f"a transform has at least 1 point, got n={n}", op=name)
    if size < x.shape[axis]:
        return x[(slice(None),) * axis + (slice(0, size),)]
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, size - x.shape[axis])
    return pad(x, widths) if size > x.shape[axis] else x


def _scale(x: Tensor, norm: str, count: int, *, inverse: bool) -> Tensor:
    check_norm(norm)
    if norm == "ortho":
        return binary(ops.mul, x, 1 / math.sqrt(count))
    if inverse == (norm == "backward"):
        return binary(ops.mul, x, 1 / count)
    return x


def _transform(
    x: Any, n: int | None, axis: int, norm: str, *, inverse: bool, name: str
) -> Tensor:
    x = as_float(as_operand(x, name))
    at = normalize_axis(axis, x.ndim)
    x = _resized(cast(x, complex_dtype(x.dtype)), n, at, name)
    out = apply(ops.fourier, x, axis=at, inverse=inverse)
    return _scale(out, norm, x.shape[at], inverse=inverse)


def fft(
    x: Any, /, n: int | None = None, axis: int = -1, norm: str = "backward"
) -> Tensor:
    """The discrete Fourier transform along an axis.

    >>> import tapejit as tj
    >>> print(tj.fft.fft(tj.asarray([1.0, 0.0, 0.0, 0.0])))
    [1.+0.j 1.+0.j 1.+0.j 1.+0.j]
    """
    return _transform(x, n, axis, norm, inverse=False, name="fft")


def ifft(
    x: Any, /, n: int | None = None, axis: int = -1, norm: str = "backward"
) -> Tensor:
    """The inverse of `fft`.

    >>> import tapejit as tj
    >>> print(tj.fft.ifft(tj.asarray([4.0, 0.0, 0.0, 0.0])))
    [1.+0.j 1.+0.j 1.+0.j 1.+0.j]
    """
    return _transform(x, n, axis, norm, inverse=True, name="ifft")


def _check_real(x: Tensor, name: str) -> None:
    if is_complex(x.dtype):
        raise DTypeError(f"takes real tensors, got {x._type}", op=name, help="use fft")


def rfft(
    x: Any, /, n: int | None = None, axis: int = -1, norm: str = "backward"
) -> Tensor:
    """The transform of a real tensor: the n // 2 + 1 frequencies that matter.

    >>> import tapejit as tj
    >>> print(tj.fft.rfft(tj.asarray([1.0, 0.0, 0.0, 0.0])))
    [1.+0.j 1.+0.j 1.+0.j]
    """
    return _half(x, None if n is None else [n], [axis], norm, "rfft")


def _half(x: Any, s: Any, axes: Any, norm: str, name: str) -> Tensor:
    """The frequencies of a real tensor that matter; halves are computed in single."""
    check_norm(norm)
    x = as_float(as_operand(x, name))
    _check_real(x, name)
    pairs = _axes(x, s, axes, name)
    for n, at in pairs:
        x = _resized(x, n, at, name)
    along = tuple(at for _, at in pairs)
    return apply(ops.real_fourier, x, axes=along, norm=norm, is_transpose=False)


def irfft(
    x: Any, /, n: int | None = None, axis: int = -1, norm: str = "backward"
) -> Tensor:
    """The inverse of `rfft`; `n` is the length of the real result.

    >>> import tapejit as tj
    >>> print(tj.fft.irfft(tj.asarray([4.0, 0.0, 0.0])))
    [1. 1. 1. 1.]
    """
    return _whole(x, None if n is None else [n], [axis], norm, "irfft")


def _whole(
    x: Any, s: Any, axes: Any, norm: str, name: str, *, mirror: bool = False
) -> Tensor:
    """The real tensor of which these are the frequencies; with `mirror`, backwards."""
    check_norm(norm)
    x = as_float(as_operand(x, name))
    x = cast(x, complex_dtype(x.dtype))
    *before, (n, last) = _axes(x, s, axes, name)
    size = 2 * (x.shape[last] - 1) if n is None else operator.index(n)
    if size < 1:
        raise ArgumentError(f"a transform has at least 1 point, got {size}", op=name)
    for count, at in [*before, (size // 2 + 1, last)]:
        x = _resized(x, count, at, name)
    return apply(
        ops.inverse_real_fourier,
        conj(x) if mirror else x,
        axes=(*(at for _, at in before), last),
        length=size,
        norm=norm,
        is_transpose=False,
    )


def hfft(
    x: Any, /, n: int | None = None, axis: int = -1, norm: str = "backward"
) -> Tensor:
    """The transform of a signal with Hermitian symmetry: a real spectrum.

    >>> import tapejit as tj
    >>> print(tj.fft.hfft(tj.asarray([1.0, 0.0, 0.0])))
    [1. 1. 1. 1.]
    """
    check_norm(norm)
    sizes = None if n is None else [n]
    return _whole(x, sizes, [axis], OPPOSITE[norm], "hfft", mirror=True)


def ihfft(
    x: Any, /, n: int | None = None, axis: int = -1, norm: str = "backward"
) -> Tensor:
    """The inverse of `hfft`.

    >>> import tapejit as tj
    >>> print(tj.fft.ihfft(tj.asarray([4.0, 0.0, 0.0, 0.0])))
    [1.-0.j 1.-0.j 1.-0.j]
    """
    check_norm(norm)
    sizes = None if n is None else [n]
    return conj(_half(x, sizes, [axis], OPPOSITE[norm], "ihfft"))


def _axes(x: Tensor, s: Sizes, axes: Sizes, name: str) -> list[tuple[int | None, int]]:
    """Pairs of length and axis, in order."""
    if axes is None:
        first = 0 if s is None else x.ndim - len(s)
        chosen = list(range(first, x.ndim))
    else:
        chosen = [normalize_axis(operator.index(at), x.ndim) for at in axes]
    sizes: Sequence[int | None] = [None] * len(chosen) if s is None else list(s)
    if len(sizes) != len(chosen):
        raise ArgumentError(f"{len(sizes)} lengths for {len(chosen)} axes", op=name)
    return list(zip(sizes, chosen, strict=True))


def _along_each(
    transform: Callable[..., Tensor], x: Any, s: Any, axes: Any, norm: str, name: str
) -> Tensor:
    x = as_float(as_operand(x, name))
    for n, axis in reversed(_axes(x, s, axes, name)):
        x = transform(x, n=n, axis=axis, norm=norm)
    return cast(x, complex_dtype(x.dtype))


def fftn(
    x: Any, /, s: Sizes = None, axes: Sizes = None, norm: str = "backward"
) -> Tensor:
    """The transform along several axes, all by default.

    >>> import tapejit as tj
    >>> tj.fft.fftn(tj.ones((2, 3))).shape
    (2, 3)
    """
    return _along_each(fft, x, s, axes, norm, "fftn")


def ifftn(
    x: Any, /, s: Sizes = None, axes: Sizes = None, norm: str = "backward"
) -> Tensor:
    """The inverse of `fftn`.

    >>> import tapejit as tj
    >>> tj.fft.ifftn(tj.ones((2, 3))).shape
    (2, 3)
    """
    return _along_each(ifft, x, s, axes, norm, "ifftn")


def rfftn(
    x: Any, /, s: Sizes = None, axes: Sizes = None, norm: str = "backward"
) -> Tensor:
    """The transform of a real tensor along several axes, halved along the last.

    >>> import tapejit as tj
    >>> tj.fft.rfftn(tj.ones((2, 4))).shape
    (2, 3)
    """
    x = as_float(as_operand(x, "rfftn"))
    pairs = _axes(x, s, axes, "rfftn")
    if _are_distinct(pairs):
        return _half(x, s, axes, norm, "rfftn")
    *before, (n, axis) = pairs
    out = rfft(x, n=n, axis=axis, norm=norm)
    for n, axis in reversed(before):
        out = fft(out, n=n, axis=axis, norm=norm)
    return out


def _are_distinct(pairs: Sequence[tuple[Any, int]]) -> bool:
    """Whether each axis is transformed once; NumPy takes one several times."""
    return len({at for _, at in pairs}) == len(pairs)


def irfftn(
    x: Any, /, s: Sizes = None, axes: Sizes = None, norm: str = "backward"
) -> Tensor:
    """The inverse of `rfftn`; `s` are the lengths of the real result.

    >>> import tapejit as tj
    >>> tj.fft.irfftn(tj.ones((2, 3))).shape
    (2, 4)
    """
    x = as_float(as_operand(x, "irfftn"))
    pairs = _axes(x, s, axes, "irfftn")
    if _are_distinct(pairs):
        return _whole(x, s, axes, norm, "irfftn")
    *before, (n, axis) = pairs
    for size, at in before:
        x = ifft(x, n=size, axis=at, norm=norm)
    return irfft(x, n=n, axis=axis, norm=norm)


def fftfreq(
    n: int, /, d: float = 1.0, *, dtype: Any = None, device: Any = None
) -> Tensor:
    """The frequencies of the elements of a transform of length `n`.

    >>> import tapejit as tj
    >>> print(tj.fft.fftfreq(4))
    [ 0.    0.25 -0.5  -0.25]
    """
    return _frequencies(np.fft.fftfreq, n, d, dtype, device)


def rfftfreq(
    n: int, /, d: float = 1.0, *, dtype: Any = None, device: Any = None
) -> Tensor:
    """The frequencies of the elements of a real transform of length `n`.

    >>> import tapejit as tj
    >>> print(tj.fft.rfftfreq(4))
    [0.   0.25 0.5 ]
    """
    return _frequencies(np.fft.rfftfreq, n, d, dtype, device)


def _frequencies(of: Any, n: int, d: float, dtype: Any, device: Any) -> Tensor:
    kind = default_float() if dtype is None else as_dtype(dtype)
    made = Provenance("constant", user_origin(3))
    return placed(Tensor(of(n, d).astype(kind), made), device)


def fftshift(x: Any, /, axes: int | Sequence[int] | None = None) -> Tensor:
    """Frequency 0 moved to the middle.

    >>> import tapejit as tj
    >>> print(tj.fft.fftshift(tj.asarray([0, 1, -2, -1])))
    [-2 -1  0  1]
    """
    return _shifted(x, axes, lambda size: size // 2)


def ifftshift(x: Any, /, axes: int | Sequence[int] | None = None) -> Tensor:
    """The inverse of `fftshift`.

    >>> import tapejit as tj
    >>> print(tj.fft.ifftshift(tj.asarray([-2, -1, 0, 1])))
    [ 0  1 -2 -1]
    """
    return _shifted(x, axes, lambda size: (size + 1) // 2)


def _shifted(x: Any, axes: int | Sequence[int] | None, by: Any) -> Tensor:
    """Cut each axis and exchange the parts."""
    out = as_operand(x, "fftshift")
    for at in normalize_axes(axes, out.ndim):
        cut = out.shape[at] - by(out.shape[at])
        head = (slice(None),) * at
        parts = [out[(*head, slice(cut, None))], out[(*head, slice(0, cut))]]
        out = concat(parts, axis=at)
    return out


if not TYPE_CHECKING:  # checkers see what is defined here
    __all__ = names_in(globals())
