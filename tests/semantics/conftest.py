"""Tells the harness which test is running, see `native_sample.py`."""

from __future__ import annotations

import pytest

from .native_sample import ONE_IN, SAMPLE


@pytest.fixture(autouse=True)
def _sample_of_native_programs(request: pytest.FixtureRequest, full: bool) -> None:
    SAMPLE.begin(request.node.nodeid, one_in=1 if full else ONE_IN)
