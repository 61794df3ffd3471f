"""`x.at[key]`: what an assignment or `ufunc.at` would leave, as a new tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from advanced_keys import keys, shapes
from hypothesis import given, settings
from hypothesis import strategies as st

import tapejit as tj

Array = np.ndarray[Any, Any]

DATA = np.arange(24.0).reshape(2, 3, 4) / 4 + 0.5
UFUNCS = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "power": np.power,
    "min": np.minimum,
    "max": np.maximum,
}
METHODS = ("set", *UFUNCS)

KEYS = {
    "integer": 1,
    "negative": (-1, 0),
    "slice": slice(1, None),
    "slices": (slice(None), slice(None, None, -2), slice(1, 3)),
    "ellipsis": (..., 2),
    "everything": ...,
    "empty tuple": (),
    "nothing": slice(2, 2),
    "list": [1, 0],
    "repeated": ([0, 0, 1, 0], [2, 2, 1, 2]),
    "repeated rows": [1, 1],
    "repeated columns": (slice(None), [0, 2, 0]),
    "repeated and apart": ([0, 0], slice(None), [1, 1]),
    "tensor": tj.asarray([1, 1, 0]),
    "mask": DATA > 3,
    "mask of rows": np.array([False, True]),
    "mask and integer": (DATA[:, :, 0] > 1, 2),
    "empty list": [],
    "bool": True,
}


def as_numpy(key: Any) -> Any:
    if isinstance(key, tuple):
        return tuple(map(as_numpy, key))
    return key.numpy() if isinstance(key, tj.Tensor) else key


def places_of(shape: tuple[int, ...], key: Any) -> Array:
    return np.arange(int(np.prod(shape))).reshape(shape)[as_numpy(key)]


def one_by_one(method: str, array: Array, key: Any, values: Any) -> Array:
    """Value after value is written to its place."""
    places = places_of(array.shape, key)
    given = np.broadcast_to(values, places.shape).reshape(-1)
    out = array.copy()
    flat = out.reshape(-1)
    for at, value in zip(places.reshape(-1), given, strict=True):
        flat[at] = value if method == "set" else UFUNCS[method](flat[at], value)
    return out


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
def test_the_values_are_numpys(method: str, key: Any) -> None:
    rng = np.random.default_rng(0)
    values = rng.uniform(0.5, 2.0, np.shape(DATA[as_numpy(key)]))
    for value in (values, 1.5):
        expected = DATA.copy()
        if method == "set":
            expected[as_numpy(key)] = value
        else:
            UFUNCS[method].at(expected, as_numpy(key), value)
        for x in (tj.asarray(DATA), tj.Variable(DATA)):
            found = getattr(x.at[key], method)(value)
            assert isinstance(found, tj.Tensor)
            assert found.dtype == DATA.dtype
            np.testing.assert_array_equal(found, expected)
            np.testing.assert_array_equal(x, DATA)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_random_key_is_written_in_order(data: Any) -> None:
    shape = data.draw(shapes())
    key = data.draw(keys(shape, is_assigned=True))
    method = data.draw(st.sampled_from(METHODS))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    array = rng.uniform(0.5, 2.0, shape)
    try:
        selected = array[key]
    except IndexError:
        with pytest.raises(IndexError):
            tj.asarray(array).at[key].set(0.0)
        return
    values = rng.uniform(0.5, 2.0, selected.shape)
    expected = one_by_one(method, array, key, values)
    found = getattr(tj.asarray(array).at[key], method)(values)
    assert found.shape == array.shape
    np.testing.assert_array_equal(found, expected)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_the_gradient_of_set_goes_to_what_is_left(data: Any) -> None:
    shape = data.draw(shapes())
    key = data.draw(keys(shape, is_assigned=True))
    array = np.random.default_rng(0).normal(size=shape)
    try:
        places = places_of(shape, key)
    except IndexError:
        return
    x, v = tj.Variable(array), tj.Variable(np.ones(places.shape))
    weights = np.random.default_rng(1).normal(size=shape)
    with tj.GradientTape() as tape:
        y = x.at[key].set(v)
    by_x, by_v = tape.gradient(y, [x, v], tj.asarray(weights))
    written = {int(place): at for at, place in enumerate(places.reshape(-1))}
    of_x, of_v = weights.reshape(-1).copy(), np.zeros(places.size)
    for place, at in written.items():
        of_v[at], of_x[place] = of_x[place], 0.0
    np.testing.assert_array_equal(by_x, of_x.reshape(shape))
    np.testing.assert_array_equal(by_v, of_v.reshape(places.shape))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "name", ["slices", "repeated", "repeated columns", "mask", "nothing"]
)
def test_the_derivatives_are_those_of_finite_differences(
    method: str, name: str
) -> None:
    key = KEYS[name]
    rng = np.random.default_rng(3)
    values = rng.uniform(0.5, 2.0, np.shape(DATA[as_numpy(key)]))

    def call(x: Any, v: Any) -> Any:
        return tj.sin(getattr(x.at[key], method)(v))

    tj.testing.check_grads(call, [DATA, values])
    tj.testing.check_grads(call, [DATA, np.array(1.3)])


@pytest.mark.parametrize("method", ["set", "add", "subtract", "multiply", "divide"])
def test_complex_derivatives(method: str) -> None:
    array = DATA[0] + 1j * DATA[1]
    values = np.array([1 + 2j, 3 - 1j, 0.5j])

    def call(x: Any, v: Any) -> Any:
        return tj.square(getattr(x.at[0, [1, 1, 2]], method)(v))

    tj.testing.check_grads(call, [array, values])


def test_ties_of_min_and_max_go_to_what_was_there_first() -> None:
    x, v = tj.Variable([1.0, 2.0]), tj.Variable([1.0, 1.0, 1.0])
    with tj.GradientTape(persistent=True) as tape:
        high, low = x.at[[0, 0, 0]].max(v), x.at[[0, 1, 1]].min(v)
    assert tape.gradient(high, x).tolist() == [1.0, 1.0]
    assert tape.gradient(high, v).tolist() == [0.0, 0.0, 0.0]
    assert tape.gradient(low, x).tolist() == [1.0, 0.0]
    assert tape.gradient(low, v).tolist() == [0.0, 1.0, 0.0]


@pytest.mark.parametrize("method", ["min", "max"])
def test_an_extreme_of_many_values_is_one_scatter(method: str) -> None:
    """However often a position is repeated; NaN wins, and the first of equals."""
    rng = np.random.default_rng(3)
    x, v = rng.integers(-2, 3, 5).astype("f4"), rng.integers(-9, 9, 900).astype("f4")
    v[7] = np.nan
    i = rng.integers(0, 5, 900)
    step = tj.function(
        tj.value_and_grad(
            lambda x, v, i: tj.sum(getattr(x.at[i], method)(v) * [1.0, 2, 3, 4, 5]),
            argnums=(0, 1),
        )
    )
    for known in (i, tj.asarray(i)):
        _, (by_x, by_v) = step(x, v, known)
        expected = x.copy()
        with np.errstate(invalid="ignore"):
            getattr(np, f"{method}imum").at(expected, i, v)
        np.testing.assert_array_equal(getattr(tj.asarray(x).at[i], method)(v), expected)
        firsts = np.zeros(900)
        kept = np.zeros(5)
        for at in range(5):
            best = np.flatnonzero((i == at) & (v == expected[at]))
            if x[at] == expected[at]:
                kept[at] = at + 1
            elif not np.isnan(expected[at]):
                firsts[best[0]] = at + 1
        np.testing.assert_array_equal(by_x, kept)
        np.testing.assert_array_equal(by_v, firsts)
        assert len(step.graph(x, v, known).nodes) < 60


def test_what_is_overwritten_may_be_infinite() -> None:
    x, v = tj.Variable([np.inf, np.nan, 1.0]), tj.Variable([-np.inf, -0.0])
    with tj.GradientTape() as tape:
        y = x.at[[1, 1]].set(v) * 2.0
    assert y.numpy()[0] == np.inf
    assert np.signbit(y.numpy()[1])
    by_x, by_v = tape.gradient(y, [x, v])
    assert by_x.tolist() == [2.0, 0.0, 2.0]
    assert by_v.tolist() == [0.0, 2.0]


def test_second_derivatives_are_none_where_the_method_is_linear() -> None:
    x = tj.Variable([1.0, 2.0, 3.0])
    for method, expected in {"set": None, "add": None, "max": [0.0] * 3}.items():
        with tj.GradientTape() as outer:
            with tj.GradientTape() as inner:
                y = getattr(x.at[0], method)(0.5)
            first = inner.gradient(y, x)
        second = outer.gradient(first, x)
        assert (second if second is None else second.tolist()) == expected, method


def test_get_reads() -> None:
    x = tj.Variable(DATA)
    with tj.GradientTape() as tape:
        y = x.at[:, [0, 0]].get()
    np.testing.assert_array_equal(y, DATA[:, [0, 0]])
    np.testing.assert_array_equal(tape.gradient(y, x)[0, :, 0], [2.0, 0.0, 0.0])


# Dtypes


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "float16", "complex64"])
def test_the_result_keeps_the_dtype(dtype: str) -> None:
    array = np.array([1, 0, 1]).astype(dtype)
    expected = array.copy()
    expected[1:] = True
    found = tj.asarray(array).at[1:].set(True)
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found, expected)


def test_set_converts_as_an_assignment_does() -> None:
    whole = tj.asarray([1, 2, 3])
    assert whole.at[0].set(2.7).tolist() == [2, 2, 3]
    assert whole.at[1:].set(np.array([-1.5, 9.9])).tolist() == [1, -1, 9]
    assert tj.asarray([True, False]).at[1].set(5).tolist() == [True, True]
    single = tj.asarray([1.0, 2.0])
    assert single.at[0].set(np.float64(0.1)).dtype == np.float32
    assert single.at[0].set(np.array([0.1])).dtype == np.float32
    with pytest.raises(OverflowError):
        tj.asarray(np.uint8([1, 2])).at[0].set(300)
    with pytest.raises(OverflowError):
        tj.asarray(np.uint8([1, 2])).at[0].set([300])


def test_the_gradient_comes_back_in_the_dtype_of_the_value() -> None:
    x, v = tj.Variable([1.0, 2.0]), tj.Variable(np.array([3.0]))
    with tj.GradientTape() as tape:
        y = x.at[:1].set(v)
    assert tape.gradient(y, v).dtype == np.float64


def test_values_of_a_kind_that_the_tensor_cannot_hold_are_refused() -> None:
    whole, single = tj.asarray([1, 2]), tj.asarray([1.0, 2.0])
    with pytest.raises(tj.DTypeError, match=r"^at\.set: complex64"):
        single.at[0].set(1j)
    with pytest.raises(tj.DTypeError, match=r"^at\.add: float32"):
        whole.at[0].add(0.5)
    with pytest.raises(tj.DTypeError, match=r"^at\.multiply: float64"):
        whole.at[0].multiply(np.array(0.5))
    with pytest.raises(tj.DTypeError, match=r"^at\.divide: .*quotients"):
        whole.at[0].divide(2)
    with pytest.raises(tj.DTypeError):
        tj.asarray([1j]).at[0].max(2.0)


def test_halves_are_rounded_once() -> None:
    factors = np.full(5, 1.001, np.float16)
    expected = np.float16(np.prod(factors.astype(np.float32)))
    found = tj.asarray(np.float16([1.0])).at[[0] * 5].multiply(factors)
    assert found.dtype == np.float16
    assert found.numpy()[0] == expected


def test_integers_and_bools_are_computed_as_such() -> None:
    whole = np.array([7, 2**62, -3])
    key, values = [0, 1, 1, 2], np.array([3, 1, -1, 2])
    for method in ("add", "subtract", "multiply", "min", "max"):
        expected = one_by_one(method, whole, key, values)
        found = getattr(tj.asarray(whole).at[key], method)(values)
        np.testing.assert_array_equal(found, expected)
    flags = np.array([True, False])
    found = tj.asarray(flags).at[[1, 1]].add([True, True])
    assert found.tolist() == [True, True]
    found = tj.asarray(flags).at[[0, 1]].multiply(False)
    assert found.tolist() == [False, False]


# Mapped and traced


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["slices", "repeated", "mask", "nothing", "list"])
def test_mapped_tensors_and_values_with_a_known_key(method: str, name: str) -> None:
    key = KEYS[name]
    rng = np.random.default_rng(0)
    batch = rng.uniform(0.5, 2.0, (3, *DATA.shape))
    values = rng.uniform(0.5, 2.0, (3, *np.shape(DATA[as_numpy(key)])))

    def call(x: Any, v: Any) -> Any:
        return getattr(x.at[key], method)(v)

    for in_axes in ((0, 0), (0, None), (None, 0)):
        xs = batch if in_axes[0] == 0 else [batch[0]] * 3
        vs = values if in_axes[1] == 0 else [values[0]] * 3
        rows = [one_by_one(method, x, key, v) for x, v in zip(xs, vs, strict=True)]
        operands = [
            tj.asarray(given if axis == 0 else given[0])
            for given, axis in zip((batch, values), in_axes, strict=True)
        ]
        found = tj.vmap(call, in_axes=in_axes)(*operands)
        np.testing.assert_allclose(found, np.stack(rows), rtol=1e-14)


@pytest.mark.parametrize("method", ["set", "add", "subtract", "min", "max"])
def test_mapped_keys_may_repeat_where_order_is_all(method: str) -> None:
    key = np.array([[0, 0, 2], [1, -1, -1], [2, 1, 0]])
    values = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]])
    array = np.array([10.0, 20.0, 30.0])

    def call(i: Any, v: Any) -> Any:
        return getattr(tj.asarray(array).at[i], method)(v)

    rows = [one_by_one(method, array, i, v) for i, v in zip(key, values, strict=True)]
    np.testing.assert_array_equal(tj.vmap(call)(key, values), np.stack(rows))


@pytest.mark.parametrize("method", METHODS)
def test_a_mapped_integer_names_one_place(method: str) -> None:
    array, at = DATA[0], np.array([2, 0, -1])

    def call(x: Any, i: Any) -> Any:
        return getattr(x.at[i, 1:], method)(1.5)

    rows = [one_by_one(method, array, (i, slice(1, None)), 1.5) for i in at]
    found = tj.vmap(call, in_axes=(None, 0))(array, at)
    np.testing.assert_array_equal(found, np.stack(rows))


def test_mapped_keys_that_may_repeat_are_refused_where_rounds_depend_on_them() -> None:
    x = tj.ones(3)
    with pytest.raises(TypeError, match=r"at\.multiply: which positions are repeated"):
        tj.vmap(lambda i: x.at[i].multiply(2.0))(tj.asarray([[0, 0]]))


@pytest.mark.parametrize("method", METHODS)
def test_a_mapped_mask_takes_values_that_do_not_depend_on_its_count(
    method: str,
) -> None:
    batch = np.random.default_rng(0).normal(size=(3, 4, 2)) ** 2 + 0.1

    def elements(x: Any) -> Any:
        return getattr(x.at[x > 0.5], method)(2.0)

    def rows(x: Any) -> Any:
        return getattr(x.at[x[:, 0] > 0.5], method)(np.array([2.0, 3.0]))

    for call in (elements, rows):
        expected = np.stack([np.asarray(call(tj.asarray(x))) for x in batch])
        np.testing.assert_array_equal(tj.vmap(call)(tj.asarray(batch)), expected)


def test_the_gradient_through_a_mapped_mask_is_not_spoilt_by_the_rest() -> None:
    x, d = tj.Variable([[1.0, 2.0], [3.0, 4.0]]), tj.Variable([0.0, 2.0])
    with tj.GradientTape() as tape:
        y = tj.vmap(lambda row, by: row.at[row > 2].divide(by))(x, d)
    assert y.tolist() == [[1.0, 2.0], [1.5, 2.0]]
    by_x, by_d = tape.gradient(y, [x, d])
    assert by_x.tolist() == [[1.0, 1.0], [0.5, 0.5]]
    assert by_d.tolist() == [0.0, -7 / 4]


def test_a_mapped_mask_with_one_value_per_element_has_no_count() -> None:
    x = tj.ones(3)
    with pytest.raises(TypeError, match=r"at\.set: one value per True element"):
        tj.vmap(lambda m: x.at[m].set([1.0, 2.0]))(tj.asarray([[True, False, True]]))


# Errors


REFUSED: dict[str, tuple[type[Exception], Callable[[Any], Any]]] = {
    "an assignment takes no None": (TypeError, lambda x: x.at[None].set(1.0)),
    "an assignment takes no None in": (TypeError, lambda x: x.at[0, None].add(1.0)),
    "at.set: index 7 is out of range": (IndexError, lambda x: x.at[7].set(1.0)),
    "at.add: index 7 is out of range": (IndexError, lambda x: x.at[[7]].add(1.0)),
    "at.max: too many indices": (IndexError, lambda x: x.at[0, 0, 0, 0].max(1.0)),
    "at.set: values of f64[5]": (ValueError, lambda x: x.at[0, 0].set([1.0] * 5)),
    "at.min: values of f64[2,3,4]": (
        ValueError,
        lambda x: x.at[0].min(tj.ones((2, 3, 4))),
    ),
    "at.set takes numbers": (TypeError, lambda x: x.at[0].set("text")),
}


@pytest.mark.parametrize(("message", "row"), REFUSED.items(), ids=REFUSED)
def test_what_is_refused_names_the_method(message: str, row: Any) -> None:
    kind, call = row
    with pytest.raises(kind) as caught:
        call(tj.asarray(DATA))
    assert isinstance(caught.value, tj.TapejitError)
    assert message in str(caught.value)


def test_leading_axes_of_size_one_are_dropped_as_in_an_assignment() -> None:
    x = tj.zeros(3).at[1:].set(np.ones((1, 1, 2)))
    assert x.tolist() == [0.0, 1.0, 1.0]


def test_item_assignment_points_to_at() -> None:
    with pytest.raises(TypeError, match=r"x\.at\[i\]\.set\(v\)"):
        tj.asarray([1.0])[0] = 2.0


def test_a_buffer_filled_in_a_loop_differentiates() -> None:
    v = tj.Variable(2.0)
    with tj.GradientTape() as tape:
        buffer = tj.zeros(4)
        for at in range(4):
            buffer = buffer.at[at].set(v**at)
    assert buffer.tolist() == [1.0, 2.0, 4.0, 8.0]
    assert float(tape.gradient(buffer, v)) == 1.0 + 4.0 + 12.0


@pytest.mark.parametrize("method", METHODS)
def test_a_repeated_tape_follows_the_key(method: str) -> None:
    """The same program runs again with other positions, and repeats others."""
    x, v = tj.Variable([1.5, 2.5, 3.5]), tj.Variable([2.0, 3.0])
    for at in range(12):
        key = [at % 3, (at // 2) % 3]
        with tj.GradientTape() as tape:
            y = tj.sum(tj.square(getattr(x.at[key], method)(v)))
        by_x, by_v = tape.gradient(y, [x, v])

        def call(x: Any, v: Any, key: Any = key) -> Any:
            return tj.sum(tj.square(getattr(x.at[key], method)(v)))

        _, pull = tj.vjp(call, x.numpy(), v.numpy())
        expected_x, expected_v = pull(tj.asarray(1.0))
        np.testing.assert_array_equal(by_x, expected_x)
        np.testing.assert_array_equal(by_v, expected_v)
