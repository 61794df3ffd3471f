"""Signals and images filtered by their frequencies: value and gradient.

Two transforms of real lines forward, two backward. Who takes complex ones of twice the
length, or computes in double, does two to four times the work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.case import Array, Case, Leads
from benchmarks.gradients import peers_of

SIGNALS, LENGTH = 64, 4_096
IMAGES, SIDE = 16, 256


def filtered(m: Any, x: Any, h: Any) -> Any:
    """The mean square of signals after a filter."""
    y = m.fft.irfft(m.fft.rfft(x) * h)
    return m.mean(y * y)


def filtered_in_torch(m: Any, x: Any, h: Any) -> Any:
    import torch

    y = torch.fft.irfft(torch.fft.rfft(x) * h)
    return m.mean(y * y)


def filtered_in_tensorflow(m: Any, x: Any, h: Any) -> Any:
    import tensorflow as tf

    y = tf.signal.irfft(tf.signal.rfft(x) * tf.cast(h, tf.complex64))
    return m.mean(y * y)


def filtered_images(m: Any, x: Any, h: Any) -> Any:
    """The same in two dimensions."""
    y = m.fft.irfftn(m.fft.rfftn(x, axes=(1, 2)) * h, axes=(1, 2))
    return m.mean(y * y)


def filtered_images_in_torch(m: Any, x: Any, h: Any) -> Any:
    import torch

    y = torch.fft.irfftn(torch.fft.rfftn(x, dim=(1, 2)) * h, dim=(1, 2))
    return m.mean(y * y)


def filtered_images_in_tensorflow(m: Any, x: Any, h: Any) -> Any:
    import tensorflow as tf

    y = tf.signal.irfft2d(tf.signal.rfft2d(x) * tf.cast(h, tf.complex64))
    return m.mean(y * y)


def signals(rng: np.random.Generator) -> tuple[Array, ...]:
    x = rng.standard_normal((SIGNALS, LENGTH))
    h = rng.uniform(0, 1, LENGTH // 2 + 1)
    return x.astype(np.float32), h.astype(np.float32)


def images(rng: np.random.Generator) -> tuple[Array, ...]:
    """A filter of the size of frequencies only, whose matrix is symmetric."""
    x = rng.standard_normal((IMAGES, SIDE, SIDE))
    rows, columns = np.fft.fftfreq(SIDE)[:, None], np.fft.rfftfreq(SIDE)
    h = np.exp(-20 * (rows**2 + columns**2))
    return x.astype(np.float32), h.astype(np.float32)


def reference(x: Array, h: Array) -> Sequence[Array]:
    """A real filter is its own transpose, so the gradient is filtered once more."""
    axes = tuple(range(1, x.ndim))
    h = h.astype(np.float64)

    def apply(x: Array) -> Array:
        return np.fft.irfftn(np.fft.rfftn(x, axes=axes) * h, axes=axes)

    y = apply(x.astype(np.float64))
    return [np.asarray(np.mean(y * y)), apply(2 * y / y.size)]


CASES = (
    Case(
        name="spectral",
        description=f"{SIGNALS} signals of {LENGTH} float32 filtered: value, gradient",
        unit="ms",
        make_inputs=signals,
        reference=reference,
        builders=peers_of(
            filtered,
            wrt=(0,),
            own={"torch": filtered_in_torch, "tensorflow": filtered_in_tensorflow},
        ),
        goals=(Leads(1.0),),
    ),
    Case(
        name="spectral/images",
        description=f"{IMAGES} images of {SIDE} x {SIDE} float32 filtered",
        unit="ms",
        make_inputs=images,
        reference=reference,
        builders=peers_of(
            filtered_images,
            wrt=(0,),
            own={
                "torch": filtered_images_in_torch,
                "tensorflow": filtered_images_in_tensorflow,
            },
        ),
        goals=(Leads(1.0),),
    ),
)
