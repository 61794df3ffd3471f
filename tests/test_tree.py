"""Structures: taking nests apart and putting them together again."""

from __future__ import annotations

import collections
import copy
import dataclasses
import pickle
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapejit.base import tree
from tapejit.base.tree import StructureError


class Point(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass
class Layer:
    weight: Any
    bias: Any = None


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    inner: Any
    scale: Any


class Names(list):  # a constructor like list's
    pass


class Env(Mapping):
    def __init__(self, items: Mapping) -> None:
        self._items = dict(items)

    def __getitem__(self, key: Any) -> Any:
        return self._items[key]

    def __iter__(self) -> Iterator:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __eq__(self, other: object) -> bool:
        return type(other) is Env and self._items == other._items

    def __repr__(self) -> str:
        return f"Env({self._items})"

    __hash__ = None


class Box:
    def __init__(self, contents: Any, label: Any) -> None:
        self.contents, self.label = contents, label

    def __eq__(self, other: object) -> bool:
        return type(other) is Box and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash(self.label)

    def __repr__(self) -> str:
        return f"Box({self.contents!r}, {self.label!r})"


class SpecialBox(Box):
    pass


tree.register_structure(
    Box, lambda b: ((b.contents,), b.label), lambda label, kids: Box(*kids, label)
)


def nests(leaves: st.SearchStrategy) -> st.SearchStrategy:
    """Random nests with every kind of container."""
    keys = st.one_of(st.text(max_size=3), st.integers(-3, 3), st.booleans())

    def grow(inner: st.SearchStrategy) -> st.SearchStrategy:
        items = st.dictionaries(keys, inner, max_size=4)
        return st.one_of(
            st.lists(inner, max_size=4),
            st.lists(inner, max_size=4).map(tuple),
            st.lists(inner, max_size=4).map(Names),
            items,
            items.map(OrderedDict),
            items.map(lambda d: defaultdict(list, d)),
            items.map(Env),
            st.builds(Point, inner, inner),
            st.builds(Layer, inner, inner),
            st.builds(Frozen, inner, inner),
            st.builds(Box, inner, st.text(max_size=2)),
        )

    return st.recursive(st.one_of(leaves, st.none()), grow, max_leaves=20)


NESTS = nests(st.one_of(st.integers(), st.text(max_size=3), st.binary(max_size=2)))


# ------------------------------------------------------------------------- properties


@given(NESTS, st.booleans())
def test_round_trip(x: Any, none_is_leaf: bool) -> None:
    leaves, spec = tree.flatten(x, none_is_leaf=none_is_leaf)

    back = tree.unflatten(spec, leaves)

    assert back == x
    assert type(back) is type(x)
    assert spec.num_leaves == len(leaves)
    again, same = tree.flatten(back, none_is_leaf=none_is_leaf)
    assert all(a is b for a, b in zip(again, leaves, strict=True))
    assert same == spec
    assert hash(same) == hash(spec)
    assert repr(same) == repr(spec)
    assert (None in leaves) <= none_is_leaf


@given(NESTS)
def test_map_of_the_identity_is_the_identity(x: Any) -> None:
    assert tree.map(lambda leaf: leaf, x) == x
    assert tree.map(lambda first, second: second, x, x, none_is_leaf=True) == x


@given(NESTS)
def test_leaves_and_structure_are_the_two_halves_of_flatten(x: Any) -> None:
    assert (tree.leaves(x), tree.structure(x)) == tree.flatten(x)


@given(NESTS)
def test_written_order_counts_for_results_only(x: Any) -> None:
    def reverse(y: Any) -> Any:
        """The same nest with every dict whose keys sort written backwards."""
        if type(y) is dict:
            turned = {key: reverse(y[key]) for key in reversed(y)}
            kinds = {str if isinstance(key, str) else int for key in y}
            return turned if len(kinds) < 2 else {k: reverse(v) for k, v in y.items()}
        if type(y) in (list, tuple):
            return type(y)(reverse(child) for child in y)
        return y

    turned = reverse(x)

    assert tree.structure(turned) == tree.structure(x)
    assert tree.leaves(turned) == tree.leaves(x)
    assert repr(tree.map(str, turned)) == repr(reverse(tree.map(str, x)))


@given(NESTS, NESTS)
def test_equal_structures_are_interchangeable(x: Any, y: Any) -> None:
    first, second = tree.structure(x), tree.structure(y)
    if first == second:
        assert hash(first) == hash(second)
        assert tree.map(lambda a, b: b, x, y) == y
    else:
        with pytest.raises(StructureError):
            tree.map(lambda a, b: b, x, y)


@given(NESTS)
def test_paths_lead_to_their_leaves(x: Any) -> None:
    pairs, _ = tree.flatten_with_path(x)

    for path, leaf in pairs:
        code = "x" + path.replace("<0>", ".contents")
        assert eval(code, {"x": x}) is leaf
    assert len({path for path, _ in pairs}) == len(pairs)


@given(NESTS)
def test_structures_pickle_and_copy(x: Any) -> None:
    spec = tree.structure(x)

    for other in (pickle.loads(pickle.dumps(spec)), copy.deepcopy(spec)):
        assert other == spec
        assert tree.unflatten(other, tree.leaves(x)) == x


@given(NESTS, st.integers(-3, 3).filter(bool))
def test_unflatten_counts(x: Any, off: int) -> None:
    leaves, spec = tree.flatten(x)
    wrong = leaves + [0] * off if off > 0 else leaves[:off]
    if len(wrong) == len(leaves):
        return
    match = rf"has {len(leaves)} leaves, got {len(wrong)}"
    with pytest.raises(StructureError, match=match):
        tree.unflatten(spec, wrong)


# ---------------------------------------------------------------------- what is a leaf


@pytest.mark.parametrize(
    "leaf",
    [
        1,
        2.5,
        1j,
        True,
        "ab",
        b"ab",
        np.arange(3),
        np.array([None, [1]], dtype=object),
        np.float64(1),
        np.dtype("f4"),
        range(3),
        {1, 2},
        collections.deque([1]),
        len,
        Layer,
        Point,
        object(),
        SpecialBox(1, "x"),
    ],
    ids=lambda leaf: type(leaf).__name__,
)
def test_everything_else_is_a_leaf(leaf: Any) -> None:
    leaves, spec = tree.flatten(leaf)

    assert leaves[0] is leaf
    assert len(leaves) == 1
    assert repr(spec) == "*"
    assert spec.paths() == [""]
    assert tree.unflatten(spec, [leaf]) is leaf
    assert tree.flatten([leaf, leaf])[1] == tree.structure([0, 0])


def test_none_holds_no_leaf_unless_asked() -> None:
    assert tree.flatten(None) == ([], tree.structure(None))
    assert tree.unflatten(tree.structure({"a": None}), []) == {"a": None}
    assert tree.leaves([None, 1, None], none_is_leaf=True) == [None, 1, None]
    assert tree.leaves(None, none_is_leaf=True) == [None]
    assert tree.structure([None]) != tree.structure([0])
    assert tree.structure([None], none_is_leaf=True) == tree.structure([0])


def test_is_leaf_keeps_containers_whole() -> None:
    x = [(1, 2), {"a": (3, 4)}, None]

    assert tree.leaves(x, is_leaf=lambda y: type(y) is tuple) == [(1, 2), (3, 4)]
    assert tree.leaves(x, is_leaf=lambda y: y is None)[-1] is None
    assert tree.leaves([1, 2], is_leaf=lambda y: type(y) is list) == [[1, 2]]
    assert tree.map(len, x, is_leaf=lambda y: type(y) is tuple) == [2, {"a": 2}, None]


# --------------------------------------------------------------------- the containers


def test_dicts_flatten_sorted_and_come_back_as_written() -> None:
    x = {"b": 1, "c": 2, "a": 3}

    assert tree.leaves(x) == [3, 1, 2]
    assert list(tree.map(str, x).items()) == [("b", "1"), ("c", "2"), ("a", "3")]
    assert repr(tree.structure(x)) == "{'a': *, 'b': *, 'c': *}"
    ordered = tree.map(str, OrderedDict(b=1, a=2))
    assert (type(ordered), list(ordered)) == (OrderedDict, ["b", "a"])
    default = tree.map(str, defaultdict(int, b=1, a=2))
    assert (type(default), list(default)) == (defaultdict, ["b", "a"])
    assert default["new"] == 0


def test_keys_that_do_not_sort_keep_their_order_and_still_match() -> None:
    x, y = {"b": 1, 0: 2}, {0: 20, "b": 10}

    assert tree.leaves(x) == [1, 2]
    assert tree.structure(x) != tree.structure(y)  # the leaves come in another order
    assert tree.map(lambda a, b: (a, b), x, y) == {"b": (1, 10), 0: (2, 20)}
    nested = tree.map(lambda a, b: (a, b), [x, 5], [y, 50])
    assert nested == [{"b": (1, 10), 0: (2, 20)}, (5, 50)]
    assert tree.leaves({2j: 1, 1j: 2}) == [1, 2]


def test_keys_without_a_plain_order_do_not_stop_flatten() -> None:
    class Key:
        def __lt__(self, other: object) -> Any:
            return np.array([True, False])

    first, second = Key(), Key()

    assert tree.leaves({first: 1, second: 2}) == [1, 2]


def test_the_factory_of_a_defaultdict_is_no_part_of_equality() -> None:
    assert tree.structure(defaultdict(int)) == tree.structure(defaultdict(list))
    assert tree.structure(defaultdict(int)) != tree.structure({})


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ([0], (0,)),
        ([0], Names([0])),
        ({"a": 0}, OrderedDict(a=0)),
        ({"a": 0}, {"b": 0}),
        ((0, 0), Point(0, 0)),
        ([0, 0], [0]),
        ([0, [0]], [[0], 0]),
        ([], None),
        ([], ()),
        (Box(0, "a"), Box(0, "b")),
        (Layer(0, 0), Frozen(0, 0)),
        ({}, 0),
    ],
    ids=repr,
)
def test_structures_that_differ(first: Any, second: Any) -> None:
    assert tree.structure(first) != tree.structure(second)
    with pytest.raises(StructureError):
        tree.map(lambda a, b: a, first, second)


def test_a_structure_is_a_key() -> None:
    cache = {tree.structure([{"a": 1}, 2]): "found"}

    assert cache[tree.structure([{"a": 5}, "x"])] == "found"
    assert tree.structure([{"b": 5}, "x"]) not in cache
    assert tree.structure(0) != "*"


@pytest.mark.parametrize(
    ("x", "text"),
    [
        ({"a": 1, "b": [2, 3]}, "{'a': *, 'b': [*, *]}"),
        ((1,), "(*,)"),
        ((), "()"),
        ([], "[]"),
        ({}, "{}"),
        (None, "None"),
        (Point(1, (2, None)), "Point(x=*, y=(*, None))"),
        (Layer(1, [2]), "Layer(weight=*, bias=[*])"),
        (OrderedDict(a=1), "OrderedDict({'a': *})"),
        (Names([1]), "Names([*])"),
        (Env({"a": 1}), "Env({'a': *})"),
        (Box(1, "red"), "Box['red'](*)"),
        (Box(1, None), "Box(*)"),
    ],
    ids=str,
)
def test_structures_print(x: Any, text: str) -> None:
    assert repr(tree.structure(x)) == str(tree.structure(x)) == text


def test_paths_read_like_python() -> None:
    x = {"a": [Layer(Point(1, 2), None)], 3: Box(4, "")}

    assert tree.structure(x).paths() == [
        "['a'][0].weight.x",
        "['a'][0].weight.y",
        "[3]<0>",
    ]
    named = tree.map_with_path(lambda path, a, b: f"{path}{a}{b}", {"k": 1}, {"k": 2})
    assert named == {"k": "['k']12"}


# ----------------------------------------------------------------------------- errors


def error_of(call: Callable[[], Any]) -> str:
    with pytest.raises(StructureError) as error:
        call()
    return str(error.value)


def test_a_mismatch_says_where_and_what() -> None:
    first = {"a": [1, Layer((1, 2), 3)]}
    second = {"a": [1, Layer([1, 2], 3)]}

    assert error_of(lambda: tree.map(max, first, first, second)).splitlines() == [
        "structure 3 differs from structure 1 at ['a'][1].weight",
        "  structure 1  tuple of 2: (*, *)",
        "  structure 3  list of 2: [*, *]",
    ]


def test_a_mismatch_with_a_leaf_names_its_type() -> None:
    text = error_of(lambda: tree.map(max, [1, [2]], [1, np.ones(2)]))
    assert "at [1]\n" in text
    assert "structure 1  list of 1: [*]" in text
    assert text.endswith("structure 2  a leaf of type ndarray")
    text = error_of(lambda: tree.map(max, [1, 2], [1, (2,)]))
    assert "structure 1  a leaf\n" in text
    assert text.endswith("structure 2  tuple of 1: (*,)")


def test_a_mismatch_of_keys_names_them() -> None:
    text = error_of(lambda: tree.map(max, {"p": {"a": 1, "b": 2}}, {"p": {"c": 1}}))

    assert "at ['p']\n" in text
    assert text.endswith("keys  structure 2 lacks 'a', 'b' and also has 'c'")


def test_a_none_that_meets_a_leaf_gets_a_hint() -> None:
    text = error_of(lambda: tree.map(max, {"w": 1}, {"w": None}))

    assert "structure 2  None" in text
    assert "none_is_leaf=True" in text
    got = tree.map(lambda w, g: g, {"w": 1}, {"w": None}, none_is_leaf=True)
    assert got == {"w": None}
    assert "none_is_leaf" not in error_of(lambda: tree.map(max, [1], [[None]]))


def test_long_structures_are_cut_in_errors() -> None:
    text = error_of(lambda: tree.map(max, [0] * 1000, tuple([0] * 1000)))

    assert "list of 1000" in text
    assert max(len(line) for line in text.splitlines()) < 110


def test_unflatten_errors() -> None:
    spec = tree.structure({"a": 1, "b": [2, 3]})

    assert error_of(lambda: tree.unflatten(spec, [1, 2])) == (
        "unflatten: {'a': *, 'b': [*, *]} has 3 leaves, got 2; "
        "nothing is left for ['b'][1]"
    )
    assert error_of(lambda: tree.unflatten(spec, iter(range(5)))).endswith(
        "has 3 leaves, got 5"
    )
    with pytest.raises(TypeError, match="takes the Structure first"):
        tree.unflatten([1, 2, 3], spec)
    assert issubclass(StructureError, ValueError)


def test_cycles_are_reported_with_their_path() -> None:
    loop: dict[str, Any] = {"a": [1, (2,)]}
    loop["a"].append({"again": loop})
    assert error_of(lambda: tree.flatten(loop)) == (
        "flatten: the structure contains itself: ['a'][2]['again'] is the same "
        "object as the container at the top"
    )

    inner: list[Any] = []
    inner.append(inner)
    assert "['x'][0] is the same object as the container at ['x']" in error_of(
        lambda: tree.flatten({"x": inner})
    )
    assert tree.leaves({"x": inner}, is_leaf=lambda y: y is inner) == [inner]


def test_a_shared_container_is_no_cycle() -> None:
    shared = [1, 2]
    for _ in range(12):
        shared = [shared, shared]

    assert len(tree.leaves(shared)) == 2 * 2**12


def test_a_nest_that_is_only_deep_is_not_called_a_cycle() -> None:
    def nest(depth: int) -> Any:
        x: Any = 0
        for _ in range(depth):
            x = [x]
        return x

    assert tree.map(str, nest(300)) == tree.map(lambda _: "0", nest(300))
    with pytest.raises(RecursionError):
        tree.flatten(nest(100_000))


def test_flatten_like_gives_the_leaves_in_the_order_asked_for() -> None:
    spec = tree.structure({"b": 0, 1: [0, 0]})

    assert tree.flatten_like({1: [2, 3], "b": 1}, spec) == [1, 2, 3]
    text = error_of(
        lambda: tree.flatten_like([0], spec, labels=("targets", "output_gradients"))
    )
    assert text.startswith("output_gradients differs from targets at the top\n")


def test_missing_gradients_line_up_with_their_sources() -> None:
    sources = {"b": [1.0, 2.0], "a": Point(3.0, 4.0)}
    gradients = tree.unflatten(tree.structure(sources), [None, 0.5, None, 0.25])

    assert gradients == {"b": [None, 0.25], "a": Point(None, 0.5)}
    pairs = tree.map(lambda s, g: (s, g), sources, gradients, none_is_leaf=True)
    assert pairs["a"] == ((3.0, None), (4.0, 0.5))
    spec = tree.structure(sources)
    assert tree.flatten_like(gradients, spec, none_is_leaf=True)[0] is None
