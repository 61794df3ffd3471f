"""Graphs on a device: what kernels give, and what happens when they fail."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from agreement import COMPOSED, assert_agrees

from tapejit import ops
from tapejit.base.errors import OutOfRangeError, UnsupportedError
from tapejit.base.types import TensorType
from tapejit.ir import Graph, Node, interpret, param
from tapejit.runtime.cuda.arrays import upload
from tapejit.runtime.cuda.device_code import device_code
from tapejit.runtime.cuda.device_graph import why_no_kernel
from tapejit.runtime.cuda.devices import Device
from tapejit.runtime.cuda.emulated import EmulatedDriver

ORDERS = ("up", "down", "random", "first ahead", "last ahead")


@pytest.fixture
def own() -> Device:
    """A device of this test alone, on which races are errors."""
    driver = EmulatedDriver()
    driver.watch = True
    return Device(driver, 0, "emulated")


def given(name: str, *shape: int, dtype: str = "float32") -> Node:
    return param(name, TensorType(np.dtype(dtype), shape))


def softmax(x: Node) -> Node:
    e = ops.exp(x - ops.max(x, axes=(1,), keepdims=True))
    return e / ops.sum(e, axes=(1,), keepdims=True)


def total(x: Node) -> Node:
    return ops.sum(x * x, axes=(0, 1), keepdims=False)


def of_columns(x: Node) -> Node:
    return ops.sum(ops.tanh(x), axes=(0,), keepdims=False)


def largest(x: Node) -> Node:
    return ops.max(x, axes=(0, 1), keepdims=False)


def turned(x: Node) -> Node:
    return ops.permute_dims(x, axes=(1, 0)) * 2


BODIES: list[Callable[[Node], Node]] = [softmax, total, of_columns, largest, turned]
SHAPES = ((1, 1), (3, 5), (700, 3), (40, 96), (300, 100), (6, 2000), (2, 20000))


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_results_agree_with_numpys_in_every_order_of_threads(
    own: Device, body: Callable[[Node], Node], shape: tuple[int, int]
) -> None:
    x = given("x", *shape)
    code = device_code(Graph("body", (x,), (body(x),)), own)
    array = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    (wanted,) = interpret(code.given, array)
    found = []
    is_small = array.size < 10_000
    for order in ORDERS if is_small else ORDERS[2:3]:
        own.driver.order = order  # type: ignore[attr-defined]
        (result,) = code.run([upload(array, own)])
        found.append(result.download())
        assert_agrees(COMPOSED, found[-1], wanted, where=order)
        np.testing.assert_array_equal(found[-1], found[0])


def test_a_result_is_written_over_an_input_that_may_go(own: Device) -> None:
    x = given("x", 1000)
    code = device_code(Graph("step", (x,), (x * 2 + 1,)), own)
    array = upload(np.arange(1000, dtype=np.float32), own)
    (kept,) = code.run([array])
    assert kept.address != array.address
    (over,) = code.run([array], overwritten=[0])
    assert over.address == array.address
    np.testing.assert_array_equal(over.download(), kept.download())


def test_a_step_that_fails_changes_nothing_nor_do_those_behind_it(
    own: Device,
) -> None:
    table, rows = given("table", 10, 4), given("rows", 3, dtype="int32")
    picked = ops.sum(ops.gather(table, rows, axes=(0,)), axes=(0,), keepdims=False)
    step = device_code(Graph("step", (table, rows), (table * 2, picked)), own)
    other = device_code(Graph("other", (table,), (table + 1,)), own)
    state = upload(np.ones((10, 4), np.float32), own)

    def run(*indices: int) -> None:
        nonlocal state
        state, _ = step.run([state, upload(np.int32(indices), own)], overwritten=[0])

    run(0, 1, 2)
    run(0, -10, 9)
    run(0, 10, 2)
    run(1, 2, 3)
    (state,) = other.run([state], overwritten=[0])
    with pytest.raises(OutOfRangeError, match="index 10 is out of range"):
        own.synchronize()
    assert (state.download() == 4).all()
    run(3, 2, 1)
    assert (state.download() == 8).all()


def test_what_has_no_kernel_is_named(own: Device) -> None:
    x = given("x", 4, dtype="complex64")
    assert why_no_kernel(ops.log(x)) == "complex numbers"
    with pytest.raises(UnsupportedError, match="log: a GPU cannot do this: complex"):
        device_code(Graph("complex", (x,), (ops.log(x),)), own)


def test_codes_are_kept(own: Device) -> None:
    x = given("x", 3)
    graph, equal = (Graph("twice", (x,), (x + x,)) for _ in range(2))
    assert device_code(graph, own) is device_code(equal, own)


def test_a_slice_that_begins_between_aligned_places(own: Device) -> None:
    x = given("x", 9)
    part = ops.slice(x, starts=(1,), stops=(9,), steps=(1,))
    code = device_code(Graph("slice", (x,), (part * 2,)), own)
    (found,) = code.run([upload(np.arange(9, dtype=np.float32), own)])
    np.testing.assert_array_equal(found.download(), 2 * np.arange(1, 9))


def test_arrays_without_elements_are_there(own: Device) -> None:
    x, y = given("x", 0, 3), given("y", 2, 3)
    joined = ops.concat(x, y, x, axis=0) + ops.sum(x, axes=(0,), keepdims=False)
    graph = Graph("empty", (x, y), (x * 2, joined, ops.exp(x)))
    code = device_code(graph, own)
    array = np.ones((2, 3), np.float32)
    found = code.run([upload(np.empty((0, 3), np.float32), own), upload(array, own)])
    assert [out.shape for out in found] == [(0, 3), (2, 3), (0, 3)]
    np.testing.assert_array_equal(found[1].download(), array)
    assert len(code.emitted.built.launches) == 1
    assert why_no_kernel(joined) is None
