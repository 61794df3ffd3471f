"""The CPU as a Target: what it is called, what makes it fast, what fixes its bits.

Start reading at `CPU`.
"""

from __future__ import annotations

from typing import Final

from tapejit.targets.cpu.numerics import Numerics
from tapejit.targets.cpu.tuning import Tuning
from tapejit.targets.target import Target

CPU: Final = Target("cpu", Tuning(), Numerics())
