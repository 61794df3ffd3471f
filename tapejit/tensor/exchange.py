"""Arrays of other libraries, and ours to them: DLPack and the CUDA array interface.

Memory is shared, never copied, unless somebody asks for a copy or its elements do not
lie in C's order. Work on it is ordered by streams: ours waits for that of whoever made
an array, and who takes one of ours names a stream that is made to wait. The memory of
another library's array is given back once our stream has come so far.

On the emulated device arrays are in the memory of the CPU, and that is what others are
told.

Start reading at `from_dlpack`, then `to_dlpack`.
"""

from __future__ import annotations

import ctypes
from math import prod
from typing import TYPE_CHECKING, Any, Final
from weakref import finalize

import numpy as np

from tapejit.base.errors import ArgumentError
from tapejit.base.types import as_dtype
from tapejit.tensor.device import driven, move, placed
from tapejit.tensor.dispatch import convert
from tapejit.tensor.recorder import mark_left
from tapejit.tensor.tensor import DeviceTensor, Tensor

if TYPE_CHECKING:
    from tapejit.runtime.cuda.arrays import DeviceArray
    from tapejit.runtime.cuda.devices import Device

CPU_KIND: Final = (1, 0)
CUDA_KIND: Final = 2
VERSION: Final = (1, 0)
READ_ONLY: Final = 1
PLAIN: Final = b"dltensor"
VERSIONED: Final = b"dltensor_versioned"

# The kinds of DLPack's dtypes, by the kinds of NumPy's.
CODES: Final = {"i": 0, "u": 1, "f": 2, "V": 4, "c": 5, "b": 6}
KINDS: Final = {code: kind for kind, code in CODES.items()}


class Described(ctypes.Structure):
    """DLPack's DLTensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_kind", ctypes.c_int32),
        ("device_number", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("offset", ctypes.c_uint64),
    )


class PlainTensor(ctypes.Structure):
    """DLPack's DLManagedTensor, which cannot say that it is read-only."""

    _fields_ = (
        ("described", Described),
        ("owner", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


class VersionedTensor(ctypes.Structure):
    """DLPack's DLManagedTensorVersioned."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("owner", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("described", Described),
    )


LAYOUTS: Final = {PLAIN: PlainTensor, VERSIONED: VersionedTensor}
DELETER: Final = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
DESTRUCTOR: Final = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

_api: Any = ctypes.pythonapi
_new_capsule = ctypes.PYFUNCTYPE(
    ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, DESTRUCTOR
)(("PyCapsule_New", _api))
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_IsValid", _api)
)
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", _api)
)
_rename = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_SetName", _api)
)

# By the address of what a capsule leads to: all that has to live as long.
_lent: dict[int, tuple[Any, ...]] = {}


def _give_back(address: int) -> None:
    _lent.pop(address, None)


def _drop_capsule(capsule: int) -> None:
    """Of a capsule that nobody has taken."""
    for name in LAYOUTS:
        if _is_valid(capsule, name):
            _lent.pop(_pointer(capsule, name), None)


_deleter: Final = DELETER(_give_back)
_destructor: Final = DESTRUCTOR(_drop_capsule)


# Ours to others


def dlpack_device(device: Device) -> tuple[int, int]:
    """Where arrays of a device are, in DLPack's numbers."""
    if device.driver.is_host:
        return CPU_KIND
    return (CUDA_KIND, device.number)


def to_dlpack(
    x: DeviceTensor,
    *,
    stream: int | None = None,
    max_version: tuple[int, int] | None = None,
    dl_device: tuple[Any, int] | None = None,
    copy: bool | None = None,
) -> Any:
    """A capsule of a tensor; `stream` is the consumer's, which waits for ours."""
    mark_left(x)
    array: DeviceArray = x._value
    device = array.device
    here = dlpack_device(device)
    if dl_device is not None and tuple(map(int, dl_device)) != here:
        if tuple(map(int, dl_device)) != CPU_KIND or copy is False:
            raise BufferError(f"a tensor of {device.name} is not on {dl_device}")
        host = move(x, "cpu")
        return host.__dlpack__(max_version=max_version)
    is_versioned = max_version is not None and max_version >= VERSION
    # Older consumers cannot be told that the data is read-only.
    if copy or not is_versioned:
        array = array.copy()
    hand_over(device, stream)
    name = VERSIONED if is_versioned else PLAIN
    made: Any = LAYOUTS[name]()
    if is_versioned:
        made.major, made.minor = VERSION
        made.flags = 0 if copy else READ_ONLY
    shape = (ctypes.c_int64 * array.ndim)(*array.shape)
    strides = (ctypes.c_int64 * array.ndim)(*_steps(array.shape))
    kind = array.dtype
    made.described = Described(
        data=array.address,
        device_kind=here[0],
        device_number=here[1],
        ndim=array.ndim,
        code=CODES[kind.kind],
        bits=8 * kind.itemsize,
        lanes=1,
        shape=shape,
        strides=strides,
        offset=0,
    )
    made.deleter = ctypes.cast(_deleter, ctypes.c_void_p)
    address = ctypes.addressof(made)
    _lent[address] = (made, shape, strides, array)
    return _new_capsule(address, name, _destructor)


def _steps(shape: tuple[int, ...]) -> list[int]:
    """How many elements lie between neighbours along each axis, in C's order."""
    return [prod(shape[at + 1 :]) for at in range(len(shape))]


def hand_over(device: Device, stream: int | None) -> None:
    """Let the stream of a consumer wait for what is on ours.

    None and -1 say that there is none; the CPU has none, so it is waited for.
    """
    if device.driver.is_host:
        device.synchronize()
        return
    if stream == -1:
        return
    with device.lock:
        driver = device.driver
        theirs = driver.adopt(stream or 1, device.number)
        driver.wait_for(driver.record(device.stream), theirs)


def cuda_array_interface(x: DeviceTensor) -> dict[str, Any]:
    """What libraries that know no DLPack ask for."""
    mark_left(x)
    array: DeviceArray = x._value
    device = array.device
    if device.driver.is_host:
        raise AttributeError("the emulated device has no memory of a GPU")
    if array.dtype.kind == "V":
        raise AttributeError(f"the CUDA array interface has no {array.dtype}")
    return {
        "shape": array.shape,
        "typestr": array.dtype.str,
        "data": (array.address, True),
        "strides": None,
        "version": 3,
        "stream": device.driver.stream_address(device.stream),
    }


# Others' to us


def from_dlpack(x: Any, device: Any, copy: bool | None) -> Tensor:
    """A tensor of another library's array: see `tj.from_dlpack`."""
    if type(x) is DeviceTensor:
        taken: Tensor = x
    elif int(x.__dlpack_device__()[0]) == CUDA_KIND:
        array = taken_array(x)
        taken = DeviceTensor(array.copy() if copy else array)
    else:
        host = np.from_dlpack(x)
        host = np.array(host) if copy else host
        return placed(convert(host, None, copy=False), device)
    return taken if device is None else move(taken, device)


def taken_array(x: Any) -> DeviceArray:
    """An array that shares the memory of another library's, on a GPU."""
    from tapejit.runtime.cuda.arrays import DeviceArray
    from tapejit.runtime.cuda.memory import Memory

    device = driven(f"cuda:{int(x.__dlpack_device__()[1])}")
    stream = device.driver.stream_address(device.stream)
    try:
        capsule = x.__dlpack__(stream=stream, max_version=VERSION)
    except TypeError:  # it is older than that
        capsule = x.__dlpack__(stream=stream)
    name = next(name for name in LAYOUTS if _is_valid(id(capsule), name))
    address = _pointer(id(capsule), name)
    made: Any = LAYOUTS[name].from_address(address)
    described = made.described
    shape = tuple(described.shape[: described.ndim])
    steps = described.strides[: described.ndim] if described.strides else _steps(shape)
    dtype = _dtype_of(described)
    nbytes = prod(shape) * dtype.itemsize
    if nbytes and [s for s, n in zip(steps, shape, strict=True) if n > 1] != [
        s for s, n in zip(_steps(shape), shape, strict=True) if n > 1
    ]:
        raise ArgumentError(
            "the elements of the array are not in C's order", help="copy it first"
        )
    _rename(capsule, b"used_" + name)
    memory = Memory((described.data or 0) + described.offset, nbytes)
    release = made.deleter
    if release:
        finalize(memory, device.keep, Release(release, address)).atexit = False
    return DeviceArray(memory, shape, dtype, device)


def _dtype_of(described: Described) -> np.dtype[Any]:
    kind, size = KINDS.get(described.code), described.bits // 8
    if kind is None or described.lanes != 1:
        raise ArgumentError(f"there is no dtype for DLPack's kind {described.code}")
    return as_dtype("bfloat16" if kind == "V" else f"{kind}{size}")


class Release:
    """Calls the deleter of a taken array when it dies itself."""

    def __init__(self, deleter: int, address: int) -> None:
        self.deleter, self.address = deleter, address

    def __del__(self) -> None:
        DELETER(self.deleter)(self.address)


def from_interface(given: dict[str, Any]) -> Tensor:
    """A copy of an array with `__cuda_array_interface__`."""
    from tapejit.runtime.cuda.arrays import DeviceArray
    from tapejit.runtime.cuda.memory import Memory

    device = driven("cuda:0")
    dtype, shape = as_dtype(np.dtype(given["typestr"])), tuple(given["shape"])
    steps = given.get("strides")
    if steps is not None and list(steps) != [
        step * dtype.itemsize for step in _steps(shape)
    ]:
        raise ArgumentError(
            "the elements of the array are not in C's order", help="copy it first"
        )
    stream = given.get("stream")
    with device.lock:
        driver = device.driver
        if stream is not None:
            theirs = driver.adopt(stream, device.number)
            driver.wait_for(driver.record(theirs), device.stream)
        memory = Memory(given["data"][0] or 0, prod(shape) * dtype.itemsize)
        return DeviceTensor(DeviceArray(memory, shape, dtype, device).copy())
