"""Waiting for a lock whose owner may be waiting for us.

Tracing, and bodies that run as plain Python, run user code while they hold locks. If
that code waits for a thread which needs one of the locks, both would wait for ever.
`wait_for` looks at what the owner of a lock is doing: does it join this thread, or wait
for the future that this thread computes?

Start reading at `wait_for`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from threading import Thread, get_ident
from types import FrameType
from typing import Any, Final

from tapejit.base.errors import VariableError
from tapejit.base.origin import describe, is_internal, user_origin

LOOK: Final = 0.05  # seconds from one look at the owner to the next
# Looks in a row that find the owner at one instruction: then it counts as waiting. They
# take 0.8 seconds, more on a busy machine, where the owner may just get no time.
STUCK: Final = 16

_OWNER: Final = re.compile(r"owner=(\d+)")


def acquire(lock: Any, what: str) -> None:
    """Acquire a lock; an error if its owner waits for this thread.

    `what` this thread wants, in the words of a message.
    """
    if not lock.acquire(blocking=False):
        wait_for(lock, what)


def wait_for(lock: Any, what: str) -> None:
    """Acquire a lock that another thread holds; an error if that waits for this one."""
    while not lock.acquire(timeout=LOOK):
        waiting = _waiting_for_us(_owner(lock))
        if waiting is not None:
            raise VariableError(
                f"this thread has to wait {what}, at {describe(user_origin(2))}, until "
                "the function that runs in another thread ends; and that one waits for "
                f"this thread, at {_line(waiting)}",
                help="wait for the thread outside of the function",
            )


def acquired_unless_stuck(lock: Any) -> bool:
    """Acquire a lock; False if its owner waits for this thread, or for long."""
    seen: tuple[Any, ...] = ()
    looks = 0
    while not lock.acquire(timeout=LOOK):
        owner = _owner(lock)
        if _waiting_for_us(owner) is not None:
            return False
        frame = sys._current_frames().get(owner)
        now = (owner, id(frame), None if frame is None else frame.f_lasti)
        looks = looks + 1 if now == seen else 0
        if looks > STUCK:
            return False
        seen = now
    return True


def _owner(lock: Any) -> int:
    """The thread that holds an RLock, 0 if none does."""
    found = _OWNER.search(repr(lock))
    return int(found[1]) if found else 0


def _waiting_for_us(owner: int) -> FrameType | None:
    """The innermost frame of a thread that waits for this one, perhaps via others."""
    frames = sys._current_frames()
    us = get_ident()
    if owner == us or owner not in frames:
        return None
    items = _locals_named(frames[us], "concurrent.futures.thread", "self")
    computed = {id(item.future) for item in items if hasattr(item, "future")}
    asked, waiting = {us}, [owner]
    while waiting:
        thread = waiting.pop()
        if thread in asked or thread not in frames:
            continue
        asked.add(thread)
        for other in _joined(frames[thread]):
            if other == us:
                return frames[owner]
            waiting.append(other)
        if computed & _awaited(frames[thread]):
            return frames[owner]
    return None


def _joined(frame: FrameType) -> list[int]:
    """The threads that the code at a frame joins."""
    found = _locals_named(frame, "threading", "self", function="join")
    return [x.ident or 0 for x in found if isinstance(x, Thread)]


def _awaited(frame: FrameType) -> set[int]:
    """The ids of the futures that the code at a frame waits for."""
    base = "concurrent.futures._base"
    found = {id(x) for x in _locals_named(frame, base, "self")}
    for several in _locals_named(frame, base, "fs"):
        found.update(map(id, several))
    return found


def _locals_named(
    innermost: FrameType, module: str, name: str, function: str | None = None
) -> Iterator[Any]:
    """A local variable of each frame that runs a function of a module."""
    frame: FrameType | None = innermost
    while frame is not None:
        if frame.f_globals.get("__name__") == module and (
            function is None or frame.f_code.co_name == function
        ):
            value = frame.f_locals.get(name)
            if value is not None:
                yield value
        frame = frame.f_back


def _line(innermost: FrameType) -> str:
    """The user's line that a thread is at."""
    frame: FrameType | None = innermost
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if not is_internal[name] and name.partition(".")[0] not in _LIBRARY:
            return describe((frame.f_code, frame.f_lasti))
        frame = frame.f_back
    return "an unknown line"


_LIBRARY: Final = frozenset({"threading", "concurrent", "queue"})
