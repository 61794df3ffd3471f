"""Concrete functions: one trace as a function of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from open_sizes import (
    ROWS,
    SIZES,
    assert_same,
    for_any_size,
    inner_gradient,
    loss,
    sample,
)

import tapejit as tj

# Concrete functions


def test_a_concrete_function_has_the_signature_it_was_made_for() -> None:
    @tj.function
    def scaled(x: Any, times: int, *, flag: bool = True) -> Any:
        return {"y": x * times if flag else x}

    concrete = scaled.get_concrete_function(ROWS, 3, flag=True)
    assert concrete.inputs == (ROWS,)
    assert concrete.outputs == {"y": ROWS}
    assert concrete.structured_input_signature == ((ROWS, 3), {"flag": True})
    assert "mul" in str(concrete.graph)
    for size in (*SIZES, 1, 0):
        assert_same(concrete(sample(size, 3))["y"], sample(size, 3) * 3)
        assert_same(concrete(sample(size, 3), 3)["y"], sample(size, 3) * 3)
    assert "f32[None,3]" in repr(concrete)


@pytest.mark.parametrize(
    ("args", "kwargs", "shown"),
    [
        ((tj.ones((2, 4)),), {}, r"x is f32\[None,3\], got f32\[2,4\]"),
        (
            (tj.ones((2, 3), dtype="float64"),),
            {},
            r"x is f32\[None,3\], got f64\[2,3\]",
        ),
        ((tj.ones((2, 3)), 4), {}, "times is int 3, got int 4"),
        ((3.5,), {}, r"x is f32\[None,3\], got float 3.5"),
    ],
)
def test_a_concrete_function_refuses_other_calls(
    args: Any, kwargs: Any, shown: str
) -> None:
    scaled = tj.function(lambda x, times: x * times)
    concrete = scaled.get_concrete_function(ROWS, 3)
    with pytest.raises(TypeError, match=shown):
        concrete(*args, **kwargs)
    assert scaled.trace_count == 1


def test_a_concrete_function_for_tensors_checks_static_shapes() -> None:
    double = tj.function(lambda x: x + x)
    concrete = double.get_concrete_function(sample(4, 3))
    assert double.trace_count == 1
    assert_same(double(sample(4, 3)), sample(4, 3) * 2)  # the same trace
    assert_same(concrete(sample(4, 3)), sample(4, 3) * 2)
    assert double.trace_count == 1
    with pytest.raises(TypeError, match=r"f32\[4,3\], got f32\[5,3\]"):
        concrete(sample(5, 3))


def test_a_concrete_function_runs_nothing_when_it_is_made() -> None:
    v = tj.Variable(1.0)
    add = tj.function(lambda x: v.assign_add(x))
    concrete = add.get_concrete_function(tj.TensorSpec([]))
    assert float(v) == 1.0
    concrete(2.0 * tj.ones(()))
    assert float(v) == 3.0


def test_a_concrete_function_of_a_signature_needs_no_arguments() -> None:
    function = for_any_size(loss)
    concrete = function.get_concrete_function()
    for size in SIZES:
        assert_same(concrete(sample(size, 3)), loss(sample(size, 3)))
        assert_same(function(sample(size, 3)), loss(sample(size, 3)))
    assert function.trace_count == 1


def test_a_concrete_function_differentiates_and_inlines() -> None:
    concrete = tj.function(loss).get_concrete_function(ROWS)
    outer = for_any_size(lambda x: concrete(x) * 2)
    for size in SIZES:
        x = sample(size, 3)
        with tj.GradientTape() as tape:
            tape.watch(x)
            y = tj.sum(concrete(x) ** 2)
        assert_same(tape.gradient(y, x), inner_gradient(x), exact=False)
        assert_same(outer(x), loss(x) * 2)
    assert outer.trace_count == 1


@pytest.mark.parametrize(
    ("call", "shown"),
    [
        (lambda f, x: f(x, 7), "times is int 2, got int 7"),
        (lambda f, x: f(x, 2.0), "times is int 2, got float 2.0"),
        (lambda f, x: f(x, x[0]), r"times is int 2, got f32\[\]"),
        (lambda f, x: f(x, x.shape[0]), "times is int 2, got int 3"),
        (lambda f, x: f(x[:2]), r"x is f32\[3\], got f32\[2\]"),
        (lambda f, x: f(tj.astype(x, "float64")), r"x is f32\[3\], got f64\[3\]"),
        (lambda f, x: f(np.ones(4, np.float32)), r"x is f32\[3\], got f32\[4\]"),
        (lambda f, x: f([x]), "another structure"),
    ],
)
@pytest.mark.parametrize("how", ["plain", "traced", "any size", "mapped", "eager"])
def test_a_concrete_function_checks_wherever_it_is_called(
    call: Any, shown: str, how: str
) -> None:
    scaled = tj.function(lambda x, times: x * times)
    concrete = scaled.get_concrete_function(tj.ones(3), 2)
    body = lambda x: call(concrete, x)
    x = sample(3)
    if how == "traced":
        body = tj.function(body)
    elif how == "any size":
        body = for_any_size(body, tj.TensorSpec([None]))
    elif how == "mapped":
        body, x = tj.vmap(body), sample(2, 3)
    with (
        tj.config.override(eager=how == "eager"),
        pytest.raises(TypeError, match=rf"this trace of <lambda> is for .*: .*{shown}"),
    ):
        body(x)


def test_a_concrete_function_inside_takes_what_it_takes_outside() -> None:
    any_rows = tj.function(lambda x, times: x * times).get_concrete_function(ROWS, 2)
    three = tj.function(lambda x: x + x).get_concrete_function(sample(3, 3))

    def body(x: Any) -> Any:
        part = three(x) if x.shape[0] == 3 else x[:3]
        return any_rows(x), any_rows(x[1:], 2), any_rows(x[:1], times=2), part

    outer = for_any_size(body)
    for size in (3, 5, 4, 3, 8):
        assert_same(outer(sample(size, 3)), body(sample(size, 3)))
    assert outer.trace_count == 2


def test_a_float_that_varies_is_taken_by_value_if_the_trace_names_one() -> None:
    scaled = tj.function(lambda x, times: x * times)
    concrete = scaled.get_concrete_function(ROWS, 0.5)
    outer = tj.function(lambda x, times: concrete(x, times))
    x = sample(4, 3)
    assert_same(outer(x, 0.5), x * 0.5)
    for wrong in (0.25, 0.75):
        with pytest.raises(TypeError, match=f"times is float 0.5, got float {wrong}"):
            outer(x, wrong)
    assert_same(outer(x, 0.5), x * 0.5)


def test_what_the_function_learns_later_does_not_change_a_concrete_one() -> None:
    scaled = tj.function(reduce_retracing=True)(lambda x, times: x * times)
    concrete = scaled.get_concrete_function(sample(4, 3), 0.5)
    for size in SIZES:
        scaled(sample(size, 3), float(size))
    assert_same(concrete(sample(4, 3)), sample(4, 3) * 0.5)
    assert_same(concrete(sample(4, 3), 0.5), sample(4, 3) * 0.5)
    with pytest.raises(TypeError, match=r"x is f32\[4,3\], got f32\[5,3\]"):
        concrete(sample(5, 3))
    with pytest.raises(TypeError, match=r"times is float 0\.5, got float 2\.0"):
        concrete(sample(4, 3), 2.0)


def test_a_concrete_function_fits_the_input_signature() -> None:
    function = for_any_size(loss)
    for spec in (tj.TensorSpec([None, 4]), tj.TensorSpec([None, 3], "float64")):
        with pytest.raises(TypeError) as caught:
            function.get_concrete_function(spec)
        assert repr(ROWS) in str(caught.value)
        assert repr(spec) in str(caught.value)
    for spec in (tj.TensorSpec([None, None]), tj.TensorSpec([None]), sample(2, 4)):
        with pytest.raises(TypeError, match="argument x of loss has to fit"):
            function.get_concrete_function(spec)
    concrete = function.get_concrete_function(tj.TensorSpec([5, 3]))
    assert concrete.inputs == (ROWS,)
    assert function.trace_count == 1


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        (lambda x: x if x.sum() > 0 else -x, "without a call and needs the value of x"),
        (lambda x: x * float(x[0, 0]), "without a call and needs the value of x"),
        (lambda x: x if x.shape[0] > 3 else -x, "without a call, for any n, and"),
        (lambda x: x * len(x), "without a call, for any n, and"),
        (lambda x: x + tj.ones((4, 3)), "cannot broadcast"),
    ],
)
def test_specs_have_no_values(body: Any, wanted: str) -> None:
    function = tj.function(body)
    with pytest.raises(ValueError, match=wanted):
        function.get_concrete_function(ROWS)
    assert function.trace_count == 0


def test_guards_of_a_concrete_function_open_other_paths() -> None:
    body = lambda x: x if x.shape[0] > 3 else -x
    concrete = for_any_size(body).get_concrete_function(sample(5, 3))
    for size in SIZES:
        assert_same(concrete(sample(size, 3)), body(sample(size, 3)))
