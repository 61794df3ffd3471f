"""How far vecmath is from the truth: where it is measured, and what the truth is.

`CASES` has one row per function. Points are drawn from all bit patterns, so that every
exponent is met, and from where the function is neither constant nor infinite. The truth
of a float32 function is the one of double, that of a float64 function comes from mpmath
(`precise.py`), or from extended precision where NumPy has the function and the machine
the format.

Start reading at `CASES`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from agreement import POWER, TRANSCENDENTAL, assert_agrees, round_to, widen
from precise import precise

from tapejit.targets.cpu import vecmath
from tapejit.targets.cpu.machine.host import Elementwise, elementwise

Array = np.ndarray[Any, Any]
HAS_EXTENDED = np.finfo(np.longdouble).nmant >= 63
SINGLE_POINTS, DOUBLE_POINTS = 200_000, 3_000  # of `measured`
EVERYTHING = (-np.inf, np.inf)


@dataclass(frozen=True)
class Case:
    """A function: its truths, and where it has interesting values.

    `live` are the arguments, in double, for which it is neither constant nor infinite,
    `domain` those for which it is a number.
    """

    name: str
    wide: Callable[..., Any]
    live: tuple[float, float] = EVERYTHING
    domain: tuple[float, float] = EVERYTHING
    precise: str | None = None  # mpmath's name, if it has another
    arity: int = 1

    def __str__(self) -> str:
        return self.name

    @property
    def has_hidden_zeros(self) -> bool:
        """Whether there are zeros between all negative integers."""
        return self.name in ("gammaln", "digamma")

    @property
    def op_class(self) -> str:
        is_loose = self.name == "pow" or self.has_hidden_zeros
        return POWER if is_loose else TRANSCENDENTAL

    def is_near_zero(self, arguments: list[Array], truth: Array) -> Array:
        """Where there may be a zero for which only an absolute bound is promised."""
        if self.name in ("logaddexp", "logaddexp2"):
            with np.errstate(invalid="ignore"):
                return np.asarray(np.abs(truth) < 1)
        return np.asarray((arguments[0] < 0) & self.has_hidden_zeros)

    def check(self, arguments: list[Array], got: Array, truth: Array) -> None:
        """Fail unless every result is within the bound of its class."""
        rounded = round_to(truth, got.dtype)
        with np.errstate(invalid="ignore"):
            is_close = np.abs(widen(got) - widen(truth)) <= np.finfo(got.dtype).eps
        is_close &= self.is_near_zero(arguments, truth)
        got = np.where(is_close, rounded, got)
        assert_agrees(self.op_class, got, truth, where=self.name)


def sigmoid(x: Any) -> Any:
    small = np.exp(-np.abs(x))
    return np.where(x < 0, small, 1) / (1 + small)


def softplus(x: Any) -> Any:
    return np.where(x < 0, 0, x) + np.log1p(np.exp(-np.abs(x)))


def softsign(x: Any) -> Any:
    return np.where(np.isinf(x), np.sign(x), x / (1 + np.abs(x)))


def zero_or(x: Any, y: Any, product: Any) -> Any:
    """The product, but 0 where x is 0 and y is a number."""
    return np.where((x == 0) & ~np.isnan(y), 0, product)


def xlogy(x: Any, y: Any) -> Any:
    return zero_or(x, y, x * np.log(y))


def xlog1py(x: Any, y: Any) -> Any:
    return zero_or(x, y, x * np.log1p(y))


def entr(x: Any) -> Any:
    return np.where(x < 0, -np.inf, np.where(x == 0, 0.0, -xlogy(x, x)))


def log_of_ratio(x: Any, y: Any) -> Any:
    """log(x / y), exact in x - y where that is small."""
    ratio = x / y
    near = np.log1p((x - y) / y)
    plain = np.where(
        (ratio > 0) & (ratio < np.inf), np.log(ratio), np.log(x) - np.log(y)
    )
    return np.where((ratio > 0.5) & (ratio < 2), near, plain)


def entropy_limits(x: Any, y: Any, found: Any, at_zero: Any) -> Any:
    outside = np.where((x == 0) & (y >= 0), at_zero, np.inf)
    outside = np.where(np.isnan(x) | np.isnan(y), np.nan, outside)
    return np.where((x > 0) & (y > 0), found, outside)


def rel_entr(x: Any, y: Any) -> Any:
    return entropy_limits(x, y, x * log_of_ratio(x, y), 0)


def kl_div(x: Any, y: Any) -> Any:
    relative = (x - y) / y
    near = np.zeros_like(relative)
    for n in range(12, 1, -1):  # (1 + d) log(1 + d) - d = d²/2 - d³/6 + d⁴/12 ...
        near = near * relative + (-1) ** n / type(relative.flat[0])(n * (n - 1))
    near = (x - y) * relative * near
    far = x * log_of_ratio(x, y) - x + y
    far = np.where(np.isfinite(x) & np.isfinite(y), far, np.nan)
    found = np.where(np.abs(relative) < 0.02, near, far)
    return entropy_limits(x, y, found, y)


def logit(x: Any) -> Any:
    """log(x / (1 - x)), by the distance from 1/2 where that is small."""
    away = x - 0.5
    near = np.log1p(2 * away / (0.5 - away))
    return np.where(np.abs(away) < 0.25, near, np.log(x) - np.log1p(-x))


def sinc(x: Any) -> Any:
    from tapejit.ops.trigonometry import sinc_of

    return sinc_of(x)


def log_ndtr_slope(x: Any) -> Any:
    from tapejit.ops.special import scaled_slope

    return scaled_slope(x)


def scipys(name: str) -> Callable[[Any], Any]:
    """SciPy's function, which is imported when it is called."""

    def function(x: Any) -> Any:
        import scipy.special

        return getattr(scipy.special, name)(x)

    return function


CASES = {
    case.name: case
    for case in (
        Case("exp", np.exp, live=(-760, 720)),
        Case("exp2", np.exp2, live=(-1080, 1030)),
        Case("expm1", np.expm1, live=(-45, 720)),
        Case("log", np.log, domain=(0, np.inf)),
        Case("log2", np.log2, domain=(0, np.inf)),
        Case("log10", np.log10, domain=(0, np.inf)),
        Case("log1p", np.log1p, domain=(-1, np.inf)),
        Case("sin", np.sin),
        Case("cos", np.cos),
        Case("tan", np.tan),
        Case("sinh", np.sinh, live=(-720, 720)),
        Case("cosh", np.cosh, live=(-720, 720)),
        Case("tanh", np.tanh, live=(-25, 25)),
        Case("asin", np.arcsin, domain=(-1, 1)),
        Case("acos", np.arccos, domain=(-1, 1)),
        Case("atan", np.arctan),
        Case("asinh", np.arcsinh),
        Case("acosh", np.arccosh, domain=(1, np.inf)),
        Case("atanh", np.arctanh, domain=(-1, 1)),
        Case("sigmoid", sigmoid, live=(-760, 45)),
        Case("erf", scipys("erf"), live=(-6.5, 6.5)),
        Case("erfc", scipys("erfc"), live=(-6.5, 27.5)),
        Case("erfcx", scipys("erfcx"), live=(-26.7, np.inf)),
        Case("ndtr", scipys("ndtr"), live=(-38.6, 9)),
        Case("ndtri", scipys("ndtri"), domain=(0, 1)),
        Case("erfinv", scipys("erfinv"), domain=(-1, 1)),
        Case("log_ndtr", scipys("log_ndtr"), live=(-np.inf, 38.6)),
        Case("log_ndtr_slope", log_ndtr_slope, live=(-np.inf, 38.6)),
        Case("softplus", softplus, live=(-760, np.inf)),
        Case("softsign", softsign),
        Case("entr", entr, domain=(0, np.inf)),
        Case("logit", logit, domain=(0, 1)),
        Case("sinc", sinc, live=(-1e6, 1e6)),
        Case("cbrt", np.cbrt),
        Case("gammaln", scipys("gammaln")),
        Case("digamma", scipys("psi")),
        Case("atan2", np.arctan2, arity=2),
        Case("hypot", np.hypot, arity=2),
        Case("pow", np.power, arity=2, precise="power"),
        Case("logaddexp", np.logaddexp, arity=2),
        Case("logaddexp2", np.logaddexp2, arity=2),
        Case("xlogy", xlogy, arity=2),
        Case("xlog1py", xlog1py, arity=2),
        Case("rel_entr", rel_entr, arity=2),
        Case("kl_div", kl_div, arity=2),
    )
}
IN_DOUBLE = {
    "erf", "erfc", "erfcx", "ndtr", "log_ndtr", "log_ndtr_slope", "gammaln", "digamma",
    "sinc", "ndtri", "erfinv",
}  # fmt: skip
IN_EXTENDED = [case for case in CASES.values() if case.name not in IN_DOUBLE]


@functools.cache
def compiled(name: str, dtype: str, width: int) -> Elementwise:
    """A function of vecmath on arrays."""
    formula = {**vecmath.UNARY, **vecmath.BINARY}[name]
    return elementwise(formula, arity=CASES[name].arity, dtype=dtype, width=width)


# Points


def any_bits(rng: np.random.Generator, dtype: Any, count: int) -> Array:
    """Every bit pattern is as likely: all exponents, NaN and infinities included."""
    integer = np.dtype(f"i{np.dtype(dtype).itemsize}")
    limits = np.iinfo(integer)
    found = rng.integers(limits.min, limits.max, count, integer, endpoint=True)
    return found.view(dtype)


def around(rng: np.random.Generator, centre: float, count: int) -> Array:
    """Points at all distances from a centre, down to where they round to it."""
    size = 10.0 ** rng.uniform(-17, 0.5, count)
    return centre + rng.choice([-1.0, 1.0], count) * size


def points(case: Case, dtype: Any, count: int, rng: np.random.Generator) -> list[Array]:
    """Arguments, some hundreds more or fewer than `count`."""
    if case.name == "pow":
        return power_points(dtype, count, rng)
    if case.name.startswith("logaddexp"):
        return close_points(dtype, count, rng)
    if case.arity == 2:
        first, half = any_bits(rng, dtype, count), count // 2
        with np.errstate(all="ignore"):
            near = magnitudes(rng, -9, 9, half) * first[:half].astype(np.float64)
            second = [near.astype(dtype), any_bits(rng, dtype, count - half)]
        return [first, np.concatenate(second)]
    low, high = np.clip((*case.live, *case.domain), -1e3, 1e3).reshape(2, 2).T
    quarter = count // 4
    drawn = [
        rng.uniform(max(low), min(high), quarter),
        rng.uniform(max(*low, -8), min(*high, 8), quarter),
        *(around(rng, centre, quarter // 3) for centre in (-1, 0, 1)),
    ]
    typed = [x.astype(dtype) for x in drawn]
    return [np.concatenate([*typed, any_bits(rng, dtype, quarter)])]


def magnitudes(rng: np.random.Generator, low: int, high: int, count: int) -> Array:
    """Numbers between powers of two, the same on every machine: NumPy's exp is not."""
    return np.ldexp(rng.uniform(1, 2, count), rng.integers(low, high, count))


def close_points(dtype: Any, count: int, rng: np.random.Generator) -> list[Array]:
    """Pairs of all sizes, whose difference is mostly small; some at random."""
    half, eighth = count // 2, count // 8
    base = rng.normal(size=half) * magnitudes(rng, -20, 13, half)
    other = base + rng.normal(size=half) * magnitudes(rng, -20, 7, half)
    with np.errstate(all="ignore"):
        first = [base.astype(dtype), any_bits(rng, dtype, eighth)]
        second = [other.astype(dtype), any_bits(rng, dtype, eighth)]
    return [np.concatenate(first), np.concatenate(second)]


def power_points(dtype: Any, count: int, rng: np.random.Generator) -> list[Array]:
    """Bases everywhere and near 1, with exponents that give every magnitude."""
    third = count // 3
    with np.errstate(all="ignore"):
        some = np.abs(any_bits(rng, dtype, third))
        near = np.abs(around(rng, 1.0, third)).astype(dtype)
        limit = np.log(float(np.finfo(dtype).max)) * 1.06
        bases = np.concatenate([some, near])
        logs = np.log(bases.astype(np.longdouble))
        powers = (rng.uniform(-limit, limit, bases.size) / logs).astype(dtype)
    whole = rng.integers(-20, 20, third).astype(dtype)
    signed = rng.normal(0, 10, third).astype(dtype)
    return [np.concatenate([bases, signed]), np.concatenate([powers, whole])]


def inside(case: Case, arguments: list[Array]) -> list[Array]:
    """The arguments whose value is a number that is not trivial."""
    keep = np.all([np.isfinite(x) for x in arguments], axis=0)
    if case.name == "pow":
        keep &= (arguments[0] != 0) & (np.abs(arguments[1]) < 1e300)
        with np.errstate(all="ignore"):
            exponent = arguments[1] * np.log(np.abs(arguments[0]))
            keep &= np.abs(exponent) < 800
            keep &= (arguments[0] > 0) | (arguments[1] == np.trunc(arguments[1]))
    elif case.arity == 1:
        x = arguments[0]
        keep &= (x >= case.live[0]) & (x <= case.live[1])
        keep &= (x >= case.domain[0]) & (x <= case.domain[1])
        if case.name == "entr":
            keep &= x != 1  # -0, which mpmath does not have
        if case.has_hidden_zeros:
            keep &= (x > 0) | (x != np.floor(np.where(keep, x, 0)))  # a pole
        if case.domain != EVERYTHING and case.name not in ("asin", "acos", "acosh"):
            keep &= (x != case.domain[0]) & (x != case.domain[1])  # a pole
    else:
        keep &= (arguments[0] != 0) & (arguments[1] != 0)
        if case.name in ("xlogy", "rel_entr", "kl_div"):
            keep &= arguments[1] > 0
        if case.name in ("rel_entr", "kl_div"):
            keep &= arguments[0] > 0
        if case.name == "xlog1py":
            keep &= arguments[1] > -1
    return [x[keep] for x in arguments]


# Truths


def truth_in(wide: Any, case: Case, arguments: list[Array]) -> Array:
    """The function in a wider dtype."""
    with np.errstate(all="ignore"):
        return np.asarray(case.wide(*(x.astype(wide) for x in arguments)))


def precise_truth(case: Case, arguments: list[Array]) -> Array:
    """The function by mpmath, to the precision of `np.longdouble`."""
    return precise(case.precise or case.name, arguments)


# Errors


def error_in_ulps(got: Array, truth: Array) -> Array:
    """|got - truth| by the spacing of floats at the truth; 0 where that is infinite."""
    rounded = round_to(truth, got.dtype)
    is_finite = np.isfinite(rounded) & np.isfinite(got)
    with np.errstate(invalid="ignore"):
        distance = np.abs(widen(got) - widen(truth))
        spacing = widen(np.spacing(np.abs(np.where(is_finite, rounded, 1))))
    return np.where(is_finite, distance / spacing, 0)


@functools.cache
def measured(name: str) -> tuple[float, float]:
    """The largest errors seen, in ULP, of float32 and of float64.

    Those next to zeros that have only an absolute bound are not counted.
    """
    case, rng = CASES[name], np.random.default_rng(20)
    single = points(case, np.float32, SINGLE_POINTS, rng)
    double = inside(case, points(case, np.float64, DOUBLE_POINTS, rng))
    truths = truth_in(np.float64, case, single), precise_truth(case, double)
    results = (
        compiled(name, "float32", 8)(*single),
        compiled(name, "float64", 4)(*double),
    )
    errors = [
        np.where(case.is_near_zero(arguments, truth), 0, error_in_ulps(got, truth))
        for arguments, got, truth in zip((single, double), results, truths, strict=True)
    ]
    return float(errors[0].max()), float(errors[1].max())
