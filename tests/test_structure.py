"""Which classes are containers, and how each comes back."""

from __future__ import annotations

import collections
import dataclasses
import functools
import gc
import types
import weakref
from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pytest

from tapejit.base import structure as containers
from tapejit.base import tree


class Point(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass
class Positive:
    """Refuses in its constructor, and derives a field there."""

    value: Any
    double: Any = dataclasses.field(init=False)
    hint: dataclasses.InitVar[int] = 0

    def __post_init__(self, hint: int) -> None:
        if not self.value > 0:
            raise ValueError("not positive")
        self.double = 2 * self.value
        self.runs = 1  # no field

    @functools.cached_property
    def square(self) -> Any:
        return self.value**2


class Names(list):  # a constructor like list's
    pass


class Vector(list):  # takes its elements one by one
    def __init__(self, *elements: Any) -> None:
        super().__init__(elements)


class Pair(tuple):
    def __new__(cls, first: Any, second: Any) -> Pair:
        return super().__new__(cls, (first, second))


# -------------------------------------------------------------------------- subclasses


def test_subclasses_keep_their_class_where_the_constructor_allows() -> None:
    class Ranked(OrderedDict):
        pass

    class Counting(defaultdict):
        pass

    class Keyed(dict):
        def __init__(self, name: str, items: Any) -> None:
            super().__init__(items)

    def rebuilt(x: Any) -> Any:
        return tree.unflatten(tree.structure(x), tree.leaves(x))

    kept = [
        Names([1]),
        collections.Counter("aab"),
        Ranked(a=1),
        Counting(int, a=1),
        collections.UserDict({"a": 1}),
    ]
    for x in kept:
        assert type(rebuilt(x)) is type(x)
        assert rebuilt(x) == x
    assert rebuilt(Counting(int, a=1))["new"] == 0
    proxy = rebuilt(types.MappingProxyType({"a": 1}))
    assert type(proxy) is types.MappingProxyType
    for x, plain in [(Vector(1), list), (Vector(1, 2), list), (Pair(1, 2), tuple)]:
        assert type(rebuilt(x)) is plain
        assert rebuilt(x) == plain(x)
    assert type(rebuilt(Keyed("k", {"a": 1}))) is dict
    assert rebuilt(Keyed("k", {"a": 1})) == {"a": 1}


def test_an_error_of_a_constructor_is_not_hidden() -> None:
    class Sorted(list):
        def __init__(self, items: Any = ()) -> None:
            super().__init__(items)
            if self != sorted(self):
                raise ValueError("not sorted")

    with pytest.raises(ValueError, match="not sorted"):
        tree.map(lambda x: -x, Sorted([1, 2]))


# ------------------------------------------------------------------------- dataclasses


def test_dataclasses_are_rebuilt_without_their_constructor() -> None:
    x = Positive(3)

    y = tree.map(lambda v: -v, x)

    assert (y.value, y.double) == (-3, -6)
    assert not hasattr(y, "runs")
    assert tree.map(lambda v: None, x).value is None
    assert tree.structure(x).paths() == [".value", ".double"]


def test_a_stale_cached_property_is_not_carried_over() -> None:
    x = Positive(3)
    assert x.square == 9

    assert tree.map(lambda v: 10 * v, x).square == 900


def test_frozen_and_slotted_dataclasses() -> None:
    @dataclasses.dataclass(frozen=True, slots=True)
    class Frozen:
        inner: Any
        scale: Any

    x = Frozen([1, 2], 3)

    y = tree.map(lambda v: v + 1, x)

    assert y == Frozen([2, 3], 4)
    with pytest.raises(dataclasses.FrozenInstanceError):
        y.scale = 0


def test_a_field_without_a_value_stays_without() -> None:
    @dataclasses.dataclass
    class Lazy:
        weight: Any
        state: Any = dataclasses.field(init=False)

    x = Lazy(1)
    y = tree.map(str, x)

    assert y.weight == "1"
    assert not hasattr(y, "state")
    assert repr(tree.structure(x)) == "Lazy(weight=*)"
    full = Lazy(1)
    full.state = 2
    assert tree.structure(full) != tree.structure(x)


def test_a_dataclass_that_is_a_mapping_is_taken_by_its_fields() -> None:
    @dataclasses.dataclass
    class Params(Mapping):
        w: Any
        b: Any

        def __getitem__(self, key: str) -> Any:
            return getattr(self, key)

        def __iter__(self) -> Iterator[str]:
            return iter(("w", "b"))

        def __len__(self) -> int:
            return 2

    y = tree.map(lambda v: v + 1, Params(1, 2))

    assert (type(y), y.w, y.b) == (Params, 2, 3)


def test_a_namedtuple_is_made_without_its_constructor() -> None:
    class Checked(Point):
        def __new__(cls, x: Any, y: Any) -> Checked:
            raise AssertionError("not to be called")

    x = tuple.__new__(Checked, (1, 2))

    assert type(tree.map(str, x)) is Checked
    assert tree.map(str, x).y == "2"


# ------------------------------------------------------------------ registered classes


def test_registering_changes_what_was_a_leaf() -> None:
    class Late:
        def __init__(self, a: Any, b: Any) -> None:
            self.a, self.b = a, b

    x = [Late(1, [2]), 3]
    assert tree.leaves(x) == x

    tree.register_structure(
        Late, lambda v: (iter((v.a, v.b)), None), lambda aux, kids: Late(*kids)
    )
    assert tree.leaves(x) == [1, 2, 3]
    y = tree.map(str, x)
    assert (y[0].a, y[0].b, y[1]) == ("1", ["2"], "3")

    tree.register_structure(Late, lambda v: ((), v.a), lambda aux, kids: Late(aux, 0))
    assert tree.leaves(x) == [3]


def test_a_registered_dataclass_follows_its_registration() -> None:
    @dataclasses.dataclass
    class Model:
        weight: Any
        activation: str

    assert tree.leaves(Model(1, "relu")) == [1, "relu"]
    tree.register_structure(
        Model, lambda m: ((m.weight,), m.activation), lambda act, w: Model(*w, act)
    )
    assert tree.map(lambda w: -w, Model(1, "relu")) == Model(-1, "relu")


def test_registration_is_checked() -> None:
    class Odd:
        aux: Any = None
        result: Any = None

    tree.register_structure(Odd, lambda odd: odd.result, lambda aux, kids: Odd())
    odd = Odd()
    for odd.result in (None, [(), None], ((), None, None)):
        with pytest.raises(TypeError, match=r"Odd has to return \(children, aux\)"):
            tree.flatten(odd)
    odd.result = ((), [1])
    with pytest.raises(TypeError, match=r"aux that is not hashable: \[1\]"):
        tree.flatten(odd)
    with pytest.raises(TypeError, match="takes a class, got 3"):
        tree.register_structure(3, len, len)
    for cls in (list, dict, type(None), float):
        with pytest.raises(ValueError, match="built in"):
            tree.register_structure(cls, len, len)


def test_classes_met_are_not_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(containers, "_MAX_CLASSES", 8)
    made = []
    for i in range(40):
        cls = collections.namedtuple(f"Result{i}", "a b")
        assert tree.map(str, cls(i, (object, 1)))[0] == str(i)
        made.append(weakref.ref(cls))
        del cls
    gc.collect()

    assert sum(ref() is not None for ref in made) <= 8
