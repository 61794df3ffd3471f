"""Cases of the elementwise families: arithmetic, kinks, comparison, functions.

Start reading at `unary` and `binary`, then anywhere.
"""

from __future__ import annotations

import cmath
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from agreement import EXACT, POWER, ROUNDED, TRANSCENDENTAL, round_to

from op_cases import references as ref
from op_cases.case import (
    ANY,
    BINARY_SHAPES,
    BITS,
    CONDITION,
    DTYPES,
    FLOAT,
    INEXACT,
    MISFITS,
    NUMERIC,
    ORDERED,
    REAL,
    SMOOTH,
    TERNARY_SHAPES,
    UNARY_SHAPES,
    Array,
    OpCase,
    Operand,
    Rng,
    Sampler,
    Shape,
    Variant,
    apart_from_zero,
    between,
    near_integers,
    variants_of,
)
from tapejit.base.types import is_complex, is_differentiable, is_float, short_name


def unary(
    op: str,
    reference: Callable[..., Any],
    agreement: str,
    *,
    domain: Sampler = SMOOTH,
    **fields: Any,
) -> OpCase:
    """A case of one operand."""
    return OpCase(
        op,
        (Operand(domain),),
        variants_of(UNARY_SHAPES),
        reference,
        agreement,
        **fields,
    )


def binary(
    op: str,
    reference: Callable[..., Any],
    agreement: str,
    *,
    left: Operand | None = None,
    right: Operand | None = None,
    **fields: Any,
) -> OpCase:
    """A case of two operands that broadcast."""
    return OpCase(
        op,
        (left or Operand(), right or Operand()),
        variants_of(BINARY_SHAPES),
        reference,
        agreement,
        refused=variants_of(MISFITS),
        **fields,
    )


# Arithmetic


def by_zero(function: Callable[[int, int], int]) -> Callable[[int, int], int]:
    """An integer division that gives 0 for a divisor of 0, as NumPy does."""
    return lambda x, y: function(x, y) if y else 0


def rounded(ufunc: np.ufunc, exact: Callable[..., int]) -> Callable[..., Any]:
    """Real numbers as they are rounded, complex ones in wide precision."""
    on_reals, on_complex = ref.arithmetic(ufunc, exact), ref.wide(ufunc)

    def reference(*arrays: Array) -> Any:
        is_wide = is_complex(arrays[0].dtype)
        return on_complex(*arrays) if is_wide else on_reals(*arrays)

    return reference


# Quotients of these stay away from integers, so `//` and `%` have no jump nearby.
DIVIDEND = Operand(near_integers(0.5, 0.1))
DIVISOR = Operand(apart_from_zero(1.0, 1.05))

ARITHMETIC = [
    binary(
        "add",
        ref.arithmetic(np.add, operator.add),
        EXACT,
        takes=ANY,
        first="cc",
        second=("--", "--"),
    ),
    binary(
        "sub",
        ref.arithmetic(np.subtract, operator.sub),
        EXACT,
        first="cc",
        second=("--", "--"),
    ),
    binary(
        "mul",
        rounded(np.multiply, operator.mul),
        ROUNDED,
        takes=ANY,
        first="cc",
        second=("-c", "c-"),
    ),
    binary(
        "div",
        rounded(np.divide, operator.truediv),
        ROUNDED,
        takes=INEXACT,
        first="cc",
        second=("-c", "cc"),
    ),
    unary(
        "negative",
        ref.arithmetic(np.negative, operator.neg),
        EXACT,
        first="c",
        second=("-",),
    ),
    unary(
        "square",
        rounded(np.square, lambda x: x * x),
        ROUNDED,
        first="c",
        second=("c",),
    ),
    binary(
        "floor_divide",
        ref.arithmetic(ref.floor_divide, by_zero(operator.floordiv)),
        EXACT,
        left=DIVIDEND,
        right=DIVISOR,
        takes=REAL,
        first="00",
    ),
    binary(
        "remainder",
        ref.arithmetic(np.remainder, by_zero(operator.mod)),
        EXACT,
        left=DIVIDEND,
        right=DIVISOR,
        takes=REAL,
        first="cc",
        second=("--", "00"),  # it has slope 1 in the dividend, whatever that is
    ),
]

# Kinks: operands of a comparison are half a step apart from each other.

LOWER, UPPER = Operand(near_integers(0.0)), Operand(near_integers(0.5))


def zeros_and_ones(rng: Rng, shape: Shape) -> Array:
    return rng.integers(0, 2, shape).astype(np.float64)


def extreme(
    ufunc: np.ufunc, is_better: Callable[[Any, Any], bool]
) -> Callable[..., Any]:
    """The better of two, NaN if one is; which zero wins a tie is up to NumPy's loop."""

    def choose(x: Any, y: Any) -> Any:
        return x if x != x or is_better(x, y) else y

    choice = ref.elementwise(choose)

    def reference(x: Array, y: Array) -> Array:
        return np.where(x == y, ufunc(x, y), choice(x, y))

    return reference


def mask(compare: Callable[[Any, Any], bool]) -> Callable[..., Any]:
    return ref.elementwise(lambda x, y: int(compare(x, y)))


KINKS = [
    binary("ge_mask", mask(operator.ge), EXACT, takes=REAL, first="00"),
    binary("gt_mask", mask(operator.gt), EXACT, takes=REAL, first="00"),
    binary("eq_mask", mask(operator.eq), EXACT, first="00"),
    binary(
        "gate",
        ref.elementwise(lambda t, passes: t if passes != 0 else 0),
        EXACT,
        right=Operand(zeros_and_ones, integers=(0, 2)),
        first="c0",
        second=("-0",),
    ),
    binary(
        "maximum",
        extreme(np.maximum, operator.ge),
        EXACT,
        left=LOWER,
        right=UPPER,
        takes=ORDERED,
        first="cc",
        second=("00", "00"),
    ),
    binary(
        "minimum",
        extreme(np.minimum, operator.le),
        EXACT,
        left=LOWER,
        right=UPPER,
        takes=ORDERED,
        first="cc",
        second=("00", "00"),
    ),
    *[
        unary(
            op,
            ref.arithmetic(ufunc, int),
            EXACT,
            domain=near_integers(offset),
            takes=takes,
            first="0",
        )
        for op, ufunc, offset, takes in (
            ("floor", np.floor, 0.5, FLOAT),
            ("ceil", np.ceil, 0.5, FLOAT),
            ("trunc", np.trunc, 0.5, FLOAT),
            ("round", np.rint, 0.0, INEXACT),
        )
    ],
]


# Casts


def cast(x: Array, *, dtype: Any) -> Array:
    """Numbers of one dtype as another: cut off, wrapped, or rounded once."""
    if is_complex(x.dtype) and not is_complex(dtype) and dtype.kind != "b":
        x = x.real
    if is_differentiable(dtype):
        return round_to(x.astype(np.float64) if is_float(x.dtype) else x, dtype)
    if dtype.kind == "b":
        return ref.elementwise(bool, bool)(x)
    return ref.elementwise(int, dtype)(x)


def casts(targets: list[Any], domain: Sampler, integers: tuple[int, int]) -> OpCase:
    shapes: tuple[tuple[Shape, ...], ...] = (((3, 4),), ((),), ((0, 3),))
    return OpCase(
        "cast",
        (Operand(domain, integers),),
        tuple(
            Variant(
                shape,
                {"dtype": dtype},
                first="c" if is_differentiable(dtype) else "-",
                note=f"{short_name(dtype)}{integers[0]}",
            )
            for dtype in targets
            for shape in shapes[: 3 if dtype == np.float64 else 1]
        ),
        cast,
        EXACT,
        takes=ANY,
        second=("-",),
    )


CASTS = [
    casts(list(DTYPES), between(0.0, 100.0), (0, 100)),
    # What a negative number becomes in an unsigned dtype is up to the machine.
    casts([d for d in DTYPES if d.kind not in "bu"], between(-100.0, 100.0), (-99, 99)),
]

# Comparison, bits, selection


def same(x: Array) -> Array:
    return x


COMPARISON = [
    *[
        binary(op, ref.elementwise(compare, bool), EXACT, takes=takes, first="--")
        for op, compare, takes in (
            ("equal", operator.eq, ANY),
            ("not_equal", operator.ne, ANY),
            ("less", operator.lt, ORDERED),
            ("less_equal", operator.le, ORDERED),
            ("greater", operator.gt, ORDERED),
            ("greater_equal", operator.ge, ORDERED),
        )
    ],
    *[
        unary(op, ref.elementwise(ask, bool), EXACT, takes=INEXACT, first="-")
        for op, ask in (
            ("isnan", cmath.isnan),
            ("isinf", cmath.isinf),
            ("isfinite", cmath.isfinite),
        )
    ],
    *[
        binary(op, ref.elementwise(function), EXACT, takes=BITS, first="--")
        for op, function in (
            ("bitwise_and", operator.and_),
            ("bitwise_or", operator.or_),
            ("bitwise_xor", operator.xor),
        )
    ],
    unary(
        "bitwise_invert",
        # Python's bools are integers: their inverse is -2 or -1.
        ref.elementwise(lambda x: not x if isinstance(x, bool) else ~x),
        EXACT,
        takes=BITS,
        first="-",
    ),
    binary(
        "bitwise_left_shift",
        ref.elementwise(lambda x, y: x << y if 0 <= y < 64 else 0),
        EXACT,
        right=Operand(integers=(0, 10)),
        takes=("integer",),
        first="--",
    ),
    binary(
        "bitwise_right_shift",
        ref.elementwise(lambda x, y: x >> (y if 0 <= y < 64 else 64)),
        EXACT,
        right=Operand(integers=(0, 10)),
        takes=("integer",),
        first="--",
    ),
    OpCase(
        "where",
        (CONDITION, Operand(), Operand()),
        variants_of(TERNARY_SHAPES),
        ref.elementwise(lambda condition, x, y: x if condition else y),
        EXACT,
        takes=ANY,
        first="-cc",
        second=("---", "---"),
        refused=variants_of([((3,), (4,), (3,)), ((2,), (2,), (3,)), ((2,), (3,), ())]),
    ),
    unary("stop_gradient", same, EXACT, takes=ANY, first="-"),
    unary("read", same, EXACT, takes=ANY, first="c", second=("-",)),
    OpCase(
        "to_device",
        (Operand(SMOOTH),),
        tuple(Variant(x, {"source": "cpu", "target": "cuda:0"}) for x in UNARY_SHAPES),
        lambda x, source, target: x,
        EXACT,
        takes=ANY,
        first="c",
        second=("-",),
    ),
]

# Functions


def sqrt(x: Array) -> Any:
    """Rounded once from double, or from wide precision if complex."""
    if is_complex(x.dtype):
        return np.sqrt(ref.widened(x))
    return np.sqrt(x.astype(np.float64))


AROUND_ZERO = between(-2.0, 2.0)


def function(
    op: str,
    in_wide: Callable[..., Any],
    domain: Sampler = AROUND_ZERO,
    takes: tuple[str, ...] = INEXACT,
) -> OpCase:
    """A transcendental function of one operand."""
    return unary(
        op,
        ref.wide(in_wide),
        TRANSCENDENTAL,
        domain=domain,
        takes=takes,
        first="c",
        second=("c",),
    )


FUNCTIONS = [
    function("exp", np.exp),
    function("expm1", ref.wide_expm1),
    function("log", np.log, between(0.2, 3.0)),
    function("log1p", ref.wide_log1p, between(-0.7, 2.0)),
    unary(
        "sqrt",
        sqrt,
        ROUNDED,
        domain=between(0.2, 3.0),
        takes=INEXACT,
        first="c",
        second=("c",),
    ),
    function("sin", np.sin),
    function("cos", np.cos),
    function("tanh", np.tanh, between(-1.0, 1.0)),  # complex: poles at ±iπ/2
    function("sigmoid", ref.wide_sigmoid, takes=FLOAT),
    function("erf", ref.wide_erf, takes=FLOAT),
    binary(
        "pow",
        lambda x, p: (
            ref.elementwise(operator.pow)(x, p)
            if x.dtype.kind in "iu"
            else ref.wide(np.power)(x, p)
        ),
        POWER,
        left=Operand(between(0.3, 2.0)),
        right=Operand(apart_from_zero(0.2, 2.0), integers=(0, 6)),
        takes=NUMERIC,
        first="cc",
        second=("cc", "cc"),
    ),
]

# Complex numbers and what becomes of them


def parts(x: Array, y: Array) -> Array:
    dtype = np.complex128 if x.dtype == np.float64 else np.complex64
    out = np.empty(np.broadcast_shapes(x.shape, y.shape), dtype)
    for at, real, imag in zip(
        np.ndindex(out.shape), *map(np.ravel, np.broadcast_arrays(x, y)), strict=True
    ):
        out[at] = complex(float(real), float(imag))
    return out


def magnitude(x: Array) -> Any:
    if is_complex(x.dtype):
        return np.hypot(*[ref.widened(part) for part in (x.real, x.imag)])
    return ref.arithmetic(np.abs, abs)(x)


def direction(x: Array) -> Any:
    """x / |x|, and the sign of a real number; 0 at 0, NaN at NaN."""
    if not is_complex(x.dtype):
        return ref.arithmetic(np.sign, lambda n: (n > 0) - (n < 0))(x)
    wide = ref.widened(x)
    size = np.hypot(wide.real, wide.imag)
    nonzero = np.where(size == 0, 1, size)
    found = ref.joined(wide.real / nonzero, wide.imag / nonzero)
    return np.where(size == 0, 0, found)


def argument(x: Array) -> Any:
    """Of a real number 0 or π; a zero with a sign is negative, as in NumPy."""
    if is_complex(x.dtype):
        return np.arctan2(ref.widened(x.imag), ref.widened(x.real))
    pi = 4 * np.arctan(np.longdouble(1))
    wide = ref.widened(x)
    return np.where(np.isnan(wide), wide, np.where(np.signbit(wide), pi, 0))


COMPLEX = [
    unary(
        "abs",
        magnitude,
        TRANSCENDENTAL,
        takes=NUMERIC,
        first="c",
        second=("0",),
        complex_second=("c",),
    ),
    unary(
        "sign",
        direction,
        TRANSCENDENTAL,
        takes=NUMERIC,
        first="0",
        complex_first="c",
        complex_second=("c",),
    ),
    unary("real", np.real, EXACT, takes=NUMERIC, first="c", second=("-",)),
    unary(
        "imag",
        lambda x: x.imag if is_complex(x.dtype) else np.zeros_like(x),
        EXACT,
        takes=NUMERIC,
        first="0",
        complex_first="c",
        complex_second=("-",),
    ),
    unary(
        "conj",
        lambda x: parts(x.real, -x.imag) if is_complex(x.dtype) else x,
        EXACT,
        takes=NUMERIC,
        first="c",
        second=("-",),
    ),
    unary(
        "angle",
        argument,
        TRANSCENDENTAL,
        takes=INEXACT,
        first="0",
        complex_first="c",
        complex_second=("c",),
    ),
    binary("make_complex", parts, EXACT, takes=FLOAT, first="cc", second=("--", "--")),
]

CASES = [*ARITHMETIC, *KINKS, *CASTS, *COMPARISON, *FUNCTIONS, *COMPLEX]
