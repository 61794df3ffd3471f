"""The ladder: a sample of its programs on every rung, all of them with `--full`.

`python -m tests.devices.ladder` runs all of it outside of tests, and counts.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from devices.graphs import Array, emulated, graph_of
from devices.ladder import LadderCase, assemble_case, cases_of, order_case, run_case
from devices.rungs import BARRIER, mutants, survivors
from tapejit import ops
from tapejit.base.errors import UnsupportedError
from tapejit.ir import Node
from tapejit.runtime.cuda.device_code import DeviceCode, device_code
from tapejit.runtime.cuda.devices import Device
from tapejit.targets.cuda.ptx import linker
from tapejit.targets.cuda.target import CUDA

RNG = np.random.default_rng(7)
PARTS = 8  # tests that share what is run
SAMPLE = {"op/*": 90, "golden/*": 2, "random/*": 25}  # one of so many


@pytest.fixture(scope="module")
def device() -> Device:
    return emulated()


@pytest.fixture(scope="module")
def cases(full: bool) -> list[LadderCase]:
    """The programs: all, or a sample of each kind."""
    found = []
    for pattern, every in SAMPLE.items():
        of_kind = list(cases_of([pattern]))
        found += of_kind if full else of_kind[::every]
    return found


@pytest.mark.parametrize("part", range(PARTS))
def test_a_device_gives_the_bits_of_this_cpu(
    cases: list[LadderCase], device: Device, part: int
) -> None:
    """Of sums, what agrees with them."""
    refused = 0
    mine = cases[part::PARTS]
    for case in mine:
        try:
            run_case(case, device)
        except UnsupportedError:
            refused += 1
    assert refused < len(mine) / 2


def test_results_are_the_same_in_all_orders_of_threads(
    cases: list[LadderCase], device: Device, full: bool
) -> None:
    for case in cases if full else cases[::9]:
        try:
            order_case(case, device)
        except UnsupportedError:
            continue


def test_kernels_assemble_within_their_budget(
    cases: list[LadderCase], device: Device, full: bool
) -> None:
    try:
        linker()
    except UnsupportedError as error:
        pytest.skip(f"tapejit[cuda-test]: {error.message}")
    count = 0
    for case in cases if full else cases[::4]:
        try:
            count += assemble_case(case, device)["sm_80"]
        except UnsupportedError:
            continue
    assert count > 20


# Barriers


def softmax(x: Node) -> Node:
    e = ops.exp(x - ops.max(x, axes=(1,), keepdims=True))
    return e / ops.sum(e, axes=(1,), keepdims=True)


def total(x: Node) -> Node:
    return ops.sum(x * x, axes=(0, 1), keepdims=False)


def of_columns(x: Node) -> Node:
    return ops.sum(ops.tanh(x), axes=(0,), keepdims=False)


def first_largest(x: Node) -> Node:
    return ops.argmax(x, axis=1, keepdims=False)


def scattered(x: Node, index: Node) -> Node:
    zeros = ops.broadcast_to(ops.sum(x * 0, axes=(0, 1), keepdims=False), shape=(9, 2))
    return ops.gather_add(zeros, x, index, axes=(0,))


def numbers(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


WITH_BARRIERS = {
    "softmax": (softmax, [numbers(3, 700)]),
    "total": (total, [numbers(60, 500)]),
    "of_columns": (of_columns, [numbers(700, 3)]),
    "first_largest": (first_largest, [numbers(2, 3000)]),
    "scattered": (scattered, [numbers(300, 2), RNG.integers(0, 9, 300)]),
}


@pytest.mark.parametrize("name", WITH_BARRIERS)
def test_no_barrier_can_be_left_out(name: str, device: Device) -> None:
    body, arrays = WITH_BARRIERS[name]
    code = device_code(graph_of(body, arrays), device)
    count, found = survivors(code, arrays)
    assert count > 0
    assert found == []


def test_none_can_where_blocks_take_rows_in_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    few = replace(CUDA.numerics, most_blocks=2)
    monkeypatch.setattr(CUDA, "numerics", few)
    arrays = [numbers(5, 700)]
    code = DeviceCode(graph_of(softmax, arrays), emulated())
    count, found = survivors(code, arrays)
    assert count == 4  # before and behind the words of the maximum, and of the sum
    assert found == []


def test_a_barrier_that_is_not_needed_is_found(device: Device) -> None:
    arrays = [numbers(3, 700)]
    code = DeviceCode(graph_of(softmax, arrays), device)
    built = code.emitted.built
    first = BARRIER.search(built.text)
    assert first is not None
    twice = built.text[: first.end()] + built.text[first.start() :]
    code.emitted = code.emitted._replace(built=built._replace(text=twice))
    assert len(list(mutants(twice))) > 2
    count, found = survivors(code, arrays)
    assert len(found) == 2 < count
