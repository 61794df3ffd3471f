"""Which sizes a trace leaves open: input_signature and reduce_retracing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from open_sizes import (
    LINE,
    ROWS,
    SIZES,
    assert_same,
    for_any_size,
    loss,
    sample,
)

import tapejit as tj

# input_signature


def test_one_trace_serves_every_size_from_two_on() -> None:
    double = for_any_size(lambda x: x + x)
    for size in (*SIZES, 100, 2):
        assert_same(double(sample(size, 3)), sample(size, 3) * 2)
    assert double.trace_count == 1
    assert double.signatures() == ["(x: f32[None,3])"]


def test_sizes_zero_and_one_have_traces_of_their_own() -> None:
    body = lambda x: (x - x.mean(axis=0), x + tj.ones((4, 3)) if len(x) == 1 else x)
    function = for_any_size(body)
    with np.errstate(all="ignore"):
        for size in (1, 4, 0, 1, 0, 4):
            assert_same(function(sample(size, 3)), body(sample(size, 3)))
    assert function.signatures() == [
        *("(x: f32[1,3])", "(x: f32[0,3])", "(x: f32[None,3])")
    ]


@pytest.mark.parametrize(
    "given",
    [
        np.ones((2, 3), np.float32),
        np.ones((2, 3)),
        np.ones((2, 3), np.int64),
        [[1, 1, 1], [1.0, 1, 1]],
        ((True,) * 3, (True,) * 3),
        tj.Variable(np.ones((2, 3), np.float32)),
    ],
    ids=lambda x: type(x).__name__,
)
def test_what_fits_after_conversion_is_converted(given: Any) -> None:
    double = for_any_size(lambda x: x + x)
    assert_same(double(given), tj.full((2, 3), 2.0))


def test_numbers_fit_a_spec_without_axes() -> None:
    double = for_any_size(
        lambda x, n: x * n, tj.TensorSpec([]), tj.TensorSpec([], "int32")
    )
    assert_same(double(1.5, 2), 3.0)
    assert_same(double(4, n=True), 4.0)
    assert double.trace_count == 1


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (tj.ones((2, 4)), "f32[2,4]"),
        (tj.ones(3), "f32[3]"),
        (tj.ones((2, 3), dtype="float64"), "f64[2,3]"),
        (np.ones((2, 3), np.complex64), "complex64"),
        ([[1, 2]], "[[1, 2]]"),
        ([[1, 2, 3], [1]], "[[1, 2, 3], [1]]"),
        ("text", "'text'"),
        (None, "None"),
    ],
)
def test_a_violation_shows_the_spec_and_what_was_given(given: Any, shown: str) -> None:
    double = for_any_size(lambda x: x + x)
    for settings in ({}, {"eager": True}):
        with tj.config.override(**settings), pytest.raises(TypeError) as caught:
            double(given)
        assert "argument x of <lambda>" in str(caught.value)
        assert repr(ROWS) in str(caught.value)
        assert shown in str(caught.value)
    assert double.trace_count == 0


def test_a_float_does_not_fit_an_integer_spec() -> None:
    function = for_any_size(lambda n: n, tj.TensorSpec([], "int32"))
    with pytest.raises(TypeError, match=r"int32.*got 1\.5"):
        function(1.5)
    with pytest.raises(TypeError, match="got 4294967296"):
        function(2**32)


@pytest.mark.parametrize(
    ("args", "kwargs"), [((), {}), ((1.0, 2.0, 3.0), {}), ((1.0,), {"z": 1.0})]
)
def test_the_number_of_arguments_is_checked(args: Any, kwargs: Any) -> None:
    scalar = tj.TensorSpec([])
    function = for_any_size(lambda x, y: x + y, scalar, scalar)
    with pytest.raises(TypeError, match="<lambda>: "):
        function(*args, **kwargs)


@pytest.mark.parametrize(
    "body", [lambda x, times=3: x * times, lambda x, *, times=3: x * times]
)
def test_a_parameter_with_a_default_needs_no_spec(body: Any) -> None:
    function = for_any_size(body, LINE)
    inside = tj.function(lambda x: (function(x), function(x, times=4)))
    for size in SIZES:
        x = sample(size)
        assert_same(function(x), x * 3)
        assert_same(function(x, times=3), x * 3)
        assert_same(inside(x), (x * 3, x * 4))
    assert function.trace_count == 1
    for size in SIZES:
        assert_same(function(sample(size), times=4), sample(size) * 4)
    assert function.trace_count == 2
    concrete = function.get_concrete_function(LINE, times=4)
    assert_same(concrete(sample(3)), sample(3) * 4)
    with pytest.raises(TypeError, match="times is int 4, got int 3"):
        concrete(sample(3), times=3)


def test_a_default_fits_its_spec() -> None:
    function = for_any_size(lambda x, rate=0.5: x * rate, LINE, tj.TensorSpec([]))
    for size in SIZES:
        assert_same(function(sample(size)), sample(size) * 0.5)
        assert_same(function(sample(size), 2), sample(size) * 2)
        assert_same(function(sample(size), rate=4.0), sample(size) * 4)
    assert function.trace_count == 1


def test_a_parameter_without_spec_and_default_is_named() -> None:
    for body in (lambda x, y: x, lambda x, *y: x, lambda x, **others: x):
        function = for_any_size(body, LINE)
        others = {"y": 1.0} if "others" in body.__code__.co_varnames else {}
        with pytest.raises(TypeError, match=r"y.* has neither a spec nor a default"):
            function([1.0], *(() if others else (2.0,)), **others)


# Any rank


def test_a_spec_without_a_shape_has_one_trace_per_rank() -> None:
    assert tj.TensorSpec(None) != tj.TensorSpec([None])
    assert repr(tj.TensorSpec(None)) == "TensorSpec(shape=None, dtype=float32)"
    double = for_any_size(lambda x: x + x, tj.TensorSpec(None))
    for size in SIZES:
        for shape in ((), (size,), (size, 3), (4, size, size)):
            assert_same(double(sample(*shape)), sample(*shape) * 2)
            assert_same(double(np.asarray(sample(*shape))), sample(*shape) * 2)
    assert double.trace_count == 4
    assert double.signatures()[-1] == "(x: f32[None,None,None])"
    with pytest.raises(TypeError, match=r"shape=None, .*got a tensor f64\[3\]"):
        double(tj.ones(3, dtype="float64"))


def test_any_rank_in_a_structure() -> None:
    anything = tj.TensorSpec(None)
    body = lambda a, b: tj.sum(a["x"]) * b[1] + tj.sum(b[0])
    function = for_any_size(body, {"x": anything}, [anything, tj.TensorSpec([])])
    for size in SIZES:
        for x, y in ((sample(size), sample(size, 3)), (sample(size, 2), sample())):
            assert_same(function({"x": x}, [y, 2.0]), body({"x": x}, [y, 2.0]))
    assert function.trace_count == 2


def test_a_concrete_function_has_a_rank() -> None:
    double = for_any_size(lambda x: x + x, tj.TensorSpec(None))
    for make in (
        double.get_concrete_function,
        lambda: tj.function(loss).get_concrete_function(tj.TensorSpec(None)),
    ):
        with pytest.raises(TypeError, match=r"shape=None, dtype=float32.* leaves it"):
            make()
    for given in (sample(5, 3), tj.TensorSpec([None, None]), tj.TensorSpec([2, 3])):
        concrete = double.get_concrete_function(given)
        for size in SIZES:
            assert_same(concrete(sample(size, size)), sample(size, size) * 2)
        with pytest.raises(TypeError, match=r"got f32\[3\]"):
            concrete(sample(3))
    assert double.trace_count == 1


@pytest.mark.parametrize("signature", [ROWS, [3], [[None]], "ROWS"])
def test_a_signature_is_made_of_specs(signature: Any) -> None:
    with pytest.raises(TypeError, match="input_signature of"):
        tj.function(input_signature=signature)(loss)


def test_specs_nest() -> None:
    specs = ({"x": ROWS, "rest": [LINE, tj.TensorSpec([], "int32")]}, (LINE,))

    def body(a: Any, b: Any) -> Any:
        return a["x"].sum() * a["rest"][1] + a["rest"][0].sum() - b[0].sum()

    function = for_any_size(body, *specs)
    for size in SIZES:
        x, y = sample(size, 3), sample(size + 1)
        wanted = body({"x": x, "rest": [y, tj.asarray(2)]}, (y,))
        assert_same(function({"rest": [y, 2], "x": x}, (y,)), wanted)
    assert function.trace_count == 1
    with pytest.raises(TypeError, match=r"argument a\['rest'\]\[1\] of body.*int32"):
        function({"x": sample(2, 3), "rest": [[1.0], 2.5]}, ([1.0],))
    with pytest.raises(TypeError, match="lacks 'rest'"):
        function({"x": sample(2, 3)}, ([1.0],))
    with pytest.raises(TypeError, match="argument b of body"):
        function({"x": sample(2, 3), "rest": [[1.0], 2]}, [[1.0]])


def test_methods_take_a_signature_without_self() -> None:
    class Model:
        def __init__(self) -> None:
            self.w = tj.Variable(2.0)

        @tj.function(input_signature=[LINE])
        def scaled(self, x: Any) -> Any:
            return x * self.w

    model = Model()
    assert_same(model.scaled([1.0, 2.0]), tj.asarray([2.0, 4.0]))
    assert_same(model.scaled(x=[1.0, 2.0, 3.0]), tj.asarray([2.0, 4.0, 6.0]))
    assert model.scaled.trace_count == 1


def test_a_signature_is_checked_inside_another_function() -> None:
    inner = for_any_size(lambda x: x * x.shape[0])
    outer = for_any_size(lambda x: inner(x) + 1)
    wrong = tj.function(lambda x: inner(x[:, :2]))
    for size in SIZES:
        assert_same(outer(sample(size, 3)), sample(size, 3) * size + 1)
    assert (outer.trace_count, inner.trace_count) == (1, 0)
    with pytest.raises(TypeError, match=r"got a tensor f32\[5,2\]"):
        wrong(sample(5, 3))


# reduce_retracing


def test_a_size_that_changes_is_left_open() -> None:
    total = tj.function(reduce_retracing=True)(lambda x, y: tj.sum(x @ y))
    for size in (2, 3, 4, 5, 9):
        assert_same(total(tj.ones((size, 4)), tj.ones((4, size))), 4.0 * size * size)
    assert total.trace_count == 2
    assert total.signatures()[-1] == "(x: f32[None,4], y: f32[4,None])"


def test_what_else_changes_is_not_left_open() -> None:
    double = tj.function(reduce_retracing=True)(lambda x, flag=True: x + x)
    double(tj.ones(3))
    double(tj.ones((3, 1)))
    double(tj.ones(3, dtype="float64"))
    double(tj.ones(1))
    double(tj.ones(3), False)
    assert double.trace_count == 5
    assert not any("None" in text for text in double.signatures())


def test_a_size_left_open_once_is_so_for_other_values_too() -> None:
    double = tj.function(reduce_retracing=True)(lambda x, flag=True: x + x)
    for size in SIZES:
        double(tj.ones(size))
    assert double.trace_count == 2
    for size in SIZES:
        double(tj.ones(size), False)
    assert double.trace_count == 3


def test_without_it_each_shape_is_traced() -> None:
    double = tj.function(lambda x: x + x)
    for size in SIZES:
        double(sample(size))
    assert double.trace_count == len(SIZES)


def test_a_training_loop_with_a_smaller_last_batch() -> None:
    def make() -> tuple[Callable[..., Any], list[tj.Variable]]:
        w, b = tj.Variable(tj.zeros((3, 1))), tj.Variable(0.0)

        def step(x: Any, y: Any, rate: float) -> Any:
            with tj.GradientTape() as tape:
                error = tj.mean((x @ w + b - y) ** 2)
            for v, g in zip((w, b), tape.gradient(error, [w, b]), strict=True):
                v.assign_sub(rate * g)
            return error

        return step, [w, b]

    step, variables = make()
    plain, others = make()
    traced = tj.function(reduce_retracing=True)(step)
    x, y = sample(23, 3), sample(23, 1)
    for epoch in range(4):
        for at in range(0, 23, 5):
            batch = (x[at : at + 5], y[at : at + 5], 0.1 / (1 + epoch))
            assert_same(traced(*batch), plain(*batch))
    assert_same([v.value() for v in variables], [v.value() for v in others])
    assert traced.trace_count == 3  # five rows; any; any, and any rate
