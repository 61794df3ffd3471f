"""Native lanes do what the records' NumPy meaning does, at every width."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from agreement import EXACT, ROUNDED, assert_agrees
from lane_loops import Loops
from llvmlite import binding
from op_cases import CASES, OpCase
from op_cases.case import DTYPES
from op_cases.special import INSIDE_OF

from tapejit import ops
from tapejit.base.config import config
from tapejit.base.types import (
    DType,
    TensorType,
    is_complex,
    is_float,
    is_integer,
    short_name,
)
from tapejit.ir.node import OPS, Op
from tapejit.loops.lane_algebra import Algebra, Lane, kind_of
from tapejit.targets.cpu import vecmath
from tapejit.targets.cpu.llvm import ir
from tapejit.targets.cpu.machine.host import Library, elementwise, host_machine
from tapejit.targets.cpu.simd import lanes

Array = np.ndarray[Any, Any]
WIDTHS = (1, 4, 16)
REAL_DTYPES = tuple(dtype for dtype in DTYPES if not is_complex(dtype))
INF, NAN = np.inf, np.nan


class Asked(Algebra):
    """Notes the functions that a lane expression asks for."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def call(self, name: str, *operands: Any) -> Lane:
        self.names.add(name)
        return Lane(self, None, None)


class Elementwise:
    """A record with a lane expression, on operands of one of its dtypes."""

    def __init__(self, case: OpCase, dtype: DType) -> None:
        self.case, self.dtype = case, dtype
        self.row = case.rows[0]
        self.op: Op = OPS[case.op]
        assert self.op.scalar is not None
        self.attrs = self.row.attrs
        arity = self.op.scalar.__code__.co_argcount - 1
        own = self.row.operand_dtypes(dtype)
        self.in_dtypes = own if len(own) == arity else [dtype] * arity
        types = [TensorType(own, ()) for own in self.in_dtypes]
        self.out_dtype: DType = self.op.infer_type(types, self.attrs).dtype

    def __str__(self) -> str:
        return f"{self.op.name}-{short_name(self.dtype)}"

    @property
    def is_supported(self) -> bool:
        return lanes.is_supported(self.op, self.in_dtypes, self.out_dtype, self.attrs)

    @property
    def function(self) -> Callable[..., Any] | None:
        """The function of vector maths that it is, for floats."""
        tables = {**vecmath.UNARY, **vecmath.BINARY}
        return tables.get(self.op.name) if is_float(self.dtype) else None

    @property
    def has_vector_maths(self) -> bool:
        """Whether its lane expression asks for a function of vector maths."""
        if not is_float(self.dtype):
            return False
        asked = Asked()
        in_lanes = [Lane(asked, None, None) for _ in self.in_dtypes]
        asked.interpret(self.op, in_lanes, self.attrs)
        return not asked.names.isdisjoint({*vecmath.UNARY, *vecmath.BINARY})

    def loops(self) -> Loops:
        return Loops(self.op, self.in_dtypes, self.out_dtype, self.attrs, WIDTHS)

    def evaluate(self, arrays: Sequence[Array]) -> Array:
        with np.errstate(all="ignore"):
            return np.asarray(self.op.eval(*arrays, **self.attrs))


# A cast has two dtypes, and tests of its own below.
ROWS = [
    Elementwise(cases[0], dtype)
    for name, cases in CASES.items()
    if OPS[name].scalar is not None and name != "cast"
    for dtype in cases[0].rows[0].dtypes
]
SUPPORTED = [row for row in ROWS if row.is_supported]


# Operands


def special_numbers(dtype: DType) -> Array:
    """Zeros, extremes, ties, what is not finite, and what surrounds them."""
    if dtype.kind == "b":
        return np.array([False, True])
    if is_integer(dtype):
        limits = np.iinfo(dtype)
        low, high = limits.min, limits.max
        wanted = {low, low + 1, high // 2, high - 1, high, *range(-3, 4), limits.bits}
        wanted |= {limits.bits - 1, 10, -10}
        inside = sorted(x for x in wanted if low <= x <= high)
        return np.array(inside, dtype)
    info = ml_dtypes.finfo(dtype)
    edges = [info.smallest_subnormal, info.smallest_normal, info.max, 1 + info.eps]
    edges = [float(edge) for edge in edges]
    edges += [edges[0] * 3, edges[1] - edges[0]]
    usual = [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 7.25, 100.0, 1e-3, INF]
    positive = np.array([*usual, *edges])
    return np.concatenate([positive, -positive, [NAN]]).astype(dtype)


def random_numbers(dtype: DType, count: int, rng: np.random.Generator) -> Array:
    """Any bits, and numbers as they occur."""
    if dtype.kind == "b":
        return rng.integers(0, 2, count).astype(bool)
    word = np.dtype(f"u{dtype.itemsize}")
    bits = rng.integers(0, np.iinfo(word).max, count, dtype=word, endpoint=True)
    if is_integer(dtype):
        small = rng.integers(-20 if dtype.kind == "i" else 0, 20, count)
        return np.where(np.arange(count) % 3, bits.view(dtype), small.astype(dtype))
    spread = rng.normal(size=count) * 2.0 ** rng.integers(-8, 8, count)
    mixed = bits.view(dtype)
    mixed[::2] = spread[::2].astype(dtype)
    return mixed


RANDOM = 1000


def operands(dtypes: Sequence[DType], count: int = RANDOM) -> list[Array]:
    """Every combination of special numbers, then random ones."""
    rng = np.random.default_rng(7)
    special = [special_numbers(dtype) for dtype in dtypes]
    if len(special) > 2:
        special = [numbers[::3] for numbers in special]
    grids = np.meshgrid(*special, indexing="ij")
    with np.errstate(all="ignore"):
        return [
            np.concatenate([grid.reshape(-1), random_numbers(dtype, count, rng)])
            for grid, dtype in zip(grids, dtypes, strict=True)
        ]


def same_bits(a: Array, b: Array) -> bool:
    """Whether two arrays are alike, signs of zero too; one NaN is like another."""
    assert a.dtype == b.dtype
    assert a.shape == b.shape
    word = f"u{a.dtype.itemsize}"
    alike = a.view(word) == b.view(word)
    with np.errstate(invalid="ignore"):  # bfloat16's comparison warns of NaN
        return bool(np.all(alike | ((a != a) & (b != b))))


# Values


@pytest.mark.parametrize("row", SUPPORTED, ids=str)
def test_lanes_agree_with_the_record(row: Elementwise, full: bool) -> None:
    arrays = operands(row.in_dtypes)
    loops = row.loops()
    narrow = loops(1, *arrays)
    for width in WIDTHS[1:]:
        assert same_bits(loops(width, *arrays), narrow), f"at width {width}"
    agreement = row.case.agreement
    if not row.has_vector_maths or not is_float(row.out_dtype):
        assert same_bits(narrow, row.evaluate(arrays))
    else:
        # The truth about special functions is computed one by one: fewer random ones.
        step = 11 if row.case.op in INSIDE_OF and not full else 1
        some = np.r_[: narrow.size - RANDOM, narrow.size - RANDOM : narrow.size : step]
        truth = row.row.reference([x[some] for x in arrays])
        assert_agrees(agreement, narrow[some], truth, where=str(row))


@pytest.mark.parametrize(
    "row",
    [row for row in SUPPORTED if row.function and row.dtype.itemsize > 2],
    ids=str,
)
def test_functions_are_those_of_vector_maths(row: Elementwise) -> None:
    """Whose accuracy and special values have tests of their own."""
    assert row.function is not None
    arrays = operands(row.in_dtypes, 200)
    loops = Loops(row.op, row.in_dtypes, row.out_dtype, row.attrs, (4,))
    direct = elementwise(row.function, arity=len(arrays), dtype=row.dtype, width=4)
    assert same_bits(loops(4, *arrays), direct(*arrays))


# Casts


def cast_operand(given: DType, wanted: DType) -> Array:
    """Numbers about the limits of both dtypes, and about ties of small floats."""
    [numbers] = operands([given], 3000)
    if not is_float(given):
        if given.kind == "b" or given.itemsize == 1:
            return numbers
        # Integers with ones at both ends: ties, and almost ties, of floats.
        bits = 8 * given.itemsize - 1
        pairs = [(1 << i) + d for i in range(bits) for d in (-1, 0, 1)]
        pairs += [(3 << i) + d for i in range(bits - 2) for d in (-1, 1)]
        pairs += [(4097 << i) + d for i in range(bits - 13) for d in (-1, 0, 1)]
        return np.concatenate([numbers, np.array(pairs, given)])
    with np.errstate(all="ignore"):
        limits = [s * (2.0**b + d) for b in (7, 8, 15, 16, 31, 32, 63, 64)
                  for d in (-1, -0.5, 0, 0.5, 1) for s in (1, -1)]  # fmt: skip
        ties = []
        if is_float(wanted) and wanted.itemsize < given.itemsize:
            word = np.dtype(f"u{wanted.itemsize}")
            rng = np.random.default_rng(3)
            bits = rng.integers(0, np.iinfo(word).max, 3000, dtype=word)
            bits[:300] = rng.integers(0, 40, 300)  # subnormal numbers
            low = bits.view(wanted).astype(given)
            high = (bits + word.type(1)).view(wanted).astype(given)
            tie = (low / 2 + high / 2).astype(given)
            ties = [tie, np.nextafter(tie, low), np.nextafter(tie, high)]
        return np.concatenate([numbers, np.array(limits).astype(given), *ties])


@pytest.mark.parametrize("wanted", REAL_DTYPES, ids=short_name)
@pytest.mark.parametrize("given", REAL_DTYPES, ids=short_name)
def test_casts_agree_with_numpy(given: DType, wanted: DType) -> None:
    cast, attrs = OPS["cast"], {"dtype": wanted}
    assert lanes.is_supported(cast, [given], wanted, attrs)
    numbers = cast_operand(given, wanted)
    loops = Loops(cast, [given], wanted, attrs, WIDTHS)
    with np.errstate(all="ignore"):
        truth = np.asarray(cast.eval(numbers, dtype=wanted))
        if is_float(given) and wanted == np.uint32:
            # NumPy's loop over single elements and the one over vectors differ.
            single = [cast.eval(x, dtype=wanted) for x in numbers]
            truth = np.array(single, wanted)
    for width in WIDTHS:
        assert same_bits(loops(width, numbers), truth), f"at width {width}"


@pytest.mark.parametrize("dtype", [d for d in REAL_DTYPES if d.itemsize <= 2], ids=str)
def test_memory_keeps_every_number(dtype: DType) -> None:
    """Read and written: the same bits, whatever they are."""
    word = np.dtype(f"u{dtype.itemsize}")
    count = 2 if dtype.kind == "b" else 1 << 8 * dtype.itemsize
    numbers = np.arange(count, dtype=word).view(dtype)
    kept = Loops(OPS["stop_gradient"], [dtype], dtype, {}, (16,))(16, numbers)
    assert same_bits(kept, numbers)


@pytest.mark.parametrize("name", ["negative", "signbit", "nextafter", "exponent"])
@pytest.mark.parametrize(
    "dtype", [np.dtype("f2"), np.dtype(ml_dtypes.bfloat16)], ids=str
)
def test_every_small_float_is_treated_as_numpy_does(name: str, dtype: DType) -> None:
    [row] = [row for row in ROWS if row.op.name == name and row.dtype == dtype]
    numbers = np.arange(1 << 16, dtype=np.uint16).view(dtype)
    arrays = [numbers, np.roll(numbers, 12345)][: len(row.in_dtypes)]
    assert same_bits(row.loops()(16, *arrays), row.evaluate(arrays))


@pytest.mark.parametrize("dtype", REAL_DTYPES, ids=short_name)
def test_constants_are_rounded_to_their_dtype(dtype: DType) -> None:
    number = 1 / 3 if is_float(dtype) else 1
    module = ir.LLVMModule()
    function = ir.LLVMFunction(
        module, ir.FunctionType(ir.VoidType(), [ir.PointerType()]), "run4"
    )
    builder = ir.IRBuilder(function.append_basic_block())
    value = lanes.constant(dtype, number, 4)
    assert value.type == lanes.register_type(dtype, 4)
    written = lanes.to_memory(builder, value, dtype)
    builder.store(written, function.args[0], align=1)
    builder.ret_void()
    out = np.zeros(4, dtype)
    Library(module).function("run4", None, ctypes.c_void_p)(out.ctypes.data)
    assert same_bits(out, np.full(4, number).astype(dtype))


# Remainders of numbers far apart


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ["fmod", "remainder", "floor_divide"])
def test_remainders_are_exact_over_the_whole_range(name: str, dtype: Any) -> None:
    kind = np.dtype(dtype)
    word = np.dtype(f"u{kind.itemsize}")
    rng = np.random.default_rng(11)
    bits = rng.integers(0, np.iinfo(word).max, (2, 20_000), dtype=word)
    x, y = bits.view(kind)
    tiny, largest = np.finfo(kind).smallest_subnormal, np.finfo(kind).max
    x[:40], y[:40] = largest, tiny * np.arange(1, 41)
    [row] = [row for row in ROWS if row.op.name == name and row.dtype == kind]
    assert same_bits(row.loops()(4, x, y), row.evaluate([x, y]))


# What is supported

FLOATS = "f16 bf16 f32 f64"
COMPLEX = "c64 c128"
SIGNED = "i8 i16 i32 i64"
# All other dtypes of all ops are. A record that appears here has lost its native form.
UNSUPPORTED = {
    # Complex numbers are computed by NumPy.
    COMPLEX: """abs acos acosh add angle asin asinh atan atanh conj cos cosh div eq_mask
        equal exp exp2 expm1 gate imag isfinite isinf isnan log log10 log1p log2 mul
        negative not_equal read real reread round sign sin sinh sqrt square
        stop_gradient sub tan tanh where""",
    # A negative exponent of integers is an error.
    f"{SIGNED} {COMPLEX}": "pow",
    # SciPy's; and the result of `make_complex` is complex.
    FLOATS: """bessel_i beta_density beta_transport betainc betainc_slope betaln
        gamma_density gamma_transport gammainc gammainc_slope gammaincc make_complex
        polygamma sinc_slope zeta zeta_slope""",
}


def test_what_falls_back_to_numpy_is_known() -> None:
    found: dict[str, list[str]] = {}
    for row in ROWS:
        if not row.is_supported:
            found.setdefault(row.op.name, []).append(short_name(row.dtype))
    expected = {
        name: dtypes for dtypes, names in UNSUPPORTED.items() for name in names.split()
    }
    assert {name: " ".join(names) for name, names in found.items()} == expected


def test_an_op_without_a_lane_expression_is_not_supported() -> None:
    f32 = np.dtype("float32")
    assert not lanes.is_supported(OPS["matmul"], [f32, f32], f32, {})


def test_complex_casts_are_not_supported() -> None:
    f32, c64 = np.dtype("float32"), np.dtype("complex64")
    assert not lanes.is_supported(OPS["cast"], [f32], c64, {"dtype": c64})
    assert not lanes.is_supported(OPS["cast"], [c64], f32, {"dtype": f32})


CALL = re.compile(r"^\s+(?:call\w*|blr?)\s+.*$", re.MULTILINE)


def test_no_lane_calls_a_library(full: bool) -> None:
    """Stored code names no symbol of a compiler's or C library.

    Not even `fma`, which is a call where the processor asked for has no such
    instruction: so it is for the one that is there.
    """
    step = 1 if full else 5
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    rows = [row for row in SUPPORTED if row.function is None]
    with config.override(cpu=""):
        machine = host_machine()
        own = [row.loops().module for row in rows[::step]]
        casts = [
            Loops(OPS["cast"], [given], wanted, {"dtype": wanted}, WIDTHS).module
            for given in REAL_DTYPES
            for wanted in REAL_DTYPES[::step]
        ]
    for module in own + casts:
        text = machine.emit_assembly(binding.parse_assembly(str(module)))
        assert CALL.findall(text) == [], str(module)


# As Python text

TEXT_DTYPES = ("float64", "float32", "int32", "uint8", "bool", "bfloat16")


# NumPy's functions of smaller floats are less accurate than the records'.
@pytest.mark.parametrize(
    "row",
    [
        row
        for row in ROWS
        if row.dtype.name in TEXT_DTYPES
        if row.dtype == np.float64 or row.case.agreement in (EXACT, ROUNDED)
    ],
    ids=str,
)
def test_source_text_means_the_same(row: Elementwise) -> None:
    names = list("abcde")[: len(row.in_dtypes)]
    text = lanes.source(row.op, row.attrs, names)
    rng = np.random.default_rng(5)
    arrays = [
        row.row.operand(at).draw(rng, dtype, [(60,)] * len(names), at, row.attrs)
        for at, dtype in enumerate(row.in_dtypes)
    ]
    scope = {"np": np, "ops": ops, **dict(zip(names, arrays, strict=True))}
    with np.errstate(all="ignore"):
        got = np.asarray(eval(text, scope))
    expected = row.evaluate(arrays)
    assert got.dtype == expected.dtype, text
    assert_agrees(row.case.agreement, got, expected, where=text)


@pytest.mark.parametrize("wanted", REAL_DTYPES, ids=short_name)
def test_source_text_of_casts_means_the_same(wanted: DType) -> None:
    text = lanes.source(OPS["cast"], {"dtype": wanted}, ["a * b"])
    a, b = np.array([1.0, 2.5, -0.3]), np.array([1 / 3, 0.7, 3.0])
    with np.errstate(all="ignore"):
        got = eval(text, {"np": np, "ops": ops, "a": a, "b": b})
        assert same_bits(got, OPS["cast"].eval(a * b, dtype=wanted)), text


@pytest.mark.parametrize(
    ("name", "operands", "text"),
    [
        ("add", ["a", "b"], "a + b"),
        ("sub", ["a", "b + c"], "a - (b + c)"),
        ("negative", ["a"], "-a"),
        ("exp", ["a - b"], "np.exp(a - b)"),
        ("where", ["a > 0", "b", "0"], "np.where(a > 0, b, 0)"),
        ("gate", ["t", "mask"], "np.where(mask != 0, t, 0)"),
        ("ge_mask", ["a", "b"], "np.where(a >= b, a.dtype.type(1), 0)"),
        ("stop_gradient", ["a + b"], "a + b"),
        ("bitwise_invert", ["~a"], "~(~a)"),
        ("pow", ["-a", "2"], "(-a) ** 2"),
        ("sigmoid", ["x"], "ops.sigmoid.eval(x)"),
    ],
)
def test_source_text_reads_well(name: str, operands: list[str], text: str) -> None:
    assert lanes.source(OPS[name], {}, operands) == text


def test_source_text_carries_attributes() -> None:
    text = lanes.source(OPS["sinc_slope"], {"order": 2}, ["x"])
    assert text == "ops.sinc_slope.eval(x, order=2)"


def test_every_real_dtype_has_lanes() -> None:
    assert all(kind_of(dtype) is not None for dtype in REAL_DTYPES)
    assert kind_of(np.dtype("complex64")) is None
