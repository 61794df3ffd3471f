"""Random numbers in every mode: each call draws what the plain program draws."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tapejit as tj

from .both_modes import assert_modes

random = tj.random


def setup() -> Any:
    random.set_seed(3)
    return random.Generator(5), tj.asarray([1.0, 2.0, 3.0])


def generators(g: Any, x: Any) -> list[Any]:
    return [g._variable, random.default_generator()._variable]


def assert_agree(program: Callable[..., Any], **options: Any) -> Any:
    """Every mode draws the same, and leaves the generators in the same state."""
    return assert_modes(program, setup, state=generators, traces=None, **options)


DRAWS: dict[str, Callable[[Any, Any], Any]] = {
    "normal": lambda g, x: g.normal(3) * x,
    "uniform": lambda g, x: g.uniform((2, 3), -1, 1) + x,
    "bernoulli": lambda g, x: g.bernoulli(0.5, 8),
    "integers": lambda g, x: g.integers(10, shape=4),
    "permutation": lambda g, x: (g.permutation(5), g.permutation(x)),
    "truncated_normal": lambda g, x: g.truncated_normal(0, 1, shape=3),
    "exponential": lambda g, x: g.exponential(3),
    "gamma": lambda g, x: g.gamma(x),
    "beta": lambda g, x: g.beta(x, 2.0),
    "laplace": lambda g, x: g.laplace(3),
    "gumbel": lambda g, x: g.gumbel(3),
    "poisson": lambda g, x: g.poisson(x),
    "categorical": lambda g, x: g.categorical(x, 4),
    "choice": lambda g, x: (g.choice(x, 4), g.choice(5, 3, replace=False)),
    "shuffle": lambda g, x: g.shuffle(x),
    "shape of an argument": lambda g, x: g.normal(x.shape),
    "default": lambda g, x: (random.normal(3) * x, random.uniform(2)),
    "both": lambda g, x: (random.normal(2), g.normal(2), random.normal(2)),
    "doubles": lambda g, x: g.normal(3, dtype="float64"),
    "mask": lambda g, x: tj.where(g.bernoulli(0.5, x.shape), x * 2.0, 0.0),
    "unused": lambda g, x: (g.normal(3), x)[1],
    "in a loop": lambda g, x: [x * g.uniform() for _ in range(4)],
}


@pytest.mark.parametrize("name", DRAWS)
def test_s51_every_call_draws_anew(name: str) -> None:
    program = DRAWS[name]
    assert_agree(program)
    g, x = setup()
    other, _ = setup()
    call = tj.function(program)
    for _ in range(3):
        state = random.default_generator().state
        expected = tj.tree.map(np.asarray, program(other, x))
        random.default_generator().state = state
        found = tj.tree.map(np.asarray, call(g, x))
        tj.tree.map(np.testing.assert_array_equal, found, expected)
        assert g.state.tolist() == other.state.tolist()
    assert call.trace_count == 1


def test_s51_a_seed_that_is_set_in_the_body() -> None:
    def program(g: Any, x: Any) -> Any:
        before = random.normal(3)
        random.set_seed(4)
        middle = random.normal(3)
        random.set_seed(4)
        return before, middle - random.normal(3), middle * x

    result = assert_agree(program).result
    assert result[1].tolist() == [0.0, 0.0, 0.0]
    assert random.default_generator().seed == 4

    def resets(g: Any, x: Any) -> Any:
        g.reset(9)
        return g.normal(3) * x

    assert_agree(resets)
    g, x = setup()
    call = tj.function(resets)
    for _ in range(2):
        g.reset(5)
        call(g, x)
        assert g.seed == 9, "also when the body does not run again"


def test_s51_the_state_is_read_and_put_back() -> None:
    def program(g: Any, x: Any) -> Any:
        before = g.state
        first = g.normal(3)
        g.state = before
        second = g.normal(3)
        keyed = random.normal(3, key=before)
        return first - second, first - keyed, first * x

    first, second, _ = assert_agree(program).result
    assert first.tolist() == second.tolist() == [0.0, 0.0, 0.0]


KEYED: dict[str, Callable[[Any, Any], Any]] = {
    "a key": lambda g, x: random.normal(3, key=random.key(3)) * x,
    "split": lambda g, x: [
        random.normal(3, key=k) for k in random.split(random.key(3))
    ],
    "state": lambda g, x: random.normal(3, key=g.state) * x + g.normal(3),
    "mapped": lambda g, x: tj.vmap(lambda k: random.normal(2, key=k))(
        random.split(random.key(1), 3)
    ),
}


@pytest.mark.parametrize("name", KEYED)
def test_s51_keys(name: str) -> None:
    assert_agree(KEYED[name])


def test_s51_a_key_as_an_argument() -> None:
    draw = tj.function(lambda key: random.uniform(2, key=key))
    for seed in (1, 2, 3):
        expected = random.uniform(2, key=random.key(seed)).tolist()
        assert draw(random.key(seed)).tolist() == expected
    assert draw.trace_count == 1


def test_s51_generators_split_off_in_the_body() -> None:
    def program(g: Any, x: Any) -> Any:
        first, second = g.split(2)
        drawn = first.normal(3), second.normal(3), first.uniform(), g.normal()
        return drawn, [h.integers(100) for h in g.split(3)]

    assert_agree(program)
    g, x = setup()
    call = tj.function(program)
    numbers = [call(g, x)[0][0].tolist() for _ in range(3)]
    assert len({tuple(row) for row in numbers}) == 3, "others in each call"
    assert call.trace_count == 1


def test_s51_generators_made_in_the_body_start_anew_in_each_call() -> None:
    def program(g: Any, x: Any) -> Any:
        own = random.Generator(7)
        ahead = g.jump(2)
        return own.normal(2), own.normal(2), ahead.normal(3) * x, ahead.uniform()

    assert_agree(program)
    g, x = setup()
    call = tj.function(program)
    rows = [[y.tolist() for y in call(g, x)] for _ in range(3)]
    assert rows[0] == rows[1] == rows[2]
    assert rows[0][0] != rows[0][1]
    assert call.trace_count == 1


def test_s51_a_generator_that_is_made_once_and_kept_goes_on() -> None:
    def draw(decorate: Callable[[Any], Any]) -> list[Any]:
        kept: list[Any] = []

        def body(x: Any) -> Any:
            if not kept:
                kept.append(random.Generator(7))
            return kept[0].normal(2) * x

        call = decorate(body)
        numbers = [call(tj.ones(2)).tolist() for _ in range(3)]
        return [*numbers, kept[0].state.tolist(), repr(kept[0])]

    assert draw(tj.function) == draw(lambda body: body)


def test_s51_what_a_generator_says_of_itself() -> None:
    def program(g: Any, x: Any) -> Any:
        g.normal(3)
        assert "seed 5, 1 blocks" in repr(g)
        assert g.seed == 5
        g.reset(8)
        assert g.seed == 8
        return g.normal()

    assert_agree(program)


@pytest.mark.filterwarnings("ignore:.*was traced 6 times:UserWarning")
def test_s51_python_may_branch_on_what_is_drawn() -> None:
    def program(g: Any, x: Any) -> Any:
        count = 0
        while g.uniform() > 0.4:
            count += 1
        return x * count if g.uniform() > 0.5 else g.normal(3)

    assert_agree(program)
    (g, x), (other, _) = setup(), setup()
    call = tj.function(program)
    for _ in range(12):
        assert call(g, x).tolist() == program(other, x).tolist()
        assert g.state.tolist() == other.state.tolist()


TRANSFORMED: dict[str, Callable[[Any, Any], Any]] = {
    "vmap": lambda g, x: tj.vmap(lambda row: row * g.normal())(x),
    "vmap, default": lambda g, x: tj.vmap(lambda row: row * random.normal(2))(x),
    "vmap, twice": lambda g, x: tj.vmap(lambda row: g.normal() + g.normal())(x),
    "vmap in vmap": lambda g, x: tj.vmap(
        lambda row: tj.vmap(lambda y: row * y * g.normal())(x)
    )(x),
    "vmap, then more": lambda g, x: (
        tj.vmap(lambda row: row * g.uniform())(x),
        g.uniform(3),
    ),
    "grad": lambda g, x: tj.grad(lambda y: tj.sum(y * y * g.normal(3)))(x),
    "jacobian": lambda g, x: tj.jacobian(lambda y: y * y * g.normal(3))(x),
    "hessian": lambda g, x: tj.hessian(lambda y: tj.sum(y**3 * g.normal(3)))(x),
    "jvp": lambda g, x: tj.jvp(lambda y: y * y * g.normal(3), (x,), (x,)),
    "vmap of grad": lambda g, x: tj.vmap(tj.grad(lambda y: y * y * g.normal()))(x),
    "recompute_grad": lambda g, x: tj.grad(
        tj.recompute_grad(lambda y: tj.sum(y * y * g.normal(3)))
    )(x),
}


@pytest.mark.parametrize("name", TRANSFORMED)
def test_s51_draws_under_transforms(name: str) -> None:
    assert_agree(TRANSFORMED[name])


def test_s51_jacobians_of_a_tape_over_draws() -> None:
    def program(g: Any, x: Any) -> Any:
        with tj.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = x * g.normal(3) * random.uniform(3)
        return tape.jacobian(y, x), tape.gradient(y, x), g.normal()

    jacobian, gradient, _ = assert_agree(program).result
    np.testing.assert_array_equal(np.diag(jacobian), gradient)


def test_s51_a_tape_around_a_call_that_draws() -> None:
    g, x = setup()
    call = tj.function(lambda x: x * x * g.normal(3))
    for _ in range(3):
        state = g.state
        with tj.GradientTape() as tape:
            tape.watch(x)
            y = call(x)
        found = tape.gradient(y, x)
        after = g.state.tolist()
        g.state = state
        np.testing.assert_array_equal(found, 2.0 * x * g.normal(3))
        assert g.state.tolist() == after, "the gradient draws nothing"
    assert call.trace_count == 1


def test_s51_functions_share_the_default_generator_in_order() -> None:
    inner = tj.function(lambda x: x * random.normal(3))

    def program(g: Any, x: Any) -> Any:
        return inner(x), random.uniform(), inner(x)

    assert_agree(program)


def test_s51_an_argument_that_is_a_generator_is_that_generator() -> None:
    draw = tj.function(lambda g: g.normal())
    one, two = random.Generator(1), random.Generator(2)
    expected = [
        random.Generator(1).normal().item(),
        random.Generator(2).normal().item(),
    ]
    assert [draw(one).item(), draw(two).item()] == expected
    assert draw(one).item() != expected[0]
    assert one.state.tolist() != random.Generator(1).state.tolist()
