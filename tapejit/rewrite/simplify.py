"""Algebraic simplification: operations that change nothing are left out.

A rule is a function from a Node to the Node that can stand in its place, or None; its
docstring is the rule. The inputs of the Node have been simplified already. `RULES` are
looked up by op, so a Node costs only the rules that could concern it.

Rules keep every bit: the sign of zero, NaN, infinities, the dtype, the shape. That is
why `x + 0` is not among them (-0.0 + 0.0 is 0.0), nor `x * 1` of complex numbers, whose
product with 1 mixes a zero into each part. They are of three kinds. A rule of `PASSING`
gives the very value that the Node passes on. A rule of `VIEWS` leaves the memory as it
was: the same array, or one with the same strides. A rule of `COPIES` saves an array; it
holds where the new Node is known to lie in memory as the old one did (`layouts.py`).

These are no rules for a program that is still to be differentiated: `read` and
`stop_gradient` mean something to a tape.

Start reading at `identity_element`, then `simplify`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from tapejit import ops
from tapejit.base.types import DType, is_complex, is_float, real_dtype
from tapejit.ir.graph import Graph
from tapejit.ir.node import Node, Op, literal
from tapejit.ir.rewriting import Sources, in_place_of, rewritten
from tapejit.ops.custom_rules import custom_call
from tapejit.rewrite.memory_order import Layouts, is_complex_number

INVERTED: Final = (np.dtype(np.float32), np.dtype(np.float64))
Rule = Callable[[Node], Node | None]


def simplify(graph: Graph, sources: Sources | None = None) -> Graph:
    """The Graph after all rules, each wherever it applies.

    >>> from tapejit.ir import param
    >>> from tapejit.base.types import TensorType
    >>> x = param("x", TensorType.parse("f32[2,3]"))
    >>> turned = ops.permute_dims(-(-x), axes=(1, 0))
    >>> there_and_back = ops.permute_dims(turned, axes=(1, 0))
    >>> print(simplify(Graph("f", (x,), (ops.sin(there_and_back / 1),))))
    graph f(x: f32[2,3]) {
      %0: f32[2,3] = sin x
      return %0
    }
    """
    layouts = Layouts()

    def step(node: Node) -> Node:
        while (simpler := _simpler(node, layouts)) is not None:
            node = simpler
        return node

    return rewritten(graph, step, sources)


def _simpler(node: Node, layouts: Layouts) -> Node | None:
    for rule in PASSING.get(node.op, ()):
        if (found := rule(node)) is not None:
            return found
    if is_complex_number(node):
        return None
    for rule in VIEWS.get(node.op, ()):
        if (found := rule(node)) is not None:
            return found
    if node.op.scalar is not None and (found := spread_operand(node)) is not None:
        return found
    for rule in COPIES.get(node.op, ()):
        if (found := rule(node)) is not None and layouts.are_alike(found, node):
            return found
    return None


# Arithmetic


def identity_element(node: Node) -> Node | None:
    """x * 1 -> x;  x / 1 -> x;  x - 0 -> x;  x + (-0) -> x"""
    match node:
        case Node(op=ops.mul, inputs=(x, Node(value=1)) | (Node(value=1), x)):
            kept = None if is_complex(node.dtype) else x
        case Node(op=ops.div, inputs=(x, Node(value=1))):
            kept = None if is_complex(node.dtype) else x
        case Node(op=ops.sub, inputs=(x, Node(value=0) as zero)):
            kept = x if _is_zero(zero, sign=1.0) else None
        case Node(
            op=ops.add, inputs=(x, Node(value=0) as zero) | (Node(value=0) as zero, x)
        ):
            kept = x if _is_zero(zero, sign=-1.0) else None
        case _:
            return None
    # The constant may have broadcast x.
    return kept if kept is not None and kept.type == node.type else None


def exact_inverse(node: Node) -> Node | None:
    """x / 2ⁿ -> x * 2⁻ⁿ: the same number, rounded once"""
    match node:
        case Node(inputs=(x, Node(value=float(divisor), shape=()) as y)):
            dtype = node.dtype
        case _:
            return None
    is_power = abs(math.frexp(divisor)[0]) == 0.5
    if not is_power or dtype not in INVERTED or {x.dtype, y.dtype} != {dtype}:
        return None
    limits = np.finfo(dtype)
    if not float(limits.tiny) <= abs(1 / divisor) <= float(limits.max):
        return None
    return in_place_of(node, ops.mul, (x, literal(1 / divisor, dtype)), {})


def _is_zero(zero: Node, sign: float) -> bool:
    """Whether a literal 0 has this sign, in both parts; integers have but one."""
    value = zero.value
    if isinstance(value, int):
        return True
    assert value is not None
    parts = (value.real, value.imag) if isinstance(value, complex) else (value,)
    return all(math.copysign(1.0, part) == sign for part in parts)


def undone(node: Node) -> Node | None:
    """-(-x) -> x;  ~(~x) -> x;  conj(conj(x)) -> x;  conj(x) -> x if x is real"""
    match node:
        case Node(op=ops.conj, inputs=(x,)) if not is_complex(x.dtype):
            return x
        case Node(op=op, inputs=(Node(op=same, inputs=(x,)),)) if op is same:
            return x
    return None


def same_twice(node: Node) -> Node | None:
    """maximum(x, x) -> x;  minimum(x, x) -> x;  x & x -> x;  x | x -> x"""
    match node:
        case Node(inputs=(x, y)) if x is y:
            return x
    return None


def magnitude(node: Node) -> Node | None:
    """|(|x|)| -> |x|;  |-x| -> |x|, but not of unsigned integers, which wrap"""
    match node:
        case Node(inputs=(Node(op=ops.abs) as x,)):
            return x
        case Node(inputs=(Node(op=ops.negative, inputs=(x,)),)) if x.dtype.kind != "u":
            return in_place_of(node, ops.abs, (x,), {})
    return None


def rounded_twice(node: Node) -> Node | None:
    """floor(round(x)) -> round(x), and so with floor, ceil and trunc"""
    match node:
        case Node(inputs=(Node(op=op) as x,)) if op in ROUNDING:
            return x
    return None


def same_choice(node: Node) -> Node | None:
    """where(c, x, x) -> x;  where(True, x, y) -> x;  where(False, x, y) -> y"""
    condition, x, y = node.inputs
    if x is y or condition.value is True:
        kept = x
    elif condition.value is False:
        kept = y
    else:
        return None
    return kept if kept.type == node.type else None


def same_dtype(node: Node) -> Node | None:
    """cast(x) to its dtype -> x;  cast(cast(x) to a wider one) to its own -> x"""
    match node:
        case Node(inputs=(x,)) if x.type == node.type:
            return x
        case Node(inputs=(Node(op=ops.cast, inputs=(x,)) as wide,)):
            is_same = x.type == node.type and _holds_all(wide.dtype, x.dtype)
            return x if is_same else None
    return None


def _holds_all(wide: DType, narrow: DType) -> bool:
    """Whether every value of a dtype survives a cast to `wide` and back."""
    if narrow.kind == "b":
        return True
    if narrow.kind in "iu":
        return wide.kind in "iu" and np.can_cast(narrow, wide, "safe")
    if is_complex(narrow):
        return is_complex(wide) and wide.itemsize > narrow.itemsize
    part = real_dtype(wide)
    if not is_float(part):
        return False
    # The two kinds of halves have the same width, and neither holds the other.
    return part.itemsize > narrow.itemsize or part == narrow


# Movement


def passed_on(node: Node) -> Node | None:
    """read(x) -> x;  reread(x, entry) -> x;  stop_gradient(x) -> x"""
    return node.inputs[0]


def real_already(node: Node) -> Node | None:
    """real(x) -> x if x is real"""
    (x,) = node.inputs
    return None if is_complex(x.dtype) else x


def known_shape(node: Node) -> Node | None:
    """with_shape(x) to its own -> x, also by way of another one"""
    x = node.inputs[0]
    while x.op is ops.with_shape and x.type != node.type:
        x = x.inputs[0]
    return x if x.type == node.type else None


def same_shape(node: Node) -> Node | None:
    """reshape(x) to its own shape -> x;  broadcast_to(x) to its own shape -> x"""
    (x,) = node.inputs
    return x if x.type == node.type else None


def one_reshape(node: Node) -> Node | None:
    """reshape(reshape(x)) -> reshape(x)"""
    match node:
        case Node(inputs=(Node(op=ops.reshape, inputs=(x,)),)):
            return in_place_of(node, ops.reshape, (x,), node.attrs)
    return None


def one_broadcast(node: Node) -> Node | None:
    """broadcast_to(broadcast_to(x)) -> broadcast_to(x)"""
    match node:
        case Node(inputs=(Node(op=ops.broadcast_to, inputs=(x,)),)):
            return in_place_of(node, ops.broadcast_to, (x,), node.attrs)
    return None


def one_permutation(node: Node) -> Node | None:
    """permute_dims(x) in order -> x;  permute_dims(permute_dims(x)) -> one of them"""
    axes = node.attrs["axes"]
    match node:
        case Node(inputs=(x,)) if axes == tuple(range(x.ndim)):
            return x
        case Node(inputs=(Node(op=ops.permute_dims, inputs=(x,)) as inner,)):
            both = tuple(inner.attrs["axes"][at] for at in axes)
            return in_place_of(node, ops.permute_dims, (x,), {"axes": both})
    return None


def one_flip(node: Node) -> Node | None:
    """flip(x) of no axes -> x;  flip(flip(x)) -> flip(x) of the axes in one of them"""
    axes = node.attrs["axes"]
    match node:
        case Node(inputs=(x,)) if not axes:
            return x
        case Node(inputs=(Node(op=ops.flip, inputs=(x,)) as inner,)):
            rest = tuple(sorted({*axes} ^ {*inner.attrs["axes"]}))
            return in_place_of(node, ops.flip, (x,), {"axes": rest})
    return None


def one_slice(node: Node) -> Node | None:
    """slice(x) of all of it -> x;  slice(slice(x)) -> slice(x) where sizes are known"""
    match node:
        case Node(inputs=(x,)) if x.type == node.type and _is_whole(node):
            return x
        case Node(inputs=(Node(op=ops.slice, inputs=(x,)) as inner,)):
            if not x.tensor_type.is_static or not node.tensor_type.is_static:
                return None
            return _composed(node, inner, x)
    return None


def _is_whole(node: Node) -> bool:
    """Whether a slice or its transpose begins at the beginning and skips nothing."""
    starts: tuple[Any, ...] = node.attrs["starts"]
    steps: tuple[int, ...] = node.attrs["steps"]
    return starts == (0,) * len(starts) and steps == (1,) * len(steps)


def _composed(node: Node, inner: Node, x: Node) -> Node:
    starts, stops, steps = [], [], []
    for axis, count in enumerate(node.shape):
        step = inner.attrs["steps"][axis] * node.attrs["steps"][axis]
        start = inner.attrs["starts"][axis]
        start += inner.attrs["steps"][axis] * node.attrs["starts"][axis]
        if not count:
            start = 0  # it may have been beyond the end
        starts.append(start)
        stops.append(start + (count - 1) * step + 1 if count else 0)
        steps.append(step)
    ranges = {"starts": tuple(starts), "stops": tuple(stops), "steps": tuple(steps)}
    return in_place_of(node, ops.slice, (x,), ranges)


def placed_whole(node: Node) -> Node | None:
    """place(x) into its own shape -> x"""
    (x,) = node.inputs
    return x if x.type == node.type and _is_whole(node) else None


def joined_alone(node: Node) -> Node | None:
    """concat(x) -> x"""
    match node:
        case Node(inputs=(x,)):
            return x
    return None


def spread_operand(node: Node) -> Node | None:
    """f(x, broadcast_to(y)) -> f(x, y) if f, elementwise, spreads y anyway"""
    for at, x in enumerate(node.inputs):
        if x.op is not ops.broadcast_to:
            continue
        inputs = list(node.inputs)
        (inputs[at],) = x.inputs
        found = in_place_of(node, node.op, inputs, node.attrs)
        if found.type == node.type:
            return found
    return None


def known_item(node: Node) -> Node | None:
    """item(custom_call(..., results)) -> result"""
    (whole,) = node.inputs
    if whole.op is not custom_call:
        return None
    count: int = whole.attrs["results"]
    return whole.inputs[-count:][node.attrs["index"]]


ROUNDING: Final = frozenset({ops.floor, ops.ceil, ops.trunc, ops.round})
PASSING: Final[dict[Op, tuple[Rule, ...]]] = {
    ops.read: (passed_on,),
    ops.reread: (passed_on,),
    ops.stop_gradient: (passed_on,),
    ops.with_shape: (known_shape,),
    ops.item: (known_item,),
}
VIEWS: Final[dict[Op, tuple[Rule, ...]]] = {
    ops.div: (exact_inverse,),  # lies in memory as x / y does
    ops.real: (real_already,),
    ops.reshape: (same_shape,),
    ops.broadcast_to: (same_shape, one_broadcast),
    ops.permute_dims: (one_permutation,),
    ops.flip: (one_flip,),
    ops.slice: (one_slice,),
}
COPIES: Final[dict[Op, tuple[Rule, ...]]] = {
    ops.add: (identity_element,),
    ops.sub: (identity_element,),
    ops.mul: (identity_element,),
    ops.div: (identity_element,),
    ops.negative: (undone,),
    ops.bitwise_invert: (undone,),
    ops.conj: (undone,),
    ops.maximum: (same_twice,),
    ops.minimum: (same_twice,),
    ops.bitwise_and: (same_twice,),
    ops.bitwise_or: (same_twice,),
    ops.abs: (magnitude,),
    **dict.fromkeys(ROUNDING, (rounded_twice,)),
    ops.where: (same_choice,),
    ops.cast: (same_dtype,),
    ops.reshape: (one_reshape,),
    ops.place: (placed_whole,),
    ops.concat: (joined_alone,),
}
