"""A module hosted by Numba: the same LLVM, through Numba's passes and into its engine.

Emission is written once and knows nothing of what compiles it. `host.Library` gives a
module to LLVM as it is. A `NumbaLibrary` gives it to Numba: an `intrinsic` inside an
`njit` function links the module into the code that Numba is making and calls one of its
functions. Numba's optimiser then sees both, and other compiled functions can call the
`njit` function, `enter`, or any function of the module by its address.

All of Numba's code lives in one engine, where a name means one function: of two modules
that define `run`, both would get the younger. So each function is renamed on the way in
and looked up under its new name.

This is the one file that touches what Numba does not promise to keep. `check_numba`
runs once per process before the first module: it looks for these parts and hosts
functions whose answers are known.

Start reading at `NumbaLibrary`.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

from llvmlite import binding, ir

from tapejit.base.config import config
from tapejit.base.errors import ArgumentError, TapejitError
from tapejit.targets.cpu.machine.host import Library

# What an operand or a result may be, and what Numba calls it.
NUMBA_TYPES = {
    "ptr": "uintp",
    "i8": "int8",
    "i16": "int16",
    "i32": "int32",
    "i64": "int64",
    "float": "float32",
    "double": "float64",
    "void": "void",
}
LLVM_TYPES = {
    "ptr": ir.PointerType(),
    "float": ir.FloatType(),
    "double": ir.DoubleType(),
    "void": ir.VoidType(),
    **{f"i{bits}": ir.IntType(bits) for bits in (8, 16, 32, 64)},
}
# The private parts of Numba, by where they are.
LIBRARY_PARTS = (
    "add_llvm_module",
    "get_pointer_to_function",
    "get_llvm_str",
    "get_asm_str",
)

numbers = itertools.count()


class HostError(TapejitError, RuntimeError):
    """Numba cannot host tapejit's code.

    >>> try:
    ...     raise HostError("Numba 1.0 has no intrinsics")
    ... except HostError as error:
    ...     print(error.message)
    Numba 1.0 has no intrinsics
    """


class NumbaLibrary:
    """The machine code of one module, made and kept by Numba.

    `enter` is an `njit` function that other compiled functions can call; it calls the
    module's function `entry`, by default its first. Pointers are given as integers.

    >>> text = "define i64 @double(i64 %x) { %y = add i64 %x, %x  ret i64 %y }"
    >>> library = NumbaLibrary(text)
    >>> library.function("double", ctypes.c_int64, ctypes.c_int64)(21)
    42
    >>> import numba
    >>> enter = library.enter
    >>> numba.njit(lambda x: enter(x) + 1)(21)
    43
    """

    def __init__(self, module: Any, entry: str | None = None) -> None:
        check_numba()
        self._host(module, entry)

    def _host(self, module: Any, entry: str | None) -> None:
        parsed = binding.parse_assembly(str(module))
        parsed.verify()
        self._names = rename_functions(parsed)
        if not self._names:
            raise ArgumentError("the module has no function that can be called")
        name = next(iter(self._names)) if entry is None else entry
        self.enter = compiled_entry(parsed, self._renamed(name))
        self._library = library_of(self.enter)

    def _renamed(self, name: str) -> str:
        if name not in self._names:
            raise ArgumentError(f"the module has no function {name!r}")
        return self._names[name]

    def function(self, name: str, result: Any, *operands: Any) -> Callable[..., Any]:
        """A function of the module, by its ctypes."""
        renamed = self._renamed(name)
        address = self._library.get_pointer_to_function(renamed)
        if not address:
            raise changed_numba(f"{name!r} was linked but is not there")
        call = ctypes.CFUNCTYPE(result, *operands)(address)
        call.library = self  # type: ignore[attr-defined]  # keeps the code alive
        return call

    @property
    def llvm(self) -> str:
        """The module after Numba's passes, as text.

        >>> library = NumbaLibrary("define void @nothing() { ret void }")
        >>> "@nothing" in library.llvm and "nothing" in library.asm
        True
        """
        return str(self._library.get_llvm_str())

    @property
    def asm(self) -> str:
        """The machine code, as text."""
        return str(self._library.get_asm_str())


def compile_module(module: Any) -> Library | NumbaLibrary:
    """The machine code of a module by the host that the settings name.

    >>> text = "define i64 @one() { ret i64 1 }"
    >>> with config.override(host="numba"):
    ...     library = compile_module(text)
    >>> type(library).__name__, library.function("one", ctypes.c_int64)()
    ('NumbaLibrary', 1)
    """
    return NumbaLibrary(module) if config.host == "numba" else Library(module)


@cache
def check_numba() -> None:
    """HostError unless this Numba has what is used here and runs what it is given.

    >>> check_numba()
    """
    # Twice under the same name: the second must not be taken for the first.
    libraries = [NumbaLibrary.__new__(NumbaLibrary) for _ in range(2)]
    for number, library in enumerate(libraries):
        text = f"define i64 @trial(i64 %x) {{ %y = add i64 %x, {number}  ret i64 %y }}"
        library._host(text, "trial")
    answers = [
        library.function("trial", ctypes.c_int64, ctypes.c_int64)(41)
        for library in libraries
    ]
    if answers != [41, 42]:
        raise changed_numba(f"a trial gave {answers}, not [41, 42]")


def changed_numba(what: str) -> HostError:
    import numba

    return HostError(
        f"Numba {numba.__version__} does not host tapejit's code: {what}",
        help="install numba 0.68, or leave the setting host at 'llvm'.",
    )


def rename_functions(module: Any) -> dict[str, str]:
    """Give what others can see names of its own; functions' old names to new."""
    number = next(numbers)
    names = {}
    for thing in (*module.functions, *module.global_variables):
        if thing.is_declaration or thing.linkage.name != "external":
            continue
        old = thing.name
        thing.name = f"{old}.hosted.{number}"
        if thing.is_function:
            names[old] = thing.name
    return names


def compiled_entry(module: Any, name: str) -> Any:
    """An `njit` function that has `module` linked in and calls its function `name`."""
    numba: Any = import_module("numba")
    types = numba.types
    signature = module.get_function(name).global_value_type
    result, *operands = (
        str(part)
        for part in (
            signature.get_function_return(),
            *signature.get_function_parameters(),
        )
    )
    for part in (result, *operands):
        if part not in NUMBA_TYPES:
            raise ArgumentError(f"{name}: Numba code cannot pass or return {part}")
    kinds = [getattr(types, NUMBA_TYPES[part]) for part in operands]
    returned = getattr(types, NUMBA_TYPES[result])

    def lower(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        """Link the module and call its function."""
        library = active_library(context)
        library.add_llvm_module(module)
        callee = ir.Function(
            builder.module,
            ir.FunctionType(LLVM_TYPES[result], [LLVM_TYPES[x] for x in operands]),
            name,
        )
        values = [
            operand_of(builder, builder.extract_value(arguments[0], at), kind)
            for at, kind in enumerate(operands)
        ]
        # Not copied into its caller: a kernel is large and compiled once.
        value = builder.call(callee, values, attrs=("noinline",))
        if result == "void":
            return context.get_dummy_value()
        return builder.ptrtoint(value, ir.IntType(64)) if result == "ptr" else value

    def type_call(typing_context: Any, operands: Any) -> Any:
        return returned(operands), lower

    # Numba wants to see each operand by name.
    names = "".join(f"operand_{at}, " for at in range(len(operands)))
    source = f"def enter({names}):\n    return call(({names}))\n"
    scope = {"call": numba.extending.intrinsic(type_call)}
    exec(source, scope)
    # Python never calls it: without wrappers it compiles in half the time.
    options = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    try:
        return numba.njit(returned(*kinds), **options)(scope["enter"])
    except (numba.core.errors.NumbaError, AttributeError, TypeError, KeyError) as error:
        raise changed_numba(str(error).strip().splitlines()[0]) from error


def operand_of(builder: Any, value: Any, kind: str) -> Any:
    """An operand as the module's functions take it."""
    return builder.inttoptr(value, LLVM_TYPES["ptr"]) if kind == "ptr" else value


def active_library(context: Any) -> Any:
    """The code library that Numba is filling."""
    library = getattr(context, "active_code_library", None)
    if library is None:
        raise changed_numba("a target context has no active_code_library")
    for part in LIBRARY_PARTS:
        if not hasattr(library, part):
            raise changed_numba(f"a code library has no {part}")
    return library


def library_of(dispatcher: Any) -> Any:
    """The code library of a function that was compiled for one signature."""
    try:
        (compiled,) = dispatcher.overloads.values()
        return compiled.library
    except (AttributeError, ValueError) as error:
        raise changed_numba(f"a compiled function has no library: {error}") from error
