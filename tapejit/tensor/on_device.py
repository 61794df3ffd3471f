"""Operations on tensors of a device: each is a Graph of one Node.

The kernels of an operation are made when it meets types that are new to it, and kept.
Nothing is waited for but operations that may fail for their values, such as an index:
the error is that of the line.

All operands are on one device. Numbers, lists, and constants that functions of ours
make follow the others; whatever else is on the CPU is an error that names both. An
operation without a kernel is one, too, unless the setting `soft_placement` lets the
host perform it, on copies. Of arrays without elements it always does.

Start reading at `apply_on_device`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from tapejit import ops
from tapejit.base.config import NUMERICS, config
from tapejit.base.errors import (
    GraphError,
    TapejitError,
    UnsupportedError,
)
from tapejit.base.numpy_adapter import restore, silence
from tapejit.base.types import TensorType
from tapejit.ir.graph import Graph
from tapejit.ir.node import ORIGIN, Movement, Node, Op, param
from tapejit.ir.structural import call, results
from tapejit.runtime.cuda.arrays import DeviceArray, upload
from tapejit.runtime.cuda.device_code import (
    DeviceCode,
    device_code,
    on_host,
    state_of,
)
from tapejit.runtime.cuda.device_graph import HELP, why_no_kernel
from tapejit.runtime.cuda.devices import Device
from tapejit.runtime.cuda.executable import DeviceExecutable, device_executable
from tapejit.tensor.device import device_of, two_devices
from tapejit.tensor.dispatch import (
    SCALAR,
    TAPES,
    check_dtypes,
    check_numerics,
    explained,
    is_constant,
)
from tapejit.tensor.tensor import DeviceTensor, Tensor, TracedTensor

MOST_NUMBERS: Final = 1024  # that are kept on a device


class DeviceOp(NamedTuple):
    """An operation for certain types; without `code` the host performs it."""

    results: tuple[TensorType, ...]
    is_tuple: bool
    code: DeviceCode | DeviceExecutable | None


_OPS: Final[WeakKeyDictionary[Device, dict[Any, DeviceOp]]] = WeakKeyDictionary()
_NUMBERS: Final[WeakKeyDictionary[Device, dict[Any, DeviceArray]]] = WeakKeyDictionary()


def apply_on_device(op: Op, inputs: Sequence[Tensor], attrs: dict[str, Any]) -> Any:
    """Perform an op on tensors of which at least one is on a device."""
    device = common_device(op.name, inputs)
    arrays = [array_on(device, x) for x in inputs]
    if tuple([x.dtype for x in arrays]) not in op.accepted:
        check_dtypes(op, inputs, attrs)
    found = _performed(device, op, arrays, inputs, attrs)
    if NUMERICS and config.check_numerics:
        out = tuple(map(on_host, found)) if len(found) > 1 else on_host(found[0])
        check_numerics(op, [Tensor(on_host(x)) for x in arrays], out)
    made: Any = tuple([DeviceTensor(x) for x in found])
    result = made if _of(device, op, arrays, attrs).is_tuple else made[0]
    for tape in TAPES.get():
        tape.record(op, inputs, attrs, result)
    return result


def common_device(name: str, inputs: Sequence[Tensor]) -> Device:
    """The device of tensors of which at least one is on one."""
    first = next(x for x in inputs if type(x) is DeviceTensor)
    device: Device = first._value.device
    for x in inputs:
        if not is_on(x, device):
            raise two_devices(name, (device.name, device_of(x)), inputs)
    return device


def is_on(x: Tensor, device: Device) -> bool:
    """Whether a tensor is on a device, or follows others there.

    Of what is being traced the trace knows.
    """
    if isinstance(x, TracedTensor):
        return True
    if type(x) is DeviceTensor:
        return x._value.device is device
    return is_constant(x)


def array_on(device: Device, x: Tensor) -> DeviceArray:
    """The value of an operand on a device; numbers that were met before are there."""
    value = x._value
    if type(x) is DeviceTensor:
        return value  # type: ignore[no-any-return]  # what such a tensor holds
    if x._made is not SCALAR:
        return upload(value, device)
    known = _NUMBERS.setdefault(device, {})
    key = (value.dtype.num, value.tobytes())
    found = known.get(key)
    if found is None:
        if len(known) >= MOST_NUMBERS:
            known.clear()
        found = known[key] = upload(value, device)
    return found


def _performed(
    device: Device,
    op: Op,
    arrays: Sequence[DeviceArray],
    inputs: Sequence[Tensor],
    attrs: dict[str, Any],
) -> list[DeviceArray]:
    if op.moves is Movement.ALIAS:
        return [arrays[0]]
    try:
        made = _of(device, op, arrays, attrs)
        if op is ops.reshape:
            return [arrays[0].with_shape(made.results[0].shape)]  # type: ignore[arg-type]
        if made.code is None:
            return _on_host(device, op, arrays, attrs)
        found = made.code.run(arrays)
        if made.code.can_fail:
            device.synchronize()
        return found
    except TapejitError as error:
        if made_by_another(device, error):
            raise
        raise explained(error, op, inputs, attrs) from None
    except Exception as error:  # NumPy's own too; raised again, explained
        raise explained(error, op, inputs, attrs) from None


def made_by_another(device: Device, error: TapejitError) -> bool:
    """Whether an error is that of a function which ran before."""
    failed = state_of(device).failed
    return failed is not None and failed[0] is error and failed[1].given.name != ALONE


ALONE: Final = "operation"


def _of(
    device: Device, op: Op, arrays: Sequence[DeviceArray], attrs: Mapping[str, Any]
) -> DeviceOp:
    """The operation for these types, made once."""
    known = _OPS.setdefault(device, {})
    types = [(x.dtype.num, x.shape) for x in arrays]
    key = (op, config.soft_placement, *attrs.items(), *types)
    found = known.get(key)
    if found is None:
        found = known[key] = _new(device, op, arrays, attrs)
    return found


def _new(
    device: Device, op: Op, arrays: Sequence[DeviceArray], attrs: Mapping[str, Any]
) -> DeviceOp:
    operands = [
        param(f"x{at}", TensorType(x.dtype, x.shape)) for at, x in enumerate(arrays)
    ]
    token = ORIGIN.set(None)
    try:
        node = op(*operands, **attrs)
    finally:
        ORIGIN.reset(token)
    is_tuple = not isinstance(node.type, TensorType)
    outputs = results(node) if is_tuple else (node,)
    kinds = tuple([x.tensor_type for x in outputs])
    code: DeviceCode | DeviceExecutable | None = None
    if op is call:
        code = device_executable(attrs["graph"], device)
    elif not is_hosts(node, (*[x.tensor_type for x in operands], *kinds)):
        code = device_code(Graph(ALONE, operands, outputs), device)
    return DeviceOp(kinds, is_tuple, code)


def is_hosts(node: Node, types: Sequence[TensorType]) -> bool:
    """Whether the host performs a Node; UnsupportedError if nobody does."""
    if any(0 in x.shape for x in types):
        return True
    reason = why_no_kernel(node)
    if reason is None:
        return False
    if config.soft_placement:
        return True
    raise no_kernel(reason)


def no_kernel(reason: str) -> UnsupportedError:
    """The error for an operation that a GPU has no kernel for."""
    return UnsupportedError(f"a GPU cannot do this: {reason}", help=HELP)


def _on_host(
    device: Device, op: Op, arrays: Sequence[DeviceArray], attrs: Mapping[str, Any]
) -> list[DeviceArray]:
    values = [on_host(x) for x in arrays]
    token = silence()
    try:
        out = op.eval(*values, **attrs)
    finally:
        restore(token)
    return [
        upload(np.asarray(x), device) for x in (out if type(out) is tuple else [out])
    ]


# Graphs


_CODES: Final[WeakKeyDictionary[Graph, dict[Device, DeviceCode | None]]] = (
    WeakKeyDictionary()
)


def run_at_once(graph: Graph, inputs: list[Tensor]) -> list[Tensor] | None:
    """The outputs of a Graph; None if it must be performed Node by Node.

    So it must if it goes from device to device, has an operation without a kernel, or
    if numerics are checked.
    """
    there = {x._value.device for x in inputs if type(x) is DeviceTensor}
    if len(there) != 1 or (NUMERICS and config.check_numerics):
        return None
    (device,) = there
    if not all(is_on(x, device) for x in inputs):
        return None
    code = _code_of(graph, device)
    if code is None:
        return None
    arrays = [array_on(device, x) for x in inputs]
    inputs.clear()
    found = code.run(arrays)
    if code.can_fail:
        device.synchronize()
    return [DeviceTensor(x) for x in found]


def _code_of(graph: Graph, device: Device) -> DeviceCode | None:
    known = _CODES.setdefault(graph, {})
    if device not in known:
        try:
            known[device] = device_code(graph, device)
        except (UnsupportedError, GraphError):
            known[device] = None
    return known[device]
