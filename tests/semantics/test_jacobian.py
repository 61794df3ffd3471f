"""Jacobians of tapes: shapes, structures, chunks, batches (lines 36 and 37)."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

import tapejit as tj
from tapejit.tape import derivative

from .test_gradient import Layer, Pair


def shapes(x: Any) -> Any:
    """The shapes of the tensors of a structure, as strings so that they are leaves."""
    return tj.tree.map(
        lambda g: None if g is None else str(g.shape), x, none_is_leaf=True
    )


# 36: jacobian


@pytest.mark.parametrize("target_shape", [(), (2,), (2, 3), (2, 1, 2), (0,), (2, 0)])
@pytest.mark.parametrize("source_shape", [(), (4,), (4, 2), (0,), (3, 0)])
def test_s36_its_shape_is_that_of_the_target_then_of_the_source(
    target_shape: tuple[int, ...], source_shape: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(0)
    x = tj.Variable(rng.normal(size=source_shape))
    weight = rng.normal(size=(*target_shape, *source_shape))
    axes = tuple(range(len(target_shape), weight.ndim))
    with tj.GradientTape() as tape:
        y = tj.sum(tj.sin(x) * weight, axis=axes)
    assert y.shape == target_shape
    found = tape.jacobian(y, x)
    assert found.shape == (*target_shape, *source_shape)
    assert found.dtype == np.float64
    expected = weight * np.cos(x.numpy())
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12)


def test_s36_elementwise_functions_have_a_diagonal_one() -> None:
    x = tj.Variable([1.0, 2.0, 3.0])
    with tj.GradientTape() as tape:
        y = x * x
    assert tape.jacobian(y, x).tolist() == np.diag([2.0, 4.0, 6.0]).tolist()


def test_s36_the_result_has_the_structure_of_the_sources() -> None:
    a, b, unused = tj.Variable([1.0, 2.0]), tj.Variable(3.0), tj.Variable([1.0])
    with tj.GradientTape(persistent=True) as tape:
        y = tj.stack([a[0] * b, a[1] * b, b])
    assert shapes(tape.jacobian(y, [a, b])) == ["(3, 2)", "(3,)"]
    assert shapes(tape.jacobian(y, (a,))) == ("(3, 2)",)
    assert shapes(tape.jacobian(y, {"w": a, "b": b})) == {"w": "(3, 2)", "b": "(3,)"}
    assert shapes(tape.jacobian(y, Pair(b, [a]))) == Pair("(3,)", ["(3, 2)"])
    assert shapes(tape.jacobian(y, Layer(a, b))) == Layer("(3, 2)", "(3,)")
    assert tape.jacobian(y, []) == []
    assert tape.jacobian(y, [unused]) == [None]
    da, db = tape.jacobian(y, [a, b])
    assert da.tolist() == [[3.0, 0.0], [0.0, 3.0], [0.0, 0.0]]
    assert db.tolist() == [1.0, 2.0, 1.0]


def test_s36_a_structure_of_targets_gives_a_structure_of_results() -> None:
    x, w = tj.Variable([1.0, 2.0]), tj.Variable(2.0)
    with tj.GradientTape(persistent=True) as tape:
        y, z = x * w, tj.sum(x * x)
    found = tape.jacobian({"y": y, "z": z}, [x, w])
    assert shapes(found) == {"y": ["(2, 2)", "(2,)"], "z": ["(2,)", None]}
    assert found["y"][0].tolist() == [[2.0, 0.0], [0.0, 2.0]]
    assert found["y"][1].tolist() == [1.0, 2.0]
    assert found["z"][0].tolist() == [2.0, 4.0]
    first, second = tape.jacobian([y, z], x)
    assert (first.shape, second.shape) == ((2, 2), (2,))
    assert tape.jacobian(Pair(z, (y,)), w)[0] is None
    assert tape.jacobian([], x) == []


def test_s36_needs_no_persistent_tape() -> None:
    x = tj.Variable([1.0, 2.0, 3.0])
    with tj.GradientTape(persistent=False) as tape:
        y = tj.exp(x)
    np.testing.assert_allclose(
        tape.jacobian(y, x).numpy(), np.diag(np.exp([1, 2, 3])), rtol=1e-6
    )


@pytest.mark.parametrize("fill", ["none", "zero", *tj.UnconnectedGradients])
def test_s36_unconnected_sources_are_none_or_zeros(fill: Any) -> None:
    x, w = tj.Variable([1.0, 2.0]), tj.Variable([[1.0, 2.0, 3.0]], dtype="float64")
    with tj.GradientTape() as tape:
        y = x * x
    dx, dw = tape.jacobian(y, [x, w], unconnected_gradients=fill)
    assert dx.shape == (2, 2)
    if fill in ("none", tj.UnconnectedGradients.NONE):
        assert dw is None
    else:
        assert (dw.shape, dw.dtype) == ((2, 1, 3), np.float64)
        assert not dw.numpy().any()


def test_s36_an_integer_target_has_none() -> None:
    x = tj.Variable([1.0, 2.0])
    with tj.GradientTape(persistent=True) as tape:
        n = tj.astype(x * x, tj.int32)
    assert tape.jacobian(n, x) is None
    assert tape.jacobian(n, [x]) == [None]
    assert tape.jacobian(n, x, unconnected_gradients="zero").shape == (2, 2)


def test_s36_an_empty_target_has_an_empty_one() -> None:
    x = tj.Variable([1.0, 2.0])
    with tj.GradientTape(persistent=True) as tape:
        y = x[:0] * 2.0
        z = tj.reshape(y, (0, 3))
    assert tape.jacobian(y, x).shape == (0, 2)
    assert tape.jacobian(z, x).shape == (0, 3, 2)
    assert tape.jacobian(y, x).dtype == np.float32


def test_s36_a_target_that_is_the_source_has_the_identity() -> None:
    x, unwatched = tj.Variable([1.0, 2.0]), tj.asarray([1.0, 2.0])
    with tj.GradientTape(persistent=True) as tape:
        x * x
    assert tape.jacobian(x, x).tolist() == [[1.0, 0.0], [0.0, 1.0]]
    assert tape.jacobian(unwatched, unwatched).tolist() == [[1.0, 0.0], [0.0, 1.0]]


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


@pytest.mark.parametrize(
    ("chunk_size", "expected"), [(1, 7), (2, 4), (3, 3), (6, 2), (7, 1), (100, 1)]
)
def test_s36_chunks_bound_the_rows_of_a_pass(
    monkeypatch: pytest.MonkeyPatch, chunk_size: int, expected: int
) -> None:
    runs = passes(monkeypatch)
    x = tj.Variable(np.linspace(0.5, 1.0, 7))
    with tj.GradientTape() as tape:
        y = tj.exp(x) * tj.sum(x)
    found = tape.jacobian(y, x, chunk_size=chunk_size).numpy()
    assert len(runs) == expected
    at = x.numpy()
    whole = np.exp(at)[:, None] + np.diag(np.exp(at) * at.sum())
    np.testing.assert_allclose(found, whole, rtol=1e-12)


@pytest.mark.parametrize("chunk_size", [0, -1])
def test_s36_a_chunk_has_at_least_one_row(chunk_size: int) -> None:
    x = tj.Variable([1.0, 2.0])
    with tj.GradientTape() as tape:
        y = x * x
    with pytest.raises(ValueError, match="chunk_size"):
        tape.jacobian(y, x, chunk_size=chunk_size)
    assert tape.jacobian(y, x).shape == (2, 2), "a retry works"


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


# 37: batch_jacobian


def test_s37_one_jacobian_per_row_of_the_batch() -> None:
    x = tj.Variable(np.arange(1.0, 7.0).reshape(3, 2))
    with tj.GradientTape(persistent=True) as tape:
        y = tj.stack([x[:, 0] * x[:, 1], x[:, 0] ** 2, x[:, 1] ** 3], axis=1)
    found = tape.batch_jacobian(y, x)
    assert found.shape == (3, 3, 2)
    whole = tape.jacobian(y, x).numpy()
    rows = np.stack([whole[at, :, at, :] for at in range(3)])
    np.testing.assert_allclose(found.numpy(), rows, rtol=1e-14)


@pytest.mark.parametrize("inner", [(2,), (2, 3), (1,), (2, 0)])
@pytest.mark.parametrize("source", [(4,), (4, 2), (1, 1)])
def test_s37_axes_after_the_first_are_kept(
    inner: tuple[int, ...], source: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(0)
    x = tj.Variable(rng.normal(size=(5, *source)))
    weight = rng.normal(size=(*inner, *source))
    with tj.GradientTape() as tape:
        wide = tj.reshape(tj.sin(x), (5, *(1,) * len(inner), *source))
        y = tj.sum(wide * weight, axis=tuple(range(1 + len(inner), wide.ndim)))
    assert y.shape == (5, *inner)
    found = tape.batch_jacobian(y, x)
    assert found.shape == (5, *inner, *source)
    slope = np.cos(x.numpy()).reshape(5, *(1,) * len(inner), *source)
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
    x = tj.Variable(np.ones(source_shape))
    with tj.GradientTape() as tape:
        y = tj.sum(x * x) * tj.ones(target_shape)
    with pytest.raises(ValueError, match="batch_jacobian") as caught:
        tape.batch_jacobian(y, x)
    assert str(target_shape) in str(caught.value)
    assert str(source_shape) in str(caught.value)
    assert tape.gradient(y, x) is not None, "the tape was not used up"


@pytest.mark.parametrize("which", ["target", "source"])
def test_s37_it_takes_one_target_and_one_source(which: str) -> None:
    x = tj.Variable([[1.0, 2.0]])
    with tj.GradientTape() as tape:
        y = x * x
    arguments = {"target": y, "source": x}
    arguments[which] = [arguments[which]]
    with pytest.raises(TypeError, match=f"the {which} is one tensor.*list"):
        tape.batch_jacobian(**arguments)
    assert tape.batch_jacobian(y, x).shape == (1, 2, 2)


def test_s37_unconnected_honours_none_and_zero() -> None:
    x, w = tj.Variable([[1.0, 2.0]]), tj.Variable([[1.0, 2.0, 3.0]], dtype="float64")
    with tj.GradientTape(persistent=True) as tape:
        y = x * x
    assert tape.batch_jacobian(y, w) is None
    zeros = tape.batch_jacobian(y, w, unconnected_gradients="zero")
    assert (zeros.shape, zeros.dtype) == ((1, 2, 3), np.float64)
    assert not zeros.numpy().any()


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
    x = tj.Variable([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    with tj.GradientTape(persistent=True) as tape:
        centred = x - tj.mean(x, axis=0)
        apart = x * x
    with tj.config.override(check=True):
        with pytest.raises(ValueError, match=r"row \d.*depends on row \d"):
            tape.batch_jacobian(centred, x)
        assert tape.batch_jacobian(apart, x).shape == (3, 2, 2)
    with tj.config.override(check=False):
        assert tape.batch_jacobian(centred, x).shape == (3, 2, 2)


def test_s37_a_found_dependence_leaves_the_tape_usable() -> None:
    x = tj.Variable([[1.0, 2.0], [3.0, 4.0]])
    with tj.GradientTape() as tape:
        y = x - tj.mean(x, axis=0)
    with tj.config.override(check=True), pytest.raises(ValueError, match="jacobian"):
        tape.batch_jacobian(y, x)
    assert tape.jacobian(y, x).shape == (2, 2, 2, 2)
