"""Random small programs with branches: traced and plain, they agree (line 58)."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from agreement import COMPOSED, EXACT, assert_agrees
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import tapejit as tj

# A program is a list of statements over registers. Statements are plain data, so that
# a failing one is printed and shrinks.
REGISTERS = 4

registers = st.integers(0, REGISTERS - 1)
small = st.sampled_from([-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 3.0])

simple = st.one_of(
    st.tuples(st.sampled_from(["add", "sub", "mul", "max"]), *[registers] * 3),
    st.tuples(st.sampled_from(["sin", "neg", "half", "copy"]), registers, registers),
    st.tuples(st.just("set"), registers, small),
    st.tuples(st.sampled_from(["assign", "assign_add"]), st.integers(0, 1), registers),
    st.tuples(st.just("load"), registers, st.integers(0, 1)),
    st.tuples(st.just("gradient"), registers, registers),
    st.tuples(st.just("print"), registers),
    st.tuples(st.just("cut"), registers, registers),
)


def compound(inner: Any) -> Any:
    body = st.lists(inner, max_size=3)
    return st.one_of(
        st.tuples(st.just("if"), registers, small, body, body),
        st.tuples(st.just("while"), registers, small, body),
        st.tuples(st.just("for"), registers, body),
        st.tuples(st.just("and"), registers, registers, body),
        st.tuples(st.just("call"), registers, registers, body),
        st.tuples(st.just("try"), registers, body),
        st.tuples(st.just("rescue"), registers, body),
    )


programs = st.lists(
    st.recursive(simple, compound, max_leaves=8), min_size=1, max_size=6
)
# Some numbers are no integers that a guard could ask for.
number = st.one_of(small, st.sampled_from([np.nan, np.inf, 1e30, -(2.0**63)]))
inputs = st.lists(st.tuples(number, number), min_size=2, max_size=6)


class Failed(Exception):
    pass


def run(program: Any, regs: list[Any], variables: list[tj.Variable]) -> None:
    """Perform the statements; registers are changed in place."""
    for statement in program:
        STATEMENTS[statement[0]](regs, variables, *statement[1:])


def two(op: Callable[[Any, Any], Any]) -> Any:
    def statement(regs: Any, variables: Any, to: int, a: int, b: int) -> None:
        regs[to] = op(regs[a], regs[b])

    return statement


def one(op: Callable[[Any], Any]) -> Any:
    def statement(regs: Any, variables: Any, to: int, a: int) -> None:
        regs[to] = op(regs[a])

    return statement


def assign(regs: Any, variables: Any, to: int, a: int) -> None:
    variables[to].assign(regs[a])


def assign_add(regs: Any, variables: Any, to: int, a: int) -> None:
    variables[to].assign_add(regs[a])


def load(regs: Any, variables: Any, to: int, which: int) -> None:
    regs[to] = variables[which] * 1.0


def set_to(regs: Any, variables: Any, to: int, value: float) -> None:
    regs[to] = regs[to] * 0.0 + value


def gradient(regs: Any, variables: Any, to: int, a: int) -> None:
    with tj.GradientTape() as tape:
        tape.watch(regs[a])
        y = tj.sin(regs[a]) * variables[0] + regs[a] * regs[to]
        if y > 0:
            y = y * variables[1]
    for part in tape.gradient(y, [regs[a], *variables]):
        if part is not None:
            regs[to] = regs[to] + part


def show(regs: Any, variables: Any, a: int) -> None:
    tj.print("r", regs[a], variables[0])


def cut(regs: Any, variables: Any, to: int, a: int) -> None:
    regs[to] = regs[to] + float(int(regs[a]) % 7)


def if_else(
    regs: Any, variables: Any, a: int, than: float, body: Any, other: Any
) -> None:
    run(body if regs[a] > than else other, regs, variables)


def while_loop(regs: Any, variables: Any, a: int, than: float, body: Any) -> None:
    for _ in range(3):
        if not (regs[a] < than):
            break
        run(body, regs, variables)
        regs[a] = regs[a] + 1.0


def for_loop(regs: Any, variables: Any, a: int, body: Any) -> None:
    for _ in range(min(abs(int(tj.clip(regs[a], -9.0, 9.0))), 3)):
        run(body, regs, variables)


def both(regs: Any, variables: Any, a: int, b: int, body: Any) -> None:
    if (regs[a] > 0 and regs[b] > 0) or regs[a] == regs[b]:
        run(body, regs, variables)


def call(regs: Any, variables: Any, to: int, a: int, body: Any) -> None:
    @tj.function
    def inner(x: Any) -> Any:
        own = [x] * REGISTERS
        run(body, own, variables)
        return own[0] + own[-1]

    regs[to] = inner(regs[a])


def attempt(regs: Any, variables: Any, a: int, body: Any) -> None:
    @tj.function
    def inner(x: Any) -> Any:
        run(body, [x] * REGISTERS, variables)
        if x > 0:
            raise Failed
        return x

    try:
        regs[a] = inner(regs[a])
    except Failed:
        regs[a] = regs[a] - 1.0


def rescue(regs: Any, variables: Any, a: int, body: Any) -> None:
    try:
        run(body, regs, variables)
    except (ValueError, OverflowError):
        regs[a] = regs[a] * 0.0 + 1.0


STATEMENTS: dict[str, Any] = {
    "add": two(lambda a, b: a + b),
    "sub": two(lambda a, b: a - b),
    "mul": two(lambda a, b: a * b),
    "max": two(tj.maximum),
    "sin": one(tj.sin),
    "neg": one(lambda a: -a),
    "half": one(lambda a: a * 0.5),
    "copy": one(lambda a: a),
    "set": set_to,
    "assign": assign,
    "assign_add": assign_add,
    "load": load,
    "gradient": gradient,
    "print": show,
    "cut": cut,
    "if": if_else,
    "while": while_loop,
    "for": for_loop,
    "and": both,
    "call": call,
    "try": attempt,
    "rescue": rescue,
}


class Outcome(NamedTuple):
    state: Any
    gradients: Any
    shown: str
    raised: str


def outcome(
    f: Any, variables: list[tj.Variable], values: Any, capsys: Any, with_tape: bool
) -> Outcome:
    """Everything a call does: results, state, prints, gradients, or what it raises.

    Only `int` of what is no integer raises out of these programs.
    """
    xs = [tj.asarray(x) for x in values]
    found: tuple[Any, ...] = ()
    grads: list[Any] = []
    raised = ""
    try:
        if with_tape:
            with tj.GradientTape() as tape:
                tape.watch(xs)
                found = f(*xs)
                total = sum(found)
            grads = tape.gradient(total, xs)
        else:
            found = f(*xs)
    except (ValueError, OverflowError) as error:
        raised = repr(error)
    shown = capsys.readouterr().out
    state = [np.asarray(part) for part in (*found, *variables)]
    gradients = np.array(list(map(as_numbers, grads)), np.float32)
    return Outcome(np.stack(state), gradients, shown, raised)


def as_numbers(gradient: Any) -> tuple[float, float]:
    """Whether there is a gradient, and which."""
    return (0.0, 0.0) if gradient is None else (1.0, float(gradient))


def undone_if_it_raises(body: Any, variables: list[tj.Variable]) -> Any:
    """The body, leaving variables as a function does: one that raises changes none."""

    def plain(*xs: Any) -> Any:
        before = [np.array(variable) for variable in variables]
        try:
            return body(*xs)
        except (ValueError, OverflowError):
            for variable, value in zip(variables, before, strict=True):
                variable.assign(value)
            raise

    return plain


def tries(last: Any) -> Any:
    """A statement that asks for an integer in a function, then goes on to `last`."""
    body = [("call", 3, 2, [("load", 2, 0)]), ("for", 2, []), ("try", 3, last)]
    return ("try", 0, body)


# Assignments that overflow in the second round: `int` of NaN raises, after something
# was printed and assigned, in a function whose caller catches something else.
SHOWS_AND_ASSIGNS: Any = [("print", 3), ("gradient", 3, 1), ("assign", 1, 3)]
OVERFLOWS: Any = [
    ("call", 3, 2, []),
    tries(SHOWS_AND_ASSIGNS),
    ("call", 3, 2, []),
    ("call", 0, 0, [("sub", 3, 0, 3), ("load", 0, 1), ("load", 2, 1)]),
]

# A guard is met by what is no integer; the question after it has its own answer.
ASKS_ON: Any = [
    ("rescue", 2, [("cut", 2, 0)]),
    ("if", 1, 0.0, [("cut", 3, 1)], [("half", 3, 3)]),
]


@settings(
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(programs, inputs, st.booleans())
@example(
    [*OVERFLOWS, tries(SHOWS_AND_ASSIGNS)],
    [(-1.0, -2.0), (-0.5, -1.0), (-2.0, 0.0)],
    False,
)
@example(
    [*OVERFLOWS, tries([("assign", 0, 0)]), ("for", 0, [])],
    [(-2.0, -2.0), (-1.0, -2.0), (-0.5, -1.0), (-2.0, 0.0)],
    False,
)
@example(ASKS_ON, [(1.0, -1.0), (np.nan, -1.0), (1e30, np.nan)], False)
@example([("rescue", 2, [("cut", 2, 0)])], [(-(2.0**63), 1.0), (1e30, 1.0)], True)
def test_s58_random_programs_do_the_same_traced_and_plain(
    capsys: Any, program: Any, inputs: Any, with_tape: bool
) -> None:
    def make() -> tuple[Any, list[tj.Variable]]:
        variables = [tj.Variable(0.5), tj.Variable(-1.5)]

        def body(x: Any, y: Any) -> Any:
            regs = [x, y, x + y, x * 0.5]
            run(program, regs, variables)
            return tuple(r * 1.0 for r in regs)

        return body, variables

    capsys.readouterr()  # what a program that failed before has left
    body, plain_state = make()
    plain = undone_if_it_raises(body, plain_state)
    traced, state = make()
    f = tj.function(traced)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for values in [*inputs, *inputs]:
            mine = outcome(f, state, values, capsys, with_tape)
            theirs = outcome(plain, plain_state, values, capsys, with_tape)
            assert mine.raised == theirs.raised
            assert_agrees(EXACT, mine.state, theirs.state)
            # A call sums its cotangents before those of other operations are added.
            assert_agrees(COMPOSED, mine.gradients, theirs.gradients)
            assert mine.shown == theirs.shown


# Random sequences of calls

leaf = st.one_of(
    st.tuples(st.just("tensor"), small, st.sampled_from([(), (2,), (1, 2)])),
    st.tuples(st.just("array"), small, st.sampled_from(["float32", "int64"])),
    st.tuples(st.just("variable"), st.integers(0, 2)),
    st.tuples(st.just("float"), st.floats(-3, 3, width=16)),
    st.tuples(st.just("int"), st.integers(-2, 2)),
    st.tuples(st.just("bool"), st.booleans()),
    st.tuples(st.just("none"), st.none()),
)
argument = st.one_of(
    leaf,
    st.tuples(st.just("list"), st.lists(leaf, min_size=1, max_size=2)),
    st.tuples(st.just("dict"), st.lists(leaf, min_size=1, max_size=2)),
)
one_call = st.tuples(argument, argument, st.booleans(), st.booleans())
many_calls = st.lists(one_call, min_size=2, max_size=8)


def value_of(description: Any, variables: list[tj.Variable]) -> Any:
    """The argument that a description stands for."""
    kind, given, *rest = description
    if kind == "tensor":
        return tj.full(rest[0], given)
    if kind == "array":
        return np.full(2, given, rest[0])
    if kind == "variable":
        return variables[given]
    if kind == "list":
        return [value_of(part, variables) for part in given]
    if kind == "dict":
        return {f"k{at}": value_of(part, variables) for at, part in enumerate(given)}
    return given


def used(x: Any, total: Any, captured: tj.Variable, flips: bool) -> Any:
    """Do with an argument what suits its type."""
    if isinstance(x, list):
        for part in x:
            total = used(part, total, captured, flips)
        return total
    if isinstance(x, dict):
        for key in sorted(x):
            total = used(x[key], total, captured, not flips)
        return total
    if x is None:
        return total * 2.0
    if isinstance(x, tj.Variable):
        x.assign_add(tj.ones(()) * 0.5)
        captured.assign_add(tj.ones(()))
        return total + x * captured
    if isinstance(x, bool):
        return total + 1.0 if x else total - 1.0
    if isinstance(x, float):
        if flips:
            return total * (x * 2.0 - 1) + x
        return total + 1.0 if x > 1 else total - x
    if isinstance(x, int):
        return total * x
    return total + tj.sum(x) * captured


@settings(deadline=None, max_examples=60)
@given(many_calls)
def test_s46_random_calls_find_the_trace_that_fits(calls: Any) -> None:
    def make() -> tuple[Any, list[tj.Variable]]:
        variables = [tj.Variable(1.0), tj.Variable(2.0), tj.Variable(3.0)]

        def body(a: Any, b: Any = 1.5, *, flips: bool = False) -> Any:
            total = used(a, tj.ones(()), variables[0], flips)
            return used(b, total, variables[0], flips), a if flips else b

        return body, variables

    plain, plain_state = make()
    traced, state = make()
    f = tj.function(traced)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for a, b, by_keyword, flips in [*calls, *calls]:
            found = []
            for g, variables in ((f, state), (plain, plain_state)):
                args = [value_of(x, variables) for x in (a, b)]
                if by_keyword:
                    total, given = g(flips=flips, b=args[1], a=args[0])
                else:
                    total, given = g(*args, flips=flips)
                values = [x for x in tj.tree.leaves(given) if x is not None]
                found.append([tj.asarray(x) for x in (total, *values, *variables)])
            for mine, theirs in zip(*found, strict=True):
                assert mine.dtype == theirs.dtype
                assert_agrees(EXACT, mine, theirs)
