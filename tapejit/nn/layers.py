"""Layers with weights: a linear map and a table; and layers without.

A layer has a dtype, that of its variables, and computes in it: inputs of other dtypes
are converted. Names and defaults are Keras's where it has them.

`Layer` is what those with variables have in common: they are made at the first call,
which tells their sizes, or at once if `input_size` is given.

Start reading at `Layer`, then `Dense`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from tapejit.array.manipulation import reshape
from tapejit.array.matmul import matmul
from tapejit.base.config import MIXED
from tapejit.base.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError
from tapejit.base.public import public
from tapejit.base.types import (
    DType,
    as_dtype,
    default_float,
    is_complex,
    is_differentiable,
)
from tapejit.nn import building, initializers
from tapejit.nn import functional as functions
from tapejit.nn.functional import activations
from tapejit.nn.functional.windows import positive
from tapejit.nn.module import Module
from tapejit.tape.generator import DEFAULT, Generator
from tapejit.tape.variable import Variable
from tapejit.tensor.dispatch import as_operand, cast
from tapejit.tensor.tensor import Tensor

__all__ = ["Activation", "Dense", "Dropout", "Embedding", "Flatten"]

Function = Callable[..., Any]


class Layer(Module):
    """A module that makes its variables when it learns their sizes.

    `MADE` names the attributes that appear then; a subclass makes them in `_build`.
    """

    MADE: tuple[str, ...] = ()

    def __init__(
        self,
        dtype: Any,
        name: str | None,
        default_name: str,
        policy: str | None = None,
    ) -> None:
        self.dtype = default_float() if dtype is None else as_dtype(dtype)
        self.name = default_name if name is None else str(name)
        if not is_differentiable(self.dtype):
            raise DTypeError(
                f"the variables of a layer are floats, got {self.dtype}", op=self.name
            )
        self._set_policy(policy)

    @property
    def is_built(self) -> bool:
        """Whether the variables have been made."""
        return all(name in vars(self) for name in self.MADE)

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name != "MADE"]

    def __getattr__(self, name: str) -> Any:
        if name in type(self).MADE:
            raise AttributeError(
                f"{type(self).__name__} has no {name} before its first call; give it "
                "input_size= to have it at once",
                name=name,
                obj=self,
            )
        return super().__getattr__(name)

    def _ready(self, *sizes: Any, beside: Tensor | None = None) -> None:
        """Make the variables if they are missing: beside the first input, if any."""
        if not self.is_built:
            here = nullcontext() if beside is None else beside.device
            with building.building, here:
                if not self.is_built:
                    self._build(*sizes)

    def _build(self, *sizes: Any) -> None:
        raise NotImplementedError

    def _new(self, attribute: str, initializer: Function, shape: Any) -> Variable:
        return building.make_variable(
            initializer, tuple(shape), self.dtype, f"{self.name}.{attribute}"
        )

    def _input(self, x: Any) -> Tensor:
        """An input in the dtype in which the layer computes."""
        operand = as_operand(x, self.name)
        if is_complex(operand.dtype) and not is_complex(self.dtype):
            raise DTypeError(
                f"computes with {self.dtype}, got {operand._type}",
                op=self.name,
                help="give it tj.real(x) and tj.imag(x), or tj.abs(x)",
            )
        return cast(operand, self._computes_in())

    def _computes_in(self) -> DType:
        """The dtype in which inputs meet the variables."""
        return self.dtype


class WeightedLayer(Layer):
    """What layers with a weight have: perhaps a bias, and an activation at the end."""

    MADE = ("weight", "bias")
    weight: Variable
    bias: Variable | None

    def _set_up(
        self,
        activation: str | Function | None,
        use_bias: bool,
        kernel_initializer: str | Function,
        bias_initializer: str | Function,
        input_size: int | None,
        generator: Generator | None,
    ) -> None:
        self.activation = activation_of(activation)
        self.use_bias = bool(use_bias)
        self._kernel_initializer = initializers.get(kernel_initializer, generator)
        self._bias_initializer = initializers.get(bias_initializer, generator)
        if input_size is not None:
            self._ready(positive(input_size, "input_size", self.name))

    def _computes_in(self) -> DType:
        if not MIXED:
            return self.dtype
        from tapejit.tensor.mixed_precision import product_dtype

        return product_dtype(self.dtype)

    def _beside(self, x: Tensor, variable: Variable) -> Any:
        """A variable in the dtype of what it meets, which is a half under a policy."""
        if variable.dtype == x.dtype:
            return variable
        return cast(as_operand(variable, self.name), x.dtype)

    def _make(self, shape: tuple[int, ...], features: int) -> None:
        """Both variables, or none if one fails."""
        weight = self._new("weight", self._kernel_initializer, shape)
        bias = None
        if self.use_bias:
            bias = self._new("bias", self._bias_initializer, (features,))
        self.weight, self.bias = weight, bias

    def _finished(self, out: Tensor) -> Tensor:
        if self.bias is not None:
            out = out + self._beside(out, self.bias)
        return out if self.activation is None else self.activation(out)


@public("tapejit.nn")
class Dense(WeightedLayer):
    """`activation(x @ weight + bias)`, with `units` columns.

    `activation` is a function or the name of one in `tj.nn`. The number of inputs is
    learnt from the first call, unless `input_size` gives it. `generator` is where
    initial weights are drawn from, the default one otherwise. By a `policy` of
    `tj.mixed_precision`, its own or the one in force, the product, the bias and the
    activation are computed in halves.

    >>> import tapejit as tj
    >>> layer = tj.nn.Dense(2, "relu", kernel_initializer="ones")
    >>> print(layer([[1.0, 2.0, 3.0], [-1.0, 0.0, 0.0]]))
    [[6. 6.]
     [0. 0.]]
    >>> layer.weight.shape, layer.bias.shape
    ((3, 2), (2,))
    """

    def __init__(
        self,
        units: int,
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
        super().__init__(dtype, name, "dense", policy)
        self.units = positive(units, "units", self.name)
        initial = kernel_initializer, bias_initializer
        self._set_up(activation, use_bias, *initial, input_size, generator)

    def _build(self, *sizes: Any) -> None:
        self._make((int(sizes[0]), self.units), self.units)

    def __call__(self, x: Any) -> Tensor:
        operand = self._input(x)
        if not operand.ndim:
            raise ShapeError(f"needs an axis of features, got {x!r}", op=self.name)
        self._ready(operand.shape[-1], beside=operand)
        if operand.shape[-1] != self.weight.shape[0]:
            raise ShapeError(
                f"was made for {self.weight.shape[0]} features, got {operand._type}",
                op=self.name,
                help="the last axis is that of the features",
            )
        return self._finished(matmul(operand, self._beside(operand, self.weight)))

    def __repr__(self) -> str:
        size = f"{self.weight.shape[0]} -> {self.units}" if self.is_built else None
        return described(
            self,
            size or str(self.units),
            activation=name_of(self.activation),
            use_bias=None if self.use_bias else False,
            policy=self.policy,
        )


@public("tapejit.nn")
class Embedding(Layer):
    """Rows of a trainable table, looked up by integers from 0 up to `count`.

    >>> import tapejit as tj
    >>> layer = tj.nn.Embedding(10, 4)
    >>> layer([[1, 2, 3]]).shape
    (1, 3, 4)
    """

    MADE = ("weight",)
    weight: Variable

    def __init__(
        self,
        count: int,
        size: int,
        initializer: str | Function = "uniform",
        name: str | None = None,
        *,
        dtype: Any = None,
        generator: Generator | None = None,
    ) -> None:
        super().__init__(dtype, name, "embedding")
        self.count = positive(count, "count", self.name)
        self.size = positive(size, "size", self.name)
        self._initializer = initializers.get(initializer, generator)
        self._ready()

    def _build(self, *sizes: Any) -> None:
        self.weight = self._new("weight", self._initializer, (self.count, self.size))

    def __call__(self, indices: Any) -> Tensor:
        return functions.embedding(self.weight, indices)

    def __repr__(self) -> str:
        return described(self, f"{self.count}, {self.size}")


@public("tapejit.nn")
class Dropout(Module):
    """In training, elements made 0 with probability `rate`, the others grown.

    Without a `generator` it gets one of its own, split off from the default one when
    the layer is made. It belongs to the state of the model, so that training that is
    interrupted goes on with the same draws.

    >>> import tapejit as tj
    >>> layer = tj.nn.Dropout(0.5, generator=tj.random.Generator(3))
    >>> print(layer(tj.ones(6), training=True))
    [2. 2. 2. 2. 0. 0.]
    >>> print(layer(tj.ones(6)))
    [1. 1. 1. 1. 1. 1.]
    """

    def __init__(
        self,
        rate: float,
        generator: Generator | None = None,
        *,
        noise_shape: Any = None,
        name: str | None = None,
    ) -> None:
        self.name = "dropout" if name is None else str(name)
        self.rate = float(rate)
        if not 0 <= self.rate <= 1:
            raise ArgumentError(
                f"rate is a probability from 0 to 1, got {rate}", op=self.name
            )
        self.noise_shape = None if noise_shape is None else tuple(noise_shape)
        if generator is None:
            (generator,) = building.beside(lambda: DEFAULT.split(1))
        self.generator = generator

    def __call__(self, x: Any, training: Any = False) -> Tensor:
        return functions.dropout(
            x,
            self.rate,
            training=bool(training),
            noise_shape=self.noise_shape,
            generator=self.generator,
        )

    def __repr__(self) -> str:
        return described(self, f"{self.rate:g}", noise_shape=self.noise_shape)


@public("tapejit.nn")
class Flatten(Module):
    """All axes but the first made one.

    >>> import tapejit as tj
    >>> tj.nn.Flatten()(tj.ones((5, 2, 3))).shape
    (5, 6)
    """

    def __call__(self, x: Any) -> Tensor:
        operand = as_operand(x, "flatten")
        if not operand.ndim:
            raise ShapeError("needs an axis of examples, got a number", op="flatten")
        first, *rest = operand.shape
        return reshape(operand, (first, math.prod(rest)))


@public("tapejit.nn")
class Activation(Module):
    """A function of `tj.nn` by its name, or any function, as a layer.

    >>> import tapejit as tj
    >>> print(tj.nn.Activation("relu")([-1.0, 2.0]))
    [0. 2.]
    """

    def __init__(self, function: str | Function, name: str | None = None) -> None:
        super().__init__(name)
        found = activation_of(function)
        if found is None:
            raise ArgumentTypeError("Activation takes a function or its name, got None")
        self.function = found

    def __call__(self, x: Any) -> Any:
        return self.function(x)

    def __repr__(self) -> str:
        return f"Activation({name_of(self.function)})"


def activation_of(activation: Any) -> Function | None:
    """A function by its name in `tj.nn`; a callable or None as it is.

    >>> activation_of("relu").__name__
    'relu'
    """
    if activation is None or activation == "linear":
        return None
    if isinstance(activation, str):
        known = [*vars(activations)["__all__"], "sigmoid", "tanh"]
        if activation not in known:
            import difflib

            near = difflib.get_close_matches(activation, known, n=1)
            tail = f"; did you mean {near[0]!r}?" if near else ""
            raise ArgumentError(
                f"no activation is called {activation!r}{tail}",
                help=f"there are {', '.join(sorted(known))}",
            )
        found: Function = getattr(functions, activation)
        return found
    if not callable(activation):
        raise ArgumentTypeError(
            f"an activation is a name or a function, got {type(activation).__name__}"
        )
    function: Function = activation
    return function


def described(layer: Module, sizes: str, **options: Any) -> str:
    """`Dense(4 -> 2, activation=relu)`: the options that are not None."""
    texts = [sizes] if sizes else []
    texts += [f"{name}={x}" for name, x in options.items() if x is not None]
    return f"{type(layer).__name__}({', '.join(texts)})"


def name_of(function: Function | None) -> str | None:
    return None if function is None else getattr(function, "__name__", repr(function))
