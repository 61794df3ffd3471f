"""ForwardAccumulator: tangents along with the values (line 40)."""

from __future__ import annotations

import asyncio
import contextvars
import pickle
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import pytest

import tapejit as tj
from tapejit.tape import accumulator, variable


class Pair(NamedTuple):
    left: Any
    right: Any


def along(function: Callable[..., Any], x: Any, t: Any = 1.0) -> Any:
    """The tangent of a function of one tensor."""
    x = tj.asarray(x)
    with tj.ForwardAccumulator(x, t) as acc:
        y = function(x)
    return acc.jvp(y)


# What jvp gives


def test_s40_jvp_is_the_derivative_in_the_direction_of_the_tangents() -> None:
    x = tj.asarray([[1.0, 2.0], [3.0, 4.0]])
    t = tj.asarray([[1.0, 0.0], [0.0, -1.0]])
    with tj.ForwardAccumulator(x, t) as acc:
        y = x @ x
    expected = t.numpy() @ x.numpy() + x.numpy() @ t.numpy()
    np.testing.assert_array_equal(acc.jvp(y), expected)


def test_s40_jvp_may_be_asked_inside_and_after_and_repeatedly() -> None:
    x = tj.asarray(3.0)
    with tj.ForwardAccumulator(primals=x, tangents=1.0) as acc:
        y = x * x
        inside = acc.jvp(y)
        z = y * x
    assert float(inside) == 6.0
    assert acc.jvp(primals=y) is inside
    assert [float(acc.jvp(z)) for _ in range(2)] == [27.0, 27.0]


def test_s40_primals_keep_the_tangents_they_were_given() -> None:
    x, v, t = tj.asarray(3.0), tj.Variable(2.0), tj.asarray(5.0)
    with tj.ForwardAccumulator((x, v), (t, t)) as acc:
        assert acc.jvp(x) is t
    assert acc.jvp([v, x]) == [t, t]


def test_s40_structures_of_primals_and_results() -> None:
    primals = {"a": tj.asarray(2.0), "b": [tj.Variable(3.0), Pair(tj.asarray(5.0), ())]}
    tangents = {"b": [tj.asarray(10.0), Pair(100.0, ())], "a": 1.0}
    with tj.ForwardAccumulator(primals, tangents) as acc:
        a, (v, (c, _)) = primals["a"], primals["b"]
        y = Pair(a * v, {"sum": a + v + c})
    found = acc.jvp(y)
    assert isinstance(found, Pair)
    assert float(found.left) == 1 * 3 + 2 * 10
    assert float(found.right["sum"]) == 111.0
    assert acc.jvp([]) == []
    with tj.ForwardAccumulator([], []) as acc:
        y = a * a
    assert acc.jvp(y) is None


def test_s40_without_a_path_it_is_none_or_zeros_on_request() -> None:
    x, c, v = tj.asarray([1.0, 2.0]), tj.asarray([3.0, 4.0]), tj.Variable(1.0)
    with tj.ForwardAccumulator(x, [1.0, 1.0]) as acc:
        y, z = x * 2, c * 2
    assert acc.jvp([z, c, v]) == [None, None, None]
    for zero in ("zero", tj.UnconnectedGradients.ZERO):
        filled = acc.jvp([y, z, v], unconnected_gradients=zero)
        assert [part.numpy().tolist() for part in filled] == [[2, 2], [0, 0], 0]
    assert acc.jvp(z, tj.UnconnectedGradients.NONE) is None
    with pytest.raises(ValueError, match="'none' or 'zero', got 'nil'"):
        acc.jvp(y, "nil")


@pytest.mark.parametrize("cut", [lambda x: tj.astype(x, "int32"), tj.stop_gradient])
def test_s40_integers_and_stop_gradient_cut_the_path(cut: Any) -> None:
    assert along(cut, 3.0) is None
    assert along(lambda x: tj.astype(cut(x), "float32") * 2, 3.0) is None
    assert float(along(lambda x: x * tj.astype(cut(x), "float32"), 3.0)) == 3.0


@pytest.mark.parametrize("name", ["floor", "ceil", "round", "trunc", "sign"])
def test_s40_what_is_constant_in_pieces_has_zeros_not_none(name: str) -> None:
    step = getattr(tj, name)
    for function in (step, lambda x: step(x) * 2, lambda x: tj.sum(tj.exp(step(x)))):
        found = along(function, [1.5, 2.5], [1.0, 1.0])
        assert not np.any(found.numpy())
    mixed = along(lambda x: step(x) + x * x, [1.5, 2.5], [1.0, 1.0])
    np.testing.assert_array_equal(mixed, [3.0, 5.0])


def test_s40_several_results_of_one_operation() -> None:
    x, t = tj.asarray([[2.0, 1.0], [1.0, 3.0]]), tj.asarray([[1.0, 0.0], [0.0, 0.0]])
    with tj.ForwardAccumulator(x, t) as acc:
        values, vectors = tj.linalg.eigh(x)
        fraction, exponent = tj.frexp(x)
    q = vectors.numpy()
    np.testing.assert_allclose(acc.jvp(values), np.diag(q.T @ t.numpy() @ q), 1e-6)
    assert acc.jvp(exponent) is None, "an integer beside a float"
    np.testing.assert_array_equal(acc.jvp(fraction), t / 2.0 ** exponent.numpy())


def test_s40_complex_tangents() -> None:
    z = tj.asarray(1 + 2j)
    with tj.ForwardAccumulator(z, 1j) as acc:
        square, size = z * z, tj.abs(tj.asarray(3 + 4j) * z)
    assert complex(acc.jvp(square)) == 1j * 2 * (1 + 2j)
    expected = 5 * (np.abs(1 + 2.0001j) - np.abs(1 + 1.9999j)) / 0.0002
    np.testing.assert_allclose(acc.jvp(size), expected, rtol=1e-6)
    assert acc.jvp(size).dtype == tj.float32


def test_s40_numpys_functions_and_operators_carry_tangents() -> None:
    assert float(along(np.square, 3.0)) == 6.0
    assert along(lambda x: np.array([1.0, 2.0], "f4") * x, 3.0).numpy().tolist() == [
        1,
        2,
    ]
    assert along(lambda x: tj.asarray(x.numpy()) * 2, 3.0) is None


# The arguments


def test_s40_numbers_lists_and_arrays_are_converted_to_tangents() -> None:
    assert float(along(tj.square, 3.0, 1)) == 6.0
    for t in ([1, 2], [1.0, 2.0], np.array([1.0, 2.0]), np.array([1, 2])):
        found = along(tj.square, [3.0, 4.0], t)
        assert found.dtype == tj.float32
        np.testing.assert_array_equal(found, [6.0, 16.0])


@pytest.mark.parametrize("t", [1.0, [1.0], [[1.0, 2.0]], tj.asarray([1.0, 2.0, 3.0])])
def test_s40_the_shape_of_a_tangent_is_that_of_its_primal(t: Any) -> None:
    shape = np.shape(t)
    with pytest.raises(tj.ShapeError) as caught:
        tj.ForwardAccumulator(tj.asarray([1.0, 2.0]), t)
    assert f"the tangent has shape {shape}, its primal (2,)" in str(caught.value)


def test_s40_the_dtype_of_a_tangent_is_that_of_its_primal() -> None:
    x = tj.asarray(1.0)
    wide = tj.asarray(1.0, dtype="float64")
    with pytest.raises(tj.DTypeError, match="tangent is float64, its primal float32"):
        tj.ForwardAccumulator(x, wide)
    with pytest.raises(tj.DTypeError, match=r"tangent at \[0\] is int32"):
        tj.ForwardAccumulator([x], [tj.asarray(1)])
    with pytest.raises(tj.DTypeError, match=r'help .*astype\("float32"\)'):
        tj.ForwardAccumulator(x, tj.Variable(1.0, dtype="float64"))
    with pytest.raises(tj.DTypeError, match="complex64"):
        tj.ForwardAccumulator(x, 1j)
    assert complex(along(tj.square, 1j, 1.0)) == 2j, "a real direction is one"


def test_s40_structures_that_differ_are_refused() -> None:
    x, y = tj.asarray(1.0), tj.asarray(2.0)
    with pytest.raises(ValueError, match="tangents differs from primals"):
        tj.ForwardAccumulator([x, y], [1.0])
    with pytest.raises(ValueError, match="tangents differs from primals"):
        tj.ForwardAccumulator({"x": x}, {"y": 1.0})
    with pytest.raises(TypeError, match=r"the tangent at \[1\] is None"):
        tj.ForwardAccumulator([x, y], [1.0, None])
    with pytest.raises(TypeError, match="str"):
        tj.ForwardAccumulator(x, "one")


@pytest.mark.parametrize("wrong", [1.0, None, "x", np.ones(2)])
def test_s40_primals_are_tensors_and_variables(wrong: Any) -> None:
    name = "None" if wrong is None else type(wrong).__name__
    with pytest.raises(TypeError, match=rf"primals at .1.: .* got {name}"):
        tj.ForwardAccumulator([tj.asarray(1.0), wrong], [1.0, wrong])
    with tj.ForwardAccumulator([], []) as acc:
        pass
    with pytest.raises(TypeError, match=rf"jvp's argument: .* got {name}"):
        acc.jvp(wrong)


def test_s40_a_primal_is_named_once() -> None:
    for x in (tj.asarray(1.0), tj.Variable(1.0)):
        with pytest.raises(ValueError, match=r"at \['a'\] and \['b'\] are the same"):
            tj.ForwardAccumulator({"a": x, "b": x}, {"a": 1.0, "b": 1.0})


def test_s40_an_integer_primal_warns_and_has_no_tangent() -> None:
    n, x = tj.asarray(3), tj.asarray(2.0)
    with pytest.warns(UserWarning, match="int32"):
        acc = tj.ForwardAccumulator([n, x], [1, 1.0])
    with acc:
        y, z = n * n, n * x
    assert acc.jvp([n, y]) == [None, None]
    assert float(acc.jvp(z)) == 3.0


# Its life


def test_s40_before_and_after_the_block_nothing_is_computed() -> None:
    x = tj.asarray(3.0)
    before = x * x
    acc = tj.ForwardAccumulator(x, 1.0)
    between = x * x
    with acc:
        y = before * x
    after = y * x
    assert acc.jvp([before, between, after]) == [None, None, None]
    assert float(acc.jvp(y)) == 9.0


def test_s40_it_may_be_entered_again_but_not_twice_at_once() -> None:
    x = tj.asarray(3.0)
    with tj.ForwardAccumulator(x, 1.0) as acc:
        y = x * x
        with pytest.raises(ValueError, match="recording already"), acc:
            pass
        z = y * x
    with acc:
        w = z * x
    assert [float(t) for t in acc.jvp([y, z, w])] == [6.0, 27.0, 108.0]


def test_s40_jvp_of_one_that_never_recorded_says_so() -> None:
    x = tj.asarray(3.0)
    acc = tj.ForwardAccumulator(x, 1.0)
    with pytest.raises(RuntimeError, match="never recorded"):
        acc.jvp(x * x)


def test_s40_exceptions_pass_and_leave_it_usable() -> None:
    x = tj.asarray(3.0)
    acc = tj.ForwardAccumulator(x, 1.0)
    found = []

    def fail() -> None:
        with acc:
            found.append(x * x)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    (y,) = found
    late = y * x
    assert float(acc.jvp(y)) == 6.0
    assert acc.jvp(late) is None


def test_s40_an_operation_that_fails_leaves_it_usable() -> None:
    x = tj.asarray([3.0, 4.0])
    with tj.ForwardAccumulator(x, [1.0, 1.0]) as acc:
        with pytest.raises(tj.ShapeError):
            x + tj.ones(3)
        y = x * x
    np.testing.assert_array_equal(acc.jvp(y), [6.0, 8.0])


def test_s40_stop_recording_makes_constants() -> None:
    x = tj.asarray(3.0)
    with tj.ForwardAccumulator(x, 1.0) as acc:
        with acc.stop_recording():
            c = x * x
        with pytest.raises(ZeroDivisionError), acc.stop_recording():
            raise ZeroDivisionError
        y = c * x
    assert acc.jvp(c) is None
    assert float(acc.jvp(y)) == 9.0
    with pytest.raises(tj.TapeNotRecording), acc.stop_recording():
        pass


def test_s40_stopping_a_tape_does_not_stop_an_accumulator() -> None:
    x = tj.Variable(3.0)
    with tj.ForwardAccumulator(x, 1.0) as acc, tj.GradientTape() as tape:
        with tape.stop_recording():
            c = x * x
        y = c * x
    assert [float(t) for t in acc.jvp([c, y])] == [6.0, 27.0]
    assert float(tape.gradient(y, x)) == 9.0


def test_s40_accumulators_may_end_out_of_order() -> None:
    x = tj.asarray(3.0)
    first, second = tj.ForwardAccumulator(x, 1.0), tj.ForwardAccumulator(x, 10.0)
    first.__enter__()
    second.__enter__()
    y = x * x
    first.__exit__(None, None, None)
    z = x * x
    second.__exit__(None, None, None)
    w = x * x
    assert [float(t) for t in second.jvp([y, z])] == [60.0, 60.0]
    assert float(first.jvp(y)) == 6.0
    assert [first.jvp(z), first.jvp(w), second.jvp(w)] == [None, None, None]


def test_s40_it_cannot_be_pickled() -> None:
    with pytest.raises(TypeError, match="pickled"):
        pickle.dumps(tj.ForwardAccumulator(tj.asarray(1.0), 1.0))


# Variables


def test_s40_a_variable_has_its_tangent_at_each_read() -> None:
    v = tj.Variable([2.0, 3.0], trainable=False)
    before = v.value()
    with tj.ForwardAccumulator(v, [1.0, 10.0]) as acc:
        y, z, part = v * v, v.value(), v[1]
        cut = before * 2
    assert [t.numpy().tolist() for t in acc.jvp([y, z, part])] == [[4, 60], [1, 10], 10]
    assert acc.jvp([before, cut]) == [None, None], "read before the block"


def test_s40_also_after_an_assignment_as_on_a_tape() -> None:
    """The numbers of line 34: the gradient of each is its tangent."""
    v, x = tj.Variable(3.0), tj.asarray(5.0)
    with tj.ForwardAccumulator((v, x), (1.0, 100.0)) as acc:
        y = v * v
        v.assign(10.0)
        z = v * v
        assigned = v.assign_add(1.0)
        w = assigned * 2
        v.assign(tj.stop_gradient(x))
    assert [float(t) for t in acc.jvp([y, z, assigned, w])] == [6.0, 20.0, 1.0, 2.0]
    assert float(acc.jvp(v)) == 1.0


def test_s40_nothing_flows_into_a_variable_that_is_assigned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(variable, "_tracked_warned", False)  # it warns once
    v, x = tj.Variable(3.0), tj.asarray(5.0)
    with tj.ForwardAccumulator(x, 1.0) as acc:
        with pytest.warns(UserWarning, match="no gradient flows through"):
            result = v.assign(x * x)
        y = v * x + result
    assert acc.jvp([v, result]) == [None, None]
    assert float(acc.jvp(y)) == 25.0


def test_s40_a_variable_as_tangent_is_read_once() -> None:
    x, t = tj.asarray(3.0), tj.Variable(1.0)
    acc = tj.ForwardAccumulator(x, t)
    t.assign(10.0)
    with acc:
        y = x * x
    assert float(acc.jvp(y)) == 6.0


# Threads and tasks


def in_thread(function: Callable[[], Any]) -> Any:
    context = contextvars.copy_context()
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: context.run(function)).result()


def test_s40_operations_of_other_threads_are_constants() -> None:
    x, v = tj.asarray(3.0), tj.Variable(2.0)
    with tj.ForwardAccumulator((x, v), (1.0, 1.0)) as acc:
        y = x * x
        theirs, read = in_thread(lambda: (y * x, v.value()))
        z = theirs * x
        assert float(in_thread(lambda: acc.jvp(y))) == 6.0
        with pytest.raises(ValueError, match="recording already"):
            in_thread(acc.__enter__)
    assert acc.jvp([theirs, read]) == [None, None]
    assert float(acc.jvp(z)) == 27.0


def test_s40_accumulators_of_many_threads_share_their_primals() -> None:
    for _ in range(50):
        x = tj.asarray(3.0)  # new: the threads are the first to give it an identity

        def slope(t: float, x: tj.Tensor = x) -> float:
            with tj.ForwardAccumulator(x, t) as acc:
                y = x * x
            return float(acc.jvp(y))

        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(slope, [1.0, 2.0, 3.0, 4.0])) == [6, 12, 18, 24]


def test_s40_tasks_started_inside_the_block_count_and_do_not_mix() -> None:
    async def slope(t: float) -> list[Any]:
        x = tj.asarray(3.0)

        async def multiply(y: tj.Tensor) -> tj.Tensor:
            await asyncio.sleep(0)
            return y * x

        with tj.ForwardAccumulator(x, t) as acc:
            y = await asyncio.create_task(multiply(x))
            await asyncio.sleep(0)
            z, late = y * x, asyncio.create_task(multiply(y))
        return [*acc.jvp([y, z]), acc.jvp(await late)]

    async def main() -> Any:
        return await asyncio.gather(slope(1.0), slope(10.0))

    (y, z, late), (y10, z10, late10) = asyncio.run(main())
    assert [float(t) for t in (y, z, y10, z10)] == [6.0, 27.0, 60.0, 270.0]
    assert (late, late10) == (None, None), "it ran after the block"


# What is kept


@pytest.mark.usefixtures("without_collector")
def test_s40_a_tangent_goes_when_its_tensor_goes() -> None:
    x = tj.asarray([3.0, 4.0])
    with tj.ForwardAccumulator(x, [1.0, 1.0]) as acc:
        y = tj.exp(x)
        tangents = [weakref.ref(acc.jvp(y))]
        for _ in range(5):
            y = tj.sin(y)
            tangents.append(weakref.ref(acc.jvp(y)))
            assert [t() is not None for t in tangents] == [False] * (
                len(tangents) - 1
            ) + [True]
        assert len(acc._recording.table.entries) == 2, "x and the last y"
    del acc
    assert tangents[-1]() is None, "nothing but the accumulator held it"


@pytest.mark.usefixtures("without_collector")
def test_s40_assignments_leave_nothing_behind() -> None:
    v, w, x = tj.Variable(1.0), tj.Variable(1.0), tj.asarray(1.0)
    with tj.ForwardAccumulator((v, x), (1.0, 1.0)) as acc:
        for _ in range(10):
            v.assign_add(1.0) * x
            w.assign_add(1.0) * x
            w.assign_add(1.0)
            v * x
    assert len(acc._recording.table.entries) <= 2, "x and the value of v"
    assert not acc._recording.pending


def test_s40_each_rule_is_built_once_and_their_number_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    accumulator.PUSHFORWARDS.clear()
    function = lambda x: tj.sum(tj.exp(x) * x)
    along(function, [1.0, 2.0], [1.0, 1.0])
    first = dict(accumulator.PUSHFORWARDS)
    assert len(first) == 3
    along(function, [3.0, 4.0], [5.0, 5.0])
    assert first == accumulator.PUSHFORWARDS
    monkeypatch.setattr(accumulator, "MAX_PUSHFORWARDS", 4)
    along(function, [1.0, 2.0, 3.0], [1.0, 1.0, 1.0])
    assert len(accumulator.PUSHFORWARDS) <= 4
