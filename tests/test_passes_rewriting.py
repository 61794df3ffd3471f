"""Inlining, folding, merging, and all passes together, as text and by counting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tapejit import ops
from tapejit.base.config import config
from tapejit.base.errors import GraphError, TapejitError
from tapejit.base.types import TensorType
from tapejit.ir import (
    Graph,
    Node,
    check_graph,
    interpret,
    literal,
    param,
    parse_graph,
    print_graph,
)
from tapejit.ir.rewriting import Sources
from tapejit.ir.structural import first_token
from tapejit.rewrite import pipeline
from tapejit.rewrite.cse import cse
from tapejit.rewrite.fold import fold
from tapejit.rewrite.inline import inline
from tapejit.rewrite.pipeline import PIPELINE, optimise
from tapejit.rewrite.simplify import simplify

F32 = np.dtype("float32")
ALL = [inline, simplify, fold, cse, optimise]


def vector(name: str, kind: str = "f32[3]") -> Node:
    return param(name, TensorType.parse(kind))


def lines_of(graph: Graph) -> list[str]:
    text = print_graph(check_graph(graph), comments=False)
    return [" ".join(line.split()) for line in text.splitlines()[1:-1]]


# Every pass


@pytest.mark.parametrize("rewrite", ALL)
def test_a_graph_with_nothing_to_gain_is_returned_itself(
    rewrite: Callable[[Graph], Graph],
) -> None:
    x, w = vector("x", "f32[n,2]"), vector("w", "f32[2,4]")
    y = ops.tanh(ops.matmul(x, w)) * 2
    graph = Graph("f", (x, w), (y, ops.sum(y, axes=(0, 1), keepdims=False)))
    assert rewrite(graph) is graph


@pytest.mark.parametrize("rewrite", ALL)
def test_inputs_keep_their_places_and_outputs_their_order(
    rewrite: Callable[[Graph], Graph],
) -> None:
    unused, x, also = (vector(name) for name in ("unused", "x", "also"))
    body = Graph("body", (also,), (also * 1 + also * 1,))
    y = ops.item(ops.call(x, graph=body), index=0)
    three = literal(1.0, F32) + literal(2.0, F32)
    graph = Graph("f", (unused, x, also), (y, x, y * three, x, y * three, ops.read(x)))
    fewer = check_graph(rewrite(graph))
    assert fewer is not graph
    assert fewer.inputs == graph.inputs
    assert fewer.name == graph.name
    arrays = [np.float32([at, 2, -3]) for at in range(3)]
    found, expected = interpret(fewer, *arrays), interpret(graph, *arrays)
    for one, two in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, two)


# Inlining


def test_calls_within_calls_are_inlined() -> None:
    p, q, x = vector("p"), vector("q"), vector("x")
    inner = Graph("inner", (p,), (ops.sin(p), ops.cos(p)))
    both = ops.call(q, graph=inner)
    sine, cosine = ops.item(both, index=0), ops.item(both, index=1)
    outer = Graph("outer", (q,), (sine * cosine, q))
    whole = ops.call(x, graph=outer)
    parts = (ops.item(whole, index=0), ops.item(whole, index=1))
    assert lines_of(inline(Graph("f", (x,), parts))) == [
        "%0: f32[3] = sin x",
        "%1: f32[3] = cos x",
        "%2: f32[3] = mul %0, %1",
        "return %2, x",
    ]


def test_a_body_for_any_size_gets_the_numbers_of_its_call() -> None:
    p = vector("p", "f32[n,m]")
    flat = ops.reshape(p, shape=(p.shape[0] * p.shape[1],))
    body = Graph("body", (p,), (ops.sum(flat, axes=(0,), keepdims=True),))
    x = vector("x", "f32[4,3]")
    graph = Graph("f", (x,), (ops.item(ops.call(x, graph=body), index=0),))
    assert lines_of(inline(graph)) == [
        "%0: f32[12] = reshape x, shape=(12,)",
        "%1: f32[1] = sum %0, axes=(0,), keepdims=True",
        "return %1",
    ]


def test_a_body_keeps_the_names_of_sizes_that_its_call_shares() -> None:
    p, x = vector("p", "f32[n]"), vector("x", "f32[n]")
    doubled = ops.broadcast_to(p, shape=(2, p.shape[0]))
    graph = Graph(
        "f", (x,), (ops.item(ops.call(x, graph=Graph("b", (p,), (doubled,))), index=0),)
    )
    assert lines_of(inline(graph)) == [
        "%0: f32[2,n] = broadcast_to x, shape=(2, n)",
        "return %0",
    ]


def test_a_call_that_could_fail_where_nobody_looks_stays() -> None:
    p, i = vector("p"), vector("i", "i64[2]")
    body = Graph("body", (p, i), (p * 2, ops.gather(p, i, axes=(0,))))
    x = vector("x")
    whole = ops.call(x, i, graph=body)
    one = Graph("f", (x, i), (ops.item(whole, index=0),))
    assert inline(one) is one
    both = Graph("f", (x, i), (ops.item(whole, index=0), ops.item(whole, index=1)))
    assert "call" not in [node.op.name for node in inline(both).nodes]


def test_a_call_with_effects_stays() -> None:
    p, x = vector("p"), vector("x")
    shown = ops.print_values(
        p, first_token(), texts=("", "\n"), stream="stdout", batch_axes=0
    )
    body = Graph("body", (p,), (p * 2,), shown)
    graph = Graph("f", (x,), (ops.item(ops.call(x, graph=body), index=0),))
    assert inline(graph) is graph


def test_bodies_that_double_at_every_level_do_not_explode() -> None:
    p = vector("p")
    body = Graph("level", (p,), (ops.sin(p),))
    for _ in range(30):
        once = ops.item(ops.call(p, graph=body), index=0)
        twice = ops.item(ops.call(once, graph=body), index=0)
        body = Graph("level", (p,), (twice,))
    x = vector("x")
    graph = Graph("f", (x,), (ops.item(ops.call(x, graph=body), index=0),))
    assert 1000 < len(inline(graph).nodes) <= 20_000


# Folding


def test_what_depends_on_constants_alone_becomes_one() -> None:
    x = vector("x")
    rate = ops.exp(literal(0.0, F32)) + ops.sqrt(literal(4.0, F32))
    pair = literal(np.float32([1, 2, 3])) * rate
    assert lines_of(fold(Graph("f", (x,), (x * pair, x / rate)))) == [
        "%0: f32[3] = literal [3.0, 6.0, 9.0]",
        "%1: f32[3] = mul x, %0",
        "%2: f32[3] = div x, f32(3.0)",
        "return %1, %2",
    ]


def test_a_size_that_is_known_becomes_a_number() -> None:
    x = vector("x")
    count = ops.cast(ops.dim_value(size=5), dtype=F32)
    assert lines_of(fold(Graph("f", (x,), (x / count,)))) == [
        "%0: f32[3] = div x, f32(5.0)",
        "return %0",
    ]


def row(count: int) -> Node:
    return literal(np.ones(count, F32)) * literal(2.0, F32)


@pytest.mark.parametrize(
    "make",
    [
        lambda: row(1025),
        lambda: ops.broadcast_to(literal(1.0, F32), shape=(3,)),
        lambda: ops.recomputed(literal(1.0, F32)),
        lambda: ops.iota(size=3),
        lambda: ops.gather(literal(np.ones(2, F32)), literal(5), axes=(0,)),
    ],
    ids=["large", "repeated", "recomputed", "iota", "fails"],
)
def test_some_constants_stay(make: Callable[[], Node]) -> None:
    graph = Graph("f", (), (make(),))
    assert fold(graph) is graph
    at_limit = fold(Graph("f", (), (row(1024),)))
    assert [node.op.name for node in at_limit.nodes] == ["literal"]


def test_a_constant_that_fails_fails_when_it_is_run() -> None:
    taken = ops.gather(literal(np.ones(2, F32)), literal(5), axes=(0,))
    graph = fold(Graph("f", (), (taken * 2, ops.exp(literal(0.0, F32)))))
    assert lines_of(graph)[-1] == "return %2, f32(1.0)"
    with pytest.raises(TapejitError, match="out of"):
        interpret(graph)


def test_draws_are_neither_folded_nor_merged() -> None:
    state = literal(np.zeros(6, np.uint32))
    draws = [ops.random_bits(state, shape=(2,), bits=32) for _ in range(2)]
    graph = Graph("f", (), draws)
    assert optimise(graph) is graph


# Merging


def test_equal_computations_are_merged() -> None:
    x = vector("x")
    one, two = ops.exp(x * 2), ops.exp(x * 2)
    assert lines_of(cse(Graph("f", (x,), (one + two, two)))) == [
        "%0: f32[3] = mul x, f32(2.0)",
        "%1: f32[3] = exp %0",
        "%2: f32[3] = add %1, %1",
        "return %2, %1",
    ]


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (lambda x: x * 0.0, lambda x: x * -0.0),
        (lambda x: x - 1, lambda x: 1 - x),
        (
            lambda x: ops.sum(x, axes=(0,), keepdims=False),
            lambda x: ops.sum(x, axes=(0,), keepdims=True),
        ),
        (lambda x: ops.recomputed(x), lambda x: ops.recomputed(x)),
        (lambda x: ops.exp(x), lambda x: ops.exp(ops.recomputed(x))),
    ],
    ids=["zeros", "operands", "attributes", "second runs", "first and second run"],
)
def test_different_computations_are_not(
    one: Callable[[Node], Node], two: Callable[[Node], Node]
) -> None:
    x = vector("x")
    first, second = cse(Graph("f", (x,), (one(x), two(x)))).outputs
    assert first is not second


def test_literals_are_merged_by_their_bits() -> None:
    nan = np.array([np.nan, 0.0])
    values = [nan, nan.copy(), np.array([np.nan, -0.0]), nan.astype("f4")]
    graph = cse(Graph("f", (), [literal(value) for value in values]))
    assert len(set(graph.outputs)) == 3
    assert graph.outputs[0] is graph.outputs[1]


def test_an_attribute_that_cannot_be_hashed_is_no_obstacle() -> None:
    x = vector("x")
    odd = [Node(ops.sin, (x,), {"note": []}, x.type) for _ in range(2)]
    graph = Graph("f", (x,), odd)
    assert cse(graph) is graph


# Effects


def guarded() -> Graph:
    x = vector("x")
    link = first_token()
    texts = ("", "\n")
    for _ in range(2):
        positive = ops.all(ops.greater(x * 1, 0), axes=(0,), keepdims=False)
        link = ops.guard(positive, link, expected=True)
        link = ops.print_values(
            ops.read(x), link, texts=texts, stream="stdout", batch_axes=0
        )
    always = ops.equal(literal(1), literal(1))
    link = ops.guard(always, link, expected=True)
    return Graph("f", (x,), (x / 1,), link)


def test_effects_stay_all_and_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    graph = guarded()
    fewer = check_graph(optimise(graph))
    assert lines_of(fewer) == [
        "%0: token = start",
        "%1: bool[3] = greater x, f32(0.0)",
        "%2: bool[] = all %1, axes=(0,), keepdims=False",
        "%3: token = guard %2, %0, expected=True",
        '%4: token = print_values x, %3, texts=("", "\\n"), stream="stdout", '
        "batch_axes=0",
        "%5: token = guard %2, %4, expected=True",
        '%6: token = print_values x, %5, texts=("", "\\n"), stream="stdout", '
        "batch_axes=0",
        "%7: token = guard bool(True), %6, expected=True",
        "return x",
        "effects %7",
    ]
    interpret(fewer, np.float32([1, 2, 3]))
    assert capsys.readouterr().out == "[1. 2. 3.]\n" * 2


# The pipeline


def test_every_pass_has_its_reason() -> None:
    for rewrite, reason in PIPELINE:
        assert rewrite.__doc__
        assert len(reason) > 20


def test_passes_take_turns_until_none_finds_anything() -> None:
    """The choice is none once the two sides are one; then the sum can be merged."""
    x = vector("x")
    chosen = ops.where(ops.isnan(x), ops.exp(x * 1), ops.exp(x))
    graph = Graph("f", (x,), (chosen + x, ops.exp(x) + x))
    assert lines_of(optimise(graph)) == [
        "%0: f32[3] = exp x",
        "%1: f32[3] = add %0, x",
        "return %1, %1",
    ]


def test_each_change_is_shown_to_who_looks_on() -> None:
    x = vector("x")
    graph = Graph("f", (x,), (ops.exp(x * 1) + ops.exp(x),))
    seen: list[tuple[str, Graph, Graph]] = []
    last = optimise(graph, observe=lambda *change: seen.append(change))
    assert [name for name, _, _ in seen] == ["simplify", "cse"]
    assert seen[0][1] is graph
    assert seen[0][2] is seen[1][1]
    assert seen[1][2] is last


def test_a_pass_that_breaks_a_graph_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lose(graph: Graph, sources: Sources | None = None) -> Graph:
        return Graph(graph.name, (), graph.outputs)

    monkeypatch.setattr(pipeline, "PIPELINE", ((lose, "a fault"),))
    x = vector("x")
    graph = Graph("f", (x,), (ops.exp(x),))
    with config.override(check=True), pytest.raises(GraphError, match="invariant 3"):
        optimise(graph)


def test_every_new_node_serves_one_of_the_graph() -> None:
    p, x = vector("p"), vector("x")
    body = Graph("body", (p,), (ops.sin(p * 1),))
    y = ops.item(ops.call(x, graph=body), index=0)
    z = ops.permute_dims(ops.permute_dims(y, axes=(0,)), axes=(0,)) / 1
    graph = Graph("f", (x,), (ops.exp(z) + ops.exp(y),))
    sources: Sources = {}
    fewer = optimise(graph, sources=sources)
    served = {node.op.name: sources.get(node, node) for node in fewer.nodes}
    assert {name: node.op.name for name, node in served.items()} == {
        "sin": "call",
        "exp": "exp",
        "add": "add",
    }
    assert set(served.values()) <= set(graph.nodes)


def test_the_lines_of_the_user_are_kept() -> None:
    text = """\
graph f(x: f32[3]) {
  %0: f32[3] = mul x, f32(1.0)
  %1: f32[3] = exp %0
  return %1
}"""
    graph = parse_graph(text)
    (exp,) = [node for node in graph.nodes if node.op is ops.exp]
    place: Any = object()
    exp.origin = place
    (made,) = optimise(graph).outputs
    assert made is not exp
    assert made.origin is place


# Size


def nodes_made(run: Callable[[], Any]) -> int:
    before = literal(0).serial
    run()
    return literal(0).serial - before


def long_graph(count: int) -> Graph:
    x = vector("x", "f32[2,3]")
    y = x
    for at in range(count // 10):
        y = ops.read(ops.negative(ops.negative(y))) * 1
        y = ops.permute_dims(ops.permute_dims(y, axes=(1, 0)), axes=(1, 0))
        y = ops.sin(y) * ops.sin(y) + ops.exp(literal(float(at % 7), F32))
    return Graph("long", (x,), (y,))


def test_the_work_grows_with_the_graph_and_no_faster() -> None:
    small = nodes_made(lambda: optimise(long_graph(5_000)))
    large = nodes_made(lambda: optimise(long_graph(10_000)))
    assert large < 2.1 * small


def test_a_long_graph_is_no_deep_recursion() -> None:
    graph = long_graph(10_000)
    steps = [node for node in optimise(graph).nodes if node.inputs]
    assert len(steps) == 3 * 1_000
