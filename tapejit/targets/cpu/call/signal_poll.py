"""Polling for Ctrl-C: LLVM for a function that long loops call.

    i64 poll(i8* arena)

Python runs the handlers of signals in its main thread, between two instructions of its
own. Native code is one instruction, however long it takes; so that Ctrl-C ends it all
the same, its long loops call `poll` now and then, and leave if it answers other than 0.

Most calls only look at the clock. Once per `PERIOD` the main thread takes the GIL and
has Python run the handlers. If one of them raises, the exception stays set in that
thread and a word of the arena (`INTERRUPTED`) is set, which all the threads that are at
work for the same call look at: their next `poll` makes them leave. They leave as well
if a handler assigns a variable that the call writes: the call has to be made again.

The words in `WORDS` are written from outside; the module names no external symbol, so
that it can be kept as an object.

Start reading at `poll_module`.
"""

from __future__ import annotations

import platform
from typing import Final

from tapejit.targets.cpu.call.signal_layout import (
    ASSIGNED,
    CHECK_SIGNALS,
    ENSURE,
    GET_IDENT,
    MAIN_THREAD,
    PERIOD,
    RELEASE,
    SYMBOL,
    WORDS,
)
from tapejit.targets.cpu.call.thread_driver import read_clock
from tapejit.targets.cpu.llvm import ir
from tapejit.targets.cpu.llvm.ir import IRBuilder, LLVMModule, Type, Value

# The arena begins with these words: the number of a failure, why the call is left (a
# handler of a signal has `RAISED`, or made it `OVERTAKEN` by an assignment), when
# signals were asked for (0: not yet in this call), and which parts of the memory for
# tasks are taken, as bits.
FAILURE: Final = 0
INTERRUPTED: Final = 1
LOOKED: Final = 2
TAKEN: Final = 3
RAISED, OVERTAKEN = 1, 2


I32, I64, POINTER = ir.IntType(32), ir.IntType(64), ir.PointerType()
POLL_TYPE = ir.FunctionType(I64, [POINTER])
_ZERO = ir.Literal(I64, 0)
CLOCKS: Final = frozenset({"x86_64", "amd64", "aarch64", "arm64"})


def poll_module() -> LLVMModule:
    """The module with `poll`, `words` (the address of the words) and `clock`.

    >>> [each.name for each in poll_module().functions if each.blocks]
    ['words', 'clock', 'poll']
    """
    module = ir.LLVMModule("tapejit_polling")
    kind = ir.ArrayType(I64, WORDS)
    words = ir.GlobalVariable(module, kind, "state")
    words.linkage, words.align = "internal", 64
    words.initializer = ir.Literal(kind, None)
    give = ir.LLVMFunction(module, ir.FunctionType(POINTER, []), "words")
    builder = ir.IRBuilder(give.append_basic_block("entry"))
    builder.ret(builder.gep(words, [_ZERO, _ZERO], inbounds=True))
    clock = ir.LLVMFunction(module, ir.FunctionType(I64, []), "clock")
    builder = ir.IRBuilder(clock.append_basic_block("entry"))
    builder.ret(read_clock(builder) if has_clock() else _ZERO)
    poll = ir.LLVMFunction(module, POLL_TYPE, SYMBOL)
    _Poll(ir.IRBuilder(poll.append_basic_block("entry")), words).emit(poll.args[0])
    return module


def has_clock() -> bool:
    """Whether the processor has a clock that is read without a call.

    >>> isinstance(has_clock(), bool)
    True
    """
    return platform.machine().lower() in CLOCKS


class _Poll:
    """Writes the function."""

    def __init__(self, builder: IRBuilder, words: Value) -> None:
        self.b = builder
        self.words = words

    def emit(self, arena: Value) -> None:
        b = self.b
        if not has_clock():
            b.ret(_ZERO)  # no clock that is cheap to read: such code runs to its end
            return
        flag = b.gep(arena, [ir.Literal(I64, INTERRUPTED)], source_etype=I64)
        raised = b.load_atomic(flag, "monotonic", 8, typ=I64)
        self.return_if(b.icmp_signed("!=", raised, _ZERO), raised)
        thread = self.call(GET_IDENT, I64)
        is_other = b.icmp_signed("!=", thread, self.word(MAIN_THREAD))
        self.return_if(is_other, _ZERO)
        looked = b.gep(arena, [ir.Literal(I64, LOOKED)], source_etype=I64)
        before, now = b.load(looked, typ=I64), read_clock(b)
        # The first look is at the clock only: many calls are over before the second.
        with b.if_then(b.icmp_signed("==", before, _ZERO)):
            b.store(now, looked)
            b.ret(_ZERO)
        passed = b.sub(now, before)
        is_early = b.icmp_unsigned("<=", passed, self.word(PERIOD))
        self.return_if(is_early, _ZERO)
        state = self.call(ENSURE, I32)
        assigned = self.word(ASSIGNED)
        failed = self.call(CHECK_SIGNALS, I32)
        is_overtaken = b.icmp_signed("!=", assigned, self.word(ASSIGNED))
        self.call(RELEASE, ir.VoidType(), state)
        b.store(read_clock(b), looked)  # from now on, however long the handlers took
        has_raised = b.icmp_signed("!=", failed, ir.Literal(I32, 0))
        self.return_if(b.not_(b.or_(has_raised, is_overtaken)), _ZERO)
        reasons = ir.Literal(I64, RAISED), ir.Literal(I64, OVERTAKEN)
        reason = b.select(has_raised, *reasons)
        b.atomic_rmw("xchg", flag, reason, "monotonic")
        b.ret(reason)

    def return_if(self, condition: Value, value: Value) -> None:
        with self.b.if_then(condition):
            self.b.ret(value)

    def word(self, at: int) -> Value:
        place = self.b.gep(self.words, [_ZERO, ir.Literal(I64, at)], inbounds=True)
        return self.b.load(place, typ=I64)

    def call(self, at: int, result: Type, *operands: Value) -> Value:
        """Call the function whose address is in a word."""
        signature = ir.FunctionType(result, [x.type for x in operands])
        address = self.b.inttoptr(self.word(at), signature.as_pointer())
        return self.b.call(address, operands)
