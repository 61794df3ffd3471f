"""Loss scaling and policies of mixed precision (lines 61 and 65)."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tapejit as tj
from tapejit.tensor import mixed_precision

from .both_modes import COMPOSED, assert_modes, note, note_error, ways

POLICIES = ("mixed_float16", "mixed_bfloat16")
HALVES = {name: name.removeprefix("mixed_") for name in POLICIES}


@pytest.fixture(autouse=True)
def _said_already(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is said once, that a policy is slow on this processor, has been said."""
    monkeypatch.setattr(mixed_precision, "_TOLD", set(HALVES.values()))


def dtype_of(x: Any) -> str:
    return str(np.dtype(x.dtype))


# 61: loss scaling

Scaler = tj.optimizers.LossScaleOptimizer


def scaled(
    inner: Callable[[], Any] = lambda: tj.optimizers.SGD(0.5, momentum=0.5),
    **options: Any,
) -> Callable[[], Any]:
    """An optimizer, a variable, and a gradient of the loss times the scale."""

    def setup() -> Any:
        optimizer = Scaler(inner(), **{"initial_scale": 8.0, **options})
        v = tj.Variable([1.0, 2.0])
        optimizer.build([v])
        return optimizer, v, tj.asarray([8.0, -16.0])

    return setup


def kept_by(optimizer: Any, v: Any, *rest: Any) -> list[Any]:
    return [v, *optimizer.variables]


def test_s61_the_loss_is_scaled_and_gradients_are_divided() -> None:
    def program(optimizer: Any, v: Any, x: Any) -> Any:
        with tj.GradientTape() as tape:
            loss = tj.sum(v * x)
            target = optimizer.scale_loss(loss)
        gradients = tape.gradient(target, [v])
        optimizer.apply_gradients(zip(gradients, [v], strict=True))
        return target, loss, gradients[0]

    plain = assert_modes(program, scaled(), state=kept_by, traces=None)
    assert float(plain.result[0]) == 8 * float(plain.result[1]) == -192.0
    np.testing.assert_array_equal(plain.result[2], [64.0, -128.0])
    np.testing.assert_array_equal(plain.variables[0], [1 - 4.0, 2 + 8.0])


def test_s61_a_loss_in_halves_is_scaled_in_float32() -> None:
    def program(optimizer: Any, v: Any, x: Any) -> Any:
        return optimizer.scale_loss(tj.sum(v * x).astype("float16"))

    made = scaled(initial_scale=2.0**15)
    plain = assert_modes(program, made, state=kept_by, traces=None)
    assert dtype_of(plain.result) == "float32"
    assert float(plain.result) == -24.0 * 2**15  # infinite as a float16


def test_s61_gradients_are_divided_before_they_are_clipped() -> None:
    def program(optimizer: Any, v: Any, x: Any) -> Any:
        optimizer.apply_gradients([(x * 8.0, v)])
        return v.value()

    def sgd() -> Any:
        return tj.optimizers.SGD(1.0, global_clipnorm=2.0)

    plain = assert_modes(program, scaled(sgd), state=kept_by, traces=None)
    direction = np.float32([8.0, -16.0]) / np.sqrt(np.float32(320.0))
    np.testing.assert_allclose(plain.result, [1.0, 2.0] - 2 * direction, rtol=1e-6)

    def mild(optimizer: Any, v: Any, x: Any) -> Any:
        optimizer.apply_gradients([(x * 0.5, v)])  # its norm is 8.9, divided 1.1
        return v.value()

    plain = assert_modes(mild, scaled(sgd), state=kept_by, traces=None)
    np.testing.assert_array_equal(plain.result, [0.5, 3.0])


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize(
    "inner",
    [
        lambda: tj.optimizers.SGD(0.5, momentum=0.5),
        lambda: tj.optimizers.Adam(0.5, global_clipnorm=1.0),
        lambda: tj.optimizers.AdamW(0.5, weight_decay=0.1),
        lambda: tj.optimizers.Adam(tj.optimizers.schedules.ExponentialDecay(1, 2, 0.5)),
    ],
    ids=["SGD", "Adam, clipped", "AdamW", "Adam, by a schedule"],
)
def test_s61_a_step_that_is_not_finite_is_skipped_whole(
    inner: Callable[[], Any], bad: float
) -> None:
    def program(optimizer: Any, v: Any, x: Any) -> Any:
        optimizer.apply_gradients([(x, v)])
        before = [y.value() for y in (v, *optimizer.inner.variables)]
        optimizer.apply_gradients([(x + tj.asarray([0.0, bad]), v)])
        return before, [y.value() for y in (v, *optimizer.inner.variables)]

    plain = assert_modes(program, scaled(inner), state=kept_by, traces=None)
    for before, after in zip(*plain.result, strict=True):
        np.testing.assert_array_equal(before, after)
    _, scale, good, told, steps, *_ = plain.variables
    assert (scale, good, told, steps) == (4.0, 0, 0, 1)


def test_s61_one_bad_gradient_skips_the_step_of_all_variables() -> None:
    def setup() -> Any:
        return Scaler(tj.optimizers.SGD(1.0), 8.0), tj.Variable(1.0), tj.Variable(2.0)

    def program(optimizer: Any, v: Any, w: Any) -> Any:
        optimizer.apply_gradients([(tj.asarray(1.0), v), (tj.asarray(tj.nan), w)])
        return v.value(), w.value(), optimizer.loss_scale.value()

    assert_modes(
        program,
        setup,
        expected=(1.0, 2.0, 4.0),
        state=lambda optimizer, v, w: [v, w, *optimizer.variables],
        traces=None,
    )


def test_s61_the_scale_is_doubled_after_so_many_good_steps() -> None:
    def program(optimizer: Any, v: Any, x: Any) -> Any:
        scales = []
        for factor in (1.0, 1.0, np.inf, 1.0, 1.0, 1.0, 1.0):
            optimizer.apply_gradients([(x * factor, v)])
            scales.append(optimizer.loss_scale.value())
        return scales

    assert_modes(
        program,
        scaled(dynamic_growth_steps=3),
        expected=[8.0, 8.0, 4.0, 4.0, 4.0, 8.0, 8.0],
        state=kept_by,
        traces=None,
    )


def test_s61_the_scale_never_becomes_infinite() -> None:
    def program(optimizer: Any, v: Any, x: Any) -> Any:
        for _ in range(3):
            optimizer.apply_gradients([(x, v)])
        return optimizer.loss_scale.value()

    made = scaled(dynamic_growth_steps=1, initial_scale=2.0**125)
    assert_modes(program, made, expected=2.0**126, state=kept_by, traces=None)


def test_s61_at_its_bound_the_scale_says_so_once() -> None:
    def program(optimizer: Any, v: Any, x: Any) -> Any:
        optimizer.apply_gradients([(x * tj.inf, v)])
        return v.value(), optimizer.loss_scale.value(), optimizer.iterations.value()

    for name, call in ways(program, scaled(initial_scale=4.0)):
        args = scaled(initial_scale=4.0)()
        said = []
        for _ in range(5):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                v, scale, steps = call(*args)
            said.append([str(x.message) for x in caught])
        assert [len(x) for x in said] == [0, 1, 0, 0, 0], name
        assert "the loss scale is down to 1" in said[1][0]
        assert (float(scale), int(steps)) == (1.0, 0)
        np.testing.assert_array_equal(v, [1.0, 2.0])


def test_s61_minimize_scales_what_it_differentiates() -> None:
    def program(optimizer: Any, v: Any, x: Any) -> Any:
        first = optimizer.minimize(lambda: tj.sum(v * x), [v])
        with tj.GradientTape() as tape:
            loss = v * x
        return first, optimizer.minimize(loss, [v], tape), v.value()

    def sgd() -> Any:
        return tj.optimizers.SGD(0.5)

    plain = assert_modes(program, scaled(sgd), state=kept_by, traces=None)
    assert float(plain.result[0]) == -24.0
    np.testing.assert_array_equal(plain.result[2], [1 - 8.0, 2 + 16.0])


def test_s61_what_is_wrong_is_said_and_nothing_has_changed() -> None:
    def program(optimizer: Any, v: Any, x: Any) -> Any:
        note_error(lambda: optimizer.apply_gradients([(None, v)]))
        note_error(lambda: optimizer.apply_gradients([(x[:1], v)]))
        note_error(lambda: optimizer.apply_gradients([(x, v), (x, v)]))
        return optimizer.loss_scale.value()

    assert_modes(
        program,
        scaled(),
        expected=8.0,
        state=kept_by,
        traces=None,
        errors=[
            (tj.ArgumentError, "no gradient for any variable"),
            (tj.ShapeError, "has shape"),
            (tj.ArgumentError, "there twice"),
        ],
    )


# 65: policies


def operands() -> Any:
    x = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
    return tj.asarray(x), tj.Variable(x.T * 0.75)


@pytest.mark.parametrize("policy", POLICIES)
def test_s65_products_are_computed_in_halves_and_sums_are_not(policy: str) -> None:
    def program(x: Any, v: Any) -> Any:
        with tj.mixed_precision.policy(policy):
            product = x @ v
            results = {
                "product": product,
                "conv": tj.nn.conv1d(x[None], v[None, :, :]),
                "elementwise": tj.exp(product) + product,
                "with float32": product + v[0, :3],
                "sum": tj.sum(product, axis=0),
                "mean": tj.mean(product),
                "prod": tj.prod(product),
                "var": tj.var(product),
                "logsumexp": tj.logsumexp(product),
                "cumulative sum": tj.cumulative_sum(product, axis=0),
                "softmax": tj.nn.softmax(product),
                "log softmax": tj.nn.log_softmax(product),
                "norm": tj.linalg.norm(product),
                "layer norm": tj.nn.layer_norm(product),
                "loss": tj.nn.squared_error(product, product * 0.5),
                "cross entropy": tj.nn.sparse_softmax_cross_entropy(product, [0, 1, 2]),
                "segments": tj.segment_sum(product, [0, 0, 1]),
                "largest": tj.max(product),
            }
        note({name: dtype_of(y) for name, y in results.items()})
        return list(results.values())

    half = HALVES[policy]
    in_half = {"product", "conv", "elementwise", "largest"}
    plain = assert_modes(program, operands, op_class=COMPOSED)
    (noted,) = plain.notes
    assert noted == {name: half if name in in_half else "float32" for name in noted}


@pytest.mark.parametrize("policy", POLICIES)
def test_s65_each_product_is_rounded_once(policy: str) -> None:
    def program(x: Any, v: Any) -> Any:
        with tj.mixed_precision.policy(policy):
            return x @ v

    x, v = operands()
    half = tj.asarray(0.0).astype(HALVES[policy]).dtype
    wide = [np.asarray(y).astype(half).astype(np.float32) for y in (x, v)]
    assert_modes(program, operands, expected=(wide[0] @ wide[1]).astype(half))


@pytest.mark.parametrize("policy", POLICIES)
def test_s65_gradients_have_the_dtype_of_the_variable(policy: str) -> None:
    def program(x: Any, v: Any) -> Any:
        with tj.mixed_precision.policy(policy), tj.GradientTape(persistent=True) as t:
            t.watch(x)
            loss = tj.mean(tj.nn.relu(x @ v) ** 2)
        found = t.gradient(loss, {"v": v, "x": x})
        note({name: dtype_of(g) for name, g in found.items()})
        return found, loss

    plain = assert_modes(program, operands, op_class=COMPOSED)
    assert plain.notes == [{"v": "float32", "x": "float32"}]


@pytest.mark.parametrize("policy", POLICIES)
def test_s65_a_policy_that_has_ended_does_not_change_what_was_recorded(
    policy: str,
) -> None:
    """The adjoint of float32 products is in float32 under a policy, and recorded so."""

    def program(x: Any, v: Any) -> Any:
        with tj.GradientTape() as outer:
            with tj.GradientTape() as inner:
                loss = tj.sum((x @ v) ** 3)
            with tj.mixed_precision.policy(policy):
                first = inner.gradient(loss, v)
        note(dtype_of(first))
        return first, outer.gradient(first, v)

    def without(x: Any, v: Any) -> Any:
        with tj.GradientTape() as outer:
            with tj.GradientTape() as inner:
                loss = tj.sum((x @ v) ** 3)
            first = inner.gradient(loss, v)
        return first, outer.gradient(first, v)

    plain = assert_modes(program, operands)
    assert plain.notes == ["float32"]
    for found, wanted in zip(plain.result, without(*operands()), strict=True):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("policy", POLICIES)
def test_s65_second_order_and_tangents_pass_through_the_casts(policy: str) -> None:
    def program(x: Any, v: Any) -> Any:
        def loss(w: Any) -> Any:
            with tj.mixed_precision.policy(policy):
                return tj.sum((x @ w) ** 2)

        w = v.value()
        product = tj.hvp(loss, w, w)
        value, tangent = tj.jvp(loss, (w,), (w,))
        note([dtype_of(y) for y in (product, value, tangent)])
        return product, value, tangent

    plain = assert_modes(program, operands, op_class=COMPOSED)
    assert plain.notes == [["float32"] * 3]


@pytest.mark.parametrize("policy", POLICIES)
def test_s65_what_is_no_float32_is_computed_as_ever(policy: str) -> None:
    def program(n: Any, d: Any, c: Any) -> Any:
        with tj.mixed_precision.policy(policy):
            results = n @ n, d @ d, c @ c, tj.sum(n), tj.sum(d), n @ d
        note([dtype_of(y) for y in results])
        return results

    def setup() -> Any:
        x = np.arange(4).reshape(2, 2)
        return tj.asarray(x), tj.asarray(x / 3), tj.asarray(x * 1j)

    wanted = ["int64", "float64", "complex128", "int64", "float64", "float64"]
    plain = assert_modes(program, setup)
    assert plain.notes == [wanted]
    np.testing.assert_array_equal(plain.result[0], [[2, 3], [6, 11]])


def test_s65_factorisations_are_computed_as_ever() -> None:
    def program(x: Any, v: Any) -> Any:
        with tj.mixed_precision.policy("mixed_float16"):
            found = tj.linalg.lstsq(v, x.mT[:, 0]).x, tj.linalg.qr(x).R
        note([dtype_of(y) for y in found])
        return found

    plain = assert_modes(program, operands)
    assert plain.notes == [["float32"] * 2]
    x, v = operands()
    np.testing.assert_array_equal(plain.result[0], tj.linalg.lstsq(v, x.mT[:, 0]).x)
    np.testing.assert_array_equal(plain.result[1], tj.linalg.qr(x).R)


def test_s65_the_dtype_that_is_asked_for_is_given() -> None:
    def program(x: Any, v: Any) -> Any:
        with tj.mixed_precision.policy("mixed_float16"):
            y = x @ v
            kinds = [f(y, dtype="float16").dtype for f in (tj.sum, tj.mean, tj.var)]
        note([str(kind) for kind in kinds])
        return y

    assert_modes(program, operands, notes=[["float16"] * 3])


def test_s65_a_policy_is_part_of_the_signature_of_a_call() -> None:
    @tj.function
    def product(x: Any, v: Any) -> Any:
        return x @ v

    x, v = operands()
    kinds = []
    for name in ("float32", *POLICIES, "float32", *POLICIES, "float32"):
        with tj.mixed_precision.policy(name):
            kinds.append(dtype_of(product(x, v)))
            assert kinds[-1] == dtype_of(x @ v)
    assert kinds[:3] == ["float32", "float16", "bfloat16"]
    assert kinds[3:6] == kinds[:3]
    assert product.trace_count == 3

    tj.mixed_precision.set_policy("mixed_bfloat16")
    try:
        assert dtype_of(product(x, v)) == "bfloat16"
    finally:
        tj.mixed_precision.set_policy("float32")
    assert dtype_of(product(x, v)) == "float32"
    assert product.trace_count == 3


@pytest.mark.parametrize("policy", POLICIES)
def test_s65_layers_compute_by_their_own_policy_or_the_one_in_force(
    policy: str,
) -> None:
    other = next(name for name in POLICIES if name != policy)

    def setup() -> Any:
        tj.random.set_seed(1)
        layers = [
            tj.nn.Dense(3, "relu", input_size=4, policy=policy),
            tj.nn.Dense(3, input_size=4, policy="float32"),
            tj.nn.Dense(3, input_size=4),
            tj.nn.Sequential([tj.nn.Dense(3, input_size=4)], policy=policy),
            tj.nn.MultiHeadAttention(2, 3, output_size=4, policy=policy),
            tj.nn.LayerNorm(input_size=4),
        ]
        layers[4](tj.ones((1, 3, 4)), tj.ones((1, 3, 4)))
        return layers, tj.asarray(np.linspace(-1, 1, 12, dtype="f4").reshape(1, 3, 4))

    def program(layers: Any, x: Any) -> Any:
        with tj.mixed_precision.policy(other):
            found = [y(x, x) if at == 4 else y(x) for at, y in enumerate(layers)]
        note([dtype_of(y) for y in found])
        return found

    plain = assert_modes(
        program, setup, op_class=COMPOSED, traces=None, state=lambda *args: []
    )
    mine, others = HALVES[policy], HALVES[other]
    assert plain.notes == [[mine, "float32", others, mine, mine, "float32"]]


@pytest.mark.parametrize("policy", POLICIES)
def test_s65_custom_gradients_and_recomputed_ones_follow_the_policy(
    policy: str,
) -> None:
    @tj.custom_gradient
    def product(x: Any, w: Any) -> Any:
        out = x @ w
        return out, lambda g: (g @ tj.matrix_transpose(w), tj.matrix_transpose(x) @ g)

    @tj.recompute_grad
    def again(x: Any, w: Any) -> Any:
        return tj.tanh(x @ w)

    def program(x: Any, v: Any) -> Any:
        with tj.mixed_precision.policy(policy):
            with tj.GradientTape(persistent=True) as tape:
                y = product(x.astype(HALVES[policy]), v.value().astype(HALVES[policy]))
                z = again(x, v)
                loss = tj.sum(y) + tj.sum(z)
            return y, z, tape.gradient(loss, v)

    plain = assert_modes(program, operands, op_class=COMPOSED)
    assert dtype_of(plain.result[1]) == HALVES[policy]
    assert dtype_of(plain.result[2]) == "float32"


def test_s65_a_policy_that_does_not_exist_is_an_error() -> None:
    def program(x: Any, v: Any) -> Any:
        note_error(lambda: tj.mixed_precision.policy("bfloat16"))
        note_error(lambda: tj.mixed_precision.set_policy("mixed"))
        note(tj.mixed_precision.get_policy())
        return x @ v

    plain = assert_modes(program, operands)
    first, second, policy = plain.notes
    names = "'float32', 'mixed_float16', 'mixed_bfloat16'"
    assert first.kind is second.kind is tj.ArgumentError
    assert names in first.text
    assert names in second.text
    assert "write 'mixed_bfloat16'" in first.text
    assert policy == "float32"
