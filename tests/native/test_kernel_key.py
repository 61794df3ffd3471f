"""Kernels with the same key have the same text: modules are as without keys."""

from __future__ import annotations

import itertools
from dataclasses import fields
from typing import Any
from unittest import mock

import numpy as np
import pytest
from graph_properties import float_nodes
from random_graphs import Style, case_of, random_graph

import tapejit as tj
from tapejit import ops
from tapejit.base.types import TensorType
from tapejit.ir import Graph, param
from tapejit.loops import steps
from tapejit.loops.kernels import Kernel, Storage
from tapejit.loops.schedule.schedule import Loop
from tapejit.loops.steps import Buffer, Step
from tapejit.runtime import compiled
from tapejit.runtime.executable import Executable
from tapejit.targets.cpu import kernel_key, module
from tapejit.targets.cpu.nest.addressing import PointerTable
from tapejit.transforms import vjp_graph

DTYPES = tuple(np.dtype(name) for name in ("f4", "f8", "f2", "i4"))
SQUARE = TensorType.parse("f32[64,64]")
STYLE = Style(dtypes=DTYPES, sizes=(1, 3, 16, 33), most_elements=2000)


def text_of(graph: Graph) -> str:
    """A module, with the size of its arena, as a new process makes it."""
    with mock.patch.object(steps, "_numbers", itertools.count()):
        built = module.build(graph, "keyed")
    return f"{built.arena_size} {built.imports}\n{built.module}"


def assert_keys_change_nothing(graph: Graph) -> None:
    with mock.patch.object(kernel_key, "key_of", return_value=None):
        plain = text_of(graph)
    assert text_of(graph) == plain


def traced(run: Any, *arguments: Any) -> Graph:
    """What a call of a function compiles."""
    found = compiled.whole_graph(Executable(run.graph(*arguments)).graph)
    assert found is not None
    return found


def emitted_kernels(graph: Graph) -> tuple[int, int]:
    """How many kernels of a Graph are emitted, and how many there are."""
    plain = module.KernelFunctions.new
    watched = mock.patch.object(
        module.KernelFunctions, "new", autospec=True, side_effect=plain
    )
    with watched as new:
        built = module.build(graph, "keyed")
    return new.call_count, len(built.plan.kernels)


@pytest.mark.parametrize("seed", range(40))
def test_keys_change_nothing_in_random_graphs(seed: int) -> None:
    seeds = np.random.default_rng(seed).integers(1, 2**63, STYLE.steps + 1)
    case = case_of(random_graph(seeds.tolist(), STYLE), seed)
    graph = vjp_graph(case.graph, wrt=float_nodes(case.graph.inputs))
    after = Executable(graph).graph
    for part in compiled.native_form(after, "keyed").segments.values():
        assert_keys_change_nothing(part)


def attention_step(layers: int, length: int) -> Graph:
    """A step of training of layers of attention; rows are tiled if they are long."""
    width, rng = 32, np.random.default_rng(0)
    blocks = [
        (tj.nn.LayerNorm(), tj.nn.MultiHeadAttention(2, 16), tj.nn.Dense(width, "gelu"))
        for _ in range(layers)
    ]
    optimizer = tj.optimizers.Adam(1e-3)

    def loss_of(x: Any) -> Any:
        for norm, attention, dense in blocks:
            y = norm(x)
            x = x + dense(attention(y, y, use_causal_mask=True))
        return tj.mean(x * x)

    @tj.function
    def step(x: Any) -> Any:
        with tj.GradientTape() as tape:
            loss = loss_of(x)
        variables = tape.watched_variables()
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    x = tj.asarray(rng.normal(size=(2, length, width)).astype("f4"))
    loss_of(x)
    return traced(step, x)


@pytest.mark.parametrize("length", [16, 300])
def test_keys_change_nothing_in_layers(length: int) -> None:
    assert_keys_change_nothing(attention_step(3, length))


def test_more_layers_are_not_more_to_emit() -> None:
    few, _ = emitted_kernels(attention_step(3, 16))
    many, count = emitted_kernels(attention_step(6, 16))
    assert many == few
    assert many < count / 3


def test_the_steps_of_a_recurrence_are_emitted_once() -> None:
    @tj.function
    def last(x: Any, w: Any) -> Any:
        for _ in range(10):
            x = tj.tanh(x @ w)
        return x

    graph = traced(last, tj.ones((64, 64)), tj.ones((64, 64)))
    assert_keys_change_nothing(graph)
    emitted, count = emitted_kernels(graph)
    assert (emitted, count) == (3, 10)  # the first, the last, and all others


def test_memory_that_two_operands_share_is_another_structure() -> None:
    x, y = (param(name, SQUARE) for name in "xy")
    graph = Graph("products", (x, y), (x @ x, x @ y))
    assert_keys_change_nothing(graph)
    assert emitted_kernels(graph) == (2, 2)


def test_zero_and_minus_zero_are_other_numbers() -> None:
    x, y = (param(name, SQUARE) for name in "xy")
    graph = Graph(
        "zeros", (x, y), (ops.maximum(x @ y, 0.0) @ x, ops.maximum(y @ x, -0.0) @ y)
    )
    assert_keys_change_nothing(graph)


def test_the_key_reads_every_field() -> None:
    """A new field of these has to be considered in `kernel_key`."""
    assert set(Step.__slots__) == {
        *("axes", "dims", "dtype", "inputs", "node", "number", "output", "reduced"),
        *("what", "whole"),  # all fields of a kind are read
        *("index", "is_flat", "is_leaf", "op", "order", "ranges", "source", "tiles"),
        "views",  # they follow from the kind
        *("_closed", "_labels"),  # they follow from the axes
    }
    assert set(Storage.__slots__) == {
        *("buffer", "dtype", "is_placed", "kernel", "lanes", "offset", "size"),
        *("strides", "tiled"),
    }
    assert set(Buffer.__slots__) == {"dtype", "kind", "number", "shape", "value"}
    assert {field.name for field in fields(Kernel)} == {
        *("number", "stage", "items", "vector", "width", "tasks", "inner_tasks"),
        *("parts", "calls_formulas", "partials", "slots", "choices", "rooms"),
    }
    assert {field.name for field in fields(Loop)} == {
        *("axis", "body", "tile", "lanes", "copies"),
        "inside",  # it follows from the body
    }


def test_a_kernel_with_something_unknown_has_no_key() -> None:
    x = param("x", SQUARE)
    built = module.build(Graph("f", (x,), (x + x,)), "f")
    (kernel,) = built.plan.kernels
    layout = PointerTable(1, 1, [])
    assert kernel_key.key_of(built.plan, kernel, layout) is not None
    next(kernel.steps()).change(attrs={"function": lambda: 0})
    assert kernel_key.key_of(built.plan, kernel, layout) is None
