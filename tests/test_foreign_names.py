"""Names from other libraries lead to tapejit's spelling, and every spelling runs."""

from __future__ import annotations

import numpy as np
import pytest

import tapejit as tj
from tapejit.api.foreign_names import SPELLINGS, hint


@pytest.mark.parametrize("name", SPELLINGS)
def test_the_name_is_not_tapejits_own(name: str) -> None:
    assert name not in tj.__all__, "tapejit has this name: drop it from SPELLINGS"


@pytest.mark.parametrize(("name", "spelling"), SPELLINGS.items(), ids=SPELLINGS)
def test_the_suggestion_runs(name: str, spelling: str) -> None:
    x = tj.asarray([[1.0, 2.0], [3.0, 4.0]])
    v = tj.Variable([1.0, 2.0])
    with tj.GradientTape() as tape:
        y = x * v
        scope = {
            "tj": tj,
            "x": x,
            "y": y,
            "v": v,
            "a": np.ones(3),
            "f": lambda x: x * x,
            "tape": tape,
        }
        ways = spelling.split(" or ")
        assert all(ways), "a suggestion is something to write"
        for way in ways:
            exec(way, scope)


def test_asking_for_one_names_the_spelling() -> None:
    with pytest.raises(AttributeError, match=r"reduce_mean.*tj\.mean\(x, axis=0\)"):
        _ = tj.reduce_mean
    with pytest.raises(AttributeError, match=r"convert_to_tensor.*tj\.asarray"):
        _ = tj.convert_to_tensor
    with pytest.raises(AttributeError, match=r"'cat'.*tj\.concat"):
        _ = tj.cat


def test_a_name_nobody_knows_gets_no_advice() -> None:
    assert hint("frobnicate") is None
    with pytest.raises(AttributeError) as caught:
        _ = tj.frobnicate
    assert str(caught.value) == "tapejit has no attribute 'frobnicate'"


def test_hasattr_and_getattr_behave() -> None:
    assert not hasattr(tj, "reduce_mean")
    assert getattr(tj, "reduce_mean", None) is None


def test_the_table_covers_each_library() -> None:
    tensorflow = {"reduce_sum", "reduce_max", "convert_to_tensor", "cast", "gather"}
    torch = {"tensor", "cat", "unsqueeze", "mm", "bmm", "no_grad", "detach", "clamp"}
    jax = {"jacfwd", "jacrev", "tree_map", "device_put"}
    numpy = {"array", "concatenate", "transpose", "absolute", "power", "true_divide"}
    assert tensorflow | torch | jax | numpy <= set(SPELLINGS)
    assert len(SPELLINGS) >= 60
