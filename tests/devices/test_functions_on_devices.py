"""Functions whose tensors are on a device: what they give, and what they ask for."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import tapejit as tj
from tapejit.runtime.cuda import devices
from tapejit.runtime.cuda.devices import Device
from tapejit.runtime.cuda.emulated import EmulatedDriver
from tapejit.runtime.cuda.recording import RecordingDriver

GPU = "cuda:0"


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What is asked of a device of this test alone."""
    driver = RecordingDriver(EmulatedDriver())
    with tj.config.override(cuda="emulated"):
        own = Device(driver, 0, "emulated")
        monkeypatch.setitem(devices._DEVICES, ("emulated", 0), own)
        yield driver.log


pytestmark = pytest.mark.usefixtures("log")


def on_gpu(*values: float, dtype: Any = "float32") -> tj.Tensor:
    return tj.asarray(values, dtype=dtype, device=GPU)


def assert_on(x: Any, device: str, value: Any) -> None:
    assert x.device == device
    np.testing.assert_allclose(np.asarray(x), value, rtol=1e-5)


def variable(*values: float, name: str = "w") -> tj.Variable:
    with tj.device(GPU):
        return tj.Variable(values, dtype="float32", name=name)


# Where a function runs


def test_a_function_runs_where_its_inputs_are() -> None:
    @tj.function
    def twice(x: Any) -> Any:
        return {"all": x + x, "sum": tj.sum(x)}

    for device in (GPU, "cpu", GPU):
        found = twice(tj.asarray([1.0, 2.0], device=device))
        assert_on(found["all"], device, [2, 4])
        assert_on(found["sum"], device, 3)
    assert twice.signatures() == ["(x: f32[2])", "(x: f32[2] on cuda:0)"]


def test_variables_and_captured_tensors_say_where_too() -> None:
    w, x = variable(1, 2), on_gpu(3, 4)

    @tj.function
    def product(factor: Any) -> Any:
        return w * x * factor

    assert_on(product(2.0), GPU, [6, 16])
    assert_on(product(3.0), GPU, [9, 24])
    w.assign([10, 10])
    assert_on(product(0.5), GPU, [15, 20])


def test_a_variable_that_moves_takes_the_function_with_it() -> None:
    w = tj.Variable([1.0, 2.0])

    @tj.function
    def step(rate: Any) -> Any:
        w.assign_sub(rate * w)
        return tj.sum(w)

    with tj.config.override(native=True):
        assert_on(step(0.5), "cpu", 1.5)
        assert_on(step(0.5), "cpu", 0.75)
        w._move(GPU)
        assert_on(step(0.5), GPU, 0.375)
        w._move("cpu")
        assert_on(step(0.5), "cpu", 0.1875)


@pytest.mark.parametrize("native", [False, True])
def test_inputs_on_two_devices_are_refused(native: bool) -> None:
    w = variable(1, 2)

    @tj.function
    def scaled(x: Any) -> Any:
        return w * x

    with tj.config.override(native=native):
        assert_on(scaled(on_gpu(1, 2)), GPU, [1, 4])
        for given in (tj.ones(2), np.ones(2, np.float32)):
            with pytest.raises(ValueError, match="argument x is on cpu") as caught:
                scaled(given)
            assert "variable 'w' on cuda:0" in str(caught.value)
            assert '.to("cuda:0")' in str(caught.value)


def test_constants_of_the_body_do_not_go_along_unless_they_are_numbers() -> None:
    x = on_gpu(1, 2)
    assert_on(tj.function(lambda x: tj.add(x, [1.0, 2.0]))(x), GPU, [2, 4])
    assert_on(tj.function(lambda x: x + tj.zeros_like(x))(x), GPU, [1, 2])
    with pytest.raises(ValueError, match="on two devices, cuda:0 and cpu"):
        tj.function(lambda x: x + tj.ones(2))(x)
    with pytest.raises(tj.UnsupportedError, match="runs on one device"):
        tj.function(lambda x: x.to("cpu"))(x)


def test_results_that_are_constants_are_where_they_are_eagerly() -> None:
    def body(x: Any) -> Any:
        return 1.0, tj.arange(2), tj.ones_like(x), x

    x = on_gpu(5, 6)
    for run in (body, tj.function(body)):
        places = [getattr(y, "device", "cpu") for y in run(x)]
        assert places == ["cpu", "cpu", GPU, GPU]


def test_a_block_in_a_body() -> None:
    @tj.function
    def body(x: Any) -> Any:
        with tj.device(GPU):
            return x + tj.arange(2.0)

    assert_on(body(on_gpu(1, 2)), GPU, [1, 3])


# What it does there


def gradients(x: Any) -> Any:
    with tj.GradientTape() as tape:
        tape.watch(x)
        y = tj.sum(tj.exp(x) * x)
    return tape.gradient(y, x)


BODIES: dict[str, Callable[[Any], Any]] = {
    "elementwise": lambda x: tj.tanh(x) * 2 + 1,
    "sums": lambda x: (tj.sum(x), tj.mean(x), tj.max(x)),
    "gradients": gradients,
    "jacobian": lambda x: tj.jacobian(lambda y: y * y)(x),
    "jvp": lambda x: tj.jvp(tj.sin, (x,), (tj.ones_like(x),)),
    "vmap": lambda x: tj.vmap(lambda row: row * row)(x),
    "branch": lambda x: x * 2 if tj.sum(x) > 0 else x - 1,
    "loop": lambda x: sum((x * n for n in range(int(tj.max(x)))), x),
    "index": lambda x: (x[1:], x[::-1], x[x > 2]),
    "matmul": lambda x: tj.outer(x, x) @ x,
    "nested": lambda x: tj.function(tj.exp)(x) + tj.function(gradients)(x),
    "argument": lambda x: x,
    "host": lambda x: tj.linalg.eigh(tj.outer(x, x))[0],
    "sort": tj.sort,
    "scan": lambda x: tj.cumulative_sum(x),
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_results_are_those_of_the_cpu(body: Callable[[Any], Any]) -> None:
    decorated = tj.function(body)
    with tj.config.override(soft_placement=True):
        for values in ([1.0, 2.0, 3.0], [3.0, -1.0, 2.0], [-4.0, 1.0, 2.0]):
            wanted = tj.tree.leaves(body(tj.asarray(values)))
            for run in (body, decorated):
                found = tj.tree.leaves(run(on_gpu(*values)))
                assert len(found) == len(wanted)
                for x, y in zip(found, wanted, strict=True):
                    assert (x.device, x.dtype) == (GPU, y.dtype)
                    np.testing.assert_allclose(
                        x.numpy(), y.numpy(), rtol=2e-5, atol=1e-5
                    )


def test_a_tape_around_a_call() -> None:
    w, x = variable(1, 2), on_gpu(3, 4)
    energy = tj.function(lambda x: tj.sum(tj.exp(w) * x))
    for _ in range(2):
        with tj.GradientTape() as tape:
            tape.watch(x)
            y = energy(x) * 2
        found = tape.gradient(y, [w, x])
        assert_on(found[0], GPU, 2 * np.exp([1, 2]) * [3, 4])
        assert_on(found[1], GPU, 2 * np.exp([1, 2]))


def test_effects_and_guards_read_values_back(capsys: pytest.CaptureFixture) -> None:
    w = variable(1, 2)

    @tj.function
    def step(x: Any) -> Any:
        tj.print("sum", tj.sum(x))
        if tj.sum(x) > 3:
            w.assign_add(x)
        return tj.sum(w)

    assert_on(step(on_gpu(1, 1)), GPU, 3)
    assert_on(step(on_gpu(2, 2)), GPU, 7)
    assert_on(step(on_gpu(1, 1)), GPU, 7)
    assert capsys.readouterr().out.split("\n")[:3] == ["sum 2.0", "sum 4.0", "sum 2.0"]
    assert step.trace_count == 2


def test_open_sizes() -> None:
    total = tj.function(lambda x: tj.sum(x * x), reduce_retracing=True)
    for rows in (2, 3, 5, 3, 0):
        x = np.arange(2.0 * rows, dtype=np.float32).reshape(rows, 2)
        assert_on(total(tj.asarray(x, device=GPU)), GPU, np.sum(x * x))
    assert total.trace_count <= 3


def test_what_has_no_kernel_is_named_with_its_line() -> None:
    @tj.function
    def values(x: Any) -> Any:
        return tj.linalg.eigh(tj.outer(x, x))[0]

    with pytest.raises(tj.UnsupportedError, match="a GPU cannot do this") as caught:
        values(on_gpu(1, 2))
    assert "return tj.linalg.eigh(tj.outer(x, x))[0]" in str(caught.value)
    assert "soft_placement=True" in str(caught.value)


def test_numerics_are_checked() -> None:
    log = tj.function(lambda x: tj.log(x) * 0)
    with (
        tj.config.override(check_numerics=True),
        pytest.raises(tj.NonFiniteError, match="the result is -inf"),
    ):
        log(on_gpu(1, 0))


# Updates


def address(v: tj.Variable) -> int:
    found: int = v._tensor._value.address
    return found


def test_a_variable_is_written_over_unless_somebody_has_its_value() -> None:
    w = variable(1, 2, 3)
    step = tj.function(lambda x: w.assign_add(x))
    x = on_gpu(1, 1, 1)
    step(x)
    at = address(w)
    for _ in range(3):
        step(x)
        assert address(w) == at
    kept = w.value()
    step(x)
    assert address(w) != at
    assert_on(kept, GPU, [5, 6, 7])
    assert_on(w, GPU, [6, 7, 8])
    shared = np.from_dlpack(w)
    step(x)
    np.testing.assert_array_equal(shared, [6, 7, 8])
    with tj.GradientTape() as tape:
        y = tj.sum(w * w)
    step(x)
    assert_on(tape.gradient(y, w), GPU, [14, 16, 18])
    twin = w.value()
    del kept, shared, tape, y, twin
    gc.collect()
    at = address(w)
    step(x)
    assert address(w) == at


def test_a_step_that_fails_changes_no_variable() -> None:
    table, count = variable(1, 2, 3, name="table"), variable(0, name="count")

    @tj.function
    def step(index: Any) -> Any:
        count.assign_add([1.0])
        found = tj.take(table, index)
        table.assign(table * 2)
        return tj.sum(found)

    assert_on(step(on_gpu(0, 1, dtype="int32")), GPU, 3)
    kept = table.value()
    for index in ([0, 1], [0, 7], [1, 2]):
        step(on_gpu(*index, dtype="int32"))
    with pytest.raises(IndexError, match="index 7 is out of range") as caught:
        tj.synchronize(GPU)
    assert "found = tj.take(table, index)" in str(caught.value)
    assert_on(kept, GPU, [2, 4, 6])
    assert_on(table, GPU, [4, 8, 12])
    assert_on(count, GPU, [2])
    step(on_gpu(0, 0, dtype="int32"))
    assert_on(table, GPU, [8, 16, 24])


def test_an_error_is_raised_where_a_value_is_asked_for() -> None:
    pick = tj.function(lambda x, i: tj.take(x, i))
    found = pick(on_gpu(1, 2), on_gpu(5, dtype="int32"))
    with pytest.raises(IndexError, match="index 5 is out of range"):
        found.numpy()


def test_no_memory_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    w = variable(1, 2)
    step = tj.function(lambda x: (w.assign_add(x), tj.broadcast_to(w, (1000, 2))))
    pool = devices.device(0).pool
    monkeypatch.setattr(pool, "limit", pool.used + 4000)
    with pytest.raises(MemoryError, match="cuda:0 may use"):
        step(on_gpu(1, 1))
    assert_on(w, GPU, [1, 2])


# What is asked of the driver


def test_a_step_is_one_list_of_launches_that_waits_for_nothing(log: list[str]) -> None:
    w, speed = variable(1, 2, 3), variable(0, 0, 0, name="speed")

    @tj.function
    def step(x: Any, rate: Any) -> Any:
        with tj.GradientTape() as tape:
            loss = tj.sum(tj.square(w * x - 1))
        speed.assign(0.9 * speed + tape.gradient(loss, w))
        w.assign_sub(rate * speed)
        return loss

    x = on_gpu(1, 2, 3)
    for n in range(1, 7):
        step(x, 0.1 / n)
    gc.collect()
    del log[:]
    for n in range(1, 4):
        step(x, 0.01 / n)
    assert not [line for line in log if "synchronize" in line or "download" in line]
    assert not [line for line in log if line.startswith(("memory", "free"))]
    wanted = ["upload memory", "launch graph"] * 3
    assert [" ".join(line.split()[:2])[:13].rstrip("0123456789") for line in log] == [
        x[:13].rstrip() for x in wanted
    ]


def test_two_runs_ask_for_the_same(log: list[str]) -> None:
    def run() -> list[str]:
        w = variable(1, 2, 3)
        step = tj.function(lambda x: w.assign_sub(0.1 * x))
        start = len(log)
        for n in range(4):
            step(on_gpu(n, n, n))
        gc.collect()
        return [re.sub(r"[0-9]+", "", line) for line in log[start:]]

    run()
    assert run() == run()
