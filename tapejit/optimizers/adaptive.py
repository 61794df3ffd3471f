"""Rules that divide the gradient by a root of its past squares.

Formulas, names and defaults are those of Keras 3; in particular `epsilon` is added
where Keras adds it: to the root in Adam, before bias is corrected, and under the root
in RMSprop and Adagrad. Bias is corrected for the steps of the optimizer, also for a
variable that joins later.

Start reading at `Adam.update`.
"""

from __future__ import annotations

from typing import Any, Unpack

from tapejit.array import elementwise
from tapejit.base.public import public
from tapejit.optimizers.base import Optimizer, Options, Slots
from tapejit.tensor.tensor import Tensor

__all__ = ["Adagrad", "Adam", "AdamW", "RMSprop"]


@public("tapejit.optimizers")
class Adam(Optimizer):
    """Steps by means of the gradient and of its squares.

    `beta_1` and `beta_2` say how slowly the means forget; both are corrected for
    having started at zero. With `amsgrad` the largest mean of squares seen so far is
    used. Further options are those of `tj.optimizers.Optimizer`.

    >>> import tapejit as tj
    >>> w = tj.Variable([1.0, -1.0])
    >>> optimizer = tj.optimizers.Adam(learning_rate=0.1)
    >>> for _ in range(100):
    ...     _ = optimizer.minimize(lambda: tj.sum((w - [3.0, 2.0]) ** 2), [w])
    >>> w.numpy().round(1)
    array([3., 2.], dtype=float32)
    """

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        amsgrad: bool = False,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(learning_rate, **options)
        self.beta_1 = self._number("beta_1", beta_1, least=0.0, below=1.0)
        self.beta_2 = self._number("beta_2", beta_2, least=0.0, below=1.0)
        self.epsilon = self._number("epsilon", epsilon, least=0.0)
        self.amsgrad = amsgrad
        self.slot_names = ("momentum", "velocity")
        if amsgrad:
            self.slot_names += ("velocity_hat",)

    def coefficients(self, rate: Tensor, step: Tensor) -> tuple[Tensor, ...]:
        """The learning rate with both corrections in it."""
        first = 1 - elementwise.pow(self.beta_1, step)
        second = 1 - elementwise.pow(self.beta_2, step)
        return (rate * elementwise.sqrt(second) / first,)

    def update(
        self, gradient: Tensor, value: Tensor, slots: Slots, /, *coefficients: Tensor
    ) -> tuple[Tensor, Slots]:
        """Along the mean of gradients, over the root of the mean of squares."""
        (rate,) = coefficients
        m, v = slots["momentum"], slots["velocity"]
        m = m + (gradient - m) * (1 - self.beta_1)
        v = v + (gradient * gradient - v) * (1 - self.beta_2)
        new = {"momentum": m, "velocity": v}
        if self.amsgrad:
            v = new["velocity_hat"] = elementwise.maximum(slots["velocity_hat"], v)
        return value - m * rate / (elementwise.sqrt(v) + self.epsilon), new


@public("tapejit.optimizers")
class AdamW(Adam):
    """Adam with weight decay, which does not pass through the means.

    `exclude_from_weight_decay` spares biases and the like.

    >>> import tapejit as tj
    >>> w = tj.Variable([1.0, 2.0])
    >>> optimizer = tj.optimizers.AdamW(learning_rate=0.5, weight_decay=0.5)
    >>> optimizer.apply_gradients([(tj.zeros(2), w)])
    >>> w.numpy()
    array([0.75, 1.5 ], dtype=float32)
    """

    def __init__(
        self,
        learning_rate: Any = 0.001,
        weight_decay: float = 0.004,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        amsgrad: bool = False,
        *,
        clipnorm: float | None = None,
        clipvalue: float | None = None,
        global_clipnorm: float | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(
            learning_rate,
            beta_1,
            beta_2,
            epsilon,
            amsgrad,
            weight_decay=weight_decay,
            clipnorm=clipnorm,
            clipvalue=clipvalue,
            global_clipnorm=global_clipnorm,
            name=name,
        )
        self._number("weight_decay", weight_decay)


@public("tapejit.optimizers")
class RMSprop(Optimizer):
    """Divides by the root of a mean of squares, or of a variance if `centered`.

    `rho` says how slowly the means forget. Further options are those of
    `tj.optimizers.Optimizer`.

    >>> import tapejit as tj
    >>> w = tj.Variable(1.0)
    >>> optimizer = tj.optimizers.RMSprop(learning_rate=0.1)
    >>> for _ in range(50):
    ...     _ = optimizer.minimize(lambda: (w - 3) ** 2, [w])
    >>> abs(float(w) - 3) < 0.2
    True
    """

    def __init__(
        self,
        learning_rate: Any = 0.001,
        rho: float = 0.9,
        momentum: float = 0.0,
        epsilon: float = 1e-7,
        centered: bool = False,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(learning_rate, **options)
        self.rho = self._number("rho", rho, least=0.0, below=1.0)
        self.momentum = self._number("momentum", momentum, least=0.0)
        self.epsilon = self._number("epsilon", epsilon, least=0.0)
        self.centered = centered
        self.slot_names = ("velocity",)
        if momentum:
            self.slot_names += ("momentum",)
        if centered:
            self.slot_names += ("average_gradient",)

    def update(
        self, gradient: Tensor, value: Tensor, slots: Slots, /, *coefficients: Tensor
    ) -> tuple[Tensor, Slots]:
        """Along the gradient, over the root of the mean of its squares."""
        (rate,) = coefficients
        fresh = 1 - self.rho
        squares = self.rho * slots["velocity"] + fresh * (gradient * gradient)
        new = {"velocity": squares}
        if self.centered:
            mean = self.rho * slots["average_gradient"] + fresh * gradient
            new["average_gradient"] = mean
            squares = squares - mean * mean
        change = rate * gradient / elementwise.sqrt(squares + self.epsilon)
        if self.momentum:
            change = new["momentum"] = self.momentum * slots["momentum"] + change
        return value - change, new


@public("tapejit.optimizers")
class Adagrad(Optimizer):
    """Divides by the root of the sum of all squares so far.

    The sum starts at `initial_accumulator_value`. Further options are those of
    `tj.optimizers.Optimizer`.

    >>> import tapejit as tj
    >>> w = tj.Variable(1.0)
    >>> optimizer = tj.optimizers.Adagrad(learning_rate=1.0)
    >>> for _ in range(50):
    ...     _ = optimizer.minimize(lambda: (w - 3) ** 2, [w])
    >>> round(float(w), 2)
    3.0
    """

    slot_names = ("accumulator",)

    def __init__(
        self,
        learning_rate: Any = 0.001,
        initial_accumulator_value: float = 0.1,
        epsilon: float = 1e-7,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(learning_rate, **options)
        start = initial_accumulator_value
        self._number("initial_accumulator_value", start, least=0.0)
        self.initial_accumulator_value = start
        self.epsilon = self._number("epsilon", epsilon, least=0.0)

    def initial(self, slot: str) -> float:
        """Where the sum of squares starts."""
        return self.initial_accumulator_value

    def update(
        self, gradient: Tensor, value: Tensor, slots: Slots, /, *coefficients: Tensor
    ) -> tuple[Tensor, Slots]:
        """Along the gradient, over the root of the sum of its squares."""
        (rate,) = coefficients
        squares = slots["accumulator"] + gradient * gradient
        change = rate * gradient / elementwise.sqrt(squares + self.epsilon)
        return value - change, {"accumulator": squares}
