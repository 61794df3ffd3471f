"""Lane expressions as Python text: the readable source of a kernel.

The text is NumPy's where NumPy has the function, and the record's own `eval` where it
has not, so it runs as it stands where `np` and `ops` (`from tapejit import ops`) are
known, on arrays as well as on single elements. It is for reading and for stepping
through: it means the same as the kernel, and may differ from it in the last digits.

Operands are text too: a name, or any expression, which is put in parentheses where it
needs them.

Start reading at `source`, then `TEMPLATES`.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np

from tapejit.ir.node import Op
from tapejit.loops.lane_algebra import Algebra, Lane

# What binds tighter than any operator.
ATOMS = (ast.Name, ast.Constant, ast.Call, ast.Attribute, ast.Subscript)

OPERATORS = {
    "add": "{} + {}",
    "sub": "{} - {}",
    "mul": "{} * {}",
    "div": "{} / {}",
    "negative": "-{}",
    "remainder": "{} % {}",
    "pow": "{} ** {}",
    "eq": "{} == {}",
    "ne": "{} != {}",
    "lt": "{} < {}",
    "le": "{} <= {}",
    "gt": "{} > {}",
    "ge": "{} >= {}",
    "and_": "{} & {}",
    "or_": "{} | {}",
    "xor": "{} ^ {}",
    "invert": "~{}",
    "shl": "{} << {}",
    "shr": "{} >> {}",
}
# The names of the lane algebra that are called something else in NumPy.
RENAMED = {
    "acos": "arccos",
    "acosh": "arccosh",
    "asin": "arcsin",
    "asinh": "arcsinh",
    "atan": "arctan",
    "atan2": "arctan2",
    "atanh": "arctanh",
    "round_half_even": "rint",
    "select": "where",
}
CALLED = """
    abs angle ceil conj copysign cos cosh exp exp2 expm1 floor fmod hypot imag isfinite
    isinf isnan ldexp log log10 log1p log2 logaddexp logaddexp2 maximum minimum
    nextafter real sign signbit sin sinh sqrt tan tanh trunc
"""
KNOWN_TEXTS: Final = 4096  # layers that are alike have the same ones
TEMPLATES = {
    **OPERATORS,
    **{name: f"np.{name}" for name in CALLED.split()},
    **{name: f"np.{called}" for name, called in RENAMED.items()},
}


@lru_cache(KNOWN_TEXTS)
def in_parentheses(text: str) -> str:
    """An expression as an operand of any operator.

    >>> in_parentheses("np.exp(a)"), in_parentheses("a + b")
    ('np.exp(a)', '(a + b)')
    """
    parsed = ast.parse(text, mode="eval").body
    return text if isinstance(parsed, ATOMS) else f"({text})"


class Writing(Algebra):
    """Values of Lanes are expressions."""

    def __init__(
        self, op: Op, attrs: Mapping[str, Any], operands: Sequence[str]
    ) -> None:
        self._op = op
        self._attrs = attrs
        self._operands = operands

    def call(self, name: str, *operands: Any) -> Lane:
        texts = [x.value if isinstance(x, Lane) else repr(x) for x in operands]
        return Lane(self, self._text(name, texts, operands), None)

    def _text(self, name: str, texts: list[str], operands: Sequence[Any]) -> str:
        if name == "cast":
            return self._cast(texts[0], operands[1])
        if name == "select" and not any(isinstance(x, Lane) for x in operands[1:]):
            # Of two numbers `np.where` would choose the dtype.
            dtype = f"{in_parentheses(self._operands[0])}.dtype"
            texts[1] = f"{dtype}.type({texts[1]})"
        template = TEMPLATES.get(name)
        if template is None:
            return self._record()
        if "{}" in template:
            return template.format(*map(in_parentheses, texts))
        return f"{template}({', '.join(texts)})"

    def _cast(self, x: str, dtype: Any) -> str:
        if not hasattr(np, dtype.name):
            return self._record()
        return f"{in_parentheses(x)}.astype(np.{dtype.name})"

    def _record(self) -> str:
        """The record's own meaning of the whole operation."""
        attrs = [f"{name}={_written(value)}" for name, value in self._attrs.items()]
        return f"ops.{self._op.name}.eval({', '.join([*self._operands, *attrs])})"


def _written(value: Any) -> str:
    """An attribute as Python; NumPy knows bfloat16 by its name only."""
    return f"np.dtype({value.name!r})" if isinstance(value, np.dtype) else repr(value)


def source(op: Op, attrs: Mapping[str, Any], operands: Sequence[str]) -> str:
    """An elementwise operation as a Python expression of its operands.

    >>> from tapejit import ops
    >>> source(ops.exp, {}, ["a - b"]), source(ops.mul, {}, ["a - b", "c"])
    ('np.exp(a - b)', '(a - b) * c')
    >>> source(ops.gate, {}, ["t", "mask"])
    'np.where(mask != 0, t, 0)'
    >>> source(ops.sigmoid, {}, ["x"])
    'ops.sigmoid.eval(x)'
    """
    algebra = Writing(op, attrs, operands)
    lanes = [Lane(algebra, text, None) for text in operands]
    text: str = algebra.interpret(op, lanes, attrs).value
    return text
