"""gradient() in both modes: structures, targets, sources, refusals (14 to 17, 23)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tapejit as tj

from .both_modes import assert_modes, assert_taped, note, note_error, ways
from .test_gradient import REFUSED, SAME_STRUCTURE, Layer, Pair, Registered


def pair() -> Any:
    return tj.Variable(3.0, name="a"), tj.Variable(4.0, name="b")


def scalar() -> Any:
    return tj.Variable(3.0, name="v")


def vector() -> Any:
    return tj.Variable([1.0, 2.0], name="v")


def tensor() -> Any:
    return tj.asarray(3.0)


# 14: arguments, and the structure of the result


def test_s14_the_arguments_by_position_and_by_name() -> None:
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


@pytest.mark.parametrize("make", SAME_STRUCTURE.values(), ids=SAME_STRUCTURE)
def test_s14_the_result_has_the_structure_of_the_sources(make: Any) -> None:
    def program(a: Any, b: Any) -> Any:
        with tj.GradientTape() as tape:
            y = a * a * b
        return tape.gradient(y, make(a, b))

    assert_modes(program, pair, expected=make(24.0, 9.0))


def test_s14_none_in_structures_and_a_registered_class() -> None:
    def program(a: Any, b: Any) -> Any:
        w = tj.asarray(1.0)
        with tj.GradientTape(persistent=True) as tape:
            y = a * a * b
        found = tape.gradient(y, {"w": w, "l": [a, w]})
        note(list(tape.gradient(y, {"z": a, "a": b, "m": a})))
        return found, tape.gradient(y, Registered([a, b])).parts

    assert_modes(
        program,
        pair,
        expected=({"w": None, "l": [24.0, None]}, [24.0, 9.0]),
        notes=[["z", "a", "m"]],
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
        targets = [[y, z], {"a": y, "b": [z, (y,)]}, Layer(y, Pair(z, z)), [y, y]]
        return [tape.gradient(t, x) for t in targets]

    assert_modes(program, scalar, expected=[11.0, 17.0, 16.0, 12.0])


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


def test_s15_a_variable_can_be_a_target() -> None:
    def program(v: Any, unread: Any) -> Any:
        with tj.GradientTape(persistent=True) as tape:
            y = v * v
        before = tape.gradient(v, v), tape.gradient([y, v], v)
        v.assign(5.0)
        after = tape.gradient(v, v), tape.gradient([y, v], v)
        return before, after, tape.gradient(unread, unread)

    def setup() -> Any:
        return tj.Variable(3.0), tj.Variable([3.0, 4.0])

    assert_modes(program, setup, expected=((1.0, 7.0), (1.0, 7.0), [1.0, 1.0]))


def test_s15_targets_that_are_not_scalars_mean_their_sum() -> None:
    def program(x: Any) -> Any:
        with tj.GradientTape(persistent=True) as tape:
            y = x * x
            targets = [y, tj.sum(x), tj.stack([x, x, x])]
        return tape.gradient(y, x), tape.gradient(targets, x)

    assert_modes(program, vector, expected=([2.0, 4.0], [6.0, 8.0]))


def test_s15_no_target_no_source_an_integer_target() -> None:
    def program(a: Any, b: Any) -> Any:
        with tj.GradientTape(persistent=True) as tape:
            y = a * a * b
            n = tj.astype(a, tj.int32)
        return [
            tape.gradient([], a),
            tape.gradient([], [a, b]),
            tape.gradient({}, {"a": a}),
            tape.gradient([], [a, b], None, "zero"),
            tape.gradient(y, []),
            tape.gradient([], []),
            tape.gradient(n, a),
            tape.gradient([n, y], a),
        ]

    expected = [None, [None, None], {"a": None}, [0.0, 0.0], [], [], None, 24.0]
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
def test_s16_any_other_value_is_the_same_error(method: str) -> None:
    def program(x: Any) -> Any:
        with tj.GradientTape() as tape:
            y = x * x
        ask = getattr(tape, method)
        for value in ("zeros", None, 0, []):
            note_error(lambda value=value: ask(y, x, unconnected_gradients=value))
        return tape.gradient(y, x)

    def setup() -> Any:
        return tj.Variable([[1.0, 2.0]])

    plain = assert_modes(program, setup, expected=[[2.0, 4.0]])
    assert all("'none' or 'zero'" in text for _, text in plain.notes)


# 17: what is neither a tensor nor a variable


@pytest.mark.parametrize("name", REFUSED)
def test_s17_what_is_no_tensor_is_the_same_error(name: str) -> None:
    value = REFUSED[name]

    def program(x: Any) -> Any:
        with tj.GradientTape() as tape:
            y = x * x
        for ask in (tape.gradient, tape.jacobian):
            note_error(lambda ask=ask: ask(value, x))
            note_error(lambda ask=ask: ask([y, value], x))
            note_error(lambda ask=ask: ask(y, value))
            note_error(lambda ask=ask: ask(y, Layer(x, {"w": value})))
        note_error(lambda: tape.batch_jacobian(value, x))
        note_error(lambda: tape.batch_jacobian(y, value))
        return tape.gradient(y, x)

    def setup() -> Any:
        return tj.Variable([[1.0, 2.0]])

    plain = assert_modes(program, setup, expected=[[2.0, 4.0]])
    assert all(issubclass(cls, TypeError) for cls, _ in plain.notes)
    assert all(name in text for _, text in plain.notes)


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
    assert [g.shape for g in plain.result] == [left, right]
    assert_taped(lambda x, y, seed: tj.sum(op(x, y) * seed), setup)


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
