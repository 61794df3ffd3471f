"""What Replay knows of the compiler: from a Graph or a call to LLVM text.

The settings are those that users get, whatever the environment says, but for the
processor and the number of cores, which are given. Nothing is compiled here: a Graph is
optimised, its kernels are planned and emitted, and the text is what LLVM would parse.
A function that is called inside `tracing_calls` is traced and not run: its results are
zeros, and its Graphs are noted.

Start reading at `text_of`, then `tracing_calls`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, Final
from unittest import mock

import numpy as np

import tapejit as tj
from tapejit.base.config import Config
from tapejit.base.types import TensorType
from tapejit.ir import Graph
from tapejit.loops import steps
from tapejit.runtime.executable import Executable
from tapejit.runtime.executable_report import NativeInside, NativePart
from tapejit.tracing import path

THREADS: Final = 2
LEVELS: Final = {"v3": "x86-64-v3", "v4": "x86-64-v4"}


@contextmanager
def usual_settings(**changes: Any) -> Iterator[None]:
    """The defaults with native code, on a machine of so many cores as `THREADS`.

    Code on disk is not looked at: it may be of another compiler.
    """
    usual = vars(Config())
    fixed = {"native": True, "cache": False, "progress": False, "num_threads": THREADS}
    with (
        mock.patch.object(os, "sched_getaffinity", return_value=set(range(THREADS))),
        tj.config.override(**{**usual, **fixed, **changes}),
    ):
        yield


# Text


def text_of(graph: Graph, level: str) -> str:
    """The LLVM text of all native code of a Graph, "" if there is none.

    What a caller of the code has to know beside it is part of the text. It is that of
    a new process: functions of products are named by the numbers of Steps, which go on
    from one Graph to the next.
    """
    first = mock.patch.object(steps, "_numbers", count())
    with usual_settings(cpu=LEVELS[level]), first:
        return "\n".join(map(part_text, NativeInside(optimised(graph)).parts))


def part_text(part: NativePart) -> str:
    """One module, below what its caller has to know."""
    built = part.built
    updates = built.plan.update_pairs()
    return (
        f"; arena {built.arena_size}, imports {built.imports}, updates {updates}\n"
        f"{built.module}"
    )


def optimised(graph: Graph) -> Graph:
    """What the passes make of a Graph."""
    return Executable(graph).graph


# Calls


@contextmanager
def tracing_calls() -> Iterator[list[Graph]]:
    """Note the Graphs that calls of functions would run, in order, and give zeros."""
    found: list[Graph] = []

    def note(graph: Graph, *_: Any) -> Executable:
        return Noting(graph, found)

    with usual_settings(), mock.patch.object(path, "executable_for", note):
        yield found


class Noting(Executable):
    """An Executable that is never run: it notes its Graph and gives zeros."""

    def __init__(self, graph: Graph, found: list[Graph]) -> None:
        with tj.config.override(native=False):  # so there is nothing to wait for
            super().__init__(graph)
        self.found = found
        self.run = self.note

    def note(self, arguments: list[Any]) -> list[Any]:
        """What a call does."""
        if self.given not in self.found:
            self.found.append(self.given)
        return [zeros_of(out.type) for out in self.given.outputs]


def zeros_of(kind: Any) -> Any:
    """Zeros of a type; the system has such memory without writing it."""
    assert isinstance(kind, TensorType), f"a function has a result of type {kind}"
    assert kind.is_static, f"a function has a result of open size, {kind}"
    return np.zeros(tuple(map(int, kind.shape)), kind.dtype)[()]
