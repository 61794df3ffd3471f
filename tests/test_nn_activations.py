"""Activation functions: values, slopes, kinks, masks, and every way to call them.

The truth is a formula in extended precision; half precision must be that, rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from agreement import SUM, TRANSCENDENTAL, Truth, assert_agrees
from op_cases.references import wide_erf, wide_sigmoid
from scipy import special

import tapejit as tj
from tapejit.base.types import dtype_named

nn = tj.nn
Array = np.ndarray[Any, Any]
Function = Callable[..., tj.Tensor]
INF = math.inf


def wide_gelu(x: Array) -> Array:
    """x Φ(x); to the left of -2 by the continued fraction t + 1/(t + 2/(t + ...))."""
    inside = np.maximum(x, -2)
    near = (1 + wide_erf(inside * np.sqrt(np.longdouble(0.5)))) / 2
    t = np.maximum(-x, 2)
    fraction = t
    for n in range(400, 0, -1):
        fraction = t + n / fraction
    far = np.exp(-t * t / 2) / np.sqrt(8 * np.arctan(np.longdouble(1))) / fraction
    return x * np.where(x < -2, far, near)


def wide_gelu_by_tanh(x: Array) -> Array:
    pi = 4 * np.arctan(np.longdouble(1))
    bent = np.sqrt(2 / pi) * (x + np.longdouble("0.044715") * x**3)
    return x * wide_sigmoid(2 * bent)


def wide_softplus(x: Array) -> Array:
    return np.logaddexp(np.zeros_like(x), x)


class Activation(NamedTuple):
    """A function, its truth, its slope at chosen points, its second derivative.

    `slopes` maps points to slopes; `second` is "0" for what is linear piece by piece.
    `scale` is the size of the terms by which errors are judged, |out| if None.
    """

    function: Function
    truth: Callable[[Array], Array]
    slopes: dict[float, float]
    second: str = "c"
    scale: Callable[[Array], Array] | None = None


def where_positive(positive: Any, other: Any) -> Callable[[Array], Array]:
    return lambda x: np.where(x > 0, positive(x), other(x))


ACTIVATIONS: dict[str, Activation] = {
    "relu": Activation(
        nn.relu,
        where_positive(lambda x: x, np.zeros_like),
        {-1e4: 0, -1: 0, 0: 0, 1: 1, 1e4: 1, INF: 1, -INF: 0},
        "0",
    ),
    "relu6": Activation(
        nn.relu6,
        lambda x: np.clip(x, 0, 6),
        {-1: 0, 0: 0, 1: 1, 6: 0, 7: 0, INF: 0, -INF: 0},
        "0",
    ),
    "leaky_relu": Activation(
        nn.leaky_relu,
        where_positive(lambda x: x, lambda x: x * np.longdouble(0.01)),
        {-1e4: 0.01, -1: 0.01, 0: 0.01, 1: 1, 1e4: 1, INF: 1, -INF: 0.01},
        "0",
    ),
    "elu": Activation(
        nn.elu,
        where_positive(lambda x: x, np.expm1),
        {-1e4: 0, 0: 1, 1: 1, 1e4: 1, INF: 1, -INF: 0},
    ),
    "selu": Activation(
        nn.selu,
        where_positive(
            lambda x: x * np.longdouble("1.0507009873554804934"),
            lambda x: np.expm1(x) * np.longdouble("1.7580993408473768600"),
        ),
        {-1e4: 0, 0: 1.7580993408473769, 1: 1.0507009873554805},
    ),
    "celu": Activation(
        lambda x: nn.celu(x, 2.0),
        where_positive(lambda x: x, lambda x: 2 * np.expm1(x / 2)),
        {-1e4: 0, 0: 1, 1: 1, 1e4: 1, -INF: 0},
    ),
    "gelu": Activation(
        nn.gelu,
        wide_gelu,
        {-1e4: 0, 0: 0.5, 1: 1.0833154705876864, -1: -0.0833154705876864, 1e4: 1},
        scale=np.abs,
    ),
    "gelu by tanh": Activation(
        lambda x: nn.gelu(x, approximate=True),
        wide_gelu_by_tanh,
        {-1e4: 0, 0: 0.5, 1e4: 1},
        scale=np.abs,
    ),
    "silu": Activation(
        nn.silu,
        lambda x: x * wide_sigmoid(x),
        {-1e4: 0, 0: 0.5, 1: 0.9276705118714867, 1e4: 1},
    ),
    "mish": Activation(
        nn.mish,
        lambda x: x * np.tanh(wide_softplus(x)),
        {-1e4: 0, 0: 0.6, 1: 1.0490362200997922, 1e4: 1},
    ),
    "softplus": Activation(
        nn.softplus,
        wide_softplus,
        {-1e4: 0, 0: 0.5, 1: 0.7310585786300049, 1e4: 1, INF: 1, -INF: 0},
    ),
    "softsign": Activation(
        nn.softsign,
        lambda x: x / (1 + np.abs(x)),
        {-1e4: 1 / 10001**2, 0: 1, 1: 0.25, 1e4: 1 / 10001**2, INF: 0, -INF: 0},
    ),
    "log_sigmoid": Activation(
        nn.log_sigmoid,
        lambda x: -wide_softplus(-x),
        {-1e4: 1, 0: 0.5, 20: 2.0611536181902037e-09, 1e4: 0, INF: 0, -INF: 1},
    ),
    "hard_tanh": Activation(
        nn.hard_tanh,
        lambda x: np.clip(x, -1, 1),
        {-2: 0, -1: 1, 0: 1, 1: 1, 2: 0},
        "0",
    ),
    "hard_sigmoid": Activation(
        nn.hard_sigmoid,
        lambda x: np.clip(x + 3, 0, 6) / 6,
        {-4: 0, -3: 0, 0: 1 / 6, 3: 0, 4: 0},
        "0",
    ),
    "hard_swish": Activation(
        nn.hard_swish,
        lambda x: x * np.clip(x + 3, 0, 6) / 6,
        {-4: 0, 0: 0.5, 1: 5 / 6, 4: 1},
    ),
    "sigmoid": Activation(nn.sigmoid, wide_sigmoid, {0: 0.25, -1e4: 0, 1e4: 0}),
    "tanh": Activation(nn.tanh, np.tanh, {0: 1, -1e4: 0, 1e4: 0}),
}
every = pytest.mark.parametrize("name", ACTIVATIONS)
POINTS = np.concatenate(
    [np.linspace(-12, 12, 481), [-1e4, -300.0, -50.0, 50.0, 300.0, 1e4, -1e-5, 1e-5]]
)


@every
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_values_are_those_of_the_formula(name: str, dtype: str) -> None:
    case = ACTIVATIONS[name]
    x = POINTS.astype(dtype_named(dtype))
    with np.errstate(all="raise"):
        got = case.function(tj.asarray(x))
    assert got.dtype == x.dtype
    wide = x.astype(np.longdouble)
    with np.errstate(all="ignore"):
        value = case.truth(wide)
        scale = np.abs(value) if case.scale is None else case.scale(wide)
    # Of 16 terms: 4 eps of their size.
    assert_agrees(SUM, got, Truth(value, 16, scale), where=name)


EXACT_TAILS = sorted(set(ACTIVATIONS) - {"leaky_relu"})


@pytest.mark.parametrize("name", EXACT_TAILS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_rounds_once(name: str, dtype: str) -> None:
    x = POINTS.astype(dtype_named(dtype))
    with np.errstate(all="ignore"):
        truth = ACTIVATIONS[name].truth(x.astype(np.longdouble))
    got = ACTIVATIONS[name].function(tj.asarray(x))
    assert_agrees(TRANSCENDENTAL, got, truth, where=name)


@every
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_slopes_at_kinks_and_far_out(name: str, dtype: str) -> None:
    slopes = ACTIVATIONS[name].slopes
    x = tj.Variable(np.array(list(slopes), dtype))
    with tj.GradientTape() as tape:
        y = ACTIVATIONS[name].function(x)
    found = tape.gradient(y, x)
    assert found.dtype == x.dtype
    eps = float(np.finfo(dtype).eps)
    expected = np.array(list(slopes.values()))
    np.testing.assert_allclose(found, expected, rtol=8 * eps, atol=1e-45)


@every
@pytest.mark.parametrize("mode", ["reverse", "forward"])
def test_first_and_second_derivatives(name: str, mode: str) -> None:
    x = np.array([-4.3, -2.1, -0.7, -0.2, 0.3, 0.8, 1.9, 3.7, 6.4])
    tj.testing.check_grads(ACTIVATIONS[name].function, [x], order=2, modes=[mode])


@every
def test_the_second_derivative_of_a_piecewise_line_is_zero_not_none(name: str) -> None:
    case = ACTIVATIONS[name]
    x = tj.Variable([-7.0, -0.5, 0.0, 0.5, 7.0])
    with tj.GradientTape() as outer:
        with tj.GradientTape() as inner:
            y = case.function(x)
        slope = inner.gradient(y, x)
    second = outer.gradient(slope, x)
    assert second is not None
    if case.second == "0":
        assert not second.numpy().any()


@every
def test_every_kind_of_operand(name: str) -> None:
    function = ACTIVATIONS[name].function
    x = np.array([[-1.5, 0.0], [0.5, 2.0]], np.float32)
    expected = function(tj.asarray(x))
    for given in (tj.Variable(x), x, x.tolist()):
        found = function(given)
        assert type(found) is tj.Tensor
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, expected)
    assert function(0.5).shape == ()
    np.testing.assert_array_equal(function(0.5), expected[1, 0])
    assert function(tj.zeros((0, 3))).shape == (0, 3)
    np.testing.assert_allclose(
        function(tj.asarray([-1, 2])), function(tj.asarray([-1.0, 2.0]))
    )


@every
def test_vmap_is_a_loop(name: str) -> None:
    function = ACTIVATIONS[name].function
    x = np.linspace(-3, 3, 12).reshape(3, 4)
    found = tj.vmap(lambda row: tj.grad(lambda r: tj.sum(function(r)))(row))(x)
    rows = [tj.grad(lambda r: tj.sum(function(r)))(tj.asarray(row)) for row in x]
    np.testing.assert_allclose(found, np.stack(rows), rtol=1e-15)


@every
def test_nan_stays(name: str) -> None:
    found = ACTIVATIONS[name].function(tj.asarray([math.nan, 1.0])).numpy()
    np.testing.assert_array_equal(np.isnan(found), [True, False])


@pytest.mark.parametrize("name", sorted(set(ACTIVATIONS) - {"tanh", "gelu by tanh"}))
def test_complex_numbers_are_refused_by_name(name: str) -> None:
    with pytest.raises(tj.DTypeError) as caught:
        ACTIVATIONS[name].function(tj.asarray(1j))
    assert caught.value.op == name


def test_rectifiers_keep_integers() -> None:
    x = tj.asarray([-3, 2, 9])
    assert nn.relu(x).dtype == x.dtype
    np.testing.assert_array_equal(nn.relu6(x), [0, 2, 6])


def test_limits_of_what_has_some() -> None:
    ends = tj.asarray([-INF, INF])
    np.testing.assert_array_equal(nn.softsign(ends), [-1, 1])
    np.testing.assert_array_equal(nn.softplus(ends), [0, INF])
    np.testing.assert_array_equal(nn.log_sigmoid(ends), [-INF, 0])
    np.testing.assert_array_equal(nn.elu(ends), [-1, INF])


def test_a_negative_slope_can_be_learned() -> None:
    x = tj.asarray([[-2.0, 3.0], [-4.0, -1.0]])
    slope = tj.Variable([0.1, 0.2])
    with tj.GradientTape() as tape:
        y = nn.leaky_relu(x, slope)
    np.testing.assert_allclose(y, [[-0.2, 3.0], [-0.4, -0.2]], rtol=1e-6)
    np.testing.assert_array_equal(tape.gradient(y, slope), [-6, -1])
    alpha = tj.Variable(2.0)
    with tj.GradientTape() as tape:
        y = nn.elu(tj.asarray([-1.0, 1.0]), alpha)
    np.testing.assert_allclose(tape.gradient(y, alpha), np.expm1(-1), rtol=1e-6)


def test_the_left_tail_of_gelu_keeps_its_digits() -> None:
    x = np.linspace(-12, 0, 241, dtype=np.float32)
    truth = wide_gelu(x.astype(np.longdouble))
    assert_agrees(TRANSCENDENTAL, nn.gelu(x), truth, where="gelu")


def test_swish_is_silu() -> None:
    assert nn.swish is nn.silu


# glu


def test_glu_gates_one_half_with_the_other() -> None:
    x = np.random.default_rng(1).normal(size=(3, 4, 6))
    for axis in (1, -1, 2):
        left, right = np.split(x, 2, axis=axis)
        expected = left * special.expit(right)
        np.testing.assert_allclose(nn.glu(x, axis), expected, rtol=1e-14)
    tj.testing.check_grads(lambda x: nn.glu(x, 1), [x])


def test_glu_of_an_odd_axis() -> None:
    with pytest.raises(tj.ShapeError, match=r"glu: axis 0 of f32\[3,2\]"):
        nn.glu(tj.ones((3, 2)), axis=0)
    with pytest.raises(tj.AxisError):
        nn.glu(tj.ones((3, 2)), axis=2)


# softmax


RNG = np.random.default_rng(2)
TABLE = RNG.normal(size=(3, 4, 5)) * 3


@pytest.mark.parametrize("axis", [-1, 0, 1, (0, 2), None])
def test_softmax_along_any_axis(axis: Any) -> None:
    expected = special.softmax(TABLE, axis=axis)
    np.testing.assert_allclose(nn.softmax(TABLE, axis), expected, rtol=1e-14)
    logs = special.log_softmax(TABLE, axis=axis)
    np.testing.assert_allclose(nn.log_softmax(TABLE, axis), logs, rtol=1e-14)
    np.testing.assert_allclose(
        nn.logsumexp(TABLE, axis=axis), special.logsumexp(TABLE, axis=axis), rtol=1e-14
    )


@pytest.mark.parametrize("function", [nn.softmax, nn.log_softmax])
@pytest.mark.parametrize("axis", [-1, 0, (0, 2)])
def test_softmax_has_right_derivatives(function: Function, axis: Any) -> None:
    tj.testing.check_grads(lambda x: function(x, axis), [TABLE[:2, :2, :3]], order=3)


@pytest.mark.parametrize("shift", [0.0, 1e4, -1e4])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_softmax_does_not_depend_on_the_level(shift: float, dtype: str) -> None:
    x = np.array([0.0, 1.0, -2.0, 0.5], dtype)
    far = tj.asarray(x + np.asarray(shift, dtype))
    np.testing.assert_array_equal(nn.softmax(far), nn.softmax(x))
    np.testing.assert_array_equal(nn.log_softmax(far), nn.log_softmax(x))


def test_log_softmax_keeps_its_digits_where_softmax_has_none() -> None:
    x = np.array([1e4, -1e4, 9999.0], np.float32)
    rest = np.log1p(np.exp(-1.0))
    found = nn.log_softmax(x)
    np.testing.assert_allclose(found, [-rest, -2e4 - rest, -1 - rest], rtol=1e-6)
    np.testing.assert_allclose(
        nn.log_softmax(np.array([30.0, 0.0])), special.log_softmax([30.0, 0.0])
    )


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_softmax_of_halves_rounds_once(dtype: str) -> None:
    x = TABLE.astype(dtype_named(dtype))
    for function, truth in (
        (nn.softmax, special.softmax),
        (nn.log_softmax, special.log_softmax),
    ):
        found = function(tj.asarray(x), -1)
        assert found.dtype == x.dtype
        assert_agrees(TRANSCENDENTAL, found, truth(x.astype(np.float64), axis=-1))


def test_sums_of_many_halves() -> None:
    """65504 is the largest float16, and 2048 + 1 is 2048."""
    found = nn.softmax(tj.zeros(4096, dtype="float16"))
    np.testing.assert_array_equal(found, np.full(4096, 2.0**-12))


def gradient_of(function: Function, x: Any, g: Any) -> Array:
    v = tj.Variable(x)
    with tj.GradientTape() as tape:
        y = function(v)
    return tape.gradient(y, v, output_gradients=tj.asarray(g)).numpy()


def test_masked_elements_have_no_share_and_no_gradient() -> None:
    masked = [1.0, -INF, 2.0]
    plain = special.softmax([1.0, 2.0])
    np.testing.assert_allclose(nn.softmax(masked), np.insert(plain, 1, 0), rtol=1e-6)
    g = [0.3, 5.0, -0.2]
    found = gradient_of(nn.softmax, masked, g)
    expected = plain * (np.array([0.3, -0.2]) - plain @ [0.3, -0.2])
    np.testing.assert_allclose(found, np.insert(expected, 1, 0), rtol=1e-5, atol=1e-7)
    found = gradient_of(nn.log_softmax, masked, [1.0, 0.0, 0.0])
    expected = np.array([1, 0]) - plain
    np.testing.assert_allclose(found, np.insert(expected, 1, 0), rtol=1e-5)


def test_the_hessian_with_a_mask_is_finite() -> None:
    def loss(x: tj.Tensor) -> tj.Tensor:
        return tj.sum(tj.square(nn.softmax(x)))

    x = np.array([0.4, -0.3, 1.1])
    small = tj.hessian(loss)(x).numpy()
    masked = tj.hessian(loss)(np.array([0.4, -INF, -0.3, 1.1])).numpy()
    assert not masked[1].any()
    assert not masked[:, 1].any()
    rest = np.ix_([0, 2, 3], [0, 2, 3])
    np.testing.assert_allclose(masked[rest], small, rtol=1e-12, atol=1e-16)


def test_a_row_that_is_masked_entirely_is_zero() -> None:
    x = [[-INF, -INF], [0.0, 0.0]]
    np.testing.assert_array_equal(nn.softmax(x), [[0, 0], [0.5, 0.5]])
    np.testing.assert_array_equal(nn.log_softmax(x)[0], [-INF, -INF])
    g = [[1.0, 2.0], [1.0, 3.0]]
    np.testing.assert_array_equal(gradient_of(nn.softmax, x, g), [[0, 0], [-0.5, 0.5]])
    assert np.isfinite(gradient_of(nn.log_softmax, x, g)).all()


def test_nan_spoils_its_own_row() -> None:
    found = nn.softmax([[math.nan, 0.0], [0.0, 0.0]]).numpy()
    np.testing.assert_array_equal(found, [[math.nan, math.nan], [0.5, 0.5]])


def test_softmax_of_nothing() -> None:
    for shape in ((0, 3), (3, 0)):
        for function in (nn.softmax, nn.log_softmax):
            v = tj.Variable(np.zeros(shape, np.float32))
            with tj.GradientTape() as tape:
                y = function(v)
            assert y.shape == shape
            assert tape.gradient(y, v).shape == shape


def test_softmax_along_an_axis_that_is_not_there() -> None:
    with pytest.raises(tj.AxisError, match=r"^softmax: axis 1 does not exist"):
        nn.softmax([1.0, 2.0], axis=1)
    with pytest.raises(tj.AxisError, match=r"^log_softmax: .*rank 0"):
        nn.log_softmax(1.0)


def test_what_is_subtracted_is_a_constant_to_tapes() -> None:
    v = tj.Variable([1.0, 2.0])
    with tj.GradientTape() as tape:
        y = nn.log_softmax(v)
    names = [node.op.name for node in tape.graph(y).nodes if node.inputs]
    assert names == ["read", "sub", "exp", "sum", "maximum", "log", "sub"]


@pytest.mark.parametrize("function", [nn.softmax, nn.log_softmax])
def test_softmax_under_vmap(function: Function) -> None:
    for axis in (0, 1, -1):
        found = tj.vmap(lambda x, axis=axis: function(x, axis))(TABLE)
        rows = np.stack([function(x, axis) for x in TABLE])
        np.testing.assert_allclose(found, rows, rtol=1e-15)


# Names


@pytest.mark.parametrize(("name", "line"), nn.SPELLINGS.items(), ids=nn.SPELLINGS)
def test_a_foreign_name_leads_to_ours(name: str, line: str) -> None:
    assert name not in nn.__all__
    x, v = tj.asarray([[1.0, 2.0], [3.0, 5.0]]), tj.Variable([0.5, 0.25])
    eval(line, {"tj": tj, "x": x, "v": v, "i": tj.asarray([1, 0])})
    with pytest.raises(AttributeError, match=f"{name}.*; write ") as caught:
        getattr(nn, name)
    assert line in str(caught.value)


def test_a_name_nobody_knows() -> None:
    with pytest.raises(AttributeError) as caught:
        _ = nn.frobnicate
    assert str(caught.value) == "tapejit.nn has no attribute 'frobnicate'"
