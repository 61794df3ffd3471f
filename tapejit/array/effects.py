"""`print`: an effect, in the order of the program, also from traced functions.

Python's `print` shows a traced tensor once, while the function is traced, and without
its numbers. `print` here is an operation: it runs each time the function runs.

The arguments are taken apart into the texts that are known now and the tensors
between them. A structure that holds tensors is written by Python itself, with a mark
in the place of each tensor, and cut at the marks.

Start reading at `print`.
"""

from __future__ import annotations

import re
import sys
from typing import Any, Final

from tapejit import ops
from tapejit.base import tree
from tapejit.base.errors import ArgumentError, ArgumentTypeError
from tapejit.ops.effects import rendered
from tapejit.tensor.dispatch import (
    TRACE,
    TRACED_NUMBERS,
    as_operand,
    effect,
    host_value,
    is_symbolic,
    leaked,
)
from tapejit.tensor.tensor import Tensor, TracedTensor

__all__ = ["print"]


def print(
    *values: Any, sep: str | None = " ", end: str | None = "\n", file: Any = None
) -> None:
    """Print values as Python's `print` does; in a function, each time it runs.

    Tensors and variables show their numbers, also inside lists, dicts and other
    structures. Everything else is turned into text at once: a Python value in a
    traced function is the one it had when it was traced.

    `file` is any open text file; in a traced function it is `sys.stdout` or
    `sys.stderr`, looked up when the function runs. Under `vmap` each call prints all
    its rows before the next, and a call that shows nothing of a row prints once.

    >>> import tapejit as tj
    >>> x = tj.asarray([1.0, 2.0])
    >>> tj.print("x =", x, "twice", {"x": 2 * x}, sep=" ... ")
    x = ... [1. 2.] ... twice ... {'x': [2. 4.]}
    """
    between = _text(sep, " ", "sep")
    texts = [""]
    tensors: list[Tensor] = []
    for at, value in enumerate(values):
        texts[-1] += between if at else ""
        _append(value, texts, tensors)
    texts[-1] += _text(end, "\n", "end")
    stream = _stream_name(file)
    if stream is None:
        file.write(rendered([host_value(x) for x in tensors], texts))
        return
    effect(ops.print_values, *tensors, texts=tuple(texts), stream=stream, batch_axes=0)


def _append(value: Any, texts: list[str], tensors: list[Tensor]) -> None:
    """Add a value: its text to the last text, or tensors with a new text after each."""
    if is_symbolic(value):
        tensors.append(operand_of_effect(value, "print"))
        texts.append("")
        return
    leaves, spec = tree.flatten(value)
    found = [leaf for leaf in leaves if is_symbolic(leaf)]
    if not found:
        texts[-1] += _checked(str(value))
        return
    marks = iter(range(len(found)))
    marked = [_Mark(next(marks)) if is_symbolic(leaf) else leaf for leaf in leaves]
    first, *rest = MARK.split(str(tree.unflatten(spec, marked)))
    texts[-1] += _checked(first)
    # What splits the text are the numbers of the marks, each followed by a text. A
    # container may show its parts in another order, or not at all.
    for number, text in zip(rest[::2], rest[1::2], strict=True):
        tensors.append(operand_of_effect(found[int(number)], "print"))
        texts.append(_checked(text))


def operand_of_effect(value: Any, name: str) -> Tensor:
    """A value as a Tensor that has a number, or will have one when the Graph runs."""
    if type(value) in TRACED_NUMBERS:
        value = value.tensor  # double precision: it prints as the Python float does
    x = as_operand(value, name, copy=TRACE.get() is not None)
    if isinstance(x, TracedTensor) and x._trace.is_over:
        raise leaked(x, name)
    return x


class _Mark:
    """Stands for a tensor while Python writes the structure around it."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    def __repr__(self) -> str:
        return f"\ue000{self.number}\ue001"


MARK: Final = re.compile("\ue000(\\d+)\ue001")  # characters that mean nothing


def _checked(text: str) -> str:
    """A text that was made now; not one that was meant to have numbers in it."""
    trace = TRACE.get()
    while trace is not None:
        shown = rf"<tj\.(Tensor|Variable) [^<>]* in {re.escape(trace.name)}[,>]"
        if re.search(shown, text):
            raise ArgumentError(
                f"the text {text!r} was made while {trace.name} is traced, when the "
                "tensor in it has no value",
                op="print",
                help='give the tensor by itself: tj.print("loss", loss)',
            )
        trace = trace.outer
    return text


def _text(given: Any, default: str, name: str) -> str:
    if given is None:
        return default
    if not isinstance(given, str):
        raise ArgumentTypeError(
            f"{name} is a text or None, got {type(given).__name__}", op="print"
        )
    return given


def _stream_name(file: Any) -> str | None:
    """`stdout` or `stderr`; None for another file, which only eager mode can have."""
    if file is None or file is sys.stdout:
        return "stdout"
    if file is sys.stderr:
        return "stderr"
    if not hasattr(file, "write"):
        raise ArgumentTypeError(
            f"file is an open text file, got {type(file).__name__}", op="print"
        )
    trace = TRACE.get()
    if trace is not None:
        raise ArgumentError(
            f"{trace.name} is traced: a graph prints to sys.stdout or sys.stderr only",
            op="print",
            help="return what is printed, and print it outside the function",
        )
    return None
