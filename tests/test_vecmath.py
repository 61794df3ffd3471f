"""Vector maths is within its bounds everywhere, and the same at every width."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agreement import EXACT, assert_agrees
from programs import make_coefficients
from vecmath_accuracy import (
    CASES,
    HAS_EXTENDED,
    IN_EXTENDED,
    Case,
    any_bits,
    compiled,
    error_in_ulps,
    inside,
    measured,
    points,
    precise_truth,
    truth_in,
)

from tapejit.base.errors import ArgumentError
from tapejit.targets.cpu import vecmath
from tapejit.targets.cpu.machine.host import (
    Elementwise,
    Library,
    elementwise,
    loop_module,
)
from tapejit.targets.cpu.simd.vector import F32, F64, Builder, Format, Vector
from tapejit.targets.cpu.vecmath import coefficients
from tapejit.targets.cpu.vecmath.reduction import factors

Array = np.ndarray[Any, Any]
DTYPES = ("float32", "float64")
INF, NAN, PI = math.inf, math.nan, math.pi
ROOT = Path(__file__).resolve().parent.parent
CHUNK = 1 << 20


def each(cases: Any) -> Any:
    return pytest.mark.parametrize("case", list(cases), ids=str)


def test_every_function_has_a_case() -> None:
    assert set(CASES) == {*vecmath.UNARY, *vecmath.BINARY}


# Accuracy


@each(CASES.values())
def test_single_precision_is_within_its_bound(case: Case, full: bool) -> None:
    """On 2^18 points by default, on 2^26 with --full."""
    function = compiled(case.name, "float32", 8)
    count = CHUNK if full else CHUNK >> 2
    for seed in range(64 if full else 1):
        arguments = points(case, np.float32, count, np.random.default_rng(seed))
        truth = truth_in(np.float64, case, arguments)
        case.check(arguments, function(*arguments), truth)


@each(CASES.values())
def test_double_precision_is_within_its_bound(case: Case, full: bool) -> None:
    rng = np.random.default_rng(1)
    arguments = inside(case, points(case, np.float64, 100_000 if full else 2_000, rng))
    assert arguments[0].size > 500
    got = compiled(case.name, "float64", 4)(*arguments)
    case.check(arguments, got, precise_truth(case, arguments))


@pytest.mark.skipif(not HAS_EXTENDED, reason="no floats wider than double here")
@each(IN_EXTENDED)
def test_double_precision_agrees_with_extended(case: Case, full: bool) -> None:
    """Every exponent; here NaN, infinities and underflow are met as well."""
    count = CHUNK if full else 100_000
    arguments = points(case, np.float64, count, np.random.default_rng(2))
    got = compiled(case.name, "float64", 4)(*arguments)
    case.check(arguments, got, truth_in(np.longdouble, case, arguments))


@pytest.mark.parametrize("name", ["erf", "erfc"])
def test_the_error_functions_are_constant_far_out(name: str) -> None:
    x = any_bits(np.random.default_rng(3), np.float64, 10_000)
    x = x[np.abs(x) >= 30]
    far = {"erf": np.sign(x), "erfc": 1 - np.sign(x)}[name]
    assert_agrees(EXACT, compiled(name, "float64", 4)(x), far, where=name)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_normal_distribution_keeps_its_precision_far_to_the_left(
    dtype: str, full: bool
) -> None:
    """Down to the smallest subnormal numbers, and its logarithm beyond them."""
    last = {"float32": -14.3, "float64": -38.5}[dtype]
    x = np.linspace(last, -3, 2_000 if full else 200).astype(dtype)
    for name in ("ndtr", "log_ndtr", "log_ndtr_slope"):
        arguments = x if name == "ndtr" else np.concatenate([x, x**3, -(2.0**-x)])
        arguments = arguments.astype(dtype)
        truth = precise_truth(CASES[name], [arguments])
        got = compiled(name, dtype, 4)(arguments)
        assert_agrees(CASES[name].op_class, got, truth, where=name)


# name -> exponents of the binades that hold its largest errors in single precision
WORST = {"ndtr": (-1, 3), "erfc": (1, 2), "erf": (-4, -2), "tanh": (-1,),
         "sigmoid": (1, 2), "exp": (1, 5), "log": (-1, 0)}  # fmt: skip


@pytest.mark.parametrize("name", WORST)
def test_no_float_of_the_worst_binades_is_off_by_2_ulp(name: str, full: bool) -> None:
    """All of them with --full, else every 31st: short formulas have little to spare."""
    function = compiled(name, "float32", 8)
    for exponent in WORST[name]:
        start, end = (
            np.float32(2.0**e).view(np.int32) for e in (exponent, exponent + 1)
        )
        x = np.arange(start, end, 1 if full else 31, dtype=np.int32).view(np.float32)
        for signed in (x,) if name == "log" else (x, -x):
            truth = truth_in(np.float64, CASES[name], [signed])
            assert error_in_ulps(function(signed), truth).max() < 2


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_quantiles_undo_the_distribution_at_its_ends(dtype: str) -> None:
    limits = np.finfo(dtype)
    tiny = limits.smallest_subnormal * 2.0 ** np.arange(0, 30)
    p = np.concatenate([tiny, np.geomspace(limits.tiny, 0.5, 300)]).astype(dtype)
    p = np.concatenate([p, (1 - np.geomspace(limits.epsneg, 0.5, 100)).astype(dtype)])
    for name, x in (("ndtri", p), ("erfinv", p[p >= limits.tiny])):
        truth = precise_truth(CASES[name], [x])
        got = compiled(name, dtype, 4)(x)
        assert_agrees(CASES[name].op_class, got, truth, where=name)


@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_of_exponentials_are_right_where_they_vanish(dtype: str) -> None:
    """On the curve e^x + e^y = 1 within one step from 1, not of the result."""
    x = np.linspace(-5, -1e-3, 500).astype(dtype)
    for name, log1m in (
        ("logaddexp", np.log(-np.expm1(x.astype(np.longdouble)))),
        ("logaddexp2", np.log2(-np.expm1(np.log(2) * x.astype(np.longdouble)))),
    ):
        y = log1m.astype(dtype)
        truth = precise_truth(CASES[name], [x, y])
        error = np.abs(compiled(name, dtype, 4)(x, y).astype(np.longdouble) - truth)
        assert error.max() <= np.finfo(dtype).eps


@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
@pytest.mark.parametrize(
    ("dtype", "nearest"),
    [
        # The floats that are nearest to a multiple of π/2, of all of their format.
        ("float32", math.ldexp(16367173, 72)),
        ("float64", math.ldexp(6381956970095103, 797)),
    ],
)
def test_the_worst_angles_keep_their_precision(
    name: str, dtype: str, nearest: float
) -> None:
    limits = [2.0**15, 2.0**30, 2.0**52, 1.5 * 2.0**100, float(np.finfo(dtype).max)]
    angles = [nearest, nearest / 2, nearest * 4, *limits]
    angles += [float(np.nextafter(np.dtype(dtype).type(a), 0)) for a in limits]
    multiples = np.arange(1, 3000) * (PI / 2)
    x = np.concatenate([angles, multiples]).astype(dtype)
    x = np.concatenate([x, -x])
    truth = precise_truth(CASES[name], [x])
    assert_agrees(CASES[name].op_class, compiled(name, dtype, 4)(x), truth, where=name)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["gammaln", "digamma"])
def test_positive_zeros_keep_their_precision(name: str, dtype: str) -> None:
    """Within 4 ULP of the result itself, not only of its parts."""
    near = np.random.default_rng(5).normal(size=300) * 10.0 ** np.linspace(-17, -1, 300)
    roots = {"gammaln": [1.0, 2.0], "digamma": [1.4616321449683623]}[name]
    x = np.concatenate([root + near for root in roots]).astype(dtype)
    truth = precise_truth(CASES[name], [x])
    truth = np.where(truth == 0, 0, truth)
    assert_agrees(CASES[name].op_class, compiled(name, dtype, 4)(x), truth, where=name)


@pytest.mark.parametrize("name", ["asin", "acos", "log1p", "atanh", "acosh", "log"])
def test_the_last_floats_of_a_domain_keep_their_precision(name: str) -> None:
    steps = np.arange(1, 200)
    x = np.concatenate([1 - steps * 2.0**-53, 1 + steps * 2.0**-52])
    [x] = inside(CASES[name], [np.concatenate([x, -x])])
    got = compiled(name, "float64", 4)(x)
    truth = precise_truth(CASES[name], [x])
    assert_agrees(CASES[name].op_class, got, truth, where=name)


# Special values

# name -> arguments and the one right result
EXACTLY: dict[str, list[tuple[float, float]]] = {
    "exp": [(0.0, 1), (-0.0, 1), (INF, INF), (-INF, 0.0), (1e4, INF), (-1e4, 0.0)],
    "exp2": [(0.0, 1), (3, 8), (-1, 0.5), (INF, INF), (-INF, 0.0), (5e3, INF)],
    "expm1": [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -1), (-1e4, -1), (1e4, INF)],
    "log": [(1, 0.0), (0.0, -INF), (-0.0, -INF), (INF, INF), (-1, NAN), (-INF, NAN)],
    "log2": [(1, 0.0), (8, 3), (2.0**-140, -140), (0.0, -INF), (INF, INF), (-1, NAN)],
    "log10": [(1, 0.0), (1e3, 3), (1e10, 10), (-0.0, -INF), (INF, INF), (-1, NAN)],
    "log1p": [(0.0, 0.0), (-0.0, -0.0), (-1, -INF), (INF, INF), (-2, NAN)],
    "sin": [(0.0, 0.0), (-0.0, -0.0), (INF, NAN), (-INF, NAN)],
    "cos": [(0.0, 1), (-0.0, 1), (INF, NAN), (-INF, NAN)],
    "tan": [(0.0, 0.0), (-0.0, -0.0), (INF, NAN), (-INF, NAN)],
    "sinh": [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -INF), (1e4, INF)],
    "cosh": [(0.0, 1), (-0.0, 1), (INF, INF), (-INF, INF), (-1e4, INF)],
    "tanh": [(0.0, 0.0), (-0.0, -0.0), (INF, 1), (-INF, -1), (1e4, 1), (-1e4, -1)],
    "asin": [(0.0, 0.0), (-0.0, -0.0), (1, PI / 2), (-1, -PI / 2), (1.5, NAN)],
    "acos": [(1, 0.0), (0.0, PI / 2), (-1, PI), (1.5, NAN), (-INF, NAN)],
    "atan": [(0.0, 0.0), (-0.0, -0.0), (1, PI / 4), (INF, PI / 2), (-INF, -PI / 2)],
    "asinh": [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -INF)],
    "acosh": [(1, 0.0), (INF, INF), (0.5, NAN), (-INF, NAN)],
    "atanh": [(0.0, 0.0), (-0.0, -0.0), (1, INF), (-1, -INF), (2, NAN), (INF, NAN)],
    "sigmoid": [(0.0, 0.5), (-0.0, 0.5), (INF, 1), (-INF, 0.0), (1e4, 1), (-1e4, 0.0)],
    "erf": [(0.0, 0.0), (-0.0, -0.0), (INF, 1), (-INF, -1), (30, 1)],
    "erfc": [(0.0, 1), (-0.0, 1), (INF, 0.0), (-INF, 2), (30, 0.0), (-30, 2)],
    "erfcx": [(0.0, 1), (-0.0, 1), (INF, 0.0), (-INF, INF), (-1e4, INF)],
    "erfinv": [(0.0, 0.0), (-0.0, 0.0), (1, INF), (-1, -INF), (2, NAN), (-INF, NAN)],
    "ndtr": [(0.0, 0.5), (-0.0, 0.5), (INF, 1), (-INF, 0.0), (40, 1), (-40, 0.0)],
    "ndtri": [(0.5, 0.0), (0.0, -INF), (-0.0, -INF), (1, INF), (2, NAN), (-1, NAN)],
    "log_ndtr": [(INF, -0.0), (-INF, -INF), (50, -0.0)],
    "log_ndtr_slope": [(INF, 0.0), (-INF, INF), (50, 0.0), (-(2.0**60), 2.0**60)],
    "softplus": [(INF, INF), (-INF, 0.0), (1e4, 1e4), (-1e4, 0.0)],
    "softsign": [(0.0, 0.0), (-0.0, -0.0), (-3, -0.75), (INF, 1), (-INF, -1)],
    "entr": [(0.0, 0.0), (-0.0, 0.0), (1, -0.0), (INF, -INF), (-1, -INF), (-INF, -INF)],
    "logit": [(0.5, 0.0), (0.0, -INF), (-0.0, -INF), (1, INF), (2, NAN), (-1, NAN)],
    "sinc": [(0.0, 1), (-0.0, 1), (1, 0.0), (-2, 0.0), (1e30, 0.0), (INF, NAN)],
    "gammaln": [(1, 0.0), (2, 0.0), (0.0, INF), (-0.0, INF), (-3, INF), (INF, INF)],
    "digamma": [(0.0, -INF), (-0.0, INF), (-3, NAN), (-INF, NAN), (INF, INF)],
    "cbrt": [(0.0, 0.0), (-0.0, -0.0), (27, 3), (-8, -2), (INF, INF), (-INF, -INF)],
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", vecmath.UNARY)
def test_special_values_are_exact(name: str, dtype: str) -> None:
    arguments, expected = np.array([*EXACTLY[name], (NAN, NAN)]).T.astype(dtype)
    assert_agrees(EXACT, compiled(name, dtype, 4)(arguments), expected, where=name)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", vecmath.BINARY)
def test_special_values_of_two_arguments_are_numpys(name: str, dtype: str) -> None:
    limits = np.finfo(dtype)
    magnitudes = [0, 0.5, 1, 1.5, 2, 3, 2.0**60, INF, NAN, limits.max, limits.tiny]
    magnitudes += [limits.smallest_subnormal, 1 - limits.epsneg, 2.0**23 + 1]
    values = np.array(magnitudes).astype(dtype)
    grid = [
        x.reshape(-1) for x in np.meshgrid(*[np.concatenate([values, -values])] * 2)
    ]
    truth = truth_in(np.longdouble, CASES[name], grid)
    CASES[name].check(grid, compiled(name, dtype, 4)(*grid), truth)


ODD = {
    "expm1", "log1p", "sin", "tan", "sinh", "tanh", "asin", "atan", "asinh", "atanh",
}  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", sorted(ODD))
def test_a_slope_of_one_leaves_subnormal_numbers_as_they_are(
    name: str, dtype: str
) -> None:
    limits = np.finfo(dtype)
    x = np.arange(1, 1000).astype(dtype) * limits.smallest_subnormal
    x = np.concatenate([x, limits.tiny - x, -x])
    assert_agrees(EXACT, compiled(name, dtype, 4)(x), x, where=name)


# Lanes


@pytest.mark.parametrize("dtype", DTYPES)
@each(CASES.values())
def test_every_width_gives_the_same_bits(case: Case, dtype: str) -> None:
    arguments = points(case, dtype, 3_000, np.random.default_rng(4))
    widths = (4, 8, 16)
    results = [compiled(case.name, dtype, width)(*arguments) for width in widths]
    bits = [np.where(np.isnan(x), 0, x).view(f"i{x.itemsize}") for x in results]
    is_nan = [np.isnan(x) for x in results]
    for other in (1, 2):
        np.testing.assert_array_equal(bits[0], bits[other])
        np.testing.assert_array_equal(is_nan[0], is_nan[other])


@pytest.mark.parametrize("width", [1, 3])
def test_a_width_need_not_be_one_of_a_machine(width: int) -> None:
    x = np.array([0.5, 1e22, -3.0, 1e5])
    for name in ("sin", "exp", "log1p"):
        wide, odd = compiled(name, "float64", 4)(x), compiled(name, "float64", width)(x)
        np.testing.assert_array_equal(wide, odd)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_huge_angle_leaves_its_neighbours_alone(dtype: str) -> None:
    calm = np.linspace(-20, 20, 64).astype(dtype)
    mixed = calm.copy()
    mixed[::5] = [1e30, INF, NAN, -1e20] * 3 + [3e15]
    for name in ("sin", "cos", "tan"):
        function = compiled(name, dtype, 8)
        kept = np.arange(64) % 5 != 0
        np.testing.assert_array_equal(function(mixed)[kept], function(calm)[kept])


# What is emitted

UNWANTED = ("fast", "contract", "reassoc", "nnan", "ninf", "nsz", "arcp", "afn")


@pytest.mark.parametrize("form", [F32, F64], ids=["f32", "f64"])
@each(CASES.values())
def test_no_instruction_is_relaxed_or_undefined(case: Case, form: Format) -> None:
    formula = {**vecmath.UNARY, **vecmath.BINARY}[case.name]
    text = str(loop_module(formula, case.arity, form, 4))
    words = set(text.replace("(", " ").split())
    assert not words & {*UNWANTED, "fptosi", "fptoui"}


def test_the_page_of_errors_is_current(full: bool) -> None:
    """Some of its rows; with --full all, of which the generated page consists."""
    page = (ROOT / "docs" / "vecmath.md").read_text()
    rows = [f"| `{name}` | {single:.2f} | {double:.2f} |"
            for name in list(CASES)[:: 1 if full else 8]
            for single, double in [measured(name)]]  # fmt: skip
    assert not [row for row in rows if row not in page], "run python docs/generate.py"


def test_the_table_of_two_over_pi_is_periodic_in_value() -> None:
    """2^8 times a row is the next row, modulo 4, up to what the words hold."""
    for form in (F32, F64):
        rows = [sum(map(Fraction, row)) for row in factors(form)]
        tolerance = Fraction(2) ** (8 - 3 * form.precision)
        for row, following in pairwise(rows):
            rest = (row * 256 - following) / 4
            assert abs(rest - round(rest)) < tolerance


@pytest.mark.parametrize("name", ["F32", "F64"])
def test_the_coefficients_are_those_of_the_program(name: str, full: bool) -> None:
    if name == "F64" and not full:
        pytest.skip("the same program with more digits: --full")
    table = getattr(coefficients, name)._asdict()
    assert make_coefficients.numbers(name) == table


# The builder and the host


def run(formula: Callable[..., Vector], *arrays: Any, dtype: str = "float64") -> Array:
    return elementwise(formula, arity=len(arrays), dtype=dtype, width=4)(*arrays)


def test_maximum_and_minimum_treat_nan_as_numpy_does() -> None:
    values = np.array([NAN, -INF, -1.0, 0.0, 2.0, INF])
    x, y = (v.reshape(-1) for v in np.meshgrid(values, values))
    larger = run(lambda b, x, y: b.maximum(x, y), x, y)
    smaller = run(lambda b, x, y: b.minimum(x, y), x, y)
    np.testing.assert_array_equal(larger, np.maximum(x, y))
    np.testing.assert_array_equal(smaller, np.minimum(x, y))


@pytest.mark.parametrize(
    ("formula", "numpys"),
    [
        (lambda b, x: b.round(x), np.round),
        (lambda b, x: b.floor(x), np.floor),
        (lambda b, x: b.trunc(x), np.trunc),
        (lambda b, x: b.abs(x), np.abs),
        (lambda b, x: -x, np.negative),
        (lambda b, x: b.clamp(x, -1, 2), lambda x: np.clip(x, -1, 2)),
        (lambda b, x: b.select(b.is_negative(x), 1.0, x), lambda x: np.where(
            np.signbit(x), 1.0, x)),
        (lambda b, x: b.select(x.ne(x), b.constant(7), x), lambda x: np.where(
            np.isnan(x), 7, x)),
        (lambda b, x: b.as_float(~~b.as_bits(x)), lambda x: x),
        (lambda b, x: 1 - 2 / (3 + x * 4), lambda x: 1 - 2 / (3 + x * 4)),
        (lambda b, x: b.polynomial(x, (1.0, 2.0)), lambda x: 1 + 2 * x),
    ],
)  # fmt: skip
def test_an_operation_of_the_builder_is_numpys(
    formula: Callable[..., Vector], numpys: Callable[[Array], Array]
) -> None:
    x = np.array([0.0, -0.0, 0.5, -0.5, 1.5, 2.5, -3.0, 1e30, INF, -INF, NAN])
    assert_agrees(EXACT, run(formula, x), numpys(x))


def test_a_fused_product_rounds_once() -> None:
    x = np.array([1 + 2.0**-30])
    found = run(lambda b, x: b.fma(x, x, -1 - 2.0**-29), x)
    assert found.tolist() == [2.0**-60]


def test_a_builder_needs_a_lane() -> None:
    with pytest.raises(ArgumentError, match="at least 1 lane"):
        Builder(None, F64, 0)


def test_the_host_refuses_what_it_cannot_run() -> None:
    with pytest.raises(ArgumentError, match="float32 or float64, not int64"):
        Elementwise(vecmath.exp, 1, np.int64, 4)
    with pytest.raises(ArgumentError, match="takes 1 arrays, not 2"):
        compiled("exp", "float64", 4)([1.0], [2.0])
    with pytest.raises(ArgumentError, match="no function 'missing'"):
        Library(loop_module(vecmath.exp, 1, F64, 4)).function("missing", None)


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 5), (2, 0)])
def test_the_host_takes_arrays_of_any_shape(shape: tuple[int, ...]) -> None:
    x = np.full(shape, 9.0)
    got = run(lambda b, x: b.sqrt(x), x)
    assert got.shape == shape
    assert (got == 3).all()
