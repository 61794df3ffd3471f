"""Files of named arrays in the safetensors format, written and read by hand.

A file is 8 bytes (the length of the header, little-endian), the header (JSON: for each
name its dtype, shape and range of bytes; under `__metadata__` a map from text to text)
and the bytes of the arrays, in C order and little-endian. Nothing in it can run code.
The reader believes nothing either: the ranges have to cover the rest of the file
exactly, without a gap or an overlap, so an array can neither reach outside the file
nor ask for more memory than the file is long.

The format has complex64 but not complex128. An array of complex128 is written as
float64 with one more axis of size 2, the real and the imaginary part, and its name is
listed in the metadata under `complex128`; other programs see the pairs.

Start reading at `write_arrays`, then `read_arrays`.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any, BinaryIO, Final, NamedTuple

import numpy as np

from tapejit.base.errors import CheckpointError
from tapejit.base.types import DType, dtype_named

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

Array = np.ndarray[Any, Any]
Path = str | os.PathLike[str]

FORMAT_NAMES: Final[dict[str, str]] = {
    "bool": "BOOL",
    "int8": "I8",
    "int16": "I16",
    "int32": "I32",
    "int64": "I64",
    "uint8": "U8",
    "uint16": "U16",
    "uint32": "U32",
    "uint64": "U64",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
    "complex64": "C64",
}
DTYPE_NAMES: Final = {short: name for name, short in FORMAT_NAMES.items()}
MAX_HEADER: Final = 100_000_000  # bytes, the limit of the format
MAX_RANK: Final = 64  # NumPy's
_RANDOM: Final = re.compile(r"[0-9a-f]{12}\.tmp")
_without_locks: Final[set[int]] = set()  # devices: nothing is known to be left there
PAIRS: Final = "complex128"  # the metadata's list of arrays written as pairs


# Writing


def write_arrays(
    path: Path, arrays: Mapping[str, Array], metadata: Mapping[str, str]
) -> None:
    """Write a file, which is there completely or not at all.

    The bytes go into a file beside it, reach the disk, and only then get the name, so
    a program that is killed leaves the former file as it was, and at worst a hidden
    file that ends in `.tmp` beside it, which the next one to save there removes.

    >>> import os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "two.safetensors")
    >>> write_arrays(path, {"x": np.arange(3.0), "n": np.array(7)}, {"made by": "me"})
    >>> arrays, metadata = read_arrays(path)
    >>> arrays["x"], metadata
    (array([0., 1., 2.]), {'made by': 'me'})
    """
    stored, pairs = {}, []
    for name, array in arrays.items():
        if array.dtype == np.complex128:
            pairs.append(name)
            array = np.stack([array.real, array.imag], axis=-1)
        stored[name] = array
    texts = dict(metadata)
    if pairs:
        texts[PAIRS] = json.dumps(sorted(pairs))
    # Large elements first: then each array starts at a multiple of its element's size.
    order = sorted(stored, key=lambda name: (-stored[name].itemsize, name))
    header = _header([(name, stored[name]) for name in order], texts)
    with _replacing(path) as file:
        file.write(len(header).to_bytes(8, "little"))
        file.write(header)
        for name in order:
            file.write(_little_endian(stored[name]).data)


def _header(arrays: Iterable[tuple[str, Array]], texts: dict[str, str]) -> bytes:
    """The header, padded so that the arrays start at a multiple of 8."""
    entries: dict[str, Any] = {"__metadata__": texts} if texts else {}
    at = 0
    for name, array in arrays:
        if name == "__metadata__":
            raise CheckpointError("an array cannot be called '__metadata__'")
        entries[name] = {
            "dtype": FORMAT_NAMES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [at, at + array.nbytes],
        }
        at += array.nbytes
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False)
    try:
        header = text.encode()
    except UnicodeEncodeError as error:
        raise CheckpointError(
            f"a text to be saved is no Unicode: {error.object[error.start]!r}"
        ) from None
    header += b" " * (-len(header) % 8)
    if len(header) > MAX_HEADER:
        raise CheckpointError(
            f"names and plain values take {len(header)} bytes, the format has room "
            f"for {MAX_HEADER}",
            help="save long lists of numbers as arrays",
        )
    return header


def _little_endian(array: Array, byteorder: str = sys.byteorder) -> Array:
    """The elements of an array as bytes in C order, least significant first."""
    flat = np.ascontiguousarray(array).reshape(-1)
    if byteorder == "big":
        words = flat.view("u2") if array.dtype.name == "bfloat16" else flat
        flat = words.byteswap()
    return flat.view(np.uint8)


class _replacing(contextlib.AbstractContextManager[BinaryIO]):
    """A new file that takes the place of `path` at the end of the block."""

    def __init__(self, path: Path) -> None:
        self.path = os.path.realpath(os.fspath(path))  # a link stays a link
        folder, name = os.path.split(self.path)
        self.folder = folder
        # At random: in a container, a run that was killed had the same process id.
        self.temporary = os.path.join(folder, f".{name}.{os.urandom(6).hex()}.tmp")

    def __enter__(self) -> BinaryIO:
        for left in self._others():
            _remove_if_left(left)
        while True:
            self.file = open(self.temporary, "xb")
            # Somebody may have taken it for left before it was locked.
            if _locked(self.file) and _is_at(self.file, self.temporary):
                return self.file
            self.file.close()

    def _others(self) -> list[str]:
        """Files that are being written in place of `path`, or were when killed."""
        start = f".{os.path.basename(self.path)}."
        try:
            names = os.listdir(self.folder)
        except OSError:  # opening the file will say so
            return []
        return [
            os.path.join(self.folder, name)
            for name in names
            if name.startswith(start)
            and _RANDOM.fullmatch(name.removeprefix(start)) is not None
        ]

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        try:
            with self.file:
                if kind is None:
                    self.file.flush()
                    os.fsync(self.file.fileno())
            if kind is None:
                os.replace(self.temporary, self.path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.temporary)
        if kind is None:
            _sync_folder(self.folder)


def _locked(file: BinaryIO) -> bool:
    """Lock a file as long as it is open; False if another has locked it."""
    if fcntl is None:  # there, a file that is open cannot be removed
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.ENOLCK, errno.ENOSYS):
            raise
        _without_locks.add(os.fstat(file.fileno()).st_dev)
    return True


def _is_at(file: BinaryIO, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except FileNotFoundError:
        return False


def _remove_if_left(path: str) -> None:
    """Remove a file that nobody is writing: whoever was has been killed."""
    with contextlib.suppress(OSError):  # gone by now, or somebody else's
        if fcntl is None:
            os.unlink(path)
            return
        with open(path, "r+b") as file:
            is_left = _locked(file)
            if is_left and os.fstat(file.fileno()).st_dev not in _without_locks:
                os.unlink(path)


def _sync_folder(folder: str) -> None:
    """Make a new name reach the disk, where folders can be opened for that."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network drives
            raise
    finally:
        os.close(handle)


# Reading


def read_arrays(path: Path) -> tuple[dict[str, Array], dict[str, str]]:
    """The arrays and the metadata of a file, or a CheckpointError that says why not."""
    with open(path, "rb") as file:
        try:
            return _read(file)
        except CheckpointError as error:
            error.message = f"{os.fspath(path)} cannot be read: {error.message}"
            raise


def _read(file: BinaryIO) -> tuple[dict[str, Array], dict[str, str]]:
    size = os.fstat(file.fileno()).st_size
    length = int.from_bytes(_bytes(file, min(8, size)), "little")
    if size < 8:
        raise CheckpointError(f"it has {size} bytes, not even those of a length")
    if length > MAX_HEADER or length > size - 8:
        raise CheckpointError(
            f"its header would have {length} bytes, of {size - 8} that follow",
            help="it is cut off, or no safetensors file",
        )
    header = _parsed(_bytes(file, length))
    metadata = _checked_metadata(header.pop("__metadata__", {}))
    found = [_checked_entry(name, entry) for name, entry in header.items()]
    found.sort(key=lambda entry: (entry.start, entry.stop))
    at = 0
    for entry in found:
        if entry.start != at:
            problem = "overlaps the one before it" if entry.start < at else "has a gap"
            raise CheckpointError(f"{entry.name!r} starts at {entry.start}, {problem}")
        at = entry.stop
    if at != size - 8 - length:
        raise CheckpointError(
            f"its arrays take {at} bytes, {size - 8 - length} follow the header",
            help="it is cut off, or something was added to it",
        )
    arrays = {entry.name: entry.read(file) for entry in found}
    _join_pairs(arrays, metadata)
    return {name: arrays[name] for name in header}, metadata


def _bytes(file: BinaryIO, length: int) -> bytes:
    found = file.read(length)
    if len(found) != length:
        raise CheckpointError("it became shorter while it was read")
    return found


def _parsed(header: bytes) -> dict[str, Any]:
    """The header as a dict in which nothing stands twice."""
    if not header.startswith(b"{"):
        raise CheckpointError("its header does not start with '{'")
    parsed: dict[str, Any] = parse_json(header, "its header")
    return parsed


def parse_json(text: bytes | str, what: str) -> Any:
    """JSON without duplicate keys and without what only Python calls numbers."""
    try:
        if isinstance(text, bytes):
            text = text.decode()
        return json.loads(
            text, object_pairs_hook=_distinct, parse_constant=_refuse_constant
        )
    except CheckpointError:
        raise
    except RecursionError:
        raise CheckpointError(f"{what} is nested too deeply") from None
    except ValueError as error:  # not UTF-8, not JSON, or a number of too many digits
        raise CheckpointError(f"{what} is no JSON: {error}") from None


def _distinct(items: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(items)
    if len(found) != len(items):
        names = [name for name, _ in items]
        twice = next(name for name in names if names.count(name) > 1)
        raise CheckpointError(f"{twice!r} stands twice in its header")
    return found


def _refuse_constant(text: str) -> Any:
    raise CheckpointError(f"{text} is no number in JSON")


def _checked_metadata(metadata: Any) -> dict[str, str]:
    if not isinstance(metadata, dict) or not all(
        isinstance(text, str) for text in metadata.values()
    ):
        raise CheckpointError("its metadata is no map from text to text")
    return metadata


class _Entry(NamedTuple):
    """One array of a file: its name, type and range of bytes, all checked."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    start: int
    stop: int

    def read(self, file: BinaryIO) -> Array:
        """The array; the file stands where it begins."""
        raw = np.empty(self.stop - self.start, np.uint8)
        if raw.size and file.readinto(raw.data) != raw.size:  # type: ignore[attr-defined]  # BinaryIO lacks it, files have it
            raise CheckpointError("it became shorter while it was read")
        if self.dtype == np.bool_ and raw.size and raw.max() > 1:
            raise CheckpointError(f"{self.name!r} has a bool that is neither 0 nor 1")
        return _native(raw, self.dtype).reshape(self.shape)


def _native(raw: Array, dtype: DType, byteorder: str = sys.byteorder) -> Array:
    """Elements of a dtype from their bytes, least significant first."""
    if byteorder == "big":
        words = raw.view("u2" if dtype.name == "bfloat16" else dtype)
        return words.byteswap().view(dtype)
    return raw.view(dtype)


def _checked_entry(name: str, entry: Any) -> _Entry:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise CheckpointError(
            f"{name!r} is not described by dtype, shape and data_offsets"
        )
    short, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(short, str) or short not in DTYPE_NAMES:
        raise CheckpointError(
            f"{name!r} has the dtype {short!r}; tapejit reads {', '.join(DTYPE_NAMES)}"
        )
    if not (_are_sizes(shape) and len(shape) <= MAX_RANK and _is_indexable(shape)):
        raise CheckpointError(f"{name!r} has the shape {shape!r}")
    if not _are_sizes(offsets) or len(offsets) != 2:
        raise CheckpointError(f"{name!r} has the data_offsets {offsets!r}")
    dtype = dtype_named(DTYPE_NAMES[short])
    start, stop = offsets
    wanted = math.prod(shape) * dtype.itemsize
    if stop - start != wanted:
        raise CheckpointError(
            f"{name!r} has {stop - start} bytes, {short}{shape} takes {wanted}"
        )
    return _Entry(name, dtype, tuple(shape), start, stop)


def _are_sizes(value: Any) -> bool:
    """Whether it is a list of integers from 0 on that an index can hold."""
    return isinstance(value, list) and all(
        type(size) is int and 0 <= size < 2**63 for size in value
    )


def _is_indexable(shape: list[int]) -> bool:
    """Whether NumPy can hold it: also of an empty array, the other sizes count."""
    return math.prod(size for size in shape if size) * 16 < 2**63


def _join_pairs(arrays: dict[str, Array], metadata: dict[str, str]) -> None:
    """Make complex128 of the arrays that were written as pairs."""
    if PAIRS not in metadata:
        return
    names = parse_json(metadata.pop(PAIRS), f"the metadata's {PAIRS!r}")
    if not isinstance(names, list):
        raise CheckpointError(f"the metadata's {PAIRS!r} is no list of names")
    for name in names:
        array = arrays.get(name) if isinstance(name, str) else None
        if array is None or array.dtype != np.float64 or array.shape[-1:] != (2,):
            raise CheckpointError(f"{name!r} is no array of pairs of float64")
        arrays[name] = array.view(np.complex128).reshape(array.shape[:-1])
