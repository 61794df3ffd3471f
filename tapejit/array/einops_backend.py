"""einops on tensors: `einops.rearrange(x, "b h w c -> b (h w) c")` and its relatives.

einops asks the subclasses of its `AbstractBackend` whether a tensor is theirs, so one
has to exist once einops is there. `after_import` has it made then: at once if einops
was imported before tapejit.

Start reading at `add_backend`, then `Backend`.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from tapejit.array import manipulation, reductions
from tapejit.array.arrangement import tile
from tapejit.array.contraction import einsum
from tapejit.array.creation import arange, asarray
from tapejit.base.types import is_differentiable
from tapejit.tensor.dispatch import HANDLES
from tapejit.tensor.tensor import Tensor

REDUCTIONS = {
    "min": reductions.min,
    "max": reductions.max,
    "sum": reductions.sum,
    "mean": reductions.mean,
    "prod": reductions.prod,
    "any": reductions.any,
    "all": reductions.all,
}


class Backend:
    """What einops needs of tapejit; the names are einops's."""

    framework_name = "tapejit"

    def is_appropriate_type(self, tensor: Any) -> bool:
        return isinstance(tensor, Tensor) or type(tensor) in HANDLES

    def from_numpy(self, x: Any) -> Tensor:
        return asarray(x)

    def to_numpy(self, x: Any) -> Any:
        return np.asarray(x)

    def arange(self, start: Any, stop: Any) -> Tensor:
        return arange(start, stop)

    def shape(self, x: Any) -> tuple[int, ...]:
        """Plain numbers: einops keeps what it has worked out for a shape."""
        return tuple(map(operator.index, x.shape))

    def reshape(self, x: Any, shape: Sequence[Any]) -> Tensor:
        return manipulation.reshape(x, tuple(shape))

    def transpose(self, x: Any, axes: Sequence[int]) -> Tensor:
        return manipulation.permute_dims(x, tuple(axes))

    def reduce(self, x: Any, operation: str, axes: Sequence[int]) -> Tensor:
        return REDUCTIONS[operation](x, axis=tuple(axes))

    def stack_on_zeroth_dimension(self, tensors: Sequence[Any]) -> Tensor:
        return manipulation.stack(tensors)

    def add_axis(self, x: Any, new_position: int) -> Tensor:
        return manipulation.expand_dims(x, new_position)

    def add_axes(self, x: Any, n_axes: int, pos2len: dict[int, Any]) -> Tensor:
        """New axes along which `x` is repeated, without a copy."""
        for position in pos2len:
            x = manipulation.expand_dims(x, position)
        sizes = [pos2len.get(at, size) for at, size in enumerate(x.shape)]
        return manipulation.broadcast_to(x, tuple(sizes))

    def tile(self, x: Any, repeats: Sequence[int]) -> Tensor:
        return tile(x, tuple(repeats))

    def concat(self, tensors: Sequence[Any], axis: int) -> Tensor:
        return manipulation.concat(tensors, axis)

    def is_float_type(self, x: Any) -> bool:
        return is_differentiable(x.dtype)

    def einsum(self, pattern: str, *tensors: Any) -> Tensor:
        return einsum(pattern, *tensors)


MADE: Final[list[type]] = []  # einops does not hold them


def add_backend(abstract: type) -> None:
    """Make a subclass of einops's `AbstractBackend`, which is how it is found."""
    MADE.append(type("TapejitBackend", (Backend, abstract), {}))
