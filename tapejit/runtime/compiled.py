"""Native code for Graphs: compiled or taken from disk, loaded and called.

A `Code` is the machine code of one Graph with what it needs to be called: the types of
its arrays, how much working memory, the addresses of foreign functions. `code_for`
finds it on disk or makes it. A `Segment` is the part of a larger Graph that has such
code; the rest runs through NumPy. Code that reports a failure, or is called with
something it was not made for, leaves the work to NumPy, which raises the error that
eager code would.

Start reading at `code_for`, then `native_form`.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any
from weakref import ref

import numpy as np

from tapejit.base.config import config
from tapejit.base.types import TensorType
from tapejit.ir.graph import Graph
from tapejit.ir.interpret import Program
from tapejit.ir.node import LITERAL, Movement, Node, Op
from tapejit.ir.numerics import run_checked
from tapejit.ir.structural import require, start
from tapejit.loops.segments import Split, split
from tapejit.runtime.compile_progress import current, showing
from tapejit.runtime.memory_pool import empty
from tapejit.runtime.sentinels import TENSOR_CLASS

if TYPE_CHECKING:
    from tapejit.loops.kernels import LoopPlan

COMPILING = threading.RLock()  # one compilation at a time, in the whole process
KEPT_STEPS = 20_000  # of plans that are kept to be looked at, of 1.5 kB each
LONG_WORK = 300_000  # instructions of one lane that are worth releasing the GIL


def _renew_lock() -> None:
    global COMPILING
    COMPILING = threading.RLock()


if hasattr(os, "register_at_fork"):
    # A fork waits for whoever compiles: a child could not use an LLVM whose locks are
    # held by a thread that it does not have.
    os.register_at_fork(
        before=lambda: COMPILING.acquire(),
        after_in_parent=lambda: COMPILING.release(),
        after_in_child=_renew_lock,
    )


class Code:
    """Machine code for a Graph, in this process.

    `header` is what is stored beside the object; `seconds` says how long each stage of
    making it took, nothing if it came from disk.
    """

    def __init__(
        self,
        graph: Graph,
        header: Mapping[str, Any],
        loaded: Any,
        seconds: dict[str, float],
    ) -> None:
        self.graph = graph
        self.header = header
        self.loaded = loaded
        self.seconds = seconds
        self.plan: LoopPlan | None = None  # that it was made of, as long as it is kept
        self.imports = np.array(
            [address_of(name) for name in header["imports"]] or [0], np.uint64
        )

    def spec(self, **changes: Any) -> Any:
        """What a native entry has to know; `changes` replaces parts of it."""
        from tapejit.runtime.native_entry import EntrySpec

        header = self.header
        parts: dict[str, Any] = {
            "run": self.loaded.functions[header["symbol"]],
            "arguments": [tensor_type(x) for x in self.graph.inputs],
            "outputs": [tensor_type(x) for x in self.graph.outputs],
            "arena_bytes": header["arena"],
            "imports": self.imports.ctypes.data,
            "result": "values",
            "takes_scalars": True,
            "releases_gil": header["work"] > LONG_WORK,
            "keeps": (self.loaded, self.imports),
        }
        return EntrySpec(**{**parts, **changes})

    def callable(self) -> Callable[..., Any]:
        """A function of arrays that gives a list of them, or something else."""
        from tapejit.runtime.native_entry import make_entry

        spec = self.spec()
        return make_entry(spec, TENSOR_CLASS[0]) or SlowEntry(spec)


def code_for(graph: Graph, name: str, digest: str | None, checks: bool = False) -> Code:
    """The code of a Graph whose Nodes are all native; `digest` is its name on disk."""
    found = None if digest is None else stored_code(graph, digest)
    if found is None:
        found = compiled_code(graph, name, digest, checks)
    return found


def stored_code(graph: Graph, digest: str) -> Code | None:
    """Code that an earlier process has made."""
    from tapejit.runtime.store.store import current_store
    from tapejit.targets.cpu.machine.objects import ObjectError, load_object

    store, key = current_store(), key_for(digest)
    entry = store.get(key)
    if entry is None:
        return None
    try:
        return Code(graph, entry.header, load_object(entry.code, entry.header), {})
    except ObjectError:  # not what we would store
        store.drop(key)
        return None


def compiled_code(
    graph: Graph, name: str, digest: str | None, checks: bool = False
) -> Code:
    """New code, kept on disk if it has a name there.

    With `checks` it fails where a value is NaN or infinite.
    """
    from tapejit.runtime.store.store import current_store
    from tapejit.targets.cpu.machine.module_chunks import Pieces
    from tapejit.targets.cpu.machine.objects import ObjectError, load_object
    from tapejit.targets.cpu.module import build

    made: Any = None
    is_straight = config.host != "numba"
    if is_straight:
        compile_ahead()
    pieces = Pieces()
    begin = time.perf_counter()
    look = pieces.look if is_straight else None
    tell = current().step
    built = build(graph, name, checks, look, config.check, tell)
    seconds = {"build": time.perf_counter() - begin - pieces.spent}
    if is_straight:
        with suppress(ObjectError):  # objects of this system cannot be kept
            made = pieces.finish(built.module, tell)
    header: dict[str, Any] = {
        "name": graph.name,
        "symbol": built.symbol,
        "arena": built.arena_size,
        "imports": list(built.imports),
        "updates": built.plan.update_pairs(),
        "kernels": len(built.plan.kernels),
        "work": sum(kernel.work for kernel in built.plan.kernels),
    }
    if made is None:
        hosted = Hosted(built.module, built.symbol)
        return with_plan(Code(graph, header, hosted, seconds), built.plan)
    seconds.update(made.seconds)
    header.update(made.object.header)
    begin = time.perf_counter()
    loaded = load_object(made.object.code, header)
    seconds["load"] = time.perf_counter() - begin
    if digest is not None:
        current_store().put(key_for(digest), header, made.object.code)
    return with_plan(Code(graph, header, loaded, seconds), built.plan)


_with_plans: deque[tuple[ref[Code], int]] = deque()  # the oldest first, with Steps


def with_plan(code: Code, plan: LoopPlan) -> Code:
    """Code that knows its plan, for who asks what is inside of it.

    Plans that are old go when there are too many.
    """
    code.plan = plan
    _with_plans.append((ref(code), len(plan.paths)))
    count = sum(steps for code, steps in _with_plans if code() is not None)
    while count > KEPT_STEPS and len(_with_plans) > 1:
        oldest, steps = _with_plans.popleft()
        found = oldest()
        if found is not None:
            found.plan = None
            count -= steps
    return code


@contextmanager
def with_helper() -> Iterator[None]:
    """Compile inside with the help of another thread."""
    from tapejit.runtime.builtin_code import forget_begun
    from tapejit.targets.cpu.machine.compile_thread import helping

    with helping():
        try:
            yield
        finally:
            forget_begun()


def expect_to_compile() -> None:
    """Have LLVM loaded soon: probably it will be needed."""
    if config.host != "numba":
        from tapejit.targets.cpu.machine.compile_thread import begin

        begin()


def compile_ahead() -> None:
    """Begin with what any native code needs, if it is not on disk."""
    from tapejit.runtime import cpython_layout, signals, thread_pool
    from tapejit.runtime.builtin_code import begin_kept

    expect_to_compile()
    begin_kept("native entry", cpython_layout._entry_module)
    begin_kept("thread pool", thread_pool._thread_pool_module)
    begin_kept("polling", signals._poll_module)


class Hosted:
    """Code that a host has made for this process only; like a LoadedObject."""

    def __init__(self, module: Any, symbol: str) -> None:
        from tapejit.targets.cpu.machine.compile import with_registers
        from tapejit.targets.cpu.machine.numba_host import compile_module

        self.library = compile_module(str(with_registers(str(module))))
        code: Any = self.library.function(symbol, ctypes.c_int64, ctypes.c_void_p)
        self.functions = {symbol: ctypes.cast(code, ctypes.c_void_p).value}


def key_for(digest: str) -> str:
    """The name on disk of the code of a Graph with this digest."""
    from tapejit.runtime.store.key import cache_key

    return cache_key(digest, extras={})


def tensor_type(node: Node) -> TensorType:
    """The type of a Node that is known to be a tensor."""
    assert isinstance(node.type, TensorType)
    return node.type


def address_of(name: str) -> int:
    """Where a foreign function is."""
    from tapejit.runtime import signals, threads

    if name == "parallel":
        return threads.driver_address()
    assert name == "poll"
    return signals.poll_address()


# Parts of a Graph


def is_candidate(node: Node) -> bool:
    """Whether a Node can be part of native code in this process."""
    from tapejit.loops.native_ops import is_native
    from tapejit.targets.cpu.target import CPU

    return is_native(node, CPU.supports)


def whole_graph(graph: Graph) -> Graph | None:
    """The Graph without effects if all of it can be native code, else None.

    What keeps the order of failures is not needed: NumPy finds the first one again.
    """
    has_work = False
    for node in graph.nodes:
        if node.op is LITERAL or node.op is start:
            continue
        is_kept = node.op is require and is_candidate(node.inputs[0])
        if not is_kept and not is_candidate(node):
            return None
        has_work = True
    types = [x.type for x in (*graph.inputs, *graph.outputs)]
    if not has_work or not all(map(is_plain, types)):
        return None
    whole = Graph(graph.name, graph.inputs, graph.outputs)
    kept = set(whole.nodes)
    if any(x.op is require and x.inputs[0] not in kept for x in graph.nodes):
        return None  # it would be lost that something nobody reads can fail
    return whole


def is_plain(kind: Any) -> bool:
    """Whether an array of this type can be handed to native code."""
    return isinstance(kind, TensorType) and kind.is_static and 0 not in kind.shape


def native_form(graph: Graph, name: str, checks: bool = False) -> Split:
    """A Graph with everything that can be in native segments."""

    def make_op(segment: Graph, number: int) -> Op:
        digest = None if checks else segment.digest
        made = Segment(segment, f"{name}_{number}", digest, checks)
        return Op(
            "native",
            type_rule=_no_rule,
            eval=made,
            differentiable=False,
            moves=Movement.OTHER,
        )

    return split(graph, is_candidate, make_op)


def _no_rule(*types: Any) -> Any:
    raise AssertionError("a segment's Node is made with its type")


class Segment:
    """A part of a Graph, or all of it, as native code, made when it is called first.

    `digest` is its name on disk; with `checks` it fails where something is not finite.
    """

    def __init__(
        self,
        graph: Graph,
        name: str,
        digest: str | None,
        checks: bool = False,
        code: Code | None = None,
    ) -> None:
        self.graph = graph
        self.name = name
        self.digest = digest
        self.checks = checks
        self.code = code
        self._call = None if code is None else code.callable()

    def __call__(self, *arrays: Any) -> Any:
        found = self.called(arrays)
        if found is not None:
            return found
        program = self.graph.program
        return (run_checked if self.checks else Program.run)(program, list(arrays))

    def called(self, arrays: Sequence[Any]) -> list[Any] | None:
        """The results of native code, None if NumPy has to do it."""
        call = self._call or self.prepare()
        found = call(*arrays)
        if found.__class__ is list:
            return found
        # Strided or misaligned, perhaps: once more with arrays as they should be.
        whole = [np.array(x, order="C", subok=False) for x in arrays]
        found = call(*whole)
        return found if found.__class__ is list else None

    def prepare(self) -> Callable[..., Any]:
        """Compile or load the code, once."""
        with COMPILING, with_helper(), showing(self.graph.name):
            if self._call is None:
                self.code = code_for(self.graph, self.name, self.digest, self.checks)
                self._call = self.code.callable()
            return self._call


def segment_of(node: Node) -> Segment:
    """The Segment that a Node of a split Graph stands for."""
    made = node.op.eval
    assert isinstance(made, Segment)
    return made


class SlowEntry:
    """Calls compiled code by ctypes, where there are no native entries."""

    def __init__(self, spec: Any) -> None:
        self.spec = spec
        # Python's kind of function: after it ctypes looks whether an error is set.
        self._run = ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(spec.run)

    def __call__(self, *arrays: Any) -> Any:
        spec = self.spec
        whole = [np.ascontiguousarray(x) for x in arrays]
        outputs = [empty(x.shape, x.dtype) for x in spec.outputs]
        room = empty((max(spec.arena_bytes, 64) + 64,), np.dtype(np.uint8))
        arena = room[-room.ctypes.data % 64 :]
        pointers = [x.ctypes.data for x in (*whole, *outputs, arena)]
        table = np.array([*pointers, spec.imports], np.uint64)
        failure = self._run(table.ctypes.data)
        if failure:
            return None
        return [x if x.ndim else x[()] for x in outputs]
