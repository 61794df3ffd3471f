"""gradient(): arguments, structures, targets, sources, dtypes (lines 14 to 17, 23)."""

from __future__ import annotations

import collections
import dataclasses
import inspect
import re
from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np
import pytest

import tapejit as tj

from .both_modes import assert_modes, assert_taped, note, note_error, ways


def pair() -> Any:
    return tj.Variable(3.0, name="a"), tj.Variable(4.0, name="b")


def scalar() -> Any:
    return tj.Variable(3.0, name="v")


def vector() -> Any:
    return tj.Variable([1.0, 2.0], name="v")


def tensor() -> Any:
    return tj.asarray(3.0)


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


def matrix() -> Any:
    return tj.Variable([[1.0, 2.0], [3.0, 4.0]], name="v")


# 14: arguments, and the structure of the result


def test_s14_the_arguments_are_positional_or_keyword() -> None:
    parameters = list(inspect.signature(tj.GradientTape.gradient).parameters.values())
    names = ["target", "sources", "output_gradients", "unconnected_gradients"]
    assert [p.name for p in parameters] == ["self", *names]
    assert all(p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters)
    assert parameters[3].default is None
    assert parameters[4].default is tj.UnconnectedGradients.NONE

    def program(a: Any, b: Any, w: Any) -> Any:
        with tj.GradientTape(persistent=True) as tape:
            y = a * a * b
        by_name = tape.gradient(
            target=y,
            sources=[a, w],
            output_gradients=tj.asarray(2.0),
            unconnected_gradients=tj.UnconnectedGradients.ZERO,
        )
        return tape.gradient(y, [a, w], tj.asarray(2.0), "zero"), by_name

    def setup() -> Any:
        return *pair(), tj.Variable(1.0)

    assert_modes(program, setup, expected=([48.0, 0.0], [48.0, 0.0]))


SAME_STRUCTURE = {
    "one source": lambda a, b: a,
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
    def program(a: Any, b: Any) -> Any:
        with tj.GradientTape() as tape:
            y = a * a * b
        return tape.gradient(y, make(a, b))

    plain = assert_modes(program, pair, expected=make(24.0, 9.0))
    assert all(isinstance(g, tj.Tensor) for g in tj.tree.leaves(plain.result))


def test_s14_any_mapping_and_a_registered_class_are_structures() -> None:
    def program(a: Any, b: Any) -> Any:
        w = tj.asarray(1.0)
        with tj.GradientTape(persistent=True) as tape:
            y = a * a * b
        ordered = tape.gradient(y, {"z": a, "a": b, "m": a})
        registered = tape.gradient(y, Registered([a, b]))
        note([list(ordered), type(registered)])
        mapped = tape.gradient(y, collections.ChainMap({"x": a}, {"y": b}))
        with_none = tape.gradient(y, {"w": w, "l": [a, w]})
        return ordered, registered.parts, dict(mapped.items()), with_none

    assert_modes(
        program,
        pair,
        expected=(
            {"z": 24.0, "a": 9.0, "m": 24.0},
            [24.0, 9.0],
            {"x": 24.0, "y": 9.0},
            {"w": None, "l": [24.0, None]},
        ),
        notes=[[["z", "a", "m"], Registered]],
    )


def test_s14_sources_that_are_arguments_in_a_structure() -> None:
    def program(params: Any) -> Any:
        with tj.GradientTape() as tape:
            y = params["layer"][0] ** 2 * params["scale"]
        return tape.gradient(y, params)

    def setup() -> Any:
        layer = [tj.Variable(3.0), tj.Variable(1.0)]
        return ({"scale": tj.Variable(4.0), "layer": layer},)

    assert_modes(program, setup, expected={"scale": 9.0, "layer": [24.0, None]})


# 15: several targets, the same one twice, targets that are sources


def test_s15_several_targets_are_summed_and_repeated_ones_count() -> None:
    def program(x: Any) -> Any:
        with tj.GradientTape(persistent=True) as tape:
            y, z = x * x, x * 5.0
        nested = {"a": y, "b": [z, (y,)]}
        targets = [[y, z], (y, z), nested, Layer(y, Pair(z, z)), [y, y]]
        return [tape.gradient(t, x) for t in targets]

    assert_modes(program, scalar, expected=[11.0, 11.0, 17.0, 16.0, 12.0])


def test_s15_duplicate_sources_each_get_the_full_gradient() -> None:
    def program(a: Any, b: Any) -> Any:
        with tj.GradientTape() as tape:
            y = a * a * b
        return tape.gradient(y, [a, a, {"a": a}, b])

    assert_modes(program, pair, expected=[24.0, 24.0, {"a": 24.0}, 9.0])


def test_s15_a_target_that_is_a_source_adds_one() -> None:
    def program(x: Any) -> Any:
        with tj.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = x * x
        return [
            tape.gradient(x, x),
            tape.gradient([y, x], x),
            tape.gradient([y, x], [x, y]),
            tape.gradient([x, x], x),
        ]

    assert_modes(program, tensor, expected=[1.0, 7.0, [7.0, 1.0], 2.0])


def test_s15_also_one_that_was_never_watched() -> None:
    def program(x: Any, w: Any) -> Any:
        with tj.GradientTape(persistent=True) as tape:
            y = w * 2.0
        return [
            tape.gradient(x, x),
            tape.gradient([y, x], x),
            tape.gradient(x, w),
            tape.gradient(x, x, [5.0, 6.0]),
        ]

    def setup() -> Any:
        return tj.asarray([3.0, 4.0]), tj.Variable(2.0)

    assert_modes(program, setup, expected=[[1.0, 1.0], [1.0, 1.0], None, [5.0, 6.0]])


def test_s15_a_variable_can_be_a_target_also_after_it_was_assigned() -> None:
    def program(v: Any, unread: Any) -> Any:
        with tj.GradientTape(persistent=True) as tape:
            y = v * v
        before = tape.gradient(v, v), tape.gradient([y, v], v)
        v.assign(5.0)
        after = tape.gradient(v, v), tape.gradient([y, v], v)
        with tj.GradientTape() as empty:
            pass
        return before, after, [t.gradient(unread, unread) for t in (tape, empty)]

    def setup() -> Any:
        return tj.Variable(3.0), tj.Variable([3.0, 4.0])

    assert_modes(program, setup, expected=((1.0, 7.0), (1.0, 7.0), [[1.0, 1.0]] * 2))


def test_s15_targets_that_are_not_scalars_mean_their_sum() -> None:
    def program(x: Any) -> Any:
        with tj.GradientTape(persistent=True) as tape:
            y = x * x
            total = tj.sum(y)
            targets = [y, tj.sum(x), tj.stack([x, x, x])]
        return [tape.gradient(target, x) for target in (y, total, targets)]

    slope = [[2.0, 4.0], [6.0, 8.0]]
    expected = [slope, slope, [[6.0, 8.0], [10.0, 12.0]]]
    assert_modes(program, matrix, expected=expected)


def test_s15_no_target_no_source_an_integer_target() -> None:
    def program(a: Any, b: Any) -> Any:
        with tj.GradientTape(persistent=True) as tape:
            y = a * a * b
            n = tj.astype(a, tj.int32)
        return {
            "no target": [
                tape.gradient([], a),
                tape.gradient([], [a, b]),
                tape.gradient({}, {"a": a}),
                tape.gradient([], [a, b], None, "zero"),
            ],
            "no source": [tape.gradient(y, empty) for empty in ([], (), {})],
            "neither": tape.gradient([], []),
            "integer": [tape.gradient(n, a), tape.gradient([n, y], a)],
        }

    expected = {
        "no target": [None, [None, None], {"a": None}, [0.0, 0.0]],
        "no source": [[], (), {}],
        "neither": [],
        "integer": [None, 24.0],
    }
    assert_modes(program, pair, expected=expected)


def test_s15_results_of_one_call_as_several_targets() -> None:
    def program(a: Any, b: Any) -> Any:
        return {"x": a * a, "y": (a * b, a * a)}

    for name, call in ways(program, pair):
        a, b = pair()
        with tj.GradientTape(persistent=True) as tape:
            found = call(a, b)
        da, db = tape.gradient(found, [a, b])
        assert (float(da), float(db)) == (6.0 + 4.0 + 6.0, 3.0), name
        da = tape.gradient([found["x"], found["x"], a], a)
        assert float(da) == 13.0, name
    assert_taped(program, pair, expected=[16.0, 3.0], second=[5.0, 1.0])


# 16: intermediates, unconnected sources


def test_s16_intermediates_can_be_sources() -> None:
    def program(x: Any) -> Any:
        with tj.GradientTape(persistent=True) as tape:
            y = x * x
            z = y * x
            w = z * y
        return tape.gradient(w, [x, y, z]), tape.gradient(w, y), tape.gradient(y, z)

    assert_modes(program, scalar, expected=([405.0, 54.0, 9.0], 54.0, None))


def test_s16_an_intermediate_used_twice_gets_the_sum() -> None:
    def program(x: Any) -> Any:
        with tj.GradientTape() as tape:
            h = tj.exp(x)
            y = tj.sum(h * h + h)
        return tape.gradient(y, h)

    plain = assert_modes(program, vector)
    expected = 2 * np.exp([1.0, 2.0]) + 1
    np.testing.assert_allclose(plain.result.numpy(), expected, rtol=1e-6)


def test_s16_results_of_calls_can_be_sources() -> None:
    def program(x: Any) -> Any:
        square = tj.function(lambda x: (x * x, x * 2.0))
        with tj.GradientTape(persistent=True) as tape:
            y, double = square(x)
            z, _ = square(y)
        return tape.gradient(z, [x, y, double]), tape.gradient(double, [x, y, z])

    assert_modes(program, scalar, expected=([108.0, 18.0, None], [2.0, None, None]))


@pytest.mark.parametrize("fill", ["none", "zero", *tj.UnconnectedGradients])
def test_s16_unconnected_sources(fill: Any) -> None:
    def program(a: Any, *others: Any) -> Any:
        with tj.GradientTape() as tape:
            y = a * a
        return tape.gradient(y, [a, *others], unconnected_gradients=fill)

    def setup() -> Any:
        return (
            tj.Variable(3.0),
            tj.Variable([[1.0, 2.0]]),
            tj.zeros((2, 3), dtype=tj.float64),
            tj.zeros(4, dtype=tj.float16),
            tj.asarray(1j),
            tj.zeros((0, 2)),
            tj.asarray([1, 2]),
        )

    if fill in ("none", tj.UnconnectedGradients.NONE):
        expected: list[Any] = [6.0, *[None] * 6]
    else:
        zeros = [np.zeros_like(np.asarray(x)) for x in setup()[1:]]
        expected = [6.0, *zeros]
    assert_modes(program, setup, expected=expected)


@pytest.mark.parametrize("method", ["gradient", "jacobian", "batch_jacobian"])
def test_s16_any_other_value_is_an_error_that_names_it(method: str) -> None:
    values = ["zeros", "NONE", "", None, 0, True, [], "Zero"]

    def program(x: Any) -> Any:
        with tj.GradientTape() as tape:
            y = x * x
        ask = getattr(tape, method)
        for value in values:
            note_error(lambda value=value: ask(y, x, unconnected_gradients=value))
        ask(y, x)  # the tape was not used up
        return y

    names = [rf"(?s)(?=.*'none' or 'zero').*{re.escape(repr(x))}" for x in values]
    assert_modes(program, matrix, errors=[(ValueError, name) for name in names])


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
def test_s17_a_target_or_source_of_another_type_is_named(
    method: str, name: str
) -> None:
    value = REFUSED[name]

    def program(x: Any) -> Any:
        with tj.GradientTape() as tape:
            y = x * x
        ask = getattr(tape, method)
        for target in (value, [y, value], {"k": (value,)}):
            note_error(lambda target=target: ask(target, x))
        for source in (value, [x, value], Layer(x, {"w": value})):
            note_error(lambda source=source: ask(y, source))
        return ask(y, x)  # the tape was not used up

    places = [
        "target",
        r"target at \[1\]",
        r"target at \['k'\]\[0\]",
        "source",
        r"source at \[1\]",
        r"source at \.bias\['w'\]",
    ]
    errors = [(TypeError, rf"{place} is a {name}\b") for place in places]
    assert_modes(program, scalar, expected=6.0, errors=errors)


@pytest.mark.parametrize("name", REFUSED)
def test_s17_batch_jacobian_names_it_too(name: str) -> None:
    value = REFUSED[name]

    def program(x: Any) -> Any:
        with tj.GradientTape() as tape:
            y = x * x
        note_error(lambda: tape.batch_jacobian(value, x))
        note_error(lambda: tape.batch_jacobian(y, value))
        return tape.batch_jacobian(y, x)

    places = ("target", "source")
    errors = [(TypeError, rf"{place} is .*{name}\b") for place in places]
    plain = assert_modes(program, matrix, errors=errors)
    assert plain.result.shape == (2, 2, 2)


@pytest.mark.parametrize("role", ["target", "source"])
def test_s17_it_escapes_as_the_same_error(role: str) -> None:
    def program(x: Any) -> Any:
        with tj.GradientTape() as tape:
            y = x * x
        if role == "target":
            return tape.gradient([y, "loss"], x)
        return tape.gradient(y, [x, 1.0])

    assert_modes(program, scalar, raises=(TypeError, rf"{role} at \[1\] is a "))


def test_s17_a_gradient_that_was_none_is_refused_as_a_target() -> None:
    def program(x: Any) -> Any:
        w = tj.asarray(1.0)
        with tj.GradientTape() as outer:
            with tj.GradientTape() as inner:
                y = x * x
            g = inner.gradient(y, w)
        return outer.gradient(g, x)

    assert_modes(program, scalar, raises=(TypeError, "target is a None"))


# 23: shapes and dtypes of the result


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((), (2, 3)),
        ((3,), (2, 3)),
        ((2, 1), (1, 3)),
        ((1,), (4, 1, 3)),
        ((2, 3), (2, 3)),
        ((1, 1), (3,)),
        ((0, 3), (1, 3)),
    ],
)
@pytest.mark.parametrize("op", [tj.add, tj.multiply, tj.divide, tj.maximum])
def test_s23_broadcasting_sums_back_to_each_shape(
    op: Any, left: tuple[int, ...], right: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.uniform(1, 2, size) for size in (left, right)]
    seed = rng.normal(size=np.broadcast_shapes(left, right))

    def setup() -> Any:
        return tj.Variable(arrays[0]), tj.asarray(arrays[1]), tj.asarray(seed)

    def program(x: Any, y: Any, seed: Any) -> Any:
        with tj.GradientTape() as tape:
            tape.watch(y)
            out = op(x, y)
        return tape.gradient(out, [x, y], seed)

    plain = assert_modes(program, setup)
    assert_taped(lambda x, y, seed: tj.sum(op(x, y) * seed), setup)

    a, b = np.broadcast_arrays(*arrays)
    slopes = {
        tj.add: (1 + 0 * a, 1 + 0 * b),
        tj.multiply: (b, a),
        tj.divide: (1 / b, -a / b**2),
        tj.maximum: (a >= b, a < b),
    }[op]
    for got, slope, shape in zip(plain.result, slopes, (left, right), strict=True):
        assert got.shape == shape
        expected = reduced(seed * slope, shape)
        np.testing.assert_allclose(got.numpy(), expected, rtol=1e-12, atol=1e-15)


def reduced(array: Any, shape: tuple[int, ...]) -> Any:
    """The sum over the axes along which `shape` was repeated."""
    padded = (1,) * (array.ndim - len(shape)) + shape
    axes = tuple(
        at
        for at, (have, want) in enumerate(zip(array.shape, padded, strict=True))
        if want == 1 and have != 1
    )
    return array.sum(axis=axes, keepdims=True).reshape(shape)


FLOATS = ["float16", "bfloat16", "float32", "float64"]


@pytest.mark.parametrize("source", FLOATS)
@pytest.mark.parametrize("other", FLOATS)
def test_s23_a_gradient_has_the_dtype_of_its_source(source: str, other: str) -> None:
    def setup() -> Any:
        x = tj.Variable([1.0, 2.0], dtype=source)
        return x, tj.asarray([3.0, 4.0], dtype=other)

    def program(x: Any, w: Any) -> Any:
        with tj.GradientTape() as tape:
            tape.watch(w)
            y = tj.sum(x * w)
        return tape.gradient(y, [x, w])

    plain = assert_modes(program, setup, expected=[[3.0, 4.0], [1.0, 2.0]])
    assert [g.dtype.name for g in plain.result] == [source, other]
    assert_taped(lambda x, w: tj.sum(x * w), setup, expected=[[3.0, 4.0], [1.0, 2.0]])


def test_s23_also_behind_casts_integers_and_complex_numbers() -> None:
    def program(x: Any) -> Any:
        with tj.GradientTape(persistent=True) as tape:
            targets = [
                tj.sum(tj.astype(x, tj.float64) * 3.0),
                tj.sum(x * tj.asarray([2, 3])),
                tj.sum(tj.abs(x * 1j)),
                tj.sum(x * (2 + 0j)),
            ]
        return [tape.gradient(target, x) for target in targets]

    rows = [[3.0, 3.0], [2.0, 3.0], [1.0, 1.0], [2.0, 2.0]]
    assert_modes(program, vector, expected=[np.float32(row) for row in rows])
