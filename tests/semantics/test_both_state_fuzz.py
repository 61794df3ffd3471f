"""Random programs of reads, writes, draws, branches and tapes, in every mode.

A program is a list of steps on three variables, a generator, an argument and the
values made so far. It is run as plain Python and decorated, on the same series of
arguments, with and without a tape around: results, gradients, the variables and the
generator must be the same after every call. Some steps fail for some arguments; the
plain run then puts back what the decorated one must not have changed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import tapejit as tj
from tapejit.tape import variable

Step = Callable[["Machine"], None]


class Machine:
    """What a program works on: `a`, `b`, `c`, a generator, and the values so far.

    Those in `needed` are returned: what nobody uses need not be computed.
    """

    def __init__(self) -> None:
        self.variables = [
            tj.Variable([0.5, -1.0, 2.0], name="a", dtype="float64"),
            tj.Variable([1.5, 0.25, -0.5], name="b", dtype="float64"),
            tj.Variable([1.0, 1.0, 1.0], name="c", dtype="float64", trainable=False),
        ]
        self.generator = tj.random.Generator(11)
        self.values: list[Any] = []
        self.needed: list[Any] = []

    def state(self) -> list[Any]:
        return [v.value() for v in (*self.variables, self.generator._variable)]

    def put_back(self, state: list[Any]) -> None:
        for v, value in zip(
            (*self.variables, self.generator._variable), state, strict=True
        ):
            v.assign(value)

    def value(self, at: int) -> Any:
        return self.values[at % len(self.values)]

    def keep(self, x: Any) -> None:
        self.values.append(tj.tanh(x))


def read(rng: Any) -> Step:
    which, how = rng.integers(3), rng.integers(4)

    def step(m: Machine) -> None:
        v = m.variables[which]
        m.keep([v * 1.5, v.value(), v[::-1] * v, v @ v + v][how])

    return step


def combine(rng: Any) -> Step:
    i, j, how = rng.integers(100), rng.integers(100), rng.integers(4)

    def step(m: Machine) -> None:
        x, y = m.value(i), m.value(j)
        m.keep([x + y, x * y, tj.where(x > y, x, y * 2.0), tj.maximum(x, y)][how])

    return step


def write(rng: Any) -> Step:
    which, i, how = rng.integers(3), rng.integers(100), rng.integers(9)

    def step(m: Machine) -> None:
        v, x = m.variables[which], m.value(i)
        result = [
            lambda: v.assign(x),
            lambda: v.assign_add(x),
            lambda: v.assign_sub(x * 0.5),
            lambda: v[1:].assign(x[:2]),
            lambda: v[0].assign_add(x[2]),
            lambda: v.scatter_add([0, 2, 0], x),
            lambda: v.scatter_update([2, 1], x[1:]),
            lambda: v.scatter_max([2, 1, 2], x),
            lambda: v.scatter_sub([1, 1, 0], x),
        ][how]()
        if i % 2:
            m.keep(result)

    return step


def draw(rng: Any) -> Step:
    how = rng.integers(3)

    def step(m: Machine) -> None:
        g = m.generator
        if how == 0:
            m.keep(g.normal(3, dtype="float64"))
        elif how == 1:
            m.keep(g.split(1)[0].uniform(3, dtype="float64"))
        else:
            m.keep(tj.vmap(lambda x: x * g.uniform(dtype="float64"))(m.value(0)))

    return step


def branch(rng: Any) -> Step:
    i, one, other = rng.integers(100), write(rng), combine(rng)

    def step(m: Machine) -> None:
        if tj.sum(m.value(i)) > 0.0:
            one(m)
        else:
            other(m)

    return step


def tape(rng: Any) -> Step:
    inner = [some_step(rng) for _ in range(rng.integers(1, 4))]
    which, is_nested = rng.integers(3), rng.integers(2)

    def step(m: Machine) -> None:
        v = m.variables[which]
        with tj.GradientTape(persistent=bool(is_nested)) as t:
            if which == 2:
                t.watch(v)
            m.keep(v * v)
            for each in inner:
                each(m)
        g = t.gradient(m.values[-1], v, unconnected_gradients="zero")
        m.keep(g)
        if is_nested:
            v.assign_sub(0.1 * t.gradient(m.values[-2:], v, None, "zero"))

    return step


def nested(rng: Any) -> Step:
    inner = [some_step(rng) for _ in range(2)]

    def step(m: Machine) -> None:
        def body(x: Any) -> Any:
            m.keep(x)
            for each in inner:
                each(m)
            return m.value(-1), m.needed[before[1] :]

        before = len(m.values), len(m.needed)
        result, needed = tj.function(body)(m.value(0))
        del m.values[before[0] :]
        m.needed[before[1] :] = needed
        m.keep(result)

    return step


def fail(rng: Any) -> Step:
    i, how = rng.integers(100), rng.integers(3)

    def step(m: Machine) -> None:
        x = m.value(i)
        if how == 0:
            at = tj.where(tj.sum(x) > 1.5, 3, 1)
            m.needed.append(x[at])
        elif how == 1:
            tj.debug.assert_less(tj.sum(x), 1.8)
        elif tj.sum(x) > 1.7:
            raise KeyError("too large")

    return step


KINDS = [read, combine, write, draw, branch, tape, nested, fail]
WEIGHTS = np.array([3, 3, 4, 1, 1, 1, 1, 0.5])


def some_step(rng: Any) -> Step:
    kind = rng.choice(len(KINDS), p=WEIGHTS / WEIGHTS.sum())
    return KINDS[kind](rng)


def program_of(rng: Any) -> Callable[[Machine, Any], Any]:
    steps = [some_step(rng) for _ in range(rng.integers(3, 9))]
    shown = rng.integers(100, size=2)

    def program(m: Machine, x: Any) -> Any:
        m.values, m.needed = [x], []
        for step in steps:
            step(m)
        return [m.value(at) for at in shown], m.values[-1], m.needed

    return program


def run(call: Any, m: Machine, x: Any, taped: bool) -> Any:
    """Results and gradients, or the class of the error."""
    try:
        if not taped:
            return [np.asarray(y) for y in tj.tree.leaves(call(x))]
        with tj.GradientTape(persistent=True) as outer:
            outer.watch(x)
            results = tj.tree.leaves(call(x))
    except (KeyError, IndexError, tj.CheckFailed) as error:
        return type(error)
    finally:
        m.values, m.needed = [], []
    sources = [*m.variables, x]
    found = [outer.gradient(y, sources) for y in results]
    return [
        *[np.asarray(y) for y in results],
        *[None if g is None else np.asarray(g) for g in tj.tree.leaves(found)],
        *[g is None for row in found for g in row],
        [v.name for v in outer.watched_variables()],
    ]


def assert_same(got: Any, plain: Any, where: str) -> None:
    assert type(got) is type(plain), f"{where}: {got} is not {plain}"
    if isinstance(got, (list, tuple)):
        assert len(got) == len(plain), where
        for x, y in zip(got, plain, strict=True):
            assert_same(x, y, where)
    elif isinstance(got, np.ndarray | np.generic):
        np.testing.assert_allclose(got, plain, rtol=1e-12, atol=1e-14, err_msg=where)
    else:
        assert got == plain, where


@pytest.mark.filterwarnings("ignore:.*was traced 6 times:UserWarning")
@pytest.mark.parametrize("block", range(6))
def test_random_programs_with_state(
    block: int, full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(variable, "_tracked_warned", True)
    count = 500 if full else 12
    for seed in range(block * count, (block + 1) * count):
        rng = np.random.default_rng(seed)
        program = program_of(rng)
        plain, decorated = Machine(), Machine()
        call = tj.function(partial(program, decorated))
        arguments = rng.normal(size=(4, 3))
        for at, data in enumerate(arguments[[0, 0, 1, 2, 0, 3]]):
            where = f"program {seed}, call {at}"
            x = tj.asarray(data)
            before = plain.state()
            wanted = run(partial(program, plain), plain, x, taped=at % 2 == 1)
            if isinstance(wanted, type):
                plain.put_back(before)
            got = run(call, decorated, x, taped=at % 2 == 1)
            assert_same(got, wanted, where)
            states = [[np.asarray(x) for x in m.state()] for m in (decorated, plain)]
            assert_same(*states, f"{where}: the state")
