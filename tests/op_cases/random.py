"""Cases of the random family: words from states, and what words become.

The words of one state are the business of `philox.py`, which has tests of its own; what
the records add are streams along leading axes, and the references go through those one
by one. What words become is said once more in Python's numbers.

Start reading at `CASES`.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import NormalDist
from typing import Any

import numpy as np
from agreement import EXACT, TRANSCENDENTAL

from op_cases import references as ref
from op_cases.case import INDEX_DTYPES, Array, OpCase, Operand, Shape, Variant
from tapejit.base.types import dtype_named, short_name
from tapejit.ops import philox

U32, U64 = np.dtype("uint32"), np.dtype("uint64")
STATE = 6


def words(dtype: Any) -> Operand:
    """Words of which any bit may be set."""
    return Operand(integers=(0, 2 ** (8 * dtype.itemsize)), own=(dtype,))


def random_case(
    op: str,
    operands: tuple[Operand, ...],
    variants: list[Variant],
    reference: Callable[..., Any],
    *refused: Variant,
    agreement: str = EXACT,
    unreachable: tuple[Variant, ...] = (),
) -> OpCase:
    return OpCase(
        op,
        operands,
        tuple(variants),
        reference,
        agreement,
        takes=("integer",),
        first="-",
        refused=refused,
        unreachable=unreachable,
        fixed_sizes=(STATE,),
    )


def varied(
    shapes: list[Any], attrs: list[dict[str, Any]], dtype: Any = U32
) -> list[Variant]:
    """Every set of shapes with every set of attributes."""
    return [
        Variant(shape, given, dtypes=(dtype,), note=" ".join(map(text, given.values())))
        for shape in shapes
        for given in attrs
    ]


def text(value: Any) -> str:
    return short_name(value) if isinstance(value, np.dtype) else str(value)


# States


def each_stream(function: Callable[..., Array], states: Array, inner: Shape) -> Array:
    """What a function gives for every state, put where that state was."""
    outer = states.shape[:-1]
    found = [function(states[at]) for at in np.ndindex(outer)]
    sample = function(np.zeros(STATE, U32))
    return np.array(found, sample.dtype).reshape((*outer, *inner))


def random_bits(state: Array, *, shape: Shape, bits: Any) -> Array:
    return each_stream(
        lambda one: philox.random_bits(one, shape, bits)[1], state, shape
    )


def random_advance(state: Array, *, blocks: int) -> Array:
    """The counter is a number of 128 bits, and wraps."""

    def advance(one: Array) -> Array:
        counter = sum(int(word) << (32 * at) for at, word in enumerate(one[2:]))
        moved = (counter + blocks) % 2**128
        digits = [(moved >> (32 * at)) % 2**32 for at in range(4)]
        return np.array([*map(int, one[:2]), *digits], U32)

    return each_stream(advance, state, (STATE,))


def random_split(state: Array, *, count: int) -> Array:
    return each_stream(
        lambda one: philox.split_state(one, count), state, (count, STATE)
    )


def random_fold_in(state: Array, data: Array) -> Array:
    outer = np.broadcast_shapes(state.shape[:-1], data.shape)
    states = np.broadcast_to(state, (*outer, STATE))
    numbers = np.broadcast_to(data, outer)
    out = np.empty((*outer, STATE), U32)
    for at in np.ndindex(outer):
        out[at] = philox.fold_in(states[at], int(numbers[at]))
    return out


STATES: list[Any] = [((STATE,),), ((3, STATE),), ((0, STATE),)]
NO_STATE = (Variant(((5,),)), Variant(((),)), Variant(((STATE, 2),)))
DRAWS: list[dict[str, Any]] = [
    {"shape": (2, 3), "bits": 32},
    {"shape": (3,), "bits": 64},
    {"shape": (), "bits": 32},
    {"shape": (2, 0), "bits": 64},
]


def none_of(attrs: dict[str, Any]) -> tuple[Variant, ...]:
    """What is no state, with these attributes."""
    return tuple(Variant(variant.shapes, attrs) for variant in NO_STATE)


DRAWING = [
    random_case(
        op, (words(U32),), varied(STATES, DRAWS), random_bits, *none_of(DRAWS[0])
    )
    for op in ("random_bits", "keyed_bits")
]
STREAMS = [
    random_case(
        "random_advance",
        (words(U32),),
        varied(STATES, [{"blocks": 0}, {"blocks": 5}, {"blocks": 10**30}]),
        random_advance,
        *none_of({"blocks": 1}),
        Variant(((STATE,),), {"blocks": -1}),
    ),
    random_case(
        "random_split",
        (words(U32),),
        varied(STATES, [{"count": 3}, {"count": 0}]),
        random_split,
        *none_of({"count": 1}),
        Variant(((STATE,),), {"count": -1}),
    ),
    random_case(
        "random_fold_in",
        (words(U32), Operand(integers=(0, 2**40), own=INDEX_DTYPES)),
        varied(
            [
                ((STATE,), ()),
                ((STATE,), (3,)),
                ((3, STATE), ()),
                ((2, 1, STATE), (3,)),
                ((0, STATE), ()),
            ],
            [{}],
        ),
        random_fold_in,
        Variant(((5,), ())),
        Variant(((2, STATE), (3,))),
    ),
]

# What words become

WORD_SHAPES: list[Any] = [((3, 4),), ((),), ((0, 3),)]
DIGITS = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}


def uniform(x: Array, *, dtype: Any) -> Array:
    """As many bits from the top as the dtype has digits, below the point."""
    digits = DIGITS[dtype.name]
    drop = 8 * x.dtype.itemsize - digits
    return ref.elementwise(lambda word: (word >> drop) / 2**digits, np.float64)(x)


def normal(x: Array, *, dtype: Any) -> Array:
    """Where the normal distribution has the middle of the word's share behind it."""
    bits = 8 * x.dtype.itemsize
    p = (ref.widened(x) + np.longdouble(0.5)) / np.longdouble(2) ** bits
    z = ref.elementwise(NormalDist().inv_cdf, np.float64)(p.astype(np.float64))
    z = z.astype(np.longdouble)
    root = np.sqrt(np.longdouble(2))
    for _ in range(2):  # Newton's steps: the digits double twice
        density = np.exp(-z * z / 2) / np.sqrt(8 * np.arctan(np.longdouble(1)))
        z = z - ((1 + ref.wide_erf(z / root)) / 2 - p) / density
    if dtype.itemsize == 2:  # rounded by way of float32
        return z.astype(np.float32)
    return z


def integers(x: Array, *, low: int, high: int, dtype: Any) -> Array:
    return ref.elementwise(lambda word: low + (word * (high - low) >> 64), dtype)(x)


def permutation(x: Array) -> Array:
    rows = [x[at] for at in np.ndindex(x.shape[:-1])]
    orders = [sorted(range(len(row)), key=row.tolist().__getitem__) for row in rows]
    return np.array(orders, np.int64).reshape(x.shape)


def floats(width: Any) -> list[dict[str, Any]]:
    names = ("float64",) if width == U64 else ("float16", "bfloat16", "float32")
    return [{"dtype": dtype_named(name)} for name in names]


CONVERSIONS = [
    *[
        random_case(
            op,
            (words(width),),
            varied(WORD_SHAPES, floats(width), width),
            reference,
            agreement=agreement,
        )
        for op, reference, agreement in (
            ("bits_to_uniform", uniform, EXACT),
            ("bits_to_normal", normal, TRANSCENDENTAL),
        )
        for width in (U32, U64)
    ],
    random_case(
        "bits_to_integers",
        (words(U64),),
        varied(
            WORD_SHAPES,
            [
                {"low": -3, "high": 4, "dtype": np.dtype("int8")},
                {"low": -(2**63), "high": 2**63, "dtype": np.dtype("int64")},
                {"low": 1, "high": 2**64, "dtype": U64},
            ],
            U64,
        ),
        integers,
        Variant(((3,),), {"low": 4, "high": 4, "dtype": np.dtype("int8")}),
        Variant(((3,),), {"low": 0, "high": 129, "dtype": np.dtype("int8")}),
    ),
    random_case(
        "bits_to_permutation",
        (words(U64),),
        varied([((5,),), ((2, 4),), ((0,),), ((0, 3),)], [{}], U64),
        permutation,
        unreachable=(Variant(((),)),),
    ),
]

CASES = [*DRAWING, *STREAMS, *CONVERSIONS]
