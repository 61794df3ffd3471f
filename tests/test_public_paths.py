"""Pickles name public paths; those of before are refused in words."""

from __future__ import annotations

import copy
import inspect
import io
import pickle
import pickletools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tapejit as tj

NAMESPACES = {
    "tapejit": tj,
    "tapejit.nn": tj.nn,
    "tapejit.nn.initializers": tj.nn.initializers,
    "tapejit.optimizers": tj.optimizers,
    "tapejit.optimizers.schedules": tj.optimizers.schedules,
    "tapejit.metrics": tj.metrics,
    "tapejit.callbacks": tj.callbacks,
    "tapejit.data": tj.data,
    "tapejit.random": tj.random,
}
CLASSES = {
    f"{path}.{name}": getattr(namespace, name)
    for path, namespace in NAMESPACES.items()
    for name in namespace.__all__
    if inspect.isclass(getattr(namespace, name))
}
PUBLIC = {*CLASSES, "tapejit.optimizers.ByVariable"}


def trained() -> Any:
    model = tj.nn.Sequential(
        [tj.nn.Dense(4, activation="relu"), tj.nn.BatchNorm(), tj.nn.Dropout(0.5)]
    )
    optimizer = tj.optimizers.Adam(tj.optimizers.schedules.Constant(0.1))
    x = tj.ones((2, 3))
    with tj.GradientTape() as tape:
        loss = tj.sum(model(x))
    weights = model.trainable_variables
    optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
    return model, optimizer


OBJECTS: dict[str, Callable[[], Any]] = {
    "tensor": lambda: tj.asarray([1.0, 2.0]),
    "variable": lambda: tj.Variable([1.0], constraint=tj.abs, name="v"),
    "generator": lambda: tj.random.Generator(7),
    "spec": lambda: tj.TensorSpec([None, 2], "float32"),
    "choice": lambda: tj.UnconnectedGradients.ZERO,
    "training": trained,
    "attention": lambda: tj.nn.MultiHeadAttention(2, 4),
    "convolution": lambda: tj.nn.Conv2D(3, 2, activation=tj.nn.gelu),
    "initializer": lambda: tj.nn.initializers.he_normal(),
    "metrics": lambda: [tj.metrics.Mean(), tj.metrics.Accuracy()],
    "callback": lambda: tj.callbacks.EarlyStopping(),
    "history": lambda: tj.History(),
    "error": lambda: tj.ShapeError("a shape"),
}


def named(data: bytes) -> set[str]:
    """The names of tapejit that a pickle looks up."""
    found: set[str] = set()
    strings: list[str] = []
    memo: list[str] = []
    for op, argument, _ in pickletools.genops(data):
        if op.name in ("SHORT_BINUNICODE", "BINUNICODE"):
            strings.append(argument)
        elif op.name == "MEMOIZE":
            memo.append(strings[-1] if strings else "")
        elif op.name in ("BINGET", "LONG_BINGET"):
            strings.append(memo[argument])
        elif op.name == "STACK_GLOBAL":
            found.add(".".join(strings[-2:]))
    return {name for name in found if name.startswith("tapejit")}


@pytest.mark.parametrize("path", CLASSES)
def test_a_public_class_has_its_public_path(path: str) -> None:
    cls = CLASSES[path]
    assert f"{cls.__module__}.{cls.__qualname__}" in PUBLIC
    assert named(pickle.dumps(cls)) == {f"{cls.__module__}.{cls.__qualname__}"}
    assert pickle.loads(pickle.dumps(cls)) is cls


@pytest.mark.parametrize("name", OBJECTS)
def test_what_is_pickled_names_public_paths(name: str) -> None:
    data = pickle.dumps(OBJECTS[name]())
    functions = {"tapejit.abs", "tapejit.nn.relu", "tapejit.nn.gelu"}
    own = {"tapejit.base.errors._restored"} if name == "error" else set()
    assert named(data) <= PUBLIC | functions | own
    assert named(data)
    pickle.loads(data)


def test_they_are_what_they_were() -> None:
    generator = tj.random.Generator(7)
    generator.normal(3)
    for other in (pickle.loads(pickle.dumps(generator)), copy.deepcopy(generator)):
        assert other.seed == 7
        np.testing.assert_array_equal(
            other.normal(2), copy.deepcopy(generator).normal(2)
        )
    model, optimizer = pickle.loads(pickle.dumps(trained()))
    assert int(optimizer._iterations) == 1
    assert type(model) is tj.nn.Sequential


@pytest.mark.parametrize(
    "path", ["tapejit.api.variable Variable", "tapejit.kits.nn.layers Dense"]
)
def test_pickles_of_before_say_why_they_cannot_be_loaded(path: str) -> None:
    module, name = path.split()
    data = io.BytesIO(f"c{module}\n{name}\n.".encode())
    with pytest.raises(ModuleNotFoundError, match=r"earlier tapejit.*tj\.save"):
        pickle.load(data)


def test_other_modules_that_are_not_there_are_python_s_business() -> None:
    with pytest.raises(
        ModuleNotFoundError, match=r"No module named 'tapejit\.nowhere'"
    ):
        __import__("tapejit.nowhere")
