"""Graphs as text and as data: printing, parsing, checking, digests, interpretation."""

from __future__ import annotations

import math
import re
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tapejit.ops  # noqa: F401  # fills the registry
from tapejit.base.dims import Dim, dim_max
from tapejit.base.errors import ArgumentTypeError, GraphError
from tapejit.base.origin import user_origin
from tapejit.base.types import TOKEN, TensorType, TupleType, dtype_named, parse_type
from tapejit.ir import (
    OPS,
    Graph,
    Node,
    Op,
    check_graph,
    graph_digest,
    interpret,
    literal,
    param,
    parse_graph,
    print_graph,
)
from tapejit.ir.node import LITERAL, Derived, origin_of
from tapejit.ir.printer import canonical_text, scalar_text
from tapejit.ir.structural import GuardFailed, call, first_token, guard, item


def given_param(name: str, type: str = "f32[3]") -> Node:
    return param(name, parse_type(type))


def text_of(graph: Graph) -> str:
    return print_graph(graph, comments=False)


def unindented(text: str) -> str:
    """A text written in a test: without the first newline and the common indent."""
    lines = text.strip("\n").rstrip().split("\n")
    margin = min(len(line) - len(line.lstrip()) for line in lines if line.strip())
    return "\n".join(line[margin:] for line in lines)


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch) -> Op:
    """An op that takes one tensor and any attributes, and gives the tensor."""
    op = Op(
        "probe",
        type_rule=lambda x, **attrs: x,
        eval=lambda x, **attrs: x,
        differentiable=False,
    )
    monkeypatch.setitem(OPS, "probe", op)
    return op


@pytest.fixture
def emit(monkeypatch: pytest.MonkeyPatch) -> Op:
    """An effect with a result of its own beside the token."""
    op = Op(
        "emit",
        type_rule=lambda x, token: TupleType((x, TOKEN)),
        eval=lambda x, token: (x, None),
        differentiable=False,
        is_effect=True,
    )
    monkeypatch.setitem(OPS, "emit", op)
    return op


# Graphs that several tests use, by name.


def doubled() -> Graph:
    x = given_param("x")
    return Graph("double", (x,), (x + x,))


def calling() -> Graph:
    x, y = given_param("x"), given_param("y")
    results = call(x * y, graph=doubled())
    return Graph("outer", (x, y), (item(results, index=0) - y, x))


def calling_twice_deep() -> Graph:
    x = given_param("x")
    body = Graph("middle", (x,), (item(call(x, graph=doubled()), index=0) * 2,))
    return Graph("outer", (x,), (item(call(x, graph=body), index=0),))


def guarded() -> Graph:
    x, flag = given_param("x"), given_param("flag", "bool[]")
    once = guard(flag, first_token(), expected=True)
    twice = guard(OPS["bitwise_invert"](flag), once, expected=False)
    return Graph("guarded", (x, flag), (x * x,), twice)


def symbolic() -> Graph:
    x = given_param("x", "f32[n,m]")
    n, m = x.shape
    flat = OPS["reshape"](x, shape=(n * m,))
    return Graph("flat", (x,), (flat, OPS["broadcast_to"](flat, shape=(n, n * m))))


def with_literals() -> Graph:
    x = given_param("x", "f32[2,2]")
    small = literal(np.array([[1, 0.1], [-0.0, np.inf]], np.float32))
    large = literal(np.arange(20, dtype=np.float32).reshape(5, 2, 2))
    return Graph("literals", (x,), (x * small + large, literal(2.5), small))


def without_anything() -> Graph:
    return Graph("nothing", (), ())


GRAPHS: dict[str, Callable[[], Graph]] = {
    build.__name__: build
    for build in (
        doubled,
        calling,
        calling_twice_deep,
        guarded,
        symbolic,
        with_literals,
        without_anything,
    )
}
each_graph = pytest.mark.parametrize("build", GRAPHS.values(), ids=GRAPHS)


# Printing


def test_types_are_padded_and_scalars_stand_where_they_are_used() -> None:
    x, w = given_param("x", "f32[64,8]"), given_param("w", "f32[]")
    y = x * w
    graph = Graph("loss.step", (x, w), (y * 2 + y, w * w))
    assert text_of(graph) == unindented("""
        graph loss.step(x: f32[64,8], w: f32[]) {
          %0: f32[64,8] = mul x, w
          %1: f32[64,8] = mul %0, f32(2.0)
          %2: f32[64,8] = add %1, %0
          %3: f32[]     = mul w, w
          return %2, %3
        }
    """)


def test_comments_give_the_line_or_the_node_a_pass_worked_on() -> None:
    x = given_param("x")
    with origin_of(user_origin()):
        y = x * x
        elsewhere = x + x
    with origin_of(Derived("vjp", y)):
        dy = y + x
    with origin_of(Derived("vjp", elsewhere)):
        lost = dy * 2.0
    with origin_of(Derived("simplify", lost)):
        lost_again = lost - x
    text = print_graph(Graph("f", (x,), (dy, lost_again - y)))
    text = re.sub(r"test_ir\.py:\d+", "test_ir.py:1", text)
    assert text == unindented("""
        graph f(x: f32[3]) {
          %0: f32[3] = mul x, x          # test_ir.py:1
          %1: f32[3] = add %0, x         # vjp of %0
          %2: f32[3] = mul %1, f32(2.0)  # vjp of add, test_ir.py:1
          %3: f32[3] = sub %2, x         # simplify of %2
          %4: f32[3] = sub %3, %0
          return %1, %4
        }
    """)


def test_an_origin_behind_two_passes_ends_at_the_users_line() -> None:
    x = given_param("x")
    with origin_of(user_origin()):
        first = x * x
    with origin_of(Derived("vjp", first)):
        second = x + x
    with origin_of(Derived("jvp", second)):
        third = x - x
    text = print_graph(Graph("f", (x,), (third,)))
    assert re.search(r"sub x, x  # jvp of add, test_ir\.py:\d+\n", text)


def test_a_long_line_does_not_push_the_comments_away() -> None:
    x = given_param("x", "f32[3,100]")
    with origin_of(Derived("pad", x)):
        y = x * literal(np.zeros(100, np.float32))
    lines = print_graph(Graph("f", (x,), (y,))).split("\n")
    assert len(lines[1]) > 500
    assert lines[2] == "  %1: f32[3,100] = mul x, %0  # pad of x"


def test_inputs_have_unique_names() -> None:
    names = ("x", "x", "x_1", "v0", "layers[0].w", "2nd", "")
    inputs = [given_param(name) for name in names]
    recorded = inputs[0] * 2, inputs[0] * 3
    graph = Graph("f", (*inputs, *recorded), (recorded[0] + recorded[1],))
    head, line, *_ = text_of(graph).split("\n")
    assert re.findall(r"([\w.]+):", head) == [
        *("x", "x_2", "x_1", "v0", "layers_0_.w", "_2nd", "_"),
        *("v1", "v2"),
    ]
    assert line == "  %0: f32[3] = add v1, v2"


@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("loss.<locals>.<lambda>", "graph loss.<locals>.<lambda>("),
        ('a "step"', r'graph "a \"step\""('),
        ("", 'graph ""('),
    ],
)
def test_any_graph_name_is_read_back(name: str, head: str) -> None:
    text = text_of(Graph(name, (), ()))
    assert text.startswith(head)
    assert parse_graph(text).name == name


def test_effects_have_a_line() -> None:
    assert text_of(guarded()) == unindented("""
        graph guarded(x: f32[3], flag: bool[]) {
          %0: token  = start
          %1: token  = guard flag, %0, expected=True
          %2: bool[] = bitwise_invert flag
          %3: token  = guard %2, %1, expected=False
          %4: f32[3] = mul x, x
          return %4
          effects %3
        }
    """)


def test_nested_graphs_are_printed_in_place() -> None:
    assert text_of(calling_twice_deep()) == unindented("""
        graph outer(x: f32[3]) {
          %0: (f32[3]) = call x, graph=graph middle(x: f32[3]) {
            %0: (f32[3]) = call x, graph=graph double(x: f32[3]) {
              %0: f32[3] = add x, x
              return %0
            }
            %1: f32[3]   = item %0, index=0
            %2: f32[3]   = mul %1, f32(2.0)
            return %2
          }
          %1: f32[3]   = item %0, index=0
          return %1
        }
    """)


def test_symbolic_sizes_are_printed_in_types_and_attributes() -> None:
    assert text_of(symbolic()) == unindented("""
        graph flat(x: f32[n,m]) {
          %0: f32[m*n]   = reshape x, shape=(m*n,)
          %1: f32[n,m*n] = broadcast_to %0, shape=(n, m*n)
          return %0, %1
        }
    """)


def test_literals_with_axes_have_lines() -> None:
    lines = text_of(with_literals()).split("\n")
    assert lines[1] == "  %0: f32[2,2]   = literal [[1.0, 0.1], [-0.0, inf]]"
    assert re.fullmatch(r'  %2: f32\[5,2,2\] = literal "[A-Za-z0-9+/]{107}="', lines[3])
    assert lines[5] == "  return %3, f32(2.5), %0"


def test_an_array_with_nan_keeps_its_bits() -> None:
    bits = np.array([0x7FC00001, 0xFFC00000, 0x7F800001], np.uint32)
    graph = Graph("f", (), (literal(bits.view(np.float32)),))
    parsed = parse_graph(text_of(graph))
    assert parsed.outputs[0].attrs["value"].tobytes() == bits.tobytes()


@pytest.mark.parametrize(
    ("value", "dtype", "text"),
    [
        (True, "bool", "bool(True)"),
        (-3, "i32", "i32(-3)"),
        (2**64 - 1, "u64", "u64(18446744073709551615)"),
        (2.0, "f32", "f32(2.0)"),
        (0.1, "f32", "f32(0.1)"),
        (0.1, "f64", "f64(0.1)"),
        (np.float32(0.1), "f64", "f64(0.10000000149011612)"),
        (3.4028235e38, "f32", "f32(3.4028235e+38)"),
        (1e-45, "f32", "f32(1e-45)"),
        (0.1, "f16", "f16(0.1)"),
        (65504, "f16", "f16(65500.0)"),
        (3.14159, "bf16", "bf16(3.14)"),
        (-0.0, "f32", "f32(-0.0)"),
        (math.inf, "f64", "f64(inf)"),
        (-math.inf, "bf16", "bf16(-inf)"),
        (math.nan, "f16", "f16(nan)"),
        (1 + 2j, "c64", "c64(1+2j)"),
        (complex(0, -2.5e-7), "c128", "c128(0-2.5e-07j)"),
        (complex(-0.0, -0.0), "c64", "c64(-0-0j)"),
        (complex(math.nan, -math.inf), "c64", "c64(nan-infj)"),
    ],
)
def test_scalars(value: Any, dtype: str, text: str) -> None:
    array = np.array(value, dtype_named(dtype))
    assert scalar_text(array) == text
    (output,) = parse_graph(f"graph f() {{\n  return {text}\n}}").outputs
    assert output.type == TensorType.of(array)
    np.testing.assert_array_equal(output.attrs["value"], array)
    assert output.attrs["value"].tobytes() == array.tobytes()


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64", "c64", "c128"])
def test_scalars_of_any_bits_are_read_back(dtype: str) -> None:
    bits = np.random.default_rng(0).bytes(16 * 300)
    for value in np.frombuffer(bits, dtype_named(dtype))[:300]:
        (output,) = parse_graph(
            f"graph f() {{\n  return {scalar_text(np.array(value))}\n}}"
        ).outputs
        found = output.attrs["value"]
        parts = [value.real, value.imag], [found.real, found.imag]
        for want, got in zip(*parts, strict=True):
            assert got.dtype == want.dtype
            assert (got != got and want != want) or got.tobytes() == want.tobytes()


ATTRIBUTES: list[tuple[Any, str]] = [
    (None, "None"),
    (True, "True"),
    (-7, "-7"),
    (1.0, "1.0"),
    (1e-05, "1e-05"),
    (-0.0, "-0.0"),
    (math.inf, "inf"),
    ("ij,jk->ik", '"ij,jk->ik"'),
    ('quote " # \\ (\n é', r'"quote \" # \\ (\n \u00e9"'),
    ((), "()"),
    ((1,), "(1,)"),
    ((0, 1), "(0, 1)"),
    (((1, 2), ("a,)",), None), '((1, 2), ("a,)",), None)'),
    (np.dtype("float32"), "f32"),
    (np.dtype("bool"), "bool"),
    (Dim("n"), "n"),
    (Dim("graph") + 1, "graph + 1"),
    (2 * Dim("n") - 1, "2*n - 1"),
    ((Dim("n") + 1) // 2, "(n + 1)//2"),
    (((Dim("n") + 1) // 2, Dim("n") % 4), "((n + 1)//2, n % 4)"),
    ((dim_max(Dim("m"), Dim("n")),), "(max(m, n),)"),
]


@pytest.mark.parametrize(("value", "text"), ATTRIBUTES, ids=[t for _, t in ATTRIBUTES])
def test_attributes(probe: Op, value: Any, text: str) -> None:
    x = given_param("x")
    printed = text_of(Graph("f", (x,), (probe(x, key=value, last=1),)))
    assert printed.split("\n")[1] == f"  %0: f32[3] = probe x, key={text}, last=1"
    (node,) = parse_graph(printed).outputs
    assert node.attrs == {"key": value, "last": 1}
    assert type(node.attrs["key"]) is type(value)


def test_a_tuple_of_graphs_is_an_attribute(probe: Op) -> None:
    x = given_param("x")
    branches = (doubled(), calling())
    text = text_of(Graph("f", (x,), (probe(x, branches=branches, n=1),)))
    (node,) = parse_graph(text).outputs
    assert [body.digest for body in node.attrs["branches"]] == [
        body.digest for body in branches
    ]
    assert text_of(parse_graph(text)) == text


@pytest.mark.parametrize(
    "value",
    [
        [1],
        {"a": 1},
        slice(1),
        np.float64(1),
        np.int64(1),
        1j,
        np.dtype("S3"),
        np.dtype("float32").newbyteorder(),
        np.zeros(2),
        (1, [2]),
        Dim("f32"),
        2 * Dim("inf"),
    ],
    ids=repr,
)
def test_an_attribute_without_a_text_is_named(probe: Op, value: Any) -> None:
    x = given_param("x")
    graph = Graph("f", (x,), (probe(x, mode=value),))
    with pytest.raises(GraphError, match="probe: attribute mode cannot be printed"):
        print_graph(graph)
    with pytest.raises(
        GraphError, match="f breaks invariant 9: attribute mode of probe"
    ):
        check_graph(graph)


# Digests


def test_canonical_text_has_no_free_choices(probe: Op) -> None:
    rows = given_param("rows", "f32[batch,_kept]")
    body_input = given_param("y", "f32[batch,_kept]")
    body = Graph("body", (body_input,), (body_input * body_input,))
    with origin_of(user_origin()):
        y = probe(rows, z=(Dim("batch") * 2,), a=body, b="s")
    graph = Graph("f", (rows,), (y, literal(np.float32([1.5]))))
    assert canonical_text(graph) == unindented("""
        graph(a0: f32[d0,_d1]) {
        %0: f32[d0,_d1] = probe a0, a=graph(a0: f32[d0,_d1]) {
        %0: f32[d0,_d1] = mul a0, a0
        return %0
        }, b="s", z=(2*d0,)
        %1: f32[1] = literal "AADAPw=="
        return %0, %1
        }
    """)


def renamed(names: str, sizes: str, graph_name: str, *, swap_attributes: bool) -> Graph:
    n, m = sizes
    x, y = (given_param(name, f"f32[{n},{m}]") for name in names)
    attrs = {"b": 2, "a": 1} if swap_attributes else {"a": 1, "b": 2}
    z = OPS["probe"](x * y, **attrs)
    flat = OPS["reshape"](z, shape=(Dim(n) * Dim(m),))
    return Graph(graph_name, (x, y), (flat,))


@pytest.mark.usefixtures("probe")
def test_names_are_no_part_of_the_digest() -> None:
    first = renamed("xy", "nm", "f", swap_attributes=False)
    second = renamed("ba", "mn", "g", swap_attributes=True)
    assert text_of(first) != text_of(second)
    assert graph_digest(first) == graph_digest(second)
    swapped_sizes = Graph("f", first.inputs[::-1], first.outputs)
    assert graph_digest(first) != graph_digest(swapped_sizes)


def different_graphs() -> dict[str, Graph]:
    """Graphs of which no two compute the same."""
    probe, reshape = OPS["probe"], OPS["reshape"]
    x, y = given_param("x"), given_param("y")
    wide = given_param("x", "f64[3]")
    rows = given_param("x", "f32[n,m]")
    square = given_param("x", "f32[n,n]")
    kept = given_param("x", "f32[_n,_m]")
    flag = given_param("flag", "bool[]")
    shared = x * x
    n, m = rows.shape
    graphs = {
        "add": Graph("f", (x, y), (x + y,)),
        "sub": Graph("f", (x, y), (x - y,)),
        "sub swapped": Graph("f", (x, y), (y - x,)),
        "dtype": Graph("f", (wide,), (wide,)),
        "identity": Graph("f", (x,), (x,)),
        "two outputs": Graph("f", (x,), (x, x)),
        "unused input": Graph("f", (x, y), (x,)),
        "shared": Graph("f", (x,), (shared + shared,)),
        "not shared": Graph("f", (x,), (x * x + x * x,)),
        "rows": Graph("f", (rows,), (rows,)),
        "square": Graph("f", (square,), (square,)),
        "sizes from 0 on": Graph("f", (kept,), (kept,)),
        "n*m": Graph("f", (rows,), (reshape(rows, shape=(n * m,)),)),
        "n*m, 1": Graph("f", (rows,), (reshape(rows, shape=(n * m, 1)),)),
        "guard": Graph("f", (flag,), (), guard(flag, first_token(), expected=True)),
        "no guard": Graph("f", (flag,), ()),
        "call": calling(),
        "call deep": calling_twice_deep(),
    }
    scalars = [1.0, -1.0, 0.0, -0.0, math.nan, math.inf, 1 + 2**-23]
    values = [*scalars, [1.0], [[1.0]], [-1.0], [], [[]], [math.nan], list(range(20))]
    for value in values:
        graphs[f"literal {value}"] = Graph(
            "f", (), (literal(value, np.dtype("float32")),)
        )
    graphs["literal i32"] = Graph("f", (), (literal(1),))
    attributes = [value for value, _ in ATTRIBUTES if not _has_dim(value)]
    attributes += [False, 1, 0, 0.0, math.nan, "1", "None", "f32", ((0, 1),), ((0,), 1)]
    for value in [*attributes, n, m, n + m, n * m, (n,), doubled(), calling()]:
        graphs[f"attribute {value!r}"] = Graph("f", (rows,), (probe(rows, a=value),))
    graphs["attribute b"] = Graph("f", (rows,), (probe(rows, b=None),))
    graphs["attributes a, b"] = Graph("f", (rows,), (probe(rows, a=None, b=None),))
    return graphs


def _has_dim(value: Any) -> bool:
    parts = value if isinstance(value, tuple) else (value,)
    return any(isinstance(part, Dim) for part in parts)


@pytest.mark.usefixtures("probe")
def test_different_graphs_have_different_digests() -> None:
    graphs = different_graphs()
    owner: dict[str, str] = {}
    for name, graph in graphs.items():
        other = owner.setdefault(graph.digest, name)
        assert other == name, f"{name} and {other} have the same digest"
    assert len(owner) > 60


# Parsing


@each_graph
def test_what_is_printed_is_read_back(build: Callable[[], Graph]) -> None:
    graph = build()
    text = text_of(graph)
    parsed = parse_graph(text)
    assert text_of(parsed) == text
    assert parsed.digest == graph.digest
    assert check_graph(parsed) is parsed
    assert text_of(parse_graph(print_graph(graph))) == text


@pytest.mark.usefixtures("probe")
def test_every_different_graph_is_read_back() -> None:
    for name, graph in different_graphs().items():
        text = text_of(graph)
        parsed = parse_graph(text)
        assert text_of(parsed) == text, name
        assert parsed.digest == graph.digest, name


def test_spaces_and_comments_mean_nothing() -> None:
    text = unindented("""
        # a graph
        graph   f ( x :f32[ 3 ],flag: bool[] ,) {   # its head

            # a Node
            %7:f32[3]=mul x,f32( 2 )# its line
          %9 : token = start
        %1: token = guard flag , %9 , expected = True
          return %7

          effects %1    # the end
        }
        # nothing more""")
    assert text_of(parse_graph(text)) == unindented("""
        graph f(x: f32[3], flag: bool[]) {
          %0: token  = start
          %1: token  = guard flag, %0, expected=True
          %2: f32[3] = mul x, f32(2.0)
          return %2
          effects %1
        }
    """)


def line_after_head(line: str) -> str:
    return f"graph f(x: f32[3], n: i32[]) {{\n  {line}\n  return x\n}}"


MISTAKES: dict[str, tuple[str, int, str, str]] = {
    # what: (text, line, message, what the caret is under)
    "no graph": ("loss(x: f32[3]) {", 1, "expected 'graph'", "loss"),
    "no brace": ("graph f(x: f32[3])\n  return x\n}", 1, "expected '{'", ""),
    "no return": ("graph f(x: f32[3]) {\n}", 2, "expected 'return'", "}"),
    "no end": ("graph f(x: f32[3]) {\n  return x", 2, "expected '}'", ""),
    "more": ("graph f() {\n  return\n}\ngraph", 4, "expected nothing after", "graph"),
    "empty": ("", 1, "expected 'graph'", ""),
    "input type": ("graph f(x: f33[3]) {", 1, "not a tensor type: 'f33[3]'", "f33"),
    "input comma": ("graph f(x: f32[3] y: f32[3]) {", 1, "expected ',' or ')'", "y:"),
    "input twice": ("graph f(x: f32[], x: i8[]) {", 1, "x is defined twice", "x: i8"),
    "size": ("graph f(x: f32[n+]) {", 1, "n+", "f32[n+]"),
    "op": (line_after_head("%0: f32[3] = mull x, x"), 2, "unknown op 'mull'", "mull"),
    "param": (line_after_head('%0: f32[] = param name="y"'), 2, "unknown op", "param"),
    "undefined": (line_after_head("%0: f32[3] = mul x, y"), 2, "y is not defined", "y"),
    "later": (line_after_head("%0: f32[3] = mul x, %1"), 2, "%1 is not defined", "%1"),
    "redefined": (
        line_after_head("%0: f32[3] = mul x, x\n  %0: f32[3] = add x, x"),
        *(3, "%0 is defined twice", "%0: f32[3] = add"),
    ),
    "type": (
        line_after_head("%0: f32[4] = mul x, x"),
        *(2, "%0 is f32[3], the text says f32[4]", "f32[4]"),
    ),
    "rule": (
        line_after_head("%0: f32[3] = mul x, n"),
        *(2, "mul does not take this: operands differ in dtype", "mul"),
    ),
    "operand count": (
        line_after_head("%0: f32[3] = reshape x"),
        *(2, "reshape does not take this", "reshape"),
    ),
    "unknown attribute": (
        line_after_head("%0: f32[3] = mul x, x, axis=1"),
        *(2, "mul does not take this", "mul"),
    ),
    "comma": (line_after_head("%0: f32[3] = mul x x"), 2, "expected ','", "x\n"),
    "comma at end": (line_after_head("%0: f32[3] = mul x,"), 2, "an operand", ""),
    "attribute first": (
        line_after_head("%0: f32[3] = reshape shape=(3,), x"),
        *(2, "operands come before attributes", "x\n"),
    ),
    "attribute twice": (
        line_after_head("%0: f32[3] = reshape x, shape=(3,), shape=(3,)"),
        *(2, "attribute shape is given twice", "shape=(3,)\n"),
    ),
    "value": (
        line_after_head("%0: f32[3] = reshape x, shape=[3]"),
        *(2, "'[3]' is no value", "[3]\n"),
    ),
    "string": (
        line_after_head('%0: f32[3] = reshape x, shape="3'),
        *(2, "expected a string", '"3'),
    ),
    "tuple": (
        line_after_head("%0: f32[3] = reshape x, shape=(3, 1"),
        *(2, "expected ',' or ')'", ""),
    ),
    "constant": (line_after_head("%0: f32[3] = mul x, f33(2)"), 2, "'f33'", "f33"),
    "number": (line_after_head("%0: i32[] = mul n, i32(2.5)"), 2, "'2.5'", "2.5"),
    "range": (line_after_head("%0: u8[] = mul n, u8(256)"), 2, "'256'", "256"),
    "bool": (line_after_head("%0: bool[] = mul n, bool(1)"), 2, "'1' is no", "1)"),
    "list": (line_after_head("%0: f32[2] = literal [1.0]"), 2, "expected ','", "]\n"),
    "base 64": (
        line_after_head('%0: f32[2] = literal "AAA"'),
        *(2, "not the bytes of f32[2]", '"AAA"'),
    ),
    "bytes": (
        line_after_head('%0: f32[2] = literal "AAAA"'),
        *(2, "not the bytes of f32[2]", '"AAAA"'),
    ),
    "literal type": (
        line_after_head("%0: f32[n] = literal [1.0]"),
        *(2, "a literal cannot have the type f32[n]", "f32[n]"),
    ),
    "end of line": ("graph f() {\n  return\n} }", 3, "expected the end of", "}"),
    "nested": (
        line_after_head("%0: () = call graph=graph g() {\n    return z\n  }"),
        *(3, "z is not defined", "z"),
    ),
}


@pytest.mark.parametrize(
    ("text", "line", "message", "piece"), MISTAKES.values(), ids=MISTAKES
)
def test_a_mistake_is_shown(text: str, line: int, message: str, piece: str) -> None:
    with pytest.raises(GraphError) as caught:
        parse_graph(text)
    head, shown, caret, *_ = str(caught.value).split("\n")
    assert head.startswith(f"line {line}: ")
    assert message in head
    source = text.split("\n")[line - 1]
    assert shown == f"  | {source}"
    assert caret.strip(" |") == "^"
    assert f"{source}\n"[len(caret) - len("  | ") - 1 :].startswith(piece)


# Checking


@each_graph
def test_graphs_that_are_well_formed(build: Callable[[], Graph]) -> None:
    graph = build()
    assert check_graph(graph) is graph


def test_a_graph_need_not_look_behind_its_inputs() -> None:
    x = given_param("x")
    kept = x * x
    graph = Graph("adjoint", (kept,), (kept + kept,))
    assert check_graph(graph) is graph


def test_an_effect_may_have_results_of_its_own(emit: Op) -> None:
    x = given_param("x")
    first = emit(x, first_token())
    second = emit(item(first, index=0), item(first, index=1))
    graph = Graph("f", (x,), (item(second, index=0),), item(second, index=1))
    check_graph(graph)
    with pytest.raises(GraphError, match="invariant 7: emit is not on the chain"):
        check_graph(Graph("f", graph.inputs, graph.outputs))
    with pytest.raises(GraphError, match="invariant 7: emit is not on the chain"):
        check_graph(Graph("f", graph.inputs, graph.outputs, item(first, index=1)))


def test_both_projections_of_a_token_are_the_same_link(emit: Op) -> None:
    x, flag = given_param("x"), given_param("flag", "bool[]")
    first = emit(x, first_token())
    second = emit(x, item(first, index=1))
    third = guard(flag, item(first, index=1), expected=True)
    graph = Graph("f", (x, flag), (item(second, index=0),), third)
    with pytest.raises(GraphError, match="7: guard and emit follow the same link"):
        check_graph(graph)


def broken_graphs() -> dict[str, tuple[int, str, Graph]]:
    """What is wrong: the invariant, the message, the graph."""
    probe = OPS["probe"]
    x, y = given_param("x"), given_param("y")
    flag, rows = given_param("flag", "bool[]"), given_param("r", "f32[n]")
    token, several = given_param("token", "token"), given_param("s", "(f32[3], i8[])")
    float3 = parse_type("f32[3]")
    results = call(x, graph=doubled())
    unregistered = Op("mystery", type_rule=lambda x: x, eval=abs, differentiable=False)
    namesake = Op("mul", type_rule=lambda x: x, eval=abs, differentiable=False)
    maker = Op("read", type_rule=lambda x: TOKEN, eval=abs, differentiable=False)
    start = first_token()
    open_body = Graph("open", (x,), (x * y,))
    unbound_body = Graph("open", (x,), (probe(x, size=Dim("n")),))
    writable = Node(LITERAL, (), {"value": np.zeros(3, np.float32)}, float3)
    lying = Node(LITERAL, (), literal(np.zeros(3)).attrs, float3)
    lying_scalar = Node(LITERAL, (), literal(2.0).attrs, parse_type("f64[]"))
    no_link = Node(OPS["guard"], (flag, flag), {"expected": True}, TOKEN)
    fork = [guard(flag, start, expected=True) for _ in range(2)]
    wrong_type = Node(OPS["mul"], (x, x), {}, parse_type("f32[4]"))
    wrong_rule = Node(OPS["mul"], (x, flag), {}, float3)
    wrong_count = Node(OPS["mul"], (), {"axis": 1}, float3)
    return {
        "same input": (1, "input 1 is there twice", Graph("f", (x, x), (x,))),
        "tuple input": (1, "input 0 has several", Graph("f", (several,), ())),
        "unregistered": (2, "mystery", Graph("f", (x,), (unregistered(x),))),
        "namesake": (2, "mul is not a registered", Graph("f", (x,), (namesake(x),))),
        "free parameter": (3, "parameter y", Graph("f", (x,), (x * y,))),
        "output": (3, "parameter y", Graph("f", (x,), (y,))),
        "type": (4, "mul gives f32[3], not f32[4]", Graph("f", (x,), (wrong_type,))),
        "rule": (4, "mul does not take this", Graph("f", (x, flag), (wrong_rule,))),
        "arguments": (4, "mul does not take this", Graph("f", (x,), (wrong_count,))),
        "writable": (4, "nobody can write", Graph("f", (), (writable,))),
        "literal": (4, "literal gives f64[3], not f32[3]", Graph("f", (), (lying,))),
        "scalar": (4, "literal gives f32[], not", Graph("f", (), (lying_scalar,))),
        "tuple output": (5, "output 0 has several", Graph("f", (x,), (results,))),
        "tuple used": (5, "uses all results", Graph("f", (x,), (probe(results),))),
        "token used": (6, "probe takes a token", Graph("f", (token,), (probe(token),))),
        "token made": (
            *(2, "read is not a registered op"),
            Graph("f", (x,), (), maker(x)),
        ),
        "no token": (4, "chain of effects", Graph("f", (flag,), (), no_link)),
        "effects": (7, "effects is no token: f32[3]", Graph("f", (x,), (), x)),
        "fork": (7, "guard and guard follow", Graph("f", (flag,), fork)),
        "size in attribute": (
            *(8, "the size m is in no input"),
            Graph("f", (rows,), (probe(rows, size=(1, (Dim("m"),))),)),
        ),
        "size in type": (
            *(8, "the size m is in no input"),
            Graph("f", (), (OPS["broadcast_to"](literal(1.0), shape=(Dim("m"),)),)),
        ),
        "sizes not told": (
            *(8, "the shapes of the inputs do not tell all of m, n"),
            Graph("f", (given_param("x", "f32[m*n]"),), ()),
        ),
        "list": (9, "attribute a of probe", Graph("f", (x,), (probe(x, a=[1]),))),
        "nested parameter": (
            *(3, "parameter y is reached"),
            Graph("f", (x,), (item(call(x, graph=open_body), index=0),)),
        ),
        "nested size": (
            *(8, "the size n is in no input"),
            Graph("f", (x, rows), (probe(x, bodies=((unbound_body,),)),)),
        ),
        "nested attribute": (
            *(9, "attribute a of probe"),
            Graph("f", (x,), (probe(x, body=Graph("open", (x,), (probe(x, a={1}),))),)),
        ),
    }


@pytest.mark.usefixtures("probe")
def test_every_broken_graph_is_refused() -> None:
    for name, (number, message, graph) in broken_graphs().items():
        with pytest.raises(GraphError) as caught:
            check_graph(graph)
        said = str(caught.value)
        owner = "open" if name.startswith("nested") else "f"
        assert said.startswith(f"{owner} breaks invariant {number}: "), name
        assert message in said, name
        marked = [line for line in said.split("\n") if line.startswith("  > ")]
        assert len(marked) == 1, name


@pytest.mark.parametrize("result", [TOKEN, TupleType((TOKEN, parse_type("f32[3]")))])
def test_who_may_make_tokens(monkeypatch: pytest.MonkeyPatch, result: Any) -> None:
    op = Op("maker", type_rule=lambda *x: result, eval=abs, differentiable=False)
    monkeypatch.setitem(OPS, "maker", op)
    made = op(given_param("x"))
    graph = Graph("f", made.inputs, (), made)
    with pytest.raises(GraphError, match="6: maker makes a token but is no effect"):
        check_graph(graph)

    op.is_effect = True
    with pytest.raises(GraphError, match="6: the last input of the effect maker is no"):
        check_graph(graph)


def test_sizes_in_types_come_from_the_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    result = TupleType((parse_type("i32[]"), parse_type("i32[_kept,m]")))
    op = Op("find", type_rule=lambda x: result, eval=abs, differentiable=False)
    monkeypatch.setitem(OPS, "find", op)
    x = given_param("x", "f32[m]")
    with pytest.raises(GraphError, match="8: the size _kept is in no input"):
        check_graph(Graph("f", (x,), (item(op(x), index=0),)))


def test_the_token_comes_last_among_the_results(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    result = TupleType((TOKEN, parse_type("f32[3]")))
    op = Op(
        "maker",
        type_rule=lambda *x: result,
        eval=abs,
        differentiable=False,
        is_effect=True,
    )
    monkeypatch.setitem(OPS, "maker", op)
    made = op(first_token())
    graph = Graph("f", (), (item(made, index=1),), item(made, index=0))
    with pytest.raises(GraphError, match="6: the effect maker has to end in a token"):
        check_graph(graph)


def test_the_error_shows_two_lines_around_the_place() -> None:
    x = given_param("x")
    y = x + x + x + x
    bad = Node(OPS["mul"], (y, y), {}, parse_type("f32[4]"), user_origin())
    z = Node(OPS["negative"], (bad,), {}, parse_type("f32[4]"))
    graph = Graph("loss", (x,), (-z, y))
    with pytest.raises(GraphError) as caught:
        check_graph(graph)
    said = re.sub(r"test_ir\.py:\d+", "test_ir.py:1", str(caught.value))
    assert said.startswith(
        unindented("""
            loss breaks invariant 4: mul gives f32[3], not f32[4]
                  %1: f32[3] = add %0, x
                  %2: f32[3] = add %1, x
              >   %3: f32[4] = mul %2, %2   # test_ir.py:1
                  %4: f32[4] = negative %3
                  %5: f32[4] = negative %4
              where  test_ir.py:1 in test_the_error_shows_two_lines_around_the_place:
        """)
    )


def test_a_scalar_literal_is_shown_where_it_is_used() -> None:
    x = given_param("x", "f64[]")
    lying = Node(LITERAL, (), literal(2.0).attrs, parse_type("f64[]"))
    with pytest.raises(GraphError, match=r"\n  >   %0: f64\[\] = mul x, f32\(2\.0\)"):
        check_graph(Graph("f", (x,), (x * lying,)))


# Interpreting


def test_interpret_runs_calls_and_projections() -> None:
    x, y = np.float32([1, 2, 3]), np.float32([4, 5, 6])
    first, second = interpret(calling(), x, y)
    np.testing.assert_array_equal(first, 2 * x * y - y)
    np.testing.assert_array_equal(second, x)
    (deep,) = interpret(calling_twice_deep(), x)
    np.testing.assert_array_equal(deep, 4 * x)


def test_interpret_gives_literals_and_inputs_as_they_are() -> None:
    x = np.ones((2, 2), np.float32)
    product, scalar, small = interpret(with_literals(), x)
    assert product.shape == (5, 2, 2)
    assert scalar.dtype == np.float32
    assert scalar.shape == ()
    np.testing.assert_array_equal(small, np.float32([[1, 0.1], [-0.0, np.inf]]))


def test_sizes_are_bound_from_the_arguments() -> None:
    graph = symbolic()
    for shape in ((2, 3), (5, 4)):
        x = np.arange(math.prod(shape), dtype=np.float32).reshape(shape)
        flat, repeated = interpret(graph, x)
        np.testing.assert_array_equal(flat, x.ravel())
        assert repeated.shape == (shape[0], math.prod(shape))


def test_sizes_in_a_body_are_bound_by_its_own_inputs() -> None:
    x = given_param("x", "f32[n,m]")
    results = call(x, graph=symbolic())
    graph = Graph("f", (x,), (item(results, index=0),))
    assert graph.digest == parse_graph(text_of(graph)).digest
    (flat,) = interpret(check_graph(graph), np.ones((2, 3), np.float32))
    assert flat.shape == (6,)


def test_sizes_that_contradict_each_other_are_refused() -> None:
    x, y = given_param("x", "f32[n]"), given_param("y", "f32[n]")
    graph = Graph("f", (x, y), (x + y,))
    with pytest.raises(ValueError, match="axis 0 is 3, not 2"):
        interpret(graph, np.ones(2, np.float32), np.ones(3, np.float32))


def test_guards_run_although_nothing_uses_them() -> None:
    x = np.float32([1, 2, 3])
    (result,) = interpret(guarded(), x, np.array(True))
    np.testing.assert_array_equal(result, x * x)
    with pytest.raises(GuardFailed) as caught:
        interpret(guarded(), x, np.array(False))
    assert (caught.value.expected, caught.value.found) == (True, False)


def test_values_are_let_go_after_their_last_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[weakref.ref[Any]] = []
    alive: list[int] = []

    def fresh(x: Any) -> Any:
        result = np.array(x)
        alive.append(sum(ref() is not None for ref in made))
        made.append(weakref.ref(result))
        return result

    op = Op("fresh", type_rule=lambda x: x, eval=fresh, differentiable=False)
    monkeypatch.setitem(OPS, "fresh", op)
    x = given_param("x")
    first = op(x)
    node = first
    for _ in range(4):
        node = op(node)
    graph = Graph("chain", (x,), (node,))
    interpret(graph, np.ones(3, np.float32))
    assert alive == [0, 1, 1, 1, 1]  # the one being read

    made.clear()
    alive.clear()
    interpret(Graph("kept", (x,), (node, first)), np.ones(3, np.float32))
    assert alive == [0, 1, 2, 2, 2]  # an output stays

    made.clear()
    argument = np.ones(3, np.float32)
    made.append(weakref.ref(argument))
    alive.clear()
    arguments = [argument]
    del argument
    graph.program.run(arguments)
    assert alive == [1, 1, 1, 1, 1]  # the argument goes too


def test_wrong_arguments_are_named() -> None:
    graph = calling()
    x = np.ones(3, np.float32)
    with pytest.raises(ArgumentTypeError, match="outer takes 2 arguments, got 1"):
        interpret(graph, x)
    with pytest.raises(ArgumentTypeError, match=r"argument 1 of outer is f32\[3\]"):
        interpret(graph, x, np.ones(3))
    with pytest.raises(ArgumentTypeError, match=r"got f32\[4\]"):
        interpret(graph, x, np.ones(4, np.float32))
    with pytest.raises(ArgumentTypeError, match="got <class 'float'>"):
        interpret(graph, x, 1.0)
    y = given_param("y")
    with pytest.raises(ArgumentTypeError, match="parameter y is used in f"):
        interpret(Graph("f", (), (y,)))


# Properties

names = st.sampled_from("nmk")
dims = st.recursive(
    names.map(Dim),
    lambda sizes: st.builds(
        lambda op, a, b: op(a, b),
        st.sampled_from(
            [
                lambda a, b: a + b,
                lambda a, b: a * b + 1,
                lambda a, b: a // 3 - b,
                lambda a, b: (a + 7 * b) % 5,
                dim_max,
            ]
        ),
        sizes,
        sizes,
    ),
    max_leaves=4,
)
attributes = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from(["f16", "bf16", "c128", "bool"]).map(dtype_named)
    | dims,
    lambda values: st.lists(values, max_size=3).map(tuple),
    max_leaves=8,
)


def is_same(a: Any, b: Any) -> bool:
    """Equality that tells 1, 1.0 and True apart, and 0.0 and -0.0, but not NaNs."""
    if type(a) is not type(b):
        return False
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(is_same, a, b))
    if isinstance(a, float):
        return repr(a) == repr(b)
    return bool(a == b)


def probing(value: Any) -> Graph:
    """A graph with an attribute; the op is known only while the text is made."""
    op = Op("probe", type_rule=lambda x, **attrs: x, eval=abs, differentiable=False)
    x = given_param("x", "f32[n,m,k]")
    return Graph("f", (x,), (op(x, a=value),))


@given(attributes)
def test_any_attribute_is_read_back(value: Any) -> None:
    graph = probing(value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(OPS, "probe", graph.outputs[0].op)
        parsed = parse_graph(text_of(graph))
    assert is_same(parsed.outputs[0].attrs["a"], value)


@given(attributes, attributes)
def test_canonical_text_tells_attributes_apart(a: Any, b: Any) -> None:
    texts = [canonical_text(probing(value)) for value in (a, b)]
    assert (texts[0] == texts[1]) == is_same(a, b)


@st.composite
def programs(draw: st.DrawFn) -> Graph:
    """A graph of elementwise operations that reuse each other's results."""
    inputs = [given_param(name) for name in draw(st.text("ab", max_size=3))]
    numbers = st.floats(width=32, allow_nan=False)
    arrays = st.lists(numbers, min_size=3, max_size=3)
    pool = [*inputs, literal(draw(arrays), np.dtype("float32"))]
    for name in draw(st.lists(st.sampled_from(["add", "mul", "negative", "number"]))):
        a, b = draw(st.sampled_from(pool)), draw(st.sampled_from(pool))
        match name:
            case "negative":
                pool.append(-a)
            case "number":
                pool.append(a * draw(numbers))
            case _:
                pool.append(OPS[name](a, b))
    return Graph("f", inputs, draw(st.lists(st.sampled_from(pool), max_size=3)))


@given(programs(), st.integers(0, 9))
def test_a_parsed_program_computes_the_same(graph: Graph, seed: int) -> None:
    text = text_of(graph)
    parsed = parse_graph(text)
    assert text_of(parsed) == text
    assert parsed.digest == check_graph(graph).digest
    rng = np.random.default_rng(seed)
    arguments = [rng.normal(size=3).astype(np.float32) for _ in graph.inputs]
    for want, got in zip(
        interpret(graph, *arguments), interpret(parsed, *arguments), strict=True
    ):
        assert want.tobytes() == got.tobytes()
