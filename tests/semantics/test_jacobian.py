"""Jacobians of tapes: shapes, structures, chunks, batches (lines 36 and 37)."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

import tapejit as tj
from tapejit.tape import derivative

from .both_modes import assert_modes, note, note_error, ways
from .test_gradient import Layer, Pair


def vector() -> Any:
    return tj.Variable([1.0, 2.0], name="x")


def rows() -> Any:
    return tj.Variable(np.arange(1.0, 7.0).reshape(3, 2), name="x")


# 36: jacobian


@pytest.mark.parametrize("target_shape", [(), (2,), (2, 3), (2, 1, 2), (0,), (2, 0)])
@pytest.mark.parametrize("source_shape", [(), (4,), (4, 2), (0,), (3, 0)])
def test_s36_its_shape_is_that_of_the_target_then_of_the_source(
    target_shape: tuple[int, ...], source_shape: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(0)
    at = rng.normal(size=source_shape)
    weight = rng.normal(size=(*target_shape, *source_shape))
    axes = tuple(range(len(target_shape), weight.ndim))

    def program(x: Any, weight: Any) -> Any:
        with tj.GradientTape() as tape:
            y = tj.sum(tj.sin(x) * weight, axis=axes)
        note(y.shape)
        return tape.jacobian(y, x)

    setup = lambda: (tj.Variable(at), tj.asarray(weight))
    found = assert_modes(program, setup, notes=[target_shape]).result
    assert found.shape == (*target_shape, *source_shape)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found.numpy(), weight * np.cos(at), rtol=1e-12)


def test_s36_structures_of_sources_and_of_targets() -> None:
    def program(a: Any, b: Any, unused: Any) -> Any:
        with tj.GradientTape(persistent=True) as tape:
            y = tj.stack([a[0] * b, a[1] * b, b])
            z = tj.sum(a * a)
        return [
            tape.jacobian(y, [a, b]),
            tape.jacobian(y, (a,)),
            tape.jacobian(y, {"w": a, "u": unused}),
            tape.jacobian(y, Pair(b, [a])),
            tape.jacobian(y, Layer(a, b)),
            tape.jacobian({"y": y, "z": z}, (a, b)),
            tape.jacobian([y, z], a),
            tape.jacobian(Pair(z, (y,)), b),
            tape.jacobian(y, []),
            tape.jacobian([], a),
        ]

    def setup() -> Any:
        return vector(), tj.Variable(3.0), tj.Variable([1.0])

    da, db = [[3.0, 0.0], [0.0, 3.0], [0.0, 0.0]], [1.0, 2.0, 1.0]
    expected = [
        [da, db],
        (da,),
        {"w": da, "u": None},
        Pair(db, [da]),
        Layer(da, db),
        {"y": (da, db), "z": ([2.0, 4.0], None)},
        [da, [2.0, 4.0]],
        Pair(None, (db,)),
        [],
        [],
    ]
    assert_modes(program, setup, expected=expected)


@pytest.mark.parametrize("fill", ["none", "zero", *tj.UnconnectedGradients])
def test_s36_unconnected_integer_and_empty_ones(fill: Any) -> None:
    def program(x: Any, w: Any, unwatched: Any) -> Any:
        with tj.GradientTape(persistent=True) as tape:
            y = x * x
            n = tj.astype(y, tj.int32)
            empty = x[:0] * 2.0
            wide = tj.reshape(empty, (0, 3))
        return [
            tape.jacobian(y, [x, w], unconnected_gradients=fill),
            tape.jacobian(n, x, unconnected_gradients=fill),
            tape.jacobian(n, [x]),
            tape.jacobian(empty, x),
            tape.jacobian(wide, x),
            tape.jacobian(x, x),
            tape.jacobian(unwatched, unwatched),
        ]

    def setup() -> Any:
        w = tj.Variable([[1.0, 2.0, 3.0]], dtype="float64")
        return vector(), w, tj.asarray([1.0, 2.0])

    is_zero = fill in ("zero", tj.UnconnectedGradients.ZERO)
    expected = [
        [[[2.0, 0.0], [0.0, 4.0]], np.zeros((2, 1, 3)) if is_zero else None],
        np.zeros((2, 2), np.float32) if is_zero else None,
        [None],
        np.zeros((0, 2), np.float32),
        np.zeros((0, 3, 2), np.float32),
        [[1.0, 0.0], [0.0, 1.0]],
        [[1.0, 0.0], [0.0, 1.0]],
    ]
    assert_modes(program, setup, expected=expected)


def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that grows by one entry each time a derivative's Graph is run."""
    runs: list[int] = []
    original = derivative.run_graph

    def counted(graph: Any, inputs: Any) -> Any:
        runs.append(1)
        return original(graph, inputs)

    monkeypatch.setattr(derivative, "run_graph", counted)
    return runs


def test_s36_it_is_one_batched_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = passes(monkeypatch)
    x = tj.Variable(np.linspace(0.0, 1.0, 50))
    with tj.GradientTape() as tape:
        y = tj.tanh(x * x)
    found = tape.jacobian(y, x)
    assert len(runs) == 1
    assert found.shape == (50, 50)


CHUNKS = [(1, 7), (2, 4), (3, 3), (6, 2), (7, 1), (100, 1), (None, 1)]


@pytest.mark.parametrize(("chunk_size", "count"), CHUNKS)
def test_s36_chunks_bound_the_rows_of_a_pass_and_give_the_same(
    monkeypatch: pytest.MonkeyPatch, chunk_size: int | None, count: int
) -> None:
    def program(x: Any) -> Any:
        with tj.GradientTape() as tape:
            y = tj.exp(x) * tj.sum(x)
        return tape.jacobian(y, x, chunk_size=chunk_size)

    at = np.linspace(0.5, 1.0, 7)
    plain = assert_modes(program, lambda: tj.Variable(at))
    whole = np.exp(at)[:, None] + np.diag(np.exp(at) * at.sum())
    np.testing.assert_allclose(plain.result.numpy(), whole, rtol=1e-12)
    # Counted eagerly: a function runs all passes as one Graph.
    runs = passes(monkeypatch)
    program(tj.Variable(at))
    assert len(runs) == count


def test_s36_a_chunk_has_at_least_one_row() -> None:
    def program(x: Any) -> Any:
        with tj.GradientTape() as tape:
            y = x * x
        note_error(lambda: tape.jacobian(y, x, chunk_size=0))
        note_error(lambda: tape.jacobian(y, x, chunk_size=-1))
        return tape.jacobian(y, x)

    errors = [(ValueError, "chunk_size")] * 2
    expected = [[2.0, 0.0], [0.0, 4.0]]
    assert_modes(program, vector, expected=expected, errors=errors)


# What derivatives cost is measured eagerly: a function compiles them into its own code.


def peak_of_jacobian(size: int, rows: int, chunk_size: int | None) -> int:
    """The most memory in use while a jacobian with a large inner value is taken."""
    x = tj.Variable(np.ones(rows))
    with tj.GradientTape() as tape:
        inner = tj.reshape(x, (rows, 1)) * np.ones(size)
        y = tj.sum(tj.tanh(inner), axis=1)
    tracemalloc.start()
    tape.jacobian(y, x, chunk_size=chunk_size)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def test_s36_chunks_bound_the_memory() -> None:
    whole = peak_of_jacobian(1000, 64, 64)
    chunked = peak_of_jacobian(1000, 64, 4)
    assert chunked < whole / 4


def test_s36_memory_is_bounded_without_being_asked() -> None:
    # All rows at once would need 400 MB for each inner value.
    assert peak_of_jacobian(200_000 // 16, 64, None) < 200 * 2**20


def test_s36_the_kernel_is_reused_from_call_to_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    built: list[int] = []
    original = derivative.batch

    def counted(*args: Any, **kwargs: Any) -> Any:
        built.append(1)
        return original(*args, **kwargs)

    monkeypatch.setattr(derivative, "batch", counted)
    for step in range(5):
        x = tj.Variable(np.full(3, 1.0 + step))
        with tj.GradientTape() as tape:
            y = tj.sin(x) * x + 1.25
        found = tape.jacobian(y, x)
        at = 1.0 + step
        np.testing.assert_allclose(
            np.diag(found.numpy()), np.cos(at) * at + np.sin(at), rtol=1e-12
        )
    assert len(built) == 1


def test_s36_jacobians_of_a_call_by_a_tape_around_it() -> None:
    def program(x: Any, w: Any) -> Any:
        return tj.sin(x) * w, tj.sum(x * x), w[0]

    def setup() -> Any:
        return tj.asarray([0.5, 1.0]), tj.Variable([2.0, 3.0])

    found = []
    for _, call in ways(program, setup):
        x, w = setup()
        with tj.GradientTape() as tape:
            tape.watch(x)
            results = call(x, w)
        found.append(
            tj.tree.map(
                lambda g: None if g is None else g.tolist(),
                tape.jacobian(results, [x, w]),
                none_is_leaf=True,
            )
        )
    assert all(x == found[0] for x in found)
    assert found[0][1] == [[1.0, 2.0], None]
    assert found[0][2] == [None, [1.0, 0.0]]


# 37: batch_jacobian


def test_s37_one_jacobian_per_row_of_the_batch() -> None:
    def program(x: Any) -> Any:
        with tj.GradientTape(persistent=True) as tape:
            y = tj.stack([x[:, 0] * x[:, 1], x[:, 0] ** 2, x[:, 1] ** 3], axis=1)
        whole = tape.jacobian(y, x)
        parts = tj.stack([whole[at, :, at, :] for at in range(3)])
        in_chunks = tape.batch_jacobian(y, x, chunk_size=2)
        return [tape.batch_jacobian(y, x), in_chunks, parts]

    at = np.arange(1.0, 7.0).reshape(3, 2)
    expected = np.stack(
        [[[b, a], [2 * a, 0.0], [0.0, 3 * b * b]] for a, b in at.tolist()]
    )
    plain = assert_modes(program, rows)
    for found in plain.result:
        assert found.shape == (3, 3, 2)
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-14)


@pytest.mark.parametrize("inner", [(2,), (2, 3), (1,), (2, 0)])
@pytest.mark.parametrize("source", [(4,), (4, 2), (1, 1)])
def test_s37_axes_after_the_first_are_kept(
    inner: tuple[int, ...], source: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(0)
    at, weight = rng.normal(size=(5, *source)), rng.normal(size=(*inner, *source))
    shape = (5, *(1,) * len(inner), *source)

    def program(x: Any) -> Any:
        with tj.GradientTape() as tape:
            wide = tj.reshape(tj.sin(x), shape)
            y = tj.sum(wide * weight, axis=tuple(range(1 + len(inner), wide.ndim)))
        note(y.shape)
        return tape.batch_jacobian(y, x)

    setup = lambda: tj.Variable(at)
    found = assert_modes(program, setup, notes=[(5, *inner)]).result
    assert found.shape == (5, *inner, *source)
    slope = np.cos(at).reshape(shape)
    np.testing.assert_allclose(found.numpy(), slope * weight, rtol=1e-12)


REFUSED = {
    "target of rank 1": ((3,), (3, 2)),
    "source of rank 1": ((3, 2), (3,)),
    "target of rank 0": ((), (3, 2)),
    "batches differ": ((2, 2), (3, 2)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_s37_rank_below_two_or_another_batch_is_a_value_error(name: str) -> None:
    target_shape, source_shape = REFUSED[name]

    def program(x: Any) -> Any:
        with tj.GradientTape() as tape:
            y = tj.sum(x * x) * tj.ones(target_shape)
        note_error(lambda: tape.batch_jacobian(y, x))
        return tape.gradient(y, x)  # the tape was not used up

    shapes = (target_shape, source_shape)
    plain = assert_modes(
        program,
        lambda: tj.Variable(np.ones(source_shape)),
        errors=[(ValueError, "batch_jacobian")],
    )
    assert all(str(shape) in plain.notes[0].text for shape in shapes)


def test_s37_it_takes_one_target_and_one_source() -> None:
    def program(x: Any) -> Any:
        with tj.GradientTape() as tape:
            y = x * x
        note_error(lambda: tape.batch_jacobian(target=[y], source=x))
        note_error(lambda: tape.batch_jacobian(target=y, source=[x]))
        return tape.batch_jacobian(y, x)

    names = ("target", "source")
    errors = [(TypeError, f"the {name} is one tensor.*list") for name in names]
    plain = assert_modes(program, rows, errors=errors)
    assert plain.result.shape == (3, 2, 2)


def test_s37_it_escapes_as_the_same_error() -> None:
    def program(x: Any) -> Any:
        with tj.GradientTape() as tape:
            y = x * x
        return tape.batch_jacobian(y, x)

    assert_modes(program, vector, raises=(ValueError, "batch_jacobian takes"))


def test_s37_unconnected_honours_none_and_zero() -> None:
    def program(x: Any, w: Any) -> Any:
        with tj.GradientTape(persistent=True) as tape:
            y = x * x
        return (
            tape.batch_jacobian(y, w),
            tape.batch_jacobian(y, w, unconnected_gradients="zero"),
        )

    def setup() -> Any:
        x = tj.Variable([[1.0, 2.0]])
        return x, tj.Variable([[1.0, 2.0, 3.0]], dtype="float64")

    assert_modes(program, setup, expected=(None, np.zeros((1, 2, 3))))


def test_s37_it_runs_once_for_all_rows_of_the_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs = passes(monkeypatch)
    x = tj.Variable(np.ones((20, 3)))
    with tj.GradientTape(persistent=True) as tape:
        y = tj.tanh(x * x)
    tape.batch_jacobian(y, x)
    assert len(runs) == 1
    assert tape.batch_jacobian(y, x, chunk_size=2).shape == (20, 3, 3)
    assert len(runs) == 3


def test_s37_a_dependence_across_the_batch_is_found_when_checking() -> None:
    def program(x: Any) -> Any:
        with tj.GradientTape() as tape:
            centred = x - tj.mean(x, axis=0)
        with tj.GradientTape() as other:
            apart = x * x
        note_error(lambda: tape.batch_jacobian(centred, x))
        return other.batch_jacobian(apart, x), tape.jacobian(centred, x)

    with tj.config.override(check=True):
        errors = [(ValueError, r"batch_jacobian.*row \d.*depends on row \d")]
        plain = assert_modes(program, rows, errors=errors)
    assert [x.shape for x in plain.result] == [(3, 2, 2), (3, 2, 3, 2)]

    def unchecked(x: Any) -> Any:
        with tj.GradientTape() as tape:
            centred = x - tj.mean(x, axis=0)
        return tape.batch_jacobian(centred, x)

    with tj.config.override(check=False):
        assert assert_modes(unchecked, rows).result.shape == (3, 2, 2)


def test_s37_a_batch_through_a_call() -> None:
    def program(x: Any, w: Any) -> Any:
        return tj.tanh(x @ w)

    def setup() -> Any:
        at = np.linspace(0.0, 1.0, 6).reshape(3, 2)
        return tj.asarray(at), tj.Variable(np.array([[1.0, 2.0], [3.0, 4.0]]))

    found = []
    for _, call in ways(program, setup):
        x, w = setup()
        with tj.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = call(x, w)
        found.append(tape.batch_jacobian(y, x).tolist())
    assert all(x == found[0] for x in found)
    x, w = setup()
    slope = 1 - np.tanh(x.numpy() @ w.numpy()) ** 2
    np.testing.assert_allclose(found[0], slope[:, :, None] * w.numpy().T, rtol=1e-12)
