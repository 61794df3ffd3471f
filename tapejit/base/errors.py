"""Every exception tapejit raises on its own account.

Each one also derives from the builtin a NumPy or TensorFlow user would catch. The
raising code gives the facts (`raise ShapeError("cannot broadcast ...", help=...)`);
`TapejitError.__str__` lays them out: what happened, where in the user's file, which
operands, and what to write instead.

Start reading at `TapejitError`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tapejit.base.origin import Origin, describe, operand_texts, user_origin
from tapejit.base.public import names_in
from tapejit.base.tree import StructureError as StructureError


class TapejitError(Exception):
    """Base of tapejit's errors: a message with its place and a way out.

    `op` is the operation's name, `operands` one description per operand, `help` one
    sentence on what to do. `places` says which arguments of the user's call the
    operands are, where they are not all of them in order.

    >>> import tapejit as tj
    >>> try:
    ...     tj.ones((2, 3)) + tj.ones(2)
    ... except tj.TapejitError as error:
    ...     print(error.op, "|", error.message)
    ...     print(error.help)
    add | cannot broadcast f32[2,3] with f32[2]
    shapes are aligned from the right. For one value per row, write b[:, None].
    """

    def __init__(
        self,
        message: str,
        *,
        op: str | None = None,
        operands: tuple[str, ...] = (),
        help: str | None = None,
        origin: Origin | None = None,
        places: tuple[int, ...] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.op = op
        self.operands = operands
        self.places = places
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
        places = self.places or range(len(self.operands))
        texts = operand_texts(self.origin)
        is_known = max(places) < len(texts)
        lines = []
        for number, (at, operand) in enumerate(zip(places, self.operands, strict=True)):
            text = texts[at] if is_known else ""
            label = labels[number] if labels else f"arg {at}"
            lines.append(f"  {label:<6} {text + ': ' if text else ''}{operand}")
        return lines

    def __reduce__(self) -> tuple[Any, ...]:
        # Code objects do not pickle: the text of the place travels instead.
        return (_restored, (type(self), str(self)))


def _restored(cls: type[TapejitError], text: str) -> TapejitError:
    error = cls.__new__(cls)
    Exception.__init__(error, text)
    error.message, error.op, error.operands = text, None, ()
    error.help, error.origin, error.places = None, None, None
    return error


class ShapeError(TapejitError, ValueError):
    """Shapes that do not fit the operation.

    >>> import tapejit as tj
    >>> try:
    ...     tj.ones((2, 3)) @ tj.ones((2, 3))
    ... except tj.ShapeError as error:
    ...     print(error.message)
    cannot multiply f32[2,3] with f32[2,3]: rows of 3 meet columns of 2
    """


class DTypeError(TapejitError, TypeError):
    """A dtype the operation does not take.

    >>> import tapejit as tj
    >>> weight = tj.Variable([1.0, 2.0], name="weight")
    >>> try:
    ...     weight.assign(tj.zeros(2, dtype="float64"))
    ... except tj.DTypeError as error:
    ...     print(error.message)
    ...     print(error.help)
    variable 'weight' is f32[2], the value f64[2]
    convert it with .astype("float32")
    """


class AxisError(TapejitError, ValueError, IndexError):
    """An axis outside the tensor's rank, or given twice.

    >>> import tapejit as tj
    >>> try:
    ...     tj.sum(tj.ones((2, 3)), axis=2)
    ... except tj.AxisError as error:
    ...     print(error.message)
    ...     print(error.help)
    axis 2 does not exist in a tensor of rank 2
    axes go from -2 to 1
    """


class OutOfRangeError(TapejitError, IndexError):
    """An index outside its axis.

    >>> import tapejit as tj
    >>> try:
    ...     tj.ones(3)[5]
    ... except tj.OutOfRangeError as error:
    ...     print(error.message)
    ...     print(error.help)
    index 5 is out of range for axis 0 of size 3
    indices go from -3 to 2
    """


class ArgumentError(TapejitError, ValueError):
    """An argument of the right type with a value that makes no sense.

    >>> import tapejit as tj
    >>> x = tj.Variable(3.0)
    >>> with tj.GradientTape() as tape:
    ...     y = x * x
    >>> try:
    ...     tape.gradient(y, x, unconnected_gradients="nan")
    ... except tj.ArgumentError as error:
    ...     print(error.message)
    unconnected_gradients is 'none' or 'zero', got 'nan'
    """


class ArgumentTypeError(TapejitError, TypeError):
    """An argument of a type the function does not take.

    >>> import tapejit as tj
    >>> try:
    ...     tj.asarray("three")
    ... except tj.ArgumentTypeError as error:
    ...     print(error.message)
    asarray takes numbers, arrays and tensors, got str
    """


class TapeError(TapejitError, RuntimeError):
    """A tape used in a state that does not allow it.

    >>> import tapejit as tj
    >>> x = tj.Variable(3.0)
    >>> with tj.GradientTape() as tape:
    ...     y = x * x
    >>> gradient = tape.gradient(y, x)
    >>> try:
    ...     tape.gradient(y, x)
    ... except tj.TapeError as error:
    ...     print(error.message)
    ...     print(error.help)
    gradient on a tape that was used up by an earlier call
    make it with tj.GradientTape(persistent=True) to ask again
    """


class TapeNotRecording(TapejitError, RuntimeError, ValueError):
    """`stop_recording` or `reset` on a tape that is not recording.

    >>> import tapejit as tj
    >>> with tj.GradientTape() as tape:
    ...     pass
    >>> try:
    ...     tape.reset()
    ... except tj.TapeNotRecording as error:
    ...     print(error.message)
    reset() on a tape that is not recording
    """


class VariableError(TapejitError, RuntimeError, ValueError):
    """A variable used in a way it does not allow.

    >>> import tapejit as tj
    >>> step = tj.Variable(0.0, name="step")
    >>> try:
    ...     step += 1
    ... except tj.VariableError as error:
    ...     print(error.help)
    use v.assign_add(x), v.assign_sub(x) or v.assign(v * x)
    """


class CheckpointError(TapejitError, ValueError):
    """A file that cannot be read, or that does not fit what it is loaded into.

    >>> import os, tempfile
    >>> import tapejit as tj
    >>> path = os.path.join(tempfile.mkdtemp(), "w.safetensors")
    >>> tj.save(path, w=tj.Variable([1.0, 2.0]))
    >>> try:
    ...     tj.load(path, into={"w": tj.Variable([0.0])})
    ... except tj.CheckpointError as error:
    ...     print(error.message.partition(" ")[2])
    does not fit: w has shape (2,) in the file, (1,) here
    """


class GraphError(TapejitError, ValueError):
    """A graph that breaks one of `check_graph`'s invariants, or text that is none.

    With `TAPEJIT_CHECK=1`, also kernels that break one of `check_plan`'s.

    >>> import tapejit as tj
    >>> from tapejit.ir import parse_graph
    >>> try:
    ...     parse_graph("graph f(x: f32[2]) {\\n  return y\\n}")
    ... except tj.GraphError as error:
    ...     print(error.message.splitlines()[0])
    line 2: y is not defined
    """


class NotDifferentiableError(TapejitError, TypeError):
    """A derivative that does not exist was asked for.

    Tapes never ask for one, they answer None; a pass that is given an operation
    without a derivative does.

    >>> import tapejit as tj
    >>> from tapejit.ir import param
    >>> from tapejit.ops import greater
    >>> from tapejit.transforms.vjp import pull_back
    >>> from tapejit.base.types import TensorType
    >>> x = param("x", TensorType.parse("f32[3]"))
    >>> try:
    ...     pull_back(greater(x, 0.0), x)
    ... except tj.NotDifferentiableError as error:
    ...     print(error.message)
    greater has no derivative
    """


class LinAlgError(TapejitError, np.linalg.LinAlgError):
    """A matrix that has no inverse, or not the factorisation that was asked for.

    >>> import tapejit as tj
    >>> try:
    ...     tj.linalg.inv(tj.ones((2, 2)))
    ... except tj.LinAlgError as error:
    ...     print(error.message)
    the matrix is singular
    """


class GradientMismatch(TapejitError, AssertionError):
    """A derivative that differs from finite differences.

    >>> import tapejit as tj
    >>> try:
    ...     tj.testing.check_grads(lambda x: tj.stop_gradient(x) * x, [3.0])
    ... except tj.GradientMismatch as error:
    ...     print(error.help)
    check the formula; near a kink or a pole finite differences mislead
    """


class CheckFailed(TapejitError, AssertionError):
    """A check of `tj.debug` that does not hold.

    `index` is the first place where it does not, `values` are the numbers there; a
    check of shapes or dtypes has neither.

    >>> import tapejit as tj
    >>> try:
    ...     tj.debug.assert_less(tj.asarray([1.0, 4.0]), 3.0, "too big")
    ... except tj.CheckFailed as error:
    ...     print(error.op, "|", error.message)
    assert_less | too big: 4.0 is not less than 3.0 at index (1,); 1 of 2 elements fail
    """

    index: tuple[int, ...] | None = None
    values: tuple[Any, ...] = ()


class NonFiniteError(CheckFailed, FloatingPointError):
    """An operation gave NaN or infinity while `tj.debug.check_numerics` is on.

    `index` is the first place, `values` are the result there and, for an operation that
    is elementwise, its operands.

    >>> import tapejit as tj
    >>> with tj.debug.check_numerics():
    ...     try:
    ...         tj.log(tj.asarray([1.0, 0.0]))
    ...     except tj.NonFiniteError as error:
    ...         print(error.op, error.index, [float(x) for x in error.values])
    log (1,) [-inf, 0.0]
    """


class Disagreement(TapejitError, AssertionError):
    """Two ways of computing the same that give different numbers.

    `path` says which result it is, `index` the first element that differs, `values`
    are the two numbers there, `ulps` is how many representable numbers apart they are,
    None where that means nothing.

    >>> import tapejit as tj
    >>> calls = iter([1.0, 2.0])
    >>> @tj.function
    ... def unsteady(x):
    ...     return x * next(calls)
    >>> try:
    ...     unsteady.verify(tj.ones(2))
    ... except tj.Disagreement as error:
    ...     print(error.index, error.values)
    (0,) (1.0, 2.0)
    """

    path: str | None = None
    index: tuple[int, ...] | None = None
    values: tuple[Any, ...] = ()
    ulps: float | None = None

    def __init__(
        self,
        message: str,
        *,
        path: str | None = None,
        index: tuple[int, ...] | None = None,
        values: tuple[Any, ...] = (),
        ulps: float | None = None,
        help: str | None = None,
    ) -> None:
        super().__init__(message, help=help, origin=user_origin(2))
        self.path = path
        self.index = index
        self.values = values
        self.ulps = ulps


class UnsupportedError(TapejitError, TypeError):
    """Something tapejit does not do; the message names the way out.

    >>> import numpy as np
    >>> import tapejit as tj
    >>> array = np.zeros(2)
    >>> try:
    ...     array += tj.ones(2)
    ... except tj.UnsupportedError as error:
    ...     print(error.message)
    an array cannot be changed in place by a tensor
    """


for _cls in list(globals().values()):
    if isinstance(_cls, type) and issubclass(_cls, TapejitError):
        _cls.__module__ = "tapejit"  # tracebacks then show the public name


if not TYPE_CHECKING:  # checkers see what is defined here
    __all__ = names_in(globals(), "tapejit")
