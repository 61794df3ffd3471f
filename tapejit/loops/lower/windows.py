"""Which convolution is a matmul, and what it sees of its input.

A product reads windows where they lie, so its input is in memory with the zeros that
are around it; a `Frame` says for an axis what that memory has. Zeros between the
elements of spread input are not there. Positions that see the same entries of the
window, a `Phase`, are a convolution of input that is not spread.

Start reading at `is_windowed_product`, then `phases_of`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tapejit.ir.node import Node
from tapejit.loops import numerics
from tapejit.ops.convolution_loops import phases


class Phase(NamedTuple):
    """Positions along an axis that see the same entries of the window.

    Of `positions`, the one of number p is at `first + p * period`; entry e of `entries`
    is that at `entry + e * skip`. They meet at `start + p * stride + e * dilation`.
    """

    first: int
    period: int
    positions: int
    entry: int
    skip: int
    entries: int
    start: int
    stride: int
    dilation: int

    @property
    def end(self) -> int:
        """Where the last position has left its last entry behind."""
        last = self.start + (self.positions - 1) * self.stride
        return last + (self.entries - 1) * self.dilation + 1


def phases_of(node: Node, axis: int) -> list[Phase]:
    """The phases of a convolution along a spatial axis.

    Those that meet nothing but zeros between elements have no entries.

    >>> from tapejit import ops
    >>> from tapejit.ir import param
    >>> from tapejit.base.types import TensorType
    >>> x = param("x", TensorType.parse("f32[2,6,3]"))
    >>> w = param("w", TensorType.parse("f32[1,3,8]"))
    >>> spread = {"strides": (1,), "dilations": (1,), "input_dilations": (2,)}
    >>> node = ops.conv(x, w, padding=((0, 0),), groups=1, **spread)
    >>> [(phase.first, phase.entries) for phase in phases_of(node, 0)]
    [(0, 1), (1, 0)]
    """
    count, window = int(node.shape[axis + 1]), int(node.inputs[1].shape[axis])
    stride, dilation, spread = (
        int(node.attrs[name][axis])
        for name in ("strides", "dilations", "input_dilations")
    )
    low = int(node.attrs["padding"][axis][0])
    found: dict[int, Phase] = {}
    period = 1
    for at, entry, *rest in phases(window, count, stride, low, dilation, spread):
        positions, by_position, before, by_entry = rest
        period, skip = at.step, entry.step
        entries = len(range(entry.start, window, skip))
        found[at.start] = Phase(
            at.start,
            period,
            positions,
            entry.start,
            skip,
            entries,
            -before,
            by_position,
            by_entry,
        )
    for first in range(min(period, count)):
        positions = len(range(first, count, period))
        empty = Phase(first, period, positions, 0, 1, 0, 0, 0, 0)
        found.setdefault(first, empty)
    return [found[first] for first in sorted(found)]


class Frame(NamedTuple):
    """The part of an axis that windows see, in the memory they are read from.

    It has `size` places, the first of which would be element `begin` of the input;
    `length` elements from `first` on are there, and zeros elsewhere.
    """

    begin: int
    size: int
    first: int
    length: int


def frames_of(node: Node) -> list[Frame]:
    """What a convolution sees of each spatial axis of its input.

    >>> from tapejit import ops
    >>> from tapejit.ir import param
    >>> from tapejit.base.types import TensorType
    >>> x = param("x", TensorType.parse("f32[2,6,3]"))
    >>> w = param("w", TensorType.parse("f32[3,3,8]"))
    >>> plain = {"strides": (1,), "dilations": (1,), "input_dilations": (1,)}
    >>> frames_of(ops.conv(x, w, padding=((1, 1),), groups=1, **plain))
    [Frame(begin=-1, size=8, first=0, length=6)]
    >>> frames_of(ops.conv(x, w, padding=((-1, 0),), groups=1, **plain))
    [Frame(begin=1, size=5, first=1, length=5)]
    """
    found = []
    for axis in range(node.ndim - 2):
        able = [phase for phase in phases_of(node, axis) if phase.entries]
        begin = min((phase.start for phase in able), default=0)
        end = max((phase.end for phase in able), default=0)
        first = max(0, begin)
        length = max(0, min(int(node.inputs[0].shape[axis + 1]), end) - first)
        found.append(Frame(begin, end - begin, first, length))
    return found


def framed_padding(node: Node, frames: Sequence[Frame]) -> tuple[tuple[int, int], ...]:
    """The padding of the same convolution of what is in memory."""
    found = []
    for axis, frame in enumerate(frames):
        stride, dilation, spread = (
            int(node.attrs[name][axis])
            for name in ("strides", "dilations", "input_dilations")
        )
        low = int(node.attrs["padding"][axis][0]) + frame.begin * spread
        needed = (int(node.shape[axis + 1]) - 1) * stride + 1
        needed += (int(node.inputs[1].shape[axis]) - 1) * dilation
        found.append((low, needed - low - (frame.size - 1) * spread - 1))
    return tuple(found)


def is_windowed_product(node: Node) -> bool:
    """Whether a convolution is computed as a product of matrices.

    Many small groups are not; windows that see nothing but zeros have no input.
    """
    features = int(node.shape[-1]) // int(node.attrs["groups"])
    is_whole = node.dtype.kind == "f" and node.dtype.itemsize >= 4
    enough = numerics.LOOPS.conv_matmul_features
    is_wide = node.attrs["groups"] == 1 or features >= enough
    if not (is_whole and is_wide and all(frame.length for frame in frames_of(node))):
        return False
    count = 1
    for axis in range(node.ndim - 2):
        count *= len(phases_of(node, axis))
    return count <= numerics.LOOPS.conv_matmul_phases
