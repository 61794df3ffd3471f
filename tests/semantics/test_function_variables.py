"""Line 46 in both modes: variables as arguments, bound at each call, one trace."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tapejit as tj

SHARED = tj.Variable(1.0, name="shared")


def descend(v: Any, x: Any) -> Any:
    with tj.GradientTape() as tape:
        loss = tj.sum((v * x) ** 2)
    v.assign_sub(0.125 * tape.gradient(loss, v))
    return loss


def nested(pair: Any, x: Any) -> Any:
    pair["b"][0].assign(pair["a"] + x)
    return pair["a"] * pair["b"][0]


def library_state(v: Any, x: Any) -> Any:
    tj.optimizers.SGD(0.5).apply_gradients([(x, v)])
    return v * 1


def helper(v: Any) -> Any:
    return tj.tanh(v) * WEIGHT


WEIGHT = tj.Variable(3.0)
LAYER = SimpleNamespace(w=tj.Variable(2.0))


def with_helper(v: Any, x: Any) -> Any:
    """Reaches other variables, which are no arguments."""
    return helper(v) + x * LAYER.w + tj.grad(lambda y: y * WEIGHT)(x)


@pytest.mark.parametrize("body", [descend, with_helper])
def test_s46_one_trace_serves_all_variables_of_a_kind(body: Any) -> None:
    traced = tj.function(body)
    x = tj.asarray(0.5)
    for value in (1.0, 2.0, -3.0):
        one, other = tj.Variable(value, name=f"v{value}"), tj.Variable(value)
        np.testing.assert_array_equal(traced(one, x), body(other, x))
        np.testing.assert_array_equal(one, other)
    assert traced.trace_count == 1


def test_s46_variables_in_structures_are_bound_too() -> None:
    traced = tj.function(nested)
    x = tj.asarray(0.5)
    for value in (1.0, 2.0, -3.0):
        pair = {"a": tj.Variable(value), "b": [tj.Variable(0.0)]}
        assert float(traced(pair, x)) == value * (value + 0.5)
        assert float(pair["b"][0]) == value + 0.5
    assert traced.trace_count == 1


def test_s46_a_tape_around_sees_the_variable_that_was_passed() -> None:
    cube = tj.function(lambda v: v**3)
    for value in (1.0, 2.0, 3.0):
        v = tj.Variable(value)
        with tj.GradientTape() as tape:
            y = cube(v)
        assert float(tape.gradient(y, v)) == 3 * value**2
    assert cube.trace_count == 1


class Model:
    def __init__(self) -> None:
        self.w = tj.Variable(1.0)

    @tj.function
    def step(self, v: Any) -> Any:
        self.w.assign_add(10.0)
        v.assign_add(1.0)
        return self.w + v


def by_closure(shared: tj.Variable) -> Any:
    def body(v: Any) -> Any:
        shared.assign_add(10.0)
        v.assign_add(1.0)
        return shared + v

    return body


def by_default(shared: tj.Variable) -> Any:
    def body(v: Any, *, state: Any = SimpleNamespace(w=shared)) -> Any:  # noqa: B008
        state.w.assign_add(10.0)
        v.assign_add(1.0)
        return state.w + v

    return lambda v: body(v)


def by_object(shared: tj.Variable) -> Any:
    kept = {"list": [SimpleNamespace(w=shared)]}

    class Reader:
        def read(self, v: Any) -> Any:
            kept["list"][0].w.assign_add(10.0)
            v.assign_add(1.0)
            return kept["list"][0].w + v

    reader = Reader()
    return lambda v: reader.read(v)


def by_weak_reference(shared: tj.Variable) -> Any:
    import weakref

    weak = weakref.ref(shared)

    def body(v: Any) -> Any:
        found: Any = weak()
        found.assign_add(10.0)
        v.assign_add(1.0)
        return found + v

    return body


def by_inner_function(shared: tj.Variable) -> Any:
    inner = tj.function(lambda: shared.assign_add(10.0))

    def body(v: Any) -> Any:
        inner()
        v.assign_add(1.0)
        return shared + v

    return body


def by_global(shared: tj.Variable) -> Any:
    namespace: dict[str, Any] = {"shared": shared, "__name__": "users_module"}
    exec(  # a module of its own, which another function of it reads
        "def add():\n    shared.assign_add(10.0)\n"
        "def body(v):\n    add()\n    v.assign_add(1.0)\n    return shared + v\n",
        namespace,
    )
    return namespace["body"]


@pytest.mark.parametrize(
    "make",
    [
        by_closure,
        by_default,
        by_object,
        by_weak_reference,
        by_inner_function,
        by_global,
    ],
)
@pytest.mark.parametrize("shared_first", [True, False])
def test_s46_what_is_reached_another_way_too_is_one_variable(
    make: Any, shared_first: bool
) -> None:
    found = []
    for decorate in (tj.function, lambda body: body):
        shared, other = tj.Variable(1.0), tj.Variable(100.0)
        body = decorate(make(shared))
        order = [shared, other] if shared_first else [other, shared]
        results = [float(body(v)) for v in (*order, *order, tj.Variable(5.0), *order)]
        found.append((results, float(shared), float(other)))
    assert found[0] == found[1]


def test_s46_an_attribute_of_self_passed_as_argument() -> None:
    found = []
    for eager in (True, False):
        with tj.config.override(eager=eager):
            model, other = Model(), tj.Variable(100.0)
            order = (model.w, other, model.w, other)
            found.append([float(model.step(v)) for v in order])
    assert found[0] == found[1]


TABLE: dict[Any, Any] = {}


def by_name(v: Any) -> Any:
    return v * (2.0 if v.name == "bias" else 3.0)


def by_identity(v: Any) -> Any:
    return v * (2.0 if v is SHARED else 3.0)


def by_membership(v: Any) -> Any:
    return v * (2.0 if any(v is w for w in [SHARED]) else 3.0)


def by_number(v: Any) -> Any:
    return v * (2.0 if id(v) == id(SHARED) else 3.0)


def by_constraint(v: Any) -> Any:
    return v if v.constraint is None else v.constraint(v)


def by_table(v: Any) -> Any:
    key = v.ref()
    if key not in TABLE:
        TABLE[key] = tj.Variable(0.0)
    TABLE[key].assign_add(v)
    return TABLE[key] * 1


@pytest.mark.parametrize(
    "body",
    [by_name, by_identity, by_membership, by_number, by_constraint, by_table],
)
def test_s46_a_body_that_tells_variables_apart_is_traced_for_them(body: Any) -> None:
    found = []
    for decorate in (tj.function, lambda body: body):
        TABLE.clear()
        SHARED.assign(1.0)
        given = [
            tj.Variable(2.0, name="weight"),
            *(tj.Variable(3.0, name="bias"), SHARED),
            tj.Variable(4.0, constraint=lambda x: x * 5),
            tj.Variable(4.0, constraint=lambda x: x * 7),
        ]
        function = decorate(body)
        found.append([float(function(v)) for v in (*given, *reversed(given))])
    assert found[0] == found[1]


def test_s46_what_the_body_keeps_is_the_variable_itself() -> None:
    kept: list[Any] = []

    @tj.function
    def remember(v: Any) -> Any:
        kept.append(v)
        return v * 1

    first, second = tj.Variable(1.0), tj.Variable(2.0)
    assert float(remember(first)) == 1.0
    assert float(remember(second)) == 2.0
    assert kept[0] is first


def test_s46_an_optimizer_has_its_slots_by_variable() -> None:
    def run(decorate: Any) -> list[float]:
        optimizer = tj.optimizers.Adam(0.125)

        @decorate
        def step(v: Any, g: Any) -> Any:
            optimizer.apply_gradients([(g, v)])
            return v * 1

        variables = [tj.Variable(1.0), tj.Variable(2.0)]
        given = [tj.asarray(g) for g in (1.0, -2.0, 0.5)]
        return [float(step(v, g)) for g in given for v in variables]

    assert run(tj.function) == run(lambda body: body)
