"""Kernels of matmuls: the bits of a CPU, in every order of threads, whatever the tile.

The CPU's native code has other orders of additions in one place only: where no more
than four rows meet columns that both lie along k. No case here is such a one.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from agreement import COMPOSED, assert_agrees
from native.compiled import run_native

from devices.on_devices import (
    ORDERS,
    given,
    numbers,
    on_executor,
    own_device,
    run_graph,
    run_on,
)
from devices.test_ptx import needs_wheels
from tapejit import ops
from tapejit.base.config import config
from tapejit.ir import Graph, Node
from tapejit.rewrite.pipeline import optimise
from tapejit.runtime.cuda.device_code import device_code
from tapejit.runtime.cuda.devices import Device
from tapejit.runtime.cuda.driver import DeviceError
from tapejit.targets.cuda.matmul import tiling
from tapejit.targets.cuda.matmul.products import tilings_of
from tapejit.targets.cuda.ptx import assemble, broken_promises, to_ptx
from tapejit.targets.cuda.target import CUDA, target_for
from tapejit.transforms.vjp import vjp_graph

TILES = {
    **{f"f32 {'x'.join(map(str, x))}": (x, "float32") for x in tiling.SINGLE},
    **{f"f64 {'x'.join(map(str, x))}": (x, "float64") for x in tiling.DOUBLE},
}


@pytest.fixture
def own() -> Device:
    return own_device()


def use(monkeypatch: pytest.MonkeyPatch, *tiles: tiling.Tile) -> None:
    """Let products have these tiles."""
    monkeypatch.setattr(tiling, "SINGLE", tiles)
    monkeypatch.setattr(tiling, "DOUBLE", tiles)


def turned(x: Node) -> Node:
    """With rows and columns in each other's place."""
    axes = list(range(x.ndim))
    axes[-2:] = axes[:-3:-1]
    return ops.permute_dims(x, axes=tuple(axes))


def product(
    m: int,
    k: int,
    n: int,
    dtype: str = "float32",
    turns: Sequence[bool] = (False, False),
    fronts: Sequence[tuple[int, ...]] = ((), ()),
) -> tuple[list[Node], Node]:
    """The operands of a matmul, each of which may lie the other way, and the matmul."""
    shapes = ((m, k), (k, n))
    given_ones = [
        given(name, *front, *(shape[::-1] if turn else shape), dtype=dtype)
        for name, shape, turn, front in zip("xy", shapes, turns, fronts, strict=True)
    ]
    x, y = (turned(x) if turn else x for x, turn in zip(given_ones, turns, strict=True))
    return given_ones, ops.matmul(x, y)


def plain(*sizes: Any, **options: Any) -> Graph:
    inputs, z = product(*sizes, **options)
    return Graph("product", tuple(inputs), (z,))


def assert_bits_of_cpu(own: Device, graph: Graph, seed: int = 0) -> None:
    """Results have the bits of the CPU's native code."""
    wanted = run_native(graph, numbers(graph, seed))
    for got, expected in zip(run_graph(own, graph, seed), wanted, strict=True):
        np.testing.assert_array_equal(got, expected)


# Shapes

SIZES = (5, 8, 17, 31, 32, 33, 64, 65, 100, 127)
DEEP = (*SIZES, 385, 784)


def random_product(seed: int) -> Graph:
    """A product of some sizes, layouts, dtype and stack, perhaps with an epilogue."""
    r = random.Random(seed)
    dtype = r.choice(["float32", "float32", "float64"])
    front = r.choice([(), (), (3,), (2, 3)])
    fronts = [front if r.random() < 0.6 else () for _ in "xy"]
    turns = [r.random() < 0.5 for _ in "xy"]
    m, k, n = r.choice(SIZES[2:]), r.choice(DEEP), r.choice(SIZES[2:])
    inputs, z = product(m, k, n, dtype=dtype, turns=turns, fronts=fronts)
    bias = given("c", n, dtype=dtype)
    y = {
        "bias": lambda: [z + bias],
        "tanh": lambda: [ops.tanh(z + bias) * z],
        "two": lambda: [z * 2, ops.maximum(z, bias)],
        "cast": lambda: [ops.cast(z, dtype=np.dtype("float64"))],
    }
    return Graph("random", (*inputs, bias), tuple(y[r.choice(list(y))]()))


def test_random_products_have_the_bits_of_a_cpu(own: Device, full: bool) -> None:
    for seed in range(100 if full else 8):
        assert_bits_of_cpu(own, random_product(seed), seed)


@pytest.mark.parametrize("name", TILES)
def test_every_tile_has_the_bits_of_a_cpu_in_every_order_of_threads(
    own: Device, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    tile, dtype = TILES[name]
    use(monkeypatch, tile)
    sizes = (tile.rows + 1, 2 * tile.depth + 1, tile.columns + 3)
    graph = plain(*sizes, dtype=dtype, turns=(False, True))
    code = device_code(graph, own)
    arrays = numbers(graph)
    (wanted,) = run_native(graph, arrays)
    for order in ORDERS:
        (got,) = run_on(own, code, arrays, order)
        if tile.rows > 4:
            np.testing.assert_array_equal(got, wanted)
        assert_agrees(COMPOSED, got, wanted, where=order)


@pytest.mark.parametrize("is_split", [False, True])
@pytest.mark.parametrize("k", [400, 784, 1000])
def test_long_sums_are_cut_as_on_a_cpu(
    own: Device, monkeypatch: pytest.MonkeyPatch, k: int, is_split: bool
) -> None:
    monkeypatch.setattr(
        tiling.MatmulTiling, "time", property(lambda x: x.is_split is not is_split)
    )
    use(monkeypatch, tiling.Tile(32, 32, 16, 2, 2))
    graph = plain(17, k, 20)
    launches = device_code(graph, own).emitted.built.launches
    assert len(launches) == (2 if is_split else 1)
    assert_bits_of_cpu(own, graph)


def test_halves_are_widened_and_rounded_once(own: Device) -> None:
    for dtype in ("float16", "bfloat16"):
        assert_bits_of_cpu(own, plain(33, 65, 34, dtype=dtype))


def test_zeros_beyond_the_edge_change_no_sign(own: Device) -> None:
    """A sum that has underflowed to -0 stays -0 where the last tile is not full."""
    graph = plain(32, 33, 32)
    tiny = np.full((32, 33), 1e-30, np.float32)
    arrays = [tiny, np.ascontiguousarray(-tiny.T)]
    (wanted,) = run_native(graph, arrays)
    (got,) = run_on(own, device_code(graph, own), arrays)
    np.testing.assert_array_equal(np.signbit(got), np.signbit(wanted))
    assert np.signbit(got).all()


def test_infinities_stay_in_their_rows_and_columns(own: Device) -> None:
    graph = plain(33, 18, 35)
    arrays = numbers(graph)
    arrays[0][4, 17], arrays[1][3, 34] = np.inf, np.nan
    (got,) = run_on(own, device_code(graph, own), arrays)
    (wanted,) = run_native(graph, arrays)
    np.testing.assert_array_equal(got, wanted)
    assert np.isfinite(got).sum() == 32 * 34


# Sums of an epilogue


@pytest.mark.parametrize(
    ("m", "k", "n"), [(64, 33, 130), (100, 17, 133), (260, 400, 40)]
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sums_of_rows_have_the_bits_of_a_cpu(
    own: Device, m: int, k: int, n: int, dtype: str
) -> None:
    graph = sums_of_rows(m, k, n, dtype)
    code = device_code(graph, own)
    (cut,) = [
        tilings_of(x, x.array_op) for x in code.emitted.built.plan.kernels if x.array_op
    ]
    assert cut[0].sums.unit > 1
    assert_bits_of_cpu(own, graph)


def sums_of_rows(m: int, k: int, n: int, dtype: str) -> Graph:
    inputs, z = product(m, k, n, dtype=dtype)
    y = ops.tanh(z)
    columns = [
        ops.sum(x, axes=(0,), keepdims=False) for x in (y, z * z, z + 1, ops.abs(z))
    ]
    most = ops.max(z, axes=(0,), keepdims=False)
    return Graph("sums", tuple(inputs), (*columns, most, y))


def test_sums_of_parts_of_terms_fit_in_shared_memory(
    own: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Units of rows of several values are narrower there than a tile."""
    monkeypatch.setattr(tiling.MatmulTiling, "time", property(lambda x: not x.is_split))
    graph = sums_of_rows(260, 400, 40, "float64")
    launches = device_code(graph, own).emitted.built.launches
    (added,) = [x for x in launches if x.name.endswith("_c")]
    most = CUDA.tuning.shared_most_bytes
    assert most / 4 < added.shared_bytes <= most
    assert_bits_of_cpu(own, graph)


def test_sums_along_rows_have_the_bits_of_a_cpu(own: Device) -> None:
    inputs, z = product(512, 8, 530)
    y = ops.sum(z * z, axes=(1,), keepdims=False)
    graph = Graph("rows", tuple(inputs), (y,))
    (got,) = run_graph(own, graph)
    (wanted,) = run_native(graph, numbers(graph))
    assert_agrees(COMPOSED, got, wanted, where="rows")
    kernel = device_code(graph, own).emitted.built.plan.kernels[0]
    assert kernel.array_op is not None
    assert tilings_of(kernel, kernel.array_op)[0].sums.group == 16


# Barriers


def summed() -> Graph:
    inputs, z = product(160, 20, 130)
    both = [ops.sum(x, axes=(0,), keepdims=False) for x in (z * z, z + 1)]
    return Graph("sums", tuple(inputs), tuple(both))


@pytest.mark.parametrize("which", ["product", "long", "sums"])
def test_every_barrier_is_needed(own: Device, which: str) -> None:
    graph = {
        "product": lambda: plain(33, 40, 34),
        "long": lambda: plain(33, 400, 34),
        "sums": summed,
    }[which]()
    code = device_code(graph, own)
    lines = code.emitted.built.text.splitlines()
    barriers = [
        at for at, line in enumerate(lines) if 'call void @"llvm.nvvm.barrier' in line
    ]
    assert len(barriers) >= 2
    arrays = numbers(graph)
    assert on_executor(code, lines, arrays) is None
    for at in barriers:
        error = on_executor(code, [*lines[:at], *lines[at + 1 :]], arrays)
        assert isinstance(error, DeviceError), f"not needed: barrier of line {at}"
        assert "race" in str(error)


# Machine code


@needs_wheels
@pytest.mark.parametrize("name", TILES)
def test_every_tile_assembles_within_its_budget(
    monkeypatch: pytest.MonkeyPatch, name: str, full: bool
) -> None:
    tile, dtype = TILES[name]
    use(monkeypatch, tile)
    inputs, z = product(512, 600, 512, dtype=dtype)
    short, y = product(255, 254, 257, dtype=dtype, turns=(True, True))
    w, m, v = (given(x, 255, 257, dtype=dtype) for x in "wmv")
    moment = m * 0.9 + y * 0.1
    square = v * 0.999 + y * y * 0.001
    update = w - moment / (ops.sqrt(square) + 1e-7)
    graph = Graph("both", (*inputs, *short, w, m, v), (z, moment, square, update))
    plan = CUDA.plan(graph)
    text = CUDA.emit(graph, plan, "tiles").text
    for processor in ("sm_80", "sm_90", "sm_100")[:: 1 if full else 2]:
        ptx = to_ptx(text, processor)
        assert broken_promises(ptx) == []
        for kernel, usage in assemble(ptx, processor).usage.items():
            assert usage.spilled_bytes == usage.stack_bytes == 0, kernel
            assert usage.shared_bytes <= CUDA.tuning.shared_most_bytes


@needs_wheels
@pytest.mark.parametrize("turns", [(False, False), (False, True)])
def test_stacks_of_large_tiles_spill_nothing(turns: tuple[bool, bool]) -> None:
    """Which tile a block has is a number of 32 bits, through all of the product."""
    graph = plain(2048, 32, 2048, turns=turns, fronts=((8,), (8,)))
    plan = CUDA.plan(graph)
    (kernel,) = plan.kernels
    assert kernel.array_op is not None
    assert tilings_of(kernel, kernel.array_op)[0].tile == tiling.SINGLE[0]
    text = CUDA.emit(graph, plan, "stack").text
    for processor in ("sm_80", "sm_90", "sm_100"):
        (usage,) = assemble(to_ptx(text, processor), processor).usage.values()
        assert usage.spilled_bytes == 0, processor


# Tensor cores


TENSOR = {"x".join(map(str, x)): x for x in tiling.TENSOR}


def core_of(device: Device, graph: Graph) -> str:
    """What multiplies in the first kernel of a Graph."""
    kernel = device_code(graph, device).emitted.built.plan.kernels[0]
    assert kernel.array_op is not None
    return tilings_of(kernel, kernel.array_op)[0].core


TURNS = [(False, False), (True, True), (False, True)]


@pytest.mark.parametrize("name", TENSOR)
def test_tensor_cores_multiply_floats_of_16_bits(
    own: Device, monkeypatch: pytest.MonkeyPatch, name: str, full: bool
) -> None:
    """The executor adds up in the CPU's order; products of such floats are exact."""
    tile, at = TENSOR[name], list(TENSOR).index(name)
    monkeypatch.setattr(tiling, "TENSOR", (tile,))
    for turns in TURNS if full else [TURNS[at % len(TURNS)]]:
        dtype = "bfloat16" if turns[0] else "float16"
        sizes = (tile.rows + 1, tile.depth + 17, tile.columns + 8)
        graph = plain(*sizes, dtype=dtype, turns=turns)
        assert core_of(own, graph) == "mma"
        assert_bits_of_cpu(own, graph)


def test_tensor_cores_take_epilogues_stacks_and_long_sums(own: Device) -> None:
    inputs, z = product(40, 400, 48, dtype="float16", fronts=((2,), (2,)))
    bias = given("c", 48, dtype="float16")
    graph = Graph("layer", (*inputs, bias), (ops.maximum(z + bias, bias), z * z))
    assert core_of(own, graph) == "mma"
    assert_bits_of_cpu(own, graph)


def test_float32_is_rounded_for_tensor_cores_where_that_is_set(own: Device) -> None:
    graph = plain(33, 40, 36)
    with config.override(cuda_tf32=True):
        assert core_of(own, graph) == "tf32"
        arrays = numbers(graph)
        arrays[0][3, 7], arrays[0][4, 8] = np.inf, np.float32(np.nan)
        arrays[0].view(np.int32)[5, 9] = 0x7FFFFFFF  # NaN that rounds to -0
        (got,) = run_on(own, device_code(graph, own), arrays)
    (exact,) = run_native(graph, arrays)
    rounded = [rounded_to_11_bits(x) for x in arrays]
    (wanted,) = run_native(graph, rounded)
    np.testing.assert_array_equal(got, wanted)
    assert not np.array_equal(wanted, exact)
    assert np.isnan(got[5]).all()
    assert core_of(own, graph) == "fma"


def rounded_to_11_bits(x: np.ndarray) -> np.ndarray:
    bits = x.view(np.int32)
    near = ((bits + 0x1000) & ~0x1FFF).view(np.float32)
    return np.where(np.isnan(x), x, near)


def test_a_device_without_such_tensor_cores_does_without() -> None:
    graph = plain(33, 40, 36, dtype="float16")
    older = target_for((7, 5))
    text = older.emit(graph, older.plan(graph), "older").text
    assert "mma" not in text
    assert ".target sm_75" in to_ptx(text, "sm_75")


@needs_wheels
@pytest.mark.parametrize("name", TENSOR)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_tiles_of_tensor_cores_assemble(
    monkeypatch: pytest.MonkeyPatch, name: str, dtype: str, full: bool
) -> None:
    monkeypatch.setattr(tiling, "TENSOR", (TENSOR[name],))
    graphs = [
        plain(512, 600, 512, dtype=dtype),
        plain(255, 254, 257, dtype=dtype, turns=(True, True)),
    ]
    for graph in graphs:
        with config.override(cuda_tf32=True):
            plan = CUDA.plan(graph)
        text = CUDA.emit(graph, plan, "tensor").text
        for processor in ("sm_80", "sm_90", "sm_100")[:: 1 if full else 2]:
            ptx = to_ptx(text, processor)
            assert "mma.sync" in ptx
            assert ("ldmatrix" in ptx) == (dtype != "float32")
            assert broken_promises(ptx) == []
            for kernel, usage in assemble(ptx, processor).usage.items():
                assert usage.spilled_bytes == usage.stack_bytes == 0, kernel


# Convolutions


def convolution(seed: int) -> Graph:
    """A convolution of some sizes, with its derivatives by both operands."""
    r = random.Random(seed)
    rank, dtype = r.choice([1, 2, 2]), r.choice(["float32", "float32", "float64"])
    count, channels = r.choice([1, 2, 5]), r.choice([1, 3, 4, 8, 16])
    features, groups = r.choice([4, 5, 8, 16]), 1
    if r.random() < 0.2:
        channels, features, groups = 8, 16, 2
    sizes = [r.choice([5, 7, 8, 12, 13]) for _ in range(rank)]
    window = [r.choice([1, 2, 3]) for _ in range(rank)]
    x = given("x", count, *sizes, channels, dtype=dtype)
    w = given("w", *window, channels // groups, features, dtype=dtype)
    y = ops.conv(
        x,
        w,
        strides=tuple(r.choice([1, 1, 2]) for _ in range(rank)),
        dilations=tuple(r.choice([1, 1, 2]) for _ in range(rank)),
        input_dilations=(1,) * rank,
        padding=tuple((r.choice([0, 1, 2]), r.choice([0, 1])) for _ in range(rank)),
        groups=groups,
    )
    return optimise(vjp_graph(Graph("c", (x, w), (ops.tanh(y),)), wrt=(x, w)))


def test_convolutions_have_the_bits_of_a_cpu(own: Device, full: bool) -> None:
    for seed in range(60 if full else 5):
        assert_bits_of_cpu(own, convolution(seed), seed)
