"""The kernel that puts back what a failed step was to replace.

A variable that is not written over has a new value in new memory, where the old one has
to be if the step fails. Nobody waits for that: the kernel looks at the mark.

Start reading at `put_back_text`.
"""

from __future__ import annotations

from tapejit.targets.cpu.llvm import ir
from tapejit.targets.cpu.llvm.ir import LLVMModule
from tapejit.targets.cpu.nest.addressing import I8, I64, number
from tapejit.targets.cuda.addressing import register
from tapejit.targets.cuda.kernel import GPUFunction
from tapejit.targets.cuda.target import CUDA


def put_back_text(name: str) -> str:
    """A module with a kernel of the words, new memory, old memory, and a size.

    >>> "ptx_kernel void @\\"put_back\\"" in put_back_text("put_back")
    True
    """
    threads = CUDA.numerics.block_threads
    module = LLVMModule(name)
    function = GPUFunction(module, name, threads)
    words, new, old = (function.parameter() for _ in range(3))
    nbytes = function.number()
    b = ir.IRBuilder(function.append_basic_block("entry"))
    first, thread = register(b, "ctaid.x"), register(b, "tid.x")
    at = b.add(b.mul(first, number(threads)), thread)
    mark = b.load(words, align=8, typ=I64)
    is_whole = b.icmp_signed("==", mark, number(-1))
    is_beyond = b.icmp_signed(">=", at, nbytes)
    with b.if_then(b.or_(is_whole, is_beyond)):
        b.ret_void()
    with b.loop(at, nbytes, CUDA.tuning.put_back_blocks * threads) as index:
        byte = b.load(b.gep(old, [index], source_etype=I8), align=1, typ=I8)
        b.store(byte, b.gep(new, [index], source_etype=I8), align=1)
    b.ret_void()
    return str(module)
