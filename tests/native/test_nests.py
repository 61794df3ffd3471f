"""Loop nests of every shape against plain Python: tiles, blocks, rests, shared code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from agreement import COMPOSED, assert_agrees
from limits import set_limits

import tapejit as tj
from tapejit import ops
from tapejit.base.types import TensorType
from tapejit.ir import Graph, param
from tapejit.loops.lower.lower import lower
from tapejit.loops.nests import Nests
from tapejit.loops.schedule.schedule import Loop
from tapejit.targets.cpu.module import build
from tapejit.targets.cpu.target import CPU

from .compiled import assert_same_for_any_threads, run_native, run_numpy

Arrays = list[np.ndarray[Any, Any]]


def logistic(w: tj.Tensor, x: tj.Tensor, y: tj.Tensor) -> list[tj.Tensor]:
    """One number per row, much work: tiles of rows."""
    with tj.GradientTape() as tape:
        tape.watch(w)
        z = x @ w
        loss = tj.mean(tj.logaddexp(0.0, z) - y * z)
    return [loss, tape.gradient(loss, w)]


def mixture(
    weights: tj.Tensor, means: tj.Tensor, factors: tj.Tensor, x: tj.Tensor
) -> list[tj.Tensor]:
    """Large accumulators under a long axis: blocks of vectors."""
    with tj.GradientTape() as tape:
        tape.watch([weights, means, factors])
        away = x[:, None, :] - means
        q = tj.einsum("kij,nkj->nki", factors, away)
        inner = weights - 0.5 * tj.sum(q * q, axis=-1)
        largest = tj.max(inner, axis=1, keepdims=True)
        total = tj.sum(tj.exp(inner - largest), axis=1)
        loss = tj.sum(tj.log(total) + largest[:, 0])
    return [loss, *tape.gradient(loss, [weights, means, factors])]


def normalised(x: tj.Tensor, scale: tj.Tensor) -> list[tj.Tensor]:
    """Rows in several passes, sums along rows and across them."""
    with tj.GradientTape() as tape:
        tape.watch([x, scale])
        mean = tj.mean(x, axis=1, keepdims=True)
        spread = tj.mean((x - mean) ** 2, axis=1, keepdims=True)
        loss = tj.sum(tj.sin((x - mean) / tj.sqrt(spread + 1e-3) * scale))
    return [loss, *tape.gradient(loss, [x, scale])]


def across(x: tj.Tensor) -> list[tj.Tensor]:
    """A softmax along the axis that is not next to each other in memory."""
    with tj.GradientTape() as tape:
        tape.watch(x)
        shares = tj.nn.softmax(x, axis=0)
        loss = tj.sum(shares * shares)
    return [loss, shares, tape.gradient(loss, x)]


def forms(x: tj.Tensor, factors: tj.Tensor) -> list[tj.Tensor]:
    """Small products in a loop: several rows of them go on together."""
    with tj.GradientTape() as tape:
        tape.watch([x, factors])
        y = tj.einsum("kij,nkj->nki", factors, x)
        loss = tj.sum(tj.tanh(y) * y)
    return [y, loss, *tape.gradient(loss, [x, factors])]


def drawn(*shapes: tuple[int, ...], dtype: str = "f8") -> Arrays:
    rng = np.random.default_rng(len(shapes))
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def siblings(x: tj.Tensor, *weights: tj.Tensor) -> list[tj.Tensor]:
    """Products of one matrix with several: more sums than registers hold."""
    total = tj.tanh(x @ weights[0])
    for w in weights[1:]:
        total = total + tj.tanh(x @ w)
    return [total]


def blocks(
    a: tj.Tensor, b: tj.Tensor, x: tj.Tensor, scale: tj.Tensor
) -> list[tj.Tensor]:
    """Blocks of vectors that load, far apart, what they have computed themselves."""
    with tj.GradientTape() as tape:
        tape.watch([a, b, x])
        loss = tj.var(a @ b + x) + tj.sum(tj.prod(x * scale, axis=(0, 1)))
    return [loss, *tape.gradient(loss, [a, b, x])]


def correlated(x: tj.Tensor) -> list[tj.Tensor]:
    """Blocks of vectors with a loop that has nothing but sums of products in it."""
    y = tj.tanh(x) / (1 + tj.max(x * x, axis=0))
    return [y, y @ tj.matrix_transpose(y), tj.sum(y * y, axis=0)]


PROGRAMS: dict[str, tuple[Callable[..., list[tj.Tensor]], Arrays]] = {
    **{
        f"logistic-{n}-{d}": (logistic, drawn((d,), (n, d), (n,), dtype="f4"))
        for n, d in ((33, 50), (1003, 50), (4096, 5), (40, 16), (31, 50))
    },
    **{
        f"mixture-{n}": (mixture, drawn((25,), (25, 10), (25, 10, 10), (n, 10)))
        for n in (37, 63, 64, 100, 1003)
    },
    **{
        f"normalised-{n}-{d}": (normalised, drawn((n, d), (d,), dtype="f4"))
        for n, d in ((3, 5), (17, 33), (300, 7), (64, 1000), (2000, 64))
    },
    **{
        f"forms-{n}-{k}-{d}": (forms, drawn((n, k, d), (k, d, d), dtype=dtype))
        for n, k, d, dtype in (
            (40, 3, 7, "f8"),
            (100, 25, 10, "f4"),
            (65, 4, 12, "f8"),
            (1003, 5, 15, "f4"),
            (300, 30, 9, "f8"),
        )
    },
    **{
        f"across-{n}-{d}": (across, drawn((n, d), dtype="f4"))
        for n, d in ((3, 5), (50, 33), (7, 300), (129, 64))
    },
    **{
        f"blocks-{k}-{d}-{dtype}": (
            blocks,
            drawn((2, 2, k), (k, d), (d,), (2, 2, d), dtype=dtype),
        )
        for k, d, dtype in ((127, 200, "f4"), (127, 203, "f8"))
    },
    **{
        f"correlated-{n}-{dtype}": (correlated, drawn((127, 2, n), dtype=dtype))
        for n, dtype in ((200, "f4"), (64, "f8"))
    },
    **{
        f"siblings-{count}": (siblings, drawn((40, 9), *count * [(9, 5)]))
        for count in (2, 5, 6, 9)
    },
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_nest_computes_what_plain_python_does(name: str) -> None:
    program, arrays = PROGRAMS[name]
    tensors = [tj.asarray(array) for array in arrays]
    expected = program(*tensors)
    with tj.config.override(native=True):
        got = tj.function(program)(*tensors)
    for at, (ours, theirs) in enumerate(zip(got, expected, strict=True)):
        where = f"{name}, result {at}"
        assert_agrees(COMPOSED, ours.numpy(), theirs.numpy(), where=where)


@pytest.mark.parametrize("name", ["logistic-1003-50", "mixture-1003"])
def test_results_are_the_same_for_any_number_of_threads(name: str) -> None:
    program, arrays = PROGRAMS[name]
    tensors = [tj.asarray(array) for array in arrays]
    with tj.config.override(native=True):
        function = tj.function(program)
        assert_same_for_any_threads(
            lambda: [x.numpy().tobytes() for x in function(*tensors)]
        )


def planned(graph: Graph) -> Any:
    return CPU.plan(graph)


def graph_of(name: str) -> Graph:
    program, arrays = PROGRAMS[name]
    function = tj.function(program)
    traced = function.graph(*[tj.asarray(array) for array in arrays])
    from tapejit.rewrite.pipeline import optimise

    return optimise(traced)


def test_rows_with_much_work_of_their_own_are_tiled() -> None:
    made = planned(graph_of("logistic-1003-50"))
    assert made.kernels[0].loop.tile == 16


def test_large_accumulators_are_blocked() -> None:
    made = planned(graph_of("mixture-1003"))
    assert any(k.loop is not None and k.loop.tile for k in made.kernels)


def test_kernels_that_do_the_same_are_one_function() -> None:
    x = param("x", TensorType.parse("f32[40]"))
    value = x
    for _ in range(8):
        total = ops.sum(value, axes=(0,), keepdims=True)
        value = ops.tanh(value / total)
    built = build(Graph("repeated", (x,), (value,)), "repeated")
    functions = [f for f in built.module.functions if "_k" in f.name and f.blocks]
    assert len(built.plan.kernels) > 2 * len(functions)


def test_parts_of_parts_do_not_double_with_every_level() -> None:
    x = param("x", TensorType.parse("f32[3]"))
    value = x
    for _ in range(12):
        value = ops.concat(value, value, axis=0)
    lowered = lower(Nests(Graph("doubled", (x,), (value,)), CPU))
    assert len(lowered.steps) < 100
    with tj.config.override(native=True):
        ours = tj.function(lambda t: tj.concat([tj.concat([t, -t])] * 2))(tj.ones(3))
    assert ours.numpy().tolist() == ([1.0] * 3 + [-1.0] * 3) * 2


def test_a_long_chain_is_no_deep_recursion() -> None:
    def chain(x: tj.Tensor) -> tj.Tensor:
        value = x
        for _ in range(1500):
            value = value + 1.0
        return value / tj.sum(value, axis=1, keepdims=True)

    x = tj.ones((4, 8))
    with tj.config.override(native=True):
        got = tj.function(chain)(x)
    np.testing.assert_array_equal(got.numpy(), chain(x).numpy())


def loops_in(items: list[Any]) -> list[Loop]:
    """Every loop, those inside of others too."""
    loops = [item for item in items if isinstance(item, Loop)]
    return loops + [inner for loop in loops for inner in loops_in(loop.body)]


def test_rows_of_products_go_on_together() -> None:
    made = planned(graph_of("mixture-1003"))
    loops = loops_in([item for kernel in made.kernels for item in kernel.items])
    assert max(loop.copies for loop in loops) > 1


def normed(x: tj.Tensor, w: tj.Tensor) -> tj.Tensor:
    centred = x - tj.mean(x, axis=-1, keepdims=True)
    return tj.tanh(centred / tj.sqrt(tj.sum(centred**2, axis=-1, keepdims=True)))


def contracted(x: tj.Tensor, w: tj.Tensor) -> tj.Tensor:
    """Rows of small products go on together."""
    return tj.exp(tj.einsum("ijk,ijkl->ijl", x, w) / 9)


@pytest.mark.parametrize("program", [normed, contracted])
@pytest.mark.parametrize("shape", [(3, 50, 16), (2, 7, 33), (8, 12, 20), (5, 6, 30)])
def test_tasks_share_two_loops_where_the_first_is_short(
    program: Callable[..., Any], shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    set_limits(monkeypatch, threads_least_instructions=1, task_least_instructions=1)
    arrays = drawn(shape, (*shape, 24), dtype="f4")
    graph = tj.function(program).graph(*arrays)
    kernels = build(graph, "shared").plan.kernels
    assert max(kernel.inner_tasks for kernel in kernels) == min(
        shape[1], CPU.tuning.most_tasks // shape[0]
    )

    def bits() -> list[bytes]:
        with tj.config.override(native=True, cache=False):
            return [tj.function(program)(*arrays).numpy().tobytes()]

    assert_same_for_any_threads(bits)
    got = np.frombuffer(*bits(), "f4")
    expected = program(*map(tj.asarray, arrays)).numpy().reshape(-1)
    assert_agrees(COMPOSED, got, expected)


ROW = 1 << 14  # 128 rows of it are 8 MB: large


def shares(x: tj.Tensor) -> tj.Tensor:
    return x / tj.sum(x * x, axis=1, keepdims=True)


@pytest.mark.parametrize("columns", [ROW, ROW + 8, ROW + 3])
def test_a_large_output_has_the_right_elements(columns: int) -> None:
    (x,) = drawn((129, columns), dtype="f4")
    with tj.config.override(native=True):
        got = tj.function(shares)(tj.asarray(x)).numpy()
    assert_agrees(COMPOSED, got, shares(tj.asarray(x)).numpy(), where=f"{columns}")


@pytest.mark.parametrize(
    ("rows", "columns", "does"),
    [(129, ROW, True), (129, ROW + 8, True), (129, ROW + 3, False), (3, ROW, False)],
)
def test_only_what_is_large_and_aligned_goes_past_the_caches(
    rows: int, columns: int, does: bool
) -> None:
    x = param("x", TensorType.parse(f"f32[{rows},{columns}]"))
    y = x / ops.sum(x * x, axes=(1,), keepdims=True)
    text = str(build(Graph("shares", (x,), (y,)), "shares").module)
    assert ("nontemporal" in text) is does


@pytest.mark.parametrize(("columns", "does"), [(1000, True), (20, False), (ROW, False)])
def test_the_next_row_is_asked_for_while_one_is_read_again(
    columns: int, does: bool
) -> None:
    x = param("x", TensorType.parse(f"f32[64,{columns}]"))
    y = x / ops.sum(x * x, axes=(1,), keepdims=True)
    text = str(build(Graph("shares", (x,), (y,)), "shares").module)
    assert ("llvm.prefetch" in text) is does


def test_rows_with_known_gaps_are_loaded() -> None:
    x = param("x", TensorType.parse("f64[3,1,7,3]"))
    rows = ops.reshape(x, shape=(3, 1, 21))
    y = ops.place(rows, shape=(3, 5, 30), starts=(0, 1, 3), steps=(1, 1, 1))
    graph = Graph("placed", (x,), (y,))
    (array,) = drawn((3, 1, 7, 3))
    (got,), (wanted,) = run_native(graph, [array]), run_numpy(graph, [array])
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("count", [2, 3, 27, 729, 100_003])
def test_equal_numbers_add_up_to_as_many_times_one(dtype: str, count: int) -> None:
    """Rounded once; added one after the other they would be off by hundreds of ULP."""

    @tj.function
    def sums(x: Any) -> Any:
        wide = tj.broadcast_to(x[:, None, None], (5, count, 2))
        total = tj.sum(wide * x[0], axis=(1, 2))
        return total, tj.sum(wide), tj.sum(wide, axis=1, keepdims=True)

    x = np.array([0.7967060208320618, -0.1, 3.3, -0.0, 1e-3], dtype)
    with tj.config.override(native=True, cache=False):
        products, all_of_them, columns = (found.numpy() for found in sums(x))
    exact = x.astype(np.longdouble) * count
    one = np.finfo(dtype).eps
    np.testing.assert_allclose(products, 2 * exact * x[0], rtol=2 * one)
    np.testing.assert_allclose(all_of_them, 2 * exact.sum(), rtol=8 * one)
    assert columns.shape == (5, 1, 2)
    np.testing.assert_allclose(columns[:, 0, 0], exact, rtol=one)
    assert not np.signbit(columns[3]).any(), "the sum of -0 is 0"


def test_positions_alone_are_checked_in_a_loop_of_their_own() -> None:
    """Nobody else needs a loop over these rows, which are no array."""
    x = param("x", TensorType.parse("f32[2,6,3]"))
    rows = ops.reshape(ops.iota(size=2), shape=(2, 1))
    columns = param("columns", TensorType.parse("i32[2,6]"))
    picked = ops.gather(x, rows, columns, axes=(0, 1))
    graph = Graph("picked", (x, columns), (picked,))
    (array,) = drawn((2, 6, 3), dtype="f4")
    places = np.arange(12, dtype="i4").reshape(2, 6) % 5
    (got,), (wanted,) = (
        run_native(graph, [array, places]),
        run_numpy(graph, [array, places]),
    )
    np.testing.assert_array_equal(got, wanted)
