"""Discrete Fourier transforms: of complex tensors, and of real ones.

A transform is linear. The matrix of the complex one is symmetric, so it is its own
transpose: the derivative of `fourier` is `fourier`.

`real_fourier` gives the first half of the frequencies, which is all there is to know of
a real line, and `inverse_real_fourier` takes them. What a half stands for is the whole
spectrum, mirrored. So the transpose of one is the other except for a weight: a
frequency that has a mirror image counts twice. With `is_transpose` either is the
transpose of the other, weights included, and takes no more time. Several axes are
transformed at once; the last of them is the one that is halved.

Other lengths are paddings and slices around these.

Start reading at `fourier`, then `real_fourier`.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from tapejit.base.dims import Size
from tapejit.base.errors import ArgumentError, AxisError, ShapeError
from tapejit.base.types import TensorType, complex_dtype, real_dtype
from tapejit.base.workers import run_pieces, threads
from tapejit.ir.node import ALL, Node, Op, record
from tapejit.ir.structural import batch_stack
from tapejit.ops.arithmetic import cast
from tapejit.ops.elementwise import Cotangents, check_kind
from tapejit.ops.shapes import Axes, tensor

# SciPy, which takes 0.2 s to import, is asked from so many elements on. It computes
# in single precision what is given in single, and several lines at a time.
MANY: Final = 4_096
# From so many on its threads gain more than they take to start.
MANY_FOR_THREADS: Final = 131_072

NORMS: Final = ("backward", "ortho", "forward")
# The scale of an inverse that is a transform's, as NumPy calls it: each norm scales
# one of the two, so that they undo each other.
OPPOSITE: Final = {"backward": "forward", "ortho": "ortho", "forward": "backward"}


def check_line(kind: TensorType, axis: int) -> None:
    if not 0 <= axis < kind.ndim:
        raise AxisError(f"axis {axis} does not exist in {kind}")
    if kind.shape[axis] == 0:
        raise ShapeError(f"axis {axis} of {kind} has no elements to transform")


# fourier


def fourier_type(x: Any, *, axis: int, inverse: bool) -> TensorType:
    """A complex tensor transformed along one axis; nothing changes its type."""
    kind = tensor(x)
    check_kind(kind.dtype, ("complex",))
    check_line(kind, axis)
    return kind


def fourier_eval(x: Any, *, axis: int, inverse: bool) -> Any:
    """Unscaled in both directions: the sum of x exp(∓2πi jk/n).

    NumPy's, which computes complex64 in double precision; several threads share lines.
    """
    out = np.empty_like(x)
    # The longest other axis is shared.
    others = [at for at in range(x.ndim) if at != axis]
    shared = max(others, key=lambda at: int(x.shape[at]), default=None)
    if shared is None or not x.size:
        transform_lines(x, out, axis, inverse)
        return out

    def work(lines: slice) -> None:
        at = (slice(None),) * shared + (lines,)
        transform_lines(x[at], out[at], axis, inverse)

    run_pieces(work, x.shape[shared], x.size)
    return out


def transform_lines(x: Any, out: Any, axis: int, inverse: bool) -> None:
    if inverse:
        np.fft.ifft(x, axis=axis, norm="forward", out=out)
    else:
        np.fft.fft(x, axis=axis, norm="backward", out=out)


def fourier_vjp(g: Node, out: Node, x: Node, *, axis: int, inverse: bool) -> Cotangents:
    """The matrix of the transform is symmetric."""
    return (fourier(g, axis=axis, inverse=inverse),)


fourier: Op = record(
    "fourier",
    type_rule=fourier_type,
    eval=fourier_eval,
    vjp=fourier_vjp,
    batch=batch_stack("fourier"),
    linear=ALL,
)


# real_fourier and inverse_real_fourier


def check_norm(norm: str) -> None:
    if norm not in NORMS:
        raise ArgumentError(f"norm is one of {', '.join(NORMS)}, got {norm!r}")


def check_lines(kind: TensorType, axes: Axes) -> None:
    if not axes or len(set(axes)) != len(axes):
        raise AxisError(f"needs axes that are distinct, got {axes}")
    for axis in axes:
        check_line(kind, axis)


def real_fourier_type(
    x: Any, *, axes: Axes, norm: str, is_transpose: bool
) -> TensorType:
    """f32[..., n] gives c64[..., n // 2 + 1], and so do halves; f64 gives c128.

    The last of the axes is the one of which half is left.
    """
    kind = tensor(x)
    check_kind(kind.dtype, ("float",))
    check_lines(kind, axes)
    check_norm(norm)
    shape = list(kind.shape)
    shape[axes[-1]] = shape[axes[-1]] // 2 + 1
    return TensorType(complex_dtype(kind.dtype), tuple(shape))


def inverse_real_fourier_type(
    x: Any, *, axes: Axes, length: Size, norm: str, is_transpose: bool
) -> TensorType:
    """c64[..., length // 2 + 1] gives f32[..., length]; doubles likewise."""
    kind = tensor(x)
    check_kind(kind.dtype, ("complex",))
    check_lines(kind, axes)
    check_norm(norm)
    last = axes[-1]
    if kind.shape[last] != length // 2 + 1:
        raise ShapeError(
            f"{length} real numbers have {length // 2 + 1} frequencies, "
            f"axis {last} of {kind} has {kind.shape[last]}"
        )
    shape = list(kind.shape)
    shape[last] = length
    return TensorType(real_dtype(kind.dtype), tuple(shape))


def transform(name: str, x: Any, length: int, axes: Axes, norm: str) -> Any:
    """`rfftn` or `irfftn` of NumPy, or of SciPy, which has threads."""
    sizes = [x.shape[axis] for axis in axes[:-1]]
    if x.size < MANY:
        out = getattr(np.fft, name)(x, (*sizes, length), axes, norm)
        kind = real_dtype(x.dtype) if name == "irfftn" else complex_dtype(x.dtype)
        return out.astype(kind, copy=False)
    import scipy.fft

    workers = threads() if x.size >= MANY_FOR_THREADS else 1
    compute = getattr(scipy.fft, name)
    return compute(x, (*sizes, length), axes, norm, workers=workers)


def mirrored_part(x: Any, axis: int, size: int) -> Any:
    """Those of the frequencies of a line of `size` that have a mirror image."""
    return x[(slice(None),) * axis + (slice(1, (size + 1) // 2),)]


def single_parts(x: Any, axis: int, size: int) -> list[Any]:
    """The others: frequency 0, and the last one of an even length."""
    ends = [0] if size % 2 else [0, size // 2]
    return [x[(slice(None),) * axis + (slice(at, at + 1),)] for at in ends]


def real_fourier_eval(x: Any, *, axes: Axes, norm: str, is_transpose: bool) -> Any:
    x = x.astype(real_dtype(complex_dtype(x.dtype)), copy=False)
    last = axes[-1]
    out = transform("rfftn", x, x.shape[last], axes, norm)
    if is_transpose:
        twice = mirrored_part(out, last, x.shape[last])
        twice += twice
    return out


def inverse_real_fourier_eval(
    x: Any, *, axes: Axes, length: int, norm: str, is_transpose: bool
) -> Any:
    """The imaginary parts of frequency 0 and of the last of an even length are not
    those of a real line: they are left out.
    """
    last = axes[-1]
    if x.shape[last] != length // 2 + 1:
        raise ValueError("the type rule says what fits")
    if not is_transpose:
        return transform("irfftn", x, length, axes, norm)
    # All but the mirrored ones doubled, and half of the result: exact, and shorter.
    x = x.copy()
    for part in single_parts(x, last, length):
        part += part
    out = transform("irfftn", x, length, axes, norm)
    out *= 0.5
    return out


def real_fourier_vjp(
    g: Node, out: Node, x: Node, *, axes: Axes, norm: str, is_transpose: bool
) -> Cotangents:
    back = inverse_real_fourier(
        g,
        axes=axes,
        length=x.shape[axes[-1]],
        norm=OPPOSITE[norm],
        is_transpose=not is_transpose,
    )
    return (back if back.dtype == x.dtype else cast(back, dtype=x.dtype),)


def inverse_real_fourier_vjp(
    g: Node,
    out: Node,
    x: Node,
    *,
    axes: Axes,
    length: Size,
    norm: str,
    is_transpose: bool,
) -> Cotangents:
    back = real_fourier(
        g, axes=axes, norm=OPPOSITE[norm], is_transpose=not is_transpose
    )
    return (back,)


real_fourier: Op = record(
    "real_fourier",
    type_rule=real_fourier_type,
    eval=real_fourier_eval,
    vjp=real_fourier_vjp,
    batch=batch_stack("real_fourier"),
    holomorphic=False,
    linear=ALL,
)
inverse_real_fourier: Op = record(
    "inverse_real_fourier",
    type_rule=inverse_real_fourier_type,
    eval=inverse_real_fourier_eval,
    vjp=inverse_real_fourier_vjp,
    batch=batch_stack("inverse_real_fourier"),
    holomorphic=False,
    linear=ALL,
)
