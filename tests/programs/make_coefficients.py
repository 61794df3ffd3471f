"""Derives the numbers in `tapejit/targets/cpu/vecmath/coefficients.py`.

`python tests/programs/make_coefficients.py` prints that file; it needs mpmath and some
seconds. Each polynomial interpolates its function, computed to 50 digits, at the
Chebyshev nodes of the interval, which is within a small factor of the best polynomial
of its degree. The degree is the first at which the error, by the weight that the
polynomial has in the result, is below the wanted number of bits. The coefficients are
then rounded to the format.

Where the time of a function hangs on the degree, the polynomial is the best one, by
Remez's exchange, and its coefficients are rounded one after the other, each time
leaving to those that follow what the rounding has changed.

Start reading at `FITS`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mpmath import mp, mpf

mp.dps = 50
FORMATS = {"F32": (24, "<f"), "F64": (53, "<d")}

HEADER = '''"""The numbers of vecmath: polynomials, and constants in several words.

Made by tests/programs/make_coefficients.py: change that, not this file. A polynomial's
comment says what it approximates and where; the fits are our own, in 50 digits, by
interpolation at Chebyshev nodes or by Remez's exchange. One that only the other format
needs is empty. A constant in several words is the sum of them, each word the rest
rounded to the format.

Start reading at `F32` and `F64`, which hold the same names.
"""

from __future__ import annotations

from tapejit.targets.cpu.vecmath.table import Table'''


@dataclass(frozen=True)
class Fit:
    """A polynomial to be found: of what, where, and how much it counts there."""

    says: str
    function: Callable[[Any], Any]
    low: Any
    high: Any
    weight: Callable[[Any], Any]
    extra: int = 6  # bits beyond the precision of the format
    is_best: bool = False  # by Remez's exchange


def over_square_root(function: Callable[[Any], Any], *known: Any) -> Any:
    """(f(√z)/√z - known[0] - known[1] z - ...) / z^len(known), by its limit near 0."""

    def reduced(z: Any) -> Any:
        root = mp.sqrt(z)
        rest = function(root) / root
        for power, term in enumerate(known):
            rest -= term * z**power
        return rest / z ** len(known)

    return reduced


def erfcx(x: Any) -> Any:
    """exp(x²) erfc(x); far out by its asymptotic series."""
    if x < 30:
        return mp.exp(x * x) * mp.erfc(x)
    total = term = mpf(1)
    for n in range(1, 40):  # at 30, and farther out, the terms vanish by then
        term *= -(2 * n - 1) / (2 * x * x)
        total += term
    return total / (x * ROOT_PI)


def scaled_erfcx(c: Any) -> Callable[[Any], Any]:
    """(x + c) erfcx(x) in t = (x - c) / (x + c), which is 1 where x is infinite."""

    def value(t: Any) -> Any:
        x = c * (1 + t) / (1 - t)
        return (x + c) * erfcx(x)

    return value


def stirling_rest(w: Any) -> Any:
    z = 1 / mp.sqrt(w)
    start = (z - mpf("0.5")) * (mp.log(z) - 1) + mp.log(2 * mp.pi) / 2 - mpf("0.5")
    return z * (mp.loggamma(z) - start)


def digamma_rest(w: Any) -> Any:
    z = 1 / mp.sqrt(w)
    return (mp.log(z) - 1 / (2 * z) - mp.psi(0, z)) / w


DIGAMMA_ROOT = mp.findroot(lambda x: mp.psi(0, x), mpf("1.4616321449683623"))
HALF_LN2 = mp.log(2) / 2
S_MAX = (mp.sqrt(2) - 1) / (mp.sqrt(2) + 1)
QUARTER_PI = mp.pi / 4
ONE_THIRD = mpf(1) / 3
ROOT_PI = mp.sqrt(mp.pi)
# The middle of erfcx's map.
ERFCX_MIDDLE = {"F32": mpf("1.75"), "F64": mpf(3)}
# How many coefficients have a second word.
SECOND_WORDS = {"F32": {"erfcx": 2, "ndtri": 1}, "F64": {"erfcx": 3, "ndtri": 1}}
ERF_LAST = {"F32": mpf(4), "F64": mpf(6)}  # from where on erf is 1


def erfcx_fit(name: str) -> Fit:
    c = ERFCX_MIDDLE[name]
    says = f"(x + {c}) exp(x²) erfc(x) in (x - {c}) / (x + {c}), x >= 0"
    return Fit(says, scaled_erfcx(c), mpf(-1), mpf(1), lambda t: mpf(1), extra=4)


def erf_fit(name: str) -> Fit | None:
    if name == "F32":
        return None
    return Fit(
        "erf(√z)/√z - 1, z <= 1",
        lambda z: mp.erf(mp.sqrt(z)) / mp.sqrt(z) - 1,
        mpf(0),
        mpf(1),
        lambda z: mpf(1),
    )


def log_erfc_fit(name: str) -> Fit | None:
    if name == "F32":
        return None
    last = ERF_LAST[name]
    return Fit(
        f"log(erfc(x)) / x, x in [1, {last}]",
        lambda x: mp.log(mp.erfc(x)) / x,
        mpf(1),
        last,
        lambda x: x * mp.erfc(x),
        extra=3,
    )


def erfc_rate_fit(name: str) -> Fit | None:
    if name == "F64":
        return None
    last = ERF_LAST[name]
    return Fit(
        f"-log(erfc(x)) / x - 1, x <= {last}",
        lambda x: -mp.log(mp.erfc(x)) / x - 1,
        mpf("1e-10"),
        last,
        lambda x: x * mp.erfc(x) / mp.erf(x),
        extra=3,
        is_best=True,
    )


# The map of the normal distribution's tail. The first number and it by √2 have at most
# 20 bits behind the point, so that adding x to them has an exact remainder; with the
# second the value at t = 0 is a float, and it by √2 as well, to some 29 bits.
NORMAL_SHIFT = mpf(780100) / 2**19
NORMAL_MIDDLE = mpf("3.61096954345703125")
NORMAL_LAST = mpf("14.4")


def normal_start() -> Any:
    """The scaled tail where t = 0."""
    x = NORMAL_MIDDLE - NORMAL_SHIFT
    return NORMAL_MIDDLE * erfcx(x / mp.sqrt(2)) / 2


def normal_fit(name: str) -> Fit | None:
    if name == "F64":
        return None
    c, d = NORMAL_SHIFT, NORMAL_MIDDLE
    start = normal_start()

    def value(t: Any) -> Any:
        x = d / (1 - t) - c
        return (x + c) * erfcx(x / mp.sqrt(2)) / 2 / start

    says = "(x + c) exp(x²/2) Φ(-x) / start in t = 1 - d / (x + c), x <= 14.4"
    low, high = 1 - d / c, 1 - d / (NORMAL_LAST + c)
    return Fit(says, value, low, high, lambda t: 1 / value(t), extra=2, is_best=True)


# From where on the quantiles are computed from √w.
NDTRI_MIDDLE = {"F32": mpf(5), "F64": mpf("1.5")}
NDTRI_LAST = {"F32": mpf(104), "F64": mpf(746)}


def upper_quantile(w: Any) -> tuple[Any, Any]:
    """y and p with 4p (1 - p) = exp(-w) and Φ(-y) = p, by Halley's iteration."""
    quarter = mp.exp(-w) / 4
    p = 2 * quarter / (1 + mp.sqrt(1 - 4 * quarter))
    large = -2 * mp.log(p)
    y = mp.sqrt(large - mp.log(large * 2 * mp.pi)) if large > 4 else 5 * mp.sqrt(w) / 4
    for _ in range(60):
        density = mp.exp(-y * y / 2) / mp.sqrt(2 * mp.pi)
        excess = (mp.erfc(y / mp.sqrt(2)) / 2 - p) / density
        step = excess / (1 - y * excess / 2)
        y += step
        if abs(step) < mpf(10) ** -45:
            break
    return y, p


def ndtri_fit(name: str) -> Fit:
    def value(w: Any) -> Any:
        y, p = upper_quantile(w)
        return y / (1 - 2 * p)

    last = NDTRI_MIDDLE[name]
    says = f"y / (1 - 2p) in w = -log(4p (1 - p)), y the quantile of 1 - p, w <= {last}"
    return Fit(says, value, mpf("1e-6"), last, lambda w: mpf("0.7"), extra=3)


def ndtri_tail_map(name: str) -> tuple[Any, Any]:
    """u = m / √w + n, from -1 to 1 on the far side; in 1/√w itself terms cancel."""
    low, high = (1 / mp.sqrt(limits[name]) for limits in (NDTRI_LAST, NDTRI_MIDDLE))
    return 2 / (high - low), -(high + low) / (high - low)


def ndtri_tail_fit(name: str) -> Fit:
    factor, offset = ndtri_tail_map(name)

    def value(u: Any) -> Any:
        inverse = (u - offset) / factor
        return upper_quantile(1 / inverse**2)[0] * inverse

    first, last = NDTRI_MIDDLE[name], NDTRI_LAST[name]
    says = f"y / √w in u = m / √w + n, w in [{first}, {last}], u in [-1, 1]"
    extra = {"F32": 3, "F64": 20 - 53}[name]
    return Fit(says, value, mpf(-1), mpf(1), lambda u: mpf(1), extra)


FITS: dict[str, Callable[[str], Fit | None]] = {
    "exp": lambda name: Fit(
        "(exp(r) - 1 - r) / r², |r| <= ln(2)/2",
        lambda r: (mp.exp(r) - 1 - r) / (r * r),
        -HALF_LN2 * mpf("1.001"),
        HALF_LN2 * mpf("1.001"),
        lambda r: r * r / mp.exp(r),
        extra={"F32": 4, "F64": 6}[name],
        is_best=name == "F32",
    ),
    "log": lambda name: Fit(
        "(atanh(√z)/√z - 1) / z, z <= (√2 - 1)²/(√2 + 1)²",
        over_square_root(mp.atanh, 1),
        mpf(0),
        S_MAX**2 * mpf("1.001"),
        lambda z: z,
        is_best=name == "F32",
    ),
    "log_pair": lambda name: Fit(
        "(atanh(√z)/√z - 1 - z/3) / z², z <= (√2 - 1)²/(√2 + 1)²",
        over_square_root(mp.atanh, 1, ONE_THIRD),
        mpf(0),
        S_MAX**2 * mpf("1.001"),
        lambda z: z * z,
        extra=13,
    ),
    "log1p": lambda name: Fit(
        "(atanh(√z)/√z - 1) / z, z <= 1/9",
        over_square_root(mp.atanh, 1),
        mpf(0),
        mpf(1) / 9 * mpf("1.001"),
        lambda z: z,
    ),
    "tanh": lambda name: Fit(
        "(tanh(√z)/√z - 1) / z, z <= 0.55²",
        over_square_root(mp.tanh, 1),
        mpf(0),
        mpf("0.55") ** 2,
        lambda z: z,
    ),
    "sin": lambda name: Fit(
        "(sin(√z)/√z - 1) / z, z <= (π/4)²",
        over_square_root(mp.sin, 1),
        mpf(0),
        (QUARTER_PI * mpf("1.001")) ** 2,
        lambda z: z,
    ),
    "cos": lambda name: Fit(
        "(cos(√z) - 1 + z/2) / z², z <= (π/4)²",
        lambda z: (mp.cos(mp.sqrt(z)) - 1 + z / 2) / (z * z),
        mpf(0),
        (QUARTER_PI * mpf("1.001")) ** 2,
        lambda z: z * z * mp.sqrt(2),
    ),
    "asin": lambda name: Fit(
        "(asin(√z)/√z - 1) / z, z <= 1/4",
        over_square_root(mp.asin, 1),
        mpf(0),
        mpf("0.25"),
        lambda z: z,
    ),
    "atan": lambda name: Fit(
        "(atan(√z)/√z - 1) / z, z <= tan(π/8)²",
        over_square_root(mp.atan, 1),
        mpf(0),
        mp.tan(mp.pi / 8) ** 2 * mpf("1.001"),
        lambda z: z,
    ),
    "sinh": lambda name: Fit(
        "(sinh(√z)/√z - 1) / z, z <= 1",
        over_square_root(mp.sinh, 1),
        mpf(0),
        mpf(1),
        lambda z: z,
    ),
    "erf": erf_fit,
    "log_erfc": log_erfc_fit,
    "erfc_rate": erfc_rate_fit,
    "normal": normal_fit,
    "erfcx": erfcx_fit,
    "ndtri": ndtri_fit,
    "ndtri_tail": ndtri_tail_fit,
    "stirling": lambda name: Fit(
        "z (log Γ(z) - (z - ½)(log z - 1) - ½ log 2π + ½) in 1/z², z >= 8",
        stirling_rest,
        mpf(0),
        mpf(1) / 64,
        mp.sqrt,
    ),
    "gammaln_one": lambda name: Fit(
        "log Γ(1 + t) / t, |t| <= 1/4",
        lambda t: mp.loggamma(1 + t) / t,
        mpf("-0.25"),
        mpf("0.2501"),  # so that no node is at 0
        lambda t: mpf(2),
    ),
    "gammaln_two": lambda name: Fit(
        "log Γ(2 + t) / t, |t| <= 1/4",
        lambda t: mp.loggamma(2 + t) / t,
        mpf("-0.25"),
        mpf("0.2501"),
        lambda t: mpf(2),
    ),
    "digamma": lambda name: Fit(
        "z² (log z - 1/2z - ψ(z)) in 1/z², z >= 8",
        digamma_rest,
        mpf(0),
        mpf(1) / 64,
        lambda w: w,
    ),
    "digamma_root": lambda name: Fit(
        "ψ(r + t) / t, |t| <= 1/4, r the positive root of ψ",
        lambda t: mp.psi(0, DIGAMMA_ROOT + t) / t,
        mpf("-0.25"),
        mpf("0.2501"),
        lambda t: mpf(1),
    ),
    "cbrt": lambda name: Fit(
        "∛z, z in [1, 8), to start from",
        lambda z: mp.cbrt(z),
        mpf(1),
        mpf(8),
        lambda z: 1 / mp.cbrt(z),
        extra=9 - FORMATS[name][0],
    ),
}

WORDS: dict[str, tuple[Any, int]] = {
    "ln2": (mp.log(2), 2),
    "log2_e": (1 / mp.log(2), 2),
    "log10_e": (1 / mp.log(10), 2),
    "log10_2": (mp.log10(2), 2),
    "half_pi": (mp.pi / 2, 3),
    "quarter_pi": (mp.pi / 4, 2),
    "pi": (mp.pi, 2),
    "two_over_pi": (2 / mp.pi, 1),
    "stirling_constant": (mp.log(2 * mp.pi) / 2 - mpf("0.5"), 2),
    "root_of_digamma": (DIGAMMA_ROOT, 2),
    "third": (ONE_THIRD, 2),
    "root_two_over_pi": (mp.sqrt(2 / mp.pi), 2),
    "root_two": (mp.sqrt(2), 2),
}


def interpolate(fit: Fit, count: int) -> list[Any]:
    """The monomial coefficients through `count` Chebyshev nodes."""
    middle, half = (fit.low + fit.high) / 2, (fit.high - fit.low) / 2
    nodes = [
        middle + half * mp.cos(mp.pi * (2 * i + 1) / (2 * count)) for i in range(count)
    ]
    matrix = mp.matrix(count, count)
    for i, node in enumerate(nodes):
        for j in range(count):
            matrix[i, j] = node**j
    return list(mp.lu_solve(matrix, mp.matrix([fit.function(node) for node in nodes])))


def chebyshev_points(fit: Fit, count: int) -> list[Any]:
    """Points of the interval, denser at its ends, none of them in its middle."""
    middle, half = (fit.low + fit.high) / 2, (fit.high - fit.low) / 2
    count += count % 2
    return [
        middle - half * mp.cos(mp.pi * (2 * i + 1) / (2 * count)) for i in range(count)
    ]


def value_at(coefficients: Sequence[Any], x: Any) -> Any:
    """The polynomial, by Horner's rule."""
    found = mpf(0)
    for coefficient in reversed(coefficients):
        found = found * x + coefficient
    return found


def exchange(fit: Fit, count: int) -> tuple[list[Any], Any]:
    """The polynomial whose largest weighted error is least, and that error."""
    points = chebyshev_points(fit, 20 * count)
    values = [fit.function(x) for x in points]
    weights = [fit.weight(x) for x in points]
    chosen = [round(i * (len(points) - 1) / count) for i in range(count + 1)]
    for _ in range(12):
        matrix = mp.matrix(count + 1, count + 1)
        for row, i in enumerate(chosen):
            for j in range(count):
                matrix[row, j] = points[i] ** j
            matrix[row, count] = (-1) ** row / weights[i]
        solved = mp.lu_solve(matrix, mp.matrix([values[i] for i in chosen]))
        coefficients = list(solved)[:count]
        errors = [
            weight * (value_at(coefficients, x) - value)
            for x, value, weight in zip(points, values, weights, strict=True)
        ]
        worst = max(map(abs, errors))
        following: list[int] = []  # the largest error between two changes of sign
        for i, found in enumerate(errors):
            if not following or (found > 0) != (errors[following[-1]] > 0):
                following.append(i)
            elif abs(found) > abs(errors[following[-1]]):
                following[-1] = i
        while len(following) > count + 1:
            ends = (abs(errors[following[0]]), abs(errors[following[-1]]))
            following.pop(0 if ends[0] < ends[1] else -1)
        if len(following) < count + 1 or following == chosen:
            break
        chosen = following
    return coefficients, worst


def rounded_in_turn(fit: Fit, coefficients: Sequence[Any], code: str) -> list[float]:
    """The coefficients in the format; each leaves its change to those after it."""
    points = chebyshev_points(fit, 3 * len(coefficients))
    weights = [fit.weight(x) for x in points]
    exact, found = list(coefficients), []
    for j in range(len(exact)):
        found.append(rounded(exact[j], code))
        powers = range(j + 1, len(exact))
        if powers:
            change = exact[j] - mpf(found[j])
            pairs = list(zip(points, weights, strict=True))
            matrix = mp.matrix([[w * x**p for p in powers] for x, w in pairs])
            wanted = mp.matrix([w * change * x**j for x, w in pairs])
            for p, part in zip(powers, mp.lu_solve(matrix, wanted), strict=True):
                exact[p] += part
    return found


def error(fit: Fit, coefficients: Sequence[Any]) -> Any:
    """The largest weighted error on a grid that shares no node."""
    worst = mpf(0)
    for i in range(1, 41):
        z = fit.low + (fit.high - fit.low) * (i - mpf("0.37")) / 40
        found = value_at(coefficients, z)
        worst = max(worst, abs(found - fit.function(z)) * fit.weight(z))
    return worst


def rounded(value: Any, code: str) -> float:
    """The nearest number of the format."""
    (found,) = struct.unpack(code, struct.pack(code, float(value)))
    return float(found)


def words(value: Any, count: int, code: str) -> tuple[float, ...]:
    """The value as a sum of numbers of the format, largest first."""
    found = []
    for _ in range(count):
        found.append(rounded(value, code))
        value -= mpf(found[-1])
    return tuple(found)


def numbers(name: str) -> dict[str, Any]:
    """Every field of a format's table."""
    precision, code = FORMATS[name]
    found: dict[str, Any] = {}
    for field, make in FITS.items():
        fit = make(name)
        if fit is None:
            found[field] = ()
            continue
        limit = mpf(2) ** -(precision + fit.extra)
        for count in range(3, 40):
            if fit.is_best:
                coefficients, worst = exchange(fit, count)
            else:
                coefficients = interpolate(fit, count)
                worst = error(fit, coefficients)
            if worst < limit:
                break
        if fit.is_best:
            found[field] = tuple(rounded_in_turn(fit, coefficients, code))
        else:
            found[field] = tuple(rounded(value, code) for value in coefficients)
        if field in SECOND_WORDS[name]:
            wanted = coefficients[: SECOND_WORDS[name][field]]
            pairs = [words(value, 2, code) for value in wanted]
            found[f"{field}_low"] = tuple(low for _, low in pairs)
    for field, (value, count) in WORDS.items():
        found[field] = words(value, count, code)
    found["erfcx_middle"] = float(ERFCX_MIDDLE[name])
    found["ndtri_map"] = tuple(rounded(x, code) for x in ndtri_tail_map(name))
    found["ndtri_middle"] = float(NDTRI_MIDDLE[name])
    found["erf_last"] = float(ERF_LAST[name])
    found["normal_map"] = tuple(
        rounded(x, code) for x in (NORMAL_SHIFT, NORMAL_MIDDLE, normal_start())
    )
    return found


def main() -> None:
    """Print the file; `ruff format` lays it out."""
    print(HEADER)
    for name in FORMATS:
        print(f"\n{name} = Table(")
        for field, value in numbers(name).items():
            fit = FITS[field](name) if field in FITS else None
            if fit is not None:
                print(f"    # {fit.says}")
            print(f"    {field}={value!r},")
        print(")")


if __name__ == "__main__":
    main()
