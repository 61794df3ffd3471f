"""Every exception tapejit raises on its own account.

Each one also derives from the builtin a NumPy or TensorFlow user would catch. The
raising code gives the facts (`raise ShapeError("cannot broadcast ...", help=...)`);
`TapejitError.__str__` lays them out: what happened, where in the user's file, which
operands, and what to write instead.

Start reading at `TapejitError`.
"""

from __future__ import annotations

from typing import Any

from tapejit.origin import Origin, describe, operand_texts, user_origin
from tapejit.tree import StructureError


class TapejitError(Exception):
    """Base of tapejit's errors: a message with its place and a way out.

    `op` is the operation's name, `operands` one description per operand, `help` one
    sentence on what to do.
    """

    def __init__(
        self,
        message: str,
        *,
        op: str | None = None,
        operands: tuple[str, ...] = (),
        help: str | None = None,
        origin: Origin | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.op = op
        self.operands = operands
        self.help = help
        self.origin = origin if origin is not None else user_origin(2)

    def __str__(self) -> str:
        head = f"{self.op}: {self.message}" if self.op else self.message
        lines = [head]
        if self.origin is not None:
            lines.append(f"  where  {describe(self.origin)}")
        lines.extend(self._operand_lines())
        if self.help:
            lines.append(f"  help   {self.help}")
        return "\n".join(lines)

    def _operand_lines(self) -> list[str]:
        if not self.operands:
            return []
        labels = ["left", "right"] if len(self.operands) == 2 else None
        texts = operand_texts(self.origin)
        if len(texts) < len(self.operands):
            texts = ("",) * len(self.operands)
        lines = []
        for at, (text, operand) in enumerate(zip(texts, self.operands, strict=False)):
            label = labels[at] if labels else f"arg {at}"
            lines.append(f"  {label:<6} {text + ': ' if text else ''}{operand}")
        return lines

    def __reduce__(self) -> tuple[Any, ...]:
        # Code objects do not pickle: the text of the place travels instead.
        return (_restored, (type(self), str(self)))


def _restored(cls: type[TapejitError], text: str) -> TapejitError:
    error = cls.__new__(cls)
    Exception.__init__(error, text)
    error.message, error.op, error.operands = text, None, ()
    error.help, error.origin = None, None
    return error


class ShapeError(TapejitError, ValueError):
    """Shapes that do not fit the operation."""


class DTypeError(TapejitError, TypeError):
    """A dtype the operation does not take."""


class AxisError(TapejitError, ValueError, IndexError):
    """An axis outside the tensor's rank, or given twice."""


class OutOfRangeError(TapejitError, IndexError):
    """An index outside its axis."""


class ArgumentError(TapejitError, ValueError):
    """An argument of the right type with a value that makes no sense."""


class ArgumentTypeError(TapejitError, TypeError):
    """An argument of a type the function does not take."""


class TapeError(TapejitError, RuntimeError):
    """A tape used in a state that does not allow it."""


class TapeNotRecording(TapejitError, RuntimeError, ValueError):
    """`stop_recording` or `reset` on a tape that is not recording."""


class VariableError(TapejitError, RuntimeError):
    """A variable used in a way it does not allow."""


class GraphError(TapejitError, ValueError):
    """A graph that breaks one of `check_graph`'s invariants, or text that is none."""


class NotDifferentiableError(TapejitError, TypeError):
    """A derivative that does not exist was asked for."""


class GradientMismatch(TapejitError, AssertionError):
    """A derivative that differs from finite differences."""


class UnsupportedError(TapejitError, TypeError):
    """Something tapejit does not do; the message names the way out."""


for _cls in list(globals().values()):
    if isinstance(_cls, type) and issubclass(_cls, TapejitError):
        _cls.__module__ = "tapejit"  # tracebacks then show the public name

__all__ = [
    "ArgumentError",
    "ArgumentTypeError",
    "AxisError",
    "DTypeError",
    "GradientMismatch",
    "GraphError",
    "NotDifferentiableError",
    "OutOfRangeError",
    "ShapeError",
    "StructureError",
    "TapeError",
    "TapeNotRecording",
    "TapejitError",
    "UnsupportedError",
    "VariableError",
]
