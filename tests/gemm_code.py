"""Generated products as tests want them: cut up by the rules, and emitted."""

from __future__ import annotations

from typing import Any, NamedTuple

from tapejit.targets.cpu.matmul.micro_kernel import emit
from tapejit.targets.cpu.matmul.tiling import (
    Gemm,
    Hooks,
    Registers,
    Tiling,
    host_registers,
    tiling_of,
)


class EmittedProduct(NamedTuple):
    """The function of a product's tasks, and its tiling."""

    function: Any
    tiling: Tiling


def emit_product(
    module: Any,
    gemm: Gemm,
    name: str,
    hooks: Hooks | None = None,
    registers: Registers | None = None,
) -> EmittedProduct:
    """Add the function `name(table, task)` of a product to a module."""
    hooks = hooks or Hooks()
    tiling = tiling_of(gemm, registers or host_registers(), hooks.edges)
    return EmittedProduct(emit(module, tiling, name, hooks), tiling)
