"""What a function may do besides computing: state, side effects, leaks, errors.

Lines 50 to 55. Programs that make sense as plain Python run in every mode there is.
"""

from __future__ import annotations

import dataclasses
import linecache
from collections import namedtuple
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tapejit as tj

from .both_modes import assert_modes

X = tj.asarray([1.0, 2.0])
Pair = namedtuple("Pair", "a b")


def line_of(text: str) -> int:
    """The number of the only line of this file that contains a text."""
    lines = linecache.getlines(__file__)
    (found,) = [at for at, line in enumerate(lines, 1) if text in line]
    return found


# Variables made in a trace (50)


def test_s50_a_variable_that_is_kept_may_be_made_in_a_trace() -> None:
    runs = []

    class Layer:
        w: Any = None

        @tj.function
        def apply(self, x: Any) -> Any:
            runs.append(1)
            if self.w is None:
                self.w = tj.Variable(tj.ones(x.shape) * 3)
            self.w.assign_add(tj.ones(x.shape))
            return x * self.w

    layer = Layer()
    np.testing.assert_array_equal(layer.apply(X), [4.0, 8.0])
    assert len(runs) == 1, "the first call traces once"
    np.testing.assert_array_equal(layer.apply(X), [5.0, 10.0])
    np.testing.assert_array_equal(layer.w, [5.0, 5.0])
    assert len(runs) == 1


def test_s50_made_from_a_traced_value_it_has_that_value() -> None:
    kept: dict[str, tj.Variable] = {}

    @tj.function
    def f(x: Any) -> Any:
        if "v" not in kept:
            kept["v"] = tj.Variable(x * 2, name="made")
        return kept["v"] + x

    np.testing.assert_array_equal(f(X), [3.0, 6.0])
    np.testing.assert_array_equal(kept["v"], [2.0, 4.0])
    np.testing.assert_array_equal(f(X * 10), [12.0, 24.0])


def test_s50_gradients_reach_a_variable_made_in_the_same_call() -> None:
    kept: list[tj.Variable] = []

    @tj.function
    def f(x: Any) -> Any:
        if not kept:
            kept.append(tj.Variable([3.0, 4.0]))
        with tj.GradientTape() as tape:
            y = tj.sum(kept[0] * kept[0] * x)
        return tape.gradient(y, kept[0])

    for _ in range(2):
        np.testing.assert_array_equal(f(X), [6.0, 16.0])


def test_s50_a_tape_around_the_call_that_makes_it_sees_it() -> None:
    kept: list[tj.Variable] = []

    @tj.function
    def f(x: Any) -> Any:
        if not kept:
            kept.append(tj.Variable([3.0, 4.0]))
        return tj.sum(kept[0] * kept[0] * x)

    for _ in range(2):
        with tj.GradientTape() as tape:
            y = f(X)
        assert tape.watched_variables() == (kept[0],)
        np.testing.assert_array_equal(tape.gradient(y, kept[0]), [6.0, 16.0])


def test_s50_slots_may_appear_in_a_later_trace() -> None:
    slots: dict[str, tj.Variable] = {}

    @tj.function
    def step(x: Any, name: str) -> Any:
        if name not in slots:
            slots[name] = tj.Variable(0.0)
        return slots[name].assign_add(tj.sum(x))

    found = [float(step(X, name)) for name in ("a", "a", "b", "a", "b")]
    assert found == [3.0, 6.0, 3.0, 9.0, 6.0]


def test_s50_a_variable_that_dies_with_its_trace_is_an_error() -> None:
    @tj.function
    def f(x: Any) -> Any:
        w = tj.Variable([1.0, 1.0])  # one that dies
        return x * w

    for _ in range(2):
        with pytest.raises(ValueError, match="that is gone") as caught:
            f(X)
        assert f":{line_of('# one that ' + 'dies')} in f" in str(caught.value)
    assert f.signatures() == []


def test_s50_also_one_made_in_a_nested_call() -> None:
    @tj.function
    def inner(x: Any) -> Any:
        return x * tj.Variable(1.0)

    @tj.function
    def outer(x: Any) -> Any:
        return inner(x)

    for _ in range(2):
        with pytest.raises(ValueError, match="makes a variable that is gone"):
            outer(X)


def test_s50_a_call_that_fails_after_making_a_variable_can_be_repeated() -> None:
    class Layer:
        w: Any = None

    layer = Layer()

    @tj.function
    def f(x: Any, bad: bool) -> Any:
        if layer.w is None:
            layer.w = tj.Variable(2.0)
        layer.w.assign_add(1.0)
        if bad:
            raise KeyError("bad")
        return x * layer.w

    with pytest.raises(KeyError):
        f(X, True)
    assert float(layer.w) == 2.0, "what the failed call assigned is undone"
    np.testing.assert_array_equal(f(X, False), [3.0, 6.0])


# Side effects and closures (51)


def test_s51_python_side_effects_happen_when_it_is_traced() -> None:
    seen: list[Any] = []

    @tj.function
    def f(x: Any) -> Any:
        seen.append(x.shape)
        return x + 1

    for x in (X, X, tj.ones(3), X):
        f(x)
    assert seen == [(2,), (3,)]


def test_s51_closures_over_python_values_are_frozen() -> None:
    factor = 2
    table = {"k": 10.0}

    @tj.function
    def f(x: Any) -> Any:
        return x * factor + table["k"]

    np.testing.assert_array_equal(f(X), [12.0, 14.0])
    factor, table["k"] = 5, 0.0
    np.testing.assert_array_equal(f(X), [12.0, 14.0])
    f.clear_cache()
    np.testing.assert_array_equal(f(X), [5.0, 10.0])


def test_s51_variables_are_captured_by_reference() -> None:
    v = tj.Variable([1.0, 1.0])
    held = SimpleNamespace(v=v)

    @tj.function
    def f(x: Any) -> Any:
        return x * held.v

    for value in (2.0, 3.0):
        v.assign([value, value])
        np.testing.assert_array_equal(f(X), [value, 2 * value])
    assert f.trace_count == 1


def test_s51_arrays_and_tensors_are_captured_by_value() -> None:
    array = np.array([1.0, 2.0], np.float32)
    tensor = tj.asarray([10.0, 20.0])

    @tj.function
    def f(x: Any) -> Any:
        return x * array + tensor

    np.testing.assert_array_equal(f(X), [11.0, 24.0])
    array[:] = 100
    np.testing.assert_array_equal(f(X), [11.0, 24.0])
    large = np.ones(100_000, np.float32)
    g = tj.function(lambda x: tj.sum(large * x))
    assert float(g(tj.asarray(1.0))) == 100_000
    large[:] = 2
    assert float(g(tj.asarray(1.0))) == 100_000


def test_s51_random_numbers_and_prints_come_at_each_call(
    capsys: pytest.CaptureFixture[str],
) -> None:
    @tj.function
    def draw(x: Any) -> Any:
        tj.print("x is", x)
        return tj.random.uniform((3,)) + 0 * tj.sum(x)

    tj.random.set_seed(1)
    found = [draw(X).numpy() for _ in range(3)]
    assert capsys.readouterr().out == "x is [1. 2.]\n" * 3
    tj.random.set_seed(1)
    plain = [tj.random.uniform((3,)).numpy() for _ in range(3)]
    np.testing.assert_array_equal(found, plain)


def test_s51_prints_keep_their_order_among_themselves_and_with_writes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    v = tj.Variable(1.0)

    @tj.function
    def f(x: Any) -> Any:
        tj.print("before", v)
        v.assign_add(x)
        tj.print("between", v)
        v.assign_add(x)
        tj.print("after", v, x)

    for start in (1.0, 5.0):
        assert f(tj.asarray(2.0)) is None
        texts = capsys.readouterr().out.splitlines()
        assert texts == [
            f"before {start}",
            f"between {start + 2}",
            f"after {start + 4} 2.0",
        ]


def test_s51_python_print_shows_a_type_and_no_number(
    capsys: pytest.CaptureFixture[str],
) -> None:
    @tj.function
    def f(x: Any) -> Any:
        print(x * 2)
        return x

    f(X)
    text = capsys.readouterr().out
    assert "f32[2]" in text
    assert "in f, made by mul at test_function_state.py:" in text
    f(X)
    assert capsys.readouterr().out == ""


# Leaks (52)


@pytest.mark.parametrize(
    "use",
    [
        lambda x: x + 1,
        lambda x: tj.sum(x),
        lambda x: x.numpy(),
        lambda x: bool(x[0] > 0),
        lambda x: tj.Variable(x),
        lambda x: tj.Variable([0.0, 0.0]).assign(x),
        lambda x: tj.function(lambda y: y + 1)(x),
        lambda x: tj.function(lambda: x + 1)(),
        lambda x: np.asarray(x),
        lambda x: tj.stack([x, x]),
        lambda x: tj.print(x),
    ],
)
def test_s52_a_tensor_that_leaked_is_named_with_its_function_and_line(use: Any) -> None:
    kept: list[Any] = []

    @tj.function
    def leaky(x: Any) -> Any:
        kept.append(x * 3)  # the line that leaks
        return x

    leaky(X)
    with pytest.raises((RuntimeError, TypeError, ValueError)) as caught:
        use(kept[0])
    assert isinstance(caught.value, tj.TapejitError)
    assert "leaky" in str(caught.value)
    assert f":{line_of('# the line that ' + 'leaks')}" in str(caught.value)


def test_s52_a_leaked_argument_is_named_too() -> None:
    kept: list[Any] = []

    @tj.function
    def leaky(weight: Any) -> Any:
        kept.append(weight)
        return weight * 1

    leaky(X)
    with pytest.raises(tj.TapejitError, match=r"(?s)weight.*leaky|leaky.*weight"):
        kept[0] + 1


def test_s52_a_leak_does_not_spoil_the_function() -> None:
    kept: list[Any] = []

    @tj.function
    def f(x: Any) -> Any:
        kept.append(x)
        return x * 2

    f(X)
    with pytest.raises(tj.TapejitError):
        kept[0] + 1
    np.testing.assert_array_equal(f(X), [2.0, 4.0])
    assert "f32[2]" in repr(kept[0]), "it can still be shown"


def test_s52_a_leak_from_one_function_into_the_trace_of_another() -> None:
    kept: list[Any] = []

    @tj.function
    def first(x: Any) -> Any:
        kept.append(x + 1)
        return x

    @tj.function
    def second(x: Any) -> Any:
        return x + kept[0]

    first(X)
    with pytest.raises(tj.TapejitError, match="first"):
        second(X)


# Returns (53)


@pytest.mark.parametrize(
    "body",
    [
        lambda x: None,
        lambda x: (),
        lambda x: [],
        lambda x: {"a": x, "b": [x, (x, None)]},
        lambda x: Pair(x, x * 2),
        lambda x: [None, x],
        lambda x: (x, x),
        lambda x: 1,
        lambda x: 1.5,
        lambda x: True,
        lambda x: 2j,
        lambda x: np.float64(1.5),
        lambda x: np.arange(3),
        lambda x: [x, 1, np.ones(2)],
        lambda x: {"z": x, "a": 1},
    ],
)
def test_s53_returns_of_every_kind(body: Any) -> None:
    assert_modes(body, lambda: tj.asarray([1.0, 2.0]))


def test_s53_scalars_and_arrays_come_back_as_tensors() -> None:
    f = tj.function(lambda: (1, 1.5, np.arange(3), True))
    for _ in range(2):
        found = f()
        assert all(type(x) is tj.Tensor for x in found)
        assert [x.dtype.name for x in found] == ["int32", "float32", "int64", "bool"]


@pytest.mark.filterwarnings("ignore:.*needs a value while it is traced")
@pytest.mark.parametrize(
    "body",
    [
        lambda x: float(tj.sum(x)),
        lambda x: tj.sum(x).item(),
        lambda x: x.tolist(),
        lambda x: complex(x[0]),
        lambda x: [float(x[0]) / 3, {"a": x[1].item()}],
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_s53_numbers_taken_from_tensors_come_back_whole(body: Any, dtype: str) -> None:
    """A number from a float64 is not rounded to the default float."""
    x = tj.asarray(np.array([1 / 3, 1 / 7], dtype))
    f = tj.function(body)
    expected = tj.tree.leaves(body(x))
    for _ in range(3):
        found = tj.tree.leaves(f(x))
        assert {y.dtype.itemsize for y in found} <= {x.itemsize, 2 * x.itemsize}
        kind = found[0].dtype
        assert [y.item() for y in found] == [np.array(y, kind).item() for y in expected]


@pytest.mark.filterwarnings("ignore:.*needs a value while it is traced")
@pytest.mark.parametrize("dtype", ["int32", "int64", "uint32"])
def test_s53_a_float_of_a_long_integer_is_not_rounded(dtype: str) -> None:
    f = tj.function(lambda x: float(tj.sum(x)))
    large = 2**24 + 1  # no float32
    for _ in range(3):
        assert f(np.array([large], dtype)).item() == large


def test_s53_a_dict_keeps_the_order_it_was_given() -> None:
    f = tj.function(lambda x: {"z": x, "a": x * 2})
    for _ in range(2):
        assert list(f(X)) == ["z", "a"]


def test_s53_dataclasses_come_back() -> None:
    @dataclasses.dataclass
    class Out:
        loss: Any
        parts: Any

    f = tj.function(lambda x: Out(tj.sum(x), [x, None]))
    for _ in range(2):
        out = f(X)
        assert float(out.loss) == 3.0
        np.testing.assert_array_equal(out.parts[0], X)
        assert out.parts[1] is None


def test_s53_variables_come_back_as_values() -> None:
    v = tj.Variable([1.0, 2.0])
    f = tj.function(lambda: v)
    for mode in (False, True):
        with tj.config.override(eager=mode):
            out = f()
            assert type(out) is tj.Tensor
            v.assign_add([1.0, 1.0])
            np.testing.assert_array_equal(out + 1, v)


def test_s53_a_returned_argument_is_a_new_tensor() -> None:
    f = tj.function(lambda x: (x, x))
    for mode in (False, False, True):
        with tj.config.override(eager=mode):
            a, b = f(X)
            assert a is not X
            assert b is not X
            np.testing.assert_array_equal(a, X)
            with tj.GradientTape() as tape:
                tape.watch(X)
                y, _ = f(X)
            np.testing.assert_array_equal(tape.gradient(y, X), [1.0, 1.0])


@pytest.mark.parametrize("bad", ["text", object(), print, {1}, tj.GradientTape()])
def test_s53_anything_else_is_refused(bad: Any) -> None:
    name = type(bad).__name__
    for mode in (False, True):
        with tj.config.override(eager=mode):
            v = tj.Variable(1.0)

            @tj.function
            def f(x: Any) -> Any:
                v.assign_add(x)  # noqa: B023 - the one of this turn
                return [x, bad]

            with pytest.raises(TypeError, match=f"f returned a {name}"):
                f(tj.asarray(1.0))
            assert float(v) == 1.0, "a call that fails changes nothing"


# Order of reads, writes and checks (54)


def setup() -> Any:
    return tj.Variable(3.0), tj.asarray(2.0)


def test_s54_reads_and_writes_keep_the_order_of_the_program() -> None:
    def program(v: Any, x: Any) -> Any:
        first = v * 1
        v.assign(x)
        second = v * 1
        v.assign_add(first)
        third = v.assign_sub(second * 2)
        return first, second, third, v

    assert_modes(program, setup, expected=(3.0, 2.0, 1.0, 1.0), variables=[1.0])


def test_s54_unused_writes_still_happen() -> None:
    def program(v: Any, x: Any) -> Any:
        v.assign(x)
        v.assign_add(x)
        return x

    assert_modes(program, setup, variables=[4.0])


def test_s54_values_swap() -> None:
    def program(a: Any, b: Any) -> None:
        before = a.value()
        a.assign(b)
        b.assign(before)

    assert_modes(
        program,
        lambda: (tj.Variable([1.0, 2.0]), tj.Variable([3.0, 4.0])),
        variables=[[3.0, 4.0], [1.0, 2.0]],
    )


@pytest.mark.parametrize(
    ("check", "error"),
    [
        (lambda x: tj.debug.assert_less(x, 1.0), AssertionError),
        (lambda x: tj.debug.assert_all_finite(tj.log(x - 2)), AssertionError),
        (lambda x: tj.print(tj.ones(3)[x.astype("int32") * 2]), IndexError),
    ],
)
@pytest.mark.filterwarnings("ignore:assign_add of a value that a tape is recording")
def test_s54_a_check_that_fails_leaves_every_variable(check: Any, error: Any) -> None:
    v, u = tj.Variable(3.0), tj.Variable(5.0)

    @tj.function
    def f(x: Any) -> Any:
        v.assign_add(x)
        check(x)
        u.assign_add(v)

    @tj.function
    def late(x: Any) -> Any:
        v.assign_add(x)
        u.assign_add(v)
        check(x)

    bad, good = tj.asarray(2.0), tj.asarray(0.0)
    for function in (f, late):
        for eager, under_tape in ((False, False), (False, True), (True, False)) * 2:
            around = tj.GradientTape() if under_tape else nullcontext()
            with tj.config.override(eager=eager), around, pytest.raises(error):
                function(bad)
            assert (float(v), float(u)) == (3.0, 5.0)
    if error is AssertionError and "log" not in check.__code__.co_names:
        f(good)
        assert (float(v), float(u)) == (3.0, 8.0)


def test_s54_a_check_that_fails_now_and_then_lets_the_next_call_through() -> None:
    v = tj.Variable(0.0)

    @tj.function
    def f(x: Any) -> Any:
        v.assign_add(x)
        tj.debug.assert_less(v, 10.0, "too much")
        v.assign_add(1.0)
        return v * 1

    assert float(f(tj.asarray(1.0))) == 2.0
    with pytest.raises(AssertionError, match="too much"):
        f(tj.asarray(9.0))
    assert float(v) == 2.0
    assert float(f(tj.asarray(1.0))) == 4.0
    assert f.trace_count == 1


def test_s54_checks_before_others_are_the_ones_that_are_reported() -> None:
    @tj.function
    def f(x: Any) -> Any:
        tj.debug.assert_less(x, 10.0, "first")
        tj.debug.assert_less(x, 5.0, "second")
        return x

    for value, name in ((20.0, "first"), (7.0, "second"), (20.0, "first")):
        with pytest.raises(AssertionError, match=name):
            f(tj.asarray(value))
    f(tj.asarray(1.0))


def test_s54_what_was_printed_before_the_failure_was_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    @tj.function
    def f(x: Any) -> Any:
        tj.print("before")
        tj.debug.assert_less(x, 1.0)
        tj.print("after")
        return x

    for value in (0.0, 2.0, 2.0):
        if value:
            with pytest.raises(AssertionError):
                f(tj.asarray(value))
            assert capsys.readouterr().out == "before\n"
        else:
            f(tj.asarray(value))
            assert capsys.readouterr().out == "before\nafter\n"
