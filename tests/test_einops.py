"""einops on tensors, in both modes, whichever of the two is imported first."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from agreement import COMPOSED, assert_agrees

import tapejit as tj

einops = pytest.importorskip("einops", reason="einops is not installed")

X = np.random.default_rng(0).standard_normal((2, 3, 4))
CALLS: dict[str, Callable[[Any], Any]] = {
    "rearrange": lambda x: einops.rearrange(x, "a b c -> c (a b)"),
    "split an axis": lambda x: einops.rearrange(x, "a b (c d) -> a d b c", c=2),
    "list": lambda x: einops.rearrange([x, x * 2], "l a b c -> a (l b) c"),
    "repeat": lambda x: einops.repeat(x, "a b c -> (a 2) b 3 c"),
    **{
        name: lambda x, name=name: einops.reduce(x, "a b c -> b 1", name)
        for name in ("sum", "mean", "max", "min", "prod")
    },
    "any": lambda x: einops.reduce(x > 1, "a b c -> b", "any"),
    "all": lambda x: einops.reduce(x > -2, "a b c -> b", "all"),
    "einsum": lambda x: einops.einsum(x, x * 2, "a b c, a b d -> c d"),
    "pack": lambda x: einops.pack([x, x[0]], "* c")[0],
    "unpack": lambda x: einops.unpack(x, [(3,), ()], "a b *")[0],
}


@pytest.mark.parametrize("name", CALLS)
def test_einops_of_tensors(name: str) -> None:
    body = CALLS[name]
    expected = np.asarray(body(X))
    for run in (body, tj.function(body)):
        for operand in (tj.asarray(X), tj.Variable(X)):
            found = run(operand)
            assert isinstance(found, tj.Tensor)
            assert_agrees(COMPOSED, found.numpy(), expected, where=name)


@pytest.mark.parametrize("name", ["rearrange", "repeat", "mean", "max", "einsum"])
def test_gradients_pass_through(name: str) -> None:
    tj.testing.check_grads(CALLS[name], [X])


def test_a_shape_that_einops_remembers_is_no_traces() -> None:
    def body(x: Any) -> Any:
        return einops.rearrange(x, "a b c -> (a b) c")

    f = tj.function(body, input_signature=[tj.TensorSpec([None, 3, 4], "float64")])
    for rows in (2, 5, 2):
        x = tj.ones((rows, 3, 4), dtype="float64")
        assert f(x).shape == body(x).shape == (3 * rows, 4)


@pytest.mark.parametrize("first", ["einops", "tapejit"])
def test_the_order_of_imports_does_not_matter(first: str) -> None:
    code = f"""
import sys, {first}
import tapejit as tj
assert {first!r} == "einops" or "einops" not in sys.modules
import einops
print(einops.rearrange(tj.ones((2, 3)), "a b -> b a").shape)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "(3, 2)"
