"""Which results of a Graph two ways of computing it can be expected to agree on.

The table of agreement lets sums and transcendental functions differ in their last bits,
and a Graph may make much of a last bit: by cancelling everything before it, or by a
comparison, a rounding, a position of a maximum. So a random Graph is `shaken` first:
NumPy runs it with the result of each operation moved by more than its class allows. An
output that does not agree with itself then says nothing about native code; every other
one must agree with it.

Start reading at `steady_outputs`.
"""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from typing import Any

import numpy as np
from agreement import COMPOSED, EXACT, PRODUCT, ROUNDED, SUM
from op_cases import CASES

from tapejit.base.tolerance import ULPS, difference, eps_of, parts_of, tiny_of
from tapejit.base.types import TensorType, is_complex, is_differentiable
from tapejit.ir import Graph, Node
from tapejit.ir.node import LITERAL

from .compiled import Array, run_numpy

HARDER = 4  # than the table allows, so that what stays steady has some room
RUNS = 6


def steady_outputs(
    graph: Graph,
    arrays: Sequence[Array],
    seed: int,
    unordered: Container[Node] = (),
    runs: int = RUNS,
) -> list[bool]:
    """For each output whether its value survives the rounding errors of others.

    `unordered` are additions of a sum whose terms may be added in any order. More
    `runs` find what only one element of many shows, such as the sign of a zero.
    """
    expected = run_numpy(graph, arrays)
    steady = [True] * len(expected)
    rng = np.random.default_rng((seed, 2))
    for _ in range(runs):
        found = shaken(graph, arrays, rng, unordered)
        for at, (x, y) in enumerate(zip(found, expected, strict=True)):
            steady[at] &= difference(COMPOSED, x, y) is None
    return steady


def shaken(
    graph: Graph,
    arrays: Sequence[Array],
    rng: np.random.Generator,
    unordered: Container[Node] = (),
) -> list[Array]:
    """The outputs if no operation were better than its class demands."""
    values: dict[Node, Any] = dict(zip(graph.inputs, arrays, strict=True))
    with np.errstate(all="ignore"):
        for node in graph.nodes:
            if node.op is LITERAL:
                values[node] = node.attrs["value"][()]
                continue
            operands = reordered(node, [values[x] for x in node.inputs], rng)
            out = node.op.eval(*operands, **node.attrs)
            values[node] = out
            op_class = SUM if node in unordered else class_of(node)
            if is_rounded(node) and op_class not in IDENTICAL:
                most = HARDER * allowed_error(node, op_class, np.asarray(out), operands)
                if op_class == SUM:
                    most = most + underflow(node, operands)
                most = np.where(np.isfinite(most), most, 0)  # infinities stay
                noise = most * rng.uniform(-1, 1, np.shape(out))
                if is_complex(node.dtype):
                    noise = noise + 1j * most * rng.uniform(-1, 1, np.shape(out))
                noise = noise.astype(node.dtype)
                # A noise that is rounded to a zero gives zeros its sign.
                is_sign = (out == 0) & (most > 0)
                moved = np.where(is_sign, noise, out + noise)
                # What cancels may leave a rounding error, or nothing.
                is_void = (np.abs(out) <= most) & (
                    rng.uniform(size=np.shape(out)) < 0.5
                )
                values[node] = np.where(is_void, moved * 0, moved)[()]
                if node in unordered:
                    values[node] = with_any_zeros(values[node], out, operands, rng)
                if can_overflow(node, operands):
                    any_number = rng.choice([np.nan, 0]).astype(node.dtype)
                    values[node] = np.full(np.shape(out), any_number)[()]
            if is_rounded(node) and not node.op.moves:
                values[node] = with_any_nans(values[node], rng)
    return [np.asarray(values[out]) for out in graph.outputs]


IDENTICAL = (EXACT, ROUNDED)


def reordered(node: Node, operands: list[Any], rng: np.random.Generator) -> list[Any]:
    """The operands with terms of sums and factors of products in another order.

    So a result that overflows on the way in one order only is found not to be steady.
    """
    axes = node.attrs.get("axes")
    if class_of(node) not in (SUM, PRODUCT) or len(operands) != 1 or not axes:
        return operands
    (x,) = operands
    for axis in axes:
        x = np.take(x, rng.permutation(x.shape[axis]), axis=axis)
    return [x]


def can_overflow(node: Node, operands: list[Any]) -> bool:
    """Whether some order of terms or factors leaves the range of numbers on the way.

    What comes of that, infinity, NaN or zero, is no property of the result.
    """
    if class_of(node) not in (SUM, PRODUCT):
        return False
    sizes = [magnitude(x) for x in operands]
    sizes = [np.where(np.isfinite(x), x, 1).astype(x.dtype) for x in sizes]
    if class_of(node) == SUM:
        return not np.all(np.isfinite(node.op.eval(*sizes, **node.attrs)))
    if len(sizes) != 1:
        return False
    (size,) = sizes
    largest = node.op.eval(np.maximum(size, 1), **node.attrs)
    smallest = node.op.eval(np.where(size > 0, np.minimum(size, 1), 1), **node.attrs)
    return not np.all(np.isfinite(largest) & (smallest > 0))


def underflow(node: Node, operands: list[Any]) -> Any:
    """The smallest number where a term of a sum is not zero.

    A product that is too small is a zero, if it is rounded before it is added. If not,
    it still decides about the sign of a sum that is zero.
    """
    flags = [
        (x != 0).astype(x.dtype) if is_differentiable(x.dtype) else x for x in operands
    ]
    count = node.op.eval(*flags, **node.attrs)
    return np.where(np.abs(count) > 0, tiny_of(node.dtype), 0)


def with_any_zeros(
    moved: Any, out: Any, terms: Sequence[Any], rng: np.random.Generator
) -> Any:
    """A sum of two with zeros of any sign, now and then, where its terms cancel.

    a - a is 0 and so is -a + a, but -(a - a) is not.
    """
    moved = np.array(moved)
    pairs = [parts_of(np.asarray(x)) for x in (moved, out, *terms)]
    for part, exact, x, y in zip(*pairs, strict=True):
        chance = rng.uniform(-1, 1, part.shape)
        is_void = (exact == 0) & (np.signbit(x) != np.signbit(y))
        zeros = np.copysign(0, chance).astype(part.dtype)
        np.copyto(part, zeros, where=is_void & (np.abs(chance) < 0.5))
    return moved[()]


def with_any_nans(found: Any, rng: np.random.Generator) -> Any:
    """NaN of any sign: which one an operation gives is not defined."""
    found = np.array(found)
    for part in parts_of(found):
        chance = rng.uniform(-1, 1, part.shape)
        np.copyto(part, np.copysign(part, chance), where=np.isnan(part))
    return found[()]


def class_of(node: Node) -> str:
    """By what the op table judges an operation."""
    return CASES[node.op.name][0].agreement


def is_rounded(node: Node) -> bool:
    return isinstance(node.type, TensorType) and is_differentiable(node.type.dtype)


def allowed_error(
    node: Node, op_class: str, out: Array, operands: Sequence[Any]
) -> Any:
    """What the class of an operation allows its result to be off by."""
    eps = eps_of(node.dtype)
    sizes = [np.size(x) for x in operands]
    count = max([2, *sizes]) / max(out.size, 1)
    if op_class == SUM:
        terms = node.op.eval(*map(magnitude, operands), **node.attrs)
        return max(1.0, math.log2(count)) * eps * np.abs(terms)
    if op_class == PRODUCT:
        return count * eps * np.abs(out)
    if op_class in ULPS:
        return ULPS[op_class] * eps * np.abs(out)
    return 64 * eps * np.max(np.abs(out), initial=0)


def magnitude(x: Any) -> Any:
    """Of a term its size; positions and flags stay what they are."""
    return np.abs(x) if is_differentiable(x.dtype) else x
