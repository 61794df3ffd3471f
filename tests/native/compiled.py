"""Running a Graph as native code, and judging what comes out.

Start reading at `run_native`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from agreement import COMPOSED, EXACT, POWER, assert_agrees
from op_cases import CASES, special

import tapejit as tj
from tapejit.ir import Graph, interpret
from tapejit.runtime.executable import Executable, executable_for
from tapejit.types import DType

Array = np.ndarray[Any, Any]


# What is exact there because the reference is the very function of SciPy that NumPy
# arrays are given to. Native code has its own.
OF_SCIPY = {case.op for case in special.CASES if case.agreement == EXACT}


def class_of(op: str, dtype: DType) -> str:
    """By what native code is judged; it has its own special functions.

    Against SciPy's values in double precision those of narrower dtypes are a few ULP
    off; values in double precision are two ways to one result.
    """
    if op not in OF_SCIPY:
        return CASES[op][0].agreement
    return COMPOSED if dtype == np.float64 else POWER


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
