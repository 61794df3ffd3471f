"""Functions whose gradient the user wrote, and the calls of what he wrote.

`custom` stands for a call of such a function. Its operands are an opaque leaf, a
`Callback` that holds the user's `grad_fn`, then the arguments, then the results as
they were computed; it passes the results on. Its derivative by an argument is whatever
the callback says, its derivative by a result is one: along that path flows what the
function owes to tensors that were no arguments of it.

`custom_vjp` and `custom_jvp` call the callback when they are evaluated. The callback is
an operand and no attribute because programs are recognised by their attributes: a
training step that makes a new closure each time is still the same program, and the
closure goes with the values of the step.

Which arguments `grad_fn` gives a gradient is known only once it has run, and of a
function that runs again it depends on which results have a cotangent (`given`). A Node
of `custom_vjp` or `custom_jvp` states what it expects (`connected`); a callback that
finds otherwise raises `Reconnected`, and the derivative is built again with the finding
in `CONNECTED`.

These three are unlisted, for the text of a Graph cannot hold a callback.
`custom_call`, their counterpart in traced functions, is.

Start reading at `custom`, then `Callback`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, Final

from tapejit.base.errors import (
    ArgumentTypeError,
    NotDifferentiableError,
    UnsupportedError,
)
from tapejit.base.types import (
    OPAQUE,
    DType,
    TensorType,
    TupleType,
    Type,
    is_differentiable,
)
from tapejit.ir.graph import Graph
from tapejit.ir.node import Node, Op, literal, record, register_unlisted
from tapejit.ir.structural import call
from tapejit.ir.structural import results as results_of
from tapejit.ops.movement import broadcast_to

Shapes = tuple[tuple[Any, ...], ...]
DTypes = tuple[DType, ...]
Flags = tuple[bool, ...]
Ways = tuple[tuple[int, ...], ...]  # per argument, the results that depend on it
Term = tuple[int, int | None]  # an argument, and one of these results or all


class Callback(ABC):
    """The value of an opaque leaf: Python code that Nodes call.

    To whatever looks at values it is an array without axes.
    """

    dtype = OPAQUE.dtype
    shape = ()
    ndim = 0

    @property
    def kept(self) -> Sequence[Any]:
        """The tensors it is known to keep alive."""
        return ()

    @abstractmethod
    def evaluate(
        self, op: str, arrays: Sequence[Any], attrs: dict[str, Any]
    ) -> tuple[Any, ...]:
        """The results of `custom_vjp` or `custom_jvp` for arrays."""

    @abstractmethod
    def perform(
        self, op: str, tensors: Sequence[Any], attrs: dict[str, Any]
    ) -> tuple[Any, ...]:
        """The same for tensors, in the sight of tapes and traces."""


class Reconnected(Exception):
    """A callback gave derivatives to others than it was expected to."""

    def __init__(self, callback: Callback, given: Flags, connected: Flags) -> None:
        super().__init__("the derivative has to be built again")
        self.callback = callback
        self.given = given
        self.connected = connected


# While a derivative is built: the Node of a callback, and what it is given -> what gets
# a derivative from it, where that has turned out to be other than all that could.
Expected = dict[tuple[Node, Flags], Flags]
CONNECTED: Final[ContextVar[Mapping[tuple[Node, Flags], Flags]]] = ContextVar(
    "connected", default=MappingProxyType({})
)


def _check_opaque(callback: Type) -> None:
    if callback != OPAQUE:
        raise ArgumentTypeError(f"the first operand is a callback, got {callback}")


def _zeros(kind: Any) -> Node:
    scalar = literal(0, kind.dtype)
    return broadcast_to(scalar, shape=kind.shape) if kind.shape else scalar


def _with_zeros(given: Sequence[Node | None], of: Sequence[Node]) -> list[Node]:
    """Derivatives of Nodes, zeros where there is none."""
    pairs = zip(given, of, strict=True)
    return [_zeros(x.type) if part is None else part for part, x in pairs]


def _described(types: Sequence[Any]) -> dict[str, Any]:
    """Types as attributes."""
    return {
        "shapes": tuple(kind.shape for kind in types),
        "dtypes": tuple(kind.dtype for kind in types),
    }


# The calls


def custom_derivative_type(
    callback: Type,
    *derivatives: Type,
    given: Flags,
    connected: Flags,
    shapes: Shapes,
    dtypes: DTypes,
    batch_axes: int,
) -> TupleType:
    """The type of both calls: that of what they are to compute."""
    _check_opaque(callback)
    return TupleType(tuple(map(TensorType, dtypes, shapes)))


def _custom_vjp_eval(callback: Callback, *arrays: Any, **attrs: Any) -> tuple[Any, ...]:
    return callback.evaluate("custom_vjp", arrays, attrs)


def _batched_call(
    op: Op, size: Any, inputs: Sequence[Node], batched: Sequence[bool], attrs: Any
) -> Node:
    """The callback is asked row by row."""
    callback, *operands = inputs
    rows = [
        x if flag else broadcast_to(x, shape=(size, *x.shape))
        for x, flag in zip(operands, batched[1:], strict=True)
    ]
    shapes = tuple((size, *shape) for shape in attrs.pop("shapes"))
    axes = attrs.pop("batch_axes") + 1
    return op(callback, *rows, shapes=shapes, batch_axes=axes, **attrs)


def _batch_custom_vjp(
    size: Any, inputs: tuple[Node, ...], batched: Sequence[bool], **attrs: Any
) -> Node:
    return _batched_call(custom_vjp, size, inputs, batched, attrs)


# Where a result is not `given` a cotangent, the operand is zeros. `shapes` and `dtypes`
# are those of what it computes: one for each connected argument.
custom_vjp = register_unlisted(
    Op(
        "custom_vjp",
        type_rule=custom_derivative_type,
        eval=_custom_vjp_eval,
        batch=_batch_custom_vjp,
        differentiable=False,
    )
)


def _custom_jvp_eval(callback: Callback, *arrays: Any, **attrs: Any) -> tuple[Any, ...]:
    return callback.evaluate("custom_jvp", arrays, attrs)


def _batch_custom_jvp(
    size: Any, inputs: tuple[Node, ...], batched: Sequence[bool], **attrs: Any
) -> Node:
    return _batched_call(custom_jvp, size, inputs, batched, attrs)


# The same from the tangents of arguments to those of the connected results.
custom_jvp = register_unlisted(
    Op(
        "custom_jvp",
        type_rule=custom_derivative_type,
        eval=_custom_jvp_eval,
        batch=_batch_custom_jvp,
        differentiable=False,
    )
)

# Whoever runs a Graph in the sight of tapes leaves these to their callback.
CALLING: Final = frozenset({custom_vjp, custom_jvp})


def _asked(
    op: Op,
    callback: Node,
    given: Sequence[Node | None],
    starts: Sequence[Node],
    ends: Sequence[Node],
    default: Flags,
) -> list[Node | None]:
    """What a callback makes of the derivatives of starts, for each end."""
    flags = tuple(part is not None for part in given)
    connected = CONNECTED.get().get((callback, flags), default)
    places = [at for at, flag in enumerate(connected) if flag]
    parts: list[Node | None] = [None] * len(ends)
    if places:
        called = op(
            callback,
            *_with_zeros(given, starts),
            given=flags,
            connected=connected,
            **_described([ends[at].type for at in places]),
            batch_axes=0,
        )
        for at, part in zip(places, results_of(called), strict=True):
            parts[at] = part
    return parts


# The function


def custom_type(callback: Type, *types: Type, results: int) -> TupleType:
    _check_opaque(callback)
    if not 0 < results <= len(types):
        raise ArgumentTypeError(f"the last {results} operands are the results")
    return TupleType(types[-results:])


def _custom_eval(callback: Callback, *arrays: Any, results: int) -> tuple[Any, ...]:
    return arrays[-results:]


def custom_pull(
    g: tuple[Node | None, ...],
    out: Node,
    callback: Node,
    *inputs: Node,
    results: int,
) -> tuple[Node | None, ...]:
    """The arguments get what the callback says, the results their own cotangent."""
    arguments, values = inputs[:-results], inputs[-results:]
    every = (True,) * len(arguments)
    parts = _asked(custom_vjp, callback, g, values, arguments, every)
    return (None, *parts, *g)


def custom_push(
    tangents: tuple[Node | None, ...],
    out: Node,
    callback: Node,
    *inputs: Node,
    results: int,
) -> tuple[Node | None, ...]:
    """Tangents of arguments go through the callback, those of results add to it."""
    arguments, values = inputs[:-results], inputs[-results:]
    pushed = tangents[len(inputs) - results + 1 :]
    given = tangents[1 : len(arguments) + 1]
    if all(t is None for t in given):
        return pushed
    every = tuple(is_differentiable(x.dtype) for x in values)
    parts = _asked(custom_jvp, callback, given, arguments, values, every)
    return _added(pushed, parts)


def _added(
    left: Sequence[Node | None], right: Sequence[Node | None]
) -> tuple[Node | None, ...]:
    """The sums of derivatives, None where there is neither."""
    pairs = zip(left, right, strict=True)
    return tuple(y if x is None else x if y is None else x + y for x, y in pairs)


def _batch_custom(
    size: Any, inputs: tuple[Node, ...], batched: Sequence[bool], *, results: int
) -> Node:
    raise UnsupportedError(
        "a recorded call of a function with a custom gradient has no rows",
        help="map the function itself: tj.vmap(function)",
    )


custom = register_unlisted(
    Op(
        "custom",
        type_rule=custom_type,
        eval=_custom_eval,
        vjp=custom_pull,
        jvp=custom_push,
        batch=_batch_custom,
        holomorphic=False,
    )
)

# The same in a traced function: what `grad_fn` computes is a Graph


def terms(depends: Ways) -> list[Term]:
    """What `backward` gives: first the gradient of each argument that has one.

    Of an argument that several results depend on, the parts follow that each of them
    alone contributes. The cotangents of the others have no place in a part, not even
    as zeros: to a second derivative these would be connected.
    """
    wholes: list[Term] = [(at, None) for at, way in enumerate(depends) if way]
    several = [(at, way) for at, way in enumerate(depends) if len(way) > 1]
    return [*wholes, *[(at, result) for at, way in several for result in way]]


def _wanted(depends: Ways, given: Collection[int]) -> list[Term]:
    """The terms of the gradients if these results have a cotangent."""
    wanted: list[Term] = []
    for at, way in enumerate(depends):
        present = [result for result in way if result in given]
        if present and len(present) == len(way):
            wanted.append((at, None))
        else:
            wanted += [(at, result) for result in present]
    return wanted


def custom_call_type(
    *types: Type,
    backward: Graph,
    forward: Graph,
    connected: Flags,
    results: int,
    depends: Ways = (),
) -> TupleType:
    if len(types) != len(connected) + len(backward.inputs):
        raise ArgumentTypeError(
            f"takes {len(connected)} arguments and as many operands as {backward.name} "
            f"has inputs, {len(backward.inputs)}, got {len(types)} operands"
        )
    return TupleType(types[-results:])


def _custom_call_eval(
    *arrays: Any,
    backward: Graph,
    forward: Graph,
    connected: Flags,
    results: int,
    depends: Ways = (),
) -> tuple[Any, ...]:
    return arrays[-results:]


def custom_call_vjp(
    g: tuple[Node | None, ...],
    out: Node,
    *inputs: Node,
    backward: Graph,
    forward: Graph,
    connected: Flags,
    results: int,
    depends: Ways = (),
) -> tuple[Node | None, ...]:
    """The arguments get what `backward` makes of the cotangents."""
    residuals = inputs[len(connected) : -results]
    parts: list[Node | None] = [None] * (len(connected) + len(residuals))
    wanted: list[Term] = [(at, None) for at, flag in enumerate(connected) if flag]
    if depends:
        given = [at for at, part in enumerate(g) if part is not None]
        wanted = _wanted(depends, given)
        at_hand = dict(zip(terms(depends), backward.outputs, strict=True))
        chosen = [at_hand[term] for term in wanted]
        backward = Graph(backward.name, backward.inputs, chosen)
    if wanted:
        cotangents = _with_zeros(g, inputs[-results:])
        called = call(*residuals, *cotangents, graph=backward)
        for (at, _), part in zip(wanted, results_of(called), strict=True):
            before = parts[at]
            parts[at] = part if before is None else before + part
    return (*parts, *g)


def custom_call_jvp(
    tangents: tuple[Node | None, ...],
    out: Node,
    *inputs: Node,
    backward: Graph,
    forward: Graph,
    connected: Flags,
    results: int,
    depends: Ways = (),
) -> tuple[Node | None, ...]:
    """The results get what `forward` makes of the tangents."""
    pushed, values = tangents[-results:], inputs[-results:]
    places = [at for at, flag in enumerate(connected) if flag]
    given = [at for at in places if tangents[at] is not None]
    if not given:
        return pushed
    operands = [tangents[at] or _zeros(inputs[at].type) for at in places]
    called = call(*inputs[len(connected) : -results], *operands, graph=forward)
    parts = iter(results_of(called))
    found = [next(parts) if is_differentiable(x.dtype) else None for x in values]
    if depends:
        reached = {result for at in given for result in depends[at]}
        found = [x if at in reached else None for at, x in enumerate(found)]
    return _added(pushed, found)


# Operands: the arguments (one for each of `connected`), the residuals, which are the
# first inputs of both Graphs, the results as they were computed. `backward` takes the
# cotangents of all results and gives the gradients of the connected arguments;
# `forward` takes the tangents of those and gives the tangents of the floating-point
# results. If `depends` says which results depend on each argument, an argument has a
# gradient from these alone, and `backward` gives what `terms` lists. How it batches is
# a matter of its Graphs, so the pass that batches Graphs knows it.
custom_call = record(
    "custom_call",
    type_rule=custom_call_type,
    eval=_custom_call_eval,
    vjp=custom_call_vjp,
    jvp=custom_call_jvp,
    holomorphic=False,
)

# A `grad_fn` that raised while it was traced raises again where it would have run. The
# exception itself is kept beside the Graph, by its text, so that it keeps its type.
ERRORS: Final[dict[str, Exception]] = {}
MAX_ERRORS: Final = 256


def note_error(error: Exception) -> str:
    """The name by which `failed` raises an exception."""
    name = f"{type(error).__name__}: {error}"
    if len(ERRORS) >= MAX_ERRORS:
        ERRORS.clear()
    ERRORS[name] = error.with_traceback(None)  # its frames would keep the trace alive
    return name


def failed_type(
    *operands: Type, error: str, shapes: Shapes, dtypes: DTypes
) -> TupleType:
    return TupleType(tuple(map(TensorType, dtypes, shapes)))


def _failed_eval(
    *arrays: Any, error: str, shapes: Shapes, dtypes: DTypes
) -> tuple[Any, ...]:
    raise ERRORS.get(error) or NotDifferentiableError(error)


def _batch_failed(
    size: Any,
    inputs: tuple[Node, ...],
    batched: Sequence[bool],
    *,
    error: str,
    shapes: Shapes,
    dtypes: DTypes,
) -> Node:
    rows = tuple((size, *shape) for shape in shapes)
    return failed(*inputs, error=error, shapes=rows, dtypes=dtypes)


failed = register_unlisted(
    Op(
        "failed",
        type_rule=failed_type,
        eval=_failed_eval,
        batch=_batch_failed,
        differentiable=False,
    )
)


def raise_failure(graph: Graph) -> None:
    """Raise what running a Graph will raise because a `grad_fn` did."""
    for node in graph.nodes:
        if node.op is failed:
            _failed_eval(**node.attrs)
        elif node.op is call:
            raise_failure(node.attrs["graph"])


__all__ = [
    "CALLING",
    "CONNECTED",
    "Callback",
    "Expected",
    "Flags",
    "Reconnected",
    "Ways",
    "custom",
    "custom_call",
    "custom_jvp",
    "custom_vjp",
    "failed",
    "note_error",
    "raise_failure",
    "terms",
]
