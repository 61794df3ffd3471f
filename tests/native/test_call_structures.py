"""Nested results and calls with keywords, as native code and as plain Python.

What a call gives does not depend on who makes its containers: the body's run by plain
Python, the first call, the second one, which is found by a key, or the native entry,
which later calls go to.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections import OrderedDict, namedtuple
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest

import tapejit as tj
from tapejit.runtime.native_entry import why_unavailable
from tapejit.tensor.tensor import Tensor
from tapejit.tracing import cache

pytestmark = [
    pytest.mark.usefixtures("with_native_code"),
    pytest.mark.skipif(
        why_unavailable(Tensor) is not None, reason="this Python has no native entries"
    ),
]


class Point(NamedTuple):
    """A named tuple with a default."""

    x: Any
    y: Any = None


Pair = namedtuple("Pair", "left right")


@dataclass
class Box:
    """What native entries do not make."""

    inside: Any


MODES: dict[str, Callable[[], Any]] = {
    "compiled": nullcontext,
    "eager": lambda: tj.config.override(eager=True),
}


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> Iterator[str]:
    with MODES[request.param]():
        yield request.param


@contextmanager
def frames(limit: int) -> Iterator[None]:
    """At most so many Python functions are called inside."""
    seen: list[str] = []

    def note(frame: Any, event: str, argument: Any) -> None:
        if event == "call":
            seen.append(frame.f_code.co_qualname)

    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)
    seen = [name for name in seen if not name.startswith("_GeneratorContext")]
    seen = [name for name in seen if name != "frames"]
    assert len(seen) <= limit, seen


def shown(result: Any) -> Any:
    """A result by its classes, its keys in order, and its numbers."""
    if result is None:
        return None
    if isinstance(result, dict):
        parts = [(key, shown(x)) for key, x in result.items()]
        return type(result).__name__, parts
    if isinstance(result, (list, tuple)):
        return type(result).__name__, [shown(x) for x in result]
    if isinstance(result, Box):
        return "Box", shown(result.inside)
    assert type(result) is Tensor
    return result.dtype.name, result.shape, result.numpy().tolist()


NESTS: dict[str, Callable[[Any, Any], Any]] = {
    "nested": lambda x, y: (x + y, [x * y, {"b": x - y, "a": y - x}]),
    "a dict": lambda x, y: {"z": x + y, "a": x * y, "m": {"k": x}},
    "named": lambda x, y: Point(x + y, Pair([x * y], Point(y - x))),
    "nothing in it": lambda x, y: (x + y, None, [], (), {}, [None]),
    "a number": lambda x, y: [x + y, (2.0, 3, True)],
    "an argument": lambda x, y: {"x": x, "sum": [x + y], "y": y},
    "twice": lambda x, y: (lambda z: (z, [z, {"z": z}]))(x * y),
    "an argument twice": lambda x, y: [x, [x + y, x]],
    "another class": lambda x, y: (x + y, Box([x * y])),
    "an ordered dict": lambda x, y: OrderedDict(b=x + y, a=[x * y]),
    "no tensors": lambda x, y: {"a": None, "b": [()]},
    "a bool": lambda x, y: {"less": x < y, "all": [tj.all(x < y)]},
}
MADE_BY_PYTHON = {"another class", "an ordered dict", "no tensors"}


@pytest.mark.parametrize("what", NESTS)
@pytest.mark.parametrize("shape", [(), (3,)], ids=str)
def test_a_nest_is_what_plain_python_returns(
    what: str, shape: tuple[int, ...], mode: str
) -> None:
    body, f = NESTS[what], tj.function(NESTS[what])
    for k in range(5):
        x, y = tj.full(shape, 1.5 + k), tj.full(shape, 2.0)
        with tj.config.override(eager=True):
            expected = shown(tj.function(body)(x, y))
        assert shown(f(x, y)) == expected
    assert f.trace_count == (mode == "compiled")


@pytest.mark.parametrize("what", [x for x in NESTS if x not in MADE_BY_PYTHON])
def test_the_third_call_is_one_frame(what: str) -> None:
    f, x, y = tj.function(NESTS[what]), tj.ones(3), tj.ones(3)
    f(x, y), f(x, y)
    with frames(1):
        f(x, y)


@pytest.mark.parametrize("what", [x for x in NESTS if x not in MADE_BY_PYTHON])
def test_what_is_returned_may_be_changed(what: str, mode: str) -> None:
    f, x, y = tj.function(NESTS[what]), tj.ones(3), tj.full((3,), 2.0)
    expected = shown(f(x, y))
    for _ in range(4):
        result = f(x, y)
        assert shown(result) == expected
        spoil(result)
    assert x.numpy().tolist() == [1.0] * 3


def spoil(result: Any) -> None:
    """Change all that can be changed."""
    if isinstance(result, dict):
        for part in result.values():
            spoil(part)
        result.clear()
        result["more"] = 1
    elif isinstance(result, (list, tuple)):
        for part in result:
            spoil(part)
        if isinstance(result, list):
            result.append(1)
            del result[0]


def test_a_tape_records_a_call_that_returns_a_nest(mode: str) -> None:
    f = tj.function(lambda x, *, scale, by=2.0: {"y": [x * scale], "z": (x * by,)})
    x, scale = tj.asarray(3.0), tj.asarray(5.0)
    for _ in range(3):
        f(x, scale=scale)
        with tj.GradientTape(persistent=True) as tape:
            tape.watch([x, scale])
            found = f(x, scale=scale)
        assert list(found) == ["y", "z"]
        assert float(tape.gradient(found["y"][0], x)) == 5.0
        assert float(tape.gradient(found["y"][0], scale)) == 3.0
        assert float(tape.gradient(found["z"][0], x)) == 2.0


def test_variables_are_updated_by_a_call_that_returns_a_nest(mode: str) -> None:
    v = tj.Variable(np.zeros(4, np.float32))

    @tj.function
    def step(x: Any, *, rate: Any = 0.5) -> Any:
        before = v + 0.0
        v.assign_add(rate * x)
        return {"before": before, "after": [v.value(), (v,)], "nothing": None}

    kept = []
    for k in range(6):
        found = step(tj.ones(4), rate=0.5)
        kept.append(found)
        assert v.numpy().tolist() == [0.5 * (k + 1)] * 4
    for k, found in enumerate(kept):  # what was returned does not change
        assert found["before"].numpy().tolist() == [0.5 * k] * 4
        for after in (found["after"][0], found["after"][1][0]):
            assert after.numpy().tolist() == [0.5 * (k + 1)] * 4


def test_a_call_that_returns_nothing_updates(mode: str) -> None:
    v = tj.Variable(1.0)

    @tj.function
    def double(x: Any) -> None:
        v.assign(v * x)

    for k in range(1, 6):
        assert double(tj.asarray(2.0)) is None
        assert float(v) == 2.0**k


def test_a_call_that_fails_leaves_everything(mode: str) -> None:
    v = tj.Variable(1.0)

    @tj.function
    def step(x: Any, at: Any, *, scale: Any) -> Any:
        v.assign_add(1.0)
        return {"a": [x[at] * scale]}

    x, scale = tj.asarray([1.0, 2.0]), tj.asarray(3.0)
    for _ in range(3):
        assert float(step(x, tj.asarray(1), scale=scale)["a"][0]) == 6.0
    before = sys.getrefcount(scale)
    texts = set()
    for _ in range(3):
        with pytest.raises(IndexError) as caught:
            step(x, tj.asarray(7), scale=scale)
        texts.add(str(caught.value).split("\n")[0])
        del caught
    gc.collect()
    assert len(texts) == 1
    assert float(v) == 4.0
    assert sys.getrefcount(scale) == before


def test_threads_have_their_own_nests() -> None:
    f = tj.function(lambda x, *, y: (x + y, [x * y, {"d": x - y}]))
    f(tj.ones(100), y=tj.ones(100)), f(tj.ones(100), y=tj.ones(100))
    wrong: list[Any] = []

    def work(k: int) -> None:
        x, y = tj.full((100,), float(k)), tj.full((100,), 2.0)
        for _ in range(300):
            total, parts = f(x, y=y)
            values = (total, parts[0], parts[1]["d"])
            parts.clear()
            found = [value.numpy()[[0, -1]].tolist() for value in values]
            if found != [[k + 2.0] * 2, [k * 2.0] * 2, [k - 2.0] * 2]:
                wrong.append((k, found))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# Keywords


def everything(
    a: Any, /, b: Any = 2.0, *, scale: Any = 3.0, mode: Any = "up", z: Any = None
) -> Any:
    y = a * b + scale if mode == "up" else a - b * scale
    return {"y": y, "z": y if z is None else y * z}


def gathered(*args: Any, bias: Any = 1.0, **others: Any) -> Any:
    total = sum(args, 0.0) + bias
    return {name: total * others[name] for name in sorted(others)} or total


T = tj.asarray
CALLS: dict[str, tuple[Any, list[tuple[tuple[Any, ...], dict[str, Any]]]]] = {
    "a keyword-only tensor": (
        everything,
        [((T(1.0),), {"scale": T(5.0)}), ((T(2.0),), {"scale": T(7.0)})],
    ),
    "in another order": (
        everything,
        [
            ((T(1.0),), {"scale": T(5.0), "b": T(7.0), "z": T(3.0)}),
            ((T(1.0),), {"z": T(3.0), "scale": T(5.0), "b": T(7.0)}),
            ((T(1.0), T(7.0)), {"z": T(3.0), "scale": T(5.0)}),
            ((T(1.0),), {"b": T(5.0), "z": T(7.0), "scale": T(3.0)}),
        ],
    ),
    "a default and its value": (
        everything,
        [((T(1.0),), {}), ((T(1.0),), {"scale": 3.0}), ((T(1.0), 2.0), {"z": None})],
    ),
    "a word": (
        everything,
        [((T(1.0),), {"mode": mode}) for mode in ("up", "down", "d" + "own", "")],
    ),
    "a float that changes": (
        everything,
        [((T(1.0),), {"scale": 0.5 * k}) for k in range(-2, 9)],
    ),
    "a float or a tensor": (
        everything,
        [((T(1.0),), {"scale": x}) for x in (0.5, 0.25, T(0.5), 0.75, T(2.5), 1, True)],
    ),
    "arrays": (
        everything,
        [
            ((np.ones(3),), {"scale": np.arange(3.0)}),
            ((np.ones(3),), {"scale": np.arange(6.0)[::2]}),
            ((np.ones(3),), {"scale": T([1.0, 2.0, 3.0])}),
            ((np.ones(3),), {"scale": np.float64(2.0)}),
            ((np.ones(3),), {"scale": np.ones((2, 3))}),
        ],
    ),
    "any names": (
        gathered,
        [
            ((T(1.0),), {"x": T(2.0)}),
            ((T(1.0),), {"y": T(2.0)}),
            ((T(1.0),), {"x": T(2.0), "y": T(3.0)}),
            ((T(1.0),), {"y": T(2.0), "x": T(3.0)}),
            ((T(1.0), T(4.0)), {"bias": T(3.0)}),
            ((T(1.0),), {"bias": T(3.0), "a": 2.0}),
            ((T(1.0), T(4.0), T(3.0)), {}),
        ],
    ),
    "containers": (
        lambda p, *, q, n=2: [p["a"] * q[0] + n],
        [
            (({"a": T(2.0)},), {"q": [T(3.0)]}),
            (({"a": T(2.0)},), {"q": (T(3.0),)}),
            (({"a": T(2.0)},), {"q": [3.0]}),
            (({"a": T(2.0)},), {"q": [4.0]}),
            (({"a": T(2.0)},), {"q": [5.0], "n": 3}),
        ],
    ),
}


def as_python(result: Any) -> Any:
    """Numbers to six digits: interpreted and native code differ in the last one."""
    leaves, structure = tj.tree.flatten(result)
    found = [(x.dtype.name, x.shape, np.round(x.numpy(), 6).tolist()) for x in leaves]
    order = [*result] if isinstance(result, dict) else None
    return found, str(structure), order


@pytest.mark.filterwarnings("ignore:.*was traced")  # so many kinds of calls
@pytest.mark.parametrize("what", CALLS)
def test_each_spelling_means_what_it_means_in_python(what: str, mode: str) -> None:
    body, calls = CALLS[what]
    with tj.config.override(eager=True):
        plain = tj.function(body)
        expected = [as_python(plain(*args, **kwargs)) for args, kwargs in calls]
    f = tj.function(body)
    for _ in range(3):  # in turn, so that each one follows each
        for (args, kwargs), result in zip(calls, expected, strict=True):
            assert as_python(f(*args, **kwargs)) == result
    for (args, kwargs), result in zip(calls, expected, strict=True):
        for _ in range(4):  # the last ones go to the native entry
            assert as_python(f(*args, **kwargs)) == result


@pytest.mark.filterwarnings("ignore:.*was traced")
@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((T(1.0),), {"scale": T(5.0)}),
        ((T(1.0),), {"scale": T(5.0), "b": T(7.0), "z": T(3.0)}),
        ((T(1.0),), {"mode": "down", "z": None}),
        ((T(1.0), 2), {"scale": 4.0, "mode": "up"}),
        ((T(1.0),), {}),
    ],
)
def test_the_third_call_with_keywords_is_one_frame(args: Any, kwargs: Any) -> None:
    f = tj.function(everything)
    f(*args, **kwargs), f(*args, **kwargs)
    with frames(1):
        f(*args, **kwargs)


def test_floats_that_change_are_one_frame_and_one_trace() -> None:
    f = tj.function(lambda x, *, rate: x * rate)
    x = tj.ones(3)
    for rate in (0.1, 0.2, 0.3, 0.4, 0.5):
        f(x, rate=rate)
    traces = f.trace_count
    with frames(3):
        for rate in (0.5, 0.0, float("inf")):
            found = f(x, rate=rate)
    assert found.dtype == np.float32
    assert found.numpy().tolist() == [float("inf")] * 3
    assert float(f(x, rate=0.625)[0]) == 0.625
    assert f.trace_count == traces


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((), {"scale": 1.0}),
        ((T(1.0), T(2.0), T(5.0)), {}),
        ((T(1.0), T(2.0)), {"b": T(2.0)}),
        ((T(1.0),), {"other": T(2.0)}),
        ((T(1.0),), {"scale": T(2.0), "a": T(1.0)}),
    ],
)
def test_a_call_that_does_not_fit_is_refused_after_many_that_do(
    args: Any, kwargs: Any, mode: str
) -> None:
    f = tj.function(everything)
    with pytest.raises(TypeError) as first:
        f(*args, **kwargs)
    for _ in range(4):
        f(T(1.0), scale=T(5.0))
        f(T(1.0), T(2.0), scale=T(5.0))
    with pytest.raises(TypeError) as last:
        f(*args, **kwargs)
    assert str(first.value) == str(last.value)


def test_a_value_whose_truth_was_asked_keeps_its_trace(mode: str) -> None:
    f = tj.function(lambda x, *, rate: x * 2 if rate > 0.5 else x * 3)
    x = tj.asarray(1.0)
    for _ in range(3):
        for rate, expected in ((0.1, 3), (0.9, 2), (0.2, 3), (0.8, 2), (0.9, 2)):
            assert float(f(x, rate=rate)) == expected


def test_numpys_default_may_change(mode: str) -> None:
    base = np.array([1.0, 2.0])
    f = tj.function(lambda x, *, base=base: {"y": x + base})
    x = np.zeros(2)
    for k in range(5):
        base[:] = k
        assert f(x)["y"].numpy().tolist() == [k, k]


def test_static_and_dynamic_keywords(mode: str) -> None:
    f = tj.function(static="n", dynamic="rate")(lambda x, *, n, rate: (x * n, [rate]))
    x, compiled = tj.asarray(2.0), mode == "compiled"
    for _ in range(3):
        for n, rate in ((2, 0.5), (2, 0.25), (3, 0.5)):
            first, (second,) = f(x, n=n, rate=rate)
            assert (float(first), float(second)) == (2.0 * n, rate)
    assert f.trace_count == 2 * compiled


def test_methods_with_keywords(mode: str) -> None:
    class Model:
        def __init__(self, w: float) -> None:
            self.w = tj.Variable(w)

        @tj.function
        def step(self, x: Any, *, scale: Any, train: Any = False) -> Any:
            if train:
                self.w.assign_add(1.0)
            return {"y": [self.w * x * scale]}

    one, two = Model(1.0), Model(10.0)
    x, scale = tj.asarray(2.0), tj.asarray(3.0)
    for _ in range(4):
        assert float(one.step(x, scale=scale)["y"][0]) == 6.0
        assert float(two.step(x, scale=scale)["y"][0]) == 60.0
    for k in range(4):
        found = one.step(x, scale=scale, train=True)
        assert float(found["y"][0]) == 6.0 * (k + 2)


def test_a_call_keeps_nothing_alive(mode: str) -> None:
    f = tj.function(lambda x, *, scale, mode="a": {"y": [x * scale]})
    x, scale = tj.ones(3), tj.ones(3)
    for _ in range(4):
        f(x, scale=scale, mode="a")
    before = [sys.getrefcount(y) for y in (x, scale, x._value, scale._value)]
    for _ in range(100):
        f(x, scale=scale, mode="a")
    after = [sys.getrefcount(y) for y in (x, scale, x._value, scale._value)]
    assert after == before


# Calls of several kinds in turn


def test_the_kind_used_last_is_known_whoever_ran_it() -> None:
    f = tj.function(lambda x, flag=False: x * 2 if flag else x * 3)
    x, y = tj.ones(3), tj.ones(4)
    kinds: list[tuple[Any, ...]] = [(x, True), (x, False), (y, True), (y, False)]
    for call in [*kinds, *kinds, *kinds]:
        f(*call)
    for call in [*kinds, *reversed(kinds)]:
        with frames(4):  # the call, the entries of late, its place in the order
            found = f(*call)
        assert found.numpy().tolist() == [2.0 if call[1] else 3.0] * len(call[0])
        assert f.signatures()[-1] == f"(x: f32[{len(call[0])}], flag: bool {call[1]})"
    assert f.trace_count == 4


def test_no_entry_is_tried_of_a_trace_that_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cache, "MAX_ENTRIES", 2)
    f = tj.function(lambda x, n: x * n)
    x = tj.ones(3)
    for n in (1, 2, 3):
        for _ in range(4):
            assert float(f(x, n)[0]) == n
    assert len(f.signatures()) == 2
    for _ in range(4):
        assert float(f(x, 1)[0]) == 1
    assert f.trace_count == 4
    f.clear_cache()
    for _ in range(4):
        assert float(f(x, 1)[0]) == 1
    assert f.trace_count == 1


def test_a_float_that_has_begun_to_change_has_one_trace() -> None:
    """Also the value that came first, whose own trace is as good."""
    f = tj.function(lambda x, rate: tj.exp(x * rate) * rate)
    x, first = tj.linspace(0.0, 1.0, 5), 0.3
    for _ in range(4):
        f(x, first)
    for k in range(4):
        f(x, 0.1 * k + 0.05)
    key = f._cache.last.key
    f(x, 0.3)
    again = f(x, first).numpy()
    assert f._cache.last.key == key
    assert again.tolist() == f(x, float("0.3")).numpy().tolist()
    assert f.trace_count == 2


def test_entries_of_late_are_missed_while_a_tape_records() -> None:
    f = tj.function(lambda x, *, flag: (x * 2, [x]) if flag else (x * 3, [x]))
    x = tj.asarray(5.0)
    for _ in range(3):
        f(x, flag=True), f(x, flag=False)
    for flag, expected in ((True, 2.0), (False, 3.0), (True, 2.0)):
        with tj.GradientTape() as tape:
            tape.watch(x)
            y, _ = f(x, flag=flag)
        assert float(tape.gradient(y, x)) == expected
        with tj.config.override(eager=True):
            assert float(f(x, flag=flag)[0]) == expected * 5
        assert float(f(x, flag=flag)[0]) == expected * 5
