"""`fn.numba`: compiled functions called from code that Numba compiles."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import pytest

import tapejit as tj
from tapejit.targets.cpu.machine import numba_host

Array = np.ndarray[Any, Any]
SPEC = tj.TensorSpec([5])
pytestmark = pytest.mark.usefixtures("with_native_code")


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(3)


@pytest.fixture
def x(rng: np.random.Generator) -> Array:
    return rng.normal(size=5).astype(np.float32)


def loss(w: Any, x: Any) -> Any:
    return tj.mean(tj.square(tj.tanh(w * x) - 1))


def same(found: Any, expected: Any) -> None:
    """Equal values and dtypes, in tuples of the same shape."""
    if isinstance(expected, (tuple, list)):
        assert isinstance(found, tuple)
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            same(one, other)
    elif expected is None:
        assert found is None
    else:
        np.testing.assert_array_equal(found, np.asarray(expected))
        if expected.ndim:
            assert found.dtype == expected.dtype


def test_values_and_gradients_are_those_of_the_function(x: Array) -> None:
    traced = tj.function(tj.value_and_grad(loss, argnums=(0, 1)))
    compiled = traced.numba(SPEC, SPEC)
    w = x[::-1].copy()
    same(compiled(w, x), traced(w, x))

    @numba.njit
    def twice(w: Array, x: Array) -> Any:
        value, (by_w, by_x) = compiled(w, x)
        return value, by_w - by_x, compiled(by_w, by_x)[0]

    value, (by_w, by_x) = traced(w, x)
    same(twice(w, x), (value, by_w - by_x, traced(by_w, by_x)[0]))


def test_nested_results_scalars_and_none(x: Array) -> None:
    @tj.function
    def several(x: Any, rate: Any, pair: Any) -> Any:
        first, (second, third) = pair
        return (x * rate, [first + second, None]), tj.sum(third), x > 0

    pair = (x, (x + 1, np.ones((2, 3))))
    specs = (SPEC, (SPEC, tj.TensorSpec([2, 3], "float64")))
    compiled = several.numba(SPEC, tj.TensorSpec([]), specs)
    expected = several(x, np.float32(0.5), pair)
    same(compiled(x, 0.5, pair), expected)

    @numba.njit
    def call(x: Array, pair: Any) -> Any:
        return compiled(x, 0.5, pair)

    same(call(x, pair), expected)
    same(compiled(x, np.array(0.5, np.float32), pair), expected)


def test_a_number_is_taken_as_numba_converts_it(x: Array) -> None:
    count = tj.function(lambda x, n: (x * 2, n + 1))
    compiled = count.numba(tj.TensorSpec([]), tj.TensorSpec([], "int64"))
    assert compiled(3, 4) == (6.0, 5)
    assert compiled(True, True) == (2.0, 2)
    with pytest.raises(ValueError, match=r"<lambda>: n must be i64\[\], got float64"):
        compiled(3, 4.0)


def test_complex_arguments_and_results() -> None:
    turned = tj.function(lambda x, c: (x * c, tj.sum(x) + 1j))
    specs = (tj.TensorSpec([3], "complex64"), tj.TensorSpec([], "complex64"))
    compiled = turned.numba(*specs)
    x = np.array([1 + 2j, 3j, 4], np.complex64)
    for c in (2j, 3.0, np.complex64(1 - 1j)):
        same(compiled(x, c), turned(x, np.complex64(c)))


def test_what_is_no_tensor_is_fixed(x: Array) -> None:
    power = tj.function(lambda x, n, scale: scale * x**n)
    compiled = power.numba(SPEC, 3, 0.5)
    same(compiled(x), power(x, 3, 0.5))


def test_every_dtype_of_numba() -> None:
    kinds = ("float64", "float32", "int8", "uint16", "int32", "uint64", "bool")
    for name in (*kinds, "complex64", "complex128"):
        double = tj.function(lambda x: x + x)
        given = np.array([[0, 1], [1, 1]]).astype(name)
        kind = tj.TensorSpec([2, 2], name)
        same(double.numba(kind)(given), double(given))
        same(tj.function(tj.sum).numba(kind)(given), tj.sum(given))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (np.ones(5), r"loss: x must be f32\[5\], got array\(float64, 1d, C\)"),
        (np.ones((5, 1), np.float32), r"x must be f32\[5\], got array\(float32, 2d"),
        (np.ones(4, np.float32), r"x must be f32\[5\], its shape is another"),
        (np.ones(10, np.float32)[::2], r"x must be f32\[5\], in order C: np.ascont"),
        (1.0, r"x must be f32\[5\], got float64"),
        ((np.ones(5), 1), r"x must be f32\[5\], got (Uni)?Tuple"),
    ],
)
def test_wrong_arguments_are_named(given: Any, said: str, x: Array) -> None:
    compiled = tj.function(loss).numba(SPEC, SPEC)

    @numba.njit
    def call(w: Array, x: Any) -> Any:
        return compiled(w, x) + 1

    for each in (compiled, call):
        with pytest.raises(ValueError, match=said):
            each(x, given)
    wrong = np.ones(3, np.float32)
    with pytest.raises(ValueError, match="w must be"):
        compiled(wrong, x)


def test_strides_of_axes_of_size_one_do_not_matter() -> None:
    double = tj.function(lambda x: x + x).numba(tj.TensorSpec([1, 3]))
    wide = np.arange(6, dtype=np.float32).reshape(2, 3)
    same(double(wide[::2]), wide[::2] * 2)
    with pytest.raises(ValueError, match="in order C"):
        double(wide[:1, ::-1])


def test_in_prange_and_with_an_arena_on_the_heap(rng: np.random.Generator) -> None:
    @tj.function
    def network(x: Any, w: Any) -> Any:
        hidden = tj.nn.relu(x @ w)
        return tj.sum(tj.nn.softmax(hidden @ w) * hidden, axis=-1)

    for size in (8, 96):
        w = rng.normal(size=(size, size)).astype(np.float32)
        batches = rng.normal(size=(12, size, size)).astype(np.float32)
        spec = tj.TensorSpec([size, size])
        compiled = network.numba(spec, spec)

        @numba.njit(parallel=True)
        def all_of(batches: Array, w: Array, compiled: Any = compiled) -> Array:
            out = np.empty(batches.shape[:2], np.float32)
            for at in numba.prange(len(batches)):
                out[at] = compiled(batches[at], w)
            return out

        expected = [network(x, w) for x in batches]
        for _ in range(3):
            np.testing.assert_array_equal(all_of(batches, w), expected)


def test_parallel_and_serial_code_give_the_same_bits(rng: np.random.Generator) -> None:
    spec = tj.TensorSpec([700, 300])
    total = tj.function(lambda x: tj.sum(tj.exp(x), axis=0))
    given = rng.normal(size=(700, 300)).astype(np.float32)
    serial, parallel = total.numba(spec), total.numba(spec, parallel=True)
    same(serial(given), total(given))
    same(parallel(given), total(given))


def test_threads_call_it_at_once(x: Array) -> None:
    traced = tj.function(tj.value_and_grad(loss))
    compiled = traced.numba(SPEC, SPEC)
    expected = traced(x, x)
    compiled(x, x)
    results: list[Any] = []

    def work() -> None:
        results.extend(compiled(x, x) for _ in range(200))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 800
    for each in results:
        same(each, expected)


def test_results_are_new_arrays(x: Array) -> None:
    same_again = tj.function(lambda x: (x + 0, x)).numba(SPEC)
    first, second = same_again(x)
    first[:] = 7
    second[:] = 8
    assert not {7, 8} & set(x)


# State and life


def test_variables_keep_the_values_of_then(x: Array) -> None:
    w = tj.Variable(np.ones(5, np.float32))
    scale = tj.asarray(np.full(5, 2, np.float32))
    scaled = tj.function(lambda x: w * x * scale)
    compiled = scaled.numba(SPEC)
    w.assign(np.full(5, 10, np.float32))
    same(compiled(x), x * 2)
    same(scaled.numba(SPEC)(x), x * 20)


def test_the_code_lives_as_long_as_whoever_calls_it(x: Array) -> None:
    def make() -> Callable[[Array], Any]:
        captured = tj.asarray(x * 3)
        compiled = tj.function(lambda x: x * captured).numba(SPEC)
        return numba.njit(lambda x: compiled(x))

    call = make()
    expected = call(x)
    call.py_func = None  # what Numba has compiled is left
    for _ in range(3):
        gc.collect()
        tj.function(lambda x: tj.exp(x) + 1)(x)
    same(call(x), expected)
    same(expected, x * (x * 3))


def test_numba_keeps_no_such_code_on_disk(x: Array, tmp_path: Any) -> None:
    compiled = tj.function(lambda x: x * 2).numba(SPEC)

    @numba.njit
    def call(x: Array) -> Any:
        return compiled(x)

    call(x)
    (made,) = call.overloads.values()
    assert made.library.has_dynamic_globals


# Failures


def test_a_failure_names_the_operation_and_its_line() -> None:
    @tj.function
    def picked(x: Any, at: Any, matrix: Any) -> Any:
        first = tj.take(x, at)
        return first + tj.linalg.inv(matrix)[0, 0]

    specs = (SPEC, tj.TensorSpec([], "int64"), tj.TensorSpec([2, 2]))
    compiled = picked.numba(*specs)
    x, eye = np.arange(5, dtype=np.float32), np.eye(2, dtype=np.float32)
    same(compiled(x, 3, eye), picked(x, 3, eye))

    @numba.njit
    def call(x: Array, at: int, matrix: Array) -> Any:
        return compiled(x, at, matrix)

    for each in (compiled, call):
        with pytest.raises(IndexError, match=r"(?s)outside its axis.*tj\.take") as one:
            each(x, 5, eye)
        assert isinstance(one.value, tj.OutOfRangeError)
        with pytest.raises(np.linalg.LinAlgError, match=r"(?s)singular.*linalg\.inv"):
            each(x, 0, eye * 0)

    @numba.njit
    def caught(x: Array, at: int, matrix: Array) -> Any:
        try:
            return compiled(x, at, matrix)
        except Exception:
            return -1.0

    assert caught(x, 7, eye) == -1
    assert caught(x, 2, eye) == 3


# What is refused


def effect(x: Any) -> Any:
    tj.print("x is", x)
    return x


def open_guard(x: Any) -> Any:
    return x * 2 if tj.sum(x) > 0 else x


def host_only(x: Any) -> Any:
    return tj.sum(tj.fft.fft(x).real)


def drawn(x: Any) -> Any:
    return x + tj.random.normal(x.shape)


def checked(x: Any) -> Any:
    tj.debug.assert_greater(x, 0)
    return x


STATE = tj.Variable(np.zeros(5, np.float32), name="state")


def assigned(x: Any) -> Any:
    STATE.assign_add(x)
    return x


def dictionary(x: Any) -> Any:
    return {"x": x + 1}


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (effect, r"(?s)print\w* is an effect.*tj\.print\("),
        (host_only, r"(?s)has no native code.*tj\.fft\.fft"),
        (drawn, r"(?s)it assigns .*key=key"),
        (checked, r"(?s)check\w* is an effect.*assert_greater"),
        (assigned, r"(?s)it assigns state.*STATE\.assign_add"),
        (dictionary, r"(?s)it returns \{'x': \*\}.*tuples"),
    ],
)
def test_what_needs_python_is_refused(function: Any, said: str) -> None:
    with pytest.raises(tj.UnsupportedError, match=rf"{function.__name__} as a Numba"):
        tj.function(function).numba(SPEC)
    with pytest.raises(tj.UnsupportedError, match=said):
        tj.function(function).numba(SPEC)
    np.testing.assert_array_equal(STATE, np.zeros(5))


def test_an_open_guard_is_refused(x: Array) -> None:
    with pytest.raises(tj.ArgumentError, match=r"(?s)value of x.*tj\.sum\(x\) > 0"):
        tj.function(open_guard).numba(SPEC)
    with pytest.raises(tj.UnsupportedError, match=r"(?s)depends on.*tj\.sum\(x\) > 0"):
        tj.function(open_guard).numba(tj.asarray(x))


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (tj.TensorSpec([None]), "is of open size"),
        (tj.TensorSpec([0]), "is empty"),
        (tj.TensorSpec([2], "float16"), "no arrays of float16"),
        ({"x": SPEC}, "x is no tensor or tuple of tensors"),
        (STATE, "an argument is a Variable"),
    ],
)
def test_specs_that_cannot_be(spec: Any, said: str) -> None:
    double = tj.function(total)
    with pytest.raises(tj.UnsupportedError, match=said):
        double.numba(spec)


def total(x: Any) -> Any:
    return x["x"] + 1 if isinstance(x, dict) else x + x


def test_without_native_code_there_is_nothing_to_call() -> None:
    with (
        tj.config.override(native=False),
        pytest.raises(tj.UnsupportedError, match="native code is switched off"),
    ):
        tj.function(lambda x: x + 3.25).numba(SPEC)


def test_a_numba_that_has_changed_is_named(monkeypatch: Any, x: Array) -> None:
    compiled = tj.function(lambda x: x - 4).numba(SPEC)
    monkeypatch.setattr(numba_host, "LIBRARY_PARTS", ("no_such_part",))
    with pytest.raises(Exception, match=r"does not host .*no_such_part"):
        compiled(x)
