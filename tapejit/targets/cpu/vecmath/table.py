"""The shape of the table of numbers that each float format has.

Start reading at `CoefficientTable`; `coefficients.py` has what the polynomials
approximate.
"""

from __future__ import annotations

from typing import NamedTuple

Numbers = tuple[float, ...]


class CoefficientTable(NamedTuple):
    """Polynomials, lowest coefficient first, and constants, largest word first."""

    exp: Numbers
    log: Numbers
    log_pair: Numbers
    log1p: Numbers
    tanh: Numbers
    sin: Numbers
    cos: Numbers
    asin: Numbers
    atan: Numbers
    sinh: Numbers
    erf: Numbers
    log_erfc: Numbers
    erfc_rate: Numbers
    normal: Numbers
    erfcx: Numbers
    erfcx_low: Numbers
    ndtri: Numbers
    ndtri_low: Numbers
    ndtri_tail: Numbers
    stirling: Numbers
    gammaln_one: Numbers
    gammaln_two: Numbers
    digamma: Numbers
    digamma_root: Numbers
    cbrt: Numbers
    ln2: Numbers
    log2_e: Numbers
    log10_e: Numbers
    log10_2: Numbers
    half_pi: Numbers
    quarter_pi: Numbers
    pi: Numbers
    two_over_pi: Numbers
    stirling_constant: Numbers
    root_of_digamma: Numbers
    third: Numbers
    root_two_over_pi: Numbers
    root_two: Numbers
    erfcx_middle: float
    ndtri_map: Numbers
    ndtri_middle: float
    erf_last: float
    normal_map: Numbers
