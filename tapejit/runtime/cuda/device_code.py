"""The kernels of a Graph on a device.

`device_code` optimises a Graph, has its kernels emitted and compiled, and keeps the
`DeviceCode` for the next who asks. `run` puts its launches on the stream of the device
and returns at once: arrays that it gives are full when the stream has come so far.

All codes of a device have one arena and two words about failures, as they run one after
the other. A kernel that finds an index out of range notes the number of its step in the
first word; from then on no kernel writes over an input, so variables are what they were
before that step. The host looks when it next waits: it performs the step again with
NumPy, on the same values, which raises what an eager call would, with the user's line.

Start reading at `DeviceCode.run`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from sys import getrefcount
from threading import RLock
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

import numpy as np

from tapejit.base.config import config
from tapejit.base.errors import (
    ArgumentError,
    ArgumentTypeError,
    TapejitError,
    UnsupportedError,
)
from tapejit.base.types import DType, TensorType
from tapejit.ir.graph import Graph
from tapejit.ir.node import LITERAL, Node, line_of
from tapejit.ir.structural import require, start
from tapejit.rewrite.empty import is_empty, without_empty
from tapejit.rewrite.pipeline import optimise
from tapejit.runtime.cuda.arrays import DeviceArray, empty, upload
from tapejit.runtime.cuda.devices import Device
from tapejit.runtime.cuda.driver import DeviceError
from tapejit.runtime.cuda.launches import InBuffer, Launch, LaunchList
from tapejit.runtime.cuda.memory import Memory

if TYPE_CHECKING:  # who only has arrays on a device needs no compiler
    from tapejit.targets.cuda.module import KernelLaunch

WORD_BYTES: Final = 16  # two words
HELP: Final = (  # for who meets an operation that has no kernel
    'do it on the CPU, x.to("cpu"), or let tapejit do so: '
    "tj.config.update(soft_placement=True)"
)
SMALL_BYTES: Final = 1 << 16  # results whose memory is kept for the next ones,
MOST_SPARE: Final = 3  # so many of each
MOST_UNSEEN: Final = 64  # steps that may have failed, with the values that they took


def _count_in_two_places() -> int:
    """How often what a list and a variable have is referred to, as `memory` asks."""
    (count,) = [getrefcount(thing) for thing in [object()]]
    return count


IN_TWO_PLACES: Final = _count_in_two_places()


class DeviceCode:
    """The kernels of a Graph, which `run` launches.

    >>> from tapejit import ops
    >>> from tapejit.base.config import config
    >>> from tapejit.ir import param
    >>> from tapejit.runtime.cuda.devices import device
    >>> x = param("x", TensorType.parse("f32[3]"))
    >>> with config.override(cuda="emulated"):
    ...     code = device_code(Graph("double", (x,), (x + x,)), device(0))
    ...     (found,) = code.run([upload(np.float32([1, 2, 3]), device(0))])
    >>> found.download()
    array([2., 4., 6.], dtype=float32)
    """

    def __init__(self, graph: Graph, device: Device) -> None:
        # Here, as who only has arrays on a device needs no compiler.
        from tapejit.targets.cuda.target import target_for

        self.given, self.device = graph, device
        self.types = [tensor_type(x) for x in graph.outputs]
        self.graph = whole_graph(without_empty(optimise(graph)))
        # The number of each result that kernels compute: empty ones are there.
        self.computed = [at for at, x in enumerate(self.types) if 0 not in x.shape]
        for node in self.graph.outputs[len(self.computed) :]:
            self.computed.append(len(self.types))
            self.types.append(tensor_type(node))
        name = f"tj_{graph.digest[:16]}"
        driver = device.driver
        target = target_for(driver.properties(device.number).capability)
        self.built = target.emit(self.graph, target.plan(self.graph), name)
        code = driver.compile(self.built.text, device.number)
        launches = [
            Launch(x.name, x.blocks, x.threads, tuple(arguments_of(x)))
            for x in self.built.launches
        ]
        module = driver.load(code, device.number)
        self.launches = LaunchList(driver, module, launches)
        constants = self.built.plan.nests.constants
        self.constants = [upload(x.value, device) for x in constants]
        self.repeats = False  # whether small results are written where others were
        self.spare: dict[int, list[Memory]] = {}
        pairs = self.built.plan.update_pairs()
        self.updates = [(self.computed[out], x) for out, x in pairs]

    @property
    def can_fail(self) -> bool:
        """Whether values may make a step fail, such as an index."""
        return self.built.can_fail

    def run(
        self, arrays: Sequence[DeviceArray], overwritten: Collection[int] = ()
    ) -> list[DeviceArray]:
        """Results for these inputs; nothing is waited for.

        `overwritten` are the numbers of inputs whose memory nobody else has: results
        may be written over them, which are then gone. A Mapping says by which result.
        """
        self.check(arrays)
        with self.device.lock:
            state = state_of(self.device)
            outputs = self.outputs(arrays, overwritten)
            arena = state.arena(self.built.arena_bytes)
            written = [outputs[at] for at in self.computed]
            buffers = [*arrays, *written, arena, state.words, *self.constants]
            addresses = [x.address for x in buffers]
            if self.can_fail:
                state.expect(self, arrays)
            self.launches.run(addresses, self.device.stream)
        return outputs[: len(self.given.outputs)]

    def check(self, arrays: Sequence[DeviceArray]) -> None:
        """Whether these can be its inputs."""
        wanted = self.graph.inputs
        if len(arrays) != len(wanted):
            raise ArgumentTypeError(
                f"{self.given.name} takes {len(wanted)} arrays, got {len(arrays)}"
            )
        for at, (x, node) in enumerate(zip(arrays, wanted, strict=True)):
            if x.device is not self.device:
                raise ArgumentError(
                    f"argument {at} of {self.given.name} is on {x.device.name}, "
                    f"the kernels are for {self.device.name}"
                )
            if TensorType(x.dtype, x.shape) != node.type:
                raise ArgumentTypeError(
                    f"argument {at} of {self.given.name} is {node.type}, "
                    f"got {TensorType(x.dtype, x.shape)}"
                )

    def outputs(
        self, arrays: Sequence[DeviceArray], overwritten: Collection[int]
    ) -> list[DeviceArray]:
        """Memory for the results: that of inputs where it may be, else new memory."""
        over: dict[int, DeviceArray] = {}
        left = set(overwritten)
        wanted = overwritten if isinstance(overwritten, Mapping) else {}
        for out, at in self.updates:
            if at in left and out not in over and wanted.get(at, out) == out:
                left.remove(at)
                given = arrays[at]
                over[out] = DeviceArray(
                    given.memory, given.shape, given.dtype, self.device
                )
        return [
            over.get(at) or self.memory(at, fixed(kind), kind.dtype)
            for at, kind in enumerate(self.types)
        ]

    def memory(self, at: int, shape: tuple[int, ...], dtype: DType) -> DeviceArray:
        """Memory for a result: that of an earlier one which nobody has any more.

        So the addresses of a step that is repeated are few, and it becomes a graph.
        """
        earlier = self.spare.setdefault(at, [])
        for memory in earlier:
            if getrefcount(memory) == IN_TWO_PLACES:
                return DeviceArray(memory, shape, dtype, self.device)
        made = empty(shape, dtype, self.device)
        is_kept = self.repeats and made.nbytes <= SMALL_BYTES
        if is_kept and len(earlier) < MOST_SPARE:
            made.memory.witnesses += 1
            earlier.append(made.memory)
        return made


def arguments_of(launch: KernelLaunch) -> Iterator[InBuffer | np.generic]:
    """The arguments of a kernel: places in buffers, then numbers."""
    yield from (InBuffer(*at) for at in launch.places)
    yield from map(np.int64, launch.numbers)


class DeviceState:
    """What the codes of a device have in common: the arena, and words about failures.

    `unseen` are the steps that can have failed, by number, with what they took.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self.count = 0  # of steps that can fail
        self.failed: tuple[TapejitError, DeviceCode] | None = None  # the last one
        self.unseen: dict[int, tuple[DeviceCode, list[DeviceArray]]] = {}
        self.words = upload(np.array([-1, 0]), device)
        self._arena = empty((64,), np.dtype(np.uint8), device)

    def arena(self, nbytes: int) -> DeviceArray:
        """Working memory; it grows to what the largest code needs."""
        if self._arena.nbytes < nbytes:
            self._arena = empty((nbytes,), np.dtype(np.uint8), self.device)
        return self._arena

    def expect(self, code: DeviceCode, arrays: Sequence[DeviceArray]) -> None:
        """A step that can fail is about to be launched; its values are kept."""
        if len(self.unseen) >= MOST_UNSEEN:
            self.device.synchronize()
        self.count += 1
        for x in arrays:
            x.memory.witnesses += 1
        self.unseen[self.count] = code, [x.with_shape(x.shape) for x in arrays]

    def look(self) -> None:
        """Whether a step has failed, now that all of them are over; then it raises."""
        if not self.unseen:
            return
        steps, self.unseen = self.unseen, {}
        for _, arrays in steps.values():
            for x in arrays:
                x.memory.witnesses -= 1
        words = self.words.download()
        failed = int(words[0])
        if failed == -1:
            return
        words[0] = -1
        self.device.send(self.words.address, words)
        code, arrays = steps[failed]
        program = code.given.program
        try:
            program.run([on_host(x) for x in arrays])
        except TapejitError as error:
            node = program.failed_node(error)
            error.origin = error.origin if node is None else line_of(node)
            self.failed = error, code
            raise
        raise DeviceError(
            f"a kernel of {code.given.name} found a failure that NumPy does not find",
            help="a GPU leaves small matrices that are singular, or nearly, to LAPACK: "
            "do it on the CPU",
        )


def on_host(array: DeviceArray) -> Any:
    """A copy as NumPy's functions take it: numbers bare."""
    found = array.download()
    return found if found.ndim else found[()]


_STATES: Final[WeakKeyDictionary[Device, DeviceState]] = WeakKeyDictionary()
# By the digest of a Graph, and the settings that its kernels depend on.
_CODES: Final[WeakKeyDictionary[Device, dict[tuple[str, bool], DeviceCode]]] = (
    WeakKeyDictionary()
)
_MAKING: Final = RLock()


def state_of(device: Device) -> DeviceState:
    """What the codes of a device have in common."""
    found = _STATES.get(device)
    if found is None:
        found = _STATES[device] = DeviceState(device)
        device.when_over.append(found.look)
    return found


def device_code(graph: Graph, device: Device) -> DeviceCode:
    """The kernels of a Graph on a device, made when somebody asks for the first time.

    UnsupportedError names the first operation that has no kernel, and its line.
    """
    with _MAKING:
        known = _CODES.setdefault(device, {})
        key = (graph.digest, config.cuda_tf32)
        found = known.get(key)
        if found is None:
            found = known[key] = DeviceCode(graph, device)
        return found


def why_no_kernel(node: Node) -> str | None:
    """Half a sentence on a Node that a GPU has no kernel for; None of others."""
    from tapejit.targets.cuda import native_ops

    return native_ops.why_no_kernel(node)


def why_not_whole(graph: Graph) -> UnsupportedError | None:
    """Why kernels cannot do all of an optimised Graph; None if they can."""
    try:
        whole_graph(without_empty(graph))
    except UnsupportedError as error:
        return error
    return None


def whole_graph(graph: Graph) -> Graph:
    """The Graph without effects and results that are empty.

    What nobody reads and may fail is one more result. UnsupportedError if not all of it
    has kernels.
    """
    outputs = [x for x in graph.outputs if not is_empty(x)]
    graph = Graph(graph.name, graph.inputs, outputs, graph.effects)
    for node in dict.fromkeys((*graph.nodes, *outputs)):
        reason = why_no_kernel(node)
        if reason is not None:
            raise UnsupportedError(
                f"a GPU cannot do this: {reason}",
                op=node.op.name,
                origin=line_of(node),
                help=HELP,
            )
    for node in graph.nodes:
        if node.op.is_effect and node.op not in (start, require):
            raise UnsupportedError(
                "an effect happens on the host", op=node.op.name, origin=line_of(node)
            )
    kept = set(Graph(graph.name, graph.inputs, graph.outputs).nodes)
    required = [x.inputs[0] for x in graph.nodes if x.op is require]
    unread = [x for x in required if x not in kept and x.op is not LITERAL]
    return Graph(graph.name, graph.inputs, (*graph.outputs, *dict.fromkeys(unread)))


def tensor_type(node: Node) -> TensorType:
    """The type of a Node that is known to be a tensor."""
    if not isinstance(node.type, TensorType) or not node.type.is_static:
        raise UnsupportedError(f"a GPU gives arrays of fixed sizes, not {node.type}")
    return node.type


def fixed(kind: TensorType) -> tuple[int, ...]:
    """A shape that is known."""
    return tuple(map(int, kind.shape))


__all__ = ["DeviceCode", "device_code", "why_no_kernel"]
