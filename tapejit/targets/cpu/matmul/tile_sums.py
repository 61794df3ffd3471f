"""Row and column sums of a register tile, taken while it goes to the epilogue.

The vectors of a row have totals of their own, which are registers while a tile goes
through. What becomes of them between tiles, and of what is added up along a row,
`Hooks.sums` knows.

Start reading at `ColumnSums`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tapejit.targets.cpu.llvm.ir import Value
from tapejit.targets.cpu.matmul.emitter import ZERO, Reader, Site, number
from tapejit.targets.cpu.matmul.tiling import Spot

Near = Callable[[Value, Value], Reader]


class ColumnSums:
    """The totals of a tile's columns: none, unless there are hooks for sums.

    They are one list, those of the first vector of a row first.
    """

    def __init__(self, site: Site, near: Near, lanes: Sequence[int]) -> None:
        self.site, self.near, self.lanes = site, near, lanes
        self.hooks = site.hooks.sums
        self.spots: list[Spot] = []
        if self.hooks is not None:
            self.spots = [self.spot(ZERO, at) for at in range(len(lanes))]

    def spot(self, row: Value, at: int) -> Spot:
        """Where a vector of a row is."""
        column = number(at * self.site.tiling.width)
        return self.near(row, column).spot(0, 0, "column", self.lanes[at])

    def begin(self) -> list[Value]:
        """The totals before the first row of the tile."""
        if self.hooks is None:
            return []
        found = [self.hooks.begin(self.site, spot) for spot in self.spots]
        return [total for some in found for total in some]

    def with_row(
        self, row: Value, totals: Sequence[Value], found: Sequence[Sequence[Value]]
    ) -> list[Value]:
        """The totals with what the epilogue has returned for each vector of a row."""
        if self.hooks is None:
            return []
        if self.hooks.group:
            group = self.hooks.group // self.site.tiling.width
            for at in range(0, len(found), group):
                spot = self.spot(row, at)
                self.hooks.along(self.site, spot, found[at : at + group])
        each = len(totals) // len(found)
        made: list[Value] = []
        for at, values in enumerate(found):
            before = totals[at * each : (at + 1) * each]
            made += self.hooks.add(self.site, before, values)
        return made

    def end(self, totals: Sequence[Value]) -> None:
        """The totals after the last row of the tile."""
        if self.hooks is None:
            return
        each = len(totals) // len(self.spots)
        for at, spot in enumerate(self.spots):
            some = totals[at * each : (at + 1) * each]
            self.hooks.end(self.site, spot, some)
