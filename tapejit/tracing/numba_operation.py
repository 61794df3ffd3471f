"""`tj.numba_function`: a user's function of scalars as an elementwise operation.

`array.scalar_operations` makes its record, here it gets a derivative: another such
function, or a plain function of tensors. That one is traced for doubles, and its Graph
is put together again of the operands at hand.

Start reading at `numba_function`, then `NumbaFunction`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, overload

import numpy as np

from tapejit.array.creation import TensorSpec
from tapejit.array.scalar_operations import (
    is_from_numba,
    names_of,
    scalar_code,
    scalar_operation,
)
from tapejit.base.errors import ArgumentError, ArgumentTypeError, UnsupportedError
from tapejit.base.public import public
from tapejit.base.types import DType
from tapejit.ir.graph import Graph
from tapejit.ir.node import LITERAL, Node, Rule, literal
from tapejit.ir.structural import read
from tapejit.tensor.dispatch import apply, operands
from tapejit.tensor.tensor import Tensor
from tapejit.tracing.concrete_function import concrete_function
from tapejit.tracing.function import Function

__all__ = ["numba_function"]


@public("tapejit")
class NumbaFunction:
    """A function of scalars as an elementwise operation; made by `numba_function`.

    >>> import numba, tapejit as tj
    >>> @tj.numba_function(derivative=lambda x: 3 * x**2)
    ... @numba.njit
    ... def cubed(x):
    ...     return x * x * x
    >>> cubed
    <tj.numba_function cubed(x)>
    """

    def __init__(self, function: Any, derivative: Any) -> None:
        self.__qualname__: str
        python = scalar_code(function)
        self.parameters = names_of(python)
        functools.update_wrapper(self, python)
        self.__wrapped__ = function
        formulas = None if derivative is None else formulas_of(self, derivative)
        self._op = scalar_operation(function, formulas)

    @property
    def name(self) -> str:
        """The name of the function."""
        return getattr(self, "__name__", "function")

    def __call__(self, *args: Any) -> Tensor:
        if len(args) != len(self.parameters):
            raise ArgumentTypeError(
                f"{self.name} takes {len(self.parameters)} arguments, got {len(args)}"
            )
        return apply(self._op, *operands(args, self.name))

    def __repr__(self) -> str:
        return f"<tj.numba_function {self.name}({', '.join(self.parameters)})>"

    def _reaches(self) -> tuple[Any, ...]:
        """No variables."""
        return ()

    def __reduce__(self) -> str:
        """Pickled by name, as functions are."""
        return str(self.__qualname__)


@overload
def numba_function(function: Callable[..., Any], /) -> NumbaFunction: ...
@overload
def numba_function(
    function: None = None, /, *, derivative: Any = None
) -> Callable[[Callable[..., Any]], NumbaFunction]: ...


def numba_function(function: Any = None, /, *, derivative: Any = None) -> Any:
    """Make an elementwise operation of a function of scalars that Numba compiles.

    `function` is an `njit` function, or a `vectorize`d one, of one or more floats that
    returns a float. The operation takes floating-point tensors of one dtype, which are
    broadcast, and works in both modes; compiled functions fuse it with what is around
    it, as long as it has no loops. It is compiled for doubles, and arithmetic is then
    in the dtype of the tensors. A division by zero gives infinity or NaN.

    `derivative` is a function of the same arguments, one for each of them in a tuple
    if there are several, and None for an argument without a gradient. Each is an
    `njit` function, a plain function of tensors, or what `numba_function` returns:
    with derivatives of its own there is a second derivative.

    >>> import numba, tapejit as tj
    >>> @numba.njit
    ... def slope(x):
    ...     return 1.0 if x > 0 else 0.1
    >>> @tj.numba_function(derivative=slope)
    ... @numba.njit
    ... def leaky(x):
    ...     return x if x > 0 else 0.1 * x
    >>> tj.grad(lambda x: tj.sum(leaky(x)))(tj.asarray([-1.0, 2.0]))
    <tj.Tensor f32[2] [0.1 1. ]>
    """
    if function is None:
        return lambda given: NumbaFunction(given, derivative)
    return NumbaFunction(function, derivative)


# Derivatives


def formulas_of(given: NumbaFunction, derivative: Any) -> list[tuple[Rule | None, str]]:
    """For each argument the formula of its derivative, and a digest of that."""
    count = len(given.parameters)
    found = derivative if isinstance(derivative, (tuple, list)) else (derivative,)
    if len(found) != count:
        raise ArgumentError(
            f"{given.name} takes {count} arguments and has {len(found)} derivatives",
            help="give one for each argument in a tuple, None where there is none",
        )
    return [formula_of(given, x) for x in found]


def formula_of(given: NumbaFunction, derivative: Any) -> tuple[Rule | None, str]:
    """The formula of one argument's derivative, and a digest of it."""
    if derivative is None:
        return None, "none"
    if not callable(derivative):
        kind = type(derivative).__name__
        raise ArgumentTypeError(f"a derivative of {given.name} is a {kind}")
    if is_from_numba(derivative):
        derivative = NumbaFunction(derivative, None)
    check_parameters(given, derivative)
    if isinstance(derivative, NumbaFunction):
        op = derivative._op
        return lambda t, *nodes: t * op(*nodes[:-1]), op.name
    graph = scalar_graph(given, derivative)
    return lambda t, *nodes: t * rebuilt(graph, nodes[:-1]), graph.digest


def check_parameters(given: NumbaFunction, derivative: Any) -> None:
    """A derivative takes what the function takes."""
    try:
        inspect.signature(derivative_code(derivative)).bind(*given.parameters)
    except TypeError as error:
        raise ArgumentTypeError(
            f"a derivative of {given.name} takes its arguments, "
            f"({', '.join(given.parameters)}): {error}"
        ) from None


def derivative_code(derivative: Any) -> Any:
    """The function whose signature counts."""
    if isinstance(derivative, NumbaFunction):
        return scalar_code(derivative.__wrapped__)
    return derivative


def scalar_graph(given: NumbaFunction, derivative: Callable[..., Any]) -> Graph:
    """A plain derivative as a Graph of doubles without axes."""
    specs = tuple(TensorSpec([], "float64") for _ in given.parameters)
    concrete = concrete_function(Function(derivative), specs, {})
    graph = concrete.graph
    name = getattr(derivative, "__name__", "the derivative")
    if len(graph.inputs) > len(specs) or len(graph.outputs) != 1 or graph.effects:
        raise ArgumentError(
            f"{name}, a derivative of {given.name}, has to compute one number of its "
            "arguments alone",
            help="variables, effects and other results have no place in it",
        )
    for node in graph.nodes:
        if node.op is not LITERAL and (
            node.op.batch is None or not is_by_element(node)
        ):
            raise UnsupportedError(
                f"{name}, a derivative of {given.name}, uses {node.op.name}, which is "
                "no operation element by element"
            )
    return graph


def is_by_element(node: Node) -> bool:
    """Whether a Node of scalars means the same for each element of an array."""
    return node.op is read or node.op.deriv is not None or node.op.scalar is not None


def rebuilt(graph: Graph, nodes: Sequence[Node]) -> Node:
    """The output of a Graph of scalars, for Nodes in place of its inputs."""
    dtype = nodes[0].dtype
    made = dict(zip(graph.inputs, nodes, strict=True))
    for node in graph.nodes:
        if node.op is LITERAL:
            made[node] = with_dtype(node, dtype)
        else:
            attrs = {
                name: dtype if name == "dtype" and value == np.float64 else value
                for name, value in node.attrs.items()
            }
            made[node] = node.op(*[made[x] for x in node.inputs], **attrs)
    (out,) = graph.outputs
    return made[out]


def with_dtype(node: Node, dtype: DType) -> Node:
    """A literal of a Graph of doubles, where the numbers are of another dtype."""
    if node.dtype != np.float64:
        return node
    return literal(node.attrs["value"], dtype)
