"""Checking derivatives: for tapejit's own tests and for yours.

A gradient is checked by random projection: the derivative of the function along a
random direction, by central differences in double precision, must equal the inner
product of that direction with the gradient. One projection checks all elements.

Start reading at `check_grads`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tapejit.array.creation import asarray
from tapejit.base import tree
from tapejit.base.errors import ArgumentError, GradientMismatch
from tapejit.base.types import is_complex, is_differentiable
from tapejit.tape.functional import jvp, vjp
from tapejit.tensor.tensor import Tensor

Function = Callable[..., Any]
Arrays = list[np.ndarray[Any, Any]]

__all__ = ["check_grads"]


def __dir__() -> list[str]:
    return sorted(__all__)


def check_grads(
    function: Function,
    args: Sequence[Any],
    order: int = 2,
    modes: Sequence[str] = ("reverse", "forward"),
    rtol: float = 1e-5,
    atol: float = 1e-7,
    step: float = 1e-5,
    seed: int = 0,
) -> None:
    """Check the derivatives of a function of float64 tensors, up to `order`.

    `args` are arrays, tensors or structures of them; real and complex floats are
    differentiated, after conversion to double precision. Raises `GradientMismatch`
    with both numbers if a derivative is wrong.

    >>> import numpy as np
    >>> import tapejit as tj
    >>> tj.testing.check_grads(lambda x: tj.sin(x) * x, [np.array([0.3, 1.2])])
    """
    unknown = set(modes) - {"reverse", "forward"}
    if unknown:
        raise ArgumentError(f"modes are 'reverse' and 'forward', got {sorted(unknown)}")
    leaves, spec = tree.flatten(tuple(args))
    primals = [_as_double(leaf) for leaf in leaves]

    def flat(*values: Any) -> list[Tensor]:
        """The differentiable results in a list."""
        results = tree.leaves(function(*tree.unflatten(spec, list(values))))
        return [x for x in map(asarray, results) if is_differentiable(x.dtype)]

    rng = np.random.default_rng(seed)
    _check(flat, primals, order, tuple(modes), (rtol, atol, step), rng)


def _as_double(leaf: Any) -> np.ndarray[Any, Any]:
    array = np.asarray(leaf)
    if not is_differentiable(array.dtype):
        return array
    return array.astype(np.complex128 if is_complex(array.dtype) else np.float64)


def _check(
    flat: Function,
    primals: Arrays,
    order: int,
    modes: tuple[str, ...],
    limits: tuple[float, float, float],
    rng: np.random.Generator,
) -> None:
    active = [at for at, x in enumerate(primals) if is_differentiable(x.dtype)]

    def of_active(*values: Any) -> list[Tensor]:
        whole: list[Any] = [asarray(x) for x in primals]
        for at, value in zip(active, values, strict=True):
            whole[at] = value
        results: list[Tensor] = flat(*whole)
        return results

    starts = [primals[at] for at in active]
    direction = [_random_like(rng, x) for x in starts]
    expected = _numeric(of_active, starts, direction, limits[2])
    weights = [_random_like(rng, x) for x in expected]
    slope = _inner(weights, expected)
    if "forward" in modes:
        _, pushed = jvp(of_active, starts, direction)
        found = _inner(weights, [np.asarray(t) for t in pushed])
        _compare("forward", found, slope, limits, weights, expected)
    if "reverse" in modes:
        _, pull = vjp(of_active, *starts)
        pulled = [np.asarray(g) for g in pull([asarray(w) for w in weights])]
        found = _inner(pulled, direction)
        _compare("reverse", found, slope, limits, weights, expected)
    if order > 1:
        seeds = [asarray(w) for w in weights]

        def gradient(*values: Any) -> list[Tensor]:
            found: tuple[Tensor, ...] = vjp(of_active, *values)[1](seeds)
            return list(found)

        _check(gradient, starts, order - 1, modes, limits, rng)


def _random_like(rng: np.random.Generator, x: np.ndarray[Any, Any]) -> Any:
    sample = rng.standard_normal(x.shape)
    if is_complex(x.dtype):
        return sample + 1j * rng.standard_normal(x.shape)
    return np.asarray(sample)


def _numeric(
    function: Function, starts: Arrays, direction: Arrays, step: float
) -> Arrays:
    """The derivative along `direction` by central differences."""

    def shifted(by: float) -> list[Tensor]:
        # Arrays without axes add up to NumPy scalars, which are weak: they would be
        # rounded to the default float.
        pairs = zip(starts, direction, strict=True)
        places = [asarray(np.asarray(x + by * t)) for x, t in pairs]
        found: list[Tensor] = function(*places)
        return found

    ahead, behind = shifted(step), shifted(-step)
    return [
        (np.asarray(after) - np.asarray(before)) / (2 * step)
        for after, before in zip(ahead, behind, strict=True)
    ]


def _inner(left: Sequence[Any], right: Sequence[Any]) -> float:
    """The real inner product, which also serves complex numbers."""
    pairs = zip(left, right, strict=True)
    return float(sum(np.sum(np.conj(a) * b).real for a, b in pairs))


def _compare(
    mode: str,
    found: float,
    expected: float,
    limits: tuple[float, float, float],
    weights: Sequence[Any],
    slopes: Sequence[Any],
) -> None:
    rtol, atol, _ = limits
    # Terms may cancel: the error of the projection follows the size of its terms.
    scale = float(
        sum(np.sum(np.abs(w) * np.abs(s)) for w, s in zip(weights, slopes, strict=True))
    )
    if not abs(found - expected) <= atol + rtol * max(abs(expected), scale):
        raise GradientMismatch(
            f"the {mode} derivative along a random direction is {found!r}, by finite "
            f"differences {expected!r}",
            help="check the formula; near a kink or a pole finite differences mislead",
        )
