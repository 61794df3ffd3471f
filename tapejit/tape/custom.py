"""Functions that bring their own gradient.

A function decorated with `custom_gradient` returns its result and a `grad_fn`. The
call is recorded as one Node of `custom_call` whose operands are the arguments and a
`UserRule` that holds `grad_fn`. The inside is recorded as well, on copies of the
arguments: `grad_fn` may use what was computed there, and a second derivative needs to
know how that depends on the arguments.

The result also depends on tensors that are no arguments, reached by closure. A
`Witness` (`witness.py`) sees them, and makes shadows of the results in which the
arguments are constants; these are operands of that Node, through which those
tensors get their ordinary gradient. It also hears which variables are read: `grad_fn`
has to give their gradients.

In a traced function what `grad_fn` computes is traced at once, for the Graph outlives
the trace, and a tape may stand around it: the Node has Graphs in place of the rule.

Start reading at `CustomGradient.__call__`, then `UserRule.pull`, then `offer`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from types import CellType
from typing import Any, ParamSpec, TypeVar

import numpy as np

from tapejit.base import tree
from tapejit.base.errors import (
    ArgumentError,
    ArgumentTypeError,
    DTypeError,
    ShapeError,
    UnsupportedError,
)
from tapejit.base.types import TensorType, is_differentiable
from tapejit.ir.graph import Graph
from tapejit.ir.node import Node, param
from tapejit.ir.structural import first_token, read
from tapejit.ops.custom_rules import custom_call, failing
from tapejit.tape.linearity import line_of
from tapejit.tape.rules import Gradients, PythonRule
from tapejit.tape.variable import Variable
from tapejit.tape.witness import Witness
from tapejit.tensor import dispatch
from tapejit.tensor.recorder import Observer
from tapejit.tensor.tensor import Tensor, TracedTensor, another
from tapejit.tensor.trace import Trace, beginnings

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
            values = [dispatch.as_operand(x, self._name) for x in outputs]
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
                f"got a {kind}{length}"
            )
        if not callable(returned[1]):
            raise ArgumentTypeError(
                f"{self._name} has a custom gradient and returns (result, grad_fn), "
                f"but its grad_fn is a {type(returned[1]).__name__}"
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
            dispatch.apply(read, leaf) if isinstance(leaf, Tensor) else leaf
            for leaf in self.leaves
        ]
        inputs = [dispatch.as_operand(leaves[at]) for at in self.places]
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
                    f"{type(pair).__name__}"
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
                f"{len(self.variables)} variables ({names})"
            )
        return gradients

    def _checked(self, given: Any, kind: TensorType, at: int) -> Tensor:
        """A gradient as a Tensor of the type of what it belongs to."""
        if at < len(self.places):
            what = f"argument {self.places[at]}"
        else:
            what = f"variable {self.variables[at - len(self.places)].name!r}"
        if dispatch.is_weak(given):
            gradient = dispatch.weak_scalar(given, kind.dtype)
        else:
            gradient = dispatch.as_operand(given, f"the grad_fn of {self.name}")
        if gradient.shape != kind.shape:
            raise ShapeError(
                f"the grad_fn of {self.name} returned a gradient of shape "
                f"{gradient.shape} for {what} of shape {kind.shape}"
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
    """The results as handles of their own, recorded as one Node of `custom_call`."""
    if not values:
        return []
    if _is_traced((*inputs, *values)):
        return _offer_traced(rule, inputs, values, witness)
    results = tuple(another(x) for x in values)
    rule.device = values[0].device
    operands = (Tensor(rule), *inputs, *map(witness.shadow_of, values))
    attrs = {"results": len(results)}
    for tape in dispatch.TAPES.get():
        tape.record(custom_call, operands, attrs, results)
    return list(results)


def _offer_traced(
    rule: PythonRule,
    inputs: Sequence[Tensor],
    values: Sequence[Tensor],
    witness: Witness,
) -> list[Tensor]:
    """The results in a traced function, whose Graph outlives what the rule refers to.

    A tape inside the trace calls the rule itself when it is asked, as it would in
    plain Python; what a tape around it asks is traced now.
    """
    trace: Any = dispatch.TRACE.get()
    shadows = [witness.shadow_of(x) for x in values]
    for x in inputs:
        trace.node_of(x)
    attrs, looked_at = _as_graphs(rule, inputs, trace)
    operands = (*inputs, *looked_at, *shadows)
    results: tuple[Tensor, ...] = trace.record(
        custom_call, [trace.node_of(x) for x in operands], attrs
    )
    called = (Tensor(rule), *inputs, *shadows)
    for tape in dispatch.TAPES.get():
        if isinstance(tape, Observer):
            tape.record(custom_call, operands, attrs, results)
        elif tape.trace is trace:
            tape.record(custom_call, called, {"results": len(values)}, results)
    return list(results)


def _as_graphs(
    rule: PythonRule, inputs: Sequence[Tensor], trace: Trace
) -> tuple[dict[str, Any], Sequence[Tensor]]:
    """A rule as attributes of `custom_call`, and the tensors that it looks at.

    An error of the user's belongs to whoever asks for the gradient: the Graph then
    raises it when it runs.
    """
    refused: Exception | None = None
    state = trace.state
    held = {} if state is None else state.written()
    effects = len(trace.effects)
    mark = first_token().serial
    token = dispatch.TAPES.set(() if state is None else (state.watcher,))
    name = f"{rule.name}.backward"
    seeds = [param(f"d_{at}", kind) for at, kind in enumerate(rule.results)]
    looked_at: list[Node] = []
    try:
        found, connected = rule.pulled([TracedTensor(seed, trace) for seed in seeds])
        outputs = [trace.node_of(g) for g in found]
        if state is not None:
            _refuse_writes(rule, held, state.written())
            entries = {slot.entry for slot in state.slots.values()}
        looked_at = beginnings(outputs, mark, seeds, () if state is None else entries)
    except Exception as error:  # the rule is the user's; raised where it is needed
        refused, connected = error, (True,) * len(inputs)
        outputs = list(failing(error, rule.arguments))
    finally:
        if state is not None:
            state.put_back(held)  # a tape inside calls the rule again
        del trace.effects[effects:]
        dispatch.TAPES.reset(token)
    for x in map(trace.node_of, inputs):  # a size may stand in an argument alone
        if not x.tensor_type.is_static and x not in looked_at:
            looked_at.append(x)
    backward = Graph(name, (*looked_at, *seeds), outputs)
    kept = [TracedTensor(x, trace) for x in looked_at]
    try:
        if refused is not None:
            raise refused
        forward = rule.transposed(backward, kept)
    except Exception as error:  # as above; a gradient that is not linear, too
        tangents = [param(f"t_{at}", x.type) for at, x in enumerate(backward.outputs)]
        wanted = [kind for kind in rule.results if is_differentiable(kind.dtype)]
        given = (*looked_at, *tangents)
        forward = Graph(f"{rule.name}.forward", given, failing(error, wanted))
    graphs = {"backward": backward, "forward": forward, "connected": connected}
    return {"results": len(rule.results), **graphs}, kept


def _refuse_writes(rule: PythonRule, before: Any, after: Any) -> None:
    """A Graph of gradients computes and changes nothing."""
    written = [key for key, (last, _) in after.items() if last is not None]
    if any(before.get(key, (None,))[0] is not after[key][0] for key in written):
        raise UnsupportedError(
            f"the grad_fn of {rule.name} assigns to a variable or draws random "
            "numbers, which a tape around a traced function cannot repeat",
            help="open the tape inside the function, or draw outside grad_fn",
        )


def _is_traced(tensors: Sequence[Tensor]) -> bool:
    """Whether the call is part of a trace; constants in a mapped function are not."""
    trace = dispatch.TRACE.get()
    if trace is None:
        return False
    return trace.holds_state or any(isinstance(x, TracedTensor) for x in tensors)


__all__ = ["custom_gradient", "grad_pass_through"]
