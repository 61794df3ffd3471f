"""Cases of the effects: each is a small Graph that does something and doubles `x`.

What is printed and which checks fail is the matter of `test_effects.py`; here they are
parts of graphs like any other: typed, printed, differentiated around, batched.

Start reading at `CASES`.
"""

from __future__ import annotations

from agreement import EXACT

from op_cases import references as ref
from op_cases.case import INDEX_DTYPES, INEXACT, OpCase, Operand, variants_of
from tapejit.ir import Graph, Node
from tapejit.ir.structural import first_token
from tapejit.ops import check, print_values


def printing(x: Node, shown: Node) -> Graph:
    """Doubles `x` after printing another value, and `x` itself."""
    texts = ("shown ", ' and "x"\n', "\n")
    said = print_values(
        shown, x, first_token(), texts=texts, stream="stdout", batch_axes=0
    )
    return Graph("print_values", (x, shown), (x + x,), said)


def checking(x: Node, small: Node) -> Graph:
    """Doubles `x`, provided the other value is small."""
    limit = small * 0 + 10
    checked = check(small, limit, first_token(), relation="less", message="too large")
    return Graph("check", (x, small), (x + x,), checked)


DOUBLED = ref.arithmetic(lambda x, _: x + x, lambda n, _: 2 * n)
OTHER = Operand(own=INDEX_DTYPES)
SHAPES = [((3, 4), (2,)), ((), ()), ((0, 3), (3, 0))]

CASES = [
    OpCase(
        "print_values",
        (Operand(), OTHER),
        variants_of(SHAPES),
        DOUBLED,
        EXACT,
        takes=INEXACT,
        first="c-",
        second=("--",),
        build=printing,
        is_eager=False,
    ),
    OpCase(
        "check",
        (Operand(), OTHER),
        variants_of(SHAPES),
        DOUBLED,
        EXACT,
        takes=INEXACT,
        first="c-",
        second=("--",),
        build=checking,
        unbatched=(1,),
        is_eager=False,
    ),
]
