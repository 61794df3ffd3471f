"""The array API standard 2025.12: names, parameters, the array object, dtypes.

What functions compute is in `test_array_api_functions.py`; the standard itself, as a
table, in `array_api_signatures.py`.

Start reading at `test_every_name_of_the_standard_is_there`.
"""

from __future__ import annotations

import inspect
import math
import operator
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import numpy as np
import pytest
from array_api_signatures import (
    ATTRIBUTES,
    CONSTANTS,
    DTYPES,
    FIELDS,
    INFO_SIGNATURES,
    METHOD_SIGNATURES,
    SIGNATURES,
    words,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.array_api import make_strategies_namespace

import tapejit as tj

# Names of the standard that tapejit has not, with the reason; see docs/array_api.md.
MISSING: dict[str, str] = {}

KEYWORDS = (
    inspect.Parameter.KEYWORD_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
)


def assert_signature(function: Callable[..., Any], standard: inspect.Signature) -> None:
    """Every call that the standard allows is one that the function allows.

    A parameter that the standard gives by position only may have any name.
    """
    ours = list(inspect.signature(function).parameters.values())
    names = {parameter.name: parameter for parameter in ours}
    for place, wanted in enumerate(standard.parameters.values()):
        if wanted.kind in (wanted.POSITIONAL_ONLY, wanted.VAR_POSITIONAL):
            found = ours[place]
            assert found.kind == wanted.kind, f"{wanted.name}: {found.kind}"
        elif wanted.kind == wanted.KEYWORD_ONLY:
            found = names[wanted.name]
            assert found.kind in KEYWORDS, f"{wanted.name} is not a keyword"
        else:
            found = ours[place]
            assert (found.name, found.kind) == (wanted.name, wanted.kind)
        if wanted.default is not wanted.empty:
            assert found.default == wanted.default, f"the default of {wanted.name}"
    for extra in ours[len(standard.parameters) :]:
        is_optional = extra.default is not extra.empty or extra.kind in (
            extra.VAR_POSITIONAL,
            extra.VAR_KEYWORD,
        )
        assert is_optional, f"{extra.name} is required"


def has(name: str) -> bool:
    try:
        attrgetter(name)(tj)
    except AttributeError:
        return False
    return True


def test_every_name_of_the_standard_is_there() -> None:
    names = (*SIGNATURES, *CONSTANTS, *DTYPES, "newaxis", "__array_api_version__")
    assert sorted(name for name in names if not has(name)) == sorted(MISSING)


@pytest.mark.parametrize("name", [name for name in SIGNATURES if name not in MISSING])
def test_the_parameters_are_the_standards(name: str) -> None:
    assert_signature(attrgetter(name)(tj), SIGNATURES[name])


@pytest.mark.parametrize("name", METHOD_SIGNATURES)
@pytest.mark.parametrize("owner", ["tensor", "variable"])
def test_the_array_object_has_the_standards_methods(name: str, owner: str) -> None:
    x = tj.ones((1, 1)) if owner == "tensor" else tj.Variable([[1.0]])
    ours = list(inspect.signature(getattr(x, name)).parameters.values())
    wanted = METHOD_SIGNATURES[name].parameters
    positional = [p for p in wanted.values() if p.kind == p.POSITIONAL_ONLY]
    keywords = {p.name for p in wanted.values()} - {p.name for p in positional}
    takes_any = any(p.kind == p.VAR_KEYWORD for p in ours)
    assert takes_any or keywords <= {p.name for p in ours}
    assert len([p for p in ours if p.kind != p.KEYWORD_ONLY]) >= len(positional)


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_the_array_object_has_the_standards_attributes(name: str) -> None:
    assert hasattr(tj.ones((1, 1)), name)


@pytest.mark.parametrize("name", INFO_SIGNATURES)
def test_the_description_has_the_standards_methods(name: str) -> None:
    assert_signature(
        getattr(tj.__array_namespace_info__(), name), INFO_SIGNATURES[name]
    )


def test_constants() -> None:
    for name, value in CONSTANTS.items():
        found = getattr(tj, name)
        assert found == value or (math.isnan(found) and math.isnan(value))
    assert tj.newaxis is None
    assert tj.__array_api_version__ == "2025.12"


# The description


def test_what_the_namespace_says_of_itself() -> None:
    info = tj.__array_namespace_info__()
    capabilities = info.capabilities()
    assert capabilities["boolean indexing"] is True
    assert capabilities["data-dependent shapes"] is True
    assert capabilities["max dimensions"] == 64
    assert info.devices() == (info.default_device(),) == ("cpu",)
    assert info.default_dtypes() == {
        "real floating": tj.float32,
        "complex floating": tj.complex64,
        "integral": tj.int32,
        "indexing": tj.int64,
    }
    assert set(info.dtypes()) == set(DTYPES)


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("bool", "bool"),
        ("signed integer", "int8 int16 int32 int64"),
        ("unsigned integer", "uint8 uint16 uint32 uint64"),
        ("integral", "int8 int16 int32 int64 uint8 uint16 uint32 uint64"),
        ("real floating", "float32 float64"),
        ("complex floating", "complex64 complex128"),
        (("bool", "real floating"), "bool float32 float64"),
    ],
)
def test_dtypes_by_kind(kind: Any, names: str) -> None:
    found = tj.__array_namespace_info__().dtypes(kind=kind)
    assert set(found) == set(words(names))
    assert all(tj.isdtype(dtype, kind) for dtype in found.values())
    others = [getattr(tj, name) for name in DTYPES if name not in found]
    assert not any(tj.isdtype(dtype, kind) for dtype in others)


def test_limits_of_dtypes() -> None:
    info = tj.finfo(tj.float32)
    assert (info.bits, info.dtype) == (32, tj.float32)
    assert type(info.eps) is float
    assert info.eps == 2.0**-23
    assert info.max == -info.min == float(np.finfo(np.float32).max)
    assert info.smallest_normal == 2.0**-126
    assert tj.finfo(tj.complex128).dtype == tj.float64
    assert tj.finfo(tj.ones(1)).bits == 32
    limits = tj.iinfo(tj.uint8)
    assert (limits.bits, limits.min, limits.max) == (8, 0, 255)
    assert tj.iinfo(tj.asarray(1)).dtype == tj.int32
    with pytest.raises(TypeError, match="finfo"):
        tj.finfo(tj.int32)
    with pytest.raises(TypeError, match="iinfo"):
        tj.iinfo(tj.float32)


# Promotion

SIGNED = ("int8", "int16", "int32", "int64")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")


def promotions() -> dict[tuple[str, str], str]:
    """The standard's tables: within the signed, the unsigned, the two mixed, ..."""
    table: dict[tuple[str, str], str] = {("bool", "bool"): "bool"}
    chains = (SIGNED, UNSIGNED, ("float32", "float64"), ("complex64", "complex128"))
    for chain in chains:
        for i, narrow in enumerate(chain):
            for wide in chain[i:]:
                table[narrow, wide] = wide
    for i, signed in enumerate(SIGNED):
        for j, unsigned in enumerate(UNSIGNED[:3]):
            table[signed, unsigned] = SIGNED[max(i, j + 1)]
    for real, complex_, result in [
        ("float32", "complex64", "complex64"),
        ("float32", "complex128", "complex128"),
        ("float64", "complex64", "complex128"),
        ("float64", "complex128", "complex128"),
    ]:
        table[real, complex_] = result
    return table | {(b, a): result for (a, b), result in table.items()}


PROMOTIONS = promotions()

ARITHMETIC = ["add", "subtract", "multiply", "pow"]
REAL_ARITHMETIC = ["floor_divide", "remainder", "maximum", "minimum"]
FLOATING = ["divide"]
REAL_FLOATING = ["atan2", "copysign", "hypot", "logaddexp", "nextafter"]
BITS = ["bitwise_and", "bitwise_or", "bitwise_xor"]
SHIFTS = ["bitwise_left_shift", "bitwise_right_shift"]
ORDERING = ["less", "less_equal", "greater", "greater_equal"]
EQUALITY = ["equal", "not_equal"]


def kinds_of(name: str) -> str:
    """The kinds of dtypes, by NumPy's letters, that the standard gives a function."""
    for names, kinds in [
        (ARITHMETIC, "iufc"),
        (REAL_ARITHMETIC, "iuf"),
        (FLOATING, "fc"),
        (REAL_FLOATING, "f"),
        (BITS, "biu"),
        (SHIFTS, "iu"),
        (ORDERING, "iuf"),
        (EQUALITY, "biufc"),
    ]:
        if name in names:
            return kinds
    raise KeyError(name)


BINARY = (
    ARITHMETIC + REAL_ARITHMETIC + FLOATING + REAL_FLOATING + BITS + SHIFTS + ORDERING
) + EQUALITY


@pytest.mark.parametrize("name", BINARY)
def test_two_dtypes_meet_in_the_standards_one(name: str) -> None:
    function, kinds = getattr(tj, name), kinds_of(name)
    for (a, b), result in PROMOTIONS.items():
        if np.dtype(a).kind not in kinds or np.dtype(b).kind not in kinds:
            continue
        x, y = tj.ones((2,), dtype=a), tj.ones((3, 1), dtype=b)
        out = function(x, y)
        wanted = "bool" if name in ORDERING + EQUALITY else result
        assert out.dtype == wanted, f"{name}({a}, {b})"
        assert out.shape == (3, 2)


@pytest.mark.parametrize("name", ["concat", "stack", "result_type", "where", "matmul"])
def test_other_functions_promote_the_same_way(name: str) -> None:
    calls: dict[str, Callable[[Any, Any], Any]] = {
        "concat": lambda x, y: tj.concat([x, y]).dtype,
        "stack": lambda x, y: tj.stack([x, y]).dtype,
        "result_type": lambda x, y: tj.result_type(x.dtype, y),
        "where": lambda x, y: tj.where(tj.asarray([True, False]), x, y).dtype,
        "matmul": lambda x, y: tj.matmul(x, y).dtype,
    }
    for (a, b), result in PROMOTIONS.items():
        if name == "matmul" and "bool" in (a, b):
            continue
        x, y = tj.ones((2,), dtype=a), tj.ones((2,), dtype=b)
        assert calls[name](x, y) == result, f"{name}({a}, {b})"


OPERATORS: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "add": (operator.add, "iufc"),
    "sub": (operator.sub, "iufc"),
    "mul": (operator.mul, "iufc"),
    "truediv": (operator.truediv, "fc"),
    "floordiv": (operator.floordiv, "iuf"),
    "mod": (operator.mod, "iuf"),
    "pow": (operator.pow, "iufc"),
    "and": (operator.and_, "biu"),
    "or": (operator.or_, "biu"),
    "xor": (operator.xor, "biu"),
    "lshift": (operator.lshift, "iu"),
    "rshift": (operator.rshift, "iu"),
    "lt": (operator.lt, "iuf"),
    "le": (operator.le, "iuf"),
    "gt": (operator.gt, "iuf"),
    "ge": (operator.ge, "iuf"),
    "eq": (operator.eq, "biufc"),
    "ne": (operator.ne, "biufc"),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_a_python_scalar_takes_the_tensors_dtype_on_either_side(name: str) -> None:
    run, kinds = OPERATORS[name]
    scalars: dict[str, Any] = {"b": True, "i": 1, "u": 1, "f": 1.0, "c": 1.0 + 0j}
    for dtype in DTYPES:
        kind = np.dtype(dtype).kind
        if kind not in kinds:
            continue
        x = tj.ones((2,), dtype=dtype)
        wanted = "bool" if name in ("lt", "le", "gt", "ge", "eq", "ne") else dtype
        narrower = {"f": (1.0, 1), "c": (1.0 + 0j, 1.0, 1)}
        for scalar in narrower.get(kind, (scalars[kind],)):
            assert run(x, scalar).dtype == wanted, f"{dtype} {name} {scalar}"
            assert run(scalar, x).dtype == wanted, f"{scalar} {name} {dtype}"


def test_a_complex_scalar_makes_a_float_tensor_complex() -> None:
    assert (tj.ones(2) * 1j).dtype == tj.complex64
    assert (1j - tj.ones(2, dtype=tj.float64)).dtype == tj.complex128


def test_casts_without_loss() -> None:
    for a in DTYPES:
        for b in DTYPES:
            kinds = np.dtype(a).kind, np.dtype(b).kind
            if (a, b) in PROMOTIONS:
                assert tj.can_cast(getattr(tj, a), b) == (PROMOTIONS[a, b] == b)
            if kinds in {("f", "i"), ("c", "f"), ("i", "b")}:
                assert not tj.can_cast(getattr(tj, a), b)
    assert tj.can_cast(tj.ones(1), tj.float64)


# The array object


def test_python_numbers_of_tensors() -> None:
    assert bool(tj.asarray(True)) is True
    assert int(tj.asarray(3)) == 3
    assert operator.index(tj.asarray(3, dtype=tj.uint8)) == 3
    assert float(tj.asarray(2.5)) == 2.5
    assert complex(tj.asarray(1 + 2j)) == 1 + 2j
    assert complex(tj.asarray(2.5)) == 2.5
    assert int(tj.asarray(-2.7)) == -2
    assert float(tj.asarray(True)) == 1.0
    assert type(int(tj.asarray(3))) is int


@pytest.mark.parametrize(
    ("convert", "value"),
    [
        (operator.index, 1.5),
        (operator.index, True),
        (operator.index, [1]),
        (int, 1 + 2j),
        (float, 1 + 2j),
        (int, [1, 2]),
        (float, [1.0, 2.0]),
        (complex, [1j, 2j]),
    ],
)
def test_what_is_no_python_number_says_so(
    convert: Callable[[Any], Any], value: Any
) -> None:
    with pytest.raises(TypeError):
        convert(tj.asarray(value))
    with pytest.raises(ValueError, match="2 elements"):
        bool(tj.asarray([True, False]))


def test_where_a_tensor_comes_from() -> None:
    x = tj.ones(2)
    assert x.__array_namespace__() is tj
    assert x.__array_namespace__(api_version="2025.12") is tj
    with pytest.raises(ValueError, match=r"1999\.12"):
        x.__array_namespace__(api_version="1999.12")
    assert x.device == "cpu"
    assert tj.all(x.to_device("cpu") == x)
    with pytest.raises(ValueError, match="tpu"):
        x.to_device("tpu")
    with pytest.raises(ValueError, match="stream"):
        x.to_device("cpu", stream=1)


def test_in_place_operators_rebind() -> None:
    x = y = tj.asarray([1.0, 2.0])
    x += 1
    assert x.tolist() == [2.0, 3.0]
    assert y.tolist() == [1.0, 2.0]


def test_a_tensor_is_not_written() -> None:
    x = tj.zeros(3)
    with pytest.raises(TypeError, match="in place"):
        x[0] = 1.0


def test_dlpack_goes_both_ways() -> None:
    x = tj.from_dlpack(np.arange(3, dtype=np.int16))
    assert x.dtype == tj.int16
    assert np.from_dlpack(x).tolist() == [0, 1, 2]
    again = tj.from_dlpack(x, device="cpu", copy=True)
    assert again.tolist() == [0, 1, 2]
    assert x.__dlpack_device__() == (1, 0)


def test_unreal_devices_are_refused_everywhere() -> None:
    x = tj.ones(1)
    calls: list[Callable[[], Any]] = [
        lambda: tj.asarray(1, device="tpu"),
        lambda: tj.zeros(1, device="tpu"),
        lambda: tj.ones_like(x, device="tpu"),
        lambda: tj.arange(1, device="tpu"),
        lambda: tj.eye(1, device="tpu"),
        lambda: tj.linspace(0, 1, 2, device="tpu"),
        lambda: tj.astype(x, tj.float64, device="tpu"),
        lambda: tj.from_dlpack(x, device="tpu"),
        lambda: tj.fft.fftfreq(4, device="tpu"),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="tpu"):
            call()


# Results with several parts


def test_results_with_several_parts_name_them() -> None:
    square = tj.asarray([[2.0, 0.5], [0.5, 1.0]])
    for name, fields in FIELDS.items():
        result = attrgetter(name)(tj)(square)
        assert result._fields == fields, name
        assert isinstance(result, tuple)


# Hypothesis builds arrays of any library by the standard's functions alone.

xps = make_strategies_namespace(tj, api_version="2024.12")


@settings(max_examples=60, deadline=None)
@given(
    xps.arrays(xps.scalar_dtypes(), xps.array_shapes(min_dims=0, min_side=0)),
    st.data(),
)
def test_basic_indexing_is_pythons(x: Any, data: Any) -> None:
    key = data.draw(xps.indices(x.shape, allow_newaxis=True))
    wanted = x.numpy()[key]
    out = x[key]
    assert out.dtype == x.dtype
    assert out.shape == np.shape(wanted)
    np.testing.assert_array_equal(out.numpy(), wanted)


@settings(max_examples=60, deadline=None)
@given(
    xps.arrays(xps.numeric_dtypes(), xps.array_shapes(min_dims=0, min_side=0)),
    st.data(),
)
def test_sums_have_the_standards_dtype_and_shape(x: Any, data: Any) -> None:
    axes = st.sets(st.integers(0, max(x.ndim - 1, 0)), max_size=x.ndim)
    axis = data.draw(st.none() | axes.map(tuple))
    keepdims = data.draw(st.booleans())
    out = tj.sum(x, axis=axis, keepdims=keepdims)
    kind, bits = x.dtype.kind, 8 * x.dtype.itemsize
    names = {"i": f"int{max(bits, 32)}", "u": f"uint{max(bits, 32)}"}
    assert out.dtype == names.get(kind, x.dtype.name)
    with np.errstate(all="ignore"):
        wanted = np.sum(x.numpy(), axis=axis, keepdims=keepdims)
    assert out.shape == wanted.shape
