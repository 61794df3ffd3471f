"""Dynamic shapes: traces that hold for many sizes, and what their keys leave out.

A key names the shape of every tensor. A `Relaxation` puts None where a size may be any
from 2 on, so that calls with other sizes find the same trace, and `symbolic_types`
gives each of those a `Dim` of its own: two that are equal in one call may differ in the
next. Sizes 0 and 1 stay in the key, because they broadcast differently.

Which sizes those are is said by an `InputSignature`, which also checks and converts the
arguments, or learned from calls that differ in sizes alone.

Start reading at `Relaxation`, then `InputSignature.conform`.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tapejit.array.creation import TensorSpec
from tapejit.base import tree
from tapejit.base.dims import Dim
from tapejit.base.errors import ArgumentTypeError, TapejitError
from tapejit.base.types import TensorType, is_complex, is_differentiable
from tapejit.tensor.dispatch import HANDLES, TRACED_NUMBERS, as_operand, convert
from tapejit.tensor.tensor import Tensor
from tapejit.tracing.signature import Binder, Call, is_float_part, is_tensor_part

if TYPE_CHECKING:
    from tapejit.tracing.cache import Cache

Axes = frozenset[tuple[int, int]]  # (leaf, axis)

MAX_KNOWN: Final = 1024  # shapes that a spec remembers to have accepted


def relaxed_key(key: tuple[Any, ...], loose: Axes) -> tuple[Any, ...]:
    """The key with None for the sizes of these axes, as far as they are from 2 on."""
    if not loose:
        return key
    parts = list(key)
    for leaf, axis in loose:
        number, shape, *place = parts[leaf + 1]
        if shape[axis] is not None and shape[axis] >= 2:
            opened = (*shape[:axis], None, *shape[axis + 1 :])
            parts[leaf + 1] = (number, opened, *place)
    return tuple(parts)


def symbolic_types(call: Call) -> tuple[list[TensorType], dict[str, int | None]]:
    """The types of a call's inputs, and the actual sizes of the Dims in them."""
    types: list[TensorType] = []
    sizes: dict[str, int | None] = {}
    for at, array in zip(call.takes, call.arrays, strict=True):
        shape: list[Any] = list(array.shape)
        part = call.key[at + 1]
        pattern = part[1] if is_tensor_part(part) else shape
        for axis, size in enumerate(pattern):
            if size is None:
                name = _size_name(len(sizes))
                sizes[name] = None if at in call.unknown else shape[axis]
                shape[axis] = Dim(name)
        types.append(TensorType(array.dtype, tuple(shape)))
    return types, sizes


def _size_name(count: int) -> str:
    """n, m, k, and then n3, n4, ..."""
    return "nmk"[count] if count < 3 else f"n{count}"


class Relaxation:
    """Which sizes are left out of the keys of one function.

    `signature` says it once and for all; without one, it is learned: the axes are in
    the Cache, by the structure of the arguments.
    """

    def __init__(self, signature: InputSignature | None) -> None:
        self.signature = signature

    def relax(self, cache: Cache, call: Call) -> Call:
        """Leave sizes out of the key of a call."""
        call.key = relaxed_key(call.key, self._loose(cache, call))
        return call

    def _loose(self, cache: Cache, call: Call) -> Axes:
        if self.signature is not None:
            return self.signature.loose_in(call)
        return cache.loose.get(call.structure, frozenset())

    def learn(self, cache: Cache, call: Call) -> None:
        """If a call differs from an earlier one in sizes alone, let those be loose."""
        if self.signature is not None:
            return
        for key in reversed(cache.entries):
            changed = _changed_sizes(call.key, key)
            if changed:
                cache.loose[call.structure] = self._loose(cache, call) | changed
                self.relax(cache, call)
                return


def _changed_sizes(new: Any, old: Any) -> Axes:
    """The axes in which two keys differ; none if they differ in something else.

    Floats may differ too: those become inputs by themselves.
    """
    if len(new) != len(old):
        return frozenset()
    found: set[tuple[int, int]] = set()
    for at, (now, then) in enumerate(zip(new, old, strict=True)):
        if now == then or (is_float_part(now) and is_float_part(then)):
            continue
        if not (is_tensor_part(now) and is_tensor_part(then)):
            return frozenset()
        if (now[0], *now[2:]) != (then[0], *then[2:]) or len(now[1]) != len(then[1]):
            return frozenset()
        for axis, (size, before) in enumerate(zip(now[1], then[1], strict=True)):
            if size == before:
                continue
            if size is None or before is None or size < 2 or before < 2:
                return frozenset()
            found.add((at - 1, axis))
    return frozenset(found)


def has_rank(spec: TensorSpec) -> bool:
    """Whether a spec says how many axes there are."""
    return spec.shape is not None


class InputSignature:
    """The specs that a function's arguments have to fit.

    `specs` has one entry per parameter, a spec or a structure of specs; `leaves` are
    all specs in order, `loose` the axes of any size, `unranked` the leaves of any rank.
    Parameters that follow and have a default need no spec: they select a trace as in
    any function.
    """

    def __init__(self, specs: Any, name: str) -> None:
        if not isinstance(specs, (list, tuple)):
            raise ArgumentTypeError(
                f"input_signature of {name} is a list with one spec per parameter, "
                f"got {type(specs).__name__}",
                help="write input_signature=[tj.TensorSpec([None, 3], tj.float32)]",
            )
        self.name = name
        self.specs = tuple(specs)
        self.leaves: list[TensorSpec] = tree.leaves(self.specs, none_is_leaf=True)
        for spec in self.leaves:
            if not isinstance(spec, TensorSpec):
                raise ArgumentTypeError(
                    f"input_signature of {name} holds a {type(spec).__name__}",
                    help="it is made of tj.TensorSpec and structures of them",
                )
        self.loose: Axes = frozenset(
            (at, axis)
            for at, spec in enumerate(self.leaves)
            for axis, size in enumerate(spec.shape or ())
            if size is None
        )
        self.unranked = [
            at for at, spec in enumerate(self.leaves) if not has_rank(spec)
        ]
        self.known: list[set[Any]] = [set() for _ in self.leaves]
        self.is_flat = all(isinstance(spec, TensorSpec) for spec in self.specs)

    def loose_in(self, call: Call) -> Axes:
        """The axes of any size in a call: of what may have any rank, all there are."""
        if not self.unranked:
            return self.loose
        return self.loose | {
            (at, axis)
            for at in self.unranked
            for axis in range(len(call.key[at + 1][1]))
        }

    def conform(
        self,
        binder: Binder,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        allows_specs: bool = False,
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments, those with a spec converted to tensors that fit."""
        if self.is_flat and not kwargs and len(args) == len(self.specs):
            for x, known in zip(args, self.known, strict=True):
                if type(x) is not Tensor:
                    break
                value = x._value
                if (value.dtype.num, value.shape) not in known:
                    break
            else:
                return args, kwargs
        args, kwargs = self._bound(binder, args, kwargs)
        count = 0
        found = []
        for position, (spec, x) in enumerate(zip(self.specs, args, strict=False)):
            where = f"argument {self._parameter(binder, position)}"
            leaves, structure = tree.flatten(spec, none_is_leaf=True)
            parts = self._parts(spec, x, where)
            for at, (leaf, part) in enumerate(zip(leaves, parts, strict=True)):
                place = where + structure.paths()[at]
                if not (allows_specs and isinstance(part, TensorSpec)):
                    part = _fitting(leaf, part, f"{place} of {self.name}")
                    _remember(self.known[count], part)
                elif not leaf.is_compatible_with(part):
                    raise _unfitting(leaf, part, f"{place} of {self.name}")
                parts[at] = part
                count += 1
            found.append(tree.unflatten(structure, parts))
        return (*found, *args[len(found) :]), kwargs

    def _bound(
        self, binder: Binder, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments as the function takes them, with defaults put in."""
        try:
            bound = binder.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise self._wrong_count(str(error)) from None
        bound.apply_defaults()
        count = len(self.specs)
        without = self._without_spec(binder, len(bound.args), bound.kwargs)
        if without or len(bound.args) < count:
            given = len(bound.args) + len(bound.kwargs)
            raise self._wrong_count(
                f"the input_signature has {count} specs, the call {given} arguments"
                + (f": {without} has neither a spec nor a default" if without else "")
            )
        return bound.args, bound.kwargs

    def _without_spec(
        self, binder: Binder, count: int, kwargs: dict[str, Any]
    ) -> str | None:
        """The first of `count` arguments and `kwargs` with neither spec nor default."""
        parameters = binder.signature.parameters
        names = [self._parameter(binder, at) for at in range(len(self.specs), count)]
        for name in (*names, *kwargs):
            known = parameters.get(name)  # none of *args and **kwargs is
            if known is None or known.default is inspect.Parameter.empty:
                return name
        return None

    def _wrong_count(self, what: str) -> ArgumentTypeError:
        return ArgumentTypeError(
            f"{self.name}: {what}",
            help=f"pass what fits {self}; other parameters need a default",
        )

    def _parameter(self, binder: Binder, position: int) -> str:
        for at, (name, parameter) in enumerate(binder.signature.parameters.items()):
            if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
                return f"{name}[{position - at}]"
            if at == position:
                break
        return name

    def _parts(self, spec: Any, x: Any, where: str) -> list[Any]:
        """The parts of an argument, one per spec: what stands at a spec is whole."""
        if isinstance(spec, TensorSpec):
            return [x]
        inner, structure = tree.flatten(
            spec, is_leaf=lambda part: part is not spec, none_is_leaf=True
        )
        try:
            parts = tree.flatten_like(
                x,
                structure,
                is_leaf=lambda part: part is not x,
                none_is_leaf=True,
                labels=("the spec", "the argument"),
            )
        except tree.StructureError as error:
            raise ArgumentTypeError(
                f"{where} of {self.name} does not fit the input_signature: {error}",
                help=f"the spec is {spec}",
            ) from None
        return [
            leaf
            for one, part in zip(inner, parts, strict=True)
            for leaf in self._parts(one, part, where)
        ]

    def __repr__(self) -> str:
        return f"[{', '.join(map(repr, self.specs))}]"


def _remember(known: set[Any], x: Any) -> None:
    if type(x) is Tensor and len(known) < MAX_KNOWN:
        known.add((x._value.dtype.num, x._value.shape))


def _fitting(spec: TensorSpec, x: Any, where: str) -> Tensor:
    """What was given for a spec as a tensor that fits it."""
    found = _converted(spec, x)
    if found is None or not spec.is_compatible_with(found):
        raise _unfitting(spec, x, where)
    return found


def _unfitting(spec: TensorSpec, x: Any, where: str) -> ArgumentTypeError:
    return ArgumentTypeError(
        f"{where} has to fit {spec}, got {_shown(x)}",
        help="convert it, or use a function with another input_signature",
    )


def _converted(spec: TensorSpec, x: Any) -> Tensor | None:
    """A tensor of the spec's dtype, None if the value is of another kind.

    A tensor's dtype was chosen, and stays; arrays, lists and numbers are converted as
    long as no kind of number is lost on the way.
    """
    if isinstance(x, Tensor):
        return x
    if type(x) in HANDLES:
        return as_operand(x)
    if type(x) in TRACED_NUMBERS:
        return convert(x, spec.dtype) if _keeps_kind(x.sample, spec) else None
    try:
        exact = convert(x, None)
        if type(exact) is not Tensor:
            return exact  # a list that holds traced tensors
        array = exact._value
        if not _keeps_kind(array, spec):
            return None
        return exact if array.dtype == spec.dtype else convert(x, spec.dtype)
    except (TapejitError, OverflowError):
        return None


def _keeps_kind(value: Any, spec: TensorSpec) -> bool:
    return _kind_rank(np.asarray(value).dtype) <= _kind_rank(spec.dtype)


def _kind_rank(dtype: Any) -> int:
    """bool, integers, floats, complex numbers: each holds the ones before."""
    if dtype.kind == "b":
        return 0
    if not is_differentiable(dtype):
        return 1
    return 3 if is_complex(dtype) else 2


def _shown(x: Any) -> str:
    if isinstance(x, Tensor):
        return f"a tensor {x._shown_type}"
    if isinstance(x, np.ndarray):
        return f"an array of dtype {x.dtype} and shape {x.shape}"
    text = repr(x)
    return text if len(text) < 60 else f"a {type(x).__name__}"
