"""What a tape watches: variables that are read, and what it is told to (4 to 8)."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import tapejit as tj

from .test_gradient import Layer, Pair

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
def test_s04_a_trainable_variable_is_watched_however_it_is_read(read: Any) -> None:
    v = tj.Variable([1.0, 2.0])
    with tj.GradientTape() as tape:
        y = read(v)
    assert tape.gradient(y, v) is not None


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_s04_one_that_is_not_trainable_is_not_watched(read: Any) -> None:
    v = tj.Variable([1.0, 2.0], trainable=False)
    with tj.GradientTape() as tape:
        y = read(v)
    assert tape.watched_variables() == ()
    assert tape.gradient(y, v) is None


def test_s04_one_that_is_not_trainable_can_be_watched_by_hand() -> None:
    v = tj.Variable(3.0, trainable=False)
    with tj.GradientTape() as tape:
        tape.watch(v)
        y = v * v
    assert float(tape.gradient(y, v)) == 6.0


def test_s04_without_watch_accessed_variables_only_those_watched_by_hand() -> None:
    v, w = tj.Variable(3.0), tj.Variable(4.0)
    with tj.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(w)
        y = v * w
    assert [u is w for u in tape.watched_variables()] == [True]
    dv, dw = tape.gradient(y, [v, w])
    assert dv is None
    assert float(dw) == 3.0


def test_s04_without_watch_accessed_variables_captured_ones_are_not_watched() -> None:
    captured = tj.Variable(3.0)

    def layer(x: Any) -> tj.Tensor:
        return x * captured

    x = tj.asarray(2.0)
    with tj.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(x)
        y = layer(x)
    dx, dv = tape.gradient(y, [x, captured])
    assert float(dx) == 3.0
    assert dv is None


def test_s04_each_tape_watches_by_its_own_setting() -> None:
    v = tj.Variable(3.0)
    with (
        tj.GradientTape() as outer,
        tj.GradientTape(watch_accessed_variables=False) as inner,
    ):
        y = v * v
    assert float(outer.gradient(y, v)) == 6.0
    assert inner.gradient(y, v) is None


def test_s04_an_integer_variable_has_no_gradient_and_causes_no_warning() -> None:
    count, v = tj.Variable(2), tj.Variable(3.0)
    with tj.GradientTape() as tape:
        y = v * count
    assert tape.gradient(y, [v, count])[1] is None


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


@pytest.mark.parametrize("kind", structures(0, 0))
def test_s05_watch_takes_structures_of_tensors_and_variables(kind: str) -> None:
    x, v = tj.asarray(3.0), tj.Variable(4.0, trainable=False)
    with tj.GradientTape() as tape:
        tape.watch(structures(x, v)[kind])
        y = x * v
    assert [float(g) for g in tape.gradient(y, [x, v])] == [4.0, 3.0]


def test_s05_watch_takes_a_complex_tensor_without_a_warning() -> None:
    z = tj.asarray(1 + 2j)
    with tj.GradientTape() as tape:
        tape.watch(z)
        y = z * z
    assert complex(tape.gradient(y, z)) == 2 - 4j


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


@pytest.mark.parametrize("name", REFUSED)
def test_s05_anything_else_is_a_type_error_that_names_it(name: str) -> None:
    value = REFUSED[name]
    named = "builtin_function" if name == "function" else name
    with tj.GradientTape() as tape:
        with pytest.raises(TypeError, match=f"watch .*got {named}"):
            tape.watch(value)
        with pytest.raises(TypeError, match=rf"watch .*got {named}.*\['w'\]\[1\]"):
            tape.watch({"w": [tj.asarray(1.0), value]})


def test_s05_a_refused_structure_watches_nothing() -> None:
    x = tj.asarray(3.0)
    with tj.GradientTape() as tape:
        with pytest.raises(TypeError):
            tape.watch([x, 1.0])
        y = x * x
    assert tape.gradient(y, x) is None


@pytest.mark.parametrize("value", [3, True, [1, 2], np.uint8([1])])
@pytest.mark.parametrize("make", [tj.asarray, tj.Variable])
def test_s05_an_integer_or_bool_warns_once_and_has_no_gradient(
    make: Any, value: Any
) -> None:
    x = make(value)
    with tj.GradientTape() as tape:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            tape.watch(x)
        y = x * 2.0
    (warning,) = caught
    assert warning.category is UserWarning
    assert warning.filename == __file__, "it shows the user's line"
    assert x.dtype.name in str(warning.message)
    assert tape.gradient(y, x) is None


# 6: watching late, and in the middle


@pytest.mark.parametrize("is_variable", [False, True], ids=["tensor", "variable"])
def test_s06_a_late_watch_counts_from_there_on(is_variable: bool) -> None:
    x = tj.Variable(3.0, trainable=False) if is_variable else tj.asarray(3.0)
    with tj.GradientTape() as tape:
        y = x * x
        tape.watch(x)
        z = y * x
    assert float(tape.gradient(z, x)) == 9.0


def test_s06_a_watched_intermediate_is_a_leaf() -> None:
    x = tj.asarray(3.0)
    with tj.GradientTape() as tape:
        y = x * x
        tape.watch(y)
        z = y * y
    dx, dy = tape.gradient(z, [x, y])
    assert dx is None
    assert float(dy) == 18.0


def test_s06_watching_after_use_is_too_late() -> None:
    x = tj.asarray(3.0)
    with tj.GradientTape() as tape:
        y = x * x
        z = y * y
        tape.watch(y)
    assert tape.gradient(z, y) is None


def test_s06_watching_what_is_recorded_keeps_its_own_path() -> None:
    x = tj.asarray(3.0)
    with tj.GradientTape() as tape:
        tape.watch(x)
        y = x * x
        tape.watch(y)
        z = y * y
    assert [float(g) for g in tape.gradient(z, [x, y])] == [108.0, 18.0]


def test_s06_watching_twice_counts_once() -> None:
    x = tj.asarray(3.0)
    with tj.GradientTape() as tape:
        tape.watch([x, x])
        y = x * x
        tape.watch(x)
        z = y * x
    assert float(tape.gradient(z, x)) == 27.0


# 7: watched_variables


def test_s07_a_tuple_in_the_order_of_creation() -> None:
    a, b, c = (tj.Variable(float(i), name=n) for i, n in enumerate("abc"))
    with tj.GradientTape() as tape:
        (c * a) * b + a
    watched = tape.watched_variables()
    assert isinstance(watched, tuple)
    assert [v.name for v in watched] == ["a", "b", "c"]
    assert all(v is w for v, w in zip(watched, (a, b, c), strict=True))


def test_s07_kept_after_a_consuming_gradient() -> None:
    v = tj.Variable(3.0)
    with tj.GradientTape() as tape:
        y = v * v
    tape.gradient(y, v)
    assert [w is v for w in tape.watched_variables()] == [True]


def test_s07_available_inside_the_block() -> None:
    v, w = tj.Variable(3.0), tj.Variable(4.0)
    with tj.GradientTape() as tape:
        v * 1.0
        assert len(tape.watched_variables()) == 1
        w * 1.0
        assert len(tape.watched_variables()) == 2


def test_s07_empty_on_a_tape_never_entered() -> None:
    assert tj.GradientTape().watched_variables() == ()


ASSIGNMENTS = {
    "assign": lambda v: v.assign([1.0, 2.0]),
    "assign_add": lambda v: v.assign_add([1.0, 2.0]),
    "assign_sub": lambda v: v.assign_sub([1.0, 2.0]),
    "scatter_add": lambda v: v.scatter_add([0], [1.0]),
    "scatter_update": lambda v: v.scatter_update([0], [1.0]),
}


@pytest.mark.parametrize("assign", ASSIGNMENTS.values(), ids=ASSIGNMENTS)
def test_s07_a_variable_merely_assigned_is_not_watched(assign: Any) -> None:
    v = tj.Variable([1.0, 2.0])
    with tj.GradientTape() as tape:
        assign(v)
    assert tape.watched_variables() == ()


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


@pytest.mark.parametrize("show", PRINTS.values(), ids=PRINTS)
def test_s07_a_variable_merely_printed_is_not_watched(show: Any) -> None:
    v = tj.Variable(1.0)
    with tj.GradientTape() as tape:
        show(v)
    assert tape.watched_variables() == ()


def test_s07_watched_by_hand_and_never_read_is_listed() -> None:
    v = tj.Variable(1.0)
    with tj.GradientTape() as tape:
        tape.watch(v)
        assert tape.watched_variables() == (v,)
        tape.reset()
        assert tape.watched_variables() == ()


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
    v = tj.Variable([1.0, 2.0])
    before = read(v)
    with tj.GradientTape(persistent=True) as tape:
        y = before * v
        z = before * 2.0
    np.testing.assert_array_equal(tape.gradient(y, v).numpy(), [1.0, 2.0])
    assert tape.gradient(z, v) is None
    assert tape.gradient(before, v) is None


def test_s08_nor_does_a_value_read_in_another_tape() -> None:
    v = tj.Variable(3.0)
    with tj.GradientTape():
        before = v.value()
    with tj.GradientTape(persistent=True) as tape:
        y = before * v
    assert float(tape.gradient(y, v)) == 3.0


def test_s08_a_variable_made_in_the_tape_is_differentiable() -> None:
    x = tj.Variable(3.0)
    with tj.GradientTape() as tape:
        v = tj.Variable(x * 2.0)
        y = v * v
    dv, dx = tape.gradient(y, [v, x])
    assert float(dv) == 12.0
    assert dx is None, "its initialisation is not differentiable"


def test_s08_the_function_that_initialises_is_not_differentiated() -> None:
    x = tj.Variable(3.0)
    with tj.GradientTape() as tape:
        v = tj.Variable(lambda: x * 2.0)
        y = v * x
    dv, dx = tape.gradient(y, [v, x])
    assert float(dv) == 3.0
    assert float(dx) == 6.0
