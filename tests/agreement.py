"""The table by which every test that compares numbers judges: tapejit's own.

It is part of the package because `Function.verify` judges by it too.
"""

from __future__ import annotations

from tapejit.base.tolerance import (
    BOUNDS,
    COMPOSED,
    EXACT,
    FACTORED,
    POWER,
    PRODUCT,
    ROUNDED,
    SUM,
    TRANSCENDENTAL,
    Truth,
    assert_agrees,
    assert_same_kind,
    is_inexact,
    parts_of,
    round_to,
    ulps_between,
    widen,
)

__all__ = [
    "BOUNDS",
    "COMPOSED",
    "EXACT",
    "FACTORED",
    "POWER",
    "PRODUCT",
    "ROUNDED",
    "SUM",
    "TRANSCENDENTAL",
    "Truth",
    "assert_agrees",
    "assert_same_kind",
    "is_inexact",
    "parts_of",
    "round_to",
    "ulps_between",
    "widen",
]
