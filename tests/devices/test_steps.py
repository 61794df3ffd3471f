"""Whole training steps through the emulated driver: what is asked of it, in order.

Memory there has borders, is poisoned when it is fresh and when it is freed, and every
address of a launch has to be alive; work happens when it is waited for.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator
from typing import Any

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

    assert_is_that_of_the_cpu(name, found, model)


def values_of(model: Any, optimizer: Any) -> list[bytes]:
    """The bits of all that a step writes."""
    return [x.numpy().tobytes() for x in (*model.variables, *optimizer.variables)]


def assert_is_that_of_the_cpu(name: str, losses: list[float], model: Any) -> None:
    """So many steps of a model there have the same losses and weights."""
    plain, batch, reference, _ = STEPS[name].made()
    wanted = [float(plain(*batch)) for _ in losses]
    assert wanted[-1] < wanted[0]
    np.testing.assert_allclose(losses, wanted, rtol=LOOSE.get(name, 1e-4))
    if name in LOOSE:
        return
    for x, y in zip(model.variables, reference.variables, strict=True):
        assert_agrees(COMPOSED, x.numpy(), y.numpy(), where=x.name)


def test_a_step_that_fails_in_the_middle_leaves_all_as_it_was(log: list[str]) -> None:
    step, (x, y), model, optimizer = STEPS["mlp"].made(GPU)
    losses = [float(step(x, y)) for _ in range(COUNT // 2)]
    before = values_of(model, optimizer)
    start = len(log)
    step(x, tj.asarray(np.full(8, 7, np.int32), device=GPU))  # of three classes
    step(x, y)  # nobody has waited: it changes nothing either
    assert not [line for line in log[start:] if line.startswith("synchronize")]
    with pytest.raises(IndexError, match=r"a label is from 0 to 2, got 7 at \[0\]"):
        tj.synchronize(GPU)
    assert values_of(model, optimizer) == before
    losses += [float(step(x, y)) for _ in range(COUNT // 2)]
    assert_is_that_of_the_cpu("mlp", losses, model)


def test_a_step_without_memory_leaves_all_as_it_was(
    log: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    step, batch, model, optimizer = STEPS["mlp"].made(GPU)
    # Who keeps losses keeps their memory, so that each step needs some of its own.
    losses = [step(*batch) for _ in range(COUNT // 2)]
    before = values_of(model, optimizer)
    pool = devices.device(0).pool
    pool.give_back()
    taken = tj.zeros(1000, device=GPU)
    with monkeypatch.context() as patch:
        patch.setattr(pool, "limit", pool.used)
        with pytest.raises(MemoryError, match=r"asked for; cuda:0 may use \d+ bytes"):
            step(*batch)
        assert values_of(model, optimizer) == before
        del taken  # which is enough
        losses += [step(*batch) for _ in range(COUNT // 2)]
    assert_is_that_of_the_cpu("mlp", list(map(float, losses)), model)
