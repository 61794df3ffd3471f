"""A case: one program, its right answer, and how each peer writes it.

The data structures are `Case`, a declarative record; `Program`, what a builder returns
when it has more to tell than its callable; and four kinds of `Goal`: `AtLeast` (a ratio
to a peer), `Leads` (a ratio to every peer), `Above` (microseconds on top of a peer) and
`Within` (a limit). Goals judge lists of numbers per round, one list per peer, and never
look at the clock, so they can be tested with made-up numbers.

Start reading at `Case`; `check_answer` says what "the same answer" means.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
Rounds = Sequence[float]
"""Seconds per operation, one entry per round; entry i of all peers is from round i.

In a case whose unit is MB they are bytes: less is better there too.
"""

OURS = "tapejit"

UNITS = {"ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "MB": 1e6}

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
    has a compiler run. `measure`, where given, is called once a round instead of timing
    `run`, and returns the number to report: for what a clock around a call does not
    see, such as the memory of another process.

    >>> Program(run=lambda: 1.0, kernels=lambda: 1).kernels()
    1
    """

    run: Callable[[], Any]
    kernels: Callable[[], int] | None = None
    compile_seconds: Callable[[], float] | None = None
    measure: Callable[[], float] | None = None


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
    call returns one array of the peer or a nest of them, finished: a peer that answers
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
    goals: tuple[Goal, ...] = ()
    operations: int = 1
    kernels: int | None = None
    """How many kernels tapejit must make of it, checked before anything is timed."""
    stateful: bool = False
    """A call changes what the next one computes (a training step): only the first
    answer is checked. The others are checked again at the end, when hot paths have
    compiled."""
    moved: int | None = None
    """How many bytes a call must read and write: bytes per second are reported too."""
    rounds: int | None = None
    """At most so many rounds, for calls that take seconds."""
    threads: int | None = None
    """At most so many threads, whatever the run allows; cases of one file agree."""
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


def package_name(label: str) -> str:
    """The package behind a peer's label.

    >>> package_name("jax (jit)")
    'jax'
    """
    return label.partition(" (")[0]


@dataclass(frozen=True)
class Finding:
    """What became of a goal: its verdict, and the numbers it rests on.

    `best` and `median` are ratios, or what the goal limits; `against` is the peer.

    >>> Finding("torch", 2.5, 2.4, "yes").verdict
    'yes'
    """

    against: str
    best: float
    median: float
    verdict: str


class Goal(ABC):
    """What a case wants of tapejit; the kinds say what, and how they judge it.

    With `promised=False` it is a mark: shown and judged, but nothing is claimed.

    >>> goal = Within(250, "ms", promised=False)
    >>> goal.sentence, goal.row
    ('mark ≤ 250 ms', 'tapejit')
    """

    promised: bool

    @property
    def mark(self) -> str:
        """What its text begins with."""
        return "" if self.promised else "mark "

    @property
    def sentence(self) -> str:
        """The goal with the peer it is against, if there is one."""
        return str(self)

    @property
    def row(self) -> str:
        """The peer in whose row of the table this goal stands."""
        return OURS

    @abstractmethod
    def find(self, rounds: Mapping[str, Rounds]) -> Finding | None:
        """The finding, if all it needs ran."""


@dataclass(frozen=True)
class AtLeast(Goal):
    """tapejit is to be at least `ratio` times as fast as `peer`.

    >>> goal = AtLeast(5, "tensorflow")
    >>> str(goal), goal.judge(ours=[1.0, 1.1], theirs=[6.0, 7.0])
    ('≥ 5x', 'yes')
    """

    ratio: float
    peer: str
    promised: bool = True

    def __str__(self) -> str:
        return f"{self.mark}≥ {self.ratio:g}x"

    @property
    def sentence(self) -> str:
        return f"{self} against {self.peer}"

    @property
    def row(self) -> str:
        return self.peer

    def judge(self, *, ours: Rounds, theirs: Rounds) -> str:
        """'yes', 'no', or 'unclear' when best and median disagree."""
        by_best, by_median = ratios(theirs, ours)
        return verdict(by_best >= self.ratio, by_median >= self.ratio)

    def find(self, rounds: Mapping[str, Rounds]) -> Finding | None:
        """The finding, if both sides ran."""
        if OURS not in rounds or self.peer not in rounds:
            return None
        ours, theirs = rounds[OURS], rounds[self.peer]
        judged = self.judge(ours=ours, theirs=theirs)
        return Finding(self.peer, *ratios(theirs, ours), judged)


@dataclass(frozen=True)
class Leads(Goal):
    """tapejit is to be at least `ratio` times as fast as the fastest other package.

    Each way of judging takes the peer that comes nearest by it.

    >>> goal = Leads(2)
    >>> goal.find({"tapejit": [1.0, 1.0], "jax": [3.0, 3.0], "torch": [2.5, 2.5]})
    Finding(against='torch', best=2.5, median=2.5, verdict='yes')
    """

    ratio: float
    promised: bool = True

    def __str__(self) -> str:
        return f"{self.mark}≥ {self.ratio:g}x"

    @property
    def sentence(self) -> str:
        return f"{self} against the best of the peers"

    def find(self, rounds: Mapping[str, Rounds]) -> Finding | None:
        """The finding, if tapejit and a peer ran."""
        others = [label for label in rounds if package_name(label) != OURS]
        if OURS not in rounds or not others:
            return None
        pairs = {label: ratios(rounds[label], rounds[OURS]) for label in others}
        nearest = min(pairs, key=lambda label: pairs[label][0])
        by_best, by_median = (min(pair[i] for pair in pairs.values()) for i in (0, 1))
        judged = verdict(by_best >= self.ratio, by_median >= self.ratio)
        return Finding(nearest, by_best, by_median, judged)


@dataclass(frozen=True)
class Above(Goal):
    """tapejit is to cost at most `microseconds` more than `peer` does by itself.

    >>> goal = Above(1.5, "numpy")
    >>> str(goal), goal.judge(ours=[3e-6, 4e-6], theirs=[1e-6, 1e-6])
    ('≤ 1.5 µs above numpy', 'no')
    """

    microseconds: float
    peer: str
    promised = True

    def __str__(self) -> str:
        return f"≤ {self.microseconds:g} µs above {self.peer}"

    def judge(self, *, ours: Rounds, theirs: Rounds) -> str:
        """'yes', 'no', or 'unclear' when best and median disagree."""
        by_best, by_median = excesses(ours, theirs)
        limit = self.microseconds * 1e-6
        return verdict(by_best <= limit, by_median <= limit)

    def find(self, rounds: Mapping[str, Rounds]) -> Finding | None:
        """The finding, in seconds above the peer, if both sides ran."""
        if OURS not in rounds or self.peer not in rounds:
            return None
        ours, theirs = rounds[OURS], rounds[self.peer]
        judged = self.judge(ours=ours, theirs=theirs)
        return Finding(self.peer, *excesses(ours, theirs), judged)


@dataclass(frozen=True)
class Within(Goal):
    """tapejit is to take at most `limit`, whatever the peers do.

    >>> goal = Within(250, "ms")
    >>> str(goal), goal.find({"tapejit": [0.2, 0.3, 0.4]}).verdict
    ('≤ 250 ms', 'unclear')
    """

    limit: float
    unit: str
    promised: bool = True

    def __str__(self) -> str:
        return f"{self.mark}≤ {self.limit:g} {self.unit}"

    def find(self, rounds: Mapping[str, Rounds]) -> Finding | None:
        """The finding, in seconds or bytes, if tapejit ran."""
        if OURS not in rounds:
            return None
        best, middle = min(rounds[OURS]), median(rounds[OURS])
        limit = self.limit * UNITS[self.unit]
        return Finding("", best, middle, verdict(best <= limit, middle <= limit))
