"""Races: two threads look at the same memory, one of them writes, nothing orders them.

What comes in is the log of all accesses of a block: where, by which thread, at which
site of the kernel, after how many barriers of its block (`epoch`) and of its warp
(`warp_epoch`). A barrier of the block orders what its threads do before and after it,
one of a warp what the threads of the warp do. Nothing orders the blocks of a launch.
Atomic updates do not race with each other.

Accesses are cut in units that each is at or is not, and become numbers that are sorted:
by unit, epoch, warp, epoch of the warp, thread, and whether they write.

Start reading at `RaceFinder`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from tapejit.runtime.cuda.scheduler import WARP
from tapejit.runtime.cuda.threads import StopSite

Array = np.ndarray[Any, Any]
Range = tuple[int, int]  # the first address, and the first behind

ACCESS: Final = np.dtype(
    [
        ("address", "i8"),
        ("thread", "i4"),
        ("site", "i4"),
        ("epoch", "i4"),
        ("warp_epoch", "i4"),
    ]
)
WRITES, PLAIN = 1, 2  # of an access; what is not plain is atomic


class Race(NamedTuple):
    """Two accesses to an address: their sites in the kernel, and who they are of.

    `actors` are threads of a block, or blocks where `block` is None.
    """

    address: int
    sites: tuple[int, int]
    actors: tuple[int, int]
    block: int | None = None


class RaceFinder:
    """Looks for races in a launch; each block has its own of what is `shared`.

    `alive` is all memory at which the launch may look, ascending. Units are numbered
    from its beginning, as if no other memory were between.
    """

    def __init__(
        self,
        sites: Sequence[StopSite],
        kernel: str,
        alive: Array,
        shared: Sequence[Range],
    ) -> None:
        sizes = [x.size for x in sites if x.size and x.kernel == kernel]
        self.unit = int(np.gcd.reduce(sizes or [1]))
        self.sizes = np.array([x.size for x in sites])
        self.flags = np.array([x.writes + PLAIN * (not x.is_atomic) for x in sites])
        starts, ends = alive.T
        self.starts = starts // self.unit
        counts = -(-ends // self.unit) - self.starts
        self.gaps = self.starts - (np.cumsum(counts) - counts)
        self.is_shared = np.isin(starts, [start for start, _ in shared])
        self.blocks: list[Array] = []  # units and sites of each, and its number

    def look(self, log: Array, block: int) -> Race | None:
        """A race between threads of one block."""
        unit, which = self.in_units(log)
        site = log["site"][which]
        self.keep(unit, site, block)
        if not len(log):
            return None
        thread, epoch, warp_epoch = (
            log[name][which].astype(np.int64)
            for name in ("thread", "epoch", "warp_epoch")
        )
        warp_epochs = int(warp_epoch.max()) + 1
        by_block = unit * (epoch.max() + 1) + epoch
        by_warp = (by_block * WARP + thread // WARP) * warp_epochs + warp_epoch
        keys = distinct((by_warp * WARP + thread % WARP) * 4 + self.flags[site])
        warps, flags = keys // 4 // WARP, keys % 4
        members, actors = None, thread // WARP
        wrong = conflict(warps // warp_epochs // WARP, warps // warp_epochs, flags)
        if wrong is not None:
            members = by_block == wrong
        elif (wrong := conflict(warps, keys // 4, flags)) is not None:
            members, actors = by_warp == wrong, thread
        if members is None:
            return None
        chosen = np.flatnonzero(members)
        pair = chosen[two_of(actors[chosen], self.flags[site[chosen]])]
        address = self.address_of(int(unit[pair[0]]))
        return Race(address, as_pair(site[pair]), as_pair(thread[pair]), block)

    def in_units(self, log: Array) -> tuple[Array, Array]:
        """Each unit of each access, and the number of the access."""
        last = (log["address"] + self.sizes[log["site"]] - 1) // self.unit
        first = log["address"] // self.unit
        counts = last - first + 1
        which = np.repeat(np.arange(len(log)), counts)
        before = np.repeat(np.cumsum(counts) - counts, counts)
        piece = np.searchsorted(self.starts, first, side="right") - 1
        numbers = first - self.gaps[piece]
        return numbers[which] + np.arange(len(which)) - before, which

    def address_of(self, unit: int) -> int:
        piece = np.searchsorted(self.starts - self.gaps, unit, side="right") - 1
        return int(unit + self.gaps[piece]) * self.unit

    def keep(self, units: Array, sites: Array, block: int) -> None:
        """Remember where a block was that others may be, too."""
        piece = np.searchsorted(self.starts - self.gaps, units, side="right") - 1
        is_mine = ~self.is_shared[piece]
        mine = distinct(units[is_mine] * len(self.sizes) + sites[is_mine])
        unit, site = np.divmod(mine, len(self.sizes))
        self.blocks.append(np.stack([unit, site, np.full(len(mine), block)]))

    def look_at_blocks(self) -> Race | None:
        """A race between blocks."""
        together = np.concatenate(self.blocks, axis=1)
        unit, site, block = together[:, np.argsort(together[0], kind="stable")]
        wrong = conflict(unit, block, self.flags[site])
        if wrong is None:
            return None
        chosen = np.flatnonzero(unit == wrong)
        pair = chosen[two_of(block[chosen], self.flags[site[chosen]])]
        return Race(self.address_of(wrong), as_pair(site[pair]), as_pair(block[pair]))


def distinct(numbers: Array) -> Array:
    """Each number once, ascending; NumPy's way by hashes takes 60 times as long.

    >>> distinct(np.array([3, 1, 3]))
    array([1, 3])
    """
    found = np.sort(numbers)
    return found[np.flatnonzero(np.diff(found, prepend=-1))]


def conflict(groups: Array, actors: Array, flags: Array) -> int | None:
    """The first of some groups, which follow each other, in which two accesses race.

    That is: several actors are in it, one of them writes, and one access is not atomic.
    Then two accesses are such: were that access none of them, it would be a read, all
    others that write would be of its own actor, and race with those of the others.

    >>> x = np.array([7, 7, 8, 8])
    >>> conflict(x, np.array([1, 2, 1, 2]), np.array([PLAIN, PLAIN, PLAIN, WRITES]))
    8
    """
    if not len(groups):
        return None
    starts = np.flatnonzero(np.r_[True, groups[1:] != groups[:-1]])
    several = np.minimum.reduceat(actors, starts) < np.maximum.reduceat(actors, starts)
    any_flag = np.bitwise_or.reduceat(flags, starts)
    is_wrong = several & (any_flag == WRITES | PLAIN)
    return int(groups[starts[np.argmax(is_wrong)]]) if is_wrong.any() else None


def two_of(actors: Array, flags: Array) -> Array:
    """Which two of the accesses to a place race; some do."""
    for writer in np.flatnonzero(flags & WRITES):
        is_other = (actors != actors[writer]) & ((flags | flags[writer]) & PLAIN > 0)
        if is_other.any():
            return np.array([writer, np.argmax(is_other)])
    raise AssertionError("none of the accesses race")


def as_pair(values: Array) -> tuple[int, int]:
    return int(values[0]), int(values[1])
