"""gradient(): arguments, structures, targets and sources (lines 14 to 17)."""

from __future__ import annotations

import collections
import dataclasses
import inspect
from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np
import pytest

import tapejit as tj


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclasses.dataclass
class Layer:
    weight: Any
    bias: Any


@dataclasses.dataclass(frozen=True)
class Frozen:
    inner: Any


class Registered:
    def __init__(self, parts: list[Any]) -> None:
        self.parts = parts


tj.register_structure(
    Registered, lambda x: (x.parts, None), lambda _, parts: Registered(list(parts))
)


def recorded(persistent: bool = True) -> tuple[Any, Any, Any, Any]:
    """A tape with y = a² b, and its variables: dy/da is 24 and dy/db is 9."""
    a, b = tj.Variable(3.0, name="a"), tj.Variable(4.0, name="b")
    with tj.GradientTape(persistent=persistent) as tape:
        y = a * a * b
    return tape, y, a, b


def floats(x: Any) -> Any:
    """The tensors of a structure as Python numbers."""
    return tj.tree.map(lambda g: None if g is None else float(g), x, none_is_leaf=True)


# 14: arguments, and the structure of the result


def test_s14_the_arguments_are_positional_or_keyword() -> None:
    parameters = list(inspect.signature(tj.GradientTape.gradient).parameters.values())
    assert [p.name for p in parameters] == [
        "self",
        "target",
        "sources",
        "output_gradients",
        "unconnected_gradients",
    ]
    assert all(p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters)
    assert parameters[3].default is None
    assert parameters[4].default is tj.UnconnectedGradients.NONE
    tape, y, a, _ = recorded()
    w = tj.Variable(1.0)
    assert floats(tape.gradient(y, [a, w], tj.asarray(2.0), "zero")) == [48.0, 0.0]
    assert floats(
        tape.gradient(
            target=y,
            sources=[a, w],
            output_gradients=tj.asarray(2.0),
            unconnected_gradients=tj.UnconnectedGradients.ZERO,
        )
    ) == [48.0, 0.0]


def test_s14_one_source_gives_one_tensor() -> None:
    tape, y, a, _ = recorded()
    g = tape.gradient(y, a)
    assert isinstance(g, tj.Tensor)
    assert float(g) == 24.0


SAME_STRUCTURE = {
    "list": lambda a, b: [a, b],
    "tuple": lambda a, b: (a, b),
    "one-element list": lambda a, b: [a],
    "dict": lambda a, b: {"y": a, "x": b},
    "dict of ints": lambda a, b: {1: a, 0: b},
    "dict of mixed keys": lambda a, b: {"k": a, 0: b},
    "OrderedDict": lambda a, b: OrderedDict(z=a, a=b),
    "namedtuple": Pair,
    "dataclass": Layer,
    "frozen dataclass": lambda a, b: Frozen([a, b]),
    "nested": lambda a, b: {"l": [Layer(a, (b,)), Pair(b, [])], "k": ({}, a)},
    "empty list": lambda a, b: [],
    "empty tuple": lambda a, b: (),
    "empty dict": lambda a, b: {},
}


@pytest.mark.parametrize("make", SAME_STRUCTURE.values(), ids=SAME_STRUCTURE)
def test_s14_the_result_has_the_structure_of_the_sources(make: Any) -> None:
    tape, y, a, b = recorded()
    result = tape.gradient(y, make(a, b))
    expected = make(24.0, 9.0)
    assert type(result) is type(expected)
    assert floats(result) == expected


def test_s14_a_dict_keeps_the_order_of_its_keys() -> None:
    tape, y, a, b = recorded()
    result = tape.gradient(y, {"z": a, "a": b, "m": a})
    assert list(result) == ["z", "a", "m"]
    assert floats(result) == {"z": 24.0, "a": 9.0, "m": 24.0}


def test_s14_any_mapping_is_a_structure() -> None:
    tape, y, a, b = recorded()
    result = tape.gradient(y, collections.ChainMap({"x": a}, {"y": b}))
    assert {key: float(g) for key, g in result.items()} == {"x": 24.0, "y": 9.0}


def test_s14_a_registered_class_is_a_structure() -> None:
    tape, y, a, b = recorded()
    result = tape.gradient(y, Registered([a, b]))
    assert isinstance(result, Registered)
    assert floats(result.parts) == [24.0, 9.0]


def test_s14_none_stands_in_the_place_of_an_unconnected_source() -> None:
    tape, y, a, _ = recorded()
    w = tj.Variable(1.0)
    assert floats(tape.gradient(y, {"w": w, "l": [a, w]})) == {
        "w": None,
        "l": [24.0, None],
    }


# 15: several targets, the same one twice, targets that are sources


def test_s15_several_targets_are_summed() -> None:
    x = tj.Variable(3.0)
    with tj.GradientTape(persistent=True) as tape:
        y, z = x * x, x * 5.0
    assert float(tape.gradient([y, z], x)) == 11.0
    assert float(tape.gradient((y, z), x)) == 11.0
    assert float(tape.gradient({"a": y, "b": [z, (y,)]}, x)) == 17.0
    assert float(tape.gradient(Layer(y, Pair(z, z)), x)) == 16.0


def test_s15_the_same_target_twice_counts_twice() -> None:
    tape, y, a, _ = recorded()
    assert float(tape.gradient([y, y], a)) == 48.0


def test_s15_duplicate_sources_each_get_the_full_gradient() -> None:
    tape, y, a, _ = recorded()
    assert floats(tape.gradient(y, [a, a, {"a": a}])) == [24.0, 24.0, {"a": 24.0}]


def test_s15_a_target_that_is_a_source_adds_one() -> None:
    x = tj.asarray(3.0)
    with tj.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = x * x
    assert float(tape.gradient(x, x)) == 1.0
    assert float(tape.gradient([y, x], x)) == 7.0
    assert floats(tape.gradient([y, x], [x, y])) == [7.0, 1.0]
    assert float(tape.gradient([x, x], x)) == 2.0


def test_s15_also_one_that_was_never_watched() -> None:
    x, w = tj.asarray([3.0, 4.0]), tj.Variable(2.0)
    with tj.GradientTape(persistent=True) as tape:
        y = w * 2.0
    assert tape.gradient(x, x).tolist() == [1.0, 1.0]
    assert tape.gradient([y, x], x).tolist() == [1.0, 1.0]
    assert tape.gradient(x, w) is None
    assert tape.gradient(x, x, [5.0, 6.0]).tolist() == [5.0, 6.0]


def test_s15_a_variable_can_be_a_target() -> None:
    v = tj.Variable(3.0)
    with tj.GradientTape(persistent=True) as tape:
        y = v * v
    assert float(tape.gradient(v, v)) == 1.0
    assert float(tape.gradient([y, v], v)) == 7.0


def test_s15_also_after_it_was_assigned() -> None:
    v = tj.Variable(3.0)
    with tj.GradientTape(persistent=True) as tape:
        y = v * v
    v.assign(5.0)
    assert float(tape.gradient(v, v)) == 1.0
    assert float(tape.gradient([y, v], v)) == 7.0


def test_s15_also_one_that_was_never_read() -> None:
    v = tj.Variable([3.0, 4.0])
    with tj.GradientTape() as tape:
        pass
    assert tape.gradient(v, v).tolist() == [1.0, 1.0]


def test_s15_a_target_that_is_not_a_scalar_means_its_sum() -> None:
    x = tj.Variable([[1.0, 2.0], [3.0, 4.0]])
    with tj.GradientTape(persistent=True) as tape:
        y = x * x
        total = tj.sum(y)
    expected = [[2.0, 4.0], [6.0, 8.0]]
    assert tape.gradient(y, x).tolist() == expected
    assert tape.gradient(total, x).tolist() == expected


def test_s15_targets_of_several_shapes_are_summed() -> None:
    x = tj.Variable([1.0, 2.0])
    with tj.GradientTape() as tape:
        targets = [x * x, tj.sum(x), tj.stack([x, x, x])]
    assert tape.gradient(targets, x).tolist() == [2 + 1 + 3, 4 + 1 + 3]


def test_s15_no_target_means_none_for_each_source() -> None:
    tape, _, a, b = recorded()
    assert tape.gradient([], a) is None
    assert tape.gradient([], [a, b]) == [None, None]
    assert tape.gradient({}, {"a": a}) == {"a": None}
    assert floats(tape.gradient([], [a, b], None, "zero")) == [0.0, 0.0]


def test_s15_no_source_means_an_empty_result() -> None:
    tape, y, _, _ = recorded()
    assert tape.gradient(y, []) == []
    assert tape.gradient(y, ()) == ()
    assert tape.gradient(y, {}) == {}
    assert tape.gradient([], []) == []


def test_s15_an_integer_target_contributes_nothing() -> None:
    x = tj.Variable(3.0)
    with tj.GradientTape(persistent=True) as tape:
        y, n = x * x, tj.astype(x, tj.int32)
    assert tape.gradient(n, x) is None
    assert float(tape.gradient([n, y], x)) == 6.0


# 16: intermediates, unconnected sources


def test_s16_intermediates_can_be_sources() -> None:
    x = tj.Variable(3.0)
    with tj.GradientTape(persistent=True) as tape:
        y = x * x
        z = y * x
        w = z * y
    assert floats(tape.gradient(w, [x, y, z])) == [5 * 81.0, 27.0 + 9 * 3.0, 9.0]
    assert float(tape.gradient(w, y)) == 27.0 + 9 * 3.0
    assert tape.gradient(y, z) is None, "a result is no ancestor of its operand"


def test_s16_an_intermediate_used_twice_gets_the_sum() -> None:
    x = tj.Variable([1.0, 2.0])
    with tj.GradientTape() as tape:
        h = tj.exp(x)
        y = tj.sum(h * h + h)
    expected = 2 * np.exp([1.0, 2.0]) + 1
    np.testing.assert_allclose(tape.gradient(y, h).numpy(), expected, rtol=1e-6)


@pytest.mark.parametrize("spelling", ["none", tj.UnconnectedGradients.NONE])
def test_s16_an_unconnected_source_gets_none(spelling: Any) -> None:
    tape, y, a, _ = recorded()
    w, x = tj.Variable([1.0]), tj.asarray(2.0)
    da, dw, dx = tape.gradient(y, [a, w, x], unconnected_gradients=spelling)
    assert (float(da), dw, dx) == (24.0, None, None)


@pytest.mark.parametrize("spelling", ["zero", tj.UnconnectedGradients.ZERO])
@pytest.mark.parametrize(
    "source",
    [
        tj.Variable([[1.0, 2.0]]),
        tj.zeros((2, 3), dtype=tj.float64),
        tj.zeros(4, dtype=tj.float16),
        tj.asarray(1j),
        tj.zeros((0, 2)),
        tj.asarray([1, 2]),
    ],
    ids=lambda x: str(x.dtype),
)
def test_s16_or_zeros_of_its_shape_and_dtype(source: Any, spelling: Any) -> None:
    tape, y, _, _ = recorded()
    g = tape.gradient(y, source, unconnected_gradients=spelling)
    assert isinstance(g, tj.Tensor)
    assert (g.shape, g.dtype) == (source.shape, source.dtype)
    assert not g.numpy().any()


def test_s16_zero_leaves_connected_sources_alone() -> None:
    tape, y, a, _ = recorded()
    w = tj.Variable(1.0)
    result = tape.gradient(y, {"a": a, "w": w}, unconnected_gradients="zero")
    assert floats(result) == {"a": 24.0, "w": 0.0}


@pytest.mark.parametrize("value", ["zeros", "NONE", "", None, 0, True, [], "Zero"])
@pytest.mark.parametrize("method", ["gradient", "jacobian", "batch_jacobian"])
def test_s16_any_other_value_is_an_error_that_names_it(method: str, value: Any) -> None:
    x = tj.Variable([[1.0, 2.0]])
    with tj.GradientTape() as tape:
        y = x * x
    ask = getattr(tape, method)
    with pytest.raises(ValueError, match="'none' or 'zero'") as caught:
        ask(y, x, unconnected_gradients=value)
    assert repr(value) in str(caught.value)
    assert ask(y, x) is not None, "the tape was not used up"


# 17: what is neither a tensor nor a variable


REFUSED = {
    "None": None,
    "str": "loss",
    "float": 1.0,
    "int": 1,
    "ndarray": np.ones(2),
    "float32": np.float32(1),
    "object": object(),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("method", ["gradient", "jacobian"])
def test_s17_a_target_of_another_type_is_named(method: str, name: str) -> None:
    tape, y, a, _ = recorded(persistent=False)
    ask, value = getattr(tape, method), REFUSED[name]
    with pytest.raises(TypeError, match=rf"target is a {name}\b"):
        ask(value, a)
    with pytest.raises(TypeError, match=rf"target at \[1\] is a {name}\b"):
        ask([y, value], a)
    with pytest.raises(TypeError, match=rf"target at \['k'\]\[0\] is a {name}\b"):
        ask({"k": (value,)}, a)
    assert float(ask(y, a)) == 24.0, "the tape was not used up"


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("method", ["gradient", "jacobian"])
def test_s17_a_source_of_another_type_is_named(method: str, name: str) -> None:
    tape, y, a, _ = recorded(persistent=False)
    ask, value = getattr(tape, method), REFUSED[name]
    with pytest.raises(TypeError, match=rf"source is a {name}\b"):
        ask(y, value)
    with pytest.raises(TypeError, match=rf"source at \[1\] is a {name}\b"):
        ask(y, [a, value])
    with pytest.raises(TypeError, match=rf"source at \.bias\['w'\] is a {name}\b"):
        ask(y, Layer(a, {"w": value}))
    assert float(ask(y, a)) == 24.0, "the tape was not used up"


@pytest.mark.parametrize("name", REFUSED)
def test_s17_batch_jacobian_names_it_too(name: str) -> None:
    x = tj.Variable([[1.0, 2.0]])
    with tj.GradientTape() as tape:
        y = x * x
    with pytest.raises(TypeError, match=rf"target is .*{name}\b"):
        tape.batch_jacobian(REFUSED[name], x)
    with pytest.raises(TypeError, match=rf"source is .*{name}\b"):
        tape.batch_jacobian(y, REFUSED[name])
    assert tape.batch_jacobian(y, x).shape == (1, 2, 2)


def test_s17_a_gradient_that_was_none_is_refused_as_a_target() -> None:
    x, w = tj.Variable(3.0), tj.Variable(1.0)
    with tj.GradientTape() as outer:
        with tj.GradientTape() as inner:
            y = x * x
        g = inner.gradient(y, w)
    with pytest.raises(TypeError, match="target is a None"):
        outer.gradient(g, x)
