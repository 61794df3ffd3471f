"""Rests of Python's garbage collector.

A collection runs finalizers, in whatever thread and at whatever place it comes. While a
function is traced or compiled that is no good place: what a finalizer computes would
become part of the trace, and a module may be half imported. So the collector rests
until the last of those who asked for it is done.

Start reading at `resting`.
"""

from __future__ import annotations

import gc
import os
from threading import RLock, get_ident


class _Rests:
    """How often each thread has asked for a rest that is not over."""

    def __init__(self) -> None:
        self.lock = RLock()
        self.depths: dict[int, int] = {}
        self.was_enabled = False

    def begin(self) -> None:
        thread = get_ident()
        with self.lock:
            if not self.depths:
                self.was_enabled = gc.isenabled()
                gc.disable()
            self.depths[thread] = self.depths.get(thread, 0) + 1

    def end(self) -> None:
        thread = get_ident()
        with self.lock:
            self.depths[thread] -= 1
            if not self.depths[thread]:
                del self.depths[thread]
            if not self.depths and self.was_enabled:
                gc.enable()

    def keep_own(self) -> None:
        """In a forked child: the rests of other threads are over."""
        self.lock = RLock()
        thread = get_ident()
        was_resting = bool(self.depths)
        self.depths = {at: n for at, n in self.depths.items() if at == thread}
        if was_resting and not self.depths and self.was_enabled:
            gc.enable()


_rests = _Rests()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_rests.keep_own)


begin_rest = _rests.begin
end_rest = _rests.end


class resting:
    """Inside, no collection begins by itself, in any thread.

    >>> import gc
    >>> with resting():
    ...     gc.isenabled()
    False
    >>> gc.isenabled()
    True
    """

    __slots__ = ()

    def __enter__(self) -> None:
        begin_rest()

    def __exit__(self, *exception: object) -> None:
        end_rest()
