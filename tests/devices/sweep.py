"""What a device gives for a Graph, judged by what this CPU gives.

Kernels of a GPU have the CPU's expressions in the CPU's order, so their bits are the
CPU's, but for sums and products of floats: threads add up in another order. These are
judged by the table of agreement, and where they differ by more, the result must be one
that rounding errors alone could change.

Start reading at `judge`.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from agreement import COMPOSED
from differentiation import drawn_like
from native.compiled import run_native
from native.conditioning import steady_outputs

from devices.graphs import assert_same_bits, run_code
from tapejit.base.errors import TapejitError
from tapejit.base.tolerance import difference
from tapejit.base.types import is_float
from tapejit.ir import Graph
from tapejit.runtime.cuda.device_code import DeviceCode
from tapejit.targets.cuda.module import BuiltKernels

Array = np.ndarray[Any, Any]
BITS, CLOSE, UNSTEADY = "bits", "close", "unsteady"


class Verdict(NamedTuple):
    """How results of a device are, and what they add up if they are not the CPU's."""

    kind: str
    text: str = ""


def arguments_for(graph: Graph, seed: int = 0) -> list[Array]:
    """Some arrays for a Graph."""
    return list(drawn_like(np.random.default_rng(seed), [x.type for x in graph.inputs]))


def judge(
    code: DeviceCode, arrays: Sequence[Array], order: str = "up", seed: int = 0
) -> Verdict:
    """How the results of a Graph on a device are; an AssertionError if they are wrong.

    An error must be that of the CPU.
    """
    graph = code.given
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        wanted = outcome_of(lambda: run_native(graph, arrays))
        got = outcome_of(lambda: run_code(code, arrays, order))
        if isinstance(wanted, Exception) or isinstance(got, Exception):
            assert type(got) is type(wanted), f"{got!r} is not {wanted!r}\n{graph}"
            return Verdict(BITS)
        return compared(code, got, wanted, arrays, seed)


def outcome_of(run: Any) -> list[Array] | Exception:
    """Results, or what is raised."""
    try:
        found: list[Array] = run()
    except TapejitError as error:
        return error
    return found


def compared(
    code: DeviceCode,
    got: Sequence[Array],
    wanted: Sequence[Array],
    arrays: Sequence[Array],
    seed: int,
) -> Verdict:
    """How results are, given those of the CPU."""
    kinds = {BITS}
    steady: list[bool] | None = None
    sums = sorted(set(sums_of(code.emitted.built)))
    for at, (x, y) in enumerate(zip(got, wanted, strict=True)):
        where = f"output {at}\n{code.given}"
        assert (x.dtype, x.shape) == (y.dtype, y.shape), where
        if sums and not is_same(x, y):
            if difference(COMPOSED, x, y) is None:
                kinds.add(CLOSE)
                continue
            if steady is None:
                steady = steady_outputs(code.given, arrays, seed, runs=30)
            assert not steady[at], f"{where}\n{x} is not {y}"
            kinds.add(UNSTEADY)
            continue
        assert_same_bits(x, y, where)
    kind = max(kinds, key=[BITS, CLOSE, UNSTEADY].index)
    return Verdict(kind, "" if kind == BITS else ", ".join(sums))


def is_same(x: Array, y: Array) -> bool:
    try:
        assert_same_bits(x, y)
    except AssertionError:
        return False
    return True


def sums_of(built: BuiltKernels) -> Iterator[str]:
    """The names of what is added or multiplied up in an order of its own."""
    for step in built.plan.paths:
        op = step.op
        is_product = op is not None and op.terms is not None
        is_exact = step.closed and op is not None and op.exact
        if is_float(step.dtype) and ((step.closed and not is_exact) or is_product):
            yield step.name
