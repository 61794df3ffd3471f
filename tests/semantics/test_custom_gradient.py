"""Functions with a gradient of their own (lines 19 and 41 to 44)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

import tapejit as tj

from .custom_gradients import MODES, gradient, log1pexp


def tenfold(*values: Any) -> Any:
    """The arguments themselves, with ten times their gradient."""

    @tj.custom_gradient
    def scaled(*xs: Any) -> Any:
        return list(xs), lambda *dys: [10 * dy for dy in dys]

    return scaled(*values)


# Line 41


def test_s41_the_gradient_is_what_grad_fn_returns(mode: Any) -> None:
    x = tj.asarray(3.0)
    (g,) = gradient(mode(lambda x: tenfold(x)[0] * 2), x)
    assert float(g) == 20.0


def test_s41_the_value_is_the_functions(mode: Any) -> None:
    assert float(mode(log1pexp)(tj.asarray(0.0))) == pytest.approx(np.log(2), 1e-6)
    assert type(log1pexp(tj.asarray(0.0))) is tj.Tensor


def test_s41_a_stable_gradient_where_the_ordinary_one_is_nan(mode: Any) -> None:
    (g,) = gradient(mode(log1pexp), tj.asarray(100.0))
    assert float(g) == 1.0


def test_s41_one_cotangent_for_each_flat_output(mode: Any) -> None:
    class Pair(NamedTuple):
        first: Any
        rest: Any

    seen: list[Any] = []

    @tj.custom_gradient
    def f(x: Any) -> Any:
        def grad_fn(*dys: Any) -> Any:
            seen.append([(dy.shape, dy.dtype) for dy in dys])
            return dys[0] + 100 * tj.sum(dys[1]) + 1000 * dys[2]

        return Pair(x, {"b": x * 3, "a": tj.stack([x, x])}), grad_fn

    def total(x: Any) -> Any:
        out = f(x)
        assert isinstance(out, Pair)
        assert list(out.rest) == ["b", "a"]
        return 2 * out.first + tj.sum(out.rest["a"])

    (g,) = gradient(mode(total), tj.asarray(1.0))
    assert float(g) == 2 + 100 * 2, "zeros for the output that is not used"
    f32 = np.dtype("float32")
    assert seen[0] == [((), f32), ((2,), f32), ((), f32)]


def test_s41_outputs_that_are_integers_get_zeros_too(mode: Any) -> None:
    @tj.custom_gradient
    def f(x: Any) -> Any:
        def grad_fn(dy: Any, dn: Any) -> Any:
            return 5 * dy + tj.astype(dn, "float32")

        return (x * 2, tj.astype(x, "int32")), grad_fn

    (g,) = gradient(mode(lambda x: f(x)[0]), tj.asarray(1.5))
    assert float(g) == 5.0


def test_s41_grad_fn_is_not_called_when_nothing_flows_back() -> None:
    calls: list[Any] = []

    @tj.custom_gradient
    def f(x: Any) -> Any:
        return x * 2, lambda dy: calls.append(dy) or dy

    x = tj.Variable(1.0)
    f(x)
    with tj.GradientTape() as tape:
        f(x)
        y = x * 3
    assert float(tape.gradient(y, x)) == 3.0
    assert calls == []


@pytest.mark.parametrize("returned", [1, 3])
def test_s41_a_wrong_number_of_gradients(returned: int, mode: Any) -> None:
    @tj.custom_gradient
    def product(a: Any, b: Any) -> Any:
        return a * b, lambda dy: [dy] * returned

    with pytest.raises(ValueError, match=rf"product.*{returned} gradients.*2 arg"):
        gradient(mode(product), tj.asarray(1.0), tj.asarray(2.0))


@pytest.mark.parametrize(
    "returned", [1.0, (1.0,), (1.0, None, None), [1.0, abs], (1.0, 2.0), None]
)
def test_s41_anything_but_a_pair_is_refused(returned: Any) -> None:
    @tj.custom_gradient
    def wrong(x: Any) -> Any:
        return returned

    with pytest.raises(TypeError, match=r"wrong.*grad_fn"):
        wrong(1.0)


def test_s41_something_that_is_no_function() -> None:
    with pytest.raises(TypeError, match="takes a function, got int"):
        tj.custom_gradient(3)  # type: ignore[arg-type]  # what is tested


def test_s41_structures_as_arguments(mode: Any) -> None:
    @tj.custom_gradient
    def f(parts: Any, c: Any) -> Any:
        value = parts["a"] * parts["b"][0] * c
        return value, lambda dy: ({"a": dy, "b": [2 * dy]}, 3 * dy)

    parts = {"b": [tj.asarray(1.0)], "a": tj.asarray(2.0)}
    c = tj.asarray(3.0)
    with tj.GradientTape() as tape:
        tape.watch([parts, c])
        y = mode(f)(parts, c)
    got = tape.gradient(y, [parts, c])
    assert float(got[0]["a"]) == 1.0
    assert float(got[0]["b"][0]) == 2.0
    assert float(got[1]) == 3.0


def test_s41_settings_may_have_a_gradient_of_none_or_be_left_out(mode: Any) -> None:
    def power(x: Any, n: int, name: str) -> Any:
        return x**n, lambda dy: dy * n * 100

    def power_all(x: Any, n: int, name: str) -> Any:
        return x**n, lambda dy: (dy * n * 100, None, None)

    for f in map(tj.custom_gradient, (power, power_all)):
        x = tj.asarray(2.0)
        (g,) = gradient(mode(lambda x, f=f: f(x, 3, "cube")), x)
        assert float(g) == 300.0


def test_s41_none_is_no_gradient(mode: Any) -> None:
    @tj.custom_gradient
    def f(a: Any, b: Any) -> Any:
        return a * b, lambda dy: (dy * b, None)

    a, b = tj.asarray(2.0), tj.asarray(3.0)
    for _ in range(2):
        assert [g and float(g) for g in gradient(mode(f), a, b)] == [3.0, None]
    zeros = gradient(mode(f), a, b, unconnected_gradients="zero")
    assert [float(g) for g in zeros] == [3.0, 0.0]
    (ga, gb) = gradient(mode(lambda a, b: f(a, b) + 5 * b), a, b)
    assert (float(ga), float(gb)) == (3.0, 5.0), "other paths count"


def test_s41_none_upstream_ends_the_path_of_everything_before(mode: Any) -> None:
    calls: list[str] = []

    @tj.custom_gradient
    def first(x: Any) -> Any:
        return x * 1, lambda dy: calls.append("first") or dy

    @tj.custom_gradient
    def second(x: Any) -> Any:
        return x * 1, lambda dy: calls.append("second")

    x = tj.asarray(2.0)
    assert gradient(mode(lambda x: second(first(x * 3))), x) == [None]
    if mode is MODES["eager"]:
        assert calls == ["second"], "once each, and only what a cotangent reaches"


def test_s41_none_may_differ_from_step_to_step() -> None:
    @tj.custom_gradient
    def f(x: Any, is_open: bool) -> Any:
        return x * 2, lambda dy: dy * 7 if is_open else None

    x = tj.Variable(1.0)
    for is_open in (True, False, True, True, False):
        with tj.GradientTape() as tape:
            y = f(x, is_open)
        g = tape.gradient(y, x)
        assert (g if g is None else float(g)) == (7.0 if is_open else None)


def test_s41_jacobians_agree_about_none() -> None:
    @tj.custom_gradient
    def f(a: Any, b: Any) -> Any:
        return a * b, lambda dy: (dy * 3, None)

    a, b = tj.Variable([1.0, 2.0]), tj.Variable([3.0, 4.0])
    with tj.GradientTape(persistent=True) as tape:
        y = f(a, b)
        rows = f(tj.reshape(a, (2, 1)), b[:, None])
    for chunk in (None, 1):
        ja, jb = tape.jacobian(y, [a, b], chunk_size=chunk)
        np.testing.assert_array_equal(ja, 3 * np.eye(2))
        assert jb is None
    np.testing.assert_array_equal(tape.jacobian(rows, a)[:, 0], 3 * np.eye(2))


def test_s41_rows_of_a_jacobian_may_differ_about_none() -> None:
    @tj.custom_gradient
    def f(x: Any) -> Any:
        return x * 1, lambda dy: dy if float(dy[1]) else None

    x = tj.Variable([1.0, 2.0, 3.0])
    expected = np.diag([0.0, 1.0, 0.0])
    for chunk in (None, 1):
        with tj.GradientTape() as tape:
            y = f(x)
        np.testing.assert_array_equal(tape.jacobian(y, x, chunk_size=chunk), expected)


def test_s41_a_batch_jacobian() -> None:
    x = tj.Variable([[1.0, 2.0], [3.0, 4.0]])
    with tj.GradientTape() as tape:
        y = log1pexp(x)
    got = tape.batch_jacobian(y, x)
    slopes = 1 / (1 + np.exp(-x.numpy()))
    np.testing.assert_allclose(got, [np.diag(row) for row in slopes], 1e-6)


# Line 42


def test_s42_keyword_arguments_are_bound_through_the_signature(mode: Any) -> None:
    @tj.custom_gradient
    def f(a: Any, b: Any, *, c: Any = 1.0) -> Any:
        return a * b * c, lambda dy: (dy, 2 * dy, 3 * dy)

    a, b, c = tj.asarray(1.0), tj.asarray(2.0), tj.asarray(3.0)
    calls: list[Any] = [
        lambda a, b, c: f(a, b, c=c),
        lambda a, b, c: f(c=c, b=b, a=a),
        lambda a, b, c: f(a, c=c, b=b),
    ]
    for call in calls:
        assert [float(g) for g in gradient(mode(call), a, b, c)] == [1.0, 2.0, 3.0]


def test_s42_a_call_that_does_not_fit_the_signature() -> None:
    with pytest.raises(TypeError, match="missing a required argument"):
        log1pexp(y=1.0)


def test_s42_tensors_reached_by_closure_keep_their_own_gradient(mode: Any) -> None:
    x, w = tj.asarray(2.0), tj.asarray(5.0)

    def whole(x: Any, w: Any) -> Any:
        k = w * w

        @tj.custom_gradient
        def f(x: Any) -> Any:
            inner = tj.sin(k) * x
            return inner * x + k, lambda dy: 100 * dy

        return f(x)

    gx, gw = gradient(mode(whole), x, w)
    assert float(gx) == 100.0
    assert float(gw) == pytest.approx((np.cos(25) * 4 + 1) * 10, 1e-5)


def test_s42_an_argument_that_is_also_reached_by_closure_counts_twice(
    mode: Any,
) -> None:
    def whole(x: Any) -> Any:
        return tj.custom_gradient(lambda y: (x * y, lambda dy: 100 * dy))(x)

    (g,) = gradient(mode(whole), tj.asarray(3.0))
    assert float(g) == 103.0


def test_s42_a_closure_that_depends_on_the_argument(mode: Any) -> None:
    def whole(x: Any) -> Any:
        k = 2 * x
        return tj.custom_gradient(lambda y: (k * y, lambda dy: 100 * dy))(x)

    (g,) = gradient(mode(whole), tj.asarray(3.0))
    assert float(g) == 100 + 2 * 3


def test_s42_a_closure_returned_as_it_is(mode: Any) -> None:
    def whole(x: Any, k: Any) -> Any:
        return tj.custom_gradient(lambda y: ((k, y), lambda dk, dy: dy))(x)[0]

    gx, gk = gradient(mode(whole), tj.asarray(3.0), tj.asarray(4.0))
    assert float(gx) == 0.0
    assert float(gk) == 1.0


def test_s42_an_intermediate_can_be_a_source() -> None:
    w = tj.Variable(2.0)
    with tj.GradientTape() as tape:
        k = w * 3
        y = tj.custom_gradient(lambda x: (x * k, lambda dy: dy))(w)
    gk, gw = tape.gradient(y, [k, w])
    assert float(gk) == 2.0
    assert float(gw) == 1 + 2 * 3


def test_s42_closures_through_several_results_and_inner_tapes() -> None:
    w = tj.Variable([[2.0, 0.0], [0.0, 3.0]], trainable=False)
    x = tj.asarray(1.0)
    with tj.GradientTape() as tape:
        tape.watch([w, x])
        k = w * 1

        @tj.custom_gradient
        def f(x: Any) -> Any:
            values, _ = tj.linalg.eigh(k * x)
            with tj.GradientTape() as inner:
                inner.watch(x)
                cube = x**3 * k[0, 0]
            return values[0] + inner.gradient(cube, x), lambda dy: 100 * dy

        y = f(x)
    gw, gx = tape.gradient(y, [w, x])
    np.testing.assert_allclose(gw, [[1 + 3.0, 0.0], [0.0, 0.0]], atol=1e-6)
    assert float(gx) == 100.0


def test_s42_closures_of_nested_functions(mode: Any) -> None:
    def whole(x: Any, w: Any) -> Any:
        k = w * 2

        @tj.custom_gradient
        def outer(x: Any) -> Any:
            inner = tj.custom_gradient(lambda y: (y * k * x, lambda dy: 7 * dy))
            return inner(k) * x, lambda dy: 100 * dy

        return outer(x)

    gx, gw = gradient(mode(whole), tj.asarray(3.0), tj.asarray(5.0))
    assert float(gx) == 100.0
    assert float(gw) == (7 + 10 * 3) * 3 * 2


@pytest.mark.parametrize(
    ("bad", "error", "words"),
    [
        (lambda dy: tj.ones(3), ValueError, r"f .*shape \(3,\) for argument 0"),
        (lambda dy: tj.sum(dy), ValueError, r"shape \(\)"),
        (lambda dy: tj.astype(dy, "float64"), TypeError, "float64.*float32"),
        (lambda dy: np.ones(2), TypeError, "float64.*float32"),
        (lambda dy: "gradient", TypeError, "str"),
    ],
)
def test_s42_returned_gradients_are_checked(
    bad: Any, error: type[Exception], words: str, mode: Any
) -> None:
    @tj.custom_gradient
    def f(x: Any) -> Any:
        return x * 2, bad

    with pytest.raises(error, match=words):
        gradient(mode(f), tj.asarray([1.0, 2.0]))


def test_s42_numbers_and_arrays_can_be_gradients(mode: Any) -> None:
    @tj.custom_gradient
    def f(x: Any, y: Any) -> Any:
        return tj.sum(x) * y, lambda dy: (np.float32([3.0, 4.0]), 5)

    gx, gy = gradient(mode(f), tj.asarray([1.0, 2.0]), tj.asarray(1.0))
    np.testing.assert_array_equal(gx, [3.0, 4.0])
    assert float(gy) == 5.0
