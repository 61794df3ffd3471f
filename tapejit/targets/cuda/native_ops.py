"""What the CUDA target has kernels for.

Start reading at `why_no_kernel`.
"""

from __future__ import annotations

from tapejit.base.types import TensorType
from tapejit.ir.graph import Graph
from tapejit.ir.node import LITERAL, PARAM, Node, param
from tapejit.ir.structural import require, start
from tapejit.loops.native_ops import is_native
from tapejit.loops.reasons import why_not_native
from tapejit.loops.steps import ArrayOp, Step, is_matmul
from tapejit.rewrite.empty import is_empty, without_empty
from tapejit.targets.cuda.arrays.table import EMITTERS
from tapejit.targets.cuda.target import CUDA


def why_no_kernel(node: Node) -> str | None:
    """Half a sentence on a Node that kernels cannot compute; None of others.

    >>> from tapejit import ops
    >>> from tapejit.base.types import TensorType
    >>> why_no_kernel(ops.exp(param("x", TensorType.parse("f32[3]"))))
    >>> why_no_kernel(ops.log(param("x", TensorType.parse("c64[3]"))))
    'complex numbers'
    """
    if is_empty(node) or node.op in (start, require):
        return None
    if node.op in (LITERAL, PARAM):
        return None if isinstance(node.type, TensorType) else "no array"
    if any(map(is_empty, node.inputs)):
        graph = without_empty(Graph("alone", node.inputs, (node,)))
        (now,) = graph.outputs
        if now.op is not node.op or not any(map(is_empty, now.inputs)):
            reasons = map(why_no_kernel, graph.nodes)
            return next(filter(None, reasons), None)
    if not is_native(node, CUDA.supports):
        return why_not_native(node)
    if node.op.scalar is not None:
        return None
    inputs = [
        x if x.op is LITERAL else param(f"x{at}", x.type)
        for at, x in enumerate(node.inputs)
    ]
    copy = Node(node.op, tuple(inputs), node.attrs, node.type, node.origin)
    given = [x for x in inputs if x.op is PARAM]
    steps = CUDA.nests(Graph("alone", given, (copy,))).steps
    return next(filter(None, map(why_no_array_op, steps)), None)


def why_no_array_op(step: Step) -> str | None:
    """The same of an operation on whole arrays, None of other Steps."""
    if not isinstance(step.what, ArrayOp) or is_matmul(step):
        return None
    return None if step.name in EMITTERS else f"no kernel for {step.name}"
