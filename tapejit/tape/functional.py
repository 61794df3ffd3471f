"""Derivatives of functions: grad, vjp, jvp, Jacobians, Hessians, vmap.

Each takes a function of tensors and gives one. They are tapes inside: `grad` records
the function and asks for its gradient, `jvp` pushes tangents over the same recording,
`vmap` traces the function on one row and runs the batched Graph.

Start reading at `value_and_grad`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import get_ident
from typing import Any

from tapejit.array.creation import asarray, zeros_like
from tapejit.array.manipulation import broadcast_to, permute_dims
from tapejit.base import tree
from tapejit.base.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError
from tapejit.base.types import TensorType, is_complex, is_differentiable
from tapejit.ir.structural import read
from tapejit.ops.shapes import normalize_axis
from tapejit.tape import derivative as adjoint
from tapejit.tape.recording import Recording
from tapejit.tape.tape import GradientTape
from tapejit.tape.variable import Variable
from tapejit.tensor.device import on_device_of
from tapejit.tensor.dispatch import TAPES, apply, as_operand, cast
from tapejit.tensor.foreign_keywords import with_hints
from tapejit.tensor.scope import scope
from tapejit.tensor.symbolic_size import plain_shape
from tapejit.tensor.tensor import Tensor
from tapejit.tensor.trace import Trace, run_graph, trace
from tapejit.transforms.batch import batch

Function = Callable[..., Any]


@with_hints
def grad(
    function: Function, argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> Function:
    """The gradient of a scalar function as a function.

    The result has the structure of the argument (a tuple for several `argnums`); an
    argument that does not matter gets zeros. With `has_aux` the function returns
    `(value, anything else)` and the result is `(gradient, anything else)`.

    >>> import tapejit as tj
    >>> print(tj.grad(lambda x: tj.sum(x**3))(tj.asarray([1.0, 2.0])))
    [ 3. 12.]
    """
    _check_made_of(function, argnums, "grad")
    both = value_and_grad(function, argnums, has_aux)

    @functools.wraps(function)
    def gradient(*args: Any, **kwargs: Any) -> Any:
        value, found = both(*args, **kwargs)
        return (found, value[1]) if has_aux else found

    return gradient


def value_and_grad(
    function: Function, argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> Function:
    """The value of a scalar function together with its gradient.

    >>> import tapejit as tj
    >>> tj.value_and_grad(lambda x, y: x * y, argnums=(0, 1))(2.0, 3.0)
    (<tj.Tensor f32[] 6.0>, (<tj.Tensor f32[] 3.0>, <tj.Tensor f32[] 2.0>))
    """
    _check_made_of(function, argnums, "value_and_grad")

    @functools.wraps(function)
    def both(*args: Any, **kwargs: Any) -> Any:
        wanted = _argnums(argnums, args)
        args = _as_tensors(args, wanted)
        with GradientTape() as tape:
            sources = [args[at] for at in wanted]
            tape.watch(tree.leaves(sources))
            result = function(*args, **kwargs)
        value = _primary(result, has_aux)
        _check_scalar(value)
        leaves, spec = tree.flatten(tuple(sources))  # None is an empty place here
        gradients = tape.gradient(value, leaves, unconnected_gradients="zero")
        found = tree.unflatten(spec, gradients)
        return result, found[0] if isinstance(argnums, int) else found

    return both


def _check_made_of(function: Any, argnums: Any, name: str) -> None:
    """A derivative is made of a function alone; arguments come when it is called."""
    if not callable(function):
        raise ArgumentTypeError(
            f"takes a function, got {type(function).__name__}",
            op=name,
            help=f"of a tensor that was computed already a tape has the gradient; "
            f"tj.{name}(f) is a function to call",
        )
    given = argnums if isinstance(argnums, (list, tuple)) else [argnums]
    for at in given:
        if isinstance(at, bool) or not hasattr(at, "__index__") or _is_array(at):
            raise ArgumentTypeError(
                f"argnums is the position of an argument, got {type(at).__name__}",
                op=name,
                help=f"the arguments come in a second call: tj.{name}(f)(x)",
            )


def _is_array(x: Any) -> bool:
    return isinstance(x, (Tensor, Variable)) or getattr(x, "ndim", 0) > 0


def _argnums(argnums: int | Sequence[int], args: Sequence[Any]) -> list[int]:
    given = [argnums] if isinstance(argnums, int) else list(argnums)
    for at in given:
        if not -len(args) <= at < len(args):
            raise ArgumentError(
                f"argnums names argument {at}, the call has {len(args)}",
                help="pass what is differentiated by position",
            )
    return [at % len(args) for at in given]


def _as_tensors(args: Sequence[Any], wanted: Sequence[int]) -> tuple[Any, ...]:
    """The arguments with everything differentiated turned into tensors of its own."""
    return tuple(
        tree.map(_leaf, arg) if at in wanted else arg for at, arg in enumerate(args)
    )


def _leaf(x: Any) -> Any:
    if isinstance(x, Variable):
        return x
    tensor = asarray(x)
    if not is_differentiable(tensor.dtype):
        raise DTypeError(
            f"cannot differentiate with respect to {tensor._type}",
            help="pass a float, or leave this argument out of argnums",
        )
    # A handle of its own, so that no other use of the same tensor counts.
    return apply(read, tensor) if isinstance(x, Tensor) else tensor


def _primary(result: Any, has_aux: bool) -> Any:
    if not has_aux:
        return result
    if not isinstance(result, tuple) or len(result) != 2:
        raise ArgumentTypeError(
            "with has_aux=True the function returns a pair (value, aux), got "
            f"{type(result).__name__}"
        )
    return result[0]


def _check_scalar(value: Any) -> None:
    if not isinstance(value, (Tensor, Variable)):
        raise ArgumentTypeError(
            f"a differentiated function returns a tensor, got {type(value).__name__}",
            help="keep the computation in tapejit; .numpy() and float() leave it",
        )
    if value.ndim:
        raise ShapeError(
            f"grad takes a function with a scalar result, got shape {value.shape}",
            help="sum it, or use tj.jacobian or tj.vjp",
        )


def vjp(function: Function, *primals: Any) -> tuple[Any, Function]:
    """The value and a function that pulls cotangents back to the arguments.

    >>> import tapejit as tj
    >>> value, pull = tj.vjp(lambda x: x * x, tj.asarray([1.0, 2.0]))
    >>> pull(tj.asarray([1.0, 10.0]))
    (<tj.Tensor f32[2] [ 2. 40.]>,)
    """
    args = _as_tensors(primals, range(len(primals)))
    with GradientTape(persistent=True) as tape:
        tape.watch(tree.leaves(args))
        value = function(*args)

    def pull(cotangents: Any) -> Any:
        """The cotangents of the arguments."""
        leaves, spec = tree.flatten(args)
        found = tape.gradient(
            value, leaves, output_gradients=cotangents, unconnected_gradients="zero"
        )
        return tree.unflatten(spec, found)

    return value, pull


def jvp(function: Function, primals: Any, tangents: Any) -> tuple[Any, Any]:
    """The value and its derivative in the direction of `tangents`.

    `primals` and `tangents` are tuples or lists, one entry per argument; a function of
    one argument takes them as they are, too.

    >>> import tapejit as tj
    >>> tj.jvp(lambda x: x * x, (3.0,), (1.0,))
    (<tj.Tensor f32[] 9.0>, <tj.Tensor f32[] 6.0>)
    >>> tj.jvp(lambda x: x * x, 3.0, 1.0)
    (<tj.Tensor f32[] 9.0>, <tj.Tensor f32[] 6.0>)
    """
    if not _is_sequence_each(primals, tangents, "jvp"):
        primals, tangents = (primals,), (tangents,)
    args = _as_tensors(primals, range(len(primals)))
    sources, spec = tree.flatten(args)
    given = tree.flatten_like(tuple(tangents), spec, labels=("primals", "tangents"))
    directions = [_tangent(t, x) for t, x in zip(given, sources, strict=True)]
    recording = Recording(keeps_all=True)
    sources = [as_operand(x) for x in sources]
    with _recording_to(recording):
        for x in sources:
            recording.watch(x)
        value = function(*args)
    results, result_spec = tree.flatten(value)
    targets = [as_operand(x, "jvp") for x in results]
    found = adjoint.push(recording, sources, directions, targets)
    filled = [
        zeros_like(x) if t is None else on_device_of(t, x)
        for t, x in zip(found, targets, strict=True)
    ]
    return value, tree.unflatten(result_spec, filled)


def _is_sequence_each(primals: Any, tangents: Any, name: str) -> bool:
    """Whether both have one entry per argument; False if each is the only one."""
    kinds = [isinstance(x, (list, tuple)) for x in (primals, tangents)]
    if kinds[0] != kinds[1]:
        raise ArgumentTypeError(
            "primals and tangents have one form: two tuples with one entry per "
            f"argument, or two tensors; got {type(primals).__name__} and "
            f"{type(tangents).__name__}",
            op=name,
        )
    return kinds[0]


def _tangent(given: Any, primal: Any) -> Tensor:
    tangent = as_operand(given, "jvp")
    if tangent.shape != primal.shape:
        raise ShapeError(
            f"a tangent has shape {tangent.shape}, its primal {primal.shape}", op="jvp"
        )
    if is_complex(tangent.dtype) and not is_complex(primal.dtype):
        raise DTypeError("the tangent of a real primal is real", op="jvp")
    return cast(tangent, primal.dtype)


@contextmanager
def _recording_to(recording: Recording) -> Iterator[None]:
    token = TAPES.set((*TAPES.get(), recording))
    recording.thread = get_ident()
    try:
        yield
    finally:
        recording.thread = None
        TAPES.reset(token)


def jacobian(
    function: Function,
    argnums: int | Sequence[int] = 0,
    *,
    chunk_size: int | None = None,
) -> Function:
    """The Jacobian of a function as a function: result.shape + argument.shape.

    >>> import tapejit as tj
    >>> print(tj.jacobian(lambda x: x * x)(tj.asarray([1.0, 2.0])))
    [[2. 0.]
     [0. 4.]]
    """
    _check_made_of(function, argnums, "jacobian")

    @functools.wraps(function)
    def derivative(*args: Any, **kwargs: Any) -> Any:
        wanted = _argnums(argnums, args)
        args = _as_tensors(args, wanted)
        sources = [args[at] for at in wanted]
        with GradientTape() as tape:
            tape.watch(tree.leaves(sources))
            value = function(*args, **kwargs)
        targets, result_spec = tree.flatten(value)
        leaves, source_spec = tree.flatten(tuple(sources))
        found = tape.jacobian(
            targets, leaves, unconnected_gradients="zero", chunk_size=chunk_size
        )
        rows = [tree.unflatten(source_spec, row) for row in found]
        if isinstance(argnums, int):
            rows = [row[0] for row in rows]
        return tree.unflatten(result_spec, rows)

    return derivative


def hessian(function: Function, argnums: int = 0) -> Function:
    """The matrix of second derivatives of a scalar function, as a function.

    >>> import tapejit as tj
    >>> print(tj.hessian(lambda x: tj.sum(x**3))(tj.asarray([1.0, 2.0])))
    [[ 6.  0.]
     [ 0. 12.]]
    """
    _check_made_of(function, argnums, "hessian")
    return jacobian(grad(function, argnums), argnums)


def hvp(function: Function, primals: Any, tangents: Any) -> Any:
    """The Hessian of a scalar function times a vector, without the Hessian.

    Forward over reverse: the derivative of the gradient in the direction `tangents`.
    Of tuples (or lists) with one entry per argument the result is such a tuple; of
    one tensor it is a tensor, as `hessp=` of `scipy.optimize.minimize` wants it.

    >>> import tapejit as tj
    >>> x, v = tj.asarray([1.0, 2.0]), tj.asarray([1.0, 1.0])
    >>> print(tj.hvp(lambda x: tj.sum(x**3), x, v))
    [ 6. 12.]
    >>> print(tj.hvp(lambda x: tj.sum(x**3), (x,), (v,))[0])
    [ 6. 12.]
    """
    if not _is_sequence_each(primals, tangents, "hvp"):
        return jvp(grad(function), (primals,), (tangents,))[1]
    gradient = grad(function, tuple(range(len(primals))))
    return jvp(gradient, primals, tangents)[1]


@with_hints
def vmap(function: Function, in_axes: Any = 0, out_axes: Any = 0) -> Function:
    """A function of one row, applied to all rows at once.

    `in_axes` says which axis of each argument holds the rows, None for an argument
    that is the same for all; `out_axes` where the rows go in the results. Random
    draws differ from row to row.

    >>> import tapejit as tj
    >>> rows = tj.asarray([[1.0, 2.0], [3.0, 4.0]])
    >>> print(tj.vmap(lambda row: tj.sum(row * row))(rows))
    [ 5. 25.]
    """
    _check_made_of(function, 0, "vmap")

    @functools.wraps(function)
    def mapped(*args: Any, **kwargs: Any) -> Any:
        leaves, spec = tree.flatten((args, kwargs))
        tensors = [as_operand(x, "vmap") for x in leaves]
        axes = [*_axes_of(in_axes, args), *([0] * len(tree.leaves(kwargs)))]
        fronts = [
            x if axis is None else _to_front(x, axis)
            for x, axis in zip(tensors, axes, strict=True)
        ]
        flags = [axis is not None for axis in axes]
        size = _batch_size(fronts, flags)
        types = [
            TensorType(x.dtype, x.shape[1:] if flag else x.shape)
            for x, flag in zip(fronts, flags, strict=True)
        ]
        with scope():
            under_way = Trace(getattr(function, "__name__", type(function).__name__))
            for x in fronts:
                if x.device != "cpu":
                    under_way.placement.note(x.device, "an argument")
            graph, captured, results = trace(
                function, types, lambda rows: tree.unflatten(spec, rows), under_way
            )
        (rows,) = plain_shape((size,))
        whole, has_axis = batch(
            graph, size=rows, batched=flags + [False] * len(captured)
        )
        found = run_graph(whole, [*fronts, *captured])
        outputs = [
            _place_rows(x, flag, axis, size)
            for x, flag, axis in zip(
                found, has_axis, _out_axes(out_axes, results), strict=True
            )
        ]
        return tree.unflatten(results, outputs)

    return mapped


def _axes_of(in_axes: Any, args: Sequence[Any]) -> list[int | None]:
    """One axis per leaf; an axis given for a structure counts for all its leaves."""
    if in_axes is None or isinstance(in_axes, int):
        return [in_axes] * len(tree.leaves(tuple(args)))
    if not isinstance(in_axes, (list, tuple)) or len(in_axes) != len(args):
        raise ArgumentError(
            f"in_axes is an int, None, or one entry per argument ({len(args)}), "
            f"got {in_axes!r}",
            op="vmap",
        )
    found: list[int | None] = []
    for axis, arg in zip(in_axes, args, strict=True):
        found.extend(_spread_axis(axis, arg))
    return found


def _spread_axis(axis: Any, arg: Any) -> list[int | None]:
    if axis is None or isinstance(axis, int):
        return [axis] * len(tree.leaves(arg))
    spec = tree.structure(arg)
    return tree.flatten_like(
        axis, spec, none_is_leaf=True, labels=("the argument", "in_axes")
    )


def _out_axes(out_axes: Any, results: tree.Structure) -> list[Any]:
    if out_axes is None or isinstance(out_axes, int):
        return [out_axes] * results.num_leaves
    return tree.flatten_like(
        out_axes, results, none_is_leaf=True, labels=("the result", "out_axes")
    )


def _to_front(x: Tensor, axis: int) -> Tensor:
    at = normalize_axis(axis, x.ndim)
    return permute_dims(x, (at, *(a for a in range(x.ndim) if a != at)))


def _batch_size(fronts: Sequence[Tensor], flags: Sequence[bool]) -> int:
    sizes = [x.shape[0] for x, flag in zip(fronts, flags, strict=True) if flag]
    if not sizes:
        raise ArgumentError("vmap needs at least one argument with rows", op="vmap")
    if any(size != sizes[0] for size in sizes):
        raise ShapeError(
            f"the arguments have different numbers of rows: {sorted(set(sizes))}",
            op="vmap",
        )
    return sizes[0]


def _place_rows(x: Tensor, has_rows: bool, axis: Any, size: int) -> Tensor:
    if axis is None:
        if has_rows:
            raise ArgumentError(
                "out_axes is None for a result that differs from row to row", op="vmap"
            )
        return x
    if not has_rows:
        x = broadcast_to(x, (size, *x.shape))
    at = normalize_axis(axis, x.ndim)
    order = list(range(1, x.ndim))
    order.insert(at, 0)
    return permute_dims(x, order)


__all__ = ["grad", "hessian", "hvp", "jacobian", "jvp", "value_and_grad", "vjp", "vmap"]
