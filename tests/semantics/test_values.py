"""Values: NumPy's functions and arrays, Python's protocols (lines 25 and 31)."""

from __future__ import annotations

import array
import operator
from typing import Any

import numpy as np
import pytest

import tapejit as tj

from .both_modes import assert_modes, assert_taped, note, note_error


def outcome(function: Any, *args: Any) -> Any:
    """What a function returns, or the kind of error it raises."""
    try:
        return function(*args)
    except (TypeError, ValueError, IndexError) as error:
        for kind in (IndexError, TypeError, ValueError):
            if isinstance(error, kind):
                return kind
        raise


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


@pytest.mark.parametrize(("ufunc", "slope"), UFUNCS, ids=lambda f: f.__name__)
def test_s25_numpys_functions_of_a_tensor_are_recorded(ufunc: Any, slope: Any) -> None:
    at = np.array([0.5, 1.5])
    setup = lambda: (tj.Variable(at), tj.asarray(at))
    program = lambda v, x: (ufunc(v), ufunc(x))
    for y in assert_modes(program, setup).result:
        assert isinstance(y, tj.Tensor)
        np.testing.assert_allclose(y.numpy(), ufunc(at), rtol=1e-12)
    for g in assert_taped(program, setup)[0]:
        np.testing.assert_allclose(g.numpy(), slope(at), rtol=1e-12)


@pytest.mark.parametrize("name", MIXED)
def test_s25_arrays_and_tensors_mix_and_are_recorded(name: str) -> None:
    function, expected = MIXED[name]

    def program(v: Any) -> Any:
        with tj.GradientTape(persistent=True) as tape:
            y, z = function(v), function(v.value())
        return [(value, tape.gradient(value, v)) for value in (y, z)]

    setup = lambda: tj.Variable([1.0, 1.0], dtype="float64")
    for value, gradient in assert_modes(program, setup).result:
        assert isinstance(value, tj.Tensor)
        np.testing.assert_allclose(value.numpy(), function(np.ones(2)), rtol=1e-12)
        np.testing.assert_allclose(gradient.numpy(), expected, rtol=1e-12)
    assert_taped(function, setup, order=1)


def test_s25_numpy_copies_and_np_asarray_is_read_only() -> None:
    def program(x: Any) -> Any:
        copied, seen = x.numpy(), np.asarray(x)
        copied[0] = 100.0
        note((seen.flags.writeable, copied.flags.writeable, seen.tolist()))
        note_error(lambda: operator.setitem(seen, 0, 100.0))
        return x * 2.0, x + copied

    plain = assert_modes(
        program,
        lambda: tj.asarray([1.0, 2.0]),
        expected=([2.0, 4.0], [101.0, 4.0]),
        errors=[(ValueError, "read-only")],
        runs_eagerly=True,
    )
    assert plain.notes[0] == (False, True, [1.0, 2.0])


# Who shares memory with whom is a matter of concrete tensors.


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


def test_s25_arrays_that_change_later_change_no_result() -> None:
    array = np.array([1.0, 2.0])
    call = tj.function(lambda x: (x, x[::-1], x.reshape((2, 1)), x * 1.0))
    with tj.GradientTape() as tape:
        scale = tj.Variable(2.0, dtype="float64")
        y = tj.function(lambda x: scale * x)(array)
    results = call(array)
    array[:] = 100.0
    found = [x.ravel().tolist() for x in results]
    assert found == [[1.0, 2.0], [2.0, 1.0], [1.0, 2.0], [1.0, 2.0]]
    assert tape.gradient(y, scale).item() == 3.0
    assert call(array)[0].tolist() == [100.0, 100.0], "each call sees its argument"


def test_s25_an_array_of_the_closure_is_what_it_was_when_traced() -> None:
    """A closure over a Python value is frozen; what was made of it never changes."""
    array = np.array([1.0, 2.0])
    call = tj.function(lambda x: x * array)
    x = tj.asarray(np.ones(2))
    first = call(x)
    array[:] = 100.0
    assert first.tolist() == [1.0, 2.0]
    assert call(x).tolist() == [1.0, 2.0]


def test_s25_a_tensor_argument_comes_back_as_another_tensor() -> None:
    x = tj.asarray([1.0, 2.0])
    call = tj.function(lambda x: (x, {"same": x}))
    for _ in range(2):
        first, second = call(x)
        assert first is not x
        assert second["same"] is not x
        assert first.tolist() == x.tolist()


# 31: tensors as Python objects


def can_set(x: Any, name: str) -> bool:
    try:
        setattr(x, name, None)
    except AttributeError:  # whose text names the class
        return False
    return True


def test_s31_a_tensor_does_not_change_and_says_the_way_out() -> None:
    def program(x: Any) -> Any:
        def changed() -> None:
            x[0] += 5.0

        note_error(lambda: operator.setitem(x, 0, 5.0))
        note_error(changed)
        note_error(lambda: operator.delitem(x, 0))
        note([can_set(x, name) for name in ("shape", "dtype", "T", "real")])
        y = x
        y += 1.0
        y *= 2.0
        return x, y, x.at[0].set(5.0)

    errors = [(TypeError, r"x\.at\["), (TypeError, ""), (TypeError, "")]
    expected = ([1.0, 2.0], [4.0, 6.0], [5.0, 2.0])
    setup = lambda: tj.asarray([1.0, 2.0])
    plain = assert_modes(program, setup, expected=expected, errors=errors)
    assert plain.notes[-1] == [False] * 4


@pytest.mark.parametrize("make", [tj.asarray, tj.Variable])
def test_s31_unhashable_with_ref_as_a_key(make: Any) -> None:
    def program(x: Any, other: Any) -> Any:
        note_error(lambda: hash(x))
        note_error(lambda: {x: 1})
        names = {x.ref(): "x", other.ref(): "other"}
        note((names[x.ref()], len({x.ref(), x.ref(), other.ref()})))
        note((x.ref() == x.ref(), x.ref() != other.ref(), x.ref().deref() is x))
        note(hash(x.ref()) == hash(x.ref()))
        return x

    setup = lambda: (make([1.0, 2.0]), make([1.0, 2.0]))
    errors = [(TypeError, "unhashable")] * 2
    plain = assert_modes(program, setup, errors=errors, traces=None)
    assert plain.notes[2:] == [("x", 2), (True, True, True), True]


def test_s31_equality_works_element_by_element() -> None:
    def program(x: Any, y: Any) -> Any:
        note(((x == None) is False, (x != "x") is True))  # noqa: E711  # is tested
        return x == y, x != 1.0, x == np.array([1.0, 2.0])

    setup = lambda: (tj.asarray([1.0, 2.0]), tj.asarray([1.0, 3.0]))
    rows = [True, False], [False, True], [True, True]
    expected = tuple(map(np.array, rows))
    assert_modes(program, setup, expected=expected, notes=[(True, True)])


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


def asking(protocol: Any, kind: str, seen: list[Any]) -> Any:
    """A body that tells what a protocol answers."""

    def body(x: Any) -> Any:
        given = x + 0 if kind == "computed" else x
        try:
            seen.append(repr(protocol(given)))
        except (TypeError, ValueError, IndexError) as error:
            seen.append((type(error), str(error).splitlines()[0]))
        return tj.asarray(0.0)

    return body


@pytest.mark.filterwarnings("ignore:.*needs a value while it is traced:UserWarning")
@pytest.mark.parametrize("kind", ["argument", "computed", "variable"])
@pytest.mark.parametrize("name", PROTOCOLS)
def test_s31_pythons_protocols_are_numpys(name: str, kind: str) -> None:
    """What Python asks of a tensor gets the same answer or the same error."""
    make = tj.Variable if kind == "variable" else tj.asarray
    for value in VALUES:
        seen: list[Any] = []
        x = make(value)
        wanted = outcome(PROTOCOLS[name], x.numpy())
        assert repr(outcome(PROTOCOLS[name], x)) == repr(wanted), value
        body = asking(PROTOCOLS[name], kind, seen)
        body(x)
        tj.function(body)(x)
        assert seen[0] == seen[1], value


@pytest.mark.parametrize(
    ("convert", "value"),
    [(float, 2.5), (int, 2.5), (int, 7), (complex, 1.5), (bool, 0.0)],
)
def test_s31_numbers_without_axes_convert(convert: Any, value: Any) -> None:
    def program(x: Any) -> Any:
        number = convert(x * 1)
        note(number)
        return x + number

    needs = convert not in (int, bool)
    setup, notes = lambda: tj.asarray(value), [convert(value)]
    assert_modes(program, setup, notes=notes, runs_eagerly=needs, traces=None)


@pytest.mark.parametrize("make", [tj.asarray, tj.Variable])
def test_s31_so_do_numbers_of_every_kind(make: Any) -> None:
    for value in [v for v in VALUES if not isinstance(v, list)]:
        x = make(value)
        assert repr(complex(x)) == repr(complex(np.complex64(value)))
        if not isinstance(value, complex):
            assert repr(float(x)) == repr(float(np.float32(value)))
        if not isinstance(value, complex) and value == value:
            assert int(x) == int(value)


@pytest.mark.parametrize("value", [[1.0, 2.0], [], [[1.0], [2.0]]], ids=str)
def test_s31_more_than_one_number_does_not(value: Any) -> None:
    def program(x: Any) -> Any:
        for convert in (float, int, complex):
            note_error(lambda convert=convert: convert(x))
        return x

    setup, errors = lambda: tj.asarray(value), [(TypeError, "")] * 3
    assert_modes(program, setup, errors=errors)


def test_s31_answers_are_those_of_each_call() -> None:
    def program(x: Any) -> Any:
        count = int(tj.sum(x))
        parts = [x * k for k in range(count)]
        return parts[count // 2] if count > 1 and x[0] > 0.5 else x - float(count)

    call = tj.function(program)
    for first in (0.0, 1.0, 2.0, 3.0, 1.0, 0.0):
        x = tj.asarray([first, 1.0])
        assert call(x).tolist() == program(x).tolist()


def test_s31_bool_of_several_elements_says_what_to_do() -> None:
    def program(x: Any) -> Any:
        note_error(lambda: bool(x > 0.0))
        return x if x > 0.0 else -x

    text = r"(?s)2 elements.*tj\.any.*tj\.all"
    setup, errors = lambda: tj.asarray([1.0, 2.0]), [(ValueError, text)]
    assert_modes(program, setup, errors=errors, raises=(ValueError, text))


def test_s31_iteration_and_len_are_recorded() -> None:
    def program(x: Any) -> Any:
        note(len(x))
        first, second = x
        total = sum(row * k for k, row in enumerate(x, 1))
        return first * second, total, max(first[0], second[0]), [*x][-1]

    def matrix() -> Any:
        return tj.Variable([[1.0, 2.0], [3.0, 4.0]])

    expected = ([3.0, 8.0], [7.0, 10.0], 3.0, [3.0, 4.0])
    assert_modes(program, matrix, expected=expected, notes=[2])
    assert_taped(program, matrix, expected=[[[4.0, 5.0], [5.0, 5.0]]])
