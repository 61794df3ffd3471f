"""Emitting the native entry: words of its tables, objects, conditions, loops.

`EntryCode` has what every step of the entry is written in. It knows where things are in
the tables (`entry_tables.py`) and calls functions of CPython and NumPy by their
addresses there.

Start reading at `EntryCode`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tapejit.targets.cpu.call.entry_tables import HEADER, WORD, Record, Services, Words
from tapejit.targets.cpu.llvm import ir
from tapejit.targets.cpu.llvm.ir import Block, LLVMFunction, Type, Value

I8, I32, I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
POINTER = ir.PointerType()

SIGNATURES: Final[dict[Services, tuple[Type, tuple[Type, ...]]]] = {
    Services.Py_IncRef: (ir.VoidType(), (POINTER,)),
    Services.Py_DecRef: (ir.VoidType(), (POINTER,)),
    Services.PyContextVar_Get: (I32, (POINTER, POINTER, POINTER)),
    Services.PyDict_GetItem: (POINTER, (POINTER, POINTER)),
    Services.PyObject_CallNoArgs: (POINTER, (POINTER,)),
    Services.PyObject_CallOneArg: (POINTER, (POINTER, POINTER)),
    Services.PyObject_VectorcallMethod: (POINTER, (POINTER, POINTER, I64, POINTER)),
    Services.PyObject_RichCompareBool: (I32, (POINTER, POINTER, I32)),
    Services.PyErr_Fetch: (ir.VoidType(), (POINTER, POINTER, POINTER)),
    Services.PyErr_Restore: (ir.VoidType(), (POINTER, POINTER, POINTER)),
    Services.PyType_GenericAlloc: (POINTER, (POINTER, I64)),
    Services.PyEval_SaveThread: (POINTER, ()),
    Services.PyEval_RestoreThread: (ir.VoidType(), (POINTER,)),
    Services.PyArray_NewFromDescr: (
        POINTER,
        (POINTER, POINTER, I32, POINTER, POINTER, POINTER, I32, POINTER),
    ),
    Services.PyArray_SetBaseObject: (I32, (POINTER, POINTER)),
    Services.PyArray_Scalar: (POINTER, (POINTER, POINTER, POINTER)),
    Services.PyTuple_Size: (I64, (POINTER,)),
    Services.PyTuple_GetItem: (POINTER, (POINTER, I64)),
    Services.PyList_SetItem: (I32, (POINTER, I64, POINTER)),
    Services.PyDict_New: (POINTER, ()),
    Services.PyDict_SetItem: (I32, (POINTER, POINTER, POINTER)),
}
NULL: Final = ir.Literal(POINTER, None)


class EntryCode:
    """Where the function has got to, `b`, and the ways out of it.

    `refused` leaves before there is a frame; `missed` and `failed` (an exception is
    set) go through `leave`, which drops what the frame holds and frees it.
    """

    def __init__(self, function: LLVMFunction) -> None:
        self.function = function
        self.owner, self.arguments, self.count, self.names = function.args
        self.b = ir.IRBuilder(function.append_basic_block("start"))
        self.refused = function.append_basic_block("refused")
        self.missed = function.append_basic_block("missed")
        self.failed = function.append_basic_block("failed")
        self.leave = function.append_basic_block("leave")
        self.result = self.b.alloca(POINTER)
        self.made = self.b.alloca(POINTER)  # what is returned if all goes well
        self.found = self.b.alloca(POINTER)
        self.place = self.b.alloca(POINTER)
        self.frame_found = self.b.alloca(POINTER)
        self.number = self.b.alloca(I64)
        self.locked = self.b.alloca(I64)  # outputs whose variables' locks are held
        self.operands = self.pointers(2)  # of a method
        self.error = self.pointers(3)  # that waits until locks are released
        self.record = self.load(self.owner, HEADER)
        self.services = self.word(self.record, Record.services, POINTER)

    # Words

    def load(self, base: Value, offset: Value | int, kind: Type = POINTER) -> Value:
        """What stands some bytes after `base`."""
        return self.b.load(self.offset(base, offset), typ=kind)

    def offset(self, base: Value, offset: Value | int) -> Value:
        """The address some bytes after `base`."""
        distance = number(offset) if isinstance(offset, int) else offset
        return self.b.gep(base, [distance], source_etype=I8)

    def at(self, table: Value, index: Value | int) -> Value:
        """The address of a word of a table."""
        place = number(index) if isinstance(index, int) else index
        return self.b.gep(table, [place], source_etype=I64)

    def word(self, table: Value, index: Value | int, kind: Type = I64) -> Value:
        """A word of a table."""
        return self.b.load(self.at(table, index), typ=kind)

    def row(self, table: Record, columns: type[Words], at: Value) -> Value:
        """The address of a row of one of the record's tables."""
        start = self.word(self.record, table, POINTER)
        return self.offset(start, self.b.mul(at, number(WORD * len(columns))))

    def service(self, which: Services, kind: Type = I64) -> Value:
        return self.word(self.services, which, kind)

    def call(self, which: Services, *operands: Value) -> Value:
        """Call a function of CPython or NumPy."""
        result, kinds = SIGNATURES[which]
        return self.b.call(self.service(which, function_type(result, *kinds)), operands)

    def call_method(self, name: Services, owner: Value, *operands: Value) -> Value:
        """Call a method of an object."""
        given = (owner, *operands)
        for at, operand in enumerate(given):
            self.b.store(operand, self.at(self.operands, at))
        return self.call(
            Services.PyObject_VectorcallMethod,
            self.service(name, POINTER),
            self.operands,
            number(len(given)),
            NULL,
        )

    def pointers(self, count: int) -> Value:
        """Room for pointers."""
        memory = self.b.alloca(ir.ArrayType(POINTER, count))
        memory.type = POINTER
        return memory

    # Questions

    def count_differs(self, thing: Value, count: int) -> Value:
        """Whether the number of references to an object is another."""
        found = self.load(thing, self.service(Services.object_count), I32)
        return self.b.icmp_signed("!=", found, ir.Literal(I32, count))

    def has(self, flags: Value, flag: int) -> Value:
        wanted = ir.Literal(I32, flag)
        return self.b.icmp_signed("==", self.b.and_(flags, wanted), wanted)

    def as_word(self, pointer: Value) -> Value:
        return self.b.ptrtoint(pointer, I64)

    def differ(self, one: Value, other: Value) -> Value:
        return self.b.icmp_unsigned("!=", self.as_word(one), self.as_word(other))

    def is_null(self, pointer: Value) -> Value:
        return self.b.icmp_unsigned("==", self.as_word(pointer), number(0))

    def is_a(self, thing: Value, which: Services) -> Value:
        """Whether an object's class is exactly this one."""
        kind = self.load(thing, self.service(Services.object_class), I64)
        return self.b.icmp_unsigned("==", kind, self.service(which))

    # Ways

    def go_if(self, condition: Value, block: Block) -> None:
        """Go to `block` if the condition holds, else on."""
        further = self.function.append_basic_block()
        self.b.cbranch(condition, block, further)
        self.b.position_at_end(further)

    @contextmanager
    def loop(self, count: Value) -> Iterator[Value]:
        """What is written inside happens `count` times, with the index."""
        b = self.b
        before = b.block
        head = self.function.append_basic_block("head")
        body = self.function.append_basic_block("body")
        after = self.function.append_basic_block("after")
        b.branch(head)
        b.position_at_end(head)
        index = b.phi(I64)
        index.add_incoming(number(0), before)
        b.cbranch(b.icmp_signed("<", index, count), body, after)
        b.position_at_end(body)
        yield index
        index.add_incoming(b.add(index, number(1)), b.block)
        b.branch(head)
        b.position_at_end(after)


def number(value: int) -> Value:
    return ir.Literal(I64, int(value))


def function_type(result: Type, *operands: Type) -> Type:
    return ir.FunctionType(result, operands).as_pointer()
