"""Checks that stop a program where it goes wrong.

The checks of values are operations, ordered with printing and with assignments: in a
traced function they run each time it runs, and before any later assignment counts.
What is known without values (shape, rank, dtype) is checked at once, while a function
is traced as well. All raise `CheckFailed`, which is an AssertionError too.

Start reading at `assert_true`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from tapejit import ops
from tapejit.array.effects import operand_of_effect
from tapejit.base.config import Config, config
from tapejit.base.errors import ArgumentTypeError, CheckFailed, TapejitError
from tapejit.base.public import names_in
from tapejit.base.types import TOKEN, as_dtype, is_differentiable
from tapejit.ops.effects import RELATIONS
from tapejit.ops.shapes import fits_shape
from tapejit.tensor.dispatch import as_operand, described, effect, operands

# Values


def assert_true(condition: Any, message: str | None = None) -> None:
    """Check that a bool, or every element of a tensor of bools, is true.

    >>> import tapejit as tj
    >>> x = tj.asarray([0.25, 0.75, -0.5])
    >>> tj.debug.assert_true(x < 1)
    >>> try:
    ...     tj.debug.assert_true(x > 0, "probabilities")
    ... except tj.CheckFailed as error:
    ...     print(error.message)
    probabilities: the condition is False at index (2,); 1 of 3 elements fail
    """
    _check("true", [condition], message)


def assert_equal(x: Any, y: Any, message: str | None = None) -> None:
    """Check that x == y everywhere, after broadcasting; NaN equals nothing.

    >>> import tapejit as tj
    >>> tj.debug.assert_equal(tj.asarray([1, 2]), [1, 2])
    >>> try:
    ...     tj.debug.assert_equal(tj.ones(2), tj.asarray([1.0, 3.0]))
    ... except tj.CheckFailed as error:
    ...     print(error.index, error.values)
    (1,) (np.float32(1.0), np.float32(3.0))
    """
    _check("equal", operands((x, y), "assert_equal"), message)


def assert_not_equal(x: Any, y: Any, message: str | None = None) -> None:
    """Check that x != y everywhere, after broadcasting.

    >>> import tapejit as tj
    >>> tj.debug.assert_not_equal(tj.asarray([1, 2]), 0)
    """
    _check("not_equal", operands((x, y), "assert_not_equal"), message)


def assert_less(x: Any, y: Any, message: str | None = None) -> None:
    """Check that x < y everywhere, after broadcasting; NaN fails.

    >>> import tapejit as tj
    >>> tj.debug.assert_less(tj.asarray([1, 2]), 3)
    """
    _check("less", operands((x, y), "assert_less"), message)


def assert_less_equal(x: Any, y: Any, message: str | None = None) -> None:
    """Check that x <= y everywhere, after broadcasting; NaN fails.

    >>> import tapejit as tj
    >>> tj.debug.assert_less_equal(tj.asarray([1, 2]), [1, 3])
    """
    _check("less_equal", operands((x, y), "assert_less_equal"), message)


def assert_greater(x: Any, y: Any, message: str | None = None) -> None:
    """Check that x > y everywhere, after broadcasting; NaN fails.

    >>> import tapejit as tj
    >>> scale = tj.asarray([0.5, 0.0])
    >>> try:
    ...     tj.debug.assert_greater(scale, 0, "scales are positive")
    ... except tj.CheckFailed as error:
    ...     print(error.message)
    scales are positive: 0.0 is not greater than 0.0 at index (1,); 1 of 2 elements fail
    """
    _check("greater", operands((x, y), "assert_greater"), message)


def assert_greater_equal(x: Any, y: Any, message: str | None = None) -> None:
    """Check that x >= y everywhere, after broadcasting; NaN fails.

    >>> import tapejit as tj
    >>> tj.debug.assert_greater_equal(tj.asarray([0.0, 2.0]), 0)
    """
    _check("greater_equal", operands((x, y), "assert_greater_equal"), message)


def assert_all_finite(x: Any, message: str | None = None) -> None:
    """Check that no element is NaN or infinite.

    >>> import tapejit as tj
    >>> try:
    ...     tj.debug.assert_all_finite(tj.log(tj.asarray([1.0, 0.0])))
    ... except tj.CheckFailed as error:
    ...     print(error.message)
    -inf is not finite at index (1,); 1 of 2 elements fail
    """
    operand = operand_of_effect(x, "assert_all_finite")
    if is_differentiable(operand.dtype):  # integers and bools are finite as they are
        _check("finite", [operand], message)


def _check(relation: str, values: Sequence[Any], message: str | None) -> None:
    name = RELATIONS[relation].asked_by
    tensors = [operand_of_effect(x, name) for x in values]
    attrs = {"relation": relation, "message": _message(message)}
    try:
        ops.check.infer_type([*(x._type for x in tensors), TOKEN], attrs)
    except TapejitError as error:
        raise described(error, ops.check, tensors) from None
    effect(ops.check, *tensors, **attrs)


def _message(given: Any) -> str | None:
    if given is not None and not isinstance(given, str):
        raise ArgumentTypeError(
            f"the message is a text, got {type(given).__name__}",
            help="an f-string shows values of Python; the check shows the tensors'",
        )
    return given


# All results


def check_numerics(enabled: bool = True) -> AbstractContextManager[Config]:
    """Stop at the first operation that gives NaN or infinity, inside a `with` block.

    The error names the operation, the line, the first place and the operands there. It
    comes from eager operations, gradients and functions alike, also for values that no
    result depends on; a function that fails has changed nothing. Operations that only
    move elements are not asked. Functions are slower meanwhile. For a whole process
    there is the setting: `TAPEJIT_CHECK_NUMERICS=1`.

    >>> import tapejit as tj
    >>> @tj.function
    ... def loss(x):
    ...     return tj.sum(tj.where(x > 0, tj.log(x), 0.0))
    >>> x = tj.asarray([1.0, 0.0])
    >>> print(loss(x))
    0.0
    >>> with tj.debug.check_numerics():
    ...     try:
    ...         loss(x)
    ...     except tj.NonFiniteError as error:
    ...         print(error.op, "|", error.message)
    log | the result is -inf at index (1,), of 0.0; 1 of 2 elements is not finite
    """
    return config.override(check_numerics=enabled)


# What is known without values


def assert_shape(x: Any, shape: Any, message: str | None = None) -> None:
    """Check the sizes of the axes; None stands for any size.

    >>> import tapejit as tj
    >>> tj.debug.assert_shape(tj.ones((8, 3)), (None, 3))
    >>> try:
    ...     tj.debug.assert_shape(tj.ones((8, 4)), (None, 3), "points in space")
    ... except tj.CheckFailed as error:
    ...     print(error.message)
    points in space: the shape is (8, 4), not (None, 3)
    """
    if not isinstance(shape, (list, tuple)):
        raise ArgumentTypeError(
            f"the shape is a tuple with one entry per axis, got {shape!r}",
            op="assert_shape",
            help="for the number of axes alone there is assert_rank",
        )
    found, wanted = _described(x, "assert_shape").shape, tuple(shape)
    if not fits_shape(found, wanted):
        _fail("assert_shape", f"the shape is {found}, not {wanted}", message)


def assert_rank(x: Any, rank: int, message: str | None = None) -> None:
    """Check the number of axes.

    >>> import tapejit as tj
    >>> tj.debug.assert_rank(tj.ones((8, 3)), 2)
    """
    if not isinstance(rank, int):
        raise ArgumentTypeError(
            f"the rank is an int, got {type(rank).__name__}", op="assert_rank"
        )
    shape = _described(x, "assert_rank").shape
    if len(shape) != rank:
        fact = f"the rank is {len(shape)} (shape {shape}), not {rank}"
        _fail("assert_rank", fact, message)


def assert_dtype(x: Any, dtype: Any, message: str | None = None) -> None:
    """Check the dtype.

    >>> import tapejit as tj
    >>> tj.debug.assert_dtype(tj.ones(3), tj.float32)
    """
    found, wanted = _described(x, "assert_dtype").dtype, as_dtype(dtype)
    if found != wanted:
        fact = f"the dtype is {found.name}, not {wanted.name}"
        _fail("assert_dtype", fact, message)


def _described(x: Any, name: str) -> Any:
    """Something with a shape and a dtype: a variable's are known without a read."""
    has_both = hasattr(x, "shape") and hasattr(x, "dtype")
    return x if has_both else as_operand(x, name, copy=False)


def _fail(name: str, fact: str, message: str | None) -> None:
    given = _message(message)
    raise CheckFailed(fact if given is None else f"{given}: {fact}", op=name)


if not TYPE_CHECKING:  # checkers see what is defined here
    __all__ = names_in(globals())

    def __dir__() -> list[str]:
        return __all__
