"""Random programs as native code with marked memory: a sample of `tests.fuzz`.

Values, gradients and second derivatives, by tapes inside of functions and around them,
called three times: plain Python says what is right.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
from fuzz.faults import FAULTS, with_fault
from fuzz.judge import Trial, judge
from fuzz.program import Program
from fuzz.shrink import shrunk
from fuzz.writer import ANYTHING, PRODUCTS, program_of

import tapejit as tj


@pytest.fixture(autouse=True)
def _checked(with_native_code: None) -> Iterator[None]:
    tj.config.update(check=True, cache=False)
    yield
    tj.config.update(check=False, cache=True)


def assert_agrees(program: Program) -> None:
    failure = judge(program)
    if failure is not None:
        smaller = shrunk(program, failure.kind, judge, tries=60)
        raise AssertionError(f"{judge(smaller) or failure}\n{smaller}")


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_random_programs_agree_with_plain_python(first: int, full: bool) -> None:
    """From another beginning than the command's, which has been through its own."""
    for seed in range(first, first + (200 if full else 6)):
        assert_agrees(program_of(10**6 + seed, ANYTHING))


@pytest.mark.usefixtures("every_product_is_a_kernel")
def test_random_programs_of_products_agree_with_plain_python(full: bool) -> None:
    """However small they are."""
    for seed in range(100 if full else 5):
        assert_agrees(program_of(seed, PRODUCTS))


def test_most_results_are_judged() -> None:
    """Few of them are what rounding errors alone could change."""
    results = judged = 0
    for seed in range(20):
        program = program_of(seed)
        trial = Trial(program)
        arrays = program.arrays(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            steady = trial.steady(arrays, trial.plain.read())
        if steady is not None:
            results += len(steady)
            judged += sum(steady)
    assert judged > 0.8 * results > 0, f"{judged} of {results}"


# Seeds whose programs find faults that there were; others do as well.
FOUND = {
    "keep_apart": 629,
    "cut_results": 81,
    "zero_of_extremes": 78,
    "unsigned": 338,
    "float_of_double": 384,
    "xlogy": 416,
}


@pytest.mark.parametrize("name", FOUND)
def test_faults_that_there_were_are_found(name: str) -> None:
    program = program_of(FOUND[name])
    with with_fault(name):
        assert judge(program) is not None
    assert judge(program) is None


def test_every_fault_has_a_seed() -> None:
    assert set(FOUND) == set(FAULTS)


def test_a_failing_program_is_made_smaller() -> None:
    """To the statement that is wrong, and what it needs."""
    program = program_of(FOUND["cut_results"])

    with with_fault("cut_results"):
        failure = judge(program)
        assert failure is not None
        smaller = shrunk(program, failure.kind, judge, tries=20)
    assert len(smaller.lines) + len(smaller.results) < len(program.lines) + len(
        program.results
    )
    assert f"seed {program.seed}" in str(smaller)
