"""A function with a derivative that is not its own: run again, or written by a user.

`custom_call` stands for a call of such a function. It passes on the results as they
were computed, and knows a rule for their derivative: a Graph to run again, Graphs of
the derivative itself, or a `Callback` that holds the user's `grad_fn`. Along the
results flows what the function owes to tensors that were no arguments of it.

`custom_vjp` and `custom_jvp` ask the callback when they are evaluated. The callback is
an operand and no attribute because programs are recognised by their attributes: a
training step that makes a new closure each time is still the same program, and the
closure goes with the values of the step. They are unlisted, for the text of a Graph
cannot hold a callback.

Which arguments `grad_fn` gives a gradient is known only once it has run, and of a
function that runs again it depends on which results have a cotangent (`given`). A Node
of `custom_vjp` or `custom_jvp` states what it expects (`connected`); a callback that
finds otherwise raises `Reconnected`, and the derivative is built again with the finding
in `CONNECTED`.

Start reading at `custom_call`, then `Callback`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, Final

from tapejit.base.dims import Size
from tapejit.base.errors import ArgumentTypeError, NotDifferentiableError
from tapejit.base.types import OPAQUE, DType, TensorType, TupleType, Type
from tapejit.ir.graph import Graph
from tapejit.ir.node import Node, Op, literal, record, register_unlisted
from tapejit.ir.structural import call, with_rows
from tapejit.ops.movement import broadcast_to

Shapes = tuple[tuple[Any, ...], ...]
DTypes = tuple[DType, ...]
Flags = tuple[bool, ...]


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


def _calling(name: str) -> Op:
    """An op that asks the callback, which is its first operand, for a derivative.

    Where no derivative is `given`, the operand is zeros. `shapes` and `dtypes` say what
    is computed: one derivative for each end that is connected. Of a batch the callback
    is asked row by row.
    """

    def evaluate(callback: Callback, *arrays: Any, **attrs: Any) -> tuple[Any, ...]:
        return callback.evaluate(name, arrays, attrs)

    def batch(
        size: Size, inputs: tuple[Node, ...], batched: Sequence[bool], **attrs: Any
    ) -> Node:
        callback, *operands = inputs
        rows = with_rows(size, operands, batched[1:])
        shapes = tuple((size, *shape) for shape in attrs.pop("shapes"))
        axes = attrs.pop("batch_axes") + 1
        return op(callback, *rows, shapes=shapes, batch_axes=axes, **attrs)

    op = Op(
        name,
        type_rule=custom_derivative_type,
        eval=evaluate,
        batch=batch,
        differentiable=False,
    )
    return register_unlisted(op)


# From the cotangents of the results to those of the arguments, and from the tangents of
# the arguments to those of the results.
custom_vjp = _calling("custom_vjp")
custom_jvp = _calling("custom_jvp")

# Whoever runs a Graph in the sight of tapes leaves these to their callback.
CALLING: Final = frozenset({custom_vjp, custom_jvp})


# The function


def custom_call_type(
    *types: Type,
    results: int,
    body: Graph | None = None,
    backward: Graph | None = None,
    forward: Graph | None = None,
    connected: Flags = (),
) -> TupleType:
    wanted = len(types)
    if body is not None:
        wanted = len(body.inputs) + results
    elif backward is not None:
        wanted = len(connected) + len(backward.inputs)
    else:
        _check_opaque(types[0])
    if len(types) != wanted or not 0 < results <= wanted:
        raise ArgumentTypeError(f"takes {wanted} operands, got {len(types)}")
    return TupleType(types[-results:])


def _custom_call_eval(*arrays: Any, results: int, **rule: Any) -> tuple[Any, ...]:
    return arrays[-results:]


# The results of a function, which are the last operands as they were computed, with a
# derivative that is not theirs. Whose it is:
#
# - that of `body`, which runs again. The other operands are its inputs.
# - what `backward` computes of the cotangents of all results: the gradients of the
#   arguments that are `connected`; `forward` computes the tangents of the
#   floating-point results of those of these arguments. The other operands are the
#   arguments, one for each of `connected`, and the first inputs of both Graphs.
# - what a callback says, which is the first operand; the others are the arguments.
#
# What is computed by a Graph or a callback has the gradient of the results besides.
# The passes that differentiate and batch know this, as they do of `call`.
custom_call = record(
    "custom_call",
    type_rule=custom_call_type,
    eval=_custom_call_eval,
    differentiable=False,
)


def callback_of(node: Node) -> Node | None:
    """The callback that says what the derivative of a Node is, if it has one."""
    first = node.inputs[0] if node.op is custom_call else None
    return first if first is not None and first.type == OPAQUE else None


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


def failed_type(like: Type, *, error: str) -> Type:
    return like


def _failed_eval(*arrays: Any, error: str) -> Any:
    raise ERRORS.get(error) or NotDifferentiableError(error)


def _batch_failed(
    size: Size, inputs: tuple[Node, ...], batched: Sequence[bool], *, error: str
) -> Node:
    return failed(*inputs, error=error)


# Stands for a value of the type of its operand.
failed = register_unlisted(
    Op(
        "failed",
        type_rule=failed_type,
        eval=_failed_eval,
        batch=_batch_failed,
        differentiable=False,
    )
)


def failing(error: Exception, types: Iterable[Any]) -> tuple[Node, ...]:
    """Nodes that raise instead of giving values of these types."""
    name = note_error(error)
    zeros = [broadcast_to(literal(0, x.dtype), shape=x.shape) for x in types]
    return tuple([failed(x, error=name) for x in zeros])


def raise_failure(graph: Graph) -> None:
    """Raise what running a Graph will raise because a `grad_fn` did."""
    for node in graph.nodes:
        if node.op is failed:
            _failed_eval(**node.attrs)
        elif node.op is call:
            raise_failure(node.attrs["graph"])
