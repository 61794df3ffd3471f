"""Symbolic sizes: examples first, then properties of random expressions.

A random expression is a tree of tuples. `compute` runs a tree over whatever its names
are bound to, Dims or ints, so Python's own integers are the reference.
"""

from __future__ import annotations

import copy
import itertools
import operator
import pickle
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from tapejit.base.binding import bind_shape, bind_shapes
from tapejit.base.dims import (
    Dim,
    Size,
    dim_max,
    dim_min,
    evaluate,
    free_names,
    parse_dim,
    substitute,
)

n, m, k = Dim("n"), Dim("m"), Dim("k")
_count = Dim("_count")  # found by the run: may be 0 or 1

# Random expressions

SYMBOLS: dict[str, Size] = {"n": n, "m": m, "k": k, "_count": _count}
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
}
EXTREMA: dict[str, Callable[[Any, Any], Any]] = {"max": dim_max, "min": dim_min}
PYTHON_EXTREMA: dict[str, Callable[[Any, Any], Any]] = {"max": max, "min": min}

Tree = Any  # an int, a name, or (operator, left, right)


def compute(tree: Tree, values: Mapping[str, Size]) -> Any:
    if isinstance(tree, int):
        return tree
    if isinstance(tree, str):
        return values[tree]
    name, left, right = tree
    is_symbolic = any(isinstance(value, Dim) for value in values.values())
    table = BINARY | (EXTREMA if is_symbolic else PYTHON_EXTREMA)
    return table[name](compute(left, values), compute(right, values))


leaves = st.one_of(st.sampled_from(list(SYMBOLS)), st.integers(-9, 12))
polynomial_trees = st.recursive(
    leaves,
    lambda inner: st.tuples(st.sampled_from(["+", "-", "*"]), inner, inner),
    max_leaves=7,
)
trees = st.recursive(
    leaves,
    lambda inner: st.tuples(st.sampled_from([*BINARY, *EXTREMA]), inner, inner),
    max_leaves=9,
)
sizes_from_two = st.integers(2, 9) | st.integers(2, 200)
all_bindings = st.fixed_dictionaries(
    {"n": sizes_from_two, "m": sizes_from_two, "k": sizes_from_two}
    | {"_count": st.integers(0, 9)}
)


def symbolic(tree: Tree) -> Size:
    """The tree over Dims; trees that divide by the constant 0 are not of interest."""
    try:
        return compute(tree, SYMBOLS)
    except ZeroDivisionError:
        assume(False)
        raise


dims = trees.map(symbolic)
polynomials = polynomial_trees.map(symbolic)
# Divisors of one term: for these the remainder is normal, so more identities hold.
one_term_divisors = st.sampled_from([2, 3, 6, -4, n, 2 * n, n * m, 3 * n * m, -k])


# Examples: the normal form


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (n + 1 - 1, n),
        (2 * n - n, n),
        ((n * m) * 2, 2 * m * n),
        ((n + m) * (n - m), n * n - m * m),
        (n * 0, 0),
        (n - n, 0),
        (n + 3 - n, 3),
        ((4 * n) // 2, 2 * n),
        ((4 * n) % 2, 0),
        ((n * m * 6) // (n * 2), 3 * m),
        ((n * m * 6) % (n * 2), 0),
        (n // n, 1),
        (n // 1, n),
        (n % 1, 0),
        (n // -1, -n),
        ((n + 4) // 2, n // 2 + 2),
        ((2 * n + 1) // 2, n),
        ((2 * n + 1) % 2, 1),
        ((n - 3) // 2, (n + 1) // 2 - 2),
        ((3 * n) // 2, n + n // 2),
        ((n * n + n) // (n + 1), n),
        ((2 * n + 3) // (2 * n + 2), 1),
        ((n * n - m * m) // (m + n), n - m),
        ((4 * n) // 6, (2 * n) // 3),
        ((4 * n + 1) // 6, (2 * n) // 3),
        ((2 * n + 1) % 4, 2 * (n % 2) + 1),
        (n // (2 * n), 0),
        (n * m % (2 * n), n * (m % 2)),
        (n // 2 // 3, n // 6),
        ((n // 2 + 1) // 2, (n + 2) // 4),
        ((n // 2 + m) // 3, (n + 2 * m) // 6),
        ((n * (n - 2)) // (n - 2), n),
        ((n % 4) % 4, n % 4),
        ((n % 4) // 4, 0),
        (1 // n, 0),
        (1 % n, 1),
        (-1 // n, -1),
        (-1 % n, n - 1),
        (n // -2, (-n) // 2),
        (n % -2, -((-n) % 2)),
        (dim_max(n, m), dim_max(m, n)),
        (dim_max(n, n), n),
        (dim_max(n), n),
        (dim_max(n, dim_max(m, k)), dim_max(dim_max(n, m), k)),
        (dim_max(n, n - 1), n),
        (dim_max(n, 2), n),
        (dim_max(n - 2, 0), n - 2),
        (dim_max(3, n, 5), dim_max(n, 5)),
        (dim_max(n * m, n), dim_max(n, n * m)),
        (dim_max(n, n // 2), n),
        (dim_max(n // 2 + n // 3, n), n),
        (dim_max(n, n % 4), n),
        (dim_max(-(-n // 2), 1), n - n // 2),
        (dim_max(m * n - n, 2), m * n - n),
        (dim_max(m * n - m - n, 0), m * n - m - n),
        (dim_max(n * n, 2 * n), n * n),
        (dim_max(m * (n // 2) - n // 2, 1), m * (n // 2) - n // 2),
        (dim_max(m * n - m * (n // 2), 0), m * n - m * (n // 2)),
        (dim_max(m * n, m * (n % 4)), m * n),
        (dim_max(_count, 0), _count),
        (dim_max(dim_max(n, 5) + m, 7), dim_max(n, 5) + m),
        (dim_min(dim_min(n, 5) + m % 2, 6), dim_min(n, 5) + m % 2),
        (dim_min(n, 1), 1),
        (dim_min(n, n - 1), n - 1),
        (dim_min(n // 2, n), n // 2),
        (dim_min(n - n % 4, n), n - n % 4),
        (dim_min(n, dim_min(m, k)), dim_min(k, m, n)),
        (dim_max(4, 7), 7),
        (dim_min(4, 7), 4),
    ],
)
def test_equal_expressions_are_one_value(left: Size, right: Size) -> None:
    assert left == right
    assert type(left) is type(right)
    assert hash(left) == hash(right)
    assert str(left) == str(right)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (n, m),
        (n, n + 1),
        (n, 2 * n),
        (n, n * n),
        (n // 2, n // 3),
        (n // 2, n % 2),
        (n // m, m // n),
        (dim_max(n, m), dim_min(n, m)),
        (dim_max(n, m), n),
        (dim_max(n, 3), n),
        (dim_max(n - 3, 0), n - 3),
        # What only holds from 2 on is not concluded for a size that may be smaller.
        (dim_max(_count, 1), _count),
        (dim_max(_count * n - n, 0), _count * n - n),
        (dim_max(m * n - m - n, 1), m * n - m - n),
        (dim_max(_count - 1, 0), _count - 1),
        (dim_min(_count, 1), 1),
        (1 // _count, 0),
        (n, 3),
        (n, "n"),
        (n, None),
        (n, 2.0),
        (n, np.int64(3)),
    ],
)
def test_different_expressions_differ(left: Size, right: object) -> None:
    assert left != right
    assert right != left


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (n, "n"),
        (2 * n + 1, "2*n + 1"),
        (n * m - 3, "m*n - 3"),
        (1 - n, "-n + 1"),
        (-n * m, "-m*n"),
        (n * n + n, "n*n + n"),
        ((n + 1) // 2, "(n + 1)//2"),
        (n % 4, "n % 4"),
        (n // m, "n//m"),
        (m // (m + n), "m//(m + n)"),
        ((n // 2) * 3, "3*(n//2)"),
        (m * (n % 4), "m*(n % 4)"),
        (-(n // 2), "-(n//2)"),
        (m - n // 2, "m - n//2"),
        (n // 2 + n, "n + n//2"),
        (7 // n, "7//n"),
        (-7 // n, "(-7)//n"),
        (n // (m % 3 + k), "n//(k + m % 3)"),
        ((n % 5) // 2, "(n % 5)//2"),
        ((n // m) % k, "(n//m) % k"),
        (n // (m // 2), "n//(m//2)"),
        (dim_max(n, m) // 2, "max(m, n)//2"),
        (dim_max(n, m), "max(m, n)"),
        (dim_max(5, n, m + 1), "max(m + 1, n, 5)"),
        (2 * dim_min(n, m), "2*min(m, n)"),
    ],
)
def test_prints_and_reads_back(size: Size, text: str) -> None:
    assert str(size) == text
    assert repr(size) == f"Dim({text!r})"
    assert parse_dim(text) == size


def test_mixes_with_every_kind_of_integer() -> None:
    for three in (3, np.int64(3), np.uint8(3)):
        assert 3 * n == three * n == n * three
        assert n + 3 == three + n == n + three
        assert 3 - n == three - n == -(n - three)
        assert 7 // n == np.int32(7) // n
        assert 7 % n == np.int32(7) % n
        assert n // 3 == n // three
        assert n % 3 == n % three
        assert dim_max(n, 3) == dim_max(three, n)
        assert evaluate(n, {"n": three}) == 3
        assert type(evaluate(n, {"n": three})) is int
    assert n + True == n + 1
    constant = n + np.int64(3) - n
    assert constant == 3
    assert type(constant) is int


@pytest.mark.parametrize("other", [2.0, np.float64(2), np.arange(3), (2,), None])
@pytest.mark.parametrize("symbol", BINARY)
def test_arithmetic_with_anything_else_is_a_type_error(
    symbol: str, other: object
) -> None:
    apply = BINARY[symbol]
    with pytest.raises(TypeError):
        apply(n, other)
    with pytest.raises(TypeError):
        apply(other, n)


def test_other_operand_is_asked_when_it_is_no_size() -> None:
    class Traced:
        def __radd__(self, other: object) -> str:
            return f"{other} + traced"

        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = None  # type: ignore[assignment]  # only == is of interest

    assert n + Traced() == "n + traced"
    assert n == Traced()


@pytest.mark.parametrize(
    "use",
    [
        int,
        bool,
        float,
        range,
        operator.index,
        lambda size: [0, 1, 2][size],
        lambda size: size < 3,
        lambda size: size <= m,
        lambda size: size > 3,
        lambda size: operator.gt(3, size),
        lambda size: size >= np.int64(3),
        lambda size: max(size, 3),
        lambda size: [1] * size,
    ],
)
def test_use_as_a_number_is_refused(use: Callable[[Dim], object]) -> None:
    with pytest.raises(TypeError, match="the size n is symbolic"):
        use(n)


def test_division_by_zero() -> None:
    with pytest.raises(ZeroDivisionError, match="n // 0"):
        n // 0
    with pytest.raises(ZeroDivisionError, match="n % 0"):
        n % (m - m)
    with pytest.raises(ZeroDivisionError, match=r"in the size n//_count, 6 // 0"):
        evaluate(n // _count, {"n": 6, "_count": 0})


@pytest.mark.parametrize("name", ["", "2n", "n + 1", "for", "max", "min", "µ", "n "])
def test_bad_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="cannot name a size"):
        Dim(name)


def test_no_size_at_all_is_refused() -> None:
    with pytest.raises(TypeError, match="dim_max needs at least one"):
        dim_max()
    with pytest.raises(TypeError, match=r"an int or a Dim, not 2\.5"):
        dim_min(n, 2.5)  # type: ignore[arg-type]  # what is tested
    with pytest.raises(TypeError, match="an int or a Dim, not 'n'"):
        evaluate("n", {})  # type: ignore[arg-type]  # what is tested


def test_has_no_room_for_other_attributes() -> None:
    with pytest.raises(AttributeError):
        n.value = 3  # type: ignore[attr-defined]  # what is tested


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy])
def test_copies_and_pickles_are_equal(duplicate: Callable[[Size], Size]) -> None:
    for size in (n, 2 * n + 1, dim_max(n // 2, m % 4), _count):
        assert duplicate(size) == size
        assert pickle.loads(pickle.dumps(size)) == size


# Examples: reading


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("12", 12),
        ("-12", -12),
        ("2 + 3*4", 14),
        ("7//2 - 7 % 2", 2),
        ("max(3, 4)", 4),
        ("  n ", n),
        ("n*m*2", 2 * m * n),
        ("n - n", 0),
        ("min(n, m) + max(n, max(m, k))", dim_min(n, m) + dim_max(n, m, k)),
        ("-(n - 1)", 1 - n),
        ("n//2*2", (n // 2) * 2),
        ("n - m - 1", n - (m + 1)),
        ("_count + 1", _count + 1),
    ],
)
def test_reads(text: str, size: Size) -> None:
    read = parse_dim(text)
    assert read == size
    assert type(read) is type(size)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "   ",
        "n +",
        "n m",
        "(n",
        "2.5",
        "1e3",
        "1j",
        "n/2",
        "n**2",
        "+n",
        "~n",
        "n == m",
        "n < m",
        "n and m",
        "not n",
        "n if m else k",
        "max(n)",
        "max()",
        "max(n, key)(n)",
        "max(*n, m)",
        "max(n, m, key=k)",
        "abs(n)",
        "max",
        "(n, m)",
        "n.m",
        "n[0]",
        "'n'",
        "True",
        "None",
        "lambda: 1",
        "n # comment",
        "n\n",
        "n; m",
        "(x := 3)",
        "n // 0",
        "n % (m - m)",
        "3 // 0",
        "µ",
        "(" * 5000 + "n" + ")" * 5000,
        "n" + "+n" * 100_000,
    ],
)
def test_refuses_to_read(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size") as caught:
        parse_dim(text)
    assert repr(text) in str(caught.value)


# Examples: values and names


def test_evaluate_needs_every_name() -> None:
    assert evaluate(7, {}) == 7
    assert evaluate(dim_max(n // 2, m) * k, {"n": 9, "m": 3, "k": 5, "x": 1}) == 20
    with pytest.raises(KeyError, match=r"m \+ 2\*n needs m, bound are \{'n': 3\}"):
        evaluate(2 * n + m, {"n": 3})
    with pytest.raises(TypeError, match="integer"):
        evaluate(n, {"n": 2.0})  # type: ignore[dict-item]  # what is tested


def test_free_names() -> None:
    assert free_names(3) == frozenset()
    assert free_names(n * m - k // n) == {"n", "m", "k"}
    assert free_names(dim_max(n, _count) % m) == {"n", "m", "_count"}
    assert free_names(n + m - m) == {"n"}


def test_substitute() -> None:
    assert substitute(n + m, {"n": m, "m": n}) == n + m
    assert substitute(n - 2 * m, {"n": m, "m": n}) == m - 2 * n
    assert substitute(n // 2 + n % 3, {"n": 6 * k}) == 3 * k
    assert substitute(dim_max(n, m), {"n": 4, "m": np.int64(9)}) == 9
    assert substitute(dim_max(n, m), {"n": m + 1}) == m + 1
    assert substitute(5, {"n": 4}) == 5
    with pytest.raises(ZeroDivisionError):
        substitute(k // (n - m), {"n": m})
    with pytest.raises(TypeError, match="an int or a Dim"):
        substitute(n, {"n": 0.5})  # type: ignore[dict-item]  # what is tested


@pytest.mark.parametrize(
    "text",
    [
        "(2*n + 1)//(2*m - 2*n)",
        "(2*n + 1) % (2*m - 2*n)",
        "(4*n + 3)//(6 - 2*m)",
        "(n//2 + m)//(k - 3)",
        "(n//2 + m) % (k - 3)",
        "(2*(n//2))//3",
        "(n//2 + m//3)//2",
        "(n//2 - m)//3",
        "(n//m + k)//m",
        "(n*m + n)//(2*n*k)",
        "(n*m + n) % (2*n*k)",
        "n*n//(n + m)",
        "(n*n + 1)//(n + 1)",
        "-n//2 + -n % 3",
        "n//-m + n % -m",
        "(n - m)//k + (n - m) % k",
        "7//(2*n) + 7 % (2*n)",
        "(n % 4)//3 + (n % 4) % 3",
        "max(n % 4, 2) + min(n % 4, 2)",
        "max(n % (m - k), 0)",
        "max(min(n, _count), 1)",
        "min(max(_count, m % 3), 2)",
        "max(n*((-m)//k), -10)",
        "min(n*((-m)//k), -10)",
        "max(n*m - 6, n) + min(n*m - 6, n)",
        "max(n*m - n - m, 0) + min(n*m - n - m, 1)",
        "max(n*n*m - 4*n - m, 6) + min(n*n - 2*m, 0)",
        "max(m*(n//2) - n//2, 1) + min(m*(n//2) - n//2, 2)",
        "max(m*n - 2*m*(n//2), m - 1) + min(m*(n % 3), m*n - 1)",
        "max(_count*n - n, 0) + max(_count*n - m*(_count//2), 0)",
        "max((n % 3 - 1)*(m % 3 - 1), -1) + min((n % 3 - 1)*(m - 5), 2)",
        "max(n - m, m - n, _count - 1)",
        "max(n//2 + n//3, n) - min(m//2 + m//3, m - 1)",
        "min(n - n % 4, n) - max(n - n % m, 4)",
        "max(_count*n, _count) + min(_count*n, _count*m)",
        "max(_count - n, 0)//max(n - 3, 1)",
        "(_count*n)//(2*n) + n % (_count + 1)",
        "max(n - 2, _count)*(m//(_count + 1))",
    ],
)
def test_values_on_a_grid_of_small_sizes(text: str) -> None:
    size = parse_dim(text)
    for values in itertools.product(*[range(2, 8)] * 3, range(4)):
        bindings = dict(zip(SYMBOLS, values, strict=True))
        try:
            expected = eval(text, {}, bindings)
        except ZeroDivisionError:
            continue
        assert evaluate(size, bindings) == expected, bindings


# Examples: binding


@pytest.mark.parametrize(
    ("patterns", "actuals", "bindings"),
    [
        ([], [], {}),
        ([()], [()], {}),
        ([(3, 4)], [(3, 4)], {}),
        ([(n, 3), (n, m)], [(5, 3), (5, 7)], {"n": 5, "m": 7}),
        ([(2 * n + 1,)], [(13,)], {"n": 6}),
        ([(n + m,), (n,)], [(9,), (4,)], {"n": 4, "m": 5}),
        ([(n + m + k,), (n + m,), (n,)], [(14,), (9,), (4,)], {"n": 4, "m": 5, "k": 5}),
        ([(n * m, n)], [(12, 3)], {"n": 3, "m": 4}),
        ([(10 - n,)], [(6,)], {"n": 4}),
        ([(n // 2, n % 4, n)], [(3, 2, 6)], {"n": 6}),
        ([(dim_max(n, m), n, m)], [(7, 7, 2)], {"n": 7, "m": 2}),
        ([(_count,)], [(0,)], {"_count": 0}),
        ([(n + m, n - m, 2 * n)], [(9, 3, 12)], {"n": 6, "m": 3}),
        # Once n is known, n*m - m*5 has lost m, so only m's own axis tells it.
        ([(n * m - 5 * m, n, m)], [(0, 5, 8)], {"n": 5, "m": 8}),
    ],
)
def test_binds(patterns: Any, actuals: Any, bindings: dict[str, int]) -> None:
    assert bind_shapes(patterns, actuals) == bindings


@pytest.mark.parametrize(
    ("patterns", "actuals", "message"),
    [
        ([(n,)], [], "1 shapes expected, 0 given"),
        (
            [(3,), (n, 3)],
            [(3,), (5,)],
            "parameter 1: shape [5] does not fit [n,3]: 1 axes instead of 2",
        ),
        (
            [(n, 3)],
            [(5, 4)],
            "parameter 0: shape [5,4] does not fit [n,3]: axis 1 is 4, not 3",
        ),
        (
            [(n, 3), (n,)],
            [(5, 3), (4,)],
            "parameter 1: shape [4] does not fit [n]: axis 0 is 4, not 5 (n=5)",
        ),
        (
            [(2 * n, n)],
            [(7, 3)],
            "parameter 0: shape [7,3] does not fit [2*n,n]: axis 0 is 7, not 6 (n=3)",
        ),
        (
            [(2 * n,)],
            [(7,)],
            "shape [7] does not fit [2*n]: axis 0 is 7, which 2*n is for no integer n",
        ),
        (
            [(n * m, n)],
            [(7, 3)],
            "axis 0 is 7, which 3*m is for no integer m",
        ),
        (
            [(4, n + m)],
            [(4, 9)],
            "axis 1 is 9, which does not determine m and n: some other axis must",
        ),
        ([(n // 2,)], [(4,)], "axis 0 is 4, which does not determine n"),
        (
            [(n,)],
            [(1,)],
            "axis 0 is 1, so n would be 1, but it stands for sizes from 2",
        ),
        ([(n + 1,)], [(2,)], "axis 0 is 2, so n would be 1"),
        (
            [(_count + 1,)],
            [(0,)],
            "so _count would be -1, but it stands for sizes from 0",
        ),
    ],
)
def test_binding_errors_tell_shapes_and_axis(
    patterns: Any, actuals: Any, message: str
) -> None:
    with pytest.raises(ValueError) as caught:
        bind_shapes(patterns, actuals)
    assert message in str(caught.value)


def test_bind_shape_adds_to_bindings_or_leaves_them() -> None:
    bindings = {"n": 5}
    bind_shape((n, m), (np.int64(5), np.int64(7)), bindings)
    assert bindings == {"n": 5, "m": 7}
    assert {type(value) for value in bindings.values()} == {int}
    with pytest.raises(
        ValueError, match=r"^shape \[9,8\] does not fit \[k,m\]: axis 1"
    ):
        bind_shape((k, m), (9, 8), bindings)
    assert bindings == {"n": 5, "m": 7}


# Properties

unhurried = settings(deadline=None)  # a busy machine is no wrong answer


@unhurried
@given(dims)
def test_printing_and_reading_round_trip(size: Size) -> None:
    read = parse_dim(str(size))
    assert read == size
    assert type(read) is type(size)
    assert str(read) == str(size)


@unhurried
@given(trees, all_bindings)
@example(("//", "n", "_count"), {"n": 5, "m": 2, "k": 2, "_count": 0})
@example(("%", ("+", ("*", 4, "n"), 1), 6), {"n": 5, "m": 2, "k": 2, "_count": 0})
def test_values_are_those_of_python(tree: Tree, bindings: dict[str, int]) -> None:
    try:
        expected = compute(tree, bindings)
    except ZeroDivisionError:
        return  # has no value, so any simplification of it is right
    # Dividing by the constant 0 would have no value for the ints either.
    size = compute(tree, SYMBOLS)
    assert evaluate(size, bindings) == expected
    assert substitute(size, bindings) == expected
    assert isinstance(size, Dim) == bool(free_names(size))


@unhurried
@given(dims, dims, dims)
def test_sums_and_products_form_a_ring(a: Size, b: Size, c: Size) -> None:
    assert a + b == b + a
    assert a * b == b * a
    assert (a + b) + c == a + (b + c)
    assert (a * b) * c == a * (b * c)
    assert a * (b + c) == a * b + a * c
    assert a - b == -(b - a)
    assert a + b - b == a
    assert a * 0 == a - a == 0
    assert a * 1 == a + 0 == a


@unhurried
@given(dims, dims, one_term_divisors)
def test_exact_parts_leave_a_division(a: Size, b: Size, d: Size) -> None:
    assert (a + b * d) // d == a // d + b
    assert (a + b * d) % d == a % d
    assert (b * d) // d == b
    assert (b * d) % d == 0


@unhurried
@given(polynomials, polynomials)
def test_a_product_divides_by_its_factors(a: Size, b: Size) -> None:
    assume(b != 0)
    assert a * b // b == a
    assert a * b % b == 0


@unhurried
@given(polynomials, st.integers(1, 12), st.integers(1, 12))
def test_nested_quotients_are_one(a: Size, first: int, second: int) -> None:
    assert a // first // second == a // (first * second)
    assert (a * first) // (first * second) == a // second
    assert (a * first) % (first * second) == first * (a % second)


@unhurried
@given(polynomials, polynomials, polynomials)
def test_extrema_ignore_order_and_nesting(a: Size, b: Size, c: Size) -> None:
    for extremum in (dim_max, dim_min):
        assert extremum(a, a) == a
        assert extremum(a, b) == extremum(b, a)
        assert extremum(extremum(a, b), c) == extremum(a, extremum(b, c))
        assert extremum(a, b, c) == extremum(c, extremum(b, a))


@unhurried
@given(dims, dims, all_bindings)
def test_equal_means_equal_hash_text_and_value(
    a: Size, b: Size, bindings: dict[str, int]
) -> None:
    assert (a == b) == (str(a) == str(b))
    for x, y in ((a, b), (a, parse_dim(str(a))), (a + b, b + a)):
        if x == y:
            assert hash(x) == hash(y)
            assert {x: 1}[y] == 1
    if a - b == 0:
        assert a == b


@unhurried
@given(dims, polynomials, all_bindings)
def test_substituting_then_evaluating_is_evaluating_both(
    size: Size, replacement: Size, bindings: dict[str, int]
) -> None:
    try:
        value = evaluate(replacement, bindings)
        assume(value >= 2)
        expected = evaluate(size, bindings | {"n": value})
        replaced = substitute(size, {"n": replacement})
        actual = evaluate(replaced, bindings)
    except ZeroDivisionError:
        assume(False)
    assert actual == expected
    allowed = free_names(size) - {"n"} | free_names(replacement)
    assert free_names(replaced) <= allowed


@st.composite
def solvable_shapes(draw: st.DrawFn) -> tuple[list[Any], list[Any], dict[str, int]]:
    """Patterns that determine their names: each has an axis linear in it and others."""
    bindings: dict[str, int] = draw(all_bindings)
    sizes: list[Size] = []
    earlier: list[Size] = [1]
    for name in draw(st.permutations(list(SYMBOLS))):
        scale = draw(st.sampled_from([1, 1, 2, 3]))
        offset = draw(st.sampled_from(earlier)) * draw(st.integers(0, 3))
        sizes.append(scale * SYMBOLS[name] + offset)
        earlier.append(SYMBOLS[name])
    sizes += draw(st.lists(dims, max_size=4))
    sizes = draw(st.permutations(sizes))
    at = sorted(draw(st.lists(st.integers(0, len(sizes)), max_size=3)))
    cuts = zip([0, *at], [*at, len(sizes)], strict=True)
    patterns = [tuple(sizes[start:end]) for start, end in cuts]
    try:
        actuals = [tuple(evaluate(s, bindings) for s in shape) for shape in patterns]
        bind_shapes(patterns, actuals)
    except ZeroDivisionError:
        assume(False)
    return patterns, actuals, bindings


@unhurried
@given(solvable_shapes())
def test_binding_recovers_what_made_the_shapes(
    case: tuple[list[Any], list[Any], dict[str, int]],
) -> None:
    patterns, actuals, bindings = case
    assert bind_shapes(patterns, actuals) == bindings


@unhurried
@given(solvable_shapes(), st.data())
def test_binding_never_accepts_shapes_it_does_not_explain(
    case: tuple[list[Any], list[Any], dict[str, int]], data: st.DataObject
) -> None:
    patterns, actuals, _ = case
    i = data.draw(st.sampled_from([i for i, shape in enumerate(actuals) if shape]))
    axis = data.draw(st.integers(0, len(actuals[i]) - 1))
    wrong = list(actuals[i])
    wrong[axis] += data.draw(st.sampled_from([-2, -1, 1, 2]))
    actuals = [*actuals[:i], tuple(wrong), *actuals[i + 1 :]]
    try:
        found = bind_shapes(patterns, actuals)
    except ZeroDivisionError:
        assume(False)
    except ValueError:
        return
    for pattern, actual in zip(patterns, actuals, strict=True):
        assert tuple(evaluate(size, found) for size in pattern) == actual


def test_loads_nothing_but_the_standard_library() -> None:
    path = sys.modules[Dim.__module__].__file__
    code = (
        "import sys, importlib.util as u; before = set(sys.modules);"
        f"spec = u.spec_from_file_location('dims', {path!r});"
        "module = u.module_from_spec(spec); sys.modules['dims'] = module;"
        "spec.loader.exec_module(module);"
        "names = {name.split('.')[0] for name in set(sys.modules) - before} - {'dims'};"
        "print(*(names - set(sys.stdlib_module_names)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.split() == []
