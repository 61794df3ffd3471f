"""Metrics: their numbers over several batches, eagerly and in traced functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tapejit as tj

metrics = tj.metrics
RNG = np.random.default_rng(5)


def over(metric: Any, *batches: Any, **options: Any) -> float:
    for batch in batches:
        metric.update(*batch, **options)
    return float(metric.result())


# Mean


def test_the_mean_of_everything_given() -> None:
    parts = [RNG.normal(size=shape) for shape in [(), (3,), (2, 4), (0,)]]
    every = np.concatenate([np.ravel(x) for x in parts])
    assert over(metrics.Mean(), *[(x,) for x in parts]) == np.float32(every.mean())


def test_weights_and_masks() -> None:
    values, weights = RNG.normal(size=(2, 3, 4))
    mean = metrics.Mean()
    mean.update(values, np.abs(weights))
    mean.update(values, [[1.0], [0.0], [2.0]])
    expected = np.average(
        [values, values],
        weights=[np.abs(weights), np.broadcast_to([[1.0], [0], [2]], (3, 4))],
    )
    np.testing.assert_allclose(mean.result(), expected, rtol=1e-6)
    mean.reset()
    mean.update([np.nan, np.inf, 3.0], [0, 0, 1])
    assert float(mean.result()) == 3
    with pytest.raises(tj.ShapeError, match=r"weights are f64\[2\], the values f64"):
        mean.update([1.0, 2.0, 3.0], [1.0, 2.0])
    assert float(mean.result()) == 3


def test_nothing_infinity_and_nan() -> None:
    mean = metrics.Mean()
    assert np.isnan(float(mean.result()))
    mean.update([1.0, np.inf])
    assert float(mean.result()) == np.inf
    mean.update(np.nan)
    assert np.isnan(float(mean.result()))
    mean.reset()
    mean.update([True, False])
    assert float(mean.result()) == 0.5


def test_counts_beyond_single_precision() -> None:
    mean = metrics.Mean()
    mean.weight.assign(2.0**24)
    mean.total.assign(2.0**24)
    mean.update(1.0)
    assert float(mean.weight) == 2**24 + 1


def test_a_metric_under_a_tape_takes_no_part_in_it() -> None:
    v = tj.Variable(3.0)
    mean = metrics.Mean()
    with tj.GradientTape() as tape:
        loss = v * v
        mean.update(loss)  # a tracked value that is assigned would warn
    assert float(tape.gradient(loss, v)) == 6
    assert float(mean.result()) == 9
    assert mean.trainable_variables == []


# Errors


def test_errors_of_predictions() -> None:
    found, wanted = RNG.normal(size=(2, 3, 5)).astype(np.float32)
    batches = list(zip(found, wanted, strict=True))
    distance = (found - wanted).astype(np.float64)
    for metric, expected in [
        (metrics.MeanSquaredError(), np.mean(distance**2)),
        (metrics.RootMeanSquaredError(), np.sqrt(np.mean(distance**2))),
        (metrics.MeanAbsoluteError(), np.mean(np.abs(distance))),
    ]:
        np.testing.assert_allclose(over(metric, *batches), expected, rtol=1e-6)
        with pytest.raises(tj.ShapeError):
            metric.update(found, wanted[:, :1])


# Accuracy

SCORES = np.array([[0.1, 0.7, 0.2], [0.5, 0.2, 0.3], [0.2, 0.2, 0.6]], np.float32)


@pytest.mark.parametrize("kind", ["MeanSquaredError", "Accuracy"])
def test_operands_by_the_names_of_keras(kind: str) -> None:
    metric, same = getattr(tj.metrics, kind)(), getattr(tj.metrics, kind)()
    given, truth = tj.asarray([1.0, 2.0]), tj.asarray([1.0, 4.0])
    metric.update(given, truth)
    same.update(y_true=truth, y_pred=given)
    assert metric.result() == same.result()
    with pytest.raises(TypeError, match=r"given twice.*y_pred="):
        metric.update(truth, y_pred=given)


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8"])
def test_sparse_accuracy(dtype: str) -> None:
    labels = np.array([1, 0, 0], dtype)
    third = np.float32(2 / 3)
    assert over(metrics.Accuracy(), (SCORES, labels)) == third
    assert over(metrics.Accuracy(), (SCORES, labels[:, None])) == third
    assert over(metrics.Accuracy("sparse"), (SCORES, labels)) == third
    assert over(metrics.Accuracy(), (SCORES, labels), weights=[1, 1, 0]) == 1
    stacked = np.stack([SCORES, SCORES]), np.stack([labels, labels])
    assert over(metrics.Accuracy(), stacked) == third
    assert over(metrics.Accuracy(), (SCORES[0], labels[0])) == 1


def test_categorical_accuracy() -> None:
    labels = np.eye(3)[[1, 0, 0]]
    assert over(metrics.Accuracy(), (SCORES, labels)) == np.float32(2 / 3)
    assert over(metrics.Accuracy(), (SCORES, labels.astype(int))) == np.float32(2 / 3)


def test_binary_accuracy() -> None:
    chances, labels = np.array([0.9, 0.4, 0.6, 0.1]), np.array([1, 1, 0, 0])
    for targets in (labels, labels.astype(float), labels > 0):
        assert over(metrics.Accuracy(), (chances, targets)) == 0.5
        assert over(metrics.Accuracy(), (chances[:, None], targets)) == 0.5
        assert over(metrics.Accuracy(), (chances, targets[:, None])) == 0.5
        assert over(metrics.Accuracy(), (chances[:, None], targets[:, None])) == 0.5
    logits = chances * 2 - 1
    assert over(metrics.Accuracy(threshold=0), (logits, labels)) == 0.5
    several = np.stack([chances, chances], 1), np.stack([labels, 1 - labels], 1)
    assert over(metrics.Accuracy("binary"), several) == 0.5


def test_exact_accuracy() -> None:
    assert over(metrics.Accuracy(), ([3, 4, 5, 6], [3, 4, 6, 6])) == 0.75
    assert over(metrics.Accuracy(), ([True, False], [True, True])) == 0.5
    assert over(metrics.Accuracy("exact"), ([0.5, 1.5], [0.5, 1.0])) == 0.5


def test_shapes_that_mean_nothing() -> None:
    accuracy = metrics.Accuracy()
    with pytest.raises(tj.ShapeError, match=r"predictions are f32\[3,3\], targets"):
        accuracy.update(SCORES, np.zeros(4, int))
    with pytest.raises(tj.ShapeError):
        metrics.Accuracy("categorical").update(SCORES, np.zeros(3, int))
    with pytest.raises(tj.ShapeError):
        metrics.Accuracy("sparse").update(SCORES, np.zeros(4, int))
    with pytest.raises(tj.ShapeError):
        metrics.Accuracy("binary").update(SCORES, np.zeros(3, int))
    with pytest.raises(TypeError, match="that name classes are integers"):
        accuracy.update(SCORES, np.zeros(3))
    with pytest.raises(ValueError, match="kind is one of"):
        metrics.Accuracy("dense")
    assert float(accuracy.weight) == 0


# In functions


@pytest.mark.parametrize("weights", [None, np.array([1.0, 0.0, 2.0])])
def test_traced_updates_are_eager_ones(weights: Any) -> None:
    def run(decorate: Any) -> list[Any]:
        kinds = [
            metrics.Mean(),
            metrics.Accuracy(),
            metrics.MeanSquaredError(),
            metrics.MeanAbsoluteError(),
            metrics.RootMeanSquaredError(),
        ]

        @decorate
        def step(scores: Any, labels: Any) -> Any:
            mean, accuracy, *errors = kinds
            mean.update(tj.sum(scores, axis=-1), weights)
            accuracy.update(scores, labels, weights)
            for metric in errors:
                metric.update(scores[:, 0], scores[:, 1], weights)
            return [metric.result() for metric in kinds]

        rng = np.random.default_rng(0)
        found: list[Any] = []
        for at in range(20):
            scores = rng.normal(size=(3, 4)).astype(np.float32)
            found += step(scores, rng.integers(0, 4, 3))
            if at == 10:
                for metric in kinds:
                    metric.reset()
        if decorate is tj.function:
            assert step.trace_count == 1
        states = [x for metric in kinds for x in metric.state_dict().values()]
        return [np.asarray(x) for x in [*found, *states]]

    for eager, traced in zip(run(lambda f: f), run(tj.function), strict=True):
        np.testing.assert_array_equal(eager, traced)


def test_a_reset_in_a_function() -> None:
    mean = metrics.Mean()

    @tj.function
    def epoch(values: Any) -> Any:
        mean.reset()
        mean.update(values)
        return mean.result()

    assert float(epoch(tj.asarray([1.0, 3.0]))) == 2
    assert float(epoch(tj.asarray([5.0, 7.0]))) == 6


def test_any_number_of_rows_in_one_trace() -> None:
    accuracy = metrics.Accuracy()
    specs = [tj.TensorSpec([None, 3]), tj.TensorSpec([None], "int64")]
    update = tj.function(accuracy.update, input_signature=specs)
    for rows in (3, 5, 7):
        update(tj.ones((rows, 3)), tj.zeros(rows, dtype="int64"))
    assert float(accuracy.weight) == 15
    assert update.trace_count == 1


def test_a_metric_of_ones_own() -> None:
    class Largest(metrics.Metric):
        def update(self, x: Any) -> None:
            self.accumulate(tj.max(x, axis=-1))

    assert over(Largest(), (SCORES,), (SCORES,)) == pytest.approx(0.6)


# Names and state


def test_state_and_looks() -> None:
    mean = metrics.Mean("loss")
    mean.update([1.0, 2.0])
    state = mean.state_dict()
    assert {name: float(x) for name, x in state.items()} == {"total": 3, "weight": 2}
    other = metrics.Mean()
    other.load_state_dict(state)
    assert float(other.result()) == 1.5
    assert repr(mean) == "Mean('loss')"
    assert [v.name for v in mean.variables] == ["loss.total", "loss.weight"]


def test_names_of_keras_lead_to_ours() -> None:
    for name, line in metrics.SPELLINGS.items():
        eval(line, {"tj": tj})
        with pytest.raises(AttributeError, match=f"{name}.*; write ") as caught:
            getattr(metrics, name)
        assert line in str(caught.value)
    with pytest.raises(AttributeError, match=r"use \.update"):
        _ = metrics.Mean().update_state
    with pytest.raises(AttributeError, match=r"use \.reset"):
        _ = metrics.Mean().reset_states


def test_calling_a_metric_says_what_to_write() -> None:
    with pytest.raises(TypeError, match=r"Mean: a metric is not called") as caught:
        tj.metrics.Mean()(1.0)
    assert "metric.update(predictions, targets)" in str(caught.value)
