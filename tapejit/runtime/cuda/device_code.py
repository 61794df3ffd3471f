"""The kernels of a Graph on a device.

`device_code` has the kernels of a Graph from the store, or made (`kept_kernels`), and
keeps the `DeviceCode` for the next who asks. `run` puts its launches on the stream of
the device and returns at once: arrays that it gives are full when the stream has come
so far.

All codes of a device have one arena and two words about failures, as they run one after
the other. A kernel that finds an index out of range notes the number of its step in the
first word; from then on no kernel writes over an input, so variables are what they were
before that step. The host looks when it next waits: it performs the step again with
NumPy, on the same values, which raises what an eager call would, with the user's line.

Start reading at `DeviceCode.run`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from sys import getrefcount
from threading import RLock
from typing import Any, Final
from weakref import WeakKeyDictionary

import numpy as np

from tapejit.base.config import config
from tapejit.base.errors import ArgumentError, ArgumentTypeError, TapejitError
from tapejit.base.types import DType, TensorType
from tapejit.ir.graph import Graph
from tapejit.ir.node import line_of
from tapejit.runtime.cuda.arrays import DeviceArray, empty, upload
from tapejit.runtime.cuda.device_graph import fixed, tensor_type
from tapejit.runtime.cuda.devices import Device
from tapejit.runtime.cuda.driver import Argument, DeviceError
from tapejit.runtime.cuda.kept_kernels import (
    Kernels,
    KernelTexts,
    emit,
    helper_code,
    machine_code,
    make_kernels,
    stored_kernels,
)
from tapejit.runtime.cuda.launches import LaunchList
from tapejit.runtime.cuda.memory import Memory

SMALL_BYTES: Final = 1 << 16  # results whose memory is kept for the next ones,
MOST_SPARE: Final = 3  # so many of each
MOST_UNSEEN: Final = 64  # steps that may have failed, with the values that they took


def _count_in_two_places() -> int:
    """How often what a list and a variable have is referred to, as `memory` asks."""
    (count,) = [getrefcount(thing) for thing in [object()]]
    return count


PUT_BACK: Final = "tj_put_back"
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

    def __init__(
        self,
        graph: Graph,
        device: Device,
        kernels: Kernels | None = None,
        optimised: Graph | None = None,
    ) -> None:
        self.given, self.device = graph, device
        self.seconds: dict[str, float] = {}
        if kernels is None:
            made = make_kernels(graph, device, optimised)
            kernels, self.emitted, self.seconds = made
        self.can_fail = kernels.can_fail  # whether values may, such as an index
        self.arena_bytes = kernels.arena_bytes
        self.types = [tensor_type(x) for x in graph.outputs]
        # The number of each result that kernels compute: empty ones are there.
        self.computed = [at for at, x in enumerate(self.types) if 0 not in x.shape]
        for kind in kernels.unread:
            self.computed.append(len(self.types))
            self.types.append(kind)
        code = machine_code(kernels.code, graph.name, device, self.seconds)
        module = device.driver.load(code, device.number)
        self.launches = LaunchList(device.driver, module, kernels.launches)
        self.constants = [upload(x, device) for x in kernels.constants]
        self.repeats = False  # whether small results are written where others were
        self.spare: dict[int, list[Memory]] = {}
        self.updates = [(self.computed[out], x) for out, x in kernels.updates]

    @cached_property
    def emitted(self) -> KernelTexts:
        """The kernels as text; once more, if they came from the store."""
        properties = self.device.driver.properties(self.device.number)
        return emit(self.given, properties.capability)

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
            arena = state.arena(self.arena_bytes)
            written = [outputs[at] for at in self.computed]
            buffers = [*arrays, *written, arena, state.words, *self.constants]
            addresses = [x.address for x in buffers]
            if self.can_fail:
                state.expect(self, arrays)
            self.launches.run(addresses, self.device.stream)
        return outputs[: len(self.given.outputs)]

    def check(self, arrays: Sequence[DeviceArray]) -> None:
        """Whether these can be its inputs."""
        wanted = self.given.inputs
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
        self._putting_back: int | None = None  # the module that does it
        self._arena = empty((64,), np.dtype(np.uint8), device)

    def arena(self, nbytes: int) -> DeviceArray:
        """Working memory; it grows to what the largest code needs."""
        if self._arena.nbytes < nbytes:
            self._arena = empty((nbytes,), np.dtype(np.uint8), self.device)
        return self._arena

    def put_back(self, new: DeviceArray, old: DeviceArray) -> None:
        """Have the old values in new memory as well if a step has failed by then."""
        from tapejit.targets.cuda.target import CUDA

        device = self.device
        blocks, threads = CUDA.tuning.put_back_blocks, CUDA.numerics.block_threads
        given: list[Argument] = [x.address for x in (self.words, new, old)]
        given.append(np.int64(new.nbytes))
        with device.lock:
            if self._putting_back is None:
                code = helper_code(PUT_BACK, put_back_text, device)
                self._putting_back = device.driver.load(code, device.number)
            module, stream = self._putting_back, device.stream
            device.driver.launch(module, PUT_BACK, blocks, threads, given, stream)

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


def put_back_text() -> str:
    """The module of the kernel that puts back."""
    from tapejit.targets.cuda.put_back import put_back_text as text

    return text(PUT_BACK)


def on_host(array: DeviceArray) -> Any:
    """A copy as NumPy's functions take it: numbers bare."""
    found = array.download()
    return found if found.ndim else found[()]


_STATES: Final[WeakKeyDictionary[Device, DeviceState]] = WeakKeyDictionary()
# By the digest of a Graph as it is given, and the settings that kernels depend on.
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


def known_code(graph: Graph, device: Device) -> DeviceCode | None:
    """The kernels of a Graph on a device, if somebody has made them once."""
    with _MAKING:
        known = _CODES.setdefault(device, {})
        key = (graph.digest, config.cuda_tf32)
        found = known.get(key)
        if found is None:
            kernels = stored_kernels(graph, device)
            if kernels is not None:
                found = known[key] = DeviceCode(graph, device, kernels)
        return found


def device_code(
    graph: Graph, device: Device, optimised: Graph | None = None
) -> DeviceCode:
    """The kernels of a Graph on a device, made when nobody has made them.

    `optimised` is what the passes make of the Graph, if somebody has that already.
    UnsupportedError names the first operation that has no kernel, and its line.
    """
    with _MAKING:
        found = known_code(graph, device)
        if found is None:
            found = DeviceCode(graph, device, optimised=optimised)
            _CODES[device][graph.digest, config.cuda_tf32] = found
        return found


__all__ = ["DeviceCode", "device_code"]
