"""Tells the harness which test is running (`native_sample.py`); the fixture `mode`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from .custom_gradients import MODES
from .native_sample import ONE_IN, SAMPLE


@pytest.fixture(autouse=True)
def _sample_of_native_programs(request: pytest.FixtureRequest, full: bool) -> None:
    SAMPLE.begin(request.node.nodeid, one_in=1 if full else ONE_IN)


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> Callable[[Any], Any]:
    """Plain Python, or traced."""
    return MODES[request.param]
