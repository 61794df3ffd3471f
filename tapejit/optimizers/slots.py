"""A table with variables as keys: by identity, and without keeping them alive.

Variables compare elementwise and cannot be keys of a dict, and two of them with equal
values are still two. An entry is found by `id` and holds a weak reference; when its
variable goes, so does the entry.

Start reading at `ByVariable`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar
from weakref import ref

from tapejit.base.public import public
from tapejit.tape.variable import Variable

Value = TypeVar("Value")


@public("tapejit.optimizers")
class ByVariable(Generic[Value]):
    """What is known of each variable, in the order in which they were added.

    Copied or pickled together with its variables, the copy has theirs as keys.

    >>> import tapejit as tj
    >>> v = tj.Variable(1.0)
    >>> table = ByVariable([(v, "first")])
    >>> table.get(v), table.get(tj.Variable(1.0))
    ('first', None)
    >>> del v
    >>> len(table)
    0
    """

    def __init__(self, pairs: Iterable[tuple[Variable, Value]] = ()) -> None:
        self._entries: dict[int, tuple[ref[Variable], Value]] = {}
        for variable, value in pairs:
            self[variable] = value

    def __setitem__(self, variable: Variable, value: Value) -> None:
        key, entries = id(variable), self._entries
        entries[key] = (ref(variable, lambda _: entries.pop(key, None)), value)

    def get(self, variable: Variable) -> Value | None:
        """The value of a variable, None if it has none."""
        found = self._entries.get(id(variable))
        return None if found is None else found[1]

    def __contains__(self, variable: Variable) -> bool:
        return id(variable) in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def items(self) -> Iterator[tuple[Variable, Value]]:
        """The variables that are still there, and their values."""
        for weak, value in list(self._entries.values()):
            variable = weak()
            if variable is not None:
                yield variable, value

    def __reduce__(self) -> tuple[Any, ...]:
        return ByVariable, (list(self.items()),)
