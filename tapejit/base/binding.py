"""Binding: find the numbers that symbolic sizes stand for.

The shapes of arguments are matched against the shapes of parameters. Plain names are
bound first, then what is linear in one unknown is solved, until every axis has been
checked against its number.

Start reading at `bind_shapes`.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import NamedTuple

from tapejit.base.dims import (
    Atom,
    Shape,
    Size,
    evaluate,
    free_names,
    leading_term,
    require_size,
    smallest_value,
    substitute,
    terms_of,
)


def bind_shapes(
    patterns: Sequence[Shape], actuals: Sequence[tuple[int, ...]]
) -> dict[str, int]:
    """Find the unknowns of all patterns from actual shapes, and check every axis.

    Names alone on an axis are bound first; then, as long as it helps, what is linear
    in a single unbound name is solved. A ValueError gives both shapes and the axis.

    >>> from tapejit.base.dims import Dim
    >>> n, m = Dim("n"), Dim("m")
    >>> bind_shapes([(n + m, 3), (2 * n + 1,)], [(9, 3), (13,)])
    {'n': 6, 'm': 3}
    """
    if len(patterns) != len(actuals):
        raise ValueError(f"{len(patterns)} shapes expected, {len(actuals)} given")
    bindings: dict[str, int] = {}
    pairs = enumerate(zip(patterns, actuals, strict=True))
    _bind([axis for i, pair in pairs for axis in _axes(*pair, i)], bindings)
    return bindings


def bind_shape(
    pattern: Shape, actual: tuple[int, ...], bindings: dict[str, int]
) -> None:
    """Add to the bindings what one shape tells, and check it against them.

    The bindings stay as they were when the shape does not fit.

    >>> from tapejit.base.dims import Dim
    >>> bindings = {"n": 5}
    >>> bind_shape((Dim("n"), Dim("m") - 1), (5, 3), bindings)
    >>> bindings
    {'n': 5, 'm': 4}
    """
    found = dict(bindings)
    _bind(_axes(pattern, actual), found)
    bindings.update(found)


class _Axis(NamedTuple):
    """One axis to bind: its size, its actual value, and where it is, for errors."""

    size: Size
    value: int
    axis: int
    pattern: Shape
    actual: tuple[int, ...]
    parameter: int | None

    def mismatch(self, reason: str) -> ValueError:
        whole = _misfit(self.pattern, self.actual, self.parameter)
        return ValueError(f"{whole}: axis {self.axis} is {self.value}, {reason}")

    def solve(self, size: Size, name: str) -> int:
        """The value of the name for which the size, a*name + b, is the actual one."""
        offset = terms_of(size).get((), 0)
        value, rest = divmod(self.value - offset, leading_term(size)[1])
        if rest:
            raise self.mismatch(f"which {size} is for no integer {name}")
        if value < smallest_value(name):
            raise self.mismatch(
                f"so {name} would be {value}, but it stands for sizes from "
                f"{smallest_value(name)} on; smaller ones need a trace of their own"
            )
        return value


def _misfit(pattern: Shape, actual: Shape, parameter: int | None) -> str:
    expected, given = (f"[{','.join(map(str, shape))}]" for shape in (pattern, actual))
    owner = "" if parameter is None else f"parameter {parameter}: "
    return f"{owner}shape {given} does not fit {expected}"


def _axes(
    pattern: Shape, actual: tuple[int, ...], parameter: int | None = None
) -> list[_Axis]:
    if len(pattern) != len(actual):
        whole = _misfit(pattern, actual, parameter)
        raise ValueError(f"{whole}: {len(actual)} axes instead of {len(pattern)}")
    return [
        _Axis(require_size(size), operator.index(value), i, pattern, actual, parameter)
        for i, (size, value) in enumerate(zip(pattern, actual, strict=True))
    ]


def _bind(axes: Sequence[_Axis], bindings: dict[str, int]) -> None:
    # Names that stand alone come first, so that a mismatch is told of what is computed
    # from them.
    for axis in axes:
        name = str(axis.size)
        if name.isidentifier() and name not in bindings:
            bindings[name] = axis.solve(axis.size, name)

    composite = [axis for axis in axes if not free_names(axis.size) <= bindings.keys()]
    is_progressing = True
    while is_progressing:
        is_progressing = False
        for axis in composite:
            rest = substitute(axis.size, bindings)
            match [monomial for monomial in terms_of(rest) if monomial]:
                case [(Atom(kind="name", text=name),)]:
                    bindings[name] = axis.solve(rest, name)
                    is_progressing = True

    for axis in axes:
        names = sorted(free_names(axis.size))
        missing = [name for name in names if name not in bindings]
        if missing:
            raise axis.mismatch(
                f"which does not determine {' and '.join(missing)}: "
                "some other axis must"
            )
        expected = evaluate(axis.size, bindings)
        if expected != axis.value:
            known = ", ".join(f"{name}={bindings[name]}" for name in names)
            raise axis.mismatch(f"not {expected}" + (f" ({known})" if known else ""))
