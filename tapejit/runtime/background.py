"""Compiling while the function already runs.

A `Compilation` belongs to one Executable whose native code is to be made in a thread of
its own. The Executable asks it at each call: the first one starts the thread, and the
first one after the compiler has failed is told so by a warning, at the user's line.

The thread is a daemon: a program that ends does not wait for it (see `leave_quickly`).
A forked child has no such thread, so its first call starts one. A fork itself waits for
a compilation that is under way, as LLVM could not be used in the child otherwise: its
locks would stay held.

Start reading at `Compilation.attend`.
"""

from __future__ import annotations

import atexit
import contextvars
import ctypes
import os
import sys
import threading
import time
import warnings
from typing import TYPE_CHECKING

from tapejit.base.config import config
from tapejit.base.origin import is_internal

if TYPE_CHECKING:
    from tapejit.runtime.executable import Executable


class Compilation:
    """The making of one Executable's native code, in another thread.

    `thread` is the one that does it in this process, None before the first call;
    `error` is what the compiler raised.
    """

    __slots__ = ("_lock", "_process", "error", "thread")

    def __init__(self) -> None:
        self.thread: threading.Thread | None = None
        self.error: Exception | None = None
        self._process = 0
        self._lock = threading.Lock()

    def attend(self, executable: Executable) -> None:
        """Start it if it is not under way; warn if it has failed, once."""
        if self.error is not None:
            error, self.error = self.error, None
            executable.stay_interpreted()
            warn_user(
                f"{executable.given.name} could not be compiled and stays interpreted: "
                f"{type(error).__name__}: {error}"
            )
        elif self._process != os.getpid():
            self._start(executable)

    def _start(self, executable: Executable) -> None:
        if self._process:  # we are a child, and another thread may have had it
            self._lock = threading.Lock()
        with self._lock:
            if self._process == os.getpid():
                return
            self._process = os.getpid()
            context = contextvars.copy_context()  # for the settings of this call
            self.thread = threading.Thread(
                target=context.run,
                args=(self._work, executable),
                name=f"tapejit compiles {executable.given.name}",
                daemon=True,
            )
            self.thread.start()

    def _work(self, executable: Executable) -> None:
        begin = time.perf_counter()
        _working.add(threading.current_thread())
        try:
            executable.prepare(quietly=True)
        except Exception as error:  # whatever it is, the interpreter goes on
            self.error = error
            return
        finally:
            _working.discard(threading.current_thread())
        if config.current().debug:
            seconds = time.perf_counter() - begin
            sys.stderr.write(
                f"tapejit: {executable.given.name} runs as native code from now on, "
                f"after {1e3 * seconds:.1f} ms in the background\n"
            )


_working: set[threading.Thread] = set()


@atexit.register
def leave_quickly() -> None:
    """Let the process end although a thread is compiling.

    When a process ends, LLVM takes itself apart, and a thread that is inside of it
    makes the process crash. So the last thing that such a process does before that is
    to write out what is buffered and to go, with the status it was to have.
    """
    if not _working:
        return
    library = ctypes.CDLL(None)
    try:
        register, at_exit = library.on_exit, library.__cxa_atexit
    except AttributeError:  # not glibc: better late than broken
        for thread in [*_working]:
            thread.join()
        return
    nothing = ctypes.c_void_p(None)
    register(library._exit, nothing)  # called with the status
    at_exit(library.fflush, nothing, nothing)  # for all files; what is last comes first


def _forget_threads() -> None:
    _working.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)


def warn_user(message: str) -> None:
    """Warn at the user's line."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and is_internal[frame.f_globals.get("__name__", "")]:
        frame = frame.f_back
        level += 1
    warnings.warn(message, UserWarning, stacklevel=level)
