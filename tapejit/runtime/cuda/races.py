"""Races: two threads look at the same memory, one of them writes, nothing orders them.

What comes in is a log of all accesses of a launch: where, by which thread, at which
site of the kernel, after how many barriers of its block (`epoch`) and of its warp
(`warp_epoch`). A barrier of the block orders what its threads do before and after it,
one of a warp what the threads of the warp do. Nothing orders the blocks of a launch.
Atomic updates do not race with each other.

Start reading at `find_race`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from tapejit.runtime.cuda.scheduler import WARP
from tapejit.runtime.cuda.threads import Site

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


class Race(NamedTuple):
    """Two accesses to an address: their sites in the kernel, threads and blocks."""

    address: int
    sites: tuple[int, int]
    threads: tuple[int, int]
    blocks: tuple[int, int]


class Accesses(NamedTuple):
    """Accesses of a launch, cut in units of bytes that each is at or is not."""

    unit: Array
    block: Array
    epoch: Array
    warp: Array
    warp_epoch: Array
    thread: Array
    site: Array
    writes: Array
    is_plain: Array


def find_race(
    log: Array, blocks: Array, sites: Sequence[Site], shared: Sequence[Range]
) -> Race | None:
    """A race in a log of accesses, whose blocks are told; None if there is none.

    Each block has its own of what is `shared`.
    """
    if not len(log):
        return None
    unit = int(np.gcd.reduce([sites[x].size for x in np.unique(log["site"])]))
    a = in_units(log, blocks, sites, unit)
    of_all = np.ones(len(a.unit), bool)
    for start, end in shared:
        of_all &= (a.unit * unit < start) | (a.unit * unit >= end)
    outside = Accesses(*(x[of_all] for x in a))
    place = (a.block, a.unit, a.epoch)
    found = first_conflict(a, place, a.warp)
    found = found or first_conflict(a, (*place, a.warp_epoch), a.thread)
    found = found or first_conflict(outside, (outside.unit,), outside.block)
    return found and found._replace(address=found.address * unit)


def in_units(log: Array, blocks: Array, sites: Sequence[Site], unit: int) -> Accesses:
    """A log, each access as often as it has units of so many bytes."""
    sizes = np.array([site.size for site in sites])[log["site"]]
    first, last = log["address"] // unit, (log["address"] + sizes - 1) // unit
    counts = last - first + 1
    which = np.repeat(np.arange(len(log)), counts)
    inside = np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)
    rows = log[which]
    return Accesses(
        first[which] + inside,
        blocks[which],
        rows["epoch"],
        rows["thread"] // WARP,
        rows["warp_epoch"],
        rows["thread"],
        rows["site"],
        np.array([x.writes for x in sites])[rows["site"]],
        ~np.array([x.is_atomic for x in sites])[rows["site"]],
    )


def first_conflict(a: Accesses, same: Sequence[Array], actor: Array) -> Race | None:
    """Two accesses that agree in all of `same` but not in `actor`, and one writes.

    Where several actors are, one of them writes, and one access is not atomic, there
    are two such: if that access is none of the two, its actor is that of the write.
    """
    if not len(actor):
        return None
    order = np.lexsort((actor, *same))
    keys = np.stack([x[order] for x in same])
    starts = np.flatnonzero(np.r_[True, (keys[:, 1:] != keys[:, :-1]).any(0)])
    by, writes, is_plain = actor[order], a.writes[order], a.is_plain[order]
    is_race = (
        (np.minimum.reduceat(by, starts) != np.maximum.reduceat(by, starts))
        & np.logical_or.reduceat(writes, starts)
        & np.logical_or.reduceat(is_plain, starts)
    )
    if not is_race.any():
        return None
    group = int(np.argmax(is_race))
    members = np.split(order, starts[1:])[group]
    for one in members[a.writes[members]]:
        others = members[
            (actor[members] != actor[one]) & (a.is_plain[members] | a.is_plain[one])
        ]
        if len(others):
            pair = np.array([one, others[0]])
            sites, threads, blocks = (x[pair] for x in (a.site, a.thread, a.block))
            return Race(int(a.unit[one]), pairs(sites), pairs(threads), pairs(blocks))
    raise AssertionError("a conflict without two accesses")


def pairs(values: Array) -> tuple[int, int]:
    return int(values[0]), int(values[1])
