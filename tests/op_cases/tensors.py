"""Cases of the families that know of axes: movement, indexing, reductions, matrices.

Attributes arrive normalised from the namespace, so what is refused here are sizes that
do not fit. What the namespace itself refuses or changes before, such as a vector for a
matrix, is `unreachable` to an eager call.

Start reading at `movement`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from agreement import EXACT, PRODUCT, SUM

from op_cases import references as ref
from op_cases.case import (
    ANY,
    FLOAT,
    INDEX_DTYPES,
    NUMERIC,
    ORDERED,
    Attrs,
    OpCase,
    Operand,
    Shape,
    Variant,
    distinct,
)

# Movement


def movement(
    op: str,
    reference: Callable[..., Any],
    variants: Sequence[Variant],
    refused: Sequence[Variant] = (),
    operands: int = 1,
) -> OpCase:
    """A case that computes nothing: exact, and linear in every operand."""
    return OpCase(
        op,
        (Operand(),) * operands,
        tuple(variants),
        reference,
        EXACT,
        takes=ANY,
        first="c" * operands,
        second=("-" * operands,) * operands,
        refused=tuple(refused),
    )


def ranges(starts: Shape, stops: Any, steps: Shape) -> Attrs:
    return {"starts": starts, "stops": stops, "steps": steps}


def parts(starts: tuple[Shape, ...], steps: tuple[Shape, ...] | None = None) -> Attrs:
    """Where the updates of `place_add` go; without steps, without gaps."""
    return {"starts": starts, "steps": steps or tuple((1,) * len(x) for x in starts)}


MOVEMENT = [
    movement(
        "reshape",
        ref.reshape,
        [
            Variant(((3, 4),), lambda s: {"shape": (s[0] * s[1],)}, note="flat"),
            Variant(((3, 4),), lambda s: {"shape": (s[1], s[0])}, note="swapped"),
            Variant(((2, 1, 3),), lambda s: {"shape": (s[0], s[2], 1)}),
            Variant(((),), {"shape": (1, 1)}),
            Variant(((1,),), {"shape": ()}),
            Variant(((0, 3),), lambda s: {"shape": (s[1], 2, 0)}),
        ],
        [
            Variant(((3, 4),), {"shape": (5, 2)}),
            Variant(((3,),), {"shape": ()}),
            Variant(((0, 3),), {"shape": (3,)}),
        ],
    ),
    movement(
        "permute_dims",
        ref.permute_dims,
        [
            Variant(((3, 4),), {"axes": (1, 0)}),
            Variant(((2, 3, 4),), {"axes": (1, 2, 0)}, note="cycle"),
            Variant(((2, 3, 4),), {"axes": (0, 2, 1)}, note="last two"),
            Variant(((),), {"axes": ()}),
            Variant(((0, 3),), {"axes": (1, 0)}),
        ],
    ),
    movement(
        "broadcast_to",
        ref.broadcast_to,
        [
            Variant(((4,),), lambda s: {"shape": (3, *s)}, note="new axis"),
            Variant(((3, 1),), lambda s: {"shape": (s[0], 4)}),
            Variant(((1, 3, 1),), lambda s: {"shape": (2, s[1], 5)}),
            Variant(((3, 4),), lambda s: {"shape": s}, note="same"),
            Variant(((),), {"shape": (2, 3)}),
            Variant(((),), {"shape": ()}, note="scalar"),
            Variant(((0, 1),), {"shape": (2, 0, 3)}),
            Variant(((1, 2),), lambda s: {"shape": (0, s[1])}, note="none"),
        ],
        [
            Variant(((3,),), {"shape": (4,)}),
            Variant(((2, 3),), {"shape": (3,)}),
            Variant(((3,),), {"shape": (3, 1)}),
        ],
    ),
    movement(
        "flip",
        ref.flip,
        [
            Variant(((3, 4),), {"axes": (0,)}, note="rows"),
            Variant(((3, 4),), {"axes": (0, 1)}, note="both"),
            Variant(((3, 4),), {"axes": ()}, note="none"),
            Variant(((),), {"axes": ()}),
            Variant(((0, 3),), {"axes": (0, 1)}),
        ],
    ),
    movement(
        "slice",
        ref.slice_,
        [
            Variant(((5, 4),), lambda s: ranges((1, 0), (s[0] - 1, s[1]), (1, 1))),
            Variant(((7, 3),), lambda s: ranges((1, 2), (s[0], s[1]), (2, 3))),
            Variant(((6,),), lambda s: ranges((0,), s, (4,)), note="step"),
            Variant(((6,),), ranges((3,), (3,), (1,)), note="empty"),
            Variant(((6,),), ranges((4,), (1,), (2,)), note="backwards"),
            Variant(((),), ranges((), (), ())),
            Variant(((0, 3),), ranges((0, 1), (0, 3), (1, 1))),
        ],
        [
            Variant(((3,),), ranges((0,), (4,), (1,))),
            Variant(((3,),), ranges((-1,), (2,), (1,))),
            Variant(((0,),), ranges((0,), (1,), (1,))),
        ],
    ),
    movement(
        "place",
        ref.place,
        [
            Variant(
                ((2, 4),),
                lambda s: {
                    "shape": (2 * s[0] + 1, s[1]),
                    "starts": (1, 0),
                    "steps": (2, 1),
                },
            ),
            Variant(
                ((3,),), lambda s: {"shape": (s[0] + 4,), "starts": (2,), "steps": (1,)}
            ),
            Variant(((),), {"shape": (), "starts": (), "steps": ()}),
            Variant(
                ((0, 3),),
                lambda s: {
                    "shape": (4, 3 * s[1] - 2),
                    "starts": (1, 0),
                    "steps": (1, 3),
                },
            ),
            Variant(((0,),), {"shape": (0,), "starts": (0,), "steps": (1,)}),
        ],
        [
            Variant(((3,),), {"shape": (2,), "starts": (0,), "steps": (1,)}),
            Variant(((3,),), {"shape": (5,), "starts": (1,), "steps": (2,)}),
        ],
    ),
    OpCase(
        "place_add",
        (Operand(),),
        (
            Variant(((4, 3), (1, 3), (1, 3)), parts(((0, 0), (2, 0))), note="rows"),
            Variant(((5,), (4,), (4,), (3,)), parts(((0,), (1,), (1,))), note="meet"),
            Variant(
                ((7, 3), (3, 2), (2, 3)), parts(((1, 1), (0, 0)), ((2, 1), (3, 1)))
            ),
            Variant(((8,), (3,), (2,)), parts(((0,), (1,)), ((2,), (3,))), note="step"),
            Variant(((3,), (3,)), parts(((0,),)), note="whole"),
            Variant(((), (), ()), parts(((), ()))),
            Variant(((3, 2), (0, 2), (3, 0)), parts(((1, 0), (0, 1)))),
            Variant(((0,), (0,), (0,)), parts(((0,), (0,)))),
        ),
        ref.place_add,
        EXACT,
        first="c",
        second=("-",),
        refused=(
            Variant(((3,), (2,), (2,)), parts(((0,), (2,)))),
            Variant(((3, 2), (3,)), parts(((0, 0),))),
            Variant(((3,), (2,), (2,)), parts(((0,),))),
        ),
    ),
    movement(
        "concat",
        ref.concat,
        [
            Variant(((2, 3), (1, 3), (0, 3)), {"axis": 0}),
            Variant(((2, 3), (2, 4)), {"axis": 1}),
            Variant(((3,),), {"axis": 0}, note="alone"),
            Variant(((0,), (0,)), {"axis": 0}),
        ],
        [
            Variant(((2, 3), (2, 4)), {"axis": 0}),
            Variant(((2, 3), (3,)), {"axis": 0}),
            Variant(((), ()), {"axis": 0}),
        ],
    ),
    movement(
        "pad",
        ref.pad,
        [
            Variant(((2, 3), ()), {"widths": ((1, 2), (0, 1))}),
            Variant(((3,), ()), lambda s, _: {"widths": ((s[0], 0),)}, note="own size"),
            Variant(((3,), ()), {"widths": ((0, 0),)}, note="nothing"),
            Variant(((), ()), {"widths": ()}),
            Variant(((0, 2), ()), {"widths": ((1, 1), (0, 0))}),
        ],
        [
            Variant(((3,), ()), {"widths": ((-1, 0),)}),
            Variant(((3,), (2,)), {"widths": ((1, 0),)}),
            Variant(((3, 2), ()), {"widths": ((1, 0),)}),
        ],
        operands=2,
    ),
]

# Indexing


def index_range(first: int) -> Callable[..., tuple[int, int]]:
    """Indices of the axis that an operand indexes, `first` being the first of them."""

    def bounds(shapes: Sequence[Shape], attrs: Attrs, at: int) -> tuple[int, int]:
        size = shapes[0][attrs["axes"][at - first]]
        return -size, size

    return bounds


def index(first: int) -> Operand:
    return Operand(integers=index_range(first), own=INDEX_DTYPES)


def along(*axes: int) -> Attrs:
    return {"axes": axes}


INDEXING = [
    OpCase(
        "iota",
        (),
        tuple(
            Variant((), {"size": size}, dtypes=(np.dtype("int64"),), note=str(size))
            for size in (0, 1, 5)
        ),
        lambda *, size: np.array(list(range(size)), np.int64),
        EXACT,
        takes=("integer",),
        refused=(),
    ),
    OpCase(
        "gather",
        (Operand(), index(1)),
        (
            Variant(((5, 3), (4,)), along(0)),
            Variant(((3, 5), (2, 2)), along(1)),
            Variant(((4, 3, 5), (2, 1), (3,)), along(0, 2)),
            Variant(((4, 3), (6,), (6,)), along(0, 1), note="points"),
            Variant(((4, 3), ()), along(1), note="one"),
            Variant(((4,), (0,)), along(0)),
            Variant(((0, 3), (0, 2)), along(0)),
        ),
        ref.gather,
        EXACT,
        takes=ANY,
        first="c-",
        second=("-",),
        refused=(
            Variant(((4, 3), (2,), (3,)), along(0, 1)),
            Variant(((4,), (2,)), along(1)),
        ),
        unreachable=(Variant(((4, 3), (2,)), along(0, 1)),),
    ),
    OpCase(
        "gather_add",
        (Operand(), Operand(), index(2)),
        (
            Variant(((5, 3), (4, 3), (4,)), along(0)),
            Variant(((3, 5), (2, 2, 3), (2, 2)), along(1)),
            Variant(((4, 3, 5), (2, 3, 3), (2, 1), (3,)), along(0, 2)),
            Variant(((2,), (9,), (9,)), along(0), note="crowded"),
            Variant(((4, 3), (4,), ()), along(1), note="one"),
            Variant(((4,), (0,), (0,)), along(0)),
            Variant(((0, 3), (0, 3), (0,)), along(0)),
        ),
        ref.gather_add,
        SUM,
        first="cc-",
        second=("-", "-"),
        refused=(
            Variant(((5, 3), (4, 2), (4,)), along(0)),
            Variant(((5, 3), (3,), (4,)), along(0)),
            Variant(((5,), (4,), (4,), (4,)), along(0)),
        ),
    ),
]

INDEXING.append(
    OpCase(
        "subtract_rows",
        (Operand(), Operand(), Operand(), index(3)),
        (
            Variant(((5, 3), (), (4, 3), (4,)), along(0)),
            Variant(((2, 3), (), (9, 3), (9,)), along(0), note="crowded"),
            Variant(((4, 3, 5), (), (2, 3, 5), (2, 1), (3,)), along(0, 1)),
            Variant(((40,), (), (4,), (4,)), along(0), note="far apart"),
            Variant(((3, 5), (), (2, 2, 3), (2, 2)), along(1)),
            Variant(((4,), (), (0,), (0,)), along(0)),
        ),
        ref.subtract_rows,
        SUM,
        takes=("float",),
        first="----",
        refused=(Variant(((5, 3), (), (4, 2), (4,)), along(0)),),
        unreachable=(Variant(((5, 3), (1,), (4, 3), (4,)), along(0)),),
        is_eager=False,
    )
)

# Reductions


def over(*axes: int, keepdims: bool = False) -> Attrs:
    return {"axes": axes, "keepdims": keepdims}


REDUCED = (
    Variant(((3, 4),), over(0), note="rows"),
    Variant(((3, 4),), over(1, keepdims=True), note="columns kept"),
    Variant(((3, 4),), over(0, 1), note="all"),
    Variant(((2, 3, 4),), over(0, 2)),
    Variant(((2, 3, 4),), over(0, 1, 2, keepdims=True), note="all kept"),
    Variant(((1, 3),), over(0), note="one"),
    Variant(((0, 3),), over(1), note="no slices"),
)
OF_NOTHING = Variant(((0, 3),), over(0), note="of nothing")
EMPTY = (OF_NOTHING, Variant(((2, 0),), over(0, 1, keepdims=True)))
WITHOUT_AXES = (Variant(((),), over()), Variant(((3, 4),), over(), note="none"))


def reduction(
    op: str,
    reference: Callable[..., Any],
    agreement: str,
    *,
    of_nothing: bool = True,
    without_axes: tuple[str, ...] | None = None,
    **fields: Any,
) -> OpCase:
    """A case that reduces axes.

    `of_nothing` says whether there may be no element, `without_axes` what the second
    derivative is where no axis is reduced, if that makes a difference.
    """
    tail = EMPTY if of_nothing else ()
    refused = () if of_nothing else EMPTY
    untouched = [replace(variant, second=without_axes) for variant in WITHOUT_AXES]
    return OpCase(
        op,
        (Operand(distinct, integers=(-3, 4)),),
        (*REDUCED, *untouched, *tail),
        reference,
        agreement,
        refused=(*refused, Variant(((3, 4),), over(2)), Variant(((),), over(0))),
        **fields,
    )


def positions(op: str, is_better: Callable[[Any, Any], bool]) -> OpCase:
    at = [{"axis": axis, "keepdims": keepdims} for axis, keepdims in ((0, 0), (1, 1))]
    return OpCase(
        op,
        (Operand(distinct),),
        (
            Variant(((3, 4),), at[0], note="rows"),
            Variant(((3, 4),), at[1], note="columns kept"),
            Variant(((5,),), at[0]),
            Variant(((0, 3),), at[1], note="no slices"),
        ),
        ref.position(is_better),
        EXACT,
        takes=ORDERED,
        first="-",
        refused=(
            Variant(((0, 3),), at[0]),
            Variant(((3,),), at[1]),
        ),
        unreachable=(Variant(((),), at[0]),),
    )


REDUCTIONS = [
    reduction("sum", ref.sum_, SUM, takes=ANY, first="c", second=("-",)),
    reduction(
        "prod",
        ref.prod,
        PRODUCT,
        takes=ANY,
        first="c",
        second=("c",),
        without_axes=("-",),  # a product of one factor is linear in it
    ),
    reduction(
        "max",
        ref.extremum(ref.is_above),
        EXACT,
        of_nothing=False,
        takes=ORDERED,
        first="c",
        second=("0",),
    ),
    reduction(
        "min",
        ref.extremum(ref.is_below),
        EXACT,
        of_nothing=False,
        takes=ORDERED,
        first="c",
        second=("0",),
    ),
    reduction("all", ref.truth(all), EXACT, takes=ANY, first="-"),
    reduction("any", ref.truth(any), EXACT, takes=ANY, first="-"),
    positions("argmax", operator.gt),
    positions("argmin", operator.lt),
    reduction("logsumexp", ref.logsumexp, SUM, takes=FLOAT, first="c", second=("c",)),
    OpCase(
        "softmax",
        (Operand(distinct),),
        (
            Variant(((3, 4),), {"axes": (1,)}, note="rows"),
            Variant(((3, 4),), {"axes": (0,)}, note="columns"),
            Variant(((2, 3, 4),), {"axes": (0, 2)}),
            Variant(((2, 40),), {"axes": (1,)}, note="long"),
            Variant(((5, 1),), {"axes": (1,)}, note="one"),
            Variant(((),), {"axes": ()}),
            Variant(((3, 4),), {"axes": ()}, note="none"),
            Variant(((0, 3),), {"axes": (1,)}, note="no slices"),
            Variant(((2, 0),), {"axes": (1,)}, note="of nothing"),
        ),
        ref.softmax,
        SUM,
        takes=FLOAT,
        first="c",
        second=("c",),
        refused=(Variant(((3, 4),), {"axes": (2,)}), Variant(((),), {"axes": (0,)})),
    ),
]

MATRICES = [
    OpCase(
        "matmul",
        (Operand(), Operand()),
        (
            Variant(((3, 4), (4, 2))),
            Variant(((2, 3, 4), (4, 2))),
            Variant(((3, 4), (2, 4, 5))),
            Variant(((2, 1, 3, 4), (5, 4, 2))),
            Variant(((3, 0), (0, 2))),
            Variant(((0, 4), (4, 2))),
            Variant(((1, 1), (1, 1))),
        ),
        ref.matmul,
        SUM,
        takes=NUMERIC,
        first="cc",
        second=("-c", "c-"),
        unreachable=(Variant(((3,), (3, 2))), Variant(((2, 3), (3,)))),
        refused=(
            Variant(((), (1, 1))),
            Variant(((3, 4), (3, 4))),
            Variant(((2, 3, 4), (3, 4, 5))),
        ),
    )
]

CASES = [*MOVEMENT, *INDEXING, *REDUCTIONS, *MATRICES]
