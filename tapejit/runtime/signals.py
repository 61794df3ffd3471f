"""Signals while native code runs: the function that its long loops call.

`poll_address` gives the address of `poll` (`tapejit.targets.cpu.call.signal_poll`),
with everything it needs in its words: who the main thread is, how long 50 ms are by the
processor's clock, where CPython's functions are. A forked child has another main
thread.

Start reading at `poll_address`.
"""

from __future__ import annotations

import ctypes
import os
import threading
from typing import Any, Final

from tapejit.base.blas import address_of
from tapejit.runtime.builtin_code import load_kept
from tapejit.runtime.thread_pool import ticks_per_microsecond
from tapejit.targets.cpu.call import signal_layout

PERIOD: Final = 50_000.0  # microseconds from one look to the next

_lock = threading.Lock()
_address = 0
_words: Any = None


def poll_address() -> int:
    """The address of `i64 poll(i8* arena)`; it holds for the rest of the process.

    >>> poll_address() == poll_address()
    True
    """
    global _address
    if not _address:
        with _lock:
            if not _address:
                _address = _load()
    return _address


def _load() -> int:
    global _words
    code = load_kept("polling", _poll_module)
    # Native code may call it until the process ends: never to be freed.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(code))
    place = ctypes.CFUNCTYPE(ctypes.c_void_p)(code.functions["words"])()
    words = (ctypes.c_int64 * signal_layout.WORDS).from_address(place)
    for at, name in (
        (signal_layout.GET_IDENT, "PyThread_get_thread_ident"),
        (signal_layout.ENSURE, "PyGILState_Ensure"),
        (signal_layout.CHECK_SIGNALS, "PyErr_CheckSignals"),
        (signal_layout.RELEASE, "PyGILState_Release"),
    ):
        words[at] = address_of(getattr(ctypes.pythonapi, name))
    clock = ctypes.CFUNCTYPE(ctypes.c_int64)(code.functions["clock"])
    words[signal_layout.PERIOD] = round(PERIOD * ticks_per_microsecond(clock))
    _words = words
    _note_main_thread()
    return int(code.functions[signal_layout.SYMBOL])


def note_assigned() -> None:
    """A handler has assigned a variable that the call in flight writes: it is left."""
    if _words is not None:
        _words[signal_layout.ASSIGNED] += 1


def _poll_module() -> Any:
    from tapejit.targets.cpu.call.signal_poll import poll_module

    return poll_module()


def _note_main_thread() -> None:
    _words[signal_layout.MAIN_THREAD] = threading.main_thread().ident or 0


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.Lock()  # another thread of the parent may have held it
    if _words is not None:
        _note_main_thread()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
