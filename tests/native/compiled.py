"""Running a Graph as native code, and judging what comes out.

Start reading at `run_native`.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import pytest
from agreement import COMPOSED, assert_agrees
from limits import set_limits

import tapejit as tj
from tapejit.ir import Graph, interpret
from tapejit.runtime import executable
from tapejit.runtime.executable import Executable, executable_for
from tapejit.targets.cpu.target import CPU

Array = np.ndarray[Any, Any]


def compile_native(graph: Graph) -> Executable:
    """The Executable of a Graph as native code."""
    with tj.config.override(native=True):
        return executable_for(graph)


def run_native(graph: Graph, arrays: Sequence[Array]) -> list[Array]:
    """The outputs of a Graph as native code computes them."""
    return run(compile_native(graph), arrays)


def run(executable: Executable, arrays: Sequence[Array]) -> list[Array]:
    """The outputs for these arrays, given as functions give them: scalars bare."""
    with tj.config.override(native=True):
        found = executable.run([x if x.ndim else x[()] for x in arrays])
    return [np.asarray(out) for out in found]


def run_numpy(graph: Graph, arrays: Sequence[Array]) -> list[Array]:
    """The outputs as NumPy computes them."""
    with np.errstate(all="ignore"):
        return [np.asarray(out) for out in interpret(graph, *arrays)]


def assert_composed(
    got: Sequence[Array], expected: Sequence[Array], where: str
) -> None:
    """Equal types, and values that agree as two ways through a Graph do."""
    for at, (x, y) in enumerate(zip(got, expected, strict=True)):
        place = f"{where}, output {at}"
        assert x.dtype == y.dtype, f"{place}: {x.dtype} is not {y.dtype}"
        assert_agrees(COMPOSED, x, y, where=place)


def gradients(body: Callable[..., Any]) -> Callable[..., list[Any]]:
    """A program: what a body gives, and gradients by all of its arguments."""

    def program(*arrays: Any) -> list[Any]:
        with tj.GradientTape() as tape:
            tape.watch(list(arrays))
            y = body(*arrays)
            loss = tj.sum(tj.tanh(y))
        return [y, *tape.gradient(loss, list(arrays))]

    return program


# Bits


needs_levels = pytest.mark.skipif(
    platform.machine().lower() not in ("x86_64", "amd64"),
    reason="only x86-64 has these levels",
)


def assert_same_for_any_threads(bits: Callable[[], Any]) -> None:
    """What a computation gives does not depend on how many threads there are."""
    found = []
    for threads in (1, 2, 3):
        with tj.set_num_threads(threads):
            found.append(bits())
    assert found[0] == found[1] == found[2]


def assert_same_for_any_processor(bits: Callable[[], Any]) -> None:
    """Nor on the level of instructions it is compiled for (`needs_levels`)."""
    here = bits()
    for level in ("x86-64-v3", "x86-64-v2"):
        with tj.config.override(cpu=level):
            assert bits() == here, level


# Limits


WAYS_OF_TILES = ("kept", "computed again", "columns in tiles")


def limit_tiles(
    monkeypatch: pytest.MonkeyPatch,
    way: str,
    most_rows: int,
    most_rows_of_columns: int = CPU.numerics.column_tile_most_rows,
) -> None:
    """Small products get tiles of rows, and what several of them need is had one way.

    `way` is one of `WAYS_OF_TILES`: kept for all of them, or computed again by each,
    from whole rows or from tiles of columns.
    """
    set_limits(
        monkeypatch,
        row_tile_least_elements=1,
        row_tile_most_rows=most_rows,
        row_tile_recomputed_bytes=1 << 60 if way == "kept" else 1,
    )
    if way == "columns in tiles":
        set_limits(
            monkeypatch,
            column_tile_least_rows=1,
            column_tile_least_columns=1,
            column_tile_most_rows=most_rows_of_columns,
            column_tile_most_columns=32,
        )
    # An equal graph that is still there was compiled with other limits.
    monkeypatch.setattr(executable, "EXECUTABLES", WeakValueDictionary())
