"""Every line of the contract has tests, and every numbered test has a line."""

from __future__ import annotations

from pathlib import Path

import pytest
import semantics_lines


def test_every_line_has_a_test() -> None:
    found = semantics_lines.collect_by_line()
    assert semantics_lines.lines_without_tests(found) == []
    assert set(found) <= set(semantics_lines.TITLES), "a number that is no line"


def test_every_line_has_a_test_in_both_modes() -> None:
    found = semantics_lines.collect_by_line()
    assert semantics_lines.lines_in_one_mode(found) == []


def test_no_line_waits_for_tests_that_exist() -> None:
    found = semantics_lines.collect_by_line()
    written = [
        line
        for line in semantics_lines.NOT_YET
        if semantics_lines.has_both_modes(found, line)
    ]
    assert written == [], "take them out of NOT_YET"


def test_a_test_in_both_modes_is_known_by_what_it_uses(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(
        """
from .both_modes import assert_modes

PROGRAMS = {"a": lambda: assert_taped()}

def check() -> None:
    assert_modes(program)

def test_s01_directly() -> None:
    assert_modes(program)

def test_s02_through_a_helper() -> None:
    check()

@pytest.mark.parametrize("run", PROGRAMS)
def test_s03_through_a_table(run) -> None:
    run()

def test_s04_not() -> None:
    assert tj.function(program)()

def test_s46_a_line_about_functions() -> None:
    assert tj.function(program)()

def test_s47_not() -> None:
    assert program()
"""
    )
    found = semantics_lines.collect_by_line(tmp_path)
    both = [line for line in found if semantics_lines.has_both_modes(found, line)]
    assert both == [1, 2, 3, 46]
    assert set(semantics_lines.lines_in_one_mode(found)) >= {4, 5, 47}


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
