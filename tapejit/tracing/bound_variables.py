"""The variables of a traced function: where their values come from.

A `Binding` says so for one that the body reads or writes: it was captured, or it is an
argument. A `Passed` says of one among the arguments whether another can take its place.

Start reading at `Passed`.
"""

from __future__ import annotations

from typing import Any
from weakref import ref

from tapejit.tape.variable import Variable
from tapejit.tracing.trace import Slot


class Binding:
    """Where the value of a variable comes from, and what becomes of it.

    `variable` is the one captured, None for one passed as argument `position`.
    """

    __slots__ = ("is_written", "position", "variable", "was_read")

    def __init__(self, slot: Slot, position: int | None) -> None:
        self.position = position
        self.variable: Variable | None = slot.variable if position is None else None
        self.was_read = slot.was_read
        self.is_written = slot.exit is not None


class Passed:
    """A variable among the arguments.

    `variable` refers to it, or is None if any other can take its place; `is_pinned`
    says that none can, because its identity mattered. `facts` are the attributes that
    the body has asked for, which the other must share.
    """

    __slots__ = ("facts", "is_pinned", "position", "variable")

    def __init__(
        self,
        position: int,
        variable: Variable | None,
        *,
        is_pinned: bool,
        facts: dict[str, Any],
    ) -> None:
        self.position = position
        self.is_pinned = is_pinned
        self.facts = facts
        self.variable = None if variable is None else ref(variable)

    def fits(self, x: Variable) -> bool:
        """Whether a variable can be passed here."""
        if self.variable is not None and self.variable() is not x:
            return False
        return all(getattr(x, fact) == value for fact, value in self.facts.items())
