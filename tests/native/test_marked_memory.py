"""With checks on, memory that nobody has written yet is NaN: reading it shows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from fuzz.faults import with_fault

import tapejit as tj
from tapejit.loops import check
from tapejit.targets.cpu import module

pytestmark = pytest.mark.usefixtures("with_native_code", "_checked")


@pytest.fixture
def _checked() -> Iterator[None]:
    tj.config.update(check=True, cache=False)
    yield
    tj.config.update(check=False, cache=True)


def normal(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype("f4")


def blocks(a: Any, b: Any, x: Any, scale: Any) -> Any:
    with tj.GradientTape() as tape:
        tape.watch([a, b, x])
        loss = tj.sum(tj.prod(tj.sin(a @ b + x) * scale, axis=(0, 1)))
    return tape.gradient(loss, [a, b, x])


def test_private_memory_that_is_read_too_early_shows(monkeypatch: Any) -> None:
    monkeypatch.setattr(check, "check_plan", lambda *_: None)  # which would refuse it
    shapes = ((2, 2, 127), (127, 208), (208,), (2, 2, 208))
    arguments = [tj.asarray(normal(*shape)) for shape in shapes]
    with with_fault("keep_apart"):
        *_, by_x = tj.function(blocks)(*arguments)
    assert np.any(np.isnan(by_x.numpy()))
    *_, by_x = tj.function(lambda *xs: blocks(*xs))(*arguments)
    assert np.all(np.isfinite(by_x.numpy()))


def two_kernels(x: Any) -> Any:
    """The second one needs all of what the first one makes, at once."""
    total = tj.cumulative_sum(x, axis=0)
    flipped = tj.cumulative_sum(tj.flip(total, axis=0) * 2, axis=1)
    return flipped, tj.astype(flipped, "int32"), flipped > 0


def test_outputs_that_no_kernel_writes_show(monkeypatch: Any) -> None:
    monkeypatch.setattr(module.KernelFunctions, "calls", lambda self, stage, name: [])
    x = tj.asarray(normal(40, 30))
    for _ in range(2):
        flipped, numbers, flags = tj.function(two_kernels)(x)
        assert np.all(np.isnan(flipped.numpy()))
        assert np.all(numbers.numpy() == -1)
        assert np.all(flags.numpy().view(np.uint8) == 255)


def test_a_part_of_the_arena_that_no_kernel_writes_shows(monkeypatch: Any) -> None:
    """Also if an earlier call, or an earlier kernel, has left numbers there."""
    x = tj.asarray(normal(40, 30))
    calls = module.KernelFunctions.calls

    def all_but_first(self: Any, stage: Any, name: str) -> Any:
        return [] if stage[0].kernel.number == 0 else calls(self, stage, name)

    monkeypatch.setattr(module.KernelFunctions, "calls", all_but_first)
    function = tj.function(two_kernels)
    for _ in range(3):
        flipped, *_ = function(x)
        assert np.all(np.isnan(flipped.numpy()))
    assert len(function.kernels(x)) > 1


def test_a_variable_that_is_written_in_place_keeps_its_value() -> None:
    variable = tj.Variable(normal(300, 40))
    x = tj.asarray(normal(300, 40))
    expected = variable.numpy() - x.numpy()

    @tj.function
    def step(x: Any) -> None:
        variable.assign_sub(x)

    step(x)
    np.testing.assert_array_equal(variable.numpy(), expected)
    held = variable.value()  # so the next one is written elsewhere
    step(x)
    np.testing.assert_array_equal(held.numpy(), expected)
    np.testing.assert_array_equal(variable.numpy(), expected - x.numpy())


def test_code_without_checks_marks_nothing() -> None:
    x = tj.asarray(normal(40, 30))
    assert "memset" in tj.function(two_kernels).llvm(x)
    with tj.config.override(check=False):
        assert "memset" not in tj.function(two_kernels).llvm(x)


def test_code_with_checks_and_without_is_not_shared(monkeypatch: Any) -> None:
    x = tj.asarray(normal(40, 30))
    plain = tj.function(two_kernels)
    with tj.config.override(check=False):
        expected = plain(x)
    monkeypatch.setattr(module.KernelFunctions, "calls", lambda self, stage, name: [])
    found = tj.function(two_kernels)(x)
    assert np.all(np.isfinite(expected[0].numpy()))
    assert np.all(np.isnan(found[0].numpy()))
