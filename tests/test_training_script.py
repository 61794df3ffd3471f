"""A whole training script gives the same numbers eagerly and traced, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from programs.training_script import train

import tapejit as tj

STEPS = 100


@pytest.fixture(scope="module")
def eager() -> dict[str, Any]:
    """The outcome of plain Python."""
    return train(lambda body: body, STEPS)


def assert_same(outcome: dict[str, Any], expected: dict[str, Any]) -> None:
    assert outcome["history"] == expected["history"]
    assert outcome["accuracies"] == expected["accuracies"]
    assert outcome["step"] == expected["step"] == STEPS
    np.testing.assert_array_equal(outcome["generator"], expected["generator"])
    assert outcome["state"].keys() == expected["state"].keys()
    for name, value in expected["state"].items():
        np.testing.assert_array_equal(outcome["state"][name], value, err_msg=name)


def test_it_learns(eager: dict[str, Any]) -> None:
    assert eager["accuracies"][-1] > 0.9
    assert eager["history"][-1]["loss"] < 0.5 * eager["history"][0]["loss"]


def test_traced_it_does_the_same(
    eager: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = train(tj.function, STEPS)
    assert_same(outcome, eager)
    shown = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in shown] == ["50", "100"]
    step, averages, evaluate = outcome["functions"]
    # Clipped or not, printing or not; the rate is an input from its second value on.
    assert step.trace_count <= 5
    assert averages.trace_count == 0  # part of the step that calls it
    assert evaluate.trace_count == 1


def test_run_eagerly_it_does_the_same(eager: dict[str, Any]) -> None:
    with tj.config.override(eager=True):
        assert_same(train(tj.function, STEPS), eager)
