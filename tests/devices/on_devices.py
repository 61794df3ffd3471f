"""Graphs on the emulated device, beside the CPU's native code.

Start reading at `run_on`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tapejit.base.types import TensorType
from tapejit.ir import Graph, Node, param
from tapejit.runtime.cuda.arrays import upload
from tapejit.runtime.cuda.device_code import DeviceCode, device_code
from tapejit.runtime.cuda.devices import Device
from tapejit.runtime.cuda.driver import DeviceError
from tapejit.runtime.cuda.emulated import EmulatedDriver

Array = np.ndarray[Any, Any]
ORDERS = ("up", "down", "random", "first ahead", "last ahead")


def own_device() -> Device:
    """A device of a test alone, on which races are errors."""
    driver = EmulatedDriver()
    driver.watch = True
    return Device(driver, 0, "emulated")


def given(name: str, *shape: int, dtype: str = "float32") -> Node:
    return param(name, TensorType(np.dtype(dtype), shape))


def numbers(graph: Graph, seed: int = 0) -> list[Array]:
    """Inputs for a Graph of floats."""
    rng = np.random.default_rng(seed)
    return [
        rng.standard_normal(tuple(map(int, x.shape))).astype(x.dtype)
        for x in graph.inputs
    ]


def run_on(
    device: Device, code: DeviceCode, arrays: Sequence[Array], order: str = "random"
) -> list[Array]:
    """The outputs, by threads in some order."""
    device.driver.order = order  # type: ignore[attr-defined]
    return [x.download() for x in code.run([upload(x, device) for x in arrays])]


def run_graph(device: Device, graph: Graph, seed: int = 0) -> list[Array]:
    """The outputs of a Graph for some numbers."""
    return run_on(device, device_code(graph, device), numbers(graph, seed))


def on_executor(
    code: DeviceCode, lines: Sequence[str], arrays: Sequence[Array]
) -> DeviceError | None:
    """What goes wrong when other text stands in place of a code's own, if anything."""
    device = own_device()
    launches, module = code.emitted.built.launches, "\n".join(lines)
    outputs = [
        np.empty(tuple(map(int, x.shape)), x.dtype) for x in code.emitted.graph.outputs
    ]
    arena = np.empty(code.emitted.built.arena_bytes, np.uint8)
    words = np.array([-1, 0])
    buffers = [upload(x, device) for x in (*arrays, *outputs, arena, words)]
    loaded = device.driver.load(module.encode(), 0)
    for x in launches:
        places = [buffers[at].address + offset for at, offset in x.places]
        device.driver.launch(loaded, x.name, x.blocks, x.threads, places, device.stream)
    try:
        device.synchronize()
    except DeviceError as error:
        return error
    return None
