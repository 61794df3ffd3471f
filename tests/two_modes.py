"""Running one body eagerly and as a traced function, and comparing everything.

An `Outcome` is what a call gave: tensors as bytes with their dtypes and shapes, None
where a gradient is None, or the error with its text. While graphs are interpreted both
modes run the same NumPy functions, so outcomes are equal, not only near.

Start reading at `assert_modes_agree`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from agreement import COMPOSED, assert_agrees

import tapejit as tj
from tapejit.base.errors import TapejitError

Outcome = Any
Body = Callable[..., Any]


def outcome(call: Callable[[], Any]) -> Outcome:
    """What a call gives, as something that can be compared."""
    try:
        return frozen(call())
    except Exception as error:  # every class is part of what is compared
        return described(error)


class Raised(NamedTuple):
    """An error: its class, what it says, of which function, and the help it offers."""

    kind: type[Exception]
    message: str
    op: str | None = None
    help: str | None = None


def described(error: Exception) -> Raised:
    if isinstance(error, TapejitError):
        return Raised(type(error), error.message, error.op, error.help)
    return Raised(type(error), str(error))


def frozen(value: Any) -> Any:
    """Results by content: structures as lists, tensors with dtype, shape and bytes."""
    if value is None:
        return None
    if isinstance(value, (list, tuple)):
        return [frozen(part) for part in value]
    array = np.asarray(value)
    if array.dtype.kind in "fc":
        array = np.where(np.isnan(array), array.dtype.type(np.nan), array)
    return array.dtype.name, array.shape, Content(array)


class Content:
    """Bytes that show their numbers when a comparison fails."""

    def __init__(self, array: Any) -> None:
        self.array = array
        self.bytes = np.ascontiguousarray(array).tobytes()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Content) and self.bytes == other.bytes

    __hash__ = None  # type: ignore[assignment]  # compared, never looked up

    def __repr__(self) -> str:
        return np.array2string(np.asarray(self.array), threshold=20, separator=",")


def tensors(arrays: Sequence[Any]) -> list[Any]:
    """Arrays as Tensors; scalars are NumPy scalars, as results of operations are."""
    return [tj.Tensor(x if np.ndim(x) else x[()]) for x in arrays]


def assert_modes_agree(
    body: Body, *calls: Sequence[Any], where: str = "", traced: Body | None = None
) -> Outcome:
    """`body` on each list of arguments, eagerly and traced: the same outcome.

    `traced` runs in place of a traced `body`, if that is not what is compared.
    Returns the outcome of the first call.
    """
    function = tj.function(body) if traced is None else traced
    expected = [outcome(lambda args=args: body(*args)) for args in calls]
    for at, args in enumerate(calls):
        found = outcome(lambda args=args: function(*args))
        assert found == expected[at], f"{where}, call {at}"
    return expected[0]


def is_error(found: Outcome) -> bool:
    """Whether a call raised."""
    return isinstance(found, Raised)


# Gradients


def assert_near(found: list[Any], expected: list[Any], where: str) -> None:
    """The same, but for the order of sums.

    The tapes outside see one call, whose adjoint has been put together before, and add
    up its parts in another order; a sum of zeros may then have another sign.
    """
    assert [x is None for x in found] == [x is None for x in expected], where
    for x, y in zip(found, expected, strict=True):
        if x is not None:
            assert x.dtype == y.dtype
            assert_agrees(COMPOSED, x.numpy() + 0.0, y.numpy() + 0.0, where=where)


def gradients(body: Body, args: Sequence[Any], positions: Sequence[int]) -> list[Any]:
    """Of the sum of what `body` gives, by the arguments at these positions."""
    sources = [args[at] for at in positions]
    with tj.GradientTape() as tape:
        tape.watch(sources)
        target = body(*args)
    found: list[Any] = tape.gradient(target, sources)
    return found


def second_gradients(
    body: Body, args: Sequence[Any], positions: Sequence[int]
) -> list[Any]:
    """Of the sum of all first gradients that are connected."""
    sources = [args[at] for at in positions]
    with tj.GradientTape() as outer:
        outer.watch(sources)
        first = [g for g in gradients(body, args, positions) if g is not None]
    if not first:
        return [None for _ in sources]
    found: list[Any] = outer.gradient(first, sources)
    return found
