"""The examples' steps on the emulated device give what they give on the CPU.

`gpu_training` trains there itself; the test of the examples runs it.
"""

from __future__ import annotations

import pytest
from agreement import COMPOSED
from native.conditioning import steady_outputs

import tapejit as tj
from devices.example_calls import EXAMPLES, calls_of
from devices.graphs import emulated
from tapejit.base.tolerance import difference
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
        device = emulated(watch=False)  # the ladder looks for races
        with tj.config.override(soft_placement=True):
            executable = DeviceExecutable(graph, device)
            found = executable.run([upload(x, device) for x in arguments])
        for at, (x, y) in enumerate(zip(found, wanted, strict=True)):
            why = difference(COMPOSED, x.download(), y)
            if why is not None:  # rounding alone may change it by so much
                steady = steady_outputs(graph, arguments, seed=0, runs=30)
                assert not steady[at], f"{graph.name}, output {at}: {why}"
