"""Random lives of tapes: whatever a body does with them, all modes agree (1 to 23).

A script is a list of steps that a body takes on two variables, two tensors and three
tapes: operations, assignments, entering and leaving, watching, pausing, forgetting,
asking. Steps that make no sense raise errors, which are part of what is compared.

Start reading at `Life.take`.
"""

from __future__ import annotations

import re
from typing import Any

from agreement import COMPOSED
from graph_properties import for_all
from hypothesis import strategies as st

import tapejit as tj

from .both_modes import assert_modes, assert_taped, note

TAPES, HANDLES = 3, 12

OPERATIONS = {
    "add": lambda x, y: x + y,
    "multiply": lambda x, y: x * y,
    "maximum": tj.maximum,
    "first": lambda x, y: x,
    "sin": lambda x, y: tj.sin(x),
    "floor": lambda x, y: tj.floor(x),
    "stop": lambda x, y: tj.stop_gradient(x) * y,
    "cast": lambda x, y: tj.astype(tj.astype(x, "int32"), "float32"),
    "where": lambda x, y: tj.where(x > y, x, 2.0 * y),
    "sum": lambda x, y: tj.broadcast_to(tj.sum(x * y), (2,)),
    "part": lambda x, y: tj.stack([x[0], y[1]]),
    "Python's if": lambda x, y: x * 2.0 if x[0] > y[0] else y * 3.0,
}
IN_BLOCKS = ("enter", "exit", "pause", "resume", "reset")

tapes = st.integers(0, TAPES - 1)
handles = st.integers(0, HANDLES - 1)
operations = st.sampled_from(sorted(OPERATIONS))
# What a called function asks of values, a tape sees only if the call is inlined.
called = st.sampled_from(sorted(set(OPERATIONS) - {"Python's if"}))
steps = st.one_of(
    st.tuples(st.just("operate"), operations, handles, handles),
    st.tuples(st.just("call"), called, handles, handles),
    st.tuples(st.sampled_from(IN_BLOCKS), tapes),
    st.tuples(st.just("watch"), tapes, handles),
    st.tuples(st.sampled_from(["assign", "assign_add"]), st.integers(0, 1), handles),
    st.tuples(
        st.sampled_from(["gradient", "jacobian", "batch_jacobian", "why_none"]),
        tapes,
        handles,
        handles,
    ),
    st.tuples(st.just("seeded"), tapes, handles, handles, handles),
)
scripts = st.tuples(
    st.tuples(*[st.booleans()] * TAPES),
    st.lists(steps, min_size=4, max_size=20),
)


# Two tapes record from the start, so that much of what follows has gradients.
BEGINNING = [("enter", 0), ("enter", 1), ("watch", 0, 2), ("watch", 1, 3)]


class Life:
    """What a script works on: handles are variables first, then tensors."""

    def __init__(self, persistent: tuple[bool, ...], handles: list[Any]) -> None:
        self.handles = handles
        self.tapes = [tj.GradientTape(persistent=flag) for flag in persistent]
        self.pauses: list[tuple[int, Any]] = []

    def handle(self, number: int) -> Any:
        return self.handles[number % len(self.handles)]

    def take(self, step: tuple[Any, ...]) -> None:
        """One step; what it refuses is noted."""
        kind, *rest = step
        try:
            made = getattr(self, kind)(*rest)
        except (TypeError, ValueError, RuntimeError) as error:
            note((type(error), str(error)))
            return
        note((kind, None if made is None else made.shape))
        if made is not None and made.shape == (2,):
            self.handles.append(made)

    def operate(self, name: str, x: int, y: int) -> Any:
        return OPERATIONS[name](self.handle(x), self.handle(y))

    def call(self, name: str, x: int, y: int) -> Any:
        return tj.function(OPERATIONS[name])(self.handle(x), self.handle(y))

    def enter(self, tape: int) -> None:
        self.tapes[tape].__enter__()

    def exit(self, tape: int) -> None:
        if self.tapes[tape]._is_recording and tape not in dict(self.pauses):
            self.tapes[tape].__exit__()

    def pause(self, tape: int) -> None:
        block = self.tapes[tape].stop_recording()
        block.__enter__()
        self.pauses.append((tape, block))

    def resume(self, tape: int) -> None:
        if self.pauses:
            self.pauses.pop()[1].__exit__(None, None, None)

    def reset(self, tape: int) -> None:
        self.tapes[tape].reset()

    def watch(self, tape: int, x: int) -> None:
        self.tapes[tape].watch(self.handle(x))
        note([v.name for v in self.tapes[tape].watched_variables()])

    def assign(self, variable: int, x: int) -> Any:
        return self.handles[variable].assign(self.handle(x))

    def assign_add(self, variable: int, x: int) -> Any:
        return self.handles[variable].assign_add(self.handle(x))

    def gradient(self, tape: int, y: int, x: int) -> Any:
        return self.tapes[tape].gradient(self.handle(y), self.handle(x))

    def seeded(self, tape: int, y: int, x: int, seed: int) -> Any:
        found = self.tapes[tape].gradient(
            [self.handle(y), self.handle(seed)],
            [self.handle(x), self.handle(0)],
            [self.handle(seed), self.handle(x)],
            unconnected_gradients="zero",
        )
        return found[0] + found[1]

    def jacobian(self, tape: int, y: int, x: int) -> Any:
        found = self.tapes[tape].jacobian(self.handle(y), self.handle(x))
        return None if found is None else tj.sum(found, axis=0)

    def batch_jacobian(self, tape: int, y: int, x: int) -> Any:
        return self.tapes[tape].batch_jacobian(self.handle(y), self.handle(x))

    def why_none(self, tape: int, y: int, x: int) -> None:
        text = self.tapes[tape].why_none(self.handle(y), self.handle(x))
        note(re.sub(r" \(from: [^)]*\)", "", text))  # traced tensors know more

    def end(self) -> list[Any]:
        """Leave all blocks, and return what there is."""
        while self.pauses:
            self.resume(0)
        for tape in self.tapes:
            if tape._is_recording:
                tape.__exit__()
            note([v.name for v in tape.watched_variables()])
        return [x * 1.0 for x in self.handles]


def setup() -> Any:
    return (
        tj.Variable([0.5, 2.0], name="v"),
        tj.Variable([1.5, -1.0], name="w"),
        tj.asarray([0.25, 3.0]),
        tj.asarray([-2.0, 1.0]),
    )


def program_of(script: Any) -> Any:
    persistent, taken = script

    def program(*handles: Any) -> Any:
        life = Life(persistent, list(handles))
        for step in BEGINNING:
            life.take(step)
        for step in taken:
            life.take(step)
        return life.end()

    return program


def test_s02_tapes_live_alike_in_both_modes(full: bool) -> None:
    @for_all(scripts, full, examples=60)
    def check(script: Any) -> None:
        assert_modes(program_of(script), setup, warns=None)


def test_s38_and_so_do_tapes_around_them(full: bool) -> None:
    @for_all(scripts, full, examples=25)
    def check(script: Any) -> None:
        assert_taped(program_of(script), setup, warns=None, op_class=COMPOSED)


def test_s38_a_vanishing_gradient_through_a_call_is_a_plain_zero() -> None:
    """Not -0.0, which zeros multiplied by the other factor inside the call would be."""
    taken = [("call", "multiply", 0, 1), ("operate", "floor", 4, 0)]
    script = ((False, False, False), [("enter", 0), ("enter", 0), *taken])
    plain = assert_taped(program_of(script), setup, warns=None, op_class=COMPOSED)
    by_v, by_w, *_ = plain[-1][-1]
    assert [x.numpy().tobytes() for x in (by_v, by_w)] == [bytes(8), bytes(8)]


def test_s38_a_vanishing_tangent_through_a_call_is_a_plain_zero() -> None:
    """A call within a traced function is inlined, one from plain Python is not."""

    def tangent(product: Any) -> bytes:
        with tj.ForwardAccumulator([x], [tj.asarray([1.0, 1.0])]) as accumulator:
            y = product(tj.floor(x), tj.asarray([1.5, -1.0]))
        return bytes(accumulator.jvp(y).numpy())

    x = tj.asarray([0.5, 2.0])
    called = tj.function(OPERATIONS["multiply"])
    assert tangent(called) == tangent(OPERATIONS["multiply"]) == bytes(8)
