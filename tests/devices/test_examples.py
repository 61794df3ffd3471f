"""The examples' steps on the emulated device give what they give on the CPU.

`gpu_training` trains there itself; the test of the examples runs it.
"""

from __future__ import annotations

import pytest
from agreement import COMPOSED, assert_agrees

import tapejit as tj
from devices.example_calls import EXAMPLES, calls_of
from devices.graphs import emulated
from tapejit.runtime.cuda.arrays import upload
from tapejit.runtime.cuda.executable import DeviceExecutable

SAMPLE = ("linear_regression_adam", "eager_debugging")  # quick ones


@pytest.mark.parametrize("name", EXAMPLES)
def test_steps_of_an_example_agree(name: str, full: bool) -> None:
    if name not in SAMPLE and not full:
        pytest.skip("kernels that take long to compile: --full")
    calls = calls_of(name)
    assert calls
    for graph, arguments, wanted in calls:
        device = emulated()
        with tj.config.override(soft_placement=True):
            executable = DeviceExecutable(graph, device)
            found = executable.run([upload(x, device) for x in arguments])
        for at, (x, y) in enumerate(zip(found, wanted, strict=True)):
            assert_agrees(COMPOSED, x.download(), y, where=f"{graph.name}, output {at}")
