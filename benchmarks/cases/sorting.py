"""Sorted rows and the largest of each row: values and gradients.

A gradient needs to know where elements came from, so it needs positions; who sorts once
for the values and once more for the positions does twice the work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.case import Array, Case, Leads
from benchmarks.gradients import peers_of

ROWS, COLUMNS, LARGEST = 2_000, 500, 10


def sorted_sum(m: Any, x: Any, w: Any) -> Any:
    """The sum of each row in order, weighted by place."""
    return m.sum(m.sort(x, axis=-1) * w)


def sorted_sum_in_torch(m: Any, x: Any, w: Any) -> Any:
    import torch

    return m.sum(torch.sort(x, dim=-1, stable=True).values * w)


def sorted_sum_in_tensorflow(m: Any, x: Any, w: Any) -> Any:
    import tensorflow as tf

    return m.sum(tf.sort(x, axis=-1) * w)


def largest_sum(m: Any, x: Any, w: Any) -> Any:
    """The sum of the largest of each row, weighted by place."""
    return m.sum(m.top_k(x, LARGEST).values * w)


def largest_sum_in_jax(m: Any, x: Any, w: Any) -> Any:
    import jax

    return m.sum(jax.lax.top_k(x, LARGEST)[0] * w)


def largest_sum_in_torch(m: Any, x: Any, w: Any) -> Any:
    import torch

    return m.sum(torch.topk(x, LARGEST, dim=-1).values * w)


def largest_sum_in_tensorflow(m: Any, x: Any, w: Any) -> Any:
    import tensorflow as tf

    return m.sum(tf.math.top_k(x, LARGEST).values * w)


def make_inputs(rng: np.random.Generator, places: int) -> tuple[Array, ...]:
    x, w = rng.standard_normal((ROWS, COLUMNS)), rng.standard_normal(places)
    return x.astype(np.float32), w.astype(np.float32)


def reference(x: Array, w: Array, *, descending: bool) -> Sequence[Array]:
    """The gradient is each weight at the position of the element it was for."""
    wide, weights = x.astype(np.float64), w.astype(np.float64)
    order = np.argsort(-x if descending else x, axis=-1, kind="stable")[:, : w.size]
    gradient = np.zeros_like(wide)
    np.put_along_axis(gradient, order, np.broadcast_to(weights, order.shape), -1)
    value = np.sum(np.take_along_axis(wide, order, -1) * weights)
    return [np.asarray(value), gradient]


CASES = (
    Case(
        name="sorting",
        description=f"rows of {COLUMNS} sorted, {ROWS} float32: value and gradient",
        unit="ms",
        make_inputs=lambda rng: make_inputs(rng, COLUMNS),
        reference=lambda x, w: reference(x, w, descending=False),
        builders=peers_of(
            sorted_sum,
            wrt=(0,),
            own={"torch": sorted_sum_in_torch, "tensorflow": sorted_sum_in_tensorflow},
        ),
        goals=(Leads(1.0),),
    ),
    Case(
        name="sorting/largest",
        description=f"the {LARGEST} largest of {COLUMNS}, {ROWS} rows of float32",
        unit="ms",
        make_inputs=lambda rng: make_inputs(rng, LARGEST),
        reference=lambda x, w: reference(x, w, descending=True),
        builders=peers_of(
            largest_sum,
            wrt=(0,),
            own={
                "jax": largest_sum_in_jax,
                "torch": largest_sum_in_torch,
                "tensorflow": largest_sum_in_tensorflow,
            },
        ),
        goals=(Leads(1.0),),
    ),
)
