"""Types, constants and values of LLVM's language.

Types are compared by their text. Whether operands have the right ones is for LLVM to
say, which reads the text: `parse_assembly` names the line.

Start reading at `Value`.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tapejit.targets.cpu.llvm.ir import Block

# Types


class Type:
    """A type; `null` is how its zero is written."""

    __slots__ = ("text",)
    null = "zeroinitializer"

    def __init__(self, text: str) -> None:
        self.text = text

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<{self.text}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Type) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def written(self, value: Any) -> str:
        """A constant of this type."""
        return str(value)

    def as_pointer(self) -> PointerType:
        """That of pointers to such values."""
        return PointerType(self)


class VoidType(Type):
    """No value."""

    __slots__ = ()

    def __init__(self) -> None:
        self.text = "void"


class IntType(Type):
    """Integers of so many bits.

    >>> IntType(64)
    <i64>
    """

    __slots__ = ("width",)
    null = "0"

    def __init__(self, bits: int) -> None:
        self.text, self.width = f"i{bits}", bits

    def written(self, value: Any) -> str:
        return str(int(value))


class FloatType(Type):
    """Single precision."""

    __slots__ = ()
    null = "0.0"

    def __init__(self) -> None:
        self.text = "float"

    def written(self, value: Any) -> str:
        (rounded,) = struct.unpack("<f", struct.pack("<f", value))
        return hexadecimal(rounded)


class DoubleType(Type):
    """Double precision."""

    __slots__ = ()
    null = "0.0"

    def __init__(self) -> None:
        self.text = "double"

    def written(self, value: Any) -> str:
        return hexadecimal(value)


class PointerType(Type):
    """All pointers are of one type; `pointee` is what is known to be there."""

    __slots__ = ("pointee",)
    null = "null"

    def __init__(self, pointee: Type | None = None) -> None:
        self.text, self.pointee = "ptr", pointee


class VectorType(Type):
    """So many lanes of an element.

    >>> VectorType(FloatType(), 8)
    <<8 x float>>
    """

    __slots__ = ("count", "element")

    def __init__(self, element: Type, count: int) -> None:
        self.text, self.element, self.count = f"<{count} x {element}>", element, count

    def written(self, value: Any) -> str:
        return f"<{listed(self.element, value)}>"


class ArrayType(Type):
    """So many elements in memory."""

    __slots__ = ("count", "element")

    def __init__(self, element: Type, count: int) -> None:
        self.text, self.element, self.count = f"[{count} x {element}]", element, count

    def written(self, value: Any) -> str:
        if isinstance(value, bytes | bytearray):
            return f'c"{"".join(map(_ESCAPED.__getitem__, value))}"'
        return f"[{listed(self.element, value)}]"


class LiteralStructType(Type):
    """Values of several types as one."""

    __slots__ = ("elements",)

    def __init__(self, elements: Sequence[Type]) -> None:
        self.text = f"{{{', '.join(map(str, elements))}}}"
        self.elements = tuple(elements)


class FunctionType(Type):
    """What a function takes and returns; `var_arg` are operands of any number."""

    __slots__ = ("args", "return_type", "var_arg")

    def __init__(
        self, return_type: Type, args: Sequence[Type], var_arg: bool = False
    ) -> None:
        operands = [*map(str, args), "..."] if var_arg else map(str, args)
        self.text = f"{return_type} ({', '.join(operands)})"
        self.return_type, self.args, self.var_arg = return_type, tuple(args), var_arg


_ESCAPED: Final = [f"\\{byte:02x}" for byte in range(256)]
VOID, BIT, POINTER = VoidType(), IntType(1), PointerType()


def hexadecimal(value: float) -> str:
    """A float as LLVM reads it without rounding: the bits of a double.

    >>> hexadecimal(1.0)
    '0x3ff0000000000000'
    """
    (bits,) = struct.unpack("<Q", struct.pack("<d", value))
    return f"0x{bits:016x}"


def listed(element: Type, values: Sequence[Any]) -> str:
    """Constants of a type, or numbers that are to be such."""
    made = (x if isinstance(x, Literal) else Literal(element, x) for x in values)
    return ", ".join(map(str, made))


# Values


class Value:
    """Something that instructions can refer to, by `reference`.

    Its `str` has the type too, as operands of most instructions are written.
    """

    __slots__ = ("reference", "type")

    def __init__(self, type: Any, reference: str) -> None:
        self.type = type
        self.reference = reference

    def __str__(self) -> str:
        return f"{self.type.text} {self.reference}"

    @property
    def function_type(self) -> Any:
        """What a function, or one that is pointed to, takes and returns."""
        return self.type.pointee


Undefined: Final = object()
"""The constant that may be anything."""


class Literal(Value):
    """A number, numbers of a vector or an array, None for zeros, or `Undefined`.

    >>> print(Literal(VectorType(IntType(32), 2), [1, 2]))
    <2 x i32> <i32 1, i32 2>
    """

    __slots__ = ("constant",)

    def __init__(self, type: Type, constant: Any) -> None:
        self.type = type
        self.constant = constant
        if constant is None:
            self.reference = type.null
        else:
            is_known = constant is not Undefined
            self.reference = type.written(constant) if is_known else "undef"


class Late(Value, ABC):
    """An instruction that may change as long as its module is not printed."""

    __slots__ = ()

    @abstractmethod
    def line(self) -> str:
        """The instruction."""


class Phi(Late):
    """What has come from one of several blocks."""

    __slots__ = ("incoming",)

    def __init__(self, type: Any, reference: str) -> None:
        super().__init__(type, reference)
        self.incoming: list[str] = []

    def add_incoming(self, value: Value, block: Block) -> None:
        """It is `value` if control comes from `block`."""
        self.incoming.append(f"[{value.reference}, {block.reference}]")

    def line(self) -> str:
        return f"{self.reference} = phi {self.type.text} {', '.join(self.incoming)}"


class Alloca(Late):
    """Memory on the stack."""

    __slots__ = ("align", "kind")

    def __init__(self, kind: Type, reference: str) -> None:
        super().__init__(PointerType(kind), reference)
        self.kind, self.align = kind, 0

    def line(self) -> str:
        return f"{self.reference} = alloca {self.kind.text}{aligned(self.align)}"


class StoreInstruction(Late):
    """An instruction that writes to memory."""

    __slots__ = ("align", "notes", "what")

    def __init__(self, what: str, align: int) -> None:
        super().__init__(VOID, "")
        self.what, self.align, self.notes = what, align, ""

    def set_metadata(self, name: str, note: Note) -> None:
        """Let a note of the module be about this instruction."""
        self.notes += f", !{name} {note.reference}"

    def line(self) -> str:
        return f"store {self.what}{aligned(self.align)}{self.notes}"


class Note(Value):
    """What a module says about instructions."""

    __slots__ = ("text",)

    def __init__(self, number: int, operands: Sequence[Value | str]) -> None:
        super().__init__(Type("metadata"), f"!{number}")
        parts = [f'!"{x}"' if isinstance(x, str) else str(x) for x in operands]
        self.text = f"!{{ {', '.join(parts)} }}"

    def definition(self) -> str:
        """What the module says."""
        return f"{self.reference} = {self.text}"


def aligned(align: int) -> str:
    """What is said of the alignment of memory; 0 is that of its type."""
    return f", align {align}" if align else ""
