"""The generated pages are current, and the generator says what is the case."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from elsewhere import load_module

import tapejit as tj
from tapejit.ir import OPS

SCRIPT = Path(__file__).resolve().parent.parent / "docs" / "generate.py"


@pytest.fixture(scope="module")
def generate(full: bool) -> ModuleType:
    """The program; without the measured page, of which `test_vecmath.py` has rows."""
    before = list(sys.path)
    try:
        module = load_module(SCRIPT)
    finally:
        sys.path[:] = before
    if not full:
        del module.PAGES["vecmath.md"]
    return module


@pytest.mark.parametrize("name", ["ops.md", "numpy_coverage.md", "vecmath.md"])
def test_the_page_is_current(generate: ModuleType, name: str) -> None:
    if name not in generate.PAGES:
        pytest.skip("half a minute of measuring: --full")
    lines = generate.differences(name)
    assert not lines, "\n".join(["run python docs/generate.py", *lines])


def test_generating_twice_gives_the_same(generate: ModuleType) -> None:
    for make in generate.PAGES.values():
        assert make() == make()


def test_the_check_fails_for_a_page_that_was_edited(
    generate: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(generate, "DOCS", tmp_path)
    assert generate.main(["--check"]) == 1
    assert generate.main([]) == 0
    assert generate.main(["--check"]) == 0
    page = tmp_path / "ops.md"
    page.write_text(page.read_text().replace("| `tanh` |", "| `tanh!` |"))
    assert generate.main(["--check"]) == 1
    assert "tanh!" in capsys.readouterr().out


def test_another_numpy_is_compared_by_the_functions_both_have(
    generate: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = generate.numpy_page()
    version = generate.version_of(made)
    other = made.replace(f"Of NumPy {version}:", "Of NumPy 1.0:")
    without = [line for line in other.splitlines() if "`np.sin`" not in line]
    monkeypatch.setattr(generate, "DOCS", tmp_path)
    (tmp_path / "numpy_coverage.md").write_text("\n".join(without))
    assert generate.differences("numpy_coverage.md") == []
    wrong = "\n".join(without).replace("| `np.cos` | recorded", "| `np.cos` | refused")
    (tmp_path / "numpy_coverage.md").write_text(wrong)
    assert any("np.cos" in line for line in generate.differences("numpy_coverage.md"))


def test_every_operation_is_on_the_page(generate: ModuleType) -> None:
    page = generate.ops_page()
    assert [name for name in OPS if f"| `{name}` |" not in page] == []


def test_what_the_page_says_of_numpys_functions_is_what_they_do(
    generate: ModuleType,
) -> None:
    """Refused functions of one argument refuse; recorded ufuncs compute."""
    x = tj.asarray([0.25, 0.5])
    wrong = []
    for name, function in generate.numpy_functions().items():
        answer, _ = generate.answer_of(function)
        if not isinstance(function, np.ufunc) or function.signature is not None:
            continue
        try:
            function(*[x] * function.nin)
            found = "recorded"
        except tj.UnsupportedError:
            found = "refused"
        except tj.DTypeError:  # a function of integers or bools
            found = "recorded"
        if found != answer:
            wrong.append((name, answer, found))
    assert wrong == []
