"""Plans are well formed, and each kind of fault is found in those that are not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import FrozenInstanceError, fields, replace
from typing import Any

import numpy as np
import pytest
from fuzz.faults import with_fault
from fuzz.writer import PRODUCTS, TRACED, program_of
from limits import set_limits
from op_cases import CASES

import tapejit as tj
from tapejit.base.errors import GraphError
from tapejit.ir import Graph
from tapejit.loops.check import Checker, check_plan
from tapejit.loops.index import Affine, Axis
from tapejit.loops.kernels import Kernel, LoopPlan, Storage, located
from tapejit.loops.nests import Item
from tapejit.loops.schedule.schedule import Loop, loops_in
from tapejit.loops.steps import Copy, Load, Step
from tapejit.rewrite.pipeline import optimise
from tapejit.runtime.compiled import native_form, whole_graph
from tapejit.targets.cpu.schedule.pipeline import schedule_nests
from tapejit.targets.cpu.target import CPU

from .golden_programs import PROGRAMS
from .test_nests import PROGRAMS as NESTS


def planned(graph: Graph, checks: bool = False) -> LoopPlan:
    return schedule_nests(CPU.nests(graph, checks))


def native_parts(graph: Graph) -> Iterator[Graph]:
    """What of a Graph is compiled."""
    graph = optimise(graph)
    whole = whole_graph(graph)
    if whole is not None:
        yield whole
    else:
        yield from native_form(graph, "parts").segments.values()


def plan_of(body: Callable[..., Any], *shapes: tuple[int, ...]) -> LoopPlan:
    arrays = [np.ones(shape, "f4") for shape in shapes]
    return planned(optimise(tj.function(body).graph(*arrays)))


def found_in(plan: LoopPlan) -> set[int]:
    """The numbers of the invariants that a LoopPlan breaks."""
    return {fault.invariant for fault in Checker(plan).faults()}


# LoopPlans that passes make


def test_plans_of_golden_programs_are_well_formed() -> None:
    for make in PROGRAMS.values():
        function, *arguments = make()
        for graph in native_parts(function.graph(*arguments)):
            check_plan(planned(graph), graph.name)


def test_plans_of_ops_are_well_formed(full: bool) -> None:
    for cases in CASES.values():
        for row in [row for case in cases for row in case.rows[: None if full else 1]]:
            for graph in native_parts(row.graph(row.dtypes[0])):
                check_plan(planned(graph), str(row))


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small arrays get tasks, tiles, blocks and a place in what a task has."""
    set_limits(monkeypatch, threads_least_instructions=1, task_least_instructions=1)
    set_limits(monkeypatch, l1_accumulator_bytes=256, single_work_share=0)
    set_limits(monkeypatch, row_tile_least_elements=1, row_tile_most_rows=32)
    set_limits(monkeypatch, row_tile_recomputed_bytes=1 << 12)
    set_limits(monkeypatch, column_tile_least_rows=1, column_tile_most_rows=16)
    set_limits(monkeypatch, column_tile_least_columns=1, column_tile_most_columns=32)
    set_limits(monkeypatch, stack_array_bytes=1 << 9)


LARGER = replace(
    TRACED,
    sizes=lambda choice: choice.sample((2, 3, 5, 16, 33, 64, 127, 200, 300, 513), 3),
)


@pytest.mark.usefixtures("small_limits", "every_product_is_a_kernel")
def test_plans_of_random_programs_are_well_formed(full: bool) -> None:
    counts = {"tasks": 0, "tiles": 0, "updates": 0}
    for seed in range(2000 if full else 40):
        style = LARGER if seed % 2 else replace(PRODUCTS, sizes=LARGER.sizes)
        for graph in native_parts(program_of(seed, style).graph()):
            plan = planned(graph)
            check_plan(plan, f"program {seed}")
            counts["tasks"] += sum(x.tasks > 1 for x in plan.kernels)
            loops = [loop for x in plan.kernels for loop in loops_in(x.items)]
            counts["tiles"] += sum(bool(loop.tile) for loop in loops)
            counts["updates"] += len(plan.updates)
    assert min(counts.values()) > 5, counts


# LoopPlans with a fault


def nest(name: str) -> Graph:
    program, arrays = NESTS[name]
    return optimise(tj.function(program).graph(*map(tj.asarray, arrays)))


def test_a_block_that_reads_what_it_computes_later_is_found() -> None:
    """The fault of `keep_apart`: gradients were wrong, at any number of threads."""
    graph = nest("blocks-127-208-f4")
    assert found_in(planned(graph)) == set()
    with with_fault("keep_apart"):
        assert 1 in found_in(planned(graph))


def test_the_error_names_kernel_step_and_line(with_native_code: None) -> None:
    program, arrays = NESTS["blocks-127-208-f4"]
    with (
        with_fault("keep_apart"),
        tj.config.override(check=True, cache=False),
        pytest.raises(GraphError) as caught,
    ):
        tj.function(program)(*map(tj.asarray, arrays))
    text = str(caught.value)
    assert "of blocks breaks invariant 1: copy (Step" in text
    assert "which is not written before" in text
    assert "test_nests.py" in text
    assert "in blocks:  loss = tj.sum" in text


# Programs whose LoopPlans have what a fault needs, and the faults


def softmax(x: Any) -> Any:
    """A row is kept for the next pass over it."""
    weights = tj.exp(x - tj.max(x, axis=1, keepdims=True))
    return weights / tj.sum(weights, axis=1, keepdims=True)


def attention(q: Any, k: Any, v: Any) -> Any:
    """Tiles of rows, with products in them."""
    return tj.nn.softmax(q @ tj.matrix_transpose(k)) @ v


def scans(x: Any) -> Any:
    """Whole arrays from one kernel to the next."""
    y = tj.cumulative_sum(x, axis=0)
    return tj.cumulative_sum(tj.cumulative_sum(tj.tanh(y), axis=1) * y, axis=1)


def total(x: Any) -> Any:
    """A sum by several tasks."""
    return tj.sum(tj.tanh(x))


def forms(x: Any, factors: Any) -> Any:
    """Rows of small products go on together."""
    return tj.exp(tj.einsum("ijk,ijkl->ijl", x, factors) / 9)


def both_products(x: Any, w: Any, v: Any) -> Any:
    """Panels of a large product are packed beforehand, for all of its tasks."""
    return tj.cumulative_sum(tj.cumulative_sum(x, axis=1) @ w, axis=0) @ v


def update(w: Any, x: Any) -> Any:
    """The new value of `w` may be written over the old one."""
    return w - 0.1 * tj.tanh(w) * x


SHAPES: dict[Callable[..., Any], tuple[tuple[int, ...], ...]] = {
    softmax: ((8, 256),),
    attention: 3 * ((2, 300, 260),),
    scans: ((30, 40),),
    total: ((3000, 300),),
    forms: ((3, 50, 16), (3, 50, 16, 24)),
    both_products: ((1024, 1024), (1024, 1024), (1024, 1024)),
    update: ((40, 30), (40, 30)),
}


def loads_in(plan: LoopPlan) -> set[Step]:
    return {x for step in plan.paths for x in step.inputs if isinstance(x.what, Load)}


def with_loops(plan: LoopPlan, change: Callable[[Loop], Loop]) -> LoopPlan:
    """The plan with other loops, the inner ones changed first."""

    def changed(item: Item) -> Item:
        if not isinstance(item, Loop):
            return item
        return change(replace(item, body=tuple(map(changed, item.body))))

    kernels = [replace(x, items=tuple(map(changed, x.items))) for x in plan.kernels]
    return located(replace(plan, kernels=tuple(kernels)))


def with_kernels(plan: LoopPlan, change: Callable[[Kernel], Kernel]) -> LoopPlan:
    """The plan with other kernels."""
    return replace(plan, kernels=tuple(map(change, plan.kernels)))


def with_memory(plan: LoopPlan, change: Callable[[Storage], Storage]) -> LoopPlan:
    """The plan with other memory."""
    changed = {memory: change(memory) for memory in plan.storage.values()}
    return replace(plan, storage={x: changed[y] for x, y in plan.storage.items()})


def passes_in_another_order(plan: LoopPlan) -> LoopPlan:
    """In the loop with the most items, those that come later use the earlier ones."""
    loops = [loop for kernel in plan.kernels for loop in loops_in(kernel.items)]
    most = max(len(x.body) for x in loops)

    def turned(loop: Loop) -> Loop:
        return replace(loop, body=loop.body[::-1]) if len(loop.body) == most else loop

    return with_loops(plan, turned)


def one_place_for_a_row(plan: LoopPlan) -> LoopPlan:
    return with_memory(
        plan, lambda x: x if x.kernel is None else replace(x, strides={})
    )


def kernels_at_the_same_time(plan: LoopPlan) -> LoopPlan:
    return with_kernels(plan, lambda x: replace(x, stage=0))


def a_sum_that_tasks_have_in_parts(plan: LoopPlan) -> LoopPlan:
    """Somebody reads it before the parts are combined."""
    (step,) = plan.kernels[0].partials
    outer = plan.kernels[0].loop
    assert outer is not None
    user = Step(Copy(), step.dtype, inputs=[step], dims=())

    def used(loop: Loop) -> Loop:
        is_outer = loop.axis is outer.axis
        return replace(loop, body=(*loop.body, user)) if is_outer else loop

    return with_loops(plan, used)


def a_kernel_less(plan: LoopPlan) -> LoopPlan:
    return replace(plan, kernels=plan.kernels[:-1])


def part_of_a_result(plan: LoopPlan) -> LoopPlan:
    def cut(memory: Storage) -> Storage:
        if memory.buffer is None:
            return memory
        return replace(memory, strides=dict([*memory.strides.items()][:-1]))

    return with_memory(plan, cut)


def an_element_further_on(plan: LoopPlan) -> LoopPlan:
    for x in loads_in(plan):
        *front, last = x.index
        x.change(index=(*front, last + 1))
    return plan


def a_position_without_a_loop(plan: LoopPlan) -> LoopPlan:
    for x in loads_in(plan):
        *front, _ = x.index
        x.change(index=(*front, Affine.of(Axis(2))))
    return plan


def an_operand_beyond_its_array(plan: LoopPlan) -> LoopPlan:
    for step in plan.paths:
        views = tuple(x._replace(offset=x.offset + 1) for x in step.views)
        if views:
            step.change(views=views)
    return plan


def less_memory(plan: LoopPlan) -> LoopPlan:
    return with_memory(plan, lambda x: replace(x, size=x.size - 1))


def one_place_in_the_arena(plan: LoopPlan) -> LoopPlan:
    return with_memory(plan, lambda x: replace(x, offset=64 if x.kernel is None else 0))


def rooms_where_values_are(plan: LoopPlan) -> LoopPlan:
    """Memory that kernels have for themselves is where values are that they read."""

    def moved(kernel: Kernel) -> Kernel:
        rooms = {key: replace(x, offset=64) for key, x in kernel.rooms.items()}
        return replace(kernel, rooms=rooms)

    assert any(x.rooms for x in plan.kernels)
    return with_kernels(plan, moved)


def the_end_of_the_arena(plan: LoopPlan) -> LoopPlan:
    return replace(plan, arena_size=plan.arena_size - 64)


def sums_without_parts(plan: LoopPlan) -> LoopPlan:
    return with_kernels(plan, lambda x: replace(x, partials={}))


def too_few_parts(plan: LoopPlan) -> LoopPlan:
    def cut(kernel: Kernel) -> Kernel:
        parts = kernel.partials.items()
        less = {step: replace(x, size=x.size - 1) for step, x in parts}
        return replace(kernel, partials=less)

    return with_kernels(plan, cut)


def one_place_for_iterations_that_go_together(plan: LoopPlan) -> LoopPlan:
    outer = plan.kernels[0].loop
    assert outer is not None
    return with_loops(
        plan, lambda x: replace(x, copies=2) if x.axis is outer.axis else x
    )


def elements_that_are_replaced_before(plan: LoopPlan) -> LoopPlan:
    assert plan.updates
    for x in loads_in(plan):
        row, column = x.index
        x.change(index=(row * -1 + 39, column))
    return plan


FAULTS = [
    (softmax, passes_in_another_order, 1),
    (softmax, one_place_for_a_row, 1),
    (attention, passes_in_another_order, 1),
    (scans, kernels_at_the_same_time, 1),
    (total, a_sum_that_tasks_have_in_parts, 1),
    (scans, a_kernel_less, 1),
    (softmax, part_of_a_result, 1),
    (softmax, an_element_further_on, 2),
    (softmax, a_position_without_a_loop, 2),
    (scans, an_operand_beyond_its_array, 2),
    (softmax, less_memory, 2),
    (attention, less_memory, 2),
    (scans, the_end_of_the_arena, 2),
    (scans, one_place_in_the_arena, 3),
    (attention, one_place_in_the_arena, 3),
    (both_products, rooms_where_values_are, 3),
    (total, sums_without_parts, 4),
    (softmax, one_place_for_iterations_that_go_together, 4),
    (total, too_few_parts, 5),
    (update, elements_that_are_replaced_before, 6),
]


@pytest.mark.parametrize("program", SHAPES)
def test_no_fault_is_found_where_there_is_none(program: Callable[..., Any]) -> None:
    assert found_in(plan_of(program, *SHAPES[program])) == set()


@pytest.mark.parametrize(("program", "fault", "invariant"), FAULTS)
def test_every_kind_of_fault_is_found(
    program: Callable[..., Any], fault: Callable[[LoopPlan], LoopPlan], invariant: int
) -> None:
    plan = plan_of(program, *SHAPES[program])
    assert invariant in found_in(fault(plan))


def test_a_plan_is_not_changed_once_it_is_made() -> None:
    """Whoever makes code of it can only read it."""
    plan = plan_of(attention, *SHAPES[attention])
    (kernel, *_), (memory, *_) = plan.kernels, plan.storage.values()
    (loop, *_) = loops_in(kernel.items)
    for record in (plan, kernel, memory, loop, plan.nests, plan.nests.nests[0]):
        for field in fields(record):
            with pytest.raises(FrozenInstanceError):
                setattr(record, field.name, None)
    assert isinstance(plan.kernels, tuple)
    assert isinstance(kernel.items, tuple)
    assert isinstance(loop.body, tuple)
