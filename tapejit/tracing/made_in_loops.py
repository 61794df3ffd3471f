"""Functions that are made anew for every call, as in

    for batch in data:
        tj.function(lambda x: x + 1)(batch)

Each is traced, called once and thrown away: slower than no function at all. They have
one code object, so that is where they are counted.

Start reading at `note_made`.
"""

from __future__ import annotations

from inspect import unwrap
from types import CodeType
from typing import Any
from weakref import WeakKeyDictionary, ref

from tapejit.base.origin import describe, short_location, user_origin, warn_user

MANY = 6  # in a row, none of which was called more than once


class FunctionsMade:
    """The functions of one code object: how many in a row were called once and dropped.

    `last` is the one before, `calls` are its calls if it is gone.
    """

    __slots__ = ("calls", "has_warned", "in_a_row", "last")

    def __init__(self) -> None:
        self.last: ref[Any] | None = None
        self.calls = 0
        self.in_a_row = 0
        self.has_warned = False

    def has_dropped_last(self) -> bool:
        """Whether the one before was called once and is gone."""
        return self.last is not None and self.last() is None and self.calls <= 1


_made: WeakKeyDictionary[CodeType, FunctionsMade] = WeakKeyDictionary()


def note_made(function: Any, cache: Any) -> None:
    """A function was traced for the first time; `cache` is what counts its calls."""
    code = getattr(unwrap(function), "__code__", None)  # of f in tj.grad(f)
    if code is None:
        return
    made = _made.setdefault(code, FunctionsMade())
    made.in_a_row = made.in_a_row + 1 if made.has_dropped_last() else 1
    made.last = ref(cache)
    cache.made = made
    if made.in_a_row < MANY or made.has_warned:
        return
    made.has_warned = True
    warn_user(
        f"{code.co_name}, of {short_location((code, 0))}, was made by tj.function and "
        f"traced {made.in_a_row} times in a row, each time for a single call, at "
        f"{describe(user_origin(2))}; tracing is slow: make the function once, outside "
        "of the loop, and call it there"
    )
