"""What a program does besides computing: printing, checks that stop it, warnings.

The first two are effects: the last input and the result are links of the chain that
keeps effects in the order of the program. Everything that is not a tensor is an
attribute, so a printed graph says what it will print and what it checks.

`print_values` holds the texts between the values, one more than there are values.
`check` holds the name of the comparison that has to be true everywhere, and takes its
type rule and its meaning from that comparison's record.

`warned` is no effect but an identity: native code that meets a 1 leaves the call to
NumPy, which warns. So a step that may have something to say is one native call as long
as it has not.

Start reading at `print_values`, then `check`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from tapejit.base.dims import Size
from tapejit.base.errors import (
    ArgumentError,
    ArgumentTypeError,
    CheckFailed,
    TapejitError,
)
from tapejit.base.numpy_adapter import restore, silence
from tapejit.base.origin import warn_user
from tapejit.base.types import TOKEN, TensorType, TokenType, Type
from tapejit.ir.node import Node, Op, record
from tapejit.ir.structural import MUTED, batch_stack
from tapejit.ops.comparison import (
    equal,
    greater,
    greater_equal,
    isfinite,
    less,
    less_equal,
    not_equal,
)
from tapejit.ops.elementwise import check_kind
from tapejit.ops.movement import broadcast_to
from tapejit.ops.shapes import tensor

Array = np.ndarray[Any, Any]

STREAMS: Final = ("stdout", "stderr")


def operands_of_effect(types: Sequence[Type]) -> list[TensorType]:
    """The tensors among the inputs of an effect: all but the link at the end."""
    if not types or not isinstance(types[-1], TokenType):
        raise ArgumentTypeError("the last input is the chain of effects")
    return [tensor(x) for x in types[:-1]]


# Printing


def print_type(
    *types: Type, texts: tuple[str, ...], stream: str, batch_axes: int
) -> TokenType:
    operands = operands_of_effect(types)
    if len(texts) != len(operands) + 1:
        raise ArgumentError(
            f"{len(operands)} values stand between {len(operands) + 1} texts, "
            f"got {len(texts)}"
        )
    if stream not in STREAMS:
        raise ArgumentError(f"the stream is one of {', '.join(STREAMS)}: {stream!r}")
    fronts = {x.shape[:batch_axes] for x in operands if batch_axes}
    if len(fronts) > 1 or any(len(front) != batch_axes for front in fronts):
        raise ArgumentError(
            f"the values share {batch_axes} leading axes, one line for each index"
        )
    return TOKEN


def _print_eval(
    *inputs: Any, texts: tuple[str, ...], stream: str, batch_axes: int
) -> None:
    # Looked up now: a program may have redirected its output since the trace.
    target = getattr(sys, stream)
    if target is None or MUTED.get():  # a process without a console, or said before
        return
    arrays = [np.asarray(x) for x in inputs[:-1]]
    rows = np.ndindex(arrays[0].shape[:batch_axes]) if batch_axes else [()]
    text = "".join(rendered([x[row] for x in arrays], texts) for row in rows)
    target.write(text)  # in one piece, or the lines of two threads would mix


def rendered(values: Sequence[Any], texts: Sequence[str]) -> str:
    """The texts with the values between them, as `print` shows a tensor.

    >>> rendered([np.float32(0.1), np.arange(3)], ["loss ", " at ", "!"])
    'loss 0.1 at [0 1 2]!'
    """
    shown = [str(np.asarray(value)) for value in values]
    pieces = zip(texts, [*shown, ""], strict=True)
    return "".join(text + value for text, value in pieces)


def batch_print(
    size: Size,
    inputs: tuple[Node, ...],
    batched: Sequence[bool],
    *,
    texts: tuple[str, ...],
    stream: str,
    batch_axes: int,
) -> Node:
    """The rows one after the other; what no row changes is printed once."""
    *values, token = inputs
    *flags, _ = batched
    if any(flags):
        batch_axes += 1
        values = [
            x if flag else broadcast_to(x, shape=(size, *x.shape))
            for x, flag in zip(values, flags, strict=True)
        ]
    return print_values(
        *values, token, texts=texts, stream=stream, batch_axes=batch_axes
    )


print_values = record(
    "print_values",
    type_rule=print_type,
    eval=_print_eval,
    batch=batch_print,
    differentiable=False,
    is_effect=True,
)


# Warnings


def warned_type(x: Type, *, message: str) -> TensorType:
    x = tensor(x)
    check_kind(x.dtype, ("integer",))
    return x


def warned_eval(x: Any, *, message: str) -> Any:
    if np.any(x) and not MUTED.get():
        warn_user(message)
    return x


# A number that is 0, or 1 where there is something to say.
warned = record(
    "warned",
    type_rule=warned_type,
    eval=warned_eval,
    can_fail=True,
    bound=lambda node: 1,
    batch=batch_stack("warned"),
    differentiable=False,
)


# Checks


class Relation(NamedTuple):
    """What a check asks of every element.

    asked_by   the public function that users know it by
    predicate  the record of the comparison, None for a bool that answers itself
    failure    what to say of the values at a place where it is not so
    """

    asked_by: str
    predicate: Op | None
    failure: str


RELATIONS: Final = {
    "true": Relation("assert_true", None, "the condition is {}"),
    "finite": Relation("assert_all_finite", isfinite, "{} is not finite"),
    "equal": Relation("assert_equal", equal, "{} is not equal to {}"),
    "not_equal": Relation("assert_not_equal", not_equal, "{} is equal to {}"),
    "less": Relation("assert_less", less, "{} is not less than {}"),
    "less_equal": Relation(
        "assert_less_equal", less_equal, "{} is not less than or equal to {}"
    ),
    "greater": Relation("assert_greater", greater, "{} is not greater than {}"),
    "greater_equal": Relation(
        "assert_greater_equal", greater_equal, "{} is not greater than or equal to {}"
    ),
}


def check_type(*types: Type, relation: str, message: str | None) -> TokenType:
    operands = operands_of_effect(types)
    if relation not in RELATIONS:
        raise ArgumentError(f"there is no relation {relation!r} to check")
    asked_by, predicate, failure = RELATIONS[relation]
    if len(operands) != failure.count("{}"):
        raise ArgumentTypeError(
            f"takes {failure.count('{}')} tensors, got {len(operands)}", op=asked_by
        )
    if predicate is not None:
        try:
            predicate.type_rule(*operands)
        except TapejitError as error:
            error.op = asked_by
            raise
    elif operands[0].dtype != np.bool_:
        raise ArgumentTypeError(
            f"takes bools, got {operands[0]}",
            op=asked_by,
            help="compare first: x > 0, or x != 0",
        )
    return TOKEN


def _check_eval(*inputs: Any, relation: str, message: str | None) -> None:
    arrays = inputs[:-1]
    predicate = RELATIONS[relation].predicate
    if predicate is None:
        holds = np.asarray(arrays[0])
    else:
        token = silence()
        try:
            holds = np.asarray(predicate.eval(*arrays))
        finally:
            restore(token)
    if not holds.all():
        raise failed_check(relation, arrays, holds, message)


def failed_check(
    relation: str, arrays: Sequence[Any], holds: Array, message: str | None
) -> CheckFailed:
    """The error that shows the first place where a relation does not hold."""
    asked_by, _, failure = RELATIONS[relation]
    index = tuple(map(int, np.unravel_index(np.argmin(holds), holds.shape)))
    values = tuple(np.broadcast_to(x, holds.shape)[index] for x in arrays)
    fact = failure.format(*values)
    if index:
        count = holds.size - np.count_nonzero(holds)
        fact += f" at index {index}; {count} of {holds.size} elements fail"
    text = fact if message is None else f"{message}: {fact}"
    error = CheckFailed(text, op=asked_by)
    error.index, error.values = index, values
    return error


check = record(
    "check",
    type_rule=check_type,
    eval=_check_eval,
    differentiable=False,
    is_effect=True,
    exact=True,
)
