"""Custom gradients: variables, higher orders, methods, errors (19, 43, 44)."""

from __future__ import annotations

import copy
import functools
import inspect
import pickle
from typing import Any

import numpy as np
import pytest

import tapejit as tj

from .custom_gradients import gradient, log1pexp, sigmoid

# Line 43


def test_s43_variables_read_inside_are_given_to_grad_fn(mode: Any) -> None:
    v, w = tj.Variable(2.0, name="v"), tj.Variable(3.0, name="w")
    still = tj.Variable(4.0, trainable=False)
    seen: list[Any] = []

    @tj.custom_gradient
    def f(x: Any) -> Any:
        def grad_fn(dy: Any, variables: Any = None) -> Any:
            seen.append(list(variables))
            return 10 * dy, [20 * dy, 30 * dy]

        return x * w * v * still, grad_fn

    x = tj.asarray(1.0)
    with tj.GradientTape() as tape:
        tape.watch(x)
        y = mode(f)(x) * 2
    assert [float(g) for g in tape.gradient(y, [x, v, w])] == [20.0, 40.0, 60.0]
    assert [id(variable) for variable in seen[0]] == [id(v), id(w)], "by creation"


def test_s43_a_grad_fn_without_the_keyword_is_refused_with_their_names() -> None:
    w = tj.Variable(3.0, name="kernel")

    @tj.custom_gradient
    def layer(x: Any) -> Any:
        return x * w, lambda dy: dy

    with pytest.raises(TypeError, match=r"layer.*'kernel'.*'variables'"):
        layer(1.0)
    with tj.GradientTape(), pytest.raises(TypeError, match="'kernel'"):
        layer(1.0)


def test_s43_any_keyword_will_do_and_none_means_no_variables() -> None:
    w = tj.Variable(3.0)

    @tj.custom_gradient
    def f(x: Any, use: bool) -> Any:
        def grad_fn(dy: Any, **kwargs: Any) -> Any:
            assert ("variables" in kwargs) == use
            return (dy, [None]) if use else dy

        return x * (w if use else 3.0), grad_fn

    for use in (True, False):
        x = tj.Variable(1.0)
        with tj.GradientTape() as tape:
            y = f(x, use)
        gx, gw = tape.gradient(y, [x, w])
        assert float(gx) == 1.0
        assert gw is None


@pytest.mark.parametrize(
    ("returned", "error", "words"),
    [
        (lambda dy: dy, TypeError, "variables.*got Tensor"),
        (lambda dy: (dy, []), ValueError, "0 gradients for 1 variables.*'w'"),
        (lambda dy: (dy, [dy, dy]), ValueError, "2 gradients for 1 variables"),
        (lambda dy: (dy, [tj.ones(2)]), ValueError, r"\(2,\) for variable 'w'"),
    ],
)
def test_s43_what_it_returns_is_checked(
    returned: Any, error: type[Exception], words: str
) -> None:
    w = tj.Variable(3.0, name="w")

    @tj.custom_gradient
    def f(x: Any) -> Any:
        return x * w, lambda dy, variables=None: returned(dy)

    with pytest.raises(error, match=words):
        gradient(f, tj.asarray(1.0))


def test_s43_variables_as_arguments_are_arguments(mode: Any) -> None:
    w = tj.Variable(3.0)

    @tj.custom_gradient
    def f(x: Any, v: Any) -> Any:
        assert isinstance(v, tj.Variable)
        return x * v + v, lambda dy: (dy, 5 * dy)

    gx, gw = gradient(mode(f), tj.asarray(1.0), w)
    assert (float(gx), float(gw)) == (1.0, 5.0)


def test_s43_a_variable_read_before_and_after_keeps_those_reads() -> None:
    w = tj.Variable(3.0)

    @tj.custom_gradient
    def f(x: Any) -> Any:
        return x * w, lambda dy, variables=None: (dy, [100 * dy])

    with tj.GradientTape() as tape:
        y = w * 2 + f(tj.asarray(1.0)) + w * w
    assert float(tape.gradient(y, w)) == 2 + 100 + 6


def test_s43_a_variable_that_is_watched_by_hand_counts_as_a_closure() -> None:
    w = tj.Variable(3.0, trainable=False)

    @tj.custom_gradient
    def f(x: Any) -> Any:
        return x * w * w, lambda dy: 100 * dy

    x = tj.asarray(2.0)
    with tj.GradientTape() as tape:
        tape.watch([w, x])
        y = f(x)
    gx, gw = tape.gradient(y, [x, w])
    assert (float(gx), float(gw)) == (100.0, 12.0)


def test_s43_a_tape_that_does_not_watch_variables_gives_them_none() -> None:
    w = tj.Variable(3.0)

    @tj.custom_gradient
    def f(x: Any) -> Any:
        return x * w, lambda dy, variables=None: (dy, [100 * dy])

    x = tj.asarray(2.0)
    with tj.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(x)
        y = f(x)
    gx, gw = tape.gradient(y, [x, w])
    assert float(gx) == 1.0
    assert gw is None


def test_s43_the_result_of_an_assignment_is_a_read() -> None:
    w = tj.Variable(3.0)

    @tj.custom_gradient
    def f(x: Any) -> Any:
        return x * w.assign_add(1.0), lambda dy, variables=None: (dy, [100 * dy])

    with tj.GradientTape() as tape:
        y = f(tj.asarray(2.0))
    assert float(y) == 8.0
    assert float(tape.gradient(y, w)) == 100.0


# Line 44


def test_s44_second_order_differentiates_what_grad_fn_computes(mode: Any) -> None:
    x = tj.asarray(0.7)
    f = mode(log1pexp)
    with tj.GradientTape() as outer:
        outer.watch(x)
        with tj.GradientTape() as inner:
            inner.watch(x)
            y = f(x)
        g = inner.gradient(y, x)
    s = sigmoid(0.7)
    assert float(g) == pytest.approx(s, 1e-6)
    assert float(outer.gradient(g, x)) == pytest.approx(s * (1 - s), 1e-5)


def test_s44_it_is_not_the_second_derivative_of_the_value(mode: Any) -> None:
    @tj.custom_gradient
    def f(x: Any) -> Any:
        return x**2, lambda dy: dy * x**4

    def slope(x: Any) -> Any:
        with tj.GradientTape() as tape:
            tape.watch(x)
            y = f(x)
        return tape.gradient(y, x)

    assert float(tj.grad(mode(slope))(tj.asarray(2.0))) == 32.0
    third = tj.grad(tj.grad(mode(slope)))(tj.asarray(2.0))
    assert float(third) == 48.0


def test_s44_a_custom_gradient_inside_grad_fn(mode: Any) -> None:
    @tj.custom_gradient
    def f(x: Any) -> Any:
        @tj.custom_gradient
        def slope(x: Any) -> Any:
            return 3 * x, lambda ddy: 1000 * ddy

        return x**2, lambda dy: dy * slope(x)

    x = tj.asarray(2.0)
    assert float(tj.grad(mode(f))(x)) == 6.0
    assert float(tj.grad(tj.grad(mode(f)))(x)) == 1000.0


def test_s44_a_linear_gradient_has_no_second_one(mode: Any) -> None:
    f = tj.custom_gradient(lambda x: (x * x, lambda dy: 3 * dy))
    x = tj.Variable(2.0)
    with tj.GradientTape() as outer:
        with tj.GradientTape() as inner:
            y = mode(f)(x)
        g = inner.gradient(y, x)
    assert float(g) == 3.0
    assert outer.gradient(g, x) is None


def test_s44_a_persistent_tape_inside_its_own_block() -> None:
    x = tj.Variable(0.7)
    with tj.GradientTape(persistent=True) as tape:
        y = log1pexp(x)
        with pytest.warns(UserWarning, match="inside its own block"):
            g = tape.gradient(y, x)
    s = sigmoid(0.7)
    assert float(tape.gradient(g, x)) == pytest.approx(s * (1 - s), 1e-5)


def test_s44_hessians() -> None:
    x = tj.asarray([0.5, -1.0])
    got = tj.hessian(lambda x: tj.sum(log1pexp(x)))(x)
    s = sigmoid([0.5, -1.0])
    np.testing.assert_allclose(got, np.diag(s * (1 - s)), 1e-5)


class Oops(Exception):
    """An error of the user's."""


def test_s44_exceptions_keep_their_type(mode: Any) -> None:
    @tj.custom_gradient
    def in_function(x: Any) -> Any:
        raise Oops("forward")

    @tj.custom_gradient
    def in_gradient(x: Any) -> Any:
        def grad_fn(dy: Any) -> Any:
            raise Oops("backward")

        return x * 2, grad_fn

    with pytest.raises(Oops, match="forward"):
        mode(in_function)(tj.asarray(1.0))
    with pytest.raises(Oops, match="backward"):
        gradient(mode(in_gradient), tj.asarray(1.0))
    with tj.GradientTape() as outer:
        x = tj.Variable(1.0)
        with tj.GradientTape() as inner:
            y = in_gradient(x)
        with pytest.raises(Oops, match="backward"):
            inner.gradient(y, x)
    assert outer.watched_variables() == (x,)


def test_s44_traced_too_an_error_comes_to_who_asks_for_the_gradient() -> None:
    @tj.custom_gradient
    def f(x: Any) -> Any:
        def grad_fn(dy: Any) -> Any:
            raise Oops("backward")

        return x * 2, grad_fn

    x = tj.Variable([1.0, 2.0])
    for call in (tj.function(f), tj.vmap(f), tj.function(tj.vmap(f))):
        with tj.GradientTape() as tape:
            y = call(x)
        np.testing.assert_array_equal(y, [2.0, 4.0])
        with pytest.raises(Oops, match="backward"):
            tape.gradient(y, x)
        with pytest.raises(Oops, match="backward"):
            tj.jvp(call, (x.value(),), (x.value(),))


def test_s44_a_tape_in_a_function_calls_grad_fn_when_it_is_asked() -> None:
    @tj.function
    def step(x: Any) -> Any:
        calls: list[str] = []

        @tj.custom_gradient
        def f(x: Any) -> Any:
            def grad_fn(dy: Any) -> Any:
                return dy * (7 if calls else 3)

            return x * 2, grad_fn

        with tj.GradientTape() as tape:
            tape.watch(x)
            y = f(x)
        calls.append("from here on")
        return tape.gradient(y, x)

    assert float(step(tj.asarray(1.0))) == 7.0


def test_s44_decorated_functions_are_pickled_by_name() -> None:
    assert pickle.loads(pickle.dumps(log1pexp)) is log1pexp
    assert copy.deepcopy(log1pexp) is log1pexp


@pytest.mark.parametrize("method", ["gradient", "jacobian", "batch_jacobian"])
def test_s19_a_grad_fn_that_raises_leaves_the_tape_as_it_was(method: str) -> None:
    is_broken = True

    @tj.custom_gradient
    def f(x: Any) -> Any:
        def grad_fn(dy: Any) -> Any:
            if is_broken:
                raise Oops
            return dy * 5

        return tj.exp(x), grad_fn

    x = tj.Variable([[1.0, 2.0]])
    with tj.GradientTape() as tape:
        y = tj.exp(f(tj.exp(x)))
    held = tape.nbytes
    for _ in range(2):
        with pytest.raises(Oops):
            getattr(tape, method)(y, x)
    assert tape.nbytes == held
    is_broken = False
    assert getattr(tape, method)(y, x) is not None
    with pytest.raises(RuntimeError):
        getattr(tape, method)(y, x)
    assert tape.nbytes == 0


def test_s19_inside_its_block_it_goes_on_recording() -> None:
    errors = [Oops()]

    @tj.custom_gradient
    def f(x: Any) -> Any:
        def grad_fn(dy: Any) -> Any:
            if errors:
                raise errors.pop()
            return dy * 5

        return x * 1, grad_fn

    x = tj.Variable(1.0)
    with tj.GradientTape() as tape:
        y = f(x)
        with pytest.raises(Oops):
            tape.gradient(y, x)
        z = y * 2
    assert float(tape.gradient(z, x)) == 10.0


def test_s44_methods() -> None:
    class Scaler:
        def __init__(self, factor: float) -> None:
            self.factor = factor

        @tj.custom_gradient
        def scale(self, x: Any) -> Any:
            """Multiply."""
            return x * self.factor, lambda dy: dy * 100 * self.factor

        @classmethod
        @tj.custom_gradient
        def double(cls, x: Any) -> Any:
            return x * 2, lambda dy: dy * 7

        @staticmethod
        @tj.custom_gradient
        def triple(x: Any) -> Any:
            return x * 3, lambda dy: dy * 8

    x = tj.asarray(2.0)
    two = Scaler(3.0)
    assert float(two.scale(x)) == 6.0
    assert float(Scaler.scale(two, x)) == 6.0
    assert float(gradient(two.scale, x)[0]) == 300.0
    assert float(gradient(two.double, x)[0]) == 7.0
    assert float(gradient(Scaler.triple, x)[0]) == 8.0
    assert Scaler.scale.__doc__ == "Multiply."
    assert Scaler.scale.__name__ == "scale"
    assert list(inspect.signature(two.scale).parameters) == ["x"]


def test_s44_a_method_of_an_object_that_is_a_structure() -> None:
    """A dataclass is taken apart as an argument, but `self` is none."""
    import dataclasses

    @dataclasses.dataclass
    class Layer:
        w: Any

        @tj.custom_gradient
        def run(self, x: Any) -> Any:
            return x * 2, lambda dy: dy * 9

    assert float(gradient(Layer(tj.asarray(1.0)).run, tj.asarray(2.0))[0]) == 9.0


def test_s44_partials_and_callable_objects() -> None:
    class Square:
        def __call__(self, x: Any, n: int = 2) -> Any:
            return x**n, lambda dy: dy * 11

    for f in (Square(), functools.partial(Square(), n=3)):
        assert float(gradient(tj.custom_gradient(f), tj.asarray(2.0))[0]) == 11.0


def test_s44_grad_pass_through_is_the_straight_through_estimator(mode: Any) -> None:
    x = tj.asarray([0.4, 1.6])
    (g,) = gradient(mode(lambda x: tj.grad_pass_through(tj.round)(x) * 3), x)
    np.testing.assert_array_equal(g, [3.0, 3.0])
    np.testing.assert_array_equal(tj.grad_pass_through(tj.round)(x), [0.0, 2.0])


def test_s44_grad_pass_through_connects_nothing_else(mode: Any) -> None:
    w, k = tj.Variable(2.0), tj.asarray(3.0)

    def whole(x: Any, k: Any) -> Any:
        def quantize(x: Any, step: Any, digits: int) -> Any:
            return tj.round(x / step) * step * w + k

        return tj.grad_pass_through(quantize)(x, k, digits=1)

    x = tj.asarray(0.4)
    with tj.GradientTape() as tape:
        tape.watch([x, k])
        y = mode(whole)(x, k)
    gx, gk, gw = tape.gradient(y, [x, k, w])
    assert float(gx) == 1.0
    assert gk is None
    assert gw is None
