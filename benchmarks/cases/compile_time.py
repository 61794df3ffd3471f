"""How long a function takes from Python to its first result, by the size of its graph.

Graphs are random: eight arrays, and in each step one of them replaced by an operation
on itself and another, so every node counts. Each call compiles a graph that has not
been seen, runs it once and throws it away; times are per node, so a compiler that takes
linear time has the same number at each size. `compile_time/linear` says it in one
ratio: a graph of 2,000 nodes against the same graph in four functions of 500.

JAX is there for the smallest graph only, where it takes a second or more: 1,000 nodes
took it about half a minute on two busy cores, and a case compiles four such graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.case import Array, AtLeast, Case, Program, Within

SLOTS, SHAPE = 8, (64, 32)


def steps(m: Any, seed: int, nodes: int, state: tuple[Any, ...]) -> tuple[Any, ...]:
    """`nodes` random operations on the arrays of `state`.

    No value grows beyond 1, and products, which would vanish, go through a cosine.
    """
    rng = np.random.default_rng(seed)
    slots = list(state)
    while nodes > 0:
        i, j = rng.choice(SLOTS, size=2, replace=False)
        x, y = slots[i], slots[j]
        match int(rng.integers(8)) if nodes >= 3 else 0:
            case 0:
                slots[i], used = m.cos(x), 1
            case 1:
                slots[i], used = m.tanh(x), 1
            case 2:
                slots[i], used = m.maximum(x, y), 1
            case 3:
                slots[i], used = m.cos(x * y), 2
            case 4:
                slots[i], used = 0.5 * (x + y), 2
            case 5:
                slots[i], used = 0.5 * (x - y), 2
            case 6:
                slots[i], used = m.cos(x * m.mean(y, axis=1, keepdims=True)), 3
            case _:
                slots[i], used = m.cos(x * m.max(y, axis=0, keepdims=True)), 3
        nodes -= used
    return tuple(slots)


def graph_of(m: Any, seed: int, nodes: int) -> Callable[..., Any]:
    """The function whose graph these steps are."""

    def graph(*state: Any) -> Any:
        return steps(m, seed, nodes, state)

    return graph


def make_inputs(rng: np.random.Generator) -> tuple[Array, ...]:
    """The eight arrays, between -1 and 1."""
    return tuple(rng.uniform(-1, 1, (SLOTS, *SHAPE)).astype(np.float32))


def reference(parts: int, nodes: int, *state: Array) -> Sequence[Array]:
    """The first graph that is compiled, by NumPy in float64."""
    wide = tuple(x.astype(np.float64) for x in state)
    for part in range(parts):
        wide = steps(np, part, nodes, wide)
    return list(wide)


def measured(run: Callable[[], Any]) -> Program:
    """A program whose calls are timed one by one, none of them to warm up.

    >>> measured(lambda: 3).measure() >= 0
    True
    """

    def measure() -> float:
        started = perf_counter()
        run()
        return perf_counter() - started

    return Program(run=run, measure=measure)


def with_tapejit(parts: int, nodes: int, *state: Array) -> Program:
    """`parts` functions of `nodes` each, one after the other."""
    import tapejit as tj

    tensors = tuple(map(tj.asarray, state))
    return measured(new_graphs(tj, tj.function, parts, nodes, tensors))


def with_tapejit_at_once(parts: int, nodes: int, *state: Array) -> Program:
    """The same parts in one function."""
    import tapejit as tj

    tensors = tuple(tj.asarray(x) for x in state)
    seeds = count(step=parts)

    def run() -> Any:
        first = next(seeds)

        @tj.function
        def all_parts(*state: Any) -> Any:
            for part in range(parts):
                state = steps(tj, first + part, nodes, state)
            return state

        return all_parts(*tensors)

    return measured(run)


def with_jax(parts: int, nodes: int, *state: Array) -> Program:
    """`jax.jit`."""
    import jax
    import jax.numpy as jnp

    run = new_graphs(jnp, jax.jit, parts, nodes, tuple(map(jnp.asarray, state)))
    return measured(lambda: jax.block_until_ready(run()))


def new_graphs(
    m: Any, compiler: Any, parts: int, nodes: int, tensors: tuple[Any, ...]
) -> Callable[[], Any]:
    """Each call makes, compiles and runs functions of graphs not made before."""
    seeds = count()

    def run() -> Any:
        state = tensors
        for _ in range(parts):
            state = compiler(graph_of(m, next(seeds), nodes))(*state)
        return state

    return run


def by_size(nodes: int, *, goal: bool = False, jax: bool = False) -> Case:
    """One graph of that many nodes."""
    peers = {"jax (jit)": partial(with_jax, 1, nodes)} if jax else {}
    return Case(
        name=f"compile_time/{nodes}",
        description=f"first call of a function of {nodes} operations, per operation",
        unit="µs",
        make_inputs=make_inputs,
        reference=partial(reference, 1, nodes),
        builders={"tapejit": partial(with_tapejit, 1, nodes), **peers},
        goals=(Within(1500, "µs"),) if goal else (),
        operations=nodes,
        stateful=True,
        rounds=3,
    )


CASES = (
    by_size(250, jax=True),
    by_size(1000),
    by_size(2000, goal=True),  # 3 s for the whole graph
    Case(
        name="compile_time/linear",
        description="one function of 2,000 operations, or four of 500, per operation",
        unit="µs",
        make_inputs=make_inputs,
        reference=partial(reference, 4, 500),
        builders={
            "tapejit": partial(with_tapejit_at_once, 4, 500),
            "tapejit (in four)": partial(with_tapejit, 4, 500),
        },
        goals=(AtLeast(0.67, "tapejit (in four)"),),
        operations=2000,
        stateful=True,
        rounds=2,
    ),
)
