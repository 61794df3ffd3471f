"""Who hears of operations: tapes, accumulators, traces that watch.

The listeners of a context stand in `dispatch.TAPES`, outermost first. Each operation is
told to each of them, and they tell by their `thread` whether they care. A Recording is
one, so are the tangents of a ForwardAccumulator, the watcher of a traced function, and
those who look on while a function with a gradient of its own runs.

Start reading at `Listener`.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from tapejit.base.origin import user_origin
from tapejit.tensor.dispatch import TAPES

if TYPE_CHECKING:
    from tapejit.ir.node import Op
    from tapejit.tape.variable import Variable
    from tapejit.tensor.tensor import Tensor


class Listener(Protocol):
    """What dispatch and variables ask of everyone in `TAPES`.

    thread   the thread it listens to, None while it does not
    trace    the trace it was opened in: operations of other traces are not its
    nodes    Tensor id -> whatever it knows of the tensors it follows
    pending  Tensor id -> Variable, for results of assignments not yet used
    """

    @property
    def thread(self) -> int | None: ...
    @property
    def trace(self) -> Any: ...
    @property
    def nodes(self) -> Mapping[int, Any]: ...
    @property
    def pending(self) -> MutableMapping[int, Variable]: ...

    def record(
        self, op: Op, inputs: Sequence[Tensor], attrs: dict[str, Any], result: Any
    ) -> None:
        """An operation was performed."""

    def note_read(self, variable: Variable, tensor: Tensor) -> None:
        """A variable was read, and this is its value."""

    def tracks(self, x: Tensor) -> bool:
        """Whether a derivative can flow into a tensor."""


class Observer:
    """Stands among the tapes and hears of operations, but records nothing.

    It belongs to no thread, so that it does not make a run one that is observed.
    """

    nodes: Mapping[int, Any] = MappingProxyType({})
    thread = -1
    trace: Any

    def record(
        self, op: Op, inputs: Sequence[Tensor], attrs: dict[str, Any], result: Any
    ) -> None:
        """An operation was performed."""

    def tracks(self, x: Tensor) -> bool:
        """No gradient is taken here."""
        return False


def mark_left(tensor: Tensor, how: str = "went through NumPy") -> None:
    """Remember on each tape that a recorded value left it, for `why_none`."""
    if not tensor._id:
        return
    for tape in TAPES.get():
        node = tape.nodes.get(tensor._id)
        left = getattr(tape, "left", None)
        if node is not None and left is not None:
            left.setdefault(node, (how, user_origin(2)))
