"""Products among rows: attention by hand, with no matrix of all pairs in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from agreement import COMPOSED, assert_agrees
from limits import set_limits

import tapejit as tj
from tapejit.ir import Graph
from tapejit.loops.schedule.schedule import Loop, loops_in
from tapejit.loops.steps import ArrayOp, Step, tiles_of
from tapejit.rewrite.pipeline import optimise
from tapejit.runtime import executable
from tapejit.runtime.native_entry import Frames
from tapejit.targets.cpu.module import build
from tapejit.targets.cpu.schedule import allocate
from tapejit.targets.cpu.target import CPU

from .compiled import WAYS_OF_TILES, assert_same_for_any_threads, limit_tiles

Program = Callable[..., list[tj.Tensor]]


def gradients(attend: Callable[..., tj.Tensor]) -> Program:
    """The value of an attention, and its gradients."""

    def program(q: tj.Tensor, k: tj.Tensor, v: tj.Tensor) -> list[tj.Tensor]:
        with tj.GradientTape() as tape:
            tape.watch([q, k, v])
            y = tj.tanh(attend(q, k, v))
            loss = tj.sum(y * y)
        return [loss, y, *tape.gradient(loss, [q, k, v])]

    return program


def plain(q: tj.Tensor, k: tj.Tensor, v: tj.Tensor) -> tj.Tensor:
    return tj.nn.softmax(q @ tj.matrix_transpose(k) / 3.0) @ v


def causal(q: tj.Tensor, k: tj.Tensor, v: tj.Tensor) -> tj.Tensor:
    scores = q @ tj.matrix_transpose(k)
    allowed = tj.asarray(np.tri(q.shape[-2], k.shape[-2], dtype=bool))
    return tj.nn.softmax(tj.where(allowed, scores, -1e9)) @ v


def gated(q: tj.Tensor, k: tj.Tensor, v: tj.Tensor) -> tj.Tensor:
    """No softmax: rows of any kind."""
    scores = q @ tj.matrix_transpose(k)
    weights = tj.nn.sigmoid(scores) / tj.sqrt(tj.sum(scores**2, axis=-1, keepdims=True))
    return weights @ v


def transposed(q: tj.Tensor, k: tj.Tensor, v: tj.Tensor) -> tj.Tensor:
    """Columns instead of rows: this one has to go through memory."""
    scores = k @ tj.matrix_transpose(q)
    return tj.matrix_transpose(tj.nn.softmax(scores, axis=-2)) @ v


def alone(q: tj.Tensor, k: tj.Tensor, v: tj.Tensor) -> tj.Tensor:
    """The weights have another user."""
    weights = tj.nn.softmax(q @ tj.matrix_transpose(k))
    return weights @ v + tj.max(weights, axis=-1, keepdims=True)


def divided(q: tj.Tensor, k: tj.Tensor, v: tj.Tensor) -> tj.Tensor:
    """Sums along rows that are needed only after the second product."""
    scores = q @ tj.matrix_transpose(k)
    powers = tj.exp(scores - tj.max(scores, axis=-1, keepdims=True))
    return powers @ v / tj.sum(powers, axis=-1, keepdims=True)


PROGRAMS = (plain, causal, gated, transposed, alone, divided)
ATTENTIONS = {f.__name__: f for f in PROGRAMS}
SHAPES = {
    "columns": ((2, 64), 96, 6),
    "one tile": ((2, 3, 64), 64, 9),
    "tiles": ((3, 512), 48, 16),
    "tiles and heads": ((2, 2, 96), 130, 7),
    "a rest": ((2, 2 * 131), 40, 8),
    "single head": ((1, 4, 80), 33, 5),
}


@pytest.fixture(params=WAYS_OF_TILES)
def small_limits(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_tiles(monkeypatch, request.param, most_rows=64)


def drawn(shape: str, dtype: str = "f4") -> list[tj.Tensor]:
    (*stack, time), others, features = (
        (*SHAPES[shape][0],),
        SHAPES[shape][1],
        SHAPES[shape][2],
    )
    rng = np.random.default_rng(0)
    sizes = [(*stack, x, features) for x in (time, others, others)]
    return [tj.asarray(rng.standard_normal(size).astype(dtype)) for size in sizes]


@pytest.mark.usefixtures("small_limits")
@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("shape", SHAPES)
def test_attention_in_blocks_of_rows_is_attention(attention: str, shape: str) -> None:
    program, tensors = gradients(ATTENTIONS[attention]), drawn(shape)
    expected = program(*tensors)
    with tj.config.override(native=True, cache=False):
        got = tj.function(program)(*tensors)
    for at, (ours, theirs) in enumerate(zip(got, expected, strict=True)):
        where = f"{attention}, {shape}, result {at}"
        assert_agrees(COMPOSED, ours.numpy(), theirs.numpy(), where=where)


@pytest.mark.usefixtures("small_limits")
@pytest.mark.parametrize("attention", ["plain", "causal"])
def test_the_source_computes_the_same(attention: str) -> None:
    program, tensors = gradients(ATTENTIONS[attention]), drawn("tiles and heads", "f8")
    expected = program(*tensors)
    names: dict[str, Any] = {}
    with tj.config.override(native=True, cache=False):
        exec(tj.function(program).source(*tensors), names)
    for ours, theirs in zip(
        names["run"](*[x.numpy() for x in tensors]), expected, strict=True
    ):
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-9, atol=1e-12)


@pytest.mark.usefixtures("small_limits")
def test_bits_do_not_depend_on_threads() -> None:
    program, tensors = tj.function(gradients(causal)), drawn("tiles")
    with tj.config.override(native=True, cache=False):
        assert_same_for_any_threads(
            lambda: [x.numpy().tobytes() for x in program(*tensors)]
        )


def graph_of(attention: Callable[..., tj.Tensor], time: int) -> Graph:
    rng = np.random.default_rng(0)
    arrays = rng.standard_normal((3, 4, time, 16)).astype("f4")
    function = tj.function(gradients(attention))
    return optimise(function.graph(*[tj.asarray(x) for x in arrays]))


def tiled_loops(items: list[Any]) -> list[Loop]:
    loops = [item for item in items if isinstance(item, Loop)]
    inner = [x for loop in loops for x in tiled_loops(loop.body)]
    return [loop for loop in loops if loop.tile] + inner


@pytest.mark.parametrize("attention", ["plain", "causal"])
def test_products_and_what_is_between_them_share_their_loops(attention: str) -> None:
    made = CPU.plan(graph_of(ATTENTIONS[attention], 512))
    shared = [
        kernel
        for kernel in made.kernels
        for loop in tiled_loops(kernel.items)[:1]
        if any(isinstance(x.what, ArrayOp) for x in loop.steps())
    ]
    assert len(shared) == 2, "forward and backward"


def test_memory_grows_with_the_length_and_not_with_its_square() -> None:
    sizes = [build(graph_of(plain, time), "attend").arena_size for time in (2048, 4096)]
    assert sizes[1] < 4 * 4096 * 4096 * 4 / 2, "no matrix of all pairs of a head"
    assert sizes[1] < 2.2 * sizes[0]


def mixed(x: tj.Tensor, w: tj.Tensor, v: tj.Tensor, u: tj.Tensor) -> list[tj.Tensor]:
    """Two products with weights that all rows share, one of them transposed."""
    with tj.GradientTape() as tape:
        tape.watch([x, w, v])
        h = tj.nn.softmax(x @ w)
        y = tj.nn.softmax(h @ v) @ tj.matrix_transpose(u)
        loss = tj.sum(y * y)
    return [loss, y, *tape.gradient(loss, [x, w, v])]


@pytest.mark.usefixtures("small_limits")
@pytest.mark.parametrize(
    ("sizes", "dtype"),
    [
        ((40, 70, 33), "f2"),
        ((256, 100, 64), "f4"),
        ((500, 96, 401), "f4"),
        ((500, 96, 401), "f8"),
    ],
    ids=str,
)
def test_weights_are_packed_for_all_rows(
    sizes: tuple[int, int, int], dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_limits(monkeypatch, unpacked_b_tiles=1)
    first, second, third = sizes
    rng = np.random.default_rng(0)
    shapes = [(3, 112, first), (first, second), (second, third), (70, third)]
    arrays = [(rng.standard_normal(x) / np.sqrt(x[-1])).astype(dtype) for x in shapes]
    tensors = [tj.asarray(x) for x in arrays]
    expected = mixed(*tensors)
    with tj.config.override(native=True, cache=False):
        function = tj.function(mixed)
        text, got = function.llvm(*tensors), function(*tensors)
    assert "_gemm_panels_" in text
    for at, (ours, theirs) in enumerate(zip(got, expected, strict=True)):
        where = f"{sizes}, result {at}"
        assert_agrees(COMPOSED, ours.numpy(), theirs.numpy(), where=where)


@pytest.mark.parametrize("attention", ["plain", "causal", "gated"])
def test_memory_of_a_tile_is_shared_by_what_is_not_there_at_once(
    attention: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Less than all of it together; and nothing is written over that is still read."""
    set_limits(monkeypatch, row_tile_recomputed_bytes=1)
    arguments = [np.zeros((3, 256, 32), "f4")] * 3
    graph = optimise(tj.function(gradients(ATTENTIONS[attention])).graph(*arguments))
    made = CPU.plan(graph)
    savings = []
    for kernel in made.kernels:
        order = {step: at for at, step in enumerate(kernel.steps())}
        used: dict[Any, list[int]] = {}
        for step, at in order.items():
            for x in (step, *step.needed(), *(leaf.source for leaf in step.needed())):
                memory = made.storage.get(x) if isinstance(x, Step) else None
                if memory is not None and memory.is_placed:
                    used.setdefault(memory, []).append(at)
        for one, places in used.items():
            assert one.offset + one.nbytes <= kernel.task_bytes
            for other, others in used.items():
                first, last = min(places), max(places)
                apart = last < min(others) or max(others) < first
                below = one.offset + one.nbytes <= other.offset
                above = other.offset + other.nbytes <= one.offset
                assert one is other or apart or below or above
        savings.append(sum(x.nbytes for x in used) - kernel.task_bytes)
    assert max(savings) > 0 or attention == "gated"


@pytest.mark.parametrize("attention", ["plain", "causal"])
def test_a_gradient_computes_weights_again_from_numbers_of_rows(
    attention: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The largest score of a row and the sum of its powers are kept; no matrix is."""
    set_limits(monkeypatch, row_tile_recomputed_bytes=1)
    arguments = [np.zeros((3, 256, 32), "f4")] * 3
    graph = optimise(tj.function(gradients(ATTENTIONS[attention])).graph(*arguments))
    made = build(graph, "again").plan
    names = Counter(
        step.op.name
        for kernel in made.kernels
        for step in kernel.steps()
        if step.op is not None
    )
    assert (names["max"], names["exp"]) == (1, 2)
    kept = [x for x in made.storage.values() if x.kernel is None and x.buffer is None]
    assert max(x.size for x in kept) <= 3 * 256 * 32
    bodies = [
        {x.op.name for x in loop.body if isinstance(x, Step) and x.op is not None}
        for kernel in made.kernels
        for loop in loops_in(kernel.items)
    ]
    assert [{"exp", "mul"} <= names for names in bodies].count(True) == 1, "one pass"


@pytest.mark.parametrize("cores", [1, 2, 3, 64, 65])
def test_tasks_share_parts_of_memory_with_those_that_are_over(
    cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are as many parts as processors, and some threads have to wait for one."""
    tensors = [tj.asarray(x) for x in np.ones((3, 6, 256, 32), "f4")]
    tensors = [
        tj.sin(x * at + tj.cumulative_sum(x, axis=1)) for at, x in enumerate(tensors)
    ]
    set_limits(monkeypatch, row_tile_recomputed_bytes=1)
    monkeypatch.setattr(allocate, "cores", lambda: cores)
    monkeypatch.setattr(executable, "EXECUTABLES", {})  # what it had may be another's
    with tj.config.override(native=True, cache=False):
        function = tj.function(gradients(plain))
        got = function(*tensors)
        sizes = {function.explain(*tensors).arena_bytes}
        with tj.set_num_threads(4):
            again = [function(*tensors) for _ in range(20)]
        monkeypatch.setattr(allocate, "cores", lambda: 65)
        monkeypatch.setattr(executable, "EXECUTABLES", {})
        other = tj.function(lambda *xs: gradients(plain)(*xs))
        expected = other(*tensors)
        sizes.add(other.explain(*tensors).arena_bytes)
    assert len(sizes) == (2 if cores < 6 else 1)
    for found in (got, *again):
        for x, y in zip(found, expected, strict=True):
            assert x.numpy().tobytes() == y.numpy().tobytes()


def test_kernels_have_the_same_memory_for_themselves_in_turn() -> None:
    arguments = [np.zeros((4, 1024, 32), "f4")] * 3
    graph = optimise(tj.function(gradients(plain)).graph(*arguments))
    built = build(graph, "memory")
    rooms = [x for kernel in built.plan.kernels for x in kernel.rooms.values()]
    own = [x.nbytes for x in rooms]
    assert sum(own) > max(own) > 0
    storage = built.plan.storage.values()
    shared = [x for x in storage if x.kernel is None and x.buffer is None]
    assert built.arena_size < sum(own) + sum({x: x.nbytes for x in shared}.values())


def test_the_first_call_and_the_later_ones_use_the_same_memory() -> None:
    """It is made by the entry that later calls have, not by another one as well."""
    arguments = [np.zeros((4, 512, 32), "f4")] * 3
    tj.config.update(native=True)
    try:
        f = tj.function(gradients(plain))
        made: list[int] = []
        new = Frames.new

        def counted(self: Frames) -> Any:
            made.append(self.arena_bytes)
            return new(self)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Frames, "new", counted)
            for _ in range(3):
                f(*arguments)
    finally:
        tj.config.update(native=False)
    assert len(made) == 1


def normalized(x: tj.Tensor, w: tj.Tensor) -> tj.Tensor:
    return tj.nn.layer_norm(x) @ w


def activated(x: tj.Tensor, w: tj.Tensor) -> tj.Tensor:
    return tj.nn.relu(2.0 * x + 1.0) @ w


def masked(x: tj.Tensor, w: tj.Tensor) -> tj.Tensor:
    """The gradient of an activation, on its way to the layer before."""
    return tj.where(x > 0, x * x, 0.0) @ tj.matrix_transpose(w)


def picked(x: tj.Tensor, w: tj.Tensor) -> tj.Tensor:
    """Rows of a table."""
    positions = np.arange(512) * 7 % x.shape[0]
    return tj.take(x, tj.asarray(positions), axis=0) @ w


def shared(x: tj.Tensor, w: tj.Tensor) -> tj.Tensor:
    """Two products of the same rows."""
    tile_rows = tj.exp(x)
    return (tile_rows @ w) * (tile_rows @ (w + 1.0))


PROLOGUES = {f.__name__: f for f in (normalized, activated, masked, picked, shared)}


@pytest.mark.parametrize("name", PROLOGUES)
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_what_goes_into_a_product_need_not_be_whole(name: str, dtype: str) -> None:
    program = PROLOGUES[name]
    rng = np.random.default_rng(0)
    arrays = [(rng.standard_normal(s) / 4).astype(dtype) for s in [(512, 256)] * 2]
    arrays[1] = arrays[1][:256]
    tensors = [tj.asarray(x) for x in arrays]
    expected = program(*tensors)
    with tj.config.override(native=True, cache=False):
        function = tj.function(program)
        got = function(*tensors)
        kernels = function.kernels(*tensors)
    assert_agrees(COMPOSED, got.numpy(), expected.numpy())
    (nest,) = [x for x in kernels if "matmul" in str(x) and "in tiles" in str(x)]
    products = {"shared": "matmul 2"}.get(name, "matmul")
    assert products in str(nest)
    assert not any("matmul" in str(x) for x in kernels if x is not nest)


def test_rows_that_others_need_are_whole() -> None:
    def program(x: tj.Tensor, w: tj.Tensor) -> list[tj.Tensor]:
        tile_rows = tj.exp(x)
        return [tile_rows @ w, tj.matrix_transpose(tile_rows) @ x]

    tensors = [tj.asarray(np.ones((512, 256), "f4") / 9) for _ in range(2)]
    tensors[1] = tensors[1][:256]
    with tj.config.override(native=True, cache=False):
        kernels = tj.function(program).kernels(*tensors)
    assert not any("in tiles" in str(x) and "matmul" in str(x) for x in kernels)


def test_a_stack_that_shares_an_operand_reads_as_it_runs() -> None:
    def program(x: tj.Tensor, w: tj.Tensor) -> tj.Tensor:
        return tj.tanh(x) @ w

    rng = np.random.default_rng(0)
    shapes = [(2, 3, 128, 96), (2, 1, 96, 72)]
    tensors = [tj.asarray(rng.standard_normal(x).astype("f4")) for x in shapes]
    with tj.config.override(native=True, cache=False):
        function = tj.function(program)
        got = function(*tensors)
        namespace: dict[str, Any] = {}
        exec(function.source(*tensors), namespace)
        (read,) = namespace["run"](*[x.numpy() for x in tensors])
    expected = program(*tensors).numpy()
    assert_agrees(COMPOSED, got.numpy(), expected)
    assert_agrees(COMPOSED, read, expected)


def test_tiles_that_are_tasks_add_to_no_sum() -> None:
    def program(x: tj.Tensor, w: tj.Tensor, g: tj.Tensor) -> list[tj.Tensor]:
        return [tj.exp(x) @ w, tj.matrix_transpose(tj.sin(x)) @ g]

    rng = np.random.default_rng(0)
    shapes = [(2048, 256), (256, 64), (2048, 64)]
    tensors = [tj.asarray(rng.standard_normal(x).astype("f4") / 4) for x in shapes]
    with tj.config.override(native=True, cache=False):
        function = tj.function(program)
        kernels = [str(x) for x in function.kernels(*tensors) if "matmul" in str(x)]
        with tj.set_num_threads(1):
            alone = function(*tensors)
        for _ in range(5):
            for ours, theirs in zip(function(*tensors), alone, strict=True):
                np.testing.assert_array_equal(ours.numpy(), theirs.numpy())
    assert sum("in tiles" in x for x in kernels) == 1
    assert len(kernels) == 2
    for ours, theirs in zip(alone, program(*tensors), strict=True):
        assert_agrees(COMPOSED, ours.numpy(), theirs.numpy())


def test_a_large_operand_is_not_read_again_for_every_tile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tensors = [tj.asarray(np.ones((512, 256), "f4"))] * 2
    tensors[1] = tensors[1][:256]
    with tj.config.override(native=True, cache=False):
        set_limits(monkeypatch, row_tile_operand_bytes=256 * 256 * 4 - 1)
        kernels = tj.function(activated).kernels(*tensors)
    assert len(kernels) == 2


@pytest.mark.parametrize("time", [256, 512])
def test_keys_and_values_of_a_head_are_packed_once(time: int) -> None:
    """For all tiles of its queries, in memory that tasks take turns with."""
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((5, time, 24)).astype("f4") / 4 for _ in range(3)]
    tensors = [tj.asarray(x) for x in arrays]
    program = gradients(plain)
    expected = program(*tensors)
    with tj.config.override(native=True, cache=False):
        function = tj.function(program)
        text, got = function.llvm(*tensors), function(*tensors)
    is_in_tiles = time > 256
    assert ("_gemm_panels_" in text) == is_in_tiles
    for ours, theirs in zip(got, expected, strict=True):
        assert_agrees(COMPOSED, ours.numpy(), theirs.numpy())


@pytest.mark.parametrize("stack", [(3, 5), (2, 2, 3), (7, 1)], ids=str)
def test_threads_share_matrices_of_small_stacks(stack: tuple[int, ...]) -> None:
    """A task has some matrices of the second axis, or some rows if there is none.

    Not where rows add up. Bits are the same on one thread.
    """
    rng = np.random.default_rng(0)
    shape = (*stack, 512, 16)
    tensors = [
        tj.asarray((rng.standard_normal(shape) / 3).astype("f4")) for _ in range(3)
    ]
    program = gradients(plain)
    expected = program(*tensors)
    with tj.config.override(native=True, cache=False):
        function = tj.function(program)
        got = function(*tensors)
        with tj.set_num_threads(1):
            alone = function(*tensors)
        kernels = [x for x in function.kernels(*tensors) if "in tiles" in str(x)]
    for ours, one, theirs in zip(got, alone, expected, strict=True):
        assert_agrees(COMPOSED, ours.numpy(), theirs.numpy())
        np.testing.assert_array_equal(ours.numpy(), one.numpy())
    outer = stack[0] * stack[1]
    tasks = {outer} if stack[1] > 1 else {outer, 2 * outer}
    assert {x.tasks for x in kernels} == tasks


def test_a_single_matrix_is_cut_into_tasks_that_leave_parts_of_sums() -> None:
    """Rows of one matrix are tasks, and keys and values get a gradient from all."""
    sizes = []
    for time in (4096, 8192):
        graph = optimise(
            tj.function(gradients(plain)).graph(*[np.zeros((time, 16), "f4")] * 3)
        )
        built = build(graph, "single")
        sizes.append(built.arena_size)
        cut = [
            (kernel, step)
            for kernel in built.plan.kernels
            for step in kernel.partials
            if isinstance(step.what, ArrayOp)
        ]
        assert [tiles_of(step).kind for _, step in cut] == ["sum", "sum"]
        assert {kernel.tasks for kernel, _ in cut} == {8}
    assert sizes[1] < 2.2 * sizes[0]


@pytest.mark.usefixtures("small_limits")
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_attention_of_a_single_matrix_is_attention(
    attention: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_limits(
        monkeypatch,
        threads_least_instructions=1,
        task_least_instructions=1,
        row_tile_result_ratio=0,
    )
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((size, 8)).astype("f4") for size in (320, 96, 96)]
    tensors = [tj.asarray(x) for x in arrays]
    program = gradients(ATTENTIONS[attention])
    expected, found = program(*tensors), []
    with tj.config.override(native=True, cache=False):
        function = tj.function(program)
        for threads in (1, 3):
            with tj.set_num_threads(threads):
                found.append([x.numpy() for x in function(*tensors)])
    for at, (x, y, theirs) in enumerate(zip(*found, expected, strict=True)):
        assert x.tobytes() == y.tobytes(), "bits depend on threads"
        assert_agrees(COMPOSED, x, theirs.numpy(), where=f"{attention}, result {at}")


def test_layers_of_a_network_keep_their_epilogues() -> None:
    """Bias, activation and update are done with tiles of a product, by all threads."""
    rng = np.random.default_rng(0)
    shapes = [(784, 512), (512, 256), (256, 10)]
    weights = [tj.Variable(rng.standard_normal(x).astype("f4") / 16) for x in shapes]
    optimizer = tj.optimizers.Adam(1e-3)

    @tj.function
    def step(x: tj.Tensor, labels: tj.Tensor) -> tj.Tensor:
        with tj.GradientTape() as tape:
            h = x
            for w in weights[:-1]:
                h = tj.nn.relu(h @ w)
            loss = tj.nn.sparse_softmax_cross_entropy(h @ weights[-1], labels)
        grads = tape.gradient(loss, weights)
        optimizer.apply_gradients(zip(grads, weights, strict=True))
        return loss

    with tj.config.override(native=True, cache=False):
        kernels = step.kernels(tj.ones((128, 784)), tj.zeros(128, dtype="int64"))
    products = [str(x) for x in kernels if "matmul" in x.ops]
    assert len(products) == 8
    assert not any("in tiles" in x for x in products)
    assert sum("sqrt" in x for x in products) == 3, "the update is an epilogue"
