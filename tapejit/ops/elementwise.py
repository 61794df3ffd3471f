"""How an elementwise record is made: its type rule and both derivative modes.

An elementwise Jacobian is diagonal. So one formula `deriv[i](t, *inputs, out)` is the
JVP term of operand i when `t` is a tangent and, summed back over what was broadcast,
its VJP term when `t` is a cotangent. `elementwise` turns a row of such formulas into
a complete record; the tables are in `arithmetic.py`, `comparison.py` and
`functions.py`.

Start reading at `elementwise`, then `unbroadcast`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tapejit.base.dims import Size
from tapejit.base.errors import ArgumentTypeError, DTypeError
from tapejit.base.types import (
    DType,
    TensorType,
    is_complex,
    is_differentiable,
    is_float,
    is_integer,
)
from tapejit.ir.node import OPS, ZERO, Node, Op, Rule, Zero, record
from tapejit.ops.shapes import broadcast_shapes, same_dtype, tensor

Cotangent = Node | Zero | None
Cotangents = tuple[Cotangent, ...]

KINDS: dict[str, Callable[[DType], bool]] = {
    "bool": lambda dtype: dtype.kind == "b",
    "integer": is_integer,
    "float": is_float,
    "complex": is_complex,
}
NUMERIC = ("integer", "float", "complex")
INEXACT = ("float", "complex")
REAL = ("integer", "float")
ORDERED = ("bool", *REAL)
ANY = ("bool", *NUMERIC)


def elementwise(
    name: str,
    *,
    scalar: Rule,
    deriv: Sequence[Rule | None] | None = None,
    kinds: tuple[str, ...] = NUMERIC,
    result: Callable[[DType], DType] | None = None,
    check: Rule | None = None,
    type_rule: Rule | None = None,
    **fields: Any,
) -> Op:
    """Register an op that works element by element on broadcast operands.

    `kinds` are the kinds of dtype it takes, `result` the dtype it gives (the
    operands' own by default), and `check` refuses attributes; `type_rule` is for what
    this does not describe. `fields` are the record's others.
    """
    arity = scalar.__code__.co_argcount - 1

    def infer(*types: Any, **attrs: Any) -> TensorType:
        if check is not None:
            check(**attrs)
        if len(types) != arity:
            raise ArgumentTypeError(f"takes {arity} operands, got {len(types)}")
        tensors = [tensor(x) for x in types]
        dtype = same_dtype(*tensors)
        check_kind(dtype, kinds)
        given = dtype if result is None else result(dtype)
        return TensorType(given, broadcast_shapes(*tensors))

    def infer_plain(*types: Any) -> TensorType:
        return infer(*types)

    if deriv is not None:
        fields |= {"deriv": deriv, "vjp": deriv_vjp(deriv), "jvp": deriv_jvp(deriv)}
    return record(
        name,
        type_rule=type_rule or (infer_plain if check is None else infer),
        batch=batch_elementwise(name),
        scalar=scalar,
        **fields,
    )


def check_kind(dtype: DType, kinds: Sequence[str]) -> None:
    """Refuse a dtype that is of none of these kinds."""
    if not any(KINDS[kind](dtype) for kind in kinds):
        raise DTypeError(
            f"takes {' or '.join(kinds)} tensors, got {dtype}",
            help="convert first with .astype(...)",
        )


def deriv_vjp(deriv: Sequence[Rule | None]) -> Rule:
    """The VJP of an elementwise op, from its formulas."""

    def vjp(g: Node, out: Node, *inputs: Node, **attrs: Any) -> Cotangents:
        contributions: list[Cotangent] = []
        for formula, x in zip(deriv, inputs, strict=True):
            if formula is None or not is_differentiable(x.dtype):
                contributions.append(None)
                continue
            term = formula(g, *inputs, out, **attrs)
            contributions.append(
                ZERO if isinstance(term, Zero) else unbroadcast(term, x.shape)
            )
        return tuple(contributions)

    return vjp


def deriv_jvp(deriv: Sequence[Rule | None]) -> Rule:
    """The JVP of an elementwise op: the sum of its terms."""

    def jvp(
        tangents: Sequence[Node | None], out: Node, *inputs: Node, **attrs: Any
    ) -> Cotangent:
        total: Cotangent = None
        for formula, t in zip(deriv, tangents, strict=True):
            if formula is None or t is None:
                continue
            term = formula(t, *inputs, out, **attrs)
            if isinstance(term, Zero):
                total = ZERO if total is None else total
            else:
                total = (
                    term if total is None or isinstance(total, Zero) else total + term
                )
        return broadcast_like(total, out) if isinstance(total, Node) else total

    return jvp


def unbroadcast(g: Node, shape: Any) -> Node:
    """Sum a cotangent back over the axes along which an operand was repeated."""
    if g.shape == shape:
        return g
    extra = g.ndim - len(shape)
    axes = tuple(range(extra)) + tuple(
        at for at, size in enumerate(shape, extra) if size == 1 and g.shape[at] != 1
    )
    g = OPS["sum"](g, axes=axes, keepdims=False)
    return g if g.shape == shape else OPS["reshape"](g, shape=shape)


def broadcast_like(t: Node, out: Node) -> Node:
    """Repeat `t` to the shape of `out`."""
    if t.shape == out.shape:
        return t
    return OPS["broadcast_to"](t, shape=out.shape)


def batch_elementwise(name: str) -> Callable[..., Node]:
    """Batching: line up the batch axes in front, let the rest broadcast."""

    def batch(
        size: Size, inputs: Sequence[Node], batched: Sequence[bool], **attrs: Any
    ) -> Node:
        ranks = [x.ndim - flag for x, flag in zip(inputs, batched, strict=True)]
        rank = max(ranks)
        aligned = [
            lift(x, rank) if flag else x
            for x, flag in zip(inputs, batched, strict=True)
        ]
        return OPS[name](*aligned, **attrs)

    return batch


def bilinear_jvp(name: str) -> Rule:
    """The product rule, for what is linear in each of two operands."""

    def jvp(
        tangents: Sequence[Node | None], out: Node, x: Node, y: Node, **attrs: Any
    ) -> Node | None:
        tx, ty = tangents
        left = None if tx is None else OPS[name](tx, y, **attrs)
        right = None if ty is None else OPS[name](x, ty, **attrs)
        if left is None or right is None:
            return right if left is None else left
        return left + right

    return jvp


def lift(x: Node, rank: int) -> Node:
    """A batched Node with ones after its batch axis, so that it has `rank` + 1 axes."""
    missing = rank + 1 - x.ndim
    if missing <= 0:
        return x
    shape = (x.shape[0], *(1,) * missing, *x.shape[1:])
    return OPS["reshape"](x, shape=shape)
