"""Functions that bring their own gradient.

A function decorated with `custom_gradient` returns its result and a `grad_fn`. The
call is recorded as one Node of `custom` whose operands are the arguments and a
`UserRule` that holds `grad_fn`. The inside is recorded as well, on copies of the
arguments: `grad_fn` may use what was computed there, and a second derivative needs to
know how that depends on the arguments.

The result also depends on tensors that are no arguments, reached by closure. A
`Witness` stands among the tapes while the function runs. When an operation has such a
tensor among its operands, it is recorded once more, as a shadow in which the arguments
are constants; the shadow of the result is an operand of the `custom` Node, through
which those tensors get their ordinary gradient. The witness also hears which variables
are read: `grad_fn` has to give their gradients.

Start reading at `CustomGradient.__call__`, then `UserRule.pull`, then `Witness`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import get_ident
from types import CellType
from typing import Any, ParamSpec, TypeVar

import numpy as np

from tapejit.base import tree
from tapejit.base.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError
from tapejit.base.types import TensorType, is_differentiable
from tapejit.ir.node import Op
from tapejit.ir.structural import read
from tapejit.ops.arithmetic import stop_gradient
from tapejit.ops.custom_rules import custom
from tapejit.tape.custom_trace import offer_traced
from tapejit.tape.linearity import line_of
from tapejit.tape.rules import Gradients, PythonRule
from tapejit.tape.variable import Variable
from tapejit.tensor.dispatch import (
    SCALAR,
    TAPES,
    TRACE,
    apply,
    as_operand,
    is_weak,
    weak_scalar,
)
from tapejit.tensor.recorder import Observer
from tapejit.tensor.tensor import Tensor, TracedTensor, next_id

EMPTY_CELL = CellType()  # of a name that has no value (yet)
P = ParamSpec("P")
R = TypeVar("R")


def custom_gradient(function: Callable[P, tuple[R, Any]]) -> Callable[P, R]:
    """Give a function its own gradient.

    The function returns `(result, grad_fn)`. `grad_fn` is called with one cotangent
    for each tensor of the result, zeros for those that do not matter, and returns one
    gradient for each argument, None for no gradient. Arguments that are no arrays
    (integers, strings, functions, None) may be left out, all of them together.

    If the function reads trainable variables that are no arguments, `grad_fn` also
    takes a keyword `variables`, a list of them in the order of their creation, and
    returns `(gradients of arguments, gradients of variables)`. Tensors that the
    function uses without getting them as arguments keep their ordinary gradient.

    A second derivative is that of what `grad_fn` computes, and forward mode uses the
    transpose of `grad_fn`: an error if it is not linear in the cotangent, as one that
    clips is not. Methods can be decorated; an error in `grad_fn` leaves the tape as
    it was.

    >>> import tapejit as tj
    >>> @tj.custom_gradient
    ... def log1pexp(x):
    ...     e = tj.exp(x)
    ...
    ...     def grad_fn(dy):
    ...         return dy * (1 - 1 / (1 + e))
    ...
    ...     return tj.log(1 + e), grad_fn
    >>> x = tj.Variable(100.0)
    >>> with tj.GradientTape() as tape:
    ...     y = log1pexp(x)
    >>> print(tape.gradient(y, x))
    1.0
    """
    return CustomGradient(function)


def grad_pass_through(function: Callable[P, R]) -> Callable[P, R]:
    """The value of a function with the gradient of the identity.

    The straight-through estimator: what comes back to the result goes on to the first
    argument, which has the shape of the result. Nothing else gets a gradient, neither
    further arguments nor variables that the function reads.

    >>> import tapejit as tj
    >>> x = tj.Variable([0.4, 1.6])
    >>> with tj.GradientTape() as tape:
    ...     y = tj.grad_pass_through(tj.round)(x) * 3
    >>> print(y, tape.gradient(y, x))
    [0. 6.] [3. 3.]
    """

    @functools.wraps(function)
    def passing(*args: Any, **kwargs: Any) -> Any:
        count = len(tree.leaves((args, kwargs), none_is_leaf=True))

        def grad_fn(*cotangents: Any, variables: Sequence[Any] = ()) -> Any:
            gradients = [*cotangents, *[None] * max(0, count - len(cotangents))]
            return (gradients, [None] * len(variables)) if variables else gradients

        return function(*args, **kwargs), grad_fn

    return CustomGradient(passing, is_sealed=True)


class CustomGradient:
    """A function with a gradient of its own; called like the function.

    `is_sealed` says that tapes see nothing of its inside.
    """

    def __init__(
        self, function: Callable[..., Any], *, is_sealed: bool = False
    ) -> None:
        if not callable(function) and not hasattr(function, "__get__"):
            raise ArgumentTypeError(
                f"custom_gradient takes a function, got {type(function).__name__}"
            )
        self._function = function
        self._is_sealed = is_sealed
        functools.update_wrapper(self, function)

    def __get__(self, instance: Any, owner: Any = None) -> CustomGradient:
        """A method: the instance is not one of the arguments."""
        bind = getattr(self._function, "__get__", None)
        if bind is None:
            return self
        return type(self)(bind(instance, owner), is_sealed=self._is_sealed)

    def __reduce__(self) -> str:
        """Pickled by name, as functions are."""
        return str(getattr(self, "__qualname__", self._name))

    def __repr__(self) -> str:
        return f"<function {self._name} with a custom gradient>"

    @property
    def _name(self) -> str:
        return getattr(self._function, "__name__", type(self._function).__name__)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = Arguments(self._function, args, kwargs)
        witness = Witness(given.variables)
        args, kwargs, inputs = given.copied()
        witness.inside.update((id(x), x) for x in inputs)
        with witness.watching(is_sealed=self._is_sealed):
            found, grad_fn = self._checked_pair(self._function(*args, **kwargs))
            outputs, structure = tree.flatten(found)
            values = [as_operand(x, self._name) for x in outputs]
        variables = witness.variables()
        if variables:
            self._check_takes_variables(grad_fn, variables)
        inputs += [witness.reads[id(variable)][1] for variable in variables]
        kinds = [x._type for x in inputs], [x._type for x in values]
        rule = UserRule(self._name, *kinds, grad_fn, given, variables)
        results = offer(rule, inputs, values, witness)
        return tree.unflatten(structure, results)

    def _checked_pair(self, returned: Any) -> tuple[Any, Callable[..., Any]]:
        if not isinstance(returned, tuple) or len(returned) != 2:
            kind = type(returned).__name__
            length = f" of {len(returned)}" if isinstance(returned, tuple) else ""
            raise ArgumentTypeError(
                f"{self._name} has a custom gradient and returns (result, grad_fn), "
                f"got a {kind}{length}",
            )
        if not callable(returned[1]):
            raise ArgumentTypeError(
                f"{self._name} has a custom gradient and returns (result, grad_fn), "
                f"but its grad_fn is a {type(returned[1]).__name__}",
            )
        return returned

    def _check_takes_variables(
        self, grad_fn: Callable[..., Any], variables: Sequence[Variable]
    ) -> None:
        try:
            parameters = inspect.signature(grad_fn).parameters
        except (TypeError, ValueError):  # written in C: it will say so itself
            return
        if "variables" in parameters or any(
            p.kind is p.VAR_KEYWORD for p in parameters.values()
        ):
            return
        names = ", ".join(repr(variable.name) for variable in variables)
        raise ArgumentTypeError(
            f"{self._name} reads variables ({names}), but its grad_fn has no keyword "
            "argument 'variables'",
            help="write grad_fn(dy, variables=None) and return (gradients of the "
            "arguments, gradients of the variables), or pass the variables as "
            "arguments",
        )


class Arguments:
    """The arguments of one call, bound through the signature and taken apart.

    leaves    every leaf, None included
    places    which of them get a gradient: floating-point tensors and variables
    """

    def __init__(
        self, function: Callable[..., Any], args: Any, kwargs: dict[str, Any]
    ) -> None:
        if kwargs:
            args, kwargs = _bound(function, args, kwargs)
        self.names = tuple(kwargs)
        self.leaves, self.structure = tree.flatten(
            (args, tuple(kwargs.values())), none_is_leaf=True
        )
        self.places = [
            at
            for at, leaf in enumerate(self.leaves)
            if isinstance(leaf, (Tensor, Variable)) and is_differentiable(leaf.dtype)
        ]

    def copied(self) -> tuple[Any, dict[str, Any], list[Tensor]]:
        """The arguments to run on, each tensor as a handle of its own.

        The last result are those that get a gradient, as Tensors that tapes know.
        """
        leaves = [
            apply(read, leaf) if isinstance(leaf, Tensor) else leaf
            for leaf in self.leaves
        ]
        inputs = [as_operand(leaves[at]) for at in self.places]
        args, values = tree.unflatten(self.structure, leaves)
        return args, dict(zip(self.names, values, strict=True)), inputs

    @property
    def variables(self) -> set[int]:
        """The ids of the variables among them."""
        return {id(leaf) for leaf in self.leaves if isinstance(leaf, Variable)}

    @property
    def arrays(self) -> list[int]:
        """The places of what can be an array: the rest are settings."""
        kinds = (Tensor, Variable, np.ndarray, np.generic, float, complex)
        return [at for at, leaf in enumerate(self.leaves) if isinstance(leaf, kinds)]


def _bound(
    function: Callable[..., Any], args: Any, kwargs: dict[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """The arguments in the order of the signature."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # written in C
        return args, kwargs
    bound = signature.bind(*args, **kwargs)
    return bound.args, bound.kwargs


class UserRule(PythonRule):
    """Pulls cotangents back with a `grad_fn` that the user wrote."""

    def __init__(
        self,
        name: str,
        arguments: Sequence[TensorType],
        results: Sequence[TensorType],
        grad_fn: Callable[..., Any],
        given: Arguments,
        variables: Sequence[Variable],
    ) -> None:
        super().__init__(name, arguments, results)
        self.grad_fn = grad_fn
        self.line = line_of(grad_fn)
        self.variables = list(variables)
        self.places = given.places
        self.arrays = given.arrays
        self.count = len(given.leaves)

    @property
    def kept(self) -> list[Tensor]:
        """The tensors that `grad_fn` refers to directly."""
        cells = getattr(self.grad_fn, "__closure__", None) or ()
        found = [cell.cell_contents for cell in cells if cell != EMPTY_CELL]
        return [x for x in found if isinstance(x, Tensor)]

    def pull(self, cotangents: Sequence[Tensor]) -> Gradients:
        if not self.variables:
            found = self._of_arguments(self.grad_fn(*cotangents))
        else:
            pair = self.grad_fn(*cotangents, variables=list(self.variables))
            if not isinstance(pair, (tuple, list)) or len(pair) != 2:
                raise ArgumentTypeError(
                    f"the grad_fn of {self.name} gets variables, so it returns "
                    "(gradients of arguments, gradients of variables), got "
                    f"{type(pair).__name__}",
                )
            found = self._of_arguments(pair[0]) + self._of_variables(pair[1])
        checked: Gradients = []
        for at, (g, kind) in enumerate(zip(found, self.arguments, strict=True)):
            checked.append(None if g is None else self._checked(g, kind, at))
        return checked

    def _of_arguments(self, given: Any) -> list[Any]:
        gradients = tree.leaves(given, none_is_leaf=True)
        if len(gradients) == self.count:
            return [gradients[at] for at in self.places]
        if len(gradients) == len(self.arrays):
            return [gradients[self.arrays.index(at)] for at in self.places]
        expected = len(self.arrays) or self.count
        raise ArgumentError(
            f"the grad_fn of {self.name} returned {len(gradients)} gradients for "
            f"{expected} arguments",
            help="return one for each argument, None where there is none",
        )

    def _of_variables(self, given: Any) -> list[Any]:
        gradients = tree.leaves(given, none_is_leaf=True)
        if len(gradients) != len(self.variables):
            names = ", ".join(repr(variable.name) for variable in self.variables)
            raise ArgumentError(
                f"the grad_fn of {self.name} returned {len(gradients)} gradients for "
                f"{len(self.variables)} variables ({names})",
            )
        return gradients

    def _checked(self, given: Any, kind: TensorType, at: int) -> Tensor:
        """A gradient as a Tensor of the type of what it belongs to."""
        if at < len(self.places):
            what = f"argument {self.places[at]}"
        else:
            what = f"variable {self.variables[at - len(self.places)].name!r}"
        if is_weak(given):
            gradient = weak_scalar(given, kind.dtype)
        else:
            gradient = as_operand(given, f"the grad_fn of {self.name}")
        if gradient.shape != kind.shape:
            raise ShapeError(
                f"the grad_fn of {self.name} returned a gradient of shape "
                f"{gradient.shape} for {what} of shape {kind.shape}",
            )
        if gradient.dtype != kind.dtype:
            raise DTypeError(
                f"the grad_fn of {self.name} returned a gradient of dtype "
                f"{gradient.dtype.name} for {what} of dtype {kind.dtype.name}",
                help=f'convert it with .astype("{kind.dtype.name}")',
            )
        return gradient


def offer(
    rule: PythonRule,
    inputs: Sequence[Tensor],
    values: Sequence[Tensor],
    witness: Witness,
) -> list[Tensor]:
    """The results as handles of their own, recorded as one Node of `custom`."""
    if not values:
        return []
    if _is_traced((*inputs, *values)):
        return offer_traced(rule, inputs, values, witness.shadow_of)
    results = tuple(Tensor(x._value) for x in values)
    operands = (Tensor(rule), *inputs, *map(witness.shadow_of, values))
    attrs = {"results": len(results)}
    for tape in TAPES.get():
        tape.record(custom, operands, attrs, results)
    return list(results)


def _is_traced(tensors: Sequence[Tensor]) -> bool:
    """Whether the call is part of a trace; constants in a mapped function are not."""
    trace = TRACE.get()
    if trace is None:
        return False
    return trace.holds_state or any(isinstance(x, TracedTensor) for x in tensors)


class Witness(Observer):
    """Stands among the tapes while a function runs, and sees what it uses.

    tapes     those around the function that its inside is shown to
    mark      the ids up to this one are of tensors that were there before
    reads     id of a Variable -> (the Variable, the Tensor of its first read)
    own       ids of the Tensors of variables whose gradient the rule gives
    outside   id -> Tensors that were there before and are no arguments
    inside    in a trace: id -> arguments and what was computed from them
    shadows   id -> (the result of an operation, the same value as a function of what
              is outside alone)
    pending   Tensor id -> Variable, for results of assignments
    is_sealed  whether the inside is nobody's business: nothing outside is connected
    """

    def __init__(self, arguments: set[int]) -> None:
        self.tapes: tuple[Any, ...] = ()
        self.arguments = arguments
        self.mark = next_id()
        self.owner = get_ident()
        self.trace: Any = TRACE.get()
        self.is_sealed = False
        self.inside: dict[int, Tensor] = {}
        self.reads: dict[int, tuple[Variable, Tensor]] = {}
        self.own: dict[int, Tensor] = {}
        self.outside: dict[int, Tensor] = {}
        self.shadows: dict[int, tuple[Tensor, Tensor]] = {}
        self.pending: dict[int, Variable] = {}

    @contextmanager
    def watching(self, *, is_sealed: bool) -> Iterator[None]:
        """What runs inside is seen by this witness; if it is sealed, by no tape."""
        around = TAPES.get()
        observer: Any = self
        self.is_sealed = is_sealed
        if is_sealed:  # but for the one that serves the trace itself
            watcher = getattr(self.trace, "watcher", None)
            TAPES.set((observer,) if watcher is None else (watcher, observer))
        else:
            self.tapes = around
            TAPES.set((*around, observer))
        try:
            yield
        finally:
            inside = around if is_sealed else TAPES.get()
            still = [x for x in inside if x is not observer and x.thread is not None]
            TAPES.set(tuple(still))
        if is_sealed:
            self._tell(still)

    def _tell(self, tapes: Sequence[Any]) -> None:
        """Tell tapes that saw nothing which variables were read and assigned."""
        for tape in tapes:
            for variable, tensor in self.reads.values():
                if tensor._id not in tape.nodes:
                    tape.note_read(variable, tensor)
            for key, variable in self.pending.items():
                tape.pending[key] = variable

    def variables(self) -> list[Variable]:
        """The trainable variables that were read and are no arguments."""
        found = [
            variable
            for variable, _ in self.reads.values()
            if _is_trainable(variable) and id(variable) not in self.arguments
        ]
        return sorted(found, key=lambda variable: variable._serial)

    def read_beside(self) -> list[Variable]:
        """The variables that were read, are known to a tape and are no arguments."""
        return [
            variable
            for variable, tensor in self.reads.values()
            if id(variable) not in self.arguments and _is_known(tensor)
        ]

    def closure_tensors(self) -> list[Tensor]:
        """The tensors from before that were used and are no arguments."""
        reads = {id(tensor) for _, tensor in self.reads.values()}
        found = [x for key, x in self.outside.items() if key not in reads]
        return [x for x in found if _is_known(x)]

    def note_results(self, values: Sequence[Tensor]) -> None:
        """What is returned counts as used, also if no operation did."""
        self.outside.update((id(x), x) for x in values if self._is_outside(x))

    def closure(self) -> list[Tensor]:
        """Both, as Tensors that tapes know."""
        reads = [self.reads[id(variable)][1] for variable in self.read_beside()]
        return [*reads, *self.closure_tensors()]

    def note_read(self, variable: Variable, tensor: Tensor) -> None:
        """A variable was read."""
        if self.owner != get_ident():
            return
        self.reads.setdefault(id(variable), (variable, tensor))
        if _is_trainable(variable) or id(variable) in self.arguments:
            self.own[id(tensor)] = tensor
        else:
            self.outside[id(tensor)] = tensor

    def record(
        self, op: Op, inputs: Sequence[Tensor], attrs: dict[str, Any], result: Any
    ) -> None:
        """An operation was performed."""
        if self.owner != get_ident():
            return
        if self.pending:
            for x in inputs:
                variable = self.pending.get(x._id)
                if variable is not None:
                    self.note_read(variable, x)
        parts = result if type(result) is tuple else (result,)
        if self.trace is not None:
            if not any(id(x) in self.inside or id(x) in self.own for x in inputs):
                return  # as if it had been computed outside
            self.inside.update((id(part), part) for part in parts)
        is_shadowed = False
        for x in inputs:
            if self._is_outside(x):
                self.outside[id(x)] = x
                is_shadowed = True
            elif id(x) in self.shadows:
                is_shadowed = True
        if is_shadowed and not self.is_sealed:
            self._shadow(op, inputs, attrs, parts, is_tuple=type(result) is tuple)

    def _shadow(
        self,
        op: Op,
        inputs: Sequence[Tensor],
        attrs: dict[str, Any],
        parts: Sequence[Tensor],
        *,
        is_tuple: bool,
    ) -> None:
        """Record an operation once more, on shadows."""
        operands = tuple(self.shadow_of(x) for x in inputs)
        tapes: Any = self.tapes
        if any(isinstance(x, TracedTensor) for x in parts):
            nodes = [self.trace.node_of(x) for x in operands]
            whole = self.trace.record(op, nodes, attrs)
            tapes = [tape for tape in tapes if tape.trace is self.trace]
        else:
            whole = tuple(Tensor(part._value) for part in parts)
            whole = whole if is_tuple else whole[0]
        for tape in tapes:
            tape.record(op, operands, attrs, whole)
        for part, shadow in zip(parts, whole if is_tuple else (whole,), strict=True):
            self.shadows[id(part)] = (part, shadow)

    def shadow_of(self, x: Tensor) -> Tensor:
        """A value as a function of what is outside, a constant if of nothing."""
        if not self.is_sealed:
            if self._is_outside(x):
                return x
            if id(x) in self.shadows:
                return self.shadows[id(x)][1]
        return apply(stop_gradient, x) if self.trace else Tensor(x._value)

    def _is_outside(self, x: Tensor) -> bool:
        """Whether a tensor was there before and has a gradient of its own."""
        if id(x) in self.own or not is_differentiable(x.dtype):
            return False
        if self.trace is None:
            return 0 < x._id <= self.mark or id(x) in self.outside
        return id(x) not in self.inside and x._made is not SCALAR


def _is_known(x: Tensor) -> bool:
    """Whether a gradient or tangent of `x` may be asked of what is recording."""
    if not is_differentiable(x.dtype):
        return False
    tapes: Sequence[Any] = TAPES.get()
    return any(isinstance(tape, Witness) or x._id in tape.nodes for tape in tapes)


def _is_trainable(variable: Variable) -> bool:
    return variable._trainable and is_differentiable(variable.dtype)


__all__ = ["custom_gradient", "grad_pass_through"]
