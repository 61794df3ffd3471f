"""A Graph as text: what is read, compared, hashed and parsed back.

Every Node is one line, `%2: f32[] = sum %1, axes=(0, 1)`, numbered in the order in
which a run would reach it; a scalar literal stands where it is used, `f32(2.0)`. A
Graph held by an attribute is printed in place, with names and numbers of its own.
A comment is the user's line, or the Node for which a pass made this one.

There are two spellings. `print_graph` is for people and for `parse_graph`: columns
are aligned, names and the order of attributes are kept. `canonical_text` is for
digests: nothing in it was chosen freely, so graphs that differ only in names, in
comments or in the order of attributes have the same one, and no others do. The one
exception is a scalar NaN, which is just `nan` in both: its bits mean nothing.

A `Writer` makes the lines and knows the first spelling; `_CanonicalWriter` overrides
what the second does differently.

Start reading at `print_graph`, then `Writer.lines`.
"""

from __future__ import annotations

import base64
import json
import math
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from typing import Any, Final, NamedTuple

import numpy as np

from tapejit.base.dims import Dim, Size, free_names, substitute
from tapejit.base.errors import GraphError
from tapejit.base.origin import short_location
from tapejit.base.types import (
    SHORT_NAMES,
    DType,
    TensorType,
    TupleType,
    Type,
    short_name,
)
from tapejit.ir.graph import Graph
from tapejit.ir.node import LITERAL, Derived, Node

# What a bare word in an attribute means if it is not the name of a size.
RESERVED: Final = {"None", "True", "False", "inf", "nan", *SHORT_NAMES.values()}

LIST_LIMIT = 16  # elements of a literal that are still written as numbers
ALIGNMENT_LIMIT = 60  # a longer line does not push everybody's comments to the right


def print_graph(graph: Graph, *, comments: bool = True) -> str:
    """The text of a Graph; `parse_graph` reads it.

    >>> from tapejit.ir import param
    >>> x = param("x", TensorType.parse("f32[3]"))
    >>> print(print_graph(Graph("cube", (x,), (x * x * x,))))
    graph cube(x: f32[3]) {
      %0: f32[3] = mul x, x
      %1: f32[3] = mul %0, x
      return %1
    }
    """
    return "\n".join(line.text for line in Writer(comments=comments).lines(graph))


def canonical_text(graph: Graph) -> str:
    """The text that equal computations share, whatever they call their parts.

    >>> from tapejit.ir import param
    >>> rows = param("rows", TensorType.parse("f32[batch]"))
    >>> print(canonical_text(Graph("double", (rows,), (rows + rows,))))
    graph(a0: f32[d0]) {
    %0: f32[d0] = add a0, a0
    return %0
    }
    """
    return "\n".join(line.text for line in _CanonicalWriter().lines(graph))


class Line(NamedTuple):
    """A line and the Node it defines; with a nested Graph, several lines."""

    text: str
    node: Node | None = None


class Writer:
    """Writes Graphs the way `print_graph` shows them."""

    def __init__(self, *, comments: bool = False) -> None:
        self.comments = comments

    def lines(self, graph: Graph, indent: str = "") -> list[Line]:
        """The lines of a Graph; the first begins where the caller has written to."""
        names = self.input_names(graph)
        inputs = ", ".join(
            f"{names[x]}: {self.type_text(x.type)}" for x in graph.inputs
        )
        head = Line(f"{self.head(graph)}({inputs}) {{")

        numbers = count()
        rows: list[tuple[Node, str, str]] = []
        for node in graph.nodes:
            if is_scalar_literal(node):
                names[node] = scalar_text(node.attrs["value"])
                continue
            names[node] = f"%{next(numbers)}"
            left = f"{names[node]}: {self.type_text(node.type)}"
            rows.append((node, left, self.application(node, names, indent)))

        outputs = ", ".join(names[x] for x in graph.outputs)
        ends = [Line(f"{self.inner(indent)}return {outputs}".rstrip())]
        if graph.effects is not None:
            ends.append(Line(f"{self.inner(indent)}effects {names[graph.effects]}"))
        return [head, *self.layout(rows, names, indent), *ends, Line(f"{indent}}}")]

    def layout(
        self, rows: list[tuple[Node, str, str]], names: Mapping[Node, str], indent: str
    ) -> Iterator[Line]:
        """Align the equals signs and the comments."""
        inner = self.inner(indent)
        width = _column(left for _, left, _ in rows)
        texts = [f"{inner}{left:<{width}} = {right}" for _, left, right in rows]
        column = _column(text.partition("\n")[0] for text in texts)
        for (node, _, _), text in zip(rows, texts, strict=True):
            comment = origin_text(node, names) if self.comments else ""
            if comment:
                first, newline, rest = text.partition("\n")
                text = f"{first:<{column}}  # {comment}{newline}{rest}"
            yield Line(text, node)

    def application(self, node: Node, names: Mapping[Node, str], indent: str) -> str:
        """The right-hand side of a line."""
        if node.op is LITERAL and isinstance(node.attrs.get("value"), np.ndarray):
            return f"{node.op.name} {self.array_text(node.attrs['value'])}"
        parts = [names[x] for x in node.inputs]
        for key, value in self.attributes(node):
            try:
                parts.append(f"{key}={self.value_text(value, self.inner(indent))}")
            except TypeError as error:
                raise GraphError(
                    f"attribute {key} cannot be printed: {error}",
                    op=node.op.name,
                    help="an attribute is None, a bool, int, float, str, dtype, Dim "
                    "or Graph, or a tuple of them",
                ) from error
        return f"{node.op.name} {', '.join(parts)}".rstrip()

    def value_text(self, value: Any, indent: str) -> str:
        """An attribute's value; a TypeError says that there is no text for it."""
        if value is None or type(value) in (bool, int, float):
            return repr(value)
        if type(value) is str:
            return json.dumps(value)
        if type(value) is tuple:
            parts = [self.value_text(part, indent) for part in value]
            return f"({parts[0]},)" if len(parts) == 1 else f"({', '.join(parts)})"
        if isinstance(value, Dim):
            return self.dim_text(value)
        if isinstance(value, np.dtype) and value.isnative and value.name in SHORT_NAMES:
            return short_name(value)
        if isinstance(value, Graph):
            return "\n".join(line.text for line in self.lines(value, indent))
        return self.unprintable(value)

    def unprintable(self, value: Any) -> str:
        """What stands for a value that has no text."""
        raise TypeError(f"{value!r} is a {type(value).__name__}")

    def head(self, graph: Graph) -> str:
        """`graph` and its name, quoted if it is not a plain word."""
        is_plain = re.fullmatch(r"[\w.<>]+", graph.name) is not None
        return f"graph {graph.name if is_plain else json.dumps(graph.name)}"

    def inner(self, indent: str) -> str:
        """The indentation of what is inside braces."""
        return indent + "  "

    def input_names(self, graph: Graph) -> dict[Node, str]:
        """Parameters by their names, made unique; other inputs are v0, v1, ..."""
        wanted = {x: bare_word(x.name) for x in graph.inputs if x.name is not None}
        taken = set(wanted.values())
        used: set[str] = set()
        counters: defaultdict[str, Iterator[int]] = defaultdict(lambda: count(1))
        unnamed = count()
        names: dict[Node, str] = {}
        for x in graph.inputs:
            if x in names:
                continue
            name = wanted.get(x)
            if name is None:
                name = next(f"v{i}" for i in unnamed if f"v{i}" not in taken)
            elif name in used:
                stem, numbers = name, counters[name]
                name = next(
                    f"{stem}_{i}" for i in numbers if f"{stem}_{i}" not in taken
                )
            used.add(name)
            taken.add(name)
            names[x] = name
        return names

    def attributes(self, node: Node) -> Iterable[tuple[str, Any]]:
        """The attributes in the order in which they are written."""
        return node.attrs.items()

    def type_text(self, type: Type) -> str:
        """A type, with its sizes as this writer names them."""
        return str(type)

    def dim_text(self, dim: Dim) -> str:
        """A symbolic size as an attribute."""
        clash = free_names(dim) & RESERVED
        if clash:
            raise TypeError(f"the size name {min(clash)!r} means something else here")
        return str(dim)

    def array_text(self, value: np.ndarray[Any, Any]) -> str:
        """The value of a literal with axes: numbers if they are few, else bytes."""
        with np.errstate(invalid="ignore"):  # a signalling NaN would warn
            has_nan = np.isnan(value).any()  # and as a number it would lose its bits
        is_short = value.size <= LIST_LIMIT and not has_nan
        return _list_text(value) if is_short else bytes_text(value)


class _CanonicalWriter(Writer):
    """Writes Graphs without anything that was chosen freely."""

    def __init__(self) -> None:
        super().__init__()
        self.renamed: dict[str, Size] = {}
        self.type_texts: dict[Type, str] = {}  # a graph has many Nodes and few types

    def layout(
        self, rows: list[tuple[Node, str, str]], names: Mapping[Node, str], indent: str
    ) -> Iterator[Line]:
        return (Line(f"{left} = {right}", node) for node, left, right in rows)

    def head(self, graph: Graph) -> str:
        return "graph"

    def inner(self, indent: str) -> str:
        return ""

    def input_names(self, graph: Graph) -> dict[Node, str]:
        return {x: f"a{at}" for at, x in enumerate(graph.inputs)}

    def attributes(self, node: Node) -> Iterable[tuple[str, Any]]:
        return sorted(node.attrs.items())

    def type_text(self, type: Type) -> str:
        if (text := self.type_texts.get(type)) is None:
            if isinstance(type, TupleType):
                text = f"({', '.join(map(self.type_text, type.items))})"
            elif isinstance(type, TensorType):
                text = str(type.with_shape(tuple(map(self.renamed_size, type.shape))))
            else:
                text = str(type)
            self.type_texts[type] = text
        return text

    def dim_text(self, dim: Dim) -> str:
        return str(self.renamed_size(dim))

    def renamed_size(self, size: Size) -> Size:
        """The size over names given in order of first appearance: d0, d1, ..."""
        for name in re.findall(r"[^\W\d]\w*", str(size)):
            if name in free_names(size) and name not in self.renamed:
                mark = "_" if name.startswith("_") else ""  # may be 0 or 1: keep that
                self.renamed[name] = Dim(f"{mark}d{len(self.renamed)}")
        return substitute(size, self.renamed)

    def array_text(self, value: np.ndarray[Any, Any]) -> str:
        return bytes_text(value)


def shown(graph: Graph) -> str:
    """A Graph as text, with the user's lines; what has no text is shown by its type."""
    return "\n".join(line.text for line in _ShowingWriter(comments=True).lines(graph))


def changed_lines(old: str, new: str) -> list[str]:
    """The lines that one text has and the other one has not, with `-` and `+`."""
    from difflib import unified_diff  # for reports: most programs make none

    changes = [*unified_diff(old.splitlines(), new.splitlines(), n=0, lineterm="")]
    return [line for line in changes[2:] if not line.startswith("@@")]


class _ShowingWriter(Writer):
    """Writes every Graph: what it writes is not parsed back."""

    def unprintable(self, value: Any) -> str:
        return f"<{type(value).__name__}>"


def _column(texts: Iterable[str]) -> int:
    lengths = map(len, texts)
    return max((length for length in lengths if length <= ALIGNMENT_LIMIT), default=0)


def origin_text(node: Node, names: Mapping[Node, str]) -> str:
    """Where a Node came from: a line, or a pass, its subject and the subject's line."""
    origin = node.origin
    if origin is None:
        return ""
    if not isinstance(origin, Derived):
        return short_location(origin)
    subject = origin.node
    if subject in names:
        return f"{origin.by} of {names[subject]}"
    text = f"{origin.by} of {subject.name or subject.op.name}"
    place = subject.origin
    while isinstance(place, Derived):
        place = place.node.origin
    return text if place is None else f"{text}, {short_location(place)}"


def bare_word(name: str) -> str:
    """A parameter's name as one word.

    >>> bare_word("layers[0].kernel"), bare_word("2nd")
    ('layers_0_.kernel', '_2nd')
    """
    word = re.sub(r"[^\w.]+", "_", name)
    return word if re.match(r"[^\W\d]", word) else f"_{word}"


def is_scalar_literal(node: Node) -> bool:
    """Whether a Node is a constant that is written where it is used."""
    value = node.attrs.get("value") if node.op is LITERAL else None
    return isinstance(value, np.ndarray) and value.ndim == 0


def scalar_text(value: np.ndarray[Any, Any]) -> str:
    """A constant with its dtype, in the fewest digits that read back the same.

    >>> scalar_text(np.array(0.1, "float32")), scalar_text(np.array(-3, "int8"))
    ('f32(0.1)', 'i8(-3)')
    >>> scalar_text(np.array(1 - 2.5j, "complex64"))
    'c64(1-2.5j)'
    """
    return f"{short_name(value.dtype)}({_number_text(value[()], value.dtype)})"


def _number_text(value: Any, dtype: DType) -> str:
    if dtype.kind in "biu":
        return str(value.item())
    if dtype.kind == "c":
        real, imag = (_number_text(x, x.dtype) for x in (value.real, value.imag))
        sign = "" if imag.startswith("-") else "+"
        return f"{real.removesuffix('.0')}{sign}{imag.removesuffix('.0')}j"
    return shortest_text(float(value), dtype)


def shortest_text(exact: float, dtype: DType) -> str:
    """A float in the fewest digits that a dtype rounds to it.

    >>> shortest_text(float(np.float32(0.1)), np.dtype("float32"))
    '0.1'
    """
    if math.isfinite(exact) and dtype.itemsize < 8:
        with np.errstate(over="ignore"):  # fewer digits may round to beyond the range
            for digits in range(1, 17):
                short = float(f"{exact:.{digits}g}")
                if float(dtype.type(short)) == exact:
                    return repr(short)
    return repr(exact)


def _list_text(value: np.ndarray[Any, Any]) -> str:
    if value.ndim == 0:
        return _number_text(value[()], value.dtype)
    return f"[{', '.join(_list_text(np.asarray(part)) for part in value)}]"


def bytes_text(value: np.ndarray[Any, Any]) -> str:
    """An array's little-endian bytes, row by row, in base 64 and quotes."""
    little = value if sys.byteorder == "little" else value.byteswap()
    return f'"{base64.b64encode(little.tobytes()).decode()}"'
