"""Native functions called by several threads at once, after a fork, without memory.

Threads take turns as often as the interpreter lets them. Code that takes long runs
while others have the GIL, so calls of it really are in flight together: each has
working memory of its own.
"""

from __future__ import annotations

import os
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from elsewhere import in_threads, needs_fork, run_interpreter

import tapejit as tj
from tapejit.runtime import compiled as native
from tapejit.runtime.executable import executable_for

THREADS = 8


@pytest.fixture(autouse=True)
def with_native_code() -> Iterator[None]:
    """For the process; threads take turns quickly."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    tj.config.update(native=True)
    yield
    tj.config.update(native=False)
    sys.setswitchinterval(before)


@pytest.mark.parametrize(
    ("rows", "calls", "releases"),
    [(20, 2000, False), (2000, 300, True)],
    ids=["with the GIL", "without it"],
)
def test_calls_in_flight_do_not_disturb_each_other(
    rows: int, calls: int, releases: bool, full: bool
) -> None:
    """A cumulative sum keeps a whole array in working memory."""

    @tj.function
    def f(x: Any) -> Any:
        y = tj.cumulative_sum(tj.tanh(x), axis=0)
        return tj.sum(y * x, axis=0), y + tj.sin(x)

    rng = np.random.default_rng(4)
    arguments = [rng.normal(size=(rows, 8)).astype("f4") for _ in range(THREADS)]
    expected = [[out.numpy() for out in f(x)] for x in arguments]
    code = executable_for(f.graph(arguments[0])).code
    assert (code.header["work"] > native.LONG_WORK) == releases
    assert code.header["arena"] > rows * 8 * 4
    assert len({each[0].tobytes() for each in expected}) == THREADS

    def work(number: int) -> None:
        for _ in range(2000 if full else calls):
            for got, wanted in zip(f(arguments[number]), expected[number], strict=True):
                np.testing.assert_array_equal(got.numpy(), wanted)

    in_threads(THREADS, work)
    assert f.trace_count == 1


@pytest.mark.parametrize("rows", [4, 4000], ids=["short", "long"])
def test_no_update_of_a_variable_is_lost(rows: int) -> None:
    calls = 200
    count = tj.Variable(0)
    total = tj.Variable(np.zeros((rows, 8), "f8"))

    @tj.function
    def add(x: Any) -> Any:
        count.assign_add(1)
        total.assign_add(x)
        return tj.sum(tj.tanh(x))

    x = np.ones((rows, 8))
    add(x)
    in_threads(THREADS, lambda number: [add(x) for _ in range(calls)] and None)
    assert count.numpy() == THREADS * calls + 1
    np.testing.assert_array_equal(total.numpy(), THREADS * calls + 1)


def test_first_calls_at_once_trace_and_compile_once() -> None:
    compiled = []
    whole = native.compiled_code

    def counting(*args: Any) -> Any:
        compiled.append(args)
        return whole(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "compiled_code", counting)
        tj.config.update(cache=False)
        f = tj.function(lambda x: tj.sum(tj.tanh(x * 1.2345)))
        x = np.ones(9, "f4")
        in_threads(THREADS, lambda number: f(x).numpy())
        tj.config.update(cache=True)
    assert f.trace_count == 1
    assert len(compiled) == 1


@needs_fork
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_computes_and_compiles() -> None:
    """Also on threads: those of the parent are not there, so it starts its own."""

    def body(x: Any) -> Any:
        return tj.sum(tj.tanh(x) * x), tj.exp(x)

    x = np.random.default_rng(6).normal(size=200_000).astype("f4")
    f = tj.function(body)
    expected = [out.numpy() for out in f(x)]
    code = executable_for(f.graph(x)).code
    assert "parallel" in code.header["imports"]
    child = os.fork()
    if child == 0:
        status = 1
        try:
            again = [out.numpy() for out in f(x)]
            tj.config.update(cache=False)
            new = tj.function(lambda x: body(x * 1.5))(x / np.float32(1.5))
            same = all(map(np.array_equal, again, expected))
            close = np.allclose(new[1].numpy(), expected[1], rtol=1e-5)
            status = 0 if same and close else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert all(map(np.array_equal, [out.numpy() for out in f(x)], expected))


@needs_fork
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_while_another_thread_compiles_leaves_a_child_that_can() -> None:
    """The fork waits until LLVM is not in use."""
    under_way, go_on, done = (threading.Event() for _ in range(3))
    whole = native.compiled_code

    def slowly(*args: Any) -> Any:
        under_way.set()
        assert go_on.wait(60)
        made = whole(*args)
        done.set()
        return made

    tj.config.update(cache=False)
    f = tj.function(lambda x: tj.sum(tj.tanh(x * 2.3456)))
    g = tj.function(lambda x: tj.sum(tj.tanh(x * 3.4567)))
    x = np.ones(9, "f4")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "compiled_code", slowly)
        thread = threading.Thread(target=f, args=(x,))
        thread.start()
        assert under_way.wait(60)
        patch.setattr(native, "compiled_code", whole)

    go_on.set()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            near = np.isclose(float(g(x)), 9 * np.tanh(3.4567), rtol=1e-5)
            status = 0 if near and done.is_set() else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    thread.join(60)
    tj.config.update(cache=True)


# Memory

SCARCE = """
    import resource
    import numpy as np
    import tapejit as tj
    from tapejit.runtime.executable import executable_for

    count = tj.Variable(np.zeros(3, "f4"))

    @tj.function
    def output(x):
        count.assign_add(tj.ones(3))
        return x[:, None] * x[None, :]

    @tj.function
    def working(x):
        count.assign_add(tj.ones(3))
        return tj.sum(tj.cumulative_sum(x[:, None] * x[None, :], axis=0), axis=1)

    @tj.function
    def both(x):
        return x[:, None] * x[None, :]

    small, large = np.ones(100), np.ones(20_000)
    for f in (output, working, both):
        f(small)
        executable_for(f.graph(large)).prepare()
    arena = executable_for(working.graph(large)).code.header["arena"]
    assert arena >= 3_200_000_000, "the sums are in working memory"
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now + 1_000_000_000, most))
    for f, size in (
        (output, "2.98 GiB"),
        (working, "MiB of working memory"),
        (both, "2.98 GiB"),
    ):
        for _ in range(3):
            try:
                f(large)
            except MemoryError as error:
                assert size in str(error), error
            else:
                raise AssertionError("there cannot be so much memory")
    assert count.numpy().tolist() == [2.0] * 3, count
    assert float(tj.sum(output(small))) == 10_000
    assert float(tj.sum(both(small))) == 10_000
    print("fine")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits are Linux's")
def test_without_memory_there_is_an_error_with_sizes_and_nothing_changes(
    tmp_path: Path,
) -> None:
    done = run_interpreter(
        "-c",
        textwrap.dedent(SCARCE),
        TAPEJIT_NATIVE="1",
        TAPEJIT_CACHE_DIR=str(tmp_path),
    )
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr
