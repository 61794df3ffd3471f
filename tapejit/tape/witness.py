"""What a function uses that it is not given: variables, and tensors of its closure.

A `Witness` stands among the tapes while a function with a gradient of its own runs.
When an operation has a tensor of the closure among its operands, it is recorded once
more, as a shadow in which the arguments are constants; the shadow of the result leads
to those tensors and to nothing else. The witness also hears which variables are read
and assigned.

Start reading at `Witness.watching`, then `Witness.record`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import get_ident
from typing import Any

from tapejit.base.types import is_differentiable
from tapejit.ir.node import Op
from tapejit.ops.arithmetic import stop_gradient
from tapejit.tape.variable import Variable
from tapejit.tensor.dispatch import SCALAR, TAPES, TRACE, apply
from tapejit.tensor.recorder import Listener, Observer
from tapejit.tensor.tensor import Tensor, TracedTensor, another, next_id


class Witness(Observer):
    """Stands among the tapes while a function runs, and sees what it uses.

    tapes     those around the function that its inside is shown to
    mark      the ids up to this one are of tensors that were there before
    reads     id of a Variable -> (the Variable, the Tensor of its first read)
    own       ids of the Tensors of variables whose gradient the rule gives
    outside   id -> Tensors that were there before and are no arguments
    inside    in a trace: id -> arguments and what was computed from them
    shadows   id -> (the result of an operation, the same value as a function of what
              is outside alone)
    pending   Tensor id -> Variable, for results of assignments
    is_sealed  whether the inside is nobody's business: nothing outside is connected
    """

    def __init__(self, arguments: set[int]) -> None:
        self.tapes: tuple[Any, ...] = ()
        self.arguments = arguments
        self.mark = next_id()
        self.owner = get_ident()
        self.trace: Any = TRACE.get()
        self.is_sealed = False
        self.inside: dict[int, Tensor] = {}
        self.reads: dict[int, tuple[Variable, Tensor]] = {}
        self.own: dict[int, Tensor] = {}
        self.outside: dict[int, Tensor] = {}
        self.shadows: dict[int, tuple[Tensor, Tensor]] = {}
        self.pending: dict[int, Variable] = {}

    @contextmanager
    def watching(self, *, is_sealed: bool) -> Iterator[None]:
        """What runs inside is seen by this witness; if it is sealed, by no tape."""
        around = TAPES.get()
        observer: Any = self
        self.is_sealed = is_sealed
        if is_sealed:  # but for the one that serves the trace itself
            watcher = getattr(self.trace, "watcher", None)
            TAPES.set((observer,) if watcher is None else (watcher, observer))
        else:
            self.tapes = around
            TAPES.set((*around, observer))
        try:
            yield
        finally:
            inside = around if is_sealed else TAPES.get()
            still = [x for x in inside if x is not observer and x.thread is not None]
            TAPES.set(tuple(still))
        if is_sealed:
            self.tell(still)

    def tell(self, tapes: Sequence[Listener]) -> None:
        """Tell tapes that saw nothing which variables were read and assigned."""
        for tape in tapes:
            for variable, tensor in self.reads.values():
                if tensor._id not in tape.nodes:
                    tape.note_read(variable, tensor)
            for key, variable in self.pending.items():
                tape.pending[key] = variable

    def variables(self) -> list[Variable]:
        """The trainable variables that were read and are no arguments."""
        found = [
            variable
            for variable, _ in self.reads.values()
            if _is_trainable(variable) and id(variable) not in self.arguments
        ]
        return sorted(found, key=lambda variable: variable._serial)

    def read_beside(self) -> list[Variable]:
        """The variables that were read, are known to a tape and are no arguments."""
        return [
            variable
            for variable, tensor in self.reads.values()
            if id(variable) not in self.arguments and _is_known(tensor)
        ]

    def closure(self, values: Sequence[Tensor]) -> list[Tensor]:
        """The tensors from before that were used, or returned, and are no arguments."""
        self.outside.update((id(x), x) for x in values if self._is_outside(x))
        reads = {id(tensor) for _, tensor in self.reads.values()}
        return [
            x for key, x in self.outside.items() if key not in reads and _is_known(x)
        ]

    def note_read(self, variable: Variable, tensor: Tensor) -> None:
        """A variable was read."""
        if self.owner != get_ident():
            return
        self.reads.setdefault(id(variable), (variable, tensor))
        if _is_trainable(variable) or id(variable) in self.arguments:
            self.own[id(tensor)] = tensor
        else:
            self.outside[id(tensor)] = tensor

    def record(
        self, op: Op, inputs: Sequence[Tensor], attrs: dict[str, Any], result: Any
    ) -> None:
        """An operation was performed."""
        if self.owner != get_ident():
            return
        if self.pending:
            for x in inputs:
                variable = self.pending.get(x._id)
                if variable is not None:
                    self.note_read(variable, x)
        parts = result if type(result) is tuple else (result,)
        if self.trace is not None:
            if not any(id(x) in self.inside or id(x) in self.own for x in inputs):
                return  # as if it had been computed outside
            self.inside.update((id(part), part) for part in parts)
        is_shadowed = False
        for x in inputs:
            if self._is_outside(x):
                self.outside[id(x)] = x
                is_shadowed = True
            elif id(x) in self.shadows:
                is_shadowed = True
        if is_shadowed and not self.is_sealed:
            self._shadow(op, inputs, attrs, parts, is_tuple=type(result) is tuple)

    def _shadow(
        self,
        op: Op,
        inputs: Sequence[Tensor],
        attrs: dict[str, Any],
        parts: Sequence[Tensor],
        *,
        is_tuple: bool,
    ) -> None:
        """Record an operation once more, on shadows."""
        operands = tuple(self.shadow_of(x) for x in inputs)
        tapes: Any = self.tapes
        if any(isinstance(x, TracedTensor) for x in parts):
            nodes = [self.trace.node_of(x) for x in operands]
            whole = self.trace.record(op, nodes, attrs)
            tapes = [tape for tape in tapes if tape.trace is self.trace]
        else:
            whole = tuple(another(part) for part in parts)
            whole = whole if is_tuple else whole[0]
        for tape in tapes:
            tape.record(op, operands, attrs, whole)
        for part, shadow in zip(parts, whole if is_tuple else (whole,), strict=True):
            self.shadows[id(part)] = (part, shadow)

    def shadow_of(self, x: Tensor) -> Tensor:
        """A value as a function of what is outside, a constant if of nothing."""
        if not self.is_sealed:
            if self._is_outside(x):
                return x
            if id(x) in self.shadows:
                return self.shadows[id(x)][1]
        return apply(stop_gradient, x) if self.trace else another(x)

    def _is_outside(self, x: Tensor) -> bool:
        """Whether a tensor was there before and has a gradient of its own."""
        if id(x) in self.own or not is_differentiable(x.dtype):
            return False
        if self.trace is None:
            return 0 < x._id <= self.mark or id(x) in self.outside
        return id(x) not in self.inside and x._made is not SCALAR


def _is_known(x: Tensor) -> bool:
    """Whether a gradient or tangent of `x` may be asked of what is recording."""
    if not is_differentiable(x.dtype):
        return False
    tapes: Sequence[Any] = TAPES.get()
    return any(isinstance(tape, Witness) or x._id in tape.nodes for tape in tapes)


def _is_trainable(variable: Variable) -> bool:
    return variable._trainable and is_differentiable(variable.dtype)
