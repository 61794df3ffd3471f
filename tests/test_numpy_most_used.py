"""The NumPy functions that programs call most, on tensors.

Each line of `CALLS` is run twice, with arrays and with tensors. Either both agree, and
a floating-point result has the gradient that differences of NumPy's own results give;
or tapejit refuses, by name. Which ones it refuses is written down in `REFUSED`.

Functions that make arrays from nothing (`np.zeros`, `np.arange`, ...) are not among
them: NumPy does not ask anybody there.

Start reading at `test_the_call_is_recorded_or_refused_by_name`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

import tapejit as tj

# m is a matrix [2,3], v and w are vectors [4], s is a symmetric positive matrix [3,3],
# p is between 0 and 1, i are positions, b are bools.
CALLS = """
np.sum(m)                          np.sum(m, axis=0)
np.mean(m, axis=1)                 np.std(m)
np.var(m, axis=0, ddof=1)          np.prod(v)
np.max(m)                          np.min(m, axis=0)
np.amax(m)                         np.amin(m)
np.argmax(m)                       np.argmin(m, axis=1)
np.median(v)                       np.percentile(v, 30)
np.quantile(v, 0.25)               np.average(v, weights=p)
np.cumsum(m, axis=1)               np.cumprod(v)
np.diff(v)                         np.ptp(m)
np.any(b)                          np.all(b)
np.count_nonzero(m)                np.nansum(m)
np.nanmean(m)                      np.nanmax(m)
np.nanmin(m)                       np.nanstd(m)
np.abs(v)                          np.absolute(v)
np.exp(v)                          np.log(p)
np.log2(p)                         np.log10(p)
np.log1p(p)                        np.expm1(v)
np.sqrt(p)                         np.square(v)
np.power(p, 3)                     np.sin(v)
np.cos(v)                          np.tan(v)
np.arcsin(p)                       np.arccos(p)
np.arctan(v)                       np.arctan2(v, w)
np.sinh(v)                         np.cosh(v)
np.tanh(v)                         np.arcsinh(v)
np.floor(v)                        np.ceil(v)
np.round(v)                        np.around(v, 1)
np.rint(v)                         np.trunc(v)
np.sign(v)                         np.clip(v, -0.5, 1.0)
np.maximum(v, 0)                   np.minimum(v, w)
np.fmax(v, w)                      np.hypot(v, w)
np.add(v, w)                       np.subtract(v, w)
np.multiply(v, 2.0)                np.divide(v, p)
np.true_divide(v, p)               np.floor_divide(v, p)
np.mod(v, p)                       np.negative(v)
np.reciprocal(p)                   np.isnan(v)
np.isinf(v)                        np.isfinite(v)
np.logical_and(b, b)               np.logical_or(b, b)
np.logical_not(b)                  np.equal(v, w)
np.greater(v, w)                   np.less_equal(v, 0)
np.isclose(v, w)                   np.allclose(v, v)
np.array_equal(v, v)               np.where(v > 0, v, 0.1 * w)
np.nan_to_num(v)                   np.interp(p, np.arange(3.0), np.ones(3))
np.dot(m, s)                       np.matmul(m, s)
np.inner(v, w)                     np.outer(v, w)
np.vdot(v, w)                      np.cross(s, s[::-1])
np.kron(v, w)                      np.tensordot(m, s, axes=1)
np.einsum("ij,jk->ik", m, s)       np.trace(s)
np.linalg.norm(v)                  np.linalg.inv(s)
np.linalg.det(s)                   np.linalg.solve(s, s[0])
np.linalg.eigvalsh(s)              np.linalg.svd(m, compute_uv=False)
np.linalg.cholesky(s)              np.linalg.pinv(m)
np.linalg.slogdet(s)               np.linalg.matrix_rank(s)
np.reshape(m, (3, 2))              np.ravel(m)
np.transpose(m)                    np.swapaxes(m, 0, 1)
np.moveaxis(m, 0, 1)               np.expand_dims(v, 0)
np.squeeze(m[:1])                  np.concatenate([v, w])
np.stack([v, w])                   np.vstack([v, w])
np.hstack([v, w])                  np.column_stack([v, w])
np.split(v, 2)                     np.array_split(v, 3)
np.tile(v, 2)                      np.repeat(v, 2)
np.flip(v)                         np.roll(v, 1)
np.rot90(m)                        np.pad(v, 1)
np.broadcast_to(v, (2, 4))         np.atleast_2d(v)
np.append(v, w)                    np.insert(v, 1, 0.5)
np.delete(v, 1)                    np.sort(v)
np.argsort(v)                      np.unique(v)
np.searchsorted(p, 0.3)            np.nonzero(v)
np.argwhere(v)                     np.take(v, i)
np.take_along_axis(v, i, 0)        np.diag(v)
np.diagonal(s)                     np.triu(s)
np.tril(s)                         np.meshgrid(v, w)
np.zeros_like(m)                   np.ones_like(m)
np.full_like(m, 2.0)               np.copy(m)
np.shape(m)                        np.ndim(m)
np.size(m)                         np.real(v)
np.imag(v)                         np.histogram(v)
np.bincount(i)                     np.digitize(v, np.arange(3.0))
np.convolve(v, w)                  np.correlate(v, w)
np.gradient(v)                     np.cov(m)
np.corrcoef(m)                     np.polyfit(v, w, 1)
np.polyval(v, 2.0)                 np.isin(i, i)
np.apply_along_axis(np.sum, 0, m)  np.fft.fft(v)
np.fft.rfft(v)                     np.block([v, w])
np.select([b, ~b], [v, w])         np.piecewise(v, [v > 0], [1.0])
np.unravel_index(i, (2, 2))        np.linspace(v, w, 3)
"""

REFUSED = frozenset(
    """
    np.apply_along_axis np.block np.corrcoef np.cov np.fmax np.linspace
    np.piecewise np.polyfit np.polyval
    """.split()  # noqa: SIM905  # names read better than a column of strings
)


def calls() -> list[str]:
    found = re.split(r"\n|(?<=\))  +(?=np\.)", CALLS.strip())
    return [call.strip() for call in found]


ARRAYS: dict[str, Any] = {
    "m": np.array([[0.3, -1.2, 2.1], [1.7, 0.6, -0.4]]),
    "v": np.array([0.8, -1.3, 0.47, 1.9]),
    "w": np.array([-0.7, 0.2, 1.4, -1.6]),
    "s": np.array([[2.0, 0.3, -0.1], [0.3, 1.5, 0.4], [-0.1, 0.4, 1.2]]),
    "p": np.array([0.15, 0.4, 0.65, 0.9]),
    "i": np.array([2, 0, 1]),
    "b": np.array([True, False, True, True]),
}
FLOATS = ("m", "v", "w", "s", "p")


def run(call: str, values: Mapping[str, Any]) -> list[Any]:
    """The results of a call, in a list."""
    out = eval(call, {"np": np, **values})
    return list(out) if isinstance(out, (list, tuple)) else [out]


def name_of(call: str) -> str:
    return call.partition("(")[0]


def total(results: Sequence[Any], weights: Sequence[Any], sum_: Any) -> Any:
    """One number of all floating-point results; complex ones by their real parts."""
    terms = [
        sum_((part.real if part.dtype.kind == "c" else part) * weight)
        for part, weight in zip(results, weights, strict=True)
        if weight is not None
    ]
    return sum(terms[1:], terms[0])


def weights_of(results: Sequence[Any]) -> list[Any]:
    rng = np.random.default_rng(7)
    return [
        rng.uniform(0.5, 1.5, np.shape(part))
        if getattr(part, "dtype", np.dtype(bool)).kind in "fc"
        else None
        for part in results
    ]


def test_there_are_as_many_as_promised() -> None:
    assert len({name_of(call) for call in calls()}) >= 120
    assert {name_of(call) for call in calls()} >= REFUSED


@pytest.mark.parametrize("call", calls())
def test_the_call_is_recorded_or_refused_by_name(call: str) -> None:
    used = {n: a for n, a in ARRAYS.items() if re.search(rf"\b{n}\b", call)}
    tensors = {name: tj.asarray(array) for name, array in used.items()}
    floats = [name for name in used if name in FLOATS]
    if name_of(call) in REFUSED:
        with pytest.raises(tj.UnsupportedError, match=re.escape(name_of(call))):
            run(call, tensors)
        return
    wanted = run(call, used)
    weights = weights_of(wanted)
    with tj.GradientTape(persistent=True) as tape:
        for name in floats:
            tape.watch(tensors[name])
        found = run(call, tensors)
        is_floating = any(weight is not None for weight in weights)
        loss = total(found, weights, tj.sum) if is_floating else None
    assert len(found) == len(wanted)
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(np.asarray(ours), theirs, rtol=1e-10, atol=1e-12)
    if loss is None or not floats or name_of(call) in CONSTANT:
        return
    gradients = [tape.gradient(loss, tensors[name]) for name in floats]
    rng = np.random.default_rng(3)
    directions = {name: rng.standard_normal(used[name].shape) for name in floats}
    if "s" in directions:  # stay among the symmetric matrices
        directions["s"] = directions["s"] + directions["s"].T
    slope = sum(
        np.sum(gradient.numpy() * directions[name])
        for name, gradient in zip(floats, gradients, strict=True)
        if gradient is not None
    )
    assert any(gradient is not None for gradient in gradients)
    step = 1e-5
    ends = []
    for sign in (1, -1):
        moved = {n: used[n] + sign * step * directions[n] for n in floats}
        ends.append(total(run(call, {**used, **moved}), weights, np.sum))
    np.testing.assert_allclose(slope, (ends[0] - ends[1]) / (2 * step), rtol=1e-6)


# Floating-point results that do not depend on the numbers in their operands.
CONSTANT = frozenset(
    {
        "np.zeros_like",
        "np.ones_like",
        "np.full_like",
        "np.imag",
        "np.histogram",
    }
)
