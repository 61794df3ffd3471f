"""What a function has traced, and finding the way a call takes through it.

A `Cache` maps keys to Specializations. A `Specialization` holds the paths of one key:
usually one, more if the body asked for values, because each answer may lead another
way. A call tries the Path taken last; a guard that does not hold says which answer it
met, and the Entry looks for a Path with that answer or has the body traced again, the
known answers replayed.

Start reading at `Specialization.run`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from threading import RLock
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tapejit.base.collector import begin_rest, end_rest
from tapejit.base.config import config
from tapejit.base.origin import Origin, describe, short_location, warn_user
from tapejit.base.waiting import acquired_unless_stuck
from tapejit.runtime.sentinels import MISS
from tapejit.tape.commits import in_order
from tapejit.tape.variable import Variable
from tapejit.tracing import report
from tapejit.tracing.native_call import spelled_entry
from tapejit.tracing.path import TracedPath, WrongPath
from tapejit.tracing.reachable import reached_variables
from tapejit.tracing.signature import FLOAT, Binder, Call, FastKey, is_float_part

if TYPE_CHECKING:
    from tapejit.tracing.function import Function
    from tapejit.tracing.made_in_loops import FunctionsMade

MAX_ENTRIES: Final = 128  # signatures kept per function
MAX_SHORT: Final = 1024  # shorter keys: with loose sizes a Specialization has many
MAX_RECENT: Final = 4  # native entries tried for a call: each takes 0.05 µs to miss
MAX_SPELLED: Final = 8  # ways to write a short call that have native entries
MAX_PATHS: Final = 16  # paths that one place in the body may open


class Locks:
    """Three for the whole process, renewed in a forked child.

    tracing          one trace at a time: tracing runs Python, which does not scale
    running_eagerly  bodies run as plain Python write variables one by one
    order            of Specializations; it is held for no user code
    """

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """In a child no thread is left that could release a lock held before."""
        self.tracing = RLock()
        self.running_eagerly = RLock()
        self.order = RLock()


LOCKS: Final = Locks()


class tracing:
    """Holds the lock for tracing; the garbage collector rests.

    A body that is traced in another thread may wait for this one. Then this one goes
    on without the lock: meanwhile the other traces nothing.
    """

    __slots__ = ("_lock",)

    def __enter__(self) -> None:
        lock = LOCKS.tracing
        is_ours = lock.acquire(blocking=False) or acquired_unless_stuck(lock)
        self._lock = lock if is_ours else None
        begin_rest()

    def __exit__(self, *exception: object) -> None:
        end_rest()
        if self._lock is not None:
            self._lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=LOCKS.renew)


class Cache:
    """What a function has traced.

    entries   key -> Entry, the one used last at the end
    shortcuts for usual calls: a shorter key -> Entry and Path taken last
    general   floats that are inputs, as (structure, leaf)
    floats    the leaves among them, which short calls take for inputs
    fixed     floats whose value the body asks for, which therefore stay in the key
    native    the native entry for calls written like the last one, if there is one
    recent    those of late, each with its Entry: calls of two kinds may come in turn
    made      functions of the same code, counted from the first trace on
    loose     sizes that are left out of keys, as structure -> (leaf, axis)
    """

    def __init__(self) -> None:
        self.made: FunctionsMade | None = None
        self.clear()

    def __del__(self) -> None:
        if self.made is not None:
            self.made.calls = self.calls

    def clear(self) -> None:
        """Forget everything."""
        self.entries: dict[Any, Specialization] = {}
        self.shortcuts: dict[Any, Shortcut] = {}
        self.general: set[Any] = set()
        self.floats: set[int] = set()
        self.fixed: set[Any] = set()
        self.loose: dict[Any, frozenset[tuple[int, int]]] = {}
        self.last: Specialization | None = None
        self.native: Callable[..., Any] | None = None
        self.recent: list[tuple[Callable[..., Any], Specialization]] = []
        self.traces = 0
        self.calls = 0
        self.traced_at: list[int] = []
        self.has_warned = False

    def keep(self, entry: Specialization) -> None:
        """Add a Specialization, dropping the one that has not been used for longest."""
        self.entries[entry.key] = entry
        self.forget_natives()
        while len(self.entries) > MAX_ENTRIES:
            del self.entries[next(iter(self.entries))]
            self.shortcuts.clear()

    def touch(self, entry: Specialization) -> None:
        """Make a Specialization the one used last."""
        with LOCKS.order:
            if self.entries.pop(entry.key, None) is not None:
                self.entries[entry.key] = entry
            self.last = entry
            self.native = None

    def forget_natives(self) -> None:
        """The next calls are found by their keys."""
        self.native = None
        self.recent = []

    def note_native(
        self, native: Callable[..., Any] | None, entry: Specialization
    ) -> None:
        """Begin the next call with this native entry of a Specialization."""
        if native is None:
            return
        self.native = native
        if all(native is not known for known, _ in self.recent):
            self.recent = [(native, entry), *self.recent[: MAX_RECENT - 1]]

    def run_recent(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What another native entry of late gives for a call; MISS if none fits."""
        for native, entry in self.recent:
            if native is not self.native:
                found = native(*args, **kwargs)
                if found is not MISS:
                    if entry is not self.last:
                        self.touch(entry)
                    self.native = native
                    return found
        return MISS

    def shortcut(self, short: FastKey) -> Shortcut | None:
        """Where a short call leads, if one like it came before."""
        found = self.shortcuts.get(short.key)
        if found is not None and found.entry is not self.last:
            self.touch(found.entry)
        return found

    def shorten(self, short: FastKey, call: Call) -> None:
        """Lead a short call to the Path that the same call has just taken.

        What it takes must be all inputs there are: no default is one. If some of them
        are floats of any value, the next short call takes these.
        """
        entry = self.entries.get(call.key)
        path = None if entry is None else entry.last
        if entry is None or path is None or path.has_variable_arguments:
            return
        taken = {at for at in path.takes if type(call.leaves[at]) is float}
        if any(call.key[1 + at] != (FLOAT,) for at in taken):
            return  # its value is part of the key
        if path.takes == tuple(short.places):
            if len(self.shortcuts) >= MAX_SHORT:
                self.shortcuts.clear()
            self.shortcuts[short.key] = Shortcut(entry, path)
        elif taken - self.floats:
            self.floats |= taken
            self.forget_natives()  # they may be of traces for one value

    def new_floats(self, call: Call) -> set[Any]:
        """The floats in which a call differs from an earlier one, if in nothing else.

        Such a float changes from call to call: it becomes an input.
        """
        for key in reversed(self.entries):
            if len(key) != len(call.key):
                continue
            changed = [
                (at, now, then)
                for at, (now, then) in enumerate(zip(call.key, key, strict=True))
                if now != then
            ]
            found = {(call.structure, at - 1) for at, _, _ in changed}
            if found & self.fixed or found <= self.general:
                continue
            pairs = [(now, then) for _, now, then in changed]
            if all(is_float_part(part) for pair in pairs for part in pair):
                return found
        return set()


class Shortcut:
    """Where a short call leads: the Path that one like it took, and its native entries.

    There is one for each way to write the call, by the number of positional arguments
    and the names.
    """

    __slots__ = ("_natives", "entry", "path")

    def __init__(self, entry: Specialization, path: TracedPath) -> None:
        self.entry = entry
        self.path = path
        self._natives: dict[Any, Callable[..., Any]] = {}

    def native(
        self,
        binder: Binder,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        short: FastKey,
    ) -> Callable[..., Any] | None:
        """As the path's, for calls that are written as this one, which is flat.

        It takes what is no input too, and misses if that has another value. So it
        needs no key.
        """
        spelling = (len(args), *kwargs)
        found = self._natives.get(spelling)
        if found is None and len(self._natives) < MAX_SPELLED:
            entry = self.path.native
            if entry is not None:
                leaves = binder.given_leaves(args, kwargs, short)
                made = spelled_entry(entry, len(args), tuple(kwargs), leaves, short)
                found = self._natives[spelling] = self.path.finished(made)
        return found


class Specialization:
    """The Paths for one key; `last` is the one taken last.

    `opened` counts the paths that each place of the body has led to; `is_eager` says
    that the body runs as plain Python, `reason` why, `written` which variables it is
    known to write.
    """

    __slots__ = ("is_eager", "key", "last", "opened", "paths", "reason", "written")

    def __init__(self, key: Any) -> None:
        self.key = key
        self.paths: list[TracedPath] = []
        self.last: TracedPath | None = None
        self.opened: dict[str, int] = {}
        self.is_eager = False
        self.reason: str | None = None
        self.written: tuple[Variable, ...] = ()

    def run(
        self,
        function: Function[..., Any],
        cache: Cache,
        call: Call,
        path: TracedPath | None = None,
        *,
        looks: bool = False,
    ) -> Any:
        """Take the path that fits, or make one; `path` has just been made for this.

        Who only `looks` gets the path, or None if the body would run as plain Python.
        """
        known: tuple[bool | int, ...] = ()
        place: Origin | None = None
        failed: list[TracedPath] = []
        while True:
            if path is None:
                if self.is_eager and looks:
                    return None
                if self.is_eager:
                    arguments = call.arguments(call.leaves)
                    return function.run_eagerly(*arguments, self.written)
                tried = len(self.paths)  # before it is searched: others may add to it
                path = self._path(call.leaves, known, failed)
            if path is None:
                with tracing():
                    if len(self.paths) != tried or self.is_eager:
                        continue  # another thread has traced meanwhile
                    path = self.trace(function, cache, call, known, place, looks=looks)
                if path is None:
                    continue
            try:
                if looks:  # find out whether this is it, and take it no further
                    path.check(inputs_of(path, call), call.leaves)
                    result: Any = path
                else:
                    result = path.run(inputs_of(path, call), call.leaves, call.foreign)
            except WrongPath as wrong:
                known = (*path.answers[: wrong.at], wrong.answer)
                place = path.places[wrong.at]
                failed.append(path)
                path = None
                continue
            if path is not self.last and path in self.paths:
                self.last = path
            return result

    def _path(
        self,
        leaves: Sequence[Any],
        known: tuple[Any, ...],
        failed: Sequence[TracedPath],
    ) -> TracedPath | None:
        """A path that fits these leaves and begins with these answers.

        What is asked of sizes depends on the sizes, so such a path may begin with
        another question: if there is no better one, its guards are tried.
        """
        path = self.last
        if path is not None and not known and not path.has_variable_arguments:
            return path
        left = [
            path
            for path in reversed(self.paths)
            if path not in failed and path.fits(leaves)
        ]
        fitting = [path for path in left if path.answers[: len(known)] == known]
        if not fitting and known:
            fitting = [path for path in left if path.adapts_sizes]
        return min(fitting, key=TracedPath.generality, default=None)

    def trace(
        self,
        function: Function[..., Any],
        cache: Cache,
        call: Call,
        known: tuple[bool | int, ...] = (),
        place: Origin | None = None,
        *,
        looks: bool = False,
    ) -> TracedPath | None:
        """Trace the body for a call; None if it takes too many ways to be traced."""
        if place is not None and self._is_too_branched(function, place):
            return None
        try:
            return self.add_trace(function, cache, call, known, place, looks=looks)
        except BaseException:  # an interrupt too ends the trace
            if place is not None:  # a body that raises is no way through it
                self.opened[short_location(place)] -= 1
            raise

    def add_trace(
        self,
        function: Function[..., Any],
        cache: Cache,
        call: Call,
        known: tuple[bool | int, ...] = (),
        place: Origin | None = None,
        *,
        looks: bool = False,
    ) -> TracedPath:
        """Trace the body for this call, without running what was found."""
        started = perf_counter()
        traced, takes = function.traced(call, known)
        cache.traces += 1
        if config.current().debug:
            seconds = perf_counter() - started
            report.report_trace(function, cache, call.key, place, traced, seconds)
        positions = _variable_positions(call.leaves)
        reached = None
        if positions and not traced.creates:
            # Made variables may belong to the one that was passed.
            others = [x for x in call.leaves if type(x) is not Variable]
            reached = reached_variables([*function._reaches(), *others])
        path = TracedPath(
            traced,
            takes,
            positions,
            function.compile,
            leaves=call.leaves,
            reached=reached,
        )
        if traced.needs is not None:
            what, origin = traced.needs
            where = f"({what}, at {describe(origin)})"
            reason = f"needs a value while it is traced {where}"
            self._give_up(reason, path)
            _warn_needs_value(function, reason)
        elif not traced.serves_once:
            self._add(path)
        if not looks:
            function.note_trace(cache, self, call, place)
        return path

    def _add(self, path: TracedPath) -> None:
        for other in self.paths:
            other.compare(path)
            path.compare(other)
        self.paths.append(path)
        self.last = path

    def _give_up(self, reason: str, *paths: TracedPath) -> None:
        """From now on the body runs as plain Python."""
        self.written = in_order([v for p in (*self.paths, *paths) for v in p.written])
        self.is_eager = True
        self.reason = reason
        self.paths.clear()
        self.last = None

    def _is_too_branched(self, function: Function[..., Any], place: Origin) -> bool:
        where = short_location(place)
        self.opened[where] = self.opened.get(where, 1) + 1
        if self.opened[where] <= MAX_PATHS:
            return False
        reason = f"takes more than {MAX_PATHS} different ways at {describe(place)}"
        self._give_up(reason)
        warn_user(
            f"{function.__name__} {reason}, so it now runs eagerly; write the "
            "choice with tj.where, or move it out of the function, and use sizes as "
            "they are: int(), range() and len() make a trace for one size"
        )
        return True


def inputs_of(path: TracedPath, call: Call) -> list[Any]:
    """The inputs of a path; floats that its key names by value may be among them."""
    if len(path.takes) == len(call.takes):
        return call.arrays.copy()
    known = dict(zip(call.takes, call.arrays, strict=True))
    return [
        known[at] if at in known else np.float64(call.leaves[at]) for at in path.takes
    ]


def _variable_positions(leaves: Sequence[Any]) -> dict[int, int]:
    """id of each variable among the arguments -> its first position."""
    found: dict[int, int] = {}
    for at, x in enumerate(leaves):
        if type(x) is Variable:
            found.setdefault(id(x), at)
    return found


def _warn_needs_value(function: Function[..., Any], reason: str) -> None:
    warn_user(
        f"{function.__name__} {reason}, so it runs eagerly from now on; return the "
        "value, show it with tj.print, check it with tj.debug, or do this outside the "
        "function"
    )
