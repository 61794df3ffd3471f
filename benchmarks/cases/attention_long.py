"""Attention over 2,048 steps, 8 heads of 32 features: gradients of three projections.

The weights of one head are a matrix of 16 MB, those of all heads 134 MB: whoever stores
them spends the time on memory. Torch's function does not. The value is the sum of the
squares of what is attended to, in float32. `attention_memory` measures how much memory
it takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks import adjoints
from benchmarks.case import Array, Case, Leads
from benchmarks.cases.attention import (
    HEADS,
    SIZE,
    Attend,
    attend,
    attend_in_tensorflow,
    attend_in_torch,
    attention,
)
from benchmarks.gradients import Objective, peers_of

TIME = 2048


def squares(attend: Attend) -> Objective:
    """The objective of a package."""

    def objective(m: Any, wq: Any, wk: Any, wv: Any, x: Any) -> Any:
        y = attention(m, attend, x, wq, wk, wv)
        return m.sum(y * y)

    return objective


def make_inputs(rng: np.random.Generator) -> tuple[Array, ...]:
    """Projections that keep the size of what they map."""
    projections = rng.standard_normal((3, SIZE, SIZE)) * SIZE**-0.5
    wq, wk, wv = projections.astype(np.float32)
    return wq, wk, wv, rng.standard_normal((1, TIME, SIZE)).astype(np.float32)


def reference(*arrays: Array) -> Sequence[Array]:
    """The adjoint, head by head."""
    *projections, x = adjoints.widened(arrays)
    projected = [adjoints.dense(x, w) for w in projections]
    y, pull_attention = adjoints.attention(*(y for y, _ in projected), HEADS)
    pulled = zip(projected, pull_attention(2 * y), strict=True)
    return [np.asarray(np.sum(y * y)), *(pull(g)[1] for (_, pull), g in pulled)]


CASES = (
    Case(
        name="attention_long",
        description="attention, 1 x 2048 x 256, 8 heads: gradients of q, k, v",
        unit="ms",
        make_inputs=make_inputs,
        reference=reference,
        builders=peers_of(
            squares(attend),
            wrt=(0, 1, 2),
            own={
                "torch": squares(attend_in_torch),
                "tensorflow": squares(attend_in_tensorflow),
            },
        ),
        goals=(Leads(1.2),),
        rounds=7,  # a call takes some tenths of a second
    ),
)
