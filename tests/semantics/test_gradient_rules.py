"""gradient(): seeds, consumption, being asked inside, None or zero (18 to 21, 23)."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import tapejit as tj
from tapejit.tape import derivative


def recorded(persistent: bool = False) -> tuple[tj.GradientTape, Any, Any]:
    """A tape with y = x² of a vector of two."""
    x = tj.Variable([1.0, 2.0])
    with tj.GradientTape(persistent=persistent) as tape:
        y = x * x
    return tape, y, x


# 18: output_gradients


SEEDS = {
    "tensor": tj.asarray([1.0, 10.0]),
    "variable": tj.Variable([1.0, 10.0]),
    "ndarray": np.float32([1, 10]),
    "list": [1.0, 10.0],
    "tuple": (1.0, 10.0),
    "list of scalars": [tj.asarray(1.0), 10.0],
    "list of one tensor": [tj.asarray([1.0, 10.0])],
    "integers": [1, 10],
    "integer array": np.int64([1, 10]),
    "float64 array": np.float64([1, 10]),
    "float16 tensor": tj.asarray([1.0, 10.0], dtype="float16"),
}


@pytest.mark.parametrize("seed", SEEDS.values(), ids=SEEDS)
def test_s18_the_elements_of_the_target_are_weighed(seed: Any) -> None:
    tape, y, x = recorded()
    g = tape.gradient(y, x, output_gradients=seed)
    assert g.tolist() == [2.0, 40.0]
    assert g.dtype == np.float32


def test_s18_one_per_target_in_the_same_structure() -> None:
    x = tj.Variable([1.0, 2.0])
    with tj.GradientTape(persistent=True) as tape:
        y, z = x * x, tj.sum(x)
    seeds = [1.0, 10.0]
    g = tape.gradient([y, z], x, [tj.asarray(seeds), tj.asarray(3.0)])
    assert g.tolist() == [5.0, 43.0]
    g = tape.gradient({"b": y, "a": z}, x, {"a": 3.0, "b": tj.asarray(seeds)})
    assert g.tolist() == [5.0, 43.0]
    g = tape.gradient({"k": (y, [z])}, x, {"k": (tj.asarray(seeds), [3.0])})
    assert g.tolist() == [5.0, 43.0]
    assert tape.gradient([y], x, [tj.asarray(seeds)]).tolist() == [2.0, 40.0]


def test_s18_a_scalar_target_takes_a_number() -> None:
    x = tj.Variable(3.0)
    with tj.GradientTape(persistent=True) as tape:
        y = x * x
    for seed in (2, 2.0, np.float64(2), np.array(2.0), tj.asarray(2.0)):
        assert float(tape.gradient(y, x, seed)) == 12.0


def test_s18_a_nested_list_for_one_matrix_target_is_that_matrix() -> None:
    x = tj.Variable([[1.0, 2.0], [3.0, 4.0]])
    with tj.GradientTape() as tape:
        y = x * x
    g = tape.gradient(y, x, [[1.0, 0.0], [0.0, 10.0]])
    assert g.tolist() == [[2.0, 0.0], [0.0, 80.0]]


def test_s18_zeros_are_weights_like_any_other() -> None:
    tape, y, x = recorded()
    assert tape.gradient(y, x, [0.0, 0.0]).tolist() == [0.0, 0.0]


WRONG_SHAPES = {
    "scalar": 1.0,
    "scalar tensor": tj.asarray(1.0),
    "one element": [1.0],
    "three elements": [1.0, 2.0, 3.0],
    "row": tj.ones((1, 2)),
    "column": np.ones((2, 1), np.float32),
    "empty": tj.zeros(0),
}


@pytest.mark.parametrize("seed", WRONG_SHAPES.values(), ids=WRONG_SHAPES)
def test_s18_another_shape_is_an_error_that_names_both(seed: Any) -> None:
    tape, y, x = recorded()
    shape = np.shape(np.asarray(seed))
    with pytest.raises(ValueError, match="output gradient") as caught:
        tape.gradient(y, x, output_gradients=seed)
    assert str(shape) in str(caught.value)
    assert "(2,)" in str(caught.value)
    assert tape.gradient(y, x, [1.0, 1.0]).tolist() == [2.0, 4.0], "a retry works"


ONE = [1.0, 1.0]
WRONG_STRUCTURES = {
    "too few": lambda: [tj.asarray(ONE)],
    "too many": lambda: [tj.asarray(ONE)] * 3,
    "dict": lambda: {"a": tj.asarray(ONE), "b": tj.asarray(ONE)},
    "nested": lambda: [[tj.asarray(ONE)], tj.asarray(ONE)],
    "one tensor": lambda: tj.asarray(ONE),
}


@pytest.mark.parametrize("make", WRONG_STRUCTURES.values(), ids=WRONG_STRUCTURES)
def test_s18_another_structure_is_an_error_that_names_both(make: Any) -> None:
    x = tj.Variable([1.0, 2.0])
    with tj.GradientTape() as tape:
        targets = [x * x, x * 3.0]
    with pytest.raises(ValueError, match=r"output_gradients.*targets"):
        tape.gradient(targets, x, output_gradients=make())
    assert tape.gradient(targets, x).tolist() == [5.0, 7.0], "a retry works"


def test_s18_a_missing_key_is_an_error_that_names_it() -> None:
    x = tj.Variable(3.0)
    with tj.GradientTape() as tape:
        targets = {"mean": x * x, "scale": x * 3.0}
    with pytest.raises(ValueError, match="'scale'"):
        tape.gradient(targets, x, output_gradients={"mean": 1.0})
    assert float(tape.gradient(targets, x)) == 9.0


def test_s18_a_none_entry_is_an_error_not_ones() -> None:
    x = tj.Variable(3.0)
    with tj.GradientTape() as tape:
        targets = [x * x, x * 3.0]
    with pytest.raises(ValueError, match=r"output gradient.*missing"):
        tape.gradient(targets, x, output_gradients=[None, tj.asarray(1.0)])
    with pytest.raises(ValueError, match=r"missing|output_gradients"):
        tape.gradient(targets, x, output_gradients=[None, None])
    assert float(tape.gradient(targets, x)) == 9.0, "a retry works"


def test_s18_a_none_entry_for_one_target_in_a_list_is_an_error_too() -> None:
    tape, y, x = recorded()
    with pytest.raises(ValueError, match="missing"):
        tape.gradient([y], x, output_gradients=[None])
    assert tape.gradient(y, x).tolist() == [2.0, 4.0]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("seed_dtype", ["float16", "float32", "float64", "int32"])
def test_s18_its_dtype_is_converted_never_reinterpreted(
    dtype: str, seed_dtype: str
) -> None:
    x = tj.Variable([1.0, 2.0], dtype=dtype)
    with tj.GradientTape() as tape:
        y = x * x
    g = tape.gradient(y, x, tj.asarray([1, 10], dtype=seed_dtype))
    assert g.dtype == np.dtype(dtype)
    assert g.tolist() == [2.0, 40.0]


def test_s18_a_complex_seed_of_a_real_target_is_refused() -> None:
    tape, y, x = recorded()
    with pytest.raises(TypeError, match=r"complex64.*float32"):
        tape.gradient(y, x, output_gradients=tj.asarray([1j, 2j]))
    assert tape.gradient(y, x).tolist() == [2.0, 4.0], "a retry works"


def test_s18_a_real_seed_of_a_complex_target_is_promoted() -> None:
    z = tj.Variable([1 + 2j])
    with tj.GradientTape() as tape:
        y = z * z
    assert tape.gradient(y, z, tj.asarray([2.0])).tolist() == [4 - 8j]


@pytest.mark.parametrize("seed", ["ones", object(), ["a", "b"]])
def test_s18_what_is_no_number_is_a_type_error(seed: Any) -> None:
    tape, y, x = recorded()
    with pytest.raises(TypeError):
        tape.gradient(y, x, output_gradients=seed)
    assert tape.gradient(y, x).tolist() == [2.0, 4.0], "a retry works"


# 19: a tape of one use, and calls that fail


ASK = {
    "gradient": lambda tape, y, x: tape.gradient(y, x),
    "jacobian": lambda tape, y, x: tape.jacobian(y, x),
    "batch_jacobian": lambda tape, y, x: tape.batch_jacobian(y, x),
}


@pytest.mark.parametrize("second", ASK)
@pytest.mark.parametrize("first", ASK)
def test_s19_a_second_call_on_a_tape_of_one_use_is_an_error(
    first: str, second: str
) -> None:
    x = tj.Variable([[1.0, 2.0]])
    with tj.GradientTape() as tape:
        y = x * x
    ASK[first](tape, y, x)
    with pytest.raises(RuntimeError, match=f"{second}.*used up") as caught:
        ASK[second](tape, y, x)
    assert "persistent=True" in str(caught.value)


def test_s19_a_persistent_tape_can_be_asked_any_number_of_times() -> None:
    tape, y, x = recorded(persistent=True)
    for _ in range(3):
        assert tape.gradient(y, x).tolist() == [2.0, 4.0]
        assert tape.jacobian(y, x).tolist() == [[2.0, 0.0], [0.0, 4.0]]


REFUSED_CALLS = {
    "target": lambda tape, y, x: tape.gradient(1.0, x),
    "source": lambda tape, y, x: tape.gradient(y, [x, "x"]),
    "unconnected": lambda tape, y, x: tape.gradient(y, x, None, "nothing"),
    "seed shape": lambda tape, y, x: tape.gradient(y, x, [1.0, 2.0, 3.0]),
    "seed structure": lambda tape, y, x: tape.gradient([y, y], x, [1.0]),
    "seed dtype": lambda tape, y, x: tape.gradient(y, x, tj.asarray([1j, 1j])),
    "jacobian target": lambda tape, y, x: tape.jacobian(None, x),
    "jacobian chunk": lambda tape, y, x: tape.jacobian(y, x, chunk_size=0),
    "batch_jacobian rank": lambda tape, y, x: tape.batch_jacobian(y, x),
    "unknown keyword": lambda tape, y, x: tape.gradient(y, x, grad_ys=1),
}


@pytest.mark.parametrize("call", REFUSED_CALLS.values(), ids=REFUSED_CALLS)
def test_s19_a_refused_call_leaves_the_tape_as_it_was(call: Any) -> None:
    tape, y, x = recorded()
    held = tape.nbytes
    for _ in range(2):
        with pytest.raises((TypeError, ValueError)):
            call(tape, y, x)
    assert tape.nbytes == held
    assert tape.gradient(y, x).tolist() == [2.0, 4.0]


@pytest.mark.parametrize("call", REFUSED_CALLS.values(), ids=REFUSED_CALLS)
def test_s19_also_inside_its_own_block_where_it_goes_on_recording(call: Any) -> None:
    x = tj.Variable([1.0, 2.0])
    with tj.GradientTape() as tape:
        y = x * x
        with pytest.raises((TypeError, ValueError)):
            call(tape, y, x)
        z = y * x
    assert tape.gradient(z, x).tolist() == [3.0, 12.0]


@pytest.mark.parametrize("inside", [False, True], ids=["after", "inside"])
def test_s19_an_adjoint_that_cannot_be_built_leaves_the_tape_as_it_was(
    monkeypatch: pytest.MonkeyPatch, inside: bool
) -> None:
    """The whole adjoint is built before anything is consumed."""
    x = tj.Variable([1.0, 2.0])

    def fail(*args: Any, **kwargs: Any) -> Any:
        raise ZeroDivisionError("a rule that raises")

    def ask() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(derivative, "vjp", fail)
            with pytest.raises(ZeroDivisionError, match="a rule that raises"):
                tape.gradient(y, x)

    with tj.GradientTape() as tape:
        y = tj.sin(x) * x - x
        if inside:
            ask()
        z = y * 1.0
    if not inside:
        ask()
    expected = np.cos([1.0, 2.0]) * [1.0, 2.0] + np.sin([1.0, 2.0]) - 1
    np.testing.assert_allclose(tape.gradient(z, x).numpy(), expected, rtol=1e-5)


# 20: inside its own block


def test_s20_a_tape_of_one_use_stops_recording_first() -> None:
    x = tj.Variable(3.0)
    with tj.GradientTape() as tape:
        y = x * x
        g = tape.gradient(y, x)
        with pytest.raises(RuntimeError, match="not recording"):
            tape.watch(y)
        tj.exp(x) * y
        assert tape.nbytes == 0, "nothing is recorded any more"
    assert float(g) == 6.0
    with tape:
        z = x * x * x
    assert float(tape.gradient(z, x)) == 27.0, "and it can be entered again"


def test_s20_it_stays_stopped_when_it_was_asked_while_paused() -> None:
    x = tj.Variable(3.0)
    with tj.GradientTape() as tape:
        y = x * x
        with tape.stop_recording():
            assert float(tape.gradient(y, x)) == 6.0
        tj.exp(x) * y
        assert tape.nbytes == 0, "nothing is recorded any more"
        with pytest.raises(RuntimeError, match="not recording"):
            tape.watch(y)


def test_s20_a_jacobian_stops_it_too() -> None:
    x = tj.Variable([1.0, 2.0])
    with tj.GradientTape() as tape:
        assert tape.jacobian(x * x, x).tolist() == [[2.0, 0.0], [0.0, 4.0]]
        with pytest.raises(tj.TapeNotRecording):
            tape.reset()


def test_s20_an_outer_tape_goes_on() -> None:
    x = tj.Variable(3.0)
    with tj.GradientTape() as outer:
        with tj.GradientTape() as inner:
            g = inner.gradient(x * x * x, x)
        z = g * x
    assert float(outer.gradient(z, x)) == 6 * 9 + 27


def test_s20_a_persistent_tape_records_its_gradient_operations() -> None:
    x = tj.Variable(3.0)
    with tj.GradientTape(persistent=True) as tape:
        y = x * x * x
        with pytest.warns(UserWarning, match="persistent"):
            g = tape.gradient(y, x)
        second = tape.gradient(g, x)
    assert float(second) == 18.0
    assert float(tape.gradient(second, x)) == 6.0


def test_s20_a_jacobian_inside_is_recorded_too() -> None:
    x = tj.Variable([1.0, 2.0])
    with tj.GradientTape(persistent=True) as tape:
        y = x * x * x
        with pytest.warns(UserWarning, match="persistent"):
            matrix = tape.jacobian(y, x)
        total = tj.sum(matrix * matrix)
    assert matrix.tolist() == [[3.0, 0.0], [0.0, 12.0]]
    assert tape.gradient(total, x).tolist() == [2 * 3 * 6, 2 * 12 * 12]


def test_s20_and_warns_once_about_the_cost() -> None:
    x = tj.Variable([[3.0, 1.0]])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with tj.GradientTape(persistent=True) as tape:
            y = x * x
            tape.gradient(y, x)
            tape.gradient(y, x)
            tape.jacobian(y, x)
            tape.batch_jacobian(y, x)
        tape.gradient(y, x)
    (warning,) = caught
    assert warning.filename == __file__, "it shows the user's line"
    assert "time and memory" in str(warning.message)
    assert "stop_recording" in str(warning.message)


def test_s20_a_warning_turned_into_an_error_leaves_the_tape_usable() -> None:
    x = tj.Variable(3.0)
    with tj.GradientTape(persistent=True) as tape:
        y = x * x
        with pytest.raises(UserWarning):
            tape.gradient(y, x)
        z = y * x
    assert float(tape.gradient(z, x)) == 27.0


def test_s20_after_the_block_there_is_nothing_to_warn_about() -> None:
    tape, y, x = recorded(persistent=True)
    assert tape.gradient(y, x).tolist() == [2.0, 4.0]


# 21: None or zero


CONNECTED = {
    "times zero": lambda x: x * 0.0,
    "minus itself": lambda x: x - x,
    "branch of where not taken": lambda x: tj.where(False, x, 1.0),
    "smaller of a maximum": lambda x: tj.maximum(x, 100.0),
    "element not selected": lambda x: tj.stack([x, 2.0 * x])[1:] * 0.0,
    "slice of nothing": lambda x: tj.stack([x, x])[:0],
    "multiplied by zeros": lambda x: x * tj.zeros(3),
    "clipped": lambda x: tj.clip(x, 10.0, 20.0),
    "floor": tj.floor,
    "sign": tj.sign,
    "power zero": lambda x: x**0,
    "zero exponent tensor": lambda x: x ** tj.asarray(0.0),
    "floor of a product": lambda x: tj.floor(x * 2.0) * 3.0,
    "sum of an empty axis": lambda x: tj.sum(x * tj.zeros(0)),
}


@pytest.mark.parametrize("function", CONNECTED.values(), ids=CONNECTED)
def test_s21_a_vanishing_derivative_is_zero(function: Any) -> None:
    x = tj.Variable(3.0)
    with tj.GradientTape() as tape:
        y = function(x)
    assert float(tape.gradient(y, x)) == 0.0


CUT = {
    "stop_gradient": tj.stop_gradient,
    "constant": lambda x: tj.asarray(2.0),
    "zeros_like": tj.zeros_like,
    "ones_like": tj.ones_like,
    "comparison": lambda x: tj.astype(x > 1.0, tj.float32),
    "condition of where": lambda x: tj.where(x > 1.0, 1.0, 2.0),
    "position": lambda x: tj.astype(tj.argmax(tj.stack([x, x])), tj.float32),
    "index": lambda x: tj.asarray([1.0, 2.0, 3.0, 4.0])[tj.astype(x, tj.int32)],
    "shape": lambda x: tj.asarray(float(x.size)),
    "isnan": lambda x: tj.astype(tj.isnan(x), tj.float32),
    "other tensor": lambda x: tj.Variable(1.0) * 2.0,
}


@pytest.mark.parametrize("function", CUT.values(), ids=CUT)
def test_s21_without_a_path_it_is_none(function: Any) -> None:
    x = tj.Variable(3.0)
    with tj.GradientTape() as tape:
        y = function(x)
    assert tape.gradient(y, x) is None


def test_s21_connectivity_does_not_depend_on_values() -> None:
    def loss(x: Any, scale: float) -> tj.Tensor:
        return tj.where(x > 0.0, x * scale, 0.0)

    for value in (-1.0, 0.0, 1.0):
        for scale in (0.0, 1.0):
            x = tj.Variable(value)
            with tj.GradientTape() as tape:
                y = loss(x, scale)
            assert float(tape.gradient(y, x)) == scale * (value > 0)


def test_s21_each_output_of_a_function_has_its_own_connections() -> None:
    a, b = tj.Variable(3.0), tj.Variable(4.0)

    def both(a: Any, b: Any) -> tuple[tj.Tensor, tj.Tensor, tj.Tensor]:
        return a * 2.0, b * 3.0, a * b

    with tj.GradientTape(persistent=True) as tape:
        first, second, third = both(a, b)
    assert float(tape.gradient(first, a)) == 2.0
    assert tape.gradient(first, b) is None
    assert tape.gradient(second, a) is None
    assert float(tape.gradient(second, b)) == 3.0
    assert [float(g) for g in tape.gradient(third, [a, b])] == [4.0, 3.0]
    assert [float(g) for g in tape.gradient([first, second], [a, b])] == [2.0, 3.0]


def test_s21_python_branches_connect_what_ran() -> None:
    a, b = tj.Variable(3.0), tj.Variable(4.0)

    def choose(x: Any) -> tj.Tensor:
        return a * x if x > 0 else b * x

    for x, expected in ((2.0, [2.0, None]), (-2.0, [None, -2.0])):
        with tj.GradientTape() as tape:
            y = choose(tj.asarray(x))
        found = tape.gradient(y, [a, b])
        assert [None if g is None else float(g) for g in found] == expected


def test_s21_zero_and_a_path_beside_it_add_up() -> None:
    x, w = tj.Variable(3.7), tj.Variable(2.0)
    with tj.GradientTape() as tape:
        y = tj.floor(x) * w + x
    assert [float(g) for g in tape.gradient(y, [x, w])] == [1.0, 3.0]


def test_s21_none_is_for_the_source_not_for_its_siblings() -> None:
    x, w = tj.Variable(3.0), tj.Variable(2.0)
    with tj.GradientTape() as tape:
        y = tj.stop_gradient(x) * w
    dx, dw = tape.gradient(y, [x, w])
    assert dx is None
    assert float(dw) == 3.0


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
    x, y = (tj.Variable(rng.uniform(1, 2, size)) for size in (left, right))
    seed = rng.normal(size=np.broadcast_shapes(left, right))
    with tj.GradientTape() as tape:
        out = op(x, y)
    dx, dy = tape.gradient(out, [x, y], tj.asarray(seed))
    assert (dx.shape, dy.shape) == (left, right)

    a, b = np.broadcast_arrays(x.numpy(), y.numpy())
    slopes = {
        tj.add: (1 + 0 * a, 1 + 0 * b),
        tj.multiply: (b, a),
        tj.divide: (1 / b, -a / b**2),
        tj.maximum: (a >= b, a < b),
    }[op]
    for got, slope, shape in zip((dx, dy), slopes, (left, right), strict=True):
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


@pytest.mark.parametrize("source", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("other", ["float16", "bfloat16", "float32", "float64"])
def test_s23_a_gradient_has_the_dtype_of_its_source(source: str, other: str) -> None:
    x = tj.Variable([1.0, 2.0], dtype=source)
    w = tj.asarray([3.0, 4.0], dtype=other)
    with tj.GradientTape() as tape:
        y = tj.sum(x * w)
    g = tape.gradient(y, x)
    assert g.dtype == x.dtype
    assert g.numpy().astype(float).tolist() == [3.0, 4.0]


def test_s23_also_behind_casts_integers_and_complex_numbers() -> None:
    x = tj.Variable([1.0, 2.0])
    with tj.GradientTape(persistent=True) as tape:
        wide = tj.sum(tj.astype(x, tj.float64) * 3.0)
        counted = tj.sum(x * tj.asarray([2, 3]))
        turned = tj.sum(tj.abs(x * 1j))
        squared = tj.sum(x * (2 + 0j))
    for target, expected in ((wide, 3.0), (counted, None), (turned, 1.0), (squared, 2)):
        g = tape.gradient(target, x)
        assert g.dtype == np.float32
        if expected is not None:
            assert g.tolist() == [expected, expected]
    assert tape.gradient(counted, x).tolist() == [2.0, 3.0]
