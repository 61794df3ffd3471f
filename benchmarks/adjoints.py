"""Layers with their adjoints, written out in NumPy: the right answers of big programs.

Each function returns what a layer computes and a function that takes the cotangent of
that and returns those of the operands, in their order. References chain them in
float64; nothing here is fast, and nothing is shared with what is being measured. The
tests differentiate each of them numerically.

Start reading at `dense`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.case import Array

Pull = Callable[[Array], Any]
"""From the cotangent of a layer's result to that of its operand, or a tuple of them."""


def dense(x: Array, w: Array, b: Array | None = None) -> tuple[Array, Pull]:
    """`x @ w + b`, x of any rank; without b there is no cotangent for it.

    >>> y, pull = dense(np.ones((5, 2)), np.ones((2, 3)))
    >>> y.shape, [g.shape for g in pull(y)]
    ((5, 3), [(5, 2), (2, 3)])
    """

    def pull(g: Array) -> tuple[Array, ...]:
        rows, cotangents = x.reshape(-1, x.shape[-1]), g.reshape(-1, g.shape[-1])
        by_b = () if b is None else (cotangents.sum(axis=0),)
        return g @ w.T, rows.T @ cotangents, *by_b

    return x @ w + (0 if b is None else b), pull


def relu(x: Array) -> tuple[Array, Pull]:
    """The larger of x and 0."""
    return np.maximum(x, 0), lambda g: g * (x > 0)


def tanh(x: Array) -> tuple[Array, Pull]:
    """The hyperbolic tangent."""
    y = np.tanh(x)
    return y, lambda g: g * (1 - y * y)


def gelu(x: Array) -> tuple[Array, Pull]:
    """x times the probability that a standard normal number is below x."""
    from scipy.special import ndtr

    below = ndtr(x)
    density = np.exp(-0.5 * x * x) / np.sqrt(2 * np.pi)
    return x * below, lambda g: g * (below + x * density)


def layer_norm(
    x: Array, scale: Array, shift: Array, epsilon: float
) -> tuple[Array, Pull]:
    """Mean 0 and variance 1 along the last axis, then scaled and shifted."""
    centred = x - x.mean(axis=-1, keepdims=True)
    spread = np.sqrt(np.mean(centred**2, axis=-1, keepdims=True) + epsilon)
    normal = centred / spread

    def pull(g: Array) -> tuple[Array, Array, Array]:
        by_normal = g * scale
        along = np.mean(by_normal * normal, axis=-1, keepdims=True)
        level = by_normal.mean(axis=-1, keepdims=True)
        rows = tuple(range(x.ndim - 1))
        return (
            (by_normal - level - normal * along) / spread,
            np.sum(g * normal, axis=rows),
            np.sum(g, axis=rows),
        )

    return normal * scale + shift, pull


def cross_entropy(scores: Array, labels: Array) -> tuple[Array, Pull]:
    """The mean cross-entropy of rows of scores with whole-numbered labels."""
    evidence = np.logaddexp.reduce(scores, axis=1)
    rows = np.arange(len(labels))
    value = np.asarray(np.mean(evidence - scores[rows, labels]))

    def pull(g: Array) -> Array:
        shares = np.exp(scores - evidence[:, None])
        shares[rows, labels] -= 1
        return g * shares / len(labels)

    return value, pull


def split_heads(x: Array, heads: int) -> Array:
    """Batch, time, features to batch, head, time, features of the head."""
    batch, time, size = x.shape
    return x.reshape(batch, time, heads, size // heads).transpose(0, 2, 1, 3)


def join_heads(x: Array) -> Array:
    """The inverse of `split_heads`.

    >>> x = np.arange(24.0).reshape(1, 4, 6)
    >>> bool(np.all(join_heads(split_heads(x, 3)) == x))
    True
    """
    batch, heads, time, size = x.shape
    return x.transpose(0, 2, 1, 3).reshape(batch, time, heads * size)


def attention(q: Array, k: Array, v: Array, heads: int) -> tuple[Array, Pull]:
    """Scaled dot-product attention of arrays of batch, time and features.

    One matrix of weights at a time: all of `attention_long` would be 268 MB.
    """
    split = [split_heads(x, heads) for x in (q, k, v)]
    root = np.sqrt(split[0].shape[-1])
    places = list(np.ndindex(*split[0].shape[:2]))

    def weights_at(place: tuple[int, ...]) -> Array:
        scores = split[0][place] @ split[1][place].T / root
        scores -= scores.max(axis=-1, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(axis=-1, keepdims=True)
        return scores

    y = np.empty(split[0].shape)
    for place in places:
        y[place] = weights_at(place) @ split[2][place]

    def pull(g: Array) -> tuple[Array, ...]:
        cotangents = split_heads(g, heads)
        found = [np.empty(x.shape) for x in split]
        for place in places:
            weights, by_y = weights_at(place), cotangents[place]
            by_weights = by_y @ split[2][place].T
            by_weights -= np.sum(by_y * y[place], axis=-1, keepdims=True)
            by_scores = weights * by_weights / root
            found[0][place] = by_scores @ split[1][place]
            found[1][place] = by_scores.T @ split[0][place]
            found[2][place] = weights.T @ by_y
        return tuple(join_heads(x) for x in found)

    return join_heads(y), pull


def conv2d(x: Array, filters: Array) -> tuple[Array, Pull]:
    """A convolution with stride 1 that keeps the size; NHWC and odd HWIO filters."""
    tall, wide = filters.shape[:2]
    above, left = tall // 2, wide // 2
    _, height, width, _ = x.shape
    padded = np.pad(x, ((0, 0), (above, above), (left, left), (0, 0)))
    taps = [
        (i, j, (slice(None), slice(i, i + height), slice(j, j + width)))
        for i in range(tall)
        for j in range(wide)
    ]
    y = sum(padded[window] @ filters[i, j] for i, j, window in taps)

    def pull(g: Array) -> tuple[Array, Array]:
        by_padded, by_filters = np.zeros(padded.shape), np.empty(filters.shape)
        for i, j, window in taps:
            by_padded[window] += g @ filters[i, j].T
            pixels = padded[window].reshape(-1, x.shape[-1])
            by_filters[i, j] = pixels.T @ g.reshape(-1, g.shape[-1])
        inner = slice(above, above + height), slice(left, left + width)
        return by_padded[:, *inner], by_filters

    return np.asarray(y), pull


def max_pool(x: Array) -> tuple[Array, Pull]:
    """The largest of each 2 x 2 pixels; where several are, each has the cotangent."""
    batch, height, width, channels = x.shape
    cells = x.reshape(batch, height // 2, 2, width // 2, 2, channels)
    largest = cells.max(axis=(2, 4), keepdims=True)

    def pull(g: Array) -> Array:
        spread = (cells == largest) * g[:, :, None, :, None, :]
        return spread.reshape(x.shape)

    return largest[:, :, 0, :, 0], pull


def network(
    weights: Sequence[Array], x: Array, bend: Callable[[Array], tuple[Array, Pull]]
) -> tuple[Array, Pull]:
    """Dense layers with `bend` between them; pulls back to all weights, not to x.

    `weights` is a matrix and a vector for each layer.
    """
    pulls: list[tuple[Pull, Pull | None]] = []
    for i in range(0, len(weights), 2):
        bent: Pull | None = None
        if i:
            x, bent = bend(x)
        x, affine = dense(x, weights[i], weights[i + 1])
        pulls.append((affine, bent))

    def pull(g: Array) -> list[Array]:
        found: list[Array] = []
        for affine, bent in reversed(pulls):
            g, by_w, by_b = affine(g)
            found[:0] = [by_w, by_b]
            if bent is not None:
                g = bent(g)
        return found

    return x, pull


def widened(arrays: Sequence[Array]) -> list[Array]:
    """The floating-point ones in float64, the others as they are."""
    return [a.astype(np.float64) if a.dtype.kind == "f" else a for a in arrays]
