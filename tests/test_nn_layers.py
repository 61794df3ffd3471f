"""Layers: their formulas, when they make their variables, and training with them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from threading import Barrier, Thread
from typing import Any

import numpy as np
import pytest

import tapejit as tj

nn = tj.nn
RNG = np.random.default_rng(8)
X = RNG.normal(size=(6, 5)).astype(np.float32)


# Dense


def test_dense_is_its_formula() -> None:
    generator = tj.random.Generator(7)  # of some weights, all but 1 is cancelled
    layer = nn.Dense(3, "tanh", bias_initializer="ones", generator=generator)
    found = layer(X)
    expected = np.tanh(X @ layer.weight.numpy() + 1)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert layer.weight.shape == (5, 3)
    assert [v.name for v in layer.variables] == ["dense.weight", "dense.bias"]
    np.testing.assert_allclose(layer(X[0]), expected[0], rtol=1e-6)
    np.testing.assert_allclose(layer(X[None]), expected[None], rtol=1e-6)


def test_dense_without_a_bias() -> None:
    layer = nn.Dense(3, use_bias=False, name="last")
    np.testing.assert_allclose(layer(X), X @ layer.weight.numpy(), rtol=1e-6)
    assert [v.name for v in layer.variables] == ["last.weight"]
    assert layer.bias is None
    assert repr(layer) == "Dense(5 -> 3, use_bias=False)"


def test_activations_by_name_as_functions_and_none() -> None:
    ones = partial(nn.Dense, 5, kernel_initializer="identity")
    np.testing.assert_array_equal(ones("relu")(X), np.maximum(X, 0))
    np.testing.assert_array_equal(ones(tj.square)(X), X * X)
    np.testing.assert_array_equal(ones("linear")(X), X)
    assert ones(None).activation is None
    for name in ("sigmoid", "tanh", "gelu", "softmax"):
        expected = getattr(nn, name)(X)
        np.testing.assert_array_equal(nn.Activation(name)(X), expected)
    with pytest.raises(tj.ArgumentError, match="'rleu'; did you mean 'relu'"):
        nn.Dense(1, "rleu")
    with pytest.raises(tj.ArgumentTypeError, match="a name or a function, got int"):
        nn.Dense(1, 3)
    with pytest.raises(tj.ArgumentTypeError):
        nn.Activation(None)


def test_before_the_first_call() -> None:
    layer = nn.Dense(3)
    assert not layer.is_built
    assert layer.variables == []
    with pytest.raises(AttributeError, match="no weight before its first call"):
        _ = layer.weight
    layer(X)
    assert layer.is_built
    built = nn.Dense(3, input_size=4)
    assert built.weight.shape == (4, 3)


def test_the_number_of_features_stays() -> None:
    layer = nn.Dense(3, input_size=4)
    with pytest.raises(tj.ShapeError, match=r"dense: was made for 4 .*f32\[6,5\]"):
        layer(X)
    with pytest.raises(tj.ShapeError, match="needs an axis of features"):
        layer(1.0)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: nn.Dense(0), ValueError, "units is at least 1"),
        (lambda: nn.Dense(2.5), TypeError, "units is an integer, got float"),
        (lambda: nn.Dense(True), TypeError, "units is an integer, got bool"),
        (lambda: nn.Dense(2, input_size=0), ValueError, "input_size is at least"),
        (lambda: nn.Dense(2, dtype="int32"), TypeError, "are floats, got int32"),
        (lambda: nn.Embedding(3, 0), ValueError, "embedding: size is at least 1"),
        (lambda: nn.Dropout(1.5), ValueError, "rate is a probability"),
        (lambda: nn.LayerNorm(-1.0), ValueError, "epsilon is a number from 0"),
        (lambda: nn.BatchNorm(1.5), ValueError, "momentum is a share"),
        (lambda: nn.Sequential(3), TypeError, "takes a list of layers, got int"),
        (lambda: nn.Sequential([3]), TypeError, "a layer is called .*got int"),
        (lambda: nn.Sequential([nn.Dense]), TypeError, r"write Dense\(\.\.\.\)"),
    ],
)
def test_options_that_make_no_sense(make: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        make()


def test_an_initializer_of_ones_own() -> None:
    layer = nn.Dense(2, kernel_initializer=lambda shape, dtype: np.full(shape, 0.5))
    np.testing.assert_allclose(
        layer(X), X.sum(1, keepdims=True) / 2 + np.zeros(2), 1e-5
    )
    assert layer.weight.dtype == np.float32
    wrong = nn.Dense(2, kernel_initializer=lambda shape, dtype: np.ones((1, 2)))
    with pytest.raises(tj.ShapeError, match=r"asked for the shape \(5, 2\)"):
        wrong(X)
    weights = RNG.normal(size=(5, 2))
    given = nn.Dense(2, kernel_initializer=nn.initializers.constant(weights))
    np.testing.assert_allclose(given(X), X @ weights, rtol=1e-5)


# Where the first call happens


def test_initial_weights_come_from_the_generator() -> None:
    one, two = (nn.Dense(3, generator=tj.random.Generator(4)) for _ in range(2))
    np.testing.assert_array_equal(one(X), two(X))
    generator = tj.random.Generator(4)
    pair = [nn.Dense(5, generator=generator, input_size=5) for _ in range(2)]
    assert (pair[0].weight.numpy() != pair[1].weight.numpy()).all()


def test_a_tape_around_the_first_call_differentiates_by_the_variables() -> None:
    layer = nn.Dense(3)
    with tj.GradientTape() as tape:
        loss = tj.sum(layer(X))
    by_weight, by_bias = tape.gradient(loss, layer.trainable_variables)
    expected = np.repeat(X.sum(0)[:, None], 3, 1)
    np.testing.assert_allclose(by_weight, expected, rtol=1e-5)
    np.testing.assert_array_equal(by_bias, [6, 6, 6])


def test_a_first_call_that_is_traced_draws_what_an_eager_one_draws() -> None:
    def run(decorate: Any) -> list[Any]:
        generator = tj.random.Generator(4)
        layer = nn.Dense(3, generator=generator)

        @decorate
        def step(x: Any) -> Any:
            return layer(x + generator.normal(x.shape)) + generator.normal((3,))

        return [step(X).numpy() for _ in range(4)] + [generator.state.numpy()]

    for eager, traced in zip(run(lambda f: f), run(tj.function), strict=True):
        np.testing.assert_array_equal(eager, traced)


def test_a_model_made_in_a_trace() -> None:
    def run(decorate: Any) -> list[Any]:
        tj.random.set_seed(2)
        made: list[Any] = []

        @decorate
        def step(x: Any) -> Any:
            if not made:
                made.append(nn.Sequential([nn.Dense(3), nn.Dropout(0.5)]))
            return made[0](x, training=True)

        return [step(X).numpy() for _ in range(4)]

    for eager, traced in zip(run(lambda f: f), run(tj.function), strict=True):
        np.testing.assert_array_equal(eager, traced)


@pytest.mark.parametrize(
    "decorate", [lambda f: f, tj.function], ids=["eager", "traced"]
)
def test_a_first_call_under_vmap_makes_one_set_of_weights(decorate: Any) -> None:
    layer = nn.Dense(3, "tanh")
    mapped = decorate(lambda x: tj.vmap(layer)(x))
    found = [mapped(X).numpy() for _ in range(3)]
    assert layer.weight.shape == (5, 3)
    for rows in found:
        np.testing.assert_allclose(rows, layer(X), rtol=1e-6)


def test_a_first_call_that_fails_in_a_trace_can_be_repeated() -> None:
    layer = nn.Dense(3)

    @tj.function
    def step(x: Any, fails: bool) -> Any:
        out = layer(x)
        if fails:
            raise RuntimeError("no")
        return out

    with pytest.raises(RuntimeError, match="no"):
        step(X, True)
    expected = X @ layer.weight.numpy()
    np.testing.assert_allclose(step(X, False), expected, rtol=1e-6)


def test_any_number_of_rows_in_one_trace() -> None:
    layers = [nn.Flatten(), nn.Dense(4, "relu"), nn.LayerNorm(), nn.BatchNorm()]
    model = nn.Sequential(layers)
    model(np.ones((2, 5, 2), np.float32))
    traced = tj.function(
        partial(model, training=True), input_signature=[tj.TensorSpec([None, 5, 2])]
    )
    for rows in (3, 7, 4):
        x = RNG.normal(size=(rows, 5, 2)).astype(np.float32)
        found = traced(x).numpy()
        np.testing.assert_array_equal(found, model(x, training=True))
    assert traced.trace_count == 1


def test_threads_build_a_layer_once() -> None:
    layer = nn.Dense(64)
    barrier = Barrier(4)
    found: list[Any] = []

    def run() -> None:
        barrier.wait()
        layer(np.ones((1, 300), np.float32))
        found.append(layer.weight)

    threads = [Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert len({id(v) for v in found}) == 1


# Dtypes


def test_a_layer_computes_in_its_dtype() -> None:
    doubles = X.astype(np.float64)
    layer = nn.Dense(3)
    assert layer(doubles).dtype == layer.weight.dtype == np.float32
    np.testing.assert_array_equal(layer(doubles), layer(X))
    wide = nn.Dense(3, dtype="float64")
    assert wide(X).dtype == wide.weight.dtype == np.float64
    assert layer(np.arange(5)).dtype == np.float32
    with tj.config.override(default_float="float64"):
        assert nn.Dense(3)(X).dtype == np.float64
    with pytest.raises(tj.DTypeError, match="computes with float32, got c128"):
        layer(doubles + 1j)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision(dtype: str) -> None:
    model = nn.Sequential(
        [
            nn.Dense(4, "relu", dtype=dtype),
            nn.BatchNorm(dtype=dtype),
            nn.LayerNorm(dtype=dtype),
            nn.Dense(2, dtype="float32"),
        ]
    )
    with tj.GradientTape() as tape:
        out = model(X, training=True)
        loss = tj.mean(tj.square(out))
    assert out.dtype == np.float32
    half = model[0].weight.dtype
    assert half == model[1].scale.dtype == tj.zeros(0, dtype=dtype).dtype
    assert model[1].moving_mean.dtype == np.float32
    gradients = tape.gradient(loss, model.trainable_variables)
    for v, g in zip(model.trainable_variables, gradients, strict=True):
        assert g.dtype == v.dtype


# Embedding, Flatten


def test_embedding_looks_rows_up() -> None:
    layer = nn.Embedding(7, 3)
    at = np.array([[1, 2], [1, 6]])
    np.testing.assert_array_equal(layer(at), layer.weight.numpy()[at])
    with tj.GradientTape() as tape:
        loss = tj.sum(layer(at))
    counts = np.bincount(at.ravel(), minlength=7)
    expected = np.repeat(counts[:, None], 3, 1)
    np.testing.assert_array_equal(tape.gradient(loss, layer.weight), expected)
    with pytest.raises(IndexError):
        layer([7])
    assert repr(layer) == "Embedding(7, 3)"


def test_flatten() -> None:
    assert nn.Flatten()(np.ones((4, 2, 3))).shape == (4, 6)
    assert nn.Flatten()(np.ones(4)).shape == (4, 1)
    assert nn.Flatten()(np.ones((0, 2, 3))).shape == (0, 6)
    with pytest.raises(tj.ShapeError):
        nn.Flatten()(1.0)


# Dropout


def test_dropout_only_in_training() -> None:
    layer = nn.Dropout(0.25, tj.random.Generator(0))
    x = np.ones((100, 100), np.float32)
    np.testing.assert_array_equal(layer(x), x)
    found = layer(x, training=True).numpy()
    assert set(np.unique(found)) == {0.0, np.float32(1 / 0.75)}
    assert abs(np.mean(found == 0) - 0.25) < 0.02
    again = layer(x, training=True).numpy()
    assert (found != again).any()
    rows = nn.Dropout(0.5, noise_shape=(100, 1))(x, training=True).numpy()
    assert (rows == rows[:, :1]).all()


def test_dropout_has_draws_of_its_own_that_its_state_remembers() -> None:
    tj.random.set_seed(1)
    layer, other = nn.Dropout(0.5), nn.Dropout(0.5)
    x = np.ones(64, np.float32)
    first = layer(x, training=True).numpy()
    assert (first != other(x, training=True).numpy()).any()
    state = layer.state_dict()
    assert list(state) == ["generator"]
    second = layer(x, training=True).numpy()
    layer.load_state_dict(state)
    np.testing.assert_array_equal(layer(x, training=True), second)
    tj.random.set_seed(1)
    np.testing.assert_array_equal(nn.Dropout(0.5)(x, training=True), first)


# Normalization


@pytest.mark.parametrize("axis", [-1, 1, (1, 2)])
def test_layer_norm_is_its_formula(axis: Any) -> None:
    x = RNG.normal(size=(3, 4, 5)) * 3 + 1
    layer = nn.LayerNorm(axis=axis, dtype="float64")
    layer(x)
    sizes = layer.scale.shape
    layer.scale.assign(RNG.normal(size=sizes))
    layer.bias.assign(RNG.normal(size=sizes))
    centered = x - x.mean(axis, keepdims=True)
    expected = centered / np.sqrt((centered**2).mean(axis, keepdims=True) + 1e-3)
    shape = [n if at in np.atleast_1d(axis) % 3 else 1 for at, n in enumerate(x.shape)]
    expected = expected * layer.scale.numpy().reshape(shape)
    expected += layer.bias.numpy().reshape(shape)
    np.testing.assert_allclose(layer(x), expected, rtol=1e-12)


def test_layer_norm_options() -> None:
    assert nn.LayerNorm(input_size=4).scale.shape == (4,)
    assert nn.LayerNorm(axis=(1, 2), input_size=(4, 5)).bias.shape == (4, 5)
    plain = nn.LayerNorm(use_scale=False, use_bias=False)
    plain(X)
    assert plain.variables == []
    layer = nn.LayerNorm(input_size=4)
    with pytest.raises(tj.ShapeError, match=r"was made for sizes \(4,\).*f32\[6,5\]"):
        layer(X)


@pytest.mark.parametrize("axis", [-1, 1])
def test_batch_norm_is_its_formula(axis: int) -> None:
    x = RNG.normal(size=(8, 4, 3)) * 3 + 1
    layer = nn.BatchNorm(0.9, axis=axis, dtype="float64")
    others = tuple(at for at in range(3) if at != axis % 3)
    mean, variance = x.mean(others, keepdims=True), x.var(others, keepdims=True)
    found = layer(x, training=True)
    expected = (x - mean) / np.sqrt(variance + 1e-3)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    np.testing.assert_allclose(layer.moving_mean, 0.1 * mean.ravel(), rtol=1e-12)
    moving = 0.9 + 0.1 * variance.ravel()
    np.testing.assert_allclose(layer.moving_variance, moving, rtol=1e-12)
    before = layer.state_dict()
    found = layer(x)
    moved = (x - 0.1 * mean) / np.sqrt(moving.reshape(mean.shape) + 1e-3)
    np.testing.assert_allclose(found, moved, rtol=1e-12)
    for name, value in layer.state_dict().items():
        np.testing.assert_array_equal(value, before[name])


def test_gradients_flow_through_the_statistics_of_the_batch() -> None:
    layer = nn.BatchNorm(dtype="float64", input_size=5)
    x = X.astype(np.float64)
    layer.scale.assign(RNG.normal(size=5))

    def formula(x: Any) -> Any:
        mean, variance = nn.moments(x, 0)
        return nn.batch_norm(x, mean, variance, None, layer.scale, epsilon=1e-3)

    def gradient(function: Callable[[Any], Any]) -> Any:
        v = tj.Variable(x)
        with tj.GradientTape() as tape:
            loss = tj.sum(tj.square(function(v)) * x)
        return tape.gradient(loss, v)

    found = gradient(partial(layer, training=True))
    np.testing.assert_allclose(found, gradient(formula), rtol=1e-12)


def test_batch_norm_needs_a_batch() -> None:
    with pytest.raises(tj.ShapeError, match="needs an axis of examples"):
        nn.BatchNorm()(np.ones(3), training=True)


# Sequential


def test_a_sequence_is_like_a_list() -> None:
    layers = [nn.Dense(3), nn.relu, nn.Dense(2)]
    model = nn.Sequential(layers)
    assert list(model) == layers
    assert len(model) == 3
    assert model[-1] is layers[2]
    part = model[:2]
    assert isinstance(part, nn.Sequential)
    assert list(part) == layers[:2]
    np.testing.assert_array_equal(model[2](part(X)), model(X))
    assert list(nn.Sequential(*layers)) == layers
    assert list(nn.Sequential(x for x in layers)) == layers
    empty = nn.Sequential()
    assert empty
    assert empty(3.0) == 3.0
    assert list(nn.Sequential(layers[0])) == layers[:1]


def test_training_reaches_those_who_take_it() -> None:
    seen: list[Any] = []

    class Probe(nn.Module):
        def __call__(self, x: Any, training: bool) -> Any:
            seen.append(training)
            return x

    def told(x: Any, *, training: bool = True) -> Any:
        seen.append(training)
        return x

    inner = nn.Sequential(Probe(), nn.Dense(2))
    model = nn.Sequential([inner, told, tj.tanh, partial(told), np.negative])
    model(X)
    model(X, training=True)
    assert seen == [False] * 3 + [True] * 3


# Training


def batches(count: int) -> list[tuple[Any, Any]]:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(count, 16, 5)).astype(np.float32)
    return list(zip(x, (x[..., 0] * x[..., 1] > 0).astype(np.int64), strict=True))


def train(decorate: Any) -> dict[str, Any]:
    """Two models in one step, one of them with a sublayer it uses twice."""
    tj.random.set_seed(3)
    shared = nn.Dense(8, "gelu", kernel_initializer="orthogonal")
    encoder = nn.Sequential(
        [nn.Dense(8), nn.BatchNorm(0.9), shared, nn.Dropout(0.1), shared]
    )
    head = nn.Sequential([nn.LayerNorm(), nn.Dense(2)])
    loss_mean, accuracy = tj.metrics.Mean(), tj.metrics.Accuracy()

    @decorate
    def step(x: Any, labels: Any) -> Any:
        with tj.GradientTape() as tape:
            logits = head(encoder(x, training=True), training=True)
            loss = nn.sparse_softmax_cross_entropy(logits, labels)
        variables = encoder.trainable_variables + head.trainable_variables
        gradients = tape.gradient(loss, variables)
        for v, g in zip(variables, gradients, strict=True):
            v.assign_sub(0.1 * g)
        loss_mean.update(loss)
        accuracy.update(logits, labels)
        return loss

    losses = [step(*batch).numpy() for batch in batches(25)]
    return {
        "losses": losses,
        **{f"encoder.{k}": v for k, v in encoder.state_dict().items()},
        **{f"head.{k}": v for k, v in head.state_dict().items()},
        "mean": loss_mean.result().numpy(),
        "accuracy": accuracy.result().numpy(),
        "evaluated": decorate(lambda x: head(encoder(x)))(X).numpy(),
        "step": step,
    }


def test_training_is_the_same_eagerly_and_traced() -> None:
    eager, traced = train(lambda f: f), train(tj.function)
    assert traced.pop("step").trace_count == 2  # the first one makes the variables
    eager.pop("step")
    assert eager.keys() == traced.keys()
    assert len(eager) == 17
    for name, value in eager.items():
        np.testing.assert_array_equal(traced[name], value, err_msg=name)
    assert eager["losses"][-1] < eager["losses"][0]
