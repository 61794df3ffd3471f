"""Convolutions as products of matrices: which ones, and what they see of their input.

A product reads windows where they lie, so its input is in memory with the zeros that
are around it and between its elements. `Stretch` says for an axis what that memory has.

Start reading at `is_windowed_product`, then `stretches_of`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from tapejit.ir.node import Node

FEW_FEATURES: Final = 4  # of a group, for which all groups are better done at once


class Stretch(NamedTuple):
    """The part of an axis that windows see, in the memory they are read from.

    It has `size` places. `length` elements, from `first` on, are at `start` and at
    every `step` from there; zeros are elsewhere.
    """

    first: int
    length: int
    start: int
    step: int
    size: int

    @property
    def has_zeros(self) -> bool:
        """Whether there is something between elements or around them."""
        return self.step != 1 or self.length != self.size


def stretches_of(node: Node) -> list[Stretch]:
    """What a convolution sees of each spatial axis of its input.

    >>> from tapejit import ops
    >>> from tapejit.ir import param
    >>> from tapejit.types import TensorType
    >>> x = param("x", TensorType.parse("f32[2,6,3]"))
    >>> w = param("w", TensorType.parse("f32[3,3,8]"))
    >>> attrs = {"strides": (1,), "dilations": (1,), "input_dilations": (1,)}
    >>> stretches_of(ops.conv(x, w, padding=((1, 1),), groups=1, **attrs))
    [Stretch(first=0, length=6, start=1, step=1, size=8)]
    >>> stretches_of(ops.conv(x, w, padding=((-1, 0),), groups=1, **attrs))
    [Stretch(first=1, length=5, start=0, step=1, size=5)]
    """
    x, filters = node.inputs
    attrs, found = node.attrs, []
    for axis, (before, _) in enumerate(attrs["padding"]):
        low, step = int(before), int(attrs["input_dilations"][axis])
        stride, dilation = int(attrs["strides"][axis]), int(attrs["dilations"][axis])
        size = (int(node.shape[axis + 1]) - 1) * stride
        size += (int(filters.shape[axis]) - 1) * dilation + 1
        first = max(0, -(low // step))
        end = min(int(x.shape[axis + 1]), -((low - size) // step))
        start = low + first * step
        found.append(Stretch(first, max(0, end - first), start, step, size))
    return found


def is_windowed_product(node: Node) -> bool:
    """Whether a convolution is computed as a product of matrices.

    Many small groups are not; windows that see nothing but zeros have no input.
    """
    features = int(node.shape[-1]) // int(node.attrs["groups"])
    is_whole = node.dtype.kind == "f" and node.dtype.itemsize >= 4
    is_wide = node.attrs["groups"] == 1 or features >= FEW_FEATURES
    return is_whole and is_wide and all(seen.length for seen in stretches_of(node))
