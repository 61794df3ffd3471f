"""Files of arrays: as the format's own library writes and reads them, and hostile ones.

The reader is given random bytes, and good files with bytes changed, cut off or added:
it either returns arrays that fit into the file or raises CheckpointError.
"""

from __future__ import annotations

import errno
import json
import os
import random
import stat
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy
from graph_properties import for_all
from hypothesis import strategies as st

from tapejit.base.errors import CheckpointError
from tapejit.base.types import dtype_named
from tapejit.training import tensor_file
from tapejit.training.tensor_file import FORMAT_NAMES, read_arrays, write_arrays

SHAPES = [(), (3,), (2, 3), (0,), (2, 0, 3), (1, 1, 1, 5)]
ALL_DTYPES = [*FORMAT_NAMES, "complex128"]


def sample(dtype: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Elements with all bits in use, as far as the dtype has a meaning for them."""
    rng = np.random.default_rng(len(dtype) + len(shape))
    kind = dtype_named(dtype)
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if kind.kind in "iu":
        info = np.iinfo(kind)
        return rng.integers(info.min, info.max, shape, dtype=kind, endpoint=True)
    values = rng.normal(size=shape)
    if kind.kind == "c":
        return np.asarray(values + 1j * rng.normal(size=shape)).astype(kind)
    return np.asarray(values).astype(kind)


def everything() -> dict[str, np.ndarray[Any, Any]]:
    return {
        f"{dtype}{shape}": sample(dtype, shape)
        for dtype in ALL_DTYPES
        for shape in SHAPES
    }


def assert_same(
    found: dict[str, np.ndarray[Any, Any]], expected: dict[str, np.ndarray[Any, Any]]
) -> None:
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert found[name].dtype == array.dtype, name
        assert found[name].shape == array.shape, name
        assert found[name].tobytes() == array.tobytes(), name


# What is written is what is read


def test_every_dtype_and_shape_comes_back_bit_for_bit(tmp_path: Path) -> None:
    write_arrays(tmp_path / "f", everything(), {"a": "b", "ü": "\n\"'"})
    arrays, metadata = read_arrays(tmp_path / "f")
    assert_same(arrays, everything())
    assert metadata == {"a": "b", "ü": "\n\"'"}


def test_special_values_keep_their_bits(tmp_path: Path) -> None:
    bits = np.array([0x7FC00001, 0xFFC12345, 0x80000000, 0x7F800000, 1], np.uint32)
    write_arrays(tmp_path / "f", {"x": bits.view(np.float32)}, {})
    found = read_arrays(tmp_path / "f")[0]["x"]
    assert found.view(np.uint32).tolist() == bits.tolist()


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12.0).reshape(3, 4).T,
        np.arange(12.0)[::-2],
        np.broadcast_to(np.float32(3), (2, 3)),
        np.asfortranarray(np.arange(6).reshape(2, 3)),
        (np.arange(12.0) * 1j).reshape(3, 4)[:, 1::2],
    ],
    ids=["transposed", "reversed", "broadcast", "fortran", "complex"],
)
def test_views_are_written_in_c_order(
    array: np.ndarray[Any, Any], tmp_path: Path
) -> None:
    write_arrays(tmp_path / "f", {"x": array}, {})
    found = read_arrays(tmp_path / "f")[0]["x"]
    np.testing.assert_array_equal(found, array)
    assert found.flags.c_contiguous
    assert found.flags.writeable


def test_arrays_start_at_multiples_of_their_elements(tmp_path: Path) -> None:
    write_arrays(tmp_path / "f", everything(), {"odd": "x"})
    data = (tmp_path / "f").read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    assert length % 8 == 0
    del header["__metadata__"]
    for name, entry in header.items():
        kind = dtype_named(tensor_file.DTYPE_NAMES[entry["dtype"]])
        alignment = 8 if kind.kind == "c" else kind.itemsize
        assert entry["data_offsets"][0] % alignment == 0, name


def test_on_a_big_endian_machine_bytes_are_swapped() -> None:
    for dtype in FORMAT_NAMES:
        array = sample(dtype, (3,))
        flat = tensor_file._little_endian(array, "big")
        size = array.itemsize // (2 if array.dtype.kind == "c" else 1)
        swapped = flat.reshape(-1, size)[:, ::-1].tobytes()
        assert swapped == array.tobytes(), dtype
        back = tensor_file._native(flat, array.dtype, "big")
        assert back.tobytes() == array.tobytes(), dtype


# The format's own library


def test_the_official_library_reads_what_is_written(tmp_path: Path) -> None:
    arrays = {
        name: array for name, array in everything().items() if "bfloat" not in name
    }
    write_arrays(tmp_path / "f", arrays, {"key": "value"})
    found = safetensors.numpy.load_file(tmp_path / "f")
    for name, array in arrays.items():
        if array.dtype == np.complex128:  # which the format lacks
            array = np.stack([array.real, array.imag], -1)
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array, err_msg=name, strict=True)
    with safetensors.safe_open(tmp_path / "f", "numpy") as file:
        metadata = file.metadata()
    pairs = [name for name in sorted(arrays) if name.startswith("complex128")]
    assert metadata == {"key": "value", "complex128": json.dumps(pairs)}


def test_the_official_library_reads_bfloat16(tmp_path: Path) -> None:
    array = sample("bfloat16", (2, 3))
    write_arrays(tmp_path / "f", {"x": array}, {})
    [(name, entry)] = safetensors.deserialize((tmp_path / "f").read_bytes())
    assert (name, entry["dtype"], entry["shape"]) == ("x", "BF16", [2, 3])
    assert bytes(entry["data"]) == array.tobytes()


def test_what_the_official_library_writes_is_read(tmp_path: Path) -> None:
    arrays = {
        name: array for name, array in everything().items() if "complex128" not in name
    }
    safetensors.numpy.save_file(arrays, tmp_path / "f", {"format": "np"})
    found, metadata = read_arrays(tmp_path / "f")
    assert_same(found, arrays)
    assert metadata == {"format": "np"}
    assert found["bfloat16(3,)"].dtype == ml_dtypes.bfloat16


def test_without_arrays_both_agree(tmp_path: Path) -> None:
    write_arrays(tmp_path / "f", {}, {})
    assert safetensors.numpy.load_file(tmp_path / "f") == {}
    safetensors.numpy.save_file({}, tmp_path / "g")
    assert read_arrays(tmp_path / "g") == ({}, {})


# Atomic writing


def test_a_write_that_fails_leaves_the_former_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "f"
    write_arrays(path, {"x": np.ones(3)}, {})
    before = path.read_bytes()

    def no_space(handle: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(OSError, match="no space"):
        write_arrays(path, {"x": np.zeros(3)}, {})
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["f"]


def test_the_name_appears_after_the_bytes_are_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda f: (events.append("sync"), fsync(f)))
    monkeypatch.setattr(
        os, "replace", lambda a, b: (events.append("replace"), replace(a, b))
    )
    write_arrays(tmp_path / "f", {"x": np.ones(3)}, {})
    assert events == ["sync", "replace", "sync"]


@pytest.mark.parametrize(("code", "is_raised"), [("EINVAL", False), ("EIO", True)])
def test_a_drive_that_cannot_sync_folders_is_no_obstacle(
    code: str, is_raised: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse_folders(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(getattr(errno, code), code)

    monkeypatch.setattr(os, "fsync", refuse_folders)
    expected = pytest.raises(OSError, match=code) if is_raised else nullcontext()
    with expected:
        write_arrays(tmp_path / "f", {"x": np.ones(3)}, {})
    assert set(read_arrays(tmp_path / "f")[0]) == {"x"}


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "folder" / "file")
    write_arrays(link, {"x": np.ones(3)}, {})
    assert link.is_symlink()
    assert (tmp_path / "folder" / "file").is_file()
    assert set(read_arrays(link)[0]) == {"x"}


def test_a_missing_folder_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_arrays(tmp_path / "no" / "f", {}, {})
    with pytest.raises(FileNotFoundError):
        read_arrays(tmp_path / "f")


@pytest.mark.parametrize("name", ["__metadata__", "\ud800"])
def test_names_that_the_format_lacks_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"cannot be called|no Unicode"):
        write_arrays(tmp_path / "f", {name: np.ones(1)}, {})
    assert os.listdir(tmp_path) == []


# Malformed files


def file_of(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(dtype: Any, shape: Any, *offsets: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": list(offsets)}


ZERO16 = bytes(16)
MALFORMED = {
    "empty": (b"", "not even those of a length"),
    "short": (b"\x01\0\0", "has 3 bytes"),
    "no header": (bytes(8), "start with"),
    "header past the end": ((99).to_bytes(8, "little") + b"{}", "99 bytes, of 2"),
    "huge header": (b"\xff" * 8 + b"{}", "would have"),
    "list": (file_of([]), "start with"),
    "blank before": (file_of(b" {}"), "start with"),
    "not utf-8": (file_of(b'{"\xff": 1}'), "no JSON"),
    "cut json": (file_of(b'{"a": '), "no JSON"),
    "two documents": (file_of(b"{} {}"), "no JSON"),
    "deep": (file_of(b'{"a":' + b"[" * 200_000), "nested too deeply|no JSON"),
    "many digits": (file_of(b'{"a":' + b"9" * 10_000 + b"}"), "no JSON"),
    "nan": (file_of(b'{"a": NaN}'), "NaN is no number"),
    "twice": (
        file_of(b'{"a": 1, "a": 2}'),
        "'a' stands twice",
    ),
    "entry is a number": (file_of({"a": 1}), "not described"),
    "missing field": (file_of({"a": {"dtype": "U8", "shape": []}}), "not described"),
    "extra field": (file_of({"a": entry("U8", [0], 0, 0) | {"x": 1}}), "not described"),
    "unknown dtype": (file_of({"a": entry("F8_E5M2", [0], 0, 0)}), "'F8_E5M2'"),
    "dtype no text": (file_of({"a": entry(["F32"], [0], 0, 0)}), "dtype"),
    "shape no list": (file_of({"a": entry("U8", 0, 0, 0)}), "shape 0"),
    "negative size": (file_of({"a": entry("U8", [-1], 0, 0)}), "shape"),
    "bool size": (file_of({"a": entry("U8", [True], 0, 1)}, b"x"), "shape"),
    "float size": (file_of({"a": entry("U8", [1.0], 0, 1)}, b"x"), "shape"),
    "rank 65": (file_of({"a": entry("U8", [1] * 65, 0, 1)}, b"x"), "shape"),
    "overflow": (file_of({"a": entry("U8", [2**40, 2**40, 0], 0, 0)}), "shape"),
    "huge size": (file_of({"a": entry("U8", [2**64], 0, 0)}), "shape"),
    "negative offset": (file_of({"a": entry("U8", [1], -1, 0)}), "data_offsets"),
    "three offsets": (file_of({"a": entry("U8", [1], 0, 1, 2)}), "data_offsets"),
    "offsets backwards": (file_of({"a": entry("U8", [1], 1, 0)}, b"x"), "-1 bytes"),
    "too few bytes": (file_of({"a": entry("F32", [2], 0, 4)}, ZERO16), "takes 8"),
    "data too short": (file_of({"a": entry("F32", [8], 0, 32)}, ZERO16), "32 bytes"),
    "data too long": (file_of({"a": entry("F32", [2], 0, 8)}, ZERO16), "16 follow"),
    "gap": (
        file_of({"a": entry("U8", [4], 0, 4), "b": entry("U8", [4], 12, 16)}, ZERO16),
        "'b' starts at 12, has a gap",
    ),
    "gap in front": (file_of({"a": entry("U8", [8], 8, 16)}, ZERO16), "gap"),
    "overlap": (
        file_of({"a": entry("U8", [12], 0, 12), "b": entry("U8", [8], 8, 16)}, ZERO16),
        "'b' starts at 8, overlaps",
    ),
    "same place": (
        file_of({"a": entry("U8", [16], 0, 16), "b": entry("U8", [16], 0, 16)}, ZERO16),
        "overlaps",
    ),
    "bool of 2": (file_of({"a": entry("BOOL", [2], 0, 2)}, b"\x01\x02"), "neither 0"),
    "metadata list": (file_of({"__metadata__": []}), "metadata"),
    "metadata number": (file_of({"__metadata__": {"a": 1}}), "metadata"),
    "pairs no list": (file_of({"__metadata__": {"complex128": "{}"}}), "no list"),
    "pairs no json": (file_of({"__metadata__": {"complex128": "x"}}), "no JSON"),
    "pairs unknown": (file_of({"__metadata__": {"complex128": '["a"]'}}), "'a' is no"),
    "pairs twice": (
        file_of(
            {
                "__metadata__": {"complex128": '["a", "a"]'},
                "a": entry("F64", [2], 0, 16),
            },
            ZERO16,
        ),
        "'a' is no array of pairs",
    ),
    "pairs of a list": (file_of({"__metadata__": {"complex128": "[[]]"}}), "is no"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_file_is_refused_with_a_reason(case: str, tmp_path: Path) -> None:
    data, reason = MALFORMED[case]
    (tmp_path / "bad").write_bytes(data)
    with pytest.raises(CheckpointError, match=reason) as caught:
        read_arrays(tmp_path / "bad")
    assert str(tmp_path / "bad") in caught.value.message


def assert_read_or_refused(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    try:
        arrays, metadata = read_arrays(path)
    except CheckpointError:
        return
    assert sum(array.nbytes for array in arrays.values()) <= len(data)
    assert all(isinstance(text, str) for text in metadata.values())


def test_random_bytes_are_refused(tmp_path: Path, full: bool) -> None:
    @for_all(st.binary(max_size=200), full, 100)
    def check(data: bytes) -> None:
        assert_read_or_refused(tmp_path / "f", data)


SIZES = st.integers(-1, 4) | st.integers(2**31, 2**70)
JSON = st.recursive(
    st.none() | st.booleans() | SIZES | st.text(max_size=4) | st.floats(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=8,
)
ENTRIES = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(sorted(tensor_file.DTYPE_NAMES)) | JSON,
        "shape": st.lists(SIZES, max_size=4) | JSON,
        "data_offsets": st.lists(SIZES, min_size=2, max_size=2) | JSON,
    }
)


HEADERS = st.tuples(
    st.dictionaries(
        st.sampled_from(["a", "b", "__metadata__"]), ENTRIES | JSON, max_size=3
    ),
    st.binary(max_size=40),
)


def test_random_headers_are_refused(tmp_path: Path, full: bool) -> None:
    @for_all(HEADERS, full, 100)
    def check(given: tuple[Any, bytes]) -> None:
        header, data = given
        assert_read_or_refused(tmp_path / "f", file_of(header, data))


def test_changed_bits_are_noticed_or_harmless(tmp_path: Path, full: bool) -> None:
    arrays = {
        "a": np.arange(3.0),
        "b": np.array(True),
        "c": np.ones((2, 2), np.complex128),
    }
    write_arrays(tmp_path / "good", arrays, {"k": "v"})
    good = (tmp_path / "good").read_bytes()

    @for_all(st.data(), full, 100)
    def check(data: st.DataObject) -> None:
        changed = bytearray(good)
        for _ in range(data.draw(st.integers(1, 4))):
            at = data.draw(st.integers(0, len(good) - 1))
            changed[at] ^= 1 << data.draw(st.integers(0, 7))
        cut = data.draw(st.integers(0, len(good)) | st.just(len(good)))
        extra = data.draw(st.binary(max_size=4))
        assert_read_or_refused(tmp_path / "f", bytes(changed[:cut]) + extra)


def test_every_flipped_bit_of_a_header(tmp_path: Path, full: bool) -> None:
    write_arrays(tmp_path / "good", {"a": np.arange(2.0), "b": np.array(1)}, {})
    good = (tmp_path / "good").read_bytes()
    places = [(at, bit) for at in range(len(good)) for bit in range(8)]
    if not full:
        places = random.Random(0).sample(places, 300)
    for at, bit in places:
        changed = bytearray(good)
        changed[at] ^= 1 << bit
        assert_read_or_refused(tmp_path / "f", bytes(changed))


def test_no_prefix_of_a_file_is_a_file(tmp_path: Path) -> None:
    write_arrays(tmp_path / "good", {"a": np.arange(2.0)}, {})
    good = (tmp_path / "good").read_bytes()
    for length in range(len(good)):
        (tmp_path / "f").write_bytes(good[:length])
        with pytest.raises(CheckpointError):
            read_arrays(tmp_path / "f")


def test_a_save_removes_what_killed_ones_have_left(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    killed = """
import os, sys
from tapejit.training import tensor_file
file = tensor_file._replacing(sys.argv[1]).__enter__()
file.write(b"half of it")
file.flush()
os.kill(os.getpid(), 9)
"""
    command = [sys.executable, "-c", killed, str(path)]
    subprocess.run(command, check=False)
    (left,) = tmp_path.iterdir()
    assert left.name.endswith(".tmp")
    others = [tmp_path / name for name in ("a.tmp", ".model.tmp", ".other.0123.tmp")]
    others.append(tmp_path / f".other{left.name.removeprefix('.model')}")
    for other in others:
        other.write_bytes(b"of somebody else")
    write_arrays(path, {"x": np.arange(3.0)}, {})
    assert {*tmp_path.iterdir()} == {path, *others}


def test_a_save_leaves_those_alone_that_are_under_way(tmp_path: Path) -> None:
    """In this process and in another one."""
    path = tmp_path / "model.safetensors"
    slow = """
import sys
from tapejit.training import tensor_file
with tensor_file._replacing(sys.argv[1]) as file:
    print("writing", flush=True)
    sys.stdin.read()
    file.write(b"whole")
"""
    command = [sys.executable, "-c", slow, str(path)]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with tensor_file._replacing(path) as file:
            write_arrays(path, {"x": np.arange(3.0)}, {})
            assert len([*tmp_path.iterdir()]) == 3
            file.write(b"mine")
        assert path.read_bytes() == b"mine"
        other.communicate()
    assert path.read_bytes() == b"whole"
    assert [*tmp_path.iterdir()] == [path]
