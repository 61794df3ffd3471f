"""Generated products as tests want them: cut up by the rules, and emitted."""

from __future__ import annotations

from typing import Any

from tapejit.targets.cpu.matmul.micro_kernel import EmittedMatmul, emit
from tapejit.targets.cpu.matmul.tiling import (
    Gemm,
    Hooks,
    Registers,
    host_registers,
    tiling_of,
)


def emit_product(
    module: Any,
    gemm: Gemm,
    name: str,
    hooks: Hooks | None = None,
    registers: Registers | None = None,
) -> EmittedMatmul:
    """Add the function `name(table, task)` of a product to a module."""
    hooks = hooks or Hooks()
    tiling = tiling_of(gemm, registers or host_registers(), hooks.edges)
    return emit(module, tiling, name, hooks)
