"""Native entries that make nested results, and those of calls that are spelled.

Each has its own containers in every call, exact reference counts, and misses whatever
is spelled otherwise.
"""

from __future__ import annotations

import gc
import pickle
import sys
from collections import OrderedDict, namedtuple
from typing import Any, NamedTuple

import numpy as np
import pytest
from entries import adding, entry_of, needs_native_entries, of, rising, simple

import tapejit as tj
from tapejit.base import tree
from tapejit.runtime.native_entry import MISS, Spelling, respell
from tapejit.runtime.result_containers import can_be_native
from tapejit.targets.cpu.call.entry_tables import Record
from tapejit.tensor.tensor import Tensor

pytestmark = needs_native_entries


class Point(NamedTuple):
    """As most are made."""

    x: Any
    y: Any = 0.0


class Marked(Point):
    """Instances have a dictionary."""


class Checked(Point):
    """Is made in its own way."""

    @classmethod
    def _make(cls, iterable: Any) -> Any:
        return super()._make(iterable)


Pair = namedtuple("Pair", "left right")

NESTS: dict[str, Any] = {
    "a dict": {"b": 1, "a": 2},
    "nested": (1, [2, {"c": 3, "a": (4,)}]),
    "named": Point(1, Pair(2, [3])),
    "with a dictionary": Marked(1, 2),
    "None": (None, 1, [None, {"n": None}]),
    "empty": ((), [], {}, 1, [()]),
    "only None": None,
    "only empty": {},
    "numbers as keys": {2: 1, 1: [2], 10: 3},
    "many keys": {f"k{k}": k for k in range(40)},
    "deep": [[[[[[[[[[1]]]]]]]]]],
    "many": [[k, (k, {"k": k})] for k in range(20)],
}


def nesting(nest: Any, shape: Any = (), **options: Any) -> Any:
    """An entry that returns so many sums of one argument in this nest."""
    structure = tree.structure(nest)
    count, size = structure.num_leaves, int(np.prod(shape))
    code, kind = adding(1, count, size), of(shape)
    return entry_of(code, [kind], [kind] * count, result=structure, **options)


def assert_same_nest(found: Any, expected: Any) -> None:
    """Classes, keys and their order, lengths, and what is None."""
    assert type(found) is type(expected)
    if isinstance(expected, dict):
        assert list(found) == list(expected)
        found, expected = list(found.values()), list(expected.values())
    if isinstance(expected, (list, tuple)):
        assert len(found) == len(expected)
        for a, b in zip(found, expected, strict=True):
            if b is None or isinstance(b, (dict, list, tuple)):
                assert_same_nest(a, b)
            else:
                assert type(a) is Tensor


@pytest.mark.parametrize("what", NESTS)
@pytest.mark.parametrize("shape", [(), (2, 3)], ids=str)
def test_results_come_in_their_nest(what: str, shape: tuple[int, ...]) -> None:
    nest, x = NESTS[what], tj.asarray(rising(shape))
    entry = nesting(nest, shape)
    for _ in range(3):
        found = entry(x)
        assert_same_nest(found, nest)
        for k, leaf in enumerate(tree.leaves(found), 1):
            np.testing.assert_array_equal(leaf._value, k * rising(shape))


def containers_in(nest: Any) -> list[Any]:
    if isinstance(nest, dict):
        return [nest, *(x for part in nest.values() for x in containers_in(part))]
    if isinstance(nest, (list, tuple)):
        return [nest, *(x for part in nest for x in containers_in(part))]
    return []


@pytest.mark.parametrize("what", NESTS)
def test_every_call_has_its_own_containers(what: str) -> None:
    entry, x = nesting(NESTS[what]), tj.asarray(rising(()))
    first, second = containers_in(entry(x)), containers_in(entry(x))
    for a, b in zip(first, second, strict=True):
        assert a is not b or a == ()
        assert sys.getrefcount(a) == sys.getrefcount(b)
    for container in first:  # as a user may do
        if isinstance(container, (list, dict)):
            container.clear()
    assert_same_nest(entry(x), NESTS[what])


def test_containers_are_referred_to_by_nobody_else() -> None:
    outer = nesting((1, [2, {"a": 3}]))(tj.asarray(rising(())))
    inner = outer[1]
    innermost = inner[1]
    counts = [sys.getrefcount(x) for x in (outer, inner, innermost)]
    # A name, a tuple and an iteration, the question; the inner ones in the outer.
    assert counts == [4, 5, 5]
    assert all(gc.is_tracked(x) for x in (outer, inner, innermost))


def test_a_named_tuple_is_like_any_other() -> None:
    found = nesting(Marked(1, 2))(tj.asarray(rising(())))
    found.note = "mine"
    assert (found.x._value, found.y._value) == (1, 2)
    assert found.__dict__ == {"note": "mine"}
    assert found._replace(x=0)[0] == 0


def test_what_an_entry_cannot_make() -> None:
    class Vector(list[Any]):
        """A list with a name."""

    for nest in (OrderedDict(a=1.0), {1.5: 1.0}, Checked(1.0), Vector([1.0])):
        assert not can_be_native(tree.structure(nest)), nest
        assert not can_be_native(tree.structure([{"a": nest}])), nest


@pytest.mark.parametrize("what", NESTS)
def test_reference_counts_are_exact(what: str, full: bool) -> None:
    nest, x, wrong = NESTS[what], tj.asarray(rising()), tj.asarray(rising((3, 2)))
    entry, failing = nesting(nest, (2, 3)), failing_entry(nest)
    dicts = [part for part in containers_in(nest) if type(part) is dict]
    keys = [key for part in dicts for key in part if type(key) is str]
    watched = (x, x._value, Tensor, Point, Marked, Pair, MISS, entry, *keys)

    def repeat(times: int) -> None:
        for _ in range(times):
            entry(x)
            entry(wrong)
            assert failing(x) is MISS

    repeat(10)
    gc.collect()
    before, blocks = [sys.getrefcount(y) for y in watched], sys.getallocatedblocks()
    repeat(10_000 if full else 1_000)
    gc.collect()
    assert [sys.getrefcount(y) for y in watched] == before
    assert abs(sys.getallocatedblocks() - blocks) < 100
    assert abs(sys.getrefcount(None) - sys.getrefcount(None)) < 10


def failing_entry(nest: Any) -> Any:
    """Whose code fails when all containers have been made."""
    structure = tree.structure(nest)
    kind = of((2, 3))
    code = adding(1, structure.num_leaves, 6, failure=7)
    outputs = [kind] * structure.num_leaves
    return entry_of(code, [kind], outputs, result=structure)


def test_no_container_is_lost_when_memory_is() -> None:
    huge = of((1 << 40, 1 << 10))
    structure = tree.structure([{"a": 1, "b": (2,)}])
    entry = entry_of(adding(1, 1, 1), [of((1,))], [of((1,)), huge], result=structure)
    x = rising((1,))
    before = sys.getrefcount(x)
    for _ in range(100):
        with pytest.raises(MemoryError):
            entry(x)
    assert sys.getrefcount(x) == before


def test_the_collector_may_come_in_the_midst_of_nests() -> None:
    entry, x = nesting(NESTS["many"], (3,)), rising((3,))
    thresholds = gc.get_threshold()
    gc.set_threshold(1, 1, 1)
    try:
        for _ in range(50):
            found = entry(x)
            assert_same_nest(found, NESTS["many"])
            np.testing.assert_array_equal(found[19][1][1]["k"]._value, 60 * x)
    finally:
        gc.set_threshold(*thresholds)


def test_a_bool_in_a_nest_is_numpys_own() -> None:
    kind = of((), np.bool_)
    structure = tree.structure({"a": [1]})
    entry = entry_of(adding(1, 1, 1, np.bool_), [kind], [kind], result=structure)
    for value in (np.True_, np.False_):
        assert entry(Tensor(value))["a"][0]._value is value


# How calls are spelled


def spelled(entry: Any, **how: Any) -> Any:
    return respell(entry, Spelling(**how), Tensor)


def test_arguments_by_name_in_their_order() -> None:
    code = adding(2, 2, 6)  # the second result has the first argument once more
    base = entry_of(code, [of((2, 3))] * 2, [of((2, 3))] * 2, result="list")
    x, y = rising(), 100 * rising()
    plain = spelled(base, positional=2, arguments=(0, 1))
    mixed = spelled(base, positional=1, names=("b",), arguments=(0, 1))
    turned = spelled(base, positional=1, names=("b",), arguments=(1, 0))
    named = spelled(base, positional=0, names=("b", "a"), arguments=(1, 0))
    for found, first in (
        (plain(x, y), x),
        (mixed(x, b=y), x),
        (turned(x, b=y), y),
        (named(b=y, a=x), x),
    ):
        np.testing.assert_array_equal(found[1]._value, x + y + first)
    for found in (
        *(plain(x, b=y), plain(x), plain(x, y, b=y), plain(a=x, b=y)),
        *(mixed(x, y), mixed(x, c=y), mixed(x), mixed(b=y), mixed(x, b=y, c=y)),
        *(mixed(x, x, b=y), mixed(x, b=None), mixed(x, b=y.T)),
        *(named(a=x, b=y), named(x, y), named(b=y, c=x), named(y, a=x), named()),
    ):
        assert found is MISS


def test_a_name_that_is_equal_but_another_object_is_missed() -> None:
    entry = spelled(simple(1), positional=0, names=("factor",), arguments=(0,))
    assert entry(**{"factor": rising()}) is not MISS  # noqa: PIE804
    assert entry(**{"".join(["fac", "tor"]): rising()}) is MISS


@pytest.mark.parametrize("value", ["text", 1, 10**30, 1.5, None, True], ids=repr)
def test_a_value_that_chooses_a_trace_must_be_of_its_class_and_equal(
    value: Any,
) -> None:
    x = rising()
    by_place = spelled(simple(1), positional=2, arguments=(1,), fixed=[(0, value)])
    by_name = spelled(
        simple(1), positional=1, names=("how",), arguments=(0,), fixed=[(1, value)]
    )
    for same in (value, pickle.loads(pickle.dumps(value))):
        assert by_place(same, x) is not MISS
        assert by_name(x, how=same) is not MISS

    class Text(str):
        """Is no text as far as a trace goes."""

    others = (object(), "other", 8, 2.5, False, 1.0, x, np.float64(1.5), Text("text"))
    for other in others:
        assert by_place(other, x) is MISS
        assert by_name(x, how=other) is MISS
    if value is not True:
        assert by_place(True, x) is MISS


@pytest.mark.parametrize("value", [0.0, -0.0, float("nan")], ids=repr)
def test_a_zero_or_nan_that_chooses_a_trace_must_be_the_very_object(value: Any) -> None:
    entry = spelled(simple(1), positional=2, arguments=(1,), fixed=[(0, value)])
    assert entry(value, rising()) is not MISS
    for other in (float(repr(value)), -value, 0, False, None, 1.0):
        assert entry(other, rising()) is MISS


def test_floats_are_taken_as_they_are() -> None:
    kind = of((), np.float64)
    base = entry_of(adding(2, 1, 1, np.float64), [kind] * 2, [kind])
    entry = spelled(
        base, positional=1, names=("rate",), arguments=(0, 1), floats=frozenset({1})
    )
    x = Tensor(np.float64(0.5))
    for rate in (0.25, -0.0, 1e300, 3.0):
        assert entry(x, rate=rate)._value == 0.5 + rate
    assert np.isnan(entry(x, rate=float("nan"))._value)

    class Half(float):
        """Is no float as far as a trace goes."""

    for other in (1, True, None, np.float64(1), Half(), x, "1", np.array(1.0)):
        assert entry(x, rate=other) is MISS
    assert entry(0.5, rate=0.5) is MISS


def test_an_input_that_is_not_given_has_its_default() -> None:
    default = rising()
    entry = spelled(simple(), positional=1, arguments=(0, 0), defaults={1: default})
    np.testing.assert_array_equal(entry(rising())._value, 2 * rising())
    default *= 10  # as it is when it is read
    np.testing.assert_array_equal(entry(rising())._value, 11 * rising())
    default.shape = (3, 2)
    assert entry(rising()) is MISS
    assert entry(rising(), rising()) is MISS


def test_spelled_entries_share_working_memory() -> None:
    base, names = simple(1, arena_bytes=1 << 20), ("first", "second", "third")
    others = [
        spelled(base, positional=0, names=(name,), arguments=(0,)) for name in names
    ]
    assert base(rising()) is not MISS
    for name, entry in zip(names, others, strict=True):
        assert entry(**{name: rising()}) is not MISS
    assert len({entry.__self__[Record.free] for entry in (base, *others)}) == 1
    assert len({entry.__self__[Record.grow] for entry in (base, *others)}) == 1


def test_a_spelled_entry_lives_without_the_one_it_was_made_from() -> None:
    base = nesting({"a": 1}, (2, 3))
    entry = spelled(base, positional=0, names=("x",), arguments=(0,))
    del base
    gc.collect()
    np.testing.assert_array_equal(entry(x=rising())["a"]._value, rising())


def test_reference_counts_of_spelled_calls_are_exact(full: bool) -> None:
    x, default, mode, rate = rising(), rising(), "mode", 0.5
    kind = of((2, 3))
    base = entry_of(
        adding(1, 1, 6),
        [kind, kind, of((), np.float64)],
        [kind],
        result=tree.structure([{"a": 1}]),
    )
    entry = spelled(
        base,
        positional=1,
        names=("mode", "rate"),
        arguments=(0, 0, 2),
        defaults={1: default},
        floats=frozenset({2}),
        fixed=[(1, mode)],
    )
    other = "".join(["m", "ode"])
    rates = [rate, float("1.5")]
    watched = (x, default, mode, other, *rates, MISS, Tensor, entry, base)

    def repeat(times: int) -> None:
        for _ in range(times):
            assert entry(x, mode=mode, rate=rate) is not MISS
            assert entry(x, mode=mode, rate=rates[1]) is not MISS
            assert entry(x, mode=other, rate=rate) is not MISS
            assert entry(x, mode="no", rate=rate) is MISS
            assert entry(x, mode=mode, rate=None) is MISS
            assert entry(x, rate=rate, mode=mode) is MISS
            assert entry(None, mode=mode, rate=rate) is MISS

    repeat(10)
    gc.collect()
    before = [sys.getrefcount(y) for y in watched]
    repeat(10_000 if full else 2_000)
    gc.collect()
    assert [sys.getrefcount(y) for y in watched] == before
