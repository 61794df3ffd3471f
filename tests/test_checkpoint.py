"""Saving and loading what a training program holds."""

from __future__ import annotations

import math
import os
from collections import namedtuple
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

import tapejit as tj
from tapejit.base.types import SHORT_NAMES
from tapejit.training.tensor_file import write_arrays

Pair = namedtuple("Pair", "first second")


@dataclass
class Layer:
    weight: Any
    bias: Any


class Counter:
    """An object of the user's: it says what its state is, and takes it back."""

    def __init__(self, count: int = 0) -> None:
        self.count = count
        self.seen = np.zeros(3)

    def state(self) -> dict[str, Any]:
        return {"count": self.count, "seen": self.seen.copy()}

    def restore(self, state: dict[str, Any]) -> None:
        if state["count"] < 0:
            raise ValueError("a count is not negative")
        self.count, self.seen = state["count"], state["seen"]


class Slots:
    """As an optimizer: its state are variables, which are assigned."""

    def __init__(self) -> None:
        self.m = tj.Variable([1.0, 2.0])

    def state(self) -> dict[str, tj.Variable]:
        return {"0/w/momentum": self.m}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.safetensors"


# What can be saved


@pytest.mark.parametrize("dtype", SHORT_NAMES)
@pytest.mark.parametrize("shape", [(), (2, 3), (0, 4)])
def test_variables_of_every_dtype_come_back(
    dtype: str, shape: tuple[int, ...], path: Path
) -> None:
    values = np.arange(math.prod(shape)).reshape(shape)
    v = tj.Variable(tj.asarray(values).astype(dtype), trainable=False)
    expected = v.numpy()
    tj.save(path, v=v)
    v.assign(tj.ones(shape, dtype=dtype))
    assert tj.load(path, into={"v": v})["v"] is v
    assert v.numpy().tobytes() == expected.tobytes()
    assert tj.load(path)["v"].dtype == expected.dtype


PLAIN = [
    None,
    True,
    False,
    0,
    -(2**70),
    1.5,
    0.1 + 0.2,
    5e-324,
    -0.0,
    math.inf,
    -math.inf,
    1 + 2j,
    complex(math.inf, -0.0),
    "",
    'text "with" ünïcode\n\0',
    [],
    (),
    [1, [2.5, ("x", None)], {"a": {"b": (1,)}, "$c": 1, "$$": {}, "$tuple": [1]}],
    {"$array": "x"},
    [{"$float": "nan"}],
]


@pytest.mark.parametrize("value", PLAIN, ids=repr)
def test_plain_values_come_back_exactly(value: Any, path: Path) -> None:
    tj.save(path, x=[value], y=value)
    loaded = tj.load(path, into={"x": [None], "y": value})
    assert repr(loaded) == repr({"x": [value], "y": value})
    assert repr(tj.load(path)["x"]) == repr([value])


def test_nan_comes_back(path: Path) -> None:
    tj.save(path, x=math.nan)
    assert math.isnan(tj.load(path)["x"])


def test_arrays_and_tensors_come_back_as_what_they_were(path: Path) -> None:
    state = {"a": np.arange(3), "t": tj.ones(2), "s": np.float32(1.5)}
    tj.save(path, state)
    fresh = {"a": np.zeros(3, int), "t": tj.zeros(2), "s": np.float32(0)}
    loaded = tj.load(path, into=fresh)
    assert type(loaded["a"]) is np.ndarray
    assert loaded["a"].tolist() == [0, 1, 2]
    assert type(loaded["t"]) is tj.Tensor
    assert loaded["t"].numpy().tolist() == [1, 1]
    assert type(loaded["s"]) is np.float32
    assert loaded["s"] == 1.5
    assert fresh["a"].tolist() == [0, 0, 0]  # what is no variable is not changed


def test_a_generator_goes_on_where_it_was(path: Path) -> None:
    generator = tj.random.Generator(3)
    generator.normal(5)
    tj.save(path, generator=generator)
    expected = generator.normal(4).numpy()
    other = tj.random.Generator(99)
    assert tj.load(path, into={"generator": other})["generator"] is other
    np.testing.assert_array_equal(other.normal(4), expected)


def test_nested_structures_keep_their_classes(path: Path) -> None:
    def make(value: float) -> Any:
        pair = Pair(tj.Variable(value), [tj.Variable([value]), 7])
        return {"pair": pair, "layers": (Layer(tj.Variable(value), value),)}

    tj.save(path, make(3.0))
    assert set(tj.load(path)) == {
        "pair.first",
        "pair.second.0",
        "pair.second.1",
        "layers.0.weight",
        "layers.0.bias",
    }
    fresh = make(0.0)
    loaded = tj.load(path, into=fresh)
    assert type(loaded["pair"]) is Pair
    assert loaded["pair"].first is fresh["pair"].first
    assert float(loaded["pair"].second[0][0]) == 3.0
    assert loaded["layers"][0] == Layer(fresh["layers"][0].weight, 3.0)
    assert float(fresh["layers"][0].weight) == 3.0


def test_objects_with_state_and_restore_take_part(path: Path) -> None:
    counter = Counter(5)
    counter.seen[:] = [1, 2, 3]
    tj.save(path, counter=counter, slots=Slots())
    other, slots = Counter(), Slots()
    slots.m.assign([0.0, 0.0])
    loaded = tj.load(path, into={"counter": other, "slots": slots})
    assert loaded["counter"] is other
    assert loaded["slots"] is slots
    assert other.count == 5
    assert other.seen.tolist() == [1, 2, 3]
    assert slots.m.numpy().tolist() == [1, 2]
    assert "slots.0/w/momentum" in tj.load(path)
    assert tj.load(path)["counter"]["count"] == 5


@pytest.mark.parametrize("make", [lambda: tj.Variable(2.0), Counter, Slots])
def test_one_thing_alone_can_be_saved(make: Any, path: Path) -> None:
    tj.save(path, make())
    thing = make()
    assert tj.load(path, into=thing) is thing


def test_data_and_history_take_part(path: Path) -> None:
    data = tj.data.batches(np.arange(10), 2, shuffle=True, seed=4)
    history = tj.fit(lambda x: float(x[0]), data, epochs=2, verbose=0)
    iterator = iter(data)
    next(iterator)
    tj.save(path, data=data, history=history)
    fresh = tj.data.batches(np.arange(10), 2, shuffle=True)
    empty = tj.History()
    tj.load(path, into={"data": fresh, "history": empty})
    assert empty == history
    assert empty.epochs == 2
    assert [b.tolist() for b in fresh] == [b.tolist() for b in iterator]


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"x": object()}, "x is a object"),
        ({"x": {"y": b"bytes"}}, "x.y is a bytes"),
        ({"x": np.array(["a"])}, "x is an array of <U1"),
        ({"x": np.array([None])}, "x is an array of object"),
        ({1: 2.0}, "1 is not"),
        ({"x": [{2: 1.0}]}, "2 of x.0 is not"),
        ({"x": print}, "x is a builtin_function"),
        ({"x": {1, 2}}, "x is a set"),
    ],
)
def test_what_cannot_be_saved_is_named(state: Any, message: str, path: Path) -> None:
    with pytest.raises(tj.ArgumentTypeError) as caught:
        tj.save(path, state)
    assert message in caught.value.message
    assert not path.exists()


def test_two_things_with_one_name_are_refused(path: Path) -> None:
    with pytest.raises(tj.CheckpointError, match=r"two things would be called 'a\.b'"):
        tj.save(path, {"a": {"b": tj.Variable(1.0)}, "a.b": 2})
    assert not path.exists()


def test_save_takes_a_structure_or_names(path: Path) -> None:
    with pytest.raises(tj.ArgumentTypeError, match="not both"):
        tj.save(path, [1.0], x=2)
    with pytest.raises(tj.ArgumentTypeError, match="nothing to save"):
        tj.save(path)
    tj.save(path, path=1, state=2)  # are names like others
    assert tj.load(path) == {"path": 1, "state": 2}


@pytest.mark.parametrize("name", ["save", "load"])
def test_files_are_no_part_of_a_traced_function(name: str, path: Path) -> None:
    @tj.function
    def step(x: Any) -> Any:
        getattr(tj, name)(path, x)
        return x

    with pytest.raises(tj.UnsupportedError, match="between the calls"):
        step(tj.ones(2))
    assert not path.exists()


def test_saving_is_no_read_for_a_tape(path: Path) -> None:
    v = tj.Variable(1.0)
    with tj.GradientTape() as tape:
        tj.save(path, v=v)
    assert tape.watched_variables() == ()


# What does not fit


def file_with(path: Path, **state: Any) -> Path:
    tj.save(path, **state)
    return path


def test_everything_that_does_not_fit_is_named_and_nothing_changes(path: Path) -> None:
    ones = tj.ones(2)
    file_with(
        path, same=ones, shape=ones, dtype=ones, kind=ones, word="x", more=[ones] * 2
    )
    into = {
        "same": tj.Variable([5.0, 5.0]),
        "shape": tj.Variable([5.0]),
        "dtype": tj.Variable([5.0, 5.0], dtype="float64"),
        "absent": tj.Variable(5.0),
        "kind": 3,
        "word": tj.Variable(5.0),
        "more": [tj.Variable([5.0, 5.0])],
    }
    before = state_of(into)
    with pytest.raises(tj.CheckpointError) as caught:
        tj.load(path, into=into)
    lines = [line.strip() for line in caught.value.message.splitlines()]
    assert lines[0] == f"{path} does not fit:"
    assert sorted(lines[1:]) == [
        "absent is missing in the file",
        "dtype is float32 in the file, float64 here",
        "kind is an array in the file, a plain value here",
        "more.1 is in the file only",
        "shape has shape (2,) in the file, (1,) here",
        "word is a plain value in the file, an array here",
    ]
    assert state_of(into) == before


def state_of(into: dict[str, Any]) -> dict[str, Any]:
    return tj.tree.map(lambda x: x if isinstance(x, int) else x.numpy().tolist(), into)


def test_a_model_is_taken_from_the_checkpoint_of_a_whole_run(path: Path) -> None:
    model, optimizer = tj.nn.Dense(2, input_size=3), tj.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    tj.save(path, model=model, optimizer=optimizer, generator=tj.random.Generator(3))
    other = tj.nn.Dense(2, input_size=3)
    tj.load(path, into={"model": other})
    assert other.weight.numpy().tolist() == model.weight.numpy().tolist()
    with pytest.raises(tj.CheckpointError, match=r"modell\.weight is missing"):
        tj.load(path, into={"modell": other})
    smaller = tj.nn.Dense(2, use_bias=False, input_size=3)
    with pytest.raises(tj.CheckpointError, match=r"model\.bias is in the file only"):
        tj.load(path, into={"model": smaller})


def test_names_on_one_side_only_can_be_allowed(path: Path) -> None:
    file_with(path, a=tj.ones(2), extra=1)
    into = {"a": tj.Variable([0.0, 0.0]), "b": tj.Variable(7.0), "n": 5}
    loaded = tj.load(path, into=into, strict=False)
    assert into["a"].numpy().tolist() == [1, 1]
    assert float(into["b"]) == 7
    assert loaded["n"] == 5
    into["a"] = tj.Variable([0.0])
    with pytest.raises(tj.CheckpointError, match="has shape"):
        tj.load(path, into=into, strict=False)


def test_arrays_and_tensors_have_to_fit_too(path: Path) -> None:
    file_with(path, x=np.ones(2))
    for wrong in (np.ones(3), tj.ones(2), np.float64(1)):
        with pytest.raises(tj.CheckpointError, match="x "):
            tj.load(path, into={"x": wrong})


def test_a_restore_that_fails_takes_everything_back(path: Path) -> None:
    def make(value: float, count: int) -> list[Any]:
        generator = tj.random.Generator(int(value))
        before = [tj.Variable([value]), Counter(7), generator, tj.nn.Dense(1)]
        before[3](np.full((1, 2), value, np.float32))
        return [*before, Counter(count), tj.Variable(value)]

    tj.save(path, make(3.0, -1))
    into = make(5.0, 2)
    into[1].count = 1
    weight = into[3].weight.numpy()
    with pytest.raises(ValueError, match="not negative"):
        tj.load(path, into=into)
    assert into[0].numpy().tolist() == [5]
    assert into[1].count == 1
    assert into[2].seed == 5
    np.testing.assert_array_equal(into[3].weight, weight)
    assert into[4].count == 2
    assert float(into[5]) == 5


def test_slots_that_are_not_there_yet_come_with_a_hint(path: Path) -> None:
    tj.save(path, optimizer=Slots())

    class Unbuilt:
        def state(self) -> dict[str, tj.Variable]:
            return {}

    with pytest.raises(tj.CheckpointError, match="in the file only") as caught:
        tj.load(path, into={"optimizer": Unbuilt()})
    assert "optimizer.build(variables)" in str(caught.value)


# Other programs' files, and hostile ones


def test_weights_of_another_program_are_loaded_by_name(path: Path) -> None:
    weights = {"layers.0.weight": np.ones((2, 3), np.float32)}
    safetensors.numpy.save_file(weights, path)
    layer = {"weight": tj.Variable(tj.zeros((2, 3)))}
    tj.load(path, into={"layers": [layer]})
    assert layer["weight"].numpy().tolist() == [[1, 1, 1], [1, 1, 1]]


def test_another_program_reads_the_weights(path: Path) -> None:
    tj.save(path, layers=[{"weight": tj.Variable([1.0, 2.0])}], epoch=3)
    found = safetensors.numpy.load_file(path)
    assert {name: x.tolist() for name, x in found.items()} == {
        "layers.0.weight": [1, 2]
    }


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"version": 1}',
        '{"version": "1", "values": {}}',
        '{"version": 1, "values": []}',
        '{"version": 1, "values": {}, "more": 1}',
        '{"version": 9, "values": {}}',
        '{"version": 1, "values": {"a": {"$array": "nowhere"}}}',
        '{"version": 1, "values": {"a": {"$array": 1}}}',
        '{"version": 1, "values": {"a": {"$tuple": 1}}}',
        '{"version": 1, "values": {"a": {"$tuple": [], "b": 1}}}',
        '{"version": 1, "values": {"a": {"$float": "1.0"}}}',
        '{"version": 1, "values": {"a": {"$complex": [1.0]}}}',
        '{"version": 1, "values": {"a": {"$complex": ["1", "2"]}}}',
        '{"version": 1, "values": {"a": {"$object": "os.system"}}}',
        '{"version": 1, "values": {"x": 1}}',
        '{"version": 1, "values": {"a": 1, "a": 2}}',
        '{"version": 1, "values": {"a": NaN}}',
        '{"version": 1, "values": ' + "[" * 100_000 + "}",
    ],
    ids=range(20),
)
def test_plain_values_that_are_none_are_refused(text: str, path: Path) -> None:
    write_arrays(path, {"x": np.ones(1)}, {"tapejit": text})
    with pytest.raises(tj.CheckpointError):
        tj.load(path)
    v = tj.Variable([5.0], dtype="float64")
    with pytest.raises(tj.CheckpointError):
        tj.load(path, into={"x": v})
    assert float(v[0]) == 5


def test_a_deep_value_is_refused_and_not_a_crash(path: Path) -> None:
    deep = "[" * 900 + "]" * 900
    document = '{"version": 1, "values": {"a": ' + deep + "}}"
    write_arrays(path, {}, {"tapejit": document})
    try:
        value = tj.load(path)["a"]
    except tj.CheckpointError as error:
        assert "too deeply" in str(error)  # noqa: PT017  either is right
    else:
        assert isinstance(value, list)


def test_a_python_object_is_never_made(path: Path) -> None:
    """What pickle would call is a text like any other."""
    tj.save(path, x="cos\nsystem\n(S'exit 1'\ntR.")
    assert tj.load(path) == {"x": "cos\nsystem\n(S'exit 1'\ntR."}
    for name in ("checkpoint", "tensor_file"):
        source = Path(tj.__file__).parent / "training" / f"{name}.py"
        text = source.read_text()
        assert not any(word in text for word in ("pickle", "eval(", "exec(", "import_"))


# Modules and optimizers


def trained(steps: int) -> tuple[Any, Any, Any]:
    """A model with statistics and dropout, its optimizer, and a step."""
    model = tj.nn.Sequential(
        [
            tj.nn.Dense(4, "tanh", input_size=3),
            tj.nn.BatchNorm(input_size=4),
            tj.nn.Dropout(0.5, generator=tj.random.Generator(0)),
            tj.nn.Dense(1, input_size=4),
        ]
    )
    optimizer = tj.optimizers.Adam(learning_rate=0.1)
    optimizer.build(model.trainable_variables)
    x = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)

    @tj.function
    def step() -> Any:
        with tj.GradientTape() as tape:
            loss = tj.mean(tj.square(model(x, training=True) - 1.0))
        gradients = tape.gradient(loss, model.trainable_variables)
        pairs = zip(gradients, model.trainable_variables, strict=True)
        optimizer.apply_gradients(pairs)
        return loss

    for _ in range(steps):
        step()
    return model, optimizer, step


def test_a_model_and_its_optimizer_go_on_exactly(path: Path) -> None:
    model, optimizer, step = trained(5)
    tj.save(path, model=model, optimizer=optimizer)
    expected = [float(step()) for _ in range(20)]
    model, optimizer, step = trained(0)
    tj.load(path, into={"model": model, "optimizer": optimizer})
    assert [float(step()) for _ in range(20)] == expected
    model, optimizer, step = trained(3)  # traced before it is loaded
    tj.load(path, into={"model": model, "optimizer": optimizer})
    assert [float(step()) for _ in range(20)] == expected
    assert "model.layers.0.weight" in tj.load(path)


def test_a_model_of_another_size_is_named_and_not_changed(path: Path) -> None:
    tj.save(path, tj.nn.Dense(4, input_size=3))
    other = tj.nn.Dense(5, input_size=3)
    before = other.state_dict()
    with pytest.raises(tj.CheckpointError) as caught:
        tj.load(path, into=other)
    assert "weight has shape (3, 4) in the file, (3, 5) here" in str(caught.value)
    for name, value in other.state_dict().items():
        np.testing.assert_array_equal(value, before[name])


def test_a_model_that_has_no_variables_yet_comes_with_a_hint(path: Path) -> None:
    tj.save(path, tj.nn.Dense(4, input_size=3))
    with pytest.raises(tj.CheckpointError, match="in the file only") as caught:
        tj.load(path, into=tj.nn.Dense(4))
    assert "call the model once" in str(caught.value)


def test_the_official_library_reads_a_model(path: Path) -> None:
    model = tj.nn.Dense(4, input_size=3)
    tj.save(path, model)
    found = safetensors.numpy.load_file(os.fspath(path))
    np.testing.assert_array_equal(found["weight"], model.weight)
