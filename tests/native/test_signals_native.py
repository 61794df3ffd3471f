"""Signals while native code runs: it ends soon, and nothing has happened.

The programs here call functions that would take hours: whether a signal ends them needs
no clock, only a limit for the whole process. Their code is compiled before the timer is
set, so the signal comes while native code runs.
"""

from __future__ import annotations

import signal
import textwrap
from pathlib import Path

import numpy as np
import pytest
from elsewhere import needs_fork, run_interpreter

from tapejit.base.types import TensorType
from tapejit.ir import OPS, Graph, param
from tapejit.runtime import compiled
from tapejit.runtime.signals import poll_address
from tapejit.targets.cpu.module import build
from tapejit.targets.cpu.target import CPU

PROLOGUE = """
import os, signal, sys, threading
# A job that a shell started in the background ignores Ctrl-C, and so do its children.
signal.signal(signal.SIGINT, signal.default_int_handler)
import numpy as np
import tapejit as tj
from tapejit.runtime.executable import executable_for

count = tj.Variable(0)
rng = np.random.default_rng(1)
x = rng.normal(size=2_000_000).astype("f4")
y = rng.normal(size=3_000_000).astype("f4")

def ready(f, *args):
    executable = executable_for(f.graph(*args))
    executable.prepare()
    return executable

def soon(number=signal.SIGINT, seconds=0.3):
    return threading.Timer(seconds, os.kill, (os.getpid(), number)).start()

def assert_ended_by(error, f, *args):
    try:
        f(*args)
    except error:
        return
    raise AssertionError("it went on to its end")

def sines(x, y):
    return tj.sum(tj.sin(x[:, None] * y[None, :]), axis=1)

@tj.function
def usual(x):
    count.assign_add(1)
    return tj.sum(tj.tanh(x) * x)

expected = usual(x).numpy()
"""

EPILOGUE = """
assert count.numpy() == 1, count
assert usual(x).numpy() == expected, "all is as before"
assert count.numpy() == 2
print("fine")
"""


def assert_fine(program: str, cache: Path, **environment: str) -> None:
    text = PROLOGUE + textwrap.dedent(program) + EPILOGUE
    environment |= {"TAPEJIT_NATIVE": "1", "TAPEJIT_CACHE_DIR": str(cache)}
    done = run_interpreter("-c", text, timeout=90, **environment)
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


INTERRUPTED = """
@tj.function
def endless(x, y):
    count.assign_add(100)
    return sines(x, y)

executable = ready(endless, x, y)
assert "poll" in executable.code.header["imports"]
for _ in range(2):
    soon()
    assert_ended_by(KeyboardInterrupt, endless, x, y)
"""


@pytest.mark.parametrize("threads", ["1", "2"])
def test_an_interrupt_ends_a_long_function(threads: str, cache: Path) -> None:
    assert_fine(INTERRUPTED, cache, TAPEJIT_NUM_THREADS=threads)


@pytest.mark.parametrize("pool", ["omp", "serial"])
def test_an_interrupt_ends_tasks_on_every_pool(pool: str, cache: Path) -> None:
    assert_fine(INTERRUPTED, cache, TAPEJIT_POOL=pool)


def test_what_tasks_have_taken_is_free_after_an_interrupt(cache: Path) -> None:
    """Products among rows: tasks take turns with some of the memory."""
    program = """
        def attend(q, k):
            return tj.nn.softmax(q @ tj.matrix_transpose(k)) @ k

        rows = y[: 8 * 32 * 10000].reshape(8, 10000, 32)
        few = rows[:, :512]
        thrice = lambda q: attend(attend(attend(q, rows), rows), rows)
        endless = tj.function(lambda q: tj.sum(thrice(q)))
        short = tj.function(attend)
        wanted = short(few, few).numpy()
        ready(endless, rows)
        for _ in range(3):
            soon()
            assert_ended_by(KeyboardInterrupt, endless, rows)
            assert (short(few, few).numpy() == wanted).all()
    """
    assert_fine(program, cache)


def test_an_interrupt_ends_a_single_row(cache: Path) -> None:
    """The outermost loop has few iterations, each of which takes for ever."""
    program = """
        @tj.function
        def endless(x, y):
            both = tj.sin(x[:, None] * y[None, :])
            return tj.sum(both), tj.max(both)

        ready(endless, x, y)
        soon()
        assert_ended_by(KeyboardInterrupt, endless, x, y)
    """
    assert_fine(program, cache)


def test_an_interrupt_ends_native_parts_of_a_function(cache: Path) -> None:
    program = """
        @tj.function
        def endless(x, y):
            count.assign_add(100)
            return tj.fft.fft(sines(x, y))

        executable = ready(endless, x, y)
        assert executable.split is not None
        soon()
        assert_ended_by(KeyboardInterrupt, endless, x, y)
    """
    assert_fine(program, cache)


def test_handlers_run_meanwhile_and_what_they_raise_is_raised(cache: Path) -> None:
    program = """
        endless = tj.function(sines)
        ready(endless, x, y)
        seen = []

        def handle(number, frame):
            seen.append(tj.sum(x[:9]).numpy())
            if len(seen) == 3:
                signal.setitimer(signal.ITIMER_REAL, 0)
                raise LookupError("the third")

        signal.signal(signal.SIGALRM, handle)
        signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)
        assert_ended_by(LookupError, endless, x, y)
        assert len(seen) == 3 and len(set(map(float, seen))) == 1, seen
    """
    assert_fine(program, cache)


@pytest.mark.parametrize("way", ["assign_add", "assign", "function"])
def test_what_a_handler_assigns_is_kept(way: str, cache: Path) -> None:
    """Also if the native call that it runs in the midst of writes the variable."""
    program = f"""
        total = tj.Variable(np.zeros(3, "f4"))
        more = tj.function(lambda: total.assign_add([100.0, 100.0, 100.0]))
        more()
        total.assign([0.0, 0.0, 0.0])
        few = x[:16_000]

        @tj.function
        def long(x, y):
            loss = tj.sum(tj.sin(x[:, None] * y[None, :]))
            total.assign_add(tj.ones(3) + 0 * loss)
            return loss

        for _ in range(3):
            long(few[:9], y[:9])
        ready(long, few, few)
        for _ in range(3):
            long(few, few)  # native, and long enough for a signal
        assert total.numpy().tolist() == [6.0] * 3, total
        seen = []

        def handle(number, frame):
            seen.append(total.numpy().tolist())
            if len(seen) == 2:
                signal.setitimer(signal.ITIMER_REAL, 0)
                if {way!r} == "function":
                    more()
                elif {way!r} == "assign":
                    total.assign(total + 100)
                else:
                    total.assign_add([100.0, 100.0, 100.0])

        signal.signal(signal.SIGALRM, handle)
        signal.setitimer(signal.ITIMER_REAL, 0.08, 0.08)
        calls = 0
        while len(seen) < 2:
            long(few, few)
            calls += 1
        long(few, few)
        assert total.numpy().tolist() == [107.0 + calls] * 3, (calls, total, seen)
    """
    assert_fine(program, cache)


def test_a_signal_leaves_other_threads_alone(cache: Path) -> None:
    """Python handles signals in its main thread; a call elsewhere goes on."""
    program = """
        long = tj.function(sines)
        x_small, y_small = x[:2000], y[:20000]
        ready(long, x_small, y_small)
        wanted = long(x_small, y_small).numpy()
        found = []

        def work():
            for _ in range(5):
                found.append(long(x_small, y_small).numpy())

        thread = threading.Thread(target=work)
        thread.start()
        try:
            os.kill(os.getpid(), signal.SIGINT)
            while thread.is_alive():
                thread.join(0.05)
            raise AssertionError("the main thread was not interrupted")
        except KeyboardInterrupt:
            thread.join()
        assert len(found) == 5
        assert all((each == wanted).all() for each in found)
    """
    assert_fine(program, cache)


@needs_fork
def test_a_forked_child_can_be_interrupted(cache: Path) -> None:
    """Also if the thread that forked was not the main one: it is in the child."""
    program = """
        endless = tj.function(sines)
        ready(endless, x, y)
        codes = []

        def fork():
            child = os.fork()
            if child == 0:
                soon()
                try:
                    endless(x, y)
                except KeyboardInterrupt:
                    os._exit(5)
                os._exit(6)
            codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

        fork()
        thread = threading.Thread(target=fork)
        thread.start()
        thread.join()
        assert codes == [5, 5], codes
    """
    assert_fine(program, cache)


def test_only_long_code_asks_for_signals() -> None:
    """A call of microseconds does not even look at the clock."""

    def imports_for(size: int) -> list[str]:
        x = param("x", TensorType(np.dtype("f4"), (size,)))
        graph = Graph("sines", (x,), (OPS["sin"](x),))
        code = compiled.compiled_code(graph, f"sines_{size}", None)
        return list(code.header["imports"])

    assert "poll" not in imports_for(1000)
    assert "poll" in imports_for(CPU.tuning.poll_instructions)


def test_signals_here_are_pythons_own() -> None:
    """Nothing of this replaces a handler."""
    before = signal.getsignal(signal.SIGINT)
    assert poll_address()
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("shape", [(4_000_000,), (4_000_000, 2), (2, 4_000_000)])
def test_operations_on_whole_arrays_can_be_left(shape: tuple[int, ...]) -> None:
    """Scans are not cut into tasks: their own loops ask, or they would go on."""
    x = param("x", TensorType(np.dtype("f4"), shape))
    axis = int(np.argmax(shape))
    scan = OPS["cumulative_sum"](x, axis=axis)
    built = build(Graph("scan", (x,), (scan,)), f"scan_{len(shape)}_{axis}")
    (kernel,) = [each for each in built.module.functions if "_k0" in each.name]
    leaving = kernel.definition().count("ret void")
    assert built.imports == ("poll",)
    assert leaving >= 2, "at the end, and before it"
