"""Which calls of a function share a trace (lines 46, 47 and 49)."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import OrderedDict, namedtuple
from typing import Any

import numpy as np
import pytest

import tapejit as tj

Point = namedtuple("Point", "x y")


def counted(body: Any, **options: Any) -> tuple[Any, list[int]]:
    """The decorated function, and a list that grows each time its body runs."""
    runs: list[int] = []

    @functools.wraps(body)
    def counting(*args: Any, **kwargs: Any) -> Any:
        runs.append(1)
        return body(*args, **kwargs)

    return tj.function(**options)(counting), runs


def twice(x: Any) -> Any:
    return x * 2


def scaled(x: Any, factor: Any = 2.0) -> Any:
    return x * factor


X = tj.asarray([1.0, 2.0])


# Tensors and arrays


def test_s46_tensors_are_keyed_by_dtype_and_shape() -> None:
    f, runs = counted(twice)
    for x in (tj.ones(2), tj.zeros(2), tj.full((2,), 7.0)):
        np.testing.assert_array_equal(f(x), x.numpy() * 2)
    assert len(runs) == f.trace_count == 1
    others = [tj.ones(3), tj.ones((2, 1)), tj.ones(2, dtype="float64"), tj.ones(())]
    for x in others:
        f(x)
        f(x)
    assert len(runs) == f.trace_count == 5


def test_s46_an_array_and_a_tensor_of_one_type_share_a_trace() -> None:
    f, runs = counted(twice)
    values = np.array([1.0, 2.0], np.float32)
    for x in (tj.asarray(values), values, values[::-1], np.asfortranarray(values)):
        np.testing.assert_array_equal(f(x), np.asarray(x) * 2)
    assert len(runs) == 1


def test_s46_arrays_of_every_dtype_and_order_are_right() -> None:
    for kind in ("int8", "uint16", "int64", "float16", "float64", "complex64"):
        f, _ = counted(twice)
        x = np.array([1, 2, 3], kind)
        out = f(x)
        assert out.dtype == x.dtype
        np.testing.assert_array_equal(out, x * x.dtype.type(2))
    swapped = np.array([1.0, 2.0], ">f4")
    np.testing.assert_array_equal(f(swapped), [2.0, 4.0])


def test_s46_numpy_scalars_are_inputs_or_weak_floats() -> None:
    f, runs = counted(twice)
    assert f(np.int32(3)).dtype == np.int32
    assert float(f(np.int32(4))) == 8.0
    assert len(runs) == 1, "an integer scalar is an array without axes"
    assert f(np.float64(1.5)).dtype == np.float64, "twice a NumPy scalar is one"
    g = tj.function(lambda s: s * tj.ones(2))
    assert g(np.float64(1.5)).dtype == np.float32, "a floating scalar is weak"


def test_s46_a_result_does_not_see_what_happens_to_an_argument_later() -> None:
    same = tj.function(lambda x: (x, x[1:], x.reshape(2, 2), tj.exp(x)))
    x = np.arange(4, dtype=np.float32)
    results = same(x), same(x)
    x[:] = -1
    for out in results:
        np.testing.assert_array_equal(out[0], [0, 1, 2, 3])
        np.testing.assert_array_equal(out[1], [1, 2, 3])
        np.testing.assert_array_equal(out[2], [[0, 1], [2, 3]])


# Python values


def test_s46_one_value_of_three_types_makes_three_traces() -> None:
    f, runs = counted(scaled)
    dtypes = [f(tj.asarray([3]), n).dtype for n in (1, 1.0, True)]
    assert dtypes == [np.int32, np.float32, np.int32]
    assert len(runs) == 3
    assert [f(tj.asarray([3]), n).dtype for n in (1, 1.0, True)] == dtypes
    assert len(runs) == 3


@pytest.mark.parametrize(
    "values",
    [
        (1, 2, -1, 10**20),
        (True, False),
        ("sum", "mean", ""),
        (None, 0),
        (b"a", "a"),
        (1j, 2j, complex(0, -0.0)),
        (("a", 1), ("a", 2), ("a", 1, 2)),
    ],
)
def test_s46_static_values_are_keyed_by_value(values: tuple[Any, ...]) -> None:
    seen = []

    @tj.function
    def f(x: Any, value: Any) -> Any:
        seen.append(value)
        return x

    for value in values * 2:
        f(X, value)
    assert seen == list(values)


def test_s46_signed_zero_and_nan_are_values_of_their_own() -> None:
    seen = []

    @tj.function(static="value")
    def f(x: Any, value: float) -> Any:
        seen.append(value)
        return x * value

    for value in (0.0, -0.0, math.nan, 0.0, -0.0, math.nan, float("nan")):
        out = f(tj.asarray(1.0), value).numpy()
        assert math.copysign(1, out) == math.copysign(1, value) or math.isnan(value)
        assert math.isnan(out) == math.isnan(value)
    assert len(seen) == 3


def test_s46_complex_signed_zeros_differ() -> None:
    @tj.function
    def f(value: complex) -> Any:
        return tj.asarray(value)

    for value in (complex(0.0, -0.0), complex(0.0, 0.0), complex(-0.0, 1.0), 1j):
        out = f(value).numpy()
        assert math.copysign(1, out.real) == math.copysign(1, value.real)
        assert math.copysign(1, out.imag) == math.copysign(1, value.imag)


# Floats that change


def test_s46_a_float_that_changes_becomes_an_input() -> None:
    f, runs = counted(scaled)
    for rate in (0.5, 0.25, 0.125, -0.0, math.inf, 3.0):
        np.testing.assert_array_equal(f(X, rate), np.array([1, 2], "f4") * rate)
    assert math.isnan(f(X, math.nan).numpy()[0])
    assert len(runs) == f.trace_count == 2
    assert f(X, 0.5).numpy()[0] == 0.5
    assert len(runs) == 2


def test_s46_each_of_several_floats_changes_in_its_own_time() -> None:
    f, runs = counted(lambda x, a, b: x * a + b)
    expected = []
    for a, b in ((1.0, 2.0), (1.5, 2.0), (2.5, 2.0), (2.5, 3.0), (4.0, 5.0)):
        expected.append(f(X, a, b).numpy()[0] == a + b)
    assert all(expected)
    assert len(runs) == 3


def test_s46_floats_in_structures_become_inputs_too() -> None:
    f, runs = counted(lambda x, rates: x * rates["a"] - rates["b"][0])
    for step in range(6):
        out = f(X, {"a": 1.0 + step, "b": [0.5 * step]})
        assert float(out[0]) == 1.0 + step - 0.5 * step
    assert len(runs) == 2


def test_s46_a_float_by_keyword_and_by_default_are_one_argument() -> None:
    f, runs = counted(scaled)
    assert f(X).numpy()[0] == 2.0
    for rate in (0.5, 0.25, 0.125):
        assert f(X, factor=rate).numpy()[0] == rate
        assert f(X, rate).numpy()[0] == rate
    assert f(X).numpy()[0] == 2.0
    assert len(runs) == 2


@pytest.mark.parametrize(
    "use",
    [
        lambda x, rate: x * (rate * 2 + 1) - rate / 4,
        lambda x, rate: x - (-rate) + (1 - rate) * (2.0 - rate),
        lambda x, rate: tj.where(x > rate, x, rate),
        lambda x, rate: x**rate + rate**x,
        lambda x, rate: tj.maximum(rate, x) / rate,
        lambda x, rate: tj.asarray(rate) + x,
        lambda x, rate: np.multiply(x, rate),
        lambda x, rate: (x * rate, rate),
    ],
)
def test_s46_a_changing_float_computes_as_a_number_would(use: Any) -> None:
    f, runs = counted(use)
    for rate in (0.1, 0.3, 1e-3, 7.7):
        for x in (X, tj.asarray([1.0, 2.0], dtype="float64")):
            out, expected = f(x, rate), use(x, rate)
            for mine, theirs in zip(
                tj.tree.flatten(out)[0], tj.tree.flatten(expected)[0], strict=True
            ):
                assert mine.dtype == tj.asarray(theirs).dtype
                np.testing.assert_array_equal(mine, tj.asarray(theirs))
    assert len(runs) <= 4, "two per type of x"


@pytest.mark.parametrize(
    "use",
    [
        lambda x, rate: x * math.exp(rate),
        lambda x, rate: x + 1 if rate > 0.5 else x - 1,
        lambda x, rate: x * int(rate * 10),
        lambda x, rate: x * round(rate, 1),
        lambda x, rate: x * (rate**2),
        lambda x, rate: x + (rate // 0.25) + rate % 0.25,
        lambda x, rate: x * {0.5: 1.0}.get(rate, 2.0),
        lambda x, rate: x * len(f"{rate:.3f}"),
        lambda x, rate: x * float(rate),
        lambda x, rate: x * (1 / rate),
        lambda x, rate: x * abs(rate) + (rate == 0.5) + bool(rate),
        lambda x, rate: x * rate.hex().count("0"),
        lambda x, rate: x * max(rate, 0.3) + sum([rate, rate]),
        lambda x, rate: x * np.float32(rate),
        lambda x, rate: x * np.exp(rate),
        lambda x, rate: x * isinstance(rate, float),
    ],
)
def test_s46_a_float_whose_value_is_asked_for_stays_static(use: Any) -> None:
    f, _ = counted(use)
    for rate in (0.5, 0.25, 0.9, 0.5, -0.3, 0.25):
        out, expected = f(X, rate), use(X, rate)
        assert out.dtype == expected.dtype
        np.testing.assert_array_equal(out, expected)


def test_s46_a_static_float_is_found_again() -> None:
    f, runs = counted(lambda x, rate: x + 1 if rate > 0.5 else x - 1)
    rates = (0.1, 0.2, 0.9, 0.8)
    for rate in rates:
        f(X, rate)
    before = len(runs)
    for rate in rates:
        assert f(X, rate).numpy()[0] == (2.0 if rate > 0.5 else 0.0)
    assert len(runs) == before


def test_s46_a_changing_float_leaves_gradients_as_they_were() -> None:
    v = tj.Variable([1.0, 2.0])

    @tj.function
    def step(rate: float) -> Any:
        with tj.GradientTape() as tape:
            loss = tj.sum(v * v * rate)
        return tape.gradient(loss, v)

    for rate in (0.5, 0.25, 4.0):
        np.testing.assert_array_equal(step(rate), [2 * rate, 4 * rate])
    assert step.trace_count == 2


# static= and dynamic=


def test_s46_a_static_float_traces_for_every_value() -> None:
    f, runs = counted(scaled, static="factor")
    for rate in (0.5, 0.25, 0.125, 0.5):
        assert f(X, rate).numpy()[0] == rate
    assert len(runs) == 3


@pytest.mark.parametrize("values", [(1, 2, 3), (0.5, 1.5, 2.5), (True, False, True)])
def test_s46_a_dynamic_number_traces_once(values: Any) -> None:
    f, runs = counted(scaled, dynamic=["factor"])
    for value in values:
        out = f(X, factor=value)
        assert out.dtype == np.float32
        assert out.numpy()[1] == 2 * value
    assert len(runs) == 1


def test_s46_static_and_dynamic_name_parameters() -> None:
    with pytest.raises(TypeError, match="no parameter rate"):
        tj.function(static="rate")(scaled)
    with pytest.raises(TypeError, match="no parameter rate"):
        tj.function(dynamic=("rate", "x"))(scaled)
    with pytest.raises(TypeError, match="argument x is a tensor and cannot be static"):
        tj.function(static="x")(scaled)(X)


# Structures and spellings


def test_s46_list_and_tuple_differ() -> None:
    seen = []

    @tj.function
    def f(pair: Any) -> Any:
        seen.append(type(pair))
        return pair[0] + pair[1]

    for _ in range(2):
        for pair in ([X, X], (X, X), Point(X, X)):
            np.testing.assert_array_equal(f(pair), [2.0, 4.0])
    assert seen == [list, tuple, Point]


def test_s46_the_order_of_a_dict_does_not_matter() -> None:
    f, runs = counted(lambda d: d["a"] - d["b"])
    for d in ({"a": X, "b": tj.ones(2)}, {"b": tj.ones(2), "a": X}):
        np.testing.assert_array_equal(f(d), [0.0, 1.0])
    assert len(runs) == 1
    f({"a": X, "b": X, "c": X})
    assert len(runs) == 2


def test_s46_mappings_and_dataclasses_are_structures() -> None:
    @dataclasses.dataclass
    class Batch:
        x: Any
        scale: float

    f, runs = counted(lambda b: b.x * b.scale)
    for scale in (1.0, 2.0, 3.0, 4.0):
        assert f(Batch(X, scale)).numpy()[1] == 2 * scale
    assert len(runs) == 2
    g, runs = counted(lambda d: d["x"] * d["y"])
    g(OrderedDict(x=X, y=X))
    g(OrderedDict(y=X, x=X))
    assert len(runs) == 1


def test_s46_positional_keyword_and_default_spell_the_same_call() -> None:
    def body(x: Any, y: Any = 1, *, flip: bool = False) -> Any:
        return y - x if flip else x - y

    f, runs = counted(body)
    for out in (f(X), f(X, 1), f(X, y=1), f(x=X), f(y=1, x=X), f(X, flip=False)):
        np.testing.assert_array_equal(out, [0.0, 1.0])
    assert len(runs) == 1
    np.testing.assert_array_equal(f(flip=True, x=X), [0.0, -1.0])
    assert len(runs) == 2


def test_s46_none_and_a_tensor_are_different_calls() -> None:
    f, runs = counted(lambda x, mask=None: x if mask is None else x * mask)
    np.testing.assert_array_equal(f(X), X)
    np.testing.assert_array_equal(f(X, tj.zeros(2)), [0.0, 0.0])
    np.testing.assert_array_equal(f(X, None), X)
    assert len(runs) == 2


def test_s46_a_call_that_does_not_fit_the_signature_raises_as_python_does() -> None:
    f = tj.function(scaled)
    for call in (lambda: f(), lambda: f(X, 1, 2), lambda: f(X, rate=1)):
        with pytest.raises(TypeError, match="argument"):
            call()
    assert f.trace_count == 0


def test_s46_the_default_float_is_part_of_the_call() -> None:
    f, runs = counted(lambda x: x + tj.ones(2))
    assert f(X).dtype == np.float32
    with tj.config.override(default_float="float64"):
        assert f(X).dtype == np.float64
    assert f(X).dtype == np.float32
    assert len(runs) == 2


# Variables as arguments


def test_s46_variables_are_keyed_by_their_type() -> None:
    f, runs = counted(lambda v: v * 2)
    for value in (1.0, 2.0, 3.0):
        assert float(f(tj.Variable(value))) == 2 * value
    assert len(runs) == 1, "any variable will do"
    f(tj.Variable([1.0]))
    f(tj.Variable(1.0, dtype="float64"))
    f(tj.Variable(1.0, trainable=False))
    assert len(runs) == 4


def test_s46_variables_are_bound_at_each_call() -> None:
    @tj.function
    def swap_add(a: Any, b: Any) -> Any:
        a.assign_add(b)
        b.assign(a * 10)
        return a + b

    for x, y in ((1.0, 2.0), (3.0, 4.0), (5.0, 6.0)):
        a, b = tj.Variable(x), tj.Variable(y)
        assert float(swap_add(a, b)) == (x + y) * 11
        assert (float(a), float(b)) == (x + y, (x + y) * 10)
    assert swap_add.trace_count == 1


def test_s46_aliasing_is_part_of_the_key() -> None:
    @tj.function
    def f(a: Any, b: Any) -> Any:
        a.assign(5.0)
        return b * 1

    v, w = tj.Variable(1.0), tj.Variable(2.0)
    assert float(f(v, w)) == 2.0
    v.assign(1.0)
    assert float(f(v, v)) == 5.0
    assert float(f(w, v)) == 5.0
    assert float(f(w, w)) == 5.0
    assert len(f.signatures()) == 2


def test_s46_an_argument_that_is_captured_too_is_one_variable() -> None:
    shared = tj.Variable(1.0)

    @tj.function
    def f(v: Any) -> Any:
        shared.assign_add(10.0)
        v.assign_add(1.0)
        return shared + v

    other = tj.Variable(100.0)
    assert float(f(other)) == 11.0 + 101.0
    assert float(f(shared)) == 44.0
    assert float(f(other)) == 32.0 + 102.0
    assert float(f(shared)) == 86.0
    assert float(shared) == 43.0


def test_s46_a_variable_and_a_tensor_are_different_calls() -> None:
    f, runs = counted(lambda x: x * 2)
    v = tj.Variable([1.0, 2.0])
    np.testing.assert_array_equal(f(v), f(v.value()))
    assert len(runs) == 2


def test_s46_a_function_that_asks_which_variable_it_is_gets_a_trace_for_each() -> None:
    slots: dict[Any, tj.Variable] = {}

    @tj.function
    def step(v: Any) -> Any:
        if v.ref() not in slots:
            slots[v.ref()] = tj.Variable(0.0)
        slots[v.ref()].assign_add(v)
        return slots[v.ref()] * 1

    a, b = tj.Variable(1.0), tj.Variable(2.0)
    found = [float(step(v)) for v in (a, b, a, b)]
    assert found == [1.0, 2.0, 2.0, 4.0]


# Objects


class Scale:
    def __init__(self, by: float) -> None:
        self.by = by

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Scale) and other.by == self.by

    def __hash__(self) -> int:
        return hash(self.by)


def test_s47_objects_are_keyed_by_equality() -> None:
    f, runs = counted(lambda x, s: x * s.by)
    for by in (2.0, 3.0, 2.0, 3.0):
        assert f(X, Scale(by)).numpy()[0] == by
    assert len(runs) == 2


def test_s47_objects_without_equality_are_keyed_by_identity() -> None:
    class Layer:
        def __init__(self, w: float) -> None:
            self.w = tj.Variable(w)

    f, runs = counted(lambda x, layer: x * layer.w)
    one, two = Layer(2.0), Layer(3.0)
    for layer in (one, two, one, two):
        np.testing.assert_array_equal(f(X, layer), X * layer.w)
    assert len(runs) == 2


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda f, bad: f(X, bad), "argument factor"),
        (lambda f, bad: f(X, factor=bad), "argument factor"),
        (lambda f, bad: f(X, {"deep": [1, bad]}), r"argument factor\['deep'\]\[1\]"),
    ],
)
def test_s47_an_unhashable_argument_is_named(call: Any, name: str) -> None:
    class Bad:
        __hash__ = None  # type: ignore[assignment]  # what is tested

    f, runs = counted(scaled)
    for bad in (Bad(), {1, 2}, bytearray(b"a")):
        with pytest.raises(TypeError, match=f"{name} is a {type(bad).__name__}"):
            call(f, bad)
    assert not runs


def test_s47_lambdas_are_keyed_by_identity() -> None:
    f, runs = counted(lambda x, op: op(x))
    double, triple = (lambda x: x * 2), (lambda x: x * 3)
    for op, expected in ((double, 2.0), (triple, 3.0), (double, 2.0)):
        assert f(X, op).numpy()[0] == expected
    assert len(runs) == 2
    f(X, lambda x: x * 2)
    assert len(runs) == 3


def test_s47_enums_dtypes_and_classes_are_values() -> None:
    f, runs = counted(lambda x, kind: x.astype(kind))
    for kind in (np.float64, np.dtype("float64"), "float16", np.float64):
        assert f(X, kind).dtype == np.dtype(kind)
    assert len(runs) == 3
