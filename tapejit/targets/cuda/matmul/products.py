"""Which products have kernels, and how those of a plan are cut.

Start reading at `tile_matmuls`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from tapejit.base.config import config
from tapejit.base.types import DType
from tapejit.loops.kernels import Choice, Kernel, LoopPlan, accumulator
from tapejit.loops.steps import Step, is_matmul
from tapejit.targets.cuda.matmul.contraction import contractions_of
from tapejit.targets.cuda.matmul.epilogue import tile_sums
from tapejit.targets.cuda.matmul.kernel import PARTS, emit_contraction
from tapejit.targets.cuda.matmul.tiling import MatmulTiling, tiling_of
from tapejit.targets.cuda.numerics import CUDANumerics
from tapejit.targets.cuda.target import CUDATarget

if TYPE_CHECKING:
    from tapejit.targets.cuda.kernel import SimtKernel
    from tapejit.targets.cuda.module import Emission


@dataclass(frozen=True)
class PhaseTilings(Choice):
    """The tilings of a product, of each phase if it has several."""

    phases: tuple[MatmulTiling, ...]


def tile_matmuls(plan: LoopPlan) -> LoopPlan:
    """The tiles of each product, by its sizes and what its epilogue adds up."""
    target = plan.nests.target
    assert isinstance(target, CUDATarget)
    kernels = (tiled(x, target.numerics) for x in plan.kernels)
    return replace(plan, kernels=tuple(kernels))


def tiled(kernel: Kernel, numerics: CUDANumerics) -> Kernel:
    """A kernel with the tiles of its product, if it is one."""
    product = kernel.array_op
    if product is None or not is_matmul(product):
        return kernel
    sums = tile_sums(kernel, accumulator(product.dtype))
    core = core_for(product.dtype, numerics)
    tilings = tuple(tiling_of(x, sums, core) for x in contractions_of(product))
    return replace(kernel, choices={product: PhaseTilings(tilings)})


def core_for(dtype: DType, numerics: CUDANumerics) -> str:
    """What multiplies: tensor cores take floats of 16 bits, others if that is set."""
    if numerics.tensor_cores and dtype.name in ("float16", "bfloat16"):
        return "mma"
    is_tf32 = numerics.tensor_cores and config.cuda_tf32 and dtype == np.float32
    return "tf32" if is_tf32 else "fma"


def tilings_of(kernel: Kernel, product: Step) -> tuple[MatmulTiling, ...]:
    """What `tiled` has chosen."""
    choice = kernel.choices[product]
    assert isinstance(choice, PhaseTilings)
    return choice.phases


def matmul_rooms(kernel: Kernel, product: Step) -> Mapping[str, int]:
    """What a product wants of the arena for itself, in bytes."""
    nbytes = max(x.part_bytes for x in tilings_of(kernel, product))
    return {PARTS: nbytes} if nbytes else {}


def emit_matmul(made: Emission, kernel: SimtKernel, product: Step) -> None:
    """The kernels of a product, with its epilogue, and their launches."""
    label = made.label
    for at, tiling in enumerate(tilings_of(kernel, product)):
        made.label = f"{label}_p{at}" if at else label
        emit_contraction(made, kernel, tiling)
