"""Where in the user's program something happened.

An origin is the pair `(code object, instruction offset)` of the first frame outside
tapejit. Taking it costs a fifth of a microsecond; turning an offset into a line
costs far more (33 µs in a long function), so that happens only when a message or a
printed graph asks for it.

Start reading at `user_origin`, then `describe`.
"""

from __future__ import annotations

import ast
import linecache
import os
import sys
import warnings
from opcode import opmap
from types import CodeType, FrameType

Origin = tuple[CodeType, int]


class Labelled(tuple[CodeType, int]):
    """An origin with the name of the function that the user called there.

    When an operation of a graph fails, the message names that function, as it does
    when the operation fails at once.
    """

    label: str

    def __new__(cls, origin: Origin, label: str) -> Labelled:
        made = super().__new__(cls, origin)
        made.label = label
        return made


# What stands between the user's line and ours: `functools.cached_property`, say.
BETWEEN = ("tapejit", "numpy", "functools", "contextlib")


class _InternalModules(dict[str, bool]):
    """Module name -> whether its frames are skipped; filled as names are met."""

    def __missing__(self, name: str) -> bool:
        package = name.partition(".")[0]
        self[name] = internal = package in BETWEEN
        return internal


is_internal = _InternalModules()


def user_origin(depth: int = 1) -> Origin | None:
    """The origin of the operation being run, None if there is no user frame."""
    frame: FrameType | None = sys._getframe(depth)
    while frame is not None:
        if not is_internal[frame.f_globals.get("__name__", "")]:
            return frame.f_code, frame.f_lasti
        frame = frame.f_back
    return None


# Functions of these are called by each other, for the user.
CREATION = frozenset({"tapejit.tensor.foreign_keywords", "tapejit.array.creation"})


def is_users_call(depth: int) -> bool:
    """Whether the user's program, not tapejit, has called a function that creates.

    `depth` is that of its caller.
    """
    frame: FrameType | None = sys._getframe(depth)
    while frame is not None and frame.f_globals.get("__name__") in CREATION:
        frame = frame.f_back
    return frame is None or not is_internal[frame.f_globals.get("__name__", "")]


def instruction_start(code: CodeType, offset: int) -> int:
    """The offset where the instruction at `offset` begins.

    A frame inside an instruction that CPython has specialised stands at one of the
    instruction's cache entries, or at the preparation of a call instead of the call,
    so one line would have several offsets.
    """
    text = code.co_code
    offset = _skip_caches(text, offset)
    if PRECALL is not None and offset >= 2 and text[offset] == CALL:
        before = _skip_caches(text, offset - 2)
        if text[before] == PRECALL:
            return before
    return offset


CALL = opmap.get("CALL")
PRECALL = opmap.get("PRECALL")  # Python 3.11 only


def _skip_caches(text: bytes, offset: int) -> int:
    while offset >= 2 and text[offset] == 0:
        offset -= 2
    return offset


def line_number(origin: Origin) -> int:
    """The line of an origin."""
    code, offset = origin
    for start, end, line in code.co_lines():
        if line is not None and start <= offset < end:
            return line
    return code.co_firstlineno


def short_location(origin: Origin | None) -> str:
    """`train.py:14`, as in the comments of printed graphs."""
    if origin is None:
        return "unknown line"
    return f"{os.path.basename(origin[0].co_filename)}:{line_number(origin)}"


def describe(origin: Origin | None) -> str:
    """`train.py:14 in loss:  return x @ w`, as in error messages."""
    if origin is None:
        return "unknown line"
    source = linecache.getline(origin[0].co_filename, line_number(origin)).strip()
    name = origin[0].co_name
    place = short_location(origin) + ("" if name == "<module>" else f" in {name}")
    return f"{place}:  {source}" if source else place


def operand_texts(origin: Origin | None) -> tuple[str, ...]:
    """The source text of each operand of the call or operator at `origin`.

    Empty when the source is not at hand or the expression has another form: the
    message then describes operands by their types alone.
    """
    if origin is None:
        return ()
    segment = expression_text(origin)
    try:
        expression = ast.parse(segment, mode="eval").body
    except SyntaxError:
        return ()
    match expression:
        case ast.BinOp(left=left, right=right):
            parts: list[ast.expr] = [left, right]
        case ast.Compare(left=left, comparators=[right]):
            parts = [left, right]
        case ast.Call(args=args):
            parts = list(args)
        case ast.UnaryOp(operand=operand):
            parts = [operand]
        case _:
            return ()
    return tuple(ast.get_source_segment(segment, part) or "" for part in parts)


def expression_text(origin: Origin) -> str:
    """The source text of the expression at `origin`, empty if it is not known."""
    code, offset = origin
    positions = list(code.co_positions())
    if offset // 2 >= len(positions):
        return ""
    line, end_line, column, end_column = positions[offset // 2]
    if line is None or end_line is None or column is None or end_column is None:
        return ""
    lines = [
        linecache.getline(code.co_filename, at) for at in range(line, end_line + 1)
    ]
    if not all(lines):
        return ""
    encoded = [text.encode() for text in lines]  # columns are counted in bytes
    encoded[-1] = encoded[-1][:end_column]
    encoded[0] = encoded[0][column:]
    return b"".join(encoded).decode()


def user_stacklevel() -> int:
    """The `stacklevel` that makes a warning show the user's line."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and is_internal[frame.f_globals.get("__name__", "")]:
        frame = frame.f_back
        level += 1
    return level


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the user's line."""
    warnings.warn(message, category, stacklevel=user_stacklevel())
