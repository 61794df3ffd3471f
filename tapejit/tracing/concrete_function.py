"""One trace of a function, as a function of its own.

`fn.get_concrete_function(...)` traces for arguments, or for `TensorSpec`s in their
place, without running anything. What it gives back takes arguments of that signature
only and refuses others with an error that shows both. Its Graph can be looked at.

A trace made from specs has no values: a body that asks for one is refused. One that was
made for any size has the trace of sizes from 2 on; sizes 0 and 1 are traced when they
come, as they are in every function.

Start reading at `concrete_function`, then `ConcreteFunction.__call__`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tapejit.array.creation import TensorSpec
from tapejit.base import tree
from tapejit.base.config import config
from tapejit.base.dims import Dim
from tapejit.base.errors import ArgumentError, ArgumentTypeError
from tapejit.base.types import TensorType
from tapejit.ir.graph import Graph
from tapejit.ops.shapes import fits_shape
from tapejit.runtime.executable_report import Inside
from tapejit.tape.variable import Variable
from tapejit.tensor.dispatch import TRACE, TRACED_NUMBERS, as_operand
from tapejit.tensor.symbolic_float import TracedFloat
from tapejit.tensor.tensor import Tensor, TracedTensor
from tapejit.tracing.cache import Specialization
from tapejit.tracing.function import Function
from tapejit.tracing.inside_of_call import AUTO, inside_of_call
from tapejit.tracing.open_sizes import Axes, relaxed_key
from tapejit.tracing.signature import (
    FLOAT,
    Call,
    describe_key,
    describe_part,
    is_scalar,
    is_tensor_part,
    leaf_names,
    numbers_of,
)

if TYPE_CHECKING:
    from tapejit.targets.cpu.kernel_report import KernelReport


def concrete_function(
    function: Function[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> ConcreteFunction:
    """The trace of `function` for arguments, or for specs that stand for them."""
    signature = function._specs
    if signature is not None:
        if not args and not kwargs:
            args = signature.specs
        args, kwargs = signature.conform(
            function._binder, args, kwargs, allows_specs=True
        )
    leaves, structure = tree.flatten((args, kwargs), none_is_leaf=True)
    given = [
        _placeholder(x, function.__name__) if isinstance(x, TensorSpec) else x
        for x in leaves
    ]
    placeholders = {
        id(made): spec
        for made, spec in zip(given, leaves, strict=True)
        if isinstance(spec, TensorSpec)
    }
    args, kwargs = tree.unflatten(structure, given)
    general = frozenset(function._cache.general)
    call = _call(function, args, kwargs, general)
    call.unknown = frozenset(
        at for at, x in enumerate(call.leaves) if id(x) in placeholders
    )
    loose: Axes = frozenset(
        (at, axis)
        for at in call.unknown
        for axis, size in enumerate(placeholders[id(call.leaves[at])].shape or ())
        if size is None
    )
    if signature is not None:
        loose |= signature.loose_in(call)
    call.key = relaxed_key(call.key, loose)
    return ConcreteFunction(function, call, loose, general)


def _placeholder(spec: TensorSpec, name: str) -> Tensor:
    """A tensor of the spec's type that takes no memory; nobody looks at its value."""
    if spec.shape is None:
        raise ArgumentTypeError(
            f"{name} is traced for one number of axes, {spec} leaves it open",
            help="give get_concrete_function a tensor, or a spec with a rank such as "
            "tj.TensorSpec([None, None])",
        )
    sizes = tuple(2 if size is None else size for size in spec.shape)
    return Tensor(np.broadcast_to(np.zeros((), spec.dtype), sizes))


def _call(
    function: Function[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    general: frozenset[Any],
) -> Call:
    """The call with every size in its key; `general` are the floats that are inputs."""
    args, kwargs = _with_tensors(args, kwargs)
    numbers = numbers_of(config.current())
    return function._binder.call_of(args, kwargs, numbers, set(general))


def _with_tensors(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """With tensors for NumPy scalars: a signature has specs for them."""
    leaves, structure = tree.flatten((args, kwargs), none_is_leaf=True)
    if not any(map(is_scalar, leaves)):
        return args, kwargs
    given = [as_operand(x) if is_scalar(x) else x for x in leaves]
    found: tuple[tuple[Any, ...], dict[str, Any]] = tree.unflatten(structure, given)
    return found


class ConcreteFunction:
    """A function for one signature; made by `get_concrete_function`.

    >>> import tapejit as tj
    >>> @tj.function
    ... def scaled(x, times):
    ...     return {"y": x * times}
    >>> concrete = scaled.get_concrete_function(tj.TensorSpec([None, 3]), 2)
    >>> concrete.inputs
    (TensorSpec(shape=(None, 3), dtype=float32),)
    >>> concrete.outputs
    {'y': TensorSpec(shape=(None, 3), dtype=float32)}
    >>> print(concrete(tj.ones((2, 3)))["y"])
    [[2. 2. 2.]
     [2. 2. 2.]]
    """

    def __init__(
        self,
        function: Function[..., Any],
        call: Call,
        loose: Axes,
        general: frozenset[Any],
    ) -> None:
        self._function = function
        self._call = call
        self._loose = loose
        self._general = general  # what the function learns later does not matter here
        self._entries: dict[Any, Specialization] = {}
        found = function._cache.entries.get(call.key)
        if found is None or not found.paths:
            found = function.trace_entry(call)
            if not loose or function._relaxation is not None:
                function._cache.keep(found)
        self._entries[call.key] = found
        if not found.paths:
            raise ArgumentError(
                f"{function.__name__} has no Graph: it {found.reason}",
                help="call the function itself, which runs eagerly",
            )
        path = self.path = found.paths[0]
        self.graph: Graph = path.graph
        self._outputs = [x.tensor_type for x in path.graph.outputs[: path.results]]
        self._structure = path.structure

    def kernels(self) -> list[KernelReport]:
        """Its kernels in numbers, as `Function.kernels` gives them."""
        return self._inside().kernels

    def source(self) -> str:
        """Its kernels as Python, as `Function.source` gives them."""
        return self._inside().source()

    def llvm(self) -> str:
        """Its kernels in LLVM's language."""
        return self._inside().llvm()

    def asm(self) -> str:
        """Its kernels as instructions of this processor."""
        return self._inside().asm()

    def _inside(self) -> Inside:
        entry = self._entries[self._call.key]
        leaves = None if self._call.unknown else self._call.leaves
        found, _ = inside_of_call(entry, entry.paths[0], leaves, AUTO)
        return found

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """The tensors it takes."""
        return tuple(self._spec(at) for at in self._call.takes if self._is_tensor(at))

    @property
    def outputs(self) -> Any:
        """The structure it returns, with specs in place of tensors."""
        specs = [_spec_of(kind) for kind in self._outputs]
        return tree.unflatten(self._structure, specs)

    @property
    def structured_input_signature(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and keyword arguments, with specs in place of tensors."""
        leaves = [
            self._spec(at) if self._is_tensor(at) else x
            for at, x in enumerate(self._call.leaves)
        ]
        return self._call.arguments(leaves)

    def _is_tensor(self, at: int) -> bool:
        return is_tensor_part(self._call.key[at + 1])

    def _spec(self, at: int) -> TensorSpec:
        array = self._call.arrays[self._call.takes.index(at)]
        return TensorSpec(self._call.key[at + 1][1], array.dtype)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it with arguments of its signature.

        Arguments that are no tensors were fixed when it was made, and may be left out.
        """
        function = self._function
        args, kwargs = self._completed(args, kwargs)
        if TRACE.get() is not None:
            self._check_inside(args, kwargs)
            return function(*args, **kwargs)
        call = _call(function, args, kwargs, self._general)
        self._check(call)
        if config.current().eager:
            return function(*args, **kwargs)
        call.key = relaxed_key(call.key, self._loose)
        entry = self._entries.get(call.key)
        if entry is None:
            entry = self._entries.setdefault(call.key, Specialization(call.key))
        return entry.run(function, function._cache, call)

    def _completed(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments, with those that were fixed put in where none is given."""
        signature = self._function._binder.signature
        fixed_args, fixed_kwargs = self._call.arguments(self._call.leaves)
        fixed = signature.bind(*fixed_args, **fixed_kwargs).arguments
        bound = signature.bind_partial(*args, **kwargs)
        for name, value in fixed.items():
            if name not in bound.arguments and not _has_tensors(value):
                bound.arguments[name] = value
        specs = self._function._specs
        if specs is not None:
            return specs.conform(self._function._binder, bound.args, bound.kwargs)
        complete = signature.bind(*bound.args, **bound.kwargs)
        return _with_tensors(complete.args, complete.kwargs)

    def _check_inside(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The same in a trace, whose tensors have no values.

        A size or a float that is not the same in every call of the traced function is
        taken for the one of this call if the signature names a number: another one is
        another trace.
        """
        leaves, structure = tree.flatten((args, kwargs), none_is_leaf=True)
        args, kwargs = tree.unflatten(structure, [_as_concrete(x) for x in leaves])
        self._check(_call(self._function, args, kwargs, self._general))
        for x, part in zip(leaves, self._call.key[1:], strict=False):
            if type(x) is TracedFloat and part != (FLOAT,):
                x.asked()

    def _check(self, call: Call) -> None:
        """Whether a call has the signature of this trace."""
        wanted, given = self._call.key, call.key
        if len(wanted) != len(given) or self._call.structure != call.structure:
            raise self._refused("the arguments have another structure", call)
        names = leaf_names(self._function._binder, call.structure)
        for at in range(len(call.leaves)):
            want, got = wanted[at + 1], given[at + 1]
            if not _fits(want, got):
                raise self._refused(
                    f"{names[at]} is {describe_part(want)}, got {describe_part(got)}",
                    call,
                )

    def _refused(self, what: str, call: Call) -> ArgumentTypeError:
        binder = self._function._binder
        return ArgumentTypeError(
            f"this trace of {self._function.__name__} is for "
            f"{describe_key(binder, self._call.key)}: {what}",
            help="call the function itself, which traces what is new to it",
        )

    def _reaches(self) -> tuple[Any, ...]:
        """What its body can get hold of."""
        return (self._function, self._call.leaves)

    def __repr__(self) -> str:
        signature = describe_key(self._function._binder, self._call.key)
        results = ", ".join(map(str, self._outputs))
        if len(self._outputs) != 1:
            results = f"({results})"
        return (
            f"<tj.ConcreteFunction {self._function.__name__}{signature} -> {results}>"
        )


def _has_tensors(value: Any) -> bool:
    leaves = tree.leaves(value, none_is_leaf=True)
    return any(isinstance(x, (Tensor, Variable, np.ndarray)) for x in leaves)


def _fits(want: Any, got: Any) -> bool:
    """Whether a part of a key is the wanted one; a size that is None may be any."""
    if want == got:
        return True
    if not (is_tensor_part(want) and is_tensor_part(got)) or want[0] != got[0]:
        return False
    return want[2:] == got[2:] and fits_shape(got[1], want[1])


def _as_concrete(x: Any) -> Any:
    """A leaf of a trace as one that has a place in a key."""
    if isinstance(x, TracedTensor):
        return Tensor(x)  # for its dtype and shape
    if type(x) is TracedFloat:
        return x.value
    return x.asked() if type(x) in TRACED_NUMBERS else x


def _spec_of(kind: TensorType) -> TensorSpec:
    """The spec of a result: a size that follows from others may be any."""
    sizes = [None if isinstance(size, Dim) else size for size in kind.shape]
    return TensorSpec(sizes, kind.dtype)
