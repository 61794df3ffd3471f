"""Compiling in the background: interpreted first, native later, the same results.

What happens when is decided by the tests: they hold the lock of compilations until they
have seen what they want to see, then wait for the thread to end.
"""

from __future__ import annotations

import os
import subprocess
import textwrap
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agreement import COMPOSED, assert_agrees
from elsewhere import needs_fork, run_interpreter

import tapejit as tj
from tapejit.base.errors import ArgumentError
from tapejit.runtime import compiled
from tapejit.runtime.executable import Executable, executable_for


@pytest.fixture(autouse=True)
def with_native_code() -> Iterator[None]:
    """For the process, as users have it: a block would keep entries from being used."""
    tj.config.update(native=True)
    yield
    tj.config.update(native=False)


def executable_of(function: Any, *args: Any) -> Executable:
    return executable_for(function.graph(*args), None, "background")


def finish(executable: Executable) -> None:
    """Wait until the compiler has ended."""
    assert executable.compilation is not None
    thread = executable.compilation.thread
    assert thread is not None
    thread.join(60)
    assert not thread.is_alive()


def unique(factor: float) -> Callable[..., Any]:
    """A function whose Graph no other test has."""
    return lambda x: tj.sum(tj.tanh(x * factor) * x, axis=1)


def test_calls_are_interpreted_until_the_code_is_ready() -> None:
    function = tj.function(compile="background")(unique(1.01))
    x = np.linspace(-1, 1, 60, dtype="f4").reshape(5, 12)
    with compiled.COMPILING:
        first = [function(x).numpy() for _ in range(3)]
        executable = executable_of(function, x)
        assert executable.is_waiting
        assert executable.code is None
    finish(executable)
    assert not executable.is_waiting
    assert executable.code is not None
    later = [function(x).numpy() for _ in range(3)]
    assert function._cache.native is not None, "the native entry is in use"
    for got in later:
        assert_agrees(COMPOSED, got, first[0])
    assert all(got.tobytes() == first[0].tobytes() for got in first)
    assert function.trace_count == 1


def test_one_thread_compiles_however_many_call() -> None:
    function = tj.function(compile="background")(unique(1.02))
    x = np.ones((3, 4), "f4")
    with compiled.COMPILING:
        threads = [threading.Thread(target=function, args=(x,)) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        names = [thread.name for thread in threading.enumerate()]
        executable = executable_of(function, x)
        name = f"tapejit compiles {executable.given.name}"
        assert names.count(name) == 1
    finish(executable)
    assert executable.code is not None


def test_variables_are_updated_once_per_call_across_the_switch() -> None:
    count = tj.Variable(0)

    @tj.function(compile="background")
    def step(x: Any) -> Any:
        count.assign_add(1)
        return tj.sum(x * 1.03)

    x = np.ones(5, "f4")
    with compiled.COMPILING:
        for _ in range(4):
            step(x)
        executable = executable_of(step, x)
    finish(executable)
    for _ in range(4):
        step(x)
    assert count.numpy() == 8


def test_parts_are_all_compiled_before_the_switch() -> None:
    """Where NumPy performs an operation in between, no call has to wait for a part."""

    @tj.function(compile="background")
    def mixed(x: Any) -> Any:
        y = tj.tanh(x * 1.04)
        z = tj.real(tj.fft.ifft(tj.fft.fft(y)))
        return tj.exp(z.astype("float32"))

    x = np.linspace(0, 1, 8, dtype="f4")
    first = mixed(x).numpy()
    executable = executable_of(mixed, x)
    finish(executable)
    assert executable.split is not None
    segments: list[Any] = [node.op.eval for node in executable.split.segments]
    assert len(segments) >= 2
    assert all(segment.code is not None for segment in segments)
    assert_agrees(COMPOSED, mixed(x).numpy(), first)


def test_an_error_has_the_users_line_before_and_after_the_switch() -> None:
    @tj.function(compile="background")
    def pick(x: Any, at: Any) -> Any:
        return tj.take(x * 1.05, at)

    x, beyond = np.ones(4, "f4"), np.array([1, 7])
    texts = []
    with compiled.COMPILING:
        with pytest.raises(tj.OutOfRangeError) as raised:
            pick(x, beyond)
        texts.append(str(raised.value))
        executable = executable_of(pick, x, beyond)
    finish(executable)
    with pytest.raises(tj.OutOfRangeError) as raised:
        pick(x, beyond)
    texts.append(str(raised.value))
    assert texts[0] == texts[1]
    assert "test_background.py" in texts[0]


def test_a_failing_compiler_warns_once_and_the_function_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*args: Any) -> Any:
        raise RuntimeError("no registers left")

    monkeypatch.setattr(compiled, "code_for", fail)
    function = tj.function(compile="background")(unique(1.06))
    x = np.ones((2, 3), "f4")
    first = function(x).numpy()
    executable = executable_of(function, x)
    finish(executable)
    with pytest.warns(UserWarning, match="no registers left") as warned:
        again = function(x).numpy()
    assert warned[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        third = function(x).numpy()
    assert first.tobytes() == again.tobytes() == third.tobytes()
    assert executable.code is None
    assert not executable.is_waiting


def test_the_setting_is_the_default_and_the_argument_wins() -> None:
    x = np.ones((2, 3), "f4")
    with tj.config.override(compile="background"):
        waits = tj.function(unique(1.07))
        at_once = tj.function(compile="now")(unique(1.08))
        with compiled.COMPILING:
            waits(x)
            assert executable_of(waits, x).is_waiting
        finish(executable_of(waits, x))
        at_once(x)
        assert executable_for(at_once.graph(x), None, "now").code is not None
    with pytest.raises(ArgumentError, match="'now' or in the 'background'"):
        tj.function(compile="later")  # type: ignore[call-overload]  # what is tested


def test_settings_of_the_call_hold_for_the_thread() -> None:
    """Those that a block overrides: another thread does not see them by itself."""
    with tj.config.override(cache=False, compile="background"):
        function = tj.function(unique(1.09))
        x = np.ones((2, 3), "f4")
        function(x)
        executable = executable_of(function, x)
        finish(executable)
    key = compiled.key_for(executable.given.digest)
    from tapejit.runtime.store.store import current_store

    assert executable.code is not None
    assert current_store().get(key) is None, "nothing was to be kept"


def test_without_native_code_nothing_is_compiled() -> None:
    tj.config.update(native=False)
    function = tj.function(compile="background")(unique(1.1))
    x = np.ones((2, 3), "f4")
    function(x)
    executable = executable_of(function, x)
    assert executable.compilation is None
    assert not executable.is_waiting


# Processes


@needs_fork
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_compiles_by_itself() -> None:
    function = tj.function(compile="background")(unique(1.11))
    x = np.ones((2, 3), "f4")
    with compiled.COMPILING:  # the thread waits, and is not there in the child
        first = function(x).numpy()
        executable = executable_of(function, x)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                function(x)
                finish(executable)
                got = function(x).numpy()
                is_native = executable.code is not None
                status = 0 if is_native and np.allclose(got, first) else 2
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finish(executable)
    assert executable.code is not None


LEAVES = """
    import atexit, sys
    import numpy as np
    import tapejit as tj
    from tapejit.targets.cpu.machine import compile_thread

    inside = __import__("threading").Event()
    emit = compile_thread.emit_code

    def told(*args):
        inside.set()
        return emit(*args)

    compile_thread.emit_code = told

    @tj.function(compile="background")
    def f(x):
        for at in range(40):
            x = tj.sin(x) * x + tj.sum(x * at)
        return x

    f(np.ones(1000, "f4"))
    assert inside.wait(60)
    atexit.register(print, "left")
    sys.exit(7)
"""


def run_program(text: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return run_interpreter(
        "-c", textwrap.dedent(text), TAPEJIT_NATIVE="1", **environment
    )


def test_a_process_may_end_while_llvm_is_at_work() -> None:
    """LLVM takes itself apart at the end of a process, while the thread is inside."""
    for _ in range(2):
        done = run_program(LEAVES, TAPEJIT_CACHE="0")
        assert (done.returncode, done.stderr) == (7, "")
        assert done.stdout == "left\n"


def test_the_switch_is_reported(tmp_path: Path) -> None:
    program = """
        import numpy as np
        import tapejit as tj
        from tapejit.runtime.executable import executable_for

        f = tj.function(lambda x: tj.sum(tj.sin(x)))
        x = np.ones(10, "f4")
        f(x)
        executable_for(f.graph(x)).compilation.thread.join()
    """
    done = run_program(
        program,
        TAPEJIT_COMPILE="background",
        TAPEJIT_DEBUG="1",
        TAPEJIT_CACHE_DIR=str(tmp_path),
    )
    assert done.returncode == 0, done.stderr
    assert "runs as native code from now on" in done.stderr
