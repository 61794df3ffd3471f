"""Loss scaling: gradients in half precision that neither vanish nor overflow.

The smallest float16 is 6e-8, and many gradients are smaller. So the loss is multiplied
by a large number before it is differentiated, and its gradients are divided by it. The
number adapts itself: where a gradient is not finite the whole step is skipped and the
scale halved; after enough steps without that it is doubled. All of that is arithmetic
on Variables, without a decision in Python, so a traced step stays one native call.

Start reading at `LossScaleOptimizer.apply_gradients`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tapejit import ops
from tapejit.array import reductions
from tapejit.array.creation import full
from tapejit.array.elementwise import (
    astype,
    divide,
    isfinite,
    less_equal,
    logical_and,
    logical_not,
    maximum,
    minimum,
    multiply,
    where,
)
from tapejit.base.errors import ArgumentError, ArgumentTypeError
from tapejit.base.public import public
from tapejit.base.types import wide_dtype
from tapejit.optimizers.base import OnMissing, Optimizer
from tapejit.runtime.sentinels import DEVICE_ARRAYS
from tapejit.tape.tape import GradientTape
from tapejit.tape.variable import Variable
from tapejit.tensor.device import CPU, move
from tapejit.tensor.dispatch import apply, as_operand, cast
from tapejit.tensor.foreign_names import attribute_error
from tapejit.tensor.tensor import Tensor

LARGEST: Final = 2.0**126  # a scale that is doubled once more is still finite
LOWEST: Final = 1.0

# What the scalers of other libraries have, and Keras's optimizer.
SPELLINGS: Final[dict[str, str]] = {
    "dynamic_scale": "optimizer.loss_scale",
    "get_scale": "optimizer.loss_scale",
    "get_scaled_loss": "optimizer.scale_loss(loss)",
    "get_unscaled_gradients": "optimizer.apply_gradients(...), which divides them",
    "inner_optimizer": "optimizer.inner",
    "scale": "optimizer.scale_loss(loss)",
    "step": "optimizer.apply_gradients(zip(gradients, variables))",
    "unscale_": "optimizer.apply_gradients(...), which divides before it clips",
}


@public("tapejit.optimizers")
class LossScaleOptimizer(Optimizer):
    """An optimizer for gradients of a loss that was multiplied by `loss_scale`.

    Differentiate `scale_loss(loss)`. `apply_gradients` divides by the scale before the
    `inner` optimizer clips and takes its step. If some gradient is not finite that step
    is skipped: variables, slots and the number of steps stay as they are, and the scale
    is halved, down to 1; there a warning says so, once (not on a GPU). After
    `dynamic_growth_steps` steps with finite gradients the scale is doubled.

    >>> import tapejit as tj
    >>> w = tj.Variable([1.0, 2.0])
    >>> optimizer = tj.optimizers.LossScaleOptimizer(tj.optimizers.SGD(0.25))
    >>> with tj.GradientTape() as tape:
    ...     loss = optimizer.scale_loss(tj.sum(w * w))
    >>> optimizer.apply_gradients(zip(tape.gradient(loss, [w]), [w]))
    >>> print(w, optimizer.loss_scale)
    [0.5 1. ] 32768.0
    >>> optimizer.apply_gradients([(tj.asarray([tj.inf, 0.0]), w)])
    >>> print(w, optimizer.loss_scale, optimizer.iterations)
    [0.5 1. ] 16384.0 1
    """

    def __init__(
        self,
        inner: Optimizer,
        initial_scale: float = 2.0**15,
        dynamic_growth_steps: int = 2000,
        name: str | None = None,
    ) -> None:
        self.name = type(self).__name__ if name is None else str(name)
        if isinstance(inner, LossScaleOptimizer) or not isinstance(inner, Optimizer):
            raise ArgumentTypeError(
                f"the inner optimizer is one of another kind, got {inner!r}",
                op=self.name,
                help="write LossScaleOptimizer(tj.optimizers.Adam())",
            )
        self._number("initial_scale", initial_scale, least=LOWEST)
        if initial_scale > LARGEST:
            raise ArgumentError(
                f"initial_scale is at most {LARGEST:g}, got {initial_scale}",
                op=self.name,
            )
        if type(dynamic_growth_steps) is not int or dynamic_growth_steps < 1:
            raise ArgumentError(
                "dynamic_growth_steps is a whole number from 1 on, got "
                f"{dynamic_growth_steps!r}",
                op=self.name,
            )
        self.inner = inner
        self.initial_scale = float(initial_scale)
        self.dynamic_growth_steps = dynamic_growth_steps
        self._loss_scale = _number(np.float32(initial_scale), "loss_scale")
        self._good_steps = _number(np.int32(0), "good_steps")
        self._has_told = _number(np.int32(0), "has_told")

    if not TYPE_CHECKING:  # attributes that do not exist are errors

        def __getattr__(self, name: str) -> Any:
            raise attribute_error(type(self).__name__, name, SPELLINGS)

    @property
    def loss_scale(self) -> Variable:
        """What losses are multiplied by at present."""
        return self._loss_scale

    def scale_loss(self, loss: Any) -> Tensor:
        """The loss to differentiate: times `loss_scale`, in float32 at least.

        >>> import tapejit as tj
        >>> optimizer = tj.optimizers.LossScaleOptimizer(tj.optimizers.SGD(), 8.0)
        >>> optimizer.scale_loss(tj.asarray(0.5))
        <tj.Tensor f32[] 4.0>
        """
        found = as_operand(loss, "scale_loss")
        wide = cast(found, wide_dtype(found.dtype))
        return multiply(wide, self._scale_beside(wide))

    def _scale_beside(self, x: Tensor) -> Tensor:
        if DEVICE_ARRAYS:
            self._join_device(x.device)
        return cast(move(self._loss_scale.value(), x.device), x.dtype)

    # Steps

    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Any, Variable]],
        *others: Any,
        on_missing: OnMissing = "warn",
    ) -> None:
        """Divide gradients by the scale and have `inner` take a step, or skip it.

        Arguments are those of any optimizer.
        """
        pairs = self.inner._checked(grads_and_vars, others, on_missing)
        variables = [variable for _, variable in pairs]
        self.inner.build(variables)
        if DEVICE_ARRAYS:
            self.inner._join(variables)
            self._join_device(variables[0].device)
        is_good = self._are_finite([gradient for gradient, _ in pairs])
        held = self.inner._written_with(variables)
        before = [(variable, variable.value()) for variable in held]
        divided = [(self._divided(x), variable) for x, variable in pairs]
        self.inner.apply_gradients(divided)
        for variable, old in before:
            is_kept = move(is_good, variable.device)
            variable.assign(where(is_kept, variable.value(), old))
        self._adapt(is_good, tells=variables[0].device == CPU)

    def _divided(self, gradient: Tensor) -> Tensor:
        """A gradient of the loss itself, wide enough for what float16 cannot hold."""
        wide = cast(gradient, wide_dtype(gradient.dtype))
        return divide(wide, self._scale_beside(wide))

    def _are_finite(self, gradients: list[Tensor]) -> Tensor:
        """Whether every element of all gradients is finite."""
        first, *rest = [reductions.all(isfinite(x)) for x in gradients]
        for found in rest:
            first = logical_and(first, move(found, first.device))
        return first

    def _adapt(self, is_good: Tensor, *, tells: bool) -> None:
        """Double the scale after enough good steps, halve it after a bad one."""
        scale, steps = self._loss_scale.value(), self._good_steps.value() + 1
        grows = logical_and(is_good, steps >= self.dynamic_growth_steps)
        grown = where(grows, minimum(scale * 2.0, LARGEST), scale)
        self._loss_scale.assign(where(is_good, grown, maximum(scale * 0.5, LOWEST)))
        goes_on = logical_and(is_good, logical_not(grows))
        self._good_steps.assign(where(goes_on, steps, 0))
        if not tells:
            return
        told = self._has_told.value()
        is_stuck = logical_and(logical_not(is_good), less_equal(scale * 0.5, LOWEST))
        news = astype(logical_and(is_stuck, told == 0), told.dtype)
        news = apply(ops.warned, news, message=_STUCK)
        self._has_told.assign(maximum(told, news))

    def _join_device(self, device: Any) -> None:
        """Keep the scale where the loss and the first variable are."""
        for own in (self._loss_scale, self._good_steps, self._has_told):
            own._join(device)

    def _gradients(
        self, tape: GradientTape, loss: Any, variables: list[Variable]
    ) -> list[Any]:
        """The gradients of the scaled loss, of one that has been recorded unscaled."""
        target = as_operand(loss, "minimize")
        seed = self._scale_beside(target)
        if target.ndim:
            seed = full(target.shape, 1.0, dtype=target.dtype) * seed
        found: list[Any] = tape.gradient(loss, variables, output_gradients=seed)
        return found

    # What is the inner optimizer's

    @property
    def learning_rate(self) -> Any:
        """The inner optimizer's; it can be set here too."""
        return self.inner.learning_rate

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        self.inner.learning_rate = value

    @property
    def iterations(self) -> Variable:
        """How many steps have been taken; those that were skipped do not count."""
        return self.inner.iterations

    def build(self, variables: Any) -> None:
        """Make the slots of variables that have none yet: see `Optimizer.build`."""
        self.inner.build(variables)

    def exclude_from_weight_decay(
        self, var_list: Iterable[Variable] = (), var_names: Iterable[str] = ()
    ) -> None:
        """Let some variables keep their weight: as of any optimizer."""
        self.inner.exclude_from_weight_decay(var_list, var_names)

    def state(self) -> dict[str, Variable]:
        """All that changes from step to step, by name: the scale, then the inner state.

        >>> import tapejit as tj
        >>> optimizer = tj.optimizers.LossScaleOptimizer(tj.optimizers.SGD())
        >>> list(optimizer.state())
        ['loss_scale', 'good_steps', 'has_told', 'iterations', 'learning_rate']
        """
        own = (self._loss_scale, self._good_steps, self._has_told)
        return {variable.name: variable for variable in own} | self.inner.state()

    def __repr__(self) -> str:
        return f"<tj.optimizers.{type(self).__name__} of {self.inner!r}>"


_STUCK: Final = (
    "gradients are not finite although the loss scale is down to 1: such steps are "
    "skipped, and nothing is learned from them; if all are, look for the first value "
    "that is not finite with tj.config.update(check_numerics=True)"
)


def _number(value: Any, name: str) -> Variable:
    return Variable(value, trainable=False, name=name)
