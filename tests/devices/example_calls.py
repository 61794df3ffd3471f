"""What functions of the examples are called with, and what they give on the CPU.

Start reading at `calls_of`.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple
from unittest import mock

import numpy as np
from elsewhere import ROOT, load_module

import tapejit as tj
from devices.graphs import Array
from tapejit.ir import Graph
from tapejit.runtime.executable import Executable, executable_for
from tapejit.tracing import path

# Short forms. `gpu_training` trains on a device itself, and code of Numba's calls the
# function of `numba_mcmc`.
EXAMPLES: Final[Mapping[str, Callable[[ModuleType], Any]]] = {
    name.stem: lambda example: example.main(quick=True)
    for name in sorted(Path(ROOT, "examples").glob("*.py"))
    if name.stem not in ("quickstart", "gpu_training", "numba_mcmc")
} | {"quickstart": lambda example: example.train(epochs=1)}
COUNT = 2  # calls of each Graph: the second one has what the first has written


class ExampleCall(NamedTuple):
    """A call of a function: its Graph, what it was given, and what it gave."""

    graph: Graph
    arguments: list[Array]
    results: list[Array]


@cache
def calls_of(example: str) -> Sequence[ExampleCall]:
    """A call of each Graph that an example runs, which NumPy performs for it."""
    found: dict[Graph, list[ExampleCall]] = {}

    def noting(graph: Graph, *options: Any) -> Executable:
        executable = executable_for(graph, *options)
        run, calls = executable.run, found.setdefault(graph, [])

        def note(values: list[Any]) -> list[Any]:
            if len(calls) == COUNT:
                return run(values)
            given = [np.array(x) for x in values]
            results = run(values)
            copies = [np.array(x) for x in results]
            calls.append(ExampleCall(graph, given, copies))
            return results

        executable.run = note  # type: ignore[method-assign]
        return executable

    module = load_module(Path(ROOT, "examples", f"{example}.py"))
    with (
        tj.config.override(native=False, eager=False, debug=0),
        mock.patch.object(path, "executable_for", noting),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        EXAMPLES[example](module)
    return [calls[-1] for calls in found.values() if calls]
