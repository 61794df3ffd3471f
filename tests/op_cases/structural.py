"""Cases of the structural ops: each is a small Graph in which the op has a part.

Parameters and literals are not applied to anything, projections take a tuple, a guard
and the start of a chain are tokens: none of them is a user's call, so they are judged
by the Graph around them. `read` is one like any other and is among the elementwise.

Start reading at `CASES`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from agreement import EXACT, ROUNDED

from op_cases import references as ref
from op_cases.case import INDEX_DTYPES, INEXACT, NUMERIC, OpCase, Operand, variants_of
from tapejit.ir import OPS, Graph, Node, literal, param
from tapejit.ir.structural import call, first_token, guard, item, require

SHAPES = [((3, 4),), ((),), ((0, 3),)]
PAIRS = [((3, 4), (3, 4)), ((), ()), ((0, 3), (0, 3))]
EXPECTED = 3


def body(x: Node, y: Node) -> Graph:
    """A product and a sum."""
    a, b = param("a", x.type), param("b", y.type)
    return Graph("body", (a, b), (a * b, a + b))


def called(index: int) -> Callable[[Node, Node], Node]:
    """One result of a call of `body`."""

    def build(x: Node, y: Node) -> Node:
        return item(call(x, y, graph=body(x, y)), index=index)

    return build


def guarded(x: Node, flag: Node) -> Graph:
    """Doubles `x`, provided the flag is what is expected."""
    checked = guard(flag, first_token(), expected=EXPECTED)
    return Graph("guard", (x, flag), (x + x,), checked)


def required(x: Node) -> Graph:
    """Doubles `x`, and has something run that nobody uses."""
    return Graph("require", (x,), (x + x,), require(x * x, first_token()))


def structural(
    op: str,
    reference: Callable[..., Any],
    build: Callable[..., Node | Graph],
    shapes: Any,
    *,
    operands: tuple[Operand, ...] | None = None,
    agreement: str = EXACT,
    first: str = "c",
    second: tuple[str, ...] = ("-",),
    **fields: Any,
) -> OpCase:
    return OpCase(
        op,
        operands or (Operand(),) * len(shapes[0]),
        variants_of(shapes),
        reference,
        agreement,
        first=first,
        second=second,
        build=build,
        is_eager=False,
        **fields,
    )


def doubled(x: Node) -> Node:
    """Twice `x`, without its derivative."""
    return OPS["stop_gradient"](x + x)


def custom_called(x: Node) -> Node:
    """The same with its derivative, as a function with a gradient of its own."""
    g = param("g", x.type)
    body = Graph("double", (g,), (g + g,))
    attrs = {"backward": body, "forward": body, "connected": (True,), "results": 1}
    return item(OPS["custom_call"](x, doubled(x), **attrs), index=0)


def called_again(x: Node) -> Node:
    """The same with the derivative of a body that runs again."""
    g = param("g", x.type)
    body = Graph("double", (g,), (g + g,))
    return item(OPS["custom_call"](x, doubled(x), body=body, results=1), index=0)


FLAG = Operand(integers=(EXPECTED, EXPECTED + 1), own=INDEX_DTYPES)

CASES = [
    structural("param", lambda x: x, lambda x: Graph("param", (x,), (x,)), SHAPES),
    structural(
        "literal",
        ref.arithmetic(lambda x: x + 2, lambda n: n + 2),
        lambda x: OPS["add"](x, literal(2, x.dtype)),
        SHAPES,
        takes=NUMERIC,
    ),
    structural(
        "call",
        lambda x, y: np.multiply(*map(ref.widened, (x, y))),
        called(0),
        PAIRS,
        agreement=ROUNDED,
        takes=INEXACT,
        first="cc",
        second=("-c", "c-"),
    ),
    structural(
        "item",
        ref.arithmetic(np.add, operator.add),
        called(1),
        PAIRS,
        first="cc",
        second=("--", "--"),
    ),
    # Assigned what it held: the numbers come from one side, the gradient from the
    # other, so only this shows both.
    structural("reread", lambda x: x, lambda x: OPS["reread"](x, x), SHAPES),
    # What it waits for gets no gradient.
    structural(
        "recomputed",
        lambda x, y: x,
        lambda x, y: OPS["recomputed"](x, y, y),
        PAIRS,
        first="c-",
    ),
    structural(
        "dim_value",
        ref.arithmetic(lambda x: x + 2, lambda n: n + 2),
        lambda x: OPS["add"](x, OPS["cast"](OPS["dim_value"](size=2), dtype=x.dtype)),
        SHAPES,
        takes=NUMERIC,
    ),
    structural(
        "with_shape",
        lambda x: x,
        lambda x: OPS["with_shape"](x, shape=x.shape),
        SHAPES,
    ),
    structural(
        "require",
        ref.arithmetic(lambda x: x + x, lambda n: 2 * n),
        required,
        SHAPES,
        takes=INEXACT,
    ),
    structural(
        "guard",
        ref.arithmetic(lambda x, _: x + x, lambda n, _: 2 * n),
        guarded,
        [((3, 4), ()), ((), ())],
        operands=(Operand(), FLAG),
        takes=INEXACT,
        first="c-",
        second=("--",),
        unbatched=(1,),
    ),
    structural(
        "start",
        lambda x: x,
        lambda x: Graph("start", (x,), (x,), first_token()),
        SHAPES,
    ),
    structural(
        "custom_call",
        ref.arithmetic(lambda x: x + x, lambda n: 2 * n),
        custom_called,
        SHAPES,
        takes=INEXACT,
    ),
    structural(
        "custom_call",
        ref.arithmetic(lambda x: x + x, lambda n: 2 * n),
        called_again,
        [((4, 3),), ((2,),), ((3, 0),)],
        takes=INEXACT,
    ),
]
