"""The examples as a user starts them: as native code."""

from __future__ import annotations

import pytest
from test_examples import SHORT_FORMS, assert_runs

SAMPLE = ("quickstart.py", "logistic_newton.py")


@pytest.mark.parametrize("name", SHORT_FORMS)
def test_an_example_runs_natively(name: str, full: bool) -> None:
    assert set(SAMPLE) <= set(SHORT_FORMS)
    if not full and name not in SAMPLE:
        return
    assert_runs(name, TAPEJIT_NATIVE="1")
