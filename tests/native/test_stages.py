"""Kernels that run at the same time: which ones do, and that nobody can tell."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from fuzz.writer import TRACED, program_of

import tapejit as tj
from tapejit.ir import Graph
from tapejit.loops.fuse import inplace
from tapejit.loops.kernels import Kernel, Storage
from tapejit.loops.schedule.schedule import sources_of
from tapejit.rewrite.pipeline import optimise
from tapejit.runtime.compiled import native_form, whole_graph
from tapejit.targets.cpu.module import Built, build

Array = np.ndarray[Any, Any]


pytestmark = pytest.mark.usefixtures("with_native_code")


def built(graph: Graph) -> Built:
    whole = whole_graph(graph)
    assert whole is not None
    return build(whole, "looked_at")


def stages_of(found: Built) -> list[list[Kernel]]:
    """The kernels of each stage; their numbers go up one by one."""
    stages: list[list[Kernel]] = []
    for kernel in found.plan.kernels:
        assert kernel.stage in (len(stages) - 1, len(stages))
        if kernel.stage == len(stages):
            stages.append([])
        stages[-1].append(kernel)
    return stages


def products_in(stage: list[Kernel]) -> int:
    return sum(kernel.array_op is not None for kernel in stage)


def normal(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype("f4")


def test_products_of_one_matrix_are_done_together() -> None:
    def projected(x: Any, q: Any, k: Any, v: Any) -> Any:
        return tj.tanh(x @ q), x @ k, tj.exp(x @ v)

    arrays = [normal(200, 64), normal(64, 60), normal(64, 62), normal(64, 64)]
    (stage,) = stages_of(built(tj.function(projected).graph(*arrays)))
    assert products_in(stage) == 3


def test_gradients_of_a_layer_are_done_together() -> None:
    """Of its weights, its bias and its input; the next layer's come before."""

    def loss(x: Any, weights: Any, bias: Any, more: Any) -> Any:
        return tj.sum(tj.tanh(tj.tanh(x @ weights + bias) @ more))

    gradients = tj.function(tj.grad(loss, argnums=(1, 2, 3)))
    arrays = [normal(200, 100), normal(100, 90), normal(90), normal(90, 80)]
    stages = stages_of(built(gradients.graph(*arrays)))
    assert [products_in(stage) for stage in stages] == [1, 1, 2, 1]
    assert len(stages[-1]) == 2, "and the sum for the bias"


def test_what_reads_a_variable_is_over_before_it_is_written_over() -> None:
    w = tj.Variable(normal(80, 80))

    @tj.function
    def step(x: Any) -> Any:
        y = tj.tanh(x @ w)
        w.assign(w - 0.1 * (x.T @ x))
        return y

    found = built(step.graph(normal(80, 80)))
    assert found.plan.updates
    assert [len(stage) for stage in stages_of(found)] == [1, 1]


def test_what_can_fail_is_over_before_anything_is_written_over() -> None:
    v = tj.Variable(np.zeros(4000))

    @tj.function
    def step(x: Any, at: Any) -> Any:
        v.assign_add(x)
        return tj.sqrt(x[at])

    found = built(step.graph(np.ones(4000), np.arange(4000)))
    first, second = stages_of(found)
    assert any(map(inplace.can_fail, first))
    assert not any(map(inplace.can_fail, second))
    assert any(x.output in found.plan.updates for k in second for x in k.steps())


@pytest.mark.parametrize("seed", range(40))
def test_kernels_of_a_stage_need_nothing_of_each_other(seed: int) -> None:
    """Nor do they share memory: who has some in a stage has it to its end."""
    graph = optimise(program_of(seed, TRACED).graph())
    whole = whole_graph(graph)
    if whole is None:
        segments = native_form(graph, "parts").segments.values()
        if not segments:
            pytest.skip("no part of the program is native")
        whole = max(segments, key=lambda x: len(x.nodes))
    plan = build(whole, "random").plan
    ends: dict[Storage, tuple[int, int]] = {}
    for kernel in plan.kernels:
        for step in kernel.steps():
            memory = plan.storage.get(step)
            uses = [plan.kernels[plan.kernel_of[x]] for x in sources_of(step)]
            assert all(x is kernel or x.stage < kernel.stage for x in uses)
            stored = [plan.storage[x] for x in sources_of(step) if x in plan.storage]
            for used in (*stored, *([] if memory is None else [memory])):
                if used.kernel is None and used.buffer is None:
                    first, _ = ends.get(used, (kernel.stage, 0))
                    ends[used] = first, kernel.stage
    for one, other in combinations(ends, 2):
        (a, b), (c, d) = ends[one], ends[other]
        if a <= d and c <= b:
            low, high = sorted((one, other), key=lambda x: x.offset)
            assert low.offset + low.nbytes <= high.offset


def test_stages_have_the_same_bits_on_any_number_of_threads() -> None:
    """Tasks of many kernels, in any order: sums that are shared would show."""

    def loss(x: Any, *weights: Any) -> Any:
        parts = [tj.mean(tj.tanh(x @ w)) for w in weights]
        return tj.sum(tj.stack(parts) ** 2)

    gradients = tj.function(tj.value_and_grad(loss, argnums=(0, 1, 2, 3)))
    x, *weights = normal(300, 120), *(normal(120, 90 + n) for n in range(3))
    assert max(map(len, stages_of(built(gradients.graph(x, *weights))))) > 2
    found = set()
    for count in (1, 2, 2, 2, 2):
        with tj.set_num_threads(count):
            value, parts = gradients(x, *weights)
        found.add(b"".join(y.numpy().tobytes() for y in (value, *parts)))
    assert len(found) == 1
