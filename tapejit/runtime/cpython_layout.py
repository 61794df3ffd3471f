"""How objects of CPython and NumPy lie in memory, as native entries rely on it.

Native entries (`entry.py`) read and make Tensors and arrays without asking Python.
`Native` has what they need for that: addresses of functions, classes, offsets of
fields. The offsets are documented (NumPy's) or found by looking for known contents
(slots of classes written in Python), and compared with known objects first. Where
something is not as expected, in a free-threaded build or on another Python there are
no native entries, and `native_for` says why.

What native code may use until the very end of the process is never given up.

Start reading at `Native`.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

import numpy as np

from tapejit.base.types import DType
from tapejit.runtime.memory_pool import KEPT_FROM, Loan, address_of, lend
from tapejit.runtime.sentinels import FORKING, MISS
from tapejit.targets.cpu.call.entry_tables import HEADER, SYMBOL, WORD, Services

Array = np.ndarray[Any, Any]


class Tables(np.ndarray):
    """The record of a callable, as words; `kept` keeps alive what they point to.

    The garbage collector may empty `kept`, the words stay: the code looks first.
    """

    __slots__ = ("kept",)

    kept: Any


class MethodDef(ctypes.Structure):
    """CPython's PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("documentation", ctypes.c_char_p),
    )


FASTCALL: Final = 0x0080
KEYWORDS: Final = 0x0002

# The public C interface of NumPy: places in its table of functions.
NUMPY_FUNCTIONS: Final = {
    Services.PyArray_Scalar: 60,
    Services.PyArray_NewFromDescr: 94,
    Services.PyArray_SetBaseObject: 282,
}
ARRAY_CLASS: Final = 2

# PyArrayObject_fields and PyArray_Descr, from the end of the object's header.
FIELDS: Final = {
    Services.object_count: 0,
    Services.object_class: 8,
    Services.array_data: HEADER,
    Services.array_ndim: HEADER + 8,
    Services.array_shape: HEADER + 16,
    Services.array_base: HEADER + 32,
    Services.array_descr: HEADER + 40,
    Services.array_flags: HEADER + 48,
    Services.descr_order: HEADER + 10,
    Services.descr_number: HEADER + 12,
}


class Unexpected(Exception):
    """Something does not lie in memory as it should."""


class Native:
    """The machine code and the services it uses; never given up.

    Raises Unexpected if something is not as expected.
    """

    def __init__(self, tensor_class: Any) -> None:
        require_platform()
        check_arrays()
        check_floats()
        words = dict.fromkeys(Services, 0)
        words.update(FIELDS)
        for column in Services:
            if column.name.startswith("Py") and column not in NUMPY_FUNCTIONS:
                words[column] = python_function(column.name)
        functions = numpy_functions()
        if functions[ARRAY_CLASS] != id(np.ndarray):
            raise Unexpected("NumPy's table of functions")
        for column, at in NUMPY_FUNCTIONS.items():
            words[column] = functions[at]
        for column, thing in (
            (Services.miss, MISS),
            (Services.none, None),
            (Services.zero, 0),
            (Services.false, False),
            (Services.true, True),
            (Services.acquire, sys.intern("acquire")),
            (Services.release, sys.intern("release")),
            (Services.array_class, np.ndarray),
            (Services.tensor_class, tensor_class),
            (Services.float_class, float),
            (Services.byte_descr, np.dtype(np.uint8)),
            (Services.lend, lend),
            (Services.loan_class, Loan),
        ):
            words[column] = id(keep_for_ever(thing))
        words.update(tensor_slots(tensor_class))
        words[Services.loan_block] = block_slot()
        words[Services.kept] = kept_slot()
        words[Services.forking] = address_of(FORKING)
        table = np.array([words[column] for column in Services], np.int64)
        self.services = address_of(keep_for_ever(table))
        self.sequences = {
            tuple: (words[Services.PyTuple_New], words[Services.PyTuple_SetItem]),
            list: (words[Services.PyList_New], words[Services.PyList_SetItem]),
        }
        method = MethodDef(b"entry", code_address(), FASTCALL | KEYWORDS, None)
        self._method = keep_for_ever(method)
        self._new = ctypes.PYFUNCTYPE(
            ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p
        )(("PyCFunction_NewEx", ctypes.pythonapi))
        self._slots: dict[tuple[type, str], int] = {}
        self._scalars: dict[int, bool] = {}

    def callable_of(self, tables: Tables) -> Callable[..., Any]:
        """The built-in function whose `self` is this record."""
        made: Callable[..., Any] = self._new(
            ctypes.addressof(self._method), tables, None
        )
        return made

    def variable_slot(self, variable: Any, name: str) -> int:
        """Where variables have what they call by this name."""
        kind = type(variable)
        if (kind, name) not in self._slots:
            sample = object.__new__(kind)
            setattr(sample, name, object())
            self._slots[kind, name] = slot_of(sample, getattr(sample, name))
        return self._slots[kind, name]

    def scalar_lies_as_expected(self, dtype: DType) -> bool:
        """Whether the number of a NumPy scalar follows the header of the object."""
        if dtype.num not in self._scalars:
            numbers = (0, 1) if dtype.kind == "b" else (3, 5)
            scalars = [np.array(number).astype(dtype)[()] for number in numbers]
            self._scalars[dtype.num] = all(
                type(scalar) is dtype.type
                and ctypes.string_at(id(scalar) + HEADER, dtype.itemsize)
                == scalar.tobytes()
                for scalar in scalars
            )
        return self._scalars[dtype.num]


_natives: dict[type, Native | str] = {}


def native_for(tensor_class: type) -> Native | str:
    """What is needed to make entries, or why that is impossible."""
    found = _natives.get(tensor_class)
    if found is None:
        try:
            found = Native(tensor_class)
        except Unexpected as error:
            found = f"not as expected: {error}"
        found = _natives.setdefault(tensor_class, found)
    return found


def require_platform() -> None:
    """CPython as we know it: with a lock around objects, 64 bits, small headers."""
    if sys.implementation.name != "cpython":
        raise Unexpected(f"Python is {sys.implementation.name}")
    if "free-threading" in sys.version:  # sysconfig says it too, after 10 ms
        raise Unexpected("Python is free-threaded")
    if ctypes.sizeof(ctypes.c_void_p) != WORD or sys.byteorder != "little":
        raise Unexpected("the processor is not a little-endian one of 64 bits")
    thing = object()
    if object.__basicsize__ != HEADER or pointer_at(id(thing) + 8) != id(object):
        raise Unexpected("the header of objects")
    counts = [int_at(id(thing))]
    others = [thing, thing, thing]
    counts.append(int_at(id(thing)))
    del others
    counts.append(int_at(id(thing)))
    if [count - counts[0] for count in counts] != [0, 3, 0]:
        raise Unexpected(f"the number of references to an object: {counts}")


def check_arrays() -> None:
    """Compare the fields of arrays with what NumPy says of them."""
    room = np.zeros(64, np.uint8)
    samples = (
        np.zeros((2, 3, 5), np.float32),
        np.zeros((4, 6), np.int16)[::2, 1:],
        np.zeros((7, 2), np.complex128).T,
        np.zeros((), np.bool_),
        np.zeros((3, 0), np.int64),
        np.zeros(3, np.dtype(np.float64).newbyteorder()),
        room[1:41].view(np.float64),
        np.broadcast_to(np.float16(1), (2, 2)),
    )
    for x in samples:
        where, shape = id(x), pointer_at(id(x) + FIELDS[Services.array_shape])
        descr = pointer_at(where + FIELDS[Services.array_descr])
        dtype = x.dtype
        found = (
            pointer_at(where + FIELDS[Services.object_class]),
            pointer_at(where + FIELDS[Services.array_data]),
            int_at(where + FIELDS[Services.array_ndim]),
            tuple(pointer_at(shape + WORD * axis) for axis in range(x.ndim)),
            pointer_at(where + FIELDS[Services.array_base]),
            descr,
            int_at(where + FIELDS[Services.array_flags]) & 0x0505,
            int_at(id(dtype) + FIELDS[Services.descr_number]),
            ctypes.string_at(id(dtype) + FIELDS[Services.descr_order], 1).decode(),
        )
        flags = 0x0001 * x.flags.c_contiguous + 0x0100 * x.flags.aligned
        flags += 0x0400 * x.flags.writeable + 0x0004 * x.flags.owndata
        expected = (
            id(np.ndarray),
            address_of(x),
            x.ndim,
            x.shape,
            0 if x.base is None else id(x.base),
            id(dtype),
            flags,
            dtype.num,
            dtype.byteorder,
        )
        if found != expected:
            raise Unexpected(f"the fields of an array: {found}, not {expected}")


def check_floats() -> None:
    """Python's floats have their number behind the header, as NumPy's do."""
    for x in (1.5, -0.0, float("inf")):
        if ctypes.string_at(id(x) + HEADER, WORD) != np.float64(x).tobytes():
            raise Unexpected("the number of a float")


def tensor_slots(tensor_class: Any) -> dict[Services, int]:
    """Where Tensors keep what they have, looked up in one that is known."""
    tensor = tensor_class(object(), object())
    tensor._id = object()
    if tensor_class.__dictoffset__ or tensor_class.__itemsize__:
        raise Unexpected("Tensors have more than slots")
    return {
        Services.tensor_value: slot_of(tensor, tensor._value),
        Services.tensor_id: slot_of(tensor, tensor._id),
        Services.tensor_made: slot_of(tensor, tensor._made),
    }


def block_slot() -> int:
    """Where a Loan refers to its block."""
    loan = lend(KEPT_FROM)
    return slot_of(loan, loan._block)


def kept_slot() -> int:
    """Where `Tables` refer to what they keep."""
    sample = np.zeros(1, np.int64).view(Tables)
    sample.kept = object()
    if pointer_at(id(sample) + HEADER) != address_of(sample):
        raise Unexpected("the fields of Tables")
    return slot_of(sample, sample.kept)


def slot_of(owner: Any, content: Any) -> int:
    """The offset of the one slot of `owner` that refers to `content`."""
    found = [
        offset
        for offset in range(HEADER, type(owner).__basicsize__, WORD)
        if pointer_at(id(owner) + offset) == id(content)
    ]
    if len(found) != 1:
        raise Unexpected(f"the slots of {type(owner).__name__}")
    return found[0]


def python_function(name: str) -> int:
    """The address of a function of CPython."""
    try:
        function = getattr(ctypes.pythonapi, name)
    except AttributeError:
        raise Unexpected(f"there is no {name}") from None
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def numpy_functions() -> Any:
    """The table of functions that NumPy offers to extension modules."""
    get = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
        ("PyCapsule_GetPointer", ctypes.pythonapi)
    )
    try:
        capsule = import_module("numpy._core._multiarray_umath")._ARRAY_API
        address = get(capsule, None)
    except (ImportError, AttributeError, ValueError) as error:
        raise Unexpected(f"NumPy's table of functions: {error}") from None
    return ctypes.cast(address, ctypes.POINTER(ctypes.c_size_t))


def code_address() -> int:
    """Load or compile the machine code; it stays for the life of the process."""
    from tapejit.runtime.builtin_code import load_kept

    code = keep_for_ever(load_kept("native entry", _entry_module))
    return int(code.functions[SYMBOL])


def _entry_module() -> Any:
    from tapejit.targets.cpu.call.entry import entry_module

    return entry_module()


def keep_for_ever(thing: Any) -> Any:
    """Add a reference that nobody drops: native code may run until the very end."""
    ctypes.PYFUNCTYPE(None, ctypes.py_object)(("Py_IncRef", ctypes.pythonapi))(thing)
    return thing


def pointer_at(address: int) -> int:
    return int(ctypes.c_size_t.from_address(address).value)


def int_at(address: int) -> int:
    return int(ctypes.c_int32.from_address(address).value)
