"""Every line of the contract has tests, and every numbered test has a line."""

from __future__ import annotations

from pathlib import Path

import pytest
import semantics_lines


def test_every_line_has_a_test() -> None:
    found = semantics_lines.collect_by_line()
    assert semantics_lines.lines_without_tests(found) == []
    assert set(found) <= set(semantics_lines.TITLES), "a number that is no line"


def test_a_line_without_tests_is_reported(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "test_some.py").write_text("def test_s02_it() -> None: ...\n")
    found = semantics_lines.collect_by_line(tmp_path)
    assert found == {2: ["test_some.py::test_s02_it"]}
    monkeypatch.setattr(semantics_lines, "collect_by_line", lambda: found)
    assert semantics_lines.main() == 1
    printed = capsys.readouterr().out
    assert "test_some.py::test_s02_it" in printed
    assert "lines without a test: 1, 3, 4," in printed
