"""The ladder: a sample of its programs on every rung, all of them with `--full`.

`python -m tests.devices.ladder` runs all of it outside of tests, and counts.
"""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from devices.found import PAGE, Found, without_table
from devices.graphs import Array, emulated, graph_of
from devices.ladder import Climb, LadderCase, cases_of
from devices.rungs import BARRIER, Assembly, built_of, mutants, survivors
from tapejit import ops
from tapejit.base.errors import UnsupportedError
from tapejit.ir import Node
from tapejit.runtime.cuda.device_code import DeviceCode, device_code
from tapejit.runtime.cuda.devices import Device
from tapejit.targets.cuda.ptx import linker
from tapejit.targets.cuda.target import CUDA

RNG = np.random.default_rng(7)
PARTS = 8  # tests that share what is run
SAMPLE = {"op/*": 130, "golden/*": 3, "random/*": 40}  # one of so many


@pytest.fixture(scope="module")
def device() -> Device:
    return emulated()


@pytest.fixture(scope="module")
def cases(full: bool) -> list[LadderCase]:
    """The programs: all, or a sample of each kind."""
    found = []
    for pattern, every in SAMPLE.items():
        found += islice(cases_of([pattern]), 0, None, 1 if full else every)
    return found


@pytest.mark.parametrize("part", range(PARTS))
def test_a_device_gives_the_bits_of_this_cpu(
    cases: list[LadderCase], part: int
) -> None:
    """In all orders of threads; of sums, what agrees with them."""
    mine = cases[part::PARTS]
    climb = Climb(["run", "orders", "mutate"])
    climb.all(mine)
    assert climb.found.wrong == []
    assert climb.found.counts["orders", "programs"] > len(mine) / 2


def test_kernels_assemble_within_their_budget(
    cases: list[LadderCase], full: bool
) -> None:
    must_have_linker()
    climb = Climb(["assemble"])
    climb.all(cases if full else cases[::4])
    assert climb.found.wrong == []
    assert len(climb.found.registers) > 10


def must_have_linker() -> None:
    try:
        linker()
    except UnsupportedError as error:
        pytest.skip(f"tapejit[cuda-test]: {error.message}")


def test_a_module_that_spills_is_found_among_others() -> None:
    must_have_linker()
    found = Found()
    assembly = Assembly(found)
    arrays = [numbers(4096, 8)]
    good = assembly.add("good", graph_of("exp", arrays))
    again = assembly.add("again", graph_of("exp", arrays))
    wide = [arrays[0].astype(np.float64)]
    bad = assembly.add("bad", graph_of("digamma", wide))
    text = assembly.texts[bad][1]
    assembly.texts[bad] = "bad", re.sub(r'minctasm"="\d+"', 'minctasm"="8"', text)
    assembly.finish()
    assert good == again
    assert list(found.registers) == [good]
    assert [x.split(":")[0] for x in found.wrong] == ["assemble bad"] * 3


def test_kernels_of_few_blocks_may_take_more_registers() -> None:
    few, many = (built_of(graph_of("exp", [numbers(n)])).text for n in (1000, 1 << 20))
    assert '"nvvm.maxntid"="256" "nvvm.minctasm"="1"' in few
    assert '"nvvm.maxntid"="256" "nvvm.minctasm"="4"' in many


# The page


def test_the_page_has_what_has_no_kernel() -> None:
    assert PAGE.read_text().endswith(without_table())


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
