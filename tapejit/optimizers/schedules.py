"""Learning rates that follow the step.

A schedule is called with the number of steps taken so far and gives the learning rate
of the next one. It is arithmetic on that number, so inside a function it is part of
the Graph. Everything is computed in float64: float32 cannot count past 16 million.
Schedules never change and compare by value; an optimizer takes any other function of
the step as well.

Start reading at `Schedule`, then `ExponentialDecay`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tapejit.array import elementwise, reductions
from tapejit.array.creation import asarray
from tapejit.array.indexing import take
from tapejit.base.errors import ArgumentError, ArgumentTypeError
from tapejit.base.public import names_in
from tapejit.tensor.dispatch import as_operand, cast
from tapejit.tensor.tensor import Tensor

_FLOAT64 = np.dtype(np.float64)


def _as_step(step: Any) -> Tensor:
    """A number of steps to compute with."""
    return cast(as_operand(step, "schedule"), _FLOAT64)


class Schedule:
    """A learning rate that follows the step: derive from it and define `__call__`.

    >>> import tapejit as tj
    >>> class Halved(tj.optimizers.schedules.Schedule):
    ...     def __call__(self, step):
    ...         return 0.1 * 0.5 ** tj.astype(step, tj.float64)
    >>> optimizer = tj.optimizers.SGD(Halved())
    >>> float(optimizer.learning_rate)
    0.1
    """

    def __call__(self, step: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} defines no __call__")


@dataclass(frozen=True)
class Constant(Schedule):
    """The same learning rate at every step.

    >>> import tapejit as tj
    >>> float(tj.optimizers.schedules.Constant(0.1)(7))
    0.1
    """

    learning_rate: float

    def __call__(self, step: Any) -> Tensor:
        return asarray(self.learning_rate, dtype=_FLOAT64)


@dataclass(frozen=True)
class ExponentialDecay(Schedule):
    """Multiplied by `decay_rate` every `decay_steps` steps.

    In between it decays smoothly, or not at all with `staircase=True`.

    >>> import tapejit as tj
    >>> rate = tj.optimizers.schedules.ExponentialDecay(0.8, 10, 0.5)
    >>> float(rate(0)), float(rate(10)), float(rate(20))
    (0.8, 0.4, 0.2)
    """

    initial_learning_rate: float
    decay_steps: float
    decay_rate: float
    staircase: bool = False

    def __post_init__(self) -> None:
        _check_positive(self, "decay_steps")

    def __call__(self, step: Any) -> Tensor:
        passed = _as_step(step) / self.decay_steps
        if self.staircase:
            passed = elementwise.floor(passed)
        factor = elementwise.pow(self.decay_rate, passed)
        return elementwise.multiply(factor, self.initial_learning_rate)


@dataclass(frozen=True)
class StepDecay(Schedule):
    """Multiplied by `decay_rate` after every `decay_steps` steps, constant between.

    >>> import tapejit as tj
    >>> rate = tj.optimizers.schedules.StepDecay(0.8, 10, 0.5)
    >>> float(rate(9)), float(rate(10))
    (0.8, 0.4)
    """

    initial_learning_rate: float
    decay_steps: float
    decay_rate: float

    def __post_init__(self) -> None:
        _check_positive(self, "decay_steps")

    def __call__(self, step: Any) -> Tensor:
        return ExponentialDecay(
            self.initial_learning_rate, self.decay_steps, self.decay_rate, True
        )(step)


@dataclass(frozen=True)
class CosineDecay(Schedule):
    """Down along half a cosine to `alpha` times the start, in `decay_steps` steps.

    With `warmup_target` it first rises linearly from `initial_learning_rate` to that
    target in `warmup_steps` steps, and decays from there.

    >>> import tapejit as tj
    >>> rate = tj.optimizers.schedules.CosineDecay(0.2, 100)
    >>> float(rate(0)), round(float(rate(50)), 9), float(rate(1000))
    (0.2, 0.1, 0.0)
    """

    initial_learning_rate: float
    decay_steps: float
    alpha: float = 0.0
    warmup_target: float | None = None
    warmup_steps: float = 0

    def __post_init__(self) -> None:
        _check_positive(self, "decay_steps")
        if self.warmup_target is not None:
            _check_positive(self, "warmup_steps")

    def __call__(self, step: Any) -> Tensor:
        count = _as_step(step)
        if self.warmup_target is None:
            return self._decayed(count, self.initial_learning_rate)
        rise = self.warmup_target - self.initial_learning_rate
        rising = self.initial_learning_rate + rise * (count / self.warmup_steps)
        falling = self._decayed(count - self.warmup_steps, self.warmup_target)
        return elementwise.where(count < self.warmup_steps, rising, falling)

    def _decayed(self, count: Tensor, start: float) -> Tensor:
        passed = elementwise.minimum(count, self.decay_steps) / self.decay_steps
        cosine = 0.5 * (1 + elementwise.cos(math.pi * passed))
        return elementwise.multiply((1 - self.alpha) * cosine + self.alpha, start)


@dataclass(frozen=True)
class PolynomialDecay(Schedule):
    """To `end_learning_rate` in `decay_steps` steps, along (1 - t)^power.

    It stays there, or with `cycle=True` starts again over a longer stretch.

    >>> import tapejit as tj
    >>> rate = tj.optimizers.schedules.PolynomialDecay(1.0, 4, 0.0)
    >>> [float(rate(step)) for step in range(6)]
    [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    """

    initial_learning_rate: float
    decay_steps: float
    end_learning_rate: float = 0.0001
    power: float = 1.0
    cycle: bool = False

    def __post_init__(self) -> None:
        _check_positive(self, "decay_steps")

    def __call__(self, step: Any) -> Tensor:
        count = _as_step(step)
        if self.cycle:
            rounds = elementwise.ceil(count / self.decay_steps)
            passed = count / (self.decay_steps * elementwise.maximum(rounds, 1.0))
        else:
            passed = elementwise.minimum(count, self.decay_steps) / self.decay_steps
        span = self.initial_learning_rate - self.end_learning_rate
        left = span * elementwise.pow(1 - passed, self.power)
        return elementwise.add(left, self.end_learning_rate)


@dataclass(frozen=True)
class PiecewiseConstant(Schedule):
    """`values[i]` up to and including step `boundaries[i]`, `values[-1]` after all.

    >>> import tapejit as tj
    >>> rate = tj.optimizers.schedules.PiecewiseConstant([2, 4], [0.1, 0.01, 0.001])
    >>> [float(rate(step)) for step in range(6)]
    [0.1, 0.1, 0.1, 0.01, 0.01, 0.001]
    """

    boundaries: tuple[float, ...]
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "boundaries", tuple(self.boundaries))
        object.__setattr__(self, "values", tuple(self.values))
        if len(self.values) != len(self.boundaries) + 1:
            raise ArgumentError(
                f"{len(self.boundaries)} boundaries separate "
                f"{len(self.boundaries) + 1} values, got {len(self.values)}",
                op="PiecewiseConstant",
            )
        if any(np.diff(self.boundaries) <= 0):
            raise ArgumentError(
                f"the boundaries increase, got {self.boundaries}",
                op="PiecewiseConstant",
            )

    def __call__(self, step: Any) -> Tensor:
        bounds = asarray(np.array(self.boundaries, _FLOAT64))
        is_past = elementwise.greater(_as_step(step), bounds)
        passed = reductions.sum(elementwise.astype(is_past, "int64"))
        return take(asarray(np.array(self.values, _FLOAT64)), passed)


PiecewiseConstantDecay = PiecewiseConstant  # as Keras calls it


@dataclass(frozen=True)
class Warmup(Schedule):
    """A linear rise over `warmup_steps` steps, then another schedule, or a number.

    What follows counts its steps from the end of the rise.

    >>> import tapejit as tj
    >>> schedules = tj.optimizers.schedules
    >>> rate = schedules.Warmup(schedules.StepDecay(1.0, 2, 0.5), 4)
    >>> [float(rate(step)) for step in range(8)]
    [0.0, 0.25, 0.5, 0.75, 1.0, 1.0, 0.5, 0.5]
    """

    schedule: Callable[[Any], Any] | float
    warmup_steps: float
    initial_learning_rate: float = 0.0

    def __post_init__(self) -> None:
        _check_positive(self, "warmup_steps")

    def __call__(self, step: Any) -> Tensor:
        count = _as_step(step)
        after = self.schedule
        later = elementwise.maximum(count - self.warmup_steps, 0.0)
        given = after(later) if callable(after) else asarray(after, dtype=_FLOAT64)
        rate = cast(as_operand(given, "Warmup"), _FLOAT64)
        rise = rate - self.initial_learning_rate
        # While it rises, `later` is 0, so `rate` is where the rise leads to.
        passed = elementwise.minimum(count / self.warmup_steps, 1.0)
        rising = self.initial_learning_rate + rise * passed
        return elementwise.where(passed < 1, rising, rate)


def _check_positive(schedule: Schedule, name: str) -> None:
    value = getattr(schedule, name)
    kind = type(schedule).__name__
    if not isinstance(value, (int, float, np.number)):
        raise ArgumentTypeError(f"{name} is a number, got {value!r}", op=kind)
    if not value > 0:
        raise ArgumentError(f"{name} is greater than 0, got {value}", op=kind)


if not TYPE_CHECKING:  # checkers see what is defined here
    __all__ = names_in(globals())

    def __dir__() -> list[str]:
        return __all__
