"""Text back into a Graph.

A `_Reader` is a cursor over the text with one method per piece of the grammar; each
method reads its piece or fails with the line and a caret under the place. Spaces and
comments mean nothing, the end of a line ends a statement:

    graph      graph NAME(NAME: TYPE, ...) { statements
               return OPERANDS
               effects OPERAND }
    statement  %N: TYPE = OP OPERANDS, KEY=VALUE, ...
               %N: TYPE = literal [[NUMBER, ...], ...]  or  literal "BASE64"
    operand    %N, NAME or a constant such as f32(2.0)
    value      None True False NUMBER "STRING" DTYPE SIZE (VALUE, ...) or a graph

Types are read and inferred again: text whose types do not follow from its operations
is refused, so what was parsed has the same meaning as what was printed.

Start reading at `parse_graph`, then `_Reader.graph`.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import sys
from collections.abc import Callable
from typing import Any, Final, NoReturn

import numpy as np

from tapejit.base.dims import parse_dim
from tapejit.base.errors import GraphError
from tapejit.base.types import (
    LONG_NAMES,
    DType,
    TensorType,
    Type,
    dtype_named,
    parse_type,
)
from tapejit.ir.graph import Graph
from tapejit.ir.node import LITERAL, OPS, PARAM, Node, Op, literal, param

NAME: Final = re.compile(r"[^\W\d][\w.]*")
GRAPH_NAME: Final = re.compile(r"[\w.<>]+")
GRAPH_START: Final = re.compile(r'graph[ \t]+(?:"|[\w.<>]+\()')  # not graph + 1
NUMBERED: Final = re.compile(r"%\d+")
KEY: Final = re.compile(r"([^\W\d]\w*)[ \t]*=")
STRING: Final = re.compile(r'"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"')
# Whole lines of spaces and comments, and the spaces before the next word.
BLANK: Final = re.compile(r"(?:[ \t]*(?:#[^\n]*)?\n)*[ \t]*(?:#[^\n]*\Z)?")
INTEGER: Final = re.compile(r"-?\d+")
FLOAT: Final = re.compile(r"-?(?:\d+\.\d*(?:e[+-]?\d+)?|\d+e[+-]?\d+|inf|nan)")
WORDS: Final[dict[str, bool | None]] = {"None": None, "True": True, "False": False}


def parse_graph(text: str) -> Graph:
    """The Graph whose text this is.

    >>> graph = parse_graph('''
    ... graph double(x: f32[3]) {
    ...   %0: f32[3] = add x, x   # any comment
    ...   return %0
    ... }''')
    >>> graph
    <Graph double(f32[3]) -> (f32[3]), 1 nodes>
    """
    reader = _Reader(text)
    reader.take(BLANK, "text")
    graph = reader.graph()
    reader.end_line()
    if reader.at < len(text):
        reader.fail("expected nothing after the graph")
    return graph


class _Reader:
    """A cursor over the text of a Graph."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    # The grammar

    def graph(self) -> Graph:
        """A whole Graph, from the word to the closing brace."""
        self.expect("graph")
        name = self.string() if self.sees('"') else self.take(GRAPH_NAME, "a name")
        names: dict[str, Node] = {}
        inputs, _ = self.listed(lambda: self.input(names))
        self.expect("{")
        self.end_line()
        while self.sees("%"):
            self.statement(names)
        outputs, effects = self.ends(names)
        return Graph(name, inputs, outputs, effects)

    def input(self, names: dict[str, Node]) -> Node:
        """`x: f32[3]`"""
        start = self.at
        name = self.take(NAME, "the name of an input")
        self.expect(":")
        return self.define(names, name, param(name, self.type()), start)

    def statement(self, names: dict[str, Node]) -> None:
        """`%0: f32[3] = add x, x`"""
        start = self.at
        name = self.take(NUMBERED, "a Node")
        self.expect(":")
        type_start = self.skip()
        type = self.type()
        self.expect("=")
        op_start = self.skip()
        op_name = self.take(NAME, "an op")
        try:
            op = OPS[op_name]  # not `get`, which loads no family
        except KeyError:
            op = PARAM
        if op is PARAM:  # parameters are inputs
            self.fail(f"unknown op {op_name!r}", op_start)
        if op is LITERAL:
            node = self.literal(type, type_start)
        else:
            node = self.application(op, names, op_start)
        if node.type != type:
            self.fail(f"{name} is {node.type}, the text says {type}", type_start)
        self.end_line()
        self.define(names, name, node, start)

    def application(self, op: Op, names: dict[str, Node], op_start: int) -> Node:
        """The operands and attributes of an op, and the Node they make."""
        inputs: list[Node] = []
        attrs: dict[str, Any] = {}
        while not self.is_at_end_of_line():
            if inputs or attrs:
                self.expect(",")
            start = self.skip()
            key = KEY.match(self.text, self.at)
            if key is None:
                if attrs:
                    self.fail("operands come before attributes", start)
                inputs.append(self.operand(names))
                continue
            if key[1] in attrs:
                self.fail(f"attribute {key[1]} is given twice", start)
            self.at = key.end()
            attrs[key[1]] = self.value()
        try:
            type = op.infer_type([x.type for x in inputs], attrs)
        except Exception as error:  # rules may stumble in any way over wrong text
            what = getattr(error, "message", error)  # without the place it adds
            self.fail(f"{op.name} does not take this: {what}", op_start)
        return Node(op, tuple(inputs), attrs, type)

    def ends(self, names: dict[str, Node]) -> tuple[list[Node], Node | None]:
        """The outputs and the last effect, to the closing brace."""
        self.expect("return")
        outputs: list[Node] = []
        while not self.is_at_end_of_line():
            if outputs:
                self.expect(",")
            outputs.append(self.operand(names))
        self.end_line()
        effects = None
        if self.accept("effects"):
            effects = self.operand(names)
            self.end_line()
        self.expect("}")
        return outputs, effects

    def operand(self, names: dict[str, Node]) -> Node:
        """A Node by its name, or a constant."""
        start = self.skip()
        if self.sees("%"):
            name = self.take(NUMBERED, "the number of a Node")
        else:
            name = self.take(NAME, "an operand")
            if self.text.startswith("(", self.at):
                return self.constant(name, start)
        if name not in names:
            self.fail(f"{name} is not defined", start)
        return names[name]

    def constant(self, name: str, start: int) -> Node:
        """`f32(2.0)`, behind its dtype."""
        if name not in LONG_NAMES:
            self.fail(f"unknown dtype {name!r}", start)
        dtype = dtype_named(name)
        self.expect("(")
        value = self.number(dtype)
        self.expect(")")
        return literal(value, dtype)

    def literal(self, type: Type, type_start: int) -> Node:
        """The array behind the word: nested lists of numbers, or bytes."""
        if not isinstance(type, TensorType) or not type.is_static:
            self.fail(f"a literal cannot have the type {type}", type_start)
        start = self.skip()
        shape: Any = type.shape  # ints, because the type is static
        if not self.sees('"'):
            numbers: list[Any] = []
            self.nested(shape, type.dtype, numbers)
            return literal(np.array(numbers, type.dtype).reshape(shape))
        try:
            data = base64.b64decode(self.string(), validate=True)
            array = np.frombuffer(data, type.dtype).reshape(shape)
        except (binascii.Error, ValueError) as error:
            self.fail(f"these are not the bytes of {type}: {error}", start)
        return literal(array if sys.byteorder == "little" else array.byteswap())

    def nested(self, shape: tuple[int, ...], dtype: DType, into: list[Any]) -> None:
        """Numbers in the brackets that the shape asks for."""
        if not shape:
            into.append(self.number(dtype))
            return
        self.expect("[")
        for at in range(shape[0]):
            if at:
                self.expect(",")
            self.nested(shape[1:], dtype, into)
        self.expect("]")

    def number(self, dtype: DType) -> Any:
        """One number, exactly, as a scalar of the dtype."""
        start = self.skip()
        text = self.chunk(",)]")
        try:
            if dtype.kind == "b":
                return dtype.type({"True": True, "False": False}[text])
            if dtype.kind in "iu":
                return dtype.type(int(text))
            with np.errstate(over="ignore"):
                return dtype.type(complex(text) if dtype.kind == "c" else float(text))
        except (KeyError, ValueError, OverflowError):
            self.fail(f"{text!r} is no {dtype}", start)

    def value(self) -> Any:
        """The value of an attribute."""
        start = self.skip()
        if self.sees('"'):
            return self.string()
        if GRAPH_START.match(self.text, self.at):
            return self.graph()
        if self.sees("("):
            items, ends_in_comma = self.listed(self.value)
            # (n + 1)*2 begins like a tuple, but a tuple of one has a comma.
            if len(items) != 1 or ends_in_comma:
                return tuple(items)
            self.at = start
        text = self.chunk(",)")
        if text in WORDS:
            return WORDS[text]
        if INTEGER.fullmatch(text):
            return int(text)
        if FLOAT.fullmatch(text):
            return float(text)
        if text in LONG_NAMES:
            return dtype_named(text)
        try:
            return parse_dim(text)
        except ValueError as error:
            self.fail(f"{text!r} is no value: {error}", start)

    def type(self) -> Type:
        """`f32[64,8]`, `token` or `(f32[2], i32[])`"""
        start = self.skip()
        if not self.sees("("):
            self.take(NAME, "a type")
        if self.text.startswith(("(", "["), self.at):
            self.at += 1
            self.chunk(")]")
            self.at += 1
        text = self.text[start : self.at]
        try:
            return parse_type(text)
        except (ValueError, TypeError) as error:
            self.fail(str(error), start)

    def string(self) -> str:
        return str(json.loads(self.take(STRING, "a string")))

    # The cursor

    def skip(self) -> int:
        """Go past spaces; the new place."""
        while self.text.startswith((" ", "\t"), self.at):
            self.at += 1
        return self.at

    def sees(self, token: str) -> bool:
        """Whether the next thing is this."""
        return self.text.startswith(token, self.skip())

    def accept(self, token: str) -> bool:
        """Go past this if it is the next thing."""
        if not self.sees(token):
            return False
        self.at += len(token)
        return True

    def expect(self, token: str) -> None:
        if not self.accept(token):
            self.fail(f"expected {token!r}")

    def take(self, pattern: re.Pattern[str], what: str) -> str:
        match = pattern.match(self.text, self.skip())
        if match is None:
            self.fail(f"expected {what}")
        self.at = match.end()
        return match[0]

    def listed(self, read: Callable[[], Any]) -> tuple[list[Any], bool]:
        """What stands in parentheses, and whether its last comma ends it."""
        self.expect("(")
        items: list[Any] = []
        has_comma = True
        while not self.accept(")"):
            if not has_comma:
                self.fail("expected ',' or ')'")
            items.append(read())
            has_comma = self.accept(",")
        return items, has_comma

    def chunk(self, ends: str) -> str:
        """The text up to one of `ends` outside brackets, or to the end of the line."""
        start, depth = self.skip(), 0
        while self.at < len(self.text) and self.text[self.at] not in "#\n":
            char = self.text[self.at]
            if depth == 0 and char in ends:
                break
            depth += (char in "([") - (char in ")]")
            self.at += 1
        return self.text[start : self.at].rstrip()

    def is_at_end_of_line(self) -> bool:
        return self.text[self.skip() : self.at + 1] in ("", "#", "\n")

    def end_line(self) -> None:
        """Nothing but a comment may follow; go to the next line with a word."""
        if not self.is_at_end_of_line():
            self.fail("expected the end of the line")
        self.take(BLANK, "lines")

    def define(self, names: dict[str, Node], name: str, node: Node, start: int) -> Node:
        if name in names:
            self.fail(f"{name} is defined twice", start)
        names[name] = node
        return node

    def fail(self, message: str, at: int | None = None) -> NoReturn:
        """Raise with the line and a caret under the place, the cursor's by default."""
        place = self.skip() if at is None else at
        begin = self.text.rfind("\n", 0, place) + 1
        line = self.text[begin:].partition("\n")[0]
        number = self.text.count("\n", 0, place) + 1
        shown = f"  | {line}\n  | {'^':>{place - begin + 1}}"
        raise GraphError(f"line {number}: {message}\n{shown}")
