"""Calls that do not fit say how they are written."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import tapejit as tj

INDICES = tj.asarray([0, 1])
KEYWORDS: dict[str, Callable[[Any], Any]] = {
    "calls it axis": lambda x: tj.sum(x, axes=0),
    "it axis": lambda x: x.sum(axes=1),
    "axis": lambda x: tj.split(x, 2, dim=0),
    "calls it correction": lambda x: tj.std(x, ddof=1),
    "calls it max": lambda x: tj.clip(x, a_max=1),
    "calls it rate": lambda x: tj.nn.Dropout(p=0.5),
    "calls it use_bias": lambda x: tj.nn.Dense(3, bias=False),
    "calls it units": lambda x: tj.nn.Dense(out_features=3),
    "calls it count": lambda x: tj.nn.Embedding(num_embeddings=3, embedding_dim=4),
    "calls it shape": lambda x: tj.random.normal(size=(2, 3)),
    "calls it mean": lambda x: tj.random.normal(loc=0.0, scale=1.0, size=(2, 3)),
    "calls it minval": lambda x: tj.random.uniform(low=0.0, high=1.0),
    "calls it size": lambda x: tj.data.batches(x, batch_size=1),
    "calls it in_axes": lambda x: tj.vmap(tj.sum, in_dims=0),
    "did you mean activation=?": lambda x: tj.nn.Dense(3, activate=tj.tanh),
    "did you mean kernel_size=?": lambda x: tj.nn.Conv2D(3, kernel=3),
    "did you mean fill_value=?": lambda x: tj.full((2,), fill=3),
    "mean fill_value=?": lambda x: tj.full((2,), value=3),
    "did you mean dtype=?": lambda x: tj.zeros((2,), type=int),
    "did you mean weight_decay=?": lambda x: tj.optimizers.AdamW(weightdecay=0.1),
    "did you mean epochs=?": lambda x: tj.fit(epoch=3),  # type: ignore[call-arg]
}
POSITIONS: dict[str, Callable[[Any], Any]] = {
    "write tj.concat([x, y])": lambda x: tj.concat(x, x),
    "tj.concat([x, y])": lambda x: tj.concat(x, x, x),
    "concat([x, y])": lambda x: tj.concat(x, x, axis=0),
    "write tj.stack([x, y])": lambda x: tj.stack(x, x),
    "write tj.vstack([x, y])": lambda x: tj.vstack(x, x),
    "write tj.hstack([x, y])": lambda x: tj.hstack(x, x),
    "write tj.reshape(x, (3, 2))": lambda x: tj.reshape(x, 3, 2),
    "write tj.permute_dims(x, (1, 0))": lambda x: tj.permute_dims(x, 1, 0),
    "write tj.transpose(x, (1, 0))": lambda x: tj.transpose(x, 1, 0),
    "write tj.broadcast_to(x, (2, 3))": lambda x: tj.broadcast_to(x, 2, 3),
    "write tj.tile(x, (2, 3))": lambda x: tj.tile(x, 2, 3),
    "write uniform((3,), 0, 1)": lambda x: tj.random.uniform(0, 1, (3,)),
    "write normal((2, 3), 0.0, 1.0)": lambda x: tj.random.normal(0.0, 1.0, (2, 3)),
    "or stddev=(3,)": lambda x: tj.random.normal(3, 0, (3,)),
    "write laplace((3,), 0, 1)": lambda x: tj.random.laplace(0, 1, (3,)),
    "variables go to apply_gradients": lambda x: tj.optimizers.Adam([x], 1e-3),
    "write tj.where(condition, x, y)": lambda x: tj.where(x > 0, x),
    "tj.nonzero(condition)": lambda x: tj.where(x > 0),
    "tensor comes first: tj.take(x, indices)": lambda x: tj.take(INDICES, x),
    "first: tj.take_along_axis(x, indices)": lambda x: tj.take_along_axis(INDICES, x),
}


@pytest.mark.parametrize("said", KEYWORDS)
def test_keywords_that_are_not_there(said: str) -> None:
    call = KEYWORDS[said]
    for run in (call, tj.function(call)):
        with pytest.raises(TypeError, match="unexpected keyword argument") as caught:
            run(tj.ones((2, 3)))
        assert said in str(caught.value)


@pytest.mark.parametrize("said", POSITIONS)
def test_arguments_at_other_places(said: str) -> None:
    call = POSITIONS[said]
    for run in (call, tj.function(call)):
        with pytest.raises((TypeError, IndexError)) as caught:
            run(tj.ones((2, 3)))
        assert said in str(caught.value)


def test_errors_of_the_body_stay_as_they_are() -> None:
    """A call that fits gets no hint, nor does a keyword that is like no other."""
    with pytest.raises(TypeError) as caught:
        tj.concat([tj.ones(2), "a"], axis=0)
    assert "write" not in str(caught.value)
    with pytest.raises(TypeError, match="unexpected keyword argument 'q'"):
        tj.nn.Dense(3, q=1)
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        tj.sum()


def test_users_modules_are_left_alone() -> None:
    class Model(tj.nn.Module):
        def __init__(self, hidden: int) -> None:
            self.hidden = hidden

    assert not hasattr(Model.__init__, "__wrapped__")


def test_signatures_show_what_is_taken() -> None:
    assert list(inspect.signature(tj.reshape).parameters) == ["x", "shape", "copy"]
    assert list(inspect.signature(tj.broadcast_to).parameters) == ["x", "shape"]
    assert "units" in inspect.signature(tj.nn.Dense).parameters
