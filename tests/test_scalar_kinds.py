"""Numbers of every kind mean the same in a trace: as arguments, captured, in lists.

A NumPy scalar is NumPy's until it meets a tensor: `s * 1.5` with an np.int64 `s` is a
float64, eagerly and in a trace. An array, also one without axes, is a tensor in a
function, traced or not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tapejit as tj

F = tj.asarray([1.5, 2.0])
I = tj.asarray([1, 2])  # noqa: E741
NUMPY = {
    **{
        name: np.dtype(name).type(3)
        for name in (
            *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
            *("float16", "float32", "float64", "complex64", "complex128"),
        )
    },
    "bool": np.bool_(True),
}
KINDS: dict[str, Any] = {
    **NUMPY,
    **{f"Python {type(x).__name__}": x for x in (3, 2.5, True, 1 + 2j)},
    **{
        f"array {name}": np.array(NUMPY[name])
        for name in ("int8", "int64", "uint64", "bool", "float64", "complex64")
    },
}
USES: dict[str, Callable[[Any], Any]] = {
    "alone": lambda s: tj.asarray(s),
    "returned": lambda s: s,
    "with f32": lambda s: F * s,
    "f32 second": lambda s: s - F,
    "with i32": lambda s: I * s,
    "with int": lambda s: s * 2,
    "with float": lambda s: s * 1.5,
    "float first": lambda s: 1.5 + s,
    "with complex": lambda s: s * 1j,
    "with np.float64": lambda s: s * np.float64(1.5),
    "with itself": lambda s: s * s + s,
    "result with f32": lambda s: (s * 1.5 - 1) * F,
    "of a function": lambda s: tj.add(s, 1.5),
    "of where": lambda s: tj.where(F > 1.75, s, 0),
    "list with int": lambda s: tj.asarray([s, 1]),
    "list with a large int": lambda s: tj.asarray([s, 300]),
    "list with float": lambda s: tj.asarray([s, 1.5]),
    "list with int8": lambda s: tj.asarray([s, np.int8(1)]),
    "list with f32": lambda s: tj.asarray([s, F[0]]),
    "nested list": lambda s: tj.asarray([[s, 1], [2, 3]]),
    "list as operand": lambda s: tj.add(I, [s, 1]),
    "inner function": lambda s: tj.function(lambda t: t * 1.5)(s) * F,
}


def described(function: Callable[..., Any], *args: Any) -> Any:
    """The result as an array, or the error it raised."""
    try:
        return np.asarray(tj.asarray(function(*args)))
    except (TypeError, ValueError, OverflowError) as error:
        return type(error)


def check_alike(found: Any, expected: Any, what: str) -> None:
    if isinstance(expected, type):
        assert found is expected, what
        return
    assert not isinstance(found, type), (what, found)
    assert found.dtype == expected.dtype, what
    np.testing.assert_array_equal(found, expected, what)


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_mean_the_same_in_traces(kind: str) -> None:
    s = KINDS[kind]
    for name, use in USES.items():
        check_use(use, s, f"{kind}, {name}")


def check_use(use: Callable[[Any], Any], s: Any, what: str) -> None:
    plain = described(use, s)
    check_alike(described(tj.function(lambda: use(s))), plain, what)
    f = tj.function(use)
    with tj.config.override(eager=True):
        eager = described(f, s)
    if not isinstance(s, np.ndarray):
        check_alike(eager, plain, what)
    check_alike(described(f, s), eager, what)
    of_list = tj.function(lambda parts: use(parts[0]))
    check_alike(described(of_list, [s]), eager, what)


X = np.arange(3.0)
OF_ARRAYS: dict[str, Callable[[], Any]] = {
    "sum": lambda: X.sum() * F,
    "np.mean": lambda: F - np.mean(X),
    "element of a sum": lambda: (X + 1)[1] * F,
    "product": lambda: (X @ X) * F,
}


@pytest.mark.parametrize("name", OF_ARRAYS)
def test_scalars_of_captured_arrays_are_weak(name: str) -> None:
    use = OF_ARRAYS[name]
    assert use().dtype == "float32"
    check_alike(described(tj.function(use)), described(use), name)


def test_an_integer_argument_is_one_trace() -> None:
    """Its value is no part of the key; what needs it asks for it."""
    f = tj.function(lambda x, i: (x[i], x * (i % 3), divmod(i, 2)[0], i / 2))
    x = tj.asarray([1.0, 2.0, 3.0, 4.0])
    for i in np.arange(4):
        row, product, half, quotient = f(x, i)
        assert row == x[int(i)]
        np.testing.assert_array_equal(product, x * int(i % 3))
        assert (half.dtype, half.item()) == ("int64", i // 2)
        assert (quotient.dtype, quotient.item()) == ("float64", i / 2)
    assert f.trace_count == 1
    assert f.signatures() == ["(x: f32[4], i: any int64)"]
    table = tj.function(lambda i: {0: 5.0, 1: 7.0}[i])
    assert [table(np.int64(i)).item() for i in (0, 1)] == [5.0, 7.0]


def test_a_concrete_function_takes_scalars_for_tensors() -> None:
    f = tj.function(lambda x, i: x * i)
    x = tj.asarray([1.0, 2.0])
    concrete = f.get_concrete_function(tj.TensorSpec([2]), tj.TensorSpec([], "int64"))
    of_scalar = f.get_concrete_function(x, np.int64(3))
    for g in (concrete, of_scalar, tj.function(concrete)):
        for i in (np.int64(3), np.array(3), tj.asarray(3, "int64")):
            np.testing.assert_array_equal(g(x, i), [3.0, 6.0])
    static = tj.function(lambda x, n: x * range(n)[-1], static="n")
    np.testing.assert_array_equal(static(x, np.int64(3)), [2.0, 4.0])
