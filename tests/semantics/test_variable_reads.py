"""Variables: each read captures its value, in program order (line 34)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tapejit as tj

from .both_modes import assert_modes, assert_taped
from .test_variables import TRACKED, two_and_tensor, vector, vector_and_tensor


@pytest.mark.parametrize("trainable", [True, False])
def test_s34_each_read_captures_its_value(trainable: bool) -> None:
    def program(v: Any) -> Any:
        with tj.GradientTape(persistent=True) as tape:
            if not trainable:
                tape.watch(v)
            y = v * v
            v.assign(10.0)
            z = v * v
        unconnected = tape.gradient(y * 0.0, v, unconnected_gradients="zero")
        return [tape.gradient(t, v) for t in (y, z, [y, z])], y, z, unconnected

    assert_modes(
        program,
        lambda: tj.Variable(3.0, trainable=trainable),
        expected=([6.0, 20.0, 26.0], 9.0, 100.0, 0.0),
        variables=[10.0],
    )


def test_s34_each_read_captures_its_value_for_tapes_around() -> None:
    def program(v: Any) -> Any:
        y = v * v
        v.assign(10.0)
        return y, v * v

    derivatives = assert_taped(
        program, lambda: tj.Variable(3.0), expected=[26.0], second=[4.0]
    )
    assert [[float(g) for g in each] for each in derivatives[2]] == [[6.0], [20.0]]


def test_s34_reads_from_before_and_after_an_assignment_both_count() -> None:
    def program(v: Any) -> Any:
        old = v.value()
        v.assign(10.0)
        return old * v

    def differentiated(v: Any) -> Any:
        with tj.GradientTape() as tape:
            y = program(v)
        return y, tape.gradient(y, v)

    assert_modes(differentiated, lambda: tj.Variable(3.0), expected=(30.0, 13.0))
    assert_taped(program, lambda: tj.Variable(3.0), expected=[13.0], second=[2.0])


CHANGES: dict[str, Any] = {
    "assign": lambda v: v.assign([10.0, 20.0, 30.0]),
    "assign_add": lambda v: v.assign_add([9.0, 18.0, 27.0]),
    "assign_sub": lambda v: v.assign_sub([-9.0, -18.0, -27.0]),
    "scatter_update": lambda v: v.scatter_update([0, 1, 2], [10.0, 20.0, 30.0]),
    "scatter_add": lambda v: v.scatter_add([0, 1, 2], [9.0, 18.0, 27.0]),
    "part": lambda v: v[:].assign([10.0, 20.0, 30.0]),
}


@pytest.mark.parametrize("name", CHANGES)
def test_s34_assigning_after_the_block_does_not_change_the_gradient(name: str) -> None:
    def program(v: Any) -> Any:
        with tj.GradientTape(persistent=True) as tape:
            y = v * v * v
        before = v.value()
        CHANGES[name](v)
        changed, g = v.value(), tape.gradient(y, v)
        v.assign([0.0, 0.0, 0.0])
        return y, before, changed, g, tape.gradient(y, v)

    slope = [3.0, 12.0, 27.0]
    values = [1.0, 8.0, 27.0], [1.0, 2.0, 3.0], [10.0, 20.0, 30.0]
    assert_modes(
        program, vector, expected=(*values, slope, slope), variables=[[0.0, 0.0, 0.0]]
    )


def test_s34_assignments_in_a_loop_keep_their_order() -> None:
    def program(v: Any, x: Any) -> Any:
        seen = []
        for k in range(4):
            seen.append(v.value())
            v.assign(v * 2.0 if k % 2 else v + x)
            seen.append(v * 1.0)
        return seen

    outcome = assert_modes(
        program, lambda: (tj.Variable(1.0), tj.asarray(3.0)), variables=[22.0]
    )
    assert [float(x) for x in outcome.result] == [1, 4, 4, 8, 8, 11, 11, 22]
    derivatives = assert_taped(
        program, lambda: (tj.Variable(1.0), tj.asarray(3.0)), order=1, warns=[TRACKED]
    )
    assert float(derivatives[0][0]) == 8.0, "each of the reads counts once"


def test_s34_two_variables_are_swapped() -> None:
    def program(v: Any, w: Any, x: Any) -> Any:
        old = v.value()
        v.assign(w)
        w.assign(old)
        return v - w

    assert_modes(
        program,
        two_and_tensor,
        expected=[4.0, 3.0, 2.0],
        variables=[[5.0] * 3, [1.0, 2.0, 3.0]],
    )
    assert_taped(
        program,
        two_and_tensor,
        expected=[[1.0] * 3, [-1.0] * 3, None],
        order=1,
        warns=[TRACKED],
    )


def test_s34_a_step_inside_a_step() -> None:
    """Two updates in one call: the second sees what the first did."""

    def step(v: Any, x: Any) -> Any:
        with tj.GradientTape() as tape:
            loss = tj.sum(v * v * x)
        v.assign_sub(0.125 * tape.gradient(loss, v))
        return loss

    def program(v: Any, x: Any) -> Any:
        return step(v, x), step(v, x)

    assert_modes(
        program,
        lambda: (vector(), tj.asarray([1.0, 2.0, 4.0])),
        expected=(45.0, 1 * 0.75**2 + 2 * 1.0),
        variables=[[0.5625, 0.5, 0.0]],
    )


def test_s34_step_after_step() -> None:
    def program(v: Any) -> Any:
        found = []
        for _ in range(4):
            with tj.GradientTape() as tape:
                y = v * v
                v.assign_add(1.0)
                z = y * v
            found.append(tape.gradient(z, v))
        return found

    # z = a² b with b = a + 1, both reads of v: 2ab + a².
    expected = [2 * a * (a + 1) + a * a for a in (1.0, 2.0, 3.0, 4.0)]
    assert_modes(program, lambda: tj.Variable(1.0), expected=expected)


def test_s34_a_read_is_a_reference_not_a_copy() -> None:
    """Eagerly: a trace has no memory to share."""
    v = tj.Variable(np.zeros(1000))
    assert np.shares_memory(np.asarray(v), np.asarray(v.value()))


def test_s34_python_branches_on_variables_see_what_was_assigned() -> None:
    def program(v: Any, x: Any) -> Any:
        if tj.sum(v) > 20.0:
            v.assign(x)
        else:
            v.assign_add(x)
        while tj.sum(v) < 100.0:
            v.assign(v * 2.0)
        return v[0]

    def started(*numbers: float) -> Any:
        return lambda: (tj.Variable(numbers), tj.asarray([10.0, 20.0, 30.0]))

    assert_modes(
        program,
        started(1.0, 2.0, 3.0),
        expected=22.0,
        variables=[[22.0, 44.0, 66.0]],
        also=[
            started(50.0, 1.0, 1.0),
            started(-20.0, -20.0, -15.0),
            started(1.0, 2.0, 4.0),
            started(50.0, 2.0, 1.0),
        ],
    )


def test_s34_a_branch_that_assigns_and_one_that_does_not() -> None:
    def program(v: Any, x: Any) -> Any:
        if x > 0.0:
            v.assign(x)
        return v * 2.0

    def given(x: float) -> Any:
        return lambda: (tj.Variable(3.0), tj.asarray(x))

    assert_modes(
        program,
        given(1.0),
        expected=2.0,
        variables=[1.0],
        also=[given(-1.0), given(2.0), given(-2.0), given(float("nan"))],
    )


def test_s34_reads_and_writes_of_nested_functions_keep_their_order() -> None:
    @tj.function
    def inner(v: Any, x: Any) -> Any:
        v.assign_add(x)
        return v * x

    def program(v: Any, x: Any) -> Any:
        first = inner(v, x)
        v.assign(v * 2.0)
        return first, inner(v, first), v.value()

    assert_modes(
        program,
        lambda: (tj.Variable(1.0), tj.asarray(2.0)),
        expected=(6.0, 72.0, 12.0),
        variables=[12.0],
    )
    assert_taped(program, lambda: (tj.Variable(1.0), tj.asarray(2.0)), warns=[TRACKED])


def test_s34_variables_of_other_dtypes_and_untrainable_ones() -> None:
    def program(v: Any, count: Any, flag: Any) -> Any:
        count.assign_add(1)
        flag.assign(count > 2)
        v.assign_add(count.astype("float32"))
        return v[count % 3], flag

    def setup() -> Any:
        count = tj.Variable(2, trainable=False)
        return vector(), count, tj.Variable(False, trainable=False)

    def program_on_first(v: Any, count: Any, flag: Any) -> Any:
        v[:1].assign(v[:1] + count)
        return program_on_scalar(v, count, flag)

    def program_on_scalar(v: Any, count: Any, flag: Any) -> Any:
        count.assign_add(1)
        flag.assign(count > 2)
        return v[count % 3], flag

    assert_modes(
        program_on_first,
        setup,
        expected=(3.0, True),
        variables=[[3.0, 2.0, 3.0], 3, True],
    )
    assert_modes(program, setup, raises=(ValueError, r"\(3,\)"))


def test_s34_unused_reads_do_not_matter_unused_assignments_happen() -> None:
    def program(v: Any, x: Any) -> Any:
        v * x
        v.assign(x)
        v.value()
        return tj.asarray(1.0)

    assert_modes(
        program, vector_and_tensor, expected=1.0, variables=[[10.0, 20.0, 30.0]]
    )
    assert_taped(
        program, vector_and_tensor, expected=[None, None], order=1, warns=[TRACKED]
    )


def test_s34_watched_variables_are_those_that_were_read() -> None:
    @tj.function
    def reads(v: Any, w: Any) -> Any:
        w.assign(tj.stop_gradient(v * 2.0))
        return v * 3.0

    for _ in range(2):
        v, w = tj.Variable(1.0, name="v"), tj.Variable(2.0, name="w")
        with tj.GradientTape() as tape:
            reads(v, w)
        assert [x.name for x in tape.watched_variables()] == ["v"]
