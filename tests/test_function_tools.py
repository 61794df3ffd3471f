"""Asking a function what it runs: `graph` and `explain`, and whether: `verify`."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from op_cases import CASES
from source_lines import line_of

import tapejit as tj
from tapejit.base.tolerance import EXACT, ROUNDED
from tapejit.ir.graph import Graph
from tapejit.ir.node import OPS

Capture = pytest.CaptureFixture[str]

FILE = Path(__file__).name
X = tj.asarray([1.0, 2.0, 3.0])


# fn.graph


def test_the_graph_of_a_call_is_what_the_call_runs() -> None:
    @tj.function
    def f(x: Any, times: int) -> Any:
        return tj.exp(x) * times

    graph = f.graph(X, 2)
    assert isinstance(graph, Graph)
    assert f.trace_count == 1
    expected = (tj.exp(X) * 2).tolist()
    assert graph.program.run([X.numpy()])[0].tolist() == expected
    assert f(X, 2).tolist() == expected
    assert f.trace_count == 1, "the call uses what the question has traced"
    assert f.graph(X, 2) is graph


def test_a_printed_graph_shows_the_users_lines() -> None:
    @tj.function
    def f(x: Any) -> Any:
        y = x * x
        return tj.sum(y)

    lines = str(f.graph(X)).splitlines()
    assert lines[0] == "graph f(x: f32[3]) {"
    assert re.search(rf"mul x, x +# {FILE}:{line_of(f, 'y = x')}$", lines[1])
    assert re.search(rf"sum %0, .*# {FILE}:{line_of(f, 'return tj.sum')}$", lines[2])


def test_asking_for_a_graph_changes_nothing(capsys: Capture) -> None:
    v = tj.Variable([1.0, 1.0, 1.0])
    generator = tj.random.Generator(3)
    before = generator.state.tolist()

    @tj.function
    def f(x: Any) -> Any:
        tj.print("x", x)
        tj.debug.assert_less(x, 0.0)
        v.assign_add(x)
        return v + generator.normal(3)

    f.graph(X)
    f.explain(X)
    assert v.tolist() == [1.0, 1.0, 1.0]
    assert generator.state.tolist() == before
    assert capsys.readouterr().out == ""


def test_the_graph_is_that_of_the_path_these_values_take(capsys: Capture) -> None:
    v = tj.Variable(0.0)

    @tj.function
    def f(x: Any) -> Any:
        tj.print("called")
        if x > v:
            v.assign_add(1.0)
            return tj.exp(x)
        return tj.sin(x)

    up, down = f.graph(tj.asarray(1.0)), f.graph(tj.asarray(-1.0))
    assert "exp" in str(up)
    assert "sin" in str(down)
    assert f.trace_count == 2
    assert f.graph(tj.asarray(5.0)) is up
    assert f.graph(tj.asarray(-5.0)) is down
    assert f.trace_count == 2
    assert v.numpy() == 0.0
    assert capsys.readouterr().out == ""
    f(tj.asarray(1.0))
    assert f.graph(tj.asarray(1.0)) is down, "v is 1 now"


def test_variables_among_the_arguments_decide_too() -> None:
    @tj.function
    def f(v: Any) -> Any:
        return v * 2 if v > 0 else v * 3

    low, high = tj.Variable(-1.0), tj.Variable(1.0)
    assert "2.0" in str(f.graph(high))
    assert "3.0" in str(f.graph(low))
    assert "2.0" in str(f.graph(high))
    assert f.trace_count == 2


def test_without_arguments_it_is_the_only_graph() -> None:
    @tj.function
    def f(x: Any, n: int = 1) -> Any:
        return x + n

    with pytest.raises(tj.ArgumentError, match="f has not been traced"):
        f.graph()
    f(X)
    assert f.graph() is f.graph(X)
    f(X, n=2)
    with pytest.raises(tj.ArgumentError) as caught:
        f.graph()
    for signature in f.signatures():
        assert signature in str(caught.value)


def test_a_function_without_parameters_is_asked_without_arguments() -> None:
    v = tj.Variable(1.0)

    @tj.function
    def f() -> Any:
        return v * 2 if v > 0 else v * 3

    assert "2.0" in str(f.graph())
    v.assign(-1.0)
    assert "3.0" in str(f.graph())


def test_a_float_that_changes_is_an_input_for_questions_too() -> None:
    @tj.function
    def f(x: Any, rate: float) -> Any:
        return x * rate

    assert len(f.graph(X, 0.5).inputs) == 1
    graph = f.graph(X, 0.25)
    assert len(graph.inputs) == 2
    assert f.graph(X, 0.125) is graph
    assert f.trace_count == 2
    assert f(X, 4.0).tolist() == [4.0, 8.0, 12.0]
    assert f.trace_count == 2


def test_questions_do_not_count_as_retracing() -> None:
    @tj.function
    def f(x: Any) -> Any:
        return x + 1

    for size in range(2, 12):
        f.graph(tj.ones(size))
    assert f.trace_count == 10  # a warning would be an error


def test_the_graph_of_a_method_is_that_of_its_instance() -> None:
    class Model:
        def __init__(self, scale: float) -> None:
            self.scale = scale

        @tj.function
        def apply(self, x: Any) -> Any:
            return x * self.scale

    two, three = Model(2.0), Model(3.0)
    assert "2.0" in str(two.apply.graph(X))
    assert "3.0" in str(three.apply.graph(X))
    two.apply.verify(X)


def test_questions_are_asked_outside_of_functions() -> None:
    @tj.function
    def inner(x: Any) -> Any:
        return x

    for ask in (inner.graph, inner.explain, inner.verify):

        @tj.function
        def outer(x: Any, ask: Any) -> Any:
            ask(x)
            return x

        with pytest.raises(tj.UnsupportedError, match=r"inner is .* traced"):
            outer(X, ask)


def test_an_error_in_the_body_is_the_questions_error() -> None:
    @tj.function
    def f(x: Any) -> Any:
        return x + tj.ones(2)

    with pytest.raises(tj.ShapeError, match="cannot broadcast"):
        f.graph(X)
    assert f.signatures() == []


# fn.explain


def test_an_explanation_names_everything_a_call_uses() -> None:
    w = tj.Variable([1.0, 1.0, 1.0], name="w")
    bias = tj.Variable(1.0, name="bias")
    data = tj.ones((1000, 3))

    @tj.function
    def step(x: Any, rate: float) -> Any:
        y = tj.sum(data @ (x * w)) + bias
        tj.print("y", y)
        if y > 2:
            w.assign_sub(rate * x)
        return {"y": y, "all": [x, w]}

    found = step.explain(X, 0.5)
    assert found.signature == "(x: f32[3], rate: float 0.5)"
    assert {name: str(kind) for name, kind in found.arguments.items()} == {
        "x": "f32[3]"
    }
    assert [
        (x.name, str(x.type), x.is_read, x.is_written) for x in found.variables
    ] == [
        ("w", "f32[3]", True, True),
        ("bias", "f32[]", True, False),
    ]
    assert [str(x) for x in found.captured] == ["f32[1000,3]"]
    assert {path: str(x) for path, x in found.results.items()} == {
        "['all'][0]": "f32[3]",
        "['all'][1]": "f32[3]",
        "['y']": "f32[]",
    }
    assert [x.answer for x in found.guards] == [True]
    assert f"{FILE}:{line_of(step, 'if y')} in step" in found.guards[0].where
    assert [x.name for x in found.effects] == ["print_values"]
    assert f"{FILE}:{line_of(step, 'tj.print')} in step" in found.effects[0].where
    assert found.ops["mul"] == 2
    assert sum(found.ops.values()) == len(
        [x for x in step.graph(X, 0.5).nodes if x.op.name not in ("literal", "start")]
    )
    assert (found.reason, found.paths, found.executable) == (None, 1, "interpreted")
    assert found.graph is step.graph(X, 0.5)
    text = str(found)
    assert repr(found) == text
    for part in (
        *("step(x: f32[3], rate: float 0.5)", "interpreted; path 1 of 1"),
        *("w: f32[3] read and written", "bias: f32[] read", "f32[1000,3] (12.0 kB)"),
        *("['y']: f32[]", "True at ", "print_values at "),
    ):
        assert part in text, part
    step.explain(tj.zeros(3), 0.5)  # y is 1: the other way
    assert step.explain(X, 0.5).paths == 2
    assert w.tolist() == [1.0, 1.0, 1.0]


def test_a_report_fits_a_narrow_terminal() -> None:
    variables = [tj.Variable(float(at), name=f"layer_{at}_weights") for at in range(9)]

    @tj.function
    def f(*args: Any) -> Any:
        y = sum(x * v for x, v in zip(args, variables, strict=True))
        while y > 1:
            y = y / 2
        return y, tj.sin(y), tj.cos(y), tj.tan(y), tj.exp(y), tj.log(y)

    text = str(f.explain(*[tj.asarray(1.0)] * 9))
    assert all(len(line) <= 80 for line in text.splitlines())
    assert "True 6 times, False at " in text


def test_what_runs_eagerly_says_why() -> None:
    @tj.function
    def f(x: Any) -> Any:
        return x * float(x)

    x = tj.asarray(2.0)
    with pytest.warns(UserWarning, match="f needs a value"):
        found = f.explain(x)
    assert found.graph is None
    assert found.executable == "plain Python"
    assert "needs a value while it is traced (float()" in found.reason
    assert f"{FILE}:{line_of(f, 'float(x)')}" in found.reason
    assert "runs eagerly" in str(found)
    with pytest.raises(tj.UnsupportedError, match=r"runs eagerly.*float\(\)"):
        f.graph(x)
    assert f(x).numpy() == 4.0
    f.verify(x)


def test_too_many_ways_are_a_reason_too() -> None:
    @tj.function
    def f(x: Any) -> Any:
        return x * int(x)

    for at in range(16):
        f.graph(tj.asarray(float(at)))
    with pytest.warns(UserWarning, match="more than 16 different ways"):
        assert f(tj.asarray(20.0)).numpy() == 400.0
    assert "more than 16 different ways" in str(f.explain(tj.asarray(1.0)))


def test_residuals_are_what_a_tape_keeps() -> None:
    @tj.function
    def f(x: Any) -> Any:
        return tj.sum(tj.exp(x) * tj.sin(x))

    found = f.explain(X)
    assert "tapes" not in str(found)
    # exp and sin; cos is made of x, which is an input
    assert [str(x) for x in found.residuals] == ["f32[3]"] * 2
    assert found.residual_bytes == 24
    with tj.GradientTape() as tape:
        tape.watch(X)
        y = f(X)
    assert tape.gradient(y, X) is not None
    assert "keep 2 values (24 bytes) besides the inputs" in str(f.explain(X))
    assert f.trace_count == 1


# fn.verify


def test_verify_leaves_variables_and_generators_as_they_were() -> None:
    v = tj.Variable([1.0, 1.0, 1.0])
    generator = tj.random.Generator(5)
    before = generator.state.tolist()
    passed = tj.Variable(1.0)

    @tj.function
    def f(x: Any, p: Any) -> Any:
        with tj.GradientTape() as tape:
            loss = tj.sum(tj.tanh(v * x)) * p
        v.assign_sub(0.1 * tape.gradient(loss, v) + generator.normal(3))
        p.assign_add(1.0)
        return loss, [generator.uniform(2), v.value()]

    for _ in range(2):
        f.verify(X, passed)
    assert v.tolist() == [1.0, 1.0, 1.0]
    assert passed.numpy() == 1.0
    assert generator.state.tolist() == before
    assert f.trace_count == 1


def test_verify_also_runs_nested_functions_eagerly() -> None:
    v = tj.Variable(0.0)
    bodies = []

    @tj.function
    def inner(x: Any) -> Any:
        bodies.append(isinstance(x, tj.Tensor) and "in " not in repr(x))
        v.assign_add(x)
        return x

    @tj.function
    def outer(x: Any) -> Any:
        return inner(x) + v

    outer.verify(tj.asarray(1.0))
    assert bodies == [True, False]
    assert v.numpy() == 0.0


def unsteady(first: float, second: float) -> tuple[Any, Iterator[float]]:
    """A function that multiplies by another number when it is traced."""
    factors = iter([first, second])

    @tj.function
    def f(x: Any) -> Any:
        return {"y": [x, x * next(factors)]}

    return f, factors


def test_a_disagreement_names_the_result_the_index_and_the_values() -> None:
    f, _ = unsteady(1.0, 1.0000001)
    with pytest.raises(tj.Disagreement) as caught:
        f.verify(tj.asarray([0.0, 1.0, 1.0]))
    error = caught.value
    assert isinstance(error, AssertionError)
    assert error.path == "f(...)['y'][1]"
    assert error.index == (1,)
    assert error.values == (1.0, float(np.float32(1.0000001)))
    assert error.ulps == 1
    assert "f(...)['y'][1] differs at [1]: 1.0 eagerly, 1.0000001 traced" in str(error)
    assert "1 ULP" in str(error)
    assert "2 of 3 elements" in str(error)
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error)
    assert again.index is None


@pytest.mark.parametrize(
    ("first", "second", "what"),
    [(np.nan, 1.0, "NaN"), (np.inf, -np.inf, "infinity"), (0.0, -0.0, "sign of zero")],
)
def test_kinds_of_numbers_have_to_agree(first: float, second: float, what: str) -> None:
    f, _ = unsteady(first, second)
    with pytest.raises(tj.Disagreement, match=f"{what} differs") as caught:
        f.verify(X)
    assert caught.value.ulps is None


def test_what_is_not_rounded_alike_may_differ_a_little() -> None:
    for steps, is_near in ((2, True), (2000, False)):
        factors = iter([1.0, 1.0 + steps * 2.0**-23])

        @tj.function
        def f(x: Any, factors: Any = factors) -> Any:
            return tj.sin(x) * next(factors)

        if is_near:
            f.verify(X)
        else:
            with pytest.raises(tj.Disagreement, match="differs"):
                f.verify(X)


def test_a_variable_that_differs_is_named() -> None:
    v = tj.Variable([1.0, 1.0], name="weights")
    calls: list[int] = []

    @tj.function
    def f(x: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            v.assign_add(x)
        return x

    with pytest.raises(tj.Disagreement, match=r"variable 'weights' differs at \[0\]"):
        f.verify(tj.ones(2))
    assert v.tolist() == [1.0, 1.0]


def test_other_structures_and_types_are_a_disagreement() -> None:
    results = iter([(X, X), [X, X], X, X.astype("float64")])

    @tj.function
    def f() -> Any:
        return next(results)

    with pytest.raises(
        tj.Disagreement, match=r"f returns \(\*, \*\) eagerly, \[\*, \*"
    ):
        f.verify()
    f.clear_cache()
    with pytest.raises(tj.Disagreement, match=r"f32\[3\] eagerly, f64\[3\] traced"):
        f.verify()


def test_errors_have_to_agree() -> None:
    v = tj.Variable(1.0)
    errors = iter([ValueError("first"), ValueError("second"), KeyError("k"), None])

    @tj.function
    def f(x: Any) -> Any:
        v.assign_add(x)
        error = next(errors)
        if error is not None:
            raise error
        return x

    with pytest.raises(ValueError, match="first"):
        f.verify(tj.asarray(1.0))
    with pytest.raises(tj.Disagreement, match=r"raises KeyError eagerly .* nothing"):
        f.verify(tj.asarray(1.0))
    assert v.numpy() == 1.0


def test_verify_records_nothing_and_works_in_eager_mode() -> None:
    v = tj.Variable(2.0)

    @tj.function
    def f(x: Any) -> Any:
        return x * v

    with tj.config.override(eager=True), tj.GradientTape() as tape:
        f.verify(tj.asarray(1.0))
    assert tape.watched_variables() == ()
    assert f.trace_count == 1


def test_what_must_have_the_same_bits_is_exact_in_the_table_of_ops() -> None:
    """Only `abs` and `sign` could be added: they are inexact for complex numbers."""
    for name in [op.name for op in OPS.values() if op.exact]:
        classes = {case.agreement for case in CASES[name]}
        assert classes <= {EXACT, ROUNDED}, name


def test_a_call_inside_an_eager_function_is_put_back_with_it() -> None:
    v = tj.Variable(1.0)

    @tj.function
    def inner(x: Any) -> Any:
        v.assign_add(x)
        return x

    @tj.function
    def outer(x: Any) -> Any:
        inner(x)
        if float(x) > 1:
            raise ValueError("too large")
        return x

    with pytest.warns(UserWarning, match="needs a value"):
        outer(tj.asarray(0.5))
    assert v.numpy() == 1.5
    with pytest.raises(ValueError, match="too large"):
        outer(tj.asarray(2.0))
    assert v.numpy() == 1.5
