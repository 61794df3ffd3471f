"""Kernels of operations on whole arrays: the records' bits, in every order of threads.

The op table has small arrays; here are those that take several passes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from devices.graphs import assert_same_bits, emulated, graph_of, run_code
from tapejit.base.types import DType, dtype_named
from tapejit.ir import OPS, interpret
from tapejit.runtime.cuda.arrays import upload
from tapejit.runtime.cuda.device_code import device_code
from tapejit.runtime.cuda.devices import Device
from tapejit.runtime.cuda.executor import ORDERS
from tapejit.targets.cpu.arrays.table import EMITTERS as CPU_EMITTERS
from tapejit.targets.cuda.arrays.table import EMITTERS
from tapejit.targets.cuda.target import CUDA

Array = np.ndarray[Any, Any]
F16, BF16, F32, F64 = map(dtype_named, ("float16", "bfloat16", "float32", "float64"))
RNG = np.random.default_rng(5)


@pytest.fixture
def own() -> Device:
    return emulated()


def numbers(*shape: int, dtype: DType = F32) -> Array:
    """Numbers of any dtype; those of floats are not whole."""
    if dtype.kind == "b":
        return RNG.integers(0, 2, shape).astype(bool)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return RNG.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    return RNG.normal(size=shape).astype(dtype)


def assert_bits(
    own: Device,
    name: str,
    *arrays: Array,
    orders: tuple[str, ...] = ("random",),
    **attrs: Any,
) -> list[str]:
    """The record's bits; the names of the kernels that gave them."""
    graph = graph_of(name, arrays, **attrs)
    code = device_code(graph, own)
    (wanted,) = interpret(graph, *arrays)
    for order in orders:
        (got,) = run_code(code, arrays, order)
        where = f"{name} of {[x.shape for x in arrays]}, {attrs}, threads {order}"
        assert_same_bits(got, wanted, where)
    parts = [
        x.name.split("_", 3) for x in code.emitted.built.launches
    ]  # tj, digest, number
    return [x[3] for x in parts if len(x) > 3]


def test_every_operation_that_a_cpu_has_code_for_has_kernels() -> None:
    assert EMITTERS.keys() == CPU_EMITTERS.keys()
    assert set(EMITTERS) == {op.name for op in OPS.values() if op.on_arrays}


# Scatter


@pytest.mark.parametrize("updates", [1, 2, 33, 300, 2048, 2049, 9000])
def test_updates_of_a_row_are_added_in_their_order(own: Device, updates: int) -> None:
    table, given = numbers(50, 3), numbers(updates, 3)
    index = RNG.integers(-50, 50, updates)
    names = assert_bits(own, "gather_add", table, given, index, axes=(0,))
    assert names[:1] + names[-2:] == ["sort", "copy", "add"]
    runs = -(-updates // CUDA.tuning.sorted_run_keys)
    steps = {1: 0, 2: 1, 5: 6}[runs]  # of 2, and of 2, 4 and 8 runs
    assert names.count("step") == steps
    assert len(names) == 3 + steps + {1: 0, 2: 1, 5: 3}[runs]


@pytest.mark.parametrize("order", ORDERS)
def test_updates_are_added_in_every_order_of_threads(own: Device, order: str) -> None:
    table, given = numbers(7, 40), numbers(90, 40)
    index = RNG.integers(0, 7, 90).astype(np.int8)
    orders = (order,)
    assert_bits(own, "gather_add", table, given, index, axes=(0,), orders=orders)


@pytest.mark.parametrize("dtype", [F16, BF16, F64, np.dtype(np.uint8)], ids=str)
def test_halves_are_added_up_as_floats_and_rounded_once(
    own: Device, dtype: DType
) -> None:
    table, given = numbers(5, 9, dtype=dtype), numbers(300, 9, dtype=dtype)
    index = RNG.integers(0, 5, 300).astype(np.uint16)
    assert_bits(own, "gather_add", table, given, index, axes=(0,))


@pytest.mark.parametrize("axes", [(1,), (0, 2), (0, 1, 2)], ids=str)
def test_rows_that_do_not_lie_side_by_side(own: Device, axes: tuple[int, ...]) -> None:
    table = numbers(4, 3, 5)
    indices = [RNG.integers(-n, n, (6, 1)) for n in (4, 3, 5)]
    indices[-1] = indices[-1].reshape(1, 6)
    rest = [table.shape[x] for x in range(3) if x not in axes]
    taken = [indices[x] for x in axes]
    front = np.broadcast_shapes(*[x.shape for x in taken])
    given = numbers(*front, *rest)
    assert_bits(own, "gather_add", table, given, *taken, axes=axes)


@pytest.mark.parametrize("rate", [0.5, -0.5, np.inf, np.nan])
@pytest.mark.parametrize("is_in_place", [False, True])
def test_rows_are_subtracted_where_they_are(
    own: Device, rate: float, is_in_place: bool
) -> None:
    table = numbers(30, 4)
    table[::7] = -0.0
    given, index = numbers(40, 4), RNG.integers(-20, 20, 40)
    arrays = [table, np.float32(rate), given, index]
    graph = graph_of("subtract_rows", [np.asarray(x) for x in arrays], axes=(0,))
    (wanted,) = interpret(graph, *arrays)
    code = device_code(graph, own)
    placed = [upload(np.asarray(x), own) for x in arrays]
    (found,) = code.run(placed, overwritten=[0] if is_in_place else [])
    assert (found.address == placed[0].address) == is_in_place
    assert_same_bits(found.download(), wanted, f"rate {rate}")


# Scans


@pytest.mark.parametrize("length", [64, 65, 257, 1025, 5000])
@pytest.mark.parametrize("name", ["cumulative_sum", "linear_recurrence"])
def test_a_long_scan_has_the_order_of_the_record(
    own: Device, name: str, length: int
) -> None:
    count = 2 if name == "linear_recurrence" else 1
    for shape, axis in (((length,), 0), ((2, length), 1), ((length, 5), 0)):
        arrays = [numbers(*shape) for _ in range(count)]
        names = assert_bits(own, name, *arrays, axis=axis)
    depth = sum(length > limit for limit in (64, 1024))
    if name == "linear_recurrence":
        depth = sum(length > limit for limit in (16, 256, 4096))
    assert len(names) == 2 * depth + 1


@pytest.mark.parametrize("order", ORDERS)
def test_a_long_scan_in_every_order_of_threads(own: Device, order: str) -> None:
    x = numbers(3, 700)
    assert_bits(own, "cumulative_sum", x, axis=1, orders=(order,))


@pytest.mark.parametrize(
    "dtype", [F16, BF16, F64, *map(np.dtype, ("int8", "uint64", "bool"))], ids=str
)
def test_sums_of_every_kind_of_numbers(own: Device, dtype: DType) -> None:
    assert_bits(own, "cumulative_sum", numbers(2, 300, dtype=dtype), axis=1)
    assert_bits(own, "cumulative_sum", numbers(300, 2, dtype=dtype), axis=0)


@pytest.mark.parametrize("dtype", [F16, F32, F64], ids=str)
def test_sums_of_exponentials_look_at_the_largest_before(
    own: Device, dtype: DType
) -> None:
    x = (numbers(2, 300) * 5).astype(dtype)
    x[0, 40], x[0, 200], x[1, :20] = np.inf, np.nan, -np.inf
    graph = graph_of("logcumsumexp", [x], axis=1)
    code = device_code(graph, own)
    assert len(code.emitted.built.launches) == 5 + 4  # two levels, and their maxima
    (got,) = run_code(code, [x], "random")
    (wanted,) = interpret(graph, x)
    np.testing.assert_allclose(got, wanted, rtol=4 * np.finfo(dtype).eps)


# The first extremum


@pytest.mark.parametrize("name", ["argmax", "argmin"])
@pytest.mark.parametrize(
    ("shape", "axis", "kernels"),
    [
        ((5, 20), 1, 1),
        ((3, 100), 1, 1),
        ((2, 3, 300), 2, 1),
        ((1, 3000), 1, 1),
        ((300, 7), 0, 1),
        ((9000,), 0, 2),
        ((9000, 3), 0, 2),
    ],
)
def test_the_first_extremum_of_lines_of_all_lengths(
    own: Device, name: str, shape: tuple[int, ...], axis: int, kernels: int
) -> None:
    few = RNG.integers(0, 4, shape).astype(np.float32)
    with_nan = numbers(*shape)
    with_nan[RNG.integers(0, 500, shape) == 0] = np.nan
    for x in (few, with_nan, few > 1, numbers(*shape, dtype=F16)):
        orders = tuple(ORDERS) if x is few and x.size < 1000 else ("random",)
        names = assert_bits(own, name, x, axis=axis, keepdims=False, orders=orders)
        assert len(names) == kernels


# Draws


@pytest.mark.parametrize("shape", [(1,), (3,), (4,), (5, 7), (2, 300)], ids=str)
@pytest.mark.parametrize("bits", [32, 64])
def test_words_are_those_of_the_generator(
    own: Device, shape: tuple[int, ...], bits: int
) -> None:
    states = RNG.integers(0, 1 << 32, (3, 6), np.uint32)
    states[0, 2:] = 0xFFFFFFFF  # the counter goes over its end
    for x in (states[0], states):
        assert_bits(own, "random_bits", x, shape=shape, bits=bits)


# Parts


def test_many_arrays_are_joined(own: Device) -> None:
    for axis in (0, 1):
        parts = [numbers(*((3, n) if axis else (n, 3))) for n in range(1, 41)]
        names = assert_bits(own, "concat", *parts, axis=axis)
        assert len(names) == 2  # of 32 arrays, and of 8


@pytest.mark.parametrize("count", [3, 70])
@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_many_parts_are_added(own: Device, count: int, zero: float) -> None:
    x = np.full((80, 6), zero, np.float32)
    parts = [np.full((5, 6), -0.0, np.float32) for _ in range(count)]
    for part in parts[::2]:
        part[1:4] = numbers(3, 6)
    for starts in ([(at, 0) for at in range(count)], [(3, 0)] * count):
        attrs = {"starts": tuple(starts), "steps": ((1, 1),) * count}
        assert_bits(own, "place_add", x, *parts, **attrs)


def test_parts_are_put_at_every_so_many_places(own: Device) -> None:
    assert_bits(
        own, "place", numbers(4, 5), starts=(1, 2), steps=(3, 2), shape=(12, 11)
    )


# Orders


@pytest.mark.parametrize("dtype", [F32, F16, np.dtype("int64")], ids=str)
def test_a_thread_has_a_line_of_what_is_sorted(own: Device, dtype: DType) -> None:
    x = numbers(70, 90, dtype=dtype)
    for axis, count in ((0, 3), (1, 20)):
        attrs = {"axis": axis, "descending": True, "window": (0, count)}
        assert_bits(own, "argsort", x, **attrs)
        positions = interpret(graph_of("argsort", [x], **attrs), x)[0]
        values = numbers(*positions.shape, dtype=dtype)
        length = x.shape[axis]
        assert_bits(own, "put_along", values, positions, axis=axis, length=length)
    assert_bits(own, "searchsorted", np.sort(x[0]), x, side="right")
