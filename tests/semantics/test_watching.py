"""What a tape watches: variables that are read, and what it is told to (4 to 8)."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import tapejit as tj

from .both_modes import assert_modes, assert_taped, note, note_error, ways
from .test_gradient import Layer, Pair


def vector() -> Any:
    return tj.Variable([1.0, 2.0], name="v")


def scalar() -> Any:
    return tj.Variable(3.0, name="v")


def tensor_and_variable() -> Any:
    return tj.asarray(3.0), tj.Variable(4.0, name="v")


# 4: which variables are watched


READS = {
    "operator": lambda v: v * 2.0,
    "reflected operator": lambda v: 2.0 * v,
    "function": tj.negative,
    "value": lambda v: v.value(),
    "read_value": lambda v: v.read_value(),
    "index": lambda v: v[0],
    "iteration": lambda v: next(iter(v)),
    "method": lambda v: v.sum(),
    "matmul": lambda v: v @ v,
    "stack": lambda v: tj.stack([v, v]),
    "nested list": lambda v: tj.asarray([[1.0, 1.0], v]),
    "asarray": tj.asarray,
    "unary plus": lambda v: +v,
    "where": lambda v: tj.where([True, False], v, 0.0),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_s04_a_variable_is_watched_however_it_is_read_if_trainable(read: Any) -> None:
    def program(v: Any, fixed: Any) -> Any:
        with tj.GradientTape(persistent=True) as tape:
            y, z = read(v), read(fixed)
        note([w.name for w in tape.watched_variables()])
        return tape.gradient(y, v), tape.gradient(z, fixed)

    def setup() -> Any:
        fixed = tj.Variable([1.0, 2.0], trainable=False, name="fixed")
        return tj.Variable([1.0, 2.0], name="v"), fixed

    plain = assert_modes(program, setup, notes=[["v"]])
    assert plain.result[0] is not None
    assert plain.result[1] is None
    assert_taped(lambda v, fixed: (read(v), read(fixed)), setup)


def test_s04_one_that_is_not_trainable_can_be_watched_by_hand() -> None:
    def program(v: Any) -> Any:
        with tj.GradientTape() as tape:
            tape.watch(v)
            y = v * v
        return tape.gradient(y, v)

    assert_modes(program, lambda: tj.Variable(3.0, trainable=False), expected=6.0)


def test_s04_each_tape_watches_by_its_own_setting() -> None:
    def program(x: Any, v: Any) -> Any:
        with (
            tj.GradientTape() as outer,
            tj.GradientTape(watch_accessed_variables=False) as inner,
        ):
            inner.watch(x)
            y = v * x
        note(len(inner.watched_variables()))
        return outer.gradient(y, [x, v]), inner.gradient(y, [x, v])

    expected = ([None, 3.0], [4.0, None])
    assert_modes(program, tensor_and_variable, expected=expected, notes=[0])


@pytest.mark.parametrize(
    "decorate", [lambda f: f, tj.function], ids=["plain", "traced"]
)
def test_s04_captured_variables_are_watched_by_the_tapes_setting(decorate: Any) -> None:
    def program(x: Any, v: Any) -> Any:
        layer = decorate(lambda x: x * v)
        found = []
        for accessed in (False, True):
            with tj.GradientTape(watch_accessed_variables=accessed) as tape:
                tape.watch(x)
                y = layer(x)
            note(len(tape.watched_variables()))
            found.append(tape.gradient(y, [x, v]))
        with tj.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(v)
            y = layer(x)
        note([w is v for w in tape.watched_variables()])
        return *found, tape.gradient(y, [x, v])

    expected, notes = ([4.0, None], [4.0, 3.0], [None, 3.0]), [0, 1, [True]]
    assert_modes(program, tensor_and_variable, expected=expected, notes=notes)


def test_s04_a_tape_around_sees_which_variables_a_call_reads() -> None:
    a, b = tj.Variable(2.0, name="a"), tj.Variable(3.0, name="b")
    fixed = tj.Variable(5.0, trainable=False, name="fixed")
    written = tj.Variable(0.0, name="written")

    def program(x: Any) -> Any:
        written.assign(1.0)
        return x * b * a * fixed

    for name, call in ways(program, lambda: tj.asarray(1.0)):
        x = tj.asarray(1.0)
        with tj.GradientTape(persistent=True) as tape:
            y = call(x)
        assert [v.name for v in tape.watched_variables()] == ["a", "b"], name
        da, db, rest, dx = tape.gradient(y, [a, b, fixed, x])
        assert (float(da), float(db), rest, dx) == (15.0, 10.0, None, None), name
        with tj.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch([x, fixed])
            y = call(x)
        da, rest, dx = tape.gradient(y, [a, fixed, x])
        assert (da, float(rest), float(dx)) == (None, 6.0, 30.0), name


def test_s04_an_integer_variable_has_no_gradient_and_causes_no_warning() -> None:
    def program(count: Any, v: Any) -> Any:
        with tj.GradientTape() as tape:
            y = v * count
        return tape.gradient(y, [v, count])

    def setup() -> Any:
        return tj.Variable(2), tj.Variable(3.0)

    assert_modes(program, setup, expected=[2.0, None])


# 5: what can be watched


def structures(a: Any, b: Any) -> dict[str, Any]:
    return {
        "list": [a, b],
        "tuple": (a, b),
        "dict": {"x": a, "y": b},
        "namedtuple": Pair(a, b),
        "dataclass": Layer(a, b),
        "nested": {"x": [(a,), Layer({"z": b}, [])]},
    }


REFUSED = {
    "ndarray": np.ones(2),
    "float": 1.0,
    "int": 1,
    "str": "x",
    "None": None,
    "float32": np.float32(1),
    "object": object(),
    "function": len,
}


@pytest.mark.parametrize("kind", structures(0, 0))
def test_s05_watch_takes_structures(kind: str) -> None:
    def program(x: Any, v: Any) -> Any:
        with tj.GradientTape() as tape:
            tape.watch(structures(x, v)[kind])
            y = x * v
        return tape.gradient(y, [x, v])

    def setup() -> Any:
        return tj.asarray(3.0), tj.Variable(4.0, trainable=False)

    assert_modes(program, setup, expected=[4.0, 3.0])


@pytest.mark.parametrize("name", REFUSED)
def test_s05_anything_else_is_a_type_error_that_names_it(name: str) -> None:
    """A structure that is refused watches nothing."""
    value = REFUSED[name]

    def program(x: Any) -> Any:
        with tj.GradientTape() as tape:
            note_error(lambda: tape.watch(value))
            note_error(lambda: tape.watch({"w": [x, value]}))
            y = x * x
        return tape.gradient(y, x)

    got = "watch .*got " + ("builtin_function" if name == "function" else name)
    errors = [(TypeError, got), (TypeError, got + r".*\['w'\]\[1\]")]
    assert_modes(program, lambda: tj.asarray(3.0), expected=None, errors=errors)


def test_s05_it_escapes_as_the_same_error() -> None:
    def program(x: Any) -> Any:
        with tj.GradientTape() as tape:
            tape.watch([x, "x"])
            return x * x

    assert_modes(
        program, lambda: tj.asarray(3.0), raises=(TypeError, r"got str at \[1")
    )


@pytest.mark.parametrize("value", [3, True, [1, 2], np.uint8([1])], ids=str)
@pytest.mark.parametrize("make", [tj.asarray, tj.Variable])
def test_s05_an_integer_or_bool_warns_once_and_has_no_gradient(
    make: Any, value: Any
) -> None:
    def program(x: Any) -> Any:
        with tj.GradientTape() as tape:
            tape.watch(x)
            y = x * 2.0
        return tape.gradient(y, x)

    name = make(value).dtype.name
    assert_modes(
        program,
        lambda: make(value),
        expected=None,
        warns=[f"dtype {name}: gradients exist for floating point only"],
    )


def test_s05_the_warning_shows_the_users_line(mode: Any) -> None:
    def program(x: Any) -> Any:
        with tj.GradientTape() as tape:
            tape.watch(x)
        return x

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        mode(program)(tj.asarray(3))
    (warning,) = caught
    assert warning.category is UserWarning
    assert warning.filename == __file__


def test_s05_complex_tensors_are_watched_without_a_warning() -> None:
    def program(z: Any) -> Any:
        with tj.GradientTape() as tape:
            tape.watch(z)
            y = z * z
        return tape.gradient(y, z)

    assert_modes(program, lambda: tj.asarray(1 + 2j), expected=2 - 4j)


# 6: watching late, and in the middle


def test_s06_a_late_watch_counts_from_there_on() -> None:
    def program(x: Any, v: Any) -> Any:
        with tj.GradientTape() as tape:
            y = x * x * v * v
            tape.watch([x, v])
            z = y * x * v
        return tape.gradient(z, [x, v])

    def setup() -> Any:
        return tj.asarray(3.0), tj.Variable(2.0, trainable=False)

    assert_modes(program, setup, expected=[36.0 * 2, 36.0 * 3])


def test_s06_a_watched_intermediate_is_a_leaf() -> None:
    def program(x: Any) -> Any:
        with tj.GradientTape(persistent=True) as tape:
            y = x * x
            tape.watch(y)
            z = y * y
        with tj.GradientTape() as both:
            both.watch(x)
            h = x * x
            both.watch(h)
            w = h * h
        return tape.gradient(z, [x, y]), both.gradient(w, [x, h])

    assert_modes(
        program, lambda: tj.asarray(3.0), expected=([None, 18.0], [108.0, 18.0])
    )


def test_s06_watching_after_use_is_too_late() -> None:
    def program(x: Any) -> Any:
        with tj.GradientTape() as tape:
            y = x * x
            z = y * y
            tape.watch(y)
        return tape.gradient(z, y)

    assert_modes(program, lambda: tj.asarray(3.0), expected=None)


def test_s06_watching_twice_counts_once() -> None:
    def program(x: Any) -> Any:
        with tj.GradientTape() as tape:
            tape.watch([x, x])
            y = x * x
            tape.watch(x)
            z = y * x
        return tape.gradient(z, x)

    assert_modes(program, lambda: tj.asarray(3.0), expected=27.0)


def test_s06_results_of_calls_are_watched_like_any_other() -> None:
    def square(x: Any) -> Any:
        return x * x

    for name, call in ways(square, lambda: tj.asarray(3.0)):
        x = tj.asarray(3.0)
        with tj.GradientTape() as tape:
            y = call(x)
            tape.watch(y)
            z = call(y) * call(x)
        dx, dy = tape.gradient(z, [x, y])
        assert (dx, float(dy)) == (None, 2 * 9.0 * 9.0), name


# 7: watched_variables


def test_s07_the_order_of_creation_and_only_what_was_read_or_watched() -> None:
    def program(a: Any, b: Any, c: Any, d: Any) -> Any:
        tape = tj.GradientTape()
        note(tape.watched_variables())
        with tape:
            y = (c * a) * b + a
            note([v.name for v in tape.watched_variables()])
            tape.watch(d)
        found = tape.watched_variables()
        note((type(found), [v.name for v in found]))
        note([v is w for v, w in zip(found, (a, b, c, d), strict=True)])
        g = tape.gradient(y, list(found))
        note([v.name for v in tape.watched_variables()])
        return g

    def setup() -> Any:
        return tuple(tj.Variable(float(i), name=n) for i, n in enumerate("abcd"))

    read, names = ["a", "b", "c"], ["a", "b", "c", "d"]
    assert_modes(
        program,
        setup,
        expected=[3.0, 0.0, 0.0, None],
        notes=[(), read, (tuple, names), [True] * 4, names],
    )


ASSIGNMENTS = {
    "assign": lambda v: v.assign([1.0, 2.0]),
    "assign_add": lambda v: v.assign_add([1.0, 2.0]),
    "assign_sub": lambda v: v.assign_sub([1.0, 2.0]),
    "scatter_add": lambda v: v.scatter_add([0], [1.0]),
    "scatter_update": lambda v: v.scatter_update([0], [1.0]),
}


PRINTS = {
    "repr": repr,
    "str": str,
    "f-string": lambda v: f"{v}",
    "format": lambda v: f"{v:.2f}",
    "print": print,
    "html": lambda v: v._repr_html_(),
    "attributes": lambda v: (v.shape, v.dtype, v.ndim, v.size, v.name, v.trainable),
    "ref": lambda v: v.ref(),
}


@pytest.mark.parametrize("assign", ASSIGNMENTS.values(), ids=ASSIGNMENTS)
def test_s07_a_variable_merely_assigned_is_not_watched(assign: Any) -> None:
    def program(v: Any) -> Any:
        with tj.GradientTape() as tape:
            assign(v)
        note(tape.watched_variables())
        return v.value()

    def only_assigns(v: Any) -> None:
        assign(v)

    assert_modes(program, vector, notes=[()])
    for name, call in ways(only_assigns, vector):
        v = vector()
        with tj.GradientTape() as tape:
            call(v)
        assert tape.watched_variables() == (), name


@pytest.mark.parametrize("assign", ASSIGNMENTS.values(), ids=ASSIGNMENTS)
def test_s07_nor_is_one_whose_new_value_is_returned_and_not_used(assign: Any) -> None:
    def program(v: Any) -> Any:
        return assign(v)

    for name, call in ways(program, vector):
        v = vector()
        with tj.GradientTape(persistent=True) as tape:
            returned = call(v)
            assert tape.watched_variables() == (), name
            y = returned * returned
            assert [w.name for w in tape.watched_variables()] == ["v"], name
        assert tape.gradient(y, v).tolist() == (2.0 * v.numpy()).tolist(), name


@pytest.mark.parametrize("name", PRINTS)
def test_s07_a_variable_merely_printed_is_not_watched(name: str) -> None:
    def program(v: Any) -> Any:
        with tj.GradientTape() as tape:
            PRINTS[name](v)
        note(tape.watched_variables())
        return v * 1.0

    traces = None if name == "ref" else 1  # each variable has a ref of its own
    assert_modes(program, scalar, expected=3.0, notes=[()], traces=traces)


# 8: values read before the tape, variables made in it


BEFORE = {
    **{name: READS[name] for name in ("value", "read_value", "asarray", "unary plus")},
    "constant": tj.constant,
    "positive": tj.positive,
    "real": tj.real,
    "real part": lambda v: v.real,
    "conj": tj.conj,
    "method conj": lambda v: v.conj(),
    "clip without bounds": tj.clip,
    "astype of the same dtype": lambda v: tj.astype(v, v.dtype),
    "asarray of the same dtype": lambda v: tj.asarray(v, dtype=v.dtype),
    "reshape to the same shape": lambda v: tj.reshape(v, v.shape),
    "squeeze of nothing": tj.squeeze,
    "permutation of nothing": lambda v: tj.permute_dims(v, (0,)),
    "transposed vector": lambda v: v.T,
    "broadcast to the same shape": lambda v: tj.broadcast_to(v, v.shape),
    "whole slice": lambda v: v[:],
    "ellipsis": lambda v: v[...],
    "assigned": lambda v: v.assign([1.0, 2.0]),
    "product": lambda v: v * 1.0,
}


@pytest.mark.parametrize("read", BEFORE.values(), ids=BEFORE)
def test_s08_a_value_read_before_the_tape_does_not_connect_to_it(read: Any) -> None:
    def program(v: Any) -> Any:
        before = read(v)
        with tj.GradientTape(persistent=True) as tape:
            y = before * v
            z = before * 2.0
        return [tape.gradient(t, v) for t in (y, z, before)]

    assert_modes(program, vector, expected=[[1.0, 2.0], None, None])


def test_s08_nor_does_a_value_read_in_another_tape() -> None:
    def program(v: Any) -> Any:
        with tj.GradientTape() as other:
            before = v.value()
        with tj.GradientTape(persistent=True) as tape:
            y = before * v
        return tape.gradient(y, v), tape.gradient(before, v), other.gradient(before, v)

    assert_modes(program, scalar, expected=(3.0, None, 1.0))


def test_s08_a_value_that_a_function_read_before_the_tape() -> None:
    def square(v: Any) -> Any:
        return v * v

    for name, call in ways(square, scalar):
        v = scalar()
        before = call(v)
        with tj.GradientTape(persistent=True) as tape:
            y = before * call(v)
        assert tape.gradient(before, v) is None, name
        assert float(tape.gradient(y, v)) == 54.0, name


class Model:
    """Something outside the function that keeps what the function makes."""

    w: Any = None


@pytest.mark.parametrize("is_callable", [False, True])
def test_s08_a_variable_made_in_the_tape_is_differentiable(is_callable: bool) -> None:
    def program(x: Any, model: Model) -> Any:
        with tj.GradientTape() as tape:
            if model.w is None:
                model.w = tj.Variable((lambda: x * 2.0) if is_callable else x * 2.0)
            y = model.w * model.w
        return tape.gradient(y, [model.w, x])

    def setup() -> Any:
        return tj.Variable(3.0), Model()

    assert_modes(program, setup, expected=[12.0, None], traces=None)


def test_s08_a_tape_around_differentiates_by_what_the_call_makes() -> None:
    def program(x: Any, model: Model) -> Any:
        if model.w is None:
            model.w = tj.Variable(x * 2.0)
        return model.w * model.w * x

    def setup() -> Any:
        return tj.asarray(3.0), Model()

    for name, call in ways(program, setup):
        x, model = setup()
        for _ in range(2):
            with tj.GradientTape() as tape:
                tape.watch(x)
                y = call(x, model)
            dw, dx = tape.gradient(y, [model.w, x])
            assert (float(dw), float(dx)) == (2 * 6.0 * 3.0, 36.0), name
