"""What lies across the vector axis and is used again is loaded once, by transposes.

Where lanes are samples, a vector of one feature is a load for each lane. A small matmul
uses each feature of a sample several times, and so do its gradients.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from agreement import assert_agrees

import tapejit as tj
from native.compiled import gradients
from tapejit.base.tolerance import COMPOSED
from tapejit.targets.cpu.target import CPU


@pytest.fixture(autouse=True)
def native() -> Iterator[None]:
    """Memory is NaN until it is written."""
    with tj.config.override(native=True, cache=False, compile="now", check=True):
        yield


def samples(rows: int, features: int, dtype: Any) -> list[tj.Tensor]:
    rng = np.random.default_rng(rows * 100 + features)
    shapes = ((rows, features), (features, 6), (6, 1))
    drawn = [(rng.standard_normal(x) / 2).astype("f4") for x in shapes]
    return [tj.astype(tj.asarray(x), dtype) for x in drawn]


def network(x: Any, w: Any, v: Any) -> Any:
    return tj.tanh(tj.tanh(x @ w) @ v)


def distances(x: Any, w: Any, v: Any) -> Any:
    """Far apart along two axes: `x` in a view of three, `w` in steps of six."""
    apart = x[:, None, :] - tj.permute_dims(w, (1, 0))[None]
    return tj.mean(tj.sqrt(tj.mean(apart * apart, -1) + 1) * v[:, 0], 1)


def stacked(x: Any, w: Any, v: Any) -> Any:
    """A matmul for each sample: rows of the stack are far apart along both axes."""
    both = x[:, :, None] * v[None, :, 0][:, None]
    return tj.tanh(both @ tj.tanh(tj.permute_dims(both * w, (0, 2, 1))))


def assert_native_agrees(program: Callable[..., Any], given: list[tj.Tensor]) -> None:
    whole = gradients(program)
    for ours, theirs in zip(tj.function(whole)(*given), whole(*given), strict=True):
        assert ours.dtype == theirs.dtype
        assert_agrees(COMPOSED, ours.numpy(), theirs.numpy())


@pytest.mark.parametrize("program", [network, distances, stacked])
@pytest.mark.parametrize("features", [1, 3, 16, 17, 40])
def test_any_number_of_rows_and_features(
    program: Callable[..., Any], features: int
) -> None:
    for rows in (1, 15, 33):
        assert_native_agrees(program, samples(rows, features, tj.float32))


@pytest.mark.parametrize("dtype", [tj.float64, tj.float16, tj.bfloat16])
def test_any_width_of_numbers(dtype: Any) -> None:
    for features in (3, 16, 21):
        assert_native_agrees(network, samples(37, features, dtype))


def test_rows_of_a_slice() -> None:
    def program(x: Any, w: Any, v: Any) -> Any:
        return network(x[3:, 1:-2], w[1:-2], v)

    assert_native_agrees(program, samples(70, 20, tj.float32))


def test_threads_give_the_same_bits() -> None:
    step, given = tj.function(gradients(network)), samples(20_000, 16, tj.float32)
    before = tj.get_num_threads()
    try:
        found = []
        for threads in (1, 2, 3):
            tj.set_num_threads(threads)
            found.append([x.numpy() for x in step(*given)])
    finally:
        tj.set_num_threads(before)
    for other in found[1:]:
        for x, y in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(x, y)


def lone_loads(step: Any, given: list[tj.Tensor]) -> int:
    """How many numbers are loaded into a vector one by one."""
    return len(re.findall("insertelement <16 x float>", step.llvm(*given)))


def test_no_lane_is_loaded_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    given = samples(20_000, 16, tj.float32)
    assert not lone_loads(tj.function(gradients(network)), given)
    monkeypatch.setattr(CPU, "tuning", CPU.tuning.__class__(copied_loads_bytes=0))
    again = tj.function(lambda *x: gradients(network)(*x))
    assert lone_loads(again, given) > 16
