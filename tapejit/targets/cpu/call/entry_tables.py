"""The tables that the native entry reads: their columns, as numbers of 64-bit words.

    Services      one per process: functions of CPython and NumPy, classes, offsets
    Record        one per callable, in the memory of the ndarray that is its `self`
    ContextGuard  a context variable and what it must hold
    GlobalGuard   a module's dictionary, a name in it, and what it must hold
    Argument      where an argument is among those given
    Fixed         an argument that must have a certain value
    Input         an argument or a variable: what its array must be like
    Output        an array or scalar to be made, and the variable that it is for
    Container     a tuple, list or dict to be made of results and other containers
    Item          what is in it
    frame         working memory of one call: link, pointers, objects held, arena


`entry.py` emits the code that reads them, `tapejit.runtime.native_entry` fills them.
They stand apart because a process that loads the code from a file needs no code
generator.

Start reading at `Record`.
"""

from __future__ import annotations

from enum import IntEnum, auto
from typing import Final

from tapejit.targets.cpu.llvm.ir import Value

SYMBOL: Final = "tapejit_entry"
HEADER: Final = 16  # bytes before an object's own fields: the only layout in the code
WORD: Final = 8
ALIGNMENT: Final = 64
# What compiled code returns if a signal's handler has raised; an error is set then. It
# returns less if the call has to be made again (`OVERTAKEN` of polling).
INTERRUPTED: Final = -1


class Words(IntEnum):
    """Columns of a table, numbered from 0."""

    @staticmethod
    def _generate_next_value_(
        name: str, start: int, count: int, last_values: list[Value]
    ) -> int:
        return count


class Services(Words):
    """What the code needs of the process.

    Functions are called by their C names, `object_*`, `array_*` and `descr_*` are
    offsets of fields, `tensor_*`, `loan_block` and `kept` are offsets of slots; `lend`
    is the Python function that gives a Loan for a size, `acquire` and `release` are
    names of methods, `forking` is the address of a word that is not 0 before a fork.
    """

    Py_IncRef = auto()
    Py_DecRef = auto()
    PyContextVar_Get = auto()
    PyDict_GetItem = auto()
    PyObject_CallNoArgs = auto()
    PyObject_CallOneArg = auto()
    PyObject_VectorcallMethod = auto()
    PyObject_RichCompareBool = auto()
    PyErr_Fetch = auto()
    PyErr_Restore = auto()
    PyType_GenericAlloc = auto()
    PyEval_SaveThread = auto()
    PyEval_RestoreThread = auto()
    PyArray_NewFromDescr = auto()
    PyArray_SetBaseObject = auto()
    PyArray_Scalar = auto()
    PyTuple_New = auto()
    PyTuple_Size = auto()
    PyTuple_GetItem = auto()
    PyTuple_SetItem = auto()
    PyList_New = auto()
    PyList_SetItem = auto()
    PyDict_New = auto()
    PyDict_SetItem = auto()
    miss = auto()
    none = auto()
    zero = auto()
    false = auto()
    true = auto()
    acquire = auto()
    release = auto()
    array_class = auto()
    tensor_class = auto()
    float_class = auto()
    byte_descr = auto()
    lend = auto()
    loan_class = auto()
    object_count = auto()
    object_class = auto()
    array_data = auto()
    array_ndim = auto()
    array_shape = auto()
    array_base = auto()
    array_descr = auto()
    array_flags = auto()
    descr_number = auto()
    descr_order = auto()
    tensor_value = auto()
    tensor_id = auto()
    tensor_made = auto()
    loan_block = auto()
    kept = auto()
    forking = auto()


class Record(Words):
    """What one callable does; `objects` is the offset of that part of a frame.

    A call gives `given` arguments, the last of them by the names in `name_table`;
    `arguments` of all are inputs. `result` is the Item that is returned: a result or a
    container. `free` is the address of the word that leads to the free frames; `grow`
    is a Python function that gives an array which is a new frame; `bare` says that
    NumPy scalars are taken by themselves.
    """

    services = auto()
    run = auto()
    given = auto()
    names = auto()
    name_table = auto()
    fixed = auto()
    fixed_table = auto()
    arguments = auto()
    argument_table = auto()
    guards = auto()
    guard_table = auto()
    globals = auto()
    global_table = auto()
    inputs = auto()
    input_table = auto()
    outputs = auto()
    output_table = auto()
    containers = auto()
    container_table = auto()
    result = auto()
    objects = auto()
    free = auto()
    grow = auto()
    wraps = auto()
    releases = auto()
    bare = auto()


class ContextGuard(Words):
    """A context variable and the object it must hold."""

    variable = auto()
    expected = auto()


class GlobalGuard(Words):
    """A dictionary, a key and the object that must be there."""

    dictionary = auto()
    key = auto()
    expected = auto()


class Fixed(Words):
    """The number of an argument, and the number, text or None that it must equal.

    `is_exact` if it must be this very object: a NaN, or a zero, which has a sign.
    """

    place = auto()
    expected = auto()
    is_exact = auto()


class Argument(Words):
    """Which argument is an input: the number of one that is given, or a `default`.

    `is_float` says that it must be one of Python's floats.
    """

    place = auto()
    default = auto()
    is_float = auto()


class Input(Words):
    """What an input must be like; its data goes to word `place` of the table.

    `variable` is 0 for an argument, else the object whose slot at offset `slot` holds
    the Tensor; `scalar_class` is 0 unless a NumPy scalar, with its number at offset
    `scalar_data`, does as well.
    """

    variable = auto()
    slot = auto()
    descr = auto()
    number = auto()
    order = auto()
    ndim = auto()
    shape = auto()
    scalar_class = auto()
    scalar_data = auto()
    place = auto()


class Output(Words):
    """What to make, for word `place` of the table.

    `padded` is the address of the number of bytes to allocate, 0 for a small array,
    which NumPy places itself; `lent` is for a large one whose memory is lent: the
    number of bytes, as a Python object, else 0. The number of a scalar, `itemsize`
    bytes, goes to offset `scalar_data` of its object; if that is 0, the object is made
    when the number is known.

    `variable` is what the output is the next value of, else 0, with the offsets of its
    slots: of its Tensor, of its lock, and of the Tensor while its memory is `away`,
    being written. `source` is the number of the input whose memory it may have, -1 if
    it has to have its own.
    """

    is_scalar = auto()
    scalar_data = auto()
    itemsize = auto()
    descr = auto()
    ndim = auto()
    shape = auto()
    padded = auto()
    lent = auto()
    place = auto()
    variable = auto()
    slot = auto()
    lock = auto()
    away = auto()
    source = auto()


class Container(Words):
    """What to make of `length` items, whose rows are at `items`.

    `new` makes a tuple or a list, `named` is the class of a named tuple, `put` gives
    either an item; all are 0 for a dict.
    """

    new = auto()
    named = auto()
    put = auto()
    length = auto()
    items = auto()


class Item(Words):
    """An object: `fixed`, or if that is 0 what the frame holds at `place`.

    Places count from the outputs on, containers come behind them; `key` is for a dict.
    """

    fixed = auto()
    place = auto()
    key = auto()


# A frame begins with the next free one and, if it serves one call only, the array that
# it is; the pointers for the compiled code follow.
LINK: Final = 0
OWNER: Final = 1
TABLE: Final = 2
