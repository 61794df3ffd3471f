"""Losses: against formulas in double precision, at the edges, in every reduction."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from agreement import TRANSCENDENTAL, assert_agrees
from scipy import special

import tapejit as tj
from tapejit.base.types import dtype_named
from tapejit.nn.functional import losses

nn = tj.nn
Array = np.ndarray[Any, Any]
INF = math.inf
RNG = np.random.default_rng(4)
LOGITS = RNG.normal(size=(3, 4, 5)) * 3


def shares_of(axis: int) -> Array:
    return special.softmax(RNG.normal(size=LOGITS.shape), axis=axis)


def dense_loss(logits: Array, labels: Array, axis: int = -1) -> Array:
    return -np.sum(labels * special.log_softmax(logits, axis=axis), axis=axis)


def none(function: Callable[..., tj.Tensor]) -> Callable[..., tj.Tensor]:
    """The losses per example."""
    return lambda *args, **kwargs: function(*args, reduction="none", **kwargs)


softmax_loss = none(nn.softmax_cross_entropy)
sparse_loss = none(nn.sparse_softmax_cross_entropy)
sigmoid_loss = none(nn.sigmoid_cross_entropy)


# Probabilities of classes


@pytest.mark.parametrize("axis", [-1, 0, 1])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
def test_softmax_cross_entropy_is_its_formula(axis: int, smoothing: float) -> None:
    labels = shares_of(axis)
    smooth = labels * (1 - smoothing) + smoothing / LOGITS.shape[axis]
    found = softmax_loss(LOGITS, labels, axis=axis, label_smoothing=smoothing)
    expected = dense_loss(LOGITS, smooth, axis)
    np.testing.assert_allclose(found, expected, rtol=1e-13)


def test_softmax_cross_entropy_differentiates_by_both() -> None:
    tj.testing.check_grads(
        lambda x, y: softmax_loss(x, y, axis=1, label_smoothing=0.1),
        [LOGITS[:2, :3, :2], shares_of(1)[:2, :3, :2]],
    )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_gradient_is_softmax_minus_labels(dtype: str) -> None:
    logits, labels = LOGITS.astype(dtype), shares_of(-1).astype(dtype)
    v = tj.Variable(logits)
    with tj.GradientTape() as tape:
        loss = nn.softmax_cross_entropy(v, labels, reduction="sum")
    sums = labels.astype(np.float64).sum(axis=-1, keepdims=True)
    expected = special.softmax(logits.astype(np.float64), axis=-1) * sums - labels
    eps = float(np.finfo(dtype).eps)
    np.testing.assert_allclose(tape.gradient(loss, v), expected, rtol=0, atol=4 * eps)


@pytest.mark.parametrize("size", [1e2, 1e4, 1e30])
def test_logits_of_any_size(size: float) -> None:
    logits = np.array([[size, -size, 0.0], [-size, size, 0.0]], np.float32)
    labels = np.array([[1, 0, 0], [1, 0, 0]], np.float32)
    v = tj.Variable(logits)
    with tj.GradientTape() as tape:
        losses = softmax_loss(v, labels)
    np.testing.assert_allclose(losses, [0, 2 * size], rtol=1e-6)
    expected = [[0, 0, 0], [-1, 1, 0]]
    np.testing.assert_allclose(tape.gradient(losses, v), expected, atol=1e-40)


def test_the_loss_of_a_class_that_is_nearly_certain() -> None:
    """From a softmax of 0 it would be infinite, from one of 1 - 1e-9 nothing."""
    logits = np.array([200.0, 0.0], np.float32)
    for label, expected in ((0, 0.0), (1, 200.0)):
        dense = np.eye(2, dtype=np.float32)[label]
        assert float(nn.softmax_cross_entropy(logits, dense)) == expected
        assert float(nn.sparse_softmax_cross_entropy(logits, label)) == expected
    found = sigmoid_loss(np.float32([20, -20]), np.float32([1, 0]))
    np.testing.assert_allclose(found, [math.log1p(math.exp(-20))] * 2, rtol=1e-6)


def test_a_masked_class_costs_nothing_if_nothing_is_expected_of_it() -> None:
    masked, plain = [[1.0, -INF, 2.0]], [[1.0, 2.0]]
    labels = tj.Variable([[0.25, 0.0, 0.75]])
    v = tj.Variable(masked)
    with tj.GradientTape() as tape:
        loss = nn.softmax_cross_entropy(v, labels)
    expected = dense_loss(np.array(plain), np.array([[0.25, 0.75]]))[0]
    np.testing.assert_allclose(loss, expected, rtol=1e-6)
    by_logits, by_labels = tape.gradient(loss, [v, labels])
    slope = special.softmax(plain) - [[0.25, 0.75]]
    np.testing.assert_allclose(by_logits, np.insert(slope, 1, 0, axis=1), rtol=1e-5)
    assert np.isfinite(by_labels).all()
    expected_costs = -special.log_softmax(plain)
    np.testing.assert_allclose(by_labels.numpy()[:, [0, 2]], expected_costs, rtol=1e-6)
    found = nn.sparse_softmax_cross_entropy(masked, [2])
    np.testing.assert_allclose(found, expected_costs[0, 1], rtol=1e-6)


def test_a_masked_class_that_is_expected_costs_infinitely_much() -> None:
    masked = [[1.0, -INF, 2.0]]
    assert nn.softmax_cross_entropy(masked, [[0.5, 0.5, 0.0]]).numpy() == INF
    assert nn.sparse_softmax_cross_entropy(masked, [1]).numpy() == INF


def test_a_row_without_classes_can_be_masked_out() -> None:
    v = tj.Variable([[1.0, 3.0], [-INF, -INF]])
    with tj.GradientTape() as tape:
        loss = nn.sparse_softmax_cross_entropy(v, [0, 0], weights=[1.0, 0.0])
    np.testing.assert_allclose(loss, -special.log_softmax([1.0, 3.0])[0], rtol=1e-6)
    slope = special.softmax([1.0, 3.0]) - [1, 0]
    np.testing.assert_allclose(tape.gradient(loss, v), [slope, [0, 0]], rtol=1e-6)


def test_the_gradient_by_a_label_of_zero_is_its_cost() -> None:
    labels = tj.Variable([0.0, 1.0])
    with tj.GradientTape() as tape:
        loss = nn.softmax_cross_entropy([1.0, 3.0], labels)
    expected = -special.log_softmax([1.0, 3.0])
    np.testing.assert_allclose(tape.gradient(loss, labels), expected, rtol=1e-6)


# Integers that name classes


@pytest.mark.parametrize("axis", [-1, 0, 1])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("dtype", ["int64", "uint8"])
def test_sparse_labels_are_dense_ones(axis: int, smoothing: float, dtype: str) -> None:
    count = LOGITS.shape[axis]
    shape = np.delete(LOGITS.shape, axis)
    labels = RNG.integers(0, count, shape).astype(dtype)
    dense = np.moveaxis(np.eye(count)[labels], -1, axis)
    options: dict[str, Any] = {"axis": axis, "label_smoothing": smoothing}
    found = sparse_loss(LOGITS, labels, **options)
    assert found.shape == tuple(shape)
    np.testing.assert_allclose(
        found, softmax_loss(LOGITS, dense, **options), rtol=1e-13
    )
    tj.testing.check_grads(
        lambda x: sparse_loss(x, labels, **options), [LOGITS], modes=["reverse"]
    )


def test_sparse_labels_forward() -> None:
    labels = [[0, 4, 2, 1]] * 3
    tj.testing.check_grads(
        lambda x: sparse_loss(x, labels), [LOGITS], modes=["forward"]
    )


@pytest.mark.parametrize("label", [-1, 5, -100, 255])
def test_a_label_out_of_range(label: int) -> None:
    labels = np.array([0, label, 1])
    message = (
        r"^sparse_softmax_cross_entropy: a label is from 0 to 4, "
        rf"got {label} at \[1\]"
    )
    with pytest.raises(tj.OutOfRangeError, match=message):
        sparse_loss(LOGITS[0, :3], labels)
    with pytest.raises(IndexError):  # no value is known while it is traced
        tj.vmap(sparse_loss)(LOGITS[0, :3], labels)


@pytest.mark.parametrize("decorate", [lambda f: f, tj.function])
def test_a_label_out_of_range_is_shown_as_the_labels(decorate: Any) -> None:
    def loss(scores: Any, chosen: Any) -> Any:
        return nn.sparse_softmax_cross_entropy(scores, chosen)

    scores, chosen = tj.asarray(LOGITS[0, :3]), tj.asarray([0, 9, 1])
    with pytest.raises(tj.OutOfRangeError) as caught:
        decorate(loss)(scores, chosen)
    assert "arg 1  chosen: i32[3]" in str(caught.value)
    with pytest.raises(tj.OutOfRangeError) as caught:
        tj.nn.embedding(scores, chosen)
    assert "arg 1  chosen: i32[3]" in str(caught.value)


def test_labels_before_logits() -> None:
    with pytest.raises(tj.DTypeError) as caught:
        sparse_loss(np.array([0, 1, 2]), LOGITS[0, :3])
    assert "the order is sparse_softmax_cross_entropy(logits, labels)" in str(
        caught.value
    )


@pytest.mark.parametrize("name", losses.__all__)
def test_operands_by_the_names_of_keras(name: str) -> None:
    loss = getattr(tj.nn, name)
    given = tj.nn.softmax(tj.asarray(LOGITS[0, :3]))
    truth: Any = tj.nn.softmax(given[::-1])
    if name == "sparse_softmax_cross_entropy":
        truth = tj.asarray([0, 3, 1])
    expected = loss(given, truth)
    assert loss(y_true=truth, y_pred=given) == expected
    assert loss(given, y_true=truth) == expected
    with pytest.raises(tj.ArgumentTypeError, match=r"given twice.*y_pred=") as caught:
        loss(truth, y_pred=given)
    assert "the order is" in str(caught.value)


def test_labels_for_the_other_function() -> None:
    with pytest.raises(tj.ShapeError, match=r"labels are i64\[3,4\]") as caught:
        softmax_loss(LOGITS, np.zeros((3, 4), int))
    assert "tj.nn.sparse_softmax_cross_entropy" in str(caught.value)
    with pytest.raises(tj.DTypeError, match="a label is an integer"):
        sparse_loss(LOGITS, shares_of(-1))
    with pytest.raises(tj.ShapeError) as caught:
        sparse_loss(LOGITS, np.zeros(LOGITS.shape, int))
    assert "tj.nn.softmax_cross_entropy" in str(caught.value)


# Probabilities each on its own


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_sigmoid_cross_entropy_is_its_formula(smoothing: float) -> None:
    labels = RNG.uniform(size=LOGITS.shape)
    smooth = labels * (1 - smoothing) + smoothing / 2
    found = sigmoid_loss(LOGITS, labels, label_smoothing=smoothing)
    expected = (
        np.maximum(LOGITS, 0) - LOGITS * smooth + np.log1p(np.exp(-np.abs(LOGITS)))
    )
    np.testing.assert_allclose(found, expected, rtol=1e-13)
    tj.testing.check_grads(
        lambda x, y: sigmoid_loss(x, y, label_smoothing=smoothing), [LOGITS, labels]
    )


@pytest.mark.parametrize("label", [0.0, 0.3, 1.0])
def test_the_gradient_is_sigmoid_minus_label(label: float) -> None:
    x = np.array([-1e4, -30.0, -2.0, 0.0, 2.0, 30.0, 1e4])
    v = tj.Variable(x)
    with tj.GradientTape() as tape:
        losses = sigmoid_loss(v, np.full(x.shape, label))
    expected = special.expit(x) * (1 - label) - special.expit(-x) * label
    np.testing.assert_allclose(tape.gradient(losses, v), expected, rtol=1e-14)
    assert np.isfinite(losses).all()


# Distances


def test_squared_error() -> None:
    x, y = RNG.normal(size=(2, 3, 4))
    np.testing.assert_allclose(nn.squared_error(x, y), np.mean((x - y) ** 2))
    tj.testing.check_grads(nn.squared_error, [x, y])


def test_absolute_error() -> None:
    x, y = RNG.normal(size=(2, 3, 4))
    np.testing.assert_allclose(nn.absolute_error(x, y), np.mean(np.abs(x - y)))
    found = tj.grad(lambda x: nn.absolute_error(x, [1.0, 3.0, 0.0], reduction="sum"))
    np.testing.assert_array_equal(found(np.array([1.0, 2.0, 3.0])), [0, -1, 1])


@pytest.mark.parametrize("delta", [0.5, 1.0, 3.0])
def test_huber(delta: float) -> None:
    x, y = RNG.normal(size=(2, 3, 4)) * 3
    d = np.abs(x - y)
    expected = np.where(d <= delta, d * d / 2, delta * (d - delta / 2))
    np.testing.assert_allclose(none(nn.huber)(x, y, delta), expected, rtol=1e-13)
    tj.testing.check_grads(lambda x, y: nn.huber(x, y, delta), [x, y])


def test_huber_is_smooth_at_its_joints_and_curved_at_zero() -> None:
    x = tj.Variable([-2.0, -1.0, 0.0, 1.0, 2.0, 1e4])
    with tj.GradientTape() as outer:
        with tj.GradientTape() as inner:
            losses = none(nn.huber)(x, tj.zeros(6))
        slope = inner.gradient(losses, x)
    np.testing.assert_array_equal(slope, [-1, -1, 0, 1, 1, 1])
    curvature = outer.gradient(slope, x).numpy()
    np.testing.assert_array_equal(curvature[[0, 2, 4]], [0, 1, 0])


def test_huber_refuses_a_width_that_is_none() -> None:
    with pytest.raises(tj.ArgumentError, match="delta is a positive number"):
        nn.huber([1.0], [2.0], 0.0)


# Divergence


@pytest.mark.parametrize("axis", [-1, 0])
def test_kl_divergence_is_its_formula(axis: int) -> None:
    labels = shares_of(axis)
    costs = special.rel_entr(labels, special.softmax(LOGITS, axis=axis))
    found = none(nn.kl_divergence)(LOGITS, labels, axis=axis)
    np.testing.assert_allclose(found, costs.sum(axis), rtol=1e-12)
    tj.testing.check_grads(
        lambda x, y: none(nn.kl_divergence)(x, y, axis=axis),
        [LOGITS[:2, :3, :2], shares_of(axis)[:2, :3, :2]],
    )


def test_kl_divergence_of_equal_distributions_is_zero() -> None:
    p = np.array([0.25, 0.5, 0.25, 0.0])
    with np.errstate(divide="ignore"):
        v = tj.Variable(np.log(p))
    with tj.GradientTape() as tape:
        loss = nn.kl_divergence(v, p)
    assert float(loss) == 0
    np.testing.assert_allclose(tape.gradient(loss, v), np.zeros(4), atol=1e-16)


def test_kl_divergence_from_an_impossible_class_is_infinite() -> None:
    assert float(nn.kl_divergence([0.0, -INF], [0.5, 0.5])) == INF


# Margins


def test_hinge_and_its_square() -> None:
    x, y = RNG.normal(size=(3, 4)) * 2, np.sign(RNG.normal(size=(3, 4)))
    expected = np.maximum(0, 1 - x * y)
    np.testing.assert_allclose(none(nn.hinge)(x, y), expected)
    np.testing.assert_allclose(none(nn.squared_hinge)(x, y), expected**2)
    np.testing.assert_allclose(none(nn.hinge)(x, y > 0), expected)
    tj.testing.check_grads(nn.hinge, [x, y])
    tj.testing.check_grads(nn.squared_hinge, [x, y])


@pytest.mark.parametrize("axis", [-1, 0])
def test_categorical_hinge(axis: int) -> None:
    x = RNG.normal(size=(4, 4)) * 2
    y = np.eye(4)[[2, 0, 3, 1]]
    right = np.sum(x * y, axis=axis)
    wrong = np.maximum(0, np.max(np.where(y == 1, -INF, x), axis=axis))
    expected = np.maximum(0, 1 + wrong - right)
    found = none(nn.categorical_hinge)(x, y, axis=axis)
    np.testing.assert_allclose(found, expected, rtol=1e-13)
    tj.testing.check_grads(lambda x: nn.categorical_hinge(x, y, axis=axis), [x])


# What all have in common

PAIRS: dict[str, tuple[Callable[..., tj.Tensor], Array, Array]] = {
    "softmax_cross_entropy": (nn.softmax_cross_entropy, LOGITS, shares_of(-1)),
    "sparse_softmax_cross_entropy": (
        nn.sparse_softmax_cross_entropy,
        LOGITS,
        RNG.integers(0, 5, (3, 4)),
    ),
    "sigmoid_cross_entropy": (
        nn.sigmoid_cross_entropy,
        LOGITS,
        RNG.uniform(size=LOGITS.shape),
    ),
    "kl_divergence": (nn.kl_divergence, LOGITS, shares_of(-1)),
    "hinge": (nn.hinge, LOGITS, np.sign(LOGITS[::-1])),
    "squared_hinge": (nn.squared_hinge, LOGITS, np.sign(LOGITS[::-1])),
    "categorical_hinge": (
        nn.categorical_hinge,
        LOGITS,
        np.eye(5)[RNG.integers(0, 5, (3, 4))],
    ),
    "squared_error": (nn.squared_error, LOGITS, LOGITS[::-1].copy()),
    "absolute_error": (nn.absolute_error, LOGITS, LOGITS[::-1].copy()),
    "huber": (nn.huber, LOGITS, LOGITS[::-1].copy()),
}
every = pytest.mark.parametrize("name", PAIRS)


@every
def test_reductions_and_weights(name: str) -> None:
    function, x, y = PAIRS[name]
    losses = none(function)(x, y).numpy()
    np.testing.assert_allclose(function(x, y), losses.mean(), rtol=1e-13)
    np.testing.assert_allclose(function(x, y, reduction="sum"), losses.sum())
    for shape in (losses.shape, (4, *losses.shape[2:]), losses.shape[-1:], (), (3, 1)):
        if shape == (3, 1) and losses.ndim == 3:
            continue
        w = RNG.uniform(size=shape)
        whole = np.broadcast_to(w, losses.shape)
        found = function(x, y, weights=w, reduction="none")
        np.testing.assert_allclose(found, losses * w, rtol=1e-13)
        found = function(x, y, weights=w, reduction="sum")
        np.testing.assert_allclose(found, np.sum(losses * w), rtol=1e-13)
        found = function(x, y, weights=w)
        expected = np.average(losses, weights=whole)
        np.testing.assert_allclose(found, expected, rtol=1e-13)


@every
def test_a_mask_leaves_the_rest_as_it_is(name: str) -> None:
    function, x, y = PAIRS[name]
    losses = none(function)(x, y).numpy()
    mask = np.zeros(losses.shape, bool)
    mask[1] = True
    found = function(x, y, weights=mask)
    np.testing.assert_allclose(found, losses[1].mean(), rtol=1e-13)
    v = tj.Variable(x)
    with tj.GradientTape() as tape:
        loss = function(v, y, weights=np.zeros(losses.shape))
    assert float(loss) == 0
    assert not tape.gradient(loss, v).numpy().any()


@every
def test_vmap_is_a_loop(name: str) -> None:
    function, x, y = PAIRS[name]
    for options in ({}, {"reduction": "none"}):
        mapped = tj.vmap(lambda x, y, options=options: function(x, y, **options))(x, y)
        rows = [function(a, b, **options) for a, b in zip(x, y, strict=True)]
        np.testing.assert_allclose(mapped, np.stack(rows), rtol=1e-13)
    slopes = tj.vmap(tj.grad(function))(x, y)
    rows = [tj.grad(function)(a, b) for a, b in zip(x, y, strict=True)]
    np.testing.assert_allclose(slopes, np.stack(rows), rtol=1e-12, atol=1e-16)


@every
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves_round_once(name: str, dtype: str) -> None:
    function, x, y = PAIRS[name]
    kind = dtype_named(dtype)
    halves = [a if a.dtype.kind == "i" else a.astype(kind) for a in (x, y)]
    doubles = [a if a.dtype.kind == "i" else a.astype(np.float64) for a in halves]
    for reduction in ("none", "mean", "sum"):
        found = function(*map(tj.asarray, halves), reduction=reduction)
        assert found.dtype == kind
        truth = function(*doubles, reduction=reduction).numpy()
        assert_agrees(TRANSCENDENTAL, found, truth, where=name)


@every
def test_keywords_in_any_order(name: str) -> None:
    function, x, y = PAIRS[name]
    takes_logits = "entropy" in name or name == "kl_divergence"
    names = ("logits", "labels") if takes_logits else ("predictions", "targets")
    found = function(**{names[1]: y, names[0]: tj.Variable(x)})
    np.testing.assert_array_equal(found, function(x, y))


@every
def test_an_unknown_reduction_is_refused_first(name: str) -> None:
    message = rf"^{name}: reduction is 'mean', 'sum' or 'none', got 'avg'"
    with pytest.raises(tj.ArgumentError, match=message):
        PAIRS[name][0](None, None, reduction="avg")


@every
def test_shapes_are_not_broadcast(name: str) -> None:
    function, x, y = PAIRS[name]
    with pytest.raises(tj.ShapeError, match=rf"^{name}: .*[fi]64\[1,4"):
        function(x, y[:1])
    with pytest.raises(tj.ShapeError, match=f"^{name}: weights are f64"):
        function(x, y, weights=np.ones(7))


def test_an_empty_batch() -> None:
    x = tj.zeros((0, 5))
    assert softmax_loss(x, x).shape == (0,)
    assert sparse_loss(x, np.zeros(0, int)).shape == (0,)
    assert float(nn.squared_error(x, x, reduction="sum")) == 0


@pytest.mark.parametrize(
    "name", ["softmax_cross_entropy", "sparse_softmax_cross_entropy"]
)
@pytest.mark.parametrize("smoothing", [-0.1, 1.5, math.nan])
def test_smoothing_is_a_share(name: str, smoothing: float) -> None:
    function, x, y = PAIRS[name]
    with pytest.raises(tj.ArgumentError, match=f"^{name}: label_smoothing is a share"):
        function(x, y, label_smoothing=smoothing)


def test_integers_as_dense_labels_keep_the_logits_dtype() -> None:
    logits = LOGITS[0].astype(np.float32)
    labels = np.eye(5, dtype=np.int64)[[1, 0, 4, 2]]
    found = softmax_loss(logits, labels)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, softmax_loss(logits, labels.astype("float32")))


def test_a_classifier_learns() -> None:
    rng = np.random.default_rng(5)
    x = rng.normal(size=(60, 2)).astype(np.float32)
    y = (x[:, 0] * x[:, 1] > 0).astype(np.int64)
    w1 = tj.Variable(rng.normal(size=(2, 16)).astype(np.float32))
    w2 = tj.Variable(rng.normal(size=(16, 2)).astype(np.float32) * 0.1)
    losses = []
    for _ in range(60):
        with tj.GradientTape() as tape:
            hidden = nn.layer_norm(nn.gelu(x @ w1))
            loss = nn.sparse_softmax_cross_entropy(hidden @ w2, y)
        for v, g in zip((w1, w2), tape.gradient(loss, (w1, w2)), strict=True):
            v.assign_sub(0.5 * g)
        losses.append(float(loss))
    assert losses[0] > 0.5
    assert losses[-1] < 0.25
