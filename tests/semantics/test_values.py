"""Values: defaults and promotion, NumPy, casts, Python's protocols (24 to 26, 31)."""

from __future__ import annotations

import array
import operator
from typing import Any

import numpy as np
import pytest

import tapejit as tj

from .fresh_process import run_python


def outcome(function: Any, *args: Any) -> Any:
    """What a function returns, or the kind of error it raises."""
    try:
        return function(*args)
    except (TypeError, ValueError, IndexError) as error:
        for kind in (IndexError, TypeError, ValueError):
            if isinstance(error, kind):
                return kind
        raise


# 24: defaults and promotion


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (1.0, "float32"),
        (1, "int32"),
        (-(2**31), "int32"),
        (2**31, "int64"),
        (-(2**31) - 1, "int64"),
        (True, "bool"),
        (1j, "complex64"),
        ([1.0, 2], "float32"),
        ([1, 2], "int32"),
        ([1, 2**40], "int64"),
        ([-(2**40), 1], "int64"),
        ([True, False], "bool"),
        ([1j, 2.0], "complex64"),
        ([], "float32"),
        ([[1], [2.5]], "float32"),
        (np.ones(2), "float64"),
        (np.arange(2), "int64"),
        (np.float16([1]), "float16"),
        (np.complex128([1]), "complex128"),
        (np.array(1.0), "float64"),
    ],
    ids=str,
)
def test_s24_python_numbers_have_defaults_and_arrays_keep_their_dtype(
    value: Any, dtype: str
) -> None:
    for make in (tj.asarray, tj.constant, tj.Variable):
        made = make(value)
        assert made.dtype == np.dtype(dtype)
        assert isinstance(made.dtype, np.dtype)
        assert made.numpy().tolist() == np.asarray(value).tolist()


def test_s24_the_creation_functions_have_the_same_defaults() -> None:
    assert tj.arange(3).dtype == np.int32
    assert tj.arange(3.0).dtype == np.float32
    assert tj.linspace(0, 1, 3).dtype == np.float32
    for made in (tj.zeros(2), tj.ones(2), tj.eye(2), tj.full(2, 1.0)):
        assert made.dtype == np.float32


def test_s24_the_default_float_is_a_setting() -> None:
    with tj.config.override(default_float="float64"):
        assert tj.asarray(1.0).dtype == np.float64
        assert tj.asarray(1j).dtype == np.complex128
        assert tj.zeros(2).dtype == np.float64
        assert (tj.asarray(1) / tj.asarray(2)).dtype == np.float64
        assert (tj.asarray([1.0], dtype="float32") * 2.0).dtype == np.float32
    assert tj.asarray(1.0).dtype == np.float32


WEAK = [
    ("float32", 1, "float32"),
    ("float32", 1.5, "float32"),
    ("float32", True, "float32"),
    ("float32", np.float64(1.5), "float32"),
    ("float32", np.float16(1.5), "float32"),
    ("float32", 1j, "complex64"),
    ("float16", 1.5, "float16"),
    ("float16", np.float64(1.5), "float16"),
    ("bfloat16", 2.5, "bfloat16"),
    ("float64", 1j, "complex128"),
    ("complex64", 1.5, "complex64"),
    ("int32", 1, "int32"),
    ("int8", 1, "int8"),
    ("int32", 1.5, "float32"),
    ("int64", np.float64(1.5), "float32"),
    ("int32", 1j, "complex64"),
    ("int32", True, "int32"),
    ("bool", 1, "int32"),
    ("bool", 1.5, "float32"),
]


@pytest.mark.parametrize(("dtype", "scalar", "expected"), WEAK, ids=str)
def test_s24_scalars_are_weak(dtype: str, scalar: Any, expected: str) -> None:
    x = tj.asarray([1, 0], dtype=dtype)
    name = np.dtype(tj.asarray([1], dtype=expected).dtype)
    for result in (x + scalar, scalar + x, tj.multiply(x, scalar), x * scalar):
        assert result.dtype == name


def test_s24_the_usual_scale_stays_float32() -> None:
    query = tj.ones((2, 4))
    assert (query / np.sqrt(4)).dtype == np.float32
    assert (np.sqrt(4) * query).dtype == np.float32
    assert (query * np.pi).dtype == np.float32
    assert (query - np.mean([1.0, 2.0])).dtype == np.float32


STRONG = [
    ("float32", "float64", "float64"),
    ("float16", "float32", "float32"),
    ("float16", "bfloat16", "float32"),
    ("bfloat16", "float32", "float32"),
    ("float32", "int32", "float32"),
    ("float32", "int64", "float32"),
    ("float16", "int64", "float16"),
    ("bfloat16", "int32", "bfloat16"),
    ("float64", "int64", "float64"),
    ("float32", "bool", "float32"),
    ("float32", "complex64", "complex64"),
    ("float64", "complex64", "complex128"),
    ("int32", "int64", "int64"),
    ("int8", "uint8", "int16"),
    ("bool", "int8", "int8"),
]


@pytest.mark.parametrize(("left", "right", "expected"), STRONG, ids=str)
def test_s24_arrays_promote_as_in_numpy_but_floats_stay(
    left: str, right: str, expected: str
) -> None:
    x, y = tj.asarray([1, 0], dtype=left), tj.asarray([1, 1], dtype=right)
    wanted = tj.asarray([1], dtype=expected).dtype
    assert (x + y).dtype == wanted
    assert (y + x).dtype == wanted
    assert tj.where([True, False], x, y).dtype == wanted
    assert tj.concat([x, y]).dtype == wanted


def test_s24_an_array_of_no_axes_is_not_weak() -> None:
    x = tj.ones(2)
    assert (x * tj.asarray(np.array(2.0))).dtype == np.float64
    assert (x * np.array(2.0)).dtype == np.float64


def test_s24_integers_divide_to_the_default_float() -> None:
    result = tj.asarray([1, 2]) / tj.asarray([2, 2])
    assert result.dtype == np.float32
    assert result.tolist() == [0.5, 1.0]
    assert (tj.asarray(1) / 2).dtype == np.float32
    assert tj.mean(tj.asarray([1, 2])).dtype == np.float32
    assert tj.sin(tj.asarray(1)).dtype == np.float32


def test_s24_a_python_integer_must_fit() -> None:
    with pytest.raises(OverflowError, match=r"300.*int8"):
        tj.asarray([1], dtype="int8") + 300
    with pytest.raises(OverflowError, match=r"-1.*uint8"):
        tj.asarray([1], dtype="uint8") + -1


def test_s24_float32_meets_float64_and_each_gets_its_own_gradient() -> None:
    x = tj.Variable([1.0, 2.0])
    w = tj.Variable(np.array([3.0, 4.0]))
    with tj.GradientTape() as tape:
        y = tj.sum(x * w)
    assert y.dtype == np.float64
    dx, dw = tape.gradient(y, [x, w])
    assert (dx.dtype, dw.dtype) == (np.float32, np.float64)
    assert (dx.tolist(), dw.tolist()) == ([3.0, 4.0], [1.0, 2.0])


def test_s24_a_float64_array_meeting_a_float32_variable_warns_once() -> None:
    lines = run_python(
        """
        v, data = tj.Variable([1.0, 2.0]), np.ones(2)
        for step in range(3):
            print((v * data).dtype)
        print((data + v).dtype, tj.matmul(tj.Variable(tj.ones((2, 2))), data).dtype)
        """
    )
    warned = [line for line in lines if "Warning" in line]
    assert len(warned) == 1
    assert 'astype("float32")' in warned[0]
    assert "<string>" in warned[0], "it shows the user's line"
    assert lines.count("float64") == 3


def test_s24_nothing_else_warns() -> None:
    lines = run_python(
        """
        v = tj.Variable([1.0, 2.0])
        v * np.ones(2, np.float32); v * np.float64(2); v * 2.0; v * np.arange(2)
        tj.Variable(np.ones(2)) * np.ones(2); tj.ones(2) * np.ones(2)
        v * tj.asarray(np.ones(2))
        """
    )
    assert lines == []


# 25: NumPy


UFUNCS = [
    (np.sin, np.cos),
    (np.exp, np.exp),
    (np.log, lambda x: 1 / x),
    (np.sqrt, lambda x: 0.5 / np.sqrt(x)),
    (np.tanh, lambda x: 1 - np.tanh(x) ** 2),
    (np.negative, lambda x: -np.ones_like(x)),
    (np.square, lambda x: 2 * x),
    (np.abs, np.sign),
]


@pytest.mark.parametrize(("ufunc", "slope"), UFUNCS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("kind", ["tensor", "variable"])
def test_s25_numpys_functions_of_a_tensor_are_recorded(
    ufunc: Any, slope: Any, kind: str
) -> None:
    data = np.array([0.5, 1.5])
    x = tj.asarray(data) if kind == "tensor" else tj.Variable(data)
    with tj.GradientTape() as tape:
        tape.watch(x)
        y = ufunc(x)
    assert isinstance(y, tj.Tensor)
    np.testing.assert_allclose(y.numpy(), ufunc(data), rtol=1e-12)
    np.testing.assert_allclose(tape.gradient(y, x).numpy(), slope(data), rtol=1e-12)


DATA = np.array([2.0, 4.0])
MIXED = {
    "array times tensor": (lambda x: DATA * x, DATA),
    "tensor times array": (lambda x: x * DATA, DATA),
    "array plus tensor": (lambda x: DATA + x, [1.0, 1.0]),
    "array minus tensor": (lambda x: DATA - x, [-1.0, -1.0]),
    "array over tensor": (lambda x: DATA / x, -DATA),
    "array to the tensor": (lambda x: DATA**x, DATA * np.log(DATA)),
    "array matmul tensor": (lambda x: DATA @ x, DATA),
    "matrix matmul tensor": (lambda x: np.outer(DATA, DATA) @ x, 6 * DATA),
    "np.multiply": (lambda x: np.multiply(DATA, x), DATA),
    "np.matmul": (lambda x: np.matmul(DATA, x), DATA),
    "np.dot": (lambda x: np.dot(DATA, x), DATA),
    "np.maximum": (lambda x: np.maximum(DATA, x), [0.0, 0.0]),
    "np.sum": (lambda x: np.sum(x), [1.0, 1.0]),
    "np.mean": (lambda x: np.mean(x), [0.5, 0.5]),
    "np.max": (lambda x: np.max(x), [0.5, 0.5]),
    "np.where": (lambda x: np.where(DATA > 3, x, DATA), [0.0, 1.0]),
    "np.concatenate": (lambda x: np.concatenate([x, DATA, x]), [2.0, 2.0]),
    "np.stack": (lambda x: np.stack([x, x]), [2.0, 2.0]),
    "np.reshape": (lambda x: np.reshape(x, (2, 1)), [1.0, 1.0]),
    "np.transpose": (lambda x: np.transpose(x), [1.0, 1.0]),
    "np.clip": (lambda x: np.clip(x, 0.0, 0.5), [0.0, 0.0]),
    "number of an array times tensor": (lambda x: DATA[1] * x, [4.0, 4.0]),
}


@pytest.mark.parametrize("name", MIXED)
@pytest.mark.parametrize("kind", ["tensor", "variable"])
def test_s25_arrays_and_tensors_mix_and_are_recorded(name: str, kind: str) -> None:
    function, expected = MIXED[name]
    x = tj.Variable([1.0, 1.0], dtype="float64")
    with tj.GradientTape() as tape:
        y = function(x if kind == "variable" else x.value())
    assert isinstance(y, tj.Tensor)
    np.testing.assert_allclose(
        y.numpy(), function(np.ones(2)), rtol=1e-12, err_msg="the value"
    )
    np.testing.assert_allclose(tape.gradient(y, x).numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize("make", [tj.asarray, tj.Variable])
def test_s25_np_asarray_is_read_only(make: Any) -> None:
    x = make([1.0, 2.0])
    for seen in (np.asarray(x), x.__array__()):
        assert not seen.flags.writeable
        with pytest.raises(ValueError, match="read-only"):
            seen[0] = 5.0
    assert x.tolist() == [1.0, 2.0]
    assert np.asarray(x).dtype == np.float32
    assert np.asarray(x, np.float64).dtype == np.float64


def test_s25_np_asarray_of_a_variable_does_not_follow_assignments() -> None:
    v = tj.Variable([1.0, 2.0])
    seen = np.asarray(v)
    v.assign([3.0, 4.0])
    v.assign_add([1.0, 1.0])
    v.scatter_add([0], [1.0])
    v[1:].assign([9.0])
    assert seen.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("make", [tj.asarray, tj.Variable])
@pytest.mark.parametrize("copy", [lambda x: x.numpy(), np.array])
def test_s25_numpy_gives_a_copy(make: Any, copy: Any) -> None:
    x = make([1.0, 2.0])
    mine = copy(x)
    mine[0] = 5.0
    assert x.tolist() == [1.0, 2.0]
    assert copy(x).tolist() == [1.0, 2.0]


COPIED = {
    "asarray": tj.asarray,
    "constant": tj.constant,
    "Variable": tj.Variable,
    "assign": lambda a: tj.Variable(tj.zeros((2, 2), dtype="float64")).assign(a),
    "product": lambda a: a * tj.asarray(1.0),
    "list": lambda a: tj.asarray([a, a]),
    "positive": tj.positive,
    "stop_gradient": tj.stop_gradient,
    "reshape": lambda a: tj.reshape(a, (4,)),
    "permute_dims": lambda a: tj.permute_dims(a, (1, 0)),
    "matrix_transpose": tj.matrix_transpose,
    "broadcast_to": lambda a: tj.broadcast_to(a, (3, 2, 2)),
    "expand_dims": lambda a: tj.expand_dims(a, axis=0),
    "squeeze": lambda a: tj.squeeze(a[None], axis=0),
    "flip": tj.flip,
    "real": tj.real,
    "conj": tj.conj,
    "clip": tj.clip,
    "astype": lambda a: tj.astype(a, tj.float64),
    "stack": lambda a: tj.stack([a]),
    "concat": lambda a: tj.concat([a]),
    "where": lambda a: tj.where(True, a, 0.0),
    "take": lambda a: tj.take(a, [0, 1], axis=0),
    "sum of no axes": lambda a: tj.sum(a, axis=()),
    "grad": lambda a: tj.grad(lambda x: tj.sum(x * x) / 2)(a),
    "vmap": lambda a: tj.vmap(lambda row: row)(a),
}


@pytest.mark.parametrize("name", COPIED)
def test_s25_a_tensor_never_sees_later_changes_of_the_array(name: str) -> None:
    base = np.arange(1.0, 9.0).reshape(2, 4)
    for data in (base[:, :2].copy(), base[:, 2:], base.T[:2]):
        made = COPIED[name](data)
        before = made.numpy()
        data[...] = -100.0
        assert made.numpy().tolist() == before.tolist()


FOREIGN = {
    "subclass": lambda: np.ones(3).view(type("Sub", (np.ndarray,), {})),
    "memoryview": lambda: memoryview(array.array("d", [1.0, 1.0, 1.0])),
    "array.array": lambda: array.array("d", [1.0, 1.0, 1.0]),
}


@pytest.mark.parametrize("make", FOREIGN.values(), ids=FOREIGN)
def test_s25_nor_those_of_anything_else_that_holds_numbers(make: Any) -> None:
    data = make()
    x, v = tj.asarray(data), tj.Variable(data)
    data[0] = 5.0
    assert x.tolist() == [1.0, 1.0, 1.0]
    assert v.numpy().tolist() == [1.0, 1.0, 1.0]


def test_s25_a_tape_keeps_the_values_that_were_there() -> None:
    data, v = np.array([2.0, 3.0]), tj.Variable(np.ones(2))
    with tj.GradientTape(persistent=True) as tape:
        y = v * data
        z = data * v
        w = tj.reshape(data, (2, 1)) * v
    data[...] = 100.0
    assert tape.gradient(y, v).tolist() == [2.0, 3.0]
    assert tape.gradient(z, v).tolist() == [2.0, 3.0]
    assert tape.gradient(w, v).tolist() == [5.0, 5.0]


def test_s25_nor_do_derivatives_see_changes_of_seeds_and_tangents() -> None:
    x, data = tj.Variable([1.0, 2.0]), np.float32([1, 2])
    seed, tangent = np.float32([1, 10]), np.float32([1, 10])
    with tj.GradientTape(persistent=True) as tape:
        y = x + 1.0
    found = [tape.gradient(y, x, seed), tape.gradient(x, x, seed)]
    value, pushed = tj.jvp(lambda x: x, (data,), (tangent,))
    again, pull = tj.vjp(lambda x: x, data)
    found.append(pull(seed)[0])
    seed[...] = tangent[...] = data[...] = -100.0
    assert [g.tolist() for g in (*found, pushed)] == [[1.0, 10.0]] * 4
    assert value.tolist() == again.tolist() == [1.0, 2.0]


def test_s25_copy_false_shares_on_the_callers_promise() -> None:
    data = np.ones(3)
    x = tj.asarray(data, copy=False)
    assert np.shares_memory(np.asarray(x), data)
    assert not np.shares_memory(np.asarray(tj.asarray(data, copy=True)), data)
    assert data.flags.writeable, "the caller's array stays as it was"


def test_s25_slices_of_a_tensor_share_its_memory() -> None:
    x = tj.asarray(np.arange(6.0))
    assert np.shares_memory(np.asarray(x[2:5]), np.asarray(x))


# 26: casts


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint8", "bool"])
def test_s26_a_cast_through_integers_cuts_the_path(dtype: str) -> None:
    x = tj.Variable([1.5, 2.5])
    with tj.GradientTape() as tape:
        y = x.astype(dtype).astype("float32") * 2.0
    assert tape.gradient(y, x) is None


@pytest.mark.parametrize("through", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("source", ["float16", "bfloat16", "float32", "float64"])
def test_s26_casts_between_floats_differentiate(source: str, through: str) -> None:
    x = tj.Variable([1.5, 2.5], dtype=source)
    with tj.GradientTape() as tape:
        y = tj.sum(tj.astype(tj.astype(x, through) * 2.0, source) * 3.0)
    g = tape.gradient(y, x)
    assert g.dtype == x.dtype
    assert g.numpy().astype(float).tolist() == [6.0, 6.0]


def test_s26_so_do_casts_from_real_to_complex_numbers() -> None:
    x = tj.Variable(3.0)
    with tj.GradientTape() as tape:
        z = tj.astype(x, tj.complex64) * (1 + 2j)
        y = tj.real(z * z)
    assert float(tape.gradient(y, x)) == 2 * 3 * (1 - 4)


def test_s26_a_cast_to_the_same_dtype_keeps_the_path() -> None:
    x = tj.Variable([1.5, 2.5])
    with tj.GradientTape() as tape:
        y = tj.astype(x, tj.float32) * 2.0
    assert tape.gradient(y, x).tolist() == [2.0, 2.0]


# 31: tensors as Python objects


def test_s31_item_assignment_is_a_type_error_with_a_way_out() -> None:
    x = tj.asarray([1.0, 2.0])
    with pytest.raises(TypeError, match=r"\.at\[|scatter") as caught:
        x[0] = 5.0
    with pytest.raises(TypeError):
        x[0] += 5.0
    with pytest.raises(TypeError):
        del x[0]
    assert x.tolist() == [1.0, 2.0]
    if "x.at[" in str(caught.value):
        assert x.at[0].set(5.0).tolist() == [5.0, 2.0]
    else:
        assert "tj.scatter_add(x, i, v)" in str(caught.value)
        assert tj.scatter_add(x, 0, 4.0).tolist() == [5.0, 2.0]


def test_s31_augmented_assignment_makes_a_new_tensor() -> None:
    x = kept = tj.asarray([1.0, 2.0])
    x += 1.0
    x *= 2.0
    assert x.tolist() == [4.0, 6.0]
    assert kept.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("attribute", ["shape", "dtype", "T", "real"])
def test_s31_attributes_cannot_be_set(attribute: str) -> None:
    x = tj.asarray([1.0, 2.0])
    with pytest.raises(AttributeError):
        setattr(x, attribute, None)


@pytest.mark.parametrize("make", [tj.asarray, tj.Variable])
def test_s31_unhashable_with_ref_as_a_key(make: Any) -> None:
    x, other = make([1.0, 2.0]), make([1.0, 2.0])
    with pytest.raises(TypeError, match="unhashable"):
        hash(x)
    with pytest.raises(TypeError, match="unhashable"):
        {x: 1}
    assert x.ref() == x.ref()
    assert x.ref() != other.ref()
    assert hash(x.ref()) == hash(x.ref())
    assert {x.ref(): "x", other.ref(): "other"}[x.ref()] == "x"
    assert x.ref().deref() is x
    assert len({x.ref(), x.ref(), other.ref()}) == 2


def test_s31_equality_works_element_by_element() -> None:
    x = tj.asarray([1.0, 2.0])
    assert (x == tj.asarray([1.0, 3.0])).tolist() == [True, False]
    assert (x != 1.0).tolist() == [False, True]
    assert (x == np.array([1.0, 2.0])).tolist() == [True, True]
    assert (x == x).dtype == np.bool_
    assert (x == None) is False  # noqa: E711  # what is tested
    assert (x != "x") is True


VALUES = [
    0,
    3,
    -2,
    0.0,
    2.5,
    -0.7,
    float("nan"),
    True,
    False,
    1 + 2j,
    [1.0],
    [[0]],
    [[[2.5]]],
    [1, 2],
    [],
    [[1.0, 2.0], [3.0, 4.0]],
]
PROTOCOLS = {
    "bool": bool,
    "len": len,
    "index": operator.index,
    "range": lambda x: list(range(x)),
    "list index": lambda x: "abcdefgh"[x],
    "not": operator.not_,
    "tolist": lambda x: x.tolist(),
    "item": lambda x: x.item(),
    "iteration": lambda x: [part.tolist() for part in x],
    "unpacking": lambda x: [part.tolist() for part in (lambda a, b: (a, b))(*x)],
    "contains": lambda x: 2.5 in x,
}


@pytest.mark.parametrize("make", [tj.asarray, tj.Variable])
@pytest.mark.parametrize("value", VALUES, ids=str)
@pytest.mark.parametrize("name", PROTOCOLS)
def test_s31_pythons_protocols_are_numpys(name: str, value: Any, make: Any) -> None:
    x = make(value)
    expected = outcome(PROTOCOLS[name], x.numpy())
    got = outcome(PROTOCOLS[name], x)
    assert repr(got) == repr(expected)


@pytest.mark.parametrize("make", [tj.asarray, tj.Variable])
@pytest.mark.parametrize("value", [v for v in VALUES if not isinstance(v, list)])
def test_s31_numbers_without_axes_convert(value: Any, make: Any) -> None:
    x = make(value)
    assert repr(complex(x)) == repr(complex(np.complex64(value)))
    if not isinstance(value, complex):
        assert repr(float(x)) == repr(float(np.float32(value)))
    if not isinstance(value, complex) and value == value:
        assert int(x) == int(value)


@pytest.mark.parametrize("convert", [float, int, complex])
@pytest.mark.parametrize("value", [[1.0, 2.0], [], [[1.0], [2.0]]], ids=str)
def test_s31_more_than_one_number_does_not(convert: Any, value: Any) -> None:
    with pytest.raises(TypeError):
        convert(tj.asarray(value))


def test_s31_bool_of_several_elements_says_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"tj\.any.*tj\.all"):
        bool(tj.asarray([True, False]))
    with pytest.raises(ValueError, match="2 elements"):
        _ = tj.asarray([1.0, 2.0]) > 0 and True


def test_s31_iteration_is_recorded() -> None:
    x = tj.Variable([[1.0, 2.0], [3.0, 4.0]])
    with tj.GradientTape() as tape:
        first, second = x
        y = tj.sum(first * second)
    assert tape.gradient(y, x).tolist() == [[3.0, 4.0], [1.0, 2.0]]
