"""Products of matrices as kernels of their own.

Start reading at `why_no_matmul`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tapejit.base.errors import UnsupportedError
from tapejit.ir.node import Node, line_of
from tapejit.loops.steps import Step

if TYPE_CHECKING:
    from tapejit.targets.cuda.kernel import SimtKernel
    from tapejit.targets.cuda.module import Emission


def why_no_matmul(node: Node) -> str | None:
    """Why there is no kernel for a product; None if there is one."""
    return f"no kernel for products of matrices ({node.op.name})"


def matmul_rooms(step: Step) -> Mapping[str, int]:
    """What a product wants of the arena for itself, in bytes."""
    return {}


def emit_matmul(made: Emission, kernel: SimtKernel, step: Step) -> None:
    """The kernels of a product, with its epilogue, and their launches."""
    assert step.node is not None
    raise UnsupportedError(
        f"{why_no_matmul(step.node)} on a GPU", op=step.name, origin=line_of(step.node)
    )
