"""Compiling in two threads: the same code as in one, and nothing left behind."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from elsewhere import run_interpreter
from limits import set_limits
from llvmlite import binding

import tapejit as tj
from tapejit.ir import Graph
from tapejit.runtime.compiled import whole_graph
from tapejit.targets.cpu import module
from tapejit.targets.cpu.machine import compile_thread, module_chunks
from tapejit.targets.cpu.machine.compile import with_registers
from tapejit.targets.cpu.machine.host import host_machine
from tapejit.targets.cpu.machine.module_chunks import Pieces
from tapejit.targets.cpu.module import build

from .compiled import needs_levels

THREAD = "tapejit compiler"


@pytest.fixture(autouse=True)
def with_native_code(tmp_path: Path) -> Iterator[None]:
    """For the process, and with nothing on disk."""
    before = tj.config.cache_dir
    tj.config.update(native=True, cache_dir=str(tmp_path))
    yield
    tj.config.update(native=False, cache_dir=before)


def network(x: Any, w: Any, v: Any) -> Any:
    """Products, long formulas with tables, constants, sums."""
    table = np.linspace(0, 1, 50).astype("f4")
    y = tj.tanh(x @ w) + tj.sin(1e5 * x[:, :50]) * table
    return tj.sum(tj.sort(y, axis=0) @ v, axis=1), tj.nn.softmax(y * tj.exp(y)), y.T @ y


ARGUMENTS = tuple(
    np.random.default_rng(3).normal(size=shape).astype("f4")
    for shape in [(40, 60), (60, 50), (50, 30)]
)


def graph_of(f: Any) -> Graph:
    found = whole_graph(tj.function(f).graph(*ARGUMENTS))
    assert found is not None
    return found


def plain(x: Any, w: Any, v: Any) -> Any:
    """The same without what NumPy has to do."""
    y = tj.tanh(x @ w) + tj.sin(1e5 * x[:, :50])
    return tj.sum(y @ v, axis=1), tj.nn.softmax(y * tj.exp(y)), y.T @ y


def test_the_generator_of_llvm_is_where_it_is_expected() -> None:
    """If not, a new llvmlite has moved it, and compiling has one thread only."""
    assert compile_thread.generator() is not None


def test_code_is_what_llvmlite_would_emit() -> None:
    text = str(build(graph_of(plain), "same").module)
    context = binding.create_context()
    ours = compile_thread.emit_code(with_registers(text, None, context), host_machine())
    assert ours == host_machine().emit_object(with_registers(text))


@needs_levels
def test_the_helper_makes_code_for_the_processor_of_who_asks() -> None:
    """An override of the setting is not known in its thread."""
    vector = "<8 x float>"
    text = f"""define {vector} @twice({vector} %x) {{
      %y = fadd {vector} %x, %x
      ret {vector} %y
    }}"""
    made = {}
    for level in ("x86-64-v3", "x86-64-v2"):
        with tj.config.override(cpu=level):
            made[level] = host_machine().emit_object(with_registers(text))
            with compile_thread.helping():
                compile_thread.begin()
                job = compile_thread.submit(text)
                if compile_thread.has_help():
                    assert job._is_over.wait(60)
                assert job.result() == made[level]
    assert len(set(made.values())) == 2


def test_there_is_help_inside_only() -> None:
    assert not compile_thread.has_help()
    with compile_thread.helping():
        assert not compile_thread.has_help()
        compile_thread.begin()
        assert compile_thread.has_help() == (compile_thread.cores() > 1)
        with compile_thread.helping():
            assert compile_thread.has_help() == (compile_thread.cores() > 1)
        assert compile_thread.has_help() == (compile_thread.cores() > 1)
    assert not compile_thread.has_help()
    assert THREAD not in {thread.name for thread in threading.enumerate()}


def test_who_needs_a_result_need_not_wait_for_the_helper() -> None:
    texts = [f"define i64 @f{at}() {{ ret i64 {at} }}" for at in range(20)]
    with compile_thread.helping():
        compile_thread.begin()
        jobs = [compile_thread.submit(text) for text in texts]
        for job in reversed(jobs):
            job.do()
        assert all(job.result()[:4] == b"\x7fELF" for job in jobs)
    late = compile_thread.submit(texts[0])
    assert late.result() == jobs[0].result()


def test_jobs_that_nobody_has_begun_can_still_be_done() -> None:
    with compile_thread.helping():
        compile_thread.begin()
        jobs = [
            compile_thread.submit(f"define i64 @f{at}() {{ ret i64 1 }}")
            for at in range(50)
        ]
    assert all(job.result() for job in jobs)


def test_an_error_reaches_who_wants_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> Any:
        raise MemoryError("no room for code")

    monkeypatch.setattr(compile_thread, "emit_code", fails)
    with compile_thread.helping():
        compile_thread.begin()
        job = compile_thread.submit("define i64 @one() { ret i64 1 }")
        with pytest.raises(MemoryError, match="no room for code"):
            job.result()


@pytest.mark.parametrize("size", [1, 2000, 10**9], ids=["all", "some", "none"])
def test_however_it_is_cut_it_does_the_same(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuts: list[int] = []
    submit = compile_thread.submit

    def counted(text: str) -> Any:
        cuts.append(len(text))
        return submit(text)

    tj.config.update(cache=False)
    try:
        whole = [x.numpy() for x in tj.function(network)(*ARGUMENTS)]
        set_limits(monkeypatch, module_chunk_characters=size)
        monkeypatch.setattr(module_chunks, "submit", counted)
        found = [x.numpy() for x in tj.function(lambda *xs: network(*xs))(*ARGUMENTS)]
    finally:
        tj.config.update(cache=True)
    for x, y in zip(found, whole, strict=True):
        assert x.tobytes() == y.tobytes()
    if size == 1 and compile_thread.cores() > 1:
        assert len(cuts) > 3


def test_the_pieces_do_not_depend_on_help(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code on disk is the same, whoever made it; only how it is cut differs."""
    graph = graph_of(plain)

    def functions(has_help: bool) -> tuple[str, ...]:
        made = Pieces()
        set_limits(monkeypatch, module_chunk_characters=3000 if has_help else 10**9)
        with compile_thread.helping():
            compile_thread.begin()
            built = build(graph, "cut", False, made.look)
            found = made.finish(built.module).object
        assert (len(found.sizes) > 1) == (has_help and compile_thread.cores() > 1)
        return found.undefined

    assert functions(True) == functions(False)


def test_an_interrupt_leaves_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(module_chunks, "joined", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tj.function(plain)(*ARGUMENTS)
    assert THREAD not in {thread.name for thread in threading.enumerate()}
    monkeypatch.undo()
    tj.config.update(native=True)
    assert len(tj.function(plain)(*ARGUMENTS)) == 3


def test_a_later_process_loads_all_pieces(tmp_path: Path) -> None:
    """It imports no LLVM, whatever the first one has cut."""
    program = """
import sys
import numpy as np
import tapejit as tj
from tapejit.runtime import store

w = tj.Variable(np.full((784, 300), 0.01, "f4"))
@tj.function
def step(x):
    with tj.GradientTape() as tape:
        loss = tj.mean(tj.tanh(x @ w) ** 2) + tj.sum(tj.nn.gelu(x @ x.T))
    w.assign_sub(0.1 * tape.gradient(loss, w))
    return loss
x = np.linspace(-1, 1, 128 * 784).reshape(128, 784).astype("f4")
for _ in range(3):
    loss = step(x)
print(loss.numpy().tobytes().hex(), "llvmlite.binding" in sys.modules)
"""
    environment = {"TAPEJIT_NATIVE": "1", "TAPEJIT_CACHE_DIR": str(tmp_path / "own")}
    first, second = (run_interpreter("-c", program, **environment) for _ in range(2))
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    (value, loads), (again, loads_again) = first.stdout.split(), second.stdout.split()
    assert (value, loads, loads_again) == (again, "True", "False")


def test_where_no_thread_can_be_started_there_is_no_help(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with compile_thread.helping():
        compile_thread.begin()
        assert not compile_thread.has_help()
        assert compile_thread.submit("define i64 @one() { ret i64 1 }").result()


@pytest.mark.parametrize("is_enabled", [True, False])
@pytest.mark.parametrize("fails", [True, False])
def test_the_garbage_collector_rests_while_code_is_made(
    is_enabled: bool, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Afterwards it is as it was, whatever happened."""
    seen = []
    build = module.build

    def watched(*args: Any, **kwargs: Any) -> Any:
        seen.append(gc.isenabled())
        if fails:
            raise KeyboardInterrupt
        return build(*args, **kwargs)

    monkeypatch.setattr(module, "build", watched)
    before = gc.isenabled()
    (gc.enable if is_enabled else gc.disable)()
    try:
        with tj.config.override(native=True, cache=False), suppress(KeyboardInterrupt):
            number = 3.0 + fails + 2 * is_enabled  # code that is not there yet
            tj.function(lambda x: tj.sin(x) * number)(np.ones(5))
        assert (seen, gc.isenabled()) == ([False], is_enabled)
    finally:
        (gc.enable if before else gc.disable)()
