"""CPUTuning is about speed alone: no number of it changes a bit of a result (D47)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import fields
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import pytest
from limits import set_limits

import tapejit as tj
from tapejit.runtime import executable
from tapejit.targets.cpu.target import CPU
from tapejit.targets.cpu.tuning import CPUTuning

from .compiled import gradients


def network(x: Any, w: Any, b: Any) -> Any:
    """Matmuls with epilogues, long in k, and sums of what they compute."""
    return tj.nn.relu(x @ w + b) @ tj.matrix_transpose(w)


def attention(q: Any, k: Any, v: Any) -> Any:
    """Matmuls in tiles of rows."""
    return tj.nn.softmax(q @ tj.matrix_transpose(k), axis=-1) @ v


def normed(x: Any, w: Any) -> Any:
    centred = x - tj.mean(x, axis=-1, keepdims=True)
    spread = tj.mean(centred * centred, axis=-1, keepdims=True)
    return tj.erf(centred / tj.sqrt(spread + 1e-5)) * w


def convolution(x: Any, w: Any) -> Any:
    return tj.nn.relu(tj.nn.conv2d(x, w, padding="same"))


def dots(x: Any, y: Any) -> Any:
    return tj.einsum("ik,jk->ij", x, y)


def contraction(x: Any, w: Any) -> Any:
    """Small matmuls, which are loops among loops."""
    return tj.einsum("ijk,ijkl->ijl", x, w)


def rows(x: Any) -> Any:
    """A gather, whose gradient is a scatter, a scan and placed parts."""
    taken = x[np.arange(4000) * 7 % 500]
    found = tj.cumulative_sum(taken, axis=0)
    return tj.concat([found[i::12] for i in range(12)], axis=0)


def searched(x: Any) -> Any:
    first = tj.argmax(x, axis=-1).astype("f4")[:, None] * x
    edges = tj.linspace(-2, 2, 30)
    return tj.top_k(first, 9).values + tj.searchsorted(edges, x[:, :9]).astype("f4")


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "network": (network, ((300, 500), (500, 210), (210,))),
    "transposed": (lambda x, y: tj.matrix_transpose(x) @ y, ((700, 90), (700, 130))),
    "attention": (attention, ((2, 3, 200, 24),) * 3),
    "normed": (normed, ((400, 300), (300,))),
    "convolution": (convolution, ((4, 20, 20, 12), (3, 3, 12, 20))),
    "dots": (dots, ((3, 1000), (500, 1000))),
    "contraction": (contraction, ((30, 20, 9), (30, 20, 9, 14))),
    "rows": (rows, ((500, 33),)),
    "searched": (searched, ((60, 300),)),
    "long": (lambda x: tj.tanh(x) + tj.exp(x), ((2_500_000,),)),
}


@pytest.fixture(autouse=True)
def _code_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> Any:
    with tj.config.override(native=True, cache=False):
        yield


def bits(name: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Digests of what a program and its gradients are with the present numbers."""
    monkeypatch.setattr(executable, "EXECUTABLES", WeakValueDictionary())
    body, shapes = PROGRAMS[name]
    rng = np.random.default_rng(0)
    arrays = [tj.asarray(rng.standard_normal(x).astype("f4")) for x in shapes]
    found = tj.function(gradients(body))(*arrays)
    return [hashlib.sha256(x.numpy().tobytes()).hexdigest() for x in found]


# What processors demand is no choice: other code would be wrong, or none.
DEMANDED = ("register_part_bytes", "streamed_store_bytes")
NAMES = [x.name for x in fields(CPUTuning) if x.name not in DEMANDED]


def scaled(name: str, factor: float) -> float:
    """A field's number, as large as that; whole if it is."""
    number = getattr(CPUTuning(), name)
    return type(number)(max(1, number * factor))


@pytest.mark.parametrize("name", PROGRAMS)
def test_tuning_changes_no_bit(
    name: str, monkeypatch: pytest.MonkeyPatch, full: bool
) -> None:
    expected = bits(name, monkeypatch)
    groups = [[x] for x in NAMES] if full else [NAMES[0::2], NAMES[1::2]]
    for group in groups:
        for factor in (1 / 8, 8) if full else (1 / 4, 4):
            with monkeypatch.context() as patch:
                set_limits(patch, **{x: scaled(x, factor) for x in group})
                assert bits(name, patch) == expected, (group, factor)
    assert CPUTuning() == CPU.tuning


@pytest.mark.parametrize(
    ("name", "limits"),
    [
        ("network", {"matmul_block_terms": 128}),
        ("normed", {"sum_chain_terms": 2}),
        ("normed", {"split_polynomial_coefficients": 3}),
        ("dots", {"dot_bytes": 32}),
        ("network", {"sum_unit_most_bytes": 128}),
    ],
)
def test_a_number_that_fixes_bits_is_found(
    name: str, limits: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is in `numerics` would not pass the test above."""
    expected = bits(name, monkeypatch)
    set_limits(monkeypatch, **limits)
    assert bits(name, monkeypatch) != expected
