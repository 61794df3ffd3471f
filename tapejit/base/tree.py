"""Nested containers as a flat list of leaves plus a `Structure`, and back again.

Whatever takes a nest of tensors (arguments of a function, the sources of a gradient,
the state of an optimizer) takes it apart here, so that all agree on what a container
is, in which order its leaves come and how it is put together again. A nest becomes the
list of its leaves and a `Structure`, an immutable, hashable tree that says the rest;
`structure` next door defines that and knows the kinds of container, here are the walks.

Dicts give their leaves in sorted order of keys (given order if they do not sort). None
holds no leaf, unless `none_is_leaf=True`: a missing argument is nothing, a missing
gradient is an answer.

Start reading at `flatten`.
"""

from __future__ import annotations

import itertools
import sys
from builtins import map as each  # `map` is ours below
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from tapejit.base.public import public
from tapejit.base.structure import (
    EMPTY,
    KINDS,
    LEAF,
    LEAF_TYPES,
    MAPPING,
    Structure,
    classify,
    flat_structure,
    register_structure,
    shorten,
)

__all__ = [
    "Structure",
    "StructureError",
    "flatten",
    "flatten_like",
    "flatten_with_path",
    "leaves",
    "map",
    "map_with_path",
    "register_structure",
    "structure",
    "unflatten",
]


def __dir__() -> list[str]:
    return sorted(__all__)


@public("tapejit")
class StructureError(ValueError):
    """Two structures that should match do not, or a structure cannot be flattened.

    >>> try:
    ...     map(max, {"a": [1, 2]}, {"a": 3})
    ... except StructureError as error:
    ...     print(error)
    structure 2 differs from structure 1 at ['a']
      structure 1  list of 2: [*, *]
      structure 2  a leaf of type int
    """


# --------------------------------------------------------------------------- flatten


def flatten(
    structure: Any,
    *,
    is_leaf: Callable[[Any], bool] | None = None,
    none_is_leaf: bool = False,
) -> tuple[list[Any], Structure]:
    """Take `structure` apart into the list of its leaves and its `Structure`.

    Containers are dict, list, tuple, namedtuple, dataclass instances, any other
    Mapping, subclasses of these, and classes given to `register_structure`; everything
    else is a leaf. `is_leaf` is asked of each container and each None, and what it
    says yes to is kept whole. With `none_is_leaf`, None is a leaf.

    >>> flatten({"b": [1, 2], "a": 3})
    ([3, 1, 2], {'a': *, 'b': [*, *]})
    >>> flatten([1, None])
    ([1], [*, None])
    >>> flatten([1, None], none_is_leaf=True)
    ([1, None], [*, *])
    >>> flatten([(1, 2), (3, 4)], is_leaf=lambda x: type(x) is tuple)
    ([(1, 2), (3, 4)], [*, *])
    """
    cls: type = type(structure)
    if cls in LEAF_TYPES:
        return [structure], LEAF
    if (
        is_leaf is None
        and (cls is list or cls is tuple)
        and LEAF_TYPES.issuperset(each(type, structure))
    ):
        return list(structure), flat_structure(cls, len(structure))
    found: list[Any] = []
    try:
        spec = _take_apart(structure, found, is_leaf, none_is_leaf)
    except RecursionError:
        # Looking for a cycle only now keeps the check off the usual path.
        cycle = _find_cycle(structure, is_leaf)
        if cycle is None:
            raise
        outer, inner = cycle
        raise StructureError(
            f"flatten: the structure contains itself: {_place(inner)} is the same "
            f"object as the container at {_place(outer)}"
        ) from None
    return found, spec


def _take_apart(
    x: Any, found: list[Any], is_leaf: Callable[[Any], bool] | None, none_is_leaf: bool
) -> Structure:
    """Append the leaves of `x` to `found` and return its structure."""
    cls = type(x)
    kind = KINDS.get(cls)
    if kind is None and cls not in LEAF_TYPES:
        kind = classify(cls)
    if (
        kind is None
        or (none_is_leaf and x is None)
        or (is_leaf is not None and is_leaf(x))
    ):
        found.append(x)
        return LEAF
    if x is None:
        return EMPTY
    before = len(found)
    children, keys, recipe = kind.take(x)
    specs = []
    for child in children:
        if type(child) in LEAF_TYPES:
            found.append(child)
            specs.append(LEAF)
        else:
            specs.append(_take_apart(child, found, is_leaf, none_is_leaf))
    return Structure(kind, cls, keys, recipe, tuple(specs), len(found) - before)


def unflatten(spec: Structure, leaves: Iterable[Any]) -> Any:
    """Put `leaves` back into the places `spec` has for them.

    Containers come back with their own class; a subclass of list, tuple or dict and
    any other Mapping whose constructor does not take its elements back as they were
    becomes the plain list, tuple or dict. Dataclasses are rebuilt field by field,
    without `__init__` and `__post_init__`; attributes that are not fields (a
    `cached_property` among them) are not carried over.

    >>> leaves, spec = flatten({"b": [1, 2], "a": 3})
    >>> unflatten(spec, [30, 10, 20])
    {'b': [10, 20], 'a': 30}
    """
    if not isinstance(spec, Structure):
        raise TypeError(
            "unflatten takes the Structure first, then the leaves; "
            f"got {type(spec).__name__}"
        )
    values = leaves if type(leaves) is list else list(leaves)
    if len(values) != spec.num_leaves:
        raise StructureError(_wrong_count(spec, len(values)))
    return _put_together(spec, iter(values))


def _put_together(spec: Structure, values: Iterator[Any]) -> Any:
    if spec is LEAF:
        return next(values)
    children = []
    for child in spec.children:
        children.append(next(values) if child is LEAF else _put_together(child, values))
    return spec.kind.build(spec, children)


def structure(
    x: Any, *, is_leaf: Callable[[Any], bool] | None = None, none_is_leaf: bool = False
) -> Structure:
    """The `Structure` of `x`, without its leaves.

    >>> structure({"w": 1.0, "layers": [(2.0, 3.0), None]})
    {'layers': [(*, *), None], 'w': *}
    """
    return flatten(x, is_leaf=is_leaf, none_is_leaf=none_is_leaf)[1]


def leaves(
    x: Any, *, is_leaf: Callable[[Any], bool] | None = None, none_is_leaf: bool = False
) -> list[Any]:
    """The leaves of `x` in flattening order.

    >>> leaves({"w": 1.0, "layers": [(2.0, 3.0), None]})
    [2.0, 3.0, 1.0]
    """
    return flatten(x, is_leaf=is_leaf, none_is_leaf=none_is_leaf)[0]


def flatten_with_path(
    structure: Any,
    *,
    is_leaf: Callable[[Any], bool] | None = None,
    none_is_leaf: bool = False,
) -> tuple[list[tuple[str, Any]], Structure]:
    """As `flatten`, each leaf with the path that leads to it.

    >>> flatten_with_path({"a": [1, 2]})
    ([("['a'][0]", 1), ("['a'][1]", 2)], {'a': [*, *]})
    """
    found, spec = flatten(structure, is_leaf=is_leaf, none_is_leaf=none_is_leaf)
    return list(zip(spec.paths(), found, strict=True)), spec


def flatten_like(
    structure: Any,
    spec: Structure,
    *,
    is_leaf: Callable[[Any], bool] | None = None,
    none_is_leaf: bool = False,
    labels: tuple[str, str] = ("expected", "given"),
) -> list[Any]:
    """The leaves of `structure` in the order of `spec`, which it has to match.

    A mismatch is a StructureError that gives the first path where the two differ;
    `labels` name the two sides in its text (what `spec` describes, and `structure`).

    >>> flatten_like({"b": 1, "a": 2}, flatten({"a": 0, "b": 0})[1])
    [2, 1]
    >>> targets = flatten([0.0, 0.0])[1]
    >>> labels = ("targets", "output_gradients")
    >>> try:
    ...     flatten_like([1.0], targets, labels=labels)
    ... except StructureError as error:
    ...     print(error)
    output_gradients differs from targets at the top
      targets           list of 2: [*, *]
      output_gradients  list of 1: [*]
    """
    found, own = flatten(structure, is_leaf=is_leaf, none_is_leaf=none_is_leaf)
    if own == spec:
        return found
    order: list[int] = []
    difference = _match(spec, own, "", 0, order)
    if difference is None:
        # Equal but for the order of keys that do not sort.
        return [found[i] for i in order]
    raise StructureError(_describe_difference(difference, found, labels))


def map(
    fn: Callable[..., Any],
    structure: Any,
    *rest: Any,
    is_leaf: Callable[[Any], bool] | None = None,
    none_is_leaf: bool = False,
) -> Any:
    """Apply `fn` to each leaf, with the leaves at its place in `rest`.

    The result has the structure of `structure`; each of `rest` has to have it too.

    >>> map(lambda x, y: x + y, {"b": 1, "a": (2, 3)}, {"a": (20, 30), "b": 10})
    {'b': 11, 'a': (22, 33)}
    """
    found, spec = flatten(structure, is_leaf=is_leaf, none_is_leaf=none_is_leaf)
    columns = _columns(spec, rest, is_leaf, none_is_leaf)
    return unflatten(spec, list(each(fn, found, *columns)))


def map_with_path(
    fn: Callable[..., Any],
    structure: Any,
    *rest: Any,
    is_leaf: Callable[[Any], bool] | None = None,
    none_is_leaf: bool = False,
) -> Any:
    """As `map`, with the path of the leaf as first argument of `fn`.

    >>> map_with_path(lambda path, x: f"{path} is {x}", {"a": [1, 2]})
    {'a': ["['a'][0] is 1", "['a'][1] is 2"]}
    """
    found, spec = flatten(structure, is_leaf=is_leaf, none_is_leaf=none_is_leaf)
    columns = _columns(spec, rest, is_leaf, none_is_leaf)
    return unflatten(spec, list(each(fn, spec.paths(), found, *columns)))


def _columns(
    spec: Structure,
    rest: tuple[Any, ...],
    is_leaf: Callable[[Any], bool] | None,
    none_is_leaf: bool,
) -> list[list[Any]]:
    """The leaves of each structure of `rest`, all in the order of `spec`."""
    return [
        flatten_like(
            other,
            spec,
            is_leaf=is_leaf,
            none_is_leaf=none_is_leaf,
            labels=("structure 1", f"structure {number}"),
        )
        for number, other in enumerate(rest, start=2)
    ]


# -------------------------------------------------------------------- what went wrong


class _Difference(NamedTuple):
    path: str
    first: Structure
    second: Structure
    start: int  # index of the first leaf of `second` among the leaves of its whole


def _match(
    first: Structure, second: Structure, path: str, start: int, order: list[int]
) -> _Difference | None:
    """Where two structures first differ; None if they match.

    Then `order` has gained, for each leaf of `first`, the number of the same leaf in
    the second structure, which has `start` leaves before those of `second`.
    """
    if first is LEAF and second is LEAF:
        order.append(start)
        return None
    same_class = first.cls is second.cls
    places = first.kind.places(first, second) if same_class else None
    if places is None:
        return _Difference(path, first, second, start)
    sizes = (child.num_leaves for child in second.children)
    starts = list(itertools.accumulate(sizes, initial=start))
    for i, (child, j) in enumerate(zip(first.children, places, strict=True)):
        step = path + first.kind.step(first.keys, i)
        difference = _match(child, second.children[j], step, starts[j], order)
        if difference is not None:
            return difference
    return None


def _describe_difference(
    difference: _Difference, found: list[Any], labels: tuple[str, str]
) -> str:
    first, second = difference.first, difference.second
    has = _describe(second)
    if second is LEAF:
        has = f"a leaf of type {type(found[difference.start]).__name__}"
    width = max(each(len, labels))
    lines = [
        f"{labels[1]} differs from {labels[0]} at {_place(difference.path)}",
        f"  {labels[0]:{width}}  {_describe(first)}",
        f"  {labels[1]:{width}}  {has}",
    ]
    if first.cls is second.cls and first.kind is MAPPING:
        missing = [key for key in first.keys if key not in second.keys]
        extra = [key for key in second.keys if key not in first.keys]
        told = [
            f"{verb} {shorten(', '.join(each(repr, keys)))}"
            for verb, keys in (("lacks", missing), ("also has", extra))
            if keys
        ]
        lines.append(f"  keys  {labels[1]} {' and '.join(told)}")
    if EMPTY in (first, second) and LEAF in (first, second):
        lines.append("  help  none_is_leaf=True makes None a leaf like any other")
    return "\n".join(lines)


def _describe(spec: Structure) -> str:
    if spec is LEAF:
        return "a leaf"
    if spec is EMPTY:
        return "None"
    return f"{spec.cls.__name__} of {len(spec.children)}: {shorten(repr(spec))}"


def _wrong_count(spec: Structure, count: int) -> str:
    text = f"unflatten: {shorten(repr(spec))} has {spec.num_leaves} leaves, got {count}"
    if count < spec.num_leaves:
        text += f"; nothing is left for {_place(spec.paths()[count])}"
    return text


def _place(path: str) -> str:
    return path or "the top"


def _find_cycle(
    root: Any, is_leaf: Callable[[Any], bool] | None
) -> tuple[str, str] | None:
    """Two paths to one object, the second inside of the first; None without a cycle."""
    open_paths: dict[int, str] = {}  # containers from the root to where we are, by id
    stack: list[tuple[Any, Iterator[tuple[str, Any]]]] = []

    def enter(x: Any, path: str) -> None:
        kind = KINDS.get(type(x))
        if kind is None or (is_leaf is not None and is_leaf(x)):
            return
        children, keys, _ = kind.take(x)
        steps = ((path + kind.step(keys, i), c) for i, c in enumerate(children))
        open_paths[id(x)] = path
        stack.append((x, steps))

    enter(root, "")
    # Deeper than Python recurses without meeting an object twice: a registered class
    # makes new children for ever, or the nest is just deep. Not a cycle.
    while stack and len(stack) <= sys.getrecursionlimit():
        x, steps = stack[-1]
        path, child = next(steps, (None, None))
        if path is None:
            stack.pop()
            del open_paths[id(x)]
        elif id(child) in open_paths:
            return open_paths[id(child)], path
        else:
            enter(child, path)
    return None
