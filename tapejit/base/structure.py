"""What a nest of containers is apart from its leaves, and which classes are containers.

The data structures are

- `Structure`, a tree of immutable records that says everything about a nest but its
  leaves. What counts in `==` and `hash` (class, keys, children) is apart from what
  only rebuilding needs (the `recipe`: the order in which a dict was written, the
  factory of a defaultdict), so two dicts written in another order are one signature
  and each result still comes back in its own order.
- `ContainerKind`, one per sort of container: how it comes apart, goes together, is
  printed, and how a path steps into it.
- `KINDS` and `LEAF_TYPES`, which remember for each class met what it is: one look-up by
  exact class is what makes flattening a flat list cost one microsecond and not ten.

The walks over them (`flatten`, `map`, ...) are in `tree`, which is the public face.

Start reading at `Structure`, then `find_kind`, then the kind you care for.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from types import NoneType
from typing import Any

# ------------------------------------------------------------------------- Structure


class Structure:
    """What a nest of containers is apart from its leaves.

    Structures compare and hash by classes, keys and nesting: list and tuple differ,
    the order in which a dict was written does not count. `num_leaves` is how many
    leaves it has room for. They are immutable; `structure` and `flatten` make them.

    >>> from tapejit.base.tree import structure
    >>> first = structure({"a": 1, "b": [2, 3]})
    >>> first
    {'a': *, 'b': [*, *]}
    >>> first == structure({"b": [0, 0], "a": 0}), first == structure({"a": 1})
    (True, False)
    >>> first.num_leaves
    3
    """

    __slots__ = ("_hash", "children", "cls", "keys", "kind", "num_leaves", "recipe")

    def __init__(
        self,
        kind: ContainerKind,
        cls: type,
        keys: Any,
        recipe: Any,
        children: tuple[Structure, ...],
        num_leaves: int,
    ) -> None:
        self.kind = kind
        self.cls = cls
        self.keys = keys  # what tells this container from others of its class
        self.recipe = recipe  # what only rebuilding needs; no part of ==
        self.children = children
        self.num_leaves = num_leaves
        self._hash: int | None = None

    def paths(self) -> list[str]:
        """The path of each leaf, as one would write it after the structure's name.

        Children of registered classes have no spelling and appear as `<0>`, `<1>`.

        >>> from tapejit.base.tree import structure
        >>> structure({"a": [1, 2], "b": 3}).paths()
        ["['a'][0]", "['a'][1]", "['b']"]
        """
        found: list[str] = []
        self._add_paths("", found)
        return found

    def _add_paths(self, path: str, found: list[str]) -> None:
        if self is LEAF:
            found.append(path)
        for i, child in enumerate(self.children):
            child._add_paths(path + self.kind.step(self.keys, i), found)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Structure):
            return NotImplemented
        return (
            self.cls is other.cls
            and self.num_leaves == other.num_leaves
            and self.keys == other.keys
            and self.children == other.children
        )

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash((self.cls, self.keys, self.children))
        return self._hash

    def __repr__(self) -> str:
        return self.kind.show(self, [repr(child) for child in self.children])

    def __reduce__(self) -> str | tuple[Any, ...]:
        if self is LEAF or self is EMPTY:  # by name: each stays the one object it is
            return "LEAF" if self is LEAF else "EMPTY"
        state = (self.cls, self.keys, self.recipe, self.children, self.num_leaves)
        return _unpickle, state


def _unpickle(
    cls: type, keys: Any, recipe: Any, children: tuple[Structure, ...], num_leaves: int
) -> Structure:
    kind = KINDS.get(cls) or classify(cls)
    if kind is None:
        raise TypeError(f"{cls.__name__} is not a registered structure here")
    return Structure(kind, cls, keys, recipe, children, num_leaves)


@functools.lru_cache(maxsize=256)
def flat_structure(cls: type, length: int) -> Structure:
    """The structure of a list or tuple of leaves, the same object (and hash) again."""
    return Structure(_SEQUENCE, cls, None, None, (LEAF,) * length, length)


# ----------------------------------------------------------------- kinds of container


class ContainerKind:
    """How one sort of container comes apart and goes together again."""

    def take(self, x: Any) -> tuple[Sequence[Any], Any, Any]:
        """The children of `x`, the keys and the recipe of its `Structure`."""
        raise NotImplementedError

    def build(self, spec: Structure, children: list[Any]) -> Any:
        """The container that `spec` describes, with these children."""
        raise NotImplementedError

    def step(self, keys: Any, i: int) -> str:
        """What a path adds to go to child `i`."""
        return f"[{i}]"

    def show(self, spec: Structure, parts: list[str]) -> str:
        """The text of `spec`, given those of its children."""
        raise NotImplementedError

    def places(self, first: Structure, second: Structure) -> Sequence[int] | None:
        """Where `second` has each child of `first`; None if they do not correspond."""
        count = len(first.children)
        same = first.keys == second.keys and count == len(second.children)
        return range(count) if same else None


class _LeafKind(ContainerKind):
    def show(self, spec: Structure, parts: list[str]) -> str:
        return "*"


class _NoneKind(ContainerKind):
    """None: a container of nothing."""

    def take(self, x: Any) -> tuple[Sequence[Any], Any, Any]:
        return (), None, None

    def build(self, spec: Structure, children: list[Any]) -> Any:
        return None

    def show(self, spec: Structure, parts: list[str]) -> str:
        return "None"


class _SequenceKind(ContainerKind):
    """list, tuple and their subclasses."""

    def take(self, x: Any) -> tuple[Sequence[Any], Any, Any]:
        return x, None, None

    def build(self, spec: Structure, children: list[Any]) -> Any:
        cls: Any = spec.cls
        if cls is list:
            return children
        if cls is tuple:
            return tuple(children)
        rebuilt = _construct(cls, children)
        # `class Vector(list)` may take its elements one by one: cls([x]) == [[x]].
        if (
            type(rebuilt) is cls
            and len(rebuilt) == len(children)
            and all(new is given for new, given in zip(rebuilt, children, strict=True))
        ):
            return rebuilt
        return tuple(children) if issubclass(cls, tuple) else children

    def show(self, spec: Structure, parts: list[str]) -> str:
        text = ", ".join(parts)
        if issubclass(spec.cls, list):
            text = f"[{text}]"
        else:
            text = f"({text},)" if len(parts) == 1 else f"({text})"
        return text if spec.cls in (list, tuple) else f"{spec.cls.__name__}({text})"


class _NamedTupleKind(ContainerKind):
    def take(self, x: Any) -> tuple[Sequence[Any], Any, Any]:
        return x, x._fields, None

    def build(self, spec: Structure, children: list[Any]) -> Any:
        cls: Any = spec.cls
        return cls._make(children)  # does not run a __new__ of the user's

    def step(self, keys: Any, i: int) -> str:
        return f".{keys[i]}"

    def show(self, spec: Structure, parts: list[str]) -> str:
        return _show_call(spec.cls, spec.keys, parts)


class _MappingKind(ContainerKind):
    """dict, its subclasses and every other Mapping."""

    def take(self, x: Any) -> tuple[Sequence[Any], Any, Any]:
        given = tuple(x)
        try:
            keys = tuple(sorted(given))
        except (TypeError, ValueError):
            keys = given  # of different types, or `<` is no plain yes or no for them
        is_default = isinstance(x, collections.defaultdict)
        factory = x.default_factory if is_default else None
        return [x[key] for key in keys], keys, (given, factory)

    def build(self, spec: Structure, children: list[Any]) -> Any:
        cls: Any = spec.cls
        given, factory = spec.recipe
        by_key = dict(zip(spec.keys, children, strict=True))
        items = {key: by_key[key] for key in given}
        if cls is dict:
            return items
        if issubclass(cls, collections.defaultdict):
            rebuilt = _construct(cls, factory, items)
            base: Any = functools.partial(collections.defaultdict, factory)
        else:
            rebuilt = _construct(cls, items)
            ordered = issubclass(cls, collections.OrderedDict)
            base = collections.OrderedDict if ordered else dict
        if type(rebuilt) is cls and rebuilt.keys() == items.keys():
            return rebuilt
        return base(items)

    def step(self, keys: Any, i: int) -> str:
        return f"[{keys[i]!r}]"

    def show(self, spec: Structure, parts: list[str]) -> str:
        items = (f"{k!r}: {part}" for k, part in zip(spec.keys, parts, strict=True))
        text = "{" + ", ".join(items) + "}"
        return text if spec.cls is dict else f"{spec.cls.__name__}({text})"

    def places(self, first: Structure, second: Structure) -> Sequence[int] | None:
        place = {key: i for i, key in enumerate(second.keys)}
        if place.keys() != set(first.keys):
            return None
        return [place[key] for key in first.keys]


class _DataclassKind(ContainerKind):
    """Instances of one dataclass; children are the fields that are set.

    `init=False` fields are children like the others, since an object is rebuilt
    without `__init__`, which might refuse (a gradient of None) or recompute them.
    """

    def __init__(self, cls: Any) -> None:
        from dataclasses import fields

        self.names = tuple(field.name for field in fields(cls))

    def take(self, x: Any) -> tuple[Sequence[Any], Any, Any]:
        names = self.names
        children = [getattr(x, name, _UNSET) for name in names]
        if any(child is _UNSET for child in children):
            names = tuple(name for name in names if hasattr(x, name))
            children = [getattr(x, name) for name in names]
        return children, names, None

    def build(self, spec: Structure, children: list[Any]) -> Any:
        x: Any = object.__new__(spec.cls)
        for name, child in zip(spec.keys, children, strict=True):
            object.__setattr__(x, name, child)  # frozen ones as well
        return x

    def step(self, keys: Any, i: int) -> str:
        return f".{keys[i]}"

    def show(self, spec: Structure, parts: list[str]) -> str:
        return _show_call(spec.cls, spec.keys, parts)


class _RegisteredKind(ContainerKind):
    """Instances of one class given to `register_structure`."""

    def __init__(
        self,
        flatten: Callable[[Any], tuple[Iterable[Any], Hashable]],
        unflatten: Callable[[Any, tuple[Any, ...]], Any],
    ) -> None:
        self.flatten = flatten
        self.unflatten = unflatten

    def take(self, x: Any) -> tuple[Sequence[Any], Any, Any]:
        result = self.flatten(x)
        name = type(x).__name__
        if type(result) is not tuple or len(result) != 2:
            raise TypeError(
                f"the flatten function registered for {name} has to return "
                f"(children, aux), got {shorten(repr(result))}"
            )
        children, aux = result
        try:
            hash(aux)
        except TypeError:
            raise TypeError(
                f"the flatten function registered for {name} returned an aux that is "
                f"not hashable: {shorten(repr(aux))}; what holds arrays or lists "
                "belongs among the children"
            ) from None
        return tuple(children), aux, None

    def build(self, spec: Structure, children: list[Any]) -> Any:
        return self.unflatten(spec.keys, tuple(children))

    def step(self, keys: Any, i: int) -> str:
        return f"<{i}>"

    def show(self, spec: Structure, parts: list[str]) -> str:
        aux = "" if spec.keys is None else f"[{spec.keys!r}]"
        return f"{spec.cls.__name__}{aux}({', '.join(parts)})"


def _show_call(cls: type, names: tuple[str, ...], parts: list[str]) -> str:
    fields = (f"{name}={part}" for name, part in zip(names, parts, strict=True))
    return f"{cls.__name__}({', '.join(fields)})"


def shorten(text: str, width: int = 72) -> str:
    """`text`, cut to `width` characters for an error message."""
    return text if len(text) <= width else text[: width - 4] + " ..."


def _construct(cls: Any, *args: Any) -> Any:
    """`cls(*args)`, or None if its constructor does not take these."""
    try:
        return cls(*args)
    except TypeError:
        return None


_UNSET = object()  # marks a dataclass field without a value
_SEQUENCE = _SequenceKind()
NAMED_TUPLE = _NamedTupleKind()
MAPPING = _MappingKind()
_NONE = _NoneKind()

LEAF = Structure(_LeafKind(), object, None, None, (), 1)
EMPTY = Structure(_NONE, NoneType, None, None, (), 0)

# ------------------------------------------------------------------ classes and kinds

_REGISTERED: dict[type, ContainerKind] = {}
KINDS: dict[type, ContainerKind] = {}  # the containers among the classes met
LEAF_TYPES: set[type] = set()  # the others
# A program that makes a namedtuple per call must not keep every one of them alive;
# weak keys would cost 0.3 us a look-up.
_MAX_CLASSES = 4096


def classify(cls: type) -> ContainerKind | None:
    """The kind of container `cls` is, None for a leaf; remembered for the next time."""
    if len(KINDS) + len(LEAF_TYPES) >= _MAX_CLASSES:
        KINDS.clear()
        LEAF_TYPES.clear()
    kind = find_kind(cls)
    if kind is None:
        LEAF_TYPES.add(cls)
    else:
        KINDS[cls] = kind
    return kind


def find_kind(cls: type) -> ContainerKind | None:
    """The kind of container `cls` is, None for a leaf; the first rule that fits."""
    if cls in _REGISTERED:
        return _REGISTERED[cls]
    if cls is NoneType:
        return _NONE
    if issubclass(cls, tuple) and hasattr(cls, "_fields") and hasattr(cls, "_make"):
        return NAMED_TUPLE
    if issubclass(cls, list | tuple):
        return _SEQUENCE
    if issubclass(cls, dict):
        return MAPPING
    if hasattr(cls, "__dataclass_fields__"):  # before Mapping: fields rebuild it
        return _DataclassKind(cls)
    if issubclass(cls, Mapping):
        return MAPPING
    return None


def register_structure(
    cls: type,
    flatten: Callable[[Any], tuple[Iterable[Any], Hashable]],
    unflatten: Callable[[Any, tuple[Any, ...]], Any],
) -> None:
    """Make instances of `cls` containers, everywhere structures are taken.

    `flatten(obj)` returns `(children, aux)`, where `aux` is hashable and says all the
    rest; `unflatten(aux, children)` makes the object again. That holds for `cls`
    itself: a subclass, which `unflatten` might not know how to make, is registered
    on its own. Registering again replaces the two functions.

    >>> from tapejit.base.tree import flatten, map, register_structure
    >>> class Interval:
    ...     def __init__(self, low, high, closed):
    ...         self.low, self.high, self.closed = low, high, closed
    >>> register_structure(
    ...     Interval,
    ...     lambda x: ((x.low, x.high), x.closed),
    ...     lambda closed, ends: Interval(*ends, closed),
    ... )
    >>> flatten([Interval(1, 2, closed=True), 3])
    ([1, 2, 3], [Interval[True](*, *), *])
    >>> map(lambda x: -x, Interval(1, 2, closed=True)).high
    -2
    """
    if not isinstance(cls, type):
        raise TypeError(f"register_structure takes a class, got {cls!r}")
    if cls.__module__ == "builtins":
        raise ValueError(f"{cls.__name__} is built in: it stays what it is")
    _REGISTERED[cls] = _RegisteredKind(flatten, unflatten)
    KINDS.pop(cls, None)
    LEAF_TYPES.discard(cls)
