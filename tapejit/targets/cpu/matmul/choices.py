"""Choices of matmuls: how each of a plan is cut, decided before code is made.

A `MatmulChoice` has the tiling of a matmul that is a kernel, a `ConvolutionChoice` that
of each phase of a convolution. `tiled_tiling` has those of matmuls inside of loops.

Start reading at `matmul_choice`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tapejit import ops
from tapejit.loops.kernels import Choice, Kernel
from tapejit.loops.schedule.schedule import cost, steps_in
from tapejit.loops.steps import Buffer, PartialSum, Step, partial_of
from tapejit.targets.cpu.matmul.tiling import (
    BatchAxis,
    Edges,
    Gemm,
    Strides,
    Tiling,
    host_registers,
    in_tasks,
    tiling_of,
)
from tapejit.targets.cpu.schedule.output_layout import result_strides
from tapejit.targets.cpu.target import CPU

if TYPE_CHECKING:
    from tapejit.targets.cpu.matmul.conv_tiling import Windows


@dataclass(frozen=True)
class MatmulChoice(Choice):
    """How a matmul is cut; if its tiling is ready, an operand is packed beforehand."""

    tiling: Tiling

    @property
    def tasks(self) -> int:
        """How many there are."""
        return self.tiling.tasks

    @property
    def which(self) -> int:
        """The operand whose panels may be packed beforehand."""
        return 0 if self.tiling.is_flipped else 1


@dataclass(frozen=True)
class ConvolutionChoice(Choice):
    """How each phase of a convolution is cut."""

    phases: tuple[tuple[Windows, Tiling], ...]

    @property
    def tasks(self) -> int:
        """How many there are, those of the first phase first."""
        return sum(tiling.tasks * windows.groups for windows, tiling in self.phases)


Known = dict[tuple[Gemm, Edges], MatmulChoice]  # layers have the same matmuls


def matmul_choice(
    kernel: Kernel, product: Step, checks: bool, known: Known
) -> MatmulChoice | ConvolutionChoice:
    """The tiling of a matmul that is a kernel, with an epilogue or without."""
    if product.op is not ops.matmul:
        # Here, because most programs have none.
        from tapejit.targets.cpu.matmul.conv_tiling import window_tiling, windows_of

        pairs = [
            (windows, window_tiling(windows, product.dtype, host_registers()))
            for windows in windows_of(product)
        ]
        return ConvolutionChoice(tuple(pairs))
    gemm, edges = gemm_of(product), edges_of(kernel, checks)
    made = known.get((gemm, edges))
    if made is None:
        tiling = tiling_of(gemm, host_registers(), edges)
        made = known[gemm, edges] = MatmulChoice(prepared(tiling))
    base, _, _ = product.views[made.which]
    if made.tiling.is_ready and isinstance(base, Buffer) and base.kind == "constant":
        return MatmulChoice(tiling_of(gemm, host_registers(), edges))
    return made


def prepared(made: Tiling) -> Tiling:
    """The same with B's panels packed beforehand, once for all tasks, where that pays.

    Then tasks are blocks of rows, of which A's part stays in a second cache: else B
    would be packed for each of them, or A come from far away for each panel.
    """
    gemm, tuning = made.gemm, CPU.tuning
    if not made.packs_b or gemm.batch:
        return made
    packs_again = made.row_blocks > 1 and gemm.m >= made.near_rows
    reads_again = not made.packs_a and gemm.m > 2 * made.near_rows
    is_large = gemm.operations >= tuning.prepacked_operations
    is_large = is_large and made.packed <= tuning.prepacked_b_bytes
    ready = replace(made, is_ready=is_large and (packs_again or reads_again))
    return in_tasks(ready, is_part=False) if ready.is_ready else made


def edges_of(kernel: Kernel, checks: bool) -> Edges:
    """What is done with a matmul that is in registers."""
    epilogue = list(steps_in(kernel.items[1:]))
    parts = [partial_of(x) for x in epilogue if isinstance(x.what, PartialSum)]
    is_brief = sum(map(cost, epilogue)) <= CPU.tuning.brief_epilogue_instructions
    return Edges(
        has_epilogue=bool(epilogue) or checks,
        is_brief=is_brief and not checks,
        unit=next((x.unit for x in parts if x.unit), 0),
        group=next((x.group for x in parts if x.group), 0),
    )


def gemm_of(product: Step) -> Gemm:
    """A product as the generator of products wants it, its result row by row."""
    x, y = product.performed.inputs
    views = product.views
    shape = tuple(map(int, product.performed.shape))
    *front, m, n = shape
    k = int(x.shape[-1])
    left, right = (
        aligned_strides(tuple(map(int, node.shape)), strides, len(front))
        for node, (_, _, strides) in zip((x, y), views, strict=True)
    )
    out = result_strides(product)
    batch = tuple(
        BatchAxis(size, left[at], right[at], out[at])
        for at, size in enumerate(front)
        if size != 1
    )
    a, b, c = (Strides(*x[-2:]) for x in (left, right, out))
    return in_few_matrices(Gemm(m, n, k, product.dtype, a, b, c, batch))


def aligned_strides(
    shape: tuple[int, ...], strides: Sequence[int], front: int
) -> tuple[int, ...]:
    """Strides for a stack of `front` axes: 0 where the operand is repeated."""
    missing = (0,) * (front - (len(shape) - 2))
    own = zip(shape, strides, strict=True)
    return (*missing, *(0 if size == 1 else step for size, step in own))


def in_few_matrices(gemm: Gemm) -> Gemm:
    """The same products as fewer and taller ones, where a stack shares its right side.

    What is made of the right side for one of them is then made for all.
    """
    while gemm.batch and gemm.n > 1:
        axis, m = gemm.batch[-1], gemm.m
        # One row has no stride of its own: the next matrix is the next row.
        rows = [axis.a, axis.c] if m == 1 else [gemm.a.row, gemm.c.row]
        if axis.b != 0 or [axis.a, axis.c] != [m * rows[0], m * rows[1]]:
            break
        gemm = replace(
            gemm,
            m=axis.size * m,
            a=gemm.a._replace(row=rows[0]),
            c=gemm.c._replace(row=rows[1]),
            batch=gemm.batch[:-1],
        )
    return gemm
