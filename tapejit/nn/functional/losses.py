"""Losses: how far predictions are from what they should be.

Each loss is computed per example first. Then `weights`, if given, multiply, and
`reduction` says what becomes of them: "mean" (the weighted mean; 0 if no example has
weight), "sum", or "none". So masking is a weight of 0.

The cross-entropies take logits, which may be of any size, instead of probabilities,
which round to 0 and 1. They are sums of terms that are not negative: none overflows
and none cancels another.

The order is predictions, then targets, unlike in Keras; `y_pred=` and `y_true=` name
them too. They have equal shapes and are not broadcast, because a column that meets a
row makes a plausible matrix of wrong losses.

Start reading at `softmax_cross_entropy`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from tapejit.array import reductions
from tapejit.array.elementwise import abs as magnitude
from tapejit.array.elementwise import (
    clip,
    equal,
    exp,
    log,
    logical_and,
    maximum,
    multiply,
    square,
    subtract,
    where,
)
from tapejit.array.manipulation import broadcast_to, expand_dims, reshape
from tapejit.array.precision import (
    axes_of,
    real_operand,
    result_dtype,
    summed_operand,
    wide_operands,
)
from tapejit.array.selection import take_along_axis
from tapejit.array.softmax import below_largest, sum_of_powers
from tapejit.base.errors import ArgumentError, DTypeError, ShapeError
from tapejit.base.public import names_in
from tapejit.base.types import DType, is_float, is_integer
from tapejit.nn.functional.activations import softplus
from tapejit.nn.functional.categories import categories
from tapejit.nn.functional.keras_names import takes_keras_names
from tapejit.ops.shapes import drop_axes
from tapejit.tensor.dispatch import as_operand, cast
from tapejit.tensor.tensor import Tensor

REDUCTIONS: Final = ("mean", "sum", "none")


@takes_keras_names
def softmax_cross_entropy(
    logits: Any,
    labels: Any,
    *,
    axis: int = -1,
    label_smoothing: float = 0.0,
    weights: Any = None,
    reduction: str = "mean",
) -> Tensor:
    """The cross-entropy of `softmax(logits)` with probabilities `labels`.

    `labels` has the shape of `logits` and sums to 1 along `axis`; gradients flow to
    both. `label_smoothing` moves that share of each label to all classes evenly. A
    class masked out by a logit of -inf costs nothing where its label is 0.

    >>> import tapejit as tj
    >>> logits = tj.asarray([[2.0, 0.0, -tj.inf], [0.0, 0.0, 1000.0]])
    >>> labels = tj.asarray([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    >>> print(tj.nn.softmax_cross_entropy(logits, labels, reduction="none"))
    [0.12692805 0.        ]
    """
    name = "softmax_cross_entropy"
    _check_reduction(reduction, name)
    smoothing = _share(label_smoothing, name)
    _check_is_dense(logits, labels, name)
    scores, shares, dtype = _pair(logits, labels, "logits", "labels", name)
    axes = axes_of(scores, int(axis), name)
    if smoothing:
        shares = shares * (1 - smoothing) + smoothing / scores.shape[axes[0]]
    lowered = below_largest(scores, axes)
    log_total = log(sum_of_powers(exp(lowered), axes))
    losses = reductions.sum(_weighted(log_total - lowered, shares), axis=axes)
    return _reduced(losses, weights, reduction, dtype, name)


@takes_keras_names
def sparse_softmax_cross_entropy(
    logits: Any,
    labels: Any,
    *,
    axis: int = -1,
    label_smoothing: float = 0.0,
    weights: Any = None,
    reduction: str = "mean",
) -> Tensor:
    """The cross-entropy of `softmax(logits)` with the classes that `labels` name.

    `labels` are integers from 0 up to but not including the number of classes, and
    have the shape of `logits` without `axis`. Others are an IndexError; give padding
    any class and a weight of 0. `label_smoothing` moves that share to all classes.

    >>> import tapejit as tj
    >>> logits = tj.asarray([[2.0, 0.0, -tj.inf], [0.0, 0.0, 1000.0]])
    >>> print(tj.nn.sparse_softmax_cross_entropy(logits, [0, 2], reduction="none"))
    [0.12692805 0.        ]
    """
    name = "sparse_softmax_cross_entropy"
    _check_reduction(reduction, name)
    smoothing = _share(label_smoothing, name)
    scores, dtype = summed_operand(logits, name)
    axes = axes_of(scores, int(axis), name)
    _check_order(logits, labels, name)
    classes = categories(labels, scores.shape[axes[0]], "a label", name)
    expected = drop_axes(scores.shape, axes)
    if classes.shape != expected:
        raise ShapeError(
            f"labels are {classes._type}, but logits of {scores._type} need one for "
            f"each of {expected}",
            op=name,
            help="for probabilities of all classes use tj.nn.softmax_cross_entropy",
        )
    lowered = below_largest(scores, axes)
    log_total = log(sum_of_powers(exp(lowered), axes))
    losses = reshape(log_total, expected) - _picked(lowered, classes, axes[0])
    if smoothing:
        of_all = reductions.mean(log_total - lowered, axis=axes)
        losses = losses * (1 - smoothing) + of_all * smoothing
    return _reduced(losses, weights, reduction, dtype, name)


@takes_keras_names
def sigmoid_cross_entropy(
    logits: Any,
    labels: Any,
    *,
    label_smoothing: float = 0.0,
    weights: Any = None,
    reduction: str = "mean",
) -> Tensor:
    """The cross-entropy of `sigmoid(logits)` with probabilities `labels`, each its own.

    Gradients flow to both. `label_smoothing` moves labels that share of the way to a
    half.

    >>> import tapejit as tj
    >>> logits, labels = tj.asarray([0.0, 1000.0, -1000.0]), [1.0, 1.0, 1.0]
    >>> print(tj.nn.sigmoid_cross_entropy(logits, labels, reduction="none"))
    [6.931472e-01 0.000000e+00 1.000000e+03]
    """
    name = "sigmoid_cross_entropy"
    _check_reduction(reduction, name)
    smoothing = _share(label_smoothing, name)
    scores, chances, dtype = _pair(logits, labels, "logits", "labels", name)
    if smoothing:
        chances = chances * (1 - smoothing) + smoothing / 2
    losses = softplus(-scores) * chances + softplus(scores) * (1 - chances)
    return _reduced(losses, weights, reduction, dtype, name)


@takes_keras_names
def kl_divergence(
    logits: Any,
    labels: Any,
    *,
    axis: int = -1,
    weights: Any = None,
    reduction: str = "mean",
) -> Tensor:
    """How much `softmax(logits)` differs from probabilities `labels`.

    The Kullback-Leibler divergence of the second from the first: the cross-entropy less
    the entropy of the labels. Both sum to 1 along `axis`; of probabilities p the logits
    are `tj.log(p)`. What has the label 0 costs nothing.

    >>> import tapejit as tj
    >>> labels = tj.asarray([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]])
    >>> logits = tj.log(tj.asarray([[0.5, 0.5, 0.0], [0.25, 0.25, 0.5]]))
    >>> print(tj.nn.kl_divergence(logits, labels, reduction="none"))
    [0.        1.3862944]
    """
    name = "kl_divergence"
    _check_reduction(reduction, name)
    _check_is_dense(logits, labels, name)
    scores, shares, dtype = _pair(logits, labels, "logits", "labels", name)
    axes = axes_of(scores, int(axis), name)
    lowered = below_largest(scores, axes)
    log_total = log(sum_of_powers(exp(lowered), axes))
    log_shares = log(where(equal(shares, 0), 1.0, shares))
    costs = _weighted(log_shares + log_total - lowered, shares)
    losses = reductions.sum(costs, axis=axes)
    return _reduced(losses, weights, reduction, dtype, name)


@takes_keras_names
def hinge(
    predictions: Any, targets: Any, *, weights: Any = None, reduction: str = "mean"
) -> Tensor:
    """By how much `targets * predictions` falls short of 1.

    Targets are -1 or 1, or bools.

    >>> import tapejit as tj
    >>> print(tj.nn.hinge(tj.asarray([3.0, 0.5]), [1.0, -1.0], reduction="none"))
    [0.  1.5]
    """
    shortfall, dtype = _shortfall(predictions, targets, reduction, "hinge")
    return _reduced(shortfall, weights, reduction, dtype, "hinge")


@takes_keras_names
def squared_hinge(
    predictions: Any, targets: Any, *, weights: Any = None, reduction: str = "mean"
) -> Tensor:
    """The square of `hinge`, which has no kink at 1.

    >>> import tapejit as tj
    >>> predictions, targets = tj.asarray([3.0, 0.5]), [1.0, -1.0]
    >>> print(tj.nn.squared_hinge(predictions, targets, reduction="none"))
    [0.   2.25]
    """
    name = "squared_hinge"
    shortfall, dtype = _shortfall(predictions, targets, reduction, name)
    return _reduced(square(shortfall), weights, reduction, dtype, name)


@takes_keras_names
def categorical_hinge(
    predictions: Any,
    targets: Any,
    *,
    axis: int = -1,
    weights: Any = None,
    reduction: str = "mean",
) -> Tensor:
    """By how much the best wrong class comes within 1 of the right one.

    `targets` has the shape of `predictions`, with a 1 for the right class along `axis`
    and 0 for the others. Wrong classes below 0 count as 0, as in Keras.

    >>> import tapejit as tj
    >>> predictions = tj.asarray([[3.0, 0.5, 2.5], [5.0, 1.0, 0.0]])
    >>> targets = tj.asarray([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    >>> print(tj.nn.categorical_hinge(predictions, targets, reduction="none"))
    [0.5 0. ]
    """
    name = "categorical_hinge"
    _check_reduction(reduction, name)
    found, wanted, dtype = _pair(predictions, targets, "predictions", "targets", name)
    axes = axes_of(found, int(axis), name)
    right = reductions.sum(found * wanted, axis=axes)
    wrong = reductions.max(found * (1.0 - wanted), axis=axes)
    losses = maximum(wrong - right + 1.0, 0.0)
    return _reduced(losses, weights, reduction, dtype, name)


def _shortfall(
    predictions: Any, targets: Any, reduction: str, name: str
) -> tuple[Tensor, DType]:
    _check_reduction(reduction, name)
    is_bool = as_operand(targets, name).dtype.kind == "b"
    found, wanted, dtype = _pair(predictions, targets, "predictions", "targets", name)
    sign = wanted * 2.0 - 1.0 if is_bool else wanted
    return maximum(1.0 - found * sign, 0.0), dtype


@takes_keras_names
def squared_error(
    predictions: Any, targets: Any, *, weights: Any = None, reduction: str = "mean"
) -> Tensor:
    """The square of the difference: with the mean, the mean squared error.

    >>> import tapejit as tj
    >>> print(tj.nn.squared_error(tj.asarray([1.0, 2.0]), [1.0, 4.0]))
    2.0
    """
    name = "squared_error"
    difference, dtype = _difference(predictions, targets, reduction, name)
    return _reduced(square(difference), weights, reduction, dtype, name)


@takes_keras_names
def absolute_error(
    predictions: Any, targets: Any, *, weights: Any = None, reduction: str = "mean"
) -> Tensor:
    """The size of the difference: with the mean, the mean absolute error.

    >>> import tapejit as tj
    >>> print(tj.nn.absolute_error(tj.asarray([1.0, 2.0]), [1.0, 4.0]))
    1.0
    """
    name = "absolute_error"
    difference, dtype = _difference(predictions, targets, reduction, name)
    return _reduced(magnitude(difference), weights, reduction, dtype, name)


@takes_keras_names
def huber(
    predictions: Any,
    targets: Any,
    delta: float = 1.0,
    *,
    weights: Any = None,
    reduction: str = "mean",
) -> Tensor:
    """Half the squared difference up to `delta`, from there on a line.

    >>> import tapejit as tj
    >>> print(tj.nn.huber(tj.asarray([0.5, 3.0]), [0.0, 0.0], reduction="none"))
    [0.125 2.5  ]
    """
    name = "huber"
    if not delta > 0:
        raise ArgumentError(f"delta is a positive number, got {float(delta)}", op=name)
    difference, dtype = _difference(predictions, targets, reduction, name)
    near = clip(difference, -delta, delta)
    return _reduced(near * (difference - near * 0.5), weights, reduction, dtype, name)


def _difference(
    predictions: Any, targets: Any, reduction: str, name: str
) -> tuple[Tensor, DType]:
    _check_reduction(reduction, name)
    found, wanted, dtype = _pair(predictions, targets, "predictions", "targets", name)
    return subtract(found, wanted), dtype


def _picked(x: Tensor, classes: Tensor, axis: int) -> Tensor:
    """The element at `classes` along an axis, for each position on the others."""
    found = take_along_axis(x, expand_dims(classes, axis=axis), axis=axis)
    return reshape(found, classes.shape)


def _reduced(
    losses: Tensor, weights: Any, reduction: str, dtype: DType, name: str
) -> Tensor:
    """Losses per example, weighted and brought together."""
    if weights is None:
        if reduction == "mean":
            return cast(reductions.mean(losses), dtype)
        return cast(reductions.sum(losses) if reduction == "sum" else losses, dtype)
    factors = cast(real_operand(weights, name), losses.dtype)
    try:
        factors = broadcast_to(factors, losses.shape)
    except ShapeError:
        raise ShapeError(
            f"weights are {factors._type}, the losses {losses._type}",
            op=name,
            help="weights have the shape of the losses, or sizes of 1",
        ) from None
    losses = _weighted(losses, factors)
    if reduction == "none":
        return cast(losses, dtype)
    total = reductions.sum(losses)
    if reduction == "mean":
        weight = reductions.sum(factors)
        total = total / where(equal(weight, 0), 1.0, weight)
    return cast(total, dtype)


def _weighted(costs: Tensor, weights: Tensor) -> Tensor:
    """Costs times weights; what has no weight may cost infinitely much."""
    is_moot = logical_and(equal(weights, 0), equal(costs, math.inf))
    return multiply(where(is_moot, 0.0, costs), weights)


def _check_reduction(reduction: Any, name: str) -> None:
    if reduction not in REDUCTIONS:
        raise ArgumentError(
            f"reduction is 'mean', 'sum' or 'none', got {reduction!r}", op=name
        )


def _share(label_smoothing: Any, name: str) -> float:
    share = float(label_smoothing)
    if not 0 <= share <= 1:
        raise ArgumentError(
            f"label_smoothing is a share from 0 to 1, got {label_smoothing}", op=name
        )
    return share


def _check_is_dense(logits: Any, labels: Any, name: str) -> None:
    """Tell the labels of the other function, which are integers of lower rank."""
    scores, shares = as_operand(logits, name), as_operand(labels, name)
    if is_integer(shares.dtype) and shares.ndim == scores.ndim - 1:
        raise ShapeError(
            f"labels are {shares._type}, logits {scores._type}",
            op=name,
            help="for integers that name classes use "
            "tj.nn.sparse_softmax_cross_entropy",
        )


def _check_order(logits: Any, labels: Any, name: str) -> None:
    """Tell apart who gives labels first, as Keras and TensorFlow's older losses do."""
    scores, classes = as_operand(logits, name), as_operand(labels, name)
    if is_integer(scores.dtype) and is_float(classes.dtype):
        raise DTypeError(
            f"logits are {scores._type}, labels {classes._type}",
            op=name,
            help=f"the order is {name}(logits, labels)",
        )


def _pair(
    left: Any, right: Any, first: str, second: str, name: str
) -> tuple[Tensor, Tensor, DType]:
    """Two operands of one shape, wide enough to compute with."""
    (x, y), dtype = wide_operands((left, right), name)
    if x.shape != y.shape:
        raise ShapeError(
            f"{first} are {x._type}, {second} {y._type}",
            op=name,
            help="give them one shape, with tj.reshape or tj.broadcast_to",
        )
    return x, y, result_dtype(dtype)


if not TYPE_CHECKING:  # checkers see what is defined here
    __all__ = names_in(globals())
