"""State that functions make and change: creation in a trace, and all or nothing.

A variable may be made while a function is traced if something outside keeps it. A call
that fails, wherever it fails, leaves all variables and generators as they were.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import tapejit as tj

from .both_modes import assert_modes

# 50: variables made in a trace


class Layer:
    """Makes its weights when it first sees its input."""

    def __init__(self, initial: Any = None) -> None:
        self.w: Any = None
        self.initial = initial
        self.runs = 0

    def __call__(self, x: Any) -> Any:
        self.runs += 1
        if self.w is None:
            start = tj.ones(x.shape) if self.initial is None else self.initial
            self.w = tj.Variable(start, name="w")
        self.w.assign_add(x)
        return self.w * x


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("taped", [False, True])
def test_s50_a_variable_that_is_kept_and_the_first_call_traces_once(
    eager: bool, taped: bool
) -> None:
    layer = Layer()
    call = tj.function(layer)
    x = tj.asarray([1.0, 2.0])
    with tj.config.override(eager=eager):
        for k in range(1, 4):
            with tj.GradientTape() as tape:
                y = call(x)
            expected = 1.0 + k * np.float32([1, 2])
            np.testing.assert_array_equal(layer.w.numpy(), expected)
            np.testing.assert_array_equal(y, expected * np.float32([1, 2]))
            if taped:
                assert tape.gradient(y, layer.w).tolist() == [1.0, 2.0]
    assert (call.trace_count, layer.runs) == ((0, 3) if eager else (1, 1))


def test_s50_the_initial_value_may_be_computed_from_the_arguments() -> None:
    kept: dict[str, Any] = {}

    @tj.function
    def step(x: Any) -> Any:
        if "w" not in kept:
            kept["w"] = tj.Variable(x * 2.0, name="w")
            kept["again"] = tj.Variable(lambda: kept["w"] + 1.0)
        kept["w"].assign_add(x)
        return kept["w"] * kept["again"]

    assert step(tj.asarray(3.0)).item() == 63.0
    assert (float(kept["w"]), float(kept["again"])) == (9.0, 7.0)
    assert step(tj.asarray(1.0)).item() == 70.0
    assert step.trace_count == 1


def test_s50_the_initial_value_may_be_drawn() -> None:
    def make(decorate: Callable[[Any], Any]) -> list[float]:
        tj.random.set_seed(3)
        kept: list[Any] = []

        def body(x: Any) -> Any:
            if not kept:
                kept.append(tj.Variable(tj.random.normal(3)))
            return tj.sum(kept[0] * x) + tj.random.uniform()

        call = decorate(body)
        found = [float(call(tj.ones(3))) for _ in range(3)]
        return [*found, *kept[0].tolist(), float(tj.random.uniform())]

    assert make(tj.function) == make(lambda body: body)


def test_s50_slots_of_an_optimizer_made_when_they_are_needed() -> None:
    """Also for a variable that comes in a later call."""

    class Momentum:
        def __init__(self) -> None:
            self.slots: dict[Any, Any] = {}
            self.made = 0

        def apply(self, pairs: Any) -> None:
            for g, v in pairs:
                slot = self.slots.get(v.ref())
                if slot is None:
                    slot = self.slots[v.ref()] = tj.Variable(tj.zeros(v.shape), False)
                    self.made += 1
                slot.assign(slot * 0.5 + g)
                v.assign_sub(slot)

    def train(decorate: Callable[[Any], Any]) -> list[Any]:
        optimizer = Momentum()
        variables = [tj.Variable([1.0, 2.0]), tj.Variable(3.0)]

        def body(x: Any, many: int) -> Any:
            with tj.GradientTape() as tape:
                loss = tj.sum(variables[0] * x) * variables[1]
                if many == 3:
                    loss = loss + variables[2] ** 2
            used = variables[:many]
            optimizer.apply(zip(tape.gradient(loss, used), used, strict=True))
            return loss

        step, seen = decorate(body), []
        for many in (1, 1, 2, 2, 3, 3, 1, 3):
            if many == 3 and len(variables) == 2:
                variables.append(tj.Variable(5.0))
            seen.append(float(step(tj.asarray([0.5, -1.0]), many)))
        assert optimizer.made == 3
        if decorate is tj.function:
            assert step.trace_count == 3
        return [seen, [v.tolist() for v in variables]]

    assert train(tj.function) == train(lambda body: body)


def test_s50_one_step_for_each_variable_it_is_given() -> None:
    """Two variables through one traced update never share a slot."""
    slots: dict[Any, Any] = {}

    @tj.function
    def update(v: Any, g: Any) -> Any:
        slot = slots.get(v.ref())
        if slot is None:
            slot = slots[v.ref()] = tj.Variable(0.0)
        slot.assign_add(g)
        v.assign_sub(slot)
        return v * 1.0

    a, b = tj.Variable(10.0), tj.Variable(20.0)
    for g in (1.0, 2.0, 3.0):
        update(a, tj.asarray(g))
        update(b, tj.asarray(g * 10.0))
    assert (float(a), float(b)) == (0.0, -80.0)
    assert [float(slots[v.ref()]) for v in (a, b)] == [6.0, 60.0]


@pytest.mark.parametrize("use", ["read", "assigned", "unused", "taped", "parts"])
def test_s50_a_variable_that_dies_with_the_call_names_its_line(use: str) -> None:
    state = tj.Variable(1.0)

    @tj.function
    def step(x: Any) -> Any:
        state.assign_add(x)
        w = tj.Variable([1.0, 2.0], name="w")  # this line
        if use == "read":
            return w * x
        if use == "assigned":
            w.assign([x, x])
            return w * 2.0
        if use == "parts":
            w[0].assign(x)
            return w * 2.0
        if use == "taped":
            with tj.GradientTape() as tape:
                y = w * w
            return tape.gradient(y, w)
        return x

    for _ in range(2):
        if use == "unused":
            step(tj.asarray(1.0))
            continue
        with pytest.raises(ValueError, match="this line"):
            step(tj.asarray(1.0))
        assert float(state) == 1.0, "nothing has changed"


def test_s50_a_variable_in_a_result_is_its_value() -> None:
    """What is returned of it is a tensor, so it dies all the same."""

    @tj.function
    def step(x: Any) -> Any:
        return tj.Variable(x)

    with pytest.raises(ValueError, match=r"tj\.Variable\(x\)"):
        step(tj.asarray(1.0))


def test_s50_what_was_made_is_not_kept_alive_by_the_function_alone() -> None:
    layer = Layer()
    call = tj.function(lambda x: layer(x))
    call(tj.ones(2))
    gone = weakref.ref(layer.w)
    layer.w = None
    call.clear_cache()
    gc.collect()
    assert gone() is None


# 54: all or nothing


class Interrupted(BaseException):
    """What Ctrl-C is like: no Exception."""


FAILURES: dict[str, tuple[type[BaseException], Callable[[Any], Any]]] = {
    "index": (IndexError, lambda x: tj.ones(3)[x.astype("int32")]),
    "check": (tj.CheckFailed, lambda x: tj.debug.assert_less(x, 3.0)),
    "guarded exception": (KeyError, lambda x: _raise(KeyError("no")) if x > 3 else 0),
    "assertion": (AssertionError, lambda x: _assert(x < 3.0)),
    "not an exception": (
        Interrupted,
        lambda x: _raise(Interrupted()) if x > 3.0 else 0,
    ),
    "keyboard": (
        KeyboardInterrupt,
        lambda x: _raise(KeyboardInterrupt()) if x > 3.0 else 0,
    ),
    "shape": (ValueError, lambda x: tj.ones(2) + tj.ones(3) if x > 3.0 else 0),
    "exit": (SystemExit, lambda x: _raise(SystemExit(1)) if x > 3.0 else 0),
}


def _raise(error: BaseException) -> None:
    raise error


def _assert(holds: Any) -> None:
    assert holds


@contextmanager
def nothing_around() -> Iterator[None]:
    yield


AROUND: dict[str, Callable[[], Any]] = {
    "alone": nothing_around,
    "under a tape": tj.GradientTape,
    "eagerly": lambda: tj.config.override(eager=True),
    "eagerly under a tape": lambda: _both(),
}


@contextmanager
def _both() -> Iterator[None]:
    with tj.config.override(eager=True), tj.GradientTape():
        yield


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("kind", FAILURES)
@pytest.mark.parametrize("first", ["fails", "succeeds"])
def test_s54_a_call_that_fails_changes_nothing(
    kind: str, around: str, first: str
) -> None:
    error, fail = FAILURES[kind]
    v, w = tj.Variable([1.0, 2.0], name="v"), tj.Variable(1.0, trainable=False)
    own = tj.random.Generator(5)
    tj.random.set_seed(3)

    def state() -> list[Any]:
        keys = (own.state, tj.random.default_generator().state)
        return [x.tolist() for x in (v, w, *keys)] + [own.seed]

    def body(x: Any) -> Any:
        v.assign_add([1.0, 1.0])
        noise = own.normal() + tj.random.normal()
        v[0].assign(noise * x)
        w.assign(x)
        own.reset(77)
        made = fail(x)
        w.assign_add(1.0)
        return v * own.uniform(), made

    step = tj.function(body)
    if first == "succeeds":
        step(tj.asarray(1.0))
        own.reset(5)
    before = state()
    for _ in range(2):
        with AROUND[around](), pytest.raises(error):
            step(tj.asarray(100.0))
        assert state() == before
    with AROUND[around]():
        step(tj.asarray(2.0))
    assert float(w) == 3.0, "and then it goes on"
    after = state()
    with AROUND[around](), pytest.raises(error):
        step(tj.asarray(100.0))
    assert state() == after
    assert after[-1] == 77


def test_s54_a_nested_call_that_fails_takes_the_outer_one_with_it() -> None:
    v = tj.Variable(1.0)

    @tj.function
    def inner(x: Any) -> Any:
        v.assign_add(10.0)
        tj.debug.assert_less(x, 3.0)
        v.assign_add(100.0)
        return x

    @tj.function
    def outer(x: Any) -> Any:
        v.assign_add(1000.0)
        return inner(x)

    for eager in (False, True):
        v.assign(1.0)
        with tj.config.override(eager=eager):
            outer(tj.asarray(1.0))
            assert float(v) == 1111.0
            with pytest.raises(tj.CheckFailed):
                outer(tj.asarray(5.0))
            assert float(v) == 1111.0


def test_s54_an_error_caught_in_the_body_undoes_nothing() -> None:
    """Only the call as a whole is all or nothing."""

    def inner(v: Any) -> Any:
        v.assign_add(10.0)
        raise KeyError("caught by the caller")

    decorated = tj.function(inner)

    def program(v: Any, x: Any) -> Any:
        try:
            inner(v)
        except KeyError:
            v.assign_add(x)
        return v * 1.0

    assert_modes(
        program,
        lambda: (tj.Variable(1.0), tj.asarray(2.0)),
        expected=13.0,
        variables=[13.0],
    )
    v = tj.Variable(1.0)
    with pytest.raises(KeyError):
        decorated(v)
    assert float(v) == 1.0


def test_s54_checks_come_before_later_writes_and_prints_stay_in_order(
    capfd: pytest.CaptureFixture[str],
) -> None:
    v = tj.Variable(1.0)

    @tj.function
    def step(x: Any) -> Any:
        tj.print("before", v)
        v.assign(x)
        tj.debug.assert_less(v, 3.0)
        tj.print("after", v)
        return v * 1.0

    step(tj.asarray(2.0))
    with pytest.raises(tj.CheckFailed):
        step(tj.asarray(5.0))
    assert float(v) == 2.0
    said = capfd.readouterr()
    assert (said.out + said.err).split() == [
        *("before", "1.0", "after", "2.0"),
        *("before", "2.0"),
    ]


def test_s54_a_function_that_needs_values_is_as_atomic() -> None:
    v = tj.Variable(1.0)

    @tj.function
    def step(x: Any) -> Any:
        v.assign_add(1.0)
        if float(x) > 3.0:
            raise KeyError("too large")
        v.assign_add(float(x))
        return v * 1.0

    with pytest.warns(UserWarning, match="needs a value"):
        step(tj.asarray(1.0))
    assert float(v) == 3.0
    for _ in range(2):
        with pytest.raises(KeyError):
            step(tj.asarray(5.0))
        assert float(v) == 3.0
    assert step(tj.asarray(2.0)).item() == 6.0


@pytest.mark.parametrize("kind", ["needs a value", "traced 6 times"])
def test_s54_a_warning_that_is_an_error_changes_nothing(kind: str) -> None:
    v = tj.Variable(0.0)

    @tj.function
    def step(x: Any, k: int) -> Any:
        v.assign_add(1.0)
        return x + float(x) if kind == "needs a value" else x + k

    harmless = 0 if kind == "needs a value" else 5
    for k in range(harmless):
        step(tj.asarray(1.0), k)
    with pytest.raises(UserWarning, match=kind):
        step(tj.asarray(1.0), harmless)
    assert float(v) == harmless
    step(tj.asarray(1.0), harmless)
    assert float(v) == harmless + 1
