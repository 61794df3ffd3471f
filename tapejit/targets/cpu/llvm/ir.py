"""LLVM's language: modules, functions and instructions, written as text at once.

The methods have the names of llvmlite's `ir`, as far as they are used here. What
differs is what an instruction leaves behind: a line of text in its `Block`, and the
`Value` that others refer to. llvmlite keeps an object for each and prints them all in
the end: with it, both were two fifths of what Python did in a first call.

`values` has the types and values.

Start reading at `IRBuilder`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Final

from tapejit.targets.cpu.llvm.values import (
    BIT,
    POINTER,
    VOID,
    Alloca,
    ArrayType,
    DoubleType,
    FloatType,
    FunctionType,
    IntType,
    Late,
    Literal,
    LiteralStructType,
    Note,
    Phi,
    PointerType,
    StoreInstruction,
    Type,
    Undefined,
    Value,
    VectorType,
    VoidType,
    aligned,
)

__all__ = [
    "ArrayType",
    "Block",
    "DoubleType",
    "FloatType",
    "FunctionType",
    "GlobalVariable",
    "IRBuilder",
    "IntType",
    "LLVMFunction",
    "LLVMModule",
    "Literal",
    "LiteralStructType",
    "PointerType",
    "StoreInstruction",
    "Type",
    "Undefined",
    "Value",
    "VectorType",
    "VoidType",
]

# Modules


class LLVMModule:
    """Functions and constants, by name.

    With `marks_memory`, memory on the stack begins as NaN (see `IRBuilder.mark`).
    """

    def __init__(self, name: str = "", marks_memory: bool = False) -> None:
        self.name, self.marks_memory = name, marks_memory
        self.globals: dict[str, LLVMFunction | GlobalVariable] = {}
        self.metadata: list[Note] = []

    @property
    def functions(self) -> list[LLVMFunction]:
        """Those that are defined or declared."""
        return [x for x in self.globals.values() if isinstance(x, LLVMFunction)]

    def declared(
        self, name: str, result: Type, operands: Sequence[Type]
    ) -> LLVMFunction:
        """The function of this name, declared when it is first asked for."""
        known = self.globals.get(name)
        if known is None:
            return LLVMFunction(self, FunctionType(result, operands), name)
        assert isinstance(known, LLVMFunction)
        return known

    def add_metadata(self, operands: Sequence[Value | str]) -> Note:
        """A note of Values and strings; equal ones are made once."""
        made = Note(len(self.metadata), operands)
        for known in self.metadata:
            if known.text == made.text:
                return known
        self.metadata.append(made)
        return made

    def __str__(self) -> str:
        parts = [x.definition() for x in (*self.globals.values(), *self.metadata)]
        return "\n".join([f'; ModuleID = "{self.name}"', *parts, ""])


class GlobalValue(Value, ABC):
    """What modules are made of; its name is the only one of its kind."""

    __slots__ = ("linkage", "module", "name")

    def __init__(self, module: LLVMModule, kind: Type, name: str) -> None:
        super().__init__(PointerType(kind), f'@"{name}"')
        assert name not in module.globals, name
        self.module, self.name, self.linkage = module, name, ""

    @abstractmethod
    def definition(self) -> str:
        """What the module has of it, or a declaration."""


class GlobalVariable(GlobalValue):
    """Memory that a module comes with."""

    __slots__ = ("align", "global_constant", "initializer", "kind")

    def __init__(self, module: LLVMModule, kind: Type, name: str) -> None:
        super().__init__(module, kind, name)
        self.kind, self.align, self.global_constant = kind, 0, False
        self.initializer = Literal(kind, None)
        module.globals[name] = self

    def definition(self) -> str:
        kind = "constant" if self.global_constant else "global"
        words = [self.reference, "=", self.linkage, kind, str(self.initializer)]
        return " ".join(filter(None, words)) + aligned(self.align)


class LLVMFunction(GlobalValue):
    """A function: declared as long as it has no blocks."""

    __slots__ = ("args", "attributes", "blocks", "count")

    def __init__(self, module: LLVMModule, kind: FunctionType, name: str) -> None:
        super().__init__(module, kind, name)
        self.blocks: list[Block] = []
        self.attributes: set[str] = set()
        self.count = 0  # of names that are taken
        self.args = tuple(Value(x, f"%{self.new_name()}") for x in kind.args)
        module.globals[name] = self

    def new_name(self, about: str = "") -> str:
        """A name that no value or block of the function has."""
        self.count += 1
        return f"{about}.{self.count}"

    def append_basic_block(self, about: str = "") -> Block:
        """A block that comes after those that are there."""
        made = Block(self, self.new_name(about))
        self.blocks.append(made)
        return made

    def definition(self) -> str:
        word = "define" if self.blocks else "declare"
        words = [word, self.linkage, str(self.function_type.return_type)]
        operands = ", ".join(map(str, self.args))
        name = f"{self.reference}({operands})"
        head = " ".join(filter(None, [*words, name, *sorted(self.attributes)]))
        if not self.blocks:
            return f"{head}\n"
        lines = (line for block in self.blocks for line in block.text())
        return "\n".join([head, "{", *lines, "}", ""])


class Block(Value):
    """Instructions that follow each other; the last one says where to go on."""

    __slots__ = ("function", "is_terminated", "lines", "name")

    def __init__(self, function: LLVMFunction, name: str) -> None:
        super().__init__(Type("label"), f"%{name}")
        self.function, self.name = function, name
        self.lines: list[str | Late] = []
        self.is_terminated = False

    def text(self) -> list[str]:
        """The label and the instructions."""
        lines = [x if isinstance(x, str) else x.line() for x in self.lines]
        return [f"{self.name}:", *lines]


# Instructions


def _binary(name: str) -> Callable[[IRBuilder, Value, Value], Value]:
    def method(self: IRBuilder, x: Value, y: Value) -> Value:
        kind = x.type
        return self.add_line(kind, f"{name} {kind.text} {x.reference}, {y.reference}")

    return method


def _unary(name: str) -> Callable[[IRBuilder, Value], Value]:
    def method(self: IRBuilder, x: Value) -> Value:
        return self.add_line(x.type, f"{name} {x}")

    return method


def _cast(name: str) -> Callable[[IRBuilder, Value, Type], Value]:
    def method(self: IRBuilder, x: Value, kind: Type) -> Value:
        if x.type.text == kind.text:
            return x
        text = f"{name} {x.type.text} {x.reference} to {kind.text}"
        return self.add_line(kind, text)

    return method


_WORDS: Final = {">": "gt", "<": "lt", "==": "eq", "!=": "ne", ">=": "ge", "<=": "le"}


def _comparison(
    name: str, prefix: str
) -> Callable[[IRBuilder, str, Value, Value], Value]:
    words = {symbol: prefix + word for symbol, word in _WORDS.items()}
    if name == "icmp":
        words |= {"==": "eq", "!=": "ne"}  # with a sign or without
    else:
        words |= {"ord": "ord", "uno": "uno"}  # none of them NaN, or one

    def method(self: IRBuilder, symbol: str, x: Value, y: Value) -> Value:
        kind = x.type
        is_vector = isinstance(kind, VectorType)
        result = VectorType(BIT, kind.count) if is_vector else BIT
        operands = f"{kind.text} {x.reference}, {y.reference}"
        return self.add_line(result, f"{name} {words[symbol]} {operands}")

    return method


class IRBuilder:
    """Adds instructions to a block: at its end, before the one that leaves it.

    >>> module = LLVMModule("one")
    >>> function = LLVMFunction(
    ...     module, FunctionType(IntType(64), [IntType(64)]), "next"
    ... )
    >>> builder = IRBuilder(function.append_basic_block("entry"))
    >>> builder.ret(builder.add(function.args[0], Literal(IntType(64), 1)))
    >>> print(function.definition())
    define i64 @"next"(i64 %.1)
    {
    entry.2:
    %.3 = add i64 %.1, 1
    ret i64 %.3
    }
    <BLANKLINE>
    """

    def __init__(self, block: Block) -> None:
        self.position_at_end(block)

    def position_at_end(self, block: Block) -> None:
        """Go on there."""
        self.block, self.function = block, block.function
        self._is_inside = block.is_terminated

    @property
    def module(self) -> LLVMModule:
        return self.function.module

    def append_basic_block(self, about: str = "") -> Block:
        """A block at the end of the function; instructions do not go there yet."""
        return self.function.append_basic_block(about)

    def _insert(self, line: str | Late) -> None:
        lines = self.block.lines
        if self._is_inside:
            lines.insert(-1, line)
        else:
            lines.append(line)

    def add_line(self, kind: Type, text: str) -> Value:
        """An instruction that gives a value."""
        function = self.function
        function.count += 1
        reference = f"%.{function.count}"
        self._insert(f"{reference} = {text}")
        return Value(kind, reference)

    def _leave(self, line: str) -> None:
        self._insert(line)
        self.block.is_terminated = True

    # Arithmetic

    shl, lshr, ashr = _binary("shl"), _binary("lshr"), _binary("ashr")
    add, sub, mul = _binary("add"), _binary("sub"), _binary("mul")
    udiv, sdiv, urem, srem = map(_binary, ("udiv", "sdiv", "urem", "srem"))
    fadd, fsub, fmul, fdiv, frem = map(
        _binary, ("fadd", "fsub", "fmul", "fdiv", "frem")
    )
    and_, or_, xor = _binary("and"), _binary("or"), _binary("xor")
    fneg = _unary("fneg")

    def not_(self, x: Value) -> Value:
        """Every bit the other way."""
        ones = "-1"
        if isinstance(x.type, VectorType):
            ones = f"splat ({x.type.element} -1)"
        return self.xor(x, Value(x.type, ones))

    trunc, zext, sext = _cast("trunc"), _cast("zext"), _cast("sext")
    fptrunc, fpext, bitcast = _cast("fptrunc"), _cast("fpext"), _cast("bitcast")
    fptoui, fptosi = _cast("fptoui"), _cast("fptosi")
    uitofp, sitofp = _cast("uitofp"), _cast("sitofp")
    ptrtoint, inttoptr = _cast("ptrtoint"), _cast("inttoptr")

    icmp_signed, icmp_unsigned = _comparison("icmp", "s"), _comparison("icmp", "u")
    fcmp_ordered, fcmp_unordered = _comparison("fcmp", "o"), _comparison("fcmp", "u")

    def select(self, condition: Value, x: Value, y: Value) -> Value:
        return self.add_line(x.type, f"select {condition}, {x}, {y}")

    # Vectors and structures

    def extract_element(self, vector: Value, at: Value) -> Value:
        return self.add_line(vector.type.element, f"extractelement {vector}, {at}")

    def insert_element(self, vector: Value, value: Value, at: Value) -> Value:
        return self.add_line(vector.type, f"insertelement {vector}, {value}, {at}")

    def shuffle_vector(self, x: Value, y: Value, lanes: Value) -> Value:
        kind = VectorType(x.type.element, lanes.type.count)
        return self.add_line(kind, f"shufflevector {x}, {y}, {lanes}")

    def extract_value(self, whole: Value, at: int) -> Value:
        kind = whole.type.elements[at]
        return self.add_line(kind, f"extractvalue {whole}, {at}")

    def insert_value(self, whole: Value, value: Value, at: int) -> Value:
        return self.add_line(whole.type, f"insertvalue {whole}, {value}, {at}")

    # Memory

    def alloca(self, kind: Type) -> Alloca:
        """Memory of this call."""
        made = Alloca(kind, f"%{self.function.new_name()}")
        self._insert(made)
        if self.module.marks_memory:
            size = f"ptrtoint (ptr getelementptr ({kind.text}, ptr null, i32 1) to i64)"
            self.mark(made, Value(IntType(64), size))
        return made

    def mark(self, pointer: Value, nbytes: Value) -> None:
        """Set all bits of memory: NaN in every float format, -1 as an integer."""
        ones, is_volatile = Literal(IntType(8), -1), Literal(BIT, 0)
        operands = [pointer, ones, nbytes, is_volatile]
        self.intrinsic("llvm.memset.p0.i64", VOID, operands)

    def gep(
        self,
        pointer: Value,
        indices: Sequence[Value],
        inbounds: bool = False,
        source_etype: Type | None = None,
    ) -> Value:
        """The address some elements further; by default of what is known to be there.

        A second index is that of an element of an array.
        """
        element, result = source_etype, POINTER
        if element is None:
            element = within = pointer.type.pointee
            for _ in indices[1:]:
                within = within.element
            result = PointerType(within)
        word = "getelementptr inbounds" if inbounds else "getelementptr"
        places = ", ".join(map(str, indices))
        return self.add_line(result, f"{word} {element}, {pointer}, {places}")

    def load(self, pointer: Value, align: int = 0, typ: Type | None = None) -> Value:
        """What is there; `typ` is needed where a pointer does not say."""
        kind = pointer.type.pointee if typ is None else typ
        return self.add_line(kind, f"load {kind.text}, {pointer}{aligned(align)}")

    def store(self, value: Value, pointer: Value, align: int = 0) -> StoreInstruction:
        made = StoreInstruction(f"{value}, {pointer}", align)
        self._insert(made)
        return made

    def load_atomic(self, pointer: Value, order: str, align: int, typ: Type) -> Value:
        return self.add_line(
            typ, f"load atomic {typ}, {pointer} {order}, align {align}"
        )

    def store_atomic(
        self, value: Value, pointer: Value, order: str, align: int
    ) -> None:
        self._insert(f"store atomic {value}, {pointer} {order}, align {align}")

    def atomic_rmw(self, op: str, pointer: Value, value: Value, order: str) -> Value:
        return self.add_line(value.type, f"atomicrmw {op} {pointer}, {value} {order}")

    def cmpxchg(
        self, pointer: Value, old: Value, new: Value, order: str, failordering: str
    ) -> Value:
        kind = LiteralStructType([new.type, BIT])
        text = f"cmpxchg {pointer}, {old}, {new} {order} {failordering}"
        return self.add_line(kind, text)

    def fence(self, order: str) -> None:
        self._insert(f"fence {order}")

    # Calls

    def call(self, function: Value, operands: Sequence[Value]) -> Value:
        """Call a function, or what a pointer is known to point to."""
        signature = function.function_type
        kind = signature.return_type
        told = signature if signature.var_arg else kind
        text = f"call {told} {function.reference}({', '.join(map(str, operands))})"
        if kind.text != "void":
            return self.add_line(kind, text)
        self._insert(text)
        return Value(kind, "")

    def intrinsic(self, name: str, kind: Type, operands: Sequence[Value]) -> Value:
        """Call a function of LLVM's own, which gives a value of this type."""
        function = self.module.declared(name, kind, [x.type for x in operands])
        return self.call(function, operands)

    def asm(
        self,
        kind: FunctionType,
        text: str,
        constraint: str,
        operands: Sequence[Value],
        side_effect: bool,
    ) -> Value:
        """An instruction of the processor."""
        word = "asm sideeffect" if side_effect else "asm"
        made = Value(kind.as_pointer(), f'{word} "{text}", "{constraint}"')
        return self.call(made, operands)

    def cttz(self, x: Value, is_never_zero: Value) -> Value:
        """The number of zeros below the lowest bit that is set."""
        return self.intrinsic(f"llvm.cttz.{x.type}", x.type, [x, is_never_zero])

    # Ways

    def phi(self, kind: Type) -> Phi:
        """What `add_incoming` says; only at the beginning of a block."""
        made = Phi(kind, f"%{self.function.new_name()}")
        self._insert(made)
        return made

    def branch(self, block: Block) -> None:
        self._leave(f"br {block}")

    def cbranch(
        self, condition: Value, one: Block, other: Block, likely: bool | None = None
    ) -> None:
        """To `one` if the condition holds; `likely` says whether that is usual."""
        notes = ""
        if likely is not None:
            weights = [99, 1] if likely else [1, 99]
            numbers = [Literal(IntType(32), x) for x in weights]
            note = self.module.add_metadata(["branch_weights", *numbers])
            notes = f", !prof {note.reference}"
        self._leave(f"br {condition}, {one}, {other}{notes}")

    def ret(self, value: Value) -> None:
        self._leave(f"ret {value}")

    def ret_void(self) -> None:
        self._leave("ret void")

    def unreachable(self) -> None:
        self._leave("unreachable")

    @contextmanager
    def goto_entry_block(self) -> Iterator[None]:
        """What is written inside happens first of all."""
        here = self.block
        self.position_at_end(self.function.blocks[0])
        yield
        self.position_at_end(here)

    @contextmanager
    def if_then(self, condition: Value, likely: bool | None = None) -> Iterator[None]:
        """What is written inside happens if the condition holds."""
        inside, after = map(self.append_basic_block, ("if", "endif"))
        self.cbranch(condition, inside, after, likely)
        with self._branch_of(inside, after):
            yield
        self.position_at_end(after)

    @contextmanager
    def if_else(self, condition: Value) -> Iterator[tuple[Inside, Inside]]:
        """The same for two ways, which are entered by `with`."""
        names = ("if", "else", "endif")
        one, other, after = map(self.append_basic_block, names)
        self.cbranch(condition, one, other)
        yield self._branch_of(one, after), self._branch_of(other, after)
        self.position_at_end(after)

    @contextmanager
    def loop(self, low: Value, high: Value, stride: int) -> Iterator[Value]:
        """for (i = low; i < high; i += stride), at least once, with the index."""
        before = self.block
        head = self.append_basic_block("loop")
        self.branch(head)
        self.position_at_end(head)
        index = self.phi(low.type)
        index.add_incoming(low, before)
        yield index
        following = self.add(index, Literal(low.type, stride))
        index.add_incoming(following, self.block)
        after = self.append_basic_block("after")
        again = self.icmp_signed("<", following, high)
        self.cbranch(again, head, after)
        self.position_at_end(after)

    @contextmanager
    def _branch_of(self, block: Block, after: Block) -> Iterator[None]:
        self.position_at_end(block)
        yield
        if not self.block.is_terminated:
            self.branch(after)


Inside = AbstractContextManager[None]
