"""Native code in parts, among what NumPy does: nothing fails before its turn.

A guard that does not hold says that another Graph is the right one. What follows the
guard has no meaning then, so it must not have failed by that time, whatever segment the
guard waits for.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tapejit as tj

Shapes = tuple[tuple[int, ...], ...]


@pytest.fixture(autouse=True)
def native() -> Any:
    with tj.config.override(native=True, cache=False):
        yield


def sample(*shape: int) -> tj.Tensor:
    return tj.asarray(np.random.default_rng(sum(shape)).standard_normal(shape))


def in_threes(x: Any) -> Any:
    return tj.reshape(tj.tanh(x), (-1, 3)) @ tj.ones((3, 2), dtype=x.dtype)


def attention(q: Any, k: Any, v: Any) -> Any:
    return tj.nn.softmax(q @ tj.matrix_transpose(k)) @ v


def attention_if(q: Any, k: Any, v: Any) -> Any:
    """A guard of values, then those of sizes."""
    return attention(q, k, v) if tj.sum(q * q) > 0 else v


def attention_sizes(*sizes: tuple[int, int, int]) -> list[Shapes]:
    return [((n, t, 8), (n, s, 8), (n, s, 5)) for n, t, s in sizes]


OPEN: dict[str, tuple[Any, list[Any], list[Shapes]]] = {
    "reshape": (in_threes, [[None]], [((6,),), ((9,),), ((12,),), ((6,),)]),
    "products": (
        attention,
        [[None, None, 8], [None, None, 8], [None, None, 5]],
        attention_sizes((2, 4, 7), (3, 9, 11), (3, 9, 9), (2, 4, 7)),
    ),
    "values first": (
        attention_if,
        [[None, None, 8], [None, None, 8], [None, None, 5]],
        attention_sizes((2, 4, 7), (3, 9, 11), (3, 2, 2), (2, 4, 7)),
    ),
}


@pytest.mark.parametrize("name", OPEN)
def test_sizes_are_asked_for_before_they_are_taken_for_known(name: str) -> None:
    body, specs, calls = OPEN[name]
    signature = [tj.TensorSpec(spec, tj.float64) for spec in specs]
    function = tj.function(body, input_signature=signature)
    for shapes in calls:
        xs = [sample(*shape) for shape in shapes]
        np.testing.assert_allclose(function(*xs), body(*xs), rtol=1e-12)


FACTORED: dict[str, Any] = {
    "inv": tj.linalg.inv,
    "cholesky": tj.linalg.cholesky,
    "solve": lambda x: tj.linalg.solve(x, tj.ones((3,), dtype=x.dtype)),
    "svd": tj.linalg.svdvals,
}


@pytest.mark.parametrize("name", FACTORED)
def test_what_a_guard_rules_out_does_not_fail(name: str) -> None:
    def body(x: Any) -> Any:
        if tj.all(tj.isfinite(x)) and tj.sum(x) > 0:
            return tj.exp(FACTORED[name](x))
        return x * 2

    function = tj.function(body)
    good = np.eye(3) + 0.1
    zeros, nan = np.zeros((3, 3)), np.full((3, 3), np.nan)
    for x in (good, zeros, good, nan, good, -good, good):
        given = tj.asarray(x)
        np.testing.assert_allclose(function(given), body(given), rtol=1e-12)


def test_what_is_printed_first_is_seen_before_a_failure(
    capsys: pytest.CaptureFixture[str],
) -> None:
    @tj.function
    def step(x: Any) -> Any:
        tj.print("sum", tj.sum(x))
        return tj.exp(tj.linalg.cholesky(x))

    step(tj.asarray(np.eye(3)))
    with pytest.raises(tj.LinAlgError):
        step(tj.asarray(-np.eye(3)))
    shown = capsys.readouterr()
    assert (shown.out + shown.err).count("sum") == 2


def test_a_matrix_that_is_not_positive_definite_fails_though_nobody_uses_it() -> None:
    def body(x: Any) -> Any:
        tj.linalg.cholesky(x)
        return x * 2

    for call in (body, tj.function(body)):
        with pytest.raises(tj.LinAlgError):
            call(tj.asarray(-np.eye(3)))


def test_an_index_is_asked_for_before_it_is_used() -> None:
    def body(x: Any) -> Any:
        return tj.exp(x[3])

    function = tj.function(body, input_signature=[tj.TensorSpec([None, 3], tj.float64)])
    np.testing.assert_allclose(function(sample(5, 3)), body(sample(5, 3)), rtol=1e-12)
    with pytest.raises(IndexError) as eager:
        body(sample(3, 3))
    with pytest.raises(IndexError) as ours:
        function(sample(3, 3))
    assert str(ours.value).split("\n")[0] == str(eager.value).split("\n")[0]


def test_random_numbers_of_an_open_size() -> None:
    """How far a generator goes on depends on the size, though its state has none."""

    generator = tj.random.Generator(0)

    def body(x: Any) -> Any:
        return tj.nn.dropout(tj.exp(x), 0.5, generator=generator)

    function = tj.function(body, input_signature=[tj.TensorSpec([None, 3], tj.float64)])
    for size in (4, 7):
        before = generator.state
        expected, state = body(sample(size, 3)), generator.state
        generator.state = before
        np.testing.assert_allclose(function(sample(size, 3)), expected, rtol=1e-12)
        np.testing.assert_array_equal(generator.state, state)
