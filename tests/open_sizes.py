"""What tests of functions with open sizes share: specs, data, comparison.

Each program runs as plain Python and as a function traced for any size; the numbers are
the same bit for bit where the arithmetic is, and traces are counted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import tapejit as tj
from tapejit.base import tree

SIZES = (2, 3, 5, 8)
ROWS = tj.TensorSpec([None, 3], tj.float32)
LINE = tj.TensorSpec([None], tj.float32)


def sample(*shape: int, seed: int = 0) -> tj.Tensor:
    """Numbers between 0 and 1."""
    rng = np.random.default_rng(seed + sum(shape))
    return tj.asarray(rng.random(shape, dtype=np.float32))


def for_any_size(body: Callable[..., Any], *specs: Any) -> Any:
    return tj.function(input_signature=list(specs) or [ROWS])(body)


def assert_same(found: Any, wanted: Any, *, exact: bool = True) -> None:
    """Equal values, dtypes and None-ness; Python numbers become tensors."""
    pairs = zip(
        tree.leaves(found, none_is_leaf=True),
        tree.leaves(wanted, none_is_leaf=True),
        strict=True,
    )
    for one, other in pairs:
        if other is None:
            assert one is None
            continue
        expected = tj.asarray(other)
        assert one.dtype == expected.dtype
        assert one.shape == expected.shape
        if exact:
            np.testing.assert_array_equal(one, expected)
        else:
            np.testing.assert_allclose(one, expected, rtol=1e-5, atol=1e-6)


def assert_one_trace(body: Callable[..., Any], *, exact: bool = True) -> None:
    """Of f32[n,3], for every size; the second round runs what the first has bound."""
    function = for_any_size(body)
    for size in (*SIZES, *SIZES):
        assert_same(function(sample(size, 3)), body(sample(size, 3)), exact=exact)
    assert function.trace_count == 1


def loss(x: Any) -> Any:
    """A little of everything: slices, means, the size as a number."""
    return tj.mean(tj.tanh(x[1:] * x[:-1])) + tj.sum(x * x, axis=0) / x.shape[0]


def inner_gradient(x: Any) -> Any:
    with tj.GradientTape() as tape:
        tape.watch(x)
        y = tj.sum(loss(x) ** 2)
    return tape.gradient(y, x)
