"""The native way into compiled code: one CPython function for all Executables.

`entry_module` is machine code that CPython calls directly, with the names of keywords
behind the arguments (METH_FASTCALL and METH_KEYWORDS). It reads
tables: what it has to check, where the compiled code is, what to make of the results.
So it is compiled once and serves every function; a new signature costs a new table, not
a compilation. It names no external symbol and no layout of an object: addresses and
offsets are words of the tables too, so it can be stored as it is.

The data structures are the tables of `entry_tables.py`; `tapejit.runtime.native_entry`
fills them.

A call takes a frame from the free ones, checks, makes the outputs and runs. What does
not fit gives MISS, whatever it is: the caller knows a slower way that does. The
GIL is held but for the compiled code itself, so the free frames need no lock.

Outputs that are the next values of variables replace these at the end, all in one go:
`entry_variables.py`.

Start reading at `entry_module`.
"""

from __future__ import annotations

from typing import Any, Final

from tapejit.targets.cpu.call.entry_code import (
    I8,
    I32,
    I64,
    NULL,
    POINTER,
    function_type,
    number,
)
from tapejit.targets.cpu.call.entry_tables import (
    ALIGNMENT,
    HEADER,
    INTERRUPTED,
    LINK,
    OWNER,
    SYMBOL,
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
    Services,
)
from tapejit.targets.cpu.call.entry_variables import Variables
from tapejit.targets.cpu.llvm import ir
from tapejit.targets.cpu.llvm.ir import LLVMModule, Value

CARRAY: Final = 0x0501  # NumPy's flags: C-contiguous, aligned, writeable
EQUAL: Final = 2  # CPython's Py_EQ
FITTING: Final = 0x0101  # C-contiguous, aligned


def entry_module() -> LLVMModule:
    """The module with the one function, `PyObject *(self, arguments, count, names)`.

    >>> text = str(entry_module())
    >>> SYMBOL in text, "declare" in text
    (True, False)
    """
    module = ir.LLVMModule("tapejit entry")
    signature = ir.FunctionType(POINTER, [POINTER, POINTER, I64, POINTER])
    _Emitter(ir.LLVMFunction(module, signature, SYMBOL)).emit()
    return module


class _Emitter(Variables):
    """Writes the function: `emit` is its outline, a method each step."""

    def emit(self) -> None:
        """All steps in order."""
        self.check_state()
        self.take_frame()
        inputs = self.word(self.record, Record.inputs)
        outputs = self.word(self.record, Record.outputs)
        self.results = self.at(self.objects, inputs)
        self.b.store(number(0), self.locked)
        self.b.store(NULL, self.made)
        arguments = self.word(self.record, Record.arguments)
        with self.loop(outputs) as at:
            self.take_lock(at)
        with self.loop(arguments) as at:
            self.hold_argument(at)
        with self.loop(outputs) as at:
            self.make_output(at)
        with self.loop(outputs) as at:
            self.wrap(at)
        self.gather()
        # Making objects may run the garbage collector, and that finalizers, which may
        # assign to variables: those are read now that all objects are made. From here
        # to the commit nothing runs Python, but for handlers of signals.
        with self.loop(self.b.sub(inputs, arguments)) as at:
            self.hold_variable(self.b.add(arguments, at))
        with self.loop(outputs) as at:
            self.take_output(at)
        self.run()
        # Nothing fails for want of memory: values may have been written over.
        with self.loop(outputs) as at:
            self.write_number(at)
        with self.loop(outputs) as at:
            self.commit(at)
        self.b.store(self.b.load(self.made, typ=POINTER), self.result)
        self.b.store(NULL, self.made)
        self.b.branch(self.leave)
        self.finish(inputs, outputs)

    # Steps

    def check_state(self) -> None:
        """How the call is spelled, and what the caller's state must be."""
        b = self.b
        # The garbage collector has taken apart what this belongs to.
        kept = self.load(self.owner, self.service(Services.kept))
        self.go_if(self.is_null(kept), self.refused)
        self.check_spelling()
        with self.loop(self.word(self.record, Record.guards)) as at:
            guard = self.row(Record.guard_table, ContextGuard, at)
            b.store(NULL, self.found)
            variable = self.word(guard, ContextGuard.variable, POINTER)
            status = self.call(Services.PyContextVar_Get, variable, NULL, self.found)
            with b.if_then(b.icmp_signed("<", status, ir.Literal(I32, 0))):
                b.ret(NULL)
            found = b.load(self.found, typ=POINTER)
            self.call(Services.Py_DecRef, found)  # the context still has it
            wanted = self.word(guard, ContextGuard.expected, POINTER)
            self.go_if(self.differ(found, wanted), self.refused)
        with self.loop(self.word(self.record, Record.globals)) as at:
            row = self.row(Record.global_table, GlobalGuard, at)
            dictionary = self.word(row, GlobalGuard.dictionary, POINTER)
            key = self.word(row, GlobalGuard.key, POINTER)
            found = self.call(Services.PyDict_GetItem, dictionary, key)
            wanted = self.word(row, GlobalGuard.expected, POINTER)
            self.go_if(self.differ(found, wanted), self.refused)

    def check_spelling(self) -> None:
        """The number of arguments, their names, and those that choose a trace.

        A name is the very object that it was: an equal one takes the slower way. To
        compare values of one class, which are numbers and texts, runs no Python.
        """
        b = self.b
        names = self.word(self.record, Record.names)
        b.store(number(0), self.number)
        with b.if_then(b.not_(self.is_null(self.names))):
            b.store(self.call(Services.PyTuple_Size, self.names), self.number)
        found = b.load(self.number, typ=I64)
        self.go_if(b.icmp_signed("!=", found, names), self.refused)
        expected = self.word(self.record, Record.given)
        self.go_if(
            b.icmp_signed("!=", b.add(self.count, found), expected), self.refused
        )
        name_table = self.word(self.record, Record.name_table, POINTER)
        with self.loop(names) as at:
            name = self.call(Services.PyTuple_GetItem, self.names, at)
            wanted = self.word(name_table, at, POINTER)
            self.go_if(self.differ(name, wanted), self.refused)
        with self.loop(self.word(self.record, Record.fixed)) as at:
            row = self.row(Record.fixed_table, Fixed, at)
            given = self.word(self.arguments, self.word(row, Fixed.place), POINTER)
            wanted = self.word(row, Fixed.expected, POINTER)
            with b.if_then(self.differ(given, wanted)):
                is_exact = self.word(row, Fixed.is_exact)
                self.go_if(b.icmp_signed("!=", is_exact, number(0)), self.refused)
                kinds = [
                    self.load(x, self.service(Services.object_class))
                    for x in (given, wanted)
                ]
                self.go_if(self.differ(*kinds), self.refused)
                equals = ir.Literal(I32, EQUAL)
                answer = self.call(
                    Services.PyObject_RichCompareBool, given, wanted, equals
                )
                one = ir.Literal(I32, 1)
                self.go_if(b.icmp_signed("!=", answer, one), self.refused)

    def take_frame(self) -> None:
        """A free frame, or a new one; calls in flight have one each."""
        b = self.b
        free = self.word(self.record, Record.free, POINTER)
        b.store(b.load(free, typ=POINTER), self.frame_found)
        is_none = self.is_null(b.load(self.frame_found, typ=POINTER))
        with b.if_else(is_none) as (grows, takes):
            with grows:
                grow = self.word(self.record, Record.grow, POINTER)
                array = self.call(Services.PyObject_CallNoArgs, grow)
                with b.if_then(self.is_null(array)):
                    b.ret(NULL)
                data = self.load(array, self.service(Services.array_data))
                b.store(data, self.frame_found)
                is_kept = self.is_null(self.word(data, OWNER, POINTER))
                with b.if_then(is_kept):
                    self.call(Services.Py_DecRef, array)
            with takes:
                first = b.load(self.frame_found, typ=POINTER)
                b.store(self.word(first, LINK, POINTER), free)
        self.frame = b.load(self.frame_found, typ=POINTER)
        self.table = self.at(self.frame, TABLE)
        offset = self.word(self.record, Record.objects)
        self.objects = self.offset(self.frame, offset)

    def hold_argument(self, at: Value) -> None:
        """Hold the array of an argument, or a float as it is."""
        b = self.b
        row = self.row(Record.argument_table, Argument, at)
        default = self.word(row, Argument.default, POINTER)
        b.store(default, self.found)
        with b.if_then(self.is_null(default)):
            place = self.word(row, Argument.place)
            b.store(self.word(self.arguments, place, POINTER), self.found)
        given = b.load(self.found, typ=POINTER)
        is_float = b.icmp_signed("!=", self.word(row, Argument.is_float), number(0))
        with b.if_else(is_float) as (number_, array):
            with number_:
                is_other = b.not_(self.is_a(given, Services.float_class))
                self.go_if(is_other, self.missed)
                place = self.word(self.row(Record.input_table, Input, at), Input.place)
                b.store(self.offset(given, HEADER), self.at(self.table, place))
                self.call(Services.Py_IncRef, given)
                b.store(given, self.at(self.objects, at))
            with array:
                self.hold(at)

    def hold_variable(self, at: Value) -> None:
        """Hold the array of a variable that is an input."""
        b = self.b
        row = self.row(Record.input_table, Input, at)
        variable = self.word(row, Input.variable, POINTER)
        held = self.load(variable, self.word(row, Input.slot))
        self.go_if(self.is_null(held), self.missed)
        self.go_if(b.not_(self.is_a(held, Services.tensor_class)), self.missed)
        b.store(held, self.found)
        self.hold(at)

    def hold(self, at: Value) -> None:
        """Check an input that was found, hold its array, note where its data is."""
        b = self.b
        row = self.row(Record.input_table, Input, at)
        found = b.load(self.found, typ=POINTER)
        with b.if_then(self.is_a(found, Services.tensor_class)):
            value = self.load(found, self.service(Services.tensor_value))
            self.go_if(self.is_null(value), self.missed)
            b.store(value, self.found)
        # A scalar is taken from a Tensor; by itself it is weak where users pass it.
        value = b.load(self.found, typ=POINTER)
        is_array = self.is_a(value, Services.array_class)
        data = self.at(self.table, self.word(row, Input.place))
        with b.if_else(is_array) as (array, other):
            with array:
                self.check_array(row, value)
                b.store(self.load(value, self.service(Services.array_data)), data)
            with other:
                is_bare = b.not_(self.differ(value, found))
                takes_none = self.word(self.record, Record.bare)
                takes_none = b.icmp_signed("==", takes_none, number(0))
                self.go_if(b.and_(is_bare, takes_none), self.missed)
                kind = self.load(value, self.service(Services.object_class))
                wanted = self.word(row, Input.scalar_class, POINTER)
                self.go_if(self.differ(kind, wanted), self.missed)
                scalar = self.offset(value, self.word(row, Input.scalar_data))
                b.store(scalar, data)
        self.call(Services.Py_IncRef, value)
        b.store(value, self.at(self.objects, at))

    def check_array(self, row: Value, array: Value) -> None:
        """dtype, layout, rank and sizes, exactly."""
        b = self.b
        descr = self.load(array, self.service(Services.array_descr))
        same = self.differ(descr, self.word(row, Input.descr, POINTER))
        with b.if_then(same):  # a copy of the dtype, from a pickle for example
            which = self.load(descr, self.service(Services.descr_number), I32)
            wanted = b.trunc(self.word(row, Input.number), I32)
            self.go_if(b.icmp_signed("!=", which, wanted), self.missed)
            order = self.load(descr, self.service(Services.descr_order), I8)
            wanted = b.trunc(self.word(row, Input.order), I8)
            self.go_if(b.icmp_signed("!=", order, wanted), self.missed)
        flags = self.load(array, self.service(Services.array_flags), I32)
        fitting = ir.Literal(I32, FITTING)
        self.go_if(b.icmp_signed("!=", b.and_(flags, fitting), fitting), self.missed)
        ndim = self.word(row, Input.ndim)
        found = self.load(array, self.service(Services.array_ndim), I32)
        self.go_if(b.icmp_signed("!=", b.sext(found, I64), ndim), self.missed)
        shape = self.load(array, self.service(Services.array_shape))
        wanted_shape = self.word(row, Input.shape, POINTER)
        with self.loop(ndim) as axis:
            size, wanted = self.word(shape, axis), self.word(wanted_shape, axis)
            self.go_if(b.icmp_signed("!=", size, wanted), self.missed)

    def make_output(self, at: Value) -> None:
        """A new array, or a scalar, whose number is written to the frame first.

        None for the next value of a variable that can have the memory of its value:
        `take_output` will take it, or miss if somebody else has come to refer to it.
        """
        b = self.b
        row = self.row(Record.output_table, Output, at)
        array, fresh, made = (
            self.function.append_basic_block(x) for x in ("array", "fresh", "made")
        )
        is_scalar = self.word(row, Output.is_scalar)
        self.go_if(b.icmp_signed("==", is_scalar, number(0)), array)
        b.store(self.new_scalar(row), self.at(self.results, at))
        b.branch(made)
        b.position_at_end(array)
        self.find_sole_owner(row, fresh, references=1)
        b.branch(made)
        b.position_at_end(fresh)
        self.note_output(row, at, self.fresh_array(row))
        b.branch(made)
        b.position_at_end(made)

    def take_output(self, at: Value) -> None:
        """The memory of a variable's value for its next one."""
        b = self.b
        row = self.row(Record.output_table, Output, at)
        own = b.load(self.at(self.results, at), typ=POINTER)
        with b.if_then(self.is_null(own)):
            taken = self.taken_array(row, self.missed)
            self.call(Services.Py_IncRef, taken)
            self.note_output(row, at, taken)

    def new_scalar(self, row: Value) -> Value:
        """A scalar as NumPy has it, of the number in the frame."""
        data = self.word(self.table, self.word(row, Output.place), POINTER)
        descr = self.word(row, Output.descr, POINTER)
        scalar = self.call(Services.PyArray_Scalar, data, descr, NULL)
        self.go_if(self.is_null(scalar), self.failed)
        return scalar

    def note_output(self, row: Value, at: Value, array: Value) -> None:
        """Have the frame hold an array, and compiled code write to it."""
        self.b.store(array, self.at(self.results, at))
        data = self.load(array, self.service(Services.array_data))
        self.b.store(data, self.at(self.table, self.word(row, Output.place)))

    def fresh_array(self, row: Value) -> Value:
        """A new array for an output."""
        b = self.b
        padded = self.word(row, Output.padded, POINTER)
        descr = self.word(row, Output.descr, POINTER)
        shape = self.word(row, Output.shape, POINTER)
        ndim = b.trunc(self.word(row, Output.ndim), I32)
        with b.if_else(self.is_null(padded)) as (small, large):
            with small:
                array = self.new_array(descr, ndim, shape, NULL, 0)
                b.store(array, self.found)
            with large:
                size = self.word(row, Output.lent, POINTER)
                with b.if_else(self.is_null(size)) as (new, lent):
                    with new:
                        self.find_new_room(padded)
                    with lent:
                        self.find_lent_room(size)
                room = b.load(self.found, typ=POINTER)
                place = b.load(self.place, typ=POINTER)
                array = self.new_array(descr, ndim, shape, place, CARRAY, room)
                b.store(array, self.found)
        return b.load(self.found, typ=POINTER)

    def find_new_room(self, padded: Value) -> None:
        """An array of bytes as the room for an output, which starts inside of it."""
        b = self.b
        bytes_ = self.service(Services.byte_descr, POINTER)
        room = self.new_array(bytes_, ir.Literal(I32, 1), padded, NULL, 0)
        start = self.load(room, self.service(Services.array_data))
        end = b.add(self.as_word(start), number(ALIGNMENT - 1))
        aligned = b.and_(end, number(-ALIGNMENT))
        b.store(room, self.found)
        b.store(b.inttoptr(aligned, POINTER), self.place)

    def find_lent_room(self, size: Any) -> None:
        """A Loan as the room for an output; its memory was probably used before."""
        b = self.b
        lend = self.service(Services.lend, POINTER)
        loan = self.call(Services.PyObject_CallOneArg, lend, size)
        self.go_if(self.is_null(loan), self.failed)
        block = self.load(loan, self.service(Services.loan_block))
        b.store(loan, self.found)
        b.store(self.load(block, self.service(Services.array_data)), self.place)

    def new_array(
        self,
        descr: Value,
        ndim: Value,
        shape: Any,
        data: Value,
        flags: int,
        base: Value | None = None,
    ) -> Value:
        """An ndarray; `base` is the object that owns `data`, which it takes over."""
        b = self.b
        self.call(Services.Py_IncRef, descr)  # the next call takes a reference
        array = self.call(
            Services.PyArray_NewFromDescr,
            self.service(Services.array_class, POINTER),
            descr,
            ndim,
            shape,
            NULL,
            data,
            ir.Literal(I32, flags),
            NULL,
        )
        with b.if_then(self.is_null(array)):
            if base is not None:
                self.call(Services.Py_DecRef, base)
            b.branch(self.failed)
        if base is not None:
            status = self.call(Services.PyArray_SetBaseObject, array, base)
            with b.if_then(b.icmp_signed("!=", status, ir.Literal(I32, 0))):
                self.call(Services.Py_DecRef, array)
                b.branch(self.failed)
        return array

    def run(self) -> None:
        """The compiled code; where it fails, the slower way will say why."""
        b = self.b
        run = self.word(self.record, Record.run, function_type(I64, POINTER))
        releases = self.word(self.record, Record.releases)
        with b.if_else(b.icmp_signed("!=", releases, number(0))) as (long, short):
            with long:
                thread = self.call(Services.PyEval_SaveThread)
                b.store(b.call(run, [self.table]), self.number)
                self.call(Services.PyEval_RestoreThread, thread)
            with short:
                b.store(b.call(run, [self.table]), self.number)
        failure = b.load(self.number, typ=I64)
        self.go_if(b.icmp_signed("==", failure, number(INTERRUPTED)), self.failed)
        self.go_if(b.icmp_signed("!=", failure, number(0)), self.missed)

    def wrap(self, at: Value) -> None:
        """A Tensor around the value, if that is wanted.

        Variables hold Tensors; one whose memory is written to has its own already.
        """
        b = self.b
        row = self.row(Record.output_table, Output, at)
        place = self.at(self.results, at)
        variable = self.word(row, Output.variable, POINTER)
        with b.if_else(self.is_null(variable)) as (result, value):
            with result:
                wraps = self.word(self.record, Record.wraps)
                with b.if_then(b.icmp_signed("!=", wraps, number(0))):
                    self.wrap_in_tensor(place, self.service(Services.none, POINTER))
            with value:
                is_made = b.not_(self.is_null(b.load(place, typ=POINTER)))
                with b.if_then(is_made):
                    held = self.load(variable, self.word(row, Output.slot))
                    self.go_if(self.is_null(held), self.missed)
                    made = self.load(held, self.service(Services.tensor_made))
                    self.wrap_in_tensor(place, made)

    def wrap_in_tensor(self, place: Value, made: Value) -> None:
        """Have a Tensor in place of its value."""
        b = self.b
        # First: what it belongs to may be gone when there is a Tensor.
        self.call(Services.Py_IncRef, made)
        kind = self.service(Services.tensor_class, POINTER)
        tensor = self.call(Services.PyType_GenericAlloc, kind, number(0))
        with b.if_then(self.is_null(tensor)):
            self.call(Services.Py_DecRef, made)
            b.branch(self.failed)
        value = b.load(place, typ=POINTER)
        b.store(value, self.offset(tensor, self.service(Services.tensor_value)))
        zero = self.service(Services.zero, POINTER)
        self.call(Services.Py_IncRef, zero)
        b.store(zero, self.offset(tensor, self.service(Services.tensor_id)))
        b.store(made, self.offset(tensor, self.service(Services.tensor_made)))
        b.store(tensor, place)

    def gather(self) -> None:
        """What is returned: the only result, or the outermost container."""
        outputs = self.word(self.record, Record.outputs)
        with self.loop(self.word(self.record, Record.containers)) as at:
            self.fill_container(at, self.at(self.results, self.b.add(outputs, at)))
        whole = self.item(self.word(self.record, Record.result, POINTER))
        self.call(Services.Py_IncRef, whole)
        self.b.store(whole, self.made)

    def fill_container(self, at: Value, place: Value) -> None:
        """Make a container of what the frame holds by now, and have the frame hold it.

        From where it is made until it is full nothing runs Python: a tuple takes items
        only while nobody else refers to it.
        """
        b = self.b
        row = self.row(Record.container_table, Container, at)
        put_type = function_type(I32, POINTER, I64, POINTER)
        put = self.word(row, Container.put, put_type)
        is_dict = self.is_null(self.word(row, Container.put, POINTER))
        made = self.new_container(row, is_dict)
        b.store(made, place)
        items = self.word(row, Container.items, POINTER)
        with self.loop(self.word(row, Container.length)) as number_:
            item_row = self.offset(items, b.mul(number_, number(WORD * len(Item))))
            item = self.item(item_row)
            with b.if_else(is_dict) as (by_key, by_number):
                with by_key:
                    key = self.word(item_row, Item.key, POINTER)
                    status = self.call(Services.PyDict_SetItem, made, key, item)
                    is_wrong = b.icmp_signed("<", status, ir.Literal(I32, 0))
                    self.go_if(is_wrong, self.failed)
                with by_number:
                    self.call(Services.Py_IncRef, item)  # the next call takes one
                    b.call(put, [made, number_, item])

    def new_container(self, row: Value, is_dict: Value) -> Value:
        """An empty container."""
        b = self.b
        length = self.word(row, Container.length)
        named = self.word(row, Container.named, POINTER)
        with b.if_else(is_dict) as (by_key, by_number):
            with by_key:
                b.store(self.call(Services.PyDict_New), self.found)
            with by_number, b.if_else(self.is_null(named)) as (plain, other):
                with plain:
                    new = self.word(row, Container.new, function_type(POINTER, I64))
                    b.store(b.call(new, [length]), self.found)
                with other:
                    made = self.call(Services.PyType_GenericAlloc, named, length)
                    b.store(made, self.found)
        made = b.load(self.found, typ=POINTER)
        self.go_if(self.is_null(made), self.failed)
        return made

    def item(self, row: Value) -> Value:
        """What an Item stands for; the frame holds it, or it is always there."""
        b = self.b
        fixed = self.word(row, Item.fixed, POINTER)
        b.store(fixed, self.found)
        with b.if_then(self.is_null(fixed)):
            held = self.word(self.results, self.word(row, Item.place), POINTER)
            b.store(held, self.found)
        return b.load(self.found, typ=POINTER)

    def write_number(self, at: Value) -> None:
        """Give a scalar the number that was computed."""
        b = self.b
        row = self.row(Record.output_table, Output, at)
        is_scalar = self.word(row, Output.is_scalar)
        with b.if_then(b.icmp_signed("!=", is_scalar, number(0))):
            result = self.word(self.results, at, POINTER)
            is_tensor = self.is_a(result, Services.tensor_class)
            slot = self.offset(result, self.service(Services.tensor_value))
            where = self.word(row, Output.scalar_data)
            with b.if_else(b.icmp_signed("!=", where, number(0))) as (known, other):
                with known:
                    b.store(result, self.found)
                    with b.if_then(is_tensor):
                        b.store(b.load(slot, typ=POINTER), self.found)
                    into = self.offset(b.load(self.found, typ=POINTER), where)
                    data = self.word(self.table, self.word(row, Output.place), POINTER)
                    with self.loop(self.word(row, Output.itemsize)) as byte:
                        value = self.load(data, byte, I8)
                        b.store(value, self.offset(into, byte))
                with other:
                    scalar = self.new_scalar(row)
                    with b.if_else(is_tensor) as (inside, bare):
                        with inside:
                            before = b.load(slot, typ=POINTER)
                            b.store(scalar, slot)
                            self.call(Services.Py_DecRef, before)
                        with bare:
                            values = b.load(self.made, typ=POINTER)
                            self.call(Services.PyList_SetItem, values, at, scalar)

    def finish(self, inputs: Value, outputs: Value) -> None:
        """The ways out."""
        b = self.b
        miss = Services.miss
        b.position_at_end(self.refused)
        self.call(Services.Py_IncRef, self.service(miss, POINTER))
        b.ret(self.service(miss, POINTER))
        b.position_at_end(self.missed)
        self.call(Services.Py_IncRef, self.service(miss, POINTER))
        b.store(self.service(miss, POINTER), self.result)
        b.branch(self.leave)
        b.position_at_end(self.failed)
        b.store(NULL, self.result)
        b.branch(self.leave)
        b.position_at_end(self.leave)
        with self.loop(outputs) as at:
            self.put_back(at)
        self.release_locks()
        self.call(Services.Py_DecRef, b.load(self.made, typ=POINTER))
        containers = self.word(self.record, Record.containers)
        with self.loop(b.add(b.add(inputs, outputs), containers)) as at:
            place = self.at(self.objects, at)
            found = b.load(place, typ=POINTER)
            b.store(NULL, place)
            self.call(Services.Py_DecRef, found)  # nothing happens for NULL
        owner = self.word(self.frame, OWNER, POINTER)
        with b.if_else(self.is_null(owner)) as (stays, goes):
            with stays:
                free = self.word(self.record, Record.free, POINTER)
                b.store(b.load(free, typ=POINTER), self.at(self.frame, LINK))
                b.store(self.frame, free)
            with goes:
                self.call(Services.Py_DecRef, owner)
        b.ret(b.load(self.result, typ=POINTER))
