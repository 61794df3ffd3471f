"""Metrics: numbers that are gathered over many batches.

A `Metric` is a module with two running sums, of values and of their weights. `update`
adds a batch, `result` is their quotient, `reset` starts again. The sums are Variables,
so a metric works in traced functions, and double precision: a float32 stops counting
at 16 million. No gradient flows into a metric.

Predictions come first, then targets, as in the losses of `tj.nn`; Keras has it the
other way round, so `y_pred=` and `y_true=` name them too.

Start reading at `Metric`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Final

import numpy as np

from tapejit.array import reductions
from tapejit.array.creation import ones_like
from tapejit.array.elementwise import equal, greater, sqrt, stop_gradient, where
from tapejit.array.manipulation import broadcast_to, reshape
from tapejit.array.precision import real_operand
from tapejit.base.errors import ArgumentError, ArgumentTypeError, ShapeError
from tapejit.base.public import public
from tapejit.base.types import default_float, is_float, is_integer
from tapejit.nn.functional.keras_names import takes_keras_names
from tapejit.nn.functional.losses import absolute_error, squared_error
from tapejit.nn.module import Module
from tapejit.runtime.sentinels import DEVICE_ARRAYS
from tapejit.tape.variable import Variable
from tapejit.tensor.dispatch import cast
from tapejit.tensor.tensor import Tensor

FLOAT64: Final = np.dtype("float64")
# What Keras calls them.
SPELLINGS: Final[dict[str, str]] = {
    "BinaryAccuracy": "tj.metrics.Accuracy()",
    "CategoricalAccuracy": "tj.metrics.Accuracy()",
    "SparseCategoricalAccuracy": "tj.metrics.Accuracy()",
}
KINDS: Final = ("sparse", "categorical", "binary", "exact")


@public("tapejit", "metrics")
class Metric(Module):
    """A running mean of something; to be derived from.

    A subclass defines `update`, which calls `accumulate` with a value per example.

    >>> import tapejit as tj
    >>> class Positive(tj.metrics.Metric):
    ...     def update(self, predictions):
    ...         self.accumulate(predictions > 0)
    >>> metric = Positive()
    >>> metric.update(tj.asarray([1.0, -2.0, 3.0, 4.0]))
    >>> print(metric.result())
    0.75
    """

    def __init__(self, name: str | None = None) -> None:
        self.name = type(self).__name__ if name is None else str(name)
        self.total = _sum(f"{self.name}.total")
        self.weight = _sum(f"{self.name}.weight")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise ArgumentTypeError(
            "a metric is not called",
            op=self.name,
            help="write metric.update(predictions, targets), then metric.result()",
        )

    def accumulate(self, values: Any, weights: Any = None) -> None:
        """Add values; `weights` broadcast to their shape, what has none is ignored."""
        found = _constant(values, self.name)
        if weights is None:
            factors = ones_like(found)
        else:
            factors = self._fitting(_constant(weights, self.name), found)
            # What has no weight may be anything, infinite or not a number.
            found = where(equal(factors, 0), 0.0, found * factors)
        if DEVICE_ARRAYS:
            for sum_so_far in (self.total, self.weight):
                sum_so_far._join(found.device)
        self.total.assign_add(reductions.sum(found))
        self.weight.assign_add(reductions.sum(factors))

    def _fitting(self, factors: Tensor, found: Tensor) -> Tensor:
        try:
            return broadcast_to(factors, found.shape)
        except ShapeError:
            raise ShapeError(
                f"weights are {factors._type}, the values {found._type}",
                op=self.name,
                help="weights have the shape of the values, or sizes of 1",
            ) from None

    def result(self) -> Tensor:
        """What has been found so far, a tensor; nan if that is nothing.

        >>> import tapejit as tj
        >>> mean = tj.metrics.Mean()
        >>> mean.update([1.0, 5.0])
        >>> float(mean.result())
        3.0
        """
        return cast(self.total / self.weight, default_float())

    def reset(self) -> None:
        """Start again.

        >>> import tapejit as tj
        >>> mean = tj.metrics.Mean()
        >>> mean.update(1.0)
        >>> mean.reset()
        >>> mean.update(5.0)
        >>> print(mean.result())
        5.0
        """
        for variable in (self.total, self.weight):
            variable.assign(0.0)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


@public("tapejit", "metrics")
class Mean(Metric):
    """The mean of the values given so far; nan before there are any.

    >>> import tapejit as tj
    >>> loss = tj.metrics.Mean()
    >>> loss.update(1.0)
    >>> loss.update([2.0, 6.0])
    >>> print(loss.result())
    3.0
    """

    def update(self, values: Any, weights: Any = None) -> None:
        """Add values, a number or a tensor; `weights` broadcast to their shape.

        >>> import tapejit as tj
        >>> mean = tj.metrics.Mean()
        >>> mean.update([1.0, 5.0], weights=[3.0, 1.0])
        >>> print(mean.result())
        2.0
        """
        self.accumulate(values, weights)


class _MeanError(Metric):
    """The mean of how far predictions are from targets."""

    _error: ClassVar[Callable[..., Tensor]]

    @takes_keras_names
    def update(self, predictions: Any, targets: Any, weights: Any = None) -> None:
        """Add a batch of predictions and targets, which have one shape.

        >>> import tapejit as tj
        >>> metric = tj.metrics.MeanSquaredError()
        >>> metric.update([1.0, 2.0], [1.0, 4.0], weights=[1.0, 0.0])
        >>> print(metric.result())
        0.0
        """
        found, wanted = _constant(predictions, self.name), _constant(targets, self.name)
        self.accumulate(self._error(found, wanted, reduction="none"), weights)


@public("tapejit", "metrics")
class MeanSquaredError(_MeanError):
    """The mean of squared differences of predictions and targets.

    >>> import tapejit as tj
    >>> metric = tj.metrics.MeanSquaredError()
    >>> metric.update([1.0, 2.0], [1.0, 4.0])
    >>> print(metric.result())
    2.0
    """

    _error = staticmethod(squared_error)


@public("tapejit", "metrics")
class RootMeanSquaredError(MeanSquaredError):
    """The root of the mean of squared differences.

    >>> import tapejit as tj
    >>> metric = tj.metrics.RootMeanSquaredError()
    >>> metric.update([1.0, 2.0], [4.0, 5.0])
    >>> print(metric.result())
    3.0
    """

    def result(self) -> Tensor:
        """The root of the mean so far.

        >>> import tapejit as tj
        >>> metric = tj.metrics.RootMeanSquaredError()
        >>> metric.update([0.0], [2.0])
        >>> float(metric.result())
        2.0
        """
        return cast(sqrt(self.total / self.weight), default_float())


@public("tapejit", "metrics")
class MeanAbsoluteError(_MeanError):
    """The mean of absolute differences of predictions and targets.

    >>> import tapejit as tj
    >>> metric = tj.metrics.MeanAbsoluteError()
    >>> metric.update([1.0, 2.0], [1.0, 4.0])
    >>> print(metric.result())
    1.0
    """

    _error = staticmethod(absolute_error)


@public("tapejit", "metrics")
class Accuracy(Metric):
    """The share of predictions that are right.

    What a prediction is follows from the shapes, unless `kind` says it:

    - "sparse": integers name the classes, which are the last axis of the predictions;
    - "categorical": targets of the same shape, with classes along the last axis too;
    - "binary": one number per example, above `threshold` for yes (0 for logits);
    - "exact": integers or bools that must be equal.

    >>> import tapejit as tj
    >>> accuracy = tj.metrics.Accuracy()
    >>> accuracy.update([[0.1, 0.9], [0.8, 0.2]], [1, 1])
    >>> print(accuracy.result())
    0.5
    >>> accuracy = tj.metrics.Accuracy(threshold=0)
    >>> accuracy.update([-3.0, 5.0, 0.1], [0, 1, 0])
    >>> print(accuracy.result())
    0.6666667
    """

    def __init__(
        self,
        kind: str | None = None,
        *,
        threshold: float = 0.5,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        if kind is not None and kind not in KINDS:
            raise ArgumentError(
                f"kind is one of {', '.join(KINDS)}, got {kind!r}", op=self.name
            )
        self.kind = kind
        self.threshold = float(threshold)

    @takes_keras_names
    def update(self, predictions: Any, targets: Any, weights: Any = None) -> None:
        """Add a batch; `weights` has one entry per prediction.

        >>> import tapejit as tj
        >>> accuracy = tj.metrics.Accuracy()
        >>> accuracy.update([3, 4, 5], [3, 4, 6], weights=[1, 1, 0])
        >>> print(accuracy.result())
        1.0
        """
        found = real_operand(predictions, self.name)
        wanted = real_operand(targets, self.name)
        kind = self.kind or self._kind_of(found, wanted)
        self.accumulate(self._hits(kind, found, wanted), weights)

    def _kind_of(self, found: Tensor, wanted: Tensor) -> str:
        """What the shapes and dtypes say; sizes of 1 at the end are no classes."""
        if not is_float(found.dtype) and found.shape == wanted.shape:
            return "exact"
        has_classes = found.ndim > 0 and found.shape[-1] != 1
        if has_classes and wanted.shape in (found.shape[:-1], (*found.shape[:-1], 1)):
            if is_integer(wanted.dtype):
                return "sparse"
            raise ArgumentTypeError(
                f"targets that name classes are integers, got {wanted._type}",
                op=self.name,
                help="convert them with .astype(tj.int64)",
            )
        if _without_last_one(found) == _without_last_one(wanted):
            is_many = found.ndim > 1 and has_classes
            return "categorical" if is_many else "binary"
        raise ShapeError(
            f"predictions are {found._type}, targets {wanted._type}",
            op=self.name,
            help="targets have the shape of the predictions, or that without the axis "
            "of classes",
        )

    def _hits(self, kind: str, found: Tensor, wanted: Tensor) -> Tensor:
        if kind == "sparse":
            best = reductions.argmax(found, axis=-1)
            if wanted.ndim == found.ndim:
                wanted = reshape(wanted, best.shape)
            self._check_shapes(best, wanted)
            return equal(best, wanted)
        if kind == "categorical":
            self._check_shapes(found, wanted)
            best = reductions.argmax(found, axis=-1)
            return equal(best, reductions.argmax(wanted, axis=-1))
        if kind == "binary":
            if found.shape != wanted.shape:
                shape = _without_last_one(found)
                found = reshape(found, shape)
                if _without_last_one(wanted) == shape:
                    wanted = reshape(wanted, shape)
            self._check_shapes(found, wanted)
            # Targets are numbers from 0 to 1 or bools, whatever the threshold is.
            return equal(
                greater(found, self.threshold), greater(cast(wanted, FLOAT64), 0.5)
            )
        self._check_shapes(found, wanted)
        return equal(found, wanted)

    def _check_shapes(self, found: Tensor, wanted: Tensor) -> None:
        if found.shape != wanted.shape:
            raise ShapeError(
                f"predictions are {found._type}, targets {wanted._type}", op=self.name
            )


def _sum(name: str) -> Variable:
    return Variable(0.0, trainable=False, dtype=FLOAT64, name=name)


def _constant(x: Any, name: str) -> Tensor:
    """Real numbers in double precision, into which no gradient flows."""
    return stop_gradient(cast(real_operand(x, name), FLOAT64))


def _without_last_one(x: Tensor) -> tuple[Any, ...]:
    return x.shape[:-1] if x.ndim > 1 and x.shape[-1] == 1 else x.shape


def __getattr__(name: str) -> Any:
    spelling = SPELLINGS.get(name)
    tail = f"; write {spelling}" if spelling else ""
    raise AttributeError(f"tapejit.metrics has no attribute {name!r}{tail}", name=name)


__all__ = [
    "Accuracy",
    "Mean",
    "MeanAbsoluteError",
    "MeanSquaredError",
    "Metric",
    "RootMeanSquaredError",
]
