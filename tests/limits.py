"""Other numbers of tuning and numerics, for a test.

Start reading at `set_limits`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tapejit.loops import numerics
from tapejit.targets.cpu.target import CPU

OWNERS: tuple[tuple[Any, str], ...] = (
    (CPU, "tuning"),
    (CPU, "numerics"),
    (numerics, "LOOPS"),
)


def set_limits(patch: pytest.MonkeyPatch, **limits: float) -> None:
    """Give fields of the CPU's tuning and numerics, or of the loops', other values.

    A Graph that was compiled before keeps its code as long as that is there.
    """
    for name, limit in limits.items():
        ((owner, kind),) = [x for x in OWNERS if hasattr(getattr(*x), name)]
        patch.setattr(owner, kind, replace(getattr(owner, kind), **{name: limit}))
