"""Layers one after another.

Start reading at `Sequential`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from types import FunctionType
from typing import Any, overload

from tapejit.base.errors import ArgumentTypeError
from tapejit.base.public import public
from tapejit.nn.module import Module

__all__ = ["Sequential"]

Layer = Callable[..., Any]


@public("tapejit.nn")
class Sequential(Module):
    """Layers one after another, in a list that can grow.

    A layer is a module or any function of one tensor. `training` is passed on to those
    that take it. All compute by the `policy`, if one is given, but for those that have
    one of their own. What is appended after a function that calls the model was traced
    is seen at its next trace only.

    >>> import tapejit as tj
    >>> model = tj.nn.Sequential([tj.nn.Dense(3), tj.nn.relu, tj.nn.Dropout(0.5)])
    >>> model.append(tj.nn.Dense(1))
    >>> model(tj.ones((5, 2)), training=True).shape
    (5, 1)
    >>> model
    Sequential(
      layers.0: Dense(2 -> 3)
      layers.1: relu
      layers.2: Dropout(0.5)
      layers.3: Dense(3 -> 1)
    )
    """

    def __init__(
        self, *layers: Any, name: str | None = None, policy: str | None = None
    ) -> None:
        super().__init__(name, policy=policy)
        if len(layers) == 1 and not callable(layers[0]):
            layers = tuple(_listed(layers[0]))
        self.layers: list[Layer] = []
        self.extend(layers)

    def __call__(self, x: Any, training: Any = False) -> Any:
        for layer in self.layers:
            x = layer(x, training=training) if takes_training(layer) else layer(x)
        return x

    def append(self, layer: Layer) -> None:
        """Add a layer at the end.

        >>> import tapejit as tj
        >>> model = tj.nn.Sequential()
        >>> model.append(tj.nn.relu)
        >>> len(model)
        1
        """
        if not callable(layer) or isinstance(layer, type):
            shown = layer if isinstance(layer, type) else type(layer)
            raise ArgumentTypeError(
                f"a layer is called with a tensor, got {shown.__name__}",
                op="Sequential",
                help=f"write {shown.__name__}(...)" if shown is layer else None,
            )
        self.layers.append(layer)

    def extend(self, layers: Iterable[Layer]) -> None:
        """Add layers at the end.

        >>> import tapejit as tj
        >>> model = tj.nn.Sequential()
        >>> model.extend([tj.nn.relu, tj.nn.softmax])
        >>> len(model)
        2
        """
        for layer in layers:
            self.append(layer)

    def __len__(self) -> int:
        return len(self.layers)

    def __bool__(self) -> bool:
        return True  # as other modules: `if model:` asks whether there is one

    def __iter__(self) -> Iterator[Any]:
        return iter(self.layers)

    @overload
    def __getitem__(self, key: int) -> Any: ...
    @overload
    def __getitem__(self, key: slice) -> Sequential: ...
    def __getitem__(self, key: int | slice) -> Any:
        """A layer, or a model of some of the layers, which it shares."""
        if isinstance(key, slice):
            return Sequential(self.layers[key], policy=self.policy)
        return self.layers[key]

    def __repr__(self) -> str:
        lines = []
        for at, layer in enumerate(self.layers):
            is_function = not isinstance(layer, Module) and hasattr(layer, "__name__")
            text = layer.__name__ if is_function else repr(layer)
            lines += f"layers.{at}: {text}".split("\n")
        inner = "".join(f"\n  {line}" for line in lines)
        return f"Sequential({inner}\n)" if inner else "Sequential()"


def _listed(layers: Any) -> Iterable[Any]:
    if not isinstance(layers, Iterable) or isinstance(layers, (str, dict)):
        raise ArgumentTypeError(
            f"takes a list of layers, got {type(layers).__name__}", op="Sequential"
        )
    return layers


def takes_training(layer: Any) -> bool:
    """Whether a layer is to be told that it is being trained.

    >>> from tapejit.nn import Dense, Dropout
    >>> takes_training(Dropout(0.1)), takes_training(Dense(1))
    (True, False)
    """
    if isinstance(layer, Module):
        return _has_training(type(layer).__call__)
    if isinstance(layer, FunctionType):
        return _has_training(layer)
    return _has_training.__wrapped__(layer)


@lru_cache(maxsize=1024)
def _has_training(function: Any) -> bool:
    # Looking at a signature takes ten microseconds, more than a small layer.
    try:
        return "training" in inspect.signature(function).parameters
    except ValueError:  # written in C, and does not tell
        return False
