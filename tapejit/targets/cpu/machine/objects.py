"""Machine code as bytes: made by LLVM once, kept anywhere, loaded in any process.

`emit` turns a module into an `ObjectCode`: the bytes of an object file, or of several
that call each other, and the names in them that matter. `load_object` makes those bytes
runnable and hands out addresses: by `linking`, and by LLVM where that cannot. LLVM is
loaded only when it is needed.

LLVM trusts what it is given. It loads an object that calls a function which nobody
provides, and the first call then ends the process; asked for a name that the object
lacks, it may answer with a function of the C library that is called so. Both are
refused here, before LLVM sees a byte, by reading the symbols of the object ourselves:
what it wants must be in `PROVIDED`, what is asked of it must be its own.

Objects in ELF format are read (Linux). Elsewhere `emit` says so by an `ObjectError`,
and code has to be compiled into the process without being kept.

Start reading at `emit`.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, Final, NamedTuple

from tapejit.base.errors import TapejitError
from tapejit.targets.cpu.machine.linking import link

# What LLVM may call on its own account: loops that it turns into calls, `frem`, and
# what an older processor has no instruction for. Each of these functions has one right
# result and gives it, so the bits are those of the instructions.
_MEMORY: Final = ("memcpy", "memmove", "memset")
_EXACT: Final = (
    *("fmod", "fma", "floor", "ceil", "trunc"),
    *("rint", "nearbyint", "round", "roundeven"),
)
PROVIDED: Final = frozenset({*_MEMORY, *_EXACT, *(f"{name}f" for name in _EXACT)})
_MADE_BY_THE_LOADER: Final = frozenset({"_GLOBAL_OFFSET_TABLE_"})


class ObjectError(TapejitError):
    """Object code that cannot be kept or must not be loaded.

    >>> try:
    ...     load_object(b"no object", {"functions": [], "undefined": []})
    ... except ObjectError as error:
    ...     print(error.message)
    this is no object file in ELF format
    """


class ObjectCode(NamedTuple):
    """The bytes of object files, their functions, and what they want from outside.

    `sizes` are those of the files, of which `code` has one after the other. `header` is
    what `load_object` has to be given beside the bytes; it is JSON.
    """

    code: bytes
    sizes: tuple[int, ...]
    functions: tuple[str, ...]
    undefined: tuple[str, ...]

    @property
    def header(self) -> dict[str, Any]:
        return {
            "sizes": list(self.sizes),
            "functions": list(self.functions),
            "undefined": list(self.undefined),
        }


class LoadedObject:
    """Machine code in this process; what uses an address has to keep this alive.

    `functions` gives the address of each function that the header names.
    """

    __slots__ = ("_kept", "functions")

    def __init__(self, kept: Any, functions: Mapping[str, int]) -> None:
        self._kept = kept
        self.functions = functions

    def __repr__(self) -> str:
        return f"<loaded object: {', '.join(self.functions)}>"


def emit(module: Any, machine: Any = None) -> ObjectCode:
    """The machine code of a module: one of `ir`, its text or a parsed one.

    Every function that the module defines and does not keep to itself is listed.

    >>> text = "define i64 @one() { ret i64 1 }"
    >>> made = emit(text)
    >>> made.functions, made.undefined
    (('one',), ())
    >>> import ctypes
    >>> loaded = load_object(made.code, made.header)
    >>> ctypes.CFUNCTYPE(ctypes.c_int64)(loaded.functions["one"])()
    1
    """
    from llvmlite import binding

    initialise()
    if not isinstance(module, binding.ModuleRef):
        module = binding.parse_assembly(str(module))
    module.verify()
    if machine is None:
        # Here, because what only loads needs none of what writes code: 5 ms.
        from tapejit.targets.cpu.machine.host import host_machine

        machine = host_machine()
    module.triple = machine.triple
    return joined([machine.emit_object(module)])


def joined(codes: Sequence[bytes]) -> ObjectCode:
    """Object files that call each other as one; ObjectError if something is missing."""
    defined, undefined = symbols_of(*codes)
    addresses_outside(undefined)
    sizes = tuple(map(len, codes))
    names = tuple(sorted(defined)), tuple(sorted(undefined))
    return ObjectCode(b"".join(codes), sizes, *names)


def load_object(code: bytes, header: Mapping[str, Any]) -> LoadedObject:
    """Object code made ready to run; ObjectError if it is not what the header says."""
    ends = list(accumulate(header.get("sizes", [len(code)])))
    if ends[-1:] != [len(code)]:
        raise ObjectError(f"these are {len(code)} bytes, the header says {ends[-1:]}")
    codes = [code[start:end] for start, end in pairwise([0, *ends])]
    defined, undefined = symbols_of(*codes)
    if sorted(undefined) != list(header["undefined"]):
        raise ObjectError(
            f"the object wants {_listed(undefined)} from outside, "
            f"its header says {_listed(header['undefined'])}"
        )
    missing = [name for name in header["functions"] if name not in defined]
    if missing:
        raise ObjectError(f"the object does not define {_listed(missing)}")
    outside = addresses_outside(undefined)
    linked = link(codes, header["functions"], outside)
    if linked is not None:
        return LoadedObject(linked.memory, linked.functions)
    return load_by_llvm(codes, header["functions"], outside)


def load_by_llvm(
    codes: Sequence[bytes], names: Iterable[str], outside: Mapping[str, int]
) -> LoadedObject:
    """Any objects that LLVM understands."""
    from llvmlite import binding

    initialise()
    for name, address in outside.items():
        binding.add_symbol(name, address)
    # An engine begins with a module and a machine to compile it for. There is nothing
    # to compile: the module is empty, and any machine of this kind will do.
    machine = binding.Target.from_default_triple().create_target_machine(jit=True)
    engine = binding.create_mcjit_compiler(binding.parse_assembly(""), machine)
    for code in codes:
        engine.add_object_file(binding.ObjectFileRef.from_data(code))
    engine.finalize_object()
    functions = {name: engine.get_function_address(name) for name in names}
    if not all(functions.values()):
        lost = [name for name, address in functions.items() if not address]
        raise ObjectError(f"LLVM has lost {_listed(lost)}")
    return LoadedObject(engine, functions)


def symbols_of(*codes: bytes) -> tuple[frozenset[str], frozenset[str]]:
    """The names that object files define for others, and those they want from them.

    >>> defined, undefined = symbols_of(
    ...     emit("define void @nothing() { ret void }").code
    ... )
    >>> sorted(defined), sorted(undefined)
    (['nothing'], [])
    """
    defined, undefined = set(), set()
    for code in codes:
        for name, is_global, is_defined in _symbols(code):
            if not is_defined and name not in _MADE_BY_THE_LOADER:
                undefined.add(name)
            elif is_defined and is_global:
                defined.add(name)
    return frozenset(defined), frozenset(undefined - defined)


_SYMBOL_TABLE = 2
_GLOBAL, _WEAK = 1, 2


def _symbols(code: bytes) -> Iterator[tuple[str, bool, bool]]:
    """Each named symbol: its name, whether others see it, whether it is defined here.

    The offsets are those of the 64-bit, little-endian ELF format.
    """
    if code[:6] != b"\x7fELF\x02\x01":
        raise ObjectError(
            "this is no object file in ELF format",
            help="native code can be kept on 64-bit Linux only",
        )
    try:
        (table,) = struct.unpack_from("<Q", code, 0x28)
        step, count = struct.unpack_from("<HH", code, 0x3A)
        sections = [
            struct.unpack_from("<IIQQQQIIQQ", code, table + at * step)
            for at in range(count)
        ]
        for _, kind, _, _, start, size, names, _, _, _ in sections:
            if kind != _SYMBOL_TABLE:
                continue
            text = sections[names][4]
            for name, info, _, section, _, _ in struct.iter_unpack(
                "<IBBHQQ", code[start : start + size]
            ):
                if name:
                    end = code.index(b"\0", text + name)
                    is_global = info >> 4 in (_GLOBAL, _WEAK)
                    yield code[text + name : end].decode(), is_global, section != 0
    except (struct.error, IndexError, ValueError) as error:
        raise ObjectError(f"the object file is damaged: {error}") from None


def addresses_outside(undefined: Iterable[str]) -> dict[str, int]:
    """The address of each name; ObjectError for one that is not provided."""
    found = {}
    for name in sorted(undefined):
        address = _address_in_process(name) if name in PROVIDED else None
        if not address:
            raise ObjectError(
                f"the object calls {name!r}, which nobody provides",
                help="functions from outside are called by address, through the table",
            )
        found[name] = address
    return found


def _address_in_process(name: str) -> int | None:
    # Not by LLVM's own search: it finds nothing before the first engine exists.
    for library in (None, "libm.so.6"):  # a Python may be linked without the latter
        try:
            found = getattr(ctypes.CDLL(library), name)
        except (AttributeError, OSError, TypeError):
            continue
        return ctypes.cast(found, ctypes.c_void_p).value
    return None


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "nothing"


def initialise() -> None:
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
