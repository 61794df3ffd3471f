"""How tensors and variables look: in a terminal and in a notebook.

Start reading at `text`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tapejit.api.tensor import TracedTensor


def text(x: Any) -> str:
    """`<tj.Tensor f32[3] [1. 2. 3.]>`; a variable also shows its name.

    >>> import tapejit as tj
    >>> tj.asarray([1.0, 2.0])
    <tj.Tensor f32[2] [1. 2.]>
    >>> tj.Variable(3.0, name="w")
    <tj.Variable 'w' f32[] 3.0>
    """
    tensor = getattr(x, "_tensor", x)
    head = f"tj.{'Variable' if tensor is not x else 'Tensor'}"
    if tensor is not x:
        head += f" {x.name!r}"
    if isinstance(tensor, TracedTensor):
        return f"<{head} {tensor._type} traced by {tensor._trace.name}>"
    shown = values(x)
    gap = "\n" if "\n" in shown else " "
    return f"<{head} {tensor._type}{gap}{shown}>"


def values(x: Any) -> str:
    """The numbers alone, as NumPy prints them."""
    tensor = getattr(x, "_tensor", x)
    if isinstance(tensor, TracedTensor):
        return text(tensor)
    return str(np.asarray(tensor._value))


def formatted(x: Any, spec: str) -> str:
    """`f"{x:.3f}"`: a number's format for a tensor without axes, else the text's."""
    tensor = getattr(x, "_tensor", x)
    if spec and not tensor.shape and not isinstance(tensor, TracedTensor):
        return format(np.asarray(tensor._value).item(), spec)
    return format(values(x), spec)


def html(x: Any) -> str:
    """A small table for notebooks: up to two axes in full, the rest as text."""
    from html import escape

    tensor = getattr(x, "_tensor", x)
    if isinstance(tensor, TracedTensor):
        return f"<code>{escape(text(x))}</code>"
    array = np.asarray(tensor._value)
    name = f"<b>{escape(x.name)}</b> " if tensor is not x else ""
    caption = f"<div>{name}<code>{tensor._type}</code></div>"
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
