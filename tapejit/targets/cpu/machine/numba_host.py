"""A module hosted by Numba: the same LLVM, through Numba's passes and into its engine.

Emission is written once and knows nothing of what compiles it. `host.Library` gives a
module to LLVM as it is. A `NumbaLibrary` gives it to Numba: an `intrinsic` inside an
`njit` function links the module into the code that Numba is making and calls one of its
functions. Numba's optimiser then sees both, and other compiled functions can call the
`njit` function, `enter`, or any function of the module by its address.

Numba's code can also call native code that is there already: a `TableCall` says what,
`table_call` makes the intrinsic that fills the table of pointers and calls it.

All of Numba's code lives in one engine, where a name means one function: of two modules
that define `run`, both would get the younger. So each function is renamed on the way in
and looked up under its new name.

This is the one file that touches what Numba does not promise to keep. `check_numba`
runs once per process before the first module: it looks for these parts and hosts
functions whose answers are known.

Start reading at `NumbaLibrary`, for calls from Numba's code at `table_call`.
"""

from __future__ import annotations

import ctypes
import itertools
import re
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from typing import Any, Final, NamedTuple

from llvmlite import binding, ir

from tapejit.base.config import config
from tapejit.base.errors import ArgumentError, TapejitError
from tapejit.loops.kernels import ALIGNMENT
from tapejit.targets.cpu.machine.host import Library
from tapejit.targets.cpu.target import CPU

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

    scope = {"call": numba.extending.intrinsic(type_call)}
    names = "".join(f"operand_{at}, " for at in range(len(operands)))
    exec(f"def enter({names}):\n    return call(({names}))\n", scope)
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


# Native code that Numba's code calls


class TableEntry(NamedTuple):
    """What the table of native code points to at one place.

    kind   "fixed" memory, the data of an "array", a "scalar" that is given, or a
           "result" that is a scalar
    value  the address, or Numba's name of the scalar's type
    """

    kind: str
    value: Any = None

    @property
    def is_operand(self) -> bool:
        """Whether the caller gives it."""
        return self.kind in ("array", "scalar")


class TableCall(NamedTuple):
    """A call of native code, `i64 run(i8** table)`, from Numba's code.

    entries       of the table, before the arena and the imports
    imports       names of the functions that the code calls
    driver        the address of the parallel one; 0: its tasks run one by one
    find_failure  the address of `i64 find(i8** table)`, which tells failures apart
    keeps         what has to live as long as the code that calls
    """

    address: int
    entries: Sequence[TableEntry]
    arena_bytes: int
    imports: Sequence[str]
    driver: int
    find_failure: int
    keeps: Any

    @property
    def is_on_stack(self) -> bool:
        """Whether the arena is; else the last operand is an array of bytes for it."""
        return self.arena_bytes <= CPU.tuning.stack_arena_bytes


def table_call(call: TableCall) -> Any:
    """An intrinsic that takes arrays and scalars and gives (failure, *results).

    It takes arrays, not their addresses: Numba lets go of an array after its last use.
    """
    numba: Any = import_module("numba")
    types = numba.types
    kinds = [getattr(types, x.value) for x in call.entries if x.kind == "result"]
    returned = types.Tuple([types.int64, *kinds])

    def lower(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        """Fill the table and call."""
        # Code that has this linked in refers to the library.
        active_library(context).tapejit_keeps = call.keeps
        frame = TableFrame(context, builder, call)
        given = iter(zip(arguments, signature.args, strict=True))
        results = []
        for at, entry in enumerate(call.entries):
            if entry.kind == "fixed":
                frame.put(at, frame.address(entry.value))
            elif entry.kind == "array":
                frame.put(at, frame.data_of(*next(given)))
            elif entry.kind == "scalar":
                value, kind = next(given)
                place = frame.room(context.get_data_type(kind))
                context.pack_value(builder, kind, value, place)
                frame.put(at, place)
            else:
                kind = getattr(types, entry.value)
                place = frame.room(context.get_data_type(kind))
                results.append((kind, place))
                frame.put(at, place)
        count = len(call.entries)
        arena = None if call.is_on_stack else frame.data_of(*next(given))
        frame.put(count, frame.arena(arena))
        frame.put(count + 1, frame.imports())
        failure = frame.run()
        found = [context.unpack_value(builder, kind, at) for kind, at in results]
        return context.make_tuple(builder, returned, [failure, *found])

    def type_call(typing_context: Any, *operands: Any) -> Any:
        return returned(*operands), lower

    count = sum(x.is_operand for x in call.entries) + (not call.is_on_stack)
    names = "".join(f", operand_{at}" for at in range(count))  # Numba wants to see them
    scope = {"type_call": type_call}
    text = f"def call(context{names}):\n    return type_call(context{names})\n"
    exec(text, scope)
    return numba.extending.intrinsic(scope["call"])


class TableFrame:
    """The code of one call of native code: its table, arena and imports."""

    def __init__(self, context: Any, builder: Any, call: TableCall) -> None:
        self.context, self.builder, self.call = context, builder, call
        self.table = self.room(ir.ArrayType(I64, len(call.entries) + 2))

    def room(self, kind: Any, align: int = 0) -> Any:
        """Memory on the stack, once per function, however often the call runs."""
        with self.builder.goto_entry_block():
            place = self.builder.alloca(kind)
        if align:
            place.align = align
        return place

    def put(self, at: int, value: Any) -> None:
        """Fill an entry of the table, with a pointer or an integer."""
        self.store(self.table, at, value)

    def store(self, words: Any, at: int, value: Any) -> None:
        """Fill one of some words."""
        if value.type != I64:
            value = self.builder.ptrtoint(value, I64)
        self.builder.store(value, self.builder.gep(words, [I32(0), I32(at)]))

    def address(self, number: int) -> Any:
        """An address of this process: Numba then keeps no such code on disk."""
        return self.context.add_dynamic_addr(self.builder, number, info="tapejit")

    def data_of(self, array: Any, kind: Any) -> Any:
        """Where the elements of an array are."""
        return self.context.make_array(kind)(self.context, self.builder, array).data

    def arena(self, memory: Any) -> Any:
        """The arena, from a cache line on; on the stack if no memory is given."""
        size = max(self.call.arena_bytes, ALIGNMENT)
        if memory is None:
            return self.room(ir.ArrayType(ir.IntType(8), size), ALIGNMENT)
        place = self.builder.ptrtoint(memory, I64)
        return self.builder.and_(
            self.builder.add(place, I64(ALIGNMENT - 1)), I64(-ALIGNMENT)
        )

    def imports(self) -> Any:
        """The addresses of the functions that the native code calls."""
        if not self.call.imports:
            return I64(0)
        words = self.room(ir.ArrayType(I64, len(self.call.imports)))
        for at, name in enumerate(self.call.imports):
            if name == "parallel" and self.call.driver:
                self.store(words, at, self.address(self.call.driver))
            else:
                self.store(words, at, IMPORTS[name](self.builder.module))
        return words

    def run(self) -> Any:
        """Call it; 0, or which failure it was."""
        builder = self.builder
        failure = self.called(self.call.address)
        before = builder.block
        with builder.if_then(builder.icmp_signed("!=", failure, I64(0)), likely=False):
            which = self.called(self.call.find_failure)
            after = builder.block
        found = builder.phi(I64)
        found.add_incoming(failure, before)
        found.add_incoming(which, after)
        return found

    def called(self, address: int) -> Any:
        """What a function of the table gives."""
        kind = ir.FunctionType(I64, [ir.PointerType()])
        function = self.builder.bitcast(self.address(address), kind.as_pointer())
        table = self.builder.bitcast(self.table, ir.PointerType())
        return self.builder.call(function, [table])


I32, I64 = ir.IntType(32), ir.IntType(64)


def serial_driver(module: Any) -> Any:
    """`void parallel(task, table, tasks)` that runs the tasks one by one.

    Numba's code may be in a loop of its own threads: it does not start others.
    """
    task_type = ir.FunctionType(ir.VoidType(), [ir.PointerType(), I64])
    kinds = [ir.PointerType(), ir.PointerType(), I64]
    kind = ir.FunctionType(ir.VoidType(), kinds)
    function, builder = shared_function(module, kind, "tapejit.serial")
    if builder is not None:
        task, table, tasks = function.args
        first, again, out = builder.block, *map(builder.append_basic_block, "ao")
        builder.branch(again)
        builder.position_at_end(again)
        at = builder.phi(I64)
        address = builder.ptrtoint(task, I64)
        typed = builder.inttoptr(address, task_type.as_pointer())
        builder.call(typed, [table, at])
        following = builder.add(at, I64(1))
        at.add_incoming(I64(0), first)
        at.add_incoming(following, again)
        builder.cbranch(builder.icmp_signed("<", following, tasks), again, out)
        builder.position_at_end(out)
        builder.ret_void()
    return function


def silent_poll(module: Any) -> Any:
    """`i64 poll(arena)` that never ends a call: signals wait for the end of Numba's."""
    kind = ir.FunctionType(I64, [ir.PointerType()])
    function, builder = shared_function(module, kind, "tapejit.poll")
    if builder is not None:
        builder.ret(I64(0))
    return function


def shared_function(module: Any, kind: Any, name: str) -> tuple[Any, Any]:
    """A function that many modules have, and a builder if this one has it not yet."""
    if name in module.globals:
        return module.globals[name], None
    function = ir.Function(module, kind, name)
    function.linkage = "linkonce_odr"
    return function, ir.IRBuilder(function.append_basic_block())


IMPORTS: Final[dict[str, Callable[[Any], Any]]] = {
    "parallel": serial_driver,
    "poll": silent_poll,
}


def function_by_types(
    name: str, parameters: Sequence[str], choose: Callable[[Sequence[Any]], Any]
) -> Any:
    """An `njit` function whose implementation depends on the types of its arguments.

    >>> def choose(kinds):
    ...     (kind,) = kinds
    ...     return (lambda x: x + 1) if kind.name == "int64" else (lambda x: x * 2)
    >>> changed = function_by_types("changed", ["x"], choose)
    >>> changed(3), changed(3.0)
    (4, 6.0)
    """
    numba: Any = import_module("numba")
    names = ", ".join(parameters)
    scope: dict[str, Any] = {"given": choose}
    exec(
        f"def implementation({names}): raise NotImplementedError\n"
        f"def choose({names}): return given([{names}])\n"
        f"def {name}({names}): return implementation({names})\n",
        scope,
    )
    numba.extending.overload(scope["implementation"])(scope["choose"])
    return numba.njit(scope[name], nogil=True)


# Scalar functions of users


class ScalarError(Exception):
    """Numba does not compile a function of scalars; the text says why."""


class ScalarFunction(NamedTuple):
    """A user's function of doubles, as Numba compiles it.

    text  of LLVM, optimised, `i32 name(double* result, ptr exception, double, ...)`
    loop  an `njit` function `(out, *operands)` of arrays with one axis
    """

    text: str
    name: str
    loop: Any

    @property
    def plain_text(self) -> str:
        """The text without names that differ from process to process."""
        names = dict.fromkeys(re.findall(r"_ZN[\w.$]+", self.text))
        text = self.text
        for at, name in enumerate(sorted(names, key=len, reverse=True)):
            text = text.replace(name, f"name_{at}")
        return text

    @property
    def raises(self) -> bool:
        """Whether it may end with another status than 0: with an exception."""
        start = self.text.index(f"{self.name}(", self.text.index("\ndefine"))
        body = self.text[start : self.text.index("\n}", start)]
        return re.search(r"\bret i32 (?!0\b)", body) is not None

    @property
    def needs_python(self) -> bool:
        """Whether it calls Python or allocates memory."""
        return re.search(r"@(NRT_|Py[A-Z_]|numba_un)", self.text) is not None


def scalar_function(function: Any, arity: int) -> ScalarFunction:
    """Compile a Python function for doubles; division by zero is no error in it.

    >>> made = scalar_function(lambda x: 1 / x, 1)
    >>> "fdiv double" in made.text, made.raises, made.needs_python
    (True, False, False)
    """
    check_numba()
    numba: Any = import_module("numba")
    kind = numba.types.float64
    options = {"error_model": "numpy", "nogil": True}
    bare = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    try:
        compiled = numba.njit(kind(*[kind] * arity), **options, **bare)(function)
    except numba.core.errors.NumbaError as error:
        raise ScalarError(reason_of(error)) from error
    (overload,) = compiled.overloads.values()
    name = getattr(overload.fndesc, "llvm_func_name", None)
    if name is None:
        raise changed_numba("a compiled function has no name in LLVM's text")
    given = [f"x_{at}" for at in range(arity)]
    scope = {"function": compiled}
    exec(
        f"def loop(out, {', '.join(given)}):\n"
        "    for at in range(out.size):\n"
        f"        out[at] = function({', '.join(f'{x}[at]' for x in given)})\n",
        scope,
    )
    loop = numba.njit(scope["loop"], **options)
    return ScalarFunction(str(library_of(compiled).get_llvm_str()), str(name), loop)


def reason_of(error: Exception) -> str:
    """What an error of Numba's says, without its stages and its advice."""
    lines = [line.strip() for line in str(error).splitlines()]
    skipped = ("Failed in", "During:", "Use", "- ", "This error", ">>>", "File", "---")
    said = [line for line in lines if line and not line.startswith(skipped)]
    return re.sub(r"\x1b\[[0-9;]*m", "", said[0] if said else str(error))


def python_function(function: Any) -> Any:
    """The Python function behind what Numba made of it; None if it is not Numba's."""
    function = getattr(function, "_dispatcher", function)  # of a ufunc
    return getattr(function, "py_func", None)
