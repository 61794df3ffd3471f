"""`tj.debug.check_numerics`: the operation that gives NaN or infinity is named.

The same in eager code, in functions that NumPy performs and in native code: each test
that calls a function runs in all three ways.
"""

from __future__ import annotations

import textwrap
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from elsewhere import run_interpreter

import tapejit as tj
from tapejit.runtime import executable

WAYS = {
    "eager": {"eager": True},
    "interpreted": {"native": False},
    "native": {"native": True, "cache": False, "compile": "now"},
}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    with tj.config.override(**WAYS[request.param]):
        yield request.param


def failure(function: Any, *args: Any) -> tj.NonFiniteError:
    """The error of a call while numerics are checked."""
    with tj.debug.check_numerics(), pytest.raises(tj.NonFiniteError) as caught:
        function(*args)
    return caught.value


@pytest.fixture
def x() -> Any:
    return tj.asarray(np.float32([[1, 2, 4], [3, 0, 5]]))


# What is found


def test_the_error_names_operation_place_and_operands(way: str, x: Any) -> None:
    @tj.function
    def shrunk(x: Any, y: Any) -> Any:
        return tj.tanh(y / x)

    error = failure(shrunk, x, tj.ones((2, 3)))
    assert error.op == "div"
    assert error.index == (1, 1)
    assert [float(value) for value in error.values] == [np.inf, 1.0, 0.0]
    assert error.message == (
        "the result is inf at index (1, 1), of 1.0 and 0.0; "
        "1 of 6 elements is not finite"
    )
    assert "return tj.tanh(y / x)" in str(error)


def test_a_value_that_no_result_depends_on_is_found(way: str, x: Any) -> None:
    @tj.function
    def hidden(x: Any) -> Any:
        return tj.sum(tj.where(x > 0, tj.log(x), 0.0))

    assert np.isfinite(hidden(x).numpy())
    assert failure(hidden, x).op == "log"


def test_a_value_that_the_passes_would_take_away_is_found(way: str, x: Any) -> None:
    @tj.function
    def undone(x: Any) -> Any:
        return tj.negative(tj.negative(tj.log(x))) * 1.0

    assert failure(undone, x).op == "log"


def test_a_sum_that_overflows_is_found(way: str) -> None:
    large = tj.asarray(np.full((40, 100), 3e37, np.float32))
    for axis in (None, 0, 1):
        error = failure(tj.function(lambda x, axis=axis: tj.sum(x, axis=axis)), large)
        assert error.op == "sum"
        assert error.values == (np.inf,)


def test_a_sum_in_many_tasks_is_found(way: str) -> None:
    """What each task has summed up is finite."""
    values = tj.asarray(np.full((2000, 1000), 1.5e32, np.float32))
    total = tj.function(lambda x: tj.sum(x * 1.5))
    assert total.kernels(values)[0].tasks > 3
    assert failure(total, values).op == "sum"


def test_a_product_of_matrices_is_found(way: str) -> None:
    large = tj.asarray(np.full((40, 40), 1e19, np.float32))
    assert failure(tj.function(lambda x: tj.tanh(x @ x)), large).op == "matmul"


def test_a_scan_is_found(way: str) -> None:
    large = tj.asarray(np.full(40, 2e37, np.float32))
    error = failure(tj.function(lambda x: tj.cumulative_sum(x)), large)
    assert error.index == (17,)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "complex64"])
def test_every_floating_dtype_is_checked(way: str, dtype: str) -> None:
    values = tj.asarray([1.0, 0.0]).astype(dtype)
    error = failure(tj.function(lambda x: 1 / x), values)
    assert error.index == (1,)


def test_half_precision_overflows_where_it_is_rounded(way: str) -> None:
    values = tj.asarray(np.float16([60000.0]))
    assert failure(tj.function(lambda x: (x + x) * 0.25), values).op == "add"


def test_what_numpy_performs_between_kernels_is_checked(way: str) -> None:
    @tj.function
    def mixed(x: Any) -> Any:
        return tj.exp(tj.linalg.det(x * 1e10) * 1e30)

    error = failure(mixed, tj.asarray(3 * np.eye(4, dtype="f4")))
    assert error.op in ("det", "mul")


def test_an_operand_that_was_not_finite_before_is_said(way: str) -> None:
    values = tj.asarray([1.0, np.nan])
    error = failure(tj.function(lambda x: x[1:] + 1.0), values)
    assert error.op == "add"
    assert "comes from outside" in str(error)


def test_moving_elements_is_no_operation_to_be_asked(way: str) -> None:
    values = tj.asarray([[1.0, np.nan]])
    with tj.debug.check_numerics():
        moved = tj.function(lambda x: tj.concat([x.T[::-1], x.T]))(values)
    assert moved.shape == (4, 1)


def test_finite_values_pass(way: str, x: Any) -> None:
    @tj.function
    def fine(x: Any) -> Any:
        return tj.nn.softmax(x)

    expected = fine(x).numpy()
    with tj.debug.check_numerics():
        assert np.allclose(fine(x).numpy(), expected, rtol=1e-6)


def test_native_code_finds_out_by_itself_that_all_is_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*args: Any) -> Any:
        raise AssertionError("NumPy is asked although nothing was found")

    monkeypatch.setattr(executable, "run_checked", refuse)
    values = tj.asarray(np.linspace(0.5, 2, 70, dtype="f4").reshape(7, 10))
    with tj.config.override(**WAYS["native"]), tj.debug.check_numerics():
        found = tj.function(lambda x: tj.sum(tj.log(x) @ x.T, axis=0))(values)
        assert found.shape == (7,)
        with pytest.raises(AssertionError, match="NumPy is asked"):
            tj.function(lambda x: tj.log(x - 0.5))(values)


def test_integers_and_bools_are_not_asked(way: str) -> None:
    with tj.debug.check_numerics():
        found = tj.function(lambda n: (n // 2 > 1, n * n))(tj.arange(5))
    assert found[1].numpy().tolist() == [0, 1, 4, 9, 16]


def test_sizes_that_are_open_are_checked() -> None:
    specs = [tj.TensorSpec([None])]
    logarithm = tj.function(lambda x: tj.log(x), input_signature=specs)
    assert failure(logarithm, tj.asarray([1.0, 2.0, 0.0])).index == (2,)


def test_a_function_that_calls_a_function_names_the_inner_line(way: str) -> None:
    @tj.function
    def inner(x: Any) -> Any:
        return tj.sqrt(x - 1.0)

    @tj.function
    def outer(x: Any) -> Any:
        return inner(x) * 2.0

    error = failure(outer, tj.asarray([0.0, 2.0]))
    assert error.op == "sqrt"
    assert "return tj.sqrt(x - 1.0)" in str(error)


# Gradients and state


def test_the_gradient_is_checked(way: str) -> None:
    @tj.function
    def slope(x: Any) -> Any:
        with tj.GradientTape() as tape:
            tape.watch(x)
            y = tj.sum(tj.sqrt(x))
        return tape.gradient(y, x)

    assert failure(slope, tj.asarray([1.0, 0.0])).op in ("div", "sqrt")


def test_a_tape_around_a_call_is_checked(way: str) -> None:
    root = tj.function(lambda x: tj.sum(tj.sqrt(x)))
    x = tj.asarray([1.0, 0.0])
    with tj.debug.check_numerics(), tj.GradientTape() as tape:
        tape.watch(x)
        y = root(x)
    with tj.debug.check_numerics(), pytest.raises(tj.NonFiniteError):
        tape.gradient(y, x)
    with tj.debug.check_numerics(), tj.GradientTape() as tape:
        tape.watch(x)
        with pytest.raises(tj.NonFiniteError) as caught:
            root(-x - 1.0)
    assert caught.value.op == "sqrt"


def test_a_call_that_fails_changes_nothing(way: str) -> None:
    state = tj.Variable([1.0, 2.0])

    @tj.function
    def step(x: Any) -> Any:
        state.assign_add(x)
        return tj.log(x)

    with tj.debug.check_numerics(), pytest.raises(tj.NonFiniteError):
        step(tj.asarray([0.0, 1.0]))
    assert state.numpy().tolist() == [1.0, 2.0]
    step(tj.asarray([0.0, 1.0]))
    assert state.numpy().tolist() == [1.0, 3.0]


def test_an_assignment_that_overflows_is_refused() -> None:
    state = tj.Variable([3e38])
    with tj.debug.check_numerics(), pytest.raises(tj.NonFiniteError) as caught:
        state.assign_add([3e38])
    assert caught.value.op == "add"
    assert state.numpy() == np.float32(3e38)


def test_random_numbers_are_drawn_again_when_a_call_is_repeated(way: str) -> None:
    def drawn(checked: bool) -> Any:
        generator = tj.random.Generator(seed=3)

        @tj.function
        def noisy(x: Any) -> Any:
            return x + generator.normal((4,))

        with tj.debug.check_numerics(checked):
            return noisy(tj.ones(4)).numpy(), noisy(tj.ones(4)).numpy()

    for a, b in zip(drawn(True), drawn(False), strict=True):
        assert np.allclose(a, b, rtol=1e-6)


# The switch


def test_the_switch_may_come_after_the_first_call_and_go(way: str, x: Any) -> None:
    logarithm = tj.function(lambda x: tj.log(x))
    for _ in range(3):
        assert np.isinf(logarithm(x).numpy()).any()
        assert failure(logarithm, x).op == "log"
    assert logarithm.trace_count <= 1
    with tj.debug.check_numerics(), tj.debug.check_numerics(False):
        logarithm(x)


def test_other_threads_are_not_concerned(x: Any) -> None:
    found = []
    with tj.debug.check_numerics():
        thread = threading.Thread(target=lambda: found.append(tj.log(x)))
        thread.start()
        thread.join()
    assert np.isinf(found[0].numpy()).any()


@pytest.mark.parametrize("native", ["0", "1"])
def test_the_environment_sets_it_for_the_process(native: str) -> None:
    program = """
        import tapejit as tj
        logarithm = tj.function(lambda x: tj.log(x))
        for x in ([1.0], [1.0], [0.0]):
            for function in (tj.log, logarithm):
                try:
                    function(tj.asarray(x))
                    print("fine")
                except tj.NonFiniteError as error:
                    print(error.op)
        """
    settings = {
        "TAPEJIT_CHECK_NUMERICS": "1",
        "TAPEJIT_NATIVE": native,
        "TAPEJIT_CACHE": "0",
    }
    done = run_interpreter("-c", textwrap.dedent(program), **settings)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["fine"] * 4 + ["log"] * 2
