"""Ops and Nodes: one record per operation, one Node per application.

An `Op` is everything tapejit knows about an operation. A `Node` is an Op applied to
Nodes, with its attributes, the type its Op's rule gives it, and where it came from.
Nodes are immutable and compared by identity: two `x * x` are two Nodes, because one
may have been computed outside a tape and one inside.

Calling an Op on Nodes makes a Node, and Nodes have Python's operators, so a
derivative reads like calculus: `t * (1 - out * out)`. Operators look their Op up in
the registry by name, because this layer may not import the records.

Start reading at `Op`, then `Node`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from enum import Enum
from typing import Any, Final, Literal, NamedTuple, ParamSpec

import numpy as np

from tapejit.base.errors import ArgumentError, DTypeError, TapejitError
from tapejit.base.origin import Origin
from tapejit.base.types import DType, TensorType, TupleType, Type, scalar_dtype

Rule = Callable[..., Any]
Attrs = Mapping[str, Any]
P = ParamSpec("P")


class Zero:
    """The derivative that is zero everywhere although its input matters.

    A rule returns `ZERO` for a piecewise constant operation. It differs from None,
    which says that there is no path at all: `floor` has derivative zero, a cast to
    integers has none.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return "ZERO"


ZERO: Final = Zero()


class Movement(Enum):
    """Where an operation that computes nothing takes its elements from."""

    ALIAS = "the first operand, as it is"
    VIEW = "its one operand, from other places"
    PIECES = "operands that it puts together"
    OTHER = "wherever it is told to"


class Monoid(NamedTuple):
    """How a reduction takes in one more element, and what it starts from."""

    combine: Op
    identity: Callable[[DType], Any]


# The cost of an operation that takes one instruction, and of one nothing is known of.
CHEAP, COSTLY = 1.0, 20.0
# Operands in which an operation is linear.
ALL, FIRST, SECOND = slice(None), slice(0, 1), slice(1, 2)


def always(node: Node) -> bool:
    """What holds of an operation whatever it is applied to."""
    return True


class Op:
    """The record of one operation.

    name            unique; what printed graphs call it
    type_rule       `(*types, **attrs) -> Type`, or raises the error users see
    eval            its NumPy meaning, `(*arrays, **attrs)`
    deriv           elementwise only: per operand `(t, *inputs, out) -> t'`, its JVP
                    term and, the Jacobian being diagonal, its VJP term; None for an
                    operand that takes no derivative
    vjp             `(g, out, *inputs, **attrs) -> (cotangent | None | ZERO, ...)`
    jvp             `(tangents, out, *inputs, **attrs) -> tangent`; tangents may be
                    None where an input has none. By default, with a vjp, that of what
                    is linear in its first operand, if it says so
    batch           `(size, inputs, batched, **attrs) -> Node` with the batch axis in
                    front; `batched[i]` says whether `inputs[i]` has one
    scalar          lane expression `(m, *lanes, **attrs) -> lane` for code generation
    differentiable  False: integer or structural result, never a path
    holomorphic     False: the rules deal with complex operands themselves
    conj_linear     the rule commutes with conj (sums, and what moves): no conj is
                    inserted
    is_effect       the last input and the (last) result are tokens of the effects
    can_fail        its evaluation may raise, depending on values: it is never pruned
    draws           a random draw: batched even when no input is, so rows differ

    What passes and code generation ask; most records need none of it to be right:

    moves           computes nothing: where its elements are from
    exact           has the same bits wherever it runs; "real": of real numbers
    cost            about how many instructions an element takes; one for an alias
                    or a view, many if nothing is said
    reduces         combines the elements along `axes`, and how
    terms           of a product `(node) -> int`: how many terms an element sums
    linear          the operands in which it is linear, taken together; the others are
                    conditions, indices, divisors
    bilinear        linear in each of two operands while the other is constant
    precision       under a policy of mixed precision: "half" of what is computed in the
                    dtype of the policy, "single" of what is computed in float32; None
                    of what follows its operands
    jumps           its result may jump when the last bit of an operand changes
    sorted_by       the operand whose order it follows
    scatters        adds at positions: the first operand that is one
    bound           passes integers on, `(node) -> int`: loops look whether one is not
                    in [0, bound), and then leave all to `eval`, which says what it is
    expands         `(node) -> Node`: the same as other operations, which fuse
    on_arrays       `(node) -> bool`: where loops have code of its own for it, as an
                    operation on whole arrays

    accepted        the dtypes (tuples of them, or one that all operands share) that
                    the type rule has let through: eager calls check a dtype once
    """

    def __init__(
        self,
        name: str,
        *,
        type_rule: Callable[..., Type],
        eval: Rule,
        deriv: Sequence[Rule | None] | None = None,
        vjp: Rule | None = None,
        jvp: Rule | None = None,
        batch: Callable[..., Node] | None = None,
        scalar: Rule | None = None,
        differentiable: bool = True,
        holomorphic: bool = True,
        conj_linear: bool = False,
        is_effect: bool = False,
        can_fail: bool = False,
        draws: bool = False,
        moves: Movement | None = None,
        exact: bool | Literal["real"] = False,
        cost: float | None = None,
        reduces: Monoid | None = None,
        terms: Callable[[Node], int] | None = None,
        linear: slice | None = None,
        bilinear: bool = False,
        precision: Literal["half", "single"] | None = None,
        jumps: bool = False,
        sorted_by: int | None = None,
        scatters: int | None = None,
        bound: Callable[[Node], int] | None = None,
        expands: Callable[[Node], Node] | None = None,
        on_arrays: Callable[[Node], bool] | None = None,
    ) -> None:
        self.name, self.accepted = name, set[Any]()
        self.type_rule, self.eval = type_rule, eval
        if vjp is not None and jvp is None and linear in (ALL, FIRST):
            jvp = linear_jvp(name)
        if cost is None:
            cost = CHEAP if moves in (Movement.ALIAS, Movement.VIEW) else COSTLY
        conj_linear = conj_linear or (moves is not None and linear is not None)
        self.deriv, self.vjp, self.jvp, self.batch = deriv, vjp, jvp, batch
        self.scalar, self.expands, self.on_arrays = scalar, expands, on_arrays
        self.differentiable, self.holomorphic = differentiable, holomorphic
        self.conj_linear, self.linear, self.bilinear = conj_linear, linear, bilinear
        self.is_effect, self.can_fail, self.draws = is_effect, can_fail, draws
        self.moves, self.exact = moves, exact or moves is not None
        self.cost, self.reduces, self.terms = cost, reduces, terms
        self.precision, self.bound = precision, bound
        self.jumps, self.sorted_by, self.scatters = jumps, sorted_by, scatters

    @property
    def is_cheap(self) -> bool:
        """Whether computing it again costs less than keeping its result."""
        return self.cost <= CHEAP

    def infer_type(self, types: Sequence[Type], attrs: Attrs) -> Type:
        """The type of a result; the rule's errors get this op's name."""
        try:
            return self.type_rule(*types, **attrs)
        except TapejitError as error:
            error.op = error.op or self.name
            raise

    def __call__(self, *inputs: Any, **attrs: Any) -> Node:
        """Apply to Nodes; a Python scalar becomes a literal of its peer's dtype."""
        nodes = _coerce(self, inputs)
        node_type = self.infer_type([node.type for node in nodes], attrs)
        return Node(self, nodes, attrs, node_type, ORIGIN.get())

    def __repr__(self) -> str:
        return f"Op({self.name})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (op_named, (self.name,))


def linear_jvp(name: str) -> Rule:
    """The tangent of what is linear in its first operand and asks for no other's."""

    def jvp(
        tangents: Sequence[Node], out: Node, x: Node, *others: Node, **attrs: Any
    ) -> Node:
        return OPS[name](tangents[0], *others, **attrs)

    return jvp


class Registry(dict[str, Op]):
    """Every op by its name; families that are not loaded yet are, on a miss."""

    load_all: Callable[[], None] | None = None

    def __missing__(self, name: str) -> Op:
        if self.load_all is not None:
            self.load_all()
        if name not in self:
            raise KeyError(name)
        return self[name]


OPS: Final = Registry()


# Ops that take part in graphs which are run but never written down, because a value
# or an attribute of theirs has no text.
UNLISTED: Final[dict[str, Op]] = {}


def register_unlisted(op: Op) -> Op:
    """Make an op known without an entry in the registry of what can be read back."""
    if op.name in OPS or op.name in UNLISTED:
        raise ArgumentError(f"op {op.name!r} is registered twice")
    UNLISTED[op.name] = op
    return op


def register(op: Op) -> Op:
    """Add a record to the registry, checking what can be checked cheaply."""
    if op.name in OPS:
        raise ArgumentError(f"op {op.name!r} is registered twice")
    has_rule = op.deriv is not None or op.vjp is not None
    if op.differentiable and not has_rule:
        raise ArgumentError(
            f"op {op.name!r} has no derivative",
            help="give deriv= or vjp= and jvp=, or say differentiable=False",
        )
    if not op.differentiable and has_rule:
        raise ArgumentError(f"op {op.name!r} has a derivative it says it has not")
    if op.deriv is None and (op.vjp is None) != (op.jvp is None):
        raise ArgumentError(f"op {op.name!r} needs both vjp and jvp")
    OPS[op.name] = op
    return op


def registered(make: Callable[P, Op]) -> Callable[P, Op]:
    """The same maker of records, which registers what it makes."""

    def make_registered(*args: P.args, **fields: P.kwargs) -> Op:
        return register(make(*args, **fields))

    return make_registered


record = registered(Op)


def op_named(name: str) -> Op:
    """The op of this name, listed or not."""
    return UNLISTED[name] if name in UNLISTED else OPS[name]


class Derived:
    """The origin of a Node that a pass made: which pass, and for which Node."""

    __slots__ = ("by", "node")

    def __init__(self, by: str, node: Node) -> None:
        self.by = by
        self.node = node


def line_of(node: Node | None) -> Origin | None:
    """The user's line that a Node was made for, if it is known."""
    origin = None if node is None else node.origin
    while isinstance(origin, Derived):
        origin = origin.node.origin
    return origin


ORIGIN: Final[ContextVar[Origin | Derived | None]] = ContextVar("origin", default=None)


@contextmanager
def origin_of(origin: Origin | Derived | None) -> Iterator[None]:
    """Nodes made inside get this origin."""
    token = ORIGIN.set(origin)
    try:
        yield
    finally:
        ORIGIN.reset(token)


_serials = itertools.count()
Operator = Callable[["Node", Any], "Node"]


def _operator(name: str) -> tuple[Operator, Operator]:
    """Python's operator for an op and the reflected one."""

    def method(x: Node, other: Any) -> Node:
        return OPS[name](x, other)

    def reflected(x: Node, other: Any) -> Node:
        return OPS[name](other, x)

    return method, reflected


class Node:
    """An Op applied: immutable, one result (a tensor or a tuple of them).

    >>> x = param("x", TensorType.parse("f32[3]"))
    >>> y = x * 2
    >>> y.op.name, y.type, y.inputs[1].value
    ('mul', f32[3], 2.0)

    `serial` counts Nodes as they are made: of two, it tells which was there first.
    """

    __slots__ = ("__weakref__", "attrs", "inputs", "op", "origin", "serial", "type")
    __match_args__ = ("op", "inputs")

    def __init__(
        self,
        op: Op,
        inputs: tuple[Node, ...],
        attrs: Attrs,
        type: Type,
        origin: Origin | Derived | None = None,
    ) -> None:
        self.op = op
        self.inputs = inputs
        self.attrs = attrs
        self.type = type
        self.origin = origin
        self.serial = next(_serials)

    @property
    def tensor_type(self) -> TensorType:
        """The type of a Node that is known to be one tensor."""
        if not isinstance(self.type, TensorType):
            raise TypeError(f"{self.op.name} has type {self.type}, not one tensor's")
        return self.type

    @property
    def shape(self) -> Any:
        return self.tensor_type.shape

    @property
    def dtype(self) -> DType:
        return self.tensor_type.dtype

    @property
    def ndim(self) -> int:
        return len(self.tensor_type.shape)

    @property
    def value(self) -> bool | int | float | complex | None:
        """The number a literal of one element stands for, None for any other Node."""
        if self.op is not LITERAL or self.attrs["value"].size != 1:
            return None
        number: bool | int | float | complex = self.attrs["value"].item()
        return number

    @property
    def name(self) -> str | None:
        """The name of a parameter."""
        return self.attrs["name"] if self.op is PARAM else None

    def __repr__(self) -> str:
        if self.op is PARAM:
            return f"<Node {self.attrs['name']}: {self.type}>"
        inputs = ", ".join(str(x.name or x.value or x.op.name) for x in self.inputs)
        return f"<Node {self.op.name}({inputs}): {self.type}>"

    __add__, __radd__ = _operator("add")
    __sub__, __rsub__ = _operator("sub")
    __mul__, __rmul__ = _operator("mul")
    __truediv__, __rtruediv__ = _operator("div")
    __pow__ = _operator("pow")[0]
    __matmul__ = _operator("matmul")[0]

    def __neg__(self) -> Node:
        return OPS["negative"](self)


def _coerce(op: Op, inputs: Sequence[Any]) -> tuple[Node, ...]:
    """Inputs as Nodes; scalars take the dtype of the last differentiable peer."""
    nodes = [x for x in inputs if isinstance(x, Node)]
    if len(nodes) == len(inputs):
        return tuple(nodes)
    if not nodes:
        raise ArgumentError(
            "an op needs at least one Node among its inputs", op=op.name
        )
    dtype = nodes[-1].dtype
    return tuple(x if isinstance(x, Node) else literal(x, dtype) for x in inputs)


def _no_rule(*_: Any, **__: Any) -> Any:
    raise TypeError("parameters and literals are made by param() and literal()")


PARAM: Final = record(
    "param", type_rule=_no_rule, eval=_no_rule, differentiable=False, exact=True
)
LITERAL: Final = record(
    "literal", type_rule=_no_rule, eval=_no_rule, differentiable=False, exact=True
)


def param(name: str, type: Type) -> Node:
    """A parameter: a value that comes from outside."""
    return Node(PARAM, (), {"name": name}, type, ORIGIN.get())


def literal(value: Any, dtype: DType | None = None) -> Node:
    """A constant, held by content.

    >>> literal(2.5, np.dtype("float32")).type
    f32[]
    """
    if dtype is None and isinstance(value, (bool, int, float, complex)):
        dtype = scalar_dtype(value)
    if isinstance(value, complex) and dtype is not None and dtype.kind != "c":
        raise DTypeError(f"the literal {value} does not fit {dtype}")
    array = np.array(value, dtype)
    array.flags.writeable = False
    return Node(LITERAL, (), {"value": array}, TensorType.of(array), ORIGIN.get())


def is_tuple(node: Node) -> bool:
    """Whether a Node has several results."""
    return isinstance(node.type, TupleType)
