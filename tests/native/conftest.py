"""What several tests of native code share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import tapejit as tj
from tapejit.loops.check import check_plan
from tapejit.loops.lower import lower
from tapejit.targets.cpu.target import CPUTarget


@pytest.fixture(scope="session", autouse=True)
def _plans_are_checked() -> Iterator[None]:
    """Of everything that these tests compile; it takes a millisecond for each."""
    schedule = CPUTarget.schedule

    def checked(*given: Any) -> Any:
        made = schedule(*given)
        if not tj.config.check:  # then it is checked anyway
            check_plan(made, "a test's graph")
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CPUTarget, "schedule", checked)
        yield


@pytest.fixture
def every_product_is_a_kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """However small; its code is not kept, since it is not what others would get."""

    def is_of_integers(x: Any, y: Any) -> bool:
        return bool(x.dtype.kind in "biu")

    monkeypatch.setattr(lower, "is_small_product", is_of_integers)
    with tj.config.override(cache=False):
        yield


@pytest.fixture
def with_native_code() -> Iterator[None]:
    """For the process: settings of a context have no native entries."""
    tj.config.update(native=True)
    yield
    tj.config.update(native=False)
