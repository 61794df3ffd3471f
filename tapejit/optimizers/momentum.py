"""Rules that step along the gradient, or along a mean of past gradients.

Formulas, names and defaults are those of Keras 3.

Start reading at `SGD.update`.
"""

from __future__ import annotations

from typing import Any, Unpack

from tapejit.array import elementwise
from tapejit.base.public import public
from tapejit.optimizers.base import Optimizer, Options, Slots
from tapejit.tensor.tensor import Tensor

__all__ = ["SGD", "Lion"]


@public("tapejit.optimizers")
class SGD(Optimizer):
    """Gradient descent, with momentum if asked for.

    Without momentum `w -= rate * g`. With it `m = momentum * m - rate * g` and
    `w += m`, or Nesterov's `w += momentum * m - rate * g`. Further options are those
    of `tj.optimizers.Optimizer`.

    >>> import tapejit as tj
    >>> w = tj.Variable(1.0)
    >>> optimizer = tj.optimizers.SGD(learning_rate=0.1, momentum=0.9)
    >>> for _ in range(100):
    ...     _ = optimizer.minimize(lambda: (w - 3) ** 2, [w])
    >>> round(float(w), 1)
    3.0
    """

    def __init__(
        self,
        learning_rate: Any = 0.01,
        momentum: float = 0.0,
        nesterov: bool = False,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(learning_rate, **options)
        self.momentum = self._number("momentum", momentum, least=0.0)
        self.nesterov = nesterov
        self.slot_names = ("momentum",) if momentum else ()

    def update(
        self, gradient: Tensor, value: Tensor, slots: Slots, /, *coefficients: Tensor
    ) -> tuple[Tensor, Slots]:
        """Along the gradient, or the momentum."""
        (rate,) = coefficients
        change = gradient * rate
        if not slots:
            return value - change, {}
        momentum = slots["momentum"] * self.momentum - change
        if self.nesterov:
            value = value + (momentum * self.momentum - change)
        else:
            value = value + momentum
        return value, {"momentum": momentum}


@public("tapejit.optimizers")
class Lion(Optimizer):
    """The sign of a mean of gradients: every element moves by the learning rate.

    Learning rates are usually 3 to 10 times smaller than Adam's, weight decay as much
    larger. Further options are those of `tj.optimizers.Optimizer`.

    >>> import tapejit as tj
    >>> w = tj.Variable([1.0, -1.0])
    >>> optimizer = tj.optimizers.Lion(learning_rate=0.25)
    >>> optimizer.apply_gradients([(tj.asarray([5.0, -0.1]), w)])
    >>> w.numpy()
    array([ 0.75, -0.75], dtype=float32)
    """

    slot_names = ("momentum",)

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.99,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(learning_rate, **options)
        self.beta_1 = self._number("beta_1", beta_1, least=0.0, below=1.0)
        self.beta_2 = self._number("beta_2", beta_2, least=0.0, below=1.0)

    def update(
        self, gradient: Tensor, value: Tensor, slots: Slots, /, *coefficients: Tensor
    ) -> tuple[Tensor, Slots]:
        """Against the sign of where the momentum is about to go."""
        (rate,) = coefficients
        momentum = slots["momentum"]
        direction = momentum * self.beta_1 + gradient * (1 - self.beta_1)
        momentum = momentum * self.beta_2 + gradient * (1 - self.beta_2)
        value = value - rate * elementwise.sign(direction)
        return value, {"momentum": momentum}
