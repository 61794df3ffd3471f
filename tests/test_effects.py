"""Printing and checks: what they show, when they stop a program, in which order."""

from __future__ import annotations

import builtins
import dataclasses
import io
import pickle
import sys
from collections import namedtuple
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

import tapejit as tj
from tapejit.base import tree
from tapejit.base.types import TOKEN, TensorType
from tapejit.ir import Graph, check_graph, interpret, param, parse_graph, print_graph
from tapejit.ir.structural import first_token
from tapejit.ops import check, print_values
from tapejit.tensor.symbolic_float import TracedFloat
from tapejit.tensor.trace import run_graph, trace
from tapejit.tracing.trace import FunctionTrace, run_traced
from tapejit.transforms import batch, jvp_graph, vjp_graph

Capture = pytest.CaptureFixture[str]
Pair = namedtuple("Pair", ["first", "second"])


@dataclasses.dataclass
class Point:
    x: Any
    y: Any


def traced(function: Callable[..., Any], *args: Any) -> tuple[Graph, list[tj.Tensor]]:
    """The Graph of a function, and what to run it with."""
    tensors = [tj.asarray(x) for x in args]
    types = [TensorType(x.dtype, x.shape) for x in tensors]
    graph, captured, _ = trace(function, types, lambda leaves: (leaves, {}))
    return check_graph(graph), [*tensors, *captured]


def printed(function: Callable[..., Any], *args: Any, capsys: Capture) -> str:
    """What a traced function prints when it is run; tracing prints nothing."""
    graph, inputs = traced(function, *args)
    assert capsys.readouterr().out == ""
    run_graph(graph, inputs)
    return capsys.readouterr().out


# What is printed

ARRAYS = [
    np.float32(0.1),
    np.float64(1) / 3,
    np.arange(6, dtype=np.int32).reshape(2, 3),
    np.array([True, False]),
    np.array([1e-9, 1.0, 1e9]),
    np.array([np.nan, -np.inf, -0.0]),
    np.array([1 - 2j]),
    np.zeros((0, 3)),
    np.arange(2000.0),
]


@pytest.mark.parametrize("array", ARRAYS, ids=str)
def test_a_tensor_is_printed_as_python_prints_it(array: Any, capsys: Capture) -> None:
    x = tj.asarray(array)
    builtins.print(x)
    expected = capsys.readouterr().out
    assert expected == f"{x}\n"
    tj.print(x)
    assert capsys.readouterr().out == expected
    assert printed(lambda x: tj.print(x), x, capsys=capsys) == expected


def test_bfloat16_is_printed(capsys: Capture) -> None:
    tj.print(tj.asarray([1.5, 2.0], dtype=tj.bfloat16))
    assert capsys.readouterr().out == "[1.5 2]\n"


def test_python_values_are_printed_as_python_does(capsys: Capture) -> None:
    values = (3, 2.5, "text", None, True, [1, "a"], {"b": 1, "a": 2}, {3}, 1j)
    builtins.print(*values)
    expected = capsys.readouterr().out
    tj.print(*values)
    assert capsys.readouterr().out == expected
    tj.print(np.float64(0.5), np.arange(3))
    assert capsys.readouterr().out == "0.5 [0 1 2]\n"


@pytest.mark.parametrize(
    ("structure", "expected"),
    [
        ([2.0, "a"], "[{}, 'a']"),
        ((2.0,), "({},)"),
        ({"b": 2.0, "a": [2.0, None]}, "{{'b': {}, 'a': [{}, None]}}"),
        (Pair(2.0, 1), "Pair(first={}, second=1)"),
        (Point(2.0, "{}"), "Point(x={}, y='{{}}')"),
    ],
    ids=str,
)
def test_structures_look_as_in_python_with_the_numbers_of_tensors(
    structure: Any, expected: str, capsys: Capture
) -> None:
    def with_tensors(make: Callable[[], Any]) -> Any:
        return tree.map(lambda leaf: make() if leaf == 2.0 else leaf, structure)

    x = tj.asarray([1.0, 2.0])
    text = expected.format("[1. 2.]", "[1. 2.]") + "\n"
    tj.print(with_tensors(lambda: x))
    assert capsys.readouterr().out == text
    tj.print(with_tensors(lambda: tj.Variable(x)))
    assert capsys.readouterr().out == text
    assert (
        printed(lambda x: tj.print(with_tensors(lambda: x)), x, capsys=capsys) == text
    )


def test_a_container_that_shows_a_part_twice_or_never(capsys: Capture) -> None:
    class Odd(list[Any]):
        def __repr__(self) -> str:
            return f"{self[1]!r} {self[1]!r}"

    tj.print(Odd([tj.asarray(1.0), tj.asarray(2.0)]))
    assert capsys.readouterr().out == "2.0 2.0\n"


def test_variables_show_their_numbers(capsys: Capture) -> None:
    v = tj.Variable([1.0, 2.0], name="v")
    tj.print("v", v)
    v.assign([3.0, 4.0])
    tj.print("v", v)
    assert capsys.readouterr().out == "v [1. 2.]\nv [3. 4.]\n"


def test_sep_and_end_are_pythons(capsys: Capture) -> None:
    x = tj.asarray(1.0)
    tj.print(x, 2, x, sep="--", end="!")
    tj.print(x, x, sep=None, end=None)
    tj.print()
    tj.print(end="")
    tj.print(sep="never")
    assert capsys.readouterr().out == "1.0--2--1.0!1.0 1.0\n\n\n"
    with pytest.raises(TypeError, match="print: sep is a text or None, got int"):
        tj.print(x, sep=1)
    with pytest.raises(TypeError, match="print: end is a text or None, got bytes"):
        tj.print(x, end=b"")


def test_numpys_print_options_count_when_it_prints(capsys: Capture) -> None:
    graph, inputs = traced(lambda x: tj.print(x), [1 / 3, 2 / 3])
    with np.printoptions(precision=2):
        run_graph(graph, inputs)
    assert capsys.readouterr().out == "[0.33 0.67]\n"


# Where to


def test_files_in_eager_mode(capsys: Capture) -> None:
    file = io.StringIO()
    x = tj.asarray([1.0])
    tj.print("a", x, {"x": x}, file=file)
    assert file.getvalue() == "a [1.] {'x': [1.]}\n"
    tj.print(x, file=sys.stderr)
    tj.print("out", file=sys.stdout)
    assert capsys.readouterr() == ("out\n", "[1.]\n")
    with pytest.raises(TypeError, match="file is an open text file, got str"):
        tj.print(x, file="log.txt")


def test_a_graph_prints_to_the_streams_of_the_time_it_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def show(x: Any) -> None:
        tj.print("out", x)
        tj.print("err", x, file=sys.stderr)

    graph, inputs = traced(show, 1.0)
    streams = {name: io.StringIO() for name in ("stdout", "stderr")}
    for name, stream in streams.items():
        monkeypatch.setattr(sys, name, stream)
    run_graph(graph, inputs)
    assert streams["stdout"].getvalue() == "out 1.0\n"
    assert streams["stderr"].getvalue() == "err 1.0\n"


def test_a_graph_has_no_other_files() -> None:
    with pytest.raises(tj.ArgumentError, match=r"traced: a graph prints to sys\.std"):
        traced(lambda x: tj.print(x, file=io.StringIO()), 1.0)


def test_a_process_without_a_console_prints_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    tj.print("lost", tj.ones(2))
    assert sys.stdout is None


def test_a_line_is_written_in_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    stream = io.StringIO()
    monkeypatch.setattr(stream, "write", written.append)
    monkeypatch.setattr(sys, "stdout", stream)
    tj.print("a", tj.ones(2), "b", end=".\n")
    assert written == ["a [1. 1.] b.\n"]


# In graphs


def test_tracing_prints_nothing_and_each_run_prints(capsys: Capture) -> None:
    def step(x: Any) -> Any:
        tj.print("x", x)
        y = x * 2
        tj.print("y", y, "python", 7)
        return y

    graph, inputs = traced(step, [1.0, 2.0])
    assert capsys.readouterr().out == ""
    for _ in range(3):  # the first run and the next take different ways
        run_graph(graph, list(inputs))
        assert capsys.readouterr().out == "x [1. 2.]\ny [2. 4.] python 7\n"


def test_a_printed_graph_says_what_it_prints_and_checks() -> None:
    def step(x: Any) -> Any:
        tj.print('say "x", (', [x, x], ")")
        tj.debug.assert_less(x, 5.0, "too\nbig")
        return x + x

    graph, _ = traced(step, 1.0)
    text = print_graph(graph, comments=False)
    assert r'texts=("say \"x\", ( [", ", ", "] )\n"), stream="stdout"' in text
    assert r'relation="less", message="too\nbig"' in text
    assert parse_graph(text).digest == graph.digest


def test_a_text_made_of_a_traced_tensor_is_refused() -> None:
    with pytest.raises(tj.ArgumentError, match="has no value") as caught:
        traced(lambda x: tj.print(f"loss {x}"), 1.0)
    assert caught.value.help == 'give the tensor by itself: tj.print("loss", loss)'


def test_derivatives_print_once(capsys: Capture) -> None:
    x = param("x", TensorType.parse("f64[]"))
    said = print_values(
        x, first_token(), texts=("x ", "\n"), stream="stdout", batch_axes=0
    )
    graph = Graph("f", (x,), (x * x,), said)
    for derived in (vjp_graph(graph, wrt=(x,)), jvp_graph(graph)):
        interpret(check_graph(derived), np.float64(3), np.float64(1))
        assert capsys.readouterr().out == "x 3.0\n"


def test_printing_is_not_recorded(capsys: Capture) -> None:
    x = tj.Variable(3.0)
    with tj.GradientTape() as tape:
        y = x * x
        tj.print(y)
        tj.debug.assert_greater(y, 0)
    assert float(tape.gradient(y, x)) == 6.0
    assert capsys.readouterr().out == "9.0\n"


def test_a_tape_around_a_traced_graph_lets_it_print_once(capsys: Capture) -> None:
    def square(row: Any) -> Any:
        tj.print(row)
        return row * row

    x = tj.asarray([1.0, 2.0])
    with tj.GradientTape() as tape:
        tape.watch(x)
        y = tj.sum(tj.vmap(square)(x))
    gradient = tape.gradient(y, x)
    assert gradient.tolist() == [2.0, 4.0]
    assert capsys.readouterr().out == "1.0\n2.0\n"


def test_a_tensor_of_a_trace_that_is_over_is_refused() -> None:
    kept: list[tj.Tensor] = []
    traced(kept.append, 1.0)
    with pytest.raises(tj.ArgumentError, match="is used after it"):
        tj.print(kept[0])
    with pytest.raises(tj.ArgumentError, match="is used after it"):
        tj.print([kept[0]], file=io.StringIO())
    with pytest.raises(tj.ArgumentError, match="is used after it"):
        tj.debug.assert_all_finite(kept[0])


@pytest.mark.parametrize("rate", [0.1, 1e-5, 1e16, 3.0])
def test_a_float_that_is_an_input_prints_as_python_prints_it(
    rate: float, capsys: Capture
) -> None:
    under_way = FunctionTrace("step")
    x = under_way.argument("rate", TensorType.parse("f64[]"), np.float64(7))
    number = TracedFloat(x, 7.0, frozenset({0}))
    made = run_traced(under_way, [x], lambda: tj.print("rate", number, [number]))
    assert under_way.asked == set()
    interpret(made.graph, np.float64(rate))
    assert capsys.readouterr().out == f"rate {rate} [{rate}]\n"


# Under vmap


def test_vmap_prints_the_rows_in_order(capsys: Capture) -> None:
    def show(row: Any, shared: Any) -> Any:
        tj.print("row", row, "shared", shared)
        tj.print("once")
        return row * shared

    rows = tj.asarray([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    tj.vmap(show, in_axes=(0, None))(rows, 2.0)
    assert capsys.readouterr().out == (
        "row [1. 2.] shared 2.0\nrow [3. 4.] shared 2.0\nrow [5. 6.] shared 2.0\nonce\n"
    )


def test_vmap_of_vmap_prints_row_by_row(capsys: Capture) -> None:
    def show(x: Any, y: Any) -> Any:
        tj.print(x, y)
        return x * y

    inner = tj.vmap(show, in_axes=(None, 0))
    tj.vmap(inner, in_axes=(0, None))(tj.asarray([1.0, 2.0]), tj.asarray([3, 4]))
    assert capsys.readouterr().out == "1.0 3\n1.0 4\n2.0 3\n2.0 4\n"


def test_a_batch_of_no_rows_prints_nothing(capsys: Capture) -> None:
    x = param("x", TensorType.parse("f32[2]"))
    said = print_values(
        x, first_token(), texts=("", "\n"), stream="stdout", batch_axes=0
    )
    graph, _ = batch(Graph("f", (x,), (), said), size=0, batched=(True,))
    interpret(check_graph(graph), np.zeros((0, 2), np.float32))
    assert capsys.readouterr().out == ""


def test_a_check_of_a_row_is_refused_by_name() -> None:
    def checked(row: Any) -> Any:
        tj.debug.assert_greater(row, 0.0)
        return row

    with pytest.raises(tj.UnsupportedError, match="the effect check cannot be") as e:
        tj.vmap(checked)(tj.ones(3))
    assert "tj.debug.assert_greater(row, 0.0)" in str(e.value)


def test_a_check_of_what_all_rows_share_runs_once() -> None:
    def checked(row: Any, scale: Any) -> Any:
        tj.debug.assert_greater(scale, 0.0)
        return row * scale

    mapped = tj.vmap(checked, in_axes=(0, None))
    assert mapped(tj.ones(3), 2.0).tolist() == [2.0, 2.0, 2.0]
    with pytest.raises(tj.CheckFailed, match=r"-1\.0 is not greater than 0\.0"):
        mapped(tj.ones(3), -1.0)


def test_a_shared_check_after_a_print_of_rows(capsys: Capture) -> None:
    def checked(row: Any, scale: Any) -> Any:
        tj.print(row)
        tj.debug.assert_greater(scale, 0.0)
        tj.print("checked")
        return row * scale

    mapped = tj.vmap(checked, in_axes=(0, None))
    assert mapped(tj.asarray([1.0, 2.0]), 2.0).tolist() == [2.0, 4.0]
    assert capsys.readouterr().out == "1.0\n2.0\nchecked\n"


@pytest.mark.parametrize("is_observed", [False, True])
def test_a_check_in_a_graph_names_its_own_line(is_observed: bool) -> None:
    def checked(row: Any, scale: Any) -> Any:
        tj.debug.assert_greater(scale, 0.0)
        return row * scale

    mapped = tj.vmap(checked, in_axes=(0, None))
    for _ in range(2):  # the first run and the next take different ways
        tape = tj.GradientTape() if is_observed else nullcontext()
        with pytest.raises(tj.CheckFailed) as caught, tape:
            mapped(tj.ones(3), -1.0)
        assert "in checked:  tj.debug.assert_greater(scale, 0.0)" in str(caught.value)
        assert caught.value.op == "assert_greater"


# Checks

NAN = float("nan")
CHECKS: dict[str, tuple[Any, Any]] = {
    "assert_equal": (([1.0, 2.0], [1.0, 2.0]), ([1.0, 2.0], [1.0, 3.0])),
    "assert_not_equal": (([1.0, NAN], [2.0, NAN]), ([1.0, 2.0], [2.0, 2.0])),
    "assert_less": (([1.0, 2.0], 3.0), ([1.0, 3.0], 3.0)),
    "assert_less_equal": (([1.0, 3.0], 3.0), ([1.0, 4.0], 3.0)),
    "assert_greater": (([4.0, 5.0], 3.0), ([4.0, 3.0], 3.0)),
    "assert_greater_equal": (([4.0, 3.0], 3.0), ([3.0, 2.0], 3.0)),
    "assert_all_finite": (([4.0, 3.0],), ([3.0, NAN],)),
    "assert_true": (([True, True],), ([True, False],)),
}


@pytest.mark.parametrize("name", CHECKS)
def test_a_check_passes_or_names_the_first_failure(name: str) -> None:
    function = getattr(tj.debug, name)
    good, bad = CHECKS[name]
    assert function(*map(tj.asarray, good)) is None
    with pytest.raises(tj.CheckFailed) as caught:
        function(*map(tj.asarray, bad), "the message")
    error = caught.value
    assert isinstance(error, AssertionError)
    assert error.op == name
    assert error.index == (1,)
    at_1 = [x[1] if isinstance(x, list) else x for x in bad]
    np.testing.assert_array_equal(error.values, at_1)
    text = str(error)
    assert text.startswith(f"{name}: the message: ")
    assert "at index (1,); 1 of 2 elements fail" in text
    assert "where  test_effects.py:" in text
    assert 'function(*map(tj.asarray, bad), "the message")' in text


def test_relations_with_nan_fail_except_not_equal() -> None:
    for name in CHECKS:
        if name in ("assert_true", "assert_all_finite", "assert_not_equal"):
            continue
        with pytest.raises(tj.CheckFailed):
            getattr(tj.debug, name)(tj.asarray(NAN), NAN)
    tj.debug.assert_not_equal(tj.asarray(NAN), NAN)


def test_the_error_shows_line_operands_values_and_count() -> None:
    small, large = tj.asarray([[1.0, 5.0], [0.1, 7.0]]), tj.asarray([2.0, 3.0])
    with pytest.raises(tj.CheckFailed) as caught:
        tj.debug.assert_less(small, large, "rates must fall")
    lines = str(caught.value).splitlines()
    assert lines[0] == (
        "assert_less: rates must fall: 5.0 is not less than 3.0 at index (0, 1); "
        "2 of 4 elements fail"
    )
    assert lines[1].endswith('tj.debug.assert_less(small, large, "rates must fall")')
    assert lines[2].startswith("  left   small: f32[2,2]")
    assert lines[3].startswith("  right  large: f32[2]")


def test_scalars_have_no_index() -> None:
    with pytest.raises(tj.CheckFailed) as caught:
        tj.debug.assert_equal(1, 2)
    assert caught.value.message == "1 is not equal to 2"
    assert caught.value.index == ()
    with pytest.raises(tj.CheckFailed) as caught:
        tj.debug.assert_true(False)
    assert caught.value.message == "the condition is False"


@pytest.mark.parametrize("name", CHECKS)
def test_nothing_fails_where_there_is_nothing(name: str) -> None:
    dtype = "bool" if name == "assert_true" else "float32"
    empty = tj.zeros((0, 3), dtype=dtype)
    assert getattr(tj.debug, name)(*[empty] * len(CHECKS[name][0])) is None


def test_numbers_arrays_and_variables_are_checked() -> None:
    v = tj.Variable([1.0, 2.0])
    tj.debug.assert_less(v, np.array([2.0, 3.0], "float32"))
    tj.debug.assert_equal([1, 2], v)
    tj.debug.assert_equal(tj.asarray([True]), [True])
    tj.debug.assert_all_finite(np.arange(3))
    with pytest.raises(tj.CheckFailed, match=r"2\.0 is not less than 2\.0"):
        tj.debug.assert_less(v, 2)


def test_operands_that_cannot_be_compared_raise_what_is_wrong_with_them() -> None:
    with pytest.raises(tj.ShapeError, match=r"^assert_less: cannot broadcast f32\[2\]"):
        tj.debug.assert_less(tj.ones(2), tj.ones(3))
    with pytest.raises(tj.DTypeError, match=r"^assert_less: "):
        tj.debug.assert_less(tj.asarray([1j]), tj.asarray([2j]))
    with pytest.raises(TypeError, match=r"takes bools, got f32\[2\]") as caught:
        tj.debug.assert_true(tj.ones(2))
    assert caught.value.help == "compare first: x > 0, or x != 0"
    with pytest.raises(TypeError, match="the message is a text, got int"):
        tj.debug.assert_less(1, 2, 3)


def test_numpys_error_state_does_not_matter() -> None:
    with np.errstate(all="raise"), pytest.raises(tj.CheckFailed):
        tj.debug.assert_less(tj.asarray([NAN, 1.0]), 0.0)


def test_a_failure_pickles() -> None:
    with pytest.raises(tj.CheckFailed) as caught:
        tj.debug.assert_equal(1, 2)
    again = pickle.loads(pickle.dumps(caught.value))
    assert type(again) is tj.CheckFailed
    assert str(again) == str(caught.value)
    assert (again.index, again.values) == (None, ())


def test_checks_run_with_the_graph_and_in_order(capsys: Capture) -> None:
    def step(x: Any) -> Any:
        tj.print("before")
        tj.debug.assert_greater(x, 0.0, "positive")
        tj.print("after")
        return x

    graph, _ = traced(step, 1.0)
    for _ in range(2):
        interpret(graph, np.float32(1))
        assert capsys.readouterr().out == "before\nafter\n"
        with pytest.raises(tj.CheckFailed, match=r"positive: -2\.0 is not greater"):
            interpret(graph, np.float32(-2))
        assert capsys.readouterr().out == "before\n"


# What is known without values


def test_shapes() -> None:
    x = tj.ones((8, 3))
    for shape in ((8, 3), (None, 3), [None, None], x.shape):
        assert tj.debug.assert_shape(x, shape) is None
    tj.debug.assert_shape(tj.Variable(x), (8, None))
    tj.debug.assert_shape([[1.0, 2.0]], (1, 2))
    tj.debug.assert_shape(1.0, ())
    for shape in ((8,), (3, 8), (None, None, None), ()):
        with pytest.raises(tj.CheckFailed) as caught:
            tj.debug.assert_shape(x, shape, "points")
        assert caught.value.message == f"points: the shape is (8, 3), not {shape}"
        assert caught.value.op == "assert_shape"
    with pytest.raises(TypeError, match="one entry per axis, got 3"):
        tj.debug.assert_shape(x, 3)


def test_ranks_and_dtypes() -> None:
    x = tj.ones((8, 3))
    tj.debug.assert_rank(x, 2)
    tj.debug.assert_rank(1, 0)
    with pytest.raises(
        tj.CheckFailed, match=r"the rank is 2 \(shape \(8, 3\)\), not 1"
    ):
        tj.debug.assert_rank(x, 1)
    with pytest.raises(TypeError, match="the rank is an int, got tuple"):
        tj.debug.assert_rank(x, (8, 3))
    for dtype in (tj.float32, "float32", np.float32):
        tj.debug.assert_dtype(x, dtype)
    with pytest.raises(tj.CheckFailed, match="input: the dtype is float32, not int32"):
        tj.debug.assert_dtype(x, tj.int32, "input")


def test_shapes_are_checked_while_a_function_is_traced() -> None:
    with pytest.raises(tj.CheckFailed, match=r"the shape is \(2,\), not \(3,\)"):
        traced(lambda x: tj.debug.assert_shape(x, (3,)), [1.0, 2.0])
    graph, _ = traced(lambda x: tj.debug.assert_shape(x, (2,)), [1.0, 2.0])
    assert graph.nodes == ()


def test_a_variable_is_not_read_for_its_shape() -> None:
    v = tj.Variable([1.0])
    with tj.GradientTape() as tape:
        tj.debug.assert_shape(v, (1,))
        tj.debug.assert_rank(v, 1)
        tj.debug.assert_dtype(v, tj.float32)
    assert tape.watched_variables() == ()


# The records refuse what no function passes on


def test_the_rules_refuse_wrong_nodes() -> None:
    x, y = (TensorType.parse(text) for text in ("f32[2]", "f32[3]"))
    fields = {"texts": ("", "\n"), "stream": "stdout", "batch_axes": 0}
    assert print_values.infer_type([x, TOKEN], fields) is TOKEN
    wrong: list[tuple[Any, Any, dict[str, Any], str]] = [
        (print_values, [x], fields, "the last input is the chain"),
        (print_values, [x, x, TOKEN], fields, "2 values stand between 3 texts"),
        (print_values, [TOKEN, TOKEN], fields, "takes tensors, got token"),
        (print_values, [x, TOKEN], fields | {"stream": "log"}, "one of stdout, std"),
        (print_values, [x, TOKEN], fields | {"batch_axes": 2}, "share 2 leading axes"),
        (
            print_values,
            [x, y, TOKEN],
            {"texts": ("",) * 3, "stream": "stdout", "batch_axes": 1},
            "share 1 leading axes",
        ),
        (check, [x, TOKEN], {"relation": "odd", "message": None}, "no relation 'odd'"),
        (check, [x, TOKEN], {"relation": "less", "message": None}, "takes 2 tensors"),
    ]
    for op, types, attrs, match in wrong:
        with pytest.raises((TypeError, ValueError), match=match):
            op.infer_type(types, attrs)


# The switch


def test_the_switch_is_the_setting() -> None:
    before = tj.config.eager
    try:
        for flag in (True, False):
            tj.run_functions_eagerly(flag)
            assert tj.functions_run_eagerly() is flag
            assert tj.config.eager is flag
            with tj.config.override(eager=not flag):
                assert tj.functions_run_eagerly() is not flag
        with pytest.raises(tj.ConfigError, match="eager=1: allowed are False, True"):
            tj.run_functions_eagerly(1)
    finally:
        tj.run_functions_eagerly(before)
