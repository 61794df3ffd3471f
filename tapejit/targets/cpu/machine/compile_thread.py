"""A compile thread: LLVM works there while Python goes on here.

A `Job` is a module that is to become an object file. Inside of `helping()` there is a
thread that does jobs as they come; who needs the result of one that nobody has begun
does it himself. Outside, or where there is one processor only, everybody does.

llvmlite lets one thread at a time into LLVM. LLVM itself asks for less: threads must
not share a context, or a machine. So every Job has a context of its own, and the one
call that takes long goes past llvmlite's lock: `generator` opens the library that
llvmlite has loaded, for a function that llvmlite calls too. It is the only place that
reaches behind llvmlite's interface. Where that fails there is no thread, and the
function with the lock does the same.

Start reading at `helping`, then `Job`.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from tapejit.base.config import config
from tapejit.targets.cpu.machine.processor import cores
from tapejit.targets.cpu.target import CPU

_local = threading.local()
# Of the jobs, by id. Here the garbage collector does not find them: it would free some
# of them before their modules.
_contexts: dict[int, Any] = {}
_helper: Helper | None = None  # of who compiles, one at a time in the process


@contextmanager
def helping() -> Iterator[None]:
    """There is a helper inside, as soon as somebody calls `begin`.

    >>> with helping():
    ...     begin()
    ...     job = submit("define i64 @one() { ret i64 1 }")
    ...     job.result()[:4]
    b'\\x7fELF'
    """
    global _helper
    if _helper is not None:
        yield
        return
    _helper = Helper()
    try:
        yield
    finally:
        helper, _helper = _helper, None
        helper.end()


def begin() -> None:
    """Start the helper: something will have to be compiled.

    First it loads LLVM, which takes 40 ms.
    """
    if _helper is not None and cores() > 1:
        _helper.start()


def has_help() -> bool:
    """Whether jobs are done elsewhere meanwhile."""
    is_started = _helper is not None and _helper.thread is not None
    return is_started and generator() is not None


def submit(text: str) -> Job:
    """A Job for the text of a module; it begins at once if there is help."""
    job = Job(text)
    if _helper is not None and has_help():
        _helper.waiting.put(job)
        if not _helper.is_busy:
            time.sleep(CPU.tuning.helper_start_seconds)
    return job


class Helper:
    """The thread, and what waits for it."""

    def __init__(self) -> None:
        self.cpu = config.cpu  # an override of it is not known in other threads
        self.waiting: SimpleQueue[Job | None] = SimpleQueue()
        self.is_busy = False
        self.thread: threading.Thread | None = None

    def start(self) -> None:
        if self.cpu:  # it may be refused: not in a thread that nobody listens to
            machine_here(self.cpu)
        if self.thread is None:
            thread = threading.Thread(
                target=self.work,
                name="tapejit compiler",
                daemon=threading.current_thread().daemon,
            )
            with suppress(RuntimeError):  # at the end of a process none can be started
                thread.start()
                self.thread = thread

    def work(self) -> None:
        """One Job after the other."""
        if generator() is None:
            return
        machine_here(self.cpu)
        while (job := self.waiting.get()) is not None:
            self.is_busy = True
            job.do()
            self.is_busy = False

    def end(self) -> None:
        """Wait for the thread; jobs that it has not begun are left to others."""
        if self.thread is None:
            return
        with suppress(Empty):
            while True:
                self.waiting.get_nowait()
        self.waiting.put(None)
        self.thread.join()


class Job:
    """A module in a context of its own, to become an object file."""

    def __init__(self, text: str) -> None:
        from llvmlite import binding

        from tapejit.targets.cpu.machine.compile import with_registers

        self._cpu = config.cpu
        self._module: Any = None
        context = _contexts[id(self)] = binding.create_context()
        self._module = with_registers(text, machine_here(self._cpu), context)
        self._claim = threading.Lock()
        self._is_over = threading.Event()
        self._code = b""
        self._error: BaseException | None = None

    def do(self) -> None:
        """Make the object file, unless somebody has begun with it."""
        if not self._claim.acquire(blocking=False):
            return
        try:
            self._code = emit_code(self._module, machine_here(self._cpu))
        except BaseException as error:  # raised by `result`
            self._error = error
        finally:
            self._is_over.set()

    def result(self) -> bytes:
        """The object file."""
        self.do()
        self._is_over.wait()
        self.close()
        if self._error is not None:
            raise self._error
        return self._code

    def close(self) -> None:
        """Free what LLVM has of it: the module first."""
        if self._module is not None:
            self._module.close()
        context = _contexts.pop(id(self), None)
        if context is not None:
            context.close()

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self.close()


def machine_here(cpu: str) -> Any:
    """The machine that code for a processor is made by, as this thread has it."""
    from tapejit.targets.cpu.machine.host import host_machine
    from tapejit.targets.cpu.machine.objects import initialise

    if getattr(_local, "cpu", None) != cpu:
        initialise()
        with config.override(cpu=cpu):
            _local.machine, _local.cpu = host_machine(), cpu
    return _local.machine


def emit_code(module: Any, machine: Any) -> bytes:
    """The object file of a parsed module, as `machine.emit_object(module)` gives it."""
    emit = generator()
    if emit is None:
        return bytes(machine.emit_object(module))
    from llvmlite.binding import ffi

    with ffi.OutputString() as message:
        found = emit.generate(machine, module, 1, message)
        if not found:
            raise RuntimeError(str(message))
    try:
        return ctypes.string_at(emit.start(found), emit.size(found))
    finally:
        emit.dispose(found)


class CodeGenerator(NamedTuple):
    """LLVM's code generator, and what reads the memory that it gives.

    The others are short: they keep the GIL, for which threads wait longer than that.
    """

    generate: Any
    start: Any
    size: Any
    dispose: Any


@cache
def generator() -> CodeGenerator | None:
    """LLVM's functions, None if they are not where they are expected.

    >>> generator() is not None
    True
    """
    from tapejit.targets.cpu.machine.objects import initialise

    initialise()
    from llvmlite.binding import ffi

    try:
        path = ffi.lib._name
        found = [ctypes.CDLL(path).LLVMPY_TargetMachineEmitToMemory]
        for name in ("GetBufferStart", "GetBufferSize", "DisposeMemoryBuffer"):
            found.append(getattr(ctypes.PyDLL(path), f"LLVMPY_{name}"))
        for plain in found:
            locked = getattr(ffi.lib, plain.__name__)
            plain.argtypes, plain.restype = locked.argtypes, locked.restype
    except (AttributeError, OSError, TypeError):
        return None
    return CodeGenerator(*found)
