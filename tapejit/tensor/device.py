"""Devices: where tensors are, and how they get from one to another.

A device is a name: "cpu", or "cuda:0" for the first GPU. `device(name)` checks that it
is there; in a `with` block it is where creation functions put new tensors, for this
thread and the tasks started in it. `move` copies a tensor, which tapes record: the
cotangent goes the way back. Operations on what lies on a GPU are in `on_device`.

What drives GPUs is loaded when somebody asks for one.

Start reading at `device`, then `move`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from tapejit import ops
from tapejit.base.errors import ArgumentError, ArgumentTypeError, UnsupportedError
from tapejit.base.public import public
from tapejit.ir.node import literal
from tapejit.runtime.sentinels import DEVICE_ARRAYS
from tapejit.tensor.dispatch import SCALAR, TAPES, TRACE, described_type, is_constant
from tapejit.tensor.tensor import (
    CONSTANT,
    DeviceTensor,
    Tensor,
    TracedTensor,
    tensor_of,
)

if TYPE_CHECKING:
    from tapejit.runtime.cuda.devices import Device
    from tapejit.tensor.trace import Trace

# Larger constants on a device are inputs of the Graph that meets them.
LITERAL_BYTES: Final = 1 << 16

CURRENT: Final[ContextVar[tuple[device, ...]]] = ContextVar("devices", default=())


@public("tapejit")
class device(str):
    """The name of a device that is there, and a block in which new tensors go there.

    It is a text, so `x.device == "cpu"` holds of a tensor on the CPU.

    >>> import tapejit as tj
    >>> with tj.device("cpu"):
    ...     x = tj.zeros(3)
    >>> x.device
    'cpu'
    >>> try:
    ...     tj.device("tpu")
    ... except ValueError as error:
    ...     print(error.message)
    there is no device 'tpu'
    """

    __slots__ = ()

    def __new__(cls, name: Any) -> device:
        if isinstance(name, cls):
            return name
        found = re.fullmatch(r"cuda(?::(\d{1,4}))?", name) if _is_text(name) else None
        if found:
            return str.__new__(cls, runtime_device(int(found[1] or 0)).name)
        if name == "cpu":
            return CPU
        raise ArgumentError(f"there is no device {name!r}", help=_help(name))

    def __enter__(self) -> device:
        CURRENT.set((*CURRENT.get(), self))
        return self

    def __exit__(self, *exception: object) -> None:
        *outer, _ = CURRENT.get()
        CURRENT.set(tuple(outer))


CPU: Final = str.__new__(device, "cpu")


def _is_text(name: Any) -> bool:
    if isinstance(name, str):
        return True
    raise ArgumentTypeError(
        f"a device is a text, got {type(name).__name__}",
        help='such as "cpu" or "cuda:0"; for a dtype write x.astype(dtype)',
    )


def _help(name: str) -> str:
    """What to write for a name that other libraries have."""
    found = re.fullmatch(r"/?(?:device:)?(cpu|gpu|cuda)(?::(\d+))?", name.lower())
    if found is None:
        return 'tj.devices() lists them: "cpu", "cuda:0", ...'
    number = found[2] or "0"
    return 'write "cpu"' if found[1] == "cpu" else f'write "cuda:{number}"'


def runtime_device(number: int) -> Device:
    """What drives a GPU; DeviceError says what is missing."""
    from tapejit.runtime.cuda.devices import device as found

    return found(number)


def driven(name: str) -> Device:
    """What drives a device that is not the CPU, by its name."""
    return runtime_device(int(name.partition(":")[2]))


def devices() -> tuple[device, ...]:
    """All devices: the CPU, then the GPUs that can be used.

    >>> import tapejit as tj
    >>> "cpu" in tj.devices()
    True
    """
    from tapejit.runtime.cuda.devices import device_count

    gpus = (f"cuda:{number}" for number in range(device_count()))
    return (CPU, *(str.__new__(device, name) for name in gpus))


@public("tapejit")
class MemoryInfo(NamedTuple):
    """Bytes of a GPU's memory, as `tj.memory_info` tells them.

    `used` are those that tensors and compiled functions have now, `peak` the most they
    have had, `limit` what they may have. The device itself has `free` of `total`.

    >>> import tapejit as tj
    >>> with tj.config.override(cuda="emulated"):
    ...     info = tj.memory_info("cuda:0")
    >>> info.used <= info.limit <= info.total
    True
    """

    used: int
    peak: int
    limit: int
    free: int
    total: int


def memory_info(device: Any) -> MemoryInfo:
    """How much memory of a GPU is in use, and how much there is.

    The setting `device_memory` limits it.

    >>> import tapejit as tj
    >>> with tj.config.override(cuda="emulated"):
    ...     before = tj.memory_info("cuda:0").used
    ...     x = tj.zeros(1000, device="cuda:0")
    ...     tj.memory_info("cuda:0").used - before
    4000
    """
    name = as_device(device)
    if name == "cpu":
        raise ArgumentError(
            "the memory of the CPU is that of the whole system",
            op="memory_info",
            help="resource.getrusage tells what the process has",
        )
    found = driven(name)
    with found.lock:
        pool = found.pool
        pool.give_back()
        free, total = found.driver.memory_bytes(found.number)
        return MemoryInfo(pool.used, pool.peak, pool.limit, free, total)


def synchronize(device: Any) -> None:
    """Wait until a device has done all that it was asked for.

    It works while Python goes on; errors of compiled functions, such as an index out
    of range, are raised here or where a value is asked for. So this is for timings.

    >>> import tapejit as tj
    >>> tj.synchronize("cpu")
    """
    name = as_device(device)
    if name != "cpu":
        driven(name).synchronize()


def as_device(name: Any) -> device:
    """A device by its name; for None the one of the block around."""
    if name is None:
        blocks = CURRENT.get()
        return blocks[-1] if blocks else CPU
    return device(name)


def is_elsewhere(name: Any) -> bool:
    """Whether new tensors go to another device than the CPU."""
    if name is None and not CURRENT.get():
        return False
    return as_device(name) != "cpu"


def put_on(array: np.ndarray[Any, Any], name: str, made: Any = None) -> Tensor:
    """A new tensor of an array, on a device that is not the CPU.

    In a function that is traced for it, it is a constant of the Graph.
    """
    trace = TRACE.get()
    is_traced = trace is not None and trace is trace.state
    if trace is not None and is_traced and array.nbytes <= LITERAL_BYTES:
        trace.placement.note(device(name), "a constant")
        return TracedTensor(literal(array, array.dtype), trace, made)
    from tapejit.runtime.cuda.arrays import upload

    return DeviceTensor(upload(array, driven(name)), made)


def placed(tensor: Tensor, name: Any) -> Tensor:
    """A new tensor of numbers, which nobody has seen, where it belongs.

    What a function of ours makes for its own use stays on the CPU unless it says where.
    """
    if not is_elsewhere(name) or type(tensor) is not Tensor:
        return tensor
    if name is None and is_constant(tensor):
        return tensor
    return put_on(np.asarray(tensor._value), as_device(name), tensor._made)


def in_trace(tensor: Tensor) -> Tensor:
    """A number or a constant that is where a traced function runs.

    What is computed of it alone is then there as well.
    """
    trace = TRACE.get()
    state = None if trace is None else trace.state
    there = None if state is None else state.placement.device
    if there is None or not (tensor._made is SCALAR or is_constant(tensor)):
        return tensor
    return placed(tensor, there)


def in_block(tensor: Tensor) -> Tensor:
    """A value of a new variable, on the device of the block around if there is one."""
    blocks = CURRENT.get()
    if not blocks or device_of(tensor) == blocks[-1]:
        return tensor
    return tensor_of(moved_value(tensor._value, blocks[-1]))


def met_in_trace(trace: Trace, name: str, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
    """What an op of a trace meets, large constants where the function runs.

    Whatever is no constant has to be there already.
    """
    for x in inputs:
        if isinstance(x, TracedTensor) or is_constant(x):
            continue
        if trace.is_placed and device_of(x) != trace.device:
            raise two_devices(name, (trace.device, device_of(x)), inputs)
        if not trace.is_placed:
            (trace.state or trace).placement.note(device_of(x), "a tensor")
    if trace.device == "cpu" or not any(map(is_large_constant, inputs)):
        return inputs
    return [placed(x, trace.device) if is_large_constant(x) else x for x in inputs]


def is_large_constant(x: Tensor) -> bool:
    """Whether a constant is an input of the Graph that meets it, for its size."""
    return is_constant(x) and type(x) is Tensor and x.nbytes > LITERAL_BYTES


def two_devices(
    name: str, devices: tuple[str, str], inputs: Sequence[Tensor]
) -> ArgumentError:
    """The error for operands that are not on one device."""
    return ArgumentError(
        f"operands are on two devices, {devices[0]} and {devices[1]}",
        op=name,
        operands=tuple(
            described_type(
                x._type if x._made is SCALAR else f"{x._type} on {device_of(x)}",
                x._made,
            )
            for x in inputs
        ),
        help=f'move one of them: .to("{devices[0]}") or .to("{devices[1]}")',
    )


def following(x: Tensor, place: device) -> Tensor:
    """A constant on a device; whatever else is where it is."""
    return placed(x, place) if is_constant(x) else x


def met(x: Tensor, others: Sequence[Any]) -> Tensor:
    """A value on the device of the tensors that it is about to meet, else on the CPU.

    What random numbers are made of meets no more than numbers there.
    """
    if not DEVICE_ARRAYS or isinstance(x, TracedTensor):
        return x
    there = [y.device for y in others if isinstance(y, Tensor) and not is_constant(y)]
    return move(x, there[0] if there else CPU)


def settled(x: Tensor, others: Sequence[Any], home: str) -> Tensor:
    """A result on the device of the block around; at home if it has met nobody."""
    if not DEVICE_ARRAYS or isinstance(x, TracedTensor):
        return x
    if CURRENT.get():
        return move(x, None)
    has_met = any(isinstance(y, Tensor) and not is_constant(y) for y in others)
    return x if has_met else move(x, home)


def beside(array: Any, x: Any) -> Tensor:
    """A new tensor of an array where another one is, or goes."""
    if isinstance(x, Tensor) and is_constant(x):
        return Tensor(array, CONSTANT)
    return placed(Tensor(array), x.device)


def on_device_of(x: Tensor, source: Any) -> Tensor:
    """A gradient where its source is: one that is constant is made on the CPU."""
    there = source.device
    if type(x) is Tensor:
        return placed(x, there)
    return x if x.device == there else move(x, there)


def device_of(x: Tensor) -> device:
    """Where a tensor is."""
    if isinstance(x, TracedTensor):
        return x._trace.device  # type: ignore[no-any-return]  # of any trace
    if type(x) is DeviceTensor:
        return str.__new__(device, x._value.device.name)
    return CPU


def place_of(x: Any) -> device:
    """Where an argument is: a tensor, or an array."""
    return device_of(x) if isinstance(x, Tensor) else CPU


def moved_value(value: Any, there: device) -> Any:
    """A copy of an array on another device."""
    host = np.asarray(value)
    if there == "cpu":
        return host
    from tapejit.runtime.cuda.arrays import upload

    return upload(host, driven(there))


def move(x: Tensor, name: Any) -> Tensor:
    """A tensor on a device: itself if it is there, else a copy."""
    here, there = device_of(x), as_device(name)
    if here == there:
        return x
    if isinstance(x, TracedTensor):
        raise UnsupportedError(
            f"a function runs on one device, this one on {here}: nothing can be "
            f"moved to {there} in it",
            op="to",
            help="move it before the call, or what the function returns",
        )
    moved = tensor_of(moved_value(x._value, there))
    attrs = {"source": str(here), "target": str(there)}
    for tape in TAPES.get():
        tape.record(ops.to_device, (x,), attrs, moved)
    return moved


__all__ = ["MemoryInfo", "device", "devices", "memory_info", "synchronize"]
