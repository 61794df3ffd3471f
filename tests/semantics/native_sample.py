"""Which programs of a test also run as native code.

Compiling takes longer than everything else that is done with a program, so by default
one program in five is compiled, and all of them with `--full`. Where a test begins to
count depends on its name: each run takes the same ones, in whatever order and process
the tests are.
"""

from __future__ import annotations

from zlib import crc32

ONE_IN = 5


class Sample:
    """Counts the programs of a test; `takes_next` says whether the next one is in."""

    def __init__(self) -> None:
        self.begin("no test", one_in=ONE_IN)

    def begin(self, test: str, one_in: int) -> None:
        """A test starts: the first of its programs is the next."""
        self.number = crc32(test.encode())
        self.one_in = one_in

    def takes_next(self) -> bool:
        self.number += 1
        return self.number % self.one_in == 0


SAMPLE = Sample()
