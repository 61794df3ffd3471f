"""Layers that bring their input to a common scale.

The scale and bias of a feature are trainable; what `BatchNorm` has seen is state that
tapes do not watch. Statistics of half-precision inputs are taken and kept in float32.

Start reading at `LayerNorm`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tapejit.array.elementwise import stop_gradient
from tapejit.array.precision import axes_of
from tapejit.base.errors import ArgumentError, ShapeError
from tapejit.base.public import public
from tapejit.base.types import wide_dtype
from tapejit.nn import building, initializers
from tapejit.nn import functional as functions
from tapejit.nn.functional.windows import positive
from tapejit.nn.layers import Layer, described
from tapejit.tape.variable import Variable
from tapejit.tensor.dispatch import cast
from tapejit.tensor.tensor import Tensor


class _Normalization(Layer):
    """What both have: an axis, an epsilon, a scale and a bias."""

    MADE: tuple[str, ...] = ("scale", "bias")
    scale: Variable | None
    bias: Variable | None

    def __init__(
        self,
        axis: int | Sequence[int],
        epsilon: float,
        use_scale: bool,
        use_bias: bool,
        dtype: Any,
        name: str | None,
        default_name: str,
    ) -> None:
        super().__init__(dtype, name, default_name)
        self.axis = axis if isinstance(axis, int) else tuple(axis)
        self.epsilon = float(epsilon)
        if not 0 <= self.epsilon < math.inf:
            raise ArgumentError(
                f"epsilon is a number from 0 on, got {epsilon}", op=self.name
            )
        self.use_scale = bool(use_scale)
        self.use_bias = bool(use_bias)

    def _build(self, *sizes: Any) -> None:
        shape = tuple(int(size) for size in sizes)
        ones, zeros = initializers.ones(), initializers.zeros()
        scale = self._new("scale", ones, shape) if self.use_scale else None
        bias = self._new("bias", zeros, shape) if self.use_bias else None
        self.scale, self.bias = scale, bias

    def _sizes(self, x: Tensor) -> tuple[Any, ...]:
        return tuple(x.shape[at] for at in axes_of(x, self.axis, self.name))

    def _check(self, x: Tensor, sizes: tuple[Any, ...]) -> None:
        for variable in (self.scale, self.bias):
            if variable is not None and variable.shape != sizes:
                raise ShapeError(
                    f"was made for sizes {variable.shape} along axis {self.axis}, got "
                    f"{x._type}",
                    op=self.name,
                )

    def __repr__(self) -> str:
        found = [vars(self).get(name) for name in self.MADE]
        made = [variable for variable in found if variable is not None]
        sizes = ", ".join(map(str, made[0].shape)) if made else ""
        axis = None if self.axis == -1 else self.axis
        return described(self, sizes, axis=axis, epsilon=f"{self.epsilon:g}")


@public("tapejit.nn")
class LayerNorm(_Normalization):
    """Each example to mean 0 and variance 1 along `axis`, then scaled and shifted.

    `epsilon` is added to the variance. `input_size`, the sizes along `axis`, is learnt
    from the first call unless given.

    >>> import tapejit as tj
    >>> print(tj.nn.LayerNorm(epsilon=0.0)([[1.0, 3.0], [10.0, 50.0]]))
    [[-1.  1.]
     [-1.  1.]]
    """

    def __init__(
        self,
        epsilon: float = 1e-3,
        *,
        axis: int | Sequence[int] = -1,
        use_scale: bool = True,
        use_bias: bool = True,
        name: str | None = None,
        input_size: int | Sequence[int] | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(axis, epsilon, use_scale, use_bias, dtype, name, "layer_norm")
        if input_size is not None:
            given = (input_size,) if isinstance(input_size, int) else input_size
            self._ready(*(positive(n, "input_size", self.name) for n in given))

    def __call__(self, x: Any) -> Tensor:
        operand = self._input(x)
        sizes = self._sizes(operand)
        self._ready(*sizes, beside=operand)
        self._check(operand, sizes)
        return functions.layer_norm(
            operand, self.scale, self.bias, self.axis, epsilon=self.epsilon
        )


@public("tapejit.nn")
class BatchNorm(_Normalization):
    """Each feature to mean 0 and variance 1 over the batch, then scaled and shifted.

    In training the statistics are those of the batch, and running averages of them are
    kept: `moving · momentum + batch · (1 - momentum)`, with the variance of a
    population. Otherwise the running averages are used. `axis` is that of the features.

    >>> import tapejit as tj
    >>> layer = tj.nn.BatchNorm(momentum=0.5, epsilon=0.0)
    >>> print(layer([[1.0, 10.0], [3.0, 50.0]], training=True))
    [[-1. -1.]
     [ 1.  1.]]
    >>> print(layer.moving_mean, layer.moving_variance)
    [ 1. 15.] [ 1. 200.5]
    """

    MADE = ("scale", "bias", "moving_mean", "moving_variance")
    moving_mean: Variable
    moving_variance: Variable

    def __init__(
        self,
        momentum: float = 0.99,
        epsilon: float = 1e-3,
        *,
        axis: int = -1,
        use_scale: bool = True,
        use_bias: bool = True,
        name: str | None = None,
        input_size: int | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(axis, epsilon, use_scale, use_bias, dtype, name, "batch_norm")
        self.momentum = float(momentum)
        if not 0 <= self.momentum <= 1:
            raise ArgumentError(
                f"momentum is a share from 0 to 1, got {momentum}", op=self.name
            )
        if input_size is not None:
            self._ready(positive(input_size, "input_size", self.name))

    def _build(self, *sizes: Any) -> None:
        shape = tuple(int(size) for size in sizes)
        wide = wide_dtype(self.dtype)
        super()._build(*sizes)
        for attribute, initializer in (
            ("moving_mean", initializers.zeros()),
            ("moving_variance", initializers.ones()),
        ):
            label = f"{self.name}.{attribute}"
            variable = building.make_variable(
                initializer, shape, wide, label, trainable=False
            )
            setattr(self, attribute, variable)

    def __call__(self, x: Any, training: Any = False) -> Tensor:
        operand = self._input(x)
        sizes = self._sizes(operand)
        self._ready(*sizes, beside=operand)
        self._check(operand, sizes)
        wide = cast(operand, self.moving_mean.dtype)
        if training:
            (kept,) = axes_of(wide, self.axis, self.name)
            others = tuple(at for at in range(wide.ndim) if at != kept)
            if not others:
                raise ShapeError(
                    f"needs an axis of examples, got {operand._type}", op=self.name
                )
            mean, variance = functions.moments(wide, others)
            self._note(self.moving_mean, mean)
            self._note(self.moving_variance, variance)
        else:
            mean, variance = self.moving_mean.value(), self.moving_variance.value()
        out = functions.batch_norm(
            wide,
            mean,
            variance,
            self.bias,
            self.scale,
            axis=self.axis,
            epsilon=self.epsilon,
        )
        return cast(out, self.dtype)

    def _note(self, average: Variable, batch: Tensor) -> None:
        """Move a running average towards the batch; no gradient flows into it."""
        kept = stop_gradient(average) * self.momentum
        average.assign(kept + stop_gradient(batch) * (1 - self.momentum))
