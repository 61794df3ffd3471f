"""What the tests of custom gradients share: two modes, a function, its derivative."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import tapejit as tj

MODES: dict[str, Callable[[Any], Any]] = {"eager": lambda f: f, "function": tj.function}
"""Plain Python, or traced: the parameters of the fixture `mode`."""


@tj.custom_gradient
def log1pexp(x: Any) -> Any:
    e = tj.exp(x)
    return tj.log(1 + e), lambda dy: dy * (1 - 1 / (1 + e))


def sigmoid(x: Any) -> Any:
    """The derivative of `log1pexp`."""
    return 1 / (1 + np.exp(-np.asarray(x, np.float64)))


def gradient(f: Any, *sources: Any, **options: Any) -> list[Any]:
    """The gradients of a call of `f` with respect to its arguments."""
    with tj.GradientTape() as tape:
        tape.watch([x for x in sources if isinstance(x, tj.Tensor)])
        y = f(*sources)
    return tape.gradient(y, list(sources), **options)
