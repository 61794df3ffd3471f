"""Values on which NumPy's own loops differ: eager and native mode have one result."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from agreement import EXACT, assert_agrees

import tapejit as tj

Array = np.ndarray[Any, Any]
FLOATS = ("float32", "float64", "float16", "bfloat16")


def native(body: Callable[..., Any], *arguments: Any) -> Any:
    """What a body gives as native code."""
    with tj.config.override(native=True, cache=False):
        return tj.function(body)(*arguments)


# Zeros: -0 is below 0


def zeros(shape: tuple[int, ...], dtype: str, seed: int) -> tj.Tensor:
    """0 and -0, at random, with a few rows of one kind."""
    random = np.random.default_rng(seed)
    signs = random.random(shape) < random.choice([0.02, 0.5, 0.98], (shape[0], 1))
    return tj.asarray(np.where(signs, 0.0, -0.0)).astype(dtype)


EXTREMES: dict[str, Callable[[tj.Tensor], tj.Tensor]] = {
    "max": tj.max,
    "min": tj.min,
    "max of rows": lambda x: tj.max(x, axis=-1),
    "min of rows": lambda x: tj.min(x, axis=-1, keepdims=True),
    "max of columns": lambda x: tj.max(x, axis=0),
    "min of columns": lambda x: tj.min(x, axis=0),
    "max of what is computed": lambda x: tj.max(x * 1.0, axis=-1) * 1.0,
    "min over a product": lambda x: tj.min(
        x @ tj.ones((x.shape[1], 5), dtype=x.dtype), axis=0
    ),
    "max_pool": lambda x: tj.nn.max_pool(x[None, :, :, None], 2),
    "max_pool, overlapping": lambda x: tj.nn.max_pool(x[None, :, :, None], 2, 1),
}


def all_extremes(x: tj.Tensor) -> list[tj.Tensor]:
    return [extreme(x) for extreme in EXTREMES.values()]


@pytest.mark.parametrize("dtype", FLOATS)
def test_zeros_have_one_order(dtype: str) -> None:
    for seed, shape in enumerate([(7, 33), (64, 130), (3, 1000)]):
        x = zeros(shape, dtype, seed)
        for name, found, eager in zip(
            EXTREMES, native(all_extremes, x), all_extremes(x), strict=True
        ):
            assert_agrees(EXACT, np.asarray(found), np.asarray(eager), where=name)


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_largest_zero_is_positive(dtype: str) -> None:
    for seed in range(4):
        x = zeros((9, 70), dtype, seed)
        signs = np.signbit(np.asarray(x))
        for axis in (0, 1, None):
            largest, smallest = tj.max(x, axis=axis), tj.min(x, axis=axis)
            np.testing.assert_array_equal(np.signbit(largest), signs.all(axis))
            np.testing.assert_array_equal(np.signbit(smallest), signs.any(axis))
        pooled = tj.nn.max_pool(x[None, :, :, None], (9, 5), (1, 1), padding="VALID")
        windows = np.lib.stride_tricks.sliding_window_view(signs, (9, 5))
        expected = windows.all((-2, -1))[None, ..., None]
        np.testing.assert_array_equal(np.signbit(pooled), expected)


def test_zeros_beside_other_numbers() -> None:
    """NaN is found before and after zeros, and numbers beyond them win."""
    both = tj.function(lambda x: (tj.max(x), tj.min(x)))
    for special in (np.nan, np.inf, -np.inf, 1.0, -1.0):
        for at in (0, 17, 39):
            x = np.float32([0.0, -0.0] * 20)
            x[at] = special
            t = tj.asarray(x)
            with tj.config.override(native=True, cache=False):
                found = both(t)
            for body, one in zip((tj.max, tj.min), found, strict=True):
                assert_agrees(EXACT, np.asarray(one), np.asarray(body(t)))


# Floats that no integer of a dtype is near to

NUMBERS = (
    *(0.0, -0.0, 0.5, -0.5, 1.0, -1.0, -1.5, 127.0, 128.0, 255.0, 256.0, 257.0, -128.0),
    *(-129.0, -257.0, 32768.0, 65535.0, 65536.0, 65537.0, -32769.0, -65537.0),
    *(2.0**31 - 1, 2.0**31, 2.0**31 + 300, -(2.0**31), -(2.0**31) - 1000, 2.0**32 - 1),
    *(2.0**32, 2.0**32 + 70000, -(2.0**32) - 77777, 3e9, -3e9, 2.0**52 + 3, 2.0**62),
    *(2.0**63, 2.0**63 + 2.0**50, 2.0**64 - 2.0**40, 2.0**64, 2.0**65, -(2.0**63)),
    *(-(2.0**64), 1e30, -1e30, np.inf, -np.inf, np.nan),
)
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")


def last_bits(x: float, bits: int) -> int:
    """A float as an int64 and that modulo 2^bits; a uint64 holds up to 2^64."""
    if np.isfinite(x) and -(2.0**63) <= x < 2.0**63 + (bits == 64) * 2.0**63:
        return int(x) % 2**bits
    return 2**63 % 2**bits


INTEGERS = ("int8", "int16", "int32", "int64", *UNSIGNED)


@pytest.mark.parametrize("source", FLOATS)
def test_floats_become_integers_in_one_way(source: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x = np.asarray(tj.asarray(NUMBERS, dtype="float64").astype(source))
        compiled = native(lambda x: [x.astype(dtype) for dtype in INTEGERS], x)
        for dtype, found in zip(INTEGERS, compiled, strict=True):
            check_casts(x, dtype, np.asarray(found))


def check_casts(x: Array, dtype: str, compiled: Array) -> None:
    eager = np.asarray(tj.asarray(x).astype(dtype))
    ways = {
        "native": compiled,
        "strided": np.asarray(tj.asarray(np.repeat(x, 3)[::3]).astype(dtype)),
        "asarray": np.asarray(tj.asarray(x, dtype=dtype)),
        "one by one": np.array([tj.asarray(v, dtype=dtype).item() for v in x]),
        "full": np.array([tj.full((), v, dtype=dtype).item() for v in x]),
        "Variable": np.array([tj.Variable(v, dtype=dtype).numpy() for v in x]),
        "list": np.asarray(tj.asarray(list(x), dtype=dtype)),
    }
    for way, found in ways.items():
        np.testing.assert_array_equal(found, eager, err_msg=f"{way}, {dtype}")
    if dtype in UNSIGNED:
        expected = [last_bits(float(v), 8 * eager.itemsize) for v in x]
        np.testing.assert_array_equal(eager, np.array(expected, dtype))


@pytest.mark.parametrize("dtype", UNSIGNED)
def test_weak_floats_become_unsigned_integers_in_the_same_way(dtype: str) -> None:
    for number in (-1.0, -1.5, 300.0, 70000.0, 1e30, float("nan")):
        expected = last_bits(number, 8 * np.dtype(dtype).itemsize)
        assert tj.asarray(number, dtype=dtype).item() == expected
        assert tj.full((2,), number, dtype=dtype)[1].item() == expected
        filled = tj.full_like(tj.zeros(3, dtype=dtype), number)
        assert filled.tolist() == [expected] * 3
