"""The products of `gemm` with one thread, however many the run allows."""

from __future__ import annotations

from benchmarks.cases.gemm import cases_of

CASES = cases_of("gemm_serial", threads=1)
