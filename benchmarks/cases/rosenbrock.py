"""Rosenbrock's function of ten float64: value and gradient, as a minimiser asks.

Thirty flops: what is measured is the way into a compiled function and out again, with
two results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.case import Array, Case, Leads, Within
from benchmarks.gradients import peers_of

SIZE = 10


def objective(m: Any, x: Any) -> Any:
    """A curved valley, one step per neighbouring pair."""
    left, right = x[:-1], x[1:]
    return m.sum(100 * (right - left**2) ** 2 + (1 - left) ** 2)


def make_inputs(rng: np.random.Generator) -> tuple[Array, ...]:
    """Around the minimum at one."""
    return (rng.uniform(0, 2, SIZE),)


def reference(x: Array) -> Sequence[Array]:
    """The gradient by hand."""
    left, right = x[:-1], x[1:]
    off = right - left**2
    gradient = np.zeros_like(x)
    gradient[:-1] = -400 * left * off - 2 * (1 - left)
    gradient[1:] += 200 * off
    return [np.asarray(np.sum(100 * off**2 + (1 - left) ** 2)), gradient]


def with_tapejit(x: Array) -> Callable[[], Any]:
    """A tape inside a function of one argument."""
    import tapejit as tj

    @tj.function
    def value_and_gradient(x: Any) -> Any:
        with tj.GradientTape() as tape:
            tape.watch(x)
            value = objective(tj, x)
        return value, tape.gradient(value, x)

    tensor = tj.asarray(x)
    return lambda: value_and_gradient(tensor)


def with_pytensor(x: Array) -> Callable[[], Any]:
    """A compiled function that trusts its argument to be of the declared type."""
    import pytensor
    import pytensor.tensor as pt

    variable = pt.vector("x", dtype=x.dtype.name)
    value = objective(pt, variable)
    outputs = [value, pytensor.grad(value, variable)]
    function = pytensor.function([variable], outputs, trust_input=True)
    return lambda: function(x)


CASES = (
    Case(
        name="rosenbrock",
        description="Rosenbrock's function of ten float64: value and gradient",
        unit="µs",
        make_inputs=make_inputs,
        reference=reference,
        builders={
            **peers_of(objective, wrt=(0,), autograd=True),
            "tapejit": with_tapejit,
            "pytensor (trust_input)": with_pytensor,
        },
        goals=(Leads(2.0), Within(1.5, "µs", promised=False)),
    ),
)
