"""Compile the same modules with LLVM alone and with Numba, and compare.

Each module is a loop over vectors of float32 whose formula is a chain of functions.
Both hosts' results must have the same bits; then the times to compile it and to run it
over an array that stays in the cache are printed, the least of several each. What Numba
costs once per process (its import, its first function) is printed apart.

Run with:  python benchmarks/compare_hosts.py

Start reading at `compare`.
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tapejit.targets.cpu import vecmath
from tapejit.targets.cpu.machine.host import FORMATS, Library, aligned, loop_module
from tapejit.targets.cpu.machine.numba_host import NumbaLibrary, check_numba

WIDTH, VECTORS, REPEATS, RUNS = 8, 512, 5, 200
CHAINS: dict[str, tuple[str, ...]] = {
    "exp": ("exp",),
    "tanh, sin": ("tanh", "sin"),
    "8 functions": ("sin", "exp", "tanh", "log1p", "cos", "exp", "tanh", "expm1"),
    "24 functions": ("sin", "exp", "tanh", "log1p", "cos", "expm1") * 4,
}


def chain_module(names: tuple[str, ...]) -> Any:
    """A loop that applies the functions one after the other."""

    def formula(b: Any, x: Any) -> Any:
        for name in names:
            x = vecmath.UNARY[name](b, x)
        return x

    return loop_module(formula, 1, FORMATS[np.dtype(np.float32)], WIDTH)


def least(measure: Callable[[], float], times: int) -> float:
    return min(measure() for _ in range(times))


def compile_seconds(host: Any, module: Any) -> float:
    start = time.perf_counter()
    host(module).function("run", None)
    return time.perf_counter() - start


def measured(host: Any, module: Any, x: Any) -> tuple[Any, float, float]:
    """What a host's code computes, the seconds to compile it and to run it once."""
    run = host(module).function(
        "run", None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64
    )
    out = aligned(x.size, x.dtype)
    places = x.ctypes.data, out.ctypes.data

    def run_seconds() -> float:
        start = time.perf_counter()
        run(*places, VECTORS)
        return time.perf_counter() - start

    run_seconds()
    seconds = least(run_seconds, RUNS)
    return out, least(lambda: compile_seconds(host, module), REPEATS), seconds


def compare() -> None:
    """Print the table; AssertionError if the hosts' results differ."""
    start = time.perf_counter()
    import numba

    imported = time.perf_counter()
    check_numba()
    checked = time.perf_counter()
    print(f"Numba {numba.__version__}, once per process:")
    print(
        f"  import {imported - start:.2f} s, first function {checked - imported:.2f} s"
    )
    print()
    print("                compile, ms              run, us")
    print("module          LLVM   Numba   ratio     LLVM   Numba")
    x = aligned(WIDTH * VECTORS, np.float32)
    x[:] = np.linspace(-1, 1, x.size)
    for name, names in CHAINS.items():
        module = chain_module(names)
        one, compile_one, run_one = measured(Library, module, x)
        other, compile_other, run_other = measured(NumbaLibrary, module, x)
        assert one.tobytes() == other.tobytes(), f"{name}: the hosts' bits differ"
        print(
            f"{name:14}{1e3 * compile_one:6.0f}  {1e3 * compile_other:6.0f}  "
            f"{compile_other / compile_one:6.1f}  "
            f"{1e6 * run_one:7.1f} {1e6 * run_other:7.1f}"
        )


if __name__ == "__main__":
    compare()
