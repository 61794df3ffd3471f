"""Graphs on the emulated device, for tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tapejit.base.types import TensorType
from tapejit.ir import OPS, Graph, Node, param
from tapejit.runtime.cuda.arrays import upload
from tapejit.runtime.cuda.device_code import DeviceCode, device_code
from tapejit.runtime.cuda.devices import Device
from tapejit.runtime.cuda.emulated import EmulatedDriver

Array = np.ndarray[Any, Any]


def emulated(*, watch: bool = True) -> Device:
    """A device of its own, on which races are errors."""
    driver = EmulatedDriver()
    driver.watch = watch
    return Device(driver, 0, "emulated")


def driver_of(device: Device) -> EmulatedDriver:
    assert isinstance(device.driver, EmulatedDriver)
    return device.driver


def graph_of(
    body: str | Callable[..., Node], arrays: Sequence[Array], **attrs: Any
) -> Graph:
    """An operation, or what a function makes of Nodes, for arrays like these."""
    inputs = [param(f"x{at}", TensorType.of(x)) for at, x in enumerate(arrays)]
    if isinstance(body, str):
        return Graph(body, inputs, (OPS[body](*inputs, **attrs),))
    return Graph("body", inputs, (body(*inputs, **attrs),))


def run_on(
    device: Device, graph: Graph, arrays: Sequence[Array], order: str = "up"
) -> list[Array]:
    """The results of a Graph on a device."""
    return run_code(device_code(graph, device), arrays, order)


def run_code(
    code: DeviceCode, arrays: Sequence[Array], order: str = "up"
) -> list[Array]:
    """The same of code that there is; a GPU has an order of its own."""
    if isinstance(code.device.driver, EmulatedDriver):
        code.device.driver.order = order
    results = code.run([upload(x, code.device) for x in arrays])
    found = [x.download() for x in results]
    code.device.synchronize()
    return found


def assert_same_bits(got: Array, wanted: Array, where: str = "") -> None:
    """Equal to the last bit and the sign of zeros; one NaN is as good as another."""
    wanted = np.asarray(wanted)
    assert TensorType.of(got) == TensorType.of(wanted), where
    if not got.size:
        return
    if got.dtype.kind == "c":
        assert_same_bits(got.real, wanted.real, f"{where}, real parts")
        assert_same_bits(got.imag, wanted.imag, f"{where}, imaginary parts")
        return
    unsigned = np.dtype(f"u{got.dtype.itemsize}")
    left, right = (np.array(x, order="C").view(unsigned) for x in (got, wanted))
    is_other = left != right
    if got.dtype.kind not in "biu":
        is_other &= ~(np.isnan(got) & np.isnan(wanted))
    assert not np.any(is_other), f"{where}: {got[is_other]} is not {wanted[is_other]}"
