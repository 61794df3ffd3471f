"""NumPy's scalars keep their dtype where they become tensors; arithmetic is weak."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tapejit as tj

SCALARS = (
    np.float64(1 / 3),
    np.float32(1 / 3),
    np.float16(1 / 3),
    np.int64(3),
    np.int8(3),
    np.uint64(3),
    np.bool_(True),
    np.complex128(1 / 3 + 1j),
    np.complex64(1 / 3 + 1j),
)
KEEPS: dict[str, Callable[[Any], Any]] = {
    "asarray": tj.asarray,
    "constant": tj.constant,
    "constant with a shape": lambda x: tj.constant(x, shape=(2,)),
    "full": lambda x: tj.full((2, 3), x),
    "list": lambda x: tj.asarray([x, x]),
    "nested": lambda x: tj.asarray([[x], [x]]),
    "Variable": tj.Variable,
}
FLOATS = tuple(x for x in SCALARS if isinstance(x, np.floating))


@pytest.mark.parametrize("name", KEEPS)
@pytest.mark.parametrize("scalar", SCALARS, ids=repr)
def test_dtypes_are_kept(name: str, scalar: Any) -> None:
    made = KEEPS[name](scalar)
    assert made.dtype == scalar.dtype
    assert (made.numpy() == scalar).all()


@pytest.mark.parametrize("scalar", SCALARS, ids=repr)
def test_traces_keep_them_too(scalar: Any) -> None:
    """As a constant of the body, as an argument, and as one that changes."""
    for name, make in KEEPS.items():
        if name == "Variable":
            continue
        inside = tj.function(lambda make=make: make(scalar))()
        assert inside.dtype == scalar.dtype, name
        assert (inside.numpy() == scalar).all(), name
        f = tj.function(make)
        for number in (scalar, scalar + scalar, scalar * scalar):
            found = f(number)
            assert found.dtype == number.dtype, name
            assert (found.numpy() == number).all(), name


@pytest.mark.parametrize("scalar", FLOATS, ids=repr)
def test_arithmetic_of_an_argument_is_numpys(scalar: Any) -> None:
    bodies = (
        lambda s: tj.asarray(s * 2.5 + s),
        lambda s: tj.asarray((1 - s) / 3),
        lambda s: tj.asarray(-s) + tj.asarray(+s),
        lambda s: tj.ones(2) * s,
        lambda s: tj.asarray([s, 1.5]),
        lambda s: tj.full((2,), s, dtype=s.dtype),
    )
    for body in bodies:
        f = tj.function(body)
        for number in (scalar, scalar + 1, scalar + 2, scalar + 3):
            expected, found = body(number), f(number)
            assert found.dtype == expected.dtype
            np.testing.assert_array_equal(found, expected)
        assert f.trace_count == 2  # one by value, one for every number


def test_a_change_of_kind_is_another_trace() -> None:
    f = tj.function(lambda s: tj.asarray(s))
    for _ in range(2):
        for number in (0.1, np.float64(0.1), np.float32(0.1), 0.2, np.float64(0.2)):
            found = f(number)
            expected = tj.asarray(number)
            assert found.dtype == expected.dtype
            assert found.numpy() == expected.numpy()


@pytest.mark.parametrize("scalar", FLOATS, ids=repr)
def test_arithmetic_with_tensors_is_weak(scalar: Any) -> None:
    for run in (lambda f: f, tj.function):
        for dtype in ("float16", "float32", "float64"):
            x = tj.ones(2, dtype=dtype)
            assert run(lambda x, s: x * s)(x, scalar).dtype == dtype
            assert run(lambda x, s: s - x)(x, scalar).dtype == dtype
            assert run(lambda x, s: tj.maximum(x, s))(x, scalar).dtype == dtype
        assert run(lambda x, s: x + s)(tj.arange(2), scalar).dtype == "float32"


def test_the_ends_of_ranges_keep_their_dtype() -> None:
    third = np.float64(1 / 3)
    assert tj.arange(third, 2).dtype == "float64"
    assert tj.arange(third, 2)[1].item() == third + 1
    assert tj.arange(np.int64(3)).dtype == "int64"
    assert tj.arange(0, np.float32(1), 0.25).dtype == "float32"
    assert tj.arange(3).dtype == "int32"
    assert tj.arange(tj.asarray(3)).dtype == "int32"
    assert tj.linspace(0, third, 3).dtype == "float64"
    assert tj.linspace(0, third, 3)[2].item() == third
    assert tj.linspace(0, np.int64(3), 3).dtype == "float32"
    assert tj.linspace(np.float16(0), 1, 3).dtype == "float16"
    assert tj.linspace(0, np.complex128(1j), 3).dtype == "complex128"
    assert tj.linspace(0, 1, 3).dtype == "float32"


def test_numbers_beside_numpy_scalars_in_lists_are_weak() -> None:
    assert tj.asarray([np.float32(0.5), 2.0]).dtype == "float32"
    assert tj.asarray([np.float64(0.5), 2]).dtype == "float64"
    assert tj.asarray([np.float16(0.5), 1j]).dtype == "complex64"
    assert tj.asarray([np.int64(5), 2]).dtype == "int64"
    assert tj.asarray([np.zeros(2), [1.0, 2.0]]).dtype == "float64"


def test_variables_take_numpy_scalars_of_every_float() -> None:
    v = tj.Variable([1.0, 2.0])
    v[0].assign(np.float64(0.1))
    scalar = tj.Variable(1.0)
    for number in FLOATS:
        scalar.assign(number)
        scalar.assign_add(number)
        assert scalar.dtype == "float32"
    assert v.dtype == "float32"
