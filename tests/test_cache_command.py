"""The command line: what `python -m tapejit` prints and how it ends."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from elsewhere import run_interpreter

import tapejit
from tapejit.__main__ import CACHE_COMMANDS, main
from tapejit.base.config import SETTINGS, config
from tapejit.runtime import machine_info
from tapejit.runtime.store import folder as store_folder
from tapejit.runtime.store.store import Store

KEYS = [f"{number:064x}" for number in range(3)]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """The folder of the cache that the commands see, with two entries in it."""
    folder = tmp_path / "cache"
    store = Store(folder)
    store.put(KEYS[0], {"name": "loss", "kernels": ["sum", "tanh"]}, bytes(3000))
    store.put(KEYS[1], {"name": "step.vjp", "kernels": 5}, bytes(2 << 20))
    store.get(KEYS[1])
    os.utime(folder / f"{KEYS[0]}.object", (0, 0))
    store_folder._warned.clear()
    with config.override(cache=True, cache_dir=str(folder), cache_size=64):
        yield folder


def test_ls_is_a_table_with_the_last_used_first(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cache", "ls"]) == 0
    title, first, second, total = capsys.readouterr().out.splitlines()
    assert title.split() == ["graph", "kernels", "size", "last", "used", "uses", "key"]
    assert first.split()[:4] == ["step.vjp", "5", "2.0", "MB"]
    assert first.split()[-2:] == ["1", KEYS[1][:12]]
    assert second.split()[:4] == ["loss", "2", "3.1", "KB"]
    assert second.split()[-3:] == ["days", "0", KEYS[0][:12]]
    assert total == f"2 entries, 2.0 MB of 64 MB, {folder}"


def test_ls_shows_what_is_damaged_and_leaves_it(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / f"{KEYS[2]}.object").write_bytes(b"")
    assert main(["cache", "ls"]) == 0
    assert "damaged: not an entry of this version" in capsys.readouterr().out
    assert (folder / f"{KEYS[2]}.object").exists()


def test_ls_bears_with_headers_of_any_content(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Store(folder).put(KEYS[2], {"name": 3, "kernels": {"a": 1}}, b"")
    Store(folder).put(KEYS[0], {}, b"")
    assert main(["cache", "ls"]) == 0
    assert "3 entries" in capsys.readouterr().out


def test_verify_is_content_with_good_entries(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cache", "verify"]) == 0
    assert capsys.readouterr().out == "2 entries in order, 0 damaged\n"


def test_verify_drops_what_is_damaged_and_says_so(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / f"{KEYS[0]}.object"
    data = bytearray(path.read_bytes())
    data[-7] ^= 16
    path.write_bytes(data)
    assert main(["cache", "verify"]) == 1
    first, last = capsys.readouterr().out.splitlines()
    assert first == f"{KEYS[0]}: its content does not match its checksum; dropped"
    assert last == "1 entry in order, 1 damaged"
    assert main(["cache", "verify"]) == 0


def test_clear_removes_everything(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cache", "clear"]) == 0
    assert capsys.readouterr().out == f"2 entries removed from {folder}\n"
    assert os.listdir(folder) == []
    for action in ("ls", "verify", "clear"):
        assert main(["cache", action]) == 0
        told = capsys.readouterr().out
        assert told == f"nothing is kept in {folder} (in use)\n"


def test_path_prints_the_folder_alone(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cache", "path"]) == 0
    assert capsys.readouterr().out == f"{folder}\n"


def test_a_cache_that_is_off_or_refused_is_named_so(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with config.override(cache=False):
        assert main(["cache", "ls"]) == 0
    assert "not in use: turned off by TAPEJIT_CACHE=0" in capsys.readouterr().out
    folder.chmod(0o777)
    with pytest.warns(store_folder.CacheWarning):
        assert main(["cache", "ls"]) == 0
    assert "is refused: other users can write to it" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["cache"], ["cache", "eat"], ["nonsense"]])
def test_what_is_no_command_is_explained(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage: python -m tapejit" in capsys.readouterr().err


def test_help_tells_all_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["cache", "--help"])
    assert ended.value.code == 0
    told = capsys.readouterr().out
    for action in (*CACHE_COMMANDS, "TAPEJIT_CACHE_DIR", "TAPEJIT_CACHE=0"):
        assert action in told


def test_the_command_runs_as_a_module(folder: Path) -> None:
    setting = {"TAPEJIT_CACHE_DIR": str(folder)}
    (folder / f"{KEYS[2]}.object").write_bytes(b"damage")
    out = run_interpreter("-W", "error", "-m", "tapejit", "cache", "verify", **setting)
    assert (out.returncode, out.stderr) == (1, "")
    assert out.stdout.endswith("2 entries in order, 1 damaged\n")


# Information


@pytest.mark.parametrize("arguments", [["info"], []])
def test_info_tells_versions_machine_cache_and_settings(
    arguments: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 0
    told = capsys.readouterr().out
    facts = dict(
        line.strip().split(maxsplit=1) for line in told.splitlines() if line[0] == " "
    )
    assert facts["tapejit"] == tapejit.__version__
    assert facts["folder"] == str(folder)
    assert facts["state"] == "in use"
    number = len(list(folder.glob("*.object")))  # the driver of threads may be kept too
    assert facts["entries"] == f"{number}, 2.0 of 64 MB"
    assert set(SETTINGS) <= set(facts)
    assert facts["cache_size"] == "64 (default 256)"
    assert "unknown" not in facts


def test_info_imports_no_compiler_but_llvm() -> None:
    code = (
        "import sys\n"
        "from tapejit.__main__ import main\n"
        "main(['info'])\n"
        "print(sorted({'numba', 'scipy', 'ml_dtypes'} & set(sys.modules)))\n"
    )
    out = run_interpreter("-c", code, TAPEJIT_CACHE="0")
    assert out.stdout.splitlines()[-1] == "[]", out.stderr


def test_info_works_when_parts_are_missing_or_broken(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def broken() -> dict[str, str]:
        raise OSError("out of order")

    from importlib import metadata

    def nothing(package: str) -> str:
        raise metadata.PackageNotFoundError(package)

    monkeypatch.setitem(sys.modules, "llvmlite", None)
    for name in ("threads", "blas"):
        monkeypatch.setitem(sys.modules, f"tapejit.runtime.{name}", None)
    monkeypatch.setattr(metadata, "version", nothing)
    monkeypatch.setattr(machine_info, "cache", broken)
    assert main(["info"]) == 0
    told = capsys.readouterr().out
    assert "not installed" in told
    assert "missing: import of llvmlite halted" in told
    assert "none found that can be told a number of threads" in told
    assert "OSError: out of order" in told
    assert "default_float" in told


@pytest.mark.parametrize(
    ("features", "bits"),
    [
        ({"avx": True, "avx512f": True}, 512),
        ({"avx": True}, 256),
        ({"sse2": True}, 128),
        ({}, 128),
    ],
)
def test_vectors_are_as_wide_as_the_processor_has_them(
    features: dict[str, bool], bits: int
) -> None:
    assert machine_info.vector_bits(features) == bits


def test_looking_makes_no_folder(tmp_path: Path) -> None:
    folder = tmp_path / "above" / "cache"
    with config.override(cache=True, cache_dir=str(folder)):
        assert machine_info.cache()["state"] == "empty"
    assert os.listdir(tmp_path) == []


def test_info_and_its_cache_line_when_nothing_can_be_written(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*arguments: object) -> int:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "open", refuse)
    assert machine_info.cache()["state"] == "read, not written: Read-only file system"
