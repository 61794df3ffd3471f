"""Why a Node is not part of native code, in words.

The questions are those of `native_ops.is_native`, asked one by one.

Start reading at `why_not_native`.
"""

from __future__ import annotations

from tapejit import ops
from tapejit.base.types import TensorType, is_complex
from tapejit.ir.interpret import has_dims
from tapejit.ir.node import Node
from tapejit.loops.native_ops import is_fused_product
from tapejit.ops.small_matrices import MOST_ROWS, is_small_matrix


def why_not_native(node: Node) -> str:
    """Half a sentence on a Node that `is_native` refuses.

    >>> from tapejit import ops
    >>> from tapejit.ir import param
    >>> why_not_native(ops.log(param("x", TensorType.parse("c64[3]"))))
    'complex numbers'
    >>> why_not_native(ops.exp(param("x", TensorType.parse("f32[n]"))))
    'sizes that are not fixed'
    """
    if node.op.is_effect:
        return "an effect"
    types = [node.type, *[x.type for x in node.inputs]]
    tensors = [kind for kind in types if isinstance(kind, TensorType)]
    if len(tensors) != len(types):
        return "several results"
    if not all(kind.is_static for kind in tensors) or has_dims(node):
        return "sizes that are not fixed"
    if any(is_complex(kind.dtype) for kind in tensors):
        return "complex numbers"
    if any(0 in kind.shape for kind in tensors):
        return "arrays without elements"
    if is_fused_product(node):
        return "no fused multiply-add in this processor"
    if node.op.scalar is not None:
        names = ", ".join(dict.fromkeys(kind.dtype.name for kind in tensors))
        return f"no native code for {names}"
    if node.op.on_arrays is is_small_matrix:
        return f"matrices of more than {MOST_ROWS} rows"
    if node.op.on_arrays is not None or node.op is ops.gather:
        return "no native code for these attributes"
    return "no native code for this operation"
