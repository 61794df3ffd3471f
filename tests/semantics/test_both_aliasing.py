"""One variable in two places: passed twice, passed and captured, in structures.

Each call is about the variables it is given, whichever it was traced with.
"""

from __future__ import annotations

from typing import Any

import pytest

import tapejit as tj

from .both_modes import assert_modes, assert_taped

TRACKED = "no gradient flows through an assignment"


def twice(w: Any, other: Any, x: Any) -> Any:
    w.assign_add(x)
    other.assign_sub(x * 0.5)
    w.assign_add(other)
    return w * other


def test_s34_one_variable_passed_twice() -> None:
    def same() -> Any:
        v = tj.Variable(4.0)
        return v, v, tj.asarray(2.0)

    def different() -> Any:
        return tj.Variable(4.0), tj.Variable(1.0), tj.asarray(2.0)

    assert_modes(twice, same, expected=100.0, variables=[10.0], also=[different, same])
    assert_modes(twice, different, expected=0.0, variables=[6.0, 0.0], also=[same])
    assert_taped(twice, same, expected=[20.0, None], warns=[TRACKED])
    assert_taped(twice, different, expected=[0.0, 6.0, None], warns=[TRACKED])


@pytest.mark.filterwarnings(f"ignore:.*{TRACKED}:UserWarning")
def test_s34_a_variable_passed_and_captured() -> None:
    """In any order: each call is about the variables it is given."""
    captured, a, b = tj.Variable(1.0), tj.Variable(10.0), tj.Variable(20.0)
    everything = [captured, a, b]

    def program(w: Any, other: Any) -> Any:
        captured.assign_add(1.0)
        other.assign_add(w)
        return w * captured, other - captured

    calls = [
        (captured, captured),
        (a, a),
        (a, captured),
        (b, captured),
        (captured, a),
        (captured, b),
        (a, b),
        (b, a),
        (captured, captured),
        (b, b),
    ]
    for first in range(len(calls)):
        order = calls[first:] + calls[:first]
        outcomes = []
        for call in (program, tj.function(program)):
            for v, value in zip(everything, (1.0, 10.0, 20.0), strict=True):
                v.assign(value)
            seen = []
            for given in order:
                with tj.GradientTape(persistent=True) as tape:
                    results = call(*given)
                found = [tape.gradient(y, everything) for y in results]
                seen.append((tj.tree.map(float, results), tj.tree.map(float, found)))
                seen.append([float(v) for v in everything])
                call(*given)
                seen.append([float(v) for v in everything])
            outcomes.append(seen)
        assert outcomes[0] == outcomes[1], order


def test_s34_variables_in_structures_of_arguments() -> None:
    def program(params: Any) -> Any:
        params["a"].assign_add(params["b"][0] * 2.0)
        return params["b"][0] * params["a"], params["a"]

    def distinct() -> Any:
        return ({"a": tj.Variable(1.0), "b": [tj.Variable(3.0)]},)

    def shared() -> Any:
        v = tj.Variable(2.0)
        return ({"a": v, "b": [v]},)

    assert_modes(
        program, distinct, expected=(21.0, 7.0), variables=[7.0, 3.0], also=[shared]
    )
    assert_modes(
        program, shared, expected=(36.0, 6.0), variables=[6.0], also=[distinct]
    )


def test_s34_a_dictionary_keyed_by_variables() -> None:
    """What is kept beside a variable belongs to that variable."""
    slots: dict[Any, Any] = {}

    def program(v: Any) -> Any:
        slot = slots[v.ref()]
        slot.assign_add(v)
        v.assign_sub(slot)
        return v * slot

    a, b = tj.Variable(1.0), tj.Variable(2.0)
    slots[a.ref()], slots[b.ref()] = tj.Variable(10.0), tj.Variable(20.0)
    step = tj.function(program)
    step(a)
    assert (float(a), float(slots[a.ref()])) == (-10.0, 11.0)
    assert (float(b), float(slots[b.ref()])) == (2.0, 20.0)
    step(b)
    step(a)
    assert (float(a), float(slots[a.ref()])) == (-11.0, 1.0)
    assert (float(b), float(slots[b.ref()])) == (-20.0, 22.0)
