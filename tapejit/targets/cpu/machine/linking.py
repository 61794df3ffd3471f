"""Object code made ready to run without LLVM, where that is simple.

What LLVM emits for x86-64 asks little of a loader: put the sections into memory, write
addresses where the objects want them. LLVM can do it too, but to load LLVM takes 50 ms,
half of what there is between a process and its first answer; this takes 0.2.

An object that asks for more than that is left to LLVM: `link` gives None. So is every
object for another processor. Tables for unwinding are left out: nothing that is made
here throws, and no frame of it is ever searched for a handler.

Code and constants are never writable and executable at once. Memory is private, so a
child of fork has words of its own.

Start reading at `link`.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import struct
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

# Kinds of sections, their flags, machines and relocations: numbers of the ELF format.
_BYTES, _SYMBOLS, _TEXTS, _RELOCATIONS, _ZEROS, _UNWINDING = 1, 2, 3, 4, 8, 0x70000001
_SIGNIFICANT: Final = 0x6FFF4C03  # LLVM's remark on which symbols it compares
_KNOWN: Final = frozenset(
    {0, _BYTES, _SYMBOLS, _TEXTS, _RELOCATIONS, _ZEROS, _UNWINDING, _SIGNIFICANT}
)
_WRITABLE, _LOADED, _OF_THREADS = 1, 2, 0x400
_X86_64: Final = 62
_ABSOLUTE: Final = 1  # the 64-bit address of a symbol, plus a constant
_OBJECT_FILE: Final = 1

HERE: Final = sys.platform == "linux" and platform.machine() == "x86_64"


class Linked(NamedTuple):
    """Machine code in this process; `memory` has to be kept as long as it is used."""

    memory: Any
    functions: dict[str, int]


class _TooHard(Exception):
    """LLVM has to do it."""


def link(
    codes: Sequence[bytes], functions: Iterable[str], outside: Mapping[str, int]
) -> Linked | None:
    """Objects in memory with the addresses of functions; None: LLVM has to.

    `outside` has the address of every name that an object wants and none defines.

    >>> from tapejit.targets.cpu.machine.objects import emit
    >>> made = emit("define i64 @two() { ret i64 2 }")
    >>> linked = link([made.code], made.functions, {})
    >>> HERE and ctypes.CFUNCTYPE(ctypes.c_int64)(linked.functions["two"])()
    2
    """
    if not HERE:
        return None
    try:
        objects = [_Object(code) for code in codes]
        known = dict(outside)
        for each in objects:
            each.load()
            known.update(each.defined())
        for each in objects:
            each.relocate(known)
        found = {name: known[name] for name in functions}
    except (_TooHard, struct.error, IndexError, KeyError, ValueError, OSError):
        return None
    return Linked([each.memory for each in objects], found)


class _Object:
    """An object file: its sections, and where each of them is put."""

    def __init__(self, code: bytes) -> None:
        kind, machine = struct.unpack_from("<HH", code, 0x10)
        if (kind, machine) != (_OBJECT_FILE, _X86_64):
            raise _TooHard
        self.code = code
        (table,) = struct.unpack_from("<Q", code, 0x28)
        step, count = struct.unpack_from("<HH", code, 0x3A)
        self.sections = [
            struct.unpack_from("<IIQQQQIIQQ", code, table + at * step)
            for at in range(count)
        ]
        if any(section[1] not in _KNOWN for section in self.sections):
            raise _TooHard
        self.places: dict[int, int] = {}  # by the number of a section
        self.size = 0
        self._place(is_writable=False)
        self.size = self.protected = -(-self.size // mmap.PAGESIZE) * mmap.PAGESIZE
        self._place(is_writable=True)

    def _place(self, *, is_writable: bool) -> None:
        """Find room for the sections of one sort."""
        for at, (_, kind, flags, _, start, size, _, _, align, _) in enumerate(
            self.sections
        ):
            is_loaded = flags & _LOADED and kind != _UNWINDING
            if not is_loaded or bool(flags & _WRITABLE) != is_writable:
                continue
            is_within = kind == _ZEROS or start + size <= len(self.code)
            is_usual = kind in (_BYTES, _ZEROS) and not flags & _OF_THREADS
            if not is_usual or not is_within or align > mmap.PAGESIZE:
                raise _TooHard
            self.size += -self.size % max(align, 1)
            self.places[at] = self.size
            self.size += size

    def load(self) -> None:
        """Put the sections into memory."""
        # Private: by default a child of fork would write into its parent's words.
        memory = self.memory = mmap.mmap(
            -1,
            max(self.size, mmap.PAGESIZE),
            flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS,
            prot=mmap.PROT_READ | mmap.PROT_WRITE,
        )
        self.base = address_of(memory)
        for at, place in self.places.items():
            _, kind, _, _, start, size, _, _, _, _ = self.sections[at]
            if kind == _BYTES:
                memory[place : place + size] = self.code[start : start + size]

    def defined(self) -> dict[str, int]:
        """The addresses of what has a name here."""
        found = self._addresses({})
        return {name: address for name, address in found if name and address}

    def relocate(self, outside: Mapping[str, int]) -> None:
        """Write all addresses that the object wants; then it can be run."""
        symbols = self._addresses(outside)
        for section in self.sections:
            if section[1] == _RELOCATIONS and section[7] in self.places:
                self._relocate(section, symbols)
        _protect(self.base, self.protected)

    def _addresses(self, outside: Mapping[str, int]) -> list[tuple[str, int | None]]:
        """Each symbol's name and address, by its number; None if it is nowhere."""
        tables = [section for section in self.sections if section[1] == _SYMBOLS]
        if len(tables) != 1:
            raise _TooHard
        _, _, _, _, start, size, names, _, _, _ = tables[0]
        texts = self.sections[names][4]
        found: list[tuple[str, int | None]] = []
        for name, _, _, section, value, _ in struct.iter_unpack(
            "<IBBHQQ", self.code[start : start + size]
        ):
            end = self.code.index(b"\0", texts + name)
            text = self.code[texts + name : end].decode()
            if section in self.places:
                found.append((text, self.base + self.places[section] + value))
            else:
                found.append((text, None if section else outside.get(text)))
        return found

    def _relocate(
        self, section: tuple[int, ...], symbols: list[tuple[str, int | None]]
    ) -> None:
        """Write the addresses that one section wants."""
        _, _, _, _, start, size, _, target, _, _ = section
        place, room = self.places[target], self.sections[target][5]
        for offset, info, addend in struct.iter_unpack(
            "<QQq", self.code[start : start + size]
        ):
            _, address = symbols[info >> 32]
            if info & 0xFFFFFFFF != _ABSOLUTE or address is None or offset + 8 > room:
                raise _TooHard
            value = (address + addend) % (1 << 64)
            struct.pack_into("<Q", self.memory, place + offset, value)


def _protect(base: int, size: int) -> None:
    """Make memory executable, and no longer writable."""
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    if size and protect(base, size, mmap.PROT_READ | mmap.PROT_EXEC):
        raise OSError(ctypes.get_errno(), "mprotect")


def load_instructions(code: bytes) -> Any:
    """Memory with a few instructions of ours at its start, or None.

    >>> memory = load_instructions(bytes.fromhex("b807000000c3"))  # mov eax, 7; ret
    >>> HERE and ctypes.CFUNCTYPE(ctypes.c_int32)(address_of(memory))()
    7
    """
    if not HERE:
        return None
    memory = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory[: len(code)] = code
    try:
        _protect(address_of(memory), mmap.PAGESIZE)
    except OSError:
        return None
    return memory


def address_of(memory: Any) -> int:
    """Where a block of memory begins."""
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))
