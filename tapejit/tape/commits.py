"""Several variables at once: locking them, reading them, giving them new values.

A call that writes variables holds their locks from reading to writing. Locks keep out
other threads. What runs in the same thread in the midst of a call, a finalizer or the
handler of a signal, gets in: `replace_all` notices, and the call is made once more.
Native code that is about to write over a value cannot notice at its end, when the value
is gone: `note_assigned` tells it to leave before.

Start reading at `held`, then `all_at_once` and `replace_all`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import chain, repeat
from operator import is_
from threading import local
from typing import Any

from tapejit.base.waiting import acquire


class Waits(local):
    """Whether this thread has waited for a value that was being written over."""

    has_waited = False


WAITS = Waits()


MIDST: list[Any] = []  # variables that were asked for while native code had them


def note_assigned(variables: Sequence[Any]) -> None:
    """These have new values: a native call in this thread that writes one is left."""
    if any(x is y and has_away(x) for x in variables for y in MIDST):
        from tapejit.runtime import signals

        signals.note_assigned()


def has_away(variable: Any) -> bool:
    """Whether native code has the value of a variable."""
    try:
        object.__getattribute__(variable, "_away")
    except AttributeError:
        return False
    return True


class Overtaken(Exception):
    """A variable that the call writes was assigned since the call has read it.

    By a finalizer or the handler of a signal that ran in the midst of the call: the
    lock of the variable keeps out other threads only.
    """


class held:
    """Holds several locks, and never waits for one while it holds another.

    A body that runs as plain Python takes the locks of variables as it meets them: it
    may hold one and wait for the next, because nobody else does.
    """

    __slots__ = ("_locks",)

    def __init__(self, locks: Sequence[Any]) -> None:
        self._locks = locks

    def __enter__(self) -> None:
        locks = self._locks
        while True:
            acquire(locks[0], "to write a variable")
            for at in range(1, len(locks)):
                if not locks[at].acquire(blocking=False):
                    break
            else:
                return
            for lock in locks[:at]:
                lock.release()
            acquire(locks[at], "to write a variable")  # with empty hands: try again
            locks[at].release()

    def __exit__(self, *exception: object) -> None:
        for lock in self._locks:
            lock.release()


def in_order(variables: Sequence[Any]) -> tuple[Any, ...]:
    """The variables in the order of creation: locked so, nobody waits for ever."""
    return tuple(sorted({id(v): v for v in variables}.values(), key=_serial))


def _serial(variable: Any) -> int:
    serial: int = variable._serial
    return serial


def all_at_once(get: Callable[[Any], Any], variables: Sequence[Any]) -> list[Any]:
    """Something of each variable, all between two commits.

    One call into C reads them, as one sets them. If it had to wait in the midst of it,
    for the end of a call that writes over a variable, those read before may be older.
    """
    outside = WAITS.has_waited
    while True:
        WAITS.has_waited = False
        found = list(map(get, variables))
        if not WAITS.has_waited:
            WAITS.has_waited = outside
            return found


def replace_all(
    variables: Sequence[Any], before: Sequence[Any], new: Sequence[Any]
) -> bool:
    """Give variables new values in one go; False if one does not hold `before`.

    One call into C, which makes no object, compares and sets: no other thread sees some
    of the values, and no finalizer and no handler of a signal comes in between.
    """
    left = iter(variables)
    found = map(getattr, variables, repeat("_tensor"))
    is_as_before = map(all, (map(is_, found, before),))
    # All variables if that gives True, else none.
    given = chain.from_iterable(map({True: left}.get, is_as_before, repeat(())))
    deque(map(setattr, given, repeat("_tensor"), new), maxlen=0)
    return next(left, None) is None
