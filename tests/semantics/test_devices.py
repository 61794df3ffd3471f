"""Devices (line 62): the emulated one, where programs run as they do on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from agreement import COMPOSED

import tapejit as tj

from .both_modes import assert_modes, assert_taped, note

GPU = "cuda:0"


@pytest.fixture(autouse=True)
def _emulated() -> Iterator[None]:
    with tj.config.override(cuda="emulated"):
        yield


def on_gpu(*values: float) -> tj.Tensor:
    return tj.asarray(values, dtype="float32", device=GPU)


def variable(*values: float, name: str = "v") -> tj.Variable:
    with tj.device(GPU):
        return tj.Variable(values, dtype="float32", name=name)


def weights_and_data() -> Any:
    return variable(1, 2, 3), on_gpu(4, 5, 6)


def test_s62_a_gradient_lies_on_its_variables_device() -> None:
    def program(v: Any, x: Any) -> Any:
        with tj.GradientTape() as tape:
            y = tj.sum(v * v * x)
        gradient = tape.gradient(y, v)
        note((str(gradient.device), str(v.device), str(y.device)))
        v.assign_sub(0.5 * gradient)
        return gradient, y

    assert_modes(
        program,
        weights_and_data,
        expected=([8.0, 20.0, 36.0], 78.0),
        variables=[[-3.0, -8.0, -15.0]],
        notes=[(GPU, GPU, GPU)],
        op_class=COMPOSED,
    )


def test_s62_derivatives_by_tapes_around_a_call() -> None:
    assert_taped(
        lambda v, x: v * x,
        lambda: (variable(1, 2), on_gpu(3, 4)),
        expected=[[3.0, 4.0], [1.0, 2.0]],
        second=[[1.0, 1.0], [1.0, 1.0]],
    )


def test_s62_numbers_and_lists_go_along() -> None:
    assert_modes(
        lambda x: (x * 2 + 1.5, tj.add(x, [10.0, 20.0]), tj.maximum(x, np.float64(2))),
        lambda: on_gpu(1, 3),
        expected=([3.5, 7.5], [11.0, 23.0], [2.0, 3.0]),
    )


def test_s62_devices_do_not_mix() -> None:
    assert_modes(
        lambda x: x + tj.ones(2),
        lambda: on_gpu(1, 3),
        raises=(ValueError, r"operands are on two devices, cuda:0 and cpu"),
    )


def test_s62_a_value_of_another_device_is_not_assigned() -> None:
    assert_modes(
        lambda v: v.assign(tj.ones(2)),
        lambda: variable(1, 2),
        raises=(ValueError, r"variable 'v' is on cuda:0, the value on cpu"),
        variables=[[1.0, 2.0]],
    )


def test_s62_what_is_made_in_a_block_is_there() -> None:
    def program(x: Any) -> Any:
        with tj.device(GPU):
            made = tj.arange(3.0)
        note((str(made.device), str(tj.zeros(1).device), str(tj.zeros_like(x).device)))
        return x + made

    assert_modes(
        program,
        lambda: on_gpu(1, 2, 3),
        expected=[1.0, 3.0, 5.0],
        notes=[(GPU, "cpu", GPU)],
    )


def test_s62_python_decides_on_values() -> None:
    def program(v: Any, x: Any) -> Any:
        if tj.sum(x) > 10:
            v.assign_add(x)
        rows = int(tj.max(x)) - 4
        return sum((x * n for n in range(rows)), v)

    assert_modes(
        program,
        weights_and_data,
        expected=[9.0, 12.0, 15.0],
        variables=[[5.0, 7.0, 9.0]],
        also=[lambda: (variable(1, 2, 3), on_gpu(1, 1, 5))],
        op_class=COMPOSED,
    )


def test_s62_an_unconnected_gradient_is_zeros_there() -> None:
    def program(v: Any, x: Any) -> Any:
        with tj.GradientTape() as tape:
            y = tj.sum(x)
        found = tape.gradient(y, v, unconnected_gradients="zero")
        note(str(found.device))
        return found

    assert_modes(program, weights_and_data, expected=[0.0, 0.0, 0.0], notes=[GPU])


def test_s62_slots_lie_with_their_variables() -> None:
    optimizers: list[Any] = []

    def program(v: Any, x: Any) -> Any:
        optimizer = tj.optimizers.SGD(0.5, momentum=0.5)
        optimizers.append(optimizer)
        optimizer.apply_gradients([(x, v)])
        note({str(x.device) for x in optimizer.variables})
        return v * 1

    assert_modes(
        program,
        weights_and_data,
        expected=[-1.0, -0.5, 0.0],
        notes=[{GPU}],
        modes=["eagerly"],
        variables=[[-1.0, -0.5, 0.0]],
    )


def test_s62_a_device_that_is_not_there_says_what_is() -> None:
    for make in (lambda: tj.zeros(2, device="cuda:5"), lambda: tj.device("cuda:5")):
        with pytest.raises(RuntimeError, match="there is no cuda:5: 1 device is there"):
            make()


def test_s62_to_is_differentiable_and_memory_is_told() -> None:
    x = tj.asarray([1.0, 2.0])
    before = tj.memory_info(GPU).used
    with tj.GradientTape() as tape:
        tape.watch(x)
        y = (3 * x).to(GPU)
        z = tj.sum(y * y)
    assert tj.memory_info(GPU).used > before
    found = tape.gradient(z, x)
    assert (found.device, found.tolist()) == ("cpu", [18.0, 36.0])
