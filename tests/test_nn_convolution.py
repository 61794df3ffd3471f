"""Convolutions: values of a direct loop, derivatives, modes, layers, errors."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from composed import assert_refused

import tapejit as tj
from tapejit.base.types import dtype_named
from tapejit.ops import convolution_loops

pytestmark = pytest.mark.usefixtures("same_default_generator")

nn = tj.nn
Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(17)


def pairs_of(padding: Any, sizes: Any, reach: Any, strides: Any) -> list[Any]:
    """TensorFlow's meaning of the words, written as its documentation has it."""
    found = []
    for at, (n, k, s) in enumerate(zip(sizes, reach, strides, strict=True)):
        if padding == "VALID":
            found.append((0, 0))
        elif padding == "SAME":
            total = max(k - s, 0) if n % s == 0 else max(k - n % s, 0)
            found.append((total // 2, total - total // 2))
        else:
            found.append(padding[at])
    return found


def direct(
    x: Array, filters: Array, strides: Any, padding: Any, dilations: Any, groups: int
) -> Array:
    """Element by element."""
    batch, *sizes, _ = x.shape
    *window, each, features = filters.shape
    reach = [(k - 1) * d + 1 for k, d in zip(window, dilations, strict=True)]
    pairs = pairs_of(padding, sizes, reach, strides)
    axes = zip(sizes, reach, strides, pairs, strict=True)
    counts = [(low + n + high - k) // s + 1 for n, k, s, (low, high) in axes]
    out = np.zeros((batch, *counts, features), x.dtype)
    for at in np.ndindex(*out.shape):
        row, *position, feature = at
        first = feature // (features // groups) * each
        for entry in np.ndindex(*window, each):
            *places, channel = entry
            source = [
                p * s + k * d - low
                for p, s, k, d, (low, _) in zip(
                    position, strides, places, dilations, pairs, strict=True
                )
            ]
            if all(0 <= i < n for i, n in zip(source, sizes, strict=True)):
                seen = x[(row, *source, first + channel)]
                out[at] += seen * filters[(*entry, feature)]
    return out


GRID = list(
    itertools.product(
        [(1, 1), (2, 1), (3, 2)],
        ["SAME", "VALID", ((2, 0), (1, 3))],
        [(1, 1), (1, 2)],
        [1, 2],
    )
)


@pytest.mark.parametrize(("strides", "padding", "dilations", "groups"), GRID)
def test_images(strides: Any, padding: Any, dilations: Any, groups: int) -> None:
    x, filters = RNG.normal(size=(2, 6, 7, 4)), RNG.normal(size=(3, 2, 4 // groups, 6))
    found = nn.conv2d(x, filters, strides, padding, dilations, groups)
    expected = direct(x, filters, strides, padding, dilations, groups)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-13)
    first = nn.conv2d(
        np.moveaxis(x, -1, 1), filters, strides, padding, dilations, groups, "NCHW"
    )
    np.testing.assert_array_equal(np.moveaxis(first.numpy(), 1, -1), found)


VOLUMES = [
    ((1, 1, 1), "SAME", (1, 1, 1), 1),
    ((2, 1, 3), "SAME", (1, 2, 1), 2),
    ((1, 2, 2), "VALID", (2, 1, 1), 4),
    ((2, 2, 1), ((1, 0), (2, 1), (0, 0)), (1, 1, 1), 1),
]


@pytest.mark.parametrize(("strides", "padding", "dilations", "groups"), VOLUMES)
def test_volumes(strides: Any, padding: Any, dilations: Any, groups: int) -> None:
    x = RNG.normal(size=(2, 4, 3, 5, 4))
    filters = RNG.normal(size=(2, 3, 2, 4 // groups, 4))
    found = nn.conv3d(x, filters, strides, padding, dilations, groups)
    expected = direct(x, filters, strides, padding, dilations, groups)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-13)
    first = nn.conv3d(
        np.moveaxis(x, -1, 1), filters, strides, padding, dilations, groups, "NCDHW"
    )
    np.testing.assert_array_equal(np.moveaxis(first.numpy(), 1, -1), found)


@pytest.mark.parametrize("multiplier", [1, 3])
@pytest.mark.parametrize(
    ("strides", "padding", "dilations"),
    [
        ((1, 1), "SAME", (1, 1)),
        ((2, 2), "VALID", (1, 2)),
        ((1, 2), ((1, 0), (0, 2)), (2, 1)),
    ],
)
def test_channels_alone(
    multiplier: int, strides: Any, padding: Any, dilations: Any
) -> None:
    x, filters = RNG.normal(size=(2, 6, 5, 3)), RNG.normal(size=(3, 2, 3, multiplier))
    found = nn.depthwise_conv2d(x, filters, strides, padding, dilations)
    alone = [
        direct(
            x[..., c : c + 1], filters[:, :, c : c + 1], strides, padding, dilations, 1
        )
        for c in range(3)
    ]
    np.testing.assert_allclose(found, np.concatenate(alone, -1), rtol=1e-12, atol=1e-13)
    first = nn.depthwise_conv2d(
        np.moveaxis(x, -1, 1), filters, strides, padding, dilations, "NCHW"
    )
    np.testing.assert_array_equal(np.moveaxis(first.numpy(), 1, -1), found)


@pytest.mark.parametrize("size", [1, 4, 5, 6])
@pytest.mark.parametrize(("strides", "window"), [(1, 2), (2, 3), (3, 2), (2, 1)])
def test_sequences_of_same_padding(size: int, strides: int, window: int) -> None:
    x, filters = RNG.normal(size=(3, size, 2)), RNG.normal(size=(window, 2, 3))
    found = nn.conv1d(x, filters, strides)
    assert found.shape == (3, math.ceil(size / strides), 3)
    expected = direct(x, filters, (strides,), "SAME", (1,), 1)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-13)
    swapped = nn.conv1d(np.swapaxes(x, 1, 2), filters, strides, data_format="NCW")
    np.testing.assert_array_equal(np.swapaxes(swapped.numpy(), 1, 2), found)


def test_numbers_by_hand() -> None:
    """The odd element of padding is at the end, and nothing is turned around."""
    x = np.array([1.0, 2.0, 3.0, 4.0]).reshape(1, 4, 1)
    filters = np.array([10.0, 1.0]).reshape(2, 1, 1)
    assert nn.conv1d(x, filters).numpy().ravel().tolist() == [12, 23, 34, 40]
    assert nn.conv1d(x, filters, 2).numpy().ravel().tolist() == [12, 34]
    assert nn.conv1d(x, filters, 3).numpy().ravel().tolist() == [12, 40]
    padded = nn.conv1d(x, filters, padding=[(1, 0)])
    assert padded.numpy().ravel().tolist() == [1, 12, 23, 34]
    gaps = nn.conv1d(x, filters, padding="valid", dilations=3)
    assert gaps.numpy().ravel().tolist() == [14]


@pytest.mark.parametrize(
    "name", ["i8", "u8", "i32", "i64", "f16", "bf16", "f32", "c64"]
)
def test_every_dtype(name: str) -> None:
    dtype = dtype_named(name)
    x = RNG.integers(0, 4, (2, 5, 4, 2)).astype(dtype)
    filters = RNG.integers(0, 3, (2, 2, 2, 3)).astype(dtype)
    wide = np.complex128 if name == "c64" else np.int64
    found = nn.conv2d(x, filters)
    assert found.dtype == dtype
    expected = direct(x.astype(wide), filters.astype(wide), (1, 1), "SAME", (1, 1), 1)
    np.testing.assert_array_equal(found.numpy().astype(wide), expected)


def test_integers_wrap() -> None:
    x = np.full((1, 3, 1), 100, np.int8)
    found = nn.conv1d(x, np.full((3, 1, 1), 1, np.int8), padding="VALID")
    assert found.numpy().item() == 300 - 256


def test_halves_are_rounded_once() -> None:
    x, filters = np.ones((1, 1, 4096), np.float16), np.ones((1, 4096, 1), np.float16)
    filters[0, 1:, 0] = 2.0**-11
    assert float(nn.conv1d(x, filters)[0, 0, 0]) == 3.0


def test_dtypes_meet() -> None:
    x, filters = np.ones((1, 3, 1), np.int32), np.ones((2, 1, 1), np.float32)
    assert nn.conv1d(x, filters).dtype == tj.matmul(x[0], filters[0]).dtype


# Derivatives

SMALL: dict[str, Callable[..., Any]] = {
    "plain": lambda x, f: nn.conv2d(x, f),
    "strided": lambda x, f: nn.conv2d(x, f, (2, 3)),
    "valid dilated": lambda x, f: nn.conv2d(x, f, 1, "VALID", (2, 1)),
    "padded": lambda x, f: nn.conv2d(x, f, (1, 2), ((0, 2), (3, 1))),
    "transposed": lambda x, f: nn.conv2d_transpose(x, tj.swapaxes(f, 2, 3), (2, 1)),
}


@pytest.mark.parametrize("name", SMALL)
def test_derivatives_to_the_second(name: str) -> None:
    x, filters = RNG.normal(size=(2, 4, 5, 2)), RNG.normal(size=(2, 3, 2, 3))
    tj.testing.check_grads(SMALL[name], [x, filters], order=2)


def test_derivatives_of_volumes_and_channels() -> None:
    x, filters = RNG.normal(size=(1, 3, 2, 3, 2)), RNG.normal(size=(2, 2, 2, 2, 2))
    tj.testing.check_grads(
        lambda x, f: nn.conv3d(x, f, (1, 1, 2)), [x, filters], order=2
    )
    x, filters = RNG.normal(size=(2, 4, 3, 2)), RNG.normal(size=(2, 3, 2, 2))
    tj.testing.check_grads(
        lambda x, f: nn.depthwise_conv2d(x, f, (2, 1)), [x, filters], order=2
    )


@pytest.mark.parametrize("groups", [2, 4])
def test_derivatives_of_groups(groups: int) -> None:
    x, filters = RNG.normal(size=(2, 5, 4)), RNG.normal(size=(3, 4 // groups, 4))
    tj.testing.check_grads(
        lambda x, f: nn.conv1d(x, f, 2, groups=groups), [x, filters], order=2
    )


def test_complex_gradients() -> None:
    x = RNG.normal(size=(1, 4, 2)) + 1j * RNG.normal(size=(1, 4, 2))
    filters = RNG.normal(size=(2, 2, 2)) - 1j * RNG.normal(size=(2, 2, 2))
    tj.testing.check_grads(lambda x, f: nn.conv1d(x, f), [x, filters])


def test_the_transpose_is_the_adjoint() -> None:
    """⟨conv(x), y⟩ = ⟨x, transpose(y)⟩ for the x of the size that is chosen."""
    for strides, padding, groups in itertools.product(
        [1, 2, (2, 3)], ["SAME", "VALID", ((1, 0), 1)], [1, 2]
    ):
        y = RNG.normal(size=(2, 3, 4, 4))
        filters = RNG.normal(size=(3, 2, 6 // groups, 4))
        x = nn.conv2d_transpose(y, filters, strides, padding, groups=groups)
        z = RNG.normal(size=x.shape)
        forward = nn.conv2d(z, filters, strides, padding, groups=groups)
        assert forward.shape == y.shape
        left, right = np.sum(forward.numpy() * y), np.sum(z * x.numpy())
        np.testing.assert_allclose(left, right, rtol=1e-11)


def test_a_transpose_has_the_size_it_is_told() -> None:
    y, filters = tj.ones((1, 3, 3, 1)), tj.ones((3, 3, 2, 1))
    assert nn.conv2d_transpose(y, filters, 2).shape == (1, 6, 6, 2)
    found = nn.conv2d_transpose(y, filters, 2, output_size=(5, 6))
    assert found.shape == (1, 5, 6, 2)
    with pytest.raises(tj.ShapeError, match="an output of 7 has 4 windows, not the 3"):
        nn.conv2d_transpose(y, filters, 2, output_size=7)


# Groups, batching, functions, blocks


@pytest.mark.parametrize(("channels", "groups", "features"), [(6, 6, 12), (8, 4, 4)])
def test_many_small_groups(channels: int, groups: int, features: int) -> None:
    """They are multiplied element by element, forwards and backwards."""
    x = RNG.normal(size=(3, 7, 6, channels))
    filters = RNG.normal(size=(3, 3, channels // groups, features))
    g = RNG.normal(size=(3, 7, 6, features))

    def pulled(call: Callable[..., Any]) -> list[Any]:
        with tj.GradientTape() as tape:
            sources = [tj.Variable(x), tj.Variable(filters)]
            y = call(*sources)
        return [y, *tape.gradient(y, sources, output_gradients=g)]

    def one_by_one(x: Any, f: Any) -> Any:
        n, m = channels // groups, features // groups
        return tj.concat(
            [
                nn.conv2d(x[..., n * i : n * i + n], f[..., m * i : m * i + m])
                for i in range(groups)
            ],
            axis=-1,
        )

    together = pulled(lambda x, f: nn.conv2d(x, f, groups=groups))
    for found, expected in zip(together, pulled(one_by_one), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("axes", [(0, None), (None, 0), (0, 0)])
def test_a_mapped_convolution_is_a_loop(axes: Any, groups: int) -> None:
    x = RNG.normal(size=(3, 2, 5, 4))
    filters = RNG.normal(size=(3, 2, 4 // groups, 6))

    def body(x: Any, f: Any) -> Any:
        return nn.conv1d(x, f, 2, groups=groups)

    pair = list(zip((x, filters), axes, strict=True))
    mapped = tj.vmap(body, in_axes=axes)
    found = mapped(*[a[1] if axis is None else a for a, axis in pair])
    rows = [
        body(*[a[1] if axis is None else a[row] for a, axis in pair])
        for row in range(3)
    ]
    np.testing.assert_allclose(found, np.stack(rows), rtol=1e-12, atol=1e-13)


def test_a_training_step_in_a_function_is_the_eager_one() -> None:
    x = RNG.normal(size=(4, 8, 8, 2)).astype(np.float32)
    filters = tj.Variable(RNG.normal(size=(3, 3, 2, 4)).astype(np.float32))

    def step(x: Any) -> Any:
        with tj.GradientTape() as tape:
            hidden = nn.relu(nn.conv2d(x, filters, strides=2))
            loss = tj.mean(tj.square(nn.max_pool(hidden, 2)))
        return loss, tape.gradient(loss, filters)

    loss, gradient = step(x)
    traced_loss, traced = tj.function(step)(x)
    np.testing.assert_allclose(traced_loss, loss, rtol=1e-5)
    np.testing.assert_allclose(traced, gradient, rtol=1e-4, atol=1e-6)


def test_any_number_of_images_of_any_size() -> None:
    """One trace serves them all."""
    filters = RNG.normal(size=(3, 3, 1, 2))

    @tj.function(input_signature=[tj.TensorSpec([None, None, None, 1], "float64")])
    def gradient(x: Any) -> Any:
        with tj.GradientTape() as tape:
            tape.watch(x)
            y = tj.sum(tj.square(nn.conv2d(x, filters, padding=((1, 1), (0, 2)))))
        return tape.gradient(y, x)

    for shape in [(2, 5, 6, 1), (3, 9, 4, 1)]:
        x = tj.asarray(RNG.normal(size=shape))
        with tj.GradientTape() as tape:
            tape.watch(x)
            y = tj.sum(tj.square(nn.conv2d(x, filters, padding=((1, 1), (0, 2)))))
        np.testing.assert_allclose(gradient(x), tape.gradient(y, x), rtol=1e-12)
    assert gradient.trace_count == 1


def test_blocks_give_what_one_block_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    """By rows in the convolution, by columns in the derivative by the filters."""
    x, filters = RNG.normal(size=(5, 6, 7, 3)), RNG.normal(size=(3, 3, 3, 4))

    def both() -> list[Array]:
        with tj.GradientTape() as tape:
            v = tj.Variable(filters)
            y = nn.conv2d(x, v)
        return [y.numpy(), tape.gradient(y, v).numpy()]

    whole = both()
    monkeypatch.setattr(convolution_loops, "BLOCK_BYTES", 1)
    for found, expected in zip(both(), whole, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_nothing_at_all() -> None:
    filters = tj.ones((2, 2, 1, 3))
    assert nn.conv2d(tj.ones((0, 4, 4, 1)), filters).shape == (0, 4, 4, 3)
    assert nn.conv2d(tj.ones((2, 0, 4, 1)), filters).shape == (2, 0, 4, 3)
    empty = nn.conv2d(tj.ones((2, 4, 4, 0)), tj.ones((2, 2, 0, 3)))
    np.testing.assert_array_equal(empty, np.zeros((2, 4, 4, 3)))


# Layers


def test_a_layer_learns_its_channels() -> None:
    layer = nn.Conv2D(6, 3, 2, "same", activation="relu")
    assert repr(layer) == (
        "Conv2D(6, (3, 3), strides=(2, 2), padding=same, activation=relu)"
    )
    x = RNG.normal(size=(2, 5, 6, 4)).astype(np.float32)
    found = layer(x)
    assert [v.name for v in layer.variables] == ["conv2d.weight", "conv2d.bias"]
    assert layer.weight.shape == (3, 3, 4, 6)
    expected = nn.relu(nn.conv2d(x, layer.weight, 2) + layer.bias)
    np.testing.assert_array_equal(found, expected)
    assert repr(layer).startswith("Conv2D(4 -> 6, (3, 3), ")
    with pytest.raises(tj.ShapeError, match="was made for 4 channels"):
        layer(x[..., :3])
    with pytest.raises(
        tj.ShapeError, match=r"takes \[batch, height, width, channels\]"
    ):
        layer(x[0])


def test_a_layer_in_groups_without_a_bias() -> None:
    layer = nn.Conv1D(4, 2, groups=2, dilations=2, use_bias=False, input_size=6)
    assert layer.weight.shape == (2, 3, 4)
    assert layer.bias is None
    assert repr(layer) == (
        "Conv1D(6 -> 4, (2,), dilations=(2,), groups=2, use_bias=False)"
    )
    x = RNG.normal(size=(2, 5, 6)).astype(np.float32)
    expected = nn.conv1d(x, layer.weight, padding="VALID", dilations=2, groups=2)
    np.testing.assert_array_equal(layer(x), expected)


def test_layers_of_volumes_and_of_channels() -> None:
    volume = nn.Conv3D(4, (1, 2, 3), padding="same", name="deep")
    x = RNG.normal(size=(2, 3, 4, 5, 2)).astype(np.float32)
    found = volume(x)
    assert [v.name for v in volume.variables] == ["deep.weight", "deep.bias"]
    np.testing.assert_array_equal(found, nn.conv3d(x, volume.weight) + volume.bias)
    assert repr(volume) == "Conv3D(2 -> 4, (1, 2, 3), padding=same)"
    with pytest.raises(
        tj.ShapeError, match=r"takes \[batch, depth, height, width, channels\]"
    ):
        volume(x[0])
    layer = nn.DepthwiseConv2D(3, 2, depth_multiplier=2, activation="relu")
    assert repr(layer) == "DepthwiseConv2D((3, 3), strides=(2, 2), activation=relu)"
    x = x[0]
    expected = nn.relu(nn.depthwise_conv2d(x, layer_weight(layer, x), 2, "VALID"))
    np.testing.assert_array_equal(layer(x), expected)
    assert [v.name for v in layer.variables] == [
        "depthwise_conv2d.weight",
        "depthwise_conv2d.bias",
    ]
    assert (layer.weight.shape, layer.bias.shape) == ((3, 3, 2, 2), (4,))
    assert repr(layer).startswith("DepthwiseConv2D(2 -> 4, (3, 3), ")
    with pytest.raises(tj.ShapeError, match="was made for 2 channels"):
        layer(x[..., :1])


def layer_weight(layer: Any, x: Any) -> Any:
    layer(x)
    return layer.weight


def test_initial_weights_have_the_variance_of_their_fans() -> None:
    layer = nn.Conv2D(64, 5, kernel_initializer="he_normal", input_size=32)
    spread = float(np.std(layer.weight.numpy()))
    np.testing.assert_allclose(spread, math.sqrt(2 / (5 * 5 * 32)), rtol=0.03)


def test_a_small_network_learns() -> None:
    """To tell horizontal stripes from vertical ones."""
    stripes = np.zeros((20, 8, 8, 1), np.float32)
    labels = np.arange(20) % 2
    for row, label in enumerate(labels):
        at = RNG.integers(0, 2)
        if label:
            stripes[row, at::2] = 1
        else:
            stripes[row, :, at::2] = 1
    model = nn.Sequential(
        [
            nn.Conv2D(4, 3, activation="relu", generator=tj.random.Generator(1)),
            nn.MaxPool2D(),
            nn.Flatten(),
            nn.Dense(2, generator=tj.random.Generator(2)),
        ]
    )
    optimizer = tj.optimizers.Adam(0.02)
    model(stripes)

    @tj.function
    def step() -> Any:
        with tj.GradientTape() as tape:
            scores = model(stripes)
            loss = nn.sparse_softmax_cross_entropy(scores, labels)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(
            zip(gradients, model.trainable_variables, strict=True)
        )
        return loss

    for _ in range(40):
        step()
    found = np.argmax(model(stripes).numpy(), axis=-1)
    np.testing.assert_array_equal(found, labels)


# Errors

X, FILTERS = np.ones((1, 4, 4, 6), np.float32), np.ones((3, 3, 6, 4), np.float32)
REFUSED: dict[str, Callable[[], Any]] = {
    "conv2d: the input has 6 channels, and filters (3, 3, 3, 4) take 3": (
        lambda: nn.conv2d(X, FILTERS[:, :, :3])
    ),
    "conv2d: the input has 6 channels, and filters (3, 3, 6, 4) take 6 in each of 2": (
        lambda: nn.conv2d(X, FILTERS, groups=2)
    ),
    "conv2d: 4 features of filters (3, 3, 2, 4) cannot be shared among 3 groups": (
        lambda: nn.conv2d(X, FILTERS[:, :, :2], groups=3)
    ),
    "conv3d: takes a batch with axes NDHWC, got": lambda: nn.conv3d(X, FILTERS),
    "conv3d: filters are [depth, height, width, channels // groups, features], got": (
        lambda: nn.conv3d(X[None], FILTERS)
    ),
    "depthwise_conv2d: f32[1,4,4,6] has 6 channels, and filters f32[3,3,2,4] are for": (
        lambda: nn.depthwise_conv2d(X, FILTERS[:, :, :2])
    ),
    "depthwise_conv2d: filters are [height, width, channels, multiplier], got": (
        lambda: nn.depthwise_conv2d(X, FILTERS[0])
    ),
    "depthwise_conv2d: takes a batch with axes NHWC, got": (
        lambda: nn.depthwise_conv2d(X[0], FILTERS)
    ),
    "DepthwiseConv2D: depth_multiplier": lambda: nn.DepthwiseConv2D(
        3, depth_multiplier=0
    ),
    "conv2d: groups is at least 1": lambda: nn.conv2d(X, FILTERS, groups=0),
    "conv2d: groups is an integer": lambda: nn.conv2d(X, FILTERS, groups=1.5),
    "conv2d: takes a batch with axes NHWC, got": lambda: nn.conv2d(X[0], FILTERS),
    "conv2d: filters are [height, width, channels // groups, features], got": (
        lambda: nn.conv2d(X, FILTERS[0])
    ),
    "conv2d: strides have one number per spatial axis, 2 here": (
        lambda: nn.conv2d(X, FILTERS, [1, 2, 2, 1])
    ),
    "conv2d: strides are integers from 1 on": lambda: nn.conv2d(X, FILTERS, 0),
    "conv2d: strides are integers, got 1.5": lambda: nn.conv2d(X, FILTERS, 1.5),
    "conv2d: dilations are integers, got 'two'": (
        lambda: nn.conv2d(X, FILTERS, dilations="two")
    ),
    "conv2d: padding is 'SAME', 'VALID' or widths, got 'FULL'": (
        lambda: nn.conv2d(X, FILTERS, padding="FULL")
    ),
    "conv2d: padding has one entry per spatial axis, 2 here": (
        lambda: nn.conv2d(X, FILTERS, padding=[(0, 0), (1, 1), (1, 1), (0, 0)])
    ),
    "conv2d: padding is 'SAME', 'VALID', an integer, or one integer or pair": (
        lambda: nn.conv2d(X, FILTERS, padding=[(0, 0), (1, 1, 1)])
    ),
    "conv2d: padding cannot be negative": lambda: nn.conv2d(X, FILTERS, padding=-1),
    "conv2d: a window of 5 does not fit into axis 1 of f32[1,4,4,6], which is 4": (
        lambda: nn.conv2d(X, FILTERS, padding="VALID", dilations=2)
    ),
    "conv2d: data_format is 'NHWC' or 'NCHW'": (
        lambda: nn.conv2d(X, FILTERS, data_format="NWC")
    ),
    "conv2d_transpose: f32[1,4,4,6] has 6 channels, and filters f32[3,3,6,4] take 4": (
        lambda: nn.conv2d_transpose(X, FILTERS)
    ),
    "conv1d: 7 filters cannot be shared among 2 groups": (
        lambda: nn.Conv1D(7, 3, groups=2)
    ),
    "conv2d: 6 channels cannot be shared among 4 groups": (
        lambda: nn.Conv2D(8, 3, groups=4)(X)
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_errors_say_what_to_change(message: str) -> None:
    assert_refused(REFUSED[message], message, tj.TapejitError)


@pytest.mark.parametrize(
    ("filters", "help"),
    [
        (FILTERS[:, :, :3], "filters of this shape need groups=2"),
        (np.swapaxes(FILTERS, 2, 3), "the last two axes are exchanged"),
        (np.ones((3, 3, 5, 4)), "the last but one size of the filters is channels"),
    ],
)
def test_errors_about_channels_know_the_usual_mistakes(filters: Any, help: str) -> None:
    with pytest.raises(tj.ShapeError, match=help):
        nn.conv2d(X, filters)
