"""A small convolutional network on 32 pictures of 32 x 32 pixels: all gradients.

Two convolutions of 3 x 3 that keep the size, to 32 and 64 channels, each with a bias, a
relu and the largest of 2 x 2 pixels, then a dense layer and the mean cross-entropy; in
float32, channels last. To Torch the same memory is a channels-last tensor of its own
order of axes, which is how its users get the fastest kernels on a CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks import adjoints
from benchmarks.case import Array, Case, Leads
from benchmarks.gradients import cross_entropy, peers_of

BATCH, PIXELS, CHANNELS, CLASSES = 32, 32, (3, 32, 64), 10
FEATURES = CHANNELS[2] * (PIXELS // 4) ** 2


def objective(tj: Any, *arrays: Any) -> Any:
    """tapejit's convolution and pooling."""
    f1, b1, f2, b2, w, b, x, labels = arrays
    for filters, bias in ((f1, b1), (f2, b2)):
        x = tj.nn.relu(tj.nn.conv2d(x, filters) + bias)
        x = tj.nn.max_pool(x, 2)
    scores = tj.reshape(x, (BATCH, FEATURES)) @ w + b
    return cross_entropy(tj, scores, labels)


def objective_in_jax(m: Any, *arrays: Any) -> Any:
    """JAX names the axes, and pools by a reduction over windows."""
    from jax import lax

    f1, b1, f2, b2, w, b, x, labels = arrays
    for filters, bias in ((f1, b1), (f2, b2)):
        x = lax.conv_general_dilated(
            x, filters, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        x = m.nn.relu(x + bias)
        window = (1, 2, 2, 1)
        x = lax.reduce_window(x, -np.inf, lax.max, window, window, "VALID")
    return cross_entropy(m, x.reshape(BATCH, FEATURES) @ w + b, labels)


def objective_in_torch(m: Any, *arrays: Any) -> Any:
    """Torch's order of axes is another, the order in memory is not."""
    f1, b1, f2, b2, w, b, x, labels = arrays
    x = x.permute(0, 3, 1, 2)
    for filters, bias in ((f1, b1), (f2, b2)):
        x = m.nn.conv2d(x, filters.permute(3, 2, 0, 1), bias, padding=1)
        x = m.nn.max_pool2d(m.nn.relu(x), 2)
    features = x.permute(0, 2, 3, 1).reshape(BATCH, FEATURES)
    return cross_entropy(m, features @ w + b, labels)


def objective_in_tensorflow(m: Any, *arrays: Any) -> Any:
    """TensorFlow's names; the bias is added by the convolution's own function."""
    f1, b1, f2, b2, w, b, x, labels = arrays
    for filters, bias in ((f1, b1), (f2, b2)):
        x = m.nn.relu(m.nn.bias_add(m.nn.conv2d(x, filters, 1, "SAME"), bias))
        x = m.nn.max_pool2d(x, 2, 2, "VALID")
    return cross_entropy(m, m.reshape(x, (BATCH, FEATURES)) @ w + b, labels)


def make_inputs(rng: np.random.Generator) -> tuple[Array, ...]:
    """Filters and weights that keep the size of what they map, pictures, labels."""
    arrays: list[Array] = []
    for before, after in (CHANNELS[:2], CHANNELS[1:]):
        filters = rng.standard_normal((3, 3, before, after))
        arrays.append(filters * (2 / (9 * before)) ** 0.5)
        arrays.append(0.1 * rng.standard_normal(after))
    arrays.append(rng.standard_normal((FEATURES, CLASSES)) * FEATURES**-0.5)
    arrays.append(0.1 * rng.standard_normal(CLASSES))
    arrays.append(rng.standard_normal((BATCH, PIXELS, PIXELS, CHANNELS[0])))
    labels = rng.integers(0, CLASSES, BATCH)
    return *(array.astype(np.float32) for array in arrays), labels


def reference(*arrays: Array) -> Sequence[Array]:
    """The adjoint, layer by layer."""
    f1, b1, f2, b2, w, b, x, labels = adjoints.widened(arrays)
    layers: list[tuple[adjoints.Pull, adjoints.Pull, adjoints.Pull]] = []
    for filters, bias in ((f1, b1), (f2, b2)):
        mapped, pull_filters = adjoints.conv2d(x, filters)
        bent, pull_relu = adjoints.relu(mapped + bias)
        x, pull_pool = adjoints.max_pool(bent)
        layers.append((pull_filters, pull_relu, pull_pool))
    scores, pull_dense = adjoints.dense(x.reshape(BATCH, FEATURES), w, b)
    value, pull_loss = adjoints.cross_entropy(scores, labels)

    by_features, by_w, by_b = pull_dense(pull_loss(np.ones(())))
    found, g = [by_w, by_b], by_features.reshape(x.shape)
    for pull_filters, pull_relu, pull_pool in reversed(layers):
        by_mapped = pull_relu(pull_pool(g))
        g, by_filters = pull_filters(by_mapped)
        found[:0] = [by_filters, by_mapped.sum(axis=(0, 1, 2))]
    return [value, *found]


CASES = (
    Case(
        name="cnn",
        description="two convolutions with pooling, 32 x 32 x 32 x 3: 6 gradients",
        unit="ms",
        make_inputs=make_inputs,
        reference=reference,
        builders=peers_of(
            objective,
            wrt=range(6),
            own={
                "jax": objective_in_jax,
                "torch": objective_in_torch,
                "tensorflow": objective_in_tensorflow,
            },
        ),
        goals=(Leads(1.0),),
    ),
)
