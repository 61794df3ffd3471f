"""What a target is: its numbers, what it supports, how it schedules loops and emits.

`tuning` is what makes code fast on it: caches, costs, sizes of tasks. It may change any
day. `numerics` is what fixes bits: into how many chains a sum is cut, and how long each
is. A change of it is a line of the changelog. A number that does both is `numerics`.

Both are frozen dataclasses, a class of each for each target. Passes and emitters read
them through their Target (`CPU.tuning.cache_line_bytes`) when they need a number, and
keep none. So a test has other numbers by putting a `dataclasses.replace` of the one or
the other into the Target.

The passes that know no target may ask the one they are given: `supports` says what its
loops can compute, `arrange` has the tree as it wants it. `schedule` makes Kernels of
the Nests that these passes end in, and `emit` turns a LoopPlan of Kernels into code.

Start reading at `Target`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from tapejit.base.config import config
from tapejit.base.types import DType
from tapejit.ir.graph import Graph
from tapejit.ir.node import Op

if TYPE_CHECKING:  # who only asks what is supported needs no loops
    from tapejit.loops.kernels import LoopPlan
    from tapejit.loops.nests import Item, Nests
    from tapejit.loops.pipeline import Observe

Tuning = TypeVar("Tuning")
Numerics = TypeVar("Numerics")
Code = TypeVar("Code", covariant=True)


@dataclass
class Target(ABC, Generic[Tuning, Numerics, Code]):
    """What loops are scheduled and emitted for."""

    name: str
    tuning: Tuning
    numerics: Numerics

    @abstractmethod
    def supports(
        self, op: Op, dtypes: Sequence[DType], dtype: DType, attrs: Mapping[str, Any]
    ) -> bool:
        """Whether loops can compute an operation on these dtypes, to this one."""

    @property
    @abstractmethod
    def unpolled_instructions(self) -> float:
        """How much work may go on without asking for signals."""

    @property
    def overwrites_numbers(self) -> bool:
        """Whether a number that is an input is in memory, as an array is."""
        return False

    @abstractmethod
    def arrange(self, items: Sequence[Item]) -> list[Item]:
        """A tree of loops as this target wants it before epilogues are fused."""

    @abstractmethod
    def schedule(self, nests: Nests, observe: Observe | None = None) -> LoopPlan:
        """The Kernels of some Nests.

        `observe` hears the name of each pass, with what it left.
        """

    def nests(
        self, graph: Graph, checks: bool = False, observe: Observe | None = None
    ) -> Nests:
        """The Nests of a Graph all of whose Nodes are native."""
        from tapejit.loops.nests import Nests
        from tapejit.loops.pipeline import PASSES, run_passes

        return run_passes(PASSES, Nests(graph, self, checks), checks, observe)

    def plan(
        self, graph: Graph, checks: bool = False, observe: Observe | None = None
    ) -> LoopPlan:
        """The Kernels of a Graph all of whose Nodes are native.

        With `checks`, a value that is not finite is a failure.
        """
        plan = self.schedule(self.nests(graph, checks, observe), observe)
        if config.check:
            # Here, because users do without it: 3 ms.
            from tapejit.loops.check import check_plan

            check_plan(plan, graph.name)
        return plan

    @abstractmethod
    def emit(self, graph: Graph, plan: LoopPlan, name: str) -> Code:
        """The code of a plan, which stays as it is; `name` is its function's."""


class DerivedTarget(Target[Any, Any, Code]):
    """A target whose loops are those of another one: only what it emits differs."""

    def __init__(self, name: str, of: Target[Any, Any, object]) -> None:
        super().__init__(name, of.tuning, of.numerics)
        self.of = of

    def supports(
        self, op: Op, dtypes: Sequence[DType], dtype: DType, attrs: Mapping[str, Any]
    ) -> bool:
        return self.of.supports(op, dtypes, dtype, attrs)

    @property
    def unpolled_instructions(self) -> float:
        return self.of.unpolled_instructions

    @property
    def overwrites_numbers(self) -> bool:
        return self.of.overwrites_numbers

    def arrange(self, items: Sequence[Item]) -> list[Item]:
        return self.of.arrange(items)

    def schedule(self, nests: Nests, observe: Observe | None = None) -> LoopPlan:
        return self.of.schedule(nests, observe)
