"""Whole training steps through the emulated driver: what is asked of it, in order.

Memory there has borders, is poisoned when it is fresh and when it is freed, and every
address of a launch has to be alive; work happens when it is waited for.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator

import numpy as np
import pytest
from agreement import COMPOSED, assert_agrees

import tapejit as tj
from devices.training_steps import STEPS
from tapejit.runtime.cuda import devices
from tapejit.runtime.cuda.devices import Device
from tapejit.runtime.cuda.emulated import EmulatedDriver
from tapejit.runtime.cuda.recording import RecordingDriver

GPU = "cuda:0"
COUNT = 20
WARM = 6  # steps until each set of addresses has its graph
LOOSE = {"halves": 0.02}


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What is asked of a device of this test alone."""
    driver = RecordingDriver(EmulatedDriver())
    with tj.config.override(cuda="emulated"):
        own = Device(driver, 0, "emulated")
        monkeypatch.setitem(devices._DEVICES, ("emulated", 0), own)
        yield driver.log


@pytest.mark.parametrize("name", STEPS)
def test_twenty_steps(name: str, log: list[str]) -> None:
    step, batch, model, _ = STEPS[name].made(GPU)
    found, asked = [], []
    for _ in range(COUNT):
        gc.collect()
        start = len(log)
        loss = step(*batch)
        asked.append([re.sub(r"\d+", "", line) for line in log[start:]])
        found.append(float(loss))
        del loss
    # Nothing is waited for. Two sets of memory take turns, and once each has its graph
    # nothing else is asked for.
    waits = ("synchronize", "download")
    assert not [x for each in asked for x in each if x.startswith(waits)]
    assert all(each == asked[-1] for each in asked[WARM:])
    launches = ["launch graph"]
    if name == "cnn":  # a weight is read where its next value is made
        launches.append("launch tj_put_back")
    asked_last = [re.match(r"\w+ [a-z_]+", x) for x in asked[-1]]
    assert [x and x[0] for x in asked_last] == launches

    plain, batch, reference, _ = STEPS[name].made()
    wanted = [float(plain(*batch)) for _ in range(COUNT)]
    assert wanted[-1] < wanted[0]
    np.testing.assert_allclose(found, wanted, rtol=LOOSE.get(name, 1e-4))
    if name not in LOOSE:
        for x, y in zip(model.variables, reference.variables, strict=True):
            assert_agrees(COMPOSED, x.numpy(), y.numpy(), where=x.name)
