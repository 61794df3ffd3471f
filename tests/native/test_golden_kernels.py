"""The kernels of small programs, compared with the text they had.

A change of the planner that means to change them is looked at in the difference, and
written down with `pytest tests/native/test_golden_kernels.py --regenerate`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from .golden_programs import PROGRAMS

GOLDEN = Path(__file__).parent / "golden"


def text_of(name: str) -> str:
    """What is kept: each kernel in numbers, and the source."""
    function, *arguments = PROGRAMS[name]()
    reports = "".join(f"# {x}\n" for x in function.kernels(*arguments))
    return f"{reports}\n{function.source(*arguments)}"


@pytest.mark.parametrize("name", PROGRAMS)
def test_kernels_are_as_they_were(name: str, request: pytest.FixtureRequest) -> None:
    path = GOLDEN / f"{name}.txt"
    found = text_of(name)
    if request.config.getoption("--regenerate"):
        path.write_text(found)
    assert found == path.read_text(), "see the module's text if this is meant"


def test_every_file_has_a_program() -> None:
    assert {path.stem for path in GOLDEN.glob("*.txt")} == set(PROGRAMS)
