"""The table by which every test that compares numbers judges: tapejit's own.

It is part of the package because `Function.verify` judges by it too. Here is what fails
where two results disagree.

Start reading at `assert_agrees`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tapejit.base.errors import Disagreement
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
    Array,
    Truth,
    difference,
    first_of,
    is_inexact,
    other_kind,
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


def assert_agrees(op_class: str, got: Any, truth: Any, *, where: str = "") -> None:
    """Fail unless `got` is as near to the truth as its class demands.

    >>> assert_agrees(TRANSCENDENTAL, np.exp(np.float32([1.0])), np.exp([1.0]))
    >>> try:
    ...     assert_agrees(EXACT, np.int32([1]), np.int32([2]), where="one")
    ... except Disagreement as error:
    ...     error.index, error.values
    ((0,), (np.int32(1), np.int32(2)))
    """
    got = np.asarray(got)
    value = np.asarray(truth.value if isinstance(truth, Truth) else truth)
    if got.shape != value.shape:
        raise Disagreement(f"{where}: {got.shape} is not {value.shape}")
    found = difference(op_class, got, truth)
    if found is not None:
        raise Disagreement(
            f"{where}: {found.count} of {found.size} elements disagree; at "
            f"{list(found.index)} got {found.got!r}, the truth is "
            f"{found.expected!r}: {found.what}",
            index=found.index,
            values=(found.got, found.expected),
            ulps=found.ulps,
        )


def assert_same_kind(got: Array, correct: Array, where: str) -> None:
    """Fail unless NaN, infinities and signs of zero are in the same places."""
    kind = other_kind(got, correct)
    if kind is not None:
        at = first_of(kind[1])
        raise Disagreement(
            f"{where}: {kind[0]} at {list(at)}: "
            f"got {got[at]!r}, the truth is {correct[at]!r}",
            index=at,
            values=(got[at], correct[at]),
        )
