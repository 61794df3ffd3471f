"""Names from other libraries lead to tapejit's spelling, and every spelling runs."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

import tapejit as tj
from tapejit.array.numpy import names
from tapejit.tensor.foreign_names import (
    ATTRIBUTES,
    MIXED_PRECISION,
    RANDOM,
    SPELLINGS,
    hint,
)
from tests.public_calls import ALIASES


@pytest.mark.parametrize("name", SPELLINGS)
def test_the_name_is_not_tapejits_own(name: str) -> None:
    assert name not in tj.__all__, "tapejit has this name: drop it from SPELLINGS"


LINES = [
    *SPELLINGS.items(),
    *RANDOM.items(),
    *MIXED_PRECISION.items(),
    *ATTRIBUTES.items(),
]


@pytest.mark.parametrize(("name", "spelling"), LINES)
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


def test_a_method_that_is_a_function_here_names_it() -> None:
    with pytest.raises(AttributeError, match=r"'exp'; there is the function tj\.exp"):
        tj.ones(2).exp()
    with pytest.raises(AttributeError, match=r"'relu'; write tj\.nn\.relu\(x\)"):
        tj.ones(2).relu()
    with pytest.raises(AttributeError, match=r"no attribute 'data'$"):
        _ = tj.ones(2).data


def test_optimizers_of_other_libraries() -> None:
    adam = tj.optimizers.Adam()
    with pytest.raises(AttributeError, match=r"'step'; write .*apply_gradients"):
        adam.step()
    with pytest.raises(AttributeError, match="there are none to clear"):
        adam.zero_grad()
    assert not hasattr(adam, "frobnicate")
    assert pickle.loads(pickle.dumps(adam)).learning_rate == 0.001


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
    numpy = {"unique", "around", "rint", "fabs", "asanyarray"}
    assert tensorflow | torch | jax | numpy <= set(SPELLINGS)
    assert len(SPELLINGS) >= 60


@pytest.mark.parametrize("name", RANDOM)
def test_names_of_random_numbers(name: str) -> None:
    assert name not in tj.random.__all__
    with pytest.raises(AttributeError, match=r"tapejit\.random has no .*; write tj\."):
        getattr(tj.random, name)


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_names_of_tensors(name: str) -> None:
    for thing in (tj.ones(2), tj.Variable(1.0)):
        with pytest.raises(AttributeError, match=rf"{name}'; write "):
            getattr(thing, name)
        assert not hasattr(thing, name)
    with pytest.raises(AttributeError, match=r"frobnicate'$"):
        _ = tj.ones(2).frobnicate


def test_tensors_of_a_trace_give_hints_too() -> None:
    with pytest.raises(AttributeError, match="stop_gradient"):
        tj.function(lambda x: x.detach())(tj.ones(2))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda x: tj.sum(x, dim=0), "axis"),
        (lambda x: x.sum(dim=0), "axis"),
        (lambda x: tj.mean(x, keepdim=True), "keepdims"),
        (lambda x: tj.std(x, dim=0), "axis"),
        (lambda x: tj.median(x, dim=0), "axis"),
        (lambda x: x.argmax(dim=0), "axis"),
        (lambda x: tj.concat([x], dim=0), "axis"),
        (lambda x: tj.stack([x], dim=0), "axis"),
        (lambda x: tj.nn.softmax(x, dim=0), "axis"),
        (lambda x: tj.sum(input=x), "by position"),
        (lambda x: tj.optimizers.Adam(lr=0.1), "learning_rate"),
        (lambda x: tj.optimizers.SGD(lr=0.1), "learning_rate"),
        (lambda x: tj.optimizers.AdamW(0.1, betas=(0.9, 0.99)), "beta_1"),
        (lambda x: tj.optimizers.Adam(params=[x]), "apply_gradients"),
    ],
)
def test_keywords_of_other_libraries(call: Any, said: str) -> None:
    for run in (call, tj.function(call)):
        with pytest.raises(TypeError, match="unexpected keyword") as caught:
            run(tj.ones((2, 3)))
        assert said in str(caught.value)


def test_unknown_keywords_stay_pythons_errors() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'frobnicate'"):
        tj.sum(tj.ones(2), frobnicate=1)
    with pytest.raises(TypeError, match="unexpected keyword argument 'frobnicate'"):
        tj.optimizers.Adam(frobnicate=1)


def test_names_of_layers_and_their_parts() -> None:
    for name in ("Linear", "LSTM", "GRU", "Conv2DTranspose"):
        with pytest.raises(AttributeError, match="; write tj"):
            getattr(tj.nn, name)
    with pytest.raises(AttributeError, match=r"kernel'; use \.weight"):
        _ = tj.nn.Dense(3).kernel


# NumPy's spellings are names of tapejit


@pytest.mark.parametrize(("name", "ours"), ALIASES.items())
def test_numpys_name_is_the_same_function(name: str, ours: str) -> None:
    assert getattr(tj, name) is getattr(tj, ours)
    assert callable(getattr(np, name)), "NumPy has this name"


def test_every_name_is_an_alias_or_a_function_of_its_own() -> None:
    own = {"cumprod", "cumsum", "dot", "transpose"}
    assert set(tj._FUNCTIONS[names.__name__].split()) == set(ALIASES) | own


def test_functions_with_numpys_own_rules() -> None:
    x = np.arange(24.0).reshape(2, 3, 4)
    t = tj.asarray(x)
    for name, args in [
        ("transpose", ()),
        ("transpose", ((1, 0, 2),)),
        ("cumsum", ()),
        ("cumsum", (1,)),
        ("cumprod", ()),
        ("cumprod", (-1,)),
    ]:
        expected = getattr(np, name)(x, *args)
        ours, theirs = getattr(tj, name), getattr(np, name)
        for found in (ours(t, *args), theirs(t, *args), tj.function(ours)(t, *args)):
            np.testing.assert_allclose(found, expected)
    pairs = [(x[0, 0], x[1, 1]), (x[0], x[0].T), (x, x[0, 0]), (2.0, x), (x, x.mT)]
    for a, b in pairs:
        np.testing.assert_allclose(tj.dot(a, b), np.dot(a, b))
    tj.testing.check_grads(tj.dot, [x, x.mT.copy()])
