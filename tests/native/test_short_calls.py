"""Calls that go a short way: whatever their arguments are, and however spelled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tapejit as tj
from tapejit.tracing.signature import MAX_DEPTH, Binder, short_call

pytestmark = pytest.mark.usefixtures("with_native_code")


BASE = np.array([0.5, 1.5])


def combined(
    x: Any,
    pair: Any = (1.0, 2.0),
    rate: Any = 0.5,
    mode: Any = None,
    base: Any = 0.25,
    *,
    sign: Any = 1,
) -> Any:
    """All arguments matter, each in its own way."""
    first, second = (pair["b"], pair["a"]) if isinstance(pair, dict) else pair
    y = first * x + second + (7 if isinstance(pair, list) else 0)
    y = y * rate if mode is None else y / rate - len(mode)
    return {"y": y * sign + base, "kinds": (y + 1, [x + (2 if mode else 3)])}


VALUES: dict[str, list[Any]] = {
    "x": [tj.asarray([1.0, 2.0]), np.array([3.0, -1.0]), np.float32([[4.0]]), 2.5, 3],
    "pair": [
        (2.0, 3.0),
        [2.0, 3.0],
        (3.0, 2.0),
        (tj.asarray([1.0, 5.0]), 3),
        {"a": tj.asarray(2.0), "b": 7.0},
        {"b": 7.0, "a": tj.asarray(2.0)},
        {"b": tj.asarray(2.0), "a": 7.0},
        (np.array(4.0), np.array(2.0)),
    ],
    "rate": [0.5, 0.25, 3.0, 1, True, tj.asarray(0.5), np.float64(0.5), np.array(2.0)],
    "mode": [None, "", "abc", "abcd", ()],
    "base": [BASE, 2 * BASE, tj.asarray([1.0, 1.0]), 1.0, 0.0],
    "sign": [1, -1, -1.0, 1.0],
}
POSITIONS = ("x", "pair", "rate", "mode", "base")
Call = tuple[tuple[Any, ...], dict[str, Any]]


@st.composite
def similar_calls(draw: Any) -> list[Call]:
    """Calls that differ in one argument, and in how they are spelled."""

    def spelled(given: dict[str, Any]) -> Call:
        count = draw(st.integers(0, len(POSITIONS)))
        while any(name not in given for name in POSITIONS[:count]):
            count -= 1
        args = tuple(given[name] for name in POSITIONS[:count])
        rest = [(name, x) for name, x in given.items() if name not in POSITIONS[:count]]
        return args, dict(draw(st.permutations(rest)))

    common = {"x": draw(st.sampled_from(VALUES["x"][:2]))}
    for name in draw(st.sets(st.sampled_from([*VALUES]))):
        common[name] = draw(st.sampled_from(VALUES[name]))
    other = draw(st.sampled_from([*VALUES]))
    changes = draw(st.lists(st.sampled_from(VALUES[other]), min_size=1, max_size=4))
    return [spelled(common), *[spelled({**common, other: x}) for x in changes]]


def numbers(result: Any) -> list[tuple[Any, ...]]:
    leaves, structure = tj.tree.flatten(result)
    return [(x.dtype, x.shape, x.numpy().tolist()) for x in leaves] + [(structure,)]


def assert_as_plain_python(calls: Sequence[Call]) -> None:
    """Each of them three times in turn: no short way leads to another call's path."""
    f = tj.function(combined)
    for args, kwargs in [*calls, *calls, *calls]:
        with tj.config.override(eager=True):
            expected = tj.function(combined)(*args, **kwargs)
        assert numbers(f(*args, **kwargs)) == numbers(expected)


@pytest.mark.filterwarnings("ignore:combined was traced")  # so many kinds of calls
@pytest.mark.parametrize("name", VALUES)
def test_every_argument_counts(name: str) -> None:
    common = {"x": tj.asarray([1.0, 2.0])}
    assert_as_plain_python([((), {**common, name: value}) for value in VALUES[name]])


@settings(max_examples=40, deadline=None)
@given(similar_calls())
def test_calls_spelled_in_any_way_give_what_plain_python_gives(calls: Any) -> None:
    assert_as_plain_python(calls)


def test_a_plain_value_is_not_forgotten_by_the_next_call() -> None:
    f = tj.function(lambda x, flag=False: x * 2 if flag else x * 3)
    x = tj.ones(3)
    for flags in ([False, True], [True, False]):
        for _ in range(3):
            assert float(f(x)[0]) == 3.0
            for flag in flags:
                assert float(f(x, flag)[0]) == (2.0 if flag else 3.0)
                assert float(f(flag=flag, x=x)[0]) == (2.0 if flag else 3.0)


def test_a_float_that_changes_is_no_tensor() -> None:
    """One is weak, the other one has a dtype."""
    f = tj.function(lambda x, rate: x * rate)
    x = tj.ones(3)
    for rate in (0.1, 0.2, 0.3):
        f(x, rate)
    traces = f.trace_count
    for rate in (0.4, 0.5, 0.4):
        assert f(x, rate).dtype == np.float32
        assert float(f(x, rate)[0]) == np.float32(rate)
        assert f(x, tj.asarray(rate, dtype="float64")).dtype == np.float64
    assert f.trace_count == traces + 1


def test_what_is_not_given_is_an_input_too() -> None:
    f = tj.function(lambda x, base=BASE: x + base)
    x = np.zeros(2)
    for _ in range(3):
        assert f(x).numpy().tolist() == BASE.tolist()
        assert f(x, 2 * BASE).numpy().tolist() == (2 * BASE).tolist()
        assert f(base=x, x=x).numpy().tolist() == [0.0, 0.0]


WAYS: dict[str, Callable[[Any, Any], Any]] = {
    "by position": lambda step, x: step(x, 0.5),
    "by keyword": lambda step, x: step(rate=0.5, x=x),
    "with a default": lambda step, x: step(x),
    "with a flag": lambda step, x: step(x, is_loud=True),
    "with a float that changes": lambda step, x: step(x, float(np.random.rand())),
    "with a number of NumPy's": lambda step, x: step(x, np.float64(0.5)),
    "in a container": lambda step, x: step({"x": [x]}),
}


@pytest.mark.parametrize("way", WAYS)
def test_variables_stay_in_place_whatever_the_arguments_are(way: str) -> None:
    v = tj.Variable(np.zeros(1000))

    @tj.function
    def step(x: Any, rate: Any = 0.25, is_loud: Any = False) -> Any:
        (x,) = x["x"] if isinstance(x, dict) else (x,)
        v.assign(v - rate * x)
        return tj.sum(x)

    def where() -> int:
        return int(v._tensor._value.__array_interface__["data"][0])

    x = np.ones(1000)
    for _ in range(3):
        WAYS[way](step, x)
    place, before = where(), float(v[0])
    WAYS[way](step, x)
    assert where() == place
    assert float(v[0]) < before


def test_a_short_call_has_the_leaves_of_a_long_one() -> None:
    x, y = tj.ones(2), np.ones(3)
    arguments = (x, {"b": [y, 2], "a": (None, "s")}, 1.5, (), [x])
    binder = Binder(lambda a, b, c, d, e: None, frozenset(), frozenset())
    long = binder.call_of(arguments, {}, "float32", set())
    short = short_call(binder, arguments, {}, "float32", set())
    assert short is not None
    assert all(a is b for a, b in zip(short.leaves, long.leaves, strict=True))
    assert short.places == long.takes
    assert [a.tolist() for a in short.arrays] == [a.tolist() for a in long.arrays]
    assert [a is b for a, b in zip(short.foreign, long.foreign, strict=True)] == [True]


def test_what_has_no_short_way() -> None:
    deep: Any = 1.0
    for _ in range(MAX_DEPTH + 1):
        deep = [deep]
    endless: list[Any] = []
    endless.append(endless)
    big = np.ones(2).astype(">f8")
    binder = Binder(lambda x: None, frozenset(), frozenset())
    for x in (deep, endless, big, {1: 2.0}, 1j, np.float64(0.5), object()):
        assert short_call(binder, (x,), {}, "float32", set()) is None, x
    assert short_call(binder, (deep[0],), {}, "float32", set()) is not None


def test_zeros_have_signs_and_nan_is_nan() -> None:
    binder = Binder(lambda x: None, frozenset(), frozenset())
    values = (0.0, -0.0, float("nan"), float("inf"), 0, False, "0.0", "nan")
    shorts = [short_call(binder, (x,), {}, "float32", set()) for x in values]
    assert len({short.key for short in shorts if short is not None}) == len(values)
    f = tj.function(lambda x, by: x * by)
    x = tj.ones(2)
    for _ in range(4):
        for by in (0.0, -0.0, float("-0.0")):
            assert np.signbit(f(x, by).numpy()).all() == np.signbit(by)
            assert np.signbit(f(x, by=by).numpy()).all() == np.signbit(by)


def test_keywords_that_become_positions() -> None:
    def f(a: Any, /, b: Any, c: Any = 3, d: Any = 4) -> None: ...

    binder = Binder(f, frozenset(), frozenset())
    assert binder.laid_out((1,), {"b": 2}) == ([1, 2], None)
    assert binder.laid_out((1,), {"d": 7, "b": 2}) == ([1, 2, 3, 7], None)
    for args, kwargs in [
        ((), {"a": 1, "b": 2}),  # only by position
        ((1,), {"d": 7}),  # nothing for b
        ((1, 2), {"b": 2}),  # twice
        ((1, 2), {"z": 2}),
    ]:
        assert binder.laid_out(args, kwargs) is None


def test_keywords_that_stay_keywords() -> None:
    def f(a: Any, /, b: Any = 2, *, e: Any, d: Any = 5) -> None: ...

    binder = Binder(f, frozenset(), frozenset())
    assert binder.laid_out((1,), {"e": 3}) == ([1, 2], {"e": 3, "d": 5})
    assert binder.laid_out((1,), {"d": 4, "e": 3, "b": 0}) == (
        [1, 0],
        {"d": 4, "e": 3},
    )
    for args, kwargs in [
        ((1,), {}),  # nothing for e
        ((1, 2), {"b": 2, "e": 3}),  # twice
        ((), {"e": 3}),
        ((), {"a": 1, "e": 3}),
        ((1,), {"e": 3, "z": 2}),
    ]:
        assert binder.laid_out(args, kwargs) is None


def test_keywords_of_any_name() -> None:
    def f(a: Any, /, b: Any, *more: Any, d: Any = 5, **others: Any) -> None: ...

    binder = Binder(f, frozenset(), frozenset())
    assert binder.laid_out((1, 2, 3), {}) == ([1, 2, 3], {"d": 5})
    assert binder.laid_out((1,), {"b": 2, "a": 3}) == ([1, 2], {"a": 3, "d": 5})
    assert binder.laid_out((1, 2), {"b": 2}) is None  # twice
    assert binder.laid_out((1,), {"z": 2}) is None
