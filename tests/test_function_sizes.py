"""One trace for many sizes: sizes in the body, sizes that are equal, derivatives."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from elsewhere import in_threads
from open_sizes import (
    LINE,
    ROWS,
    SIZES,
    assert_one_trace,
    assert_same,
    for_any_size,
    inner_gradient,
    loss,
    sample,
)

import tapejit as tj
from tapejit.ir import parse_graph

# Sizes in the body


def number_uses(x: Any) -> list[Any]:
    n = x.shape[0]
    return [
        *(
            n + 1,
            n - 1,
            2 - n,
            3 * n,
            n * n,
            n // 2,
            n % 3,
            17 // n,
            17 % n,
            -n,
            abs(n),
        ),
        *(n**2, *divmod(n, 2), tj.asarray(n), tj.asarray([n, 3]), x * n, n * x),
        *(x / n, n / x, n - x, x**n, tj.sum(x) / n, tj.maximum(x, n), x.size, x.shape),
        *(tj.sum(x) * (1 / n), x * (n / 2), x * (0.5 * n), x * (n * 0.5 - 1.0)),
        *(n >= 2, n > 1, n != 1, n == n, n < n + 1, n * 2 > n, bool(n), n is not None),
        *(isinstance(n, int), tj.full((n,), n), tj.zeros(x.shape), tj.ones((n, 2))),
        *(tj.arange(n), tj.arange(1, n + 1), tj.eye(n), tj.reshape(x, (3 * n,))),
    ]


def test_arithmetic_and_use_as_a_value_stay_symbolic() -> None:
    function = for_any_size(number_uses)
    for size in SIZES:
        assert_same(function(sample(size, 3)), number_uses(sample(size, 3)))
    assert function.trace_count == 1


@pytest.mark.parametrize(
    ("body", "traces"),
    [
        (lambda x: x if x.shape[0] > 3 else -x, 2),
        (lambda x: x if x.shape[0] == 3 else -x, 2),
        (lambda x: x if x.shape[0] % 2 else -x, 2),
        (lambda x: x * max(x.shape), 2),
        (lambda x: x * min(x.shape[0], 100), 1),
        (lambda x: x if x.shape == (5, 3) else -x, 2),
        (lambda x: x if x.shape[0] in (3, 8) else -x, 3),
        (lambda x: x if x.shape[0] < 2.5 else -x, 4),
    ],
)
def test_a_comparison_becomes_a_guard(body: Any, traces: int) -> None:
    function = for_any_size(body)
    for size in (*SIZES, *reversed(SIZES)):
        assert_same(function(sample(size, 3)), body(sample(size, 3)))
    assert function.trace_count == traces


@pytest.mark.parametrize(
    "body",
    [
        lambda x: sum(x[i] for i in range(x.shape[0])),
        lambda x: tj.stack(list(x)),
        lambda x: x * len(x),
        lambda x: x * int(x.shape[0]),
        lambda x: x * float(x.shape[0]),
        lambda x: x * math.sqrt(x.shape[0]),
        lambda x: x * np.sqrt(x.shape[0]),
        lambda x: x * [0, 1, 2, 3, 4, 5, 6, 7, 8][x.shape[0]],
        lambda x: x * len("." * x.shape[0]),
        lambda x: x * {2: 5, 3: 7, 5: 1, 8: 2}[x.shape[0]],
        lambda x: x * int(str(x.shape[0])),
        lambda x: x * int(f"{x.shape[0]:d}"),
        lambda x: x * (x.shape[0] & 3),
        lambda x: x * x.shape[0].bit_length(),
        lambda x: x * 2 ** x.shape[0],
        lambda x: x + np.ones(x.shape, np.float32),
        lambda x: x + tj.linspace(0.0, 1.0, x.shape[0])[:, None],
    ],
)
def test_whatever_needs_the_number_specialises(body: Any) -> None:
    function = for_any_size(body)
    for size in (*SIZES, *reversed(SIZES)):
        assert_same(function(sample(size, 3)), body(sample(size, 3)))
    assert function.trace_count == len(SIZES)


def test_too_many_sizes_at_one_place_run_eagerly() -> None:
    function = for_any_size(lambda x: sum(x[i] for i in range(x.shape[0])))

    def check(*sizes: int) -> None:
        for size in sizes:
            assert_same(function(sample(size, 3)), sum(sample(size, 3)))

    check(2, 3, 4, 5, 6)
    with pytest.warns(UserWarning, match="traced 6 times in its last 10 calls"):
        check(7)
    check(*range(8, 18))
    with pytest.warns(UserWarning, match="more than 16 different ways"):
        check(18)
    check(2, 18, 30)
    assert function.trace_count == 16


@pytest.mark.parametrize(
    "body",
    [
        lambda x: (x[0], x[-1], x[1:], x[:-1], x[::2], x[::-1], x[:2], x[..., None]),
        lambda x: (
            x[: x.shape[0] // 2],
            x[x.shape[0] // 2 :],
            x[-2:],
            x[:, 1],
            x[None],
        ),
        lambda x: (x[tj.asarray([0, 1, 1])], x[:, tj.asarray([2, 0])]),
        lambda x: (x.T @ x, x @ x.T, tj.einsum("ij,kj->ik", x, x), tj.inner(x, x)),
        lambda x: (
            tj.mean(x),
            tj.var(x, axis=0),
            tj.std(x, correction=1),
            x.mean(0) - x,
        ),
        lambda x: (
            tj.sort(x, axis=0),
            tj.argmax(x, axis=0),
            tj.cumulative_sum(x, axis=0),
        ),
        lambda x: (
            tj.concat([x, x]),
            tj.stack([x, x]),
            tj.tile(x, (2, 1)),
            tj.roll(x, 1),
        ),
        lambda x: (
            tj.pad(x, 1),
            tj.repeat(x, 2, axis=0),
            tj.broadcast_to(x, (4, *x.shape)),
        ),
        lambda x: (
            tj.nn.softmax(x, axis=0),
            tj.nn.relu(x - 0.5),
            tj.where(x > 0.5, x, 0),
        ),
        lambda x: (
            tj.tril(x),
            tj.triu(x, k=1),
            tj.linalg.norm(x),
            tj.fft.fft(x, axis=1),
        ),
        lambda x: (x.at[0].set(1.0), x.at[:, 1].add(2.0), x.at[1:].multiply(2.0)),
        lambda x: x[tj.arange(x.shape[0]), tj.argmax(x, axis=1)],
        lambda x: tj.linalg.solve(x.T @ x + 2 * tj.eye(3), x.T),
    ],
)
def test_these_operations_have_one_trace(body: Any) -> None:
    assert_one_trace(body)


def test_an_index_that_may_be_negative_counts_from_the_end_when_it_is() -> None:
    body = lambda x: x[x.shape[0] - 4]
    function = for_any_size(body)
    for size in (5, 3, 8, 2, 5):
        assert_same(function(sample(size, 3)), body(sample(size, 3)))


def test_an_index_outside_raises_as_eagerly_and_changes_nothing() -> None:
    body = lambda x: x[3]
    function = for_any_size(body)
    assert_same(function(sample(5, 3)), sample(5, 3)[3])
    texts = []
    for f in (body, function):
        with pytest.raises(IndexError) as caught:
            f(sample(3, 3))
        texts.append(str(caught.value))
    assert texts[0] == texts[1]
    assert_same(function(sample(8, 3)), sample(8, 3)[3])
    assert function.trace_count == 1


@pytest.mark.parametrize(
    ("body", "first", "then"),
    [
        (lambda x: x + tj.ones((5, 3)), 5, 4),
        (lambda x: tj.max(x[2:], axis=0), 5, 2),
        (lambda x: tj.reshape(x, (5, 3)), 5, 4),
    ],
)
def test_errors_read_as_they_do_eagerly(body: Any, first: int, then: int) -> None:
    function = for_any_size(body)
    assert_same(function(sample(first, 3)), body(sample(first, 3)))
    fails = sample(then, 3)
    found = []
    for f in (body, function):
        with pytest.raises(ValueError, match="where") as caught:
            f(fails)
        found.append((type(caught.value), str(caught.value)))
    assert found[0] == found[1]


def test_a_size_that_outlives_its_trace_is_refused() -> None:
    kept: list[Any] = []

    @tj.function(input_signature=[LINE])
    def leaking(x: Any) -> Any:
        kept.append(x.shape[0])
        return x

    leaking(sample(4))
    for use in (int, lambda n: n == 4, lambda n: n * tj.ones(2), tj.zeros):
        with pytest.raises(tj.TapejitError, match="trace"):
            use(kept[0])


# Sizes that are equal


def test_two_open_sizes_are_not_taken_for_equal() -> None:
    body = lambda x, y: tj.concat([x, y]) + tj.concat([y, x])
    function = for_any_size(body, LINE, LINE)
    for n, m in ((3, 3), (2, 5), (7, 4)):
        assert_same(function(sample(n), sample(m)), body(sample(n), sample(m)))
    assert function.trace_count == 1


def test_an_operation_that_needs_equal_sizes_asks_whether_they_are() -> None:
    body = lambda x, y: x + y
    function = for_any_size(body, LINE, LINE)
    for size in SIZES:
        x, y = sample(size), sample(size, seed=1)
        assert_same(function(x, y), x + y)
    assert function.trace_count == 1
    texts = []
    for f in (body, function):
        with pytest.raises(ValueError, match="broadcast") as caught:
            f(sample(3), sample(4))
        texts.append(str(caught.value).replace("left   x: ", "left   "))
    assert "f32[3] with f32[4]" in texts[1]
    assert function.trace_count == 1


def test_derived_sizes_that_happen_to_be_one_broadcast() -> None:
    body = lambda x, y: x[1:] * y
    function = for_any_size(body, LINE, LINE)
    for n, m in ((5, 4), (2, 4), (2, 7), (8, 7)):
        assert_same(function(sample(n), sample(m)), body(sample(n), sample(m)))


def test_products_of_matrices_of_any_sizes() -> None:
    matrix = tj.TensorSpec([None, None])
    product = for_any_size(lambda a, b: (a @ b).shape, matrix, matrix)
    for p, q, r in ((3, 3, 3), (2, 4, 5), (5, 2, 2)):
        assert_same(product(sample(p, q), sample(q, r)), (p, r))
    assert product.trace_count == 1


def test_equal_shapes_decided_in_python() -> None:
    body = lambda x, y: x.sum() * 2 if x.shape == y.shape else y.sum()
    function = for_any_size(body, LINE, LINE)
    for n, m in ((3, 3), (3, 4), (5, 5), (4, 2)):
        assert_same(function(sample(n), sample(m)), body(sample(n), sample(m)))
    assert function.trace_count == 2


def test_a_variable_takes_a_value_of_an_open_size_that_fits() -> None:
    v = tj.Variable(tj.zeros((5, 3)))

    @tj.function(input_signature=[ROWS])
    def keep(x: Any) -> Any:
        if x.shape == v.shape:
            v.assign(x)
            return v * 2
        return x

    assert_same(keep(sample(5, 3)), sample(5, 3) * 2)
    assert_same(keep(sample(4, 3)), sample(4, 3))
    assert_same(v.value(), sample(5, 3))
    with pytest.raises(ValueError, match="has shape"):
        for_any_size(lambda x: v.assign(x))(sample(4, 3))


# Derivatives, transforms, effects


def second_gradient(x: Any) -> Any:
    with tj.GradientTape() as tape:
        tape.watch(x)
        s = tj.sum(inner_gradient(x) ** 2)
    return tape.gradient(s, x)


def both_jacobians(x: Any) -> Any:
    with tj.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y, z = x**3, tj.sum(x * x, axis=0)
    return tape.batch_jacobian(y, x), tape.jacobian(z, x)


def forward_tangent(x: Any) -> Any:
    with tj.ForwardAccumulator(x, tj.ones(x.shape)) as accumulator:
        y = loss(x)
    return accumulator.jvp(y)


@pytest.mark.parametrize(
    "body",
    [
        inner_gradient,
        second_gradient,
        both_jacobians,
        forward_tangent,
        lambda x: tj.vmap(lambda row: tj.sum(row) / row.shape[0])(x),
        lambda x: tj.vmap(lambda col: col[1:].sum() / col.shape[0], in_axes=1)(x),
        lambda x: tj.vmap(tj.grad(lambda row: tj.sum(row**3)))(x),
        lambda x: tj.vmap(lambda a, b: a @ b)(x, x[::-1]),
        lambda x: tj.hvp(lambda y: tj.sum(y**3), (x,), (x,)),
        lambda x: tj.value_and_grad(lambda y: tj.mean(y * y.shape[0]))(x),
    ],
)
def test_derivatives_inside_have_one_trace(body: Any) -> None:
    assert_one_trace(body, exact=False)


def test_a_jacobian_with_a_row_per_element_specialises() -> None:
    body = lambda x: tj.jacobian(lambda y: tj.sum(y * y, axis=1))(x)
    function = for_any_size(body)
    for size in SIZES:
        assert_same(function(sample(size, 3)), body(sample(size, 3)))
    assert function.trace_count == len(SIZES)


@pytest.mark.parametrize(
    "derivative",
    [
        lambda f, x: tj.jacobian(f)(x),
        lambda f, x: tj.jvp(f, (x,), (x * 2,)),
        lambda f, x: tj.hvp(lambda y: tj.sum(f(y) ** 2), (x,), (x,)),
        lambda f, x: tj.vmap(f)(tj.stack([x, x + 1])),
        lambda f, x: tj.grad(lambda y: tj.sum(f(y) * f(y * 2)))(x),
        lambda f, x: tj.grad(
            lambda z: tj.sum(tj.grad(lambda y: tj.sum(f(y) ** 2))(z) ** 2)
        )(x),
    ],
)
def test_derivatives_around_a_call_do_not_trace_again(derivative: Any) -> None:
    function = for_any_size(loss)
    function(sample(4, 3))
    for size in (*SIZES, *SIZES):
        x = sample(size, 3)
        assert_same(derivative(function, x), derivative(loss, x), exact=False)
    assert function.trace_count == 1


def test_custom_gradients_see_the_open_size() -> None:
    @tj.custom_gradient
    def scaled(x: Any) -> Any:
        return x * 2, lambda g: tj.clip(g, -0.1, 0.1) * x.shape[0]

    again = tj.recompute_grad(lambda x: tj.tanh(x) * x.shape[0])

    def body(x: Any) -> Any:
        with tj.GradientTape() as tape:
            tape.watch(x)
            y = tj.sum(scaled(x) ** 2) + tj.sum(again(x))
        return tape.gradient(y, x)

    assert_one_trace(body, exact=False)


def test_draws_have_the_open_size() -> None:
    body = lambda x: x + tj.random.normal(x.shape)
    function = for_any_size(body)
    for size in SIZES:
        tj.random.set_seed(size)
        wanted = body(sample(size, 3))
        tj.random.set_seed(size)
        assert_same(function(sample(size, 3)), wanted)
    assert function.trace_count == 1


KEY = tj.random.key(1)
LEDGER = tj.asarray(np.arange(120.0, dtype=np.float32))


@pytest.mark.parametrize(
    "body",
    [
        lambda x: x + tj.random.normal(x.shape, key=KEY),
        lambda x: tj.nn.dropout(x, 0.5, key=KEY),
        lambda x: x + tj.random.uniform((x.shape[0], 1), key=tj.random.fold_in(KEY, 1)),
        lambda x: x + tj.reshape(LEDGER, (x.shape[0], -1))[:, :3],
        lambda x: x + tj.roll(LEDGER, x.shape[0])[:3],
        lambda x: x + tj.broadcast_to(LEDGER[:3], x.shape),
    ],
    ids=["normal", "dropout", "folded", "reshape", "roll", "broadcast_to"],
)
def test_an_open_size_may_be_all_that_is_traced(body: Any) -> None:
    function = for_any_size(body)
    for size in (*SIZES, *SIZES):
        assert_same(function(sample(size, 3)), body(sample(size, 3)))


def test_prints_show_actual_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    @tj.function(input_signature=[ROWS])
    def shown(x: Any) -> Any:
        tj.print("rows", x.shape[0], x.shape)
        return x

    shown(sample(4, 3))
    shown(sample(6, 3))
    assert capsys.readouterr().out == "rows 4 (4, 3)\nrows 6 (6, 3)\n"


def test_threads_with_other_sizes_share_a_trace() -> None:
    function = for_any_size(inner_gradient)

    def work(at: int) -> None:
        for seed in range(10):
            x = sample(at + 2, 3, seed=seed)
            assert_same(function(x), inner_gradient(x), exact=False)

    in_threads(7, work)
    assert function.trace_count == 1


# The Graph


def test_the_graph_is_symbolic_and_reads_back() -> None:
    function = for_any_size(lambda x, y: (x + y) * x.shape[0], LINE, LINE)
    text = str(function.get_concrete_function(sample(3), sample(3)).graph)
    assert "x: f32[n], y: f32[m]" in text
    assert "dim_value size=n" in text
    assert "guard" in text
    assert "with_shape y, shape=(n,)" in text or "with_shape x, shape=(m,)" in text
    assert str(parse_graph(text)) == "\n".join(
        line.split("  #")[0].rstrip() for line in text.splitlines()
    )


def test_a_program_is_bound_to_a_bounded_number_of_sizes() -> None:
    function = for_any_size(loss)
    for _ in range(2):
        for size in range(2, 100):
            assert_same(function(sample(size, 3)), loss(sample(size, 3)))
    graph = function.get_concrete_function().graph
    assert function.trace_count == 1
    assert len(graph.program.bound) <= 64


def test_graphs_of_open_sizes_pass_the_checks() -> None:
    with tj.config.override(check=True):
        for body in (loss, inner_gradient, lambda x: tj.vmap(lambda row: row * 2)(x)):
            assert_one_trace(body, exact=False)
