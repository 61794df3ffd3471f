"""The same function hosted by LLVM alone and by Numba: the same bits."""

from __future__ import annotations

import sys
from weakref import WeakValueDictionary

import numpy as np
import pytest

import tapejit as tj
from tapejit.runtime import executable
from tapejit.runtime.compiled import Hosted
from tapejit.targets.cpu.machine import objects

from .golden_programs import PROGRAMS


def loss_and_gradient(x: tj.Tensor, w: tj.Tensor) -> tuple[tj.Tensor, tj.Tensor]:
    with tj.GradientTape() as tape:
        tape.watch(w)
        loss = tj.sum(tj.tanh(x @ w) ** 2)
    return loss, tape.gradient(loss, w)


def arguments() -> tuple[tj.Tensor, tj.Tensor]:
    rng = np.random.default_rng(3)
    x = rng.standard_normal((70, 33)).astype(np.float32)
    return tj.asarray(x), tj.asarray(rng.standard_normal((33, 9)).astype(np.float32))


def test_numba_hosts_functions_with_the_same_bits() -> None:
    with tj.config.override(native=True):
        expected = tj.function(loss_and_gradient)(*arguments())
    with tj.config.override(native=True, host="numba"):
        got = tj.function(loss_and_gradient)(*arguments())
    assert "numba" in sys.modules
    for ours, theirs in zip(got, expected, strict=True):
        assert np.asarray(ours).tobytes() == np.asarray(theirs).tobytes()


@pytest.fixture
def hosted(monkeypatch: pytest.MonkeyPatch) -> list[Hosted]:
    """What hosts have made for this process only."""
    made: list[Hosted] = []
    before = Hosted.__init__

    def counted(self: Hosted, module: object, symbol: str) -> None:
        made.append(self)
        before(self, module, symbol)

    monkeypatch.setattr(Hosted, "__init__", counted)
    return made


@pytest.mark.parametrize("name", PROGRAMS)
def test_numba_hosts_the_golden_programs(name: str, hosted: list[Hosted]) -> None:
    results = []
    for host in ("llvm", "numba"):
        with tj.config.override(native=True, host=host, cache=False):
            function, *given = PROGRAMS[name]()
            results.append(tj.tree.leaves(function(*given)))
        assert len(hosted) == (host == "numba")
    for ours, theirs in zip(*results, strict=True):
        assert np.asarray(ours).tobytes() == np.asarray(theirs).tobytes()


def test_where_objects_cannot_be_kept_code_is_made_in_the_process(
    monkeypatch: pytest.MonkeyPatch, hosted: list[Hosted]
) -> None:
    with tj.config.override(native=True):
        expected = tj.function(loss_and_gradient)(*arguments())

    def refuse(*_: object, **__: object) -> None:
        raise objects.ObjectError("no objects here")

    monkeypatch.setattr("tapejit.targets.cpu.machine.module_chunks.joined", refuse)
    # The code from above is not to be found again.
    monkeypatch.setattr(executable, "EXECUTABLES", WeakValueDictionary())
    with tj.config.override(native=True, cache=False):
        got = tj.function(loss_and_gradient)(*arguments())
    assert hosted
    np.testing.assert_array_equal(np.asarray(got[1]), np.asarray(expected[1]))
