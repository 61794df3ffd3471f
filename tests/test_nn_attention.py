"""Attention: values against NumPy, masks, shared heads, blocks, dropout, errors."""

from __future__ import annotations

import copy
import pickle
import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from agreement import COMPOSED, TRANSCENDENTAL, assert_agrees

import tapejit as tj
from tapejit.base import tree
from tapejit.base.types import dtype_named
from tapejit.nn.functional import attention as module

pytestmark = pytest.mark.usefixtures("same_default_generator")

nn = tj.nn
attend = nn.scaled_dot_product_attention
Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(8)

# Shapes of query, key and value.
SHAPES: dict[str, tuple[tuple[int, ...], ...]] = {
    "one head": ((5, 3), (4, 3), (4, 2)),
    "heads": ((2, 5, 3), (2, 7, 3), (2, 7, 4)),
    "batch": ((2, 3, 6, 4), (2, 3, 6, 4), (2, 3, 6, 4)),
    "shared": ((2, 6, 5, 4), (2, 3, 7, 4), (2, 3, 7, 2)),
    "one key head": ((4, 5, 4), (1, 3, 4), (1, 3, 2)),
    "no key head": ((4, 5, 4), (3, 4), (3, 2)),
    "keys for all": ((3, 2, 5, 4), (2, 6, 4), (1, 2, 6, 3)),
    "values only": ((2, 5, 4), (2, 6, 4), (3, 2, 6, 4)),
}
every_shape = pytest.mark.parametrize("name", SHAPES)
in_blocks = pytest.mark.parametrize("blocks", [False, True], ids=["whole", "blocks"])


def sample(name: str, dtype: Any = np.float64) -> list[Array]:
    rng = np.random.default_rng(5)
    return [rng.normal(size=shape).astype(dtype) for shape in SHAPES[name]]


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is long, and a block has two queries."""
    for name, number in {"LONG": 0, "KEPT": 0, "BLOCK": 1, "ROWS": 2}.items():
        monkeypatch.setattr(module, name, number)


@pytest.fixture
def chosen(blocks: bool, request: pytest.FixtureRequest) -> None:
    """Blocks if the test is about them."""
    if blocks:
        request.getfixturevalue("small_blocks")


def reference(
    query: Array,
    key: Array,
    value: Array,
    mask: Array | None = None,
    is_causal: bool = False,
    scale: float | None = None,
) -> Array:
    """The formula, with heads repeated and weights that are shares."""
    heads = query.shape[-3] if query.ndim > 2 else 1
    if key.ndim > 2:
        key, value = (x.repeat(heads // x.shape[-3], axis=-3) for x in (key, value))
    scores = query @ np.swapaxes(key, -1, -2)
    scores = scores * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    if mask is not None and mask.dtype == bool:
        scores = np.where(mask, scores, -np.inf)
    elif mask is not None:
        scores = scores + mask
    top = scores.max(axis=-1, keepdims=True)
    powers = np.exp(scores - np.where(np.isinf(top), 0, top))
    total = powers.sum(axis=-1, keepdims=True)
    out: Array = powers / np.where(total == 0, 1, total) @ value
    return out


def masks_for(name: str) -> dict[str, Array | None]:
    """Masks of every kind that fits; some queries may attend to nothing."""
    query, key, _ = SHAPES[name]
    rng = np.random.default_rng(6)
    size = (query[-2], key[-2])
    allowed = rng.random((*query[:-2], *size)) > 0.4
    allowed[..., 1, :] = False
    return {
        "none": None,
        "bools": allowed,
        "bools of keys": rng.random(size[1]) > 0.5,
        "bools of queries": rng.random((size[0], 1)) > 0.5,
        "floats": rng.normal(size=(*query[:-2], *size)),
        "floats of all heads": np.where(rng.random(size) > 0.3, 0.5, -np.inf),
    }


# Values and gradients


@in_blocks
@every_shape
@pytest.mark.usefixtures("chosen")
def test_it_is_the_formula(name: str) -> None:
    arrays = sample(name)
    for mask in masks_for(name).values():
        for is_causal in (False, True):
            found = attend(*arrays, mask, is_causal=is_causal)
            expected = reference(*arrays, mask, is_causal)
            np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-14)


@in_blocks
@pytest.mark.parametrize("name", ["one head", "shared", "keys for all", "values only"])
@pytest.mark.usefixtures("chosen")
def test_derivatives_of_both_orders_and_modes(name: str) -> None:
    arrays = sample(name)
    masks = masks_for(name)

    def causal(*args: Any) -> Any:
        return attend(*args, masks["bools"], is_causal=True)

    tj.testing.check_grads(attend, arrays)
    tj.testing.check_grads(causal, arrays)
    tj.testing.check_grads(attend, [*arrays, masks["floats"]])


@in_blocks
@pytest.mark.usefixtures("chosen")
def test_gradients_are_those_of_the_plain_formula_in_a_function() -> None:
    """Written by hand, and judged in float32 by the table of all."""
    arrays = sample("shared", np.float32)
    mask = masks_for("shared")["bools"]

    def by_hand(query: Any, key: Any, value: Any) -> Any:
        keys, values = (tj.repeat(x, 2, axis=-3) for x in (key, value))
        scores = query @ tj.matrix_transpose(keys) / 2
        return nn.softmax(tj.where(mask, scores, -tj.inf)) @ values

    def gradients(function: Any, *args: Any) -> Any:
        with tj.GradientTape() as tape:
            tape.watch(args)
            y = tj.sum(tj.sin(function(*args)))
        return y, tape.gradient(y, args)

    tensors = [tj.asarray(x) for x in arrays]
    wide = [tj.asarray(x, dtype="float64") for x in arrays]
    truth, slopes = gradients(by_hand, *wide)
    eager = gradients(lambda *xs: attend(*xs, mask), *tensors)
    traced = tj.function(lambda *xs: gradients(lambda *ys: attend(*ys, mask), *xs))
    for value, found in (eager, traced(*tensors), traced(*tensors)):
        assert_agrees(COMPOSED, value, truth.numpy())
        for one, expected in zip(found, slopes, strict=True):
            np.testing.assert_allclose(one, expected, rtol=2e-5, atol=2e-6)
    assert traced.trace_count == 1


@in_blocks
@pytest.mark.usefixtures("chosen")
@pytest.mark.parametrize("is_native", [False, True], ids=["NumPy", "native"])
def test_a_tape_around_a_function(is_native: bool) -> None:
    arrays = [tj.asarray(x) for x in sample("batch")]

    def slopes(function: Any) -> Any:
        with tj.GradientTape() as outer:
            outer.watch(arrays)
            with tj.GradientTape() as tape:
                tape.watch(arrays)
                y = function(*arrays)
            first = tape.gradient(y, arrays, output_gradients=tj.cos(y))
        return y, first, outer.gradient([tj.sin(g) for g in first], arrays)

    def causal(*args: Any) -> Any:
        return attend(*args, is_causal=True)

    expected = tree.leaves(slopes(causal))
    with tj.config.override(native=is_native):
        found = tree.leaves(slopes(tj.function(causal)))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-12)


@in_blocks
@pytest.mark.usefixtures("chosen")
def test_vmap_is_a_loop() -> None:
    query, key, value = sample("shared")
    mask = masks_for("shared")["bools"]

    def slope(q: Any, k: Any, v: Any) -> Any:
        return tj.grad(lambda q: tj.sum(tj.square(attend(q, k, v, is_causal=True))))(q)

    found = tj.vmap(attend)(query, key, value, mask)
    np.testing.assert_allclose(found, attend(query, key, value, mask), rtol=1e-12)
    slopes = tj.vmap(slope)(query, key, value)
    rows = [slope(*map(tj.asarray, row)) for row in zip(query, key, value, strict=True)]
    np.testing.assert_allclose(slopes, np.stack(rows), rtol=1e-11, atol=1e-14)


# Masks


@in_blocks
@pytest.mark.usefixtures("chosen")
@pytest.mark.parametrize("is_native", [False, True], ids=["NumPy", "native"])
@pytest.mark.parametrize("kind", [bool, np.float32])
def test_queries_that_may_attend_to_nothing(kind: Any, is_native: bool) -> None:
    """Zeros and no gradient, also of second order and where scores are infinite."""
    query, key, value = (tj.asarray(x) for x in sample("one head", np.float32))
    allowed = np.ones((5, 4), bool)
    allowed[1] = False
    allowed[:, 2] = False
    mask = allowed if kind is bool else np.where(allowed, 0, -np.inf).astype(kind)
    key = key.at[2].set(1e30)  # which nobody attends to

    @tj.function
    def step(*args: Any) -> Any:
        with tj.GradientTape() as outer:
            outer.watch(args)
            with tj.GradientTape() as tape:
                tape.watch(args)
                y = attend(*args, mask)
            slopes = tape.gradient(y, args, output_gradients=tj.ones_like(y))
            total = sum(tj.sum(tj.sin(g)) for g in slopes)
        return y, slopes, outer.gradient(total, args)

    with tj.config.override(native=is_native):
        y, first, second = step(query, key, value)
    np.testing.assert_array_equal(y[1], 0)
    for dq, dk, dv in (first, second):
        assert all(np.isfinite(x).all() for x in (dq, dk, dv))
        np.testing.assert_array_equal(dq[1], 0)
        np.testing.assert_array_equal(dk[2], 0)
        np.testing.assert_array_equal(dv[2], 0)
    assert np.abs(first[0]).max() > 0


@pytest.mark.parametrize(("rows", "columns"), [(2, 5), (5, 2), (4, 4)])
@in_blocks
@pytest.mark.usefixtures("chosen")
def test_causal_is_aligned_at_the_first_query_and_key(rows: int, columns: int) -> None:
    query, key = np.zeros((rows, 1)), np.zeros((columns, 1))
    found = attend(query, key, np.eye(columns), is_causal=True)
    expected = np.tri(rows, columns)
    expected /= expected.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(found, expected, rtol=1e-15)


def test_a_mask_does_not_decide_the_dtype() -> None:
    arrays = sample("heads", np.float32)
    assert attend(*arrays, np.zeros((5, 7))).dtype == np.float32


def test_no_keys_and_no_queries() -> None:
    found = attend(tj.ones((3, 2)), tj.ones((0, 2)), tj.ones((0, 4)))
    np.testing.assert_array_equal(found, np.zeros((3, 4)))
    assert attend(tj.ones((0, 2)), tj.ones((3, 2)), tj.ones((3, 4))).shape == (0, 4)
    same = attend(tj.ones((1, 0)), tj.ones((2, 0)), tj.asarray([[1.0], [3.0]]))
    np.testing.assert_array_equal(same, [[2]])


# Numbers


def test_scale_is_a_number_or_a_tensor() -> None:
    arrays = sample("heads")
    expected = reference(*arrays, scale=0.3)
    np.testing.assert_allclose(attend(*arrays, scale=0.3), expected, rtol=1e-12)
    np.testing.assert_allclose(
        attend(*arrays, scale=tj.asarray(0.3, dtype="float64")), expected, rtol=1e-12
    )
    tj.testing.check_grads(lambda s: attend(*arrays, scale=s), [np.float64(0.7)])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves_are_rounded_once(dtype: str) -> None:
    arrays = [x.astype(dtype_named(dtype)) for x in sample("batch")]
    found = attend(*(tj.asarray(x) for x in arrays), is_causal=True)
    assert found.dtype == arrays[0].dtype
    truth = reference(*(x.astype(np.float64) for x in arrays), is_causal=True)
    assert_agrees(TRANSCENDENTAL, found, truth)


def test_scores_of_any_size() -> None:
    query = np.float32([[1e18, 0.0], [0.0, 3e2]])
    value = np.float32([[1.0], [2.0]])
    found = attend(query, query, value)
    np.testing.assert_array_equal(found, [[1], [2]])


def test_operands_of_every_kind() -> None:
    arrays = [np.float32([[1, 2], [0, 1]]), np.float32([[1, 0]]), np.float32([[3]])]
    for convert in (tj.Variable, np.asarray, np.ndarray.tolist, np.int64):
        found = attend(*(convert(x) for x in arrays))
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, [[3], [3]])
    with pytest.raises(tj.DTypeError, match="takes real numbers, got c64"):
        attend(arrays[0] * 1j, *arrays[1:])


# Long sequences


def test_long_sequences_keep_no_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT", 1 << 19)
    rng = np.random.default_rng(2)
    x = tj.asarray(rng.normal(size=(1024, 4)).astype(np.float32))
    with tj.GradientTape() as tape:
        tape.watch(x)
        y = attend(x, x, x, is_causal=True)
    assert tape.nbytes < 8 * x.nbytes  # the scores are 256 times as large
    found = tape.gradient(y, x)
    with tj.GradientTape() as plain:
        plain.watch(x)
        scores = x @ x.T / 2
        scores = tj.where(np.tri(1024, dtype=bool), scores, -tj.inf)
        expected = nn.softmax(scores) @ x
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found, plain.gradient(expected, x), rtol=1e-4, atol=1e-4)


def test_blocks_of_a_function_come_one_after_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They need the memory of one block, whatever their number."""
    for name, number in {"LONG": 0, "KEPT": 0, "BLOCK": 1, "ROWS": 32}.items():
        monkeypatch.setattr(module, name, number)

    # As where nothing is compiled; but what is tells how much memory it needs.
    monkeypatch.setattr(module, "config", SimpleNamespace(native=False))

    def memory(body: Any, blocks: int) -> int:
        function = tj.function(lambda *args: body(*args))
        tensors = tj.ones((32 * blocks, 16)), tj.ones((300, 16))
        function(*tensors)
        found = re.search(r"memory +(\d+) bytes", str(function.explain(*tensors)))
        assert found is not None
        return int(found[1])

    def forward(query: Any, key: Any) -> Any:
        return attend(query, key, key)

    def gradient(query: Any, key: Any) -> Any:
        with tj.GradientTape() as tape:
            tape.watch([query, key])
            y = attend(query, key, key)
        return y, tape.gradient(y, [query, key])

    with tj.config.override(native=True):
        for body in (forward, gradient):
            assert memory(body, 6) < 1.3 * memory(body, 2)


# Dropout


def dropped(training_rate: float, generator: Any = None) -> Any:
    """Weights of 24 equal keys: what is not dropped is 1 / 24 / (1 - rate)."""
    query, key = tj.zeros((16, 2)), tj.zeros((24, 2))
    return attend(
        query, key, tj.eye(24), dropout_rate=training_rate, generator=generator
    )


@in_blocks
@pytest.mark.usefixtures("chosen")
def test_dropout_drops_weights_and_keeps_the_mean() -> None:
    weights = dropped(0.25, tj.random.Generator(3)).numpy()
    kept = 1 / 24 / 0.75
    assert set(np.unique(weights.round(6))) == {0, np.float32(kept).round(6)}
    assert abs(weights.mean() * 24 - 1) < 0.1
    np.testing.assert_array_equal(dropped(0.25, tj.random.Generator(3)), weights)
    np.testing.assert_array_equal(dropped(1.0), 0)
    np.testing.assert_allclose(dropped(0.0), 1 / 24, rtol=1e-6)
    tj.random.set_seed(3)
    np.testing.assert_array_equal(dropped(0.25), weights)


@in_blocks
@pytest.mark.usefixtures("chosen")
@pytest.mark.parametrize("is_native", [False, True], ids=["NumPy", "native"])
def test_gradients_drop_what_the_values_dropped(is_native: bool) -> None:
    """With values that are a diagonal, dv tells which weights were dropped."""
    query, key = tj.zeros((6, 2)), tj.zeros((8, 2))

    def step(generator: Any, value: Any) -> Any:
        with tj.GradientTape() as tape:
            tape.watch(value)
            y = attend(query, key, value, dropout_rate=0.5, generator=generator)
        return y, tape.gradient(y, value, output_gradients=tj.eye(6, 8))

    eager = tj.random.Generator(4)
    y, found = step(eager, tj.eye(8))
    np.testing.assert_allclose(found[:, :6], y.numpy().T, rtol=1e-6)
    assert 0 < np.count_nonzero(y) < y.size
    traced, function = tj.random.Generator(4), tj.function(step)
    with tj.config.override(native=is_native):
        for _ in range(2):  # the first draws again, then what comes next
            again, slopes = function(traced, tj.eye(8))
            np.testing.assert_allclose(again, y, rtol=1e-6)
            np.testing.assert_allclose(slopes, found, rtol=1e-6)
            y, found = step(eager, tj.eye(8))
    generators = (tj.random.Generator(4), traced)
    for _ in range(2):
        step(generators[0], tj.eye(8))
    np.testing.assert_array_equal(generators[0].state, traced.state)


@every_shape
@pytest.mark.parametrize("is_causal", [False, True], ids=["all", "causal"])
def test_blocks_drop_what_the_whole_drops(
    name: str, is_causal: bool, request: pytest.FixtureRequest
) -> None:
    arrays = sample(name)

    def dropped() -> Any:
        generator = tj.random.Generator(9)
        return attend(
            *arrays, is_causal=is_causal, dropout_rate=0.4, generator=generator
        )

    whole = dropped()
    request.getfixturevalue("small_blocks")
    np.testing.assert_allclose(dropped(), whole, rtol=1e-12, atol=1e-14)


def test_mapped_rows_drop_weights_of_their_own() -> None:
    generator = tj.random.Generator(2)

    def attended(query: Any) -> Any:
        keys, values = tj.zeros((24, 2)), tj.eye(24)
        return attend(query, keys, values, dropout_rate=0.5, generator=generator)

    rows = tj.vmap(attended)(tj.zeros((3, 4, 2))).numpy()
    assert len({row.tobytes() for row in rows}) == 3


# What makes no sense


def test_shapes_that_do_not_fit_are_named() -> None:
    x = tj.ones((2, 4, 3))
    cases: list[tuple[tuple[Any, ...], str]] = [
        ((tj.ones(3), x, x), r"query is f32\[3\], and needs axes of steps"),
        ((x, x, tj.ones(3)), r"value is f32\[3\], and needs axes of steps"),
        (
            (x, tj.ones((2, 4, 5)), x),
            r"key f32\[2,4,5\]: they differ in their f",
        ),
        ((x, x, tj.ones((2, 5, 3))), r"value f32\[2,5,3\]: they differ in their steps"),
        (
            (x, tj.ones((3, 4, 3)), tj.ones((3, 4, 3))),
            "2 heads of queries cannot share",
        ),
        ((tj.ones((4, 4, 3)), x, tj.ones((1, 4, 3))), "2 of keys and 1 of values"),
        ((tj.ones((4, 3)), x, x), "1 heads of queries cannot share 2 of keys"),
        (
            (tj.ones((2, 1, 4, 3)), tj.ones((3, 1, 4, 3)), tj.ones((4, 3))),
            "leading axes, those before the heads, do not broadcast",
        ),
        (
            (x, x, x, tj.ones((4, 5))),
            r"mask is f32\[4,5\], which .* f32\[2,4,4\]",
        ),
        ((x, x, x, tj.ones((3, 1, 4, 4))), r"mask is f32\[3,1,4,4\], which does not"),
    ]
    for arguments, message in cases:
        error = f"^scaled_dot_product_attention: .*{message}"
        with pytest.raises(tj.ShapeError, match=error):
            attend(*arguments)
        with pytest.raises(tj.ShapeError, match=error):
            tj.function(attend)(*arguments)


def test_other_arguments_that_make_no_sense() -> None:
    x = tj.ones((2, 4, 3))
    with pytest.raises(tj.DTypeError, match=r"mask is i32\[4\]: neither bools"):
        attend(x, x, x, tj.ones(4, dtype="int32"))
    with pytest.raises(tj.ShapeError, match=r"scale is one number, got f32\[2\]"):
        attend(x, x, x, scale=tj.ones(2))
    with pytest.raises(tj.ArgumentError, match="dropout_rate is a probability"):
        attend(x, x, x, dropout_rate=1.5)
    with pytest.raises(tj.ArgumentTypeError, match="dropout_rate is a number, got"):
        attend(x, x, x, dropout_rate=tj.asarray(0.5))


# The layer


def by_hand(layer: Any, query: Any, value: Any, key: Any, mask: Any = None) -> Any:
    """Projections, heads one after another, and the last projection."""
    q, k, v = layer.query(query), layer.key(key), layer.value(value)
    size, width = layer.key_dim, layer.value_dim
    found = []
    for head in range(layer.num_heads):
        at = head * layer.num_key_heads // layer.num_heads
        part = (
            q[..., head * size : (head + 1) * size],
            k[..., at * size : (at + 1) * size],
            v[..., at * width : (at + 1) * width],
        )
        allowed = mask if mask is None or mask.ndim == 3 else mask[:, head]
        found.append(reference(*map(np.asarray, part), allowed))
    return layer.output(np.concatenate(found, axis=-1))


@pytest.mark.parametrize("key_heads", [None, 2, 1])
def test_the_layer_is_its_formula(key_heads: int | None) -> None:
    layer = nn.MultiHeadAttention(4, 3, 2, num_key_heads=key_heads, dtype="float64")
    query, value, key = (RNG.normal(size=(2, n, 5)) for n in (3, 6, 6))
    for mask in (None, RNG.random((2, 3, 6)) > 0.3, RNG.random((2, 4, 3, 6)) > 0.3):
        found = layer(query, value, key, mask)
        assert found.shape == query.shape
        np.testing.assert_allclose(
            found, by_hand(layer, query, value, key, mask), rtol=1e-12, atol=1e-14
        )
    causal = layer(query, query, use_causal_mask=True)
    expected = by_hand(layer, query, query, query, np.tri(3, dtype=bool)[None])
    np.testing.assert_allclose(causal, expected, rtol=1e-12, atol=1e-14)


def test_the_layer_has_four_projections() -> None:
    layer = nn.MultiHeadAttention(2, 3, output_size=7, num_key_heads=1, name="look")
    assert layer(tj.ones((1, 4, 5)), tj.ones((1, 6, 8))).shape == (1, 4, 7)
    shapes = {name: v.shape for name, v in layer.named_variables()}
    assert shapes == {
        "query.weight": (5, 6),
        "query.bias": (6,),
        "key.weight": (8, 3),
        "key.bias": (3,),
        "value.weight": (8, 3),
        "value.bias": (3,),
        "output.weight": (6, 7),
        "output.bias": (7,),
    }
    assert layer.query.weight.name == "look.query.weight"
    assert repr(layer) == "MultiHeadAttention(2, 3, num_key_heads=1)"
    plain = nn.MultiHeadAttention(2, 3, use_bias=False)
    plain(tj.ones((1, 4, 5)), tj.ones((1, 6, 8)))
    assert len(plain.variables) == 4


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_copies_of_the_layer_go_on_as_it_does(copied: Any) -> None:
    layer = nn.MultiHeadAttention(2, 3, dropout=0.5)
    x = RNG.normal(size=(2, 4, 5)).astype(np.float32)
    layer(x, x)
    twin = copied(layer)
    found = layer(x, x, training=True)
    np.testing.assert_array_equal(twin(x, x, training=True), found)
    assert (layer(x, x, training=True).numpy() != found.numpy()).any()
    np.testing.assert_array_equal(layer(x, x), twin(x, x))


def test_the_layer_trains_in_a_function_as_it_does_eagerly() -> None:
    x = RNG.normal(size=(4, 6, 5)).astype(np.float32)
    losses = []
    for decorate in (lambda f: f, tj.function):
        generator = tj.random.Generator(1)
        layer = nn.MultiHeadAttention(2, 4, dropout=0.1, generator=generator)
        optimizer = tj.optimizers.SGD(0.3)

        def step(x: Any, layer: Any = layer, optimizer: Any = optimizer) -> Any:
            with tj.GradientTape() as tape:
                y = layer(x, x, use_causal_mask=True, training=True)
                loss = nn.squared_error(y, tj.flip(x, axis=-1))
            variables = layer.trainable_variables
            optimizer.apply_gradients(
                zip(tape.gradient(loss, variables), variables, strict=True)
            )
            return loss

        run = decorate(step)
        losses.append([float(run(x)) for _ in range(12)])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-4)
    assert losses[0][-1] < losses[0][0]


def test_layers_that_make_no_sense() -> None:
    with pytest.raises(tj.ArgumentError, match="4 heads cannot share 3 heads of keys"):
        nn.MultiHeadAttention(4, 2, num_key_heads=3)
    with pytest.raises(tj.ArgumentError, match="num_heads is at least 1, got 0"):
        nn.MultiHeadAttention(0, 2)
    with pytest.raises(tj.ArgumentError, match="dropout is a probability"):
        nn.MultiHeadAttention(2, 2, dropout=-0.1)
    with pytest.raises(tj.ShapeError, match=r"value is f32\[3\], and needs axes"):
        nn.MultiHeadAttention(2, 2)(tj.ones((1, 4, 3)), tj.ones(3))
