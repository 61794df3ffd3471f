"""Which operations on whole arrays have kernels, by the names of their records.

An emitter gets the `Emission`, the kernel and its Step, makes as many functions as it
needs and adds their launches. `ROOMS` says what memory of the arena an operation wants
for itself, in bytes: `kernel.rooms` then has it, by the same names.

Start reading at `EMITTERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from tapejit.loops.steps import Step

if TYPE_CHECKING:
    from tapejit.targets.cuda.kernel import SimtKernel
    from tapejit.targets.cuda.module import Emission

EMITTERS: Final[dict[str, Callable[[Emission, SimtKernel, Step], None]]] = {}
ROOMS: Final[dict[str, Callable[[Step], Mapping[str, int]]]] = {}
