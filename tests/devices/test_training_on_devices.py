"""Whole training steps on the emulated device: twenty of them are those of the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from agreement import COMPOSED, assert_agrees

import tapejit as tj

GPU = "cuda:0"
STEPS = 20
LOOSE = {"float16": 0.02, "bfloat16": 0.1, "float64": 1e-9}
RNG = np.random.default_rng(5)
ROWS = RNG.standard_normal((24, 6)).astype(np.float32)
TARGETS = (ROWS @ RNG.standard_normal((6, 1))).astype(np.float32)
LABELS = RNG.integers(0, 3, 24).astype(np.int32)
IMAGES = RNG.standard_normal((6, 8, 8, 2)).astype(np.float32)
WORDS = RNG.integers(0, 11, (4, 5)).astype(np.int32)


@pytest.fixture(autouse=True)
def _emulated() -> Iterator[None]:
    with tj.config.override(cuda="emulated"):
        yield


def squared(model: Any, x: Any, y: Any) -> Any:
    return tj.mean(tj.square(model(x) - y))


def crossed(model: Any, x: Any, y: Any) -> Any:
    return tj.nn.sparse_softmax_cross_entropy(model(x), y)


class Line(tj.nn.Module):
    """No matmul: elementwise operations and sums."""

    def __init__(self) -> None:
        self.slope = tj.Variable(np.zeros(6, np.float32))
        self.offset = tj.Variable(0.0)

    def __call__(self, x: Any) -> Any:
        return tj.sum(x * self.slope, axis=1, keepdims=True) + self.offset


class Attention(tj.nn.Module):
    def __init__(self) -> None:
        self.table = tj.nn.Embedding(11, 8)
        # Scores do not depend on a bias of keys: it would be noise.
        self.attention = tj.nn.MultiHeadAttention(2, 4, use_bias=False)
        self.norm = tj.nn.LayerNorm()
        self.last = tj.nn.Dense(3)

    def __call__(self, words: Any) -> Any:
        x = self.table(words)
        x = self.norm(x + self.attention(x, x, use_causal_mask=True))
        return self.last(tj.mean(x, axis=1))


def mlp(**options: Any) -> Any:
    return tj.nn.Sequential(
        [tj.nn.Dense(8, "tanh", **options), tj.nn.Dense(1, **options)]
    )


def cnn() -> Any:
    return tj.nn.Sequential(
        [
            tj.nn.Conv2D(4, 3, activation="relu"),
            tj.nn.MaxPool2D(2),
            tj.nn.Flatten(),
            tj.nn.Dense(3),
        ]
    )


Make = Callable[[], Any]
Case = tuple[Make, Make, Callable[..., Any], tuple[np.ndarray, np.ndarray]]
SGD, ADAM = tj.optimizers.SGD, tj.optimizers.Adam
REGRESSION = (ROWS, TARGETS)
CASES: dict[str, Case] = {
    "regression": (Line, lambda: SGD(0.05), squared, REGRESSION),
    "momentum": (Line, lambda: SGD(0.01, momentum=0.9), squared, REGRESSION),
    "mlp, Adam": (mlp, lambda: ADAM(0.01), squared, REGRESSION),
    "clipping and decay": (
        mlp,
        lambda: tj.optimizers.AdamW(0.01, global_clipnorm=1.0),
        squared,
        REGRESSION,
    ),
    "schedule": (
        Line,
        lambda: tj.optimizers.RMSprop(tj.optimizers.schedules.CosineDecay(0.01, 10)),
        squared,
        REGRESSION,
    ),
    "cnn": (cnn, lambda: SGD(0.01), crossed, (IMAGES, LABELS[:6])),
    "attention": (Attention, lambda: SGD(0.05), crossed, (WORDS, LABELS[:4])),
}


def train(case: Case, device: str, is_decorated: bool) -> tuple[list[float], Any, Any]:
    """Losses, model and optimizer after twenty steps."""
    make, optimizer_of, loss_of, data = case
    tj.random.set_seed(3)
    model, optimizer = make(), optimizer_of()
    metric = tj.metrics.Mean()
    model(tj.asarray(data[0][:1]))
    model.to(device)

    def step(x: Any, y: Any) -> Any:
        with tj.GradientTape() as tape:
            loss = loss_of(model, x, y)
        variables = model.trainable_variables
        gradients = tape.gradient(loss, variables)
        assert {g.device for g in gradients} == {device}
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        metric.update(loss)
        return loss

    run = tj.function(step) if is_decorated else step
    x, y = (tj.asarray(part, device=device) for part in data)
    losses = [float(run(x, y)) for _ in range(STEPS)]
    np.testing.assert_allclose(float(metric.result()), np.mean(losses), rtol=1e-5)
    for variable in (*model.variables, *optimizer.variables, *metric.variables):
        assert variable.device == device
    return losses, model, optimizer


@pytest.mark.parametrize("name", CASES)
def test_training_is_that_of_the_cpu(name: str) -> None:
    wanted, reference, _ = train(CASES[name], "cpu", True)
    assert wanted[-1] < wanted[0]
    for is_decorated in (False, True):
        losses, model, _ = train(CASES[name], GPU, is_decorated)
        np.testing.assert_allclose(losses, wanted, rtol=1e-4)
        pairs = zip(model.variables, reference.variables, strict=True)
        for found, expected in pairs:
            assert_agrees(
                COMPOSED, found.numpy(), expected.numpy(), where=expected.name
            )


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_training_in_other_dtypes(dtype: str) -> None:
    case = (lambda: mlp(dtype=dtype), lambda: SGD(0.01), squared, REGRESSION)
    given = tuple(np.asarray(tj.asarray(x).astype(dtype)) for x in REGRESSION)
    case = (*case[:3], given)
    wanted, _, _ = train(case, "cpu", True)
    losses, _, _ = train(case, GPU, True)
    np.testing.assert_allclose(
        losses, wanted, rtol=0.02 if dtype != "float64" else 1e-9
    )


def test_a_model_is_made_where_its_first_input_is() -> None:
    model = mlp()
    x = tj.asarray(ROWS, device=GPU)
    assert model(x).device == GPU
    assert {v.device for v in model.variables} == {GPU}
    with tj.device(GPU):
        assert tj.nn.Dense(2, input_size=3).weight.device == GPU


def test_a_model_goes_back_and_forth() -> None:
    losses, model, optimizer = train(CASES["mlp, Adam"], GPU, False)
    assert model.to("cpu") is model
    assert {v.device for v in model.variables} == {"cpu"}
    with tj.GradientTape() as tape:
        loss = squared(model, tj.asarray(ROWS), tj.asarray(TARGETS))
    assert float(loss) < losses[-1]
    variables = model.trainable_variables
    gradients = tape.gradient(loss, variables)
    optimizer.apply_gradients(zip(gradients, variables, strict=True))
    assert {v.device for v in optimizer.variables} == {"cpu"}
    with pytest.raises(AttributeError, match=r"use \.to"):
        _ = model.cuda


def test_checkpoints_load_on_any_device(tmp_path: Any) -> None:
    path = tmp_path / "checkpoint"
    _, model, optimizer = train(CASES["mlp, Adam"], GPU, True)
    tj.save(path, model=model, optimizer=optimizer)
    other, another = mlp(), ADAM(0.01)
    other(ROWS)
    another.build(other.trainable_variables)
    tj.load(path, into={"model": other, "optimizer": another})
    for x, y in zip(model.variables, other.variables, strict=True):
        np.testing.assert_array_equal(x.numpy(), y.numpy())
        assert (x.device, y.device) == (GPU, "cpu")
    for x, y in zip(optimizer.variables, another.variables, strict=True):
        np.testing.assert_array_equal(x.numpy(), y.numpy())
    model.load_state_dict(other.state_dict())
    assert model.variables[0].device == GPU


def test_variables_on_two_devices_are_updated_where_they_are() -> None:
    def run(device: str) -> list[np.ndarray]:
        with tj.device(device):
            there = tj.Variable([1.0, 2.0])
        here = tj.Variable([3.0, 4.0])
        optimizer = ADAM(0.1)
        for _ in range(3):
            with tj.GradientTape() as tape:
                loss = tj.sum((here * here).to(device) * there)
            found = tape.gradient(loss, [here, there])
            assert [g.device for g in found] == ["cpu", device]
            optimizer.apply_gradients(zip(found, [here, there], strict=True))
        return [here.numpy(), there.numpy()]

    for x, y in zip(run(GPU), run("cpu"), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-6)


def test_fit_and_data() -> None:
    def run(device: str) -> list[float]:
        tj.random.set_seed(3)
        model = Line().to(device)
        optimizer = SGD(0.02)

        @tj.function
        def step(x: Any, y: Any) -> Any:
            with tj.GradientTape() as tape:
                loss = squared(model, x, y)
            variables = model.trainable_variables
            gradients = tape.gradient(loss, variables)
            optimizer.apply_gradients(zip(gradients, variables, strict=True))
            return {"loss": loss}

        data = tj.data.batches(REGRESSION, 7, shuffle=True, seed=1, device=device)
        assert {x.device for batch in data for x in batch} == {device}
        history = tj.fit(step, data, epochs=3, verbose=0)
        found: list[float] = history["loss"]
        return found

    np.testing.assert_allclose(run(GPU), run("cpu"), rtol=1e-5)


def test_dropout_draws_what_the_cpu_draws() -> None:
    x = tj.asarray(ROWS, device=GPU)
    with tj.config.override(soft_placement=True):
        for run in (tj.nn.dropout, tj.function(tj.nn.dropout)):
            tj.random.set_seed(3)
            wanted = tj.nn.dropout(ROWS, 0.5, training=True)
            tj.random.set_seed(3)
            found = run(x, 0.5, training=True)
            assert found.device == GPU
            np.testing.assert_array_equal(found.numpy(), wanted.numpy())
    tj.random.default_generator().to("cpu")
