"""The words of the polling for signals, by number; `polling.py` says how it works.

They stand apart because a process that loads the code from a file needs no code
generator.

Start reading at `WORDS`.
"""

from __future__ import annotations

from typing import Final

SYMBOL: Final = "poll"

# Words of the module, by number: the main thread's identity, the ticks of the clock
# between two looks, functions of CPython, and how many times a variable was assigned
# that a call in flight writes.
MAIN_THREAD, PERIOD, GET_IDENT, ENSURE, CHECK_SIGNALS, RELEASE, ASSIGNED = range(7)
WORDS: Final = 7
