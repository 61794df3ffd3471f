"""How many digits are right: transcendentals over the whole range of their dtypes.

Half-precision numbers are tried one and all. Of single and double precision every so
manieth bit pattern is, more of them with `--full`, and besides a dense sample of the
numbers around one. Of special functions, whose truth is computed with mpmath one by
one, it is every 151st of all that, or with `--full` every 31st.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from agreement import POWER, ROUNDED, TRANSCENDENTAL, assert_agrees, widen
from op_cases import CASES, OpCase
from op_cases.case import Array, dtypes_of, eager
from op_cases.special import INSIDE_OF
from scipy.special import factorial

from tapejit.base.types import DType, dtype_named, is_complex, is_float

CHUNK = 1 << 18

FUNCTIONS = [
    case
    for cases in CASES.values()
    for case in cases
    if (case.agreement in (TRANSCENDENTAL, ROUNDED) or case.op in INSIDE_OF)
    and len(case.operands) == 1
    and case.is_eager
    and case.op != "bits_to_normal"  # not a function of floats
]


def floats_of(dtype: DType, full: bool) -> Iterator[Array]:
    """Numbers of every magnitude and sign, infinities and NaN among them."""
    bits = 8 * dtype.itemsize
    word = np.dtype(f"u{dtype.itemsize}")
    if bits == 16:
        yield np.arange(1 << 16, dtype=word).view(dtype)
        return
    count = (1 << 23 if bits == 32 else 1 << 20) if full else 200_000
    step = (1 << bits) // count | 1  # odd, so that the last bits change
    for start in range(0, count, CHUNK):
        numbers = np.arange(start, min(start + CHUNK, count), dtype=np.uint64)
        yield (numbers * np.uint64(step)).astype(word).view(dtype)
    rng = np.random.default_rng(29)
    count = 100_000
    spread = rng.normal(size=count) * 2.0 ** rng.integers(-12, 7, count)
    yield np.concatenate([spread, 1 + spread, np.arange(-50, 50) * np.pi / 4]).astype(
        dtype
    )


REAL = [
    pytest.param(case, dtype, id=f"{case.op}-{dtype.name}")
    for case in FUNCTIONS
    for dtype in case.rows[0].dtypes
    if is_float(dtype)
]
COMPLEX = [
    pytest.param(case, dtype, id=f"{case.op}-{dtype.name}")
    for case in FUNCTIONS
    for dtype in case.rows[0].dtypes
    if is_complex(dtype)
]


def assert_accurate(case: OpCase, *arrays: Array) -> None:
    got = np.asarray(eager(case.op, arrays, {})._value)
    truth = case.rows[0].reference(arrays)
    assert_agrees(case.agreement, got, truth, where=f"{case.op} of {arrays[0].dtype}")


@pytest.mark.parametrize(("case", "dtype"), REAL)
def test_functions_are_accurate_over_the_whole_range(
    case: OpCase, dtype: DType, full: bool
) -> None:
    step = (31 if full else 151) if case.op in INSIDE_OF else 1
    for x in floats_of(dtype, full):
        assert_accurate(case, x[::step])


def test_gammaln_is_accurate_next_to_its_hidden_zeros() -> None:
    """About 1/n! to either side of -n, until floats are farther apart than that."""
    rng = np.random.default_rng(43)
    n = np.repeat(np.arange(2.0, 18.0), 40)
    away = 2.0 ** rng.uniform(-1, 1, n.size) / factorial(n)
    x = np.concatenate([-n - away, -n + away])
    # The last: SciPy's is off by more than 4 ULP.
    x = np.append(x[x != np.rint(x)], -45.99999999999936)
    assert_accurate(CASES["gammaln"][0], x)


def test_digamma_is_accurate_next_to_its_first_hidden_zero() -> None:
    """There both terms of its reflection are small, and 1 - x is rounded."""
    x = np.random.default_rng(47).uniform(-0.53, -0.48, 500)
    assert_accurate(CASES["digamma"][0], x)


@pytest.mark.parametrize(("case", "dtype"), COMPLEX)
def test_functions_are_accurate_in_the_plane(case: OpCase, dtype: DType) -> None:
    """Small numbers, numbers near ±1 and ±i, and on either side of the axes."""
    rng = np.random.default_rng(31)
    size = 2.0 ** rng.uniform(-20, 3, 4000)
    around = size * np.exp(1j * rng.uniform(-np.pi, np.pi, 4000))
    centres = [0, 1, -1, 1j, -1j]
    points = [centre + around[at::5] for at, centre in enumerate(centres)]
    flat = around[:100]
    axes = [flat.real + 0j, 1j * flat.imag, flat.real + 1e-30j, 1e-30 + 1j * flat.imag]
    assert_accurate(case, np.concatenate([*points, *axes]).astype(dtype))


def powers_of(dtype: DType, count: int) -> tuple[Array, Array]:
    """Bases of every magnitude, exponents that keep the power in range or just past."""
    rng = np.random.default_rng(37)
    info = np.finfo(np.float32 if dtype.name == "bfloat16" else dtype)
    top = float(np.log2(info.max))
    height = rng.uniform(-top, top, count)
    height[::4] = rng.uniform(-0.1, 0.1, height[::4].size)
    exponent = rng.uniform(-1.05, 1.05, count) * top / np.where(height, height, 1)
    x = 2.0**height
    whole = np.arange(count) % 3 == 0
    exponent[whole] = np.round(np.clip(exponent[whole], -1e4, 1e4))
    x[whole] *= rng.choice([-1, 1], x[whole].size)
    with np.errstate(over="ignore"):
        x, exponent = x.astype(dtype), exponent.astype(dtype)
    is_inside = np.isfinite(exponent.astype(np.float64))
    return x[is_inside], exponent[is_inside]


@pytest.mark.parametrize("dtype", dtypes_of(["float"]), ids=lambda d: d.name)
def test_powers_are_accurate_over_the_whole_range(dtype: DType, full: bool) -> None:
    (case,) = CASES["pow"]
    assert case.agreement == POWER
    assert_accurate(case, *powers_of(dtype, 1_000_000 if full else 30_000))


@pytest.mark.parametrize("dtype", dtypes_of(["complex"]), ids=lambda d: d.name)
def test_powers_are_accurate_in_the_plane(dtype: DType) -> None:
    (case,) = CASES["pow"]
    rng = np.random.default_rng(41)
    x, p = (
        (rng.uniform(0.3, 2, 2000) * np.exp(1j * rng.uniform(-3, 3, 2000))).astype(
            dtype
        )
        for _ in range(2)
    )
    assert_accurate(case, x, p)


def test_the_sample_reaches_every_magnitude() -> None:
    for name in ("float16", "bfloat16", "float32", "float64"):
        drawn = np.concatenate(list(floats_of(dtype_named(name), full=False)))
        wide = widen(drawn)
        finite = wide[np.isfinite(wide) & (wide != 0)]
        exponents = np.unique(np.frexp(np.abs(finite))[1])
        info = np.finfo(np.float32 if name == "bfloat16" else name)
        assert len(exponents) >= 0.99 * (info.maxexp - info.minexp)
        assert (wide < 0).any()
        assert (wide > 0).any()
