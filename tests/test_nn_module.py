"""Modules: what they hold, their names and state, copies, and how they look."""

from __future__ import annotations

import copy
import pickle
from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import tapejit as tj

nn = tj.nn


class Block(nn.Module):
    """Without a call of the base's `__init__`."""

    def __init__(self, value: float = 1.0) -> None:
        self.w = tj.Variable(value, name="w")
        self.count = tj.Variable(0, trainable=False, name="count")

    def __call__(self, x: Any) -> Any:
        return self.w * x


Pair = namedtuple("Pair", "left right")


class Nest(nn.Module):
    def __init__(self) -> None:
        self.title = "nest"
        self.blocks = [Block(1.0), (Block(2.0), None)]
        self.by_name = {"b": Block(3.0), "a": tj.Variable(4.0)}
        self.pair = Pair(tj.Variable(5.0), right=[])
        self.alone = tj.Variable(6.0)
        self.noise = tj.random.Generator(3)
        self.table = np.zeros(3)


NAMES = [
    *("blocks.0.w", "blocks.0.count", "blocks.1.0.w", "blocks.1.0.count"),
    *("by_name.a", "by_name.b.w", "by_name.b.count", "pair.left", "alone"),
]


# What belongs to a module


def test_variables_are_found_in_every_container_in_order() -> None:
    nest = Nest()
    assert [name for name, _ in nest.named_variables()] == NAMES
    assert [float(v) for v in nest.trainable_variables] == [1, 2, 4, 3, 5, 6]
    assert [v.name for v in nest.non_trainable_variables] == ["count"] * 3
    assert [v for _, v in nest.named_variables()] == nest.variables
    named = dict(nest.named_variables())
    assert named["by_name.b.w"] is nest.by_name["b"].w


def test_an_attribute_counts_from_when_it_is_set() -> None:
    block = Block()
    assert len(block.variables) == 2
    block.extra = [tj.Variable(1.0)]
    assert [name for name, _ in block.named_variables()] == ["w", "count", "extra.0"]
    del block.extra
    assert len(block.variables) == 2


def test_what_is_shared_counts_once() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            self.first = Block()
            self.again = [self.first, self.first.w]
            self.also = self.first.w

    assert [n for n, _ in Tied().named_variables()] == ["first.w", "first.count"]
    dense = nn.Dense(3, input_size=3)
    model = nn.Sequential([dense, nn.relu, dense])
    assert [n for n, _ in model.named_variables()] == [
        "layers.0.weight",
        "layers.0.bias",
    ]
    assert model.summary().parameters == 12


def test_parts_that_refer_to_their_owner() -> None:
    class Child(nn.Module):
        def __init__(self, parent: Any) -> None:
            self.parent = parent
            self.w = tj.Variable(1.0)

    class Parent(nn.Module):
        def __init__(self) -> None:
            self.child = Child(self)
            self.itself = self
            self.loop: list[Any] = [tj.Variable(2.0)]
            self.loop.append(self.loop)

    parent = Parent()
    assert [n for n, _ in parent.named_variables()] == ["child.w", "loop.0"]
    assert "..." in repr(parent)
    assert parent.summary().parameters == 2
    assert set(copy.deepcopy(parent).state_dict()) == {"child.w", "loop.0"}


def test_two_variables_of_one_name_are_an_error() -> None:
    block = Block()
    block.table = {1: tj.Variable(1.0), "1": tj.Variable(2.0)}
    assert len(block.variables) == 4
    with pytest.raises(tj.ArgumentError, match=r"both called 'table\.1'"):
        block.state_dict()


def test_a_dataclass_can_be_a_module() -> None:
    @dataclass(eq=False)
    class Line(nn.Module):
        slope: tj.Variable
        inner: nn.Module

        def __call__(self, x: Any) -> Any:
            return self.inner(self.slope * x)

    line = Line(tj.Variable(2.0), Block(3.0))
    assert [n for n, _ in line.named_variables()] == ["slope", "inner.w", "inner.count"]
    traced = tj.function(lambda x: line(x))
    assert float(traced(1.0)) == float(line(1.0)) == 6


# State


def test_state_is_copied_and_comes_back() -> None:
    nest = Nest()
    before = nest.state_dict()
    assert list(before) == [*NAMES, "noise"]
    assert before["blocks.0.count"].dtype == np.int32
    drawn = nest.noise.normal(4).numpy()
    for v in nest.variables:
        v.assign_add(1)
    assert float(before["alone"]) == 6
    assert nest.load_state_dict(before) == ([], [])
    after = nest.state_dict()
    for name, value in before.items():
        np.testing.assert_array_equal(after[name], value)
    np.testing.assert_array_equal(nest.noise.normal(4), drawn)
    before["alone"][...] = 100
    assert float(nest.alone) == 6


def test_a_state_of_tensors_or_variables_will_do() -> None:
    block, other = Block(1.0), Block(5.0)
    block.load_state_dict(dict(other.named_variables()))
    assert float(block.w) == 5
    other.w.assign(7.0)
    assert float(block.w) == 5
    block.load_state_dict({"w": tj.asarray(2.0), "count": 3})
    assert int(block.count) == 3


def test_a_state_that_does_not_fit_changes_nothing() -> None:
    layer = nn.Dense(2, input_size=3)
    before = layer.state_dict()
    wrong = {"weight": np.zeros((3, 3), np.float32), "wieght": np.zeros(2)}
    with pytest.raises(ValueError, match="load_state_dict: the state") as caught:
        layer.load_state_dict(wrong)
    text = str(caught.value)
    assert "missing     bias: f32[2]" in text
    assert "unexpected  wieght: f64[2]" in text
    assert "shape       weight: f32[3,2], given f32[3,3]" in text
    assert "strict=False" in text
    # The first name fits, the second does not: neither is taken.
    good = {"weight": np.ones((3, 2), np.float32), "bias": np.ones(2)}
    with pytest.raises(TypeError, match=r"dtype       bias: f32\[2\], given f64\[2\]"):
        layer.load_state_dict(good)
    with pytest.raises(TypeError):
        layer.load_state_dict(good, strict=False)
    for name, value in layer.state_dict().items():
        np.testing.assert_array_equal(value, before[name])


def test_names_on_one_side_only() -> None:
    layer = nn.Dense(2, input_size=3)
    state = {"weight": np.ones((3, 2), np.float32), "other": np.ones(1)}
    loaded = layer.load_state_dict(state, strict=False)
    assert loaded.missing == ["bias"]
    assert loaded.unexpected == ["other"]
    np.testing.assert_array_equal(layer.weight, state["weight"])


def test_a_layer_that_is_not_built_yet_is_named() -> None:
    model = nn.Sequential([nn.Dense(2, input_size=3), nn.Dense(1)])
    built = nn.Sequential([nn.Dense(2), nn.Dense(1)])
    built(tj.ones((1, 3)))
    with pytest.raises(tj.ArgumentError, match=r"layers\.1\.weight") as caught:
        model.load_state_dict(built.state_dict())
    assert "not built yet: layers.1" in str(caught.value)
    model(tj.ones((1, 3)))
    model.load_state_dict(built.state_dict())
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(model(x), built(x))


# Copies and pickles


@pytest.mark.parametrize(
    "twin_of",
    [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))],
    ids=["deepcopy", "pickle"],
)
def test_copies_are_independent_and_keep_what_is_shared(twin_of: Any) -> None:
    dense = nn.Dense(3, "tanh")
    model = nn.Sequential([dense, nn.Dropout(0.5), nn.BatchNorm(), dense, nn.Dense(2)])
    x = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    model(x, training=True)
    twin = twin_of(model)
    assert twin[0] is twin[3]
    assert not {id(v) for v in twin.variables} & {id(v) for v in model.variables}
    expected = model(x, training=True).numpy()
    np.testing.assert_array_equal(twin(x, training=True), expected)
    np.testing.assert_array_equal(twin(x), model(x))
    twin[0].weight.assign(tj.zeros((3, 3)))
    assert model[0].weight.numpy().any()
    assert [v.name for v in twin.variables] == [v.name for v in model.variables]


def test_a_layer_that_is_not_built_copies_too() -> None:
    layer = nn.Dense(2, generator=tj.random.Generator(5))
    twin = copy.deepcopy(layer)
    again = pickle.loads(pickle.dumps(layer))
    x = tj.ones((1, 3))
    np.testing.assert_array_equal(twin(x), layer(x))
    np.testing.assert_array_equal(again(x), layer(x))


# In functions


def test_a_module_is_an_argument_by_identity() -> None:
    @tj.function
    def apply(module: Any, x: Any) -> Any:
        return module(x)

    one, two = Block(2.0), Block(3.0)
    assert one != Block(2.0)
    assert {one: 1}[one] == 1
    for _ in range(2):
        assert float(apply(one, tj.asarray(1.0))) == 2
        assert float(apply(two, tj.asarray(1.0))) == 3
    assert apply.trace_count == 2
    one.w.assign(10.0)
    assert float(apply(one, tj.asarray(1.0))) == 10


def test_a_traced_call_method() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            self.dense = nn.Dense(2)
            self.drop = nn.Dropout(0.5)

        @tj.function
        def __call__(self, x: Any, training: bool = False) -> Any:
            return self.drop(self.dense(x), training)

    net = Net()
    x = tj.ones((4, 3))
    expected = net.dense(x).numpy()
    np.testing.assert_array_equal(net(x), expected)
    dropped = nn.Sequential([net])(x, training=True).numpy()
    assert set(np.unique(np.round(dropped / expected, 5))) <= {0.0, 2.0}
    assert len(net.variables) == 2


def test_loading_a_state_in_a_function() -> None:
    block = Block(1.0)

    @tj.function
    def step(value: Any) -> Any:
        block.load_state_dict({"w": value}, strict=False)
        return block(2.0)

    assert float(step(tj.asarray(4.0))) == 8
    assert float(step(tj.asarray(5.0))) == 10
    assert float(block.w) == 5


# How it looks


def test_the_tree() -> None:
    nest = Nest()
    nest.model = nn.Sequential([nn.Dense(2, "relu"), tj.nn.softmax])
    assert (
        repr(nest)
        == """Nest(
  blocks.0: Block(
    w: f32[]
    count: i32[]
  )
  blocks.1.0: Block(
    w: f32[]
    count: i32[]
  )
  by_name.a: f32[]
  by_name.b: Block(
    w: f32[]
    count: i32[]
  )
  pair.left: f32[]
  alone: f32[]
  model: Sequential(
    layers.0: Dense(2, activation=relu)
    layers.1: softmax
  )
)"""
    )
    assert repr(nn.Module()) == "Module()"


def test_the_summary() -> None:
    summary = Nest().summary()
    assert (summary.parameters, summary.trainable, summary.bytes) == (9, 6, 36)
    lines = str(summary).splitlines()
    assert lines[0].split() == ["name", "module", "variables", "parameters"]
    own = "Nest by_name.a f32[], pair.left f32[], alone f32[] 3"
    assert " ".join(lines[1].split()) == own
    assert lines[2].split()[:2] == ["blocks.0", "Block"]
    assert lines[-1] == "9 parameters, 6 of them trainable, 36 bytes"
    assert len({len(line) for line in lines[:-1]}) == 1
    assert repr(summary) == str(summary)
    big = nn.Dense(1000, input_size=1000).summary()
    assert "1,001,000 parameters" in str(big)
    assert str(big).endswith("3.8 MiB")


# What people write


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("parameters", "trainable_variables"),
        ("save", "tj.save"),
        ("load_weights", "tj.load"),
        ("eval", "training=False"),
        ("forward", "__call__"),
        ("fit", "tj.fit"),
        ("weights", "variables"),
    ],
)
def test_names_of_other_libraries_lead_to_ours(name: str, hint: str) -> None:
    with pytest.raises(AttributeError, match=f"Block has no attribute '{name}'; "):
        getattr(Block(), name)
    with pytest.raises(AttributeError, match=hint):
        getattr(Block(), name)
    assert not hasattr(Block(), name)


def test_a_property_that_fails_says_why() -> None:
    class Broken(nn.Module):
        @property
        def size(self) -> Any:
            return self.missing

    with pytest.raises(AttributeError, match="no attribute 'missing'"):
        _ = Broken().size


@pytest.mark.parametrize("name", ["call", "forward"])
def test_the_method_of_another_library(name: str) -> None:
    kind = type("Net", (nn.Module,), {name: lambda self, x: x})
    with pytest.raises(TypeError, match=f"rename {name}"):
        kind()(1.0)
    with pytest.raises(TypeError, match="Module has no __call__"):
        nn.Module()(1.0)


def test_everything_of_the_functions_is_there() -> None:
    from tapejit.nn import functional as functions

    assert all(getattr(nn, x) is getattr(functions, x) for x in functions.__all__)
    assert set(functions.SPELLINGS) <= set(nn.SPELLINGS)
    with pytest.raises(AttributeError, match=r"write tj\.nn\.squared_error"):
        _ = functions.mse


def test_a_module_has_a_name() -> None:
    class HiddenLayer(tj.nn.Module):
        pass

    class Encoder(tj.nn.Module):
        def __init__(self, size: int, name: str | None = None) -> None:
            super().__init__(name=name)
            self.weight = tj.Variable(tj.ones(size))

    class WithoutBase(tj.nn.Module):
        def __init__(self) -> None:
            self.weight = tj.Variable(1.0)

    assert HiddenLayer().name == "hidden_layer"
    assert HiddenLayer(name="first").name == "first"
    assert Encoder(3).name == "encoder"
    assert Encoder(3, "left").name == "left"
    assert WithoutBase().name == "without_base"
    assert tj.nn.Module("plain").name == "plain"
    assert tj.nn.Sequential([tj.nn.Dense(2)], name="body").name == "body"
    assert tj.nn.Activation("relu", name="bend").name == "bend"
    assert tj.nn.Flatten(name="line").name == "line"
    # It is no state, and says nothing of the ways to the variables.
    model = Encoder(3, "left")
    assert [name for name, _ in model.named_variables()] == ["weight"]
    copy = pickle.loads(pickle.dumps(tj.nn.Dense(2, name="out")))
    assert copy.name == "out"


def dropping() -> tj.nn.Sequential:
    return tj.nn.Sequential([tj.nn.Dense(3, input_size=2), tj.nn.Dropout(0.5)])


def test_generators_are_no_weights() -> None:
    model, plain = dropping(), tj.nn.Sequential([tj.nn.Dense(3, input_size=2)])
    state = model.state_dict()
    assert "layers.1.generator" in state
    assert plain.load_state_dict(state) == ([], []), "there is none here"
    weights = plain.state_dict()
    before = model.state_dict()["layers.1.generator"]
    assert model.load_state_dict(weights) == ([], []), "there is none in the state"
    np.testing.assert_array_equal(model.state_dict()["layers.1.generator"], before)
    other = dropping()
    other.load_state_dict(state)
    np.testing.assert_array_equal(other.state_dict()["layers.1.generator"], before)
    wrong = {**weights, "layers.1.generator": np.zeros(6, np.float32)}
    with pytest.raises(ValueError, match=r"unexpected  layers\.1\.generator"):
        plain.load_state_dict(wrong)


def test_a_model_is_loaded_from_a_whole_checkpoint(tmp_path: Any) -> None:
    model, optimizer = dropping(), tj.optimizers.Adam(0.1)
    optimizer.apply_gradients([(tj.ones_like(v), v) for v in model.trainable_variables])
    path = tmp_path / "run.safetensors"
    tj.save(path, model=model, optimizer=optimizer, step=3, name="a run")
    state, other = tj.load(path), dropping()
    assert other.load_state_dict(state) == ([], [])
    for name, array in model.state_dict().items():
        np.testing.assert_array_equal(other.state_dict()[name], array)


def test_missing_weights_are_named_whatever_else_is_there() -> None:
    model = dropping()
    state = {f"model.{name}": x for name, x in model.state_dict().items()}
    full = {**state, "optimizer.iterations": np.int64(3)}
    del full["model.layers.0.bias"]
    full["model.extra"] = np.ones(2)
    with pytest.raises(ValueError) as caught:
        dropping().load_state_dict(full)
    text = str(caught.value)
    assert "missing     layers.0.bias: f32[3]" in text
    assert "unexpected  extra: f64[2]" in text
    assert "optimizer" not in text
    loaded = dropping().load_state_dict(full, strict=False)
    assert loaded == (["layers.0.bias"], ["extra"])
    several = {**state, **{f"average.{n}": x for n, x in model.state_dict().items()}}
    with pytest.raises(ValueError, match="several parts that fit: average, model"):
        dropping().load_state_dict(several)
    with pytest.raises(ValueError, match=r"missing     layers\.0\.weight"):
        dropping().load_state_dict({"optimizer.iterations": 3})
