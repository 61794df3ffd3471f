"""Python text for what the source of a kernel is made of: names, numbers, arrays.

Start reading at `Names`.
"""

from __future__ import annotations

import ast
import base64
import keyword
import linecache
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np

from tapejit.base.origin import expression_text, line_number
from tapejit.base.types import DType
from tapejit.ir.node import Node
from tapejit.ir.printer import shortest_text
from tapejit.loops.steps import AffineIndex, CheckedIndex, IndexValue, Step
from tapejit.targets.python.lane_source import KNOWN_TEXTS

SHOWN: Final = 64  # elements of a constant that are written as numbers

# Names that mean something else in Python.
INSTEAD: Final = {
    "abs": "absolute",
    "all": "all_true",
    "any": "any_true",
    "max": "largest",
    "min": "smallest",
    "pow": "power",
    "round": "rounded",
    "slice": "part",
    "sum": "total",
}
HELPER_NAMES: Final = frozenset({"position", "verified", "view", "run"})


class Names:
    """Python names, each given once."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self.taken = {"np", "ops", "base64", "bfloat16", *HELPER_NAMES, *taken}

    def __call__(self, wish: str) -> str:
        word = re.sub(r"\W+", "_", wish).strip("_") or "value"
        word = INSTEAD.get(word, word)
        if word[0].isdigit() or keyword.iskeyword(word):
            word = f"_{word}"
        name, number = word, 0
        while name in self.taken:
            number += 1
            name = f"{word}_{number}"
        self.taken.add(name)
        return name


def wish_of(step: Step) -> str:
    """What a value should be called: as the user calls it, or after its operation."""
    node = step.node
    if node is None:
        is_index = isinstance(step.what, (CheckedIndex, IndexValue, AffineIndex))
        return "at" if is_index else step.what.word
    return assigned_name(node) or node.name or node.op.name


def assigned_name(node: Node) -> str | None:
    """The name that the user gave to the value of a Node: `h` for `h = tj.tanh(x)`."""
    origin = node.origin
    if not isinstance(origin, tuple):
        return None
    expression = expression_text(origin)
    line = linecache.getline(origin[0].co_filename, line_number(origin)).strip()
    return name_in(line, expression)


@lru_cache(KNOWN_TEXTS)
def name_in(line: str, expression: str) -> str | None:
    """The name that a line gives to an expression, if that is all it does.

    >>> name_in("h = tj.tanh(x)", "tj.tanh(x)"), name_in("h = tj.tanh(x)", "x")
    ('h', None)
    """
    try:
        match ast.parse(line).body:
            case [ast.Assign(targets=[ast.Name(id=name)], value=value)]:
                written = ast.parse(expression, mode="eval").body
                return name if ast.dump(written) == ast.dump(value) else None
    except SyntaxError:  # a part of a statement
        return None
    return None


def sum_text(terms: Sequence[tuple[str, int]], constant: int) -> str:
    """factor · name + ... + constant, without what changes nothing.

    >>> sum_text([("i", 2), ("j", -1)], 3), sum_text([("i", -1)], 7)
    ('2 * i - j + 3', '7 - i')
    """
    parts = [
        (factor < 0, name if abs(factor) == 1 else f"{abs(factor)} * {name}")
        for name, factor in terms
    ]
    if constant or not parts:
        number = (constant < 0, str(abs(constant)))
        leads = bool(parts) and parts[0][0] and constant > 0
        parts = [number, *parts] if leads else [*parts, number]
    (is_negative, text), *rest = parts
    found = f"-{text}" if is_negative else text
    return found + "".join(f" {'-' if minus else '+'} {x}" for minus, x in rest)


def is_plain(dtype: DType) -> bool:
    """Whether Python numbers become this dtype when they meet it."""
    return dtype.kind in "iu" or dtype in (np.float32, np.float64)


def dtype_text(dtype: DType) -> str:
    """A dtype as an expression."""
    if dtype.kind == "b":
        return "np.bool_"
    return f"np.{dtype.name}" if hasattr(np, dtype.name) else dtype.name


def number_text(value: Any, dtype: DType) -> str:
    """A number in the fewest digits that read back the same."""
    if dtype.kind == "b":
        return str(bool(value))
    if dtype.kind in "iu":
        return str(int(value))
    exact = float(value)
    if np.isnan(exact) or np.isinf(exact):
        return "np.nan" if np.isnan(exact) else f"{'-' if exact < 0 else ''}np.inf"
    return shortest_text(exact, dtype)


def constant_text(value: Any, dtype: DType) -> str:
    """A number of a dtype."""
    return f"{dtype_text(dtype)}({number_text(value, dtype)})"


def empty_text(shape: Sequence[int], dtype: DType) -> str:
    """Memory."""
    return f"np.empty({tuple(map(int, shape))}, {dtype_text(dtype)})"


def array_text(value: Any) -> str:
    """An array: its numbers if they are few, else its bytes."""
    array = np.ascontiguousarray(value)
    kind = dtype_text(array.dtype)
    is_exact = array.dtype.kind in "biu" or np.isfinite(array.astype(np.float64)).all()
    if array.size <= SHOWN and is_exact:
        return f"np.array({numbers_text(array)}, {kind})"
    text = base64.b64encode(array.tobytes()).decode()
    return f"np.frombuffer(base64.b64decode({text!r}), {kind}).reshape({array.shape})"


def numbers_text(array: Any) -> str:
    """Nested lists."""
    if array.ndim == 0:
        return number_text(array[()], array.dtype)
    return f"[{', '.join(numbers_text(part) for part in array)}]"


def attr_text(value: Any) -> str:
    """An attribute of an operation."""
    return dtype_text(value) if isinstance(value, np.dtype) else repr(value)
