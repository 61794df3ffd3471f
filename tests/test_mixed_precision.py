"""Mixed precision: how policies are set and told, and loss scaling as one native call.

What policies and loss scaling mean is in `semantics/test_mixed_precision.py`.
"""

from __future__ import annotations

import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tapejit as tj
from tapejit.ir.node import OPS
from tapejit.ops import load_all
from tapejit.tensor import mixed_precision

load_all()

Scaler = tj.optimizers.LossScaleOptimizer


@pytest.fixture(autouse=True)
def _said_already(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixed_precision, "_TOLD", {"float16", "bfloat16"})


# Policies


def test_a_policy_belongs_to_the_context_and_a_set_one_to_the_process() -> None:
    seen: list[str] = []
    with tj.mixed_precision.policy("mixed_float16"):
        with tj.mixed_precision.policy("float32"):
            seen.append(tj.mixed_precision.get_policy())
        seen.append(tj.mixed_precision.get_policy())
        thread = threading.Thread(
            target=lambda: seen.append(tj.mixed_precision.get_policy())
        )
        thread.start()
        thread.join()
    assert seen == ["float32", "mixed_float16", "float32"]
    assert tj.mixed_precision.get_policy() == tj.config.mixed_precision == "float32"


def test_products_and_sums_say_their_precision_in_their_records() -> None:
    found = {name: op.precision for name, op in OPS.items() if op.precision}
    assert {name for name, x in found.items() if x == "half"} == {
        *("matmul", "conv", "convolve")
    }
    assert {"sum", "prod", "softmax", "logsumexp", "cumulative_sum"} <= {
        name for name, x in found.items() if x == "single"
    }
    assert set(found.values()) == {"half", "single"}


def test_a_policy_that_is_slow_here_is_told_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mixed_precision, "_TOLD", set())
    x = tj.ones((2, 2))
    with tj.mixed_precision.policy("mixed_float16"):
        with pytest.warns(UserWarning, match="a CPU multiplies float16 as float32"):
            x @ x
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            x @ x


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("global_policy", r"tj\.mixed_precision\.get_policy\(\)"),
        ("set_global_policy", r"tj\.mixed_precision\.set_policy"),
        ("autocast", r"with tj\.mixed_precision\.policy"),
        ("GradScaler", r"tj\.optimizers\.LossScaleOptimizer"),
    ],
)
def test_names_of_other_libraries_lead_here(name: str, meant: str) -> None:
    with pytest.raises(AttributeError, match=meant):
        getattr(tj.mixed_precision, name)


def test_a_layer_shows_its_policy_and_refuses_what_is_none() -> None:
    layer = tj.nn.Dense(2, input_size=3, policy="mixed_bfloat16")
    assert repr(layer) == "Dense(3 -> 2, policy=mixed_bfloat16)"
    assert layer.weight.dtype == np.float32
    with pytest.raises(tj.ArgumentError, match="Dense: there is no policy 'float16'"):
        tj.nn.Dense(2, policy="float16")


def test_a_module_of_the_user_may_have_a_policy() -> None:
    class Product(tj.nn.Module):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self.weight = tj.Variable(tj.ones((3, 2)))

        def __call__(self, x: Any) -> Any:
            return x @ self.weight

    x = tj.ones((4, 3))
    assert Product()(x).dtype == np.float32
    assert Product(policy="mixed_float16")(x).dtype == np.float16

    class Traced(tj.nn.Module):
        @tj.function
        def __call__(self, x: Any) -> Any:
            return x

    assert Traced()(x).dtype == np.float32
    with pytest.raises(tj.ArgumentTypeError, match="is no plain method"):
        Traced(policy="mixed_float16")


# Loss scaling


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: Scaler(0.5), "one of another kind, got 0.5"),
        (lambda: Scaler(Scaler(tj.optimizers.SGD())), "one of another kind"),
        (lambda: Scaler(tj.optimizers.SGD(), 0.5), "initial_scale is at least 1"),
        (lambda: Scaler(tj.optimizers.SGD(), 1e39), "initial_scale is at most"),
        (lambda: Scaler(tj.optimizers.SGD(), 8.0, 0), "from 1 on, got 0"),
        (lambda: Scaler(tj.optimizers.SGD(), 8.0, 2.5), "from 1 on, got 2.5"),
    ],
)
def test_what_makes_no_scaler_is_refused(wrong: Any, message: str) -> None:
    with pytest.raises(tj.TapejitError, match=message):
        wrong()


@pytest.mark.parametrize(
    ("keyword", "hint"),
    [
        ("init_scale", "tapejit calls it initial_scale"),
        ("growth_interval", "tapejit calls it dynamic_growth_steps"),
        ("backoff_factor", "tapejit calls it nothing: the scale is halved"),
    ],
)
def test_keywords_of_other_libraries_are_explained(keyword: str, hint: str) -> None:
    with pytest.raises(tj.ArgumentTypeError) as caught:
        Scaler(tj.optimizers.SGD(), **{keyword: 8.0})
    assert caught.value.help == hint


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("scale", "scale_loss"),
        ("unscale_", "apply_gradients"),
        ("inner_optimizer", r"optimizer\.inner"),
        ("dynamic_scale", r"optimizer\.loss_scale"),
    ],
)
def test_methods_of_other_libraries_are_explained(name: str, meant: str) -> None:
    with pytest.raises(AttributeError, match=meant):
        getattr(Scaler(tj.optimizers.SGD()), name)


def test_a_learning_rate_that_is_set_is_the_inner_one() -> None:
    inner = tj.optimizers.SGD(0.5)
    optimizer = Scaler(inner)
    optimizer.learning_rate = 0.25
    assert float(inner.learning_rate) == float(optimizer.learning_rate) == 0.25


def training(policy: str = "mixed_float16") -> tuple[Any, Any, Any, Any]:
    tj.random.set_seed(3)
    model = tj.nn.Sequential(
        [tj.nn.Dense(8, "relu", input_size=4), tj.nn.Dense(3, input_size=8)],
        policy=policy,
    )
    adam = tj.optimizers.Adam(0.05, global_clipnorm=1.0)
    optimizer = Scaler(adam, 16.0, dynamic_growth_steps=2)
    optimizer.build(model.trainable_variables)

    @tj.function
    def step(x: Any, labels: Any) -> Any:
        with tj.GradientTape() as tape:
            loss = tj.nn.sparse_softmax_cross_entropy(model(x), labels)
            target = optimizer.scale_loss(loss)
        gradients = tape.gradient(target, model.trainable_variables)
        pairs = zip(gradients, model.trainable_variables, strict=True)
        optimizer.apply_gradients(pairs)
        return loss

    def take(count: int, first: int = 0) -> list[float]:
        losses = []
        for at in range(first, first + count):
            rng = np.random.default_rng(at)
            x = rng.standard_normal((16, 4)).astype(np.float32)
            if at % 4 == 3:
                x[0, 0] = np.inf
            losses.append(float(step(x, rng.integers(0, 3, 16))))
        return losses

    return model, optimizer, step, take


def test_a_run_that_is_resumed_goes_on_bit_by_bit(tmp_path: Path) -> None:
    model, optimizer, _, take = training()
    whole = take(10)
    path = tmp_path / "run.safetensors"
    wanted = {name: np.array(v) for name, v in optimizer.state().items()}

    model, optimizer, _, take = training()
    first = take(5)
    tj.save(path, model=model, optimizer=optimizer)
    model, optimizer, _, take = training()
    tj.load(path, into={"model": model, "optimizer": optimizer})
    np.testing.assert_array_equal(first + take(5, 5), whole)
    for name, value in optimizer.state().items():
        np.testing.assert_array_equal(value, wanted[name], name)
