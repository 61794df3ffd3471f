"""The key of stored code: everything that could make other code is in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from elsewhere import run_interpreter

from tapejit.base.config import SETTINGS, config
from tapejit.runtime.store import key as store_key
from tapejit.runtime.store.key import (
    HARMLESS,
    NOT_SOURCES,
    cache_key,
    environment,
    numba_version,
    process_start,
    signature,
    sources_digest,
)
from tapejit.targets.cpu.machine import processor

ROOT = Path(__file__).resolve().parent.parent


def key(digest: str = "abc", **extras: Any) -> str:
    return cache_key(digest, extras=extras)


def test_equal_circumstances_give_equal_keys_in_any_process() -> None:
    code = (
        "import sys\n"
        "from tapejit.runtime.store.key import cache_key\n"
        "print(cache_key('abc', extras=eval(sys.argv[1])))\n"
        "print(sorted({'numba', 'scipy'} & set(sys.modules)))\n"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, extras],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": seed},
        )
        for seed, extras in (("1", "{'a': 1, 'b': 2}"), ("2", "{'b': 2, 'a': 1}"))
    ]
    first, second = (process.communicate(timeout=120)[0] for process in processes)
    assert first == second
    assert len(first.split()[0]) == 64
    assert first.split()[1] == "[]"


def test_graphs_and_extras_are_told_apart() -> None:
    keys = {
        key(),
        key("abd"),
        key(layouts=["C"]),
        key(layouts=["F"]),
        key(layouts=["C", "C"]),
        key(aligned=True),
        key(aligned=1.5),
    }
    assert len(keys) == 7
    assert all(len(each) == 64 for each in keys)


def test_extras_that_are_no_json_are_an_error() -> None:
    with pytest.raises(TypeError, match="not JSON serializable"):
        key(order={1, 2})


@pytest.mark.parametrize("part", sorted(environment()))
def test_every_part_of_the_environment_counts(
    monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    before = key()
    changed = environment() | {part: "something else"}
    monkeypatch.setattr(store_key, "environment", lambda: changed)
    assert key() != before


def test_the_version_of_the_passes_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    before = key()
    monkeypatch.setattr(store_key, "VERSION", -1)
    assert key() != before


@pytest.mark.parametrize("name", ["default_float", *sorted(HARMLESS)])
def test_a_setting_counts_unless_it_is_said_to_be_harmless(name: str) -> None:
    open_ended = {"cache_dir": ["", "elsewhere"]}.get(name, [1, 2])
    keys = set()
    for value in SETTINGS[name].values.values() or open_ended:
        with config.override(**{name: value}):
            keys.add(key())
    assert (len(keys) == 1) == (name in HARMLESS)


def test_every_setting_is_in_the_key_or_harmless() -> None:
    told = set(signature("abc", extras={})["settings"])
    assert told == set(SETTINGS) - HARMLESS
    assert set(SETTINGS) >= HARMLESS


def test_a_signature_is_json() -> None:
    whole = signature("abc", extras={"layouts": ["C"]})
    assert json.loads(json.dumps(whole)) == whole


def test_the_environment_names_this_machine() -> None:
    from llvmlite import binding

    found = environment()
    by_llvm = store_key.llvms_description()
    assert found["processor"] == (processor.identity() or by_llvm)
    assert binding.get_host_cpu_name() in by_llvm
    assert found["llvmlite"].startswith("0.")
    assert found["python"] in (".so", ".pyd") or "cp" in found["python"]


# Sources


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small package with the folders of ours, in place of it."""
    for name in (
        "runtime/store/key.py",
        "ops/arithmetic.py",
        "targets/cpu/vecmath/a.py",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# {name}\n")
        os.utime(path, (1, 1))
    monkeypatch.setattr(store_key, "__file__", str(tmp_path / "runtime/store/key.py"))
    return tmp_path


def test_a_source_counts_by_content_and_name_not_by_date(package: Path) -> None:
    before = sources_digest()
    source = package / "ops" / "arithmetic.py"
    os.utime(source, (2, 2))
    assert sources_digest() == before
    source.write_text("# ops/arithmetik.py\n")
    os.utime(source, (2, 2))
    assert sources_digest() != before
    source.write_text("# ops/arithmetic.py\n")
    os.utime(source, (2, 2))
    assert sources_digest() == before
    source.rename(package / "ops" / "other.py")
    assert sources_digest() != before


def test_a_source_that_changes_while_we_run_makes_keys_of_our_own(
    package: Path,
) -> None:
    source = package / "ops" / "arithmetic.py"
    source.write_text(source.read_text())
    assert sources_digest() != sources_digest()
    past = process_start() - 1
    os.utime(source, (past, past))
    assert sources_digest() == sources_digest()


def test_the_start_of_a_process_is_before_its_imports() -> None:
    code = (
        "import time\n"
        "first = time.time()\n"
        "from tapejit.runtime.store.key import process_start\n"
        "print(process_start() - first)\n"
    )
    out = run_interpreter("-c", code)
    assert float(out.stdout) < 0.02, out.stderr


@pytest.mark.parametrize("name", ["new.py", "targets/cpu/vecmath/b.py", "loops/b.py"])
def test_a_new_source_counts_wherever_it_is(package: Path, name: str) -> None:
    before = sources_digest()
    (package / name).parent.mkdir(exist_ok=True)
    (package / name).write_text("")
    os.utime(package / name, (1, 1))
    assert sources_digest() != before


@pytest.mark.parametrize(
    "name",
    ["tensor/tensor.py", "training/fit.py", "__main__.py", "ops/__pycache__/a.py"],
)
def test_what_makes_no_code_does_not_count(package: Path, name: str) -> None:
    before = sources_digest()
    (package / name).parent.mkdir(exist_ok=True)
    (package / name).write_text("x = 1\n")
    assert sources_digest() == before


def test_what_is_left_out_exists() -> None:
    assert {name for name in NOT_SOURCES if not (ROOT / "tapejit" / name).exists()} == (
        set()
    )


# Numba's version


def test_numbas_version_is_the_installed_one() -> None:
    from importlib import metadata

    assert numba_version() == metadata.version("numba")


@pytest.mark.parametrize("content", [None, "", "version = unreadable\n"])
def test_numbas_version_is_found_without_its_version_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None
) -> None:
    folder = tmp_path / "numba"
    folder.mkdir()
    (folder / "__init__.py").write_text("raise AssertionError('it was imported')\n")
    if content is not None:
        (folder / "_version.py").write_text(content)
    record = tmp_path / "numba-9.8.7.dist-info"
    record.mkdir()
    (record / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: numba\nVersion: 9.8.7\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "numba", raising=False)
    assert numba_version() == "9.8.7"


def test_without_numba_there_is_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)
    assert numba_version() is None
