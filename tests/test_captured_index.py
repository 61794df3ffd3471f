"""NumPy arrays that a function reaches, indexed by tensors: inputs of one trace."""

from __future__ import annotations

import pickle
import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from agreement import COMPOSED, assert_agrees

import tapejit as tj

# Said once in a process; both modes say it.
pytestmark = pytest.mark.filterwarnings("ignore:a float64 NumPy array met a float32")

RNG = np.random.default_rng(3)
X = RNG.standard_normal((6, 3)).astype(np.float32)
WIDE = RNG.standard_normal((6, 3))
PIXELS = RNG.integers(0, 255, (6, 3)).astype(np.uint8)
LABELS = np.array([2, 0, 1, 1, 2, 0])
FLAGS = LABELS > 0
KEPT = SimpleNamespace(table=X * 2)
W = tj.Variable([0.5, -1.0, 2.0])

ONE = [tj.asarray(at) for at in range(6)]
SEVERAL = [tj.asarray(at) for at in ([0, 5], [3, 3], [-1, 2])]
PAIRS = [(tj.asarray(i), tj.asarray(j)) for i, j in ((0, 1), (5, 2), (-1, 0))]


def helper(i: Any) -> Any:
    return X[i] * 2


inner = tj.function(lambda i: WIDE[i] + 1)

ROWS: list[Any] = [
    lambda i: X[i],
    lambda i: X[i] + 1,
    lambda i: 2 * X[i] - X[0],
    lambda i: X[i] * W,
    lambda i: W * X[i],
    lambda i: tj.sum(X[i] * W),
    lambda i: X[i] @ W,
    lambda i: np.take(X, i, axis=0),
    lambda i: X.take(i, axis=0) / 3,
    lambda i: X[i, 1] * W,
    lambda i: X[i][..., 0] + X[i, 2],
    lambda i: X[i, 1:] * 2.0,
    lambda i: X.T[0][i] + 0.5,
    lambda i: (X + 1)[i],
    lambda i: X[i] * np.float64(2.0),
    lambda i: X[i] * np.sqrt(3.0) * W,
    lambda i: np.exp(X[i]),
    lambda i: np.maximum(X[i], 0) + np.where(X[i] > 0, X[i], 1),
    lambda i: np.sum(X[i], axis=-1),
    lambda i: X[i].sum() + X[i].mean(axis=-1),
    lambda i: X[i].reshape(-1)[0] * 3,
    lambda i: X[i].astype("float64") * 2,
    lambda i: X[LABELS[i]] - X[i],
    lambda i: X[i].T * W if X[i].ndim == 1 else X[i],
    lambda i: WIDE[i] * W,
    lambda i: WIDE[i, 0] * W,
    lambda i: WIDE[i, 0] * 2 + 1,
    lambda i: (WIDE[i, 0] - WIDE[i, 1]) * X[i, 0] * tj.sum(W),
    lambda i: X[i, 0] * 2.5,
    lambda i: X[i, 0] * WIDE[i, 1],
    lambda i: PIXELS[i] / 255,
    lambda i: PIXELS[i] / 255.0 * W,
    lambda i: PIXELS[i] * 2,
    lambda i: PIXELS[i] + PIXELS[i],
    lambda i: PIXELS[i].astype(np.float32) * W,
    lambda i: LABELS[i],
    lambda i: tj.one_hot(LABELS[i], 3) * W,
    lambda i: LABELS[i] % 2 == 0,
    lambda i: ~FLAGS[i],
    lambda i: KEPT.table[i] - X[i],
    lambda i: helper(i) + inner(i),
    lambda i: {"a": X[i], "b": [LABELS[i]]},
]


def both(body: Any, calls: Any, **settings: Any) -> Any:
    """The same results and dtypes from plain Python and from one trace, silently."""
    function = tj.function(body)
    with tj.config.override(**settings), warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "a float64 NumPy array met a float32")
        for args in calls:
            given = args if isinstance(args, tuple) else (args,)
            found, wanted = function(*given), body(*given)
            for one, other in zip(
                tj.tree.flatten(found)[0], tj.tree.flatten(wanted)[0], strict=True
            ):
                assert one.dtype == np.asarray(other).dtype
                assert one.shape == np.shape(other)
                assert_agrees(COMPOSED, np.asarray(one), np.asarray(other))
    return function


@pytest.mark.parametrize("at", range(len(ROWS)))
@pytest.mark.parametrize("indices", [ONE, SEVERAL], ids=["one", "several"])
def test_an_array_indexed_by_a_tensor_is_an_input(at: int, indices: Any) -> None:
    body = ROWS[at]
    try:
        body(indices[0])
    except (ValueError, TypeError):
        assert indices is SEVERAL, "a row by one index has to work"
        return
    assert both(body, indices).trace_count == 1


def test_more_kinds_of_indices() -> None:
    assert both(lambda i, j: X[i, j] * W + WIDE[i, j], PAIRS).trace_count == 1
    masks = [tj.asarray(np.arange(6) % n == 0) for n in (2, 2, 2)]
    assert both(lambda m: X[m] + 1, masks).trace_count == 1
    three = [tj.asarray(at) for at in ([[0, 1], [2, 3]], [[5, 5], [0, 0]])]
    assert both(lambda i: X[i, None, 0] * 2, three).trace_count == 1


def test_native_code_reads_the_array() -> None:
    large = RNG.standard_normal((3000, 8)).astype(np.float32)
    batches = [tj.asarray(RNG.integers(0, 3000, 16)) for _ in range(3)]
    for body in (lambda i: tj.sum(large[i] * 2, axis=1), lambda i: X[i % 6] @ W):
        function = both(body, batches, native=True)
        assert function.trace_count == 1
    function = tj.function(lambda i: large[i] - large[i + 1])
    function(tj.asarray(3))
    kinds = [str(x.type) for x in function.graph(tj.asarray(3)).inputs]
    assert kinds == ["i32[]", "f32[3000,8]"], "one input, however often it is read"


def test_a_training_step_on_captured_data() -> None:
    def train(decorate: Any) -> Any:
        w = tj.Variable(tj.zeros(3))

        def step(batch: Any) -> Any:
            with tj.GradientTape() as tape:
                loss = tj.mean((X[batch] @ w - LABELS[batch] / 2) ** 2)
            w.assign_sub(0.125 * tape.gradient(loss, w))
            return loss

        run = decorate(step)
        losses = [float(run(tj.asarray(b))) for b in ([0, 1], [2, 3], [4, 5], [0, 5])]
        return losses, w.numpy().tolist(), run

    found, plain = train(tj.function), train(lambda body: body)
    assert found[:2] == plain[:2]
    assert found[2].trace_count == 1


class Lookup:
    """An object that is called."""

    def __init__(self) -> None:
        self.x = X - 1

    def __call__(self, i: Any) -> Any:
        return self.x[i] * WIDE[i]


def test_closures_instances_and_methods() -> None:
    assert both(Lookup(), ONE).trace_count == 1
    own = X + 1

    class Data:
        def __init__(self) -> None:
            self.x = X * 3

        @tj.function
        def row(self, i: Any) -> Any:
            return self.x[i] + own[i]

    data = Data()
    for at in ONE:
        np.testing.assert_array_equal(data.row(at), data.x[int(at)] + own[int(at)])
    assert data.row.trace_count == 1
    assert type(data.x) is np.ndarray
    assert type(own) is np.ndarray


@pytest.mark.parametrize("fails", [False, True])
def test_the_arrays_are_put_back(fails: bool) -> None:
    own = np.arange(4.0)
    seen = []

    @tj.function
    def body(i: Any) -> Any:
        seen.append(own)
        if fails:
            raise KeyError("the body's own")
        return own[i] + X[i, 0]

    before = X
    for _ in range(2):
        if fails:
            with pytest.raises(KeyError, match="the body's own"):
                body(ONE[1])
        else:
            body(ONE[1])
    assert type(own) is np.ndarray
    assert X is before
    assert type(X) is np.ndarray
    assert isinstance(seen[0], np.ndarray)
    assert np.shares_memory(seen[0], own)
    assert repr(seen[0]) == repr(own)
    assert type(pickle.loads(pickle.dumps(seen[0]))) is np.ndarray


def test_the_value_is_that_of_the_moment() -> None:
    own = np.arange(4.0)
    read = tj.function(lambda i: own[i] * 2 + tj.zeros(()))
    assert float(read(ONE[1])) == 2.0
    own[1] = 50.0
    assert float(read(ONE[1])) == 2.0, "as the docs say of arrays"

    def changes(i: Any) -> Any:
        mine = np.zeros(3)
        KEPT.table[0] = 1.0
        first = KEPT.table[i] * 1
        KEPT.table[0] = 2.0
        return first + 10 * KEPT.table[i] + mine

    np.testing.assert_array_equal(tj.function(changes)(ONE[0]), np.full(3, 21.0))


def test_no_gradient_passes_an_array_and_errors_are_the_eager_ones() -> None:
    body = lambda i: X[i]
    for run in (body, tj.function(body)):
        for wrong in (tj.asarray(6), tj.asarray([0, -7]), tj.asarray(1.0)):
            with pytest.raises(IndexError):
                run(wrong)
    gradient = tj.grad(lambda w, i: tj.sum(w * X[i] * X[i]))
    both(lambda i: gradient(tj.ones(3), i), ONE)


@pytest.mark.parametrize(
    "body",
    [
        lambda i: tj.ones(3) * float(X[i, 0]),
        lambda i: tj.ones(3) * X[i].tolist()[0],
        lambda i: tj.asarray(np.cumsum(PIXELS[i])),
        lambda i: tj.ones(3) * (WIDE[i, 0] ** 2),
    ],
)
def test_what_needs_the_value_runs_eagerly(body: Any) -> None:
    function = tj.function(body)
    with pytest.warns(UserWarning, match="needs a value while it is traced"):
        function(ONE[0])
    for at in ONE:
        np.testing.assert_array_equal(function(at), body(at))
