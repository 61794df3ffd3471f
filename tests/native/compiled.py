"""Running a Graph as native code, and judging what comes out.

Start reading at `run_native`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from agreement import COMPOSED, assert_agrees

import tapejit as tj
from tapejit.ir import Graph, interpret
from tapejit.runtime.executable import Executable, executable_for

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
