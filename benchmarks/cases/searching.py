"""Searches: counts in bins, interpolation between knots, nearest neighbours.

What they have in common is a position for each element that its value decides: a bin,
an interval, the best few of a line.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.case import Array, Case, Leads
from benchmarks.gradients import peers_of

VALUES, BINS, KNOTS = 300_000, 100, 200
POINTS, QUERIES, FEATURES, NEIGHBOURS = 4_000, 500, 16, 8


EDGES = np.linspace(-3, 3, BINS + 1, dtype=np.float32)


# Counts: what bins weigh, times how many elements each has


def weighed(m: Any, weights: Any, x: Any) -> Any:
    counts, _ = m.histogram(x, EDGES)
    return m.sum(weights * m.asarray(counts, dtype="float32")) / VALUES


def weighed_in_torch(m: Any, weights: Any, x: Any) -> Any:
    import torch

    counts, _ = torch.histogram(x, torch.from_numpy(EDGES))
    return m.sum(weights * counts) / VALUES


def weighed_in_tensorflow(m: Any, weights: Any, x: Any) -> Any:
    import tensorflow as tf

    # The bins beside the first and the last one are cut off.
    places = tf.searchsorted(EDGES, x, side="right")
    counts = tf.math.unsorted_segment_sum(tf.ones_like(x), places, BINS + 2)
    return m.sum(weights * counts[1:-1]) / VALUES


def make_values(rng: np.random.Generator) -> tuple[Array, ...]:
    """Weights of bins, and values of which some are in none."""
    weights = rng.standard_normal(BINS).astype(np.float32)
    return weights, rng.standard_normal(VALUES).astype(np.float32)


def weighed_reference(weights: Array, x: Array) -> Sequence[Array]:
    counts = np.histogram(x, EDGES)[0] / VALUES
    return [np.asarray(weights.astype(np.float64) @ counts), counts]


# Interpolation: values at knots, and a gradient for them


def interpolated(m: Any, heights: Any, knots: Any, x: Any, find: Any) -> Any:
    """The mean square of a piecewise linear function."""
    left = find(knots, x)
    low, high = m.take(knots, left, axis=0), m.take(knots, left + 1, axis=0)
    share = (x - low) / (high - low)
    before, after = m.take(heights, left, axis=0), m.take(heights, left + 1, axis=0)
    y = before + share * (after - before)
    return m.mean(y * y)


def with_searchsorted(m: Any, heights: Any, knots: Any, x: Any) -> Any:
    return interpolated(
        m, heights, knots, x, lambda line, x: m.searchsorted(line, x, side="right") - 1
    )


def interpolated_in_torch(m: Any, heights: Any, knots: Any, x: Any) -> Any:
    import torch

    return interpolated(
        m,
        heights,
        knots,
        x,
        lambda line, x: torch.searchsorted(line, x, right=True) - 1,
    )


def interpolated_in_tensorflow(m: Any, heights: Any, knots: Any, x: Any) -> Any:
    import tensorflow as tf

    return interpolated(
        m,
        heights,
        knots,
        x,
        lambda line, x: tf.searchsorted(line, x, side="right") - 1,
    )


def make_knots(rng: np.random.Generator) -> tuple[Array, ...]:
    """Heights at knots, and values between the first and the last of these."""
    heights = rng.standard_normal(KNOTS).astype(np.float32)
    knots = np.sort(rng.uniform(-1, 1, KNOTS)).astype(np.float32)
    x = rng.uniform(knots[0], knots[-1], VALUES).astype(np.float32)
    return heights, knots, np.minimum(x, np.nextafter(knots[-1], np.float32(-2)))


def interpolated_reference(heights: Array, knots: Array, x: Array) -> Sequence[Array]:
    left = np.searchsorted(knots, x, side="right") - 1
    wide, at = knots.astype(np.float64), x.astype(np.float64)
    share = (at - wide[left]) / (wide[left + 1] - wide[left])
    y = heights[left] + share * (heights[left + 1] - heights[left].astype(np.float64))
    g = 2 * y / VALUES
    by_heights = np.zeros(KNOTS)
    np.add.at(by_heights, left, g * (1 - share))
    np.add.at(by_heights, left + 1, g * share)
    return [np.asarray(np.mean(y * y)), by_heights]


# Nearest neighbours: the mean distance to the nearest few


def distances(m: Any, x: Any, y: Any) -> Any:
    """The squared distance of each x to each y."""
    squares = m.sum(x * x, axis=1)[:, None] + m.sum(y * y, axis=1)[None, :]
    return squares - 2 * (x @ y.T)


def nearest(m: Any, x: Any, y: Any) -> Any:
    return m.mean(m.top_k(-distances(m, x, y), NEIGHBOURS).values)


def nearest_in_jax(m: Any, x: Any, y: Any) -> Any:
    import jax

    return m.mean(jax.lax.top_k(-distances(m, x, y), NEIGHBOURS)[0])


def nearest_in_torch(m: Any, x: Any, y: Any) -> Any:
    import torch

    return m.mean(torch.topk(-distances(m, x, y), NEIGHBOURS, dim=-1).values)


def nearest_in_tensorflow(m: Any, x: Any, y: Any) -> Any:
    import tensorflow as tf

    squares = m.sum(x * x, axis=1)[:, None] + m.sum(y * y, axis=1)[None, :]
    found = squares - 2 * tf.matmul(x, y, transpose_b=True)
    return m.mean(tf.math.top_k(-found, NEIGHBOURS).values)


def make_points(rng: np.random.Generator) -> tuple[Array, ...]:
    x, y = (rng.standard_normal((n, FEATURES)) for n in (QUERIES, POINTS))
    return x.astype(np.float32), y.astype(np.float32)


def nearest_reference(x: Array, y: Array) -> Sequence[Array]:
    x, y = x.astype(np.float64), y.astype(np.float64)
    found = distances(np, x, y)
    order = np.argsort(found, axis=1)[:, :NEIGHBOURS]
    near = np.take_along_axis(found, order, 1)
    between = x[:, None] - y[order]
    by_x = -2 * np.sum(between, axis=1) / near.size
    return [-np.mean(near), by_x]


CASES = (
    Case(
        name="searching/histogram",
        description=f"{VALUES} float32 counted in {BINS} bins, weighed, and gradient",
        unit="ms",
        make_inputs=make_values,
        reference=weighed_reference,
        builders=peers_of(
            weighed,
            wrt=(0,),
            own={"torch": weighed_in_torch, "tensorflow": weighed_in_tensorflow},
        ),
        goals=(Leads(1.0),),
    ),
    Case(
        name="searching/interpolation",
        description=f"{VALUES} float32 between {KNOTS} knots, value and gradient",
        unit="ms",
        make_inputs=make_knots,
        reference=interpolated_reference,
        builders=peers_of(
            with_searchsorted,
            wrt=(0,),
            own={
                "torch": interpolated_in_torch,
                "tensorflow": interpolated_in_tensorflow,
            },
        ),
        goals=(Leads(1.0),),
    ),
    Case(
        name="searching/nearest",
        description=f"the {NEIGHBOURS} nearest of {POINTS} points, value and gradient",
        unit="ms",
        make_inputs=make_points,
        reference=nearest_reference,
        builders=peers_of(
            nearest,
            wrt=(0,),
            own={
                "jax": nearest_in_jax,
                "torch": nearest_in_torch,
                "tensorflow": nearest_in_tensorflow,
            },
        ),
        goals=(Leads(1.0),),
    ),
)
