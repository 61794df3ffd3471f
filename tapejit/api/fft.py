"""Fourier transforms, public as `tj.fft`: the array API's extension.

All are compositions of one record, the unscaled transform along one axis. `n` pads
with zeros or cuts, `norm` says which direction is scaled by 1/n ("backward", the
default, scales the inverse; "forward" the other; "ortho" both by the root).

Start reading at `fft`, then `irfft`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from tapejit import ops
from tapejit.api.creation import check_device
from tapejit.api.dispatch import apply, as_operand, binary, cast
from tapejit.api.elementwise import conj, real
from tapejit.api.manipulation import concat, flip, pad
from tapejit.api.tensor import Made, Tensor
from tapejit.errors import ArgumentError, DTypeError
from tapejit.ops.shapes import normalize_axes, normalize_axis
from tapejit.origin import user_origin
from tapejit.types import (
    as_dtype,
    complex_dtype,
    default_float,
    is_complex,
    is_differentiable,
)

NORMS = ("backward", "ortho", "forward")


def _operand(x: Any, name: str) -> Tensor:
    x = as_operand(x, name)
    return x if is_differentiable(x.dtype) else cast(x, default_float())


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
    if norm not in NORMS:
        raise ArgumentError(f"norm is one of {', '.join(NORMS)}, got {norm!r}")
    if norm == "ortho":
        return binary(ops.mul, x, 1 / math.sqrt(count))
    if inverse == (norm == "backward"):
        return binary(ops.mul, x, 1 / count)
    return x


def _transform(
    x: Any, n: int | None, axis: int, norm: str, *, inverse: bool, name: str
) -> Tensor:
    x = _operand(x, name)
    at = normalize_axis(axis, x.ndim)
    x = _resized(cast(x, complex_dtype(x.dtype)), n, at, name)
    out = apply(ops.fourier, x, axis=at, inverse=inverse)
    return _scale(out, norm, x.shape[at], inverse=inverse)


def fft(
    x: Any, /, *, n: int | None = None, axis: int = -1, norm: str = "backward"
) -> Tensor:
    """The discrete Fourier transform along an axis.

    >>> import tapejit as tj
    >>> print(tj.fft.fft(tj.asarray([1.0, 0.0, 0.0, 0.0])))
    [1.+0.j 1.+0.j 1.+0.j 1.+0.j]
    """
    return _transform(x, n, axis, norm, inverse=False, name="fft")


def ifft(
    x: Any, /, *, n: int | None = None, axis: int = -1, norm: str = "backward"
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
    x: Any, /, *, n: int | None = None, axis: int = -1, norm: str = "backward"
) -> Tensor:
    """The transform of a real tensor: the n // 2 + 1 frequencies that matter.

    >>> import tapejit as tj
    >>> print(tj.fft.rfft(tj.asarray([1.0, 0.0, 0.0, 0.0])))
    [1.+0.j 1.+0.j 1.+0.j]
    """
    x = _operand(x, "rfft")
    _check_real(x, "rfft")
    whole = _transform(x, n, axis, norm, inverse=False, name="rfft")
    at = normalize_axis(axis, whole.ndim)
    return whole[(slice(None),) * at + (slice(0, whole.shape[at] // 2 + 1),)]


def irfft(
    x: Any, /, *, n: int | None = None, axis: int = -1, norm: str = "backward"
) -> Tensor:
    """The inverse of `rfft`; `n` is the length of the real result.

    >>> import tapejit as tj
    >>> print(tj.fft.irfft(tj.asarray([4.0, 0.0, 0.0])))
    [1. 1. 1. 1.]
    """
    whole = _mirrored(x, n, axis, "irfft")
    return real(_transform(whole, None, axis, norm, inverse=True, name="irfft"))


def _mirrored(x: Any, n: int | None, axis: int, name: str) -> Tensor:
    """The whole spectrum of a real signal of length `n` from its first half."""
    given = _operand(x, name)
    at = normalize_axis(axis, given.ndim)
    given = cast(given, complex_dtype(given.dtype))
    size = 2 * (given.shape[at] - 1) if n is None else operator.index(n)
    if size < 1:
        raise ArgumentError(f"a transform has at least 1 point, got {size}", op=name)
    half = _resized(given, size // 2 + 1, at, name)

    def part(start: int, stop: int) -> Tensor:
        return half[(slice(None),) * at + (slice(start, stop),)]

    # The imaginary parts of frequency 0 and of the last of an even length are not
    # those of a real signal: they are left out, as in NumPy.
    first = cast(real(part(0, 1)), half.dtype)
    inner = part(1, (size + 1) // 2)
    pieces = [first, inner]
    if size % 2 == 0:
        pieces.append(cast(real(part(size // 2, size // 2 + 1)), half.dtype))
    pieces.append(conj(flip(inner, axis=at)))
    return concat(pieces, axis=at)


def hfft(
    x: Any, /, *, n: int | None = None, axis: int = -1, norm: str = "backward"
) -> Tensor:
    """The transform of a signal with Hermitian symmetry: a real spectrum.

    >>> import tapejit as tj
    >>> print(tj.fft.hfft(tj.asarray([1.0, 0.0, 0.0])))
    [1. 1. 1. 1.]
    """
    whole = _mirrored(x, n, axis, "hfft")
    return real(_transform(whole, None, axis, norm, inverse=False, name="hfft"))


def ihfft(
    x: Any, /, *, n: int | None = None, axis: int = -1, norm: str = "backward"
) -> Tensor:
    """The inverse of `hfft`.

    >>> import tapejit as tj
    >>> print(tj.fft.ihfft(tj.asarray([4.0, 0.0, 0.0, 0.0])))
    [1.+0.j 1.+0.j 1.+0.j]
    """
    x = _operand(x, "ihfft")
    _check_real(x, "ihfft")
    whole = _transform(x, n, axis, norm, inverse=True, name="ihfft")
    at = normalize_axis(axis, whole.ndim)
    return whole[(slice(None),) * at + (slice(0, whole.shape[at] // 2 + 1),)]


def _axes(
    x: Tensor, s: Sequence[int] | None, axes: Sequence[int] | None, name: str
) -> list[tuple[int | None, int]]:
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


def fftn(
    x: Any,
    /,
    *,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: str = "backward",
) -> Tensor:
    """The transform along several axes, all by default.

    >>> import tapejit as tj
    >>> tj.fft.fftn(tj.ones((2, 3))).shape
    (2, 3)
    """
    x = _operand(x, "fftn")
    for n, axis in reversed(_axes(x, s, axes, "fftn")):
        x = fft(x, n=n, axis=axis, norm=norm)
    return cast(x, complex_dtype(x.dtype))


def ifftn(
    x: Any,
    /,
    *,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: str = "backward",
) -> Tensor:
    """The inverse of `fftn`.

    >>> import tapejit as tj
    >>> tj.fft.ifftn(tj.ones((2, 3))).shape
    (2, 3)
    """
    x = _operand(x, "ifftn")
    for n, axis in reversed(_axes(x, s, axes, "ifftn")):
        x = ifft(x, n=n, axis=axis, norm=norm)
    return cast(x, complex_dtype(x.dtype))


def rfftn(
    x: Any,
    /,
    *,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: str = "backward",
) -> Tensor:
    """The transform of a real tensor along several axes, halved along the last.

    >>> import tapejit as tj
    >>> tj.fft.rfftn(tj.ones((2, 4))).shape
    (2, 3)
    """
    x = _operand(x, "rfftn")
    _check_real(x, "rfftn")
    *before, (n, axis) = _axes(x, s, axes, "rfftn")
    out = rfft(x, n=n, axis=axis, norm=norm)
    for n, axis in reversed(before):
        out = fft(out, n=n, axis=axis, norm=norm)
    return out


def irfftn(
    x: Any,
    /,
    *,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: str = "backward",
) -> Tensor:
    """The inverse of `rfftn`; `s` are the lengths of the real result.

    >>> import tapejit as tj
    >>> tj.fft.irfftn(tj.ones((2, 3))).shape
    (2, 4)
    """
    x = _operand(x, "irfftn")
    *before, (n, axis) = _axes(x, s, axes, "irfftn")
    for size, at in before:
        x = ifft(x, n=size, axis=at, norm=norm)
    return irfft(x, n=n, axis=axis, norm=norm)


def fftfreq(
    n: int, /, *, d: float = 1.0, dtype: Any = None, device: Any = None
) -> Tensor:
    """The frequencies of the elements of a transform of length `n`.

    >>> import tapejit as tj
    >>> print(tj.fft.fftfreq(4))
    [ 0.    0.25 -0.5  -0.25]
    """
    check_device(device)
    kind = default_float() if dtype is None else as_dtype(dtype)
    made = Made("constant", user_origin(2))
    return Tensor(np.fft.fftfreq(n, d).astype(kind), made)


def rfftfreq(
    n: int, /, *, d: float = 1.0, dtype: Any = None, device: Any = None
) -> Tensor:
    """The frequencies of the elements of a real transform of length `n`.

    >>> import tapejit as tj
    >>> print(tj.fft.rfftfreq(4))
    [0.   0.25 0.5 ]
    """
    check_device(device)
    kind = default_float() if dtype is None else as_dtype(dtype)
    made = Made("constant", user_origin(2))
    return Tensor(np.fft.rfftfreq(n, d).astype(kind), made)


def fftshift(x: Any, /, *, axes: int | Sequence[int] | None = None) -> Tensor:
    """Frequency 0 moved to the middle.

    >>> import tapejit as tj
    >>> print(tj.fft.fftshift(tj.asarray([0, 1, -2, -1])))
    [-2 -1  0  1]
    """
    return _shifted(x, axes, lambda size: size // 2)


def ifftshift(x: Any, /, *, axes: int | Sequence[int] | None = None) -> Tensor:
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


__all__ = [
    "fft",
    "fftfreq",
    "fftn",
    "fftshift",
    "hfft",
    "ifft",
    "ifftn",
    "ifftshift",
    "ihfft",
    "irfft",
    "irfftn",
    "rfft",
    "rfftfreq",
    "rfftn",
]
