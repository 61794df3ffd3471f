"""What every function that is composed of others is asked.

A `Composed` says a call twice, in tapejit's words and in NumPy's, with its operands.
Values and dtypes must be NumPy's, the NumPy call on tensors must give the same, the
derivatives must be those of finite differences up to the second, and a mapped call must
be a loop of calls.

Start reading at `Composed`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest

import tapejit as tj
from tapejit.base.types import is_differentiable

Array = np.ndarray[Any, Any]
Call = Callable[..., Any]


class Composed(NamedTuple):
    """One call of a function, on tensors and on arrays.

    `is_exact` says whether the values are NumPy's bit by bit, `order` up to which
    derivative it is checked.
    """

    ours: Call
    arrays: tuple[Array, ...]
    theirs: Call
    is_exact: bool = True
    order: int = 2


def leaves(result: Any) -> list[Any]:
    """The results of a call that may have several."""
    return list(result) if isinstance(result, (list, tuple)) else [result]


def assert_same(found: Any, expected: Any, *, is_exact: bool = True) -> None:
    """Same number, dtypes, shapes and values, signs of zero included."""
    found, expected = leaves(found), leaves(expected)
    assert len(found) == len(expected)
    for x, array in zip(found, expected, strict=True):
        assert isinstance(x, tj.Tensor)
        array = np.asarray(array)
        assert (x.dtype, x.shape) == (array.dtype, array.shape)
        value = x.numpy()
        if is_exact:
            np.testing.assert_array_equal(value, array)
            if array.dtype.kind == "f":
                np.testing.assert_array_equal(np.signbit(value), np.signbit(array))
        else:
            np.testing.assert_allclose(value, array, rtol=1e-13, atol=1e-13)


def assert_values_are_numpys(case: Composed) -> None:
    with np.errstate(all="ignore"):
        expected = case.theirs(*case.arrays)
    for make in (tj.asarray, tj.Variable, np.array):
        found = case.ours(*map(make, case.arrays))
        assert_same(found, expected, is_exact=case.is_exact)
    found = case.theirs(*map(tj.asarray, case.arrays))
    assert type(found) is type(expected) or isinstance(found, tj.Tensor)
    assert_same(found, expected, is_exact=case.is_exact)


def assert_derivatives(case: Composed) -> None:
    if any(is_differentiable(x.dtype) for x in case.arrays):
        tj.testing.check_grads(case.ours, case.arrays, order=case.order)


def assert_mapped_is_a_loop(case: Composed, rng: np.random.Generator) -> None:
    """Over batches of operands: all batched, then each alone."""
    batches = [stacked(x, rng) for x in case.arrays]
    choices: list[Sequence[int | None]] = [[0] * len(batches)]
    if len(batches) > 1:
        choices += [
            [0 if here == at else None for here in range(len(batches))]
            for at in range(len(batches))
        ]
    for axes in choices:
        given = [
            batch if axis == 0 else x
            for batch, axis, x in zip(batches, axes, case.arrays, strict=True)
        ]
        mapped = leaves(tj.vmap(case.ours, in_axes=tuple(axes))(*given))
        rows = [
            leaves(
                case.ours(
                    *[
                        tj.asarray(x[row] if axis == 0 else x)
                        for x, axis in zip(given, axes, strict=True)
                    ]
                )
            )
            for row in range(3)
        ]
        for at, found in enumerate(mapped):
            expected = np.stack([np.asarray(row[at]) for row in rows])
            np.testing.assert_allclose(found, expected, rtol=1e-13, atol=1e-13)


def stacked(x: Array, rng: np.random.Generator) -> Array:
    """Three arrays like this one, the elements of which change places."""
    flat = x.reshape(-1)
    rows = [x, *(flat[rng.permutation(flat.size)].reshape(x.shape) for _ in range(2))]
    return np.stack(rows)


def assert_refused(
    call: Callable[[], Any], message: str, *kinds: type[Exception]
) -> None:
    """It raises an error of ours, of one of these kinds, that begins with `message`."""
    with pytest.raises(kinds) as caught:
        call()
    assert isinstance(caught.value, tj.TapejitError)
    assert str(caught.value).startswith(message)
