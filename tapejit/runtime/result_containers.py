"""The containers that a native entry makes for its results.

An entry knows tuples, lists, dicts and named tuples, nested in any way, and None. It
makes them one after the other, inner ones first, from a list of `ResultContainer`.
Results of other classes are put together by Python.

Start reading at `containers_of`.
"""

from __future__ import annotations

from collections import namedtuple
from itertools import count
from typing import Any, Final, NamedTuple

from tapejit.base.structure import EMPTY, LEAF, NAMED_TUPLE, Structure

PLAIN: Final = (tuple, list, dict)
KEYS: Final = (str, int)  # to hash and compare them runs no Python
_make: Any = namedtuple("_Sample", ()).__dict__["_make"]


class ResultContainer(NamedTuple):
    """A container to be made: its class, where its items are, the keys of a dict.

    Results are numbered from 0 on, containers behind them; None is None itself.
    """

    cls: type
    items: tuple[int | None, ...]
    keys: tuple[Any, ...] | None


def can_be_native(structure: Structure) -> bool:
    """Whether an entry can make containers of this structure.

    >>> from tapejit.base.tree import structure
    >>> can_be_native(structure((1.0, [2.0, {"a": None}])))
    True
    >>> from collections import OrderedDict
    >>> can_be_native(structure([OrderedDict(a=1.0)]))
    False
    """
    if structure is LEAF or structure is EMPTY:
        return True
    cls = structure.cls
    if cls is dict:
        is_known = all(type(key) in KEYS for key in structure.keys)
    else:
        is_known = cls in PLAIN or is_named_tuple(structure)
    return is_known and all(map(can_be_native, structure.children))


def is_named_tuple(structure: Structure) -> bool:
    """Whether it is a named tuple that is made as all of them are.

    `namedtuple` gives its classes a `_make` that allocates and fills; all have the same
    code. A class with its own may do anything.
    """
    if structure.kind is not NAMED_TUPLE:
        return False
    made_by = getattr(getattr(structure.cls, "_make", None), "__func__", None)
    fields = getattr(structure.cls, "_fields", ())
    is_whole = len(fields) == len(structure.children)
    return is_whole and getattr(made_by, "__code__", None) is _make.__func__.__code__


def containers_of(
    structure: Structure, results: int
) -> tuple[list[ResultContainer], int | None]:
    """The containers of a structure, inner ones first, and where the outermost is.

    The first one has the number `results`. Dicts have the order they were written in.

    >>> from tapejit.base.tree import structure
    >>> made, whole = containers_of(structure({"b": 1.0, "a": (2.0, None)}), 2)
    >>> for container in made:
    ...     print(*container)
    <class 'tuple'> (0, None) None
    <class 'dict'> (1, 2) ('b', 'a')
    >>> whole
    3
    """
    found: list[ResultContainer] = []
    leaves = count()

    def place_of(part: Structure) -> int | None:
        if part is LEAF:
            return next(leaves)
        if part is EMPTY:
            return None
        items = [place_of(child) for child in part.children]
        keys = None
        if part.cls is dict:
            keys, _ = part.recipe
            by_key = dict(zip(part.keys, items, strict=True))
            items = [by_key[key] for key in keys]
        found.append(ResultContainer(part.cls, tuple(items), keys))
        return results + len(found) - 1

    whole = place_of(structure)
    return found, whole
