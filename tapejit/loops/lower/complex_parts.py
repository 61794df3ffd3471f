"""Complex numbers as two real ones: a Graph of real and imaginary parts.

In memory the parts take turns. So a complex parameter becomes one of rows of two
numbers, of which the parts are views; a complex result is written as such rows. The
array is the same, nothing is copied. In between there are floats, which fuse, add up
and become vectors like others.

What an operation does to the parts follows from its record: from the lane expression,
or from what it moves or adds up. `Parts` are what stands for a complex Node.

Start reading at `with_parts`, then `FORMULAS`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from tapejit import ops
from tapejit.base.errors import UnsupportedError
from tapejit.base.types import (
    DType,
    TensorType,
    complex_dtype,
    is_complex,
    real_dtype,
)
from tapejit.ir.graph import Graph
from tapejit.ir.node import (
    LITERAL,
    PARAM,
    Movement,
    Node,
    Op,
    literal,
    origin_of,
    param,
)
from tapejit.ir.rewriting import with_inputs
from tapejit.loops.lane_algebra import Algebra, Lane
from tapejit.ops.elementwise import broadcast_like
from tapejit.ops.movement import zeros


class Parts(NamedTuple):
    """The real and the imaginary part of a complex Node."""

    real: Node
    imag: Node


Value = Node | Parts
Formula = Callable[..., Any]
PLAIN: Final = (Movement.ALIAS, Movement.VIEW, Movement.PIECES)


def with_parts(graph: Graph) -> Graph:
    """The Graph of the parts; itself if nothing in it is complex.

    >>> z = param("z", TensorType.parse("c64[3]"))
    >>> print(with_parts(Graph("f", (z,), (ops.real(z),))))
    graph f(z: f32[3,2]) {
      %0: f32[3,1] = slice z, starts=(0, 0), stops=(3, 1), steps=(1, 1)
      %1: f32[3]   = reshape %0, shape=(3,)
      return %1
    }
    """
    if not any(involves_complex(x) for x in (*graph.inputs, *graph.nodes)):
        return graph
    inputs = tuple(rows_of(x, at) for at, x in enumerate(graph.inputs))
    values: dict[Node, Value] = {}
    for old, new in zip(graph.inputs, inputs, strict=True):
        values[old] = new if new is old else parts_in(new)
    for node in graph.nodes:
        with origin_of(node.origin):
            if involves_complex(node):
                values[node] = split(node, [values.get(x, x) for x in node.inputs])
            else:
                found = {x: values.get(x, x) for x in node.inputs}
                moved = {x: y for x, y in found.items() if isinstance(y, Node)}
                values[node] = with_inputs(node, moved)
    outputs = [joined(values.get(x, x)) for x in graph.outputs]
    return Graph(graph.name, inputs, outputs)


def involves_complex(node: Node) -> bool:
    """Whether a Node is complex, or takes something that is."""
    kinds = (node.type, *(x.type for x in node.inputs))
    return any(isinstance(x, TensorType) and is_complex(x.dtype) for x in kinds)


# In memory


def rows_of(x: Node, at: int) -> Node:
    """A complex input as a parameter of rows of two numbers; any other as it is."""
    if not is_complex(x.dtype):
        return x
    kind = TensorType(real_dtype(x.dtype), (*x.shape, 2))
    return param(x.attrs.get("name") or f"rows_{at}", kind)


def parts_in(rows: Node) -> Parts:
    """The two columns of rows."""
    shape = rows.shape[:-1]
    starts, ones = (0,) * len(shape), (1,) * rows.ndim
    columns = [
        ops.slice(rows, starts=(*starts, at), stops=(*shape, at + 1), steps=ones)
        for at in range(2)
    ]
    return Parts(*(ops.reshape(x, shape=shape) for x in columns))


def joined(value: Value) -> Node:
    """The rows of a result, if it is complex."""
    if isinstance(value, Node):
        return value
    columns = [ops.reshape(x, shape=(*x.shape, 1)) for x in value]
    return ops.concat(*columns, axis=value.real.ndim)


# Operations


def has_parts(node: Node) -> bool:
    """Whether this is known of a Node that involves complex numbers.

    >>> z = param("z", TensorType.parse("c64[3]"))
    >>> has_parts(z * z), has_parts(ops.log(z))
    (True, False)
    """
    return written_out(node) is not None


def written_out(node: Node) -> list[Node] | None:
    """The operations on parts that a Node is, to be asked about; None if unknown."""
    try:
        made = split(node, [value_like(x) for x in node.inputs])
    except UnsupportedError:
        return None
    outputs = [made] if isinstance(made, Node) else list(made)
    nodes = Graph("parts", (), outputs).nodes
    return [x for x in nodes if x.op is not PARAM and x.op is not LITERAL]


def value_like(x: Node) -> Value:
    """A parameter, or two, in place of a Node; known numbers stay known."""
    if x.op is LITERAL:
        return literal_value(x)
    if not is_complex(x.dtype):
        return param("x", x.type)
    kind = TensorType(real_dtype(x.dtype), x.shape)
    return Parts(param("real", kind), param("imag", kind))


def literal_value(node: Node) -> Value:
    """A constant, or its parts."""
    if not is_complex(node.dtype):
        return node
    value = node.attrs["value"]
    return Parts(literal(value.real.copy()), literal(value.imag.copy()))


def split(node: Node, values: Sequence[Value]) -> Value:
    """What a Node does, of the parts of what it takes."""
    op = node.op
    if op is LITERAL:
        return literal_value(node)
    if op.scalar is not None:
        return expressed(node, values)
    if op is not ops.sum and op.moves not in PLAIN:
        raise UnsupportedError(f"{op.name} of complex numbers has no parts")
    return Parts(*(op(*(part(x, at) for x in values), **node.attrs) for at in range(2)))


def part(value: Value, at: int) -> Node:
    """One of the parts; a position or a condition is the same for both."""
    return value[at] if isinstance(value, Parts) else value


def expressed(node: Node, values: Sequence[Value]) -> Value:
    """The lane expression of a record, of Nodes."""
    algebra = OnParts()
    lanes = [
        Lane(algebra, x, y.dtype) for x, y in zip(values, node.inputs, strict=True)
    ]
    found = algebra.interpret(node.op, lanes, node.attrs)
    if found.dtype != node.dtype:
        raise UnsupportedError(f"the parts of {node.op.name} are {found.dtype}")
    made: Value = found.value
    if isinstance(made, Parts):
        return Parts(*(broadcast_like(x, node) for x in made))
    return made


class OnParts(Algebra):
    """Lane expressions of whole Nodes: a Lane's value is a Node, or its Parts."""

    def call(self, name: str, *operands: Any) -> Lane:
        if name == "cast":
            x, dtype = operands
            return Lane(self, as_dtype(x.value, dtype), dtype)
        formula = FORMULAS.get(name)
        if formula is None:
            raise UnsupportedError(f"nothing is known of {name} of complex numbers")
        lanes = [x for x in operands if isinstance(x, Lane)]
        peer = next((x.dtype for x in lanes if is_complex(x.dtype)), None)
        values = [
            x.value if isinstance(x, Lane) else number_beside(x, peer) for x in operands
        ]
        made = formula(*values)
        if isinstance(made, Parts):
            return Lane(self, made, complex_dtype(made.real.dtype))
        return Lane(self, made, made.dtype)


def number_beside(number: float | complex, dtype: DType | None) -> Any:
    """A number of a lane expression, in parts beside complex lanes."""
    if dtype is None:
        return number
    kind, value = real_dtype(dtype), complex(number)
    return Parts(literal(value.real, kind), literal(value.imag, kind))


def as_dtype(x: Value, dtype: DType) -> Value:
    """A conversion; from real numbers to complex ones the imaginary part is 0."""
    if is_complex(dtype):
        kind = real_dtype(dtype)
        if isinstance(x, Node):
            return Parts(converted(x, kind), zeros(kind, x.shape))
        return Parts(*(converted(y, kind) for y in x))
    if isinstance(x, Parts):
        if dtype.kind == "b":
            are_set = [ops.not_equal(v, 0) for v in x]
            return ops.bitwise_or(*are_set)
        x = x.real
    return converted(x, dtype)


def converted(x: Node, dtype: DType) -> Node:
    return x if x.dtype == dtype else ops.cast(x, dtype=dtype)


def mul(x: Parts, y: Parts) -> Parts:
    return Parts(x.real * y.real - x.imag * y.imag, x.real * y.imag + x.imag * y.real)


def div(x: Parts, y: Parts) -> Parts:
    """Smith's quotient: by the ratio of the divisor's parts, which cannot overflow."""
    sizes = [ops.abs(v) for v in y]
    is_wide = ops.greater_equal(*sizes)
    is_zero = ops.equal(ops.maximum(*sizes), 0)
    large, small = (ops.where(is_wide, y[at], y[1 - at]) for at in range(2))
    ratio = small / large
    scale = 1 / (large + small * ratio)
    first, second = (ops.where(is_wide, x[at], x[1 - at]) for at in range(2))
    turned = x.imag - x.real * ratio, x.imag * ratio - x.real
    real = (first + second * ratio) * scale
    imag = ops.where(is_wide, *turned) * scale
    return Parts(
        ops.where(is_zero, x.real / sizes[0], real),
        ops.where(is_zero, x.imag / sizes[0], imag),
    )


def sign(x: Parts) -> Parts:
    """x / |x|, by parts that cannot overflow; 0 at 0."""
    most = ops.maximum(*map(ops.abs, x))
    is_zero, is_infinite = ops.equal(most, 0), ops.isinf(most)
    near = [v / most for v in x]
    size = ops.hypot(*near)
    infinite = [ops.where(ops.isinf(v), ops.copysign(1, v), 0) for v in x]
    both = ops.bitwise_and(*map(ops.isinf, x))
    made = []
    for v, large in zip(near, infinite, strict=True):
        beyond = ops.where(both, literal(np.nan, v.dtype), large)
        found = ops.where(is_infinite, beyond, v / size)
        made.append(ops.where(is_zero, 0, found))
    return Parts(*made)


def exp(x: Parts) -> Parts:
    """e^re (cos im + i sin im), with the standard's values where a part is not finite.

    Where e^re is too large for the dtype the product need not be: there a part of the
    factor, e^`shift`, comes last.
    """
    dtype = x.real.dtype
    shift = math.log(float(np.finfo(dtype).max)) // 2
    is_large = ops.greater(x.real, literal(1.8 * shift, dtype))
    size = ops.exp(ops.where(is_large, x.real - shift, x.real))
    rest = ops.where(is_large, literal(math.exp(shift), dtype), literal(1, dtype))
    real, imag = (size * f(x.imag) * rest for f in (ops.cos, ops.sin))
    # The angle of an infinite or vanishing number does not matter where it has none.
    is_angle = ops.isfinite(x.imag)
    limit = ops.exp(x.real)
    is_limit = ops.bitwise_and(ops.bitwise_invert(is_angle), ops.isinf(x.real))
    real = ops.where(is_limit, limit, real)
    is_gone = ops.bitwise_and(is_limit, ops.equal(limit, 0))
    imag = ops.where(ops.bitwise_or(is_gone, ops.equal(x.imag, 0)), zero_of(x), imag)
    return Parts(real, imag)


def zero_of(x: Parts) -> Node:
    """The imaginary part where it is 0, with its sign; 0 elsewhere."""
    return ops.where(ops.equal(x.imag, 0), x.imag, 0)


def select(condition: Node, x: Value, y: Value) -> Value:
    if isinstance(x, Parts) and isinstance(y, Parts):
        return Parts(*(ops.where(condition, x[at], y[at]) for at in range(2)))
    return ops.where(condition, x, y)


def make_complex(x: Node, y: Node) -> Parts:
    kind = real_dtype(complex_dtype(x.dtype))
    return Parts(converted(x, kind), converted(y, kind))


def comparison(compare: Op, join: Op) -> Formula:
    """Of complex numbers by both parts, of real ones as it is."""

    def formula(x: Value, y: Any) -> Node:
        if isinstance(x, Node):
            return compare(x, y)
        return join(compare(x.real, y.real), compare(x.imag, y.imag))

    return formula


def property_of(test: Op, join: Op) -> Formula:
    """What both parts have, or one of them."""
    return lambda x: join(test(x.real), test(x.imag))


# By name of the lane algebra: what it is of Parts.
FORMULAS: Final[dict[str, Formula]] = {
    "add": lambda x, y: Parts(x.real + y.real, x.imag + y.imag),
    "sub": lambda x, y: Parts(x.real - y.real, x.imag - y.imag),
    "mul": mul,
    "div": div,
    "negative": lambda x: Parts(-x.real, -x.imag),
    "abs": lambda x: ops.hypot(x.real, x.imag),
    "sign": sign,
    "angle": lambda x: ops.atan2(x.imag, x.real),
    "exp": exp,
    "real": lambda x: x.real,
    "imag": lambda x: x.imag,
    "conj": lambda x: Parts(x.real, -x.imag),
    "make_complex": make_complex,
    "select": select,
    "eq": comparison(ops.equal, ops.bitwise_and),
    "ne": comparison(ops.not_equal, ops.bitwise_or),
    "isnan": property_of(ops.isnan, ops.bitwise_or),
    "isinf": property_of(ops.isinf, ops.bitwise_or),
    "isfinite": property_of(ops.isfinite, ops.bitwise_and),
}
