"""Mixed precision and loss scaling as native code."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from agreement import COMPOSED, assert_agrees

import tapejit as tj
from tapejit.tensor import mixed_precision


@pytest.fixture(autouse=True)
def _said_already(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixed_precision, "_TOLD", {"float16", "bfloat16"})


def training(policy: str, initial_scale: float = 16.0) -> tuple[Any, Any, Any]:
    """A model, its optimizer, and a step."""
    tj.random.set_seed(3)
    layers = [tj.nn.Dense(8, "tanh", input_size=4), tj.nn.Dense(3, input_size=8)]
    model = tj.nn.Sequential(layers, policy=policy)
    inner = tj.optimizers.SGD(0.05, momentum=0.5, global_clipnorm=4.0)
    optimizer = tj.optimizers.LossScaleOptimizer(inner, initial_scale, 2)
    optimizer.build(model.trainable_variables)

    def step(x: Any, labels: Any) -> Any:
        with tj.GradientTape() as tape:
            loss = tj.nn.sparse_softmax_cross_entropy(model(x), labels)
            target = optimizer.scale_loss(loss)
        gradients = tape.gradient(target, model.trainable_variables)
        pairs = zip(gradients, model.trainable_variables, strict=True)
        optimizer.apply_gradients(pairs)
        return loss

    return model, optimizer, step


def batch(at: int, *, is_bad: bool) -> tuple[Any, Any]:
    rng = np.random.default_rng(at)
    x = rng.standard_normal((16, 4)).astype(np.float32)
    if is_bad:
        x[0, 0] = np.inf
    return x, rng.integers(0, 3, 16)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_a_scaled_step_is_one_native_call(policy: str) -> None:
    _, optimizer, step = training(policy)
    _, plain_optimizer, plain = training(policy)
    function = tj.function(step)
    with tj.config.override(native=True):
        for at in range(6):
            given = batch(at, is_bad=at == 3)
            found, wanted = function(*given), plain(*given)
            if at != 3:  # a scaled loss of infinities is NaN
                np.testing.assert_allclose(found, wanted, rtol=2e-2)
            for name, value in optimizer.state().items():
                own = plain_optimizer.state()[name]
                is_number = value.shape == () and value.dtype.kind == "i"
                if is_number or name == "loss_scale":
                    np.testing.assert_array_equal(value, own, name)
        told = str(function.explain(*given))
    assert ", native in " in told
    assert "\n  NumPy " not in told  # where operations of the host are listed
    assert function.trace_count == 1
    assert (float(optimizer.loss_scale), int(optimizer.iterations)) == (32.0, 5)


def test_a_skipped_step_leaves_the_bits_as_they_were() -> None:
    model, optimizer, step = training("mixed_float16")
    function = tj.function(step)
    held = [*model.variables, *optimizer.inner.variables]
    with tj.config.override(native=True):
        function(*batch(0, is_bad=False))
        before = [np.array(v) for v in held]
        function(*batch(1, is_bad=True))
    for variable, value in zip(held, before, strict=True):
        np.testing.assert_array_equal(variable, value)
    assert float(optimizer.loss_scale) == 8.0


def test_native_code_leaves_it_to_numpy_to_say_that_the_scale_is_stuck() -> None:
    model, optimizer, step = training("mixed_float16", initial_scale=2.0)
    function = tj.function(step)
    said = []
    with tj.config.override(native=True):
        before = np.array(model.layers[0].weight)
        for at in range(3):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                function(*batch(at, is_bad=True))
            said.append([str(x.message) for x in caught])
        np.testing.assert_array_equal(model.layers[0].weight, before)
        function(*batch(9, is_bad=False))
    assert [len(x) for x in said] == [1, 0, 0]
    assert "the loss scale is down to 1" in said[0][0]
    assert int(optimizer.iterations) == 1
    assert np.any(np.array(model.layers[0].weight) != before)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
@pytest.mark.parametrize("sizes", [(5, 7, 3), (64, 48, 40)])
def test_products_of_halves_are_rounded_once(
    policy: str, sizes: tuple[int, int, int]
) -> None:
    rows, terms, columns = sizes
    rng = np.random.default_rng(0)
    x = rng.standard_normal((rows, terms)).astype(np.float32)
    w = tj.Variable(rng.standard_normal((terms, columns)).astype(np.float32))

    @tj.function
    def product(x: Any) -> Any:
        with tj.mixed_precision.policy(policy):
            return tj.nn.relu(x @ w)

    with tj.config.override(native=True):
        found = product(x)
    with tj.mixed_precision.policy(policy):
        wanted = tj.nn.relu(x @ w)
    assert found.dtype == wanted.dtype
    assert_agrees(COMPOSED, found, wanted)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
@pytest.mark.parametrize("groups", [1, 4])
def test_convolutions_of_halves_are_native_and_rounded_once(
    policy: str, groups: int
) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 9, 9, 4)).astype(np.float32)
    w = tj.Variable(rng.standard_normal((3, 3, 4 // groups, 8)).astype(np.float32))

    def program(x: Any) -> Any:
        with tj.mixed_precision.policy(policy), tj.GradientTape() as tape:
            out = tj.nn.conv2d(x, w, groups=groups)
            loss = tj.sum(out)
        return out, tape.gradient(loss, w)

    function = tj.function(program)
    with tj.config.override(native=True):
        found = function(x)
        told = str(function.explain(x))
    assert ", native in " in told
    for own, wanted in zip(found, program(x), strict=True):
        assert own.dtype == wanted.dtype
        assert_agrees(COMPOSED, own, wanted)


@pytest.mark.parametrize("cpu", ["x86-64-v2", "x86-64-v3"])
def test_float16_has_the_same_bits_with_and_without_instructions_for_it(
    cpu: str,
) -> None:
    """All of its numbers, and floats between them, at ties, beyond and not numbers."""
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    floats = halves[np.isfinite(halves)].astype(np.float32)
    near = [np.nextafter(floats, np.float32(x)) for x in (-np.inf, np.inf)]
    between = (floats[:-1] + floats[1:]) / 2
    x = np.concatenate([floats, *near, between, [65519.0, 65520.0, 1e9, -np.inf]])
    x = np.concatenate([x.astype(np.float32), np.float32([np.nan, 1e-8, -1e-30])])

    @tj.function
    def rounded(x: Any) -> Any:
        return x.astype("float16"), x.astype("float16").astype("float32") * 1.0

    try:
        with tj.config.override(native=True, cpu=cpu):
            found, wide = rounded(x)
    except tj.UnsupportedError:
        pytest.skip(f"this processor is no {cpu}")
    with np.errstate(over="ignore"):
        wanted = x.astype(np.float16)
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(np.signbit(found), np.signbit(wanted))
    np.testing.assert_array_equal(wide, wanted.astype(np.float32))


def test_a_nan_stays_one_in_bfloat16() -> None:
    """Whatever its payload: rounding up would carry over to 0, cutting to infinity."""
    bits = np.uint32([0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001, 0xFF80FFFF, 0x7FC00000])
    x = bits.view(np.float32)
    twice = tj.function(lambda x: (x.astype("bfloat16"), x.astype("bfloat16") * 2.0))
    with tj.config.override(native=True):
        for found in twice(x):
            assert np.isnan(np.asarray(found).astype(np.float32)).all()
