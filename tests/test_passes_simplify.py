"""Each rule of `simplify`, as text; and what looks like one of them but is not."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tapejit import ops
from tapejit.base.types import TensorType, dtype_named
from tapejit.ir import Graph, Node, check_graph, interpret, literal, param, parse_graph
from tapejit.rewrite.simplify import COPIES, PASSING, VIEWS, simplify


def simplified(text: str) -> list[str]:
    """The lines of a Graph between its braces after the rules, without alignment."""
    return lines_of(simplify(check_graph(parse_graph(text))))


def lines_of(graph: Graph) -> list[str]:
    check_graph(graph)
    return [" ".join(line.split()) for line in str(graph).splitlines()[1:-1]]


def graph_text(inputs: str, *lines: str) -> str:
    return "\n".join([f"graph f({inputs}) {{", *lines, "}"])


def sine_of(*lines: str, inputs: str, kind: str) -> list[str]:
    """What is left of these lines if the sine of the last one is the output."""
    count = len(lines)
    return simplified(
        graph_text(
            inputs,
            *[f"%{at}: {line}" for at, line in enumerate(lines)],
            f"%{count}: {kind} = sin %{count - 1}",
            f"return %{count}",
        )
    )


NOTHING_BUT_X: dict[str, tuple[str, ...]] = {
    "x * 1": ("f32[2,3] = mul x, f32(1.0)",),
    "1 * x": ("f32[2,3] = mul f32(1.0), x",),
    "x / 1": ("f32[2,3] = div x, f32(1.0)",),
    "x - 0": ("f32[2,3] = sub x, f32(0.0)",),
    "x + -0": ("f32[2,3] = add x, f32(-0.0)",),
    "-0 + x": ("f32[2,3] = add f32(-0.0), x",),
    "-(-x)": ("f32[2,3] = negative x", "f32[2,3] = negative %0"),
    "conj of real": ("f32[2,3] = conj x",),
    "real of real": ("f32[2,3] = real x",),
    "read": ("f32[2,3] = read x",),
    "reread": ("f32[2,3] = cos x", "f32[2,3] = reread x, %0"),
    "stop_gradient": ("f32[2,3] = stop_gradient x",),
    "maximum": ("f32[2,3] = maximum x, x",),
    "minimum": ("f32[2,3] = minimum x, x",),
    "where of one": ("bool[2,3] = isnan x", "f32[2,3] = where %0, x, x"),
    "where True": ("f32[2,3] = cos x", "f32[2,3] = where bool(True), x, %0"),
    "where False": ("f32[2,3] = cos x", "f32[2,3] = where bool(False), %0, x"),
    "cast to its own": ("f32[2,3] = cast x, dtype=f32",),
    "cast and back": ("f64[2,3] = cast x, dtype=f64", "f32[2,3] = cast %0, dtype=f32"),
    "complex and back": (
        "c64[2,3] = cast x, dtype=c64",
        "f32[2,3] = cast %0, dtype=f32",
    ),
    "reshape": ("f32[2,3] = reshape x, shape=(2, 3)",),
    "reshape and back": (
        "f32[6] = reshape x, shape=(6,)",
        "f32[2,3] = reshape %0, shape=(2, 3)",
    ),
    "broadcast_to": ("f32[2,3] = broadcast_to x, shape=(2, 3)",),
    "permute_dims": ("f32[2,3] = permute_dims x, axes=(0, 1)",),
    "permute and back": (
        "f32[3,2] = permute_dims x, axes=(1, 0)",
        "f32[2,3] = permute_dims %0, axes=(1, 0)",
    ),
    "flip of nothing": ("f32[2,3] = flip x, axes=()",),
    "flip and back": ("f32[2,3] = flip x, axes=(1,)", "f32[2,3] = flip %0, axes=(1,)"),
    "slice": ("f32[2,3] = slice x, starts=(0, 0), stops=(2, 3), steps=(1, 1)",),
    "place": ("f32[2,3] = place x, shape=(2, 3), starts=(0, 0), steps=(1, 1)",),
    "concat": ("f32[2,3] = concat x, axis=1",),
    "several": (
        "f32[2,3] = mul x, f32(1.0)",
        "f32[3,2] = permute_dims %0, axes=(1, 0)",
        "f32[3,2] = read %1",
        "f32[2,3] = permute_dims %2, axes=(1, 0)",
        "f32[2,3] = negative %3",
        "f32[2,3] = negative %4",
    ),
}


@pytest.mark.parametrize("name", NOTHING_BUT_X)
def test_what_changes_nothing_is_left_out(name: str) -> None:
    lines = sine_of(*NOTHING_BUT_X[name], inputs="x: f32[2,3]", kind="f32[2,3]")
    assert lines == ["%0: f32[2,3] = sin x", "return %0"]


LESS: dict[str, tuple[str, list[str], list[str]]] = {
    "reshape of reshape": (
        "x: f32[2,6]",
        [
            "%0: f32[12] = reshape x, shape=(12,)",
            "%1: f32[3,4] = reshape %0, shape=(3, 4)",
        ],
        ["%0: f32[3,4] = reshape x, shape=(3, 4)"],
    ),
    "broadcast of broadcast": (
        "x: f32[3]",
        [
            "%0: f32[2,3] = broadcast_to x, shape=(2, 3)",
            "%1: f32[4,2,3] = broadcast_to %0, shape=(4, 2, 3)",
        ],
        ["%0: f32[4,2,3] = broadcast_to x, shape=(4, 2, 3)"],
    ),
    "permutation of permutation": (
        "x: f32[2,3,4]",
        [
            "%0: f32[3,4,2] = permute_dims x, axes=(1, 2, 0)",
            "%1: f32[4,3,2] = permute_dims %0, axes=(1, 0, 2)",
        ],
        ["%0: f32[4,3,2] = permute_dims x, axes=(2, 1, 0)"],
    ),
    "flip of flip": (
        "x: f32[2,3]",
        ["%0: f32[2,3] = flip x, axes=(0, 1)", "%1: f32[2,3] = flip %0, axes=(1,)"],
        ["%0: f32[2,3] = flip x, axes=(0,)"],
    ),
    "slice of slice": (
        "x: f32[20]",
        [
            "%0: f32[6] = slice x, starts=(2,), stops=(20,), steps=(3,)",
            "%1: f32[3] = slice %0, starts=(1,), stops=(6,), steps=(2,)",
        ],
        ["%0: f32[3] = slice x, starts=(5,), stops=(18,), steps=(6,)"],
    ),
    "slice of slice that is empty": (
        "x: f32[4]",
        [
            "%0: f32[2] = slice x, starts=(0,), stops=(4,), steps=(2,)",
            "%1: f32[0] = slice %0, starts=(2,), stops=(2,), steps=(1,)",
        ],
        ["%0: f32[0] = slice x, starts=(0,), stops=(0,), steps=(2,)"],
    ),
    "magnitude of magnitude": (
        "x: f32[3]",
        ["%0: f32[3] = abs x", "%1: f32[3] = abs %0"],
        ["%0: f32[3] = abs x"],
    ),
    "magnitude of the opposite": (
        "x: f32[3]",
        ["%0: f32[3] = negative x", "%1: f32[3] = abs %0"],
        ["%0: f32[3] = abs x"],
    ),
    "rounded twice": (
        "x: f32[3]",
        ["%0: f32[3] = trunc x", "%1: f32[3] = floor %0"],
        ["%0: f32[3] = trunc x"],
    ),
    "and with itself": (
        "x: i32[3]",
        ["%0: i32[3] = bitwise_and x, x", "%1: i32[3] = bitwise_or %0, %0"],
        [],
    ),
    "inverted twice": (
        "x: bool[3]",
        ["%0: bool[3] = bitwise_invert x", "%1: bool[3] = bitwise_invert %0"],
        [],
    ),
    "conj of conj": (
        "x: c64[3]",
        ["%0: c64[3] = conj x", "%1: c64[3] = conj %0"],
        [],
    ),
    "a broadcast that the operation does too": (
        "x: f32[2,3], y: f32[3]",
        [
            "%0: f32[2,3] = broadcast_to y, shape=(2, 3)",
            "%1: f32[2,3] = add x, %0",
        ],
        ["%0: f32[2,3] = add x, y"],
    ),
    "ones everywhere": (
        "x: f32[2,3]",
        [
            "%0: f32[2,3] = broadcast_to f32(1.0), shape=(2, 3)",
            "%1: f32[2,3] = mul %0, x",
        ],
        [],
    ),
    "symbolic sizes": (
        "x: f32[n,m]",
        [
            "%0: f32[m,n] = permute_dims x, axes=(1, 0)",
            "%1: f32[m*n] = reshape %0, shape=(m*n,)",
            "%2: f32[m*n] = slice %1, starts=(0,), stops=(m*n,), steps=(1,)",
            "%3: f32[m*n] = mul %2, f32(1.0)",
        ],
        [
            "%0: f32[m,n] = permute_dims x, axes=(1, 0)",
            "%1: f32[m*n] = reshape %0, shape=(m*n,)",
            "%2: f32[m*n] = mul %1, f32(1.0)",
        ],
    ),
    "a shape in other words and back": (
        "x: f32[n], y: f32[m]",
        [
            "%0: f32[m] = with_shape x, shape=(m,)",
            "%1: f32[n] = with_shape %0, shape=(n,)",
            "%2: f32[n] = with_shape %1, shape=(n,)",
        ],
        [],
    ),
}


@pytest.mark.parametrize("name", LESS)
def test_two_operations_become_one(name: str) -> None:
    inputs, before, after = LESS[name]
    last = f"return %{len(before) - 1}"
    end = f"return %{len(after) - 1}" if after else "return x"
    assert simplified(graph_text(inputs, *before, last)) == [*after, end]


DIFFERENT: dict[str, tuple[str, str]] = {
    "x + 0 turns -0 into 0": ("x: f32[3]", "f32[3] = add x, f32(0.0)"),
    "x - -0 turns -0 into 0": ("x: f32[3]", "f32[3] = sub x, f32(-0.0)"),
    "0 - x": ("x: f32[3]", "f32[3] = sub f32(0.0), x"),
    "1 / x": ("x: f32[3]", "f32[3] = div f32(1.0), x"),
    "x * 0 may be NaN": ("x: f32[3]", "f32[3] = mul x, f32(0.0)"),
    "complex * 1 mixes zeros": ("x: c64[3]", "c64[3] = mul x, c64(1+0j)"),
    "complex / 1 mixes zeros": ("x: c64[3]", "c64[3] = div x, c64(1+0j)"),
    "complex - (0 - 0j)": ("x: c64[3]", "c64[3] = sub x, c64(0-0j)"),
    "two operands": ("x: f32[], y: f32[3]", "f32[3] = maximum x, y"),
    "a permutation": ("x: f32[3,3]", "f32[3,3] = permute_dims x, axes=(1, 0)"),
    "a flip": ("x: f32[3]", "f32[3] = flip x, axes=(0,)"),
    "a power": ("x: f32[3]", "f32[3] = pow x, f32(1.0)"),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_what_could_change_a_bit_stays(name: str) -> None:
    inputs, line = DIFFERENT[name]
    kept = [f"%0: {line}", "return %0"]
    graph = parse_graph(graph_text(inputs, *kept))
    assert simplify(graph) is graph


@pytest.mark.parametrize(
    ("narrow", "wide", "is_kept"),
    [
        ("f16", "f32", True),
        ("bf16", "f32", True),
        ("f16", "bf16", False),
        ("f32", "f16", False),
        ("f64", "c64", False),
        ("f64", "c128", True),
        ("i32", "i64", True),
        ("i64", "f64", False),
        ("u8", "i16", True),
        ("u8", "i8", False),
        ("bool", "f16", True),
        ("c64", "c128", True),
        ("c128", "c64", False),
    ],
)
def test_a_cast_there_and_back_is_left_out_if_nothing_is_lost(
    narrow: str, wide: str, is_kept: bool
) -> None:
    x = param("x", TensorType(dtype_named(narrow), (3,)))
    there = ops.cast(x, dtype=dtype_named(wide))
    graph = Graph("f", (x,), (ops.cast(there, dtype=x.dtype),))
    assert (simplify(graph).outputs == (x,)) == is_kept


SPECIAL = [0.0, -0.0, math.inf, -math.inf, math.nan, 1e-45, -1e-45, 3.4e38, 1.0, -2.5]


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
@pytest.mark.parametrize(
    "compute",
    [
        lambda x: x * 1,
        lambda x: x / 1,
        lambda x: x - 0,
        lambda x: x + -0.0,
        lambda x: ops.negative(ops.negative(x)),
        lambda x: ops.maximum(x, x),
        lambda x: ops.abs(-x),
        lambda x: ops.floor(ops.ceil(x)),
        lambda x: ops.where(ops.isnan(x), x, x),
        lambda x: ops.cast(ops.cast(x, dtype=np.dtype("f8")), dtype=x.dtype),
    ],
    ids=["mul", "div", "sub", "add", "neg", "max", "abs", "floor", "where", "cast"],
)
def test_a_rule_keeps_special_values(compute: Any, dtype: str) -> None:
    x = param("x", TensorType(dtype_named(dtype), (len(SPECIAL),)))
    graph = Graph("f", (x,), (compute(x),))
    fewer = simplify(graph)
    assert len(fewer.nodes) < len(graph.nodes)
    with np.errstate(over="ignore"):
        given = np.array(SPECIAL).astype(x.dtype)
    (expected,), (found,) = interpret(graph, given), interpret(fewer, given)
    is_nan = np.isnan(expected.astype(float))
    assert found.dtype == expected.dtype
    assert np.array_equal(np.isnan(found.astype(float)), is_nan)
    assert found[~is_nan].tobytes() == expected[~is_nan].tobytes()


def test_the_magnitude_of_an_unsigned_opposite_stays() -> None:
    x = param("x", TensorType.parse("u8[3]"))
    graph = Graph("f", (x,), (ops.abs(-x),))
    assert simplify(graph) is graph


def test_a_constant_that_spreads_the_other_operand_stays() -> None:
    x = param("x", TensorType.parse("f32[3]"))
    ones = ops.broadcast_to(literal(1.0, x.dtype), shape=(2, 3))
    graph = Graph("f", (x,), (x * ones,))
    assert simplify(graph) is graph


def test_the_results_of_a_custom_call_are_there_already() -> None:
    x = param("x", TensorType.parse("f32[3]"))
    g = param("g", TensorType.parse("f32[3]"))
    rule = Graph("rule", (x, g), (g * x,))
    whole = ops.custom_call(
        x, x, ops.sin(x), backward=rule, forward=rule, connected=(True,), results=1
    )
    graph = Graph("f", (x,), (ops.item(whole, index=0),))
    assert lines_of(simplify(graph)) == ["%0: f32[3] = sin x", "return %0"]


# Memory


def test_a_copy_that_gives_an_array_its_layout_stays() -> None:
    """A sum adds in the order of memory: the copy of a repeated row lies otherwise."""
    x = param("x", TensorType.parse("f32[3]"))
    wide = ops.broadcast_to(x, shape=(2, 3))
    graph = Graph("f", (x,), (ops.sum(wide * 1, axes=(0, 1), keepdims=False),))
    assert simplify(graph) is graph


def test_a_reshape_that_turns_columns_into_rows_stays() -> None:
    x = param("x", TensorType.parse("f32[2,3]"))
    flat = ops.reshape(ops.permute_dims(x, axes=(1, 0)), shape=(6,))
    graph = Graph("f", (x,), (ops.reshape(flat, shape=(3, 2)),))
    assert simplify(graph) is graph


def test_the_order_of_axes_is_followed_through_arithmetic() -> None:
    x = param("x", TensorType.parse("f32[2,3]"))
    opposite = ops.negative(ops.permute_dims(x, axes=(1, 0)))
    same = ops.negative(opposite)
    graph = Graph("f", (x,), (ops.permute_dims(same, axes=(1, 0)),))
    assert simplify(graph).outputs == (x,)


def test_one_complex_number_is_left_alone() -> None:
    """A NumPy scalar and an array without axes round their products differently."""
    x = param("x", TensorType.parse("c128[]"))
    graph = Graph("f", (x,), (ops.reshape(x, shape=()) * x,))
    assert simplify(graph) is graph
    read = Graph("f", (x,), (ops.read(x) * x,))
    assert lines_of(simplify(read)) == ["%0: c128[] = mul x, x", "return %0"]


# All of them


def rules() -> set[Any]:
    return {
        rule
        for table in (PASSING, VIEWS, COPIES)
        for row in table.values()
        for rule in row
    }


def test_the_docstring_of_a_rule_is_the_rule() -> None:
    for rule in rules():
        assert "->" in rule.__doc__, rule.__name__


def test_no_rule_looks_behind_an_input() -> None:
    """The inputs of a Graph may be any Nodes; what is behind them is not there."""
    x = param("x", TensorType.parse("f32[2,3]"))
    behind: list[Node] = [
        -x,
        ops.abs(x),
        ops.reshape(x, shape=(3, 2)),
        ops.permute_dims(x, axes=(1, 0)),
        ops.broadcast_to(x, shape=(2, 3)),
        ops.read(x),
    ]
    for given in behind:
        outputs = [
            -given,
            ops.abs(given),
            ops.permute_dims(given, axes=(1, 0)),
            given + given,
            ops.read(given),
        ]
        graph = Graph("f", (given,), outputs)
        fewer = check_graph(simplify(graph))
        array = np.arange(6, dtype="f4").reshape(given.shape)
        found, expected = interpret(fewer, array), interpret(graph, array)
        assert len(fewer.nodes) == len(graph.nodes) - 1  # the read
        for one, two in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("divisor", [4.0, 0.25, -2.0, 2.0**126, 2.0**127, 2.0**-129])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_a_power_of_two_divides_by_multiplying_with_the_same_bits(
    dtype: str, divisor: float
) -> None:
    x = param("x", TensorType.parse("f32[n]" if dtype == "f4" else "f64[n]"))
    y = ops.div(x, literal(divisor, np.dtype(dtype)))
    graph = Graph("f", (x,), (y,))
    odd = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, 3e38, 1e-45, 7.0]
    rng = np.random.default_rng(0)
    bits = np.frombuffer(rng.bytes(80_000), dtype)
    values = np.concatenate([np.array(odd, dtype), bits])
    with np.errstate(all="ignore"):
        (before,) = interpret(graph, values)
        (after,) = interpret(simplify(graph), values)
    np.testing.assert_array_equal(before, after)
    is_number = ~np.isnan(before)
    assert before[is_number].tobytes() == after[is_number].tobytes()
    is_far = divisor in (2.0**127, 2.0**-129)  # its inverse is no normal f32
    assert ("mul" in str(simplify(graph))) == (dtype == "f8" or not is_far)


@pytest.mark.parametrize("divisor", [3.0, 0.0, math.inf, math.nan, 6.0])
def test_other_numbers_still_divide(divisor: float) -> None:
    x = param("x", TensorType.parse("f32[3]"))
    graph = Graph("f", (x,), (x / literal(divisor, np.dtype("f4")),))
    assert simplify(graph) is graph
