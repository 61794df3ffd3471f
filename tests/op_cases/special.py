"""Cases of the special functions.

What native code computes by itself is judged by mpmath's digits and SciPy's special
values. What the others mean is SciPy's function in double precision, and the reference
is just that: its digits, rounded once to the dtype; how many of those are right is
asked in `test_special.py`. The densities and slopes, which are tapejit's own, are said
once more in extended precision and as power series.

Start reading at `CASES`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from agreement import EXACT, POWER, SUM, TRANSCENDENTAL, Truth
from precise import precise
from scipy import special

from op_cases import references as ref
from op_cases.case import (
    BINARY_SHAPES,
    FLOAT,
    INDEX_DTYPES,
    MISFITS,
    TERNARY_SHAPES,
    UNARY_SHAPES,
    Array,
    OpCase,
    Operand,
    Sampler,
    Variant,
    apart_from_zero,
    between,
    variants_of,
)

TERNARY_MISFITS = variants_of(
    [((3,), (4,), (3,)), ((2,), (2,), (3,)), ((2,), (3,), ())]
)


# Broadcasting is the same for all: a few shapes of each kind.
SHAPES: dict[int, Any] = {
    1: UNARY_SHAPES[:2],
    2: (BINARY_SHAPES[1], BINARY_SHAPES[4], BINARY_SHAPES[5]),
    3: (TERNARY_SHAPES[1], TERNARY_SHAPES[5]),
}
SMALL = 2.0**-1022  # the least parameter: below it SciPy's log Γ is infinite


def in_double(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of doubles, not rounded yet."""

    def reference(*arrays: Array, **attrs: Any) -> Any:
        return np.asarray(function(*[x.astype(np.float64) for x in arrays], **attrs))

    return reference


def case(
    op: str,
    domains: list[Sampler],
    *,
    function: Callable[..., Any] | None = None,
    second: tuple[str, ...],
    **fields: Any,
) -> OpCase:
    """A function of as many operands as it has domains."""
    arity = len(domains)
    misfits = {1: (), 2: variants_of(MISFITS), 3: TERNARY_MISFITS}[arity]
    if "reference" not in fields:
        fields["reference"] = in_double(function or getattr(special, op))
    own: dict[str, Any] = {
        "operands": tuple(map(Operand, domains)),
        "agreement": EXACT,
        "variants": variants_of(SHAPES[arity]),
        "refused": misfits,
        "first": "c" * arity,
    }
    return OpCase(
        op,
        takes=FLOAT,
        second=second,
        **(own | fields),
    )


ALL_OF_TWO, ALL_OF_THREE = ("cc", "cc"), ("ccc", "ccc", "ccc")
AROUND_ZERO, POSITIVE = between(-2.0, 2.0), between(0.5, 4.0)
INSIDE = between(0.2, 0.7)


def polygamma(n: Array, x: Array) -> Array:
    """Of natural orders; SciPy continues the factor to others."""
    found = special.polygamma(n.astype(np.float64), x.astype(np.float64))
    return np.where(n < 0, np.nan, found)


def zeta(x: Array, q: Array) -> Array:
    return np.where(np.isnan(x), np.nan, special.zeta(x, q))


def zeta_slope(x: Array, q: Array, *, order: int) -> Truth:
    """Term by term, and the rest as an integral corrected at its end."""
    x, q = np.broadcast_arrays(ref.widened(x), ref.widened(q))
    is_defined = (x > 1) & (q > 0) & np.isfinite(x)
    x, q = np.where(is_defined, x, 2), np.where(is_defined, q, 1)
    count = 2500
    steps = q[..., None] + np.arange(count)
    value = (steps ** -x[..., None] * (-np.log(steps)) ** order).sum(axis=-1)
    end = q + count
    power, size = end**-x, np.log(end)
    if order == 1:
        rest = -end * (size / (x - 1) + 1 / (x - 1) ** 2)
        rest = rest - size / 2 + (1 - x * size) / (12 * end)
    else:
        inverse = 1 / (x - 1)
        rest = end * (size**2 * inverse + 2 * size * inverse**2 + 2 * inverse**3)
        rest = rest + size**2 / 2 + (x * size**2 - 2 * size) / (12 * end)
    value = np.where(np.isinf(q), 0, value + rest * power)
    value = np.where(is_defined, value, np.nan)
    return Truth(value, 64, np.abs(value))


def log_ndtr_slope(x: Array) -> Array:
    """Its limits: 0 on the right, -x far on the left; 1 where it has none."""
    limits = np.where(x < 0, -x, np.where(np.isnan(x), np.nan, 0))
    return np.where((x > -1e300) & (x < 700), 1, limits)


# Where the functions below are numbers that mpmath has; elsewhere SciPy says what is
# right: limits, poles, what is outside of the domain.
INSIDE_OF: dict[str, tuple[float, float]] = {
    **dict.fromkeys(("erfc", "erfcx", "ndtr"), (-700.0, 700.0)),
    **dict.fromkeys(("log_ndtr", "log_ndtr_slope"), (-1e300, 700.0)),
    "erfinv": (-1.0, 1.0),
    "ndtri": (0.0, 1.0),
    "logit": (0.0, 1.0),
    **dict.fromkeys(("gammaln", "digamma"), (-np.inf, 1e300)),
    **dict.fromkeys(("entr", "rel_entr", "kl_div"), (0.0, np.inf)),
    "xlog1py": (-1.0, np.inf),
}


# Between all negative integers there are zeros, where no more than an absolute error is
# promised: eps, and for digamma eps of the two terms of its reflection.
HIDDEN_ZEROS = {"gammaln": SUM, "digamma": SUM}


def known(op: str, limits: Callable[..., Any]) -> Callable[..., Any]:
    """The function in extended precision, with the special values of another."""
    low, high = INSIDE_OF[op]

    def reference(*arrays: Array) -> Any:
        doubles = np.broadcast_arrays(*[x.astype(np.float64) for x in arrays])
        found = np.asarray(limits(*doubles), np.longdouble)
        bounded = doubles[1:] if op == "xlog1py" else doubles
        inside = np.all([(x > low) & (x < high) for x in bounded], axis=0)
        inside &= np.all([np.isfinite(x) for x in doubles], axis=0)
        if op in HIDDEN_ZEROS:
            inside &= (doubles[0] > 0) | (doubles[0] != np.trunc(doubles[0]))
        if op in ("kl_div", "rel_entr"):
            inside |= (
                (doubles[0] > 0)
                & (doubles[1] > 0)
                & np.isfinite(doubles[0] + doubles[1])
            )
        out = np.array(found)
        digits = precise(op, [x[inside] for x in doubles])
        # An exact zero has a sign, which mpmath does not know.
        out[inside] = np.where(digits == 0, np.copysign(0, found[inside]), digits)
        if op not in HIDDEN_ZEROS:
            return out
        size = 0.5
        if op == "digamma":
            mirrored = special.psi(1 - doubles[0])
            size = np.abs(mirrored) + np.abs(out - mirrored)
        unit = np.where(out == 0, 0, np.ldexp(0.5, np.frexp(out)[1]))  # 4 ULP of it
        return Truth(out, 16, unit + np.where(doubles[0] < 0, size / 2, 0))

    return reference


def precisely(op: str, domains: list[Sampler], **fields: Any) -> OpCase:
    """A function whose digits are those of mpmath."""
    limits = log_ndtr_slope if op == "log_ndtr_slope" else getattr(special, op)
    agreement = {"erfinv": POWER, **HIDDEN_ZEROS}.get(op, TRANSCENDENTAL)
    return case(op, domains, reference=known(op, limits), agreement=agreement, **fields)


FUNCTIONS = [
    precisely("erfc", [AROUND_ZERO], second=("c",)),
    precisely("erfcx", [AROUND_ZERO], second=("c",)),
    precisely("erfinv", [between(-0.7, 0.7)], second=("c",)),
    precisely("ndtr", [AROUND_ZERO], second=("c",)),
    precisely("ndtri", [INSIDE], second=("c",)),
    precisely("log_ndtr", [AROUND_ZERO], second=("c",)),
    precisely("log_ndtr_slope", [AROUND_ZERO], second=("c",)),
    precisely("gammaln", [POSITIVE], second=("c",)),
    precisely("digamma", [POSITIVE], second=("c",)),
    case(
        "polygamma",
        [POSITIVE, POSITIVE],
        operands=(Operand(integers=(0, 5), own=INDEX_DTYPES), Operand(POSITIVE)),
        reference=polygamma,
        first="-c",
        second=("-c",),
    ),
    case("zeta", [between(1.5, 4.0), POSITIVE], function=zeta, second=ALL_OF_TWO),
    case(
        "zeta_slope",
        [between(1.5, 4.0), POSITIVE],
        second=ALL_OF_TWO,
        reference=zeta_slope,
        agreement=SUM,
        variants=tuple(
            Variant(shapes, {"order": order}, note=str(order))
            for order in (1, 2)
            for shapes in SHAPES[2][: 3 if order == 1 else 1]
        ),
        refused=tuple(Variant(each, {"order": 1}) for each in MISFITS),
        unreachable=(Variant(((3,), (3,)), {"order": -1}),),
    ),
    case("gammainc", [POSITIVE, POSITIVE], second=ALL_OF_TWO),
    case("gammaincc", [POSITIVE, POSITIVE], second=ALL_OF_TWO),
    case("betainc", [POSITIVE, POSITIVE, INSIDE], second=ALL_OF_THREE),
    precisely("logit", [INSIDE], second=("c",)),
    precisely("entr", [between(0.3, 3.0)], second=("c",)),
    precisely("rel_entr", [between(0.3, 3.0)] * 2, second=ALL_OF_TWO),
    precisely("kl_div", [between(0.3, 3.0)] * 2, second=ALL_OF_TWO),
    precisely("xlog1py", [apart_from_zero(0.2, 2.0), INSIDE], second=("0c", "cc")),
]


# Bessel functions of integer order


def bessel_i(x: Array, *, order: int, scaled: bool) -> Array:
    if order < 2:
        return getattr(special, f"i{order}{'e' * scaled}")(x)
    return (special.ive if scaled else special.iv)(order, x)


BESSEL = [
    case(
        "bessel_i",
        [apart_from_zero(0.2, 3.0)],
        function=bessel_i,
        second=("c",),
        variants=tuple(
            Variant(shape, {"order": order, "scaled": scaled}, note=f"{order}{scaled}")
            for order in (0, 1, 2)
            for scaled in (False, True)
            for shape in SHAPES[1][: 1 if order else 2]
        ),
        unreachable=(Variant(((3,),), {"order": -1, "scaled": False}),),
    )
]


# Densities and slopes


def wide_gammaln(x: Array) -> Array:
    """By Stirling's series, from 24 to the right of x if that is small."""
    pi = 4 * np.arctan(np.longdouble(1))
    is_small = x < 100
    product = np.ones(x.shape, np.longdouble)
    for k in range(24):
        product = product * np.where(is_small, x + k, 1)
    shifted = np.where(is_small, x + 24, x)
    series = 1 / (12 * shifted) - 1 / (360 * shifted**3) + 1 / (1260 * shifted**5)
    series = series - 1 / (1680 * shifted**7) + 1 / (1188 * shifted**9)
    series = series - np.longdouble(691) / (360360 * shifted**11)
    out = (shifted - 0.5) * np.log(shifted) - shifted + np.log(2 * pi) / 2 + series
    return out - np.log(product)


def gamma_density(a: Array, x: Array) -> Truth:
    """In the form that suits a large parameter from 1000 on."""
    a, x = np.broadcast_arrays(ref.widened(a), ref.widened(x))
    pi = 4 * np.arctan(np.longdouble(1))
    power = np.where((a == 1) & ~np.isnan(x), 0, (a - 1) * np.log(x))
    direct = np.exp(power - x - wide_gammaln(a))
    off = (x - a) / a
    fall = a * (off - np.log1p(off))
    peak = np.exp(-fall - 1 / (12 * a)) * np.sqrt(a / (2 * pi)) / x
    value = np.where((a > 1000) & (x > 0), peak, direct)
    value = np.where(np.isposinf(x), 0, value)
    value = np.where((a >= SMALL) & np.isfinite(a) & (x >= 0), value, np.nan)
    size = 1 + np.abs(power) + np.abs(wide_gammaln(a))
    return Truth(value, 64, np.where(value > 0, value * size, 0))


def beta_density(a: Array, b: Array, x: Array) -> Truth:
    a, b, x = np.broadcast_arrays(*map(ref.widened, (a, b, x)))
    left = np.where((a == 1) & ~np.isnan(x), 0, (a - 1) * np.log(x))
    right = np.where((b == 1) & ~np.isnan(x), 0, (b - 1) * np.log1p(-x))
    both = wide_gammaln(a) + wide_gammaln(b) - wide_gammaln(a + b)
    both = np.where(np.maximum(a, b) > 1e4, betaln(a, b).value, both)
    value = np.exp(left + right - both)
    # Both huge: a normal distribution around a / (a + b).
    pi = 4 * np.arctan(np.longdouble(1))
    off = b * x - a * (1 - x)
    fall = off * off / 2 * (1 / a + 1 / b)
    peak = np.sqrt(a * b / (2 * pi * (a + b))) / (x * (1 - x)) * np.exp(-fall)
    is_normal = (np.minimum(a, b) > 1e6) & (x > 0) & (x < 1)
    value = np.where(is_normal, np.where(fall > 2e4, 0, peak), value)
    is_pole = ((x == 0) & (a < 1)) | ((x == 1) & (b < 1))
    is_end = ((x == 0) & (a > 1)) | ((x == 1) & (b > 1))
    value = np.where(is_pole, np.inf, np.where(is_end, 0, value))
    is_defined = (a >= SMALL) & (b >= SMALL) & np.isfinite(a) & np.isfinite(b)
    value = np.where(is_defined & (x >= 0) & (x <= 1), value, np.nan)
    size = 1 + np.where(is_normal, 0, np.abs(left) + np.abs(right) + np.abs(both))
    return Truth(value, 64, np.where(value > 0, value * size, 0))


def betaln(a: Array, b: Array) -> Truth:
    """As SciPy has it unless a parameter is large; then by logarithms of shares."""
    plain = special.betaln(a.astype(np.float64), b.astype(np.float64))
    small, large = ref.widened(np.minimum(a, b)), ref.widened(np.maximum(a, b))
    wide = wide_gammaln(small) - small * np.log(large + small) + small
    wide = wide - (large - 0.5) * np.log1p(small / large)
    wide = wide + 1 / (12 * large) - 1 / (12 * (large + small))
    pi = 4 * np.arctan(np.longdouble(1))
    shares = (large - 0.5) * np.log1p(small / large)
    shares = shares + (small - 0.5) * np.log1p(large / small)
    both = (np.log(2 * pi) - np.log(large + small)) / 2 - shares
    both = both + 1 / (12 * small) + 1 / (12 * large) - 1 / (12 * (large + small))
    value = np.where(small > 1e6, both, wide)
    is_large = (small >= SMALL) & (large > 1e4) & np.isfinite(large)
    return Truth(np.where(is_large, value, plain), 16, np.abs(plain) + 1)


def psi(n: int, x: Array) -> Array:
    return np.asarray(special.polygamma(n, x.astype(np.float64)))


def gammainc_slope(a: Array, x: Array, *, order: int) -> Truth:
    """Σ exp(h) over h = (a + k) log x - x - log Γ(a + k + 1), term by term."""
    a, x = np.broadcast_arrays(ref.widened(a), ref.widened(x))
    is_defined = (a >= SMALL) & (x >= 0) & np.isfinite(a)
    is_inside = is_defined & (x > 0) & np.isfinite(x)
    a, x = np.where(is_inside, a, 1), np.where(is_inside, x, 1)
    value, scale = np.zeros(x.shape, x.dtype), np.zeros(x.shape, x.dtype)
    for k in range(80):
        term = np.exp((a + k) * np.log(x) - x - wide_gammaln(a + k + 1))
        first = np.log(x) - psi(0, a + k + 1)
        factor = first if order == 1 else first * first - psi(1, a + k + 1)
        value, scale = value + term * factor, scale + term * (np.abs(factor) + 1)
    value = np.where(is_inside, value, np.where(is_defined, 0, np.nan))
    return Truth(value, 64, np.where(is_inside, scale, 0))


def betainc_slope(a: Array, b: Array, x: Array, *, orders: tuple[int, int]) -> Truth:
    """The same for h = log Γ(a+b+k)/Γ(b)Γ(a+k+1) + (a+k) log x + b log(1-x)."""
    a, b, x = np.broadcast_arrays(*map(ref.widened, (a, b, x)))
    is_defined = (a >= SMALL) & (b >= SMALL) & np.isfinite(a) & np.isfinite(b)
    is_defined = is_defined & (x >= 0) & (x <= 1)
    is_inside = is_defined & (x > 0) & (x < 1)
    a, b, x = (np.where(is_inside, each, 0.5) for each in (a, b, x))
    value, scale = np.zeros(x.shape, x.dtype), np.zeros(x.shape, x.dtype)
    for k in range(100):
        up, down = wide_gammaln(a + b + k), wide_gammaln(a + k + 1)
        logs = (a + k) * np.log(x) + b * np.log1p(-x)
        term = np.exp(up - wide_gammaln(b) - down + logs)
        by_a = psi(0, a + b + k) - psi(0, a + k + 1) + np.log(x)
        by_b = psi(0, a + b + k) - psi(0, b) + np.log1p(-x)
        factor = {
            (1, 0): by_a,
            (1, 1): by_a * by_b + psi(1, a + b + k),
        }[orders]
        value, scale = value + term * factor, scale + term * (np.abs(factor) + 1)
    value = np.where(is_inside, value, np.where(is_defined, 0, np.nan))
    return Truth(value, 64, np.where(is_inside, scale, 0))


INTEGRALS = [
    case(
        "betaln",
        [POSITIVE, POSITIVE],
        second=ALL_OF_TWO,
        reference=betaln,
        agreement=SUM,
    ),
    case(
        "gamma_density",
        [POSITIVE, POSITIVE],
        second=ALL_OF_TWO,
        reference=gamma_density,
        agreement=SUM,
    ),
    case(
        "beta_density",
        [POSITIVE, POSITIVE, INSIDE],
        second=ALL_OF_THREE,
        reference=beta_density,
        agreement=SUM,
    ),
    case(
        "gammainc_slope",
        [POSITIVE, POSITIVE],
        second=ALL_OF_TWO,
        reference=gammainc_slope,
        agreement=SUM,
        variants=tuple(
            Variant(shapes, {"order": order}, note=str(order))
            for order in (1, 2)
            for shapes in SHAPES[2][: 3 if order == 1 else 1]
        ),
        refused=tuple(Variant(each, {"order": 1}) for each in MISFITS),
        unreachable=(Variant(((3,), (3,)), {"order": -1}),),
    ),
    case(
        "betainc_slope",
        [POSITIVE, POSITIVE, INSIDE],
        second=ALL_OF_THREE,
        reference=betainc_slope,
        agreement=SUM,
        variants=tuple(
            Variant(shapes, {"orders": pair}, note="by".join(map(str, pair)))
            for pair in ((1, 0), (1, 1))
            for shapes in SHAPES[3][: 2 if pair == (1, 0) else 1]
        ),
        refused=(Variant(((3,), (4,), (3,)), {"orders": (1, 0)}),),
        unreachable=(Variant(((3,), (3,), (3,)), {"orders": (0, -1)}),),
    ),
]

CASES = [*FUNCTIONS, *BESSEL, *INTEGRALS]
