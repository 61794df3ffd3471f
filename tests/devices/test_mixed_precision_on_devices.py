"""Mixed precision on a GPU: halves go to tensor cores, the loss scale follows a model.

Start reading at `test_products_of_halves_go_to_tensor_cores`.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tapejit as tj
from tapejit.tensor import mixed_precision

POLICIES = {"mixed_float16": "f32.f16.f16.f32", "mixed_bfloat16": "f32.bf16.bf16.f32"}


@pytest.fixture(autouse=True)
def _emulated(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(mixed_precision, "_TOLD", set())
    with tj.config.override(cuda="emulated", native=True):
        yield


@pytest.mark.parametrize("policy", POLICIES)
def test_products_of_halves_go_to_tensor_cores(policy: str) -> None:
    rng = np.random.default_rng(0)
    x, w = (
        tj.asarray(rng.standard_normal(shape).astype(np.float32), device="cuda:0")
        for shape in ((32, 48), (48, 16))
    )

    def product(x: Any, w: Any) -> Any:
        with tj.mixed_precision.policy(policy):
            return tj.nn.relu(x @ w)

    function = tj.function(product)
    assert POLICIES[policy] in function.ptx(x, w, capability="sm_80")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # that a CPU is slow is not to be said here
        found = function(x, w)
    assert found.device == "cuda:0"
    mixed_precision._TOLD.update({"float16", "bfloat16"})
    wanted = product(x.to("cpu"), w.to("cpu"))
    assert found.dtype == wanted.dtype
    here = np.asarray(found.to("cpu")).astype(np.float32)
    np.testing.assert_allclose(here, np.asarray(wanted, np.float32), rtol=2**-7)


def test_the_scale_follows_and_a_step_that_overflows_is_skipped() -> None:
    tj.random.set_seed(1)
    layers = [tj.nn.Dense(16, "relu", input_size=8), tj.nn.Dense(4, input_size=16)]
    model = tj.nn.Sequential(layers, policy="mixed_float16").to("cuda:0")
    optimizer = tj.optimizers.LossScaleOptimizer(tj.optimizers.Adam(0.01), 8.0, 2)

    @tj.function
    def step(x: Any, labels: Any) -> Any:
        with tj.GradientTape() as tape:
            loss = tj.nn.sparse_softmax_cross_entropy(model(x), labels)
            target = optimizer.scale_loss(loss)
        variables = model.trainable_variables
        pairs = zip(tape.gradient(target, variables), variables, strict=True)
        optimizer.apply_gradients(pairs)
        return loss

    rng = np.random.default_rng(0)
    x = rng.standard_normal((16, 8)).astype(np.float32)
    labels = tj.asarray(rng.integers(0, 4, 16).astype(np.int32), device="cuda:0")
    losses = [float(step(tj.asarray(x, device="cuda:0"), labels)) for _ in range(2)]
    assert losses[1] < losses[0]
    assert float(optimizer.loss_scale) == 16.0
    before = np.asarray(layers[0].weight.value().to("cpu"))
    step(tj.asarray(x * np.float32(np.inf), device="cuda:0"), labels)
    assert float(optimizer.loss_scale) == 8.0
    assert int(optimizer.iterations) == 2
    np.testing.assert_array_equal(layers[0].weight.value().to("cpu"), before)
