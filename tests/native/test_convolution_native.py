"""Convolutions as products of matrices: values, what is fused, and how they are cut.

Small integers in floats have exact sums, so an element that is read from the wrong
place cannot hide behind rounding: `drawn` gives those, and what is expected comes from
NumPy's evaluation, which the op table judges elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from agreement import EXACT, SUM, Truth, assert_agrees

import tapejit as tj
from tapejit.base.types import TensorType
from tapejit.ir import Graph, Node, param
from tapejit.loops.native_ops import is_native
from tapejit.ops import conv, convolve
from tapejit.runtime.executable import Executable
from tapejit.targets.cpu.matmul import choices
from tapejit.targets.cpu.matmul.tiling import Registers
from tapejit.transforms import vjp_graph

from .compiled import (
    Array,
    assert_same_for_any_threads,
    run,
    run_native,
    run_numpy,
)
from .test_kernel_source import part_of, run_source

Attrs = dict[str, Any]


def drawn(rng: np.random.Generator, shape: Sequence[int], dtype: Any) -> Array:
    """Small integers, whose sums of products are exact."""
    return rng.integers(-4, 5, shape).astype(dtype)


def sliding(
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    dilations: Sequence[int] = (),
    input_dilations: Sequence[int] = (),
    groups: int = 1,
) -> Attrs:
    ones = (1,) * len(strides)
    return {
        "strides": tuple(strides),
        "padding": tuple(padding),
        "dilations": tuple(dilations) or ones,
        "input_dilations": tuple(input_dilations) or ones,
        "groups": groups,
    }


def node_of(shapes: Sequence[Sequence[int]], dtype: Any, attrs: Attrs) -> Node:
    x, filters = (
        param(name, TensorType(np.dtype(dtype), tuple(shape)))
        for name, shape in zip(("x", "filters"), shapes, strict=True)
    )
    return conv(x, filters, **attrs)


def with_adjoint(node: Node) -> Graph:
    graph = Graph("convolution", node.inputs, [node])
    return vjp_graph(graph, wrt=graph.inputs)


def is_product(node: Node) -> bool:
    return is_native(node, lambda *_: True)


def assert_exact(graph: Graph, arrays: Sequence[Array], where: str) -> list[Array]:
    got = run_native(graph, arrays)
    for at, (x, y) in enumerate(zip(got, run_numpy(graph, arrays), strict=True)):
        assert_agrees(EXACT, x, y, where=f"{where}, result {at}")
    return got


# Values


def random_case(
    rng: np.random.Generator,
) -> tuple[list[tuple[int, ...]], Attrs] | None:
    """Shapes and attributes, None if a window does not fit."""
    rank = int(rng.integers(0, 4))
    groups = int(rng.choice([1, 1, 1, 2, 3]))
    each, features = int(rng.choice([1, 3, 4, 17])), int(rng.choice([1, 4, 5, 8, 33]))

    def numbers(low: int, high: int) -> tuple[int, ...]:
        return tuple(int(n) for n in rng.integers(low, high, rank))

    spatial, window = numbers(1, 12 if rank < 3 else 6), numbers(1, 5)
    spread = numbers(1, 4) if rng.random() < 0.4 else ()
    padding = tuple(zip(numbers(-2, 5), numbers(-2, 5), strict=True))
    attrs = sliding(numbers(1, 4), padding, numbers(1, 3), spread, groups)
    batch = int(rng.choice([1, 2, 9]))
    shapes = [(batch, *spatial, groups * each), (*window, each, groups * features)]
    try:
        node = node_of(shapes, "f4", attrs)
    except tj.TapejitError:
        return None
    return None if 0 in node.shape else (shapes, attrs)


@pytest.mark.parametrize("seed", range(4))
def test_random_convolutions_and_their_adjoints_are_exact(
    seed: int, full: bool
) -> None:
    rng = np.random.default_rng(seed)
    products = 0
    for _ in range(100 if full else 14):
        case = random_case(rng)
        if case is None:
            continue
        shapes, attrs = case
        dtype = rng.choice(["f4", "f8"])
        node = node_of(shapes, dtype, attrs)
        products += is_product(node)
        graph = with_adjoint(node)
        arrays = [drawn(rng, x.shape, dtype) for x in graph.inputs]
        assert_exact(graph, arrays, f"{shapes} {attrs} {dtype}")
    assert products >= 5


LARGE = {
    "rows": (((2, 40, 21, 16), (3, 3, 16, 40)), sliding((1, 1), ((1, 1), (1, 1)))),
    "many channels": (
        ((2, 9, 9, 130), (3, 3, 130, 72)),
        sliding((1, 1), ((1, 1),) * 2),
    ),
    "few positions": (((9, 3, 3, 96), (3, 3, 96, 33)), sliding((1, 1), ((1, 1),) * 2)),
    "one entry": (((3, 11, 13, 70), (1, 1, 70, 48)), sliding((1, 1), ((0, 0),) * 2)),
    "strided": (((2, 23, 22, 24), (5, 3, 24, 32)), sliding((2, 3), ((2, 2), (1, 1)))),
    "one channel": (((4, 28, 28, 1), (5, 5, 1, 16)), sliding((1, 1), ((2, 2),) * 2)),
    "groups": (
        ((2, 12, 12, 48), (3, 3, 12, 64)),
        sliding((1, 1), ((1, 1),) * 2, groups=4),
    ),
    "a line": (((3, 700, 5), (9, 5, 12)), sliding((1,), ((4, 4),))),
}


AVX2, AVX512, SSE = Registers(32, 16), Registers(64, 32), Registers(16, 16)


def run_with(
    registers: Registers, graph: Graph, arrays: Sequence[Array]
) -> list[Array]:
    """As native code with the tiles of some processor; wide vectors are cut by LLVM."""
    asked = []

    def given() -> Registers:
        asked.append(registers)
        return registers

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choices, "host_registers", given)
        with tj.config.override(native=True, cache=False):
            found = run(Executable(graph), arrays)
    assert asked, "the code was there already"
    return found


@pytest.mark.parametrize("name", LARGE)
def test_blocks_tiles_and_tasks_leave_every_element_in_place(
    name: str, full: bool
) -> None:
    rng = np.random.default_rng(67)
    shapes, attrs = LARGE[name]
    node = node_of(shapes, "f4", attrs)
    assert is_product(node)
    graph = with_adjoint(node)
    arrays = [drawn(rng, x.shape, "f4") for x in graph.inputs]
    expected = assert_exact(graph, arrays, name)
    for registers in (
        (AVX2, AVX512, SSE) if full else (AVX512, SSE)[len(name) % 2 :][:1]
    ):
        for x, y in zip(run_with(registers, graph, arrays), expected, strict=True):
            assert_agrees(EXACT, x, y, where=f"{name} for {registers}")


def test_no_bit_depends_on_the_tiles() -> None:
    rng = np.random.default_rng(71)
    shapes, attrs = LARGE["many channels"]
    node = node_of(shapes, "f4", attrs)
    graph = with_adjoint(node)
    arrays = [rng.standard_normal(x.shape).astype("f4") for x in graph.inputs]
    found = [
        [x.tobytes() for x in run_with(registers, graph, arrays)]
        for registers in (AVX2, AVX512, SSE)
    ]
    assert found[0] == found[1] == found[2]


def test_no_bit_depends_on_the_number_of_threads() -> None:
    rng = np.random.default_rng(73)
    shapes, attrs = LARGE["rows"]
    graph = with_adjoint(node_of(shapes, "f4", attrs))
    arrays = [rng.standard_normal(x.shape).astype("f4") for x in graph.inputs]
    assert_same_for_any_threads(
        lambda: [x.tobytes() for x in run_native(graph, arrays)]
    )


@pytest.mark.parametrize("number", [0.1, 1 / 3])
def test_many_terms_of_one_sign_keep_the_bound_of_sums(number: float) -> None:
    x, filters = np.full((1, 33, 33, 64), number, "f4"), np.ones((33, 33, 64, 8), "f4")
    node = node_of((x.shape, filters.shape), "f4", sliding((1, 1), ((0, 0),) * 2))
    (got,) = run_native(Graph("long", node.inputs, [node]), [x, filters])
    terms = 33 * 33 * 64
    total = np.full(node.shape, terms * float(np.float32(number)))
    assert_agrees(SUM, got, Truth(total, terms, total), where="long")


# Which


@pytest.mark.parametrize(
    ("shapes", "dtype", "attrs"),
    [
        (((2, 70, 16), (65, 1, 16)), "f4", sliding((1,), ((32, 32),), groups=16)),
        (((2, 9, 8), (2, 8, 4)), "f4", sliding((1,), ((9, -9),))),
        (((2, 9, 8), (3, 8, 4)), "f4", sliding((1,), ((9, 9),), (), (17,))),
    ],
    ids=["depthwise and wide", "nothing but zeros", "many phases"],
)
def test_what_is_no_product_is_left_to_numpy(
    shapes: Sequence[Sequence[int]], dtype: str, attrs: Attrs
) -> None:
    rng = np.random.default_rng(79)
    node = node_of(shapes, dtype, attrs)
    assert not is_product(node)
    arrays = [drawn(rng, shape, dtype) for shape in shapes]
    assert_exact(Graph("left", node.inputs, [node]), arrays, str(attrs))


@pytest.mark.parametrize(
    ("shapes", "dtype", "attrs"),
    [
        (((2, 30, 6), (33, 1, 6)), "f4", sliding((1,), ((16, 16),), groups=6)),
        (((2, 30, 6), (33, 1, 6)), "f2", sliding((1,), ((16, 16),), groups=6)),
        (((2, 9, 8), (3, 1, 8)), "f2", sliding((1,), ((1, 1),), groups=8)),
        (((2, 9, 8), (3, 4, 4)), "f2", sliding((2,), ((1, 1),), (), (3,), groups=2)),
        (((2, 9, 8), (3, 8, 4)), "i4", sliding((1,), ((1, 1),))),
        (
            ((2, 9, 5, 8), (3, 2, 4, 6)),
            "u1",
            sliding((2, 1), ((3, -1), (1, 0)), (2, 1), (1, 2), 2),
        ),
    ],
    ids=["groups", "groups of halves", "depthwise", "halves", "integers", "all of it"],
)
def test_what_is_no_product_is_made_of_others(
    shapes: Sequence[Sequence[int]], dtype: str, attrs: Attrs
) -> None:
    rng = np.random.default_rng(79)
    node = node_of(shapes, dtype, attrs)
    assert is_product(node)
    arrays = [drawn(rng, shape, dtype) for shape in shapes]
    assert_exact(Graph("made", node.inputs, [node]), arrays, str(attrs))


@pytest.mark.parametrize("dtype", ["f4", "f2", "i2", "u8"])
def test_sequences_are_convolved_natively(dtype: str) -> None:
    rng = np.random.default_rng(83)
    for shapes in (((40,), (7,)), ((3, 40), (7,)), ((40,), (2, 7)), ((3, 9), (3, 9))):
        for mode in ("full", "valid"):
            kinds = [TensorType(np.dtype(dtype), shape) for shape in shapes]
            node = convolve(*map(param, "xy", kinds), mode=mode)
            assert is_product(node)
            arrays = [drawn(rng, shape, dtype) for shape in shapes]
            assert_exact(Graph(mode, node.inputs, [node]), arrays, mode)


GROUPED = {
    "depthwise": (((3, 9, 8, 6), (3, 2, 1, 6)), sliding((1, 1), ((1, 1),) * 2)),
    "strided": (((2, 9, 8, 6), (3, 3, 1, 6)), sliding((2, 3), ((1, 0), (2, 1)))),
    "dilated": (((2, 9, 8, 6), (2, 3, 1, 6)), sliding((1, 2), ((0, 0),) * 2, (3, 2))),
    "cut": (((2, 9, 8, 6), (2, 2, 1, 6)), sliding((1, 1), ((-2, 1), (1, -3)))),
    "spread": (((2, 5, 6), (3, 1, 6)), sliding((1,), ((2, 1),), (), (2,))),
    "multiplied": (((2, 7, 6), (3, 1, 18)), sliding((1,), ((1, 1),))),
    "pairs": (((2, 7, 12), (2, 2, 12)), sliding((1,), ((1, 0),))),
    "a volume": (((2, 4, 5, 3, 6), (2, 2, 2, 1, 6)), sliding((1,) * 3, ((1, 0),) * 3)),
}


@pytest.mark.parametrize("name", GROUPED)
def test_many_small_groups_are_native_with_their_adjoints(name: str) -> None:
    shapes, attrs = GROUPED[name]
    rng = np.random.default_rng(97)
    node = node_of(shapes, "f4", {**attrs, "groups": 6})
    graph = with_adjoint(node)
    convolutions = [each for each in graph.nodes if each.op is conv]
    assert len(convolutions) == 3
    assert all(map(is_product, convolutions))
    arrays = [drawn(rng, x.shape, "f4") for x in graph.inputs]
    assert_exact(graph, arrays, name)


def test_a_depthwise_step_goes_once_over_the_images() -> None:
    """With what is around it: nothing of that size is copied into another order."""
    rng = np.random.default_rng(98)
    x, f, c = (
        drawn(rng, shape, "f4")
        for shape in ((4, 8, 8, 16), (3, 3, 16, 1), (4, 8, 8, 16))
    )

    def slopes(x: Any, f: Any, c: Any) -> Any:
        def loss(x: Any, f: Any) -> Any:
            return tj.sum(tj.nn.depthwise_conv2d(x, f) * c)

        return tj.grad(loss, argnums=(0, 1))(x, f)

    with tj.config.override(native=True):
        function = tj.function(slopes)
        got = function(x, f, c)
        found = function.explain()
    for one, other in zip(got, slopes(x, f, c), strict=True):
        np.testing.assert_array_equal(one, other)
    assert found.on_numpy == []
    assert sum(kernel.reads >= x.nbytes for kernel in found.kernels) == 1


# What is fused


def kernels(body: Callable[..., Any], *arrays: Array) -> list[dict[str, int]]:
    """The operations of each kernel; all of it is native, and as eager."""
    tensors = [tj.asarray(x) for x in arrays]
    function = tj.function(body)
    with tj.config.override(native=True):
        got, expected = function(*tensors), body(*tensors)
        found = function.explain(*tensors)
    np.testing.assert_allclose(np.asarray(got), np.asarray(expected), rtol=2e-5)
    assert found.on_numpy == []
    return [kernel.ops for kernel in found.kernels]


def test_bias_and_activation_are_done_in_registers() -> None:
    rng = np.random.default_rng(83)
    x, w, b = (drawn(rng, s, "f4") for s in ((2, 9, 9, 16), (3, 3, 16, 24), (24,)))

    def layer(x: Any, w: Any, b: Any) -> Any:
        return tj.nn.relu(tj.nn.conv2d(x, w) + b)

    assert kernels(layer, x, w, b) == [{"copy": 1}, {"conv": 1, "add": 1, "maximum": 1}]


def test_without_padding_there_is_one_kernel() -> None:
    rng = np.random.default_rng(89)
    x, w = (drawn(rng, shape, "f4") for shape in ((2, 9, 9, 16), (3, 3, 16, 24)))

    def layer(x: Any, w: Any) -> Any:
        return tj.tanh(tj.nn.conv2d(x, w, padding="VALID"))

    assert kernels(layer, x, w) == [{"conv": 1, "tanh": 1}]


def test_an_update_of_filters_is_done_with_their_gradient() -> None:
    """And the input is put into zeros once, for both convolutions."""
    rng = np.random.default_rng(97)
    x, w = (drawn(rng, shape, "f4") for shape in ((2, 9, 9, 16), (3, 3, 16, 24)))

    def update(x: Any, w: Any) -> Any:
        with tj.GradientTape() as tape:
            tape.watch(w)
            loss = tj.sum(tj.nn.conv2d(x, w) ** 2)
        return w - 0.125 * tape.gradient(loss, w)

    found = kernels(update, x, w)
    assert [ops for ops in found if "conv" in ops] == [
        {"conv": 1, "mul": 1},
        {"conv": 1, "mul": 1, "sub": 1},
    ]
    assert sum(ops.get("copy", 0) + ops.get("place", 0) for ops in found) == 1


@pytest.mark.parametrize("name", ["rows", "strided", "groups"])
def test_the_source_says_the_same(name: str) -> None:
    rng = np.random.default_rng(101)
    shapes, attrs = LARGE[name]
    graph = with_adjoint(node_of(shapes, "f4", attrs))
    arrays = [drawn(rng, x.shape, "f4") for x in graph.inputs]
    part = part_of(graph)
    assert part is not None
    for x, y in zip(run_source(part, arrays), run_numpy(graph, arrays), strict=True):
        np.testing.assert_array_equal(x, y)


def test_a_value_that_is_not_finite_is_found() -> None:
    x, w = np.ones((2, 6, 6, 4), "f4"), np.ones((3, 3, 4, 8), "f4")
    x[1, 2, 3, 1] = np.inf
    layer = tj.function(lambda x, w: tj.sum(tj.where(tj.nn.conv2d(x, w) > 0, 1.0, 0.0)))
    assert float(layer(x, w)) == 576
    with tj.debug.check_numerics(), pytest.raises(tj.NonFiniteError, match="conv"):
        layer(x, w)
