"""A size that is not the same in every call, inside a trace.

A function traced for any number of rows gets tensors of type `f32[n,3]`, and whoever
asks for their shape gets a `TracedSize` where the type has a symbolic `Dim`. To Python
it is an int:

- sums, products, quotients and remainders of sizes are sizes again;
- where a number is wanted, beside a tensor or in a float, it is a Node;
- a comparison is decided by the actual size and becomes a guard, unless it is the same
  for every size;
- whatever else needs the number (`int`, `range`, an index, a hash) gets the actual one,
  and a guard makes the Graph one for this size alone.

`SizeFacts` holds what is known of the sizes in one trace: the actual ones, and those
that guards have found to be others, or numbers. A tensor made before a guard keeps its
type; used after it, its shape is written anew by a `with_shape` Node. An operation that
only makes sense if two sizes are equal asks whether they are.

Start reading at `TracedSize`, then `SizeFacts.prepared`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, zip_longest
from math import comb
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tapejit import ops
from tapejit.base.dims import (
    Dim,
    Size,
    dim_max,
    dim_min,
    evaluate,
    free_names,
    substitute,
    terms_of,
)
from tapejit.base.errors import ArgumentError
from tapejit.base.types import DType, TensorType
from tapejit.ir.node import OPS, Node, Op, literal
from tapejit.ir.structural import dim_value, with_shape
from tapejit.tensor.dispatch import HANDLES, TRACE, TRACED_NUMBERS, apply, cast
from tapejit.tensor.symbolic_float import TracedFloat
from tapejit.tensor.tensor import Provenance, Tensor, TracedTensor

if TYPE_CHECKING:
    from tapejit.tracing.trace import FunctionTrace

Method = Callable[..., Any]

MAX_SETS: Final = 500  # of equal sizes that are tried for one operation


class TracedSize(Dim):
    """A symbolic size that takes part in a trace: see the module's text.

    >>> import tapejit as tj
    >>> @tj.function(input_signature=[tj.TensorSpec([None, 3])])
    ... def mean(x):
    ...     return tj.sum(x) / x.shape[0]
    >>> print(mean(tj.ones((4, 3))), mean(tj.ones((7, 3))), mean.trace_count)
    3.0 3.0 1
    """

    __slots__ = ("_dim", "_facts")
    sample = 1  # a weak number of this kind

    def __init__(self, dim: Dim, facts: SizeFacts) -> None:
        self._terms = dim._terms
        self._text = dim._text
        self._dim = dim
        self._facts = facts

    @property
    def __class__(self) -> type:
        return int

    @__class__.setter
    def __class__(self, other: type) -> None:
        raise TypeError("the class of a size is not assigned")

    def now(self) -> Size:
        """The size in terms of what is known by now."""
        return substitute(self._dim, self._facts.replaced)

    # As a number

    @property
    def tensor(self) -> TracedTensor:
        """The number as an int64 tensor of the trace."""
        return self._facts.tensor(self.now())

    def in_dtype(self, dtype: DType) -> Tensor:
        """The number as a tensor of a dtype, as a Python int would become one."""
        return cast(self.tensor, dtype)

    def weak_float(self) -> TracedFloat:
        """The number as a weak float."""
        size = self.now()
        x = self._facts.tensor(size, np.dtype(np.float64))
        return TracedFloat(x, self._facts.number(size), frozenset({size}))

    def asked(self) -> int:
        """The actual size, which makes the trace one for this size alone."""
        return self._facts.fix(self.now())

    # Arithmetic

    def __neg__(self) -> Any:
        return self._facts.traced(-self.now())

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        return -self if self < 0 else self

    def __pow__(self, exponent: Any, modulus: Any = None) -> Any:
        if modulus is None and type(exponent) is int and 0 < exponent <= 4:
            power: Any = self
            for _ in range(exponent - 1):
                power = power * self
            return power
        if isinstance(exponent, Tensor) or type(exponent) in HANDLES:
            return NotImplemented
        return pow(self.asked(), _number(exponent), modulus)

    def __truediv__(self, other: Any) -> Any:
        return _truediv(self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return _truediv(other, self)

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> Any:
        return other // self, other % self

    # Comparison

    def __eq__(self, other: object) -> Any:
        return self._compared(other, ops.equal, operator.eq)

    def __ne__(self, other: object) -> Any:
        answer = self._compared(other, ops.equal, operator.eq)
        return answer if answer is NotImplemented else not answer

    def __lt__(self, other: object) -> Any:
        return self._compared(other, ops.less, operator.lt)

    def __gt__(self, other: object) -> Any:
        return self._compared(other, ops.less, operator.gt, -1)

    def __le__(self, other: object) -> Any:
        return self._compared(other, ops.less_equal, operator.le)

    def __ge__(self, other: object) -> Any:
        return self._compared(other, ops.less_equal, operator.ge, -1)

    def _compared(
        self, other: object, relation: Op, of_floats: Method, sign: int = 1
    ) -> Any:
        if isinstance(other, float):
            return of_floats(self.asked(), other)
        size = as_plain(other)
        if size is None:
            return NotImplemented
        return self._facts.decide(sign * (self.now() - size), relation)

    def __bool__(self) -> bool:  # type: ignore[override]  # a Dim refuses
        return bool(self != 0)

    def __hash__(self) -> int:
        return hash(self.asked())

    # As text: the name is for reading, text that is computed with has the number

    def __repr__(self) -> str:
        return str(self.now())

    def __str__(self) -> str:
        return str(self.asked())

    def __format__(self, spec: str) -> str:
        return format(self.asked(), spec)

    def __reduce__(self) -> Any:
        return (int, (self.asked(),))

    # To NumPy a Python int

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.array(self.asked(), dtype)

    def __array_ufunc__(  # type: ignore[override]  # a Dim has none
        self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any
    ) -> Any:
        if any(isinstance(x, Tensor) or type(x) in HANDLES for x in inputs):
            return NotImplemented
        return getattr(ufunc, method)(*map(_number, inputs), **kwargs)

    def __getattr__(self, name: str) -> Any:
        if not hasattr(int, name):  # whether it has is often only asked
            raise AttributeError(f"'int' object has no attribute {name!r}")
        return getattr(self.asked(), name)


def as_plain(value: object) -> Size | None:
    """A value as a size without a trace, None if it is none."""
    if type(value) is TracedSize:
        return value.now()
    if isinstance(value, (int, np.integer)):
        return int(value)
    return value if isinstance(value, Dim) else None


def plain_shape(shape: Sequence[Any]) -> tuple[Size, ...]:
    """A shape without a trace."""
    return tuple([n.now() if type(n) is TracedSize else n for n in shape])


def smallest(*sizes: Any) -> Any:
    """The smallest of some sizes; nothing is asked about those that vary."""
    return _chosen(dim_min, min, sizes)


def largest(*sizes: Any) -> Any:
    """The largest of some sizes; nothing is asked about those that vary."""
    return _chosen(dim_max, max, sizes)


def _chosen(choose: Method, of_numbers: Method, sizes: Sequence[Any]) -> Any:
    facts = [size._facts for size in sizes if type(size) is TracedSize]
    if not facts:
        return of_numbers(sizes)
    return facts[0].traced(choose(*plain_shape(sizes)))


def fixed_size(size: Size) -> int:
    """A size of the trace under way as a number, which makes the trace one for it."""
    if not isinstance(size, Dim):
        return size
    trace = TRACE.get()
    assert trace is not None
    assert trace.state is not None
    return trace.state.facts.fix(substitute(size, trace.state.facts.replaced))


def size_now(size: Size) -> int:
    """What a size of the trace under way is in this call; nothing may depend on it."""
    if not isinstance(size, Dim):
        return size
    trace = TRACE.get()
    assert trace is not None
    assert trace.state is not None
    return trace.state.facts.asked(size, f"needs the number {size}")


def _number(x: Any) -> Any:
    return x.asked() if type(x) in TRACED_NUMBERS else x


def _arithmetic(name: str, op: Op | None) -> tuple[Method, Method]:
    """An operator of sizes, which with a float gives a float."""
    compute = getattr(operator, name)

    def forward(self: TracedSize, other: Any) -> Any:
        return _combined(self, self, other)

    def reflected(self: TracedSize, other: Any) -> Any:
        return _combined(self, other, self)

    def _combined(self: TracedSize, left: Any, right: Any) -> Any:
        sizes = (as_plain(left), as_plain(right))
        if None not in sizes:
            if name in ("floordiv", "mod") and right == 0:
                raise ZeroDivisionError("integer modulo or division by zero")
            return self._facts.traced(compute(*sizes))
        other = right if left is self else left
        if not isinstance(other, float):
            return NotImplemented
        if op is None:
            return compute(_number(left), _number(right))
        parts = [x.weak_float() if x is self else x for x in (left, right)]
        return parts[0 if left is self else 1].combined(op, *parts)

    return forward, reflected


def _truediv(left: Any, right: Any) -> Any:
    """A quotient, a weak float; where the divisor may be zero, of actual numbers."""
    for x in (left, right):
        if not isinstance(x, (int, float, np.integer)):
            return NotImplemented
    if type(right) is TracedFloat or right == 0:
        return _number(left) / _number(right)
    parts = [x.weak_float() if type(x) is TracedSize else x for x in (left, right)]
    floats = [x for x in parts if type(x) is TracedFloat]
    return floats[0].combined(ops.div, *parts) if floats else left / right


def _asking(name: str) -> Method:
    """A method of int that needs the actual number."""

    def method(self: TracedSize, *others: Any) -> Any:
        return getattr(int, name)(self.asked(), *map(_number, others))

    method.__name__ = name
    return method


for _name, _op in (
    *(("add", ops.add), ("sub", ops.sub), ("mul", ops.mul)),
    *(("floordiv", None), ("mod", None)),
):
    _forward, _reflected = _arithmetic(_name, _op)
    setattr(TracedSize, f"__{_name}__", _forward)
    setattr(TracedSize, f"__r{_name}__", _reflected)

for _name in (
    *("int", "index", "float", "trunc", "floor", "ceil", "round", "invert", "rpow"),
    *("and", "rand", "or", "ror", "xor", "rxor"),
    *("lshift", "rlshift", "rshift", "rrshift"),
):
    setattr(TracedSize, f"__{_name}__", _asking(f"__{_name}__"))

TRACED_NUMBERS.add(TracedSize)


# What is known of sizes


class SizeFacts:
    """The symbolic sizes of one trace.

    actual    name -> its size in this call, None if the trace is not of a call
    replaced  name -> the size that a guard has found it to be, free of replaced names
    has_adapted  whether it was asked which sizes are equal, as they happened to be
    """

    def __init__(self, trace: FunctionTrace) -> None:
        self.trace = trace
        self.actual: dict[str, int | None] = {}
        self.replaced: dict[str, Size] = {}
        self.answers: dict[tuple[Size, Op], bool] = {}
        self.has_adapted = False

    def traced(self, size: Size) -> Any:
        """A size as the body of the function meets it."""
        return TracedSize(size, self) if isinstance(size, Dim) else size

    def shape(self, shape: Sequence[Size]) -> tuple[Any, ...]:
        """A shape as the body of the function meets it."""
        return tuple([self.traced(substitute(n, self.replaced)) for n in shape])

    def number(self, size: Size) -> float:
        """What a size is in this call; nan if there is no call."""
        if any(self.actual[name] is None for name in free_names(size)):
            return float("nan")
        return evaluate(size, self.actual)  # type: ignore[arg-type]  # no None

    def asked(self, size: Size, why: str) -> int:
        """What a size is in this call, where something depends on it."""
        number = self.number(size)
        if number != number:
            names = ", ".join(sorted(free_names(size)))
            raise ArgumentError(
                f"{self.trace.name} is traced without a call, for any {names}, and "
                f"{why}",
                help="trace it with tensors of the wanted shapes, or with a spec that "
                "gives this size",
            )
        return int(number)

    def _check_under_way(self, size: Size) -> None:
        if self.trace.is_over:
            raise ArgumentError(
                f"the size {size}, of a tensor in {self.trace.name}, is used after "
                f"{self.trace.name} was traced",
                help="return it from the function instead of storing it",
            )

    def tensor(self, size: Size, dtype: DType | None = None) -> TracedTensor:
        """A size as a number of the trace."""
        self._check_under_way(size)
        node = dim_value(size=size)
        if dtype is not None:
            node = OPS["cast"](node, dtype=dtype)
        return TracedTensor(node, self.trace, Provenance("size", None))

    # Guards

    def decide(self, difference: Size, relation: Op) -> bool:
        """Whether a difference of sizes is (`equal`, `less`, `less_equal`) to zero.

        What holds for every size is not asked.
        """
        known = _proven(difference, relation)
        if known is None:
            known = self.answers.get((difference, relation))
        if known is None:
            self._check_under_way(difference)
            number = self.asked(difference, f"asks for the sign of {difference}")
            question = relation(dim_value(size=difference), _zero())
            known = self.trace.guarded(question, relation.eval(number, 0))
            self.answers[difference, relation] = known
            if known and relation is ops.equal:
                self._relate(difference)
        return known

    def fix(self, size: Size) -> int:
        """The actual size; from here on the trace is one for it alone."""
        self._check_under_way(size)
        for name in sorted(free_names(size)):
            number = self.asked(Dim(name), f"needs the number {size}")
            self.trace.guarded(dim_value(size=Dim(name)), number)
            self._replace(name, number)
        return self.asked(substitute(size, self.replaced), "")

    def _relate(self, difference: Size) -> None:
        """Note that a difference is zero, if that tells one size by the others."""
        solution = _solved(difference)
        if solution is not None:
            self._replace(*solution)

    def _replace(self, name: str, size: Size) -> None:
        self.replaced = {
            known: substitute(old, {name: size}) for known, old in self.replaced.items()
        }
        self.replaced[name] = size

    # Operations

    def prepared(
        self, op: Op, inputs: Sequence[Tensor], attrs: dict[str, Any]
    ) -> tuple[Sequence[Tensor], dict[str, Any]]:
        """Operands and attributes as the type rule of `op` takes them.

        If it refuses symbolic sizes where it would take the actual ones, the sizes are
        asked about: first whether two of them are equal, then what they are.
        """
        attrs = {name: self.plain(value) for name, value in attrs.items()}
        if op is not with_shape:
            inputs = [self.restated(x) for x in inputs]
        types = [x._type for x in inputs]
        names = _names_in(types, attrs)
        if not names or _is_accepted(op, types, attrs):
            return inputs, attrs
        if any(self.actual[name] is None for name in names):
            op.infer_type(types, attrs)
        else:
            op.infer_type(*_with_sizes(types, attrs, self.actual))  # raises, as eagerly
        self._adapt(op, types, attrs)
        return self.prepared(op, inputs, attrs)

    def _adapt(
        self, op: Op, types: Sequence[TensorType], attrs: dict[str, Any]
    ) -> None:
        """Learn something of the sizes with which the operation makes sense.

        As little as will do: first the sizes that stand at one place of several
        operands, as broadcasting aligns them, then the fewest of all that are equal.
        """
        self.has_adapted = True
        shapes = [x.shape for x in types]
        sizes = dict.fromkeys([n for x in shapes for n in x] + _sizes_in(attrs))
        aligned = zip_longest(*[x[::-1] for x in shapes])
        places = [pair for x in aligned for pair in combinations(dict.fromkeys(x), 2)]
        singles = [(n, 1) for n in sizes if isinstance(n, Dim)]
        for pairs in ([*places, *singles], [*combinations(sizes, 2), *singles]):
            equal = [
                a - b
                for a, b in pairs
                if None not in (a, b) and a != b and self.number(a) == self.number(b)
            ]
            needed = _fewest(
                equal,
                lambda few: _is_accepted(op, *_with_sizes(types, attrs, _implied(few))),
            )
            for difference in needed or ():
                self.decide(substitute(difference, self.replaced), ops.equal)
            if needed:
                return
        for size in sizes:
            self.fix(substitute(size, self.replaced))

    def restated(self, x: Tensor) -> Tensor:
        """A tensor with its shape in terms of what is known by now."""
        if not isinstance(x, TracedTensor) or not self.replaced:
            return x
        before = x._type.shape
        shape = tuple([substitute(size, self.replaced) for size in before])
        return x if shape == before else apply(with_shape, x, shape=shape)

    def plain(self, value: Any) -> Any:
        """An attribute without sizes of the trace."""
        if type(value) is tuple:
            return tuple([self.plain(part) for part in value])
        if type(value) is TracedSize:
            return value.now()
        return substitute(value, self.replaced) if isinstance(value, Dim) else value

    def shown(self, type: TensorType) -> TensorType:
        """A type as messages show it: of the tensors in this call."""
        sizes = {name: n for name, n in self.actual.items() if n is not None}
        return type.with_shape(tuple([substitute(n, sizes) for n in type.shape]))


def _zero() -> Node:
    return literal(0, np.dtype(np.int64))


def _proven(size: Size, relation: Op) -> bool | None:
    """How a size compares with zero if that is so for all values of its names."""
    if isinstance(size, int):
        return bool(relation.eval(size, 0))
    if dim_max(size, 1) == size:
        return False
    if dim_min(size, -1) == size:
        return relation is not ops.equal
    if relation is ops.less and dim_max(size, 0) == size:
        return False
    if relation is ops.less_equal and dim_min(size, 0) == size:
        return True
    return None


def _solved(difference: Size) -> tuple[str, Size] | None:
    """A name and the size it is if `difference` is zero; None if that is not plain.

    A name stands for sizes from 2 on, so one that is replaced by what is at least 2 is
    preferred: nothing that was known of it is lost.
    """
    found: list[tuple[str, Size]] = []
    for monomial, factor in terms_of(difference).items():
        if len(monomial) != 1 or monomial[0].kind != "name":
            continue
        name = monomial[0].text
        rest = difference - factor * Dim(name)
        if name in free_names(rest):
            continue
        if abs(factor) == 1:
            found.append((name, -factor * rest))
        elif isinstance(rest, int) and rest % factor == 0:
            found.append((name, -rest // factor))
    for name, size in found:
        if dim_max(size, 2) == size:
            return name, size
    return found[0] if found else None


def _implied(zeros: Sequence[Size]) -> dict[str, Size]:
    """What names stand for if all of these differences are zero."""
    known: dict[str, Size] = {}
    for difference in zeros:
        solution = _solved(substitute(difference, known))
        if solution is not None:
            name, size = solution
            known = {x: substitute(old, {name: size}) for x, old in known.items()}
            known[name] = size
    return known


def _fewest(
    facts: Sequence[Size], is_enough: Callable[[Sequence[Size]], bool]
) -> Sequence[Size] | None:
    """The fewest facts that are enough, None if all together are not.

    Where there are too many sets to try, a set of which none can be left out.
    """
    if not facts or not is_enough(facts):
        return None
    tried = 0
    for count in range(1, len(facts)):
        tried += comb(len(facts), count)
        if tried > MAX_SETS:
            break
        for few in combinations(facts, count):
            if is_enough(few):
                return few
    needed = [*facts]
    for fact in facts:
        rest = [x for x in needed if x is not fact]
        if rest and is_enough(rest):
            needed = rest
    return needed


def _is_accepted(op: Op, types: Sequence[TensorType], attrs: Mapping[str, Any]) -> bool:
    """Whether the type rule takes these."""
    try:
        op.infer_type(types, attrs)
    except Exception:  # a rule that needs a number fails in its own way
        return False
    return True


def _with_sizes(
    types: Sequence[TensorType], attrs: Mapping[str, Any], sizes: Any
) -> tuple[list[TensorType], dict[str, Any]]:
    """Types and attributes with names replaced."""
    known = dict(sizes)

    def put(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple([put(part) for part in value])
        return substitute(value, known) if isinstance(value, Dim) else value

    return (
        [x.with_shape(put(x.shape)) for x in types],
        {name: put(value) for name, value in attrs.items()},
    )


def _sizes_in(value: Any) -> list[Size]:
    """The symbolic sizes in attributes."""
    if isinstance(value, Mapping):
        return [size for part in value.values() for size in _sizes_in(part)]
    if isinstance(value, tuple):
        return [size for part in value for size in _sizes_in(part)]
    return [value] if isinstance(value, Dim) else []


def _names_in(types: Sequence[TensorType], attrs: Mapping[str, Any]) -> set[str]:
    names: set[str] = set()
    for size in (*(n for x in types for n in x.shape), *_sizes_in(attrs)):
        if isinstance(size, Dim):
            names |= free_names(size)
    return names
