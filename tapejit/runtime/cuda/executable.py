"""A Graph ready to run on a device: the counterpart of `runtime.executable`.

If kernels can do all of a Graph, a run is one list of launches and waits for nothing.
What they cannot do cuts it into segments, as it does on the CPU: guards and effects
need values on the host, and with the setting `soft_placement` the host performs what
has no kernel. Arrays without elements are always its business.

A variable is written over if nobody else refers to its memory. A step that may fail
writes over a copy otherwise: so it leaves what was there. Where neither can be, what
was there is put back behind a step that fails.

Sizes that a Graph leaves open are fixed for each call, as kernels are made for sizes.

Start reading at `DeviceExecutable.run`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from threading import RLock
from typing import Any, Final
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np

from tapejit.base.binding import bind_shapes
from tapejit.base.config import config
from tapejit.base.dims import Dim
from tapejit.base.errors import UnsupportedError
from tapejit.base.numpy_adapter import restore, silence
from tapejit.base.types import TOKEN, TensorType
from tapejit.ir.graph import Graph
from tapejit.ir.interpret import bind_dims
from tapejit.ir.node import LITERAL, Node, Op, line_of, param
from tapejit.ir.rewriting import Sources
from tapejit.ir.structural import bound_type, item
from tapejit.loops.segments import Split, split
from tapejit.rewrite.pipeline import optimise
from tapejit.runtime.cuda.arrays import DeviceArray, empty, upload
from tapejit.runtime.cuda.device_code import (
    DeviceCode,
    device_code,
    known_code,
    on_host,
    state_of,
)
from tapejit.runtime.cuda.device_graph import HELP, why_no_kernel, why_not_whole
from tapejit.runtime.cuda.devices import Device
from tapejit.runtime.executable import Executable, steps_of

MOST_SIZES: Final = 64  # sizes of an open Graph that are kept
Value = Any  # a DeviceArray, a value of the host, or a tuple of such


class DeviceExecutable:
    """Runs one Graph on a device.

    `code` are the kernels if they do all of it; else `split` says what is done in turn.

    >>> from tapejit import ops
    >>> from tapejit.ir import param
    >>> from tapejit.runtime.cuda.devices import device
    >>> x = param("x", TensorType.parse("f32[3]"))
    >>> with config.override(cuda="emulated"):
    ...     here = device(0)
    >>> executable = DeviceExecutable(Graph("double", (x,), (x + x,)), here)
    >>> executable.run([upload(np.float32([1, 2, 3]), here)])[0].download()
    array([2., 4., 6.], dtype=float32)
    """

    def __init__(self, graph: Graph, device: Device) -> None:
        self.given: Graph = graph
        self.device = device
        self.sources: Sources = {}
        self.code: DeviceCode | None = None
        self.split: Split | None = None
        self.segments: dict[Node, DeviceCode] = {}
        self.moves: dict[Node, DeviceCode] = {}
        self.open_axes = open_axes(graph)
        self.bound: dict[tuple[int, ...], DeviceExecutable] = {}
        self.slots: dict[int, DeviceArray] = {}
        if self.open_axes:
            return
        self.code = known_code(graph, device)
        if self.code is None and why_not_whole(self.graph) is None:
            self.code = device_code(graph, device, self.graph)
        if self.code is None:
            self.split = self.cut()
        else:
            self.code.repeats = True
        if config.debug >= 1 or config.dump:
            from tapejit.runtime.cuda.inside import show

            show(self)

    @cached_property
    def graph(self) -> Graph:
        """The Graph as the passes leave it; not needed to run kernels of the store."""
        return optimise(self.given, sources=self.sources)

    @property
    def can_fail(self) -> bool:
        """Whether a run may fail after it has returned."""
        return self.code is not None and self.code.can_fail

    @property
    def seconds(self) -> dict[str, float] | None:
        """What making kernels took, by stages; None if none were made yet."""
        if self.open_axes and not self.bound:
            return None
        parts: list[Any] = [self.code] if self.code is not None else []
        parts += [*self.segments.values(), *self.moves.values(), *self.bound.values()]
        total: dict[str, float] = {}
        for part in parts:
            for stage, seconds in (part.seconds or {}).items():
                total[stage] = total.get(stage, 0.0) + seconds
        return total

    def cut(self) -> Split:
        """The Graph in segments; UnsupportedError names what nobody performs."""
        found = cut(self.graph)
        for node, segment in found.segments.items():
            self.segments[node] = device_code(segment, self.device)
        for node in moves_in(found):
            self.moves[node] = device_code(alone(node), self.device)
        return found

    def run(
        self,
        values: Sequence[Value],
        written: Mapping[int, int] | None = None,
        alone: Sequence[bool] = (),
    ) -> list[DeviceArray]:
        """The outputs for arrays on the device and numbers.

        `written` are the outputs that become variables, with the inputs of which these
        are the next values; `alone` says of each input whether nobody else has it.
        """
        if self.open_axes:
            return self.for_sizes(values).run(values, written, alone)
        if self.code is None:
            return self.run_split(values)
        return self.run_code(self.code, values, written or {}, alone)

    def run_code(
        self,
        code: DeviceCode,
        values: Sequence[Value],
        written: Mapping[int, int],
        alone: Sequence[bool],
    ) -> list[DeviceArray]:
        arrays = [self.array(at, x) for at, x in enumerate(values)]
        over: dict[int, int] = {}
        for out, at in code.updates:
            if written.get(out) != at or at in over:
                continue
            if not alone[at]:
                if not code.can_fail:
                    continue
                arrays[at] = arrays[at].copy()
            over[at] = out
        found = code.run(arrays, over)
        if code.can_fail:
            for out, at in written.items():
                if over.get(at) != out and found[out].nbytes:
                    state_of(self.device).put_back(found[out], arrays[at])
        return found

    def array(self, at: int, value: Value) -> DeviceArray:
        """An input on the device; a number goes where the last one was.

        That has been read, in the order of the stream, unless the step is performed
        again since it fails.
        """
        if isinstance(value, DeviceArray):
            return value
        if self.code is None or self.code.can_fail:
            return upload(value, self.device)
        slot = self.slots.get(at)
        if slot is None:
            slot = self.slots[at] = empty(value.shape, value.dtype, self.device)
        self.device.send(slot.address, np.array(value))
        return slot

    # In segments

    def run_split(self, values: Sequence[Value]) -> list[DeviceArray]:
        assert self.split is not None
        graph = self.split.graph
        known: dict[Node, Value] = dict(zip(graph.inputs, values, strict=True))
        for node in graph.nodes:
            known[node] = self.performed(node, [known[x] for x in node.inputs])
        return [self.placed(known[x]) for x in graph.outputs]

    def performed(self, node: Node, operands: Sequence[Value]) -> Value:
        """What a Node of the split Graph gives."""
        if node.op is LITERAL:
            return node.attrs["value"][()]
        if node.op is item:
            return operands[0][node.attrs["index"]]
        code = self.segments.get(node) or self.moves.get(node)
        if code is None:
            return self.on_the_host(node, operands)
        found = code.run([self.placed(x) for x in operands])
        if code.can_fail:
            self.device.synchronize()
        return tuple(found) if node in self.segments else found[0]

    def on_the_host(self, node: Node, operands: Sequence[Value]) -> Value:
        values = [on_host(x) if isinstance(x, DeviceArray) else x for x in operands]
        token = silence()
        try:
            return node.op.eval(*values, **node.attrs)
        except Exception as error:  # of any op; `failed_step` says where
            vars(error)["failed_node"] = node
            raise
        finally:
            restore(token)

    def placed(self, value: Value) -> DeviceArray:
        if isinstance(value, DeviceArray):
            return value
        return upload(np.asarray(value), self.device)

    # Open sizes

    def for_sizes(self, values: Sequence[Value]) -> DeviceExecutable:
        """The executable for the sizes of these inputs."""
        key = tuple([values[at].shape[axis] for at, axis in self.open_axes])
        found = self.bound.get(key)
        if found is None:
            if len(self.bound) >= MOST_SIZES:
                del self.bound[next(iter(self.bound))]
            graph = with_sizes(self.given, values)
            found = self.bound[key] = DeviceExecutable(graph, self.device)
        return found

    # What the paths of functions ask

    def failed_step(self, error: BaseException) -> int | None:
        """Which of the given Graph's Nodes (literals not counted) raised `error`."""
        for executable in self.bound.values():
            step = executable.failed_step(error)
            if step is not None:
                return step
        node: Node | None = vars(error).get("failed_node")
        if node is None or self.split is None:
            return None
        node = self.split.originals.get(node, node)
        node = self.sources.get(node, node)
        steps = steps_of(self.given)
        return steps.index(node) if node in steps else None


class HostExecutable:
    """Runs a Graph with NumPy for arrays on a device, as its counterpart there."""

    def __init__(self, executable: Executable, device: Device) -> None:
        self.executable, self.device = executable, device
        self.failed_step = executable.failed_step
        self.seconds = None

    def run(self, values: Sequence[Value], *others: Any) -> list[DeviceArray]:
        """The outputs, copied to the device."""
        given = [on_host(x) if isinstance(x, DeviceArray) else x for x in values]
        found = self.executable.run(given)
        return [upload(np.asarray(x), self.device) for x in found]


def cut(graph: Graph) -> Split:
    """An optimised Graph in segments for a GPU, and what the host does between them.

    UnsupportedError names what nobody performs.
    """
    hosts = set()
    for node in graph.nodes:
        reason = None if node.op is LITERAL else why_hosts(node)
        if reason is not None:
            check_placement(node, reason)
            hosts.add(node)

    def no_rule(*types: Any) -> Any:
        raise AssertionError("a segment's Node is made with its type")

    def make_op(segment: Graph, number: int) -> Op:
        return Op("segment", type_rule=no_rule, eval=no_rule, differentiable=False)

    return split(graph, lambda x: x.op is not LITERAL and x not in hosts, make_op)


def moves_in(found: Split) -> list[Node]:
    """The Nodes between segments that are kernels of their own: they move values."""
    return [
        x
        for x in found.graph.nodes
        if x not in found.segments
        and x.op not in (LITERAL, item)
        and why_hosts(x) is None
    ]


def check_placement(node: Node, reason: str) -> None:
    """Whether the host may perform a Node; UnsupportedError if not."""
    if is_always_hosts(node) or config.soft_placement:
        return
    raise UnsupportedError(
        f"a GPU cannot do this: {reason}",
        op=node.op.name,
        origin=line_of(node),
        help=HELP,
    )


def is_always_hosts(node: Node) -> bool:
    """Whether a Node is the host's on any device: an effect, or nothing to do."""
    return node.op.is_effect or node.type is TOKEN or has_no_elements(node)


def why_hosts(node: Node) -> str | None:
    """Why a Node is the host's, as half a sentence; None if there is a kernel."""
    if node.op.is_effect or node.type is TOKEN:
        return "an effect"
    if has_no_elements(node):
        return "arrays without elements"
    return why_no_kernel(node)


def has_no_elements(node: Node) -> bool:
    """Whether a Node deals with arrays that have no elements."""
    types = (node.type, *[x.type for x in node.inputs])
    return any(isinstance(x, TensorType) and 0 in x.shape for x in types)


def alone(node: Node) -> Graph:
    """A Graph of one Node."""
    inputs = [param(f"x{at}", x.type) for at, x in enumerate(node.inputs)]
    made = Node(node.op, tuple(inputs), node.attrs, node.type, node.origin)
    return Graph(node.op.name, inputs, (made,))


def open_axes(graph: Graph) -> tuple[tuple[int, int], ...]:
    """The inputs' axes whose size is open."""
    return tuple(
        (at, axis)
        for at, x in enumerate(graph.inputs)
        if isinstance(x.type, TensorType)
        for axis, size in enumerate(x.type.shape)
        if isinstance(size, Dim)
    )


def with_sizes(graph: Graph, values: Sequence[Value]) -> Graph:
    """The Graph for the sizes of these inputs."""
    kinds = [x.tensor_type for x in graph.inputs]
    sizes = bind_shapes([x.shape for x in kinds], [x.shape for x in values])
    made: dict[Node, Node] = {}
    for node in (*graph.inputs, *graph.nodes):
        inputs = tuple([made[x] for x in node.inputs])
        attrs = {name: bind_dims(value, sizes) for name, value in node.attrs.items()}
        kind = bound_type(node.type, sizes)
        made[node] = Node(node.op, inputs, attrs, kind, node.origin)
    ends = [made[x] for x in graph.outputs]
    effects = None if graph.effects is None else made[graph.effects]
    return Graph(graph.name, [made[x] for x in graph.inputs], ends, effects)


_MAKING: Final = RLock()
_KNOWN: Final[WeakKeyDictionary[Device, WeakValueDictionary[Any, DeviceExecutable]]] = (
    WeakKeyDictionary()
)


def device_executable(graph: Graph, device: Device) -> DeviceExecutable:
    """The executable of a Graph on a device, shared by all Graphs with its digest."""
    with _MAKING:
        known = _KNOWN.setdefault(device, WeakValueDictionary())
        key = graph.digest, config.soft_placement
        found = known.get(key)
        if found is None:
            found = known[key] = DeviceExecutable(graph, device)
        return found


__all__ = ["DeviceExecutable", "device_executable"]
