"""The table that `Module.summary` gives.

Start reading at `Summary`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from tapejit.base.public import public
from tapejit.tape.variable import Variable

__all__ = ["Summary"]


@dataclass
class SummaryRow:
    """One module: the way to it, its class, and the variables that are its own."""

    path: str
    kind: str
    is_built: bool
    variables: dict[str, Variable] = field(default_factory=dict)

    def cells(self) -> tuple[str, str, str, str]:
        """What stands in the row."""
        texts = [f"{name} {v._tensor._type}" for name, v in self.variables.items()]
        if not self.is_built:
            texts.append("made at the first call")
        count = sum(map(size_of, self.variables.values()))
        return self.path, self.kind, ", ".join(texts), f"{count:,}"


@public("tapejit.nn")
class Summary:
    """A table of modules; `str` and `print` show it.

    `parameters` is the number of elements of all variables, `trainable` that of those
    which are trained.

    >>> import tapejit as tj
    >>> summary = tj.nn.BatchNorm(input_size=3).summary()
    >>> summary.parameters, summary.trainable, summary.bytes
    (12, 6, 48)
    """

    HEAD = ("name", "module", "variables", "parameters")

    def __init__(self, rows: list[SummaryRow]) -> None:
        variables = [v for row in rows for v in row.variables.values()]
        self.rows = [row.cells() for row in rows]
        self.parameters = sum(map(size_of, variables))
        self.trainable = sum(size_of(v) for v in variables if v.trainable)
        self.bytes = sum(size_of(v) * v.dtype.itemsize for v in variables)

    def __str__(self) -> str:
        table = [self.HEAD, *self.rows]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = []
        for *texts, count in table:
            cells = [x.ljust(width) for x, width in zip(texts, widths, strict=False)]
            lines.append("  ".join([*cells, count.rjust(widths[-1])]))
        total = f"{self.parameters:,} parameters, {self.trainable:,} of them trainable"
        return "\n".join([*lines, f"{total}, {in_words(self.bytes)}"])

    __repr__ = __str__


def size_of(variable: Any) -> int:
    """How many elements a variable has."""
    return math.prod(variable.shape)


def in_words(count: int) -> str:
    """A number of bytes as people write it.

    >>> in_words(160), in_words(3 << 20)
    ('160 bytes', '3.0 MiB')
    """
    if count < 1024:
        return f"{count} bytes"
    power = min((count.bit_length() - 1) // 10, 4)
    return f"{count / (1 << 10 * power):.1f} {'KMGT'[power - 1]}iB"
