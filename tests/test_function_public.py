"""Every public function that takes tensors, called eagerly and traced: no difference.

The calls are those of `public_calls.py`. Both modes get the same arguments and are
compared in values, dtypes, gradients and errors; random functions also in the state
they leave behind. Arguments are then replaced by others of other kinds, which many
functions refuse: with the same error in both modes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from public_calls import CALLS, EXEMPT, ROW_MASK, SIGNED, Call, V, public_functions
from two_modes import (
    Outcome,
    assert_modes_agree,
    assert_near,
    frozen,
    gradients,
    is_error,
    outcome,
)

import tapejit as tj
from tapejit.base import tree

PUBLIC = dict(public_functions())
NAMES = [pytest.param(name, id=name) for name in sorted(CALLS)]


def test_every_public_function_is_called_or_exempt_for_a_reason() -> None:
    assert sorted({*CALLS, *EXEMPT}) == sorted(PUBLIC)
    assert not set(CALLS) & set(EXEMPT)
    assert all(EXEMPT.values())


# Calls with their arrays as tensors


def is_array(x: Any) -> bool:
    return isinstance(x, np.ndarray)


def leaves_of(given: Call) -> tuple[list[Any], Any]:
    """The arguments as a flat list, with arrays as Tensors, and their structure."""
    leaves, structure = tree.flatten((given.args, given.options), none_is_leaf=True)
    return [tj.asarray(x) if is_array(x) else x for x in leaves], structure


def body_of(name: str, structure: Any) -> Callable[..., Any]:
    """The function of flat arguments; what is drawn starts from the same seed."""
    function = PUBLIC[name]

    def body(*leaves: Any) -> Any:
        args, options = tree.unflatten(structure, list(leaves))
        return function(*args, **options)

    return body


def seeded(body: Callable[..., Any]) -> Callable[..., Any]:
    """With the generator in a known state before, and its state among the results."""

    def call(*leaves: Any) -> Any:
        tj.random.set_seed(17)
        found = body(*leaves)
        return found, tj.random.default_generator().state

    return call


def changed(leaves: list[Any]) -> list[Any]:
    """Arguments of the same types with other values."""
    return [
        x * x.dtype.type(0.875) if isinstance(x, tj.Tensor) and is_inexact(x) else x
        for x in leaves
    ]


def is_inexact(x: tj.Tensor) -> bool:
    return x.dtype.kind in "fc"


@pytest.mark.parametrize("name", NAMES)
def test_values_are_the_eager_ones_bit_for_bit(name: str) -> None:
    for at, given in enumerate(CALLS[name]):
        leaves, structure = leaves_of(given)
        body = body_of(name, structure)
        function = tj.function(body)
        found = assert_modes_agree(
            seeded(body),
            *[leaves, changed(leaves), leaves],
            where=f"{name}, row {at}",
            traced=seeded(function),
        )
        assert not is_error(found), f"{name}, row {at}: {found}"
        assert function.trace_count in (1, 2)  # two if the values decided a size


# Gradients


def inexact_sum(found: Any) -> list[Any]:
    """What of a result can be differentiated."""
    leaves, _ = tree.flatten(found)
    return [x for x in leaves if isinstance(x, tj.Tensor) and is_inexact(x)]


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_the_eager_ones_inside_and_around(name: str) -> None:
    for at, given in enumerate(CALLS[name]):
        leaves, structure = leaves_of(given)
        positions = [
            i
            for i, x in enumerate(leaves)
            if isinstance(x, tj.Tensor) and is_inexact(x)
        ]
        body = body_of(name, structure)

        def target(*leaves: Any, body: Any = body) -> list[Any]:
            return inexact_sum(body(*leaves))

        def slopes(
            *leaves: Any, of: Any = target, by: list[int] = positions
        ) -> list[Any]:
            return gradients(of, leaves, by)

        calls = leaves, changed(leaves)
        where = f"{name}, row {at}"
        inside = tj.function(slopes)
        assert_modes_agree(
            seeded(slopes), *calls, where=f"{where}: inside", traced=seeded(inside)
        )
        around = tj.function(target)
        for args in calls:
            expected, state = seeded(slopes)(*args)
            found, left = seeded(gradients)(around, args, positions)
            assert_near(found, expected, f"{where}: around")
            assert frozen(left) == frozen(state)


# Other arguments

OTHERS: dict[str, Callable[[tj.Tensor], Any]] = {
    "bool": lambda x: x.astype("bool"),
    "int32": lambda x: x.astype("int32"),
    "uint8": lambda x: tj.asarray(np.abs(np.nan_to_num(x.numpy())).astype("uint8")),
    "float16": lambda x: tj.real(x).astype("float16"),
    "float64": lambda x: tj.real(x).astype("float64"),
    "complex64": lambda x: x.astype("complex64"),
    "one element": lambda x: tj.ravel(x)[0],
    "empty": lambda x: x[:0],
    "one axis more": lambda x: x[None],
    "one axis less": lambda x: x[0],
    "one row less": lambda x: x[1:],
}
WRONG: dict[str, Any] = {"text": "text", "nothing": None, "an object": object}


@pytest.mark.parametrize("name", NAMES)
def test_other_kinds_of_arguments_have_the_same_outcome(name: str, full: bool) -> None:
    errors = 0
    calls = [c for c in CALLS[name] if has_arrays(c)]
    for given in calls if full else calls[:1]:
        leaves, structure = leaves_of(given)
        places = [i for i, x in enumerate(leaves) if isinstance(x, tj.Tensor)]
        for place in places:
            for kind, change in [*OTHERS.items(), *WRONG.items()]:
                x = leaves[place]
                other = change if kind in WRONG else attempt(change, x)
                if other is UNCHANGED:
                    continue
                args = [*leaves[:place], other, *leaves[place + 1 :]]
                where = f"{name} with {kind} at {place}"
                errors += is_error(assert_outcomes_agree(name, structure, args, where))
    assert errors or not calls, "text is refused by everything"


def has_arrays(given: Call) -> bool:
    leaves, _ = leaves_of(given)
    return any(isinstance(x, tj.Tensor) and x.size for x in leaves)


UNCHANGED = object()


def attempt(change: Callable[[tj.Tensor], Any], x: tj.Tensor) -> Any:
    """Another tensor, if `x` can be made into it."""
    if not x.ndim or not x.size:
        return UNCHANGED
    return change(x)


def assert_outcomes_agree(
    name: str, structure: Any, args: list[Any], where: str
) -> Outcome:
    body = body_of(name, structure)
    expected = outcome(lambda: seeded(body)(*args))
    function = tj.function(body)
    for call in range(2):
        with warnings.catch_warnings():
            if is_complex_unique(name, args):
                warnings.filterwarnings("ignore", "body needs a value while it is")
            found = outcome(lambda: seeded(function)(*args))
        assert found == expected, f"{where}, call {call}"
    return expected


def is_complex_unique(name: str, args: list[Any]) -> bool:
    """The one call here that runs eagerly: no op sorts complex numbers."""
    dtype = getattr(args[0], "dtype", None)
    return name.startswith("unique_") and dtype == np.complex64


def with_axis() -> list[str]:
    return [
        name for name in sorted(CALLS) if any("axis" in c.options for c in CALLS[name])
    ]


@pytest.mark.parametrize("name", with_axis())
def test_an_axis_that_is_not_there_is_the_same_error(name: str) -> None:
    for given in CALLS[name]:
        if "axis" not in given.options:
            continue
        for axis in (7, -8, "x"):
            leaves, structure = leaves_of(
                Call(given.args, {**given.options, "axis": axis})
            )
            where = f"{name} along {axis}"
            assert is_error(assert_outcomes_agree(name, structure, leaves, where))


# A generator of one's own

DRAWS = {
    "uniform": lambda g: g.uniform((3,)),
    "normal": lambda g: g.normal((2, 2), stddev=tj.asarray([1.0, 2.0])),
    "bernoulli": lambda g: g.bernoulli(tj.asarray(V)),
    "integers": lambda g: g.integers(0, 10, (4,)),
    "permutation": lambda g: g.permutation(tj.asarray(SIGNED)),
    "truncated_normal": lambda g: g.truncated_normal(shape=(3,)),
    "exponential": lambda g: g.exponential((3,)),
    "gamma": lambda g: g.gamma(tj.asarray(V)),
    "beta": lambda g: g.beta(tj.asarray(V), 2.0),
    "laplace": lambda g: g.laplace((3,)),
    "gumbel": lambda g: g.gumbel((3,)),
    "poisson": lambda g: g.poisson(tj.asarray(V)),
    "categorical": lambda g: g.categorical(tj.asarray(SIGNED)),
    "choice": lambda g: g.choice(tj.asarray(V), (2,), replace=False),
    "shuffle": lambda g: g.shuffle(tj.asarray(V)),
}
NO_DRAWS = {"seed", "state", "reset", "split", "jump", "to"}


def test_every_method_of_a_generator_is_drawn_from() -> None:
    methods = {name for name in dir(tj.random.Generator) if not name.startswith("_")}
    assert methods - NO_DRAWS == set(DRAWS)


@pytest.mark.parametrize("name", sorted(DRAWS))
def test_a_generator_advances_equally(name: str) -> None:
    draw = DRAWS[name]
    eager, traced = tj.random.Generator(23), tj.random.Generator(23)
    function = tj.function(lambda: (draw(traced), draw(traced)))
    for _ in range(3):
        assert frozen(function()) == frozen((draw(eager), draw(eager)))
        assert frozen(traced.state) == frozen(eager.state)
    assert function.trace_count == 1


def test_a_call_that_fails_leaves_the_generator_as_it_was() -> None:
    generator = tj.random.Generator(23)

    @tj.function
    def draw(index: Any) -> Any:
        return generator.normal((3,))[index]

    draw(tj.asarray([0]))
    before = frozen(generator.state)
    with pytest.raises(IndexError):
        draw(tj.asarray([9]))
    assert frozen(generator.state) == before


@pytest.mark.parametrize("p", [[0.5, -0.5], [0.0, 0.0], [np.nan, 1.0], [np.inf, 1.0]])
def test_probabilities_that_are_none_are_the_same_error(p: list[float]) -> None:
    def draw(p: Any) -> Any:
        return tj.random.choice(2, (3,), p=p)

    good, bad = tj.asarray([0.25, 0.75]), tj.asarray(p)
    function = tj.function(draw)
    for args in [good], [bad], [good], [bad]:
        expected = outcome(lambda args=args: seeded(draw)(*args))
        assert outcome(lambda args=args: seeded(function)(*args)) == expected
    assert is_error(outcome(lambda: draw(bad)))


def test_too_many_different_ones_are_the_same_error() -> None:
    def draw(p: Any) -> Any:
        return tj.random.choice(4, (3,), replace=False, p=p)

    good, bad = tj.asarray(V), tj.asarray(V * ROW_MASK * [1, 1, 0, 1])
    function = tj.function(draw)
    for args in [good], [bad.astype("float32")]:
        expected = outcome(lambda args=args: seeded(draw)(*args))
        assert outcome(lambda args=args: seeded(function)(*args)) == expected
