"""Indexing is NumPy's, and its gradients are dense (line 30)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tapejit as tj

from .both_modes import MODES, assert_modes, assert_taped, note_error

DATA = np.arange(24.0).reshape(2, 3, 4)


MASK = DATA % 5 < 2


KEYS = {
    "integer": 1,
    "negative integer": -1,
    "numpy integer": np.int64(1),
    "tensor integer": tj.asarray(1),
    "several integers": (1, -2, 3),
    "slice": slice(1, None),
    "slice with step": (slice(None), slice(None, None, 2)),
    "negative step": (slice(None, None, -1), slice(2, None, -1)),
    "slice beyond the end": (slice(None), slice(1, 100)),
    "empty slice": slice(2, 1),
    "ellipsis": ...,
    "ellipsis then integer": (..., -1),
    "integer then ellipsis": (0, ...),
    "newaxis": None,
    "newaxis inside": (slice(None), None, 1, None),
    "empty tuple": (),
    "list": [1, 0, 1],
    "negative list": [-1, -2],
    "array": np.array([[0, 1], [1, 1]]),
    "tensor": tj.asarray([1, 0, 0]),
    "uint8 array": np.uint8([1, 0]),
    "two arrays": ([0, 1], [2, 0]),
    "broadcasting arrays": ([[0], [1]], [2, 0]),
    "array in the middle": (slice(None), [2, 0]),
    "array at the end": (..., [3, 3, 0]),
    "arrays apart": ([0, 1], slice(None), [1, 2]),
    "integer beside array": (0, slice(None), [1, 2]),
    "array beside integer": (slice(None), [1, 2], 0),
    "array and newaxis": (None, [1, 0], None),
    "arrays around newaxis": ([0, 1], None, [1, 2]),
    "empty list": [],
    "mask": MASK,
    "tensor mask": tj.asarray(MASK),
    "mask of the first axis": np.array([False, True]),
    "list mask": [True, False],
    "mask in the middle": (slice(None), [True, False, True]),
    "mask of two axes": MASK[:, :, 0],
    "mask and integer": (MASK[:, :, 0], 1),
    "mask and array": ([True, True], [2, 0]),
    "mask without True": np.zeros((2, 3, 4), bool),
    "slice and mask": (slice(1, None), MASK[0, :, 0], slice(0, 2)),
}


def as_numpy(key: Any) -> Any:
    """The same key made of NumPy arrays only."""
    if isinstance(key, tuple):
        return tuple(map(as_numpy, key))
    return key.numpy() if isinstance(key, tj.Tensor) else key


@pytest.mark.parametrize("name", KEYS)
def test_s30_an_index_selects_what_numpy_selects_and_its_gradient_is_dense(
    name: str,
) -> None:
    key, place = KEYS[name], as_numpy(KEYS[name])
    selected = DATA[place]
    weights = np.random.default_rng(0).normal(size=selected.shape)

    def program(v: Any, weights: Any) -> Any:
        with tj.GradientTape() as tape:
            y = v[key]
        return y, v.value()[key], tape.gradient(y, v, weights)

    setup = lambda: (tj.Variable(DATA), tj.asarray(weights))
    *found, gradient = assert_modes(program, setup).result
    for y in found:
        assert isinstance(y, tj.Tensor)
        assert y.shape == selected.shape
        assert y.tolist() == selected.tolist()
    expected = np.zeros_like(DATA)
    np.add.at(expected, place, weights)
    assert isinstance(gradient, tj.Tensor)
    assert gradient.shape == DATA.shape
    np.testing.assert_allclose(gradient.numpy(), expected, rtol=1e-14)
    assert_taped(lambda x: x[key] * x[key], lambda: tj.asarray(DATA))


@pytest.mark.parametrize("name", KEYS)
def test_s30_keys_that_are_arguments(name: str) -> None:
    """Arrays and tensors in a key may be traced themselves, masks too."""
    parts = KEYS[name] if isinstance(KEYS[name], tuple) else (KEYS[name],)

    def is_array(part: Any) -> bool:
        if isinstance(part, list):
            return bool(part)
        return isinstance(part, (np.ndarray, np.generic, tj.Tensor))

    arrays = [tj.asarray(as_numpy(x)) for x in parts if is_array(x)]

    def program(x: Any, given: Any) -> Any:
        rest = iter(given)
        key = [next(rest) if is_array(p) else p for p in parts]
        y = x[tuple(key)]
        with tj.GradientTape() as tape:
            tape.watch(x)
            z = tj.sum(x[tuple(key)] * 2.0)
        return y, tape.gradient(z, x), tj.sum(y)

    assert_modes(program, lambda: (tj.asarray(DATA), arrays), traces=None)


def test_s30_repeated_indices_add_up() -> None:
    assert_taped(
        lambda table: table[[1, 1, 3, -1, 1]],
        lambda: tj.Variable(tj.ones((4, 2))),
        expected=[[[0.0, 0.0], [3.0, 3.0], [0.0, 0.0], [2.0, 2.0]]],
    )


def test_s30_take_gathers_along_an_axis() -> None:
    def program(x: Any) -> Any:
        with tj.GradientTape() as tape:
            y = tj.take(x, [2, -3, 2], axis=1)
        return y, tape.gradient(y, x)[0, :, 0]

    expected = np.take(DATA, [2, -3, 2], axis=1), [1.0, 0.0, 2.0]
    assert_modes(program, lambda: tj.Variable(DATA), expected=expected)


OUT_OF_RANGE = {
    "integer": 2,
    "negative integer": -3,
    "second axis": (0, 3),
    "list": [0, 2],
    "negative list": [0, -3],
    "tensor": tj.asarray([5]),
    "array in the middle": (slice(None), np.array([0, 3])),
    "two arrays": ([0, 1], [0, 3]),
    "too many": (0, 0, 0, 0),
    "too many slices": (slice(None),) * 4,
    "two ellipses": (..., 0, ...),
    "float": 1.0,
    "float array": np.array([0.0]),
    "string": "a",
    "mask too short": np.array([True]),
    "mask too long": np.array([True, False, True]),
    "mask of the wrong axis": (slice(None), [True, False]),
    "arrays that do not broadcast": ([0, 1], [0, 1, 2]),
}


# Numbers in an array are looked at where the code runs, so that what they raise passes
# through the function and its body cannot catch it.
NOT_CAUGHT = {"list", "negative list", "tensor", "array in the middle", "two arrays"}


@pytest.mark.parametrize("name", OUT_OF_RANGE)
def test_s30_what_numpy_refuses_is_an_index_error(name: str) -> None:
    key = OUT_OF_RANGE[name]
    with pytest.raises(IndexError):
        DATA[as_numpy(key)]

    def program(x: Any) -> Any:
        with tj.GradientTape() as tape:
            note_error(lambda: x[key])
            note_error(lambda: x.value()[key])
            y = x * x
        return tape.gradient(y, x)  # the block goes on

    setup, errors = lambda: tj.Variable(DATA), [(IndexError, "")] * 2
    modes = () if name in NOT_CAUGHT else MODES
    assert_modes(program, setup, expected=2 * DATA, errors=errors, modes=modes)
    assert_modes(lambda x: x[key] * 1.0, setup, raises=(IndexError, ""))


@pytest.mark.parametrize("at", [2, -3, 100])
def test_s30_an_index_that_is_computed_is_checked(at: int) -> None:
    def number(x: Any, index: Any) -> Any:
        return x[index - 1 + 1] * 2.0

    def several(x: Any, index: Any) -> Any:
        return x[:, tj.stack([index, 0 * index])]

    def taken(x: Any, index: Any) -> Any:
        return tj.take(x, tj.stack([0 * index, index]), axis=0)

    for program in (number, several, taken):
        size = 3 if program is several else 2
        bad = at + 1 if program is several and at == 2 else at
        bad = -4 if program is several and at == -3 else bad
        assert_modes(
            program,
            lambda bad=bad: (tj.asarray(DATA), tj.asarray(bad)),
            raises=(IndexError, f"{bad}.*{size}"),
        )
        call = tj.function(program)
        x, good = tj.asarray(DATA), tj.asarray(1)
        first = call(x, good).tolist()
        with pytest.raises(IndexError, match=str(bad)):
            call(x, tj.asarray(bad))
        assert call(x, good).tolist() == first
        assert call.trace_count == 1


def test_s30_a_mask_of_any_count() -> None:
    def program(x: Any, least: Any) -> Any:
        kept = x[x > least]
        return tj.sum(kept * kept), kept

    def given(least: float) -> Any:
        return lambda: (tj.asarray(DATA), tj.asarray(least))

    assert_modes(
        program,
        given(20.5),
        also=[given(k) for k in (-1.0, 22.5, 23.0)],
        traces=None,
    )
    assert_taped(program, given(20.5))


CHECKED = {
    "integer": (lambda x: x[:, 7], 7),
    "list": (lambda x: x[:, [0, 7]], 7),
    "tensor": (lambda x: x[:, tj.asarray([0, -4])], -4),
    "take": (lambda x: tj.take(x, [7], axis=1), 7),
    "take a negative one": (lambda x: tj.take(x[0], [-4], axis=0), -4),
    "take a matrix": (lambda x: tj.take(x[0, :, 0], [[0, 7]], axis=0), 7),
    "scatter": (lambda x: tj.scatter_add(x[0, :, 0], [7], 1.0), 7),
    "scatter at a negative one": (lambda x: tj.scatter_add(x[0], [-4], 1.0), -4),
    "scatter at a matrix": (lambda x: tj.scatter_add(x[0, :, 0], [[0, 7]], 1.0), 7),
}


@pytest.mark.parametrize("name", CHECKED)
def test_s30_the_error_names_the_index_and_the_size(name: str) -> None:
    program, index = CHECKED[name]
    raises = (IndexError, rf"(?<!\d){index}\b.*\b3\b")
    assert_modes(program, lambda: tj.asarray(DATA), raises=raises)


def test_s30_indexing_a_number_without_axes() -> None:
    def program(x: Any) -> Any:
        with tj.GradientTape() as tape:
            y = x[()] * x[...]
        note_error(lambda: x[0])
        note_error(lambda: x[:])
        return x[None], tape.gradient(y, x)

    setup, errors = lambda: tj.Variable(3.0), [(IndexError, "")] * 2
    assert_modes(program, setup, expected=([3.0], 6.0), errors=errors)


def test_s30_an_index_can_be_an_integer_variable() -> None:
    def program(x: Any, at: Any) -> Any:
        with tj.GradientTape() as tape:
            y = x[at]
        return y, tape.gradient(y, x)

    setup = lambda: (tj.Variable([1.0, 2.0, 3.0]), tj.Variable([2, 0]))
    assert_modes(program, setup, expected=([3.0, 1.0], [1.0, 0.0, 1.0]))


def test_s30_the_second_derivative_goes_through() -> None:
    assert_taped(
        lambda x: tj.sum(x[[0, 0, 2]] ** 3),
        lambda: tj.Variable([1.0, 2.0, 3.0]),
        second=[[12.0, 0.0, 18.0]],
    )
