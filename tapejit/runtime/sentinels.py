"""What native entries and those who call them both know.

`MISS` is what an entry returns for a call it was not made for. `TENSOR_CLASS` holds the
class of users' handles, which entries recognise and make: this layer does not know it,
so it is put here by the one that does. `DEVICE_ARRAYS` holds the class of arrays on
devices, once it is loaded. `FORKING` is 1 while the process is about to
fork: until then no entry begins to write over what a variable holds.
"""

from __future__ import annotations

from typing import Final

import numpy as np

TENSOR_CLASS: list[type] = []
DEVICE_ARRAYS: Final[set[type]] = set()
FORKING: Final = np.zeros(1, np.int64)


class Miss:
    """The class of `MISS`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "MISS"


MISS: Final = Miss()
