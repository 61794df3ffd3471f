"""Callables that go straight from Python to compiled code, in a fraction of a µs.

`make_entry` gives a built-in function for a piece of compiled code and one kind of
arguments. Called with exactly such Tensors or arrays it makes the outputs, runs the
code and returns Tensors; called with anything else, or while somebody records, it
returns `MISS` and nothing has happened.

The machine code behind it (`tapejit.targets.cpu.call.entry`) is the same for all; each
callable has its tables. Two objects own what the code relies on: `Native`
(`layout.py`), one per process and never given up, and `Tables`, the callable's `self`,
which keeps everything its words point to.

A callable takes its arguments by position. `respell` gives another one for the same
code that takes the call as a user writes it: `Spelling` says what is given by name and
which values must be those that a trace was made for.

Start reading at `EntrySpec`, then `make_entry`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from math import prod
from typing import Any, Final, Literal

import numpy as np

from tapejit.base.errors import ArgumentError
from tapejit.base.structure import LEAF, Structure, flat_structure
from tapejit.base.types import TensorType
from tapejit.runtime.cpython_layout import Array, Native, Tables, native_for
from tapejit.runtime.memory_pool import KEPT_FROM, address_of, empty
from tapejit.runtime.result_containers import can_be_native, containers_of
from tapejit.runtime.sentinels import MISS
from tapejit.targets.cpu.call.entry_tables import (
    ALIGNMENT,
    HEADER,
    OWNER,
    TABLE,
    WORD,
    Argument,
    Container,
    ContextGuard,
    Fixed,
    GlobalGuard,
    Input,
    Item,
    Output,
    Record,
    Words,
)

__all__ = ["MISS", "EntrySpec", "Spelling", "make_entry", "respell", "why_unavailable"]

ALIGNED_FROM: Final = 16384  # bytes from which an output's alignment pays for itself
POOL_BYTES: Final = 1 << 26  # working memory that a callable keeps between calls
MAX_POINTERS: Final = 1 << 16


@dataclass(frozen=True, kw_only=True)
class EntrySpec:
    """What a native entry is for.

    run          address of the compiled code, `i64 run(i8 **table)`; its table holds
                 the pointers of arguments, variables, captured, outputs, then the
                 arena's and `imports`
    arguments    dtype and shape of each argument, all sizes known
    variables    objects whose slot `_tensor` holds a Tensor, read at each call, with
                 the type it must have
    captured     arrays that never change
    outputs      dtype and shape of what it makes
    commits      the variables that the last outputs are the next values of, each with
                 the number of the input whose memory the output may have, or None
    input_slots  where in the table arguments, variables and captured go, one after the
                 other, None for one that the code does not use; by default in order
    output_slots  which of the code's outputs each of `outputs` is; by default in order
    arena_bytes  working memory it needs
    result       the structure of what is returned, whose leaves are Tensors; "values"
                 for a list of arrays and NumPy scalars
    releases_gil whether other threads run meanwhile: worth it from 20 µs on
    takes_scalars  whether NumPy scalars do for arguments without axes; users' calls
                 do not take them, there they are weak
    context      context variables, each with the very object it must hold
    names        dictionaries and names in them, each with the very object it must be
    keeps        what owns `run` and `imports`
    """

    run: int
    arguments: Sequence[TensorType]
    outputs: Sequence[TensorType]
    commits: Sequence[tuple[Any, int | None]] = ()
    variables: Sequence[tuple[Any, TensorType]] = ()
    captured: Sequence[Any] = ()
    input_slots: Sequence[int | None] | None = None
    output_slots: Sequence[int] | None = None
    arena_bytes: int = 0
    imports: int = 0
    result: Structure | Literal["values"] = LEAF
    releases_gil: bool = False
    takes_scalars: bool = False
    context: Sequence[tuple[ContextVar[Any], Any]] = ()
    names: Sequence[tuple[dict[str, Any], str, Any]] = ()
    keeps: Any = None

    @property
    def inputs(self) -> int:
        """How many there are, used or not."""
        return len(self.arguments) + len(self.variables) + len(self.captured)

    @property
    def results(self) -> int:
        """How many of the outputs are returned."""
        return len(self.outputs) - len(self.commits)

    def slots(self) -> tuple[list[int | None], list[int]]:
        """Where inputs and outputs go in the table."""
        places: list[int | None] = list(range(self.inputs))
        if self.input_slots is not None:
            places = list(self.input_slots)
        used = sum(place is not None for place in places)
        order = self.output_slots
        if order is None:
            order = range(len(self.outputs))
        return places, [used + at for at in order]


@dataclass(frozen=True, kw_only=True)
class Spelling:
    """How a call gives the arguments of an entry.

    positional   how many arguments have no name
    names        the keywords of those that follow, in the order of the call
    arguments    the number of each input among all that are given; of no meaning for
                 one that has a default
    defaults     inputs that are not given, each with the object that stands for it
    floats       the inputs that are given as Python's floats
    fixed        numbers of arguments that choose a trace, each with its value: None, a
                 bool, a text, an int or a float
    """

    positional: int
    names: Sequence[str] = ()
    arguments: Sequence[int] = ()
    defaults: Mapping[int, Any] = field(default_factory=dict)
    floats: frozenset[int] = frozenset()
    fixed: Sequence[tuple[int, Any]] = ()


def make_entry(spec: EntrySpec, tensor_class: type) -> Callable[..., Any] | None:
    """A built-in function of positional arguments; None where there are none.

    It returns `MISS` for arguments that are not exactly as `spec` says: exact Tensors
    or ndarrays, C-contiguous, aligned, in native byte order, of that dtype and shape.
    An output that has no axes is a NumPy scalar.

    >>> import ctypes
    >>> from tapejit.targets.cpu.llvm import ir
    >>> from tapejit.tensor.tensor import Tensor
    >>> from tapejit.targets.cpu.machine.host import Library
    >>> module = ir.LLVMModule("nothing")
    >>> signature = ir.FunctionType(ir.IntType(64), [ir.PointerType()])
    >>> function = ir.LLVMFunction(module, signature, "nothing")
    >>> builder = ir.IRBuilder(function.append_basic_block())
    >>> _ = builder.ret(ir.Literal(ir.IntType(64), 0))
    >>> code = Library(module).function("nothing", ctypes.c_int64, ctypes.c_void_p)
    >>> x = TensorType(np.dtype(np.float32), (2, 3))
    >>> address = ctypes.cast(code, ctypes.c_void_p).value
    >>> spec = EntrySpec(run=address, arguments=[x], outputs=[x], keeps=code)
    >>> entry = make_entry(spec, Tensor)
    >>> entry(np.ones((2, 3), np.float32)).shape
    (2, 3)
    >>> entry(np.ones((3, 2), np.float32)), entry([[1.0, 2.0, 3.0]]), entry()
    (MISS, MISS, MISS)
    """
    native = native_for(tensor_class)
    if isinstance(native, str):
        return None
    check(spec)
    return native.callable_of(tables_of(spec, native))


def why_unavailable(tensor_class: type) -> str | None:
    """Why this process has no native entries; None if it has.

    >>> from tapejit.tensor.tensor import Tensor
    >>> why_unavailable(Tensor) is None
    True
    """
    native = native_for(tensor_class)
    return native if isinstance(native, str) else None


def check(spec: EntrySpec) -> None:
    """Refuse a spec that cannot be met."""
    types = [*spec.arguments, *spec.outputs, *(kind for _, kind in spec.variables)]
    for kind in types:
        if not kind.is_static:
            raise ArgumentError(f"a native entry has known sizes, not {kind}")
        if kind.dtype.hasobject or not kind.dtype.isnative:
            raise ArgumentError(f"a native entry takes no {kind.dtype}")
    if spec.result != "values":
        if spec.result.num_leaves != spec.results:
            raise ArgumentError(f"{spec.results} outputs for {spec.result}")
        if not can_be_native(spec.result):
            raise ArgumentError(f"a native entry makes no {spec.result}")
    places, made = spec.slots()
    used = [place for place in places if place is not None]
    if len(places) != spec.inputs or len(made) != len(spec.outputs):
        raise ArgumentError("each input and output has one slot")
    if sorted((*used, *made)) != list(range(len(used) + len(made))):
        raise ArgumentError(f"{used} and {made} do not fill the table")
    if len(types) + len(spec.captured) > MAX_POINTERS:
        raise ArgumentError(f"a native entry has at most {MAX_POINTERS} pointers")


# The tables of one callable


class Kept(list[Any]):
    """Collects what words point to; gives the words."""

    def object(self, thing: Any) -> int:
        """The address of an object."""
        self.append(thing)
        return id(thing)

    def words(self, words: Sequence[int]) -> int:
        """The address of a table with these words."""
        return self.array(np.array([*words, 0], np.int64))

    def array(self, array: Array) -> int:
        """The address of an array's data."""
        self.append(array)
        return address_of(array)

    def rows(self, columns: type[Words], rows: Sequence[dict[Any, int]]) -> int:
        """The address of a table with these rows."""
        return self.words([row[column] for row in rows for column in columns])


def tables_of(spec: EntrySpec, native: Native) -> Tables:
    """The record of a new callable, with everything it points to."""
    kept = Kept([spec])
    inputs = [input_row(kept, native, kind) for kind in spec.arguments]
    for variable, kind in spec.variables:
        row = input_row(kept, native, kind)
        row[Input.variable] = kept.object(variable)
        row[Input.slot] = native.variable_slot(variable, "_tensor")
        inputs.append(row)
    outputs = [output_row(kept, native, kind) for kind in spec.outputs]
    own = [(None, None)] * spec.results
    is_late = any(
        makes_scalar_late(*x) for x in zip(outputs, spec.outputs, strict=True)
    )
    for row, (variable, source) in zip(outputs, [*own, *spec.commits], strict=True):
        row.update(commit_of(kept, native, variable, source))
        if is_late:
            row[Output.source] = -1  # that may fail, and then nothing has changed
    result = spec.result
    if result == "values":
        result = flat_structure(list, spec.results)
    containers, whole = containers_of(result, len(outputs))
    frames = Frames(spec, kept, len(containers))
    for row, place in zip(inputs, frames.inputs, strict=False):
        row[Input.place] = place
    for row, place in zip(outputs, frames.outputs, strict=True):
        row[Output.place] = place
    guards = [
        {
            ContextGuard.variable: kept.object(variable),
            ContextGuard.expected: kept.object(value),
        }
        for variable, value in spec.context
    ]
    names = [
        {
            GlobalGuard.dictionary: kept.object(dictionary),
            GlobalGuard.key: kept.object(sys.intern(name)),
            GlobalGuard.expected: kept.object(value),
        }
        for dictionary, name, value in spec.names
    ]
    count = len(spec.arguments)
    record: dict[Any, int] = {
        **spelling_words(kept, Spelling(positional=count, arguments=range(count))),
        Record.services: native.services,
        Record.run: spec.run,
        Record.arguments: count,
        Record.guards: len(guards),
        Record.guard_table: kept.rows(ContextGuard, guards),
        Record.globals: len(names),
        Record.global_table: kept.rows(GlobalGuard, names),
        Record.inputs: len(inputs),
        Record.input_table: kept.rows(Input, inputs),
        Record.outputs: len(outputs),
        Record.output_table: kept.rows(Output, outputs),
        Record.containers: len(containers),
        Record.container_table: kept.rows(
            Container, [container_row(kept, native, x) for x in containers]
        ),
        Record.result: kept.rows(Item, [item_row(kept, whole)]),
        Record.objects: frames.objects,
        Record.free: kept.words([0]),
        Record.grow: kept.object(frames.new),
        Record.wraps: int(spec.result != "values"),
        Record.releases: int(spec.releases_gil),
        Record.bare: int(spec.takes_scalars),
    }
    return filled([record[column] for column in Record], kept)


def filled(words: Sequence[int], kept: Kept) -> Tables:
    """The record with these words."""
    tables = np.array(words, np.int64).view(Tables)
    tables.kept = kept
    return tables


def respell(
    entry: Callable[..., Any], spelling: Spelling, tensor_class: type
) -> Callable[..., Any]:
    """Another callable for the same code, whose calls are spelled otherwise.

    Both have the same frames, and so the same working memory.
    """
    native = native_for(tensor_class)
    assert isinstance(native, Native)
    before: Any = entry
    record: Tables = before.__self__
    kept = Kept(record.kept)  # a copy: the collector takes them apart one by one
    words = dict(zip(Record, record.tolist(), strict=True))
    words.update(spelling_words(kept, spelling))
    return native.callable_of(filled([words[column] for column in Record], kept))


def spelling_words(kept: Kept, spelling: Spelling) -> dict[Any, int]:
    """The words of a record that say how its calls are spelled."""
    arguments = [
        {
            Argument.place: place,
            Argument.default: 0,
            Argument.is_float: int(at in spelling.floats),
        }
        for at, place in enumerate(spelling.arguments)
    ]
    for at, default in spelling.defaults.items():
        arguments[at][Argument.default] = kept.object(default)
    fixed = [
        {
            Fixed.place: place,
            Fixed.expected: kept.object(value),
            Fixed.is_exact: int(type(value) is float and (value != value or not value)),
        }
        for place, value in spelling.fixed
    ]
    names = [kept.object(sys.intern(name)) for name in spelling.names]
    return {
        Record.given: spelling.positional + len(names),
        Record.names: len(names),
        Record.name_table: kept.words(names),
        Record.fixed: len(fixed),
        Record.fixed_table: kept.rows(Fixed, fixed),
        Record.argument_table: kept.rows(Argument, arguments),
    }


def container_row(kept: Kept, native: Native, container: Any) -> dict[Any, int]:
    """How a container is made."""
    cls, places, keys = container
    is_named = cls is not dict and cls not in native.sequences
    new, put = native.sequences.get(tuple if is_named else cls, (0, 0))
    items = [item_row(kept, place) for place in places]
    for row, key in zip(items, keys or (), strict=False):
        row[Item.key] = kept.object(key)
    return {
        Container.new: new,
        Container.named: kept.object(cls) if is_named else 0,
        Container.put: put,
        Container.length: len(items),
        Container.items: kept.rows(Item, items),
    }


def item_row(kept: Kept, place: int | None) -> dict[Any, int]:
    """An output or a container by its number, or None."""
    fixed = kept.object(None) if place is None else 0
    return {Item.fixed: fixed, Item.place: place or 0, Item.key: 0}


def input_row(kept: Kept, native: Native, kind: TensorType) -> dict[Any, int]:
    """What an input of this type must be like."""
    dtype = kind.dtype
    takes_scalar = not kind.shape and native.scalar_lies_as_expected(dtype)
    return {
        Input.variable: 0,
        Input.slot: 0,
        Input.descr: kept.object(dtype),
        Input.number: dtype.num,
        Input.order: ord(dtype.byteorder),
        Input.ndim: len(kind.shape),
        Input.shape: kept.words(sizes_of(kind)),
        Input.scalar_class: kept.object(dtype.type) if takes_scalar else 0,
        Input.scalar_data: HEADER,
        Input.place: 0,
    }


def output_row(kept: Kept, native: Native, kind: TensorType) -> dict[Any, int]:
    """How an output of this type is made."""
    size = nbytes(kind)
    # There are two bools, which everybody has.
    is_own = kind.dtype.kind != "b" and native.scalar_lies_as_expected(kind.dtype)
    padded = kept.words([size + ALIGNMENT]) if size >= ALIGNED_FROM else 0
    lent = kept.object(size) if size >= KEPT_FROM else 0
    return {
        Output.is_scalar: int(not kind.shape),
        Output.scalar_data: HEADER if is_own else 0,
        Output.itemsize: kind.dtype.itemsize,
        Output.descr: kept.object(kind.dtype),
        Output.ndim: len(kind.shape),
        Output.shape: kept.words(sizes_of(kind)),
        Output.padded: padded,
        Output.lent: lent,
        Output.place: 0,
    }


def makes_scalar_late(row: Mapping[Any, int], kind: TensorType) -> bool:
    """Whether an object has to be made when a number is known."""
    is_known = row[Output.scalar_data] or kind.dtype.kind == "b"
    return not kind.shape and not is_known


def commit_of(
    kept: Kept, native: Native, variable: Any, source: int | None
) -> dict[Any, int]:
    """What becomes of an output that is the next value of a variable, if it is one."""
    names = {Output.slot: "_tensor", Output.lock: "_lock", Output.away: "_away"}
    found: dict[Any, int] = dict.fromkeys((Output.variable, *names), 0)
    found[Output.source] = -1 if source is None else source
    if variable is not None:
        found[Output.variable] = kept.object(variable)
        for column, name in names.items():
            found[column] = native.variable_slot(variable, name)
    return found


def sizes_of(kind: TensorType) -> list[int]:
    return [int(size) for size in kind.shape]


def nbytes(kind: TensorType) -> int:
    return prod(sizes_of(kind)) * kind.dtype.itemsize


class Frames:
    """Makes the working memory of calls, one frame for each that is in flight.

    A frame starts on a cache line: a link, the table of pointers, the objects held,
    room for scalar outputs, then the arena on the next cache line. All that is the
    same in every call is in place from the start.

    Two frames and as many as fit into POOL_BYTES stay for later calls. One made while
    all those are in use serves a single call, and says so by naming its owner.
    """

    def __init__(self, spec: EntrySpec, kept: Kept, containers: int) -> None:
        places, self.outputs = spec.slots()
        pointers = sum(place is not None for place in places) + len(spec.outputs)
        # What the code does not use goes to a word after the table.
        self.inputs = [pointers + 2 if place is None else place for place in places]
        self.objects = (TABLE + pointers + 3) * WORD
        self.arena_place = TABLE + pointers
        checked = len(spec.arguments) + len(spec.variables)
        objects = checked + len(spec.outputs) + containers
        scalars = -(-(self.objects + objects * WORD) // 16) * 16
        end = scalars + 16 * len(spec.outputs)
        self.arena = -(-end // ALIGNMENT) * ALIGNMENT
        self.arena_bytes = spec.arena_bytes
        self.head = np.zeros(self.arena // WORD, np.int64)
        for place, value in zip(self.inputs[checked:], spec.captured, strict=True):
            array = np.require(value, requirements=("C", "A"))
            self.head[TABLE + place] = kept.array(array)
        self.head[self.arena_place + 1] = spec.imports
        self.scalars = [
            (TABLE + place, scalars + 16 * at)
            for at, (place, kind) in enumerate(
                zip(self.outputs, spec.outputs, strict=True)
            )
            if not kind.shape
        ]
        self.made: list[Array] = []

    def new(self) -> Array:
        """A new frame; it is given back where it does not stay."""
        size = self.arena + self.arena_bytes
        stays = len(self.made) < max(2, POOL_BYTES // size)
        make = np.empty if stays else empty
        try:
            room = make((size + ALIGNMENT,), np.dtype(np.uint8))
        except MemoryError:
            raise MemoryError(
                f"unable to allocate {size / 2**20:,.0f} MiB of working memory for a "
                "compiled function"
            ) from None
        start = -address_of(room) % ALIGNMENT
        frame = room[start : start + size]
        where = address_of(frame)
        words = frame[: self.arena].view(np.int64)
        words[:] = self.head
        words[self.arena_place] = where + self.arena
        for at, offset in self.scalars:
            words[at] = where + offset
        if stays:
            self.made.append(frame)
        else:
            words[OWNER] = id(frame)
        return frame
