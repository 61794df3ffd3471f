"""Every public function on tensors of the emulated device: what it gives on the CPU.

What has no kernel is performed by the host, so this is about where tensors go.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from agreement import COMPOSED, assert_agrees
from public_calls import CALLS, Call

import tapejit as tj

SAMPLE = 8  # one call in so many, the first of each function aside


def placed(x: Any, device: str) -> Any:
    """Arguments with tensors in place of arrays."""
    if isinstance(x, np.ndarray):
        return tj.asarray(x, device=device)
    if type(x) in (list, tuple):
        return type(x)(placed(part, device) for part in x)
    return x


def result_of(name: str, call: Call, device: str) -> list[Any]:
    function: Any = tj
    for part in name.split("."):
        function = getattr(function, part)
    tj.random.set_seed(3)
    options = {key: placed(x, device) for key, x in call.options.items()}
    return tj.tree.leaves(function(*placed(call.args, device), **options))


@pytest.mark.parametrize("name", CALLS)
def test_results_are_those_of_the_cpu(
    name: str, request: pytest.FixtureRequest
) -> None:
    every = request.config.getoption("--full")
    calls = CALLS[name]
    chosen = [x for at, x in enumerate(calls) if every or at % SAMPLE == 0]
    with tj.config.override(cuda="emulated", soft_placement=True):
        for call in chosen:
            wanted = result_of(name, call, "cpu")
            found = result_of(name, call, "cuda:0")
            assert len(found) == len(wanted)
            for x, y in zip(found, wanted, strict=True):
                if not isinstance(y, tj.Tensor):
                    assert x == y
                    continue
                assert (x.dtype, x.shape) == (y.dtype, y.shape)
                assert_agrees(COMPOSED, x.numpy(), y.numpy(), where=str(call))
                if any(isinstance(a, np.ndarray) for a in tj.tree.leaves(call.args)):
                    assert x.device == "cuda:0"
