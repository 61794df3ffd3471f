"""recompute_grad: the gradients are the function's own (line 45).

So is what has none: connectivity is a matter of each result (line 21).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from agreement import COMPOSED

import tapejit as tj

from .both_modes import assert_modes, assert_taped, note

Function = Callable[..., Any]


def setup() -> Any:
    return tj.asarray([0.5, 1.0]), tj.Variable([2.0, 3.0], name="w")


def gradients(program: Function, **options: Any) -> Function:
    """The value of a program and its gradients, by a tape inside."""

    def run(*args: Any) -> Any:
        sources = [x for x in args if isinstance(x, (tj.Tensor, tj.Variable))]
        with tj.GradientTape(**options) as tape:
            tape.watch([x for x in sources if isinstance(x, tj.Tensor)])
            y = program(*args)
        return y, tape.gradient(y, sources)

    return run


def assert_recomputed_alike(
    make: Callable[[Function], Function], setup: Any = setup
) -> None:
    """Recomputed or not, by tapes inside and around: the derivatives are the same.

    `make` is given the decorator, or one that does nothing, and makes the program.
    """
    found = assert_modes(
        gradients(make(tj.recompute_grad)), setup, op_class=COMPOSED
    ).result
    with_it = assert_taped(make(tj.recompute_grad), setup, op_class=COMPOSED)
    made = setup()
    plain = gradients(make(lambda f: f))(*(made if type(made) is tuple else (made,)))
    without = assert_taped(make(lambda f: f), setup, op_class=COMPOSED)
    assert_same(found, plain)
    assert_same(with_it, without)


def assert_same(got: Any, expected: Any) -> None:
    left = tj.tree.leaves(got, none_is_leaf=True)
    right = tj.tree.leaves(expected, none_is_leaf=True)
    for x, y in zip(left, right, strict=True):
        if x is None or y is None:
            assert x is y
        else:
            assert x.dtype == y.dtype
            np.testing.assert_allclose(x.numpy(), y.numpy(), rtol=2e-5, atol=1e-6)


def test_s45_stop_gradient_cuts_in_every_order() -> None:
    def program(x: Any) -> Any:
        with tj.GradientTape() as outer:
            with tj.GradientTape() as inner:
                y = tj.stop_gradient(x * x) * x
            g = inner.gradient(y, x)
        return g, outer.gradient(g, x)

    assert_modes(program, lambda: tj.Variable(3.0), expected=(9.0, None))


def test_s45_eagerly_its_value_and_gradient_have_the_functions_bits() -> None:
    chain = lambda x: tj.exp(tj.sin(tj.exp(tj.sin(x))))
    x = tj.asarray([0.5, 1.0])
    found, expected = (gradients(f)(x) for f in (tj.recompute_grad(chain), chain))
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_array_equal(found[1][0], expected[1][0])


# What it may depend on


def test_s45_arguments_and_a_variable_among_them() -> None:
    assert_recomputed_alike(lambda again: again(lambda x, w: tj.exp(tj.sin(x * w)) * w))


def test_s45_variables_that_are_read_inside() -> None:
    def make(again: Function) -> Function:
        def program(x: Any, w: Any) -> Any:
            return again(lambda x: tj.sin(x * w) * w)(x) * w

        return program

    assert_recomputed_alike(make)


def test_s45_tensors_of_the_closure_and_what_was_made_of_them() -> None:
    k = tj.asarray([0.25, 4.0])

    def make(again: Function) -> Function:
        def program(x: Any, w: Any) -> Any:
            c, made = k * w, k * 2
            f = again(lambda x: (tj.sin(x * c) + made, k, k * x))
            a, b, d = f(x)
            return a * b + d

        return program

    assert_recomputed_alike(make)


def test_s45_captured_tensors_have_a_gradient() -> None:
    def program(x: Any, k: Any) -> Any:
        inner = tj.function(lambda x: tj.recompute_grad(lambda x: tj.sin(x * k) * k)(x))
        with tj.GradientTape() as tape:
            tape.watch([x, k])
            y = inner(x)
        return tape.gradient(y, [x, k])

    made = lambda: (tj.asarray(0.5), tj.asarray(2.0))
    (gx, gk) = assert_modes(program, made, op_class=COMPOSED).result
    assert float(gx) == pytest.approx(4 * np.cos(1.0), 1e-5)
    assert float(gk) == pytest.approx(np.cos(1.0) + np.sin(1.0), 1e-5)
    used_and_returned = lambda again: lambda x, k: again(lambda x: (k, k * x))(x)
    assert_recomputed_alike(used_and_returned, made)


def test_s45_variables_that_are_not_trainable_and_closures_of_both() -> None:
    def make(again: Function) -> Function:
        def program(x: Any, k: Any, v: Any, w: Any, still: Any) -> Any:
            c = k * w
            f = again(lambda x, v: tj.sin(x * c) * v * w * still + c)
            return f(x, v) + f(k, v)

        return program

    def made() -> Any:
        still = tj.Variable(5.0, trainable=False)
        tensors = tj.asarray(0.5), tj.asarray(0.25)
        return *tensors, tj.Variable(2.0), tj.Variable(3.0), still

    assert_recomputed_alike(make, made)


def test_s45_an_argument_that_is_passed_twice_or_also_reached_by_closure() -> None:
    def make(again: Function) -> Function:
        def program(x: Any, w: Any) -> Any:
            reached = again(lambda y, v: x * y * tj.sin(v) * w)(x, w)
            return reached, again(lambda a, b: a * b * w)(w, w)

        return program

    assert_recomputed_alike(make)


def test_s45_keywords_structures_and_integers() -> None:
    def make(again: Function) -> Function:
        @again
        def f(parts: Any, *, power: int, index: Any, scale: Any) -> Any:
            y = parts["a"][index] ** power * scale
            return {"y": y, "n": index + 1, "none": None}

        def program(x: Any, w: Any) -> Any:
            out = f({"a": w * 1}, scale=x, index=tj.asarray(1), power=3)
            note(out["none"])
            return out["y"] * out["n"]

        return program

    found = assert_modes(gradients(make(tj.recompute_grad)), setup, notes=[None])
    assert found.result[0].tolist() == [27.0, 54.0]
    assert_recomputed_alike(make)


def test_s45_what_is_returned_as_it_came() -> None:
    def make(again: Function) -> Function:
        def program(x: Any, w: Any) -> Any:
            a, b, c = again(lambda x, w: (x, w.value(), x))(x, w)
            return a * b + c * b

        return program

    assert_recomputed_alike(make)


def test_s45_several_results_of_one_operation() -> None:
    def make(again: Function) -> Function:
        def program(x: Any, w: Any) -> Any:
            a, b = tj.split(x * w, 2)
            first, second = again(lambda a: tj.split(tj.concat([a * b, a]), 2))(a)
            return first * b + second

        return program

    assert_recomputed_alike(make)


def test_s45_complex_numbers() -> None:
    def loss(again: Function) -> Function:
        return lambda z, w: tj.abs(again(lambda z: tj.exp(z * w) * tj.conj(z))(z))

    assert_recomputed_alike(
        loss, lambda: (tj.asarray([0.5 + 1j, 1j]), tj.Variable([1.0 - 1j, 2.0]))
    )


def test_s45_none_is_none() -> None:
    def program(x: Any, w: Any) -> Any:
        @tj.recompute_grad
        def f(x: Any, w: Any) -> Any:
            return x * 2 + tj.stop_gradient(w), tj.astype(x, "int32")

        with tj.GradientTape() as tape:
            tape.watch(x)
            y, n = f(x, w)
        return tape.gradient(y, [x, w]), n

    (gx, gw), _ = assert_modes(program, setup).result
    assert gw is None
    np.testing.assert_array_equal(gx, [2.0, 2.0])
    assert_taped(
        tj.recompute_grad(lambda x, w: x * 2 + tj.stop_gradient(w)),
        setup,
        expected=[[2.0, 2.0], None],
        second=[None, None],
    )


def test_s45_nothing_to_differentiate() -> None:
    def program(x: Any, w: Any) -> Any:
        f = tj.recompute_grad(lambda x: (tj.astype(x * w, "int32"), tj.zeros(2)))
        with tj.GradientTape() as tape:
            tape.watch(x)
            n, zero = f(x)
        note([v.name for v in tape.watched_variables()])
        return n, zero, tape.gradient(zero, [x, w])

    assert_modes(
        program, setup, expected=([1, 3], [0.0, 0.0], [None, None]), notes=[["w"]]
    )


# Several results


def several(again: Function) -> Function:
    return again(lambda x, w: (tj.sin(x) * x, tj.astype(x, "int32"), x * w, w * w))


def test_s21_by_results_that_are_asked_for_alone() -> None:
    assert_recomputed_alike(several)
    assert_recomputed_alike(
        lambda again: again(lambda x, w: again(several(again))(x, w))
    )
    assert_recomputed_alike(
        lambda again: lambda x, w: again(lambda x: several(again)(x, w))(x)
    )


def test_s21_none_for_what_only_other_results_depend_on() -> None:
    def program(x: Any, w: Any) -> Any:
        with tj.GradientTape(persistent=True) as tape:
            tape.watch(x)
            a, b = tj.recompute_grad(lambda x, w: (x * 1, w * 1))(x, w)
        note("there is a path" in tape.why_none(a, w))
        both = tape.gradient([a, b], [x, w])
        return tape.gradient(a, [x, w]), tape.gradient(b, [x, w]), both

    one = [1.0, 1.0]
    expected = ([one, None], [None, one], [one, one])
    assert_modes(program, setup, expected=expected, notes=[False])


def test_s21_second_order_and_jacobians_by_each_result() -> None:
    def make(again: Function) -> Function:
        def program(x: Any, w: Any) -> Any:
            with tj.GradientTape(persistent=True) as outer:
                outer.watch(x)
                with tj.GradientTape(persistent=True) as tape:
                    tape.watch(x)
                    a, _, b, c = several(again)(x, w)
                asked = [a, b, c, [a, b], [b, c], [a, b, c]]
                first = [tape.gradient(y, [x, w]) for y in asked]
            second = [outer.gradient(g, [x, w]) for g in tj.tree.leaves(first)]
            return first, second, tape.jacobian([a, b, c], [x, w])

        return program

    found = assert_modes(make(tj.recompute_grad), setup, op_class=COMPOSED).result
    assert_same(found, make(lambda f: f)(*setup()))


def test_s21_tangents_by_each_primal() -> None:
    def make(again: Function) -> Function:
        def program(x: Any, w: Any) -> Any:
            found = []
            for primals in ([x], [w], [x, w]):
                with tj.ForwardAccumulator(primals, [tj.ones(2) for _ in primals]) as t:
                    with tj.GradientTape() as tape:
                        tape.watch(x)
                        results = several(again)(x, w)
                    gradients = tape.gradient(results[0], [x, w])
                found.append(t.jvp(results))
                found.append([None if g is None else t.jvp(g) for g in gradients])
            return found

        return program

    for around in (lambda f: f, tj.function):
        again = lambda f, around=around: around(tj.recompute_grad(f))
        found = assert_modes(make(again), setup, op_class=COMPOSED).result
        assert_same(found, make(lambda f: f)(*setup()))


# State


def test_s45_variables_are_seen_as_they_were_then() -> None:
    def program(x: Any, w: Any) -> Any:
        with tj.GradientTape() as tape:
            tape.watch(x)
            w.assign(w * 2.0)
            y = tj.recompute_grad(lambda x: x * w * w)(x)
            w.assign([100.0, 100.0])
        return tape.gradient(y, [x, w])

    assert_modes(
        program,
        setup,
        expected=[[16.0, 36.0], [4.0, 12.0]],
        variables=[[100.0, 100.0]],
        warns=["assign of a value"],
    )


def test_s45_what_it_assigns_is_assigned_once() -> None:
    def program(x: Any, count: Any, mean: Any) -> Any:
        @tj.recompute_grad
        def f(x: Any) -> Any:
            count.assign_add(1.0)
            mean.assign(mean * 0.5 + 2.0)
            return x * count * mean

        with tj.GradientTape() as tape:
            tape.watch(x)
            y = f(f(x))
        return y, tape.gradient(y, x)

    def made() -> Any:
        state = [tj.Variable(0.0, trainable=False), tj.Variable(1.0, trainable=False)]
        return (tj.asarray(2.0), *state)

    found = 2.5 * 2 * 3.25
    assert_modes(program, made, expected=(2 * found, found), variables=[2.0, 3.25])


def test_s45_a_variable_read_after_it_was_assigned_inside() -> None:
    def make(again: Function) -> Function:
        def program(x: Any, w: Any) -> Any:
            @again
            def f(x: Any) -> Any:
                before = w * x
                w.assign(tj.asarray([5.0, 7.0]))
                return before * w + w.assign_add([1.0, 1.0])

            return f(x)

        return program

    assert_recomputed_alike(make)


def test_s45_statistics_of_tracked_values_are_assigned_alike() -> None:
    def program(x: Any, w: Any) -> Any:
        @tj.recompute_grad
        def f(x: Any) -> Any:
            y = x * w
            w.assign(y)
            return y

        with tj.GradientTape() as tape:
            tape.watch(x)
            y = f(x)
        return tape.gradient(y, [x, w])

    assert_modes(program, setup, variables=[[1.0, 3.0]], warns=["assign of a value"])
    assert_taped(
        lambda x, w: tj.recompute_grad(lambda x: (x * w, w.assign(x * 1))[0])(x),
        setup,
        expected=[[2.0, 3.0], [0.5, 1.0]],
        order=1,
        warns=["assign of a value"],
    )


def test_s45_random_numbers_are_drawn_once_and_replayed() -> None:
    def program(x: Any, generator: Any) -> Any:
        @tj.recompute_grad
        def noisy(x: Any) -> Any:
            x = x * generator.normal(2)
            return tj.sin(x) * generator.uniform(2)

        with tj.GradientTape() as tape:
            tape.watch(x)
            y = noisy(noisy(x))
        return y, tape.gradient(y, x), generator.normal(2)

    def by_hand(x: Any, generator: Any) -> Any:
        a, b, c, d = [draw(2) for draw in (generator.normal, generator.uniform) * 2]
        with tj.GradientTape() as tape:
            tape.watch(x)
            y = tj.sin(tj.sin(x * a) * b * c) * d
        return y, tape.gradient(y, x), generator.normal(2)

    made = lambda: (tj.asarray([1.0, 2.0]), tj.random.Generator(7))
    found = assert_modes(
        program,
        made,
        state=lambda x, generator: [generator._variable],
        traces=None,
        op_class=COMPOSED,
    ).result
    assert_same(found, by_hand(*made()))


def test_s45_random_numbers_with_a_tape_around() -> None:
    def f(x: Any) -> Any:
        return tj.sin(x * tj.random.normal(3)) * tj.random.uniform(3)

    x = tj.asarray([0.5, 1.0, 2.0])
    found = []
    for function in (f, tj.recompute_grad(f), tj.function(tj.recompute_grad(f))):
        tj.random.set_seed(3)
        for _ in range(2):  # draws on
            with tj.GradientTape() as tape:
                tape.watch(x)
                y = function(x)
            tj.random.normal(4)
            g = tape.gradient(y, x)
        found.append((y, g, tj.random.normal(2)))
    assert_same(found[1], found[0])
    assert_same(found[2], found[0])


@pytest.mark.parametrize("where", ["nowhere", "around", "inside"])
def test_s45_what_it_prints_is_printed_once(where: str, capsys: Any) -> None:
    def f(x: Any) -> Any:
        tj.print("inside", x)
        tj.debug.assert_greater(x, 0.0)
        return x * x

    again = tj.recompute_grad(f)
    step = gradients(tj.function(again) if where == "around" else again)
    if where == "inside":
        step = tj.function(step)
    x = tj.asarray(3.0)
    for _ in range(2):
        assert float(step(x)[1][0]) == 6.0
        assert capsys.readouterr().out == "inside 3.0\n"


def test_s45_questions_are_asked_once() -> None:
    def program(x: Any, w: Any) -> Any:
        @tj.recompute_grad
        def f(x: Any) -> Any:
            return tj.sin(x) * w if tj.sum(x) > 1.0 else x * 3.0

        with tj.GradientTape() as tape:
            tape.watch(x)
            y = f(x)
        return y, tape.gradient(y, [x, w])

    other = lambda: (tj.asarray([0.1, 0.2]), tj.Variable([2.0, 3.0]))
    assert_modes(program, setup, also=[other], op_class=COMPOSED, traces=None)
    function = tj.function(lambda x: tj.recompute_grad(lambda x: x if x > 0 else -x)(x))
    assert float(tj.grad(function)(tj.asarray(2.0))) == 1.0
    assert float(tj.grad(function)(tj.asarray(-2.0))) == -1.0
    assert len(function.explain(tj.asarray(2.0)).guards) == 1


# More derivatives


@pytest.mark.parametrize("persistent", [False, True])
def test_s45_second_order_inside(persistent: bool) -> None:
    def program(x: Any, w: Any) -> Any:
        f = tj.recompute_grad(lambda x: tj.sin(x) * w)
        with tj.GradientTape() as outer:
            outer.watch(x)
            with tj.GradientTape(persistent=persistent) as inner:
                inner.watch(x)
                y = f(x * x)
            g = inner.gradient(y, x)
        return g, outer.gradient(g, [x, w])

    first, (second, mixed) = assert_modes(program, setup, op_class=COMPOSED).result
    x, w = np.float64([0.5, 1.0]), np.float64([2.0, 3.0])
    np.testing.assert_allclose(first, 2 * w * x * np.cos(x * x), 1e-5)
    expected = w * (2 * np.cos(x * x) - 4 * x * x * np.sin(x * x))
    np.testing.assert_allclose(second, expected, 1e-5)
    np.testing.assert_allclose(mixed, 2 * x * np.cos(x * x), 1e-5)


def test_s45_nested() -> None:
    def make(again: Function) -> Function:
        def program(x: Any, w: Any) -> Any:
            inner = again(lambda x: tj.sin(x * w))
            outer = again(lambda x: inner(inner(x)) * w)
            return again(lambda x: outer(x) + inner(x))(x)

        return program

    assert_recomputed_alike(make)


def test_s45_persistent_tapes_and_jacobians() -> None:
    def program(x: Any, w: Any) -> Any:
        f = tj.recompute_grad(lambda x: tj.sin(x * w) * tj.sum(x))
        with tj.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = f(x)
        return tape.gradient(y, w), tape.jacobian(y, [x, w])

    found = assert_modes(program, setup, op_class=COMPOSED).result
    x, w = setup()
    expected = tj.jacobian(lambda x: tj.sin(x * w) * tj.sum(x))(x)
    np.testing.assert_allclose(found[1][0], expected, 1e-5)


@pytest.mark.parametrize(
    "decorate", [lambda f: f, tj.function], ids=["plain", "traced"]
)
def test_s45_jacobians_hessians_and_tangents_around(decorate: Any) -> None:
    def loss(x: Any) -> Any:
        return tj.sin(x * 2.0) * tj.sum(x)

    x, t = tj.asarray([0.5, -1.0, 2.0]), tj.asarray([1.0, 2.0, 3.0])
    again = decorate(tj.recompute_grad(loss))
    assert_same(tj.jacobian(again)(x), tj.jacobian(loss)(x))
    assert_same(tj.jvp(again, (x,), (t,)), tj.jvp(loss, (x,), (t,)))
    total = lambda x: tj.sum(again(x) ** 2)
    plain = lambda x: tj.sum(loss(x) ** 2)
    assert_same(tj.hvp(total, (x,), (t,)), tj.hvp(plain, (x,), (t,)))
    expected = tj.hessian(plain)(x)
    assert_same(tj.hessian(total)(x), expected)
    assert_same(tj.function(tj.hessian(total))(x), expected)


def test_s45_mapped_inside_and_outside() -> None:
    rows = lambda: (tj.asarray([[0.5, 1.0], [2.0, -1.0]]), tj.Variable([2.0, 3.0]))

    def make(again: Function) -> Function:
        def program(x: Any, w: Any) -> Any:
            row = lambda x: tj.sin(x * w) * x[0]
            return again(tj.vmap(row))(x) + tj.vmap(again(row))(x)

        return program

    assert_recomputed_alike(make, rows)


def test_s45_gradients_of_rows() -> None:
    def program(x: Any, w: Any) -> Any:
        f = tj.recompute_grad(lambda x: tj.sum(tj.sin(x * w) * x))
        return tj.vmap(tj.grad(f))(x)

    rows = lambda: (tj.asarray([[0.5, 1.0], [2.0, -1.0]]), tj.Variable([2.0, 3.0]))
    found = assert_modes(program, rows, op_class=COMPOSED).result
    x, w = np.float64([[0.5, 1.0], [2.0, -1.0]]), np.float64([2.0, 3.0])
    np.testing.assert_allclose(found, np.sin(x * w) + x * w * np.cos(x * w), 1e-5)


def test_s45_forward_mode() -> None:
    def program(x: Any, w: Any) -> Any:
        f = tj.recompute_grad(lambda x: (tj.sin(x * w), x * 2, tj.floor(x)))
        ones = tj.ones(2)
        with tj.ForwardAccumulator([x, w], [ones, ones * 2]) as acc:
            y = f(x)
        return acc.jvp(y)

    found = assert_modes(program, setup, op_class=COMPOSED).result
    x, w = np.float64([0.5, 1.0]), np.float64([2.0, 3.0])
    np.testing.assert_allclose(found[0], np.cos(x * w) * (w + 2 * x), 1e-5)


def test_s45_custom_gradients_inside_and_around() -> None:
    def make(again: Function) -> Function:
        def program(x: Any, w: Any) -> Any:
            @tj.custom_gradient
            def ten(x: Any) -> Any:
                return x * 1, lambda dy: dy * 10

            @tj.custom_gradient
            def outer(x: Any) -> Any:
                y = again(lambda x: ten(x) * x)(x)
                return y, lambda dy: dy * y

            return again(lambda x: ten(x) * w)(x) + outer(x)

        return program

    assert_recomputed_alike(make)


def test_s45_a_tape_of_its_own_inside() -> None:
    def make(again: Function) -> Function:
        def program(x: Any, w: Any) -> Any:
            @again
            def slope(x: Any) -> Any:
                with tj.GradientTape() as tape:
                    tape.watch(x)
                    y = x**3 * w
                return tape.gradient(y, x)

            return slope(x)

        return program

    assert_recomputed_alike(make)


def test_s45_functions_inside_and_methods() -> None:
    class Model:
        def __init__(self, w: Any) -> None:
            self.w = w

        @tj.recompute_grad
        def run(self, x: Any) -> Any:
            return tj.function(lambda x: tj.sin(x * self.w))(x)

    def program(x: Any, w: Any) -> Any:
        with tj.GradientTape() as tape:
            tape.watch(x)
            y = Model(w).run(x)
        note([v.name for v in tape.watched_variables()])
        return tape.gradient(y, [x, w])

    assert_modes(program, setup, notes=[["w"]], op_class=COMPOSED)


def test_s45_a_custom_gradient_hears_what_a_function_inside_reads() -> None:
    def program(x: Any, w: Any) -> Any:
        with tj.GradientTape() as tape:
            tape.watch(x)
            k = x * 3

            @tj.custom_gradient
            def f(y: Any) -> Any:
                result = tj.function(lambda y: y * w * k)(y)
                return result, lambda dy, variables: (dy * 10, [dy * 100])

            y = f(tj.ones(2))
        return tape.gradient(y, [x, w])

    assert_modes(program, setup, expected=[[6.0, 9.0], [100.0, 100.0]])


def test_s45_sizes_that_are_not_known() -> None:
    spec = tj.TensorSpec([None], "float32")

    def loss(again: Function, x: Any) -> Any:
        n, top = x.shape[0], tj.max(x)
        # Inside there is nothing that has the size of x.
        scaled = again(lambda top: tj.sum(tj.sin(tj.ones(n) * top)) * n)(top)
        return scaled + tj.sum(again(lambda x: tj.exp(tj.sin(x)) * x.shape[0])(x))

    again = lambda x: loss(tj.recompute_grad, x)
    inside = tj.function(lambda x: tj.grad(again)(x), input_signature=[spec])
    around = tj.function(again, input_signature=[spec])
    plain = tj.function(lambda x: loss(lambda f: f, x), input_signature=[spec])
    for size in (3, 5, 3, 1):
        x = tj.asarray(np.linspace(0.1, 1.0, size, dtype=np.float32))
        expected = tj.grad(plain)(x)
        assert_same(inside(x), expected)
        assert_same(tj.grad(around)(x), expected)
        assert_same(tj.jvp(around, (x,), (x,)), tj.jvp(again, (x,), (x,)))
    assert inside.trace_count == around.trace_count == plain.trace_count
