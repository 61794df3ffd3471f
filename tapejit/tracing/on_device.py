"""Calls of traced functions whose tensors are on a device.

A Graph knows no device; where it runs is where its inputs are, all of them. States of
optimizers, metrics and generators follow the others from call to call. A call is
one `DeviceExecutable.run`, which waits for nothing where it need not, and then commits
what was assigned. Results that are constants on the CPU stay there.

Whether a variable is written over is decided here: nobody else may refer to its Tensor,
its array or its memory. Who looks at memory only if a step has failed does not count.

Start reading at `device_of_values`, then `are_alone`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from sys import getrefcount
from typing import TYPE_CHECKING, Any, NamedTuple

from tapejit.base.errors import ArgumentError
from tapejit.base.types import dtype_named
from tapejit.ir.graph import Graph
from tapejit.runtime.sentinels import DEVICE_ARRAYS
from tapejit.tensor.tensor import DeviceTensor, Tensor

if TYPE_CHECKING:
    from tapejit.runtime.cuda.devices import Device
    from tapejit.tape.variable import Variable


def device_of_values(graph: Graph, values: Sequence[Any]) -> Device | None:
    """The device of the inputs of a Graph; None if it is the CPU.

    Numbers go along. ArgumentError names two inputs that are not in one place.
    """
    found: Device | None = None
    where = -1
    for at, x in enumerate(values):
        if type(x) in DEVICE_ARRAYS:
            if found is not None and x.device is not found:
                raise _two_devices(graph, values, where, at)
            found, where = x.device, at
    if found is None:
        return None
    for at, x in enumerate(values):
        if type(x) not in DEVICE_ARRAYS and x.ndim:
            raise _two_devices(graph, values, where, at)
    return found


def let_follow(variables: Sequence[Variable], values: Sequence[Any]) -> None:
    """Move what an optimizer, a metric or a generator has to where all else is."""
    followers = [x for x in variables if x._follows]
    if not followers:
        return
    others = [x._tensor._value for x in variables if not x._follows]
    leaders = [x for x in (*values, *others) if type(x) in DEVICE_ARRAYS or x.ndim]
    if leaders:
        (first, *_) = leaders
        there = first.device.name if type(first) in DEVICE_ARRAYS else "cpu"
        for x in followers:
            x._join(there)


def _two_devices(
    graph: Graph, values: Sequence[Any], first: int, second: int
) -> ArgumentError:
    names = [
        values[at].device.name if type(values[at]) in DEVICE_ARRAYS else "cpu"
        for at in (first, second)
    ]
    inputs = [graph.inputs[at].name for at in (first, second)]
    return ArgumentError(
        f"{graph.name} runs on one device: {inputs[0]} is on {names[0]}, {inputs[1]} "
        f"on {names[1]}",
        help=f'move one of them: .to("{names[0]}") or .to("{names[1]}")',
    )


class ReferenceCounts(NamedTuple):
    """How often a Tensor, its array and its memory are referred to."""

    tensor: int
    array: int
    memory: int

    @classmethod
    def of(
        cls, tensors: Sequence[Tensor], values: Sequence[Any], at: int, first: int
    ) -> ReferenceCounts:
        """Those of one of the tensors, whose array is among the values."""
        memory = values[first + at].memory
        return cls(
            getrefcount(tensors[at]),
            getrefcount(values[first + at]),
            getrefcount(memory) - memory.witnesses,
        )


class _Holder:
    """Refers to a Tensor as a Variable does."""

    __slots__ = ("_tensor",)

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor


@cache
def usual_counts() -> ReferenceCounts:
    """What is counted where nobody else refers to a Tensor: it is asked here, too."""
    from tapejit.runtime.cuda.arrays import DeviceArray
    from tapejit.runtime.cuda.memory import Memory

    nowhere: Any = None
    array = DeviceArray(Memory(0, 0), (), dtype_named("bool"), nowhere)
    holder = _Holder(DeviceTensor(array))
    del array
    tensors = [holder._tensor]
    values = [x._value for x in tensors]
    return ReferenceCounts.of(tensors, values, 0, 0)


def are_alone(
    tensors: Sequence[Tensor], values: Sequence[Any], first: int
) -> list[bool]:
    """Whether only its variable refers to each of these Tensors, and so to its memory.

    Their arrays are among the `values`, from the `first` on. The caller has them in the
    two lists, and nowhere else.
    """
    usual = usual_counts()
    found = []
    for at in range(len(tensors)):
        counts = ReferenceCounts.of(tensors, values, at, first)
        pairs = zip(counts, usual, strict=True)
        is_known = tensors[at]._id != 0  # to a tape
        found.append(not is_known and all(count <= most for count, most in pairs))
    return found
