"""What is inside of a call where it runs, or where somebody asks about: CPU or GPU.

A Graph knows no device. A call runs where its tensors are, so that is where questions
look, unless they name a `target`: "cpu", "cuda", or a kind of GPU such as "sm_90". No
GPU is needed for the answer, as kernels are written without one.

Start reading at `inside_of_call`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tapejit.base.errors import ArgumentError, UnsupportedError
from tapejit.ir.graph import Graph
from tapejit.runtime.executable_report import Inside, compile_seconds, inside_of
from tapejit.tensor.device import device_of
from tapejit.tracing.cache import Specialization
from tapejit.tracing.path import TracedPath
from tapejit.tracing.signature import places_in

if TYPE_CHECKING:
    from tapejit.runtime.cuda.devices import Device

AUTO = "auto"  # the target where a call runs


def inside_of_call(
    entry: Specialization, path: TracedPath, leaves: Sequence[Any] | None, target: str
) -> tuple[Inside, str]:
    """The kernels of a call for a target, and what that is called.

    `leaves` are the arguments, of which sizes are needed that the Graph leaves open.
    """
    device = device_of_call(entry, path)
    if target == "cpu" or (target == AUTO and device is None):
        return inside_of(path.executable), "cpu"
    from tapejit.runtime.cuda.inside import USUAL, DeviceInside
    from tapejit.targets.cuda.ptx import PROCESSORS, processor_for

    if target not in (AUTO, "cuda", *PROCESSORS):
        known = ", ".join(["cpu", "cuda", *PROCESSORS])
        raise ArgumentError(f"no target is {target!r}", help=f"known are {known}")
    processor, place = target, target
    if target in PROCESSORS:
        device = None  # that may be another kind
    else:
        processor = USUAL
        if device is not None:
            properties = device.driver.properties(device.number)
            processor = processor_for(properties.capability)
        place = f"{device.name if device is not None else 'cuda'}, {processor}"
    return DeviceInside(sized(path, leaves), processor, device), place


def device_of_call(entry: Specialization, path: TracedPath) -> Device | None:
    """The device of the tensors of a call; None if it is the CPU."""
    variables = [b.variable for b in path.bindings if b.variable is not None]
    tensors = [*[x._tensor for x in variables], *path.captured]
    places = [*places_in(entry.key), *map(device_of, tensors)]
    name = next((x for x in places if x != "cpu"), None)
    if name is None:
        return None
    from tapejit.runtime.cuda.devices import device

    return device(int(name.rpartition(":")[2]))


def sized(path: TracedPath, leaves: Sequence[Any] | None) -> Graph:
    """The Graph of a path, for the sizes of a call where it leaves them open."""
    from tapejit.runtime.cuda.executable import open_axes, with_sizes

    graph = path.graph
    if not open_axes(graph):
        return graph
    if leaves is None:
        raise UnsupportedError(
            f"{graph.name} leaves sizes open, and GPU kernels are made for sizes",
            help="give the arguments of a call",
        )
    given = [leaves[at] for at in path.takes]
    for b in path.bindings:
        given.append(b.variable if b.position is None else leaves[b.position])
    values = [x if hasattr(x, "shape") else np.asarray(x) for x in given]
    return with_sizes(graph, [*values, *path.captured])


def seconds_of_call(
    entry: Specialization, path: TracedPath, place: str
) -> dict[str, float] | None:
    """What compiling took, by stages; None if nothing was compiled yet."""
    if place == "cpu":
        return compile_seconds(path.executable)
    device = device_of_call(entry, path)
    name = None if device is None else device.name
    found = path.on_devices.get((str(name), path.graph))
    return None if found is None else found.seconds
