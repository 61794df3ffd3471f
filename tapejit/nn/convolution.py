"""Layers that slide windows over sequences, images and volumes.

Inputs are [batch, *spatial, channels]. Names and defaults are Keras's: unlike the
functions, layers of convolution pad only when told to.

Start reading at `Conv2D`.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

from tapejit.base.errors import ArgumentError, ShapeError
from tapejit.base.public import public
from tapejit.nn import functional as functions
from tapejit.nn.functional.windows import per_axis, positive
from tapejit.nn.layers import Function, WeightedLayer, described, name_of
from tapejit.nn.module import Module, in_small_letters
from tapejit.tape.generator import Generator
from tapejit.tensor.dispatch import as_operand
from tapejit.tensor.tensor import Tensor

# By the number of spatial axes.
AXES: Final = {1: "width", 2: "height, width", 3: "depth, height, width"}
FUNCTIONS: Final[dict[int, Function]] = {
    1: functions.conv1d,
    2: functions.conv2d,
    3: functions.conv3d,
}


class _Convolution(WeightedLayer):
    """What layers of convolution share: filters, a bias, an activation."""

    RANK: ClassVar[int]

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
        policy: str | None = None,
        generator: Generator | None = None,
    ) -> None:
        super().__init__(dtype, name, in_small_letters(type(self).__name__), policy)
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
        initial = kernel_initializer, bias_initializer
        self._set_up(activation, use_bias, *initial, input_size, generator)

    def _build(self, *sizes: Any) -> None:
        channels = int(sizes[0])
        if channels % self.groups:
            raise ShapeError(
                f"{channels} channels cannot be shared among {self.groups} groups",
                op=self.name,
            )
        shape = (*self.kernel_size, channels // self.groups, self.filters)
        self._make(shape, self.filters)

    def __call__(self, x: Any) -> Tensor:
        operand = self._input(x)
        if operand.ndim != self.RANK + 2:
            raise ShapeError(
                f"takes [batch, {AXES[self.RANK]}, channels], got {operand._type}",
                op=self.name,
            )
        self._ready(operand.shape[-1], beside=operand)
        channels = self._channels()
        if operand.shape[-1] != channels:
            raise ShapeError(
                f"was made for {channels} channels, got {operand._type}",
                op=self.name,
                help="the last axis is that of the channels",
            )
        return self._finished(self._convolved(operand))

    def _channels(self) -> int:
        """How many channels the weight is for."""
        return self.weight.shape[-2] * self.groups

    def _convolved(self, x: Tensor) -> Tensor:
        weight = self._beside(x, self.weight)
        out: Tensor = FUNCTIONS[self.RANK](
            x, weight, self.strides, self.padding, self.dilations, self.groups
        )
        return out

    def _size(self) -> str:
        """How many channels become how many."""
        start = f"{self._channels()} -> " if self.is_built else ""
        return f"{start}{self.filters}, "

    def __repr__(self) -> str:
        ones = (1,) * self.RANK
        is_valid = isinstance(self.padding, str) and self.padding.upper() == "VALID"
        return described(
            self,
            f"{self._size()}{self.kernel_size}",
            strides=None if self.strides == ones else self.strides,
            padding=None if is_valid else self.padding,
            dilations=None if self.dilations == ones else self.dilations,
            groups=None if self.groups == 1 else self.groups,
            activation=name_of(self.activation),
            use_bias=None if self.use_bias else False,
            policy=self.policy,
        )


@public("tapejit.nn")
class Conv1D(_Convolution):
    """`activation(tj.nn.conv1d(x, weight) + bias)`, with `filters` features.

    Arguments are those of `Conv2D`; `x` is [batch, width, channels].

    >>> import tapejit as tj
    >>> layer = tj.nn.Conv1D(4, 3, padding="SAME")
    >>> layer(tj.ones((2, 10, 5))).shape, layer.weight.shape
    ((2, 10, 4), (3, 5, 4))
    """

    RANK = 1


@public("tapejit.nn")
class Conv2D(_Convolution):
    """`activation(tj.nn.conv2d(x, weight) + bias)`, with `filters` features.

    `kernel_size` is that of the window, one number or one for each axis; `strides`,
    `padding`, `dilations` and `groups` are those of `tj.nn.conv2d`. `activation` is a
    function or the name of one in `tj.nn`. The number of channels is learnt from the
    first call, unless `input_size` gives it. `policy` is as for `tj.nn.Dense`.

    >>> import tapejit as tj
    >>> layer = tj.nn.Conv2D(8, 3, activation="relu")
    >>> layer(tj.ones((2, 28, 28, 1))).shape
    (2, 26, 26, 8)
    >>> layer.weight.shape, layer.bias.shape
    ((3, 3, 1, 8), (8,))
    """

    RANK = 2


@public("tapejit.nn")
class Conv3D(_Convolution):
    """`activation(tj.nn.conv3d(x, weight) + bias)`, with `filters` features.

    Arguments are those of `Conv2D`; `x` is [batch, depth, height, width, channels].

    >>> import tapejit as tj
    >>> layer = tj.nn.Conv3D(4, 3, strides=2)
    >>> layer(tj.ones((2, 9, 9, 9, 1))).shape, layer.weight.shape
    ((2, 4, 4, 4, 4), (3, 3, 3, 1, 4))
    """

    RANK = 3


@public("tapejit.nn")
class DepthwiseConv2D(_Convolution):
    """`activation(tj.nn.depthwise_conv2d(x, weight) + bias)`: each channel alone.

    Every channel becomes `depth_multiplier` of them. The other arguments are those of
    `Conv2D`.

    >>> import tapejit as tj
    >>> layer = tj.nn.DepthwiseConv2D(3, padding="SAME", depth_multiplier=2)
    >>> layer(tj.ones((2, 28, 28, 5))).shape, layer.weight.shape
    ((2, 28, 28, 10), (3, 3, 5, 2))
    """

    RANK = 2

    def __init__(
        self,
        kernel_size: Any,
        strides: Any = 1,
        padding: Any = "VALID",
        depth_multiplier: int = 1,
        dilations: Any = 1,
        activation: str | Function | None = None,
        use_bias: bool = True,
        depthwise_initializer: str | Function = "glorot_uniform",
        bias_initializer: str | Function = "zeros",
        name: str | None = None,
        *,
        input_size: int | None = None,
        dtype: Any = None,
        policy: str | None = None,
        generator: Generator | None = None,
    ) -> None:
        self.depth_multiplier = positive(
            depth_multiplier, "depth_multiplier", type(self).__name__
        )
        super().__init__(
            self.depth_multiplier,
            kernel_size,
            strides,
            padding,
            dilations,
            activation=activation,
            use_bias=use_bias,
            kernel_initializer=depthwise_initializer,
            bias_initializer=bias_initializer,
            name=name,
            input_size=input_size,
            dtype=dtype,
            policy=policy,
            generator=generator,
        )

    def _build(self, *sizes: Any) -> None:
        channels = int(sizes[0])
        shape = (*self.kernel_size, channels, self.depth_multiplier)
        self._make(shape, channels * self.depth_multiplier)

    def _convolved(self, x: Tensor) -> Tensor:
        weight = self._beside(x, self.weight)
        return functions.depthwise_conv2d(
            x, weight, self.strides, self.padding, self.dilations
        )

    def _size(self) -> str:
        if not self.is_built:
            return ""
        channels = self._channels()
        return f"{channels} -> {channels * self.depth_multiplier}, "


class _Pooling(Module):
    """What layers of pooling share: a window over the spatial axes."""

    RANK: ClassVar[int]

    def __init__(
        self,
        window: Any = 2,
        strides: Any = None,
        padding: Any = "VALID",
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        rank, kind = self.RANK, type(self).__name__
        self.window = per_axis(window, rank, "window sizes", kind)
        self.strides = (
            self.window if strides is None else per_axis(strides, rank, "strides", kind)
        )
        self.padding = padding

    def _operand(self, x: Any) -> Tensor:
        operand = as_operand(x, self.name)
        if operand.ndim != self.RANK + 2:
            raise ShapeError(
                f"takes [batch, {AXES[self.RANK]}, channels], got {operand._type}",
                op=self.name,
            )
        return operand

    def __repr__(self) -> str:
        is_valid = isinstance(self.padding, str) and self.padding.upper() == "VALID"
        return described(
            self,
            str(self.window),
            strides=None if self.strides == self.window else self.strides,
            padding=None if is_valid else self.padding,
        )


class _MaxPooling(_Pooling):
    """The largest of each window."""

    def __call__(self, x: Any) -> Tensor:
        operand = self._operand(x)
        return functions.max_pool(operand, self.window, self.strides, self.padding)


class _AvgPooling(_Pooling):
    """The mean of each window."""

    def __call__(self, x: Any) -> Tensor:
        operand = self._operand(x)
        return functions.avg_pool(operand, self.window, self.strides, self.padding)


@public("tapejit.nn")
class MaxPool2D(_MaxPooling):
    """`tj.nn.max_pool` over images, [batch, height, width, channels].

    >>> import tapejit as tj
    >>> tj.nn.MaxPool2D()(tj.ones((5, 28, 28, 8))).shape
    (5, 14, 14, 8)
    """

    RANK = 2


@public("tapejit.nn")
class AvgPool2D(_AvgPooling):
    """`tj.nn.avg_pool` over images, [batch, height, width, channels].

    >>> import tapejit as tj
    >>> tj.nn.AvgPool2D(3, strides=2, padding="SAME")(tj.ones((5, 28, 28, 8))).shape
    (5, 14, 14, 8)
    """

    RANK = 2


@public("tapejit.nn")
class MaxPool3D(_MaxPooling):
    """`tj.nn.max_pool` over volumes, [batch, depth, height, width, channels].

    >>> import tapejit as tj
    >>> tj.nn.MaxPool3D()(tj.ones((5, 8, 8, 8, 2))).shape
    (5, 4, 4, 4, 2)
    """

    RANK = 3


@public("tapejit.nn")
class AvgPool3D(_AvgPooling):
    """`tj.nn.avg_pool` over volumes, [batch, depth, height, width, channels].

    >>> import tapejit as tj
    >>> tj.nn.AvgPool3D((1, 2, 2))(tj.ones((5, 8, 8, 8, 2))).shape
    (5, 8, 4, 4, 2)
    """

    RANK = 3
