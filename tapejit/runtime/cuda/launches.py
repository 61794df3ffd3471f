"""Launch lists: the kernels of a step in order, as one CUDA graph where that pays.

A graph has the addresses of memory in it, so there is one for each set of addresses. A
set is seen once before a graph is made of it, and few are kept: a step with other
addresses each time launches its kernels one by one.

Start reading at `LaunchList.run`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from tapejit.runtime.cuda.driver import Argument, Driver

MOST_SETS: Final = 8  # sets of addresses that are remembered, most with a graph


class InBuffer(NamedTuple):
    """So many bytes behind the beginning of a buffer, by its number."""

    buffer: int
    offset: int = 0


class Launch(NamedTuple):
    """A kernel, its size, and its arguments: places in memory, and numbers."""

    kernel: str
    blocks: int
    threads: int
    arguments: tuple[InBuffer | np.generic, ...]


class LaunchList:
    """A module's kernels, to be run in order on buffers."""

    def __init__(self, driver: Driver, module: int, launches: Sequence[Launch]) -> None:
        self.driver, self.module, self.launches = driver, module, tuple(launches)
        self.graphs: dict[tuple[int, ...], int | None] = {}  # the oldest first

    def run(self, addresses: Sequence[int], stream: int) -> None:
        """Put all of it on a stream; `addresses` are where the buffers are."""
        key = (stream, *addresses)
        if key not in self.graphs:
            if len(self.graphs) == MOST_SETS:
                self.forget(next(iter(self.graphs)))
            self.graphs[key] = None
            self.launch(addresses, stream)
            return
        graph = self.graphs.pop(key)
        if graph is None:
            self.driver.begin_graph(stream)
            try:
                self.launch(addresses, stream)
            except BaseException:
                self.driver.release(self.driver.end_graph(stream))
                raise
            graph = self.driver.end_graph(stream)
        self.graphs[key] = graph
        self.driver.launch_graph(graph, stream)

    def launch(self, addresses: Sequence[int], stream: int) -> None:
        """Launch each kernel."""
        for kernel, blocks, threads, arguments in self.launches:
            given: list[Argument] = [
                addresses[x.buffer] + x.offset if isinstance(x, InBuffer) else x
                for x in arguments
            ]
            self.driver.launch(self.module, kernel, blocks, threads, given, stream)

    def forget(self, key: tuple[int, ...]) -> None:
        """Give a graph back."""
        graph = self.graphs.pop(key)
        if graph is not None:
            self.driver.release(graph)
