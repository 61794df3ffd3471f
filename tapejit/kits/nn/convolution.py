"""Layers that slide windows over images and sequences: convolution and pooling.

Inputs are [batch, *spatial, channels]. Names and defaults are Keras's: unlike the
functions, layers of convolution pad only when told to.

Start reading at `Conv2D`.
"""

from __future__ import annotations

from typing import Any, ClassVar

from tapejit.api import nn as functions
from tapejit.api.generator import Generator
from tapejit.api.nn.windows import per_axis
from tapejit.api.tensor import Tensor
from tapejit.api.variable import Variable
from tapejit.errors import ArgumentError, ShapeError
from tapejit.kits.nn import initializers
from tapejit.kits.nn.layers import (
    Function,
    Layer,
    activation_of,
    described,
    name_of,
    positive,
)
from tapejit.kits.nn.module import Module


class _Convolution(Layer):
    """What layers of convolution share: filters, a bias, an activation."""

    MADE = ("weight", "bias")
    RANK: ClassVar[int]
    weight: Variable
    bias: Variable | None

    def __init__(
        self,
        filters: int,
        kernel_size: Any,
        strides: Any = 1,
        padding: Any = "VALID",
        dilations: Any = 1,
        groups: int = 1,
        activation: str | Function | None = None,
        use_bias: bool = True,
        kernel_initializer: str | Function = "glorot_uniform",
        bias_initializer: str | Function = "zeros",
        name: str | None = None,
        *,
        input_size: int | None = None,
        dtype: Any = None,
        generator: Generator | None = None,
    ) -> None:
        super().__init__(dtype, name, type(self).__name__.lower())
        self.filters = positive(filters, "filters", self.name)
        self.kernel_size = per_axis(kernel_size, self.RANK, "kernel sizes", self.name)
        self.strides = per_axis(strides, self.RANK, "strides", self.name)
        self.dilations = per_axis(dilations, self.RANK, "dilations", self.name)
        self.padding = padding
        self.groups = positive(groups, "groups", self.name)
        if self.filters % self.groups:
            raise ArgumentError(
                f"{self.filters} filters cannot be shared among {self.groups} groups",
                op=self.name,
            )
        self.activation = activation_of(activation)
        self.use_bias = bool(use_bias)
        self._kernel_initializer = initializers.get(kernel_initializer, generator)
        self._bias_initializer = initializers.get(bias_initializer, generator)
        if input_size is not None:
            self._ready(positive(input_size, "input_size", self.name))

    def _build(self, *sizes: Any) -> None:
        channels = int(sizes[0])
        if channels % self.groups:
            raise ShapeError(
                f"{channels} channels cannot be shared among {self.groups} groups",
                op=self.name,
            )
        shape = (*self.kernel_size, channels // self.groups, self.filters)
        weight = self._new("weight", self._kernel_initializer, shape)
        bias = None
        if self.use_bias:
            bias = self._new("bias", self._bias_initializer, shape[-1:])
        self.weight, self.bias = weight, bias

    def __call__(self, x: Any) -> Tensor:
        operand = self._input(x)
        if operand.ndim != self.RANK + 2:
            axes = "height, width" if self.RANK == 2 else "width"
            raise ShapeError(
                f"takes [batch, {axes}, channels], got {operand._type}", op=self.name
            )
        self._ready(operand.shape[-1])
        channels = self.weight.shape[-2] * self.groups
        if operand.shape[-1] != channels:
            raise ShapeError(
                f"was made for {channels} channels, got {operand._type}",
                op=self.name,
                help="the last axis is that of the channels",
            )
        convolve = functions.conv1d if self.RANK == 1 else functions.conv2d
        out = convolve(
            operand,
            self.weight,
            self.strides,
            self.padding,
            self.dilations,
            self.groups,
        )
        if self.bias is not None:
            out = out + self.bias
        return out if self.activation is None else self.activation(out)

    def __repr__(self) -> str:
        size = str(self.filters)
        if self.is_built:
            size = f"{self.weight.shape[-2] * self.groups} -> {size}"
        ones = (1,) * self.RANK
        is_valid = isinstance(self.padding, str) and self.padding.upper() == "VALID"
        return described(
            self,
            f"{size}, {self.kernel_size}",
            strides=None if self.strides == ones else self.strides,
            padding=None if is_valid else self.padding,
            dilations=None if self.dilations == ones else self.dilations,
            groups=None if self.groups == 1 else self.groups,
            activation=name_of(self.activation),
            use_bias=None if self.use_bias else False,
        )


class Conv1D(_Convolution):
    """`activation(tj.nn.conv1d(x, weight) + bias)`, with `filters` features.

    Arguments are those of `Conv2D`; `x` is [batch, width, channels].

    >>> import tapejit as tj
    >>> layer = tj.nn.Conv1D(4, 3, padding="SAME")
    >>> layer(tj.ones((2, 10, 5))).shape, layer.weight.shape
    ((2, 10, 4), (3, 5, 4))
    """

    RANK = 1


class Conv2D(_Convolution):
    """`activation(tj.nn.conv2d(x, weight) + bias)`, with `filters` features.

    `kernel_size` is that of the window, one number or one for each axis; `strides`,
    `padding`, `dilations` and `groups` are those of `tj.nn.conv2d`. `activation` is a
    function or the name of one in `tj.nn`. The number of channels is learnt from the
    first call, unless `input_size` gives it.

    >>> import tapejit as tj
    >>> layer = tj.nn.Conv2D(8, 3, activation="relu")
    >>> layer(tj.ones((2, 28, 28, 1))).shape
    (2, 26, 26, 8)
    >>> layer.weight.shape, layer.bias.shape
    ((3, 3, 1, 8), (8,))
    """

    RANK = 2


class _Pooling(Module):
    """What layers of pooling share: a window over height and width."""

    def __init__(
        self, window: Any = 2, strides: Any = None, padding: Any = "VALID"
    ) -> None:
        name = type(self).__name__
        self.window = per_axis(window, 2, "window sizes", name)
        self.strides = (
            self.window if strides is None else per_axis(strides, 2, "strides", name)
        )
        self.padding = padding

    def __repr__(self) -> str:
        is_valid = isinstance(self.padding, str) and self.padding.upper() == "VALID"
        return described(
            self,
            str(self.window),
            strides=None if self.strides == self.window else self.strides,
            padding=None if is_valid else self.padding,
        )


class MaxPool2D(_Pooling):
    """`tj.nn.max_pool` over images, [batch, height, width, channels].

    >>> import tapejit as tj
    >>> tj.nn.MaxPool2D()(tj.ones((5, 28, 28, 8))).shape
    (5, 14, 14, 8)
    """

    def __call__(self, x: Any) -> Tensor:
        return functions.max_pool(x, self.window, self.strides, self.padding)


class AvgPool2D(_Pooling):
    """`tj.nn.avg_pool` over images, [batch, height, width, channels].

    >>> import tapejit as tj
    >>> tj.nn.AvgPool2D(3, strides=2, padding="SAME")(tj.ones((5, 28, 28, 8))).shape
    (5, 14, 14, 8)
    """

    def __call__(self, x: Any) -> Tensor:
        return functions.avg_pool(x, self.window, self.strides, self.padding)
