"""Random programs as native code with marked memory: a sample of `tests.fuzz`.

Values, gradients and second derivatives, by tapes inside of functions and around them,
called three times: plain Python says what is right.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from fuzz.faults import FAULTS, with_fault
from fuzz.judge import Trial, cotangent_sums, judge, other_value
from fuzz.program import Number, Program
from fuzz.shrink import shrunk
from fuzz.writer import ANYTHING, PRODUCTS, program_of

import tapejit as tj
from tapejit.ir import Graph

from .conditioning import steady_outputs


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
        results += len(steady)
        judged += sum(steady)
    assert judged > 0.8 * results > 0, f"{judged} of {results}"


def test_a_number_is_as_precise_as_what_it_was_taken_from() -> None:
    near, far = 1 + 2.0**-22, 1 + 2.0**-10
    for dtype, is_judged in (("float32", False), ("float64", True)):
        expected = Number(tj.asarray(1.0, dtype))
        assert (other_value(near, expected) is not None) == is_judged
        assert other_value(far, expected) is not None


def test_only_a_term_that_is_not_zero_can_change_the_sign_of_a_zero() -> None:
    product = graph_of(lambda x, y: x @ y)
    y = np.full((2, 2), -1e-30, np.float32)
    for small, is_steady in ((1e-30, False), (0.0, True)):
        x = np.float32([[1, 1], [small, -small]])  # 64 eps of 1 is above any noise
        assert steady_outputs(product, [x, y], 0) == [is_steady]


def test_cotangents_meet_where_no_rule_and_no_user_adds() -> None:
    def body(x: Any, y: Any) -> Any:
        with tj.GradientTape() as tape:
            tape.watch([x, y])
            loss = tj.xlogy(x, y) + tj.log1p(x) + y
        return tape.gradient(loss, [x, y])

    graph = graph_of(body)
    found = [x for x in graph.nodes if x in cotangent_sums(graph)]
    assert set(found) == set(graph.outputs)
    assert sum(x.op.name == "add" for x in graph.nodes) > len(found) + 2


def test_cotangents_that_meet_cancel_to_a_zero_of_any_sign() -> None:
    """Of unequal signs: the sum of zeros of one sign has that."""
    graph = graph_of(lambda x, y: x + y)
    one = np.float32([[1, 100], [1, 100]])
    zero = np.float32([[0, 100], [0, 100]])
    other = np.float32([[-1, 0], [-1, 0]])
    for x, y, is_steady in ((one, other, False), (zero, zero, True)):
        assert steady_outputs(graph, [x, y], 0, graph.outputs) == [is_steady]
        assert steady_outputs(graph, [x, y], 0) == [True]


def graph_of(body: Callable[..., Any]) -> Graph:
    x = tj.ones((2, 2))
    return tj.function(body).graph(x, x)


# Seeds whose programs find faults that there were; others do as well.
FOUND = {
    "keep_apart": 455,
    "cut_results": 81,
    "zero_of_extremes": 78,
    "unsigned": 338,
    "float_of_double": 893,
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
