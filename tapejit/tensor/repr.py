"""How tensors and variables look: in a terminal and in a notebook.

While a function is traced its tensors have no values. They show what is known, their
type and where they come from, and so do variables, whose value then is not the one
that the function will meet. Showing something never changes or stops a trace.

Start reading at `text`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tapejit.base.origin import short_location
from tapejit.ir.node import PARAM, Derived, Node
from tapejit.tensor.dispatch import TRACE
from tapejit.tensor.tensor import TracedTensor


def text(x: Any) -> str:
    """`<tj.Tensor f32[3] [1. 2. 3.]>`; a variable also shows its name.

    >>> import tapejit as tj
    >>> tj.asarray([1.0, 2.0])
    <tj.Tensor f32[2] [1. 2.]>
    >>> tj.Variable(3.0, name="w")
    <tj.Variable 'w' f32[] 3.0>
    """
    tensor = getattr(x, "_tensor", x)
    head = "tj.Tensor" if tensor is x else f"tj.Variable {x.name!r}"
    known = _known_while_traced(x)
    if known is not None:
        return f"<{head} {tensor._type} {known}>"
    shown = str(np.asarray(tensor._value))
    gap = "\n" if "\n" in shown else " "
    return f"<{head} {tensor._shown_type}{gap}{shown}>"


def _known_while_traced(x: Any) -> str | None:
    """`in step, made by mul at train.py:14`, of what has no value; None if it has."""
    if hasattr(x, "_tensor"):
        trace = TRACE.get()
        state = None if trace is None else trace.state
        return None if state is None else f"in {state.name}"
    if not isinstance(x, TracedTensor):
        return None
    where, made = f"in {x._trace.name}", x._made
    if made is None:
        return where
    if made.by == "variable":
        return f"{where}, read of variable {made.variable!r}"
    if made.by == "assign":
        return f"{where}, assigned to variable {made.variable!r}"
    if x._value.op is PARAM:
        return f"{where}, argument {x._value.name}"
    return f"{where}, made by {made.by}{_place(x._value)}"


def _place(node: Node) -> str:
    """The line of a Node, or of the one for which a pass made it."""
    origin = node.origin
    if isinstance(origin, Derived):
        return f", {origin.by} of {origin.node.op.name}{_place(origin.node)}"
    return "" if origin is None else f" at {short_location(origin)}"


def values(x: Any) -> str:
    """The numbers alone, as NumPy prints them."""
    if _known_while_traced(x) is not None:
        return text(x)
    return str(np.asarray(getattr(x, "_tensor", x)._value))


def formatted(x: Any, spec: str) -> str:
    """`f"{x:.3f}"`: a number's format for a tensor without axes, else the text's.

    What has no value while a function is traced takes the formats of texts and
    ignores those of numbers.
    """
    if _known_while_traced(x) is not None:
        try:
            return format(text(x), spec)
        except ValueError:
            return text(x)
    tensor = getattr(x, "_tensor", x)
    if spec and not tensor.shape:
        return format(np.asarray(tensor._value).item(), spec)
    return format(values(x), spec)


def html(x: Any) -> str:
    """A small table for notebooks: up to two axes in full, the rest as text."""
    from html import escape

    tensor = getattr(x, "_tensor", x)
    if _known_while_traced(x) is not None:
        return f"<code>{escape(text(x))}</code>"
    array = np.asarray(tensor._value)
    name = f"<b>{escape(x.name)}</b> " if tensor is not x else ""
    caption = f"<div>{name}<code>{tensor._shown_type}</code></div>"
    if array.ndim > 2 or array.size == 0 or max(array.shape, default=0) > 30:
        return f"{caption}<pre>{escape(str(array))}</pre>"
    rows = "".join(
        "<tr>" + "".join(f"<td>{_cell(cell)}</td>" for cell in row) + "</tr>"
        for row in np.atleast_2d(array).astype(_shown_dtype(array)).tolist()
    )
    return f"{caption}<table>{rows}</table>"


def _cell(value: Any) -> str:
    return str(value) if isinstance(value, (bool, int)) else f"{value:.6g}"


def _shown_dtype(array: np.ndarray[Any, Any]) -> Any:
    """bfloat16 has no format of its own in a table."""
    return np.float32 if array.dtype.name == "bfloat16" else array.dtype
