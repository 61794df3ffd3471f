"""Update rules and schedules against Keras's and PyTorch's, as recorded.

`fixtures/optimizers.json` says which versions it was recorded with;
`fixtures/make_optimizers.py` made it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tapejit as tj

FIXTURE = json.loads((Path(__file__).parent / "fixtures/optimizers.json").read_text())
RUNS = {run["case"]: run for run in FIXTURE["runs"]}
SCHEDULES = {found["case"]: found for found in FIXTURE["schedules"]}

# 20 steps round differently: Keras corrects bias in the dtype of the variable.
TOLERANCE = {"float64": 1e-12, "complex128": 1e-12, "float32": 1e-6}


def parts(row: Any) -> list[Any]:
    return [row[:6].reshape(3, 2), row[6:]]


def trajectory(run: dict[str, Any], decorate: Any) -> np.ndarray[Any, Any]:
    """The values after each step, a row for each."""
    start, gradients = np.array(FIXTURE["start"]), np.array(FIXTURE["gradients"])
    if run["dtype"] == "complex128":
        imaginary = np.array(FIXTURE["imaginary"])
        start, gradients = start + 1j * imaginary[0], gradients + 1j * imaginary[1:]
    variables = [tj.Variable(x.astype(run["dtype"])) for x in parts(start)]
    optimizer = getattr(tj.optimizers, run["optimizer"])(**run["arguments"])

    @decorate
    def step(g: Any, h: Any) -> None:
        optimizer.apply_gradients(zip([g, h], variables, strict=True))

    rows = []
    for row in gradients.astype(run["dtype"]):
        step(*map(tj.asarray, parts(row)))
        rows.append(np.concatenate([v.numpy().ravel() for v in variables]))
    assert int(optimizer.iterations) == len(gradients)
    return np.array(rows)


@pytest.mark.parametrize("case", RUNS)
def test_twenty_steps_are_those_of_the_other_library(case: str) -> None:
    run = RUNS[case]
    expected = np.array(run["values"])
    if run["dtype"] == "complex128":
        expected = expected[:, :8] + 1j * expected[:, 8:]
    found = trajectory(run, lambda f: f)
    assert found.dtype == run["dtype"]
    assert len(found) == 20
    scale = np.abs(expected).max()
    tolerance = TOLERANCE[run["dtype"]]
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance * scale)
    moved = np.abs(expected[-1] - expected[0]).max()
    assert moved > 1000 * tolerance * scale, "too small steps to be checked"


@pytest.mark.parametrize("case", RUNS)
def test_a_traced_step_gives_the_same_bits(case: str) -> None:
    eager = trajectory(RUNS[case], lambda f: f)
    traced = trajectory(RUNS[case], tj.function)
    assert eager.tobytes() == traced.tobytes()


def test_every_optimizer_is_recorded() -> None:
    recorded = {run["optimizer"] for run in RUNS.values()}
    others = {"Optimizer", "LossScaleOptimizer", "schedules"}  # no rules of their own
    assert recorded == set(tj.optimizers.__all__) - others


# Schedules


@pytest.mark.parametrize("case", SCHEDULES)
def test_rates_are_those_of_the_other_library(case: str) -> None:
    found = SCHEDULES[case]
    rate = getattr(tj.optimizers.schedules, found["schedule"])(**found["arguments"])
    eager = [rate(tj.asarray(step)) for step in range(20)]
    assert all(x.dtype == tj.float64 for x in eager)
    tolerance = 1e-12 if found["dtype"] == "float64" else 1e-6
    numbers = np.array([float(x) for x in eager])
    np.testing.assert_allclose(numbers, found["rates"], rtol=tolerance, atol=1e-8)

    traced = tj.function(rate)
    assert [float(traced(tj.asarray(step))) for step in range(20)] == list(numbers)
    assert traced.trace_count == 1


@pytest.mark.parametrize("case", SCHEDULES)
def test_an_optimizer_follows_its_schedule_in_one_trace(case: str) -> None:
    found = SCHEDULES[case]
    rate = getattr(tj.optimizers.schedules, found["schedule"])(**found["arguments"])
    optimizer = tj.optimizers.SGD(rate)
    w = tj.Variable(0.0, dtype="float64")
    step = tj.function(lambda g: optimizer.apply_gradients([(g, w)]))
    one = tj.ones((), dtype="float64")
    for at in range(20):
        before = w.numpy()
        assert float(optimizer.learning_rate) == float(rate(at))
        step(one)
        np.testing.assert_allclose(before - w.numpy(), float(rate(at)), atol=1e-15)
    assert step.trace_count == 1


def test_every_schedule_is_recorded() -> None:
    recorded = {found["schedule"] for found in SCHEDULES.values()}
    left = set(tj.optimizers.schedules.__all__) - recorded
    assert left == {"Constant", "Schedule"}


def test_a_schedule_takes_python_numbers_and_counts_far() -> None:
    decay = tj.optimizers.schedules.StepDecay(1.0, 2**26, 0.5)
    assert float(decay(2**26 - 1)) == 1.0
    assert float(decay(2**26)) == 0.5
    assert float(tj.optimizers.schedules.Constant(0.3)(5)) == 0.3


def test_schedules_compare_by_value() -> None:
    schedules = tj.optimizers.schedules
    decay = schedules.PiecewiseConstant([1, 2], [3.0, 2.0, 1.0])
    assert decay == schedules.PiecewiseConstant((1, 2), (3.0, 2.0, 1.0))
    assert len({decay, schedules.PiecewiseConstantDecay([1, 2], [3.0, 2.0, 1.0])}) == 1


@pytest.mark.parametrize(
    "make",
    [
        lambda s: s.ExponentialDecay(0.1, 0, 0.5),
        lambda s: s.StepDecay(0.1, -1, 0.5),
        lambda s: s.CosineDecay(0.1, 0),
        lambda s: s.CosineDecay(0.1, 5, warmup_target=1.0),
        lambda s: s.PolynomialDecay(0.1, 0),
        lambda s: s.Warmup(0.1, 0),
        lambda s: s.PiecewiseConstant([1, 2], [1.0, 2.0]),
        lambda s: s.PiecewiseConstant([2, 1], [1.0, 2.0, 3.0]),
    ],
)
def test_schedules_without_meaning_are_refused(make: Any) -> None:
    with pytest.raises(ValueError):
        make(tj.optimizers.schedules)
