"""Division by a constant: the bits of a quotient, whatever is divided by what."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from tapejit.targets.cpu.machine.host import elementwise
from tapejit.targets.cpu.simd.division import divided, inverse_of, near_halves
from tapejit.targets.cpu.simd.vector import F32, F64, Builder, Vector

Array = np.ndarray[Any, Any]
FORMATS = {np.dtype(np.float32): F32, np.dtype(np.float64): F64}
USUAL = (3.0, 5.0, 7.0, 10.0, 49.0, 255.0, 784.0, 60000.0, 0.1, 0.3, 1.7, 32**0.5, 1e-5)


def quotients(dtype: Any, c: float, x: Array, width: int = 16) -> Array:
    """x / c as native code has it."""

    def formula(b: Builder, x: Vector) -> Vector:
        return divided(b, x, b.constant(c))

    return elementwise(formula, dtype=dtype, width=width)(x)


def assert_same(dtype: Any, c: float, x: Array, width: int = 16) -> None:
    """The bits are NumPy's; a NaN is a NaN."""
    got = quotients(dtype, c, x, width)
    with np.errstate(all="ignore"):
        truth = x / x.dtype.type(c)
    bits = f"u{x.dtype.itemsize}"
    is_other = got.view(bits) != truth.view(bits)
    wrong = x[is_other & ~(np.isnan(got) & np.isnan(truth))]
    assert not wrong.size, f"{wrong.size} of {x.size} over {c!r}, as {wrong[0]!r}"


def any_numbers(dtype: Any, count: int, rng: np.random.Generator) -> Array:
    """Any bits, with zeros, infinities, subnormal numbers and the largest ones."""
    info = np.finfo(dtype)
    bits = rng.integers(0, 1 << 32, (count, info.bits // 32), np.uint32)
    edges = [0, info.smallest_subnormal, info.tiny, info.max, np.inf, np.nan, 1.0]
    tiny = rng.random(count) * float(info.tiny) * 2.0 ** rng.integers(-30, 60, count)
    numbers = [bits.view(dtype).ravel(), tiny, edges]
    found = np.concatenate([np.asarray(x, dtype) for x in numbers])
    return np.concatenate([found, -found])


@pytest.mark.parametrize("c", [*USUAL, 1.3477290868759155, 4.0, 1.0])
def test_every_float32_with_its_first_digit(c: float) -> None:
    x = np.arange(1 << 23, dtype=np.uint32) + np.float32(1).view(np.uint32)
    assert_same(np.float32, c, x.view(np.float32))


@pytest.mark.parametrize("width", [1, 3, 4, 16])
@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_any_number_by_any_constant(dtype: Any, width: int) -> None:
    rng = np.random.default_rng(width)
    usual = [sign * x for x in USUAL for sign in (1, -1)]
    info = np.finfo(dtype)
    edges = [0.0, -0.0, np.inf, np.nan, 4.0, float(info.tiny), float(info.max) / 3]
    others = any_numbers(dtype, 4, rng)
    for c in (*usual, *edges, *map(float, others), *(1 + rng.random(9))):
        assert_same(dtype, dtype.type(c).item(), any_numbers(dtype, 400, rng), width)


def test_the_nearest_doubles() -> None:
    count, rng = 0, np.random.default_rng(0)
    for c in (*USUAL, *(1 + rng.random(200))):
        near = near_halves(F64.precision, Fraction(c), Fraction(2) ** -101)
        x = np.array([float(x) for x in near])
        count += x.size
        if x.size:
            assert_same(np.float64, c, np.concatenate([x, -x * 2.0**-60]))
    assert count > 1000


@pytest.mark.parametrize("form", [F32, F64], ids=["f32", "f64"])
def test_most_constants_need_no_division(form: Any) -> None:
    rng = np.random.default_rng(0)
    constants = [form.round(c) for c in (*USUAL, *(1 + rng.random(200)))]
    found = sum(inverse_of(form, c) is not None for c in constants)
    assert found > 0.9 * len(constants)


def test_a_constant_that_is_known_not_to_be_exact_divides() -> None:
    """For one x of all, x high + x low is on the wrong side of a half."""
    assert inverse_of(F32, 1.3477290868759155) is None
