"""A case: one program, its right answer, and how each peer writes it.

The data structures are `Case`, a declarative record; `Program`, what a builder returns
when it has more to tell than its callable; and two kinds of goal, `AtLeast` (a ratio to
a peer) and `Above` (microseconds on top of a peer). Goals judge lists of seconds per
round and never look at the clock, so they can be tested with made-up numbers.

Start reading at `Case`; `check_answer` says what "the same answer" means.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
Rounds = Sequence[float]
"""Seconds per operation, one entry per round; entry i of all peers is from round i."""

OURS = "tapejit"

UNITS = {"ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "s": 1.0}

TOLERANCE: Mapping[str, float] = {
    "float16": 1e-2,
    "bfloat16": 5e-2,
    "float32": 1e-5,
    "float64": 1e-11,
    "complex64": 1e-5,
    "complex128": 1e-11,
}
"""Largest error allowed, relative to the largest magnitude of the reference, by the
dtype of the answer. Integers and booleans have to be equal."""


class WrongAnswer(Exception):
    """A peer's result differs from the reference; it is reported and never timed."""


@dataclass(frozen=True)
class Program:
    """What a builder returns when it has more to tell than its callable.

    `kernels` and `compile_seconds` are asked after the first call, because only then
    has a compiler run.

    >>> Program(run=lambda: 1.0, kernels=lambda: 1).kernels()
    1
    """

    run: Callable[[], Any]
    kernels: Callable[[], int] | None = None
    compile_seconds: Callable[[], float] | None = None


def as_program(built: Program | Callable[[], Any]) -> Program:
    """A builder may return a bare callable: wrap it.

    >>> as_program(lambda: 3).run()
    3
    """
    return built if isinstance(built, Program) else Program(run=built)


@dataclass(frozen=True)
class Case:
    """One program that several peers run on the same inputs.

    `builders` maps a peer's label (`"torch"`, or with a variant `"jax (jit)"`) to a
    function of the NumPy inputs that returns a zero-argument callable or a `Program`. A
    call returns one array of the peer or a list of them, finished: a peer that answers
    before it is done waits inside the callable, or the case says why not. `reference`
    gives the right answer in float64 from the same inputs. Reported times are per
    operation: one call divided by `operations`.

    >>> case = Case(
    ...     name="double",
    ...     description="x + x",
    ...     unit="µs",
    ...     make_inputs=lambda rng: (rng.standard_normal(3),),
    ...     reference=lambda x: [2 * x],
    ...     builders={"numpy": lambda x: lambda: x + x},
    ... )
    >>> (x,) = case.inputs()
    >>> check_answer(case, [case.builders["numpy"](x)()], case.reference(x))
    0.0
    """

    name: str
    description: str
    unit: str
    make_inputs: Callable[[np.random.Generator], tuple[Array, ...]]
    reference: Callable[..., Sequence[Array]]
    builders: Mapping[str, Callable[..., Program | Callable[[], Any]]]
    goals: tuple[AtLeast | Above, ...] = ()
    operations: int = 1
    kernels: int | None = None
    """How many kernels tapejit must make of it, checked before anything is timed."""
    stateful: bool = False
    """A call changes what the next one computes (a training step): only the first
    answer is checked. The others are checked again at the end, when hot paths have
    compiled."""
    tolerance: Mapping[str, float] = field(default_factory=dict)
    """Entries that replace those of `TOLERANCE`, with the reason beside them."""

    def __post_init__(self) -> None:
        if self.unit not in UNITS:
            raise ValueError(f"{self.name}: unit {self.unit!r}, not one of {[*UNITS]}")
        if self.operations < 1:
            raise ValueError(f"{self.name}: {self.operations} operations per call")

    def inputs(self) -> tuple[Array, ...]:
        """The inputs, equal in every process: the seed is part of the harness."""
        return self.make_inputs(np.random.default_rng(20240229))


def check_answer(
    case: Case, answer: Sequence[Array], reference: Sequence[Array]
) -> float:
    """The largest relative error of `answer`, or `WrongAnswer` if one is too large.

    >>> case = Case(
    ...     name="c",
    ...     description="",
    ...     unit="s",
    ...     make_inputs=lambda rng: (),
    ...     reference=lambda: [],
    ...     builders={},
    ... )
    >>> check_answer(case, [np.float32([1.00001, 2])], [np.array([1.0, 2.0])]) < 1e-5
    True
    >>> check_answer(case, [np.float64([1.00001, 2])], [np.array([1.0, 2.0])])
    Traceback (most recent call last):
    benchmarks.case.WrongAnswer: c: result 0 is off by 5e-06, float64 allows 1e-11
    """
    if len(answer) != len(reference):
        raise WrongAnswer(
            f"{case.name}: {len(answer)} results, the reference has {len(reference)}"
        )
    worst = 0.0
    for i, (got, expected) in enumerate(zip(answer, reference, strict=True)):
        if got.shape != expected.shape:
            raise WrongAnswer(
                f"{case.name}: result {i} has shape {got.shape}, not {expected.shape}"
            )
        allowed = {**TOLERANCE, **case.tolerance}.get(got.dtype.name, 0.0)
        # To the largest entry: a float32 sum near zero has no relative accuracy.
        scale = max(float(np.max(np.abs(expected), initial=0.0)), 1e-300)
        wide = np.result_type(expected.dtype, np.float64)
        difference = np.abs(got.astype(wide) - expected.astype(wide))
        error = float(np.max(difference, initial=0.0)) / scale
        if not error <= allowed:  # a NaN is an error too
            raise WrongAnswer(
                f"{case.name}: result {i} is off by {error:.2g}, "
                f"{got.dtype.name} allows {allowed:g}"
            )
        worst = max(worst, error)
    return worst


def verdict(by_best: bool, by_median: bool) -> str:
    """Best and median have to agree; when they do not, the run was too noisy to tell.

    >>> verdict(True, True), verdict(True, False), verdict(False, False)
    ('yes', 'unclear', 'no')
    """
    if by_best != by_median:
        return "unclear"
    return "yes" if by_best else "no"


def ratios(theirs: Rounds, ours: Rounds) -> tuple[float, float]:
    """Theirs over ours: of the best rounds, and the median over pairs of one round.

    >>> ratios([2.0, 6.0, 4.0], [1.0, 2.0, 1.0])
    (2.0, 3.0)
    """
    pairs = [them / us for them, us in zip(theirs, ours, strict=True)]
    return min(theirs) / min(ours), median(pairs)


def excesses(ours: Rounds, base: Rounds) -> tuple[float, float]:
    """Ours minus the base: of the best rounds, and the median over pairs of one round.

    >>> excesses([3.0, 5.0, 4.0], [1.0, 2.0, 3.0])
    (2.0, 2.0)
    """
    pairs = [us - below for us, below in zip(ours, base, strict=True)]
    return min(ours) - min(base), median(pairs)


@dataclass(frozen=True)
class AtLeast:
    """tapejit is to be at least `ratio` times as fast as `peer`.

    With `promised=False` the peer is a mark: shown and judged, but nothing is claimed.

    >>> goal = AtLeast(5, "tensorflow")
    >>> str(goal), goal.judge(ours=[1.0, 1.1], theirs=[6.0, 7.0])
    ('≥ 5x', 'yes')
    """

    ratio: float
    peer: str
    promised: bool = True

    def __str__(self) -> str:
        return f"{'' if self.promised else 'mark '}≥ {self.ratio:g}x"

    @property
    def sentence(self) -> str:
        """The goal with the peer it is against."""
        return f"{self} against {self.peer}"

    @property
    def row(self) -> str:
        """The peer in whose row of the table this goal stands."""
        return self.peer

    def judge(self, *, ours: Rounds, theirs: Rounds) -> str:
        """'yes', 'no', or 'unclear' when best and median disagree."""
        by_best, by_median = ratios(theirs, ours)
        return verdict(by_best >= self.ratio, by_median >= self.ratio)


@dataclass(frozen=True)
class Above:
    """tapejit is to cost at most `microseconds` more than `peer` does by itself.

    >>> goal = Above(1.5, "numpy")
    >>> str(goal), goal.judge(ours=[3e-6, 4e-6], theirs=[1e-6, 1e-6])
    ('≤ 1.5 µs above numpy', 'no')
    """

    microseconds: float
    peer: str

    def __str__(self) -> str:
        return f"≤ {self.microseconds:g} µs above {self.peer}"

    @property
    def sentence(self) -> str:
        """The goal with the peer it is against."""
        return str(self)

    @property
    def row(self) -> str:
        """The peer in whose row of the table this goal stands."""
        return OURS

    def judge(self, *, ours: Rounds, theirs: Rounds) -> str:
        """'yes', 'no', or 'unclear' when best and median disagree."""
        by_best, by_median = excesses(ours, theirs)
        limit = self.microseconds * 1e-6
        return verdict(by_best <= limit, by_median <= limit)
