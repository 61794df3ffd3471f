"""Columns of a tile, added up while its rows are handed to the epilogue.

The vectors of a row have totals of their own, which are registers while a tile goes
through. What becomes of them between tiles, `Hooks.sums` knows.

Start reading at `ColumnSums`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tapejit.codegen.gemm import Spot
from tapejit.codegen.gemm_site import ZERO, Reader, Site, number

Near = Callable[[Any, Any], Reader]


class ColumnSums:
    """The totals of a tile's columns: none, unless there are hooks for sums.

    They are one list, those of the first vector of a row first.
    """

    def __init__(self, site: Site, near: Near, lanes: Sequence[int]) -> None:
        self.site = site
        self.hooks = site.hooks.sums
        self.spots: list[Spot] = []
        if self.hooks is not None:
            width = site.tiling.width
            self.spots = [
                near(ZERO, number(at * width)).spot(0, 0, "column", count)
                for at, count in enumerate(lanes)
            ]

    def begin(self) -> list[Any]:
        """The totals before the first row of the tile."""
        if self.hooks is None:
            return []
        found = [self.hooks.begin(self.site, spot) for spot in self.spots]
        return [total for some in found for total in some]

    def with_row(
        self, totals: Sequence[Any], found: Sequence[Sequence[Any]]
    ) -> list[Any]:
        """The totals with what the epilogue has returned for each vector of a row."""
        if self.hooks is None:
            return []
        made: list[Any] = []
        for values in found:
            before = totals[len(made) : len(made) + len(values)]
            made += self.hooks.add(self.site, before, values)
        return made

    def end(self, totals: Sequence[Any]) -> None:
        """The totals after the last row of the tile."""
        if self.hooks is None:
            return
        each = len(totals) // len(self.spots)
        for at, spot in enumerate(self.spots):
            some = totals[at * each : (at + 1) * each]
            self.hooks.end(self.site, spot, some)
