"""What a target is: its name, and the numbers by which code for it is made.

`tuning` is what makes code fast on it: caches, costs, sizes of tasks. It may change any
day. `numerics` is what fixes bits: into how many chains a sum is cut, and how long each
is. A change of it is a line of the changelog. A number that does both is `numerics`.

Both are frozen dataclasses, a class of each for each target. Passes and emitters read
them through their Target (`CPU.tuning.cache_line_bytes`) when they need a number, and
keep none. So a test has other numbers by putting a `dataclasses.replace` of the one or
the other into the Target.

Start reading at `Target`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

Tuning = TypeVar("Tuning")
Numerics = TypeVar("Numerics")


@dataclass
class Target(Generic[Tuning, Numerics]):
    """What a LoopPlan is emitted for."""

    name: str
    tuning: Tuning
    numerics: Numerics
