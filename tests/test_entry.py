"""Native entries: right results, and every reason to miss."""

from __future__ import annotations

import ctypes
import gc
import pickle
import sys
import weakref
from collections import OrderedDict
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from typing import Any

import numpy as np
import pytest
from entries import (
    adding,
    config_module,
    entry_of,
    needs_native_entries,
    of,
    rising,
    simple,
)

import tapejit as tj
from tapejit.base.config import config
from tapejit.base.dims import parse_dim
from tapejit.base.errors import ArgumentError
from tapejit.base.tree import structure
from tapejit.runtime.native_entry import MISS, EntrySpec, make_entry
from tapejit.tensor.dispatch import TAPES
from tapejit.tensor.tensor import Tensor

DTYPES = ("bool", *("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"), "f2", "f4", "f8")

pytestmark = needs_native_entries


class Sub(np.ndarray):
    """An array that is not exactly one."""


# Results


def test_arrays_and_tensors_give_a_tensor() -> None:
    x = rising()
    for one, other in ((x, x), (x, tj.asarray(x)), (tj.asarray(x), tj.asarray(x))):
        out = simple()(one, other)
        assert type(out) is Tensor
        assert out._id == 0
        assert out._made is None
        assert out.dtype is x.dtype
        np.testing.assert_array_equal(out._value, 2 * x)
        assert out._value.flags.owndata
        assert out._value.flags.c_contiguous


def test_a_result_is_a_tensor_like_any_other() -> None:
    out = simple()(rising(), rising())
    with tj.GradientTape() as tape:
        tape.watch(out)
        loss = tj.sum(out * out)
    np.testing.assert_array_equal(tape.gradient(loss, out).numpy(), 4 * rising())
    assert weakref.ref(out)() is out


@pytest.mark.parametrize("result", ["tuple", "list"])
@pytest.mark.parametrize("count", [1, 3])
def test_several_results_come_in_their_container(result: str, count: int) -> None:
    found = simple(outputs=count, result=result)(rising(), rising())
    assert type(found) is {"tuple": tuple, "list": list}[result]
    for k, out in enumerate(found):
        assert type(out) is Tensor
        np.testing.assert_array_equal(out._value, (2 + k) * rising())
    assert len(found) == count


def test_no_results_are_an_empty_container() -> None:
    assert entry_of(adding(1, 0, 3), [of((3,))], [], result="tuple")(rising((3,))) == ()


def test_values_are_arrays_and_scalars() -> None:
    array, scalar = entry_of(
        adding(1, 2, 1), [of((1,))], [of((1,)), of()], result="values"
    )(rising((1,)))
    assert type(array) is np.ndarray
    assert type(scalar) is np.float32
    assert (array[0], scalar) == (1, 2)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_goes_in_and_out_with_and_without_axes(dtype: str) -> None:
    for shape in ((5,), ()):
        x = rising(shape, dtype)
        copying = simple(1, shape, dtype)
        for given in (x, tj.asarray(x), Tensor(x[()])):
            out = copying(given)._value
            assert out.dtype is x.dtype
            assert type(out) is type(x[()])
            np.testing.assert_array_equal(out, x)


def test_bfloat16_goes_in_and_out() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for shape in ((5,), ()):
        x = tj.asarray(rising(shape, ml_dtypes.bfloat16))
        out = simple(1, shape, ml_dtypes.bfloat16)(x)
        assert out.dtype == x.dtype
        assert type(out._value) is type(x._value[()])
        np.testing.assert_array_equal(out._value, x._value)
        assert simple(1, shape, ml_dtypes.bfloat16)(out) is not MISS


def test_a_bool_without_axes_is_numpys_own() -> None:
    assert simple(1, (), np.bool_)(Tensor(np.True_))._value is np.True_


def test_an_array_without_axes_inside_a_tensor_is_taken() -> None:
    out = simple(2, ())(Tensor(np.array(2, np.float32)), Tensor(np.float32(3)))
    assert out._value == 5
    assert type(out._value) is np.float32


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 4, 2)])
def test_arrays_without_elements(shape: tuple[int, ...]) -> None:
    out = simple(2, shape)(np.zeros(shape, np.float32), np.zeros(shape, np.float32))
    assert out.shape == shape
    other = np.zeros((*shape, 1), np.float32)
    assert simple(2, shape)(other, other) is MISS


def test_a_large_output_starts_on_a_cache_line() -> None:
    shape = (100, 129)
    add = simple(2, shape)
    found = [add(rising(shape), rising(shape)) for _ in range(5)]
    for out in found:
        assert out._value.ctypes.data % 64 == 0
        assert out._value.flags.writeable
        np.testing.assert_array_equal(out._value, 2 * rising(shape))


def test_variables_are_read_at_each_call() -> None:
    v, s = tj.Variable(rising()), tj.Variable(2.0)
    code = adding(2, 1, 6)
    add = entry_of(code, [of((2, 3))], [of((2, 3))], variables=[(v, of((2, 3)))])
    np.testing.assert_array_equal(add(rising())._value, 2 * rising())
    v.assign(10 * rising())
    np.testing.assert_array_equal(add(rising())._value, 11 * rising())
    scalar = entry_of(adding(2, 1, 1), [of()], [of()], variables=[(s, of())])
    assert scalar(tj.asarray(1.0))._value == 3
    s.assign_add(1.0)
    assert scalar(tj.asarray(1.0))._value == 4


def test_captured_arrays_stay_alive_and_may_have_any_layout() -> None:
    fixed = [rising(), np.asfortranarray(rising()), rising((2, 6))[:, ::2]]
    expected = rising() + fixed[0] + fixed[1] + fixed[2]
    shape = of((2, 3))
    add = entry_of(adding(4, 1, 6), [shape], [shape], captured=fixed)
    del fixed
    gc.collect()
    np.testing.assert_array_equal(add(rising())._value, expected)
    number = entry_of(adding(2, 1, 1), [of()], [of()], captured=[np.float32(4)])
    assert number(tj.asarray(1.0))._value == 5


def test_the_code_gets_its_arena_and_imports() -> None:
    seen = []

    def run(table: int) -> int:
        words = (ctypes.c_size_t * 4).from_address(table)
        seen.append((words[2] % 64, words[3]))
        ctypes.memset(words[2], 255, 1000)
        return 0

    code = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(run)
    one = of((1,))
    entry = entry_of(code, [one], [one], arena_bytes=1000, imports=4711)
    assert entry(rising((1,))) is not MISS
    assert entry(rising((1,))) is not MISS
    assert seen == [(0, 4711)] * 2


def test_inputs_and_outputs_go_where_the_code_wants_them() -> None:
    seen = []

    def run(table: int) -> int:
        words = (ctypes.c_size_t * 5).from_address(table)
        first, second, third = (
            ctypes.c_float.from_address(words[at]).value for at in range(3)
        )
        seen.append((first, second, third))
        ctypes.c_float.from_address(words[3]).value = first - second
        ctypes.c_float.from_address(words[4]).value = third
        return 0

    code = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(run)
    v = tj.Variable(np.full(1, 5, np.float32))
    one = of((1,))
    entry = entry_of(
        code,
        [one, one, of((2,))],
        [one, of()],
        variables=[(v, one)],
        captured=[rising((1,)), rising((7,))],
        input_slots=[2, None, None, 0, 1, None],
        output_slots=[1, 0],
        result="values",
    )
    x, y, z = np.full(1, 8, np.float32), rising((1,)), rising((2,))
    array, scalar = entry(x, y, z)
    assert seen == [(5, 1, 8)]
    assert (array[0], scalar) == (8, 4)
    assert type(scalar) is np.float32
    assert entry(x, z, z) is MISS  # what is not used is checked as well


# Reasons to miss


def swapped() -> Any:
    return rising().astype(np.dtype(np.float32).newbyteorder())


def misaligned() -> Any:
    return np.zeros(25, np.uint8)[1:].view(np.float32).reshape(2, 3)


UNFIT: dict[str, Callable[[], Any]] = {
    "a list": lambda: rising().tolist(),
    "an int": lambda: 1,
    "a float": lambda: 1.0,
    "None": lambda: None,
    "a variable": lambda: tj.Variable(rising()),
    "a NumPy scalar": lambda: np.float32(1),
    "another dtype": lambda: rising(dtype=np.float64),
    "another dtype of equal size": lambda: rising(dtype=np.int32),
    "another shape": lambda: rising((3, 2)),
    "fewer axes": lambda: rising((6,)),
    "more axes": lambda: rising((1, 2, 3)),
    "no axes": lambda: rising(()),
    "no elements": lambda: rising((2, 0)),
    "strides": lambda: rising((2, 6))[:, ::2],
    "the order of columns": lambda: np.asfortranarray(rising()),
    "negative strides": lambda: rising()[::-1],
    "broadcast": lambda: np.broadcast_to(np.float32(1), (2, 3)),
    "the other byte order": swapped,
    "no alignment": misaligned,
    "a subclass": lambda: rising().view(Sub),
    "a matrix": lambda: np.ma.masked_array(rising()),
    "objects": lambda: rising().astype(object),
    "text": lambda: "x",
}


@pytest.mark.parametrize("what", UNFIT)
def test_an_argument_that_does_not_fit_is_missed(what: str) -> None:
    add = simple()
    fitting, unfit = rising(), UNFIT[what]()
    assert add(unfit, fitting) is MISS
    assert add(fitting, unfit) is MISS
    if isinstance(unfit, np.ndarray):
        assert add(Tensor(unfit), fitting) is MISS
    assert add(fitting, fitting) is not MISS


def test_a_wrong_number_of_arguments_is_missed() -> None:
    add, x = simple(), rising()
    assert add() is MISS
    assert add(x) is MISS
    assert add(x, x, x) is MISS


def test_keywords_are_missed_by_an_entry_that_has_none() -> None:
    add, x = simple(), rising()
    assert add(x, x=x) is MISS
    assert add(x=x) is MISS
    assert add(x, x) is not MISS


def test_a_bare_scalar_is_missed_where_a_tensor_of_it_is_not() -> None:
    copying = simple(1, ())
    assert copying(Tensor(np.float32(1))) is not MISS
    assert copying(np.float32(1)) is MISS
    assert copying(Tensor(np.float64(1))) is MISS
    assert copying(1.0) is MISS


def test_a_bare_scalar_is_taken_on_request() -> None:
    copying = simple(1, (), takes_scalars=True)
    assert copying(np.float32(3))._value == 3
    assert copying(Tensor(np.float32(3)))._value == 3
    assert copying(np.float64(3)) is MISS
    assert copying(3.0) is MISS
    assert simple(1, (1,), takes_scalars=True)(np.float32(3)) is MISS


def test_a_read_only_array_and_a_copied_dtype_fit() -> None:
    x = rising()
    x.flags.writeable = False
    assert simple()(x, x) is not MISS
    y = pickle.loads(pickle.dumps(rising()))
    tagged = rising().astype(np.dtype(np.float32, metadata={"unit": "m"}))
    for copied in (y, tagged):
        out = simple()(copied, Tensor(copied))
        np.testing.assert_array_equal(out._value, 2 * rising())
        assert out.dtype is x.dtype


def test_a_tensor_without_a_value_and_a_traced_one_are_missed() -> None:
    assert simple(1)(Tensor.__new__(Tensor)) is MISS
    seen = []

    @tj.function
    def body(x: Any) -> Any:
        entry = simple(1, context=())
        seen.append(entry(x))
        return x

    body(tj.asarray(rising()))
    assert seen == [MISS]


def test_a_variable_of_another_type_is_missed() -> None:
    v = tj.Variable(rising())
    shape = of((2, 3))
    add = entry_of(adding(2, 1, 6), [shape], [shape], variables=[(v, shape)])
    held = v._tensor
    assert add(rising()) is not MISS
    for unfit in (rising((3, 2)), rising(dtype=np.float64), np.float32(1)):
        v._tensor = Tensor(unfit)
        assert add(rising()) is MISS
    v._tensor = rising()  # as nobody should
    assert add(rising()) is MISS
    del v._tensor
    assert add(rising()) is MISS
    v._tensor = held
    assert add(rising()) is not MISS


def test_a_tape_makes_it_miss_and_its_end_makes_it_fit() -> None:
    add, x = simple(), rising()
    with tj.GradientTape():
        assert add(x, x) is MISS
    assert add(x, x) is not MISS
    context = copy_context()
    context.run(TAPES.set, ("a tape",))  # type: ignore[arg-type]  # any will do
    assert context.run(add, x, x) is MISS
    assert add(x, x) is not MISS


def test_a_trace_makes_it_miss() -> None:
    add, x, seen = simple(), rising(), []
    tj.function(lambda y: (seen.append(add(x, x)), y)[1])(tj.asarray(1.0))
    assert seen == [MISS]
    assert add(x, x) is not MISS


def test_settings_that_changed_make_it_miss() -> None:
    names = [(vars(config_module), "_process", config_module._process)]
    add, x = simple(names=names), rising()
    assert add(x, x) is not MISS
    with config.override(check=True):
        assert add(x, x) is MISS
    assert add(x, x) is not MISS
    before = config_module._process
    config.update(default_float="float64")
    try:
        assert add(x, x) is MISS
    finally:
        config_module._process = before
    assert add(x, x) is not MISS


def test_a_name_that_is_gone_makes_it_miss() -> None:
    value = object()
    names = {"a": value}
    add, x = simple(names=[(names, "a", value)]), rising()
    assert add(x, x) is not MISS
    del names["a"]
    assert add(x, x) is MISS


def test_a_context_variable_without_a_value_makes_it_miss() -> None:
    unset: ContextVar[Any] = ContextVar("unset")
    add, x = simple(context=[(unset, None)]), rising()
    assert add(x, x) is MISS
    context = copy_context()
    context.run(unset.set, None)
    assert context.run(add, x, x) is not MISS


@pytest.mark.parametrize("releases", [False, True])
def test_code_that_fails_makes_it_miss(releases: bool) -> None:
    code, shape = adding(1, 2, 6, failure=7), of((2, 3))
    entry = entry_of(
        code, [shape], [shape, shape], result="tuple", releases_gil=releases
    )
    assert entry(rising()) is MISS


# Errors


def test_out_of_memory_is_an_error_and_nothing_is_lost() -> None:
    x, huge = rising((1,)), of((1 << 40, 1 << 10))
    entry = entry_of(adding(1, 1, 1), [of((1,))], [of((1,)), huge], result="tuple")
    before = sys.getrefcount(x), sys.getrefcount(huge.dtype)
    for _ in range(100):
        with pytest.raises(MemoryError):
            entry(x)
    assert (sys.getrefcount(x), sys.getrefcount(huge.dtype)) == before


def test_an_arena_that_cannot_be_had_is_an_error() -> None:
    entry = simple(1, arena_bytes=1 << 60)
    for _ in range(3):
        with pytest.raises(MemoryError):
            entry(rising())


@pytest.mark.parametrize(
    "changed",
    [
        {"outputs": [of(), of()]},
        {"result": structure(())},
        {"result": structure(OrderedDict(a=1.0))},
        {"arguments": [of(dtype=object)]},
        {"input_slots": []},
        {"input_slots": [1]},
        {"output_slots": [1]},
        {"output_slots": [0, 0], "outputs": [of()] * 2, "result": structure((1, 2))},
        {"arguments": [of(dtype=np.dtype(np.float32).newbyteorder())]},
        {"arguments": [of([parse_dim("n")])]},
    ],
)
def test_a_spec_that_cannot_be_met_is_refused(changed: dict[str, Any]) -> None:
    given = {"run": 1, "arguments": [of()], "outputs": [of()], **changed}
    with pytest.raises(ArgumentError):
        make_entry(EntrySpec(**given), Tensor)
