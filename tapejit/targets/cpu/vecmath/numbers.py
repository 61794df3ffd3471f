"""Which table of numbers a Builder's format uses.

Start reading at `table_of`.
"""

from __future__ import annotations

from tapejit.targets.cpu.simd.vector import Builder, Format
from tapejit.targets.cpu.vecmath import coefficients
from tapejit.targets.cpu.vecmath.table import CoefficientTable


def table_of(b: Builder) -> CoefficientTable:
    """The polynomials and constants of the Builder's format."""
    return numbers_of(b.format)


def numbers_of(form: Format) -> CoefficientTable:
    """The polynomials and constants of a format."""
    return coefficients.F32 if form.bits == 32 else coefficients.F64


INFINITY = float("inf")
NAN = float("nan")
