"""The array API standard 2025.12: special values of its elementwise functions.

They are the lines of a table, `function(operands) = result`, and hold in both float
dtypes.

Start reading at `ONE_OPERAND`.
"""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
from agreement import EXACT, POWER, assert_agrees

import tapejit as tj

inf, nan, pi = math.inf, math.nan, math.pi
FLOATS = (tj.float32, tj.float64)


def same(found: Any, wanted: float) -> bool:
    """Equal, zeros with their signs, NaN to NaN; multiples of pi may be rounded."""
    value = float(found)
    if math.isnan(wanted):
        return math.isnan(value)
    if wanted == 0:
        return value == 0 and math.copysign(1, value) == math.copysign(1, wanted)
    return math.isclose(value, wanted, rel_tol=1e-6)


def cases(text: str) -> list[tuple[str, tuple[float, ...], float]]:
    """`name(a, b) = c` as a name, operands and a result."""
    names = {"inf": inf, "nan": nan, "pi": pi}
    found = []
    for name, operands, result in re.findall(r"(\w+)\(([^)]*)\) = (\S+)", text):
        values = eval(f"({operands},)", names)
        found.append((name, values, float(eval(result, names))))
    return found


# Special values

ONE_OPERAND = """
acos(nan) = nan   acos(1.5) = nan   acos(-1.5) = nan   acos(1.) = 0.
acosh(nan) = nan   acosh(0.5) = nan   acosh(1.) = 0.   acosh(inf) = inf
asin(nan) = nan   asin(2.) = nan   asin(-2.) = nan   asin(0.) = 0.
asin(-0.) = -0.
asinh(nan) = nan   asinh(0.) = 0.   asinh(-0.) = -0.   asinh(inf) = inf
asinh(-inf) = -inf
atan(nan) = nan   atan(0.) = 0.   atan(-0.) = -0.   atan(inf) = pi/2
atan(-inf) = -pi/2
atanh(nan) = nan   atanh(1.) = inf   atanh(-1.) = -inf   atanh(2.) = nan
atanh(-2.) = nan   atanh(0.) = 0.   atanh(-0.) = -0.
ceil(inf) = inf   ceil(-inf) = -inf   ceil(nan) = nan   ceil(-0.) = -0.
ceil(-0.5) = -0.
floor(0.) = 0.   floor(-0.) = -0.   floor(-inf) = -inf
trunc(-0.5) = -0.   trunc(nan) = nan   trunc(inf) = inf   trunc(0.) = 0.
round(0.5) = 0.   round(1.5) = 2.   round(-0.5) = -0.   round(-1.5) = -2.
round(inf) = inf   round(nan) = nan   round(-0.) = -0.
cos(nan) = nan   cos(0.) = 1.   cos(-0.) = 1.   cos(inf) = nan   cos(-inf) = nan
cosh(nan) = nan   cosh(0.) = 1.   cosh(inf) = inf   cosh(-inf) = inf
exp(nan) = nan   exp(0.) = 1.   exp(inf) = inf   exp(-inf) = 0.
expm1(nan) = nan   expm1(0.) = 0.   expm1(-0.) = -0.   expm1(inf) = inf
expm1(-inf) = -1.
log(nan) = nan   log(-1.) = nan   log(0.) = -inf   log(-0.) = -inf   log(1.) = 0.
log(inf) = inf
log1p(nan) = nan   log1p(-2.) = nan   log1p(-1.) = -inf   log1p(0.) = 0.
log1p(-0.) = -0.   log1p(inf) = inf
log2(nan) = nan   log2(-1.) = nan   log2(0.) = -inf   log2(1.) = 0.
log2(inf) = inf
log10(nan) = nan   log10(-1.) = nan   log10(0.) = -inf   log10(1.) = 0.
log10(inf) = inf
reciprocal(0.) = inf   reciprocal(-0.) = -inf   reciprocal(inf) = 0.
reciprocal(-inf) = -0.   reciprocal(nan) = nan
sign(nan) = nan   sign(0.) = 0.   sign(-0.) = 0.   sign(-inf) = -1.
sign(inf) = 1.
signbit(0.) = 0   signbit(-0.) = 1   signbit(inf) = 0   signbit(-inf) = 1
signbit(-1.) = 1   signbit(2.) = 0
sin(nan) = nan   sin(0.) = 0.   sin(-0.) = -0.   sin(inf) = nan   sin(-inf) = nan
sinh(nan) = nan   sinh(0.) = 0.   sinh(-0.) = -0.   sinh(-inf) = -inf
sqrt(nan) = nan   sqrt(-1.) = nan   sqrt(0.) = 0.   sqrt(-0.) = -0.
sqrt(inf) = inf
tan(nan) = nan   tan(0.) = 0.   tan(-0.) = -0.   tan(inf) = nan
tanh(nan) = nan   tanh(0.) = 0.   tanh(-0.) = -0.   tanh(inf) = 1.
tanh(-inf) = -1.
abs(nan) = nan   abs(-0.) = 0.   abs(-inf) = inf
square(-inf) = inf   square(nan) = nan
isnan(nan) = 1   isnan(inf) = 0
isinf(-inf) = 1   isinf(nan) = 0
isfinite(nan) = 0   isfinite(inf) = 0   isfinite(0.) = 1
negative(0.) = -0.   negative(nan) = nan
"""

TWO_OPERANDS = """
add(inf, -inf) = nan   add(inf, inf) = inf   add(-0., -0.) = -0.
add(-0., 0.) = 0.   add(0., 0.) = 0.   add(1., -1.) = 0.   add(nan, 1.) = nan
subtract(inf, inf) = nan   subtract(-0., 0.) = -0.
multiply(inf, 0.) = nan   multiply(-inf, 0.) = nan   multiply(inf, -1.) = -inf
multiply(-0., 1.) = -0.   multiply(-0., -1.) = 0.
divide(inf, inf) = nan   divide(0., 0.) = nan   divide(0., -1.) = -0.
divide(1., 0.) = inf   divide(1., -0.) = -inf   divide(-1., 0.) = -inf
divide(1., -inf) = -0.   divide(inf, -2.) = -inf
atan2(nan, 1.) = nan   atan2(1., nan) = nan   atan2(1., 0.) = pi/2
atan2(1., -0.) = pi/2   atan2(0., 1.) = 0.   atan2(0., 0.) = 0.
atan2(0., -0.) = pi   atan2(0., -1.) = pi   atan2(-0., 1.) = -0.
atan2(-0., 0.) = -0.   atan2(-0., -0.) = -pi   atan2(-0., -1.) = -pi
atan2(-1., 0.) = -pi/2   atan2(-1., -0.) = -pi/2   atan2(1., inf) = 0.
atan2(1., -inf) = pi   atan2(-1., inf) = -0.   atan2(-1., -inf) = -pi
atan2(inf, 1.) = pi/2   atan2(-inf, 1.) = -pi/2   atan2(inf, inf) = pi/4
atan2(inf, -inf) = 3*pi/4   atan2(-inf, inf) = -pi/4   atan2(-inf, -inf) = -3*pi/4
copysign(1., -2.) = -1.   copysign(-1., 2.) = 1.   copysign(1., -0.) = -1.
copysign(1., 0.) = 1.   copysign(0., -1.) = -0.   copysign(inf, -1.) = -inf
copysign(3., -inf) = -3.   copysign(nan, -1.) = nan
hypot(inf, nan) = inf   hypot(nan, -inf) = inf   hypot(nan, 1.) = nan
hypot(3., 4.) = 5.   hypot(-0., 0.) = 0.
logaddexp(nan, 1.) = nan   logaddexp(inf, 1.) = inf   logaddexp(inf, -inf) = inf
logaddexp(-inf, 2.) = 2.   logaddexp(-inf, -inf) = -inf
maximum(nan, 1.) = nan   maximum(1., nan) = nan
minimum(nan, inf) = nan
nextafter(nan, 1.) = nan   nextafter(1., nan) = nan   nextafter(0., 0.) = 0.
nextafter(0., -0.) = -0.   nextafter(-0., 0.) = 0.
floor_divide(nan, 1.) = nan   floor_divide(inf, inf) = nan
floor_divide(0., 0.) = nan   floor_divide(0., 1.) = 0.
floor_divide(-0., 1.) = -0.   floor_divide(0., -1.) = -0.
floor_divide(-0., -1.) = 0.   floor_divide(1., 0.) = inf
floor_divide(1., -0.) = -inf   floor_divide(-1., 0.) = -inf
floor_divide(-1., -0.) = inf   floor_divide(1., inf) = 0.
floor_divide(1., -inf) = -0.   floor_divide(-1., inf) = -0.
floor_divide(-1., -inf) = 0.   floor_divide(7., -2.) = -4.
floor_divide(inf, 2.) = inf   floor_divide(-inf, 2.) = -inf
floor_divide(inf, -2.) = -inf   floor_divide(-inf, -2.) = inf
floor_divide(inf, 0.) = inf   floor_divide(inf, -0.) = -inf
floor_divide(0., inf) = 0.   floor_divide(0., -inf) = -0.
floor_divide(-0., inf) = -0.   floor_divide(-inf, inf) = nan
floor_divide(1., nan) = nan   floor_divide(inf, nan) = nan
remainder(nan, 1.) = nan   remainder(inf, 2.) = nan   remainder(0., 0.) = nan
remainder(0., 1.) = 0.   remainder(-0., 1.) = 0.   remainder(0., -1.) = -0.
remainder(-0., -1.) = -0.   remainder(1., 0.) = nan   remainder(-1., -0.) = nan
remainder(1., inf) = 1.   remainder(1., -inf) = -inf   remainder(-1., inf) = inf
remainder(-1., -inf) = -1.   remainder(-7., 4.) = 1.   remainder(7., -4.) = -1.
pow(2., nan) = nan   pow(nan, 0.) = 1.   pow(nan, -0.) = 1.   pow(nan, 1.) = nan
pow(1., nan) = 1.   pow(2., inf) = inf   pow(2., -inf) = 0.   pow(1., inf) = 1.
pow(-1., inf) = 1.   pow(0.5, inf) = 0.   pow(0.5, -inf) = inf   pow(inf, 2.) = inf
pow(inf, -2.) = 0.   pow(-inf, 3.) = -inf   pow(-inf, 2.) = inf
pow(-inf, -3.) = -0.   pow(-inf, -2.) = 0.   pow(0., 2.) = 0.   pow(0., -2.) = inf
pow(-0., 3.) = -0.   pow(-0., 2.) = 0.   pow(-0., -3.) = -inf   pow(-0., -2.) = inf
pow(-2., 0.5) = nan   pow(-inf, 0.5) = inf   pow(-0., 0.5) = 0.   pow(inf, 0.5) = inf
pow(-inf, -0.5) = 0.   pow(-0., -0.5) = inf   pow(-inf, 1.5) = inf
pow(-inf, 1.) = -inf   pow(-0., 1.) = -0.   pow(-inf, -1.) = -0.   pow(-0., -1.) = -inf
pow(-inf, inf) = inf
"""


@pytest.mark.parametrize(
    ("name", "operands", "wanted"),
    cases(ONE_OPERAND) + cases(TWO_OPERANDS),
    ids=lambda value: str(value).replace(" ", ""),
)
def test_special_values(name: str, operands: tuple[float, ...], wanted: float) -> None:
    for dtype in FLOATS:
        tensors = [tj.asarray([x], dtype=dtype) for x in operands]
        (found,) = getattr(tj, name)(*tensors).numpy()
        assert same(found, wanted), f"{found} in {dtype}"


def test_the_table_of_special_values_is_read() -> None:
    assert len(cases(ONE_OPERAND)) > 120
    assert len(cases(TWO_OPERANDS)) > 110


def test_native_code_divides_infinities_the_same_way() -> None:
    numbers = (inf, -inf, nan, 0.0, -0.0, 1.0, -1.0, 2.5, -7.0)
    for dtype in (*FLOATS, "float16", "bfloat16"):
        x = tj.asarray(numbers, dtype=dtype)[:, None]
        with tj.config.override(native=True):
            found = tj.function(lambda x: x // x.mT)(x)
        assert_agrees(EXACT, found.numpy(), (x // x.mT).numpy(), where=dtype)


def test_a_single_exponent_gives_what_an_array_of_them_gives() -> None:
    """NumPy takes square roots and squares for some, eagerly, and native code not."""
    numbers = (inf, -inf, nan, 0.0, -0.0, 1.0, -1.0, 4.0, -4.0)
    exponents = (0.5, -0.5, 1.5, 2.0, -2.0, 3.0, 1.0, -1.0, 0.0, -0.0, inf, -inf, nan)
    for dtype in (*FLOATS, "float16", "bfloat16"):
        x = tj.asarray(numbers, dtype=dtype)
        column = tj.asarray(exponents, dtype=dtype)[:, None]
        with tj.config.override(native=True):
            native = tj.function(lambda x, _: [x**p for p in exponents])(x, column)
            broadcast = tj.function(tj.pow)(x, column).numpy()
        rows = tj.pow(x, column).numpy()
        for at, p in enumerate(exponents):
            expected = tj.pow(x, tj.full(x.shape, p, dtype=dtype)).numpy()
            scalars = np.array([(x[i] ** p).numpy() for i in range(len(numbers))])
            found = (x**p).numpy(), rows[at], scalars, native[at].numpy(), broadcast[at]
            for values in found:
                assert_agrees(POWER, values, expected, where=f"{dtype} ** {p}")


# Of complex numbers; the results for conjugates are conjugates.
COMPLEX_EXPM1 = {
    complex(0.0, 0.0): complex(0.0, 0.0),
    complex(1.0, inf): complex(nan, nan),
    complex(1.0, nan): complex(nan, nan),
    complex(inf, 0.0): complex(inf, 0.0),
    complex(-inf, 1.0): complex(-1.0, 0.0),
    complex(-inf, 2.0): complex(-1.0, 0.0),
    complex(inf, 1.0): complex(inf, inf),
    complex(inf, 2.0): complex(-inf, inf),
    complex(-inf, inf): complex(-1.0, 0.0),
    complex(inf, inf): complex(inf, nan),
    complex(-inf, nan): complex(-1.0, 0.0),
    complex(inf, nan): complex(inf, nan),
    complex(nan, 0.0): complex(nan, 0.0),
    complex(nan, 1.0): complex(nan, nan),
    complex(nan, inf): complex(nan, nan),
    complex(nan, nan): complex(nan, nan),
    complex(1000.0, 0.0): complex(inf, 0.0),
    complex(1000.0, 2.0): complex(-inf, inf),
}


@pytest.mark.parametrize("x", COMPLEX_EXPM1, ids=str)
@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_expm1_of_complex_numbers(x: complex, dtype: str) -> None:
    wanted = COMPLEX_EXPM1[x]
    for run in (tj.expm1, tj.function(tj.expm1)):
        found = run(tj.asarray(x, dtype=dtype)).item()
        mirrored = run(tj.asarray(x.conjugate(), dtype=dtype)).item()
        if x.real or math.isnan(x.real):
            assert same(found.real, wanted.real), found
        else:
            assert found.real == 0.0
        assert same(found.imag, wanted.imag), found
        assert same(mirrored.imag, -wanted.imag), mirrored
