"""Kernels of loops: short rows by single threads, and transposes through shared tiles.

Results agree with the CPU's native code, in every order of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from agreement import COMPOSED, assert_agrees
from native.compiled import run_native

import tapejit as tj
from devices.graphs import Array, emulated, run_code
from devices.rungs import assembled, survivors
from devices.test_ptx import needs_wheels
from tapejit.ir import Graph
from tapejit.rewrite.pipeline import optimise
from tapejit.runtime.cuda.device_code import DeviceCode, device_code
from tapejit.runtime.cuda.executor import ORDERS
from tapejit.targets.cuda.module import BuiltKernels
from tapejit.targets.cuda.target import CUDA

RNG = np.random.default_rng(7)


def floats(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def traced(function: Callable[..., Any], arrays: Sequence[Array]) -> Graph:
    graph: Graph = tj.function(function).graph(*map(tj.asarray, arrays))
    return optimise(graph)


def built(graph: Graph) -> BuiltKernels:
    return CUDA.emit(graph, CUDA.plan(graph), "k")


def assert_agrees_with_cpu(graph: Graph, arrays: Sequence[Array]) -> DeviceCode:
    """In every order of threads, and with the same bits in all of them."""
    code = device_code(graph, emulated())
    wanted = run_native(graph, arrays)
    first: list[Array] = []
    for order in ORDERS:
        got = run_code(code, arrays, order)
        for at, x in enumerate(got):
            assert_agrees(COMPOSED, x, wanted[at], where=f"{order}, result {at}")
        first = first or got
        for x, y in zip(got, first, strict=True):
            np.testing.assert_array_equal(x, y)
    return code


def assert_no_spills(made: BuiltKernels, *processors: str) -> None:
    for processor in processors or ("sm_80", "sm_90", "sm_100"):
        found = assembled(made.text, processor)
        assert not found.faults
        assert {x.spilled_bytes for x in found.usage.values()} == {0}, processor


# Short rows


def softmax(x: Any) -> Any:
    return tj.nn.softmax(2 * x)


@pytest.mark.parametrize("length", [2, 5, 16])
def test_each_thread_has_a_short_row(length: int) -> None:
    arrays = [floats(3, 7, 2, length)]
    code = assert_agrees_with_cpu(traced(softmax, arrays), arrays)
    (launch,) = code.emitted.built.launches
    assert launch.blocks * launch.threads >= 3 * 7 * 2
    assert launch.shared_bytes == 0


def test_many_short_rows_fill_the_gpu() -> None:
    graph = traced(softmax, [floats(2, 4000, 3)])
    (launch,) = built(graph).launches
    assert launch.blocks * launch.threads >= 2 * 4000
    assert launch.blocks >= CUDA.tuning.multiprocessors


def test_threads_go_along_the_longest_axis_that_is_summed_up() -> None:
    arrays = [floats(4, 200, 3)]
    graph = traced(lambda x: tj.sum(tj.exp(x), axis=1), arrays)
    code = assert_agrees_with_cpu(graph, arrays)
    (kernel,) = code.emitted.built.plan.kernels
    assert kernel.vector is not None
    assert kernel.vector.extent == 200


def attended(q: Any, k: Any, v: Any) -> Any:
    with tj.GradientTape() as tape:
        for x in (q, k, v):
            tape.watch(x)
        out = tj.nn.scaled_dot_product_attention(q, k, v, is_causal=True)
        loss = tj.sum(out * out)
    return tape.gradient(loss, [q, k, v])


def test_a_warp_shares_an_attention_on_few_positions() -> None:
    arrays = [floats(2, 3, 9, 8) for _ in range(3)]
    code = assert_agrees_with_cpu(traced(attended, arrays), arrays)
    (kernel,) = code.emitted.built.plan.kernels
    assert kernel.vector is not None
    assert kernel.vector.extent == 9
    assert kernel.tasks >= 2 * 3


def test_sums_over_short_rows_are_nests_of_their_own() -> None:
    """Threads keep no gradients of all weights."""
    arrays = [floats(5, 60, 6), floats(6, 14)]
    graph = traced(weighed, arrays)
    code = assert_agrees_with_cpu(graph, arrays)
    assert not any(x.rooms for x in code.emitted.built.plan.kernels)


def weighed(x: Any, w: Any) -> Any:
    with tj.GradientTape() as tape:
        tape.watch(w)
        loss = tj.sum(tj.tanh(x @ w))
    return tape.gradient(loss, w)


@needs_wheels
def test_short_rows_assemble_without_spills() -> None:
    assert_no_spills(built(traced(softmax, [floats(20, 30, 16)])))
    arrays = [floats(2, 3, 9, 8) for _ in range(3)]
    assert_no_spills(built(traced(attended, arrays)), "sm_90")


# Sums beside products


def attending(q: Any, k: Any, v: Any) -> Any:
    return tj.nn.scaled_dot_product_attention(q, k, v, is_causal=True)


def test_sums_of_an_attention_are_made_with_its_weights() -> None:
    """The division is the last product's epilogue: nobody reads the weights twice."""
    arrays = [floats(2, 3, 40, 20) for _ in range(3)]
    code = assert_agrees_with_cpu(traced(attending, arrays), arrays)
    made = code.emitted.built
    roles = [kernel.role for kernel in made.plan.kernels]
    assert roles == ["map", "matmul", "reduce", "matmul"]
    assert len(made.launches) == len(roles)
    assert len(made.plan.kernels[-1].items) == 2
    *_, last = [x.name for x in made.plan.kernels[-1].steps()]
    assert last == "div"


def test_sums_join_in_gradients_too() -> None:
    arrays = [floats(2, 2, 36, 20) for _ in range(3)]
    assert_agrees_with_cpu(traced(attended, arrays), arrays)


@needs_wheels
def test_an_attention_assembles_without_spills() -> None:
    assert_no_spills(built(traced(attending, [floats(2, 4, 256, 64)] * 3)))


# Transposes


def added(x: Any, y: Any) -> Any:
    return tj.matrix_transpose(x) + y


TRANSPOSED: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "sum": (added, ((70, 45), (45, 70))),
    "alone": (lambda x: tj.tanh(x.T), ((33, 64),)),
    "stack": (added, ((3, 40, 35), (3, 35, 40))),
    "axes": (lambda x: tj.permute_dims(x, (2, 0, 1)) * 2.0, ((3, 33, 34),)),
    "twice": (lambda x, y, z: x.T * y.T + z, ((40, 36), (40, 36), (36, 40))),
    "slice": (lambda x, y: x[3:, ::-1].T - y, ((40, 41), (41, 37))),
}


@pytest.mark.parametrize("name", TRANSPOSED)
def test_a_transpose_goes_through_a_shared_tile(name: str) -> None:
    function, shapes = TRANSPOSED[name]
    arrays = [floats(*shape) for shape in shapes]
    code = assert_agrees_with_cpu(traced(function, arrays), arrays)
    launches = code.emitted.built.launches
    tile = CUDA.tuning.transposed_tile
    assert launches[0].shared_bytes >= 4 * tile * (tile + 1)


@pytest.mark.parametrize("blocks", [1, 1024])
def test_barriers_of_transposes_are_needed(
    monkeypatch: pytest.MonkeyPatch, blocks: int
) -> None:
    few = replace(CUDA.numerics, most_blocks=blocks)
    monkeypatch.setattr(CUDA, "numerics", few)
    arrays = [floats(40, 36), floats(36, 40)]
    code = DeviceCode(traced(added, arrays), emulated())
    count, found = survivors(code, arrays)
    assert (count, found) == ({1: 2, 1024: 1}[blocks], [])


def test_short_axes_are_not_transposed_in_tiles() -> None:
    graph = traced(added, [floats(200, 6), floats(6, 200)])
    assert {x.shared_bytes for x in built(graph).launches} == {0}


@needs_wheels
def test_transposes_assemble_without_spills() -> None:
    for function, shapes in TRANSPOSED.values():
        made = built(traced(function, [floats(*shape) for shape in shapes]))
        assert_no_spills(made, "sm_80")
