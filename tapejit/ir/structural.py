"""The operations every graph has, whatever it computes.

`read` marks the value of a variable at one point of the program, `reread` its value
after an assignment, `recomputed` a value from which something is computed a second
time, `item` projects one result of several, `call` runs a Graph,
`dim_value` is a symbolic size as a number, `with_shape` says in other words what shape
something has, `guard` is an effect that stops a run whose value differs from the one
the graph was specialised for.

Effects form one chain: an effect takes the previous link as its last input and
results in the next one, so nothing can be pruned or reordered without breaking it.

Start reading at `read`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Final
from weakref import WeakValueDictionary

import numpy as np

from tapejit.base.dims import Shape, Size, require_size, substitute
from tapejit.base.errors import ArgumentError, ArgumentTypeError, ShapeError
from tapejit.base.types import TOKEN, TensorType, TokenType, TupleType, Type
from tapejit.ir.graph import Graph
from tapejit.ir.node import ALL, CHEAP, OPS, Movement, Node, Rule, record

# Whether what runs has run before: then nothing is shown once more.
MUTED: Final[ContextVar[bool]] = ContextVar("muted", default=False)


class GuardFailed(Exception):
    """A guard met another value than the one its graph was made for."""

    def __init__(self, expected: bool | int, found: bool | int) -> None:
        super().__init__(f"the graph was made for {expected}, the value is {found}")
        self.expected = expected
        self.found = found


def _only(x: Any) -> Any:
    return x


def _first(x: Any, *others: Any) -> Any:
    return x


def _passed_tangent(tangents: tuple[Node | None, ...], *nodes: Node) -> Node | None:
    return tangents[0]


def with_rows(
    size: Size, inputs: Sequence[Node], batched: Sequence[bool]
) -> list[Node]:
    """Operands with a batch axis in front, the same in every row of those without."""
    return [
        x if has_rows else OPS["broadcast_to"](x, shape=(size, *x.shape))
        for x, has_rows in zip(inputs, batched, strict=True)
    ]


def batch_rows(name: str) -> Rule:
    """Batching as `batch_stack`, once every operand has rows."""
    stack = batch_stack(name)

    def batch(
        size: Size, inputs: Sequence[Node], batched: Sequence[bool], /, **attrs: Any
    ) -> Any:
        return stack(size, with_rows(size, inputs, batched), batched, **attrs)

    return batch


def batch_stack(name: str, **front: int | tuple[int, int] | None) -> Rule:
    """Batching where the batch is one more leading axis: `axis` or `axes` move on.

    Attributes with an entry for each axis get that of `front`; None is the size.
    """

    def batch(
        size: Size, inputs: Sequence[Node], batched: Sequence[bool], /, **attrs: Any
    ) -> Node:
        if "axis" in attrs:
            attrs["axis"] += 1
        if "axes" in attrs:
            attrs["axes"] = tuple(at + 1 for at in attrs["axes"])
        for key, entry in front.items():
            attrs[key] = (size if entry is None else entry, *attrs[key])
        return OPS[name](*inputs, **attrs)

    return batch


def read_vjp(g: Node, out: Node, x: Node) -> tuple[Node]:
    """The identity; what was assigned is cut off because sources are reads."""
    return (g,)


read = record(
    "read",
    type_rule=_only,
    eval=_only,
    vjp=read_vjp,
    jvp=_passed_tangent,
    batch=batch_stack("read"),
    scalar=lambda m, x: x,
    linear=ALL,
    moves=Movement.ALIAS,
)


def reread_type(assigned: Type, entry: Type) -> Type:
    if assigned != entry:
        raise ArgumentTypeError(f"{assigned} was assigned to a variable of {entry}")
    return assigned


def reread_vjp(g: Node, out: Node, assigned: Node, entry: Node) -> tuple[None, Node]:
    """A read belongs to the variable: nothing flows into what was assigned."""
    return None, g


# The value of a variable after an assignment: the number is what was assigned, the
# gradient is the variable's, whose value at entry stands for it.
reread = record(
    "reread",
    type_rule=reread_type,
    eval=_first,
    vjp=reread_vjp,
    jvp=lambda tangents, *nodes: tangents[1],
    batch=batch_rows("reread"),
    scalar=lambda m, assigned, entry: assigned,
    conj_linear=True,
    moves=Movement.ALIAS,
)


def recomputed_vjp(
    g: Node, out: Node, x: Node, *after: Node
) -> tuple[Node | None, ...]:
    """The identity; what it waits for has no part in it."""
    return (g, *[None] * len(after))


# The same value, for a second run of what was computed from it before. It is a barrier:
# of two runs that look alike, one on `x` and one on `recomputed(x)`, nothing of the
# first is kept for the second. So no pass puts `x` in its place, and it belongs behind
# `after`, the cotangents that the second run is for: what is computed from it is no
# part of the forward pass. It has rows if `x` has, whether or not cotangents do.
recomputed = record(
    "recomputed",
    type_rule=_first,
    eval=_first,
    vjp=recomputed_vjp,
    jvp=_passed_tangent,
    batch=batch_stack("recomputed"),
    conj_linear=True,
    cost=CHEAP,
)


def item_type(whole: Type, *, index: int) -> Type:
    if not isinstance(whole, TupleType):
        raise ArgumentTypeError(f"takes a Node with several results, got {whole}")
    if not 0 <= index < len(whole.items):
        raise ArgumentError(f"there is no result {index} in {whole}")
    return whole.items[index]


def _item_eval(whole: tuple[Any, ...], *, index: int) -> Any:
    return whole[index]


# The differentiator and the batcher keep tuples of cotangents, tangents and batch
# flags themselves, so a projection needs no rule of its own.
item = record(
    "item",
    type_rule=item_type,
    eval=_item_eval,
    differentiable=False,
    moves=Movement.OTHER,
)

# By the id of the whole and the index. A projection holds its whole, so an id is not
# given to another Node while its entry is here.
_PROJECTIONS: WeakValueDictionary[tuple[int, int], Node] = WeakValueDictionary()


def results(whole: Node) -> tuple[Node, ...]:
    """The results of a Node that has several, as the same Nodes every time.

    A tape keeps values by Node: a derivative rule that looks at a result has to name
    the projection that was recorded, not another one like it.
    """
    assert isinstance(whole.type, TupleType)
    parts = []
    for at in range(len(whole.type.items)):
        part = _PROJECTIONS.get((id(whole), at))
        if part is None:
            part = _PROJECTIONS.setdefault((id(whole), at), item(whole, index=at))
        parts.append(part)
    return tuple(parts)


def call_type(*inputs: Type, graph: Graph) -> TupleType:
    expected = tuple(node.type for node in graph.inputs)
    if len(inputs) != len(expected):
        raise ArgumentTypeError(
            f"{graph.name} takes {len(expected)} inputs, got {len(inputs)}"
        )
    sizes: dict[str, int] = {}
    if inputs != expected:
        sizes = _sizes_of_call(inputs, expected)
    for at, (given, wanted) in enumerate(zip(inputs, expected, strict=True)):
        if given != bound_type(wanted, sizes):
            raise ArgumentTypeError(
                f"input {at} of {graph.name} is {wanted}, got {given}"
            )
    return TupleType(tuple(bound_type(node.type, sizes) for node in graph.outputs))


def _sizes_of_call(inputs: Sequence[Type], expected: Sequence[Type]) -> dict[str, int]:
    """The symbolic sizes of a Graph for inputs whose sizes are known."""
    from tapejit.base.binding import bind_shapes

    pairs = [
        (wanted.shape, given.shape)
        for given, wanted in zip(inputs, expected, strict=True)
        if isinstance(wanted, TensorType)
        and isinstance(given, TensorType)
        and given.is_static
    ]
    try:
        actual: Any = [given for _, given in pairs]  # ints all of them
        return bind_shapes([wanted for wanted, _ in pairs], actual)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None


def bound_type(type: Type, sizes: Mapping[str, int]) -> Type:
    """A type with its symbolic sizes replaced by numbers."""
    if isinstance(type, TupleType):
        return TupleType(tuple(bound_type(part, sizes) for part in type.items))
    if not isinstance(type, TensorType) or not sizes or type.is_static:
        return type
    return type.with_shape(tuple(substitute(size, sizes) for size in type.shape))


def _call_eval(*arrays: Any, graph: Graph) -> tuple[Any, ...]:
    return tuple(graph.program.run(list(arrays)))


# How a call differentiates and batches is a matter of its body: the passes that
# rewrite bodies give it its rules.
call = record("call", type_rule=call_type, eval=_call_eval, differentiable=False)


def dim_value_type(*, size: Size) -> TensorType:
    require_size(size)
    return TensorType(np.dtype(np.int64), ())


def _dim_value_eval(*, size: int) -> Any:
    return np.int64(size)


# A size where a number is wanted: it is known when the shapes of the inputs are.
dim_value = record(
    "dim_value",
    type_rule=dim_value_type,
    eval=_dim_value_eval,
    differentiable=False,
    cost=CHEAP,
)


def with_shape_type(x: Type, *, shape: Shape) -> TensorType:
    if not isinstance(x, TensorType):
        raise ArgumentTypeError(f"takes a tensor, got {x}")
    is_other = len(shape) != x.ndim or any(
        isinstance(old, int) and isinstance(new, int) and old != new
        for old, new in zip(x.shape, shape, strict=True)
    )
    if is_other:
        raise ShapeError(f"{x} does not have the shape {shape}")
    return x.with_shape(shape)


def _with_shape_eval(x: Any, *, shape: tuple[int, ...]) -> Any:
    if x.shape != shape:
        raise ShapeError(f"the shape is {x.shape} and was taken for {shape}")
    return x


def with_shape_vjp(g: Node, out: Node, x: Node, *, shape: Shape) -> tuple[Node]:
    return (with_shape(g, shape=x.shape),)


# The same tensor, its shape written with other sizes that are known to be equal: a
# guard has found `n` to be `m`, or to be 5.
with_shape = record(
    "with_shape",
    type_rule=with_shape_type,
    eval=_with_shape_eval,
    vjp=with_shape_vjp,
    batch=batch_stack("with_shape", shape=None),
    linear=ALL,
    moves=Movement.ALIAS,
)


def guard_type(x: Type, token: Type, *, expected: bool | int) -> TokenType:
    if not isinstance(x, TensorType) or x.shape:
        raise ArgumentTypeError(f"guards a scalar, got {x}")
    if not isinstance(token, TokenType):
        raise ArgumentTypeError(f"the last input is the chain of effects, got {token}")
    return TOKEN


def _guard_eval(x: np.ndarray[Any, Any], token: None, *, expected: bool | int) -> None:
    found = x.item()
    if found != expected:
        raise GuardFailed(expected, found)


guard = record(
    "guard",
    type_rule=guard_type,
    eval=_guard_eval,
    differentiable=False,
    is_effect=True,
    exact=True,
)


def require_type(x: Type, token: Type) -> TokenType:
    if not isinstance(token, TokenType):
        raise ArgumentTypeError(f"the last input is the chain of effects, got {token}")
    return TOKEN


def _require_eval(x: Any, token: None) -> None:
    return None


# Keeps a Node whose evaluation can fail, and its place among the effects: an index
# that is out of range is an error also where nobody uses what it selects.
require = record(
    "require",
    type_rule=require_type,
    eval=_require_eval,
    batch=batch_stack("require"),
    differentiable=False,
    is_effect=True,
)


def _start_type() -> TokenType:
    return TOKEN


def _start_eval() -> None:
    return None


start = record(
    "start", type_rule=_start_type, eval=_start_eval, differentiable=False, exact=True
)


def first_token() -> Node:
    """The beginning of a chain of effects."""
    return Node(start, (), {}, TOKEN)
